"""RTCP packets, compound or reduced in size, into frozen records, and the reports that we send into packets.

Sources: RFC 3550 sections 6.4 (SR, RR), 6.5 (SDES), 6.6 (BYE); RFC 3611 sections 4.4 and 4.5 (reference time and delay
since the last one); RFC 5506 (reduced size). Packets and report blocks of other types are passed over.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from analysis.errors import MalformedPacket
from analysis.units import NS_PER_S

__all__ = [
    "DelaySinceReference",
    "ExtendedReport",
    "Goodbye",
    "ReceiverReport",
    "ReportBlock",
    "RtcpPacket",
    "SdesChunk",
    "SenderInfo",
    "SenderReport",
    "SourceDescription",
    "compound",
    "middle_ntp",
    "ntp_from_unix_ns",
    "parse_rtcp",
    "round_trip_ns",
    "serialize_extended_report",
    "serialize_receiver_report",
    "unix_ns_from_ntp",
]

SR, RR, SDES, BYE, XR = 200, 201, 202, 203, 207
RRTR_BLOCK, DLRR_BLOCK = 4, 5
NTP_1970 = 2_208_988_800  # seconds from 1900 to 1970
MAX_BLOCKS = 31
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
    """An SR."""

    ssrc: int
    sender: SenderInfo
    blocks: tuple[ReportBlock, ...] = ()


@dataclass(frozen=True, slots=True)
class ReceiverReport:
    """An RR."""

    ssrc: int
    blocks: tuple[ReportBlock, ...] = ()


@dataclass(frozen=True, slots=True)
class SdesChunk:
    """The items of one source: type (1 is the CNAME) and value as sent."""

    ssrc: int
    items: tuple[tuple[int, bytes], ...]

    @property
    def cname(self) -> str | None:
        """The canonical name; None where the chunk has none."""
        return next((value.decode(errors="replace") for kind, value in self.items if kind == _CNAME), None)


@dataclass(frozen=True, slots=True)
class SourceDescription:
    """An SDES."""

    chunks: tuple[SdesChunk, ...]


@dataclass(frozen=True, slots=True)
class Goodbye:
    """A BYE; `reason` None where none was given."""

    ssrcs: tuple[int, ...]
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class DelaySinceReference:
    """One sub-block of a DLRR: to whom, the middle bits of its last reference time, and how long ago that came.

    `lrr` and `dlrr` in 1/65536 s; both 0 where no reference time has come.
    """

    ssrc: int
    lrr: int
    dlrr: int


@dataclass(frozen=True, slots=True)
class ExtendedReport:
    """An XR: the sender's reference time (NTP 32.32, None where it gives none) and the delays that it answers with."""

    ssrc: int
    reference_ntp: int | None = None
    delays: tuple[DelaySinceReference, ...] = ()


RtcpPacket = SenderReport | ReceiverReport | SourceDescription | Goodbye | ExtendedReport


def parse_rtcp(data: bytes) -> tuple[RtcpPacket, ...]:
    """The packets of one RTCP datagram (decrypted), in order.

    Raises
    ------
    MalformedPacket
        If it is cut off, or a part does not fit in what holds it.
    """
    packets: list[RtcpPacket] = []
    for kind, count, body in _split(data):
        try:
            if kind in (SR, RR):
                packets.append(_parse_report(kind, count, body))
            elif kind == SDES:
                packets.append(SourceDescription(tuple(_parse_chunks(count, body))))
            elif kind == BYE:
                packets.append(_parse_goodbye(count, body))
            elif kind == XR:
                packets.append(_parse_extended(body))
        except (struct.error, IndexError):
            raise MalformedPacket(f"RTCP packet of type {kind} is shorter than what it holds") from None
    return tuple(packets)


def _split(data: bytes) -> Iterator[tuple[int, int, bytes]]:
    """Type, count and body (without header and padding) of each packet."""
    at = 0
    while at < len(data):
        if len(data) - at < 4:
            raise MalformedPacket("RTCP ends in a header")
        first, kind, words = struct.unpack_from("!BBH", data, at)
        end = at + 4 * (words + 1)
        if first >> 6 != 2 or end > len(data):
            raise MalformedPacket("RTCP packet of a wrong version or length")
        padding = 0
        if first & 0x20:
            padding = data[end - 1] if words else 0
            if padding == 0 or padding % 4 or padding > 4 * words:
                raise MalformedPacket("RTCP padding does not fit its packet")
        yield kind, first & 0x1F, data[at + 4 : end - padding]
        at = end


def _parse_report(kind: int, count: int, body: bytes) -> SenderReport | ReceiverReport:
    (ssrc,) = struct.unpack_from("!I", body)
    at = 24 if kind == SR else 4
    sender = SenderInfo(*struct.unpack_from("!QIII", body, 4)) if kind == SR else None
    blocks = []
    for i in range(count):
        source, loss, highest, jitter, lsr, dlsr = struct.unpack_from("!IIIIII", body, at + 24 * i)
        lost = loss & 0xFFFFFF
        lost -= (lost & 0x800000) << 1
        blocks.append(ReportBlock(source, loss >> 24, lost, highest, jitter, lsr, dlsr))
    return ReceiverReport(ssrc, tuple(blocks)) if sender is None else SenderReport(ssrc, sender, tuple(blocks))


def _parse_chunks(count: int, body: bytes) -> Iterator[SdesChunk]:
    at = 0
    for _ in range(count):
        (ssrc,) = struct.unpack_from("!I", body, at)
        at += 4
        items = []
        while at < len(body) and (kind := body[at]):  # a list that ends with the packet is let pass
            length = body[at + 1]
            if at + 2 + length > len(body):
                raise MalformedPacket("RTCP SDES item is longer than its packet")
            items.append((kind, bytes(body[at + 2 : at + 2 + length])))
            at += 2 + length
        at += 4 - at % 4  # the null that ends the list, and more to the next word
        yield SdesChunk(ssrc, tuple(items))


def _parse_goodbye(count: int, body: bytes) -> Goodbye:
    ssrcs = struct.unpack_from(f"!{count}I", body)
    reason = None
    if len(body) > 4 * count:
        length = body[4 * count]
        if 4 * count + 1 + length > len(body):
            raise MalformedPacket("RTCP BYE reason is longer than its packet")
        reason = body[4 * count + 1 : 4 * count + 1 + length].decode(errors="replace") or None
    return Goodbye(ssrcs, reason)


def _parse_extended(body: bytes) -> ExtendedReport:
    (ssrc,) = struct.unpack_from("!I", body)
    reference_ntp: int | None = None
    delays: list[DelaySinceReference] = []
    at = 4
    while at < len(body):
        kind, words = struct.unpack_from("!BxH", body, at)
        end = at + 4 * (words + 1)
        if end > len(body) or (kind == RRTR_BLOCK and words != 2) or (kind == DLRR_BLOCK and words % 3):
            raise MalformedPacket("RTCP XR block of a wrong length")
        if kind == RRTR_BLOCK:
            (reference_ntp,) = struct.unpack_from("!Q", body, at + 4)
        elif kind == DLRR_BLOCK:
            delays += [DelaySinceReference(*struct.unpack_from("!III", body, i)) for i in range(at + 4, end, 12)]
        at = end
    return ExtendedReport(ssrc, reference_ntp, tuple(delays))


def serialize_receiver_report(ssrc: int, blocks: Sequence[ReportBlock], sender: SenderInfo | None = None) -> bytes:
    """An RR, or an SR where `sender` is given; at most 31 blocks."""
    body = struct.pack("!I", ssrc)
    if sender is not None:
        body += struct.pack(
            "!QIII",
            sender.ntp,
            sender.rtp_timestamp,
            sender.packet_count & 0xFFFFFFFF,
            sender.octet_count & 0xFFFFFFFF,
        )
    for b in blocks[:MAX_BLOCKS]:
        lost = max(-0x800000, min(0x7FFFFF, b.packets_lost)) & 0xFFFFFF
        body += struct.pack(
            "!IIIIII", b.ssrc, b.fraction_lost << 24 | lost, b.highest_sequence & 0xFFFFFFFF, b.jitter, b.lsr, b.dlsr
        )
    return _packet(RR if sender is None else SR, len(blocks[:MAX_BLOCKS]), body)


def serialize_extended_report(report: ExtendedReport) -> bytes:
    """An XR with a reference time (RRTR), where there is one, and the delays (DLRR), where there are any."""
    body = struct.pack("!I", report.ssrc)
    if report.reference_ntp is not None:
        body += struct.pack("!BxHQ", RRTR_BLOCK, 2, report.reference_ntp)
    if report.delays:
        body += struct.pack("!BxH", DLRR_BLOCK, 3 * len(report.delays))
        body += b"".join(struct.pack("!III", d.ssrc, d.lrr, d.dlrr) for d in report.delays)
    return _packet(XR, 0, body)


def compound(report: bytes, ssrc: int, cname: str, *, extended: bytes = b"", bye: bool = False) -> bytes:
    """A compound packet: report, CNAME (RFC 3550 section 6.1 demands both), XR if given and, at a call's end, BYE."""
    name = cname.encode()[:255]
    item = struct.pack("!IBB", ssrc, _CNAME, len(name)) + name
    packet = report + _packet(SDES, 1, item + bytes(4 - len(item) % 4)) + extended
    return packet + _packet(BYE, 1, struct.pack("!I", ssrc)) if bye else packet


def _packet(kind: int, count: int, body: bytes) -> bytes:
    return struct.pack("!BBH", 0x80 | count, kind, len(body) // 4) + body


def round_trip_ns(delay: int, *, arrival_ns: int, sent_ns: int) -> int | None:
    """Round-trip time by an answer to a report of ours (RFC 3550 section 6.4.1, RFC 3611 section 4.5).

    Parameters
    ----------
    delay : int
        How long the peer held our report (`dlsr` or `dlrr`), in 1/65536 s: the figure is good to 15 µs.
    arrival_ns, sent_ns : int
        When the answer arrived and our report left, on our own monotonic clock.

    Returns
    -------
    int or None
        None where the figure is not positive.
    """
    value = arrival_ns - sent_ns - delay * NS_PER_S // 65536
    return value if value > 0 else None


def middle_ntp(ntp: int) -> int:
    """The middle 32 bits of an NTP time: what `lsr` and `lrr` name a report by."""
    return ntp >> 16 & 0xFFFFFFFF


def ntp_from_unix_ns(unix_ns: int) -> int:
    """Nanoseconds since 1970 as an NTP time (32.32 fixed point seconds since 1900), modulo its 136 years."""
    seconds, rest = divmod(unix_ns, NS_PER_S)
    return (seconds + NTP_1970 << 32 | (rest << 32) // NS_PER_S) & 0xFFFFFFFFFFFFFFFF


def unix_ns_from_ntp(ntp: int) -> int:
    """An NTP time as nanoseconds since 1970; rounded, and of the era that began in 1900."""
    return (ntp * NS_PER_S + (1 << 31) >> 32) - NTP_1970 * NS_PER_S
