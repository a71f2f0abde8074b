"""Packets as they arrive into "is the agent audible now": what steers the call. No figure comes from here."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

import numpy as np

from analysis.audibility import MARGIN_DB, MIN_THRESHOLD_DBOV
from analysis.codecs import Codec, Decoder
from analysis.rtp import RtpPacket
from analysis.units import NS_PER_MS, from_dbov, samples_to_ns

__all__ = ["LiveHearing"]

FLOOR_PACKETS = 100  # 2 s of 20 ms
FLOOR_MIN_PACKETS = 10
RUN_NS = 30 * NS_PER_MS  # sound shorter than this is a click
MAX_DECODERS = 64  # a hostile peer may send any number of SSRCs
GAP_NS = 200 * NS_PER_MS  # a pause shorter than this does not end a sound
CLICK_GAP_NS = 60 * NS_PER_MS  # but one longer than this parts a click from what follows it


class LiveHearing:
    """Follows the level of what arrives, packet by packet, by the audibility rule's own floor and margin.

    Attributes
    ----------
    onset_ns : int or None
        Arrival (monotonic) of the packet in which the sound that is or was audible last began.
    audible_until_ns : int or None
        When the last audible packet's sound ends if it is played as it arrives.
    """

    def __init__(self, payload_types: Mapping[int, Codec]) -> None:
        self._payload_types = payload_types
        self._decoders: dict[tuple[int, str], Decoder] = {}
        self._floor: deque[float] = deque(maxlen=FLOOR_PACKETS)
        self._begun_ns: int | None = None  # of what may yet prove a click
        self._until_ns: int | None = None
        self._loud_ns = 0
        self.onset_ns: int | None = None
        self.audible_until_ns: int | None = None

    def add(self, arrival_ns: int, packet: RtpPacket) -> None:
        """Take one packet in."""
        codec = self._payload_types.get(packet.payload_type)
        if codec is None:
            return
        key = packet.ssrc, codec.name
        decoder = self._decoders.get(key)
        if decoder is None:
            if len(self._decoders) == MAX_DECODERS:
                del self._decoders[next(iter(self._decoders))]
            decoder = self._decoders[key] = Decoder(codec)
        pcm = decoder.decode(packet.payload)
        if pcm is None:
            return
        window = min(codec.rate_hz // 200, len(pcm))
        frames = pcm[: len(pcm) // window * window].reshape(-1, window)
        power = (np.einsum("ij,ij->i", frames, frames) / window).tolist()
        threshold = self._threshold_power()
        self._floor.append(sum(power) / len(power))
        loud = window * sum(value >= threshold for value in power)
        if loud:
            until_ns = arrival_ns + samples_to_ns(len(pcm), codec.rate_hz)
            self._heard(arrival_ns, until_ns, samples_to_ns(loud, codec.rate_hz))

    def _threshold_power(self) -> float:
        least = from_dbov(MIN_THRESHOLD_DBOV) ** 2
        if len(self._floor) < FLOOR_MIN_PACKETS:
            return float(least)
        floor = sorted(self._floor)[(len(self._floor) - 1) // 10]
        return float(max(least, floor * 10 ** (MARGIN_DB / 10)))

    def _heard(self, arrival_ns: int, until_ns: int, loud_ns: int) -> None:
        gap_ns = GAP_NS if self._begun_ns is None else CLICK_GAP_NS
        if self._until_ns is None or arrival_ns - self._until_ns > gap_ns:
            self._begun_ns, self._loud_ns = arrival_ns, 0
        self._until_ns = until_ns
        self._loud_ns += loud_ns
        if self._begun_ns is not None and self._loud_ns >= RUN_NS:
            self.onset_ns, self._begun_ns = self._begun_ns, None
        if self._begun_ns is None:
            self.audible_until_ns = until_ns

    @property
    def lasted_ns(self) -> int:
        """How long the sound has lasted that is or was audible last (ns); 0 if there was none."""
        return 0 if self.onset_ns is None or self.audible_until_ns is None else self.audible_until_ns - self.onset_ns

    def quiet_for(self, now_ns: int) -> int | None:
        """How long nothing has been audible (ns); None if nothing ever was."""
        return None if self.audible_until_ns is None else max(0, now_ns - self.audible_until_ns)
