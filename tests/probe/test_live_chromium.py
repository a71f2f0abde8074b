"""The `chrome` policy on packets that a Chromium plays at this very moment: its getStats() is the right value."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from analysis.neteq import run_neteq_phases
from benchmarks.chrome_compare import read_pair
from benchmarks.chrome_reference import LIMITS, play

CONDITIONS = ["clean", "loss2"]
SECONDS = 10.0
TICK_MS = 10.0


@pytest.fixture(scope="module")
def pairs(need: Callable[[str, str], str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Both calls, made at once; the folder of what came of them."""
    need("chromium", "chromium")
    pytest.importorskip("playwright", reason="playwright is absent: pip install playwright")
    folder = tmp_path_factory.mktemp("chromium")
    asyncio.run(play(CONDITIONS, runs=1, seconds=SECONDS, seed=1, folder=folder))
    return folder


@pytest.mark.parametrize("condition", CONDITIONS)
def test_the_model_agrees_with_the_browser(pairs: Path, condition: str) -> None:
    pair = read_pair(pairs, f"{condition}-0")
    trace = pair.streams[0].trace
    assert 0.95 * SECONDS * 50 <= len(trace.sequence) <= SECONDS * 50
    runs = run_neteq_phases(trace)
    theirs = pair.browser_row()
    # the browser's tick grid is one of many, so some run of the model must be near it, on each figure at once
    near = []
    for run in runs:
        ours = pair.model_row([run])
        near.append(
            {
                name: abs(getattr(ours, name) - getattr(theirs, name)) <= limit.of(getattr(theirs, name))
                for name, limit in LIMITS.items()
            }
        )
    assert any(all(figures.values()) for figures in near), (theirs, near)
    differences = pair.window_differences([runs[0]])
    # one packet that just misses a tick moves a window by a tick
    assert float(sorted(differences)[len(differences) // 2]) <= TICK_MS
