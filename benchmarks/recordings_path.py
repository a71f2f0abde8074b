"""What lies between a sound and the recording: time-stretching with known maps, codecs, rooms, bleed and drift.

Sources: NetEQ's Accelerate and PreemptiveExpand (WebRTC) for one pitch lag taken out of, or put into, voiced sound by a
cross-fade; image sources (Allen and Berkley 1979) by pyroomacoustics for rooms.
"""

from __future__ import annotations

import importlib
import importlib.util
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import soxr
from numpy.typing import NDArray
from scipy.signal import oaconvolve

from analysis.codecs import CODECS, Decoder, Encoder

__all__ = [
    "ROOMS_ARE_THERE",
    "Room",
    "StretchMap",
    "bleed_filter",
    "coded",
    "drifted",
    "filtered",
    "fractional_delay",
    "room",
    "stretched",
]

ROOMS_ARE_THERE = importlib.util.find_spec("pyroomacoustics") is not None
LAG_MS = (2.5, 15.0)  # NetEQ's range of pitch lags
CODEC_PTIME_MS = {"opus": 20, "pcmu": 60, "pcma": 60, "g722": 60}
SILENT_AFTER_MS, SILENT_BEFORE_MS = 500, 100  # around sound, in which silence is sent too
ROOM_SIZES_M = ((4.0, 3.0, 2.5), (5.0, 4.0, 2.8), (6.5, 5.0, 3.0))
ROOM_RT60_S = (0.2, 0.3, 0.4, 0.5, 0.6, 0.7)

Sound = NDArray[np.float32]
Rng = np.random.Generator


@dataclass(frozen=True, slots=True)
class StretchMap:
    """Where samples went. A step is (where its cross-fade ends in the source, samples taken out (−) or put in (+)).

    Outside the cross-fades the stretched sound is the source, sample for sample, at `position(source)`. A cross-fade
    that takes out (puts in) L samples covers the 2L source samples before its step's place (the L before it).
    """

    steps: tuple[tuple[int, int], ...] = ()

    def position(self, source: int) -> int:
        """Where a source sample that lies in no cross-fade is found in the stretched sound."""
        return source + sum(samples for at, samples in self.steps if at <= source)

    @property
    def total(self) -> int:
        """Samples gained (+) or lost (−) over all."""
        return sum(samples for _, samples in self.steps)


def stretched(sound: Sound, rate_hz: int, rng: Rng, *, steps: int, longer: bool) -> tuple[Sound, StretchMap]:
    """The sound with up to `steps` pitch lags put in (or taken out) at places drawn from where it is loud."""
    short, long = (int(ms * rate_hz / 1000) for ms in LAG_MS)
    power = np.square(sound, dtype=np.float64)
    loud = np.flatnonzero(power > power.mean() / 4)
    loud = loud[(loud > 2 * long) & (loud < len(sound) - 3 * long)]
    if not len(loud):
        return sound, StretchMap()
    chosen: list[int] = []
    for at in np.sort(rng.choice(loud, size=min(steps, len(loud)), replace=False)).tolist():
        if not chosen or at - chosen[-1] >= 3 * long:
            chosen.append(at)
    pieces: list[Sound] = []
    done: list[tuple[int, int]] = []
    taken = 0
    for at in chosen:
        lag = _pitch_lag(sound[at : at + 2 * long], short, long)
        ramp = np.linspace(0.0, 1.0, lag, dtype=np.float32)
        first, second = sound[at : at + lag], sound[at + lag : at + 2 * lag]
        pieces.append(sound[taken:at])
        if longer:
            # one period, then back from the second period into the first
            pieces += [first, second * (1 - ramp) + first * ramp]
            taken = at + lag
        else:
            pieces.append(first * (1 - ramp) + second * ramp)
            taken = at + 2 * lag
        done.append((taken, lag if longer else -lag))
    pieces.append(sound[taken:])
    return np.concatenate(pieces).astype(np.float32, copy=False), StretchMap(tuple(done))


def _pitch_lag(sound: Sound, short: int, long: int) -> int:
    """The lag at which a stretch of 2·long samples resembles itself most."""
    head = sound[:long].astype(np.float64)
    products = np.correlate(sound.astype(np.float64), head, mode="valid")[short : long + 1]
    energy = np.concatenate(([0.0], np.cumsum(np.square(sound, dtype=np.float64))))
    lags = np.arange(short, short + len(products))
    return int(lags[np.argmax(products / np.sqrt(energy[lags + long] - energy[lags] + 1e-12))])


def fractional_delay(sound: Sound, samples: float) -> Sound:
    """The sound later by a fraction of a sample (band-limited); one sample longer."""
    padded = np.concatenate((sound, np.zeros(len(sound) % 2 + 2, dtype=np.float32)))
    spectrum = np.fft.rfft(padded)
    turn = np.exp(-2j * np.pi * np.arange(len(spectrum)) * samples / len(padded))
    return np.fft.irfft(spectrum * turn, len(padded)).astype(np.float32)


def coded(sound: Sound, rate_hz: int, name: str, bit_rate: int) -> Sound:
    """The sound after a codec, at `rate_hz`, as long as it was; the codec's look-ahead is in it as a delay.

    Digital silence that goes on for more than half a second is not sent: it costs most of a call's time to encode, and
    nothing of what came before is left in the codec's state by then.
    """
    codec = CODECS[name]
    pcm = sound if rate_hz == codec.rate_hz else soxr.resample(sound, rate_hz, codec.rate_hz)
    encoder, decoder = Encoder(codec, ptime_ms=CODEC_PTIME_MS[name], bit_rate=bit_rate), Decoder(codec)
    size = encoder.frame_samples
    frames = np.pad(pcm, (0, -len(pcm) % size)).astype(np.float32, copy=False).reshape(-1, size)
    out = np.zeros_like(frames)
    for i in np.flatnonzero(_sent(np.asarray(frames.any(axis=1)), CODEC_PTIME_MS[name])).tolist():
        decoded = decoder.decode(encoder.encode(frames[i]))
        if decoded is not None:
            out[i] = decoded
    back = out.reshape(-1)
    if rate_hz != codec.rate_hz:
        back = soxr.resample(back, codec.rate_hz, rate_hz)
    if len(back) < len(sound):
        back = np.pad(back, (0, len(sound) - len(back)))
    return np.ascontiguousarray(back[: len(sound)], dtype=np.float32)


def _sent(active: NDArray[np.bool_], ptime_ms: int) -> NDArray[np.bool_]:
    """Frames that are active, or within 0.5 s after or 0.1 s before one that is."""
    after, before = SILENT_AFTER_MS // ptime_ms, -(-SILENT_BEFORE_MS // ptime_ms)
    reach = np.convolve(active, np.ones(after + before + 1))[before : before + len(active)]
    return np.asarray(reach > 0.5)


def drifted(sound: Sound, ppm: float) -> Sound:
    """What a recorder whose clock runs fast by `ppm` (more samples for the same sound) makes of it."""
    if ppm == 0.0:
        return sound
    return np.asarray(soxr.resample(sound, 1e6, 1e6 + ppm, quality="VHQ"), dtype=np.float32)


@dataclass(frozen=True, slots=True, eq=False)
class Room:
    """Impulse responses of one place in one room: all of it, and the direct path alone, on one time axis."""

    rt60_s: float
    whole: Sound
    direct: Sound


@lru_cache(maxsize=64)
def room(rate_hz: int, number: int) -> Room:
    """Room `number` (0 to 35): RT60 0.2 to 0.7 s in steps of 0.1 s, three sizes, two places of the microphone.

    The delay of the direct path is taken out to the whole sample, its level is set to 1.
    """
    pra = importlib.import_module("pyroomacoustics")  # an extra

    rt60_s = ROOM_RT60_S[number % 6]
    size = ROOM_SIZES_M[number // 6 % 3]
    absorption, order = pra.inverse_sabine(rt60_s, size)
    distance_m = (0.6, 1.4)[number // 18 % 2]

    def response(most: int) -> NDArray[np.float64]:
        shoebox = pra.ShoeBox(size, fs=rate_hz, materials=pra.Material(absorption), max_order=most)
        shoebox.add_source([1.3, 1.2, 1.2])
        shoebox.add_microphone([1.3 + 0.8 * distance_m, 1.2 + 0.6 * distance_m, 1.3])
        shoebox.compute_rir()
        return np.asarray(shoebox.rir[0][0])

    direct, whole = response(0), response(order)
    peak = int(np.argmax(np.abs(direct)))
    first, gain = max(0, peak - 40), 1.0 / float(np.abs(direct).max())
    return Room(rt60_s, (whole[first:] * gain).astype(np.float32), (direct[first:] * gain).astype(np.float32))


def bleed_filter(rng: Rng, rate_hz: int, level_db: float) -> Sound:
    """An echo path: 5 to 60 ms of delay, then a decay of some 4 ms; energy `level_db` below what goes in."""
    delay = int(rng.uniform(0.005, 0.06) * rate_hz)
    tail = rng.standard_normal(12 * rate_hz // 1000) * np.exp(-np.arange(12 * rate_hz // 1000) / (0.003 * rate_hz))
    tail[0] = 3.0 * np.abs(tail).max()
    tail *= 10 ** (level_db / 20) / np.sqrt(np.sum(np.square(tail)))
    return np.concatenate((np.zeros(delay), tail)).astype(np.float32)


def filtered(sound: Sound, response: Sound) -> Sound:
    """The convolution, as long as the sound."""
    return oaconvolve(sound, response)[: len(sound)].astype(np.float32, copy=False)
