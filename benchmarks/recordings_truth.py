"""A generated call's clean and recorded signals in, what is true of each turn out.

Source: the design's definition of truth: the one audibility rule (`analysis.audibility`) on the noise-free signal as it
lies in the recording, with the noise floor of the recording; in rooms the caller's end is that of the direct path.
Times are seconds from the recording's first sample: sample index / rate.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from analysis.audibility import Audible, LevelTrack, first_audible
from analysis.result import ANSWERED, NO_REPLY, NOT_MEASURABLE, OVERLAPPED, PREMATURE

__all__ = ["BACKCHANNEL_S", "SoundEvent", "TurnPlan", "TurnTruth", "first_edge", "last_edge", "turn_truth"]

BEFORE_S = 2.2  # more than the 2 s in which the rule looks for the floor
EARLY_S = 0.015  # codecs and filters smear a sound by less than this
AFTER_S = 0.3  # look-ahead of codecs and delay of rooms
BACKCHANNEL_S = 0.4

Sound = NDArray[np.float32]


class _TruthTrack(LevelTrack):
    """What is audible of one signal over the floor of another."""

    def __init__(self, clean: Sound, recorded: Sound, rate_hz: int) -> None:
        super().__init__(clean, rate_hz)
        self._recorded = LevelTrack(recorded, rate_hz)

    def floors(self, hops: NDArray[np.int64], *, after: bool = False) -> NDArray[np.float64]:
        return self._recorded.floors(hops, after=after)


def first_edge(clean: Sound, recorded: Sound, rate_hz: int, start: int, stop: int) -> Audible | None:
    """The first audible sample of `clean` between two samples, θ from the floor of `recorded`."""
    # the grid of windows is that of the whole recording: it starts anew at every whole second
    first = max(0, int((start - BEFORE_S * rate_hz) // rate_hz)) * rate_hz
    last = min(len(clean), stop + rate_hz // 10)
    track = _TruthTrack(clean[first:last], recorded[first:last], rate_hz)
    found = first_audible(track, start=start - first, stop=stop - first)
    return None if found is None else Audible(found.sample + first, found.threshold_dbov, found.floor_dbov)


def last_edge(clean: Sound, recorded: Sound, rate_hz: int, start: int, stop: int) -> Audible | None:
    """The last audible sample of `clean` between two samples: the rule run backwards."""
    last = min(len(clean), int(stop + BEFORE_S * rate_hz))
    first = max(0, start - rate_hz // 10)
    track = _TruthTrack(clean[first:last][::-1], recorded[first:last][::-1], rate_hz)
    found = first_audible(track, start=max(0, last - stop), stop=last - start)
    return None if found is None else Audible(last - 1 - found.sample, found.threshold_dbov, found.floor_dbov)


@dataclass(frozen=True, slots=True)
class SoundEvent:
    """One sound as it was planned: samples (stop exclusive) of the recording.

    `what` is `utterance`, `reply`, `filler`, `backchannel`, `idle_prompt`, `greeting`, or names what is no speech.
    """

    what: str
    start: int
    stop: int


@dataclass(slots=True)
class TurnPlan:
    """One turn as it was planned: its `kind`, the reference spoken, and all sounds that belong to it."""

    kind: str
    reference: str
    utterance: SoundEvent
    events: list[SoundEvent] = field(default_factory=list)
    interrupted: SoundEvent | None = None
    edits: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class TurnTruth:
    """What is true of one turn. `outcomes` are those that are right; the first is the plain one.

    `yield_time_ms` runs from the caller's first audible sample to the last of the agent's speech that it interrupted.
    """

    index: int
    kind: str
    reference: str
    edits: tuple[str, ...]
    outcomes: tuple[str, ...]
    flags: tuple[str, ...]
    speech_s: float | None
    speech_stop_s: float | None
    any_s: float | None
    audible_s: float | None
    content_s: float | None
    latency_ms: float | None
    yield_time_ms: float | None
    start_dbov: float | None
    end_dbov: float | None
    events: tuple[tuple[str, float, float], ...]

    def document(self) -> dict[str, Any]:
        """As JSON."""
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(frozen=True, slots=True)
class Channels:
    """The four signals that truth is made from, all as they lie in the recording."""

    caller_clean: Sound
    caller: Sound
    agent_clean: Sound
    agent: Sound
    rate_hz: int

    def of_caller(self, event: SoundEvent) -> tuple[Audible | None, Audible | None]:
        """First and last audible sample of an utterance."""
        early, late = round(EARLY_S * self.rate_hz), round(AFTER_S * self.rate_hz)
        args = (self.caller_clean, self.caller, self.rate_hz, max(0, event.start - early))
        return first_edge(*args, event.stop), last_edge(*args, event.stop + late)

    def first_of(self, event: SoundEvent) -> Audible | None:
        """First audible sample of a sound of the agent's."""
        early = max(0, event.start - round(EARLY_S * self.rate_hz))
        return first_edge(self.agent_clean, self.agent, self.rate_hz, early, event.stop)

    def last_of(self, event: SoundEvent) -> Audible | None:
        """Last audible sample of a sound of the agent's."""
        late = event.stop + round(2 * EARLY_S * self.rate_hz)
        return last_edge(self.agent_clean, self.agent, self.rate_hz, event.start, late)


def turn_truth(channels: Channels, index: int, plan: TurnPlan, *, content_is_told: bool = True) -> TurnTruth:
    """The rule applied to one turn as it was planned.

    `content_is_told` is False where what came before still sounds when the content begins (rooms).
    """
    rate_hz = channels.rate_hz
    begun, ended = channels.of_caller(plan.utterance)
    stop = None if ended is None else ended.sample
    found = [(event, edge) for event in plan.events if (edge := channels.first_of(event)) is not None]
    flags: list[str] = []
    counted: list[tuple[SoundEvent, Audible]] = []
    for event, edge in found:
        if event.what == "backchannel" and stop is not None:
            over = channels.last_of(event)
            if over is not None and over.sample < stop and over.sample - edge.sample < BACKCHANNEL_S * rate_hz:
                flags.append("backchannel")
                continue
        if event.what != "idle_prompt":
            counted.append((event, edge))
    speech = _first(counted, "filler", "reply", "backchannel")
    content = _first(counted, "reply")
    after = [edge.sample for _, edge in counted if stop is not None and edge.sample >= stop]
    anything = min(after) if after else None
    if plan.interrupted is not None:
        flags.append("interruption")
    outcomes, speech = _outcome(plan, stop, speech)
    if outcomes[0] == PREMATURE and speech is not None:
        anything = speech.sample
    told = content_is_told or not any(event.what == "filler" for event in plan.events)
    return TurnTruth(
        index=index,
        kind=plan.kind,
        reference=plan.reference,
        edits=plan.edits,
        outcomes=outcomes,
        flags=tuple(flags),
        speech_s=None if begun is None else begun.sample / rate_hz,
        speech_stop_s=None if stop is None else stop / rate_hz,
        any_s=None if anything is None or speech is None else anything / rate_hz,
        audible_s=None if speech is None else speech.sample / rate_hz,
        content_s=None if content is None or speech is None or not told else content.sample / rate_hz,
        latency_ms=None if speech is None or stop is None else (speech.sample - stop) * 1000.0 / rate_hz,
        yield_time_ms=_yield_ms(channels, plan, begun),
        start_dbov=None if ended is None else ended.threshold_dbov,
        end_dbov=None if speech is None else speech.threshold_dbov,
        events=tuple((e.what, e.start / rate_hz, e.stop / rate_hz) for e in (plan.utterance, *plan.events)),
    )


def _first(found: list[tuple[SoundEvent, Audible]], *kinds: str) -> Audible | None:
    edges = [edge for event, edge in found if event.what in kinds]
    return min(edges, key=lambda edge: edge.sample) if edges else None


def _outcome(plan: TurnPlan, stop: int | None, speech: Audible | None) -> tuple[tuple[str, ...], Audible | None]:
    if stop is None:
        return (NOT_MEASURABLE,), None
    if plan.kind == "overlap":
        return (OVERLAPPED,), None
    if speech is None:
        planned = any(event.what in ("reply", "filler") for event in plan.events)
        return ((NO_REPLY, NOT_MEASURABLE) if planned else (NO_REPLY,)), None
    outcome = PREMATURE if speech.sample < stop else ANSWERED
    # a recording does not say whether an interruption was asked for
    return ((outcome, OVERLAPPED) if plan.kind == "barge_in" else (outcome,)), speech


def _yield_ms(channels: Channels, plan: TurnPlan, begun: Audible | None) -> float | None:
    if plan.interrupted is None or begun is None:
        return None
    last = channels.last_of(plan.interrupted)
    if last is None or last.sample <= begun.sample:
        return None
    return (last.sample - begun.sample) * 1000.0 / channels.rate_hz
