"""Turns in, the `summary` of a result out: nearest-rank percentiles with their intervals, rates, and what stands apart.

Percentiles are by nearest rank (numpy `inverted_cdf`): the smallest sample with at least the share p of all samples at
or below it. Turns that were never answered rank as +∞, so that silence makes a percentile worse, not better.

References
----------
Hyndman and Fan, "Sample quantiles in statistical packages", 1996, definition 1. Order-statistic intervals: David and
Nagaraja, "Order Statistics", 3rd ed., section 7.1. Rates: Clopper and Pearson, 1934. Bootstrap over calls: Davison and
Hinkley, "Bootstrap Methods and their Application", section 3.8 (clusters drawn whole).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from analysis.result import (
    ANSWERED,
    CALL_FAILED,
    FLAG_COLD,
    FLAG_FIRST_AFTER_IDLE,
    FLAG_NO_REPLY_EXPECTED,
    FLAG_WARM_UP,
    MEDIA_LOST,
    NO_REPLY,
    NOT_MEASURABLE,
    OUTCOMES,
    OVERLAPPED,
    PREMATURE,
    STAGES,
    Turn,
)

__all__ = [
    "PERCENTILES",
    "RATES",
    "THIN_BELOW",
    "clopper_pearson",
    "nearest_rank",
    "order_statistic_ranks",
    "summarize",
]

# name → share in thousandths: whole numbers, because ceil(0.95 · 200) of floats is not always 190
PERCENTILES = {"p50": 500, "p90": 900, "p95": 950, "p99": 990, "p99_9": 999}
THIN_BELOW = {"p50": 20, "p90": 100, "p95": 200, "p99": 2000, "p99_9": 20000}
RATES = (NO_REPLY, PREMATURE, OVERLAPPED, MEDIA_LOST, CALL_FAILED)

TAIL = 0.025  # each side of a 95 % interval
BOOTSTRAP_CALLS = 10  # from so many calls on, calls are drawn instead of turns taken as independent
BOOTSTRAP_DRAWS = 2000
BOOTSTRAP_SEED = 0
BOOTSTRAP_CELLS = 4_000_000  # draws × samples held in memory at a time

Ranked = NDArray[np.float64]


def nearest_rank(values: Ranked, share: int) -> float:
    """The percentile by nearest rank.

    Parameters
    ----------
    values : ndarray, shape (n,)
        Samples in ascending order, n ≥ 1; +∞ for what never came.
    share : int
        Share in thousandths (950 for P95).

    Returns
    -------
    float
        One of the samples.

    Examples
    --------
    >>> nearest_rank(np.arange(1.0, 201.0), 950)
    190.0
    """
    return float(values[_rank(len(values), share) - 1])


def order_statistic_ranks(n: int, share: int) -> tuple[int | None, int | None]:
    """Ranks (from 1) of the samples that bound the percentile with 95 % confidence, 2.5 % a side; None where none does.

    Of n independent samples the number at or below the true percentile is binomial, whatever the distribution is.
    """
    spread = stats.binom(n, share / 1000)
    low = int(spread.ppf(TAIL))
    high = int(spread.ppf(1 - TAIL)) + 1
    return (low if low >= 1 else None, high if high <= n else None)


def clopper_pearson(count: int, n: int) -> dict[str, float | int | None]:
    """The rate count / n with its exact 95 % interval; all None where n is 0."""
    if n == 0:
        return {"value": None, "low": None, "high": None, "n": 0}
    low = 0.0 if count == 0 else float(stats.beta.ppf(TAIL, count, n - count + 1))
    high = 1.0 if count == n else float(stats.beta.ppf(1 - TAIL, count + 1, n - count))
    return {"value": count / n, "low": low, "high": high, "n": n}


def headline_turns(turns: Iterable[Turn]) -> list[Turn]:
    """The turns that the headline is about: no warm-up, a reply was asked for, not the first after idle, not cold."""
    apart = {FLAG_WARM_UP, FLAG_NO_REPLY_EXPECTED, FLAG_FIRST_AFTER_IDLE, FLAG_COLD}
    return [turn for turn in turns if apart.isdisjoint(turn.flags)]


def ranked_latencies_ms(turns: Iterable[Turn]) -> Ranked:
    """User latencies of the headline's ranking, ms, ascending; +∞ for each turn that was never answered."""
    return _ranking(headline_turns(turns))[0]


def summarize(turns: Sequence[Turn]) -> dict[str, Any]:
    """The summary of all scheduled turns, of one call or of many.

    Parameters
    ----------
    turns : sequence of Turn
        Every scheduled turn, in any order. Samples are pooled, never percentiles.

    Returns
    -------
    dict
        `scheduled` and `outcomes` hold every turn and add up, `warm_up` and `no_reply_expected` say how many of them
        stand outside all that follows. `rates`, `percentiles_ms`, `stages_ms`, `received_ms`, `uncertainty_ms`,
        `start_slip_ms`, `tail_ratio` and `meets_slow` hold the rest; the first turn after idle and cold turns stand
        outside the percentiles, in `first_after_idle` and `cold`. Milliseconds; rates and chances from 0 to 1.
    """
    counted = [turn for turn in turns if FLAG_WARM_UP not in turn.flags]
    asked = [turn for turn in counted if FLAG_NO_REPLY_EXPECTED not in turn.flags]
    headline = headline_turns(turns)
    answered = [turn for turn in headline if turn.outcome == ANSWERED]
    outcomes = Counter(turn.outcome for turn in turns)
    percentiles = _percentiles(headline)
    summary: dict[str, Any] = {
        "scheduled": len(turns),
        "outcomes": {name: outcomes[name] for name in OUTCOMES if outcomes[name]},
        "warm_up": len(turns) - len(counted),
        "no_reply_expected": len(counted) - len(asked),
        "rates": _rates(asked),
        "percentiles_ms": percentiles,
        "tail_ratio": _tail_ratio(percentiles),
        "meets_slow": _meets_slow(counted),
        "received_ms": _spread(turn.received_ms for turn in answered),
        "stages_ms": _stages(answered),
        "uncertainty_ms": _median_and_most(turn.uncertainty_ms for turn in answered),
        "start_slip_ms": _median_and_most(turn.start_slip_ms for turn in counted),
    }
    for flag in (FLAG_FIRST_AFTER_IDLE, FLAG_COLD):
        apart = [turn for turn in asked if flag in turn.flags]
        if apart:
            summary[flag] = _apart(apart)
    return summary


def _rank(n: int, share: int) -> int:
    return max(1, -(-n * share // 1000))


def _ranking(turns: Iterable[Turn]) -> tuple[Ranked, NDArray[np.int64]]:
    """Latencies in ascending order, +∞ for what never came, and the call of each."""
    pairs = []
    for turn in turns:
        if turn.outcome == ANSWERED and turn.latency_ms is not None:
            pairs.append((turn.latency_ms, turn.call))
        elif turn.outcome == NO_REPLY or (turn.outcome in (CALL_FAILED, MEDIA_LOST) and not turn.lost_by_probe):
            pairs.append((math.inf, turn.call))
    pairs.sort()
    return np.array([v for v, _ in pairs], dtype=np.float64), np.array([c for _, c in pairs], dtype=np.int64)


def _unmeasured(turn: Turn) -> bool:
    return turn.outcome == NOT_MEASURABLE or turn.lost_by_probe


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _percentiles(turns: Sequence[Turn]) -> dict[str, dict[str, Any]]:
    values, calls = _ranking(turns)
    n = len(values)
    unseen = sum(map(_unmeasured, turns))
    over_calls = len(np.unique(calls)) >= BOOTSTRAP_CALLS
    ends = _bootstrap_ends(values, calls) if over_calls else _order_statistic_ends(values)
    found: dict[str, dict[str, Any]] = {}
    for name, share in PERCENTILES.items():
        value = nearest_rank(values, share) if n else math.nan
        low, high = ends[name]
        entry: dict[str, Any] = {
            "value": _finite(value),
            "low": low,
            "high": high,
            "n": n,
            "thin": n < THIN_BELOW[name],
            "interval": "bootstrap-calls" if over_calls else "order-statistic",
            "best": _had_they_counted(values, share, unseen, faster=True),
            "worst": _had_they_counted(values, share, unseen, faster=False),
        }
        if math.isinf(value):
            entry["no_reply"] = True
        found[name] = entry
    return found


def _had_they_counted(values: Ranked, share: int, unseen: int, *, faster: bool) -> float | None:
    """The percentile had `unseen` more turns been faster (or slower) than all that were seen; None where unbounded."""
    total = len(values) + unseen
    at = _rank(total, share) - 1 - (unseen if faster else 0)
    return _finite(float(values[at])) if 0 <= at < len(values) else None


def _order_statistic_ends(values: Ranked) -> dict[str, tuple[float | None, float | None]]:
    ends = {}
    for name, share in PERCENTILES.items():
        low, high = order_statistic_ranks(len(values), share) if len(values) else (None, None)
        ends[name] = (
            None if low is None else _finite(float(values[low - 1])),
            None if high is None else _finite(float(values[high - 1])),
        )
    return ends


def _bootstrap_ends(values: Ranked, calls: NDArray[np.int64]) -> dict[str, tuple[float | None, float | None]]:
    """Percentile intervals over draws of whole calls.

    A draw never lies beyond the samples, so an end that not even independent turns could bound is left open.
    """
    _, member, sizes = np.unique(calls, return_inverse=True, return_counts=True)
    rng = np.random.default_rng(BOOTSTRAP_SEED)
    drawn = rng.multinomial(len(sizes), np.full(len(sizes), 1 / len(sizes)), size=BOOTSTRAP_DRAWS)
    step = max(1, BOOTSTRAP_CELLS // len(values))
    at = {name: np.empty(BOOTSTRAP_DRAWS, dtype=np.int64) for name in PERCENTILES}
    for begin in range(0, BOOTSTRAP_DRAWS, step):
        weights = drawn[begin : begin + step]
        # copies of each call, laid out along the sorted samples: the running sum is the rank in the drawn sample
        ranks = np.cumsum(weights[:, member], axis=1, dtype=np.int32)
        for name, share in PERCENTILES.items():
            needed = np.maximum(1, -(-ranks[:, -1].astype(np.int64) * share // 1000))
            at[name][begin : begin + step] = np.argmax(ranks >= needed[:, None], axis=1)
    ends = {}
    for name, share in PERCENTILES.items():
        draws = np.sort(values[at[name]])
        low, high = order_statistic_ranks(len(values), share)
        ends[name] = (
            None if low is None else _finite(nearest_rank(draws, round(1000 * TAIL))),
            None if high is None else _finite(nearest_rank(draws, round(1000 * (1 - TAIL)))),
        )
    return ends


def _rates(turns: Sequence[Turn]) -> dict[str, dict[str, float | int | None]]:
    measured = [turn for turn in turns if not _unmeasured(turn)]
    counts = Counter(turn.outcome for turn in measured)
    return {name: clopper_pearson(counts[name], len(measured)) for name in RATES}


def _tail_ratio(percentiles: dict[str, dict[str, Any]]) -> float | None:
    p50, p95 = percentiles["p50"]["value"], percentiles["p95"]["value"]
    return p95 / p50 if p95 is not None and p50 is not None and p50 > 0 else None


def _meets_slow(turns: Sequence[Turn]) -> dict[str, float | int] | None:
    """Chance that a call of as many turns as the run's middle call meets one slower than P95, and than P99."""
    if not turns:
        return None
    lengths = np.sort(np.array(list(Counter(turn.call for turn in turns).values()), dtype=np.float64))
    n = int(nearest_rank(lengths, 500))
    return {"turns_per_call": n} | {name: 1 - (PERCENTILES[name] / 1000) ** n for name in ("p95", "p99")}


def _sorted(values: Iterable[float | None]) -> Ranked:
    return np.sort(np.array([value for value in values if value is not None], dtype=np.float64))


def _spread(values: Iterable[float | None]) -> dict[str, float | int | None]:
    found = _sorted(values)
    spread: dict[str, float | int | None] = {
        name: nearest_rank(found, share) if len(found) else None for name, share in PERCENTILES.items()
    }
    return spread | {"n": len(found)}


def _stages(turns: Sequence[Turn]) -> dict[str, dict[str, float | int | None]]:
    seen = {name for turn in turns for name in turn.stages_ms}
    order = [name for name in STAGES if name in seen] + sorted(seen.difference(STAGES))
    return {name: _spread(turn.stages_ms.get(name) for turn in turns) for name in order}


def _median_and_most(values: Iterable[float | None]) -> dict[str, float | int | None]:
    found = _sorted(values)
    if not len(found):
        return {"p50": None, "max": None, "n": 0}
    return {"p50": nearest_rank(found, 500), "max": float(found[-1]), "n": len(found)}


def _apart(turns: Sequence[Turn]) -> dict[str, Any]:
    values, _ = _ranking(turns)
    value = nearest_rank(values, 500) if len(values) else math.nan
    return {"n": len(values), "p50": _finite(value)} | ({"no_reply": True} if math.isinf(value) else {})
