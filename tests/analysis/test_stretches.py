"""An agent's channel as stretches: what comes before speech does not move it, and what is no speech is not it."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from analysis.audibility import LevelTrack
from analysis.content import BREATH, CLICK, MUSIC, SPEECH, TONE
from analysis.stretches import Stretch, find_stretches
from benchmarks import recordings_sounds as sounds
from benchmarks.recordings_truth import first_edge
from probe.utterances import shipped_languages

Sound = NDArray[np.float32]
RATE_HZ = 16000
LEAD = 5 * RATE_HZ // 2


def quiet(samples: int, level_dbov: float = -80.0) -> Sound:
    x = np.random.default_rng(3).standard_normal(samples) * 10 ** (level_dbov / 20)
    return x.astype(np.float32)


def reply(name: str = "en/1") -> Sound:
    return sounds.levelled(sounds.agent_sound("reply", name, RATE_HZ), RATE_HZ, -22.0)


def heard(*parts: Sound | float, level_dbov: float = -80.0) -> tuple[list[Stretch], list[int]]:
    """The stretches of parts laid end to end (a number: seconds of silence), and where each sound begins."""
    laid, at = [np.zeros(LEAD, np.float32)], []
    for part in parts:
        if isinstance(part, np.ndarray):
            at.append(sum(map(len, laid)))
        laid.append(part if isinstance(part, np.ndarray) else np.zeros(int(part * RATE_HZ), np.float32))
    x = np.concatenate([*laid, np.zeros(LEAD, np.float32)])
    return find_stretches(LevelTrack(x + quiet(len(x), level_dbov), RATE_HZ)), at


def begins(clip: Sound, at: int) -> int:
    """Where the rule has a clip begin that was put at `at`."""
    x = np.concatenate([np.zeros(LEAD, np.float32), clip])
    edge = first_edge(x, x + quiet(len(x)), RATE_HZ, LEAD - 100, len(x))
    assert edge is not None
    return edge.sample - LEAD + at


@pytest.mark.parametrize("language", shipped_languages())
def test_a_reply_is_one_stretch_of_content(language: str) -> None:
    clip = reply(f"{language}/1")
    (stretch,), (at,) = heard(clip)
    assert stretch.kind == SPEECH
    assert stretch.content
    assert stretch.speech is not None
    assert stretch.speech == stretch.start
    assert stretch.speech.sample == pytest.approx(begins(clip, at), abs=0.002 * RATE_HZ)
    assert stretch.end is not None
    assert stretch.end.sample == pytest.approx(at + len(clip), abs=0.1 * RATE_HZ)  # clips end softly
    assert stretch.before == ()


@pytest.mark.parametrize("name", ["pop", "breath", "earcon"])
@pytest.mark.parametrize("gap_s", [0.08, 0.15])
def test_what_comes_before_speech_does_not_move_it(name: str, gap_s: float) -> None:
    for seed in range(3):
        sound = getattr(sounds, name)(np.random.default_rng(seed), RATE_HZ)
        sound = sounds.levelled(sound, RATE_HZ, -42.0 if name == "breath" else -26.0)
        clip = reply("de/1")
        (stretch,), (before, at) = heard(sound, gap_s, clip)
        assert stretch.before == {"pop": (CLICK,), "breath": (BREATH,), "earcon": (TONE,)}[name]
        assert stretch.start is not None
        assert stretch.start.sample == pytest.approx(before, abs=0.06 * RATE_HZ)  # a breath swells
        assert stretch.speech is not None
        assert stretch.speech.sample == pytest.approx(begins(clip, at), abs=0.002 * RATE_HZ)


def test_a_click_too_short_to_be_audible_is_nothing() -> None:
    click = sounds.click(np.random.default_rng(0), RATE_HZ) * np.float32(0.3)
    clip = reply("fr/1")
    (stretch,), (_, at) = heard(click, 0.06, clip)
    assert stretch.start is not None
    assert stretch.start.sample == pytest.approx(begins(clip, at), abs=0.002 * RATE_HZ)
    assert heard(click)[0] == []


def test_music_tones_and_breaths_alone_are_no_speech() -> None:
    rng = np.random.default_rng(6)
    music = sounds.levelled(sounds.music(rng, RATE_HZ), RATE_HZ, -26.0)
    breath = sounds.levelled(sounds.breath(rng, RATE_HZ), RATE_HZ, -40.0)
    beep = sounds.levelled(sounds.earcon(rng, RATE_HZ), RATE_HZ, -26.0)
    stretches, _ = heard(music, 1.0, breath, 1.0, beep)
    assert [s.kind for s in stretches] == [MUSIC, BREATH, TONE]
    assert all(s.speech is None and s.speech_first is None and not s.content for s in stretches)


@pytest.mark.parametrize("colour", ["white", "pink"])
def test_comfort_noise_that_sets_in_is_no_speech_and_speech_in_it_is_found(colour: str) -> None:
    noise = sounds.noise(np.random.default_rng(1), 4 * RATE_HZ, colour) * np.float32(10 ** (-52 / 20))
    stretches, _ = heard(noise)
    assert stretches
    assert all(s.speech_first is None for s in stretches)
    clip = reply("it/1")
    noise[2 * RATE_HZ : 2 * RATE_HZ + len(clip)] += clip
    stretches, (at,) = heard(noise)
    (spoken,) = [s for s in stretches if s.kind == SPEECH]
    assert spoken.speech is not None
    assert spoken.speech.sample == pytest.approx(at + 2 * RATE_HZ, abs=0.005 * RATE_HZ)  # its own first ms in noise


def test_speech_that_rises_out_of_sound_just_begun_is_found_and_flagged() -> None:
    clip = reply("de/1")
    noise = sounds.noise(np.random.default_rng(1), int(0.3 * RATE_HZ) + len(clip), "white") * np.float32(
        10 ** (-50 / 20)
    )
    noise[int(0.3 * RATE_HZ) :] += clip
    (stretch,), (at,) = heard(noise)
    assert "noise_before_speech" in stretch.flags
    assert stretch.start is not None
    assert stretch.start.sample == pytest.approx(at, abs=0.002 * RATE_HZ)
    assert stretch.speech is not None
    error_ms = abs(stretch.speech.sample - at - 0.3 * RATE_HZ) * 1000 / RATE_HZ
    assert error_ms <= stretch.speech.uncertainty_ms
    assert stretch.speech.uncertainty_ms > 20


def test_speech_after_hold_music_is_found_and_flagged() -> None:
    rng = np.random.default_rng(9)
    music = np.concatenate([sounds.levelled(sounds.music(rng, RATE_HZ), RATE_HZ, -28.0) for _ in range(3)])
    clip = reply("pt/1")
    stretches, (_, at) = heard(music, clip)
    spoken = [s for s in stretches if s.speech_first is not None]
    assert spoken
    assert "music_before_speech" in spoken[0].flags
    assert spoken[0].speech_first == pytest.approx(at, abs=0.3 * RATE_HZ)


def chords(seconds: float, note_s: float, fall: float, seed: int) -> Sound:
    """Hold music: three of six notes at once, each with its octave, that decay."""
    rng, size = np.random.default_rng(seed), int(note_s * RATE_HZ)
    t = np.arange(size) / RATE_HZ
    played = []
    for _ in range(int(seconds / note_s)):
        notes = rng.choice((262, 330, 392, 523, 440, 349), 3, replace=False)
        each = [
            np.sin(2 * np.pi * f * t) * np.exp(-t * fall) + 0.3 * np.sin(4 * np.pi * f * t) * np.exp(-t * (fall + 1))
            for f in notes
        ]
        played.append(np.sum(each, axis=0))
    x = np.concatenate(played)
    return np.asarray(x / np.sqrt(np.mean(x**2)) * 10 ** (-22 / 20), dtype=np.float32)


@pytest.mark.parametrize(("note_s", "fall", "seed"), [(0.4, 3.0, 5), (0.25, 6.0, 1), (1.0, 0.5, 1), (0.5, 0.0, 3)])
def test_chords_are_no_speech_and_the_reply_after_them_is(note_s: float, fall: float, seed: int) -> None:
    music = chords(5.0, note_s, fall, seed)
    padding = np.zeros(LEAD, np.float32)
    alone = np.concatenate([padding, music, padding])  # over digital silence
    assert [s for s in find_stretches(LevelTrack(alone, RATE_HZ)) if s.speech_first is not None] == []
    clip = reply()
    at = len(padding) + len(music) + RATE_HZ // 2
    both = np.concatenate([padding, music, np.zeros(RATE_HZ // 2, np.float32), clip, padding])
    first = next(s for s in find_stretches(LevelTrack(both, RATE_HZ)) if s.speech_first is not None)
    assert first.speech is not None
    assert first.speech.sample == pytest.approx(at, abs=0.05 * RATE_HZ)  # clips begin within 20 ms or so


def test_a_filler_is_speech_and_no_content() -> None:
    filler = sounds.levelled(sounds.agent_sound("filler", "en", RATE_HZ), RATE_HZ, -22.0)
    (first, second), _ = heard(filler, 0.4, reply())
    assert (first.kind, first.content) == (SPEECH, False)
    assert 150 < first.speech_ms < 400
    assert second.content


def test_where_noise_hides_the_start_that_is_said() -> None:
    """Noise that stands 10 dB over other noise is audible, or not, from window to window."""
    sound = np.random.default_rng(2).standard_normal(2 * RATE_HZ) * 10 ** (-35.7 / 20)
    stretches, _ = heard(sound.astype(np.float32), level_dbov=-46.0)
    within = [s for s in stretches if s.first > 2 * RATE_HZ]
    assert within
    assert all(s.speech_first is None for s in within)
    first = within[0]
    if first.start is None:
        assert dict(first.reasons)["start"] == "onset_in_noise"
    else:
        assert "soft_onset" in first.start.flags


def test_nothing_at_all_has_no_stretches() -> None:
    assert find_stretches(LevelTrack(np.zeros(0, np.float32), 8000)) == []
    assert find_stretches(LevelTrack(np.zeros(80000, np.float32), 8000)) == []
    assert find_stretches(LevelTrack(np.full(100, 0.1, np.float32), 8000)) == []


def test_comfort_noise_that_comes_back_between_words_ends_them() -> None:
    """An agent that sends noise only while it is silent: the noise is no part of what it says."""
    clip = reply("en/1")
    noise = sounds.noise(np.random.default_rng(4), 3 * RATE_HZ, "white") * np.float32(10 ** (-51 / 20))
    stretches, at = heard(noise, clip, noise, clip, noise)
    spoken = [s for s in stretches if s.speech_first is not None]
    assert [s.speech_first for s in spoken] == pytest.approx([at[1], at[3]], abs=0.02 * RATE_HZ)
    assert all(s.speech_ms < 1600 for s in spoken)


def test_a_click_that_rings_into_speech_is_flagged_and_in_the_bounds() -> None:
    rng = np.random.default_rng(5)
    ringing = rng.standard_normal(int(0.09 * RATE_HZ)) * np.exp(-np.arange(int(0.09 * RATE_HZ)) / (0.04 * RATE_HZ))
    clip = reply("de/1")
    (stretch,), (before, at) = heard((0.03 * ringing).astype(np.float32), clip)
    assert stretch.start is not None
    assert stretch.start.sample == pytest.approx(before, abs=0.002 * RATE_HZ)
    assert "sound_before_speech" in stretch.flags
    assert stretch.speech is not None
    assert (at - stretch.speech.sample) * 1000 / RATE_HZ <= stretch.speech.uncertainty_ms
