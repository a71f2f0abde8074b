"""Figures from recorded calls whose every number is known: planted packets in, planted latencies out."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from analysis.bundle import CallRecord, Event
from analysis.codecs import CODECS, encode
from analysis.derive import ASSUMED_OUTPUT, Output, derive
from analysis.errors import BundleError, UsageError
from analysis.result import Turn
from analysis.rtp import RtpPacket
from analysis.streams import Timed

# The call: 8 kHz G.711, so what is planted comes out to the sample (125 µs), and packets of 20 ms.
RATE_HZ = 8000
SIZE = 160
FRAME_NS = 20_000_000
ZERO_NS = 5_000_000_000_000
PAYLOAD_TYPE = 0
FIRST_FRAME, SPEECH_FRAMES = 50, 50  # an utterance of 1 s, 1 s into the call
END_SAMPLE = 48_000 - 961  # its last audible sample, at 48 kHz: the last of its frame 48
STOP_NS = ZERO_NS + FIRST_FRAME * FRAME_NS + END_SAMPLE * 1_000_000_000 // 48_000
SENT_LATE_NS = 300_000
SAMPLE_MS = 1000 / RATE_HZ


def tone(samples: int, level: float = 0.1) -> np.ndarray:
    return (level * np.sin(np.arange(samples) * 2 * np.pi * 500 / RATE_HZ + 1)).astype(np.float32)


def reply(silence: int, sound: int, tail: int = 800) -> tuple[bytes, ...]:
    """A talkspurt: so many samples of silence, of sound, of silence."""
    pcm = np.concatenate((np.zeros(silence), tone(sound), np.zeros(tail))).astype(np.float32)
    return encode(CODECS["pcmu"], pcm)


def arriving(
    payloads: Sequence[bytes], first_ns: int, *, timestamp: int = 1000, sequence: int = 100, ssrc: int = 7
) -> list[Timed]:
    """Packets of a talkspurt, each on its 20 ms."""
    return [
        Timed(first_ns + i * FRAME_NS, RtpPacket(PAYLOAD_TYPE, sequence + i, timestamp + i * SIZE, ssrc, payload))
        for i, payload in enumerate(payloads)
    ]


def record(
    received: Sequence[Timed], *, events: Sequence[Event] = (), ended: str | None = "done", **turn: Any
) -> CallRecord:
    """A call with one utterance, everything else silent, and these packets received."""
    sent = [
        Timed(
            ZERO_NS + (i + 1) * FRAME_NS + SENT_LATE_NS,
            RtpPacket(PAYLOAD_TYPE, i, (i * SIZE) & 0xFFFFFFFF, 9, bytes([0xFF]) * SIZE),
        )
        for i in range(700)
    ]
    described: list[Event] = [
        Event(ZERO_NS, "media_negotiated", {"payload_types": {"0": "pcmu"}, "send": {"codec": "pcmu"}}),
        Event(ZERO_NS, "media_started", {"deadline0_ns": ZERO_NS + FRAME_NS, "frame_ns": FRAME_NS}),
        Event(ZERO_NS, "sent_origin", {"ssrc": 9, "rtp_timestamp": 0}),
        Event(ZERO_NS + FIRST_FRAME * FRAME_NS, "turn_started", started()),
        *events,
    ]
    if ended is not None:
        described.append(Event(ZERO_NS + 13_000_000_000, "call_ended", {"reason": ended}))
    settings = {"index": 0, "language": "en", "timeout_s": 5.0, "flags": [], **turn}
    return CallRecord({"call": 0, "turns": [settings]}, tuple(described), tuple(received), tuple(sent))


def started() -> Mapping[str, Any]:
    return {
        "turn": 0,
        "due_ns": ZERO_NS + FIRST_FRAME * FRAME_NS,
        "first_frame": FIRST_FRAME,
        "first_deadline_ns": ZERO_NS + (FIRST_FRAME + 1) * FRAME_NS,
        "start_sample": 0,
        "end_sample": END_SAMPLE,
        "rate_hz": 48_000,
        "end_threshold_dbov": -60.0,
        "end_shift_ms": {"-10": 0.0, "+10": 0.0},
    }


def only_turn(call: CallRecord, *policies: str, output: Output | None = None) -> Turn:
    given = {} if output is None else {"output": output}
    (turn,) = derive([call], policies=policies or ("none",), **given).result.turns
    return turn


def test_a_planted_reply_is_timed_to_the_sample() -> None:
    arrival_ns = STOP_NS + 700_000_000
    silence = 3 * SIZE + 37
    turn = only_turn(record(arriving(reply(silence, 8000), arrival_ns)), "fixed:100", output=Output(25, 0, "given"))
    assert turn.outcome == "answered"
    assert turn.speech_stop_s == pytest.approx((STOP_NS - ZERO_NS) / 1e9, abs=2e-9)
    # the first audible sample lies in packet 3, which arrives 60 ms after the first
    assert turn.received_ms == pytest.approx(760.0, abs=1e-6)
    assert turn.stages_ms["leading_silence"] == pytest.approx(silence * SAMPLE_MS, abs=SAMPLE_MS)
    # the utterance's last sample is the last of frame 48, which was handed over 1/48 ms later, and left 0.3 ms late
    assert turn.stages_ms["packetization"] == pytest.approx(0.3 + 1 / 48, abs=1e-4)
    assert turn.stages_ms["remote_response"] == pytest.approx(700 - 0.3 - 1 / 48, abs=1e-4)
    assert turn.stages_ms["jitter_buffer"] == pytest.approx(100, abs=1e-6)
    assert turn.stages_ms["output"] == 25
    assert turn.latency_ms == pytest.approx(700 + silence * SAMPLE_MS + 125, abs=SAMPLE_MS)
    assert sum(turn.stages_ms.values()) == pytest.approx(turn.latency_ms, abs=1e-6)
    assert turn.uncertainty_ms == pytest.approx(math.hypot(*turn.uncertainty_parts_ms.values()))


def test_under_none_the_network_is_in_the_jitter_buffer_and_there_is_no_output() -> None:
    packets = arriving(reply(2 * SIZE, 8000), STOP_NS + 500_000_000)
    late = [Timed(p.time_ns + (30_000_000 if i == 2 else 0), p.packet) for i, p in enumerate(packets)]
    turn = only_turn(record(sorted(late, key=lambda p: p.time_ns)))
    assert turn.received_ms == pytest.approx(570, abs=1e-6)
    assert turn.stages_ms["leading_silence"] == pytest.approx(40, abs=SAMPLE_MS)
    assert turn.stages_ms["jitter_buffer"] == pytest.approx(30, abs=SAMPLE_MS)
    assert "output" not in turn.stages_ms


def test_a_packet_that_comes_too_late_to_be_played_moves_the_sound_to_the_next() -> None:
    packets = arriving(reply(2 * SIZE, 8000), STOP_NS + 500_000_000)
    held = [Timed(p.time_ns + (80_000_000 if i == 2 else 0), p.packet) for i, p in enumerate(packets)]
    call = record(sorted(held, key=lambda p: p.time_ns))
    turn = only_turn(call, "fixed:40")
    assert turn.received_ms == pytest.approx(620, abs=1e-6)  # packets prove no less
    # packet 2 was due at 500 + 40 + 40 and is not played; packet 3 is, 20 ms later
    assert turn.latency_ms == pytest.approx(500 + 40 + 60 + ASSUMED_OUTPUT.ms, abs=SAMPLE_MS)
    assert turn.stages_ms["leading_silence"] == pytest.approx(40, abs=SAMPLE_MS)
    assert turn.stages_ms["jitter_buffer"] == pytest.approx(60, abs=SAMPLE_MS)


def test_a_lost_onset_is_never_audible_and_widens_the_uncertainty() -> None:
    packets = arriving(reply(2 * SIZE, 8000), STOP_NS + 500_000_000)
    whole, without = only_turn(record(packets)), only_turn(record([p for i, p in enumerate(packets) if i != 2]))
    assert without.received_ms == pytest.approx(560, abs=1e-6)
    assert whole.received_ms == pytest.approx(540, abs=1e-6)
    assert without.uncertainty_parts_ms["onset"] > whole.uncertainty_parts_ms["onset"]
    assert without.network["lost"] == 1


def test_a_stream_that_never_pauses_has_no_leading_silence() -> None:
    pcm = np.concatenate((np.zeros(RATE_HZ * 3), tone(8000), np.zeros(1600))).astype(np.float32)
    begin_ns = STOP_NS + 500_000_000 - 3_000_000_000
    turn = only_turn(record(arriving(encode(CODECS["pcmu"], pcm), begin_ns)), "fixed:60")
    assert turn.outcome == "answered"
    assert "never_pauses" in turn.flags
    assert "leading_silence" not in turn.stages_ms
    assert turn.stages_ms["remote_response"] == pytest.approx(500 - 0.3 - 1 / 48, abs=SAMPLE_MS)
    assert sum(turn.stages_ms.values()) == pytest.approx(turn.latency_ms, abs=1e-6)


def test_a_reply_before_the_words_are_out_is_premature_and_signed() -> None:
    turn = only_turn(record(arriving(reply(0, 8000), STOP_NS - 300_000_000)))
    assert turn.outcome == "premature"
    assert turn.latency_ms == pytest.approx(-300, abs=SAMPLE_MS)
    assert turn.stages_ms == {}


def test_nothing_until_the_timeout_is_no_reply_and_never_a_number() -> None:
    turn = only_turn(record([]))
    assert turn.outcome == "no_reply"
    assert turn.latency_ms is None
    assert turn.received_ms is None
    assert turn.stages_ms == {}


def test_a_record_that_ends_before_the_timeout_says_so() -> None:
    short = [Event(STOP_NS + 1_000_000_000, "loop_lag", {"lag_ns": 0})]
    call = record([], events=short, ended=None)
    cut = CallRecord(call.manifest, call.events, call.received, call.sent[:150])
    turn = only_turn(cut)
    assert (turn.outcome, turn.reason) == ("not_measurable", "recording_ended")


@pytest.mark.parametrize(
    ("event", "outcome", "fault"),
    [
        (Event(STOP_NS + 10**8, "media_lost", {"fault": "agent", "message": "gone"}), "media_lost", "agent"),
        (Event(STOP_NS + 10**8, "recording_failed", {"reason": "disk_full"}), "not_measurable", None),
    ],
)
def test_what_ends_a_call_names_its_turn(event: Event, outcome: str, fault: str | None) -> None:
    turn = only_turn(record([], events=[event]))
    assert (turn.outcome, turn.fault) == (outcome, fault)


def test_wait_in_this_process_is_an_uncertainty_only_where_the_kernel_did_not_stamp() -> None:
    packets = arriving(reply(0, 8000), STOP_NS + 500_000_000)
    for by_kernel, part in ((True, None), (False, 3.0)):
        lag = Event(packets[0].time_ns, "loop_lag", {"lag_ns": 3_000_000, "by_kernel": by_kernel})
        turn = only_turn(record(packets, events=[lag]))
        assert "probe_late" in turn.flags
        assert turn.uncertainty_parts_ms.get("probe_lag") == part


def test_variants_are_the_same_packets_under_other_policies() -> None:
    packets = arriving(reply(SIZE, 8000), STOP_NS + 500_000_000)
    turn = only_turn(record(packets), "fixed:100", "fixed:500", "none")
    assert turn.latency_ms is not None
    assert turn.variants_ms["fixed:500"] == pytest.approx(turn.latency_ms + 400, abs=1e-6)
    assert turn.variants_ms["none"] == pytest.approx(turn.latency_ms - 100 - ASSUMED_OUTPUT.ms, abs=1e-6)


def test_a_call_given_twice_counts_once_and_calls_of_two_runs_are_not_mixed_up() -> None:
    first = record(arriving(reply(0, 8000), STOP_NS + 500_000_000))
    first = replace(first, manifest={**first.manifest, "clock": {"monotonic_ns": 1, "wall_ns": 2}})
    other = replace(first, manifest={**first.manifest, "clock": {"monotonic_ns": 3, "wall_ns": 4}})
    derived = derive([first, first, other], policies=("none",))
    assert [turn.call for turn in derived.result.turns] == [0, 1]
    assert derived.result.source.calls == 2
    assert any("given twice" in warning for warning in derived.warnings)


def test_a_planned_call_without_a_record_is_scheduled_all_the_same() -> None:
    whole = record(arriving(reply(0, 8000), STOP_NS + 500_000_000))
    missing = CallRecord({**whole.manifest, "call": 1}, (Event(0, "recording_missing"),), (), ())
    result = derive([whole, missing], policies=("none",)).result
    assert [(t.outcome, t.reason) for t in result.turns] == [
        ("answered", None),
        ("not_measurable", "recording_missing"),
    ]
    assert result.summary["scheduled"] == 2


@pytest.mark.parametrize(
    "damage",
    [
        {"timeout_s": 10**400},
        {"timeout_s": "5"},
        {"segment": True},
        {"segment": "x"},
        {"segment": {"a": []}},
        {"flags": [1]},
        {"index": -1},
        {"index": 10**400},
        {"language": 3},
    ],
)
def test_a_setting_of_a_wrong_kind_is_one_line(damage: dict[str, Any]) -> None:
    call = record([])
    turns = [{**call.manifest["turns"][0], **damage}]
    with pytest.raises(BundleError, match=next(iter(damage))):
        derive([replace(call, manifest={**call.manifest, "turns": turns})])


@pytest.mark.parametrize("number", [-1, 10**400, "0", 1.5, None])
def test_a_wrong_call_number_is_one_line(number: Any) -> None:
    call = record([])
    with pytest.raises(BundleError, match="call is not"):
        derive([replace(call, manifest={**call.manifest, "call": number})])


def test_a_deadline_far_from_its_event_is_damage_not_a_latency() -> None:
    call = record(arriving(reply(0, 8000), STOP_NS + 500_000_000))
    events = [
        replace(e, fields={**e.fields, "first_deadline_ns": 1}) if e.type == "turn_started" else e for e in call.events
    ]
    with pytest.raises(BundleError, match="damaged"):
        derive([replace(call, events=tuple(events))])


def test_damage_and_wrong_policies_are_one_line() -> None:
    call = record([])
    with pytest.raises(BundleError, match="damaged"):
        derive([CallRecord(call.manifest, (*call.events[:3], Event(0, "turn_started", {"turn": 0})), (), ())])
    with pytest.raises(BundleError, match="no turns"):
        derive([CallRecord({"call": 0}, call.events, (), ())])
    with pytest.raises(UsageError):
        derive([call], policies=("magic",))


@pytest.mark.parametrize(("paused", "least_ms", "most_ms"), [(False, 1380.0, 1500.0), (True, 0.0, 0.0)])
def test_an_outage_of_a_turn_is_concealed_and_a_pause_of_the_sender_is_not(
    paused: bool, least_ms: float, most_ms: float
) -> None:
    # 1.5 s of nothing in the caller's utterance: the packets of it come at its end, or there were none
    first, outage, n = 75, 75, 250
    kept = [i for i in range(n) if not (paused and first <= i < first + outage)]
    received = [
        Timed(
            ZERO_NS + (first + outage if first <= i < first + outage else i) * FRAME_NS,
            RtpPacket(PAYLOAD_TYPE, number, 1000 + i * SIZE, 7, reply(SIZE, 0, 0)[0]),
        )
        for number, i in enumerate(kept)
    ]
    (turn,) = derive([record(received)], policies=("chrome",), output=ASSUMED_OUTPUT).result.turns
    assert turn.network["lost"] == 0
    # the buffer held some packets when it began
    assert least_ms <= turn.network["concealed_ms"] <= most_ms
