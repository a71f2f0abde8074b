"""A session bundle (a folder, or the same facts in memory) as one frozen record that everything else derives from.

Layout in docs/bundle.md. Times are monotonic nanoseconds of the machine that recorded; wall time is metadata.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from analysis.errors import BundleError, MalformedPacket, NotMeasurable
from analysis.pcap import Direction, read_pcap
from analysis.rtp import is_rtcp, is_rtp_or_rtcp, parse_rtp
from analysis.streams import Timed

__all__ = [
    "RUN_FILE",
    "RUN_SCHEMA",
    "SCHEMA",
    "STATS_FILE",
    "CallRecord",
    "Event",
    "find_calls",
    "imported_manifest",
    "read_call",
    "read_run",
]

SCHEMA = "latency-probe/bundle/1"
RUN_SCHEMA = "latency-probe/run/1"
STATS_FILE = "stats.jsonl"
RUN_FILE = "run.json"  # beside the calls of a run: what was planned


@dataclass(frozen=True, slots=True)
class Event:
    """One line of events.jsonl: when (monotonic ns), what, and its fields."""

    time_ns: int
    type: str
    fields: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class CallRecord:
    """All that one call recorded.

    `received` and `sent` are RTP in order of time; `rtcp_received` and `rtcp_sent` are raw compound packets with their
    times. `warnings` says what was cut off or could not be read.
    """

    manifest: Mapping[str, Any]
    events: tuple[Event, ...]
    received: tuple[Timed, ...] = field(repr=False)
    sent: tuple[Timed, ...] = field(repr=False)
    rtcp_received: tuple[tuple[int, bytes], ...] = field(default=(), repr=False)
    rtcp_sent: tuple[tuple[int, bytes], ...] = field(default=(), repr=False)
    warnings: tuple[str, ...] = ()
    path: Path | None = None

    def of_type(self, *types: str) -> Iterator[Event]:
        """The events of these types, in order."""
        return (e for e in self.events if e.type in types)

    def first(self, type_: str) -> Event | None:
        """The first event of a type."""
        return next(self.of_type(type_), None)


def find_calls(path: Path) -> list[Path]:
    """The call folders of a bundle: itself, or its `call-NNN` folders in order. Raises BundleError if none."""
    if not path.exists():
        raise BundleError(f"{path}: no such file or folder", next_step="give the folder that --out named")
    if (path / "manifest.json").is_file():
        return [path]
    found = [p for p in path.glob("call-*") if (p / "manifest.json").is_file()] if path.is_dir() else []
    if not found:
        raise BundleError(
            f"{path}: not a session bundle (no manifest.json in it)", next_step="give the folder that --out named"
        )
    return sorted(found, key=lambda p: (len(p.name), p.name))  # call-999 before call-1000


def imported_manifest(path: Path) -> Mapping[str, Any] | None:
    """The manifest of an imported bundle, its `source` a mapping; None for a recorded call.

    Raises
    ------
    BundleError
        As `read_call`.
    """
    manifest = _read_manifest(path / "manifest.json")
    return manifest if _is_imported(manifest) else None


def _is_imported(manifest: Mapping[str, Any]) -> bool:
    source = manifest.get("source")
    return isinstance(source, dict) and source.get("kind") == "import"


def read_run(path: Path) -> list[CallRecord]:
    """Read a session's folder: its one call, or all calls that its run had planned.

    A call of a run that was never recorded, or whose manifest cannot be read, is a record without events: its turns
    were scheduled all the same.

    Raises
    ------
    BundleError
        If there is no session, or not one call of it can be read.
    NotMeasurable
        If it holds imported statistics: no call was recorded then.
    """
    planned = _read_plan(path / RUN_FILE)
    # where all calls of a run are gone, its plan still says what was scheduled
    calls = [] if planned and not any(path.glob("call-*/manifest.json")) else find_calls(path)
    if calls == [path]:
        return [read_call(path)]
    names = sorted({p.name for p in calls} | set(planned), key=lambda name: (len(name), name))
    records: list[CallRecord] = []
    refused: list[BundleError] = []
    for name in names:
        try:
            records.append(read_call(path / name))
        except BundleError as exc:
            refused.append(exc)
            if name in planned:
                records.append(_missing(path / name, planned[name], exc))
    if not records:
        raise refused[0]
    # a call that was not planned and cannot be read has no turns to stand for it, but it is said
    unread = tuple(exc.message for exc in refused if not any(r.path and str(r.path) in exc.message for r in records))
    return [replace(records[0], warnings=(*records[0].warnings, *unread)), *records[1:]]


def _missing(path: Path, planned: Mapping[str, Any], why: BundleError) -> CallRecord:
    warning = f"{why.message}; its turns are not measurable"
    return CallRecord(planned, (Event(0, "recording_missing"),), (), (), warnings=(warning,), path=path)


def _read_plan(path: Path) -> dict[str, Mapping[str, Any]]:
    """The calls that a run had planned, by the name of their folder; none where that cannot be read."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        return {f"call-{int(call['call']):03d}": call for call in document["calls"] if isinstance(call, dict)}
    except (OSError, ValueError, KeyError, TypeError, RecursionError, OverflowError):
        return {}


def read_call(path: Path) -> CallRecord:
    """Read one call's folder; what a crash cut off is left out and said in `warnings`.

    Raises
    ------
    BundleError
        If the manifest is missing or of another schema.
    NotMeasurable
        If it holds imported statistics instead of a recorded call.
    """
    manifest = _read_manifest(path / "manifest.json")
    if _is_imported(manifest):
        raise NotMeasurable(
            "imported_statistics",
            f"{path}: nothing measurable, it holds imported statistics",
            next_step="use `latency-probe report` to plot them",
        )
    said = manifest.get("warnings")
    warnings = [str(text) for text in said] if isinstance(said, list) else []
    events = tuple(_read_events(path / "events.jsonl", warnings))
    origin = manifest.get("clock", {})
    try:
        shift_ns = _int64(origin["monotonic_ns"]) - _int64(origin["wall_ns"])
    except (KeyError, TypeError, ValueError, OverflowError):
        raise BundleError(f"{path}/manifest.json: clock.monotonic_ns and clock.wall_ns are needed") from None
    packets: dict[tuple[Direction, bool], list[Any]] = {(d, c): [] for d in Direction for c in (False, True)}
    malformed = 0
    capture = path / "packets.pcap"
    if capture.is_file():
        for datagram in read_pcap(capture, warnings):
            time_ns, data = datagram.time_ns + shift_ns, datagram.payload
            if not is_rtp_or_rtcp(data):
                malformed += 1
            elif is_rtcp(data):
                packets[datagram.direction, True].append((time_ns, data))
            else:
                try:
                    packets[datagram.direction, False].append(Timed(time_ns, parse_rtp(data)))
                except MalformedPacket:
                    malformed += 1
    else:
        warnings.append("packets.pcap is missing")
    if malformed:
        warnings.append(f"packets.pcap: {malformed} packets are not RTP or RTCP")
    return CallRecord(
        manifest=manifest,
        events=events,
        received=tuple(packets[Direction.RECEIVED, False]),
        sent=tuple(packets[Direction.SENT, False]),
        rtcp_received=tuple(packets[Direction.RECEIVED, True]),
        rtcp_sent=tuple(packets[Direction.SENT, True]),
        warnings=tuple(warnings),
        path=path,
    )


def _read_manifest(path: Path) -> Mapping[str, Any]:
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise BundleError(f"{path.parent}: not a session bundle (no manifest.json in it)") from None
    except (OSError, ValueError, RecursionError) as exc:
        raise BundleError(f"{path}: cannot be read ({exc.__class__.__name__})") from None
    if not isinstance(manifest, dict) or manifest.get("schema") != SCHEMA:
        raise BundleError(f"{path}: schema is not {SCHEMA}", next_step="read it with the version that wrote it")
    return manifest


def _read_events(path: Path, warnings: list[str]) -> Iterable[Event]:
    if not path.is_file():
        warnings.append("events.jsonl is missing")
        return
    broken = 0
    with path.open("rb") as file:
        for line in file:
            try:
                fields = json.loads(line)
                yield Event(_int64(fields.pop("t_ns")), str(fields.pop("type")), fields)
            except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
                broken += 1
    if broken:
        warnings.append(f"events.jsonl: {broken} {'line was' if broken == 1 else 'lines were'} cut off or no event")


def _int64(value: Any) -> int:
    number = int(value)
    if not -(1 << 62) <= number < 1 << 62:
        raise ValueError("not a time in nanoseconds")
    return number
