"""A capture and a browser's getStats() of the same packets in, the `chrome` model's figures beside the browser's out.

What `chrome_reference_files.py` (recorded pairs) and `chrome_reference.py` (a browser now) have in common. A pair is
NAME.pcap (nanosecond pcap, Ethernet/IPv4/UDP, decrypted RTP, Opus or PCMU) and NAME.stats.json (a list of
`inbound-rtp` objects, W3C names, `timestamp` in ms of the clock of the pcap). All times are of that clock.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import av
import numpy as np
from numpy.typing import NDArray

from analysis.audibility import LevelTrack, audible_runs
from analysis.errors import BundleError
from analysis.neteq import NetEqRun
from analysis.rtp import is_rtcp, is_rtp_or_rtcp, parse_rtp, unwrap
from analysis.trace import PacketTrace

__all__ = [
    "NS",
    "Pair",
    "Row",
    "Series",
    "Stream",
    "browser_series",
    "counted_until",
    "disturbance",
    "model_series",
    "onset_times_s",
    "poll_windows",
    "read_pair",
    "read_trace",
    "read_traces",
    "window_means",
]

PCAP_NS_MAGIC = 0xA1B23C4D
COMFORT_NOISE = 13  # RFC 3389
PCMU = 0
NS = 1e-9
WINDOW_S = 1.0
ONSET_POLLS = 2  # of 200 ms
MOST_JITTER_OFF_S = 0.0016  # getStats rounds to 1 ms
MOST_SLIP_S = 0.013  # a poll just before or after a tick, and how long it takes to be answered
FIELDS = {
    "delay": "jitterBufferDelay",
    "target": "jitterBufferTargetDelay",
    "emitted": "jitterBufferEmittedCount",
    "concealed": "concealedSamples",
    "inserted": "insertedSamplesForDeceleration",
    "removed": "removedSamplesForAcceleration",
    "received": "totalSamplesReceived",
    "events": "concealmentEvents",
    "silent": "silentConcealedSamples",
    "discarded": "packetsDiscarded",
    "jitter": "jitter",
}

Float = NDArray[np.float64]
Series = dict[str, Float]  # "t" in seconds of the pcap's clock, and a running total for each of FIELDS


def udp_payloads(path: Path) -> Iterator[tuple[int, bytes]]:
    """(time in ns, UDP payload) of each frame of a nanosecond Ethernet pcap.

    Raises
    ------
    BundleError
        If the file cannot be read or is another kind of capture.
    """
    try:
        data = path.read_bytes()
    except OSError as exc:
        raise BundleError(f"{path.name} cannot be read: {exc.strerror}") from exc
    if len(data) < 24 or struct.unpack_from("<I", data)[0] != PCAP_NS_MAGIC:
        raise BundleError(f"{path.name} is not a little-endian nanosecond pcap")
    at = 24
    while at + 16 <= len(data):
        seconds, ns, size, _ = struct.unpack_from("<IIII", data, at)
        frame = data[at + 16 : at + 16 + size]
        at += 16 + size
        if len(frame) < 42 or frame[12:14] != b"\x08\x00" or frame[23] != 17:
            continue
        yield seconds * 1_000_000_000 + ns, frame[14 + 4 * (frame[14] & 15) + 8 :]


def read_traces(path: Path) -> dict[int, PacketTrace]:
    """The streams of a capture by SSRC, decoded; what SRTP would discard as a replay is left out.

    libwebrtc does not tell its Opus decoder of losses (it conceals by itself), so this decoder hears nothing of them.
    """
    streams: dict[int, dict[int, tuple[int, int, bytes, int]]] = {}
    last: dict[int, tuple[int, int]] = {}
    for time_ns, data in udp_payloads(path):
        if not is_rtp_or_rtcp(data) or is_rtcp(data):
            continue
        packet = parse_rtp(data)
        before = last.get(packet.ssrc)
        sequence = packet.sequence_number if before is None else unwrap(packet.sequence_number, before[0], 16)
        timestamp = packet.timestamp if before is None else unwrap(packet.timestamp, before[1], 32)
        last[packet.ssrc] = sequence, timestamp
        row = timestamp, time_ns, packet.payload, packet.payload_type
        streams.setdefault(packet.ssrc, {}).setdefault(sequence, row)
    return {ssrc: _trace(packets) for ssrc, packets in streams.items()}


def _trace(packets: dict[int, tuple[int, int, bytes, int]]) -> PacketTrace:
    everything = sorted(packets.items())
    noise = [(p[0], p[1], p[2][0]) for _, p in everything if p[3] == COMFORT_NOISE]
    ordered = [(number, p) for number, p in everything if p[3] != COMFORT_NOISE]
    pcmu = ordered[0][1][3] == PCMU
    rate_hz = 8000 if pcmu else 48_000
    sounds = _decode([p[2] for _, p in ordered], "pcm_mulaw" if pcmu else "libopus", rate_hz)
    return PacketTrace(
        rate_hz,
        np.array([number for number, _ in ordered], dtype=np.int64),
        np.array([p[0] for _, p in ordered], dtype=np.int64),
        np.array([len(s) for s in sounds], dtype=np.int64),
        np.array([p[1] for _, p in ordered], dtype=np.int64),
        np.array([len(p[2]) for _, p in ordered], dtype=np.int64),
        np.concatenate(sounds),
        np.array(noise, dtype=np.int64).reshape(-1, 3),
    )


def read_trace(path: Path) -> PacketTrace:
    """The first stream of a capture."""
    return next(iter(read_traces(path).values()))


def _decode(payloads: list[bytes], codec: str, rate_hz: int) -> list[NDArray[np.float32]]:
    decoder: Any = av.CodecContext.create(codec, "r")
    decoder.sample_rate, decoder.format, decoder.layout = rate_hz, "s16", "mono"
    sounds = []
    for payload in payloads:
        frames = [f.to_ndarray().reshape(-1) for f in decoder.decode(av.Packet(payload))]
        sounds.append(np.concatenate(frames).astype(np.float32) / np.float32(32768.0))
    return sounds


def browser_series(path: Path, ssrc: int | None = None) -> Series:
    """The running totals of the browser's polls, of one stream where `ssrc` is given."""
    polls = [p for p in json.loads(path.read_text()) if p.get("type") == "inbound-rtp"]
    polls = [p for p in polls if ssrc is None or p.get("ssrc", ssrc) == ssrc]
    series = {name: np.array([float(p.get(key, 0)) for p in polls]) for name, key in FIELDS.items()}
    series["t"] = np.array([p["timestamp"] / 1000 for p in polls])
    return series


def model_series(run: NetEqRun, first_ns: int) -> Series:
    """The running totals of the model's snapshots (every 200 ms), from zero at the first arrival on."""
    names = ("t", "delay", "target", "emitted", "concealed", "inserted", "removed", "received", "events", "silent")
    rows = [(first_ns, *(0 for _ in names[1:]))]
    for s in run.snapshots:
        c = s.counters
        totals = c.delay_ms_samples, c.target_ms_samples, c.emitted, c.concealed, c.inserted, c.removed
        rows.append((s.time_ns, *totals, c.received, c.events, c.silent))
    series = dict(zip(names, np.array(rows, dtype=np.float64).T, strict=True))
    series["t"] = series["t"] * NS
    series["delay"], series["target"] = series["delay"] / 1000, series["target"] / 1000
    return series


@dataclass(frozen=True, slots=True)
class Row:
    """Figures of one side over a whole call, ms."""

    delay: float
    target: float
    concealed: float
    inserted: float
    removed: float
    events: float

    @classmethod
    def at(cls, series: Series, time_s: float, rate_hz: int = 48_000) -> Row:
        """Totals at `time_s`."""
        total = {name: float(np.interp(time_s, series["t"], series[name])) for name in series if name != "t"}
        per_ms = rate_hz / 1000
        return cls(
            1000 * total["delay"] / total["emitted"],
            1000 * total["target"] / total["emitted"],
            total["concealed"] / per_ms,
            total["inserted"] / per_ms,
            total["removed"] / per_ms,
            total["events"],
        )


def counted_until(trace: PacketTrace, browser: Series) -> float:
    """The last poll (s) that counts: one after the end of the stream already holds what the browser made up then."""
    return float(browser["t"][browser["t"] <= trace.arrival_ns.max() * NS][-1])


def poll_windows(trace: PacketTrace, browser: Series) -> tuple[Float, Float]:
    """Begin and end (s) of each window of one second that ends in a poll that counts."""
    first_s = int(trace.arrival_ns.min()) * NS
    last = counted_until(trace, browser)
    ends = browser["t"][(browser["t"] <= last) & (browser["t"] - WINDOW_S > first_s)]
    return ends - WINDOW_S, ends


def window_means(series: Series, starts: Float, ends: Float) -> Float:
    """Mean jitter-buffer delay (ms) in each window, NaN where nothing was emitted."""
    delay = np.interp(ends, series["t"], series["delay"]) - np.interp(starts, series["t"], series["delay"])
    count = np.interp(ends, series["t"], series["emitted"]) - np.interp(starts, series["t"], series["emitted"])
    return np.where(count > 0, 1000 * delay / np.maximum(count, 1), np.nan)


def onset_times_s(trace: PacketTrace) -> Float:
    """When the packets arrived that hold the first audible sample after a pause."""
    ends = np.cumsum(trace.samples)
    starts = [run.start for run in audible_runs(LevelTrack(np.asarray(trace.pcm), trace.rate_hz))]
    return np.array([trace.arrival_ns[int(np.searchsorted(ends, s, side="right"))] for s in starts]) * NS


@dataclass(frozen=True, slots=True)
class Stream:
    """One SSRC of a pair: its packets and what the browser counted of it."""

    trace: PacketTrace
    browser: Series

    @property
    def first_ns(self) -> int:
        """The first arrival, ns of the pcap's clock."""
        return int(self.trace.arrival_ns.min())


@dataclass(frozen=True, slots=True)
class Pair:
    """One call. Figures of several streams are weighted by what each emitted, or added up."""

    name: str
    streams: tuple[Stream, ...]

    def _row(self, of: list[Series]) -> Row:
        rows, weights = [], []
        for stream, series in zip(self.streams, of, strict=True):
            until = counted_until(stream.trace, stream.browser)
            rows.append(Row.at(series, until, stream.trace.rate_hz))
            weights.append(float(np.interp(until, series["t"], series["emitted"])))
        mean = {k: float(np.average([getattr(r, k) for r in rows], weights=weights)) for k in ("delay", "target")}
        total = {k: sum(getattr(r, k) for r in rows) for k in ("concealed", "inserted", "removed", "events")}
        return Row(**mean, **total)

    def model_row(self, runs: list[NetEqRun]) -> Row:
        """The model's figures, one run for each stream."""
        return self._row([model_series(r, s.first_ns) for r, s in zip(runs, self.streams, strict=True)])

    def browser_row(self) -> Row:
        """The browser's figures."""
        return self._row([stream.browser for stream in self.streams])

    def window_differences(self, runs: list[NetEqRun]) -> Float:
        """|model − browser| (ms) of each window."""
        differences = []
        for stream, run in zip(self.streams, runs, strict=True):
            starts, ends = poll_windows(stream.trace, stream.browser)
            model = window_means(model_series(run, stream.first_ns), starts, ends)
            differences.append(np.abs(model - window_means(stream.browser, starts, ends)))
        return np.concatenate(differences)

    def onset_errors(self, runs: list[NetEqRun]) -> Float:
        """Model − browser (ms) at each onset: the mean delay from the poll before its packet arrives over 400 ms.

        An onset in whose window no packet left, or with less than a whole window before the end, has none.
        """
        errors = []
        for stream, run in zip(self.streams, runs, strict=True):
            times, until = stream.browser["t"], counted_until(stream.trace, stream.browser)
            at = np.searchsorted(times, onset_times_s(stream.trace), side="right") - 1
            at = at[(at >= 0) & (at + ONSET_POLLS < len(times))]
            starts, ends = times[at], times[at + ONSET_POLLS]
            model = window_means(model_series(run, stream.first_ns), starts, ends)
            difference = model - window_means(stream.browser, starts, ends)
            errors.append(difference[(ends <= until) & ~np.isnan(difference)])
        return np.concatenate(errors)

    def window_means_at(self, other: Pair) -> Float:
        """The browser's mean delay in each window of another run's polls, moved to this run's start."""
        means = []
        for stream, theirs in zip(self.streams, other.streams, strict=True):
            starts, ends = poll_windows(theirs.trace, theirs.browser)
            shift = (stream.first_ns - theirs.first_ns) * NS
            means.append(window_means(stream.browser, starts + shift, ends + shift))
        return np.concatenate(means)


def read_pair(folder: Path, name: str) -> Pair:
    """NAME.pcap and NAME.stats.json of a folder; streams of which the browser said nothing are left out."""
    traces = read_traces(folder / f"{name}.pcap")
    streams = []
    for ssrc, trace in traces.items():
        browser = browser_series(folder / f"{name}.stats.json", ssrc)
        if np.any(browser["t"] <= trace.arrival_ns.max() * NS):
            streams.append(Stream(trace, browser))
    if not streams:
        raise BundleError(f"{name}.stats.json says nothing of the packets in {name}.pcap")
    return Pair(name, tuple(streams))


def disturbance(pair: Pair) -> str | None:
    """What shows that the machine kept the browser from its work, from its own word; None where nothing does.

    Its interarrival jitter (RFC 3550) must be what the packets had as they left, to a stall of some 25 ms, and the
    audio that it made must keep to its clock: a poll sees the ticks of 10 ms that came before it, never fewer.
    """
    for stream in pair.streams:
        times, until = stream.browser["t"], counted_until(stream.trace, stream.browser)
        counts = (times <= until) & (stream.browser["received"] > 0)
        trace = stream.trace
        number, position, arrival_ns = trace.sequence.astype(float), trace.position, trace.arrival_ns
        if len(trace.noise):  # whose numbers are not kept, but lie between those of its neighbours
            number = np.append(number, np.interp(trace.noise[:, 0], position, number))
            position, arrival_ns = np.append(position, trace.noise[:, 0]), np.append(arrival_ns, trace.noise[:, 1])
        order = np.argsort(arrival_ns, kind="stable")
        newest = np.maximum.accumulate(number[order])
        order = order[np.diff(newest, prepend=-1) > 0]  # libwebrtc leaves out what was overtaken
        arrivals = arrival_ns[order] * NS
        transit = np.abs(np.diff(arrivals - position[order] / trace.rate_hz))
        jitter = np.zeros(len(arrivals))
        for at, difference in enumerate(transit, 1):
            jitter[at] = jitter[at - 1] + (difference - jitter[at - 1]) / 16
        ours = jitter[np.maximum(np.searchsorted(arrivals, times[counts], side="right") - 1, 0)]
        off = float(np.max(np.abs(ours - stream.browser["jitter"][counts]), initial=0.0))
        if off > MOST_JITTER_OFF_S:
            return f"packets reached it up to some {16_000 * off:.0f} ms late"
        made = stream.browser["received"][counts] / stream.trace.rate_hz
        slip = times[counts] - made
        late = float(np.max(np.abs(slip - np.median(slip)), initial=0.0))
        if late > MOST_SLIP_S:
            return f"its audio came up to {1000 * late:.0f} ms late"
    return None
