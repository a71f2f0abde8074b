"""UDP datagrams to and from nanosecond pcap files that open in Wireshark, direction included.

Sources: the pcap file format (magic 0xa1b23c4d for nanoseconds), LINKTYPE_LINUX_SLL (113), whose packet type says
whether this host received or sent, IPv4 (RFC 791), IPv6 (RFC 8200) and UDP (RFC 768).
"""

from __future__ import annotations

import ipaddress
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from analysis.capture_files import pcap_records
from analysis.capture_frames import (
    ETHER_IPV4,
    ETHER_IPV6,
    IP_UDP,
    LINKTYPE_LINUX_SLL,
    Direction,
    Passed,
    parse_frame,
)
from analysis.errors import BundleError, MalformedPacket
from analysis.units import NS_PER_S

__all__ = ["Datagram", "Direction", "Endpoints", "pcap_header", "read_pcap"]

MAGIC_NS = 0xA1B23C4D
SNAP_BYTES = 262_144
_GLOBAL = struct.Struct("<IHHiIII")
_RECORD = struct.Struct("<IIII")
_SLL = struct.Struct("!HHH8sH")
_HOP_LIMIT = 64


def _ipv4_start(total_bytes: int) -> bytes:
    """An IPv4 header up to its checksum, of which only the total length changes; fragmentation is forbidden."""
    return struct.pack("!BBHHHBB", 0x45, 0, total_bytes, 0, 0x4000, _HOP_LIMIT, IP_UDP)


@dataclass(frozen=True, slots=True)
class Datagram:
    """One UDP datagram: when (ns since 1970, as the file says), which way, between whom."""

    time_ns: int
    direction: Direction
    source: tuple[str, int]
    destination: tuple[str, int]
    payload: bytes


def pcap_header() -> bytes:
    """The header of a little-endian nanosecond capture of LINUX_SLL packets."""
    return _GLOBAL.pack(MAGIC_NS, 2, 4, 0, 0, SNAP_BYTES, LINKTYPE_LINUX_SLL)


@dataclass(frozen=True)
class Endpoints:
    """Makes the records of one direction of one path; all that does not change from packet to packet is made once.

    `source` and `destination` are (IP address, port). Raises ValueError where an address is not one.
    """

    direction: Direction
    source: tuple[str, int]
    destination: tuple[str, int]

    @cached_property
    def _fixed(self) -> tuple[bytes, bytes, bytes, int, int]:
        """Link header, addresses, ports, IP version, and the sum of what is fixed under the checksum.

        That of IPv4 is over its header; IPv6 has none and demands that of UDP, over addresses, protocol, ports and all
        that follows.
        """
        from_ip, to_ip = (ipaddress.ip_address(end[0]) for end in (self.source, self.destination))
        ether = ETHER_IPV4 if from_ip.version == 4 else ETHER_IPV6
        link = _SLL.pack(self.direction.value, 1, 6, bytes(8), ether)
        addresses = from_ip.packed + to_ip.packed
        ports = struct.pack("!HH", self.source[1], self.destination[1])
        summed = _ipv4_start(0) + addresses if from_ip.version == 4 else addresses + ports + bytes([0, IP_UDP])
        return link, addresses, ports, from_ip.version, int.from_bytes(summed, "big")

    def record(self, time_ns: int, payload: bytes) -> bytes:
        """One datagram as a capture record; `time_ns` since 1970."""
        link, addresses, ports, version, fixed = self._fixed
        udp_bytes = 8 + len(payload)
        check = 0
        if version == 4:
            ip_check = _checksum(fixed + 20 + udp_bytes).to_bytes(2, "big")
            header = _ipv4_start(20 + udp_bytes) + ip_check + addresses
        else:
            header = struct.pack("!IHBB", 6 << 28, udp_bytes, IP_UDP, _HOP_LIMIT) + addresses
            words = payload + bytes(len(payload) % 2)
            check = _checksum(fixed + 2 * udp_bytes + int.from_bytes(words, "big"))  # the length counts twice
        frame = link + header + ports + struct.pack("!HH", udp_bytes, check) + payload
        return _RECORD.pack(time_ns // NS_PER_S, time_ns % NS_PER_S, len(frame), len(frame)) + frame


def _checksum(number: int) -> int:
    """The Internet checksum (RFC 1071) of words given as one number: it is a sum modulo 65535."""
    return 0xFFFF - number % 0xFFFF


def read_pcap(path: Path, warnings: list[str]) -> Iterator[Datagram]:
    """The UDP datagrams of a bundle's capture, in file order.

    A file that ends in the middle of a record gives what is whole; that, and packets that are not UDP, are added to
    `warnings`.

    Raises
    ------
    BundleError
        If the file is not a capture as this module writes it.
    """
    skipped = 0
    with path.open("rb") as file:
        head = file.read(_GLOBAL.size)
        if len(head) < _GLOBAL.size:
            warnings.append(f"{path.name}: ends within its header")
            return
        magic, _, _, _, _, _, link_type = _GLOBAL.unpack(head)
        if magic != MAGIC_NS or link_type != LINKTYPE_LINUX_SLL:
            raise BundleError(f"{path}: not a capture of this tool (nanosecond pcap of LINUX_SLL packets)")
        try:
            for frame in pcap_records(file, "<", 1, LINKTYPE_LINUX_SLL):
                udp = parse_frame(LINKTYPE_LINUX_SLL, frame.data, cut=frame.cut)
                if isinstance(udp, Passed):
                    skipped += 1
                    continue
                direction = Direction.SENT if udp.direction is Direction.SENT else Direction.RECEIVED
                yield Datagram(frame.time_ns, direction, udp.source, udp.destination, udp.payload)
        except MalformedPacket:
            warnings.append(f"{path.name}: cut off; what lies before is used")
    if skipped:
        warnings.append(f"{path.name}: {skipped} packets are not UDP over IP")
