"""The agent's log beside the turns: by whose words it answered, and what of several replies the turn is about."""

from __future__ import annotations

from typing import Any

from analysis.bundle import Event
from analysis.result import Turn
from analysis.truth import with_truth
from analysis.turns import Spoken
from analysis.units import ms_to_ns


def spoken(index: int, start_ms: float, stop_ms: float) -> Spoken:
    return Spoken(index, ms_to_ns(start_ms), ms_to_ns(stop_ms), ms_to_ns(stop_ms + 15), ms_to_ns(5000), False)


def logged(kind: str, heard_ms: float, left_ms: float | None = None, last_ms: float | None = None) -> Event:
    fields: dict[str, Any] = {"kind": kind, "heard_start_ns": ms_to_ns(heard_ms), "leading_silence_ms": 40.0}
    if left_ms is not None and last_ms is not None:
        fields |= {"left_ns": ms_to_ns(left_ms), "last_audible_left_ns": ms_to_ns(last_ms)}
    return Event(0, "agent_truth", fields)


def truths(*events: Event) -> list[Any]:
    said = [spoken(0, 1000, 3000), spoken(1, 8000, 9000)]
    turns = [Turn(call=0, index=i, outcome="no_reply") for i in range(2)]
    return [turn.truth for turn in with_truth(turns, said, events)]


def test_a_reply_belongs_to_the_turn_in_which_the_agent_heard_the_caller_begin() -> None:
    first, second = truths(logged("reply", 1020, 3700, 6000), logged("reply", 8020, 9700, 11_000))
    assert first["received_ms"] == 700
    assert second["received_ms"] == 700
    late, none = truths(logged("reply", 1020, 8500, 9000))
    assert late["received_ms"] == 5500
    assert none is None


def test_an_utterance_taken_for_two_is_about_the_reply_that_outlasts_it() -> None:
    # cut in during a pause of the caller, and fell silent after 200 ms; then the answer
    turn, _ = truths(logged("reply", 1020, 1800, 2000), logged("reply", 2100, 4100, 6000))
    assert turn["received_ms"] == 1100
    # cut in and went on: that is what the turn is about
    turn, _ = truths(logged("reply", 1020, 1800, 2300), logged("reply", 2100, 4100, 6000))
    assert turn["received_ms"] == -1200


def test_no_reply_and_greeting_and_backchannel() -> None:
    turn, _ = truths(
        Event(0, "agent_truth", {"kind": "greeting", "heard_start_ns": None, "left_ns": 5, "last_audible_left_ns": 6}),
        logged("backchannel", 1020, 1500, 1700),
        logged("no_reply", 1020),
    )
    assert turn["kind"] == "no_reply"
    assert turn["received_ms"] is None
