"""One call's (or one captured stream's) packets and playout as the series that figures are drawn from.

Sources: RFC 3550 appendix A.8 (jitter); RFC 4737 section 3.3 (a packet is reordered if a later one of its stream
arrived before it). Times are seconds on one axis, for a call its own. Delays count from the fastest packet of the
stream, so that two clocks are never subtracted.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from analysis.drawing import Series
from analysis.network import Arrivals, RoundTrip
from analysis.playout import Playout
from analysis.streams import Stream, Timed
from analysis.units import NS_PER_MS, NS_PER_S, ns_to_ms, ns_to_s

__all__ = ["CONCEALED", "CallSeries", "audibly_concealed_ms", "call_series"]

TICK_MS = 10.0  # in which NetEQ conceals
BLEND_MS = 15.0  # less than a packet: what it makes up to blend sound in or out, at either end of a pause
WINDOW_NS = 200 * NS_PER_MS  # before the first point of a playout
PAUSE_MS = 60.0  # as between talkspurts: a sender that was silent for longer is not late

# what the pages mean by it
CONCEALED = (
    "What had to be made up because sound that was sent was not there to play. What is made up in a pause of the "
    "sender is not in it: there the packets' numbers go on by one while their timestamps jump."
)


def _none() -> Series:
    return np.zeros(0)


@dataclass(frozen=True, slots=True)
class CallSeries:
    """What the packets of one call and the playout model say over time; float64, seconds on the call's time axis.

    `arrival_s`, `transit_ms` (arrival − RTP time, up to a constant) and `jitter_ms` (RFC 3550) hold one value a packet,
    in the order of arrival; `lost_s` holds the time of each lost packet. `jitter_buffer_delay_ms`, `target_delay_ms`
    (NaN where nothing was emitted), `concealed_ms`, `removed_ms` and `inserted_ms` are over
    the window that ends at `playout_s`. `policy` names the playout policy.

    `interarrival_ms` is the time to the packet of the stream that arrived before, at `interarrival_s`; the first packet
    after a pause of the sender has none. `packet_ms` is the usual duration of a packet. `wait_ms` holds the time in the
    jitter buffer of each packet that was played; `played_ms` the delay above the fastest packet with which sound leaves
    the buffer at `played_s`, NaN between streams and across pauses. `duplicate_s`, `reordered_s` and `late_s`
    (arrived, but no sample of it was played) are arrivals of single packets; `longest_loss` counts packets in a row.
    `soundless` packets (comfort noise, events) are in no array, and `srtp_discarded` ones were never seen.
    Where the source does not tell, an array is empty and a number None. `name` and `axis` stand in titles.
    """

    call: int
    arrival_s: Series
    transit_ms: Series
    jitter_ms: Series
    lost_s: Series
    playout_s: Series
    jitter_buffer_delay_ms: Series
    target_delay_ms: Series
    concealed_ms: Series
    policy: str
    removed_ms: Series = field(default_factory=_none)
    inserted_ms: Series = field(default_factory=_none)
    interarrival_s: Series = field(default_factory=_none)
    interarrival_ms: Series = field(default_factory=_none)
    packet_ms: float | None = None
    wait_ms: Series = field(default_factory=_none)
    played_s: Series = field(default_factory=_none)
    played_ms: Series = field(default_factory=_none)
    duplicate_s: Series | None = None
    reordered_s: Series | None = None
    late_s: Series | None = None
    longest_loss: int | None = None
    soundless: int = 0
    srtp_discarded: int = 0
    rtt_s: Series = field(default_factory=_none)
    rtt_ms: Series = field(default_factory=_none)
    name: str = ""
    axis: str = "call time"

    @property
    def title(self) -> str:
        """What the series are of, in words."""
        return self.name or f"call {self.call}"

    @property
    def span_s(self) -> tuple[float, float]:
        """First and last moment that any series holds; (0, 0) where none does."""
        played_s = self.played_s[np.isfinite(self.played_ms)]
        given = (self.arrival_s, self.playout_s, self.lost_s, self.duplicate_s, played_s)
        found = [each for each in given if each is not None and len(each)]
        return (min(float(e.min()) for e in found), max(float(e.max()) for e in found)) if found else (0.0, 0.0)


def audibly_concealed_ms(stream: Stream, playout: Playout) -> Series:
    """What stood in for sound that was sent, in each window of `playout.series` (ms), shape (n,).

    NetEQ conceals a pause of the sender as it does a loss, and goes silent after about half a second in both. Only the
    packets tell them apart: in a pause the numbers go on by one while the timestamp jumps. What was made up between
    the last sample of a talkspurt, as played, and the first of the next does not count; all else does, silent or not.
    """
    total = np.array([point.concealed_ms for point in playout.series], dtype=np.float64)
    if playout.policy != "chrome" or not len(total):
        return total  # other policies make up nothing between talkspurts
    end_ns = np.array([point.time_ns for point in playout.series], dtype=np.int64)
    edges_ns = np.concatenate([end_ns[:1] - WINDOW_NS, end_ns])
    begins_ns, ends_ns = _pauses(stream, playout)
    # time in pauses up to each edge; pauses do not overlap
    length_ns = ends_ns - begins_ns
    known_ns = np.concatenate([[0], np.cumsum(length_ns)])
    after = np.searchsorted(begins_ns, edges_ns, side="right")
    inside_ns = np.where(after > 0, edges_ns - np.append(begins_ns, 0)[after - 1], 0)
    upto_ns = known_ns[np.maximum(after - 1, 0)] + np.minimum(inside_ns, np.append(length_ns, 0)[after - 1])
    paused_ms = np.diff(np.where(after > 0, upto_ns, 0)) / NS_PER_MS
    rest = np.maximum(total - paused_ms, 0)
    # the last of the blending is up to a tick after the pause
    blended = np.diff(np.searchsorted(ends_ns + round(TICK_MS * NS_PER_MS), edges_ns)) > 0
    return np.where(((paused_ms > 0) | blended) & (rest < BLEND_MS), 0, rest)


def _pauses(stream: Stream, playout: Playout) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """When each pause of the sender begins and ends where it is heard (ns), in order of time."""
    none = np.zeros(0, dtype=np.int64)
    begins, samples, left_ns = playout.piece_position, playout.piece_samples, playout.piece_ns
    position = stream.position + stream.origin
    before = np.flatnonzero((np.diff(stream.talkspurt) > 0) & (np.diff(position) > 0))
    if not len(before) or not len(begins):
        return none, none
    lost = np.diff(stream.sequence)[before] - 1
    last = position[before] + stream.samples[before] * (1 + lost)  # first sample of the pause
    # the piece that holds the end of the talkspurt, or the last before it; and the first of the next talkspurt
    piece = np.searchsorted(begins, last, side="left") - 1
    following = np.searchsorted(begins + samples, position[before + 1], side="right")
    known = (piece >= 0) & (following < len(begins))
    piece, following, last, first = piece[known], following[known], last[known], position[before + 1][known]
    per_sample_ns = NS_PER_S / playout.rate_hz
    begin_ns = left_ns[piece] + ((last - begins[piece]) * per_sample_ns).astype(np.int64)
    into = np.maximum(first - begins[following], 0)
    end_ns = left_ns[following] + (into * per_sample_ns).astype(np.int64)
    order = np.argsort(begin_ns, kind="stable")
    begin_ns, end_ns = begin_ns[order], np.maximum(end_ns, begin_ns)[order]
    return begin_ns, np.minimum(end_ns, np.append(begin_ns[1:], end_ns[-1:]))


def call_series(
    call: int,
    zero_ns: int,
    arrivals: Arrivals,
    policy: str,
    *,
    heard: Sequence[tuple[Stream, Playout | None]] = (),
    received: Iterable[Timed] | None = None,
    round_trips: Sequence[RoundTrip] = (),
    srtp_discarded: int = 0,
    name: str = "",
    axis: str = "call time",
) -> CallSeries:
    """The series of one call.

    Parameters
    ----------
    call : int
    zero_ns : int
        Time 0 of the call (monotonic ns).
    arrivals : Arrivals
    policy : str
    heard : sequence of (Stream, Playout or None)
        The streams behind `arrivals`, each with its playout under `policy`; without them there is nothing of single
        packets but their arrival.
    received : iterable of Timed, optional
        All packets as they arrived, from which duplicates are told.
    round_trips : sequence of RoundTrip
    srtp_discarded : int
        Packets that did not pass SRTP, so that `received` holds none of them.
    name, axis : str
        What the series are of, and what their time is called.
    """
    windows = [
        (point, concealed)
        for stream, playout in heard
        if playout is not None
        for point, concealed in zip(playout.series, audibly_concealed_ms(stream, playout).tolist(), strict=True)
    ]
    windows.sort(key=lambda window: window[0].time_ns)
    ordered = [point for point, _ in windows]

    def column(values: Iterable[float | None]) -> Series:
        return np.array([math.nan if v is None else v for v in values], dtype=np.float64)

    streams = [stream for stream, _ in heard]
    fates = [_fate(stream, playout) for stream, playout in heard if playout is not None and len(stream.sequence)]
    again_ns, soundless = _beside(received or (), streams)
    between = _together([_interarrival(stream) for stream in streams])
    return CallSeries(
        call=call,
        arrival_s=_seconds(arrivals.arrival_ns, zero_ns),
        transit_ms=arrivals.transit_ms,
        jitter_ms=arrivals.jitter_ms,
        lost_s=_seconds(arrivals.lost_ns, zero_ns),
        playout_s=column(ns_to_s(p.time_ns - zero_ns) for p in ordered),
        jitter_buffer_delay_ms=column(p.jitter_buffer_delay_ms for p in ordered),
        target_delay_ms=column(p.target_delay_ms for p in ordered),
        concealed_ms=column(concealed for _, concealed in windows),
        policy=policy,
        removed_ms=column(p.removed_ms for p in ordered),
        inserted_ms=column(p.inserted_ms for p in ordered),
        interarrival_s=_seconds(between[0], zero_ns),
        interarrival_ms=between[1],
        packet_ms=_packet_ms(streams) if len(between[0]) else None,
        wait_ms=np.concatenate([f.wait_ms for f in fates]) if fates else _none(),
        played_s=np.concatenate([_seconds(f.played_ns, zero_ns) for f in fates]) if fates else _none(),
        played_ms=np.concatenate([f.played_ms for f in fates]) if fates else _none(),
        duplicate_s=None if received is None or not streams else _seconds(again_ns, zero_ns),
        reordered_s=_seconds(_sorted([_reordered(stream) for stream in streams]), zero_ns) if streams else None,
        late_s=_seconds(_sorted([f.late_ns for f in fates]), zero_ns) if fates else None,
        longest_loss=max((_longest_loss(stream) for stream in streams), default=None),
        soundless=soundless,
        srtp_discarded=srtp_discarded,
        rtt_s=column(ns_to_s(t.time_ns - zero_ns) for t in round_trips),
        rtt_ms=column(ns_to_ms(t.rtt_ns) for t in round_trips),
        name=name,
        axis=axis,
    )


def _seconds(time_ns: NDArray[np.int64], zero_ns: int) -> Series:
    return np.asarray((time_ns - zero_ns) / NS_PER_S, dtype=np.float64)


def _sorted(parts: Sequence[NDArray[np.int64]]) -> NDArray[np.int64]:
    return np.sort(np.concatenate(parts)) if parts else np.zeros(0, dtype=np.int64)


def _together(parts: Sequence[tuple[NDArray[np.int64], Series]]) -> tuple[NDArray[np.int64], Series]:
    """Instants and values of several streams as one, in order of time."""
    if not parts:
        return np.zeros(0, dtype=np.int64), _none()
    time_ns, value = (np.concatenate([part[k] for part in parts]) for k in (0, 1))
    order = np.argsort(time_ns, kind="stable")
    return time_ns[order], value[order]


def _interarrival(stream: Stream) -> tuple[NDArray[np.int64], Series]:
    order = np.argsort(stream.arrival_ns, kind="stable")
    arrival_ns, sequence = stream.arrival_ns[order], stream.sequence[order]
    media_ms = stream.position[order] * (1000 / stream.codec.rate_hz)
    # losses make a gap in the media too; only one in which nothing is missing is a pause
    silent = (np.diff(media_ms) > PAUSE_MS + _packet_ms([stream])) & (np.diff(sequence) == 1)
    return arrival_ns[1:], np.where(silent, np.nan, np.diff(arrival_ns) / NS_PER_MS)


def _packet_ms(streams: Sequence[Stream]) -> float:
    """The most frequent duration of a packet; NaN without packets."""
    durations = [stream.samples * (1000 / stream.codec.rate_hz) for stream in streams if len(stream.samples)]
    if not durations:
        return math.nan
    values, counts = np.unique(np.concatenate(durations), return_counts=True)
    return float(values[np.argmax(counts)])


def _reordered(stream: Stream) -> NDArray[np.int64]:
    order = np.argsort(stream.arrival_ns, kind="stable")
    sequence = stream.sequence[order]
    return stream.arrival_ns[order][sequence < np.maximum.accumulate(sequence)]


def _longest_loss(stream: Stream) -> int:
    steps = np.diff(stream.sequence)
    return max(0, int(steps.max()) - 1) if len(steps) else 0


def _beside(received: Iterable[Timed], streams: Sequence[Stream]) -> tuple[NDArray[np.int64], int]:
    """Arrivals of packets that were there already (same SSRC, number, timestamp), and how many are in no stream."""
    wanted = {stream.ssrc for stream in streams}
    seen: set[tuple[int, int, int]] = set()
    again: list[int] = []
    for timed in received:
        packet = timed.packet
        if packet.ssrc in wanted:
            key = (packet.ssrc, packet.sequence_number, packet.timestamp)
            if key in seen:
                again.append(timed.time_ns)
            seen.add(key)
    return np.array(again, dtype=np.int64), max(0, len(seen) - sum(len(s.sequence) for s in streams))


@dataclass(frozen=True, slots=True)
class _Fate:
    """What became of a stream's packets in the jitter buffer."""

    wait_ms: Series
    late_ns: NDArray[np.int64]
    played_ns: NDArray[np.int64]
    played_ms: Series


def _fate(stream: Stream, playout: Playout) -> _Fate:
    rate_hz = playout.rate_hz
    begins, samples, left_ns = playout.piece_position, playout.piece_samples, playout.piece_ns
    position = stream.position + stream.origin
    if not len(begins):
        return _Fate(_none(), stream.arrival_ns, np.zeros(0, dtype=np.int64), _none())
    # samples played before each sample of the timeline, piecewise linear; pieces do not overlap
    edges = np.column_stack([begins, begins + samples]).ravel()
    before = np.column_stack([np.cumsum(samples) - samples, np.cumsum(samples)]).ravel()
    heard = np.interp(position + stream.samples, edges, before) - np.interp(position, edges, before)
    piece = np.clip(np.searchsorted(begins, position, side="right") - 1, 0, None)
    inside = (position >= begins[piece]) & (position < begins[piece] + samples[piece])
    leaves_ns = left_ns[piece] + (position - begins[piece]) * (NS_PER_S / rate_hz)
    wait_ms = (leaves_ns - stream.arrival_ns) / NS_PER_MS
    order = np.argsort(left_ns, kind="stable")
    fastest_ns = (stream.arrival_ns - stream.position * (NS_PER_S / rate_hz)).min()
    media_ns = (begins - stream.origin) * (NS_PER_S / rate_hz)
    delay_ms = (left_ns - media_ns - fastest_ns) / NS_PER_MS
    length_ns = np.asarray(samples[order] * (NS_PER_S / rate_hz), dtype=np.int64)
    begin_ns, delay_ms = left_ns[order], delay_ms[order]
    # level from a piece's first sample to its last; no line across a pause, nor from one stream to the next
    pause = np.flatnonzero(begin_ns[1:] - (begin_ns + length_ns)[:-1] > PAUSE_MS * NS_PER_MS)
    breaks = 2 * np.append(pause + 1, len(order))
    edges_ns = np.column_stack([begin_ns, begin_ns + length_ns]).ravel()
    middle_ns = (edges_ns[breaks - 1] + np.append(edges_ns, edges_ns[-1])[breaks]) // 2
    return _Fate(
        wait_ms=wait_ms[inside],
        late_ns=stream.arrival_ns[heard < 0.5],
        played_ns=np.insert(edges_ns, breaks, middle_ns),
        played_ms=np.insert(np.repeat(delay_ms, 2), breaks, np.nan),
    )
