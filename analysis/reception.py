"""RTP packets in order of arrival into what RFC 3550 and W3C say of their reception.

Sources: RFC 3550 section 6.4.1, appendices A.1, A.3 and A.8; W3C webrtc-stats RTCReceivedRtpStreamStats. Duplicates are
not counted as received, so loss never turns negative through them. A sender that begins again and uses its numbers once
more is told from the network's duplicates by the timestamps, or where those are the same too, by two in sequence that
come later than any network holds a packet back; what it numbered before stays as it was counted.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from analysis.rtcp import ReportBlock
from analysis.rtp import RtpPacket, signed_difference
from analysis.units import NS_PER_S

__all__ = ["REUSED_NS", "Reception", "begins_again"]

MAX_DROPOUT = 3000
RECENT = 4096  # sequence numbers remembered to tell a late packet from a duplicate
LATEST_S = 60  # a timestamp that is older than this by its clock is not of a late packet
MAX_SKIPPED = 25  # packets (0.5 s) that may be missing between the first two of a sender that began again
REUSED_NS = 2 * NS_PER_S
"""A number that comes again after this is hardly the network's copy, if the next one does too."""


def begins_again(held: RtpPacket, packet: RtpPacket, *, same_timestamp: bool, fits: bool) -> bool:
    """Whether a packet that fits nowhere and the one after it are the first two of a sender that began again.

    Parameters
    ----------
    held : RtpPacket
        Its number was used before, or is one that its timestamp cannot have.
    packet : RtpPacket
        The next to arrive.
    same_timestamp : bool
        Whether `held` has the timestamp, too, that its number had before.
    fits : bool
        Whether `packet` could belong to what was there before.
    """
    ahead = signed_difference(packet.sequence_number, held.sequence_number, 16)
    if signed_difference(packet.timestamp, held.timestamp, 32) < 0:
        return False
    return ahead == 1 or (1 < ahead <= MAX_SKIPPED and not (same_timestamp or fits))


@dataclass(frozen=True, slots=True)
class _Held:
    """A packet that fits nowhere, until the next one tells whether the sender began again."""

    arrival_ns: int
    packet: RtpPacket
    sound: bool
    same_timestamp: bool


class Reception:
    """What is known of one stream's reception so far; time origin: monotonic ns.

    Parameters
    ----------
    clock_rate_hz : int
        Of the RTP timestamps.
    """

    def __init__(self, clock_rate_hz: int) -> None:
        self.clock_rate_hz = clock_rate_hz
        self.packets_received = 0
        self.bytes_received = 0
        self.header_bytes_received = 0
        self.duplicates = 0
        self.jitter_ticks = 0.0
        self.last_arrival_ns: int | None = None
        self._base: int | None = None
        self._highest = 0
        self._expected_before = 0  # of earlier runs of the stream, before it restarted
        self._previous: tuple[int, int] | None = None
        self._first_ns = 0  # arrival of the first since the sender began
        self._seen: dict[int, tuple[int, int | None]] = {}  # by number: arrival, and timestamp where it is of sound
        self._order: deque[int] = deque()
        self._held: _Held | None = None
        self._reported = (0, 0)

    def add(self, arrival_ns: int, packet: RtpPacket, *, sound: bool = True) -> None:
        """Take one packet in; one without sound (comfort noise, a telephone event) counts, but not for the jitter."""
        held, self._held = self._held, None
        steps = signed_difference(packet.sequence_number, self._highest & 0xFFFF, 16)
        if self._base is None or abs(steps) >= MAX_DROPOUT:
            self._begin(arrival_ns, packet)
            steps = 0
        sequence = self._highest + steps
        known = self._seen.get(sequence)
        fits = steps > 0 or (
            self._copied(arrival_ns, packet, known) if known else self._late(arrival_ns, packet, steps)
        )
        # after a mere copy, however old that is, what is new or a young copy goes on with what was there before
        if held is not None and not (held.same_timestamp and fits and (steps > 0 or known)):
            same = held.same_timestamp
            if begins_again(held.packet, packet, same_timestamp=same, fits=fits):
                self.duplicates -= same
                self._begin(held.arrival_ns, held.packet)
                self._count(self._highest, held.arrival_ns, held.packet, sound=held.sound)
                ahead = signed_difference(packet.sequence_number, held.packet.sequence_number, 16)
                self._count(self._highest + ahead, arrival_ns, packet, sound=sound)
                return
        same = known is not None and (not sound or known[1] in (None, packet.timestamp))
        self.duplicates += same
        if not fits and (sound or same):
            self._held = _Held(arrival_ns, packet, sound, same)
        elif known is None:
            self._count(sequence, arrival_ns, packet, sound=sound)

    def _begin(self, arrival_ns: int, packet: RtpPacket) -> None:
        """What numbers come from here on are those of a sender that began with this packet."""
        self._expected_before = self.packets_expected
        self._base = self._highest = packet.sequence_number
        self._first_ns = arrival_ns
        self._seen.clear()
        self._order.clear()
        self._previous = None

    def _count(self, sequence: int, arrival_ns: int, packet: RtpPacket, *, sound: bool) -> None:
        self._seen[sequence] = arrival_ns, packet.timestamp if sound else None
        self._order.append(sequence)
        if len(self._order) > RECENT:
            self._seen.pop(self._order.popleft(), None)
        self._base = sequence if self._base is None else min(self._base, sequence)
        self._highest = max(self._highest, sequence)
        self.packets_received += 1
        self.bytes_received += len(packet.payload)
        self.header_bytes_received += packet.header_bytes
        self.last_arrival_ns = arrival_ns
        if not sound:
            return
        if self._previous is not None:
            before_ns, before_timestamp = self._previous
            ticks = (arrival_ns - before_ns) * self.clock_rate_hz / NS_PER_S
            d = ticks - signed_difference(packet.timestamp, before_timestamp, 32)
            self.jitter_ticks += (abs(d) - self.jitter_ticks) / 16
        self._previous = arrival_ns, packet.timestamp

    @staticmethod
    def _copied(arrival_ns: int, packet: RtpPacket, known: tuple[int, int | None]) -> bool:
        """Whether a packet whose number is here may be the network's copy of that one."""
        return known[1] in (None, packet.timestamp) and arrival_ns - known[0] < REUSED_NS

    def _late(self, arrival_ns: int, packet: RtpPacket, steps: int) -> bool:
        """Whether a packet whose number is missing may have been overtaken: its timestamp lies between others."""
        sequence, first = self._highest + steps, self._base or 0
        after = self._timestamp(range(sequence + 1, self._highest + 1))
        before = self._timestamp(range(sequence - 1, max(first, sequence - MAX_DROPOUT) - 1, -1))
        ticks = 0 if after is None else signed_difference(after, packet.timestamp, 32)
        if ticks < 0 or ticks > LATEST_S * self.clock_rate_hz:
            # unless it is the sender that stepped its timestamps back there
            return before is not None and after is not None and signed_difference(after, before, 32) < 0
        if before is not None:
            return signed_difference(packet.timestamp, before, 32) >= 0
        return sequence > first or arrival_ns - self._first_ns < REUSED_NS

    def _timestamp(self, among: range) -> int | None:
        """The first timestamp of sound that is known of these numbers."""
        found = (self._seen[s][1] for s in among if s in self._seen)
        return next((timestamp for timestamp in found if timestamp is not None), None)

    @property
    def packets_expected(self) -> int:
        """Packets that the sequence numbers say were sent."""
        return self._expected_before + (0 if self._base is None else self._highest - self._base + 1)

    @property
    def packets_lost(self) -> int:
        """Expected less received."""
        return self.packets_expected - self.packets_received

    @property
    def jitter_s(self) -> float:
        """Interarrival jitter (RFC 3550 A.8) in seconds."""
        return self.jitter_ticks / self.clock_rate_hz

    def report_block(self, ssrc: int, *, lsr: int = 0, dlsr: int = 0) -> ReportBlock:
        """A report block; its fraction lost is over the time since the block before."""
        expected = self.packets_expected - self._reported[0]
        received = self.packets_received - self._reported[1]
        self._reported = self.packets_expected, self.packets_received
        lost = expected - received
        fraction = min(255, lost * 256 // expected) if expected > 0 and lost > 0 else 0
        return ReportBlock(
            ssrc, fraction, self.packets_lost, self._highest & 0xFFFFFFFF, int(self.jitter_ticks), lsr, dlsr
        )
