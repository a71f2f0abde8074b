"""An event loop whose timers are exact to tens of microseconds, and which knows how late it is.

asyncio's default selector (epoll) rounds waits up to whole milliseconds, which is audible in a pacing log;
select(2) takes microseconds. It holds up to 1024 file descriptors, some 300 calls.
"""

from __future__ import annotations

import asyncio
import gc
import selectors
import sys
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from probe.clock import Clock

__all__ = ["LagSelector", "run"]

T = TypeVar("T")

SWITCH_INTERVAL_S = 0.0005


class LagSelector(selectors.SelectSelector):
    """A selector that remembers since when input may have been waiting.

    Attributes
    ----------
    waiting_since_ns : int
        Monotonic ns. What is read from a socket now cannot have been waiting there for longer than since then: the
        moment at which the loop last looked and found it absent, or woke up for it.
    """

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self._clock = clock
        self._looked_ns = self.waiting_since_ns = clock.monotonic_ns()

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """As the base class; notes when it looked and whether it had to wait."""
        before = self._clock.monotonic_ns()
        ready = super().select(timeout)
        after = self._clock.monotonic_ns()
        # where select did not block, what it found may have come any time after the look before this one
        blocked = after - before > 20_000
        self.waiting_since_ns = after if blocked else self._looked_ns
        self._looked_ns = after if blocked else before
        return ready

    def lag_ns(self) -> int:
        """How long what is read now may have been waiting for this process (ns)."""
        return self._clock.monotonic_ns() - self.waiting_since_ns


def run(main: Callable[[LagSelector], Coroutine[Any, Any, T]], clock: Clock) -> T:
    """Run `main(selector)` to its end in a loop of its own, as `asyncio.run` does.

    What the program has loaded until now is taken out of garbage collection, and other threads (the live line) give
    the interpreter back sooner: both would hold up packets for milliseconds.
    """
    gc.collect()
    gc.freeze()
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    selector = LagSelector(clock)
    with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(selector)) as runner:
        return runner.run(main(selector))
