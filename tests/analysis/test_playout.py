"""The policies `none` and `fixed`, the records, and what all policies share. All figures here are exact arithmetic."""

from __future__ import annotations

import numpy as np
import pytest

from analysis.errors import UsageError
from analysis.playout import Playout, Policy, parse_policy, play
from analysis.trace import PacketTrace, talkspurts

MS = 1_000_000
RATE_HZ = 48_000
FRAME = 960


def make_trace(
    sequence: list[int],
    arrival_ms: list[float],
    position: list[int] | None = None,
    *,
    rate_hz: int = RATE_HZ,
    frame: int = FRAME,
) -> PacketTrace:
    """Packets of one duration; position = sequence × frame unless given."""
    count = len(sequence)
    numbers = np.array(sequence, dtype=np.int64)
    return PacketTrace(
        rate_hz,
        numbers,
        numbers * frame if position is None else np.array(position, dtype=np.int64),
        np.full(count, frame, dtype=np.int64),
        np.array([round(a * MS) for a in arrival_ms], dtype=np.int64),
        np.full(count, 80, dtype=np.int64),
        np.zeros(count * frame, dtype=np.float32),
    )


def check_consistent(result: Playout) -> None:
    """What must hold under any policy."""
    assert np.all(np.diff(result.piece_position) >= 0)
    assert np.all(result.piece_samples > 0)
    played = int(result.piece_samples.sum())
    inbound = result.inbound
    assert played + inbound["removedSamplesForAcceleration"] <= inbound["jitterBufferEmittedCount"]
    assert inbound.get("silentConcealedSamples", 0) <= inbound["concealedSamples"]
    assert inbound["concealedSamples"] <= inbound["totalSamplesReceived"]
    assert all(b.time_ns > a.time_ns for a, b in zip(result.series, result.series[1:], strict=False))
    concealed_ms = sum(p.concealed_ms for p in result.series)
    assert concealed_ms == pytest.approx(inbound["concealedSamples"] * 1000 / result.rate_hz)


@pytest.mark.parametrize(
    ("text", "policy"),
    [
        ("none", Policy("none")),
        ("chrome", Policy("chrome")),
        ("fixed:0", Policy("fixed", 0.0)),
        ("fixed:150", Policy("fixed", 150.0)),
        ("fixed:62.5", Policy("fixed", 62.5)),
        ("fixed:5000", Policy("fixed", 5000.0)),
    ],
)
def test_policies_parse(text: str, policy: Policy) -> None:
    assert parse_policy(text) == policy


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("none", "none"),
        ("chrome", "chrome"),
        ("fixed:100", "fixed:100"),
        ("fixed:100.0", "fixed:100"),
        ("fixed:0100.50", "fixed:100.5"),
        ("fixed:0.0000001", "fixed:0.0000001"),
        ("fixed:4999.999999", "fixed:4999.999999"),
        ("fixed:000", "fixed:0"),
    ],
)
def test_a_policy_has_one_spelling_which_parses(text: str, name: str) -> None:
    policy = parse_policy(text)
    assert policy.name == name
    assert parse_policy(policy.name) == policy
    assert play(make_trace([], []), text).policy == play(make_trace([0], [0.0]), text).policy == name


def test_a_policy_of_any_length_is_refused_in_a_short_line() -> None:
    with pytest.raises(UsageError) as caught:
        parse_policy("fixed:" + "9" * 5000)
    assert len(caught.value.line()) < 200


@pytest.mark.parametrize(
    "text", ["", "fixed", "fixed:", "fixed:-1", "fixed:5001", "fixed:nan", "fixed:1e3", "Chrome", "none ", "fixed:٣"]
)
def test_other_policies_are_refused_in_one_line(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_policy(text)
    assert "\n" not in caught.value.line()
    assert "fixed:MS" in caught.value.line()
    with pytest.raises(UsageError):
        play(make_trace([], []), text)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rate_hz": 44_100}, "rate_hz"),
        ({"sequence": np.array([1, 1])}, "sequence"),
        ({"samples": np.array([960, 0])}, "samples"),
        ({"pcm": np.zeros(5, dtype=np.float32)}, "pcm"),
        ({"arrival_ns": np.array([1])}, "arrival_ns"),
    ],
)
def test_a_trace_that_contradicts_itself_is_refused(changes: dict[str, object], message: str) -> None:
    good = make_trace([0, 1], [0, 20])
    fields = {name: getattr(good, name) for name in PacketTrace.__slots__}
    with pytest.raises(ValueError, match=message):
        PacketTrace(**{**fields, **changes})


@pytest.mark.parametrize("policy", ["none", "fixed:40", "chrome"])
def test_the_counters_over_time_end_at_their_totals(policy: str) -> None:
    trace = make_trace([0, 1, 2, 4, 5, 6], [0.0, 20.0, 95.0, 100.0, 100.0, 120.0])
    result = play(trace, policy)
    for name, value in result.inbound_at(10**12).items():
        assert value == pytest.approx(result.inbound[name]), name
        assert type(value) is type(result.inbound[name]), name
    assert set(result.inbound_at(0)) == set(result.inbound)
    assert set(result.inbound_at(-1).values()) == {0}
    assert sum(p.packets_discarded for p in result.series) == result.inbound["packetsDiscarded"]


def test_counters_at_a_moment() -> None:
    result = play(make_trace([0, 1, 2, 4, 5], [0.0, 20.0, 95.0, 80.0, 100.0]), "fixed:40")
    at = result.inbound_at(60 * MS)
    # packet 2 was due at 80 ms and came at 95
    assert (at["jitterBufferEmittedCount"], at["concealedSamples"], at["packetsDiscarded"]) == (2 * FRAME, 0, 0)
    assert at["jitterBufferDelay"] == pytest.approx(2 * FRAME * 0.04)
    at = result.inbound_at(110 * MS)
    assert (at["jitterBufferEmittedCount"], at["concealedSamples"], at["packetsDiscarded"]) == (2 * FRAME, 2 * FRAME, 1)
    assert at["totalSamplesReceived"] == 4 * FRAME
    assert [p.packets_discarded for p in result.series] == [1]


@pytest.mark.parametrize("policy", ["none", "fixed:100", "chrome"])
def test_an_empty_trace_plays_nothing(policy: str) -> None:
    result = play(make_trace([], []), policy)
    assert len(result.piece_ns) == 0
    assert result.series == ()
    assert result.play_ns(0) is None
    assert not result.played_mask(0, 10).any()
    assert result.inbound["totalSamplesReceived"] == 0


def test_none_hears_each_packet_as_it_arrives() -> None:
    trace = make_trace([10, 11, 12], [100.0, 127.5, 140.0])
    result = play(trace, "none")
    check_consistent(result)
    assert result.play_ns(10 * FRAME) == 100 * MS
    assert result.play_ns(10 * FRAME + 480) == 110 * MS
    assert result.play_ns(11 * FRAME) == round(127.5 * MS)
    # the sample before the second packet's first still keeps its distance to its own packet
    assert result.play_ns(11 * FRAME - 1) == 100 * MS + (2 * 959 * 10**9 + RATE_HZ) // (2 * RATE_HZ)
    assert result.inbound["jitterBufferDelay"] == 0.0
    assert "jitterBufferTargetDelay" not in result.inbound
    assert result.series[0].target_delay_ms is None


def test_fixed_plays_the_first_packet_that_late_and_the_rest_at_their_distance() -> None:
    trace = make_trace([0, 1, 2], [1000.0, 1050.0, 1041.0])
    result = play(trace, "fixed:100")
    check_consistent(result)
    assert [result.play_ns(k * FRAME) for k in range(3)] == [1100 * MS, 1120 * MS, 1140 * MS]
    # 100, 70 and 99 ms of waiting for 960 samples each
    assert result.inbound["jitterBufferDelay"] == pytest.approx(0.269 * FRAME)
    assert result.inbound["jitterBufferTargetDelay"] == pytest.approx(0.1 * 3 * FRAME)
    assert result.inbound["jitterBufferEmittedCount"] == 3 * FRAME
    assert result.inbound["packetsDiscarded"] == 0


def test_two_fixed_delays_differ_by_exactly_their_difference() -> None:
    generator = np.random.default_rng(3)
    count = 500
    position = np.cumsum(np.where(np.arange(count) % 90 == 0, 30_000, FRAME)).tolist()
    arrival = (np.array(position) / 48 + generator.uniform(0, 60, count)).tolist()
    trace = make_trace(list(range(count)), arrival, position)
    early, late = play(trace, "fixed:100"), play(trace, "fixed:500")
    assert early.inbound["packetsDiscarded"] == 0
    samples = np.concatenate([np.arange(p, p + FRAME, 7) for p in position[:120]]).tolist()
    differences = {late.play_ns(s) - early.play_ns(s) for s in samples}  # type: ignore[operator]
    assert differences == {400 * MS}


def test_fixed_discards_what_comes_after_its_turn() -> None:
    # packet 2 is due at 100 + 40 = 140 ms; it comes 1 ns later, packet 3 exactly on time
    trace = make_trace([0, 1, 2, 3], [0.0, 20.0, 140.000001, 160.0])
    result = play(trace, "fixed:100")
    check_consistent(result)
    assert result.play_ns(2 * FRAME) is None
    assert result.play_ns(3 * FRAME) == 160 * MS
    assert result.inbound["packetsDiscarded"] == 1
    assert result.inbound["concealedSamples"] == FRAME
    assert result.inbound["concealmentEvents"] == 1
    assert result.inbound["totalSamplesReceived"] == 4 * FRAME
    mask = result.played_mask(FRAME, 3 * FRAME)
    assert mask.tolist() == [True] * FRAME + [False] * FRAME + [True] * FRAME


def test_lost_packets_are_concealed_and_do_not_begin_a_talkspurt() -> None:
    trace = make_trace([0, 1, 6, 7], [0.0, 20.0, 120.0, 140.0])  # 80 ms lost: more than the 60 ms of a pause
    assert talkspurts(trace.sequence, trace.position, trace.samples, trace.rate_hz).tolist() == [0, 0, 0, 0]
    for policy in ("none", "fixed:60"):
        result = play(trace, policy)
        check_consistent(result)
        assert result.inbound["concealedSamples"] == 4 * FRAME
        assert result.inbound["concealmentEvents"] == 1
        assert result.inbound["packetsDiscarded"] == 0


def test_a_pause_begins_a_talkspurt_with_a_delay_of_its_own() -> None:
    pause = 60 * 48
    position = [0, FRAME, 2 * FRAME + pause, 3 * FRAME + 2 * pause + 1]
    trace = make_trace([0, 1, 2, 3], [0.0, 20.0, 103.0, 181.0], position)
    assert talkspurts(trace.sequence, trace.position, trace.samples, trace.rate_hz).tolist() == [
        0,
        0,
        0,
        1,
    ]  # 60 ms is not a pause yet, 60 ms and a sample is one
    result = play(trace, "fixed:100")
    check_consistent(result)
    assert result.play_ns(position[2]) == 200 * MS
    assert result.play_ns(position[3]) == 281 * MS
    # the 60 ms that are not a pause count as missing sound, the longer one does not
    assert result.inbound["concealedSamples"] == pause


def test_the_anchor_is_the_packet_that_arrives_first() -> None:
    trace = make_trace([0, 1, 2], [35.0, 20.0, 40.0])
    result = play(trace, "fixed:50")
    assert result.play_ns(FRAME) == 70 * MS
    assert result.play_ns(0) == 50 * MS
    assert result.play_ns(2 * FRAME) == 90 * MS
    too_late = play(make_trace([0, 1, 2], [55.0, 20.0, 40.0]), "fixed:50")
    assert too_late.play_ns(0) is None
    assert too_late.inbound["concealedSamples"] == FRAME


def test_a_stream_that_never_pauses_keeps_its_first_delay() -> None:
    count = 5 * 60 * 50
    arrival = np.arange(count) * 20.0 + np.where(np.arange(count) > 4000, 30.0, 0.0)
    result = play(make_trace(list(range(count)), arrival.tolist()), "fixed:100")
    assert result.play_ns((count - 1) * FRAME) == ((count - 1) * 20 + 100) * MS
    assert result.series[-1].jitter_buffer_delay_ms == pytest.approx(70.0)
    assert len(result.series) == 5 * 60 * 5 + 1  # playing ends 80 ms after the fifth minute


@pytest.mark.parametrize(("rate_hz", "frame"), [(8000, 160), (16_000, 320)])
def test_other_rates(rate_hz: int, frame: int) -> None:
    result = play(make_trace([0, 1], [0.0, 20.0], rate_hz=rate_hz, frame=frame), "fixed:40")
    assert result.play_ns(frame + frame // 2) == 70 * MS


@pytest.mark.parametrize("policy", ["none", "fixed:40", "chrome"])
def test_a_jump_of_half_the_timestamp_range_costs_nothing(policy: str) -> None:
    jump = 1 << 31
    position = [0, FRAME, *(jump + k * FRAME for k in range(50))]
    arrival = [0.0, 20.0, *(40.0 + 20 * k for k in range(50))]
    result = play(make_trace(list(range(52)), arrival, position), policy)
    check_consistent(result)
    assert len(result.series) < 50
    assert result.inbound["concealedSamples"] < RATE_HZ
    assert result.play_ns(jump + 40 * FRAME) is not None


@pytest.mark.parametrize("policy", ["none", "fixed:40", "chrome"])
def test_a_year_without_packets_costs_nothing(policy: str) -> None:
    year_ms = 365 * 86_400_000
    position = [k * FRAME for k in range(100)]
    arrival = [20.0 * k + (year_ms if k >= 50 else 0) for k in range(100)]
    result = play(make_trace(list(range(100)), arrival, position), policy)
    check_consistent(result)
    assert len(result.series) < 200


def test_a_timeline_that_starts_again_is_a_talkspurt_of_its_own() -> None:
    position = [1 << 30, (1 << 30) + FRAME, 0, FRAME]
    result = play(make_trace([0, 1, 2, 3], [0.0, 20.0, 40.0, 60.0], position), "fixed:30")
    check_consistent(result)
    assert result.play_ns(0) == 70 * MS
    assert result.inbound["concealedSamples"] == 0


def test_masks_reach_past_what_was_played() -> None:
    result = play(make_trace([1], [0.0]), "none")
    assert result.played_mask(FRAME - 2, FRAME + 4).tolist() == [False, False, *[True] * FRAME, False, False]
    assert result.play_ns(FRAME - 1) is None
    assert result.play_ns(2 * FRAME) is None
