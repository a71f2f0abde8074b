"""One call's arrivals and playout as the series that figures are drawn from, on the call's own time axis."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np

from analysis.drawing import Series
from analysis.figures import CallSeries
from analysis.network import Arrivals
from analysis.playout import PlayoutPoint
from analysis.units import NS_PER_S, ns_to_s

__all__ = ["audibly_concealed_ms", "call_series"]


def audibly_concealed_ms(point: PlayoutPoint) -> float:
    """Concealment that stands in for sound; a pause of the sender is concealed too, but not to be heard."""
    return point.concealed_ms - point.silent_concealed_ms


def call_series(call: int, zero_ns: int, arrivals: Arrivals, points: Iterable[PlayoutPoint], policy: str) -> CallSeries:
    """The series of one call.

    Parameters
    ----------
    call : int
    zero_ns : int
        Time 0 of the call (monotonic ns).
    arrivals : Arrivals
    points : iterable of PlayoutPoint
        Of all streams of the call, under `policy`.
    policy : str
    """
    ordered = sorted(points, key=lambda p: p.time_ns)

    def column(values: Iterable[float | None]) -> Series:
        return np.array([math.nan if v is None else v for v in values], dtype=np.float64)

    return CallSeries(
        call=call,
        arrival_s=(arrivals.arrival_ns - zero_ns) / NS_PER_S,
        transit_ms=arrivals.transit_ms,
        jitter_ms=arrivals.jitter_ms,
        lost_s=(arrivals.lost_ns - zero_ns) / NS_PER_S,
        playout_s=column(ns_to_s(p.time_ns - zero_ns) for p in ordered),
        jitter_buffer_delay_ms=column(p.jitter_buffer_delay_ms for p in ordered),
        target_delay_ms=column(p.target_delay_ms for p in ordered),
        concealed_ms=column(audibly_concealed_ms(p) for p in ordered),
        policy=policy,
    )
