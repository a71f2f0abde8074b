"""A dump file, gzipped or not, into its text; never more of it than a machine can hold.

Sources: RFC 1952 (gzip) and RFC 1950/1951 as zlib reads them. What a file is, its first bytes say, not its name.
"""

from __future__ import annotations

import codecs
import zlib
from pathlib import Path

from analysis.errors import UsageError

__all__ = ["MAX_BYTES", "TooLarge", "read_text"]

MAX_BYTES = 1 << 28  # of the text: an hour of a large call is some 100 MB, and the text lies in memory as a whole
CHUNK_BYTES = 1 << 20
GZIP_MAGIC = b"\x1f\x8b"
_NOTHING = b" \t\r\n\0" + codecs.BOM_UTF8  # what a file may hold and still be empty
NEXT_STEP = "give a dump of chrome://webrtc-internals, of rtcstats, or getStats() objects as JSON"


class TooLarge(UsageError):
    """A file that holds more than a dump may."""


def read_text(path: Path, warnings: list[str]) -> str:
    """The text of a file.

    Parameters
    ----------
    path : Path
    warnings : list of str
        What was cut off or damaged is added here.

    Raises
    ------
    UsageError
        If it cannot be opened, is empty, or holds more than `MAX_BYTES`.
    """
    try:
        if path.is_dir():
            raise UsageError(f"{path}: is a folder, not a dump", next_step="give the file in it")
        with path.open("rb") as file:
            data: bytes | bytearray = file.read(MAX_BYTES + 1)
    except (OSError, ValueError) as exc:
        reason = exc.strerror if isinstance(exc, OSError) else "not a path"
        raise UsageError(f"{path}: cannot be read ({reason})", next_step=NEXT_STEP) from None
    if data.startswith(GZIP_MAGIC):
        data = _gunzip(data, path, warnings)
    if len(data) > MAX_BYTES:
        raise _too_large(path)
    if warnings and not data:
        raise UsageError(f"{path}: is cut off or damaged before anything of it can be unpacked", next_step=NEXT_STEP)
    if not data[:CHUNK_BYTES].strip(_NOTHING) and not data.strip(_NOTHING):
        raise UsageError(f"{path}: is empty", next_step=NEXT_STEP)
    return _decode(data)


def _too_large(path: Path) -> TooLarge:
    return TooLarge(f"{path}: holds more than {MAX_BYTES >> 20} MiB", next_step="give a dump of a shorter call")


def _gunzip(data: bytes | bytearray, path: Path, warnings: list[str]) -> bytearray:
    """All members of a gzip file, as far as they can be had."""
    found = bytearray()
    rest: bytes = bytes(data)
    while rest.startswith(GZIP_MAGIC):
        member = zlib.decompressobj(wbits=31)
        try:
            while not member.eof:
                part = member.decompress(rest, CHUNK_BYTES)
                rest = member.unconsumed_tail
                found += part
                if len(found) > MAX_BYTES:
                    raise _too_large(path)
                if not part and not rest:
                    break
        except zlib.error:
            warnings.append("the gzip data are damaged; what comes before the damage was read")
            break
        if not member.eof:
            warnings.append("the gzip data end too early; what is there was read")
            break
        rest = member.unused_data
    return found


def _decode(data: bytes | bytearray) -> str:
    for mark, encoding in ((codecs.BOM_UTF16_LE, "utf-16"), (codecs.BOM_UTF16_BE, "utf-16")):
        if data.startswith(mark):
            return data.decode(encoding, "replace")
    # a file that was cut within a character ends with U+FFFD, which lies in a record that is not whole anyway
    return data.decode("utf-8-sig", "replace")
