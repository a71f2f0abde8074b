"""Lag tracks over planted steps, drift, rooms and codecs, and over what is not the reference."""

from __future__ import annotations

import numpy as np
import pytest

from analysis.lags import LagTrack, track_lags, track_widening
from tests.analysis.placed import coded, drifted, in_room, placed, reference, spoken, stepped

NAME = "en/2"


def tracked(x: np.ndarray, rate_hz: int, *, noise_dbov: float = -80.0, reach_s: float = 0.03) -> tuple[LagTrack, float]:
    """The track, and the lag (ms) at the reference's end, less where it was put."""
    there = placed(x, rate_hz, noise_dbov=noise_dbov)
    pattern = reference(NAME).pattern(rate_hz)
    track = track_widening(pattern, there.recording, lag=there.at_s * rate_hz, reach=round(reach_s * rate_hz))
    lag = track.lag_at(pattern.last)
    assert lag is not None
    return track, (lag - there.at_s * rate_hz) * 1000 / rate_hz


@pytest.mark.parametrize("rate_hz", [8000, 16000])
class TestTrack:
    def test_an_utterance_as_it_is(self, rate_hz: int) -> None:
        track, end_ms = tracked(spoken(NAME, rate_hz), rate_hz)
        assert end_ms == pytest.approx(0, abs=0.001)
        assert track.coverage == 1.0
        assert track.steps == ()
        assert track.drift is not None
        assert abs(track.drift.ppm) < 0.5

    def test_turned_polarity_and_gain(self, rate_hz: int) -> None:
        track, _ = tracked(-0.1 * spoken(NAME, rate_hz), rate_hz, noise_dbov=-90)
        assert track.polarity == -1
        assert track.gain == pytest.approx(-0.1, rel=0.05)

    @pytest.mark.parametrize("ppm", [-200, 50, 200])
    def test_drift_is_a_slope_and_no_step(self, rate_hz: int, ppm: float) -> None:
        track, end_ms = tracked(drifted(spoken(NAME, rate_hz), ppm), rate_hz)
        assert track.steps == ()
        assert track.drift is not None
        assert track.drift.low <= ppm <= track.drift.high
        assert track.drift.ppm == pytest.approx(ppm, abs=6)
        seconds = reference(NAME).end_sample / 48000
        assert end_ms == pytest.approx(ppm * 1e-3 * seconds, abs=0.01)

    def test_steps_are_found_where_they_are(self, rate_hz: int) -> None:
        planted = [(0.5, 7.0), (1.2, -5.0), (2.1, 8.0)]
        track, end_ms = tracked(stepped(spoken(NAME, rate_hz), rate_hz, planted), rate_hz)
        assert [round(s.size * 1000 / rate_hz, 1) for s in track.steps] == [7.0, -5.0, 8.0]
        for step, (at_s, _) in zip(track.steps, planted, strict=True):
            assert step.at / rate_hz == pytest.approx(at_s, abs=0.06)  # a block, and the splice
        assert end_ms == pytest.approx(10.0, abs=0.02)

    def test_five_percent_longer(self, rate_hz: int) -> None:
        planted = [(at, 10.0) for at in np.arange(0.2, 2.2, 0.2)]
        track, end_ms = tracked(stepped(spoken(NAME, rate_hz), rate_hz, planted), rate_hz)
        assert end_ms == pytest.approx(100.0, abs=0.05)
        assert track.coverage > 0.9
        assert sum(step.size for step in track.steps) * 1000 / rate_hz == pytest.approx(100.0, abs=0.1)
        assert all(step.size > 0 for step in track.steps)

    def test_a_room_moves_nothing(self, rate_hz: int) -> None:
        track, end_ms = tracked(in_room(spoken(NAME, rate_hz), rate_hz, 0.5, 4), rate_hz)
        assert end_ms == pytest.approx(0, abs=0.05)
        assert track.steps == ()

    def test_opus_is_late_by_its_look_ahead(self, rate_hz: int) -> None:
        track, end_ms = tracked(coded(spoken(NAME, 48000), 48000, "opus", 24000)[:: 48000 // rate_hz], rate_hz)
        assert end_ms == pytest.approx(6.46, abs=0.1)
        assert track.steps == ()

    @pytest.mark.parametrize("other", ["en/1", "en/3", "de/2"])
    def test_another_utterance_does_not_match(self, rate_hz: int, other: str) -> None:
        there = placed(spoken(other, rate_hz), rate_hz)
        pattern = reference(NAME).pattern(rate_hz)
        track = track_lags(pattern, there.recording, lag=there.at_s * rate_hz, reach=rate_hz // 20)
        assert track.coverage < 0.2
        assert track.mean_score < 8


def test_noise_as_loud_as_the_words() -> None:
    x = spoken(NAME, 8000)
    level = 10 * np.log10(np.mean(np.square(x)))
    track, end_ms = tracked(x, 8000, noise_dbov=float(level))
    assert end_ms == pytest.approx(0, abs=0.05)
    assert track.steps == ()
    assert track.sigma_at(reference(NAME).pattern(8000).last) / 8 < 0.05


def test_nothing_recognised_has_no_lag() -> None:
    pattern = reference(NAME).pattern(8000)
    track = track_lags(pattern, np.zeros(40000, np.float32), lag=8000, reach=100)
    assert track.coverage == 0
    assert track.lag_at(pattern.last) is None
    assert track.drift is None
