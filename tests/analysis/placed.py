"""Shipped utterances put into recordings in ways whose truth is known: codecs, steps, drift, rooms, noise."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray
from scipy.interpolate import CubicSpline

from analysis.audibility import LevelTrack, first_audible
from analysis.audiofile import resample
from analysis.codecs import CODECS, Decoder, encode
from analysis.references import Reference, make_reference
from analysis.units import from_dbov
from probe.utterances import shipped, shipped_names

Sound = NDArray[np.float64]
SOUND_RATE_HZ = 48000


@cache
def reference(name: str) -> Reference:
    return make_reference(name, shipped(name).samples, SOUND_RATE_HZ, language=shipped(name).language)


@cache
def references() -> tuple[Reference, ...]:
    return tuple(reference(name) for name in shipped_names())


def spoken(name: str, rate_hz: int) -> Sound:
    return resample(shipped(name).samples, SOUND_RATE_HZ, rate_hz).astype(np.float64)


def coded(x: Sound, rate_hz: int, name: str, bit_rate: int = 24000) -> Sound:
    """Through a codec and back, its delay included."""
    codec = CODECS[name]
    decoder = Decoder(codec)
    pcm = resample(x, rate_hz, codec.rate_hz)
    parts = [decoder.decode(payload) for payload in encode(codec, pcm, bit_rate=bit_rate)]
    return resample(np.concatenate([p for p in parts if p is not None]), codec.rate_hz, rate_hz).astype(np.float64)


def stepped(x: Sound, rate_hz: int, steps: Sequence[tuple[float, float]]) -> Sound:
    """With (at seconds, milliseconds) put in (positive) or taken out (negative), cross-faded as NetEQ does."""
    moved = 0
    for at_s, ms in steps:
        at, n = round(at_s * rate_hz) + moved, round(abs(ms) * rate_hz / 1000)
        fade = np.linspace(0, 1, n)
        if ms > 0:
            joint = x[at : at + n] * (1 - fade) + x[at - n : at] * fade
            x = np.concatenate([x[:at], joint, x[at:]])
            moved += n
        else:
            joint = x[at : at + n] * (1 - fade) + x[at + n : at + 2 * n] * fade
            x = np.concatenate([x[:at], joint, x[at + 2 * n :]])
            moved -= n
    return x


def drifted(x: Sound, ppm: float) -> Sound:
    """On a clock that runs so much faster: more samples."""
    fine = resample(x, 1, 4).astype(np.float64)
    scale = 1 + ppm * 1e-6
    at = np.arange(int(len(x) * scale) - 1) / scale
    return np.asarray(CubicSpline(np.arange(len(fine)) / 4, fine)(at))


def in_room(x: Sound, rate_hz: int, rt60_s: float, seed: int, direct_to_rest_db: float = 2.0) -> Sound:
    """The direct sound, and an exponential tail of noise from 3 ms after it."""
    n = round(rt60_s * rate_hz)
    tail = np.random.default_rng(seed).standard_normal(n) * 10 ** (-3 * np.arange(n) / n)
    tail[: round(0.003 * rate_hz)] = 0
    tail *= 10 ** (-direct_to_rest_db / 20) / np.sqrt((tail**2).sum())
    tail[0] = 1.0
    size = len(x) + n
    return np.asarray(np.fft.irfft(np.fft.rfft(x, 2 * size) * np.fft.rfft(tail, 2 * size), 2 * size)[:size])


@dataclass
class Placed:
    """A recording and its clean part; `at_s` is where the reference's sample 0 lies."""

    recording: NDArray[np.float32]
    clean: Sound
    rate_hz: int
    at_s: float

    def edges(self) -> tuple[int, int, float]:
        """First and last audible sample by the definition, and the θ of the last."""
        noisy = LevelTrack(self.recording, self.rate_hz)
        first = first_audible(_Over(self.clean, noisy))
        back = _Over(self.clean[::-1], LevelTrack(self.recording[::-1], self.rate_hz))
        last = first_audible(back)
        assert first is not None
        assert last is not None
        return first.sample, len(self.clean) - 1 - last.sample, last.threshold_dbov


class _Over(LevelTrack):
    """A clean signal over the floor of another."""

    def __init__(self, clean: Sound, noisy: LevelTrack) -> None:
        super().__init__(clean, noisy.rate_hz)
        self._noisy = noisy

    def floors(self, hops: NDArray[np.int64], *, after: bool = False) -> NDArray[np.float64]:
        return self._noisy.floors(hops, after=after)

    def clears_floor(self, hops: NDArray[np.int64], *, after: bool = False) -> NDArray[np.bool_]:
        return np.ones(len(hops), dtype=np.bool_)


def placed(
    x: Sound,
    rate_hz: int,
    *,
    at_s: float = 2.5,
    noise_dbov: float = -80.0,
    seed: int = 0,
    reverberant: Sound | None = None,
    after_s: float = 3.0,
) -> Placed:
    """An utterance at `at_s` over white noise; `reverberant` is recorded in its place, where it is given."""
    begin = round(at_s * rate_hz)
    heard = x if reverberant is None else reverberant
    total = begin + len(heard) + round(after_s * rate_hz)
    clean, recording = np.zeros(total), np.zeros(total)
    clean[begin : begin + len(x)] = x
    recording[begin : begin + len(heard)] = heard
    recording += from_dbov(noise_dbov) * np.random.default_rng(seed).standard_normal(total)
    return Placed(recording.astype(np.float32), clean, rate_hz, begin / rate_hz)
