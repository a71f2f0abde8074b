"""`analyze` on recordings: what is printed, what a bad file among good ones costs, and options that cannot be."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import soundfile

from analysis.errors import EXIT_NOT_MEASURABLE, EXIT_OK, EXIT_USAGE
from benchmarks.recordings_calls import build
from benchmarks.recordings_conditions import CONDITIONS
from probe.cli import main


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A call of two turns (caller left), the same as two files, one that is no sound, and one with an empty channel."""
    made = tmp_path_factory.mktemp("tapes")
    call = build(11, CONDITIONS["planted"], 0, turns=2, rate_hz=8000)
    caller, agent = (call.audio[:, n] for n in (call.caller_channel, call.agent_channel))
    soundfile.write(made / "call.wav", np.stack([caller, agent], axis=1), 8000)
    soundfile.write(made / "caller.wav", caller, 8000)
    soundfile.write(made / "agent.wav", agent, 8000)
    soundfile.write(made / "empty.wav", np.stack([caller, 0 * agent], axis=1), 8000)
    (made / "no.wav").write_bytes(b"no sound at all")
    return made


def analyze(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as left:
        main(["analyze", *map(str, arguments)])
    printed = capsys.readouterr()
    assert "Traceback" not in printed.err
    return int(left.value.code or 0), printed.out, printed.err


def test_two_files_are_as_one_with_two_channels(capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    code, out, _ = analyze(capsys, folder / "call.wav", "--layout", "twilio", "--json")
    assert code == EXIT_OK
    pair_code, pair_out, _ = analyze(capsys, "--pair", folder / "caller.wav", folder / "agent.wav", "--json")
    assert pair_code == EXIT_OK
    one, two = json.loads(out), json.loads(pair_out)
    assert one["turns"] == two["turns"]
    assert one["source"]["kind"] == "recording"
    assert len(one["turns"]) == 2


def test_the_text_has_times_on_the_tape_and_no_policy(capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    code, out, _ = analyze(capsys, folder / "call.wav", "--layout", "twilio")
    assert code == EXIT_OK
    assert "from s" in out
    assert "None" not in out
    assert "buffer" not in out


def test_a_bad_file_takes_nothing_from_the_others(capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    files = [folder / name for name in ("no.wav", "call.wav", "empty.wav", "call.wav")]
    code, out, err = analyze(capsys, *files, "--layout", "twilio", "--json")
    assert code == EXIT_OK
    document = json.loads(out)
    assert len(document["turns"]) == 2
    assert set(document["recording"]["missing"]) == {str(files[0]), str(files[2])}
    assert err.count("left out") == 2
    assert "given twice" in err


def test_where_none_can_be_used_the_reason_decides(capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    code, out, _ = analyze(capsys, folder / "no.wav", folder / "empty.wav", "--layout", "twilio", "--json")
    assert (code, out) == (EXIT_NOT_MEASURABLE, "")
    code, out, _ = analyze(capsys, folder / "no.wav", folder / "none.wav", "--layout", "twilio", "--json")
    assert (code, out) == (EXIT_USAGE, "")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("call.wav",), "--layout"),
        (("call.wav", "--layout", "zoom"), "zoom"),
        (("call.wav", "--layout", "vapi", "--caller-channel", "0"), "one of the two"),
        (("call.wav", "--layout", "vapi", "--timeout", "0"), "more than 0"),
        (("call.wav", "--layout", "vapi", "--timeout", "nan"), "more than 0"),
        (("none.wav", "--layout", "vapi"), "no such file"),
        (("call.wav", "--pair", "caller.wav", "agent.wav"), "--pair"),
        ((), "nothing to analyze"),
        (("call.wav", "--layout", "vapi", "--reference", "none.wav"), "none.wav"),
    ],
)
def test_options_that_cannot_be(
    capsys: pytest.CaptureFixture[str], folder: Path, arguments: tuple[str, ...], said: str
) -> None:
    code, out, err = analyze(capsys, *(folder / a if a.endswith(".wav") else a for a in arguments))
    assert (code, out) == (EXIT_USAGE, "")
    assert said in err
    assert len(err.strip().splitlines()) == 1
