"""Bytes from the network into RTP packets, and sequence numbers and timestamps into counters that never wrap.

Source: RFC 3550 sections 5.1 and A.1, RFC 8285 (header extension block), RFC 5761 section 4 (RTP against RTCP).
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from analysis.errors import MalformedPacket

__all__ = [
    "RtpPacket",
    "header_bytes",
    "is_rtcp",
    "is_rtp_or_rtcp",
    "parse_rtp",
    "serialize_rtp",
    "signed_difference",
    "unwrap",
]

VERSION = 2
HEADER_BYTES = 12
MAX_CSRC = 15


@dataclass(frozen=True, slots=True)
class RtpPacket:
    """One RTP packet. `timestamp` in ticks of the payload's clock; `payload` without padding."""

    payload_type: int
    sequence_number: int
    timestamp: int
    ssrc: int
    payload: bytes
    marker: bool = False
    csrcs: tuple[int, ...] = ()
    extension_profile: int | None = None
    extension: bytes = b""
    padding: int = 0

    @property
    def header_bytes(self) -> int:
        """Bytes on the wire that are not payload: header and padding, as W3C's `headerBytesReceived` counts them."""
        extension = 0 if self.extension_profile is None else 4 + len(self.extension)
        return HEADER_BYTES + 4 * len(self.csrcs) + extension + self.padding


def is_rtp_or_rtcp(data: bytes) -> bool:
    """True if the first byte is one of RTP or RTCP (RFC 7983), against STUN and DTLS."""
    return len(data) > 1 and 127 < data[0] < 192


def is_rtcp(data: bytes) -> bool:
    """True if a packet on a port shared by both is RTCP (RFC 5761 section 4)."""
    return len(data) > 1 and 192 <= data[1] <= 223


def parse_rtp(data: bytes) -> RtpPacket:
    """Parse one packet.

    Raises
    ------
    MalformedPacket
        If the bytes are not a whole RTP packet of version 2.
    """
    if len(data) < HEADER_BYTES:
        raise MalformedPacket(f"RTP header needs {HEADER_BYTES} bytes, got {len(data)}")
    first, second, sequence_number, timestamp, ssrc = struct.unpack_from("!BBHII", data)
    if first >> 6 != VERSION:
        raise MalformedPacket(f"RTP version {first >> 6}, expected 2")
    at = HEADER_BYTES
    count = first & 0x0F
    if len(data) < at + 4 * count:
        raise MalformedPacket("RTP packet ends in its CSRC list")
    csrcs = struct.unpack_from(f"!{count}I", data, at)
    at += 4 * count
    profile, extension = None, b""
    if first & 0x10:
        if len(data) < at + 4:
            raise MalformedPacket("RTP packet ends in its header extension")
        profile, words = struct.unpack_from("!HH", data, at)
        at += 4
        if len(data) < at + 4 * words:
            raise MalformedPacket("RTP packet ends in its header extension")
        extension = bytes(data[at : at + 4 * words])
        at += 4 * words
    padding = 0
    if first & 0x20:
        padding = data[-1] if len(data) > at else 0
        if padding == 0 or at + padding > len(data):
            raise MalformedPacket("RTP padding is longer than the packet")
    return RtpPacket(
        payload_type=second & 0x7F,
        sequence_number=sequence_number,
        timestamp=timestamp,
        ssrc=ssrc,
        payload=bytes(data[at : len(data) - padding]),
        marker=bool(second & 0x80),
        csrcs=csrcs,
        extension_profile=profile,
        extension=extension,
        padding=padding,
    )


def header_bytes(data: bytes) -> int:
    """What `RtpPacket.header_bytes` would say of a whole packet of our own, without parsing it."""
    first = data[0]
    size = HEADER_BYTES + 4 * (first & 0x0F)
    if first & 0x10:
        size += 4 + 4 * (data[size + 2] << 8 | data[size + 3])
    return size + data[-1] if first & 0x20 else size


def serialize_rtp(packet: RtpPacket) -> bytes:
    """The packet as bytes on the wire. Raises ValueError if a field does not fit."""
    if len(packet.csrcs) > MAX_CSRC or len(packet.extension) % 4:
        raise ValueError("more than 15 CSRCs, or an extension that is not whole words")
    if not 0 <= packet.payload_type < 128 or (packet.extension and packet.extension_profile is None):
        raise ValueError("a payload type of more than 7 bits, or an extension without a profile")
    try:
        return _serialize(packet)
    except struct.error as exc:
        raise ValueError(f"a field of the RTP packet does not fit: {exc}") from None


def _serialize(packet: RtpPacket) -> bytes:
    first = VERSION << 6 | (0x20 if packet.padding else 0) | (0x10 if packet.extension_profile is not None else 0)
    data = struct.pack(
        f"!BBHII{len(packet.csrcs)}I",
        first | len(packet.csrcs),
        (0x80 if packet.marker else 0) | packet.payload_type,
        packet.sequence_number,
        packet.timestamp,
        packet.ssrc,
        *packet.csrcs,
    )
    if packet.extension_profile is not None:
        data += struct.pack("!HH", packet.extension_profile, len(packet.extension) // 4) + packet.extension
    data += packet.payload
    if packet.padding:
        data += bytes(packet.padding - 1) + bytes([packet.padding])
    return data


def signed_difference(a: int, b: int, bits: int) -> int:
    """a − b of two counters of `bits` bits, as the nearest signed number (half the range counts as negative)."""
    half = 1 << (bits - 1)
    return ((a - b + half) & ((1 << bits) - 1)) - half


def unwrap(value: int, previous: int, bits: int) -> int:
    """`value` of a counter of `bits` bits, extended to the number nearest to the extended `previous`."""
    return previous + signed_difference(value, previous & ((1 << bits) - 1), bits)
