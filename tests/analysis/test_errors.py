"""The tree of errors: one printable line each, the exit code of the contract, and the tree as it is drawn."""

from __future__ import annotations

import inspect
import re

import pytest

import analysis.errors as errors
from analysis.errors import (
    CallFailed,
    MalformedPacket,
    MediaLost,
    NotMeasurable,
    ProbeError,
    RecordingFailed,
    ScenarioError,
    SessionError,
    UsageError,
)

CLASSES = [value for _, value in inspect.getmembers(errors, inspect.isclass) if issubclass(value, ProbeError)]


def made(kind: type[ProbeError], message: str, next_step: str | None = None) -> ProbeError:
    if kind is RecordingFailed:
        return RecordingFailed("disk_full", message, next_step=next_step)
    if kind is NotMeasurable:
        return NotMeasurable("too_quiet", message, next_step=next_step)
    return kind(message, next_step=next_step)


def test_the_tree_is_the_one_that_is_drawn() -> None:
    assert errors.__doc__ is not None
    drawn = re.findall(r"^([│ ]*)[├└]── (\w+)", errors.__doc__, re.MULTILINE)
    path: list[type] = [ProbeError]
    found = {ProbeError}
    for indent, name in drawn:
        depth = len(indent) // 4 + 1
        kind = getattr(errors, name)
        assert kind.__bases__ == (path[depth - 1],)
        path[depth:] = [kind]
        found.add(kind)
    assert found == set(CLASSES)


@pytest.mark.parametrize(
    ("kind", "code"),
    [(UsageError, 2), (ScenarioError, 2), (NotMeasurable, 3), (SessionError, 4), (CallFailed, 4), (RecordingFailed, 4)],
)
def test_exit_codes(kind: type[ProbeError], code: int) -> None:
    assert made(kind, "x").exit_code == code


@pytest.mark.parametrize("kind", CLASSES)
def test_a_line_and_what_to_do_next(kind: type[ProbeError]) -> None:
    assert made(kind, "call.wav: is empty").line() == "call.wav: is empty"
    assert made(kind, "call.wav: is empty", "record it again").line() == "call.wav: is empty; record it again"
    assert str(made(kind, "call.wav: is empty", "record it again")) == "call.wav: is empty"


@pytest.mark.parametrize("character", ["\n", "\r", "\t", "\x1b", "\x00", "\u2028", "\u202e", "\ud800"])
def test_a_line_is_one_line_whatever_a_file_is_called(character: str) -> None:
    line = UsageError(f"a{character}b: no such file", next_step=f"not {character}").line()
    assert line == "a b: no such file; not  "
    assert line.isprintable()


def test_text_of_other_languages_stays() -> None:
    assert UsageError("録音.wav: está vacío — 🙂").line() == "録音.wav: está vacío — 🙂"


def test_what_they_carry() -> None:
    assert NotMeasurable("too_quiet").line() == "too_quiet"
    assert NotMeasurable("too_quiet", "the reply is too quiet").reason == "too_quiet"
    assert CallFailed("no answer").fault == "agent"
    assert MediaLost("gone", fault="probe").fault == "probe"
    full = RecordingFailed("disk_full", "the disk is full")
    assert (full.reason, full.fault) == ("disk_full", "probe")


def test_a_malformed_packet_is_no_error_of_the_program() -> None:
    assert not issubclass(MalformedPacket, ProbeError)
    assert issubclass(MalformedPacket, ValueError)
