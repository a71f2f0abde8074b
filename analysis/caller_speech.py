"""The caller's channel in, the utterances on it out: known ones by label transfer, others by level, pauses joined.

Source: the design's `speech_stop` on a recording. A pause inside an utterance does not end it: of a known one the
reference says so; speech that nobody knows goes on where the agent has not begun to speak in its pause.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from analysis.audibility import LevelTrack, Run, audible_runs
from analysis.echo import without_echo
from analysis.edges import UNCERTAIN_MS
from analysis.errors import NotMeasurable
from analysis.onset import find_end
from analysis.references import Occurrence, Reference
from analysis.reverberation import ROOM_FALL_DB, WITHIN_MS, direct_end, in_room, steepest_fall_db
from analysis.stretches import Stretch, find_stretches
from analysis.tape import Channel
from analysis.transfer import Boundary, last_audible_blind, transfer
from analysis.units import samples_to_ms

__all__ = ["UNKNOWN", "Utterance", "said_by_caller"]

UNKNOWN, LOST_IN_NOISE = "unknown_utterance", "lost_in_noise"
PAUSE_S = 2.0  # that speech which nobody knows may hold
OVER_S = 0.7  # the same while the agent speaks: longer, and the caller has given way
REACTION_S = 0.4  # who speaks on so soon after the agent began does not answer it
PARTS_S = 10.0  # that may part two pieces of one known utterance
EDGE_S = 0.3  # by which the level may see speech beyond the edges of a known utterance
BLIND_AFTER_S = 0.1
LEVEL_MS = 10.0  # ± of an end by level alone in a dry recording: a breath, a smack
# Sound that goes on so far beyond a known utterance is more of it, or something else; in a room, by its loud part
BEYOND_MS, ROOM_BEYOND_MS, MAX_BEYOND_MS = 5.0, 250.0, 1000.0
MAX_DOUBT_MS = 100.0  # beyond, while the agent speaks: more is the agent that is heard
SHORT_S = 0.2  # what is shorter and unknown is no utterance


@dataclass(frozen=True, slots=True)
class Utterance:
    """One utterance on the tape.

    `first` and `last` (samples) say where it lies among others; `start` and `stop` are its boundaries, None where
    `reason` says why `stop` is not to be had.
    """

    first: int
    last: int
    start: Boundary | None
    stop: Boundary | None
    reference: Reference | None
    flags: tuple[str, ...] = ()
    reason: str | None = None


def said_by_caller(
    caller: Channel,
    agent: Channel,
    caller_track: LevelTrack,
    agent_track: LevelTrack,
    found: Sequence[Occurrence],
    heard: Sequence[Stretch],
    *,
    marked: bool,
) -> list[Utterance]:
    """All utterances of the caller, in order of time.

    Parameters
    ----------
    caller, agent : Channel
    caller_track, agent_track : LevelTrack
        Of the same channels.
    found : sequence of Occurrence
        The references that were recognised on the caller's channel.
    heard : sequence of Stretch
        The agent's sounds: what begins in a pause of the caller's ends an utterance that nobody knows.
    marked : bool
        Whether there are references, so that what none of them explains is worth a flag.
    """
    track = without_echo(agent_track, caller_track)
    runs = list(audible_runs(track))
    known = [_known(pieces, caller, agent, track.rate_hz) for pieces in _whole(found)]
    known = [_with_what_follows(_or_by_level(u, caller, track, runs), track, runs, known, heard) for u in known]
    unknown = _unknown(track, runs, known, caller, heard, marked=marked)
    return sorted([*known, *unknown], key=lambda u: u.first)


def _whole(found: Sequence[Occurrence]) -> list[tuple[Occurrence, Occurrence]]:
    """First and last piece of each utterance: a long pause may have parted it."""
    pairs: list[tuple[Occurrence, Occurrence]] = []
    for occurrence in found:
        if pairs:
            first, last = pairs[-1]
            follows = occurrence.reference is last.reference and occurrence.start_s - last.end_s < PARTS_S
            if follows and last.cut_end_s > 0 and occurrence.cut_start_s > 0:
                pairs[-1] = first, occurrence
                continue
        pairs.append((occurrence, occurrence))
    return pairs


def _known(pieces: tuple[Occurrence, Occurrence], caller: Channel, agent: Channel, rate_hz: int) -> Utterance:
    first, last = pieces
    reference = last.reference
    begin, end = round(first.start_s * rate_hz), round(last.end_s * rate_hz)
    try:
        ended = transfer(reference, caller, rate_hz, at_s=last.lag_s, other=agent, seen=last)
        begun = ended if first is last else transfer(reference, caller, rate_hz, at_s=first.lag_s, other=agent)
    except NotMeasurable as exc:
        return Utterance(begin, end, None, None, reference, (), exc.reason)
    start, stop = begun.start, ended.end
    return Utterance(
        begin if start is None else start.sample,
        end if stop is None else stop.sample,
        start,
        stop,
        reference,
        ended.flags if stop is None else stop.flags,
        None if stop is not None else ended.reasons.get("end", "not_found"),
    )


def _or_by_level(utterance: Utterance, caller: Channel, track: LevelTrack, runs: Sequence[Run]) -> Utterance:
    """The utterance with the end that its level gives, where noise leaves the transferred one undecided."""
    if utterance.stop is not None or utterance.reason != LOST_IN_NOISE:
        return utterance
    edge = round(EDGE_S * track.rate_hz)
    over = [r for r in runs if r.start < utterance.last and utterance.first < r.end < utterance.last + edge]
    if not over:
        return utterance
    try:
        stop = find_end(track, over[-1].end, after=over[-1].start)
    except NotMeasurable:
        try:
            stop = _blind_end(caller, track.rate_hz, over[-1].start, over[-1].end)
        except NotMeasurable:
            return utterance
    parts = {**stop.parts_ms, "level": LEVEL_MS}
    flags = tuple(dict.fromkeys((*utterance.flags, *stop.flags, "uncertain")))
    stop = replace(stop, parts_ms=parts, uncertainty_ms=math.hypot(*parts.values()), flags=flags)
    return replace(utterance, stop=stop, last=stop.sample, flags=flags, reason=None)


def _with_what_follows(
    utterance: Utterance, track: LevelTrack, runs: Sequence[Run], known: Sequence[Utterance], heard: Sequence[Stretch]
) -> Utterance:
    """The utterance ended where its sound does, if it goes on beyond what the reference holds; bounds hold both ends.

    Reverberation goes on as well, but falls at once; and where the agent speaks, it may be the agent that is heard.
    """
    stop = utterance.stop
    if stop is not None and stop.evidence == "level":
        return utterance
    run = None if stop is None else next((r for r in runs if r.start <= stop.sample < r.end), None)
    if stop is None or run is None or samples_to_ms(run.end - stop.sample, track.rate_hz) <= BEYOND_MS:
        return utterance
    if any(stop.sample < u.first <= run.end for u in known):
        return utterance
    try:
        # a run goes on until its last window over θ, which noise may have lifted
        by_level = find_end(track, run.end, after=run.start)
    except NotMeasurable:
        return utterance
    fall = steepest_fall_db(track, run.start, run.end, stop.threshold_dbov)
    room = "room" in stop.flags and (fall is None or fall < ROOM_FALL_DB)
    end = direct_end(track, run.start, run.end) if room else by_level.sample
    beyond_ms = samples_to_ms(end - stop.sample, track.rate_hz)
    if beyond_ms - by_level.uncertainty_ms - stop.uncertainty_ms <= (ROOM_BEYOND_MS if room else BEYOND_MS):
        return utterance
    flags = tuple(dict.fromkeys((*stop.flags, "sound_beyond")))
    agent_speaks = any(s.first <= run.end and s.last >= stop.sample for s in heard)
    if agent_speaks and beyond_ms > MAX_DOUBT_MS:
        return replace(utterance, flags=flags)
    if beyond_ms > MAX_BEYOND_MS:
        return replace(utterance, stop=None, last=end, flags=flags, reason="sound_beyond")
    end = stop.sample if agent_speaks else end
    parts = {**stop.parts_ms, "beyond": beyond_ms}
    uncertainty_ms = math.hypot(*parts.values())
    evidence = stop.evidence if agent_speaks else "level"
    stop = replace(stop, sample=end, parts_ms=parts, uncertainty_ms=uncertainty_ms, evidence=evidence, flags=flags)
    return replace(utterance, last=end, stop=stop, flags=flags)


def _unknown(
    track: LevelTrack,
    runs: Sequence[Run],
    known: Sequence[Utterance],
    caller: Channel,
    heard: Sequence[Stretch],
    *,
    marked: bool,
) -> list[Utterance]:
    """Speech that no reference explains."""
    rate_hz = track.rate_hz
    edge = round(EDGE_S * rate_hz)
    if all(any(_touch(run.start, run.end, u, edge) for u in known) for run in runs):
        return []
    stretches = [s for s in find_stretches(track, runs) if s.speech_first is not None]
    left = [s for s in stretches if not any(_touch(s.first, s.last, u, edge) for u in known)]
    agents = [s for s in heard if s.speech_first is not None and s.content]
    groups: list[list[Stretch]] = []
    for stretch in left:
        if groups and _goes_on(groups[-1], stretch, agents, known, rate_hz):
            groups[-1].append(stretch)
        else:
            groups.append([stretch])
    kept = [g for g in groups if g[-1].last - g[0].first >= SHORT_S * rate_hz]
    reverberant = in_room(track, stretches)
    return [_blind(group, caller, track, marked=marked, reverberant=reverberant) for group in kept]


def _touch(first: int, last: int, utterance: Utterance, edge: int) -> bool:
    return first < utterance.last + edge and utterance.first - edge < last


def _goes_on(
    group: Sequence[Stretch], after: Stretch, agents: Sequence[Stretch], known: Sequence[Utterance], rate_hz: int
) -> bool:
    """Whether a stretch goes on with an utterance: after a short pause, in which nobody else has the turn."""
    begun, ended = group[0].first, group[-1].last
    pause = after.first - ended
    if pause > PAUSE_S * rate_hz or any(ended < u.first < after.first for u in known):
        return False
    for stretch in agents:
        first, last = _speech_first(stretch), stretch.last
        # one that spoke before the caller did is interrupted, and has no turn to take
        if first < begun or last <= ended or first >= after.first - REACTION_S * rate_hz:
            continue
        if first > ended or last < after.first or pause > OVER_S * rate_hz:
            return False
    return True


def _speech_first(stretch: Stretch) -> int:
    assert stretch.speech_first is not None
    return stretch.speech_first


def _blind(
    group: Sequence[Stretch], caller: Channel, track: LevelTrack, *, marked: bool, reverberant: bool
) -> Utterance:
    first, last = group[0], group[-1]
    flags = (UNKNOWN,) if marked else ()
    start = first.speech or first.start
    begin = first.first if start is None else start.sample
    try:
        stop = _end_by_level(last, caller, track, reverberant=reverberant)
    except NotMeasurable as exc:
        return Utterance(begin, last.last, start, None, None, flags, exc.reason)
    return Utterance(begin, stop.sample, start, stop, None, (*flags, *stop.flags))


def _end_by_level(stretch: Stretch, caller: Channel, track: LevelTrack, *, reverberant: bool) -> Boundary:
    """The end of speech that nobody knows: of its level in a dry recording, before it has fallen in a room."""
    end = stretch.end
    if end is None:
        return _blind_end(caller, track.rate_hz, stretch.first, stretch.last)
    parts, flags, sample = {**end.parts_ms, "level": LEVEL_MS}, end.flags, end.sample
    if reverberant:
        sample = direct_end(track, stretch.first, stretch.last)
        parts, flags = {"room": WITHIN_MS}, ("room", "uncertain")
    uncertainty_ms = math.hypot(*parts.values())
    if uncertainty_ms > UNCERTAIN_MS and "uncertain" not in flags:
        flags = (*flags, "uncertain")
    return replace(end, sample=sample, parts_ms=parts, uncertainty_ms=uncertainty_ms, flags=flags)


def _blind_end(caller: Channel, rate_hz: int, first: int, last: int) -> Boundary:
    return last_audible_blind(caller, rate_hz, start_s=first / rate_hz, stop_s=last / rate_hz + BLIND_AFTER_S)
