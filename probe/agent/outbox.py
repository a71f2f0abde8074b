"""Packets on their way out: each leaves at its moment, and what became of it is kept for as long as truth needs it."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from itertools import islice
from typing import Protocol

from analysis.rtp import signed_difference
from analysis.streams import SPLIT_GAP_MS
from analysis.units import NS_PER_MS
from probe.agent.stream import ReplayWindow, SentPacket
from probe.agent.truth import Departure

__all__ = ["Handle", "Outbox", "Scheduler"]

# What is decoded before a sound: the 2 s that the noise floor looks at, and time for the decoder's state to be right
HISTORY_NS = 3_500 * NS_PER_MS
HISTORY_PACKETS = 25
SPLIT_NS = SPLIT_GAP_MS * NS_PER_MS + 20 * NS_PER_MS  # between the beginnings of two packets
MAX_KEPT = 600  # packets; looking through the history at every one would cost more than keeping some


class Handle(Protocol):
    """Something that was scheduled."""

    def cancel(self) -> None:
        """It is not to happen."""
        ...


class Scheduler(Protocol):
    """Gives the time and calls back."""

    def now_ns(self) -> int:
        """Now, monotonic ns."""
        ...

    def at(self, time_ns: int, callback: Callable[[], None]) -> Handle:
        """Call back at `time_ns`, or as soon as possible."""
        ...


class Outbox:
    """The packets of one call, in order of their count.

    Parameters
    ----------
    scheduler : Scheduler
    transmit : callable
        Sends a packet (as often as its `copies` say); returns when it left (ns), None where that failed.
    replay : ReplayWindow or None
        The receiver's SRTP, where there is one.
    """

    def __init__(
        self, scheduler: Scheduler, transmit: Callable[[SentPacket], int | None], replay: ReplayWindow | None
    ) -> None:
        self._scheduler = scheduler
        self._transmit = transmit
        self._replay = replay
        self._kept: deque[Departure] = deque()
        self._first_kept = 0
        self._waiting: list[tuple[int, int, SentPacket, Callable[[], None] | None]] = []
        self._timer: Handle | None = None
        self._timer_ns = 0
        self._latest: SentPacket | None = None
        self._span_timestamp = 0

    def post(self, packet: SentPacket, on_left: Callable[[], None] | None = None) -> None:
        """Take the next packet; `on_left` is called once it has left, or will not."""
        if not self._kept:
            self._first_kept = packet.count
        self._kept.append(Departure(packet, None, not packet.lost, self._span_of(packet)))
        if packet.lost:
            if on_left is not None:
                on_left()
        elif packet.send_ns <= self._scheduler.now_ns() and not (
            self._waiting and self._waiting[0][0] <= packet.send_ns
        ):
            self._send(packet, on_left)
        else:
            heapq.heappush(self._waiting, (packet.send_ns, packet.count, packet, on_left))
            self._arm()

    def _span_of(self, packet: SentPacket) -> int:
        """The timestamp at which the packet's stretch of the stream began."""
        before, self._latest = self._latest, packet
        goes_on = (
            before is not None
            and before.ssrc == packet.ssrc
            and signed_difference(packet.sequence_number, before.sequence_number, 16) == 1
            and packet.nominal_ns - before.nominal_ns < SPLIT_NS
        )
        if not goes_on:
            self._span_timestamp = packet.timestamp
        return self._span_timestamp

    def discard_waiting(self) -> None:
        """What has not left never will."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        waiting, self._waiting = self._waiting, []
        for _, _, packet, _ in waiting:
            self._note(packet, None, delivered=False)

    def _arm(self) -> None:
        at_ns = self._waiting[0][0]
        if self._timer is not None:
            if self._timer_ns <= at_ns:
                return
            self._timer.cancel()
        self._timer_ns = at_ns
        self._timer = self._scheduler.at(at_ns, self._send_due)

    def _send_due(self) -> None:
        self._timer = None
        now_ns = self._scheduler.now_ns()
        while self._waiting and self._waiting[0][0] <= now_ns:
            _, _, packet, on_left = heapq.heappop(self._waiting)
            self._send(packet, on_left)
        if self._waiting:
            self._arm()

    def _send(self, packet: SentPacket, on_left: Callable[[], None] | None) -> None:
        left_ns = self._transmit(packet)
        delivered = left_ns is not None and (self._replay is None or self._replay.accepts(packet))
        self._note(packet, left_ns, delivered=delivered)
        if on_left is not None:
            on_left()

    def _note(self, packet: SentPacket, left_ns: int | None, *, delivered: bool) -> None:
        at = packet.count - self._first_kept
        if 0 <= at < len(self._kept):
            self._kept[at] = replace(self._kept[at], left_ns=left_ns, delivered=delivered)

    def window(self, first_count: int, stop_count: int) -> tuple[Departure, ...]:
        """The packets from `first_count` to before `stop_count`, and the history before them."""
        if first_count >= stop_count:
            return ()
        first = self._history(first_count) - self._first_kept
        return tuple(islice(self._kept, first, stop_count - self._first_kept))

    def forget_before(self, count: int) -> None:
        """Nothing from before `count`, less its history, will be asked for."""
        if count - self._first_kept > MAX_KEPT:
            for _ in range(self._history(min(count, self._first_kept + len(self._kept) - 1)) - self._first_kept):
                self._kept.popleft()
                self._first_kept += 1

    def _history(self, count: int) -> int:
        """Where the history before packet `count` begins: at least so many packets, and so much time."""
        at = count - self._first_kept
        since_ns = self._kept[at].packet.nominal_ns - HISTORY_NS
        first = max(0, at - HISTORY_PACKETS)
        while first and self._kept[first - 1].packet.nominal_ns >= since_ns:
            first -= 1
        return self._first_kept + first
