"""What RFC 3550 says of a stream's reception, on traces whose figures are known."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analysis.reception import MAX_DROPOUT, Reception
from analysis.rtp import RtpPacket

FRAME_NS = 20_000_000
FRAME = 960


def packet(sequence: int, timestamp: int | None = None, payload: bytes = b"voice") -> RtpPacket:
    ticks = FRAME * sequence if timestamp is None else timestamp
    return RtpPacket(111, sequence & 0xFFFF, ticks & 0xFFFFFFFF, 7, payload, padding=4)


def receive(*sequences: int) -> Reception:
    """Packets that arrive exactly as they were due."""
    reception = Reception(48_000)
    for sequence in sequences:
        reception.add(FRAME_NS * (sequence + 100_000), packet(sequence))
    return reception


def counts(reception: Reception) -> tuple[int, int, int, int]:
    return reception.packets_expected, reception.packets_received, reception.packets_lost, reception.duplicates


def test_nothing_received_yet() -> None:
    reception = Reception(48_000)
    assert counts(reception) == (0, 0, 0, 0)
    assert reception.last_arrival_ns is None
    assert reception.jitter_s == 0.0
    block = reception.report_block(7)
    assert (block.fraction_lost, block.packets_lost, block.highest_sequence) == (0, 0, 0)


class TestCounts:
    @pytest.mark.parametrize(
        ("sequences", "expected"),
        [
            ((5,), (1, 1, 0, 0)),
            (tuple(range(10)), (10, 10, 0, 0)),
            ((0, 1, 4, 5), (6, 4, 2, 0)),
            ((0, 2, 1, 3), (4, 4, 0, 0)),  # reordered
            ((0, 1, 1, 2, 0), (3, 3, 0, 2)),  # duplicates are no packets received
            ((3, 0, 1, 2), (4, 4, 0, 0)),  # the first to arrive was not the first sent
            ((0xFFFE, 0xFFFF, 0x10000, 0x10001), (4, 4, 0, 0)),
            ((0xFFFE, 0x10001), (4, 2, 2, 0)),
            ((0x10000, 0xFFFF), (2, 2, 0, 0)),  # the wrap itself reordered
            ((0, MAX_DROPOUT - 1), (MAX_DROPOUT, 2, MAX_DROPOUT - 2, 0)),
            ((0, 1, MAX_DROPOUT + 1), (3, 3, 0, 0)),  # a restart
            ((5000, 5001, 10, 11), (4, 4, 0, 0)),
            ((0, 1, 40_000, 2, 3), (5, 5, 0, 0)),  # a stray costs no loss
        ],
    )
    def test_expected_received_lost_duplicates(
        self, sequences: tuple[int, ...], expected: tuple[int, int, int, int]
    ) -> None:
        assert counts(receive(*sequences)) == expected

    def test_losses_before_a_restart_stay(self) -> None:
        assert counts(receive(0, 5, 20_000, 20_003)) == (10, 4, 6, 0)

    def test_bytes_are_those_of_payloads_alone(self) -> None:
        reception = receive(0, 1, 2, 2)
        assert reception.bytes_received == 3 * len(b"voice")
        assert reception.header_bytes_received == 3 * (12 + 4)
        assert reception.last_arrival_ns == FRAME_NS * 100_002

    def test_a_stream_of_an_hour(self) -> None:
        count = 180_000
        reception = Reception(48_000)
        for sequence in range(count):
            if sequence % 100:
                reception.add(FRAME_NS * sequence, packet(sequence))
        assert counts(reception) == (count - 1, count * 99 // 100, count // 100 - 1, 0)
        assert len(reception._seen) <= 4096
        assert reception.jitter_s == 0.0

    @settings(deadline=None, max_examples=100)
    @given(
        first=st.integers(0, 0xFFFF),
        lost=st.sets(st.integers(1, 98)),
        order=st.permutations(range(100)),
        copies=st.lists(st.integers(0, 99), max_size=20),
    )
    def test_any_order_gives_the_same_counts(
        self, first: int, lost: set[int], order: list[int], copies: list[int]
    ) -> None:
        arrived = [i for i in order if i not in lost]
        again = [i for i in copies if i not in lost]
        reception = Reception(48_000)
        for at, i in enumerate([*arrived, *again]):
            reception.add(at, packet(first + i))
        assert counts(reception) == (100, len(arrived), len(lost), len(again))


class TestBeginningAgain:
    """The same SSRC from a lower number on, with timestamps that go on: a sender that was restarted."""

    @staticmethod
    def restarted(first: int, again: int, count: int = 200) -> Reception:
        reception = Reception(48_000)
        for k in range(2 * count):
            sequence = first + k if k < count else again + k - count
            reception.add(FRAME_NS * k, packet(sequence, FRAME * k))
        return reception

    @pytest.mark.parametrize("back", [1, 50, 150, 201, 1000, MAX_DROPOUT - 1, MAX_DROPOUT, 20_000])
    def test_nothing_is_lost_and_nothing_is_a_duplicate(self, back: int) -> None:
        reception = self.restarted(30_000, 30_200 - back)
        assert counts(reception) == (400, 400, 0, 0)
        assert reception.jitter_ticks == 0.0

    def test_across_the_wrap(self) -> None:
        assert counts(self.restarted(0x10000 + 100, 0xFF00)) == (400, 400, 0, 0)

    def test_losses_of_both_runs_are_counted(self) -> None:
        reception = Reception(48_000)
        for k, sequence in enumerate([500, 501, 505, 100, 101, 103]):
            reception.add(FRAME_NS * k, packet(sequence, FRAME * k))
        assert counts(reception) == (10, 6, 4, 0)

    @pytest.mark.parametrize(
        ("numbers", "ticks"),
        [(100, 60_500), (0, 0), (0, 5), (-10, -10 * FRAME), (-80, -80 * FRAME - 500), (250, 0)],
    )
    def test_numbers_that_are_used_again(self, numbers: int, ticks: int) -> None:
        # 6 s later, as a stack does that always begins at the same numbers, or a little before where it began
        reception = Reception(8_000)
        for k in range(300):
            reception.add(FRAME_NS * k, packet(1000 + k, 70_000 + 160 * k))
        for k in range(300):
            reception.add(FRAME_NS * (301 + k), packet(1000 + numbers + k, 70_000 + ticks + 160 * k))
        assert counts(reception) == (600, 600, 0, 0)
        assert reception.jitter_ticks == 0.0

    def test_a_single_old_copy_is_no_new_beginning(self) -> None:
        reception = receive(*range(300))
        for number in (7, 100, 3):
            reception.add(FRAME_NS * 200_000, packet(number))
        reception.add(FRAME_NS * 200_001, packet(300))
        assert counts(reception) == (301, 301, 0, 3)

    @pytest.mark.parametrize("late", [1, 99, 101, 2500])
    def test_a_late_packet_is_no_new_beginning(self, late: int) -> None:
        # its timestamp goes back with its number; 2500 packets are 50 s
        reception = Reception(48_000)
        for sequence in range(3000):
            if sequence != 3000 - late - 1:
                reception.add(FRAME_NS * sequence, packet(sequence))
        assert reception.packets_lost == (0 if late == 0 else 1)
        reception.add(FRAME_NS * 3000, packet(3000 - late - 1))
        assert counts(reception) == (3000, 3000, 0, 0)

    def test_a_telephone_event_before_a_late_packet_is_none_either(self) -> None:
        reception = Reception(8_000)
        voice = [(0, 0), (1, 160), (3, 480), (5, 800)]
        for sequence, timestamp in voice:
            reception.add(FRAME_NS * sequence, packet(sequence, timestamp))
        reception.add(FRAME_NS * 6, packet(6, 320), sound=False)  # began at 320, and keeps that timestamp
        reception.add(FRAME_NS * 6, packet(4, 640))
        reception.add(FRAME_NS * 6, packet(2, 320), sound=False)
        assert counts(reception) == (7, 7, 0, 0)


class TestJitter:
    def test_an_even_trace_has_none(self) -> None:
        # whatever the network's constant delay, losses and pauses of the sender
        reception = Reception(48_000)
        for sequence, frame in enumerate([0, 1, 2, 5, 6, 500, 501]):
            reception.add(7_000_000 + FRAME_NS * frame, packet(sequence, FRAME * frame))
        assert reception.jitter_ticks == 0.0

    def test_the_filter_of_rfc_3550(self) -> None:
        # every other packet 5 ms late: each difference is 5 ms, of which J takes a sixteenth
        reception = Reception(8000)
        for i in range(200):
            reception.add(FRAME_NS * i + 5_000_000 * (i % 2), packet(i, 160 * i))
        assert reception.jitter_s == pytest.approx(0.005 * (1 - (15 / 16) ** 199))

    def test_one_step(self) -> None:
        reception = Reception(48_000)
        reception.add(0, packet(0))
        reception.add(FRAME_NS + 16_000_000, packet(1))
        assert reception.jitter_s == pytest.approx(0.001)
        assert reception.report_block(7).jitter == 48

    def test_a_wrap_of_the_timestamp_is_no_jitter(self) -> None:
        reception = Reception(48_000)
        for i in range(10):
            reception.add(FRAME_NS * i, packet(i, (1 << 32) - 3 * FRAME + FRAME * i))
        assert reception.jitter_ticks == 0.0

    def test_a_restart_is_no_jitter(self) -> None:
        reception = Reception(48_000)
        for i in range(10):
            reception.add(FRAME_NS * i, packet(i))
        for i in range(10):
            reception.add(FRAME_NS * (10 + i), packet(30_000 + i, 123_456 + FRAME * i))
        assert reception.jitter_ticks == 0.0

    @settings(deadline=None, max_examples=50)
    @given(st.lists(st.tuples(st.integers(0, 0xFFFF), st.integers(0, 0xFFFFFFFF), st.integers(0, 10**12)), max_size=50))
    def test_it_is_always_a_number_that_fits_a_report(self, packets: list[tuple[int, int, int]]) -> None:
        reception = Reception(48_000)
        for sequence, timestamp, arrival_ns in sorted(packets, key=lambda p: p[2]):
            reception.add(arrival_ns, packet(sequence, timestamp))
        assert math.isfinite(reception.jitter_s)
        assert 0 <= reception.report_block(7).jitter <= 0xFFFFFFFF
        assert reception.packets_lost >= 0


class TestReports:
    def test_the_fraction_is_since_the_report_before(self) -> None:
        reception = receive(0, 1, 2, 3)
        assert reception.report_block(7).fraction_lost == 0
        for sequence in (5, 7):
            reception.add(FRAME_NS * sequence, packet(sequence))
        block = reception.report_block(7, lsr=0x1234, dlsr=99)
        assert block.fraction_lost == 128  # 2 of 4
        assert (block.packets_lost, block.highest_sequence) == (2, 7)
        assert (block.ssrc, block.lsr, block.dlsr) == (7, 0x1234, 99)
        assert reception.report_block(7).fraction_lost == 0  # nothing came since

    def test_late_packets_make_it_no_less_than_nothing(self) -> None:
        reception = receive(0, 3)
        reception.report_block(7)
        for sequence in (1, 2, 4):
            reception.add(FRAME_NS * sequence, packet(sequence))
        block = reception.report_block(7)
        assert (block.fraction_lost, block.packets_lost) == (0, 0)

    def test_all_but_one_lost(self) -> None:
        reception = receive(0)
        reception.report_block(7)
        reception.add(0, packet(2000))
        assert reception.report_block(7).fraction_lost == 255

    def test_the_highest_number_counts_its_cycles(self) -> None:
        assert receive(0xFFFF, 0x10000, 0x10001).report_block(7).highest_sequence == 0x10001


def test_packets_without_sound_are_received_and_leave_the_jitter_alone() -> None:
    reception = Reception(8000)
    for i in range(20):
        event = i in (5, 6, 7)  # a telephone event keeps the timestamp at which it began
        timestamp = 5 * 160 if event else i * 160
        packet = RtpPacket(101 if event else 0, i, timestamp, 1, bytes(4 if event else 160))
        reception.add(i * 20_000_000, packet, sound=not event)
    assert reception.packets_received == 20
    assert reception.packets_lost == 0
    assert reception.jitter_s == 0
