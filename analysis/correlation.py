"""A known sound and a recording in, where the sound lies in it, to a fraction of a sample, with the evidence, out.

Sources: Knapp and Carter, "The generalized correlation method for estimation of time delay" (1976), with |G|^−β as the
weight; the Cramér–Rao bound of a delay from the sound's own spectrum (Kay, "Estimation theory", example 3.13), not the
formula for a flat band; Farina's regularised deconvolution for the response of a path.

Convention, everywhere: `recording[n + delay] ≈ gain · reference[n]`. A delay is in samples at the common rate, counted
from the recording's sample 0; positive where the reference's sample 0 lies after it. Two equal sounds have delay 0.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import fft as sfft

from analysis.errors import NotMeasurable
from analysis.units import samples_to_ms

__all__ = [
    "BETA_IN_ROOMS",
    "Delay",
    "PathResponse",
    "crlb_s",
    "earliest_strong_peak",
    "find_delay",
    "path_response",
    "refine_peak",
]

BETA_IN_ROOMS = 0.75
OVERSAMPLING = 2  # a correlation of twice its own rate is interpolated exactly by a short kernel
KERNEL_HALF = 16  # samples of the oversampled correlation on each side; Kaiser 12: 120 dB down
KERNEL_BETA = 12.0
FINE_STEPS = (1 / 8, 1 / 64)  # of a sample, grids on which the peak is looked for before the parabola
PEAK_GUARD_S = 0.001  # what lies nearer to a peak belongs to it
EARLIEST_S = 0.050  # how far before the highest peak the direct sound may lie
EARLIEST_DB = 10.0  # and how much weaker it may be
REGULARISATION = 1e-4  # of the deconvolution, of the largest |X|²
TAIL_S = 0.100  # how far after the direct sound reverberation is looked for
# Noise is as strong before the direct sound as after it; reverberation is only after it.
ROOM_EXCESS = 3.0  # energy after over energy before
SURE_EXCESS = 6.0  # from here on, however it decays
EARLY_S, EARLY_SHARE = 0.020, 0.35  # of what comes later, the least that comes this early
EARLY_EXCESS = 6.0  # the same, where what is taken for the direct sound is not the highest peak
ROOM_SHARE = 0.03  # energy after, less that before, over the direct sound's own
MAX_POLISH = 0.1  # samples; a larger step is not towards this peak
MIN_PEAK_RATIO = 1.1
MIN_SIGMAS = 6.0  # the correlation over what chance gives one lag; over a million lags chance reaches 5
WEAKEST_BINS_DB = 50.0  # bins of the reference this far under its strongest carry no weight in GCC-β
PSD_SEGMENT_S = 0.032
MIN_BAND = 0.02  # of the spectrum that must carry the reference


@dataclass(frozen=True, slots=True)
class Delay:
    """Where a reference lies in a recording, and why that is to be believed.

    Attributes
    ----------
    samples : float
        Delay of the direct (earliest strong) sound, see the module's convention.
    rate_hz : int
    uncertainty_samples : float
        The estimator's own standard deviation (k = 1), from the spectra of the reference and of what is left over.
    snr_db : float
        The reference as found over what is left over, over the reference's length.
    peak_ratio : float
        The highest peak over the next one that is more than 1 ms away.
    quality : float
        The normalised correlation, 0 to 1.
    gain : float
        Of the reference in the recording; negative where the polarity is turned.
    beta : float
        0 for plain correlation.
    room : bool
        Reverberation was found after the direct sound.
    highest_samples : float
        Delay of the highest peak; that of the direct sound where nothing lies before it.
    """

    samples: float
    rate_hz: int
    uncertainty_samples: float
    snr_db: float
    peak_ratio: float
    quality: float
    gain: float
    beta: float
    room: bool
    highest_samples: float

    @property
    def seconds(self) -> float:
        """The delay in seconds."""
        return self.samples / self.rate_hz

    @property
    def ms(self) -> float:
        """The delay in milliseconds."""
        return samples_to_ms(self.samples, self.rate_hz)

    @property
    def uncertainty_ms(self) -> float:
        """The standard deviation (k = 1) in milliseconds."""
        return samples_to_ms(self.uncertainty_samples, self.rate_hz)


@dataclass(frozen=True, slots=True, eq=False)
class PathResponse:
    """A deconvolved path: `values[origin + k]` answers k samples after the direct sound, at `rate_hz`.

    `before`, `direct` and `after` are energies: of the 100 ms before the direct sound, of it (±1 ms), and after it;
    `early` is what the first 20 ms have more after it than before it.
    """

    values: NDArray[np.float64]
    origin: int
    rate_hz: int
    before: float
    direct: float
    after: float
    early: float

    @property
    def room(self) -> bool:
        """More comes after the direct sound than noise would explain, and it decays as reverberation does."""
        more = self.after - self.before
        if self.after < ROOM_EXCESS * self.before or more < ROOM_SHARE * self.direct:
            return False
        # a codec at a low rate repeats the pitch of what went before, at 20 to 60 ms rather than at once
        return self.after > SURE_EXCESS * self.before or self.early > EARLY_SHARE * (more - self.early)


def find_delay(
    reference: NDArray[np.floating],
    recording: NDArray[np.floating],
    rate_hz: int,
    *,
    lags: tuple[int, int] | None = None,
    band_hz: tuple[float, float] | None = None,
    beta: float | None = None,
) -> Delay:
    """Find a known sound in a recording.

    Parameters
    ----------
    reference, recording : ndarray, shape (n,) and (m,), float
        At the same rate.
    rate_hz : int
    lags : (int, int), optional
        Delays looked at, in samples, both inclusive. Default: all at which the reference lies wholly in the recording,
        or, where it is the longer one, all at which it reaches into it.
    band_hz : (float, float), optional
        Frequencies used. Default: all.
    beta : float, optional
        0 for plain correlation (the best there is in white noise), up to 1 for the phase alone. Default: 0, and 0.75
        with the earliest strong peak where a room is detected.

    Raises
    ------
    NotMeasurable
        `silent` where one of them is, `no_peak` where no delay stands out.
    ValueError
        If a signal is not one-dimensional or the lags are empty.

    Notes
    -----
    The peak is interpolated without loss (band-limited), so its error follows the Cramér–Rao bound up to any SNR of
    practice: see `crlb_s`.

    Examples
    --------
    >>> x = np.random.default_rng(0).standard_normal(4000)
    >>> round(find_delay(x, np.concatenate([np.zeros(123), x, np.zeros(100)]), 8000).samples, 3)
    123.0
    """
    pair = _Pair(reference, recording, rate_hz, lags, band_hz)
    if beta is not None:
        return pair.delay(beta, room=None)
    plain = pair.delay(0.0, room=False)
    response = path_response(reference, recording, rate_hz, delay=plain.samples)
    return pair.delay(BETA_IN_ROOMS, room=True) if response.room else plain


class _Pair:
    """Two signals with their spectra, from which delays are made."""

    def __init__(
        self,
        reference: NDArray[np.floating],
        recording: NDArray[np.floating],
        rate_hz: int,
        lags: tuple[int, int] | None,
        band_hz: tuple[float, float] | None,
    ) -> None:
        if reference.ndim != 1 or recording.ndim != 1:
            raise ValueError(f"signals must be one-dimensional, got {reference.shape} and {recording.shape}")
        self.reference = reference.astype(np.float64)
        self.recording = recording.astype(np.float64)
        self.rate_hz = rate_hz
        n, m = len(reference), len(recording)
        self.lags = lags or ((0, m - n) if m >= n else (-n + 1, m - 1))
        if self.lags[1] < self.lags[0]:
            raise ValueError(f"no lags in {self.lags}")
        self.size = 2 * sfft.next_fast_len((n + m + 2 * KERNEL_HALF + 1) // 2, real=True)
        self.x = sfft.rfft(self.reference, self.size)
        self.energy = _energy(self.reference)
        if not self.energy or not np.any(recording):
            raise NotMeasurable("silent", "the reference or the recording is silent")
        self.cross = np.conj(self.x) * sfft.rfft(self.recording, self.size)
        self.frequency = np.arange(len(self.x)) * rate_hz / self.size
        self.used = np.ones(len(self.x), dtype=bool)
        if band_hz is not None:
            self.used = (self.frequency >= band_hz[0]) & (self.frequency <= band_hz[1])

    def weight(self, beta: float) -> NDArray[np.float64]:
        weight = self.used.astype(np.float64)
        if beta:
            magnitude = np.abs(self.cross)
            carrying = _smooth_power(np.abs(self.x) ** 2, self.size, self.rate_hz)
            weight *= carrying >= carrying.max() * 10 ** (-WEAKEST_BINS_DB / 10)
            weight *= np.maximum(magnitude, 1e-12 * float(magnitude.max())) ** -beta
        if np.count_nonzero(weight) < MIN_BAND * len(weight) or not weight.any():
            raise NotMeasurable("no_peak", "the reference carries nothing in the band that was asked for")
        return weight

    def delay(self, beta: float, *, room: bool | None) -> Delay:
        weight = self.weight(beta)
        values, first = self.correlation(weight)
        analytic = _envelope(values)
        low = OVERSAMPLING * (self.lags[0] - first)
        high = OVERSAMPLING * (self.lags[1] - first)
        at = low + int(np.argmax(np.abs(values[low : high + 1])))
        highest, _ = refine_peak(values, at)
        guard = int(OVERSAMPLING * PEAK_GUARD_S * self.rate_hz)
        outside = np.abs(values[low : high + 1]).copy()
        outside[max(0, at - low - guard) : at - low + guard + 1] = 0.0
        second = float(outside.max())
        ratio = float(abs(values[at])) / second if second else math.inf
        position, chosen = highest, at
        if room or (room is None and beta):
            chosen = earliest_strong_peak(analytic, at, int(OVERSAMPLING * EARLIEST_S * self.rate_hz))
            chosen = max(low, chosen)
            near = slice(max(0, chosen - guard // 2), chosen + guard // 2 + 1)
            chosen = near.start + int(np.argmax(np.abs(values[near]) * (analytic[near] >= 0.5 * analytic[chosen])))
            position, _ = refine_peak(values, chosen)
        if ratio < MIN_PEAK_RATIO and not room:
            raise NotMeasurable("no_peak", f"no delay stands out: the next peak is within {ratio:.2f} of the highest")
        samples = self.polished(position / OVERSAMPLING + first, weight)
        found = self.describe(samples, highest / OVERSAMPLING + first, ratio, weight, beta, room)
        if found.quality < MIN_SIGMAS / math.sqrt(self.degrees()):
            raise NotMeasurable("no_peak", f"a correlation of {found.quality:.3f} may be chance")
        return found

    def polished(self, samples: float, weight: NDArray[np.float64]) -> float:
        """One step of Newton's on the correlation itself: the kernel's own error shows from 30 dB on at 48 kHz."""
        omega = 2 * np.pi * self.frequency / self.rate_hz
        turned = self.cross * weight * np.exp(1j * omega * samples)
        slope, bend = -float((omega * turned.imag).sum()), -float((omega**2 * turned.real).sum())
        step = slope / bend if bend else 0.0
        return samples - step if abs(step) < MAX_POLISH else samples

    def degrees(self) -> float:
        """How many independent values the reference holds: fewer than samples where its band is narrow."""
        power = np.abs(self.x[self.used]) ** 2
        return 2 * float(power.sum()) ** 2 / float((power**2).sum()) * len(self.reference) / self.size

    def correlation(self, weight: NDArray[np.float64]) -> tuple[NDArray[np.float64], int]:
        """The weighted correlation at twice the rate, and the delay of its first value."""
        spectrum = self.cross * weight
        spectrum[-1] *= 0.5  # what stood for both halves of the Nyquist bin
        values = sfft.irfft(spectrum, OVERSAMPLING * self.size)
        margin = int(EARLIEST_S * self.rate_hz) + KERNEL_HALF
        first = max(self.lags[0] - margin, -len(self.reference) - KERNEL_HALF)
        last = min(self.lags[1] + margin, len(self.recording) + KERNEL_HALF)
        index = np.arange(OVERSAMPLING * first, OVERSAMPLING * last + 1) % len(values)
        return np.asarray(values[index]), first

    def describe(
        self, samples: float, highest: float, ratio: float, weight: NDArray[np.float64], beta: float, room: bool | None
    ) -> Delay:
        placed, here, energy = self.placed(samples)
        product = float((placed * here).sum())
        gain = product / energy if energy else 0.0
        total = _energy(here)
        quality = abs(product) / math.sqrt(energy * total) if energy and total else 0.0
        left = here - gain * placed
        rest = max(_energy(left), 1e-30)
        deviation = self.deviation(weight, gain, left)
        return Delay(
            samples,
            self.rate_hz,
            deviation,
            10 * math.log10(max(gain * gain * energy, 1e-30) / rest),
            ratio,
            quality,
            gain,
            beta,
            bool(room),
            highest,
        )

    def placed(self, samples: float) -> tuple[NDArray[np.float64], NDArray[np.float64], float]:
        """The reference where it was found, what the recording holds there, and the reference's energy there."""
        whole = math.floor(samples)
        phase = np.exp(-2j * np.pi * self.frequency / self.rate_hz * (samples - whole))
        moved = sfft.irfft(self.x * phase * self.used, self.size)
        n = len(self.reference)
        begin, end = max(0, whole), min(len(self.recording), whole + n + 1)
        if end <= begin:
            raise NotMeasurable("no_peak", "the reference does not reach into the recording")
        placed = moved[begin - whole : end - whole]
        return placed, self.recording[begin:end], _energy(placed)

    def deviation(self, weight: NDArray[np.float64], gain: float, left: NDArray[np.float64]) -> float:
        """Standard deviation (samples) of the peak of a weighted correlation in noise that looks like `left`."""
        noise = _psd_at(left, self.rate_hz, self.frequency)
        curvature = weight * (2 * np.pi * self.frequency / self.rate_hz) ** 2 * np.abs(self.x) ** 2
        # both sums run over half of the spectrum: the factor of two is what is left of the two halves
        slope = abs(gain) * float(curvature.sum())
        spread = float((curvature * weight * noise).sum())
        return math.sqrt(spread * self.size / 2) / slope if slope else math.inf


def crlb_s(
    reference: NDArray[np.floating],
    rate_hz: int,
    *,
    noise_rms: float | None = None,
    noise: NDArray[np.floating] | None = None,
    gain: float = 1.0,
) -> float:
    """The Cramér–Rao bound (standard deviation, seconds) of the delay of a known sound, from its own spectrum.

    Parameters
    ----------
    reference : ndarray, shape (n,), float
    rate_hz : int
    noise_rms : float, optional
        RMS of white noise over the whole band of `rate_hz`, in the reference's units.
    noise : ndarray, optional
        A stretch of the noise itself, for noise of any colour; one of the two.
    gain : float
        Of the reference in the recording.

    Raises
    ------
    ValueError
        If not exactly one of `noise_rms` and `noise` is given, or the bound does not exist (silence, no noise).

    Notes
    -----
    With spectrum S_k (DFT of N values) and noise of power P_k a bin, the information about a delay in samples is
    (gain²/N) · Σ_k ω_k² |S_k|² / P_k; that the gain is unknown costs nothing, since s and s' are orthogonal.
    """
    if (noise_rms is None) == (noise is None):
        raise ValueError("give either noise_rms or noise")
    size = sfft.next_fast_len(len(reference), real=True)
    power = np.abs(sfft.rfft(reference.astype(np.float64), size)) ** 2
    frequency = np.arange(len(power)) * rate_hz / size
    if noise is not None:
        density = _psd_at(noise.astype(np.float64), rate_hz, frequency)
    else:
        density = np.full(len(power), float(noise_rms or 0.0) ** 2)
    if not density.min() > 0 or not power.any():
        raise ValueError("the bound needs a reference and noise that are not silent")
    information = 2 * gain**2 / size * float(((2 * np.pi * frequency / rate_hz) ** 2 * power / density).sum())
    return 1 / math.sqrt(information) / rate_hz


def path_response(
    reference: NDArray[np.floating], recording: NDArray[np.floating], rate_hz: int, *, delay: float
) -> PathResponse:
    """The path from a known sound to a recording, deconvolved, around a delay (samples) at which it was found.

    The origin is the highest value within the 50 ms before and after that delay, or the first local maximum before it
    that is at most 10 dB weaker: the direct sound.
    """
    begin = max(0, math.floor(delay - 2 * TAIL_S * rate_hz))
    end = min(len(recording), math.ceil(delay + len(reference) + 2 * TAIL_S * rate_hz))
    size = sfft.next_fast_len(len(reference) + end - begin, real=True)
    x = sfft.rfft(reference.astype(np.float64), size)
    y = sfft.rfft(recording[begin:end].astype(np.float64), size)
    power = np.abs(x) ** 2
    values = sfft.irfft(np.conj(x) * y / (power + REGULARISATION * float(power.max())), size)
    return response_around(values, round(delay) - begin, rate_hz)


def response_around(values: NDArray[np.floating], centre: int, rate_hz: int) -> PathResponse:
    """A circular response as a PathResponse: its direct sound is looked for within 50 ms of `centre`."""
    tail, reach = int(TAIL_S * rate_hz), int(EARLIEST_S * rate_hz)
    index = np.arange(centre - tail - 2 * reach, centre + tail + 2 * reach + 1) % len(values)
    near = values[index].astype(np.float64)
    envelope = _envelope(near)
    middle = tail + 2 * reach
    peak = middle - reach + int(np.argmax(envelope[middle - reach : middle + reach + 1]))
    direct = earliest_strong_peak(envelope, peak, reach)
    response = _response(near, direct, rate_hz)
    # without a room, what stands before the peak is a sidelobe of the sound's own spectrum, and stands after it too
    if direct != peak and response.after < EARLY_EXCESS * response.before:
        return _response(near, peak, rate_hz)
    return response


def _response(values: NDArray[np.float64], direct: int, rate_hz: int) -> PathResponse:
    guard, tail = max(1, int(PEAK_GUARD_S * rate_hz)), int(TAIL_S * rate_hz)
    total = np.concatenate(([0.0], np.cumsum(values * values)))

    def energy(start: int, stop: int) -> float:
        low, high = max(0, start), min(len(values), stop)
        return float(total[high] - total[low])

    near, early = 2 * guard, int(EARLY_S * rate_hz)
    return PathResponse(
        values,
        direct,
        rate_hz,
        energy(direct - tail, direct - near),
        energy(direct - guard, direct + guard + 1),
        energy(direct + near + 1, direct + tail + 1),
        energy(direct + near + 1, direct + early + 1) - energy(direct - early, direct - near),
    )


def earliest_strong_peak(envelope: NDArray[np.floating], highest: int, reach: int) -> int:
    """Index of the first local maximum at most 10 dB under that at `highest`, in the `reach` values before it."""
    least = float(envelope[highest]) * 10 ** (-EARLIEST_DB / 20)
    begin = max(1, highest - reach)
    part = envelope[begin - 1 : highest + 1]
    peaks = (part[1:-1] >= part[:-2]) & (part[1:-1] > part[2:]) & (part[1:-1] >= least)
    found = np.flatnonzero(peaks)
    return begin + int(found[0]) if len(found) else highest


def refine_peak(values: NDArray[np.floating], index: int) -> tuple[float, float]:
    """Position and height of the extremum of an oversampled signal near `index`, by band-limited interpolation.

    `values` must carry nothing above some three quarters of its Nyquist frequency; the parabola is only drawn through
    three points 1/64 sample apart, so what it adds is far below any noise.
    """
    sign = 1.0 if values[index] >= 0 else -1.0
    padded = np.zeros(2 * KERNEL_HALF + 1)
    low, high = max(0, index - KERNEL_HALF), min(len(values), index + KERNEL_HALF + 1)
    padded[low - index + KERNEL_HALF : high - index + KERNEL_HALF] = sign * values[low:high]
    offset, height = refine_rows(padded[None, :])
    return index + float(offset[0]), sign * float(height[0])


def refine_rows(rows: NDArray[np.floating]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """As `refine_peak` for many maxima at once: rows of 33 values about each; offsets from the middle, and heights."""
    coarse, fine, at_zero, about = _kernels()
    best = np.clip(np.argmax(rows @ at_zero.T, axis=1), 1, len(coarse) - 2)
    heights = np.einsum("rgk,rk->rg", about[best], rows)
    at = np.clip(np.argmax(heights, axis=1), 1, len(fine) - 2)
    each = np.arange(len(rows))
    left, middle, right = heights[each, at - 1], heights[each, at], heights[each, at + 1]
    bend = left - 2 * middle + right
    shift = np.where(bend < 0, 0.5 * (left - right) / np.where(bend < 0, bend, -1.0), 0.0)
    shift = np.clip(shift, -1.0, 1.0)
    return coarse[best] + fine[at] + FINE_STEPS[1] * shift, middle - 0.25 * (left - right) * shift


@cache
def _kernels() -> tuple[NDArray[np.float64], ...]:
    """The coarse grid and the fine one, the interpolation matrix of the first, those of the second about each of it."""
    offsets = np.arange(-KERNEL_HALF, KERNEL_HALF + 1)
    grid = np.arange(-8, 9).astype(np.float64)
    coarse, fine = FINE_STEPS[0] * grid, FINE_STEPS[1] * grid
    about = np.stack([_kernel((centre + fine)[:, None] - offsets[None, :]) for centre in coarse])
    return coarse, fine, _kernel(coarse[:, None] - offsets[None, :]), about


def _kernel(distance: NDArray[np.floating]) -> NDArray[np.float64]:
    inside = np.clip(1 - (distance / (KERNEL_HALF + 1)) ** 2, 0.0, None)
    return np.asarray(np.sinc(distance) * np.i0(KERNEL_BETA * np.sqrt(inside)) / np.i0(KERNEL_BETA))


def _envelope(values: NDArray[np.floating]) -> NDArray[np.float64]:
    size = sfft.next_fast_len(len(values), real=True)
    spectrum: NDArray[Any] = sfft.rfft(values, size)
    full = np.zeros(size, dtype=np.complex128)
    full[: len(spectrum)] = 2 * spectrum
    full[0] = spectrum[0]
    return np.asarray(np.abs(sfft.ifft(full))[: len(values)])


def _energy(x: NDArray[np.floating]) -> float:
    # not np.dot: on long vectors it starts threads, which costs more than it saves
    return float(np.square(x).sum())


def _smooth_power(power: NDArray[np.float64], size: int, rate_hz: int) -> NDArray[np.float64]:
    """The power spectrum over bands of 100 Hz."""
    width = max(1, round(100 * size / rate_hz))
    total = np.concatenate(([0.0], np.cumsum(power)))
    at = np.arange(len(power))
    low, high = np.maximum(at - width // 2, 0), np.minimum(at + width // 2 + 1, len(power))
    return np.asarray((total[high] - total[low]) / (high - low))


def _psd_at(noise: NDArray[np.float64], rate_hz: int, frequency: NDArray[np.float64]) -> NDArray[np.float64]:
    """Power a bin of a noise (white noise of RMS σ: σ² everywhere), by averaged 32 ms frames, at the frequencies."""
    size = min(len(noise), max(64, int(PSD_SEGMENT_S * rate_hz)))
    window = np.hanning(size)
    starts = np.arange(0, max(1, len(noise) - size + 1), max(1, size // 2))
    frames = noise[starts[:, None] + np.arange(size)[None, :]] * window
    power = (np.abs(sfft.rfft(frames, axis=1)) ** 2).mean(axis=0) / float((window**2).sum())
    power = np.maximum(power, 1e-9 * float(power.max()) + 1e-30)
    return np.asarray(np.interp(frequency, np.arange(len(power)) * rate_hz / size, power))
