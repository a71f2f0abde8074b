"""Utterances and agent's sounds on one tape in, what became of each turn out.

Source: the design's outcomes, as far as a recording carries them. A recording does not say what was scripted: whoever
speaks while the agent does has interrupted it, asked or not, so such a turn is `overlapped`, and how long the agent
took to fall silent stands beside. Times are samples of the tape, edges inclusive.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise, zip_longest

from analysis.result import ANSWERED, NO_REPLY, NOT_MEASURABLE, OVERLAPPED, PREMATURE

__all__ = ["Heard", "Paired", "Said", "pair_recorded"]

BACKCHANNEL_S = 0.4  # speech shorter than this that is over before the caller is no reply
GOES_ON_S = 0.4  # what is said within this of what was said before goes on with it
IDLE_S = 2.0  # an agent that was silent for so long, unanswered, prompts
TOUCH_S = 0.03  # an overlap shorter than this is a matter of where edges are put


@dataclass(frozen=True, slots=True)
class Said:
    """An utterance of the caller: first and last audible sample."""

    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class Heard:
    """A stretch of the agent's: first audible sample of anything, of speech, of content (None: none), and the last."""

    any_start: int
    start: int | None
    content: int | None
    end: int


@dataclass(frozen=True, slots=True)
class Paired:
    """What became of one turn. Numbers are places in the list of sounds; `yielded` is what was spoken over."""

    outcome: str
    reason: str | None = None
    reply: int | None = None
    content: int | None = None
    anything: int | None = None
    yielded: int | None = None
    flags: tuple[str, ...] = ()


def pair_recorded(
    said: Sequence[Said], heard: Sequence[Heard], *, rate_hz: int, frames: int, timeout_s: float
) -> list[Paired]:
    """Pair utterances with replies; no sound answers two turns.

    Parameters
    ----------
    said, heard : sequence
        Each in order of time.
    rate_hz : int
    frames : int
        Length of the tape.
    timeout_s : float
        From the caller's end; nothing of the agent's until then is `no_reply`.

    Returns
    -------
    list of Paired
        One for each of `said`. A sound belongs to the turn in which its speech begins.
    """
    starts = [turn.start for turn in said[1:]]
    return [
        _pair_one(turn, following, heard, rate_hz, frames, timeout_s) for turn, following in zip_longest(said, starts)
    ]


def _pair_one(
    turn: Said, following: int | None, heard: Sequence[Heard], rate_hz: int, frames: int, timeout_s: float
) -> Paired:
    touch = int(TOUCH_S * rate_hz)
    over = _spoken_over(turn, heard, touch, rate_hz)
    if over is not None:
        yielded = over if heard[over].end <= turn.stop else None
        reason = "not_yielded" if yielded is None else "agent_still_audible"
        return Paired(OVERLAPPED, reason, yielded=yielded)
    until = frames if following is None else following
    own = [i for i, h in enumerate(heard) if h.start is not None and turn.start - touch <= h.start < until]
    flags: list[str] = []
    backchannels = [i for i in own if _is_backchannel(i, heard, turn, rate_hz)]
    if backchannels:
        flags.append("backchannel")
    early = [i for i in own if i not in backchannels and _start(heard[i]) < turn.stop]
    limit = turn.stop + round(timeout_s * rate_hz)
    replies = [i for i in own if turn.stop <= _start(heard[i])]
    if early:
        reply, outcome = early[0], PREMATURE
    elif replies and _start(heard[replies[0]]) < limit:
        reply, outcome = replies[0], ANSWERED
    else:
        if min(until, frames) < limit:
            reason = "recording_ended" if following is None else "caller_spoke_again"
            return Paired(NOT_MEASURABLE, reason, flags=tuple(flags))
        if replies:
            flags.append("idle_prompt")
        return Paired(NO_REPLY, flags=tuple(flags))
    later = [i for i in own if i >= reply]
    content = next((i for i in later if heard[i].content is not None), None)
    if any(_start(heard[b]) - heard[a].end > IDLE_S * rate_hz for a, b in pairwise(later)):
        flags.append("idle_prompt")
    anything = reply if outcome == PREMATURE else _first_of_anything(turn, heard, reply)
    return Paired(outcome, None, reply, content, anything, None, tuple(flags))


def _spoken_over(turn: Said, heard: Sequence[Heard], touch: int, rate_hz: int) -> int | None:
    """The last piece of what the agent was saying when the caller began; it may have paused just then."""
    over, begun, ended = None, 0, None
    for i, sound in enumerate(heard):
        if sound.start is None or sound.start >= turn.stop:
            continue
        if ended is None or sound.start - ended >= GOES_ON_S * rate_hz:
            begun = sound.start
        ended = sound.end
        if begun < turn.start - touch and ended > turn.start + touch:
            over = i
    return over


def _start(sound: Heard) -> int:
    assert sound.start is not None
    return sound.start


def _is_backchannel(number: int, heard: Sequence[Heard], turn: Said, rate_hz: int) -> bool:
    sound = heard[number]
    if sound.end >= turn.stop or sound.end - _start(sound) >= BACKCHANNEL_S * rate_hz:
        return False
    following = next((h.start for h in heard[number + 1 :] if h.start is not None), None)
    return following is None or following - sound.end >= GOES_ON_S * rate_hz


def _first_of_anything(turn: Said, heard: Sequence[Heard], reply: int) -> int:
    return next((i for i, h in enumerate(heard[: reply + 1]) if h.any_start >= turn.stop), reply)
