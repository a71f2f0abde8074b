"""Seed, call, purpose and index into a random number: each draw stands alone, whatever else was drawn before it.

Source: numpy's SeedSequence (entropy and spawn key) and Philox, whose raw bits are the same in every numpy version.
"""

from __future__ import annotations

from enum import IntEnum
from functools import lru_cache
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

__all__ = ["Draws", "Purpose"]

BLOCK = 128  # draws made at once
_UNIT_NORMAL = NormalDist()


class Purpose(IntEnum):
    """What a draw is for. The numbers are part of what a seed means: add, never renumber."""

    THINK = 1
    LEADING_SILENCE = 2
    FILLER = 3
    FILLER_GAP = 4
    NO_REPLY = 5
    CUT_IN = 6
    BACKCHANNEL = 7
    BACKCHANNEL_AFTER = 8
    CLIP = 9
    COMFORT_NOISE = 10
    SSRC = 20
    SEQUENCE = 21
    TIMESTAMP = 22
    LOSS = 30
    BURST = 31
    BURST_LENGTH = 32
    GILBERT_ELLIOTT = 33
    DUPLICATE = 34
    DELAY_UNIFORM = 35
    DELAY_NORMAL = 36
    DELAY_SPIKE = 37
    DELAY_SPIKE_AT = 38


@lru_cache(maxsize=2048)
def _block(seed: int, call: int, purpose: int, number: int) -> tuple[float, ...]:
    key = np.random.SeedSequence(entropy=seed, spawn_key=(call, purpose, number))
    raw = np.random.Philox(key).random_raw(BLOCK)
    return tuple(((raw >> np.uint64(11)) * 2.0**-53).tolist())


class Draws:
    """The draws of one call.

    Parameters
    ----------
    seed, call : int
        Not negative.
    """

    def __init__(self, seed: int, call: int) -> None:
        self._seed = seed
        self._call = call

    def unit(self, purpose: Purpose, index: int) -> float:
        """A number in [0, 1)."""
        number, at = divmod(index, BLOCK)
        return _block(self._seed, self._call, int(purpose), number)[at]

    def happens(self, purpose: Purpose, index: int, probability: float) -> bool:
        """True with this probability."""
        return probability > 0 and self.unit(purpose, index) < probability

    def between(self, purpose: Purpose, index: int, low: float, high: float) -> float:
        """A number in [low, high)."""
        return low + (high - low) * self.unit(purpose, index)

    def whole(self, purpose: Purpose, index: int, low: int, high: int) -> int:
        """An integer in [low, high], both included."""
        return low + int((high - low + 1) * self.unit(purpose, index))

    def normal(self, purpose: Purpose, index: int, mean: float, sd: float) -> float:
        """A normally distributed number."""
        # half a step inside the open interval on which the quantile function is defined
        return mean + sd * _UNIT_NORMAL.inv_cdf(self.unit(purpose, index) + 2.0**-54)

    def noise(self, purpose: Purpose, index: int, samples: int) -> NDArray[np.float32]:
        """White Gaussian noise of RMS 1.0, shape (samples,)."""
        key = np.random.SeedSequence(entropy=self._seed, spawn_key=(self._call, int(purpose), index))
        return np.random.Generator(np.random.Philox(key)).standard_normal(samples, dtype=np.float32)
