"""The times of one stream in a capture whose clock was set while it ran: where it steps back, and where it jumps ahead.

A file says nothing of it. What tells is RTP itself (RFC 3550 section 5.1): numbers and timestamps that go on as before
while the time of the capture does not.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import pairwise
from statistics import median

from analysis.capture import CapturedDatagram
from analysis.rtp import signed_difference
from analysis.streams import Timed
from analysis.units import NS_PER_MS, NS_PER_S

__all__ = ["clock_shifts", "jumps_ahead"]

MAX_STEP = 100  # of the sequence number from packet to packet, where a stream goes on
UNSORTED_NS = 5 * NS_PER_MS  # queues of one capture are written out of order by as much
AROUND = 10  # packets before and after a step that are looked at
FAR_BACK_NS = NS_PER_S  # no queue: another part of the capture, or the clock was set
PLAUSIBLE_HZ = (7000, 100_000)  # of RTP clocks
JUMP_NS = 200 * NS_PER_MS  # beyond what one packet is late without others behind it that catch up
STAYS = 0.8  # of a jump, while the packets come that follow it
WATCHED = 50  # packets after a jump
MIN_WATCHED = 3


def clock_shifts(datagrams: Sequence[CapturedDatagram]) -> tuple[list[int], int]:
    """What to add to the time of each datagram so that time goes on where the capture's clock was set back.

    Parameters
    ----------
    datagrams : sequence of CapturedDatagram
        The RTP of one stream in the order of the file.

    Returns
    -------
    list of int
        In ns, one for each datagram; time stands still over a step, since how much passed there is not known.
    int
        How many steps there are.

    Notes
    -----
    A file may also be out of order without any step: its interfaces were written in turns, or its sections were put
    together the wrong way round. Then the numbers and timestamps go back together with the time, as far as it does. Or
    it is in the order of the numbers: then a packet that was late is followed by some that were not.
    """
    shifts: list[int] = []
    shift_ns = steps = 0
    before = datagrams[0]
    ahead: deque[CapturedDatagram] = deque([before], AROUND)  # that went on, the newest last
    rate_hz: float | None = None
    for at, datagram in enumerate(datagrams):
        number, ticks = _distance(ahead[-1], datagram)
        goes_on = 0 < number <= MAX_STEP and ticks >= 0
        since = ahead[-1] if goes_on else before
        back_ns = since.time_ns - datagram.time_ns
        if goes_on and back_ns > UNSORTED_NS:
            rate_hz = rate_hz or _rate_hz(datagrams)
            stepped = _stays_back(ahead, datagrams[at : at + AROUND], back_ns, rate_hz)
        else:
            stepped = back_ns > FAR_BACK_NS and not _earlier_part(since, datagram)
        if stepped:
            steps += 1
            shift_ns += back_ns
        if stepped or abs(number) > MAX_STEP or abs(back_ns) > FAR_BACK_NS:
            ahead.clear()
            ahead.append(datagram)
        elif goes_on:
            ahead.append(datagram)
        before = datagram
        shifts.append(shift_ns)
    return shifts, steps


def _rate_hz(datagrams: Sequence[CapturedDatagram]) -> float:
    """About the clock rate of a stream: the median step of its timestamps over that of its times."""
    steps = [(_distance(a, b)[1], b.time_ns - a.time_ns) for a, b in pairwise(datagrams)]
    forward = [(ticks, ns) for ticks, ns in steps if ticks > 0 and ns > 0]
    if not forward:
        return PLAUSIBLE_HZ[0]
    return median(ticks for ticks, _ in forward) * NS_PER_S / median(ns for _, ns in forward)


def _stays_back(
    before: Sequence[CapturedDatagram], after: Sequence[CapturedDatagram], back_ns: int, rate_hz: float
) -> bool:
    """True where not one packet was late, but all that follow lie back, measured against the timestamps."""

    def early_ns(datagram: CapturedDatagram) -> float:
        return _distance(after[0], datagram)[1] * NS_PER_S / rate_hz - datagram.time_ns

    if len(before) < MIN_WATCHED or len(after) < MIN_WATCHED:
        return back_ns > FAR_BACK_NS
    return median(map(early_ns, after)) - median(map(early_ns, before)) >= STAYS * back_ns


def _distance(one: CapturedDatagram, other: CapturedDatagram) -> tuple[int, int]:
    """From one packet to the other: steps of the sequence number, and of the timestamp."""

    def step(begin: int, end: int) -> int:
        before, after = (int.from_bytes(d.payload[begin:end], "big") for d in (one, other))
        return signed_difference(after, before, 8 * (end - begin))

    return step(2, 4), step(4, 8)


def _earlier_part(later: CapturedDatagram, datagram: CapturedDatagram) -> bool:
    """True where the timestamps go back by as much as the time does, at some rate that RTP clocks have."""
    _, ticks = _distance(later, datagram)
    seconds = (later.time_ns - datagram.time_ns) / NS_PER_S
    return PLAUSIBLE_HZ[0] * seconds <= -ticks <= PLAUSIBLE_HZ[1] * seconds


def jumps_ahead(packets: Sequence[Timed], clock_rate_hz: int) -> list[tuple[int, int]]:
    """Where time jumps ahead of the timestamps for good, though no packet is missing.

    Parameters
    ----------
    packets : sequence of Timed
        In order of arrival, of one clock rate.
    clock_rate_hz : int

    Returns
    -------
    list of (int, int)
        When the packet before the jump arrived, and how far time jumped (both ns). After a stall of the network packets
        catch up with the timestamps; where none does, the clock was set or the sender stood still.
    """
    found: list[tuple[int, int]] = []
    for at, (a, b) in enumerate(pairwise(packets), start=1):
        numbers = signed_difference(b.packet.sequence_number, a.packet.sequence_number, 16)
        if b.time_ns - a.time_ns < JUMP_NS or numbers != 1:
            continue
        jump_ns = _late_ns(a, b, clock_rate_hz)
        after = [_late_ns(a, timed, clock_rate_hz) for timed in packets[at : at + WATCHED]]
        if jump_ns >= JUMP_NS and len(after) >= MIN_WATCHED and min(after) >= STAYS * jump_ns:
            found.append((a.time_ns, jump_ns))
    return found


def _late_ns(origin: Timed, timed: Timed, clock_rate_hz: int) -> int:
    """How much later a packet came than its timestamp says, seen from another one."""
    ticks = signed_difference(timed.packet.timestamp, origin.packet.timestamp, 32)
    return timed.time_ns - origin.time_ns - ticks * NS_PER_S // clock_rate_hz
