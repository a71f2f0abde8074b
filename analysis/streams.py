"""Tapped RTP packets in, one media timeline per stream out: in order, unwrapped, without duplicates, with talkspurts.

Sources: RFC 3550 section 5.1 and appendix A.1 (sequence numbers, restart after two packets in sequence), and the
design's definition of a talkspurt. Positions count samples of the decoded sound on the sender's media clock from the
first packet of the stream; arrivals are monotonic nanoseconds.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from analysis.codecs import Codec, Decoder, packet_samples
from analysis.reception import REUSED_NS, begins_again
from analysis.rtp import RtpPacket, signed_difference
from analysis.trace import PacketTrace, Sound, no_noise, talkspurts

__all__ = [
    "NOISE_RATE_HZ",
    "Decoded",
    "ForwardSound",
    "Span",
    "Stream",
    "Timed",
    "build_streams",
    "decode",
    "packet_trace",
    "spans",
]

MAX_DROPOUT = 3000  # packets; RFC 3550 A.1
MAX_MISORDER = 3000  # packets; as much as MAX_DROPOUT, since stalls reorder far more than the 100 of the RFC
MAX_OVERTAKEN = 25  # packets (0.5 s) by which the one that arrived first may have overtaken others
MAX_OVERTAKEN_TICKS = 48_000  # 1 s of Opus, 6 s of G.711 and G.722
SPLIT_GAP_MS = 2000  # as far as the noise floor looks back, so that splitting there changes nothing
NOISE_RATE_HZ = 8000  # of the comfort noise that browsers know
MAX_CONCEALED = 50  # packets in a row; beyond it a decoder has long faded to silence


@dataclass(frozen=True, slots=True)
class Timed:
    """An RTP packet and when it passed the tap (monotonic ns)."""

    time_ns: int
    packet: RtpPacket


@dataclass(frozen=True)
class Stream:
    """The packets of one SSRC between two restarts, sorted by sequence number; all arrays have shape (n,).

    `sequence` is extended, and counts packets with sound alone: where others of the SSRC came in between (comfort
    noise, telephone events, padding), those after them have moved up, so that a step of more than 1 is a loss.
    `position` and `samples` in samples at `codec.rate_hz`; `timestamp` unwrapped RTP ticks, where the packet that
    arrived first has its own 32-bit value; `talkspurt` counts from 0. `noise` are its packets of comfort noise, as in
    `PacketTrace`, at positions of this stream.
    """

    ssrc: int
    generation: int
    codec: Codec
    sequence: NDArray[np.int64]
    timestamp: NDArray[np.int64]
    position: NDArray[np.int64]
    samples: NDArray[np.int64]
    arrival_ns: NDArray[np.int64]
    talkspurt: NDArray[np.int64]
    payloads: tuple[bytes, ...] = field(repr=False)
    duplicates: int = 0
    noise: NDArray[np.int64] = field(default_factory=no_noise, repr=False)

    @property
    def origin(self) -> int:
        """The first timestamp in samples: what a position of a `PacketTrace` is ahead of one of this stream."""
        return self.codec.samples(int(self.timestamp[0]))

    def packet_at(self, position: int) -> int:
        """Index of the packet that holds the sample at `position`. Raises IndexError where no packet does."""
        index = int(np.searchsorted(self.position, position, side="right")) - 1
        # a sender that steps its timestamps back makes neighbours overlap: take the packet that really holds it
        while index >= 0:
            if self.position[index] <= position < self.position[index] + self.samples[index]:
                return index
            index -= 1
        raise IndexError(f"no packet of stream {self.ssrc:#x} holds sample {position}")


@dataclass(frozen=True)
class Decoded:
    """The sound of a stream's packets, one after the other: packet i is `pcm[start[i] : start[i] + samples[i]]`."""

    pcm: NDArray[np.float32] = field(repr=False)
    start: NDArray[np.int64] = field(repr=False)
    undecodable: int = 0

    def packet(self, index: int, samples: int) -> NDArray[np.float32]:
        """The sound of packet `index`."""
        begin = int(self.start[index])
        return self.pcm[begin : begin + samples]


@dataclass(frozen=True)
class Span:
    """A stretch of a stream's media timeline with no gap of 2 s or more: sound from `position` on.

    `present` is False where a packet was lost; a pause of the sender (DTX, between replies) is silence and present.
    `silent_before` and `silent_after` are samples of such a pause next to it, as many as a noise floor looks at.
    """

    position: int
    pcm: NDArray[np.float32] = field(repr=False)
    present: NDArray[np.bool_] = field(repr=False)
    silent_before: int = 0
    silent_after: int = 0


class _Counter:
    """One SSRC while its packets come in: extended numbers, restarts and duplicates told apart."""

    def __init__(self) -> None:
        self.generations: list[dict[int, tuple[int, Timed]]] = []
        self.soundless: list[set[int]] = []
        self.noise: list[dict[int, Timed]] = []
        self.duplicates: list[int] = []
        self.highest = 0
        self.timestamp = 0
        self.first_ns = 0
        self.stray: Timed | None = None
        self.stray_copies = False  # the stray has number and timestamp of one that is here

    def add(self, timed: Timed) -> None:
        packet = timed.packet
        if not self.generations:
            self._restart(timed)
            return
        steps = signed_difference(packet.sequence_number, self.highest & 0xFFFF, 16)
        ticks = signed_difference(packet.timestamp, self.timestamp & 0xFFFFFFFF, 32)
        sequence, timestamp = self.highest + steps, self.timestamp + ticks
        forward = 0 < steps < MAX_DROPOUT and ticks >= 0
        known = self.generations[-1].get(sequence)
        copy = known is not None and known[0] == timestamp
        if known:
            fits = copy and timed.time_ns - known[1].time_ns < REUSED_NS
        else:
            fits = forward or self._fits(sequence, timestamp, timed.time_ns)
        if self._begins_again(timed, fits=fits, old=fits and (forward or known is not None)):
            return
        self.stray = None if fits else timed
        self.stray_copies = copy
        self.duplicates[-1] += copy
        if known or not fits:
            return
        self.generations[-1][sequence] = (timestamp, timed)
        if forward:
            self.highest, self.timestamp = sequence, timestamp

    def _begins_again(self, timed: Timed, *, fits: bool, old: bool) -> bool:
        """Take a packet and the stray before it as the first two of a sender that began again, if they are.

        `old`: it goes on with what was there before, or is the network's copy of that.
        """
        stray, copies = self.stray, self.stray_copies
        if stray is None or (copies and old):
            return False
        if not begins_again(stray.packet, timed.packet, same_timestamp=copies, fits=fits):
            return False
        self.duplicates[-1] -= copies
        self._restart(stray)
        self.add(timed)
        return True

    def add_soundless(self, sequence_number: int) -> None:
        """Take note of a packet of this SSRC that carries no sound, so that its number is not a loss."""
        steps = signed_difference(sequence_number, self.highest & 0xFFFF, 16)
        if abs(steps) < MAX_DROPOUT:
            self.soundless[-1].add(self.highest + steps)

    def add_noise(self, timed: Timed) -> None:
        """Take a packet of comfort noise; of those with one timestamp the first."""
        self.add_soundless(timed.packet.sequence_number)
        ticks = signed_difference(timed.packet.timestamp, self.timestamp & 0xFFFFFFFF, 32)
        self.noise[-1].setdefault(self.timestamp + ticks, timed)

    def _fits(self, sequence: int, timestamp: int, time_ns: int) -> bool:
        """True if a packet may have been overtaken by those that are here: its timestamp lies between theirs."""
        here = self.generations[-1]
        if not -MAX_MISORDER < sequence - self.highest < 0:
            return False
        after = next(s for s in range(sequence + 1, self.highest + 1) if s in here)
        before = next((s for s in range(sequence - 1, sequence - MAX_MISORDER, -1) if s in here), None)
        if before is not None:
            return here[before][0] <= timestamp <= here[after][0]
        # older than all that is here: by little and not long after, or it is a restart with lower numbers
        if time_ns - self.first_ns >= REUSED_NS:
            return False
        return after - sequence <= MAX_OVERTAKEN and 0 <= here[after][0] - timestamp <= MAX_OVERTAKEN_TICKS

    def _restart(self, timed: Timed) -> None:
        self.highest, self.timestamp = timed.packet.sequence_number, timed.packet.timestamp
        self.generations.append({self.highest: (self.timestamp, timed)})
        self.soundless.append(set())
        self.noise.append({})
        self.duplicates.append(0)
        self.first_ns = timed.time_ns
        self.stray = None


def build_streams(
    received: Iterable[Timed], payload_types: Mapping[int, Codec], *, noise_types: Collection[int] = ()
) -> list[Stream]:
    """Sort tapped packets into streams.

    Parameters
    ----------
    received : iterable of Timed
        In order of arrival.
    payload_types : mapping of int to Codec
        The negotiated payload types; packets of another (telephone events) carry no sound here.
    noise_types : collection of int
        Payload types of comfort noise (RFC 3389). It belongs to the sound that arrived before it, if that has 8000
        samples a second.

    Returns
    -------
    list of Stream
        In order of their first arrival; one per SSRC and restart.
    """
    counters: dict[int, dict[str, _Counter]] = {}
    newest: dict[int, _Counter] = {}
    for timed in received:
        packet = timed.packet
        codec = payload_types.get(packet.payload_type)
        counter = None
        if codec is not None and packet_samples(codec, packet.payload):
            counter = counters.setdefault(packet.ssrc, {}).setdefault(codec.name, _Counter())
            counter.add(timed)
            newest[packet.ssrc] = counter
        is_noise = packet.payload_type in noise_types and packet.payload
        for other in counters.get(packet.ssrc, {}).values():
            if other is counter:
                continue
            if is_noise and other is newest[packet.ssrc]:
                other.add_noise(timed)
            else:
                other.add_soundless(packet.sequence_number)
    by_name = {codec.name: codec for codec in payload_types.values()}
    streams = [
        _stream(ssrc, number, by_name[name], counter)
        for ssrc, of_codecs in counters.items()
        for name, counter in of_codecs.items()
        for number in range(len(counter.generations))
    ]
    return sorted(streams, key=lambda s: int(s.arrival_ns.min()))


def _stream(ssrc: int, generation: int, codec: Codec, counter: _Counter) -> Stream:
    packets = counter.generations[generation]
    order = sorted(packets)
    soundless = sorted(counter.soundless[generation] - packets.keys())
    timestamp = np.array([packets[s][0] for s in order], dtype=np.int64)
    payloads = tuple(packets[s][1].packet.payload for s in order)
    sequence = np.array(order, dtype=np.int64)
    sequence -= np.searchsorted(soundless, sequence) - int(np.searchsorted(soundless, order[0]))
    samples = np.array([packet_samples(codec, p) for p in payloads], dtype=np.int64)
    position = (timestamp - timestamp[0]) * codec.rate_hz // codec.clock_rate_hz
    noise = [
        ((at - int(timestamp[0])) * codec.rate_hz // codec.clock_rate_hz, timed.time_ns, timed.packet.payload[0] & 0x7F)
        for at, timed in sorted(counter.noise[generation].items())
        if codec.rate_hz == NOISE_RATE_HZ
    ]
    return Stream(
        ssrc=ssrc,
        generation=generation,
        codec=codec,
        sequence=sequence,
        timestamp=timestamp,
        position=position,
        samples=samples,
        arrival_ns=np.array([packets[s][1].time_ns for s in order], dtype=np.int64),
        talkspurt=talkspurts(sequence, position, samples, codec.rate_hz),
        payloads=payloads,
        duplicates=counter.duplicates[generation],
        noise=np.array(noise, dtype=np.int64).reshape(-1, 3),
    )


class ForwardSound:
    """The sound of a stream, decoded as a browser does: the decoder is told of no loss. One packet is held at a time.

    `undecodable` counts the packets so far, of the last time through, that stand as silence.
    """

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self.undecodable = 0

    def packets(self) -> Iterator[NDArray[np.float32]]:
        """The sound of each packet in order of sequence number."""
        decoder = Decoder(self._stream.codec)
        self.undecodable = 0
        for payload, samples in zip(self._stream.payloads, self._stream.samples.tolist(), strict=True):
            sound = decoder.decode(payload)
            if sound is None:
                self.undecodable += 1
                sound = np.zeros(samples, dtype=np.float32)
            yield sound


def decode(stream: Stream) -> Decoded:
    """Decode a stream in order; packets that are missing are concealed for the decoder's state, never kept as sound."""
    decoder = Decoder(stream.codec)
    start = np.concatenate(([0], np.cumsum(stream.samples)))
    pcm = np.zeros(int(start[-1]), dtype=np.float32)
    undecodable = 0
    for i, payload in enumerate(stream.payloads):
        if i:
            for _ in range(min(int(stream.sequence[i] - stream.sequence[i - 1]) - 1, MAX_CONCEALED)):
                decoder.conceal()
        sound = decoder.decode(payload)
        if sound is None:
            undecodable += 1
            decoder.conceal()
        else:
            pcm[start[i] : start[i + 1]] = sound
    return Decoded(pcm, start[:-1].astype(np.int64), undecodable)


def packet_trace(stream: Stream, pcm: NDArray[np.float32] | Sound) -> PacketTrace:
    """A stream as a jitter buffer is fed with it; `pcm` is the sound of its packets one after the other.

    Its positions begin at the stream's own first timestamp (`Stream.origin`), not at 0: a browser's buffer rounds RTP
    timestamps to milliseconds, and which way depends on where they began.
    """
    return PacketTrace(
        rate_hz=stream.codec.rate_hz,
        sequence=stream.sequence,
        position=stream.position + stream.origin,
        samples=stream.samples,
        arrival_ns=stream.arrival_ns,
        payload_bytes=np.array([len(p) for p in stream.payloads], dtype=np.int64),
        pcm=pcm,
        noise=stream.noise + np.array((stream.origin, 0, 0)),
    )


def spans(stream: Stream, decoded: Decoded, *, played: NDArray[np.bool_] | None = None) -> list[Span]:
    """Lay a stream's sound on its media timeline, split where nothing was sent for 2 s or more.

    Parameters
    ----------
    stream : Stream
    decoded : Decoded
    played : ndarray of bool, shape as `decoded.pcm`, optional
        False where a playout policy did not play the sample; it then counts as not present.
    """
    n = len(stream.sequence)
    ends = stream.position + stream.samples
    missing = np.diff(stream.sequence) - 1
    split = SPLIT_GAP_MS * stream.codec.rate_hz // 1000
    step = np.diff(stream.position) - stream.samples[:-1]
    bounds = [0, *(np.flatnonzero((step >= split) | (np.diff(stream.position) < 0)) + 1).tolist(), n]
    lost = np.clip(stream.samples[:-1] * missing, 0, np.maximum(step, 0))
    pause = np.concatenate(([0], np.where(step >= split, np.minimum(step - lost, split), 0), [0]))
    result = []
    for first, stop in pairwise(bounds):
        origin = int(stream.position[first])
        pcm = np.zeros(int(ends[first:stop].max()) - origin, dtype=np.float32)
        present = np.ones(len(pcm), dtype=bool)
        for i in range(first, stop):
            begin = int(stream.position[i]) - origin
            size = int(stream.samples[i])
            source = slice(int(decoded.start[i]), int(decoded.start[i]) + size)
            pcm[begin : begin + size] = decoded.pcm[source]
            if played is not None:
                present[begin : begin + size] = played[source]
            if i + 1 < stop:
                present[begin + size : begin + size + int(lost[i])] = False
        after = 0 if stop < n and lost[stop - 1] else int(pause[stop])
        result.append(Span(origin, pcm, present, silent_before=int(pause[first]), silent_after=after))
    return result
