"""A known utterance, its lag track and a recording in, what the way between them did to it (filter, room, level) out.

Source: regularised deconvolution (Farina, 2000) for the response, from pieces of the utterance that are each aligned by
their own lag; correlations cut short (Blackman and Tukey, 1958) for the filter.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from scipy import fft as sfft

from analysis.audibility import LevelTrack, Samples, first_audible
from analysis.correlation import PathResponse, response_around
from analysis.errors import NotMeasurable
from analysis.lags import BLOCK_S, LagTrack
from analysis.references import Reference
from analysis.units import dbov, from_dbov

__all__ = ["SoundPath"]

PIECE_S, DRIFTING_PIECE_S = 0.5, 0.2  # over which the path is taken as standing still
DRIFTING_PPM = 20.0
MAX_PATH_S = 2.0  # of the utterance that the path is estimated from
RESPONSE_S = 0.15  # of the path, on each side
DRY_MS, ROOM_MS = (4.0, 6.0), (1.5, 1.5)  # of the response before and after the direct sound: filters, not reflections
CORRELATION_S = 0.025
PRIOR_LOCAL, PRIOR = 1e-3, 1e-6  # weight of a plain gain against what the recording shows, by and over all frequencies
CHANCE = 3.5  # a tap this many times what stands before any sound could


class SoundPath:
    """How the reference got into the recording: its filter, its direct sound, whether there is a room.

    Lags are in samples of the recording at its own rate, counted from `origin`.
    """

    def __init__(self, reference: Reference, recording: Samples, rate_hz: int, track: LagTrack, origin: int) -> None:
        self.rate_hz, self.track, self.recording, self.origin = rate_hz, track, recording, origin
        self.x = reference.at_rate(rate_hz)
        self.last = min(len(self.x) - 1, reference.place(reference.end_sample, rate_hz))
        self.first = min(self.last, reference.place(reference.start_sample, rate_hz))
        self.scale = rate_hz / track.rate_hz
        self.pad = round(RESPONSE_S * rate_hz)
        cross, power = self._spectra()
        size = 2 * (len(power) - 1)
        # a bin that carries little of the reference says nothing about the room; what it says about the filter counts
        wide = sfft.irfft(cross / (power + 1e-4 * float(power.max())), size)
        self.response: PathResponse = response_around(wide, self.pad, rate_hz)
        self.room = self.response.room
        offset = self.response.origin - len(self.response.values) // 2
        self.direct = float(offset) if self.room else 0.0
        self._keep_filter(cross, power)

    def lag_at(self, sample: float) -> float:
        """The lag of the tracked path at a reference sample."""
        lag = self.track.lag_at(sample / self.scale)
        if lag is None:
            raise NotMeasurable("not_found", "the reference was not recognised")
        return lag * self.scale

    def heard(self, begin: int, end: int) -> NDArray[np.float64]:
        """recording[origin + begin : origin + end], with silence where there is none."""
        out = np.zeros(max(0, end - begin))
        low, high = max(0, self.origin + begin), min(len(self.recording), self.origin + end)
        if high > low:
            out[low - self.origin - begin : high - self.origin - begin] = self.recording[low:high]
        return out

    def _spectra(self) -> tuple[NDArray[np.complex128], NDArray[np.float64]]:
        """Cross and power spectrum over pieces of the reference, each aligned by its own lag."""
        pieces = _pieces(self.track)
        longest = max(round((stop - start) * self.scale) for start, stop in pieces)
        size = 2 * sfft.next_fast_len((longest + 3 * self.pad + 1) // 2, real=True)
        omega = (2 * np.pi * np.arange(size // 2 + 1) / size).astype(np.float32)
        cross, power = np.zeros(len(omega), dtype=np.complex128), np.zeros(len(omega))
        for start, stop in pieces:
            begin, end = max(0, round(start * self.scale)), round(stop * self.scale)
            lag = self.lag_at((begin + end) / 2)
            whole = math.floor(lag)
            x = sfft.rfft(self.x[begin:end], size)
            # `pad` samples stand before the piece: what answers at once lies at `pad`
            y = sfft.rfft(self.heard(begin + whole - self.pad, end + whole + self.pad).astype(np.float32), size)
            cross += np.conj(x) * y * _turn(omega, lag - whole)
            power += x.real**2 + x.imag**2
        return cross, power

    def _keep_filter(self, cross: NDArray[np.complex128], power: NDArray[np.float64]) -> None:
        """The filter about the direct sound, from correlations cut to ±25 ms; a plain gain where nothing says more."""
        size = 2 * (len(power) - 1)
        half = round(CORRELATION_S * self.rate_hz)
        window = np.hanning(2 * half + 1)
        index = np.arange(-half, half + 1)
        both = sfft.irfft(cross, size)[(index + self.pad + round(self.direct)) % size] * window
        own = sfft.irfft(power, size)[index % size] * window
        short = sfft.next_fast_len(2 * half + 1, real=True)
        turn = np.exp(2j * np.pi * np.arange(short // 2 + 1) * half / short)
        of_both, of_own = sfft.rfft(both, short) * turn, np.maximum((sfft.rfft(own, short) * turn).real, 0.0)
        plain = float(both[half] / own[half])
        prior = PRIOR_LOCAL * of_own + PRIOR * float(of_own.max())
        taps = np.roll(sfft.irfft((of_both + prior * plain) / (of_own + prior), short), half)
        spread = float(
            np.sqrt(np.mean(taps[half - round(0.020 * self.rate_hz) : half - round(0.010 * self.rate_hz)] ** 2))
        )
        before, after = ROOM_MS if self.room else DRY_MS
        low, high = round(before * self.rate_hz / 1000), round(after * self.rate_hz / 1000)
        kept = taps[half - low : half + high + 1]
        # what is no stronger than chance only smears a sharp edge
        self.filter = np.where(np.abs(kept) >= CHANCE * spread, kept, 0.0)
        if not self.filter.any():
            self.filter[low] = plain
        self.filter_delay = round(self.direct) - low
        passed = np.abs(sfft.rfft(self.filter, size)) ** 2
        self.gain = math.sqrt(float((power * passed).sum()) / max(float(power.sum()), 1e-30))

    def edge(self, theta_dbov: float, *, is_end: bool) -> int:
        """The reference's last (first) audible sample at its level in the recording, where that lies further out.

        Its own edges were found in itself: where the recording is louder, or quieter around it, more is audible.
        """
        theta = theta_dbov - dbov(self.gain)
        reach = round(CORRELATION_S * self.rate_hz)
        near = slice(max(0, self.last - reach), None) if is_end else slice(0, self.first + reach)
        beyond = self.x[self.last + 1 :] if is_end else self.x[: self.first]
        if not len(beyond) or float(np.abs(beyond).max()) < from_dbov(theta):
            return self.last if is_end else self.first
        x = self.x[near]
        found = first_audible(LevelTrack(x[::-1] if is_end else x, self.rate_hz), threshold_dbov=theta)
        if found is None:
            return self.last if is_end else self.first
        return max(self.last, len(self.x) - 1 - found.sample) if is_end else min(self.first, found.sample)

    def model(
        self, begin: int, end: int, *, at: int, beyond: bool = True
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """The noise-free utterance at [origin + begin, origin + end), by the lag that holds at reference `at`.

        `beyond` its own edges as well, or only what is audible in itself. The second is the reference with its level
        alone: what the filter does to a sharp edge is where they differ.
        """
        shift = self.lag_at(at) + self.filter_delay
        whole = math.floor(shift)
        margin = len(self.filter) + round(0.004 * self.rate_hz)
        low, high = begin - whole - margin, end - whole + margin
        x = np.zeros(high - low)
        first = max(low, 0 if beyond else self.first)
        stop = min(high, len(self.x) if beyond else self.last + 1)
        if stop > first:
            x[first - low : stop - low] = self.x[first:stop]
        size = sfft.next_fast_len(len(x) + len(self.filter), real=True)
        spectrum = sfft.rfft(x, size)
        omega = (2 * np.pi * np.arange(len(spectrum)) / size).astype(np.float32)
        spectrum *= _turn(omega, whole - shift)
        here = slice(margin, margin + end - begin)
        plain = np.roll(sfft.irfft(spectrum * self.gain, size), round(self.direct) - self.filter_delay)[here]
        return np.asarray(sfft.irfft(spectrum * sfft.rfft(self.filter, size), size)[here]), np.asarray(plain)


def _turn(omega: NDArray[np.float32], samples: float) -> NDArray[np.complex64]:
    """exp(jω·samples), of less than a sample: single precision is enough, and several times as fast."""
    phase = omega * np.float32(samples)
    out = np.empty(len(omega), dtype=np.complex64)
    out.real, out.imag = np.cos(phase), np.sin(phase)
    return out


def _pieces(track: LagTrack) -> list[tuple[float, float]]:
    """Stretches of the reference (samples of the track) over which the path stands still and was recognised."""
    drifting = abs(track.slope()) * 1e6 > DRIFTING_PPM
    longest = max(1, round((DRIFTING_PIECE_S if drifting else PIECE_S) / BLOCK_S))
    near_step = np.zeros(len(track.matched), dtype=bool)
    for step in track.steps:
        middle = track.block_starts + track.block / 2
        near_step |= np.abs(middle - step.at) <= step.within + track.block / 2
    members = np.flatnonzero(track.matched & ~near_step)
    if not len(members):
        members = np.flatnonzero(track.matched)
    pieces = []
    for run in np.split(members, np.flatnonzero(np.diff(members) > 1) + 1):
        for at in range(0, len(run), longest):
            part = run[at : at + longest]
            pieces.append((float(track.block_starts[part[0]]), float(track.block_starts[part[-1]] + track.block)))
    half = round(MAX_PATH_S / 2 / (longest * BLOCK_S))
    # what lies at the edges decides about them
    return pieces if len(pieces) <= 2 * half else pieces[:half] + pieces[-half:]
