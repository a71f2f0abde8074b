"""`import`: a dump of WebRTC statistics that somebody already has into a bundle that `report` draws."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from analysis.bundle import SCHEMA
from analysis.counting import counted
from analysis.dumps import Dump, PeerConnection, read_dump
from analysis.errors import EXIT_OK, NotMeasurable, SessionError, UsageError
from analysis.units import ns_to_s
from probe.cli.common import FAILED_DISK, JsonOption, check_folder
from probe.cli.output import say, shortened, warn, write_document
from probe.recorder import create_folder, write_private

__all__ = ["import_"]

IMPORT_SCHEMA = "latency-probe/import/1"


def import_(
    dump_file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE", help="Dump of webrtc-internals or rtcstats, or getStats() as JSON; also gzipped."
        ),
    ],
    out: Annotated[Path, typer.Option("-o", "--out", metavar="DIR", help="Folder for the bundle; made, or empty.")],
    as_json: JsonOption = False,
) -> int:
    """Make a bundle of a dump of WebRTC statistics, one for each peer connection that has any.

    Example: latency-probe import webrtc_internals_dump.gz -o call
    """
    check_folder("-o", out, [dump_file])
    dump = read_dump(dump_file)
    found = [connection for connection in dump.peer_connections if connection.snapshots]
    without = [connection.name for connection in dump.peer_connections if not connection.snapshots]
    warnings = list(dump.warnings)
    for name in without:
        warnings.append(f"peer connection {name}: no statistics; it was left out")
    for warning in [*warnings, *(f"{c.name}: {w}" for c in dump.peer_connections for w in c.warnings)]:
        warn(f"warning: {warning}")
    if not found:
        raise NotMeasurable(
            "no_statistics",
            f"{dump_file}: the dump holds no statistics",
            next_step="make it while the call is up, some seconds after the page that records it was opened",
        )
    folders = [out] if len(found) == 1 else [out / f"call-{number:03d}" for number in range(len(found))]
    _write(
        out, {folder: _files(dump, c, dump_file, i) for i, (folder, c) in enumerate(zip(folders, found, strict=True))}
    )
    calls = [_call(folder, connection) for folder, connection in zip(folders, found, strict=True)]
    if as_json:
        document = {"schema": IMPORT_SCHEMA, "format": dump.format, "calls": calls, "warnings": warnings}
        write_document(json.dumps(document, indent=1, allow_nan=False))
    else:
        for call in calls:
            types = ", ".join(f"{count} {type_}" for type_, count in call["types"].items())
            say(
                f"{call['path']}: {counted(call['snapshots'], 'snapshot')} "
                f"over {call['duration_s']:.1f} s "
                f"of peer connection {shortened(call['peer_connection'])} ({dump.format})",
                f"  {types}",
            )
    return EXIT_OK


def _files(dump: Dump, connection: PeerConnection, source: Path, number: int) -> dict[str, bytes]:
    """The files of one bundle; the manifest, without which it is none, comes last."""
    wall_ns = connection.snapshots[0].time_ns
    lines = [
        json.dumps({"t_ns": s.time_ns - wall_ns, "stats": s.stats}, separators=(",", ":"), allow_nan=False)
        for s in connection.snapshots
    ]
    manifest: Mapping[str, Any] = {
        "schema": SCHEMA,
        "call": number,
        "source": {
            "kind": "import",
            "format": dump.format,
            "file": source.name,
            "user_agent": dump.user_agent,
            "peer_connection": connection.name,
        },
        "clock": {"monotonic_ns": 0, "wall_ns": wall_ns},
        "turns": [],
        "warnings": [*dump.warnings, *connection.warnings],
    }
    return {
        "stats.jsonl": ("\n".join(lines) + "\n").encode(),
        "manifest.json": json.dumps(manifest, indent=1, allow_nan=False).encode(),
    }


def _write(out: Path, bundles: Mapping[Path, Mapping[str, bytes]]) -> None:
    """Write all bundles, or leave none behind."""
    create_folder(out)
    made: list[Path] = []
    try:
        for folder in bundles:
            if folder != out:
                folder.mkdir(mode=0o700)
                made.append(folder)
        # all manifests come last: what is interrupted before is no bundle
        for name in ("stats.jsonl", "manifest.json"):
            for folder, files in bundles.items():
                made.append(folder / name)
                write_private(folder / name, files[name])
    except BaseException as exc:
        for path in reversed(made):
            if path.is_dir():
                path.rmdir()
            else:
                path.unlink(missing_ok=True)
        if not isinstance(exc, OSError):
            raise
        line = f"{out}: cannot be written ({exc.strerror})"
        if exc.errno in FAILED_DISK:
            raise SessionError(line, fault="probe", next_step="free some space, or name another folder") from exc
        raise UsageError(line, next_step="name another folder with -o") from exc


def _call(folder: Path, connection: PeerConnection) -> dict[str, Any]:
    first, last = connection.snapshots[0], connection.snapshots[-1]
    return {
        "path": str(folder),
        "peer_connection": connection.name,
        "snapshots": len(connection.snapshots),
        "duration_s": ns_to_s(last.time_ns - first.time_ns),
        "types": dict(Counter(o["type"] for s in connection.snapshots for o in s.stats).most_common()),
        "warnings": list(connection.warnings),
    }
