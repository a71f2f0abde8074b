"""Drawings: what they must show, what they must never lose, and that they stay small and the same each time."""

from __future__ import annotations

import itertools
import re
from typing import Any
from xml.etree import ElementTree

import matplotlib
import numpy as np
import pytest

import analysis.drawing as drawing_module
import analysis.figures as figures_module
from analysis.drawing import PALETTE, Drawing, decimate, plain
from analysis.figures import CallSeries, draw_all
from analysis.result import Boundaries, Boundary, Result, Source, Turn
from analysis.statistics import summarize


def make_result(*turns: Turn) -> Result:
    ends = Boundaries(Boundary("speech_stop", "m", "sent"), Boundary("audible_played", "m", "modelled"), "chrome")
    return Result(Source("session"), ends, turns, summarize(turns))


def answered(index: int, latency_ms: float = 800.0, **fields: Any) -> Turn:
    stages = {"packetization": 20.0, "remote_response": latency_ms - 70.0, "jitter_buffer": 30.0, "output": 20.0}
    start = 5.0 + 6 * index
    values: dict[str, Any] = {
        "call": 0,
        "index": index,
        "outcome": "answered",
        "latency_ms": latency_ms,
        "uncertainty_ms": 4.0,
        "stages_ms": stages,
        "speech_stop_s": start,
        "audible_s": start + latency_ms / 1000,
    }
    return Turn(**(values | fields))


def make_series(call: int = 0, packets: int = 500, lost: int = 3) -> CallSeries:
    rng = np.random.default_rng(call)
    t = np.arange(packets) * 0.02
    windows = np.arange(1, max(2, packets // 10)) * 0.2
    delay = 40 + rng.standard_normal(len(windows))
    delay[2:4] = np.nan
    return CallSeries(
        call=call,
        arrival_s=t,
        transit_ms=100 + rng.gamma(2.0, 3.0, packets),
        jitter_ms=rng.gamma(2.0, 1.0, packets),
        lost_s=np.sort(rng.uniform(0, packets * 0.02, lost)),
        playout_s=windows,
        jitter_buffer_delay_ms=delay,
        target_delay_ms=np.full(len(windows), 40.0),
        concealed_ms=np.where(np.arange(len(windows)) == 1, 20.0, 0.0),
        policy="chrome",
    )


def drawn(kind: str, result: Result, *series: CallSeries) -> list[Drawing]:
    return [each for each in draw_all(result, series) if each.kind == kind]


def texts(svg: str) -> list[str]:
    return ["".join(each.itertext()) for each in ElementTree.fromstring(svg).iter("text")]


def test_every_kind_is_drawn_with_units_on_the_axes_and_n_in_the_caption() -> None:
    drawings = draw_all(make_result(*(answered(i, 700.0 + i) for i in range(5))), [make_series()])
    kinds = ["waterfall", "ecdf", "session", "playout", "arrival", "loss", "delay"]
    assert [each.kind for each in drawings] == kinds
    for each in drawings:
        assert "n = " in each.caption
        labels = [text for text in texts(each.svg) if re.search(r"\((ms|s|number)\)", text)]
        assert len(labels) >= 1


def test_a_drawing_is_the_same_each_time_and_leaves_the_settings_of_matplotlib_alone() -> None:
    result, series = make_result(answered(0), answered(1, 900.0)), [make_series()]
    before = dict(matplotlib.rcParams)
    assert draw_all(result, series) == draw_all(result, series)
    assert dict(matplotlib.rcParams) == before


def test_drawings_use_the_colours_of_the_page_and_nothing_from_outside() -> None:
    drawings = draw_all(make_result(answered(0), answered(1, 900.0)), [make_series()])
    ids = [name for each in drawings for name in re.findall(r'\bid="([^"]*)"', each.svg)]
    assert len(ids) == len(set(ids))
    for each in drawings:
        assert "http" not in each.svg
        assert "font-family" not in each.svg
        assert not re.search(r"(?:fill|stroke): #", each.svg), "a colour that neither light nor dark can change"
        used = set(re.findall(r"url\(#([^)]*)\)|href=\"#([^\"]*)\"", each.svg))
        assert {a or b for a, b in used} <= set(re.findall(r'\bid="([^"]*)"', each.svg))


def bars(drawing: Drawing, colour: str) -> list[tuple[float, float]]:
    """Left and right edge of each filled bar of a colour, in the units of the drawing."""
    found = []
    for path in ElementTree.fromstring(drawing.svg).iter("path"):
        if f"fill: var(--{colour}," in path.get("style", "") and path.get("clip-path"):
            x = [float(v) for v in re.findall(r"[ML] (-?[\d.]+) ", path.get("d", ""))]
            found.append((min(x), max(x)))
    return found


def test_stages_lie_end_to_end_in_the_waterfall() -> None:
    (drawing,) = drawn("waterfall", make_result(answered(0)))
    edges = [bars(drawing, colour)[0] for colour in ("sky", "blue", "orange", "purple")]
    for (_, end), (start, _) in itertools.pairwise(edges):
        assert start == pytest.approx(end, abs=0.02)  # two decimals are kept
    total, part = edges[-1][1] - edges[0][0], edges[1][1] - edges[1][0]
    assert part / total == pytest.approx(730 / 800, abs=1e-3)


def test_a_negative_jitter_buffer_is_drawn_backwards_and_the_output_ends_at_the_latency() -> None:
    stages = {"packetization": 20.0, "remote_response": 800.0, "jitter_buffer": -200.0, "output": 100.0}
    (drawing,) = drawn("waterfall", make_result(answered(0, 720.0, stages_ms=stages)))
    (blue,), (purple,) = bars(drawing, "blue"), bars(drawing, "purple")
    scale = (blue[1] - blue[0]) / 800
    assert purple[1] == pytest.approx(blue[1] - 100 * scale, abs=0.05)
    assert "backwards" in drawing.caption


def test_premature_and_unanswered_turns_are_marked_in_words() -> None:
    result = make_result(
        answered(0),
        Turn(call=0, index=1, outcome="premature", latency_ms=-320.0),
        Turn(call=0, index=2, outcome="no_reply"),
        Turn(call=0, index=3, outcome="media_lost", fault="agent", reason="ice_failed"),
    )
    (drawing,) = drawn("waterfall", result)
    shown = texts(drawing.svg)
    assert "premature, −320 ms" in shown
    assert "no reply" in shown
    assert "media lost (ice_failed)" in shown


def test_spans_of_the_agent_are_drawn_only_where_their_clock_was_mapped() -> None:
    span = {"name": "llm", "start_s": 5.2, "duration_ms": 100.0, "clock": "agent", "mapping": "offset"}
    note = "reported by the agent, not added up"
    (with_clock,) = drawn("waterfall", make_result(answered(0, server_spans=(span,))))
    (without,) = drawn("waterfall", make_result(answered(0, server_spans=(span | {"mapping": "none"},))))
    assert note in texts(with_clock.svg)
    assert note not in texts(without.svg)


def test_the_curve_ends_below_one_by_those_who_were_never_answered() -> None:
    turns = [answered(i) for i in range(8)] + [Turn(call=0, index=i, outcome="no_reply") for i in (8, 9)]
    (drawing,) = drawn("ecdf", make_result(*turns))
    assert "shaded: 2 of 10 never answered" in texts(drawing.svg)
    assert "n = 10 ranked turns" in drawing.caption
    assert "P95 falls on a turn without a reply" in drawing.caption
    assert drawn("ecdf", make_result(turns[-1])) == []


def test_decimation_keeps_every_extreme_and_the_order_of_time() -> None:
    t = np.arange(100_000) * 0.02
    value = np.random.default_rng(4).standard_normal(100_000)
    value[31_337], value[77_777] = 50.0, -50.0
    value[40_000:41_000] = np.nan
    kept_t, kept = decimate(t, value, columns=300)
    assert len(kept) <= 600
    assert (np.diff(kept_t) > 0).all()
    assert (np.nanmax(kept), np.nanmin(kept)) == (50.0, -50.0)
    assert np.isnan(kept).any()
    assert decimate(t[:10], value[:10]) == (pytest.approx(t[:10]), pytest.approx(value[:10]))


@pytest.mark.parametrize(
    "label", ["$\\frac{1}{0$", "</svg><script>", "a\x00\x1b\nb", "\u202egnp", "x" * 10_000, "日本語"]
)
def test_a_hostile_label_is_text_in_a_drawing(label: str) -> None:
    (drawing,) = drawn("waterfall", make_result(answered(0, language=label)))
    shown = [text for text in texts(drawing.svg) if text.startswith("0·0")]
    assert len(shown) == 1
    assert len(shown[0]) <= 16
    assert "<script" not in drawing.svg


def test_plain_text_is_one_short_line() -> None:
    assert plain("a\x00b\u202ec\nd") == "a b c d"
    assert plain("x" * 100, 10) == "x" * 9 + "…"
    assert plain(7) == "7"


def test_the_palette_is_that_of_okabe_and_ito() -> None:
    assert {PALETTE[name] for name in ("blue", "sky", "green", "orange", "vermillion", "purple")} == {
        *("#0072b2", "#56b4e9", "#009e73", "#e69f00", "#d55e00", "#cc79a7")
    }


def test_exports_exist() -> None:
    for module in (drawing_module, figures_module):
        assert all(hasattr(module, name) for name in module.__all__)
