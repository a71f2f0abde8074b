"""A dump of chrome://webrtc-internals into snapshots: its series, one for each field of each object, joined on time.

Source: Chromium's content/browser/webrtc/resources (data_series.js, stats_rates_calculator.js) and dumps of
Chromium 156. The page asks each second and keeps the last 1,000 points of a series. Since M117 each object has a series
of its own times; a shorter series beside it began later or ended earlier, which its start and end tell. Before that
there is only the start and the end of each series. Names in brackets are what the page worked out itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from analysis.counting import counted
from analysis.dumps.legacy import DERIVED_NAME
from analysis.dumps.objects import left_out_warning
from analysis.dumps.polls import POLL_MS, ROUNDING_MS, Track, place, snapshots
from analysis.dumps.records import Dump, PeerConnection, label, wall_ms
from analysis.dumps.scanning import Damaged, Scanner, decode

__all__ = ["FORMAT", "KEYS", "read_webrtc_internals"]

FORMAT = "webrtc-internals"
KEYS = frozenset(("PeerConnections", "getUserMedia", "UserAgent", "UserAgentData"))
PAGE_POINTS = 1000  # the page keeps no more of a series
MAX_POINTS = 200_000  # of one series; more is not a dump that the page wrote
_LEGACY_IDS = (  # types of objects in dumps that do not name them (before 2013), by how their ids begin
    ("ssrc_", "ssrc"),
    ("Conn-", "googCandidatePair"),
    ("Channel-", "googComponent"),
    ("bweforvideo", "VideoBwe"),
)


@dataclass(slots=True)
class _Series:
    type: str | None
    values: list[Any] = field(repr=False)
    start_ms: float | None
    end_ms: float | None


@dataclass(slots=True)
class _Connection:
    """What was read of one peer connection: series by object and field."""

    series: dict[str, dict[str, _Series]] = field(default_factory=dict)
    unread: int = 0
    unplaced: int = 0
    untimed: int = 0
    full: bool = False


def read_webrtc_internals(scanner: Scanner) -> Dump:
    """Read a dump, as far as it is whole.

    Parameters
    ----------
    scanner : Scanner
        At the object that the dump is.
    """
    connections: dict[str, _Connection] = {}
    warnings: list[str] = []
    user_agent: str | None = None
    try:
        for key in scanner.object():
            if key == "PeerConnections" and scanner.peek() == "{":
                for name in scanner.object():
                    _read_connection(scanner, connections.setdefault(name, _Connection()))
            elif key == "UserAgent":
                user_agent = label(scanner.value())
    except Damaged as exc:
        where = f"{exc.position:,} of {len(scanner.text):,} characters"
        what = "the dump is cut off" if exc.cut else "the dump is damaged"
        warnings.append(f"{what} after {where}; the series that are whole before that were read")
    found = [_connection(name, connection) for name, connection in connections.items()]
    return Dump(FORMAT, user_agent, tuple(found), tuple(warnings))


def _read_connection(scanner: Scanner, connection: _Connection) -> None:
    if scanner.peek() != "{":
        return
    for key in scanner.object():
        if key != "stats" or scanner.peek() != "{":
            continue
        for name in scanner.object():
            if name.endswith("]"):
                continue  # worked out by the page
            id_, dash, property_ = name.rpartition("-")
            if not dash or DERIVED_NAME.fullmatch(property_):
                continue
            if scanner.peek() != "{":
                connection.unread += 1
                continue
            series = _series(scanner.value())
            if series is None:
                connection.unread += 1
            else:
                connection.series.setdefault(id_, {})[property_] = series


def _series(raw: Mapping[str, Any]) -> _Series | None:
    values = raw.get("values")
    if isinstance(values, str):
        try:
            values = decode(values)
        except Damaged:
            return None
    if not isinstance(values, list) or not 0 < len(values) <= MAX_POINTS:
        return None
    type_ = raw.get("statsType")
    return _Series(
        type_ if isinstance(type_, str) else None, values, wall_ms(raw.get("startTime")), wall_ms(raw.get("endTime"))
    )


def _connection(name: str, connection: _Connection) -> PeerConnection:
    tracks = [track for id_, series in connection.series.items() if (track := _track(id_, series, connection))]
    left_out: set[str] = set()
    found = snapshots(tracks, left_out)
    warnings = []
    if connection.unread:
        warnings.append(f"{counted(connection.unread, 'damaged series', 'damaged series')} left out")
    if connection.unplaced:
        series = counted(connection.unplaced, "series", "series")
        warnings.append(f"{series} left out, with gaps that nothing places in time")
    if connection.untimed:
        objects = counted(connection.untimed, "object without times of its own", "objects without times of their own")
        warnings.append(
            f"{objects} (Chrome before 117, or cut off): values are spaced evenly from the start to the end of a series"
        )
    warnings += left_out_warning(left_out)
    if connection.full:
        warnings.append(f"the page keeps the last {PAGE_POINTS:,} points of a series: what came before is not in it")
    return PeerConnection(label(name) or "unnamed", tuple(found), tuple(warnings))


def _track(id_: str, series: dict[str, _Series], connection: _Connection) -> Track | None:
    """One object over time, from its series; None where nothing of it can be used."""
    times_ms = _own_times(series.pop("timestamp", None))
    types = series.pop("type", None)
    if not series:
        return None
    type_ = next((each.type for each in series.values() if each.type), None) or _type(id_, types)
    if type_ is None:
        connection.unread += len(series)
        return None
    timed = times_ms is not None
    if times_ms is None:
        times_ms = _even_times(max(series.values(), key=lambda each: len(each.values)))
        if times_ms is None:
            connection.unplaced += len(series)
            return None
        connection.untimed += 1
    connection.full = connection.full or len(times_ms) == PAGE_POINTS
    tolerance_ms = ROUNDING_MS if timed else 0.5 * POLL_MS
    points: list[dict[str, Any]] = [{} for _ in times_ms]
    for property_, each in series.items():
        if not _fill(points, times_ms, property_, each, tolerance_ms):
            connection.unplaced += 1
    return Track(id_, type_, times_ms, points, timed)


def _type(id_: str, types: _Series | None) -> str | None:
    if types is not None and isinstance(types.values[-1], str):
        return types.values[-1]
    return next((type_ for begin, type_ in _LEGACY_IDS if id_.startswith(begin)), None)


def _own_times(series: _Series | None) -> list[float] | None:
    if series is None:
        return None
    times = [wall_ms(value) for value in series.values]
    whole = [time for time in times if time is not None]
    return whole if len(whole) == len(times) else None


def _even_times(series: _Series) -> list[float] | None:
    start_ms, end_ms, count = series.start_ms, series.end_ms, len(series.values)
    if start_ms is None or (end_ms is None and count > 1) or (end_ms is not None and end_ms < start_ms):
        return None
    if count == 1 or end_ms is None:
        return [start_ms]
    return [start_ms + (end_ms - start_ms) * k / (count - 1) for k in range(count)]


def _fill(
    points: list[dict[str, Any]], times_ms: Sequence[float], name: str, series: _Series, tolerance_ms: float
) -> bool:
    """Put the values of one series where they belong among the points of its object; False where that is not known."""
    values, start_ms, end_ms = series.values, series.start_ms, series.end_ms
    if start_ms is None or end_ms is None:
        first = 0 if len(values) == len(points) else None
    elif len(values) == len(points):
        first = 0
    else:
        first = place(times_ms, start_ms, end_ms, len(values), tolerance_ms)
        if first is None and values.count(values[0]) == len(values):
            # it never changed, so it does not matter which of the points between are missing
            for k, time_ms in enumerate(times_ms):
                if start_ms - tolerance_ms <= time_ms <= end_ms + tolerance_ms:
                    points[k][name] = values[0]
            return True
    if first is None:
        return False
    for k, value in enumerate(values):
        if value is not None:
            points[first + k][name] = value
    return True
