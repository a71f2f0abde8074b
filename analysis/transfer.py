"""A known utterance and a recording that holds it in, its first and last audible sample there, with bounds, out.

Source: the design's truth: the audibility rule on the noise-free signal as it lies in the recording, with the θ of the
recording. That signal is made from the reference: filtered and scaled as the recording shows, moved by the lag that
holds at its edge (`analysis.lags`). Where a codec has added or a loss has taken something that stands out of the noise,
the recording's own samples count; in a room they do not: reverberation does not lengthen an utterance.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import fft as sfft

from analysis.audibility import (
    MARGIN_DB,
    MIN_THRESHOLD_DBOV,
    Audible,
    LevelTrack,
    first_audible,
    threshold_shifts_ms,
)
from analysis.audiofile import resample
from analysis.correlation import PathResponse, response_around
from analysis.errors import NotMeasurable
from analysis.lags import BLOCK_S, STRETCH, Drift, LagTrack, track_widening
from analysis.references import Reference
from analysis.units import dbov, from_dbov, samples_to_ms

__all__ = ["Boundary", "TimeStep", "Transfer", "last_audible_blind", "transfer"]

TRACK_RATE_HZ = 16000  # the lag is followed at this rate, or at the recording's own where that is lower
REACH_S = 0.020
MIN_SCORE = 150.0
FLOOR_S = 2.0
BEFORE_S = (0.25, 1.5, math.inf)  # of the utterance, ahead of its edge, that is rebuilt
AFTER_S = 0.15
PIECE_S, DRIFTING_PIECE_S = 0.5, 0.2  # over which the path is taken as standing still
DRIFTING_PPM = 20.0
MAX_PATH_S = 2.0  # of the utterance that the path is estimated from
RESPONSE_S = 0.15  # of the path, on each side
DRY_MS, ROOM_MS = (4.0, 6.0), (1.5, 1.5)  # of the response before and after the direct sound: filters, not reflections
CORRELATION_S = 0.025
PRIOR_LOCAL, PRIOR = 1e-3, 1e-6  # weight of a plain gain against what the recording shows, by and over all frequencies
CHANCE = 3.5  # a tap this many times what stands before any sound could
GATE_DB = 6.0  # what is left over counts as the codec's where it stands this far out of the noise
SMEAR_MS = 25.0  # how long a codec may ring
LONG_SMEAR_MS = 60.0  # beyond what a codec may do, and still not another sound
ADDED_DB = 7.0
DISPUTED_MS = 16.0
CLEAR_DB = 20.0  # noise this far under θ hides nothing
NOISY_DB = 20.0
UNCERTAIN_MS, UNDECIDED_MS = 20.0, 100.0  # said, refused
LEAST_MS = 0.5  # nothing is claimed to be better detected
SOFTER_DB = 6.0  # by which it may have raised a soft end
LOSS_DB = 10.0  # the recording this far under what it should be: a loss
CLIPPED = 0.999
OTHER_DBOV = -50.0  # the other channel is audible
UNSEEN_S = 0.5  # more of the utterance than this beyond what was recognised: refused
CODEC_MS = 0.05  # spread of a codec's delay (k = 1)
SMEAR_SHARE = 0.15  # of what the codec added or took, that may be off (k = 1)
HIDDEN_SMEAR_MS = 2.0  # what a codec may have added where it is not to be seen
PITCH_MS = 5.0  # a step as NetEQ makes it
PARTIAL_MS = 30.0  # the recording ends this far before the utterance would
OTHER_BLOCKS = 2
UNSEEN_NOTE_S = 0.1  # more than this beyond what was recognised: a step may lie in it
LEVEL_DB, UNSURE_LEVEL_DB = 1.0, 2.0  # by which the level at the edge may be off; in a room or noise
K = 2.0
# Without a reference: ± ms by how far the speech stands above θ (dB)
BLIND_MS = ((35.0, 10.0), (25.0, 25.0), (15.0, 60.0), (-math.inf, 200.0))


@dataclass(frozen=True, slots=True)
class TimeStep:
    """A change of the delay by `ms` (positive: later) at `at_s` in the reference, ± `within_s`."""

    at_s: float
    ms: float
    within_s: float


@dataclass(frozen=True, slots=True)
class Boundary:
    """The first or last audible sample of an utterance in a recording.

    Attributes
    ----------
    sample : int
        In the recording, from 0.
    rate_hz : int
    uncertainty_ms : float
        Expanded (k = 2); the root of the squares of `parts_ms`.
    parts_ms : mapping
        Expanded parts: `estimator` (lag), `codec`, `step` (a change of the delay that may lie unseen), `detection`
        (where level and noise leave the rule undecided).
    threshold_dbov, floor_dbov : float
        θ of the recording, and the floor it came from.
    shift_ms : mapping
        "-10" and "+10": how far it moves with θ so much lower and higher; None where it then vanishes.
    evidence : str
        `reference`, or `level` where only the recording's own level was there to go by.
    flags : tuple of str
        `partial` (cut off here), `timescaled`, `room`, `clipped`, `gap`, `unseen_tail` or `unseen_head` (the last of it
        was not recognised), `sound_beyond` (something else follows at once), `uncertain` (more than ± 20 ms).
    """

    sample: int
    rate_hz: int
    uncertainty_ms: float
    parts_ms: Mapping[str, float]
    threshold_dbov: float
    floor_dbov: float | None
    shift_ms: Mapping[str, float | None]
    evidence: str
    flags: tuple[str, ...] = ()

    @property
    def s(self) -> float:
        """Seconds from the recording's sample 0."""
        return self.sample / self.rate_hz


@dataclass(frozen=True, slots=True)
class Transfer:
    """A reference in a recording: its edges, and how it got there.

    `lag_s`: where the reference's sample 0 would lie by the lag at its end. `start` or `end` is None where that edge is
    not to be had; `reasons` then says why. `snr_db`: the utterance over what is left over where it was recognised.
    """

    reference: str
    start: Boundary | None
    end: Boundary | None
    lag_s: float
    gain_db: float
    polarity: int
    snr_db: float
    coverage: float
    drift: Drift | None
    steps: tuple[TimeStep, ...]
    room: bool
    flags: tuple[str, ...]
    reasons: Mapping[str, str]


def transfer(
    reference: Reference,
    recording: NDArray[np.floating],
    rate_hz: int,
    *,
    at_s: float,
    reach_s: float = REACH_S,
    other: NDArray[np.floating] | None = None,
    start_threshold_dbov: float | None = None,
    end_threshold_dbov: float | None = None,
) -> Transfer:
    """Carry a reference's first and last audible sample over to a recording.

    Parameters
    ----------
    reference : Reference
    recording : ndarray, shape (n,), float
        The whole channel; only the seconds around the utterance are read.
    rate_hz : int
    at_s : float
        About where the reference's sample 0 lies in it (`Occurrence.lag_s`).
    reach_s : float
        How far that may be off.
    other : ndarray, optional
        The other party's channel, same length: where it sounds, what is left over is not taken for a codec's.
    start_threshold_dbov, end_threshold_dbov : float, optional
        θ to use instead of the recording's own.

    Raises
    ------
    NotMeasurable
        `not_found` where the reference is not there.
    """
    track, origin = _tracked(reference, recording, rate_hz, at_s, reach_s)
    path = _Path(reference, recording, rate_hz, track, origin)
    flags = _flags(path)
    edges: dict[str, Boundary | None] = {}
    reasons: dict[str, str] = {}
    for name, threshold in (("start", start_threshold_dbov), ("end", end_threshold_dbov)):
        try:
            edges[name] = _boundary(path, name == "end", other, flags, threshold)
        except NotMeasurable as exc:
            edges[name], reasons[name] = None, exc.reason
    rate = track.rate_hz
    return Transfer(
        reference.name,
        edges["start"],
        edges["end"],
        (origin + path.lag_at(path.last) + path.direct) / rate_hz,
        dbov(path.gain),
        track.polarity,
        _snr_db(track),
        track.coverage,
        track.drift,
        tuple(TimeStep(s.at / rate, samples_to_ms(s.size, rate), s.within / rate) for s in track.steps),
        path.room,
        flags,
        reasons,
    )


def _tracked(
    reference: Reference, recording: NDArray[np.floating], rate_hz: int, at_s: float, reach_s: float
) -> tuple[LagTrack, int]:
    """The lag track, counted from a sample of the recording that is a whole number of seconds, and that sample."""
    rate = min(rate_hz, TRACK_RATE_HZ)
    pattern = reference.pattern(rate)
    begin = at_s + reference.start_sample / reference.rate_hz - 1.0
    end = at_s + reference.end_sample / reference.rate_hz * (1 + STRETCH) + 1.0
    first_s = max(0, math.floor(begin))
    origin = first_s * rate_hz
    heard = resample(np.asarray(recording[origin : math.ceil(end * rate_hz)]), rate_hz, rate)
    track = track_widening(pattern, heard, lag=(at_s - first_s) * rate, reach=round(reach_s * rate))
    if not track.points or track.score < MIN_SCORE:
        raise NotMeasurable("not_found", f"{reference.name} is not to be recognised at {at_s:.2f} s")
    return track, origin


def _snr_db(track: LagTrack) -> float:
    """From the median correlation of the windows."""
    rho = sorted(point.rho for point in track.points)[len(track.points) // 2]
    return 10 * math.log10(rho**2 / (1 - rho**2))


def _flags(path: _Path) -> tuple[str, ...]:
    track, flags = path.track, []
    if track.steps:
        flags.append("timescaled")
    if path.room:
        flags.append("room")
    members = np.flatnonzero(track.matched & track.strong)
    if len(members) and track.silent[members[0] : members[-1]].any():
        flags.append("gap")
    used = path.heard(round(path.first + path.lag_at(path.first)), round(path.last + path.lag_at(path.last)))
    loud = np.abs(used) >= CLIPPED
    if np.any(loud[2:] & loud[1:-1] & loud[:-2]):
        flags.append("clipped")
    return tuple(flags)


class _Path:
    """How the reference got into the recording: its filter, its direct sound, whether there is a room.

    Lags are in samples of the recording at its own rate, counted from `origin`.
    """

    def __init__(
        self, reference: Reference, recording: NDArray[np.floating], rate_hz: int, track: LagTrack, origin: int
    ) -> None:
        self.rate_hz, self.track, self.recording, self.origin = rate_hz, track, recording, origin
        self.x = reference.at_rate(rate_hz)
        self.last = min(len(self.x) - 1, reference.place(reference.end_sample, rate_hz))
        self.first = min(self.last, reference.place(reference.start_sample, rate_hz))
        self.scale = rate_hz / track.rate_hz
        self.pad = round(RESPONSE_S * rate_hz)
        cross, power = self._spectra()
        size = 2 * (len(power) - 1)
        # a bin that carries little of the reference says nothing about the room; what it says about the filter counts
        wide = sfft.irfft(cross / (power + 1e-4 * float(power.max())), size)
        self.response: PathResponse = response_around(wide, self.pad, rate_hz)
        self.room = self.response.room
        offset = self.response.origin - len(self.response.values) // 2
        self.direct = float(offset) if self.room else 0.0
        self._keep_filter(cross, power)

    def lag_at(self, sample: float) -> float:
        """The lag of the tracked path at a reference sample."""
        lag = self.track.lag_at(sample / self.scale)
        if lag is None:
            raise NotMeasurable("not_found", "the reference was not recognised")
        return lag * self.scale

    def heard(self, begin: int, end: int) -> NDArray[np.float64]:
        """recording[origin + begin : origin + end], with silence where there is none."""
        out = np.zeros(max(0, end - begin))
        low, high = max(0, self.origin + begin), min(len(self.recording), self.origin + end)
        if high > low:
            out[low - self.origin - begin : high - self.origin - begin] = self.recording[low:high]
        return out

    def _spectra(self) -> tuple[NDArray[np.complex128], NDArray[np.float64]]:
        """Cross and power spectrum over pieces of the reference, each aligned by its own lag."""
        pieces = _pieces(self.track)
        longest = max(round((stop - start) * self.scale) for start, stop in pieces)
        size = 2 * sfft.next_fast_len((longest + 3 * self.pad + 1) // 2, real=True)
        omega = 2 * np.pi * np.arange(size // 2 + 1) / size
        cross, power = np.zeros(len(omega), dtype=np.complex128), np.zeros(len(omega))
        for start, stop in pieces:
            begin, end = max(0, round(start * self.scale)), round(stop * self.scale)
            lag = self.lag_at((begin + end) / 2)
            whole = math.floor(lag)
            x = sfft.rfft(self.x[begin:end].astype(np.float64), size)
            # `pad` samples stand before the piece: what answers at once lies at `pad`
            y = sfft.rfft(self.heard(begin + whole - self.pad, end + whole + self.pad), size)
            cross += np.conj(x) * y * np.exp(1j * omega * (lag - whole))
            power += np.abs(x) ** 2
        return cross, power

    def _keep_filter(self, cross: NDArray[np.complex128], power: NDArray[np.float64]) -> None:
        """The filter about the direct sound, from correlations cut to ±25 ms; a plain gain where nothing says more."""
        size = 2 * (len(power) - 1)
        half = round(CORRELATION_S * self.rate_hz)
        window = np.hanning(2 * half + 1)
        index = np.arange(-half, half + 1)
        both = sfft.irfft(cross, size)[(index + self.pad + round(self.direct)) % size] * window
        own = sfft.irfft(power, size)[index % size] * window
        short = sfft.next_fast_len(2 * half + 1, real=True)
        turn = np.exp(2j * np.pi * np.arange(short // 2 + 1) * half / short)
        of_both, of_own = sfft.rfft(both, short) * turn, np.maximum((sfft.rfft(own, short) * turn).real, 0.0)
        plain = float(both[half] / own[half])
        prior = PRIOR_LOCAL * of_own + PRIOR * float(of_own.max())
        taps = np.roll(sfft.irfft((of_both + prior * plain) / (of_own + prior), short), half)
        spread = float(
            np.sqrt(np.mean(taps[half - round(0.020 * self.rate_hz) : half - round(0.010 * self.rate_hz)] ** 2))
        )
        before, after = ROOM_MS if self.room else DRY_MS
        low, high = round(before * self.rate_hz / 1000), round(after * self.rate_hz / 1000)
        kept = taps[half - low : half + high + 1]
        # what is no stronger than chance only smears a sharp edge
        self.filter = np.where(np.abs(kept) >= CHANCE * spread, kept, 0.0)
        if not self.filter.any():
            self.filter[low] = plain
        self.filter_delay = round(self.direct) - low
        used = self.x[self.first : self.last + 1].astype(np.float64)
        length = sfft.next_fast_len(len(used) + len(self.filter), real=True)
        passed = sfft.irfft(sfft.rfft(used, length) * sfft.rfft(self.filter, length), length)
        self.gain = math.sqrt(float(np.square(passed).sum()) / max(float(np.square(used).sum()), 1e-30))

    def model(self, begin: int, end: int, *, at: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """The noise-free utterance at [origin + begin, origin + end), by the lag that holds at reference `at`.

        The second is the reference with its level alone: what the filter does to a sharp edge is where they differ.
        """
        shift = self.lag_at(at) + self.filter_delay
        whole = math.floor(shift)
        margin = len(self.filter) + round(0.004 * self.rate_hz)
        low, high = begin - whole - margin, end - whole + margin
        x = np.zeros(high - low)
        inside = max(low, self.first), min(high, self.last + 1)
        if inside[1] > inside[0]:
            x[inside[0] - low : inside[1] - low] = self.x[inside[0] : inside[1]]
        size = sfft.next_fast_len(len(x) + len(self.filter), real=True)
        spectrum = sfft.rfft(x, size)
        spectrum *= np.exp(-2j * np.pi * np.arange(len(spectrum)) / size * (shift - whole))
        here = slice(margin, margin + end - begin)
        plain = np.roll(sfft.irfft(spectrum * self.gain, size), round(self.direct) - self.filter_delay)[here]
        return np.asarray(sfft.irfft(spectrum * sfft.rfft(self.filter, size), size)[here]), np.asarray(plain)


def _pieces(track: LagTrack) -> list[tuple[float, float]]:
    """Stretches of the reference (samples of the track) over which the path stands still and was recognised."""
    drifting = abs(track.slope()) * 1e6 > DRIFTING_PPM
    longest = max(1, round((DRIFTING_PIECE_S if drifting else PIECE_S) / BLOCK_S))
    near_step = np.zeros(len(track.matched), dtype=bool)
    for step in track.steps:
        middle = track.block_starts + track.block / 2
        near_step |= np.abs(middle - step.at) <= step.within + track.block / 2
    members = np.flatnonzero(track.matched & ~near_step)
    if not len(members):
        members = np.flatnonzero(track.matched)
    pieces = []
    for run in np.split(members, np.flatnonzero(np.diff(members) > 1) + 1):
        for at in range(0, len(run), longest):
            part = run[at : at + longest]
            pieces.append((float(track.block_starts[part[0]]), float(track.block_starts[part[-1]] + track.block)))
    half = round(MAX_PATH_S / 2 / (longest * BLOCK_S))
    # what lies at the edges decides about them
    return pieces if len(pieces) <= 2 * half else pieces[:half] + pieces[-half:]


def _boundary(
    path: _Path, is_end: bool, other: NDArray[np.floating] | None, flags: tuple[str, ...], threshold_dbov: float | None
) -> Boundary:
    """One edge, looked for in a short stretch first; in a longer one where it does not lie well inside."""
    whole_s = (path.last - path.first) / path.rate_hz + AFTER_S
    for before_s in BEFORE_S:
        edge = _Edge(path, is_end, min(before_s, whole_s), other, threshold_dbov)
        if edge.by_model is not None and edge.found is not None and edge.found > edge.nominal // 2:
            break
        if before_s >= whole_s:
            break
    return edge.boundary(flags)


class _Edge:
    """One edge of an utterance. All arrays run towards it and past it, so the start's are turned round.

    `by_model` is the last audible sample of what the reference alone makes of it, `found` that of what is believed to
    lie in the recording (`rebuilt`); None where there is none.
    """

    def __init__(
        self,
        path: _Path,
        is_end: bool,
        before_s: float,
        other: NDArray[np.floating] | None,
        threshold_dbov: float | None,
    ) -> None:
        self.path, self.is_end, self.rate_hz = path, is_end, path.rate_hz
        self.at = path.last if is_end else path.first
        nominal = round(self.at + path.lag_at(self.at) + path.direct)
        before, after = round(before_s * path.rate_hz), round(AFTER_S * path.rate_hz)
        self.begin, self.stop = (nominal - before, nominal + after) if is_end else (nominal - after, nominal + before)
        if not is_end:
            # windows on the grid of the whole recording, as one who looks for the onset alone would have them
            grid = path.rate_hz // 100 if path.rate_hz % 100 == 0 else path.rate_hz
            self.begin -= self.begin % grid
        self.nominal = before
        model, plain = path.model(self.begin, self.stop, at=self.at)
        self.model, self.plain = self._turned(model), self._turned(plain)
        self.heard = self._turned(path.heard(self.begin, self.stop))
        self.floor_dbov = self._floor_dbov(nominal)
        reach = path.rate_hz // 25
        near = slice(max(0, path.origin + nominal - reach), max(0, path.origin + nominal + reach))
        sounds = other is not None and _rms_dbov(np.asarray(other[near])) >= OTHER_DBOV
        floor = -math.inf if self.floor_dbov is None else self.floor_dbov
        self.theta = max(floor + MARGIN_DB, MIN_THRESHOLD_DBOV) if threshold_dbov is None else threshold_dbov
        self.noise = from_dbov(max(-100.0, floor)) ** 2
        beyond = _mean_square(self.heard[self.nominal + self._samples(SMEAR_MS) :], self._samples(5.0))
        # the other party may be heard here: where it is not just after, it was not just before
        self.other_sounds = sounds and float(beyond.max()) >= from_dbov(self.theta) ** 2 / 2
        self.flags: list[str] = []
        self.spread_ms = 0.0
        self.model_track = self._track(self.model)
        self.by_model = self._last(self.model_track, self.theta)
        self.found: int | None = None
        self.rebuilt, self.rebuilt_track = self.model, self.model_track
        if self.by_model is not None:
            self._rebuild(self.by_model)

    def _turned(self, x: NDArray[np.float64]) -> NDArray[np.float64]:
        return x if self.is_end else x[::-1]

    def _track(self, x: NDArray[np.float64]) -> LevelTrack:
        return LevelTrack(x[::-1], self.rate_hz)

    def _last(self, track: LevelTrack, theta: float) -> int | None:
        found = first_audible(track, threshold_dbov=theta)
        return None if found is None else track.n - 1 - found.sample

    def _samples(self, ms: float) -> int:
        return round(ms * self.rate_hz / 1000)

    def _floor_dbov(self, nominal: int) -> float | None:
        """The recording's floor in the 2 s beyond the edge, as the rule finds it."""
        path, reach = self.path, round((FLOOR_S + 0.1) * self.rate_hz)
        at = path.origin + nominal
        low, high = (at - self.rate_hz // 10, at + reach) if self.is_end else (at - reach, at + self.rate_hz // 10)
        low, high = max(0, low), min(len(path.recording), high)
        if high <= low:
            return None
        x = np.asarray(path.recording[low:high])
        track = LevelTrack(x[::-1] if self.is_end else x, self.rate_hz)
        sample = high - 1 - at if self.is_end else at - low
        floor = track.floors(np.array([track.hop_of_sample(max(0, sample))]))[0]
        return None if math.isnan(floor) else dbov(float(floor))

    def _rebuild(self, by_model: int) -> None:
        """The noise-free signal as it lies in the recording, and its last audible sample."""
        window = self._samples(5.0)
        there, made = _mean_square(self.heard, window), _mean_square(self.model, window)
        lost = (there < made * 10 ** (-LOSS_DB / 10)) & (made > 4 * self.noise)
        kept = np.where(lost, self.heard, self.model)
        if not self.path.room and not self.other_sounds:
            left = _mean_square(self.heard - self.model, window)
            coded = np.where(left >= self.noise * 10 ** (GATE_DB / 10), self.heard, self.model)
            self._believe(coded)
            softer = self._last(self.model_track, self.theta - SOFTER_DB)
            limit = max(by_model, by_model if softer is None else softer) + self._samples(SMEAR_MS)
            if self.found is not None and self.found <= limit:
                self._without_noise(by_model)
                return
            self.flags.append("sound_beyond")
            if self.found is not None and self.found - by_model <= self._samples(LONG_SMEAR_MS):
                return
        self._believe(kept)

    def _believe(self, x: NDArray[np.float64]) -> None:
        self.rebuilt, self.rebuilt_track = x, self._track(x)
        self.found = self._last(self.rebuilt_track, self.theta)
        if self.found is None or not self.is_end:
            return
        # no grid is given for windows that run backwards: the middle one of three, and how far they are apart
        grids = [self.found]
        for shift in (self.rate_hz // 3000, 2 * self.rate_hz // 3000):
            moved = self._last(self._track(x[: len(x) - shift]), self.theta)
            grids.append(self.found if moved is None else moved)
        self.spread_ms = samples_to_ms(max(grids) - min(grids), self.rate_hz)
        self.found = sorted(grids)[1]

    def _without_noise(self, by_model: int) -> None:
        """What the recording adds after the model's end counts unless it is one sample of the noise."""
        if self.found is None or self.found <= by_model:
            return
        added = self.heard[by_model + 1 : self.found + 1]
        if float(np.mean(added**2)) < self.noise * 10 ** (ADDED_DB / 10):
            self._believe(np.concatenate([self.rebuilt[: by_model + 1], self.model[by_model + 1 :]]))
            self.found = by_model if self.found is None else self.found

    def boundary(self, flags: tuple[str, ...]) -> Boundary:
        """The edge, with its bounds.

        Raises
        ------
        NotMeasurable
            `inaudible` where it never reaches θ, `tail_not_recognised` (or `head_…`) where something else is there,
            `tail_in_noise` where too much of it is lost in noise for the lag to be known, `lost_in_noise` where the
            bounds would be beyond 100 ms.
        """
        if self.by_model is None or self.found is None:
            raise NotMeasurable("inaudible", "the utterance does not stand 10 dB out of the recording's floor")
        own = [*flags, *self.flags]
        if self.by_model - self.found > self._samples(PARTIAL_MS):
            own.append("partial")
        parts = self._parts(self.found, self.by_model, own)
        uncertainty_ms = math.sqrt(sum(value**2 for value in parts.values()))
        if uncertainty_ms > UNDECIDED_MS:
            raise NotMeasurable(
                "lost_in_noise", f"± {uncertainty_ms:.0f} ms: its level meets the threshold for too long"
            )
        if uncertainty_ms > UNCERTAIN_MS:
            own.append("uncertain")
        audible = Audible(self.rebuilt_track.n - 1 - self.found, self.theta, self.floor_dbov)
        sign = -1.0 if self.is_end else 1.0
        shifts = {
            step: None if shift is None else 0.0 + sign * shift
            for step, shift in threshold_shifts_ms(self.rebuilt_track, audible).items()
        }
        sample = self.begin + self.found if self.is_end else self.stop - 1 - self.found
        return Boundary(
            self.path.origin + sample,
            self.rate_hz,
            uncertainty_ms,
            parts,
            self.theta,
            self.floor_dbov,
            shifts,
            "reference",
            tuple(own),
        )

    def _unseen_s(self, found: int) -> float:
        """How much of the utterance lies between what was recognised and the boundary."""
        track, scale = self.path.track, self.path.scale
        members = np.flatnonzero(track.matched)
        here = int(members[-1] if self.is_end else members[0])
        edge = (int(track.block_starts[here]) + (track.block if self.is_end else 0)) * scale
        at = (self.begin + found if self.is_end else self.stop - 1 - found) - self.path.lag_at(self.at)
        return float(at - edge if self.is_end else edge - at) / self.rate_hz

    def _parts(self, found: int, by_model: int, flags: list[str]) -> dict[str, float]:
        track = self.path.track
        which = "tail" if self.is_end else "head"
        seen = np.flatnonzero(track.matched)
        strange = track.other[seen[-1] + 1 :] if self.is_end else track.other[: seen[0]]
        unseen = self._unseen_s(found)
        if int(strange.sum()) >= OTHER_BLOCKS and unseen > OTHER_BLOCKS * BLOCK_S:
            raise NotMeasurable(f"{which}_not_recognised", f"its {which} is covered by, or is, something else")
        if unseen > UNSEEN_S:
            raise NotMeasurable(f"{which}_in_noise", f"{unseen:.1f} s of its {which} were not recognised")
        step = 0.0
        if unseen > UNSEEN_NOTE_S and "partial" not in flags:
            flags.append(f"unseen_{which}")
            step = K * PITCH_MS / 2 * (2 if track.steps else 1)
        sigma = track.sigma_at(self.at / self.path.scale) * 1000 / track.rate_hz
        quantum = 1000 / self.rate_hz / math.sqrt(12)
        smear = abs(samples_to_ms(found - by_model, self.rate_hz))
        hidden = HIDDEN_SMEAR_MS if self.path.room or self.other_sounds or "sound_beyond" in flags else 0.0
        return {
            "estimator": K * math.hypot(sigma, quantum),
            "codec": K * math.hypot(CODEC_MS, 0.0 if "partial" in flags else SMEAR_SHARE * smear),
            "step": step,
            "detection": max(
                hidden,
                self.spread_ms,
                self._moves_ms(found),
                self._disputed_ms(found, by_model),
                self._filtered_ms(by_model),
            ),
        }

    def _moves_ms(self, found: int) -> float:
        """How far the edge moves if the level is off by a little."""
        noisy = self.theta > MIN_THRESHOLD_DBOV  # the floor decides, and lies 10 dB below what is decided
        step = UNSURE_LEVEL_DB if self.path.room or noisy else LEVEL_DB
        if _snr_db(self.path.track) < NOISY_DB:
            step += LEVEL_DB
        moved = [self._last(self.rebuilt_track, self.theta + sign * step) for sign in (-1, 1)]
        return max(abs(samples_to_ms((found if m is None else m) - found, self.rate_hz)) for m in moved)

    def _filtered_ms(self, by_model: int) -> float:
        """How far the edge hangs on the filter, where noise hides what the filter did."""
        if self.theta <= MIN_THRESHOLD_DBOV and self.noise < from_dbov(self.theta - CLEAR_DB) ** 2:
            return 0.0
        plain = self._last(self._track(self.plain), self.theta)
        apart = math.inf if plain is None else abs(samples_to_ms(plain - by_model, self.rate_hz))
        return apart if apart < DISPUTED_MS / 2 else 0.0

    def _disputed_ms(self, found: int, by_model: int) -> float:
        """How far the recording's own level, as it is, says otherwise; not where it is about something else."""
        stop = max(found, by_model) + self._samples(DISPUTED_MS)
        by_level = self._last(self._track(self.heard[self.nominal // 2 : stop]), self.theta)
        apart = math.inf if by_level is None else abs(by_level + self.nominal // 2 - found) * 1000 / self.rate_hz
        smear = samples_to_ms(found - by_model, self.rate_hz)
        return max(LEAST_MS, apart if apart < DISPUTED_MS / 2 else 0.0, smear if smear > SMEAR_MS else 0.0)


def _mean_square(x: NDArray[np.float64], window: int) -> NDArray[np.float64]:
    """Mean square over a window about each sample."""
    padded = np.concatenate([np.zeros(window // 2 + 1), x * x, np.zeros(window - window // 2)])
    total = np.cumsum(padded)
    return np.asarray(np.maximum(total[window : window + len(x)] - total[: len(x)], 0.0) / window)


def _rms_dbov(x: NDArray[np.floating]) -> float:
    return dbov(math.sqrt(float(np.mean(np.square(x, dtype=np.float64))))) if len(x) else -math.inf


def last_audible_blind(
    recording: NDArray[np.floating],
    rate_hz: int,
    *,
    start_s: float,
    stop_s: float,
    threshold_dbov: float | None = None,
) -> Boundary:
    """The end of unknown speech by level alone: the rule run backwards on the recording as it is.

    Parameters
    ----------
    recording : ndarray, shape (n,), float
        The whole channel.
    rate_hz : int
    start_s, stop_s : float
        A stretch that holds the end; nothing after `stop_s` is taken for it, but the floor looks 2 s beyond.
    threshold_dbov : float, optional
        θ to use instead of the recording's own.

    Raises
    ------
    NotMeasurable
        `inaudible` where nothing in the stretch is audible.

    Notes
    -----
    It takes whatever sounds for speech (a breath, reverberation, another voice) and misses a soft end in noise. The
    bounds are those of a dry recording by the distance of the speech from θ, measured on the tests' utterances.
    """
    begin, stop = max(0, round(start_s * rate_hz)), min(len(recording), round(stop_s * rate_hz))
    beyond = min(len(recording), stop + round((FLOOR_S + 0.1) * rate_hz))
    x = np.asarray(recording[begin:beyond])
    track = LevelTrack(x[::-1], rate_hz)
    found = first_audible(track, start=beyond - stop, threshold_dbov=threshold_dbov)
    if found is None or beyond - 1 - found.sample < begin:
        raise NotMeasurable("inaudible", "nothing stands 10 dB out of the recording's floor")
    shifts = {step: None if shift is None else 0.0 - shift for step, shift in threshold_shifts_ms(track, found).items()}
    sample = beyond - 1 - found.sample
    level = _loud_dbov(np.asarray(recording[max(begin, sample - 2 * rate_hz) : sample + 1]), rate_hz)
    distance = level - found.threshold_dbov
    unsure = next(ms for least, ms in BLIND_MS if distance >= least)
    parts = {"detection": unsure, "codec": K * CODEC_MS}
    return Boundary(
        sample,
        rate_hz,
        math.hypot(*parts.values()),
        parts,
        found.threshold_dbov,
        found.floor_dbov,
        shifts,
        "level",
    )


def _loud_dbov(x: NDArray[np.floating], rate_hz: int) -> float:
    """The level of speech: the 90th percentile of its 20 ms frames."""
    size = rate_hz // 50
    frames = np.asarray(x[: len(x) // size * size], dtype=np.float64).reshape(-1, size)
    return dbov(math.sqrt(float(np.percentile((frames**2).mean(axis=1), 90)))) if len(frames) else _rms_dbov(x)
