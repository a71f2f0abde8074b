"""The caller's packets as they arrive into stretches in which the caller is voiced, on the arrival clock.

5 ms frames against a threshold that follows the noise floor. A packet's sound is taken to end as the packet arrives.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

import numpy as np

from analysis.codecs import Codec, Decoder
from analysis.rtp import RtpPacket, signed_difference
from analysis.units import NS_PER_MS, from_dbov, samples_to_ns

__all__ = ["CallerHearing"]

FRAMES_PER_S = 200  # 5 ms
MARGIN_DB = 12.0
LEAST_DBOV = -45.0
MOST_DBOV = -25.0  # speech without a pause must not become its own floor
FLOOR_PACKETS = 300  # 6 s of 20 ms: longer than most utterances, so that there is some background in it
SILENT_BEFORE = 20  # packets of silence taken to lie before the first: a caller may begin with a word
FLOOR_EVERY = 10  # packets between looks at the floor
FLOOR_PERCENT = 10
ONSET_NS = 60 * NS_PER_MS  # less than this of voice is a click
GAP_NS = 200 * NS_PER_MS  # after this much silence an onset is asked for again


class CallerHearing:
    """Follows one caller.

    Parameters
    ----------
    payload_types : mapping of int to Codec
        As negotiated.
    """

    def __init__(self, payload_types: Mapping[int, Codec]) -> None:
        self._payload_types = payload_types
        self._decoder: Decoder | None = None
        self._source: tuple[int, int] | None = None
        self._sequence = 0
        self._next_timestamp: int | None = None
        self._levels: deque[float] = deque([0.0] * SILENT_BEFORE, maxlen=FLOOR_PACKETS)
        self._heard = 0
        self._threshold = from_dbov(LEAST_DBOV) ** 2
        self._begin_ns = 0
        self._voiced_ns = 0
        self._last_ns: int | None = None
        self._established = False

    def add(self, arrival_ns: int, packet: RtpPacket) -> tuple[int, int] | None:
        """Take one packet in.

        Returns
        -------
        (int, int) or None
            From when to when (monotonic ns) the caller was voiced, where that is news; the first stretch of an
            utterance reaches back to where it began.
        """
        codec = self._payload_types.get(packet.payload_type)
        if codec is None:
            return None
        source = packet.ssrc, packet.payload_type
        if self._decoder is None or source != self._source:
            self._decoder, self._source, self._next_timestamp = Decoder(codec), source, None
        elif signed_difference(packet.sequence_number, self._sequence, 16) <= 0:
            return None  # too late to matter, or a duplicate
        self._sequence = packet.sequence_number
        pcm = self._decoder.decode(packet.payload)
        if pcm is None:
            return None
        self._take_pause(packet.timestamp, codec.ticks(len(pcm)))
        size = codec.rate_hz // FRAMES_PER_S
        frames = np.square(pcm[: len(pcm) // size * size]).reshape(-1, size).mean(axis=1)
        self._follow_floor(float(frames.mean()))
        voiced = np.flatnonzero(frames >= self._threshold)
        if not len(voiced):
            return None
        zero_ns = arrival_ns - samples_to_ns(len(pcm), codec.rate_hz)
        begin_ns = zero_ns + samples_to_ns(int(voiced[0]) * size, codec.rate_hz)
        end_ns = zero_ns + samples_to_ns((int(voiced[-1]) + 1) * size, codec.rate_hz)
        return self._establish(begin_ns, end_ns, len(voiced) * 1_000 * NS_PER_MS // FRAMES_PER_S)

    def _take_pause(self, timestamp: int, duration: int) -> None:
        """What was not sent (DTX) is silence, and belongs to the floor."""
        if self._next_timestamp is not None:
            missing = signed_difference(timestamp, self._next_timestamp, 32) // duration
            self._levels.extend([0.0] * min(max(missing, 0), FLOOR_PACKETS))
        self._next_timestamp = (timestamp + duration) & 0xFFFFFFFF

    def _follow_floor(self, mean_square: float) -> None:
        self._levels.append(mean_square)
        self._heard += 1
        if self._heard % FLOOR_EVERY == 0:
            floor = sorted(self._levels)[len(self._levels) * FLOOR_PERCENT // 100]
            wanted = floor * 10 ** (MARGIN_DB / 10)
            self._threshold = min(max(wanted, from_dbov(LEAST_DBOV) ** 2), from_dbov(MOST_DBOV) ** 2)

    def _establish(self, begin_ns: int, end_ns: int, voiced_ns: int) -> tuple[int, int] | None:
        if self._last_ns is None or begin_ns - self._last_ns > GAP_NS:
            self._begin_ns, self._voiced_ns, self._established = begin_ns, 0, False
        self._last_ns = end_ns
        self._voiced_ns += voiced_ns
        if self._established:
            return begin_ns, end_ns
        if self._voiced_ns < ONSET_NS:
            return None
        self._established = True
        return self._begin_ns, end_ns
