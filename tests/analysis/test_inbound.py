"""RTP in captures that nobody described, and what its receiver would have counted; tshark and Chrome say the same."""

from __future__ import annotations

import random
import re
import struct
import subprocess
import zlib
from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analysis.capture import CapturedDatagram, read_capture
from analysis.capture_frames import Direction
from analysis.capture_rtp import (
    CodecChoice,
    RtpStream,
    choose_codecs,
    described_in,
    durations_fit,
    find_streams,
    may_matter,
)
from analysis.codecs import CODECS, encode
from analysis.errors import UsageError
from analysis.inbound import Inbound, arrival_statistics, document, measure
from analysis.pcap import Endpoints, pcap_header
from analysis.result import OutputDelay
from analysis.rtp import RtpPacket, serialize_rtp
from benchmarks.chrome_reference_files import GOLDEN, NS, Row, browser_series

START_NS = 1_800_000_000_123_456_789
A, B, C = ("192.0.2.1", 5004), ("192.0.2.2", 5006), ("192.0.2.3", 5008)
OPUS_20_MS = b"\x78" + bytes(60)  # one frame of 20 ms
PCMU_20_MS = b"\xff" * 160
MS = 1_000_000
NS_S = 1_000_000_000


def packet(
    i: int, payload: bytes = OPUS_20_MS, *, pt: int = 96, ssrc: int = 7, step: int = 960, **more: Any
) -> RtpPacket:
    sequence, timestamp = (65_000 + i) & 0xFFFF, (0xFFFF_0000 + step * i) & 0xFFFF_FFFF
    return RtpPacket(pt, sequence, timestamp, ssrc, payload, **more)


def datagram(
    time_ns: int,
    data: RtpPacket | bytes,
    *,
    ends: tuple[tuple[str, int], tuple[str, int]] = (A, B),
    direction: Direction | None = None,
    missing: int = 0,
) -> CapturedDatagram:
    payload = data if isinstance(data, bytes) else serialize_rtp(data)
    return CapturedDatagram(time_ns, *ends, payload, direction, missing)


def opus(count: int = 50, *, late_ms: Callable[[int], float] = lambda _: 0.0, **more: Any) -> list[CapturedDatagram]:
    return [datagram(START_NS + round((20 * i + late_ms(i)) * MS), packet(i, **more)) for i in range(count)]


def pcmu(count: int = 50, **more: Any) -> list[CapturedDatagram]:
    return [
        datagram(START_NS + 20 * i * MS, packet(i, PCMU_20_MS, step=160, **{"pt": 0, **more})) for i in range(count)
    ]


def only(datagrams: Iterable[CapturedDatagram]) -> RtpStream:
    (stream,) = find_streams(datagrams)
    return stream


def measured(stream: RtpStream, policy: str = "none", **given: int) -> Inbound:
    found = measure(stream, choose_codecs(stream, given={}), policy, **given)
    assert found is not None
    return found


class TestFinding:
    def test_among_what_else_is_on_the_wire(self) -> None:
        others = [
            b"\x00\x01\x00\x00" + b"\x21\x12\xa4\x42" + bytes(12),  # STUN
            b"\x16\xfe\xfd" + bytes(40),  # DTLS
            b"\x80\xc8\x00\x06" + bytes(24),  # RTCP, a sender report
            b"\x40\x01" + bytes(30),  # TURN channel data
            b"\x80\x60\x00",  # RTP cut off in its header
        ]
        mixed = [d for i, o in enumerate(opus()) for d in (datagram(o.time_ns - 1, others[i % len(others)]), o)]
        stream = only(mixed)
        assert (stream.ssrc, stream.source, stream.destination, len(stream.packets)) == (7, A, B, 50)
        assert stream.warnings == ()
        assert [may_matter(datagram(0, data)) for data in others] == [False, False, True, False, True]

    def test_three_packets_are_no_stream(self) -> None:
        assert find_streams(opus(3)) == []
        assert len(find_streams(opus(4))) == 1

    @settings(max_examples=50, deadline=None)
    @given(bodies=st.lists(st.binary(min_size=10, max_size=30), min_size=4, max_size=40))
    def test_numbers_that_do_not_go_on_are_no_stream(self, bodies: list[bytes]) -> None:
        # such as answers of a name server, whose random identifier begins as RTP does
        answers = [datagram(i, b"\x80\x01" + bytes([37 * i % 256, 11]) + bytes(8) + b) for i, b in enumerate(bodies)]
        assert find_streams(answers) == []

    def test_a_capture_of_each_packet_twice(self) -> None:
        stream = only([d for o in opus() for d in (o, replace(o, time_ns=o.time_ns + 5000))])
        assert measured(stream).inbound_rtp["packetsReceived"] == 50

    def test_several_streams_in_order_of_their_first_packet(self) -> None:
        datagrams = sorted([*opus(ssrc=9), *pcmu(ssrc=1)][1:], key=lambda d: d.time_ns)
        assert [s.ssrc for s in find_streams(datagrams)] == [1, 9]

    def test_malformed_ones_are_left_out(self) -> None:
        broken = bytes([0x8F]) + serialize_rtp(packet(50))[1:14]  # ends within its CSRCs
        stream = only([*opus(), datagram(START_NS + 10**9, broken)])
        assert len(stream.packets) == 50
        assert stream.warnings == ("1 packets are malformed RTP: left out",)

    def test_a_sender_that_is_never_well_formed_is_no_stream(self) -> None:
        assert find_streams([replace(d, payload=b"\x8f" + d.payload[1:14]) for d in opus()]) == []

    def test_another_path_after_the_first(self) -> None:
        packets = opus()
        moved = [replace(d, source=C) for d in packets[25:]]
        stream = only([*packets[:25], *moved])
        assert len(stream.packets) == 50
        assert measured(stream).inbound_rtp["packetsLost"] == 0
        assert stream.warnings == ("took 2 paths one after the other",)

    def test_a_recording_that_is_played_again_to_somebody_else(self) -> None:
        again = [replace(d, time_ns=d.time_ns + 5 * 10**9, destination=C) for d in opus()]
        stream = only([*opus(), *again])
        assert (stream.destination, len(stream.packets)) == (B, 50)
        assert stream.warnings == ("the same SSRC is also on 192.0.2.1:5004 → 192.0.2.3:5008: left out",)

    def test_a_path_that_changes_while_packets_are_under_way(self) -> None:
        packets = opus()
        late = [replace(d, time_ns=d.time_ns + 50 * MS) for d in packets[:25]]
        moved = [replace(d, source=C) for d in packets[25:]]
        stream = only(sorted([*late, *moved], key=lambda d: d.time_ns))
        assert len(stream.packets) == 50
        assert [t.time_ns for t in stream.packets] == sorted(t.time_ns for t in stream.packets)

    @pytest.mark.parametrize("direction", [Direction.RECEIVED, None])
    def test_an_echo_is_not_taken_for_duplicates(self, direction: Direction | None) -> None:
        there = [replace(d, direction=Direction.SENT if direction else None) for d in opus()]
        back = [datagram(d.time_ns + 80 * MS, d.payload, ends=(B, A), direction=direction) for d in there]
        extra = [] if direction else [datagram(START_NS + 2 * 10**9, packet(50), ends=(B, A))]
        stream = only(sorted([*there, *back, *extra], key=lambda d: d.time_ns))
        assert (stream.source, stream.direction) == (B, direction)
        assert stream.packets[0].time_ns == START_NS + 80 * MS
        assert stream.warnings == ("the same SSRC is also on 192.0.2.1:5004 → 192.0.2.2:5006: left out",)

    def test_what_this_machine_sent_is_said(self) -> None:
        stream = only([replace(d, direction=Direction.SENT) for d in opus()])
        assert "times are those of leaving" in stream.warnings[0]
        assert measured(stream).direction == "sent"

    def test_a_clock_that_is_set_back(self) -> None:
        packets = opus(100)
        stepped = [d if i < 50 else replace(d, time_ns=d.time_ns - 3600 * 10**9) for i, d in enumerate(packets)]
        stream = only(stepped)
        assert "clock steps back" in stream.warnings[0]
        arrivals = [t.time_ns for t in stream.packets]
        assert arrivals == sorted(arrivals)
        # all but the one step is known
        assert arrivals[-1] - arrivals[0] == (20 * 99 - 20) * MS
        assert measured(stream).inbound_rtp["jitter"] < 0.002

    @pytest.mark.parametrize("step_ms", [60, 200, 500, 900, 1500])
    @pytest.mark.parametrize("jitter_ms", [0, 12])
    def test_a_clock_that_steps_back_while_the_numbers_go_on(self, step_ms: int, jitter_ms: int) -> None:
        rng = random.Random(step_ms)
        true = opus(400, late_ms=lambda _: rng.uniform(0, jitter_ms))
        stepped = [d if i < 200 else replace(d, time_ns=d.time_ns - step_ms * MS) for i, d in enumerate(true)]
        stream = only(stepped)
        assert [w.split(";")[0] for w in stream.warnings] == ["the capture's clock steps back 1 times"]
        assert [t.packet.sequence_number for t in stream.packets] == [(65_000 + i) & 0xFFFF for i in range(400)]
        found, without = measured(stream, "fixed:50"), measured(only(true), "fixed:50")
        # how long the step itself took is not known: one packet's 20 ms at most, and its jitter
        spread_ms = 20 + jitter_ms
        assert (found.last_ns - without.last_ns) / MS == pytest.approx(0, abs=spread_ms)
        assert found.jitter_max_ms is not None
        assert without.jitter_max_ms is not None
        assert found.jitter_max_ms <= without.jitter_max_ms + spread_ms / 16
        assert found.concealed_ms == without.concealed_ms == 0.0

    def test_sections_that_were_put_together_the_wrong_way_round(self) -> None:
        packets = opus(3000)
        for cut in (1500, 40, 2960):
            stream = only([*packets[cut:], *packets[:cut]])
            assert [t.time_ns for t in stream.packets] == [d.time_ns for d in packets]
            assert stream.warnings == ()

    def test_interfaces_that_were_written_in_turns(self) -> None:
        packets = opus(200)
        turns = [d for i in range(0, 200, 20) for d in (*packets[i : i + 20 : 2], *packets[i + 1 : i + 20 : 2])]
        stream = only(turns)
        assert [t.time_ns for t in stream.packets] == [d.time_ns for d in packets]
        assert stream.warnings == ()

    def test_a_file_in_the_order_of_its_numbers(self) -> None:
        rng = random.Random(3)
        packets = opus(300, late_ms=lambda i: 90.0 if i % 40 == 20 else rng.uniform(0, 4))
        stream = only(packets)
        assert [t.time_ns for t in stream.packets] == sorted(d.time_ns for d in packets)
        assert stream.warnings == ()

    def test_interfaces_that_were_merged_out_of_order(self) -> None:
        packets = opus()
        packets[10], packets[11] = packets[11], packets[10]
        stream = only(packets)
        assert [t.time_ns for t in stream.packets] == [START_NS + 20 * i * MS for i in range(50)]
        assert stream.warnings == ()


SDP = (
    "v=0\r\no=- 1 1 IN IP4 192.0.2.1\r\ns=-\r\nc=IN IP4 192.0.2.2\r\nt=0 0\r\n"
    "m=audio 5006 RTP/AVP 96 101\r\na=rtpmap:96 opus/48000/2\r\na=rtpmap:101 telephone-event/8000\r\n"
    "m=video 5006 RTP/AVP 97\r\na=rtpmap:97 VP8/90000\r\n"
    "m=audio 6000 RTP/AVP 98\r\na=rtpmap:98 PCMU/16000\r\n"
)


def sap(text: str = SDP, *, first: int = 0x20, origin: int = 4, authentication: int = 0, mime: bool = True) -> bytes:
    head = struct.pack("!BBH", first, authentication, 1) + bytes(origin + 4 * authentication)
    body = (b"application/sdp\0" if mime else b"") + text.encode()
    return head + (zlib.compress(body) if first & 1 else body)


class TestCodecs:
    def choose(self, datagrams: list[CapturedDatagram], **more: object) -> CodecChoice:
        return choose_codecs(only(datagrams), **{"given": {}, **more})  # type: ignore[arg-type]

    def test_static_payload_types(self) -> None:
        for name in ("pcmu", "pcma", "g722"):
            choice = self.choose(pcmu(pt=CODECS[name].payload_type or 0))
            assert [c.name for c in choice.codecs.values()] == [name]
            assert choice.warnings == ()

    @pytest.mark.parametrize(
        "payload",
        [
            sap(),
            sap(mime=False),
            sap(first=0x30, origin=16),
            sap(first=0x21),
            sap(authentication=3),
        ],
    )
    def test_a_session_description_that_was_announced(self, payload: bytes) -> None:
        described = described_in([datagram(0, payload, ends=(A, ("224.2.127.254", 9875)))])
        assert described == {
            5006: {96: "opus/48000", 101: "telephone-event/8000"},
            6000: {98: "pcmu/16000"},
        }
        choice = self.choose(opus(), described=described)
        assert (choice.codecs, choice.warnings) == ({96: CODECS["opus"]}, ())

    @pytest.mark.parametrize(
        "payload", [b"", sap(first=0x22), sap(first=0x21)[:30], sap(first=0x60), b"\x20\xff" + bytes(20), b"\x20" * 8]
    )
    def test_announcements_that_cannot_be_read(self, payload: bytes) -> None:
        assert described_in([datagram(0, payload, ends=(A, ("224.2.127.254", 9875)))]) == {}

    def test_a_description_of_another_port_says_nothing(self) -> None:
        choice = self.choose(opus(), described={7000: {96: "pcmu/8000"}})
        assert "assumed Opus" in choice.warnings[0]

    def test_what_the_user_says_comes_first(self) -> None:
        described = {5006: {96: "opus/48000"}}
        choice = self.choose(pcmu(pt=96), given={96: CODECS["pcmu"]}, described=described, negotiated={96: "opus"})
        assert (choice.codecs, choice.warnings) == ({96: CODECS["pcmu"]}, ())

    def test_what_the_bundle_says(self) -> None:
        choice = self.choose(opus(), negotiated={96: "opus"})
        assert (choice.codecs, choice.warnings) == ({96: CODECS["opus"]}, ())

    def test_opus_is_assumed_aloud_where_the_durations_agree(self) -> None:
        choice = self.choose(opus())
        assert choice.codecs == {96: CODECS["opus"]}
        assert choice.warnings == ("payload type 96: assumed Opus, since its packets last as long as they should",)

    def test_opus_with_pauses(self) -> None:
        # 20 ms packets that stand for 400 ms of silence each, and speech for a third of the packets
        times = np.cumsum([0, *([20] * 20), *([400] * 39)])
        sent = [
            datagram(START_NS + t * MS, replace(packet(i), timestamp=int(48 * t))) for i, t in enumerate(times.tolist())
        ]
        assert self.choose(sent).codecs == {96: CODECS["opus"]}

    @pytest.mark.parametrize("seed", range(5))
    def test_encrypted_payloads_are_not_taken_for_opus(self, seed: int) -> None:
        rng = random.Random(seed)
        choice = self.choose([datagram(d.time_ns, packet(i, rng.randbytes(70))) for i, d in enumerate(opus(200))])
        assert (choice.codecs, choice.unknown) == ({}, (96,))

    @pytest.mark.parametrize(
        ("payload", "step"),
        [(b"\x78" + bytes(60), 3000), (b"\xef\x0f\x00\x40\x6f" + bytes(90), 960), (PCMU_20_MS, 160), (bytes(4), 0)],
    )
    def test_other_dynamic_types_are_unknown(self, payload: bytes, step: int) -> None:
        # video of 30 frames per second, RED, G.711 on a dynamic type, telephone events
        choice = self.choose([datagram(d.time_ns, packet(i, payload, step=step)) for i, d in enumerate(opus())])
        assert choice.unknown == (96,)
        assert choice.warnings == ("payload type 96: unknown codec, not played",)

    def test_a_clock_rate_that_is_not_the_codecs_own(self) -> None:
        choice = self.choose(opus(), described={5006: {96: "opus/16000"}})
        assert (choice.codecs, choice.warnings) == ({}, ("payload type 96: opus/16000, not played",))

    def test_comfort_noise_and_telephone_events_are_no_codecs(self) -> None:
        sent = [*pcmu(40), *(datagram(START_NS + 10**9 + i, packet(40 + i, b"\x20", pt=13)) for i in range(2))]
        sent += [datagram(START_NS + 2 * 10**9 + i, packet(42 + i, bytes(4), pt=101)) for i in range(3)]
        choice = self.choose(sent, described={5006: {101: "telephone-event/8000"}})
        assert choice.codecs == {0: CODECS["pcmu"]}
        assert choice.unknown == ()
        assert choice.comfort_noise == (13,)
        assert [w.split(":")[1] for w in choice.warnings] == [" 3 packets, counted but not played"]

    def events(self, payloads: list[bytes]) -> CodecChoice:
        sent = [*pcmu(40)]
        sent += [
            datagram(START_NS + (800 + 20 * i) * MS, RtpPacket(101, 65_040 + i, 0xFFFF_1900, 7, p))
            for i, p in enumerate(payloads)
        ]
        return self.choose(sent)

    def test_telephone_events_that_nothing_names(self) -> None:
        key = [struct.pack("!BBH", 5, 10 | (0x80 if i > 4 else 0), 160 * min(i, 5)) for i in range(8)]
        choice = self.events(key)
        assert (choice.codecs, choice.unknown) == ({0: CODECS["pcmu"]}, ())
        assert choice.warnings == ("payload type 101 (telephone-event): 8 packets, counted but not played",)
        # durations that go back, the reserved bit, an event that is no key, another length
        for other in (key[::-1], [b"\x05\x4a\0\xa0"] * 5, [b"\x40\x0a\0\xa0"] * 5, [*key, bytes(5)]):
            assert self.events(other).unknown == (101,)

    def test_durations(self) -> None:
        packets = only(pcmu()).packets
        assert durations_fit(packets, CODECS["pcmu"])
        srtp = only([datagram(d.time_ns, d.payload + bytes(10)) for d in pcmu()]).packets
        assert not durations_fit(srtp, CODECS["pcmu"])


class TestCounters:
    def test_of_packets_alone(self) -> None:
        dress: dict[str, Any] = {"padding": 3, "csrcs": (1, 2), "extension_profile": 0xBEDE, "extension": bytes(8)}
        sent = [datagram(START_NS + 20 * i * MS, replace(packet(i), **dress)) for i in range(10) if i != 4]
        found = measured(only([*sent, sent[-1]])).inbound_rtp
        assert found["packetsReceived"] == 9
        assert found["packetsLost"] == 1
        assert found["bytesReceived"] == 9 * 61
        # all of the datagrams that is not payload
        assert found["headerBytesReceived"] == sum(len(d.payload) for d in sent) - 9 * 61
        assert found["lastPacketReceivedTimestamp"] == pytest.approx(sent[-1].time_ns / 1e6, abs=1e-3)

    def test_what_is_not_known_is_absent(self) -> None:
        relative = [replace(d, time_ns=d.time_ns - START_NS) for d in opus()]
        found = measured(only(relative)).inbound_rtp
        assert "lastPacketReceivedTimestamp" not in found
        assert "jitterBufferTargetDelay" not in found  # `none` aims at nothing
        assert "silentConcealedSamples" not in found
        unheard = {"totalAudioEnergy", "audioLevel", "fecPacketsReceived", "nackCount", "packetsDuplicated"}
        assert not unheard & found.keys()

    def test_an_end_that_is_not_named_is_absent(self) -> None:
        found = measured(only([replace(d, destination=("", 0)) for d in opus()]))
        (entry,) = document("none", [found])["streams"]
        assert (entry["source"], entry["destination"]) == ("192.0.2.1:5004", None)
        assert found.ends == "192.0.2.1:5004"
        assert measured(only(opus())).ends == "192.0.2.1:5004 → 192.0.2.2:5006"

    def test_a_stream_whose_clock_is_not_known_has_no_figures(self) -> None:
        stream = only(pcmu(pt=96))
        assert measure(stream, choose_codecs(stream, given={}), "none") is None

    def test_fixed_delay_by_hand(self) -> None:
        # packet 20 comes 90 ms late, beyond the 50 ms that the buffer holds
        found = measured(only(opus(late_ms=lambda i: 90.0 if i == 20 else 0.0)), "fixed:50")
        assert found.inbound_rtp["packetsDiscarded"] == 1
        assert found.inbound_rtp["concealedSamples"] == 960
        assert found.inbound_rtp["jitterBufferEmittedCount"] == 49 * 960
        assert found.inbound_rtp["jitterBufferDelay"] == pytest.approx(49 * 960 * 0.05)
        assert found.inbound_rtp["totalSamplesDuration"] == pytest.approx(1.0)
        assert found.concealed_ms == pytest.approx(20.0)
        assert sum(p.concealed_ms for p in found.series) == pytest.approx(20.0)
        assert [p.t_s for p in found.series] == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0, 1.2])

    def test_what_the_device_adds_is_said_to_be_assumed(self) -> None:
        choice = choose_codecs(only(opus()), given={})
        found = measure(only(opus()), choice, "fixed:50", output=OutputDelay(30.0, "assumed"))
        assert found is not None
        assert found.media_playout == pytest.approx(
            {"totalSamplesDuration": 1.0, "totalSamplesCount": 48_000, "totalPlayoutDelay": 48_000 * 0.03}
        )
        (entry,) = document("fixed:50", [found])["streams"]
        assert entry["output"] == {"ms": 30.0, "evidence": "assumed"}
        assert entry["media_playout"]["totalSamplesCount"] == 48_000
        without = measured(only(opus()), "fixed:50")
        assert "totalPlayoutDelay" not in without.media_playout
        assert "output" not in document("fixed:50", [without])["streams"][0]

    def test_the_series_has_what_was_stretched_and_thrown_away(self) -> None:
        found = measured(only(opus(late_ms=lambda i: 90.0 if i == 20 else 0.0)), "fixed:50")
        points = document("fixed:50", [found])["streams"][0]["series"]
        assert [p["packets_discarded"] for p in points] == [0, 0, 1, 0, 0, 0]
        sound = encode(CODECS["opus"], np.zeros(5 * 48_000, dtype=np.float32))
        played = measured(only(datagram(START_NS + 20 * i * MS, packet(i, p)) for i, p in enumerate(sound)), "chrome")
        assert sum(p.inserted_ms for p in played.series) == pytest.approx(played.inserted_ms)
        assert sum(p.removed_ms for p in played.series) == pytest.approx(played.removed_ms)
        assert played.inserted_ms > 0  # towards the 80 ms aimed at first
        # from the arrival to the tick that decodes: less than the wait in whole ticks, by no more than one
        said = played.inbound_rtp
        wait = said["jitterBufferDelay"] - said["totalProcessingDelay"]
        assert 0 <= wait <= 0.010 * said["jitterBufferEmittedCount"]
        assert said["totalAudioEnergy"] < 1e-6  # silence, coded

    def test_a_second_talkspurt_and_a_restart_are_one_entry(self) -> None:
        spurt = [
            datagram(START_NS + (3000 + 20 * i) * MS, replace(packet(50 + i), timestamp=i * 960 + 10**6))
            for i in range(50)
        ]
        restart = [
            datagram(START_NS + (9000 + 20 * i) * MS, RtpPacket(96, 20_000 + i, 5 + 960 * i, 7, OPUS_20_MS))
            for i in range(50)
        ]
        parts = [measured(only(part), "fixed:40") for part in (opus(), spurt, restart)]
        whole = measured(only([*opus(), *spurt, *restart]), "fixed:40")
        for name in (
            "packetsReceived",
            "packetsLost",
            "jitterBufferDelay",
            "jitterBufferEmittedCount",
            "bytesReceived",
        ):
            assert whole.inbound_rtp[name] == pytest.approx(sum(p.inbound_rtp[name] for p in parts)), name
        times = [p.t_s for p in whole.series]
        assert times == sorted(times)
        assert times[-1] == pytest.approx(10.2)
        assert [w for w in whole.warnings if "restarts" in w] == ["the sender restarts: 2 streams one after the other"]

    def test_another_codec_in_between(self) -> None:
        narrow = [replace(d, time_ns=d.time_ns + 10**9) for d in pcmu()]
        narrow = [datagram(d.time_ns, packet(50 + i, PCMU_20_MS, pt=0, step=160)) for i, d in enumerate(narrow)]
        found = measured(only([*opus(), *narrow]), "fixed:40")
        assert found.inbound_rtp["packetsLost"] == 0
        assert found.inbound_rtp["jitterBufferEmittedCount"] == 50 * 960 + 50 * 160
        assert any("different rates" in w for w in found.warnings)

    def test_a_policy_that_is_none(self) -> None:
        with pytest.raises(UsageError, match="magic"):
            measured(only(opus()), "magic")

    @pytest.mark.parametrize("policy", ["chrome", "fixed:50", "none"])
    def test_encrypted_g711_has_packet_statistics_alone(self, policy: str) -> None:
        stream = only([datagram(d.time_ns, d.payload + bytes(10)) for d in pcmu()])
        found = measured(stream, policy)
        assert found.inbound_rtp["packetsReceived"] == 50
        assert "jitterBufferDelay" not in found.inbound_rtp
        assert found.concealed_ms is None
        assert found.series == ()
        assert "encrypted (SRTP)" in found.warnings[0]

    @pytest.mark.parametrize("policy", ["chrome", "fixed:50", "none"])
    @pytest.mark.parametrize("there", [12, 13, 14, 20, 60])
    @pytest.mark.parametrize("codec", ["opus", "pcmu", "g722"])
    def test_packets_captured_in_part(self, policy: str, there: int, codec: str) -> None:
        whole = opus() if codec == "opus" else pcmu(pt=CODECS[codec].payload_type)
        cut = [replace(d, payload=d.payload[:there], missing_bytes=len(d.payload) - there) for d in whole]
        choice = choose_codecs(only(whole), given={})
        found, full = measure(only(cut), choice, policy), measure(only(whole), choice, policy)
        assert found is not None
        assert full is not None
        assert (
            found.inbound_rtp["bytesReceived"] == full.inbound_rtp["bytesReceived"] == 50 * len(whole[0].payload[12:])
        )
        assert found.inbound_rtp["headerBytesReceived"] == 50 * 12
        # how long an Opus packet lasts is said in its first byte
        if policy == "chrome" or (codec == "opus" and there == 12):
            assert "jitterBufferDelay" not in found.inbound_rtp
            assert found.concealed_ms is None
            assert any("captured in part" in w for w in found.warnings)
        else:
            assert found.inbound_rtp == full.inbound_rtp
            assert (found.concealed_ms, found.series) == (0.0, full.series)

    @pytest.mark.parametrize("codec", ["opus", "pcmu"])
    @pytest.mark.parametrize("dress", [{"padding": 20}, {"extension_profile": 0xBEDE, "extension": bytes(8)}])
    def test_a_length_that_was_not_captured_is_not_known(self, codec: str, dress: dict[str, Any]) -> None:
        whole = opus(**dress) if codec == "opus" else pcmu(**dress)
        there = 60 if "padding" in dress else 14
        cut = [replace(d, payload=d.payload[:there], missing_bytes=len(d.payload) - there) for d in whole]
        choice = choose_codecs(only(whole), given={})
        found = measure(only(cut), choice, "fixed:50")
        assert found is not None
        assert found.inbound_rtp["packetsReceived"] == 50
        assert not {"bytesReceived", "headerBytesReceived"} & found.inbound_rtp.keys()
        if codec == "opus" and "padding" in dress:
            assert found.inbound_rtp["totalSamplesReceived"] == 48_000
            assert found.concealed_ms == 0.0
        else:
            assert found.concealed_ms is None
            assert any("captured in part" in w for w in found.warnings)
        uncut = measure(only(whole), choice, "fixed:50")
        assert uncut is not None
        assert uncut.inbound_rtp["headerBytesReceived"] == 50 * (12 + (20 if "padding" in dress else 12))

    def test_payloads_cut_off_behind_the_header_are_not_taken_for_opus(self) -> None:
        # were what is missing filled up with zeros, they would be Opus of 10 ms
        cut = [replace(d, payload=d.payload[:12], missing_bytes=61) for d in opus(step=480)]
        assert choose_codecs(only(cut), given={}).unknown == (96,)

    @pytest.mark.parametrize("policy", ["chrome", "fixed:50"])
    def test_empty_payloads_are_passed_over(self, policy: str) -> None:
        rng = np.random.default_rng(1)
        sound = [rng.integers(0, 256, 160, dtype=np.uint8).tobytes() if i % 10 else b"" for i in range(200)]
        sent = [datagram(START_NS + 20 * i * MS, packet(i, p, pt=0, step=160)) for i, p in enumerate(sound)]
        found = measured(only(sent), policy)
        assert found.inbound_rtp["packetsReceived"] == 200
        assert found.inbound_rtp["packetsLost"] == 0
        assert found.inbound_rtp["jitterBufferEmittedCount"] == pytest.approx(180 * 160, abs=0.1 * 180 * 160)
        assert found.warnings == ("20 packets have an empty payload: counted but not played",)
        if policy != "chrome":  # whose concealment may be stretched; the first one leaves no gap
            assert found.concealed_ms == pytest.approx(19 * 20)

    def test_the_codecs_of_a_stream_that_changes_are_named(self) -> None:
        sent = [datagram(START_NS + 20 * i * MS, packet(i, PCMU_20_MS, pt=8 * (i >= 60), step=160)) for i in range(100)]
        found = measured(only(sent), "fixed:50")
        assert found.warnings == ("the codec changes: payload types 0 (pcmu, 60 packets) and 8 (pcma, 40 packets)",)
        assert found.inbound_rtp["totalSamplesReceived"] == 100 * 160

    def with_noise(self, codec: str) -> list[CapturedDatagram]:
        """Twice 1 s of sound, and 1 s between them with comfort noise every 200 ms."""
        kind, made = CODECS[codec], []
        for i in [*range(50), *range(50, 100, 10), *range(100, 150)]:
            is_noise = 50 <= i < 100
            payload = b"\x3c" if is_noise else PCMU_20_MS
            number = 13 if is_noise else kind.payload_type or 0
            rtp = RtpPacket(number, 65_000 + len(made), 160 * i, 7, payload)
            made.append(datagram(START_NS + 20 * i * MS, rtp))
        return made

    def test_comfort_noise_is_played_by_chrome(self) -> None:
        stream = only(self.with_noise("pcmu"))
        found = measured(stream, "chrome")
        assert found.concealed_ms == 0
        assert found.inbound_rtp["packetsLost"] == 0
        # 105 packets, each of which counts as 20 ms
        assert found.inbound_rtp["jitterBufferEmittedCount"] == 105 * 160
        assert found.inbound_rtp["totalSamplesReceived"] == pytest.approx(3 * 8000, abs=640)
        assert found.warnings == ()
        (said,) = measured(stream, "fixed:50").warnings
        assert said == "5 packets of comfort noise (RFC 3389): counted but not played"

    def test_comfort_noise_counts_for_the_jitter(self) -> None:
        sent = self.with_noise("pcmu")
        late = [replace(d, time_ns=d.time_ns + 16 * MS * (i == 52)) for i, d in enumerate(sent[:53])]
        # the last of them, of comfort noise, is 16 ms late: a sixteenth of that is the jitter (RFC 3550 A.8)
        assert measured(only(late)).inbound_rtp["jitter"] == pytest.approx(0.001)

    def test_comfort_noise_beside_wideband_is_not_played(self) -> None:
        found = measured(only(self.with_noise("g722")), "chrome")
        assert found.concealed_ms == pytest.approx(1000, abs=60)
        assert found.warnings == (
            "5 packets of comfort noise (RFC 3389): counted but not played, since they lie beside sound of another "
            "sampling rate",
        )

    @pytest.mark.parametrize("step_ms", [250, 300, 3_600_000])
    def test_a_clock_that_is_set_forward_is_said(self, step_ms: int) -> None:
        sent = [replace(d, time_ns=d.time_ns + step_ms * MS * (i >= 100)) for i, d in enumerate(opus(200))]
        (warning,) = [w for w in measured(only(sent), "fixed:50").warnings if "clock" in w]
        assert warning.startswith(f"2.0 s after the first packet the time jumps {step_ms} ms ahead of the timestamps")
        assert measured(only(sent)).last_ns == sent[-1].time_ns

    @pytest.mark.parametrize("kind", ["stall", "pause", "loss", "slower"])
    def test_no_clock_was_set_where_packets_say_why(self, kind: str) -> None:
        packets = opus(200)
        if kind == "stall":  # 2 s, then all at once
            packets = [
                replace(d, time_ns=max(d.time_ns, START_NS + 4 * NS_S) if i >= 100 else d.time_ns)
                for i, d in enumerate(packets)
            ]
        elif kind == "pause":
            later = [
                datagram(
                    d.time_ns + 3 * NS_S, replace(packet(i), timestamp=(0xFFFF_0000 + 960 * i + 144_000) & 0xFFFF_FFFF)
                )
                for i, d in enumerate(packets)
            ]
            packets = [*packets[:100], *later[100:]]
        elif kind == "loss":
            packets = [*packets[:100], *packets[130:]]
        else:  # a route that is longer by less than what is called a jump
            packets = [replace(d, time_ns=d.time_ns + 150 * MS * (i >= 100)) for i, d in enumerate(packets)]
        assert not any("clock" in w for w in measured(only(packets)).warnings)

    def test_a_call_of_many_hours_is_played(self) -> None:
        long = b"\x1b\x02" + bytes(2)  # two frames of 60 ms
        sent = [datagram(START_NS + 120 * i * MS, packet(i, long, step=5760)) for i in range(150_000)]
        found = measured(only(sent), "fixed:50")
        assert found.inbound_rtp["totalSamplesDuration"] == pytest.approx(18_000.0)  # 3.4 GB of samples
        assert found.inbound_rtp["jitterBufferDelay"] == pytest.approx(150_000 * 5760 * 0.05)

    def test_payloads_that_cannot_be_decoded_are_said(self) -> None:
        sound = encode(CODECS["opus"], np.zeros(48_000, dtype=np.float32))
        sent = [datagram(START_NS + 20 * i * MS, packet(i, p)) for i, p in enumerate(sound)]
        clean = measured(only(sent), "chrome")
        assert not any("cannot be decoded" in w for w in clean.warnings)
        sent[20] = datagram(sent[20].time_ns, packet(20, b"\x7b\x41\xff" + bytes(3)))  # padding beyond its end
        assert any("1 packets cannot be decoded" in w for w in measured(only(sent), "chrome").warnings)

    @settings(max_examples=100, deadline=None)
    @given(
        moves=st.lists(
            st.tuples(st.integers(0, 2**16 - 1), st.integers(0, 2**32 - 1), st.integers(-(10**12), 10**12)), max_size=6
        ),
        policy=st.sampled_from(["chrome", "fixed:50", "none"]),
    )
    def test_whatever_the_packets_claim(self, moves: list[tuple[int, int, int]], policy: str) -> None:
        """Numbers, timestamps and times that jump anywhere give figures or none, and no hang."""
        sent = opus(60)
        for k, (sequence, timestamp, moved_ns) in enumerate(moves):
            at = (7 * k + 3) % 60
            odd = replace(packet(at), sequence_number=sequence, timestamp=timestamp)
            sent[at] = datagram(max(0, sent[at].time_ns + moved_ns), odd)
        for stream in find_streams(sent):
            found = measure(stream, CodecChoice({96: CODECS["opus"]}), policy)
            assert found is not None
            assert 0 < found.inbound_rtp["packetsReceived"] <= 60
            assert found.inbound_rtp["packetsLost"] >= 0
            assert document(policy, [found])["streams"][0]["ssrc"] == 7


class TestTshark:
    """Wireshark's own list of RTP streams, to the digits that it prints."""

    COLUMNS = (
        "delta_min_ms",
        "delta_mean_ms",
        "delta_max_ms",
        "jitter_min_ms",
        "jitter_mean_ms",
        "jitter_max_ms",
    )

    def streams(self, tshark: str, path: Path) -> dict[str, str]:
        command = [tshark, "-r", str(path), "-q", "-z", "rtp,streams"]
        done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60)
        (line,) = [line for line in done.stdout.splitlines() if " 0x" in line]
        fields = line.split()
        lost = next(i for i, field in enumerate(fields) if field.startswith("(")) - 1
        return {
            "packets": fields[lost - 1],
            "lost": fields[lost],
            **dict(zip(self.COLUMNS, fields[lost + 2 : lost + 8], strict=True)),
        }

    def compare(self, tshark: str, path: Path, arrivals: list[tuple[int, RtpPacket]]) -> tuple[dict[str, str], Inbound]:
        own, announced = Endpoints(Direction.RECEIVED, A, B), Endpoints(Direction.RECEIVED, A, ("224.2.127.254", 9875))
        records = [own.record(time_ns, serialize_rtp(p)) for time_ns, p in arrivals]
        path.write_bytes(pcap_header() + announced.record(arrivals[0][0] - 10**9, sap()) + b"".join(records))
        theirs = self.streams(tshark, path)
        capture = read_capture(path)
        stream = only(capture.datagrams)
        choice = choose_codecs(stream, given={}, described=described_in(capture.datagrams))
        assert choice.warnings == ()
        ours = arrival_statistics(stream.packets, 48_000)
        for name in self.COLUMNS:
            digits = len(theirs[name].partition(".")[2])
            assert digits >= 2
            assert f"{getattr(ours, name):.{digits}f}" == theirs[name], name
        found = measure(stream, choice, "none")
        assert found is not None
        assert found.jitter_mean_ms == ours.jitter_mean_ms
        assert found.jitter_max_ms == ours.jitter_max_ms
        # the same sequence of jitters, of which W3C reports the last
        assert ours.jitter_last_ms is not None
        assert found.inbound_rtp["jitter"] == pytest.approx(ours.jitter_last_ms / 1000, rel=1e-9)
        assert str(found.inbound_rtp["packetsReceived"]) == theirs["packets"]
        return theirs, found

    def arrivals(self, spread_ms: int, *, lost: float, seed: int) -> list[tuple[int, RtpPacket]]:
        rng = random.Random(seed)
        times = [START_NS + 20 * i * MS + rng.randrange(spread_ms * MS) for i in range(2000)]
        kept = [(t, packet(i)) for i, t in enumerate(times) if i in (0, 1999) or rng.random() >= lost]
        return sorted(kept, key=lambda arrived: arrived[0])

    @pytest.mark.parametrize("seed", range(3))
    def test_jitter_loss_and_delta(self, need: Callable[[str, str], str], tmp_path: Path, seed: int) -> None:
        sent = self.arrivals(15, lost=0.03, seed=seed)  # less than 20 ms: in order
        theirs, found = self.compare(need("tshark", "tshark"), tmp_path / "x.pcap", sent)
        assert found.inbound_rtp["packetsLost"] == int(theirs["lost"]) == 2000 - len(sent)

    def test_pauses_of_the_sender(self, need: Callable[[str, str], str], tmp_path: Path) -> None:
        sent = self.arrivals(15, lost=0.0, seed=5)
        paused = [
            (t + i // 500 * 7 * 10**9, replace(p, timestamp=(p.timestamp + i // 500 * 7 * 48_000) & 0xFFFF_FFFF))
            for i, (t, p) in enumerate(sent)
        ]
        theirs, found = self.compare(need("tshark", "tshark"), tmp_path / "x.pcap", paused)
        assert found.inbound_rtp["packetsLost"] == int(theirs["lost"]) == 0
        assert float(theirs["delta_max_ms"]) > 6900

    def test_packets_out_of_order(self, need: Callable[[str, str], str], tmp_path: Path) -> None:
        tshark = need("tshark", "tshark")
        version = subprocess.run([tshark, "--version"], check=True, capture_output=True, text=True, timeout=60).stdout
        if not re.search(r"TShark \(Wireshark\) 4\.0\.", version):
            return  # later versions compare with the newest packet, not with the one that arrived before (RFC 3550)
        sent = self.arrivals(60, lost=0.03, seed=7)
        # The first and the last to arrive are those of the lowest and the highest number, from which tshark counts, and
        # no number wraps, of which it loses count where packets change places.
        sent = [(START_NS - 10 * MS, packet(-1)), *sent, (START_NS + 41 * 10**9, packet(2000))]
        sent = [(t, replace(p, sequence_number=(p.sequence_number - 60_000) & 0xFFFF)) for t, p in sent]
        assert any(b.sequence_number < a.sequence_number for (_, a), (_, b) in pairwise(sent))
        theirs, found = self.compare(tshark, tmp_path / "x.pcap", sent)
        assert found.inbound_rtp["packetsLost"] == int(theirs["lost"]) == 2002 - len(sent)

    def test_too_little_to_compare(self) -> None:
        one = only(opus()).packets[:1]
        assert arrival_statistics(one, 48_000).jitter_mean_ms is None
        assert arrival_statistics((), 48_000).delta_max_ms is None


@pytest.mark.parametrize("name", sorted(path.stem for path in GOLDEN.glob("*.pcap")))
def test_what_a_browser_said_of_the_same_packets(name: str) -> None:
    stream = only(read_capture(GOLDEN / f"{name}.pcap").datagrams)
    browser = browser_series(GOLDEN / f"{name}.stats.json")
    last = browser["t"][browser["t"] <= stream.packets[-1].time_ns * NS][-1]
    until = replace(stream, packets=tuple(t for t in stream.packets if t.time_ns * NS <= last))
    found, theirs = measured(until, "chrome"), Row.at(browser, last)
    said = found.inbound_rtp
    # the tolerances of test_chrome_reference: how far the browser agrees with itself, and one of its ticks
    delay_ms = 1000 * said["jitterBufferDelay"] / said["jitterBufferEmittedCount"]
    target_ms = 1000 * said["jitterBufferTargetDelay"] / said["jitterBufferEmittedCount"]
    assert delay_ms == pytest.approx(theirs.delay, abs=max(2.0, 0.04 * theirs.delay))
    assert target_ms == pytest.approx(theirs.target, abs=2.0)
    assert found.concealed_ms == pytest.approx(theirs.concealed, abs=max(40.0, 0.2 * theirs.concealed))
    assert found.inserted_ms == pytest.approx(theirs.inserted, abs=max(40.0, 0.2 * theirs.inserted))
    assert found.removed_ms == pytest.approx(theirs.removed, abs=max(40.0, 0.2 * theirs.removed))
    assert [p.t_s for p in found.series] == sorted(p.t_s for p in found.series)
