"""A call's packets into its network over time: transit, jitter, losses and round trips, per call and per turn.

Sources: RFC 3550 appendix A.8 (jitter), section 6.4.1 (round trip). Transit is relative: each packet's arrival less its
place on the sender's media clock, from the smallest of its stream, so two clocks are never subtracted.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from analysis.bundle import Event
from analysis.rtcp_statistics import RoundTrip, RtcpLedger
from analysis.streams import Stream
from analysis.units import NS_PER_S

__all__ = ["Arrivals", "RoundTrip", "arrivals", "round_trips", "stun_round_trips"]


@dataclass(frozen=True)
class Arrivals:
    """All packets of a call in order of arrival; arrays of shape (n,), and (m,) for `lost_ns`."""

    arrival_ns: NDArray[np.int64]
    transit_ms: NDArray[np.float64]
    jitter_ms: NDArray[np.float64]
    lost_ns: NDArray[np.int64]

    def jitter_at_ms(self, time_ns: int) -> float | None:
        """Jitter at a moment; None before the first packet."""
        index = int(np.searchsorted(self.arrival_ns, time_ns, side="right")) - 1
        return None if index < 0 else float(self.jitter_ms[index])

    def lost_between(self, begin_ns: int, end_ns: int) -> int:
        """Packets lost whose turn to arrive came in [begin, end)."""
        return int(((self.lost_ns >= begin_ns) & (self.lost_ns < end_ns)).sum())


def _jitter_ms(arrival_ns: NDArray[np.int64], media_ns: NDArray[np.float64]) -> NDArray[np.float64]:
    steps = np.abs(np.diff(arrival_ns - media_ns)) / 1e6
    jitter, out = 0.0, [0.0]
    for step in steps.tolist():
        jitter += (step - jitter) / 16
        out.append(jitter)
    return np.array(out[: len(arrival_ns)])


def arrivals(streams: Sequence[Stream]) -> Arrivals:
    """Transit, jitter and losses of a call's streams. A lost packet is put where its neighbours say it was due."""
    parts: list[tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.float64]]] = []
    lost: list[NDArray[np.float64]] = []
    for stream in streams:
        media_ns = stream.position.astype(np.float64) * (NS_PER_S / stream.codec.rate_hz)
        transit = (stream.arrival_ns - media_ns) / 1e6
        order = np.argsort(stream.arrival_ns, kind="stable")
        jitter = _jitter_ms(stream.arrival_ns[order], media_ns[order])
        parts.append((stream.arrival_ns[order], (transit - transit.min())[order], jitter))
        for i in np.flatnonzero(np.diff(stream.sequence) > 1):
            missing = int(stream.sequence[i + 1] - stream.sequence[i]) - 1
            length_ns = stream.samples[i] * NS_PER_S / stream.codec.rate_hz
            lost.append(stream.arrival_ns[i] + length_ns * np.arange(1, min(missing, 3000) + 1))
    empty = np.empty(0)
    if not parts:
        return Arrivals(empty.astype(np.int64), empty, empty, empty.astype(np.int64))
    arrival_ns, transit_ms, jitter_ms = (np.concatenate([p[k] for p in parts]) for k in range(3))
    order = np.argsort(arrival_ns, kind="stable")
    lost_ns = np.sort(np.concatenate(lost)) if lost else empty
    return Arrivals(arrival_ns[order], transit_ms[order], jitter_ms[order], lost_ns.astype(np.int64))


def round_trips(
    received: Sequence[tuple[int, bytes]], sent: Sequence[tuple[int, bytes]], ssrc: int | None
) -> list[RoundTrip]:
    """Round trips by the peer's reports about our stream `ssrc`, on our monotonic clock alone.

    Each answers a sender report of ours (RR, SR) or a reference time (DLRR).
    """
    found: list[RoundTrip] = []
    if ssrc is None:
        return found
    ledger = RtcpLedger(on_round_trip=found.append)
    ledger.sends(ssrc)
    ways = [(t, True, d) for t, d in sent], [(t, False, d) for t, d in received]
    for time_ns, ours, data in heapq.merge(*ways, key=lambda item: item[0]):
        (ledger.sent if ours else ledger.received)(time_ns, data)
    return found


def stun_round_trips(events: Iterable[Event]) -> list[RoundTrip]:
    """Round trips of ICE's own checks, some every 5 s, whether media flows or not (events `stun_round_trip`)."""
    return [RoundTrip(e.time_ns, int(e.fields["rtt_ns"]), "stun") for e in events if e.type == "stun_round_trip"]
