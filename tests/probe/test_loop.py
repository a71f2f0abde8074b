"""The event loop against asyncio's own, and its knowledge of its own lateness."""

from __future__ import annotations

import asyncio
import selectors
import socket
import statistics
import threading
import time
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from probe.clock import SystemClock
from probe.loop import LagSelector, run

CLOCK = SystemClock()
# odd lengths, so that rounding to whole milliseconds shows
WAITS_S = [0.0031 + 0.00037 * (i % 11) for i in range(60)]
STALL_NS = 5_000_000


async def lateness_ns() -> list[int]:
    """How late each of some timers was."""
    late = []
    for wait_s in WAITS_S:
        due_ns = time.monotonic_ns() + round(wait_s * 1e9)
        await asyncio.sleep(wait_s)
        late.append(time.monotonic_ns() - due_ns)
    return late


@pytest.mark.skipif(not hasattr(selectors, "EpollSelector"), reason="epoll exists on Linux alone")
def test_timers_are_late_by_less_than_asyncios_own() -> None:
    async def main(_: LagSelector) -> list[int]:
        return await lateness_ns()

    with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(selectors.EpollSelector())) as runner:
        theirs = statistics.median(runner.run(lateness_ns()))
    ours = statistics.median(run(main, CLOCK))
    # epoll rounds up to whole milliseconds, half of one on average; select does not, and what is left is the wake-up
    assert ours < 0.7 * theirs


def test_it_returns_what_the_program_returns_and_raises_what_it_raises() -> None:
    async def answer(selector: LagSelector) -> int:
        assert isinstance(selector, LagSelector)
        await asyncio.sleep(0)
        return 42

    async def fail(_: LagSelector) -> None:
        raise ValueError("as it is")

    assert run(answer, CLOCK) == 42
    with pytest.raises(ValueError, match="as it is"):
        run(fail, CLOCK)


Before = Callable[[socket.socket], Coroutine[Any, Any, None]]


def lag_of_a_read(before: Before) -> int:
    """Lag (ns) that the selector states when a packet is read that `before` puts into a socket."""

    selector = LagSelector(CLOCK, look_first=True)

    async def main() -> int:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        ours.setblocking(False)
        read: asyncio.Future[int] = asyncio.get_running_loop().create_future()

        def on_readable() -> None:
            ours.recv(100)
            read.set_result(selector.lag_ns())

        asyncio.get_running_loop().add_reader(ours, on_readable)
        with ours, theirs:
            await asyncio.sleep(0.01)
            await before(theirs)
            lag_ns = await read
            asyncio.get_running_loop().remove_reader(ours)
        return lag_ns

    with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(selector)) as runner:
        return runner.run(main())


def hold_up() -> None:
    begun_ns = time.monotonic_ns()
    while time.monotonic_ns() - begun_ns < STALL_NS:
        pass


async def stall_with_a_packet(theirs: socket.socket) -> None:
    """The program holds up the loop while a packet waits."""
    theirs.send(b"x")
    hold_up()


async def packet_while_asleep(theirs: socket.socket) -> None:
    """A packet comes while the loop waits for it."""
    threading.Timer(0.02, theirs.send, [b"x"]).start()


async def stall_without_a_packet(theirs: socket.socket) -> None:
    """The stall is over, and the loop has looked since, before the packet comes."""
    hold_up()
    await packet_while_asleep(theirs)


def test_a_stall_of_5_ms_is_seen() -> None:
    begun_ns = time.monotonic_ns()
    lag_ns = lag_of_a_read(stall_with_a_packet)
    assert STALL_NS <= lag_ns < time.monotonic_ns() - begun_ns


@pytest.mark.parametrize("before", [packet_while_asleep, stall_without_a_packet])
def test_a_packet_that_the_loop_waited_for_has_not_waited(before: Before) -> None:
    lags_ns = [lag_of_a_read(before) for _ in range(5)]
    assert min(lags_ns) < STALL_NS / 5  # the best of five: the machine has other work


class SteppedClock:
    """A clock whose readings are given one by one."""

    def __init__(self, *readings_ns: int) -> None:
        self.readings_ns = list(readings_ns)

    def monotonic_ns(self) -> int:
        return self.readings_ns.pop(0)

    def wall_ns(self) -> int:
        return 0


class TestWaitingSince:
    """By a clock whose readings are known, and a socket that is readable or not."""

    def selected(self, readable: bool, timeout: float | None, *readings_ns: int) -> LagSelector:
        """A selector that looked for the first time at 1,000, and then once more."""
        selector = LagSelector(SteppedClock(0, 1_000, *readings_ns))
        ours, theirs = socket.socketpair()
        with ours, theirs:
            selector.register(ours, selectors.EVENT_READ)
            selector.select(0)
            assert selector.waiting_since_ns == 0
            if readable:
                theirs.send(b"x")
            assert bool(selector.select(timeout)) is readable
        return selector

    @pytest.mark.parametrize("timeout", [None, 1.0, 0])
    def test_what_was_there_may_have_come_any_time_since_the_look_before(self, timeout: float | None) -> None:
        assert self.selected(True, timeout, 5_000_000).waiting_since_ns == 1_000

    def test_what_was_waited_for_has_not_waited(self) -> None:
        assert self.selected(False, 1e-6, 5_000_000, 5_001_000, 5_500_000).waiting_since_ns == 5_500_000

    def test_what_came_between_the_look_and_the_wait_waited_since_the_look(self) -> None:
        # the loop was held up for 4 ms in between
        assert self.selected(False, 1e-6, 5_000_000, 9_000_000, 9_005_000).waiting_since_ns == 5_000_000

    def test_a_look_without_a_wait_counts_as_a_look(self) -> None:
        selector = LagSelector(SteppedClock(0, 1_000, 5_000_000, 6_000_000))
        for _ in range(3):
            selector.select(0)
        assert selector.waiting_since_ns == 5_000_000
