"""Recorded calls in, the result document and the series behind its figures out; the one place where figures are made.

Source: the design's boundaries, stages and outcomes. All arithmetic is in whole nanoseconds of one monotonic clock, and
`jitter_buffer` is the remainder, so the stages of a turn add up to its user latency exactly.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from analysis.bundle import CallRecord, Event
from analysis.call import ASSUMED_OUTPUT, Call, Output, open_call, spoken_in
from analysis.errors import BundleError
from analysis.figures import CallSeries
from analysis.manifest import call_number, scheduled_turns
from analysis.playout import parse_policy
from analysis.result import (
    ANSWERED,
    CALL_FAILED,
    MEDIA_LOST,
    NOT_MEASURABLE,
    OVERLAPPED,
    STAGES,
    Boundaries,
    Boundary,
    OutputDelay,
    Result,
    Source,
    Turn,
)
from analysis.series import audibly_concealed_ms, call_series
from analysis.sounds import Sound
from analysis.statistics import summarize
from analysis.truth import with_truth
from analysis.turns import Ending, Pairing, Spoken, pair
from analysis.units import ns_to_ms, samples_to_ns

__all__ = ["ASSUMED_OUTPUT", "Derived", "Output", "derive"]

CLOCK = "client-monotonic"
LATE_NS = 2_000_000  # probe_late, by the design
ONSET_MS = 0.5  # decoders agree on where a sound begins to well within this, once they have settled
ONSET_AFTER_LOSS_MS = 5.0  # a decoder that has just concealed needs some packets to agree again
SETTLED_PACKETS = 5
# What the spread over tick grids leaves out of the model's error against Chrome at talkspurt onsets, so that both
# together hold 95 % of them (docs/benchmarks.md; steady paths 3.5, jittery 8.8, lossy 9.8)
PLAYOUT_MODEL_MS = {"chrome": 9.0}


@dataclass(frozen=True)
class Derived:
    """A result with what its figures are drawn from, and what could not be read."""

    result: Result
    series: tuple[CallSeries, ...]
    warnings: tuple[str, ...]


def derive(
    records: Sequence[CallRecord],
    *,
    policies: Sequence[str] = ("chrome",),
    output: Output = ASSUMED_OUTPUT,
    path: str | None = None,
) -> Derived:
    """Work out every scheduled turn of the recorded calls.

    Parameters
    ----------
    records : sequence of CallRecord
    policies : sequence of str
        Playout policies; the first is the headline, the others stand in `variants_ms`.
    output : Output
        Delay from the buffer to the ear.
    path : str, optional
        Where the records lie, for the result's `source`.

    Raises
    ------
    UsageError
        If a policy is not one.
    BundleError
        If a record lacks what it needs.
    """
    for policy in policies:
        parse_policy(policy)
    turns: list[Turn] = []
    series: list[CallSeries] = []
    warnings: list[str] = []
    distinct = _distinct(records, warnings)
    numbers = _numbers(distinct)
    for record, number in zip(distinct, numbers, strict=True):
        try:
            made, figures = _derive_call(record, number, tuple(policies), output)
        except (KeyError, TypeError, ValueError, AttributeError, ArithmeticError) as exc:
            raise BundleError(
                f"{_name(record)}: events or manifest are damaged ({exc.__class__.__name__}: {exc})",
                next_step="packets.pcap can still be opened in Wireshark",
            ) from exc
        turns += made
        series += figures
        warnings += [f"{_name(record)}: {w}" for w in record.warnings]
    target = records[0].manifest.get("target", {}) if records else {}
    boundaries = Boundaries(
        start=Boundary("speech_stop", CLOCK, "sent"),
        end=Boundary("audible_played", CLOCK, "modelled"),
        policy=policies[0],
        output=None if policies[0] == "none" else OutputDelay(output.ms, output.evidence),
    )
    url = _text(target.get("url")) if isinstance(target, Mapping) else None
    source = Source("session", path, url, len(distinct))
    return Derived(Result(source, boundaries, tuple(turns), summarize(turns)), tuple(series), tuple(warnings))


def _name(record: CallRecord) -> str:
    return record.path.name if record.path is not None else "record"


def _distinct(records: Sequence[CallRecord], warnings: list[str]) -> list[CallRecord]:
    """Each call once, however often it was given: by the clock and number of its recording, or by where it lies."""
    seen: set[object] = set()
    distinct = []
    for record in records:
        clock = record.manifest.get("clock")
        identity = repr((clock, record.manifest.get("call"))) if clock else record.path and record.path.resolve()
        if identity is not None and identity in seen:
            warnings.append(f"{_name(record)}: given twice; it is counted once")
            continue
        seen.add(identity)
        distinct.append(record)
    return distinct


def _numbers(records: Sequence[CallRecord]) -> list[int]:
    """The calls' own numbers, or new ones where several runs are taken together: calls must not be mixed up."""
    own = [call_number(record.manifest, _name(record)) for record in records]
    return own if len(set(own)) == len(own) else list(range(len(own)))


def _derive_call(
    record: CallRecord, number: int, policies: tuple[str, ...], output: Output
) -> tuple[list[Turn], list[CallSeries]]:
    scheduled = scheduled_turns(record.manifest, _name(record))
    ending = _ending(record)
    negotiated, started = record.first("media_negotiated"), record.first("media_started")
    if negotiated is None or started is None:
        outcome = ending.outcome or NOT_MEASURABLE
        outcome = CALL_FAILED if outcome == MEDIA_LOST else outcome
        pairing = Pairing(outcome, ending.reason or "recording_ended", ending.fault)
        return [Turn(**_named(number, turn, pairing)) for turn in scheduled], []
    call = open_call(record, number, negotiated, started, policies, output)
    begun = {int(e.fields["turn"]): e for e in record.of_type("turn_started")}
    settings = {turn["index"]: turn for turn in scheduled}
    spoken = [spoken_in(call, event, settings[index]) for index, event in sorted(begun.items()) if index in settings]
    pairings = dict(zip([s.index for s in spoken], pair(spoken, call.sounds, ending), strict=True))
    said = {s.index: s for s in spoken}
    skipped = {int(e.fields["turn"]): str(e.fields["reason"]) for e in record.of_type("turn_skipped")}
    turns = []
    for index, turn in settings.items():
        if index in said:
            turns.append(_turn(call, turn, begun[index], said[index], pairings[index]))
        else:
            turns.append(Turn(**_named(number, turn, _never_spoken(index, skipped, ending))))
    series = call_series(
        number,
        call.zero_ns,
        call.arrivals,
        policies[0],
        heard=[(h.stream, h.playouts[policies[0]]) for h in call.heard],
        received=record.received,
        round_trips=call.round_trips,
        srtp_discarded=sum(int(e.fields["packets"]) for e in record.of_type("srtp_discarded")),
    )
    return with_truth(turns, spoken, record.of_type("agent_truth")), [series]


def _ending(record: CallRecord) -> Ending:
    last_ns = max(
        [e.time_ns for e in record.events[-1:]]
        + [t.time_ns for t in record.received[-1:]]
        + [t.time_ns for t in record.sent[-1:]],
        default=0,
    )
    if record.first("recording_missing") is not None:
        return Ending(0, NOT_MEASURABLE, "recording_missing", None)
    for event in record.of_type("recording_failed", CALL_FAILED, MEDIA_LOST):
        if event.type == "recording_failed":
            return Ending(event.time_ns, NOT_MEASURABLE, str(event.fields.get("reason", "disk_full")), None)
        message = str(event.fields.get("message", "")) or None
        return Ending(event.time_ns, event.type, message, str(event.fields.get("fault", "agent")))
    ended = record.first("call_ended")
    if ended is None:
        return Ending(last_ns, NOT_MEASURABLE, "recording_ended", None)
    if ended.fields.get("reason") == "interrupted":
        return Ending(ended.time_ns, NOT_MEASURABLE, "interrupted", None)
    return Ending(ended.time_ns, None, None, None)


def _never_spoken(index: int, skipped: Mapping[int, str], ending: Ending) -> Pairing:
    if index in skipped:
        return Pairing(NOT_MEASURABLE, skipped[index])
    if ending.outcome in (CALL_FAILED, MEDIA_LOST):
        return Pairing(CALL_FAILED, ending.reason, ending.fault)
    return Pairing(ending.outcome or NOT_MEASURABLE, ending.reason or "not_spoken", ending.fault)


def _named(number: int, settings: Mapping[str, Any], pairing: Pairing) -> dict[str, Any]:
    """What is known of a turn without its figures, as the fields of a Turn."""
    return {
        "call": number,
        "index": int(settings["index"]),
        "language": _text(settings.get("language")),
        "segment": {str(key): str(value) for key, value in dict(settings.get("segment") or {}).items()},
        "outcome": pairing.outcome,
        "reason": pairing.reason,
        "fault": pairing.fault,
        "flags": (*map(str, settings.get("flags", ())), *pairing.flags),
    }


def _turn(call: Call, settings: Mapping[str, Any], event: Event, spoken: Spoken, pairing: Pairing) -> Turn:
    """One turn that was spoken."""
    due_ns = int(event.fields["due_ns"])
    reply = pairing.reply
    window_end_ns = spoken.stop_ns + spoken.timeout_ns if reply is None else reply.arrival_ns
    fields = _named(call.call, settings, pairing) | {
        "scheduled_s": call.seconds(due_ns),
        "start_slip_ms": ns_to_ms(spoken.start_ns - due_ns),
        "speech_s": call.seconds(spoken.start_ns),
        "speech_stop_s": call.seconds(spoken.stop_ns),
        "network": _network(call, spoken.start_ns, window_end_ns),
        "yield_time_ms": _yield_time_ms(call, spoken, pairing),
    }
    if reply is not None:
        replied = _replied(call, event, spoken, reply, pairing)
        fields |= replied | {"flags": (*fields["flags"], *replied.get("flags", ()))}
    return Turn(**fields)


def _yield_time_ms(call: Call, spoken: Spoken, pairing: Pairing) -> float | None:
    """From the start of an interruption to the last audible sample of what it interrupted, in the ear."""
    if pairing.interrupted is None or pairing.outcome == OVERLAPPED:
        return None
    ended_ns = pairing.interrupted.played_end_ns(call.policies[0])
    return None if ended_ns is None else ns_to_ms(ended_ns + call.output_ns(call.policies[0]) - spoken.start_ns)


def _latency_ns(call: Call, policy: str, spoken: Spoken, sound: Sound) -> int | None:
    played = sound.played_start(policy)
    return None if played is None else played[1] + call.output_ns(policy) - spoken.stop_ns


def _replied(call: Call, event: Event, spoken: Spoken, reply: Sound, pairing: Pairing) -> dict[str, Any]:
    """The fields that a reply (or a cut-in) gives its turn."""
    assert spoken.stop_sent_ns is not None
    headline, *others = call.policies
    latency_ns = _latency_ns(call, headline, spoken, reply)
    fields: dict[str, Any] = {
        "received_ms": ns_to_ms(reply.arrival_ns - spoken.stop_ns),
        "variants_ms": {p: _ms(_latency_ns(call, p, spoken, reply)) for p in others},
        "audibility": {
            "start_dbov": _finite(event.fields["end_threshold_dbov"]),
            "end_dbov": reply.threshold_dbov,
            "start_shift_ms": event.fields["end_shift_ms"],
            "end_shift_ms": reply.shifts_ms(),
        },
    }
    if latency_ns is None:
        return fields | {"outcome": NOT_MEASURABLE, "reason": "nothing_of_the_reply_is_played"}
    content_ns = None if pairing.content is None else _latency_ns(call, headline, spoken, pairing.content)
    any_ns = reply.any_played_ns(headline)
    stages, flags = _stages(call, spoken, reply, latency_ns) if pairing.outcome == ANSWERED else ({}, ())
    if reply.start != reply.any_start:
        flags = (*flags, "noise_before_speech")
    deadline_ns = int(event.fields["first_deadline_ns"]) + call.stop_frame(event) * call.frame_ns
    lag = call.lags.get(reply.arrival_ns, {})
    late_ns = max(spoken.stop_sent_ns - deadline_ns, int(lag.get("lag_ns", 0)))
    if late_ns > LATE_NS:
        flags = (*flags, "probe_late")
    parts = _uncertainty(call, headline, reply)
    return fields | {
        "latency_ms": ns_to_ms(latency_ns),
        "any_s": call.seconds(None if any_ns is None else any_ns + call.output_ns(headline)),
        "audible_s": call.seconds(spoken.stop_ns + latency_ns),
        "content_s": None if content_ns is None else call.seconds(spoken.stop_ns + content_ns),
        "uncertainty_parts_ms": parts,
        "uncertainty_ms": math.sqrt(sum(p * p for p in parts.values())),
        "stages_ms": stages,
        "flags": flags,
    }


def _stages(call: Call, spoken: Spoken, reply: Sound, latency_ns: int) -> tuple[dict[str, float], tuple[str, ...]]:
    """Stages (ms) that add up to `latency_ns`, and a flag where the reply's stream never pauses."""
    assert spoken.stop_sent_ns is not None
    stream, policy = reply.heard.stream, call.policies[0]
    rate_hz = stream.codec.rate_hz
    members = np.flatnonzero(stream.talkspurt == stream.talkspurt[reply.packet])
    first = int(members[np.argmin(stream.position[members])])
    reply_received_ns = int(stream.arrival_ns[first])
    stages = {"packetization": spoken.stop_sent_ns - spoken.stop_ns}
    pauses = reply_received_ns >= spoken.stop_sent_ns
    if pauses:
        stages["remote_response"] = reply_received_ns - spoken.stop_sent_ns
        stages["leading_silence"] = samples_to_ns(reply.start - int(stream.position[first]), rate_hz)
    else:
        inside = reply.start - int(stream.position[reply.packet])
        stages["remote_response"] = reply.arrival_ns + samples_to_ns(inside, rate_hz) - spoken.stop_sent_ns
    if policy != "none":
        stages["output"] = call.output_ns(policy)
    stages["jitter_buffer"] = latency_ns - sum(stages.values())
    return {k: ns_to_ms(stages[k]) for k in STAGES if k in stages}, () if pauses else ("never_pauses",)


def _uncertainty(call: Call, policy: str, reply: Sound) -> dict[str, float]:
    """Expanded parts (k = 2, ms) of one latency."""
    stream, packet = reply.heard.stream, reply.packet
    recent = stream.sequence[max(0, packet - SETTLED_PACKETS) : packet + 1]
    settled = int(recent[-1] - recent[0]) == len(recent) - 1
    onset_ms = ONSET_MS if settled else ONSET_AFTER_LOSS_MS
    parts = {"onset": max(onset_ms, reply.earlier_with_losses_ms(), reply.noise_spread_ms())}
    lag = call.lags.get(reply.arrival_ns, {})
    # where the kernel stamped the arrival, a wait in this process is not in the figure
    if lag and not lag.get("by_kernel"):
        parts["probe_lag"] = ns_to_ms(int(lag["lag_ns"]))
    if policy in PLAYOUT_MODEL_MS:
        parts["playout_model"] = math.hypot(PLAYOUT_MODEL_MS[policy], reply.play_spread_ms(policy))
    if policy != "none":
        parts["output"] = call.output.uncertainty_ms
    return parts


def _network(call: Call, begin_ns: int, end_ns: int) -> dict[str, float | int | None]:
    trips = [t.rtt_ns for t in call.round_trips if t.time_ns <= end_ns]
    concealed = 0.0
    for heard in call.heard:
        playout = heard.playouts[call.policies[0]]
        amounts = audibly_concealed_ms(heard.stream, playout).tolist()
        windows = zip(playout.series, amounts, strict=True)
        concealed += sum(amount for point, amount in windows if begin_ns <= point.time_ns < end_ns)
    return {
        "rtt_ms": ns_to_ms(trips[-1]) if trips else None,
        "jitter_ms": call.arrivals.jitter_at_ms(end_ns),
        "lost": call.arrivals.lost_between(begin_ns, end_ns),
        "concealed_ms": concealed,
    }


def _text(value: object) -> str | None:
    """What a bundle should hold as text; anything else is not shown."""
    return value if isinstance(value, str) else None


def _ms(ns: int | None) -> float | None:
    return None if ns is None else ns_to_ms(ns)


def _finite(value: Any) -> float | None:
    return float(value) if value is not None and math.isfinite(value) else None
