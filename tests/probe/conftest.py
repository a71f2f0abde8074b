"""Real runs of the command line, each in a process of its own; many of them at once, since a call is mostly waiting."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

QUICK = """
spacing = 3.5
timeout = 2.5
greeting_timeout = 2.5
[[turns]]
utterance = "en/1"
[[turns]]
utterance = "en/2"
"""


@dataclass
class Run:
    """One process of `latency-probe`, started; `wait` gives what it printed."""

    process: subprocess.Popen[str]
    out: Path
    done: tuple[int, str, str] | None = field(default=None)

    def wait(self, timeout_s: float = 120) -> tuple[int, str, str]:
        """Exit code, stdout, stderr."""
        if self.done is None:
            stdout, stderr = self.process.communicate(timeout=timeout_s)
            self.done = self.process.returncode, stdout, stderr
        return self.done

    def result(self, code: int = 0) -> dict[str, Any]:
        """The document on stdout, after checking the exit code and that no traceback was shown."""
        got, stdout, stderr = self.wait()
        assert "Traceback" not in stderr, stderr
        assert got == code, f"exit {got}, expected {code}\n{stderr}"
        document: dict[str, Any] = json.loads(stdout)
        return document


Start = Callable[..., Run]


@pytest.fixture(scope="session")
def start(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Start]:
    """Start `latency-probe COMMAND … --out DIR`; processes that are left over are ended."""
    runs: list[Run] = []

    def start(
        command: str,
        *arguments: str,
        scenario: str | None = None,
        out: Path | None = None,
        wrapper: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
    ) -> Run:
        folder = tmp_path_factory.mktemp("run")
        more = []
        if scenario is not None:
            (folder / "scenario.toml").write_text(scenario)
            more += ["--scenario", str(folder / "scenario.toml")]
        out = out or folder / "out"
        line = [*wrapper, sys.executable, "-m", "probe", command, *arguments, *more, "--out", str(out), "--json"]
        process = subprocess.Popen(
            line,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **(environment or {})},
            start_new_session=True,
        )
        runs.append(Run(process, out))
        return runs[-1]

    yield start
    for run in runs:
        if run.process.poll() is None:
            run.process.kill()
            run.process.wait()


def outcomes(result: Mapping[str, Any]) -> list[str]:
    """The outcome of each turn."""
    return [turn["outcome"] for turn in result["turns"]]
