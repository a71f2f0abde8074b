"""Bundles: what the recorder wrote is what is read, and what a crash or a stranger left is said and not guessed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from analysis.bundle import RUN_FILE, RUN_SCHEMA, SCHEMA, Event, find_calls, imported_manifest, read_call, read_run
from analysis.errors import BundleError, NotMeasurable
from analysis.pcap import Direction, Endpoints, pcap_header
from analysis.rtcp import compound, serialize_receiver_report
from analysis.rtp import RtpPacket, serialize_rtp
from analysis.streams import Timed
from probe.recorder import BundleWriter

MONOTONIC_NS = 123_456_789_012_345
WALL_NS = 1_790_000_000_987_654_321


class SteppedClock:
    """A monotonic clock that is set by hand, and a wall clock that is stepped under it."""

    def __init__(self) -> None:
        self.now_ns = MONOTONIC_NS
        self.wall_now_ns = WALL_NS

    def monotonic_ns(self) -> int:
        return self.now_ns

    def wall_ns(self) -> int:
        return self.wall_now_ns


def rtp(sequence: int, payload: bytes = b"voice") -> RtpPacket:
    return RtpPacket(111, sequence, 960 * sequence, 0xCAFEBABE, payload)


REPORT = compound(serialize_receiver_report(1, []), 1, "probe")


@pytest.fixture
def clock() -> SteppedClock:
    return SteppedClock()


def write(path: Path, clock: SteppedClock, **manifest: Any) -> BundleWriter:
    writer = BundleWriter(path, manifest, clock)
    writer.set_path(("192.0.2.1", 5004), ("198.51.100.7", 40_000))
    return writer


@pytest.fixture
def bundle(tmp_path: Path, clock: SteppedClock) -> Path:
    """A bundle with three packets each way, reports, and events."""
    writer = write(tmp_path / "call", clock, target={"url": "demo:"})
    writer.event("call_started", call=0)
    for i in range(3):
        writer.packet(MONOTONIC_NS + 20_000_000 * i, Direction.SENT, serialize_rtp(rtp(i)))
        writer.packet(MONOTONIC_NS + 20_000_000 * i + 1, Direction.RECEIVED, serialize_rtp(rtp(100 + i)))
    writer.packet(MONOTONIC_NS + 70_000_000, Direction.SENT, REPORT)
    writer.packet(MONOTONIC_NS + 80_000_000, Direction.RECEIVED, REPORT)
    writer.event("loop_lag", MONOTONIC_NS + 5, lag_ns=700_000)
    writer.event("call_ended", MONOTONIC_NS + 90_000_000, reason="done")
    writer.close()
    return tmp_path / "call"


class TestReadBack:
    def test_packets_of_both_directions(self, bundle: Path) -> None:
        record = read_call(bundle)
        assert record.sent == tuple(Timed(MONOTONIC_NS + 20_000_000 * i, rtp(i)) for i in range(3))
        assert record.received == tuple(Timed(MONOTONIC_NS + 20_000_000 * i + 1, rtp(100 + i)) for i in range(3))
        assert record.rtcp_sent == ((MONOTONIC_NS + 70_000_000, REPORT),)
        assert record.rtcp_received == ((MONOTONIC_NS + 80_000_000, REPORT),)
        assert record.warnings == ()
        assert record.path == bundle

    def test_events(self, bundle: Path) -> None:
        record = read_call(bundle)
        assert record.events == (
            Event(MONOTONIC_NS, "call_started", {"call": 0}),
            Event(MONOTONIC_NS + 5, "loop_lag", {"lag_ns": 700_000}),
            Event(MONOTONIC_NS + 90_000_000, "call_ended", {"reason": "done"}),
        )
        assert [e.type for e in record.of_type("call_ended", "call_started")] == ["call_started", "call_ended"]
        assert record.first("call_ended") == record.events[2]
        assert record.first("turn_started") is None

    def test_manifest(self, bundle: Path) -> None:
        manifest = read_call(bundle).manifest
        assert manifest["schema"] == SCHEMA
        assert manifest["target"] == {"url": "demo:"}
        assert manifest["clock"] == {"monotonic_ns": MONOTONIC_NS, "wall_ns": WALL_NS}

    @pytest.mark.parametrize("offset_ns", [0, 1, 999_999_999, 1_000_000_000, 86_400_000_000_007, -1])
    def test_times_come_back_to_the_nanosecond(self, tmp_path: Path, clock: SteppedClock, offset_ns: int) -> None:
        writer = write(tmp_path / "call", clock)
        clock.wall_now_ns -= 3_600_000_000_000  # someone sets the wall clock during the call
        writer.packet(MONOTONIC_NS + offset_ns, Direction.SENT, serialize_rtp(rtp(1)))
        writer.close()
        assert [t.time_ns for t in read_call(tmp_path / "call").sent] == [MONOTONIC_NS + offset_ns]

    def test_text_of_any_language(self, tmp_path: Path, clock: SteppedClock) -> None:
        # half a surrogate pair is what Python makes of a file name that is not UTF-8
        command = "latency-probe run — ünïcode 声 \udcff.toml"
        writer = write(tmp_path / "call", clock, command=command)
        writer.event("agent_said", text="日本語\n\u2028\x00", lone="\ud800")
        writer.close()
        record = read_call(tmp_path / "call")
        assert record.manifest["command"] == command
        (event,) = record.events
        assert event.fields == {"text": "日本語\n\u2028\x00", "lone": "\ud800"}

    def test_fields_of_an_agent_cannot_pass_for_the_records_own(self, tmp_path: Path, clock: SteppedClock) -> None:
        writer = write(tmp_path / "call", clock)
        writer.event("agent_metrics", 42, type="media_lost", t_ns=-1, time_ns=7, type_="x", self=1)
        writer.close()
        (event,) = read_call(tmp_path / "call").events
        assert (event.time_ns, event.type) == (42, "agent_metrics")
        assert event.fields == {"time_ns": 7, "type_": "x", "self": 1}


class TestDamage:
    def test_events_torn_at_every_byte_of_the_last_line(self, bundle: Path) -> None:
        path = bundle / "events.jsonl"
        whole = path.read_bytes()
        begin = whole.rstrip(b"\n").rfind(b"\n") + 1
        for length in range(begin + 1, len(whole) - 1):
            path.write_bytes(whole[:length])
            record = read_call(bundle)
            assert [e.type for e in record.events] == ["call_started", "loop_lag"]
            assert record.warnings == ("events.jsonl: 1 line was cut off or no event",)
        path.write_bytes(whole[:-1])  # all but the line's end: nothing is missing
        assert read_call(bundle).warnings == ()

    @pytest.mark.parametrize(
        "line",
        [
            b"",
            b"null",
            b"[]",
            b'"text"',
            b"{}",
            b'{"t_ns": 1}',
            b'{"type": "x"}',
            b'{"t_ns": "soon", "type": "x"}',
            b'{"t_ns": null, "type": "x"}',
            b'{"t_ns": Infinity, "type": "x"}',
            b'{"t_ns": NaN, "type": "x"}',
            b'{"t_ns": ' + b"9" * 5000 + b', "type": "x"}',
            b"\xff\xfe",
            b"[" * 100_000,
        ],
    )
    def test_lines_that_are_no_events_are_counted(self, bundle: Path, line: bytes) -> None:
        path = bundle / "events.jsonl"
        path.write_bytes(line + b"\n" + path.read_bytes())
        record = read_call(bundle)
        assert len(record.events) == 3
        assert record.warnings == ("events.jsonl: 1 line was cut off or no event",)

    def test_files_that_are_missing_are_said(self, bundle: Path) -> None:
        (bundle / "packets.pcap").unlink()
        (bundle / "events.jsonl").unlink()
        record = read_call(bundle)
        assert (record.events, record.received, record.sent) == ((), (), ())
        assert record.warnings == ("events.jsonl is missing", "packets.pcap is missing")

    def test_a_capture_that_was_cut_off_is_read_to_its_end(self, bundle: Path) -> None:
        path = bundle / "packets.pcap"
        path.write_bytes(path.read_bytes()[:-10])
        record = read_call(bundle)
        assert (len(record.sent), len(record.received), len(record.rtcp_received)) == (3, 3, 0)
        assert record.warnings == ("packets.pcap: cut off; what lies before is used",)

    def test_packets_that_are_no_media_are_counted(self, bundle: Path) -> None:
        path = bundle / "packets.pcap"
        ends = Endpoints(Direction.RECEIVED, ("192.0.2.1", 1), ("192.0.2.2", 2))
        stun, short = bytes([0, 1]) + bytes(18), serialize_rtp(rtp(1))[:11]
        path.write_bytes(path.read_bytes() + b"".join(ends.record(0, data) for data in (stun, short, b"")))
        record = read_call(bundle)
        assert len(record.received) == 3
        assert record.warnings == ("packets.pcap: 3 packets are not RTP or RTCP",)

    def test_a_capture_of_another_program_is_refused(self, bundle: Path) -> None:
        (bundle / "packets.pcap").write_bytes(b"\x0a\x0d\x0d\x0a" + pcap_header()[4:])
        with pytest.raises(BundleError, match=r"packets\.pcap"):
            read_call(bundle)


class TestManifest:
    @pytest.mark.parametrize(
        "text",
        [
            "",
            "{",
            "null",
            "[]",
            "{}",
            '{"schema": "latency-probe/bundle/2", "clock": {"monotonic_ns": 1, "wall_ns": 2}}',
            '{"schema": ["latency-probe/bundle/1"]}',
            f'{{"schema": "{SCHEMA}"}}',
            f'{{"schema": "{SCHEMA}", "clock": []}}',
            f'{{"schema": "{SCHEMA}", "clock": {{"monotonic_ns": 1}}}}',
            f'{{"schema": "{SCHEMA}", "clock": {{"monotonic_ns": "soon", "wall_ns": 2}}}}',
            f'{{"schema": "{SCHEMA}", "clock": {{"monotonic_ns": Infinity, "wall_ns": 2}}}}',
            "[" * 100_000,
        ],
    )
    def test_one_that_cannot_be_used_is_one_line(self, bundle: Path, text: str) -> None:
        (bundle / "manifest.json").write_text(text)
        with pytest.raises(BundleError) as caught:
            read_call(bundle)
        assert str(bundle) in caught.value.line()
        assert "\n" not in caught.value.line()

    def test_bytes_that_are_no_text(self, bundle: Path) -> None:
        (bundle / "manifest.json").write_bytes(b"\xff\xfe\x00{")
        with pytest.raises(BundleError, match=r"manifest\.json"):
            read_call(bundle)

    def test_a_folder_in_its_place(self, tmp_path: Path) -> None:
        (tmp_path / "manifest.json").mkdir()
        with pytest.raises(BundleError):
            read_call(tmp_path)

    def test_a_folder_that_is_no_bundle(self, tmp_path: Path) -> None:
        with pytest.raises(BundleError, match="not a session bundle"):
            read_call(tmp_path)


class TestReadRun:
    """A run of three planned calls: one whole, one whose manifest is torn, one of which nothing was recorded."""

    @pytest.fixture
    def run(self, tmp_path: Path, clock: SteppedClock) -> Path:
        planned = [{"call": call, "turns": [{"index": 0, "timeout_s": 5}]} for call in range(3)]
        (tmp_path / RUN_FILE).write_text(json.dumps({"schema": RUN_SCHEMA, "calls": planned}))
        for call in range(2):
            write(tmp_path / f"call-{call:03d}", clock, call=call, turns=planned[call]["turns"]).close()
        (tmp_path / "call-001" / "manifest.json").write_text("{")
        return tmp_path

    def test_what_was_planned_is_scheduled_though_nothing_of_it_is_left(self, run: Path) -> None:
        whole, torn, absent = read_run(run)
        assert whole.first("recording_missing") is None
        for call, record in ((1, torn), (2, absent)):
            assert record.first("recording_missing") is not None
            assert record.manifest["call"] == call
            assert len(record.manifest["turns"]) == 1
            assert "not measurable" in record.warnings[0]

    def test_without_a_plan_what_is_there_is_read_and_what_is_torn_is_said(self, run: Path) -> None:
        (run / RUN_FILE).unlink()
        (whole,) = read_run(run)
        assert any("call-001" in warning for warning in whole.warnings)

    def test_a_plan_that_is_damaged_is_none(self, run: Path) -> None:
        for text in ("", "[]", '{"calls": 3}', '{"calls": [{"call": "x"}]}', "[" * 100_000):
            (run / RUN_FILE).write_text(text)
            assert len(read_run(run)) == 1

    def test_a_plan_outlives_all_its_calls(self, run: Path) -> None:
        for call in range(2):
            (run / f"call-{call:03d}" / "manifest.json").unlink()
        records = read_run(run)
        assert [record.manifest["call"] for record in records] == [0, 1, 2]
        assert all(record.first("recording_missing") is not None for record in records)

    def test_nothing_readable_is_one_line(self, run: Path) -> None:
        (run / RUN_FILE).unlink()
        (run / "call-000" / "manifest.json").write_text("{")
        with pytest.raises(BundleError, match="cannot be read"):
            read_run(run)


class TestFindCalls:
    def test_one_call(self, bundle: Path) -> None:
        assert find_calls(bundle) == [bundle]

    def test_many_calls_in_order(self, tmp_path: Path) -> None:
        names = ["call-010", "call-002", "call-1000", "call-999", "call-000"]
        for name in names:
            (tmp_path / name).mkdir()
            (tmp_path / name / "manifest.json").write_text(json.dumps({"schema": SCHEMA}))
        (tmp_path / "call-003").mkdir()  # never got as far as a manifest
        (tmp_path / "other").mkdir()
        (tmp_path / "other" / "manifest.json").write_text("{}")
        found = [path.name for path in find_calls(tmp_path)]
        assert found == ["call-000", "call-002", "call-010", "call-999", "call-1000"]

    def test_what_is_none_is_one_line_with_a_next_step(self, tmp_path: Path) -> None:
        file = tmp_path / "file"
        file.write_text("{}")
        for path in (tmp_path / "nowhere", tmp_path, file):
            with pytest.raises(BundleError) as caught:
                find_calls(path)
            assert str(path) in caught.value.line()
            assert caught.value.next_step


class TestImported:
    @staticmethod
    def folder(path: Path, source: Any) -> Path:
        path.mkdir(parents=True)
        manifest = {"schema": SCHEMA, "clock": {"monotonic_ns": 0, "wall_ns": WALL_NS}, "turns": [], "source": source}
        (path / "manifest.json").write_text(json.dumps(manifest))
        return path

    def test_imported_statistics_are_no_recorded_call(self, tmp_path: Path) -> None:
        folder = self.folder(tmp_path / "import", {"kind": "import", "format": "rtcstats"})
        manifest = imported_manifest(folder)
        assert manifest is not None
        assert manifest["source"]["format"] == "rtcstats"
        for read in (read_call, read_run):
            with pytest.raises(NotMeasurable, match="imported statistics") as refused:
                read(folder)
            assert refused.value.exit_code == 3

    def test_one_of_several_is_enough(self, tmp_path: Path) -> None:
        self.folder(tmp_path / "run" / "call-000", {"kind": "import"})
        with pytest.raises(NotMeasurable):
            read_run(tmp_path / "run")

    @pytest.mark.parametrize("source", [None, "import", {"kind": "session"}, ["import"]])
    def test_any_other_source_is_that_of_a_recorded_call(self, tmp_path: Path, source: Any) -> None:
        folder = self.folder(tmp_path / "call", source)
        assert imported_manifest(folder) is None
        assert read_call(folder).received == ()
