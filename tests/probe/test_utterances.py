"""The user's own recordings, noisy ones too, and all shipped sound against its index."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path

import numpy as np
import pytest
import soundfile

from analysis.audibility import LevelTrack, first_audible, last_audible, threshold_shifts_ms
from analysis.errors import AudioFileError, UsageError
from probe import utterances
from probe.utterances import (
    RATE_HZ,
    Utterance,
    annotate,
    filler_clip,
    greeting_clip,
    load_utterance,
    reply_clip,
    reply_count,
    shipped,
    shipped_index,
    shipped_languages,
    shipped_names,
)
from scripts import make_utterances

# A boundary is found to the sample on noise-free sound; noise 10 dB below θ moves it by the rise of the speech itself.
SAMPLE_MS = 1000 / RATE_HZ


def burst(rate_hz: int, *, before_s: float, length_s: float, after_s: float) -> np.ndarray:
    """A 440 Hz square-edged burst at −13 dBov between silences."""
    tone = 0.3 * np.cos(2 * np.pi * 440 * np.arange(round(length_s * rate_hz)) / rate_hz)
    return np.concatenate([np.zeros(round(before_s * rate_hz)), tone, np.zeros(round(after_s * rate_hz))])


def noise(n: int, level_dbov: float, seed: int = 1) -> np.ndarray:
    return 10 ** (level_dbov / 20) * np.random.default_rng(seed).standard_normal(n)


def written(tmp_path: Path, x: np.ndarray, rate_hz: int = RATE_HZ, subtype: str = "PCM_24") -> Path:
    path = tmp_path / "mine.wav"
    soundfile.write(path, x, rate_hz, subtype=subtype)
    return path


@pytest.mark.parametrize("rate_hz", [8000, 16000, 22050, 44100, 48000, 96000])
def test_boundaries_of_a_planted_burst(tmp_path: Path, rate_hz: int) -> None:
    found = load_utterance(written(tmp_path, burst(rate_hz, before_s=0.3, length_s=0.8, after_s=0.4), rate_hz), "en")
    assert found.samples.dtype == np.float32
    assert len(found.samples) == round(1.5 * RATE_HZ)
    # band limiting spreads an edge over a few samples of the slower rate, and its ringing passes −60 dBov for some more
    tolerance_ms = SAMPLE_MS if rate_hz == RATE_HZ else 30 * 1000 / min(rate_hz, RATE_HZ)
    assert found.start_sample * SAMPLE_MS == pytest.approx(300.0, abs=tolerance_ms)
    assert found.end_sample * SAMPLE_MS == pytest.approx(1100.0, abs=tolerance_ms + SAMPLE_MS)
    assert (found.name, found.language, found.text) == ("mine.wav", "en", None)
    assert found.end_threshold_dbov == -60.0


def test_annotation_is_the_rule_itself_on_quiet_recordings() -> None:
    x = burst(RATE_HZ, before_s=0.5, length_s=0.7, after_s=0.5) + noise(round(1.7 * RATE_HZ), -75.0)
    found = annotate(x)
    first, last = first_audible(LevelTrack(x, RATE_HZ)), last_audible(x, RATE_HZ)
    assert found is not None
    assert first is not None
    assert last is not None
    assert (found.start_sample, found.start_threshold_dbov) == (first.sample, first.threshold_dbov)
    assert (found.end_sample, found.end_threshold_dbov) == (last.sample, last.threshold_dbov)
    assert found.noise_floor_dbov is None


def test_end_shift_is_positive_for_later() -> None:
    # after the burst, 30 ms at −65 dBov: only a θ that is 10 dB lower (−70) still hears it
    x = burst(RATE_HZ, before_s=0.3, length_s=0.5, after_s=0.5)
    at = round(0.8 * RATE_HZ)
    tail = round(0.03 * RATE_HZ)
    x[at : at + tail] = 10 ** (-65 / 20) * np.sqrt(2) * np.cos(2 * np.pi * 440 * np.arange(tail) / RATE_HZ)
    found = annotate(x)
    assert found is not None
    # a 440 Hz tone stays below its own RMS for up to a quarter of its period, 0.57 ms, before it ends
    assert found.end_shift_ms["-10"] == pytest.approx(30.0, abs=0.6)
    assert found.end_shift_ms["+10"] == pytest.approx(0.0, abs=0.6)


@pytest.mark.parametrize("level_dbov", [-55.0, -50.0, -45.0, -40.0])
@pytest.mark.parametrize("padding_s", [0.0, 0.1, 0.5])
def test_a_noisy_recording_is_annotated_by_its_own_floor(tmp_path: Path, level_dbov: float, padding_s: float) -> None:
    clean = shipped("en/1")
    pad = round(padding_s * RATE_HZ)
    x = np.pad(clean.samples.astype(float), pad)
    found = load_utterance(written(tmp_path, x + noise(len(x), level_dbov)))
    # what θ = floor + 10 dB hears of the clean speech: the noise may hide no more than that, nor add to it
    theta = level_dbov + 10.0
    # the estimate of the floor is up to 1 dB low, and noise 10 dB down adds 0.4 dB to a window: 1.5 dB either way, and
    # one 5 ms window of the rule
    early = last_audible(x, RATE_HZ, threshold_dbov=theta + 1.5)
    late = last_audible(x, RATE_HZ, threshold_dbov=theta - 1.5)
    assert early is not None
    assert late is not None
    assert early.sample - 240 <= found.end_sample <= late.sample + 240
    assert (late.sample - early.sample) * SAMPLE_MS < 50  # a soft final "v"; or the bracket would prove nothing
    # the 10th percentile of Gaussian noise over 20 ms lies within 1 dB of its RMS
    assert found.end_threshold_dbov == pytest.approx(theta, abs=1.0)
    assert any("noise of its own" in warning for warning in found.warnings)


@pytest.mark.parametrize("level_dbov", [-58.0, -50.0, -30.0])
def test_nothing_but_noise_is_refused(tmp_path: Path, level_dbov: float) -> None:
    path = written(tmp_path, noise(2 * RATE_HZ, level_dbov))
    with pytest.raises(AudioFileError, match="noise") as caught:
        load_utterance(path)
    assert str(path) in caught.value.line()


def test_noise_with_a_constant_offset_is_refused(tmp_path: Path) -> None:
    with pytest.raises(AudioFileError, match="noise"):
        load_utterance(written(tmp_path, 0.02 + noise(RATE_HZ, -60.0)))


def test_a_burst_without_a_pause_inside_is_no_noise() -> None:
    found = annotate(noise(RATE_HZ, -20.0) * burst(RATE_HZ, before_s=0.1, length_s=0.8, after_s=0.1).astype(bool))
    assert found is not None
    assert found.noise_floor_dbov is None
    assert found.start_sample == pytest.approx(4800, abs=10)
    assert found.end_sample == pytest.approx(43199, abs=10)


@pytest.mark.parametrize("cut_s", [0.15, 0.35, 0.6])
def test_speech_cut_off_hard_is_no_noise(cut_s: float) -> None:
    clean = shipped("en/2")
    x = clean.samples[round(cut_s * RATE_HZ) : -round(cut_s * RATE_HZ)]
    found = annotate(x)
    assert found is not None
    assert found.noise_floor_dbov is None


def test_a_whole_call_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path, np.tile(burst(8000, before_s=0.2, length_s=0.6, after_s=0.2), 601), 8000, "PCM_16")
    with pytest.raises(AudioFileError, match="601 s"):
        load_utterance(path)


def test_samples_cannot_be_changed(tmp_path: Path) -> None:
    found = load_utterance(written(tmp_path, burst(8000, before_s=0.2, length_s=0.6, after_s=0.2), 8000))
    assert found.language == "und"
    with pytest.raises(ValueError, match="read-only"):
        found.samples[0] = 1.0


# --- what is shipped ---------------------------------------------------------------------------------------------

KEYS = sorted(shipped_index()["clips"])


def clip(key: str) -> Utterance:
    kind, language, *number = key.split("/")
    return {
        "utterances": lambda: shipped(f"{language}/{number[0]}"),
        "replies": lambda: reply_clip(language, int(number[0])),
        "fillers": lambda: filler_clip(language),
        "greetings": lambda: greeting_clip(language),
    }[kind]()


def test_every_language_is_complete() -> None:
    assert set(shipped_languages()) >= {"en", "es", "pt", "fr", "de", "hi", "zh", "vi"}
    for language in shipped_languages():
        assert {f"{language}/{i}" for i in (1, 2, 3)} <= set(shipped_names())
        assert reply_count(language) == 2
        assert len({shipped(f"{language}/{i}").audible_s for i in (1, 2, 3)}) == 3
    assert set(KEYS) == {made.name for made in make_utterances.CLIPS}
    assert reply_count("xx") == 0


def test_no_file_without_an_entry_and_not_too_much_of_it() -> None:
    data = Path(utterances.__file__).parent / "data"
    files = list(data.rglob("*.flac"))
    assert sorted(str(file.relative_to(data).with_suffix("")).replace("\\", "/") for file in files) == KEYS
    assert sum(file.stat().st_size for file in files) < 8e6


@pytest.mark.parametrize("key", KEYS)
def test_index_against_the_sound(key: str) -> None:
    entry = shipped_index()["clips"][key]
    spoken = clip(key)
    pcm = np.round(spoken.samples * 32768).astype("<i2")
    assert hashlib.sha256(pcm.tobytes()).hexdigest() == entry["sha256"]
    found = annotate(spoken.samples)
    assert found is not None
    assert found.noise_floor_dbov is None
    track, back = LevelTrack(spoken.samples, RATE_HZ), LevelTrack(spoken.samples[::-1], RATE_HZ)
    first, last = first_audible(track), last_audible(spoken.samples, RATE_HZ)
    assert first is not None
    assert last is not None
    assert (entry["start_sample"], entry["start_threshold_dbov"]) == (first.sample, first.threshold_dbov)
    assert (entry["end_sample"], entry["end_threshold_dbov"]) == (last.sample, last.threshold_dbov)
    reversed_end = first_audible(back)
    assert reversed_end is not None
    moved = threshold_shifts_ms(back, reversed_end)
    assert entry["end_shift_ms"] == {step: None if ms is None else -ms for step, ms in moved.items()}
    assert spoken.end_shift_ms == found.end_shift_ms


@pytest.mark.parametrize("key", KEYS)
def test_shipped_sound_keeps_its_promises(key: str) -> None:
    spoken = clip(key)
    x = spoken.samples
    assert soundfile.info(Path(utterances.__file__).parent / "data" / f"{key}.flac").samplerate == RATE_HZ
    assert spoken.start_sample <= RATE_HZ // 100
    silent = len(x) - 1 - int(np.flatnonzero(x)[-1])
    assert silent * SAMPLE_MS >= 60
    assert 60 <= (len(x) - 1 - spoken.end_sample) * SAMPLE_MS <= 100
    shortest, longest = {
        "utterances": (1.2, 2.5),
        "replies": (1.0, 1.8),
        "fillers": (0.15, 0.35),
        "greetings": (1.0, 1.5),
    }[key.split("/")[0]]
    assert shortest < spoken.audible_s < longest
    # an endpointer that waits 300 ms must not cut in, and the words must stand clear of any line noise
    assert make_utterances.longest_pause_ms(x[spoken.start_sample : spoken.end_sample + 1]) < 250
    assert make_utterances.active_dbov(x) == pytest.approx(-20.0, abs=2.0)
    lowest_peak = -10.0 if key.startswith("fillers/") else -6.0  # a hum has no crests
    assert lowest_peak < 20 * np.log10(np.abs(x).max()) < -2.0
    assert np.abs(x[spoken.start_sample - 1]) < 10 ** (-60 / 20)


@pytest.mark.parametrize("name", shipped_names())
def test_callers_words_end_sharply(name: str) -> None:
    # the end is what every latency counts from: 10 dB of θ may not move it by more than 3 ms
    shifts = shipped(name).end_shift_ms
    assert all(ms is not None and abs(ms) < 3.0 for ms in shifts.values())


def test_a_pause_would_be_found() -> None:
    x = shipped("en/1").samples
    gap = np.insert(x, 40000, np.zeros(RATE_HZ // 4, np.float32))
    assert make_utterances.longest_pause_ms(gap) >= 240


def test_unknown_names_are_said() -> None:
    with pytest.raises(UsageError, match="en/9"):
        shipped("en/9")
    with pytest.raises(UsageError, match="fillers/xx"):
        filler_clip("xx")


def test_the_script_makes_the_same_sound_again() -> None:
    if shutil.which("espeak-ng") is None or make_utterances.version() != shipped_index()["espeak_ng"]:
        pytest.skip("needs the espeak-ng that made the shipped sound")
    for made in make_utterances.CLIPS[:2]:
        pcm = make_utterances.synthesise(made)
        # one LSB: another machine's sums may round the other way
        assert np.abs(pcm - np.round(clip(made.name).samples * 32768)).max() <= 1


def test_the_script_says_that_espeak_is_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SystemExit, match="espeak-ng is not installed"):
        make_utterances.main(["--out", str(tmp_path)])
    assert list(tmp_path.iterdir()) == []


def test_a_dc_offset_is_taken_out_and_said(tmp_path: Path) -> None:
    clean = shipped("en/1")
    soundfile.write(tmp_path / "offset.wav", clean.samples * 0.5 + 0.2, 48_000, subtype="FLOAT")
    soundfile.write(tmp_path / "plain.wav", clean.samples * 0.5, 48_000, subtype="FLOAT")
    found, plain = load_utterance(tmp_path / "offset.wav"), load_utterance(tmp_path / "plain.wav")
    assert any("DC offset of 0.200" in warning for warning in found.warnings)
    assert plain.warnings == ()
    # the mean of the words themselves is taken out with it: some 1e-4 of full scale
    assert found.end_sample == pytest.approx(plain.end_sample, abs=48)
