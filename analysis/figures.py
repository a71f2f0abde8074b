"""A result and the packet series of its calls in, the report's figures out: SVG with a caption, no state kept."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from analysis.counting import counted
from analysis.drawing import (
    INK,
    PALETTE,
    Drawing,
    decimate,
    drawing,
    house_style,
    new_figure,
    plain,
    top_legend,
)
from analysis.network_figures import draw_network
from analysis.result import ANSWERED, FLAG_WARM_UP, PREMATURE, STAGES, Result, Turn
from analysis.series import CallSeries
from analysis.statistics import PERCENTILES, headline_turns, ranked_latencies_ms

__all__ = ["STAGE_COLOURS", "CallSeries", "draw_all"]

STAGE_COLOURS = dict(zip(STAGES, ("sky", "blue", "green", "orange", "purple"), strict=True))
MAX_ROWS = 30  # turns in one waterfall
MIN_ROWS = 4  # room for its labels
MAX_BARS = 200  # turns that get error bars
MAX_SPANS = 8  # of what an agent reported about one turn
MAX_POINTS = 2000  # of one curve


def draw_all(result: Result, series: Sequence[CallSeries]) -> list[Drawing]:
    """Every figure that the data carry, in the order of the report.

    Figures that would be empty are left out. The same input gives the same text.
    """
    with house_style():
        drawn = [
            _waterfall(result.turns),
            _ecdf(result),
            _session(result.turns),
            *draw_network(series, result.turns),
        ]
    return [each for each in drawn if each is not None]


def _ordered(turns: Iterable[Turn]) -> list[Turn]:
    return sorted(turns, key=lambda turn: (turn.call, turn.index))


def _waterfall(turns: Sequence[Turn]) -> Drawing | None:
    rows, caption = _ordered(turns), "In the order of the session."
    if len(rows) > MAX_ROWS:
        rows.sort(key=lambda turn: np.inf if turn.latency_ms is None else turn.latency_ms)
        rows = [rows[i] for i in np.linspace(0, len(rows) - 1, MAX_ROWS).round().astype(int)]
        caption = f"{MAX_ROWS} of them at evenly spaced ranks, the fastest first, those without a latency last."
    if not rows:
        return None
    height = max(len(rows), MIN_ROWS)
    figure = new_figure(1.3 + 0.27 * height)
    axes = figure.subplots()
    used: set[str] = set()
    for row, turn in enumerate(rows):
        used |= _draw_turn(axes, row, turn) | _draw_spans(axes, row, turn)
    labels = [plain(f"{turn.call}·{turn.index} {turn.language or ''}".strip(), 16) for turn in rows]
    axes.set_yticks(range(len(rows)), labels, parse_math=False)
    axes.tick_params(axis="y", length=0)
    axes.set_ylim(height - 0.4, -0.6)
    axes.axvline(0, color=INK, linewidth=1)
    left, right = axes.get_xlim()
    axes.set_xlim(min(left, -0.02 * right), max(right, 100) * 1.12)
    axes.grid(axis="x")
    axes.set_xlabel("time since the caller's last audible sample, speech_stop (ms)")
    axes.set_ylabel("call · turn")
    handles = _waterfall_legend(used)
    if handles:
        top_legend(figure, handles, [str(handle.get_label()) for handle in handles])
    if "negative" in used:
        caption += " A stage below zero is drawn backwards, hatched, in a lane of its own."
    if used.intersection(STAGES):
        caption += " Stages lie end to end and sum to the user latency, printed beside."
    text = f"n = {counted(len(turns), 'turn')}. {caption}"
    return drawing("waterfall", "waterfall", "Where the time went, turn by turn", figure, text)


def _waterfall_legend(used: set[str]) -> list[Any]:
    handles: list[Any] = [Patch(color=PALETTE[c], label=name) for name, c in STAGE_COLOURS.items() if name in used]
    if "total" in used:
        handles.append(Patch(color=PALETTE["rule"], label="not split into stages"))
    if PREMATURE in used:
        handles.append(Patch(fill=False, edgecolor=PALETTE["vermillion"], hatch="////", label="premature"))
    if "spans" in used:
        handles.append(Line2D([], [], color=INK, linewidth=2, label="reported by the agent, not added up"))
    return handles


def _draw_turn(axes: Any, row: int, turn: Turn) -> set[str]:
    """One row: its stages end to end, or its outcome in words; returns what the legend must explain."""
    if turn.outcome == PREMATURE and turn.latency_ms is not None:
        colour = PALETTE["vermillion"]
        axes.barh(row, turn.latency_ms, height=0.62, fill=False, edgecolor=colour, hatch="////", linewidth=0.8)
        _note(axes, max(turn.latency_ms, 0), row, f"premature, {turn.latency_ms:,.0f} ms".replace("-", "\u2212"))
        return {PREMATURE}
    if turn.outcome != ANSWERED or turn.latency_ms is None:
        why = f" ({turn.reason or turn.fault})" if turn.reason or turn.fault else ""
        axes.plot(0, row, marker="x", color=PALETTE["vermillion"], markersize=6, clip_on=False, zorder=4)
        _note(axes, 0, row, plain(turn.outcome.replace("_", " ") + why, 60), gap=9, color=PALETTE["vermillion"])
        return set()
    stages = {name: turn.stages_ms[name] for name in STAGES if name in turn.stages_ms}
    _draw_stages(axes, row, stages)
    used = set(stages)
    if not stages:
        axes.barh(row, turn.latency_ms, height=0.62, color=PALETTE["rule"])
        used = {"total"}
    reach = max(turn.latency_ms, 0.0, *np.cumsum([*stages.values(), 0.0]))
    spread = "" if turn.uncertainty_ms is None else f" ± {turn.uncertainty_ms:,.1f}"
    warm_up = ", warm-up" if FLAG_WARM_UP in turn.flags else ""
    _note(axes, reach, row, f"{turn.latency_ms:,.0f}{spread} ms{warm_up}")
    return used | ({"negative"} if any(ms < 0 for ms in stages.values()) else set())


def _draw_stages(axes: Any, row: int, stages: Mapping[str, float]) -> None:
    """Stages end to end; where one is negative it and what follows each take a lane of their own, to cover nothing."""
    lanes = (0.0, 0.62)
    first = next((i for i, ms in enumerate(stages.values()) if ms < 0), None)
    at = 0.0
    for i, (name, ms) in enumerate(stages.items()):
        colour = PALETTE[STAGE_COLOURS[name]]
        if first is not None:
            lanes = (-0.19, 0.24) if i < first else (0.03, 0.2) if ms < 0 else (0.23, 0.2)
        if ms < 0:
            style: dict[str, Any] = {"fill": False, "edgecolor": colour, "hatch": "//////", "linewidth": 0.9}
        else:
            style = {"color": colour}
        axes.barh(row + lanes[0], ms, left=at, height=lanes[1], **style)
        at += ms


def _note(axes: Any, x: float, y: float, text: str, *, gap: float = 5, color: str = INK) -> None:
    """Small text to the right of a point, `gap` typographic points away from it."""
    place = {"xytext": (gap, 0), "textcoords": "offset points", "va": "center"}
    axes.annotate(text, (x, y), fontsize=9, color=color, parse_math=False, **place)


def _draw_spans(axes: Any, row: int, turn: Turn) -> set[str]:
    """What the agent reported, where its clock was mapped onto ours, as thin lines under the row."""
    drawn: set[str] = set()
    for span in turn.server_spans[:MAX_SPANS]:
        start_s, ms = span.get("start_s"), span.get("duration_ms")
        if turn.speech_stop_s is None or span.get("mapping") in (None, "none"):
            continue
        if isinstance(start_s, (int, float)) and isinstance(ms, (int, float)):
            begin = (start_s - turn.speech_stop_s) * 1000
            axes.plot([begin, begin + ms], [row + 0.4] * 2, color=INK, linewidth=1.6, solid_capstyle="butt")
            drawn.add("spans")
    return drawn


def _ecdf(result: Result) -> Drawing | None:
    ranked = ranked_latencies_ms(result.turns)
    n, answered = len(ranked), int(np.isfinite(ranked).sum())
    if not answered:
        return None
    figure = new_figure(3.6)
    axes = figure.subplots()
    ranks = np.unique(np.linspace(1, answered, min(answered, MAX_POINTS)).round().astype(int))
    x, y = ranked[ranks - 1], ranks / n
    margin = max(0.12 * float(x[-1] - x[0]), 0.02 * abs(float(x[-1])), 5.0)
    left, right = float(x[0]) - margin, float(x[-1]) + margin
    axes.step([left, *x, right], [0, *y, y[-1]], where="post", color=PALETTE["blue"], linewidth=1.8)
    caption = f"n = {counted(n, 'ranked turn')} (nearest rank)."
    if answered < n:
        axes.axhspan(answered / n, 1, color=PALETTE["vermillion"], alpha=0.15, linewidth=0)
        label = f"shaded: {n - answered:,} of {n:,} never answered"
        axes.annotate(label, (right, 0), xytext=(-4, 6), textcoords="offset points", ha="right", fontsize=9)
        caption += " The curve ends below 1 by the share of turns that were never answered."
    for name, above in (("p50", False), ("p95", True)):
        entry, share = result.summary["percentiles_ms"][name], PERCENTILES[name] / 1000
        if entry["value"] is None:
            caption += f" {name.upper()} falls on a turn without a reply."
            continue
        _mark_percentile(axes, entry, share, left, above=above)
    axes.set_xlim(left, right)
    axes.set_ylim(0, 1.1)
    axes.grid()
    axes.set_xlabel("user latency (ms)")
    axes.set_ylabel("share of ranked turns")
    caption += " Bars through the marks: 95 % interval, where both of its ends are bounded."
    return drawing("ecdf", "ecdf", "How the waits are distributed", figure, caption)


def _mark_percentile(axes: Any, entry: Any, share: float, left: float, *, above: bool) -> None:
    value = entry["value"]
    axes.plot([left, value, value], [share, share, 0], color=INK, linewidth=0.8, linestyle=(0, (2, 3)))
    if entry["low"] is not None and entry["high"] is not None:
        axes.plot([entry["low"], entry["high"]], [share] * 2, color=PALETTE["orange"], linewidth=4, alpha=0.7)
    axes.plot(value, share, "o", color=PALETTE["blue"], markersize=6)
    label = f"P{share * 100:.0f}  {value:,.0f} ms" + (" (thin)" if entry["thin"] else "")
    place = {"ha": "right", "va": "bottom"} if above else {"ha": "left", "va": "top"}
    offset = (-7, 4) if above else (8, -6)
    axes.annotate(label, (value, share), xytext=offset, textcoords="offset points", fontsize=11, **place)


def _session(turns: Sequence[Turn]) -> Drawing | None:
    """Latency over the session: over the call's time for one call, over the turns in their order for more."""
    rows = _ordered(turns)
    calls = sorted({turn.call for turn in rows})
    timed = len(calls) == 1 and all(turn.speech_stop_s is not None for turn in rows)
    at = {id(turn): float(turn.speech_stop_s or 0) if timed else float(i) for i, turn in enumerate(rows)}
    heard = [turn for turn in rows if turn.latency_ms is not None and turn.outcome in (ANSWERED, PREMATURE)]
    if not heard:
        return None
    figure = new_figure(3.4)
    axes = figure.subplots()
    _session_points(axes, heard, at, few=len(rows) <= MAX_BARS)
    unheard = np.array([at[id(turn)] for turn in rows if turn.latency_ms is None])
    if len(unheard):
        top = np.full(len(unheard), axes.get_ylim()[1])
        axes.plot(unheard, top, "x", color=PALETTE["vermillion"], label="no latency (at the top)", clip_on=False)
    if 1 < len(calls) <= 30:
        firsts = [i for i, turn in enumerate(rows) if i and turn.call != rows[i - 1].call]
        for first in firsts:
            axes.axvline(first - 0.5, color=PALETTE["rule"], linewidth=0.6, alpha=0.6)
    axes.grid(axis="y")
    axes.set_xlabel("call time of speech_stop (s)" if timed else "turns, call after call (number)")
    axes.set_ylabel("user latency (ms)")
    top_legend(figure, *axes.get_legend_handles_labels())
    caption = f"n = {counted(len(rows), 'turn')} in {counted(len(calls), 'call')}."
    if len(rows) <= MAX_BARS:
        caption += " Error bars: the expanded uncertainty of each turn."
    return drawing("session", "session", "Latency over the session", figure, caption)


def _session_points(axes: Any, heard: Sequence[Turn], at: dict[int, float], *, few: bool) -> None:
    headline = {id(turn) for turn in headline_turns(heard)}
    groups = (
        ("answered", "o", "blue", [t for t in heard if t.outcome == ANSWERED and id(t) in headline]),
        ("outside the headline", "o", "rule", [t for t in heard if t.outcome == ANSWERED and id(t) not in headline]),
        ("premature", "v", "vermillion", [t for t in heard if t.outcome == PREMATURE]),
    )
    for label, marker, name, group in groups:
        if not group:
            continue
        x, y = np.array([at[id(t)] for t in group]), np.array([t.latency_ms for t in group], dtype=float)
        colour = PALETTE[name]
        if few:
            spread = [0.0 if t.uncertainty_ms is None else t.uncertainty_ms for t in group]
            axes.errorbar(x, y, yerr=spread, fmt="none", ecolor=colour, elinewidth=1)
        x, y = decimate(x, y, columns=MAX_POINTS // 2)
        fill = "none" if name == "rule" else colour
        axes.plot(x, y, marker, color=colour, markerfacecolor=fill, markersize=5 if few else 2.5, label=label)
