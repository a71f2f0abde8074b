"""The analyzer of openbenchmarks-labs/voice-agent-latency on our files, run by the Python that has what it needs.

It takes a checkout of it and a list of jobs, and imports nothing of this project:

    python -c "import peers_openbenchmarks as p; p.run(CHECKOUT, JOBS, OUT)"

A job is {"wav", "caller_channel", "agent_channel", "turns", "references": [paths in the order said] or null}; what is
written is a list of {"cpu_s", "discard", "turns": [...]} with times in ms as that analyzer gives them.
"""

from __future__ import annotations

import importlib
import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import soundfile

__all__ = ["fixtures", "run"]

RATES_HZ = (8000, 16000)  # its speech detector knows no other; its own harness resamples to 8 kHz


def run(checkout: str, jobs: str, out: str) -> None:
    """Measure every job and write the answers."""
    sys.path.insert(0, checkout)
    answers = [_measure(job) for job in json.loads(Path(jobs).read_text(encoding="utf-8"))]
    Path(out).write_text(json.dumps(answers), encoding="utf-8")


def _measure(job: dict[str, Any]) -> dict[str, Any]:
    measure = importlib.import_module("analyzer.measure")
    resample_int16 = importlib.import_module("analyzer.resample").resample_int16

    def at_its_rate(samples: Any, rate_hz: int, wanted_hz: int) -> Any:
        return samples if rate_hz == wanted_hz else resample_int16(samples, rate_hz, wanted_hz)

    audio, rate_hz = soundfile.read(job["wav"], dtype="int16", always_2d=True)
    wanted_hz = rate_hz if rate_hz in RATES_HZ else RATES_HZ[0]
    sounds = [soundfile.read(path, dtype="int16") for path in job["references"] or ()]
    begun = time.process_time()
    near, far = (
        at_its_rate(np.ascontiguousarray(audio[:, job[key]]), rate_hz, wanted_hz)
        for key in ("caller_channel", "agent_channel")
    )
    if job["references"] is None:
        result = measure.measure_dialog(near, far, job["turns"], wanted_hz)
    else:
        result = measure.measure_turns(near, far, [at_its_rate(x, hz, wanted_hz) for x, hz in sounds], wanted_hz)
    used_s = time.process_time() - begun
    names = ("stimulus_start_ms", "t1_ms", "t2_ms", "ttfab_onset_ms", "ttfab_content_ms", "discard_reason", "flags")
    turns = [{name: getattr(turn, name) for name in names} for turn in result.turns]
    return {"cpu_s": used_s, "discard": result.discard_reason, "turns": turns}


def fixtures(checkout: str, folder: str, out: str) -> None:
    """Have it build its own fixtures with known gaps, and write where they are and what is true of them."""
    sys.path.insert(0, checkout)
    build_all = importlib.import_module("analyzer.fixtures").build_all
    build_all_dialog = importlib.import_module("analyzer.fixtures.dialog").build_all_dialog
    build_all_multiturn = importlib.import_module("analyzer.fixtures.multiturn").build_all_multiturn

    root = Path(folder)
    sources = Path(checkout) / "analyzer" / "fixtures" / "sources"
    found = []
    for name, truth in build_all(root / "single").items():
        at = root / "single"
        turn = {key: truth[key] for key in ("t1", "t2", "ttfab_ms", "stimulus_start")}
        turn.update(content_ms=truth["ttfab_content_ms"], discard=truth["expect_discard"])
        references = [str(at / truth["reference_wav"])]
        found.append(_fixture(name, "single", truth["rate"], at / truth["wav"], references, [turn]))
    for name, truth in build_all_multiturn(root / "multi").items():
        at = root / "multi"
        turns = [{key: row[key] for key in ("t1", "t2", "ttfab_ms", "stimulus_start")} for row in truth["turns"]]
        references = [str(at / row["reference_wav"]) for row in truth["turns"]]
        found.append(_fixture(name, "multi", truth["rate"], at / truth["wav"], references, turns))
    for name, truth in build_all_dialog(root / "dialog").items():
        turns = [
            {key: row[key] for key in ("t1", "t2", "ttfab_ms")}
            | {"stimulus_start": row["start"], "discard": row["expect_discard"]}
            for row in truth["turns"]
        ]
        references = [str(sources / f"{row['clip']}.wav") for row in truth["turns"]]
        recording = Path(truth["call_dir"]) / "recording.wav"
        found.append(_fixture(name, "dialog", truth["rate"], recording, references, turns))
    Path(out).write_text(json.dumps(found), encoding="utf-8")


def _fixture(
    name: str, family: str, rate_hz: int, wav: Path, references: list[str], turns: list[dict[str, Any]]
) -> dict[str, Any]:
    return {
        "name": name,
        "family": family,
        "rate_hz": rate_hz,
        "wav": str(wav),
        "references": references,
        "turns": turns,
    }
