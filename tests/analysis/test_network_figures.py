"""Drawings of packets and playout: nothing is lost, nothing is interpolated, and any series draws or is left out."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

from analysis.drawing import Drawing, Series, decimate, house_style
from analysis.network_figures import _met, draw_network
from analysis.result import Turn
from analysis.series import CallSeries

NONE = np.zeros(0)
PER_PACKET = ("arrival_s", "transit_ms", "jitter_ms", "interarrival_s", "interarrival_ms")
PER_WINDOW = (
    "playout_s",
    "jitter_buffer_delay_ms",
    "target_delay_ms",
    "concealed_ms",
    "removed_ms",
    "inserted_ms",
)
OTHERS = ("lost_s", "wait_ms", "played_s", "played_ms", "rtt_s", "rtt_ms")


def make_series(packets: int = 1500, *, call: int = 0, begin_s: float = 0.0, **changes: Any) -> CallSeries:
    """A stream of 20 ms packets, each 0 to 10 ms late, played 40 ms behind the fastest."""
    rng = np.random.default_rng(call)
    sent: Series = np.asarray(begin_s + np.arange(packets) * 0.02, dtype=np.float64)
    late_ms = rng.uniform(0, 10, packets)
    windows: Series = np.asarray(begin_s + np.arange(1, packets // 10 + 1) * 0.2, dtype=np.float64)
    series = CallSeries(
        call=call,
        arrival_s=sent + late_ms / 1000,
        transit_ms=100 + late_ms,
        jitter_ms=np.full(packets, 3.0),
        lost_s=NONE,
        playout_s=windows,
        jitter_buffer_delay_ms=np.full(len(windows), 35.0),
        target_delay_ms=np.full(len(windows), 40.0),
        concealed_ms=np.zeros(len(windows)),
        removed_ms=np.zeros(len(windows)),
        inserted_ms=np.zeros(len(windows)),
        policy="chrome",
        interarrival_s=(sent + late_ms / 1000)[1:],
        interarrival_ms=np.diff(1000 * sent + late_ms),
        packet_ms=20.0,
        wait_ms=40 - late_ms,
        played_s=sent + 0.04,
        played_ms=np.full(packets, 40.0),
        duplicate_s=NONE,
        reordered_s=NONE,
        late_s=NONE,
        longest_loss=0,
    )
    return replace(series, **changes)


def without(*names: str) -> CallSeries:
    absent: dict[str, Any] = dict.fromkeys(names, NONE)
    return make_series(**absent)


def answered(index: int, stop_s: float, latency_ms: float, call: int = 0) -> Turn:
    return Turn(
        call=call,
        index=index,
        outcome="answered",
        latency_ms=latency_ms,
        speech_stop_s=stop_s,
        audible_s=stop_s + latency_ms / 1000,
    )


def draw(*series: CallSeries, turns: tuple[Turn, ...] = ()) -> dict[str, Drawing]:
    with house_style():
        drawn = draw_network(series, turns)
    assert len({each.kind for each in drawn}) == len(drawn)
    return {each.kind: each for each in drawn}


def texts(drawing: Drawing) -> list[str]:
    return ["".join(each.itertext()) for each in ElementTree.fromstring(drawing.svg).iter("text")]


def paths(drawing: Drawing, sign: str) -> list[str]:
    found = ElementTree.fromstring(drawing.svg).iter("path")
    return [path.get("d", "") for path in found if sign in path.get("style", "")]


@pytest.mark.parametrize("lost", [3, 900, 20_000])
def test_no_loss_is_dropped_and_all_are_counted(lost: int) -> None:
    at = np.sort(np.random.default_rng(1).uniform(0, 1000, lost))
    drawings = draw(make_series(50_000, lost_s=at, longest_loss=2))
    assert f"{lost:,} lost" in drawings["loss"].caption
    assert "Most lost in a row: 2" in drawings["loss"].caption
    assert f"{lost:,}" in texts(drawings["playout"])
    assert sum(len(each.svg) for each in drawings.values()) < 500_000
    marks = np.sort([float(d.split()[1]) for d in paths(drawings["playout"], "stroke: var(--vermillion,")])
    wide = float(np.ptp(marks))
    expected = np.interp(at, [at[0], at[-1]], [marks[0], marks[-1]])
    # no loss lies further from a mark than a column is wide
    assert np.abs(expected[:, None] - marks[None, :]).min(axis=1).max() < wide / 500


def heights(d: str) -> Series:
    return np.array([float(v) for v in re.findall(r"[ML] -?[\d.]+ (-?[\d.]+)", d)])


@pytest.mark.parametrize("kind", ["lost_s", "late_s"])
def test_one_loss_in_an_hour_is_marked_and_its_share_is_not_made_larger(kind: str) -> None:
    colour = "vermillion" if kind == "lost_s" else "orange"
    fields: dict[str, Any] = {kind: np.array([1800.0])}
    strip = draw(make_series(180_000, **fields))["loss"]
    tall = np.ptp(heights(max(paths(strip, "fill: var(--sky,"), key=len)))
    (tick,) = [d for d in paths(strip, f"stroke: var(--{colour},") if d.count("L") == 1]
    assert np.ptp(heights(tick)) == pytest.approx(0.18 * tall, rel=0.02)
    assert heights(tick).max() < heights(max(paths(strip, "fill: var(--sky,"), key=len)).min()  # above the axis
    (area,) = [d for d in paths(strip, f"fill: var(--{colour},") if d.count("L") > 4]
    # one of the 562 packets of a column
    assert np.ptp(heights(area)) == pytest.approx(tall / 562, abs=0.02)


def test_half_of_the_packets_lost_is_half_of_the_height() -> None:
    series = make_series(3000)
    strip = draw(make_series(3000, lost_s=series.arrival_s, longest_loss=1))["loss"]
    (area,) = [d for d in paths(strip, "fill: var(--vermillion,") if d.count("L") > 4]
    assert np.ptp(heights(area)) == pytest.approx(
        np.ptp(heights(max(paths(strip, "fill: var(--sky,"), key=len))), rel=0.01
    )


def test_a_pause_breaks_the_lines() -> None:
    series = make_series()
    quiet = (series.playout_s > 10) & (series.playout_s < 14)
    gap = (series.played_s > 10) & (series.played_s < 14)
    paused = replace(
        series,
        jitter_buffer_delay_ms=np.where(quiet, np.nan, series.jitter_buffer_delay_ms),
        played_ms=np.where(gap, np.nan, series.played_ms),
    )
    for label, colour in (("target", "orange"), ("played", "blue")):
        whole, broken = (paths(draw(each)["playout"], f"stroke: var(--{colour},") for each in (series, paused))
        assert next(d.count("M") for d in whole if "L" in d) == 1, label
        assert any(d.count("M") == 2 for d in broken), label


def test_decimation_draws_nothing_across_a_pause() -> None:
    t = np.concatenate([np.arange(20_000) * 0.02, 1000 + np.arange(20_000) * 0.02])
    kept_t, kept = decimate(t, np.ones(len(t)))
    inside = (kept_t > 401) & (kept_t < 999)
    assert np.isnan(kept[inside]).all()
    assert inside.any()


def test_what_happened_to_the_sound_has_a_lane_with_its_sum_and_what_did_not_is_said() -> None:
    windows = len(make_series().playout_s)
    concealed, inserted = np.zeros(windows), np.zeros(windows)
    concealed[[3, 90]], inserted[5] = (20.0, 60.0), 31.4
    drawing = draw(make_series(concealed_ms=concealed, inserted_ms=inserted, late_s=np.array([3.0, 3.1])))["playout"]
    shown = texts(drawing)
    assert {"concealed", "80 ms", "inserted", "31 ms", "too late", "2"} <= set(shown)
    assert not {"removed", "lost"} & set(shown)
    assert "Nothing was removed, lost." in drawing.caption


def test_each_turn_is_marked_and_the_slowest_named() -> None:
    turns = (answered(0, 4.0, 700.0), answered(1, 12.0, 1538.4), answered(2, 20.0, 900.0), answered(0, 8.0, 9e3, 1))
    drawings = draw(make_series(), turns=turns)
    assert {"turn 0", "turn 1, slowest: 1,538 ms", "turn 2"} <= set(texts(drawings["playout"]))
    assert "turn 1 of call 0, 1,538 ms" in drawings["close-up"].title
    # 12.0 - 0.7 to 13.54 + 1.5 s, 50 packets a second
    assert re.search(r"n = 18[5-9] packets", drawings["close-up"].caption)


def test_of_many_turns_only_the_slowest_is_named() -> None:
    turns = tuple(answered(i, 1 + i * 10.0, 800.0 + i % 7) for i in range(150))
    drawing = draw(make_series(80_000), turns=turns)["playout"]
    assert [text for text in texts(drawing) if "turn " in text] == ["turn 6, slowest: 806 ms"]
    assert len(drawing.svg) < 200_000


def test_one_stall_does_not_flatten_the_rest_and_is_counted() -> None:
    series = make_series()
    transit, between = series.transit_ms.copy(), series.interarrival_ms.copy()
    transit[700] += 5000
    between[700] += 5000
    drawings = draw(replace(series, transit_ms=transit, interarrival_ms=between))
    assert "1 packet arrived later than the axis shows, at most 5,0" in drawings["playout"].caption
    assert "1 time beyond the axis" in drawings["arrival"].caption
    assert any("1 more up to 5,0" in text for text in texts(drawings["delay"]))
    ticks = [float(text) for text in texts(drawings["playout"]) if re.fullmatch(r"\d+", text)]
    assert max(ticks) < 500


def test_percentiles_of_the_histogram_are_those_of_the_packets() -> None:
    transit = np.concatenate([np.full(940, 10.0), np.full(45, 30.0), np.full(15, 90.0)])
    waits = 100 - transit
    caption = draw(make_series(1000, transit_ms=transit, wait_ms=waits))["delay"].caption
    assert "n = 1,000 packets, P50 0.0 ms, P95 20.0 ms, P99 80.0 ms, longest 80.0 ms" in caption
    assert "P50 90.0 ms, P95 90.0 ms" in caption


def test_time_between_packets_is_told_against_the_packet_time() -> None:
    drawing = draw(make_series(rtt_s=np.array([1.0, 2.0]), rtt_ms=np.array([40.0, 42.0])))["arrival"]
    assert "packet time, 20 ms" in texts(drawing)
    assert "n = 1,499, median 20.0 ms" in drawing.caption
    assert "Round trip by RTCP: n = 2, median 41.0 ms, longest 42.0 ms" in drawing.caption


@pytest.mark.parametrize(("ppm", "way"), [(100.0, "rises"), (-100.0, "falls")])
def test_a_drift_of_the_lowest_delay_is_said(ppm: float, way: str) -> None:
    series = make_series(60_000)
    drift: Series = series.arrival_s * ppm / 1000
    caption = draw(replace(series, transit_ms=series.transit_ms + drift))["playout"].caption
    found = re.search(rf"lowest delay {way} by (\d+) ms", caption)
    # the ends are the lowest of a tenth of the call each: a tenth to a fifth less than the whole
    assert found is not None
    assert 95 < float(found[1]) < 121
    assert "The lowest delay" not in draw(series)["playout"].caption


def test_a_call_without_packets_draws_nothing() -> None:
    assert draw(without(*PER_PACKET, *PER_WINDOW, *OTHERS)) == {}


def test_a_call_of_losses_alone_is_a_strip() -> None:
    drawn = draw(replace(without(*PER_PACKET, *PER_WINDOW, *OTHERS), lost_s=np.array([3.0, 3.02])))
    assert list(drawn) == ["loss"]
    assert "0 packets received, 2 lost (100 %)" in drawn["loss"].caption


def test_a_single_packet_draws() -> None:
    one = replace(
        without(*PER_PACKET, *PER_WINDOW, *OTHERS),
        arrival_s=np.array([3.0]),
        transit_ms=np.array([9.0]),
        jitter_ms=np.zeros(1),
    )
    assert list(draw(one)) == ["playout", "loss"]
    assert "n = 1 packet," in draw(one)["playout"].caption


def test_playout_without_packets_and_packets_without_playout_draw() -> None:
    assert list(draw(without(*PER_PACKET, *OTHERS))) == ["playout", "delay"]
    assert list(draw(without(*PER_WINDOW, *OTHERS))) == ["playout", "arrival", "loss", "delay"]


def test_times_before_zero_stand_on_the_axis() -> None:
    drawing = draw(make_series(begin_s=-20.0))["playout"]
    assert "\u221220" in texts(drawing) or "\u221215" in texts(drawing)


def test_a_long_call_reads_in_minutes_and_is_small() -> None:
    drawings = draw(make_series(180_000))
    assert "30:00" in texts(drawings["playout"])
    assert "call time (min:s)" in texts(drawings["playout"])
    assert sum(len(each.svg) for each in drawings.values()) < 500_000


def test_of_many_calls_three_are_drawn_and_all_are_pooled() -> None:
    with house_style():
        four = draw_network([make_series(call=call) for call in range(4)])
        six = draw_network([make_series(call=call) for call in range(6)])
    assert [each.kind for each in four].count("playout") == 4
    assert [each.title for each in six if each.kind == "loss"] == [f"Losses, call {call}" for call in range(3)]
    assert six[-1].title == "How delays are distributed, all 6 calls"
    assert "n = 9,000 packets" in six[-1].caption


def test_a_drawing_is_the_same_each_time() -> None:
    assert draw(make_series()) == draw(make_series())


def test_a_close_up_keeps_the_line_that_runs_through_it() -> None:
    # one piece from the beginning to the end of the call: only its edges are points
    series = make_series(played_s=np.array([0.04, 30.04]), played_ms=np.array([40.0, 70.0]))
    close_up = draw(series, turns=(answered(0, 15.0, 500.0),))["close-up"]
    line = paths(close_up, "stroke: var(--blue,")[0]
    points = np.array([[float(v) for v in pair] for pair in re.findall(r"[ML] (-?[\d.]+) (-?[\d.]+)", line)])
    assert len(points) == 2
    assert np.ptp(points[:, 0]) > 400  # from one side of the figure to the other


def test_a_line_cut_at_a_window_meets_its_ends_at_the_value_between_and_keeps_gaps() -> None:
    t, value = np.array([0.0, 10.0, 11.0, 12.0, 20.0]), np.array([0.0, 100.0, np.nan, 50.0, 50.0])
    found = _met(t, value, 5.0, 11.5, 16.0)
    assert found[0].tolist() == [0, 5, 10, 11, 12, 16, 20]
    assert found[1] == pytest.approx([0, 50, 100, np.nan, 50, 50, 50], nan_ok=True)


def frame_of(panel: int, drawing: Drawing) -> tuple[float, float]:
    """Upper and lower end of the left spine of a panel."""
    spines = [d for d in paths(drawing, "stroke: var(--rule,") if d.count("L") == 1 and "Z" not in d.upper()]
    upright = [heights(d) for d in spines if len(set(re.findall(r"[ML] (-?[\d.]+)", d))) == 1]
    found = sorted((float(y.min()), float(y.max())) for y in upright if np.ptp(y) > 40)
    return found[panel]


def test_dots_at_the_ends_of_the_axis_are_whole() -> None:
    series = make_series(40, transit_ms=np.where(np.arange(40) % 2, 100.0, 240.0))
    drawing = draw(replace(series, played_ms=np.full(40, 60.0)))["playout"]
    top, bottom = frame_of(0, drawing)
    (dots,) = [d for d in paths(drawing, "stroke: var(--sky,") if d.count("M") == 40]
    y = heights(dots)
    assert top + 2.5 <= y.min() < y.max() <= bottom - 2.5  # a dot is 4.5 points wide


def test_a_stall_of_the_network_does_not_break_the_line_of_jitter_but_a_pause_of_the_sender_does() -> None:
    for between, pieces in ((5000.0, 1), (np.nan, 2)):
        series = make_series(3000)
        arrival, gaps = series.arrival_s.copy(), series.interarrival_ms.copy()
        arrival[1500:] += 5
        gaps[1499] = between
        drawing = draw(replace(series, arrival_s=arrival, interarrival_s=arrival[1:], interarrival_ms=gaps))["arrival"]
        line = max(paths(drawing, "stroke: var(--orange,"), key=len)
        assert line.count("M") == pieces


def test_large_numbers_are_written_out() -> None:
    found = texts(draw(make_series(rtt_s=np.arange(20.0), rtt_ms=np.linspace(0, 4e6, 20)))["arrival"])
    assert "4,000,000" in found
    assert not any(re.fullmatch(r"1e\d+", text) for text in found)


def test_of_a_few_packets_all_that_the_legend_names_is_drawn() -> None:
    series = make_series(4, playout_s=np.array([0.06]), jitter_buffer_delay_ms=np.array([10.0]))
    one = replace(
        series,
        target_delay_ms=np.array([80.0]),
        concealed_ms=np.zeros(1),
        removed_ms=np.zeros(1),
        inserted_ms=np.array([8.0]),
    )
    drawing = draw(one)["playout"]
    assert {"target delay", "inserted", "8 ms"} <= set(texts(drawing))
    marks = [each.get("style", "") for each in ElementTree.fromstring(drawing.svg).iter("use")]
    assert any("--orange" in style for style in marks)  # the target of the one window is a dot
    assert any(d.count("L") > 2 for d in paths(drawing, "fill: var(--green,"))


def test_what_is_not_among_the_received_is_said() -> None:
    caption = draw(make_series(100, soundless=50, srtp_discarded=1))["loss"].caption
    assert "50 more packets without sound (such as comfort noise) left out." in caption
    assert "1 more packet discarded by SRTP" in caption
    assert "SRTP" not in draw(make_series(100))["loss"].caption
    assert "without sound" not in draw(make_series(100))["loss"].caption


def test_legends_are_in_view_on_a_screen_that_shows_two_thirds_of_the_figure() -> None:
    drawings = draw(make_series(2000, late_s=np.array([3.0])), turns=(answered(0, 15.0, 500.0),))
    for drawing in drawings.values():
        wide = float(drawing.svg.partition('viewBox="')[2].split()[2])
        for text in ElementTree.fromstring(drawing.svg).iter("text"):
            words = "".join(text.itertext())
            if words.startswith(
                (
                    "P50",
                    "P99",
                    "packet arrives",
                    "packet time",
                    "leaves",
                    "target",
                    "speech_stop",
                    "received",
                    "lost",
                    "to the",
                )
            ):
                assert float(text.get("x", "nan")) < 0.6 * wide, words
