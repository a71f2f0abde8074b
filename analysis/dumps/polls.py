"""Points of single statistics objects into snapshots: which of them belong to one call of getStats().

All objects of one call carry its time, except those that stand for RTCP reports: they carry the time at which the
report came. Such an object first appears, and changes, at the first call after that. So of the places where its points
could lie among the calls, the earliest one at which no point comes before its own time is the right one.
"""

from __future__ import annotations

import statistics
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from analysis.dumps.objects import w3c_objects
from analysis.dumps.records import Snapshot, is_remote, snapshot

__all__ = ["POLL_MS", "Track", "place", "snapshots"]

POLL_MS = 1000.0  # how often webrtc-internals asks, where nothing else is known
SAME_POLL_MS = 250.0  # times closer than this, and than a quarter of the polling interval, are of one call
ROUNDING_MS = 1.0  # start and end are written in whole milliseconds


@dataclass(slots=True)
class Track:
    """One object over time: its id, and for each of its points the time (ms since 1970) and the fields."""

    id: str
    type: str
    times_ms: Sequence[float]
    points: Sequence[dict[str, Any]] = field(repr=False)
    timed: bool = True


def place(times_ms: Sequence[float], start_ms: float, end_ms: float, count: int, tolerance_ms: float) -> int | None:
    """Where among `times_ms` lie `count` points in a row from `start_ms` to `end_ms`; None where they do not fit.

    Where several places fit (times that repeat), the last one.
    """
    for first in range(len(times_ms) - count, -1, -1):
        last = first + count - 1
        if abs(times_ms[first] - start_ms) <= tolerance_ms and abs(times_ms[last] - end_ms) <= tolerance_ms:
            return first
    return None


def snapshots(tracks: Sequence[Track], left_out: set[str] | None = None) -> list[Snapshot]:
    """All objects by the call of getStats() that returned them, in order of time. `left_out`: see `w3c_objects`."""
    local = sorted((t for t in tracks if t.points and not is_remote(t.type)), key=lambda t: -len(t.times_ms))
    remote = [t for t in tracks if t.points and is_remote(t.type)]
    polls: list[float] = []
    spacing_ms = _spacing(local[0].times_ms) if local else POLL_MS
    placed: dict[int, Sequence[float]] = {id(t): _join(polls, t, spacing_ms) for t in local}
    for t in remote:
        placed[id(t)] = _after(polls, t) or _join(polls, t, spacing_ms)
    found: defaultdict[float, list[tuple[str, Mapping[str, Any]]]] = defaultdict(list)
    for t in tracks:
        for poll_ms, time_ms, point in zip(placed.get(id(t), ()), t.times_ms, t.points, strict=False):
            found[poll_ms].append((t.id, {**point, "type": t.type, "timestamp": time_ms}))
    whole = ((poll_ms, w3c_objects(objects, left_out)) for poll_ms, objects in sorted(found.items()))
    return [snapshot(poll_ms, stats) for poll_ms, stats in whole if stats]


def _spacing(times_ms: Sequence[float]) -> float:
    steps = [b - a for a, b in pairwise(times_ms) if b > a]
    return statistics.median(steps) if steps else POLL_MS


def _join(polls: list[float], track: Track, spacing_ms: float) -> Sequence[float]:
    """The poll of each point; one that no other object had is added to `polls`."""
    times_ms, count = track.times_ms, len(track.times_ms)
    if not track.timed:
        # evenly spaced times wander off the true ones by more than a poll may be wide; the number of points does not
        first = place(polls, times_ms[0], times_ms[-1], count, 0.75 * spacing_ms)
        if first is not None:
            return polls[first : first + count]
    width_ms = min(SAME_POLL_MS, 0.25 * spacing_ms) if track.timed else 0.5 * spacing_ms
    return [_nearest(polls, time_ms, width_ms) for time_ms in times_ms]


def _nearest(polls: list[float], time_ms: float, width_ms: float) -> float:
    at = bisect_left(polls, time_ms)
    near = [p for p in polls[max(at - 1, 0) : at + 1] if abs(p - time_ms) <= width_ms]
    if near:
        return min(near, key=lambda p: abs(p - time_ms))
    polls.insert(at, time_ms)
    return time_ms


def _after(polls: Sequence[float], track: Track) -> Sequence[float] | None:
    """The polls at which the points of an object with times of its own were read; None where they do not fit."""
    times_ms, count = track.times_ms, len(track.times_ms)
    first = max((bisect_left(polls, t - ROUNDING_MS) - k for k, t in enumerate(times_ms)), default=0)
    return polls[first : first + count] if 0 <= first <= len(polls) - count else None
