"""`report`: sessions and result files, or imported statistics, into one HTML page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import typer

from analysis.bundle import STATS_FILE, find_calls, imported_manifest
from analysis.errors import EXIT_OK, BundleError, NotMeasurable, UsageError
from analysis.result import Result, Source, Turn, exit_code, result_from_text
from analysis.series import CallSeries
from analysis.statistics import summarize
from analysis.stats_series import read_stats, stats_series
from probe.cli.common import (
    OutputDelayOption,
    check_outputs,
    conditions,
    output_delay,
    policy_list,
    read_and_derive,
    write_page,
)
from probe.cli.output import say, warn

__all__ = ["report"]

WITH_PACKETS = ("session", "watch")  # kinds of result whose packets were recorded somewhere


@dataclass(frozen=True)
class _Part:
    """What one path, or all sessions together, give to the page."""

    name: str
    result: Result
    series: tuple[CallSeries, ...]
    conditions: dict[str, str]
    without_packets: bool = False


def report(
    paths: Annotated[list[Path], typer.Argument(metavar="PATH...", help="Session folders and result files.")],
    out: Annotated[Path, typer.Option("-o", "--out", help="The page to write.")] = Path("report.html"),
    policy: Annotated[
        str | None,
        typer.Option(
            "--policy",
            metavar="P[,P…]",
            help="Playout policies of sessions: chrome, fixed:MS, none; the first is the headline.",
            show_default="those of the session",
        ),
    ] = None,
    output_delay_ms: OutputDelayOption = None,
) -> int:
    """Write the report of sessions; of a result file, without the figures that need its packets; of imported
    statistics, what a browser reported of itself.

    Example: latency-probe report demo -o report.html
    """
    from analysis.report import render_report  # jinja2 is needed by nothing else

    check_outputs({"-o": out}, paths)
    imported = _imported(paths)
    if imported:
        if policy is not None or output_delay_ms is not None:
            raise UsageError("imported statistics have no playout policy and no output delay to choose")
        return _report_imported(imported, out, ", ".join(map(str, paths)))
    policies, output = None if policy is None else policy_list(policy), output_delay(output_delay_ms)
    sessions, files = _sorted_out(paths)
    if files and (policy is not None or output_delay_ms is not None):
        raise UsageError(
            f"{files[0]}: a result file stays under the policy and the output delay that it was made with",
            next_step="give its session's folder with --policy or --output-delay",
        )
    parts = []
    if sessions:
        derived, records = read_and_derive(sessions, policies, output)
        names = ", ".join(map(str, sessions))
        parts.append(_Part(names, derived.result, derived.series, conditions(records)))
    parts += [_of_file(path) for path in files]
    whole = _together(parts)
    absent = [part.name for part in parts if part.without_packets]
    page = render_report(whole.result, whole.series, whole.conditions, without_packets=absent)
    write_page(out, page.encode(errors="replace"))
    say(out)
    return exit_code(whole.result)


def _imported(paths: Sequence[Path]) -> list[Path]:
    """The folders of imported statistics among the paths; all or none are.

    Raises
    ------
    UsageError
        If recorded calls or result files are given beside them.
    """
    found: list[Path] = []
    others: list[Path] = []
    for path in paths:
        try:
            calls = find_calls(path) if path.is_dir() else []
        except BundleError:
            calls = []
        for call in calls or [path]:
            try:
                (others if not calls or imported_manifest(call) is None else found).append(call)
            except BundleError:
                others.append(call)  # it is said what is wrong with it where it is read
    if found and others:
        raise UsageError(
            f"{found[0]}: imported statistics do not go into one report with {others[0]}",
            next_step="write a report of each",
        )
    return list(dict.fromkeys(found))


def _report_imported(folders: Sequence[Path], out: Path, name: str) -> int:
    from analysis.statistics_page import Connection, render_statistics  # jinja2 is needed by nothing else

    connections = []
    for number, folder in enumerate(folders):
        manifest = imported_manifest(folder) or {}
        source, texts = manifest.get("source", {}), manifest.get("warnings")
        warnings = [str(text) for text in texts] if isinstance(texts, list) else []
        series = stats_series(read_stats(folder / STATS_FILE, warnings), warnings=warnings)
        for warning in series.warnings:
            warn(f"warning: {folder}: {warning}")
        title = "The peer connection" if len(folders) == 1 else f"Peer connection {number}"
        shown = {key: str(source[key]) for key in ("format", "file", "peer_connection", "user_agent") if key in source}
        shown["snapshots"] = f"{series.snapshots:,} in {series.span_s[1] - series.span_s[0]:,.1f} s"
        connections.append(Connection(title, {k.replace("_", " "): v for k, v in shown.items()}, series))
    if not any(each.series.plottable for each in connections):
        raise NotMeasurable(
            "no_statistics",
            f"{folders[0]}: nothing in {STATS_FILE} that could be plotted",
            next_step="it needs two snapshots of received audio, of a round trip or of the output at least",
        )
    page = render_statistics(name, connections)
    write_page(out, page.encode(errors="replace"))
    say(out)
    return EXIT_OK


def _sorted_out(paths: Sequence[Path]) -> tuple[list[Path], list[Path]]:
    """Session folders and result files, each once; a folder that holds no session may hold a result."""
    sessions: list[Path] = []
    files: dict[Path, Path] = {}
    for path in paths:
        file = path
        if path.is_dir() or not path.exists():
            try:
                find_calls(path)
            except BundleError:
                file = path / "result.json"
                if not file.is_file():
                    raise
            else:
                sessions.append(path)
                continue
        if file.resolve() in files:
            warn(f"warning: {file}: given twice; it is counted once")
        files.setdefault(file.resolve(), file)
    for file in files.values():
        if any(file.resolve().is_relative_to(session.resolve()) for session in sessions):
            raise UsageError(f"{file}: belongs to a session that is given too", next_step="give one of the two")
    return sessions, list(files.values())


def _of_file(path: Path) -> _Part:
    try:
        data = path.read_bytes()
    except OSError as exc:
        raise UsageError(f"{path}: cannot be read ({exc.strerror})", next_step="give a result.json") from exc
    result = result_from_text(data, name=str(path))
    shown = {"result file": str(path), "target": result.source.target or "", "calls": str(result.source.calls)}
    return _Part(str(path), result, (), shown, without_packets=result.source.kind in WITH_PACKETS)


def _together(parts: Sequence[_Part]) -> _Part:
    """All parts as one, their calls numbered on where numbers would meet.

    Raises
    ------
    UsageError
        If they do not measure the same interval on the same evidence.
    """
    first, *others = parts
    if not others:
        return first
    for other in others:
        if (other.result.source.kind, other.result.boundaries) != (first.result.source.kind, first.result.boundaries):
            raise UsageError(
                f"{other.name}: was measured from or to another boundary, or under another policy, than {first.name}",
                next_step="write a report of each",
            )
    turns: list[Turn] = []
    series: list[CallSeries] = []
    shift = 0
    for part in parts:
        turns += [replace(turn, call=turn.call + shift) for turn in part.result.turns]
        series += [replace(each, call=each.call + shift) for each in part.series]
        shift = max((turn.call + 1 for turn in turns), default=0)
    targets = dict.fromkeys(target for part in parts if (target := part.result.source.target))
    names = ", ".join(part.name for part in parts)
    source = Source(
        first.result.source.kind, names, ", ".join(targets) or None, sum(part.result.source.calls for part in parts)
    )
    result = Result(source, first.result.boundaries, tuple(turns), summarize(turns))
    files = [part.conditions["result file"] for part in parts if "result file" in part.conditions]
    shown = first.conditions | {"target": source.target or "", "calls": str(source.calls)}
    shown |= {"result file": ", ".join(files)}
    return _Part(names, result, tuple(series), {key: value for key, value in shown.items() if value})
