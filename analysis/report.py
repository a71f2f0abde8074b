"""A result, the packet series of its calls and the conditions of the run in, one self-contained HTML page out.

The page loads nothing: styles and drawings are inside it, there is no script, and every label is text whatever it
holds. Its figures come from the turns themselves, not from a summary that somebody else wrote.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from analysis.counting import counted
from analysis.drawing import plain
from analysis.figures import draw_all
from analysis.page import template
from analysis.report_words import (
    LABEL_CHARS,
    MISSING,
    apart,
    cautions,
    counts,
    evidence,
    interval,
    methods,
    ms_text,
    percent_text,
    sentences,
    value_text,
    words,
)
from analysis.result import (
    ANSWERED,
    OUTCOMES,
    STAGES,
    Result,
    Turn,
)
from analysis.series import CallSeries
from analysis.statistics import PERCENTILES, headline_turns, nearest_rank, summarize

__all__ = ["render_report"]

MAX_TABLE_TURNS = 2000  # the rest stand in result.json
TALL_TABLE_TURNS = 40  # a longer table scrolls inside itself
NARROW_COLUMNS = 12  # of a table of turns that needs no more than the width of the text
WIDE_COLUMNS = 18  # of one that a sheet of paper holds without breaking numbers
MAX_COLUMNS = 12  # of names that an agent or a file chose
LABEL_CELL_CHARS = 24
LONGEST_WORD, LONGEST_WORD_SPLIT = "packetization", "packet\u00adization"  # of the heads of the table of turns
CONDITION_CHARS = 2000
COMMAND_CHARS = 2000
PERCENTILE_NAMES = {"p50": "P50", "p90": "P90", "p95": "P95", "p99": "P99", "p99_9": "P99.9"}


Cell = Callable[[Turn], str]


def render_report(
    result: Result,
    series: Sequence[CallSeries],
    conditions: Mapping[str, str],
    *,
    without_packets: Sequence[str] = (),
) -> str:
    """The report as HTML text.

    Parameters
    ----------
    result : Result
        What was measured; its summary is made again from its turns (only `by` is taken over).
    series : sequence of CallSeries
        Packets and playout of each call; may be empty (a recording has none).
    conditions : mapping
        What the run was made under, shown as a table in this order; `command` is shown as the way to repeat it.
    without_packets : sequence of str
        Names of the sources whose packets are not at hand, so that nothing of theirs is in `series`; it is said.

    Returns
    -------
    str
        One page without a single outside reference. The same input gives the same text.
    """
    summary = summarize(result.turns)
    by = result.summary.get("by")
    pooled = [turn for turn in headline_turns(result.turns) if turn.outcome == ANSWERED]
    return template("report.html.j2").render(
        source=_source(result),
        cards=[_card(name, summary["percentiles_ms"][name]) for name in ("p50", "p95")],
        sentences=sentences(result, summary),
        bar=_outcome_bar(summary),
        counts=counts(summary),
        evidence=evidence(result),
        systematic=summary["uncertainty_ms"],
        outcomes=_outcomes(summary),
        percentiles=[_percentile(name, summary["percentiles_ms"][name]) for name in PERCENTILES],
        apart=apart(summary),
        segments=_segments(by),
        stages=_stage_rows(summary),
        variants=_variants(pooled),
        reported=_reported(pooled),
        drawings=draw_all(replace(result, summary=summary), series),
        without_packets=plain(", ".join(without_packets), CONDITION_CHARS),
        turns=_turn_table(result.turns),
        truth=_truth(result.turns),
        parts=_parts(pooled),
        shifts=_shifts(pooled),
        slip=summary["start_slip_ms"],
        methods=methods(result),
        cautions=cautions(result, summary),
        conditions=[
            (plain(key, LABEL_CHARS), plain(value, CONDITION_CHARS))
            for key, value in conditions.items()
            if key != "command"
        ],
        command=plain(conditions.get("command", ""), COMMAND_CHARS),
        ms=ms_text,
        whole=lambda n: ms_text(n, 0),
    )


def _median(values: Iterable[float]) -> float | None:
    found = np.sort(np.array(list(values), dtype=np.float64))
    return nearest_rank(found, 500) if len(found) else None


def _names(maps: Iterable[Mapping[str, Any] | None]) -> list[str]:
    """The keys of all, in the order of their first appearance, a bounded number of them."""
    return list(dict.fromkeys(key for each in maps if each for key in each))[:MAX_COLUMNS]


def _source(result: Result) -> dict[str, str]:
    source, ends = result.source, result.boundaries
    calls = "1 call" if source.calls == 1 else f"{source.calls:,} calls"
    return {
        "target": plain(source.target or source.path or "unnamed", 120),
        "kind": source.kind,
        "calls": calls,
        "start": plain(ends.start.name),
        "end": plain(ends.end.name),
        "turns": counted(len(result.turns), "turn"),
    }


def _card(name: str, entry: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "name": PERCENTILE_NAMES[name],
        "value": value_text(entry),
        "n": entry["n"],
        "interval": interval(entry),
        "thin": entry["thin"],
    }


def _outcome_bar(summary: Mapping[str, Any]) -> list[dict[str, Any]]:
    total = summary["scheduled"]
    return [
        {"name": name, "label": words(name), "count": count, "percent": f"{100 * count / total:.3f}"}
        for name, count in summary["outcomes"].items()
    ]


def _outcomes(summary: Mapping[str, Any]) -> list[dict[str, Any]]:
    rows = []
    for name in OUTCOMES:
        rate = summary["rates"].get(name)
        count = summary["outcomes"].get(name, 0)
        if not count and rate is None and name != ANSWERED:
            continue
        interval = MISSING
        if rate is not None and rate["value"] is not None:
            interval = f"{percent_text(rate['low'])} to {percent_text(rate['high'])}"
        rows.append(
            {
                "name": name,
                "label": words(name),
                "count": count,
                "rate": MISSING if rate is None else percent_text(rate["value"]),
                "interval": interval,
                "n": None if rate is None else rate["n"],
            }
        )
    return rows


def _percentile(name: str, entry: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "name": PERCENTILE_NAMES[name],
        "value": value_text(entry, 1),
        "low": ms_text(entry["low"]),
        "high": ms_text(entry["high"]),
        "n": entry["n"],
        "thin": entry["thin"],
        "method": entry["interval"],
        "best": ms_text(entry["best"]),
        "worst": ms_text(entry["worst"]),
    }


def _segments(by: object) -> list[dict[str, Any]]:
    rows = []
    for each in by if isinstance(by, list) else []:
        try:
            labels = ", ".join(f"{plain(k, 30)} = {plain(v, 40)}" for k, v in each["labels"].items())
            found = {name: each["summary"]["percentiles_ms"][name] for name in ("p50", "p95")}
            row = {name: value_text(entry, 1) + (" (thin)" if entry["thin"] else "") for name, entry in found.items()}
            rows.append({"labels": labels, "n": found["p50"]["n"], **row})
        except (KeyError, TypeError, AttributeError):
            continue  # a summary of another shape says nothing that could be shown
    return rows[:MAX_TABLE_TURNS]


def _stage_rows(summary: Mapping[str, Any]) -> list[dict[str, Any]]:
    whole = summary["percentiles_ms"]["p50"]["value"]
    rows = []
    for name, spread in summary["stages_ms"].items():
        share = None if not whole or spread["p50"] is None else 100 * spread["p50"] / whole
        rows.append({"name": name, "share": 0 if share is None else min(max(share, 0), 100), **spread})
    return rows


def _variants(turns: Sequence[Turn]) -> list[dict[str, Any]]:
    rows = []
    for name in _names(turn.variants_ms for turn in turns):
        values = np.sort([v for turn in turns if (v := turn.variants_ms.get(name)) is not None])
        if len(values):
            row = {key: nearest_rank(values, PERCENTILES[key]) for key in ("p50", "p95")}
            rows.append({"name": plain(name, LABEL_CHARS), "n": len(values), **row})
    return rows


def _reported(turns: Sequence[Turn]) -> list[dict[str, Any]]:
    """What the agent says of itself beside what the caller waited, over the turns that have both."""
    rows = []
    for name in _names(turn.reported_ms for turn in turns):
        pairs = [
            (said, turn.latency_ms)
            for turn in turns
            if (said := turn.reported_ms.get(name)) is not None and turn.latency_ms is not None
        ]
        row = {
            "said": _median(said for said, _ in pairs),
            "waited": _median(waited for _, waited in pairs),
            "gap": _median(waited - said for said, waited in pairs),
        }
        rows.append({"name": plain(name, LABEL_CHARS), "n": len(pairs), **row})
    return rows


def _turn_table(turns: Sequence[Turn]) -> dict[str, Any]:
    rows = sorted(turns, key=lambda turn: (turn.call, turn.index))[:MAX_TABLE_TURNS]
    numbers = _turn_numbers(rows)
    labels, shared = _turn_labels(rows)
    several = len({turn.call for turn in rows}) > 1
    return {
        "id": "call·turn" if several else "turn",
        "labels": [name for name, _ in labels],
        "head": [name for name, _ in numbers],
        "rows": [
            {
                "id": f"{turn.call}·{turn.index}" if several else turn.index,
                "labels": [plain(read(turn), LABEL_CELL_CHARS) for _, read in labels],
                "outcome": turn.outcome,
                "outcome_words": words(turn.outcome),
                "why": ", ".join(
                    filter(None, (plain(turn.reason or "", LABEL_CHARS), turn.fault and f"fault: {turn.fault}"))
                ),
                "cells": [read(turn) for _, read in numbers],
                "flags": [plain(words(flag), 32) for flag in dict.fromkeys(turn.flags[:MAX_COLUMNS])],
            }
            for turn in rows
        ],
        "shared": [*([] if several or not rows else [f"call {rows[0].call}"]), *shared],
        "left_out": len(turns) - len(rows),
        "wide": len(numbers) + len(labels) > NARROW_COLUMNS,
        "vast": len(numbers) + len(labels) > WIDE_COLUMNS,
        "tall": len(rows) > TALL_TABLE_TURNS,
    }


def _of_turn(key: str) -> Cell:
    return lambda turn: ms_text(getattr(turn, key))


def _of_map(key: str, name: str, decimals: int = 1) -> Cell:
    return lambda turn: ms_text(getattr(turn, key).get(name), decimals)


def _language(turn: Turn) -> str:
    return turn.language or MISSING


def _of_segment(name: str) -> Cell:
    return lambda turn: turn.segment.get(name, MISSING)


def _turn_labels(rows: Sequence[Turn]) -> tuple[list[tuple[str, Cell]], list[str]]:
    """The columns of labels (head, cell), and in words those that need none, for all turns have the same."""
    found = [("language", _language), *((name, _of_segment(name)) for name in _names(turn.segment for turn in rows))]
    columns, shared = [], []
    for name, read in found:
        values = {read(turn) for turn in rows}
        if len(values) > 1:
            columns.append((plain(name, LABEL_CELL_CHARS), read))
        elif values != {MISSING}:
            shared += [f"{plain(name, LABEL_CELL_CHARS)} {plain(value, LABEL_CELL_CHARS)}" for value in values]
    return columns, shared


def _turn_numbers(rows: Sequence[Turn]) -> list[tuple[str, Cell]]:
    """The columns of numbers (head, cell)."""
    seen = _names(turn.stages_ms for turn in rows)
    stages = [name for name in STAGES if name in seen] + [name for name in seen if name not in STAGES]
    extra = [
        (head, _of_turn(key))
        for key, head in (("yield_time_ms", "yield time"), ("turn_ms", "turn"), ("response_ms", "response"))
        if any(getattr(turn, key) is not None for turn in rows)
    ]
    network = _names(turn.network for turn in rows)
    return [
        ("latency, ms", _of_turn("latency_ms")),
        ("± ms", _of_turn("uncertainty_ms")),
        ("received, ms", _of_turn("received_ms")),
        *((words(name).replace(LONGEST_WORD, LONGEST_WORD_SPLIT), _of_map("stages_ms", name)) for name in stages),
        *extra,
        *((words(name), _of_map("network", name, 0 if name == "lost" else 1)) for name in network),
    ]


def _error_row(name: str, errors: Sequence[float]) -> dict[str, Any]:
    return {
        "name": name,
        "n": len(errors),
        "median": _median(errors),
        "low": min(errors),
        "high": max(errors),
        "most": max(map(abs, errors)),
    }


def _truth(turns: Sequence[Turn]) -> list[dict[str, Any]]:
    """Error against the demo agent's own log, measured minus true."""
    rows = []
    measured: tuple[tuple[str, Any], ...] = (
        ("received_ms", lambda turn: turn.received_ms),
        ("leading_silence_ms", lambda turn: turn.stages_ms.get("leading_silence")),
    )
    for name, read in measured:
        errors = [
            read(turn) - turn.truth[name]
            for turn in turns
            if turn.truth and isinstance(turn.truth.get(name), (int, float)) and read(turn) is not None
        ]
        if errors:
            rows.append(_error_row(name, errors))
    return rows


def _parts(turns: Sequence[Turn]) -> list[dict[str, Any]]:
    rows = []
    for name in _names(turn.uncertainty_parts_ms for turn in turns):
        values = [turn.uncertainty_parts_ms[name] for turn in turns if name in turn.uncertainty_parts_ms]
        rows.append({"name": words(name), "n": len(values), "p50": _median(values), "max": max(values)})
    return rows


def _shifts(turns: Sequence[Turn]) -> list[dict[str, Any]]:
    """How far each boundary moves with θ 10 dB lower and higher; positive is later."""
    rows = []
    for key, name in (("start_shift_ms", "speech_stop"), ("end_shift_ms", "first audible speech")):
        for step in ("-10", "+10"):
            moves = [
                move
                for turn in turns
                if isinstance(found := (turn.audibility or {}).get(key), Mapping)
                and isinstance(move := found.get(step), (int, float))
            ]
            if moves:
                rows.append(_error_row(f"{name}, θ {step.replace('-', chr(0x2212))} dB", moves))
    return rows
