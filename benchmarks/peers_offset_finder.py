"""audio-offset-finder (BBC, PyPI) on our files: where a reference lies in a channel, run by the Python that has it.

It measures one thing, so only the caller's end is compared: the offset it finds plus the reference's own end. It is
given the part of the channel that holds one utterance, with 3 s before and after it, at its default 8 kHz.
"""

from __future__ import annotations

import importlib
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import soundfile
from scipy.signal import resample_poly

__all__ = ["run"]

AROUND_S = 3.0
RATE_HZ = 8000


def run(jobs: str, out: str) -> None:
    """A job is {"wav", "channel", "turns": [{"start_s", "stop_s", "reference", "end_s"}]}; ends are written."""
    answers = [_measure(job) for job in json.loads(Path(jobs).read_text(encoding="utf-8"))]
    Path(out).write_text(json.dumps(answers), encoding="utf-8")


def _measure(job: dict[str, Any]) -> dict[str, Any]:
    finder = importlib.import_module("audio_offset_finder.audio_offset_finder")

    audio, rate_hz = soundfile.read(job["wav"], dtype="int16", always_2d=True)
    channel = resample_poly(audio[:, job["channel"]].astype(float), RATE_HZ, rate_hz)
    ends: list[float | None] = []
    used_s = 0.0
    for turn in job["turns"]:
        sound, sound_hz = soundfile.read(turn["reference"], dtype="int16")
        reference = resample_poly(sound.astype(float), RATE_HZ, sound_hz)
        first = max(0, int((turn["start_s"] - AROUND_S) * RATE_HZ))
        part = channel[first : int((turn["stop_s"] + AROUND_S) * RATE_HZ)]
        # digital silence has no spread to divide by
        part = part + np.random.default_rng(0).standard_normal(len(part))
        reference = reference + np.random.default_rng(1).standard_normal(len(reference))
        begun = time.process_time()
        try:
            found = finder.find_offset_between_buffers(part, reference, RATE_HZ)
            ends.append(first / RATE_HZ + float(found["time_offset"]) + turn["end_s"])
        except finder.InsufficientAudioException:
            ends.append(None)
        used_s += time.process_time() - begun
    return {"cpu_s": used_s, "ends_s": ends}
