"""Packets, and each impairment doing to them what its name says."""

from __future__ import annotations

from collections import Counter
from itertools import groupby, pairwise
from typing import Any

import numpy as np
import pylibsrtp
import pytest

from analysis.codecs import CODECS
from analysis.rtp import serialize_rtp, signed_difference
from analysis.units import NS_PER_MS, NS_PER_S
from probe.agent.config import AgentConfig
from probe.agent.draws import Draws, Purpose
from probe.agent.stream import AgentStream, ReplayWindow, SentPacket, first_ssrc

OPUS = CODECS["opus"]
ORIGIN_NS = 5 * NS_PER_S
FRAME_NS = 20 * NS_PER_MS
SILENCE = bytes([15 << 3 | 4]) + bytes(20)


def _config(**impairment: Any) -> AgentConfig:
    return AgentConfig(impairment=impairment)


def _stream(config: AgentConfig, call: int = 0) -> AgentStream:
    return AgentStream(config, call, OPUS, ptime_ms=20, payload_type=96, origin_ns=ORIGIN_NS)


def _packets(n: int, **impairment: Any) -> list[SentPacket]:
    stream = _stream(_config(**impairment))
    return [stream.emit(SILENCE) for _ in range(n)]


def test_draws_stand_alone() -> None:
    forwards = [Draws(1, 2).unit(Purpose.LOSS, i) for i in range(400)]
    draws = Draws(1, 2)
    backwards = [draws.unit(Purpose.LOSS, i) for i in reversed(range(400))]
    assert forwards == backwards[::-1]
    assert len(set(forwards)) == 400
    assert forwards[:5] != [Draws(1, 3).unit(Purpose.LOSS, i) for i in range(5)]
    assert forwards[:5] != [Draws(1, 2).unit(Purpose.BURST, i) for i in range(5)]
    # 400 uniform numbers: the mean's standard error is 0.014
    assert np.mean(forwards) == pytest.approx(0.5, abs=0.06)


def test_unimpaired_packets_leave_every_20_ms_in_sequence() -> None:
    packets = _packets(100)
    assert [p.nominal_ns for p in packets] == [ORIGIN_NS + i * FRAME_NS for i in range(100)]
    assert all(p.send_ns == p.nominal_ns and not p.lost and p.copies == 1 for p in packets)
    assert all((b.sequence_number - a.sequence_number) & 0xFFFF == 1 for a, b in pairwise(packets))
    assert all((b.timestamp - a.timestamp) & 0xFFFFFFFF == 960 for a, b in pairwise(packets))
    assert {p.ssrc for p in packets} == {first_ssrc(_config(), 0)}


def test_timestamps_go_on_over_a_pause_and_never_back() -> None:
    stream = _stream(_config())
    before = [stream.emit(SILENCE) for _ in range(10)]
    stream.begin(ORIGIN_NS + 1_234_567_890)
    after = stream.emit(SILENCE)
    assert after.nominal_ns == ORIGIN_NS + 1_234_567_890
    ticks = (after.timestamp - before[0].timestamp) & 0xFFFFFFFF
    assert ticks == round(1.23456789 * 48000)
    # a talkspurt that would begin before the last one has ended follows it at once
    stream.begin(ORIGIN_NS)
    assert stream.emit(SILENCE).timestamp == (after.timestamp + 960) & 0xFFFFFFFF


def test_random_loss_has_its_rate() -> None:
    lost = [p.lost for p in _packets(20_000, loss={"random": 0.02})]
    # binomial, n = 20,000: standard deviation 0.1 %; four of them
    assert np.mean(lost) == pytest.approx(0.02, abs=0.004)


def test_bursts_have_their_lengths() -> None:
    lost = [p.lost for p in _packets(20_000, loss={"bursts": {"probability": 0.005, "length": [3, 6]}})]
    runs = [len(list(group)) for is_lost, group in groupby(lost) if is_lost]
    counted = Counter(runs)
    # two bursts may touch, which makes a longer run; a shorter one cannot be
    assert min(runs) >= 3
    assert sum(n for length, n in counted.items() if length <= 6) >= 0.95 * len(runs)
    assert set(counted) >= {3, 4, 5, 6}


def test_gilbert_elliott_has_its_rate_and_mean_burst() -> None:
    lost = [p.lost for p in _packets(40_000, loss={"gilbert_elliott": {"p": 0.02, "r": 0.25}})]
    runs = [len(list(group)) for is_lost, group in groupby(lost) if is_lost]
    # stationary p / (p + r); mean burst 1 / r; some 700 bursts, so 4 % and 5 % standard error
    assert np.mean(lost) == pytest.approx(0.02 / 0.27, rel=0.2)
    assert np.mean(runs) == pytest.approx(4.0, rel=0.2)


@pytest.mark.parametrize("in_order", [True, False])
def test_uniform_delay_in_order_and_not(in_order: bool) -> None:
    packets = _packets(5_000, delay={"uniform": {"low_ms": 5, "high_ms": 45}}, in_order=in_order)
    waits_ms = np.array([p.send_ns - p.nominal_ns for p in packets]) / NS_PER_MS
    assert waits_ms.min() >= 5
    assert waits_ms.max() <= 45
    assert waits_ms.max() > 44
    overtaken = sum(b.send_ns < a.send_ns for a, b in pairwise(packets))
    # two uniform delays differ by more than a frame in (1 − 1/2)²/2 = 1/8 of the pairs
    assert overtaken == 0 if in_order else 0.1 < overtaken / len(packets) < 0.15


def test_normal_delay_has_its_mean_and_is_never_negative() -> None:
    packets = _packets(5_000, delay={"normal": {"mean_ms": 30, "sd_ms": 5}}, in_order=False)
    waits_ms = np.array([p.send_ns - p.nominal_ns for p in packets]) / NS_PER_MS
    assert waits_ms.mean() == pytest.approx(30, abs=0.3)  # four standard errors
    assert waits_ms.std() == pytest.approx(5, abs=0.3)
    wide = _packets(1_000, delay={"normal": {"mean_ms": 1, "sd_ms": 20}}, in_order=False)
    assert min(p.send_ns - p.nominal_ns for p in wide) == 0


def test_trace_is_played_over_and_over() -> None:
    packets = _packets(7, delay={"trace": {"ms": [0, 10, 5]}}, in_order=False)
    assert [(p.send_ns - p.nominal_ns) / NS_PER_MS for p in packets] == [0, 10, 5, 0, 10, 5, 0]


def test_spikes_come_once_in_each_period() -> None:
    packets = _packets(1_000, delay={"spikes": {"every_s": 1, "low_ms": 80, "high_ms": 120}}, in_order=False)
    late = [p.count for p in packets if p.send_ns > p.nominal_ns]
    assert [count // 50 for count in late] == list(range(20))
    assert all(80 <= (packets[k].send_ns - packets[k].nominal_ns) / NS_PER_MS <= 120 for k in late)
    assert len({count % 50 for count in late}) > 10


def test_a_late_packet_holds_up_those_behind_it_when_in_order() -> None:
    packets = _packets(50, delay={"spikes": {"every_s": 1, "low_ms": 100, "high_ms": 100}})
    late = [p.count for p in packets if p.send_ns > p.nominal_ns]
    assert late == list(range(late[0], late[0] + 5))
    assert len({packets[k].send_ns for k in late}) == 1


def test_stall_then_burst() -> None:
    packets = _packets(100, stall={"at_s": 0.5, "ms": 300})
    begin_ns, end_ns = ORIGIN_NS + 500 * NS_PER_MS, ORIGIN_NS + 800 * NS_PER_MS
    assert not [p for p in packets if begin_ns <= p.send_ns < end_ns]
    assert [p.count for p in packets if p.send_ns == end_ns] == list(range(25, 41))
    assert packets[41].send_ns == packets[41].nominal_ns


def test_duplicates_have_their_rate() -> None:
    copies = [p.copies for p in _packets(20_000, duplicate=0.05)]
    assert set(copies) == {1, 2}
    assert copies.count(2) / len(copies) == pytest.approx(0.05, abs=0.007)


def test_wraps_begin_where_they_are_told() -> None:
    packets = _packets(100, initial_sequence=65_500, initial_timestamp=2**32 - 48_000)
    assert (packets[0].sequence_number, packets[0].timestamp) == (65_500, 2**32 - 48_000)
    assert (packets[36].sequence_number, packets[50].timestamp) == (0, 0)
    assert all(signed_difference(b.sequence_number, a.sequence_number, 16) == 1 for a, b in pairwise(packets))
    assert all(signed_difference(b.timestamp, a.timestamp, 32) == 960 for a, b in pairwise(packets))


def test_restart_steps_the_sequence_number_back_and_keeps_the_rest() -> None:
    packets = _packets(200, restart_at=120, restart_back=50)
    steps = [signed_difference(b.sequence_number, a.sequence_number, 16) for a, b in pairwise(packets)]
    assert steps[119] == 1 - 50
    assert set(steps[:119] + steps[120:]) == {1}
    assert len({p.ssrc for p in packets}) == 1
    assert all(signed_difference(b.timestamp, a.timestamp, 32) == 960 for a, b in pairwise(packets))


def test_ssrc_changes_where_it_is_told_with_new_numbers() -> None:
    packets = _packets(100, ssrc_change_at=[30, 70])
    assert [k for k, (a, b) in enumerate(pairwise(packets), 1) if a.ssrc != b.ssrc] == [30, 70]
    assert len({p.ssrc for p in packets}) == 3
    assert signed_difference(packets[30].sequence_number, packets[29].sequence_number, 16) != 1
    assert packets[30].nominal_ns - packets[29].nominal_ns == FRAME_NS


@pytest.mark.parametrize("ppm", [300.0, -300.0])
def test_drift_is_the_slope_of_the_timestamps(ppm: float) -> None:
    stream = _stream(_config(drift_ppm=ppm))
    packets = [stream.emit(SILENCE) for _ in range(5_000)]
    stream.begin(packets[-1].nominal_ns + 7 * NS_PER_S)
    packets += [stream.emit(SILENCE) for _ in range(5_000)]
    ticks = np.array([(p.timestamp - packets[0].timestamp) & 0xFFFFFFFF for p in packets])
    times_s = np.array([p.nominal_ns - ORIGIN_NS for p in packets]) / NS_PER_S
    slope = np.polyfit(times_s, ticks / 48_000, 1)[0]
    # one tick of rounding over 207 s
    assert (slope - 1) * 1e6 == pytest.approx(ppm, abs=0.2)


def test_seed_and_call_fix_everything() -> None:
    impairment: dict[str, Any] = {
        "loss": {"random": 0.1, "bursts": {"probability": 0.01, "length": [1, 4]}},
        "delay": {"normal": {"mean_ms": 10, "sd_ms": 5}},
        "duplicate": 0.1,
    }
    assert _packets(500, **impairment) == _packets(500, **impairment)
    assert first_ssrc(AgentConfig(seed=1), 0) != first_ssrc(AgentConfig(seed=2), 0)
    assert first_ssrc(AgentConfig(), 0) != first_ssrc(AgentConfig(), 1)


def test_replay_window_is_that_of_srtp() -> None:
    """The same packets, in a shuffled order with repeats and a restart, through a real SRTP receiver."""
    key = bytes(range(30))
    outgoing = pylibsrtp.Policy(key=key, ssrc_type=pylibsrtp.Policy.SSRC_ANY_OUTBOUND)
    incoming = pylibsrtp.Policy(key=key, ssrc_type=pylibsrtp.Policy.SSRC_ANY_INBOUND)
    for policy in (outgoing, incoming):
        policy.allow_repeat_tx, policy.window_size = True, 1024
    sender, receiver = pylibsrtp.Session(outgoing), pylibsrtp.Session(incoming)
    packets = _packets(3_000, initial_sequence=65_000, restart_at=1_500, restart_back=200, ssrc_change_at=[2_500])
    protected = [sender.protect(serialize_rtp(p.rtp())) for p in packets]
    order = np.random.default_rng(3).permutation(3_000)
    order = np.argsort(np.arange(3_000) + 40 * (order / 3_000), kind="stable")  # as far as 40 places out of order
    order = np.concatenate((order[:2_000], order[1_900:2_000], order[:5], order[2_000:]))
    window = ReplayWindow()
    for k in order:
        try:
            receiver.unprotect(protected[k])
            arrived = True
        except pylibsrtp.Error:
            arrived = False
        assert window.accepts(packets[k]) == arrived, f"packet {k}"
