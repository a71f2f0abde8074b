"""The network of a call: planted transit, jitter, losses and round trips come out as they went in."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from analysis.bundle import Event
from analysis.codecs import CODECS
from analysis.network import RoundTrip, arrivals, round_trips, stun_round_trips
from analysis.reception import Reception
from analysis.rtcp import (
    DelaySinceReference,
    ExtendedReport,
    ReportBlock,
    SenderInfo,
    compound,
    serialize_extended_report,
    serialize_receiver_report,
)
from analysis.rtp import RtpPacket
from analysis.streams import Stream, Timed, build_streams

OPUS, PCMU = CODECS["opus"], CODECS["pcmu"]
FRAME_NS = 20_000_000
BASE_NS = 987_654_321_000_000_000  # a machine that has been up for 31 years: floats must not lose the microseconds
SILENCE = bytes([0xF8, 0xFF, 0xFE])


def stream(
    delays_ms: Sequence[float | None], *, ssrc: int = 7, begin_ns: int = BASE_NS, sequence: int = 0xFFF0
) -> list[Stream]:
    """Packets of 20 ms that arrive `delays_ms` after they were due; None is lost."""
    packets = [
        Timed(
            begin_ns + FRAME_NS * i + round(delay * 1e6),
            RtpPacket(111, sequence + i & 0xFFFF, 960 * i, ssrc, SILENCE),
        )
        for i, delay in enumerate(delays_ms)
        if delay is not None
    ]
    return build_streams(sorted(packets, key=lambda t: t.time_ns), {111: OPUS})


def test_no_streams() -> None:
    found = arrivals([])
    assert len(found.arrival_ns) == len(found.transit_ms) == len(found.jitter_ms) == len(found.lost_ns) == 0
    assert found.jitter_at_ms(0) is None
    assert found.lost_between(0, 1 << 62) == 0


class TestTransit:
    def test_it_is_relative_to_the_fastest_packet(self) -> None:
        found = arrivals(stream([30.0, 25.0, 31.5, 25.0, 100.0]))
        assert found.transit_ms == pytest.approx([5.0, 0.0, 6.5, 0.0, 75.0], abs=1e-3)

    def test_a_pause_of_the_sender_is_no_transit(self) -> None:
        packets = [
            Timed(BASE_NS + FRAME_NS * frame, RtpPacket(111, i, 960 * frame, 7, SILENCE))
            for i, frame in enumerate([0, 1, 2, 500, 501])
        ]
        found = arrivals(build_streams(packets, {111: OPUS}))
        assert found.transit_ms == pytest.approx([0.0] * 5, abs=1e-3)
        assert found.jitter_ms == pytest.approx([0.0] * 5, abs=1e-3)
        assert len(found.lost_ns) == 0

    def test_streams_are_merged_in_order_of_arrival_each_with_its_own_zero(self) -> None:
        first = stream([10.0, 12.0, 10.0], ssrc=1)
        second = stream([500.0, 500.0, 507.0], ssrc=2, begin_ns=BASE_NS + 5_000_000)
        found = arrivals(first + second)
        assert np.all(np.diff(found.arrival_ns) >= 0)
        assert found.transit_ms == pytest.approx([0.0, 2.0, 0.0, 0.0, 0.0, 7.0], abs=1e-3)


class TestJitter:
    def test_an_even_trace_has_none(self) -> None:
        assert arrivals(stream([40.0] * 50)).jitter_ms == pytest.approx([0.0] * 50, abs=1e-3)

    def test_it_is_that_of_the_reports(self) -> None:
        rng = np.random.default_rng(0)
        delays = [float(d) for d in rng.uniform(0, 60, 300)]  # some overtake others
        (made,) = stream(delays)
        reception = Reception(48_000)
        for i in np.argsort(made.arrival_ns):
            packet = RtpPacket(111, int(made.sequence[i]) & 0xFFFF, int(made.timestamp[i]), 7, SILENCE)
            reception.add(int(made.arrival_ns[i]), packet)
        assert arrivals([made]).jitter_ms[-1] == pytest.approx(reception.jitter_s * 1000, rel=1e-4)

    def test_at_a_moment_it_is_that_of_the_packet_before(self) -> None:
        found = arrivals(stream([0.0, 16.0, 16.0]))
        assert found.jitter_at_ms(BASE_NS - 1) is None
        assert found.jitter_at_ms(BASE_NS) == pytest.approx(0.0, abs=1e-3)
        assert found.jitter_at_ms(BASE_NS + FRAME_NS + 16_000_000 - 1) == pytest.approx(0.0, abs=1e-3)
        assert found.jitter_at_ms(BASE_NS + FRAME_NS + 16_000_000) == pytest.approx(1.0, abs=1e-3)
        assert found.jitter_at_ms(BASE_NS * 2) == pytest.approx(15 / 16, abs=1e-3)


class TestLosses:
    def test_each_is_put_where_it_was_due(self) -> None:
        found = arrivals(stream([10.0, 10.0, None, None, None, 10.0, None, 10.0]))
        due = [BASE_NS + 10_000_000 + FRAME_NS * i for i in (2, 3, 4, 6)]
        # float64 resolves 128 ns at 31 years
        assert found.lost_ns == pytest.approx(due, abs=1_000)

    def test_they_are_counted_between_two_moments(self) -> None:
        found = arrivals(stream([10.0, None, 10.0, None, None, 10.0]))
        at = [int(ns) for ns in found.lost_ns]
        assert found.lost_between(0, 1 << 62) == 3
        assert found.lost_between(at[0], at[1]) == 1
        assert found.lost_between(at[0] + 1, at[2]) == 1
        assert found.lost_between(at[2] + 1, 1 << 62) == 0
        assert found.lost_between(1 << 62, 0) == 0

    def test_across_the_wrap_and_of_two_streams(self) -> None:
        found = arrivals(stream([1.0, None] * 16 + [1.0], ssrc=1) + stream([2.0, None, 2.0], ssrc=2))
        assert len(found.lost_ns) == 17
        assert np.all(np.diff(found.lost_ns) >= 0)

    def test_a_reordered_packet_is_not_lost(self) -> None:
        assert len(arrivals(stream([0.0, 50.0, 0.0, 0.0])).lost_ns) == 0


OURS, THEIRS = 0x11111111, 0x22222222


def our_report(ntp: int) -> bytes:
    return compound(serialize_receiver_report(OURS, [], SenderInfo(ntp, 0, 0, 0)), OURS, "probe")


def their_report(lsr: int, dlsr_s: float, ssrc: int = OURS) -> bytes:
    block = ReportBlock(ssrc, 0, 0, 0, 0, lsr, round(dlsr_s * 65536))
    return compound(serialize_receiver_report(THEIRS, [block]), THEIRS, "agent")


class TestRoundTrips:
    SENT = ((1_000_000_000, our_report(0xAAAA_1111_2222_BBBB)), (2_000_000_000, our_report(0xAAAA_1112_2222_BBBB)))

    def test_by_the_middle_bits_of_our_own_report(self) -> None:
        received = [(1_270_000_000, their_report(0x1111_2222, 0.25)), (2_531_250_000, their_report(0x1112_2222, 0.5))]
        assert round_trips(received, self.SENT, OURS) == [
            RoundTrip(1_270_000_000, 20_000_000),
            RoundTrip(2_531_250_000, 31_250_000),
        ]

    @pytest.mark.parametrize(
        "data",
        [
            their_report(0, 0.0),  # they have had no report of ours
            their_report(0x9999_9999, 0.1),  # nor is this one ours
            their_report(0x1111_2222, 0.25, ssrc=THEIRS),  # about another stream
            their_report(0x1111_2222, 3.0),  # not positive
            their_report(0x1111_2222, 0.25)[:-1],  # cut off
            b"",
        ],
    )
    def test_what_says_nothing_about_it_is_passed_over(self, data: bytes) -> None:
        assert round_trips([(1_270_000_000, data)], self.SENT, OURS) == []

    def test_without_a_stream_of_ours(self) -> None:
        received = [(1_270_000_000, their_report(0x1111_2222, 0.25))]
        assert round_trips(received, self.SENT, None) == []
        assert round_trips(received, [], OURS) == []

    def test_our_receiver_reports_are_none(self) -> None:
        own = compound(serialize_receiver_report(OURS, []), OURS, "probe")
        assert round_trips([(2, their_report(0, 0.0))], [(1, own), (1, own[:5])], OURS) == []

    def test_by_an_answer_to_our_reference_time(self) -> None:
        ours = serialize_extended_report(ExtendedReport(OURS, 0xAAAA_3333_4444_BBBB))
        theirs = serialize_extended_report(
            ExtendedReport(THEIRS, None, (DelaySinceReference(OURS, 0x3333_4444, 32768),))
        )
        assert round_trips([(1_600_000_000, theirs)], [(1_000_000_000, ours)], OURS) == [
            RoundTrip(1_600_000_000, 100_000_000, "dlrr")
        ]


def test_round_trips_of_ice_are_events() -> None:
    events = [Event(5, "call_started"), Event(7, "stun_round_trip", {"rtt_ns": 300_000})]
    assert stun_round_trips(events) == [RoundTrip(7, 300_000, "stun")]
