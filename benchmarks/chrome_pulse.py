"""What Chromium plays, recorded through a PulseAudio null sink: the delay between jitter buffer and sound card.

A PulseAudio server of its own (no sound card, no session) takes Chromium's output; `parec` reads the sink's monitor.
Sample n of the recording is given the time a + n / rate, where a is the lower envelope of the times at which so many
samples had been read: no later than that were they there. Each talkspurt's onset is found in the recording by its
correlation with the decoded packets. Recorded onset − arrival of its packet is the delay from mouth to ear without a
sound card; minus the model's playout time it is D_out, the output delay. The model runs on the tick grid that fits
the browser's polls best, so the unknown grid is not in D_out.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

import numpy as np
from numpy.typing import NDArray

from analysis.audibility import LevelTrack, audible_runs
from analysis.errors import NotMeasurable, UsageError
from analysis.neteq import NetEqRun, run_neteq
from benchmarks.chrome_browser import Call, Chromium, play_calls, write_pair
from benchmarks.chrome_compare import Stream, model_series, poll_windows, read_pair, window_means
from benchmarks.chrome_conditions import CONDITIONS, outgoing

__all__ = ["Onset", "Recording", "measure", "null_sink", "onset_delays"]

PULSE_CONDITIONS = ("clean", "agent_gaps", "uniform40", "wifi")
RATE_HZ = 48_000
READ_BYTES = 4800
START_TIMEOUT_S = 10.0
TEMPLATE_MS = 150  # of each talkspurt, from its onset on
SEARCH_MS = (-20, 200)  # around the model's playout time
LEAST_CORRELATION = 0.8
MOST_OWN_MS = 12.0  # a model further from the browser's polls says nothing of the output (the machine was busy)
NS_PER_S = 1_000_000_000

Float = NDArray[np.float64]


@dataclass(slots=True)
class Recording:
    """What a sink played: samples as they were read, and (monotonic ns, samples read until then) of each read."""

    chunks: list[bytes] = field(default_factory=list)
    reads: list[tuple[int, int]] = field(default_factory=list)

    @property
    def pcm(self) -> NDArray[np.float32]:
        """Full scale 1.0."""
        return np.frombuffer(b"".join(self.chunks), dtype=np.int16).astype(np.float32) / np.float32(32768)

    def clock(self) -> tuple[float, float, float]:
        """Time of sample 0 (monotonic s), seconds a sample, and how far reads typically lie above that line (s).

        The slope is that of a line through the earliest read of each tenth of the recording.
        """
        times, counts = (np.array(column, dtype=np.float64) for column in zip(*self.reads, strict=True))
        times /= NS_PER_S
        late = times - counts / RATE_HZ
        parts = np.array_split(np.arange(len(times)), 10)
        earliest = np.array([part[np.argmin(late[part])] for part in parts[1:]])
        slope = float(np.polyfit(counts[earliest], late[earliest], 1)[0])
        rest = late - slope * counts
        settled = rest[len(rest) // 10 :]
        return float(settled.min()), 1 / RATE_HZ + slope, float(np.median(settled - settled.min()))


def _program(name: str, package: str) -> str:
    path = shutil.which(name)
    if path is None:
        raise UsageError(f"{name} is absent", next_step=f"install the Debian package {package}")
    return path


@contextlib.contextmanager
def null_sink() -> Iterator[dict[str, str]]:
    """A PulseAudio server with one null sink, `probe`; the way to it. Ended when the block is left."""
    server, control = _program("pulseaudio", "pulseaudio"), _program("pactl", "pulseaudio-utils")
    with tempfile.TemporaryDirectory(prefix="pulse-") as home:
        socket = f"{home}/native"
        environment = {
            "HOME": home,
            "XDG_RUNTIME_DIR": home,
            "PULSE_RUNTIME_PATH": f"{home}/pulse",
            "PULSE_SERVER": f"unix:{socket}",
        }
        process = subprocess.Popen(
            [
                *(server, "-n", "--daemonize=no", "--exit-idle-time=-1", "--system=false", "--log-target=null"),
                *("-L", f"module-native-protocol-unix socket={socket} auth-anonymous=1"),
                *("-L", f"module-null-sink sink_name=probe rate={RATE_HZ} channels=2"),
            ],
            env={"PATH": "/usr/bin:/bin", **environment},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            until = time.monotonic() + START_TIMEOUT_S
            while subprocess.run([control, "info"], env=environment, capture_output=True, check=False).returncode:
                if process.poll() is not None or time.monotonic() > until:
                    raise UsageError("pulseaudio does not start", next_step="try `pulseaudio -n -vv` by hand")
                time.sleep(0.1)
            yield environment
        finally:
            process.terminate()
            process.wait(5)


def _read(stream: IO[bytes], recording: Recording) -> None:
    count = 0
    while data := stream.read1(READ_BYTES):  # type: ignore[attr-defined]
        now = time.monotonic_ns()
        count += len(data) // 2
        recording.chunks.append(data)
        recording.reads.append((now, count))


@contextlib.contextmanager
def recording_of(environment: dict[str, str]) -> Iterator[Recording]:
    """Record the sink's monitor while the block runs."""
    process = subprocess.Popen(
        [
            *(_program("parec", "pulseaudio-utils"), "--device=probe.monitor", "--format=s16le", "--raw"),
            *(f"--rate={RATE_HZ}", "--channels=1", "--latency-msec=1"),
        ],
        env=environment,
        stdout=subprocess.PIPE,
    )
    assert process.stdout is not None
    recording = Recording()
    thread = threading.Thread(target=_read, args=(process.stdout, recording), daemon=True)
    thread.start()
    try:
        yield recording
    finally:
        process.terminate()
        process.wait(5)
        thread.join(5)
        process.stdout.close()


@dataclass(frozen=True, slots=True)
class Onset:
    """One talkspurt, ms: recorded onset − arrival, the same in the model, and their difference, D_out."""

    at_s: float
    mouth_to_ear: float
    modelled: float
    output: float
    correlation: float


def fitting_run(stream: Stream) -> tuple[NetEqRun, float]:
    """The model on the tick grid whose one-second means are nearest the browser's, and their difference (ms)."""
    starts, ends = poll_windows(stream.trace, stream.browser)
    theirs = window_means(stream.browser, starts, ends)
    tried = []
    for phase_us in range(100, 10_000, 200):
        run = run_neteq(stream.trace, phase_us * 1000)
        ours = window_means(model_series(run, stream.first_ns), starts, ends)
        tried.append((float(np.nanmean(np.abs(ours - theirs))), phase_us, run))
    difference, _, run = min(tried, key=lambda t: t[:2])
    return run, difference


def _play_s(run: NetEqRun, position: int, rate_hz: int) -> float | None:
    for out, start, count in run.pieces:
        if start <= position < start + count:
            return (run.origin_ns + (int(out) + position - int(start)) * NS_PER_S / rate_hz) / NS_PER_S
    return None


def onset_delays(stream: Stream, run: NetEqRun, recording: Recording, wall_minus_monotonic_s: float) -> list[Onset]:
    """Each talkspurt that is found in the recording."""
    trace, pcm = stream.trace, recording.pcm
    begin_s, sample_s, _ = recording.clock()
    ends = np.cumsum(trace.samples)
    onsets = []
    for spurt in audible_runs(LevelTrack(np.asarray(trace.pcm), trace.rate_hz)):
        packet = int(np.searchsorted(ends, spurt.start, side="right"))
        inside = spurt.start - int(ends[packet] - trace.samples[packet])
        played_s = _play_s(run, int(trace.position[packet]) + inside, trace.rate_hz)
        template = np.asarray(trace.pcm)[spurt.start : spurt.start + TEMPLATE_MS * RATE_HZ // 1000]
        if played_s is None or len(template) < TEMPLATE_MS * RATE_HZ // 1000:
            continue
        expected = round((played_s - wall_minus_monotonic_s - begin_s) / sample_s)
        low, high = (expected + ms * RATE_HZ // 1000 for ms in SEARCH_MS)
        window = pcm[max(0, low) : high + len(template)]
        if low < 0 or len(window) < len(template) + 1:
            continue
        scores = np.correlate(window, template, mode="valid")
        energy = np.convolve(window.astype(np.float64) ** 2, np.ones(len(template)), mode="valid")
        scores = scores / np.sqrt(np.maximum(energy, 1e-9) * float(template @ template))
        best = int(np.argmax(scores))
        if scores[best] < LEAST_CORRELATION:
            continue
        heard_s = begin_s + (low + best) * sample_s + wall_minus_monotonic_s
        arrival_s = int(trace.arrival_ns[packet]) / NS_PER_S + inside / trace.rate_hz
        onsets.append(
            Onset(
                arrival_s - stream.first_ns / NS_PER_S,
                1000 * (heard_s - arrival_s),
                1000 * (played_s - arrival_s),
                1000 * (heard_s - played_s),
                float(scores[best]),
            )
        )
    return onsets


def _reported_ms(call: Call) -> float:
    """The browser's own word for its output delay, over the whole call."""
    polls = [p for p in call.polls if p["type"] == "media-playout" and p.get("totalSamplesCount")]
    return 1000 * polls[-1]["totalPlayoutDelay"] / polls[-1]["totalSamplesCount"] if polls else float("nan")


async def _play_one(environment: dict[str, str], call: Call) -> None:
    async with Chromium(environment=environment, mute=False).open() as chromium:
        await play_calls(chromium, [call])


def measure(*, seconds: float, seed: int, runs: int, keep: Path | None) -> int:
    """Play, record, print a line for each call and the output delay over all; the exit code.

    Raises
    ------
    NotMeasurable
        If no talkspurt is found in any recording.
    """
    outputs: list[float] = []
    with tempfile.TemporaryDirectory() as scratch, null_sink() as environment:
        folder = keep or Path(scratch)
        print(
            "call                 talkspurts  mouth to ear   modelled  D_out median, p5, p95 (ms)  own error  reported"
        )
        for name in [f"{condition}-{run}" for run in range(runs) for condition in PULSE_CONDITIONS]:
            condition = CONDITIONS[name.rsplit("-", 1)[0]]
            call = Call(f"pulse_{name}", outgoing(condition, seconds, seed, 1000 + seed))
            with recording_of(environment) as recording:
                asyncio.run(_play_one(environment, call))
            offset_s = (time.time_ns() - time.monotonic_ns()) / NS_PER_S
            write_pair(folder, call.name, call)
            stream = read_pair(folder, call.name).streams[0]
            run, own = fitting_run(stream)
            onsets = onset_delays(stream, run, recording, offset_s)
            found = np.array([[o.mouth_to_ear, o.modelled, o.output] for o in onsets]).reshape(-1, 3)
            if len(found):
                if own <= MOST_OWN_MS:
                    outputs += found[:, 2].tolist()
                ear, model, output = np.median(found, axis=0)
                low, high = np.percentile(found[:, 2], [5, 95])
                print(
                    f"{call.name:22}{len(found):8}{ear:15.1f}{model:11.1f}{output:12.2f}{low:8.2f}{high:8.2f}"
                    f"{own:17.2f}{_reported_ms(call):10.2f}{'' if own <= MOST_OWN_MS else '  not counted'}",
                    flush=True,
                )
                print(
                    f"  reads lie {1000 * recording.clock()[2]:.2f} ms (median) above the recording's clock",
                    file=sys.stderr,
                )
    if not outputs:
        raise NotMeasurable("no talkspurt was found in what Chromium played")
    middle, spread = float(np.median(outputs)), float(np.std(outputs))
    print(f"D_out {middle:.1f} ms, expanded uncertainty (k = 2) {2 * spread:.1f} ms, {len(outputs)} talkspurts")
    return 0
