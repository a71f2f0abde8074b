"""The demo agent's own log of what it sent, beside the turns that were measured: what the probe's error is judged by.

An entry belongs to the turn in which the agent heard the caller begin, not to the turn that the probe credits.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from analysis.bundle import Event
from analysis.result import Turn
from analysis.turns import BACKCHANNEL_MS, Spoken
from analysis.units import NS_PER_MS, ns_to_ms

__all__ = ["with_truth"]


def with_truth(turns: Sequence[Turn], spoken: Sequence[Spoken], events: Iterable[Event]) -> list[Turn]:
    """The turns, each with the agent's own log of the utterance that the agent heard begin in it.

    Where the agent took one utterance for several, its first reply that is not over before the caller's words are (by
    the design's rule: under 400 ms, a backchannel) is the one that the turn is about.
    """
    heard: dict[int, list[Mapping[str, Any]]] = {}
    stop_ns: dict[int, int] = {s.index: s.stop_ns for s in spoken}
    for event in events:
        heard_ns = event.fields.get("heard_start_ns")
        before = [] if heard_ns is None else [s.index for s in spoken if s.start_ns <= heard_ns]
        if before and event.fields.get("kind") != "backchannel":
            heard.setdefault(before[-1], []).append(event.fields)
    return [
        replace(turn, truth=_truth(_replied(heard[turn.index], stop_ns[turn.index]), stop_ns[turn.index]))
        if turn.index in heard
        else turn
        for turn in turns
    ]


def _replied(heard: Sequence[Mapping[str, Any]], stop_ns: int) -> Mapping[str, Any]:
    """Of what the agent logged for one turn, what the turn is about."""
    for fields in heard:
        left_ns, last_ns = fields.get("left_ns"), fields.get("last_audible_left_ns")
        if left_ns is None or last_ns is None:
            continue
        if int(last_ns) - int(left_ns) >= BACKCHANNEL_MS * NS_PER_MS or int(last_ns) >= stop_ns:
            return fields
    return heard[0]


def _truth(fields: Mapping[str, Any], stop_ns: int) -> dict[str, Any]:
    truth: dict[str, Any] = {"kind": _word(fields.get("kind")), "received_ms": None, "leading_silence_ms": None}
    if fields.get("left_ns") is not None:
        truth["received_ms"] = ns_to_ms(int(fields["left_ns"]) - stop_ns)
        truth["leading_silence_ms"] = _finite(fields.get("leading_silence_ms"))
        last_ns = fields.get("last_audible_left_ns")
        truth["last_audible_ms"] = None if last_ns is None else ns_to_ms(int(last_ns) - stop_ns)
        truth["sequence_number"] = _whole(fields.get("sequence_number"))
        truth["rtp_timestamp"] = _whole(fields.get("rtp_timestamp"))
    if fields.get("unimpaired_ns") is not None:
        truth["unimpaired_ms"] = ns_to_ms(int(fields["unimpaired_ns"]) - stop_ns)
    return truth


def _word(value: Any) -> str | None:
    return None if value is None else str(value)


def _whole(value: Any) -> int | None:
    number = None if value is None else int(value)
    if number is not None and not 0 <= number < 1 << 32:
        raise ValueError("a truth whose packet cannot be")
    return number


def _finite(value: Any) -> float | None:
    number = None if value is None else float(value)
    if number is not None and not math.isfinite(number):
        raise ValueError("a truth that is not a finite number")
    return number
