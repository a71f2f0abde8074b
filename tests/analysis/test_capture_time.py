"""Header extensions of RFC 8285 byte by byte, and the capture times in them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis.capture_time import (
    CaptureTime,
    capture_time_of,
    header_extensions,
    parse_capture_time,
    serialize_capture_time,
    serialize_header_extensions,
)
from analysis.errors import MalformedPacket
from analysis.rtcp import ntp_from_unix_ns
from analysis.rtp import RtpPacket, parse_rtp, serialize_rtp

# the example of RFC 8285 section 4.2, with values: L=0, padding, L=1, L=3
ONE_BYTE = bytes.fromhex("10aa 0000 21bbbb 33cccccccc 00")
TWO_BYTE = bytes.fromhex("0100 0201aa 00 0304bbbbbbbb")


class TestElements:
    def test_one_byte_headers(self) -> None:
        assert header_extensions(0xBEDE, ONE_BYTE) == {1: b"\xaa", 2: b"\xbb\xbb", 3: b"\xcc" * 4}

    @pytest.mark.parametrize("profile", [0x1000, 0x1007, 0x100F])
    def test_two_byte_headers(self, profile: int) -> None:
        assert header_extensions(profile, TWO_BYTE) == {1: b"", 2: b"\xaa", 3: b"\xbb" * 4}

    @pytest.mark.parametrize("profile", [None, 0, 0xBEDF, 0x1010, 0x2000])
    def test_another_profile_has_none(self, profile: int | None) -> None:
        assert header_extensions(profile, ONE_BYTE) == {}

    def test_identifier_15_ends_the_block(self) -> None:
        assert header_extensions(0xBEDE, bytes.fromhex("10aaf0bb20cc")) == {1: b"\xaa"}

    @pytest.mark.parametrize(("profile", "data"), [(0xBEDE, "13aabb"), (0x1000, "01"), (0x1000, "0103aabb")])
    def test_one_that_is_cut_off_is_malformed(self, profile: int, data: str) -> None:
        with pytest.raises(MalformedPacket):
            header_extensions(profile, bytes.fromhex(data))

    @given(st.dictionaries(st.integers(1, 255), st.binary(max_size=255), min_size=1, max_size=6))
    def test_what_is_written_is_read(self, elements: dict[int, bytes]) -> None:
        profile, data = serialize_header_extensions(elements)
        assert len(data) % 4 == 0
        assert (profile == 0xBEDE) == all(n < 15 and 0 < len(v) < 17 for n, v in elements.items())
        assert header_extensions(profile, data) == elements

    @pytest.mark.parametrize("elements", [{0: b"a"}, {256: b"a"}, {1: bytes(256)}])
    def test_what_does_not_fit_is_refused(self, elements: dict[int, bytes]) -> None:
        with pytest.raises(ValueError, match="does not fit"):
            serialize_header_extensions(elements)

    @given(st.sampled_from([0xBEDE, 0x1000, 0x1003]), st.binary(max_size=64))
    def test_any_bytes_are_elements_or_malformed(self, profile: int, data: bytes) -> None:
        try:
            found = header_extensions(profile, data)
        except MalformedPacket:
            return
        assert sum(len(v) for v in found.values()) <= len(data)


class TestCaptureTime:
    def test_golden(self) -> None:
        short = bytes.fromhex("ee5aacff 80000000")
        assert parse_capture_time(short) == CaptureTime(0xEE5AACFF80000000)
        late = bytes.fromhex("ee5aacff80000000 0000000040000000")
        assert parse_capture_time(late) == CaptureTime(0xEE5AACFF80000000, 250_000_000)
        early = bytes.fromhex("ee5aacff80000000 ffffffffc0000000")
        assert parse_capture_time(early).offset_ns == -250_000_000
        assert parse_capture_time(short).unix_ns == (0xEE5AACFF - 2_208_988_800) * 10**9 + 500_000_000

    @pytest.mark.parametrize("length", [0, 1, 7, 9, 15, 17])
    def test_another_length_is_malformed(self, length: int) -> None:
        with pytest.raises(MalformedPacket):
            parse_capture_time(bytes(length))

    @given(st.integers(0, (1 << 64) - 1), st.none() | st.integers(-(10**18), 10**18))
    def test_what_is_written_is_read(self, ntp: int, offset_ns: int | None) -> None:
        read = parse_capture_time(serialize_capture_time(CaptureTime(ntp, offset_ns)))
        assert read.ntp == ntp
        if offset_ns is None:
            assert read.offset_ns is None
        else:
            assert read.offset_ns is not None
            assert abs(read.offset_ns - offset_ns) <= 1  # 0.23 ns a step

    def test_in_a_packet_of_the_wire(self) -> None:
        captured = CaptureTime(ntp_from_unix_ns(1_900_000_000_123_456_789), -5)
        profile, data = serialize_header_extensions({1: b"0", 3: serialize_capture_time(captured)})
        packet = RtpPacket(111, 1, 2, 3, b"sound", extension_profile=profile, extension=data, csrcs=(9,), padding=4)
        read = parse_rtp(serialize_rtp(packet))
        found = capture_time_of(read, 3)
        assert found is not None
        assert abs(found.unix_ns - 1_900_000_000_123_456_789) <= 1
        assert capture_time_of(read, 2) is None  # not there
        assert capture_time_of(read, 1) is None  # of a wrong length
        assert capture_time_of(read, None) is None  # not negotiated
        assert capture_time_of(RtpPacket(111, 1, 2, 3, b""), 3) is None
        broken = RtpPacket(111, 1, 2, 3, b"", extension_profile=0xBEDE, extension=b"\x3fab\x00")
        assert capture_time_of(broken, 3) is None
