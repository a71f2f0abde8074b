"""Sound in, the first (or, run backwards, the last) audible sample out: the one audibility rule, used everywhere.

Source: the design's definition. A 5 ms RMS window (1 ms hop) at or above θ that is followed by at least 24 of 30 such
windows (itself the first) starts what is audible; the boundary is the first sample in that window with
|x| ≥ 10^(θ/20). θ = max(F + 10 dB, −60 dBov), F = 10th percentile (nearest rank) of the 20 ms frames in the 2 s before;
of what exists of them, and −60 dBov where that is under 200 ms. See docs/adr/0003 for the reading of the rule.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from analysis.units import dbov, from_dbov

__all__ = [
    "MARGIN_DB",
    "MIN_THRESHOLD_DBOV",
    "Audible",
    "LevelTrack",
    "Run",
    "Samples",
    "audible_runs",
    "first_audible",
    "floor_before",
    "last_audible",
    "threshold_shifts_ms",
]

WINDOW_MS = 5  # RMS window
HOP_MS = 1
RUN_HOPS = 30  # windows looked at
RUN_NEEDED = 24  # of them at or above the threshold
FRAME_MS = 20  # frames of the noise floor
SPAN_MS = 2000  # how far back the noise floor looks
SPAN_MIN_MS = 200  # less than this says nothing about the floor
FLOOR_PERCENT = 10
FLOOR_FRAMES = 10  # the most that may have to be sorted for it
BLOCK = 2**18  # samples that are squared and summed at once
MARGIN_DB = 10.0  # threshold above the floor
MIN_THRESHOLD_DBOV = -60.0
SHIFT_SEARCH_MS = 500  # how far the boundary is followed when the threshold is moved
FLUCTUATION_DB = 3.0  # less than this above the floor is reached by the floor's own fluctuation


@dataclass(frozen=True, slots=True)
class Audible:
    """A boundary: sample index (from 0) in the signal, the θ that found it and the floor F it came from (dBov)."""

    sample: int
    threshold_dbov: float
    floor_dbov: float | None


@dataclass(frozen=True, slots=True)
class Run:
    """One stretch of sound: first and last audible sample (both inclusive) and the θ of its start (dBov)."""

    start: int
    end: int
    threshold_dbov: float
    floor_dbov: float | None


class Samples(Protocol):
    """What a level track needs of a signal: an array, or something that reads samples when it is asked for them."""

    @property
    def ndim(self) -> int: ...

    @property
    def shape(self) -> tuple[int, ...]: ...

    def __len__(self) -> int: ...

    def __getitem__(self, where: slice, /) -> NDArray[np.floating]: ...


class LevelTrack:
    """A signal with what the rule needs of it, computed once.

    Parameters
    ----------
    x : ndarray, shape (n,), float
        Mono signal, full scale 1.0. Not changed. Or what gives such arrays by slices (`Samples`): of a long signal 16
        bytes a millisecond are kept, and no samples.
    rate_hz : int
        Sampling rate.
    present : ndarray of bool, shape (n,), optional
        False where a sample was lost or not played. Such samples count as digital silence for what is audible, and as
        not existing for the noise floor.
    silent_before, silent_after : int
        Samples of digital silence next to `x` that are not in it, but do exist for the noise floor.
    floors : bool
        False where θ is always given: then there is no floor to ask for.

    Raises
    ------
    ValueError
        If `x` is not one-dimensional or the rate is below 8000 Hz.
    """

    def __init__(
        self,
        x: Samples,
        rate_hz: int,
        *,
        present: NDArray[np.bool_] | None = None,
        silent_before: int = 0,
        silent_after: int = 0,
        floors: bool = True,
    ) -> None:
        if x.ndim != 1:
            raise ValueError(f"x must be one-dimensional, got shape {x.shape}")
        if rate_hz < 8000:
            raise ValueError(f"rate_hz must be at least 8000, got {rate_hz}")
        self.rate_hz = rate_hz
        self.n = len(x)
        self._x = x
        self._present = present
        self._exists = -silent_before, self.n + silent_after
        self._window = self._at(WINDOW_MS)
        self._frame = self._at(FRAME_MS)
        # a signal that ends is followed by silence: windows may reach past its end
        self.hops = 1 + (self.n - 1) * 1000 // rate_hz if self.n else 0
        self._with_floors = floors
        self._measure()

    def _measure(self) -> None:
        """The mean square of the window at each hop and of the frame at each, in blocks: a signal may last hours."""
        first, count = -FRAME_MS, FRAME_MS + self.hops + RUN_HOPS
        windows, frames = np.zeros(count), np.zeros(count)
        exists = np.ones(count, dtype=np.bool_)
        at, done = -self._frame, 0
        held = np.zeros(self._frame)  # squares from sample `at` on
        absent = np.zeros(self._frame, dtype=np.bool_)
        for begin in range(0, self.n + 1, BLOCK):
            last = begin + BLOCK > self.n
            square = np.square(self.samples(begin, min(begin + BLOCK, self.n)), dtype=np.float64)
            held = np.concatenate([held, square, np.zeros(self._at(RUN_HOPS + 1) + self._frame if last else 0)])
            energy = np.concatenate(([0.0], np.cumsum(held)))
            whole = count if last else min(count, (at + len(held) - self._frame) * 1000 // self.rate_hz - first)
            position = self._at(np.arange(first + done, first + whole)) - at
            windows[done:whole] = energy[position + self._window] - energy[position]
            if self._with_floors:
                frames[done:whole] = energy[position + self._frame] - energy[position]
            if self._present is not None:
                absent = np.concatenate([absent, ~self._present[begin : begin + BLOCK], np.zeros(len(held), np.bool_)])
                number = np.concatenate(([0], np.cumsum(absent[: len(held)])))
                exists[done:whole] = number[position + self._frame] == number[position]
            kept = self._at(first + whole) - at
            held, absent, at, done = held[kept:], absent[kept : len(held)], at + kept, whole
        # rounding may leave −1e−18
        self.mean_square = np.maximum(windows[FRAME_MS:], 0.0) / self._window
        if not self._with_floors:
            return
        start = self._at(np.arange(first, first + count))
        exists &= (start >= self._exists[0]) & (start + self._frame <= self._exists[1])
        # frames beyond both ends are silent, if they exist
        beyond = np.arange(-SPAN_MS - FRAME_MS, first), np.arange(first + count, self.hops + SPAN_MS + FRAME_MS)
        before, after = (
            (self._at(g) >= self._exists[0]) & (self._at(g) + self._frame <= self._exists[1]) for g in beyond
        )
        frames = np.where(exists, np.maximum(frames, 0.0) / self._frame, np.inf)
        self._frames = np.concatenate([np.where(before, 0.0, np.inf), frames, np.where(after, 0.0, np.inf)])

    def _at(self, ms: Any) -> Any:
        return (ms * self.rate_hz + 500) // 1000

    @cached_property
    def x(self) -> NDArray[np.floating]:
        """The whole signal, zero where samples are not present."""
        return self.samples(0, self.n)

    def samples(self, start: int, stop: int) -> NDArray[np.floating]:
        """The signal from `start` to before `stop`, zero where samples are not present."""
        x = self._x[start:stop]
        return x if self._present is None else np.where(self._present[start:stop], x, 0.0)

    def sample_of_hop(self, hop: int) -> int:
        """First sample of the window at `hop`."""
        return int(self._at(hop))

    def hop_of_sample(self, sample: int) -> int:
        """The first hop whose window starts at or after `sample`."""
        hop = max(0, sample) * 1000 // self.rate_hz
        while self._at(hop) < sample:
            hop += 1
        while hop > 0 and self._at(hop - 1) >= sample:
            hop -= 1
        return hop

    def _frames_of(self, hops: NDArray[np.int64], begin: int, stop: int, *, after: bool) -> NDArray[np.float64]:
        """Mean square of frames `begin` to before `stop` (from the hop outwards), a row for each of `hops`.

        Infinite where a frame does not exist.
        """
        steps = np.arange(begin, stop) * FRAME_MS
        places = SPAN_MS + FRAME_MS + steps if after else SPAN_MS - steps
        return np.asarray(self._frames[hops[:, None] + places[None, :]])

    def floors(self, hops: NDArray[np.int64], *, after: bool = False) -> NDArray[np.float64]:
        """F as RMS (full scale 1.0) in the 2 s before (or after) each of `hops`; NaN where under 200 ms exist."""
        mean = self._frames_of(hops, 0, SPAN_MS // FRAME_MS, after=after)
        count = np.isfinite(mean).sum(axis=1)
        lowest = np.sort(np.partition(mean, FLOOR_FRAMES - 1, axis=1)[:, :FLOOR_FRAMES], axis=1)
        value = np.sqrt(lowest[np.arange(len(hops)), _floor_rank(count)])
        return np.where(count * FRAME_MS >= SPAN_MIN_MS, value, np.nan)

    def clears_floor(self, hops: NDArray[np.int64], *, after: bool = False) -> NDArray[np.bool_]:
        """Whether the window at each of `hops` is at or above F + 10 dB of the 2 s before (or after) it, or F unknown.

        The floor itself is not worked out: enough frames that lie 10 dB below the window say that it does.
        """
        cleared = np.zeros(len(hops), np.bool_)
        open_ = np.arange(len(hops))
        least = self.mean_square[hops] * (10 ** (-MARGIN_DB / 10) * (1 + 1e-12))
        below, count = np.zeros(len(hops), np.int64), np.zeros(len(hops), np.int64)
        for begin in range(0, SPAN_MS // FRAME_MS, FLOOR_FRAMES):
            frames = self._frames_of(hops, begin, begin + FLOOR_FRAMES, after=after)
            below += (frames <= least[:, None]).sum(axis=1)
            count += (frames < np.inf).sum(axis=1)
            enough = below >= FLOOR_FRAMES
            cleared[open_[enough]] = True
            hops, least, below, count, open_ = (a[~enough] for a in (hops, least, below, count, open_))
            if not len(hops):
                return cleared
        cleared[open_] = (below > _floor_rank(count)) | (count * FRAME_MS < SPAN_MIN_MS)
        return cleared

    @cached_property
    def _loud_hops(self) -> NDArray[np.int64]:
        """Hops that start what is audible if the floor is low: all that `scan` has to look at."""
        return _runs_above(self.mean_square, from_dbov(MIN_THRESHOLD_DBOV) ** 2, self.hops)

    def scan(
        self, first_hop: int, stop_hop: int, threshold_dbov: float | None
    ) -> tuple[int, float, float | None] | None:
        """First hop in [first_hop, stop_hop) that starts what is audible, with its θ and F (dBov)."""
        stop_hop = min(stop_hop, self.hops)
        if first_hop >= stop_hop:
            return None
        if threshold_dbov is not None:
            tail = self.mean_square[first_hop : stop_hop + RUN_HOPS]
            above = _runs_above(tail, from_dbov(threshold_dbov) ** 2, stop_hop - first_hop)
            return (first_hop + int(above[0]), threshold_dbov, None) if len(above) else None
        candidates = self._loud_hops
        candidates = candidates[slice(*np.searchsorted(candidates, (first_hop, stop_hop)))]
        chunk = 32
        while len(candidates):
            hops, candidates = candidates[:chunk], candidates[chunk:]
            chunk = min(2 * chunk, 4096)
            hops = hops[self.clears_floor(hops)]
            for at in range(0, len(hops), 32):
                found = self._first_of(hops[at : at + 32])
                if found is not None:
                    return found
        return None

    def _first_of(self, hops: NDArray[np.int64]) -> tuple[int, float, float | None] | None:
        floor = self.floors(hops)
        theta = np.where(np.isnan(floor), 0.0, floor) * 10 ** (MARGIN_DB / 20)
        theta = np.maximum(theta, from_dbov(MIN_THRESHOLD_DBOV))
        windows = self.mean_square[hops[:, None] + np.arange(RUN_HOPS)[None, :]] >= (theta**2)[:, None]
        hit = np.flatnonzero(windows[:, 0] & (windows.sum(axis=1) >= RUN_NEEDED))
        if not len(hit):
            return None
        i = hit[0]
        return int(hops[i]), dbov(theta[i]), None if np.isnan(floor[i]) else dbov(floor[i])

    def boundary(self, hop: int, threshold_dbov: float) -> int:
        """The first sample in the window at `hop` with |x| at or above the threshold; else the window's last."""
        start = self.sample_of_hop(hop)
        window = np.abs(self.samples(start, start + self._window))
        above = np.flatnonzero(window >= from_dbov(threshold_dbov))
        return start + int(above[0] if len(above) else len(window) - 1)


def floor_before(x: Samples, rate_hz: int, sample: int) -> float | None:
    """F as RMS in the 2 s before a sample, as `LevelTrack.floors` has it at the first hop from there on.

    None where under 200 ms exist. For one place this is a hundredth of the work of a track.
    """
    hop = -(-sample * 1000 // rate_hz)
    while hop > 0 and (hop - 1) * rate_hz + 500 >= 1000 * sample:
        hop -= 1
    hop += (hop * rate_hz + 500) // 1000 < sample
    size = (FRAME_MS * rate_hz + 500) // 1000
    starts = ((hop - SPAN_MS + FRAME_MS * np.arange(SPAN_MS // FRAME_MS)) * rate_hz + 500) // 1000
    starts = starts[(starts >= 0) & (starts + size <= len(x))]
    if len(starts) * FRAME_MS < SPAN_MIN_MS:
        return None
    first = int(starts[0])
    energy = np.concatenate(([0.0], np.cumsum(np.square(x[first : int(starts[-1]) + size], dtype=np.float64))))
    power = np.sort(np.maximum(energy[starts - first + size] - energy[starts - first], 0.0))
    return math.sqrt(float(power[_floor_rank(np.array([len(power)]))[0]]) / size)


def _floor_rank(count: NDArray[np.int64]) -> NDArray[np.int64]:
    """Nearest rank (from 0) of the floor among `count` frames."""
    return np.maximum(-(-count * FLOOR_PERCENT // 100) - 1, 0)


def _runs_above(mean_square: NDArray[np.float64], least: float, hops: int) -> NDArray[np.int64]:
    above = mean_square >= least
    count = np.concatenate(([0], np.cumsum(above)))
    at = np.flatnonzero(above[:hops])
    last = np.minimum(at + RUN_HOPS, len(mean_square))
    return at[count[last] - count[at] >= RUN_NEEDED]


def first_audible(
    signal: LevelTrack, *, start: int = 0, stop: int | None = None, threshold_dbov: float | None = None
) -> Audible | None:
    """First audible sample at or after `start`.

    Parameters
    ----------
    signal : LevelTrack
    start, stop : int
        Samples; the 5 ms window that starts what is audible lies at or after `start` and before `stop` (default: the
        end). The noise floor looks at all that lies before, `start` or not.
    threshold_dbov : float, optional
        A θ to use instead of the one that the floor gives.

    Returns
    -------
    Audible or None
        None where nothing is audible.

    Examples
    --------
    >>> x = np.zeros(48000); x[24000:] = 0.1
    >>> first_audible(LevelTrack(x, 48000)).sample
    24000
    """
    stop_hop = signal.hops if stop is None else signal.hop_of_sample(stop)
    found = signal.scan(signal.hop_of_sample(start), stop_hop, threshold_dbov)
    if found is None:
        return None
    hop, theta, floor = found
    return Audible(signal.boundary(hop, theta), theta, floor)


def last_audible(x: NDArray[np.floating], rate_hz: int, *, threshold_dbov: float | None = None) -> Audible | None:
    """Last audible sample of `x`: the rule run backwards, so its floor is that of the 2 s *after*; None if none is."""
    found = first_audible(LevelTrack(x[::-1], rate_hz), threshold_dbov=threshold_dbov)
    if found is None:
        return None
    return Audible(len(x) - 1 - found.sample, found.threshold_dbov, found.floor_dbov)


def audible_runs(signal: LevelTrack, *, gap_ms: int = 200, start: int = 0) -> Iterator[Run]:
    """What is audible, in order; each run ends at its last audible sample before `gap_ms` without one.

    Where nothing was known of the floor when a run began (nothing before it, or less than −70 dBov), the floor *after*
    it counts too: comfort noise that sets in is a new floor, not a sound without end.
    """
    at = signal.hop_of_sample(start)
    gap = gap_ms * signal.rate_hz // 1000
    pending: Run | None = None
    known_floor = False
    while (found := signal.scan(at, signal.hops, None)) is not None:
        hop, theta, floor = found
        begin = signal.boundary(hop, theta)
        if pending is not None and begin - pending.end > gap:
            yield pending
            pending = None
        if pending is None:
            # not asked again where the run goes on: a floor frame that lies half in the silence before it says nothing
            known_floor = theta > MIN_THRESHOLD_DBOV
        last = _last_hop(signal, hop, theta, gap_ms, known_floor=known_floor)
        at_last = signal.sample_of_hop(last)
        window = np.abs(signal.samples(at_last, at_last + signal._window))
        loud = np.flatnonzero(window >= from_dbov(theta))
        end = at_last + int(loud[-1] if len(loud) else 0)
        pending = Run(begin, end, theta, floor) if pending is None else replace(pending, end=max(pending.end, end))
        at = last + 1
    if pending is not None:
        yield pending


def _last_hop(signal: LevelTrack, hop: int, theta: float, gap_ms: int, *, known_floor: bool) -> int:
    """The last hop at or above θ (and, where no floor was known, above the floor that follows) before a gap."""
    least, last, ahead = from_dbov(theta) ** 2, hop, 2 * gap_ms
    while hop < signal.hops:
        hops = np.arange(hop, min(hop + ahead, signal.hops))
        ahead = min(2 * ahead, SPAN_MS)
        above = hops[signal.mean_square[hops] >= least]
        if not known_floor:
            above = above[signal.clears_floor(above, after=True)]
        steps = np.diff(np.concatenate(([last], above)))
        breaks = np.flatnonzero(steps > gap_ms)
        if len(breaks):
            return int(above[breaks[0] - 1]) if breaks[0] else last
        last = int(above[-1]) if len(above) else last
        hop = int(hops[-1]) + 1
        if hop - last > gap_ms:
            break
    return last


def threshold_shifts_ms(signal: LevelTrack, found: Audible, *, step_db: float = 10.0) -> dict[str, float | None]:
    """How far `found` moves (ms, later is positive) with θ so much lower and higher; None where it then vanishes.

    It is followed at most 500 ms each way, and not down to the noise floor: there is no boundary to find in it.
    """
    floor_dbov = -math.inf if found.floor_dbov is None else found.floor_dbov
    reach = int(SHIFT_SEARCH_MS * signal.rate_hz / 1000)
    begin = max(0, found.sample - reach)
    shifts: dict[str, float | None] = {}
    for step in (-step_db, step_db):
        threshold_dbov = found.threshold_dbov + step
        moved = (
            first_audible(signal, start=begin, stop=found.sample + reach, threshold_dbov=threshold_dbov)
            if threshold_dbov >= floor_dbov + FLUCTUATION_DB
            else None
        )
        at_limit = moved is not None and begin > 0 and moved.sample - begin <= signal._window
        shifts[f"{step:+.0f}"] = (
            None
            if moved is None or at_limit or math.isinf(moved.threshold_dbov)
            else (moved.sample - found.sample) * 1000.0 / signal.rate_hz
        )
    return shifts
