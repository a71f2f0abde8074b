"""Generated calls as files, as a user would have them: WAV recordings, references beside them, the truth as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import numpy as np
import soundfile
from numpy.typing import NDArray

from benchmarks.recordings_calls import Call, build
from benchmarks.recordings_conditions import CONDITIONS
from benchmarks.recordings_truth import TurnTruth
from probe.utterances import RATE_HZ, annotate

__all__ = ["Files", "Library", "long_recording"]

Sound = NDArray[np.float32]


class Files:
    """Where the files of one call are: `references` by name, `in_order` as they were said."""

    def __init__(self, wav: Path, references: dict[str, Path], in_order: list[Path], replies: list[Path]) -> None:
        self.wav, self.references, self.in_order, self.replies = wav, references, in_order, replies


class Library:
    """A folder that calls are written to; a reference that several calls share is written once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._sounds: dict[str, Path] = {}
        self._ends_s: dict[Path, float] = {}
        folder.mkdir(parents=True, exist_ok=True)

    def write(self, call: Call, *, truth: bool = False) -> Files:
        """The recording (16 bit), its references and the agent's clips; `truth` adds the JSON."""
        stem = f"{call.condition}-{call.number:04d}"
        wav = self.folder / f"{stem}.wav"
        soundfile.write(wav, call.audio, call.rate_hz, subtype="PCM_16")
        references = {name: self.sound(name, sound, stem) for name, sound in call.references.items()}
        replies = [self.sound(f"reply/{name}", sound, stem) for name, sound in call.replies.items()]
        if truth:
            text = json.dumps(call.document(), indent=1)
            wav.with_suffix(".truth.json").write_text(text + "\n", encoding="utf-8")
        return Files(wav, references, [references[turn.reference] for turn in call.turns], replies)

    def sound(self, name: str, sound: Sound, stem: str) -> Path:
        """A reference as a file at 48 kHz; what was edited for one call is kept under that call's name."""
        key = f"{stem}/{name}" if "+" in name else name
        if key not in self._sounds:
            path = self.folder / "references" / f"{key.replace('/', '-')}.wav"
            path.parent.mkdir(exist_ok=True)
            soundfile.write(path, sound, RATE_HZ, subtype="PCM_16")
            self._sounds[key] = path
        return self._sounds[key]

    def trimmed(self, path: Path) -> Path:
        """The reference cut to what is audible in it, as tools want it that take its end for the end of speech."""
        out = path.with_name(f"{path.stem}.trimmed.wav")
        if not out.exists():
            sound, _ = soundfile.read(path, dtype="float32")
            found = annotate(sound)
            assert found is not None
            soundfile.write(out, sound[found.start_sample : found.end_sample + 1], RATE_HZ, subtype="PCM_16")
        return out

    def end_s(self, path: Path) -> float:
        """The last audible sample of a reference, in seconds."""
        if path not in self._ends_s:
            sound, _ = soundfile.read(path, dtype="float32")
            found = annotate(sound)
            assert found is not None
            self._ends_s[path] = found.end_sample / RATE_HZ
        return self._ends_s[path]


def long_recording(
    library: Library, duration_s: float, rate_hz: int, seed: int
) -> tuple[Path, list[Path], list[TurnTruth], float]:
    """A recording of any length, written call after call so that memory stays flat: caller on channel 0.

    Returns
    -------
    (path, references, turns, seconds)
    """
    wav = library.folder / f"long-{rate_hz}.wav"
    references: dict[str, Path] = {}
    turns: list[TurnTruth] = []
    frames = number = 0
    with soundfile.SoundFile(wav, "w", rate_hz, 2, "PCM_16") as file:
        while frames < duration_s * rate_hz:
            call = build(seed, CONDITIONS["clean"], number, rate_hz=rate_hz)
            file.write(call.audio if call.caller_channel == 0 else call.audio[:, ::-1])
            references.update({name: library.sound(name, sound, wav.stem) for name, sound in call.references.items()})
            turns += _later(call.turns, len(turns), frames / rate_hz)
            frames, number = frames + len(call.audio), number + 1
    return wav, list(references.values()), turns, frames / rate_hz


def _later(turns: Iterable[TurnTruth], index: int, by_s: float) -> list[TurnTruth]:
    def moved(value: float | None) -> float | None:
        return None if value is None else value + by_s

    return [
        replace(
            turn,
            index=index + turn.index,
            speech_s=moved(turn.speech_s),
            speech_stop_s=moved(turn.speech_stop_s),
            any_s=moved(turn.any_s),
            audible_s=moved(turn.audible_s),
            content_s=moved(turn.content_s),
            events=tuple((what, start + by_s, stop + by_s) for what, start, stop in turn.events),
        )
        for turn in turns
    ]
