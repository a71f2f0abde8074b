"""What happens in a call into its bundle on disk, append-only: a crash loses nothing that was written before it.

Layout in docs/bundle.md. Files are 0600 in a folder of 0700. A reserve of disk space is held from the start, so that
the end of a recording that filled the disk, and its result, can still be written.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from analysis.bundle import SCHEMA
from analysis.errors import RecordingFailed, UsageError
from analysis.pcap import Direction, Endpoints, pcap_header
from analysis.units import s_to_ns
from probe.clock import Clock

__all__ = ["BundleWriter", "create_folder", "write_private"]

RESERVE_BYTES = 512 * 1024
STATS_INTERVAL_S = 0.2
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


def create_folder(path: Path) -> None:
    """Make a folder for a session (0700).

    Raises
    ------
    UsageError
        If it exists and is not empty (nothing recorded is ever overwritten), or cannot be made.
    """
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        if any(path.iterdir()):
            raise UsageError(f"{path}: is not empty", next_step="name another folder with --out")
        path.chmod(0o700)
    except OSError as exc:
        raise UsageError(
            f"{path}: cannot be made ({exc.strerror})", next_step="name another folder with --out"
        ) from exc


def write_private(path: Path, data: bytes) -> None:
    """Write a derived file (0600), whole or not at all. Raises OSError where the disk does not take it."""
    draft = path.with_name(f".{path.name}.tmp")
    try:
        with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            file.write(data)
        draft.replace(path)
    except OSError:
        draft.unlink(missing_ok=True)
        raise


class _Appender:
    """One append-only file: whole records are buffered, and written together."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o600)
        self._pending: list[bytes] = []

    def add(self, record: bytes) -> None:
        self._pending.append(record)

    def flush(self) -> None:
        """Write what is pending; where the disk refuses, the file still ends with a whole record."""
        if not self._pending:
            return
        data, self._pending = b"".join(self._pending), []
        whole = os.fstat(self._fd).st_size
        view = memoryview(data)
        try:
            while view:
                view = view[os.write(self._fd, view) :]
        except OSError:
            os.ftruncate(self._fd, whole)
            self._pending.append(data)
            raise

    def close(self) -> None:
        with contextlib.suppress(OSError):
            os.close(self._fd)


class BundleWriter:
    """Writes one call's bundle.

    Parameters
    ----------
    path : Path
        The call's folder; made here.
    manifest : mapping
        What is known before the call; schema and clock origin are added.
    clock : Clock
    stats_interval_s : float
        Between snapshots of the statistics.

    Attributes
    ----------
    failure : RecordingFailed or None
        Set once the disk refuses; from then on packets are dropped, and events go into the reserve.
    stats_interval_ns : int
        As above.
    wall_shift_ns : int
        Wall time less monotonic time when the recording began: what lays any time of it on the wall clock.
    """

    def __init__(
        self, path: Path, manifest: Mapping[str, Any], clock: Clock, *, stats_interval_s: float = STATS_INTERVAL_S
    ) -> None:
        create_folder(path)
        self.path = path
        self.failure: RecordingFailed | None = None
        self.stats_interval_ns = s_to_ns(stats_interval_s)
        self._clock = clock
        self.set_path(("0.0.0.0", 0), ("0.0.0.0", 0))
        monotonic_ns, wall_ns = clock.monotonic_ns(), clock.wall_ns()
        # capture times go on from this wall time by the monotonic clock, whatever is done to the wall clock later
        self.wall_shift_ns = wall_ns - monotonic_ns
        document = {"schema": SCHEMA, **manifest, "clock": {"monotonic_ns": monotonic_ns, "wall_ns": wall_ns}}
        try:
            self._reserve(path / ".reserve")
            text = json.dumps(document, indent=1, ensure_ascii=False)
            write_private(path / "manifest.json", text.encode(errors="backslashreplace"))
            self._packets = _Appender(path / "packets.pcap")
            self._events = _Appender(path / "events.jsonl")
            self._stats = _Appender(path / "stats.jsonl")
            self._packets.add(pcap_header())
            self._packets.flush()
        except OSError as exc:
            (path / ".reserve").unlink(missing_ok=True)
            raise _recording_failed(path, exc) from exc

    @staticmethod
    def _reserve(path: Path) -> None:
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(bytes(RESERVE_BYTES))

    def files(self, files: Mapping[str, bytes]) -> None:
        """Write whole files into the bundle, by relative name. Raises RecordingFailed where the disk refuses."""
        try:
            for name, data in files.items():
                (self.path / name).parent.mkdir(mode=0o700, exist_ok=True)
                write_private(self.path / name, data)
        except OSError as exc:
            raise _recording_failed(self.path, exc) from exc

    def set_path(self, local: tuple[str, int], remote: tuple[str, int]) -> None:
        """The addresses that packets are recorded with from now on."""
        self._ends = {
            Direction.SENT: Endpoints(Direction.SENT, local, remote),
            Direction.RECEIVED: Endpoints(Direction.RECEIVED, remote, local),
        }

    def event(self, type_: str, time_ns: int | None = None, /, **fields: Any) -> None:
        """Record one event, at `time_ns` (monotonic; default now)."""
        own = {"t_ns": self._clock.monotonic_ns() if time_ns is None else time_ns, "type": type_}
        # an agent may call its fields what it likes, and put half a surrogate pair in them (kept as an escape)
        line = json.dumps({**own, **fields, **own}, separators=(",", ":"), ensure_ascii=False)
        self._events.add(line.encode(errors="backslashreplace") + b"\n")
        if self.failure is not None:
            self._flush_late()

    def packet(self, time_ns: int, direction: Direction, data: bytes) -> None:
        """Record one plain RTP or RTCP packet that passed at `time_ns` (monotonic)."""
        if self.failure is None:
            self._packets.add(self._ends[direction].record(time_ns + self.wall_shift_ns, data))

    def stats(self, snapshot: Mapping[str, Any]) -> None:
        """Record one statistics snapshot."""
        if self.failure is None:
            self._stats.add(json.dumps(snapshot, separators=(",", ":")).encode() + b"\n")

    def flush(self) -> None:
        """Hand all that is pending to the operating system; sets `failure` where the disk refuses."""
        if self.failure is not None:
            return
        try:
            self._events.flush()
            self._packets.flush()
            self._stats.flush()
        except OSError as exc:
            self.failure = _recording_failed(self.path, exc)
            (self.path / ".reserve").unlink(missing_ok=True)
            self.event("recording_failed", reason=self.failure.reason, message=self.failure.message)

    def _flush_late(self) -> None:
        with contextlib.suppress(OSError):
            self._events.flush()

    def close(self) -> None:
        """Write what is pending, give the reserve back and close the files."""
        self.flush()
        (self.path / ".reserve").unlink(missing_ok=True)
        self._flush_late()
        for file in (self._packets, self._events, self._stats):
            file.close()


def _recording_failed(path: Path, exc: OSError) -> RecordingFailed:
    full = exc.errno in _FULL
    return RecordingFailed(
        "disk_full" if full else "disk_failed",
        f"{path}: {'the disk is full' if full else f'the disk does not take the recording ({exc.strerror})'}",
        next_step="free some space, or name another folder with --out",
    )
