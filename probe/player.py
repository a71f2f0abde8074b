"""Utterances and background, encoded ahead of the call, into a track that hands over one packet at each deadline.

The virtual microphone: frame i of the call is handed over at T_i = T_0 + i·ptime on the monotonic clock, the end of
its sound, so its sample p (from 0, of N at rate f) was captured at T_i − (N − p)/f. Deadlines are absolute: a late
hand-over is never carried on. aiortc's sender takes `av.Packet`s as they are and does not encode.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import av
import numpy as np
from aiortc import MediaStreamTrack
from numpy.typing import NDArray

from analysis.audiofile import resample
from analysis.codecs import Codec, Decoder, encode
from analysis.units import NS_PER_MS, NS_PER_S, dbov, from_dbov
from probe.clock import Clock
from probe.utterances import Utterance

__all__ = ["Background", "EncodedUtterance", "Player", "encode_background", "encode_utterance"]

SOURCE_RATE_HZ = 48_000
NOISE_LOOP_MS = 4_800  # a whole number of frames of 10, 20, 40 and 60 ms
EDGE_MS = 120  # before and after an utterance, so that the encoder has settled; likewise whole frames
NOISE_SEED = 20_261_201
LEVEL_TRIALS = 4
LEVEL_NEAR_DB = 0.2


@dataclass(frozen=True)
class Background:
    """What is sent between utterances: packets in a loop, or nothing (`dtx`).

    `noise_dbov` is the level of the noise that was encoded; None where there is none.
    """

    name: str
    packets: tuple[bytes, ...]
    noise_dbov: float | None


@dataclass(frozen=True)
class EncodedUtterance:
    """An utterance as packets; packet 0 holds its first sample, and the last ones flush the encoder."""

    utterance: Utterance
    packets: tuple[bytes, ...]


def _noise(samples: int, level_dbov: float | None, rng: np.random.Generator) -> NDArray[np.float32]:
    if level_dbov is None:
        return np.zeros(samples, dtype=np.float32)
    return (rng.standard_normal(samples) * from_dbov(level_dbov)).astype(np.float32)


def encode_background(setting: str, codec: Codec, ptime_ms: int) -> Background:
    """`noise:DBOV` (its level once decoded), `silence` or `dtx` as packets, from an encoder that has settled on it."""
    kind, _, level = setting.partition(":")
    if kind == "dtx":
        return Background(setting, (), None)
    if kind != "noise":
        return Background(setting, _loop(None, codec, ptime_ms), None)
    # Opus takes 1.7 dB off noise, and G.711 adds its own: what was asked for is the level that is heard
    asked_dbov = noise_dbov = float(level)
    trials: list[tuple[float, Background]] = []
    for _ in range(LEVEL_TRIALS):
        packets = _loop(noise_dbov, codec, ptime_ms)
        error_db = min(3.0, max(-3.0, _decoded_dbov(packets, codec) - asked_dbov))
        trials.append((abs(error_db), Background(setting, packets, noise_dbov)))
        if abs(error_db) <= LEVEL_NEAR_DB:
            break
        noise_dbov -= error_db
    return min(trials, key=lambda trial: trial[0])[1]


def _loop(noise_dbov: float | None, codec: Codec, ptime_ms: int) -> tuple[bytes, ...]:
    loop = _noise(NOISE_LOOP_MS * codec.rate_hz // 1000, noise_dbov, np.random.default_rng(NOISE_SEED))
    settle = EDGE_MS * codec.rate_hz // 1000
    return encode(codec, np.concatenate((loop[-settle:], loop)), ptime_ms=ptime_ms)[EDGE_MS // ptime_ms :]


def _decoded_dbov(packets: tuple[bytes, ...], codec: Codec) -> float:
    decoder = Decoder(codec)
    heard = [pcm for pcm in map(decoder.decode, packets) if pcm is not None]
    return dbov(float(np.sqrt(np.mean(np.square(np.concatenate(heard))))))


def encode_utterance(utterance: Utterance, codec: Codec, ptime_ms: int, background: Background) -> EncodedUtterance:
    """An utterance as packets, with the background before it (for the encoder to settle on; not sent) and after it."""
    rng = np.random.default_rng(NOISE_SEED + 1)
    edge = _noise(2 * EDGE_MS * codec.rate_hz // 1000, background.noise_dbov, rng)
    middle = len(edge) // 2
    sound = resample(utterance.samples, SOURCE_RATE_HZ, codec.rate_hz)
    packets = encode(codec, np.concatenate((edge[:middle], sound, edge[middle:])), ptime_ms=ptime_ms)
    return EncodedUtterance(utterance, packets[EDGE_MS // ptime_ms :])


class Player(MediaStreamTrack):
    """The track that the probe publishes.

    Parameters
    ----------
    codec : Codec
    ptime_ms : int
    background : Background
    clock : Clock

    Attributes
    ----------
    started : asyncio.Event
        Set when the sender has asked for the first packet; from then on `deadline0_ns` holds T_0.
    frame : int
        Index of the frame that is handed over next.
    first_ticks : int or None
        Media time (RTP ticks) of the first packet; not 0 where nothing is sent before the first words.
    """

    kind = "audio"

    def __init__(self, codec: Codec, ptime_ms: int, background: Background, clock: Clock) -> None:
        super().__init__()
        self.started = asyncio.Event()
        self.frame = 0
        self.frame_ns = ptime_ms * NS_PER_MS
        self.deadline0_ns = 0
        self.first_ticks: int | None = None
        self._ticks = codec.clock_rate_hz * ptime_ms // 1000
        self._time_base = Fraction(1, codec.clock_rate_hz)
        self._background = background
        self._clock = clock
        self._next: tuple[EncodedUtterance, int, Callable[[int, int], None]] | None = None
        self._speaking: tuple[EncodedUtterance, int] | None = None
        self._for_frame: list[asyncio.Future[None]] = []

    def deadline_ns(self, frame: int) -> int:
        """T of a frame (monotonic ns)."""
        return self.deadline0_ns + frame * self.frame_ns

    def say(self, utterance: EncodedUtterance, not_before_ns: int, on_start: Callable[[int, int], None]) -> None:
        """Speak from the first frame on that is captured wholly after `not_before_ns` (monotonic).

        `on_start(frame, deadline_ns)` is called as its first packet is handed over.
        """
        self._next = utterance, not_before_ns, on_start

    async def tick(self) -> None:
        """Wait for the next frame: who polls with the frames costs no wake-up of its own."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._for_frame.append(waiter)
        await waiter

    async def recv(self) -> av.Packet[Any]:
        """The next packet, at its deadline; called by aiortc's sender."""
        if not self.started.is_set():
            self.deadline0_ns = self._clock.monotonic_ns() + self.frame_ns
            self.started.set()
        while True:
            frame = self.frame
            await self._sleep_until(self.deadline_ns(frame))
            payload = self._payload(frame)
            self.frame += 1
            waiting, self._for_frame = self._for_frame, []
            for waiter in waiting:
                if not waiter.done():
                    waiter.set_result(None)
            if payload is not None:
                packet = av.Packet(payload)
                packet.pts = frame * self._ticks
                if self.first_ticks is None:
                    self.first_ticks = packet.pts
                packet.time_base = self._time_base
                return packet

    async def _sleep_until(self, deadline_ns: int) -> None:
        wait_ns = deadline_ns - self._clock.monotonic_ns()
        if wait_ns > 0:
            await asyncio.sleep(wait_ns / NS_PER_S)

    def _payload(self, frame: int) -> bytes | None:
        if self._speaking is None and self._next is not None:
            utterance, not_before_ns, on_start = self._next
            if self.deadline_ns(frame) - self.frame_ns >= not_before_ns:
                self._speaking, self._next = (utterance, frame), None
                on_start(frame, self.deadline_ns(frame))
        if self._speaking is not None:
            utterance, first = self._speaking
            if frame - first < len(utterance.packets):
                return utterance.packets[frame - first]
            self._speaking = None
            return self._payload(frame)
        loop = self._background.packets
        return loop[frame % len(loop)] if loop else None
