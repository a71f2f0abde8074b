"""What one setting moves, and what it must not: through the pure agent, clean, without a network."""

from __future__ import annotations

import statistics
from functools import cache

import pytest

from analysis.derive import derive
from analysis.result import Turn
from probe.agent.config import AgentConfig
from probe.agent.simulate import simulate_call

TURNS = 10


@cache
def turns(leading_silence_ms: float, policy: str) -> tuple[Turn, ...]:
    config = AgentConfig(think_ms=(300, 300), leading_silence_ms=(leading_silence_ms, leading_silence_ms))
    record, _ = simulate_call(config, turns=TURNS, utterance_s=0.8)
    made = derive([record], policies=(policy,)).result.turns
    assert [turn.outcome for turn in made] == ["answered"] * TURNS
    return made


def moved(policy: str, stage: str) -> float:
    """By how much the median of a stage (or of the latency) moves with 300 ms more leading silence."""

    def median(silence_ms: float) -> float:
        values = [t.latency_ms if stage == "latency" else t.stages_ms[stage] for t in turns(silence_ms, policy)]
        return statistics.median(v for v in values if v is not None)

    return median(350) - median(50)


def test_leading_silence_moves_itself_and_the_latency_alone() -> None:
    assert moved("fixed:100", "leading_silence") == pytest.approx(300, abs=1)
    assert moved("fixed:100", "latency") == pytest.approx(300, abs=1)
    assert moved("fixed:100", "remote_response") == pytest.approx(0, abs=1)


def test_what_chrome_makes_of_it_lies_in_the_jitter_buffer(capsys: pytest.CaptureFixture[str]) -> None:
    buffer = moved("chrome", "jitter_buffer")
    with capsys.disabled():
        print(f"\nchrome: 300 ms more leading silence moves jitter_buffer by {buffer:+.1f} ms", end=" ")
    assert moved("chrome", "leading_silence") == pytest.approx(300, abs=1)
    assert moved("chrome", "remote_response") == pytest.approx(0, abs=1)
    assert moved("chrome", "latency") == pytest.approx(300 + buffer, abs=1)


def test_a_longer_fixed_buffer_moves_every_turn_by_as_much() -> None:
    for short, long in zip(turns(50, "fixed:100"), turns(50, "fixed:500"), strict=True):
        assert short.latency_ms is not None
        assert long.latency_ms is not None
        assert long.latency_ms - short.latency_ms == pytest.approx(400, abs=1)
        assert long.received_ms == short.received_ms


def test_stages_add_up_to_the_latency() -> None:
    for policy in ("none", "fixed:100", "chrome"):
        for turn in turns(350, policy):
            assert sum(turn.stages_ms.values()) == pytest.approx(turn.latency_ms, abs=1e-5)
            assert ("output" in turn.stages_ms) == (policy != "none")
