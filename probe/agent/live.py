"""One live call: a real WebRTC peer around the agent's core, whose packets go out by the media tap.

aiortc negotiates, connects and encrypts; it sends no media of its own (an idle track), and its reports are replaced.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Mapping
from concurrent.futures import Executor, Future
from dataclasses import replace
from typing import Any

import pylibsrtp
from aiortc import (
    MediaStreamTrack,
    RTCBundlePolicy,
    RTCConfiguration,
    RTCPeerConnection,
    RTCRtpSender,
    RTCSessionDescription,
)

from analysis.capture_time import (
    ABS_CAPTURE_TIME_URI,
    CaptureTime,
    serialize_capture_time,
    serialize_header_extensions,
)
from analysis.codecs import CODECS, CODECS_BY_MIME, Codec
from analysis.errors import CallFailed, MalformedPacket
from analysis.rtp import RtpPacket, parse_rtp, serialize_rtp
from analysis.units import NS_PER_S
from probe.agent.config import AgentConfig
from probe.agent.core import Agent, Hooks, TruthJob
from probe.agent.hearing import CallerHearing
from probe.agent.plan import Kind, ReplyPlan
from probe.agent.reports import Reports
from probe.agent.speech import Prepared, prepare
from probe.agent.stream import SentPacket, first_ssrc
from probe.agent.truth import Truth, truth_of
from probe.clock import Clock
from probe.sdp import MediaExtras, read_extras, with_extras
from probe.tap import MediaTap

__all__ = ["LiveCall"]

logger = logging.getLogger(__name__)

DEATH_EXIT_CODE = 70  # of a process that was asked to die in mid-reply
REPORT_S = 1.0
DEFAULT_PTIME_MS = 20
PREPARED_KEPT = 8


class _IdleTrack(MediaStreamTrack):
    """A track for the description only; nothing ever comes out of it."""

    kind = "audio"

    async def recv(self) -> Any:
        """Never returns."""
        await asyncio.get_running_loop().create_future()


class _LoopScheduler:
    """The core's scheduler on the running loop, whose clock is the same monotonic one."""

    def __init__(self, clock: Clock) -> None:
        self._loop = asyncio.get_running_loop()
        self._clock = clock

    def now_ns(self) -> int:
        """Now, monotonic ns."""
        return self._clock.monotonic_ns()

    def at(self, time_ns: int, callback: Callable[[], None]) -> asyncio.TimerHandle:
        """Call back at `time_ns`."""
        return self._loop.call_at(time_ns / NS_PER_S, callback)


class LiveCall:
    """One call.

    Parameters
    ----------
    call : int
    config : AgentConfig
    clock : Clock
    workers : Executor
        Where sounds are encoded ahead and truths are worked out, so that the loop is not held up.
    tell : callable
        Told each line for the parent: `tell(op, fields)`.
    wall_shift_ns : int
        See `Reports`.
    """

    def __init__(
        self,
        call: int,
        config: AgentConfig,
        *,
        clock: Clock,
        workers: Executor,
        tell: Callable[[str, Mapping[str, Any]], None],
        wall_shift_ns: int,
    ) -> None:
        self._call = call
        self._config = config
        self._clock = clock
        self._workers = workers
        self._tell = tell
        self._pc = RTCPeerConnection(RTCConfiguration(iceServers=[], bundlePolicy=RTCBundlePolicy.MAX_BUNDLE))
        self._reports = Reports(wall_shift_ns)
        self._payload_types: dict[int, Codec] = {}
        self._hearing = CallerHearing(self._payload_types)
        self._tap: MediaTap | None = None
        self._agent: Agent | None = None
        self._codec = CODECS["opus"]
        self._ptime_ms = DEFAULT_PTIME_MS
        self._sounds: dict[tuple[ReplyPlan, Kind], Future[Prepared]] = {}
        self._truths: set[asyncio.Future[Truth]] = set()
        self._capture_time_id: int | None = None
        self._report_timer: asyncio.TimerHandle | None = None
        self._connected = False
        self._closed = False

    # -- signalling

    async def answer(self, offer: str, ptime_ms: int | None = None) -> str:
        """The answer to an offer, as SDP.

        Raises
        ------
        CallFailed
            If there is no common codec, or the offer cannot be used.
        """
        pc = self._pc
        sender = pc.addTrack(_IdleTrack())
        # the description then names the SSRC that the seed fixes
        sender._ssrc = first_ssrc(self._config, self._call)
        transceiver = pc.getTransceivers()[0]
        if self._config.codec is not None:
            mime = CODECS[self._config.codec].mime_type.lower()
            capabilities = RTCRtpSender.getCapabilities("audio").codecs
            transceiver.setCodecPreferences([c for c in capabilities if c.mimeType.lower() == mime])
        try:
            await pc.setRemoteDescription(RTCSessionDescription(offer, "offer"))
            await pc.setLocalDescription(await pc.createAnswer())
        except Exception as exc:  # aiortc raises anything from ValueError to its own on what a peer sent
            await pc.close()
            raise CallFailed(f"the offer cannot be answered ({exc})") from exc
        sdp = with_extras(pc.localDescription.sdp, self._taken(read_extras(offer)))
        if self._config.ignores_ice:
            # the candidates in the answer are sockets that are closed by now
            await pc.close()
            return sdp
        self._set_up_media(transceiver, ptime_ms)
        return sdp

    def _taken(self, offered: MediaExtras) -> MediaExtras:
        """What the agent takes of what aiortc has not seen in the offer."""
        self._reports.reference_times = offered.reference_times
        if self._config.capture_time:
            self._capture_time_id = offered.capture_time_id
        number = self._capture_time_id
        return MediaExtras(offered.reference_times, {} if number is None else {number: ABS_CAPTURE_TIME_URI})

    def _set_up_media(self, transceiver: Any, ptime_ms: int | None) -> None:
        known = [c for c in transceiver._codecs if c.mimeType.lower() in CODECS_BY_MIME]
        if not known:
            raise CallFailed("no common codec: the offer has none of " + ", ".join(CODECS))
        self._payload_types.update({c.payloadType: CODECS_BY_MIME[c.mimeType.lower()] for c in known})
        self._codec = self._payload_types[known[0].payloadType]
        self._ptime_ms = self._config.ptime_ms or ptime_ms or DEFAULT_PTIME_MS
        self._tap = MediaTap(self._pc, self._clock, self)
        transceiver.receiver.transport._send_rtp = _send_nothing
        self._agent = Agent(
            self._config,
            self._call,
            self._codec,
            ptime_ms=self._ptime_ms,
            payload_type=known[0].payloadType,
            scheduler=_LoopScheduler(self._clock),
            hooks=Hooks(self._transmit, self._on_spoken, self._on_truth, self._want, self._prepared, _die),
            srtp=True,
        )
        self._agent.prepare_ahead()
        self._pc.on("connectionstatechange", self._on_state)
        self._on_state()

    def _on_state(self) -> None:
        state = self._pc.connectionState
        self._tell("state", {"call": self._call, "state": state})
        if state == "connected" and not self._connected and self._agent is not None:
            self._connected = True
            self._agent.connected()
            loop = asyncio.get_running_loop()
            # calls that began together do not all report at once
            self._report_timer = loop.call_later(REPORT_S * (0.5 + self._call % 10 / 20), self._report)
        elif state in ("failed", "closed"):
            self._hang_up()

    def _hang_up(self) -> None:
        if self._report_timer is not None:
            self._report_timer.cancel()
        if self._agent is not None and not self._closed:
            self._closed = True
            self._agent.close()

    async def close(self) -> None:
        """Leave the call, after the last truth was told."""
        self._hang_up()
        if self._connected and self._agent is not None and self._agent.stream is not None:
            self._send_rtcp(bye=True)
        await asyncio.gather(*self._truths, return_exceptions=True)
        self._pc.remove_all_listeners("connectionstatechange")
        await self._pc.close()

    # -- packets

    def on_received(self, time_ns: int, data: bytes, rtcp: bool) -> None:
        """A packet of the caller's came in (TapSink)."""
        if rtcp:
            self._reports.received_rtcp(time_ns, data)
            return
        try:
            packet = parse_rtp(data)
        except MalformedPacket:
            return
        codec = self._payload_types.get(packet.payload_type)
        if codec is None or self._agent is None:
            return
        self._reports.received(time_ns, packet, codec)
        voiced = self._hearing.add(time_ns, packet)
        if voiced is not None:
            self._agent.voice(*voiced)

    def on_sent(self, time_ns: int, data: bytes, rtcp: bool) -> None:
        """A packet of ours went out (TapSink); its time was returned to whom it may concern."""

    def _transmit(self, packet: SentPacket) -> int | None:
        assert self._tap is not None
        data = serialize_rtp(self._stamped(packet))
        left_ns = None
        try:
            for _ in range(packet.copies):
                # SRTP encrypts a packet to the same bytes again, so the copy is a true duplicate on the wire
                sent_ns = self._tap.send(data)
                left_ns = sent_ns if left_ns is None else left_ns
                self._reports.sent(packet.ssrc, packet.payload)
        except (ConnectionError, OSError, pylibsrtp.Error) as exc:
            logger.debug("call %d: packet %d was not sent: %s", self._call, packet.count, exc)
        return left_ns

    def _stamped(self, packet: SentPacket) -> RtpPacket:
        """The packet with its place on the media clock as its capture time, on the clock of our sender reports."""
        rtp = packet.rtp()
        if self._capture_time_id is None:
            return rtp
        captured = serialize_capture_time(CaptureTime(self._reports.ntp(packet.nominal_ns)))
        profile, extension = serialize_header_extensions({self._capture_time_id: captured})
        return replace(rtp, extension_profile=profile, extension=extension)

    def _report(self) -> None:
        self._send_rtcp()
        self._report_timer = asyncio.get_running_loop().call_later(REPORT_S, self._report)

    def _send_rtcp(self, *, bye: bool = False) -> None:
        assert self._agent is not None
        assert self._agent.stream is not None
        assert self._tap is not None
        try:
            self._tap.send(self._reports.write(self._clock.monotonic_ns(), self._agent.stream, bye=bye))
        except (ConnectionError, OSError, pylibsrtp.Error) as exc:
            logger.debug("call %d: no report was sent: %s", self._call, exc)

    # -- sounds and truths

    def _want(self, plan: ReplyPlan, kind: Kind) -> None:
        if (plan, kind) in self._sounds:
            return
        while len(self._sounds) >= PREPARED_KEPT:
            del self._sounds[next(iter(self._sounds))]
        self._sounds[plan, kind] = self._workers.submit(prepare, self._config, plan, kind, self._codec, self._ptime_ms)

    def _prepared(self, plan: ReplyPlan, kind: Kind) -> Prepared:
        sound = self._sounds.get((plan, kind))
        if sound is None or sound.cancel() or sound.cancelled():
            self._sounds.pop((plan, kind), None)
            return prepare(self._config, plan, kind, self._codec, self._ptime_ms)
        return sound.result()

    def _on_spoken(self, job: TruthJob) -> None:
        loop = asyncio.get_running_loop()
        future = loop.run_in_executor(self._workers, truth_of, job.spoken, job.departures, job.codec)
        self._truths.add(future)
        future.add_done_callback(self._on_worked_out)

    def _on_worked_out(self, future: asyncio.Future[Truth]) -> None:
        self._truths.discard(future)
        if not future.cancelled():
            self._on_truth(future.result())

    def _on_truth(self, truth: Truth) -> None:
        self._tell("truth", {"call": self._call, **truth.to_fields()})


async def _send_nothing(data: bytes) -> None:
    """Stands in for what aiortc's own sender and receiver would report."""


def _die() -> None:
    """End the process as a crash would: no goodbye, nothing flushed."""
    os._exit(DEATH_EXIT_CODE)
