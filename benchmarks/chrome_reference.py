"""Impaired streams to a Chromium that runs here, the `chrome` playout model on the same packets, and both side by side.

    python benchmarks/chrome_reference.py [--conditions a,b] [--runs 3] [--seconds 40] [--seed 1] [--keep DIR]
    python benchmarks/chrome_reference.py --model-only DIR
    python benchmarks/chrome_reference.py --pulse

Each condition is played R times with the same packets, so how far the browser agrees with itself stands beside how far
the model agrees with it: the mean difference between two of its runs. A figure passes where the model (median over
runs) is as near the browser's median as the limit says, or within twice what the browser differs from itself. A run in
which the machine kept the browser from its work (by the browser's own word) is played again, at most twice.

`--keep DIR` writes NAME-RUN.pcap and NAME-RUN.stats.json, `--model-only DIR` compares such pairs again. `--pulse`
records what Chromium plays through a PulseAudio null sink (see `chrome_pulse.py`). Exit codes: 0 all pass, 1 a figure
misses its limit, 2 usage or Chromium absent, 130 interrupted.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from analysis.errors import EXIT_BUDGET, EXIT_INTERRUPTED, ProbeError, UsageError
from analysis.neteq import run_neteq_phases
from benchmarks.chrome_browser import AT_ONCE, Call, Chromium, disturbed, play_calls, write_pair
from benchmarks.chrome_compare import Pair, Row, disturbance, read_pair
from benchmarks.chrome_conditions import CONDITIONS, outgoing

MOST_AGAIN = 2
WINDOW_LIMIT_MS = 12.0


@dataclass(frozen=True, slots=True)
class Limit:
    """How near a figure must be: `absolute_ms`, or `share` of the browser's."""

    absolute_ms: float
    share: float

    def of(self, browser: float) -> float:
        """The limit (ms) at a figure of the browser's."""
        return max(self.absolute_ms, self.share * abs(browser))


LIMITS = {
    "delay": Limit(2.0, 0.04),
    "target": Limit(2.0, 0.0),
    "concealed": Limit(40.0, 0.2),
    "inserted": Limit(40.0, 0.2),
    "removed": Limit(40.0, 0.2),
}


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure of one condition: the model's and the browser's median, and the browser's difference from itself."""

    name: str
    model: float
    browser: float
    own: float
    limit: float

    @property
    def passes(self) -> bool:
        """Near enough."""
        return abs(self.model - self.browser) <= max(self.limit, 2 * self.own)


@dataclass(frozen=True, slots=True)
class Verdict:
    """One condition. Windows are |difference| of one-second means, ms: the model's, and between two runs.

    `onset_errors`: model − browser (ms) of each talkspurt onset of all runs.
    """

    name: str
    figures: tuple[Figure, ...]
    window_p95: float
    window_own_p95: float
    onset_errors: tuple[float, ...]

    @property
    def misses(self) -> list[str]:
        """The names of what is not near enough."""
        missed = [figure.name for figure in self.figures if not figure.passes]
        if self.window_p95 > max(WINDOW_LIMIT_MS, 2 * self.window_own_p95):
            missed.append("windows")
        return missed


def seed_of(condition: str, seed: int) -> int:
    """The seed of one condition's packets, whatever others are played; also its SSRC."""
    return 1000 * seed + zlib.crc32(condition.encode()) % 1000


async def play(
    names: Sequence[str],
    *,
    runs: int,
    seconds: float,
    seed: int,
    folder: Path,
    environment: dict[str, str] | None = None,
) -> None:
    """Play conditions to Chromium and write the pairs; progress on stderr."""
    packets = {}
    for name in names:
        own = seed_of(name, seed)
        packets[name] = outgoing(CONDITIONS[name], seconds, own, own)
    due = [(name, run, 0) for run in range(runs) for name in names]
    async with Chromium(environment=environment).open() as chromium:
        while due:
            batch, due = due[:AT_ONCE], due[AT_ONCE:]
            calls = [Call(f"{n}-{run}", packets[n], pcmu=CONDITIONS[n].codec == "pcmu") for n, run, _ in batch]
            await play_calls(chromium, calls)
            for call, (name, run, again) in zip(calls, batch, strict=True):
                late_ms = np.percentile(call.late_ns, [50, 99, 100]) / 1e6
                write_pair(folder, call.name, call)
                fault = disturbed(call) or disturbance(read_pair(folder, call.name))
                repeat = fault is not None and again < MOST_AGAIN
                if repeat:  # what was written is written over
                    due.append((name, run, again + 1))
                words = f", {fault}: played {'again' if repeat else 'too often, kept'}" if fault else ""
                print(
                    f"{call.name}: {len(call.sent)} packets, sender late by {late_ms[0]:.2f} ms (median), "
                    f"{late_ms[1]:.2f} (p99), {late_ms[2]:.2f} (most){words}",
                    file=sys.stderr,
                )


def judge(name: str, pairs: Sequence[Pair]) -> Verdict:
    """Compare the runs of one condition."""
    sides: list[tuple[Row, Row]] = []
    differences: list[NDArray[np.float64]] = []
    onsets: list[float] = []
    for pair in pairs:
        models = [run_neteq_phases(stream.trace)[0] for stream in pair.streams]
        sides.append((pair.model_row(models), pair.browser_row()))
        differences.append(pair.window_differences(models))
        onsets += pair.onset_errors(models).tolist()
    figures = []
    for key, limit in LIMITS.items():
        model = float(np.median([getattr(ours, key) for ours, _ in sides]))
        theirs = [getattr(row, key) for _, row in sides]
        browser = float(np.median(theirs))
        own = float(np.mean([abs(a - b) for a, b in combinations(theirs, 2)])) if len(theirs) > 1 else 0.0
        figures.append(Figure(key, model, browser, own, limit.of(browser)))
    own_windows = [np.abs(a.window_means_at(b) - b.window_means_at(b)) for a, b in combinations(pairs, 2)]
    return Verdict(
        name,
        tuple(figures),
        float(np.nanpercentile(np.concatenate(differences), 95)),
        float(np.nanpercentile(np.concatenate(own_windows), 95)) if own_windows else 0.0,
        tuple(onsets),
    )


def _spread(errors: Sequence[float]) -> str:
    """Mean ± twice the standard deviation."""
    return f"{np.mean(errors):+.1f} ± {2 * np.std(errors):.1f}" if len(errors) > 1 else "–"


def onset_summary(verdicts: Sequence[Verdict]) -> str:
    """The model's error at talkspurt onsets, overall and by kind of path."""
    lines = ["| onsets | n | mean | expanded uncertainty (k = 2) | 95 % within |", "|---|---|---|---|---|"]
    for kind in ("all", "steady", "jittery", "lossy"):
        picked = [v for v in verdicts if kind == "all" or (v.name in CONDITIONS and CONDITIONS[v.name].kind == kind)]
        errors = np.array([e for v in picked for e in v.onset_errors])
        if len(errors):
            expanded = 2 * float(np.sqrt(np.mean(errors**2)))
            within = float(np.percentile(np.abs(errors), 95))
            lines.append(f"| {kind} | {len(errors)} | {errors.mean():+.1f} ms | {expanded:.1f} ms | {within:.1f} ms |")
    return "\n".join(lines)


def table(verdicts: Sequence[Verdict]) -> str:
    """The verdicts as lines of Markdown."""
    heads = ["condition", "delay", "target", "concealed", "inserted", "removed", "1-s p95 (own)", "at onsets", ""]
    lines = ["| " + " | ".join(heads) + " |", "|---" * len(heads) + "|"]
    for v in verdicts:
        cells = [f"{f.model:.1f}/{f.browser:.1f} ± {f.own:.1f}" for f in v.figures]
        cells.append(f"{v.window_p95:.1f} ({v.window_own_p95:.1f})")
        cells.append(_spread(v.onset_errors))
        cells.append("pass" if not v.misses else "misses " + ", ".join(v.misses))
        lines.append(f"| {v.name} | " + " | ".join(cells) + " |")
    lines.append("")
    lines.append(
        "model/browser ± the browser's own difference between runs (ms); at onsets: mean ± k = 2 of model − browser"
    )
    return "\n".join(lines)


def kept(folder: Path) -> dict[str, list[str]]:
    """The runs in a folder by condition. Raises UsageError where there are none."""
    found: dict[str, list[str]] = {}
    for path in sorted(folder.glob("*.pcap")):
        if path.with_suffix(".stats.json").exists():
            found.setdefault(path.stem.rsplit("-", 1)[0], []).append(path.stem)
    if not found:
        raise UsageError(f"no NAME-RUN.pcap with a NAME-RUN.stats.json in {folder}")
    return {
        name: found[name]
        for name in [*(n for n in CONDITIONS if n in found), *(n for n in found if n not in CONDITIONS)]
    }


def report(folder: Path, names: Sequence[str] | None = None) -> int:
    """Compare the pairs in a folder and print the table; the exit code."""
    verdicts = []
    for name, runs in kept(folder).items():
        if names is None or name in names:
            verdicts.append(judge(name, [read_pair(folder, run) for run in runs]))
    print(table(verdicts))
    print("\n" + onset_summary(verdicts) + "\n")
    failed = [v.name for v in verdicts if v.misses]
    print(
        f"{len(verdicts) - len(failed)} of {len(verdicts)} conditions pass"
        + (f"; not: {', '.join(failed)}" if failed else "")
    )
    return EXIT_BUDGET if failed else 0


def _arguments(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="The chrome playout model beside a Chromium that runs here.")
    parser.add_argument("--conditions", default=",".join(CONDITIONS), help="names, comma-separated (default: all)")
    parser.add_argument("--runs", type=int, default=3, help="of each condition (default: 3)")
    parser.add_argument("--seconds", type=float, default=40.0, help="of each run (default: 40)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", type=Path, metavar="DIR", help="write the pairs there")
    parser.add_argument("--model-only", type=Path, metavar="DIR", help="compare kept pairs again, no browser")
    parser.add_argument("--pulse", action="store_true", help="record Chromium's output through PulseAudio instead")
    parsed = parser.parse_args(arguments)
    unknown = [name for name in parsed.conditions.split(",") if name not in CONDITIONS]
    if unknown and parsed.model_only is None:
        raise UsageError(f"no condition {unknown[0]!r}", next_step=f"one of {', '.join(CONDITIONS)}")
    if parsed.runs < 1 or parsed.seconds < 5:
        raise UsageError("at least one run of at least 5 seconds")
    return parsed


def main(arguments: Sequence[str]) -> int:
    """What the command line asks for."""
    try:
        parsed = _arguments(arguments)
        names = parsed.conditions.split(",")
        if parsed.model_only is not None:
            return report(parsed.model_only)
        if parsed.pulse:
            from benchmarks.chrome_pulse import measure

            return measure(seconds=parsed.seconds, seed=parsed.seed, runs=parsed.runs, keep=parsed.keep)
        with tempfile.TemporaryDirectory() as scratch:
            folder = parsed.keep or Path(scratch)
            asyncio.run(play(names, runs=parsed.runs, seconds=parsed.seconds, seed=parsed.seed, folder=folder))
            return report(folder, names)
    except ProbeError as exc:
        print(exc.line(), file=sys.stderr)
        return exc.exit_code
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
