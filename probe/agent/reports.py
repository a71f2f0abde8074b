"""One call's RTCP: what the agent says once a second of what it sent and of what it received.

Source: RFC 3550 section 6.4. aiortc's own sender has seen no packet, so its reports would say that nothing was sent.
"""

from __future__ import annotations

from analysis.codecs import Codec
from analysis.errors import MalformedPacket
from analysis.reception import Reception
from analysis.rtcp import ReportBlock, SenderInfo, compound, parse_compound, serialize_receiver_report
from analysis.rtp import RtpPacket
from analysis.units import NS_PER_S
from probe.agent.stream import AgentStream

__all__ = ["Reports"]

CNAME = "demo-agent"
NTP_1970 = 2_208_988_800  # seconds from 1900 to 1970
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
        self._receptions: dict[int, Reception] = {}
        self._sender_reports: dict[int, tuple[int, int]] = {}  # SSRC: middle bits of the NTP time, arrival
        self._packets_sent = 0
        self._octets_sent = 0

    def sent(self, payload: bytes) -> None:
        """A packet left."""
        self._packets_sent += 1
        self._octets_sent += len(payload)

    def received(self, arrival_ns: int, packet: RtpPacket, codec: Codec) -> None:
        """A packet of the caller's arrived."""
        reception = self._receptions.get(packet.ssrc)
        if reception is None:
            if len(self._receptions) >= MAX_STREAMS:
                return
            reception = self._receptions[packet.ssrc] = Reception(codec.clock_rate_hz)
        reception.add(arrival_ns, packet)

    def received_rtcp(self, arrival_ns: int, data: bytes) -> None:
        """A compound packet of the caller's arrived."""
        try:
            reports = parse_compound(data)
        except MalformedPacket:
            return
        for report in reports:
            if report.sender is not None and report.ssrc in self._receptions:
                self._sender_reports[report.ssrc] = report.sender.ntp >> 16 & 0xFFFFFFFF, arrival_ns

    def write(self, now_ns: int, stream: AgentStream, *, bye: bool = False) -> bytes:
        """A sender report where something was sent, else a receiver report; with our name, and BYE at the end."""
        blocks = [self._block(ssrc, reception, now_ns) for ssrc, reception in self._receptions.items()]
        sender = None
        if self._packets_sent:
            wall_ns = now_ns + self._wall_shift_ns
            ntp = (wall_ns // NS_PER_S + NTP_1970 << 32) + ((wall_ns % NS_PER_S << 32) // NS_PER_S)
            sender = SenderInfo(ntp, stream.rtp_timestamp_at(now_ns), self._packets_sent, self._octets_sent)
        return compound(serialize_receiver_report(stream.ssrc, blocks, sender), stream.ssrc, CNAME, bye=bye)

    def _block(self, ssrc: int, reception: Reception, now_ns: int) -> ReportBlock:
        lsr, arrival_ns = self._sender_reports.get(ssrc, (0, 0))
        dlsr = (now_ns - arrival_ns) * 65536 // NS_PER_S if lsr else 0
        return reception.report_block(ssrc, lsr=lsr, dlsr=min(dlsr, 0xFFFFFFFF))
