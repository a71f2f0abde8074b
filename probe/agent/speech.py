"""Plans into packets' payloads, encoded before they are needed; and the loop of payloads that fills a stream's silence.

A sound is encoded by a fresh encoder that has first heard what goes before it: silence, or the comfort noise of a
stream that never pauses. So the join is no click, and where a sound begins does not hang on its leading silence.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from analysis.codecs import Codec, Encoder
from analysis.units import from_dbov
from probe.agent.config import AgentConfig
from probe.agent.draws import Draws, Purpose
from probe.agent.plan import Kind, ReplyPlan, render

__all__ = ["Prepared", "idle_loop", "prepare"]

LOOP_MS = 4_800  # a whole number of frames of 10, 20, 40 and 60 ms
WARM_UP_MS = 240  # likewise; heard by the encoder, not sent
DTX_AFTER_MS = 200  # silence that is still sent
DTX_REFRESH_MS = 400  # between the packets of a longer silence, as libopus sends them
LOOP_NOISE = 1 << 20  # index of the loop's noise among the draws; those of replies count from 0


@dataclass(frozen=True)
class Prepared:
    """One sound as payloads, None where a frame is not sent (DTX).

    `speech_start`, `speech_stop` (exclusive) and `content_start` are samples of the decoded sound, the encoder's
    look-ahead included, from the first sample of the first frame.
    """

    plan: ReplyPlan
    kind: Kind
    payloads: tuple[bytes | None, ...] = field(repr=False)
    frame_samples: int
    speech_start: int
    speech_stop: int
    content_start: int | None

    def sounding(self, frame: int) -> bool:
        """Whether speech lies in a frame, as it was planned."""
        return self.speech_start < (frame + 1) * self.frame_samples and frame * self.frame_samples < self.speech_stop


def prepare(config: AgentConfig, plan: ReplyPlan, kind: Kind, codec: Codec, ptime_ms: int) -> Prepared:
    """Render and encode one sound: a pure function of its arguments."""
    if kind == "greeting" and config.comfort_noise_dbov is None:
        # many calls that begin at once say the same
        return replace(_greeting(config, replace(plan, call=0), codec, ptime_ms), plan=plan)
    return _prepare(config, plan, kind, codec, ptime_ms)


@lru_cache(maxsize=16)
def _greeting(config: AgentConfig, plan: ReplyPlan, codec: Codec, ptime_ms: int) -> Prepared:
    return _prepare(config, plan, "greeting", codec, ptime_ms)


def _prepare(config: AgentConfig, plan: ReplyPlan, kind: Kind, codec: Codec, ptime_ms: int) -> Prepared:
    sound = render(config, plan, kind, codec)
    size = codec.rate_hz * ptime_ms // 1000
    padding = -len(sound.pcm) % size
    pcm, gate = np.pad(sound.pcm, (0, padding)), np.pad(sound.gate, (0, padding))
    encoder = Encoder(codec, ptime_ms=ptime_ms, bit_rate=config.bit_rate)
    if config.comfort_noise_dbov is not None:
        pcm = pcm + _noise(config, plan.call, 2 * (plan.index + 1) + (kind == "backchannel"), len(pcm))
    noise_before = config.comfort_noise_dbov
    _warm_up(encoder, _loop_pcm(config.seed, noise_before, codec), size)
    payloads: list[bytes | None] = [encoder.encode(frame) for frame in _frames(pcm, size)]
    if config.impairment.dtx:
        sent = _sent_with_dtx(np.asarray(gate.reshape(-1, size).any(axis=1)), ptime_ms)
        payloads = [payload if is_sent else None for payload, is_sent in zip(payloads, sent, strict=True)]
    ahead = codec.lookahead_samples
    return Prepared(
        plan=plan,
        kind=kind,
        payloads=tuple(payloads),
        frame_samples=size,
        speech_start=sound.speech_start + ahead,
        speech_stop=sound.speech_stop + ahead,
        content_start=None if sound.content_start is None else sound.content_start + ahead,
    )


def idle_loop(config: AgentConfig, codec: Codec, ptime_ms: int) -> tuple[bytes, ...]:
    """What a stream that never pauses sends when nothing is said: payloads to go round, the same in every call."""
    return _idle_loop(config.seed, config.comfort_noise_dbov, config.bit_rate, codec, ptime_ms)


@lru_cache(maxsize=16)
def _idle_loop(seed: int, noise_dbov: float | None, bit_rate: int, codec: Codec, ptime_ms: int) -> tuple[bytes, ...]:
    size = codec.rate_hz * ptime_ms // 1000
    pcm = _loop_pcm(seed, noise_dbov, codec)
    encoder = Encoder(codec, ptime_ms=ptime_ms, bit_rate=bit_rate)
    _warm_up(encoder, pcm, size)
    return tuple(encoder.encode(frame) for frame in _frames(pcm, size))


def _warm_up(encoder: Encoder, loop: NDArray[np.float32], size: int) -> None:
    """Let an encoder hear the end of what goes before."""
    for frame in _frames(loop[-WARM_UP_MS * encoder.codec.rate_hz // 1000 :], size):
        encoder.encode(frame)


@lru_cache(maxsize=8)
def _loop_pcm(seed: int, noise_dbov: float | None, codec: Codec) -> NDArray[np.float32]:
    samples = LOOP_MS * codec.rate_hz // 1000
    if noise_dbov is None:
        return np.zeros(samples, dtype=np.float32)
    noise = Draws(seed, 0).noise(Purpose.COMFORT_NOISE, LOOP_NOISE, samples)
    return (noise * np.float32(from_dbov(noise_dbov))).astype(np.float32)


def _noise(config: AgentConfig, call: int, index: int, samples: int) -> NDArray[np.float32]:
    assert config.comfort_noise_dbov is not None
    noise = Draws(config.seed, call).noise(Purpose.COMFORT_NOISE, index, samples)
    return (noise * np.float32(from_dbov(config.comfort_noise_dbov))).astype(np.float32)


def _frames(pcm: NDArray[np.float32], size: int) -> Iterator[NDArray[np.float32]]:
    return (pcm[at : at + size] for at in range(0, len(pcm), size))


def _sent_with_dtx(active: NDArray[np.bool_], ptime_ms: int) -> list[bool]:
    """Which frames are sent: silence for 200 ms, then one frame every 400 ms of it."""
    sent, silent_ms = [], 0
    for is_active in active:
        silent_ms = 0 if is_active else silent_ms + ptime_ms
        over_ms = silent_ms - DTX_AFTER_MS
        sent.append(over_ms <= 0 or (over_ms >= DTX_REFRESH_MS and over_ms % DTX_REFRESH_MS < ptime_ms))
    return sent
