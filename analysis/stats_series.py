"""Snapshots of W3C statistics (stats.jsonl) in, what happened between them over time out.

Sources: W3C webrtc-stats, names and units (seconds, samples, counters that only grow); docs/bundle.md for the file. A
counter that goes backwards is a receiver that began anew: that window is left out, never negative. What is missing is a
gap, never 0. The file comes from anywhere: what is not a number of sensible size is not there.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from analysis.counting import counted
from analysis.drawing import Series
from analysis.errors import BundleError
from analysis.units import NS_PER_S

__all__ = ["InboundStatistics", "StatsSeries", "Trace", "read_stats", "stats_series"]

Snapshot = tuple[int, Sequence[Mapping[str, Any]]]

MAX_LINE_BYTES = 16 << 20
MAX_OBJECTS = 200  # of one kind that are followed; a page holds far fewer
MAX_VALUE = 1e15  # no counter of a call comes near
LEAST_GAP_S = 2.5  # between two snapshots; beyond it, and beyond four of the usual steps, nothing is known
GAP_STEPS = 4
INSTANT = ("jitter", "audioLevel", "roundTripTime", "currentRoundTripTime")
COUNTERS = (
    "packetsReceived",
    "packetsLost",
    "packetsDiscarded",
    "jitterBufferDelay",
    "jitterBufferTargetDelay",
    "jitterBufferEmittedCount",
    "totalSamplesReceived",
    "totalSamplesDuration",
    "concealedSamples",
    "silentConcealedSamples",
    "insertedSamplesForDeceleration",
    "removedSamplesForAcceleration",
    "totalPlayoutDelay",
    "totalSamplesCount",
)


@dataclass(frozen=True, slots=True)
class Trace:
    """One quantity over time: `t_s` ascending, `value_ms` NaN where it is not known; what it is of, and its source."""

    name: str
    t_s: Series
    value_ms: Series


@dataclass(frozen=True, slots=True)
class InboundStatistics:
    """One received stream; all arrays have shape (n,), at the snapshots `t_s`.

    `jitter_ms` and `audio_level` (0 to 1) are those of the moment. All others are over the window of `window_s` that
    ends there, NaN for the first one, across a gap, where a counter went backwards (`restarts` counts those), and
    where the source does not tell. `silent_ms` is the part of `concealed_ms` that was silence or comfort noise; neither
    tells a pause of the sender from an outage.
    """

    name: str
    t_s: Series
    window_s: Series
    jitter_ms: Series
    received: Series
    lost: Series
    discarded: Series
    jitter_buffer_delay_ms: Series
    target_delay_ms: Series
    concealed_ms: Series
    silent_ms: Series
    inserted_ms: Series
    removed_ms: Series
    audio_level: Series
    restarts: int = 0


@dataclass(frozen=True)
class StatsSeries:
    """All that the snapshots of one peer connection say of received audio, round trips and the output device."""

    snapshots: int
    span_s: tuple[float, float]
    inbound: tuple[InboundStatistics, ...]
    round_trips: tuple[Trace, ...] = ()
    playout_delays: tuple[Trace, ...] = ()
    warnings: tuple[str, ...] = field(default=())

    @property
    def plottable(self) -> bool:
        """True if there is anything over time: at least two snapshots of one object."""
        return bool(self.inbound or self.round_trips or self.playout_delays)


def read_stats(path: Path, warnings: list[str]) -> Iterator[Snapshot]:
    """The snapshots of a stats.jsonl as (monotonic ns, objects), one at a time; what is broken is left out and said.

    Raises
    ------
    BundleError
        If the file cannot be opened.
    """
    broken = 0
    try:
        with path.open("rb") as file:
            while line := file.readline(MAX_LINE_BYTES):
                if not line.strip():
                    continue
                try:
                    snapshot = json.loads(line)
                    time_ns, stats = snapshot["t_ns"], snapshot["stats"]
                except (ValueError, KeyError, TypeError, RecursionError):
                    broken += 1
                    continue
                if not isinstance(stats, list) or not _is_time(time_ns):
                    broken += 1
                    continue
                yield time_ns, [each for each in stats if isinstance(each, dict)]
    except OSError as exc:
        raise BundleError(f"{path}: cannot be read ({exc.strerror})") from exc
    finally:
        if broken:
            warnings.append(f"{path.name}: {counted(broken, 'line')} left out: cut off, or no snapshot")


def _is_time(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) < 1 << 62


def stats_series(
    snapshots: Iterable[Snapshot], *, zero_ns: int | None = None, warnings: Sequence[str] = ()
) -> StatsSeries:
    """What the snapshots say over time.

    Parameters
    ----------
    snapshots : iterable of (int, sequence of mapping)
        As `read_stats` yields them; one that is earlier than the one before is left out and said.
    zero_ns : int, optional
        Time 0 of the series (monotonic ns); the first snapshot where it is not given.
    warnings : sequence of str
        What is to stand in the series' own warnings. Read after the last snapshot, so it may still grow.
    """
    books: dict[str, _Book] = {}
    context = _Context()
    count = stale = refused = 0
    first_ns = before_ns = None
    for time_ns, stats in snapshots:
        if before_ns is not None and time_ns < before_ns:
            stale += 1
            continue
        count += time_ns != before_ns
        before_ns = time_ns
        if first_ns is None:
            first_ns = time_ns
        for each in stats:
            refused += not context.note(each, time_ns, books)
    said = [*warnings]
    if stale:
        said.append(f"{counted(stale, 'snapshot')} left out: earlier than the one before")
    if refused:
        said.append(f"{counted(refused, 'object')} left out: beyond the first {MAX_OBJECTS} of a kind")
    if first_ns is None or before_ns is None:
        return StatsSeries(0, (0.0, 0.0), (), warnings=tuple(said))
    origin_ns = first_ns if zero_ns is None else zero_ns
    known = [book for book in books.values() if len(book.times) > 1]
    return StatsSeries(
        snapshots=count,
        span_s=((first_ns - origin_ns) / NS_PER_S, (before_ns - origin_ns) / NS_PER_S),
        inbound=tuple(_inbound(b, origin_ns, context) for b in known if b.kind == "inbound-rtp" and b.is_audio),
        round_trips=tuple(_round_trips(known, origin_ns, context)),
        playout_delays=tuple(filter(None, (_device(b, origin_ns) for b in known if b.kind == "media-playout"))),
        warnings=tuple(said),
    )


class _Book:
    """What one object said, snapshot after snapshot."""

    def __init__(self, kind: str, key: str) -> None:
        self.kind = kind
        self.key = key
        self.name = ""
        self.codec_id: str | None = None
        self.is_audio = True
        self.active = False
        self.times: list[int] = []
        self.rows: list[dict[str, float]] = []
        self.stamp: float | None = None

    def column(self, name: str) -> Series:
        return np.array([row.get(name, math.nan) for row in self.rows], dtype=np.float64)

    def seconds(self, origin_ns: int) -> Series:
        return np.array([(t - origin_ns) / NS_PER_S for t in self.times], dtype=np.float64)


class _Context:
    """What objects say about each other, which may come before or after them."""

    def __init__(self) -> None:
        self.rates: dict[str, float] = {}
        self.selected: set[str] = set()
        self.counts: dict[str, int] = {}

    def note(self, stats: Mapping[str, Any], time_ns: int, books: dict[str, _Book]) -> bool:
        """Take one object of a snapshot in; False where there are too many of its kind."""
        kind, key = stats.get("type"), stats.get("id")
        if not isinstance(kind, str):
            return True
        if not isinstance(key, str):
            key = f"{kind}-{stats.get('ssrc')}"
        key = key[:200]
        if kind == "codec":
            self._codec(key, stats)
        elif kind == "transport" and isinstance(stats.get("selectedCandidatePairId"), str):
            self.selected.add(stats["selectedCandidatePairId"][:200])
        if kind not in ("inbound-rtp", "remote-inbound-rtp", "candidate-pair", "media-playout"):
            return True
        book = books.get(key)
        if book is None:
            if self.counts.get(kind, 0) >= MAX_OBJECTS:
                return False
            self.counts[kind] = self.counts.get(kind, 0) + 1
            book = books[key] = _Book(kind, key)
        self._fill(book, stats, time_ns)
        return True

    def _codec(self, key: str, stats: Mapping[str, Any]) -> None:
        mime, rate = str(stats.get("mimeType", ""))[:40].lower(), _number(stats.get("clockRate"))
        if rate and len(self.rates) < MAX_OBJECTS:
            self.rates[key] = 16000.0 if mime == "audio/g722" else rate  # its RTP clock is not its sampling rate

    def _fill(self, book: _Book, stats: Mapping[str, Any], time_ns: int) -> None:
        stamp = _number(stats.get("timestamp"))
        if (stamp is not None and stamp == book.stamp) or time_ns in book.times[-1:]:
            return  # the same words again: nothing is known anew
        book.stamp = stamp
        kind = stats.get("kind", stats.get("mediaType"))
        book.is_audio = kind is None or kind == "audio"
        book.active = book.active or stats.get("nominated") is True or stats.get("selected") is True
        if isinstance(stats.get("codecId"), str):
            book.codec_id = stats["codecId"][:200]
        ssrc = _number(stats.get("ssrc"))
        book.name = book.key if ssrc is None or ssrc < 0 else f"ssrc {int(ssrc):#010x}"
        found = {name: _number(stats.get(name)) for name in (*INSTANT, *COUNTERS)}
        book.times.append(time_ns)
        book.rows.append({name: value for name, value in found.items() if value is not None})


def _number(value: Any) -> float | None:
    """A number as it may stand in statistics; None for anything else, NaN and what is absurdly large among it."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not abs(value) < MAX_VALUE:
        return None
    return float(value)


def _steps(t_s: Series) -> Series:
    """Length of the window before each snapshot; NaN for the first and where snapshots are missing."""
    step = np.diff(t_s, prepend=np.nan)
    usual = float(np.nanmedian(step)) if len(t_s) > 1 else 0.0
    return np.where(step <= max(LEAST_GAP_S, GAP_STEPS * usual), step, np.nan)


def _change(book: _Book, name: str, whole: Series) -> Series:
    """What a counter grew by in each window, NaN where that is not known; `whole` is NaN where no window is."""
    change = np.diff(book.column(name), prepend=np.nan)
    return np.where(np.isfinite(whole) & (change >= 0), change, np.nan)


def _restarted(book: _Book) -> Series:
    """True where any counter that can only grow went backwards."""
    back = np.zeros(len(book.times), dtype=bool)
    for name in COUNTERS:
        if name not in ("packetsLost", "packetsDiscarded"):  # W3C lets the first be taken back
            back |= np.diff(book.column(name), prepend=np.nan) < -1e-6
    return back


def _ratio_ms(upper: Series, lower: Series) -> Series:
    """Quotient in ms (of seconds), NaN where nothing was counted."""
    divisor = np.where(lower > 0, lower, np.nan)
    return np.asarray(1000 * upper / divisor, dtype=np.float64)


def _inbound(book: _Book, origin_ns: int, context: _Context) -> InboundStatistics:
    t_s = book.seconds(origin_ns)
    back = _restarted(book)
    whole = np.where(back, np.nan, _steps(t_s))
    grown = {name: _change(book, name, whole) for name in COUNTERS}
    emitted = grown["jitterBufferEmittedCount"]
    # milliseconds that a sample stands for: what the source says of itself, else the codec's rate
    per_sample = _ratio_ms(grown["totalSamplesDuration"], grown["totalSamplesReceived"])
    rate_hz = context.rates.get(book.codec_id or "")
    if rate_hz:
        per_sample = np.where(np.isnan(per_sample), 1000 / rate_hz, per_sample)
    lost = np.diff(book.column("packetsLost"), prepend=np.nan)
    return InboundStatistics(
        name=book.name,
        t_s=t_s,
        window_s=whole,
        jitter_ms=1000 * book.column("jitter"),
        received=grown["packetsReceived"],
        lost=np.where(np.isfinite(whole), np.maximum(lost, 0), np.nan),
        discarded=grown["packetsDiscarded"],
        jitter_buffer_delay_ms=_ratio_ms(grown["jitterBufferDelay"], emitted),
        target_delay_ms=_ratio_ms(grown["jitterBufferTargetDelay"], emitted),
        concealed_ms=grown["concealedSamples"] * per_sample,
        silent_ms=grown["silentConcealedSamples"] * per_sample,
        inserted_ms=grown["insertedSamplesForDeceleration"] * per_sample,
        removed_ms=grown["removedSamplesForAcceleration"] * per_sample,
        audio_level=book.column("audioLevel"),
        restarts=int(back.sum()),
    )


def _round_trips(books: Sequence[_Book], origin_ns: int, context: _Context) -> Iterator[Trace]:
    pairs = [b for b in books if b.kind == "candidate-pair"]
    chosen = [b for b in pairs if b.key in context.selected] or [b for b in pairs if b.active] or pairs
    media = [b for b in books if b.kind == "remote-inbound-rtp" and b.is_audio]
    for name, found, key in (("RTCP", media, "roundTripTime"), ("STUN", chosen, "currentRoundTripTime")):
        for number, book in enumerate(found):
            value = 1000 * book.column(key)
            if np.isfinite(value).any():
                label = f"by {name}" if len(found) == 1 else f"by {name}, {number + 1}"
                yield Trace(label, book.seconds(origin_ns), value)


def _device(book: _Book, origin_ns: int) -> Trace | None:
    t_s = book.seconds(origin_ns)
    whole = np.where(_restarted(book), np.nan, _steps(t_s))
    delay, samples = (_change(book, name, whole) for name in ("totalPlayoutDelay", "totalSamplesCount"))
    value = _ratio_ms(delay, samples)
    return Trace("output device", t_s, value) if np.isfinite(value).any() else None
