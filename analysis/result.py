"""A run's turns in, the result document `latency-probe/result/1` out, and back again; also the exit code it stands for.

Source: the contract in docs/result.md. Time origin of every `_s` is time 0 of its call, the capture of the first sample
that the probe sent. A value that was not observed is None (null); a stage that does not exist is absent. Milliseconds
are written to the nanosecond (six decimals), seconds to the nanosecond (nine); NaN and infinities are refused.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np

from analysis.errors import EXIT_FAILED, EXIT_NOT_MEASURABLE, EXIT_OK, UsageError

__all__ = [
    "ANSWERED",
    "CALL_FAILED",
    "FLAG_COLD",
    "FLAG_FIRST_AFTER_IDLE",
    "FLAG_NO_REPLY_EXPECTED",
    "FLAG_WARM_UP",
    "MEDIA_LOST",
    "NOT_MEASURABLE",
    "NO_REPLY",
    "OUTCOMES",
    "OVERLAPPED",
    "PREMATURE",
    "SCHEMA",
    "STAGES",
    "Boundaries",
    "Boundary",
    "OutputDelay",
    "Result",
    "Source",
    "Turn",
    "exit_code",
    "result_from_text",
    "result_json_text",
]

SCHEMA = "latency-probe/result/1"

ANSWERED = "answered"
PREMATURE = "premature"
NO_REPLY = "no_reply"
OVERLAPPED = "overlapped"
MEDIA_LOST = "media_lost"
CALL_FAILED = "call_failed"
NOT_MEASURABLE = "not_measurable"
OUTCOMES = (ANSWERED, PREMATURE, NO_REPLY, OVERLAPPED, MEDIA_LOST, CALL_FAILED, NOT_MEASURABLE)

FLAG_WARM_UP = "warm_up"  # counts in no statistic
FLAG_FIRST_AFTER_IDLE = "first_after_idle"  # reported on its own
FLAG_COLD = "cold"  # reported on its own
FLAG_NO_REPLY_EXPECTED = "no_reply_expected"  # a silence that was asked for is not a failure

# in the order in which they lie on the clock, from speech_stop to audible_played
STAGES = ("packetization", "remote_response", "leading_silence", "jitter_buffer", "output")

KINDS = ("session", "recording", "rig", "watch")
FAULTS = ("agent", "probe")
STORAGE_REASONS = frozenset({"disk_full", "disk_failed", "device_failed"})
MS_DECIMALS = 6
S_DECIMALS = 9
MAX_WHOLE = 10**300  # beyond it a whole number has no float
MAX_NUMBER = 1e15  # beyond it no duration or instant can be meant, and a float no longer holds milliseconds

_WHOLE = ("call", "index")
_TEXTS = ("language", "reason", "fault")
_NUMBERS = (
    *("scheduled_s", "start_slip_ms", "speech_s", "speech_stop_s", "any_s", "audible_s", "content_s"),
    *("latency_ms", "received_ms", "uncertainty_ms", "turn_ms", "response_ms", "yield_time_ms", "recorded_ms"),
)
_NUMBER_MAPS = ("uncertainty_parts_ms", "stages_ms", "variants_ms", "reported_ms")
_MAPS = ("audibility", "network", "truth")


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One scheduled turn and what became of it.

    `_s` values lie on the call's time axis, `_ms` values are durations. `latency_ms` is signed: a premature reply is
    negative. `segment` holds labels beside the language; `network` holds `rtt_ms`, `jitter_ms`, `lost`, `concealed_ms`;
    `audibility` holds θ of both boundaries and how far each moves at θ ± 10 dB; each of `server_spans` is evidence that
    the agent reported, on the clock that it names. `recorded_ms` is written for a rig only.

    Raises
    ------
    ValueError
        If the outcome or the fault is not one of the contract's, or an answered turn has no finite `latency_ms`.
    """

    call: int
    index: int
    language: str | None = None
    segment: Mapping[str, str] = field(default_factory=dict)
    outcome: str
    reason: str | None = None
    fault: str | None = None
    scheduled_s: float | None = None
    start_slip_ms: float | None = None
    speech_s: float | None = None
    speech_stop_s: float | None = None
    any_s: float | None = None
    audible_s: float | None = None
    content_s: float | None = None
    latency_ms: float | None = None
    received_ms: float | None = None
    recorded_ms: float | None = None
    uncertainty_ms: float | None = None
    uncertainty_parts_ms: Mapping[str, float] = field(default_factory=dict)
    audibility: Mapping[str, Any] | None = None
    stages_ms: Mapping[str, float] = field(default_factory=dict)
    variants_ms: Mapping[str, float | None] = field(default_factory=dict)
    network: Mapping[str, Any] = field(default_factory=dict)
    turn_ms: float | None = None
    response_ms: float | None = None
    reported_ms: Mapping[str, float | None] = field(default_factory=dict)
    yield_time_ms: float | None = None
    server_spans: tuple[Mapping[str, Any], ...] = ()
    truth: Mapping[str, Any] | None = None
    flags: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.outcome not in OUTCOMES:
            raise ValueError(f"outcome must be one of {', '.join(OUTCOMES)}, got {self.outcome!r}")
        if self.fault is not None and self.fault not in FAULTS:
            raise ValueError(f"fault must be agent or probe, got {self.fault!r}")
        if self.outcome == ANSWERED and (self.latency_ms is None or not math.isfinite(self.latency_ms)):
            raise ValueError(f"an answered turn needs a finite latency_ms, got {self.latency_ms}")

    @property
    def lost_by_probe(self) -> bool:
        """Whether the call or its media was lost by the probe's own fault, which says nothing about the agent."""
        return self.outcome in (CALL_FAILED, MEDIA_LOST) and self.fault == "probe"


@dataclass(frozen=True, slots=True)
class Boundary:
    """One end of the interval: its name, the clock it lies on, and the evidence for it."""

    name: str
    clock: str
    evidence: str


@dataclass(frozen=True, slots=True)
class OutputDelay:
    """Delay of the output (sink and loudspeaker), and whether it was assumed, given or calibrated."""

    ms: float
    evidence: str


@dataclass(frozen=True, slots=True)
class Boundaries:
    """From where to where the headline runs; `policy` and `output` are None where nothing is modelled.

    `at` (a rig's: `device` or `recorded`) is written only where it is given.
    """

    start: Boundary
    end: Boundary
    policy: str | None = None
    output: OutputDelay | None = None
    at: str | None = None


@dataclass(frozen=True, slots=True)
class Source:
    """What was measured: `kind` is session, recording, rig or watch."""

    kind: str
    path: str | None = None
    target: str | None = None
    calls: int = 1


@dataclass(frozen=True, slots=True)
class Result:
    """A whole result: where it comes from, its boundaries, every scheduled turn, and the summary of them."""

    source: Source
    boundaries: Boundaries
    turns: tuple[Turn, ...]
    summary: Mapping[str, Any]
    rig: Mapping[str, Any] | None = None
    recording: Mapping[str, Any] | None = None

    def to_json(self) -> dict[str, Any]:
        """The document as plain JSON values, rounded.

        Raises
        ------
        ValueError
            If any number in it is NaN or infinite, or a value has no JSON form; the message names the place.
        """
        ends = self.boundaries
        boundaries: dict[str, Any] = {
            "start": _record(ends.start),
            "end": _record(ends.end),
            "policy": ends.policy,
            "output": None if ends.output is None else _record(ends.output),
        }
        if ends.at is not None:
            boundaries["at"] = ends.at
        turns = [_record(turn) for turn in self.turns]
        if self.rig is None:
            for turn in turns:
                del turn["recorded_ms"]
        document: dict[str, Any] = {
            "schema": SCHEMA,
            "source": _record(self.source),
            "boundaries": boundaries,
            "turns": turns,
            "summary": self.summary,
        }
        if self.rig is not None:
            document["rig"] = self.rig
        if self.recording is not None:
            document["recording"] = self.recording
        plain = _plain(document, "")
        assert isinstance(plain, dict)
        return plain

    @classmethod
    def from_json(cls, document: object) -> Result:
        """The result that a document holds; keys that it does not know are left out.

        Raises
        ------
        UsageError
            If something that is needed is missing or of the wrong kind; one line that names the place.
        """
        try:
            top = _mapping(_plain(document, ""), "the document")
        except ValueError as exc:
            raise UsageError(f"not a valid result: {exc}") from exc
        if top.get("schema") != SCHEMA:
            raise UsageError(
                f"not a result document: schema is {_shown(top.get('schema'))}, expected {SCHEMA}",
                next_step="give a result.json, or a session bundle",
            )
        turns = top.get("turns")
        if not isinstance(turns, list):
            raise _wrong("turns", "a list", turns)
        rig, recording = top.get("rig"), top.get("recording")
        return cls(
            source=_source(_mapping(top.get("source"), "source")),
            boundaries=_boundaries(_mapping(top.get("boundaries"), "boundaries")),
            turns=tuple(_turn(turn, f"turns[{i}]") for i, turn in enumerate(turns)),
            summary=_mapping(top.get("summary"), "summary"),
            rig=None if rig is None else _mapping(rig, "rig"),
            recording=None if recording is None else _mapping(recording, "recording"),
        )


def result_json_text(result: Result) -> str:
    """The document as text: the same for the same result, UTF-8 when encoded, with a final newline.

    Raises
    ------
    ValueError
        As `Result.to_json`.
    """
    return json.dumps(result.to_json(), ensure_ascii=False, allow_nan=False, indent=1) + "\n"


def result_from_text(text: str | bytes, *, name: str = "result") -> Result:
    """Parse a document; `name` (a path, say) opens the message of the UsageError that a wrong one raises."""
    try:
        return Result.from_json(json.loads(text))
    except (ValueError, RecursionError) as exc:
        raise UsageError(f"{name}: not JSON ({exc})", next_step="give a result.json, or a session bundle") from exc
    except UsageError as exc:
        raise UsageError(f"{name}: {exc.message}", next_step=exc.next_step) from exc


def exit_code(result: Result) -> int:
    """The exit code that the turns stand for: 4 where a call, its media, a device or the disk failed; 3 where no turn
    could be measured; else 0. That a run was interrupted (130) or missed a budget (1) is known to the caller only.
    """
    if any(turn.outcome in (CALL_FAILED, MEDIA_LOST) or turn.reason in STORAGE_REASONS for turn in result.turns):
        return EXIT_FAILED
    if all(turn.outcome == NOT_MEASURABLE for turn in result.turns):
        return EXIT_NOT_MEASURABLE
    return EXIT_OK


def _record(record: Any) -> dict[str, Any]:
    return {item.name: getattr(record, item.name) for item in fields(record)}


def _plain(value: Any, where: str) -> Any:
    """`value` as JSON: rounded floats, lists, dicts with text keys; `where` is its path, for the message."""
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        if abs(value) > MAX_WHOLE:
            raise ValueError(f"{where} is larger than any number that a result can hold")
        return value
    if isinstance(value, str):
        return _encodable(value)
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError(f"{where} is {value}; a result holds finite numbers or null")
        return round(value, S_DECIMALS if where.endswith("_s") else MS_DECIMALS) + 0.0
    if isinstance(value, Mapping):
        items = ((_encodable(str(key)), item) for key, item in value.items())
        return {key: _plain(item, f"{where}.{key}" if where else key) for key, item in items}
    if isinstance(value, (list, tuple)):
        return [_plain(item, f"{where}[{i}]") for i, item in enumerate(value)]
    raise ValueError(f"{where} is a {type(value).__name__}, which a result cannot hold")


def _encodable(text: str) -> str:
    return text.encode("utf-8", "replace").decode("utf-8")  # a lone surrogate has no UTF-8 form


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "…"


def _wrong(where: str, expected: str, value: object) -> UsageError:
    return UsageError(
        f"not a valid result: {where} must be {expected}, got {_shown(value)}",
        next_step="make the result again with latency-probe analyze or replay",
    )


def _mapping(value: object, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise _wrong(where, "an object", value)
    return value


def _text(value: object, where: str) -> str:
    if not isinstance(value, str):
        raise _wrong(where, "text", value)
    return value


def _text_or_none(value: object, where: str) -> str | None:
    return None if value is None else _text(value, where)


def _whole(value: object, where: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MAX_NUMBER:
        raise _wrong(where, "a whole number from 0", value)
    return value


def _number(value: object, where: str) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or abs(value) > MAX_NUMBER:
        raise _wrong(where, "a number", value)
    return value


def _number_or_none(value: object, where: str) -> float | None:
    return None if value is None else _number(value, where)


def _numbers(value: object, where: str, *, needed: bool) -> dict[str, Any]:
    read = _number if needed else _number_or_none
    return {key: read(item, f"{where}.{key}") for key, item in _mapping(value, where).items()}


def _source(value: dict[str, Any]) -> Source:
    kind = value.get("kind")
    if kind not in KINDS:
        raise _wrong("source.kind", f"one of {', '.join(KINDS)}", kind)
    return Source(
        kind=kind,
        path=_text_or_none(value.get("path"), "source.path"),
        target=_text_or_none(value.get("target"), "source.target"),
        calls=_whole(value.get("calls", 1), "source.calls"),
    )


def _boundaries(value: dict[str, Any]) -> Boundaries:
    def boundary(name: str) -> Boundary:
        where = f"boundaries.{name}"
        found = _mapping(value.get(name), where)
        return Boundary(**{key: _text(found.get(key), f"{where}.{key}") for key in ("name", "clock", "evidence")})

    output = None
    if value.get("output") is not None:
        found = _mapping(value["output"], "boundaries.output")
        output = OutputDelay(
            ms=_number(found.get("ms"), "boundaries.output.ms"),
            evidence=_text(found.get("evidence"), "boundaries.output.evidence"),
        )
    return Boundaries(
        start=boundary("start"),
        end=boundary("end"),
        policy=_text_or_none(value.get("policy"), "boundaries.policy"),
        output=output,
        at=_text_or_none(value.get("at"), "boundaries.at"),
    )


def _turn(value: object, where: str) -> Turn:
    found = _mapping(value, where)
    read: dict[str, Any] = {key: _whole(found.get(key), f"{where}.{key}") for key in _WHOLE}
    read |= {key: _text_or_none(found.get(key), f"{where}.{key}") for key in _TEXTS}
    read |= {key: _number_or_none(found.get(key), f"{where}.{key}") for key in _NUMBERS}
    for key in _NUMBER_MAPS:
        if found.get(key) is not None:
            needed = key in ("uncertainty_parts_ms", "stages_ms")
            read[key] = _numbers(found[key], f"{where}.{key}", needed=needed)
    read |= {key: _mapping(found[key], f"{where}.{key}") for key in _MAPS if found.get(key) is not None}
    segment = _mapping(found.get("segment", {}), f"{where}.segment")
    read["segment"] = {key: _text(item, f"{where}.segment.{key}") for key, item in segment.items()}
    for key in ("flags", "server_spans"):
        items = found.get(key, [])
        if not isinstance(items, list):
            raise _wrong(f"{where}.{key}", "a list", items)
        item_of: Any = _text if key == "flags" else _mapping
        read[key] = tuple(item_of(item, f"{where}.{key}[{i}]") for i, item in enumerate(items))
    try:
        return Turn(outcome=_text(found.get("outcome"), f"{where}.outcome"), **read)
    except ValueError as exc:
        raise UsageError(f"not a valid result: {where}: {exc}") from exc
