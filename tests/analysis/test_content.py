"""What a stretch of sound is: ten languages are speech; tones, music, noise, clicks and breaths never are."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

import analysis.content
from analysis.content import BREATH, CLICK, MUSIC, SPEECH, TONE, figures, goes_on_as_speech, kind_of, spoken_at
from benchmarks import recordings_sounds as sounds
from benchmarks.recordings_path import coded
from probe.utterances import shipped_languages

Sound = NDArray[np.float32]
LOOK_S = 0.3


def heard(sound: Sound, rate_hz: int, *, snr_db: float = 60.0, telephone: bool = False) -> str:
    """What the first 300 ms of a sound at −24 dBov are taken for."""
    silence = np.zeros(rate_hz // 5, np.float32)
    x = np.concatenate([silence, sounds.levelled(sound, rate_hz, -24.0), silence])
    x += np.random.default_rng(1).standard_normal(len(x)).astype(np.float32) * np.float32(10 ** ((-24 - snr_db) / 20))
    if telephone:
        x = coded(x, rate_hz, "pcmu", 64000)
    stop = len(silence) + min(len(sound), int(LOOK_S * rate_hz))
    return kind_of(lambda a, b: x[max(0, a) : b], len(silence), stop, rate_hz)


def reader(x: Sound) -> Callable[[int, int], Sound]:
    return lambda start, stop: x[max(0, start) : stop]


def tones(rate_hz: int, *frequencies_hz: float, seconds: float = 0.5) -> Sound:
    t = np.arange(int(seconds * rate_hz)) / rate_hz
    return np.sum([np.sin(2 * np.pi * f * t) for f in frequencies_hz], axis=0).astype(np.float32)


def vibrato(rate_hz: int) -> Sound:
    """A held note of seven harmonics, ±0.6 % at 5.5 Hz."""
    t = np.arange(rate_hz) / rate_hz
    phase = 2 * np.pi * np.cumsum(330 * (1 + 0.006 * np.sin(2 * np.pi * 5.5 * t))) / rate_hz
    return np.sum([np.sin(k * phase) / k for k in range(1, 8)], axis=0).astype(np.float32)


def melody(rate_hz: int) -> Sound:
    """Plucked notes of 120 ms."""
    t = np.arange(int(0.12 * rate_hz)) / rate_hz
    notes = [
        np.sum([np.sin(2 * np.pi * f * k * t) / k**1.2 for k in range(1, 5)], axis=0) * np.exp(-t / 0.15)
        for f in (262.0, 330.0, 392.0, 523.0)
    ]
    return np.concatenate(notes).astype(np.float32)


def keyboard(rate_hz: int) -> Sound:
    x, rng = np.zeros(int(0.3 * rate_hz), np.float32), np.random.default_rng(2)
    for at_s in (0.0, 0.09, 0.19):
        key = rng.standard_normal(int(0.03 * rate_hz)) * np.exp(-np.arange(int(0.03 * rate_hz)) / (0.006 * rate_hz))
        x[int(at_s * rate_hz) : int(at_s * rate_hz) + len(key)] += key
    return x


NO_SPEECH: dict[str, Callable[[int, int], Sound]] = {
    "dtmf": lambda rate, seed: tones(rate, 697.0, (1209.0, 1336.0, 1477.0)[seed % 3]),
    "ringback": lambda rate, seed: tones(rate, *((440.0, 480.0), (425.0,), (400.0, 450.0))[seed % 3]),
    "vibrato": lambda rate, seed: vibrato(rate),
    "melody": lambda rate, seed: melody(rate),
    "keyboard": lambda rate, seed: keyboard(rate),
    "white": lambda rate, seed: sounds.noise(np.random.default_rng(seed), rate // 2, "white"),
    "pink": lambda rate, seed: sounds.noise(np.random.default_rng(seed), rate // 2, "pink"),
    "breath": lambda rate, seed: sounds.breath(np.random.default_rng(seed), rate),
    "pop": lambda rate, seed: sounds.pop(np.random.default_rng(seed), rate),
    "earcon": lambda rate, seed: sounds.earcon(np.random.default_rng(seed), rate),
    "music": lambda rate, seed: sounds.music(np.random.default_rng(seed), rate),
}


@pytest.mark.parametrize("language", shipped_languages())
def test_replies_and_fillers_of_every_language_are_speech(language: str) -> None:
    for rate_hz in (8000, 16000, 48000):
        for snr_db in (60.0, 20.0):
            assert heard(sounds.agent_sound("filler", language, rate_hz), rate_hz, snr_db=snr_db) == SPEECH
            assert heard(sounds.agent_sound("greeting", language, rate_hz), rate_hz, snr_db=snr_db) == SPEECH
    assert heard(sounds.agent_sound("reply", f"{language}/1", 8000), 8000, telephone=True) == SPEECH


@pytest.mark.parametrize("telephone", [False, True])
@pytest.mark.parametrize("name", NO_SPEECH)
def test_what_is_no_speech_is_not_taken_for_it(name: str, telephone: bool) -> None:
    for seed in range(4):
        for rate_hz in (8000,) if telephone else (8000, 16000):
            assert heard(NO_SPEECH[name](rate_hz, seed), rate_hz, snr_db=40.0, telephone=telephone) != SPEECH


def test_kinds_are_named() -> None:
    assert heard(tones(16000, 1000.0), 16000) == TONE
    assert heard(tones(16000, 262.0, 330.0, 392.0), 16000) == MUSIC
    assert heard(NO_SPEECH["breath"](16000, 1), 16000) == BREATH
    assert heard(NO_SPEECH["pop"](16000, 1), 16000) == CLICK


def test_what_is_plain_costs_no_detector(monkeypatch: pytest.MonkeyPatch) -> None:
    def not_asked(*_: object) -> None:
        raise AssertionError("the detector was asked")

    monkeypatch.setattr(analysis.content, "spoken_at", not_asked)
    assert heard(sounds.agent_sound("reply", "de/2", 16000), 16000) == SPEECH
    assert heard(NO_SPEECH["white"](16000, 0)[:3200], 16000) != SPEECH
    assert heard(tones(16000, 425.0), 16000) == TONE


def test_the_detector_says_where_speech_begins() -> None:
    rate_hz = 16000
    reply = sounds.levelled(sounds.agent_sound("reply", "en/1", rate_hz), rate_hz, -40.0)  # softer than it likes
    x = np.concatenate([np.zeros(3200, np.float32), reply])
    at = spoken_at(lambda a, b: x[a:b], 1600, len(x), rate_hz)
    assert at is not None
    assert abs(at - 3200) <= 2 * 512  # two of its chunks
    assert spoken_at(lambda a, b: np.zeros(b - a, np.float32), 1600, 9600, rate_hz) is None


@pytest.mark.parametrize("language", shipped_languages())
def test_speech_goes_on_as_speech(language: str) -> None:
    for rate_hz, telephone in ((16000, False), (8000, True)):
        x = sounds.levelled(sounds.agent_sound("reply", f"{language}/1", rate_hz), rate_hz, -24.0)
        assert len(x) > rate_hz
        noisy = x + np.random.default_rng(2).standard_normal(len(x)).astype(np.float32) * np.float32(10 ** (-44 / 20))
        noisy = coded(noisy, rate_hz, "pcmu", 64000) if telephone else noisy
        at = int(np.flatnonzero(np.abs(x) > 0.01)[0])
        assert goes_on_as_speech(reader(noisy), at, len(x), rate_hz)


def test_music_does_not_go_on_as_speech_and_what_is_short_is_not_asked() -> None:
    for seed in range(4):
        x = sounds.levelled(sounds.music(np.random.default_rng(seed), 16000), 16000, -24.0)
        assert not goes_on_as_speech(reader(x), 0, len(x), 16000)
        assert goes_on_as_speech(reader(x), 0, 15000, 16000)


def test_figures_of_a_sound_shorter_than_a_frame() -> None:
    found = figures(np.full(40, 0.1, np.float32), 8000)
    assert found.duration_ms == 5.0
    assert not found.speech
    silent = figures(np.zeros(800, np.float32), 8000)
    assert silent.unvoiced
    assert not silent.speech
