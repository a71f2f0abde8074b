"""What a browser's own statistics say over time in, drawings of it out.

Source: W3C webrtc-stats. Nothing here was measured by this program: the drawings show what was reported.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import partial

import numpy as np

from analysis.counting import counted
from analysis.drawing import (
    Drawing,
    Series,
    draw_line,
    drawing,
    from_zero,
    panels,
    plain,
    time_axis,
    top_legend,
)
from analysis.drawing_parts import (
    LANE_IN,
    PANEL_IN,
    STRIP_COLUMNS,
    Lane,
    draw_distribution,
    draw_lanes,
    draw_shares,
    loss_text,
    reach_of,
    round_edges,
    total_of,
)
from analysis.stats_series import InboundStatistics, StatsSeries, Trace

__all__ = ["draw_statistics"]

MAX_INBOUND = 6  # streams that are drawn
MAX_TRACES = 4
AXIS = "time from the first snapshot"
COLOURS = {"by RTCP": ("purple", "blue"), "by STUN": ("green", "orange")}  # the same in each connection


_line = partial(draw_line, marked=True, width=1.4)


def draw_statistics(series: StatsSeries, key: str) -> list[Drawing]:
    """Delays, network, losses and distribution of each received stream; those that would be empty are left out.

    Parameters
    ----------
    series : StatsSeries
    key : str
        Letters and digits that tell these drawings from others of the page.
    """
    drawn: list[Drawing | None] = []
    for number, stream in enumerate(series.inbound[:MAX_INBOUND]):
        name, title = f"{key}-{number}", plain(stream.name, 60)
        drawn += [
            _delays(stream, series.playout_delays, series.span_s, name, title),
            _network(stream, series.span_s, name, title),
            _losses(stream, series.span_s, name, title),
            _distribution(stream, name, title),
        ]
    drawn.append(_round_trips(series.round_trips[:MAX_TRACES], series.span_s, key))
    return [each for each in drawn if each is not None]


def _lane(label: str, colour: str, stream: InboundStatistics, amount: Series, unit: str = " ms") -> Lane:
    step_s = float(np.nanmedian(stream.window_s)) if np.isfinite(stream.window_s).any() else 1.0
    return Lane(label, colour, stream.t_s, amount, step_s, unit)


def _delays(
    stream: InboundStatistics, devices: Sequence[Trace], span_s: tuple[float, float], name: str, title: str
) -> Drawing | None:
    delay = stream.jitter_buffer_delay_ms
    n = int(np.isfinite(delay).sum())
    if not n:
        return None
    amounts = [
        _lane("concealed", "vermillion", stream, stream.concealed_ms),
        _lane("of it silent", "orange", stream, stream.silent_ms),
        _lane("removed", "purple", stream, stream.removed_ms),
        _lane("inserted", "green", stream, stream.inserted_ms),
        _lane("lost", "vermillion", stream, stream.lost, ""),
        _lane("discarded", "orange", stream, stream.discarded, ""),
    ]
    lanes = [lane for lane in amounts if total_of(lane) > 0]
    heights = [PANEL_IN] + ([LANE_IN * len(lanes)] if lanes else [])
    figure, axes = panels(heights, sum(heights) + 1.25)
    upper = axes[0]
    _line(upper, stream.t_s, delay, "blue", label="jitter-buffer delay", width=1.6)
    _line(upper, stream.t_s, stream.target_delay_ms, "orange", label="target delay", dashes=(4, 2))
    for device in devices[:1]:
        _line(upper, device.t_s, device.value_ms, "green", label="output device (playout delay)", dashes=(1, 1.2))
    upper.set_ylabel("delay (ms)")
    from_zero(upper, least=10.0)
    upper.grid(axis="y")
    if lanes:
        draw_lanes(axes[1], lanes, span_s)
    time_axis(axes[-1], *span_s, AXIS)
    top_legend(figure, *upper.get_legend_handles_labels())
    text = (
        f"n = {counted(n, 'window')} of {_usual_ms(stream)} in which sound was played; each value is the mean over "
        "its window, from counters. Reported by the browser, not measured here. A line breaks where nothing was played "
        "or reported."
    )
    if lanes:
        text += " Lanes: height is the amount (any is at least a quarter high), on the right the sum: ms, or packets."
    if total_of(amounts[0]) > 0:
        text += (
            " Concealed are samples that were made up because no packet was there (concealedSamples), of it silent "
            "those that were silence or comfort noise (silentConcealedSamples). Both grow in an outage as in a pause "
            "of the sender."
        )
    if stream.restarts:
        text += f" Counters went backwards {counted(stream.restarts, 'time')} (a new receiver): those windows are out."
    return drawing("reported-delay", f"delay-{name}", f"Jitter buffer as reported, {title}", figure, text)


def _usual_ms(stream: InboundStatistics) -> str:
    known = stream.window_s[np.isfinite(stream.window_s)]
    return f"{1000 * float(np.median(known)):,.0f} ms" if len(known) else "unknown length"


def _network(stream: InboundStatistics, span_s: tuple[float, float], name: str, title: str) -> Drawing | None:
    """Jitter, packet rate and level of the sound, those of them that there are."""
    rate = stream.received / stream.window_s
    level = np.where(stream.audio_level > 0, stream.audio_level, np.nan)
    shown = [
        ("jitter\n(ms)", "orange", stream.jitter_ms, 1.4),
        ("packets\nper second", "blue", rate, 1.0),
        ("level\n(dBov)", "green", 20 * np.log10(level), 1.0),
    ]
    shown = [each for each in shown if np.isfinite(each[2]).any()]
    if not shown:
        return None
    figure, axes = panels([each[3] for each in shown], 1.25 * sum(each[3] for each in shown) + 0.7)
    for panel, (label, colour, value, _) in zip(axes, shown, strict=True):
        _line(panel, stream.t_s, value, colour)
        panel.set_ylabel(label)
        panel.grid(axis="y")
        panel.locator_params(axis="y", nbins=4)
        if "dBov" not in label:
            from_zero(panel)
    time_axis(axes[-1], *span_s, AXIS)
    parts = [f"n = {counted(len(stream.t_s), 'snapshot')}."]
    jitter = stream.jitter_ms[np.isfinite(stream.jitter_ms)]
    if len(jitter):
        parts.append(
            f"Jitter (RFC 3550) as the browser reports it at each moment: median {float(np.median(jitter)):.1f} ms, "
            f"highest {float(jitter.max()):.1f} ms."
        )
    if np.isfinite(rate).any():
        parts.append("Packets per second show where the sender paused: few packets there are no loss.")
    text = " ".join(parts)
    return drawing("reported-network", f"network-{name}", f"Network as reported, {title}", figure, text)


def _losses(stream: InboundStatistics, span_s: tuple[float, float], name: str, title: str) -> Drawing | None:
    known = np.isfinite(stream.lost) & np.isfinite(stream.received)
    if not known.any():
        return None
    columns = int(np.clip(known.sum(), 1, STRIP_COLUMNS))
    edges = np.linspace(span_s[0], max(span_s[1], span_s[0] + 0.1), columns + 1)
    # a window belongs to the column of its middle
    middle = (stream.t_s - stream.window_s / 2)[known]
    amounts = (stream.received, stream.lost, np.nan_to_num(stream.discarded))
    got, missing, unused = (np.histogram(middle, bins=edges, weights=a[known])[0] for a in amounts)
    figure, axes = panels([0.62], 1.62)
    draw_shares(axes[0], edges, got, missing, unused)
    time_axis(axes[0], *span_s, AXIS)
    top_legend(figure, *axes[0].get_legend_handles_labels())
    received, lost, late = float(got.sum()), float(missing.sum()), float(unused.sum())
    text = (
        f"n = {counted(int(received), 'packet')} received, {lost:,.0f} lost ({loss_text(lost, received)}), "
        f"{late:,.0f} discarded as too late. A column is {edges[1] - edges[0]:.1f} s; empty where nothing was reported "
        "or came."
    )
    if lost or late:
        text += " The ticks above mark each column with any of them: a single one may be too small to be seen."
    return drawing("reported-loss", f"loss-{name}", f"Losses as reported, {title}", figure, text)


def _distribution(stream: InboundStatistics, name: str, title: str) -> Drawing | None:
    groups = [
        ("jitter (RFC 3550)", "orange", "snapshot", stream.jitter_ms),
        ("jitter-buffer delay", "blue", "window", stream.jitter_buffer_delay_ms),
    ]
    shown = [(label, colour, what, np.sort(v[np.isfinite(v)])) for label, colour, what, v in groups]
    shown = [each for each in shown if len(each[3]) > 1]
    if not shown:
        return None
    figure, axes = panels([1.0] * len(shown), 1.55 * len(shown) + 0.75)
    edges = round_edges(0.0, max(reach_of(each[3]) for each in shown))
    said = [
        draw_distribution(panel, edges, value, label, colour, what)
        for panel, (label, colour, what, value) in zip(axes, shown, strict=True)
    ]
    axes[-1].set_xlabel("jitter, delay (ms)")
    axes[-1].set_xlim(edges[0], edges[-1])
    text = " ".join(said) + f" Bars of {edges[1] - edges[0]:g} ms; their height is on a logarithmic scale."
    return drawing("reported-distribution", f"spread-{name}", f"How they are distributed, {title}", figure, text)


def _round_trips(traces: Sequence[Trace], span_s: tuple[float, float], key: str) -> Drawing | None:
    if not traces:
        return None
    figure, (axes,) = panels([1.0], 2.6)
    said = []
    seen: Counter[str] = Counter()
    for trace in traces:
        source = trace.name.partition(",")[0]
        colours = COLOURS.get(source, ("rule",))
        colour = colours[seen[source] % len(colours)]
        seen[source] += 1
        _line(axes, trace.t_s, trace.value_ms, colour, label=trace.name)
        value = np.sort(trace.value_ms[np.isfinite(trace.value_ms)])
        middle, longest = float(np.median(value)), float(value[-1])
        said.append(f"{trace.name}: n = {len(value):,}, median {middle:,.1f} ms, longest {longest:,.1f} ms.")
    axes.set_ylabel("round trip (ms)")
    from_zero(axes)
    axes.grid(axis="y")
    time_axis(axes, *span_s, AXIS)
    top_legend(figure, *axes.get_legend_handles_labels())
    text = "Round trips " + " ".join(said) + " Half of a round trip is not a one-way delay."
    return drawing("reported-rtt", f"rtt-{key}", "Round trip as reported", figure, text)
