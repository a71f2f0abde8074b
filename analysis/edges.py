"""One edge of a known utterance in a recording: its first or last audible sample there, with bounds.

Source: the design's truth: the audibility rule on the noise-free signal as it lies in the recording, with the θ of the
recording. That signal is made from the reference (`analysis.sound_path`). Where a codec has added or a loss has taken
something that stands out of the noise, the recording's own samples count; in a room they do not: reverberation does not
lengthen an utterance.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from analysis.audibility import (
    MARGIN_DB,
    MIN_THRESHOLD_DBOV,
    Audible,
    LevelTrack,
    Samples,
    first_audible,
    floor_before,
    threshold_shifts_ms,
)
from analysis.errors import NotMeasurable
from analysis.lags import BLOCK_S
from analysis.sound_path import SoundPath
from analysis.units import dbov, from_dbov, samples_to_ms

__all__ = ["CODEC_MS", "FLOOR_S", "UNCERTAIN_MS", "Boundary", "K", "find_boundary", "rms_dbov"]

FLOOR_S = 2.0
BEFORE_S = (0.25, 1.5, math.inf)  # of the utterance, ahead of its edge, that is rebuilt
AFTER_S = 0.15
GATE_DB = 6.0  # what is left over counts as the codec's where it stands this far out of the noise
SURE_ROOM = 12.0  # energy after the direct sound over that before it
SMEAR_MS = 25.0  # how long a codec may ring
LONG_SMEAR_MS = 60.0  # beyond what a codec may do, and still not another sound
ADDED_DB, SURE_SIGMA = 7.0, 2.0  # over the noise, and of it over θ, for added sound to be no noise
DISPUTED_MS = 16.0
CLEAR_DB = 20.0  # noise this far under θ hides nothing
NOISY_DB = 20.0
UNCERTAIN_MS, UNDECIDED_MS = 20.0, 100.0  # said, refused
LEAST_MS = 0.5  # nothing is claimed to be better detected
SOFTER_DB = 6.0  # by which it may have raised a soft end
LOSS_DB = 10.0  # the recording this far under what it should be: a loss
OTHER_DBOV = -50.0  # the other channel is audible
UNSEEN_S = 0.5  # more of the utterance than this beyond what was recognised: refused
CODEC_MS = 0.05  # spread of a codec's delay (k = 1)
SMEAR_SHARE = 0.15  # of what the codec added or took, that may be off (k = 1)
HIDDEN_SMEAR_MS = 2.5  # what a codec may have added where it is not to be seen
PITCH_MS = 5.0  # a step as NetEQ makes it
PARTIAL_MS = 30.0  # the recording ends this far before the utterance would
OTHER_BLOCKS = 2
UNSEEN_NOTE_S = 0.1  # more than this beyond what was recognised: a step may lie in it
LEVEL_DB, UNSURE_LEVEL_DB = 1.0, 2.0  # by which the level at the edge may be off; in a room or noise
K = 2.0


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


def find_boundary(
    path: SoundPath,
    is_end: bool,
    other: Samples | None,
    flags: tuple[str, ...],
    threshold_dbov: float | None,
) -> Boundary:
    """One edge, looked for in a short stretch first; in a longer one where it does not lie well inside.

    What the reference holds beyond its own edges counts where the recording holds it too.
    """
    longest_s = len(path.x) / path.rate_hz + AFTER_S
    for before_s in BEFORE_S:
        edge = _Edge(path, is_end, min(before_s, longest_s), other, threshold_dbov)
        if edge.further and edge.cut_off:
            edge = _Edge(path, is_end, min(before_s, longest_s), other, threshold_dbov, beyond=False)
        if edge.found is not None and edge.found > edge.nominal // 2 and None not in edge.moved():
            break
        if before_s >= longest_s:
            break
    return edge.boundary(flags)


class _Edge:
    """One edge of an utterance. All arrays run towards it and past it, so the start's are turned round.

    `by_model` is the last audible sample of what the reference alone makes of it, `found` that of what is believed to
    lie in the recording (`rebuilt`); None where there is none.
    """

    def __init__(
        self,
        path: SoundPath,
        is_end: bool,
        before_s: float,
        other: Samples | None,
        threshold_dbov: float | None,
        *,
        beyond: bool = True,
    ) -> None:
        self.path, self.is_end, self.rate_hz = path, is_end, path.rate_hz
        own = path.last if is_end else path.first
        self.floor_dbov, self.theta = self._threshold(self._place(own), threshold_dbov)
        self.at = path.edge(self.theta, is_end=is_end) if beyond else own
        self.further = self.at != own
        nominal = self._place(self.at)
        if self.further:
            self.floor_dbov, self.theta = self._threshold(nominal, threshold_dbov)
        before, after = round(before_s * path.rate_hz), round(AFTER_S * path.rate_hz)
        self.begin, self.stop = (nominal - before, nominal + after) if is_end else (nominal - after, nominal + before)
        if not is_end:
            # windows on the grid of the whole recording, as one who looks for the onset alone would have them
            grid = path.rate_hz // 100 if path.rate_hz % 100 == 0 else path.rate_hz
            self.begin -= self.begin % grid
        self.nominal = before
        model, plain = path.model(self.begin, self.stop, at=self.at, beyond=beyond)
        self.model, self.plain = self._turned(model), self._turned(plain)
        self.heard = self._turned(path.heard(self.begin, self.stop))
        reach = path.rate_hz // 25
        near = slice(max(0, path.origin + nominal - reach), max(0, path.origin + nominal + reach))
        sounds = other is not None and rms_dbov(np.asarray(other[near])) >= OTHER_DBOV
        floor = -math.inf if self.floor_dbov is None else self.floor_dbov
        self.noise = from_dbov(max(-100.0, floor)) ** 2
        afterwards = _mean_square(self.heard[self.nominal + self._samples(SMEAR_MS) :], self._samples(5.0))
        # the other party may be heard here: where it is not just after, it was not just before
        beyond_sounds = float(afterwards.max()) >= from_dbov(self.theta) ** 2 / 2
        self.other_sounds = sounds and beyond_sounds
        # what may be a codec's work rather than a room's is one where it goes on to sound
        self.in_room = path.room and (path.response.after > SURE_ROOM * path.response.before or beyond_sounds)
        self.flags: list[str] = []
        self.spread_ms = self.noise_ms = 0.0
        self.model_track = self._track(self.model)
        self.by_model = self._last(self.model_track, self.theta)
        self.found: int | None = None
        self.rebuilt, self.rebuilt_track = self.model, self.model_track
        if self.by_model is not None:
            self._rebuild(self.by_model)

    @property
    def cut_off(self) -> bool:
        """The recording ends, or falls silent, well before the model does."""
        return self.found is None or (self.by_model or 0) - self.found > self._samples(PARTIAL_MS)

    def _place(self, at: int) -> int:
        """Where a reference sample lies in the recording, from the path's origin."""
        return round(at + self.path.lag_at(at) + self.path.direct)

    def _threshold(self, nominal: int, threshold_dbov: float | None) -> tuple[float | None, float]:
        """F beyond a place, and θ."""
        floor_dbov = self._floor_dbov(nominal)
        if threshold_dbov is not None:
            return floor_dbov, threshold_dbov
        return floor_dbov, MIN_THRESHOLD_DBOV if floor_dbov is None else max(floor_dbov + MARGIN_DB, MIN_THRESHOLD_DBOV)

    def _turned(self, x: NDArray[np.float64]) -> NDArray[np.float64]:
        return x if self.is_end else x[::-1]

    def _track(self, x: NDArray[np.float64]) -> LevelTrack:
        return LevelTrack(x[::-1], self.rate_hz, floors=False)

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
        sample = high - 1 - at if self.is_end else at - low
        floor = floor_before(x[::-1] if self.is_end else x, self.rate_hz, max(0, sample))
        return None if floor is None else dbov(floor)

    def _rebuild(self, by_model: int) -> None:
        """The noise-free signal as it lies in the recording, and its last audible sample."""
        window = self._samples(5.0)
        there, made = _mean_square(self.heard, window), _mean_square(self.model, window)
        lost = (there < made * 10 ** (-LOSS_DB / 10)) & (made > 4 * self.noise)
        kept = np.where(lost, self.heard, self.model)
        if not self.in_room and not self.other_sounds:
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
        """What the recording adds after the model's end counts unless noise may have made it."""
        if self.found is None or self.found <= by_model:
            return
        added = self.heard[by_model + 1 : self.found + 1]
        believed = self.found
        if float(np.mean(added**2)) < self.noise * 10 ** (ADDED_DB / 10):
            self._believe(np.concatenate([self.rebuilt[: by_model + 1], self.model[by_model + 1 :]]))
            self.found = by_model if self.found is None else self.found
            return
        sure = np.flatnonzero(np.abs(added) >= from_dbov(self.theta) + SURE_SIGMA * math.sqrt(self.noise))
        self.found = by_model + 1 + int(sure[-1]) if len(sure) else by_model
        self.noise_ms = samples_to_ms(believed - self.found, self.rate_hz)

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
        if self.cut_off:
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
                self.noise_ms,
                self._moves_ms(found),
                self._disputed_ms(found, by_model),
                self._filtered_ms(by_model),
            ),
        }

    def moved(self) -> list[int | None]:
        """Where the edge lies if the level is off by a little; None where it is then not in sight."""
        noisy = self.theta > MIN_THRESHOLD_DBOV  # the floor decides, and lies 10 dB below what is decided
        step = UNSURE_LEVEL_DB if self.in_room or noisy else LEVEL_DB
        if self.path.track.snr_db() < NOISY_DB:
            step += LEVEL_DB
        return [self._last(self.rebuilt_track, self.theta + sign * step) for sign in (-1, 1)]

    def _moves_ms(self, found: int) -> float:
        """How far that is at most; without end where nothing else of the utterance would be audible."""
        return max(math.inf if m is None else abs(samples_to_ms(m - found, self.rate_hz)) for m in self.moved())

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


def rms_dbov(x: NDArray[np.floating]) -> float:
    return dbov(math.sqrt(float(np.mean(np.square(x, dtype=np.float64))))) if len(x) else -math.inf
