"""A short run of the accuracy benchmark: what it claims must hold for any seed, not for the one in its table."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.accuracy import CONDITIONS, TURNS_PER_CALL, Tally, _simulated

SEED = 20_261_201
# The simulated network takes 0.15 ms. Where a packet is lost, decoders differ for some milliseconds after it.
CLEAN = {"clean", "leading silence 400 ms", "reply at -35 dBFS", "drift 300 ppm", "never pauses", "duplicates"}


@pytest.mark.parametrize("name", list(CONDITIONS))
def test_every_turn_is_right_and_within_the_claim(name: str) -> None:
    tally: Tally = _simulated((CONDITIONS[name], SEED, 0))
    assert tally.turns == TURNS_PER_CALL
    assert tally.wrong == []
    errors = np.abs(tally.errors_ms)
    assert len(errors) >= TURNS_PER_CALL * 0.6
    assert np.percentile(errors, 50) <= 0.5
    assert np.percentile(errors, 95, method="inverted_cdf") <= 5
    if name in CLEAN:
        assert errors.max() <= 3
        assert max(np.abs(tally.silence_errors_ms), default=0) <= 1
