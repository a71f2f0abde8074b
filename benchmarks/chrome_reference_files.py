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

import sys
from pathlib import Path
from time import perf_counter

import numpy as np

from analysis.errors import ProbeError, UsageError
from analysis.neteq import run_neteq, run_neteq_phases
from analysis.trace import PacketTrace
from benchmarks.chrome_compare import (
    NS,
    Float,
    Row,
    browser_series,
    counted_until,
    model_series,
    onset_times_s,
    poll_windows,
    read_trace,
    window_means,
)

__all__ = ["GOLDEN", "NS", "Row", "browser_series", "model_series", "read_trace"]

GOLDEN = Path(__file__).resolve().parent.parent / "tests" / "golden" / "chrome"


def best_grid(
    trace: PacketTrace,
    first_ns: int,
    starts: Float,
    ends: Float,
    theirs: Float,
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
    last = counted_until(trace, browser)
    sides = Row.at(model, last, trace.rate_hz), Row.at(browser, last, trace.rate_hz)
    starts, ends = poll_windows(trace, browser)
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
