"""What passes during a call into snapshots of W3C statistics: all that packets alone determine, nothing decoded.

Sources: W3C webrtc-stats (RTCInboundRtpStreamStats, RTCOutboundRtpStreamStats and what they refer to), RFC 3550 section
6.4.1. Cumulative from the start of the call; what is unknown is absent, never 0. Time origin: monotonic ns; the
timestamps in the objects are ms since 1970 on the wall clock as it stood when the recording began.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from analysis.capture_time import capture_time_of
from analysis.codecs import Codec
from analysis.reception import Reception
from analysis.rtcp import ReportBlock
from analysis.rtcp_statistics import MAX_STREAMS, RtcpLedger, capture_fields
from analysis.rtp import RtpPacket, header_bytes
from analysis.units import ns_to_ms
from probe.path_statistics import TRANSPORT_ID, codec_id, codec_statistics, path_statistics
from probe.tap import MediaTap

__all__ = ["LiveStatistics"]


@dataclass(slots=True)
class _Inbound:
    reception: Reception
    payload_type: int  # of the last packet whose codec is known
    last: RtpPacket


@dataclass(slots=True)
class _Outbound:
    payload_type: int
    packets: int = 0
    payload_bytes: int = 0
    header_bytes: int = 0


class LiveStatistics:
    """Counts one call's packets and writes what they come to.

    Parameters
    ----------
    payload_types : mapping of int to Codec
        As negotiated; may be filled later.
    wall_shift_ns : int
        Wall time less monotonic time when the recording began.

    Attributes
    ----------
    ledger : RtcpLedger
        Of the reports both ways.
    capture_time_id : int or None
        Negotiated identifier of abs-capture-time.
    """

    def __init__(self, payload_types: Mapping[int, Codec], wall_shift_ns: int) -> None:
        self.ledger = RtcpLedger(wall_shift_ns)
        self.capture_time_id: int | None = None
        self._payload_types = payload_types
        self._wall_shift_ns = wall_shift_ns
        self._inbound: dict[int, _Inbound] = {}
        self._outbound: dict[int, _Outbound] = {}

    # -- packets

    def received(self, time_ns: int, packet: RtpPacket) -> Codec | None:
        """Take an RTP packet in; its codec, None where that is not one of ours (comfort noise, a telephone event)."""
        codec = self._payload_types.get(packet.payload_type)
        stream = self._inbound.get(packet.ssrc)
        if stream is None:
            if codec is None or len(self._inbound) >= MAX_STREAMS:
                return None
            stream = _Inbound(Reception(codec.clock_rate_hz), packet.payload_type, packet)
            self._inbound[packet.ssrc] = stream
        stream.reception.add(time_ns, packet, sound=codec is not None)
        stream.last = packet
        if codec is not None:
            stream.payload_type = packet.payload_type
        return codec

    def sent(self, data: bytes) -> None:
        """Take note of an RTP packet of ours; it is not parsed, since this is in the way of the next one."""
        ssrc = int.from_bytes(data[8:12], "big")
        stream = self._outbound.get(ssrc)
        if stream is None:
            stream = self._outbound[ssrc] = _Outbound(data[1] & 0x7F)
            self.ledger.sends(ssrc)
        header = header_bytes(data)
        stream.packets += 1
        stream.header_bytes += header
        stream.payload_bytes += len(data) - header

    def report_blocks(self, now_ns: int) -> list[ReportBlock]:
        """What a receiver report of ours says now of each stream; the fraction lost is since the one before."""
        blocks = []
        for ssrc, stream in self._inbound.items():
            lsr, dlsr = self.ledger.last_report(ssrc, now_ns)
            blocks.append(stream.reception.report_block(ssrc, lsr=lsr, dlsr=dlsr))
        return blocks

    def reception(self) -> tuple[int, float]:
        """Packets lost so far, over all streams, and the jitter (s) of the one that was heard last."""
        if not self._inbound:
            return 0, 0.0
        receptions = [stream.reception for stream in self._inbound.values()]
        latest = max(receptions, key=lambda r: r.last_arrival_ns or 0)
        return sum(r.packets_lost for r in receptions), latest.jitter_s

    # -- snapshots

    def snapshot(self, now_ns: int, tap: MediaTap, transceiver: Any) -> list[dict[str, Any]]:
        """All objects as they stand."""
        stats = path_statistics(tap, self._wall_shift_ns)
        payload_types: set[int] = set()
        mid = {} if transceiver.mid is None else {"mid": transceiver.mid}
        for ssrc, inbound in self._inbound.items():
            stats.append(mid | self._inbound_fields(ssrc, inbound))
            remote = self.ledger.remote_outbound(ssrc)
            if remote is not None:
                stats[-1]["remoteId"] = remote["id"]
                stats.append(remote | _refers(inbound.payload_type))
            payload_types.add(inbound.payload_type)
        for ssrc, outbound in self._outbound.items():
            stats.append(mid | _outbound_fields(ssrc, outbound))
            codec = self._payload_types.get(outbound.payload_type)
            remote = None if codec is None else self.ledger.remote_inbound(ssrc, codec.clock_rate_hz)
            if remote is not None:
                stats[-1]["remoteId"] = remote["id"]
                stats.append(remote | _refers(outbound.payload_type))
            payload_types.add(outbound.payload_type)
        stats += [codec_statistics(c) for c in transceiver._codecs if c.payloadType in payload_types]
        timestamp = ns_to_ms(now_ns + self._wall_shift_ns)
        for fields in stats:
            fields.setdefault("timestamp", timestamp)
        return stats

    def _inbound_fields(self, ssrc: int, stream: _Inbound) -> dict[str, Any]:
        r = stream.reception
        fields = {
            "id": f"inbound-rtp-{ssrc}",
            "type": "inbound-rtp",
            "kind": "audio",
            "ssrc": ssrc,
            **_refers(stream.payload_type),
            "packetsReceived": r.packets_received,
            "packetsLost": r.packets_lost,
            "jitter": r.jitter_s,
            "bytesReceived": r.bytes_received,
            "headerBytesReceived": r.header_bytes_received,
        }
        if r.last_arrival_ns is not None:
            fields["lastPacketReceivedTimestamp"] = ns_to_ms(r.last_arrival_ns + self._wall_shift_ns)
        captured = capture_time_of(stream.last, self.capture_time_id)
        return fields if captured is None else fields | capture_fields(captured)


def _refers(payload_type: int) -> dict[str, Any]:
    return {"transportId": TRANSPORT_ID, "codecId": codec_id(payload_type)}


def _outbound_fields(ssrc: int, stream: _Outbound) -> dict[str, Any]:
    return {
        "id": f"outbound-rtp-{ssrc}",
        "type": "outbound-rtp",
        "kind": "audio",
        "ssrc": ssrc,
        **_refers(stream.payload_type),
        "packetsSent": stream.packets,
        "bytesSent": stream.payload_bytes,
        "headerBytesSent": stream.header_bytes,
    }
