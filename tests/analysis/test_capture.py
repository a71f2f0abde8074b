"""Captures of every kind: the same datagrams whatever they are wrapped in, and what is read of damaged ones."""

from __future__ import annotations

import gzip
import ipaddress
import json
import struct
import subprocess
import tracemalloc
from collections.abc import Callable
from itertools import accumulate
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from analysis.capture import Capture, CapturedDatagram, read_capture
from analysis.capture_frames import Direction, Passed, Udp, parse_frame
from analysis.errors import UsageError
from analysis.pcap import Endpoints, pcap_header

TIME_NS = 1_800_000_000_123_456_789
V4 = ("192.0.2.1", 5004), ("203.0.113.9", 65535)
V6 = ("2001:db8::1", 5004), ("2001:db8::2", 1)
GOLDEN = Path(__file__).resolve().parent.parent / "golden" / "chrome"
Ends = tuple[tuple[str, int], tuple[str, int]]


def udp(ends: Ends, payload: bytes, *, length: int | None = None) -> bytes:
    return struct.pack("!HHHH", ends[0][1], ends[1][1], 8 + len(payload) if length is None else length, 0) + payload


def ipv4(ends: Ends, body: bytes, *, options: bytes = b"", fragment: int = 0x4000, protocol: int = 17) -> bytes:
    words = 5 + len(options) // 4
    head = struct.pack("!BBHHHBBH", 0x40 | words, 0, 4 * words + len(body), 7, fragment, 64, protocol, 0)
    return head + b"".join(ipaddress.ip_address(end[0]).packed for end in ends) + options + body


def ipv6(ends: Ends, body: bytes, *, extensions: tuple[tuple[int, bytes], ...] = ()) -> bytes:
    numbers = [number for number, _ in extensions] + [17]
    chain = b"".join(bytes([after]) + data for after, (_, data) in zip(numbers[1:], extensions, strict=True))
    head = struct.pack("!IHBB", 6 << 28, len(chain) + len(body), numbers[0], 64)
    return head + b"".join(ipaddress.ip_address(end[0]).packed for end in ends) + chain + body


def ethernet(packet: bytes, *, tags: bytes = b"") -> bytes:
    ether = b"\x86\xdd" if packet[0] >> 4 == 6 else b"\x08\x00"
    return bytes(12) + tags + ether + packet


def pcap(
    frames: list[tuple[int, bytes]],
    link_type: int = 1,
    *,
    order: str = "<",
    nanoseconds: bool = True,
    cut: int = 1 << 20,
) -> bytes:
    magic, unit = (0xA1B23C4D, 1) if nanoseconds else (0xA1B2C3D4, 1000)
    chunks = [struct.pack(f"{order}IHHiIII", magic, 2, 4, 0, 0, 262144, link_type)]
    for time_ns, frame in frames:
        kept = frame[:cut]
        chunks.append(struct.pack(f"{order}IIII", time_ns // 10**9, time_ns % 10**9 // unit, len(kept), len(frame)))
        chunks.append(kept)
    return b"".join(chunks)


class Ng:
    """Writes pcapng blocks in one byte order."""

    def __init__(self, order: str = "<") -> None:
        self.order = order

    def block(self, kind: int, body: bytes) -> bytes:
        body += bytes(-len(body) % 4)
        size = struct.pack(f"{self.order}I", 12 + len(body))
        return struct.pack(f"{self.order}I", kind) + size + body + size

    def option(self, code: int, value: bytes) -> bytes:
        return struct.pack(f"{self.order}HH", code, len(value)) + value + bytes(-len(value) % 4)

    def section(self) -> bytes:
        return self.block(0x0A0D0D0A, struct.pack(f"{self.order}IHHq", 0x1A2B3C4D, 1, 0, -1))

    def interface(self, link_type: int = 1, *, resolution: int | None = None, offset_s: int | None = None) -> bytes:
        body = struct.pack(f"{self.order}HHI", link_type, 0, 0) + self.option(2, b"eth0")
        if resolution is not None:
            body += self.option(9, bytes([resolution]))
        if offset_s is not None:
            body += self.option(14, struct.pack(f"{self.order}q", offset_s))
        return self.block(1, body + self.option(0, b""))

    def enhanced(self, time: int, frame: bytes, *, interface: int = 0, flags: int | None = None) -> bytes:
        body = struct.pack(f"{self.order}IIIII", interface, time >> 32, time & 0xFFFFFFFF, len(frame), len(frame))
        body += frame + bytes(-len(frame) % 4)
        if flags is not None:
            body += self.option(2, struct.pack(f"{self.order}I", flags)) + self.option(0, b"")
        return self.block(6, body)

    def obsolete(self, time: int, frame: bytes) -> bytes:
        body = struct.pack(f"{self.order}HHIIII", 0, 0, time >> 32, time & 0xFFFFFFFF, len(frame), len(frame))
        return self.block(2, body + frame)

    def simple(self, frame: bytes) -> bytes:
        return self.block(3, struct.pack(f"{self.order}I", len(frame)) + frame)


def rtpdump(records: list[tuple[int, int, bytes]], *, start_s: int = 1_800_000_000) -> bytes:
    data = b"#!rtpplay1.0 203.0.113.9/5006\n"
    data += struct.pack("!II4sHH", start_s, 500_000, bytes([192, 0, 2, 1]), 5004, 0)
    for offset_ms, whole, payload in records:
        data += struct.pack("!HHI", 8 + len(payload), whole, offset_ms) + payload
    return data


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "capture"


def read(path: Path, data: bytes) -> Capture:
    path.write_bytes(data)
    return read_capture(path)


VOICE = ethernet(ipv4(V4, udp(V4, b"voice")))
EXPECTED = CapturedDatagram(TIME_NS, *V4, b"voice")


class TestFrames:
    @pytest.mark.parametrize(
        ("link_type", "before"),
        [
            (1, bytes(12) + b"\x08\x00"),
            (1, bytes(12) + b"\x81\x00\x00\x05\x08\x00"),
            (1, bytes(12) + b"\x88\xa8\x00\x05\x81\x00\x00\x07\x08\x00"),
            (12, b""),
            (14, b""),
            (101, b""),
            (228, b""),
            (0, struct.pack("<I", 2)),
            (0, struct.pack(">I", 2)),
            (108, struct.pack(">I", 2)),
        ],
    )
    def test_ipv4_under_each_link_layer(self, link_type: int, before: bytes) -> None:
        assert parse_frame(link_type, before + ipv4(V4, udp(V4, b"voice"))) == Udp(*V4, b"voice")

    @pytest.mark.parametrize(
        ("link_type", "before"),
        [(1, bytes(12) + b"\x86\xdd"), (101, b""), (229, b""), (0, struct.pack("<I", 30)), (0, struct.pack("<I", 10))],
    )
    def test_ipv6_under_each_link_layer(self, link_type: int, before: bytes) -> None:
        assert parse_frame(link_type, before + ipv6(V6, udp(V6, b"voice"))) == Udp(*V6, b"voice")

    @pytest.mark.parametrize(
        ("packet_type", "direction"),
        [
            (0, Direction.RECEIVED),
            (1, Direction.RECEIVED),
            (2, Direction.RECEIVED),
            (3, None),  # to somebody else
            (4, Direction.SENT),
        ],
    )
    def test_linux_cooked_says_the_direction(self, packet_type: int, direction: Direction | None) -> None:
        packet = ipv4(V4, udp(V4, b"voice"))
        sll = struct.pack("!HHH8sH", packet_type, 1, 6, bytes(8), 0x0800) + packet
        sll2 = struct.pack("!HHIHBB8s", 0x0800, 0, 3, 1, packet_type, 6, bytes(8)) + packet
        assert parse_frame(113, sll) == parse_frame(276, sll2) == Udp(*V4, b"voice", direction)

    def test_ipv4_options_and_ipv6_extension_headers_are_passed_over(self) -> None:
        assert parse_frame(101, ipv4(V4, udp(V4, b"voice"), options=bytes(8))) == Udp(*V4, b"voice")
        extensions = (
            (0, bytes([0]) + bytes(6)),  # hop by hop
            (60, bytes([1]) + bytes(14)),  # destination options of 16 bytes
            (51, bytes([4]) + bytes(22)),  # authentication counts words of 4, less two
            (44, bytes(7)),  # a fragment that is the whole
        )
        assert parse_frame(101, ipv6(V6, udp(V6, b"voice"), extensions=extensions)) == Udp(*V6, b"voice")

    @pytest.mark.parametrize("fragment", [0x2000, 0x0001, 0x1FFF])
    def test_fragments_give_no_datagram(self, fragment: int) -> None:
        assert parse_frame(101, ipv4(V4, udp(V4, b"voice"), fragment=fragment)) is Passed.FRAGMENT

    @pytest.mark.parametrize("offset", [b"\x00\x01", b"\x00\x08", b"\xff\xf8"])
    def test_fragments_of_ipv6_give_no_datagram(self, offset: bytes) -> None:
        packet = ipv6(V6, udp(V6, b"voice"), extensions=((44, b"\0" + offset + bytes(4)),))
        assert parse_frame(101, packet) is Passed.FRAGMENT

    def test_what_is_not_udp(self) -> None:
        assert parse_frame(101, ipv4(V4, bytes(40), protocol=6)) is Passed.NOT_UDP
        assert parse_frame(1, bytes(12) + b"\x08\x06" + bytes(28)) is Passed.NOT_UDP
        assert parse_frame(101, b"\x40" + bytes(40)) is Passed.NOT_UDP
        assert parse_frame(127, VOICE) is Passed.LINK_TYPE

    @pytest.mark.parametrize("length", [0, 7, 14, 0xFFFF])
    def test_a_udp_length_that_cannot_be_gives_what_is_there(self, length: int) -> None:
        assert parse_frame(101, ipv4(V4, udp(V4, b"voice", length=length))) == Udp(*V4, b"voice")

    def test_padding_of_the_link_layer_is_no_payload(self) -> None:
        assert parse_frame(1, VOICE + bytes(13)) == Udp(*V4, b"voice")

    def test_what_a_snap_length_cut_off_is_missing(self) -> None:
        assert parse_frame(1, VOICE[:-2], cut=True) == Udp(*V4, b"voi", None, 2)
        assert parse_frame(1, VOICE[:-2], cut=False) == Udp(*V4, b"voi")

    @pytest.mark.parametrize("link_type", [0, 1, 101, 108, 113, 276])
    def test_cut_at_every_byte(self, link_type: int) -> None:
        before = {0: 4, 1: 14, 101: 0, 108: 4, 113: 16, 276: 20}[link_type]
        whole = VOICE[14 - before :] if before <= 14 else bytes(before - 14) + VOICE
        whole = b"\x08\x00" + whole[2:] if link_type == 276 else whole
        assert isinstance(parse_frame(link_type, whole), Udp)
        for length in range(before + 28):
            assert parse_frame(link_type, whole[:length]) is Passed.NOT_UDP

    @settings(max_examples=300)
    @given(link_type=st.sampled_from([0, 1, 101, 113, 276]), frame=st.binary(max_size=100))
    def test_any_bytes(self, link_type: int, frame: bytes) -> None:
        assert isinstance(parse_frame(link_type, frame), Udp | Passed)


class TestPcap:
    @pytest.mark.parametrize("order", ["<", ">"])
    @pytest.mark.parametrize("nanoseconds", [True, False])
    def test_byte_orders_and_units(self, path: Path, order: str, nanoseconds: bool) -> None:
        found = read(path, pcap([(TIME_NS, VOICE)], order=order, nanoseconds=nanoseconds))
        time_ns = TIME_NS if nanoseconds else TIME_NS // 1000 * 1000
        assert found == Capture((CapturedDatagram(time_ns, *V4, b"voice"),))

    def test_the_length_of_a_checksum_in_the_link_type(self, path: Path) -> None:
        assert read(path, pcap([(TIME_NS, VOICE)], 1 | 0x24000000)).datagrams == (EXPECTED,)

    def test_a_snap_length(self, path: Path) -> None:
        (found,) = read(path, pcap([(TIME_NS, VOICE)], cut=len(VOICE) - 3)).datagrams
        assert (found.payload, found.missing_bytes) == (b"vo", 3)

    def test_what_is_passed_over_is_counted(self, path: Path) -> None:
        tcp, piece = ethernet(ipv4(V4, bytes(40), protocol=6)), ethernet(ipv4(V4, bytes(40), fragment=0x2000))
        found = read(path, pcap([(TIME_NS, frame) for frame in (tcp, VOICE, piece, tcp)]))
        assert found.datagrams == (EXPECTED,)
        assert found.warnings == (
            "capture: 1 packet passed over: fragments of IP packets",
            "capture: 2 packets passed over: not UDP over IP",
        )

    def test_a_link_type_that_is_not_read(self, path: Path) -> None:
        with pytest.raises(UsageError, match="link type 127"):
            read(path, pcap([(TIME_NS, VOICE)], 127))
        assert read(path, pcap([], 127)).datagrams == ()


class TestPcapng:
    @pytest.mark.parametrize("order", ["<", ">"])
    def test_blocks(self, path: Path, order: str) -> None:
        ng, microseconds = Ng(order), TIME_NS // 1000
        data = ng.section() + ng.block(0x0BAD, bytes(40)) + ng.interface() + ng.block(5, bytes(16))
        data += ng.enhanced(microseconds, VOICE) + ng.obsolete(microseconds + 1, VOICE) + ng.simple(VOICE)
        data += ng.enhanced(microseconds + 2, VOICE)
        found = read(path, data)
        assert [d.time_ns for d in found.datagrams] == [(microseconds + i) * 1000 for i in range(3)]
        assert {(d.source, d.destination, d.payload) for d in found.datagrams} == {(*V4, b"voice")}
        assert found.warnings == ("capture: 1 packet passed over: without a time that can be used",)

    @pytest.mark.parametrize(
        ("resolution", "units"),
        [(9, TIME_NS), (6, TIME_NS // 1000), (3, TIME_NS // 10**6), (0x80 | 30, (TIME_NS << 30) // 10**9)],
    )
    def test_resolutions(self, path: Path, resolution: int, units: int) -> None:
        ng = Ng()
        (found,) = read(path, ng.section() + ng.interface(resolution=resolution) + ng.enhanced(units, VOICE)).datagrams
        step_ns = 2 if resolution & 0x80 else 10 ** (9 - resolution)
        assert 0 <= TIME_NS - found.time_ns < step_ns

    def test_several_interfaces_each_with_its_own_link_type_and_time(self, path: Path) -> None:
        ng = Ng()
        data = ng.section() + ng.interface(101, resolution=9) + ng.interface(1, resolution=6, offset_s=1_800_000_000)
        data += ng.enhanced(123_456, VOICE, interface=1) + ng.enhanced(TIME_NS, VOICE[14:], interface=0)
        data += ng.enhanced(1, VOICE, interface=2)
        found = read(path, data)
        assert [d.time_ns for d in found.datagrams] == [1_800_000_000_123_456_000, TIME_NS]
        assert found.warnings == ("capture: 1 packet passed over: of an interface that the file does not describe",)

    def test_a_section_has_interfaces_and_a_byte_order_of_its_own(self, path: Path) -> None:
        small, big = Ng("<"), Ng(">")
        data = small.section() + small.interface(101) + small.enhanced(7, VOICE[14:])
        data += big.section() + big.interface(1) + big.enhanced(8, VOICE)
        assert [d.time_ns for d in read(path, data).datagrams] == [7000, 8000]

    @pytest.mark.parametrize(("flags", "direction"), [(1, Direction.RECEIVED), (2, Direction.SENT), (0, None)])
    def test_direction(self, path: Path, flags: int, direction: Direction | None) -> None:
        ng = Ng()
        (found,) = read(path, ng.section() + ng.interface() + ng.enhanced(7, VOICE, flags=flags)).datagrams
        assert found.direction is direction

    def test_a_time_beyond_all_reason_is_no_time(self, path: Path) -> None:
        ng = Ng()
        data = ng.section() + ng.interface(resolution=0) + ng.enhanced((1 << 64) - 1, VOICE)
        data += ng.interface(resolution=9, offset_s=-(1 << 62)) + ng.enhanced(5, VOICE, interface=1)
        found = read(path, data)
        assert found.datagrams == ()
        assert found.warnings == ("capture: 2 packets passed over: without a time that can be used",)

    def test_a_packet_longer_than_its_block(self, path: Path) -> None:
        ng = Ng()
        wrong = ng.block(6, struct.pack("<IIIII", 0, 0, 7, 0xFFFFFFFF, 0xFFFFFFFF) + VOICE)
        found = read(path, ng.section() + ng.interface() + wrong + ng.enhanced(7, VOICE))
        assert len(found.datagrams) == 1
        assert found.warnings == ("capture: 1 packet passed over: longer than their block",)

    @pytest.mark.parametrize("size", [0, 8, 13, 0xFFFFFFFC, 0xFFFFFFFF])
    @pytest.mark.parametrize("kind", [1, 6, 0x0BAD, 0x0A0D0D0A])
    def test_a_block_length_that_cannot_be(self, path: Path, kind: int, size: int) -> None:
        ng = Ng()
        whole = ng.section() + ng.interface() + ng.enhanced(7, VOICE)
        found = read(path, whole + struct.pack("<II", kind, size) + b"\x4d\x3c\x2b\x1a" + bytes(1000))
        assert len(found.datagrams) == 1
        assert len(found.warnings) == 1
        assert "cut off or damaged" in found.warnings[0]


class TestRtpdump:
    RTP = b"\x80\x00" + bytes(10) + b"voice"

    def test_records(self, path: Path) -> None:
        rtcp = b"\x80\xc8" + bytes(6)
        records = [(0, len(self.RTP), self.RTP), (20, 0, rtcp), (40, 100, self.RTP), (60, 0, self.RTP)]
        found = read(path, rtpdump(records))
        start_ns, ends = 1_800_000_000_500_000_000, (("192.0.2.1", 5004), ("203.0.113.9", 5006))
        assert found.datagrams == (
            CapturedDatagram(start_ns, *ends, self.RTP),
            CapturedDatagram(start_ns + 20_000_000, *ends, rtcp),
            CapturedDatagram(start_ns + 40_000_000, *ends, self.RTP, None, 100 - len(self.RTP)),
        )
        assert found.warnings == (
            "capture: rtpdump, its times are whole milliseconds",
            "capture: 1 packet passed over: RTCP records that hold no RTCP",
        )

    def test_one_end_that_is_written_twice_is_not_both(self, path: Path) -> None:
        same = rtpdump([(0, len(self.RTP), self.RTP)]).replace(b"203.0.113.9/5006", b"192.0.2.1/5004")
        (datagram,) = read(path, same).datagrams
        assert (datagram.source, datagram.destination) == (("192.0.2.1", 5004), ("", 0))

    @pytest.mark.parametrize("length", [0, 7])
    def test_a_length_that_cannot_be(self, path: Path, length: int) -> None:
        found = read(path, rtpdump([(0, 17, self.RTP)]) + struct.pack("!HHI", length, 17, 0) + self.RTP)
        assert len(found.datagrams) == 1
        assert "cut off or damaged" in found.warnings[1]


def parts() -> dict[str, list[bytes]]:
    """One small capture of each kind in its parts; the last three hold a datagram each."""
    ng, rtp = Ng(), TestRtpdump.RTP
    frame = ethernet(ipv4(V4, udp(V4, rtp)))
    own = Endpoints(Direction.RECEIVED, *V6)
    start = len(rtpdump([]))
    return {
        "pcap": [pcap([]), *(pcap([(TIME_NS + i, frame)])[24:] for i in range(3))],
        "pcapng": [ng.section(), ng.interface(), *(ng.enhanced(i, frame) for i in range(3))],
        "rtpdump": [rtpdump([]), *(rtpdump([(i, len(rtp), rtp)])[start:] for i in range(3))],
        "bundle": [pcap_header(), *(own.record(i, rtp) for i in range(3))],
    }


def whole_captures() -> dict[str, bytes]:
    return {kind: b"".join(chunks) for kind, chunks in parts().items()}


class TestDamage:
    @pytest.mark.parametrize("kind", whole_captures())
    def test_cut_off_at_every_byte(self, path: Path, kind: str) -> None:
        chunks = parts()[kind]
        ends = list(accumulate(len(chunk) for chunk in chunks))
        trailer = 4 if kind == "pcapng" else 0  # a packet is whole before the length that its block ends with
        data = b"".join(chunks)
        for length in range(len(b"#!rtpplay1.0 "), len(data) + 1):
            found = read(path, data[:length])
            assert len(found.datagrams) == sum(end - trailer <= length for end in ends[-3:])
            said = [w for w in found.warnings if "cut off" in w]
            assert len(said) == (0 if length in ends else 1)

    @pytest.mark.parametrize("claimed", [0xFFFFFFFF, 0x80000000, (1 << 20) + 1])
    def test_a_claimed_length_of_4_gb_takes_no_memory(self, path: Path, claimed: int) -> None:
        tail = struct.pack("<IIII", 1, 2, claimed, claimed) + bytes(1000)
        tracemalloc.start()
        found = read(path, pcap([(TIME_NS, VOICE)]) + tail)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert found.datagrams == (EXPECTED,)
        assert len(found.warnings) == 1
        assert peak < 4 << 20

    def test_a_tail_of_zeros_ends_it(self, path: Path) -> None:
        found = read(path, pcap([(TIME_NS, VOICE)]) + bytes(1 << 20))
        assert found.datagrams == (EXPECTED,)
        assert found.warnings == ("capture: cut off or damaged (a packet of no bytes); what lies before is used",)

    @pytest.mark.parametrize(
        "data", [b"", b"\xd4", b"RIFF\0\0\0\0WAVE", b"not a capture", bytes(1000), b"\x1f\x8b", b"\x1f\x8bnot gzip"]
    )
    def test_not_a_capture(self, path: Path, data: bytes) -> None:
        with pytest.raises(UsageError) as caught:
            read(path, data)
        assert str(path) in caught.value.line()
        assert "pcapng" in caught.value.line()

    def test_what_cannot_be_opened(self, tmp_path: Path) -> None:
        with pytest.raises(UsageError, match="absent"):
            read_capture(tmp_path / "absent")

    @settings(deadline=2000, max_examples=400, suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(data=st.data())
    @pytest.mark.parametrize("kind", whole_captures())
    def test_mutated_captures_give_a_capture_or_a_usage_error(self, path: Path, kind: str, data: st.DataObject) -> None:
        mutated = bytearray(whole_captures()[kind])
        for _ in range(data.draw(st.integers(1, 4))):
            at = data.draw(st.integers(0, len(mutated) - 1))
            new = data.draw(st.binary(max_size=8) | st.sampled_from([b"\xff" * 4, bytes(4), b"\x7f\xff\xff\xff"]))
            mutated[at : at + data.draw(st.integers(0, 8))] = new
        changed = bytes(mutated)
        try:
            found = read(path, gzip.compress(changed) if data.draw(st.booleans()) else changed)
        except UsageError:
            return
        # 16 bytes at least stand for each packet, in every format
        assert len(found.datagrams) <= len(changed) // 16
        assert all(0 <= d.time_ns < 1 << 63 for d in found.datagrams)


class TestGzip:
    @pytest.mark.parametrize("kind", whole_captures())
    def test_as_if_it_were_not_packed(self, path: Path, kind: str) -> None:
        data = whole_captures()[kind]
        assert read(path, gzip.compress(data)) == read(path, data)

    def test_cut_off(self, path: Path) -> None:
        data = gzip.compress((GOLDEN / "clean.pcap").read_bytes())
        found = read(path, data[: len(data) // 2])
        assert 900 < len(found.datagrams) < 1100
        assert found.warnings == ("capture: cut off or damaged (gzip); what lies before is used",)

    def test_what_unpacks_without_end_is_given_up(self, path: Path) -> None:
        frame = ethernet(ipv4(V4, bytes(60_000), protocol=6))
        found = read(path, gzip.compress(pcap([(TIME_NS, VOICE)] + [(TIME_NS, frame)] * 300)))
        assert found.datagrams == (EXPECTED,)
        assert "unpacks to more than 200 times its size" in found.warnings[0]


class TestBundle:
    def bundle(self, folder: Path, *, events: bytes = b"", manifest: bool = True) -> Path:
        folder.mkdir()
        if manifest:
            (folder / "manifest.json").write_text("{}")
        (folder / "events.jsonl").write_bytes(events)
        (folder / "packets.pcap").write_bytes(whole_captures()["bundle"])
        return folder

    def test_its_packets_and_payload_types(self, tmp_path: Path) -> None:
        event = {"t_ns": 1, "type": "media_negotiated", "payload_types": {"96": "opus", "0": "pcmu"}}
        events = b'{"t_ns": 0, "type": "call_started"}\n' + json.dumps(event).encode() + b"\n"
        found = read_capture(self.bundle(tmp_path / "call", events=events))
        assert len(found.datagrams) == 3
        assert {d.direction for d in found.datagrams} == {Direction.RECEIVED}
        assert found.payload_types == {96: "opus", 0: "pcmu"}

    @pytest.mark.parametrize(
        "events", [b"", b'"media_negotiated"', b'{"type": "media_negotiated"', b'{"type": "media_negotiated"}', b"\xff"]
    )
    def test_events_that_do_not_say(self, tmp_path: Path, events: bytes) -> None:
        found = read_capture(self.bundle(tmp_path / "call", events=events, manifest=False))
        assert len(found.datagrams) == 3
        assert found.payload_types == {}

    def test_a_run_of_several_calls(self, tmp_path: Path) -> None:
        self.bundle(tmp_path / "call-000")
        assert len(read_capture(tmp_path).datagrams) == 3
        self.bundle(tmp_path / "call-001")
        with pytest.raises(UsageError) as caught:
            read_capture(tmp_path)
        assert "call-000" in caught.value.line()

    def test_a_folder_of_something_else(self, tmp_path: Path) -> None:
        with pytest.raises(UsageError, match=r"not a session bundle|no call"):
            read_capture(tmp_path)


def test_what_is_not_wanted_is_not_kept(path: Path) -> None:
    path.write_bytes(pcap([(TIME_NS + i, VOICE) for i in range(4)]))
    found = read_capture(path, keep=lambda d: d.time_ns % 2 == 0)
    assert [d.time_ns - TIME_NS for d in found.datagrams] == [1, 3]


@pytest.mark.parametrize("file_format", ["pcap", "nsecpcap", "pcapng"])
def test_files_that_wireshark_wrote(need: Callable[[str, str], str], path: Path, file_format: str) -> None:
    tshark = need("tshark", "tshark")
    original = GOLDEN / "uniform40.pcap"
    command = [tshark, "-r", str(original), "-F", file_format, "-w", str(path)]
    subprocess.run(command, check=True, capture_output=True, timeout=60)
    found, expected = read_capture(path), read_capture(original)
    assert found.warnings == ()
    assert len(found.datagrams) == 2004
    unit = 1000 if file_format == "pcap" else 1
    for mine, theirs in zip(found.datagrams, expected.datagrams, strict=True):
        assert mine.time_ns == theirs.time_ns // unit * unit
        assert (mine.source, mine.destination, mine.payload) == (theirs.source, theirs.destination, theirs.payload)
