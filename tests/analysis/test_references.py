"""Which utterance was said where: all of them in one channel, twice, in part, stretched; and what is none of them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import soundfile

from analysis.audiofile import resample
from analysis.errors import AudioFileError
from analysis.references import Occurrence, Reference, find_references, load_reference, make_reference
from analysis.units import from_dbov
from probe.utterances import greeting_clip, reply_clip, shipped, shipped_languages, shipped_names
from tests.analysis.placed import Sound, coded, drifted, in_room, reference, references, spoken, stepped

RATE_HZ = 8000


def channel(
    items: list[tuple[float, Sound]], rate_hz: int = RATE_HZ, noise_dbov: float = -75.0, total_s: float | None = None
) -> np.ndarray:
    total = round((total_s or max(at for at, _ in items) + 6) * rate_hz)
    out = from_dbov(noise_dbov) * np.random.default_rng(0).standard_normal(total)
    for at_s, x in items:
        at = round(at_s * rate_hz)
        out[at : at + len(x)] += x[: max(0, total - at)]
    return out.astype(np.float32)


def said(found: list[Occurrence]) -> list[str]:
    return [o.reference.name for o in found]


class TestReference:
    @pytest.mark.parametrize("name", ["en/1", "zh/2", "ar/3"])
    def test_its_edges_are_the_rules(self, name: str) -> None:
        assert reference(name).start_sample == shipped(name).start_sample
        assert reference(name).end_sample == shipped(name).end_sample

    def test_a_file_of_any_rate(self, tmp_path: Path) -> None:
        path = tmp_path / "question.wav"
        soundfile.write(path, spoken("en/1", 22050), 22050)
        made = load_reference(path, language="en")
        assert (made.name, made.language) == ("question.wav", "en")
        assert made.end_sample / 22050 == pytest.approx(shipped("en/1").end_sample / 48000, abs=0.001)
        assert made.at_rate(8000) is made.at_rate(8000)

    def test_noise_of_its_own_is_no_speech(self) -> None:
        x = np.concatenate([np.zeros(24000), spoken("en/1", 48000), np.zeros(24000)])
        x += from_dbov(-50) * np.random.default_rng(0).standard_normal(len(x))
        made = make_reference("noisy", x, 48000)
        assert made.start_sample / 48000 == pytest.approx(0.505, abs=0.02)
        # its last sound, soft, lies under the noise
        assert made.end_sample / 48000 == pytest.approx(0.5 + shipped("en/1").end_sample / 48000, abs=0.12)

    def test_silence_is_refused(self, tmp_path: Path) -> None:
        path = tmp_path / "silence.wav"
        soundfile.write(path, np.zeros(8000), 8000)
        with pytest.raises(AudioFileError):
            load_reference(path)
        with pytest.raises(ValueError, match="stands out"):
            make_reference("silence", np.zeros(8000), 8000)

    def test_a_clip_cut_close_to_its_speech_ends_where_it_was_cut(self) -> None:
        whole = shipped("en/1")
        # the cuts lie in speech some 30 dB under its loud parts: its own pauses are no noise
        x = whole.samples[whole.start_sample + 4000 : whole.end_sample - 2000]
        made = make_reference("close", x, 48000)
        assert made.start_sample <= 240
        assert made.end_sample >= len(x) - 240


class TestFound:
    @pytest.mark.parametrize(("rate_hz", "noise_dbov"), [(8000, -75), (8000, -32), (44100, -60)])
    def test_every_utterance_in_one_channel(self, rate_hz: int, noise_dbov: float) -> None:
        names = shipped_names()
        items = [(2.0 + 4.5 * i, spoken(name, rate_hz)) for i, name in enumerate(names)]
        found = find_references(channel(items, rate_hz, noise_dbov), rate_hz, references())
        assert said(found) == list(names)
        for occurrence, (at_s, _) in zip(found, items, strict=True):
            assert occurrence.lag_s == pytest.approx(at_s, abs=0.001)
            assert not occurrence.partial

    def test_twice_is_found_twice(self) -> None:
        found = find_references(channel([(1, spoken("en/1", 8000)), (5, spoken("en/1", 8000))]), 8000, references())
        assert said(found) == ["en/1", "en/1"]
        assert [round(o.lag_s, 2) for o in found] == [1.0, 5.0]

    @pytest.mark.parametrize(
        "changed",
        [
            stepped(spoken("en/2", 8000), 8000, [(at, 10.0) for at in np.arange(0.2, 2.2, 0.2)]),
            stepped(spoken("en/2", 8000), 8000, [(at, -8.0) for at in np.arange(0.2, 2.0, 0.17)]),
            drifted(spoken("en/2", 8000), 200),
            in_room(spoken("en/2", 8000), 8000, 0.7, 1, 0.0),
            in_room(spoken("en/2", 8000), 8000, 0.7, 2, -6.0),
            0.03 * spoken("en/2", 8000),
            coded(spoken("en/2", 8000), 8000, "opus", 12000),
            coded(spoken("en/2", 8000), 8000, "pcma"),
        ],
        ids=["longer", "shorter", "drift", "room", "far in a room", "quiet", "opus", "pcma"],
    )
    def test_however_it_got_there(self, changed: Sound) -> None:
        found = find_references(channel([(1, changed)]), 8000, references())
        assert said(found) == ["en/2"]
        assert not found[0].partial

    def test_only_where_it_is_looked_for(self) -> None:
        y = channel([(1, spoken("en/1", 8000)), (8, spoken("en/3", 8000))])
        found = find_references(y, 8000, references(), active=[(7 * 8000, 11 * 8000)])
        assert said(found) == ["en/3"]

    def test_nothing_to_look_for_or_in(self) -> None:
        assert find_references(channel([(1, spoken("en/1", 8000))]), 8000, []) == []
        assert find_references(np.zeros(80000, np.float32), 8000, references()) == []


class TestInPart:
    def test_cut_off_by_the_end_of_the_recording(self) -> None:
        (found,) = find_references(channel([(1, spoken("en/2", 8000))], total_s=2.5), 8000, references())
        assert found.reference.name == "en/2"
        assert found.cut_start_s == 0
        assert found.cut_end_s == pytest.approx(shipped("en/2").end_sample / 48000 - 1.5, abs=0.11)

    @pytest.mark.parametrize("spoken_s", [0.6, 1.1])
    def test_stopped_midway(self, spoken_s: float) -> None:
        x = spoken("en/2", 8000)[: round(spoken_s * 8000)]
        (found,) = find_references(channel([(1, x)]), 8000, references())
        assert found.reference.name == "en/2"
        assert found.cut_end_s > 0.9
        assert found.end_s == pytest.approx(1 + spoken_s, abs=0.11)

    def test_begun_before_the_recording(self) -> None:
        (found,) = find_references(channel([(0, spoken("en/2", 8000)[9000:])], total_s=6), 8000, references())
        assert found.lag_s == pytest.approx(-9000 / 8000, abs=0.001)
        assert found.cut_start_s > 0.9
        assert found.cut_end_s == 0


def joined() -> tuple[Sound, Reference]:
    """A sentence that begins like en/2 and goes on otherwise."""
    x = np.concatenate([spoken("en/2", 8000)[:9000], spoken("de/2", 8000)[9000:]])
    return x, make_reference("joined", x, 8000)


class TestAlike:
    def test_a_common_beginning_is_told_apart(self) -> None:
        x, other = joined()
        both = [*references(), other]
        assert said(find_references(channel([(1, x)]), 8000, both)) == ["joined"]
        assert said(find_references(channel([(1, spoken("en/2", 8000))]), 8000, both)) == ["en/2"]

    def test_a_sentence_that_goes_on_otherwise_is_not_reported(self) -> None:
        x, _ = joined()
        assert find_references(channel([(1, x)]), 8000, [reference("en/2")]) == []

    def test_a_beginning_alone_names_both(self) -> None:
        x, other = joined()
        (found,) = find_references(channel([(1, x[:9000])]), 8000, [reference("en/2"), other])
        assert {found.reference.name, *found.alternatives} == {"en/2", "joined"}
        assert found.partial


class TestNotFound:
    def test_other_words_of_the_same_voices(self) -> None:
        clips = [reply_clip(language, n) for language in shipped_languages() for n in (1, 2)]
        clips += [greeting_clip(language) for language in shipped_languages()]
        items = [(1.0 + 3.5 * i, resample(c.samples, 48000, 8000).astype(np.float64)) for i, c in enumerate(clips)]
        assert find_references(channel(items), 8000, references()) == []

    @pytest.mark.parametrize("name", shipped_names())
    def test_one_that_is_not_among_what_was_said(self, name: str) -> None:
        items = [(1.0 + 4.0 * i, spoken(other, 8000)) for i, other in enumerate(shipped_names()) if other != name]
        assert find_references(channel(items), 8000, [reference(name)]) == []

    def test_music_and_noise(self) -> None:
        t = np.arange(20 * 8000) / 8000
        music = sum(0.05 * np.sin(2 * np.pi * f * t) * (np.sin(2 * np.pi * k * t) > 0) for k, f in ((1, 220), (2, 330)))
        gusts = 0.1 * np.random.default_rng(1).standard_normal(len(t)) * (np.sin(2 * np.pi * 0.7 * t) > 0)
        assert find_references(channel([(1, np.asarray(music)), (22, gusts)], total_s=45), 8000, references()) == []
