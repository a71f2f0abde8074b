"""The only place that reads a clock: monotonic nanoseconds to measure with, wall time as metadata, and timers.

Time origin: monotonic ns are CLOCK_MONOTONIC's, shared by all processes of this machine and never stepped.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Protocol

__all__ = ["Clock", "SystemClock"]


class Clock(Protocol):
    """What code that needs the time takes as an argument."""

    def monotonic_ns(self) -> int:
        """Nanoseconds since an arbitrary origin that is the same in all processes of this machine."""
        ...

    def wall_ns(self) -> int:
        """Nanoseconds since 1970 (UTC): metadata only, it may be stepped at any moment."""
        ...


class SystemClock:
    """The machine's own clocks."""

    monotonic_ns = staticmethod(time.monotonic_ns)
    wall_ns = staticmethod(time.time_ns)

    @staticmethod
    def utc_text() -> str:
        """Wall time as ISO 8601, for manifests."""
        return datetime.now(UTC).isoformat(timespec="seconds")

    @staticmethod
    def file_stamp() -> str:
        """Local wall time for the name of a folder."""
        return datetime.now().strftime("%Y%m%d-%H%M%S")
