"""What was sent and what was heard, paired into turns: each scheduled turn ends in exactly one outcome.

Source: the design's table of outcomes. A sound belongs to the turn in which it starts, by the arrival of the packet
with its first audible sample, so no reply is credited twice; one that goes on from before belongs to the turn before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import zip_longest

from analysis.result import (
    ANSWERED,
    CALL_FAILED,
    MEDIA_LOST,
    NO_REPLY,
    NOT_MEASURABLE,
    OVERLAPPED,
    PREMATURE,
)
from analysis.sounds import Sound

__all__ = ["BACKCHANNEL_MS", "Ending", "Pairing", "Spoken", "pair"]

BACKCHANNEL_MS = 400.0
BREATH_NS = 1_000_000_000  # an agent that was only drawing breath goes on within this
CONTENT_MS = 400.0


@dataclass(frozen=True, slots=True)
class Spoken:
    """One utterance as it was sent (monotonic ns). `stop_sent_ns` is None where no such packet was recorded."""

    index: int
    start_ns: int
    stop_ns: int
    stop_sent_ns: int | None
    timeout_ns: int
    interruption: bool


@dataclass(frozen=True, slots=True)
class Ending:
    """Why and when the record of a call ends: what turns that are not finished then become."""

    time_ns: int
    outcome: str | None  # None: the call was ended in an orderly way
    reason: str | None
    fault: str | None


@dataclass(frozen=True)
class Pairing:
    """What became of one turn. `reply` is the sound that answers it (or cuts it off); `content` its first content."""

    outcome: str
    reason: str | None = None
    fault: str | None = None
    reply: Sound | None = None
    content: Sound | None = None
    interrupted: Sound | None = None
    flags: tuple[str, ...] = field(default=())


def pair(spoken: Sequence[Spoken], sounds: Sequence[Sound], ending: Ending) -> list[Pairing]:
    """Pair utterances with replies.

    Parameters
    ----------
    spoken : sequence of Spoken
        In order of time.
    sounds : sequence of Sound
        In order of arrival.
    ending : Ending

    Returns
    -------
    list of Pairing
        One for each of `spoken`.
    """
    starts = [turn.start_ns for turn in spoken[1:]]
    return [_pair_one(turn, next_start, sounds, ending) for turn, next_start in zip_longest(spoken, starts)]


def _pair_one(turn: Spoken, next_start_ns: int | None, sounds: Sequence[Sound], ending: Ending) -> Pairing:
    if turn.stop_sent_ns is None:
        return _unfinished(ending) if next_start_ns is None else Pairing(NOT_MEASURABLE, "stop_not_sent")
    over = [s for s in sounds if s.arrival_ns < turn.start_ns <= s.end_of_sound_ns]
    limit_ns = turn.stop_ns + turn.timeout_ns
    stop_ns = ending.time_ns if next_start_ns is None else next_start_ns
    window_ns = min(limit_ns, stop_ns, ending.time_ns)
    own = [s for s in sounds if turn.start_ns <= s.arrival_ns < stop_ns]
    flags: list[str] = []
    interrupted = over[-1] if over and turn.interruption else None
    if turn.interruption:
        flags.append("interruption")
    if over and (not turn.interruption or any(s.end_of_sound_ns > turn.stop_ns for s in over)):
        reason = "not_yielded" if turn.interruption else "agent_still_audible"
        return Pairing(OVERLAPPED, reason, interrupted=interrupted, flags=tuple(flags))
    early = [s for s in own if s.arrival_ns < turn.stop_sent_ns]
    backchannels = [s for s in early if s.duration_ms < BACKCHANNEL_MS and s.end_of_sound_ns < turn.stop_ns]
    if backchannels:
        flags.append("backchannel")
    cut_in = next((s for s in early if s not in backchannels), None)
    if cut_in is not None and turn.interruption and interrupted is None:
        # interrupted in a pause of its own: what goes on from before has not yielded
        before = [s for s in sounds if s.end_of_sound_ns < turn.start_ns]
        if before and cut_in.arrival_ns - before[-1].end_of_sound_ns < BREATH_NS:
            return Pairing(OVERLAPPED, "not_yielded", interrupted=before[-1], flags=tuple(flags))
    if cut_in is not None:
        return Pairing(PREMATURE, None, None, cut_in, _content(own, cut_in), interrupted, tuple(flags))
    replies = [s for s in own if s.arrival_ns >= turn.stop_sent_ns]
    reply = next((s for s in replies if s.arrival_ns < window_ns), None)
    if reply is not None:
        return Pairing(ANSWERED, None, None, reply, _content(own, reply), interrupted, tuple(flags))
    if ending.outcome is not None and ending.time_ns == window_ns < limit_ns:
        lost = _unfinished(ending)
        return Pairing(lost.outcome, lost.reason, lost.fault, interrupted=interrupted, flags=tuple(flags))
    if window_ns < limit_ns:
        return Pairing(NOT_MEASURABLE, "not_observed_until_timeout", interrupted=interrupted, flags=tuple(flags))
    if replies:
        flags.append("reply_after_timeout")
    return Pairing(NO_REPLY, None, interrupted=interrupted, flags=tuple(flags))


def _content(own: Sequence[Sound], reply: Sound) -> Sound | None:
    """The first sustained sound from the reply on."""
    return next((s for s in own if s.arrival_ns >= reply.arrival_ns and s.duration_ms >= CONTENT_MS), None)


def _unfinished(ending: Ending) -> Pairing:
    if ending.outcome in (MEDIA_LOST, CALL_FAILED):
        return Pairing(MEDIA_LOST, ending.reason, ending.fault)
    return Pairing(ending.outcome or NOT_MEASURABLE, ending.reason or "recording_ended", ending.fault)
