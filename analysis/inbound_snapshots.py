"""Measured streams in, what a receiver's `getStats()` would have said at regular moments out: lines of `stats.jsonl`.

Source: W3C webrtc-stats (RTCInboundRtpStreamStats, RTCOutboundRtpStreamStats, RTCRemoteOutboundRtpStreamStats,
RTCRemoteInboundRtpStreamStats, RTCCodecStats, RTCAudioPlayoutStats), names and units. Packets count
as they arrive; what depends on the jitter buffer is the playout policy's, under `chrome` booked as libwebrtc does. What
is unknown is absent, never 0.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from analysis.capture_frames import Direction
from analysis.capture_rtp import CodecChoice, RtpStream
from analysis.errors import UsageError
from analysis.inbound import Inbound, media_playout, outbound_rtp, played_duration
from analysis.reception import Reception
from analysis.rtcp_statistics import EARLIEST_WALL_NS, RtcpLedger
from analysis.units import ms_to_ns, ns_to_ms

__all__ = ["INTERVAL_MS", "LONGEST_MS", "SHORTEST_MS", "MeasuredStream", "stats_snapshots"]

INTERVAL_MS = 200.0
SHORTEST_MS = 10.0
LONGEST_MS = 3_600_000.0
MAX_EMPTY = 50  # snapshots in a row with nothing new in them; then the next one that has


@dataclass(frozen=True, slots=True)
class MeasuredStream:
    """A stream, its codecs, and what `analysis.inbound.measure` made of them."""

    stream: RtpStream
    choice: CodecChoice
    inbound: Inbound


def stats_snapshots(
    measured: Sequence[MeasuredStream],
    *,
    interval_ms: float = INTERVAL_MS,
    wall_shift_ns: int = 0,
    reports: Sequence[tuple[int, bool, bytes]] = (),
) -> Iterator[dict[str, Any]]:
    """Snapshots from the first packet of all streams until all has been played.

    Parameters
    ----------
    measured : sequence of MeasuredStream
    interval_ms : float
        Between snapshots; from 10 to an hour of them. Under `chrome` the jitter buffer's counters are those of the last
        multiple of 200 ms, and absent before the first.
    wall_shift_ns : int
        Wall time less the time of the packets. Where no sum with it is a wall time, `timestamp` is absent.

    reports : sequence of (int, bool, bytes)
        RTCP with its times (ns) and whether the machine that captured sent it, in order of time.

    Yields
    ------
    dict
        `t_ns` on the clock of the packets and `stats`, W3C objects: for each stream that has begun `inbound-rtp`,
        `codec`, `media-playout` where it is played, `outbound-rtp` where it was sent by the machine that captured, and
        what the other end's reports said until then. Counters are cumulative. Of a stretch of more than 50
        snapshots in which no packet arrives and no counter changes the rest is left out.

    Raises
    ------
    UsageError
        If the interval is none of these.
    """
    if not SHORTEST_MS <= interval_ms <= LONGEST_MS:
        raise UsageError(f"snapshots every {interval_ms:g} ms", next_step=f"give {SHORTEST_MS:g} to {LONGEST_MS:g} ms")
    step_ns = ms_to_ns(interval_ms)
    ledger = RtcpLedger(wall_shift_ns)
    for each in measured:
        if each.stream.direction is Direction.SENT:
            ledger.sends(each.stream.ssrc)
    sides = [_Side(each, wall_shift_ns, ledger) for each in measured]
    if not sides:
        return
    begin_ns = min(each.inbound.first_ns for each in measured)
    time_ns, end_ns = begin_ns + step_ns, max(side.end_ns for side in sides)
    empty, before, taken = 0, None, 0
    while True:
        while taken < len(reports) and reports[taken][0] <= time_ns:
            at_ns, ours, data = reports[taken]
            (ledger.sent if ours else ledger.received)(at_ns, data)
            taken += 1
        stats = [fields for side in sides for fields in side.at(time_ns)]
        empty = empty + 1 if stats == before else 0
        before = stats
        if empty <= MAX_EMPTY:
            wall_ns = time_ns + wall_shift_ns
            stamp = {"timestamp": ns_to_ms(wall_ns)} if wall_ns > EARLIEST_WALL_NS else {}
            yield {"t_ns": time_ns, "stats": [stamp | fields for fields in stats]}
        else:
            news_ns = min((side.next_ns(time_ns) for side in sides), default=end_ns)
            time_ns += max(0, (news_ns - time_ns) // step_ns - 1) * step_ns
        if time_ns >= end_ns:
            return
        time_ns += step_ns


class _Side:
    """One stream while time goes on."""

    def __init__(self, measured: MeasuredStream, wall_shift_ns: int, ledger: RtcpLedger) -> None:
        self._wall_shift_ns = wall_shift_ns
        self._ledger = ledger
        self._stream, self._codecs, self._inbound = measured.stream, measured.choice.codecs, measured.inbound
        codec = self._codecs[measured.inbound.payload_type]
        self._reception = Reception(codec.clock_rate_hz)
        self._of_clock = measured.choice.of_clock(codec.clock_rate_hz)
        self._payload_type = measured.inbound.payload_type  # of the last packet whose codec is known
        self._taken = 0
        totals = (totals for playout in measured.inbound.playouts for totals in playout.totals)
        self._changes = [t.time_ns for t in totals if len(t.time_ns)]
        self.end_ns = max(measured.inbound.last_ns, *(int(t[-1]) for t in self._changes), 0)

    def next_ns(self, time_ns: int) -> int:
        """The next packet, or the next change of a counter, after a moment; the end where there is none."""
        packets = self._stream.packets
        times = [packets[self._taken].time_ns] if self._taken < len(packets) else []
        times += [int(t[at]) for t in self._changes if (at := int(t.searchsorted(time_ns, side="right"))) < len(t)]
        return min(times, default=self.end_ns)

    def at(self, time_ns: int) -> list[dict[str, Any]]:
        """Its objects, without a timestamp where that is the moment; moments must not go back."""
        packets = self._stream.packets
        while self._taken < len(packets) and packets[self._taken].time_ns <= time_ns:
            timed = packets[self._taken]
            self._reception.add(timed.time_ns, timed.packet, sound=timed.packet.payload_type in self._of_clock)
            if timed.packet.payload_type in self._codecs:
                self._payload_type = timed.packet.payload_type
            self._taken += 1
        if not self._taken:
            return []
        ssrc, played = self._stream.ssrc, self._played(time_ns)
        codec_id = f"codec-{ssrc}-{self._payload_type}"
        inbound = {
            "id": f"inbound-rtp-{ssrc}",
            "type": "inbound-rtp",
            "kind": "audio",
            "ssrc": ssrc,
            "codecId": codec_id,
            **self._received(),
            **played,
        }
        codec = self._codecs[self._payload_type]
        of_codec = {
            "id": codec_id,
            "type": "codec",
            "payloadType": self._payload_type,
            "mimeType": codec.mime_type,
            "clockRate": codec.clock_rate_hz,
        }
        others = self._others(inbound, codec.clock_rate_hz)
        if not played:
            return [inbound, of_codec, *others]
        playout = {"id": f"media-playout-{ssrc}", "type": "media-playout", "kind": "audio"}
        inbound["playoutId"] = playout["id"]
        return [inbound, of_codec, playout | media_playout(played, self._inbound.output), *others]

    def _others(self, inbound: dict[str, Any], clock_rate_hz: int) -> list[dict[str, Any]]:
        """What was sent, and what the other end's reports say; `inbound` is made to refer to it."""
        ssrc, found = self._stream.ssrc, list[dict[str, Any]]()
        refers = {"codecId": inbound["codecId"]}
        if (remote := self._ledger.remote_outbound(ssrc)) is not None:
            inbound["remoteId"] = remote["id"]
            found.append(remote | refers)
        if self._stream.direction is not Direction.SENT:
            return found
        own = {"id": f"outbound-rtp-{ssrc}", "type": "outbound-rtp", "kind": "audio", "ssrc": ssrc}
        found.append(own | refers | outbound_rtp(inbound))
        if (remote := self._ledger.remote_inbound(ssrc, clock_rate_hz)) is not None:
            found[-1]["remoteId"] = remote["id"]
            found.append(remote | refers)
        return found

    def _received(self) -> dict[str, float | int]:
        r = self._reception
        received: dict[str, float | int] = {
            "packetsReceived": r.packets_received,
            "packetsLost": r.packets_lost,
            "jitter": r.jitter_s,
        }
        if not self._stream.unsized_packets:
            received |= {"bytesReceived": r.bytes_received, "headerBytesReceived": r.header_bytes_received}
        wall_ns = (r.last_arrival_ns or 0) + self._wall_shift_ns
        if wall_ns > EARLIEST_WALL_NS:
            received["lastPacketReceivedTimestamp"] = ns_to_ms(wall_ns)
        return received

    def _played(self, time_ns: int) -> dict[str, float | int]:
        """The counters of the jitter buffer; empty where nothing is played, or nothing is known yet."""
        found: dict[str, float | int] = {}
        for playout in self._inbound.playouts:
            if playout.policy == "chrome" and all(not len(t.time_ns) or t.time_ns[0] > time_ns for t in playout.totals):
                continue  # its totals come every 200 ms: 0 would not be what it is
            now = playout.inbound_at(time_ns)
            for name, value in {**now, **played_duration(now, playout.rate_hz)}.items():
                found[name] = found.get(name, 0) + value
        return found
