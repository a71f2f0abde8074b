"""A matplotlib figure in, an SVG element for an HTML page out: light and dark, any font, the same text each time.

Text stays text and takes the page's font, ink is `currentColor`, and each colour of the palette is a CSS variable with
itself as the fallback, so that one drawing serves light and dark.

References
----------
Palette for colour-blind readers: Okabe and Ito, "Color Universal Design", 2008.
"""

from __future__ import annotations

import io
import re
from dataclasses import dataclass
from typing import Any

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

__all__ = ["COLUMNS", "INK", "PALETTE", "STYLE", "Drawing", "Series", "decimate", "drawing", "plain"]

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


def decimate(t: Series, value: Series, *, columns: int = COLUMNS) -> tuple[Series, Series]:
    """The smallest and the largest value in each of `columns` equal stretches of time, in the order of time.

    Parameters
    ----------
    t, value : ndarray, shape (n,)
        Instants (ascending) and values; NaN is a gap and stays one where a stretch holds nothing else.
    columns : int
        How many stretches.

    Returns
    -------
    tuple of ndarray
        At most 2 · `columns` instants and values, or the input where it is no longer than that.
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
    return t[kept], value[kept]


def drawing(kind: str, name: str, title: str, figure: Figure, caption: str) -> Drawing:
    """The figure as an SVG element for an HTML page, its ids prefixed by `name` so that they are unique in the page."""
    buffer = io.StringIO()
    with matplotlib.rc_context({"svg.hashsalt": name}):
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    svg = buffer.getvalue()
    svg = re.sub(r"<metadata>.*?</metadata>|<style[^>]*>.*?</style>", "", svg[svg.index("<svg") :], flags=re.DOTALL)
    view_box = re.search(r'viewBox="([^"]*)"', svg)
    assert view_box is not None
    head = f'<svg class="drawing" viewBox="{view_box[1]}" role="img" aria-label="{title}">'
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
