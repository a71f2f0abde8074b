"""A session's media path: packets into the record, the live ear and the statistics; RTCP receiver reports back.

aiortc's receiver sees no packet (see `probe.tap`), so the reports that a well-behaved receiver owes the sender
(RFC 3550 section 6.4) are made here.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

from analysis.codecs import CODECS, CODECS_BY_MIME, Codec
from analysis.errors import CallFailed, MalformedPacket, MediaLost, SessionError
from analysis.pcap import Direction
from analysis.reception import Reception
from analysis.rtcp import compound, parse_compound, round_trip_ns, serialize_receiver_report
from analysis.rtp import RtpPacket, parse_rtp
from analysis.units import NS_PER_MS, NS_PER_S
from probe.clock import Clock
from probe.hearing import LiveHearing
from probe.player import Player
from probe.recorder import BundleWriter
from probe.tap import MediaTap
from probe.targets.base import Session

__all__ = ["MediaLink"]

LAG_EVENT_NS = NS_PER_MS // 2  # a lag below this is not worth a line
REPORT_S = 1.0  # between receiver reports
CNAME = "latency-probe"
MAX_STREAMS = 64  # SSRCs that statistics are kept for; a hostile peer may send any number
MAX_SENDER_REPORTS = 256
CLOSE_TIMEOUT_S = 3.0


class MediaLink:
    """One call's media path.

    Parameters
    ----------
    player : Player
    recorder : BundleWriter
    clock : Clock
    lag_ns : callable
        How long what is read from a socket now may have been waiting.
    """

    def __init__(self, player: Player, recorder: BundleWriter, clock: Clock, lag_ns: Callable[[], int]) -> None:
        self._player = player
        self._recorder = recorder
        self._clock = clock
        self._lag_ns = lag_ns
        self._payload_types: dict[int, Codec] = {}
        self._hearing = LiveHearing(self._payload_types)
        self._unheard: list[tuple[int, bytes]] = []
        self._rest_until_ns = 0
        self._session: Session | None = None
        self._tap: MediaTap | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._state = "new"
        self._changed = asyncio.Event()
        self._failed: asyncio.Future[SessionError] | None = None
        self._receptions: dict[int, Reception] = {}
        self._reported_by: dict[int, tuple[int, int]] = {}  # SSRC: middle bits of its last SR, arrival
        self._own_reports: dict[int, int] = {}  # middle bits of our SR: when it left
        self._round_trip_ns: int | None = None
        self._sent_origin: tuple[int, int] | None = None
        self._packets_sent = 0
        self._bytes_sent = 0

    # -- the session

    def attach(self, session: Session, failed: asyncio.Future[SessionError]) -> None:
        """Tap a negotiated session; `failed` is set when it breaks."""
        self._session, self._failed = session, failed
        self._payload_types.update(_payload_types(session))
        if not self._payload_types:
            raise CallFailed("no common codec: the answer offers none of " + ", ".join(CODECS))
        pc = session.pc
        self._tap = MediaTap(pc, self._clock, self, self._lag_ns)
        pc.on("connectionstatechange", self._on_state)
        session.lost.add_done_callback(self._on_lost)
        self._tasks.append(asyncio.create_task(self._forward_events(session)))
        self._on_state()

    def _on_state(self) -> None:
        assert self._session is not None
        state = self._session.pc.connectionState
        if state == self._state:
            return
        was, self._state = self._state, state
        self._recorder.event("connection_state", state=state)
        self._changed.set()
        if was == "connected" and state in ("failed", "closed"):
            self._fail(MediaLost("the agent closed the connection or no longer answers"))

    def _on_lost(self, lost: asyncio.Future[SessionError]) -> None:
        if not lost.cancelled():
            self._fail(lost.result())

    def _fail(self, error: SessionError) -> None:
        if self._failed is not None and not self._failed.done():
            self._failed.set_result(error)

    async def connected(self) -> None:
        """Wait until media can flow. Raises CallFailed where that has failed."""
        while self._state != "connected":
            if self._state in ("failed", "closed"):
                raise CallFailed(self.why_not_connected(None))
            self._changed.clear()
            await self._changed.wait()
        assert self._tap is not None
        local, remote = self._tap.addresses
        self._recorder.set_path(local, remote)

    def why_not_connected(self, timeout_s: float | None) -> str:
        """One line: how far the connection came."""
        waited = "" if timeout_s is None else f" within {timeout_s:g} s"
        if self._session is None:
            return f"no answer from the target{waited}"
        pc = self._session.pc
        if pc.iceConnectionState != "completed":
            local = _candidates(pc.localDescription.sdp if pc.localDescription else "")
            remote = _candidates(pc.remoteDescription.sdp if pc.remoteDescription else "")
            return f"ICE failed: no candidate pair works{waited} (ours: {local}; the agent's: {remote})"
        return f"DTLS failed: no handshake{waited}" if self._state != "connected" else f"no media could be sent{waited}"

    def start_media(self, ptime_ms: int, codec: str) -> None:
        """Record what was negotiated and when the first frame was due."""
        assert self._session is not None
        transceiver = self._session.pc.getTransceivers()[0]
        self._recorder.event(
            "media_negotiated",
            payload_types={str(pt): c.name for pt, c in self._payload_types.items()},
            send={"codec": codec, "ptime_ms": ptime_ms, "ssrc": transceiver.sender._ssrc},
        )
        self._recorder.event("media_started", deadline0_ns=self._player.deadline0_ns, frame_ns=self._player.frame_ns)
        self._tasks.append(asyncio.create_task(self._send_reports(transceiver.sender._ssrc)))

    async def _forward_events(self, session: Session) -> None:
        while True:
            event = await session.events.get()
            self._recorder.event(event.type, event.time_ns, **{**event.fields, "clock": event.clock})

    async def close(self) -> None:
        """Leave the call, and record what the agent still says."""
        if self._session is None:
            return
        self._session.pc.remove_all_listeners("connectionstatechange")
        self._session.lost.remove_done_callback(self._on_lost)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                await self._session.close()
        while not self._session.events.empty():
            event = self._session.events.get_nowait()
            self._recorder.event(event.type, event.time_ns, **{**event.fields, "clock": event.clock})
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # -- packets (TapSink)

    def on_received(self, time_ns: int, data: bytes, rtcp: bool) -> None:
        """A packet came in. Only what must be done at once is: whatever takes time here makes the next arrival late."""
        self._recorder.packet(time_ns, Direction.RECEIVED, data)
        assert self._tap is not None
        arrival = self._tap.arrival
        if arrival.waited_ns >= LAG_EVENT_NS or not arrival.by_kernel:
            self._recorder.event("loop_lag", time_ns, lag_ns=arrival.waited_ns, by_kernel=arrival.by_kernel)
        if not rtcp:
            self._unheard.append((time_ns, data))
            return
        with contextlib.suppress(MalformedPacket):
            self._take_report(time_ns, data)

    def listen(self) -> LiveHearing:
        """The live ear, after it has heard all that has arrived."""
        unheard, self._unheard = self._unheard, []
        for time_ns, data in unheard:
            with contextlib.suppress(MalformedPacket):
                self._hear(time_ns, parse_rtp(data))
        return self._hearing

    def rest_until(self, time_ns: int) -> None:
        """Do not listen to what arrives before this moment (monotonic); it is recorded all the same."""
        self._rest_until_ns = time_ns

    def _hear(self, time_ns: int, packet: RtpPacket) -> None:
        codec = self._payload_types.get(packet.payload_type)
        reception = self._receptions.get(packet.ssrc)
        if reception is None and codec is not None and len(self._receptions) < MAX_STREAMS:
            reception = self._receptions[packet.ssrc] = Reception(codec.clock_rate_hz)
        if reception is not None:
            reception.add(time_ns, packet, sound=codec is not None)
            if codec is not None and time_ns >= self._rest_until_ns:
                self._hearing.add(time_ns, packet)

    def on_sent(self, time_ns: int, data: bytes, rtcp: bool) -> None:
        """A packet went out."""
        self._recorder.packet(time_ns, Direction.SENT, data)
        if rtcp:
            self._note_own_report(time_ns, data)
            return
        self._packets_sent += 1
        self._bytes_sent += len(data)
        if self._sent_origin is None:
            packet = parse_rtp(data)
            # where the sender put media time 0
            origin = (packet.timestamp - (self._player.first_ticks or 0)) & 0xFFFFFFFF
            self._sent_origin = packet.ssrc, origin
            self._recorder.event("sent_origin", time_ns, ssrc=packet.ssrc, rtp_timestamp=origin)

    def _take_report(self, time_ns: int, data: bytes) -> None:
        for report in parse_compound(data):
            if report.sender is not None and len(self._reported_by) < MAX_STREAMS:
                self._reported_by[report.ssrc] = report.sender.ntp >> 16 & 0xFFFFFFFF, time_ns
            for block in report.blocks:
                sent_ns = self._own_reports.get(block.lsr)
                if sent_ns is not None:
                    self._round_trip_ns = round_trip_ns(block, time_ns, sent_ns)

    def _note_own_report(self, time_ns: int, data: bytes) -> None:
        for report in parse_compound(data):
            if report.sender is not None:
                self._own_reports[report.sender.ntp >> 16 & 0xFFFFFFFF] = time_ns
                while len(self._own_reports) > MAX_SENDER_REPORTS:
                    del self._own_reports[next(iter(self._own_reports))]

    # -- reports and statistics

    async def _send_reports(self, ssrc: int) -> None:
        assert self._tap is not None
        while True:
            await asyncio.sleep(REPORT_S)
            blocks = []
            for stream, reception in self._receptions.items():
                lsr, arrival_ns = self._reported_by.get(stream, (0, 0))
                dlsr = (self._clock.monotonic_ns() - arrival_ns) * 65536 // NS_PER_S if lsr else 0
                blocks.append(reception.report_block(stream, lsr=lsr, dlsr=min(dlsr, 0xFFFFFFFF)))
            with contextlib.suppress(ConnectionError):
                self._tap.send(compound(serialize_receiver_report(ssrc, blocks), ssrc, CNAME))

    def reception(self) -> tuple[int, float]:
        """Packets lost so far, over all streams, and the jitter (s) of the one that was heard last."""
        if not self._receptions:
            return 0, 0.0
        latest = max(self._receptions.values(), key=lambda r: r.last_arrival_ns or 0)
        return sum(r.packets_lost for r in self._receptions.values()), latest.jitter_s

    def write_stats(self) -> None:
        """One snapshot of what packets alone determine; W3C names and units; what is unknown is absent."""
        now_ns = self._clock.monotonic_ns()
        stats: list[dict[str, object]] = [
            {
                "type": "inbound-rtp",
                "kind": "audio",
                "ssrc": ssrc,
                "packetsReceived": r.packets_received,
                "packetsLost": r.packets_lost,
                "bytesReceived": r.bytes_received,
                "jitter": r.jitter_s,
            }
            for ssrc, r in self._receptions.items()
        ]
        if self._sent_origin is not None:
            outbound = {"type": "outbound-rtp", "kind": "audio", "ssrc": self._sent_origin[0]}
            stats.append(outbound | {"packetsSent": self._packets_sent, "bytesSent": self._bytes_sent})
            if self._round_trip_ns is not None:
                remote = {"type": "remote-inbound-rtp", "kind": "audio", "ssrc": self._sent_origin[0]}
                stats.append(remote | {"roundTripTime": self._round_trip_ns / NS_PER_S})
        if stats:
            self._recorder.stats({"t_ns": now_ns, "stats": stats})


def _payload_types(session: Session) -> dict[int, Codec]:
    negotiated = session.pc.getTransceivers()[0]._codecs
    known = {int(c.payloadType or 0): CODECS_BY_MIME.get(c.mimeType.lower()) for c in negotiated}
    return {payload_type: codec for payload_type, codec in known.items() if codec is not None}


def _candidates(sdp: str) -> str:
    """The candidates of a description as `host 127.0.0.1:5000`, at most four."""
    found = []
    for line in sdp.splitlines():
        parts = line.strip().split()
        if line.startswith("a=candidate:") and len(parts) >= 8:
            found.append(f"{parts[7]} {parts[4]}:{parts[5]}")
    return ", ".join(found[:4]) + (" …" if len(found) > 4 else "") if found else "none"
