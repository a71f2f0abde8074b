"""First and last audible samples in noise: planted edges, bounds that hold, and edges that must be refused."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

import analysis
from analysis.audibility import Audible, LevelTrack, audible_runs, first_audible, threshold_shifts_ms
from analysis.errors import NotMeasurable
from analysis.onset import find_end, find_start, known_onset
from analysis.references import make_reference
from analysis.units import from_dbov
from benchmarks.recordings_sounds import agent_sound, levelled
from benchmarks.recordings_truth import first_edge, last_edge
from probe.utterances import shipped_languages
from scripts.make_onset_bias import CLASSES_DB, edges, table

RATES_HZ = (8000, 11025, 16000, 44100, 48000)
Sound = NDArray[np.float32]


def noise(samples: int, level_dbov: float, seed: int = 0) -> Sound:
    x = np.random.default_rng(seed).standard_normal(samples) * from_dbov(level_dbov)
    return x.astype(np.float32)


def planted(rate_hz: int, level_dbov: float | None, seed: int = 0) -> tuple[Sound, int, int]:
    """Half a second of ±0.1 between 2.5 s of noise: its first and last sample."""
    start, length = 5 * rate_hz // 2, rate_hz // 2
    x = np.zeros(2 * start + length, np.float32)
    x[start : start + length] = np.random.default_rng(seed).choice([-0.1, 0.1], length)
    return x if level_dbov is None else x + noise(len(x), level_dbov, seed), start, start + length - 1


@pytest.mark.parametrize("level_dbov", [None, -80.0, -62.0])
@pytest.mark.parametrize("rate_hz", RATES_HZ)
def test_a_hard_cut_is_found_to_the_sample(rate_hz: int, level_dbov: float | None) -> None:
    x, first, last = planted(rate_hz, level_dbov)
    track = LevelTrack(x, rate_hz)
    (run,) = [run for run in audible_runs(track) if run.end - run.start > rate_hz // 4]
    start, end = find_start(track, run.start), find_end(track, run.end)
    # peaks of noise within 1 ms of a rise count as its own (CHAIN_MS)
    within = rate_hz // 1000 if level_dbov == -62.0 else 0
    assert abs(start.sample - first) <= within
    assert abs(end.sample - last) <= within
    assert start.evidence == "level"
    # 40 dB over the noise nothing is in doubt but where a sample lies
    assert start.uncertainty_ms < 1.0 or level_dbov == -62.0
    assert set(start.parts_ms) == {"detection", "sampling"}


def test_peaks_of_noise_do_not_begin_a_sound() -> None:
    """θ stands 10 dB over the noise: of the 240 samples of a window, some noise peaks cross it first."""
    rate_hz, misled = 48000, 0
    for seed in range(40):
        x, first, last = planted(rate_hz, -40.0, seed)
        track = LevelTrack(x, rate_hz)
        plain = first_audible(track, start=first - rate_hz // 10)
        assert plain is not None
        misled += plain.sample < first - rate_hz // 1000
        assert abs(find_start(track, plain.sample).sample - first) <= rate_hz // 1000
        assert abs(find_end(track, last).sample - last) <= rate_hz // 1000
    assert misled > 5  # so the plain rule would have been, and this test shows something


@pytest.mark.parametrize(("snr_db", "seed"), [(45.0, 1), (35.0, 2), (25.0, 3)])
def test_speech_in_noise_lies_within_its_stated_bounds(snr_db: float, seed: int) -> None:
    rng = np.random.default_rng(seed)
    inside, errors, bounds = [], [], []
    for i, language in enumerate(4 * list(shipped_languages())):
        rate_hz = (8000, 16000)[i % 2]
        sound = levelled(agent_sound("reply", f"{language}/{i // 10 % 2 + 1}", rate_hz), rate_hz, -22.0)
        silence = np.zeros(int((2.3 + rng.random()) * rate_hz), np.float32)
        clean = np.concatenate([silence, sound, silence])
        noisy = clean + noise(len(clean), -22.0 - snr_db, seed + i)
        track = LevelTrack(noisy, rate_hz)
        runs = list(audible_runs(track, start=2 * rate_hz))
        for is_end in (False, True):
            truth = (last_edge if is_end else first_edge)(
                clean, noisy, rate_hz, len(silence) - 100, len(clean) - len(silence) + 100
            )
            assert truth is not None
            rough = min((r.end if is_end else r.start for r in runs), key=lambda at: abs(at - truth.sample))
            try:
                found = (find_end if is_end else find_start)(track, rough)
            except NotMeasurable:
                continue
            errors.append(abs(found.sample - truth.sample) * 1000 / rate_hz)
            bounds.append(found.uncertainty_ms)
            inside.append(errors[-1] <= found.uncertainty_ms)
    assert len(inside) >= 70
    assert np.mean(inside) >= 0.93
    # never far off and silent about it
    assert not any(error > 20 and bound < 20 for error, bound in zip(errors, bounds, strict=True))
    if snr_db >= 35:
        assert np.percentile(errors[::2], 90) <= 2.0


def test_sound_that_never_leaves_the_noise_is_refused() -> None:
    """White noise that grows by 12 dB over two seconds crosses θ nowhere in particular."""
    rate_hz = 16000
    x = noise(6 * rate_hz, -45.0)
    ramp = np.ones(len(x), np.float32)
    ramp[3 * rate_hz : 5 * rate_hz] = 10 ** (np.linspace(0, 12, 2 * rate_hz) / 20)
    ramp[5 * rate_hz :] = 10 ** (12 / 20)
    track = LevelTrack(x * ramp, rate_hz)
    runs = list(audible_runs(track, start=2 * rate_hz))
    assert runs
    with pytest.raises(NotMeasurable) as refused:
        find_start(track, runs[0].start)
    assert refused.value.reason == "onset_in_noise"


def test_nothing_audible_is_no_edge() -> None:
    track = LevelTrack(np.zeros(16000, np.float32), 8000)
    with pytest.raises(NotMeasurable, match="floor"):
        find_start(track, 8000)
    with pytest.raises(NotMeasurable):
        find_end(track, 8000)


def test_moves_with_theta_are_those_of_the_rule() -> None:
    rate_hz = 16000
    x = np.zeros(5 * rate_hz, np.float32)
    # from −80 to −20 dBov in 60 ms: 10 dB are 10 ms
    rise = 960
    envelope = 10 ** (
        np.concatenate([np.linspace(-80, -20, rise), np.full(8000, -20.0), np.linspace(-20, -80, rise)]) / 20
    )
    x[40000 : 40000 + len(envelope)] = envelope * np.random.default_rng(0).choice([-1, 1], len(envelope))
    track = LevelTrack(x, rate_hz)
    (run,) = audible_runs(track)
    start, end = find_start(track, run.start), find_end(track, run.end)
    rule = threshold_shifts_ms(track, Audible(start.sample, start.threshold_dbov, start.floor_dbov))
    assert start.shift_ms == pytest.approx(rule)
    assert start.shift_ms["+10"] == pytest.approx(10.0, abs=1.0)  # a hop
    assert end.shift_ms["+10"] == pytest.approx(-10.0, abs=1.0)
    assert end.shift_ms["-10"] == pytest.approx(10.0, abs=1.0)


def test_an_edge_stays_on_its_side_of_another_sound() -> None:
    rate_hz = 8000
    x, first, _ = planted(rate_hz, None)
    x[first - 800 : first - 320] = 0.1  # 60 ms of something, 40 ms before
    track = LevelTrack(x, rate_hz)
    assert find_start(track, first).sample == first - 800
    assert find_start(track, first, after=first - 300).sample == first


def test_a_known_reply_is_timed_by_its_own_sound() -> None:
    rate_hz, at = 16000, 40123
    reply = agent_sound("reply", "en/1", 48000)
    reference = make_reference(
        "reply", np.concatenate([np.zeros(4800, np.float32), reply, np.zeros(4800, np.float32)]), 48000
    )
    placed = levelled(agent_sound("reply", "en/1", rate_hz), rate_hz, -24.0)
    clean = np.zeros(6 * rate_hz, np.float32)
    clean[at : at + len(placed)] = placed
    noisy = clean + noise(len(clean), -54.0)
    truth = first_edge(clean, noisy, rate_hz, at - 100, at + len(placed))
    assert truth is not None
    found = known_onset(reference, noisy, rate_hz, at_s=at / rate_hz - 0.1)
    assert found.evidence == "reference"
    assert found.sample == pytest.approx(truth.sample, abs=0.002 * rate_hz)  # the 2 ms
    with pytest.raises(NotMeasurable):
        known_onset(reference, noise(6 * rate_hz, -40.0), rate_hz, at_s=at / rate_hz - 0.1)


def test_the_committed_table_covers_every_class_and_is_small() -> None:
    path = Path(analysis.__file__).parent / "data" / "onset_bias.json"
    rows = json.loads(path.read_text(encoding="utf-8"))["rows"]
    for edge in ("start", "end"):
        classes = [row["theta_over_noise_db"] for row in rows if row["edge"] == edge]
        assert classes == [[low, high] for low, high in zip(CLASSES_DB, CLASSES_DB[1:], strict=False)]  # noqa: RUF007
    assert all(abs(row["bias_ms"]) < 1.0 and 0 < row["least_ms"] < 2.0 for row in rows)


def test_the_script_that_makes_the_table_measures_what_it_says() -> None:
    rng = np.random.default_rng(5)
    rows = [row for _ in range(12) for row in edges(rng)]
    assert len(rows) >= 20
    assert {row[0] for row in rows} == {"start", "end"}
    assert np.median([abs(row[2]) for row in rows]) < 1.0
    biased = [("start", 20.0, 3.0, 1.0)] * 30
    (row,) = [row for row in table(biased) if row["n"]]
    assert row["bias_ms"] == 3.0
    assert row["least_ms"] == pytest.approx(8**0.5, abs=0.001)  # 1 ms was stated, 3 ms it was off
