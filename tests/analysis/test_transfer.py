"""A caller's end carried over to recordings whose truth is the audibility rule on their own clean part."""

from __future__ import annotations

import numpy as np
import pytest

from analysis.audiofile import resample
from analysis.errors import NotMeasurable
from analysis.references import find_references, make_reference
from analysis.transfer import Boundary, Transfer, last_audible_blind, transfer
from analysis.units import from_dbov
from probe.utterances import shipped, shipped_names
from tests.analysis.placed import Placed, Sound, coded, drifted, in_room, placed, reference, spoken, stepped

NAMES = shipped_names()[::6]  # five languages


def carried(name: str, there: Placed, **options: object) -> Transfer:
    return transfer(reference(name), there.recording, there.rate_hz, at_s=there.at_s + 0.004, **options)  # type: ignore[arg-type]


def errors_ms(found: Transfer, there: Placed) -> tuple[float, float]:
    """Of the start and of the end, against the definition."""
    first, last, _ = there.edges()
    assert found.start is not None
    assert found.end is not None
    scale = 1000 / there.rate_hz
    return (found.start.sample - first) * scale, (found.end.sample - last) * scale


def inside(boundary: Boundary | None, error_ms: float) -> bool:
    return boundary is not None and abs(error_ms) <= boundary.uncertainty_ms


class TestDry:
    @pytest.mark.parametrize("name", NAMES)
    @pytest.mark.parametrize(("rate_hz", "noise_dbov"), [(48000, -85), (16000, -65), (8000, -65)])
    def test_within_two_ms_at_45_db(self, name: str, rate_hz: int, noise_dbov: float) -> None:
        there = placed(spoken(name, rate_hz), rate_hz, noise_dbov=noise_dbov)
        found = carried(name, there)
        start_ms, end_ms = errors_ms(found, there)
        assert abs(end_ms) <= 2
        assert abs(start_ms) <= 2
        assert inside(found.end, end_ms)
        assert found.end is not None
        assert found.end.uncertainty_ms <= 5
        assert found.end.flags == ()

    def test_between_samples_and_without_a_hint_of_where(self) -> None:
        x = spoken("en/2", 16000)
        size = 2 * len(x)
        moved = np.fft.irfft(np.fft.rfft(x, size) * np.exp(-2j * np.pi * np.arange(size // 2 + 1) / size * 0.5), size)
        there = placed(moved[: len(x) + 8], 16000)
        found = transfer(reference("en/2"), there.recording, 16000, at_s=there.at_s + 0.015)
        assert found.lag_s == pytest.approx(there.at_s + 0.5 / 16000, abs=2e-6)

    @pytest.mark.parametrize("name", NAMES)
    def test_soft_ends_lie_inside_their_interval(self, name: str) -> None:
        u = shipped(name)
        x = u.samples.astype(np.float64)
        x[u.end_sample - 7200 : u.end_sample + 1] *= np.exp(-np.linspace(0, 6, 7201))
        soft = make_reference("soft", x, 48000)
        there = placed(x[::3], 16000, noise_dbov=-60)
        found = transfer(soft, there.recording, 16000, at_s=there.at_s)
        _, end_ms = errors_ms(found, there)
        assert inside(found.end, end_ms)
        assert abs(end_ms) <= 10

    def test_at_25_db_within_its_interval_or_refused(self) -> None:
        inside_count = measured = 0
        for seed, name in enumerate(shipped_names()):
            x = spoken(name, 8000)
            level = 10 * np.log10(np.mean(np.square(x[x != 0])))
            there = placed(x, 8000, noise_dbov=float(level) - 25, seed=seed)
            found = carried(name, there)
            if found.end is None:
                assert found.reasons["end"]
                continue
            _, last, _ = there.edges()
            error_ms = (found.end.sample - last) / 8
            measured += 1
            inside_count += inside(found.end, error_ms)
            assert abs(error_ms) <= 20 or "uncertain" in found.end.flags
        assert measured >= 20
        assert inside_count >= 0.93 * measured

    def test_the_shift_says_how_soft_the_end_is(self) -> None:
        there = placed(spoken("en/1", 16000), 16000)
        found = carried("en/1", there).end
        assert found is not None
        assert found.shift_ms["+10"] == pytest.approx(0, abs=0.5)  # a hard cut

    def test_a_given_threshold_is_used(self) -> None:
        there = placed(spoken("en/2", 16000), 16000)
        low, high = (carried("en/2", there, end_threshold_dbov=theta).end for theta in (-55.0, -35.0))
        assert low is not None
        assert high is not None
        assert (low.threshold_dbov, high.threshold_dbov) == (-55.0, -35.0)
        assert high.sample < low.sample


class TestOnTheWay:
    @pytest.mark.parametrize("name", NAMES)
    @pytest.mark.parametrize(
        ("codec", "bit_rate", "rate_hz"), [("opus", 16000, 48000), ("opus", 64000, 48000), ("pcmu", 0, 8000)]
    )
    def test_codecs(self, name: str, codec: str, bit_rate: int, rate_hz: int) -> None:
        there = placed(coded(spoken(name, rate_hz), rate_hz, codec, bit_rate), rate_hz)
        found = carried(name, there)
        _, end_ms = errors_ms(found, there)
        assert abs(end_ms) <= 5
        assert inside(found.end, end_ms)
        assert not found.room

    @pytest.mark.parametrize("ppm", [-200, 200])
    def test_drift(self, ppm: float) -> None:
        there = placed(drifted(spoken("en/2", 48000), ppm), 48000)
        found = carried("en/2", there)
        _, end_ms = errors_ms(found, there)
        assert abs(end_ms) <= 1
        assert found.drift is not None
        assert found.drift.ppm == pytest.approx(ppm, abs=6)
        assert found.flags == ()

    @pytest.mark.parametrize("steps", [[(0.5, 7.0), (1.0, -5.0)], [(2.1, 6.0)], [(0.6, -12.5)]])
    def test_stretched_time(self, steps: list[tuple[float, float]]) -> None:
        there = placed(stepped(spoken("en/2", 16000), 16000, steps), 16000)
        found = carried("en/2", there)
        _, end_ms = errors_ms(found, there)
        assert abs(end_ms) <= 1
        assert "timescaled" in found.flags
        assert [round(step.ms, 1) for step in found.steps] == [ms for _, ms in steps]

    @pytest.mark.parametrize("name", NAMES)
    @pytest.mark.parametrize(("rt60_s", "ratio_db"), [(0.2, 4.0), (0.7, 0.0)])
    def test_rooms_do_not_lengthen_it(self, name: str, rt60_s: float, ratio_db: float) -> None:
        dry = spoken(name, 16000)
        there = placed(dry, 16000, noise_dbov=-70, reverberant=in_room(dry, 16000, rt60_s, 8, ratio_db))
        found = carried(name, there)
        assert found.room
        _, end_ms = errors_ms(found, there)
        assert abs(end_ms) <= 2
        blind = last_audible_blind(there.recording, 16000, start_s=there.at_s, stop_s=there.at_s + 3.5)
        assert found.end is not None
        assert blind.sample - found.end.sample > 0.05 * 16000  # what level alone would have said

    def test_the_other_party_heard_in_it(self) -> None:
        x = spoken("en/2", 16000)
        there = placed(x, 16000, noise_dbov=-75)
        reply = spoken("de/1", 16000)
        at = there.edges()[1] - 800  # cuts in 50 ms before the end
        other = np.zeros(len(there.recording), np.float32)
        other[at : at + len(reply)] = reply
        _, last, _ = there.edges()
        mixed = there.recording + np.float32(from_dbov(-25)) * other
        found = transfer(reference("en/2"), mixed, 16000, at_s=there.at_s, other=other).end
        assert found is not None
        assert abs(found.sample - last) / 16 <= max(5, found.uncertainty_ms)

    def test_clipped(self) -> None:
        x = np.clip(12 * spoken("en/1", 16000), -1, 1)
        found = carried("en/1", placed(x, 16000))
        assert "clipped" in found.flags


class TestBeyondTheReferencesOwnEdges:
    """What the reference holds outside its own edges counts where the recording makes it audible, and only there."""

    @staticmethod
    def faded() -> Sound:
        """A tail of 150 ms some 6 dB under what is audible in the reference itself."""
        x = shipped("en/2").samples.astype(np.float64)
        last = shipped("en/2").end_sample
        tail = from_dbov(-66) * np.random.default_rng(3).standard_normal(7200)
        return np.concatenate([x[: last + 1], tail, np.zeros(4800)])

    @pytest.mark.parametrize("rate_hz", [8000, 48000])
    def test_a_louder_recording_ends_later(self, rate_hz: int) -> None:
        x = self.faded()
        known = make_reference("faded", x, 48000)
        assert known.end_sample == pytest.approx(shipped("en/2").end_sample, abs=240)
        loud = from_dbov(20) * resample(x, 48000, rate_hz).astype(np.float64)
        there = placed(loud, rate_hz, noise_dbov=-90)
        found = transfer(known, there.recording, rate_hz, at_s=there.at_s).end
        _, last, _ = there.edges()
        assert last / rate_hz - there.at_s > known.end_sample / 48000 + 0.12
        assert found is not None
        assert (found.sample - last) * 1000 / rate_hz == pytest.approx(0, abs=2)

    def test_an_equal_one_does_not(self) -> None:
        x = self.faded()
        there = placed(resample(x, 48000, 16000).astype(np.float64), 16000, noise_dbov=-90)
        found = transfer(make_reference("faded", x, 48000), there.recording, 16000, at_s=there.at_s).end
        assert found is not None
        assert found.sample == pytest.approx(there.edges()[1], abs=32)

    def test_noise_of_the_references_own_that_is_not_in_the_recording(self) -> None:
        x = shipped("en/2").samples + from_dbov(-48) * np.random.default_rng(4).standard_normal(
            len(shipped("en/2").samples)
        )
        there = placed(spoken("en/2", 16000), 16000)
        found = transfer(make_reference("noisy", x, 48000), there.recording, 16000, at_s=there.at_s).end
        assert found is not None
        assert abs(found.sample - there.edges()[1]) / 16 <= max(5.0, found.uncertainty_ms)


class TestWhatWasSeen:
    def test_is_followed_no_second_time(self) -> None:
        there = placed(spoken("en/2", 8000), 8000)
        (seen,) = find_references(there.recording, 8000, [reference("en/2")])
        again = transfer(reference("en/2"), there.recording, 8000, at_s=seen.lag_s)
        found = transfer(reference("en/2"), there.recording, 8000, at_s=seen.lag_s, seen=seen)
        assert found.end is not None
        assert again.end is not None
        assert found.end.sample == again.end.sample
        assert found.lag_s == pytest.approx(again.lag_s, abs=1e-6)


class TestInPart:
    def test_stopped_midway_it_ends_where_it_stops(self) -> None:
        x = spoken("en/2", 16000)[:16000]
        there = placed(x, 16000)
        found = carried("en/2", there)
        assert found.end is not None
        assert "partial" in found.end.flags
        assert found.end.sample / 16000 == pytest.approx(there.at_s + 1.0, abs=0.002)

    def test_a_hole_at_the_end_is_no_sound(self) -> None:
        x = spoken("en/2", 16000)
        there = placed(x, 16000)
        _, last, _ = there.edges()
        lost = there.recording.copy()
        lost[last - 640 : last + 320] = 0.0
        found = carried("en/2", Placed(lost, there.clean, 16000, there.at_s)).end
        assert found is not None
        assert found.sample == pytest.approx(last - 641, abs=80)  # 5 ms: the window of the rule

    def test_a_tail_under_something_else_is_refused(self) -> None:
        x = spoken("en/2", 16000)
        there = placed(x, 16000)
        _, last, _ = there.edges()
        covered = there.recording.copy()
        covered[last - 9600 : last + 16000] = 0.3 * np.random.default_rng(1).standard_normal(25600)
        found = carried("en/2", Placed(covered, there.clean, 16000, there.at_s))
        assert found.end is None
        assert found.reasons["end"]
        assert found.start is not None

    def test_what_is_not_there_is_refused(self) -> None:
        there = placed(spoken("en/3", 16000), 16000)
        with pytest.raises(NotMeasurable) as caught:
            carried("en/2", there)
        assert caught.value.reason == "not_found"

    def test_what_never_stands_out_is_refused(self) -> None:
        x: Sound = 0.02 * spoken("en/2", 16000)
        found = carried("en/2", placed(x, 16000, noise_dbov=-57))
        assert found.end is None
        assert found.reasons["end"] in ("inaudible", "lost_in_noise")


class TestBlind:
    @pytest.mark.parametrize("name", NAMES)
    @pytest.mark.parametrize("noise_dbov", [-85.0, -65.0, -55.0, -45.0])
    def test_dry_speech_ends_within_its_interval(self, name: str, noise_dbov: float) -> None:
        there = placed(spoken(name, 16000), 16000, noise_dbov=noise_dbov)
        found = last_audible_blind(there.recording, 16000, start_s=there.at_s, stop_s=there.at_s + 4.0)
        _, last, _ = there.edges()
        error_ms = abs(found.sample - last) / 16
        assert error_ms <= found.uncertainty_ms
        assert found.evidence == "level"
        if noise_dbov <= -65:
            assert error_ms <= 25
        assert found.uncertainty_ms > 5

    def test_it_looks_no_further_than_it_is_told(self) -> None:
        there = placed(np.concatenate([spoken("en/1", 16000), np.zeros(16000), spoken("en/3", 16000)]), 16000)
        stop_s = there.at_s + shipped("en/1").duration_s + 0.5
        found = last_audible_blind(there.recording, 16000, start_s=there.at_s, stop_s=stop_s)
        assert found.s == pytest.approx(there.at_s + shipped("en/1").end_sample / 48000, abs=0.002)

    def test_silence_is_refused(self) -> None:
        with pytest.raises(NotMeasurable) as caught:
            last_audible_blind(np.zeros(80000, np.float32), 16000, start_s=1, stop_s=3)
        assert caught.value.reason == "inaudible"
