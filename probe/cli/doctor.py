"""`doctor`: what this machine has of what a measurement needs, and how to get the rest."""

from __future__ import annotations

import asyncio
import platform
import sys
from importlib.metadata import PackageNotFoundError, entry_points, version
from statistics import quantiles

import numpy as np

from analysis.codecs import CODECS, Decoder, Encoder
from analysis.errors import EXIT_FAILED
from analysis.neteq import compile_engine
from probe.arrival import kernel_stamps
from probe.cli.common import announce_compiling
from probe.cli.output import say
from probe.clock import SystemClock
from probe.loop import LagSelector, run
from probe.targets.base import ENTRY_POINT_GROUP

__all__ = ["doctor"]

PACKAGES = (
    "aiortc",
    "aioice",
    "av",
    "numba",
    "numpy",
    "scipy",
    "soundfile",
    "soxr",
    "matplotlib",
    "jinja2",
    "pydantic",
    "rich",
)
TICKS = 200
TICK_S = 0.005
LATE_MS = 2.0  # as `probe_late`


def _timer_lateness_ms() -> list[float]:
    clock = SystemClock()

    async def tick(_: LagSelector) -> list[float]:
        late = []
        for _tick in range(TICKS):
            due_ns = clock.monotonic_ns() + int(TICK_S * 1e9)
            await asyncio.sleep(TICK_S)
            late.append((clock.monotonic_ns() - due_ns) / 1e6)
        return late

    return run(tick, clock)


def _codec_works(name: str) -> bool:
    encoder = Encoder(CODECS[name])
    payload = encoder.encode(np.zeros(encoder.frame_samples, dtype=np.float32))
    return Decoder(CODECS[name]).decode(payload) is not None


def doctor() -> int:
    """Check this machine: packages, codecs, targets and the exactness of its timers.

    Example: latency-probe doctor
    """
    problems = 0
    say(f"python {sys.version.split()[0]} on {platform.platform()}")
    for package in PACKAGES:
        try:
            say(f"ok    {package} {version(package)}")
        except PackageNotFoundError:
            problems += 1
            say(f"MISSING {package}: install it with pip install {package}")
    for name in CODECS:
        works = _codec_works(name)
        problems += not works
        say(f"{'ok   ' if works else 'MISSING'} codec {name}{'' if works else ': reinstall the package av'}")
    announce_compiling(("chrome",))
    compile_engine()
    say("ok    playout model: compiled")
    say("ok    targets: " + ", ".join(sorted(f"{p.name}:" for p in entry_points(group=ENTRY_POINT_GROUP))))
    stamped = kernel_stamps(SystemClock())
    without = "" if stamped else ": a wait in this process then counts as uncertainty"
    say(f"{'ok   ' if stamped else 'none '} kernel time stamps of arrivals{without}")
    late = quantiles(_timer_lateness_ms(), n=100)
    exact = late[98] <= LATE_MS
    problems += not exact
    say(f"{'ok   ' if exact else 'LATE '} timers: late by {late[49]:.3f} ms in the median, {late[98]:.3f} ms at p99")
    if not exact:
        say("      the machine is busy: turns will be flagged probe_late; close what uses the processor")
    return EXIT_FAILED if problems else 0
