"""Turns that were measured beside turns that are true: how many outcomes are right and how far the boundaries are off.

What is measured comes as turns of `latency-probe/result/1` (docs/result.md), from us or from a peer; a peer states no
uncertainty and leaves absent what it does not measure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from analysis.result import NOT_MEASURABLE
from benchmarks.recordings_truth import TurnTruth

__all__ = ["DESCRIPTIVE_FLAGS", "LARGE_MS", "Score", "Tally", "score_turn", "scored"]

LARGE_MS = 20.0  # an error beyond it must be flagged or refused
# what a turn was, not how well it was measured
DESCRIPTIVE_FLAGS = frozenset(
    {
        *("backchannel", "interruption", "filler", "never_pauses", "reply_after_timeout", "idle_prompt", "repeated"),
        *("warm_up", "first_after_idle", "cold", "pause", "paused", "timescaled"),
    }
)
BOUNDARIES = ("speech_stop", "audible", "latency", "content", "any", "yield")
PERCENTS = (50, 95)


@dataclass(frozen=True, slots=True)
class Score:
    """One turn. Errors are measured minus true, ms; a boundary that either side lacks is not in them."""

    turn: TurnTruth
    outcome: str | None
    right: bool
    refused: bool
    flagged: bool
    errors_ms: Mapping[str, float]
    stated_ms: float | None
    speech_stop_stated_ms: float | None = None
    reason: str | None = None

    @property
    def large(self) -> bool:
        """An error above 20 ms of a boundary or of the latency."""
        return any(abs(self.errors_ms[name]) > LARGE_MS for name in BOUNDARIES[:3] if name in self.errors_ms)


def score_turn(truth: TurnTruth, measured: Mapping[str, Any] | None) -> Score:
    """One true turn beside what was measured of it; None where no turn was found."""
    if measured is None:
        return Score(truth, None, False, False, False, {}, None)
    outcome = measured.get("outcome")
    refused = outcome == NOT_MEASURABLE and NOT_MEASURABLE not in truth.outcomes
    flags = set(measured.get("flags") or ()) - DESCRIPTIVE_FLAGS
    errors: dict[str, float] = {}
    pairs = {
        "speech_stop": (truth.speech_stop_s, measured.get("speech_stop_s"), 1000.0),
        "latency": (truth.latency_ms, measured.get("latency_ms"), 1.0),
        "content": (truth.content_s, measured.get("content_s"), 1000.0),
        "any": (truth.any_s, measured.get("any_s"), 1000.0),
        "audible": (truth.audible_s, measured.get("audible_s"), 1000.0),
        "yield": (truth.yield_time_ms, measured.get("yield_time_ms"), 1.0),
    }
    for name, (true, value, scale) in pairs.items():
        if true is not None and value is not None and not refused:
            errors[name] = (float(value) - float(true)) * scale
    if "latency" not in errors and outcome != truth.outcomes[0]:
        errors.pop("audible", None)
    parts = measured.get("uncertainty_parts_ms") or {}
    return Score(
        turn=truth,
        outcome=outcome,
        right=outcome in truth.outcomes,
        refused=refused,
        flagged=bool(flags),
        errors_ms=errors,
        stated_ms=measured.get("uncertainty_ms") if "latency" in errors else None,
        speech_stop_stated_ms=parts.get("speech_stop"),
        reason=measured.get("reason"),
    )


def scored(truths: Sequence[TurnTruth], measured: Sequence[Mapping[str, Any]]) -> tuple[list[Score], int]:
    """All turns of a call, and how many were measured that are none.

    A measured turn belongs to the true one whose utterance it overlaps most; where it names no time, to the one of its
    index.
    """
    taken: dict[int, Mapping[str, Any]] = {}
    spare = 0
    for turn in measured:
        at = _belongs(turn, truths)
        if at is None or at in taken:
            spare += 1
        else:
            taken[at] = turn
    return [score_turn(truth, taken.get(i)) for i, truth in enumerate(truths)], spare


def _belongs(turn: Mapping[str, Any], truths: Sequence[TurnTruth]) -> int | None:
    start: Any = turn.get("speech_s")
    stop: Any = turn.get("speech_stop_s")
    if stop is None and start is None:
        index = turn.get("index")
        return index if index is not None and index < len(truths) else None
    begun, ended = (stop - 1.0 if start is None else start), (start + 1.0 if stop is None else stop)
    spans = [truth.events[0][1:] for truth in truths]  # as planned: there even where nothing was audible
    shared = [min(ended, end) - max(begun, begin) for begin, end in spans]
    best = int(np.argmax(shared)) if shared else -1
    return best if best >= 0 and shared[best] > 0 else None


@dataclass(slots=True)
class Tally:
    """The scores of a condition, by one tool; some tools measure times and tell no outcomes."""

    scores: list[Score] = field(default_factory=list)
    spare: int = 0
    analysed_s: float = 0.0
    cpu_s: float = 0.0
    failures: Counter[str] = field(default_factory=Counter)
    tells_outcomes: bool = True

    def errors(self, boundary: str) -> np.ndarray[Any, np.dtype[np.float64]]:
        """|error| of a boundary, ms, of the turns that have it."""
        return np.abs([s.errors_ms[boundary] for s in self.scores if boundary in s.errors_ms])

    def summary(self) -> dict[str, Any]:
        """What the table shows. Shares are per cent of the turns; None where there is nothing to take a share of."""
        scores = self.scores
        told = self.tells_outcomes
        stated = [s for s in scores if s.stated_ms is not None and "latency" in s.errors_ms]
        held = [abs(s.errors_ms["latency"]) <= s.stated_ms for s in stated if s.stated_ms is not None]
        large = [s for s in scores if s.large and not s.flagged]
        by_kind = Counter(f"{s.turn.kind}:{s.outcome}" for s in scores if not s.right and not s.refused)
        row: dict[str, Any] = {
            "turns": len(scores),
            "right_percent": _percent(sum(s.right for s in scores), len(scores)) if told else None,
            "refused_percent": _percent(sum(s.refused for s in scores), len(scores)),
            "wrong": sum(not s.right and not s.refused for s in scores) if told else None,
            "wrong_by_kind": dict(by_kind.most_common()) if told else {},
            "refused_by_reason": dict(Counter(str(s.reason) for s in scores if s.refused).most_common()),
            "spare": self.spare,
            "flagged_percent": _percent(sum(s.flagged for s in scores), len(scores)),
            "unflagged_above_20_ms": len(large),
            "of_them_outside_stated": sum(
                s.stated_ms is None or abs(s.errors_ms.get("latency", np.inf)) > s.stated_ms for s in large
            ),
            "inside_stated_percent": _percent(sum(held), len(held)),
            "median_stated_ms": float(np.median([s.stated_ms for s in stated])) if stated else None,
            "times_real_time": self.analysed_s / self.cpu_s if self.cpu_s else None,
            "failures": dict(self.failures),
        }
        for boundary in BOUNDARIES:
            errors = self.errors(boundary)
            row[boundary] = None
            if len(errors):
                ranked = np.percentile(errors, PERCENTS, method="inverted_cdf")
                row[boundary] = {
                    "n": len(errors),
                    "p50": float(ranked[0]),
                    "p95": float(ranked[1]),
                    "max": float(errors.max()),
                    "mean": float(np.mean([s.errors_ms[boundary] for s in scores if boundary in s.errors_ms])),
                }
        return row


def _percent(part: int, whole: int) -> float | None:
    return 100.0 * part / whole if whole else None
