"""The packets of one stream as arrays: what a jitter buffer is fed with, and where its talkspurts begin.

Source: the design's definition of a talkspurt. Arrivals are monotonic ns, positions samples on the sender's clock.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

__all__ = ["RATES_HZ", "PacketTrace", "Sound", "no_noise", "talkspurts"]

RATES_HZ = (8000, 16000, 32000, 48000)
TALKSPURT_GAP_MS = 60

Int64 = NDArray[np.int64]


def no_noise() -> Int64:
    """The `noise` of a trace that has none."""
    return np.zeros((0, 3), dtype=np.int64)


class Sound(Protocol):
    """The decoded audio of a stream's packets, made as it is asked for, so that it need not be there all at once."""

    def packets(self) -> Iterator[NDArray[np.float32]]:
        """The audio of each packet in order of sequence number, full scale 1.0, from the first one on."""
        ...


@dataclass(frozen=True, slots=True)
class PacketTrace:
    """The packets of one stream that arrived, in order of sequence number, without duplicates.

    Parameters
    ----------
    rate_hz : int
        Sampling rate of the decoded audio: 48000 Opus, 8000 G.711, 16000 G.722.
    sequence : ndarray of int64, shape (n,)
        Unwrapped RTP sequence numbers, strictly increasing; a gap is a loss.
    position : ndarray of int64, shape (n,)
        First sample of each packet on the stream's media timeline, in samples at `rate_hz`. A jump without a gap in
        `sequence` is a pause (DTX).
    samples : ndarray of int64, shape (n,)
        Duration of each packet in samples.
    arrival_ns : ndarray of int64, shape (n,)
        Monotonic time of arrival; not sorted where packets were reordered.
    payload_bytes : ndarray of int64, shape (n,)
        Size of each payload.
    pcm : ndarray of float32, shape (samples.sum(),), or Sound
        Decoded audio of the packets one after another, full scale 1.0.
    noise : ndarray of int64, shape (k, 3), optional
        Packets of comfort noise (RFC 3389), which are none of the above: position, arrival (ns) and level (dB below
        full scale) of each, in order of position. Only `chrome` looks at them.

    Raises
    ------
    ValueError
        If lengths do not match, `sequence` does not increase, a duration is not positive or the rate is not one of
        8000, 16000, 32000 and 48000.
    """

    rate_hz: int
    sequence: Int64
    position: Int64
    samples: Int64
    arrival_ns: Int64
    payload_bytes: Int64
    pcm: NDArray[np.float32] | Sound
    noise: Int64 = field(default_factory=no_noise)

    def __post_init__(self) -> None:
        if self.rate_hz not in RATES_HZ:
            raise ValueError(f"rate_hz must be one of {RATES_HZ}, got {self.rate_hz}")
        count = len(self.sequence)
        for name in ("position", "samples", "arrival_ns", "payload_bytes"):
            if len(getattr(self, name)) != count:
                raise ValueError(f"{name} has {len(getattr(self, name))} entries for {count} packets")
        if self.noise.ndim != 2 or self.noise.shape[1] != 3:
            raise ValueError(f"noise must have shape (k, 3), got {self.noise.shape}")
        if count and int(self.samples.min()) < 1:
            raise ValueError("samples must be positive")
        if isinstance(self.pcm, np.ndarray) and len(self.pcm) != int(self.samples.sum()):
            raise ValueError(f"pcm has {len(self.pcm)} samples, the packets {int(self.samples.sum())}")
        if count > 1 and int(np.diff(self.sequence).min()) < 1:
            raise ValueError("sequence must increase strictly")

    def sounds(self) -> Iterator[NDArray[np.float32]]:
        """The decoded audio of each packet, in order of sequence number."""
        pcm = self.pcm
        if not isinstance(pcm, np.ndarray):
            return pcm.packets()
        ends = np.cumsum(self.samples).tolist()
        return (pcm[end - count : end] for end, count in zip(ends, self.samples.tolist(), strict=True))


def talkspurts(sequence: Int64, position: Int64, samples: Int64, rate_hz: int) -> Int64:
    """Number of the talkspurt (from 0) that each packet belongs to, shape (n,); arguments as in `PacketTrace`.

    One begins at the first packet, and at one whose position lies more than 60 ms past the end of its predecessor by
    sequence number; each packet lost between them counts the predecessor's duration. So does one whose timeline starts
    again at an earlier position.
    """
    lost = np.diff(sequence) - 1
    # beyond this many losses a pause can not be told any more, and the product must not overflow
    expected = position[:-1] + samples[:-1] * (1 + np.minimum(lost, 1 << 32))
    begins = position[1:] - expected > TALKSPURT_GAP_MS * rate_hz // 1000
    begins |= position[1:] < position[:-1]
    first = np.zeros(min(1, len(sequence)), dtype=np.int64)
    return np.concatenate([first, np.cumsum(begins)]).astype(np.int64)
