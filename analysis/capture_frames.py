"""Link-layer frames in, the UDP datagram that each carries out, whatever their headers claim of their lengths.

Sources: the link-layer header types of pcap and pcapng (Ethernet with IEEE 802.1Q tags, LINUX_SLL, LINUX_SLL2, raw IP,
NULL and LOOP), IPv4 (RFC 791), IPv6 and its extension headers (RFC 8200, RFC 4302) and UDP (RFC 768).
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache

__all__ = ["ETHER_IPV4", "ETHER_IPV6", "IP_UDP", "LINKTYPE_LINUX_SLL", "Direction", "Passed", "Udp", "parse_frame"]

LINKTYPE_NULL, LINKTYPE_ETHERNET, LINKTYPE_LOOP, LINKTYPE_LINUX_SLL, LINKTYPE_LINUX_SLL2 = 0, 1, 108, 113, 276
LINKTYPES_RAW_IP = frozenset({12, 14, 101, 228, 229})
ETHER_IPV4, ETHER_IPV6 = 0x0800, 0x86DD
ETHER_VLAN = frozenset({0x8100, 0x88A8, 0x9100})
IP_UDP = 17
IPV4_FRAGMENT = 0x3FFF  # more fragments, or an offset
IPV6_FRAGMENT, IPV6_AUTHENTICATION = 44, 51
IPV6_EXTENSIONS = frozenset({0, 43, 60, 135, 139, 140})  # those with a length in units of 8 bytes, less one
SLL_OUTGOING, SLL_OTHER_HOST = 4, 3


class Direction(Enum):
    """Which way a datagram went; the value is the packet type of LINUX_SLL."""

    RECEIVED = 0
    SENT = 4


class Passed(Enum):
    """Why a frame gives no datagram; the value says it to a person."""

    NOT_UDP = "not UDP over IP"
    FRAGMENT = "fragments of IP packets"
    LINK_TYPE = "of a link type that is not read"


@dataclass(frozen=True, slots=True)
class Udp:
    """One UDP datagram: between whom, which way (None where the link layer does not say), and what is there of it.

    `missing_bytes` of its payload were not captured.
    """

    source: tuple[str, int]
    destination: tuple[str, int]
    payload: bytes
    direction: Direction | None = None
    missing_bytes: int = 0


def parse_frame(link_type: int, frame: bytes, *, cut: bool = False) -> Udp | Passed:
    """The UDP datagram in a frame.

    Parameters
    ----------
    link_type : int
        LINKTYPE of the capture.
    frame : bytes
        As captured.
    cut : bool
        True where the capture holds only the beginning of the frame. Only then does a UDP length beyond the end of the
        frame mean that something is missing; else the length is wrong.

    Returns
    -------
    Udp or Passed
    """
    found = _network_layer(link_type, frame)
    if isinstance(found, Passed):
        return found
    ether, at, direction = found
    internet = _ipv4(frame, at) if ether == ETHER_IPV4 else _ipv6(frame, at) if ether == ETHER_IPV6 else Passed.NOT_UDP
    if isinstance(internet, Passed):
        return internet
    source, destination, at = internet
    there = len(frame) - at - 8
    if there < 0:
        return Passed.NOT_UDP
    claimed = _word(frame, at + 4) - 8
    size = claimed if 0 <= claimed <= there else there
    return Udp(
        source=_endpoint(source, _word(frame, at)),
        destination=_endpoint(destination, _word(frame, at + 2)),
        payload=bytes(frame[at + 8 : at + 8 + size]),
        direction=direction,
        missing_bytes=max(0, claimed - there) if cut else 0,
    )


def _word(data: bytes, at: int) -> int:
    return data[at] << 8 | data[at + 1]


def _network_layer(link_type: int, frame: bytes) -> tuple[int, int, Direction | None] | Passed:
    """EtherType, where the network layer begins, and the direction."""
    direction = None
    if link_type == LINKTYPE_ETHERNET and len(frame) >= 14:
        ether, at = _word(frame, 12), 14
    elif link_type == LINKTYPE_LINUX_SLL and len(frame) >= 16:
        ether, at, direction = _word(frame, 14), 16, _sll_direction(_word(frame, 0))
    elif link_type == LINKTYPE_LINUX_SLL2 and len(frame) >= 20:
        ether, at, direction = _word(frame, 0), 20, _sll_direction(frame[10])
    elif link_type in LINKTYPES_RAW_IP or link_type in (LINKTYPE_NULL, LINKTYPE_LOOP):
        at = 0 if link_type in LINKTYPES_RAW_IP else 4
        # the address family before it differs from system to system, the version of IP does not
        version = frame[at] >> 4 if len(frame) > at else 0
        ether = {4: ETHER_IPV4, 6: ETHER_IPV6}.get(version, 0)
    elif link_type in (LINKTYPE_ETHERNET, LINKTYPE_LINUX_SLL, LINKTYPE_LINUX_SLL2):
        return Passed.NOT_UDP
    else:
        return Passed.LINK_TYPE
    while ether in ETHER_VLAN and len(frame) >= at + 4:
        ether, at = _word(frame, at + 2), at + 4
    return ether, at, direction


def _sll_direction(packet_type: int) -> Direction | None:
    if packet_type == SLL_OTHER_HOST:
        return None
    return Direction.SENT if packet_type == SLL_OUTGOING else Direction.RECEIVED


def _ipv4(frame: bytes, at: int) -> tuple[bytes, bytes, int] | Passed:
    """Source, destination, and where UDP begins."""
    if len(frame) < at + 20 or not 0x45 <= frame[at] <= 0x4F or frame[at + 9] != IP_UDP:
        return Passed.NOT_UDP
    if _word(frame, at + 6) & IPV4_FRAGMENT:
        return Passed.FRAGMENT
    return frame[at + 12 : at + 16], frame[at + 16 : at + 20], at + 4 * (frame[at] & 0x0F)


def _ipv6(frame: bytes, at: int) -> tuple[bytes, bytes, int] | Passed:
    """Source, destination, and where UDP begins."""
    if len(frame) < at + 40 or frame[at] >> 4 != 6:
        return Passed.NOT_UDP
    source, destination, following = frame[at + 8 : at + 24], frame[at + 24 : at + 40], frame[at + 6]
    at += 40
    while following != IP_UDP:
        if len(frame) < at + 8:
            return Passed.NOT_UDP
        if following == IPV6_FRAGMENT:
            if _word(frame, at + 2) & 0xFFF9:  # an offset, or more to come
                return Passed.FRAGMENT
            size = 8
        elif following == IPV6_AUTHENTICATION:
            size = 4 * (frame[at + 1] + 2)
        elif following in IPV6_EXTENSIONS:
            size = 8 * (frame[at + 1] + 1)
        else:
            return Passed.NOT_UDP
        following, at = frame[at], at + size
    return source, destination, at


@lru_cache(maxsize=4096)
def _endpoint(packed: bytes, port: int) -> tuple[str, int]:
    """(address, port); the same tuple each time, since a capture names few of them very often."""
    return str(ipaddress.ip_address(packed)), port
