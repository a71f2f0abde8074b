"""Arrivals of one stream's decoded packets in, when each sample leaves the jitter buffer and the W3C counters out.

Source: the design's playout policies; counters and units of W3C webrtc-stats (RTCInboundRtpStreamStats). `chrome` is
libwebrtc's NetEQ (analysis.neteq, docs/adr/0005). All times are monotonic ns of the clock that stamped the arrivals;
the output delay of the sink is not in them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from analysis.errors import UsageError
from analysis.neteq import NetEqRun, run_neteq_phases
from analysis.trace import PacketTrace, talkspurts
from analysis.units import NS_PER_MS, NS_PER_S, ms_to_ns, samples_to_ms, samples_to_ns

__all__ = ["Playout", "PlayoutPoint", "Policy", "Totals", "parse_policy", "play"]

MAX_FIXED_MS = 5000
MAX_SHOWN = 40  # characters of a policy that is none
POINT_MS = 200
MAX_EMPTY_POINTS = 50  # of a stretch in which nothing happens; the rest of it is one point
# W3C's names for what `analysis.neteq` counts, and for what it sums up in other units than seconds
NETEQ_COUNTS = {
    "jitterBufferEmittedCount": "emitted",
    "concealedSamples": "concealed",
    "silentConcealedSamples": "silent",
    "concealmentEvents": "events",
    "insertedSamplesForDeceleration": "inserted",
    "removedSamplesForAcceleration": "removed",
    "totalSamplesReceived": "received",
    "packetsDiscarded": "discarded",
}
NETEQ_SECONDS = {
    "jitterBufferDelay": ("delay_ms_samples", 1000),
    "jitterBufferTargetDelay": ("target_ms_samples", 1000),
    "jitterBufferMinimumDelay": ("minimum_ms_samples", 1000),
    "totalProcessingDelay": ("processing_ns_samples", NS_PER_S),
    "totalAudioEnergy": ("energy", 1),
}

Int64 = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class PlayoutPoint:
    """What happened in the window that ends at `time_ns` and begins at the point before.

    `jitter_buffer_delay_ms` is the mean over the samples emitted in it, None where there were none; `target_delay_ms`
    is the target at its end, None where the policy has none or nothing was played yet. `concealed_ms` includes
    `silent_concealed_ms`, concealment that has faded to silence (in a pause of the sender, or in a long outage). A
    point comes every 200 ms, but a stretch of more than 10 s in which nothing happens is one point.
    """

    time_ns: int
    jitter_buffer_delay_ms: float | None
    target_delay_ms: float | None
    concealed_ms: float
    removed_ms: float
    inserted_ms: float
    silent_concealed_ms: float = 0.0
    packets_discarded: int = 0


@dataclass(frozen=True, slots=True)
class Totals:
    """Running totals: `counters[name][i]` (W3C names) holds from `time_ns[i]` until the next; 0 before the first."""

    time_ns: Int64
    counters: Mapping[str, NDArray[np.number]]


@dataclass(frozen=True, slots=True)
class Policy:
    """A parsed policy: `kind` is `none`, `fixed` or `chrome`; `delay_ms` belongs to `fixed`."""

    kind: str
    delay_ms: float = 0.0

    @property
    def name(self) -> str:
        """Its one spelling, whatever it was parsed from: `fixed:100` also for `fixed:0100.0`."""
        if self.kind != "fixed":
            return self.kind
        return f"fixed:{np.format_float_positional(self.delay_ms, trim='-')}"


@dataclass(frozen=True, slots=True)
class Playout:
    """When the samples of a trace leave the jitter buffer under a policy.

    Pieces are sorted by position. Sample `piece_position[i] + k` (k < `piece_samples[i]`) leaves at
    `piece_ns[i]` + k / rate; a sample in no piece was never played (lost, late, or removed by acceleration).

    `inbound` has the W3C names; what the policy does not determine is absent. `alternatives` are the pieces (position,
    samples, ns) that `chrome` plays where the sink's 10 ms ticks lie elsewhere, which no trace tells. `totals` are the
    same counters over time, which `inbound_at` adds up.
    """

    policy: str
    rate_hz: int
    piece_position: Int64
    piece_samples: Int64
    piece_ns: Int64
    inbound: dict[str, float | int]
    series: tuple[PlayoutPoint, ...]
    alternatives: tuple[tuple[Int64, Int64, Int64], ...] = ()
    totals: tuple[Totals, ...] = ()

    def inbound_at(self, time_ns: int) -> dict[str, float | int]:
        """What `inbound` would have been at a moment; under `chrome` at the last multiple of 200 ms before it."""
        found = {name: type(value)(0) for name, value in self.inbound.items()}
        for totals in self.totals:
            at = int(np.searchsorted(totals.time_ns, time_ns, side="right")) - 1
            if at >= 0:
                for name, values in totals.counters.items():
                    found[name] += values[at].item()
        return found

    def play_ns(self, position: int) -> int | None:
        """When the sample at `position` leaves (monotonic ns), None where it is never played."""
        return _play_ns(self.piece_position, self.piece_samples, self.piece_ns, position, self.rate_hz)

    def play_range_ns(self, position: int) -> tuple[int, int] | None:
        """The earliest and the latest time at which the sample may leave; None where `play_ns` is None.

        It spans the alternatives that play the sample, and is one time under a policy that has none.
        """
        played = self.play_ns(position)
        if played is None:
            return None
        others = (_play_ns(*pieces, position, self.rate_hz) for pieces in self.alternatives)
        times = [played, *(t for t in others if t is not None)]
        return min(times), max(times)

    def played_mask(self, start_position: int, count: int) -> NDArray[np.bool_]:
        """Which of the `count` samples from `start_position` on are played; shape (count,)."""
        mask = np.zeros(count, dtype=np.bool_)
        ends = self.piece_position + self.piece_samples
        touching = (self.piece_position < start_position + count) & (ends > start_position)
        for first, end in zip(self.piece_position[touching].tolist(), ends[touching].tolist(), strict=True):
            mask[max(0, first - start_position) : end - start_position] = True
        return mask


def _play_ns(position: Int64, samples: Int64, time_ns: Int64, sample: int, rate_hz: int) -> int | None:
    at = int(np.searchsorted(position, sample, side="right")) - 1
    if at < 0 or sample >= position[at] + samples[at]:
        return None
    return int(time_ns[at]) + samples_to_ns(sample - int(position[at]), rate_hz)


def parse_policy(text: str) -> Policy:
    """`none`, `fixed:MS` (0 to 5000) or `chrome`.

    Raises
    ------
    UsageError
        For anything else.

    Examples
    --------
    >>> parse_policy("fixed:150.0")
    Policy(kind='fixed', delay_ms=150.0)
    >>> parse_policy("fixed:150.0").name
    'fixed:150'
    """
    if text in ("none", "chrome"):
        return Policy(text)
    match = re.fullmatch(r"fixed:(\d+(?:\.\d+)?)", text, flags=re.ASCII)
    if match is not None and float(match[1]) <= MAX_FIXED_MS:
        return Policy("fixed", float(match[1]))
    shown = text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}…"
    raise UsageError(
        f"unknown playout policy {shown!r}",
        next_step=f"use none, chrome, or fixed:MS with MS from 0 to {MAX_FIXED_MS} (fixed:150)",
    )


def play(trace: PacketTrace, policy: str) -> Playout:
    """Play a trace under a policy.

    Parameters
    ----------
    trace : PacketTrace
        May be empty: then nothing is played.
    policy : str
        `none`: a packet is heard as it arrives, the rest of it at its RTP distance. `fixed:MS`: the packet of a
        talkspurt that arrives first plays MS after it arrived, the others at their RTP distance from it; one that
        arrives after its turn is discarded. `chrome`: NetEQ.

    Returns
    -------
    Playout

    Raises
    ------
    UsageError
        If `policy` is none of these.

    Notes
    -----
    1. `jitterBufferDelay` is booked per packet (its wait times its samples), as libwebrtc does; under `chrome` a wait
       is a whole number of 10 ms ticks, as in its statistics, while pieces are to the sample.
    2. Only `chrome` hears the sound and decodes it at a certain time, so `silentConcealedSamples`, `totalAudioEnergy`
       and `totalProcessingDelay` are absent elsewhere, as are the targets under `none`. Its energy is that of
       libwebrtc's level meter, as a browser reports it: some 30 times the mean square of speech.
    """
    parsed = parse_policy(policy)
    policy = parsed.name
    if len(trace.sequence) == 0:
        empty = np.zeros(0, dtype=np.int64)
        return Playout(policy, trace.rate_hz, empty, empty, empty, _empty_inbound(parsed), ())
    if parsed.kind == "chrome":
        return _from_neteq(trace, policy, run_neteq_phases(trace))
    spurt = talkspurts(trace.sequence, trace.position, trace.samples, trace.rate_hz)
    due_ns = trace.arrival_ns.copy() if parsed.kind == "none" else _fixed_due_ns(trace, spurt, parsed.delay_ms)
    return _constant(trace, policy, parsed, spurt, due_ns)


def _duration_ns(samples: Int64, rate_hz: int) -> Int64:
    """`samples_to_ns` of an array; whole seconds apart, or a day of samples would overflow."""
    seconds, rest = np.divmod(samples, rate_hz)
    return np.asarray(seconds * NS_PER_S + (2 * rest * NS_PER_S + rate_hz) // (2 * rate_hz), dtype=np.int64)


def _fixed_due_ns(trace: PacketTrace, spurt: Int64, delay_ms: float) -> Int64:
    """When each packet's first sample is due: RTP distance from the packet of its talkspurt that arrived first."""
    order = np.lexsort((trace.sequence, trace.arrival_ns, spurt))
    firsts = order[np.searchsorted(spurt[order], np.arange(int(spurt[-1]) + 1))]
    anchor = firsts[spurt]
    distance = _duration_ns(trace.position - trace.position[anchor], trace.rate_hz)
    return np.asarray(trace.arrival_ns[anchor] + ms_to_ns(delay_ms) + distance, dtype=np.int64)


def _constant(trace: PacketTrace, policy: str, parsed: Policy, spurt: Int64, due_ns: Int64) -> Playout:
    """The playout of policies that neither stretch nor wait: each packet at its due time, or not at all."""
    played = trace.arrival_ns <= due_ns
    rate_hz = trace.rate_hz
    order = np.argsort(trace.position[played], kind="stable")
    position, samples = trace.position[played][order], trace.samples[played][order]
    gap_ns, gap_samples = _gaps(trace, spurt, played, due_ns)
    emitted, concealed = int(samples.sum()), int(gap_samples.sum())
    wait_ns = (due_ns - trace.arrival_ns)[played]
    delay = float(np.dot(wait_ns.astype(np.float64), trace.samples[played])) / NS_PER_S
    inbound: dict[str, float | int] = {
        **_empty_inbound(parsed),
        "jitterBufferDelay": delay,
        "jitterBufferEmittedCount": emitted,
        "concealedSamples": concealed,
        "concealmentEvents": len(gap_samples),
        "totalSamplesReceived": emitted + concealed,
        "packetsDiscarded": int(np.count_nonzero(~played)),
    }
    if parsed.kind == "fixed":
        inbound["jitterBufferTargetDelay"] = inbound["jitterBufferMinimumDelay"] = parsed.delay_ms * emitted / 1000
    events = (due_ns[played], trace.samples[played], wait_ns), (gap_ns, gap_samples), trace.arrival_ns[~played]
    target_ms = parsed.delay_ms if parsed.kind == "fixed" else None
    series = _constant_series(rate_hz, int(trace.arrival_ns.min()), *events, target_ms)
    totals = _constant_totals(*events, target_ms)
    return Playout(policy, rate_hz, position, samples, due_ns[played][order], inbound, series, totals=totals)


def _constant_totals(
    emitted: tuple[Int64, Int64, Int64], gaps: tuple[Int64, Int64], discarded_ns: Int64, target_ms: float | None
) -> tuple[Totals, ...]:
    """The counters over time; what was emitted or made up counts when it was due, whole."""
    due_ns, samples, wait_ns = (column[np.argsort(emitted[0], kind="stable")] for column in emitted)
    gap_ns, gap_samples = (column[np.argsort(gaps[0], kind="stable")] for column in gaps)
    count, made_up = np.cumsum(samples), np.cumsum(gap_samples)
    played: dict[str, NDArray[np.number]] = {
        "jitterBufferDelay": np.cumsum(samples * (wait_ns / NS_PER_S)),
        "jitterBufferEmittedCount": count,
        "totalSamplesReceived": count,
    }
    if target_ms is not None:
        played["jitterBufferTargetDelay"] = played["jitterBufferMinimumDelay"] = target_ms * count / 1000
    concealed: dict[str, NDArray[np.number]] = {
        "concealedSamples": made_up,
        "concealmentEvents": np.arange(1, len(made_up) + 1),
        "totalSamplesReceived": made_up,
    }
    discarded = Totals(np.sort(discarded_ns), {"packetsDiscarded": np.arange(1, len(discarded_ns) + 1)})
    return Totals(due_ns, played), Totals(gap_ns, concealed), discarded


def _gaps(trace: PacketTrace, spurt: Int64, played: NDArray[np.bool_], due_ns: Int64) -> tuple[Int64, Int64]:
    """Runs of samples inside talkspurts that had to be made up: when each was due (ns) and its length in samples."""
    begins = np.searchsorted(spurt, np.arange(int(spurt[-1]) + 1))
    first = np.minimum.reduceat(trace.position, begins)
    length = np.maximum.reduceat(trace.position + trace.samples, begins) - first
    # the talkspurts laid end to end, so that one running maximum serves them all
    base = np.cumsum(length) - length
    start = (trace.position - first[spurt] + base[spurt])[played]
    edges = np.concatenate([base, base + length])
    starts, ends = np.concatenate([start, edges]), np.concatenate([start + trace.samples[played], edges])
    order = np.argsort(starts, kind="stable")
    covered = np.maximum.accumulate(ends[order])[:-1]
    missing = starts[order][1:] - covered
    at, missing = covered[missing > 0], missing[missing > 0]
    number = np.searchsorted(base, at, side="right") - 1
    from_anchor = at - base[number] + first[number] - trace.position[begins[number]]
    return np.asarray(due_ns[begins[number]] + _duration_ns(from_anchor, trace.rate_hz), dtype=np.int64), missing


def _constant_series(
    rate_hz: int,
    origin_ns: int,
    emitted: tuple[Int64, Int64, Int64],
    gaps: tuple[Int64, Int64],
    discarded_ns: Int64,
    target_ms: float | None,
) -> tuple[PlayoutPoint, ...]:
    """Points every 200 ms from the first arrival on; an event counts where it begins."""
    window_ns = POINT_MS * NS_PER_MS
    due_ns, samples, wait_ns = emitted
    windows = (np.concatenate([due_ns, gaps[0], discarded_ns]) - origin_ns) // window_ns
    used, index = np.unique(windows, return_inverse=True)
    count = len(used)
    of_packets, of_gaps, of_discarded = np.split(index, np.cumsum([len(due_ns), len(gaps[0])]))
    played = np.bincount(of_packets, weights=samples, minlength=count)
    waited = np.bincount(of_packets, weights=samples * (wait_ns / NS_PER_MS), minlength=count)
    concealed = np.bincount(of_gaps, weights=gaps[1], minlength=count)
    discarded = np.bincount(of_discarded, minlength=count).tolist()
    points: list[PlayoutPoint] = []
    previous = int(used[0]) - 1 if count else 0
    for i, window in enumerate(used.tolist()):
        skipped = window - previous - 1 > MAX_EMPTY_POINTS
        for empty in range(window - 1 if skipped else previous + 1, window):
            points.append(PlayoutPoint(origin_ns + (empty + 1) * window_ns, None, target_ms, 0.0, 0.0, 0.0))
        mean = float(waited[i] / played[i]) if played[i] else None
        concealed_ms = samples_to_ms(float(concealed[i]), rate_hz)
        end_ns = origin_ns + (window + 1) * window_ns
        points.append(PlayoutPoint(end_ns, mean, target_ms, concealed_ms, 0.0, 0.0, packets_discarded=discarded[i]))
        previous = window
    return tuple(points)


def _empty_inbound(parsed: Policy) -> dict[str, float | int]:
    inbound: dict[str, float | int] = {
        "jitterBufferDelay": 0.0,
        "jitterBufferEmittedCount": 0,
        "concealedSamples": 0,
        "concealmentEvents": 0,
        "insertedSamplesForDeceleration": 0,
        "removedSamplesForAcceleration": 0,
        "totalSamplesReceived": 0,
        "packetsDiscarded": 0,
    }
    if parsed.kind != "none":
        inbound["jitterBufferTargetDelay"] = inbound["jitterBufferMinimumDelay"] = 0.0
    if parsed.kind == "chrome":
        inbound["silentConcealedSamples"] = 0
        inbound["totalProcessingDelay"] = inbound["totalAudioEnergy"] = 0.0
    return inbound


def _from_neteq(trace: PacketTrace, policy: str, runs: list[NetEqRun]) -> Playout:
    run = runs[0]
    counters: dict[str, NDArray[np.number]] = {name: run.totals[field] for name, field in NETEQ_COUNTS.items()}
    counters |= {name: run.totals[field] / per_second for name, (field, per_second) in NETEQ_SECONDS.items()}
    chosen, *others = (_neteq_pieces(r, trace.rate_hz) for r in runs)
    return Playout(
        policy,
        trace.rate_hz,
        *chosen,
        {name: values[-1].item() for name, values in counters.items()},
        _neteq_series(trace.rate_hz, run),
        tuple(others),
        (Totals(run.totals["time_ns"], counters),),
    )


def _neteq_pieces(run: NetEqRun, rate_hz: int) -> tuple[Int64, Int64, Int64]:
    """Position, samples and time of the pieces, sorted by position."""
    pieces = run.pieces[run.pieces[:, 2] > 0]
    pieces = pieces[np.argsort(pieces[:, 1], kind="stable")]
    return pieces[:, 1].copy(), pieces[:, 2].copy(), run.origin_ns + _duration_ns(pieces[:, 0], rate_hz)


def _neteq_series(rate_hz: int, run: NetEqRun) -> tuple[PlayoutPoint, ...]:
    def steps(name: str) -> list[int]:
        return [int(step) for step in np.diff(run.totals[name], prepend=0)]

    delays = [
        wait / count if count else None for wait, count in zip(steps("delay_ms_samples"), steps("emitted"), strict=True)
    ]
    targets = [
        t if p else None for t, p in zip(run.totals["target_ms"].tolist(), run.totals["played"].tolist(), strict=True)
    ]
    stretches = (
        [samples_to_ms(step, rate_hz) for step in steps(name)]
        for name in ("concealed", "removed", "inserted", "silent")
    )
    columns = (run.totals["time_ns"].tolist(), delays, targets, *stretches, steps("discarded"))
    return tuple(PlayoutPoint(*row) for row in zip(*columns, strict=True))
