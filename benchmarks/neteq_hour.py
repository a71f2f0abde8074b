"""Hours of made-up calls of real Opus packets in, what the `chrome` playout policy takes of time and memory out.

    python benchmarks/neteq_hour.py [--short]

Each call is speech (the clips that the demo agent speaks, encoded once, then again and again) whose packets arrive
with some jitter, and in the second condition with loss, stalls and pauses as well. A call runs in a process of its
own, on Linux. Times are CPU seconds of one core; `chrome` is what the playout takes beyond decoding, all tick grids
together. Memory is the peak while playing above what was there before, with the packets already in it. `--short` leaves
out the 4 h.
"""

from __future__ import annotations

import multiprocessing
import sys
from dataclasses import dataclass
from pathlib import Path
from time import process_time

import numpy as np
import soundfile
import soxr

from analysis.codecs import CODECS, encode
from analysis.neteq import run_neteq
from analysis.playout import play
from analysis.rtp import RtpPacket
from analysis.streams import ForwardSound, Stream, Timed, build_streams, packet_trace
from analysis.units import NS_PER_MS

CLIPS = Path(__file__).resolve().parent.parent / "probe" / "data" / "replies"
OPUS = CODECS["opus"]
PACKET_MS = 20
SPEECH_S = 120
SEED = 20_260
CALLS = (("clean", 10), ("clean", 60), ("jittery", 10), ("jittery", 60), ("jittery", 240))


@dataclass(frozen=True, slots=True)
class Cost:
    """What one call took."""

    packets: int
    decode_s: float
    chrome_s: float
    grids: int
    peak_mb: float


def speech(rng: np.random.Generator) -> tuple[bytes, ...]:
    """Packets of two minutes of clips with silence between them."""
    clips = sorted(CLIPS.glob("*/*.flac"))
    parts: list[np.ndarray] = []
    while sum(len(p) for p in parts) < SPEECH_S * OPUS.rate_hz:
        sound, rate_hz = soundfile.read(clips[rng.integers(len(clips))], dtype="float32")
        parts += [soxr.resample(sound, rate_hz, OPUS.rate_hz), np.zeros(int(rng.uniform(0.3, 2.0) * OPUS.rate_hz))]
    return encode(OPUS, np.concatenate(parts).astype(np.float32), ptime_ms=PACKET_MS)


def arrivals_ms(condition: str, count: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """When each packet arrives, whether it does, and how much later than the one before it was sent than 20 ms."""
    sent = np.arange(count) * float(PACKET_MS)
    if condition == "clean":
        return sent + rng.uniform(0, 1, count), np.ones(count, dtype=bool), np.zeros(count)
    pause = np.where(rng.random(count) < 1 / 1500, rng.uniform(500, 4000, count) // PACKET_MS * PACKET_MS, 0.0)
    late = rng.gamma(1.0, 8.0, count)
    for at in rng.integers(0, count, count // 1000):  # a stall, after which all come at once
        stall = rng.uniform(60, 300)
        held = late[at : at + int(stall // PACKET_MS)]
        held[:] = np.maximum(held, stall - PACKET_MS * np.arange(len(held)))
    kept = rng.random(count) >= 0.01
    return sent + np.cumsum(pause) + late, kept, pause


def call(condition: str, minutes: int) -> Stream:
    """One call as the receiver has it."""
    rng = np.random.default_rng(SEED)
    payloads = speech(rng)
    count = minutes * 60_000 // PACKET_MS
    arrival, kept, pause = arrivals_ms(condition, count, rng)
    frame = PACKET_MS * OPUS.clock_rate_hz // 1000
    ticks = np.arange(count) * frame + np.cumsum(pause).astype(np.int64) * OPUS.clock_rate_hz // 1000
    order = np.argsort(arrival, kind="stable")
    received = (
        Timed(
            int(arrival[i] * NS_PER_MS),
            RtpPacket(111, int(i) & 0xFFFF, int(ticks[i]) & 0xFFFF_FFFF, 1, payloads[i % len(payloads)]),
        )
        for i in order[kept[order]].tolist()
    )
    (stream,) = build_streams(received, {111: OPUS})
    return stream


def memory_mb(kind: str) -> float:
    """Memory of this process: VmRSS now, VmHWM at its peak."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(kind))


def measure(condition: str, minutes: int) -> Cost:
    """Play one call."""
    run_neteq(packet_trace(call("clean", 1), np.zeros(60 * OPUS.rate_hz, dtype=np.float32)), 0)  # compiled or loaded
    stream = call(condition, minutes)
    began = process_time()
    for _ in ForwardSound(stream).packets():
        pass
    decoded = process_time()
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew
    before_mb = memory_mb("VmRSS")
    playout = play(packet_trace(stream, ForwardSound(stream)), "chrome")
    played = process_time()
    peak_mb = memory_mb("VmHWM") - before_mb
    decode_s = decoded - began
    return Cost(len(stream.sequence), decode_s, played - decoded - decode_s, 1 + len(playout.alternatives), peak_mb)


def main(arguments: list[str]) -> int:
    """Print a row for each call."""
    if set(arguments) - {"--short"}:
        print("usage: neteq_hour.py [--short]", file=sys.stderr)
        return 2
    heads = f"{'packets':>8} {'decoding s':>10} {'chrome s':>9} {'grids':>5} {'memory MB':>9}"
    print(f"{'condition':10} {'minutes':>7} {heads}")
    for condition, minutes in CALLS:
        if minutes > 60 and "--short" in arguments:
            continue
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            cost = pool.apply(measure, (condition, minutes))
        figures = f"{cost.packets:8} {cost.decode_s:10.2f} {cost.chrome_s:9.2f} {cost.grids:5} {cost.peak_mb:9.1f}"
        print(f"{condition:10} {minutes:7} {figures}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
