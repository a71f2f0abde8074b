"""The recorder on a real disk: private, append-only, and whole to its last record when the disk is full."""

from __future__ import annotations

import ast
import os
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from analysis.bundle import read_call
from analysis.errors import RecordingFailed, UsageError
from analysis.pcap import Direction
from analysis.rtp import RtpPacket, serialize_rtp
from probe.clock import SystemClock
from probe.recorder import RESERVE_BYTES, BundleWriter, create_folder, write_private

CLOCK = SystemClock()


def rtp(sequence: int, payload_bytes: int = 160) -> bytes:
    return serialize_rtp(RtpPacket(111, sequence & 0xFFFF, 960 * sequence, 7, bytes(payload_bytes)))


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture
def tmpfs(tmp_path: Path, need: Callable[[str, str], str]) -> Iterator[Callable[[int], Path]]:
    """A file system of a few kilobytes that can really be filled."""
    mount, umount = need("mount", "mount"), need("umount", "mount")
    mounted: list[Path] = []

    def make(kilobytes: int) -> Path:
        path = tmp_path / f"tmpfs-{len(mounted)}"
        path.mkdir()
        command = [mount, "-t", "tmpfs", "-o", f"size={kilobytes}k", "tmpfs", str(path)]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            pytest.skip(f"tmpfs cannot be mounted here ({done.stderr.strip()}): run the tests as root")
        mounted.append(path)
        return path

    yield make
    for path in mounted:
        subprocess.run([umount, "--lazy", str(path)], check=True)


class TestFolder:
    def test_files_are_0600_in_a_folder_of_0700_whatever_the_umask(self, tmp_path: Path) -> None:
        before = os.umask(0)
        try:
            writer = BundleWriter(tmp_path / "deep" / "call", {}, CLOCK)
            writer.event("call_started")
            writer.stats({"t_ns": 1, "stats": []})
            writer.close()
            write_private(tmp_path / "deep" / "call" / "result.json", b"{}")
        finally:
            os.umask(before)
        folder = tmp_path / "deep" / "call"
        assert mode(folder) == 0o700
        files = {path.name: mode(path) for path in folder.iterdir()}
        assert files == dict.fromkeys(
            ("manifest.json", "packets.pcap", "events.jsonl", "stats.jsonl", "result.json"), 0o600
        )

    def test_an_empty_folder_is_taken_and_made_private(self, tmp_path: Path) -> None:
        folder = tmp_path / "call"
        folder.mkdir(mode=0o755)
        create_folder(folder)
        assert mode(folder) == 0o700

    @pytest.mark.parametrize("name", ["recording.wav", ".hidden"])
    def test_a_folder_that_is_not_empty_is_left_alone(self, tmp_path: Path, name: str) -> None:
        folder = tmp_path / "call"
        folder.mkdir(mode=0o755)
        (folder / name).write_text("mine")
        with pytest.raises(UsageError, match="not empty") as caught:
            BundleWriter(folder, {}, CLOCK)
        assert caught.value.next_step is not None
        assert [path.name for path in folder.iterdir()] == [name]
        assert mode(folder) == 0o755

    def test_a_file_in_its_place(self, tmp_path: Path) -> None:
        (tmp_path / "call").write_text("")
        for path in (tmp_path / "call", tmp_path / "call" / "inside"):
            with pytest.raises(UsageError, match="cannot be made"):
                create_folder(path)

    def test_a_name_that_is_too_long(self, tmp_path: Path) -> None:
        with pytest.raises(UsageError, match="cannot be made"):
            create_folder(tmp_path / ("x" * 300))


class TestWritePrivate:
    def test_it_replaces_what_was_there(self, tmp_path: Path) -> None:
        path = tmp_path / "result.json"
        path.write_text("old")
        path.chmod(0o644)
        write_private(path, b"new")
        assert path.read_bytes() == b"new"
        assert mode(path) == 0o600
        assert [p.name for p in tmp_path.iterdir()] == ["result.json"]

    def test_a_full_disk_leaves_the_old_file_and_nothing_else(self, tmpfs: Callable[[int], Path]) -> None:
        folder = tmpfs(64)
        path = folder / "result.json"
        write_private(path, b"old")
        with pytest.raises(OSError, match="No space"):
            write_private(path, bytes(100_000))
        assert path.read_bytes() == b"old"
        assert [p.name for p in folder.iterdir()] == ["result.json"]

    def test_a_folder_that_is_not_there(self, tmp_path: Path) -> None:
        with pytest.raises(FileNotFoundError):
            write_private(tmp_path / "nowhere" / "result.json", b"")


class TestFullDisk:
    def fill(self, writer: BundleWriter) -> int:
        """Record packets until the disk refuses; how many were handed over."""
        sequence = 0
        while writer.failure is None:
            for _ in range(20):
                writer.packet(CLOCK.monotonic_ns(), Direction.SENT, rtp(sequence))
                sequence += 1
            writer.event("tick", n=sequence)
            writer.flush()
            assert sequence < 100_000
        return sequence

    def test_what_was_recorded_stays_whole_and_its_end_is_told(self, tmpfs: Callable[[int], Path]) -> None:
        folder = tmpfs(700) / "call"
        writer = BundleWriter(folder, {"target": {}}, CLOCK)
        handed_over = self.fill(writer)
        assert writer.failure is not None
        assert (writer.failure.reason, writer.failure.fault) == ("disk_full", "probe")
        assert writer.failure.next_step is not None
        # the call goes on for a moment: nothing of it may break the record
        writer.packet(CLOCK.monotonic_ns(), Direction.RECEIVED, rtp(1))
        writer.stats({"t_ns": 1})
        writer.event("call_ended", reason="failed")
        writer.flush()
        writer.close()
        write_private(folder / "result.json", bytes(100_000))  # the reserve holds it

        record = read_call(folder)
        assert record.warnings == ()
        sequences = [timed.packet.sequence_number for timed in record.sent]
        assert sequences == list(range(len(sequences)))
        assert 0 < len(sequences) < handed_over
        assert len(sequences) % 20 == 0
        assert record.received == ()
        *ticks, failed, ended = record.events
        assert {event.type for event in ticks} == {"tick"}
        assert failed.type == "recording_failed"
        assert failed.fields["reason"] == "disk_full"
        assert ended.type == "call_ended"
        assert not (folder / ".reserve").exists()

    def test_events_alone_may_fill_it(self, tmpfs: Callable[[int], Path]) -> None:
        folder = tmpfs(700) / "call"
        writer = BundleWriter(folder, {}, CLOCK)
        n = 0
        while writer.failure is None and n < 100_000:
            for _ in range(50):
                writer.event("tick", n=n, text="x" * 100)
                n += 1
            writer.flush()
        record = read_call(folder)  # at once: the process may be killed before it closes
        assert record.warnings == ()
        # those that the disk refused went into the reserve
        assert [event.fields["n"] for event in record.events[:-1]] == list(range(n))
        assert record.events[-1].type == "recording_failed"
        writer.close()

    def test_a_disk_that_has_no_room_at_all(self, tmpfs: Callable[[int], Path]) -> None:
        folder = tmpfs(RESERVE_BYTES // 1024 // 2) / "call"
        with pytest.raises(RecordingFailed) as caught:
            BundleWriter(folder, {}, CLOCK)
        assert caught.value.reason == "disk_full"
        assert list(folder.iterdir()) == []

    def test_the_reserve_is_given_back_at_the_end(self, tmp_path: Path) -> None:
        writer = BundleWriter(tmp_path / "call", {}, CLOCK)
        reserve = tmp_path / "call" / ".reserve"
        # blocks that are really taken, not a hole
        assert reserve.stat().st_size == RESERVE_BYTES
        assert reserve.stat().st_blocks * 512 >= RESERVE_BYTES
        writer.close()
        assert not reserve.exists()


class TestAppending:
    def test_nothing_is_on_disk_before_a_flush_and_all_is_after(self, tmp_path: Path) -> None:
        writer = BundleWriter(tmp_path / "call", {}, CLOCK)
        assert read_call(tmp_path / "call").events == ()
        writer.event("call_started")
        writer.packet(CLOCK.monotonic_ns(), Direction.SENT, rtp(1))
        writer.flush()
        record = read_call(tmp_path / "call")
        assert [event.type for event in record.events] == ["call_started"]
        assert len(record.sent) == 1
        writer.close()

    def test_a_process_that_is_killed_loses_nothing_that_was_flushed(self, tmp_path: Path) -> None:
        program = (
            "import os, signal, sys\n"
            "from pathlib import Path\n"
            "from analysis.pcap import Direction\n"
            "from probe.clock import SystemClock\n"
            "from probe.recorder import BundleWriter\n"
            "writer = BundleWriter(Path(sys.argv[1]), {}, SystemClock())\n"
            "for i in range(10):\n"
            "    writer.event('tick', n=i)\n"
            "    writer.packet(SystemClock.monotonic_ns(), Direction.SENT, bytes.fromhex('806f') + bytes(10))\n"
            "writer.flush()\n"
            "writer.event('tick', n=10)\n"
            "os.kill(os.getpid(), signal.SIGKILL)\n"
        )
        subprocess.run([sys.executable, "-c", program, str(tmp_path / "call")], timeout=60)
        record = read_call(tmp_path / "call")
        assert len(record.events) == len(record.sent) == 10
        assert record.warnings == ()

    def test_addresses_may_change_during_a_call(self, tmp_path: Path) -> None:
        writer = BundleWriter(tmp_path / "call", {}, CLOCK)
        writer.packet(CLOCK.monotonic_ns(), Direction.SENT, rtp(1))
        writer.set_path(("2001:db8::1", 1), ("2001:db8::2", 2))
        writer.packet(CLOCK.monotonic_ns(), Direction.SENT, rtp(2))
        writer.close()
        record = read_call(tmp_path / "call")
        assert [t.packet.sequence_number for t in record.sent] == [1, 2]
        assert record.warnings == ()

    def test_closing_twice_is_harmless(self, tmp_path: Path) -> None:
        writer = BundleWriter(tmp_path / "call", {}, CLOCK)
        writer.event("call_started")
        writer.close()
        writer.close()
        assert len(read_call(tmp_path / "call").events) == 1


class TestDocumentation:
    """docs/bundle.md names what the code writes."""

    ROOT = Path(__file__).resolve().parents[2]
    TEXT = (ROOT / "docs" / "bundle.md").read_text(encoding="utf-8")

    def events(self) -> dict[str, set[str]]:
        """Types and fields of all that the probe's own modules record."""
        found: dict[str, set[str]] = {}
        for path in (self.ROOT / "probe").glob("*.py"):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                match node:
                    case ast.Call(func=ast.Attribute(attr="event"), args=[ast.Constant(value=str(type_)), *_]):
                        found.setdefault(type_, set()).update(k.arg for k in node.keywords if k.arg is not None)
        return found

    def test_every_event_and_each_of_its_fields(self) -> None:
        events = self.events()
        assert "turn_started" in events
        rows = {line.split("|")[1].strip(): line for line in self.TEXT.splitlines() if line.startswith("| `")}
        for type_, fields in events.items():
            assert f"`{type_}`" in rows, f"{type_} is not in docs/bundle.md"
            described = self.TEXT if type_ == "turn_started" else rows[f"`{type_}`"]
            for name in fields:
                assert f"`{name}`" in described, f"{type_}.{name} is not in docs/bundle.md"

    def test_the_files(self, tmp_path: Path) -> None:
        BundleWriter(tmp_path / "call", {}, CLOCK).close()
        for path in (tmp_path / "call").iterdir():
            assert path.name in self.TEXT
