"""What breaks a call: each fault gives one line, the right outcome and exit code, and keeps what was recorded."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.probe.conftest import QUICK, Run, Start, outcomes

HASTY = 'spacing = 2.0\ntimeout = 1.2\ngreeting_timeout = 1.0\n[[turns]]\nutterance = "en/2"\nrepeat = 2\n'
LONG = 'spacing = 4.0\ntimeout = 3.0\n[[turns]]\nutterance = "en/2"\nrepeat = 20\n'
FAKETIME = "/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1"

Need = Callable[[str, str], str]


def complaint(run: Run) -> str:
    """What was said on stderr, without the line that names the report; no traceback among it."""
    stderr = run.wait()[2]
    assert "Traceback" not in stderr, stderr
    return "\n".join(line for line in stderr.splitlines() if line and not line.startswith("report: "))


@pytest.fixture(scope="module")
def calls(start: Start) -> dict[str, Run]:
    return {
        "dies": start("run", "demo:?die_in_reply=0", scenario=QUICK),
        "no ice": start("run", "demo:?ignores_ice=true", scenario=HASTY),
        "silent": start("run", "demo:?never_speaks=true", scenario=HASTY),
        "endless": start("run", "demo:?speaks_without_end=true", scenario=HASTY),
    }


def test_agent_that_dies_in_mid_turn(calls: dict[str, Run]) -> None:
    run = calls["dies"]
    result = run.result(code=4)
    assert outcomes(result)[-1] == "call_failed"
    assert outcomes(result)[0] in ("media_lost", "answered")  # it dies in the middle of the reply: heard or not
    assert {turn["fault"] for turn in result["turns"] if turn["outcome"] != "answered"} == {"agent"}
    assert re.fullmatch(r"latency-probe: the demo agent's process ended \(exit code -?\d+\)", complaint(run))
    assert (run.out / "report.html").is_file()


def test_agent_that_never_answers_ice(calls: dict[str, Run]) -> None:
    run = calls["no ice"]
    result = run.result(code=4)
    assert outcomes(result) == ["call_failed", "call_failed"]
    line = complaint(run)
    assert line.count("\n") == 0
    assert "ICE failed" in line
    assert "host 127.0.0.1:" in line
    assert result["turns"][0]["latency_ms"] is None


def test_agent_that_never_speaks(calls: dict[str, Run]) -> None:
    result = calls["silent"].result()
    assert outcomes(result) == ["no_reply", "no_reply"]
    assert complaint(calls["silent"]) == ""
    assert result["summary"]["percentiles_ms"]["p50"]["no_reply"] is True
    assert result["summary"]["rates"]["no_reply"]["value"] == 1.0


def test_agent_that_speaks_without_end(calls: dict[str, Run]) -> None:
    result = calls["endless"].result()
    assert outcomes(result) == ["overlapped", "overlapped"]
    # it was waited for, as long as the timeout says, and that wait is not the agent's
    assert result["turns"][0]["start_slip_ms"] >= 1200


@pytest.fixture
def small_disk(tmp_path: Path, need: Need) -> Iterator[Path]:
    mount = need("mount", "mount")
    if os.geteuid() != 0:
        pytest.skip("a disk of its own needs root: run the tests as root")
    folder = tmp_path / "disk"
    folder.mkdir()
    subprocess.run([mount, "-t", "tmpfs", "-o", "size=900k", "tmpfs", folder], check=True)
    yield folder
    subprocess.run(["umount", "-l", folder], check=True)


def test_disk_that_fills_up_while_recording(start: Start, small_disk: Path) -> None:
    run = start("run", "demo:", scenario=LONG, out=small_disk / "out")
    result = run.result(code=4)
    assert "disk is full" in complaint(run).splitlines()[0]
    assert outcomes(result)[0] == "answered"
    assert {(t["outcome"], t["reason"]) for t in result["turns"][-10:]} == {("not_measurable", "disk_full")}
    assert json.loads((run.out / "result.json").read_text()) == result
    again = subprocess.run(
        [sys.executable, "-m", "probe", "analyze", run.out, "--json"], capture_output=True, text=True, check=False
    )
    assert again.returncode == 4
    assert json.loads(again.stdout)["turns"][0] == result["turns"][0]


def _wait_for_event(run: Run, type_: str, count: int = 1) -> None:
    events = run.out / "events.jsonl"
    give_up = time.monotonic() + 60
    while time.monotonic() < give_up:
        if events.is_file() and events.read_text().count(f'"type":"{type_}"') >= count:
            return
        assert run.process.poll() is None, run.wait()
        time.sleep(0.1)
    raise AssertionError(f"no event {type_} after 60 s")


def test_killed_in_mid_call_still_analyses_and_leaves_no_agent(start: Start) -> None:
    run = start("run", "demo:", scenario=LONG)
    _wait_for_event(run, "turn_settled", 2)
    children = Path(f"/proc/{run.process.pid}/task/{run.process.pid}/children").read_text().split()
    run.process.kill()
    run.process.wait()
    done = subprocess.run(
        [sys.executable, "-m", "probe", "analyze", run.out, "--json"], capture_output=True, text=True, check=False
    )
    assert "Traceback" not in done.stderr
    assert done.returncode == 0
    turns = json.loads(done.stdout)["turns"]
    assert len(turns) == 20
    assert [t["outcome"] for t in turns[:2]] == ["answered", "answered"]
    assert turns[0]["received_ms"] == pytest.approx(turns[0]["truth"]["received_ms"], abs=3)
    assert {t["reason"] for t in turns[3:]} == {"recording_ended"}
    give_up = time.monotonic() + 10
    while any(Path(f"/proc/{child}").exists() for child in children) and time.monotonic() < give_up:
        time.sleep(0.1)
    assert not any(Path(f"/proc/{child}").exists() for child in children)


def test_interrupted_keeps_everything(start: Start) -> None:
    run = start("run", "demo:", scenario=LONG)
    _wait_for_event(run, "turn_settled")
    os.killpg(run.process.pid, signal.SIGINT)  # as a terminal does: the agent gets it too
    result = run.result(code=130)
    assert len(result["turns"]) == 20
    assert outcomes(result)[0] == "answered"
    assert {t["reason"] for t in result["turns"][2:]} == {"interrupted"}
    assert (run.out / "report.html").is_file()


def test_wall_clock_stepped_back_an_hour_moves_nothing(start: Start, tmp_path: Path) -> None:
    if not Path(FAKETIME).is_file():
        pytest.skip("libfaketime is absent: install the Debian package faketime")
    steps = tmp_path / "steps"
    steps.write_text("+0")
    environment = {
        "LD_PRELOAD": FAKETIME,
        "FAKETIME_TIMESTAMP_FILE": str(steps),
        "FAKETIME_CACHE_DURATION": "1",  # s; without a cache each reading of a clock reads the file
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
    }
    scenario = 'spacing = 4.0\ntimeout = 3.0\n[[turns]]\nutterance = "en/2"\nrepeat = 3\n'
    run = start("run", "demo:", scenario=scenario, environment=environment)
    _wait_for_event(run, "turn_started", 2)
    steps.write_text("-3600")
    result = run.result()
    assert outcomes(result) == ["answered"] * 3
    for turn in result["turns"]:
        # after the step the kernel stamps by another clock than this process reads: arrivals are times of reading,
        # and how late that may have been is part of the turn's own uncertainty
        late_ms = turn["uncertainty_parts_ms"].get("probe_lag", 0.0)
        assert turn["received_ms"] == pytest.approx(turn["truth"]["received_ms"], abs=3 + late_ms)
        assert late_ms < 500
        # an hour would show as 3,600,000 ms in either (a sixteenth of it in the jitter); a busy machine never does that
        assert turn["network"]["jitter_ms"] < 1000
        assert turn["network"]["rtt_ms"] is None or 0 < turn["network"]["rtt_ms"] < 10_000
    taken = [json.loads(line) for line in (run.out / "stats.jsonl").read_text().splitlines()]
    shifts = []
    for snapshot in taken:
        objects = {entry["type"]: entry for entry in snapshot["stats"]}
        shifts.append(objects["transport"]["timestamp"] - snapshot["t_ns"] / 1e6)
        assert objects.get("inbound-rtp", {}).get("jitter", 0.0) < 1.0
    # the wall clock of the beginning all along; a float of milliseconds since 1970 is good to 0.3 µs
    assert max(shifts) - min(shifts) < 0.001
    assert 0 < objects["remote-inbound-rtp"]["roundTripTime"] < 10
    assert 0 < objects["remote-outbound-rtp"]["roundTripTime"] < 10


def test_loopback_alone_is_enough(start: Start, need: Need) -> None:
    unshare, ip = need("unshare", "util-linux"), need("ip", "iproute2")
    if os.geteuid() != 0:
        pytest.skip("a network namespace needs root: run the tests as root")
    wrapper = [unshare, "-n", "sh", "-c", f'{ip} link set lo up && exec "$@"', "sh"]
    run = start("demo", "--turns", "1", wrapper=wrapper)
    result = run.result()
    assert outcomes(result) == ["answered"]
    assert (run.out / "report.html").stat().st_size > 50_000
