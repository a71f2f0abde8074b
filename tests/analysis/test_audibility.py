"""The audibility rule on signals whose edges are known to the sample."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from analysis.audibility import (
    LevelTrack,
    audible_runs,
    first_audible,
    floor_before,
    last_audible,
    threshold_shifts_ms,
)
from analysis.units import dbov, from_dbov

RATES_HZ = (8000, 11025, 16000, 22050, 44100, 48000)
FULL_RATE_HZ = 48000


def burst(samples: int, seed: int = 0, amplitude: float = 0.1) -> NDArray[np.float64]:
    """A sound whose every sample has the same magnitude, so that its edges are where it begins and ends."""
    return np.random.default_rng(seed).choice([-amplitude, amplitude], samples)


def noise(samples: int, level_dbov: float, seed: int = 0) -> NDArray[np.float64]:
    return np.random.default_rng(seed).standard_normal(samples) * from_dbov(level_dbov)


def speech(samples: int, rate_hz: int = FULL_RATE_HZ, seed: int = 0) -> NDArray[np.float64]:
    """Noise in syllables: 4 Hz, down to silence in between."""
    envelope = np.abs(np.sin(2 * np.pi * 2.0 * np.arange(samples) / rate_hz))
    return 0.1 * envelope * np.random.default_rng(seed).standard_normal(samples)


class TestEdges:
    @pytest.mark.parametrize("rate_hz", RATES_HZ)
    @pytest.mark.parametrize("offset", [0, 1, 7, 43, 101])
    def test_a_hard_cut_is_found_to_the_sample(self, rate_hz: int, offset: int) -> None:
        onset, stop = rate_hz // 2 + offset, rate_hz + 3 * offset
        x = np.zeros(2 * rate_hz)
        x[onset:stop] = burst(stop - onset)
        begin, end = first_audible(LevelTrack(x, rate_hz)), last_audible(x, rate_hz)
        assert begin is not None
        assert end is not None
        assert (begin.sample, end.sample) == (onset, stop - 1)

    @pytest.mark.parametrize("rate_hz", RATES_HZ)
    def test_a_run_has_both_edges(self, rate_hz: int) -> None:
        onset, stop = rate_hz // 3 + 17, rate_hz + 5
        x = np.zeros(2 * rate_hz)
        x[onset:stop] = burst(stop - onset)
        (run,) = audible_runs(LevelTrack(x, rate_hz))
        assert (run.start, run.end) == (onset, stop - 1)

    def test_sound_from_the_first_sample_to_the_last(self) -> None:
        x = burst(4800)
        begin, end = first_audible(LevelTrack(x, FULL_RATE_HZ)), last_audible(x, FULL_RATE_HZ)
        assert begin is not None
        assert end is not None
        assert (begin.sample, end.sample) == (0, 4799)

    def test_where_no_sample_reaches_theta_the_boundary_is_the_windows_last(self) -> None:
        # θ is 1e-3; RMS of the window reaches it, and so does none of its samples but by rounding
        x = np.zeros(48000)
        x[24000:] = 1e-3 * (1 - 1e-9)
        track = LevelTrack(x, FULL_RATE_HZ)
        assert first_audible(track) is None
        found = first_audible(track, threshold_dbov=dbov(0.99e-3))
        assert found is not None
        assert found.sample == 24000
        # a window of two amplitudes, RMS above the threshold by the louder ones alone
        assert track.boundary(track.hop_of_sample(24000), -59.0) == 24000 + 239

    @pytest.mark.parametrize(
        ("length_ms", "amplitude", "audible"),
        [
            (15.0, 0.5, False),
            (18.0, 0.5, False),  # 5 ms windows reach it in 22 or 23 places
            (20.0, 0.0012, False),  # a window must lie in it nearly whole: 17 places
            (24.0, 0.0012, False),
            (30.0, 0.0012, True),
            (30.0, 0.5, True),
        ],
    )
    def test_a_click_is_not_audible_and_a_burst_is(self, length_ms: float, amplitude: float, audible: bool) -> None:
        for rate_hz in RATES_HZ:
            for offset in (0, rate_hz // 3000, rate_hz // 1500):
                x = np.zeros(rate_hz)
                begin = rate_hz // 2 + offset
                length = round(length_ms * rate_hz / 1000)
                x[begin : begin + length] = burst(length, amplitude=amplitude)
                found = first_audible(LevelTrack(x, rate_hz))
                assert (found is not None) is audible
                assert (last_audible(x, rate_hz) is not None) is audible

    @pytest.mark.parametrize(("gap_ms", "found_before"), [(9, True), (10, True), (11, False), (15, False)])
    def test_6_of_30_windows_may_be_silent(self, gap_ms: int, found_before: bool) -> None:
        # a gap of g ms that begins on the grid of hops leaves g − 4 windows of 5 ms without a sample of sound
        x = np.zeros(48_000)
        x[24_000:] = burst(24_000)
        x[24_480 : 24_480 + 48 * gap_ms] = 0
        found = first_audible(LevelTrack(x, FULL_RATE_HZ))
        assert found is not None
        assert found.sample == (24_000 if found_before else 24_480 + 48 * gap_ms)

    def test_a_click_before_the_sound_is_passed_over(self) -> None:
        x = np.zeros(48000)
        x[12000:12480] = burst(480)  # 10 ms
        x[24000:40000] = burst(16000)
        found = first_audible(LevelTrack(x, FULL_RATE_HZ))
        assert found is not None
        assert found.sample == 24000

    @pytest.mark.parametrize("samples", [0, 1, 2, 239, 240, 959])
    def test_short_inputs(self, samples: int) -> None:
        for x in (np.zeros(samples), np.full(samples, 0.5)):
            track = LevelTrack(x, FULL_RATE_HZ)
            assert first_audible(track) is None
            assert last_audible(x, FULL_RATE_HZ) is None
            assert list(audible_runs(track)) == []

    def test_silence_is_not_audible(self) -> None:
        x = np.zeros(3 * FULL_RATE_HZ)
        assert first_audible(LevelTrack(x, FULL_RATE_HZ)) is None
        assert last_audible(x, FULL_RATE_HZ) is None
        assert list(audible_runs(LevelTrack(x, FULL_RATE_HZ))) == []

    def test_dc_is_audible_where_it_sets_in_and_then_a_floor(self) -> None:
        x = np.zeros(6 * FULL_RATE_HZ)
        x[FULL_RATE_HZ:] = 0.25
        (run,) = audible_runs(LevelTrack(x, FULL_RATE_HZ))
        assert run.start == FULL_RATE_HZ
        assert run.end < 3 * FULL_RATE_HZ  # by then all of the 2 s before is as loud

    def test_the_input_is_not_changed(self) -> None:
        x = burst(4800)
        before = x.copy()
        present = np.ones(4800, dtype=bool)
        present[100:200] = False
        list(audible_runs(LevelTrack(x, FULL_RATE_HZ, present=present)))
        last_audible(x, FULL_RATE_HZ)
        assert np.array_equal(x, before)

    def test_float32_and_float64_agree(self) -> None:
        x = noise(3 * FULL_RATE_HZ, -65.0)
        x[100_003:120_000] += burst(19_997)
        wide = list(audible_runs(LevelTrack(x, FULL_RATE_HZ)))
        narrow = list(audible_runs(LevelTrack(x.astype(np.float32), FULL_RATE_HZ)))
        assert [(r.start, r.end) for r in wide] == [(r.start, r.end) for r in narrow]

    @pytest.mark.parametrize(("shape", "rate_hz"), [((480, 2), 48000), ((480,), 4000)])
    def test_what_cannot_be_used_is_refused(self, shape: tuple[int, ...], rate_hz: int) -> None:
        with pytest.raises(ValueError, match=r"one-dimensional|rate_hz"):
            LevelTrack(np.zeros(shape), rate_hz)


class TestThreshold:
    def test_minus_60_under_200_ms_of_history(self) -> None:
        for history_ms, known in ((0, False), (100, False), (199, False), (200, True), (1000, True)):
            history = FULL_RATE_HZ * history_ms // 1000
            x = np.concatenate((noise(history, -65.0), burst(FULL_RATE_HZ)))
            found = first_audible(LevelTrack(x, FULL_RATE_HZ), start=history)
            assert found is not None
            assert found.sample == history
            assert (found.floor_dbov is not None) is known
            assert (found.threshold_dbov > -60.0) is known

    @pytest.mark.parametrize("rate_hz", RATES_HZ)
    def test_theta_is_the_floor_plus_10_db(self, rate_hz: int) -> None:
        level_dbov = -50.0
        for seed in range(5):
            x = noise(4 * rate_hz, level_dbov, seed)
            onset = 3 * rate_hz
            x[onset:] += burst(len(x) - onset)
            found = first_audible(LevelTrack(x, rate_hz), start=onset)
            assert found is not None
            assert found.floor_dbov is not None
            assert found.threshold_dbov == pytest.approx(found.floor_dbov + 10.0)
            # power of a 20 ms frame of white noise: relative spread √(2/n); its 10th percentile lies 1.28 spreads down,
            # and that of 100 frames is known to 0.17 spreads (√(0.09/100)/φ(−1.28)); 4 of these
            spread = np.sqrt(2 / (0.02 * rate_hz))
            expected = 1 - 1.2816 * spread
            power = 10 ** ((found.floor_dbov - level_dbov) / 10)
            assert power == pytest.approx(expected, abs=4 * 0.171 * spread)

    def test_the_floor_is_the_nearest_rank_10th_percentile_of_20_ms_frames(self) -> None:
        # 100 frames whose levels are a shuffled 1…100: the 10th smallest is 10
        level = np.random.default_rng(3).permutation(np.arange(1, 101)) * 1e-4
        x = np.concatenate((np.repeat(level, 960), burst(9600)))
        found = first_audible(LevelTrack(x, FULL_RATE_HZ), start=96_000)
        assert found is not None
        assert found.floor_dbov == pytest.approx(dbov(10e-4), abs=1e-6)

    @pytest.mark.parametrize(("frames", "rank"), [(10, 1), (11, 2), (20, 2), (21, 3), (99, 10), (100, 10)])
    def test_the_floor_of_less_than_2_s(self, frames: int, rank: int) -> None:
        level = np.random.default_rng(frames).permutation(np.arange(1, frames + 1)) * 1e-4
        x = np.concatenate((np.repeat(level, 960), burst(9600)))
        found = first_audible(LevelTrack(x, FULL_RATE_HZ), start=960 * frames)
        assert found is not None
        assert found.floor_dbov == pytest.approx(dbov(rank * 1e-4), abs=1e-6)

    def test_the_floor_looks_back_2_s_and_no_further(self) -> None:
        quiet, loud = np.full(96_000, 1e-4), np.full(96_000, 2e-3)
        x = np.concatenate((quiet, loud, burst(9600, amplitude=0.5)))
        found = first_audible(LevelTrack(x, FULL_RATE_HZ), start=192_000)
        assert found is not None
        assert found.floor_dbov == pytest.approx(dbov(2e-3), abs=1e-6)

    def test_run_backwards_the_floor_is_that_of_the_2_s_after(self) -> None:
        x = np.concatenate((noise(96_000, -40.0), burst(9600, amplitude=0.5), noise(96_000, -65.0)))
        found = last_audible(x, FULL_RATE_HZ)
        assert found is not None
        assert found.floor_dbov == pytest.approx(-65.0, abs=0.5)
        assert 96_000 + 9600 - 1 <= found.sample < 96_000 + 9600 + 240  # noise peaks may carry it to the window's end
        mirrored = first_audible(LevelTrack(x[::-1], FULL_RATE_HZ))
        assert mirrored is not None
        assert mirrored.sample == len(x) - 1 - found.sample

    def test_sound_below_the_floor_plus_10_db_is_not_audible(self) -> None:
        for above_db, audible in ((8.0, False), (13.0, True)):
            x = noise(4 * FULL_RATE_HZ, -45.0)
            x[144_000:168_000] = noise(24_000, -45.0 + above_db, seed=1)
            track = LevelTrack(x, FULL_RATE_HZ)
            assert (first_audible(track, start=96_000) is not None) is audible

    def test_theta_10_db_lower_comes_earlier_and_higher_later(self) -> None:
        # a rise of 0.2 dB per ms from −80 dBov: 10 dB are 50 ms
        ramp = from_dbov(-80.0) * 10 ** (np.arange(14_400) / 48 * 0.2 / 20) * np.sign(burst(14_400))
        x = np.concatenate((np.zeros(48_000), ramp, burst(9600)))
        track = LevelTrack(x, FULL_RATE_HZ)
        found = first_audible(track)
        assert found is not None
        shifts = threshold_shifts_ms(track, found)
        assert shifts["-10"] == pytest.approx(-50.0, abs=2.5)  # half a window
        assert shifts["+10"] == pytest.approx(50.0, abs=2.5)

    def test_a_hard_cut_does_not_move_with_theta(self) -> None:
        x = np.zeros(96_000)
        x[48_000:72_000] = burst(24_000, amplitude=0.5)
        track = LevelTrack(x, FULL_RATE_HZ)
        found = first_audible(track)
        assert found is not None
        assert threshold_shifts_ms(track, found) == {"-10": 0.0, "+10": 0.0}

    def test_a_boundary_that_vanishes_has_no_shift(self) -> None:
        # 6 dB above θ: 10 dB higher there is nothing, and 10 dB lower there is noise all the way back
        x = noise(192_000, -56.0)
        x[144_000:168_000] = burst(24_000, amplitude=from_dbov(-40.0))
        track = LevelTrack(x, FULL_RATE_HZ)
        found = first_audible(track, start=96_000)
        assert found is not None
        assert threshold_shifts_ms(track, found) == {"-10": None, "+10": None}


class TestLostSamples:
    def test_they_are_never_audible(self) -> None:
        x = burst(48_000)
        present = np.ones(48_000, dtype=bool)
        present[:30_011] = False
        found = first_audible(LevelTrack(x, FULL_RATE_HZ, present=present))
        assert found is not None
        assert found.sample == 30_011
        assert list(audible_runs(LevelTrack(x, FULL_RATE_HZ, present=np.zeros(48_000, dtype=bool)))) == []

    def test_they_are_no_part_of_the_floor(self) -> None:
        x = noise(144_000, -50.0)
        x[96_000:] = burst(48_000)
        present = np.ones(144_000, dtype=bool)
        present[48_000:90_000] = False  # silence here would be the lowest of all frames
        found = first_audible(LevelTrack(x, FULL_RATE_HZ, present=present), start=96_000)
        assert found is not None
        assert found.floor_dbov == pytest.approx(-50.3, abs=0.5)

    def test_under_200_ms_that_is_left_says_nothing(self) -> None:
        x = noise(144_000, -50.0)
        x[96_000:] = burst(48_000)
        present = np.ones(144_000, dtype=bool)
        present[: 96_000 - 9 * 960] = False
        found = first_audible(LevelTrack(x, FULL_RATE_HZ, present=present), start=96_000)
        assert found is not None
        assert found.floor_dbov is None
        assert found.threshold_dbov == -60.0

    def test_a_frame_that_is_lost_in_part_is_left_out(self) -> None:
        x = np.concatenate((np.repeat(np.arange(1, 101) * 1e-4, 960), burst(9600)))
        present = np.ones(len(x), dtype=bool)
        present[[5, 960 + 959, 2 * 960]] = False  # one sample of each of the three quietest frames
        found = first_audible(LevelTrack(x, FULL_RATE_HZ, present=present), start=96_000)
        assert found is not None
        assert found.floor_dbov == pytest.approx(dbov(13e-4), abs=1e-6)  # rank ⌈9.7⌉ of what is left


class TestRuns:
    @pytest.mark.parametrize(("gap_ms", "runs"), [(190, 1), (215, 2)])
    def test_a_pause_of_200_ms_ends_a_run(self, gap_ms: int, runs: int) -> None:
        gap = 48 * gap_ms
        x = np.concatenate((np.zeros(48_000), burst(24_000), np.zeros(gap), burst(24_000), np.zeros(48_000)))
        found = list(audible_runs(LevelTrack(x, FULL_RATE_HZ)))
        assert len(found) == runs
        assert found[0].start == 48_000
        assert found[-1].end == 48_000 + 48_000 + gap - 1

    @pytest.mark.parametrize("level_dbov", [-55.0, -50.0, -30.0])
    def test_comfort_noise_that_sets_in_is_a_new_floor(self, level_dbov: float) -> None:
        # the floor frame that lies half in the silence must not pass for a floor, or the noise goes on for ever
        for offset in range(0, 960, 192):
            onset = 4 * FULL_RATE_HZ + offset
            x = np.zeros(14 * FULL_RATE_HZ)
            x[onset:] = noise(len(x) - onset, level_dbov)
            x[9 * FULL_RATE_HZ : 10 * FULL_RATE_HZ] = burst(FULL_RATE_HZ, amplitude=0.5)
            first, spoken = audible_runs(LevelTrack(x, FULL_RATE_HZ))
            assert first.start == pytest.approx(onset, abs=240)
            assert first.end < onset + 2 * FULL_RATE_HZ
            assert spoken.start == pytest.approx(9 * FULL_RATE_HZ, abs=240)
            assert spoken.end == pytest.approx(10 * FULL_RATE_HZ, abs=240)

    def test_noise_from_the_very_start_is_a_floor_after_200_ms(self) -> None:
        x = noise(6 * FULL_RATE_HZ, -45.0)
        x[4 * FULL_RATE_HZ : 5 * FULL_RATE_HZ] = burst(FULL_RATE_HZ)
        first, spoken = audible_runs(LevelTrack(x, FULL_RATE_HZ))
        assert first.start == pytest.approx(0, abs=240)
        assert first.end < 0.25 * FULL_RATE_HZ
        assert spoken.start == pytest.approx(4 * FULL_RATE_HZ, abs=240)

    def test_a_steady_tone_above_a_known_floor_is_one_run(self) -> None:
        x = noise(12 * FULL_RATE_HZ, -65.0)
        begin, stop = 3 * FULL_RATE_HZ, 9 * FULL_RATE_HZ
        x[begin:stop] += 0.1 * np.sin(2 * np.pi * 440 * np.arange(stop - begin) / FULL_RATE_HZ)
        (run,) = (r for r in audible_runs(LevelTrack(x, FULL_RATE_HZ)) if r.end > FULL_RATE_HZ)
        assert run.start == pytest.approx(begin, abs=240)
        assert run.end == pytest.approx(stop, abs=240)

    @pytest.mark.parametrize("rate_hz", [8000, 48000])
    def test_speech_out_of_digital_silence_is_one_run_to_its_end(self, rate_hz: int) -> None:
        x = np.zeros(10 * rate_hz)
        begin, stop = 2 * rate_hz, 8 * rate_hz
        x[begin:stop] = speech(stop - begin, rate_hz)
        (run,) = audible_runs(LevelTrack(x, rate_hz))
        assert run.start == pytest.approx(begin, abs=rate_hz // 100)  # it fades in
        assert run.end == pytest.approx(stop, abs=rate_hz // 100)

    def test_runs_are_in_order_and_apart(self) -> None:
        rng = np.random.default_rng(5)
        x = noise(30 * FULL_RATE_HZ, -60.0)
        for begin in range(2 * FULL_RATE_HZ, 28 * FULL_RATE_HZ, FULL_RATE_HZ):
            length = int(rng.integers(1_000, 40_000))
            x[begin : begin + length] += burst(length, amplitude=float(rng.uniform(0.005, 0.5)))
        found = list(audible_runs(LevelTrack(x, FULL_RATE_HZ)))
        assert len(found) > 10
        for run, after in pairwise(found):
            assert run.start <= run.end
            assert after.start - run.end > 200 * 48

    def test_the_first_run_begins_where_first_audible_says(self) -> None:
        x = noise(4 * FULL_RATE_HZ, -70.0)
        x[100_000:110_000] += burst(10_000)
        track = LevelTrack(x, FULL_RATE_HZ)
        found = first_audible(track)
        assert found is not None
        assert next(audible_runs(track)).start == found.sample


BACKGROUND = noise(5 * FULL_RATE_HZ, -62.0, seed=9)


@settings(max_examples=40, deadline=None)
@given(hops=st.integers(0, 900), onset=st.integers(150_000, 180_000), length=st.integers(1_440, 20_000))
def test_shifting_the_signal_by_whole_hops_shifts_the_boundary_equally(hops: int, onset: int, length: int) -> None:
    x = BACKGROUND.copy()
    x[onset : onset + length] += burst(length)
    whole = first_audible(LevelTrack(x, FULL_RATE_HZ), start=96_000)
    shift = hops * 48
    cut = first_audible(LevelTrack(x[shift:], FULL_RATE_HZ), start=max(0, 96_000 - shift))
    assert whole is not None
    assert cut is not None
    assert cut.sample == whole.sample - shift
    assert cut.threshold_dbov == pytest.approx(whole.threshold_dbov, abs=1e-6)


@settings(max_examples=60, deadline=None)
@given(
    onset=st.integers(5_000, 100_000),
    later_ms=st.integers(35, 1000),
    length=st.integers(1, 30_000),
    amplitude=st.floats(1e-4, 1.0),
    seed=st.integers(0, 1000),
)
def test_sound_added_later_never_moves_the_first_boundary(
    onset: int, later_ms: int, length: int, amplitude: float, seed: int
) -> None:
    x = noise(4 * FULL_RATE_HZ, -72.0, seed)
    x[onset : onset + 2_000] += burst(2_000, seed)
    before = first_audible(LevelTrack(x, FULL_RATE_HZ))
    assert before is not None
    begin = before.sample + later_ms * 48  # 30 hops and the last one's window are looked at
    x[begin : begin + length] += burst(len(x[begin : begin + length]), seed + 1, amplitude)
    after = first_audible(LevelTrack(x, FULL_RATE_HZ))
    assert after == before


@settings(max_examples=60, deadline=None)
@given(
    rate_hz=st.sampled_from(RATES_HZ),
    seed=st.integers(0, 10_000),
    pieces=st.lists(st.tuples(st.integers(0, 3000), st.sampled_from([0.0, 1e-4, 1e-3, 0.01, 0.5])), max_size=8),
)
def test_boundaries_lie_in_the_signal_and_on_sound(rate_hz: int, seed: int, pieces: list[tuple[int, float]]) -> None:
    x = np.concatenate([np.empty(0), *(burst(n, seed, a) for n, a in pieces)])
    track = LevelTrack(x, rate_hz)
    for run in audible_runs(track):
        assert 0 <= run.start <= run.end < len(x)
        assert x[run.start] != 0
        assert x[run.end] != 0
    end = last_audible(x, rate_hz)
    assert (end is None) == (first_audible(LevelTrack(x[::-1], rate_hz)) is None)
    assert end is None or 0 <= end.sample < len(x)


class TestLongSignals:
    class Read:
        """Samples that are made as they are asked for, and remembers how many at once."""

        ndim = 1

        def __init__(self, x: NDArray[np.float64]) -> None:
            self._x, self.most = x, 0

        @property
        def shape(self) -> tuple[int, ...]:
            return self._x.shape

        def __len__(self) -> int:
            return len(self._x)

        def __getitem__(self, where: slice, /) -> NDArray[np.float64]:
            part = self._x[where]
            self.most = max(self.most, len(part))
            return part

    @pytest.mark.parametrize("rate_hz", RATES_HZ)
    def test_read_in_blocks_it_is_the_same(self, rate_hz: int) -> None:
        x = np.concatenate([np.zeros(rate_hz), speech(3 * rate_hz, rate_hz), noise(45 * rate_hz, -50.0)])
        x[-20 * rate_hz : -18 * rate_hz] += speech(2 * rate_hz, rate_hz, seed=1)
        read = self.Read(x)
        track, whole = LevelTrack(read, rate_hz), LevelTrack(x, rate_hz)
        assert list(audible_runs(track)) == list(audible_runs(whole))
        assert read.most <= 2**18
        assert len(list(audible_runs(track))) == 2

    @pytest.mark.parametrize("samples", [1, 2**18 - 1, 2**18, 2**18 + 1, 2**19])
    def test_lengths_about_a_block(self, samples: int) -> None:
        x = np.full(samples, 0.1)
        track = LevelTrack(x, 8000)
        assert track.hops == 1 + (samples - 1) // 8
        full = track.mean_square[: max(0, track.hops - 5)]
        assert full == pytest.approx(0.01, rel=1e-9)
        assert track.mean_square[track.hops :] == pytest.approx(0.0, abs=0.01)


@pytest.mark.parametrize("rate_hz", [8000, 11025, 44100, 48000])
def test_the_floor_of_one_place_is_that_of_the_track(rate_hz: int) -> None:
    rng = np.random.default_rng(rate_hz)
    x = rng.standard_normal(round(2.7 * rate_hz)) * np.linspace(1e-3, 1e-2, round(2.7 * rate_hz))
    track = LevelTrack(x, rate_hz)
    for sample in (0, 1, rate_hz // 5 - 1, rate_hz // 5 + 7, *rng.integers(0, len(x) - rate_hz // 500, 40).tolist()):
        floor = track.floors(np.array([track.hop_of_sample(sample)]))[0]
        found = floor_before(x, rate_hz, sample)
        assert found is None if math.isnan(floor) else found == pytest.approx(floor, rel=1e-9)
