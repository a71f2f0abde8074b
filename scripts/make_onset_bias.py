"""Clips of speech in noise out of a seed in, what `analysis.onset` is off by in each class of noise out: its table.

For each edge and class of θ over the noise: the median error (`bias_ms`; most edges are found to the sample, and a mean
would move those off) and the least bound with which 96 % of the edges lie inside (`least_ms`). Run from the root of the
repository:

    python -m scripts.make_onset_bias [--calls 4000] [--seed 1] [--out analysis/data/onset_bias.json]
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from analysis.audibility import LevelTrack, audible_runs
from analysis.errors import NotMeasurable
from analysis.onset import uncorrected
from analysis.units import from_dbov
from benchmarks.recordings_path import coded, fractional_delay
from benchmarks.recordings_sounds import agent_sound, levelled, noise, soft_edges
from benchmarks.recordings_truth import first_edge, last_edge
from probe.utterances import reply_count, shipped_languages

CLASSES_DB = (0.0, 8.5, 9.5, 12.0, 16.0, 22.0, 30.0, 200.0)
RATES_HZ = (8000, 8000, 16000, 24000, 48000)
LEVELS_DBOV = (-40.0, -12.0)
SNRS_DB = (20.0, 60.0)
AROUND_S = 2.3
PERCENT = 96.0
LEAST_ROW = 20  # a class with fewer edges takes the next one's figures
LEAST_MS = 0.25

Rng = np.random.Generator
Row = tuple[str, float, float, float]


def clip(rng: Rng) -> tuple[NDArray[np.float32], NDArray[np.float32], int, int, int]:
    """A clip without and with noise, its rate, and where it was put (first sample, the one after its last)."""
    rate_hz = int(rng.choice(RATES_HZ))
    language = str(rng.choice(shipped_languages()))
    sound = agent_sound("reply", f"{language}/{int(rng.integers(reply_count(language))) + 1}", rate_hz)
    if rng.random() < 0.3:
        sound = soft_edges(sound, rate_hz, rng.uniform(20, 120), rng.uniform(60, 250))
    level_dbov, snr_db = rng.uniform(*LEVELS_DBOV), rng.uniform(*SNRS_DB)
    sound = levelled(fractional_delay(sound, float(rng.random())), rate_hz, level_dbov)
    around = np.zeros(int((AROUND_S + rng.random()) * rate_hz), np.float32)
    clean = np.concatenate([around, sound, around])
    added = noise(rng, len(clean), str(rng.choice(["white", "pink"]))) * np.float32(from_dbov(level_dbov - snr_db))
    noisy = clean + added
    if rate_hz == 8000 and rng.random() < 0.5:
        clean, noisy = (coded(x, rate_hz, "pcmu", 64000) for x in (clean, noisy))
    noisy = np.round(np.clip(noisy, -1, 1) * 32767).astype(np.float32) / np.float32(32767)
    return clean, noisy, rate_hz, len(around), len(around) + len(sound)


def edges(rng: Rng) -> list[Row]:
    """(edge, θ over the noise, error ms, bound ms) of one clip."""
    clean, noisy, rate_hz, start, stop = clip(rng)
    track = LevelTrack(noisy, rate_hz)
    runs = list(audible_runs(track, start=start - rate_hz // 5))
    near = 15 * rate_hz // 1000
    rows: list[Row] = []
    for is_end in (False, True):
        truth = (last_edge if is_end else first_edge)(clean, noisy, rate_hz, start - near, stop + near)
        if truth is None or not runs:
            continue
        rough = min((run.end if is_end else run.start for run in runs), key=lambda at: abs(at - truth.sample))
        try:
            place, bound_ms, margin_db = uncorrected(track, rough, is_end=is_end)
        except NotMeasurable:
            continue
        error_ms = (place - truth.sample) * 1000 / rate_hz
        rows.append(("end" if is_end else "start", margin_db, error_ms, bound_ms))
    return rows


def table(rows: list[Row]) -> list[dict[str, object]]:
    """The figures of each class, in order."""
    out: list[dict[str, object]] = []
    for edge in ("start", "end"):
        for low, high in itertools.pairwise(CLASSES_DB):
            chosen = [row[2:] for row in rows if row[0] == edge and low <= row[1] < high]
            errors = np.array([error for error, _ in chosen])
            missing = [math.sqrt(max(0.0, error**2 - bound**2)) for error, bound in chosen]
            enough = len(chosen) >= LEAST_ROW
            out.append(
                {
                    "edge": edge,
                    "theta_over_noise_db": [low, high],
                    "bias_ms": round(float(np.median(errors)), 3) if enough else None,
                    "least_ms": round(max(LEAST_MS, float(np.percentile(missing, PERCENT))), 3) if enough else None,
                    "p95_ms": round(float(np.percentile(np.abs(errors), 95)), 3) if enough else None,
                    "n": len(chosen),
                }
            )
    for row, following in reversed(list(itertools.pairwise(out))):
        if row["least_ms"] is None and following["edge"] == row["edge"]:
            row.update({key: following[key] for key in ("bias_ms", "least_ms", "p95_ms")})
    return out


def main() -> None:
    """Measure and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=4000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("analysis/data/onset_bias.json"))
    options = parser.parse_args()
    rng = np.random.default_rng(options.seed)
    rows = [row for _ in range(options.calls) for row in edges(rng)]
    document = {
        "made_by": f"scripts/make_onset_bias.py --calls {options.calls} --seed {options.seed}",
        "about": "errors of analysis.onset (measured minus true, ms) by how far theta stands over the noise (dB)",
        "rows": table(rows),
    }
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    for row in document["rows"]:
        print(row)


if __name__ == "__main__":
    main()
