"""What several commands share: options, reading bundles, writing results, and the text that a person reads."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from analysis.bundle import CallRecord, find_calls, read_call
from analysis.derive import ASSUMED_OUTPUT, Derived, Output, derive
from analysis.errors import UsageError
from analysis.playout import parse_policy
from analysis.result import Result, exit_code, result_json_text
from probe.recorder import write_private

__all__ = [
    "JsonOption",
    "OutputDelayOption",
    "PolicyOption",
    "conditions",
    "output_delay",
    "policy_list",
    "print_result",
    "read_and_derive",
    "warn",
    "write_derived",
]

MAX_OUTPUT_DELAY_MS = 2000.0

JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout and nothing else there.")]
PolicyOption = Annotated[
    str,
    typer.Option(
        "--policy", metavar="P[,P…]", help="Playout policies: chrome, fixed:MS, none; the first is the headline."
    ),
]
OutputDelayOption = Annotated[
    float | None,
    typer.Option(
        "--output-delay",
        metavar="MS",
        help="Delay from the jitter buffer to the ear, where it is known; assumed otherwise.",
    ),
]


def warn(text: str) -> None:
    """One line on stderr."""
    print(f"latency-probe: {text}", file=sys.stderr)


def policy_list(text: str) -> tuple[str, ...]:
    """`P[,P…]` as policies. Raises UsageError for one that is not."""
    policies = tuple(dict.fromkeys(p.strip() for p in text.split(",") if p.strip()))
    if not policies:
        raise UsageError("--policy is empty", next_step="give chrome, fixed:MS or none")
    for policy in policies:
        parse_policy(policy)
    return policies


def output_delay(ms: float | None) -> Output:
    """The output delay that was given, or the assumed one."""
    if ms is None:
        return ASSUMED_OUTPUT
    if not math.isfinite(ms) or not 0 <= ms <= MAX_OUTPUT_DELAY_MS:
        raise UsageError(f"--output-delay {ms:g}", next_step=f"give milliseconds from 0 to {MAX_OUTPUT_DELAY_MS:g}")
    return Output(ms, 0.0, "given")


def read_and_derive(paths: Sequence[Path], policies: Sequence[str], output: Output) -> tuple[Derived, list[CallRecord]]:
    """Read bundles and work them out as one run."""
    records = [read_call(call) for path in paths for call in find_calls(path)]
    derived = derive(records, policies=policies, output=output, path=", ".join(str(p) for p in paths))
    for warning in derived.warnings:
        warn(f"warning: {warning}")
    return derived, records


def conditions(records: Sequence[CallRecord]) -> dict[str, str]:
    """What a run was made under, as a report shows it."""
    manifest = records[0].manifest
    scenario: Mapping[str, Any] = manifest.get("scenario", {})
    host, versions = manifest.get("host", {}), manifest.get("versions", {})
    target = manifest.get("target", {})
    shown = {
        "command": manifest.get("command", ""),
        "made": manifest.get("created", ""),
        "target": target.get("url", ""),
        "calls": str(len(records)),
        "codec": f"{scenario.get('codec', '?')}, {scenario.get('ptime_ms', '?')} ms packets",
        "background between utterances": scenario.get("background", ""),
        "spacing, timeout": f"{scenario.get('spacing', '?')} s, {scenario.get('timeout', '?')} s",
        "machine": f"{host.get('system', '')}, Python {host.get('python', '')}",
        "versions": ", ".join(f"{name} {number}" for name, number in versions.items()),
    }
    agent = target.get("agent")
    if isinstance(agent, Mapping):
        shown["demo agent"] = ", ".join(f"{k}={v}" for k, v in _flat(agent) if v not in (None, [], {}))
    return {key: str(value) for key, value in shown.items() if value}


def _flat(mapping: Mapping[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = []
    for key, value in mapping.items():
        found += _flat(value, f"{prefix}{key}.") if isinstance(value, Mapping) else [(f"{prefix}{key}", value)]
    return found


def write_derived(folder: Path, derived: Derived, records: Sequence[CallRecord]) -> None:
    """Write `result.json` and `report.html`; where the disk does not take them, say so and go on."""
    from analysis.report import render_report  # matplotlib takes a second to load

    files: list[tuple[str, Callable[[], str]]] = [
        ("result.json", lambda: result_json_text(derived.result)),
        ("report.html", lambda: render_report(derived.result, derived.series, conditions(records))),
    ]
    for name, make in files:
        try:
            write_private(folder / name, make().encode())
        except OSError as exc:
            warn(f"{folder / name}: cannot be written ({exc.strerror}); make it again with `latency-probe report`")


def print_result(result: Result, *, as_json: bool) -> int:
    """Print a result for a person or a machine; the exit code it stands for."""
    if as_json:
        print(result_json_text(result))
    else:
        _print_text(result)
    return exit_code(result)


def _number(value: float | None, digits: int = 1) -> str:
    return "–" if value is None else f"{value:.{digits}f}"


def _ms(value: float | None) -> str:
    return "–" if value is None else f"{value:.0f}"


def _print_table(console: Console, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table whose numbers are never cut off, however narrow the terminal: only notes are folded."""
    table = Table(box=None, header_style="bold", pad_edge=False)
    for k, column in enumerate(columns):
        widest = max([len(column), *(len(row[k]) for row in rows)])
        if column != "notes":
            left = column in ("call", "turn", "lang", "outcome")
            table.add_column(column, justify="left" if left else "right", width=widest, no_wrap=True)
        elif any(row[k] for row in rows):
            table.add_column(column, overflow="fold", min_width=8)
    for row in rows:
        table.add_row(*row[: len(table.columns)])
    console.print(table, crop=False)


def _print_text(result: Result) -> None:
    console = Console(highlight=False, markup=False, emoji=False)
    if not console.is_terminal:
        console.width = 160
    several = len({turn.call for turn in result.turns}) > 1
    columns = ["turn", "lang", "outcome", "latency", "±", "received", "remote", "silence", "buffer", "notes"]
    rows = []
    for turn in result.turns:
        stages = turn.stages_ms
        numbers = [turn.latency_ms, turn.uncertainty_ms, turn.received_ms]
        numbers += [stages.get(k) for k in ("remote_response", "leading_silence", "jitter_buffer")]
        notes = ", ".join([*([turn.reason] if turn.reason else []), *turn.flags])
        named = [*([str(turn.call)] if several else []), str(turn.index), turn.language or "", turn.outcome]
        rows.append([*named, *(_ms(n) for n in numbers), notes])
    _print_table(console, [*(["call"] if several else []), *columns], rows)
    console.print("in ms; remote = remote_response, silence = leading_silence, buffer = jitter_buffer")
    _print_variants(console, result, several=several)
    console.print()
    for line in _summary_lines(result):
        console.print(line, soft_wrap=True)


def _print_variants(console: Console, result: Result, *, several: bool) -> None:
    """The same packets under each policy, side by side."""
    others = list(dict.fromkeys(name for turn in result.turns for name in turn.variants_ms))
    if not others:
        return
    console.print(f"\nuser latency (ms) under other playout policies; headline: {result.boundaries.policy}")
    rows = [
        [
            *([str(turn.call)] if several else []),
            str(turn.index),
            *(_ms(v) for v in (turn.latency_ms, *(turn.variants_ms.get(name) for name in others))),
        ]
        for turn in result.turns
    ]
    _print_table(console, [*(["call"] if several else []), "turn", str(result.boundaries.policy), *others], rows)


def _interval(percentile: Mapping[str, Any]) -> str:
    low, high = percentile["low"], percentile["high"]
    if low is None and high is None:
        return "too few turns for a 95 % interval"
    if low is None or high is None:
        bound = f"at least {_number(low)}" if high is None else f"at most {_number(high)}"
        return f"95 % interval: {bound}, too few turns to bound the other end"
    return f"95 % interval {_number(low)} to {_number(high)}"


def _summary_lines(result: Result) -> list[str]:
    summary = result.summary
    lines = []
    for name in ("p50", "p95"):
        p = summary["percentiles_ms"].get(name)
        if not p or not p["n"]:
            continue
        value = "no reply" if p.get("no_reply") else f"{_number(p['value'])} ms"
        thin = ", thin" if p["thin"] else ""
        lines.append(f"user latency {name.upper()} {value} ({_interval(p)}; n = {p['n']}{thin})")
    outcomes = ", ".join(f"{count} {name}" for name, count in summary["outcomes"].items() if count)
    lines.append(f"{summary['scheduled']} turns scheduled: {outcomes}")
    b = result.boundaries
    output = "" if b.output is None else f", output delay {b.output.ms:g} ms {b.output.evidence}"
    lines.append(f"from {b.start.name} ({b.start.evidence}) to {b.end.name} ({b.end.evidence}: {b.policy}{output})")
    return lines
