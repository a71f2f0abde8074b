"""A peer connection's media path, tapped at the socket: every RTP and RTCP packet, both ways, with its time.

aiortc has no public hook for this; docs/adr/0004 says which of its attributes are used and why. Arrivals are stamped
in `data_received`, before decryption. RTP never enters aiortc's own receiver, whose jitter buffer and decoder rest.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Protocol

import pylibsrtp
from aiortc import RTCPeerConnection

from analysis.rtp import is_rtcp, is_rtp_or_rtcp
from probe.clock import Clock

__all__ = ["MediaTap", "TapSink"]

logger = logging.getLogger(__name__)

MAX_EARLY = 256  # packets kept while DTLS is not done


class TapSink(Protocol):
    """Who is told of each packet. `data` is plain RTP or RTCP."""

    def on_received(self, time_ns: int, data: bytes, rtcp: bool) -> None:
        """A packet came out of the socket at `time_ns` (monotonic)."""
        ...

    def on_sent(self, time_ns: int, data: bytes, rtcp: bool) -> None:
        """The socket took a packet; `time_ns` (monotonic) is read right after."""
        ...


class MediaTap:
    """Taps one peer connection.

    Parameters
    ----------
    pc : RTCPeerConnection
        With one audio transceiver and both descriptions applied: BUNDLE swaps transports before that.
    clock : Clock
    sink : TapSink
    """

    def __init__(self, pc: RTCPeerConnection, clock: Clock, sink: TapSink) -> None:
        self._clock = clock
        self._sink = sink
        transceiver: Any = pc.getTransceivers()[0]
        self._dtls = transceiver.receiver.transport
        self._ice = self._dtls.transport._connection
        self._to_aiortc: Callable[[bytes, int], None] = self._ice.data_received
        self._early: list[tuple[int, bytes]] = []
        self.undecryptable = 0
        self._ice.data_received = self._data_received
        self._dtls._send_rtp = self._send_for_aiortc

    @property
    def addresses(self) -> tuple[tuple[str, int], tuple[str, int]]:
        """Local and remote address of the path in use. Raises ConnectionError where there is none yet."""
        pair = self._ice._nominated.get(1)
        if pair is None:
            raise ConnectionError("no candidate pair is in use")
        return pair.local_addr, pair.remote_addr

    def _data_received(self, data: bytes, component: int) -> None:
        now = self._clock.monotonic_ns()
        if not is_rtp_or_rtcp(data):
            self._to_aiortc(data, component)
        elif self._dtls._rx_srtp is None:
            if len(self._early) < MAX_EARLY:
                self._early.append((now, data))
        else:
            if self._early:
                early, self._early = self._early, []
                for time_ns, before in early:
                    self._unprotect(time_ns, before)
            self._unprotect(now, data)

    def _unprotect(self, time_ns: int, data: bytes) -> None:
        rtcp = is_rtcp(data)
        srtp = self._dtls._rx_srtp
        try:
            plain = srtp.unprotect_rtcp(data) if rtcp else srtp.unprotect(data)
        except pylibsrtp.Error as exc:
            # a replayed or damaged packet: SRTP discards it, as a browser would
            self.undecryptable += 1
            logger.debug("SRTP discarded a packet: %s", exc)
            return
        self._sink.on_received(time_ns, plain, rtcp)

    def send(self, data: bytes) -> int:
        """Encrypt and send plain RTP or RTCP at once.

        Returns
        -------
        int
            Monotonic ns right after the socket took it.

        Raises
        ------
        ConnectionError
            If the transport is not connected, or no longer.
        """
        pair = self._ice._nominated.get(1)
        srtp = self._dtls._tx_srtp
        if pair is None or srtp is None or self._dtls.state != "connected":
            raise ConnectionError("Cannot send media, not connected")
        rtcp = is_rtcp(data)
        protected = srtp.protect_rtcp(data) if rtcp else srtp.protect(data)
        pair.protocol.transport.sendto(protected, pair.remote_addr)
        now = self._clock.monotonic_ns()
        self._sink.on_sent(now, data, rtcp)
        return now

    async def _send_for_aiortc(self, data: bytes) -> None:
        """What aiortc's own sender calls."""
        self.send(data)
