"""RTP packets in order of arrival into what RFC 3550 and W3C say of their reception.

Sources: RFC 3550 section 6.4.1, appendices A.1, A.3 and A.8; W3C webrtc-stats RTCReceivedRtpStreamStats. Duplicates are
not counted as received, so loss never turns negative through them. A packet whose sequence number goes back and whose
timestamp goes on is not late: the sender has begun again, and what it numbered before stays as it was counted.
"""

from __future__ import annotations

from collections import deque

from analysis.rtcp import ReportBlock
from analysis.rtp import RtpPacket, signed_difference
from analysis.units import NS_PER_S

__all__ = ["Reception"]

MAX_DROPOUT = 3000
RECENT = 4096  # sequence numbers remembered to tell a late packet from a duplicate
LATEST_S = 60  # a timestamp that is older than this by its clock is not of a late packet


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
        self._newest: tuple[int, int] | None = None  # sequence number (extended) and timestamp of the newest sound
        self._seen: set[int] = set()
        self._order: deque[int] = deque()
        self._reported = (0, 0)

    def add(self, arrival_ns: int, packet: RtpPacket, *, sound: bool = True) -> None:
        """Take one packet in; one without sound (comfort noise, a telephone event) counts, but not for the jitter."""
        steps = signed_difference(packet.sequence_number, self._highest & 0xFFFF, 16)
        if self._base is None or abs(steps) >= MAX_DROPOUT or (sound and self._began_again(steps, packet)):
            if self._base is not None:
                self._expected_before += self._highest - self._base + 1
            self._base = self._highest = packet.sequence_number
            self._seen.clear()
            self._order.clear()
            self._previous = self._newest = None
            steps = 0
        sequence = self._highest + steps
        if sequence in self._seen:
            self.duplicates += 1
            return
        self._seen.add(sequence)
        self._order.append(sequence)
        if len(self._order) > RECENT:
            self._seen.discard(self._order.popleft())
        self._base = min(self._base, sequence)
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
        if self._newest is None or sequence > self._newest[0]:
            self._newest = sequence, packet.timestamp

    def _began_again(self, steps: int, packet: RtpPacket) -> bool:
        """Whether a packet that is numbered no higher than the newest has a timestamp that none of those can have."""
        if steps > 0 or self._newest is None or self._highest + steps > self._newest[0]:
            return False
        ticks = signed_difference(packet.timestamp, self._newest[1], 32)
        return ticks > 0 or ticks < -LATEST_S * self.clock_rate_hz

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
