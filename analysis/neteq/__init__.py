"""Decoded packets with their arrival times in, what Chrome's jitter buffer (NetEQ) plays of them and when out.

Source: libwebrtc, modules/audio_coding/neteq; the W3C counters as libwebrtc books them. What is modelled and what is
not stands in docs/adr/0005. The engine is compiled by numba (docs/adr/0008), which is loaded when first needed.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from analysis.trace import PacketTrace
from analysis.units import NS_PER_MS

__all__ = [
    "PHASES_NS",
    "Counters",
    "NetEqRun",
    "Snapshot",
    "compile_engine",
    "is_compiled",
    "run_neteq",
    "run_neteq_phases",
]

# Where a real sink's ticks lie is not in the trace and changes from call to call: first tick after the first arrival.
PHASES_NS = tuple(ms * NS_PER_MS for ms in (5, 3, 7, 1, 9))
WINDOW_SNAPSHOTS = 5


@dataclass(frozen=True, slots=True)
class Counters:
    """Running totals, in samples unless the name says otherwise; nothing counts before decoded audio was played.

    `energy` is that of what was played, in seconds of full scale squared, by the level that libwebrtc meters: the peak
    of the 11 ticks before (which 11, a trace does not tell: up to 4 % on 40 s of speech).
    """

    played: bool
    delay_ms_samples: int
    target_ms_samples: int
    minimum_ms_samples: int
    emitted: int
    received: int
    concealed: int
    silent: int
    events: int
    inserted: int
    removed: int
    discarded: int
    processing_ns_samples: float
    energy: float


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The running totals at `time_ns`, and the target delay then (None before the first packet was played)."""

    time_ns: int
    target_ms: int | None
    counters: Counters


@dataclass(frozen=True, slots=True)
class NetEqRun:
    """What was played: [output sample, position, samples] by output, output sample 0 leaves at `origin_ns`.

    `totals` are the running totals every 200 ms and at the end, as records with the names of `Counters`, `time_ns` and
    `target_ms`. A stretch of more than 10 s in which nothing happens has one.
    """

    origin_ns: int
    pieces: NDArray[np.int64]
    totals: NDArray[Any]

    @property
    def counters(self) -> Counters:
        """The totals at the end."""
        return _counters(self.totals[-1])

    @property
    def snapshots(self) -> list[Snapshot]:
        """The totals one by one."""
        return [
            Snapshot(int(t["time_ns"]), int(t["target_ms"]) if t["played"] else None, _counters(t)) for t in self.totals
        ]


def is_compiled() -> bool:
    """Whether the engine has been compiled on this machine; otherwise the first run takes some 15 s longer."""
    from analysis.neteq.compiled import is_kept
    from analysis.neteq.engine import advance

    return is_kept(advance)


def compile_engine() -> None:
    """Play one packet of silence, so that the engine is compiled and kept."""
    one = np.ones(1, dtype=np.int64)
    run_neteq(PacketTrace(8000, one, one, 80 * one, one, 80 * one, np.zeros(80, dtype=np.float32)), 0)


def run_neteq_phases(trace: PacketTrace) -> list[NetEqRun]:
    """Play a trace on several tick grids; the run that is most like the others comes first.

    Parameters
    ----------
    trace : PacketTrace
        At least one packet.

    Returns
    -------
    list of NetEqRun
        One for each of `PHASES_NS`. Each ends when all that arrived has been played.
    """
    runs = _run(trace, PHASES_NS)
    delays = [_window_delays(run) for run in runs]
    count = min(len(d) for d in delays)
    table = np.array([d[:count] for d in delays])
    distance = np.abs(table[:, None, :] - table[None, :, :]).sum(axis=(1, 2))
    first = int(np.argmin(distance))
    return [runs[first], *runs[:first], *runs[first + 1 :]]


def run_neteq(trace: PacketTrace, phase_ns: int) -> NetEqRun:
    """Play a trace of at least one packet with the first tick `phase_ns` after the first arrival."""
    return _run(trace, (phase_ns,))[0]


def _run(trace: PacketTrace, phases_ns: tuple[int, ...]) -> list[NetEqRun]:
    from analysis.neteq.grids import play_on_grids  # loads numba, for which nothing else should have to wait

    first_ns = int(np.concatenate([trace.arrival_ns, trace.noise[:, 1]]).min())
    origins = [first_ns + phase for phase in phases_ns]
    return [NetEqRun(at, *played) for at, played in zip(origins, play_on_grids(trace, origins), strict=True)]


def _counters(totals: Any) -> Counters:
    return Counters(*(totals[field.name].item() for field in fields(Counters)))


def _window_delays(run: NetEqRun) -> NDArray[np.float64]:
    """Mean wait (ms) of the packets emitted in each second, 0 where there were none."""
    totals = run.totals[WINDOW_SNAPSHOTS - 1 :: WINDOW_SNAPSHOTS]
    delay = np.diff(totals["delay_ms_samples"].astype(np.float64), prepend=0.0)
    return np.asarray(delay / np.maximum(np.diff(totals["emitted"].astype(np.float64), prepend=0.0), 1.0))
