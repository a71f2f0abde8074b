"""Known utterances and a caller's channel in, which of them was said where, and how much of it, out.

A coarse search compares band levels (100 a second, as a normalised correlation that no gain and no fixed filter
changes) in chunks of a second, so that time-stretching by some percent does no harm; what it proposes is then followed
in the waveform (`analysis.lags`), and only that decides: another person with the same words does not pass.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy import fft as sfft

from analysis.audibility import MARGIN_DB, LevelTrack, Samples, first_audible, last_audible
from analysis.audiofile import load_sound, resample
from analysis.errors import AudioFileError
from analysis.lags import BLOCK_S, STEADY_COVERAGE, LagTrack, Pattern, track_widening
from analysis.units import from_dbov

__all__ = ["SEARCH_RATE_HZ", "Occurrence", "Reference", "find_references", "load_reference", "make_reference"]

SEARCH_RATE_HZ = 8000
UNKNOWN_LANGUAGE = "und"  # BCP 47: undetermined
FRAME, HOP = 256, 80  # 32 ms and 10 ms at 8 kHz
BANDS = 14
BAND_HZ = (150.0, 3400.0)
FEATURE_RANGE_DB = 35.0  # levels this far under the loud ones count as equal
CHUNK_FRAMES = 100  # 1 s
LEAST_FRAMES = 25
HEAD_FRAMES, HEAD_CANDIDATE = 50, 0.75  # the beginning on its own: an utterance may be cut off early
CHUNK_SIZE = 1024  # frames of a block that is correlated at once
PLACES = CHUNK_SIZE - 128
CANDIDATE = 0.55  # normalised correlation of a chunk that is worth a look
NEAR_FRAMES = 10  # candidates nearer than this are one
MAX_CANDIDATES = 12  # a chunk, each minute of sound
ACTIVE_DBOV = -68.0
ACTIVE_MARGIN_DB = 4.0
ACTIVE_FRAME_S = 0.02
STEADY_DB = 4.0  # a tenth of a clip's frames lie this near to its quietest: noise of its own, not a soft sound
FLOOR_S = 30.0
PAD_S = 0.2
PAUSE_S = 1.3  # stretches nearer than this are one: an utterance may hold a pause
NEAR_S = 0.020  # how far a chunk's lag may be off
LEAST_SCORE = 40.0  # of a first look, to look on
MIN_MEAN_SCORE = 5.0
MIN_MATCHED_BLOCKS = 4
FULL_COVERAGE = 0.75
PARTIAL_BLOCKS = 2  # so many loud blocks (50 ms each) that are silent at an edge were not said
OTHER_BLOCKS = 2  # so many that hold something else at an edge are another sentence
MAX_OTHER_SHARE = 0.35  # the same within: time-stretching spoils some
# More than NetEQ does in speech, and what it may do in one pause: beyond that, sounds were put together.
MAX_STRETCH, MAX_STEPS_S = 0.08, 0.03
RANGE_COST, RANGE_CAP, RANGE_LEAST = 10.0, 60.0, 2.0  # of a block's score, for the range that was said
SHARED = 0.5


@dataclass(frozen=True, eq=False)
class Reference:
    """A known utterance.

    `samples` is float32, mono, full scale 1.0, at its own `rate_hz`; `start_sample` and `end_sample` are its first and
    last audible sample (inclusive). It is resampled once for each rate that is asked for.
    """

    name: str
    samples: NDArray[np.float32] = field(repr=False)
    rate_hz: int
    start_sample: int
    end_sample: int
    language: str = UNKNOWN_LANGUAGE
    warnings: tuple[str, ...] = ()
    _at: dict[int, NDArray[np.float32]] = field(default_factory=dict, repr=False)
    _patterns: dict[int, Pattern] = field(default_factory=dict, repr=False)

    @property
    def audible_s(self) -> float:
        """From the first to the last audible sample, in seconds."""
        return (self.end_sample - self.start_sample) / self.rate_hz

    def at_rate(self, rate_hz: int) -> NDArray[np.float32]:
        """Its samples at another rate; sample 0 stays at time 0."""
        if rate_hz not in self._at:
            self._at[rate_hz] = resample(self.samples, self.rate_hz, rate_hz)
        return self._at[rate_hz]

    def place(self, sample: int, rate_hz: int) -> int:
        """One of its own samples as the nearest one at another rate."""
        return (2 * sample * rate_hz + self.rate_hz) // (2 * self.rate_hz)

    def pattern(self, rate_hz: int) -> Pattern:
        """It as what `track_lags` needs, made once for each rate."""
        if rate_hz not in self._patterns:
            samples = self.at_rate(rate_hz)
            last = min(len(samples) - 1, self.place(self.end_sample, rate_hz))
            first = min(last, self.place(self.start_sample, rate_hz))
            self._patterns[rate_hz] = Pattern(samples, rate_hz, first=first, last=last)
        return self._patterns[rate_hz]


@dataclass(frozen=True, slots=True, eq=False)
class Occurrence:
    """A reference that was recognised in a channel.

    `lag_s`: where the reference's sample 0 lies in the channel (seconds, by its best-matched part); `start_s`, `end_s`:
    where its first and last recognised 50 ms lie. `cut_start`, `cut_end`: seconds of it that are missing at that edge,
    0 where it is whole. `alternatives` are references that explain it as well. `track` is what the waveform said, at
    `SEARCH_RATE_HZ` from `origin_s` on.
    """

    reference: Reference
    lag_s: float
    start_s: float
    end_s: float
    cut_start_s: float
    cut_end_s: float
    score: float
    coverage: float
    track: LagTrack
    origin_s: float
    alternatives: tuple[str, ...] = ()

    @property
    def partial(self) -> bool:
        """Not all of it is there."""
        return self.cut_start_s > 0 or self.cut_end_s > 0


def load_reference(path: str | os.PathLike[str], *, name: str | None = None, language: str | None = None) -> Reference:
    """A sound file of a known utterance; named after the file where no name is given.

    Raises
    ------
    AudioFileError
        If the file cannot be used (see `analysis.audiofile.load_sound`).
    """
    sound = load_sound(path)
    try:
        made = make_reference(name or Path(path).name, sound.samples, sound.rate_hz, language=language)
    except ValueError as exc:
        raise AudioFileError(f"{path}: {exc}", next_step="give a recording of one utterance") from exc
    return Reference(
        made.name, made.samples, made.rate_hz, made.start_sample, made.end_sample, made.language, sound.warnings
    )


def make_reference(
    name: str,
    samples: NDArray[np.floating],
    rate_hz: int,
    *,
    language: str | None = None,
    start_sample: int | None = None,
    end_sample: int | None = None,
) -> Reference:
    """Samples as a reference; its audible edges by the one rule, where they are not given.

    A recording with noise of its own is audible throughout: there what stands 10 dB above that noise counts. A clip cut
    close to its speech is audible throughout too, and its edges are what was cut.

    Raises
    ------
    ValueError
        If nothing in it is audible.
    """
    own = np.ascontiguousarray(samples, dtype=np.float32)
    if start_sample is None or end_sample is None:
        first, last = first_audible(LevelTrack(own, rate_hz)), last_audible(own, rate_hz)
        edge = rate_hz // 50
        if first is not None and last is not None and first.sample < edge and last.sample >= len(own) - edge:
            noise_dbov = _steady_noise_dbov(own, rate_hz)
            theta = -np.inf if noise_dbov is None else noise_dbov + MARGIN_DB
            if theta > first.threshold_dbov:
                first = first_audible(LevelTrack(own, rate_hz), threshold_dbov=theta)
                last = last_audible(own, rate_hz, threshold_dbov=theta)
        if first is None or last is None or last.sample <= first.sample:
            raise ValueError("nothing in it stands out from its own noise")
        start_sample = first.sample if start_sample is None else start_sample
        end_sample = last.sample if end_sample is None else end_sample
    return Reference(name, own, rate_hz, start_sample, end_sample, language or UNKNOWN_LANGUAGE)


def _steady_noise_dbov(x: NDArray[np.float32], rate_hz: int) -> float | None:
    """The level of a clip's own noise; None where its quietest frames are as different as those of speech."""
    levels = _frame_levels(x, rate_hz, ACTIVE_FRAME_S)
    if not len(levels):
        return None
    tenth = float(np.percentile(levels, 10, method="inverted_cdf"))
    return tenth if tenth - float(levels.min()) <= STEADY_DB else None


def find_references(
    channel: Samples,
    rate_hz: int,
    references: Sequence[Reference],
    *,
    active: Sequence[tuple[int, int]] | None = None,
) -> list[Occurrence]:
    """All occurrences of the references in a channel, in order of time.

    Parameters
    ----------
    channel : ndarray, shape (n,), float
        The caller's channel, full scale 1.0; a memory-mapped one is read in stretches.
    rate_hz : int
    references : sequence of Reference
    active : sequence of (start, stop), optional
        Stretches (samples) that are looked at. Default: all that stands out of the channel's own floor.

    Notes
    -----
    Occurrences do not overlap by more than half of the shorter one: what explains more wins, and where two explain the
    same to within 2 %, the other is named in `alternatives`.
    """
    if not references:
        return []
    stretches = _stretches(channel, rate_hz, active)
    if not stretches:
        return []
    search = _Search(channel, rate_hz, stretches)
    found: list[Occurrence] = []
    tried: dict[tuple[int, int], list[float]] = {}
    for _, number, stretch, lag in search.candidates(references):
        reference = references[number]
        before = tried.setdefault((number, stretch), [])
        if any(abs(lag - other) < 2 * NEAR_S * SEARCH_RATE_HZ for other in before):
            continue
        before.append(lag)
        offset = search.origins_s[stretch]
        middle = offset + (lag + reference.pattern(SEARCH_RATE_HZ).first) / SEARCH_RATE_HZ + reference.audible_s / 2
        if any(not o.partial and o.coverage > 0.9 and o.start_s < middle < o.end_s for o in found):
            continue
        occurrence = _verified(reference, search.sounds[stretch], lag, offset)
        if occurrence is not None:
            found.append(occurrence)
    return _without_overlaps(found)


class _Search:
    """A channel's active stretches at 8 kHz, with their band levels."""

    def __init__(self, channel: Samples, rate_hz: int, stretches: list[tuple[int, int]]) -> None:
        self.sounds, self.origins_s, features = [], [], []
        self.first_frame: list[int] = []
        at = 0
        for start, stop in stretches:
            sound = resample(np.asarray(channel[start:stop]), rate_hz, SEARCH_RATE_HZ)
            levels = _features(sound)
            self.sounds.append(sound)
            self.origins_s.append(start / rate_hz)
            self.first_frame.append(at)
            features.append(levels)
            # a gap, so that no chunk lies across two stretches unseen
            features.append(np.full((BANDS, CHUNK_FRAMES), levels.min(), np.float32))
            at += levels.shape[1] + CHUNK_FRAMES
        self.features = np.concatenate(features, axis=1)
        self.frames = self.features.shape[1]
        # overlapping blocks, each of which holds PLACES places for a chunk of up to 1.2 s
        blocks = -(-self.frames // PLACES)
        padded = np.pad(self.features, ((0, 0), (0, blocks * PLACES + CHUNK_SIZE - self.frames)))
        windows = np.lib.stride_tricks.sliding_window_view(padded, CHUNK_SIZE, axis=1)[:, : blocks * PLACES : PLACES]
        self.spectra = sfft.rfft(windows, axis=2)
        self._spread: dict[int, NDArray[np.float32]] = {}

    def spread(self, count: int) -> NDArray[np.float32]:
        """For each frame, the norm of the `count` frames from it on about their own band means."""
        if count not in self._spread:
            own = self.features.astype(np.float64)
            total = np.concatenate([np.zeros((BANDS, 1)), np.cumsum(own, axis=1)], axis=1)
            square = np.concatenate(([0.0], np.cumsum((own**2).sum(axis=0))))
            end = np.minimum(np.arange(self.frames) + count, self.frames)
            begin = np.arange(self.frames)
            sums = total[:, end] - total[:, begin]
            variance = square[end] - square[begin] - (sums**2).sum(axis=0) / count
            self._spread[count] = np.sqrt(np.maximum(variance, 1e-6)).astype(np.float32)
        return self._spread[count]

    def candidates(self, references: Sequence[Reference]) -> list[tuple[float, int, int, float]]:
        """(correlation, reference, stretch, lag in samples of 8 kHz), best first."""
        found = []
        limit = 1 + round(MAX_CANDIDATES * max(1.0, self.frames * HOP / SEARCH_RATE_HZ / 60))
        for number, reference in enumerate(references):
            for frame, template in _chunks(reference):
                count = template.shape[1]
                spectrum = np.conj(sfft.rfft(template, CHUNK_SIZE, axis=1))
                product = np.zeros(self.spectra.shape[1:], dtype=np.complex64)
                for band in range(BANDS):
                    product += self.spectra[band] * spectrum[band]
                values = sfft.irfft(product, CHUNK_SIZE, axis=1)[:, :PLACES].reshape(-1)[: self.frames]
                values = values / self.spread(count)
                for at in _peaks(values, limit, CANDIDATE if count > HEAD_FRAMES else HEAD_CANDIDATE):
                    stretch = int(np.searchsorted(self.first_frame, at, side="right")) - 1
                    lag = (at - self.first_frame[stretch] - frame) * HOP
                    found.append((float(values[at]), number, stretch, float(lag)))
        return sorted(found, reverse=True)


def _peaks(values: NDArray[np.floating], limit: int, least: float) -> Iterator[int]:
    above = np.flatnonzero(values >= least)
    above = above[np.argsort(values[above])[::-1]]
    taken: list[int] = []
    for at in above:
        if len(taken) >= limit:
            return
        if all(abs(int(at) - other) >= NEAR_FRAMES for other in taken):
            taken.append(int(at))
            yield int(at)


def _chunks(reference: Reference) -> Iterator[tuple[int, NDArray[np.float32]]]:
    """Band levels of a reference in chunks: first frame (from its sample 0), and the normalised template."""
    pattern = reference.pattern(SEARCH_RATE_HZ)
    levels = _features(reference.at_rate(SEARCH_RATE_HZ))
    first = max(0, pattern.first // HOP)
    last = min(levels.shape[1], max(first + LEAST_FRAMES, (pattern.last + HOP) // HOP))
    length = last - first
    count = 1 if length < 1.2 * CHUNK_FRAMES else -(-length // CHUNK_FRAMES)
    size = min(length, CHUNK_FRAMES)
    for number in range(count):
        at = first + (0 if count == 1 else round(number * (length - size) / (count - 1)))
        template = levels[:, at : at + size]
        template = template - template.mean(axis=1, keepdims=True)
        norm = float(np.sqrt((template**2).sum()))
        if norm > 0:
            yield at, template / norm
    if length > HEAD_FRAMES:
        template = levels[:, first : first + HEAD_FRAMES]
        template = template - template.mean(axis=1, keepdims=True)
        yield first, template / max(float(np.sqrt((template**2).sum())), 1e-9)


@lru_cache(maxsize=1)
def _band_matrix() -> NDArray[np.float32]:
    edges = np.geomspace(*BAND_HZ, BANDS + 1) * FRAME / SEARCH_RATE_HZ
    bins = np.arange(FRAME // 2 + 1)
    # a bin belongs to a band by the share of it that lies inside: the lowest bands are narrower than a bin
    inside = np.minimum(bins[:, None] + 0.5, edges[None, 1:]) - np.maximum(bins[:, None] - 0.5, edges[None, :-1])
    return np.asarray(np.clip(inside, 0.0, None), dtype=np.float32)


def _features(sound: NDArray[np.float32]) -> NDArray[np.float32]:
    """Level (log) by band, shape (14, frames), of frames of 32 ms each 10 ms; what is far below the loud is equal."""
    if len(sound) < FRAME:
        sound = np.pad(sound, (0, FRAME - len(sound)))
    frames = np.lib.stride_tricks.sliding_window_view(sound, FRAME)[::HOP]
    window = np.hanning(FRAME).astype(np.float32)
    levels = []
    for at in range(0, len(frames), 4096):  # blocks, so that the frames of an hour never exist at once
        spectrum = sfft.rfft(frames[at : at + 4096] * window, axis=1)
        levels.append((spectrum.real**2 + spectrum.imag**2) @ _band_matrix())
    power = np.concatenate(levels)
    loud = float(np.percentile(power, 95)) if power.size else 0.0
    return np.ascontiguousarray(np.log(power + loud * 10 ** (-FEATURE_RANGE_DB / 10) + 1e-20).T.astype(np.float32))


def _frame_levels(x: Samples, rate_hz: int, frame_s: float) -> NDArray[np.float64]:
    """dBov of consecutive frames."""
    size = round(frame_s * rate_hz)
    levels = []
    for at in range(0, len(x) - size + 1, size * 4096):
        part = np.asarray(x[at : at + size * 4096])
        part = part[: len(part) // size * size].reshape(-1, size)
        levels.append(np.einsum("ij,ij->i", part, part, dtype=np.float64) / size)
    power = np.concatenate(levels) if levels else np.zeros(0)
    return np.asarray(10 * np.log10(power + from_dbov(-120.0) ** 2))


def _stretches(channel: Samples, rate_hz: int, active: Sequence[tuple[int, int]] | None) -> list[tuple[int, int]]:
    """Where there may be speech, padded and merged."""
    if active is None:
        size = round(ACTIVE_FRAME_S * rate_hz)
        levels = _frame_levels(channel, rate_hz, ACTIVE_FRAME_S)
        block = round(FLOOR_S / ACTIVE_FRAME_S)
        floors = [
            float(np.percentile(levels[at : at + block], 10)) + ACTIVE_MARGIN_DB for at in range(0, len(levels), block)
        ]
        least = np.maximum(np.repeat(floors, block)[: len(levels)], ACTIVE_DBOV)
        loud = np.flatnonzero(levels >= least)
        active = [(int(at) * size, (int(at) + 1) * size) for at in loud]
    pad = round(PAD_S * rate_hz)
    merged: list[tuple[int, int]] = []
    for start, stop in active:
        low, high = max(0, start - pad), min(len(channel), stop + pad)
        if merged and low <= merged[-1][1] + (PAUSE_S - 2 * PAD_S) * rate_hz:
            merged[-1] = merged[-1][0], max(high, merged[-1][1])
        elif high > low:
            merged.append((low, high))
    return merged


def _verified(reference: Reference, sound: NDArray[np.float32], lag: float, offset_s: float) -> Occurrence | None:
    """What a candidate is worth once the waveform is followed; None where it is not the reference."""
    pattern = reference.pattern(SEARCH_RATE_HZ)
    track = track_widening(pattern, sound, lag=lag, reach=round(NEAR_S * SEARCH_RATE_HZ), least=LEAST_SCORE)
    members = np.flatnonzero(track.matched & track.strong)
    if not track.credible or len(members) < min(MIN_MATCHED_BLOCKS, int(track.strong.sum())):
        return None
    first, last = _best_range(track)
    inside = slice(first, last + 1)
    mean = float(track.block_scores[inside][track.strong[inside]].sum()) / max(1, int(track.strong[inside].sum()))
    if mean < MIN_MEAN_SCORE and not track.steady:
        return None
    lags = track.block_lags[inside][track.matched[inside]] / SEARCH_RATE_HZ
    if np.abs(np.diff(lags)).sum() > MAX_STEPS_S + MAX_STRETCH * (last + 1 - first) * BLOCK_S:
        return None
    # a sentence that goes on otherwise, or began otherwise, or differs in between, is another one
    edges = int(track.other[:first].sum()), int(track.other[last + 1 :].sum())
    if max(edges) >= OTHER_BLOCKS or track.other[inside].sum() > MAX_OTHER_SHARE * track.detectable[inside].sum():
        return None
    return _occurrence(reference, track, first, last, offset_s)


def _best_range(track: LagTrack) -> tuple[int, int]:
    """First and last block of the range that speaks most for the reference: a lone match by chance is outside it."""
    if track.steady and track.coverage >= STEADY_COVERAGE:
        whole = np.flatnonzero(track.matched)
        return int(whole[0]), int(whole[-1])
    value = np.minimum(track.block_scores, RANGE_CAP) - RANGE_COST
    value = np.where(track.strong, np.where(track.matched, np.maximum(value, RANGE_LEAST), value), 0.0)
    total = np.concatenate(([0.0], np.cumsum(value)))
    lowest = np.minimum.accumulate(total)
    stop = int(np.argmax(total[1:] - lowest[:-1])) + 1
    first = int(np.argmin(total[:stop]))
    members = first + np.flatnonzero(track.matched[first:stop])
    return (int(members[0]), int(members[-1])) if len(members) else (first, stop - 1)


def _occurrence(reference: Reference, track: LagTrack, first: int, last: int, offset_s: float) -> Occurrence:
    rate = track.rate_hz
    begin = int(track.block_starts[first])
    end = int(track.block_starts[last]) + track.block
    best = first + int(np.argmax(track.block_scores[first : last + 1]))
    edge = int(track.block_starts[0]), int(track.block_starts[-1]) + track.block
    return Occurrence(
        reference,
        offset_s + int(track.block_lags[best]) / rate,
        offset_s + (begin + int(track.block_lags[first])) / rate,
        offset_s + (end + int(track.block_lags[last])) / rate,
        (begin - edge[0]) / rate if track.silent[:first].sum() >= PARTIAL_BLOCKS else 0.0,
        (edge[1] - end) / rate if track.silent[last + 1 :].sum() >= PARTIAL_BLOCKS else 0.0,
        float(track.score),
        track.coverage,
        track,
        offset_s,
    )


def _without_overlaps(found: list[Occurrence]) -> list[Occurrence]:
    """The best explanation of each stretch; equal ones are named beside it."""
    kept: list[Occurrence] = []
    # of two that explain the same, the one that is wholly there: a cut-off long one is a whole short one's beginning
    for occurrence in sorted(found, key=lambda o: o.score * (0.97 if o.partial else 1.0), reverse=True):
        rivals = [i for i, other in enumerate(kept) if _shared(occurrence, other) > SHARED]
        if not rivals:
            kept.append(occurrence)
            continue
        for i in rivals:
            other = kept[i]
            if occurrence.reference is not other.reference and occurrence.score >= 0.98 * other.score and other.partial:
                kept[i] = replace(other, alternatives=(*other.alternatives, occurrence.reference.name))
    return sorted(kept, key=lambda o: o.start_s)


def _shared(a: Occurrence, b: Occurrence) -> float:
    overlap = min(a.end_s, b.end_s) - max(a.start_s, b.start_s)
    return overlap / max(1e-9, min(a.end_s - a.start_s, b.end_s - b.start_s))
