"""The `import` command: bundles from dumps, private and whole or not there, and what it says of bad input."""

from __future__ import annotations

import errno
import json
import stat
from pathlib import Path
from typing import Any

import pytest

from analysis.bundle import SCHEMA, find_calls
from probe.cli import import_ as module
from probe.cli import main

GOLDEN = Path(__file__).parents[1] / "golden" / "dumps"


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as left:
        main(["import", *map(str, arguments)])
    printed = capsys.readouterr()
    return int(left.value.code or 0), printed.out, printed.err


def lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "stats.jsonl").read_text().splitlines()]


def manifest_of(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "manifest.json").read_text())
    assert found["schema"] == SCHEMA
    return found


def test_each_peer_connection_becomes_a_bundle(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    out = tmp_path / "call"
    code, printed, _ = run(capsys, GOLDEN / "chromium156_internals.gz", "-o", out)
    assert code == 0
    assert printed.count("11 snapshots over 10.0 s") == 2
    folders = find_calls(out)
    assert [folder.name for folder in folders] == ["call-000", "call-001"]
    for number, folder in enumerate(folders):
        manifest = manifest_of(folder)
        assert manifest["call"] == number
        assert manifest["turns"] == []
        assert manifest["source"]["kind"] == "import"
        assert manifest["source"]["format"] == "webrtc-internals"
        assert manifest["source"]["file"] == "chromium156_internals.gz"
        assert manifest["source"]["peer_connection"] == f"8-{number + 1}"
        assert "HeadlessChrome/156" in manifest["source"]["user_agent"]
        snapshots = lines(folder)
        assert len(snapshots) == 11
        assert snapshots[0]["t_ns"] == 0
        assert snapshots[-1]["t_ns"] == pytest.approx(10.008e9, abs=1e6)
        # t_ns is on the manifest's clock: both lead to the time that the browser gave
        local = [o for o in snapshots[-1]["stats"] if not o["type"].startswith("remote-")]
        wall_ms = (manifest["clock"]["wall_ns"] + snapshots[-1]["t_ns"] - manifest["clock"]["monotonic_ns"]) / 1e6
        assert wall_ms == pytest.approx(max(o["timestamp"] for o in local), abs=0.01)
        assert all({"id", "type", "timestamp"} <= o.keys() for snapshot in snapshots for o in snapshot["stats"])


def test_one_peer_connection_is_the_folder_itself(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    code, out, err = run(capsys, GOLDEN / "before_m117.json", "-o", tmp_path / "call", "--json")
    assert code == 0
    found = json.loads(out)
    assert found["schema"] == "latency-probe/import/1"
    assert found["format"] == "webrtc-internals"
    assert any("21-2" in warning for warning in found["warnings"])
    (call,) = found["calls"]
    assert call["path"] == str(tmp_path / "call")
    assert (call["peer_connection"], call["snapshots"], call["duration_s"]) == ("21-1", 6, 5.0)
    assert call["types"] == {"inbound-rtp": 6, "track": 6, "local-candidate": 6}
    assert any("spaced evenly" in warning for warning in call["warnings"])
    assert "spaced evenly" in err
    assert len(lines(tmp_path / "call")) == 6
    # what the dump lacks, the bundle says
    assert any("spaced evenly" in warning for warning in manifest_of(tmp_path / "call")["warnings"])


def test_bundles_are_private_and_hold_no_secret(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    for name in ("chromium156_internals.gz", "before_m117.json", "rtcstats_v2.txt"):
        run(capsys, GOLDEN / name, "-o", tmp_path / name)
        for path in (tmp_path / name).rglob("*"):
            assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600)
            if path.is_file():
                text = path.read_text()
                for secret in ("s3cr3t", "abcdef", "ufr4g", "p4ssw0rd", "iceServers"):
                    assert secret not in text


def test_a_cut_dump_says_so_in_the_bundle(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    cut = tmp_path / "cut.gz"
    cut.write_bytes((GOLDEN / "chromium156_internals.gz").read_bytes()[:-2000])
    code, _, err = run(capsys, cut, "-o", tmp_path / "call")
    assert code == 0
    assert "cut off" in err
    for folder in find_calls(tmp_path / "call"):
        assert any("cut off" in warning for warning in manifest_of(folder)["warnings"])


def test_a_dump_without_statistics_exits_with_3(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "none.json"
    path.write_text('{"getUserMedia": [], "PeerConnections": {"1-1": {"stats": {}}}, "UserAgent": "x"}')
    code, out, err = run(capsys, path, "-o", tmp_path / "call", "--json")
    assert (code, out) == (3, "")
    assert "no statistics" in err
    assert not (tmp_path / "call").exists()


@pytest.mark.parametrize("text", ["", "{}", "[[", "no dump", "\x1f\x8bno gzip"])
def test_other_files_exit_with_2_and_one_line(capsys: pytest.CaptureFixture[str], tmp_path: Path, text: str) -> None:
    path = tmp_path / "x"
    path.write_bytes(text.encode("latin-1"))
    code, out, err = run(capsys, path, "-o", tmp_path / "call")
    assert (code, out) == (2, "")
    assert len([line for line in err.splitlines() if "warning" not in line]) == 1
    assert "give a dump" in err
    assert not (tmp_path / "call").exists()


def test_nothing_is_written_over(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("kept")
    code, _, err = run(capsys, GOLDEN / "legacy.json", "-o", tmp_path)
    assert code == 2
    assert "is not empty" in err
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]
    assert run(capsys, GOLDEN / "legacy.json", "-o", tmp_path / "mine")[0] == 2
    assert run(capsys, GOLDEN / "legacy.json", "-o", tmp_path / "mine" / "below")[0] == 2
    assert (tmp_path / "mine").read_text() == "kept"
    assert run(capsys, GOLDEN / "legacy.json")[0] == 2  # without -o


@pytest.mark.parametrize("failing", [0, 1, 2, 3])
def test_a_disk_that_fails_leaves_no_half_a_bundle(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: int
) -> None:
    written: list[Path] = []

    def write(path: Path, data: bytes) -> None:
        if len(written) == failing:
            raise OSError(errno.ENOSPC, "No space left on device")
        written.append(path)
        path.write_bytes(data)

    monkeypatch.setattr(module, "write_private", write)
    code, out, err = run(capsys, GOLDEN / "chromium156_internals.gz", "-o", tmp_path / "call")
    assert (code, out) == (4, "")
    assert "No space left" in err
    assert list((tmp_path / "call").iterdir()) == []


def test_a_bundle_is_not_made_of_its_input_or_in_a_session(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    dump = tmp_path / "dump.json"
    dump.write_text("{}")
    (tmp_path / "call").mkdir()
    (tmp_path / "call" / "manifest.json").write_text("{}")
    for out in (dump, tmp_path / "call" / "packets.pcap", tmp_path / "call" / "utterances" / "x"):
        code, _, err = run(capsys, dump, "-o", out)
        assert code == 2
        assert str(out) in err
        assert "-o" in err
    assert sorted(p.name for p in tmp_path.rglob("*")) == ["call", "dump.json", "manifest.json"]
