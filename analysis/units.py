"""Conversions between the units at boundaries (ns, ms, s, samples, RTP ticks, dBov); the only place for them."""

from __future__ import annotations

import math

__all__ = [
    "NS_PER_MS",
    "NS_PER_S",
    "dbov",
    "from_dbov",
    "ms_to_ns",
    "ns_to_ms",
    "ns_to_s",
    "s_to_ns",
    "samples_to_ms",
    "samples_to_ns",
]

NS_PER_S = 1_000_000_000
NS_PER_MS = 1_000_000


def ns_to_ms(ns: float) -> float:
    """Nanoseconds as milliseconds."""
    return ns / NS_PER_MS


def ns_to_s(ns: float) -> float:
    """Nanoseconds as seconds."""
    return ns / NS_PER_S


def ms_to_ns(ms: float) -> int:
    """Milliseconds as whole nanoseconds."""
    return round(ms * NS_PER_MS)


def s_to_ns(s: float) -> int:
    """Seconds as whole nanoseconds."""
    return round(s * NS_PER_S)


def samples_to_ns(samples: int, rate_hz: int) -> int:
    """A count of samples (or RTP ticks) at `rate_hz` as whole nanoseconds, rounded half up."""
    return (2 * int(samples) * NS_PER_S + rate_hz) // (2 * rate_hz)


def samples_to_ms(samples: float, rate_hz: int) -> float:
    """A count of samples at `rate_hz` as milliseconds."""
    return samples * 1000.0 / rate_hz


def dbov(rms: float) -> float:
    """RMS (full scale 1.0) as dBov = 20·log10(RMS); −inf for digital silence."""
    return 20.0 * math.log10(rms) if rms > 0 else -math.inf


def from_dbov(level_dbov: float) -> float:
    """dBov as an amplitude (full scale 1.0)."""
    return float(10.0 ** (level_dbov / 20.0))
