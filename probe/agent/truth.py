"""All that the agent sent into what a receiver should find of each reply: the first audible sample that was delivered.

Source: the design's definition of truth. The audibility rule is applied to the decode of everything that was sent, with
the samples of packets that were not delivered struck out, by the same functions that measure what a receiver recorded.
Times are monotonic ns, shared by all processes of this machine.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from analysis.audibility import MARGIN_DB, MIN_THRESHOLD_DBOV, Audible, LevelTrack, first_audible, last_audible
from analysis.codecs import Codec
from analysis.rtp import signed_difference
from analysis.streams import Decoded, Span, Stream, Timed, build_streams, decode, spans
from analysis.units import dbov, samples_to_ms
from probe.agent.plan import Kind
from probe.agent.stream import SentPacket

__all__ = ["Departure", "Spoken", "Truth", "truth_of"]

NOISE_MARGIN_MS = 15  # next to speech (and to the encoder's start) it is not yet, or no longer, the noise alone
NOISE_LEAST_MS = 40  # of noise alone, to take its level from
CONTENT_MARGIN_MS = 100  # the content is looked for from here before its planned start; the gap is longer


@dataclass(frozen=True, slots=True)
class Departure:
    """A packet and what became of it: when it left the socket (None: never), and whether it reached RTP there.

    `span_timestamp` is the RTP timestamp with which its stretch of the stream began, the one before it having ended 2 s
    earlier: where a receiver's 1 ms steps of the audibility rule count from. None: with this packet.
    """

    packet: SentPacket
    left_ns: int | None
    delivered: bool
    span_timestamp: int | None = None


@dataclass(frozen=True, slots=True)
class Spoken:
    """One sound as the agent sent it: packets `first_count` up to `stop_count` (exclusive) of the call.

    `speech_start`, `speech_stop` (exclusive) and `content_start` (None without a filler) count samples of the decoded
    sound from its first packet's first. `noise_dbov` is the level of comfort noise that lies under this sound but not
    before it.
    """

    reply: int
    kind: Kind
    heard_start_ns: int | None
    endpoint_ns: int | None
    first_count: int
    stop_count: int
    speech_start: int = 0
    speech_stop: int = 0
    content_start: int | None = None
    noise_dbov: float | None = None


@dataclass(frozen=True, slots=True)
class Truth:
    """What the agent knows of one reply. None where there is no such thing.

    `reply` counts the caller's utterances from 0; −1 is the greeting. `sample` counts from the packet's first, at the
    codec's rate. It is the first audible one of speech, fillers included; `any_*`
    is that of anything, comfort noise that sets in with the sound included; `content_*` that of the content after a
    filler.
    `leading_silence_ms` is the RTP distance from the talkspurt's first delivered packet to the first audible sample.
    """

    reply: int
    kind: Kind
    heard_start_ns: int | None = None
    endpoint_ns: int | None = None
    ssrc: int | None = None
    sequence_number: int | None = None
    rtp_timestamp: int | None = None
    sample: int | None = None
    left_ns: int | None = None
    unimpaired_ns: int | None = None
    threshold_dbov: float | None = None
    first_sequence_number: int | None = None
    first_rtp_timestamp: int | None = None
    leading_silence_ms: float | None = None
    any_sequence_number: int | None = None
    any_rtp_timestamp: int | None = None
    any_sample: int | None = None
    any_left_ns: int | None = None
    content_sequence_number: int | None = None
    content_rtp_timestamp: int | None = None
    content_sample: int | None = None
    content_left_ns: int | None = None
    last_audible_left_ns: int | None = None

    def to_fields(self) -> dict[str, Any]:
        """As plain values for a line of JSON."""
        return asdict(self)


@dataclass(frozen=True)
class _Heard:
    """A stretch of one stream as a receiver decodes it, from `origin` on; `rows` are the sound's packets in it."""

    stream: Stream
    origin: int
    present: NDArray[np.bool_]
    track: LevelTrack
    rows: NDArray[np.int64]

    def position_of(self, row: int) -> int:
        return int(self.stream.position[row]) - self.origin

    def row_of(self, sample: int) -> int:
        return self.stream.packet_at(self.origin + sample)


def truth_of(spoken: Spoken, departures: Sequence[Departure], codec: Codec) -> Truth:
    """The truth about one sound.

    Parameters
    ----------
    spoken : Spoken
    departures : sequence of Departure
        In order of their count, without gaps: the sound's packets, and the history before them (see `Outbox.window`).
    codec : Codec

    Returns
    -------
    Truth
        With nothing but its kind and its cause where nothing audible was delivered.
    """
    by_count = {d.packet.count: d for d in departures}
    if spoken.first_count >= spoken.stop_count or spoken.first_count not in by_count:
        return Truth(spoken.reply, spoken.kind, spoken.heard_start_ns, spoken.endpoint_ns)
    stretches = list(_stretches(departures, spoken, codec))
    # above comfort noise that sets in with the sound, as a floor that was there before would put it; noise that is not
    # audible itself starts nothing, and the rule stands as it is
    noise_dbov = _noise_dbov(stretches, spoken)
    heard_noise = noise_dbov is not None and noise_dbov > MIN_THRESHOLD_DBOV
    above = noise_dbov + MARGIN_DB if heard_noise and noise_dbov is not None else None
    speech = _first(stretches, by_count, spoken, above, 0)
    values: dict[str, Any] = {}
    if speech is not None:
        _, found, departure = speech
        values = {
            "ssrc": departure.packet.ssrc,
            "unimpaired_ns": departure.packet.nominal_ns,
            "threshold_dbov": found.threshold_dbov,
            **_place("", speech),
            **_talkspurt(speech, spoken, by_count, codec),
            "last_audible_left_ns": _last_left_ns(stretches, by_count, spoken, found.threshold_dbov),
        }
        anything = speech if above is None else _first(stretches, by_count, spoken, None, 0)
        values |= _place("any_", anything) if anything is not None else {}
        if spoken.content_start is not None:
            margin = CONTENT_MARGIN_MS * codec.rate_hz // 1000
            content = _first(stretches, by_count, spoken, above, spoken.content_start - margin)
            values |= _place("content_", content) if content is not None else {}
    return Truth(spoken.reply, spoken.kind, spoken.heard_start_ns, spoken.endpoint_ns, **values)


def _stretches(departures: Sequence[Departure], spoken: Spoken, codec: Codec) -> Iterable[_Heard]:
    """The spans of each stream in which packets of the sound lie, in order."""
    payload_types = {departures[0].packet.payload_type: codec} if departures else {}
    by_count = {d.packet.count: d for d in departures}
    delivered = {d.packet.count for d in departures if d.delivered}
    # the count stands in for the time, so that the rows of a stream can be told apart afterwards
    for stream in build_streams(_timed(departures), payload_types):
        inside = (stream.arrival_ns >= spoken.first_count) & (stream.arrival_ns < spoken.stop_count)
        if not inside.any():
            continue
        decoded = decode(stream)
        arrived = np.array([int(count) in delivered for count in stream.arrival_ns])
        for span in spans(stream, decoded, played=_played(stream, decoded, arrived)):
            own = (stream.position >= span.position) & (stream.position < span.position + len(span.pcm))
            rows = np.flatnonzero(inside & own)
            if len(rows):
                first = by_count[int(stream.arrival_ns[np.searchsorted(stream.position, span.position)])]
                yield _laid_out(stream, span, rows, _steps_in(first, codec))


def _steps_in(first: Departure, codec: Codec) -> int:
    """How far into one of a receiver's 1 ms steps a packet begins (samples)."""
    if first.span_timestamp is None:
        return 0
    ticks = signed_difference(first.packet.timestamp, first.span_timestamp, 32)
    return codec.samples(ticks) % (codec.rate_hz // 1000)


def _laid_out(stream: Stream, span: Span, rows: NDArray[np.int64], lead: int) -> _Heard:
    """A span with `lead` samples of silence before it, so that the rule steps through it as a receiver's does."""
    pcm = np.concatenate((np.zeros(lead, dtype=np.float32), span.pcm))
    present = np.concatenate((np.ones(lead, dtype=bool), span.present))
    track = LevelTrack(
        pcm,
        stream.codec.rate_hz,
        present=present,
        silent_before=max(0, span.silent_before - lead),
        silent_after=span.silent_after,
    )
    return _Heard(stream, span.position - lead, present, track, rows)


def _timed(departures: Iterable[Departure]) -> list[Timed]:
    return [Timed(d.packet.count, d.packet.rtp()) for d in departures]


def _played(stream: Stream, decoded: Decoded, arrived: NDArray[np.bool_]) -> NDArray[np.bool_]:
    played = np.repeat(arrived, stream.samples)
    assert len(played) == len(decoded.pcm)
    return played


_Found = tuple[_Heard, Audible, Departure]


def _first(
    stretches: Iterable[_Heard], by_count: Mapping[int, Departure], spoken: Spoken, theta: float | None, skip: int
) -> _Found | None:
    """The first audible sample of the sound's own packets, `skip` samples after its beginning or later."""
    for heard in stretches:
        begin, stop = _own(heard, spoken)
        first_row = int(heard.rows[0])
        if skip and int(heard.stream.arrival_ns[first_row]) == spoken.first_count:
            begin += skip
        found = first_audible(heard.track, start=begin, stop=stop, threshold_dbov=theta)
        if found is not None:
            return heard, found, by_count[int(heard.stream.arrival_ns[heard.row_of(found.sample)])]
    return None


def _own(heard: _Heard, spoken: Spoken) -> tuple[int, int]:
    """First sample (in the span) of the sound's own packets, and the one after their last."""
    last = int(heard.rows[-1])
    return heard.position_of(int(heard.rows[0])), heard.position_of(last) + int(heard.stream.samples[last])


def _noise_dbov(stretches: Sequence[_Heard], spoken: Spoken) -> float | None:
    """Level of the sound's own comfort noise as it lies in the stream: where there is no speech in the sound."""
    if spoken.noise_dbov is None or not stretches:
        return spoken.noise_dbov
    heard = stretches[0]
    begin, stop = _own(heard, spoken)
    margin = NOISE_MARGIN_MS * heard.track.rate_hz // 1000
    noise = np.zeros(len(heard.track.x), dtype=bool)
    noise[begin + margin : max(begin, begin + spoken.speech_start - margin)] = True
    noise[begin + spoken.speech_stop + margin : stop] = True
    alone = heard.track.x[noise & heard.present]
    if len(alone) < NOISE_LEAST_MS * heard.track.rate_hz // 1000:
        return spoken.noise_dbov
    return dbov(float(np.sqrt(np.mean(np.square(alone, dtype=np.float64)))))


def _place(prefix: str, found: _Found) -> dict[str, Any]:
    heard, audible, departure = found
    row = heard.row_of(audible.sample)
    return {
        f"{prefix}sequence_number": departure.packet.sequence_number,
        f"{prefix}rtp_timestamp": departure.packet.timestamp,
        f"{prefix}sample": audible.sample - heard.position_of(row),
        f"{prefix}left_ns": departure.left_ns,
    }


def _talkspurt(found: _Found, spoken: Spoken, by_count: Mapping[int, Departure], codec: Codec) -> dict[str, Any]:
    """The earliest delivered packet of the talkspurt, unless the stream went on from before the sound."""
    _, _, departure = found
    packet = departure.packet
    delivered = _timed(d for d in by_count.values() if d.delivered)
    for stream in build_streams(delivered, {packet.payload_type: codec}):
        at = np.flatnonzero(stream.arrival_ns == packet.count)
        if not len(at):
            continue
        same = np.flatnonzero(stream.talkspurt == stream.talkspurt[at[0]])
        first = by_count[int(stream.arrival_ns[same[np.argmin(stream.timestamp[same])]])].packet
        if first.count < spoken.first_count:
            return {}
        samples = codec.samples(signed_difference(packet.timestamp, first.timestamp, 32)) + _place("", found)["sample"]
        return {
            "first_sequence_number": first.sequence_number,
            "first_rtp_timestamp": first.timestamp,
            "leading_silence_ms": samples_to_ms(samples, codec.rate_hz),
        }
    return {}


def _last_left_ns(
    stretches: Sequence[_Heard], by_count: Mapping[int, Departure], spoken: Spoken, theta: float
) -> int | None:
    """When the packet with the sound's last audible sample left."""
    for heard in reversed(stretches):
        begin, stop = _own(heard, spoken)
        found = last_audible(heard.track.x[begin:stop], heard.track.rate_hz, threshold_dbov=theta)
        if found is not None:
            return by_count[int(heard.stream.arrival_ns[heard.row_of(begin + found.sample)])].left_ns
    return None
