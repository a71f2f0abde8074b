"""Scenarios: what they come to, what is refused with which words, and the page that describes them."""

from __future__ import annotations

import itertools
import json
import re
from pathlib import Path

import numpy as np
import pytest
import soundfile
from hypothesis import given, settings
from hypothesis import strategies as st

from analysis.audibility import last_audible
from analysis.errors import AudioFileError, ScenarioError, UsageError
from probe.scenario import EXPECTED, Scenario, ScenarioTurn, Turn, demo_scenario, load_scenario, utterance_of
from probe.utterances import RATE_HZ, shipped

PAGE = Path(__file__).parent.parent.parent / "docs" / "scenario.md"
ONE = '[[turns]]\nutterance = "en/1"\n'


def written(tmp_path: Path, text: str | bytes) -> Path:
    path = tmp_path / "case.toml"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def loaded(tmp_path: Path, text: str) -> Scenario:
    return load_scenario(written(tmp_path, text))


def sound(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    tone = 0.3 * np.cos(2 * np.pi * 440 * np.arange(8000) / 16000)
    soundfile.write(path, np.pad(tone, 4800), 16000)
    return path


def test_defaults(tmp_path: Path) -> None:
    scenario = loaded(tmp_path, ONE)
    assert scenario.name == "case"
    assert (scenario.codec, scenario.ptime_ms, scenario.background_dbov) == ("opus", 20, -65.0)
    assert (scenario.spacing, scenario.timeout, scenario.greeting_timeout, scenario.warm_up) == (6.0, 10.0, 5.0, 0)
    assert scenario.stats_interval == 0.2
    assert scenario.base_dir == tmp_path
    assert scenario.expand() == (Turn(index=0, key="turns[0]", utterance="en/1", file=None, language="en"),)


def test_a_turn_takes_what_it_does_not_say_from_the_scenario(tmp_path: Path) -> None:
    sound(tmp_path / "a.wav")
    scenario = loaded(
        tmp_path,
        """
        language = "pt-BR"
        spacing = 8
        timeout = 4.5
        segment = { region = "eu", n = 3, x = 0.5, warm = true }
        [[turns]]
        utterance = "es/2"
        [[turns]]
        file = "a.wav"
        spacing = 0
        segment = { region = "us" }
        [[turns]]
        utterance = "es/2"
        language = "ca"
        timeout = 9
        expect_reply = false
        idle_before = 2
        cold = true
        """,
    )
    first, second, third = scenario.expand()
    assert (first.language, first.spacing_s, first.timeout_s) == ("es", 8.0, 4.5)
    assert first.segment == {"region": "eu", "n": "3", "x": "0.5", "warm": "true"}
    assert (second.language, second.spacing_s) == ("pt-BR", 0.0)
    assert second.segment == {"region": "us", "n": "3", "x": "0.5", "warm": "true"}
    assert (third.language, third.timeout_s, third.idle_before_s) == ("ca", 9.0, 2.0)
    assert (third.expect_reply, third.cold) == (False, True)
    assert second.sound_path(tmp_path) == tmp_path / "a.wav"
    assert first.sound_path(tmp_path) is None


@pytest.mark.parametrize(
    ("turns", "names"),
    [
        (None, ["en/1", "en/1", "es/1"]),
        (1, ["en/1"]),
        (2, ["en/1", "en/1"]),
        (3, ["en/1", "en/1", "es/1"]),
        (5, ["en/1", "en/1", "es/1", "en/1", "en/1"]),
    ],
)
def test_expanding_repeats_turns_and_then_the_list(tmp_path: Path, turns: int | None, names: list[str]) -> None:
    scenario = loaded(tmp_path, ONE + 'repeat = 2\n[[turns]]\nutterance = "es/1"\n')
    expanded = scenario.expand(turns)
    assert [turn.utterance for turn in expanded] == names
    assert [turn.index for turn in expanded] == list(range(len(names)))
    assert {turn.key for turn in expanded} <= {"turns[0]", "turns[1]"}


@pytest.mark.parametrize("turns", [0, -1, 100_001])
def test_numbers_of_turns_that_make_no_call(tmp_path: Path, turns: int) -> None:
    with pytest.raises(ScenarioError, match=rf"turns: found {turns}, expected 1 to 100000"):
        loaded(tmp_path, ONE).expand(turns)


def test_repeat_cannot_add_up_to_an_endless_call(tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match="found 110000"):
        loaded(tmp_path, (ONE + "repeat = 10000\n") * 11).expand()


def test_json_and_back_without_the_file(tmp_path: Path) -> None:
    sound(tmp_path / "private" / "voice.wav")
    scenario = loaded(
        tmp_path,
        'background = "dtx"\nsegment = { a = 1 }\n'
        + ONE
        + 'pause_at_ms = 500\npause_ms = 300\n[[turns]]\nfile = "private/voice.wav"\ninterruption_ms = 20\n',
    )
    text = json.dumps(scenario.model_dump(mode="json"))
    assert "private" not in text
    assert str(tmp_path) not in text
    again = Scenario.model_validate(json.loads(text))
    assert again.base_dir is None
    assert again.background_dbov is None
    assert again.turns[0] == scenario.turns[0]
    assert again.turns[1].file == "voice.wav"
    assert again.turns[1].interruption_ms == 20
    assert again.model_dump(mode="json") == scenario.model_dump(mode="json")
    assert [turn.segment for turn in again.expand(3)] == [{"a": "1"}] * 3


@pytest.mark.parametrize(
    ("file", "name"), [("a/b.wav", "b.wav"), ("/home/someone/b.wav", "b.wav"), ("C:\\people\\b.wav", "b.wav")]
)
def test_only_the_name_of_a_sound_file_is_dumped(file: str, name: str) -> None:
    assert ScenarioTurn(file=file).model_dump(mode="json")["file"] == name


WRONG = {
    "unknown turn key": (ONE + "pause = 3", r"turns\[0\]\.pause: unknown key, did you mean `pause_ms`\?"),
    "unknown key": ('codek = "opus"\n' + ONE, r"codek: unknown key, did you mean `codec`\?"),
    "mistyped turns": ('[[turn]]\nutterance = "en/1"', r"turn: unknown key, did you mean `turns`\?"),
    "nothing like it": ("zzz = 1\n" + ONE, "zzz: unknown key, expected one of name, language"),
    "no turns": ("", "turns: found nothing, expected 1 to 10000"),
    "empty turns": ("turns = []", r"turns: found \[\], expected 1 to 10000"),
    "turns of another type": ("turns = 3", "turns: found 3, expected"),
    "a turn of another type": ("turns = [3]", r"turns\[0\]: found 3, expected a table"),
    "neither": ("turns = [{}]", r"turns\[0\]: found neither, expected one of `utterance` and `file`"),
    "both": (ONE + 'file = "a.wav"', r"turns\[0\]: found both, expected one of"),
    "utterance": ('turns = [{ utterance = "en/9" }]', r"turns\[0\]\.utterance: found 'en/9', .* nearest are en/"),
    "utterance of no language": ('turns = [{ utterance = "qq" }]', r"utterance: found 'qq', expected .* ar, de, en"),
    "no such sound": ('turns = [{ file = "b.wav" }]', r"turns\[0\]\.file: found no file 'b.wav'"),
    "file is a folder": ('turns = [{ file = "." }]', r"turns\[0\]\.file: found no file '\.'"),
    "name": ("name = 3\n" + ONE, "name: found 3, expected text"),
    "empty name": ('name = " "\n' + ONE, "name: found ' ', expected text"),
    "language": ('language = "e n"\n' + ONE, "language: found 'e n', expected a language tag"),
    "codec": ('codec = "opsu"\n' + ONE, "codec: found 'opsu', expected 'opus', 'pcmu'"),
    "ptime": ("ptime_ms = 15\n" + ONE, "ptime_ms: found 15, expected 10, 20, 40 or 60"),
    "a date": ("ptime_ms = 1979-05-27\n" + ONE, "ptime_ms: found datetime.date"),
    "background word": ('background = "loud"\n' + ONE, "background: found 'loud', expected 'noise:DBOV'"),
    "background level": ('background = "noise:-20"\n' + ONE, "background: found 'noise:-20', expected .* -90 to -30"),
    "text for a number": ('spacing = "6"\n' + ONE, "spacing: found '6', expected 0 to 3600"),
    "negative": ("spacing = -1\n" + ONE, "spacing: found -1, expected 0 to 3600"),
    "zero timeout": ("timeout = 0\n" + ONE, "timeout: found 0, expected above 0"),
    "nan": ("timeout = nan\n" + ONE, "timeout: found nan, expected above 0"),
    "inf": (ONE + "idle_before = inf", r"turns\[0\]\.idle_before: found inf, expected 0 to 86400"),
    "huge float": ("spacing = 1e300\n" + ONE, r"spacing: found 1e\+300, expected 0 to 3600"),
    "statistics too often": ("stats_interval = 0.01\n" + ONE, "stats_interval: found 0.01, expected 0.05 to 60"),
    "statistics too seldom": ("stats_interval = 61\n" + ONE, "stats_interval: found 61(.0)?, expected 0.05 to 60"),
    "statistics never": ("stats_interval = inf\n" + ONE, "stats_interval: found inf, expected 0.05 to 60"),
    "huge integer": ("warm_up = " + "9" * 400 + "\n" + ONE, "warm_up: found 9{60}…, expected a whole number"),
    "huge hexadecimal": (ONE + "repeat = 0x" + "f" * 9000, r"repeat: found a number of thousands of digits"),
    "thousands of digits": ("warm_up = " + "9" * 5000 + "\n" + ONE, "not valid TOML: .*4300 digits"),
    "true for a number": (ONE + "repeat = true", r"turns\[0\]\.repeat: found true, expected a whole number"),
    "fraction": (ONE + "repeat = 1.5", r"turns\[0\]\.repeat: found 1.5, expected a whole number"),
    "number for true": (ONE + "cold = 1", r"turns\[0\]\.cold: found 1, expected true or false"),
    "half a pause": (ONE + "pause_ms = 300", r"turns\[0\]\.pause_at_ms: found nothing, expected both"),
    "the other half": (ONE + "pause_at_ms = 300", r"turns\[0\]\.pause_ms: found nothing, expected both"),
    "first interrupts": (ONE + "interruption_ms = 300", r"turns\[0\]\.interruption_ms: found it on the first turn"),
    "cold interrupts": (
        ONE + ONE + "interruption_ms = 300\ncold = true",
        r"turns\[1\]\.interruption_ms: found it on a `cold` turn",
    ),
    "nothing to interrupt": (
        ONE + "expect_reply = false\n" + ONE + "interruption_ms = 300",
        r"turns\[1\]\.interruption_ms: found it after `expect_reply = false`",
    ),
    "label": (ONE + "segment = { a = [1] }", r"turns\[0\]\.segment\.a: found \[1\], expected text, a number"),
    "label named like a key": (ONE + "segment = { codec = nan }", r"turns\[0\]\.segment\.codec: found nan"),
    "labels": ("segment = 3\n" + ONE, "segment: found 3, expected a table of labels"),
    "several": ("spacing = -1\ntimeout = -1\n" + ONE, r"spacing: found -1, .* \(and 1 more\)"),
    "no TOML": ("[[[", "not valid TOML: .*line 1"),
    "nested without end": ("a = " + "[" * 5000, "not valid TOML"),
}


@pytest.mark.parametrize(("text", "words"), WRONG.values(), ids=WRONG.keys())
def test_what_is_wrong_is_said_in_one_line(tmp_path: Path, text: str, words: str) -> None:
    path = written(tmp_path, text)
    with pytest.raises(ScenarioError, match=words) as caught:
        load_scenario(path)
    line = caught.value.line()
    assert line.startswith(f"{path}: ")
    assert "\n" not in line
    assert len(line) < len(str(path)) + 500
    assert caught.value.next_step


def test_files_that_are_no_scenario(tmp_path: Path) -> None:
    large = tmp_path / "large.toml"
    large.write_bytes(b"#" * 1_000_001)
    cases = [
        (tmp_path / "none.toml", "No such file"),
        (tmp_path, "not a file"),
        (written(tmp_path, b'name = "\xff"'), r"not UTF-8 \(byte 8\)"),
        (large, "larger than 1 MB"),
        (Path("/dev/zero"), "not a file"),
    ]
    for path, words in cases:
        with pytest.raises(ScenarioError, match=words) as caught:
            load_scenario(path)
        assert str(path) in caught.value.line()


def test_a_byte_order_mark_is_no_error(tmp_path: Path) -> None:
    assert load_scenario(written(tmp_path, b"\xef\xbb\xbf" + ONE.encode())).turns[0].utterance == "en/1"


VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=8),
    st.lists(st.integers(), max_size=2),
    st.dictionaries(st.text(max_size=4), st.floats(), max_size=2),
)


@settings(max_examples=200, deadline=None)
@given(
    data=st.dictionaries(st.sampled_from(sorted(Scenario.model_fields)), VALUES),
    turn=st.dictionaries(st.sampled_from(sorted(ScenarioTurn.model_fields)), VALUES),
)
def test_any_values_give_a_scenario_or_pydantics_refusal(data: dict[str, object], turn: dict[str, object]) -> None:
    try:
        scenario = Scenario.model_validate({**data, "turns": [turn]})
    except ValueError:  # pydantic's own error is one
        return
    assert scenario.expand(3)
    assert Scenario.model_validate(json.loads(json.dumps(scenario.model_dump(mode="json"), allow_nan=False)))


# --- sound -------------------------------------------------------------------------------------------------------


def turn_of(**keys: object) -> Turn:
    return Scenario.model_validate({"turns": [keys]}).expand()[0]


def test_shipped_sound_is_handed_out_as_it_is() -> None:
    assert utterance_of(turn_of(utterance="fr/2"), None) is shipped("fr/2")
    assert utterance_of(turn_of(utterance="fr/2", language="fr-CA"), None).language == "fr-CA"


def test_own_sound(tmp_path: Path) -> None:
    sound(tmp_path / "sounds" / "mine.wav")
    spoken = utterance_of(turn_of(file="sounds/mine.wav", language="de"), tmp_path)
    assert (spoken.name, spoken.language, len(spoken.samples)) == ("mine.wav", "de", 3 * (8000 + 9600))
    with pytest.raises(ScenarioError, match="without its folder"):
        utterance_of(turn_of(file="sounds/mine.wav"), None)
    with pytest.raises(AudioFileError, match="No such file"):
        utterance_of(turn_of(file="mine.wav"), tmp_path)


def test_a_pause_moves_the_end_by_its_length() -> None:
    plain = shipped("en/2")
    paused = utterance_of(turn_of(utterance="en/2", pause_at_ms=900, pause_ms=700), None)
    at, length = 900 * RATE_HZ // 1000, 700 * RATE_HZ // 1000
    np.testing.assert_array_equal(paused.samples[:at], plain.samples[:at])
    assert not paused.samples[at : at + length].any()
    np.testing.assert_array_equal(paused.samples[at + length :], plain.samples[at:])
    assert paused.start_sample == plain.start_sample
    assert paused.end_sample == plain.end_sample + length
    found = last_audible(paused.samples, RATE_HZ)
    assert found is not None
    assert found.sample == paused.end_sample
    assert plain.samples.flags.writeable is paused.samples.flags.writeable is False


@pytest.mark.parametrize("at_ms", [0, 2, 7, 2323, 2400, 60_000], ids=str)
def test_a_pause_outside_the_words_is_refused(at_ms: float) -> None:
    # en/2 is audible from 5 to 2325 ms; at 7 and at 2323 ms one part is too short to be audible
    turn = turn_of(utterance="en/2", pause_at_ms=at_ms, pause_ms=700)
    with pytest.raises(ScenarioError, match=rf"turns\[0\]\.pause_at_ms: found {at_ms}, expected .*5 to 2325 ms"):
        utterance_of(turn, None)


# --- the demo and the page ---------------------------------------------------------------------------------------


def test_the_demo_is_the_same_for_the_same_seed() -> None:
    assert demo_scenario(8, seed=3) == demo_scenario(8, seed=3)
    assert demo_scenario(8, seed=3) != demo_scenario(8, seed=4)
    names = [turn.utterance for turn in demo_scenario(50, seed=1).expand()]
    assert all(a != b for a, b in itertools.pairwise(names))
    assert {turn.language for turn in demo_scenario(4, languages=("en", "hi")).expand()} == {"en", "hi"}
    assert len(demo_scenario().expand()) == 5


def test_the_demo_refuses_what_is_not_there() -> None:
    with pytest.raises(UsageError, match="'xx'"):
        demo_scenario(languages=("xx",))
    with pytest.raises(UsageError, match="found 0"):
        demo_scenario(0)


def test_examples_of_the_page_load(tmp_path: Path) -> None:
    sound(tmp_path / "sounds" / "booking.wav")
    examples = re.findall(r"```toml\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert len(examples) == 2
    hotline, booking = (loaded(tmp_path, text) for text in examples)
    assert [turn.utterance for turn in hotline.expand(6)] == ["en/1", "en/1", "es/1", "en/2", "en/1", "en/1"]
    assert [turn.segment["region"] for turn in hotline.expand()] == ["eu", "eu", "latam", "eu"]
    assert [turn.language for turn in booking.expand()] == ["de"] * 4
    for scenario in (hotline, booking):
        for turn in scenario.expand():
            assert utterance_of(turn, scenario.base_dir).audible_s > 0.4


def test_the_page_lists_every_key_with_its_default() -> None:
    page = PAGE.read_text(encoding="utf-8")
    call, turn = page.split("## A turn")[0], page.split("## A turn")[1].split("## Example")[0]
    for text, model in ((call, Scenario), (turn, ScenarioTurn)):
        rows = dict(re.findall(r"^\| `(\w+)` \| (.*?) \|", text, re.MULTILINE))
        assert rows.keys() == model.model_fields.keys()
        for key, info in model.model_fields.items():
            if info.default is not None and not info.is_required() and info.default_factory is None and key != "name":
                assert rows[key] == f"`{json.dumps(info.default)}`"
    assert EXPECTED.keys() == Scenario.model_fields.keys() | ScenarioTurn.model_fields.keys()
