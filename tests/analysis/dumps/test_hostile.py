"""Dumps that are cut off, damaged or made to hurt: what is whole is read, everything else is one line."""

from __future__ import annotations

import gzip
import json
import os
import re
import resource
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from analysis.dumps import Dump, parse_dump, read_dump
from analysis.dumps.reading import MAX_BYTES
from analysis.dumps.scanning import Damaged, Scanner, decode
from analysis.errors import ProbeError, UsageError

GOLDEN = Path(__file__).parents[2] / "golden" / "dumps"
FILES = sorted(path for path in GOLDEN.iterdir() if path.suffix != ".md")
STEP = 997  # a prime: cuts fall on every kind of place


def read_bytes(data: bytes) -> Dump | None:
    """What a file of these bytes gives; None where it is refused with one line."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "dump")
        path.write_bytes(data)
        refusal: ProbeError | None = None
        try:
            dump = read_dump(path)
        except ProbeError as exc:
            refusal = exc
    if refusal is not None:
        assert refusal.exit_code == 2
        assert "\n" not in refusal.line()
        return None
    # whatever comes out can be written down
    json.dumps([[s.stats for s in c.snapshots] for c in dump.peer_connections], allow_nan=False)
    for connection in dump.peer_connections:
        for snapshot in connection.snapshots:
            assert 0 <= snapshot.time_ns < 1 << 63
            assert all({"id", "type", "timestamp"} <= o.keys() for o in snapshot.stats)
    return dump


def fields(dump: Dump | None, name: str) -> set[tuple[str, str]]:
    """Object and field of all that is known of a peer connection."""
    found = [c for c in dump.peer_connections if c.name == name] if dump else []
    return {(o["id"], key) for c in found for s in c.snapshots for o in s.stats for key in o}


# --- cut off ---


def test_cut_series_keep_all_that_are_whole() -> None:
    text = (GOLDEN / "chromium156_internals.txt").read_text()
    connection = ""
    ends: list[tuple[int, str, str, str]] = []
    for match in re.finditer(
        r'^  "(\d+-\d+)": \{$|^    "([^"]+)-(\w+)": \{\n(?:     .*\n)+?    \}', text, re.MULTILINE
    ):
        if match.group(1):
            connection = match.group(1)
        elif match.group(3) not in ("type", "timestamp"):
            ends.append((match.end(), connection, match.group(2), match.group(3)))
    assert len(ends) > 80
    for cut in range(STEP, len(text), STEP):
        dump = parse_dump(text[:cut])
        assert dump is not None
        assert any("cut off" in warning for warning in dump.warnings)
        known = {c.name: fields(dump, c.name) for c in dump.peer_connections}
        for end, name, id_, property_ in ends:
            if end <= cut:
                assert (id_, property_) in known[name], (cut, name, id_, property_)


@pytest.mark.parametrize("name", ["rtcstats_v2.txt", "rtcstats_v3.txt", "chromium156_rtcstats.gz"])
def test_cut_lines_keep_all_that_are_whole(name: str) -> None:
    data = (GOLDEN / name).read_bytes()
    text = (gzip.decompress(data) if name.endswith("gz") else data).decode()
    ends = [m.end() for m in re.finditer(r'^\["(?:g|get[sS]tats)",[^\n]*\]', text, re.MULTILINE)]
    for cut in range(1, len(text), 1 if len(text) < 2000 else STEP):
        dump = read_bytes(text[:cut].encode())
        read = sum(len(c.snapshots) for c in dump.peer_connections) if dump else 0
        assert read == sum(end <= cut for end in ends), cut


@pytest.mark.parametrize("name", ["chromium156_internals.gz", "chromium156_rtcstats.gz"])
def test_cut_gzip_reads_what_is_there(name: str) -> None:
    data = (GOLDEN / name).read_bytes()
    whole = read_bytes(data)
    assert whole is not None
    for cut in range(STEP, len(data), STEP):
        dump = read_bytes(data[:cut])
        if dump is not None:
            assert any("gzip" in warning for warning in dump.warnings)
            for connection in dump.peer_connections:
                assert fields(dump, connection.name) <= fields(whole, connection.name)
    late = read_bytes(data[:-600])
    assert late is not None
    assert late.peer_connections[0].snapshots


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.name)
def test_no_cut_is_a_fault(path: Path) -> None:
    data = path.read_bytes()
    for cut in range(0, len(data), max(len(data) // 50, 1)):
        read_bytes(data[:cut])


def test_a_list_of_objects_that_is_cut_keeps_the_whole_ones() -> None:
    raw = [{"type": "inbound-rtp", "timestamp": 1.7e12 + 200 * k, "packetsReceived": k} for k in range(20)]
    text = json.dumps(raw)
    for cut in range(len(text)):
        dump = parse_dump(text[:cut])
        read = len(dump.peer_connections[0].snapshots) if dump and dump.peer_connections else 0
        assert read == text[:cut].count("}")


# --- encodings ---


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.name)
def test_wrapping_changes_nothing(path: Path) -> None:
    data = path.read_bytes()
    plain = gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data
    read = read_bytes(plain)
    assert read is not None
    assert any(c.snapshots for c in read.peer_connections)
    crlf = plain.replace(b"\r\n", b"\n").replace(b"\n", b"\r\n")
    halves = gzip.compress(plain[:500]) + gzip.compress(plain[500:])  # two members
    for other in (gzip.compress(plain), b"\xef\xbb\xbf" + plain, crlf, plain.decode().encode("utf-16"), halves):
        assert read_bytes(other) == read


# --- made to hurt ---


def refused(path: Path) -> UsageError:
    with pytest.raises(UsageError) as caught:
        read_dump(path)
    assert caught.value.next_step
    assert len(caught.value.line()) < 400 + len(str(path))
    return caught.value


def test_gzip_bomb_is_refused_in_bounded_memory(tmp_path: Path) -> None:
    path = tmp_path / "bomb.gz"
    with gzip.open(path, "wb", compresslevel=1) as file:
        block = b" " * (1 << 20)
        for _ in range(1024):
            file.write(block)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert "MiB" in refused(path).message
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) << 10
    assert grown < 2.5 * MAX_BYTES  # what was unpacked before it was given up, and no more than a copy of it


def test_what_cannot_be_opened_is_one_line(tmp_path: Path) -> None:
    assert "folder" in refused(tmp_path).message
    assert "No such file" in refused(tmp_path / "none").message
    empty = tmp_path / "empty"
    empty.write_bytes(b"\xef\xbb\xbf \n")
    assert read_bytes(b"") is None
    refused(empty)
    refused(Path("a\0b"))
    locked = tmp_path / "locked"
    locked.write_bytes(b"{}")
    locked.chmod(0)
    if os.geteuid():  # root may read everything
        assert "Permission" in refused(locked).message


@pytest.mark.parametrize(
    "text",
    [
        "[" * 200_000,
        '{"a":' * 200_000,
        "[" * 50_000 + "]" * 50_000,
        '{"PeerConnections":' + '{"a":' * 100_000,
        '{"PeerConnections": {"a": {"stats": {"x-y": ' + "[" * 100_000,
        "RTCStatsDump\n" + "[" * 200_000,
        '"' + "\\" * 1_000_001,
        '{"UserAgent": "' + "x" * 1_000_000,
        "NaN",
        '{"PeerConnections": NaN}',
        "[" + "9" * 100_000 + "]",
        '["getstats", "PC_0", {"a": {"type": "codec", "timestamp": 1e999}}, ' + "9" * 5000 + "]",
        '{"PeerConnections": {"\\ud800": {"stats": {"\\ud800-x": {"values": "[\\"\\\\ud800\\"]"}}}}}',
        "[" + "{}," * 100_000 + "{}]",
        "\x00" * 1000,
        "\ud7ff\U0010ffff" * 100,
    ],
)
def test_hostile_texts_are_refused_or_empty(text: str) -> None:
    dump = read_bytes(text.encode())
    assert dump is None or not any(c.snapshots for c in dump.peer_connections)


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    "unit", ["[", '{"a":', "[],", "{},", "3,", '"",', '"', "\\", "[3]\n", '{"PeerConnections":{},']
)
@pytest.mark.parametrize(
    "start", ["", "[", '{"getUserMedia":[', '{"PeerConnections":{"a":{"stats":{"x-y":[', "RTCStatsDump\n"]
)
def test_megabytes_of_nothing_take_seconds(start: str, unit: str) -> None:
    dump = parse_dump(start + unit * ((1 << 22) // len(unit)))
    assert dump is None or not any(c.snapshots for c in dump.peer_connections)


def test_a_line_of_ten_megabytes_is_read() -> None:
    objects = {str(k): {"type": "codec", "payloadType": k, "sdpFmtpLine": "x" * 100} for k in range(75_000)}
    line = json.dumps(["getStats", "PC_0", objects, 1_780_000_000_000])
    assert len(line) > 10_000_000
    dump = read_bytes(f"RTCStatsDump\n{{}}\n{line}\n".encode())
    assert dump is not None
    assert len(dump.peer_connections[0].snapshots[0].stats) == 75_000


def test_lone_surrogates_and_odd_names_are_written_as_escapes() -> None:
    report = {
        "\ud800": {"type": "inbound-rtp", "timestamp": 1.78e12, "x\u0000y": "\udfff", "n": {"a": [1]}, "l": [[1]]}
    }
    dump = read_bytes(json.dumps(["getStats", "\ud800\n", report, 1.78e12]).encode())
    assert dump is not None
    assert dump.peer_connections[0].name
    (o,) = dump.peer_connections[0].snapshots[0].stats
    assert "\udfff" not in o.values()
    assert "l" not in o  # lists in lists are nothing that W3C defines


# --- mutations ---

TOKENS = [b"{", b"}", b"[", b"]", b'"', b",", b":", b"\n", b"\\", b"null", b"-1", b"1e999", b"NaN", b"\xff", b"\\ud800"]
TOKENS += [b"{}", b"[]", b'""', b"true", b"9" * 30, b'"t":', b'"type":1', b'"values"', b"RTCStatsDump\n", b"\x1f\x8b"]


@st.composite
def mutated(draw: st.DrawFn) -> bytes:
    data = bytearray(draw(st.sampled_from([path.read_bytes()[:6000] for path in FILES])))
    for _ in range(draw(st.integers(1, 8))):
        start = draw(st.integers(0, len(data)))
        size = draw(st.integers(0, 40))
        what = draw(st.integers(0, 3))
        if what == 0:
            data[start : start + size] = draw(st.sampled_from(TOKENS))
        elif what == 1:
            data[start : start + size] = draw(st.binary(max_size=8))
        elif what == 2:
            data[start:start] = data[draw(st.integers(0, len(data))) :][: 10 * size]
        else:
            del data[start : start + 5 * size]
    return bytes(data)


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(mutated())
def test_mutated_dumps_are_read_or_refused(data: bytes) -> None:
    read_bytes(data)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)


@settings(max_examples=200, deadline=None)
@given(JSON, JSON, JSON)
def test_anything_may_stand_anywhere(one: Any, two: Any, three: Any) -> None:
    series = {"startTime": one, "endTime": two, "statsType": three, "values": json.dumps(one)}
    texts = [
        {"PeerConnections": {"1-1": {"stats": {"a-b": series, "a-timestamp": {"values": json.dumps(two)}}}}},
        {"PeerConnections": {"1-1": {"stats": {"a-b": one, "a-c": two}}}, "UserAgent": three},
        {"peerConnections": {"PC_0": [{"type": "getStats", "value": one, "time": two}, three]}},
        [{"type": "inbound-rtp", "timestamp": 1.78e12, "jitter": one, "url": two, "x": three}, one],
        {"t_ns": one, "stats": [two, {"type": three}]},
    ]
    for text in texts:
        read_bytes(json.dumps(text).encode())
    lines = [["getStats", "PC_0", {"a": {"type": "codec", "x": one}, "b": two, "t": three}, 1.78e12]]
    lines += [
        ["g", one, {"a": {"x": two}}, three],
        [one, "PC_0", two, three],
        ["g", "PC_0", {"a": None, "b": one}, two],
    ]
    read_bytes(("RTCStatsDump\n{}\n" + "\n".join(json.dumps(line) for line in lines)).encode())


@settings(max_examples=200, deadline=None)
@given(JSON)
def test_the_scanner_agrees_with_the_decoder(value: Any) -> None:
    text = f" {json.dumps([value, value])} "
    taken, passed = Scanner(text), Scanner(text)
    assert len(list(passed.array())) == 2
    values = [taken.value() for _ in taken.array()]
    assert taken.position == passed.position == len(text) - 1
    assert json.dumps(values) == json.dumps([decode(json.dumps(value))] * 2)
    for cut in range(1, len(text) - 1):
        with pytest.raises(Damaged) as caught:
            list(Scanner(text[:cut]).array())
        assert caught.value.cut
