"""Imported statistics as series in, one self-contained HTML page of their plots out.

No call was measured by this program then, and the page says so: its evidence is `reported`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from analysis.counting import counted
from analysis.drawing import house_style, plain
from analysis.page import template
from analysis.stats_figures import draw_statistics
from analysis.stats_series import StatsSeries

__all__ = ["Connection", "render_statistics"]

MAX_CONNECTIONS = 12
MAX_WARNINGS = 30
WARNING_CHARS = 400
CONDITION_CHARS = 400
METHODS = (
    ("Windows", "Counters only grow; what is drawn is their growth from one snapshot to the next."),
    (
        "Jitter-buffer delay",
        "Growth of jitterBufferDelay over growth of jitterBufferEmittedCount: a mean over samples.",
    ),
    (
        "Concealed",
        "concealedSamples: sound that was made up because no packet was there to play, after a loss, in an outage or "
        "in a pause of the sender. Of it silent: silentConcealedSamples, the part that came out as silence or comfort "
        "noise. A browser goes silent after about half a second in an outage as in a pause, so neither tells them "
        "apart.",
    ),
    ("Removed, inserted", "Sound that was left out to catch up (acceleration), or stretched to wait (deceleration)."),
    ("Round trip", "By RTCP (roundTripTime) and by STUN on the path in use (currentRoundTripTime), each as reported."),
    (
        "Gaps",
        "What was not reported is not drawn. A counter that went backwards is a new receiver: that window is out.",
    ),
)
CAUTIONS = (
    "These are the reporter's own figures on its own clock; nothing of them was checked against packets.",
    "A snapshot every second hides what is shorter: a stall of 200 ms is one window with a larger mean.",
    "Half of a round trip is not a one-way delay.",
    "A long jitter-buffer delay is the price of a bad network, not the whole of a slow reply.",
)


@dataclass(frozen=True)
class Connection:
    """One peer connection: its title, where it comes from (as shown), and its series."""

    title: str
    conditions: Mapping[str, str]
    series: StatsSeries


def render_statistics(source: str, connections: Sequence[Connection], warnings: Sequence[str] = ()) -> str:
    """The page as HTML text; the same input gives the same text."""
    with house_style():
        shown = [
            {
                "title": plain(each.title, 120),
                "warnings": [plain(text, WARNING_CHARS) for text in each.series.warnings[:MAX_WARNINGS]],
                "conditions": [(plain(k, 60), plain(v, CONDITION_CHARS)) for k, v in each.conditions.items() if v],
                "drawings": draw_statistics(each.series, str(number)),
            }
            for number, each in enumerate(connections[:MAX_CONNECTIONS])
        ]
    said = [plain(text, WARNING_CHARS) for text in warnings[:MAX_WARNINGS]]
    if len(connections) > MAX_CONNECTIONS:
        said.append(f"{counted(len(connections) - MAX_CONNECTIONS, 'more peer connection')} not drawn")
    return template("statistics.html.j2").render(
        source=plain(source, 120),
        count="1 peer connection" if len(connections) == 1 else f"{len(connections):,} peer connections",
        connections=shown,
        warnings=said,
        methods=METHODS,
        cautions=CAUTIONS,
    )
