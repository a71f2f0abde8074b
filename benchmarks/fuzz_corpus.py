"""Real parts (reference captures, a simulated call, encoded sound) into seeds for fuzzing, divided into their fields.

Sources: RFC 3550 and 3611 (RTCP), RFC 8285 (header extensions), the formats of pcap, pcapng and rtpdump.
"""

from __future__ import annotations

import ipaddress
import struct
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from analysis.bundle import CallRecord
from analysis.capture import read_capture
from analysis.codecs import CODECS, encode
from analysis.rtp import RtpPacket, is_rtcp, serialize_rtp
from benchmarks.fuzz_mutate import Record, Records, Seed
from probe.agent.config import agent_config_from_query
from probe.agent.simulate import simulate_call

__all__ = [
    "ENDS",
    "GOLDEN",
    "PACKED",
    "SAP_TEXT",
    "captures",
    "cut",
    "extension_blocks",
    "pcap_captures",
    "pcapng_captures",
    "rtcp_packets",
    "rtp_packets",
    "rtpdumps",
    "simulated_calls",
]

GOLDEN = Path(__file__).resolve().parent.parent / "tests" / "golden"
TIME_NS = 1_800_000_000_123_456_789
ENDS = ("192.0.2.1", 5004), ("203.0.113.9", 5006)
ENDS_V6 = ("2001:db8::1", 5004), ("2001:db8::2", 5006)
SNAP_BYTES = 262_144
PACKED = 0.06

Ends = tuple[tuple[str, int], tuple[str, int]]


def cut(data: bytes, *widths: int) -> Record:
    """Bytes divided into fields of these widths, and what is left."""
    fields, at = [], 0
    for width in widths:
        fields.append(data[at : at + width])
        at += width
    return (*fields, data[at:])


def rtp_fields(data: bytes) -> Record:
    """One RTP packet in its fields."""
    csrcs = data[0] & 0x0F
    widths = [1, 1, 2, 4, 4, *([4] * csrcs)]
    at = sum(widths)
    if data[0] & 0x10:
        words = int.from_bytes(data[at + 2 : at + 4], "big")
        widths += [2, 2, *([1] * (4 * words))]
    return cut(data, *widths)


def rtcp_fields(data: bytes) -> tuple[Record, ...]:
    """Each packet of a compound packet in its header and its words."""
    records, at = [], 0
    while at + 4 <= len(data):
        size = 4 * (int.from_bytes(data[at + 2 : at + 4], "big") + 1)
        chunk = data[at : at + size]
        records.append(cut(chunk, 1, 1, 2, *([4] * (len(chunk) // 4 - 1)))[:-1])
        at += size
    return tuple(records)


@cache
def golden_packets(name: str = "bursty_loss") -> tuple[tuple[int, bytes], ...]:
    """Time and bytes of the RTP packets that a browser was sent."""
    found = read_capture(GOLDEN / "chrome" / f"{name}.pcap")
    return tuple((d.time_ns, d.payload) for d in found.datagrams)


@cache
def simulated_calls() -> tuple[CallRecord, ...]:
    """Three short calls: Opus with losses, reordering and restarts; G.711 whose agent goes silent; G.722."""
    queries = (
        {"impairment.loss.random": "0.03", "impairment.delay.uniform.high_ms": "40", "impairment.restart_at": "200"},
        {"codec": "pcmu", "impairment.dtx": "true", "impairment.initial_sequence": "65500"},
        {"codec": "g722", "impairment.duplicate": "0.05", "impairment.initial_timestamp": "4294900000"},
    )
    return tuple(
        simulate_call(agent_config_from_query({"seed": "7", **query}), turns=1, utterance_s=1.0)[0] for query in queries
    )


@cache
def spoken(codec: str) -> tuple[bytes, ...]:
    """Payloads of 1.2 s of a sound that rises and falls, as this codec's encoder gives them."""
    known = CODECS[codec]
    time_s = np.arange(int(1.2 * known.rate_hz)) / known.rate_hz
    sound = 0.3 * np.sin(2 * np.pi * 220 * time_s) * np.abs(np.sin(2 * np.pi * 1.5 * time_s))
    return encode(known, sound.astype(np.float32))


def _made_packets() -> list[RtpPacket]:
    """Packets of every shape: extensions, CSRCs, padding, other payload types, empty ones."""
    opus, event = spoken("opus"), b"\x05\x0a\x03\xc0"
    plain: dict[str, Any] = {"sequence_number": 65_535, "timestamp": 0xFFFFFFF0, "ssrc": 0x12345678}
    levels = bytes.fromhex("1081 2204 31326100 0000".replace(" ", ""))
    capture_time = bytes([0x3F]) + struct.pack("!QQ", 0xE8F1_0000_8000_0000, 0xFFFF_FFFF_0000_0000)[:16]
    two_byte = bytes([3, 16]) + bytes(16) + bytes([0, 1, 1, 0x85, 4, 0]) + bytes(0)
    return [
        RtpPacket(111, payload=opus[5], **plain),
        RtpPacket(111, payload=opus[6], marker=True, csrcs=(1, 2, 3), padding=5, **plain),
        RtpPacket(111, payload=opus[7], extension_profile=0xBEDE, extension=_words(levels), **plain),
        RtpPacket(111, payload=opus[8], extension_profile=0xBEDE, extension=_words(capture_time), **plain),
        RtpPacket(111, payload=opus[9], extension_profile=0x1000, extension=_words(two_byte), **plain),
        RtpPacket(111, payload=b"", extension_profile=0xBEDE, padding=255, **plain),
        RtpPacket(101, payload=event, **plain),
        RtpPacket(13, payload=b"\x40", **plain),
        RtpPacket(0, payload=spoken("pcmu")[3], **plain),
        RtpPacket(9, payload=spoken("g722")[3], csrcs=tuple(range(15)), **plain),
        RtpPacket(63, payload=b"\x6f\x6f" + opus[4][:80], **plain),
    ]


def _words(data: bytes) -> bytes:
    return data + bytes(-len(data) % 4)


def rtp_packets() -> list[Seed]:
    """Packets of a browser, of a simulated call, and of every shape that RTP has."""
    data = [payload for _, payload in golden_packets()[:400:40]]
    data += [serialize_rtp(timed.packet) for call in simulated_calls() for timed in call.received[:40:8]]
    data += [serialize_rtp(packet) for packet in _made_packets()]
    return [Records((rtp_fields(packet),)) for packet in data]


def extension_blocks() -> list[Seed]:
    """The same packets where they have a header extension: its elements are what is damaged."""
    return [seed for seed in rtp_packets() if isinstance(seed, Records) and seed.records[0][0][0] & 0x10]


def _rtcp(kind: int, count: int, body: bytes, *, padding: bool = False) -> bytes:
    first = 0x80 | (0x20 if padding else 0) | count
    return struct.pack("!BBH", first, kind, len(body) // 4) + body


def rtcp_datagrams() -> list[bytes]:
    """Compound packets of every type that media carries."""
    block = struct.pack("!IIIIII", 0x12345678, 0x05FFFFFD, 0x0001FFF0, 480, 0x8000_0000, 65_536)
    sender = struct.pack("!IIIIII", 0xABCDEF01, 0xE8F1_0000, 0x8000_0000, 0xFFFF_FFF0, 1000, 80_000)
    sdes = _rtcp(202, 1, struct.pack("!IBB", 0xABCDEF01, 1, 8) + b"abcd@efg" + bytes(2))
    sdes_two = _rtcp(
        202, 2, struct.pack("!IBB", 1, 1, 2) + b"ab" + bytes(4) + struct.pack("!IBB", 2, 8, 4) + b"\x02xyz\0\0"
    )
    bye = _rtcp(203, 2, struct.pack("!IIB", 1, 2, 7) + b"goodbye")
    rrtr = struct.pack("!BBHII", 4, 0, 2, 0xE8F1_0000, 0x8000_0000)
    dlrr = struct.pack("!BBHIIIIII", 5, 0, 6, 1, 0x8000_0000, 655, 2, 0x8000_1000, 0)
    loss = struct.pack("!BBHIHHHH", 1, 0, 3, 0x12345678, 1, 40, 0x4003, 0xFFFF)
    times = struct.pack("!BBHIHHII", 3, 0, 4, 0x12345678, 1, 3, 960, 1920)
    summary = struct.pack("!BBHIHHIIIIIIBBBB", 6, 0xE0, 9, 0x12345678, 1, 200, 3, 1, 0, 90, 20, 8, 64, 64, 64, 1)
    voip = struct.pack("!BBHI", 7, 0, 8, 0x12345678) + bytes(range(28))
    xr = _rtcp(207, 0, struct.pack("!I", 0xABCDEF01) + rrtr + dlrr + loss + times + summary + voip)
    nack = _rtcp(205, 1, struct.pack("!IIHH", 1, 2, 700, 0xFFFF))
    transport_cc = _rtcp(205, 15, struct.pack("!IIHHIHHHH", 1, 2, 10, 7, 0x00000101, 0x2007, 0x0404, 4, 0))
    pli, remb = (
        _rtcp(206, 1, struct.pack("!II", 1, 2)),
        _rtcp(206, 15, struct.pack("!II4sBBHI", 1, 0, b"REMB", 1, 5, 9, 2)),
    )
    app = _rtcp(204, 0, struct.pack("!I4sI", 1, b"name", 7))
    report, receiver = _rtcp(200, 1, sender + block), _rtcp(201, 2, struct.pack("!I", 1) + block * 2)
    padded = _rtcp(201, 0, struct.pack("!II", 1, 4), padding=True)
    return [
        report + sdes,
        receiver + sdes + xr,
        _rtcp(201, 0, struct.pack("!I", 1)) + sdes_two + bye,
        report + sdes + nack + transport_cc + pli + remb + app,
        _rtcp(200, 31, sender + block * 31) + bye,
        receiver + padded,
        xr,
        bye,
    ]


def rtcp_packets() -> list[Seed]:
    """Compound packets, chunk by chunk and word by word."""
    return [Records(rtcp_fields(data)) for data in rtcp_datagrams()]


def _network(ends: Ends, payload: bytes, *, fragment: int = 0x4000, extension: bool = False) -> Record:
    """IPv4 or IPv6 and UDP, in fields, with the payload as the last of them."""
    source, destination = (ipaddress.ip_address(end[0]).packed for end in ends)
    udp = tuple(struct.pack("!H", n) for n in (ends[0][1], ends[1][1], 8 + len(payload), 0))
    if len(source) == 4:
        head = struct.pack("!BBHHHBBH", 0x45, 0, 28 + len(payload), 7, fragment, 64, 17, 0)
        return (*cut(head, 1, 1, 2, 2, 2, 1, 1, 2)[:-1], source, destination, *udp, payload)
    options = bytes([17, 0, 1, 4, 0, 0, 0, 0]) if extension else b""
    head = struct.pack("!IHBB", 6 << 28, len(options) + 8 + len(payload), 0 if extension else 17, 64)
    return (*cut(head, 4, 2, 1, 1)[:-1], source, destination, *cut(options, 1, 1), *udp, payload)


LINKS = {  # link type: what stands before IPv4, before IPv6
    1: (bytes(12) + b"\x08\x00", bytes(12) + b"\x86\xdd"),
    113: (struct.pack("!HHH8sH", 0, 1, 6, bytes(8), 0x0800), struct.pack("!HHH8sH", 4, 1, 6, bytes(8), 0x86DD)),
    276: (
        struct.pack("!HHIHBB8s", 0x0800, 0, 2, 1, 0, 6, bytes(8)),
        struct.pack("!HHIHBB8s", 0x86DD, 0, 2, 1, 4, 6, bytes(8)),
    ),
    101: (b"", b""),
    0: (b"\2\0\0\0", b"\x1e\0\0\0"),
}


def _frame(link_type: int, ends: Ends, payload: Record, *, tagged: bool = False) -> Record:
    head = LINKS[link_type][":" in ends[0][0]]
    if tagged:
        head = head[:12] + b"\x81\x00\x00\x07" + head[12:]
    network = _network(ends, b"".join(payload), extension=tagged)
    return (head, *network[:-1], *payload)


SAP_TEXT = "v=0\r\no=- 1 1 IN IP4 192.0.2.1\r\ns=-\r\nm=audio 5004 RTP/AVP 96\r\na=rtpmap:96 opus/48000/2\r\n"
SAP = bytes.fromhex("20000001c0000201") + b"application/sdp\0" + SAP_TEXT.encode()

Timeline = Sequence[tuple[int, bytes]]


def timelines() -> list[Timeline]:
    """RTP as it arrived: windows of reference captures, of simulated calls, and the codecs one after the other."""
    found: list[Timeline] = []
    for name in ("bursty_loss", "spikes", "step120", "uniform40"):
        found.append(golden_packets(name)[700:740])
    for call in simulated_calls():
        found.append([(t.time_ns + TIME_NS, serialize_rtp(t.packet)) for t in call.received[:40]])
    mixed: list[tuple[int, bytes]] = []
    for at, codec in enumerate(("opus", "pcmu", "g722", "pcma")):
        known = CODECS[codec]
        number = 111 if known.payload_type is None else known.payload_type
        for i, payload in enumerate(spoken(codec)[:12]):
            packet = RtpPacket(
                number, 65_530 + 12 * at + i & 0xFFFF, i * known.clock_rate_hz // 50, 0xABCDEF01, payload
            )
            mixed.append((TIME_NS + (12 * at + i) * 20_000_000, serialize_rtp(packet)))
    return [*found, mixed]


def _datagrams(timeline: Timeline) -> list[tuple[int, Record]]:
    """A timeline with RTCP and a session description among it, each datagram in its fields."""
    result = [(t, rtp_fields(data)) for t, data in timeline]
    begin_ns = result[0][0]
    report = sum(rtcp_fields(rtcp_datagrams()[0]), ())
    return [*result[:5], (begin_ns + 90_000_000, report), *result[5:]]


def _frames(timeline: Timeline, link_type: int, ends: Ends) -> list[tuple[int, Record]]:
    frames = [
        (time_ns, _frame(link_type, ends, fields, tagged=link_type == 1 and i % 7 == 3))
        for i, (time_ns, fields) in enumerate(_datagrams(timeline))
    ]
    described = _frame(link_type, ((ends[0][0], 9875), (ends[1][0], 9875)), cut(SAP, 1, 1, 2, 4))
    fragment = (LINKS[link_type][0], *_network(ENDS, b"fragment", fragment=0x2000))
    return [(frames[0][0], described), *frames, (frames[-1][0], fragment)]


def _pcap(frames: Iterable[tuple[int, Record]], link_type: int, *, order: str = "<", ns: bool = True) -> Records:
    magic, unit = (0xA1B23C4D, 1) if ns else (0xA1B2C3D4, 1000)
    head = struct.pack(f"{order}IHHiIII", magic, 2, 4, 0, 0, SNAP_BYTES, link_type)
    records: list[Record] = [cut(head, 4, 2, 2, 4, 4, 4, 4)[:-1]]
    for time_ns, fields in frames:
        size = sum(map(len, fields))
        numbers = time_ns // 10**9 & 0xFFFFFFFF, time_ns % 10**9 // unit, size, size
        records.append((*(struct.pack(f"{order}I", n) for n in numbers), *fields))
    return Records(tuple(records), PACKED)


def _block(order: str, kind: int, fields: Record) -> Record:
    size = sum(map(len, fields))
    fill = bytes(-size % 4)
    length = struct.pack(f"{order}I", 12 + size + len(fill))
    return (struct.pack(f"{order}I", kind), length, *fields, fill, length)


def _pcapng(frames: Sequence[tuple[int, Record]], link_type: int, *, order: str = "<", resolution: int = 9) -> Records:
    def numbers(form: str, *values: int) -> Record:
        return tuple(struct.pack(order + letter, value) for letter, value in zip(form, values, strict=True))

    section = _block(order, 0x0A0D0D0A, numbers("IHHq", 0x1A2B3C4D, 1, 0, -1))
    options = (*numbers("HH", 9, 1), bytes([resolution, 0, 0, 0]), *numbers("HHq", 14, 8, 0), *numbers("HH", 0, 0))
    records = [section, _block(order, 1, (*numbers("HHI", link_type, 0, 0), *options))]
    for i, (time_ns, fields) in enumerate(frames):
        size = sum(map(len, fields))
        time = (time_ns << (resolution & 0x7F)) // 10**9 if resolution & 0x80 else time_ns // 10 ** (9 - resolution)
        high, low = time >> 32 & 0xFFFFFFFF, time & 0xFFFFFFFF
        if i % 10 == 9:
            body = (*numbers("HHIIII", 0, 0, high, low, size, size), *fields)
            records.append(_block(order, 2, body))
            continue
        end = (bytes(-size % 4), *numbers("HHI", 2, 4, 1 + i % 2), *numbers("HH", 0, 0))
        records.append(_block(order, 6, (*numbers("IIIII", 0, high, low, size, size), *fields, *end)))
    records.append(_block(order, 3, (*numbers("I", 4), b"abcd")))
    records.append(_block(order, 5, numbers("III", 0, 1, 2)))
    return Records(tuple(records), PACKED)


def _rtpdump(timeline: Timeline) -> Records:
    head = struct.pack("!IIIHH", TIME_NS // 10**9, 500_000, 0xC0000201, 5004, 0)
    records: list[Record] = [(b"#!rtpplay1.0 203.0.113.9/5006\n", *cut(head, 4, 4, 4, 2, 2)[:-1])]
    begin_ns = timeline[0][0]
    for time_ns, fields in _datagrams(timeline):
        size = sum(map(len, fields))
        whole = 0 if is_rtcp(b"".join(fields)) else size
        offset_ms = (time_ns - begin_ns) // 1_000_000
        records.append((struct.pack("!H", size + 8), struct.pack("!H", whole), struct.pack("!I", offset_ms), *fields))
    return Records(tuple(records), PACKED)


def pcap_captures(packets: int = 12) -> list[Seed]:
    """pcap of every link type and byte order; `packets` of each timeline."""
    kinds = [(1, ENDS, "<", True), (113, ENDS_V6, ">", True), (276, ENDS, "<", False), (101, ENDS_V6, "<", True)]
    kinds += [(1, ENDS_V6, ">", False), (0, ENDS, "<", True)]
    lines = timelines()
    return [
        _pcap(_frames(lines[i % len(lines)][:packets], link, ends), link, order=order, ns=ns)
        for i, (link, ends, order, ns) in enumerate(kinds * 2)
    ]


def pcapng_captures(packets: int = 12) -> list[Seed]:
    """pcapng with options, both byte orders, several resolutions, sections one after the other."""
    kinds = [(1, ENDS, "<", 9), (113, ENDS_V6, ">", 6), (101, ENDS, "<", 0x80 | 30), (276, ENDS_V6, "<", 6)]
    lines = timelines()
    single = [
        _pcapng(_frames(lines[i % len(lines)][:packets], link, ends), link, order=order, resolution=resolution)
        for i, (link, ends, order, resolution) in enumerate(kinds * 2)
    ]
    return [*single, Records(single[0].records + single[1].records, PACKED)]


def rtpdumps(packets: int = 12) -> list[Seed]:
    """rtpdump files."""
    return [_rtpdump(line[:packets]) for line in timelines()]


def captures() -> list[Seed]:
    """Captures long enough that streams are found in them and played."""
    lines = timelines()
    plain = [_pcap(((t, _frame(1, ENDS, fields)) for t, fields in _datagrams(line)), 1) for line in lines]
    described = [_pcap(_frames(line, 113, ENDS), 113) for line in lines[:3]]
    return [*plain, *described, _pcapng(_frames(lines[0], 1, ENDS), 1), _rtpdump(lines[4]), _rtpdump(lines[-1])]
