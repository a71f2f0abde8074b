"""What every reader of dumps hands on: snapshots of W3C statistics, by peer connection, with what could not be read.

Times are wall time of the browser that wrote the dump: it is the only clock that a dump has.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from analysis.units import NS_PER_MS

__all__ = ["Dump", "PeerConnection", "Snapshot", "is_remote", "label", "poll_time_ms", "snapshot", "wall_ms"]

MAX_WALL_MS = 4.6e12  # the year 2115; in ns it still fits 63 bits
MICROSECONDS_FROM = 1e14  # as ms the year 5138: such a time is in µs, as native SDKs write it
MAX_LABEL_CHARS = 512


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What one call of getStats() said.

    Attributes
    ----------
    time_ns : int
        When, in ns since 1970 by the browser's wall clock.
    stats : tuple of mapping
        W3C objects, each with `id`, `type` and `timestamp` (ms since 1970). What is not known is absent.
    """

    time_ns: int
    stats: tuple[Mapping[str, Any], ...]


@dataclass(frozen=True, slots=True)
class PeerConnection:
    """One peer connection of a dump, by the name that the dump gives it; its snapshots in the order of the dump."""

    name: str
    snapshots: tuple[Snapshot, ...] = field(repr=False)
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Dump:
    """A dump: its format, the browser that wrote it where that is told, its peer connections, with or without data."""

    format: str
    user_agent: str | None
    peer_connections: tuple[PeerConnection, ...]
    warnings: tuple[str, ...] = ()


def wall_ms(value: Any) -> float | None:
    """A time of a dump (number of ms or µs since 1970, or ISO 8601) in ms since 1970; None where it is not one."""
    if isinstance(value, str):
        try:
            moment = datetime.fromisoformat(value)
            value = moment.timestamp() * 1000.0 if moment.tzinfo is not None else None
        except (ValueError, OverflowError, OSError):
            return None
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    if number > MICROSECONDS_FROM:
        number /= 1000.0
    return number if math.isfinite(number) and 0.0 < number < MAX_WALL_MS else None


def label(value: Any) -> str | None:
    """A short text on one line, or None where `value` is not a text."""
    if not isinstance(value, str):
        return None
    return "".join(c if c.isprintable() else " " for c in value[:MAX_LABEL_CHARS]).strip() or None


def is_remote(type_: object) -> bool:
    """True for objects that carry the time at which an RTCP report came, not that of the call."""
    return isinstance(type_, str) and type_.startswith("remote-") and type_.endswith("-rtp")


def poll_time_ms(stats: Sequence[Mapping[str, Any]]) -> float | None:
    """When getStats() was called, from the objects that it returned (ms since 1970); None where none has a time."""
    local = [o["timestamp"] for o in stats if "timestamp" in o and not is_remote(o.get("type"))]
    times = local or [o["timestamp"] for o in stats if "timestamp" in o]
    return max(times) if times else None


def snapshot(time_ms: float, stats: Sequence[Mapping[str, Any]]) -> Snapshot:
    """A snapshot at `time_ms` (since 1970); objects without a time of their own get this one."""
    whole = tuple(o if "timestamp" in o else {**o, "timestamp": time_ms} for o in stats)
    return Snapshot(round(time_ms * 1000.0) * (NS_PER_MS // 1000), whole)
