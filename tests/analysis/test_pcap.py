"""Captures: Wireshark's own reading of what is written, and what is read of files that are damaged or of others."""

from __future__ import annotations

import struct
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analysis.errors import BundleError
from analysis.pcap import Datagram, Direction, Endpoints, pcap_header, read_pcap
from analysis.rtp import RtpPacket, serialize_rtp

TIME_NS = 1_800_000_000_123_456_789
V4 = ("192.168.1.2", 5004), ("203.0.113.9", 65535)
V6 = ("2001:db8::1", 5004), ("2001:db8:ffff:ffff:ffff:ffff:ffff:ffff", 1)

RECORD_HEADER_BYTES = 16
GLOBAL_HEADER_BYTES = 24


def record(time_ns: int, direction: Direction, ends: tuple[tuple[str, int], tuple[str, int]], payload: bytes) -> bytes:
    return Endpoints(direction, *ends).record(time_ns, payload)


def read(path: Path, data: bytes) -> tuple[list[Datagram], list[str]]:
    path.write_bytes(data)
    warnings: list[str] = []
    return list(read_pcap(path, warnings)), warnings


@pytest.fixture
def capture(tmp_path: Path) -> Path:
    return tmp_path / "packets.pcap"


datagrams = st.builds(
    Datagram,
    time_ns=st.integers(0, (1 << 32) * 1_000_000_000 - 1),
    direction=st.sampled_from(Direction),
    source=st.tuples(st.ip_addresses(v=4).map(str), st.integers(0, 0xFFFF)),
    destination=st.tuples(st.ip_addresses(v=4).map(str), st.integers(0, 0xFFFF)),
    payload=st.binary(max_size=1500),
) | st.builds(
    Datagram,
    time_ns=st.integers(0, (1 << 32) * 1_000_000_000 - 1),
    direction=st.sampled_from(Direction),
    source=st.tuples(st.ip_addresses(v=6).map(str), st.integers(0, 0xFFFF)),
    destination=st.tuples(st.ip_addresses(v=6).map(str), st.integers(0, 0xFFFF)),
    payload=st.binary(max_size=1500),
)


class TestWireshark:
    """tshark reads the file; what it prints is what was written."""

    FIELDS = (
        "frame.time_epoch",
        "sll.pkttype",
        "ip.src",
        "ip.dst",
        "ipv6.src",
        "ipv6.dst",
        "udp.srcport",
        "udp.dstport",
        "rtp.seq",
        "rtp.timestamp",
        "rtp.ssrc",
        "rtp.payload",
        "ip.checksum.status",
        "udp.checksum.status",
        "_ws.expert.message",
    )

    def rows(self, tshark: str, path: Path) -> list[dict[str, str]]:
        command = [tshark, "-r", str(path), "-T", "fields", "-d", "udp.port==5004,rtp"]
        command += ["-o", "ip.check_checksum:TRUE", "-o", "udp.check_checksum:TRUE"]
        for field in self.FIELDS:
            command += ["-e", field]
        done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60)
        return [dict(zip(self.FIELDS, line.split("\t"), strict=True)) for line in done.stdout.splitlines()]

    def test_time_addresses_ports_direction_and_payload(self, need: Callable[[str, str], str], capture: Path) -> None:
        tshark = need("tshark", "tshark")
        sent = [
            (Direction.SENT, V4, b"voice"),
            (Direction.RECEIVED, (V4[1], V4[0]), b"reply"),
            (Direction.SENT, V6, b"voice!"),
            (Direction.RECEIVED, (V6[1], V6[0]), b"reply"),
            (Direction.RECEIVED, (V6[1], V6[0]), bytes(1200)),
        ]
        data = pcap_header()
        for i, (direction, ends, payload) in enumerate(sent):
            packet = RtpPacket(111, 0xFFFF - i, 0xFFFFFFFF - i, 0xCAFEBABE, payload, marker=True)
            data += record(TIME_NS + i, direction, ends, serialize_rtp(packet))
        capture.write_bytes(data)
        rows = self.rows(tshark, capture)
        assert len(rows) == len(sent)
        for i, (row, (direction, ends, payload)) in enumerate(zip(rows, sent, strict=True)):
            assert row["frame.time_epoch"] == f"1800000000.{123_456_789 + i}"
            assert int(row["sll.pkttype"]) == direction.value
            family = "ipv6" if ":" in ends[0][0] else "ip"
            assert (row[f"{family}.src"], row[f"{family}.dst"]) == (ends[0][0], ends[1][0])
            assert (int(row["udp.srcport"]), int(row["udp.dstport"])) == (ends[0][1], ends[1][1])
            assert int(row["rtp.seq"]) == 0xFFFF - i
            assert int(row["rtp.timestamp"]) == 0xFFFFFFFF - i
            assert int(row["rtp.ssrc"], 16) == 0xCAFEBABE
            assert bytes.fromhex(row["rtp.payload"]) == payload
            # 1: good, 3: not present, which only IPv4 may have
            assert row["ip.checksum.status"] == ("1" if family == "ip" else "")
            assert row["udp.checksum.status"] == ("3" if family == "ip" else "1")
            assert row["_ws.expert.message"] == ""

    def test_checksums_hold_for_any_length_and_content(self, need: Callable[[str, str], str], capture: Path) -> None:
        tshark = need("tshark", "tshark")
        data = pcap_header()
        count = 0
        for ends in (V4, V6):
            for payload in (b"", b"\xff", b"\xff\xff", bytes(3), b"\xff" * 1451, bytes(range(256)) * 5):
                data += record(TIME_NS, Direction.SENT, ends, b"\x80\x6f" + payload)
                count += 1
        # a sum of exactly 0 must be sent as 0xFFFF
        data += record(TIME_NS, Direction.SENT, V6, _with_zero_sum(V6))
        capture.write_bytes(data)
        rows = self.rows(tshark, capture)
        assert len(rows) == count + 1
        assert {row["ip.checksum.status"] for row in rows} == {"1", ""}
        assert {row["udp.checksum.status"] for row in rows} == {"3", "1"}


def _with_zero_sum(ends: tuple[tuple[str, int], tuple[str, int]]) -> bytes:
    """A payload under whose checksum all words add up to nothing."""
    frame = record(0, Direction.SENT, ends, bytes(2))
    checksum = struct.unpack_from("!H", frame, RECORD_HEADER_BYTES + 16 + 40 + 6)[0]
    return struct.pack("!H", checksum)


def test_a_sum_of_nothing_is_not_sent_as_no_checksum() -> None:
    frame = record(0, Direction.SENT, V6, _with_zero_sum(V6))
    assert frame[RECORD_HEADER_BYTES + 16 + 40 + 6 :][:2] == b"\xff\xff"


@settings(deadline=None, max_examples=50)
@given(written=st.lists(datagrams, max_size=10))
def test_what_is_written_is_read(tmp_path_factory: pytest.TempPathFactory, written: list[Datagram]) -> None:
    data = pcap_header()
    for d in written:
        data += Endpoints(d.direction, d.source, d.destination).record(d.time_ns, d.payload)
    found, warnings = read(tmp_path_factory.mktemp("capture") / "packets.pcap", data)
    assert found == written
    assert warnings == []


def test_an_address_that_is_none_is_refused() -> None:
    with pytest.raises(ValueError, match=r"host\.local"):
        Endpoints(Direction.SENT, ("host.local", 1), ("127.0.0.1", 2)).record(0, b"")


class TestDamage:
    def test_cut_off_at_every_byte_of_the_last_record(self, capture: Path) -> None:
        first = pcap_header() + record(TIME_NS, Direction.SENT, V4, b"whole")
        last = record(TIME_NS + 1, Direction.RECEIVED, V6, b"torn")
        for length in range(1, len(last)):
            found, warnings = read(capture, first + last[:length])
            assert [d.payload for d in found] == [b"whole"]
            assert warnings == ["packets.pcap: cut off; what lies before is used"]
        assert read(capture, first + last)[1] == []

    def test_cut_off_in_the_header(self, capture: Path) -> None:
        for length in range(GLOBAL_HEADER_BYTES):
            found, warnings = read(capture, pcap_header()[:length])
            assert found == []
            assert warnings == ["packets.pcap: ends within its header"]
        assert read(capture, pcap_header()) == ([], [])

    @pytest.mark.parametrize("claimed", [0xFFFFFFFF, 0x80000000, (1 << 20) + 1])
    def test_a_claimed_length_of_4_gb_is_not_believed(self, capture: Path, claimed: int) -> None:
        data = pcap_header() + record(TIME_NS, Direction.SENT, V4, b"whole")
        found, warnings = read(capture, data + struct.pack("<IIII", 1, 2, claimed, claimed) + bytes(1000))
        assert [d.payload for d in found] == [b"whole"]
        assert len(warnings) == 1

    def test_a_record_of_more_than_a_mebibyte_is_damage_even_where_it_is_there(self, capture: Path) -> None:
        whole, size = record(TIME_NS, Direction.SENT, V4, b"whole"), (1 << 20) + 1
        data = pcap_header() + whole + struct.pack("<IIII", 1, 2, size, size) + bytes(size) + whole
        found, warnings = read(capture, data)
        assert [d.payload for d in found] == [b"whole"]
        assert warnings == ["packets.pcap: cut off; what lies before is used"]

    @pytest.mark.parametrize(
        ("magic", "link_type"),
        [
            (0xA1B23C4D, 1),  # Ethernet
            (0xA1B23C4D, 101),  # raw IP
            (0xA1B23C4D, 276),  # LINUX_SLL2
            (0xA1B2C3D4, 113),  # microseconds
            (0x0A0D0D0A, 113),  # pcapng
            (0x4D3CB2A1, 113),  # big-endian
        ],
    )
    def test_captures_of_others_are_refused(self, capture: Path, magic: int, link_type: int) -> None:
        header = struct.pack("<IHHiIII", magic, 2, 4, 0, 0, 262144, link_type)
        with pytest.raises(BundleError) as caught:
            read(capture, header + record(TIME_NS, Direction.SENT, V4, b"x"))
        assert "packets.pcap" in caught.value.line()

    def test_what_is_not_udp_is_passed_over_and_said(self, capture: Path) -> None:
        whole = record(TIME_NS, Direction.SENT, V4, b"voice")
        frame = whole[RECORD_HEADER_BYTES:]
        tcp = frame[:25] + b"\x06" + frame[26:]
        arp = frame[:14] + b"\x08\x06" + frame[16:]
        impossible = frame[:16] + b"\x40" + frame[17:]  # an IPv4 header of no words
        others = (tcp, arp, impossible, frame[:15], frame[:30], frame[:40])
        data = pcap_header() + whole
        for other in others:
            data += struct.pack("<IIII", 1, 2, len(other), len(other)) + other
        found, warnings = read(capture, data + whole)
        assert [d.payload for d in found] == [b"voice", b"voice"]
        assert warnings == [f"packets.pcap: {len(others)} packets are not UDP over IP"]

    def test_ip_options_are_passed_over(self, capture: Path) -> None:
        frame = record(TIME_NS, Direction.SENT, V4, b"voice")[RECORD_HEADER_BYTES:]
        longer = frame[:16] + b"\x46" + frame[17:36] + bytes(4) + frame[36:]
        (found,), warnings = read(
            capture, pcap_header() + struct.pack("<IIII", 1, 2, len(longer), len(longer)) + longer
        )
        assert found.payload == b"voice"
        assert found.source == V4[0]
        assert warnings == []

    @pytest.mark.parametrize("length", [0, 7, 8, 0xFFFF])
    def test_a_udp_length_that_is_wrong_gives_no_more_than_is_there(self, capture: Path, length: int) -> None:
        frame = bytearray(record(TIME_NS, Direction.SENT, V4, b"voice")[RECORD_HEADER_BYTES:])
        struct.pack_into("!H", frame, 16 + 20 + 4, length)
        (found,), _ = read(capture, pcap_header() + struct.pack("<IIII", 1, 2, len(frame), len(frame)) + bytes(frame))
        assert found.payload in (b"", b"voice")

    @settings(deadline=None, max_examples=200)
    @given(data=st.binary(max_size=400))
    def test_any_bytes_behind_the_header_are_read_or_said(
        self, tmp_path_factory: pytest.TempPathFactory, data: bytes
    ) -> None:
        found, warnings = read(tmp_path_factory.getbasetemp() / "fuzz.pcap", pcap_header() + data)
        assert len(found) <= len(data) // RECORD_HEADER_BYTES
        assert found or warnings or not data

    @settings(deadline=None, max_examples=200)
    @given(frame=st.binary(max_size=120), ether=st.sampled_from([b"\x08\x00", b"\x86\xdd"]))
    def test_any_frame_is_a_datagram_or_counted(
        self, tmp_path_factory: pytest.TempPathFactory, frame: bytes, ether: bytes
    ) -> None:
        frame = bytes(14) + ether + frame
        data = pcap_header() + struct.pack("<IIII", 1, 2, len(frame), len(frame)) + frame
        found, warnings = read(tmp_path_factory.getbasetemp() / "fuzz.pcap", data)
        assert len(found) + len(warnings) == 1
