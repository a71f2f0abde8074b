"""Percentiles, intervals and rates against worked examples whose answers are known without the code."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest

import analysis.statistics as statistics_module
from analysis.result import Boundaries, Boundary, Result, Source, Turn, result_json_text
from analysis.statistics import (
    PERCENTILES,
    clopper_pearson,
    nearest_rank,
    order_statistic_ranks,
    ranked_latencies_ms,
    summarize,
)


def turn(outcome: str = "answered", latency_ms: float | None = None, **fields: Any) -> Turn:
    if outcome == "answered" and latency_ms is None:
        latency_ms = 800.0
    return Turn(**({"call": 0, "index": 0, "outcome": outcome, "latency_ms": latency_ms} | fields))


def answered(values: Iterable[float], **fields: Any) -> list[Turn]:
    return [turn(latency_ms=value, index=i, **fields) for i, value in enumerate(values)]


def values_of(turns: list[Turn]) -> dict[str, float | None]:
    return {name: entry["value"] for name, entry in summarize(turns)["percentiles_ms"].items()}


def test_six_slow_turns_in_a_hundred_hide_in_the_mean_and_the_median() -> None:
    turns = answered([200.0] * 94 + [2000.0] * 6)
    assert np.mean([t.latency_ms for t in turns]) == 308.0  # type: ignore[arg-type]
    found = values_of(turns)
    assert (found["p50"], found["p95"], found["p99"]) == (200.0, 2000.0, 2000.0)


@pytest.mark.parametrize(("name", "rank"), [("p50", 100), ("p90", 180), ("p95", 190), ("p99", 198), ("p99_9", 200)])
def test_of_two_hundred_samples_each_percentile_is_the_sample_of_its_rank(name: str, rank: int) -> None:
    shuffled = np.random.default_rng(3).permutation(np.arange(1.0, 201.0))
    assert values_of(answered(shuffled))[name] == rank


@pytest.mark.parametrize("n", [1, 2, 7, 20, 40, 100, 199, 200, 1000])
def test_nearest_rank_is_numpys_inverted_cdf(n: int) -> None:
    samples = np.sort(np.random.default_rng(n).gamma(2.0, 400.0, n))
    for share in PERCENTILES.values():
        rank = nearest_rank(samples, share)
        # the quantile is asked for just below the share: 0.95 as a float may lie above 95/100 and skip a sample
        assert rank == np.quantile(samples, share / 1000 - 1e-12, method="inverted_cdf")


def test_two_servers_are_pooled_and_their_percentiles_never_averaged() -> None:
    fast = answered([200.0] * 900, segment={"server": "a"})
    mixed = answered([200.0] * 90 + [1000.0] * 10, segment={"server": "b"})
    assert values_of(mixed)["p95"] == 1000.0
    assert values_of(fast + mixed)["p95"] == 200.0  # the mean of both P95s would have been 600


def test_percentiles_of_stages_do_not_add_up_to_that_of_the_turn() -> None:
    turns = []
    for i in range(100):
        stages = {
            "packetization": 300.0,
            "remote_response": 1500.0 if i % 10 == 0 else 500.0,
            "leading_silence": 600.0 if i // 10 == 0 else 150.0,
        }
        turns.append(turn(latency_ms=sum(stages.values()), index=i, stages_ms=stages))
    summary = summarize(turns)
    assert summary["percentiles_ms"]["p95"]["value"] == 1950.0
    assert sum(stage["p95"] for stage in summary["stages_ms"].values()) == 2400.0
    remote = summary["stages_ms"]["remote_response"]
    assert [remote[key] for key in ("p50", "p90", "p95", "n")] == [500.0, 500.0, 1500.0, 100]


def test_twenty_turns_meet_a_slow_one_more_often_than_not() -> None:
    turns = [turn(call=call, index=i) for call in range(3) for i in range(20)]
    meets = summarize(turns)["meets_slow"]
    assert meets["turns_per_call"] == 20
    assert round(meets["p95"], 2) == 0.64
    assert round(meets["p99"], 2) == 0.18


@pytest.mark.parametrize("outcome", ["no_reply", "call_failed", "media_lost"])
def test_what_the_agent_never_answered_ranks_above_everything(outcome: str) -> None:
    turns = [*answered([500.0] * 94), *(turn(outcome, fault="agent") for _ in range(6))]
    found = summarize(turns)["percentiles_ms"]
    assert found["p50"]["value"] == 500.0
    assert [found["p90"][key] for key in ("value", "n", "thin", "best", "worst")] == [500.0, 100, False, 500.0, 500.0]
    assert found["p95"]["value"] is None
    assert found["p95"]["no_reply"] is True
    assert found["p95"]["high"] is None
    assert "no_reply" not in found["p50"]


@pytest.mark.parametrize("outcome", ["premature", "overlapped"])
def test_cutting_in_is_a_rate_and_never_a_fast_answer(outcome: str) -> None:
    turns = [*answered([900.0] * 9), turn(outcome, latency_ms=-300.0)]
    summary = summarize(turns)
    assert summary["percentiles_ms"]["p50"]["n"] == 9
    assert values_of(turns)["p50"] == 900.0
    assert summary["rates"][outcome]["value"] == 0.1
    assert summary["rates"][outcome]["n"] == 10


@pytest.mark.parametrize("unseen", [turn("not_measurable"), turn("media_lost", fault="probe")])
def test_what_could_not_be_measured_stands_outside_with_the_best_and_the_worst_case(unseen: Turn) -> None:
    turns = [*answered(range(1, 11)), unseen, unseen]
    summary = summarize(turns)
    p50, p90 = summary["percentiles_ms"]["p50"], summary["percentiles_ms"]["p90"]
    # 12 samples: P50 is the 6th. Two more below: the 4th of those seen; two more above: the 6th
    assert (p50["value"], p50["best"], p50["worst"], p50["n"]) == (5.0, 4.0, 6.0, 10)
    # P90 of 12 is the 11th: with two more above, it is one that was not seen
    assert (p90["value"], p90["best"], p90["worst"]) == (9.0, 9.0, None)
    assert all(rate["n"] == 10 and rate["value"] == 0 for rate in summary["rates"].values())


def test_the_best_case_is_unbounded_where_most_was_not_seen() -> None:
    p50 = summarize([turn(), *[turn("not_measurable")] * 3])["percentiles_ms"]["p50"]
    assert (p50["best"], p50["worst"]) == (None, None)


def test_outcomes_add_up_to_what_was_scheduled() -> None:
    outcomes = ["answered", "no_reply", "premature", "overlapped", "media_lost", "call_failed", "not_measurable"]
    turns = [turn(name, fault="probe" if name == "call_failed" else None) for name in outcomes * 3]
    turns.append(turn(flags=("warm_up",)))
    summary = summarize(turns)
    assert summary["scheduled"] == 22 == sum(summary["outcomes"].values())
    assert summary["warm_up"] == 1
    # 22 less the warm-up, three not measurable and three faults of the probe
    assert {rate["n"] for rate in summary["rates"].values()} == {15}
    assert summary["rates"]["call_failed"]["value"] == 0.0
    assert summary["rates"]["media_lost"]["value"] == 0.2


def test_warm_up_and_asked_for_silence_move_no_statistic() -> None:
    base = answered([700.0, 800.0, 900.0], start_slip_ms=1.0)
    more = [
        turn(latency_ms=9000.0, flags=("warm_up",), start_slip_ms=500.0),
        turn("no_reply", flags=("warm_up",)),
        turn("no_reply", flags=("no_reply_expected",), start_slip_ms=1.0),
    ]
    before, after = summarize(base), summarize(base + more)
    for key in ("percentiles_ms", "rates", "received_ms", "uncertainty_ms", "stages_ms", "tail_ratio"):
        assert after[key] == before[key], key
    assert after["start_slip_ms"]["max"] == 1.0
    assert (after["warm_up"], after["no_reply_expected"]) == (2, 1)


@pytest.mark.parametrize("flag", ["first_after_idle", "cold"])
def test_the_first_after_idle_and_cold_turns_are_reported_on_their_own(flag: str) -> None:
    apart = [
        turn(latency_ms=4000.0, flags=(flag,)),
        turn(latency_ms=3000.0, flags=(flag,)),
        turn("no_reply", flags=(flag,)),
    ]
    summary = summarize([*answered([700.0] * 20), *apart])
    assert summary["percentiles_ms"]["p99"]["value"] == 700.0
    assert summary[flag] == {"n": 3, "p50": 4000.0}
    assert summary["rates"]["no_reply"]["n"] == 23
    assert flag not in summarize(answered([700.0]))
    assert summarize([turn("no_reply", flags=(flag,))])[flag] == {"n": 1, "p50": None, "no_reply": True}


def test_the_interval_is_open_where_the_sample_cannot_bound_it() -> None:
    # five turns: (1/2)^5 = 3.1 % lie all above the median, more than the 2.5 % of one side
    p50 = summarize(answered([700.0, 750.0, 812.1, 900.0, 950.0]))["percentiles_ms"]["p50"]
    assert (p50["value"], p50["low"], p50["high"], p50["thin"], p50["n"]) == (812.1, None, None, True, 5)
    # six turns: 1.6 % on each side, so the smallest and the largest bound it
    p50 = summarize(answered(range(1, 7)))["percentiles_ms"]["p50"]
    assert (p50["low"], p50["high"], p50["interval"]) == (1.0, 6.0, "order-statistic")


@pytest.mark.parametrize(("name", "least"), [("p50", 20), ("p90", 100), ("p95", 200), ("p99", 2000), ("p99_9", 20000)])
def test_a_percentile_is_thin_below_the_sample_that_it_needs(name: str, least: int) -> None:
    assert summarize(answered(np.arange(least - 1.0)))["percentiles_ms"][name]["thin"] is True
    assert summarize(answered(np.arange(float(least))))["percentiles_ms"][name]["thin"] is False


@pytest.mark.parametrize(("n", "share"), [(20, 500), (37, 500), (100, 900), (200, 950)])
def test_order_statistics_cover_the_true_percentile_in_95_of_100_samples(n: int, share: int) -> None:
    draws = np.sort(np.random.default_rng(11).exponential(1.0, (40_000, n)), axis=1)
    truth = -math.log(1 - share / 1000)  # of the exponential distribution
    low, high = order_statistic_ranks(n, share)
    assert low is not None
    assert high is not None
    below, above = draws[:, low - 1] > truth, draws[:, high - 1] < truth
    assert 1 - np.mean(below | above) >= 0.95
    # equal-tailed; 0.0025 is three standard errors of 40,000 draws
    assert max(np.mean(below), np.mean(above)) <= 0.025 + 0.0025


def test_from_ten_calls_on_whole_calls_are_drawn_and_the_interval_widens_with_their_difference() -> None:
    rng = np.random.default_rng(5)

    def turns(calls: int) -> list[Turn]:
        level = 800 + 200 * rng.standard_normal(calls)
        return [
            turn(latency_ms=float(level[call] + 20 * rng.standard_normal()), call=call, index=i)
            for call in range(calls)
            for i in range(20)
        ]

    assert summarize(turns(9))["percentiles_ms"]["p50"]["interval"] == "order-statistic"
    clustered = turns(24)
    p50 = summarize(clustered)["percentiles_ms"]["p50"]
    assert p50["interval"] == "bootstrap-calls"
    low, high = order_statistic_ranks(len(clustered), 500)
    assert low is not None
    assert high is not None
    ranked = ranked_latencies_ms(clustered)
    # 20 turns of a call tell no more than one: √20 times the width of independent turns, half of it at the very least
    assert p50["high"] - p50["low"] > math.sqrt(20) / 2 * (ranked[high - 1] - ranked[low - 1])
    assert summarize(clustered) == summarize(clustered[::-1])


def test_the_bootstrap_draws_what_a_plain_loop_draws() -> None:
    rng = np.random.default_rng(2)
    sizes = rng.integers(1, 9, 12)
    turns = [
        turn("no_reply" if rng.random() < 0.05 else "answered", float(rng.gamma(4, 200)), call=call, index=i)
        for call, size in enumerate(sizes)
        for i in range(size)
    ]
    pool = [
        np.array([math.inf if t.outcome == "no_reply" else t.latency_ms for t in turns if t.call == c])
        for c in range(12)
    ]
    drawn = np.random.default_rng(0).multinomial(12, np.full(12, 1 / 12), size=2000)
    medians = np.sort(
        [
            nearest_rank(np.sort(np.concatenate([np.repeat(pool[c], k) for c, k in enumerate(row)])), 500)
            for row in drawn
        ]
    )
    p50 = summarize(turns)["percentiles_ms"]["p50"]
    assert (p50["low"], p50["high"]) == (nearest_rank(medians, 25), nearest_rank(medians, 975))


def test_the_bootstrap_leaves_an_end_open_that_no_sample_bounds() -> None:
    turns = [turn(latency_ms=500.0 + call + 10 * i, call=call, index=i) for call in range(10) for i in range(4)]
    found = summarize(turns)["percentiles_ms"]
    assert found["p50"]["high"] is not None
    assert found["p99"]["high"] is None  # 0.99^40 = 67 % of such samples hold nothing above P99


def test_clopper_pearson_against_the_closed_form_and_a_table() -> None:
    assert clopper_pearson(0, 5) == {"value": 0.0, "low": 0.0, "high": pytest.approx(1 - 0.025 ** (1 / 5)), "n": 5}
    assert clopper_pearson(5, 5)["low"] == pytest.approx(0.025 ** (1 / 5))
    found = clopper_pearson(8, 20)  # Johnson, Kemp and Kotz: 0.1912 to 0.6395
    assert found["low"] == pytest.approx(0.1912, abs=5e-5)
    assert found["high"] == pytest.approx(0.6395, abs=5e-5)
    assert clopper_pearson(0, 0) == {"value": None, "low": None, "high": None, "n": 0}


def test_start_slip_and_uncertainty_stand_apart() -> None:
    turns = [*answered([800.0] * 3, start_slip_ms=0.2, uncertainty_ms=4.0), turn("no_reply", start_slip_ms=900.0)]
    summary = summarize(turns)
    assert summary["start_slip_ms"] == {"p50": 0.2, "max": 900.0, "n": 4}
    assert summary["uncertainty_ms"] == {"p50": 4.0, "max": 4.0, "n": 3}
    assert values_of(turns)["p50"] == 800.0


def test_tail_ratio_is_there_only_where_both_of_its_percentiles_are() -> None:
    assert summarize(answered([200.0] * 94 + [2000.0] * 6))["tail_ratio"] == 10.0
    assert summarize([*answered([200.0] * 9), turn("no_reply")])["tail_ratio"] is None


@pytest.mark.parametrize(
    "turns", [[], [turn("not_measurable")], [turn("no_reply")] * 3, [turn("call_failed", fault="probe")]]
)
def test_a_summary_without_a_single_answer_is_whole_and_holds_no_number_that_was_not_seen(turns: list[Turn]) -> None:
    summary = summarize(turns)
    assert set(summary["percentiles_ms"]) == {"p50", "p90", "p95", "p99", "p99_9"}
    for entry in summary["percentiles_ms"].values():
        assert entry["value"] is None
        assert ("no_reply" in entry) == (entry["n"] > 0)
    ends = Boundaries(Boundary("a", "c", "sent"), Boundary("b", "c", "received"))
    result_json_text(Result(Source("session"), ends, tuple(turns), summary))  # raises on NaN and infinity


def test_exports_exist() -> None:
    assert all(hasattr(statistics_module, name) for name in statistics_module.__all__)
