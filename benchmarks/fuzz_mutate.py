"""A seed (records of fields, or JSON) and a random generator in, a damaged input out; the same again for the same seed.

What damages: single bits and bytes, boundary values in a field, a field that jumps from one record on (a clock step, a
restart), records dropped, doubled, swapped or taken from another seed, lengths that lie, ends cut off; in JSON values
of other types, names that change places, numbers beyond every range, and nesting without end.
"""

from __future__ import annotations

import copy
import gzip
import json
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

__all__ = ["Files", "JsonLines", "JsonText", "Nothing", "Records", "Seed", "Tagged", "damage_bytes", "damage_json_text"]

MAX_BYTES = 1 << 18  # an input that doubling made longer is cut here
MAX_RECORDS = 400
UNDAMAGED = 0.02  # of the inputs stay whole: what is whole must be accepted under load, too
PIECES = (
    b"",
    b"\0",
    b"\xff",
    b"\0" * 4,
    b"\xff" * 4,
    b"\x7f\xff\xff\xff",
    b"\xff\xff\xff\x7f",
    b"\0" * 64,
    b"\x80" * 3,
    b"\x1f\x8b\x08",
    b"\n",
    b"\xef\xbb\xbf",
)
TEXT_PIECES = (
    b"null",
    b"NaN",
    b"-Infinity",
    b"1e999",
    b"9" * 4400,  # longer than Python's limit for whole numbers
    b"[" * 1200,
    b'{"a":' * 1200,
    b'"\\ud800"',
    b'"\\u0000"',
    b"\x00",
    b"\xff\xfe",
    b"\n\n",
    b'{"',
    b"]",
    b"}",
    b",",
    b'"',
)
VALUES: tuple[Any, ...] = (
    None,
    True,
    False,
    0,
    1,
    -1,
    0.5,
    -0.0,
    2**31,
    2**53 + 1,
    2**63,
    -(2**63) - 1,
    2**64,
    10**30,
    10**400,
    1e18,
    1e308,
    -1e308,
    5e-324,
    float("nan"),
    float("inf"),
    float("-inf"),
    "",
    "0",
    "NaN",
    "x",
    "[1,2",
    "[]",
    "{}",
    "2026-01-01T00:00:00.000Z",
    "9999-99-99T99:99:99Z",
    "a\x00b\n\u2028\ud800",
    "ü" * 300,
    [],
    {},
    [[]],
    [None],
    {"": None},
    [1, "a", None, {}],
    {"id": 1, "type": [], "timestamp": {}},
)


class Seed(Protocol):
    """Something whole from which damaged inputs are made."""

    def whole(self) -> bytes:
        """The input as it was before anything happened to it."""

    def damaged(self, rng: random.Random, others: Sequence[Seed]) -> bytes:
        """One damaged input; `others` are seeds of the same target to take parts from."""


def damage_bytes(rng: random.Random, data: bytes, pieces: Sequence[bytes] = PIECES) -> bytes:
    """One damage that knows nothing of what the bytes mean."""
    if not data:
        return rng.choice(pieces)
    at = rng.randrange(len(data))
    kind = rng.randrange(8)
    if kind == 0:
        return data[:at] + bytes([data[at] ^ 1 << rng.randrange(8)]) + data[at + 1 :]
    if kind == 1:
        return data[:at] + bytes([rng.randrange(256)]) + data[at + 1 :]
    if kind == 2:
        return data[:at]
    if kind == 3:
        return data[:at] + data[at + rng.randint(1, 16) :]
    if kind == 4:
        return data[:at] + rng.choice(pieces) + data[at:]
    if kind == 5:
        piece = rng.choice(pieces)
        return data[:at] + piece + data[at + len(piece) :]
    stop = at + rng.randint(1, 64)
    if kind == 6:
        return data[:stop] + data[at:]
    return data[:at] + rng.randbytes(stop - at) + data[stop:]


def _boundary(rng: random.Random, value: bytes) -> bytes:
    """Another value for a field of this width."""
    bits = 8 * len(value)
    order = rng.choice(("big", "little"))
    number = int.from_bytes(value, order)  # type: ignore[arg-type]
    near = rng.choice((-2, -1, 1, 2, 3, 4, 7, 8, 60, 960, 4096))
    chosen = rng.choice(
        (
            0,
            1,
            (1 << bits) - 1,
            1 << bits - 1,
            (1 << bits - 1) - 1,
            number + near,
            number ^ 1 << rng.randrange(bits),
            number * 2,
            rng.getrandbits(bits),
            rng.getrandbits(rng.randint(1, bits)),
        )
    )
    return (chosen % (1 << bits)).to_bytes(len(value), order)  # type: ignore[arg-type]


Record = tuple[bytes, ...]


@dataclass(frozen=True)
class Records:
    """Binary records, each divided into its fields (numbers of up to 8 bytes, and bodies of any length).

    `packed` is the share of inputs that are gzipped, before or after they are damaged.
    """

    records: tuple[Record, ...]
    packed: float = 0.0

    def whole(self) -> bytes:
        """All fields, one after the other."""
        return b"".join(b"".join(record) for record in self.records)

    def damaged(self, rng: random.Random, others: Sequence[Seed]) -> bytes:
        """Fields first, then records, then bytes."""
        if rng.random() < UNDAMAGED:
            data = self.whole()
        else:
            records = list(self.records)
            if rng.random() < 0.85:
                for _ in range(rng.choice((1, 1, 1, 2, 3, 6))):
                    _damage_fields(rng, records)
            if rng.random() < 0.4:
                _damage_order(rng, records, others)
            data = b"".join(b"".join(record) for record in records[:MAX_RECORDS])
            if rng.random() < 0.35:
                for _ in range(rng.randint(1, 4)):
                    data = damage_bytes(rng, data)
        if rng.random() < self.packed:
            data = gzip.compress(data, 1, mtime=0)
            if rng.random() < 0.5:
                data = damage_bytes(rng, data)
        return data[:MAX_BYTES]


def _damage_fields(rng: random.Random, records: list[Record]) -> None:
    at = rng.randrange(len(records))
    record = records[at]
    if not record:
        return
    place = rng.randrange(len(record))
    value = record[place]
    if not 1 <= len(value) <= 8:
        records[at] = (*record[:place], damage_bytes(rng, value), *record[place + 1 :])
    elif rng.random() < 0.7:
        records[at] = (*record[:place], _boundary(rng, value), *record[place + 1 :])
    else:
        _step(rng, records, at, place)


def _step(rng: random.Random, records: list[Record], at: int, place: int) -> None:
    """From one record on, for some or for all that follow, a field has something added or one value."""
    width = len(records[at][place])
    bits = 8 * width
    order = rng.choice(("big", "little"))
    add = rng.choice((1, -1, 3, 100, 960, -960, 48_000, 1 << bits - 1, rng.getrandbits(bits), 1 << rng.randrange(bits)))
    value = None if rng.random() < 0.8 else rng.getrandbits(bits)
    stop = len(records) if rng.random() < 0.5 else at + rng.randint(2, 20)
    for i in range(at, min(stop, len(records))):
        record = records[i]
        if place < len(record) and len(record[place]) == width:
            number = int.from_bytes(record[place], order) + add if value is None else value  # type: ignore[arg-type]
            changed = (number % (1 << bits)).to_bytes(width, order)  # type: ignore[arg-type]
            records[i] = (*record[:place], changed, *record[place + 1 :])


def _damage_order(rng: random.Random, records: list[Record], others: Sequence[Seed]) -> None:
    at, to = rng.randrange(len(records)), rng.randrange(len(records))
    first, stop = min(at, to), max(at, to) + 1
    kind = rng.randrange(6)
    if kind == 0:
        del records[first : min(stop, len(records) - 1)]
    elif kind == 1:
        records[stop:stop] = records[first:stop] * rng.choice((1, 1, 2, 8))
    elif kind == 2:
        records[at], records[to] = records[to], records[at]
    elif kind == 3:
        part = records[first:stop]
        rng.shuffle(part)
        records[first:stop] = part
    elif kind == 4:
        records.insert(to, records[at])
    else:
        other = rng.choice(others) if others else None
        if isinstance(other, Records):
            records[at:] = other.records[rng.randrange(len(other.records)) :]


@dataclass(frozen=True)
class JsonText:
    """One JSON document, kept as text so that each input has its own copy of it."""

    text: str
    packed: float = 0.0
    head: bytes = b""

    def whole(self) -> bytes:
        """The document as it was."""
        return self.head + self.text.encode()

    def damaged(self, rng: random.Random, others: Sequence[Seed]) -> bytes:
        """Values first, then the text."""
        data = self.head
        if rng.random() < UNDAMAGED:
            data = self.whole()
        else:
            document = json.loads(self.text)
            for _ in range(rng.choice((0, 1, 1, 2, 3, 6))):
                document = _damage_json(rng, document)
            data = _damage_text(rng, data + json.dumps(document).encode())
        if rng.random() < self.packed:
            data = gzip.compress(data, 1, mtime=0)
            if rng.random() < 0.5:
                data = damage_bytes(rng, data)
        return data[:MAX_BYTES]


@dataclass(frozen=True)
class JsonLines:
    """Lines of JSON behind a head of other lines."""

    lines: tuple[str, ...]
    head: bytes = b""
    packed: float = 0.0

    def whole(self) -> bytes:
        """All lines as they were."""
        return self.head + "\n".join(self.lines).encode() + b"\n"

    def damaged(self, rng: random.Random, others: Sequence[Seed]) -> bytes:
        """Values of some lines, the order of lines, then the text."""
        if rng.random() < UNDAMAGED:
            data = self.whole()
        else:
            lines: list[Record] = [(line.encode(),) for line in self.lines]
            for _ in range(rng.choice((0, 1, 1, 2, 4))):
                at = rng.randrange(len(lines))
                try:
                    document = _damage_json(rng, json.loads(lines[at][0]))
                except ValueError:  # whole numbers that an earlier round made too long
                    continue
                lines[at] = (json.dumps(document).encode(),)
            if rng.random() < 0.3:
                _damage_order(rng, lines, ())
            data = _damage_text(rng, self.head + b"\n".join(line[0] for line in lines) + b"\n")
        if rng.random() < self.packed:
            data = gzip.compress(data, 1, mtime=0)
        return data[:MAX_BYTES]


def _damage_text(rng: random.Random, data: bytes) -> bytes:
    if rng.random() < 0.3:
        for _ in range(rng.randint(1, 3)):
            data = damage_bytes(rng, data, TEXT_PIECES)
    return data


def damage_json_text(rng: random.Random, data: bytes) -> bytes:
    """Text with one value of its JSON, or of one of its lines, changed; other text has one damage as bytes."""
    whole = rng.random() < 0.5
    lines = [data] if whole else data.split(b"\n")
    at = rng.randrange(len(lines))
    try:
        lines[at] = json.dumps(_damage_json(rng, json.loads(lines[at]))).encode()
    except (ValueError, RecursionError):
        return damage_bytes(rng, data, TEXT_PIECES)
    return b"\n".join(lines)


def _damage_json(rng: random.Random, document: Any) -> Any:
    """The document with one node changed; a string that holds JSON may be changed inside."""
    parent, key, node = None, None, document
    while isinstance(node, (dict, list)) and node and (parent is None or rng.random() < 0.85):
        parent = node
        key = rng.choice(list(node)) if isinstance(node, dict) else rng.randrange(len(node))
        node = node[key]
    if isinstance(node, str) and node[:1] in ("[", "{") and rng.random() < 0.8:
        return _put(document, parent, key, _inside(rng, node))
    kind = rng.randrange(8)
    if isinstance(parent, dict) and kind == 0:
        del parent[key]
    elif isinstance(parent, dict) and kind == 1:
        parent[rng.choice(["", "id", "type", "timestamp", "ssrc", "0", "stats", str(key)[:-1], f"{key}x"])] = (
            copy.deepcopy(node)
        )
    elif isinstance(parent, dict) and kind == 2:
        other = rng.choice(list(parent))
        parent[key], parent[other] = parent[other], parent[key]
    elif isinstance(parent, list) and kind <= 2:
        parent[key:key] = [copy.deepcopy(node) for _ in range(rng.choice((1, 2, 50)))]
    elif isinstance(node, (int, float)) and not isinstance(node, bool) and kind <= 5:
        return _put(document, parent, key, _number(rng, node))
    else:
        return _put(document, parent, key, copy.deepcopy(rng.choice(VALUES)))
    return document


def _put(document: Any, parent: Any, key: Any, value: Any) -> Any:
    if parent is None:
        return value
    parent[key] = value
    return document


def _inside(rng: random.Random, text: str) -> str:
    try:
        return json.dumps(_damage_json(rng, json.loads(text)))
    except (ValueError, RecursionError):
        return text[: rng.randrange(len(text))]


def _number(rng: random.Random, number: float) -> Any:
    try:
        return rng.choice(
            (-number, number + 1, number - 1, number * 1000, number / 1000, number * 1e30, -1e-9 * number, str(number))
        )
    except OverflowError:
        return 0


@dataclass(frozen=True)
class Nothing:
    """A file that is not there."""

    def whole(self) -> bytes:
        """No bytes."""
        return b""

    def damaged(self, rng: random.Random, others: Sequence[Seed]) -> bytes:
        """Still none, or a few."""
        return b"" if rng.random() < 0.5 else damage_bytes(rng, b"")


SEPARATOR = b"\x1e\x1c\x1e\x1c"


@dataclass(frozen=True)
class Files:
    """Several files as one input; in most inputs one of them is damaged, in some one is missing."""

    files: tuple[Seed, ...] = field(default_factory=tuple)

    def whole(self) -> bytes:
        """The files with a separator in between."""
        return SEPARATOR.join(seed.whole() for seed in self.files)

    def damaged(self, rng: random.Random, others: Sequence[Seed]) -> bytes:
        """One or more of the files damaged."""
        parts = [seed.whole() for seed in self.files]
        for _ in range(rng.choice((1, 1, 1, 2, 3))):
            at = rng.randrange(len(parts))
            parts[at] = b"" if rng.random() < 0.02 else self.files[at].damaged(rng, ())
        return SEPARATOR.join(parts)


@dataclass(frozen=True)
class Tagged:
    """A seed behind a word that says what is to be done with it; the word stays whole."""

    tag: str
    seed: Seed

    def whole(self) -> bytes:
        """The word, a line feed, the seed."""
        return self.tag.encode() + b"\n" + self.seed.whole()

    def damaged(self, rng: random.Random, others: Sequence[Seed]) -> bytes:
        """The seed damaged, behind its word."""
        alike = [other.seed for other in others if isinstance(other, Tagged) and other.tag == self.tag]
        return self.tag.encode() + b"\n" + self.seed.damaged(rng, alike)
