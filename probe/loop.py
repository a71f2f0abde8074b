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

from probe.arrival import kernel_stamps
from probe.clock import Clock

__all__ = ["LagSelector", "run"]

T = TypeVar("T")

SWITCH_INTERVAL_S = 0.0005
AT_ONCE_NS = 20_000  # a wait that is over sooner was none


class LagSelector(selectors.SelectSelector):
    """A selector that remembers since when input may have been waiting.

    Parameters
    ----------
    clock : Clock
    look_first : bool
        Look before waiting, so that what was there is told from what was waited for. Costs a system call each time, so
        it is for machines whose kernel does not stamp arrivals; without it `waiting_since_ns` is when the wait ended.

    Attributes
    ----------
    waiting_since_ns : int
        Monotonic ns. What is read from a socket now cannot have been waiting there for longer than since then: the
        moment at which the loop last looked and found it absent, or woke up for it.
    """

    def __init__(self, clock: Clock, *, look_first: bool = True) -> None:
        super().__init__()
        self._look_first = look_first
        self._clock = clock
        self._looked_ns = self.waiting_since_ns = clock.monotonic_ns()

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """As the base class."""
        if not self._look_first:
            ready = super().select(timeout)
            self.waiting_since_ns = self._clock.monotonic_ns()
            return ready
        looked_ns = self._clock.monotonic_ns()
        ready = super().select(0)
        if ready or (timeout is not None and timeout <= 0):
            # it may have come any time after the look before this one
            self.waiting_since_ns, self._looked_ns = self._looked_ns, looked_ns
            return ready
        begun_ns = self._clock.monotonic_ns()
        ready = super().select(timeout)
        now_ns = self._clock.monotonic_ns()
        waited = now_ns - begun_ns > AT_ONCE_NS
        # what came between the look and the wait was there at once
        self.waiting_since_ns, self._looked_ns = (now_ns, now_ns) if waited else (looked_ns, begun_ns)
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
    selector = LagSelector(clock, look_first=not kernel_stamps(clock))
    with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(selector)) as runner:
        return runner.run(main(selector))
