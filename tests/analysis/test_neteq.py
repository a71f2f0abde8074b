"""The `chrome` policy on made-up arrivals, against what the algorithm must do with them; and its parts.

The comparison with a real browser is benchmarks/chrome_reference_files.py, which needs captures of one.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tracemalloc
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from analysis.neteq import PHASES_NS, compile_engine, is_compiled, run_neteq
from analysis.neteq.buffer import advance_output, append, cut, place, repeat
from analysis.neteq.counters import book_concealed
from analysis.neteq.delay import max_delay_ms, observe, update_target
from analysis.neteq.engine import start
from analysis.neteq.signal import pitch
from analysis.neteq.state import STATE, Record
from analysis.playout import Playout, play
from analysis.trace import PacketTrace

ROOT = Path(__file__).resolve().parents[2]
MS = 1_000_000
RATE_HZ = 48_000
FRAME = 960
TICK = 480


def vowel(count: int, rate_hz: int = RATE_HZ, f0_hz: float = 125.0) -> NDArray[np.float32]:
    """A steady voiced sound at −20 dBov or so: it can be cut and repeated at any of its periods."""
    t = np.arange(count) / rate_hz
    parts = sum(np.cos(2 * np.pi * f0_hz * k * t) / k for k in range(1, 6))
    return np.asarray(0.06 * parts, dtype=np.float32)


def make_trace(
    arrival_ms: NDArray[np.floating],
    *,
    lost: tuple[int, ...] = (),
    pcm: NDArray[np.float32] | None = None,
    position: NDArray[np.int64] | None = None,
    payload_bytes: NDArray[np.int64] | None = None,
    rate_hz: int = RATE_HZ,
) -> PacketTrace:
    """20 ms packets, one for each arrival, without the lost ones."""
    count, frame = len(arrival_ms), rate_hz // 50
    kept = np.setdiff1d(np.arange(count, dtype=np.int64), np.array(lost, dtype=np.int64))
    sound = vowel(count * frame, rate_hz) if pcm is None else pcm
    return PacketTrace(
        rate_hz,
        kept,
        kept * frame if position is None else position[kept],
        np.full(len(kept), frame, dtype=np.int64),
        np.rint(arrival_ms[kept] * MS).astype(np.int64),
        np.full(len(kept), 80, dtype=np.int64) if payload_bytes is None else payload_bytes[kept],
        np.ascontiguousarray(sound.reshape(count, frame)[kept].reshape(-1)),
    )


def steady(count: int) -> NDArray[np.float64]:
    return np.arange(count) * 20.0


def check(result: Playout, trace: PacketTrace) -> None:
    """What holds of any run: every emitted sample is played, removed or overlaid, and the counters agree."""
    inbound = result.inbound
    assert inbound["jitterBufferEmittedCount"] + inbound["packetsDiscarded"] * trace.samples[0] == trace.samples.sum()
    played = int(result.piece_samples.sum())
    removed = inbound["removedSamplesForAcceleration"]
    # a merge may take the place of the last 0.6 ms (the overlap) that was still to be played before a concealment
    assert 0 <= inbound["jitterBufferEmittedCount"] - removed - played <= 30 * inbound["concealmentEvents"]
    out = inbound["jitterBufferEmittedCount"] - removed + inbound["insertedSamplesForDeceleration"]
    # a merge overlays decoded sound on concealment, which is booked against later concealment only; 25 ms each at most
    slack = 1200 * inbound["concealmentEvents"] + 2 * TICK
    assert abs(out + inbound["concealedSamples"] - inbound["totalSamplesReceived"]) <= slack
    assert inbound["totalSamplesReceived"] % (trace.rate_hz // 100) == 0
    order = np.argsort(result.piece_ns)
    ends = result.piece_ns[order] + result.piece_samples[order] * 1_000_000_000 // trace.rate_hz
    assert np.all(result.piece_ns[order][1:] >= ends[:-1] - 1)  # never two sounds at once
    assert sum(p.concealed_ms for p in result.series) * trace.rate_hz / 1000 == pytest.approx(
        inbound["concealedSamples"]
    )
    assert sum(p.inserted_ms for p in result.series) * trace.rate_hz / 1000 == pytest.approx(
        inbound["insertedSamplesForDeceleration"]
    )
    assert sum(p.removed_ms for p in result.series) * trace.rate_hz / 1000 == pytest.approx(removed)


def delay_ms(result: Playout, trace: PacketTrace, packet: int) -> float:
    """From a packet's arrival to its first sample."""
    at = result.play_ns(int(trace.position[packet]))
    assert at is not None
    return (at - int(trace.arrival_ns[packet])) / MS


def test_clean_arrivals_settle_on_a_short_delay() -> None:
    trace = make_trace(steady(1000))
    result = play(trace, "chrome")
    check(result, trace)
    assert result.inbound["concealedSamples"] == 0
    assert result.inbound["packetsDiscarded"] == 0
    # target 20 ms and a stretch of up to 15 ms above it, in waits of whole ticks
    assert 20 <= result.series[-2].jitter_buffer_delay_ms <= 40  # type: ignore[operator]
    assert 20 <= delay_ms(result, trace, 900) <= 45
    assert result.series[-1].target_delay_ms == 20
    assert result.series[0].target_delay_ms == 80  # nothing is known in the first half second


def test_play_times_keep_the_distance_of_rtp_between_stretches() -> None:
    trace = make_trace(steady(500))
    result = play(trace, "chrome")
    last = int(result.piece_position[-1])
    assert result.play_ns(last + RATE_HZ) - result.play_ns(last) == 1_000_000_000  # type: ignore[operator]
    # each stretch is one period of 8 ms: from 20 ms up towards the 80 ms aimed at first, and down again
    steps = np.diff(result.piece_ns - result.piece_position * 1_000_000_000 // RATE_HZ) / (8 * MS)
    assert np.allclose(np.abs(steps), 1.0, atol=0.03)  # lags are placed to 1/12 of 1/4 ms
    assert 8 <= len(steps) <= 20


@pytest.mark.parametrize("rate_hz", [8000, 16_000])
def test_other_codecs(rate_hz: int) -> None:
    trace = make_trace(steady(500), rate_hz=rate_hz)
    result = play(trace, "chrome")
    check(result, trace)
    assert result.inbound["concealedSamples"] == 0
    assert 20 <= delay_ms(result, trace, 450) <= 45


def test_a_step_makes_the_delay_grow_and_come_back() -> None:
    count = 2000
    arrival = steady(count) + np.where((np.arange(count) >= 500) & (np.arange(count) < 1000), 120.0, 0.0)
    trace = make_trace(np.maximum.accumulate(arrival))
    result = play(trace, "chrome")
    check(result, trace)
    before = delay_ms(result, trace, 480)
    # just after the step nothing is held back; when the packets come fast again, all of it is
    assert delay_ms(result, trace, 1002) > before + 80
    assert result.inbound["concealedSamples"] >= 80 * 48
    assert max(p.target_delay_ms or 0 for p in result.series) >= 120
    assert result.inbound["removedSamplesForAcceleration"] > 60 * 48
    assert delay_ms(result, trace, 1990) < before + 60


def test_a_lost_packet_is_concealed_in_its_place() -> None:
    trace = make_trace(steady(500), lost=(300,))
    result = play(trace, "chrome")
    check(result, trace)
    assert result.inbound["concealmentEvents"] == 1
    assert result.inbound["silentConcealedSamples"] == 0
    # 20 ms are missing; concealment comes in whole pitch periods (8 ms here) and the merge aligns to one
    assert 10 * 48 <= result.inbound["concealedSamples"] <= 36 * 48
    assert not result.played_mask(300 * FRAME, FRAME).any()
    assert result.played_mask(301 * FRAME, FRAME).all()
    gap = result.play_ns(301 * FRAME) - result.play_ns(299 * FRAME)  # type: ignore[operator]
    assert abs(gap / MS - 40) <= 16


def test_reordered_packets_are_played_where_there_is_time() -> None:
    arrival = steady(1000)
    arrival[400:410:2] += 25.0  # each comes after its successor
    trace = make_trace(arrival)
    result = play(trace, "chrome")
    check(result, trace)
    late = make_trace(np.where(np.arange(1000) == 400, 300.0, 0.0) + steady(1000))
    result = play(late, "chrome")
    check(result, late)
    assert result.inbound["packetsDiscarded"] == 1
    assert result.play_ns(400 * FRAME) is None


def test_a_pause_without_packets_fades_to_silence_and_comes_back() -> None:
    count, pause_ms = 400, 5000.0
    later = np.arange(count) >= 200
    position = np.arange(count, dtype=np.int64) * FRAME + np.where(later, int(pause_ms) * 48, 0)
    trace = make_trace(steady(count) + later * pause_ms, position=position)
    result = play(trace, "chrome")
    check(result, trace)
    silent = result.inbound["silentConcealedSamples"]
    assert 4000 * 48 < silent <= result.inbound["concealedSamples"] < 5200 * 48
    assert result.inbound["concealmentEvents"] == 1
    assert 0 <= delay_ms(result, trace, 200) <= 45
    assert result.play_ns(int(position[200]) - 1) is None


def test_comfort_noise_of_opus_is_no_concealment() -> None:
    """Speech, then a DTX packet (2 bytes) every 400 ms as libopus sends it, then speech."""
    speech, quiet = 100, 10
    position = np.concatenate(
        [np.arange(speech), speech + 20 * np.arange(quiet), speech + 20 * quiet + np.arange(speech)]
    )
    sizes = np.full(2 * speech + quiet, 80, dtype=np.int64)
    sizes[speech : speech + quiet] = 2
    pcm = vowel(len(position) * FRAME)
    pcm[speech * FRAME : (speech + quiet) * FRAME] = 0.0
    trace = make_trace(position * 20.0, position=position.astype(np.int64) * FRAME, payload_bytes=sizes, pcm=pcm)
    result = play(trace, "chrome")
    assert result.inbound["concealedSamples"] == 0
    assert result.inbound["jitterBufferEmittedCount"] == len(position) * FRAME
    assert 0 <= delay_ms(result, trace, speech + quiet) <= 45
    as_loss = make_trace(position * 20.0, position=position.astype(np.int64) * FRAME, pcm=pcm)
    assert play(as_loss, "chrome").inbound["concealedSamples"] > 3000 * 48


SPEECH, PAUSE, CN_EVERY = 100, 150, 10  # packets of 20 ms: 2 s, 3 s, and comfort noise every 200 ms


def with_comfort_noise(
    noise_position: NDArray[np.int64], noise_arrival_ms: NDArray[np.floating], *, dbov: int = 60, level: float = 1.0
) -> PacketTrace:
    """G.711 at 8 kHz: 2 s of speech, 3 s without, 2 s of speech; comfort noise where it is said (in packets, ms)."""
    position = np.concatenate([np.arange(SPEECH), SPEECH + PAUSE + np.arange(SPEECH)])
    pcm = np.float32(level) * vowel(len(position) * 160, 8000)
    trace = make_trace(position * 20.0, position=position * 160, pcm=pcm, rate_hz=8000)
    columns = (noise_position * 160, np.rint(noise_arrival_ms * MS), np.full(len(noise_position), dbov))
    return replace(trace, noise=np.column_stack(columns).astype(np.int64))


def test_packets_of_comfort_noise_are_played_and_no_concealment() -> None:
    at = SPEECH + np.arange(0, PAUSE, CN_EVERY)
    trace = with_comfort_noise(at, at * 20.0)
    result = play(trace, "chrome")
    assert result.inbound["concealedSamples"] == result.inbound["concealmentEvents"] == 0
    assert result.inbound["packetsDiscarded"] == 0
    # a packet of noise counts as many samples as one of speech (as Chromium 156 counts it)
    assert result.inbound["jitterBufferEmittedCount"] == (2 * SPEECH + len(at)) * 160
    # all that was sent, but for up to 40 ms at either end: the delay, and the ticks after the last packet
    assert result.inbound["totalSamplesReceived"] / 8 == pytest.approx(20 * (2 * SPEECH + PAUSE), abs=80)
    assert 0 <= delay_ms(result, trace, SPEECH) <= 45
    without = play(replace(trace, noise=trace.noise[:0]), "chrome")
    assert without.inbound["concealedSamples"] / 8 == pytest.approx(20 * PAUSE, abs=80)


def test_comfort_noise_goes_on_until_something_arrives_and_does_not_move_the_target() -> None:
    at = np.array([SPEECH])
    once = play(with_comfort_noise(at, at * 20.0), "chrome")
    assert once.inbound["concealedSamples"] == 0
    # a packet of noise that comes 150 ms late would raise the target, if it counted
    late = play(with_comfort_noise(at, at * 20.0 + 150), "chrome")
    assert {p.target_delay_ms for p in late.series} == {p.target_delay_ms for p in once.series}
    # from the end of the speech until it arrives, less the delay of the speech
    assert 80 <= late.inbound["concealedSamples"] / 8 <= 150
    assert late.inbound["concealmentEvents"] == 1


def test_comfort_noise_whose_time_has_passed_is_dropped() -> None:
    at = SPEECH + np.array([0, 10, 10, 20])
    arrival = SPEECH * 20.0 + np.array([0, 200, 320, 400])
    result = play(with_comfort_noise(at, arrival), "chrome")
    assert result.inbound["packetsDiscarded"] == 1
    assert result.inbound["concealedSamples"] == 0


def test_comfort_noise_far_ahead_is_not_waited_for() -> None:
    """The sender's timestamps leap 1 s at its second packet of noise: what follows must not wait that second."""
    at = SPEECH + np.array([0, 60])
    trace = with_comfort_noise(at, SPEECH * 20.0 + np.array([0, 200]))
    early = trace.arrival_ns.copy()
    early[SPEECH:] -= 1000 * MS
    result = play(replace(trace, arrival_ns=early), "chrome")
    # the target of 20 ms, for which the noise is held, and the wait of clean arrivals
    assert delay_ms(result, replace(trace, arrival_ns=early), SPEECH) <= 65
    assert result.inbound["concealedSamples"] == 0


@pytest.mark.parametrize("dbov", [30, 50])
def test_comfort_noise_has_the_level_that_its_packet_says(dbov: int) -> None:
    at = SPEECH + np.arange(0, PAUSE, CN_EVERY)
    trace = with_comfort_noise(at, at * 20.0, dbov=dbov, level=0.0)
    energy = play(trace, "chrome").inbound["totalAudioEnergy"]
    # the meter squares the peak of 110 ms: of 880 Gaussian samples that is 2.7 to 3.8 standard deviations
    rms = 10 ** (-dbov / 20)
    assert 2.7**2 <= energy / (rms**2 * 20 * PAUSE / 1000) <= 3.8**2


def test_a_day_of_comfort_noise_costs_nothing() -> None:
    at = np.array([SPEECH])
    trace = with_comfort_noise(at, at * 20.0, dbov=30, level=0.0)
    day_ms = 86_400_000
    position, arrival_ns = trace.position.copy(), trace.arrival_ns.copy()
    position[SPEECH:] += 8 * day_ms
    arrival_ns[SPEECH:] += day_ms * MS
    result = play(replace(trace, position=position, arrival_ns=arrival_ns), "chrome")
    assert result.inbound["concealedSamples"] == 0
    assert result.inbound["totalSamplesReceived"] / 8 == pytest.approx(day_ms + 7000, abs=80)
    assert len(result.series) < 100
    assert 2.7**2 <= result.inbound["totalAudioEnergy"] / (10**-3 * day_ms / 1000) <= 3.8**2


def test_speech_without_a_period_is_not_stretched_but_silence_is() -> None:
    noise = np.random.default_rng(2).standard_normal(300 * FRAME).astype(np.float32) * np.float32(0.1)
    loud = play(make_trace(steady(300), pcm=noise), "chrome")
    quiet = play(make_trace(steady(300), pcm=noise * np.float32(1e-3)), "chrome")
    assert loud.inbound["insertedSamplesForDeceleration"] == 0
    assert quiet.inbound["insertedSamplesForDeceleration"] > 0


def test_a_flood_empties_the_buffer() -> None:
    arrival = np.concatenate([steady(50), np.full(250, 1000.0)])
    trace = make_trace(arrival)
    result = play(trace, "chrome")
    check(result, trace)
    assert result.inbound["packetsDiscarded"] >= 200


def test_it_is_deterministic_and_leaves_the_trace_alone() -> None:
    arrival = steady(400) + np.random.default_rng(4).uniform(0, 60, 400)
    trace = make_trace(arrival, lost=(50, 51, 200))
    pcm = trace.pcm.copy()
    first, second = play(trace, "chrome"), play(trace, "chrome")
    assert first.inbound == second.inbound
    assert first.series == second.series
    assert np.array_equal(first.piece_ns, second.piece_ns)
    assert np.array_equal(trace.pcm, pcm)


def test_one_packet_plays_on_the_first_tick() -> None:
    trace = make_trace(np.array([100.0]))
    result = play(trace, "chrome")
    assert result.inbound["jitterBufferEmittedCount"] == FRAME
    assert result.inbound["concealedSamples"] == 0
    # half a tick after it came, behind 0.625 ms of overlap
    assert delay_ms(result, trace, 0) == pytest.approx(5.625)
    assert result.play_ns(FRAME - 1) is not None


def test_the_range_spans_the_grids_that_may_have_been() -> None:
    trace = make_trace(steady(500))
    result = play(trace, "chrome")
    early, late = result.play_range_ns(400 * FRAME)  # type: ignore[misc]
    assert early <= result.play_ns(400 * FRAME) <= late  # type: ignore[operator]
    # grids 2 ms apart, five of them; a stretch more or less moves a run by up to 15 ms
    assert 8 * MS <= late - early <= 25 * MS
    times = []
    for phase_ns in PHASES_NS:
        run = run_neteq(trace, phase_ns)
        assert run.origin_ns == phase_ns
        times.append(run.origin_ns)
    assert max(times) - min(times) == 8 * MS
    fixed = play(trace, "fixed:100").play_range_ns(0)
    assert fixed == (100 * MS, 100 * MS)
    assert result.play_range_ns(10**9) is None


class Counting:
    """Sound that is made as it is asked for."""

    def __init__(self, trace: PacketTrace) -> None:
        self.trace = trace
        self.made = 0

    def packets(self) -> Iterator[NDArray[np.float32]]:
        for sound in self.trace.sounds():
            self.made += 1
            yield sound.copy()


@pytest.mark.parametrize("late_packet", [None, 30])
def test_sound_is_decoded_as_it_is_needed_and_not_kept(late_packet: int | None) -> None:
    count = 3000
    arrival = steady(count) + np.random.default_rng(1).uniform(0, 60, count)
    if late_packet is not None:
        arrival[late_packet] += 50_000.0
    trace = make_trace(arrival, lost=(100, 2000, 2001))
    play(trace, "chrome")  # loads the engine
    sound = Counting(trace)
    tracemalloc.start()
    try:
        lazy = play(replace(trace, pcm=sound), "chrome")
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert sound.made == len(trace.sequence)
    # a window of 5 s, thrice while the next is put together, and five sync buffers of 2 s; the minute is 11.5 MB
    assert peak < 7e6
    whole = play(trace, "chrome")
    assert lazy.inbound == whole.inbound
    assert lazy.series == whole.series
    assert np.array_equal(lazy.piece_ns, whole.piece_ns)


def test_sound_that_is_not_as_long_as_its_packets_is_refused() -> None:
    trace = make_trace(steady(10))
    with pytest.raises(ValueError, match="not as long"):
        play(replace(trace, samples=trace.samples // 2, pcm=Counting(trace)), "chrome")


def run_python(code: str, **environment: str) -> str:
    command = [sys.executable, "-c", code]
    done = subprocess.run(
        command, check=True, capture_output=True, text=True, timeout=120, cwd=ROOT, env=os.environ | environment
    )
    return done.stdout.strip()


def test_nothing_waits_for_numba_before_something_is_played() -> None:
    modules = "analysis.derive, analysis.inbound, analysis.neteq, analysis.playout, probe.cli"
    assert run_python(f"import sys, {modules}; print('numba' in sys.modules)") == "False"


def test_the_compiled_engine_computes_what_its_python_says(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    arrival = steady(120) + rng.uniform(0, 80, 120)
    noisy = vowel(120 * FRAME) + np.float32(0.003) * rng.standard_normal(120 * FRAME).astype(np.float32)
    trace = make_trace(arrival, lost=(50, 51, 80), pcm=np.rint(noisy * 32768).astype(np.float32) / np.float32(32768))
    trace = replace(trace, noise=np.array([(50 * FRAME, 1010 * MS, 40), (120 * FRAME, 2450 * MS, 50)]))
    fields = {name: getattr(trace, name) for name in PacketTrace.__slots__}
    np.savez(tmp_path / "trace.npz", **fields)
    code = f"""
import numpy as np
from analysis.neteq import run_neteq
from analysis.trace import PacketTrace
fields = dict(np.load({str(tmp_path / "trace.npz")!r}))
run = run_neteq(PacketTrace(**fields | {{"rate_hz": int(fields["rate_hz"])}}), 5_000_000)
print(run.pieces.tolist(), run.counters)
"""
    compiled = run_neteq(trace, 5 * MS)
    assert compiled.counters.concealed > 0
    assert compiled.counters.inserted > 0
    assert run_python(code, NUMBA_DISABLE_JIT="1") == f"{compiled.pieces.tolist()} {compiled.counters}"


@settings(deadline=None, max_examples=150)
@given(
    rate_hz=st.sampled_from([8000, 16_000, 32_000, 48_000]),
    packets=st.lists(
        st.tuples(
            st.sampled_from([1, 7, 120, 480, 960, 5760, 70_000]),
            st.integers(-(1 << 31), 1 << 31) | st.integers(-2000, 2000) | st.just(0),
            st.integers(0, 10**13) | st.integers(0, 50 * MS),
            st.booleans(),
        ),
        min_size=1,
        max_size=60,
    ),
    noise=st.lists(
        st.tuples(st.integers(-(1 << 33), 1 << 33) | st.integers(-2000, 60_000), st.integers(0, 2 * 10**12)),
        max_size=20,
    ),
)
def test_whatever_arrives_is_played_or_counted(
    rate_hz: int, packets: list[tuple[int, int, int, bool]], noise: list[tuple[int, int]]
) -> None:
    samples = np.array([p[0] for p in packets], dtype=np.int64)
    position = np.cumsum(samples) - samples + np.cumsum([p[1] for p in packets])
    arrival = np.arange(len(packets)) * 20 * MS + np.array([p[2] for p in packets], dtype=np.int64)
    quiet = np.where([p[3] for p in packets], 80, 2).astype(np.int64)
    pcm = np.resize(vowel(20 * FRAME), int(samples.sum()))
    rows = np.array([(at, ns, 60) for at, ns in noise], dtype=np.int64).reshape(-1, 3)
    trace = PacketTrace(rate_hz, np.arange(len(packets)), position, samples, arrival, quiet, pcm, rows)
    result = play(trace, "chrome")
    inbound = result.inbound
    longest = max(int(samples.max()), 3 * rate_hz // 100)  # a packet of noise counts as the one of sound before it
    assert inbound["jitterBufferEmittedCount"] <= samples.sum() + longest * len(noise)
    assert 0 <= inbound["packetsDiscarded"] < len(packets) + len(noise)
    assert 0 <= inbound["silentConcealedSamples"] <= inbound["concealedSamples"] <= inbound["totalSamplesReceived"]
    assert inbound["totalProcessingDelay"] >= 0
    assert len(result.series) < 60 * 60  # however long the pauses are


def jitter_buffer(rate_hz: int = RATE_HZ) -> Record:
    state = np.zeros(1, STATE)
    start(state, rate_hz, 0)
    return state[0]


def test_the_quantile_follows_the_largest_delays_of_half_seconds() -> None:
    s = jitter_buffer()
    for k in range(1500):  # 30 s; a packet 50 ms late now and then
        update_target(s, 50 if k % 20 == 0 else 0, False, 20 * k)
    assert s.target_ms == 60  # every half second holds a packet of the bucket 40 to 60 ms
    for k in range(1500, 1500 + 2500):
        update_target(s, 0, False, 20 * k)
    assert s.target_ms == 60  # what came 98 half seconds ago still weighs more than 5 %
    for k in range(4000, 4000 + 3000):
        update_target(s, 0, False, 20 * k)
    assert s.target_ms == 20


def test_reordering_is_waited_for_where_it_pays() -> None:
    rare, often = jitter_buffer(), jitter_buffer()
    for k in range(2000):
        update_target(rare, 70 if k % 400 == 399 else 0, k % 400 == 399, 20 * k)
        update_target(often, 70 if k % 10 == 9 else 0, k % 10 == 9, 20 * k)
    assert rare.target_ms == 20  # 0.25 % of losses cost 5 ms, waiting for them 60 ms
    assert often.target_ms == 80


def test_the_target_is_bounded_by_the_buffer() -> None:
    s = jitter_buffer()
    s.packet_ms = 5
    for k in range(500):
        update_target(s, 1900, False, 20 * k)
    assert s.unlimited_ms == 1920
    assert s.target_ms == 750  # three quarters of 200 packets of 5 ms


def test_the_history_forgets_after_two_seconds_of_media() -> None:
    s, queues = jitter_buffer(), np.zeros((2, 3, 2), dtype=np.int64)
    assert observe(s, queues, 0, 0) == -1  # alone
    assert observe(s, queues, FRAME, 30) == 10
    assert max_delay_ms(s, queues) == 10
    assert observe(s, queues, FRAME // 2, 60) == 50  # reordered: measured, but no reference
    assert max_delay_ms(s, queues) == 10
    assert observe(s, queues, 3 * RATE_HZ, 4000) == -1  # alone again
    assert max_delay_ms(s, queues) == 0
    assert observe(s, queues, 0, 4000) == -1  # too old


@pytest.mark.parametrize("f0_hz", [80.0, 125.0, 200.0, 390.0])
@pytest.mark.parametrize("rate_hz", [8000, 16_000, 48_000])
def test_the_pitch_search_finds_the_period(rate_hz: int, f0_hz: float) -> None:
    block = vowel(240 * (rate_hz // 8000), rate_hz, f0_hz) * np.float32(32768)
    period, correlation, active = pitch(block, rate_hz // 8000, -1.0)
    periods = period * f0_hz / rate_hz
    # lags are placed to 1/8 ms / m by a parabola; 0.1 of a period keeps the correlation above 0.9 for these harmonics
    assert abs(periods - round(periods)) < 0.1
    assert periods > 0.5
    assert active
    assert correlation > 0.9


def test_cutting_and_repeating_a_period_moves_what_follows() -> None:
    s, audio, pieces = jitter_buffer(), np.zeros(RATE_HZ, dtype=np.float32), np.zeros((8, 3), dtype=np.int64)
    sound = vowel(2 * FRAME) * np.float32(32768)
    at = append(s, audio, len(sound))
    audio[at : at + len(sound)] = sound
    place(s, pieces, 5000, len(sound))
    cut(s, audio, pieces, FRAME, 384)  # 125 Hz
    assert s.future == 30 + 2 * FRAME - 384
    expected = [[30, 5000, FRAME - 192], [30 + FRAME - 192, 5000 + FRAME + 192, FRAME - 192]]
    assert pieces[: s.piece_count].tolist() == expected
    # a cut of one period of a periodic sound leaves the sound as it was (float32 of 16-bit scale)
    assert np.allclose(audio[s.filled - 2 * FRAME + 384 : s.filled], sound[: 2 * FRAME - 384], atol=1.0)
    repeat(s, audio, pieces, FRAME - 384, 384)
    assert s.future == 30 + 2 * FRAME
    assert np.allclose(audio[s.filled - 2 * FRAME : s.filled], sound, atol=1.0)
    used = pieces[: s.piece_count]
    assert used[:, 2].sum() == 2 * FRAME - 384
    gaps = (used[1:, 0] - used[:-1, 0] - used[:-1, 2]).tolist()
    assert sorted(gaps) == [0, 384]


def test_a_full_sync_buffer_keeps_what_is_to_come() -> None:
    s, audio, pieces = jitter_buffer(8000), np.zeros(1000, dtype=np.float32), np.zeros((2, 3), dtype=np.int64)
    for k in range(400):
        at = append(s, audio, 80)
        audio[at : at + 80] = k
        place(s, pieces, 80 * k, 80)
        advance_output(s)
        assert s.future == 5
        assert audio[s.filled - 5 : s.filled].tolist() == [k] * 5
        if k > 5:
            assert audio[s.filled - 485] == k - 6  # 60 ms of what was played are kept
    assert pieces[: s.piece_count].tolist() == [[5, 0, 400 * 80]]


def test_nothing_counts_before_sound_was_played_and_overlays_are_taken_back() -> None:
    s = jitter_buffer()
    book_concealed(s, 480, False, True)
    assert (s.concealed, s.events) == (0, 0)
    s.played = True
    book_concealed(s, -100, False, False)
    book_concealed(s, 480, False, True)
    assert (s.concealed, s.silent, s.events) == (380, 0, 1)
    book_concealed(s, 480, True, False)
    assert (s.concealed, s.silent) == (860, 480)


def test_compiling_keeps_the_engine_on_this_machine() -> None:
    compile_engine()
    assert is_compiled()
