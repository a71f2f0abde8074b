"""JSON that may end anywhere: walks its structure, so that each whole part before the damage can be had.

Source: RFC 8259. The parts themselves are decoded by the standard library; numbers that JSON does not know (NaN,
Infinity) and integers beyond all use become None.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

__all__ = ["Damaged", "Scanner", "decode"]

MAX_PART_CHARS = 1 << 24  # of one part that is decoded at once; a part of nested lists takes some 30 times that memory
MAX_DEPTH = 500  # the decoder goes no deeper than some 1,000, and no dump deeper than 10
MAX_VALUES = 4_000_000  # that are walked over one by one; an hour of 60 objects five times a second is 1 million
_SPACE = re.compile(r"[ \t\r\n\ufeff]*")
# possessive: an unfinished string of many megabytes is given up at once
_STRING = r'"[^"\\]*+(?:\\.[^"\\]*+)*+"'
# what holds no list and no table inside is passed over together; what follows it opens or closes one
_FLAT = rf'(?:[^"\[\]{{}}]++|{_STRING})*+'
_PASSED = re.compile(rf'(?:[^"\[\]{{}}]++|{_STRING}|\[{_FLAT}\]|\{{{_FLAT}\}})*+', re.DOTALL)
_WHOLE_STRING = re.compile(_STRING, re.DOTALL)
_SCALAR = re.compile(r"[^\s,\]}]+")


class Damaged(ValueError):
    """Text that is not JSON from `position` on: damaged, or cut off there (`cut`)."""

    def __init__(self, position: int, *, cut: bool) -> None:
        super().__init__(f"not JSON from character {position} on")
        self.position = position
        self.cut = cut


def _integer(text: str) -> int | None:
    return int(text) if len(text) <= 20 else None  # W3C's largest are of 64 bits


def _nothing(_text: str) -> None:
    return None


_DECODER = json.JSONDecoder(parse_int=_integer, parse_constant=_nothing)


def decode(text: str) -> Any:
    """One whole JSON text, as the module says. Raises Damaged where it is not one."""
    if len(text) > MAX_PART_CHARS:
        raise Damaged(0, cut=False)
    try:
        return _DECODER.decode(text)
    except json.JSONDecodeError as exc:
        raise Damaged(exc.pos, cut=exc.pos >= len(text)) from None
    except RecursionError:
        raise Damaged(0, cut=False) from None


class Scanner:
    """A place in a JSON text, moved over it by part.

    `object` and `array` yield at each of their values; what the caller does not take is skipped.
    """

    def __init__(self, text: str, position: int = 0) -> None:
        self.text = text
        self.position = position
        self._left = MAX_VALUES

    def peek(self) -> str:
        """The next character that is not white space; empty at the end."""
        found = _SPACE.match(self.text, self.position)
        self.position = found.end() if found else self.position
        return self.text[self.position : self.position + 1]

    def object(self) -> Iterator[str]:
        """The keys of the object that begins here, each with the place at its value. Raises Damaged."""
        self._take("{")
        if self.peek() == "}":
            self.position += 1
            return
        while True:
            if self.peek() != '"':
                raise self._damaged()
            key = self.value()
            self._take(":")
            yield from self._offered(key)
            if self._ends("}"):
                return

    def array(self) -> Iterator[int]:
        """The numbers of the values of the array that begins here, with the place at each. Raises Damaged."""
        self._take("[")
        if self.peek() == "]":
            self.position += 1
            return
        number = 0
        while True:
            yield from self._offered(number)
            number += 1
            if self._ends("]"):
                return

    def value(self) -> Any:
        """Decode the value that begins here and move behind it. Raises Damaged."""
        self.peek()
        start = self.position
        if start >= len(self.text):
            raise self._damaged()
        if self.text[start] in "[{":
            end = self._end()
            if end - start > MAX_PART_CHARS:
                raise Damaged(start, cut=False)
        try:
            found, self.position = _DECODER.raw_decode(self.text, start)
        except (ValueError, RecursionError):
            # an unfinished string or word is cut off only where nothing but it follows
            cut = self._unfinished(start)
            raise Damaged(start, cut=cut) from None
        if self.position >= len(self.text) and self.text[-1] not in '"]}':
            raise Damaged(start, cut=True)  # a number at the very end may have had more digits
        return found

    def skip(self) -> None:
        """Move behind the value that begins here without decoding it. Raises Damaged."""
        self.peek()
        self.position = self._end()

    def _offered(self, item: Any) -> Iterator[Any]:
        self._left -= 1
        if not self.peek() or self._left < 0:
            raise self._damaged()
        before = self.position
        yield item
        if self.position == before:
            self.skip()

    def _take(self, character: str) -> None:
        if self.peek() != character:
            raise self._damaged()
        self.position += 1

    def _ends(self, bracket: str) -> bool:
        following = self.peek()
        if following not in (",", bracket) or not following:
            raise self._damaged()
        self.position += 1
        return following == bracket

    def _damaged(self) -> Damaged:
        return Damaged(self.position, cut=self.position >= len(self.text))

    def _unfinished(self, start: int) -> bool:
        if self.text[start] == '"':
            return _WHOLE_STRING.match(self.text, start) is None
        word = _SCALAR.match(self.text, start)
        return word is not None and word.end() == len(self.text)

    def _end(self) -> int:
        """Where the value ends that begins here; its brackets are matched, its words are not looked at."""
        start = self.position
        if start >= len(self.text):
            raise self._damaged()
        if self.text[start] not in '[{"':
            word = _SCALAR.match(self.text, start)
            if word is None or word.end() == len(self.text):
                raise Damaged(start, cut=word is not None)
            return word.end()
        if self.text[start] == '"':
            string = _WHOLE_STRING.match(self.text, start)
            if string is None:
                raise Damaged(start, cut=True)
            return string.end()
        closing: list[str] = []
        while True:
            character = self.text[start : start + 1]
            if character in ("[", "{"):
                closing.append("]" if character == "[" else "}")
            elif character in ("", '"'):
                raise Damaged(start, cut=True)
            elif closing.pop() != character:
                raise Damaged(start, cut=False)
            start += 1
            if not closing:
                return start
            if len(closing) > MAX_DEPTH:
                raise Damaged(start, cut=False)
            passed = _PASSED.match(self.text, start)
            start = passed.end() if passed else start
