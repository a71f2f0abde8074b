"""The report: it holds what it must, loads nothing, keeps hostile labels as text, and renders whatever the run was."""

from __future__ import annotations

from dataclasses import replace
from html.parser import HTMLParser
from typing import Any

import numpy as np
import pytest

import analysis.report as report_module
import analysis.report_words as words_module
from analysis.figures import CallSeries
from analysis.report import render_report
from analysis.result import Boundaries, Boundary, OutputDelay, Result, Source, Turn
from analysis.statistics import summarize

VOID = {"meta", "br", "img", "input", "hr", "link"}
CONDITIONS = {"network": "loopback", "command": "latency-probe demo --seed 7"}
EVIL = "<script>alert(1)</script>\"'&\x00\x1b[31m\u202e{{ 7 * 7 }}$\\frac{1}{0$"


class Page(HTMLParser):
    """A page as tags, attributes and the text of each kind of element; fails on tags that do not nest."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.text: list[str] = []
        self.captions: list[str] = []
        self.cells: list[str] = []
        self.feed(html)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)
        for name, found in (("figcaption", self.captions), ("td", self.cells)):
            if tag == name:
                found.append("")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "style" not in self.open:
            self.text.append(data)
        if "figcaption" in self.open:
            self.captions[-1] += data
        if "td" in self.open:
            self.cells[-1] += data

    def count(self, tag: str) -> int:
        return sum(name == tag for name, _ in self.tags)

    @property
    def words(self) -> str:
        return " ".join(" ".join(self.text).split())

    @property
    def kinds(self) -> list[str | None]:
        return [attrs["data-kind"] for name, attrs in self.tags if name == "figure"]


def answered(index: int, call: int = 0, latency_ms: float = 812.1, **fields: Any) -> Turn:
    stages = {"packetization": 12.0, "remote_response": latency_ms - 121.9, "leading_silence": 47.6}
    stages |= {"jitter_buffer": 42.3, "output": 20.0}
    start = 5.2041 + 6 * index
    values: dict[str, Any] = {
        "call": call,
        "index": index,
        "language": "en",
        "outcome": "answered",
        "latency_ms": latency_ms,
        "received_ms": latency_ms - 62.3,
        "uncertainty_ms": 4.243,
        "stages_ms": stages,
        "speech_stop_s": start,
        "uncertainty_parts_ms": {"onset": 1.2, "playout_model": 4.0, "output": 0.75},
        "audibility": {
            "start_dbov": -60.0,
            "end_dbov": -52.5,
            "start_shift_ms": {"-10": -0.3, "+10": 0.4},
            "end_shift_ms": {"-10": None, "+10": -0.5},
        },
        "variants_ms": {"fixed:150": 912.4},
        "reported_ms": {"e2e_latency": 640.0},
        "start_slip_ms": 0.2,
        "network": {"rtt_ms": 1.1, "jitter_ms": 0.6, "lost": 2, "concealed_ms": 0.0},
        "audible_s": start + latency_ms / 1000,
        "truth": {"received_ms": latency_ms - 62.4},
    }
    return Turn(**(values | fields))


def make_result(*turns: Turn, calls: int = 1, **fields: Any) -> Result:
    ends = Boundaries(
        Boundary("speech_stop", "client-monotonic", "sent"),
        Boundary("audible_played", "client-monotonic", "modelled"),
        "chrome",
        OutputDelay(20.0, "assumed"),
    )
    return replace(Result(Source("session", "run", "demo:", calls), ends, turns, summarize(turns)), **fields)


def make_series(call: int = 0, seconds: int = 30) -> CallSeries:
    rng = np.random.default_rng(call)
    t, windows = np.arange(50 * seconds) * 0.02, np.arange(1, 5 * seconds) * 0.2
    return CallSeries(
        call=call,
        arrival_s=t,
        transit_ms=rng.gamma(2.0, 3.0, len(t)),
        jitter_ms=rng.gamma(2.0, 1.0, len(t)),
        lost_s=np.array([3.0, 7.0]),
        playout_s=windows,
        jitter_buffer_delay_ms=40 + rng.standard_normal(len(windows)),
        target_delay_ms=np.full(len(windows), 40.0),
        concealed_ms=np.zeros(len(windows)),
        policy="chrome",
    )


MIXED = (
    *(answered(i, latency_ms=700.0 + 20 * i) for i in range(12)),
    Turn(call=0, index=12, outcome="no_reply", language="es", flags=("probe_late",)),
    Turn(call=0, index=13, outcome="premature", latency_ms=-250.0),
    Turn(call=0, index=14, outcome="not_measurable", reason="clipped"),
    Turn(call=0, index=15, outcome="media_lost", fault="agent", reason="ice_failed"),
)


@pytest.fixture(scope="module")
def html() -> str:
    return render_report(make_result(*MIXED), [make_series()], CONDITIONS)


@pytest.fixture(scope="module")
def page(html: str) -> Page:
    return Page(html)


def test_nothing_is_loaded_from_anywhere(html: str, page: Page) -> None:
    for tag, attrs in page.tags:
        assert tag not in {"script", "link", "iframe", "object", "embed", "img", "base", "form"}
        assert not {"src", "srcset", "action", "data"} & set(attrs)
        for name in ("href", "xlink:href"):
            assert (attrs.get(name) or "#").startswith("#")
        assert not any(name.startswith("on") for name in attrs)
    assert "http://" not in html
    assert "https://" not in html
    assert "@import" not in html
    assert "default-src 'none'" in html
    ids = [attrs["id"] for _, attrs in page.tags if attrs.get("id")]
    assert len(ids) == len(set(ids))


def test_the_headline_says_how_long_how_sure_and_of_how_many(page: Page) -> None:
    # 14 are ranked (12 answered, one no reply, one lost by the agent): P50 is the 7th of them, from the 3rd to the 12th
    assert "P50 user latency 820 ms n = 14 thin 95 % interval: 740 to 920 ms" in page.words
    assert "P95 user latency no reply n = 14 thin" in page.words
    assert "12 of 16 turns answered, 1 premature, 1 no reply, 1 failed, 1 not measurable" in page.words
    assert "half had the first audible speech of the reply in the caller's ear within 820 ms" in page.words
    assert "audible_played modelled; playout policy chrome; output delay 20.0 ms, assumed" in page.words
    assert "± 4.2 ms in the middle" in page.words


def test_there_is_a_figure_of_each_kind_with_n_in_its_caption(page: Page) -> None:
    assert page.kinds == ["waterfall", "ecdf", "session", "playout", "arrival", "loss", "delay"]
    assert page.count("svg") == len(page.captions) == 7
    assert all("n = " in caption for caption in page.captions)


def test_the_table_of_turns_holds_what_was_measured_and_why_not(page: Page) -> None:
    words = page.words
    for part in (
        "0·12",
        "probe late",
        "clipped",
        "ice_failed, fault: agent",
        "−250.0",
        "637.7",
        "578.1",
        "47.6",
        "42.3",
    ):
        assert part in words, part
    assert page.cells.count("4.2") == 12


def test_what_all_turns_share_is_said_once_and_takes_no_column() -> None:
    same = {"region": "eu", "channel": "pstn"}
    one = Page(render_report(make_result(*(answered(i, segment=same) for i in range(3))), [], {}))
    assert "All turns: call 0, language en, region eu, channel pstn." in one.words
    assert "turn outcome, reason, flags latency, ms" in one.words
    assert "pstn" not in one.cells
    two = [answered(0, 0, segment=same), answered(0, 1, segment=same | {"region": "us"}, language="es")]
    both = Page(render_report(make_result(*two, calls=2), [], {}))
    assert "call·turn language region outcome, reason, flags" in both.words
    assert "All turns: channel pstn." in both.words
    assert {"0·0", "1·0", "en", "es", "eu", "us"} <= set(both.cells)


def test_the_fault_is_told_however_long_the_reason() -> None:
    turn = Turn(call=0, index=0, outcome="media_lost", fault="agent", reason="r" * 500)
    assert "…, fault: agent" in Page(render_report(make_result(turn), [], {})).words


def test_packets_that_are_not_at_hand_are_missed_aloud() -> None:
    absent = render_report(make_result(answered(0)), [], {}, without_packets=["a.json", EVIL])
    assert "The packets of a.json, <script>alert(1)</script>" in Page(absent).words
    assert "are not at hand" in absent
    assert "not at hand" not in render_report(make_result(answered(0)), [make_series()], {})
    none = Page(render_report(make_result(), [], {}, without_packets=["a.json"]))
    assert "The packets of a.json are not at hand" in none.words


def test_a_long_condition_is_whole() -> None:
    words = ("options " * 250).strip()
    assert words in Page(render_report(make_result(answered(0)), [], {"agent": words})).cells


@pytest.mark.parametrize(
    "part",
    [
        "virtual microphone of the probe. Capture before that point (microphone, driver, echo canceller) is not in",
        "θ = max(F + 10 dB, −60 dBov)",
        "In this run θ was −60.0 dBov at the end of the caller's words and −52.5 dBov at the reply",
        "one clock (client-monotonic)",
        "with the policy chrome. After it 20.0 ms of output delay, assumed.",
        "playout model 4.00 4.00",
        "combined 4.24 4.24",
        "root sum of squares",
        "speech_stop, θ −10 dB −0.30",
        "first audible speech, θ +10 dB −0.50",
        "not combined with it",
        "What not to conclude",
        "Half of a round trip is not a one-way delay",
        "network loopback",
        "latency-probe demo --seed 7",
        "fixed:150 912.4 912.4 12",
        "e2e_latency 640.0 800.0 160.0 12",
        "received_ms 0.100 0.100 0.100 0.100 12",
        "Percentiles of stages do not add up",
    ],
)
def test_it_says_how_it_was_measured_and_what_it_does_not_say(page: Page, part: str) -> None:
    assert part in page.words


def test_without_truth_there_is_no_table_of_errors() -> None:
    assert "agent's own log" not in Page(render_report(make_result(answered(0, truth=None)), [], {})).words


def test_the_figures_come_from_the_turns_and_not_from_a_summary_of_somebody_else() -> None:
    lying = make_result(*MIXED, summary={"percentiles_ms": {"p50": {"value": 1.0}}})
    assert render_report(lying, [make_series()], CONDITIONS) == render_report(
        make_result(*MIXED), [make_series()], CONDITIONS
    )


def test_segments_are_shown_where_the_summary_has_them() -> None:
    by = [{"labels": {"language": "es"}, "summary": summarize([answered(0, latency_ms=1234.5)])}, {"labels": 7}, None]
    words = Page(render_report(make_result(answered(0), summary={"by": by}), [], {})).words
    assert "language = es 1,234.5 ms (thin) 1,234.5 ms (thin) 1" in words


@pytest.mark.parametrize(
    "turns",
    [
        (),
        (Turn(call=0, index=0, outcome="no_reply"),),
        (Turn(call=0, index=0, outcome="call_failed", fault="probe", reason="no_codec"),),
        tuple(Turn(call=0, index=i, outcome="not_measurable", reason="interrupted") for i in range(3)),
        (Turn(call=0, index=0, outcome="premature", latency_ms=-80.0),),
    ],
)
def test_a_run_without_a_single_answer_still_gives_a_report(turns: tuple[Turn, ...]) -> None:
    page = Page(render_report(make_result(*turns), [], {}))
    assert f"0 of {len(turns)} turn" in page.words
    assert "What not to conclude" in page.words
    assert "nan" not in page.words.lower().split()


def test_one_turn_gives_a_report_that_claims_nothing_beyond_it() -> None:
    page = Page(render_report(make_result(answered(0)), [make_series()], CONDITIONS))
    assert page.kinds == ["waterfall", "ecdf", "session", "playout", "close-up", "arrival", "loss", "delay"]
    assert "One turn says nothing about the next." in page.words
    assert "too few turns to bound" in page.words


def test_a_recording_without_stages_policy_or_network_gives_a_report() -> None:
    ends = Boundaries(
        Boundary("speech_stop", "recording", "loopback"), Boundary("audible_recorded", "recording", "loopback")
    )
    turns = [Turn(call=0, index=i, outcome="answered", latency_ms=500.0 + i, recorded_ms=500.0 + i) for i in range(3)]
    result = Result(Source("recording", "call.wav"), ends, tuple(turns), summarize(turns))
    page = Page(render_report(result, [], {}))
    assert "as it lies in the recording" in page.words
    assert "virtual microphone" not in page.words
    assert "Playout" not in page.words
    assert "not split into stages" in page.words


def test_a_hostile_label_stays_text_and_short_wherever_it_comes_from() -> None:
    label = EVIL + "A" * 10_000
    turns = [
        answered(
            i,
            language=label,
            segment={label: label},
            flags=(label,) * 30,
            reported_ms={label: 5.0},
            variants_ms={label: 7.0},
            network={label: label},
            uncertainty_parts_ms={label: 1.0},
            server_spans=({"name": label, "start_s": label},),
        )
        for i in range(3)
    ]
    turns.append(Turn(call=0, index=9, outcome="not_measurable", reason=label))
    result = make_result(*turns, source=Source("session", label, label))
    series = replace(make_series(), policy=label)
    html = render_report(result, [series], {label: label, "command": label})
    page = Page(html)
    assert page.count("script") == 0
    assert "<script>alert(1)</script>" in page.words
    assert "{{ 7 * 7 }}" in page.words
    assert not {"\x00", "\x1b", "\u202e"} & set(html)
    assert "A" * 2001 not in html
    assert max(map(len, page.cells)) <= 2000
    assert len(html) < 600_000


def test_two_thousand_turns_of_a_hundred_calls_stay_small() -> None:
    rng = np.random.default_rng(1)
    turns = [answered(i % 20, i // 20, float(rng.gamma(6, 100)) + 200) for i in range(2100)]
    html = render_report(make_result(*turns, calls=105), [make_series(call, 120) for call in range(105)], CONDITIONS)
    assert len(html.encode("utf-8")) < 8_000_000
    page = Page(html)
    assert "100 more turns stand in result.json" in page.words
    assert page.kinds.count("arrival") == page.kinds.count("playout") == 3
    assert page.kinds.count("close-up") == 1
    assert page.kinds.count("delay") == 4
    assert "bootstrap-calls" in page.words


def test_the_same_run_gives_the_same_text(html: str) -> None:
    assert render_report(make_result(*MIXED), [make_series()], CONDITIONS) == html


def test_exports_exist() -> None:
    for module in (report_module, words_module):
        assert all(hasattr(module, name) for name in module.__all__)
