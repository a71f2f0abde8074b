"""RTP packets byte by byte, whole and damaged, and counters at their wraps."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analysis.errors import MalformedPacket
from analysis.rtp import (
    RtpPacket,
    header_bytes,
    is_rtcp,
    is_rtp_or_rtcp,
    parse_rtp,
    serialize_rtp,
    signed_difference,
    unwrap,
)

# version 2, marker, payload type 111, sequence 0x1234, timestamp 0x89ABCDEF, SSRC 0xCAFEBABE, payload "voice"
PLAIN = bytes.fromhex("80ef123489abcdefcafebabe") + b"voice"
# the same with two CSRCs, a one-byte header extension of RFC 8285 (audio level, filled up), and 4 bytes of padding
FULL = (
    bytes.fromhex("b2ef123489abcdefcafebabe")
    + bytes.fromhex("0000000100000002")
    + bytes.fromhex("bede000110850000")
    + b"voice"
    + bytes.fromhex("00000004")
)

PLAIN_PACKET = RtpPacket(111, 0x1234, 0x89ABCDEF, 0xCAFEBABE, b"voice", marker=True)
FULL_PACKET = replace(
    PLAIN_PACKET, csrcs=(1, 2), extension_profile=0xBEDE, extension=bytes.fromhex("10850000"), padding=4
)

packets = st.builds(
    RtpPacket,
    payload_type=st.integers(0, 127),
    sequence_number=st.integers(0, 0xFFFF),
    timestamp=st.integers(0, 0xFFFFFFFF),
    ssrc=st.integers(0, 0xFFFFFFFF),
    payload=st.binary(max_size=300),
    marker=st.booleans(),
    csrcs=st.lists(st.integers(0, 0xFFFFFFFF), max_size=15).map(tuple),
    extension_profile=st.just(0xBEDE),
    extension=st.integers(0, 20).flatmap(lambda words: st.binary(min_size=4 * words, max_size=4 * words)),
    padding=st.integers(0, 255),
)


@pytest.mark.parametrize(("data", "packet"), [(PLAIN, PLAIN_PACKET), (FULL, FULL_PACKET)])
def test_golden_packets_both_ways(data: bytes, packet: RtpPacket) -> None:
    assert parse_rtp(data) == packet
    assert serialize_rtp(packet) == data


def test_an_empty_payload_is_a_packet() -> None:
    assert parse_rtp(PLAIN[:12]).payload == b""


def test_a_packet_cut_off_in_its_header_is_malformed() -> None:
    header = len(FULL) - 9
    for length in range(header):
        with pytest.raises(MalformedPacket):
            parse_rtp(FULL[:length])


def test_a_packet_cut_off_in_its_payload_never_claims_more_than_is_there() -> None:
    # the padding count is then a byte of the payload or of the extension: either it fits, or the packet is refused
    for length in range(len(FULL) - 9, len(FULL)):
        try:
            packet = parse_rtp(FULL[:length])
        except MalformedPacket:
            continue
        assert len(packet.payload) + packet.padding == length - (len(FULL) - 9)


@pytest.mark.parametrize("version", [0, 1, 3])
def test_another_version_is_malformed(version: int) -> None:
    with pytest.raises(MalformedPacket, match=f"version {version}"):
        parse_rtp(bytes([version << 6 | PLAIN[0] & 0x3F]) + PLAIN[1:])


@pytest.mark.parametrize(("tail", "payload"), [(b"\x01", b"voice"), (b"\x00\x02", b"voice"), (b"\x06", b"")])
def test_padding_that_fits_is_taken_off(tail: bytes, payload: bytes) -> None:
    packet = parse_rtp(bytes([PLAIN[0] | 0x20]) + PLAIN[1:] + tail)
    assert packet.payload == payload
    assert packet.padding == tail[-1]


@pytest.mark.parametrize("last", [0, 7, 255])
def test_padding_that_does_not_fit_is_malformed(last: int) -> None:
    with pytest.raises(MalformedPacket, match="padding"):
        parse_rtp(bytes([PLAIN[0] | 0x20]) + PLAIN[1:] + bytes([last]))


def test_padding_without_a_byte_for_it_is_malformed() -> None:
    with pytest.raises(MalformedPacket, match="padding"):
        parse_rtp(bytes([PLAIN[0] | 0x20]) + PLAIN[1:12])


def test_an_extension_of_no_words_is_kept() -> None:
    packet = replace(PLAIN_PACKET, extension_profile=0x1000)
    assert parse_rtp(serialize_rtp(packet)) == packet


@pytest.mark.parametrize(
    "fields",
    [
        {"payload_type": 128},
        {"payload_type": -1},
        {"sequence_number": 0x10000},
        {"sequence_number": -1},
        {"timestamp": 1 << 32},
        {"ssrc": 1 << 32},
        {"csrcs": tuple(range(16))},
        {"csrcs": (1 << 32,)},
        {"padding": 256},
        {"extension_profile": 0x10000},
        {"extension_profile": 0xBEDE, "extension": b"abc"},
        {"extension_profile": 0xBEDE, "extension": bytes(4 * 0x10000)},
        {"extension": b"lost"},
    ],
)
def test_a_field_that_does_not_fit_is_refused(fields: dict[str, object]) -> None:
    with pytest.raises(ValueError):
        serialize_rtp(replace(PLAIN_PACKET, **fields))  # type: ignore[arg-type]


@settings(deadline=None)
@given(packets)
def test_what_is_written_is_read(packet: RtpPacket) -> None:
    assert parse_rtp(serialize_rtp(packet)) == packet


@settings(deadline=None, max_examples=500)
@given(st.one_of(st.binary(max_size=80), st.binary(max_size=80).map(lambda b: b"\xb3" + b)))
def test_any_bytes_are_a_packet_or_malformed(data: bytes) -> None:
    try:
        packet = parse_rtp(data)
    except MalformedPacket:
        return
    head = 12 + 4 * len(packet.csrcs) + (0 if packet.extension_profile is None else 4 + len(packet.extension))
    assert head + len(packet.payload) + packet.padding == len(data)
    written = serialize_rtp(packet)
    assert written[: len(data) - packet.padding] == data[: len(data) - packet.padding]


@pytest.mark.parametrize(
    ("first", "taken"), [(0, False), (20, False), (64, False), (127, False), (128, True), (191, True), (192, False)]
)
def test_stun_and_dtls_are_told_from_media(first: int, taken: bool) -> None:
    assert is_rtp_or_rtcp(bytes([first, 0])) is taken


def test_one_byte_is_neither() -> None:
    assert not is_rtp_or_rtcp(b"\x80")
    assert not is_rtcp(b"\x80")
    assert not is_rtp_or_rtcp(b"")


@pytest.mark.parametrize(
    ("second", "rtcp"),
    [(111, False), (0x80 | 111, False), (191, False), (192, True), (200, True), (223, True), (224, False)],
)
def test_rtcp_is_told_from_rtp(second: int, rtcp: bool) -> None:
    assert is_rtcp(bytes([0x80, second])) is rtcp


@pytest.mark.parametrize(
    ("a", "b", "bits", "difference"),
    [
        (0, 0xFFFF, 16, 1),
        (0xFFFF, 0, 16, -1),
        (5, 0xFFFB, 16, 10),
        (0x8000, 0, 16, -0x8000),
        (0x7FFF, 0, 16, 0x7FFF),
        (0, 0xFFFFFC40, 32, 960),
        (0xFFFFFC40, 0, 32, -960),
        (1 << 31, 0, 32, -(1 << 31)),
    ],
)
def test_differences_across_a_wrap(a: int, b: int, bits: int, difference: int) -> None:
    assert signed_difference(a, b, bits) == difference


@given(st.integers(0, 1 << 70), st.integers(-0x7FFF, 0x7FFF))
def test_a_counter_is_followed_whatever_its_wraps(before: int, step: int) -> None:
    assert unwrap((before + step) & 0xFFFF, before, 16) == before + step


def test_a_counter_may_be_followed_below_zero() -> None:
    assert unwrap(0xFFFF, 0, 16) == -1
    assert unwrap(0xFFFE, -1, 16) == -2
    assert unwrap(0, -1, 16) == 0


@pytest.mark.parametrize(
    ("packet", "size"),
    [
        (RtpPacket(0, 1, 2, 3, b"sound"), 12),
        (RtpPacket(0, 1, 2, 3, b"", padding=8), 20),
        (RtpPacket(0, 1, 2, 3, b"sound", csrcs=(1, 2)), 20),
        (RtpPacket(0, 1, 2, 3, b"sound", extension_profile=0xBEDE, extension=bytes(8)), 24),
        (RtpPacket(0, 1, 2, 3, b"sound", extension_profile=0xBEDE), 16),
        (RtpPacket(0, 1, 2, 3, b"sound", csrcs=(1,), extension_profile=0x1000, extension=bytes(4), padding=1), 25),
    ],
)
def test_bytes_that_are_not_payload(packet: RtpPacket, size: int) -> None:
    data = serialize_rtp(packet)
    assert packet.header_bytes == header_bytes(data) == len(data) - len(packet.payload) == size
