"""Recordings with known truth analysed end to end, and recordings that carry none refused with the reason."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import soundfile
from numpy.typing import NDArray

from analysis.errors import NotMeasurable, UsageError
from analysis.recording import analyze, together
from analysis.result import Result, result_from_text, result_json_text
from benchmarks.recordings_calls import Call, build
from benchmarks.recordings_conditions import CONDITIONS

SEED = 4711


@pytest.fixture(scope="module")
def call() -> Call:
    return build(SEED, CONDITIONS["clean"], 0, turns=6, rate_hz=16_000)


@pytest.fixture(scope="module")
def files(call: Call, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The call as a WAV, and its references (with two that nobody says) in a folder beside it."""
    folder = tmp_path_factory.mktemp("call")
    soundfile.write(folder / "call.wav", call.audio, call.rate_hz, subtype="FLOAT")
    (folder / "said").mkdir()
    for number, (name, sound) in enumerate(call.references.items()):
        clean = "".join(c if c.isalnum() else "-" for c in name)
        soundfile.write(folder / "said" / f"{number:02}{clean}.wav", sound, 48_000, subtype="FLOAT")
    return folder


def references(files: Path) -> list[Path]:
    return sorted((files / "said").iterdir())


def analysed(call: Call, files: Path, **options: object) -> Result:
    return analyze(
        files / "call.wav",
        caller_channel=call.caller_channel,
        agent_channel=call.agent_channel,
        **options,  # type: ignore[arg-type]
    )


class TestKnownUtterances:
    def test_every_turn_as_it_was_planted(self, call: Call, files: Path) -> None:
        result = analysed(call, files, references=references(files))
        assert len(result.turns) == len(call.turns)
        for turn, truth in zip(result.turns, call.turns, strict=True):
            assert turn.outcome in truth.outcomes
            assert turn.speech_stop_s == pytest.approx(truth.speech_stop_s, abs=0.002)
            if truth.latency_ms is not None and turn.latency_ms is not None:
                assert turn.latency_ms == pytest.approx(truth.latency_ms, abs=2.0)
                assert turn.uncertainty_ms is not None
                assert abs(turn.latency_ms - truth.latency_ms) <= turn.uncertainty_ms
                assert turn.uncertainty_ms < 5.0

    def test_what_was_said_how_often_and_what_was_not(self, call: Call, files: Path) -> None:
        about = analysed(call, files, references=references(files)).recording
        assert about is not None
        said = about["references"]
        assert sum(said.values()) == len(call.turns)
        assert sum(times == 0 for times in said.values()) == len(call.decoys)

    def test_the_document_comes_back(self, call: Call, files: Path) -> None:
        result = analysed(call, files, references=references(files))
        text = result_json_text(result)
        assert result_json_text(result_from_text(text)) == text
        assert result.boundaries.end.name == "audible_recorded"
        assert result.boundaries.policy is None
        assert {t.stages_ms == {} for t in result.turns} == {True}

    def test_the_callers_channel_is_told_by_what_is_said_on_it(self, call: Call, files: Path) -> None:
        result = analyze(files / "call.wav", references=references(files))
        assert result.recording is not None
        assert result.recording["caller_channel"] == call.caller_channel
        assert any("is taken as the caller's" in warning for warning in result.recording["warnings"])


class TestUnknownUtterances:
    def test_ends_by_level_with_a_larger_uncertainty(self, call: Call, files: Path) -> None:
        result = analysed(call, files)
        assert all(t.outcome in truth.outcomes for t, truth in zip(result.turns, call.turns, strict=True))
        for turn, truth in zip(result.turns, call.turns, strict=True):
            assert turn.speech_stop_s == pytest.approx(truth.speech_stop_s, abs=0.025)
            if turn.uncertainty_ms is not None:
                assert turn.uncertainty_ms >= 10.0


class TestRefused:
    def wav(self, path: Path, *channels: NDArray[np.floating]) -> Path:
        soundfile.write(path, np.stack(channels, axis=1), 16_000, subtype="FLOAT")
        return path

    def parties(self, call: Call) -> tuple[NDArray[np.floating], NDArray[np.floating]]:
        return call.audio[:, call.caller_channel], call.audio[:, call.agent_channel]

    def test_nobody_says_whose_channel_is_which(self, files: Path) -> None:
        with pytest.raises(UsageError, match="not said") as refused:
            analyze(files / "call.wav")
        assert "--layout" in str(refused.value.next_step)

    def test_one_channel(self, call: Call, tmp_path: Path) -> None:
        with pytest.raises(NotMeasurable) as refused:
            analyze(self.wav(tmp_path / "x.wav", call.audio.mean(axis=1)), layout="twilio")
        assert refused.value.reason == "one_channel"

    def test_the_same_on_both(self, call: Call, tmp_path: Path) -> None:
        mixed = call.audio.mean(axis=1)
        with pytest.raises(NotMeasurable) as refused:
            analyze(self.wav(tmp_path / "x.wav", mixed, mixed), layout="twilio")
        assert refused.value.reason == "same_channels"

    def test_one_channel_holds_the_other(self, call: Call, tmp_path: Path) -> None:
        caller, agent = self.parties(call)
        with pytest.raises(NotMeasurable) as refused:
            analyze(self.wav(tmp_path / "x.wav", caller, agent + caller), layout="twilio")
        assert refused.value.reason in ("channel_is_a_mix", "same_channels")

    @pytest.mark.parametrize("empty", ["caller", "agent"])
    def test_an_empty_channel(self, call: Call, tmp_path: Path, empty: str) -> None:
        caller, agent = self.parties(call)
        pair = (0 * caller, agent) if empty == "caller" else (caller, 0 * agent)
        with pytest.raises(NotMeasurable) as refused:
            analyze(self.wav(tmp_path / "x.wav", *pair), layout="twilio")
        assert refused.value.reason == f"{empty}_channel_empty"

    def test_swapped(self, call: Call, files: Path) -> None:
        with pytest.raises(NotMeasurable) as refused:
            analyze(
                files / "call.wav",
                references=references(files),
                caller_channel=call.agent_channel,
                agent_channel=call.caller_channel,
            )
        assert refused.value.reason == "channels_swapped"

    def test_a_channel_that_starts_late_is_said(self, call: Call, files: Path, tmp_path: Path) -> None:
        caller, agent = self.parties(call)
        late = agent + 1e-4 * np.random.default_rng(0).standard_normal(len(agent)).astype(np.float32)
        late[: 2 * call.rate_hz] = 0.0
        result = analyze(self.wav(tmp_path / "x.wav", caller, late), layout="twilio", references=references(files))
        assert result.recording is not None
        assert any("digital silence for its first 2." in warning for warning in result.recording["warnings"])

    @pytest.mark.parametrize(("caller", "agent"), [(0, 0), (2, 1), (-1, 0)])
    def test_channels_that_are_not_there(self, files: Path, caller: int, agent: int) -> None:
        with pytest.raises(UsageError, match="channel"):
            analyze(files / "call.wav", caller_channel=caller, agent_channel=agent)


def test_several_recordings_as_one(call: Call, files: Path) -> None:
    one = analysed(call, files, references=references(files))
    both = together([one, one])
    assert both.source.calls == 2
    assert len(both.turns) == 2 * len(one.turns)
    assert both.recording == {"recordings": [one.recording, one.recording]}
