"""A result as the text that a person reads in a terminal: a table of turns, one of policies, and what they come to."""

from __future__ import annotations

import io
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from analysis.result import Result
from probe.cli.output import CELL_CHARS, printable, say, shortened

__all__ = ["print_table", "print_text"]

NOTES_CHARS = 3 * CELL_CHARS  # folded into lines of one cell's width
WIDE = 100_000  # columns: a terminal wraps a line that is too long, and loses nothing of it


def print_table(columns: Sequence[str], rows: Sequence[Sequence[str]], *, texts: Sequence[str] = ()) -> None:
    """Print a table that is as wide as its figures need, however narrow the terminal.

    Parameters
    ----------
    columns : sequence of str
        Headers; `notes` is folded, and left out where no row has any.
    rows : sequence of sequence of str
        One cell for each column.
    texts : sequence of str
        The columns that hold words: on the left of their cells, where figures are on the right.
    """
    table = Table(box=None, header_style="bold", pad_edge=False)
    for k, column in enumerate(columns):
        if column != "notes":
            table.add_column(shortened(column), justify="left" if column in texts else "right", no_wrap=True)
        elif any(row[k] for row in rows):
            table.add_column(column, max_width=CELL_CHARS, overflow="fold")
    for row in rows:
        table.add_row(*map(printable, row[: len(table.columns)]))
    # rendered apart from stdout, whose width and failures are none of the table's business
    console = Console(
        file=(text := io.StringIO()),
        force_terminal=sys.stdout is not None and sys.stdout.isatty(),
        width=WIDE,
        height=25,
        highlight=False,
        markup=False,
        emoji=False,
    )
    console.print(table)
    for line in text.getvalue().splitlines():
        print(line.rstrip())


def print_text(result: Result) -> None:
    """Print a result for a person."""
    several = len({turn.call for turn in result.turns}) > 1
    if result.source.kind == "recording":
        _print_recorded(result, several=several)
        say("", *_summary_lines(result))
        return
    columns = ["turn", "lang", "outcome", "latency", "±", "received", "remote", "silence", "buffer", "notes"]
    rows = []
    for turn in result.turns:
        stages = turn.stages_ms
        numbers = [turn.latency_ms, turn.uncertainty_ms, turn.received_ms]
        numbers += [stages.get(k) for k in ("remote_response", "leading_silence", "jitter_buffer")]
        notes = ", ".join(shortened(each) for each in (*filter(None, [turn.reason]), *turn.flags))
        named = [*([str(turn.call)] if several else []), str(turn.index), shortened(turn.language or ""), turn.outcome]
        rows.append([*named, *(_ms(n) for n in numbers), shortened(notes, NOTES_CHARS)])
    texts = ("call", "turn", "lang", "outcome")
    print_table([*(["call"] if several else []), *columns], rows, texts=texts)
    say("in ms; remote = remote_response, silence = leading_silence, buffer = jitter_buffer")
    _print_variants(result, several=several)
    say("", *_summary_lines(result))


def _print_recorded(result: Result, *, several: bool) -> None:
    """The turns of recordings: when on the tape, what, and how long it took."""
    rows = []
    for turn in result.turns:
        said = shortened(turn.segment.get("utterance", ""))
        notes = ", ".join(shortened(each) for each in (*filter(None, [turn.reason]), *turn.flags))
        rows.append(
            [
                *([str(turn.call)] if several else []),
                str(turn.index),
                *(_number(s, 3) for s in (turn.speech_s, turn.speech_stop_s, turn.audible_s)),
                turn.outcome,
                *(_number(ms) for ms in (turn.latency_ms, turn.uncertainty_ms, turn.yield_time_ms)),
                said,
                shortened(notes, NOTES_CHARS),
            ]
        )
    columns = ["turn", "from s", "to s", "reply s", "outcome", "latency", "±", "yield", "said", "notes"]
    texts = ("call", "turn", "outcome", "said")
    print_table([*(["call"] if several else []), *columns], rows, texts=texts)
    say("latency, its uncertainty and yield (until what was spoken over fell silent) in ms")


def _print_variants(result: Result, *, several: bool) -> None:
    """The same packets under each policy, side by side."""
    others = list(dict.fromkeys(name for turn in result.turns for name in turn.variants_ms))
    if not others:
        return
    headline = str(result.boundaries.policy)
    say("", f"user latency (ms) under other playout policies; headline: {shortened(headline)}")
    rows = [
        [
            *([str(turn.call)] if several else []),
            str(turn.index),
            *(_ms(v) for v in (turn.latency_ms, *(turn.variants_ms.get(name) for name in others))),
        ]
        for turn in result.turns
    ]
    print_table([*(["call"] if several else []), "turn", headline, *others], rows, texts=("call", "turn"))


def _number(value: float | None, digits: int = 1) -> str:
    return "–" if value is None else f"{value:.{digits}f}"


def _ms(value: float | None) -> str:
    return "–" if value is None else f"{value:.0f}"


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
    scheduled = summary["scheduled"]
    lines.append(f"{scheduled} {'turn' if scheduled == 1 else 'turns'} scheduled: {outcomes}")
    b = result.boundaries
    policy = "" if b.policy is None else f": {b.policy}"
    output = "" if b.output is None else f", output delay {b.output.ms:g} ms {b.output.evidence}"
    lines.append(f"from {b.start.name} ({b.start.evidence}) to {b.end.name} ({b.end.evidence}{policy}{output})")
    return lines
