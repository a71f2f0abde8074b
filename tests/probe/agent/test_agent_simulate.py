"""Simulated calls: pure, complete, and with a truth that a receiver of the packets finds."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from analysis.audibility import LevelTrack, audible_runs
from analysis.bundle import CallRecord
from analysis.codecs import CODECS
from analysis.errors import UsageError
from analysis.rtp import signed_difference
from analysis.streams import build_streams, decode, spans
from analysis.units import NS_PER_MS, NS_PER_S
from probe.agent.caller import NETWORK_NS
from probe.agent.config import AgentConfig, agent_config_from_query
from probe.agent.plan import plan_reply
from probe.agent.simulate import simulate_call
from probe.agent.truth import Truth

TURNS = 4


def _call(turns: int = TURNS, call: int = 0, srtp: bool = False, **options: str) -> tuple[CallRecord, list[Truth]]:
    config = agent_config_from_query({key.replace("__", "."): value for key, value in options.items()})
    return simulate_call(config, call=call, turns=turns, utterance_s=1.0, spacing_s=4.5, srtp=srtp)


def _found(record: CallRecord) -> list[tuple[int, int]]:
    """What a receiver finds: arrival and RTP timestamp (to the sample, at the codec's clock) of each onset."""
    negotiated = record.first("media_negotiated")
    assert negotiated is not None
    types = {int(pt): CODECS[name] for pt, name in negotiated.fields["payload_types"].items()}
    found = []
    for stream in build_streams(record.received, types):
        for span in spans(stream, decode(stream)):
            track = LevelTrack(
                span.pcm,
                stream.codec.rate_hz,
                present=span.present,
                silent_before=span.silent_before,
                silent_after=span.silent_after,
            )
            for run in audible_runs(track):
                row = stream.packet_at(span.position + run.start)
                inside = span.position + run.start - int(stream.position[row])
                found.append((int(stream.arrival_ns[row]), int(stream.timestamp[row]) + stream.codec.ticks(inside)))
    return found


def test_same_seed_same_call_and_other_calls_change_nothing() -> None:
    options = {
        "impairment__loss__random": "0.05",
        "impairment__delay__uniform__high_ms": "30",
        "impairment__in_order": "no",
    }
    record, truths = _call(call=3, **options)
    _call(call=1, **options)
    again, truths_again = _call(call=3, **options)
    assert (record.received, record.sent, record.events) == (again.received, again.sent, again.events)
    assert truths == truths_again
    other, _ = _call(call=4, **options)
    assert other.received[0].packet.ssrc != record.received[0].packet.ssrc


def test_plans_do_not_depend_on_the_order_of_asking() -> None:
    config = AgentConfig(filler_probability=0.5, no_reply_probability=0.2, backchannel_probability=0.5)
    forwards = [plan_reply(config, 2, i) for i in range(50)]
    assert [plan_reply(config, 2, i) for i in reversed(range(50))] == forwards[::-1]
    assert sum(p.no_reply for p in forwards) == pytest.approx(10, abs=10)


def test_events_are_those_of_a_recorded_call() -> None:
    record, truths = _call()
    count = Counter(e.type for e in record.events)
    assert count["turn_started"] == count["turn_settled"] == TURNS
    assert count["agent_truth"] == len(truths) == TURNS + 1
    for name in ("media_negotiated", "media_started", "sent_origin", "greeting_ended", "call_ended"):
        assert count[name] == 1
    assert [e.time_ns for e in record.events] == sorted(e.time_ns for e in record.events)
    started, origin = record.first("media_started"), record.first("sent_origin")
    assert started is not None
    assert origin is not None
    deadline0_ns, frame_ns = started.fields["deadline0_ns"], started.fields["frame_ns"]
    assert frame_ns == 20 * NS_PER_MS
    assert origin.fields["rtp_timestamp"] == record.sent[0].packet.timestamp
    assert 0 < record.sent[0].time_ns - deadline0_ns < NS_PER_MS
    for turn, event in enumerate(record.of_type("turn_started")):
        fields = event.fields
        assert fields["turn"] == turn
        assert fields["first_deadline_ns"] == deadline0_ns + fields["first_frame"] * frame_ns
        assert 0 <= fields["first_deadline_ns"] - frame_ns - fields["due_ns"] < frame_ns
        assert {"utterance", "language", "end_sample", "end_shift_ms", "timeout_ns", "expect_reply"} <= fields.keys()
    dues = [e.fields["due_ns"] for e in record.of_type("turn_started")]
    assert {b - a for a, b in pairwise(dues)} == {int(4.5 * NS_PER_S)}
    assert [turn["index"] for turn in record.manifest["turns"]] == list(range(TURNS))
    assert {e.fields["why"] for e in record.of_type("turn_settled")} == {"reply"}


def test_replies_follow_the_caller_s_end_by_silence_think_time_and_network() -> None:
    record, truths = _call(think_ms="500")
    for event, truth in zip(record.of_type("turn_started"), truths[1:], strict=True):
        stop_ns = event.fields["first_deadline_ns"] - 20 * NS_PER_MS + event.fields["end_sample"] * NS_PER_S // 48_000
        assert truth.endpoint_ns is not None
        # the decoder's look-ahead, the hand-over and the network come before the agent can hear the end
        assert (truth.endpoint_ns - stop_ns) / NS_PER_MS == pytest.approx(300 + 6.5 + 0.21, abs=0.05)
        first = next(t for t in record.received if t.packet.sequence_number == truth.first_sequence_number)
        assert first.time_ns - truth.endpoint_ns == 500 * NS_PER_MS + NETWORK_NS


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"codec": "pcmu", "ptime_ms": "40"},
        {"codec": "g722"},
        {"impairment__loss__random": "0.05"},
        {"impairment__delay__uniform__high_ms": "40", "impairment__in_order": "no"},
        {"impairment__delay__uniform__high_ms": "40"},
        {"reply_level_dbov": "-35"},
        {"filler_probability": "1", "impairment__dtx": "yes"},
        {"impairment__drift_ppm": "300"},
        {"impairment__ssrc_change_at__in_reply": "1"},
        {"impairment__restart_at": "100"},
        {"impairment__restart_at": "100", "srtp": True},
        {"impairment__duplicate": "0.2"},
        {"impairment__initial_sequence": "65500", "impairment__initial_timestamp": str(2**32 - 48_000)},
        {"stream": "continuous"},
        {"stream": "continuous", "impairment__loss__random": "0.05"},
        {"impairment__stall__at_s": "8", "impairment__stall__ms": "600"},
    ],
    ids=lambda options: " ".join(f"{k.rpartition('__')[2]}={v}" for k, v in options.items()) or "clean",
)
def test_a_receiver_of_the_packets_finds_the_truth(options: dict[str, Any]) -> None:
    record, truths = _call(**options)
    found = _found(record)
    negotiated = record.first("media_negotiated")
    assert negotiated is not None
    lossy = "impairment__loss__random" in options
    delivered = [t for t in truths if t.left_ns is not None]
    assert len(delivered) == TURNS + 1
    for truth in delivered:
        assert truth.left_ns is not None
        assert truth.rtp_timestamp is not None
        assert truth.sample is not None
        arrival_ns = truth.left_ns + NETWORK_NS
        nearest = min(found, key=lambda f: abs(f[0] - arrival_ns))
        assert nearest[0] == arrival_ns
        codec = CODECS[next(iter(negotiated.fields["payload_types"].values()))]
        ticks = truth.rtp_timestamp + codec.ticks(truth.sample)
        # a decoder that has just concealed a loss needs some packets to agree with one that has not
        assert abs(signed_difference(nearest[1] & 0xFFFFFFFF, ticks & 0xFFFFFFFF, 32)) <= (480 if lossy else 0)


def test_a_lost_onset_packet_is_never_the_truth() -> None:
    record, truths = _call(turns=8, impairment__loss__random="0.3")
    arrived = {(t.packet.ssrc, t.packet.sequence_number) for t in record.received}
    for truth in truths:
        if truth.left_ns is not None:
            assert (truth.ssrc, truth.sequence_number) in arrived
            assert truth.first_sequence_number is None or (truth.ssrc, truth.first_sequence_number) in arrived


def test_dtx_leaves_gaps_of_more_than_60_ms_with_the_sequence_going_on() -> None:
    record, _ = _call(impairment__dtx="yes", filler_probability="1", filler_gap_ms="700", leading_silence_ms="400")
    sent = [t.packet for t in record.received]
    inside = []
    for a, b in pairwise(sent):
        assert signed_difference(b.sequence_number, a.sequence_number, 16) == 1
        pause_ms = (signed_difference(b.timestamp, a.timestamp, 32) - 960) / 48
        if 60 < pause_ms < 1_000:
            inside.append(pause_ms)
    # in every reply, one in the leading silence and two (with a refresh between) in the filler's gap
    assert len(inside) == 3 * TURNS
    assert max(inside) <= 400


def test_duplicates_arrive_twice_without_srtp_and_once_with_it() -> None:
    plain, _ = _call(impairment__duplicate="0.5")
    secured, _ = _call(impairment__duplicate="0.5", srtp=True)
    numbers = Counter(t.packet.sequence_number for t in plain.received)
    assert set(numbers.values()) == {1, 2}
    assert sorted(numbers) == sorted(t.packet.sequence_number for t in secured.received)


def test_no_replies_cut_ins_and_backchannels_are_named_in_the_right_turn() -> None:
    record, truths = _call(turns=6, no_reply_turns="1", cut_in_turns="3", cut_in_after_ms="400")
    kinds = {t.reply: t.kind for t in truths}
    assert kinds == {-1: "greeting", 0: "reply", 1: "no_reply", 2: "reply", 3: "cut_in", 4: "reply", 5: "reply"}
    starts = [e.fields["first_deadline_ns"] - 20 * NS_PER_MS for e in record.of_type("turn_started")]
    for truth in truths[1:]:
        assert truth.heard_start_ns is not None
        assert 0 <= truth.heard_start_ns - starts[truth.reply] <= 30 * NS_PER_MS
    assert [e.fields["why"] for e in record.of_type("turn_settled")][1] == "timeout"
    cut_in = next(t for t in truths if t.kind == "cut_in")
    assert cut_in.left_ns is not None
    assert (cut_in.left_ns - starts[3]) / NS_PER_MS == pytest.approx(420, abs=40)


def test_leading_silence_moves_the_reply_by_its_length_and_nothing_else() -> None:
    (_, short), (_, long) = _call(leading_silence_ms="50"), _call(leading_silence_ms="350")
    for a, b in zip(short[1:], long[1:], strict=True):
        assert a.leading_silence_ms is not None
        assert b.leading_silence_ms is not None
        # 300 ms are whole frames, and the encoder has settled on silence before
        assert b.leading_silence_ms - a.leading_silence_ms == pytest.approx(300)
        assert a.endpoint_ns == b.endpoint_ns


def test_an_agent_that_dies_leaves_a_record_up_to_then() -> None:
    record, truths = _call(die_in_reply="1")
    lost = record.first("media_lost")
    assert lost is not None
    assert lost.fields["fault"] == "agent"
    assert [t.reply for t in truths] == [-1, 0, 1]
    assert not [t for t in record.received if t.time_ns > lost.time_ns + NETWORK_NS]


def test_what_only_a_process_can_do_is_refused() -> None:
    with pytest.raises(UsageError, match="ignores_ice"):
        simulate_call(AgentConfig(ignores_ice=True))


def test_levels_of_what_is_sent_lie_where_they_are_told() -> None:
    record, _ = _call(stream="continuous", comfort_noise_dbov="-50", codec="pcmu", greeting="no", turns=1)
    stream = build_streams(record.received, {0: CODECS["pcmu"]})[0]
    quiet = decode(stream).pcm[:32_000].astype(np.float64)
    assert 20 * np.log10(np.sqrt(np.mean(quiet**2))) == pytest.approx(-50, abs=0.5)
