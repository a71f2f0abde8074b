"""RTP header extensions into their elements, and abs-capture-time into when a sender says that it captured a packet.

Sources: RFC 8285 sections 4.2 and 4.3 (elements with one-byte and two-byte headers); the RTP header extension
http://www.webrtc.org/experiments/rtp-hdrext/abs-capture-time (NTP time as UQ32.32, optional clock offset as Q32.32).
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass

from analysis.errors import MalformedPacket
from analysis.rtcp import unix_ns_from_ntp
from analysis.rtp import RtpPacket
from analysis.units import NS_PER_S

__all__ = [
    "ABS_CAPTURE_TIME_URI",
    "CaptureTime",
    "capture_time_of",
    "header_extensions",
    "parse_capture_time",
    "serialize_capture_time",
    "serialize_header_extensions",
]

ABS_CAPTURE_TIME_URI = "http://www.webrtc.org/experiments/rtp-hdrext/abs-capture-time"
ONE_BYTE_PROFILE = 0xBEDE
TWO_BYTE_PROFILE = 0x1000  # its last four bits are the application's
LAST_ONE_BYTE_ID = 14
LAST_ONE_BYTE_LENGTH = 16
_ENDS = 15  # an identifier that ends a block of one-byte headers


@dataclass(frozen=True, slots=True)
class CaptureTime:
    """When the first sample of a packet was captured.

    `ntp` is on the clock of whoever captured it (32.32 fixed point s since 1900). `offset_ns`, where given, is what the
    sender (a mixer or forwarder) estimates that clock to differ: capturer's NTP clock = sender's NTP clock + offset.
    """

    ntp: int
    offset_ns: int | None = None

    @property
    def unix_ns(self) -> int:
        """As nanoseconds since 1970, on the capturer's clock."""
        return unix_ns_from_ntp(self.ntp)


def header_extensions(profile: int | None, data: bytes) -> dict[int, bytes]:
    """The elements of a header extension by their identifier; nothing of a profile that is not RFC 8285's.

    Raises
    ------
    MalformedPacket
        If an element is longer than the extension.
    """
    one_byte = profile == ONE_BYTE_PROFILE
    if not one_byte and (profile is None or profile & 0xFFF0 != TWO_BYTE_PROFILE):
        return {}
    found: dict[int, bytes] = {}
    at = 0
    while at < len(data):
        if data[at] == 0:  # padding
            at += 1
            continue
        if one_byte:
            number, length = data[at] >> 4, (data[at] & 0x0F) + 1
            at += 1
            if number in (0, _ENDS):  # 0 with a length: processing must end there
                break
        else:
            if at + 2 > len(data):
                raise MalformedPacket("RTP header extension ends in an element's header")
            number, length = data[at], data[at + 1]
            at += 2
        if at + length > len(data):
            raise MalformedPacket("RTP header extension ends in an element")
        found.setdefault(number, bytes(data[at : at + length]))
        at += length
    return found


def serialize_header_extensions(elements: Mapping[int, bytes]) -> tuple[int, bytes]:
    """Profile and bytes of a header extension with these elements, in whole words.

    Raises
    ------
    ValueError
        If an identifier or a length does not fit even in two bytes.
    """
    one_byte = all(0 < n <= LAST_ONE_BYTE_ID and 0 < len(v) <= LAST_ONE_BYTE_LENGTH for n, v in elements.items())
    data = b""
    for number, value in elements.items():
        if not 0 < number < 256 or len(value) > 255:
            raise ValueError(f"extension {number} of {len(value)} bytes does not fit")
        data += bytes([number << 4 | len(value) - 1] if one_byte else [number, len(value)]) + value
    return ONE_BYTE_PROFILE if one_byte else TWO_BYTE_PROFILE, data + bytes(-len(data) % 4)


def parse_capture_time(element: bytes) -> CaptureTime:
    """The value of one abs-capture-time element.

    Raises
    ------
    MalformedPacket
        If it is of neither 8 nor 16 bytes.
    """
    if len(element) == 8:
        return CaptureTime(*struct.unpack("!Q", element))
    if len(element) == 16:
        ntp, offset = struct.unpack("!Qq", element)
        return CaptureTime(ntp, offset * NS_PER_S + (1 << 31) >> 32)
    raise MalformedPacket(f"abs-capture-time of {len(element)} bytes, expected 8 or 16")


def serialize_capture_time(captured: CaptureTime) -> bytes:
    """An abs-capture-time element: 8 bytes, 16 with an offset."""
    if captured.offset_ns is None:
        return struct.pack("!Q", captured.ntp)
    return struct.pack("!Qq", captured.ntp, ((captured.offset_ns << 32) + NS_PER_S // 2) // NS_PER_S)


def capture_time_of(packet: RtpPacket, number: int | None) -> CaptureTime | None:
    """The capture time that a packet carries under the negotiated identifier; None where it has none that is whole."""
    if number is None or packet.extension_profile is None:
        return None
    try:
        element = header_extensions(packet.extension_profile, packet.extension).get(number)
        return None if element is None else parse_capture_time(element)
    except MalformedPacket:
        return None
