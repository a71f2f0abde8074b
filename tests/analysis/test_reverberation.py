"""Shipped utterances dry and in rooms: told apart by how fast their level falls, and the voice's end found in both."""

from __future__ import annotations

import pytest

from analysis.audibility import LevelTrack
from analysis.reverberation import WITHIN_MS, direct_end, in_room, steepest_fall_db
from analysis.stretches import Stretch, find_stretches
from probe.utterances import shipped_names
from tests.analysis import placed as at

NAMES = shipped_names()[::7]
RATE_HZ = 16000


def track_of(name: str, rt60_s: float | None, noise_dbov: float = -80) -> tuple[LevelTrack, list[Stretch], float]:
    """The level, its stretches, and when the direct sound ends (seconds)."""
    dry = at.spoken(name, RATE_HZ)
    wet = None if rt60_s is None else at.in_room(dry, RATE_HZ, rt60_s, 1)
    there = at.placed(dry, RATE_HZ, noise_dbov=noise_dbov, reverberant=wet)
    track = LevelTrack(there.recording, RATE_HZ)
    known = at.reference(name)
    return track, find_stretches(track), there.at_s + known.end_sample / at.SOUND_RATE_HZ


@pytest.mark.parametrize("name", NAMES)
class TestUtterances:
    @pytest.mark.parametrize("noise_dbov", [-80, -55])
    def test_dry(self, name: str, noise_dbov: float) -> None:
        track, stretches, _ = track_of(name, None, noise_dbov)
        assert not in_room(track, stretches)

    @pytest.mark.parametrize("rt60_s", [0.25, 0.4, 0.7])
    def test_in_a_room(self, name: str, rt60_s: float) -> None:
        track, stretches, end_s = track_of(name, rt60_s)
        assert in_room(track, stretches)
        found_s = direct_end(track, stretches[-1].first, stretches[-1].last) / RATE_HZ
        assert found_s == pytest.approx(end_s, abs=WITHIN_MS / 1000)


@pytest.mark.parametrize(("gain_db", "noise_dbov"), [(-25.0, -110.0), (0.0, -40.0), (0.0, -35.0)])
def test_soft_or_noisy_recordings_are_no_rooms(gain_db: float, noise_dbov: float) -> None:
    told = []
    for name in shipped_names()[::3]:
        x = at.spoken(name, RATE_HZ) * 10 ** (gain_db / 20)
        track = LevelTrack(at.placed(x, RATE_HZ, noise_dbov=noise_dbov).recording, RATE_HZ)
        told += [name] if in_room(track, find_stretches(track)) else []
    assert told == []


def test_too_little_over_the_noise_says_nothing() -> None:
    track, stretches, _ = track_of(NAMES[0], 0.5, noise_dbov=-38)
    ends = [
        (s.first, s.last, s.end.threshold_dbov) for s in stretches if s.speech_first is not None and s.end is not None
    ]
    assert ends
    assert [steepest_fall_db(track, *end) for end in ends] == [None] * len(ends)
    assert not in_room(track, stretches)
    assert not in_room(track, [])
