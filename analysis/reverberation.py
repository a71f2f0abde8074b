"""A level track and its stretches of speech in, whether they come from a room, and when the voice itself ended, out.

A room lets no level fall fast: within 20 ms a voice in a dry recording falls by 28 dB and more somewhere in every
utterance, in rooms of RT60 0.2 s and more by at most 22 dB. What is audible after the voice is the room's then, and the
rule run backwards finds the end of the reverberation. The voice ended about where its level was last near its own.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from analysis.audibility import LevelTrack
from analysis.stretches import Stretch

__all__ = ["ROOM_FALL_DB", "WITHIN_MS", "direct_end", "in_room", "steepest_fall_db"]

FALL_MS = 20
RANGE_DB = 18.0  # over θ: from less, the floor is reached at once
ROOM_FALL_DB = 25.0
LOUD_OVER_DB = 25.0  # the loudest tenth over θ: of softer speech only vowels are left, and no fall among them is steep
LEAST_HOPS = 100  # that are loud enough, for the steepest fall to say something
SMOOTH_MS = 20
LOUD_PERCENTILE, NEAR_DB = 90.0, 10.0
# Of generated rooms (RT60 0.2 to 0.7 s): from there to the end of the direct sound, 95 % of ends
AFTER_MS, WITHIN_MS = 10, 120.0
LEAST_POWER = 1e-12


def steepest_fall_db(track: LevelTrack, first: int, last: int, threshold_dbov: float) -> float | None:
    """By how much the level of speech from `first` to `last` falls in 20 ms at most.

    None where too little of it stands far enough over θ.
    """
    levels = _levels_db(track, first, last)
    if len(levels) <= FALL_MS:
        return None
    here, later = levels[:-FALL_MS], levels[FALL_MS:]
    if float(np.percentile(levels, LOUD_PERCENTILE)) < threshold_dbov + LOUD_OVER_DB:
        return None
    loud = here >= threshold_dbov + RANGE_DB
    return float((here - later)[loud].max()) if int(loud.sum()) >= LEAST_HOPS else None


def in_room(track: LevelTrack, stretches: Sequence[Stretch]) -> bool:
    """Whether the level of most stretches of speech (of one channel) falls as slowly as in a room."""
    falls = []
    for stretch in stretches:
        boundary = stretch.end or stretch.start
        if stretch.speech_first is not None and boundary is not None:
            fall = steepest_fall_db(track, stretch.first, stretch.last, boundary.threshold_dbov)
            falls += [] if fall is None else [fall]
    return bool(falls) and float(np.median(falls)) < ROOM_FALL_DB


def direct_end(track: LevelTrack, first: int, last: int) -> int:
    """The sample about which a voice that is audible from `first` to `last` ended, without the room: ± 120 ms."""
    power = 10 ** (_levels_db(track, first, last) / 10)
    power = np.convolve(power, np.ones(SMOOTH_MS) / SMOOTH_MS, mode="same")
    near = np.flatnonzero(power >= float(np.percentile(power, LOUD_PERCENTILE)) * 10 ** (-NEAR_DB / 10))
    return min(track.sample_of_hop(track.hop_of_sample(first) + int(near[-1]) + AFTER_MS), last)


def _levels_db(track: LevelTrack, first: int, last: int) -> NDArray[np.float64]:
    hops = slice(track.hop_of_sample(first), track.hop_of_sample(last) + 1)
    power = np.maximum(track.mean_square[hops], LEAST_POWER)
    return np.asarray(10 * np.log10(power))
