"""Two channels of a recording in, how the caller is heard on the agent's, and the agent's level without that, out.

The path of the echo is a short filter at a delay, fitted by least squares over stretches in which the caller speaks and
little else sounds on the agent's channel; nothing is assumed where such a filter explains nothing. What it predicts is
subtracted where it could be audible, and windows in which no more is left than 6 dB over what such a subtraction leaves
elsewhere count as silent.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import fft as sfft
from scipy.linalg import solve_toeplitz
from scipy.signal import oaconvolve

from analysis.audibility import WINDOW_MS, LevelTrack
from analysis.audiofile import resample

__all__ = ["EchoFreeTrack", "EchoPath", "find_echo", "without_echo"]

BLOCK_MS = 500
EPOCH_MS = 300_000  # the path is estimated anew so often
MAX_BLOCKS = 16  # of an epoch, the loudest
LEAST_BLOCKS = 3
EARLIEST_MS, LATEST_MS = -20, 500  # delays looked at
LEAD_MS, TAPS_MS = 4, 48  # the filter begins so far before its strongest tap, and is so long
ACTIVE_DB = 20.0  # the caller speaks: so far under the loudest tenth of the blocks
QUIETEST_DBOV = -66.0  # what cannot be audible is not looked at
BELOW_CALLER_DB = 6.0  # an echo is at least so much softer
RIDGE = 1e-4  # of the caller's power, against bands in which it says nothing
DELAY_RATE_HZ = 8000
DELAY_RIDGE = 1e-3
PEAK_MS = 2
PEAK_RATIO = 12.0  # the strongest 2 ms of the response over the median of all
COHERENCE = 0.5  # between what is predicted and what is there, in at least half of the blocks
DISCOUNT_DB = 6.0
LEAST_LEFT_DB = -30.0  # no subtraction is taken to be better
# What a subtraction leaves is nobody's sound: so much of it is explained, and no more left of what was predicted
RESIDUE_EXPLAINED, RESIDUE_LEFT = 0.3, 0.25
REACH_MS = 30  # beyond the filter, in which an echo may still ring
ZONE_MS = 4000  # predicted at once


@dataclass(frozen=True, slots=True, eq=False)
class EchoPath:
    """How the caller gets onto the agent's channel from sample `start` to before `stop`.

    `taps` act on the caller's samples from `delay` samples before on (it may be negative); `left` is the share of the
    echo's power that the subtraction leaves; `gain_db` the energy of the taps.
    """

    start: int
    stop: int
    delay: int
    taps: NDArray[np.float64]
    left: float

    @property
    def gain_db(self) -> float:
        """Energy of the echo over that of the caller, for white sound."""
        return 10 * math.log10(float(np.sum(self.taps**2)))

    def strongest(self) -> int:
        """Delay of the strongest tap, samples."""
        return self.delay + int(np.argmax(np.abs(self.taps)))

    def predict(self, caller: LevelTrack, begin: int, stop: int) -> NDArray[np.float64]:
        """The echo at samples [begin, stop) of the agent's channel."""
        x = _cut(caller, begin - self.delay - len(self.taps) + 1, stop - self.delay)
        return np.asarray(oaconvolve(x, self.taps, mode="valid"))


def _cut(track: LevelTrack, begin: int, stop: int) -> NDArray[np.float64]:
    """Samples [begin, stop) with silence where there are none."""
    out = np.zeros(stop - begin)
    low, high = max(0, begin), min(track.n, stop)
    if high > low:
        out[low - begin : high - begin] = track.samples(low, high)
    return out


def _product(x: NDArray[np.float64], y: NDArray[np.float64]) -> float:
    # not BLAS: for some thousand samples its threads take longer to wake than to work
    return float(np.einsum("i,i", x, y))


def find_echo(caller: LevelTrack, agent: LevelTrack) -> tuple[EchoPath, ...]:
    """The paths of the caller's echo on the agent's channel, in order; empty where there is none to be heard.

    Parameters
    ----------
    caller, agent : LevelTrack
        Of the two channels of one recording, on one time axis.
    """
    hops = min(caller.hops, agent.hops)
    found: list[EchoPath] = []
    for begin in range(0, hops, EPOCH_MS):
        stop = begin + EPOCH_MS
        if hops - stop < EPOCH_MS // 2:
            stop = hops
        path = _path_of(caller, agent, begin, min(stop, hops))
        if path is not None:
            found.append(path)
        if stop == hops:
            break
    return tuple(found)


def _path_of(caller: LevelTrack, agent: LevelTrack, first_hop: int, stop_hop: int) -> EchoPath | None:
    blocks = _suspects(caller, agent, first_hop, stop_hop)
    if len(blocks) < LEAST_BLOCKS:
        return None
    rate_hz = agent.rate_hz
    size = BLOCK_MS * rate_hz // 1000
    delay = _delay(caller, agent, blocks, size)
    if delay is None:
        return None
    start, stop = agent.sample_of_hop(first_hop), agent.sample_of_hop(stop_hop)
    taps, left, coherent = _fit(caller, agent, blocks, size, delay)
    for _ in range(2):
        if coherent.sum() < max(LEAST_BLOCKS, len(blocks) // 4):
            return None
        if coherent.all():
            break
        # somebody else spoke in the others
        blocks = blocks[coherent]
        taps, left, coherent = _fit(caller, agent, blocks, size, delay)
    if coherent.sum() < LEAST_BLOCKS:
        return None
    return EchoPath(start, stop, delay, taps, left)


def _suspects(caller: LevelTrack, agent: LevelTrack, first_hop: int, stop_hop: int) -> NDArray[np.int64]:
    """First samples of the blocks in which an echo shows, if there is one: the caller speaks, the agent is softer."""
    count = (stop_hop - first_hop) // BLOCK_MS
    if not count:
        return np.zeros(0, np.int64)
    span = slice(first_hop, first_hop + count * BLOCK_MS)
    theirs = caller.mean_square[span].reshape(count, BLOCK_MS)
    ours = agent.mean_square[span].reshape(count, BLOCK_MS)
    level, other = theirs.mean(axis=1), ours.mean(axis=1)
    loud = np.sort(level)[-max(1, count // 10)]
    floor = np.quantile(other, 0.1)
    suspect = (level >= loud * 10 ** (-ACTIVE_DB / 10)) & (level > 0)
    suspect &= other <= level * 10 ** (-BELOW_CALLER_DB / 10)
    suspect &= (ours.max(axis=1) >= 10 ** (QUIETEST_DBOV / 10)) & (ours.max(axis=1) >= 4 * floor)
    at = np.flatnonzero(suspect)
    # where the agent is softest beside the caller, the agent itself speaks least
    at = at[np.argsort(other[at] / level[at], kind="stable")][: 2 * MAX_BLOCKS]
    at = np.sort(at[np.argsort(-level[at], kind="stable")][:MAX_BLOCKS])
    return np.array([agent.sample_of_hop(first_hop + int(i) * BLOCK_MS) for i in at], np.int64)


def _delay(caller: LevelTrack, agent: LevelTrack, blocks: NDArray[np.int64], size: int) -> int | None:
    """Where the filter begins (samples), by the strongest 2 ms of the response over all delays.

    Sought at 8 kHz: to the nearest 0.1 ms is near enough for a filter of 48 ms.
    """
    rate_hz = DELAY_RATE_HZ
    earliest, latest = EARLIEST_MS * rate_hz // 1000, LATEST_MS * rate_hz // 1000
    length = sfft.next_fast_len(BLOCK_MS * rate_hz // 1000 * 2 + latest - earliest, real=True)
    before, after = (ms * agent.rate_hz // 1000 for ms in (LATEST_MS, -EARLIEST_MS))
    cross, power = np.zeros(length // 2 + 1, np.complex128), np.zeros(length // 2 + 1)
    for begin in blocks.tolist():
        x = sfft.rfft(resample(_cut(caller, begin - before, begin + size + after), agent.rate_hz, rate_hz), length)
        y = sfft.rfft(resample(_cut(agent, begin, begin + size), agent.rate_hz, rate_hz), length)
        # a loud block of the agent's own must not outweigh all others
        weight = 1.0 / max(float(np.sum(np.abs(y) ** 2)), 1e-12)
        cross += weight * np.conj(x) * y
        power += weight * np.abs(x) ** 2
    response = sfft.irfft(cross / (power + DELAY_RIDGE * float(power.mean())), length)
    # block sample n and x sample m: delay = n + latest − m
    lags = np.arange(earliest, latest + 1)
    energy = response[(lags - latest) % length] ** 2
    width = PEAK_MS * rate_hz // 1000
    smooth = np.convolve(energy, np.ones(width) / width, mode="same")
    best = int(np.argmax(smooth))
    if smooth[best] < PEAK_RATIO * float(np.median(smooth)):
        return None
    near = energy[max(0, best - width) : best + width + 1]
    strongest = int(lags[max(0, best - width) + int(np.argmax(near))])
    return strongest * agent.rate_hz // rate_hz - LEAD_MS * agent.rate_hz // 1000


def _fit(
    caller: LevelTrack, agent: LevelTrack, blocks: NDArray[np.int64], size: int, delay: int
) -> tuple[NDArray[np.float64], float, NDArray[np.bool_]]:
    """The filter's taps, the share of the echo that it leaves, and in which blocks it explains what is there."""
    count = TAPS_MS * agent.rate_hz // 1000
    length = sfft.next_fast_len(size + 2 * count, real=True)
    lags = np.arange(1 - count, 1)
    cross, own = np.zeros(count), np.zeros(count)
    pairs = []
    for begin in blocks.tolist():
        y = _cut(agent, begin, begin + size)
        x = _cut(caller, begin - delay - count + 1, begin + size - delay)
        of_x, of_y = sfft.rfft(x, length), sfft.rfft(y, length)
        weight = 1.0 / max(_product(y, y), 1e-12)
        cross += weight * sfft.irfft(np.conj(of_x) * of_y, length)[lags]
        own += weight * sfft.irfft(np.abs(of_x) ** 2, length)[:count]
        pairs.append((of_x, y))
    own[0] *= 1 + RIDGE
    taps = np.asarray(solve_toeplitz(own, cross))
    filter_ = sfft.rfft(taps, length)
    floor = float(np.quantile(agent.mean_square, 0.1)) * size
    coherence, shares = [], []
    for of_x, y in pairs:
        made = sfft.irfft(of_x * filter_, length)[count - 1 : count - 1 + size]
        energy, predicted, rest = _product(y, y), _product(made, made), y - made
        coherence.append(_product(y, made) / math.sqrt(max(energy * predicted, 1e-30)))
        shares.append((_product(rest, rest) - floor) / max(predicted, 1e-30))
    coherent = np.array(coherence) >= COHERENCE
    left = float(np.median(np.array(shares)[coherent])) if coherent.any() else 1.0
    return taps, min(1.0, max(left, 10 ** (LEAST_LEFT_DB / 10))), coherent


class EchoFreeTrack(LevelTrack):
    """The level track of an agent's channel without the caller's echo; θ still comes from the channel as it is.

    `echo_mean_square` is what the paths predict in each window (0 where it cannot be audible).
    """

    def __init__(self, agent: LevelTrack, caller: LevelTrack, paths: Sequence[EchoPath]) -> None:
        self.__dict__.update({k: v for k, v in agent.__dict__.items() if k not in ("x", "_loud_hops")})
        self._agent, self._caller, self.paths = agent, caller, tuple(paths)
        self.mean_square = agent.mean_square.copy()
        self.echo_mean_square = np.zeros(len(self.mean_square), np.float32)
        for path in self.paths:
            for first, stop in self._zones(path):
                self._clean(path, first, stop)

    def _zones(self, path: EchoPath) -> list[tuple[int, int]]:
        """Stretches of hops in which the echo could be audible, none longer than 4 s."""
        first, stop = self.hop_of_sample(path.start), min(self.hops, self.hop_of_sample(path.stop))
        least = 10 ** ((QUIETEST_DBOV - 6.0 - path.gain_db) / 10)
        heard = np.flatnonzero(self._caller.mean_square[first:stop] >= least) + first
        if not len(heard):
            return []
        late = path.delay * 1000 // self.rate_hz
        reach = len(path.taps) * 1000 // self.rate_hz + WINDOW_MS + REACH_MS
        breaks = np.flatnonzero(np.diff(heard) > reach)
        begins = heard[np.concatenate(([0], breaks + 1))] + late - WINDOW_MS
        ends = heard[np.concatenate((breaks, [len(heard) - 1]))] + late + reach
        audible = 10 ** (QUIETEST_DBOV / 10)
        zones = []
        for begin, end in zip(begins.tolist(), ends.tolist(), strict=True):
            for at in range(max(first, begin), min(stop, end), ZONE_MS):
                last = min(at + ZONE_MS, end, stop)
                if self._agent.mean_square[at:last].max(initial=0.0) >= audible:
                    zones.append((at, last))
        return zones

    def _clean(self, path: EchoPath, first: int, stop: int) -> None:
        begin = self.sample_of_hop(first)
        end = self.sample_of_hop(stop) + self._window
        made = path.predict(self._caller, begin, end)
        rest = _cut(self._agent, begin, end) - made
        at = self._at(np.arange(first, stop)) - begin
        left, echo = (self._power(x, at) for x in (rest, made))
        self.echo_mean_square[first:stop] = echo
        self.mean_square[first:stop] = np.where(left >= path.left * 10 ** (DISCOUNT_DB / 10) * echo, left, 0.0)

    def _power(self, x: NDArray[np.float64], at: NDArray[np.int64]) -> NDArray[np.float64]:
        total = np.concatenate(([0.0], np.cumsum(x * x)))
        return np.asarray(np.maximum(total[at + self._window] - total[at], 0.0) / self._window)

    def samples(self, start: int, stop: int) -> NDArray[np.floating]:
        """The channel without the echo from `start` to before `stop`."""
        start, stop = max(0, start), min(self.n, stop)
        x = self._agent.samples(start, stop)
        for path in self.paths:
            first, last = max(start, path.start), min(stop, path.stop)
            hops = slice(max(0, first * 1000 // self.rate_hz - WINDOW_MS), last * 1000 // self.rate_hz + 1)
            if last > first and self.echo_mean_square[hops].any():
                x = np.array(x, dtype=np.float64)
                x[first - start : last - start] -= path.predict(self._caller, first, last)
        return x

    def residue(self, first_hop: int, stop_hop: int) -> NDArray[np.float64]:
        """What is expected to be left of the echo in each window (mean square)."""
        out = np.zeros(stop_hop - first_hop)
        for path in self.paths:
            low, high = max(first_hop, self.hop_of_sample(path.start)), min(stop_hop, self.hop_of_sample(path.stop))
            if high > low:
                out[low - first_hop : high - first_hop] = path.left * self.echo_mean_square[low:high]
        return out

    def explained(self, start: int, stop: int) -> float:
        """The share of the power between two samples that the echo accounts for, at most 1."""
        hops = slice(self.hop_of_sample(start), max(self.hop_of_sample(start) + 1, self.hop_of_sample(stop)))
        there = float(self._agent.mean_square[hops].sum())
        return min(1.0, float(self.echo_mean_square[hops].sum()) / there) if there > 0 else 0.0

    def is_residue(self, start: int, stop: int) -> bool:
        """Whether the sound between two samples is what a subtraction left of the echo, and nothing of the agent's."""
        hops = slice(self.hop_of_sample(start), max(self.hop_of_sample(start) + 1, self.hop_of_sample(stop)))
        echo = float(self.echo_mean_square[hops].sum())
        left = float(self.mean_square[hops].sum())
        return left <= RESIDUE_LEFT * echo and self.explained(start, stop) >= RESIDUE_EXPLAINED


def without_echo(caller: LevelTrack, agent: LevelTrack) -> LevelTrack:
    """The agent's track without the caller's echo; the very same object where there is none."""
    paths = find_echo(caller, agent)
    return EchoFreeTrack(agent, caller, paths) if paths else agent
