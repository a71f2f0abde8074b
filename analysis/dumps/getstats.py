"""getStats() objects as people keep them into snapshots: one JSON list of objects, or a JSON text for each call.

Accepted, one after the other: a list of objects (each with `type`), a list of such lists, a report as an object (id →
object), and lines `{"t_ns": …, "stats": […]}` as a bundle has them. Source: webrtc-stats.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from analysis.counting import counted
from analysis.dumps.objects import left_out_warning, w3c_objects
from analysis.dumps.records import Dump, PeerConnection, Snapshot, is_remote, poll_time_ms, snapshot, wall_ms
from analysis.dumps.scanning import Damaged, Scanner
from analysis.units import NS_PER_MS

__all__ = ["FORMAT", "is_statistics", "read_getstats"]

FORMAT = "getstats"
CONNECTION = "getStats()"
MAX_OTHERS = 100_000  # values that are no statistics: so many are no dump
SAME_CALL_MS = 50.0  # times of the objects of one call
_Raw = list[tuple[str, Mapping[str, Any]]]


def is_statistics(value: Any) -> bool:
    """True for one statistics object."""
    return isinstance(value, dict) and isinstance(value.get("type"), str)


def _is_report(value: Any) -> bool:
    return isinstance(value, dict) and bool(value) and all(is_statistics(each) for each in value.values())


class _Reader:
    """Gathers objects into calls."""

    def __init__(self) -> None:
        self.snapshots: list[Snapshot] = []
        self.others = 0  # values that are no statistics
        self.timeless = 0
        self.left_out: set[str] = set()
        self._open: dict[str, Mapping[str, Any]] = {}
        self._open_ms: float | None = None

    def one(self, value: Any) -> None:
        """Take one object of a list without bounds between its calls."""
        if not is_statistics(value):
            self.others += 1
            return
        id_, time_ms = _id(value), wall_ms(value.get("timestamp"))
        local_ms = None if is_remote(value["type"]) else time_ms
        apart = local_ms is not None and self._open_ms is not None and abs(local_ms - self._open_ms) > SAME_CALL_MS
        if id_ in self._open or apart:
            self.close()
        self._open[id_] = value
        self._open_ms = local_ms if self._open_ms is None else self._open_ms

    def close(self, time_ms: float | None = None) -> None:
        """End a call; `time_ms` is when it was, where its objects do not tell."""
        stats = w3c_objects(self._open.items(), self.left_out)
        self._open, self._open_ms = {}, None
        found_ms = poll_time_ms(stats) or time_ms
        if not stats:
            return
        if found_ms is None:
            self.timeless += 1
        else:
            self.snapshots.append(snapshot(found_ms, stats))

    def call(self, values: Sequence[Any], time_ms: float | None = None) -> None:
        """Take the objects of one call."""
        self.close()
        self.others += not values
        for value in values:
            if is_statistics(value):
                self._open.setdefault(_id(value), value)
            else:
                self.others += 1
        self.close(time_ms)

    def whole(self, value: Any) -> None:
        """Take a value that is a call."""
        if isinstance(value, dict) and isinstance(value.get("stats"), (list, dict)):
            stats, t_ns = value["stats"], value.get("t_ns")
            own = t_ns / NS_PER_MS if isinstance(t_ns, int) and not isinstance(t_ns, bool) else None
            self.call(stats if isinstance(stats, list) else _with_ids(stats), wall_ms(own))
        elif isinstance(value, list):
            self.call(value)
        elif is_statistics(value):
            self.one(value)
        elif _is_report(value):
            self.call(_with_ids(value))
        else:
            self.others += 1


def _with_ids(report: Mapping[str, Any]) -> list[Any]:
    return [{"id": id_, **each} if isinstance(each, dict) else each for id_, each in report.items()]


def _id(value: Mapping[str, Any]) -> str:
    """An object's id, or one made of what tells it from others."""
    id_ = value.get("id")
    if isinstance(id_, str) and id_:
        return id_
    tells = next((value[k] for k in ("ssrc", "mid", "kind") if isinstance(value.get(k), (str, int))), None)
    return value["type"] if tells is None else f"{value['type']}-{tells}"


def read_getstats(scanner: Scanner) -> Dump:
    """Read statistics objects from where `scanner` stands, as far as they are whole."""
    reader, warnings = _Reader(), list[str]()
    try:
        while scanner.peek() and reader.others <= MAX_OTHERS:
            if scanner.peek() == "[" and not reader.snapshots and not reader.others:
                _list(scanner, reader)
            else:
                reader.whole(scanner.value())
    except Damaged as exc:
        what = "cut off" if exc.cut else "damaged"
        warnings.append(
            f"the file is {what} after {exc.position:,} of {len(scanner.text):,} characters; what is whole was read"
        )
    reader.close()
    if reader.others:
        warnings.append(f"{counted(reader.others, 'value')} left out that are no statistics (without a type)")
    if reader.timeless:
        calls = counted(reader.timeless, "call")
        warnings.append(f"{calls} of getStats() left out, with no time")
    warnings += left_out_warning(reader.left_out)
    found = (PeerConnection(CONNECTION, tuple(reader.snapshots)),) if reader.snapshots else ()
    return Dump(FORMAT, None, found, tuple(warnings))


def _list(scanner: Scanner, reader: _Reader) -> None:
    """A list of objects, or of calls."""
    for _ in scanner.array():
        if reader.others > MAX_OTHERS:
            raise Damaged(scanner.position, cut=False)
        value = scanner.value()
        if is_statistics(value):
            reader.one(value)
        else:
            reader.whole(value)
    reader.close()
