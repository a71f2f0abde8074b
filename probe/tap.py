"""A peer connection's media path, tapped at the socket: every RTP and RTCP packet, both ways, with its time.

aiortc has no public hook for this; docs/adr/0004 says which of its attributes are used and why. Arrivals carry the
kernel's time stamp where it gives one. RTP never enters aiortc's own receiver, whose jitter buffer and decoder rest.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

import pylibsrtp
from aioice.stun import Class
from aiortc import RTCPeerConnection

from analysis.rtp import is_rtcp, is_rtp_or_rtcp
from probe.arrival import Arrival, ArrivalClock
from probe.checks import CheckLog, SelectedPairs
from probe.clock import Clock

__all__ = ["MediaTap", "TapSink"]

logger = logging.getLogger(__name__)

MAX_EARLY = 256  # packets kept while DTLS is not done
LAST_OF_STUN = b"\x03"  # first byte, RFC 7983


class TapSink(Protocol):
    """Who is told of each packet. `data` is plain RTP or RTCP."""

    def on_received(self, time_ns: int, data: bytes, rtcp: bool) -> None:
        """A packet arrived at `time_ns` (monotonic)."""
        ...

    def on_sent(self, time_ns: int, data: bytes, rtcp: bool) -> None:
        """A packet was handed to the socket at `time_ns` (monotonic)."""
        ...


class MediaTap:
    """Taps one peer connection.

    Parameters
    ----------
    pc : RTCPeerConnection
        With one audio transceiver and both descriptions applied: BUNDLE swaps transports before that.
    clock : Clock
    sink : TapSink
    lag_ns : callable, optional
        How long what is read now may have been waiting, where the kernel does not say (see `probe.loop`).

    Attributes
    ----------
    arrival : Arrival
        Of the packet that the sink is being told of.
    undecryptable : int
        Packets that SRTP discarded, as a browser would: replayed or damaged.
    checks : CheckLog
        ICE's own checks, counted and timed.
    packets_sent, bytes_sent, packets_received, bytes_received : int
        What passed the sockets as SRTP or DTLS, since the tap was set; ICE's checks and UDP's headers are not in it.
    last_sent_ns, last_received_ns : int or None
        When the last of those did (monotonic).
    selected : SelectedPairs
        The candidate pair in use, and how often it changed.
    """

    def __init__(
        self, pc: RTCPeerConnection, clock: Clock, sink: TapSink, lag_ns: Callable[[], int] | None = None
    ) -> None:
        self._clock = clock
        self._sink = sink
        transceiver: Any = pc.getTransceivers()[0]
        self._dtls = transceiver.receiver.transport
        self._ice = self._dtls.transport._connection
        self._early: list[tuple[Arrival, bytes]] = []
        self.arrival = Arrival(0, 0, by_kernel=False)
        self.undecryptable = 0
        self.checks = CheckLog()
        self.packets_sent = self.bytes_sent = self.packets_received = self.bytes_received = 0
        self.last_sent_ns: int | None = None
        self.last_received_ns: int | None = None
        self.selected = self._ice._nominated = SelectedPairs(self._ice._nominated)
        for protocol in self._ice._protocols:
            self._listen(protocol, lag_ns)
        self._dtls._send_rtp = self._send_for_aiortc

    def _listen(self, protocol: Any, lag_ns: Callable[[], int] | None) -> None:
        """Take RTP and RTCP from one of ICE's sockets before aioice sees them; STUN and DTLS go on to it, watched."""
        to_aioice: Callable[[bytes, Any], None] = protocol.datagram_received
        send_stun: Callable[[Any, Any], None] = protocol.send_stun
        send_data: Callable[[bytes, Any], Awaitable[None]] = protocol.send_data
        stamps = ArrivalClock(self._clock, protocol.transport.get_extra_info("socket"), lag_ns)

        def datagram_received(data: bytes, address: Any) -> None:
            if is_rtp_or_rtcp(data):
                arrival = stamps.read()
                self._count_received(arrival.time_ns, data)
                self._media_received(arrival, data)
                return
            if self.checks.answers(data):
                self.checks.answered(stamps.read().time_ns, data)
            elif data[:1] > LAST_OF_STUN:
                self._count_received(stamps.read().time_ns, data)
            else:
                self.checks.received(protocol, tuple(address[:2]), data)
            to_aioice(data, address)

        def watched_stun(message: Any, address: Any) -> None:
            now, kind = self._clock.monotonic_ns(), message.message_class
            if kind in (Class.REQUEST, Class.RESPONSE):
                request = kind == Class.REQUEST
                remote, pair = tuple(address[:2]), self.selected.get(1)
                # what ICE asks of a pair that it has chosen is whether the peer still wants to hear it (RFC 7675)
                consent = pair is not None and pair.protocol is protocol and tuple(pair.remote_addr[:2]) == remote
                self.checks.sent(now, protocol, remote, message.transaction_id, request=request, consent=consent)
            send_stun(message, address)

        async def watched_data(data: bytes, address: Any) -> None:
            self._count_sent(self._clock.monotonic_ns(), data)
            await send_data(data, address)

        protocol.datagram_received = datagram_received
        protocol.send_stun = watched_stun
        protocol.send_data = watched_data

    def _count_received(self, time_ns: int, data: bytes) -> None:
        self.last_received_ns = time_ns
        self.packets_received += 1
        self.bytes_received += len(data)

    def _count_sent(self, time_ns: int, data: bytes) -> None:
        self.last_sent_ns = time_ns
        self.packets_sent += 1
        self.bytes_sent += len(data)

    @property
    def dtls(self) -> Any:
        """aiortc's DTLS transport, for its state."""
        return self._dtls

    @property
    def addresses(self) -> tuple[tuple[str, int], tuple[str, int]]:
        """Local and remote address of the path in use. Raises ConnectionError where there is none yet."""
        pair = self.selected.get(1)
        if pair is None:
            raise ConnectionError("no candidate pair is in use")
        return pair.local_addr, pair.remote_addr

    def _media_received(self, arrival: Arrival, data: bytes) -> None:
        if self._dtls._rx_srtp is None:
            if len(self._early) < MAX_EARLY:
                self._early.append((arrival, data))
            return
        if self._early:
            early, self._early = self._early, []
            for before in early:
                self._unprotect(*before)
        self._unprotect(arrival, data)

    def _unprotect(self, arrival: Arrival, data: bytes) -> None:
        rtcp = is_rtcp(data)
        srtp = self._dtls._rx_srtp
        try:
            plain = srtp.unprotect_rtcp(data) if rtcp else srtp.unprotect(data)
        except pylibsrtp.Error as exc:
            self.undecryptable += 1
            logger.debug("SRTP discarded a packet: %s", exc)
            return
        self.arrival = arrival
        self._sink.on_received(arrival.time_ns, plain, rtcp)

    def send(self, data: bytes) -> int:
        """Encrypt and send plain RTP or RTCP at once.

        Returns
        -------
        int
            Monotonic ns as it was handed to the socket. (Read before the call: a process that loses the processor does
            so after it, when the packet has long gone.)

        Raises
        ------
        ConnectionError
            If the transport is not connected, or no longer.
        """
        pair = self.selected.get(1)
        srtp = self._dtls._tx_srtp
        if pair is None or srtp is None or self._dtls.state != "connected":
            raise ConnectionError("Cannot send media, not connected")
        rtcp = is_rtcp(data)
        protected = srtp.protect_rtcp(data) if rtcp else srtp.protect(data)
        now = self._clock.monotonic_ns()
        pair.protocol.transport.sendto(protected, pair.remote_addr)
        self._count_sent(now, protected)
        self._sink.on_sent(now, data, rtcp)
        return now

    async def _send_for_aiortc(self, data: bytes) -> None:
        """What aiortc's own sender calls."""
        self.send(data)
