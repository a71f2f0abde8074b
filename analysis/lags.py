"""A known sound and the stretch of a recording that may hold it in, the lag along it out: steps and drift told apart.

Sources: short-block correlation with a maximum-likelihood score for unknown gain and noise, N/2 · ln 1/(1 − ρ²) (Kay,
"Detection theory", 9.4), followed by the best path (Viterbi) that pays for each step: NetEQ changes the delay by a
pitch lag at a time (2.5 to 15 ms) and freely in silence, clocks drift. Slope by Theil (1950) and Sen (1968).

Lags are as in `analysis.correlation`: reference sample n lies at recording sample n + lag. Both at the same rate.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy import fft as sfft

from analysis.correlation import KERNEL_HALF, refine_rows

__all__ = ["BLOCK_S", "STRETCH", "Drift", "LagPoint", "LagTrack", "Pattern", "Step", "track_lags", "track_widening"]

BLOCK_S = 0.05
WINDOW_BLOCKS = 10  # 0.5 s: over which a lag is measured
HOP_BLOCKS = 2
STEP_S = 0.001  # smaller changes of the lag are drift, or nothing
DEGREES = 100.0  # independent values of a block, as speech fills its band
MAX_RHO2 = 0.99
STEP_COST = 20.0  # what the score must gain for a step to be believed
STEPS_GAIN = 40.0  # and all of them over none: where reverberation blurs every block, chance makes steps
CREEP_COST = 2.0  # for one sample of the lag from a block to the next
MATCHED_SCORE = 8.0  # a block that holds the reference; noise reaches 5 over all lags once in a hundred blocks
# Of other words in the same voices, none reached 50 at one lag, with a mean of 1.1; far from a speaker in a room the
# right ones have 95 and more, with a mean of 3.8.
CREDIBLE_SCORE, STEADY_SCORE, STEADY_MEAN_SCORE, STEADY_COVERAGE = 200.0, 85.0, 2.5, 0.4
NEIGHBOURS, SAME_LAG = 2, 2  # blocks on each side, at a lag within so many samples, that support one
SUPPORT_CAP, SUPPORTED_SCORE = 20.0, 10.0  # what each may add, and what is enough
STRONG_DB = 25.0  # blocks within this of the loud ones must match
CLEAR_SCORE = 20.0  # of a usual block: one half as strong again as the rest would not be missed
SCORE_CAP, WEAK_SHARE = 100.0, 0.15  # of a block: one of the faint ones alone never makes a step
WHITEN = 0.3  # exponent on the power spectrum: half way from plain (0) to the phase alone (0.5)
WHITEN_DB = 30.0  # at most this much is evened out
LOW_HZ = 100.0
BAND = 0.75  # of the Nyquist frequency: what `refine_peak` interpolates exactly
NEAR_LAGS = 4  # samples about the path in which a window's own peak is looked for
DRIFT_MIN_S = 0.4  # two points this far apart have a slope
MAX_DRIFT_PPM = 1000.0
SMOOTH_HZ = 200.0
NEAR_COVERAGE, ENOUGH_COVERAGE = 0.95, 0.75  # below them, wider searches are tried
FURTHER_S = 0.040
EDGE_BLOCKS = 4  # at each edge, none of which may hold something else
EDGE_STEP_COST = 45.0  # for a step within them, which nothing that follows confirms
ASTRAY_BLOCKS = 4
STRETCH = 0.06  # NetEQ at its most
WIDE_GAIN = 60.0  # of the score, for what lies further off to be believed


@dataclass(frozen=True, slots=True)
class LagPoint:
    """The lag (samples) over one window, at its centre (reference sample); `sigma` (samples) is its own error."""

    at: float
    lag: float
    sigma: float
    rho: float
    segment: int


@dataclass(frozen=True, slots=True)
class Step:
    """A change of the lag by `size` samples (positive: later from here on) at reference sample `at`, ± `within`."""

    at: int
    size: float
    within: int


@dataclass(frozen=True, slots=True)
class Drift:
    """The slope of the lag: positive where the recording is longer than the reference; 95 % interval; points used."""

    ppm: float
    low: float
    high: float
    n: int


@dataclass(frozen=True, slots=True, eq=False)
class LagTrack:
    """The lag along a reference.

    `matched` and `strong` are per block (`block_starts`, reference samples): where the reference was recognised, and
    where it is loud enough that it must be. `score` is the log-likelihood of the whole against noise. `observed` and
    `expected` are energies per block (whitened): what the recording holds there, and the reference at its gain; `rest`
    and `typical_rest` are what the reference leaves over in a matched block, at least and as a rule. `detectable` are
    loud blocks that would stand out of what else there is; where they are not matched, the recording holds next to
    nothing (`silent`) or something else (`other`).
    """

    rate_hz: int
    block_starts: NDArray[np.int64]
    block: int
    matched: NDArray[np.bool_]
    strong: NDArray[np.bool_]
    block_scores: NDArray[np.float64]
    block_lags: NDArray[np.int64]
    observed: NDArray[np.float64]
    expected: NDArray[np.float64]
    rest: float
    typical_rest: float
    score: float
    points: tuple[LagPoint, ...]
    steps: tuple[Step, ...]
    drift: Drift | None
    polarity: int
    gain: float
    at_edge: bool
    detectable: NDArray[np.bool_]
    silent: NDArray[np.bool_]
    other: NDArray[np.bool_]

    @property
    def coverage(self) -> float:
        """Share of the loud blocks that were recognised."""
        loud = int(self.strong.sum())
        return float((self.matched & self.strong).sum()) / loud if loud else 0.0

    @property
    def steady(self) -> bool:
        """One lag throughout, drift aside: what chance and other words do not give."""
        lags = self.block_lags[self.matched]
        return bool(len(lags)) and int(np.ptp(lags)) <= STEP_S * self.rate_hz

    @property
    def credible(self) -> bool:
        """It is the reference: by a high score, or a lower one at one lag throughout (strong reverberation)."""
        steady = self.steady and self.coverage >= STEADY_COVERAGE and self.mean_score >= STEADY_MEAN_SCORE
        return self.score >= (STEADY_SCORE if steady else CREDIBLE_SCORE)

    @property
    def mean_score(self) -> float:
        """Score per loud block."""
        return self.score / max(1, int(self.strong.sum()))

    def moved(self, by: int) -> LagTrack:
        """The same in a recording that begins `by` samples earlier."""
        points = tuple(replace(point, lag=point.lag + by) for point in self.points)
        return replace(self, block_lags=self.block_lags + by, points=points)

    def snr_db(self) -> float:
        """Over what is left of the recording, from the median correlation of the windows; −∞ where there is none."""
        if not self.points:
            return -math.inf
        rho = sorted(point.rho for point in self.points)[len(self.points) // 2]
        return 10 * math.log10(rho**2 / (1 - rho**2))

    def slope(self) -> float:
        """Lag samples per reference sample; 0 where no drift stands out of its own interval."""
        if self.drift is None or self.drift.low <= 0 <= self.drift.high:
            return 0.0
        return self.drift.ppm * 1e-6

    def lag_at(self, sample: float) -> float | None:
        """The lag (samples) that holds at a reference sample; None where nothing was recognised."""
        near = self._near(sample)
        if not near:
            return None
        slope = self.slope()
        return sorted(p.lag + slope * (sample - p.at) for p in near)[len(near) // 2]

    def sigma_at(self, sample: float) -> float:
        """Standard deviation (samples) of `lag_at`."""
        near = self._near(sample)
        own = sorted(p.sigma for p in near)[len(near) // 2] if near else math.inf
        if not near or self.drift is None:
            return own
        slope = (self.drift.high - self.drift.low) / 4e6
        return math.hypot(own, slope * min(abs(sample - p.at) for p in near))

    def _near(self, sample: float) -> list[LagPoint]:
        """The points of the segment that holds `sample`: the nearest few."""
        if not self.points:
            return []
        nearest = min(self.points, key=lambda p: abs(p.at - sample))
        same = [p for p in self.points if p.segment == nearest.segment]
        return sorted(same, key=lambda p: abs(p.at - sample))[:3]


class Pattern:
    """A reference made ready to be tracked: whitened, cut into blocks of 50 ms that end at its last audible sample.

    Parameters
    ----------
    samples : ndarray, shape (n,), float
    rate_hz : int
    first, last : int
        First and last audible sample (inclusive).
    """

    def __init__(self, samples: NDArray[np.floating], rate_hz: int, *, first: int, last: int) -> None:
        self.rate_hz = rate_hz
        self.first, self.last = first, last
        self.block = round(BLOCK_S * rate_hz)
        count = max(1, -(-(last + 1 - first) // self.block))
        self.starts = last + 1 - self.block * np.arange(count, 0, -1)
        used = np.array(samples, dtype=np.float32)
        used[:first] = 0.0
        used[last + 1 :] = 0.0
        self._gain = _whitening(used, rate_hz)
        white = self.whiten(used)
        padded = np.concatenate([np.zeros(self.block, np.float32), white, np.zeros(self.block, np.float32)])
        self.blocks = padded[self.starts[:, None] + self.block + np.arange(self.block)[None, :]]
        self.energy = (self.blocks.astype(np.float64) ** 2).sum(axis=1)
        loud = float(np.percentile(self.energy, 90)) if count > 1 else float(self.energy[0])
        self.strong = self.energy >= loud * 10 ** (-STRONG_DB / 10)
        self._spectra: dict[int, NDArray[np.complex64]] = {}

    @cached_property
    def omega_rms(self) -> float:
        """RMS angular frequency (radians a sample) of the whitened reference."""
        power = (np.abs(sfft.rfft(self.blocks, axis=1)) ** 2).sum(axis=0)
        omega = np.pi * np.arange(len(power)) / (len(power) - 1)
        return math.sqrt(float((power * omega**2).sum() / max(power.sum(), 1e-30)))

    def whiten(self, samples: NDArray[np.floating]) -> NDArray[np.float32]:
        """Any sound at this rate through the filter that evens out the reference's own spectrum (zero phase)."""
        size = sfft.next_fast_len(len(samples), real=True)
        spectrum = sfft.rfft(samples.astype(np.float32, copy=False), size)
        frequency = np.linspace(0.0, 1.0, len(spectrum), dtype=np.float32)
        spectrum *= np.interp(frequency, np.linspace(0.0, 1.0, len(self._gain)), self._gain).astype(np.float32)
        return np.asarray(sfft.irfft(spectrum, size)[: len(samples)], dtype=np.float32)

    def spectra(self, size: int) -> NDArray[np.complex64]:
        """Conjugate spectra of the blocks, by FFT size."""
        if size not in self._spectra:
            self._spectra[size] = np.conj(sfft.rfft(self.blocks, size, axis=1))
        return self._spectra[size]


def _whitening(samples: NDArray[np.float32], rate_hz: int) -> NDArray[np.float64]:
    """Gain over frequency (0 to Nyquist) that evens out the long-term spectrum, without what is outside the band."""
    size = max(64, round(rate_hz / SMOOTH_HZ))
    count = max(1, len(samples) // size)
    frames = samples[: count * size].reshape(count, -1) if len(samples) >= size else samples[None, :]
    power = (np.abs(sfft.rfft(frames * np.hanning(frames.shape[1]), axis=1)) ** 2).mean(axis=0)
    power = np.maximum(power, power.max() * 10 ** (-WHITEN_DB / 10) + 1e-30)
    gain = (power / power.max()) ** -WHITEN
    fine = np.linspace(0.0, 1.0, 513)
    shape = np.interp(fine, np.linspace(0.0, 1.0, len(gain)), gain)
    frequency = fine * rate_hz / 2
    rise = np.clip(frequency / LOW_HZ, 0.0, 1.0)
    fall = np.clip((BAND - fine) / 0.05 + 0.5, 0.0, 1.0)
    return np.asarray(shape * rise * fall)


def track_lags(pattern: Pattern, recording: NDArray[np.floating], *, lag: float, reach: int) -> LagTrack:
    """Follow the lag of a reference through a recording.

    Parameters
    ----------
    pattern : Pattern
    recording : ndarray, shape (m,), float
        At the pattern's rate; may be cut off on either side, what is not there counts as silence.
    lag : float
        About where reference sample 0 lies in it.
    reach : int
        Lags from `lag - reach` to `lag + reach` samples are looked at.

    Returns
    -------
    LagTrack
        Also where nothing matched: `coverage` and `mean_score` say so.
    """
    low = round(lag) - reach
    blocks, count = pattern.block, 2 * reach + 1
    begin = int(pattern.starts[0]) + low
    total = int(pattern.starts[-1] - pattern.starts[0]) + blocks + 2 * reach
    heard = pattern.whiten(_cut(recording, begin, begin + total))
    index = (pattern.starts - pattern.starts[0])[:, None] + np.arange(blocks + 2 * reach)[None, :]
    size = sfft.next_fast_len(blocks + 2 * reach, real=True)
    spectra = sfft.rfft(heard[index], size, axis=1)
    products = sfft.irfft(pattern.spectra(size) * spectra, size, axis=1)[:, :count]
    power = np.concatenate(([0.0], np.cumsum(heard.astype(np.float64) ** 2)))
    at = index[:, :count]
    there = np.maximum(power[at + blocks] - power[at], 0.0)
    polarity, scores = _scores(pattern, products, there)
    path, total_score = _path(
        np.minimum(scores, SCORE_CAP) * np.where(pattern.strong, 1.0, WEAK_SHARE).astype(np.float32)[:, None]
    )
    path = _settled(path, scores, STEP_S * pattern.rate_hz)
    return _track(pattern, products * polarity, there, scores, path, total_score, low, polarity)


def track_widening(
    pattern: Pattern, recording: NDArray[np.floating], *, lag: float, reach: int, least: float = 0.0
) -> LagTrack:
    """As `track_lags`, looking further off where loud parts are missing: time that was stretched, by up to 6 %.

    A first look that scores less than `least` ends it.
    """
    track = track_lags(pattern, recording, lag=lag, reach=reach)
    if track.score < least:
        return track
    further = round(FURTHER_S * pattern.rate_hz)
    whole = further + round(STRETCH * (pattern.last - pattern.first))
    for share, more in ((NEAR_COVERAGE, further), (ENOUGH_COVERAGE, whole)):
        edges = np.concatenate([track.other[:EDGE_BLOCKS], track.other[-EDGE_BLOCKS:]])
        if track.coverage >= share and not track.at_edge and not edges.any():
            break
        wide = track_lags(pattern, recording, lag=lag, reach=reach + more)
        track = wide if wide.score > track.score + WIDE_GAIN else track
    return track


def _cut(x: NDArray[np.floating], begin: int, end: int) -> NDArray[np.float32]:
    """x[begin:end] as float32, with silence where there is none."""
    out = np.zeros(end - begin, dtype=np.float32)
    low, high = max(0, begin), min(len(x), end)
    if high > low:
        out[low - begin : high - begin] = x[low:high]
    return out


def _scores(
    pattern: Pattern, products: NDArray[np.float32], there: NDArray[np.float64]
) -> tuple[int, NDArray[np.float32]]:
    least = 1e-4 * float(there.max()) + 1e-20
    over = (pattern.energy[:, None] * (there + least) + 1e-30).astype(np.float32)
    squares = products * products
    squares /= over
    np.minimum(squares, MAX_RHO2, out=squares)
    both = np.log1p(-squares)
    both *= -0.5 * DEGREES
    positive = np.where(products > 0, both, np.float32(0.0))
    turned = both - positive
    upright = positive.sum(axis=0).max() >= turned.sum(axis=0).max()
    return (1, positive) if upright else (-1, turned)


def _path(scores: NDArray[np.floating]) -> tuple[NDArray[np.int64], float]:
    """The best lag index for each block, and its score, less what the steps cost."""
    count = len(scores)
    best = int(np.argmax(scores.sum(axis=0)))
    width = 2 + count // 60  # a drift of 300 ppm at 16 kHz moves a lag by a sample in 0.2 s
    low = max(0, best - width)
    near = scores[:, low : best + width + 1]
    tops = scores.max(axis=1)
    if float((tops - scores[:, best]).max()) < CREEP_COST:
        return np.full(count, best), float(scores[:, best].sum())
    if float((tops - near.max(axis=1)).max()) < STEP_COST:
        return _viterbi(near, steps=False, offset=low)
    straight, stepped = _viterbi(near, steps=False, offset=low), _viterbi(scores, steps=True, offset=0)
    return stepped if stepped[1] > straight[1] + STEPS_GAIN else straight


def _settled(path: NDArray[np.int64], scores: NDArray[np.floating], step: float) -> NDArray[np.int64]:
    """The path without steps in its last or first few blocks that are hardly better than none.

    Nothing follows that would confirm them, and in a room faint blocks match many lags.
    """
    path = path.copy()
    for order in (slice(None), slice(None, None, -1)):
        turned, rows = path[order], scores[order]
        last = np.flatnonzero(np.abs(np.diff(turned)) > step)
        if not len(last) or len(turned) - 1 - last[-1] > EDGE_BLOCKS:
            continue
        after = np.arange(last[-1] + 1, len(turned))
        stay = int(turned[last[-1]])
        low, high = max(0, stay - SAME_LAG), min(scores.shape[1], stay + SAME_LAG + 1)
        gained = float(rows[after, turned[after]].sum() - rows[after, low:high].max(axis=1).sum())
        if gained < EDGE_STEP_COST:
            turned[after] = stay
    return path


def _viterbi(scores: NDArray[np.floating], *, steps: bool, offset: int) -> tuple[NDArray[np.int64], float]:
    count, lags = scores.shape
    came_from = np.zeros((count, lags), dtype=np.int32)
    here = np.arange(lags)
    value = scores[0].copy()
    for b in range(1, count):
        left = np.concatenate(([-np.inf], value[:-1])) - CREEP_COST
        right = np.concatenate((value[1:], [-np.inf])) - CREEP_COST
        chosen, source = value.copy(), here.copy()
        for other, shift in ((left, -1), (right, 1)):
            better = other > chosen
            chosen[better], source[better] = other[better], here[better] + shift
        if steps:
            top = int(np.argmax(value))
            jump = value[top] - STEP_COST
            better = jump > chosen
            chosen[better], source[better] = jump, top
        came_from[b] = source
        value = chosen + scores[b]
    path = np.zeros(count, dtype=np.int64)
    path[-1] = int(np.argmax(value))
    for b in range(count - 1, 0, -1):
        path[b - 1] = came_from[b, path[b]]
    return path + offset, float(value.max())


def _track(
    pattern: Pattern,
    products: NDArray[np.floating],
    there: NDArray[np.float64],
    scores: NDArray[np.floating],
    path: NDArray[np.int64],
    total_score: float,
    low: int,
    polarity: int,
) -> LagTrack:
    each = np.arange(len(path))
    block_scores = scores[each, path].astype(np.float64)
    sure = block_scores >= MATCHED_SCORE
    use = sure & pattern.strong
    gain = float(np.median(products[each, path][use] / pattern.energy[use])) if use.any() else 0.0
    observed, expected = there[each, path], gain * gain * pattern.energy
    rests = observed * np.exp(-2 * block_scores / DEGREES)
    rest, typical = (float(rests[use].min()), float(np.median(rests[use]))) if use.any() else (0.0, 0.0)
    matched = sure | (_supported(block_scores, path) & (observed >= 0.1 * expected + 2 * rest))
    segments = _segments(path, matched, STEP_S * pattern.rate_hz)
    points = [
        point
        for number, members in enumerate(segments)
        for point in _points(pattern, products, there, path, members, number, low)
    ]
    detectable = _detectable(pattern, block_scores[matched & pattern.strong], expected, typical)
    silent = detectable & ~matched & (observed < 0.1 * expected + 2 * rest)
    edge = bool(use.any() and (path[use].min() == 0 or path[use].max() == products.shape[1] - 1))
    return LagTrack(
        pattern.rate_hz,
        pattern.starts,
        pattern.block,
        matched,
        pattern.strong,
        block_scores,
        path + low,
        observed,
        expected,
        rest,
        typical,
        total_score,
        tuple(points),
        _steps(pattern, segments, points),
        _drift(points, pattern.rate_hz),
        polarity,
        polarity * gain,
        edge,
        detectable,
        silent,
        detectable & ~matched & ~silent,
    )


def _detectable(
    pattern: Pattern, scores: NDArray[np.float64], expected: NDArray[np.float64], typical_rest: float
) -> NDArray[np.bool_]:
    clear = len(scores) > 0 and float(np.median(scores)) >= CLEAR_SCORE
    return np.asarray(pattern.strong & (expected >= (1.5 if clear else 4.0) * typical_rest))


def _supported(scores: NDArray[np.float64], path: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Blocks that say little by themselves (a room), but whose neighbours say the same lag.

    At a lag that is given, chance scores half a point a block, not the 5 of the best of many lags.
    """
    total = scores.copy()
    for shift in range(1, NEIGHBOURS + 1):
        same = np.abs(path[shift:] - path[:-shift]) <= SAME_LAG
        total[shift:] += np.where(same, np.minimum(scores[:-shift], SUPPORT_CAP), 0.0)
        total[:-shift] += np.where(same, np.minimum(scores[shift:], SUPPORT_CAP), 0.0)
    return np.asarray((total >= SUPPORTED_SCORE) & (scores > 0))


def _segments(path: NDArray[np.int64], matched: NDArray[np.bool_], step: float) -> list[NDArray[np.int64]]:
    """Blocks that were recognised, cut where the lag steps."""
    members = np.flatnonzero(matched)
    while len(members):
        breaks = np.flatnonzero(np.abs(np.diff(path[members])) > step) + 1
        segments = list(np.split(members, breaks))
        lags = [sorted(path[part])[len(part) // 2] for part in segments]
        # a few blocks between two stretches that agree: a pitch period mistaken, not time stretched and put back;
        # or the block with the splice in it, at a lag that is neither that before nor that after
        astray = [
            i
            for i in range(1, len(segments) - 1)
            if (len(segments[i]) <= ASTRAY_BLOCKS and abs(lags[i + 1] - lags[i - 1]) <= step / 4)
            or (len(segments[i]) == 1 and not min(lags[i - 1], lags[i + 1]) < lags[i] < max(lags[i - 1], lags[i + 1]))
        ]
        if not astray:
            return segments
        members = np.concatenate([part for i, part in enumerate(segments) if i != astray[0]])
    return []


def _points(
    pattern: Pattern,
    products: NDArray[np.floating],
    there: NDArray[np.float64],
    path: NDArray[np.int64],
    members: NDArray[np.int64],
    number: int,
    low: int,
) -> list[LagPoint]:
    """The lag over windows of 0.5 s in one segment, or over the whole of a shorter one; the last ends where it does."""
    ends = list(range(int(members[-1]), int(members[0]) + WINDOW_BLOCKS - 2, -HOP_BLOCKS)) or [int(members[-1])]
    windows = [members[(members > end - WINDOW_BLOCKS) & (members <= end)] for end in reversed(ends)]
    least = WINDOW_BLOCKS // 2 if len(members) >= WINDOW_BLOCKS else 1
    windows = [inside for inside in windows if len(inside) >= least] or [members]
    rows, peaks = [], []
    for inside in windows:
        about = int(sorted(path[inside])[len(inside) // 2])
        reach = KERNEL_HALF + NEAR_LAGS
        low_at, high_at = max(0, about - reach), min(products.shape[1], about + reach + 1)
        total = np.zeros(2 * reach + 1)
        total[low_at - about + reach : high_at - about + reach] = products[inside, low_at:high_at].sum(axis=0)
        peak = KERNEL_HALF + int(np.argmax(total[KERNEL_HALF : KERNEL_HALF + 2 * NEAR_LAGS + 1]))
        rows.append(total[peak - KERNEL_HALF : peak + KERNEL_HALF + 1])
        peaks.append(min(max(about - reach + peak, 0), products.shape[1] - 1))
    offsets, heights = refine_rows(np.array(rows))
    points = []
    for inside, peak, offset, height in zip(windows, peaks, offsets, heights, strict=True):
        weight = pattern.energy[inside]
        energy = float(weight.sum())
        rho = float(height) / math.sqrt(energy * float(there[inside, peak].sum()) + 1e-30)
        rho = min(0.9999, max(1e-3, rho))
        noise = math.sqrt((1 - rho**2) / rho**2 / (BAND * pattern.block * len(inside)))
        centre = float((weight * (pattern.starts[inside] + pattern.block / 2)).sum()) / energy
        points.append(LagPoint(centre, peak + low + float(offset), noise / pattern.omega_rms, rho, number))
    return points


def _steps(pattern: Pattern, segments: list[NDArray[np.int64]], points: list[LagPoint]) -> tuple[Step, ...]:
    steps = []
    by_segment = {number: [p for p in points if p.segment == number] for number in range(len(segments))}
    for number in range(1, len(segments)):
        before, after = by_segment[number - 1], by_segment[number]
        if not before or not after:
            continue
        left = int(pattern.starts[segments[number - 1][-1]]) + pattern.block // 2
        right = int(pattern.starts[segments[number][0]]) + pattern.block // 2
        steps.append(Step((left + right) // 2, after[0].lag - before[-1].lag, (right - left) // 2))
    return tuple(steps)


def _drift(points: list[LagPoint], rate_hz: int) -> Drift | None:
    """Theil–Sen over pairs within a segment; its 95 % interval from the scatter about it. None where too short."""
    if len(points) < 3:
        return None
    at = np.array([p.at for p in points])
    lag = np.array([p.lag for p in points])
    segment = np.array([p.segment for p in points])
    i, j = np.triu_indices(len(points), 1)
    apart = (segment[i] == segment[j]) & (at[j] - at[i] >= DRIFT_MIN_S * rate_hz)
    if np.count_nonzero(apart) < 3:
        return None
    i, j = i[apart], j[apart]
    slope = float(np.median((lag[j] - lag[i]) / (at[j] - at[i])))
    numbers = np.unique(segment)
    rest = lag - slope * at
    spread = square = 0.0
    for number in numbers:
        mine = segment == number
        rest[mine] -= np.median(rest[mine])
        square += float(((at[mine] - at[mine].mean()) ** 2).sum())
    spread = max(1.4826 * float(np.median(np.abs(rest))), float(np.median([p.sigma for p in points])))
    # windows overlap fivefold: that many fewer are independent
    error = 2 * spread / math.sqrt(square / (WINDOW_BLOCKS / HOP_BLOCKS))
    ppm = 1e6 * slope
    if abs(ppm) > MAX_DRIFT_PPM:
        return None
    return Drift(ppm, ppm - 1e6 * error, ppm + 1e6 * error, len(points))
