"""Conversions at their limits."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis.units import (
    dbov,
    from_dbov,
    ms_to_ns,
    ns_to_ms,
    ns_to_s,
    s_to_ns,
    samples_to_ms,
    samples_to_ns,
)


def test_times() -> None:
    assert ns_to_ms(1_234_567) == 1.234567
    assert ns_to_s(1_234_567_890) == 1.23456789
    assert ms_to_ns(812.1) == 812_100_000
    assert s_to_ns(3.0002) == 3_000_200_000
    assert ms_to_ns(-0.3) == -300_000
    assert isinstance(ms_to_ns(1.0), int)
    assert isinstance(s_to_ns(1), int)


@given(st.integers(-(10**15), 10**15))
def test_a_day_in_ms_comes_back_to_the_nanosecond(ns: int) -> None:
    assert ms_to_ns(ns_to_ms(ns)) == ns


@pytest.mark.parametrize(
    ("samples", "rate_hz", "ns"),
    [
        (0, 48_000, 0),
        (48_000, 48_000, 1_000_000_000),
        (1, 48_000, 20_833),
        (1, 44_100, 22_676),
        (1, 8_000, 125_000),
        (-1, 48_000, -20_833),
        (3, 48_000, 62_500),
        (1, 1_000_000_000 * 2, 1),  # half a nanosecond: up
        (-1, 1_000_000_000 * 2, 0),
    ],
)
def test_samples(samples: int, rate_hz: int, ns: int) -> None:
    assert samples_to_ns(samples, rate_hz) == ns


@given(st.integers(-(10**12), 10**12), st.sampled_from([8000, 11025, 16000, 22050, 44100, 48000]))
def test_samples_are_rounded_once_and_to_the_nearest(samples: int, rate_hz: int) -> None:
    exact = Fraction(samples * 10**9, rate_hz)
    assert abs(samples_to_ns(samples, rate_hz) - exact) <= Fraction(1, 2)


def test_samples_as_milliseconds() -> None:
    assert samples_to_ms(480, 48_000) == 10.0
    assert samples_to_ms(608.799, 48_000) == pytest.approx(12.68331, abs=1e-5)


def test_levels() -> None:
    assert dbov(1.0) == 0.0
    assert dbov(0.1) == pytest.approx(-20.0)
    assert dbov(math.sqrt(0.5)) == pytest.approx(-3.0103, abs=1e-4)
    assert dbov(0.0) == -math.inf
    assert from_dbov(0.0) == 1.0
    assert from_dbov(-60.0) == pytest.approx(1e-3)
    assert from_dbov(-math.inf) == 0.0


@given(st.floats(-150, 20))
def test_levels_come_back(level_dbov: float) -> None:
    assert dbov(from_dbov(level_dbov)) == pytest.approx(level_dbov, abs=1e-9)
