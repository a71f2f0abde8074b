"""Dumps of WebRTC statistics that people already have, in whatever form, into snapshots of W3C objects.

Which form it is, its beginning says: chrome://webrtc-internals, rtcstats, or plain getStats() objects; each may be
gzipped. Described in docs/import.md.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from analysis.dumps import webrtc_internals
from analysis.dumps.getstats import is_statistics, read_getstats
from analysis.dumps.reading import NEXT_STEP, read_text
from analysis.dumps.records import Dump, PeerConnection, Snapshot
from analysis.dumps.rtcstats import HEADER, is_event, read_rtcstats_lines, read_rtcstats_object
from analysis.dumps.scanning import Damaged, Scanner, decode
from analysis.dumps.webrtc_internals import read_webrtc_internals
from analysis.errors import UsageError

__all__ = ["Dump", "PeerConnection", "Snapshot", "parse_dump", "read_dump"]

_EMPTY = re.compile(r"\{\s*\}")


def read_dump(path: Path) -> Dump:
    """Read a dump of any form.

    Parameters
    ----------
    path : Path

    Returns
    -------
    Dump
        What is whole of it; what was cut off or damaged is said in its warnings.

    Raises
    ------
    UsageError
        If it cannot be opened, is too large, or is not a dump.
    """
    warnings: list[str] = []
    text = read_text(path, warnings)
    dump = parse_dump(text)
    if dump is None:
        raise UsageError(f"{path}: is not a dump that is known here", next_step=NEXT_STEP)
    return Dump(dump.format, dump.user_agent, dump.peer_connections, (*warnings, *dump.warnings))


def parse_dump(text: str) -> Dump | None:
    """Read the text of a dump; None where it is not one."""
    scanner = Scanner(text)
    first = scanner.peek()
    if text.startswith(HEADER, scanner.position):
        return read_rtcstats_lines(text)
    if first not in ("{", "["):
        return None
    start = scanner.position
    lines = text[start : start + (1 << 25)].split("\n", 2)
    values = [_whole(line) for line in lines[:2]]
    if any(is_event(value) for value in values):
        return read_rtcstats_lines(text)
    if first == "{":
        keys = _keys(Scanner(text, start))
        if keys & webrtc_internals.KEYS and "peerConnections" not in keys:
            return read_webrtc_internals(scanner)
        if "peerConnections" in keys:
            return read_rtcstats_object(scanner)
    dump = read_getstats(scanner)
    return dump if dump.peer_connections or _hints_at_statistics(values) else None


def _whole(line: str) -> Any:
    try:
        return decode(line.strip())
    except Damaged:
        return None


def _keys(scanner: Scanner) -> set[str]:
    """The keys of the object that begins here, as far as it is whole."""
    found: set[str] = set()
    try:
        for key in scanner.object():
            found.add(key)
            if key in ("PeerConnections", "peerConnections") and not _EMPTY.match(scanner.text, scanner.position):
                break
    except Damaged:
        pass
    return found


def _hints_at_statistics(values: list[Any]) -> bool:
    """True for what is empty, but of a form that is known here."""
    return any(
        is_statistics(value)
        or (isinstance(value, dict) and isinstance(value.get("stats"), list))
        or (isinstance(value, list) and any(is_statistics(each) for each in value))
        for value in values
    )
