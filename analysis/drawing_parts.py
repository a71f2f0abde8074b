"""Parts that several drawings of packets share: lanes, strips of shares, distributions, the marks of turns.

Each takes matplotlib axes and draws on them; colour is never the only sign.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator
from matplotlib.transforms import blended_transform_factory

from analysis.counting import counted
from analysis.drawing import COLUMNS, INK, PALETTE, Series, decimate, from_zero
from analysis.result import ANSWERED, Turn
from analysis.statistics import PERCENTILES, nearest_rank

__all__ = [
    "LANE_IN",
    "PANEL_IN",
    "STRIP_COLUMNS",
    "Lane",
    "draw_distribution",
    "draw_lanes",
    "draw_shares",
    "limit_values",
    "loss_text",
    "mark_turns",
    "reach_of",
    "round_edges",
    "slowest_turn",
    "total_of",
]

MAX_TURNS = 40  # marked in one drawing by lines and shades
CHARACTER = 0.0095  # width of one of a turn's label, in widths of the axes
STRIP_COLUMNS = 320  # of a strip of losses: one is 2 points wide
LEAST_HEIGHT = 0.25  # of a mark in a lane, so that the smallest amount is seen
MAX_BINS = 80  # of a histogram
OUTLIER = 4.0  # a largest value so far above nearly all others would flatten them
LANE_IN, PANEL_IN = 0.26, 2.6  # heights


@dataclass(frozen=True, slots=True)
class Lane:
    """One thin lane: events at `t_s`, counted, or the amount of `unit` in the window that ends at each."""

    label: str
    colour: str
    t_s: Series
    amount: Series | None = None
    window_s: float = 0.0
    unit: str = " ms"


def draw_lanes(axes: Any, lanes: Sequence[Lane], span_s: tuple[float, float]) -> None:
    """Lanes one below the other: its name on the left, its total on the right, the height of a mark its amount."""
    begin, width = span_s[0], max(span_s[1] - span_s[0], 1e-9)
    place = blended_transform_factory(axes.transAxes, axes.transData)
    for row, lane in enumerate(lanes):
        base = len(lanes) - 1 - row
        axes.axhline(base, color=PALETTE["rule"], linewidth=0.5, alpha=0.5, zorder=0)
        if lane.amount is None:
            instants = _columns(lane.t_s, COLUMNS)
            axes.vlines(instants, base + 0.08, base + 0.82, color=PALETTE[lane.colour], linewidth=1.3)
            text = f"{len(lane.t_s):,}"
        else:
            bins = int(np.clip(width / max(lane.window_s, 1e-3), 1, COLUMNS))
            middle = np.clip(lane.t_s - lane.window_s / 2, begin, begin + width)
            total, edges = np.histogram(
                middle, bins=bins, range=(begin, begin + width), weights=np.nan_to_num(lane.amount)
            )
            share = total / max(float(total.max()), 1e-9)
            height = np.where(total > 0, np.maximum(share, LEAST_HEIGHT) * 0.86, 0.0)
            axes.stairs(base + height, edges, baseline=base, fill=True, color=PALETTE[lane.colour], linewidth=0)
            text = f"{total_of(lane):,.0f}{lane.unit}"
        style = {"transform": place, "fontsize": 9, "va": "center", "parse_math": False, "color": INK}
        axes.text(1.005, base + 0.42, text, clip_on=False, **style)
    axes.set_ylim(-0.05, len(lanes))
    axes.set_yticks([len(lanes) - 1 - i + 0.42 for i in range(len(lanes))], [lane.label for lane in lanes])
    axes.tick_params(axis="y", length=0, labelsize=10)
    axes.spines["left"].set_visible(False)


def _columns(instants: Series, columns: int) -> Series:
    """One instant for each stretch of the span that holds any: what can be told apart in print."""
    if len(instants) <= columns:
        return instants
    span = max(float(np.ptp(instants)), 1e-9)
    _, first = np.unique(np.floor((instants - instants.min()) / span * columns), return_index=True)
    return instants[first]


def draw_shares(axes: Any, edges: Series, got: Any, missing: Any, unused: Any) -> None:
    """Packets received, lost and received too late in each column, as shares of those that were due.

    A tick above the axis marks each column with any that was lost or late: a share may be too small to be seen.
    """
    due = np.maximum(got + missing, 1)
    bad = missing / due
    late = np.minimum(unused / due, 1 - bad)
    used = (got + missing) > 0
    style = {"fill": True, "linewidth": 0}
    axes.stairs(np.where(used, 1 - bad - late, 0), edges, color=PALETTE["sky"], alpha=0.45, label="received", **style)
    if unused.any():
        edge = {"edgecolor": PALETTE["orange"], "facecolor": PALETTE["orange"]}
        axes.stairs(1 - bad, edges, baseline=1 - bad - late, label="received, too late", fill=True, linewidth=0, **edge)
        _draw_ticks(axes, edges, (unused > 0) & (missing == 0), "orange")
    if missing.any():
        axes.stairs(np.ones(len(bad)), edges, baseline=1 - bad, color=PALETTE["vermillion"], label="lost", **style)
        _draw_ticks(axes, edges, missing > 0, "vermillion")
    axes.set_ylim(0, 1)
    axes.set_yticks([0, 1], ["0", "100 %"])
    axes.set_ylabel("share of\npackets", fontsize=10)


def _draw_ticks(axes: Any, edges: Series, marked: Any, colour: str) -> None:
    at = (edges[:-1] + edges[1:])[marked] / 2
    axes.vlines(at, 1.06, 1.24, color=PALETTE[colour], linewidth=1.3, clip_on=False)


def draw_distribution(axes: Any, edges: Series, value: Series, label: str, colour: str, what: str) -> str:
    """Bars of sorted values (ms) on a logarithmic scale, with their percentiles; the caption's sentence is returned."""
    counts, _ = np.histogram(value, bins=edges)
    axes.stairs(np.maximum(counts, 0.6), edges, baseline=0.6, fill=True, color=PALETTE[colour], alpha=0.6, linewidth=0)
    axes.set_yscale("log")
    axes.set_ylim(0.6, 1.5 * max(float(counts.max()), 3.0))
    axes.yaxis.set_major_locator(LogLocator(numticks=5))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda n, _: f"{n:,.0f}" if n <= 1.5 * counts.max() else ""))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.set_ylabel(f"{what}s")
    axes.set_title(label, loc="left", fontsize=10, pad=19)
    marks = [(name.upper(), nearest_rank(value, PERCENTILES[name])) for name in ("p50", "p95", "p99")]
    for (name, at), line in zip(marks, ("solid", (0, (4, 2)), (0, (1, 1.5))), strict=True):
        axes.axvline(at, color=INK, linewidth=1.1, linestyle=line, label=f"{name} {at:,.0f} ms")
    place = {"loc": "lower left", "bbox_to_anchor": (0.0, 1.03), "borderaxespad": 0.0}
    axes.legend(ncols=3, handlelength=1.6, fontsize=9, columnspacing=1.4, **place)
    beyond = int((value > edges[-1]).sum())
    if beyond:
        text = f"{beyond:,} more up to {value[-1]:,.0f} ms \u2192"
        axes.text(0.995, 0.8, text, transform=axes.transAxes, ha="right", fontsize=9, color=PALETTE["vermillion"])
    figures = ", ".join(f"{name} {at:,.1f} ms" for name, at in marks)
    return f"{label[0].upper()}{label[1:]}: n = {counted(len(value), what)}, {figures}, longest {value[-1]:,.1f} ms."


def round_edges(low: float, high: float) -> Series:
    """Edges of bars of a round width, not more than MAX_BINS."""
    span = max(high - low, 1.0)
    width = next(w * 10.0**k for k in range(-1, 20) for w in (1, 2, 5) if span / (w * 10.0**k) <= MAX_BINS)
    first = np.floor(low / width)
    return np.asarray(np.arange(first, np.floor(high / width) + 2) * width, dtype=np.float64)


def reach_of(value: Series) -> float:
    """The largest of sorted values, or, where very few of them would flatten all others, a little beyond nearly all."""
    nearly_all = float(value[int(0.995 * (len(value) - 1))])
    return 1.3 * nearly_all if value[-1] > OUTLIER * max(nearly_all, 5.0) else float(value[-1])


def limit_values(axes: Any, t: Series, value: Series, others: Sequence[Series], label: str) -> int:
    """Set the y axis; where very few values would flatten all others, they are marked at its edge and counted."""
    known = [v[np.isfinite(v)] for v in (value, *others)]
    nearly_all = max((float(np.percentile(v, 99.5)) for v in known if len(v)), default=0.0)
    highest = float(known[0].max()) if len(known[0]) else 0.0
    if highest <= OUTLIER * nearly_all or nearly_all <= 0:
        from_zero(axes, least=10.0)
        return 0
    top = max(float(v[v <= OUTLIER / 2 * nearly_all].max(initial=0.0)) for v in known)
    from_zero(axes, top=top)
    edge = axes.get_ylim()[1]
    beyond = value > top
    at, _ = decimate(t[beyond], value[beyond], columns=COLUMNS // 2)
    style = {"color": PALETTE["vermillion"], "markersize": 5, "clip_on": False, "linestyle": "none"}
    axes.plot(at, np.full(len(at), edge), "^", label=label, **style)
    return int(beyond.sum())


def mark_turns(axes: Sequence[Any], turns: Sequence[Turn], call: int) -> None:
    """Each wait from speech_stop to audible as a shade; its number above the uppermost panel where there is room.

    Of more turns than can be told apart only the slowest is marked so, the others by a tick on the upper edge.
    """
    left, right = axes[0].get_xlim()
    mine = [t for t in turns if t.call == call and t.speech_stop_s is not None]
    marks = [t for t in mine if left <= (t.audible_s or t.speech_stop_s or left) and (t.speech_stop_s or left) <= right]
    slowest = slowest_turn(marks, call) if len(marks) > 1 else None
    marks = sorted(marks, key=lambda turn: (turn is not slowest, turn.index))
    few = len(marks) <= MAX_TURNS
    names = []
    for number, turn in enumerate(marks if few else marks[:1]):
        stop_s = turn.speech_stop_s or 0.0
        for k, panel in enumerate(axes):
            _mark_wait(panel, stop_s, turn.audible_s, labelled=number == k == 0)
        text = f"{'turn ' if len(marks) <= 8 else ''}{turn.index}"
        if turn is slowest:
            text = f"turn {turn.index}, slowest: {turn.latency_ms or 0:,.0f} ms"
        names.append((stop_s, text, turn is slowest))
    if not few:
        stops = _columns(np.sort([turn.speech_stop_s or 0.0 for turn in marks]), COLUMNS // 2)
        style = {"color": PALETTE["green"], "marker": 3, "markersize": 5, "linestyle": "none"}
        axes[0].plot(stops, np.ones(len(stops)), transform=axes[0].get_xaxis_transform(), label="turns", **style)
    _write_turns(axes[0], names)


def _mark_wait(axes: Any, stop_s: float, audible_s: float | None, *, labelled: bool) -> None:
    if audible_s is not None and audible_s > stop_s:
        axes.axvspan(stop_s, audible_s, color=PALETTE["rule"], alpha=0.16, linewidth=0, zorder=0)
    style: dict[str, Any] = {"linewidth": 0.9, "zorder": 1}
    label = "speech_stop" if labelled else None
    axes.axvline(stop_s, color=PALETTE["rule"], linestyle=(0, (3, 2)), label=label, **style)
    if audible_s is not None:
        axes.axvline(audible_s, color=PALETTE["green"], label="audible" if labelled else None, **style)


def _write_turns(axes: Any, names: Sequence[tuple[float, str, bool]]) -> None:
    """Names above an axes, those first in the list before others that they leave no room for."""
    left, right = axes.get_xlim()
    place = blended_transform_factory(axes.transData, axes.transAxes)
    taken: list[tuple[float, float]] = []
    for at_s, text, bold in names:
        begin = max((at_s - left) / (right - left), 0.0)
        end = begin + CHARACTER * len(text)
        if end > 1:
            begin, end = begin - (end - 1), 1.0
        if any(begin < b + 0.01 and end > a - 0.01 for a, b in taken):
            continue
        taken.append((begin, end))
        x = left + begin * (right - left)
        weight = "bold" if bold else "normal"
        axes.text(x, 1.02, text, transform=place, fontsize=9, fontweight=weight, va="bottom", parse_math=False)


def loss_text(lost: float, received: float) -> str:
    """Lost packets as a share of those that were due, in per cent with two digits that count."""
    percent = 100 * lost / max(lost + received, 1)
    return f"{percent:.0f} %" if percent >= 10 or not percent else f"{percent:.2g} %"


def slowest_turn(turns: Sequence[Turn], call: int) -> Turn | None:
    """The answered turn of a call with the largest latency; None where none was answered."""
    heard = [t for t in turns if t.call == call and t.outcome == ANSWERED and t.latency_ms is not None]
    return max(heard, key=lambda turn: turn.latency_ms or 0.0, default=None)


def total_of(lane: Lane) -> float:
    """How many events a lane holds, or the sum of its amounts."""
    return float(len(lane.t_s)) if lane.amount is None else float(np.nansum(lane.amount))
