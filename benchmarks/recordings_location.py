"""Finding a 3 s utterance in white noise: rms error beside the Cramér–Rao bound from the utterance's own spectrum.

Source: Kay, "Fundamentals of Statistical Signal Processing: Estimation Theory", example 3.13: for a known signal s in
white noise of variance v per sample, var(delay) ≥ v / Σ s'², with s' the derivative by the sample index. The SNR is
that of the utterance's power over its 3 s, to the noise's.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from benchmarks.recordings_path import fractional_delay
from benchmarks.recordings_sounds import resampled, utterance_sound
from probe.utterances import shipped_names

__all__ = ["SNRS_DB", "Estimator", "Location", "bound_samples", "estimators", "locate", "plain"]

SNRS_DB = (-5, 0, 5, 10, 15, 20, 25, 30)
DURATION_S = 3.0
REACH_S = 0.5  # the utterance lies within this of where it is looked for
OUTLIER_SAMPLES = 5.0  # beyond it the wrong peak was taken

Sound = NDArray[np.float64]
Estimator = Callable[[Sound, Sound, int], float | None]  # reference, recording, rate → delay in samples, None: refused


@dataclass(frozen=True, slots=True)
class Location:
    """Of one estimator at one SNR. `rms` leaves nothing out but what was refused."""

    estimator: str
    snr_db: float
    trials: int
    refused: int
    outliers: int
    rms_samples: float | None
    bound_samples: float

    @property
    def over_bound(self) -> float | None:
        """The rms error in units of the bound."""
        return None if self.rms_samples is None else self.rms_samples / self.bound_samples


def bound_samples(reference: Sound, noise_rms: float) -> float:
    """The smallest standard deviation of a delay (samples) in white noise of this RMS.

    Examples
    --------
    >>> t = np.arange(4096)
    >>> round(bound_samples(np.sin(2 * np.pi * t / 16), 1.0) * 2 * np.pi / 16 * np.sqrt(2048), 3)
    1.0
    """
    spectrum = np.abs(np.fft.rfft(reference)) ** 2
    spectrum[1 : (len(reference) + 1) // 2] *= 2
    omega = 2 * np.pi * np.fft.rfftfreq(len(reference))
    return float(noise_rms / np.sqrt(np.sum(omega**2 * spectrum) / len(reference)))


def plain(reference: Sound, recording: Sound, rate_hz: int) -> float | None:
    """The yardstick of the test itself: the correlation's peak, its spectrum evaluated between samples by Newton."""
    size = 1 << (len(reference) + len(recording)).bit_length()
    cross = np.fft.rfft(recording, size) * np.conj(np.fft.rfft(reference, size))
    lag = float(np.argmax(np.fft.irfft(cross, size)[: len(recording) - len(reference) + 1]))
    omega = 2 * np.pi * np.arange(len(cross)) / size
    for _ in range(6):
        turned = cross * np.exp(1j * omega * lag)
        slope, bend = np.sum(-omega * turned.imag), np.sum(-(omega**2) * turned.real)
        lag -= float(np.clip(slope / bend, -0.5, 0.5)) if bend < 0 else 0.0
    return lag


def estimators() -> dict[str, Estimator]:
    """The yardstick, and ours: as it decides by itself, and GCC-β."""
    from analysis.correlation import BETA_IN_ROOMS, find_delay
    from analysis.errors import NotMeasurable

    def ours(beta: float | None) -> Estimator:
        def find(reference: Sound, recording: Sound, rate_hz: int) -> float | None:
            try:
                return find_delay(reference, recording, rate_hz, beta=beta).samples
            except NotMeasurable:
                return None

        return find

    return {"yardstick": plain, "find_delay": ours(None), "gcc_beta": ours(BETA_IN_ROOMS)}


def locate(name: str, estimator: Estimator, snr_db: float, *, rate_hz: int, trials: int, seed: int) -> Location:
    """Find utterances (a shipped one a trial, made 3 s long by what follows it) at random places between samples."""
    key = (zlib.crc32(str((snr_db, rate_hz)).encode()),)  # the same noise for every estimator
    rng = np.random.default_rng(np.random.SeedSequence(entropy=seed, spawn_key=key))
    names = shipped_names()
    errors: list[float] = []
    bounds: list[float] = []
    refused = 0
    for trial in range(trials):
        reference = _three_seconds(names, trial, rate_hz)
        noise_rms = float(np.sqrt(np.mean(np.square(reference)))) * 10 ** (-snr_db / 20)
        true = rng.uniform(0, 2 * REACH_S * rate_hz)
        whole, part = divmod(true, 1.0)
        recording = rng.normal(0.0, noise_rms, len(reference) + int(2 * REACH_S * rate_hz) + 8)
        placed = fractional_delay(reference.astype(np.float32), part).astype(np.float64)
        recording[int(whole) : int(whole) + len(placed)] += placed
        found = estimator(reference, recording, rate_hz)
        bounds.append(bound_samples(reference, noise_rms))
        if found is None:
            refused += 1
        else:
            errors.append(found - true)
    scale = float(np.sqrt(np.mean(np.square(bounds))))
    rms = float(np.sqrt(np.mean(np.square(errors)))) if errors else None
    outliers = sum(abs(error) > OUTLIER_SAMPLES for error in errors)
    return Location(name, snr_db, trials, refused, outliers, rms, scale)


def _three_seconds(names: tuple[str, ...], trial: int, rate_hz: int) -> Sound:
    """Three utterances end to end, cut after 3 s."""
    chosen = (names[(trial + step) % len(names)] for step in (0, 7, 16))
    sounds = [resampled(utterance_sound(name), name, rate_hz) for name in chosen]
    return np.concatenate(sounds).astype(np.float64)[: int(DURATION_S * rate_hz)]
