"""Damaged inputs of every kind end in a value or in a documented error; and the faults that fuzzing found before.

The targets, seeds and mutators are those of benchmarks/fuzz.py, which runs a million of them.
"""

from __future__ import annotations

import copy
import json
import struct
import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from analysis.bundle import CallRecord, Event
from analysis.capture import CapturedDatagram
from analysis.capture_rtp import find_streams
from analysis.capture_time import header_extensions
from analysis.derive import derive
from analysis.dumps import read_dump
from analysis.errors import BundleError, MalformedPacket
from analysis.result import result_json_text
from analysis.rtp import RtpPacket, serialize_rtp
from benchmarks import fuzz, fuzz_corpus
from benchmarks.fuzz_targets import TARGETS, Target, judge, mutated, warm_up

SEED = 20_261_201
MUTATED = {  # inputs of each target; together some 10 s on a slow machine
    "rtp": 4000,
    "rtp-extensions": 4000,
    "rtcp": 4000,
    "pcap": 800,
    "pcapng": 800,
    "rtpdump": 800,
    "capture-to-playout": 250,
    "bundle": 300,
    "bundle-to-result": 20,
    "stats.jsonl": 300,
    "webrtc-internals": 250,
    "rtcstats": 300,
    "getstats": 250,
    "commands": 6,
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("fuzz")
    warm_up(found)
    return found


@pytest.fixture(autouse=True)
def no_stray_warnings() -> Iterator[None]:
    # a user would see them on standard error
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def test_every_target_is_here() -> None:
    assert list(MUTATED) == list(TARGETS)


@pytest.mark.parametrize("name", MUTATED)
def test_mutated_inputs(name: str, folder: Path) -> None:
    tally = fuzz.fuzz_chunk(fuzz.Chunk(name, 0, MUTATED[name]), SEED, folder)
    assert tally.findings == []
    # mutations that are all refused, or none, would test little
    assert tally.accepted > 0.2 * tally.inputs
    assert name in ("commands", "rtcstats") or tally.refused > 0


@pytest.mark.parametrize("name", [name for name in TARGETS if name != "commands"])
def test_whole_seeds_are_accepted(name: str, folder: Path) -> None:
    target = TARGETS[name]
    refused = [i for i, seed in enumerate(target.corpus) if not judge(target, seed.whole(), folder).accepted]
    assert refused == []


def _arbitrary(target: Target) -> st.SearchStrategy[bytes]:
    """Bytes of any kind, some behind the beginning of a seed or amid one: what the mutators would not think of."""
    seeds = st.sampled_from([seed.whole()[:4096] for seed in target.corpus])

    @st.composite
    def spliced(draw: st.DrawFn) -> bytes:
        data = draw(seeds)
        at = draw(st.integers(0, len(data)))
        return data[:at] + draw(st.binary(max_size=40)) + data[at + draw(st.integers(0, 40)) :]

    return st.binary(max_size=200) | spliced()


@pytest.mark.parametrize("name", [name for name in TARGETS if name not in ("commands", "bundle-to-result")])
def test_arbitrary_inputs(name: str, folder: Path) -> None:
    target = TARGETS[name]

    @settings(max_examples=60, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
    @given(data=_arbitrary(target))
    def check(data: bytes) -> None:
        assert judge(target, data, folder).fault is None

    check()


class TestTheFuzzerItself:
    """It must find what it is there to find."""

    def plant(self, monkeypatch: pytest.MonkeyPatch, run: Any, **changes: Any) -> None:
        target = replace(TARGETS["rtp"], name="planted", run=run, **changes)
        monkeypatch.setitem(TARGETS, "planted", target)

    def test_an_exception_that_is_not_documented(self, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
        def run(data: bytes, folder: Path) -> object:
            return struct.unpack("!H", data[:1]) if data[0] & 0x20 else data

        self.plant(monkeypatch, run)
        tally = fuzz.fuzz_chunk(fuzz.Chunk("planted", 0, 200), SEED, folder)
        assert 10 < len(tally.findings) < 200
        index, fault = tally.findings[0]
        assert fault.startswith("error at ")
        assert mutated(TARGETS["planted"], SEED, int(index))[0] & 0x20

    def test_a_hang(self, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
        def run(data: bytes, folder: Path) -> object:
            try:
                while True:
                    pass
            except Exception:
                return data

        self.plant(monkeypatch, run, limit_s=0.05)
        tally = fuzz.fuzz_chunk(fuzz.Chunk("planted", 0, 2), SEED, folder)
        assert [fault for _, fault in tally.findings] == ["took more than 0.05 s"] * 2

    def test_a_refusal_that_is_not_one_line(self, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
        def run(data: bytes, folder: Path) -> object:
            raise MalformedPacket("first line\nsecond line")

        self.plant(monkeypatch, run)
        assert "not one line" in (judge(TARGETS["planted"], b"", folder).fault or "")

    def test_inputs_are_the_same_each_time(self) -> None:
        for name in ("pcap", "rtcstats", "bundle"):
            again = replace(TARGETS[name])
            assert [mutated(again, 3, i) for i in range(40)] == [mutated(TARGETS[name], 3, i) for i in range(40)]

    def test_all_inputs_are_shared_out(self) -> None:
        chunks = fuzz.chunks_of(1_000_000, list(TARGETS))
        counts = dict.fromkeys(TARGETS, 0)
        for chunk in chunks:
            assert chunk.start == counts[chunk.name]
            counts[chunk.name] = chunk.stop
        assert abs(sum(counts.values()) - 1_000_000) < len(TARGETS)
        for name in ("pcap", "pcapng", "rtpdump", "webrtc-internals", "rtcstats", "getstats"):
            assert counts[name] >= 50_000


def call() -> CallRecord:
    """A simulated call of one turn."""
    return fuzz_corpus.simulated_calls()[1]


def with_event(type_: str, **fields: Any) -> CallRecord:
    """That call with something else in the last event of a type."""
    record = call()
    events = list(record.events)
    at = max(i for i, event in enumerate(events) if event.type == type_)
    changed = {**copy.deepcopy(dict(events[at].fields)), **fields}
    events[at] = Event(events[at].time_ns, type_, changed)
    return replace(record, events=tuple(events))


class TestFound:
    """What fuzzing found, once each."""

    def test_a_clock_that_steps_back_again_and_again(self) -> None:
        # added up, the times beyond each step no longer fitted 64 bits: OverflowError in numpy
        far_ns = (1 << 61) + 1000
        days = [0, 1, 2, far_ns, 7, far_ns, 9, far_ns, 11, far_ns, 13]
        packets = [
            CapturedDatagram(
                time_ns + i,
                ("192.0.2.1", 5004),
                ("192.0.2.2", 5006),
                serialize_rtp(RtpPacket(0, sequence_number=i, timestamp=160 * i, ssrc=1, payload=bytes(160))),
            )
            for i, time_ns in enumerate(days)
        ]
        (stream,) = find_streams(packets)
        assert [t.packet.sequence_number for t in stream.packets] == [0, 1, 2, 3, 4]
        assert max(t.time_ns for t in stream.packets) < 1 << 62
        assert "6 packets have a time beyond all reason: left out" in stream.warnings

    @pytest.mark.parametrize("value", [float("inf"), float("nan"), [1], {"a": 1}, "1e999"])
    def test_a_truth_that_is_no_number(self, value: Any) -> None:
        # it went into the result as it was, which then could not be written: ValueError
        with pytest.raises(BundleError):
            derive([with_event("agent_truth", leading_silence_ms=value)])

    @pytest.mark.parametrize("value", [-1, 10**30, "x", float("inf")])
    def test_a_truth_whose_packet_cannot_be(self, value: Any) -> None:
        with pytest.raises(BundleError):
            derive([with_event("agent_truth", sequence_number=value)])

    def test_a_truth_of_any_kind_can_be_written(self) -> None:
        found = derive([with_event("agent_truth", kind={"a": [1, "\ud800"]})]).result
        assert json.loads(result_json_text(found))["turns"][0]["truth"]["kind"].startswith("{'a': [1, ")

    @pytest.mark.parametrize("changed", [("turn_started", "rate_hz"), ("media_started", "frame_ns")])
    def test_a_rate_or_a_frame_of_nothing(self, changed: tuple[str, str]) -> None:
        # ZeroDivisionError where samples became nanoseconds, and where they became frames
        type_, name = changed
        with pytest.raises(BundleError):
            derive([with_event(type_, **{name: 0})])

    @pytest.mark.parametrize("type_", [[], ["getStats"], {"a": 1}, None, 1.5])
    def test_an_event_of_rtcstats_whose_type_is_none(self, tmp_path: Path, type_: Any) -> None:
        # TypeError: such a type cannot be looked up in a set
        report = {"a": {"type": "inbound-rtp", "timestamp": "2026-01-01T00:00:00.000Z", "packetsReceived": 1}}
        events = [
            {"time": "2026-01-01T00:00:00.000Z", "type": each, "value": report}
            for each in ("getStats", type_, "getStats")
        ]
        path = tmp_path / "dump.json"
        path.write_text(json.dumps({"path": "/", "peerConnections": {"PC_0": events}}))
        (connection,) = read_dump(path).peer_connections
        assert len(connection.snapshots) == 2

    def test_an_extension_of_identifier_0_with_a_length_ends_the_block(self) -> None:
        # RFC 8285 section 4.2: what stands behind it is not looked at; it was taken for an element
        assert header_extensions(0xBEDE, bytes.fromhex("10aa 02bbbbbb 20cc 00".replace(" ", ""))) == {1: b"\xaa"}

    @pytest.mark.parametrize("value", [10**400, ["demo:"], {"a": 1}, 1.5, None])
    def test_a_target_that_is_no_text(self, value: Any) -> None:
        # ValueError when the result was written: a number beyond any that a document can hold
        record = with_event("media_started")
        found = derive([replace(record, manifest={**record.manifest, "target": {"url": value}})]).result
        assert found.source.target is None
        assert result_json_text(found)
