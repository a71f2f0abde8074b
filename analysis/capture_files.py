"""Capture files (pcap, pcapng) in, their link-layer frames with times out.

Sources: the pcap file format (magic numbers for micro- and nanoseconds, both byte orders) and the pcapng format, with
Section Header, Interface Description, Enhanced Packet, Simple Packet and the obsolete Packet Block. Times are ns since
1970. Sizes that a file claims are believed only as far as the file goes.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO

from analysis.capture_frames import Direction
from analysis.errors import MalformedPacket
from analysis.units import NS_PER_S

__all__ = ["MAX_RECORD_BYTES", "Frame", "is_pcap", "is_pcapng", "pcap_file", "pcap_records", "pcapng_file"]

MAX_RECORD_BYTES = 1 << 20  # more than this is damage, not a packet
MAX_TIME_NS = 1 << 62  # the year 2116; later ones would not stay whole in the arithmetic that follows
CHUNK_BYTES = 1 << 16
_PCAP = {  # magic: byte order, ns in a unit of the second part of a time
    b"\xd4\xc3\xb2\xa1": ("<", 1000),
    b"\xa1\xb2\xc3\xd4": (">", 1000),
    b"\x4d\x3c\xb2\xa1": ("<", 1),
    b"\xa1\xb2\x3c\x4d": (">", 1),
}
_PCAP_HEADER_BYTES = 24
_SECTION = b"\n\r\r\n"
_ORDER = {b"\x4d\x3c\x2b\x1a": "<", b"\x1a\x2b\x3c\x4d": ">"}
_INTERFACE_BLOCK, _OBSOLETE_BLOCK, _SIMPLE_BLOCK, _ENHANCED_BLOCK = 1, 2, 3, 6
_OPTION_FLAGS, _OPTION_RESOLUTION, _OPTION_OFFSET = 2, 9, 14
_DIRECTIONS = {1: Direction.RECEIVED, 2: Direction.SENT}
NO_TIME = "without a time that can be used"
NO_INTERFACE = "of an interface that the file does not describe"
TOO_LONG = "longer than their block"


@dataclass(frozen=True, slots=True)
class Frame:
    """One captured frame: when (ns since 1970), its link type, and whether only its beginning was captured."""

    time_ns: int
    link_type: int
    data: bytes
    cut: bool
    direction: Direction | None = None


@dataclass(frozen=True, slots=True)
class _Interface:
    link_type: int
    units_per_s: int
    offset_s: int

    def time_ns(self, high: int, low: int) -> int:
        return (high << 32 | low) * NS_PER_S // self.units_per_s + self.offset_s * NS_PER_S


def is_pcap(head: bytes) -> bool:
    """True if a file that begins so is a pcap."""
    return head[:4] in _PCAP


def is_pcapng(head: bytes) -> bool:
    """True if a file that begins so is a pcapng."""
    return head[:4] == _SECTION


def pcap_file(file: BinaryIO) -> Iterator[Frame]:
    """The frames of a pcap, from its first byte on. Raises MalformedPacket where it is cut off or damaged."""
    head = file.read(_PCAP_HEADER_BYTES)
    if len(head) < _PCAP_HEADER_BYTES:
        raise MalformedPacket("ends within its header")
    order, unit_ns = _PCAP[head[:4]]
    link_type = struct.unpack_from(f"{order}I", head, 20)[0] & 0xFFFF  # the rest tells the length of a checksum
    yield from pcap_records(file, order, unit_ns, link_type)


def pcap_records(file: BinaryIO, order: str, unit_ns: int, link_type: int) -> Iterator[Frame]:
    """The frames of a pcap behind its header.

    Parameters
    ----------
    file : binary file
    order : str
        Byte order, `<` or `>`.
    unit_ns : int
        Unit of the second part of a time: 1000 or 1 ns.
    link_type : int

    Raises
    ------
    MalformedPacket
        Where the file ends within a record, or where what follows cannot be one.
    """
    header = struct.Struct(f"{order}IIII")
    while head := file.read(header.size):
        if len(head) < header.size:
            raise MalformedPacket("ends within the header of a packet")
        seconds, fraction, size, whole = header.unpack(head)
        if size > MAX_RECORD_BYTES:
            raise MalformedPacket(f"a packet of {size} bytes")
        if size == whole == 0:  # how a file ends whose last blocks never reached the disk
            raise MalformedPacket("a packet of no bytes")
        data = file.read(size)
        if len(data) < size:
            raise MalformedPacket("ends within a packet")
        yield Frame(seconds * NS_PER_S + fraction * unit_ns, link_type, data, size < whole)


def pcapng_file(file: BinaryIO, passed: Counter[str]) -> Iterator[Frame]:
    """The frames of a pcapng, from its first byte on.

    Parameters
    ----------
    file : binary file
    passed : Counter
        Counts, by reason, the packets that give no frame.

    Raises
    ------
    MalformedPacket
        Where the file ends within a block, or where what follows cannot be one.
    """
    order, interfaces = "<", list[_Interface]()
    while head := file.read(8):
        if len(head) < 8:
            raise MalformedPacket("ends within the header of a block")
        if head[:4] == _SECTION:
            order, interfaces = _section_order(file), []
            _skip(file, _block_bytes(head, order) - 12)
            continue
        kind, size = struct.unpack(f"{order}II", head)[0], _block_bytes(head, order) - 12
        if kind not in (_INTERFACE_BLOCK, _OBSOLETE_BLOCK, _SIMPLE_BLOCK, _ENHANCED_BLOCK):
            _skip(file, size + 4)
            continue
        if size > MAX_RECORD_BYTES:
            raise MalformedPacket(f"a block of {size} bytes")
        body = file.read(size)
        if len(body) < size:
            raise MalformedPacket("ends within a block")
        if kind == _INTERFACE_BLOCK:
            interfaces.append(_interface(body, order))
        else:
            frame = _packet(kind, body, order, interfaces)
            if isinstance(frame, Frame):
                yield frame
            else:
                passed[frame] += 1
        if file.read(4) != head[4:]:
            raise MalformedPacket("a block whose two lengths differ")


def _block_bytes(head: bytes, order: str) -> int:
    size = int(struct.unpack_from(f"{order}I", head, 4)[0])
    if size < 12 or size % 4:
        raise MalformedPacket(f"a block of {size} bytes")
    return size


def _section_order(file: BinaryIO) -> str:
    order = _ORDER.get(file.read(4))
    if order is None:
        raise MalformedPacket("a section of no byte order")
    return order


def _skip(file: BinaryIO, size: int) -> None:
    while size > 0:
        data = file.read(min(size, CHUNK_BYTES))
        if not data:
            raise MalformedPacket("ends within a block")
        size -= len(data)


def _interface(body: bytes, order: str) -> _Interface:
    if len(body) < 8:
        raise MalformedPacket("an interface without a link type")
    units_per_s, offset_s = 1_000_000, 0
    for code, value in _options(body, 8, order):
        if code == _OPTION_RESOLUTION and len(value) == 1:
            exponent = value[0] & 0x7F
            units_per_s = 2**exponent if value[0] & 0x80 else 10**exponent
        elif code == _OPTION_OFFSET and len(value) == 8:
            offset_s = struct.unpack(f"{order}q", value)[0]
    return _Interface(struct.unpack_from(f"{order}H", body)[0], units_per_s, offset_s)


def _options(body: bytes, at: int, order: str) -> Iterator[tuple[int, bytes]]:
    while at + 4 <= len(body):
        code, size = struct.unpack_from(f"{order}HH", body, at)
        if code == 0:
            return
        yield code, body[at + 4 : at + 4 + size]
        at += 4 + size + -size % 4


def _packet(kind: int, body: bytes, order: str, interfaces: list[_Interface]) -> Frame | str:
    """The frame in a packet block, or why there is none."""
    if kind == _SIMPLE_BLOCK:
        return NO_TIME
    if len(body) < 20:
        return TOO_LONG
    if kind == _ENHANCED_BLOCK:
        number, high, low, size, whole = struct.unpack_from(f"{order}IIIII", body)
    else:
        number, _, high, low, size, whole = struct.unpack_from(f"{order}HHIIII", body)
    if number >= len(interfaces):
        return NO_INTERFACE
    if size > len(body) - 20:
        return TOO_LONG
    time_ns = interfaces[number].time_ns(high, low)
    if not 0 <= time_ns < MAX_TIME_NS:
        return NO_TIME
    flags = next(
        (v for c, v in _options(body, 20 + size + -size % 4, order) if c == _OPTION_FLAGS and len(v) == 4), b""
    )
    direction = _DIRECTIONS.get(struct.unpack(f"{order}I", flags)[0] & 3) if flags else None
    return Frame(time_ns, interfaces[number].link_type, body[20 : 20 + size], size < whole, direction)
