"""A sound file in, an utterance out: 48 kHz samples with their first and last audible sample; and the shipped sound.

Source: the audibility rule (`analysis.audibility`), run forwards for the start and backwards for the end. It is applied
at 48 kHz, because that is what is played. A recording with noise of its own is audible by that rule from its first
sample to its last; there the noise at its edges is the floor, and what stands 10 dB above it is the utterance.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import soundfile
from numpy.typing import NDArray

from analysis.audibility import (
    FLOOR_PERCENT,
    FRAME_MS,
    MARGIN_DB,
    MIN_THRESHOLD_DBOV,
    SPAN_MIN_MS,
    LevelTrack,
    first_audible,
    threshold_shifts_ms,
)
from analysis.audiofile import load_sound, resample
from analysis.errors import AudioFileError, UsageError
from analysis.units import dbov, from_dbov

__all__ = [
    "RATE_HZ",
    "Annotation",
    "Utterance",
    "annotate",
    "filler_clip",
    "greeting_clip",
    "load_utterance",
    "reply_clip",
    "reply_count",
    "shipped",
    "shipped_index",
    "shipped_languages",
    "shipped_names",
]

RATE_HZ = 48_000
MAX_DURATION_S = 600  # longer than any turn: a whole call was given by mistake
UNKNOWN_LANGUAGE = "und"  # BCP 47: undetermined
FRAME_STEP_MS = 5  # between the frames in which a recording's own noise is looked for
# Sound at the edge of a file that stays within 10 dB of the file's quietest frame for this long is the file's noise.
# Where silence lies outside at either edge, it may be a soft consonant or a decay: then it must last the 200 ms that
# the rule asks of a floor.
NOISE_AT_EDGE_MS = 40
NOISE_INSIDE_MS = SPAN_MIN_MS
EDGE_MS = 20


@dataclass(frozen=True, slots=True)
class Annotation:
    """Where a signal is audible: samples (inclusive), the θ of each boundary (dBov), how far the end moves (ms).

    `end_shift_ms` has the keys "-10" and "+10" (θ lower and higher, dB); later is positive; None where the end is then
    not found. `noise_floor_dbov` is the noise of the recording itself, where that decided; else None.
    """

    start_sample: int
    end_sample: int
    start_threshold_dbov: float
    end_threshold_dbov: float
    end_shift_ms: Mapping[str, float | None]
    noise_floor_dbov: float | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Utterance:
    """What is spoken in a turn.

    `samples` is float32, mono, 48 kHz, full scale 1.0 and read-only; `start_sample` and `end_sample` are its first and
    last audible sample. `text` is None where it is not known. The other fields are those of `Annotation`.
    """

    name: str
    language: str
    text: str | None
    samples: NDArray[np.float32]
    start_sample: int
    end_sample: int
    start_threshold_dbov: float
    end_threshold_dbov: float
    end_shift_ms: Mapping[str, float | None]
    warnings: tuple[str, ...] = ()

    @property
    def duration_s(self) -> float:
        """Length of the clip, silence included, in seconds."""
        return len(self.samples) / RATE_HZ

    @property
    def audible_s(self) -> float:
        """From the first to the last audible sample, in seconds."""
        return (self.end_sample - self.start_sample) / RATE_HZ


def load_utterance(path: str | os.PathLike[str], language: str | None = None) -> Utterance:
    """The user's own sound file, of any rate, width or header, as an utterance.

    Parameters
    ----------
    path : path-like
    language : str, optional
        BCP 47; "und" where it is not given.

    Raises
    ------
    AudioFileError
        If the file cannot be used (see `analysis.audiofile.load_sound`), holds nothing but noise, or lasts more than
        ten minutes.
    """
    sound = load_sound(path)
    if sound.duration_s > MAX_DURATION_S:
        raise AudioFileError(
            f"{path}: lasts {sound.duration_s:.0f} s, an utterance may last {MAX_DURATION_S} s",
            next_step="cut out one utterance",
        )
    samples, warnings = resample(sound.samples, sound.rate_hz, RATE_HZ), sound.warnings
    offset = float(np.mean(samples))
    if abs(offset) >= from_dbov(MIN_THRESHOLD_DBOV):
        # nobody hears it, but the rule would
        samples = (samples - offset).astype(np.float32)
        warnings = (*warnings, f"a DC offset of {offset:.3f} of full scale was taken out")
    found = annotate(samples)
    if found is None:
        raise AudioFileError(
            f"{path}: holds nothing but noise: nothing stands 10 dB above its own floor",
            next_step="give a recording of speech",
        )
    if found.noise_floor_dbov is not None:
        noise = f"noise of its own ({found.noise_floor_dbov:.1f} dBov): the words are what stands 10 dB above it"
        warnings = (*warnings, noise)
    return _utterance(Path(path).name, language or UNKNOWN_LANGUAGE, None, samples, found, warnings)


def annotate(samples: NDArray[np.floating]) -> Annotation | None:
    """Where a signal at 48 kHz is audible; None where it is nowhere, or where it is all noise.

    Parameters
    ----------
    samples : ndarray, shape (n,), float
        Mono, 48 kHz, full scale 1.0.
    """
    ahead, back = LevelTrack(samples, RATE_HZ), LevelTrack(samples[::-1], RATE_HZ)
    start, end = first_audible(ahead), first_audible(back)
    if start is None or end is None:
        return None
    frames = _frames(samples)
    if frames.max() < frames.min() * 10 ** (MARGIN_DB / 10):
        return None  # one level throughout, wherever the rule may have found its 24 of 30
    quietest = _quietest_dbov(samples[start.sample : len(samples) - end.sample])
    limit = quietest + MARGIN_DB
    noise_floor: float | None = None
    if limit > MIN_THRESHOLD_DBOV:
        if first_audible(ahead, threshold_dbov=limit) is None and max(start.sample, end.sample) < _at(EDGE_MS):
            return None
        needed_ms = NOISE_AT_EDGE_MS if max(start.sample, end.sample) < _at(EDGE_MS) else NOISE_INSIDE_MS
        floors = [_noise_dbov(track, edge.sample, limit, needed_ms) for track, edge in ((ahead, start), (back, end))]
        known = [floor for floor in floors if floor is not None]
        noise_floor = max(known) if known else None
    if noise_floor is not None and noise_floor + MARGIN_DB > MIN_THRESHOLD_DBOV:
        theta = noise_floor + MARGIN_DB
        start, end = first_audible(ahead, threshold_dbov=theta), first_audible(back, threshold_dbov=theta)
        if start is None or end is None:
            return None
    else:
        noise_floor = None
    last = len(samples) - 1 - end.sample
    if last <= start.sample:
        return None
    shifts = {
        # 0.0 − x, so that no shift is not written as −0.0
        step: None if shift is None else 0.0 - shift
        for step, shift in threshold_shifts_ms(back, end).items()
    }
    return Annotation(start.sample, last, start.threshold_dbov, end.threshold_dbov, shifts, noise_floor)


def _at(ms: int) -> int:
    return ms * RATE_HZ // 1000


def _frames(x: NDArray[np.floating]) -> NDArray[np.float64]:
    """Mean square of the 20 ms frames of `x`, one every 5 ms."""
    size = min(_at(FRAME_MS), len(x))
    energy = np.concatenate(([0.0], np.cumsum(np.square(x, dtype=np.float64))))
    at = np.arange(0, len(x) - size + 1, _at(FRAME_STEP_MS))
    return np.asarray(np.maximum(energy[at + size] - energy[at], 0.0) / size)


def _quietest_dbov(x: NDArray[np.floating]) -> float:
    return dbov(float(_frames(x).min()) ** 0.5)


def _noise_dbov(signal: LevelTrack, audible_from: int, limit_dbov: float, needed_ms: int) -> float | None:
    """The recording's own noise between where it gets audible and where it rises above the limit; None if too short."""
    above = first_audible(signal, threshold_dbov=limit_dbov)
    if above is None or above.sample - audible_from < _at(needed_ms):
        return None
    # what rises above the limit has begun up to one window earlier
    frames = np.sort(_frames(signal.x[audible_from : above.sample - _at(FRAME_STEP_MS)]))
    rank = max(-(-len(frames) * FLOOR_PERCENT // 100) - 1, 0)
    return dbov(float(frames[rank]) ** 0.5)


def _utterance(
    name: str,
    language: str,
    text: str | None,
    samples: NDArray[np.float32],
    found: Annotation,
    warnings: tuple[str, ...] = (),
) -> Utterance:
    samples.setflags(write=False)
    return Utterance(
        name,
        language,
        text,
        samples,
        found.start_sample,
        found.end_sample,
        found.start_threshold_dbov,
        found.end_threshold_dbov,
        found.end_shift_ms,
        warnings,
    )


@cache
def shipped_index() -> Mapping[str, Any]:
    """The checked-in index of all shipped sound: `clips` by name (`utterances/en/1`), and how it was made."""
    index: dict[str, Any] = json.loads(
        resources.files("probe").joinpath("data", "index.json").read_text(encoding="utf-8")
    )
    return index


def shipped_names() -> tuple[str, ...]:
    """Names of the shipped utterances, such as "en/1", sorted."""
    prefix = "utterances/"
    return tuple(sorted(name.removeprefix(prefix) for name in shipped_index()["clips"] if name.startswith(prefix)))


def shipped_languages() -> tuple[str, ...]:
    """Languages (BCP 47) of the shipped sound, sorted; each has utterances, replies, a filler and a greeting."""
    return tuple(sorted({clip["language"] for clip in shipped_index()["clips"].values()}))


def shipped(name: str) -> Utterance:
    """A shipped caller's utterance by its name.

    Raises
    ------
    UsageError
        If there is none of that name.

    Examples
    --------
    >>> shipped("en/1").language
    'en'
    """
    return _clip(f"utterances/{name}", name)


def reply_clip(language: str, n: int) -> Utterance:
    """The demo agent's reply `n` (from 1 to `reply_count`). Raises UsageError if there is none."""
    return _clip(f"replies/{language}/{n}", f"replies/{language}/{n}")


def reply_count(language: str) -> int:
    """How many replies of the demo agent are shipped in a language (0 where it is not shipped)."""
    return sum(name.startswith(f"replies/{language}/") for name in shipped_index()["clips"])


def filler_clip(language: str) -> Utterance:
    """The demo agent's filler ("hm"), under 350 ms. Raises UsageError if the language is not shipped."""
    return _clip(f"fillers/{language}", f"fillers/{language}")


def greeting_clip(language: str) -> Utterance:
    """The demo agent's greeting. Raises UsageError if the language is not shipped."""
    return _clip(f"greetings/{language}", f"greetings/{language}")


@cache
def _clip(key: str, name: str) -> Utterance:
    entry = shipped_index()["clips"].get(key)
    if entry is None:
        raise UsageError(
            f"no sound named {name} is shipped", next_step=f"languages are {', '.join(shipped_languages())}"
        )
    file = resources.files("probe").joinpath("data", *f"{key}.flac".split("/"))
    with file.open("rb") as stream:
        samples, _ = soundfile.read(stream, dtype="float32")
    found = Annotation(
        entry["start_sample"],
        entry["end_sample"],
        entry["start_threshold_dbov"],
        entry["end_threshold_dbov"],
        entry["end_shift_ms"],
    )
    return _utterance(name, entry["language"], entry["text"], samples, found)
