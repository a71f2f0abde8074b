"""One target in, a bounded number of coverage-guided runs of it (atheris, libFuzzer) out; in a process of its own.

libFuzzer takes over the process that it runs in and ends it, so each target has one, which leaves its counts in a file.
"""

from __future__ import annotations

import contextlib
import json
import os
import pkgutil
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from time import process_time

import analysis

__all__ = ["GuidedRun", "available", "child", "run_guided"]

MAX_SECONDS = 45.0  # of the processor, for one target; instrumented code is some ten times slower
SLOWER = 3.0  # instrumented code
STUCK_S = 300  # in code that Python cannot interrupt
MEMORY_MB = 3000
MAX_INPUT_BYTES = 1 << 15
MAX_KEPT = 20  # findings of one target


@dataclass
class GuidedRun:
    """What the runs of one target came to; findings as (file of the input, what was wrong)."""

    runs: int = 0
    accepted: int = 0
    seconds: float = 0.0
    slowest_s: float = 0.0
    findings: list[tuple[str, str]] = field(default_factory=list)


def available() -> bool:
    """True if atheris can be imported."""
    try:
        import atheris  # noqa: F401
    except ImportError:
        return False
    return True


def run_guided(name: str, runs: int, seed: int, out: Path) -> GuidedRun:
    """Fuzz one target in a process of its own; `out` takes the inputs of findings."""
    with tempfile.TemporaryDirectory(prefix="fuzz-") as folder:
        code = "import sys; from benchmarks.fuzz_atheris import child; child(*sys.argv[1:])"
        arguments = [sys.executable, "-c", code, name, str(runs), str(seed), folder, str(out)]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
        limit_s = 10 * MAX_SECONDS + STUCK_S  # by the wall, which many may share
        try:
            done = subprocess.run(arguments, env=environment, capture_output=True, timeout=limit_s, check=False)
            end = f"ended with {done.returncode}: {_last_line(done.stderr)}"
        except subprocess.TimeoutExpired:
            end = f"did not end within {limit_s:.0f} s"
        result = Path(folder, "result.json")
        if result.is_file():
            return GuidedRun(**json.loads(result.read_text(encoding="utf-8")))
        kept = out / f"{name}-atheris-{seed}-last"
        if (last := Path(folder, "last")).is_file():
            shutil.copy(last, kept)
        return GuidedRun(findings=[(str(kept), f"the process {end}")])


def _last_line(text: bytes) -> str:
    lines = text.decode("utf-8", "replace").split("\n")
    return next((line for line in reversed(lines) if "ERROR" in line or "Error" in line), lines[-1])[:200]


def child(name: str, runs: str, seed: str, folder: str, out: str) -> None:
    """Fuzz one target until its runs or its time are over, and end the process."""
    import atheris

    # what numba compiles must keep its bytecode
    compiled = [f"analysis.neteq.{module.name}" for module in pkgutil.iter_modules([f"{analysis.__path__[0]}/neteq"])]
    with atheris.instrument_imports(include=["analysis"], exclude=["analysis.neteq", *compiled]):
        from benchmarks.fuzz_targets import TARGETS, Hang, judge, warm_up
    from benchmarks.fuzz_mutate import damage_json_text

    target = TARGETS[name]
    slow = replace(target, limit_s=SLOWER * target.limit_s)
    corpus, scratch, last = (Path(folder, each) for each in ("corpus", "scratch", "last"))
    corpus.mkdir()
    scratch.mkdir()
    for number, each in enumerate(target.corpus):
        (corpus / f"{number:03d}").write_bytes(each.whole()[:MAX_INPUT_BYTES])
    warm_up(scratch)
    warnings.simplefilter("error")
    counted = GuidedRun()
    known: set[str] = set()
    start_s = process_time()
    signal.signal(signal.SIGPROF, _raise(Hang))

    def one(data: bytes) -> None:
        last.write_bytes(data)  # what is known of an input that ends the process
        signal.setitimer(signal.ITIMER_PROF, slow.limit_s)
        try:
            outcome = judge(slow, data, scratch)
            fault = outcome.fault
            counted.accepted += outcome.accepted
            counted.slowest_s = max(counted.slowest_s, outcome.cpu_s)
        except Hang:
            fault = f"took more than {slow.limit_s:g} s"
        signal.setitimer(signal.ITIMER_PROF, 0)
        counted.runs += 1
        if fault is not None and (place := fault.partition(":")[0]) not in known and len(known) < MAX_KEPT:
            known.add(place)
            path = Path(out, f"{name}-atheris-{counted.runs}")
            path.write_bytes(data)
            counted.findings.append((str(path), fault))
        if counted.runs >= int(runs) or process_time() - start_s > MAX_SECONDS:
            counted.seconds = process_time() - start_s
            Path(folder, "result.json").write_text(json.dumps(asdict(counted)), encoding="utf-8")
            os._exit(0)

    def change(data: bytes, max_size: int, number: int) -> bytes:
        rng = random.Random(number)
        if rng.random() < 0.5:
            return bytes(atheris.Mutate(data, len(data)))[:max_size] if data else b"{}"
        return damage_json_text(rng, data)[:max_size]

    options = [name, f"-seed={int(seed) % (1 << 31) + 1}", f"-timeout={STUCK_S}", f"-rss_limit_mb={MEMORY_MB}"]
    options += [f"-max_len={MAX_INPUT_BYTES}", f"-artifact_prefix={out}/{name}-atheris-", "-verbosity=0", str(corpus)]
    textual = {"custom_mutator": change} if target.textual else {}
    atheris.Setup(options, one, **textual)
    with contextlib.suppress(KeyboardInterrupt):
        atheris.Fuzz()


def _raise(error: type[BaseException]) -> Callable[[int, object], None]:
    def handler(number: int, frame: object) -> None:
        raise error

    return handler
