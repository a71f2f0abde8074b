"""A capture that anyone made (pcap, pcapng, rtpdump, a session bundle; gzipped or not) into its UDP datagrams.

Sources: analysis.capture_files and analysis.capture_frames for pcap and pcapng; the rtpdump format of rtptools
(`#!rtpplay1.0`, 16 bytes of header, records of length, plen and an offset in ms). Times are ns since 1970 as the file
says, in file order.
"""

from __future__ import annotations

import gzip
import io
import json
import re
import struct
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from analysis.bundle import find_calls
from analysis.capture_files import Frame, is_pcap, is_pcapng, pcap_file, pcapng_file
from analysis.capture_frames import Direction, Passed, parse_frame
from analysis.errors import MalformedPacket, UsageError
from analysis.rtp import is_rtcp
from analysis.units import NS_PER_MS, NS_PER_S

__all__ = ["Capture", "CapturedDatagram", "read_capture"]

GZIP_MAGIC = b"\x1f\x8b"
MAX_UNPACKED_RATIO = 200  # a gzipped capture of nothing but digital silence unpacks to some 30 times its size
SMALL_BYTES = 1 << 20  # may unpack to this whatever the ratio
MAX_LINE_BYTES = 1 << 20
RTPDUMP_MAGIC = b"#!rtpplay1.0 "
NO_END = ("", 0)
RTCP_RECORD = "RTCP records that hold no RTCP"
READABLE = "give a pcap, a pcapng, an rtpdump file or a session folder"


@dataclass(frozen=True, slots=True)
class CapturedDatagram:
    """One UDP datagram: when (ns since 1970), between whom, and which way where the capture tells.

    `missing_bytes` of the payload were not captured (a snap length). An end that the capture does not name has no
    address and port 0.
    """

    time_ns: int
    source: tuple[str, int]
    destination: tuple[str, int]
    payload: bytes
    direction: Direction | None = None
    missing_bytes: int = 0


@dataclass(frozen=True)
class Capture:
    """The datagrams of a capture in file order, and what has to be said of it.

    `payload_types` are those that a session bundle wrote down (number → codec name); other captures have none.
    """

    datagrams: tuple[CapturedDatagram, ...] = field(repr=False)
    warnings: tuple[str, ...] = ()
    payload_types: Mapping[int, str] = field(default_factory=dict)


def read_capture(path: Path, *, keep: Callable[[CapturedDatagram], bool] | None = None) -> Capture:
    """Read a capture, as far as it is whole.

    Parameters
    ----------
    path : Path
        A file, or the folder of one recorded call.
    keep : callable, optional
        Datagrams for which it is false are left out, so that traffic of other kinds takes no memory.

    Returns
    -------
    Capture
        `warnings` says what was cut off, damaged or passed over.

    Raises
    ------
    UsageError
        If the path cannot be opened, or is nothing that can be read as a capture.
    """
    warnings: list[str] = []
    payload_types: Mapping[int, str] = {}
    if path.is_dir():
        folder = _call_folder(path)
        path, payload_types = folder / "packets.pcap", _negotiated(folder / "events.jsonl")
    passed: Counter[str] = Counter()
    datagrams: list[CapturedDatagram] = []
    try:
        with ExitStack() as stack:
            file = _open(path, stack)
            for datagram in _datagrams(file, path, passed, warnings):
                if keep is None or keep(datagram):
                    datagrams.append(datagram)
    except MalformedPacket as exc:
        warnings.append(f"{path.name}: cut off or damaged ({exc}); what lies before is used")
    except (EOFError, gzip.BadGzipFile, zlib.error):
        if not datagrams:
            raise UsageError(f"{path}: not a capture (damaged gzip)", next_step=READABLE) from None
        warnings.append(f"{path.name}: cut off or damaged (gzip); what lies before is used")
    except OSError as exc:
        raise UsageError(f"{path}: cannot be read ({exc.strerror or exc})", next_step=READABLE) from exc
    warnings += [
        f"{path.name}: {count} {'packet' if count == 1 else 'packets'} passed over: {reason}"
        for reason, count in sorted(passed.items())
    ]
    return Capture(tuple(datagrams), tuple(warnings), payload_types)


def _call_folder(path: Path) -> Path:
    calls = [path] if (path / "packets.pcap").is_file() else find_calls(path)
    if len(calls) > 1:
        raise UsageError(f"{path}: holds {len(calls)} calls", next_step=f"give one of them, such as {calls[0]}")
    return calls[0]


def _negotiated(path: Path) -> dict[int, str]:
    """The payload types in a bundle's first `media_negotiated`; none where it cannot be had."""
    try:
        with path.open("rb") as file:
            while line := file.readline(MAX_LINE_BYTES):
                if b'"media_negotiated"' not in line:
                    continue
                event = json.loads(line)
                if event["type"] == "media_negotiated":
                    return {int(number): str(name) for number, name in event["payload_types"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        pass
    return {}


def _open(path: Path, stack: ExitStack) -> BinaryIO:
    """The file at its beginning, unpacked where it is gzipped."""
    raw = stack.enter_context(path.open("rb"))
    if raw.peek(2)[:2] != GZIP_MAGIC:
        return raw
    limit = max(SMALL_BYTES, MAX_UNPACKED_RATIO * path.stat().st_size)
    unpacked = stack.enter_context(gzip.GzipFile(fileobj=raw))
    return stack.enter_context(io.BufferedReader(_Limited(unpacked, limit)))


class _Limited(io.RawIOBase):
    """A reader that gives up after so many bytes, so that a file made to unpack without end does not."""

    def __init__(self, file: gzip.GzipFile, limit: int) -> None:
        self._file, self._left = file, limit

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: bytearray | memoryview) -> int:  # type: ignore[override]
        data = self._file.read1(len(buffer))
        self._left -= len(data)
        if self._left < 0:
            raise MalformedPacket(f"unpacks to more than {MAX_UNPACKED_RATIO} times its size")
        buffer[: len(data)] = data
        return len(data)


def _datagrams(file: BinaryIO, path: Path, passed: Counter[str], warnings: list[str]) -> Iterator[CapturedDatagram]:
    head = file.peek(len(RTPDUMP_MAGIC))  # type: ignore[attr-defined]
    if head.startswith(RTPDUMP_MAGIC):
        warnings.append(f"{path.name}: rtpdump, its times are whole milliseconds")
        yield from _rtpdump(file, passed)
    elif is_pcap(head):
        yield from _unwrapped(pcap_file(file), path, passed)
    elif is_pcapng(head):
        yield from _unwrapped(pcapng_file(file, passed), path, passed)
    else:
        raise UsageError(f"{path}: {'is empty' if not head else 'not a capture'}", next_step=READABLE)


def _unwrapped(frames: Iterator[Frame], path: Path, passed: Counter[str]) -> Iterator[CapturedDatagram]:
    """The datagrams in frames. Raises UsageError where no frame is of a link type that is read."""
    read, unknown = 0, Counter[int]()
    try:
        for frame in frames:
            udp = parse_frame(frame.link_type, frame.data, cut=frame.cut)
            if udp is Passed.LINK_TYPE:
                unknown[frame.link_type] += 1
                continue
            read += 1
            if isinstance(udp, Passed):
                passed[udp.value] += 1
                continue
            direction = udp.direction or frame.direction
            yield CapturedDatagram(
                frame.time_ns, udp.source, udp.destination, udp.payload, direction, udp.missing_bytes
            )
    finally:
        for link_type, count in unknown.items():
            passed[f"{Passed.LINK_TYPE.value} ({link_type})"] = count
    if unknown and not read:
        raise UsageError(
            f"{path}: link type {', '.join(map(str, sorted(unknown)))} is not read",
            next_step="capture on an Ethernet interface, on `any`, or as raw IP",
        )


def _rtpdump(file: BinaryIO, passed: Counter[str]) -> Iterator[CapturedDatagram]:
    """The records of an rtpdump. Raises MalformedPacket where it is cut off or damaged."""
    line = file.readline(256)
    named = re.fullmatch(rb"#!rtpplay1\.0 ([^/\s]{1,64})/(\d{1,5})\s*\n", line)
    head = file.read(16)
    if named is None or len(head) < 16:
        raise MalformedPacket("ends within its header")
    seconds, microseconds, address, port, _ = struct.unpack("!II4sHH", head)
    start_ns = seconds * NS_PER_S + microseconds * 1000
    source = ".".join(str(byte) for byte in address), port
    destination = named[1].decode("ascii", "replace"), int(named[2])
    if destination == source:  # rtpdump itself writes one end in both places
        destination = NO_END
    while record := file.read(8):
        if len(record) < 8:
            raise MalformedPacket("ends within the header of a packet")
        length, whole, offset_ms = struct.unpack("!HHI", record)
        if length < 8:
            raise MalformedPacket(f"a packet of {length} bytes")
        payload = file.read(length - 8)
        if len(payload) < length - 8:
            raise MalformedPacket("ends within a packet")
        if whole == 0 and not is_rtcp(payload):
            passed[RTCP_RECORD] += 1
            continue
        missing = max(0, whole - len(payload))
        yield CapturedDatagram(start_ns + offset_ms * NS_PER_MS, source, destination, payload, missing_bytes=missing)
