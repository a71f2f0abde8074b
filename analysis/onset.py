"""A channel's level track in, the first and last audible sample of each stretch of sound, with bounds, out.

Source: the design's audibility rule (`analysis.audibility`); the truth is that rule on the noise-free signal with the θ
of the noisy recording. Noise near θ adds to windows and takes from them, and its peaks cross θ before the sound does:
its power is subtracted, a crossing counts where the sound goes on to rise out of the noise, and the bounds are where
the rule would find the edge if each window were off by what such noise does to it. What is left is measured on
generated recordings (scripts/make_onset_bias.py) and lies beside this module in data/onset_bias.json.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

import numpy as np
from numpy.typing import NDArray

from analysis.audibility import (
    FLUCTUATION_DB,
    MARGIN_DB,
    MIN_THRESHOLD_DBOV,
    RUN_HOPS,
    RUN_NEEDED,
    SHIFT_SEARCH_MS,
    SPAN_MS,
    WINDOW_MS,
    LevelTrack,
    Samples,
)
from analysis.echo import EchoFreeTrack
from analysis.errors import NotMeasurable
from analysis.references import Reference
from analysis.transfer import Boundary, transfer
from analysis.units import dbov, from_dbov, samples_to_ms

__all__ = ["find_end", "find_start", "known_onset", "uncorrected"]

OUTSIDE_MS = 150  # how far outside a run its edge may lie: noise may have hidden a soft sound
INSIDE_MS = 1000  # and inside
DOUBT = 1.5  # standard deviations that all windows may be off together: so 96 % of edges and more lie in their bounds
LEVEL_SHARE = 0.05  # of θ²: windows lie on another grid than the truth's, up to half a hop
COUNT_DOUBT = 1  # and so one more or one less of the 30 windows may count
NOISE_RANGE = 4.0  # windows up to 6 dB over the floor are noise
LEAST_NOISE_WINDOWS = 50
FLOOR_REACH_MS = 50  # an edge further from where its floor was taken has another
WHITE_SPREAD = 0.05  # relative variance of white noise in 5 ms at 8 kHz: 40 independent samples
ECHO_SPREAD = 0.3  # what is left of an echo is speech: few independent samples in 5 ms
CROSSING_SIGMA = 2.0  # a crossing so far above θ is not made by noise
EARLY_SIGMA = 0.5  # the sound may have crossed θ where noise took so much from it
CHAIN_MS = 0.5  # crossings of θ no further apart are those of one rise
LOOK_ON_MS = 12  # past the window for such a crossing
WIDE_MS = 15.0  # a bound wider than this is flagged,
REFUSED_MS = 120.0  # and wider than this the edge is refused
SHIFT_DB = 10
K = 2.0


@dataclass(frozen=True, slots=True)
class _Noise:
    """What stands under a sound: its power, and the relative variance of that in windows of 5 ms."""

    power: float
    spread: float


class _Edge:
    """One edge of a stretch: hops run inwards, so those of an end run backwards."""

    def __init__(self, track: LevelTrack, first_hop: int, stop_hop: int, *, at_hop: int, is_end: bool) -> None:
        self.track, self.is_end = track, is_end
        self.first_hop, self.stop_hop = max(0, first_hop), min(track.hops, stop_hop)
        levels = track.mean_square[self.first_hop : self.stop_hop]
        self.levels = levels[::-1] if is_end else levels
        self.echo: NDArray[np.float64] | None = None
        if isinstance(track, EchoFreeTrack):
            echo = track.residue(self.first_hop, self.stop_hop)
            self.echo = echo[::-1] if is_end else echo
        self.use_floor_at(at_hop)

    def use_floor_at(self, hop: int) -> None:
        """Take θ from the floor beyond a hop, as the rule does for an edge there."""
        self.floor_hop = hop
        beyond = np.array([min(hop + WINDOW_MS, self.track.hops) if self.is_end else hop])
        floor = float(self.track.floors(beyond, after=self.is_end)[0])
        self.floor = None if math.isnan(floor) else floor
        raised = 0.0 if self.floor is None else self.floor * 10 ** (MARGIN_DB / 20)
        self.theta = max(raised, from_dbov(MIN_THRESHOLD_DBOV))
        self.noise = self._noise(hop)

    def _noise(self, hop: int) -> _Noise:
        if not self.floor:
            return _Noise(0.0, WHITE_SPREAD)
        begin, stop = (hop + WINDOW_MS, hop + SPAN_MS) if self.is_end else (hop - SPAN_MS, hop - WINDOW_MS)
        windows = self.track.mean_square[max(0, begin) : max(0, stop)]
        windows = windows[windows <= NOISE_RANGE * self.floor**2]
        if len(windows) < LEAST_NOISE_WINDOWS:
            return _Noise(self.floor**2, WHITE_SPREAD)
        power = float(windows.mean())
        return _Noise(power, float(windows.var()) / power**2) if power > 0 else _Noise(0.0, WHITE_SPREAD)

    def hop(self, sign: int) -> int | None:
        """The hop that starts what is audible: of the likely levels (0), of all higher (+1) or lower (−1) ones."""
        power, spread = self.noise.power, self.noise.spread
        levels = np.maximum(self.levels - power, 0.0)
        if sign:
            # of the sound alone, plus noise of its own and the product of both; so with what is left of an echo
            variance = spread * (2 * levels * power + power**2)
            if self.echo is not None:
                variance = variance + ECHO_SPREAD * (2 * levels * self.echo + self.echo**2)
            doubt = np.hypot(DOUBT * np.sqrt(variance), LEVEL_SHARE * self.theta**2)
            levels = levels + sign * doubt
        found = _first_run(levels >= self.theta**2, RUN_NEEDED - sign * COUNT_DOUBT)
        if found is None:
            return None
        return self.stop_hop - 1 - found if self.is_end else self.first_hop + found

    def sample(self, hop: int, sign: int) -> int:
        """The first (last) sample in the window at `hop` above θ that is not noise; else the window's far one."""
        begin = self.track.sample_of_hop(hop)
        stop = begin + self.track.sample_of_hop(WINDOW_MS)
        reach = LOOK_ON_MS * self.track.rate_hz // 1000
        x = np.abs(self.track.samples(max(0, begin - reach), stop) if self.is_end else self._ahead(begin, stop + reach))
        x = x[::-1] if self.is_end else x
        sigma = math.sqrt(self.noise.power)
        last = stop - begin - 1
        if sign > 0:
            above = np.flatnonzero(x[: last + 1] >= self.theta - EARLY_SIGMA * sigma)
            place = int(above[0]) if len(above) else last
        else:
            sure = np.flatnonzero(x >= self.theta + CROSSING_SIGMA * sigma)
            place = int(sure[0]) if len(sure) else last
            if not sign:
                place = self._begins(x, place if len(sure) else None, last)
        return stop - 1 - place if self.is_end else begin + place

    def _ahead(self, begin: int, stop: int) -> NDArray[np.floating]:
        return self.track.samples(begin, min(stop, self.track.n))

    def _begins(self, x: NDArray[np.floating], sure: int | None, last: int) -> int:
        """The first crossing of θ in the chain of crossings that leads to one that noise cannot make."""
        above = np.flatnonzero(x[: last + 1 if sure is None else sure + 1] >= self.theta)
        if not len(above):
            return last
        gaps = np.flatnonzero(np.diff(above) > CHAIN_MS * self.track.rate_hz / 1000)
        chain = 0 if sure is None or not len(gaps) else int(gaps[-1]) + 1
        return min(int(above[chain]), last)

    def estimate(self) -> tuple[int, float]:
        """The edge's sample and how far from it (ms) the rule would find it with each window's level off.

        Raises NotMeasurable: `inaudible`, `onset_in_noise` or `end_in_noise`.
        """
        hop = self.hop(0)
        if hop is None:
            raise NotMeasurable("inaudible", "nothing stands 10 dB out of the recording's floor")
        if abs(hop - self.floor_hop) > FLOOR_REACH_MS:
            self.use_floor_at(hop)
            hop = self.hop(0) or hop
        place = self.sample(hop, 0)
        apart = 0
        for sign in (1, -1):
            other = self.hop(sign)
            if other is None:
                raise self.in_noise()
            apart = max(apart, abs(self.sample(other, sign) - place))
        return place, samples_to_ms(apart, self.track.rate_hz)

    def in_noise(self) -> NotMeasurable:
        """Why there is no edge to be had."""
        return NotMeasurable("end_in_noise" if self.is_end else "onset_in_noise", "noise hides where the sound is")

    def boundary(self) -> Boundary:
        """The edge with its bounds, corrected by what was measured. Raises NotMeasurable."""
        place, bound_ms = self.estimate()
        bias_ms, least_ms = _measured(self.is_end, self.margin_db())
        bound_ms = math.hypot(bound_ms, least_ms)
        if bound_ms > REFUSED_MS:
            raise self.in_noise()
        flags = (("soft_end",) if self.is_end else ("soft_onset",)) if bound_ms > WIDE_MS else ()
        place -= round(bias_ms * self.track.rate_hz / 1000)
        parts = {"detection": bound_ms, "sampling": K * samples_to_ms(1 / math.sqrt(12), self.track.rate_hz)}
        return self._bounded(place, parts, flags)

    def margin_db(self) -> float:
        """θ over the noise's RMS; at most 100 dB."""
        return min(100.0, dbov(self.theta) - dbov(math.sqrt(max(self.noise.power, 1e-16))))

    def _bounded(self, place: int, parts: Mapping[str, float], flags: tuple[str, ...]) -> Boundary:
        floor_dbov = None if self.floor is None else dbov(self.floor)
        return Boundary(
            place,
            self.track.rate_hz,
            math.hypot(*parts.values()),
            parts,
            dbov(self.theta),
            floor_dbov,
            {f"{step:+d}": self._shift_ms(place, step) for step in (-SHIFT_DB, SHIFT_DB)},
            "level",
            flags,
        )

    def _shift_ms(self, place: int, step_db: int) -> float | None:
        """How far the edge moves with θ so much higher, as `audibility.threshold_shifts_ms` has it, on either edge."""
        theta = self.theta * 10 ** (step_db / 20)
        if self.floor is not None and theta < self.floor * 10 ** (FLUCTUATION_DB / 20):
            return None
        track = self.track
        hop = track.hop_of_sample(place)
        begin, stop = max(0, hop - SHIFT_SEARCH_MS), min(track.hops, hop + SHIFT_SEARCH_MS)
        levels = track.mean_square[begin:stop]
        found = _first_run((levels[::-1] if self.is_end else levels) >= theta**2, RUN_NEEDED)
        outer = track.hops - stop if self.is_end else begin
        if found is None or (found <= WINDOW_MS and outer > 0):
            return None
        first = track.sample_of_hop(stop - 1 - found if self.is_end else begin + found)
        loud = np.flatnonzero(np.abs(track.samples(first, first + track.sample_of_hop(WINDOW_MS))) >= theta)
        moved = first + (
            int(loud[-1 if self.is_end else 0])
            if len(loud)
            else (0 if self.is_end else track.sample_of_hop(WINDOW_MS) - 1)
        )
        return samples_to_ms(moved - place, track.rate_hz)


def _first_run(above: NDArray[np.bool_], needed: int) -> int | None:
    """The first hop that is above and is followed by enough that are (itself counted)."""
    count = np.concatenate(([0], np.cumsum(above)))
    at = np.flatnonzero(above)
    enough = at[count[np.minimum(at + RUN_HOPS, len(above))] - count[at] >= needed]
    return int(enough[0]) if len(enough) else None


@cache
def _table() -> list[dict[str, Any]]:
    text = resources.files("analysis").joinpath("data/onset_bias.json").read_text(encoding="utf-8")
    rows: list[dict[str, Any]] = json.loads(text)["rows"]
    return rows


def _measured(is_end: bool, margin_db: float) -> tuple[float, float]:
    """(bias, least bound) in ms of edges whose θ stands so far over the noise, as they were measured."""
    edge = "end" if is_end else "start"
    rows = [row for row in _table() if row["edge"] == edge]
    row = next((row for row in rows if margin_db < row["theta_over_noise_db"][1]), rows[-1])
    return float(row["bias_ms"]), float(row["least_ms"])


def find_start(track: LevelTrack, start: int, *, after: int = 0, stop: int | None = None) -> Boundary:
    """The first audible sample of a stretch that begins about `start`.

    Parameters
    ----------
    track : LevelTrack
        Of the whole channel.
    start : int
        Sample at which the rule on the noisy signal (`audible_runs`) has it begin.
    after, stop : int
        Samples; it lies not before `after` (the end of another sound) and before `stop`.

    Returns
    -------
    Boundary
        `evidence` is "level"; flag `soft_onset` where the bound is wider than 15 ms.

    Raises
    ------
    NotMeasurable
        `inaudible` or `onset_in_noise`.
    """
    return _start(track, start, after, stop).boundary()


def find_end(track: LevelTrack, end: int, *, after: int = 0, stop: int | None = None) -> Boundary:
    """The last audible sample of a stretch that ends about `end`: the rule run backwards.

    As `find_start`; flag `soft_end`, reasons `inaudible` and `end_in_noise`.
    """
    return _end(track, end, after, stop).boundary()


def uncorrected(track: LevelTrack, at: int, *, is_end: bool) -> tuple[int, float, float]:
    """An edge before what was measured is applied: its sample, its bound (ms), θ over the noise (dB)."""
    edge = _end(track, at, 0, None) if is_end else _start(track, at, 0, None)
    place, bound_ms = edge.estimate()
    return place, bound_ms, edge.margin_db()


def _start(track: LevelTrack, start: int, after: int, stop: int | None) -> _Edge:
    hop = track.hop_of_sample(start)
    first = max(hop - OUTSIDE_MS, track.hop_of_sample(after) if after else 0)
    last = hop + INSIDE_MS if stop is None else min(hop + INSIDE_MS, track.hop_of_sample(stop))
    return _Edge(track, min(first, hop), max(last, hop + 1), at_hop=hop, is_end=False)


def _end(track: LevelTrack, end: int, after: int, stop: int | None) -> _Edge:
    hop = max(0, track.hop_of_sample(end) - WINDOW_MS)
    first = max(hop - INSIDE_MS, track.hop_of_sample(after) if after else 0)
    last = hop + OUTSIDE_MS if stop is None else min(hop + OUTSIDE_MS, track.hop_of_sample(stop) - WINDOW_MS)
    return _Edge(track, min(first, hop), max(last, hop + 1), at_hop=hop, is_end=True)


def known_onset(
    reference: Reference,
    recording: Samples,
    rate_hz: int,
    *,
    at_s: float,
    other: Samples | None = None,
) -> Boundary:
    """The first audible sample of a reply whose sound is known (tapped, or a file), by label transfer.

    `at_s`: about where the reply's sample 0 lies. Raises NotMeasurable where it is not to be recognised there.
    """
    found = transfer(reference, recording, rate_hz, at_s=at_s, other=other)
    if found.start is None:
        raise NotMeasurable(found.reasons.get("start", "not_found"), f"{reference.name} has no measurable start")
    return found.start
