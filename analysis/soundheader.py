"""A sound file's header in, what is wrong with the lengths it claims out, and the file read as if they were right.

Source: RIFF/WAVE (Microsoft, 1994; RF64: EBU Tech 3306) for the lengths in the header, which streaming writers leave at
0 or 0xFFFFFFFF and cut files contradict; RFC 3533 for Ogg's last page.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from analysis.errors import AudioFileError

__all__ = ["Patched", "check_rate", "examine"]

MIN_RATE_HZ = 8000
MAX_RATE_HZ = 384_000
OPEN_ENDED_BYTES = 0x7FFFF000  # lengths from here on are what writers to a pipe put where they know none
MAX_CHUNKS = 1000  # of a RIFF file that are looked at


def check_rate(path: Path, rate_hz: int) -> None:
    """Raise AudioFileError for a sampling rate (Hz) that cannot be used."""
    if not MIN_RATE_HZ <= rate_hz <= MAX_RATE_HZ:
        raise AudioFileError(
            f"{path}: a sampling rate of {rate_hz} Hz cannot be used (8000 to {MAX_RATE_HZ} Hz can)",
            next_step="convert it to 48000 Hz",
        )


class Patched:
    """A file to read from, some bytes of which are replaced on the way (the lengths in a header)."""

    def __init__(self, file: IO[bytes], patches: list[tuple[int, bytes]]) -> None:
        self._file, self._patches = file, patches

    def read(self, size: int = -1) -> bytes:
        at = self._file.tell()
        data = bytearray(self._file.read(size))
        for offset, value in self._patches:
            for i, byte in enumerate(value, offset - at):
                if 0 <= i < len(data):
                    data[i] = byte
        return bytes(data)

    def readinto(self, buffer: Any) -> int:
        data = self.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        return self._file.seek(offset, whence)

    def tell(self) -> int:
        return self._file.tell()


def examine(path: Path, file: IO[bytes], size: int) -> tuple[list[tuple[int, bytes]], list[str]]:
    """Compare the lengths in a header with the file: what to replace (offset, bytes), and one warning at most."""
    head = file.read(12)
    patches: list[tuple[int, bytes]] = []
    warning = None
    if head[:4] in (b"RIFF", b"RF64") and head[8:] == b"WAVE":
        patches, warning = _examine_wave(path, file, head, size)
    elif head[:4] == b"FORM" and head[8:] in (b"AIFF", b"AIFC"):
        at = next((at for name, at, length in _chunks(file, size, ">") if name == b"SSND" and at + length > size), None)
        warning = None if at is None else "the file is cut off: read to its end"
    elif head[:4] == b"OggS":
        file.seek(max(0, size - 2**17))
        tail = file.read()
        last = tail.rfind(b"OggS")
        if 0 <= last < len(tail) - 5 and not tail[last + 5] & 4:  # RFC 3533: the last page says that it is the last
            warning = "the file is cut off: read to its end"
    file.seek(0)
    return patches, [] if warning is None else [warning]


def _examine_wave(path: Path, file: IO[bytes], head: bytes, size: int) -> tuple[list[tuple[int, bytes]], str | None]:
    patches: list[tuple[int, bytes]] = []
    warning = None
    if head[:4] == b"RIFF" and struct.unpack("<I", head[4:8])[0] in (0, 0xFFFFFFFF):
        patches.append((4, struct.pack("<I", min(size - 8, 0xFFFFFFFE))))
        warning = "the header gives no length: read to the file's end"
    long_length_at = None
    for name, at, length in _chunks(file, size, "<"):
        if name == b"fmt " and 16 <= length <= size - at:
            check_rate(path, struct.unpack("<I", file.read(8)[4:])[0])
        if name == b"ds64" and head[:4] == b"RF64":
            long_length_at = at + 8
        if name != b"data":
            continue
        there = size - at
        claimed = length
        if long_length_at is not None and length == 0xFFFFFFFF:
            file.seek(long_length_at)
            claimed = struct.unpack("<Q", file.read(8).ljust(8, b"\0"))[0]
        if claimed > there or (claimed == 0 and not _is_whole_chunks(file, at, size)):
            if claimed == 0 or claimed >= OPEN_ENDED_BYTES:
                warning = "the header gives no length: read to the file's end"
            else:
                warning = f"the file is cut off: {there} of {claimed} bytes of sound are there"
            if long_length_at is not None:
                patches.append((long_length_at, struct.pack("<Q", there)))
            else:
                patches.append((at - 4, struct.pack("<I", min(there, 0xFFFFFFFE))))
        break
    return patches, warning


def _chunks(file: IO[bytes], size: int, order: str, at: int = 12) -> Iterator[tuple[bytes, int, int]]:
    """Name, offset of the content and claimed length of each chunk from `at` on."""
    for _ in range(MAX_CHUNKS):
        file.seek(at)
        head = file.read(8)
        if len(head) < 8:
            return
        length = struct.unpack(f"{order}I", head[4:])[0]
        yield head[:4], at + 8, length
        at += 8 + length + (length & 1)  # chunks are padded to even lengths
        if at > size:
            return


def _is_whole_chunks(file: IO[bytes], at: int, size: int) -> bool:
    """True if from `at` on there is nothing, or nothing but chunks that end where the file does."""
    end = at
    for name, begin, length in _chunks(file, size, "<", at):
        if not all(32 <= byte < 127 for byte in name):
            return False
        end = begin + length
    return size - end in (0, 1) and end <= size
