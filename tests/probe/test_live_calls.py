"""Real calls to the demo agent's process over loopback: figures against its truth, and what each setting moves."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from analysis.bundle import read_call
from analysis.rtcp import ExtendedReport, parse_rtcp
from analysis.rtcp_statistics import call_rtcp_statistics
from probe.utterances import load_utterance, shipped
from tests.probe.conftest import QUICK, Run, Start, outcomes

# A packet takes 10–100 µs over loopback; the rest of the tolerance is for a machine that is busy with other tests, when
# the agent's own clock reading after `sendto` may come late.
TRUTH_MS = 3.0

FOUR_TURNS = 'spacing = 4.0\ntimeout = 3.0\n[[turns]]\nutterance = "en/2"\nrepeat = 4\n'
THINKS = "think_ms=300,300&leading_silence_ms=40,40"
PLAYOUT = ("--policy", "fixed:150,none", "--output-delay", "5")
PAUSED = """
spacing = 4.0
timeout = 3.0
greeting_timeout = 2.5
[[turns]]
utterance = "en/1"
pause_at_ms = 900
pause_ms = 200
segment = { region = "north" }
[[turns]]
utterance = "es/2"
interruption_ms = 400
[[turns]]
utterance = "en/2"
cold = true
expect_reply = false
"""


AT_ONCE = 4  # calls that connect at the same time: each is two processes that load, on a machine of a few cores


def _wait_until_connected(run: Run) -> None:
    """Until media flow, or the call has ended: what it came to is for the tests to say."""
    give_up = time.monotonic() + 30
    while time.monotonic() < give_up and run.process.poll() is None:
        if any('"media_started"' in events.read_text() for events in run.out.rglob("events.jsonl")):
            return
        time.sleep(0.05)


@pytest.fixture(scope="module")
def calls(start: Start) -> dict[str, Run]:
    """All of this module's calls, which go on at the same time."""
    quick = {codec: f'codec = "{codec}"\nstats_interval = 1.0\n{QUICK}' for codec in ("pcmu", "pcma", "g722")}
    wanted: dict[str, tuple[tuple[str, ...], str]] = {
        "opus": (("demo:",), QUICK),
        **{codec: (("demo:",), text) for codec, text in quick.items()},
        "ptime": (("demo:?ptime_ms=60",), f'ptime_ms = 40\nbackground = "dtx"\n{QUICK}'),
        "continuous": (("demo:?stream=continuous&comfort_noise_dbov=-55",), QUICK),
        "impaired": (
            (
                "demo:?impairment.delay.uniform.high_ms=40&impairment.in_order=false&impairment.loss.random=0.02"
                "&impairment.duplicate=0.1",
            ),
            QUICK,
        ),
        "300": ((f"demo:?endpoint_silence_ms=300&{THINKS}",), FOUR_TURNS),
        "700": ((f"demo:?endpoint_silence_ms=700&{THINKS}",), FOUR_TURNS),
        "turns": (("demo:?no_reply_turns=2",), PAUSED),
        "three": (("demo:", "--calls", "3", "--rate", "60", "--turns", "1", *PLAYOUT), QUICK),
    }
    made: dict[str, Run] = {}
    for name, (arguments, scenario) in wanted.items():
        for before in list(made.values())[: max(0, len(made) - AT_ONCE + 1)]:
            _wait_until_connected(before)
        made[name] = start("run", *arguments, scenario=scenario)
    return made


@pytest.mark.parametrize("name", ["opus", "pcmu", "pcma", "g722", "ptime", "continuous", "impaired"])
def test_received_agrees_with_the_agents_own_log(calls: dict[str, Run], name: str) -> None:
    result = calls[name].result()
    assert outcomes(result) == ["answered", "answered"]
    for turn in result["turns"]:
        assert turn["received_ms"] == pytest.approx(turn["truth"]["received_ms"], abs=TRUTH_MS)
        assert sum(turn["stages_ms"].values()) == pytest.approx(turn["latency_ms"], abs=0.01)
        if name == "continuous":
            assert "leading_silence" not in turn["stages_ms"]
            assert "never_pauses" in turn["flags"]
        else:
            assert turn["stages_ms"]["leading_silence"] == pytest.approx(turn["truth"]["leading_silence_ms"], abs=1.0)


def test_packetization_is_what_is_left_of_the_packet(calls: dict[str, Run]) -> None:
    # with look-ahead the last audible sample waits for at most a packet and 6.5 ms, and never leaves before it is said
    for name, most_ms in {"opus": 26.5, "pcmu": 20.0, "ptime": 46.5}.items():
        for turn in calls[name].result()["turns"]:
            # a process that lost the processor sends late: that is in the stage, and has to be said
            assert turn["stages_ms"]["packetization"] > 0
            assert turn["stages_ms"]["packetization"] < most_ms + TRUTH_MS or "probe_late" in turn["flags"]


def test_a_longer_endpointing_moves_the_median_by_as_much(calls: dict[str, Run]) -> None:
    medians = [statistics.median(t["received_ms"] for t in calls[n].result()["turns"]) for n in ("300", "700")]
    assert medians[1] - medians[0] == pytest.approx(400, abs=5)


def test_pause_interruption_silence_and_cold_call(calls: dict[str, Run]) -> None:
    result = calls["turns"].result()
    first, second, third = result["turns"]
    assert first["outcome"] == "answered"
    assert first["segment"] == {"region": "north"}
    assert second["language"] == "es"
    assert "interruption" in second["flags"]
    assert second["outcome"] in ("answered", "premature")
    # the agent needs 200 ms of being talked over; the rest is its packet, the buffer and the output
    assert 200 < second["yield_time_ms"] < 600
    assert third["call"] == 1
    assert {"cold", "no_reply_expected"} <= set(third["flags"])
    assert (calls["turns"].out / "call-001" / "packets.pcap").is_file()


def test_several_calls_have_a_bundle_each_and_one_result(calls: dict[str, Run]) -> None:
    run = calls["three"]
    result = run.result()
    assert result["source"]["calls"] == 3
    assert [turn["call"] for turn in result["turns"]] == [0, 1, 2]
    began = []
    for number in range(3):
        folder = run.out / f"call-{number:03d}"
        assert (folder / "manifest.json").is_file()
        events = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
        began.append(next(e["t_ns"] for e in events if e["type"] == "call_started"))
    # 60 calls a minute: one a second, whatever the calls before do
    assert [b - a for a, b in pairwise(began)] == pytest.approx([1e9, 1e9], abs=0.3e9)
    assert json.loads((run.out / "result.json").read_text()) == result


def test_a_session_is_worked_out_again_as_it_was_asked_for(calls: dict[str, Run]) -> None:
    run = calls["three"]
    result = run.result()
    assert result["boundaries"]["policy"] == "fixed:150"
    assert result["boundaries"]["output"] == {"ms": 5.0, "evidence": "given"}
    again = subprocess.run(
        [sys.executable, "-m", "probe", "analyze", run.out, "--json"], capture_output=True, check=True
    )
    assert json.loads(again.stdout) == result


def test_the_bundle_is_private_and_holds_what_the_design_says(calls: dict[str, Run]) -> None:
    run = calls["opus"]
    run.result()
    assert os.stat(run.out).st_mode & 0o777 == 0o700
    files = {str(p.relative_to(run.out)): p.stat().st_mode & 0o777 for p in run.out.rglob("*") if p.is_file()}
    recorded = {"manifest.json", "events.jsonl", "packets.pcap", "stats.jsonl"}
    assert set(files) == recorded | {"utterances/00.flac", "utterances/01.flac", "result.json", "report.html"}
    assert set(files.values()) == {0o600}
    said = load_utterance(run.out / "utterances" / "00.flac")
    assert (said.start_sample, said.end_sample) == (shipped("en/1").start_sample, shipped("en/1").end_sample)


def snapshots(run: Run) -> list[tuple[int, dict[str, dict[str, Any]]]]:
    """When each was taken (ns), and its objects by type."""
    run.result()
    lines = [json.loads(line) for line in (run.out / "stats.jsonl").read_text().splitlines()]
    return [(line["t_ns"], {entry["type"]: entry for entry in line["stats"]}) for line in lines]


def test_statistics_are_snapshots_of_what_packets_determine(calls: dict[str, Run]) -> None:
    taken = snapshots(calls["opus"])
    last = taken[-1][1]
    record = read_call(calls["opus"].out)
    inbound, outbound = last["inbound-rtp"], last["outbound-rtp"]
    # the agent says all that it has to say before it hangs up
    assert inbound["packetsReceived"] == len(record.received) > 100
    assert inbound["bytesReceived"] == sum(len(t.packet.payload) for t in record.received)
    assert inbound["headerBytesReceived"] == sum(t.packet.header_bytes for t in record.received)
    assert inbound["packetsLost"] == 0
    assert 0 <= inbound["jitter"] < 0.2  # of a busy machine
    sent = [t for t in record.sent if t.time_ns <= taken[-1][0]]
    assert outbound["packetsSent"] == len(sent) > 300
    assert outbound["bytesSent"] == sum(len(t.packet.payload) for t in sent)
    # loopback: well under 50 ms even on a busy machine, and never 0
    for type_ in ("remote-inbound-rtp", "remote-outbound-rtp"):
        assert 0 < last[type_]["roundTripTime"] < 0.05
        assert last[type_]["roundTripTimeMeasurements"] >= 5
        assert last[type_]["totalRoundTripTime"] >= last[type_]["roundTripTime"]
    assert 0 < last["candidate-pair"]["currentRoundTripTime"] < 0.05
    assert last["transport"]["dtlsState"] == "connected"
    assert last["transport"]["probeSrtpPacketsDiscarded"] == 0
    assert record.first("srtp_discarded") is None
    assert record.first("stun_round_trip") is not None
    # the agent's clock is this machine's, read some milliseconds of its slew apart: a packet was due before it arrived
    assert -5 < inbound["lastPacketReceivedTimestamp"] - inbound["captureTimestamp"] < 500


def test_what_srtp_throws_away_is_said_and_nowhere_else_counted(calls: dict[str, Run]) -> None:
    last = snapshots(calls["impaired"])[-1][1]
    record = read_call(calls["impaired"].out)
    discarded = record.first("srtp_discarded")
    assert discarded is not None
    # a tenth of the packets came twice
    assert 0 < last["transport"]["probeSrtpPacketsDiscarded"] <= discarded.fields["packets"]
    assert discarded.fields["packets"] < 0.3 * len(record.received)
    numbers = {t.packet.sequence_number for t in record.received}
    assert last["inbound-rtp"]["packetsReceived"] == len(numbers) == len(record.received)
    # what fell out at the very end left no gap to be seen
    assert 0 < last["inbound-rtp"]["packetsLost"] == max(numbers) - min(numbers) + 1 - len(numbers)


def test_every_reference_of_a_snapshot_is_in_it(calls: dict[str, Run]) -> None:
    for _, objects in snapshots(calls["pcmu"]):
        ids = {entry["id"] for entry in objects.values()}
        for entry in objects.values():
            for name in ("codecId", "transportId", "remoteId", "localId", "localCandidateId", "remoteCandidateId"):
                assert entry.get(name, entry["id"]) in ids, (name, entry)
    assert objects["codec"]["mimeType"] == "audio/PCMU"
    assert objects["codec"]["clockRate"] == 8000


@pytest.mark.parametrize(("name", "interval_s"), [("opus", 0.2), ("pcmu", 1.0)])
def test_snapshots_come_at_the_interval_that_was_asked_for(calls: dict[str, Run], name: str, interval_s: float) -> None:
    times = [time_ns / 1e9 for time_ns, _ in snapshots(calls[name])][:-1]  # the last is that of the end
    # a busy machine misses some, and does not make up for them
    asked = round((times[-1] - times[0]) / interval_s)
    assert 0.6 * asked < len(times) - 1 <= asked + 1
    assert statistics.median(b - a for a, b in pairwise(times)) == pytest.approx(interval_s, abs=0.02)


def test_a_recording_says_the_same_of_its_reports_as_was_said_during_the_call(calls: dict[str, Run]) -> None:
    record = read_call(calls["opus"].out)
    clock = record.manifest["clock"]
    _, last = snapshots(calls["opus"])[-1]
    # what had been read by then; a float of milliseconds since 1970 is good to 0.3 µs
    last_ms = max(last[type_]["timestamp"] for type_ in ("remote-inbound-rtp", "remote-outbound-rtp"))
    last_ns = last_ms * 1e6 - (clock["wall_ns"] - clock["monotonic_ns"]) + 1000
    by_then = tuple((t, data) for t, data in record.rtcp_received if t <= last_ns)
    found = call_rtcp_statistics(replace(record, rtcp_received=by_then))
    ours, theirs = last["outbound-rtp"]["ssrc"], last["inbound-rtp"]["ssrc"]
    for key, ssrc in (("remote_inbound_rtp", ours), ("remote_outbound_rtp", theirs)):
        live = last[key.replace("_", "-")]
        assert found[key][ssrc] == {name: live[name] for name in live if name not in ("codecId", "transportId")}
    assert found["capture_time"][theirs]["captureTimestamp"] == last["inbound-rtp"]["captureTimestamp"]
    # its reports are of one clock, exact to the tick: 21 µs over some ten seconds is 2 ppm
    slope = found["sender_clock"][theirs]["slope_ppm"]
    assert abs(slope["value"]) < 5
    assert slope["high"] - slope["low"] < 10


def test_tshark_reads_every_packet_and_the_extended_reports(
    calls: dict[str, Run], need: Callable[[str, str], str]
) -> None:
    calls["opus"].result()
    command = [need("tshark", "tshark"), "-r", str(calls["opus"].out / "packets.pcap")]
    command += ["--enable-heuristic", "rtp_udp", "--enable-heuristic", "rtcp_udp"]

    def lines(*more: str) -> list[str]:
        return subprocess.run([*command, *more], capture_output=True, text=True, check=True).stdout.splitlines()

    assert lines("-Y", "_ws.malformed || rtcp.length_check == 0") == []
    record = read_call(calls["opus"].out)
    assert len(lines("-Y", "rtcp")) == len(record.rtcp_received) + len(record.rtcp_sent)
    for direction, packets in (("0", record.rtcp_received), ("4", record.rtcp_sent)):
        extended = [p for _, data in packets for p in parse_rtcp(data) if isinstance(p, ExtendedReport)]
        blocks = lines("-Y", f"rtcp.pt == 207 && sll.pkttype == {direction}", "-T", "fields", "-e", "rtcp.xr.bt")
        # reference times (4) both ways, and from the second on answers (5) to them
        assert blocks == [",".join(["4"] + ["5"] * bool(p.delays)) for p in extended]
        assert sum(block == "4,5" for block in blocks) >= 5
        answers = lines("-Y", f"rtcp.xr.lrr && sll.pkttype == {direction}", "-T", "fields", "-e", "rtcp.xr.lrr")
        assert [int(lrr) for lrr in answers] == [d.lrr for p in extended for d in p.delays]


def test_the_report_is_one_file_with_every_figure(calls: dict[str, Run]) -> None:
    run = calls["opus"]
    run.result()
    page = Path(run.out / "report.html").read_text()
    assert page.count("<svg") >= 5
    assert 'src="http' not in page
    assert "speech_stop" in page
