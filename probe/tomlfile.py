"""A TOML file that a person wrote in, its tables out; or one line: the key, what was found, and what belongs there."""

from __future__ import annotations

import difflib
import stat
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails, PydanticCustomError

from analysis.errors import UsageError

__all__ = ["described", "disagreement", "load_toml", "shown"]

MAX_FILE_BYTES = 1_000_000
SHOWN_CHARACTERS = 60  # of a value
LINE_CHARACTERS = 160  # of what another library says


def load_toml(path: Path, error: type[UsageError]) -> dict[str, Any]:
    """The tables of a TOML file.

    Raises
    ------
    UsageError
        As `error`: the file is missing, no regular file, larger than 1 MB, not UTF-8 or not TOML.
    """
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            raise error(f"{path}: is not a file", next_step="give a TOML file")
        if status.st_size > MAX_FILE_BYTES:
            raise error(f"{path}: is larger than 1 MB", next_step="give a TOML file")
        text = path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as exc:
        raise error(f"{path}: is not UTF-8 (byte {exc.start})", next_step="store it as UTF-8 text") from exc
    except (OSError, ValueError) as exc:
        reason = getattr(exc, "strerror", None) or "not a usable file name"
        raise error(f"{path}: {reason}", next_step="check the path") from exc
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as exc:  # ValueError also for integers of more than 4300 digits
        raise error(f"{path}: is not valid TOML: {_shortened(str(exc))}", next_step="correct that line") from exc


def described(
    error: ValidationError,
    *,
    expected: Mapping[str, str],
    known: Iterable[str],
    nested: Mapping[str, Iterable[str]],
) -> str:
    """The most telling error as `key: found …, expected …`, and how many more there are.

    Parameters
    ----------
    error : ValidationError
    expected : mapping
        By key, what belongs there.
    known : iterable of str
        The keys at the top.
    nested : mapping
        By key of a list of tables, the keys of such a table.
    """
    # a mistyped key first: that another one is missing follows from it
    details = sorted(error.errors(include_url=False), key=lambda detail: detail["type"] != "extra_forbidden")
    text = _line(details[0], expected, {"": list(known), **{key: list(keys) for key, keys in nested.items()}})
    return text if len(details) == 1 else f"{text} (and {len(details) - 1} more)"


def disagreement(key: str, found: str, expected: str) -> PydanticCustomError:
    """The error of a validator that looks at several keys; `key` is below the model's own path, "" for that itself."""
    return PydanticCustomError("disagreement", "disagreement", {"key": key, "found": found, "expected": expected})


def _line(detail: ErrorDetails, expected: Mapping[str, str], known: Mapping[str, list[str]]) -> str:
    location = detail["loc"]
    table = str(location[0]) if len(location) > 1 and location[0] in known else ""
    kind, context = detail["type"], detail.get("ctx", {})
    if kind == "disagreement":
        path = _path((*location, context["key"]) if context["key"] else location)
        return f"{path}: found {context['found']}, expected {context['expected']}"
    if kind == "extra_forbidden":
        near = difflib.get_close_matches(str(location[-1]), known[table], n=1, cutoff=0.5)
        hint = f"did you mean `{near[0]}`?" if near else f"expected one of {', '.join(known[table])}"
        return f"{_path(location)}: unknown key, {hint}"
    # the key of the model, not a label's own name below it
    depth = 2 if table and len(location) > 2 else 0
    wanted = expected.get(str(location[depth]), detail["msg"])
    if kind == "value_error":
        wanted = str(context["error"])
    elif table and len(location) == 2:
        wanted = "a table of keys"
    found = "nothing" if kind == "missing" else shown(detail["input"])
    return f"{_path(location)}: found {found}, expected {wanted}"


def _path(location: Sequence[int | str]) -> str:
    path = ""
    for step in location:
        if isinstance(step, int):
            path += f"[{step}]"
        elif step != "[key]":  # pydantic's mark for the name of an entry rather than its value
            path += f".{_cut(step)}" if path else _cut(step)
    return path


def shown(value: object) -> str:
    """A value as it may stand in a line: one line, not long."""
    if isinstance(value, bool):
        return str(value).lower()
    try:
        return _cut(repr(value))
    except ValueError:  # Python does not print integers of more than 4300 digits
        return "a number of thousands of digits"


def _shortened(text: str) -> str:
    """What another library says, as one line."""
    text = " ".join(text.split())
    return text if len(text) <= LINE_CHARACTERS else text[:LINE_CHARACTERS] + "…"


def _cut(text: str) -> str:
    return text if len(text) <= SHOWN_CHARACTERS else text[:SHOWN_CHARACTERS] + "…"
