"""The packet series of calls or streams in, drawings of their network and of their jitter buffer out.

Sources: RFC 3550 appendix A.8 (jitter); W3C webrtc-stats for delays and for what was concealed, inserted and removed.
A delay counts from the fastest packet of its stream: it is no one-way delay, which one clock cannot tell.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from analysis.counting import counted
from analysis.drawing import (
    COLUMNS,
    GAP_S,
    MAX_DOTS,
    PALETTE,
    Drawing,
    Series,
    draw_dots,
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
    limit_values,
    loss_text,
    mark_turns,
    reach_of,
    round_edges,
    slowest_turn,
    total_of,
)
from analysis.result import Turn
from analysis.series import CallSeries
from analysis.statistics import nearest_rank

__all__ = ["draw_close_up", "draw_histogram", "draw_network"]

MAX_CALLS = 4  # up to so many calls each get their own drawings
FIRST_CALLS = 3  # of more, the first ones and the pooled distribution
LEAST_PACKETS = 5  # in the time of one column of a strip of losses
BEFORE_S, AFTER_S = 0.7, 1.5  # a turn, in its close-up
LONG_ENOUGH_S = 12.0  # a shorter call needs no close-up
FLOOR_SHIFT_MS = 15.0  # of the smallest delay over a call; more is said


def draw_network(series: Sequence[CallSeries], turns: Sequence[Turn] = ()) -> list[Drawing]:
    """The drawings of each call: delays, arrivals, losses, histogram; of many calls the first ones' and one of all.

    The slowest turn is drawn close up as well: of each call, of many calls that of all.

    A drawing that would be empty is left out. The same input gives the same text.
    """
    several = len(series) > MAX_CALLS
    drawn: list[Drawing | None] = []
    if several:
        slowest = max(filter(None, (slowest_turn(turns, s.call) for s in series)), key=_latency_ms, default=None)
        drawn += [draw_close_up(s, turns) for s in series if slowest is not None and s.call == slowest.call]
    for each in series[: FIRST_CALLS if several else MAX_CALLS]:
        close_up = None if several else draw_close_up(each, turns)
        drawn += [_delays(each, turns), close_up, _arrival(each, turns), _losses(each)]
        drawn.append(draw_histogram([each], str(each.call), each.title))
    if several:
        drawn.append(draw_histogram(series, "pooled", f"all {len(series):,} calls"))
    return [each for each in drawn if each is not None]


def _latency_ms(turn: Turn) -> float:
    return turn.latency_ms or 0.0


def draw_close_up(series: CallSeries, turns: Sequence[Turn]) -> Drawing | None:
    """The delays around the slowest turn of a call; None where no turn was answered or the call is short."""
    slowest = slowest_turn(turns, series.call)
    begin_s, end_s = series.span_s
    if slowest is None or slowest.speech_stop_s is None or slowest.audible_s is None:
        return None
    window = slowest.speech_stop_s - BEFORE_S, slowest.audible_s + AFTER_S
    if end_s - begin_s < LONG_ENOUGH_S or window[1] - window[0] > 0.7 * (end_s - begin_s):
        return None
    part = _between(series, *window)
    if not len(part.arrival_s):
        return None
    return _delays(part, turns, window=window, close_up=slowest)


def _between(series: CallSeries, begin_s: float, end_s: float) -> CallSeries:
    """The part of the series that a window holds; delays still count from the fastest packet of the call."""

    def cut(t: Series, *values: Series) -> list[Series]:
        inside = (t >= begin_s) & (t <= end_s)
        return [v[inside] if len(v) == len(t) else v for v in (t, *values)]

    def times(t: Series | None) -> Series | None:
        return None if t is None else cut(t)[0]

    arrival_s, transit_ms, jitter_ms = cut(series.arrival_s, series.transit_ms, series.jitter_ms)
    playout_s, delay_ms, target_ms, concealed_ms, removed_ms, inserted_ms = cut(
        series.playout_s,
        series.jitter_buffer_delay_ms,
        series.target_delay_ms,
        series.concealed_ms,
        series.removed_ms,
        series.inserted_ms,
    )
    played_s, played_ms = cut(*_met(series.played_s, series.played_ms, begin_s, end_s))
    return replace(
        series,
        arrival_s=arrival_s,
        transit_ms=transit_ms - np.nanmin(series.transit_ms) if len(series.transit_ms) else transit_ms,
        jitter_ms=jitter_ms,
        lost_s=cut(series.lost_s)[0],
        playout_s=playout_s,
        jitter_buffer_delay_ms=delay_ms,
        target_delay_ms=target_ms,
        concealed_ms=concealed_ms,
        removed_ms=removed_ms,
        inserted_ms=inserted_ms,
        played_s=played_s,
        played_ms=played_ms,
        duplicate_s=times(series.duplicate_s),
        reordered_s=times(series.reordered_s),
        late_s=times(series.late_s),
    )


def _met(t: Series, value: Series, *bounds_s: float) -> tuple[Series, Series]:
    """The line with a point where it meets each bound, so that a cut there leaves nothing of it out."""
    for bound in bounds_s:
        joined = np.isfinite(value[:-1]) & np.isfinite(value[1:])
        at = np.flatnonzero(joined & (t[:-1] < bound) & (t[1:] > bound))
        part = (bound - t[at]) / (t[at + 1] - t[at])
        between = value[at] + part * (value[at + 1] - value[at])
        t, value = np.insert(t, at + 1, bound), np.insert(value, at + 1, between)
    return t, value


def _delays(
    series: CallSeries,
    turns: Sequence[Turn],
    *,
    window: tuple[float, float] | None = None,
    close_up: Turn | None = None,
) -> Drawing | None:
    """Arrival delay of each packet, what the jitter buffer aimed at and reached, and what it did to the sound."""
    n, windows = len(series.arrival_s), len(series.playout_s)
    if not n and not windows:
        return None
    lanes = _lanes(series)
    heights = [PANEL_IN] + ([LANE_IN * len(lanes)] if lanes else [])
    figure, axes = panels(heights, sum(heights) + 1.25)
    upper = axes[0]
    dense = _draw_arrivals(upper, series, absolute=close_up is not None)
    known = _draw_buffer(upper, series)
    begin_s, end_s = window or series.span_s
    time_axis(axes[-1], begin_s, end_s, series.axis)
    over = _limit_delay(upper, series)
    upper.set_ylabel("delay (ms)")
    upper.grid(axis="y")
    if lanes:
        draw_lanes(axes[1], lanes, (begin_s, end_s))
    mark_turns(axes, turns, series.call)
    top_legend(figure, *upper.get_legend_handles_labels())
    caption = _delays_caption(series, known=known, dense=dense, over=over, lanes=lanes)
    if close_up is None:
        return drawing("playout", f"playout-{series.call}", f"Arrival and playout, {series.title}", figure, caption)
    latency = f"{close_up.latency_ms or 0:,.0f} ms"
    title = f"The slowest turn close up: turn {close_up.index} of {series.title}, {latency}"
    caption = f"Arrival and playout around this turn. {caption}"
    return drawing("close-up", f"close-up-{series.call}", title, figure, caption)


def _draw_arrivals(axes: Any, series: CallSeries, *, absolute: bool) -> bool:
    if not len(series.arrival_s):
        return False
    transit = series.transit_ms if absolute else series.transit_ms - np.nanmin(series.transit_ms)
    return draw_dots(axes, series.arrival_s, transit, "sky", label="packet arrives, above the fastest")


def _draw_buffer(axes: Any, series: CallSeries) -> bool:
    """The lines of the jitter buffer; True where the delay with which sound left it is among them."""
    t = series.playout_s
    known = bool(np.isfinite(series.played_ms).any())
    if known:
        label = "leaves the jitter buffer, above the fastest"
        draw_line(axes, series.played_s, series.played_ms, "blue", label=label)
    elif np.isfinite(series.jitter_buffer_delay_ms).any():
        draw_line(axes, t, series.jitter_buffer_delay_ms, "blue", label="jitter-buffer delay")
    target = np.where(np.isnan(series.jitter_buffer_delay_ms), np.nan, series.target_delay_ms)
    if np.isfinite(target).any():
        draw_line(axes, t, target, "orange", label="target delay", dashes=(4, 2))
    return known


def _limit_delay(axes: Any, series: CallSeries) -> int:
    if not len(series.arrival_s):
        from_zero(axes, least=10.0)
        return 0
    transit = series.transit_ms - np.nanmin(series.transit_ms)
    others = [series.played_ms, series.target_delay_ms]
    return limit_values(axes, series.arrival_s, transit, others, "arrives later than the axis shows")


def _lanes(series: CallSeries) -> list[Lane]:
    """What happened to the sound, and to packets; nothing that did not happen."""
    t = series.playout_s
    step_s = float(np.median(np.diff(t))) if len(t) > 1 else 0.2
    lanes = [
        Lane("concealed", "vermillion", t, series.concealed_ms, step_s),
        Lane("removed", "purple", t, series.removed_ms, step_s),
        Lane("inserted", "green", t, series.inserted_ms, step_s),
        Lane("lost", "vermillion", series.lost_s),
    ]
    if series.late_s is not None:
        lanes.append(Lane("too late", "orange", series.late_s))
    return [lane for lane in lanes if total_of(lane) > 0]


def _delays_caption(series: CallSeries, *, known: bool, dense: bool, over: int, lanes: Sequence[Lane]) -> str:
    n = len(series.arrival_s)
    policy = f"Playout policy {plain(series.policy, 40)} (modelled)"
    said = [f"n = {counted(n, 'packet')}, {counted(len(series.playout_s), 'window')}. {policy}."]
    if known:
        said.append(
            "Both count from the fastest packet of the stream, so the height of the line above the packets is the time "
            "that they wait in the buffer; a packet above the line is too late."
        )
    said.append("The target is what the buffer aims to hold." if np.isfinite(series.target_delay_ms).any() else "")
    if over:
        said.append(f"{counted(over, 'packet')} arrived later than the axis shows, at most {_most(series):,.0f} ms.")
    if dense:
        said.append(f"Of so many packets the range in each {COLUMNS}th of the time is drawn.")
    if lanes:
        said.append("Lanes: height is the amount (any is at least a quarter high), on the right the sum.")
    absent = {"concealed", "removed", "inserted", "lost"} - {lane.label for lane in lanes}
    if absent and len(series.playout_s):
        order = [name for name in ("concealed", "removed", "inserted", "lost") if name in absent]
        said.append(f"Nothing was {', '.join(order)}.")
    said.append(_floor(series))
    return " ".join(filter(None, said))


def _most(series: CallSeries) -> float:
    return float(np.nanmax(series.transit_ms) - np.nanmin(series.transit_ms))


def _floor(series: CallSeries) -> str:
    """What the lowest delay at the end is above that at the beginning: another route, or clocks of another rate."""
    t, transit = series.arrival_s, series.transit_ms
    if len(t) < 200 or t[-1] - t[0] < LONG_ENOUGH_S:
        return ""
    tenth = (t[-1] - t[0]) / 10
    shift = float(np.min(transit[t >= t[-1] - tenth]) - np.min(transit[t <= t[0] + tenth]))
    if abs(shift) < FLOOR_SHIFT_MS:
        return ""
    ppm = 1000 * shift / float(t[-1] - t[0])
    way = "rises" if shift > 0 else "falls"
    return (
        f"The lowest delay {way} by {abs(shift):,.0f} ms over the whole: a change on the path, or, if it does so "
        f"steadily, a sender's clock that is {abs(ppm):,.0f} ppm {'slow' if shift > 0 else 'fast'}."
    )


def _arrival(series: CallSeries, turns: Sequence[Turn]) -> Drawing | None:
    """Time between packets, RFC 3550 jitter and, where known, round trips."""
    n = len(series.arrival_s)
    if n < 2:
        return None
    gaps = bool(np.isfinite(series.interarrival_ms).any())
    heights = [*([1.7] if gaps else []), 1.3, *([1.0] if len(series.rtt_s) else [])]
    figure, axes = panels(heights, sum(heights) + 1.2)
    rest = list(axes)
    said = [f"n = {counted(n, 'packet')}."]
    if gaps:
        said += _draw_interarrival(rest.pop(0), series)
    jitter = rest.pop(0)
    draw_line(jitter, *_known_jitter(series), "orange", width=1.4, breaks=False)
    jitter.set_ylabel("jitter\n(ms)")
    said.append(
        f"Jitter (RFC 3550) follows the deviation of arrivals from timestamps with a memory of some 16 packets: median "
        f"{float(np.median(series.jitter_ms)):.1f} ms, highest {float(series.jitter_ms.max()):.1f} ms."
    )
    if rest:
        draw_dots(rest[0], series.rtt_s, series.rtt_ms, "purple")
        rest[0].set_ylabel("round trip\n(ms)")
        said.append(
            f"Round trip by RTCP: n = {len(series.rtt_s):,}, median {float(np.median(series.rtt_ms)):.1f} ms, longest "
            f"{float(series.rtt_ms.max()):.1f} ms."
        )
    time_axis(axes[-1], *series.span_s, series.axis)
    for panel in axes:
        panel.grid(axis="y")
        panel.locator_params(axis="y", nbins=4)
    from_zero(jitter)
    for panel in rest:
        from_zero(panel)
    mark_turns(axes, turns, series.call)
    handles = axes[0].get_legend_handles_labels()
    if handles[0]:
        top_legend(figure, *handles)
    title = f"Time between packets, and jitter, {series.title}" if gaps else f"Jitter, {series.title}"
    return drawing("arrival", f"arrival-{series.call}", title, figure, " ".join(said))


def _known_jitter(series: CallSeries) -> tuple[Series, Series]:
    """Jitter over time, broken where the sender paused or another stream began, but not where packets were held up."""
    held_up = series.interarrival_s[series.interarrival_ms > 1000 * GAP_S]
    t, value = series.arrival_s, series.jitter_ms
    gaps = np.flatnonzero(np.diff(t) > GAP_S) + 1
    gaps = gaps[~np.isin(t[gaps], held_up)]
    return np.insert(t, gaps, (t[gaps - 1] + t[gaps]) / 2), np.insert(value, gaps, np.nan)


def _draw_interarrival(axes: Any, series: CallSeries) -> list[str]:
    dense = draw_dots(axes, series.interarrival_s, series.interarrival_ms, "blue", label="to the packet before")
    gap = np.sort(series.interarrival_ms[np.isfinite(series.interarrival_ms)])
    axes.set_ylabel("time between\npackets (ms)")
    over = limit_values(axes, series.interarrival_s, series.interarrival_ms, (), "longer than the axis shows")
    said = [
        f"Time between packets: n = {len(gap):,}, median {nearest_rank(gap, 500):.1f} ms, P99 "
        f"{nearest_rank(gap, 990):.1f} ms, longest {gap[-1]:.1f} ms."
    ]
    if series.packet_ms is not None:
        label = f"packet time, {series.packet_ms:g} ms"
        axes.axhline(
            series.packet_ms, color=PALETTE["orange"], linestyle=(0, (4, 2)), linewidth=1.2, label=label, zorder=2
        )
        said.append(
            "A dot above the dashed line came late against the one before, one below it caught up; after a loss the "
            "time is a whole number of packets longer. Pauses of the sender are left out."
        )
    if over:
        said.append(f"{counted(over, 'time')} beyond the axis.")
    if dense:
        said.append(f"Of more than {MAX_DOTS:,} the range in each {COLUMNS}th of the time is drawn.")
    return said


def _losses(series: CallSeries) -> Drawing | None:
    """Received, lost and late packets as shares of what was due, over time; duplicates and reordered ones below."""
    n, lost = len(series.arrival_s), len(series.lost_s)
    if not n and not lost:
        return None
    begin, end = series.span_s
    late = series.late_s if series.late_s is not None else np.zeros(0)
    edges = np.linspace(begin, max(end, begin + 0.02), _strip_columns(series) + 1)
    got, missing, unused = (np.histogram(t, bins=edges)[0] for t in (series.arrival_s, series.lost_s, late))
    lower = [("reordered", "purple", series.reordered_s), ("duplicate", "green", series.duplicate_s)]
    rows = [Lane(name, colour, t) for name, colour, t in lower if t is not None and len(t)]
    heights = [0.62, *([LANE_IN * len(rows)] if rows else [])]
    figure, axes = panels(heights, sum(heights) + 1.0)
    draw_shares(axes[0], edges, got, missing, unused)
    if rows:
        draw_lanes(axes[1], rows, (begin, end))
    time_axis(axes[-1], begin, end, series.axis)
    top_legend(figure, *axes[0].get_legend_handles_labels())
    caption = _losses_caption(series, float(edges[1] - edges[0]))
    return drawing("loss", f"loss-{series.call}", f"Losses, {series.title}", figure, caption)


def _strip_columns(series: CallSeries) -> int:
    """As many as print can tell apart, but not fewer than some packets in each."""
    if series.packet_ms:
        begin, end = series.span_s
        wanted = (end - begin) * 1000 / (LEAST_PACKETS * series.packet_ms)
    else:
        wanted = (len(series.arrival_s) + len(series.lost_s)) / LEAST_PACKETS
    return int(np.clip(wanted, 1, STRIP_COLUMNS))


def _losses_caption(series: CallSeries, column_s: float) -> str:
    n, lost = len(series.arrival_s), len(series.lost_s)
    said = [f"n = {counted(n, 'packet')} received, {lost:,} lost ({loss_text(lost, n)})"]
    if series.late_s is not None:
        said.append(f"{len(series.late_s):,} too late to be played")
    if series.reordered_s is not None:
        said.append(f"{len(series.reordered_s):,} reordered")
    if series.duplicate_s is not None:
        said.append(f"{len(series.duplicate_s):,} duplicate")
    text = ", ".join(said) + "."
    if series.soundless:
        text += f" {counted(series.soundless, 'more packet')} without sound (such as comfort noise) left out."
    if series.srtp_discarded:
        text += (
            f" {counted(series.srtp_discarded, 'more packet')} discarded by SRTP on arrival, which lets no packet "
            "through twice: in none of these numbers."
        )
    if series.longest_loss and lost:
        text += f" Most lost in a row: {series.longest_loss:,}."
    width = f"{column_s:.1f} s" if column_s >= 1 else f"{1000 * column_s:.0f} ms"
    text += f" A column is {width}; empty where nothing came."
    if lost or (series.late_s is not None and len(series.late_s)):
        text += " The ticks above mark each column with any of them: a single one may be too small to be seen."
    return text


def draw_histogram(series: Sequence[CallSeries], key: str, title: str) -> Drawing | None:
    """How arrival delay and time in the jitter buffer are distributed, over all packets of the series."""
    transit = [s.transit_ms - np.nanmin(s.transit_ms) for s in series if len(s.transit_ms)]
    waits = [s.wait_ms if len(s.wait_ms) else s.jitter_buffer_delay_ms for s in series]
    each = "packet" if all(len(s.wait_ms) or not len(s.playout_s) for s in series) else "window"
    groups = [
        ("arrival delay above the fastest", "sky", "packet", np.concatenate(transit) if transit else np.zeros(0)),
        ("time in the jitter buffer", "blue", each, np.concatenate(waits) if waits else np.zeros(0)),
    ]
    groups = [(label, colour, what, np.sort(v[np.isfinite(v)])) for label, colour, what, v in groups]
    groups = [group for group in groups if len(group[3]) > 1]
    if not groups:
        return None
    figure, axes = panels([1.0] * len(groups), 1.55 * len(groups) + 0.75)
    low = min(0.0, *(float(group[3][0]) for group in groups))
    high = max(reach_of(group[3]) for group in groups)
    edges = round_edges(low, high)
    said = []
    for panel, (label, colour, what, value) in zip(axes, groups, strict=True):
        said.append(draw_distribution(panel, edges, value, label, colour, what))
    axes[-1].set_xlabel("delay (ms)")
    axes[-1].set_xlim(edges[0], edges[-1])
    policies = ", ".join(sorted({plain(s.policy, 40) for s in series if len(s.playout_s)}))
    caption = " ".join(said) + f" Bars of {edges[1] - edges[0]:g} ms; their height is on a logarithmic scale."
    caption += f" Playout policy {policies} (modelled)." if policies and len(groups) > 1 else ""
    return drawing("delay", f"delay-{key}", f"How delays are distributed, {title}", figure, caption)
