"""Arrivals by the kernel's stamp: right however late they are read, and never believed where the clocks disagree."""

from __future__ import annotations

import socket
import sys
import time
from collections.abc import Iterator

import pytest

from probe.arrival import ArrivalClock, kernel_stamps
from probe.clock import SystemClock

LATE_S = 0.03


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    with (
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as here,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as there,
    ):
        here.bind(("127.0.0.1", 0))
        here.settimeout(2)
        there.connect(here.getsockname())
        yield here, there


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux stamps like this")
def test_a_packet_read_late_arrived_when_it_arrived(ends: tuple[socket.socket, socket.socket]) -> None:
    here, there = ends
    stamps = ArrivalClock(SystemClock(), here)
    there.send(b"a")
    here.recv(1)  # from the first one on the kernel stamps
    before_ns = time.monotonic_ns()
    there.send(b"b")
    after_ns = time.monotonic_ns()
    time.sleep(LATE_S)
    here.recv(1)
    arrival = stamps.read()
    assert arrival.by_kernel
    # the two clocks are read one after the other: some microseconds apart, more where this process is held up
    assert before_ns - 2_000_000 < arrival.time_ns < after_ns + 2_000_000
    assert arrival.waited_ns > LATE_S * 0.9e9


class SteppedClock(SystemClock):
    """A wall clock that somebody has set back by an hour."""

    @staticmethod
    def wall_ns() -> int:  # type: ignore[override]
        return time.time_ns() - 3_600_000_000_000


def test_a_stepped_wall_clock_is_not_believed(ends: tuple[socket.socket, socket.socket]) -> None:
    here, there = ends
    stamps = ArrivalClock(SteppedClock(), here, lag_ns=lambda: 7)
    there.send(b"a")
    here.recv(1)
    before_ns = time.monotonic_ns()
    arrival = stamps.read()
    assert not arrival.by_kernel
    assert before_ns <= arrival.time_ns <= time.monotonic_ns()
    assert arrival.waited_ns == 7


def test_without_a_socket_it_is_now() -> None:
    before_ns = time.monotonic_ns()
    arrival = ArrivalClock(SystemClock(), None).read()
    assert before_ns <= arrival.time_ns <= time.monotonic_ns()
    assert not arrival.by_kernel


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux stamps like this")
def test_this_machine_stamps() -> None:
    assert kernel_stamps(SystemClock())
    assert not kernel_stamps(SteppedClock())
