"""Decoded audio in, what NetEQ finds in it out: the pitch period, speech against background, the lag to join at.

Source: libwebrtc, modules/audio_coding/neteq (time stretch, expand, merge, background noise), in floating point.
Samples have the scale of 16-bit PCM, since the thresholds are absolute. m = rate / 8000 throughout; lags are searched
at 4 kHz.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["BackgroundNoise", "Expander", "Pitch", "Searcher", "best_merge_lag", "fade_in", "merge_gain"]

Audio = NDArray[np.float32]

# low-pass filters before decimation to 4 kHz, by m
TAPS = {
    1: (0.3, 0.4, 0.3),
    2: (0.15, 0.2, 0.3, 0.2, 0.15),
    4: (0.1425, 0.1251, 0.1525, 0.1628, 0.1525, 0.1251, 0.1425),
    6: (0.2487, 0.0952, 0.1042, 0.1074, 0.1042, 0.0952, 0.2487),
}
MIN_LAG = 10  # 2.5 ms at 4 kHz
STRETCH_LAGS = 50
EXPAND_LAGS = 51
EXPAND_CANDIDATES = 3
UNKNOWN_NOISE_ENERGY = 75_000.0  # per sample, until the background is known
UNKNOWN_FLOOR_ENERGY = 2500.0  # the same, for what decoded audio fades in from
MERGE_LAGS = 60
FULL_Q14 = 1 << 14
NOISE_SAMPLES = 256
NOISE_ORDER = 8
NOISE_RESIDUAL = 64
NOISE_RISE = 229 / 65_536  # of the threshold, each tick: a factor of 4 in 4 s


@dataclass(frozen=True, slots=True)
class Pitch:
    """One period (samples), the correlation of its two neighbours (0..1), and whether they hold speech."""

    period: int
    correlation: float
    active: bool


class Searcher:
    """The pitch search of one sampling rate, its filter and index tables made once."""

    def __init__(self, rate_hz: int) -> None:
        self.m = rate_hz // 8000
        self._taps = np.array(TAPS[self.m], dtype=np.float32)
        self._factor = 2 * self.m
        back = np.arange(STRETCH_LAGS)[None, :] - (MIN_LAG + np.arange(STRETCH_LAGS))[:, None]
        self._stretch_lagged = 60 + back
        count = MIN_LAG + 54 + 60
        back = np.arange(60)[None, :] - (MIN_LAG + np.arange(EXPAND_LAGS))[:, None]
        self._expand_count = count
        self._expand_lagged = count - 60 + back
        self._merge_lagged = np.arange(40)[None, :] + np.arange(MERGE_LAGS)[:, None]

    def decimate(self, x: Audio, first: int, count: int) -> Audio:
        """`count` samples at 4 kHz, the first of them filtered from x[first] and the samples before it."""
        taps = self._taps
        filtered = np.convolve(x[first - len(taps) + 1 : first + (count - 1) * self._factor + 1], taps, mode="valid")
        return np.asarray(np.floor(filtered[:: self._factor] + 0.5), dtype=np.float32)

    def pitch(self, block: Audio, noise_energy: float | None) -> Pitch:
        """The period at which `block` (30 ms) can be cut or repeated around its middle."""
        m = self.m
        delay = (len(self._taps) - 1) // 2 + 1
        low = self.decimate(block, len(self._taps) - 1 + delay, 60 + STRETCH_LAGS)
        scores = low[self._stretch_lagged] @ low[60:]
        period = _single_peak(scores, m) + MIN_LAG * 2 * m
        middle = 120 * m
        before, after = block[middle - period : middle], block[middle : middle + period]
        energy_before, energy_after = float(before @ before), float(after @ after)
        threshold = UNKNOWN_NOISE_ENERGY if noise_energy is None else noise_energy
        active = (energy_before + energy_after) / 16 > period * threshold
        product = energy_before * energy_after
        correlation = max(0.0, float(before @ after)) / math.sqrt(product) if product > 0 else 0.0
        return Pitch(period, min(1.0, correlation), active)

    def expand_candidates(self, history: Audio) -> list[tuple[int, float]]:
        """The three strongest lags (samples, score) of the end of `history`."""
        first = len(history) - self._expand_count * self._factor
        low = self.decimate(history, first, self._expand_count)
        scores = low[self._expand_lagged] @ low[self._expand_count - 60 :]
        found = []
        for _ in range(EXPAND_CANDIDATES):
            index = int(np.argmax(scores[:-1]))
            lag, score = _refine(scores, index, self.m)
            found.append((lag + MIN_LAG * 2 * self.m, score))
            scores[max(0, index - 2) : index + 3] = 0.0
        return found

    def merge_scores(self, decoded: Audio, expanded: Audio, lags: int) -> NDArray[np.float32]:
        """Correlation at 4 kHz of the start of `decoded` with `expanded` moved by 0, 1, … lags."""
        offset = len(self._taps) - 1
        held = self.decimate(expanded, offset, 100)
        count = min(40, (len(decoded) - offset - 1) // self._factor + 1)
        fresh = np.zeros(40, dtype=np.float32)
        if count > 0:
            fresh[:count] = self.decimate(decoded, offset, count)
        return np.asarray(held[self._merge_lagged[:lags]] @ fresh, dtype=np.float32)


def _refine(scores: NDArray[np.float32], index: int, m: int) -> tuple[int, float]:
    """The peak at `index` (4 kHz) placed to 1/(2m) of a lag by the parabola through its neighbours."""
    middle = float(scores[index])
    if index == 0:
        return 0, middle
    if index + 1 < len(scores):
        left, right = float(scores[index - 1]), float(scores[index + 1])
        if index + 2 == len(scores) and middle <= right:
            return (index * 2 + 1) * m, (middle + right) / 2
    else:
        left, right = float(scores[index - 1]), 0.0
    curve = left - 2 * middle + right
    if curve >= 0:
        return index * 2 * m, middle
    shift = (left - right) / (2 * curve)
    steps = max(-m, min(m, round(shift * 2 * m)))
    return index * 2 * m + steps, middle - (left - right) ** 2 / (8 * curve)


def _single_peak(scores: NDArray[np.float32], m: int) -> int:
    return _refine(scores, int(np.argmax(scores)), m)[0]


def best_merge_lag(
    searcher: Searcher, decoded: Audio, expanded: Audio, old_samples: int, max_lag: int, overlap: int
) -> int:
    """Where, from the next sample to be played on, `decoded` takes over from the concealment in `expanded`."""
    m = searcher.m
    lags = min(MERGE_LAGS, max_lag // (2 * m) + 1)
    earliest = max(old_samples, 80 * m + overlap) - len(decoded)
    earliest = max(0, earliest)
    first = earliest // (2 * m)
    scores = np.zeros(MERGE_LAGS + overlap, dtype=np.float32)
    scores[:lags] = searcher.merge_scores(decoded, expanded, lags)
    stop = first + min(lags, MERGE_LAGS + overlap - 1 - first)
    return earliest + _single_peak(scores[first : max(stop, first + 1)], m)


def merge_gain(decoded: Audio, expanded: Audio, m: int) -> float:
    """The gain (0..1) at which the start of `decoded` is as loud as the concealment it takes over from."""
    count = min(64 * m, len(decoded))
    energy, held = float(decoded[:count] @ decoded[:count]), float(expanded[:count] @ expanded[:count])
    return math.sqrt(held / energy) if energy > held else 1.0


def fade_in(decoded: Audio, gain: float, m: int) -> Audio:
    """`decoded` from `gain` up to its own level: 0.004 / m a sample, and at the latest at its end."""
    if gain >= 1.0 or len(decoded) == 0:
        return decoded
    step = max(0.004 / m, (1.0 - gain) / len(decoded))
    return np.asarray(decoded * np.minimum(1.0, gain + step * np.arange(len(decoded), dtype=np.float32)))


class Expander:
    """Concealment that repeats the last pitch period and fades out; its lags and its gain are what playout needs."""

    def __init__(self, searcher: Searcher, overlap: int) -> None:
        self._searcher = searcher
        self._overlap = overlap
        self._first = True
        self._stopped = False
        self._count = 0
        self._lags = (0, 0, 0)
        self._lag_index = -1
        self._lag_step = 1
        self._slope_q20 = 0
        self._onset = False
        self._voice_mix = 0.0
        self._mix = 1.0
        self._period: Audio = np.zeros(0, dtype=np.float32)
        self.max_lag = 0
        self.mute_q14 = FULL_Q14

    @property
    def muted(self) -> bool:
        """True once the concealment has faded to nothing."""
        return not self._first and not self._stopped and self.mute_q14 == 0

    def reset(self) -> None:
        """The next call begins a new concealment."""
        self._first = True
        self._count = 0

    def process(self, history: Audio) -> Audio:
        """The next stretch of concealment, one lag long, after the 32 ms in `history`."""
        if self._first:
            self._analyze(history)
            self._first = False
        self._step_lag()
        lag = self._lags[self._lag_index]
        voiced = self._period[len(self._period) - lag :]
        step = 2.0 ** -(6 + max(0, self.max_lag.bit_length() - 5))
        mix = np.maximum(self._voice_mix, self._mix - step * np.arange(lag, dtype=np.float32))
        self._mix = max(self._voice_mix, self._mix - step * lag)
        out = np.asarray(voiced * mix, dtype=np.float32)
        for count, least in ((3, 1049), (7, 2097)):
            if self._count == count:
                self._slope_q20 = max(self._slope_q20, least // self._searcher.m)
        if self._count or not self._onset:
            out *= self.gain
            if not self._stopped:
                out *= np.maximum(0.0, 1.0 - self._slope_q20 / 2**20 * np.arange(lag, dtype=np.float32))
                self._fade(lag)
        self._count = min(self._count + 1, 200)
        return out

    @property
    def gain(self) -> float:
        """What the concealment has faded to, 0..1."""
        return self.mute_q14 / FULL_Q14

    def resume(self) -> Audio:
        """One more period at the gain reached, to join decoded audio to; it fades no further."""
        self._stopped = True
        lag = self._lags[0]
        return np.asarray(self._period[len(self._period) - lag :] * (self._mix * self.gain), dtype=np.float32)

    def _fade(self, lag: int) -> None:
        gain = FULL_Q14 - ((lag * self._slope_q20 + 8192) >> 6)
        gain = (gain * self.mute_q14 + 8192) >> 14
        self.mute_q14 = 0 if self._count > 3 and gain >= self.mute_q14 else max(0, gain)

    def _step_lag(self) -> None:
        self._lag_index += self._lag_step
        if self._lag_index <= 0:
            self._lag_step = 1
        elif self._lag_index >= 2:
            self._lag_step = -1

    def _analyze(self, x: Audio) -> None:
        m, end = self._searcher.m, len(x)
        self._lag_index, self._lag_step, self._stopped, self._count = -1, 1, False, 0
        self.mute_q14, self._mix = FULL_Q14, 1.0
        best: tuple[float, int, int] | None = None
        tail = x[end - 20 * m :]
        for lag, score in self._searcher.expand_candidates(x):
            lags = np.arange(max(20 * m, lag - 4 * m), min(120 * m - 1, lag + 4 * m) + 1)
            windows = x[(end - 20 * m - lags)[:, None] + np.arange(20 * m)[None, :]]
            distortions = np.abs(tail[None, :] - windows).sum(axis=1)
            at = int(np.argmin(distortions))
            distortion = float(distortions[at])
            ratio = score / distortion if distortion > 0 else (math.inf if score else 0.0)
            if best is None or ratio > best[0]:
                best = (ratio, int(lags[at]), lag)
        assert best is not None
        _, distortion_lag, correlation_lag = best
        self.max_lag = max(distortion_lag, correlation_lag)
        self._set_lags(distortion_lag, correlation_lag)
        self._period = x[end - self.max_lag :].copy()
        self._voice_mix = _voice_mix(_lag_correlation(x, distortion_lag, correlation_lag, m))
        self._set_slope(_amplitude_ratio(x, self.max_lag + self._overlap, distortion_lag), distortion_lag)

    def _set_lags(self, distortion_lag: int, correlation_lag: int) -> None:
        total = distortion_lag + correlation_lag
        towards = -1 if distortion_lag > correlation_lag else 1
        third = distortion_lag if distortion_lag == correlation_lag else (total + towards) // 2
        self._lags = (distortion_lag, total // 2, third)

    def _set_slope(self, ratio: float, lag: int) -> None:
        """How fast the concealment fades, from how the amplitude changed over the last period."""
        if ratio > 1.5:
            slope = (ratio - 1.0) / (lag * ratio) / (2 if ratio > 1.8 else 8)
            self._onset = True
        else:
            slope = (1.0 - ratio) / lag
            if self._voice_mix <= 0.8:
                slope = max(0.005 / self._searcher.m, slope)
            elif ratio > 0.98:
                slope = 0.0
            self._onset = False
        self._slope_q20 = int(slope * 2**20)


def _lag_correlation(x: Audio, distortion_lag: int, correlation_lag: int, m: int) -> float:
    """The best normalised correlation between the two lags."""
    end = len(x)
    count = max(min(distortion_lag + 10, 120 * m), 60 * m)
    lags = np.arange(min(distortion_lag, correlation_lag), max(distortion_lag, correlation_lag) + 1)
    tail = x[end - count :]
    scores = x[(end - count - lags)[:, None] + np.arange(count)[None, :]] @ tail
    at = int(np.argmax(scores))
    other = x[end - count - int(lags[at]) : end - int(lags[at])]
    product = float(tail @ tail) * float(other @ other)
    return min(1.0, float(scores[at]) / math.sqrt(product)) if product > 0 else 0.0


def _amplitude_ratio(x: Audio, count: int, lag: int) -> float:
    """RMS of the last `count` samples over that of the ones a lag earlier, held to 0.5 or 2 where they differ more."""
    last, earlier = x[len(x) - count :], x[len(x) - count - lag : len(x) - lag]
    energy, before = float(last @ last), float(earlier @ earlier)
    if energy / 4 < before and energy > before / 4:
        return math.sqrt(energy / before)
    return 0.5 if energy / 4 < before or before == 0 else 2.0


def _voice_mix(x: float) -> float:
    """Share of the voiced part for a correlation `x`."""
    if x <= 7875 / FULL_Q14:
        return 0.0
    return max(0.0, min(1.0, (-5179 + 19931 * x - 16422 * x**2 + 5776 * x**3) / 4096))


class BackgroundNoise:
    """The energy per sample of what is heard between words, learnt from quiet stretches with a flat spectrum."""

    def __init__(self) -> None:
        self.energy: float | None = None
        self._threshold = 500_000.0
        self._loudest = 0.0

    def gain(self, decoded: Audio, m: int) -> float:
        """The gain (0..1) at which the start of `decoded` is as loud as the background."""
        count = min(64 * m, len(decoded))
        energy = float(decoded[:count] @ decoded[:count]) / count if count else 0.0
        floor = UNKNOWN_FLOOR_ENERGY if self.energy is None else self.energy
        return math.sqrt(floor / energy) if energy > floor else 1.0

    def update(self, tail: Audio, energy: float) -> None:
        """One tick. `tail` is the newest 256 samples, `energy` their mean square rounded down."""
        if energy >= self._threshold:
            self._loudest *= 1 - 2**-10
            if energy > self._loudest:
                self._loudest = energy
            self._threshold *= 1 + NOISE_RISE
            if self._loudest > self._threshold * 2**20:  # 60 dB
                self._threshold = self._loudest / 2**20
            return
        correlation = [float(tail[: NOISE_SAMPLES - k] @ tail[k:]) for k in range(NOISE_ORDER + 1)]
        if correlation[0] <= 0:
            return
        self._threshold = max(energy, 1.0)
        filter_ = _levinson(correlation)
        if filter_ is None:
            return
        residual = np.convolve(tail[NOISE_SAMPLES - NOISE_RESIDUAL - NOISE_ORDER :], filter_, mode="valid")
        if energy > 0 and 5 * float(residual @ residual) >= 16 * energy:
            self.energy = self._threshold = max(energy, 1.0)


def _levinson(correlation: list[float]) -> NDArray[np.float64] | None:
    """Prediction error filter of the autocorrelation; None where it is not stable."""
    filter_ = [1.0]
    error = correlation[0]
    for order in range(1, len(correlation)):
        if error <= 0:
            return None
        reflection = -sum(filter_[i] * correlation[order - i] for i in range(order)) / error
        if abs(reflection) > 32_750 / 32_768:
            return None
        filter_ = [
            (filter_[i] if i < order else 0.0) + reflection * (filter_[order - i] if i else 0.0)
            for i in range(order + 1)
        ]
        error *= 1 - reflection * reflection
    return np.array(filter_)
