"""Decoded audio in, what NetEQ finds in it out: the pitch period, speech against background, the lag to join at.

Source: libwebrtc, modules/audio_coding/neteq (time stretch, merge, background noise), in floating point. Samples have
the scale of 16-bit PCM, since the thresholds are absolute. m = rate / 8000 throughout; lags are searched at 4 kHz.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from analysis.neteq.compiled import compiled, summing
from analysis.neteq.state import Audio, Record

__all__ = [
    "MIN_LAG",
    "best_merge_lag",
    "decimate",
    "dot",
    "fade_in",
    "fill",
    "highest",
    "learn_background",
    "level_gain",
    "merge_gain",
    "pitch",
    "refine",
]

Double = NDArray[np.float64]

# low-pass filters before decimation to 4 kHz, by m
TAPS_1 = np.array((0.3, 0.4, 0.3), dtype=np.float32)
TAPS_2 = np.array((0.15, 0.2, 0.3, 0.2, 0.15), dtype=np.float32)
TAPS_4 = np.array((0.1425, 0.1251, 0.1525, 0.1628, 0.1525, 0.1251, 0.1425), dtype=np.float32)
TAPS_6 = np.array((0.2487, 0.0952, 0.1042, 0.1074, 0.1042, 0.0952, 0.2487), dtype=np.float32)
MIN_LAG = 10  # 2.5 ms at 4 kHz
STRETCH_LAGS = 50
UNKNOWN_NOISE_ENERGY = 75_000.0  # per sample, until the background is known
UNKNOWN_FLOOR_ENERGY = 2500.0  # the same, for what decoded audio fades in from
MERGE_LAGS = 60
NOISE_SAMPLES = 256
NOISE_ORDER = 8
NOISE_RESIDUAL = 64
NOISE_RISE = 229 / 65_536  # of the threshold, each tick: a factor of 4 in 4 s


@summing
def dot(a: Audio, b: Audio) -> float:
    """Sum of the products of two stretches of audio, as long as the first one."""
    total = np.float32(0.0)
    for i in range(len(a)):
        total += a[i] * b[i]
    return float(total)


@summing
def correlate(a: Double, b: Double) -> float:
    """The same of whole numbers in double precision, where no order of summation makes a difference."""
    total = 0.0
    for i in range(len(a)):
        total += a[i] * b[i]
    return total


@compiled
def _taps(m: int) -> Audio:
    if m == 1:
        return TAPS_1
    if m == 2:
        return TAPS_2
    return TAPS_4 if m == 4 else TAPS_6


@compiled
def decimate(x: Audio, first: int, m: int, out: Double) -> None:
    """Fill `out` with samples at 4 kHz, the first of them filtered from x[first] and the samples before it."""
    taps = _taps(m)
    for k in range(len(out)):
        at = first + k * 2 * m - len(taps) + 1
        total = np.float32(0.0)
        for i in range(len(taps)):
            total += x[at + i] * taps[i]
        out[k] = np.floor(total + np.float32(0.5))


@compiled
def highest(scores: Double) -> int:
    """Index of the first of the highest scores."""
    at = 0
    for i in range(1, len(scores)):
        if scores[i] > scores[at]:
            at = i
    return at


@compiled
def fill(into: Audio, source: Audio) -> None:
    """Copy the start of `source`, as much as `into` holds."""
    for i in range(len(into)):
        into[i] = source[i]


@compiled
def refine(scores: Double, index: int, m: int) -> tuple[int, float]:
    """The peak at `index` (4 kHz) placed to 1/(2m) of a lag by the parabola through its neighbours, and its height."""
    middle = scores[index]
    if index == 0:
        return 0, middle
    left, right = scores[index - 1], 0.0
    if index + 1 < len(scores):
        right = scores[index + 1]
        if index + 2 == len(scores) and middle <= right:
            return (index * 2 + 1) * m, (middle + right) / 2
    curve = left - 2 * middle + right
    if curve >= 0:
        return index * 2 * m, middle
    shift = (left - right) / (2 * curve)
    steps = max(-m, min(m, round(shift * 2 * m)))
    return index * 2 * m + int(steps), middle - (left - right) ** 2 / (8 * curve)


# time stretch --------------------------------------------------------------------------------------------------------


@compiled
def _bits(value: int) -> int:
    """Length of a number that is not negative, in bits."""
    count = 0
    while value > 0:
        value >>= 1
        count += 1
    return count


@compiled
def pitch(block: Audio, m: int, floor_energy: float) -> tuple[int, float, bool]:
    """The period (samples) at which `block` (30 ms) can be cut or repeated around its middle.

    With it the correlation (0..1) of its two neighbours, and whether they hold speech.
    """
    size = len(_taps(m))
    low = np.empty(60 + STRETCH_LAGS)
    decimate(block, size - 1 + (size - 1) // 2 + 1, m, low)
    scores = np.empty(STRETCH_LAGS)
    for lag in range(STRETCH_LAGS):
        begin = 60 - MIN_LAG - lag
        scores[lag] = correlate(low[60:], low[begin : begin + STRETCH_LAGS])
    period = refine(scores, highest(scores), m)[0] + MIN_LAG * 2 * m
    middle = 120 * m
    before, after = block[middle - period : middle], block[middle : middle + period]
    energy_before, energy_after = dot(before, before), dot(after, after)
    threshold = UNKNOWN_NOISE_ENERGY if floor_energy < 0 else floor_energy
    # libwebrtc takes the scaling of its fixed-point energies out twice, so in a loud block more passes for speech
    loudest = int(np.max(np.abs(block)))
    excess = max(0, _bits(loudest * loudest) + _bits(period) - 31)
    active = (energy_before + energy_after) / 16 * 2.0**excess > period * threshold
    product = energy_before * energy_after
    correlation = max(0.0, dot(before, after)) / math.sqrt(product) if product > 0 else 0.0
    return period, min(1.0, correlation), active


# decoded audio after concealment -------------------------------------------------------------------------------------


@compiled
def best_merge_lag(decoded: Audio, expanded: Audio, m: int, old: int, max_lag: int) -> int:
    """Where, from the next sample to be played on, `decoded` takes over from the concealment in `expanded`.

    `old` samples of that are decided; the result leaves at least one sample of `expanded`.
    """
    overlap = 5 * m
    lags = min(MERGE_LAGS, max_lag // (2 * m) + 1)
    earliest = max(0, max(old, 80 * m + overlap) - len(decoded))
    offset = len(_taps(m)) - 1
    held, fresh = np.empty(100), np.zeros(40)
    decimate(expanded, offset, m, held)
    decimate(decoded, offset, m, fresh[: max(0, min(40, (len(decoded) - offset - 1) // (2 * m) + 1))])
    scores = np.zeros(MERGE_LAGS + overlap)
    for lag in range(lags):
        scores[lag] = correlate(fresh, held[lag : lag + 40])
    first = min(earliest // (2 * m), len(scores) - 1)
    tried = scores[first : first + max(1, min(lags, len(scores) - 1 - first))]
    peak = refine(tried, highest(tried), m)[0]
    return min(earliest + peak, len(expanded) - 1)


@compiled
def merge_gain(decoded: Audio, expanded: Audio, m: int) -> float:
    """The gain (0..1) at which the start of `decoded` is as loud as the concealment it takes over from."""
    start = decoded[: min(64 * m, len(decoded))]
    energy, held = dot(start, start), dot(expanded[: len(start)], expanded)
    return math.sqrt(held / energy) if energy > held else 1.0


@compiled
def level_gain(decoded: Audio, m: int, floor_energy: float) -> float:
    """The gain (0..1) at which the start of `decoded` is as loud as the background."""
    start = decoded[: min(64 * m, len(decoded))]
    energy = dot(start, start) / len(start)
    floor = UNKNOWN_FLOOR_ENERGY if floor_energy < 0 else floor_energy
    return math.sqrt(floor / energy) if energy > floor else 1.0


@compiled
def fade_in(decoded: Audio, gain: float, m: int) -> None:
    """Bring `decoded` from `gain` up to its own level: 0.004 / m a sample, and at the latest at its end."""
    if gain >= 1.0:
        return
    begin, step = np.float32(gain), np.float32(max(0.004 / m, (1.0 - gain) / len(decoded)))
    for i in range(len(decoded)):
        decoded[i] *= min(np.float32(1.0), begin + step * np.float32(i))


# background noise ----------------------------------------------------------------------------------------------------


@compiled
def learn_background(s: Record, tail: Audio) -> None:
    """One tick: the energy per sample of what is heard between words, from quiet stretches with a flat spectrum.

    `tail` is the newest 256 samples.
    """
    if s.noise_energy < 0:
        s.noise_energy = math.floor(dot(tail, tail) / NOISE_SAMPLES)
    energy = s.noise_energy
    if energy >= s.floor_threshold:
        s.loudest = max(s.loudest * (1 - 2**-10), energy)
        s.floor_threshold *= 1 + NOISE_RISE
        if s.loudest > s.floor_threshold * 2**20:  # 60 dB
            s.floor_threshold = s.loudest / 2**20
        return
    correlation = np.empty(NOISE_ORDER + 1)
    for lag in range(NOISE_ORDER + 1):
        correlation[lag] = dot(tail[: NOISE_SAMPLES - lag], tail[lag:])
    if correlation[0] <= 0:
        return
    s.floor_threshold = max(energy, 1.0)
    filter_ = np.zeros(NOISE_ORDER + 1)
    if not _levinson(correlation, filter_):
        return
    residual = _residual_energy(tail[NOISE_SAMPLES - NOISE_RESIDUAL - NOISE_ORDER :], filter_)
    if energy > 0 and 5 * residual >= 16 * energy:
        s.floor_energy = s.floor_threshold = max(energy, 1.0)


@compiled
def _levinson(correlation: Double, filter_: Double) -> bool:
    """Prediction error filter of the autocorrelation into `filter_`; False where it is not stable."""
    filter_[0] = 1.0
    error = correlation[0]
    for order in range(1, len(correlation)):
        if error <= 0:
            return False
        total = 0.0
        for i in range(order):
            total += filter_[i] * correlation[order - i]
        reflection = -total / error
        if abs(reflection) > 32_750 / 32_768:
            return False
        for i in range(order // 2 + 1):
            low, high = filter_[i], filter_[order - i]
            filter_[i] = low + reflection * high
            filter_[order - i] = high + reflection * low
        error *= 1 - reflection * reflection
    return True


@summing
def _residual_energy(x: Audio, filter_: Double) -> float:
    """Energy of `x` after its prediction error filter."""
    total = 0.0
    for i in range(len(x) - NOISE_ORDER):
        value = 0.0
        for k in range(NOISE_ORDER + 1):
            value += x[i + NOISE_ORDER - k] * filter_[k]
        total += value * value
    return total
