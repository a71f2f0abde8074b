"""A session's media path: packets into the record, the live ear and the statistics; RTCP reports back.

aiortc's receiver sees no packet (see `probe.tap`), so the reports that a well-behaved receiver owes the sender
(RFC 3550 section 6.4), and those that time the way back (RFC 3611 section 4.4), are made here.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

from analysis.codecs import CODECS, CODECS_BY_MIME, Codec
from analysis.errors import CallFailed, MalformedPacket, MediaLost, SessionError
from analysis.pcap import Direction
from analysis.rtcp import (
    ExtendedReport,
    compound,
    ntp_from_unix_ns,
    serialize_extended_report,
    serialize_receiver_report,
)
from analysis.rtp import RtpPacket, parse_rtp
from analysis.units import NS_PER_MS, NS_PER_S
from probe.clock import Clock
from probe.hearing import LiveHearing
from probe.player import Player
from probe.recorder import BundleWriter
from probe.sdp import MediaExtras, read_extras
from probe.statistics import LiveStatistics
from probe.tap import MediaTap
from probe.targets.base import Session

__all__ = ["MediaLink"]

LAG_EVENT_NS = NS_PER_MS // 2  # a lag below this is not worth a line
REPORT_S = 1.0  # between receiver reports
CNAME = "latency-probe"
NEVER_NS = 1 << 62
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
        self._extras = MediaExtras()
        self._statistics = LiveStatistics(self._payload_types, recorder.wall_shift_ns)
        self._next_stats_ns = 0
        self._sent_origin: tuple[int, int] | None = None

    # -- the session

    def attach(self, session: Session, failed: asyncio.Future[SessionError]) -> None:
        """Tap a negotiated session; `failed` is set when it breaks."""
        self._session, self._failed = session, failed
        self._payload_types.update(_payload_types(session))
        if not self._payload_types:
            raise CallFailed("no common codec: the answer offers none of " + ", ".join(CODECS))
        pc = session.pc
        # a target that does not keep the text has what aiortc made of it
        text = getattr(session, "remote_sdp", "") or (pc.remoteDescription.sdp if pc.remoteDescription else "")
        self._extras = read_extras(text)
        self._statistics.capture_time_id = self._extras.capture_time_id
        self._tap = MediaTap(pc, self._clock, self, self._lag_ns)
        pc.on("connectionstatechange", self._on_state)
        session.lost.add_done_callback(self._on_lost)
        self._tasks.append(asyncio.create_task(self._forward_events(session)))
        self._next_stats_ns = self._clock.monotonic_ns()
        self._tasks.append(asyncio.create_task(self._write_snapshots()))
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
        ssrc = self._session.pc.getTransceivers()[0].sender._ssrc
        self._recorder.event(
            "media_negotiated",
            payload_types={str(pt): c.name for pt, c in self._payload_types.items()},
            header_extensions={str(number): uri for number, uri in self._extras.header_extensions.items()},
            reference_times=self._extras.reference_times,
            send={"codec": codec, "ptime_ms": ptime_ms, "ssrc": ssrc},
        )
        self._statistics.ledger.sends(ssrc)
        self._recorder.event("media_started", deadline0_ns=self._player.deadline0_ns, frame_ns=self._player.frame_ns)
        self._tasks.append(asyncio.create_task(self._send_reports(ssrc)))

    async def _forward_events(self, session: Session) -> None:
        while True:
            event = await session.events.get()
            self._recorder.event(event.type, event.time_ns, **{**event.fields, "clock": event.clock})

    async def close(self) -> None:
        """Leave the call, and record what the agent still says."""
        if self._session is None:
            return
        self._snapshot()
        self._next_stats_ns = NEVER_NS
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
        if self._tap is not None and self._tap.undecryptable:
            self._recorder.event("srtp_discarded", packets=self._tap.undecryptable)

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
        self._statistics.ledger.received(time_ns, data)

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
        codec = self._statistics.received(time_ns, packet)
        if codec is not None and time_ns >= self._rest_until_ns:
            self._hearing.add(time_ns, packet)

    def on_sent(self, time_ns: int, data: bytes, rtcp: bool) -> None:
        """A packet went out."""
        self._recorder.packet(time_ns, Direction.SENT, data)
        if rtcp:
            self._statistics.ledger.sent(time_ns, data)
            return
        self._statistics.sent(data)
        if self._sent_origin is None:
            packet = parse_rtp(data)
            # where the sender put media time 0
            origin = (packet.timestamp - (self._player.first_ticks or 0)) & 0xFFFFFFFF
            self._sent_origin = packet.ssrc, origin
            self._recorder.event("sent_origin", time_ns, ssrc=packet.ssrc, rtp_timestamp=origin)

    # -- reports and statistics

    async def _send_reports(self, ssrc: int) -> None:
        assert self._tap is not None
        statistics = self._statistics
        while True:
            await asyncio.sleep(REPORT_S)
            now_ns = self._clock.monotonic_ns()
            ntp = ntp_from_unix_ns(now_ns + self._recorder.wall_shift_ns) if self._extras.reference_times else None
            more = ExtendedReport(ssrc, ntp, statistics.ledger.delays(now_ns))
            extended = serialize_extended_report(more) if ntp is not None or more.delays else b""
            report = serialize_receiver_report(ssrc, statistics.report_blocks(now_ns))
            with contextlib.suppress(ConnectionError):
                self._tap.send(compound(report, ssrc, CNAME, extended=extended))

    def reception(self) -> tuple[int, float]:
        """Packets lost so far, over all streams, and the jitter (s) of the one that was heard last."""
        return self._statistics.reception()

    async def _write_snapshots(self) -> None:
        interval_ns = self._recorder.stats_interval_ns
        while True:
            now_ns = self._clock.monotonic_ns()
            if now_ns >= self._next_stats_ns:
                # those that a busy loop missed are not made up for
                self._next_stats_ns += interval_ns * ((now_ns - self._next_stats_ns) // interval_ns + 1)
                self._snapshot()
            await asyncio.sleep(max(0, self._next_stats_ns - self._clock.monotonic_ns()) / NS_PER_S)

    def _snapshot(self) -> None:
        if self._session is None or self._tap is None:
            return
        self.listen()
        now_ns = self._clock.monotonic_ns()
        for trip in self._tap.checks.take_round_trips():
            self._recorder.event("stun_round_trip", trip.time_ns, rtt_ns=trip.rtt_ns)
        transceiver = self._session.pc.getTransceivers()[0]
        self._recorder.stats({"t_ns": now_ns, "stats": self._statistics.snapshot(now_ns, self._tap, transceiver)})


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
