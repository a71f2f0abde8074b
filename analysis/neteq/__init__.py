"""Decoded packets with their arrival times in, what Chrome's jitter buffer (NetEQ) plays of them and when out.

Source: libwebrtc, modules/audio_coding/neteq; the W3C counters as libwebrtc books them. What is modelled and what is
not stands in docs/adr/0005.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from analysis.neteq.buffer import Packet
from analysis.neteq.counters import Counters
from analysis.neteq.engine import TICK_MS, NetEq
from analysis.trace import PacketTrace
from analysis.units import NS_PER_MS, NS_PER_S

__all__ = ["PHASES_NS", "Counters", "NetEqRun", "Snapshot", "run_neteq", "run_neteq_phases"]

TICK_NS = TICK_MS * NS_PER_MS
# Where a real sink's ticks lie is not in the trace and changes from call to call: first tick after the first arrival.
PHASES_NS = tuple(ms * NS_PER_MS for ms in (5, 3, 7, 1, 9))
LONG_S = 1200  # longer traces try the first three only
SNAPSHOT_TICKS = 20
WINDOW_SNAPSHOTS = 5
MAX_EMPTY_TICKS = 1000  # without a packet; what lies beyond is one snapshot, however long
DTX_BYTES = 2  # an Opus packet of so few bytes carries no sound


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The running totals at `time_ns`, and the target delay then (None before the first packet was played)."""

    time_ns: int
    target_ms: int | None
    counters: Counters


@dataclass(frozen=True, slots=True)
class NetEqRun:
    """What was played: [output sample, position, samples] by output, output sample 0 leaves at `origin_ns`."""

    origin_ns: int
    pieces: list[list[int]]
    counters: Counters
    discarded: int
    snapshots: list[Snapshot]


def run_neteq_phases(trace: PacketTrace) -> list[NetEqRun]:
    """Play a trace on several tick grids; the run that is most like the others comes first.

    Parameters
    ----------
    trace : PacketTrace
        At least one packet.

    Returns
    -------
    list of NetEqRun
        Five, or three for a trace of more than 20 minutes. Each ends when all that arrived has been played.
    """
    packets = _packets(trace)
    order = np.argsort(trace.arrival_ns, kind="stable")
    length_ns = int(trace.arrival_ns.max()) - int(trace.arrival_ns.min())
    phases = PHASES_NS[:3] if length_ns > LONG_S * NS_PER_S else PHASES_NS
    arrivals = trace.arrival_ns[order].tolist()
    runs = [_run(trace.rate_hz, [packets[i] for i in order.tolist()], arrivals, phase) for phase in phases]
    delays = [_window_delays(run) for run in runs]
    count = min(len(d) for d in delays)
    table = np.array([d[:count] for d in delays])
    distance = np.abs(table[:, None, :] - table[None, :, :]).sum(axis=(1, 2))
    first = int(np.argmin(distance))
    return [runs[first], *runs[:first], *runs[first + 1 :]]


def run_neteq(trace: PacketTrace, phase_ns: int) -> NetEqRun:
    """Play a trace of at least one packet with the first tick `phase_ns` after the first arrival."""
    packets = _packets(trace)
    order = np.argsort(trace.arrival_ns, kind="stable")
    arrivals = trace.arrival_ns[order].tolist()
    return _run(trace.rate_hz, [packets[i] for i in order.tolist()], arrivals, phase_ns)


def _run(rate_hz: int, packets: list[Packet], arrivals: list[int], phase_ns: int) -> NetEqRun:
    origin = arrivals[0] + phase_ns
    neteq = NetEq(rate_hz)
    snapshots: list[Snapshot] = []
    due, total = 0, len(arrivals)
    now = origin
    while True:
        while due < total and arrivals[due] <= now:
            neteq.insert(packets[due])
            due += 1
        if due == total and neteq.idle:
            break
        ticks = 1
        if neteq.muted and arrivals[due] > now + MAX_EMPTY_TICKS * TICK_NS:
            ticks = (arrivals[due] - now) // TICK_NS
            ticks -= (neteq.ticks + ticks) % SNAPSHOT_TICKS
            neteq.skip_muted(ticks)
        else:
            neteq.tick()
        now += ticks * TICK_NS
        if neteq.ticks % SNAPSHOT_TICKS == 0:
            snapshots.append(_snapshot(neteq, now))
    if neteq.ticks % SNAPSHOT_TICKS:
        snapshots.append(_snapshot(neteq, now))
    return NetEqRun(origin, neteq.sync.pieces, neteq.counters, neteq.buffer.discarded, snapshots)


def _packets(trace: PacketTrace) -> list[Packet]:
    ends = np.cumsum(trace.samples).tolist()
    samples, positions = trace.samples.tolist(), trace.position.tolist()
    dtx = (trace.payload_bytes <= DTX_BYTES).tolist()
    return [
        Packet(position, count, trace.pcm[end - count : end], quiet)
        for position, count, end, quiet in zip(positions, samples, ends, dtx, strict=True)
    ]


def _window_delays(run: NetEqRun) -> NDArray[np.float64]:
    """Mean wait (ms) of the packets emitted in each second, 0 where there were none."""
    totals = [Counters(), *(s.counters for s in run.snapshots)][::WINDOW_SNAPSHOTS]
    delay = np.diff([float(c.delay_ms_samples) for c in totals])
    return np.asarray(delay / np.maximum(np.diff([float(c.emitted) for c in totals]), 1.0))


def _snapshot(neteq: NetEq, now_ns: int) -> Snapshot:
    counters = replace(neteq.counters)
    return Snapshot(now_ns, neteq.target_ms if counters.played else None, counters)
