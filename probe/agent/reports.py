"""One call's RTCP: what the agent says once a second of what it sent and of what it received.

Sources: RFC 3550 section 6.4, RFC 3611 sections 4.4 and 4.5. aiortc's own sender has seen no packet, so its reports
would say that nothing was sent, and it passes extended reports over.
"""

from __future__ import annotations

from analysis.codecs import Codec
from analysis.reception import Reception
from analysis.rtcp import (
    ExtendedReport,
    ReportBlock,
    SenderInfo,
    compound,
    ntp_from_unix_ns,
    serialize_extended_report,
    serialize_receiver_report,
)
from analysis.rtcp_statistics import RtcpLedger
from analysis.rtp import RtpPacket
from probe.agent.stream import AgentStream

__all__ = ["Reports"]

CNAME = "demo-agent"
MAX_STREAMS = 31  # as many as fit a report


class Reports:
    """Counts, and writes the reports.

    Parameters
    ----------
    wall_shift_ns : int
        Wall time less monotonic time when the process began; a step of the wall clock later on moves nothing.
    """

    def __init__(self, wall_shift_ns: int) -> None:
        self._wall_shift_ns = wall_shift_ns
        self.reference_times = False
        """Whether the caller takes reference times of ours, and answers them."""
        self._receptions: dict[int, Reception] = {}
        self._ledger = RtcpLedger(wall_shift_ns)
        self._sent: dict[int, tuple[int, int]] = {}  # by SSRC, since each counts anew: packets, octets of payload

    def sent(self, ssrc: int, payload: bytes) -> None:
        """A packet of this source left."""
        packets, octets = self._sent.get(ssrc, (0, 0))
        self._sent[ssrc] = packets + 1, octets + len(payload)

    def received(self, arrival_ns: int, packet: RtpPacket, codec: Codec) -> None:
        """A packet of the caller's arrived."""
        reception = self._receptions.get(packet.ssrc)
        if reception is None:
            if len(self._receptions) >= MAX_STREAMS:
                return
            reception = self._receptions[packet.ssrc] = Reception(codec.clock_rate_hz)
        reception.add(arrival_ns, packet)

    def received_rtcp(self, arrival_ns: int, data: bytes) -> None:
        """RTCP of the caller's arrived."""
        self._ledger.received(arrival_ns, data)

    def ntp(self, time_ns: int) -> int:
        """A moment (monotonic ns) on the agent's own NTP clock."""
        return ntp_from_unix_ns(time_ns + self._wall_shift_ns)

    def write(self, now_ns: int, stream: AgentStream, *, bye: bool = False) -> bytes:
        """A sender report where something was sent, else a receiver report; our name; XR if due; BYE at the end."""
        blocks = [self._block(ssrc, reception, now_ns) for ssrc, reception in self._receptions.items()]
        ntp, sender = self.ntp(now_ns), None
        if stream.ssrc in self._sent:
            sender = SenderInfo(ntp, stream.rtp_timestamp_at(now_ns), *self._sent[stream.ssrc])
        report = serialize_receiver_report(stream.ssrc, blocks, sender)
        more = ExtendedReport(stream.ssrc, ntp if self.reference_times else None, self._ledger.delays(now_ns))
        extended = serialize_extended_report(more) if self.reference_times or more.delays else b""
        return compound(report, stream.ssrc, CNAME, extended=extended, bye=bye)

    def _block(self, ssrc: int, reception: Reception, now_ns: int) -> ReportBlock:
        lsr, dlsr = self._ledger.last_report(ssrc, now_ns)
        return reception.report_block(ssrc, lsr=lsr, dlsr=dlsr)
