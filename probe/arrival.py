"""When the kernel took a datagram in, however late this process came to read it.

Source: Linux socket(7), SIOCGSTAMPNS: the receive time stamp of the last packet handed to the user, on the wall clock.
Only the packet's *age* is taken from the wall clock, between two readings that are microseconds apart, and then laid
on the monotonic clock; an age that is not believable (the wall clock was stepped, another system) falls back to now.
"""

from __future__ import annotations

import contextlib
import importlib
import socket
import struct
import sys
from collections.abc import Callable
from dataclasses import dataclass

from probe.clock import Clock

__all__ = ["Arrival", "ArrivalClock", "kernel_stamps"]

SIOCGSTAMPNS = 0x8907
_TIMESPEC = struct.Struct("@ll")
MAX_AGE_NS = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Arrival:
    """`time_ns` (monotonic), how long the packet then waited to be read, and whether the kernel said so."""

    time_ns: int
    waited_ns: int
    by_kernel: bool


class ArrivalClock:
    """Stamps what has just been read from one socket.

    Parameters
    ----------
    clock : Clock
    sock : socket, optional
        None where the datagrams do not come from a socket of ours (a relay).
    lag_ns : callable, optional
        How long what is read now may have been waiting, where the kernel does not say.
    """

    def __init__(self, clock: Clock, sock: socket.socket | None, lag_ns: Callable[[], int] | None = None) -> None:
        self._clock = clock
        self._lag_ns = lag_ns
        self._stamp = bytearray(_TIMESPEC.size)
        self._fd = -1
        if sock is not None and sys.platform == "linux":
            self._fd = sock.fileno()
            self._ioctl = importlib.import_module("fcntl").ioctl  # not on every system
            # the first call switches the stamps on, and fails while there is none yet
            with contextlib.suppress(OSError):
                self._ioctl(self._fd, SIOCGSTAMPNS, self._stamp)

    def read(self) -> Arrival:
        """The arrival of the datagram that was read last. Call right after reading it."""
        now_ns, wall_ns = self._clock.monotonic_ns(), self._clock.wall_ns()
        if self._fd >= 0:
            try:
                self._ioctl(self._fd, SIOCGSTAMPNS, self._stamp)
            except OSError:
                self._fd = -1
            else:
                seconds, ns = _TIMESPEC.unpack(self._stamp)
                age_ns = wall_ns - seconds * 1_000_000_000 - ns
                if 0 <= age_ns <= MAX_AGE_NS:
                    return Arrival(now_ns - age_ns, age_ns, by_kernel=True)
        return Arrival(now_ns, 0 if self._lag_ns is None else self._lag_ns(), by_kernel=False)


def kernel_stamps(clock: Clock) -> bool:
    """Whether this machine's kernel stamps what arrives: tried on a datagram to ourselves."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        try:
            sock.bind(("127.0.0.1", 0))
            sock.settimeout(1.0)
            stamps = ArrivalClock(clock, sock)
            sock.sendto(b"?", sock.getsockname())
            sock.recv(1)
        except OSError:
            return False
        return stamps.read().by_kernel
