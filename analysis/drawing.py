"""A matplotlib figure in, an SVG element for an HTML page out: light and dark, any font, the same text each time.

Text stays text and takes the page's font, ink is `currentColor`, and each colour of the palette is a CSS variable with
itself as the fallback, so that one drawing serves light and dark.

References
----------
Palette for colour-blind readers: Okabe and Ito, "Color Universal Design", 2008.
"""

from __future__ import annotations

import html
import io
import re
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import PathPatch
from matplotlib.path import Path
from matplotlib.ticker import FuncFormatter, MaxNLocator
from numpy.typing import NDArray

__all__ = [
    "COLUMNS",
    "GAP_S",
    "INK",
    "MAX_DOTS",
    "PALETTE",
    "STYLE",
    "Drawing",
    "Series",
    "broken",
    "decimate",
    "draw_dots",
    "draw_line",
    "drawing",
    "from_zero",
    "house_style",
    "new_figure",
    "panels",
    "plain",
    "time_axis",
    "top_legend",
]

Series = NDArray[np.float64]

PALETTE = {
    "blue": "#0072b2",
    "sky": "#56b4e9",
    "green": "#009e73",
    "orange": "#e69f00",
    "vermillion": "#d55e00",
    "purple": "#cc79a7",
    "rule": "#8b8b8b",  # axes and grid
}
INK = "#101010"  # stands for currentColor
STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "font.size": 11,
    "axes.titlesize": 11,
    "axes.labelsize": 11,
    "axes.edgecolor": PALETTE["rule"],
    "axes.labelcolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.formatter.limits": (-6, 9),
    "axes.formatter.useoffset": False,
    "grid.color": PALETTE["rule"],
    "grid.alpha": 0.25,
    "text.color": INK,
    "xtick.color": PALETTE["rule"],
    "ytick.color": PALETTE["rule"],
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "legend.frameon": False,
    "legend.fontsize": 10,
    "hatch.linewidth": 1.2,
}
COLUMNS = 600  # of a decimated series
MAX_DOTS = 3000  # of one panel; of more, the range in each column is drawn
EDGE = 0.04  # of a y axis, below 0: half a dot and more in the lowest panel
GAP_S = 1.0  # a series is broken where nothing came for so long
WIDTH_IN = 9.6
FEW_POINTS = 60  # of a line; their dots are larger
SEEN = 0.62  # of its width on a telephone
LETTER_IN, HANDLE_IN = 0.075, 0.45  # in a legend
LONG_S = 300.0  # a longer time axis reads in minutes
MINUTE_STEPS = [1, 1.5, 2, 3, 5, 10]


@dataclass(frozen=True, slots=True)
class Drawing:
    """One figure: its kind, a title and a caption (plain text), and the SVG element."""

    kind: str
    title: str
    svg: str
    caption: str


def plain(text: object, limit: int = 80) -> str:
    """`text` on one line: no control or bidi characters, at most `limit` characters."""
    shown = "".join(c if c.isprintable() else " " for c in str(text)[: limit + 1])
    return shown if len(shown) <= limit else shown[: limit - 1] + "…"


def decimate(t: Series, value: Series, *, columns: int = COLUMNS, breaks: bool = True) -> tuple[Series, Series]:
    """The smallest and the largest value in each of `columns` equal stretches of time, in the order of time.

    Parameters
    ----------
    t, value : ndarray, shape (n,)
        Instants (ascending) and values; NaN is a gap and stays one where a stretch holds nothing else.
    columns : int
        How many stretches.
    breaks : bool
        False for a line that only a NaN of its own breaks.

    Returns
    -------
    tuple of ndarray
        At most 2 · `columns` instants and values, or the input where it is no longer than that; and a NaN in each gap
        of some stretches that it leaves.
    """
    if len(t) <= 2 * columns:
        return t, value
    column = np.minimum(((t - t[0]) / max(float(t[-1] - t[0]), 1e-9) * columns).astype(np.int64), columns - 1)
    starts = np.flatnonzero(np.diff(column, prepend=-1))
    kept: list[int] = []
    for begin, end in zip(starts, np.append(starts[1:], len(t)), strict=True):
        part = value[begin:end]
        if np.isnan(part).all():
            kept.append(int(begin))
        else:
            kept += sorted({int(begin + np.nanargmin(part)), int(begin + np.nanargmax(part))})
    if not breaks:
        return t[kept], value[kept]
    return broken(t[kept], value[kept], gap_s=3 * float(t[-1] - t[0]) / columns)


@contextmanager
def house_style() -> Iterator[None]:
    """Draw in the style of the pages; the settings of matplotlib are as before when it is left."""
    with matplotlib.rc_context(STYLE), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph")  # text stays text: the reader's font draws it
        yield


def new_figure(height_in: float) -> Figure:
    """An empty figure of the report's width."""
    return Figure(figsize=(WIDTH_IN, height_in), layout="constrained")


def panels(heights: Sequence[float], total_in: float) -> tuple[Figure, list[Any]]:
    """A figure with panels of these relative heights, one above the other, on one x axis."""
    figure = new_figure(total_in)
    axes = list(figure.subplots(len(heights), 1, sharex=True, height_ratios=heights, squeeze=False)[:, 0])
    for panel in axes:
        panel.yaxis.set_major_formatter(FuncFormatter(_number))
    return figure, axes


def top_legend(figure: Figure, handles: Sequence[Any], labels: Sequence[str]) -> None:
    """A legend above all panels, in as many columns as a narrow screen shows of a figure without scrolling."""
    for columns in range(min(len(labels), 4), 0, -1):
        rows = -(-len(labels) // columns)
        wide = [max(map(len, labels[k : k + rows])) for k in range(0, len(labels), rows)]
        if sum(wide) * LETTER_IN + len(wide) * HANDLE_IN <= SEEN * WIDTH_IN:
            break
    figure.legend(handles, labels, loc="outside upper left", ncols=columns, columnspacing=1.4)


def _number(value: float, _: object) -> str:
    return f"{value:,.9g}".replace("-", chr(0x2212)) if abs(value) < 1e9 else f"{value:.3g}"


def broken(t: Series, value: Series, *, gap_s: float = GAP_S) -> tuple[Series, Series]:
    """The series with a NaN in the middle of each gap of more than `gap_s`, so that no line is drawn across it."""
    gaps = np.flatnonzero(np.diff(t) > gap_s) + 1
    return np.insert(t, gaps, (t[gaps - 1] + t[gaps]) / 2), np.insert(value, gaps, np.nan)


def from_zero(axes: Any, *, least: float = 1.0, top: float | None = None) -> None:
    """Let the y axis reach from 0 to `top`, or to what is drawn, and at least to `least`: with room for whole dots."""
    top = float(axes.dataLim.y1) if top is None else top
    top = max(top, least) if np.isfinite(top) else least
    axes.set_ylim(-EDGE * top, (1 + 2 * EDGE) * top)


def draw_dots(axes: Any, t: Series, value: Series, colour: str, *, label: str | None = None) -> bool:
    """One dot a value, in one path; where there are too many, the range in each stretch of time.

    Returns
    -------
    bool
        True where ranges were drawn instead of dots.
    """
    known = np.isfinite(value)
    t, value = t[known], value[known]
    if len(t) > MAX_DOTS:
        low, high, left, right = _ranges(t, value)
        # a stretch of equal values would be no area at all
        least = 0.006 * float(high.max() - low.min() or 1)
        middle, half = (low + high) / 2, np.maximum(high - low, least) / 2
        corners = np.array(
            [[left, middle - half], [left, middle + half], [right, middle + half], [right, middle - half]]
        )
        vertices = corners.transpose(2, 0, 1).reshape(-1, 2)
        codes = np.tile([Path.MOVETO, Path.LINETO, Path.LINETO, Path.LINETO], len(left)).astype(np.uint8)
        style: dict[str, Any] = {"facecolor": PALETTE[colour], "linewidth": 0}
    else:
        # a line of no length with round ends is a dot, and a tenth of the text of a marker
        vertices = np.repeat(np.column_stack([t, value]), 2, axis=0)
        codes = np.tile([Path.MOVETO, Path.LINETO], len(t)).astype(np.uint8)
        style = {"fill": False, "edgecolor": PALETTE[colour], "linewidth": 4.5 if len(t) <= FEW_POINTS else 2.6}
        style["capstyle"] = "round"
    if len(vertices):
        path = Path(vertices, codes)
        path.should_simplify = False
        axes.add_patch(PathPatch(path, zorder=2.5, **style))
        axes.autoscale_view()
        if label is not None:
            axes.plot([], [], "o", color=PALETTE[colour], markersize=4, label=label)
    return len(t) > MAX_DOTS


def draw_line(
    axes: Any,
    t: Series,
    value: Series,
    colour: str,
    *,
    label: str | None = None,
    width: float = 1.5,
    dashes: tuple[float, float] | None = None,
    breaks: bool = True,
    marked: bool = False,
) -> None:
    """A line that breaks where the value is not known; a value that stands alone is a dot.

    So is, where it is `marked`, each of few, so that it is seen how little there is. `breaks` as in `decimate`.
    """
    known = np.isfinite(value)
    if not known.any():
        return
    style: dict[str, Any] = {"color": PALETTE[colour], "linewidth": width}
    style["linestyle"] = "solid" if dashes is None else (0, dashes)
    axes.plot(*decimate(t, value, breaks=breaks), label=label, **style)
    alone = known & ~np.append(known[1:], False) & ~np.insert(known[:-1], 0, False)
    few = known.sum() <= FEW_POINTS
    if marked and few:
        alone = known
    if alone.any():
        axes.plot(*decimate(t[alone], value[alone]), ".", color=PALETTE[colour], markersize=6 if few else 3)


def _ranges(t: Series, value: Series) -> tuple[Series, Series, Series, Series]:
    """Lowest and highest value, begin and end of each column of time that holds any."""
    begin, width = float(t[0]), max(float(t[-1] - t[0]), 1e-9) / COLUMNS
    column = np.minimum(((t - begin) / width).astype(np.int64), COLUMNS - 1)
    starts = np.flatnonzero(np.diff(column, prepend=-1))
    left = begin + column[starts] * width
    return np.minimum.reduceat(value, starts), np.maximum.reduceat(value, starts), left, left + width


def time_axis(axes: Any, begin_s: float, end_s: float, label: str) -> None:
    """Limits, ticks and label of an axis of seconds; a long one reads in minutes and seconds."""
    margin = 0.01 * max(end_s - begin_s, 0.1)
    axes.set_xlim(begin_s - margin, end_s + margin)
    if end_s - begin_s <= LONG_S:
        axes.set_xlabel(f"{label} (s)")
        return
    axes.xaxis.set_major_locator(_MinuteLocator(end_s - begin_s))
    axes.xaxis.set_major_formatter(FuncFormatter(_minutes))
    axes.set_xlabel(f"{label} (min:s)")


class _MinuteLocator(MaxNLocator):
    """Ticks at whole minutes, or at parts of one that divide it."""

    def __init__(self, span_s: float) -> None:
        super().__init__(nbins=9, steps=MINUTE_STEPS)
        self.span_s = span_s

    def tick_values(self, vmin: float, vmax: float) -> list[float]:
        """As the base class, in units of a minute."""
        return [60 * tick for tick in super().tick_values(vmin / 60, vmax / 60)]


def _minutes(seconds: float, _: object) -> str:
    whole = round(abs(seconds))
    return f"{chr(0x2212) if seconds < 0 and whole else ''}{whole // 60}:{whole % 60:02d}"


def drawing(kind: str, name: str, title: str, figure: Figure, caption: str) -> Drawing:
    """The figure as an SVG element for an HTML page, its ids prefixed by `name` so that they are unique in the page."""
    buffer = io.StringIO()
    with matplotlib.rc_context({"svg.hashsalt": name}):
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    svg = buffer.getvalue()
    svg = re.sub(r"<metadata>.*?</metadata>|<style[^>]*>.*?</style>", "", svg[svg.index("<svg") :], flags=re.DOTALL)
    view_box = re.search(r'viewBox="([^"]*)"', svg)
    assert view_box is not None
    head = f'<svg class="drawing" viewBox="{view_box[1]}" role="img" aria-label="{html.escape(title)}">'
    svg = head + svg[svg.index(">") + 1 :]
    svg = re.sub(r'\bid="([^"]*)"', rf'id="{name}-\1"', svg)
    svg = svg.replace("url(#", f"url(#{name}-").replace('xlink:href="#', f'href="#{name}-')
    svg = re.sub(r'style="([^"]*)"', _page_style, svg)
    svg = re.sub(r'\b(?:d|x|y)="[^"]*"', lambda found: re.sub(r"(\.\d\d)\d+", r"\1", found[0]), svg)
    svg = re.sub(r"\s*\n\s*", " ", svg)
    return Drawing(kind, title, svg, caption)


def _page_style(found: re.Match[str]) -> str:
    style = re.sub(r"font-family:[^;]*;?|font:[^;]*'[^;]*;?", "", found[1])
    style = style.replace(INK, "currentColor")
    for name, colour in PALETTE.items():
        style = style.replace(colour, f"var(--{name},{colour})")
    return f'style="{style.strip()}"'
