"""PCM into codec payloads and back: Opus, G.711 and G.722 by libav, with the facts about each that timing needs.

Sources: RFC 6716 section 3 (Opus packets, frame sizes, and that a zero-length frame means "conceal"), RFC 7587 (Opus
in RTP: no pre-skip, 48 kHz clock), RFC 3551 section 4.5 (G.711; G.722 with its 8 kHz clock and 16 kHz audio).
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import av
import numpy as np
from numpy.typing import NDArray

__all__ = ["CODECS", "CODECS_BY_MIME", "Codec", "Decoder", "Encoder", "encode", "packet_samples"]


@dataclass(frozen=True, slots=True)
class Codec:
    """One codec.

    `clock_rate_hz` is that of its RTP timestamps, `rate_hz` that of its sound. `lookahead_samples` (at `rate_hz`): a
    source sample n comes out at n + lookahead, so it travels in packet ⌊(n + lookahead) / samples per packet⌋.
    `payload_type` is the static one of RFC 3551, None where it is negotiated.
    """

    name: str
    mime_type: str
    libav_name: str
    clock_rate_hz: int
    rate_hz: int
    lookahead_samples: int
    payload_type: int | None

    def ticks(self, samples: int) -> int:
        """Samples at `rate_hz` as RTP ticks."""
        return samples * self.clock_rate_hz // self.rate_hz

    def samples(self, ticks: int) -> int:
        """RTP ticks as samples at `rate_hz`."""
        return ticks * self.rate_hz // self.clock_rate_hz


CODECS = {
    "opus": Codec("opus", "audio/opus", "libopus", 48000, 48000, 312, None),
    "pcmu": Codec("pcmu", "audio/PCMU", "pcm_mulaw", 8000, 8000, 0, 0),
    "pcma": Codec("pcma", "audio/PCMA", "pcm_alaw", 8000, 8000, 0, 8),
    "g722": Codec("g722", "audio/G722", "g722", 8000, 16000, 22, 9),
}

CODECS_BY_MIME = {codec.mime_type.lower(): codec for codec in CODECS.values()}  # as SDP names them, in lower case

_OPUS_FRAME_MS = (10, 20, 40, 60) * 3 + (10, 20) * 2 + (2.5, 5, 10, 20) * 4  # by TOC configuration, RFC 6716 table 2


def packet_samples(codec: Codec, payload: bytes) -> int:
    """Duration of a payload in samples at `codec.rate_hz`; 0 where it has none (an empty or impossible payload)."""
    if not payload:
        return 0
    if codec.name == "g722":
        return 2 * len(payload)
    if codec.name != "opus":
        return len(payload)
    frame = int(_OPUS_FRAME_MS[payload[0] >> 3] * 48)
    code = payload[0] & 3
    count = 1 if code == 0 else 2 if code < 3 else (payload[1] & 0x3F if len(payload) > 1 else 0)
    return frame * count if frame * count <= 5760 else 0  # 120 ms at most, RFC 6716 section 3.2.5


class Encoder:
    """A codec's encoder with its state.

    Parameters
    ----------
    codec : Codec
    ptime_ms : int
        Duration of a packet: 10, 20, 40 or 60.
    bit_rate : int
        Opus only.
    """

    def __init__(self, codec: Codec, *, ptime_ms: int = 20, bit_rate: int = 32000) -> None:
        self.codec = codec
        self.frame_samples = codec.rate_hz * ptime_ms // 1000
        context = av.CodecContext.create(codec.libav_name, "w")
        context.sample_rate = codec.rate_hz  # type: ignore[attr-defined]
        context.format = "s16"  # type: ignore[attr-defined]
        context.layout = "mono"  # type: ignore[attr-defined]
        context.time_base = Fraction(1, codec.rate_hz)
        if codec.name == "opus":
            context.bit_rate = bit_rate
            context.options = {"application": "voip", "frame_duration": str(ptime_ms)}
        elif codec.name == "g722":
            context.options = {"frame_size": str(self.frame_samples)}  # 20 ms otherwise, whatever it is given
        self._context = context
        self._pts = 0

    def encode(self, frame: NDArray[np.float32]) -> bytes:
        """One packet from `frame_samples` samples (mono, `codec.rate_hz`, full scale 1.0)."""
        if frame.shape != (self.frame_samples,):
            raise ValueError(f"frame must have shape ({self.frame_samples},), got {frame.shape}")
        pcm = np.clip(np.rint(frame * 32768.0), -32768, 32767).astype(np.int16)
        audio = av.AudioFrame.from_ndarray(pcm[None, :], format="s16", layout="mono")
        audio.sample_rate = self.codec.rate_hz
        audio.pts = self._pts
        self._pts += self.frame_samples
        return b"".join(bytes(packet) for packet in self._context.encode(audio))  # type: ignore[attr-defined]


def encode(codec: Codec, pcm: NDArray[np.float32], *, ptime_ms: int = 20, bit_rate: int = 32000) -> tuple[bytes, ...]:
    """A whole sound as packets from a fresh encoder; the last frame is filled up with silence."""
    encoder = Encoder(codec, ptime_ms=ptime_ms, bit_rate=bit_rate)
    size = encoder.frame_samples
    padded = np.pad(pcm, (0, -len(pcm) % size)).astype(np.float32, copy=False)
    return tuple(encoder.encode(padded[i : i + size]) for i in range(0, len(padded), size))


class Decoder:
    """A codec's decoder with its state, mono out.

    Notes
    -----
    A packet that is missing is concealed by libopus itself: it is handed a packet like the last one (TOC byte, number
    of frames) whose frames are empty, which RFC 6716 section 3.2.1 defines as lost. G.711 and G.722 give silence.
    """

    def __init__(self, codec: Codec) -> None:
        self.codec = codec
        context = av.CodecContext.create(codec.libav_name, "r")
        context.sample_rate = codec.rate_hz  # type: ignore[attr-defined]
        context.format = "s16"  # type: ignore[attr-defined]
        context.layout = "mono"  # type: ignore[attr-defined]
        self._context = context
        self._lost: bytes | None = None  # what stands for a packet that is missing

    def decode(self, payload: bytes) -> NDArray[np.float32] | None:
        """The sound of one packet, shape (samples,), full scale 1.0; None where the payload cannot be decoded."""
        samples = packet_samples(self.codec, payload)
        if not samples:
            return None
        try:
            frames = self._context.decode(av.Packet(payload))  # type: ignore[attr-defined]
        except (av.error.FFmpegError, ValueError):
            return None
        if self.codec.name == "opus":
            count = samples // packet_samples(self.codec, bytes([payload[0] & 0xFC]))
            self._lost = bytes([payload[0] | 3, count])
        parts = [np.frombuffer(frame.planes[0], dtype=np.int16, count=frame.samples) for frame in frames]
        if sum(len(part) for part in parts) != samples:
            return None
        pcm: NDArray[np.float32] = np.concatenate(parts).astype(np.float32)
        pcm *= 1.0 / 32768.0
        return pcm

    def conceal(self) -> None:
        """Take notice that one packet is missing, so that the state goes on as a receiver's would."""
        if self._lost is not None:
            self._context.decode(av.Packet(self._lost))  # type: ignore[attr-defined]
