"""A known utterance and a recording that holds it in, its first and last audible sample there, with bounds, out.

The lag along the utterance is followed (`analysis.lags`), the way into the recording estimated (`analysis.sound_path`),
and the edges found by the audibility rule on what must lie there (`analysis.edges`). Without a reference there is the
rule alone, run backwards on the recording as it is.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from analysis.audibility import LevelTrack, Samples, first_audible, threshold_shifts_ms
from analysis.audiofile import resample
from analysis.edges import CODEC_MS, FLOOR_S, UNCERTAIN_MS, Boundary, K, find_boundary, rms_dbov
from analysis.errors import NotMeasurable
from analysis.lags import STRETCH, Drift, LagTrack, track_widening
from analysis.references import SEARCH_RATE_HZ, Occurrence, Reference
from analysis.sound_path import SoundPath
from analysis.units import dbov, samples_to_ms

__all__ = ["Boundary", "TimeStep", "Transfer", "last_audible_blind", "transfer"]

TRACK_RATE_HZ = 16000  # the lag is followed at this rate, or at the recording's own where that is lower
REACH_S = 0.020
CLIPPED = 0.999
# Without a reference: ± ms by how far the speech stands above θ (dB)
BLIND_MS = ((40.0, 10.0), (30.0, 25.0), (15.0, 60.0), (-math.inf, 300.0))


@dataclass(frozen=True, slots=True)
class TimeStep:
    """A change of the delay by `ms` (positive: later) at `at_s` in the reference, ± `within_s`."""

    at_s: float
    ms: float
    within_s: float


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
    recording: Samples,
    rate_hz: int,
    *,
    at_s: float,
    reach_s: float = REACH_S,
    other: Samples | None = None,
    seen: Occurrence | None = None,
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
    seen : Occurrence, optional
        What `find_references` found there: at its rate nothing is followed twice.
    start_threshold_dbov, end_threshold_dbov : float, optional
        θ to use instead of the recording's own.

    Raises
    ------
    NotMeasurable
        `not_found` where the reference is not there.
    """
    track, origin = _tracked(reference, recording, rate_hz, at_s, reach_s, seen)
    path = SoundPath(reference, recording, rate_hz, track, origin)
    flags = _flags(path)
    edges: dict[str, Boundary | None] = {}
    reasons: dict[str, str] = {}
    for name, threshold in (("start", start_threshold_dbov), ("end", end_threshold_dbov)):
        try:
            edges[name] = find_boundary(path, name == "end", other, flags, threshold)
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
        track.snr_db(),
        track.coverage,
        track.drift,
        tuple(TimeStep(s.at / rate, samples_to_ms(s.size, rate), s.within / rate) for s in track.steps),
        path.room,
        flags,
        reasons,
    )


def _tracked(
    reference: Reference,
    recording: Samples,
    rate_hz: int,
    at_s: float,
    reach_s: float,
    seen: Occurrence | None = None,
) -> tuple[LagTrack, int]:
    """The lag track, counted from a sample of the recording that is a whole number of seconds, and that sample."""
    rate = min(rate_hz, TRACK_RATE_HZ)
    pattern = reference.pattern(rate)
    begin = at_s + reference.start_sample / reference.rate_hz - 1.0
    end = at_s + reference.end_sample / reference.rate_hz * (1 + STRETCH) + 1.0
    first_s = max(0, math.floor(begin))
    origin = first_s * rate_hz
    if seen is not None and rate == SEARCH_RATE_HZ == rate_hz and seen.track.points:
        return seen.track.moved(round(seen.origin_s * rate) - origin), origin
    heard = resample(np.asarray(recording[origin : math.ceil(end * rate_hz)]), rate_hz, rate)
    track = track_widening(pattern, heard, lag=(at_s - first_s) * rate, reach=round(reach_s * rate))
    if not track.points or not track.credible:
        raise NotMeasurable("not_found", f"{reference.name} is not to be recognised at {at_s:.2f} s")
    return track, origin


def _flags(path: SoundPath) -> tuple[str, ...]:
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


def last_audible_blind(
    recording: Samples,
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
        ("uncertain",) if unsure > UNCERTAIN_MS else (),
    )


def _loud_dbov(x: NDArray[np.floating], rate_hz: int) -> float:
    """The level of speech: the 90th percentile of its 20 ms frames."""
    size = rate_hz // 50
    frames = np.asarray(x[: len(x) // size * size], dtype=np.float64).reshape(-1, size)
    return dbov(math.sqrt(float(np.percentile((frames**2).mean(axis=1), 90)))) if len(frames) else rms_dbov(x)
