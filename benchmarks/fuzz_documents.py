"""Recorded calls and statistics that browsers wrote into seeds for fuzzing: bundles, dumps, lines of JSON.

Sources: docs/bundle.md, and the dumps in tests/golden/dumps (chrome://webrtc-internals and rtcstats of several ages).
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from analysis.bundle import SCHEMA, CallRecord
from analysis.pcap import Direction, Endpoints, pcap_header
from analysis.rtp import serialize_rtp
from analysis.streams import Timed
from benchmarks.fuzz_corpus import ENDS, GOLDEN, PACKED, SAP_TEXT, Ends, captures, cut, simulated_calls
from benchmarks.fuzz_mutate import Files, JsonLines, JsonText, Nothing, Records, Seed, Tagged

__all__ = [
    "bundles",
    "commands",
    "getstats_dumps",
    "imported_bundles",
    "internals_dumps",
    "rtcstats_dumps",
    "statistics_files",
]

MAX_SERIES = 60  # of one peer connection of a real dump
MAX_LINES, MAX_LINE = 16, 6000  # of a real dump by lines


def bundles(packets: int | None = 40) -> list[Seed]:
    """The files of recorded calls: manifest, events, statistics, capture; `packets` of each direction, or all."""
    return [_bundle(call, packets) for call in simulated_calls()]


def _bundle(call: CallRecord, packets: int | None) -> Files:
    shift_ns = int(call.manifest["clock"]["wall_ns"]) - int(call.manifest["clock"]["monotonic_ns"])
    ways: list[tuple[Direction, Ends, Sequence[Timed]]] = [
        (Direction.RECEIVED, ENDS, call.received[:packets]),
        (Direction.SENT, (ENDS[1], ENDS[0]), call.sent[:packets]),
    ]
    records = [
        (timed.time_ns, Endpoints(way, *ends).record(timed.time_ns + shift_ns, serialize_rtp(timed.packet)))
        for way, ends, timeds in ways
        for timed in timeds
    ]
    sll_ip_udp = (2, 2, 2, 8, 2, 1, 1, 2, 2, 2, 1, 1, 2, 4, 4, 2, 2, 2, 2)
    widths = (4, 4, 4, 4, *sll_ip_udp, 1, 1, 2, 4, 4)
    head = cut(pcap_header(), 4, 2, 2, 4, 4, 4, 4)[:-1]
    capture = Records((head, *(cut(data, *widths) for _, data in sorted(records))))
    events = [json.dumps({"t_ns": e.time_ns, "type": e.type, **e.fields}) for e in call.events]
    stats = _snapshot_lines(call.events[0].time_ns)
    return Files((JsonText(json.dumps(call.manifest)), JsonLines(tuple(events)), JsonLines(stats), capture))


def _snapshot_lines(first_ns: int) -> tuple[str, ...]:
    return tuple(json.dumps({"t_ns": first_ns + i * 200_000_000, "stats": _snapshot(i)}) for i in range(8))


def statistics_files() -> list[Seed]:
    """stats.jsonl of recorded and of imported calls."""
    return [JsonLines(_snapshot_lines(0)), JsonLines(_snapshot_lines(1_000_000_000_000))]


def imported_bundles() -> list[Seed]:
    """The files of a bundle that was made of a dump: manifest, no events, statistics, no packets."""
    about = {
        "kind": "import",
        "format": "rtcstats",
        "file": "dump.txt",
        "user_agent": "Chrome/140",
        "peer_connection": "1",
    }
    manifest = {"schema": SCHEMA, "source": about, "clock": {"monotonic_ns": 0, "wall_ns": 1_767_225_600_000_000_000}}
    manifest |= {"turns": [], "warnings": ["cut off"]}
    return [Files((JsonText(json.dumps(manifest)), Nothing(), JsonLines(_snapshot_lines(0)), Nothing()))]


def commands() -> list[Seed]:
    """What commands are given, behind the command's name."""
    files = {"playout": captures()[::3], "replay": bundles(None), "report": [*bundles(None), *imported_bundles()]}
    files["import"] = [*internals_dumps()[::2], *rtcstats_dumps()[::2], *getstats_dumps()[::2]]
    return [Tagged(name, seed) for name, seeds in files.items() for seed in seeds]


def _snapshot(number: int) -> list[dict[str, Any]]:
    """The W3C objects of one moment of a call."""
    at = {"timestamp": 1_767_225_600_000.0 + 200 * number}
    inbound = _browser_stats()[number % len(_browser_stats())]
    codec = {"id": "codec-111", "type": "codec", **at, "payloadType": 111, "mimeType": "audio/opus", "clockRate": 48000}
    remote = {
        "id": "remote-inbound-rtp-1",
        "type": "remote-inbound-rtp",
        **at,
        "ssrc": 1,
        "kind": "audio",
        "jitter": 0.001,
    }
    remote |= {"roundTripTime": 0.031, "totalRoundTripTime": 0.1, "roundTripTimeMeasurements": 3, "packetsLost": number}
    pair = {"id": "candidate-pair-1", "type": "candidate-pair", **at, "currentRoundTripTime": 0.03, "nominated": True}
    playout = {
        "id": "media-playout-1",
        "type": "media-playout",
        **at,
        "totalPlayoutDelay": 251.0,
        "totalSamplesCount": 9600,
    }
    own = {"id": "inbound-rtp-305419896", "ssrc": 305_419_896, "kind": "audio", "codecId": "codec-111"}
    return [{**inbound, **own, **at}, codec, remote, pair, playout]


@cache
def _browser_stats() -> list[dict[str, Any]]:
    """What a browser said of its inbound stream, poll after poll."""
    polled = json.loads((GOLDEN / "chrome" / "bursty_loss.stats.json").read_text(encoding="utf-8"))
    return [entry for entry in polled if entry["type"] == "inbound-rtp"][20:32]


def _golden_dumps() -> list[tuple[Path, bytes]]:
    """Real dumps of several ages, unpacked."""
    found = [(path, path.read_bytes()) for path in sorted((GOLDEN / "dumps").iterdir())]
    return [(path, gzip.decompress(data) if path.suffix == ".gz" else data) for path, data in found]


def _golden_documents(*stems: str) -> list[Seed]:
    """Those that are one JSON document, with fewer of their series."""
    found: list[Seed] = []
    for path, data in _golden_dumps():
        if path.name in stems:
            document = json.loads(data)
            for connection in document.get("PeerConnections", {}).values():
                connection["stats"] = dict(list(connection["stats"].items())[:MAX_SERIES])
                connection["updateLog"] = connection.get("updateLog", [])[:MAX_LINES]
            found.append(JsonText(json.dumps(document), PACKED))
    return found


def _golden_lines() -> list[Seed]:
    """Those by lines, with fewer of them."""
    found: list[Seed] = []
    for path, data in _golden_dumps():
        if path.name.endswith((".txt", "_rtcstats.gz")) and b"fileFormat" in data:
            head, _, rest = data.partition(b"\n") if data.startswith(b"RTCStatsDump") else (b"", b"", data)
            lines = [line.decode() for line in rest.splitlines() if len(line) < MAX_LINE][:MAX_LINES]
            found.append(JsonLines(tuple(lines), head=head + b"\n" if head else b"", packed=PACKED))
    return found


def internals_dumps() -> list[Seed]:
    """chrome://webrtc-internals: with and without a series of timestamps, one and two peer connections."""
    made: list[Seed] = [
        JsonText(json.dumps(_internals(stamps, calls)), PACKED) for stamps in (False, True) for calls in (1, 2)
    ]
    real = _golden_documents("before_m117.json", "chromium156_internals.gz", "chromium156_internals.txt", "legacy.json")
    return made + real


def _internals(stamps: bool, calls: int) -> dict[str, Any]:
    snapshots = [_snapshot(i) for i in range(6)]
    stats: dict[str, Any] = {}
    for position, first in enumerate(snapshots[0]):
        times = {"startTime": "2026-01-01T00:00:00.000Z", "endTime": "2026-01-01T00:00:06.000Z"}
        for name, value in first.items():
            if name in ("id", "type") or (name == "timestamp" and not stamps):
                continue
            values = [s[position].get(name, value) for s in snapshots]
            series = {**times, "statsType": first["type"], "values": json.dumps(values)}
            stats[f"{first['id']}-{name}"] = series
    log = [{"time": "1/1/2026, 12:00:00 AM", "type": "setRemoteDescription", "value": f"type: answer, sdp: {SAP_TEXT}"}]
    one = {"pid": 7, "rid": 21, "url": "https://call.example/", "rtcConfiguration": "{}", "constraints": ""}
    one |= {"stats": stats, "updateLog": log}
    return {
        "getUserMedia": [{"pid": 7, "rid": 21, "audio": "", "timestamp": 1_767_225_600_000.0}],
        "PeerConnections": {f"{21 + i}-{i + 1}": one for i in range(calls)},
        "UserAgent": "Mozilla/5.0 (X11; Linux x86_64) Chrome/140.0.0.0",
        "UserAgentData": [{"brand": "Chromium", "version": "140"}],
    }


def rtcstats_dumps() -> list[Seed]:
    """rtcstats, with whole statistics and with what changed since the poll before."""
    made: list[Seed] = [
        JsonLines(_rtcstats(*kind), head=b"RTCStatsDump\n", packed=PACKED)
        for kind in ((False, 1), (True, 1), (True, 2))
    ]
    return made + _golden_lines() + _golden_documents("rtcstats_v0.json")


def _rtcstats(delta: bool, calls: int) -> tuple[str, ...]:
    about = {"fileFormat": 3, "clientId": "abc", "origin": "https://call.example", "startTime": 1_767_225_600_000}
    about |= {"userAgent": "Mozilla/5.0 Chrome/140", "url": "https://call.example/", "rtcStatsVersion": "3"}
    lines: list[Any] = [about]
    for call in range(calls):
        name = f"PC_{call}"
        lines.append(["create", name, {"iceServers": []}, None, 1_767_225_600_000])
        lines.append(["setRemoteDescription", name, {"type": "answer", "sdp": SAP_TEXT}, 12])
        lines.append(["connectionstatechange", name, "connected", 30])
        before: dict[str, Any] = {}
        for number in range(6):
            report = {entry["id"]: {k: v for k, v in entry.items() if k != "id"} for entry in _snapshot(number)}
            sent = _changes(before, report) if delta else report
            lines.append(["getStats", name, sent, 1000])
            before = report
        lines.append(["close", name, None, 5])
    return tuple(json.dumps(line) for line in lines)


def _changes(before: dict[str, Any], now: dict[str, Any]) -> dict[str, Any]:
    changed = {
        name: {k: v for k, v in report.items() if k != "timestamp" and before.get(name, {}).get(k) != v}
        for name, report in now.items()
    }
    return {**{k: v for k, v in changed.items() if v}, "timestamp": max(r["timestamp"] for r in now.values())}


def getstats_dumps() -> list[Seed]:
    """What getStats() gave, poll after poll: as one list, as lists in a list, as reports by id, and line by line."""
    polls = [_snapshot(i) for i in range(6)]
    lines = tuple(json.dumps(poll) for poll in polls)
    stamped = tuple(json.dumps({"t_ns": i * 200_000_000, "stats": poll}) for i, poll in enumerate(polls))
    documents: list[Any] = [
        [entry for poll in polls for entry in poll],
        polls,
        [{entry["id"]: entry for entry in poll} for poll in polls],
    ]
    documents.append([{"timestamp": poll[0]["timestamp"], "stats": poll} for poll in polls])
    whole: list[Seed] = [JsonText(json.dumps(document), PACKED) for document in documents]
    return [*whole, JsonLines(lines, packed=PACKED), JsonLines(stamped, packed=PACKED)]
