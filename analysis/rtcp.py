"""RTCP compound packets into the reports that timing needs, and reports into packets.

Source: RFC 3550 section 6.4 (SR, RR), 6.5 (SDES), 6.6 (BYE). Blocks of other types are passed over.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from analysis.errors import MalformedPacket

__all__ = [
    "ReportBlock",
    "SenderInfo",
    "SenderReport",
    "compound",
    "parse_compound",
    "round_trip_ns",
    "serialize_receiver_report",
]

SR, RR, SDES, BYE = 200, 201, 202, 203
_CNAME = 1


@dataclass(frozen=True, slots=True)
class ReportBlock:
    """What a receiver says about one stream. `jitter` in RTP ticks; `lsr` and `dlsr` in 1/65536 s."""

    ssrc: int
    fraction_lost: int
    packets_lost: int
    highest_sequence: int
    jitter: int
    lsr: int
    dlsr: int


@dataclass(frozen=True, slots=True)
class SenderInfo:
    """What a sender says of itself; `ntp` is 32.32 fixed point seconds since 1900 on its own clock."""

    ntp: int
    rtp_timestamp: int
    packet_count: int
    octet_count: int


@dataclass(frozen=True, slots=True)
class SenderReport:
    """An SR (with `sender`) or an RR (without)."""

    ssrc: int
    sender: SenderInfo | None
    blocks: tuple[ReportBlock, ...]


def _chunks(data: bytes) -> Iterator[tuple[int, int, bytes]]:
    at = 0
    while at < len(data):
        if len(data) - at < 4:
            raise MalformedPacket("RTCP ends in a header")
        first, kind, words = struct.unpack_from("!BBH", data, at)
        if first >> 6 != 2 or at + 4 * (words + 1) > len(data):
            raise MalformedPacket("RTCP packet of a wrong version or length")
        yield kind, first & 0x1F, data[at + 4 : at + 4 * (words + 1)]
        at += 4 * (words + 1)


def parse_compound(data: bytes) -> list[SenderReport]:
    """The sender and receiver reports of a compound packet.

    Raises
    ------
    MalformedPacket
        If the packet is cut off or a block does not fit.
    """
    reports = []
    for kind, count, body in _chunks(data):
        if kind not in (SR, RR):
            continue
        at = 24 if kind == SR else 4
        if len(body) < at + 24 * count:
            raise MalformedPacket("RTCP report is shorter than its blocks")
        sender = None
        if kind == SR:
            high, low, timestamp, packets, octets = struct.unpack_from("!IIIII", body, 4)
            sender = SenderInfo(high << 32 | low, timestamp, packets, octets)
        blocks = []
        for i in range(count):
            ssrc, loss, highest, jitter, lsr, dlsr = struct.unpack_from("!IIIIII", body, at + 24 * i)
            lost = loss & 0xFFFFFF
            lost -= (lost & 0x800000) << 1
            blocks.append(ReportBlock(ssrc, loss >> 24, lost, highest, jitter, lsr, dlsr))
        reports.append(SenderReport(struct.unpack_from("!I", body)[0], sender, tuple(blocks)))
    return reports


def serialize_receiver_report(ssrc: int, blocks: Sequence[ReportBlock], sender: SenderInfo | None = None) -> bytes:
    """An RR, or an SR where `sender` is given; at most 31 blocks."""
    body = struct.pack("!I", ssrc)
    if sender is not None:
        body += struct.pack(
            "!IIIII",
            sender.ntp >> 32,
            sender.ntp & 0xFFFFFFFF,
            sender.rtp_timestamp,
            sender.packet_count & 0xFFFFFFFF,
            sender.octet_count & 0xFFFFFFFF,
        )
    for b in blocks[:31]:
        lost = max(-0x800000, min(0x7FFFFF, b.packets_lost)) & 0xFFFFFF
        body += struct.pack(
            "!IIIIII", b.ssrc, b.fraction_lost << 24 | lost, b.highest_sequence & 0xFFFFFFFF, b.jitter, b.lsr, b.dlsr
        )
    return _packet(RR if sender is None else SR, len(blocks[:31]), body)


def compound(report: bytes, ssrc: int, cname: str, *, bye: bool = False) -> bytes:
    """A compound packet: the report, the CNAME (RFC 3550 section 6.1 demands both) and, at the end of a call, a BYE."""
    name = cname.encode()[:255]
    item = struct.pack("!IBB", ssrc, _CNAME, len(name)) + name
    packet = report + _packet(SDES, 1, item + bytes(4 - len(item) % 4))
    return packet + _packet(BYE, 1, struct.pack("!I", ssrc)) if bye else packet


def _packet(kind: int, count: int, body: bytes) -> bytes:
    return struct.pack("!BBH", 0x80 | count, kind, len(body) // 4) + body


def round_trip_ns(block: ReportBlock, arrival_ns: int, sent_ns: int) -> int | None:
    """Round-trip time by a report about our stream (RFC 3550 section 6.4.1), all on our own monotonic clock.

    Parameters
    ----------
    block : ReportBlock
    arrival_ns : int
        When the report arrived.
    sent_ns : int
        When our sender report whose middle NTP bits are `block.lsr` left.

    Returns
    -------
    int or None
        None where the peer had no report of ours yet, or the figure is not positive.
    """
    if not block.lsr:
        return None
    value = arrival_ns - sent_ns - block.dlsr * 1_000_000_000 // 65536
    return value if value > 0 else None
