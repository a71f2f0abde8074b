"""A call's received packets into what was audible in them, and when each sound arrived and would have been played.

Only packets that arrived count; concealment is never audible. Times are monotonic ns of the machine that recorded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from analysis.audibility import Audible, LevelTrack, audible_runs, first_audible, threshold_shifts_ms
from analysis.codecs import Codec
from analysis.playout import PacketTrace, Playout, play
from analysis.streams import Decoded, Span, Stream, Timed, build_streams, decode, spans
from analysis.units import samples_to_ms, samples_to_ns

__all__ = ["HeardStream", "Sound", "hear"]


@dataclass(frozen=True)
class HeardStream:
    """One stream with its decoded sound, laid out in time, and its playout under each policy that was asked for."""

    stream: Stream
    decoded: Decoded = field(repr=False)
    spans: tuple[Span, ...] = field(repr=False)
    playouts: Mapping[str, Playout] = field(repr=False)

    @cached_property
    def tracks(self) -> tuple[LevelTrack, ...]:
        """The level track of each span."""
        rate_hz = self.stream.codec.rate_hz
        return tuple(LevelTrack(span.pcm, rate_hz, present=span.present) for span in self.spans)

    def arrival_ns(self, position: int) -> int:
        """Arrival of the packet that holds the sample at `position`."""
        return int(self.stream.arrival_ns[self.stream.packet_at(position)])


@dataclass(frozen=True)
class Sound:
    """One stretch of audible sound: first and last audible sample as positions in its stream."""

    heard: HeardStream = field(repr=False)
    span: int
    start: int
    end: int
    threshold_dbov: float
    floor_dbov: float | None
    arrival_ns: int
    end_arrival_ns: int

    @property
    def duration_ms(self) -> float:
        """From the first to the last audible sample."""
        return samples_to_ms(self.end - self.start, self.heard.stream.codec.rate_hz)

    @property
    def packet(self) -> int:
        """Index of the packet that holds the first audible sample."""
        return self.heard.stream.packet_at(self.start)

    @property
    def end_of_sound_ns(self) -> int:
        """When its last audible sample would sound if each packet were played as it arrives (ns)."""
        stream = self.heard.stream
        inside = self.end - int(stream.position[stream.packet_at(self.end)])
        return self.end_arrival_ns + samples_to_ns(inside, stream.codec.rate_hz)

    def shifts_ms(self) -> dict[str, float | None]:
        """How far its start moves with θ 10 dB lower and higher."""
        origin = self.heard.spans[self.span].position
        at = Audible(self.start - origin, self.threshold_dbov, self.floor_dbov)
        return threshold_shifts_ms(self.heard.tracks[self.span], at)

    def _played(self, policy: str) -> NDArray[np.bool_]:
        return self.heard.playouts[policy].played_mask(self.start, self.end - self.start + 1)

    def played_start(self, policy: str) -> tuple[int, int] | None:
        """Position and playout time (ns, before output) of the first audible sample that the policy plays, if any."""
        playout = self.heard.playouts[policy]
        at_ns = playout.play_ns(self.start)
        if at_ns is not None:
            return self.start, at_ns
        span = self.heard.spans[self.span]
        inside = slice(self.start - span.position, self.end - span.position + 1)
        present = self._played(policy) & span.present[inside]
        track = LevelTrack(span.pcm[inside], self.heard.stream.codec.rate_hz, present=present)
        found = first_audible(track, threshold_dbov=self.threshold_dbov)
        if found is None:
            return None
        position = self.start + found.sample
        at_ns = playout.play_ns(position)
        return None if at_ns is None else (position, at_ns)

    def played_end_ns(self, policy: str) -> int | None:
        """When its last sample that the policy plays leaves the buffer (ns, before output)."""
        played = np.flatnonzero(self._played(policy))
        return None if not len(played) else self.heard.playouts[policy].play_ns(self.start + int(played[-1]))


def _trace(stream: Stream, decoded: Decoded) -> PacketTrace:
    return PacketTrace(
        rate_hz=stream.codec.rate_hz,
        sequence=stream.sequence,
        position=stream.position,
        samples=stream.samples,
        arrival_ns=stream.arrival_ns,
        payload_bytes=np.array([len(p) for p in stream.payloads], dtype=np.int64),
        pcm=decoded.pcm,
    )


def hear(
    received: Sequence[Timed], payload_types: Mapping[int, Codec], policies: Sequence[str]
) -> tuple[list[HeardStream], list[Sound]]:
    """Decode what arrived, find what is audible in it, and play it under each policy.

    Parameters
    ----------
    received : sequence of Timed
        In order of arrival.
    payload_types : mapping
    policies : sequence of str

    Returns
    -------
    streams, sounds
        The sounds of all streams in order of arrival.
    """
    streams: list[HeardStream] = []
    sounds: list[Sound] = []
    for stream in build_streams(received, payload_types):
        decoded = decode(stream)
        trace = _trace(stream, decoded)
        heard = HeardStream(stream, decoded, tuple(spans(stream, decoded)), {p: play(trace, p) for p in policies})
        streams.append(heard)
        for number, (span, track) in enumerate(zip(heard.spans, heard.tracks, strict=True)):
            for run in audible_runs(track):
                start, end = span.position + run.start, span.position + run.end
                sounds.append(
                    Sound(
                        heard=heard,
                        span=number,
                        start=start,
                        end=end,
                        threshold_dbov=run.threshold_dbov,
                        floor_dbov=run.floor_dbov,
                        arrival_ns=heard.arrival_ns(start),
                        end_arrival_ns=heard.arrival_ns(end),
                    )
                )
    return streams, sorted(sounds, key=lambda s: s.arrival_ns)
