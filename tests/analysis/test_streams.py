"""Packets into streams: whatever the network and the sender do to numbers and timestamps."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analysis.audibility import LevelTrack, first_audible
from analysis.codecs import CODECS, Codec, encode
from analysis.reception import Reception
from analysis.rtp import RtpPacket
from analysis.streams import MAX_DROPOUT, Stream, Timed, build_streams, decode, packet_trace, spans

OPUS, PCMU, G722 = CODECS["opus"], CODECS["pcmu"], CODECS["g722"]
TYPES = {111: OPUS, 0: PCMU, 9: G722}
SSRC = 0xCAFEBABE
FRAME = 960
FRAME_NS = 20_000_000
SILENCE = bytes([0xF8, 0xFF, 0xFE])  # 20 ms of CELT


def opus(sequence: int, timestamp: int, *, at_ns: int | None = None, ssrc: int = SSRC, **fields: object) -> Timed:
    packet = RtpPacket(111, sequence & 0xFFFF, timestamp & 0xFFFFFFFF, ssrc, SILENCE)
    return Timed(timestamp if at_ns is None else at_ns, replace(packet, **fields))  # type: ignore[arg-type]


def steady(count: int, *, sequence: int = 1000, timestamp: int = 500_000, at_ns: int = 0) -> list[Timed]:
    """Packets of 20 ms, one after the other, that arrive as they are due."""
    return [
        opus(sequence + i, timestamp + FRAME * i, at_ns=at_ns + FRAME_NS * i, payload=SILENCE) for i in range(count)
    ]


def _time(timed: Timed) -> int:
    return timed.time_ns


def only(packets: Iterable[Timed]) -> Stream:
    (stream,) = build_streams(packets, TYPES)
    return stream


def numbers(stream: Stream) -> list[int]:
    return [int(s) & 0xFFFF for s in stream.sequence]


class TestOrder:
    def test_a_steady_stream(self) -> None:
        stream = only(steady(10))
        assert stream.ssrc == SSRC
        assert stream.codec is OPUS
        assert stream.sequence.tolist() == list(range(1000, 1010))
        assert stream.timestamp.tolist() == [500_000 + FRAME * i for i in range(10)]
        assert stream.position.tolist() == [FRAME * i for i in range(10)]
        assert stream.samples.tolist() == [FRAME] * 10
        assert stream.arrival_ns.tolist() == [FRAME_NS * i for i in range(10)]
        assert stream.talkspurt.tolist() == [0] * 10
        assert stream.duplicates == 0

    def test_nothing_gives_no_streams(self) -> None:
        assert build_streams([], TYPES) == []
        assert build_streams(steady(5), {}) == []

    def test_reordered_packets_are_put_in_order_and_keep_their_arrival(self) -> None:
        packets = steady(6)
        packets[2], packets[3] = replace(packets[3], time_ns=40_000_000), replace(packets[2], time_ns=60_000_000)
        stream = only(packets)
        assert stream.sequence.tolist() == list(range(1000, 1006))
        assert stream.arrival_ns.tolist() == [0, 20_000_000, 60_000_000, 40_000_000, 80_000_000, 100_000_000]
        assert stream.duplicates == 0

    def test_the_first_packet_may_be_overtaken(self) -> None:
        packets = steady(5, sequence=0, timestamp=0)
        stream = only([packets[1], packets[0], *packets[2:]])
        assert stream.position.tolist() == [FRAME * i for i in range(5)]
        assert stream.timestamp.tolist() == [FRAME * i for i in range(5)]
        before = steady(5, sequence=0xFFFF, timestamp=-FRAME)
        stream = only([before[1], before[0], *before[2:]])
        assert stream.position.tolist() == [FRAME * i for i in range(5)]

    def test_duplicates_are_counted_and_the_first_arrival_stands(self) -> None:
        packets = steady(5)
        again = [replace(packets[4], time_ns=10**9), replace(packets[1], time_ns=10**9)]
        stream = only([*packets, *again])
        assert stream.duplicates == 2
        assert len(stream.sequence) == 5
        assert stream.arrival_ns.max() == 80_000_000

    def test_a_lost_packet_leaves_a_gap_in_the_numbers(self) -> None:
        packets = steady(6)
        stream = only(packets[:2] + packets[4:])
        assert stream.sequence.tolist() == [1000, 1001, 1004, 1005]
        assert stream.talkspurt.tolist() == [0, 0, 0, 0]

    def test_a_packet_that_is_late_by_seconds_still_belongs(self) -> None:
        packets = steady(400)
        stream = only(packets[:10] + packets[11:] + [replace(packets[10], time_ns=10**10)])
        assert stream.sequence.tolist() == list(range(1000, 1400))
        assert stream.arrival_ns[10] == 10**10


class TestWraps:
    @pytest.mark.parametrize("sequence", [0xFFFD, 0xFFFE, 0xFFFF, 0])
    def test_sequence_numbers(self, sequence: int) -> None:
        stream = only(steady(6, sequence=sequence))
        assert np.diff(stream.sequence).tolist() == [1] * 5
        assert stream.generation == 0

    def test_timestamps(self) -> None:
        stream = only(steady(6, timestamp=(1 << 32) - 2 * FRAME))
        assert stream.position.tolist() == [FRAME * i for i in range(6)]
        assert stream.timestamp.tolist()[-1] == (1 << 32) + 3 * FRAME

    def test_both_at_once(self) -> None:
        stream = only(steady(8, sequence=0xFFFC, timestamp=(1 << 32) - 4 * FRAME))
        assert stream.position.tolist() == [FRAME * i for i in range(8)]
        assert np.diff(stream.sequence).tolist() == [1] * 7

    @pytest.mark.parametrize("swapped", range(7))
    def test_a_swapped_pair_at_the_wrap_is_no_wrap(self, swapped: int) -> None:
        # timestamps 0xFFFFFC40 + 960 n wrap between n = 0 and 1; a swap there must not add a cycle of 2^32
        packets = steady(8, sequence=0xFFFC, timestamp=0xFFFFFC40 - 3 * FRAME)
        packets[swapped], packets[swapped + 1] = packets[swapped + 1], packets[swapped]
        stream = only(packets)
        assert stream.position.tolist() == [FRAME * i for i in range(8)]
        assert len(stream.sequence) == 8

    def test_a_call_that_wraps_in_its_middle(self) -> None:
        count = 0x10000 + 5_000  # some 24 min; the timestamps wrap every 25 h
        stream = only(steady(count, sequence=0xFFF0, timestamp=0xFF000000))
        assert len(stream.sequence) == count
        assert stream.position[-1] == FRAME * (count - 1)

    @settings(deadline=None, max_examples=60)
    @given(
        sequence=st.integers(0, 0xFFFF),
        timestamp=st.integers(0, 0xFFFFFFFF),
        lost=st.sets(st.integers(0, 59), max_size=20),
        jitter=st.lists(st.integers(0, 400), min_size=60, max_size=60),
        copies=st.lists(st.integers(0, 59), max_size=5),
    )
    def test_order_of_arrival_changes_nothing_but_arrivals(
        self, sequence: int, timestamp: int, lost: set[int], jitter: list[int], copies: list[int]
    ) -> None:
        sent = [p for i, p in enumerate(steady(60, sequence=sequence, timestamp=timestamp)) if i not in lost]
        late = [replace(p, time_ns=p.time_ns + 1_000_000 * jitter[i]) for i, p in enumerate(sent)]
        late += [replace(sent[i], time_ns=2 * 10**9 + i) for i in copies if i < len(sent)]
        in_order, shuffled = only(sent), only(sorted(late, key=lambda t: t.time_ns))
        assert numbers(shuffled) == numbers(in_order)
        assert shuffled.position.tolist() == in_order.position.tolist()
        assert shuffled.duplicates == sum(i < len(sent) for i in copies)


class TestRestarts:
    @pytest.mark.parametrize(
        ("sequence", "timestamp"),
        [
            (-50, 100 * FRAME),  # the media clock goes on
            (-50, 1 << 31),
            (-50, -1_000_000),  # and so does it not
            (-50, -40 * FRAME),
            (-2, -(1 << 30)),
            (-4000, 100 * FRAME),
            (20_000, 1_000_000),
            (-30_000, -1_000_000),
        ],
    )
    @pytest.mark.parametrize("before", [5, 100])
    def test_a_sender_that_starts_again_is_a_stream_of_its_own(
        self, sequence: int, timestamp: int, before: int
    ) -> None:
        first = steady(before)
        last = first[-1].packet
        again = steady(
            80, sequence=last.sequence_number + sequence, timestamp=last.timestamp + timestamp, at_ns=before * FRAME_NS
        )
        streams = build_streams(first + again, TYPES)
        assert [len(s.sequence) for s in streams] == [before, 80]
        assert [s.generation for s in streams] == [0, 1]
        assert streams[1].position.tolist() == [FRAME * i for i in range(80)]
        assert [s.duplicates for s in streams] == [0, 0]

    @pytest.mark.parametrize(
        ("sequence", "timestamp"),
        [
            (0, 0),  # a sender that always begins at the same numbers
            (0, 5),
            (0, -FRAME),
            (-10, -10 * FRAME),  # a little before where it began the last time
            (-80, -80 * FRAME),
            (-80, -12_345),
            (100, 100 * FRAME),
            (249, 0),
        ],
    )
    def test_numbers_that_are_used_again(self, sequence: int, timestamp: int) -> None:
        again = steady(300, sequence=1000 + sequence, timestamp=500_000 + timestamp, at_ns=301 * FRAME_NS)
        streams = build_streams([*steady(300), *again], TYPES)
        assert [len(s.sequence) for s in streams] == [300, 300]
        assert [s.duplicates for s in streams] == [0, 0]
        assert streams[1].arrival_ns[0] == 301 * FRAME_NS

    @pytest.mark.parametrize("missing", [(), (0,), (1,), (2, 3), range(8)])
    def test_numbers_that_are_used_again_are_in_part_lost(self, missing: Sequence[int]) -> None:
        again = [t for i, t in enumerate(steady(300, timestamp=500_005, at_ns=10**10)) if i not in missing]
        streams = build_streams([*steady(300), *again], TYPES)
        assert [len(s.sequence) for s in streams] == [300, 300 - len(missing)]

    def test_copies_of_the_network_are_no_sender_that_begins_again(self) -> None:
        packets = steady(200)
        # a burst of them within 1.9 s, as they were sent; and single ones after longer
        burst = [replace(t, time_ns=t.time_ns + 1_900_000_000) for t in packets[-50:]]
        single = [replace(packets[i], time_ns=10**10 + i) for i in (3, 90, 7, 50)]
        stream = only([*packets, *burst, *single])
        assert (len(stream.sequence), stream.duplicates) == (200, 54)
        # a copy of the last packet in a pause, and then the next
        pause = [replace(packets[-1], time_ns=10**10), opus(1200, 500_000 + 1000 * FRAME, at_ns=2 * 10**10)]
        stream = only([*packets, *pause])
        assert (len(stream.sequence), stream.duplicates) == (201, 1)

    @settings(deadline=None, max_examples=150)
    @given(
        runs=st.lists(
            st.tuples(st.integers(0, 2000), st.sampled_from([0, 5, -7 * FRAME, 300 * FRAME, 1 << 31]), st.booleans()),
            min_size=1,
            max_size=4,
        ),
        lost=st.sets(st.tuples(st.integers(0, 3), st.integers(3, 196))),
        copied=st.sets(st.tuples(st.integers(0, 3), st.integers(3, 196))),
    )
    def test_the_receivers_counters_agree(
        self,
        runs: list[tuple[int, int, bool]],
        lost: set[tuple[int, int]],
        copied: set[tuple[int, int]],
    ) -> None:
        packets: list[Timed] = []
        for number, (sequence, timestamp, same) in enumerate(runs):
            ticks = 500_000 + timestamp + (FRAME * sequence if same else 0)
            sent = steady(200, sequence=sequence, timestamp=ticks, at_ns=number * 10**10)
            copies = [replace(t, time_ns=t.time_ns + 30_000_000) for i, t in enumerate(sent) if (number, i) in copied]
            arrived = [t for i, t in enumerate(sent) if (number, i) not in lost]
            packets += sorted(arrived + [c for c in copies if c.packet in [t.packet for t in arrived]], key=_time)
        reception = Reception(48_000)
        for timed in packets:
            reception.add(timed.time_ns, timed.packet)
        streams = build_streams(packets, TYPES)
        assert reception.packets_received == sum(len(s.sequence) for s in streams)
        assert reception.duplicates == sum(s.duplicates for s in streams)
        assert reception.packets_received + reception.duplicates == len(packets)

    def test_timestamps_that_step_back_begin_a_new_stream(self) -> None:
        streams = build_streams(steady(10) + steady(10, sequence=1010, timestamp=400_000, at_ns=10 * FRAME_NS), TYPES)
        assert [len(s.sequence) for s in streams] == [10, 10]
        for stream in streams:
            assert np.diff(stream.position).tolist() == [FRAME] * 9

    def test_a_change_of_ssrc_is_another_stream(self) -> None:
        other = [replace(t, packet=replace(t.packet, ssrc=7)) for t in steady(5, sequence=12676, at_ns=10**9)]
        streams = build_streams(steady(5, sequence=21294) + other, TYPES)
        assert [s.ssrc for s in streams] == [SSRC, 7]
        assert [numbers(s)[0] for s in streams] == [21294, 12676]
        assert [s.generation for s in streams] == [0, 0]

    def test_streams_are_in_order_of_their_first_arrival(self) -> None:
        early = [replace(t, packet=replace(t.packet, ssrc=7)) for t in steady(3, at_ns=0)]
        streams = build_streams(sorted(steady(3, at_ns=10**9) + early, key=lambda t: t.time_ns), TYPES)
        assert [s.ssrc for s in streams] == [7, SSRC]

    def test_a_stray_packet_is_dropped(self) -> None:
        packets = steady(10)
        stray = opus(40_000, 9_000_000, at_ns=5 * FRAME_NS)
        stream = only([*packets[:5], stray, *packets[5:]])
        assert stream.sequence.tolist() == list(range(1000, 1010))

    def test_strays_that_do_not_follow_one_another_are_dropped(self) -> None:
        packets = steady(20)
        for i in range(5):
            packets.insert(3 * i + 2, opus(40_000 + 100 * i, 9_000_000 + i, at_ns=0))
        assert len(only(packets).sequence) == 20

    def test_max_dropout(self) -> None:
        first = steady(5)
        for steps, streams in ((MAX_DROPOUT - 1, 1), (MAX_DROPOUT, 2)):
            again = steady(5, sequence=1004 + steps, timestamp=500_000 + FRAME * (4 + steps), at_ns=10**12)
            assert len(build_streams(first + again, TYPES)) == streams

    def test_a_stream_that_was_old_when_the_recording_began(self) -> None:
        # the first packet is left over from before: the rest is a stream of its own
        streams = build_streams([opus(40_000, 9, at_ns=0), *steady(10, at_ns=FRAME_NS)], TYPES)
        assert [len(s.sequence) for s in streams] == [1, 10]


class TestComfortNoise:
    @staticmethod
    def packet(payload_type: int, sequence: int, timestamp: int, payload: bytes, at_ms: int) -> Timed:
        packet = RtpPacket(payload_type, sequence & 0xFFFF, timestamp & 0xFFFFFFFF, SSRC, payload)
        return Timed(at_ms * 1_000_000, packet)

    def call(self, payload_type: int, first: int = 2**32 - 800) -> list[Timed]:
        """Ten packets of sound, noise 200 ms apart and doubled once, ten of sound; number and timestamp wrap round."""
        sound = [self.packet(payload_type, 65_530 + i, first + 160 * i, bytes(160), 20 * i) for i in range(10)]
        noise = [
            self.packet(13, 65_540 + i, first + 1600 * (1 + i), bytes((0x80 + 50 + i,)), 205 + 200 * i) for i in (0, 1)
        ]
        after = [
            self.packet(payload_type, 65_542 + i, first + 4800 + 160 * i, bytes(160), 600 + 20 * i) for i in range(10)
        ]
        return [*sound, *noise, noise[1], *after]

    def test_it_lies_on_the_timeline_of_the_sound_before_it(self) -> None:
        (stream,) = build_streams(self.call(0), TYPES, noise_types=(13,))
        # the first bit of the level is reserved (RFC 3389)
        assert stream.noise.tolist() == [[1600, 205_000_000, 50], [3200, 405_000_000, 51]]
        assert np.diff(stream.sequence).tolist() == [1] * 19
        trace = packet_trace(stream, np.zeros(20 * 160, dtype=np.float32))
        assert (trace.noise[:, 0] - trace.position[0]).tolist() == [1600, 3200]

    def test_only_where_it_is_asked_for_and_beside_sound_of_its_rate(self) -> None:
        for packets, types in ((self.call(0), ()), (self.call(9), (13,))):
            (stream,) = build_streams(packets, TYPES, noise_types=types)
            assert stream.noise.shape == (0, 3)
            assert np.diff(stream.sequence).tolist() == [1] * 19

    def test_it_belongs_to_the_codec_that_was_heard_last(self) -> None:
        before = [self.packet(8, 65_500 + i, 2**32 - 5600 + 160 * i, bytes(160), 20 * i - 600) for i in range(30)]
        first, second = build_streams([*before, *self.call(0)], {**TYPES, 8: CODECS["pcma"]}, noise_types=(13,))
        assert (first.codec.name, len(first.noise)) == ("pcma", 0)
        assert (second.codec.name, len(second.noise)) == ("pcmu", 2)

    def test_noise_before_any_sound_is_nothing(self) -> None:
        (stream,) = build_streams(
            [self.packet(13, 65_529, 2**32 - 960, b"\x32", -20), *self.call(0)], TYPES, noise_types=(13,)
        )
        assert len(stream.noise) == 2


class TestPauses:
    def test_dtx_is_a_pause_and_not_a_loss(self) -> None:
        # no gap in the numbers, a jump of the timestamp, and a refresh every 400 ms
        at = [0, 1, 2, 22, 42, 62, 63, 64]
        packets = [opus(1000 + i, FRAME * t, at_ns=FRAME_NS * t) for i, t in enumerate(at)]
        stream = only(packets)
        assert np.diff(stream.sequence).tolist() == [1] * 7
        assert stream.talkspurt.tolist() == [0, 0, 0, 1, 2, 3, 3, 3]
        assert [bool(span.present.all()) for span in spans(stream, decode(stream))] == [True]

    @pytest.mark.parametrize(("gap_ms", "spurts"), [(0, 1), (40, 1), (60, 1), (61, 2), (400, 2)])
    def test_a_talkspurt_begins_after_more_than_60_ms(self, gap_ms: int, spurts: int) -> None:
        stream = only([opus(1, 0), opus(2, FRAME + 48 * gap_ms), opus(3, 2 * FRAME + 48 * gap_ms)])
        assert stream.talkspurt[-1] + 1 == spurts

    def test_a_lost_packet_counts_its_duration(self) -> None:
        for lost, gap_ms, spurts in ((5, 100, 1), (5, 160, 1), (5, 161, 2), (1, 100, 2)):
            stream = only([opus(1, 0), opus(2 + lost, FRAME + 48 * gap_ms)])
            assert stream.talkspurt[-1] + 1 == spurts

    def test_a_jump_of_2_to_the_31_costs_no_memory(self) -> None:
        packets = steady(3) + [opus(1003 + i, 500_000 + (1 << 31) - 1 + FRAME * i, at_ns=10**9) for i in range(3)]
        stream = only(packets)
        parts = spans(stream, decode(stream))
        assert [len(p.pcm) for p in parts] == [3 * FRAME, 3 * FRAME]
        assert parts[1].position == (1 << 31) - 1

    def test_jumps_with_every_packet_cost_no_memory(self) -> None:
        stream = only([opus(i, (i * 0x7FFFFFF0) & 0xFFFFFFFF, at_ns=i) for i in range(200)])
        assert sum(len(p.pcm) for p in spans(stream, decode(stream))) == 200 * FRAME


class TestOtherPayloads:
    def test_foreign_payload_types_are_ignored(self) -> None:
        foreign = [opus(1000 + i, 0, payload_type=101) for i in range(5)]
        assert build_streams(foreign, TYPES) == []

    @pytest.mark.parametrize("fields", [{"payload_type": 101}, {"payload_type": 13}, {"payload": b""}])
    def test_they_are_no_losses_among_those_with_sound(self, fields: dict[str, object]) -> None:
        # RFC 4733: telephone events share SSRC and sequence numbers; RFC 3389: so does comfort noise
        packets = steady(12)
        for i in (4, 5, 6, 9):
            packets[i] = replace(packets[i], packet=replace(packets[i].packet, **fields))  # type: ignore[arg-type]
        stream = only(packets)
        assert len(stream.sequence) == 8
        assert np.diff(stream.sequence).tolist() == [1] * 7
        assert stream.position.tolist() == [FRAME * i for i in (0, 1, 2, 3, 7, 8, 10, 11)]
        lost = [i for i in range(12) if i == 8]
        stream = only([p for i, p in enumerate(packets) if i not in lost])
        assert np.diff(stream.sequence).tolist() == [1, 1, 1, 1, 2, 1]

    def test_a_change_of_codec_on_one_ssrc_is_two_streams_without_losses(self) -> None:
        packets = []
        for i in range(30):
            packet = opus(1000 + i, FRAME * i, at_ns=FRAME_NS * i)
            if 10 <= i < 20:
                packet = replace(packet, packet=RtpPacket(0, 1000 + i, 160 * i, SSRC, bytes(160)))
            packets.append(packet)
        by_opus, by_pcmu = build_streams(packets, TYPES)
        assert (by_opus.codec, by_pcmu.codec) == (OPUS, PCMU)
        assert np.diff(by_opus.sequence).tolist() == [1] * 19
        assert np.diff(by_pcmu.sequence).tolist() == [1] * 9

    def test_two_payload_types_of_one_codec_are_one_stream(self) -> None:
        packets = [opus(1000 + i, FRAME * i, payload_type=(111, 63)[i % 2]) for i in range(6)]
        (stream,) = build_streams(packets, {111: OPUS, 63: OPUS})
        assert len(stream.sequence) == 6


class TestDurations:
    def test_g722_has_twice_the_samples_of_its_ticks(self) -> None:
        # 160 ticks of the 8 kHz clock are 320 samples at 16 kHz: halved durations would overlap
        packets = [Timed(FRAME_NS * i, RtpPacket(9, i, 160 * i, SSRC, bytes(160))) for i in range(5)]
        stream = only(packets)
        assert stream.samples.tolist() == [320] * 5
        assert stream.position.tolist() == [0, 320, 640, 960, 1280]
        (span,) = spans(stream, decode(stream))
        assert len(span.pcm) == 5 * 320

    def test_packets_of_different_length(self) -> None:
        payloads = [SILENCE, bytes([0xF9, 0, 0]), SILENCE]  # 20, 40 and 20 ms
        ticks = [0, FRAME, 3 * FRAME]
        stream = only(opus(i, ticks[i], payload=payload) for i, payload in enumerate(payloads))
        assert stream.samples.tolist() == [FRAME, 2 * FRAME, FRAME]
        assert stream.talkspurt.tolist() == [0, 0, 0]
        assert [stream.packet_at(p) for p in (0, FRAME - 1, FRAME, 3 * FRAME - 1, 3 * FRAME)] == [0, 0, 1, 1, 2]

    def test_packet_at_says_where_there_is_none(self) -> None:
        stream = only([opus(1, 0), opus(2, 10 * FRAME)])
        for position in (-1, FRAME, 10 * FRAME - 1, 11 * FRAME):
            with pytest.raises(IndexError, match="0xcafebabe"):
                stream.packet_at(position)


def coded(codec: Codec, sound: Sequence[float], payload_type: int) -> list[Timed]:
    packets = encode(codec, np.asarray(sound, dtype=np.float32))
    frame = codec.rate_hz // 50
    return [
        Timed(FRAME_NS * i, RtpPacket(payload_type, i, codec.ticks(frame) * i, SSRC, p)) for i, p in enumerate(packets)
    ]


def tone(codec: Codec, seconds: float) -> list[float]:
    t = np.arange(round(seconds * codec.rate_hz)) / codec.rate_hz
    return [float(x) for x in 0.25 * np.sin(2 * np.pi * 440 * t)]


class TestSound:
    def test_a_stream_decodes_as_its_packets_do_in_order(self) -> None:
        packets = coded(OPUS, tone(OPUS, 1.0), 111)
        in_order = decode(only(packets))
        packets[10], packets[11] = packets[11], packets[10]
        assert np.array_equal(decode(only(packets)).pcm, in_order.pcm)
        assert in_order.undecodable == 0

    def test_a_lost_packet_is_absent_and_its_neighbours_are_where_they_belong(self) -> None:
        packets = coded(PCMU, tone(PCMU, 1.0), 0)
        (whole,) = spans(only(packets), decode(only(packets)))
        stream = only(packets[:10] + packets[13:])
        (span,) = spans(stream, decode(stream))
        assert np.flatnonzero(~span.present).tolist() == list(range(10 * 160, 13 * 160))
        assert not span.pcm[~span.present].any()
        assert np.array_equal(span.pcm[span.present], whole.pcm[span.present])

    def test_a_pause_of_the_sender_is_silence_that_is_present(self) -> None:
        packets = coded(PCMU, tone(PCMU, 0.2), 0)
        late = [
            replace(t, packet=replace(t.packet, sequence_number=10 + i, timestamp=8000 + 160 * i))
            for i, t in enumerate(packets)
        ]
        stream = only(packets + late)
        (span,) = spans(stream, decode(stream))
        assert span.present.all()
        assert not span.pcm[1600:8000].any()
        assert len(span.pcm) == 8000 + 1600

    def test_a_loss_before_a_pause_is_absent_for_its_own_duration_alone(self) -> None:
        packets = coded(PCMU, tone(PCMU, 0.2), 0)
        late = replace(packets[0], packet=replace(packets[0].packet, sequence_number=12, timestamp=8000))
        stream = only([*packets, late])
        (span,) = spans(stream, decode(stream))
        assert np.flatnonzero(~span.present).tolist() == list(range(1600, 1600 + 2 * 160))

    def test_samples_that_were_not_played_are_absent(self) -> None:
        stream = only(coded(PCMU, tone(PCMU, 0.2), 0))
        played = np.ones(1600, dtype=bool)
        played[100:200] = False
        (span,) = spans(stream, decode(stream), played=played)
        assert np.flatnonzero(~span.present).tolist() == list(range(100, 200))

    def test_an_undecodable_packet_is_counted_and_silent(self) -> None:
        packets = coded(OPUS, tone(OPUS, 0.4), 111)
        broken = replace(packets[10].packet, payload=bytes([0x79, 1, 2, 3]))
        stream = only([*packets[:10], replace(packets[10], packet=broken), *packets[12:]])
        decoded = decode(stream)
        assert decoded.undecodable == 1
        assert not decoded.packet(10, int(stream.samples[10])).any()
        assert decoded.packet(11, FRAME).any()

    def test_a_loss_is_concealed_for_the_decoders_state(self) -> None:
        packets = coded(OPUS, tone(OPUS, 1.0), 111)
        whole = decode(only(packets))
        lossy = decode(only(packets[:20] + packets[21:]))
        error = lossy.packet(25, FRAME) - whole.packet(26, FRAME)
        assert float(np.sqrt(np.mean(error**2))) < 0.05 * 0.25  # some packets later the decoders agree again

    def test_a_long_loss_is_not_concealed_packet_by_packet(self) -> None:
        packets = coded(OPUS, tone(OPUS, 0.2), 111)
        late = [
            replace(t, packet=replace(t.packet, sequence_number=2900 + i, timestamp=FRAME * (2900 + i)))
            for i, t in enumerate(packets)
        ]
        assert len(decode(only(packets + late)).pcm) == 20 * FRAME


class TestSplit:
    """Splitting the timeline at pauses of 2 s or more must change no boundary and no floor."""

    @pytest.mark.parametrize(("gap_ms", "parts"), [(1999, 1), (2000, 2), (60_000, 2)])
    def test_it_is_split_at_2_s(self, gap_ms: int, parts: int) -> None:
        stream = only([opus(1, 0), opus(2, FRAME + 48 * gap_ms)])
        found = spans(stream, decode(stream))
        assert len(found) == parts
        assert found[-1].position + len(found[-1].pcm) == 2 * FRAME + 48 * gap_ms

    def test_the_pause_is_known_to_both_sides(self) -> None:
        stream = only([opus(1, 0), opus(2, 480_000), opus(3, 481_000)])
        first, second = spans(stream, decode(stream))
        assert (first.silent_before, first.silent_after) == (0, 96_000)
        assert (second.silent_before, second.silent_after) == (96_000, 0)

    def test_what_was_lost_in_the_pause_is_not_silence(self) -> None:
        stream = only([opus(0, 0), opus(149, 149 * FRAME)])  # 148 lost, and nothing else in between
        first, second = spans(stream, decode(stream))
        assert (first.silent_after, second.silent_before) == (0, 0)
        stream = only([opus(0, 0), opus(149, 199 * FRAME)])  # and a pause of 1 s
        first, second = spans(stream, decode(stream))
        assert (first.silent_after, second.silent_before) == (0, 48_000)

    @pytest.mark.parametrize("noise_ms", [250, 600])
    def test_floors_are_those_of_one_timeline(self, noise_ms: int) -> None:
        rng = np.random.default_rng(0)
        quiet = rng.standard_normal(8 * noise_ms) * 10 ** (-65 / 20)
        loud = 0.1 * rng.choice([-1.0, 1.0], 2400)
        reply = np.concatenate((quiet, loud))
        results = []
        for gap_s in (1.9, 2.5):
            packets = coded(PCMU, tone(PCMU, 0.4), 0)
            shift = round(8000 * (0.4 + gap_s))
            packets += [
                replace(t, packet=replace(t.packet, sequence_number=20 + i, timestamp=shift + 160 * i))
                for i, t in enumerate(coded(PCMU, reply.tolist(), 0))
            ]
            stream = only(packets)
            span = spans(stream, decode(stream))[-1]
            track = LevelTrack(
                span.pcm, 8000, present=span.present, silent_before=span.silent_before, silent_after=span.silent_after
            )
            found = first_audible(track, start=shift - span.position)
            assert found is not None
            results.append((found.sample + span.position - shift, found.threshold_dbov, found.floor_dbov))
        assert results[0] == results[1]


@settings(deadline=None, max_examples=150)
@given(
    st.lists(
        st.tuples(
            st.integers(0, 0xFFFF),
            st.integers(0, 0xFFFFFFFF) | st.integers(0, 100_000),
            st.sampled_from([111, 0, 9, 13]),
            st.integers(1, 2),
            st.sampled_from([b"", SILENCE, bytes(160), bytes([0x7B, 0])]),
        ),
        max_size=60,
    )
)
def test_any_packets_make_streams_that_hold_together(
    parts: list[tuple[int, int, int, int, bytes]],
) -> None:
    packets = [Timed(i, RtpPacket(pt, seq, ts, ssrc, payload)) for i, (seq, ts, pt, ssrc, payload) in enumerate(parts)]
    streams = build_streams(packets, TYPES)
    arrivals = [int(ns) for s in streams for ns in s.arrival_ns]
    assert len(set(arrivals)) == len(arrivals)  # no packet is in two streams
    for stream in streams:
        assert np.all(np.diff(stream.sequence) >= 1)
        assert np.all(np.diff(stream.talkspurt) >= 0)
        decoded = decode(stream)
        assert len(decoded.pcm) == stream.samples.sum()
        for span in spans(stream, decoded):
            assert span.pcm.shape == span.present.shape
            assert len(span.pcm) <= (stream.samples.max() + 96_000) * len(stream.sequence)
