"""A million damaged RTP packets, RTCP packets, captures, bundles and dumps, and whether each ends as it should.

An input must end in a value or in an error that the function documents: no other exception, no more than 2 s, no more
than 1 GB. What does not is a finding: it is printed, its input is kept in `--out`, and the exit code is 1. Each input
follows from the seed, the target's name and its number alone (`--replay rtp:4711` gives it again).

    python benchmarks/fuzz.py [--inputs 1000000] [--seed 1] [--engine mutate|atheris|both] [--only NAME]...
"""

from __future__ import annotations

import argparse
import multiprocessing
import resource
import signal
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from benchmarks.fuzz_atheris import GuidedRun, available, run_guided
from benchmarks.fuzz_targets import TARGETS, Hang, judge, mutated, warm_up

MEMORY_BYTES = 1 << 30  # above what the process takes before its first input
STUCK_S = 300.0  # by the wall, also where many others share the machine; in code that Python cannot interrupt
CHUNKS = 40  # of one target, shared out among the workers
MAX_DEATHS = 20  # of workers
MAX_SHOWN = 10  # findings of one target
MAX_KEPT = 100
GUIDED_SHARE = 0.1  # runs of atheris for each input of the other engine; they take some ten times longer
ATHERIS_MISSING = "atheris is not installed: pip install 'media-latency-probe[bench]' (Linux and macOS, CPython)"


@dataclass(frozen=True, slots=True)
class Chunk:
    """Inputs `start` to `stop` of one target."""

    name: str
    start: int
    stop: int


@dataclass
class Tally:
    """What came of the inputs of one target; findings as (number of the input, or the file that holds it, fault)."""

    inputs: int = 0
    accepted: int = 0
    refused: int = 0
    seconds: float = 0.0
    slowest_s: float = 0.0
    slowest: int | None = None
    peak_mb: float = 0.0
    findings: list[tuple[int | str, str]] = field(default_factory=list)

    def add(self, other: Tally) -> None:
        """Take in what came of other inputs of the same target."""
        if other.slowest_s > self.slowest_s:
            self.slowest_s, self.slowest = other.slowest_s, other.slowest
        self.inputs += other.inputs
        self.accepted += other.accepted
        self.refused += other.refused
        self.seconds += other.seconds
        self.peak_mb = max(self.peak_mb, other.peak_mb)
        self.findings += other.findings


def chunks_of(inputs: int, names: Sequence[str]) -> list[Chunk]:
    """`inputs` shared out among targets by their shares; those of a target in parts, in turns with the others."""
    total = sum(TARGETS[name].share for name in names)
    parts: list[tuple[int, Chunk]] = []
    for name in names:
        count = max(1, round(inputs * TARGETS[name].share / total))
        edges = [count * i // CHUNKS for i in range(CHUNKS + 1)]
        parts += [(i, Chunk(name, *edges[i : i + 2])) for i in range(CHUNKS) if edges[i] < edges[i + 1]]
    return [chunk for _, chunk in sorted(parts, key=lambda part: part[0])]


def fuzz_chunk(chunk: Chunk, seed: int, folder: Path, *, skip: frozenset[int] = frozenset(), at: Any = None) -> Tally:
    """Give each input of a chunk to its target. `at` is told the number of each before it is given."""
    target, tally, start_s = TARGETS[chunk.name], Tally(), time.process_time()
    previous = signal.signal(signal.SIGPROF, _hang)
    try:
        for index in range(chunk.start, chunk.stop):
            if index in skip:
                continue
            if at is not None:
                at[1] = index
            data = mutated(target, seed, index)
            signal.setitimer(signal.ITIMER_PROF, target.limit_s)
            try:
                outcome = judge(target, data, folder)
                accepted, cpu_s, fault = outcome.accepted, outcome.cpu_s, outcome.fault
            except Hang:
                accepted, cpu_s, fault = False, target.limit_s, f"took more than {target.limit_s:g} s"
            signal.setitimer(signal.ITIMER_PROF, 0)
            tally.inputs += 1
            if fault is not None:
                tally.findings.append((index, fault))
            elif accepted:
                tally.accepted += 1
            else:
                tally.refused += 1
            if cpu_s > tally.slowest_s:
                tally.slowest_s, tally.slowest = cpu_s, index
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, previous)
    tally.seconds = time.process_time() - start_s
    tally.peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1024 if sys.platform == "linux" else 1 << 20)
    return tally


def _hang(number: int, frame: object) -> None:
    raise Hang


def _limit_memory() -> None:
    """An input that makes the process ask for 1 GB more gets a MemoryError, and is a finding."""
    statm = Path("/proc/self/statm")
    if statm.is_file():
        used = int(statm.read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY_BYTES, resource.getrlimit(resource.RLIMIT_AS)[1]))


def _work(
    results: Connection, at: Any, seed: int, chunks: Sequence[tuple[int, Chunk]], skip: dict[str, set[int]]
) -> None:
    """A worker: its chunks one after the other, and what came of each."""
    for _, chunk in chunks:
        _ = TARGETS[chunk.name].corpus
    with tempfile.TemporaryDirectory(prefix="fuzz-") as folder:
        warm_up(Path(folder))
        _limit_memory()
        warnings.simplefilter("error")  # a user would see it on standard error
        for number, chunk in chunks:
            at[0] = number
            left_out = frozenset(skip.get(chunk.name, ()))
            results.send((number, fuzz_chunk(chunk, seed, Path(folder), skip=left_out, at=at)))


class _Worker:
    """A process with its chunks; it is started again behind an input that ended it or that it hangs in."""

    def __init__(self, seed: int, chunks: Sequence[tuple[int, Chunk]]) -> None:
        self.seed, self.left = seed, dict(chunks)
        self.skip: dict[str, set[int]] = {}
        self.start()

    def start(self) -> None:
        context = multiprocessing.get_context("spawn")
        self.results, sender = context.Pipe(duplex=False)
        self.at = context.Array("q", [-1, -1], lock=False)
        arguments = (sender, self.at, self.seed, list(self.left.items()), self.skip)
        self.process = context.Process(target=_work, args=arguments, daemon=True)
        self.process.start()
        sender.close()
        self.seen, self.seen_s = (-1, -1), time.monotonic()

    def done(self) -> tuple[str, Tally] | None:
        """The next chunk that is done: its target and what came of it; None where the process has ended."""
        try:
            number, tally = self.results.recv()
        except EOFError:
            return None
        return self.left.pop(number).name, tally

    @property
    def stuck(self) -> bool:
        """True if nothing has moved for too long; a worker that is not yet at its first input is given time."""
        now = tuple(self.at)
        if now != self.seen or now[0] < 0:
            self.seen, self.seen_s = now, time.monotonic()
        return time.monotonic() - self.seen_s > STUCK_S

    def after_death(self) -> tuple[str, Tally]:
        """What ended the process, as a finding; the rest goes on in a new one."""
        number, index = self.at
        self.process.join(10)
        why = f"stuck for {STUCK_S:.0f} s" if self.stuck else f"the process died ({self.process.exitcode})"
        if number not in self.left or index < 0:
            raise RuntimeError(f"a worker ended before its first input ({self.process.exitcode})")
        name = self.left[number].name
        self.skip.setdefault(name, set()).add(index)
        self.start()
        return name, Tally(inputs=1, findings=[(index, why)])

    def kill(self) -> None:
        self.process.kill()


def run_mutations(chunks: Sequence[Chunk], seed: int, workers: int) -> Iterator[tuple[str, Tally]]:
    """All chunks, in as many processes; what came of each as it is done."""
    numbered = list(enumerate(chunks))
    shares = [numbered[k::workers] for k in range(workers)]
    running = [_Worker(seed, share) for share in shares if share]
    deaths = 0
    try:
        while running:
            wait([w.results for w in running], timeout=5.0)
            for worker in list(running):
                if worker.results.poll():
                    done = worker.done()
                    if done is None and worker.left:
                        deaths += 1
                        if deaths > MAX_DEATHS:
                            raise RuntimeError(f"{deaths} inputs ended their process: given up")
                        done = worker.after_death()
                    if done is not None:
                        yield done
                elif worker.stuck:
                    worker.kill()  # its end is seen in the next round
                if not worker.left:
                    worker.process.join(10)
                    running.remove(worker)
    finally:
        for worker in running:
            worker.kill()


def run_atheris(names: Sequence[str], inputs: int, seed: int, workers: int, out: Path) -> dict[str, GuidedRun]:
    """A bounded number of coverage-guided runs of each target."""
    total = sum(TARGETS[name].share for name in names)
    runs = [max(1, round(inputs * TARGETS[name].share / total)) for name in names]
    out.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(workers) as pool:
        done = pool.map(lambda job: run_guided(job[0], job[1], seed, out), zip(names, runs, strict=True))
        return dict(zip(names, done, strict=True))


def _table(title: str, tallies: dict[str, Tally]) -> None:
    print(f"\n{title}")
    header = f"{'target':<20}{'inputs':>9}{'CPU s':>9}{'inputs/s':>10}{'accepted':>10}{'refused':>9}"
    print(header + f"{'findings':>10}{'slowest':>11}")
    total = Tally()
    for name, tally in [*tallies.items(), ("all", total)]:
        if tally is not total:
            total.add(tally)
        count = max(1, tally.inputs)
        line = f"{name:<20}{tally.inputs:>9}{tally.seconds:>9.1f}{tally.inputs / max(1e-9, tally.seconds):>10.0f}"
        line += f"{100 * tally.accepted / count:>8.1f} %{100 * tally.refused / count:>7.1f} %{len(tally.findings):>10}"
        print(line + f"{1000 * tally.slowest_s:>8.1f} ms")
    if total.peak_mb:
        print(f"inputs/s are on one core; the largest process took {total.peak_mb:.0f} MB at most")


def _show_findings(tallies: dict[str, Tally], seed: int, out: Path) -> int:
    """Print each kind of fault once, keep its input; the number of findings."""
    for name, tally in tallies.items():
        seen: dict[str, int] = {}
        for which, fault in tally.findings:
            kind = fault.partition(":")[0]
            seen[kind] = seen.get(kind, 0) + 1
            if seen[kind] > 1 or len(seen) > MAX_SHOWN:
                continue
            print(f"FINDING {name} {which if isinstance(which, str) else f'#{which}'}: {fault}")
            if isinstance(which, int) and len(seen) <= MAX_KEPT:
                out.mkdir(parents=True, exist_ok=True)
                path = out / f"{name}-{seed}-{which}"
                path.write_bytes(mutated(TARGETS[name], seed, which))
                print(f"        kept as {path}; again: --seed {seed} --replay {name}:{which}")
        for kind, count in seen.items():
            if count > 1:
                print(f"        {count} of {name} in all: {kind}")
    return sum(len(tally.findings) for tally in tallies.values())


def _replay(text: str, seed: int) -> int:
    name, _, index = text.partition(":")
    if name not in TARGETS or not index.isdecimal():
        print(f"--replay {text}: give NAME:NUMBER; names are {', '.join(TARGETS)}", file=sys.stderr)
        return 2
    data = mutated(TARGETS[name], seed, int(index))
    print(f"{name} #{index}: {len(data)} bytes, beginning with {data[:48]!r}")
    with tempfile.TemporaryDirectory(prefix="fuzz-") as folder:
        print("value:", repr(TARGETS[name].run(data, Path(folder)))[:400])
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Fuzz, print tables; 1 where there are findings."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--inputs", type=int, default=1_000_000, help="of all targets together (default %(default)s)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--engine", choices=("mutate", "atheris", "both"), default="both")
    parser.add_argument("--only", action="append", default=[], choices=list(TARGETS), metavar="NAME", help="repeatable")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path("out/fuzz"), help="takes the inputs of findings")
    parser.add_argument("--replay", metavar="NAME:NUMBER", help="one input again, with its traceback")
    asked = parser.parse_args(arguments)
    if asked.replay:
        return _replay(asked.replay, asked.seed)
    names = [name for name in TARGETS if not asked.only or name in asked.only]
    findings = 0
    if asked.engine != "atheris":
        tallies = {name: Tally() for name in names}
        for name, tally in run_mutations(chunks_of(asked.inputs, names), asked.seed, max(1, asked.workers)):
            tallies[name].add(tally)
            if sys.stderr.isatty():
                print(f"\r{sum(t.inputs for t in tallies.values())} inputs ", end="", file=sys.stderr, flush=True)
        _table(f"mutations, seed {asked.seed}", tallies)
        findings += _show_findings(tallies, asked.seed, asked.out)
    if asked.engine != "mutate" and not available():
        print(ATHERIS_MISSING)
        findings += asked.engine == "atheris"
    elif asked.engine != "mutate":
        runs = round(asked.inputs * GUIDED_SHARE)
        guided = run_atheris(names, runs, asked.seed, max(1, asked.workers), asked.out)
        found = {name: _as_tally(run) for name, run in guided.items()}
        _table(f"atheris, coverage-guided, seed {asked.seed}", found)
        findings += _show_findings(found, asked.seed, asked.out)
    print(f"\n{findings} findings" if findings else "\nno findings")
    return int(findings > 0)


def _as_tally(run: GuidedRun) -> Tally:
    refused = run.runs - run.accepted - len(run.findings)
    findings: list[tuple[int | str, str]] = [*run.findings]
    return Tally(run.runs, run.accepted, max(0, refused), run.seconds, run.slowest_s, None, 0.0, findings)


if __name__ == "__main__":
    sys.exit(main())
