"""A call's received packets into what was audible in them, and when each sound arrived and would have been played.

Only packets that arrived count; concealment is never audible. Times are monotonic ns of the machine that recorded.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from analysis.audibility import (
    MARGIN_DB,
    MIN_THRESHOLD_DBOV,
    Audible,
    LevelTrack,
    Run,
    audible_runs,
    first_audible,
    threshold_shifts_ms,
)
from analysis.codecs import Codec
from analysis.playout import Playout, play
from analysis.streams import Decoded, ForwardSound, Span, Stream, Timed, build_streams, decode, packet_trace, spans
from analysis.units import dbov, from_dbov, ns_to_ms, samples_to_ms, samples_to_ns

__all__ = ["HeardStream", "Sound", "hear"]

# Comfort noise: from what the rule can just hear, up to what no connection would call comfort
QUIETEST_NOISE_DBOV = MIN_THRESHOLD_DBOV - 2.0
LOUDEST_NOISE_DBOV = -30.0
EDGE_FRAMES = 3  # frames (of 20 ms, each 10 ms) that may be quieter than the noise
STEADY_FRAMES = 4  # noise alone shows for 50 ms somewhere, as after the last word,
NOISE_FRAMES = 7  # and for some more in all
NOISE_ESTIMATE_DB = 2.0  # between the level of a second of noise and what a receiver makes of it from its quiet frames
NEAR_MS = 120  # a loss within this of a sound's start may decide where it is
NOISE_SPREAD_DB = 4.0  # 20 ms frames of one noise, coded, lie within this of each other


@dataclass(frozen=True)
class HeardStream:
    """One stream with its decoded sound, laid out in time, and its playout under each policy that was asked for."""

    stream: Stream
    spans: tuple[Span, ...] = field(repr=False)
    playouts: Mapping[str, Playout] = field(repr=False)

    @cached_property
    def tracks(self) -> tuple[LevelTrack, ...]:
        """The level track of each span."""
        return tuple(
            LevelTrack(
                span.pcm,
                self.stream.codec.rate_hz,
                present=span.present,
                silent_before=span.silent_before,
                silent_after=span.silent_after,
            )
            for span in self.spans
        )

    def arrival_ns(self, position: int) -> int:
        """Arrival of the packet that holds the sample at `position`."""
        return int(self.stream.arrival_ns[self.stream.packet_at(position)])

    def play_ns(self, policy: str, position: int) -> int | None:
        """When a policy plays the sample at `position` (ns, before output); None where it does not."""
        return self.playouts[policy].play_ns(position + self.stream.origin)


@dataclass(frozen=True)
class Sound:
    """One stretch of audible sound that holds speech, as positions in its stream.

    `any_start` is its first audible sample of anything, `start` the first one of speech (they differ where comfort
    noise sets in before), `end` the last audible one; θ and floor are those of `start`.
    """

    heard: HeardStream = field(repr=False)
    span: int
    any_start: int
    start: int
    end: int
    threshold_dbov: float
    floor_dbov: float | None
    arrival_ns: int
    end_arrival_ns: int
    unknown: int = 0  # samples by which it may start later, if what is soft in it is noise

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

    def shifts_ms(self, step_db: float = 10.0) -> dict[str, float | None]:
        """How far its start moves with θ so much lower and higher."""
        origin = self.heard.spans[self.span].position
        at = Audible(self.start - origin, self.threshold_dbov, self.floor_dbov)
        return threshold_shifts_ms(self.heard.tracks[self.span], at, step_db=step_db)

    def noise_spread_ms(self) -> float:
        """How far its start may lie off (ms) where θ stands on an estimate of the noise that it rises out of."""
        if self.unknown:
            return samples_to_ms(self.unknown, self.heard.stream.codec.rate_hz)
        if self.start == self.any_start:
            return 0.0
        shifts = self.shifts_ms(NOISE_ESTIMATE_DB).values()
        return max((abs(shift) for shift in shifts if shift is not None), default=0.0)

    def earlier_with_losses_ms(self) -> float:
        """How much earlier it would begin (ms) if what was lost next to its start had been audible.

        The rule counts windows, so one that is a little louder or softer than at the sender, as decoders are after a
        loss, may decide whether the sound before a lost packet counts as its start.
        """
        span, rate_hz = self.heard.spans[self.span], self.heard.stream.codec.rate_hz
        begin = max(0, self.start - span.position - NEAR_MS * rate_hz // 1000)
        stop = self.start - span.position + NEAR_MS * rate_hz // 1000
        present = span.present[begin:stop]
        if present.all():
            return 0.0
        audible = np.where(present, span.pcm[begin:stop], 2 * from_dbov(self.threshold_dbov))
        found = first_audible(LevelTrack(audible, rate_hz), threshold_dbov=self.threshold_dbov)
        if found is None:
            return 0.0
        at = found.sample + int(np.argmax(present[found.sample :]))  # what was lost is never the boundary itself
        return max(0.0, samples_to_ms(self.start - span.position - begin - at, rate_hz))

    def _played(self, policy: str) -> NDArray[np.bool_]:
        first = self.start + self.heard.stream.origin
        return self.heard.playouts[policy].played_mask(first, self.end - self.start + 1)

    def any_played_ns(self, policy: str) -> int | None:
        """When its first sample of anything leaves the buffer (ns, before output); None where it is not played."""
        return self.heard.play_ns(policy, self.any_start)

    def played_start(self, policy: str) -> tuple[int, int] | None:
        """Position and playout time (ns, before output) of the first audible sample that the policy plays, if any."""
        at_ns = self.heard.play_ns(policy, self.start)
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
        at_ns = self.heard.play_ns(policy, position)
        return None if at_ns is None else (position, at_ns)

    def play_spread_ms(self, policy: str) -> float:
        """How far from its playout time its first played sample may lie, for what the policy cannot know (± ms)."""
        played = self.played_start(policy)
        limits = None
        if played is not None:
            limits = self.heard.playouts[policy].play_range_ns(played[0] + self.heard.stream.origin)
        if played is None or limits is None:
            return 0.0
        return ns_to_ms(max(limits[1] - played[1], played[1] - limits[0]))

    def played_end_ns(self, policy: str) -> int | None:
        """When its last sample that the policy plays leaves the buffer (ns, before output)."""
        played = np.flatnonzero(self._played(policy))
        return None if not len(played) else self.heard.play_ns(policy, self.start + int(played[-1]))


def _played(stream: Stream, decoded: Decoded, policies: Sequence[str]) -> dict[str, Playout]:
    """The stream under each policy. A browser never tells its Opus decoder of a loss, so `chrome` must not either."""
    lossless = int(stream.sequence[-1] - stream.sequence[0]) + 1 == len(stream.sequence)
    playouts = {}
    for policy in policies:
        pcm = decoded.pcm if lossless or policy != "chrome" else ForwardSound(stream)
        playouts[policy] = play(packet_trace(stream, pcm), policy)
    return playouts


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
        heard = HeardStream(stream, tuple(spans(stream, decoded)), _played(stream, decoded, policies))
        streams.append(heard)
        for number, (span, track) in enumerate(zip(heard.spans, heard.tracks, strict=True)):
            for run in audible_runs(track):
                speech = _speech_in(heard, span, track, run)
                if speech is not None:
                    sounds.append(_sound(heard, number, run, *speech))
    return streams, sorted(sounds, key=lambda s: s.arrival_ns)


def _sound(heard: HeardStream, number: int, run: Run, speech: Audible, unknown: int) -> Sound:
    origin = heard.spans[number].position
    return Sound(
        heard=heard,
        span=number,
        any_start=origin + run.start,
        start=origin + speech.sample,
        end=origin + run.end,
        threshold_dbov=speech.threshold_dbov,
        floor_dbov=speech.floor_dbov,
        arrival_ns=heard.arrival_ns(origin + speech.sample),
        end_arrival_ns=heard.arrival_ns(origin + run.end),
        unknown=unknown,
    )


def _speech_in(heard: HeardStream, span: Span, track: LevelTrack, run: Run) -> tuple[Audible, int] | None:
    """The first audible sample of a run that is speech, and how far off (samples) it may be for what is unknown.

    None where the run is a talkspurt's comfort noise alone. Only where nothing was known of the floor before the run,
    and its own talkspurt never falls silent, is what is quietest in it taken for comfort noise, and θ set above that.
    """
    whole = Audible(run.start, run.threshold_dbov, run.floor_dbov)
    if run.threshold_dbov > MIN_THRESHOLD_DBOV:
        return whole, 0
    noise_dbov, steady = _noise_under(heard, span, track, run)
    if noise_dbov is None:
        return whole, 0
    theta = noise_dbov + MARGIN_DB
    found = first_audible(track, start=run.start, stop=run.end + 1, threshold_dbov=theta)
    if not steady or noise_dbov <= MIN_THRESHOLD_DBOV:
        # soft words, or noise that may be audible or not: the rule stands, and what it would be above it is uncertainty
        return whole, 0 if found is None else found.sample - run.start
    return None if found is None else (Audible(found.sample, theta, noise_dbov), 0)


def _noise_under(heard: HeardStream, span: Span, track: LevelTrack, run: Run) -> tuple[float | None, bool]:
    """Level (dBov) of what is quietest in a run's talkspurt, None where that falls silent; and whether it is steady."""
    stream = heard.stream
    talkspurt = stream.talkspurt[stream.packet_at(span.position + run.start)]
    members = np.flatnonzero(stream.talkspurt == talkspurt)
    begin = int(stream.position[members].min()) - span.position
    stop = int((stream.position[members] + stream.samples[members]).max()) - span.position
    size = stream.codec.rate_hz // 50
    levels = np.array(
        [
            dbov(float(np.sqrt(np.mean(np.square(track.x[at : at + size], dtype=np.float64)))))
            for at in range(begin, stop - size + 1, size // 2)
            if span.present[at : at + size].all()
        ]
    )
    # the quietest frames may hold the codec's first or last breath
    least = float(np.sort(levels)[min(EDGE_FRAMES, len(levels) - 1)]) if len(levels) else -math.inf
    if not QUIETEST_NOISE_DBOV < least <= LOUDEST_NOISE_DBOV:
        return None, False
    near = levels <= least + NOISE_SPREAD_DB
    mean_dbov = 10 * math.log10(float(np.mean(10 ** (levels[near] / 10))))
    # the longest stretch of frames at that level
    edges = np.flatnonzero(np.diff(np.concatenate(([False], near, [False]))))
    longest = int((edges[1::2] - edges[::2]).max()) if len(edges) else 0
    return mean_dbov, longest >= STEADY_FRAMES and int(near.sum()) >= NOISE_FRAMES
