"""A TOML file in, a checked scenario out: what is said in a call, when, and over what; and the turns it comes to.

Source: the design's rules for calls (docs/scenario.md lists every key). Times are seconds unless a key's name says ms.
"""

from __future__ import annotations

import difflib
import os
import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Annotated, Literal

import numpy as np
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PrivateAttr,
    ValidationError,
    field_serializer,
    model_validator,
)

from analysis.audibility import LevelTrack, first_audible, last_audible
from analysis.errors import ScenarioError, UsageError
from analysis.units import samples_to_ms
from probe.tomlfile import described, disagreement, load_toml, shown
from probe.utterances import RATE_HZ, Utterance, load_utterance, shipped, shipped_languages, shipped_names

__all__ = ["Scenario", "ScenarioTurn", "Turn", "demo_scenario", "load_scenario", "utterance_of"]

MAX_ENTRIES = 10_000
MAX_TURNS = 100_000  # of one call, after `repeat`
DAY_S = 86_400.0
HOUR_S = 3600.0
MINUTE_MS = 60_000
LARGEST_LABEL = 10**15  # a label is shown to people
DEFAULT_NOISE_DBOV = -65
NOISE_DBOV = (-90.0, -30.0)
BACKGROUND = re.compile(r"silence|dtx|noise:(-?\d{1,3}(?:\.\d{1,3})?)")
LANGUAGE = re.compile(r"[A-Za-z]{2,8}(-[A-Za-z0-9]{1,8})*")  # the shape of a BCP 47 tag


EXPECTED = {
    "name": "text of 1 to 200 characters",
    "language": "a language tag such as 'en' or 'pt-BR'",
    "codec": "'opus', 'pcmu', 'pcma' or 'g722'",
    "ptime_ms": "10, 20, 40 or 60",
    "background": "'noise:DBOV' with -90 to -30 (such as 'noise:-65'), 'silence' or 'dtx'",
    "spacing": "0 to 3600 (seconds)",
    "timeout": "above 0 and up to 3600 (seconds)",
    "greeting_timeout": "0 to 3600 (seconds)",
    "stats_interval": "0.05 to 60 (seconds)",
    "warm_up": f"a whole number from 0 to {MAX_TURNS}",
    "segment": "a table of labels: name = text, number, true or false",
    "turns": f"1 to {MAX_ENTRIES} entries `[[turns]]`",
    "utterance": "the name of a shipped utterance such as 'en/1'",
    "file": "the path of a sound file, relative to the scenario",
    "expect_reply": "true or false",
    "pause_at_ms": f"0 to {MINUTE_MS} (milliseconds)",
    "pause_ms": f"above 0 and up to {MINUTE_MS} (milliseconds)",
    "interruption_ms": f"0 to {MINUTE_MS} (milliseconds)",
    "idle_before": "0 to 86400 (seconds)",
    "cold": "true or false",
    "repeat": "a whole number from 1 to 10000",
}


def _language(value: str) -> str:
    if len(value) > 35 or not LANGUAGE.fullmatch(value):
        raise ValueError(EXPECTED["language"])
    return value


def _background(value: str) -> str:
    match = BACKGROUND.fullmatch(value)
    level = match and match[1]
    if match is None or (level is not None and not NOISE_DBOV[0] <= float(level) <= NOISE_DBOV[1]):
        raise ValueError(EXPECTED["background"])
    return value


def _utterance(value: str) -> str:
    names = shipped_names()
    if value not in names:
        near = difflib.get_close_matches(value, names, n=3, cutoff=0.3)
        hint = f"; the nearest are {', '.join(near)}" if near else ""
        raise ValueError(f"LANGUAGE/1 to LANGUAGE/3 with {', '.join(shipped_languages())}{hint}")
    return value


def _text(value: str) -> str:
    if not value.strip() or not value.isprintable():
        raise ValueError("text that is printable and not empty")
    return value


def _label(value: object) -> object:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float) and abs(value) < LARGEST_LABEL:  # false for NaN
        return str(value)
    if isinstance(value, str):
        return value
    raise ValueError("text, a number below 1e15, true or false")


Text = Annotated[str, Field(max_length=200), AfterValidator(_text)]
Label = Annotated[str, BeforeValidator(_label), Field(max_length=200), AfterValidator(_text)]
Segment = dict[Annotated[str, Field(max_length=60), AfterValidator(_text)], Label]
Language = Annotated[str, AfterValidator(_language)]
Hours = Annotated[float, Field(ge=0, le=HOUR_S, allow_inf_nan=False)]
Timeout = Annotated[float, Field(gt=0, le=HOUR_S, allow_inf_nan=False)]
Milliseconds = Annotated[float, Field(ge=0, le=MINUTE_MS, allow_inf_nan=False)]


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class ScenarioTurn(_Model):
    """One `[[turns]]` entry as written; None where the scenario's value holds. Seconds unless the name says ms."""

    utterance: Annotated[str, AfterValidator(_utterance)] | None = None
    file: Text | None = None
    language: Language | None = None
    segment: Segment = Field(default_factory=dict)
    expect_reply: bool = True
    spacing: Hours | None = None
    timeout: Timeout | None = None
    pause_at_ms: Milliseconds | None = None
    pause_ms: Annotated[float, Field(gt=0, le=MINUTE_MS, allow_inf_nan=False)] | None = None
    interruption_ms: Milliseconds | None = None
    idle_before: Annotated[float, Field(ge=0, le=DAY_S, allow_inf_nan=False)] = 0.0
    cold: bool = False
    repeat: Annotated[int, Field(ge=1, le=10_000)] = 1

    @model_validator(mode="after")
    def _agree(self) -> ScenarioTurn:
        if (self.utterance is None) == (self.file is None):
            found = "neither" if self.file is None else "both"
            raise disagreement("", found, "one of `utterance` and `file`")
        if (self.pause_at_ms is None) != (self.pause_ms is None):
            missing = "pause_at_ms" if self.pause_at_ms is None else "pause_ms"
            raise disagreement(missing, "nothing", "both of `pause_at_ms` and `pause_ms` or neither")
        if self.interruption_ms is not None and self.cold:
            raise disagreement("interruption_ms", "it on a `cold` turn", "a reply before it to interrupt")
        return self

    @field_serializer("file")
    def _file_name(self, file: str | None) -> str | None:
        return None if file is None else _name_of(file)


def _some(turns: tuple[ScenarioTurn, ...]) -> tuple[ScenarioTurn, ...]:
    # not a length of the field: pydantic would count wrong turns as missing ones
    if not 1 <= len(turns) <= MAX_ENTRIES:
        raise ValueError(EXPECTED["turns"])
    return turns


class Scenario(_Model):
    """A whole scenario. Dumps to JSON (sound files by their bare name) and validates from that again, without a file.

    Keys are those of the TOML file; seconds unless the name says ms.
    """

    name: Text = "scenario"
    language: Language = "en"
    codec: Literal["opus", "pcmu", "pcma", "g722"] = "opus"
    ptime_ms: Literal[10, 20, 40, 60] = 20
    background: Annotated[str, AfterValidator(_background)] = f"noise:{DEFAULT_NOISE_DBOV}"
    spacing: Hours = 6.0
    timeout: Timeout = 10.0
    greeting_timeout: Hours = 5.0
    stats_interval: Annotated[float, Field(ge=0.05, le=60, allow_inf_nan=False)] = 0.2
    warm_up: Annotated[int, Field(ge=0, le=MAX_TURNS)] = 0
    segment: Segment = Field(default_factory=dict)
    turns: Annotated[tuple[ScenarioTurn, ...], Field(strict=False), AfterValidator(_some)]
    _base_dir: Path | None = PrivateAttr(default=None)

    @model_validator(mode="after")
    def _agree(self) -> Scenario:
        for i, turn in enumerate(self.turns):
            key = f"turns[{i}].interruption_ms"
            if turn.interruption_ms is not None and i == 0:
                raise disagreement(key, "it on the first turn", "a turn before it")
            if turn.interruption_ms is not None and not self.turns[i - 1].expect_reply:
                raise disagreement(key, "it after `expect_reply = false`", "a reply before it to interrupt")
        return self

    @property
    def base_dir(self) -> Path | None:
        """The folder that `file` keys are relative to; None for a scenario that was not read from a TOML file."""
        return self._base_dir

    @property
    def background_dbov(self) -> float | None:
        """Level of the background noise; None for `silence` and `dtx`."""
        return float(self.background.removeprefix("noise:")) if self.background.startswith("noise:") else None

    def expand(self, turns: int | None = None) -> tuple[Turn, ...]:
        """The turns of one call, with the scenario's values filled in.

        Parameters
        ----------
        turns : int, optional
            How many; the list is repeated from its start until there are as many. Default: the list once, each turn as
            often as its `repeat` says.

        Raises
        ------
        ScenarioError
            If `turns` is below 1, or there are more than 100,000.
        """
        if turns is not None and not 1 <= turns <= MAX_TURNS:
            raise ScenarioError(f"turns: found {turns}, expected 1 to {MAX_TURNS}", next_step="ask for another number")
        once = sum(turn.repeat for turn in self.turns)
        if turns is None and once > MAX_TURNS:
            raise ScenarioError(
                f"turns: found {once} with `repeat`, expected at most {MAX_TURNS}", next_step="lower `repeat`"
            )
        wanted = once if turns is None else turns
        out: list[Turn] = []
        while len(out) < wanted:
            for i, turn in enumerate(self.turns):
                out += [self._resolved(i, turn)] * min(turn.repeat, wanted - len(out))
        return tuple(replace(turn, index=i) for i, turn in enumerate(out))

    def _resolved(self, position: int, turn: ScenarioTurn) -> Turn:
        language = turn.language
        if language is None:
            language = self.language if turn.utterance is None else turn.utterance.split("/")[0]
        return Turn(
            index=position,
            key=f"turns[{position}]",
            utterance=turn.utterance,
            file=turn.file,
            language=language,
            segment={**self.segment, **turn.segment},
            expect_reply=turn.expect_reply,
            spacing_s=self.spacing if turn.spacing is None else turn.spacing,
            timeout_s=self.timeout if turn.timeout is None else turn.timeout,
            pause_at_ms=turn.pause_at_ms,
            pause_ms=turn.pause_ms,
            interruption_ms=turn.interruption_ms,
            idle_before_s=turn.idle_before,
            cold=turn.cold,
        )


@dataclass(frozen=True, slots=True)
class Turn:
    """One turn of a call, with everything filled in.

    `index` counts the turns of the call from 0; `key` is where the turn stands in the scenario (`turns[2]`). Exactly
    one of `utterance` (a shipped name) and `file` (as written) is given. `pause_at_ms` counts from the first sample of
    the sound; `interruption_ms` from the start of the reply to the turn before.
    """

    index: int
    key: str
    utterance: str | None
    file: str | None
    language: str
    segment: Mapping[str, str] = field(default_factory=dict)
    expect_reply: bool = True
    spacing_s: float = 6.0
    timeout_s: float = 10.0
    pause_at_ms: float | None = None
    pause_ms: float | None = None
    interruption_ms: float | None = None
    idle_before_s: float = 0.0
    cold: bool = False

    def sound_path(self, base_dir: str | os.PathLike[str]) -> Path | None:
        """Where the turn's own sound file lies; None for shipped sound."""
        return None if self.file is None else Path(base_dir) / self.file


def load_scenario(path: str | os.PathLike[str]) -> Scenario:
    """Read and check a scenario.

    Raises
    ------
    ScenarioError
        One line: the file, the key (`turns[2].pause_ms`), what was found and what was expected.
    """
    path = Path(path)
    data = load_toml(path, ScenarioError)
    try:
        scenario = Scenario.model_validate({"name": path.stem, **data})
    except ValidationError as exc:
        line = described(
            exc, expected=EXPECTED, known=Scenario.model_fields, nested={"turns": ScenarioTurn.model_fields}
        )
        raise ScenarioError(f"{path}: {line}", next_step="docs/scenario.md lists every key") from exc
    scenario._base_dir = path.absolute().parent
    for i, turn in enumerate(scenario.turns):
        if turn.file is not None and not _is_file(scenario._base_dir / turn.file):
            raise ScenarioError(
                f"{path}: turns[{i}].file: found no file {shown(turn.file)}, expected a sound file",
                next_step="give its path relative to the scenario",
            )
    return scenario


def demo_scenario(turns: int = 5, seed: int = 0, languages: Sequence[str] = ("en",)) -> Scenario:
    """What `latency-probe demo` says: `turns` shipped utterances, the languages by turns, none twice in a row.

    Raises
    ------
    UsageError
        If a language is not shipped or `turns` is out of range.
    """
    if not 1 <= turns <= 10_000:
        raise UsageError(f"turns: found {turns}, expected 1 to 10000", next_step="ask for another number")
    names = {language: [n for n in shipped_names() if n.split("/")[0] == language] for language in languages}
    for language, own in names.items():
        if not own:
            raise UsageError(
                f"no utterances are shipped in {shown(language)}",
                next_step=f"languages are {', '.join(shipped_languages())}",
            )
    chosen: list[str] = []
    choice = random.Random(seed)
    for i in range(turns):
        last = chosen[-1] if chosen else None
        chosen.append(choice.choice([name for name in names[languages[i % len(languages)]] if name != last]))
    return Scenario(name="demo", language=languages[0], turns=tuple(ScenarioTurn(utterance=name) for name in chosen))


def utterance_of(turn: Turn, base_dir: str | os.PathLike[str] | None) -> Utterance:
    """The sound of a turn, with its pause put in.

    Parameters
    ----------
    turn : Turn
    base_dir : path-like or None
        What `file` is relative to; not needed for shipped sound.

    Raises
    ------
    ScenarioError
        If the pause does not lie inside the audible part, or `base_dir` is needed and not given.
    AudioFileError
        If the turn's file cannot be used.
    """
    if turn.utterance is not None:
        spoken = shipped(turn.utterance)
    elif turn.file is not None and base_dir is not None:
        spoken = load_utterance(Path(base_dir) / turn.file, turn.language)
    else:
        raise ScenarioError(
            f"{turn.key}.file: found {shown(turn.file)} without its folder, expected a scenario read from a file",
            next_step="give the folder that holds it",
        )
    if spoken.language != turn.language:
        spoken = replace(spoken, language=turn.language)
    if turn.pause_at_ms is None or turn.pause_ms is None:
        return spoken
    return _with_pause(spoken, turn.key, turn.pause_at_ms, turn.pause_ms)


def _with_pause(spoken: Utterance, key: str, pause_at_ms: float, pause_ms: float) -> Utterance:
    at, length = round(pause_at_ms * RATE_HZ / 1000), round(pause_ms * RATE_HZ / 1000)
    inside = spoken.start_sample < at <= spoken.end_sample
    samples = np.insert(spoken.samples, min(at, len(spoken.samples)), np.zeros(length, np.float32))
    end = spoken.end_sample + length
    # a remnant too short for the rule would neither begin nor end the utterance
    first = first_audible(LevelTrack(samples, RATE_HZ), threshold_dbov=spoken.start_threshold_dbov)
    last = last_audible(samples, RATE_HZ, threshold_dbov=spoken.end_threshold_dbov)
    unmoved = first is not None and last is not None and (first.sample, last.sample) == (spoken.start_sample, end)
    if not inside or not unmoved:
        begin_ms, end_ms = (samples_to_ms(sample, RATE_HZ) for sample in (spoken.start_sample, spoken.end_sample))
        raise ScenarioError(
            f"{key}.pause_at_ms: found {pause_at_ms:g}, expected a time inside the audible part of {spoken.name} "
            f"({begin_ms:.0f} to {end_ms:.0f} ms, and not within 30 ms of either)",
            next_step="move the pause",
        )
    samples.setflags(write=False)
    return replace(spoken, samples=samples, end_sample=end)


def _name_of(file: str) -> str:
    return PureWindowsPath(PurePosixPath(file).name).name


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):
        return False
