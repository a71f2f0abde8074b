"""The last decoded audio in, concealment out: the last pitch period repeated and faded.

Source: libwebrtc, modules/audio_coding/neteq (expand), in floating point and without its noise; its lags and its gain
are what playout needs.
"""

from __future__ import annotations

import math

import numpy as np

from analysis.neteq.compiled import compiled, summing
from analysis.neteq.signal import MIN_LAG, correlate, decimate, dot, fill, highest, refine
from analysis.neteq.state import Audio, Record

__all__ = [
    "conceal_period",
    "concealment_gain",
    "end_concealment",
    "fill_resumed",
    "has_faded",
    "next_lag",
    "reset_expand",
]

EXPAND_LAGS = 51
EXPAND_CANDIDATES = 3
EXPAND_COUNT = MIN_LAG + 54 + 60
FULL_Q14 = 1 << 14


@compiled
def has_faded(s: Record) -> bool:
    """True once the concealment has faded to nothing."""
    return not s.expand_first and not s.expand_stopped and s.mute_q14 == 0


@compiled
def end_concealment(s: Record) -> None:
    """The next call begins a new concealment."""
    s.expand_first = True
    s.expansions = 0


@compiled
def concealment_gain(s: Record) -> float:
    """What the concealment has faded to, 0..1."""
    return float(s.mute_q14 / FULL_Q14)


@compiled
def reset_expand(s: Record) -> None:
    """As before any audio."""
    s.lag_index, s.lag_step, s.expansions = -1, 1, 0
    s.mute_q14, s.mix = FULL_Q14, 1.0
    s.expand_first, s.expand_stopped = True, False


@compiled
def next_lag(s: Record, history: Audio) -> int:
    """The length of the next stretch of concealment, after the 32 ms in `history`; to be filled by `conceal_period`."""
    if s.expand_first:
        _analyze(s, history)
        s.expand_first = False
    s.lag_index += s.lag_step
    if s.lag_index <= 0:
        s.lag_step = 1
    elif s.lag_index >= 2:
        s.lag_step = -1
    return int(s.lags[s.lag_index])


@compiled
def conceal_period(s: Record, out: Audio) -> None:
    """Write the next stretch of concealment, one lag long."""
    lag = len(out)
    step = 2.0 ** -(6 + max(0, _bit_length(s.max_lag) - 5))
    begin, least, step_32 = np.float32(s.mix), np.float32(s.voice_mix), np.float32(step)
    voiced = s.period[s.max_lag - lag : s.max_lag]
    for i in range(lag):
        out[i] = voiced[i] * max(least, begin - step_32 * np.float32(i))
    s.mix = max(s.voice_mix, s.mix - step * lag)
    m = s.m
    if s.expansions == 3:
        s.slope_q20 = max(s.slope_q20, 1049 // m)
    elif s.expansions == 7:
        s.slope_q20 = max(s.slope_q20, 2097 // m)
    if s.expansions or not s.onset:
        gain = np.float32(concealment_gain(s))
        for i in range(lag):
            out[i] *= gain
        if not s.expand_stopped:
            slope = np.float32(s.slope_q20 / 2**20)
            for i in range(lag):
                out[i] *= max(np.float32(0.0), np.float32(1.0) - slope * np.float32(i))
            _fade(s, lag)
    s.expansions = min(s.expansions + 1, 200)


@compiled
def fill_resumed(s: Record, out: Audio) -> None:
    """Write more periods at the gain reached, to join decoded audio to; it fades no further."""
    s.expand_stopped = True
    lag = s.lags[0]
    voiced = s.period[s.max_lag - lag : s.max_lag]
    gain = np.float32(s.mix * concealment_gain(s))
    for i in range(len(out)):
        out[i] = voiced[i % lag] * gain


@compiled
def _bit_length(number: int) -> int:
    bits = 0
    while number:
        number >>= 1
        bits += 1
    return bits


@compiled
def _fade(s: Record, lag: int) -> None:
    gain = FULL_Q14 - ((lag * s.slope_q20 + 8192) >> 6)
    gain = (gain * s.mute_q14 + 8192) >> 14
    s.mute_q14 = 0 if s.expansions > 3 and gain >= s.mute_q14 else max(0, gain)


@compiled
def _analyze(s: Record, x: Audio) -> None:
    """Find the lags, the share of the voiced part and the slope of a new concealment."""
    m, end = s.m, len(x)
    reset_expand(s)
    distortion_lag, correlation_lag = _best_lags(x, m)
    s.max_lag = max(distortion_lag, correlation_lag)
    total = distortion_lag + correlation_lag
    towards = -1 if distortion_lag > correlation_lag else 1
    s.lags[0] = distortion_lag
    s.lags[1] = total // 2
    s.lags[2] = distortion_lag if distortion_lag == correlation_lag else (total + towards) // 2
    fill(s.period[: s.max_lag], x[end - s.max_lag :])
    s.voice_mix = _voice_mix(_lag_correlation(x, distortion_lag, correlation_lag, m))
    _set_slope(s, _amplitude_ratio(x, s.max_lag + s.overlap, distortion_lag), distortion_lag)


@compiled
def _best_lags(x: Audio, m: int) -> tuple[int, int]:
    """Of the three lags that correlate best the one whose period differs least: placed by difference, and as found."""
    end = len(x)
    low = np.empty(EXPAND_COUNT)
    decimate(x, end - EXPAND_COUNT * 2 * m, m, low)
    scores = np.empty(EXPAND_LAGS)
    for lag in range(EXPAND_LAGS):
        begin = EXPAND_COUNT - 60 - MIN_LAG - lag
        scores[lag] = correlate(low[EXPAND_COUNT - 60 :], low[begin : begin + 60])
    tail = x[end - 20 * m :]
    best, distortion_lag, correlation_lag = -1.0, 0, 0
    for candidate in range(EXPAND_CANDIDATES):
        index = highest(scores[: EXPAND_LAGS - 1])
        found, score = refine(scores, index, m)
        for near in range(max(0, index - 2), min(index + 3, EXPAND_LAGS)):
            scores[near] = 0.0
        found += MIN_LAG * 2 * m
        least, at = math.inf, 0
        for lag in range(max(20 * m, found - 4 * m), min(120 * m - 1, found + 4 * m) + 1):
            distortion = _difference(tail, x[end - 20 * m - lag :])
            if distortion < least:
                least, at = distortion, lag
        if least > 0:
            ratio = score / least
        else:
            ratio = math.inf if score != 0 else 0.0
        if candidate == 0 or ratio > best:
            best, distortion_lag, correlation_lag = ratio, at, found
    return distortion_lag, correlation_lag


@summing
def _difference(a: Audio, b: Audio) -> float:
    """Sum of the absolute differences, as long as the first one."""
    total = np.float32(0.0)
    for i in range(len(a)):
        total += abs(a[i] - b[i])
    return float(total)


@compiled
def _set_slope(s: Record, ratio: float, lag: int) -> None:
    """How fast the concealment fades, from how the amplitude changed over the last period."""
    s.onset = ratio > 1.5
    if s.onset:
        slope = (ratio - 1.0) / (lag * ratio) / (2 if ratio > 1.8 else 8)
    else:
        slope = (1.0 - ratio) / lag
        if s.voice_mix <= 0.8:
            slope = max(0.005 / s.m, slope)
        elif ratio > 0.98:
            slope = 0.0
    s.slope_q20 = int(slope * 2**20)


@compiled
def _lag_correlation(x: Audio, distortion_lag: int, correlation_lag: int, m: int) -> float:
    """The best normalised correlation between the two lags."""
    end = len(x)
    count = max(min(distortion_lag + 10, 120 * m), 60 * m)
    tail = x[end - count :]
    best, at = -math.inf, 0
    for lag in range(min(distortion_lag, correlation_lag), max(distortion_lag, correlation_lag) + 1):
        score = dot(tail, x[end - count - lag :])
        if score > best:
            best, at = score, lag
    other = x[end - count - at : end - at]
    product = dot(tail, tail) * dot(other, other)
    return min(1.0, best / math.sqrt(product)) if product > 0 else 0.0


@compiled
def _amplitude_ratio(x: Audio, count: int, lag: int) -> float:
    """RMS of the last `count` samples over that of the ones a lag earlier, held to 0.5 or 2 where they differ more."""
    last, earlier = x[len(x) - count :], x[len(x) - count - lag : len(x) - lag]
    energy, before = dot(last, last), dot(earlier, earlier)
    if energy / 4 < before and energy > before / 4:
        return math.sqrt(energy / before)
    return 0.5 if energy / 4 < before or before == 0 else 2.0


@compiled
def _voice_mix(x: float) -> float:
    """Share of the voiced part for a correlation `x`."""
    if x <= 7875 / FULL_Q14:
        return 0.0
    return max(0.0, min(1.0, (-5179 + 19931 * x - 16422 * x**2 + 5776 * x**3) / 4096))
