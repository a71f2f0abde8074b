"""The demo agent's own log of what it sent, beside the turns that were measured: what the probe's error is judged by.

An entry belongs to the turn in which the agent heard the caller begin, not to the turn that the probe credits.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from analysis.bundle import Event
from analysis.result import Turn
from analysis.turns import Spoken
from analysis.units import ns_to_ms

__all__ = ["with_truth"]


def with_truth(turns: Sequence[Turn], spoken: Sequence[Spoken], events: Iterable[Event]) -> list[Turn]:
    """The turns, each with the agent's own log of the utterance that the agent heard begin in it."""
    found: dict[int, Mapping[str, Any]] = {}
    stop_ns: dict[int, int] = {s.index: s.stop_ns for s in spoken}
    for event in events:
        heard_ns = event.fields.get("heard_start_ns")
        if heard_ns is None:
            continue
        before = [s.index for s in spoken if s.start_ns <= heard_ns]
        if before and event.fields.get("kind") != "backchannel":
            found.setdefault(before[-1], event.fields)
    return [
        replace(turn, truth=_truth(found[turn.index], stop_ns[turn.index])) if turn.index in found else turn
        for turn in turns
    ]


def _truth(fields: Mapping[str, Any], stop_ns: int) -> dict[str, Any]:
    truth: dict[str, Any] = {"kind": fields.get("kind"), "received_ms": None, "leading_silence_ms": None}
    if fields.get("left_ns") is not None:
        truth["received_ms"] = ns_to_ms(int(fields["left_ns"]) - stop_ns)
        truth["leading_silence_ms"] = fields.get("leading_silence_ms")
        last_ns = fields.get("last_audible_left_ns")
        truth["last_audible_ms"] = None if last_ns is None else ns_to_ms(int(last_ns) - stop_ns)
        truth["sequence_number"] = fields.get("sequence_number")
        truth["rtp_timestamp"] = fields.get("rtp_timestamp")
    if fields.get("unimpaired_ns") is not None:
        truth["unimpaired_ms"] = ns_to_ms(int(fields["unimpaired_ns"]) - stop_ns)
    return truth
