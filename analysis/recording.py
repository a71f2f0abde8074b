"""A recording of a call in, a result with every turn out: who spoke when, what answered, how long it took.

Source: the design's boundaries on a recording: `speech_stop` (the caller's last audible sample) to `audible_recorded`
(the agent's first audible sample of speech), on the recording's own clock; time 0 is its first sample. What the signal
does not carry is `not_measurable`, with the reason.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from typing import Any

from analysis.audibility import LevelTrack
from analysis.caller_speech import Utterance, said_by_caller
from analysis.echo import without_echo
from analysis.errors import NotMeasurable
from analysis.onset import known_onset
from analysis.recorded_turns import Heard, Paired, Said, pair_recorded
from analysis.references import UNKNOWN_LANGUAGE, Occurrence, Reference, find_references, load_reference
from analysis.result import ANSWERED, NOT_MEASURABLE, PREMATURE, Boundaries, Result, Source, Turn
from analysis.result import Boundary as ResultBoundary
from analysis.reverberation import direct_end, in_room
from analysis.statistics import summarize
from analysis.stretches import CONTENT_MS, Stretch, find_stretches
from analysis.tape import Tape, open_tape
from analysis.tape_roles import Sightings, find_roles, look_at
from analysis.transfer import Boundary
from analysis.units import samples_to_ms

__all__ = ["TIMEOUT_S", "analyze", "analyze_tape", "together"]

TIMEOUT_S = 10.0
CLOCK = "recording"
NEAR_S = 0.3  # a known reply begins this near to where the level says that speech does


def analyze(
    path: str | os.PathLike[str],
    *,
    references: Sequence[str | os.PathLike[str]] = (),
    replies: Sequence[str | os.PathLike[str]] = (),
    caller_channel: int | None = None,
    agent_channel: int | None = None,
    layout: str | None = None,
    timeout_s: float = TIMEOUT_S,
) -> Result:
    """Work out a two-channel recording of a call.

    Parameters
    ----------
    path : path-like
        Whatever libsndfile or FFmpeg opens.
    references, replies : sequence of path-like
        Sound files of what the caller, and the agent, may have said.
    caller_channel, agent_channel : int, optional
        From 0. One of two may be left out.
    layout : str, optional
        A product whose channel order is known, instead.
    timeout_s : float
        After the caller's end; later is no reply.

    Raises
    ------
    AudioFileError, UsageError
        If a file or an option cannot be used, or if it is not said whose channel is which.
    NotMeasurable
        If the recording as a whole carries no turn.
    """
    return analyze_tape(
        open_tape(path),
        [load_reference(each) for each in references],
        [load_reference(each) for each in replies],
        caller_channel=caller_channel,
        agent_channel=agent_channel,
        layout=layout,
        timeout_s=timeout_s,
    )


def analyze_tape(
    tape: Tape,
    references: Sequence[Reference] = (),
    replies: Sequence[Reference] = (),
    *,
    caller_channel: int | None = None,
    agent_channel: int | None = None,
    layout: str | None = None,
    timeout_s: float = TIMEOUT_S,
    call: int = 0,
) -> Result:
    """As `analyze`, of a tape that is open; `call` numbers it among others."""
    warnings = [*tape.warnings, *(f"{r.name}: {w}" for r in (*references, *replies) for w in r.warnings)]
    sightings = Sightings(tape, references)
    caller_number, agent_number = find_roles(tape, sightings, caller_channel, agent_channel, layout, warnings)
    look_at(tape, caller_number, agent_number, sightings, warnings)
    caller, agent = tape.channels[caller_number], tape.channels[agent_number]
    caller_track, agent_track = LevelTrack(caller, tape.rate_hz), LevelTrack(agent, tape.rate_hz)
    heard = find_stretches(without_echo(caller_track, agent_track))
    found = sightings.on(caller_number)
    said = said_by_caller(caller, agent, caller_track, agent_track, found, heard, marked=bool(references))
    if not said:
        raise NotMeasurable("no_speech", f"{tape.name}: nobody speaks on the caller's channel ({caller_number})")
    pairs = pair_recorded(
        [Said(u.first, u.last) for u in said],
        _heard(agent_track, heard),
        rate_hz=tape.rate_hz,
        frames=len(caller),
        timeout_s=timeout_s,
    )
    known = _Replies(tape, caller_number, agent_number, replies)
    turns = tuple(_turn(call, i, u, p, heard, known) for i, (u, p) in enumerate(zip(said, pairs, strict=True)))
    acoustic = 2 * sum("room" in turn.flags for turn in turns) > len(turns)
    evidence = "acoustic" if acoustic else "loopback"
    about: dict[str, Any] = {
        "duration_s": tape.duration_s,
        "rate_hz": tape.rate_hz,
        "caller_channel": caller_number,
        "agent_channel": agent_number,
        "timeout_s": timeout_s,
        "references": {r.name: sum(u.reference is r for u in said) for r in references},
        "greeting": _greeting(said[0], heard, tape.rate_hz),
        "warnings": warnings,
    }
    return Result(Source("recording", tape.name), _boundaries(evidence), turns, summarize(turns), recording=about)


def together(results: Sequence[Result], missing: Mapping[str, str] | None = None) -> Result:
    """Several recordings as one result, each in a list under `recordings`; `missing`: why others are not in it."""
    turns = tuple(turn for result in results for turn in result.turns)
    source = Source("recording", ", ".join(str(r.source.path) for r in results), None, len(results))
    about: dict[str, Any] = {"recordings": [result.recording for result in results]}
    if missing:
        about["missing"] = dict(missing)
    evidences = {result.boundaries.end.evidence for result in results}
    boundaries = results[0].boundaries if len(evidences) == 1 else _boundaries("acoustic")
    return Result(source, boundaries, turns, summarize(turns), recording=about)


def _boundaries(evidence: str) -> Boundaries:
    return Boundaries(
        start=ResultBoundary("speech_stop", CLOCK, evidence), end=ResultBoundary("audible_recorded", CLOCK, evidence)
    )


def _heard(track: LevelTrack, stretches: Sequence[Stretch]) -> list[Heard]:
    """Stretches as they are paired: in a room each until its voice ended, since it sounds on for long."""
    reverberant = in_room(track, stretches)
    heard = []
    for stretch in stretches:
        last = direct_end(track, stretch.first, stretch.last) if reverberant else stretch.end_sample
        speech = stretch.speech_sample
        sustained = speech is not None and samples_to_ms(last - speech, track.rate_hz) >= CONTENT_MS
        heard.append(Heard(stretch.start_sample, speech, speech if sustained else None, last))
    return heard


def _greeting(first: Utterance, heard: Sequence[Stretch], rate_hz: int) -> dict[str, float] | None:
    """What the agent said before anybody else did."""
    own = [h for h in heard if h.speech_first is not None and h.speech_first < first.first]
    if not own:
        return None
    begin = own[0].speech_sample
    assert begin is not None
    return {"start_s": begin / rate_hz, "end_s": max(h.end_sample for h in own) / rate_hz}


class _Replies:
    """Known replies on the agent's channel, where any were given."""

    def __init__(self, tape: Tape, caller: int, agent: int, replies: Sequence[Reference]) -> None:
        self._caller, self._agent, self.rate_hz = tape.channels[caller], tape.channels[agent], tape.rate_hz
        self._found: list[Occurrence] = find_references(self._agent, tape.rate_hz, replies) if replies else []

    def onset(self, stretch: Stretch) -> Boundary | None:
        """The first audible sample of the known reply that begins where this stretch's speech does, if one does."""
        at_s = (stretch.speech_first or stretch.first) / self.rate_hz
        for occurrence in self._found:
            if occurrence.cut_start_s == 0 and abs(occurrence.start_s - at_s) <= NEAR_S:
                try:
                    return known_onset(
                        occurrence.reference, self._agent, self.rate_hz, at_s=occurrence.lag_s, other=self._caller
                    )
                except NotMeasurable:
                    return None
        return None


def _turn(
    call: int, index: int, utterance: Utterance, paired: Paired, heard: Sequence[Stretch], known: _Replies
) -> Turn:
    rate_hz = known.rate_hz
    reference = utterance.reference
    fields: dict[str, Any] = {
        "call": call,
        "index": index,
        "language": None if reference is None or reference.language == UNKNOWN_LANGUAGE else reference.language,
        "segment": {} if reference is None else {"utterance": reference.name},
        "outcome": paired.outcome,
        "reason": paired.reason,
        "speech_s": None if utterance.start is None else utterance.start.s,
        "speech_stop_s": None if utterance.stop is None else utterance.stop.s,
        "yield_time_ms": _yield_ms(utterance, paired, heard, rate_hz),
    }
    flags = [*utterance.flags, *paired.flags]
    if utterance.stop is None:
        fields |= {"outcome": NOT_MEASURABLE, "reason": utterance.reason}
    elif paired.outcome in (ANSWERED, PREMATURE) and paired.reply is not None:
        reply = heard[paired.reply]
        flags += reply.flags
        onset = known.onset(reply) or reply.speech
        if onset is None:
            reason = dict(reply.reasons).get("speech", "onset_not_measurable")
            fields |= {"outcome": NOT_MEASURABLE, "reason": reason}
        else:
            flags += onset.flags
            fields |= _measured(utterance.stop, onset, paired, heard)
            if abs(fields["latency_ms"]) <= fields["uncertainty_ms"] and "uncertain" in utterance.flags:
                # it may have begun before the caller's end or after
                fields |= {"outcome": NOT_MEASURABLE, "reason": "end_uncertain", "latency_ms": None}
    return Turn(**fields, flags=tuple(dict.fromkeys(flags)))


def _measured(stop: Boundary, onset: Boundary, paired: Paired, heard: Sequence[Stretch]) -> Mapping[str, Any]:
    """The figures of a turn that was answered or cut off."""
    rate_hz = stop.rate_hz
    first = None if paired.anything is None else heard[paired.anything].start
    content = None if paired.content is None else heard[paired.content].speech
    content = onset if paired.content == paired.reply else content
    parts = {"speech_stop": stop.uncertainty_ms, "onset": onset.uncertainty_ms}
    outcome = PREMATURE if onset.sample < stop.sample else ANSWERED
    return {
        "outcome": outcome,
        "reason": None,
        "any_s": onset.s if first is None or outcome == PREMATURE else first.s,
        "audible_s": onset.s,
        "content_s": None if content is None else content.s,
        "latency_ms": samples_to_ms(onset.sample - stop.sample, rate_hz),
        "uncertainty_ms": math.hypot(*parts.values()),
        "uncertainty_parts_ms": parts,
        "audibility": {
            "start_dbov": stop.threshold_dbov,
            "end_dbov": onset.threshold_dbov,
            "start_shift_ms": dict(stop.shift_ms),
            "end_shift_ms": dict(onset.shift_ms),
        },
    }


def _yield_ms(utterance: Utterance, paired: Paired, heard: Sequence[Stretch], rate_hz: int) -> float | None:
    """From the caller's first audible sample to the last of what was spoken over."""
    if paired.yielded is None or utterance.start is None:
        return None
    end = heard[paired.yielded].end
    return None if end is None else samples_to_ms(end.sample - utterance.start.sample, rate_hz)
