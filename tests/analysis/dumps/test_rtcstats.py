"""Dumps of rtcstats: differences undone, times, and what a lost line may have changed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from analysis.dumps import Dump, parse_dump, read_dump

GOLDEN = Path(__file__).parents[2] / "golden" / "dumps"
T = 1_780_000_000_000  # of rtcstats_v3.txt
T2 = 1_605_197_599_000  # of rtcstats_v2.txt


def parsed(text: str) -> Dump:
    dump = parse_dump(text)
    assert dump is not None
    return dump


def lines(*events: Any, header: bool = True) -> str:
    whole = [json.dumps(event) for event in events]
    return "\n".join((["RTCStatsDump", '{"fileFormat":3}'] if header else []) + whole) + "\n"


def over_time(dump: Dump, id_: str, name: str) -> list[Any]:
    return [next((o.get(name) for o in s.stats if o["id"] == id_), "gone") for s in dump.peer_connections[0].snapshots]


def test_v3_differences_are_undone() -> None:
    dump = read_dump(GOLDEN / "rtcstats_v3.txt")
    assert (dump.format, dump.user_agent, dump.warnings) == ("rtcstats", "Mozilla/5.0 Chrome/150.0.0.0", ())
    assert [s.time_ns for s in dump.peer_connections[0].snapshots] == [(T + 1000 * k) * 1_000_000 for k in (1, 2, 3, 4)]
    assert over_time(dump, "0", "packetsReceived") == [50, 100, 150, 150]
    assert over_time(dump, "0", "packetsLost") == [0, 0, 0, 0]
    assert over_time(dump, "0", "jitter") == [0.002, 0.002, 0.003, 0.003]
    assert over_time(dump, "0", "jitterBufferDelay") == [480, 1920, 3840, 3840]
    assert over_time(dump, "0", "type") == ["inbound-rtp"] * 4
    assert over_time(dump, "0", "timestamp") == [T + 1000 * k for k in (1, 2, 3, 4)]
    # a table inside is told in differences, too
    assert over_time(dump, "0", "qualityLimitationDurations") == [
        {"none": 1, "cpu": 0},
        {"none": 1, "cpu": 0.5},
        {"none": 1, "cpu": 0.5},
        {"none": 1, "cpu": 0.5},
    ]


def test_v3_objects_come_and_go() -> None:
    dump = read_dump(GOLDEN / "rtcstats_v3.txt")
    assert over_time(dump, "1", "totalPlayoutDelay") == [10.5, 31.5, "gone", "gone"]
    assert over_time(dump, "2", "reportsSent") == ["gone", None, None, None]
    assert over_time(dump, "2", "packetsSent") == ["gone", 104, 104, 150]
    # a report's own time stays where nothing is told of it
    assert over_time(dump, "2", "timestamp") == ["gone", T + 1800, T + 1800, T + 3900]


def test_v2_differences_have_times_of_their_own() -> None:
    dump = read_dump(GOLDEN / "rtcstats_v2.txt")
    assert dump.user_agent == "Mozilla/5.0 Chrome/86.0"
    id_ = "RTCInboundRTPAudioStream_305419896"
    assert over_time(dump, id_, "packetsReceived") == [50, 100, 149]
    assert over_time(dump, id_, "packetsLost") == [0, 0, 1]
    assert over_time(dump, id_, "timestamp") == [T2 + 1000, T2 + 2000, T2 + 3000]
    # an object that did not change is not told of; it is still there
    assert over_time(dump, "RTCCodec_1", "clockRate") == [48000] * 3
    assert [s.time_ns for s in dump.peer_connections[0].snapshots] == [(T2 + 1000 * k) * 1_000_000 for k in (1, 2, 3)]


def test_clients_of_protocol_3_tell_of_all_that_is_there() -> None:
    info = ["connectionInfo", None, {"clientProtocol": "3.1_STANDARD", "userAgent": "x"}, T2]
    first = ["getstats", "PC_0", {"a": {"type": "codec", "timestamp": 0}, "b": {"type": "codec"}, "timestamp": T2}, T2]
    then = ["getstats", "PC_0", {"b": {"timestamp": 0}, "timestamp": T2 + 1000}, T2 + 1000]
    assert over_time(parsed(lines(info, first, then, header=False)), "a", "type") == ["codec", "gone"]
    assert over_time(parsed(lines(first, then, header=False)), "a", "type") == ["codec", "codec"]


def test_whole_statistics_are_not_taken_for_differences() -> None:
    # as webrtc-internals writes them: what is not there is gone
    one = {"a": {"id": "a", "type": "codec", "timestamp": T}, "b": {"id": "b", "type": "codec", "timestamp": T}}
    two = {"b": {"id": "b", "type": "codec", "timestamp": T + 1000}}
    dump = parsed(lines(["getStats", "8-1", one, T], ["getStats", "8-1", two, 1000]))
    assert over_time(dump, "a", "type") == ["codec", "gone"]


def test_first_form_is_one_object_with_legacy_statistics() -> None:
    dump = read_dump(GOLDEN / "rtcstats_v0.json")
    assert over_time(dump, "ssrc_305419896_recv", "packetsReceived") == [50, 100]
    assert over_time(dump, "ssrc_305419896_recv", "jitter") == [0.004, 0.006]
    assert [s.time_ns // 1_000_000 for s in dump.peer_connections[0].snapshots] == [1454005461297, 1454005462297]


def test_times_do_not_depend_on_what_the_server_says_of_the_start() -> None:
    # rtcstats_v3.txt says that it began 10 s later than its first line
    assert read_dump(GOLDEN / "rtcstats_v3.txt").peer_connections[0].snapshots[0].time_ns == (T + 1000) * 1_000_000


def test_values_that_a_lost_line_may_have_changed_are_absent_until_told_again() -> None:
    text = (GOLDEN / "rtcstats_v3.txt").read_text().split("\n")
    whole = next(k for k, line in enumerate(text) if '"14":100' in line)
    text[whole] = text[whole][:60]
    dump = parsed("\n".join(text))
    assert over_time(dump, "0", "packetsReceived") == [50, 150, 150]
    assert over_time(dump, "0", "packetsLost") == [0, None, None]  # it may have grown in the lost line
    assert over_time(dump, "0", "ssrc") == [305419896] * 3  # this never changes
    assert any("left out" in warning for warning in dump.warnings)


def test_last_line_that_is_cut_is_said_and_costs_nothing_else() -> None:
    text = (GOLDEN / "rtcstats_v3.txt").read_text()
    dump = parsed(text[: text.index('"t":1780000004000') + 5])
    assert len(dump.peer_connections[0].snapshots) == 3
    assert any("cut off in line" in warning for warning in dump.warnings)


def test_a_clock_that_was_set_back_is_said() -> None:
    events = [
        ["getstats", "PC_0", {"a": {"type": "codec", "timestamp": 0}, "timestamp": ms}, ms] for ms in (T, T - 3_600_000)
    ]
    assert any("set back" in w for w in parsed(lines(*events, header=False)).peer_connections[0].warnings)


def test_odd_events_are_no_trouble() -> None:
    odd = [[1], [], ["getStats", "PC_0"], ["g", "PC_0", 3, 1], ["g", "PC_0", None, 1], ["g", "PC_0", [3], "x"], 3, "x"]
    odd += [["g", {"a": 1}, {}, 1], [{}, "PC_0", {}, 1], ["g", "PC_0", {"a": {"type": 99}}, 1e999], None, {"a": []}]
    event = ["g", "PC_0", {"a": {"type": 14, "7": 48000}, "t": T}, T]
    dump = parsed(lines(*odd, event, *odd))
    assert over_time(dump, "a", "clockRate")[-1] == 48000
