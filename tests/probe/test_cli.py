"""The command line: one clear line and the contract's exit code for what goes wrong, and text that nothing breaks."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from analysis.bundle import CallRecord
from analysis.call import ASSUMED_OUTPUT
from analysis.codecs import CODECS, encode
from analysis.pcap import Direction
from analysis.rtp import RtpPacket, serialize_rtp
from probe.agent.config import AgentConfig
from probe.cli import EXIT_FAULT, main
from probe.cli.common import conditions, policy_list
from probe.cli.output import CELL_CHARS, Sink, printable, shortened
from probe.cli.result_text import print_table
from probe.recorder import BundleWriter
from probe.session import SessionReport

# A call over G.711 at 8 kHz whose one reply is planted: 700 ms after the words ended, with 60 ms of silence before it.
FRAME_NS, SIZE = 20_000_000, 160
ZERO_NS = 5_000_000_000_000
START_NS = ZERO_NS + 50 * FRAME_NS
STOP_NS = START_NS + 1_000_000_000
REPLY_MS, SILENCE_MS, OUTPUT_MS = 700, 60, round(ASSUMED_OUTPUT.ms)
LATENCY_MS = REPLY_MS + SILENCE_MS + 100 + OUTPUT_MS  # under fixed:100
TURN_COLUMNS = ["turn", "lang", "outcome", "latency", "±", "received", "remote", "silence", "buffer"]
HOSTILE = "\x1b[31m\x07\x9b\u202eevil\r\n"


# /dev/full, and file names that are any bytes
linux = pytest.mark.skipif(sys.platform != "linux", reason="needs Linux")


class FixedClock:
    """A clock that stands still; wall time is monotonic time."""

    def monotonic_ns(self) -> int:
        return ZERO_NS

    def wall_ns(self) -> int:
        return ZERO_NS


def session(path: Path, *, replies: bool = True, manifest: Mapping[str, Any] | None = None, **turn: Any) -> Path:
    """A session's folder with one planted turn; without the reply its record ends too early to tell."""
    settings = {"index": 0, "language": "en", "timeout_s": 2.0, "flags": [], **turn}
    writer = BundleWriter(path, {"call": 0, "turns": [settings], **(manifest or {})}, FixedClock())
    writer.event("media_negotiated", ZERO_NS, payload_types={"0": "pcmu"}, send={"codec": "pcmu"})
    writer.event("media_started", ZERO_NS, deadline0_ns=ZERO_NS + FRAME_NS, frame_ns=FRAME_NS)
    writer.event("sent_origin", ZERO_NS, ssrc=9, rtp_timestamp=0)
    writer.event(
        "turn_started",
        START_NS,
        turn=0,
        due_ns=START_NS,
        first_frame=50,
        first_deadline_ns=START_NS + FRAME_NS,
        start_sample=0,
        end_sample=47_999,
        rate_hz=48_000,
        end_threshold_dbov=-60.0,
        end_shift_ms={"-10": 0.0, "+10": 0.0},
    )
    for i in range(110):
        packet = RtpPacket(0, i, i * SIZE, 9, b"\xff" * SIZE)
        writer.packet(ZERO_NS + (i + 1) * FRAME_NS, Direction.SENT, serialize_rtp(packet))
    if replies:
        tone = 0.1 * np.sin(np.arange(8000) * 2 * np.pi * 500 / 8000 + 1)
        sound = np.concatenate((np.zeros(8 * SILENCE_MS), tone, np.zeros(800))).astype(np.float32)
        for i, payload in enumerate(encode(CODECS["pcmu"], sound)):
            arrival_ns = STOP_NS + REPLY_MS * 1_000_000 + i * FRAME_NS
            writer.packet(arrival_ns, Direction.RECEIVED, serialize_rtp(RtpPacket(0, i, i * SIZE, 7, payload)))
        writer.event("call_ended", STOP_NS + 3_000_000_000, reason="done")
    writer.close()
    return path


def command(*arguments: object, python: Sequence[str] = (), **options: Any) -> subprocess.Popen[bytes]:
    """The command line as a process of its own."""
    line = [sys.executable, *python, "-m", "probe", *map(str, arguments)]
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(line, **{**pipes, **options})


def probe(*arguments: object, cwd: Path | None = None, **environment: str) -> tuple[int, str, str]:
    process = command(*arguments, cwd=cwd, env={**os.environ, **environment})
    stdout, stderr = process.communicate(timeout=60)
    assert b"Traceback" not in stderr, stderr
    return process.returncode, stdout.decode(), stderr.decode()


def called(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    """As `probe`, in this process."""
    with pytest.raises(SystemExit) as left:
        main([*map(str, arguments)])
    printed = capsys.readouterr()
    assert isinstance(left.value.code, int)
    return left.value.code, printed.out, printed.err


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
def test_bad_input_is_one_line_and_exit_2(
    arguments: list[str],
    said: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    code, stdout, stderr = called(capsys, *arguments)
    assert code == 2
    assert stdout == ""
    assert len(stderr.splitlines()) == 1
    assert stderr.startswith("latency-probe: ")
    assert said in stderr
    assert not list(tmp_path.iterdir())


def test_scenario_with_a_wrong_key(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "s.toml").write_text('[[turns]]\nutterance = "en/1"\npauze_ms = 3\n')
    code, _, stderr = called(capsys, "run", "demo:", "--scenario", "s.toml")
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


def test_every_command_has_an_example(capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("demo", "run", "analyze", "replay", "playout", "report", "doctor"):
        code, stdout, _ = called(capsys, name, "--help")
        assert code == 0
        assert f"Example: latency-probe {name}" in stdout


def test_no_command_is_wrong_and_shows_the_commands(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = called(capsys)
    assert (code, out) == (2, "")
    assert "Commands:" in err.splitlines()


class TestText:
    """What a person reads: on any terminal, of any bundle."""

    def test_a_terminal_that_has_no_such_characters(self, tmp_path: Path) -> None:
        path = session(tmp_path / "日本", language="日本")
        code, out, _ = probe("analyze", path, LC_ALL="C", PYTHONIOENCODING="ascii")
        assert code == 0
        assert out.isascii()
        assert "??" in out

    def test_a_document_is_utf_8_whatever_the_locale(self, tmp_path: Path) -> None:
        path = session(tmp_path / "日本", language="日本")
        code, out, _ = probe("analyze", path, "--json", LC_ALL="C", PYTHONIOENCODING="ascii")
        document = json.loads(out)
        assert code == 0
        assert document["source"]["path"] == str(path)
        assert document["turns"][0]["language"] == "日本"

    @linux
    def test_a_path_of_any_bytes(self, tmp_path: Path) -> None:
        path = session(tmp_path / os.fsdecode(b"\xff\x1b[31m"))
        assert "\ufffd" in json.loads(probe("analyze", path, "--json")[1])["source"]["path"].replace("?", "\ufffd")
        code, out, _ = probe("report", path, "-o", tmp_path / os.fsdecode(b"\xfe\x1b.html"))
        assert code == 0
        assert out.rstrip("\n").endswith("\ufffd\ufffd.html")
        code, _, err = probe("analyze", tmp_path / os.fsdecode(b"\xfe\x1babsent"))
        assert code == 2
        assert len(err.splitlines()) == 1
        assert err.rstrip("\n").isprintable()

    def test_a_narrow_terminal_cuts_no_figure(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("COLUMNS", "40")
        _, out, _ = called(capsys, "replay", session(tmp_path / "s"), "--policy", "fixed:100,none")
        lines = out.splitlines()
        assert lines[0].split() == TURN_COLUMNS
        figures = [
            str(LATENCY_MS),
            f"{ASSUMED_OUTPUT.uncertainty_ms:.0f}",
            str(REPLY_MS + SILENCE_MS),
            str(REPLY_MS),
            str(SILENCE_MS),
            "100",
        ]
        assert lines[1].split() == ["0", "en", "answered", *figures]
        at = lines.index("turn  fixed:100  none")
        assert lines[at + 1].split() == ["0", str(LATENCY_MS), str(REPLY_MS + SILENCE_MS)]

    @pytest.mark.parametrize("columns", ["1", "40", "400"])
    def test_a_table_is_as_wide_as_its_figures(
        self, columns: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("COLUMNS", columns)
        figures = [str(10**k) for k in range(40)]
        print_table([f"column {k}" for k in range(40)], [figures])
        head, row = capsys.readouterr().out.splitlines()
        assert row.split() == figures
        assert head.split() == [word for k in range(40) for word in ("column", str(k))]

    def test_foreign_text_neither_reaches_the_terminal_nor_pushes_figures_out(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        evil = HOSTILE + "A" * 5000
        path = session(tmp_path / "s", language=evil, flags=[evil, f"b{evil}"], segment={evil: evil})
        with (path / "events.jsonl").open("a") as file:
            file.write("damage\n")
        _, out, err = called(capsys, "replay", path, "--policy", "fixed:100,chrome")
        for line in (*out.split("\n"), *err.split("\n")):
            assert line.isprintable()
        row = next(line for line in out.splitlines() if line.startswith("0 "))
        words = row.split()
        assert words[words.index("answered") + 1] == str(LATENCY_MS)
        assert row.index("answered") <= len("turn  ") + CELL_CHARS + 2
        assert "A" * CELL_CHARS not in out

    def test_words_are_cut_and_cleaned(self) -> None:
        assert printable("a\x1b\n\u202e\ud800b") == "a\ufffd\ufffd\ufffd\ufffdb"
        assert shortened("x" * 40) == "x" * 40
        assert shortened("x" * 41) == "x" * 39 + "…"


class TestInterrupt:
    def test_while_the_commands_load_is_silent(self) -> None:
        process = command("--help", python=["-X", "importtime"])
        assert process.stderr is not None
        seen = []
        for line in process.stderr:
            seen.append(line)
            if b"numpy" in line:  # the first of its modules has been loaded: many more are to come
                process.send_signal(signal.SIGINT)
                break
        out, rest = process.communicate(timeout=60)
        said = [line for line in b"".join([*seen, rest]).splitlines() if not line.startswith(b"import time:")]
        assert (process.returncode, out, said) == (130, b"", [])

    def test_nothing_heavy_is_loaded_before_an_interrupt_is_minded(self) -> None:
        heavy = "{'numpy', 'typer', 'rich', 'asyncio', 'scipy', 'av'}"
        code = f"import sys, probe.cli; sys.exit(bool({heavy} & set(sys.modules)))"
        assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0

    def test_after_the_call_says_how_to_get_the_result(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        path = tmp_path / "a session"

        def recorded(*_: Any, out: Path, **__: Any) -> SessionReport:
            return SessionReport((session(out),), (), False)

        def interrupted(*_: Any) -> None:
            raise KeyboardInterrupt

        monkeypatch.setattr("probe.cli.run.run_session", recorded)
        monkeypatch.setattr("probe.cli.run.write_derived", interrupted)
        code, out, err = called(capsys, "demo", "--out", path)
        assert (code, out) == (130, "")
        assert len(err.splitlines()) == 1
        assert f"latency-probe analyze '{path}'" in err
        assert called(capsys, "analyze", path)[0] == 0

    @pytest.mark.parametrize("name", ["analyze", "replay", "report"])
    def test_of_a_command_that_reads_is_silent(
        self, name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def interrupted(*_: Any, **__: Any) -> None:
            raise KeyboardInterrupt

        monkeypatch.setattr("probe.cli.common.derive", interrupted)
        assert called(capsys, name, session(tmp_path / "s")) == (130, "", "")


class TestStdout:
    """A disk that is full, and a reader that has gone."""

    @linux
    @pytest.mark.parametrize("arguments", [["analyze", "s"], ["analyze", "s", "--json"], ["--help"], ["report", "s"]])
    def test_a_full_disk_is_one_line_and_exit_4(self, arguments: list[str], tmp_path: Path) -> None:
        session(tmp_path / "s")
        with open("/dev/full", "wb") as full:
            process = command(*arguments, cwd=tmp_path, stdout=full)
            _, err = process.communicate(timeout=60)
        assert process.returncode == 4
        assert len(err.splitlines()) == 1
        assert b"standard output: cannot be written (No space left on device)" in err

    @pytest.mark.parametrize(
        ("arguments", "code"),
        [(["analyze", "s"], 0), (["analyze", "s", "--json"], 0), (["analyze", "cut"], 3), (["--help"], 0)],
    )
    def test_a_reader_that_has_gone_changes_nothing(self, arguments: list[str], code: int, tmp_path: Path) -> None:
        session(tmp_path / "s")
        session(tmp_path / "cut", replies=False)
        reader, writer = os.pipe()
        os.close(reader)
        process = command(*arguments, cwd=tmp_path, stdout=writer)
        os.close(writer)
        assert process.communicate(timeout=60) == (None, b"")
        assert process.returncode == code

    @linux
    def test_stderr_that_cannot_be_written_changes_nothing(self, tmp_path: Path) -> None:
        with open("/dev/full", "wb") as full:
            process = command("analyze", "absent", cwd=tmp_path, stderr=full)
            process.communicate(timeout=60)
        assert process.returncode == 2

    def test_a_pipe_that_does_not_block_gets_everything(self) -> None:
        reader, writer = os.pipe()
        os.set_blocking(writer, False)
        found = bytearray()

        def read() -> None:
            while piece := os.read(reader, 4096):
                found.extend(piece)

        thread = threading.Thread(target=read)
        thread.start()
        data = os.urandom(1 << 20)  # many times what a pipe holds
        sink = Sink(writer)
        assert sink.write(data) == len(data)
        os.close(writer)
        thread.join(timeout=60)
        os.close(reader)
        assert bytes(found) == data
        assert sink.failure is None


class TestFault:
    @pytest.mark.parametrize(
        "fault", [RuntimeError(f"odd {HOSTILE}"), SystemExit(1), asyncio.CancelledError(), OSError(5, "x")]
    )
    def test_a_fault_of_the_program_is_no_code_of_the_contract(
        self, fault: BaseException, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        def broken(*_: Any, **__: Any) -> None:
            raise fault

        monkeypatch.setattr("probe.cli.common.derive", broken)
        code, out, err = called(capsys, "analyze", session(tmp_path / "s"))
        assert EXIT_FAULT not in {0, 1, 2, 3, 4, 130}
        assert (code, out) == (EXIT_FAULT, "")
        *trace, last = err.split("\n")[:-1]
        assert trace[0].startswith("Traceback")
        assert all(line.isprintable() for line in trace)
        assert last.startswith("latency-probe: a fault of this program")

    def test_a_command_that_cannot_even_load(
        self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setitem(sys.modules, "probe.cli.run", None)
        assert called(capsys, "doctor")[0] == EXIT_FAULT


class TestPolicies:
    def test_each_once_in_its_one_spelling(self) -> None:
        assert policy_list("fixed:100, fixed:100.0,chrome,fixed:0100.00,chrome") == ("fixed:100", "chrome")

    def test_no_variant_is_the_headline_spelled_otherwise(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        policies = "fixed:100.0,fixed:100,none"
        document = json.loads(called(capsys, "replay", session(tmp_path / "s"), "--policy", policies, "--json")[1])
        (turn,) = document["turns"]
        assert document["boundaries"]["policy"] == "fixed:100"
        # to a sample of 8 kHz at the one end and of 48 kHz at the other
        assert turn["latency_ms"] == pytest.approx(LATENCY_MS, abs=0.15)
        assert turn["variants_ms"] == {"none": pytest.approx(REPLY_MS + SILENCE_MS, abs=0.15)}


class TestReport:
    @pytest.fixture
    def result(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
        """A result file apart from its session."""
        (tmp_path / "r").mkdir()
        path = tmp_path / "r" / "result.json"
        path.write_text(called(capsys, "analyze", session(tmp_path / "first"), "--json")[1])
        return path

    def test_of_a_result_file_says_that_packets_are_not_at_hand(
        self, result: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
    ) -> None:
        pages = []
        for given in (result, result.parent, tmp_path / "first"):
            assert called(capsys, "report", given, "-o", tmp_path / "p.html") == (0, f"{tmp_path / 'p.html'}\n", "")
            pages.append((tmp_path / "p.html").read_text())
        of_file, of_folder, of_session = pages
        assert of_file == of_folder
        assert f"The packets of <bdi>{result}</bdi> are not at hand" in of_file
        assert 'data-kind="waterfall"' in of_file
        assert 'data-kind="arrival"' not in of_file
        assert "not at hand" not in of_session
        assert 'data-kind="arrival"' in of_session

    def test_of_both_counts_both_and_mixes_no_calls(
        self, result: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
    ) -> None:
        clock = {"clock": {"monotonic_ns": ZERO_NS, "wall_ns": ZERO_NS}}
        other = session(tmp_path / "other", manifest=clock | {"target": {"url": "demo:?seed=2"}})
        code, _, err = called(capsys, "report", other, result, result, "-o", tmp_path / "p.html")
        page = (tmp_path / "p.html").read_text()
        assert code == 0
        assert "given twice" in err
        assert "2 calls · 2 turns" in page
        assert ">0·0<" in page
        assert ">1·0<" in page

    @pytest.mark.parametrize(
        ("more", "said"),
        [
            (["--policy", "none"], "stays under the policy"),
            (["--output-delay", "5"], "stays under the policy"),
            (["first"], "belongs to a session"),
            (["other.json"], "another policy"),
            (["first/packets.pcap"], "not JSON"),
            (["first/manifest.json"], "not a result document"),
            (["absent.json"], "no such file"),
            (["empty"], "not a session bundle"),
        ],
    )
    def test_what_cannot_be_put_together_is_one_line(
        self,
        more: list[str],
        said: str,
        result: Path,
        capsys: pytest.CaptureFixture[str],
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        monkeypatch.chdir(tmp_path)
        (tmp_path / "empty").mkdir()
        replayed = called(capsys, "replay", "first", "--policy", "none", "--json")[1]
        (tmp_path / "other.json").write_text(replayed)
        (tmp_path / "first" / "result.json").write_text(result.read_text())
        given = "first/result.json" if more == ["first"] else result
        code, out, err = called(capsys, "report", given, *more)
        assert (code, out) == (2, "")
        assert len(err.splitlines()) == 1
        assert said in err
        assert not (tmp_path / "report.html").exists()

    @pytest.mark.parametrize("value", [["a"], "a", {"a": 1}, {"a": None}, 7])
    def test_a_segment_that_is_none_is_one_line(
        self, value: Any, result: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        document = json.loads(result.read_text())
        document["turns"][0]["segment"] = value
        result.write_text(json.dumps(document))
        code, _, err = called(capsys, "report", result)
        assert code == 2
        assert len(err.splitlines()) == 1
        assert "turns[0].segment" in err

    @linux
    def test_where_the_page_goes(self, result: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
        assert called(capsys, "report", result, "-o", "/dev/full")[0] == 4
        assert Path("/dev/full").is_char_device()
        assert called(capsys, "report", result, "-o", tmp_path)[0] == 2
        assert called(capsys, "report", result, "-o", tmp_path / "absent" / "p.html")[0] == 2
        (tmp_path / "link.html").symlink_to(tmp_path / "p.html")
        assert called(capsys, "report", result, "-o", tmp_path / "link.html")[0] == 0
        assert (tmp_path / "link.html").is_symlink()
        assert (tmp_path / "p.html").read_text().startswith("<!DOCTYPE html>")


class TestConditions:
    @staticmethod
    def of(*manifests: Mapping[str, Any]) -> dict[str, str]:
        return conditions([CallRecord(manifest, (), (), ()) for manifest in manifests])

    @staticmethod
    def agent(**options: Any) -> Mapping[str, Any]:
        return {"target": {"agent": AgentConfig(**options).model_dump(mode="json")}}

    def test_an_agent_is_told_by_what_is_not_as_by_default(self) -> None:
        assert self.of(self.agent())["demo agent"] == "default"
        changed = self.agent(think_ms=[250, 250], barge_in=False, impairment={"delay": {"uniform": {"high_ms": 8}}})
        assert self.of(changed)["demo agent"] == (
            "think_ms=250,250, barge_in=false, impairment.delay.uniform.low_ms=0, impairment.delay.uniform.high_ms=8"
        )
        assert "demo agent" not in self.of({})

    def test_where_sessions_differ_each_value_stands_once(self) -> None:
        made = [{"created": f"day {k % 6}", "target": {"url": "demo:"}} for k in range(9)]
        shown = self.of(*made)
        assert shown["made"] == "day 0; day 1; day 2; day 3; and 2 more"
        assert (shown["target"], shown["calls"]) == ("demo:", "9")

    @pytest.mark.parametrize("value", [None, 1, "x", [1], {"a": {"b": [{}]}}])
    def test_a_manifest_of_another_shape_is_no_fault(self, value: Any) -> None:
        keys = ("scenario", "host", "versions", "target", "command", "created")
        shown = self.of(dict.fromkeys(keys, value), {"target": {"url": value, "agent": value}})
        assert all(isinstance(text, str) for text in shown.values())
