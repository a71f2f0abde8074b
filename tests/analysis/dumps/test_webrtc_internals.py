"""Dumps of chrome://webrtc-internals: values, times and units against what the files hold."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from analysis.dumps import Dump, Snapshot, parse_dump, read_dump

GOLDEN = Path(__file__).parents[2] / "golden" / "dumps"


def parsed(document: Any) -> Dump:
    dump = parse_dump(json.dumps(document))
    assert dump is not None
    return dump


def objects(snapshot: Snapshot, type_: str) -> list[Mapping[str, Any]]:
    return [o for o in snapshot.stats if o["type"] == type_]


def over_time(dump: Dump, connection: int, type_: str, name: str) -> list[Any]:
    return [
        objects(s, type_)[0].get(name) if objects(s, type_) else None
        for s in dump.peer_connections[connection].snapshots
    ]


def series(type_: str, start: str, end: str, values: list[Any]) -> dict[str, Any]:
    return {"startTime": start, "endTime": end, "statsType": type_, "values": json.dumps(values)}


def document(stats: Mapping[str, Any]) -> dict[str, Any]:
    return {"PeerConnections": {"1-1": {"stats": stats}}, "UserAgent": "test"}


T0 = 1_780_000_000_000.25


def at(k: int) -> str:
    """ISO time of poll k, in whole milliseconds as the page writes it."""
    return f"2026-05-28T20:26:{40 + k:02d}.000Z"


# --- a real dump ---


def test_real_dump_holds_what_its_series_say() -> None:
    text = (GOLDEN / "chromium156_internals.txt").read_text()
    raw = json.loads(text)["PeerConnections"]["8-2"]["stats"]
    dump = read_dump(GOLDEN / "chromium156_internals.txt")
    assert dump.format == "webrtc-internals"
    assert dump.user_agent is not None
    assert "HeadlessChrome/156" in dump.user_agent
    assert dump.warnings == ()
    assert [c.name for c in dump.peer_connections] == ["8-1", "8-2"]
    for name in ("packetsReceived", "jitterBufferDelay", "concealedSamples", "jitter", "audioLevel"):
        assert over_time(dump, 1, "inbound-rtp", name) == json.loads(raw[f"IT01A1994497153-{name}"]["values"])
    times = json.loads(raw["IT01A1994497153-timestamp"]["values"])
    snapshots = dump.peer_connections[1].snapshots
    assert [s.time_ns for s in snapshots] == [pytest.approx(ms * 1e6, abs=1000) for ms in times]
    assert over_time(dump, 1, "inbound-rtp", "timestamp") == times


def test_real_reports_of_rtcp_stand_at_the_poll_that_read_them() -> None:
    dump = read_dump(GOLDEN / "chromium156_internals.txt")
    snapshots = dump.peer_connections[0].snapshots
    assert len(snapshots) == 11
    # the first report came 55.565 s past the minute: after the second poll (55.07), before the third (56.07)
    assert [bool(objects(s, "remote-inbound-rtp")) for s in snapshots] == [False] * 2 + [True] * 9
    for s in snapshots[2:]:
        own_ms = objects(s, "remote-inbound-rtp")[0]["timestamp"]
        assert 0 <= s.time_ns / 1e6 - own_ms < 6000  # audio sends a report each five seconds at most
    # a round trip is known from the second report on
    assert over_time(dump, 0, "remote-inbound-rtp", "roundTripTime") == [None] * 5 + [0.001] * 6


def test_one_call_is_the_same_in_both_dumps_of_the_page() -> None:
    series_, whole = (read_dump(GOLDEN / f"chromium156_{name}.gz") for name in ("internals", "rtcstats"))
    assert len(series_.peer_connections) == len(whole.peer_connections) == 2
    for mine, other in zip(series_.peer_connections, whole.peer_connections, strict=True):
        assert mine.name == other.name
        assert [s.time_ns for s in mine.snapshots] == [s.time_ns for s in other.snapshots]
        for a, b in zip(mine.snapshots, other.snapshots, strict=True):
            assert {o["id"]: dict(o) for o in a.stats} == {o["id"]: dict(o) for o in b.stats}


# --- before M117 ---


def test_dump_without_times_is_spaced_evenly_and_says_so() -> None:
    dump = read_dump(GOLDEN / "before_m117.json")
    call, empty = dump.peer_connections
    assert empty.snapshots == ()
    assert [s.time_ns // 1_000_000 for s in call.snapshots] == [1646128800000 + 1000 * k for k in range(6)]
    assert over_time(dump, 0, "inbound-rtp", "packetsReceived") == [50, 100, 150, 199, 249, 299]
    assert any("spaced evenly" in warning for warning in call.warnings)
    # it began with the third poll, and had no value at the fourth
    late = over_time(dump, 0, "inbound-rtp", "estimatedPlayoutTimestamp")
    assert late == [None, None, 3855117602000, None, 3855117604000, 3855117605000]


def test_what_tracks_held_before_stands_on_the_stream() -> None:
    dump = read_dump(GOLDEN / "before_m117.json")
    assert over_time(dump, 0, "inbound-rtp", "jitterBufferDelay") == [480, 1920, 3840, 5760, 7680, 9600]
    assert over_time(dump, 0, "inbound-rtp", "concealedSamples") == [0, 0, 0, 960, 960, 960]
    assert over_time(dump, 0, "inbound-rtp", "audioLevel") == [None, 0.1, 0.2, 0.3, 0.2, 0.1]  # −1 is "unknown"


def test_even_times_that_wander_off_the_polls_keep_to_them() -> None:
    # an object that came later: its own even times are up to 0.3 s off those of the object that was there first
    stats = {
        "a-packetsReceived": series("inbound-rtp", at(0), at(9), list(range(10))),
        "b-packetsSent": series("outbound-rtp", "2026-05-28T20:26:44.300Z", at(9), list(range(6))),
    }
    snapshots = parsed(document(stats)).peer_connections[0].snapshots
    assert len(snapshots) == 10
    assert [len(s.stats) for s in snapshots] == [1] * 4 + [2] * 6


# --- times of their own ---


def timed(values: Mapping[str, tuple[int, list[Any]]], count: int = 6, type_: str = "inbound-rtp") -> dict[str, Any]:
    found = {
        f"x-{name}": series(type_, at(first), at(first + len(listed) - 1), listed)
        for name, (first, listed) in values.items()
    }
    return found | {"x-timestamp": series(type_, at(0), at(count - 1), [T0 + 1000 * k for k in range(count)])}


@pytest.mark.parametrize("first", [0, 1, 3])
def test_shorter_series_lie_where_their_start_and_end_are(first: int) -> None:
    dump = parsed(document(timed({"packetsReceived": (0, [1, 2, 3, 4, 5, 6]), "jitter": (first, [0.1, 0.2, 0.3])})))
    expected = [None] * first + [0.1, 0.2, 0.3] + [None] * (3 - first)
    assert over_time(dump, 0, "inbound-rtp", "jitter") == expected


def test_series_with_a_gap_that_nothing_places_is_left_out_unless_it_never_changed() -> None:
    stats = timed({"packetsReceived": (0, [1, 2, 3, 4, 5, 6])})
    stats["x-jitter"] = series("inbound-rtp", at(0), at(5), [0.1, 0.2, 0.3, 0.4])  # 4 of 6: which two are missing?
    stats["x-nackCount"] = series("inbound-rtp", at(0), at(5), [0, 0, 0, 0])
    dump = parsed(document(stats))
    assert over_time(dump, 0, "inbound-rtp", "jitter") == [None] * 6
    assert over_time(dump, 0, "inbound-rtp", "nackCount") == [0] * 6
    assert any("gaps" in warning for warning in dump.peer_connections[0].warnings)


def test_series_that_lost_their_first_points_say_so() -> None:
    count = 1000
    stamps = [T0 + 1000 * k for k in range(count)]
    stats = {
        "x-packetsReceived": series("inbound-rtp", at(0), at(0), list(range(500, 1500))),
        "x-timestamp": series("inbound-rtp", at(0), at(0), stamps),
    }
    call = parsed(document(stats)).peer_connections[0]
    assert len(call.snapshots) == count
    assert call.snapshots[0].stats[0]["packetsReceived"] == 500
    assert any("last 1,000 points" in warning for warning in call.warnings)


def test_object_that_went_away_does_not_slide_to_the_end() -> None:
    polls = [T0 + 1000 * k for k in range(8)]
    own = [T0 + 500, T0 + 500, T0 + 2500]  # came between polls 0 and 1, and 2 and 3; gone after poll 3
    stats = {
        "l-packetsSent": series("outbound-rtp", at(0), at(7), list(range(8))),
        "l-timestamp": series("outbound-rtp", at(0), at(7), polls),
        "r-jitter": series("remote-inbound-rtp", at(0), at(2), [0.1, 0.1, 0.2]),
        "r-timestamp": series("remote-inbound-rtp", at(0), at(2), own),
    }
    dump = parsed(document(stats))
    assert over_time(dump, 0, "remote-inbound-rtp", "jitter") == [None, 0.1, 0.1, 0.2] + [None] * 4


def test_ids_with_dashes_and_what_the_page_worked_out() -> None:
    stats = {
        "a-b-[bytesReceived/s]": series("inbound-rtp", at(0), at(1), [1, 2]),
        "a-b-[x-y]": series("inbound-rtp", at(0), at(1), [1, 2]),
        "a-b-bytesReceived": series("inbound-rtp", at(0), at(1), [100, 200]),
        "a-b-timestamp": series("inbound-rtp", at(0), at(1), [T0, T0 + 1000]),
    }
    last = parsed(document(stats)).peer_connections[0].snapshots[-1].stats
    assert last == ({"id": "a-b", "type": "inbound-rtp", "timestamp": T0 + 1000, "bytesReceived": 200},)


# --- legacy ---


def test_legacy_streams_have_w3c_names_and_units() -> None:
    dump = read_dump(GOLDEN / "legacy.json")
    assert over_time(dump, 0, "inbound-rtp", "ssrc") == [305419896] * 4
    assert over_time(dump, 0, "inbound-rtp", "packetsReceived") == [50, 100, 149, 199]
    assert over_time(dump, 0, "inbound-rtp", "packetsLost") == [0, 0, 1, 1]
    assert over_time(dump, 0, "inbound-rtp", "jitter") == [0.003, 0.004, 0.012, 0.007]  # ms → s
    assert over_time(dump, 0, "inbound-rtp", "audioLevel") == [0.0, 1.0, 3277 / 32767, 0.0]
    assert over_time(dump, 0, "outbound-rtp", "bytesSent") == [4000, 8000, 12000, 16000]
    # −1 is "unknown": the first report came between the second and the third poll
    assert over_time(dump, 0, "remote-inbound-rtp", "roundTripTime") == [None, None, 0.045, 0.048]
    assert over_time(dump, 0, "remote-inbound-rtp", "packetsLost") == [None, None, 0, 2]
    sent = objects(dump.peer_connections[0].snapshots[-1], "outbound-rtp")[0]
    assert sent["remoteId"] == objects(dump.peer_connections[0].snapshots[-1], "remote-inbound-rtp")[0]["id"]
    assert "packetsLost" not in sent


def test_legacy_delays_are_not_taken_for_sums() -> None:
    last = read_dump(GOLDEN / "legacy.json").peer_connections[0].snapshots[-1]
    received, pair = objects(last, "inbound-rtp")[0], objects(last, "candidate-pair")[0]
    assert received["googCurrentDelayMs"] == 105
    assert received["googPreferredJitterBufferMs"] == 60
    assert received["googJitterBufferMs"] == 55
    assert not [name for name in received if name.startswith("jitterBuffer")]
    assert "bitsReceivedPerSecond" not in received
    assert pair["googRtt"] == "44"  # smoothed, and so not currentRoundTripTime
    assert "currentRoundTripTime" not in pair
    assert pair["googActiveConnection"] == "true"


# --- hostile ---


@pytest.mark.parametrize(
    "name", ["chromium156_internals.gz", "chromium156_rtcstats.gz", "before_m117.json", "legacy.json"]
)
def test_nothing_secret_comes_out(name: str) -> None:
    dump = read_dump(GOLDEN / name)
    text = json.dumps([[s.stats for s in c.snapshots] for c in dump.peer_connections])
    for secret in ("s3cr3t", "abcdef", "ufr4g", "p4ssw0rd", "ufrag", "usernameFragment", "base64", "transport=udp"):
        assert secret not in text


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("12", 12),
        ("0.5", 0.5),
        ("many", None),
        (True, None),
        (float("nan"), None),
        (float("inf"), None),
        (None, None),
        ([1], None),
        (10**400, None),
        (1 << 70, None),
    ],
)
def test_a_number_is_a_number_or_absent(value: Any, expected: Any) -> None:
    stats = timed({"packetsReceived": (0, [1] * 6), "jitterBufferDelay": (0, [value] * 6)})
    dump = parsed(document(stats))
    assert over_time(dump, 0, "inbound-rtp", "jitterBufferDelay") == [expected] * 6


@pytest.mark.parametrize(
    "broken", [None, 3, "x", [], {}, {"values": "[1,"}, {"values": "[]"}, {"values": "x"}, {"values": "[" * 100_000}]
)
def test_a_damaged_series_costs_only_itself(broken: Any) -> None:
    dump = parsed(document(timed({"packetsReceived": (0, [1, 2, 3, 4, 5, 6])}) | {"x-jitter": broken}))
    assert over_time(dump, 0, "inbound-rtp", "packetsReceived") == [1, 2, 3, 4, 5, 6]
    assert over_time(dump, 0, "inbound-rtp", "jitter") == [None] * 6
    assert any("damaged" in warning for warning in dump.peer_connections[0].warnings)


@pytest.mark.parametrize("stats", [None, [], "x", 3])
def test_connections_of_another_form_are_empty(stats: Any) -> None:
    assert parsed(document(stats)).peer_connections[0].snapshots == ()
    assert parsed({"PeerConnections": {"1-1": stats}, "UserAgent": 3}).user_agent is None
