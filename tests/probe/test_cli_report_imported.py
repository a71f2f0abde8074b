"""`report` of imported statistics, and what the other commands say of them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from benchmarks.chrome_reference_files import GOLDEN
from probe.cli import main

WALL_NS = 1_796_086_000_000_000_000


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as left:
        main([*map(str, arguments)])
    printed = capsys.readouterr()
    return int(left.value.code or 0), printed.out, printed.err


def imported(folder: Path, lines: list[Any], **source: Any) -> Path:
    """An imported bundle; a line is a snapshot, or text as it is."""
    folder.mkdir(parents=True)
    manifest = {
        "schema": "latency-probe/bundle/1",
        "source": {"kind": "import", "format": "webrtc-internals", "file": "dump.json", **source},
        "clock": {"monotonic_ns": 0, "wall_ns": WALL_NS},
        "turns": [],
        "warnings": ["the dump ends in the middle of a sample"],
    }
    (folder / "manifest.json").write_text(json.dumps(manifest))
    (folder / "stats.jsonl").write_text("".join(f"{x if isinstance(x, str) else json.dumps(x)}\n" for x in lines))
    return folder


def browser(name: str = "spikes") -> list[Any]:
    """A golden run's polls as an importer writes them."""
    polls = json.loads((GOLDEN / f"{name}.stats.json").read_text())
    polls.sort(key=lambda stats: stats["timestamp"])
    begin = polls[0]["timestamp"]
    return [
        {"t_ns": round((p["timestamp"] - begin) * 1e6), "stats": [{**p, "id": f"{p['type']}-1", "kind": "audio"}]}
        for p in polls
    ]


def test_the_page_plots_what_was_reported_and_says_that_nothing_was_measured(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    folder, page = imported(tmp_path / "import", browser(), user_agent="<b>Mozilla</b>"), tmp_path / "page.html"
    code, out, err = run(capsys, "report", folder, "-o", page)
    assert (code, out) == (0, f"{page}\n")
    assert "the dump ends in the middle of a sample" in err
    html = page.read_text()
    assert "No call was measured here" in html
    assert "evidence: reported" in html
    for kind in ("delay", "network", "loss", "distribution"):
        assert html.count(f'data-kind="reported-{kind}"') == 1
    assert "&lt;b&gt;Mozilla&lt;/b&gt;" in html
    assert not re.search(r'(?:src|href)="(?!#)|url\((?!#)|<script|https?://', html)
    assert not re.search(r"P\d+ user latency", html)


def test_several_peer_connections_stand_one_after_the_other(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    for number in (0, 1):
        imported(tmp_path / "import" / f"call-00{number}", browser(), peer_connection=f"12-{number}")
    page = tmp_path / "page.html"
    assert run(capsys, "report", tmp_path / "import", "-o", page)[0] == 0
    html = page.read_text()
    assert html.count('data-kind="reported-delay"') == 2
    assert "<h2>Peer connection 1</h2>" in html
    ids = re.findall(r'\bid="([^"]*)"', html)
    assert len(ids) == len(set(ids))


@pytest.mark.parametrize(
    "lines", [[], ["nonsense"], [{"t_ns": 0, "stats": []}], browser()[:1]], ids=["empty", "broken", "bare", "one"]
)
def test_nothing_to_plot_is_exit_code_3_and_no_page(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, lines: list[Any]
) -> None:
    page = tmp_path / "page.html"
    code, out, err = run(capsys, "report", imported(tmp_path / "import", lines), "-o", page)
    assert (code, out) == (3, "")
    assert "nothing in stats.jsonl that could be plotted" in err
    assert not page.exists()


def test_broken_lines_among_good_ones_are_a_warning(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    hostile = ['{"t_ns": 1, "stats": [', '{"t_ns": 2, "stats": [{"type": "inbound-rtp", "jitter": NaN}]}', "[" * 50_000]
    folder = imported(tmp_path / "import", [hostile[0], *browser()[:100], hostile[2]])
    code, _, err = run(capsys, "report", folder, "-o", tmp_path / "page.html")
    assert code == 0
    assert "stats.jsonl: 2 lines left out: cut off, or no snapshot" in err
    assert run(capsys, "report", imported(tmp_path / "nan", [hostile[1]] * 3), "-o", tmp_path / "nan.html")[0] == 3


@pytest.mark.parametrize("command", ["analyze", "replay"])
def test_nothing_is_measurable_in_imported_statistics(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, command: str
) -> None:
    code, out, err = run(capsys, command, imported(tmp_path / "import", browser()))
    assert (code, out) == (3, "")
    assert len(err.splitlines()) == 1
    assert "nothing measurable, it holds imported statistics; use `latency-probe report`" in err


def test_they_do_not_go_into_one_report_with_a_result(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    folder = imported(tmp_path / "import", browser())
    (tmp_path / "result.json").write_text("{}")
    code, _, err = run(capsys, "report", folder, tmp_path / "result.json", "-o", tmp_path / "page.html")
    assert code == 2
    assert "write a report of each" in err
    assert run(capsys, "report", folder, "--policy", "none", "-o", tmp_path / "page.html")[0] == 2


@pytest.mark.parametrize("out", ["result.json", "call/stats.jsonl", "call/manifest.json", "call/result.json"])
def test_a_page_is_not_written_over_its_input(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, out: str
) -> None:
    imported(tmp_path / "call", browser())
    for name in ("result.json", "call/result.json"):
        (tmp_path / name).write_text("{}")
    monkeypatch.chdir(tmp_path)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    for given in ("result.json",) if out == "result.json" else ("call", "result.json"):
        code, printed, err = run(capsys, "report", given, "-o", out)
        assert (code, printed, len(err.splitlines())) == (2, "", 1)
        assert "would be written over" in err
        assert {path: path.read_bytes() for path in before} == before
