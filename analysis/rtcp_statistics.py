"""Reports that went both ways into what each end says of the other, in W3C names: during the call and from a recording.

Sources: W3C webrtc-stats (RTCRemoteInboundRtpStreamStats, RTCRemoteOutboundRtpStreamStats), RFC 3550 section 6.4, RFC
3611 sections 4.4 and 4.5. Times are monotonic ns; what is unknown is absent.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from analysis.bundle import CallRecord
from analysis.capture import CapturedDatagram
from analysis.capture_rtp import RtpStream
from analysis.capture_time import ABS_CAPTURE_TIME_URI, CaptureTime, capture_time_of
from analysis.codecs import CODECS, Codec
from analysis.errors import MalformedPacket, NotMeasurable
from analysis.pcap import Direction
from analysis.rtcp import (
    DelaySinceReference,
    ExtendedReport,
    ReceiverReport,
    ReportBlock,
    SenderInfo,
    SenderReport,
    middle_ntp,
    parse_rtcp,
    round_trip_ns,
    unix_ns_from_ntp,
)
from analysis.rtp import is_rtcp, is_rtp_or_rtcp
from analysis.sender_clock import SentAt, arrival_drift, sender_clock
from analysis.streams import Timed
from analysis.units import NS_PER_S, ns_to_ms, ns_to_s

__all__ = [
    "EARLIEST_WALL_NS",
    "RoundTrip",
    "RtcpLedger",
    "call_rtcp_statistics",
    "capture_fields",
    "captured_reports",
    "captured_rtcp_statistics",
    "rtcp_statistics",
]

EARLIEST_WALL_NS = 365 * 86400 * NS_PER_S  # times before 1971 are of no wall clock
MAX_STREAMS = 64  # SSRCs that are kept; a hostile peer may send any number
MAX_OWN_REPORTS = 256  # that an answer is waited for: more than four minutes of one a second
MOST_DELAY = 0xFFFFFFFF
MAX_STAMPS = 20_000  # capture times that a drift is taken from


@dataclass(frozen=True, slots=True)
class RoundTrip:
    """One round trip, known at `time_ns`; `source` is `rr`, `dlrr` or `stun`."""

    time_ns: int
    rtt_ns: int
    source: str = "rr"


class _Trips:
    """Round trips of one kind about one stream."""

    def __init__(self) -> None:
        self.last_ns = self.total_ns = self.count = 0

    def add(self, rtt_ns: int) -> None:
        self.last_ns = rtt_ns
        self.total_ns += rtt_ns
        self.count += 1

    def fields(self) -> dict[str, Any]:
        if not self.count:
            return {}
        return {
            "roundTripTime": ns_to_s(self.last_ns),
            "totalRoundTripTime": ns_to_s(self.total_ns),
            "roundTripTimeMeasurements": self.count,
        }


class RtcpLedger:
    """Keeps the books on one call's RTCP.

    Parameters
    ----------
    wall_shift_ns : int
        Wall time less monotonic time at the start of the recording, for W3C's timestamps.
    on_round_trip : callable, optional
        Told each round trip.

    Attributes
    ----------
    malformed : int
        Datagrams that were not RTCP, or cut off.
    """

    def __init__(self, wall_shift_ns: int = 0, on_round_trip: Callable[[RoundTrip], None] | None = None) -> None:
        self.malformed = 0
        self._wall_shift_ns = wall_shift_ns
        self._on_round_trip = on_round_trip
        self._own: set[int] = set()
        self._own_reports: dict[int, int] = {}  # middle bits of our SR's NTP time: when it left
        self._own_references: dict[int, int] = {}  # likewise of our reference time reports
        self._blocks: dict[int, tuple[int, ReportBlock]] = {}  # our SSRC: arrival and the last block about it
        self._block_trips: defaultdict[int, _Trips] = defaultdict(_Trips)
        self._senders: dict[int, tuple[int, SenderInfo, int]] = {}  # their SSRC: arrival, last report, how many
        self._references: dict[int, tuple[int, int]] = {}  # their SSRC: arrival and middle bits of its reference time
        self._delay_trips: defaultdict[int, _Trips] = defaultdict(_Trips)

    def sends(self, ssrc: int) -> None:
        """Take note that this stream is ours: reports about any other are passed over."""
        self._own.add(ssrc)

    def sent(self, time_ns: int, data: bytes) -> None:
        """RTCP of ours left."""
        for packet in self._parsed(data):
            if isinstance(packet, SenderReport):
                _remember(self._own_reports, middle_ntp(packet.sender.ntp), time_ns)
            elif isinstance(packet, ExtendedReport) and packet.reference_ntp is not None:
                _remember(self._own_references, middle_ntp(packet.reference_ntp), time_ns)

    def received(self, time_ns: int, data: bytes) -> None:
        """RTCP of the peer's arrived."""
        for packet in self._parsed(data):
            if isinstance(packet, SenderReport):
                self._take_sender(time_ns, packet)
            if isinstance(packet, SenderReport | ReceiverReport):
                self._take_blocks(time_ns, packet.blocks)
            elif isinstance(packet, ExtendedReport):
                self._take_extended(time_ns, packet)

    def _parsed(self, data: bytes) -> tuple[Any, ...]:
        try:
            return parse_rtcp(data)
        except MalformedPacket:
            self.malformed += 1
            return ()

    def _take_sender(self, time_ns: int, report: SenderReport) -> None:
        _, known, count = self._senders.get(report.ssrc, (0, None, 0))
        if known == report.sender or (known is None and len(self._senders) >= MAX_STREAMS):
            return
        self._senders[report.ssrc] = time_ns, report.sender, count + 1

    def _take_blocks(self, time_ns: int, blocks: Sequence[ReportBlock]) -> None:
        for block in blocks:
            if block.ssrc in self._own:
                self._blocks[block.ssrc] = time_ns, block
                if block.lsr:
                    sent_ns = self._own_reports.get(block.lsr)
                    self._take_trip(self._block_trips[block.ssrc], "rr", time_ns, sent_ns, block.dlsr)

    def _take_extended(self, time_ns: int, report: ExtendedReport) -> None:
        known = report.ssrc in self._references or len(self._references) < MAX_STREAMS
        if report.reference_ntp is not None and known:
            self._references[report.ssrc] = time_ns, middle_ntp(report.reference_ntp)
        for delay in report.delays:
            if delay.ssrc in self._own and delay.lrr and len(self._delay_trips) < MAX_STREAMS:
                sent_ns = self._own_references.get(delay.lrr)
                self._take_trip(self._delay_trips[report.ssrc], "dlrr", time_ns, sent_ns, delay.dlrr)

    def _take_trip(self, trips: _Trips, source: str, time_ns: int, sent_ns: int | None, delay: int) -> None:
        rtt_ns = None if sent_ns is None else round_trip_ns(delay, arrival_ns=time_ns, sent_ns=sent_ns)
        if rtt_ns is not None:
            trips.add(rtt_ns)
            if self._on_round_trip is not None:
                self._on_round_trip(RoundTrip(time_ns, rtt_ns, source))

    # -- for our own reports

    def last_report(self, ssrc: int, now_ns: int) -> tuple[int, int]:
        """`lsr` and `dlsr` for a block about this stream; both 0 where no sender report of it has come."""
        if ssrc not in self._senders:
            return 0, 0
        arrival_ns, sender, _ = self._senders[ssrc]
        return middle_ntp(sender.ntp), _since(arrival_ns, now_ns)

    def delays(self, now_ns: int) -> tuple[DelaySinceReference, ...]:
        """What we owe those who have sent us reference times."""
        return tuple(
            DelaySinceReference(ssrc, middle, _since(arrival_ns, now_ns))
            for ssrc, (arrival_ns, middle) in self._references.items()
        )

    # -- statistics

    def _stamp(self, arrival_ns: int) -> dict[str, float]:
        wall_ns = arrival_ns + self._wall_shift_ns
        return {"timestamp": ns_to_ms(wall_ns)} if wall_ns > EARLIEST_WALL_NS else {}

    def remote_inbound(self, ssrc: int, clock_rate_hz: int) -> dict[str, Any] | None:
        """`remote-inbound-rtp` of our stream; None where no report about it has come."""
        if ssrc not in self._blocks:
            return None
        arrival_ns, block = self._blocks[ssrc]
        return {
            "id": f"remote-inbound-rtp-{ssrc}",
            "type": "remote-inbound-rtp",
            **self._stamp(arrival_ns),
            "kind": "audio",
            "ssrc": ssrc,
            "localId": f"outbound-rtp-{ssrc}",
            "packetsLost": block.packets_lost,
            "fractionLost": block.fraction_lost / 256,
            "jitter": block.jitter / clock_rate_hz,
            **self._block_trips[ssrc].fields(),
        }

    def remote_outbound(self, ssrc: int) -> dict[str, Any] | None:
        """`remote-outbound-rtp` of a stream of the peer's; None where no sender report of it has come."""
        if ssrc not in self._senders:
            return None
        arrival_ns, sender, count = self._senders[ssrc]
        # RFC 3550 lets a sender without a wall clock say 0
        remote = {"remoteTimestamp": ns_to_ms(unix_ns_from_ntp(sender.ntp))} if sender.ntp else {}
        return {
            "id": f"remote-outbound-rtp-{ssrc}",
            "type": "remote-outbound-rtp",
            **self._stamp(arrival_ns),
            "kind": "audio",
            "ssrc": ssrc,
            "localId": f"inbound-rtp-{ssrc}",
            "packetsSent": sender.packet_count,
            "bytesSent": sender.octet_count,
            **remote,
            "reportsSent": count,
            **(self._delay_trips[ssrc].fields() if ssrc in self._delay_trips else {}),
        }


def _remember(reports: dict[int, int], middle: int, time_ns: int) -> None:
    reports[middle] = time_ns
    while len(reports) > MAX_OWN_REPORTS:
        del reports[next(iter(reports))]


def _since(arrival_ns: int, now_ns: int) -> int:
    return max(0, min(MOST_DELAY, (now_ns - arrival_ns) * 65536 // NS_PER_S))


def capture_fields(captured: CaptureTime) -> dict[str, Any]:
    """A capture time under the names of W3C's RTCRtpContributingSource (ms; the offset only where it was given)."""
    fields = {"captureTimestamp": ns_to_ms(captured.unix_ns)}
    if captured.offset_ns is not None:
        fields["senderCaptureTimeOffset"] = ns_to_ms(captured.offset_ns)
    return fields


def call_rtcp_statistics(record: CallRecord) -> dict[str, dict[int, dict[str, Any]]]:
    """`rtcp_statistics` of a session bundle; nothing where media were never negotiated, or the event is damaged."""
    media, clock = record.first("media_negotiated"), record.manifest.get("clock", {})
    try:
        named = dict(media.fields["payload_types"] if media is not None else {})
        extensions = dict(media.fields.get("header_extensions", {}) if media is not None else {})
        payload_types = {int(number): CODECS[codec] for number, codec in named.items() if codec in CODECS}
        captures = [int(number) for number, uri in extensions.items() if uri == ABS_CAPTURE_TIME_URI]
        shift_ns = int(clock["wall_ns"]) - int(clock["monotonic_ns"])
    except (KeyError, TypeError, ValueError):
        return {}
    if not payload_types:
        return {}
    return rtcp_statistics(
        rtcp_received=record.rtcp_received,
        rtcp_sent=record.rtcp_sent,
        received=record.received,
        sent=record.sent,
        payload_types=payload_types,
        wall_shift_ns=shift_ns,
        capture_time_id=captures[0] if captures else None,
    )


def captured_reports(datagrams: Iterable[CapturedDatagram]) -> list[tuple[int, bool, bytes]]:
    """The RTCP among datagrams in order of time (ns), and whether it was sent by the machine that captured."""
    return sorted(
        (datagram.time_ns, datagram.direction is Direction.SENT, datagram.payload)
        for datagram in datagrams
        if is_rtp_or_rtcp(datagram.payload) and is_rtcp(datagram.payload)
    )


def captured_rtcp_statistics(
    datagrams: Iterable[CapturedDatagram], streams: Iterable[RtpStream], codecs: Mapping[int, Codec]
) -> dict[str, dict[int, dict[str, Any]]]:
    """`rtcp_statistics` of a bare capture, on its own clock; what no direction is known of counts as received."""
    reports = captured_reports(datagrams)
    packets: dict[bool, list[Timed]] = {True: [], False: []}
    for stream in streams:
        packets[stream.direction is Direction.SENT] += stream.packets
    return rtcp_statistics(
        rtcp_received=[(time_ns, data) for time_ns, ours, data in reports if not ours],
        rtcp_sent=[(time_ns, data) for time_ns, ours, data in reports if ours],
        received=packets[False],
        sent=packets[True],
        payload_types=codecs,
    )


def rtcp_statistics(
    *,
    rtcp_received: Sequence[tuple[int, bytes]],
    rtcp_sent: Sequence[tuple[int, bytes]],
    received: Sequence[Timed],
    sent: Sequence[Timed],
    payload_types: Mapping[int, Codec],
    wall_shift_ns: int = 0,
    capture_time_id: int | None = None,
) -> dict[str, dict[int, dict[str, Any]]]:
    """What the reports of a recorded call say, by SSRC, at its end.

    Parameters
    ----------
    rtcp_received, rtcp_sent : sequence of (int, bytes)
        RTCP datagrams with their times (monotonic ns), in order.
    received, sent : sequence of Timed
        RTP, in order.
    payload_types : mapping of int to Codec
    wall_shift_ns : int
        `clock.wall_ns − clock.monotonic_ns` of the manifest; 0 where the times are wall times, as in a bare capture.
    capture_time_id : int, optional
        Negotiated identifier of abs-capture-time (`header_extensions` in the event `media_negotiated`).

    Returns
    -------
    dict
        `remote_inbound_rtp` and `remote_outbound_rtp` (W3C objects), `sender_clock` (see `SenderClock.to_fields`; with
        `arrival`, the NTP clock against ours; a `reason` in place of either that cannot be measured), `capture_time`
        (of the newest packet that has one).
    """
    own_hz, their_hz = _clock_rates(sent, payload_types), _clock_rates(received, payload_types)
    ledger = RtcpLedger(wall_shift_ns)
    for ssrc in own_hz:
        ledger.sends(ssrc)
    reports: dict[int, list[SentAt]] = {}
    ways = [(t, True, d) for t, d in rtcp_sent], [(t, False, d) for t, d in rtcp_received]
    for time_ns, ours, data in heapq.merge(*ways, key=lambda item: item[0]):
        if ours:
            ledger.sent(time_ns, data)
        else:
            ledger.received(time_ns, data)
            _collect(reports, time_ns, data)
    captures = {ssrc: _captures(received, ssrc, capture_time_id) for ssrc in their_hz} if capture_time_id else {}
    inbound = {ssrc: ledger.remote_inbound(ssrc, rate_hz) for ssrc, rate_hz in own_hz.items()}
    outbound = {ssrc: ledger.remote_outbound(ssrc) for ssrc in reports}
    return {
        "remote_inbound_rtp": {ssrc: fields for ssrc, fields in inbound.items() if fields is not None},
        "remote_outbound_rtp": {ssrc: fields for ssrc, fields in outbound.items() if fields is not None},
        "sender_clock": {
            ssrc: _clock_fields(sent_at, their_hz.get(ssrc), captures.get(ssrc, []))
            for ssrc, sent_at in reports.items()
        },
        "capture_time": {ssrc: capture_fields(found[-1][1]) for ssrc, found in captures.items() if found},
    }


def _clock_rates(packets: Sequence[Timed], payload_types: Mapping[int, Codec]) -> dict[int, int]:
    """The RTP clock of each stream whose codec is known."""
    rates: dict[int, int] = {}
    for timed in packets:
        ssrc = timed.packet.ssrc
        if ssrc not in rates and len(rates) < MAX_STREAMS:
            codec = payload_types.get(timed.packet.payload_type)
            if codec is not None:
                rates[ssrc] = codec.clock_rate_hz
    return rates


def _collect(reports: dict[int, list[SentAt]], time_ns: int, data: bytes) -> None:
    try:
        packets = parse_rtcp(data)
    except MalformedPacket:
        return
    for packet in packets:
        if isinstance(packet, SenderReport) and (packet.ssrc in reports or len(reports) < MAX_STREAMS):
            stamp = SentAt(time_ns, packet.sender.ntp, packet.sender.rtp_timestamp)
            reports.setdefault(packet.ssrc, []).append(stamp)


def _captures(packets: Sequence[Timed], ssrc: int, number: int | None) -> list[tuple[int, CaptureTime]]:
    own = ((t.time_ns, capture_time_of(t.packet, number)) for t in packets if t.packet.ssrc == ssrc)
    return [(time_ns, captured) for time_ns, captured in own if captured is not None]


def _clock_fields(
    reports: Sequence[SentAt], rate_hz: int | None, captures: Sequence[tuple[int, CaptureTime]]
) -> dict[str, Any]:
    fields: dict[str, Any]
    if rate_hz is None:
        fields = {"reason": "no_packets_of_a_known_codec"}
    else:
        try:
            fields = sender_clock(reports, rate_hz).to_fields()
        except NotMeasurable as exc:
            fields = {"reason": exc.reason}
    every = max(1, -(-len(captures) // MAX_STAMPS))
    stamps = [(time_ns, captured.ntp) for time_ns, captured in captures[::every]]
    by = "capture_time" if stamps else "sender_reports"
    try:
        drift = arrival_drift(stamps or [(r.arrival_ns, r.ntp) for r in reports])
    except NotMeasurable as exc:
        return fields | {"arrival": {"reason": exc.reason, "stamps": by}}
    return fields | {"arrival": {"drift_ppm": drift.drift_ppm.to_fields(), "n": drift.n, "stamps": by}}
