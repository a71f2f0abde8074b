"""The sounds of generated calls: shipped clips with other edges, pauses and levels, and what is no speech.

Every sound is float32, mono, full scale 1.0. Levels are those of active speech: of the 20 ms frames within 20 dB of the
loudest.
"""

from __future__ import annotations

from functools import cache, lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy.signal import butter, lfilter, sosfilt

from analysis.audiofile import resample
from analysis.units import from_dbov
from probe.utterances import RATE_HZ, filler_clip, greeting_clip, reply_clip, shipped

__all__ = [
    "active_level",
    "agent_sound",
    "breath",
    "click",
    "earcon",
    "hard_cut",
    "levelled",
    "music",
    "noise",
    "pop",
    "resampled",
    "soft_edges",
    "utterance_sound",
    "with_pause",
]

FRAME_MS = 20
ACTIVE_DB = 20.0
FILLER_MS = 330
LEAD_MS, TAIL_MS = 5, 70  # silence around an edited utterance, as around the shipped ones
FADE_MS = 3  # at the edges of a pause that was cut in
CUT_DB = 10.0  # a hard cut lies where the speech is within this of its active level

Sound = NDArray[np.float32]
Rng = np.random.Generator


def active_level(sound: Sound, rate_hz: int) -> float:
    """RMS (full scale 1.0) of the frames within 20 dB of the loudest."""
    size = FRAME_MS * rate_hz // 1000
    power = np.square(sound[: len(sound) // size * size].astype(np.float64)).reshape(-1, size).mean(axis=1)
    return float(np.sqrt(power[power >= power.max() * 10 ** (-ACTIVE_DB / 10)].mean()))


def levelled(sound: Sound, rate_hz: int, level_dbov: float) -> Sound:
    """The sound with its active frames at a level; what exceeds full scale is limited."""
    gain = np.float32(from_dbov(level_dbov) / active_level(sound, rate_hz))
    return np.asarray(np.clip(sound * gain, -1.0, 1.0), dtype=np.float32)


@lru_cache(maxsize=512)
def utterance_sound(name: str) -> Sound:
    """A shipped utterance at 48 kHz, with its silence before and after."""
    return shipped(name).samples


@lru_cache(maxsize=512)
def agent_sound(kind: str, name: str, rate_hz: int) -> Sound:
    """What is audible of a clip of the agent's: `reply` ("en/1"), `filler` or `greeting` ("en")."""
    if kind == "reply":
        language, _, number = name.partition("/")
        clip = reply_clip(language, int(number))
    else:
        clip = {"filler": filler_clip, "greeting": greeting_clip}[kind](name)
    sound = resample(clip.samples[clip.start_sample : clip.end_sample + 1], RATE_HZ, rate_hz)
    if kind == "filler":
        sound = sound[: FILLER_MS * rate_hz // 1000]
    sound = np.ascontiguousarray(sound, dtype=np.float32)
    sound.setflags(write=False)
    return sound


@cache
def _resampled(name: str, rate_hz: int) -> Sound:
    return resample(utterance_sound(name), RATE_HZ, rate_hz)


def resampled(sound: Sound, name: str | None, rate_hz: int) -> Sound:
    """48 kHz to another rate; remembered where it is the shipped clip of this name."""
    return _resampled(name, rate_hz) if name is not None else resample(sound, RATE_HZ, rate_hz)


def soft_edges(sound: Sound, rate_hz: int, onset_ms: float, end_ms: float) -> Sound:
    """Raised-cosine fades over what is not digital silence."""
    inside = np.flatnonzero(np.abs(sound) > 1e-5)
    out = sound.copy()
    rise, fall = (max(1, int(ms * rate_hz / 1000)) for ms in (onset_ms, end_ms))
    first, last = int(inside[0]), int(inside[-1]) + 1
    out[first : first + rise] *= 0.5 - 0.5 * np.cos(np.pi * np.arange(rise, dtype=np.float32) / rise)
    out[last - fall : last] *= 0.5 + 0.5 * np.cos(np.pi * np.arange(fall, dtype=np.float32) / fall)
    return out


def hard_cut(sound: Sound, rate_hz: int) -> Sound:
    """From the first to the last sample that is loud, silence before and after: edges without a ramp."""
    loud = np.flatnonzero(np.abs(sound) >= active_level(sound, rate_hz) * 10 ** (-CUT_DB / 20))
    lead, tail = (np.zeros(ms * rate_hz // 1000, dtype=np.float32) for ms in (LEAD_MS, TAIL_MS))
    return np.concatenate((lead, sound[loud[0] : loud[-1] + 1], tail))


def with_pause(sound: Sound, rate_hz: int, pause_s: float) -> Sound:
    """The sound with silence put in at its quietest place between 35 % and 65 % of it."""
    size = FRAME_MS * rate_hz // 1000
    power = np.convolve(np.square(sound), np.ones(size, dtype=np.float32), mode="same")
    first, last = int(0.35 * len(sound)), int(0.65 * len(sound))
    cut = first + int(np.argmin(power[first:last]))
    fade = FADE_MS * rate_hz // 1000
    before, after = sound[:cut].copy(), sound[cut:].copy()
    ramp = np.linspace(0.0, 1.0, fade, dtype=np.float32)
    before[-fade:] *= ramp[::-1]
    after[:fade] *= ramp
    return np.concatenate((before, np.zeros(int(pause_s * rate_hz), dtype=np.float32), after))


def noise(rng: Rng, samples: int, colour: str) -> Sound:
    """Stationary noise of RMS 1.0: `white`, or `pink` (−3 dB an octave, from three poles)."""
    white = rng.standard_normal(samples, dtype=np.float32)
    if colour == "white":
        return white
    # P. Kellet's economy filter, one first-order section for each pole
    pink = np.zeros(samples, dtype=np.float32)
    for gain, pole in ((0.0990460, 0.99765), (0.2965164, 0.96300), (1.0526913, 0.57000)):
        pink += lfilter([np.float32(gain)], np.array([1.0, -pole], dtype=np.float32), white)
    pink += np.float32(0.1848) * white
    return pink / np.float32(np.sqrt(np.mean(np.square(pink, dtype=np.float64))))


def click(rng: Rng, rate_hz: int) -> Sound:
    """A click of 3 ms: too short to be audible by the rule."""
    samples = 3 * rate_hz // 1000
    return (rng.standard_normal(samples) * np.exp(-np.arange(samples) / (0.001 * rate_hz))).astype(np.float32)


def pop(rng: Rng, rate_hz: int) -> Sound:
    """A switch: a burst that rings at some 300 Hz for about 50 ms, long enough to be audible by the rule."""
    t = np.arange(60 * rate_hz // 1000) / rate_hz
    return (np.sin(2 * np.pi * rng.uniform(200, 400) * t) * np.exp(-t / 0.015)).astype(np.float32)


def breath(rng: Rng, rate_hz: int) -> Sound:
    """Breathing in: noise of 0.8 to 3 kHz that swells and fades, 150 to 350 ms."""
    samples = int(rng.uniform(0.15, 0.35) * rate_hz)
    band = butter(2, (800, 3000), "bandpass", fs=rate_hz, output="sos")
    return (sosfilt(band, rng.standard_normal(samples)) * np.hanning(samples) * 2).astype(np.float32)


def earcon(rng: Rng, rate_hz: int) -> Sound:
    """Two beeps, 100 to 180 ms each, 5 ms ramps."""
    beeps = []
    for _ in range(2):
        t = np.arange(int(rng.uniform(0.1, 0.18) * rate_hz)) / rate_hz
        ramp = np.minimum(1.0, np.minimum(t, t[-1] - t) / 0.005)
        beeps.append(np.sin(2 * np.pi * rng.uniform(600, 1800) * t) * ramp)
    return np.concatenate(beeps).astype(np.float32)


def music(rng: Rng, rate_hz: int) -> Sound:
    """Hold music: four chords of plucked, harmonic tones, 1.2 to 2.4 s."""
    chords = []
    for _ in range(4):
        t = np.arange(int(rng.uniform(0.3, 0.6) * rate_hz)) / rate_hz
        root = 220.0 * 2 ** (rng.integers(0, 12) / 12)
        tones = (root * 2 ** (step / 12) for step in (0, 4, 7))
        voices = (np.sin(2 * np.pi * f * k * t) / k**1.5 for f in tones for k in (1, 2, 3) if f * k < 0.45 * rate_hz)
        ramp = np.minimum(1.0, np.minimum(t / 0.01, (t[-1] - t) / 0.03))
        chords.append(sum(voices) * ramp * np.exp(-t / 0.6))
    return np.concatenate(chords).astype(np.float32)
