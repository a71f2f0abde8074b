"""Snapshots of what a receiver would have said; a browser's own polls of the same packets say the same."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from analysis.capture import CapturedDatagram, read_capture
from analysis.capture_rtp import RtpStream, choose_codecs, find_streams
from analysis.codecs import CODECS, encode
from analysis.errors import UsageError
from analysis.inbound import measure
from analysis.inbound_snapshots import MeasuredStream, stats_snapshots
from analysis.result import OutputDelay
from analysis.rtp import RtpPacket, serialize_rtp
from benchmarks.chrome_reference_files import GOLDEN

MS = 1_000_000
START_NS = 1_800_000_000_000_000_000
SOUND = encode(CODECS["opus"], (0.1 * np.sin(np.arange(96_000) / 50)).astype(np.float32))


def captured(moments_ms: list[float], *, ssrc: int = 7, start_ns: int = START_NS, skip: int | None = None) -> RtpStream:
    datagrams = [
        CapturedDatagram(
            start_ns + round(at_ms * MS),
            ("192.0.2.1", 5004),
            ("192.0.2.2", 5006),
            serialize_rtp(RtpPacket(96, i, round(at_ms / 20) * 960, ssrc, SOUND[i % len(SOUND)])),
            None,
            0,
        )
        for i, at_ms in enumerate(moments_ms)
        if i != skip
    ]
    (stream,) = find_streams(datagrams)
    return stream


def measured(stream: RtpStream, policy: str, **more: Any) -> MeasuredStream:
    choice = choose_codecs(stream, given={96: CODECS["opus"]})
    inbound = measure(stream, choice, policy, **more)
    assert inbound is not None
    return MeasuredStream(stream, choice, inbound)


def inbound_in(line: dict[str, Any]) -> dict[str, Any]:
    (found,) = [fields for fields in line["stats"] if fields["type"] == "inbound-rtp"]
    return dict(found)


@pytest.mark.parametrize("policy", ["chrome", "fixed:50", "none"])
def test_the_last_one_says_what_the_whole_stream_comes_to(policy: str) -> None:
    each = measured(captured([20.0 * i for i in range(100)], skip=40), policy)
    lines = list(stats_snapshots([each]))
    last = inbound_in(lines[-1])
    for name, value in each.inbound.inbound_rtp.items():
        assert last[name] == pytest.approx(value, rel=1e-9), name
    assert {*last} - {*each.inbound.inbound_rtp} == {"id", "type", "kind", "ssrc", "codecId", "playoutId", "timestamp"}
    series = [inbound_in(line) for line in lines]
    for name in ("packetsReceived", "jitterBufferDelay", "jitterBufferEmittedCount", "concealedSamples"):
        values = [fields[name] for fields in series if name in fields]
        assert len(values) >= len(series) - 1
        assert values == sorted(values), name
    assert [line["t_ns"] - START_NS for line in lines] == [200 * MS * (k + 1) for k in range(len(lines))]
    assert 10 <= len(lines) <= 12


def test_counters_that_are_not_known_yet_are_absent() -> None:
    stream = captured([20.0 * i for i in range(100)])
    lines = [inbound_in(line) for line in stats_snapshots([measured(stream, "chrome")], interval_ms=50)]
    known = ["totalSamplesReceived" in fields for fields in lines]
    # `chrome` has totals every 200 ms from its first tick on, which comes within 10 ms of the first packet
    assert known == [False] * 4 + [True] * (len(lines) - 4)
    assert all(fields["totalSamplesReceived"] > 0 for fields in lines[4:])
    assert all(("playoutId" in fields) == said for fields, said in zip(lines, known, strict=True))
    fixed = [inbound_in(line) for line in stats_snapshots([measured(stream, "fixed:60")], interval_ms=50)]
    assert [fields["totalSamplesReceived"] for fields in fixed[:3]] == [0, 3 * 960, 5 * 960]  # to the packet


def test_objects_refer_to_each_other() -> None:
    each = measured(captured([20.0 * i for i in range(100)]), "chrome", output=OutputDelay(30.0, "assumed"))
    line = list(stats_snapshots([each], interval_ms=500))[1]
    objects = {fields["type"]: fields for fields in line["stats"]}
    assert objects["inbound-rtp"]["id"] == "inbound-rtp-7"
    assert objects["codec"]["id"] == objects["inbound-rtp"]["codecId"]
    assert (objects["codec"]["mimeType"], objects["codec"]["payloadType"]) == ("audio/opus", 96)
    playout = objects["media-playout"]
    assert playout["id"] == objects["inbound-rtp"]["playoutId"]
    assert playout["totalSamplesCount"] == objects["inbound-rtp"]["totalSamplesReceived"] > 24_000
    assert playout["totalPlayoutDelay"] == pytest.approx(0.03 * playout["totalSamplesCount"])
    assert "synthesizedSamplesDuration" not in playout
    assert {fields["timestamp"] for fields in line["stats"]} == {(START_NS + 1000 * MS) / MS}
    assert json.loads(json.dumps(line, allow_nan=False)) == line


def test_streams_are_told_from_when_they_begin() -> None:
    early = measured(captured([20.0 * i for i in range(100)]), "none")
    late = measured(captured([1000.0 + 20 * i for i in range(100)], ssrc=9), "none")
    lines = list(stats_snapshots([early, late]))
    ssrcs = [{fields["ssrc"] for fields in line["stats"] if fields["type"] == "inbound-rtp"} for line in lines]
    assert ssrcs[3] == {7}
    assert ssrcs[4] == {7, 9}
    assert len({fields["id"] for fields in lines[-1]["stats"]}) == len(lines[-1]["stats"]) == 6


def test_times_that_are_of_no_wall_clock_have_no_timestamp() -> None:
    each = measured(captured([20.0 * i for i in range(50)], start_ns=0), "none")
    assert all("timestamp" not in fields for line in stats_snapshots([each]) for fields in line["stats"])
    shifted = next(stats_snapshots([each], wall_shift_ns=START_NS))
    assert shifted["t_ns"] == 200 * MS
    assert inbound_in(shifted)["timestamp"] == (START_NS + 200 * MS) / MS
    assert inbound_in(shifted)["lastPacketReceivedTimestamp"] == (START_NS + 200 * MS) / MS


def test_what_was_not_played_has_packets_alone() -> None:
    stream = captured([20.0 * i for i in range(50)])
    each = measured(replace(stream, cut_packets=50, unsized_packets=50), "chrome")
    line = list(stats_snapshots([each]))[-1]
    assert {fields["type"] for fields in line["stats"]} == {"inbound-rtp", "codec"}
    assert inbound_in(line)["packetsReceived"] == 50
    assert not {"jitterBufferDelay", "bytesReceived", "headerBytesReceived", "playoutId"} & inbound_in(line).keys()


@pytest.mark.parametrize("policy", ["chrome", "none"])
def test_hours_without_a_packet_are_not_written_out(policy: str) -> None:
    pause_ms = 20 * 3_600_000.0
    each = measured(captured([20.0 * i + (i >= 50) * pause_ms for i in range(100)]), policy)
    lines = list(stats_snapshots([each]))
    assert len(lines) < 300
    times = [line["t_ns"] for line in lines]
    assert times == sorted(set(times))
    assert all((t - START_NS) % (200 * MS) == 0 for t in times)
    counts = {t: inbound_in(line)["packetsReceived"] for t, line in zip(times, lines, strict=True)}
    again_ns = START_NS + round(pause_ms + 1000) * MS  # the first packet after the pause
    assert max(count for t, count in counts.items() if t < again_ns) == 50
    assert min(t for t, count in counts.items() if count > 50) - again_ns <= 200 * MS


def test_too_short_an_interval_is_refused() -> None:
    with pytest.raises(UsageError, match="5 ms"):
        next(stats_snapshots([], interval_ms=5))


@pytest.mark.parametrize("name", sorted(path.stem for path in GOLDEN.glob("*.pcap")))
def test_a_browser_said_the_same_at_the_same_time(name: str) -> None:
    (stream,) = find_streams(read_capture(GOLDEN / f"{name}.pcap").datagrams)
    each = measured(stream, "chrome")
    polls = [p for p in json.loads((GOLDEN / f"{name}.stats.json").read_text()) if p["type"] == "inbound-rtp"]
    ours = {line["t_ns"] / MS: inbound_in(line) for line in stats_snapshots([each])}
    jitter_s: list[float] = []
    for at_ms, said in ours.items():
        poll = min(polls, key=lambda p: abs(p["timestamp"] - at_ms))
        if at_ms > stream.packets[-1].time_ns / MS or abs(poll["timestamp"] - at_ms) > 110:
            continue
        # polls lie up to 110 ms from our moments, in which six packets come; 10 more may be in a burst or a stall
        assert abs(said["packetsReceived"] - poll["packetsReceived"]) <= 16
        assert abs(said["packetsLost"] - poll["packetsLost"]) <= 5
        if "totalSamplesReceived" not in said:
            assert at_ms < stream.packets[0].time_ns / MS + 210  # not known before the first 200 ms are over
            continue
        assert abs(said["totalSamplesReceived"] - poll["totalSamplesReceived"]) <= 0.25 * 48_000
        jitter_s.append(abs(said["jitter"] - poll["jitter"]))
    assert len(jitter_s) > 150
    assert np.median(jitter_s) < 0.002  # in a burst it changes by more between a poll and our moment
    last = [p for p in polls if p["timestamp"] <= stream.packets[-1].time_ns / MS][-1]
    final = ours[min(ours, key=lambda t: abs(t - last["timestamp"]))]
    # a browser's level meter looks at every eleventh 10 ms, which eleventh is chance: ±2.5 % on this speech, and 0.2 s
    assert final["totalAudioEnergy"] == pytest.approx(last["totalAudioEnergy"], rel=0.05)
    assert set(final) >= set(last) - {"fecPacketsReceived"}
