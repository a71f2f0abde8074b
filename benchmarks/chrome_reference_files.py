"""Packets that a real Chromium played in, the `chrome` playout model beside that browser's own getStats() out.

    python benchmarks/chrome_reference_files.py [DIR]

DIR (default: tests/golden/chrome) holds pairs of NAME.pcap (nanosecond pcap, Ethernet/IPv4/UDP, decrypted Opus RTP,
one stream) and NAME.stats.json (a list of `inbound-rtp` objects, W3C names, `timestamp` in ms of the clock of the
pcap). Each window of one second that ends in a poll of the browser is compared; the onsets are those of
`analysis.audibility` in the decoded sound. The last column tells the model's own error from that of not knowing where
the browser's 10 ms ticks lay: the tick grid, of those tried, that fits the browser best (ms after the first arrival),
and the mean difference under it.
"""

from __future__ import annotations

import json
import struct
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import av
import numpy as np
from numpy.typing import NDArray

from analysis.audibility import LevelTrack, audible_runs
from analysis.errors import ProbeError, UsageError
from analysis.neteq import NetEqRun, run_neteq, run_neteq_phases
from analysis.rtp import is_rtcp, is_rtp_or_rtcp, parse_rtp, unwrap
from analysis.trace import PacketTrace

GOLDEN = Path(__file__).resolve().parent.parent / "tests" / "golden" / "chrome"
RATE_HZ = 48_000
PCAP_NS_MAGIC = 0xA1B23C4D
NS = 1e-9
FIELDS = {
    "delay": "jitterBufferDelay",
    "target": "jitterBufferTargetDelay",
    "emitted": "jitterBufferEmittedCount",
    "concealed": "concealedSamples",
    "inserted": "insertedSamplesForDeceleration",
    "removed": "removedSamplesForAcceleration",
    "received": "totalSamplesReceived",
    "events": "concealmentEvents",
    "silent": "silentConcealedSamples",
    "discarded": "packetsDiscarded",
}

Series = dict[str, NDArray[np.float64]]  # "t" in seconds of the pcap's clock, and a running total for each of FIELDS


def udp_payloads(path: Path) -> Iterator[tuple[int, bytes]]:
    """(time in ns, UDP payload) of each frame of a nanosecond Ethernet pcap."""
    data = path.read_bytes()
    if len(data) < 24 or struct.unpack_from("<I", data)[0] != PCAP_NS_MAGIC:
        raise UsageError(f"{path.name} is not a little-endian nanosecond pcap")
    at = 24
    while at + 16 <= len(data):
        seconds, ns, size, _ = struct.unpack_from("<IIII", data, at)
        frame = data[at + 16 : at + 16 + size]
        at += 16 + size
        if len(frame) < 42 or frame[12:14] != b"\x08\x00" or frame[23] != 17:
            continue
        yield seconds * 1_000_000_000 + ns, frame[14 + 4 * (frame[14] & 15) + 8 :]


def read_trace(path: Path) -> PacketTrace:
    """The Opus stream of a pcap, decoded; duplicates left out.

    libwebrtc does not tell its Opus decoder of losses (it conceals by itself), so this decoder hears nothing of them.
    """
    packets: dict[int, tuple[int, int, bytes]] = {}
    sequence = timestamp = None
    for time_ns, data in udp_payloads(path):
        if not is_rtp_or_rtcp(data) or is_rtcp(data):
            continue
        packet = parse_rtp(data)
        sequence = packet.sequence_number if sequence is None else unwrap(packet.sequence_number, sequence, 16)
        timestamp = packet.timestamp if timestamp is None else unwrap(packet.timestamp, timestamp, 32)
        packets.setdefault(sequence, (timestamp, time_ns, packet.payload))
    ordered = sorted(packets.items())
    sounds = _decode([p[2] for _, p in ordered])
    return PacketTrace(
        RATE_HZ,
        np.array([number for number, _ in ordered], dtype=np.int64),
        np.array([p[0] for _, p in ordered], dtype=np.int64),
        np.array([len(s) for s in sounds], dtype=np.int64),
        np.array([p[1] for _, p in ordered], dtype=np.int64),
        np.array([len(p[2]) for _, p in ordered], dtype=np.int64),
        np.concatenate(sounds),
    )


def _decode(payloads: list[bytes]) -> list[NDArray[np.float32]]:
    decoder: Any = av.CodecContext.create("libopus", "r")
    decoder.sample_rate, decoder.format, decoder.layout = RATE_HZ, "s16", "mono"
    sounds = []
    for payload in payloads:
        frames = [f.to_ndarray().reshape(-1) for f in decoder.decode(av.Packet(payload))]
        sounds.append(np.concatenate(frames).astype(np.float32) / np.float32(32768.0))
    return sounds


def browser_series(path: Path) -> Series:
    """The running totals of the browser's polls."""
    polls = [p for p in json.loads(path.read_text()) if p.get("type") == "inbound-rtp"]
    series = {name: np.array([float(p.get(key, 0)) for p in polls]) for name, key in FIELDS.items()}
    series["t"] = np.array([p["timestamp"] / 1000 for p in polls])
    return series


def model_series(run: NetEqRun, first_ns: int) -> Series:
    """The running totals of the model's snapshots (every 200 ms), from zero at the first arrival on."""
    rows = [(first_ns, 0, 0, 0, 0, 0, 0, 0, 0, 0)] + [
        (
            s.time_ns,
            c.delay_ms_samples,
            c.target_ms_samples,
            c.emitted,
            c.concealed,
            c.inserted,
            c.removed,
            c.received,
            c.events,
            c.silent,
        )
        for s in run.snapshots
        for c in (s.counters,)
    ]
    table = np.array(rows, dtype=np.float64).T
    names = ("t", "delay", "target", "emitted", "concealed", "inserted", "removed", "received", "events", "silent")
    series = dict(zip(names, table, strict=True))
    series["t"] = series["t"] * NS
    series["delay"], series["target"] = series["delay"] / 1000, series["target"] / 1000
    return series


@dataclass(frozen=True, slots=True)
class Row:
    """Figures of one side over a whole call, ms."""

    delay: float
    target: float
    concealed: float
    inserted: float
    removed: float
    events: float

    @classmethod
    def at(cls, series: Series, time_s: float) -> Row:
        """Totals at `time_s`."""
        total = {name: float(np.interp(time_s, series["t"], series[name])) for name in series if name != "t"}
        per_ms = RATE_HZ / 1000
        return cls(
            1000 * total["delay"] / total["emitted"],
            1000 * total["target"] / total["emitted"],
            total["concealed"] / per_ms,
            total["inserted"] / per_ms,
            total["removed"] / per_ms,
            total["events"],
        )


def window_means(series: Series, starts: NDArray[np.float64], ends: NDArray[np.float64]) -> NDArray[np.float64]:
    """Mean jitter-buffer delay (ms) in each window, NaN where nothing was emitted."""
    delay = np.interp(ends, series["t"], series["delay"]) - np.interp(starts, series["t"], series["delay"])
    count = np.interp(ends, series["t"], series["emitted"]) - np.interp(starts, series["t"], series["emitted"])
    return np.where(count > 0, 1000 * delay / np.maximum(count, 1), np.nan)


def onset_times_s(trace: PacketTrace) -> NDArray[np.float64]:
    """When the packets arrived that hold the first audible sample after a pause."""
    ends = np.cumsum(trace.samples)
    starts = [run.start for run in audible_runs(LevelTrack(trace.pcm, trace.rate_hz))]
    return np.array([trace.arrival_ns[int(np.searchsorted(ends, s, side="right"))] for s in starts]) * NS


def best_grid(
    trace: PacketTrace,
    first_ns: int,
    starts: NDArray[np.float64],
    ends: NDArray[np.float64],
    theirs: NDArray[np.float64],
) -> tuple[float, float]:
    """(phase in ms, mean difference in ms) of the tick grid that fits the browser best."""
    tried = []
    for phase_us in range(200, 10_000, 400):
        ours = window_means(model_series(run_neteq(trace, phase_us * 1000), first_ns), starts, ends)
        tried.append((float(np.nanmean(np.abs(ours - theirs))), phase_us / 1000))
    difference, phase_ms = min(tried)
    return phase_ms, difference


def compare(folder: Path, name: str) -> None:
    """Print model beside browser for one pair."""
    trace = read_trace(folder / f"{name}.pcap")
    browser = browser_series(folder / f"{name}.stats.json")
    first_ns = int(trace.arrival_ns.min())
    began = perf_counter()
    runs = run_neteq_phases(trace)
    seconds = perf_counter() - began
    model = model_series(runs[0], first_ns)
    # a poll after the end of the stream already counts what the browser made up then
    last = browser["t"][browser["t"] <= trace.arrival_ns.max() * NS][-1]
    sides = Row.at(model, last), Row.at(browser, last)
    ends = browser["t"][(browser["t"] <= last) & (browser["t"] - 1 > first_ns * NS)]
    starts = ends - 1
    ours, theirs = window_means(model, starts, ends), window_means(browser, starts, ends)
    difference = np.abs(ours - theirs)
    onsets = onset_times_s(trace)
    with_onset = np.array([bool(np.any((onsets >= a) & (onsets < b))) for a, b in zip(starts, ends, strict=True)])
    figures = "".join(f" {getattr(sides[0], f):7.1f}/{getattr(sides[1], f):7.1f}" for f in Row.__slots__)
    quality = f"{np.nanpercentile(difference, 95):6.1f} {np.nanmean(difference):6.1f}"
    quality += f" {np.nanmean(difference[with_onset]):6.1f} {np.nanpercentile(difference[with_onset], 95):6.1f}"
    phase_ms, least = best_grid(trace, first_ns, starts, ends, theirs)
    print(f"{name:14}{figures} {quality} {seconds:6.2f}  {phase_ms:4.1f} {least:5.2f}")


def main(arguments: list[str]) -> int:
    """Compare every pair in the folder named on the command line."""
    try:
        if len(arguments) > 1:
            raise UsageError("one folder at most", next_step="chrome_reference_files.py [DIR]")
        folder = Path(arguments[0]) if arguments else GOLDEN
        names = sorted(p.stem for p in folder.glob("*.pcap") if (folder / f"{p.stem}.stats.json").exists())
        if not names:
            raise UsageError(f"no NAME.pcap with a NAME.stats.json in {folder}")
        print(f"{'model/browser':14}" + "".join(f" {f:>15}" for f in Row.__slots__), end="")
        print("  p95|d| mean|d| onset: mean p95   time s  grid mean|d|  (ms; |d| over 1-s windows)")
        for name in names:
            compare(folder, name)
    except ProbeError as exc:
        print(exc.line(), file=sys.stderr)
        return exc.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
