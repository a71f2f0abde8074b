"""Other tools on the files of the benchmark: jobs for their own Python out, turns as ours are written in.

openbenchmarks' analyzer is taken from a checkout that the user names; audio-offset-finder from a Python that has it.
A turn that a tool discards is refused, except that "no_response" is no reply and "barged_reply" an overlap.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from analysis.result import ANSWERED, NO_REPLY, NOT_MEASURABLE, OVERLAPPED, PREMATURE

__all__ = ["Job", "offset_finder", "openbenchmarks", "openbenchmarks_fixtures"]

HERE = Path(__file__).resolve().parent
DISCARDS = {"no_response": NO_REPLY, "barged_reply": OVERLAPPED}
TIMEOUT_S = 3000

Job = Mapping[str, Any]


def openbenchmarks(checkout: Path, python: str, jobs: Sequence[Job], folder: Path) -> list[tuple[float, list[Any]]]:
    """CPU seconds and turns (like ours) for each job of `peers_openbenchmarks`."""
    answers = _run(python, "peers_openbenchmarks", "run", jobs, folder, str(checkout.resolve()))
    return [(answer["cpu_s"], _turns(job, answer)) for job, answer in zip(jobs, answers, strict=True)]


def _turns(job: Job, answer: Mapping[str, Any]) -> list[dict[str, Any]]:
    if answer["discard"] is not None and not answer["turns"]:
        refused = {"outcome": NOT_MEASURABLE, "reason": answer["discard"]}
        return [{"index": i, **refused} for i in range(job["turns"])]
    return [_turn(i, turn, answer) for i, turn in enumerate(answer["turns"])]


def _turn(index: int, turn: Mapping[str, Any], answer: Mapping[str, Any]) -> dict[str, Any]:
    discard = answer["discard"] or turn["discard_reason"]
    latency = turn["ttfab_onset_ms"]
    if discard is None and latency is not None:
        outcome = PREMATURE if latency < 0 else ANSWERED
    else:
        outcome = DISCARDS.get(discard, NOT_MEASURABLE)
    kept = outcome in (ANSWERED, PREMATURE)
    t1, start, content = turn["t1_ms"], turn["stimulus_start_ms"], turn["ttfab_content_ms"]
    return {
        "index": index,
        "outcome": outcome,
        "reason": discard,
        "speech_s": None if start is None else start / 1000,
        "speech_stop_s": None if t1 is None else t1 / 1000,
        "audible_s": turn["t2_ms"] / 1000 if kept else None,
        "content_s": (t1 + content) / 1000 if kept and content is not None else None,
        "latency_ms": latency if kept else None,
        # its flags are notes, none of them warns of an error
        "flags": [],
    }


def offset_finder(python: str, jobs: Sequence[Job], folder: Path) -> list[tuple[float, list[Any]]]:
    """CPU seconds and turns that hold nothing but the caller's end, for each job of `peers_offset_finder`."""
    answers = _run(python, "peers_offset_finder", "run", jobs, folder)
    return [
        (answer["cpu_s"], [{"index": i, "speech_stop_s": end} for i, end in enumerate(answer["ends_s"])])
        for answer in answers
    ]


def openbenchmarks_fixtures(checkout: Path, python: str, folder: Path) -> list[dict[str, Any]]:
    """Its own recordings with known gaps, built by its own code into `folder`."""
    out = folder / "fixtures.json"
    _python(python, f"p.fixtures({str(checkout.resolve())!r}, {str(folder)!r}, {str(out)!r})", "peers_openbenchmarks")
    found: list[dict[str, Any]] = json.loads(out.read_text(encoding="utf-8"))
    return found


def _run(python: str, module: str, function: str, jobs: Sequence[Job], folder: Path, *first: str) -> list[Any]:
    asked, answered = folder / f"{module}.jobs.json", folder / f"{module}.answers.json"
    asked.write_text(json.dumps(list(jobs)), encoding="utf-8")
    arguments = ", ".join(repr(text) for text in (*first, str(asked), str(answered)))
    _python(python, f"p.{function}({arguments})", module)
    answers: list[Any] = json.loads(answered.read_text(encoding="utf-8"))
    return answers


def _python(python: str, statement: str, module: str) -> None:
    code = f"import sys; sys.path.insert(0, {str(HERE)!r}); import {module} as p; {statement}"
    subprocess.run([python, "-c", code], check=True, timeout=TIMEOUT_S, stdin=subprocess.DEVNULL)
