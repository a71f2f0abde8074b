"""Delays planted between samples, against the Cramér–Rao bound, in rooms, and where nothing is to be found."""

from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.typing import NDArray

from analysis.audiofile import resample
from analysis.correlation import (
    BETA_IN_ROOMS,
    crlb_s,
    earliest_strong_peak,
    find_delay,
    path_response,
    refine_peak,
)
from analysis.errors import NotMeasurable
from probe.utterances import shipped

RATE_HZ = 8000
Sound = NDArray[np.float64]


def utterance(rate_hz: int = RATE_HZ, seconds: float = 3.0) -> Sound:
    """Shipped speech, end to end, cut to a length."""
    speech = np.concatenate([shipped("en/2").samples, shipped("de/1").samples])
    return resample(speech, 48000, rate_hz)[: round(seconds * rate_hz)].astype(np.float64)


def delayed(x: Sound, samples: float, total: int) -> Sound:
    """`x` by whole and part samples later, band-limited, in `total` samples."""
    size = 2 * (len(x) + total)
    spectrum = np.fft.rfft(x, size) * np.exp(-2j * np.pi * np.arange(size // 2 + 1) / size * samples)
    return np.fft.irfft(spectrum, size)[:total]


def rms(x: Sound) -> float:
    return float(np.sqrt(np.mean(np.square(x))))


def room(x: Sound, rate_hz: int, rt60_s: float, seed: int, reflection: float = 0.0) -> Sound:
    """Direct sound, a decaying tail 3 ms after it, and perhaps one strong reflection 17 ms after it."""
    n = round(rt60_s * rate_hz)
    tail = np.random.default_rng(seed).standard_normal(n) * 10 ** (-3 * np.arange(n) / n)
    tail[: round(0.003 * rate_hz)] = 0
    tail *= 0.7 / np.sqrt((tail**2).sum())
    tail[0] = 1.0
    tail[round(0.017 * rate_hz)] += reflection
    return np.convolve(x, tail)


class TestConvention:
    @pytest.mark.parametrize("planted", [0.0, 3.0, 400.25, 1234.5])
    def test_a_delay_counts_from_the_recordings_first_sample(self, planted: float) -> None:
        x = utterance()
        found = find_delay(x, delayed(x, planted, len(x) + 2000), RATE_HZ)
        # float64 and a parabola over 1/64 sample leave far less than a thousandth of a sample
        assert found.samples == pytest.approx(planted, abs=1e-4)
        assert found.seconds == pytest.approx(planted / RATE_HZ, abs=1e-7)

    def test_negative_where_the_recording_begins_within_the_reference(self) -> None:
        x = utterance()
        found = find_delay(x, x[700:].copy(), RATE_HZ, lags=(-1000, 1000))
        assert found.samples == pytest.approx(-700, abs=1e-3)

    def test_polarity_and_gain(self) -> None:
        x = utterance()
        found = find_delay(x, -0.25 * delayed(x, 10.4, len(x) + 100), RATE_HZ)
        assert found.gain == pytest.approx(-0.25, rel=1e-3)
        assert found.samples == pytest.approx(10.4, abs=1e-4)
        assert found.quality > 0.999

    def test_a_band_leaves_out_a_louder_sound_elsewhere(self) -> None:
        x = utterance()
        y = delayed(x, 55.5, len(x) + 100)
        y += 0.5 * np.sin(2 * np.pi * 60 * np.arange(len(y)) / RATE_HZ)
        assert find_delay(x, y, RATE_HZ, band_hz=(200, 3400)).samples == pytest.approx(55.5, abs=0.01)

    def test_inputs_are_left_alone(self) -> None:
        x = utterance()
        before = x.copy()
        find_delay(x, x, RATE_HZ, lags=(-10, 10))
        assert np.array_equal(x, before)


class TestBound:
    def test_of_a_sine_is_the_textbooks(self) -> None:
        t = np.arange(8000)
        x = np.sin(2 * np.pi * 1000 * t / RATE_HZ)
        # σ of the noise over RMS of the derivative, over the square root of the samples
        expected = 0.1 / (2 * np.pi * 1000 / math.sqrt(2) * math.sqrt(8000))
        assert crlb_s(x, RATE_HZ, noise_rms=0.1) == pytest.approx(expected, rel=0.01)

    def test_of_coloured_noise_follows_its_colour(self) -> None:
        x = utterance()
        white = np.random.default_rng(1).standard_normal(80000) * 0.01
        assert crlb_s(x, RATE_HZ, noise=white) == pytest.approx(crlb_s(x, RATE_HZ, noise_rms=0.01), rel=0.05)
        # the same power, all of it below the speech that tells the time
        low = np.convolve(white, np.ones(40), mode="same")
        low *= rms(white) / rms(low)
        assert crlb_s(x, RATE_HZ, noise=low) < 0.5 * crlb_s(x, RATE_HZ, noise=white)

    def test_gain_counts_as_level(self) -> None:
        x = utterance()
        assert crlb_s(x, RATE_HZ, noise_rms=0.01, gain=0.1) == pytest.approx(crlb_s(x, RATE_HZ, noise_rms=0.1))

    @pytest.mark.parametrize("wrong", [{}, {"noise_rms": 0.1, "noise": np.ones(10)}, {"noise_rms": 0.0}])
    def test_needs_one_noise(self, wrong: dict[str, object]) -> None:
        with pytest.raises(ValueError):
            crlb_s(utterance(), RATE_HZ, **wrong)  # type: ignore[arg-type]

    @pytest.mark.parametrize("snr_db", [-5, 10, 30])
    def test_an_utterance_in_white_noise_is_found_to_the_bound(self, snr_db: float) -> None:
        x = utterance()
        noise_rms = rms(x) * 10 ** (-snr_db / 20)
        bound = crlb_s(x, RATE_HZ, noise_rms=noise_rms) * RATE_HZ
        rng = np.random.default_rng(100 + snr_db)
        errors, gcc, own = [], [], []
        for _ in range(24):
            planted = rng.uniform(1000, 3000)
            y = delayed(x, planted, len(x) + 4000)
            y += noise_rms * rng.standard_normal(len(y))
            found = find_delay(x, y, RATE_HZ)
            assert not found.room
            errors.append(found.samples - planted)
            own.append(found.uncertainty_samples)
            gcc.append(find_delay(x, y, RATE_HZ, beta=BETA_IN_ROOMS).samples - planted)
        # the rms of 24 errors is itself known to 15 %
        assert rms(np.array(errors)) < 1.5 * bound
        assert rms(np.array(gcc)) < (2.5 if snr_db <= 10 else 4.0) * bound
        assert float(np.mean(own)) == pytest.approx(bound, rel=0.1)

    def test_nothing_but_the_samples_limits_it_without_noise(self) -> None:
        x = utterance(48000)
        for planted in (100.0, 100.3, 100.77):
            y = delayed(x, planted, len(x) + 300)
            assert abs(find_delay(x, y, 48000).seconds - planted / 48000) < 50e-9


class TestRooms:
    @pytest.mark.parametrize("rt60_s", [0.2, 0.7])
    def test_one_is_detected_and_its_direct_sound_taken(self, rt60_s: float) -> None:
        x = utterance(16000)
        y = np.concatenate([np.zeros(800), room(x, 16000, rt60_s, 3)])
        y += 1e-3 * rms(y) * np.random.default_rng(0).standard_normal(len(y))
        found = find_delay(x, y, 16000)
        assert found.room
        assert found.beta == BETA_IN_ROOMS
        assert found.samples == pytest.approx(800, abs=0.16)  # 0.01 ms

    def test_the_direct_sound_may_be_weaker_than_a_reflection(self) -> None:
        x = utterance(16000)
        y = np.concatenate([np.zeros(800), room(x, 16000, 0.4, 5, reflection=1.8)])
        y += 1e-3 * rms(y) * np.random.default_rng(0).standard_normal(len(y))
        found = find_delay(x, y, 16000)
        assert found.highest_samples == pytest.approx(800 + 272, abs=1)
        assert found.samples == pytest.approx(800, abs=0.5)

    @pytest.mark.parametrize("snr_db", [0, 40])
    def test_noise_is_no_room(self, snr_db: float) -> None:
        x = utterance()
        y = np.concatenate([np.zeros(1000), x, np.zeros(1000)])
        y += rms(x) * 10 ** (-snr_db / 20) * np.random.default_rng(2).standard_normal(len(y))
        assert not path_response(x, y, RATE_HZ, delay=1000).room

    def test_earliest_strong_peak(self) -> None:
        envelope = np.array([0.0, 0.2, 0.1, 0.5, 0.1, 1.0, 0.2])
        assert earliest_strong_peak(envelope, 5, 10) == 3  # 0.2 is more than 10 dB under 1.0
        assert earliest_strong_peak(envelope, 5, 1) == 5


class TestRefusal:
    def test_silence(self) -> None:
        with pytest.raises(NotMeasurable) as caught:
            find_delay(utterance(), np.zeros(40000), RATE_HZ)
        assert caught.value.reason == "silent"

    @pytest.mark.parametrize("seed", range(5))
    def test_noise_holds_no_utterance(self, seed: int) -> None:
        with pytest.raises(NotMeasurable) as caught:
            find_delay(utterance(), np.random.default_rng(seed).standard_normal(60000), RATE_HZ)
        assert caught.value.reason == "no_peak"

    def test_wrong_shapes_are_named(self) -> None:
        with pytest.raises(ValueError, match="one-dimensional"):
            find_delay(np.zeros((2, 2)), np.zeros(4), RATE_HZ)
        with pytest.raises(ValueError, match="lags"):
            find_delay(utterance(), utterance(), RATE_HZ, lags=(5, 4))


def test_refine_peak_between_samples() -> None:
    t = np.arange(200)
    for at in (99.2, 100.0, 100.49):
        position, height = refine_peak(np.sinc((t - at) / 2), 99 if at < 99.5 else 100)
        assert position == pytest.approx(at, abs=1e-4)
        assert height == pytest.approx(1.0, abs=1e-5)
