"""A TOML file or the query of a `demo:` URL into the demo agent's configuration, and wrong keys into one line each.

Options are described in docs/demo-agent.md. Probabilities lie in [0, 1]; a range is [lowest, highest] and is drawn from
uniformly by the seed; turns are counted from 0 as the agent hears them.
"""

from __future__ import annotations

import difflib
import tomllib
import types
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from analysis.errors import UsageError
from probe.utterances import shipped_languages

__all__ = [
    "AgentConfig",
    "Bursts",
    "Delay",
    "GilbertElliott",
    "Impairment",
    "InReply",
    "Loss",
    "Normal",
    "Spikes",
    "Stall",
    "Trace",
    "Uniform",
    "agent_config_from_document",
    "agent_config_from_query",
    "load_agent_config",
]

SEE = "docs/demo-agent.md lists every option"
MANY_KEYS = 12  # more than that is no help in one line


def _listed(value: object) -> object:
    """`200,900` (a query) as a list, and a single number as one of length 1."""
    if isinstance(value, str):
        return [part.strip() for part in value.split(",") if part.strip()]
    return [value] if isinstance(value, (int, float)) else value


def _ranged(value: object) -> object:
    value = _listed(value)
    return value * 2 if isinstance(value, list) and len(value) == 1 else value


def _ordered(value: tuple[float, float]) -> tuple[float, float]:
    if value[0] > value[1]:
        raise ValueError("the first number must not be greater than the second")
    return value


Probability = Annotated[float, Field(ge=0, le=1)]
Milliseconds = Annotated[float, Field(ge=0, le=60_000)]
RangeMs = Annotated[tuple[Milliseconds, Milliseconds], BeforeValidator(_ranged)]
Counts = Annotated[tuple[Annotated[int, Field(ge=0)], ...], BeforeValidator(_listed)]


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Uniform(_Model):
    """Each packet waits between `low_ms` and `high_ms`."""

    low_ms: Milliseconds = 0
    high_ms: Milliseconds

    @model_validator(mode="after")
    def _check(self) -> Uniform:
        _ordered((self.low_ms, self.high_ms))
        return self


class Normal(_Model):
    """Each packet waits a normally distributed time; what would be below 0 is 0."""

    mean_ms: Milliseconds
    sd_ms: Milliseconds


class Trace(_Model):
    """Packet k waits the k-th time, over and over."""

    ms: Annotated[tuple[Milliseconds, ...], BeforeValidator(_listed), Field(min_length=1)]


class Spikes(_Model):
    """One packet in every `every_s` of sound waits between `low_ms` and `high_ms`."""

    every_s: Annotated[float, Field(gt=0)]
    low_ms: Milliseconds
    high_ms: Milliseconds

    @model_validator(mode="after")
    def _check(self) -> Spikes:
        _ordered((self.low_ms, self.high_ms))
        return self


class Delay(_Model):
    """How long packets wait before they leave; what is given adds up, nothing given is no delay."""

    uniform: Uniform | None = None
    normal: Normal | None = None
    trace: Trace | None = None
    spikes: Spikes | None = None


class Bursts(_Model):
    """With `probability` per packet a burst starts, in which `length` = [fewest, most] packets in a row are lost."""

    probability: Probability
    length: Annotated[tuple[Annotated[int, Field(ge=1)], Annotated[int, Field(ge=1)]], BeforeValidator(_ranged)]

    @model_validator(mode="after")
    def _check(self) -> Bursts:
        _ordered(self.length)
        return self


class GilbertElliott(_Model):
    """Two states, good and bad: `p` good to bad, `r` bad to good, per packet; in bad, every packet is lost."""

    p: Probability
    r: Annotated[float, Field(gt=0, le=1)]


class Loss(_Model):
    """Which packets are never sent: by any of these."""

    random: Probability = 0
    bursts: Bursts | None = None
    gilbert_elliott: GilbertElliott | None = None


class Stall(_Model):
    """Nothing leaves for `ms`, from `at_s` after the connection was made; then all that waited does."""

    at_s: Annotated[float, Field(ge=0)]
    ms: Milliseconds


class InReply(_Model):
    """In the middle of this reply (from 0)."""

    in_reply: Annotated[int, Field(ge=0)]


class Impairment(_Model):
    """What is done to the packets that the agent sends, before they leave."""

    delay: Delay = Delay()
    in_order: bool = True
    loss: Loss = Loss()
    duplicate: Probability = 0
    dtx: bool = False
    ssrc_change_at: Annotated[Counts | InReply, Field(union_mode="left_to_right")] = ()
    restart_at: Annotated[int, Field(ge=1)] | None = None
    restart_back: Annotated[int, Field(ge=1, le=30_000)] = 50
    initial_sequence: Annotated[int, Field(ge=0, le=0xFFFF)] | None = None
    initial_timestamp: Annotated[int, Field(ge=0, le=0xFFFFFFFF)] | None = None
    drift_ppm: Annotated[float, Field(ge=-10_000, le=10_000)] = 0
    stall: Stall | None = None


class AgentConfig(_Model):
    """All that the demo agent does; with the seed and the number of the call it fixes what is sent."""

    seed: Annotated[int, Field(ge=0)] = 1
    language: Annotated[str, Field(min_length=1)] = "en"
    greeting: bool = True
    endpoint_silence_ms: Annotated[float, Field(ge=20, le=10_000)] = 300
    think_ms: RangeMs = (200, 900)
    leading_silence_ms: RangeMs = (0, 400)
    filler_probability: Probability = 0
    filler_gap_ms: RangeMs = (300, 800)
    no_reply_probability: Probability = 0
    no_reply_turns: Counts = ()
    cut_in_probability: Probability = 0
    cut_in_turns: Counts = ()
    cut_in_after_ms: Milliseconds = 600
    backchannel_probability: Probability = 0
    backchannel_after_ms: RangeMs = (200, 400)
    barge_in: bool = True
    barge_in_ms: Milliseconds = 200
    stream: Literal["pauses", "continuous"] = "pauses"
    comfort_noise_dbov: Annotated[float, Field(ge=-80, le=-20)] | None = None
    reply_level_dbov: Annotated[float, Field(ge=-60, le=-6)] = -20
    codec: Literal["opus", "pcmu", "pcma", "g722"] | None = None
    ptime_ms: Literal[10, 20, 40, 60] | None = None
    bit_rate: Annotated[int, Field(ge=8_000, le=128_000)] = 32_000
    capture_time: bool = True
    die_in_reply: Annotated[int, Field(ge=0)] | None = None
    never_speaks: bool = False
    speaks_without_end: bool = False
    ignores_ice: bool = False
    impairment: Impairment = Impairment()

    @model_validator(mode="before")
    @classmethod
    def _numbers(cls, value: Any) -> Any:
        # a query's values are text, which Literal[10, 20, …] does not read as numbers
        ptime = value.get("ptime_ms") if isinstance(value, Mapping) else None
        return {**value, "ptime_ms": int(ptime)} if isinstance(ptime, str) and ptime.isdigit() else value

    @model_validator(mode="after")
    def _check(self) -> AgentConfig:
        for name in ("think_ms", "leading_silence_ms", "filler_gap_ms", "backchannel_after_ms"):
            try:
                _ordered(getattr(self, name))
            except ValueError as exc:
                raise ValueError(f"{name}: {exc}") from None
        if self.impairment.dtx and self.stream == "continuous":
            raise ValueError('impairment.dtx: needs stream = "pauses"')
        return self


def load_agent_config(path: str | Path) -> AgentConfig:
    """Read an agent's TOML file.

    Raises
    ------
    UsageError
        If it cannot be read, or a key or value is wrong; the line names the file, the key and what was expected.
    """
    path = Path(path)
    try:
        with path.open("rb") as file:
            document = tomllib.load(file)
    except OSError as exc:
        raise UsageError(f"{path}: cannot be read ({exc.strerror})", next_step="give an agent's TOML file") from exc
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as exc:
        raise UsageError(f"{path}: not TOML ({exc})") from exc
    return _validated(document, str(path))


def agent_config_from_query(options: Mapping[str, str], base: AgentConfig | None = None) -> AgentConfig:
    """Options by dotted key over a configuration.

    Parameters
    ----------
    options : mapping of str to str
        Such as `{"endpoint_silence_ms": "700", "impairment.loss.random": "0.02", "think_ms": "200,900"}`.
    base : AgentConfig, optional
        What they are laid over; the default agent.

    Raises
    ------
    UsageError
        If a key or value is wrong.
    """
    document = (base or AgentConfig()).model_dump(mode="json")
    for key, text in options.items():
        at = document
        *parents, last = key.split(".")
        for parent in parents:
            below = at.get(parent)
            if not isinstance(below, dict):
                # a table that was absent (or a list that it replaces) begins with this key
                below = at[parent] = {}
            at = below
        at[last] = None if text.strip().lower() == "none" else text
    return _validated(document, "demo:?")


def agent_config_from_document(document: Mapping[str, Any], source: str) -> AgentConfig:
    """A configuration from plain values; `source` opens the message of the UsageError that a wrong one raises."""
    try:
        return AgentConfig.model_validate(document)
    except ValidationError as exc:
        raise _one_line(exc, source) from None


def _validated(document: Mapping[str, Any], source: str) -> AgentConfig:
    config = agent_config_from_document(document, source)
    # not a rule of the model: a scenario may have any language, and the agent then answers as best it can
    if config.language not in (known := shipped_languages()):
        raise UsageError(f"{source}: language: no sound for {config.language!r}; expected one of {', '.join(known)}")
    return config


def _one_line(exc: ValidationError, source: str) -> UsageError:
    errors = exc.errors(include_url=False, include_context=False)
    # an unknown key is the likelier reason for what else is missing
    error = next((e for e in errors if e["type"] == "extra_forbidden"), errors[0])
    # pydantic names the member of a union too
    parts = [p for p in map(str, error["loc"]) if not p.startswith(("function-", "tuple[", "InReply", "list["))]
    where = ".".join(parts)
    if error["type"] == "extra_forbidden":
        return UsageError(f"{source}: unknown key {where}; {_expected(parts)}")
    reason = error["msg"].removeprefix("Value error, ")
    if error["type"] in ("model_type", "dict_type"):
        reason = f"expected the keys {', '.join(_keys(parts))}"
    got = "" if isinstance(error["input"], (dict, BaseModel)) else f", got {error['input']!r}"
    return UsageError(f"{source}: {f'{where}: ' if where else ''}{reason}{got}", next_step=SEE)


def _expected(parts: list[str]) -> str:
    """What to write instead of an unknown key."""
    known = _keys(parts[:-1])
    near = difflib.get_close_matches(parts[-1], known, n=1)
    if near:
        return f"did you mean {'.'.join([*parts[:-1], near[0]])}?"
    elsewhere = [key for key in _all_keys(AgentConfig) if key.endswith(f".{parts[-1]}")]
    if elsewhere:
        return f"did you mean {elsewhere[0]}?"
    return SEE if len(known) > MANY_KEYS else f"expected one of {', '.join(known)}"


def _all_keys(model: type[BaseModel], prefix: str = "") -> list[str]:
    keys = []
    for name, field in model.model_fields.items():
        keys.append(prefix + name)
        below = _model_of(field.annotation)
        keys += _all_keys(below, f"{prefix}{name}.") if below is not None else []
    return keys


def _keys(path: list[str]) -> list[str]:
    """The keys that a table at `path` may have."""
    model: type[BaseModel] = AgentConfig
    for part in path:
        field = model.model_fields.get(part)
        found = None if field is None else _model_of(field.annotation)
        if found is not None:
            model = found
    return list(model.model_fields)


def _model_of(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    if isinstance(annotation, types.UnionType) or typing.get_origin(annotation) is not None:
        return next((m for a in typing.get_args(annotation) if (m := _model_of(a)) is not None), None)
    return None
