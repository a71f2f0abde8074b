"""Datagrams that nobody described in, the RTP streams among them and the codecs of their payload types out.

Sources: RFC 3550 (RTP), RFC 5761 section 4 and RFC 7983 (RTP told from RTCP, STUN and DTLS), RFC 3551 (static payload
types), RFC 2974 (SAP) and RFC 8866 (SDP) for dynamic ones, RFC 6716 section 3.1 (the duration in an Opus packet).
"""

from __future__ import annotations

import re
import zlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from analysis.capture import CapturedDatagram
from analysis.capture_clock import MAX_STEP, clock_shifts
from analysis.capture_frames import Direction
from analysis.codecs import CODECS, Codec, packet_samples
from analysis.errors import MalformedPacket
from analysis.rtp import is_rtcp, is_rtp_or_rtcp, parse_rtp, signed_difference
from analysis.streams import NOISE_RATE_HZ, Timed
from analysis.units import NS_PER_S

__all__ = [
    "CodecChoice",
    "Described",
    "RtpStream",
    "choose_codecs",
    "described_in",
    "durations_fit",
    "find_streams",
    "may_matter",
]

MIN_PACKETS = 4
MAX_TIME_NS = 1 << 62  # as in analysis.capture_files; only steps of the capture's clock can lead beyond
# Stands for what a snap length left off: an Opus packet that begins with it can last no time at all.
UNCAPTURED = b"\xff"
HANDOVER_NS, HANDOVER_PACKETS = NS_PER_S, 400
SAP_PORT = 9875
SAP_COMPRESSED, SAP_ENCRYPTED, SAP_IPV6 = 0x01, 0x02, 0x10
MAX_SDP_BYTES = 1 << 16
DYNAMIC_FROM = 35  # 96 to 127 are dynamic; browsers that run out of them take the unassigned ones from 35 on
FIT_SHARE = 0.9  # of packets whose duration does not exceed the step of the timestamps
GUESS_SHARE = 0.25  # of packets that last exactly as long; the others are followed by a pause or a loss
COMFORT_NOISE = 13  # static, RFC 3389
EVENT_BYTES, EVENT_RESERVED, LAST_EVENT = 4, 0x40, 16  # RFC 4733: the keys, and flash
WITHOUT_SOUND = {"telephone-event", "cn"}

Flow = tuple[tuple[str, int], tuple[str, int]]
Described = Mapping[int, Mapping[int, str]]  # port of a session description: payload type: codec, "name/clock rate"


@dataclass(frozen=True)
class RtpStream:
    """The RTP packets of one SSRC on one path, in order of arrival, and what has to be said of them.

    `cut_packets` were captured in part: their payloads have the right length, what is missing in them is 0xFF. Of
    `unsized_packets` among them not even the length is known, since that of their padding is not.
    """

    ssrc: int
    source: tuple[str, int]
    destination: tuple[str, int]
    direction: Direction | None
    packets: tuple[Timed, ...] = field(repr=False)
    cut_packets: int = 0
    unsized_packets: int = 0
    warnings: tuple[str, ...] = ()

    def of_type(self, payload_type: int) -> list[Timed]:
        """Its packets of one payload type."""
        return [timed for timed in self.packets if timed.packet.payload_type == payload_type]

    @property
    def payload_types(self) -> list[int]:
        """Its payload types, the most frequent first."""
        return [number for number, _ in Counter(timed.packet.payload_type for timed in self.packets).most_common()]


@dataclass(frozen=True, slots=True)
class CodecChoice:
    """The payload types of a stream whose codec is known, and what has to be said of them and of the others.

    `comfort_noise` are those of comfort noise (RFC 3389); whether it is played depends on the policy.
    """

    codecs: Mapping[int, Codec]
    unknown: tuple[int, ...] = ()
    warnings: tuple[str, ...] = ()
    comfort_noise: tuple[int, ...] = ()

    def of_clock(self, clock_rate_hz: int) -> set[int]:
        """The payload types whose timestamps have this rate; those of comfort noise have 8000 Hz."""
        found = {number for number, codec in self.codecs.items() if codec.clock_rate_hz == clock_rate_hz}
        return found | (set(self.comfort_noise) if clock_rate_hz == NOISE_RATE_HZ else set())


def may_matter(datagram: CapturedDatagram) -> bool:
    """True for what can be RTP, RTCP or a session description; the rest of a capture need not be kept."""
    return is_rtp_or_rtcp(datagram.payload) or SAP_PORT in (datagram.source[1], datagram.destination[1])


def find_streams(datagrams: Iterable[CapturedDatagram]) -> list[RtpStream]:
    """The RTP streams among datagrams, in order of their first packet; one per SSRC.

    Notes
    -----
    1. A stream is at least four packets of one SSRC from one end to another, most of whose sequence numbers go on from
       packet to packet.
    2. Where an SSRC takes several paths one after the other, they are one stream. Where it takes them at the same time,
       or with the same numbers again (an echo, a relay that was captured on both sides, a recording that is played
       anew), only one is: that which was received or, if that is not known, that of most packets. The others are named
       in its warnings.
    3. Where the capture's clock steps back, time is taken to have gone on from there (`analysis.capture_clock`).
    """
    of_ssrc: defaultdict[int, list[CapturedDatagram]] = defaultdict(list)
    for datagram in datagrams:
        data = datagram.payload
        if len(data) >= 12 and is_rtp_or_rtcp(data) and not is_rtcp(data):
            of_ssrc[int.from_bytes(data[8:12], "big")].append(datagram)
    streams = (_stream(ssrc, packets) for ssrc, packets in of_ssrc.items())
    return sorted((s for s in streams if s is not None), key=lambda s: s.packets[0].time_ns)


def _goes_on(packets: Sequence[CapturedDatagram]) -> bool:
    numbers = [int.from_bytes(d.payload[2:4], "big") for d in packets]
    steps = [signed_difference(b, a, 16) for a, b in pairwise(numbers)]
    moved = [s for s in steps if s]  # a packet that was captured twice says nothing
    return len(moved) >= MIN_PACKETS - 1 and 2 * sum(abs(s) <= MAX_STEP for s in moved) >= len(moved)


def _stream(ssrc: int, packets: Sequence[CapturedDatagram]) -> RtpStream | None:
    flows: defaultdict[Flow, list[CapturedDatagram]] = defaultdict(list)
    for datagram in packets:
        flows[datagram.source, datagram.destination].append(datagram)
    paths = sorted((path for path in flows.values() if _goes_on(path)), key=lambda p: p[0].time_ns)
    if not paths:
        return None
    warnings: list[str] = []
    if all(_follows(before, after) for before, after in pairwise(paths)):
        taken = {(path[0].source, path[0].destination) for path in paths}
        datagrams = [d for d in packets if (d.source, d.destination) in taken]  # in the order of the file
        if len(paths) > 1:
            warnings.append(f"took {len(paths)} paths one after the other")
    else:
        datagrams = max(paths, key=lambda p: (_rank(p[0].direction), len(p)))
        left_out = [f"{_end(p[0].source)} → {_end(p[0].destination)}" for p in paths if p is not datagrams]
        warnings.append(f"the same SSRC is also on {', '.join(left_out)}: left out")
    timed, malformed, cut, unsized = _parse(datagrams, warnings)
    if len(timed) < MIN_PACKETS:
        return None
    first = datagrams[0]
    if malformed:
        warnings.append(f"{malformed} packets are malformed RTP: left out")
    if first.direction is Direction.SENT:
        warnings.append("sent by the machine that captured: its times are those of leaving, not of arriving")
    return RtpStream(
        ssrc, first.source, first.destination, first.direction, tuple(timed), cut, unsized, tuple(warnings)
    )


def _follows(before: Sequence[CapturedDatagram], after: Sequence[CapturedDatagram]) -> bool:
    """True where one path goes on with what the other did not carry; they may overlap while the path is changed."""
    if after[0].time_ns < before[-1].time_ns - HANDOVER_NS:
        return False
    ending, beginning = before[-HANDOVER_PACKETS:], after[:HANDOVER_PACKETS]
    shared = {d.payload[2:4] for d in ending} & {d.payload[2:4] for d in beginning}
    return 2 * len(shared) < min(len(ending), len(beginning))


def _rank(direction: Direction | None) -> int:
    return {Direction.RECEIVED: 2, None: 1, Direction.SENT: 0}[direction]


def _end(end: tuple[str, int]) -> str:
    return f"{end[0]}:{end[1]}"


def _parse(datagrams: Sequence[CapturedDatagram], warnings: list[str]) -> tuple[list[Timed], int, int, int]:
    """Packets in order of time; how many were malformed, how many cut, and of how many the length is not known."""
    timed: list[Timed] = []
    malformed = cut = unsized = beyond = 0
    shifts, steps = clock_shifts(datagrams)
    for datagram, shift_ns in zip(datagrams, shifts, strict=True):
        time_ns = datagram.time_ns + shift_ns
        if time_ns >= MAX_TIME_NS:
            beyond += 1
            continue
        whole, sized = _filled_up(datagram)
        try:
            timed.append(Timed(time_ns, parse_rtp(whole)))
        except MalformedPacket:
            malformed += 1
            continue
        cut += datagram.missing_bytes > 0
        unsized += not sized
    if steps:
        warnings.append(f"the capture's clock steps back {steps} times; the time that passed there is not known")
    if beyond:
        warnings.append(f"{beyond} packets have a time beyond all reason: left out")
    timed.sort(key=lambda t: t.time_ns)
    return timed, malformed, cut, unsized


def _filled_up(datagram: CapturedDatagram) -> tuple[bytes, bool]:
    """A packet in its whole length, and whether that of its payload can be told."""
    data = datagram.payload
    if not datagram.missing_bytes:
        return data, True
    padded, extended = data[0] & 0x20, data[0] & 0x10
    whole = bytes([data[0] & ~0x20]) + data[1:] + UNCAPTURED * datagram.missing_bytes
    if extended and len(data) < 16 + 4 * (data[0] & 0x0F):  # nor is the length of the extension there
        return bytes([whole[0] & ~0x10]) + whole[1:], False
    return whole, not padded


def described_in(datagrams: Iterable[CapturedDatagram]) -> Described:
    """Payload types in the session descriptions that SAP packets (UDP port 9875) carry, by media port."""
    found: dict[int, dict[int, str]] = {}
    for datagram in datagrams:
        if SAP_PORT in (datagram.source[1], datagram.destination[1]):
            for port, types in _audio_types(_sap_text(datagram.payload)).items():
                found.setdefault(port, {}).update(types)
    return found


def _sap_text(data: bytes) -> str:
    """The session description in a SAP packet; empty where there is none that can be read."""
    if len(data) < 8 or data[0] >> 5 != 1 or data[0] & SAP_ENCRYPTED:
        return ""
    body = data[4 + (16 if data[0] & SAP_IPV6 else 4) + 4 * data[1] :]
    if data[0] & SAP_COMPRESSED:
        try:
            body = zlib.decompressobj().decompress(body, MAX_SDP_BYTES)
        except zlib.error:
            return ""
    if not body.startswith(b"v="):
        body = body.partition(b"\0")[2]
    return body[:MAX_SDP_BYTES].decode("utf-8", "replace")


def _audio_types(text: str) -> dict[int, dict[int, str]]:
    """Payload type → "name/clock rate" (lower case) of each audio section, by its port."""
    found: dict[int, dict[int, str]] = {}
    section: dict[int, str] = {}
    for line in text.splitlines():
        media = re.match(r"m=(\w+) (\d{1,5})", line, re.ASCII)
        if media is not None:
            section = found.setdefault(int(media[2]), {}) if media[1] == "audio" else {}
        mapped = re.match(r"a=rtpmap:(\d{1,3}) ([^/\s]+)/(\d{1,6})(?!\d)", line, re.ASCII)
        if mapped is not None:
            section[int(mapped[1])] = f"{mapped[2]}/{mapped[3]}".lower()
    return found


def choose_codecs(
    stream: RtpStream,
    *,
    given: Mapping[int, Codec],
    described: Described | None = None,
    negotiated: Mapping[int, str] | None = None,
) -> CodecChoice:
    """Which codec each payload type of a stream is.

    Parameters
    ----------
    stream : RtpStream
    given : mapping of int to Codec
        What the user says; it comes before all else.
    described : mapping, optional
        What `described_in` found; it holds for streams to or from the ports that it names.
    negotiated : mapping of int to str, optional
        Names of codecs by payload type, as a session bundle wrote them down.

    Returns
    -------
    CodecChoice
        A dynamic payload type that nothing names is assumed to be Opus where its packets last as long as the timestamps
        say, and a warning says so. Otherwise it is unknown.
    """
    ports = stream.source[1], stream.destination[1]
    named = {number: name for port in ports for number, name in (described or {}).get(port, {}).items()}
    codecs: dict[int, Codec] = {}
    unknown: list[int] = []
    comfort_noise: list[int] = []
    warnings: list[str] = []
    for number in stream.payload_types:
        name = named.get(number, (negotiated or {}).get(number, "cn" if number == COMFORT_NOISE else ""))
        if not name and number >= DYNAMIC_FROM and _looks_like_events(stream, number):
            name = "telephone-event"
        codec = given.get(number) or _by_name(name) or (None if name else _static(number))
        if codec is not None:
            codecs[number] = codec
        elif name.partition("/")[0] in WITHOUT_SOUND:
            count = len(stream.of_type(number))
            if name.partition("/")[0] == "cn":
                comfort_noise.append(number)
            else:
                warnings.append(f"payload type {number} ({name}): {count} packets, counted but not played")
        elif not name and number >= DYNAMIC_FROM and _looks_like_opus(stream.of_type(number)):
            codecs[number] = CODECS["opus"]
            warnings.append(f"payload type {number}: assumed Opus, since its packets last as long as they should")
        else:
            unknown.append(number)
            warnings.append(f"payload type {number}: {name or 'unknown codec'}, not played")
    if len({codec.name for codec in codecs.values()}) > 1:
        used = (f"{number} ({codec.name}, {len(stream.of_type(number))} packets)" for number, codec in codecs.items())
        warnings.append(f"the codec changes: payload types {' and '.join(used)}")
    empty = sum(not timed.packet.payload for timed in stream.packets if timed.packet.payload_type in codecs)
    if empty:
        warnings.append(f"{empty} packets have an empty payload: counted but not played")
    return CodecChoice(codecs, tuple(unknown), tuple(warnings), tuple(comfort_noise))


def _looks_like_events(stream: RtpStream, number: int) -> bool:
    """True for telephone events (RFC 4733 section 2.3) beside a voice: four bytes whose durations grow."""
    own = stream.of_type(number)
    if len(own) == len(stream.packets) or any(len(timed.packet.payload) != EVENT_BYTES for timed in own):
        return False
    durations = [int.from_bytes(timed.packet.payload[2:], "big") for timed in own]
    known = all(t.packet.payload[0] <= LAST_EVENT and not t.packet.payload[1] & EVENT_RESERVED for t in own)
    grows = all(
        later >= before
        for (a, before), (b, later) in pairwise(zip(own, durations, strict=True))
        if a.packet.timestamp == b.packet.timestamp
        and signed_difference(b.packet.sequence_number, a.packet.sequence_number, 16) > 0
    )
    return known and grows and max(durations) > 0


def _static(number: int) -> Codec | None:
    return next((codec for codec in CODECS.values() if codec.payload_type == number), None)


def _by_name(name: str) -> Codec | None:
    """A codec by its name or "name/clock rate"; None where it is none, or another clock rate than its own."""
    base, _, rate = name.lower().partition("/")
    codec = CODECS.get(base)
    return codec if codec is not None and rate in ("", str(codec.clock_rate_hz)) else None


def _steps(packets: Sequence[Timed], codec: Codec) -> list[tuple[int, int]]:
    """(duration of a packet, step of the timestamp to the next one by number), in ticks, of what is not empty."""
    return [
        (
            codec.ticks(packet_samples(codec, a.packet.payload)),
            signed_difference(b.packet.timestamp, a.packet.timestamp, 32),
        )
        for a, b in pairwise(packets)
        if a.packet.payload and signed_difference(b.packet.sequence_number, a.packet.sequence_number, 16) == 1
    ]


def durations_fit(packets: Sequence[Timed], codec: Codec) -> bool:
    """True unless packets last longer than their timestamps allow: another codec, or encrypted."""
    steps = _steps(packets, codec)
    return sum(0 < duration <= step for duration, step in steps) >= FIT_SHARE * len(steps)


def _looks_like_opus(packets: Sequence[Timed]) -> bool:
    opus = CODECS["opus"]
    steps = _steps(packets, opus)
    exact = sum(duration == step for duration, step in steps)
    return exact >= max(MIN_PACKETS - 1, GUESS_SHARE * len(steps)) and durations_fit(packets, opus)
