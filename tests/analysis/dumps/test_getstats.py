"""getStats() objects as people keep them: grouped into calls."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from analysis.dumps import Dump, parse_dump, read_dump

CHROME = Path(__file__).parents[2] / "golden" / "chrome"
T = 1_780_000_000_000.5


def inbound(k: int, **more: Any) -> dict[str, Any]:
    return {"type": "inbound-rtp", "ssrc": 7, "timestamp": T + 200 * k, "packetsReceived": 10 * k, **more}


def playout(k: int) -> dict[str, Any]:
    return {"type": "media-playout", "timestamp": T + 200 * k, "totalSamplesCount": 8820 * k}


def parsed(text: str) -> Dump:
    dump = parse_dump(text)
    assert dump is not None
    return dump


def check(dump: Dump, id_: str = "inbound-rtp-7", calls: int = 3) -> None:
    snapshots = dump.peer_connections[0].snapshots
    assert dump.format == "getstats"
    assert [s.time_ns for s in snapshots] == [pytest.approx((T + 200 * k) * 1e6, abs=1000) for k in range(calls)]
    assert [[o["type"] for o in s.stats] for s in snapshots] == [["media-playout", "inbound-rtp"]] * calls
    assert [s.stats[1]["packetsReceived"] for s in snapshots] == [10 * k for k in range(calls)]
    assert [s.stats[1]["id"] for s in snapshots] == [id_] * calls


def test_reference_run_of_chrome() -> None:
    raw = json.loads((CHROME / "clean.stats.json").read_text())
    dump = read_dump(CHROME / "clean.stats.json")
    snapshots = dump.peer_connections[0].snapshots
    assert len(snapshots) == len({o["timestamp"] for o in raw})
    assert sum(len(s.stats) for s in snapshots) == len(raw)
    told = [o["jitterBufferDelay"] for s in snapshots for o in s.stats if o["type"] == "inbound-rtp"]
    assert told == [o["jitterBufferDelay"] for o in raw if o["type"] == "inbound-rtp"]


def test_every_form_gives_the_same_calls() -> None:
    calls = [[playout(k), inbound(k)] for k in range(3)]
    flat = [o for call in calls for o in call]
    reports = [{o["type"]: o for o in call} for call in calls]
    check(parsed(json.dumps(flat)))
    check(parsed(json.dumps(flat, indent=2)))
    check(parsed("\n".join(json.dumps(o) for o in flat)))
    check(parsed(json.dumps(calls)))
    check(parsed("\r\n".join(json.dumps(call) for call in calls)))
    check(parsed("\n".join(json.dumps({"t_ns": 5 * k, "stats": call}) for k, call in enumerate(calls))))
    check(
        parsed("\n".join(json.dumps({"t_ns": 5, "stats": {o["type"]: o for o in call}}) for call in calls)),
        "inbound-rtp",
    )
    check(parsed("\n".join(json.dumps(report) for report in reports)), "inbound-rtp")


def test_objects_without_a_time_have_that_of_their_line() -> None:
    line = {"t_ns": 1_780_000_000_000_000_000, "stats": [{"type": "inbound-rtp", "packetsReceived": 3}]}
    (snapshot,) = parsed(json.dumps(line) + "\n").peer_connections[0].snapshots
    assert snapshot.time_ns == 1_780_000_000_000_000_000
    assert snapshot.stats[0]["timestamp"] == 1_780_000_000_000.0


def test_calls_without_any_time_are_left_out_and_said() -> None:
    dump = parsed(json.dumps([{"type": "inbound-rtp", "packetsReceived": 3}]))
    assert dump.peer_connections == ()
    assert "no time" in dump.warnings[0]


def test_times_in_microseconds_are_known_by_their_size() -> None:
    (snapshot,) = parsed(json.dumps([{"type": "codec", "timestamp": 1603448671532842}])).peer_connections[0].snapshots
    assert snapshot.time_ns == 1603448671532842000


def test_what_is_no_object_of_statistics_is_counted() -> None:
    dump = parsed(json.dumps([playout(0), inbound(0), 3, None, {"packets": 4}, [], playout(1), inbound(1)]))
    assert "4 values" in dump.warnings[0]
    assert sum(len(s.stats) for s in dump.peer_connections[0].snapshots) == 4


def test_reports_of_rtcp_do_not_part_a_call() -> None:
    report = {"type": "remote-inbound-rtp", "id": "r", "timestamp": T - 3000, "roundTripTime": 0.1}
    dump = parsed(json.dumps([o for k in range(3) for o in (playout(k), report, inbound(k))]))
    assert [len(s.stats) for s in dump.peer_connections[0].snapshots] == [3, 3, 3]


@pytest.mark.parametrize(
    "text", ["3", '"x"', "null", "{}", "[]", "[3]", '{"a": 1}', "[[[]]]", "no", "\x00\x01", "<html>"]
)
def test_other_things_are_no_dump(text: str) -> None:
    assert parse_dump(text) is None
