"""The command line on bad input: one clear line with the next step, the contract's exit code, and never a traceback."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest


def probe(*arguments: str, cwd: Path | None = None) -> tuple[int, str, str]:
    done = subprocess.run(
        [sys.executable, "-m", "probe", *arguments],
        capture_output=True,
        text=True,
        check=False,
        cwd=cwd,
        timeout=60,
        stdin=subprocess.DEVNULL,
    )
    assert "Traceback" not in done.stderr, done.stderr
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["run", "nowhere:"], "targets that are installed: demo:"),
        (["run", "demo:?endpoint_silense_ms=1"], "did you mean endpoint_silence_ms"),
        (["run", "demo:absent.toml"], "cannot be read"),
        (["run", "demo:", "--scenario", "absent.toml"], "absent.toml"),
        (["run", "demo:", "--rate", "0"], "--rate"),
        (["run", "demo:", "--calls", "0"], "--calls"),
        (["run", "demo:", "--policy", "magic"], "magic"),
        (["run", "demo:", "--output-delay", "nan"], "--output-delay"),
        (["run"], "TARGET"),
        (["demo", "--turns", "x"], "--turns"),
        (["demo", "--nonsense"], "--nonsense"),
        (["analyze", "absent"], "no such file or folder"),
        (["analyze", "."], "not a session bundle"),
        (["replay", ".", "--policy", "fixed:-1"], "fixed"),
        (["report", "absent", "-o", "x.html"], "absent"),
        (["frobnicate"], "frobnicate"),
    ],
)
def test_bad_input_is_one_line_and_exit_2(arguments: list[str], said: str, tmp_path: Path) -> None:
    code, stdout, stderr = probe(*arguments, cwd=tmp_path)
    assert code == 2
    assert stdout == ""
    assert len(stderr.splitlines()) == 1
    assert stderr.startswith("latency-probe: ")
    assert said in stderr
    assert not list(tmp_path.iterdir())


def test_scenario_with_a_wrong_key(tmp_path: Path) -> None:
    (tmp_path / "s.toml").write_text('[[turns]]\nutterance = "en/1"\npauze_ms = 3\n')
    code, _, stderr = probe("run", "demo:", "--scenario", "s.toml", cwd=tmp_path)
    assert code == 2
    assert len(stderr.splitlines()) == 1
    assert "s.toml" in stderr
    assert "turns[0].pauze_ms" in stderr
    assert "pause_ms" in stderr


@pytest.mark.parametrize("content", [b"", b"RIFF\0\0\0\0WAVE", b"not a sound at all"])
def test_clip_that_cannot_be_used(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "clip.wav").write_bytes(content)
    (tmp_path / "s.toml").write_text('[[turns]]\nfile = "clip.wav"\n')
    code, _, stderr = probe("run", "demo:", "--scenario", "s.toml", cwd=tmp_path)
    assert code == 2
    assert len(stderr.splitlines()) == 1
    assert "clip.wav" in stderr


def test_a_folder_that_holds_something_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "precious").write_text("x")
    code, _, stderr = probe("demo", "--out", "out", cwd=tmp_path)
    assert code == 2
    assert "is not empty" in stderr
    assert (tmp_path / "out" / "precious").read_text() == "x"


def test_every_command_has_an_example(tmp_path: Path) -> None:
    for command in ("demo", "run", "analyze", "replay", "report", "doctor"):
        code, stdout, _ = probe(command, "--help", cwd=tmp_path)
        assert code == 0
        assert f"Example: latency-probe {command}" in stdout
