"""Sender reports of one SSRC into the sender's own clocks: NTP against RTP, and NTP against our arrivals, with drifts.

Sources: RFC 3550 section 6.4.1 (the two timestamps of an SR name the same instant); ordinary least squares with
Student's t for the slopes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from analysis.errors import NotMeasurable
from analysis.rtcp import unix_ns_from_ntp
from analysis.rtp import signed_difference, unwrap
from analysis.units import NS_PER_S

__all__ = ["ArrivalDrift", "SenderClock", "SentAt", "SlopePpm", "arrival_drift", "sender_clock"]

MIN_REPORTS = 5
MIN_SPAN_S = 4.0  # the finest step of a report, 21 µs at 48 kHz, is then 5 ppm
STEP_S = 0.010  # reports that disagree by more are of two clocks; senders stamp their packets to well within this
STEEPEST = 0.012  # a clock of more than this (12,000 ppm) is not one clock
WINDOWS = (12, 6, 4)  # of which each gives its least delay; what queues for long is lowest in long ones
MIN_WINDOW = 3
MIN_STAMPS = WINDOWS[1] * MIN_WINDOW
MIN_ARRIVAL_SPAN_S = 10.0
RECENT_STRETCHES = 8  # that a report is tried against
CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True)
class SentAt:
    """One sender report: when it arrived (monotonic ns), its NTP time (32.32) and its RTP timestamp."""

    arrival_ns: int
    ntp: int
    rtp_timestamp: int


@dataclass(frozen=True, slots=True)
class SlopePpm:
    """A rate less its nominal one, in parts per million, with its 95 % interval."""

    value: float
    low: float
    high: float

    def to_fields(self) -> dict[str, float]:
        """As plain values for a document."""
        return {"value": round(self.value, 3), "low": round(self.low, 3), "high": round(self.high, 3)}


@dataclass(frozen=True)
class SenderClock:
    """NTP ↔ RTP of one SSRC.

    `slope_ppm` is the RTP clock against the sender's own NTP clock: positive where more ticks pass in one of its NTP
    seconds than the nominal rate says. `n` reports went into it; `left_out` did not belong to the same stretch of both
    clocks (before or after a step of the wall clock or a new start of the RTP timestamps). `residual_s` is how far a
    report lies from the line (root mean square).

    Notes
    -----
    What the slope is good to: after a minute of reports each second its interval is about ±15 ppm where a sender's
    stamps scatter by 1 ms, and ±0.1 ppm where they are exact to the tick. An NTP clock that is being *slewed* (by up to
    500 ppm under Linux) cannot be told from a drift of the media clock; steps of less than 10 ms cannot be told from
    scatter of the stamps, and widen the interval.
    """

    rate_hz: int
    slope_ppm: SlopePpm
    n: int
    left_out: int
    residual_s: float
    ntp0: int
    rtp_timestamp0: int
    offset_s: float

    def rtp_at(self, ntp: int) -> int:
        """The RTP timestamp (32 bits) at an NTP time of the sender's clock (32.32)."""
        elapsed_s = (ntp - self.ntp0) / (1 << 32)
        ticks = (elapsed_s * (1 + self.slope_ppm.value * 1e-6) + self.offset_s) * self.rate_hz
        return round(self.rtp_timestamp0 + ticks) & 0xFFFFFFFF

    def ntp_at(self, rtp_timestamp: int) -> int:
        """The NTP time (32.32) of an RTP timestamp: of those it may mean, the one nearest to the first report."""
        elapsed_s = signed_difference(rtp_timestamp, self.rtp_timestamp0, 32) / self.rate_hz - self.offset_s
        return self.ntp0 + round(elapsed_s / (1 + self.slope_ppm.value * 1e-6) * (1 << 32))

    def to_fields(self) -> dict[str, Any]:
        """As plain values for a document."""
        return {
            "slope_ppm": self.slope_ppm.to_fields(),
            "n": self.n,
            "left_out": self.left_out,
            "residual_ms": round(self.residual_s * 1000, 4),
        }


@dataclass(frozen=True)
class ArrivalDrift:
    """The sender's NTP clock against our monotonic one, by when its stamps arrived.

    `drift_ppm`: positive where the sender's clock runs fast. `offset_bound_ns` is the least of (arrival − NTP time as
    ns since 1970), at the middle of the trace: the clocks' difference *plus the least delay of the way*, which no
    one-way trace can tell apart. It bounds the difference from above, and is no one-way delay. `n` counts windows.
    """

    drift_ppm: SlopePpm
    offset_bound_ns: int
    n: int


@dataclass(frozen=True)
class _Stretch:
    """Reports of one uninterrupted pair of clocks, relative to its first: NTP seconds and media seconds."""

    reports: list[SentAt]
    ntp_s: list[float]
    media_s: list[float]
    ticks: list[int]


def sender_clock(reports: Iterable[SentAt], rate_hz: int) -> SenderClock:
    """The mapping that the reports of one SSRC agree on.

    Parameters
    ----------
    reports : iterable of SentAt
        In order of arrival; reordered and repeated ones may be among them, and wraps of either timestamp.
    rate_hz : int
        Nominal rate of the RTP timestamps.

    Raises
    ------
    NotMeasurable
        `too_few_sender_reports`: fewer than 5 different ones of one stretch, or less than 4 s between them.
    """
    stretches = _stretches(reports, rate_hz)
    best = max(stretches, key=lambda s: len(s.reports), default=None)  # the earliest of the longest
    if best is None or len(best.reports) < MIN_REPORTS or np.ptp(best.ntp_s) < MIN_SPAN_S:
        n = 0 if best is None else len(best.reports)
        raise NotMeasurable(
            "too_few_sender_reports", f"too few sender reports of one clock ({n})", next_step="record a longer call"
        )
    x, media = np.array(best.ntp_s), np.array(best.media_s)
    # the finest step of an RTP timestamp, as a deviation: what agrees to the tick is no better known than this
    slope, half, intercept, residual = _line(x, media - x, floor=1 / rate_hz / np.sqrt(12))
    return SenderClock(
        rate_hz=rate_hz,
        slope_ppm=_ppm(slope, half),
        n=len(best.reports),
        left_out=sum(len(s.reports) for s in stretches) - len(best.reports),
        residual_s=residual,
        ntp0=best.reports[0].ntp,
        rtp_timestamp0=best.reports[0].rtp_timestamp,
        offset_s=intercept,
    )


def _ppm(slope: float, half: float) -> SlopePpm:
    return SlopePpm(float(slope * 1e6), float((slope - half) * 1e6), float((slope + half) * 1e6))


def _stretches(reports: Iterable[SentAt], rate_hz: int) -> list[_Stretch]:
    """Reports sorted into the stretches that they agree with; each report once, however often it came.

    A report that was overtaken goes back on both clocks alike and so agrees; after a step only one of them has moved.
    """
    stretches: list[_Stretch] = []
    seen: set[tuple[int, int]] = set()
    for report in reports:
        if (report.ntp, report.rtp_timestamp) in seen:
            continue
        seen.add((report.ntp, report.rtp_timestamp))
        for stretch in reversed(stretches[-RECENT_STRETCHES:]):
            last = stretch.reports[-1]
            ticks = unwrap(report.rtp_timestamp, stretch.ticks[-1], 32)
            ntp_s = stretch.ntp_s[-1] + signed_difference(report.ntp, last.ntp, 64) / (1 << 32)
            media_s = (ticks - stretch.ticks[0]) / rate_hz
            apart_s = (media_s - stretch.media_s[-1]) - (ntp_s - stretch.ntp_s[-1])
            if abs(apart_s) <= STEP_S + STEEPEST * abs(ntp_s - stretch.ntp_s[-1]):
                stretch.reports.append(report)
                stretch.ntp_s.append(ntp_s)
                stretch.media_s.append(media_s)
                stretch.ticks.append(ticks)
                break
        else:
            stretches.append(_Stretch([report], [0.0], [0.0], [report.rtp_timestamp]))
    return stretches


def _line(x: NDArray[np.float64], y: NDArray[np.float64], floor: float) -> tuple[float, float, float, float]:
    """Slope, half its interval, intercept and root mean square residual of y over x; scatter is `floor` at least."""
    middle, n = x.mean(), len(x)
    spread = float(np.square(x - middle).sum())
    slope = float(((x - middle) * (y - y.mean())).sum()) / spread
    intercept = float(y.mean() - slope * middle)
    rest = y - intercept - slope * x
    scatter = max(float(np.sqrt(np.square(rest).sum() / (n - 2))), floor)
    half = float(stats.t.ppf(0.5 + CONFIDENCE / 2, n - 2)) * scatter / spread**0.5
    return slope, half, intercept, float(np.sqrt(np.square(rest).mean()))


def arrival_drift(stamps: Sequence[tuple[int, int]]) -> ArrivalDrift:
    """How the sender's NTP clock runs against ours, from stamped packets (sender reports, capture times).

    Delay only ever adds, so each of 12 windows (of 6, where there are few stamps) gives its least (arrival − stamp),
    and a line through those is the drift.

    Parameters
    ----------
    stamps : sequence of (int, int)
        Arrival (monotonic ns) and NTP time (32.32), in any order.

    Raises
    ------
    NotMeasurable
        `too_few_stamps`: fewer than 18 or less than 10 s of them. `sender_clock_stepped`: the stamps jump against the
        arrivals by more than a network's delays do.

    Notes
    -----
    A queue that stands for longer than a window lifts the least delay of several in a row: they are then not
    independent, and the interval of their line (Student's t) is too narrow. A few long windows see through it, and say
    so by another slope or more scatter. So the interval holds those of lines through 12, 6 and 4 windows. On simulated
    paths (delays of one side, bursts, queues that stand for 2 to 10 s; 18 s to 5 min) it holds the truth in 93 % of
    calls or more; where delays are independent, it is wider than it need be.
    """
    ordered = sorted(set(stamps))
    if len(ordered) < MIN_STAMPS or ordered[-1][0] - ordered[0][0] < MIN_ARRIVAL_SPAN_S * NS_PER_S:
        raise NotMeasurable(
            "too_few_stamps",
            f"too few stamps for a drift, or over too short a time ({len(ordered)})",
            next_step="record a longer call",
        )
    arrival0_ns, ntp0 = ordered[0]
    arrival_s = np.array([(a - arrival0_ns) / NS_PER_S for a, _ in ordered])
    late_s = arrival_s - np.array([signed_difference(ntp, ntp0, 64) / (1 << 32) for _, ntp in ordered])
    lines = [_envelope(arrival_s, late_s, count) for count in WINDOWS if count * MIN_WINDOW <= len(ordered)]
    slope, _, level_s, count = lines[0]
    offset_ns = arrival0_ns - unix_ns_from_ntp(ntp0) + round(level_s * NS_PER_S)
    low, high = min(s - half for s, half, _, _ in lines), max(s + half for s, half, _, _ in lines)
    # an arrival grows late by what the sender's clock loses, so the drift is the negative of the slope
    return ArrivalDrift(SlopePpm(-slope * 1e6, -high * 1e6, -low * 1e6), offset_ns, count)


def _envelope(
    arrival_s: NDArray[np.float64], late_s: NDArray[np.float64], count: int
) -> tuple[float, float, float, int]:
    """A line through the least delay of each of `count` windows: slope, half its interval, its middle, windows."""
    least = [int(part[np.argmin(late_s[part])]) for part in np.array_split(np.arange(len(late_s)), count)]
    x, y = arrival_s[least], late_s[least]
    if _stepped(x, y):
        raise NotMeasurable("sender_clock_stepped", "the sender's clock was stepped during the call")
    slope, half, intercept, _ = _line(x, y, floor=1e-6)
    return slope, half, intercept + slope * float(x.mean()), count


def _stepped(x: NDArray[np.float64], y: NDArray[np.float64]) -> bool:
    """Whether the least delays jump by far more than they otherwise move, and stay there.

    A stall of the network lifts a window, too, but those after it are as before; so a single one at either end is a
    step only where it is the lower.
    """
    step = float(np.median(np.diff(y)))
    level = y - step * np.arange(len(y))
    limit_s = max(0.2, 20 * float(np.median(np.abs(np.diff(level)))))
    rises = [float(level[k:].min() - level[:k].min()) for k in range(1, len(level))]
    return max(rises[0], *(abs(rise) for rise in rises[1:-1]), -rises[-1]) > limit_s
