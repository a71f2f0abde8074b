"""The packets of one RTP stream in, what a receiver's `inbound-rtp` statistics would say of them out.

Sources: W3C webrtc-stats (RTCReceivedRtpStreamStats, RTCInboundRtpStreamStats), names and units; RFC 3550 section 6.4.1
and appendix A.8 (loss, jitter); analysis.playout for all that depends on a jitter buffer. What packets and policy do
not determine is absent.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from analysis.capture_clock import jumps_ahead
from analysis.capture_frames import Direction
from analysis.capture_rtp import CodecChoice, RtpStream, durations_fit
from analysis.codecs import Codec
from analysis.playout import Playout, PlayoutPoint, play
from analysis.reception import Reception
from analysis.result import OutputDelay
from analysis.rtcp_statistics import EARLIEST_WALL_NS
from analysis.rtp import signed_difference
from analysis.streams import NOISE_RATE_HZ, ForwardSound, Stream, Timed, build_streams, packet_trace
from analysis.units import ns_to_ms, ns_to_s, samples_to_ms

__all__ = [
    "SCHEMA",
    "ArrivalStatistics",
    "Inbound",
    "SeriesPoint",
    "arrival_statistics",
    "document",
    "measure",
    "media_playout",
    "outbound_rtp",
    "played_duration",
]

SCHEMA = "latency-probe/playout/1"


@dataclass(frozen=True, slots=True)
class SeriesPoint:
    """What happened in the window that ends `t_s` after the stream's first packet and begins at the point before."""

    t_s: float
    jitter_buffer_delay_ms: float | None
    target_delay_ms: float | None
    concealed_ms: float
    removed_ms: float = 0.0
    inserted_ms: float = 0.0
    packets_discarded: int = 0


@dataclass(frozen=True)
class Inbound:
    """What one SSRC's receiver would have counted.

    `inbound_rtp` has the W3C names; so has `outbound_rtp`, which is empty unless the machine that captured sent the
    stream (`inbound_rtp` is then what a receiver at this point would have counted). `first_ns` and `last_ns` are
    the arrivals of its first and last packet. `concealed_ms`, `inserted_ms` and `removed_ms` are None where nothing
    was played, `silent_ms` (silence in what was concealed) where the policy does not know it. `jitter_mean_ms` and
    `jitter_max_ms` are over all packets, `jitter` is that after the last one. `media_playout`
    (RTCAudioPlayoutStats) is empty where nothing was played; `output` is what was given for the device, which
    nobody measured here. `playouts` are those of its generations.
    """

    ssrc: int
    source: tuple[str, int]
    destination: tuple[str, int]
    direction: str | None
    codec: str
    payload_type: int
    first_ns: int
    last_ns: int
    inbound_rtp: Mapping[str, float | int]
    series: tuple[SeriesPoint, ...] = field(repr=False)
    jitter_mean_ms: float | None = None
    jitter_max_ms: float | None = None
    concealed_ms: float | None = None
    silent_ms: float | None = None
    inserted_ms: float | None = None
    removed_ms: float | None = None
    warnings: tuple[str, ...] = ()
    media_playout: Mapping[str, float | int] = field(default_factory=dict)
    output: OutputDelay | None = None
    outbound_rtp: Mapping[str, int] = field(default_factory=dict)
    playouts: tuple[Playout, ...] = field(default=(), repr=False, compare=False)

    @property
    def ends(self) -> str:
        """Between whom, for a person; an end that the capture does not name is left out."""
        return " → ".join(text for end in (self.source, self.destination) if (text := _end_text(end)) is not None)


@dataclass(frozen=True, slots=True)
class ArrivalStatistics:
    """Interarrival times and jitter of a stream (ms), as Wireshark's list of RTP streams has them.

    None where there are not two packets to compare. `jitter_last_ms` is the jitter after the last packet.
    """

    delta_min_ms: float | None = None
    delta_mean_ms: float | None = None
    delta_max_ms: float | None = None
    jitter_min_ms: float | None = None
    jitter_mean_ms: float | None = None
    jitter_max_ms: float | None = None
    jitter_last_ms: float | None = None


def arrival_statistics(packets: Sequence[Timed], clock_rate_hz: int) -> ArrivalStatistics:
    """Interarrival times and jitter in order of arrival.

    Parameters
    ----------
    packets : sequence of Timed
    clock_rate_hz : int
        Of the RTP timestamps.

    Notes
    -----
    The jitter is that of RFC 3550 A.8: each packet is compared with the one that arrived before it. As in Wireshark
    4.0, packets with a timestamp before the first one's are left out (in a mean one counts as the mean so far). Later
    versions of Wireshark compare with the newest packet by timestamp instead.
    """
    if not packets:
        return ArrivalStatistics()
    first = before = packets[0]
    jitter = delta_mean = jitter_mean = 0.0
    deltas: list[float] = []
    jitters: list[float] = []
    for number, timed in enumerate(packets[1:], start=1):
        timestamp = timed.packet.timestamp
        if signed_difference(timestamp, first.packet.timestamp, 32) < 0:
            continue
        delta = ns_to_ms(timed.time_ns - before.time_ns)
        ticks = signed_difference(timestamp, before.packet.timestamp, 32)
        jitter += (abs(delta - 1000 * ticks / clock_rate_hz) - jitter) / 16
        delta_mean += (delta - delta_mean) / number
        jitter_mean += (jitter - jitter_mean) / number
        deltas.append(delta)
        jitters.append(jitter)
        before = timed
    if not deltas:
        return ArrivalStatistics()
    return ArrivalStatistics(min(deltas), delta_mean, max(deltas), min(jitters), jitter_mean, max(jitters), jitters[-1])


def measure(
    stream: RtpStream, choice: CodecChoice, policy: str, *, output: OutputDelay | None = None
) -> Inbound | None:
    """What the receiver of a stream would have counted under a playout policy.

    Parameters
    ----------
    stream : RtpStream
    choice : CodecChoice
        From `analysis.capture_rtp.choose_codecs`.
    policy : str
        As `analysis.playout.play` takes it.
    output : OutputDelay, optional
        From the jitter buffer to the ear; only `totalPlayoutDelay` depends on it.

    Returns
    -------
    Inbound or None
        None where no payload type of the stream is known, so that not even the unit of its timestamps is. A sender's
        restart, or another codec in between, is played as a stream of its own: counters add up, series follow one
        another.

    Raises
    ------
    UsageError
        If `policy` is not one.
    """
    main = next((number for number in stream.payload_types if number in choice.codecs), None)
    if main is None:
        return None
    codec = choice.codecs[main]
    warnings = [*stream.warnings, *choice.warnings]
    sounding = {number for number, c in choice.codecs.items() if c.clock_rate_hz == codec.clock_rate_hz}
    inbound = _received(stream, codec, choice.of_clock(codec.clock_rate_hz))
    with_sound = [t for t in stream.packets if t.packet.payload_type in sounding]
    arrivals = arrival_statistics(with_sound, codec.clock_rate_hz)
    first_ns, last_ns = stream.packets[0].time_ns, stream.packets[-1].time_ns
    warnings += _of_jumps(jumps_ahead(with_sound, codec.clock_rate_hz), first_ns)
    played = _play(stream, choice, policy, warnings)
    warnings += _of_comfort_noise(stream, choice, policy, played)
    totals: dict[str, float] = {}
    for playout in played:
        _add(inbound, {**playout.inbound, **played_duration(playout.inbound, playout.rate_hz)})
        _add(totals, _totals_ms(playout))
    points = sorted((p for playout in played for p in playout.series), key=lambda p: p.time_ns)
    return Inbound(
        ssrc=stream.ssrc,
        source=stream.source,
        destination=stream.destination,
        direction=None if stream.direction is None else stream.direction.name.lower(),
        codec=codec.name,
        payload_type=main,
        first_ns=first_ns,
        last_ns=last_ns,
        inbound_rtp=inbound,
        series=tuple(_point(p, first_ns) for p in points),
        jitter_mean_ms=arrivals.jitter_mean_ms,
        jitter_max_ms=arrivals.jitter_max_ms,
        **totals,
        warnings=tuple(warnings),
        media_playout=media_playout(inbound, output),
        output=output,
        outbound_rtp=outbound_rtp(inbound) if stream.direction is Direction.SENT else {},
        playouts=tuple(played),
    )


def _received(stream: RtpStream, codec: Codec, of_clock: set[int]) -> dict[str, float | int]:
    """What packets alone determine."""
    reception = Reception(codec.clock_rate_hz)
    for timed in stream.packets:
        reception.add(timed.time_ns, timed.packet, sound=timed.packet.payload_type in of_clock)
    inbound: dict[str, float | int] = {
        "packetsReceived": reception.packets_received,
        "packetsLost": reception.packets_lost,
        "jitter": reception.jitter_s,
    }
    if not stream.unsized_packets:
        inbound |= {
            "bytesReceived": reception.bytes_received,
            "headerBytesReceived": reception.header_bytes_received,
        }
    last_ns = stream.packets[-1].time_ns
    if last_ns > EARLIEST_WALL_NS:
        inbound["lastPacketReceivedTimestamp"] = ns_to_ms(last_ns)
    return inbound


def _of_jumps(jumps: Sequence[tuple[int, int]], first_ns: int) -> list[str]:
    if not jumps:
        return []
    at_ns, jump_ns = jumps[0]
    more = f", and {len(jumps) - 1} times more" if len(jumps) > 1 else ""
    return [
        f"{ns_to_s(at_ns - first_ns):.1f} s after the first packet the time jumps {ns_to_ms(jump_ns):.0f} ms ahead of "
        f"the timestamps, with no packet lost and none that catches up{more}: the capture's clock was set, or the "
        "sender stood still; the delays, the jitter and the concealment from there on are not to be trusted"
    ]


def _of_comfort_noise(stream: RtpStream, choice: CodecChoice, policy: str, played: Sequence[Playout]) -> list[str]:
    """What has to be said of comfort noise, which only `chrome` plays, and only beside sound of its own rate."""
    count = sum(len(stream.of_type(number)) for number in choice.comfort_noise)
    if not count or (policy == "chrome" and played and all(p.rate_hz == NOISE_RATE_HZ for p in played)):
        return []
    told = f"{count} packets of comfort noise (RFC 3389): counted but not played"
    if policy == "chrome" and played:
        told += ", since they lie beside sound of another sampling rate"
    return [told]


def _play(stream: RtpStream, choice: CodecChoice, policy: str, warnings: list[str]) -> list[Playout]:
    """One playout for each generation; none, and a warning that says why, where sound or durations are not there."""
    codecs = choice.codecs
    if policy == "chrome" and stream.cut_packets:
        warnings.append(
            f"{stream.cut_packets} packets were captured in part: not played, `chrome` needs their sound (tcpdump -s 0)"
        )
        return []
    if stream.unsized_packets and any(codec.name != "opus" for codec in codecs.values()):  # Opus says it in its packets
        warnings.append(
            f"{stream.unsized_packets} packets were captured in part, the length of their padding or extension is not "
            "there: not played, since how long they last is not known (tcpdump -s 0)"
        )
        return []
    for number, codec in codecs.items():
        if not durations_fit(stream.of_type(number), codec):
            why = f"they are no {codec.name}, or encrypted (SRTP)"
            why = "they were captured in part" if stream.cut_packets else why
            warnings.append(
                f"payload type {number}: packets do not last as long as their timestamps say, {why}: not played"
            )
            return []
    generations = build_streams(stream.packets, codecs, noise_types=choice.comfort_noise)
    if len({g.codec.rate_hz for g in generations}) > 1:
        warnings.append("counters add up samples of different rates")
    if len(generations) > len({g.codec.name for g in generations}):
        warnings.append(f"the sender restarts: {len(generations)} streams one after the other")
    return [_play_one(generation, policy, warnings) for generation in generations]


def _play_one(stream: Stream, policy: str, warnings: list[str]) -> Playout:
    """One playout; only `chrome` looks at the sound."""
    if policy != "chrome":
        return play(packet_trace(stream, np.broadcast_to(np.float32(0.0), int(stream.samples.sum()))), policy)
    sound = ForwardSound(stream)
    playout = play(packet_trace(stream, sound), policy)
    if sound.undecodable:
        warnings.append(f"{sound.undecodable} packets cannot be decoded: silence in their place")
    return playout


def _add(totals: dict[str, float | int], more: Mapping[str, float | int]) -> None:
    for name, value in more.items():
        totals[name] = totals.get(name, 0) + value


def outbound_rtp(inbound: Mapping[str, float | int]) -> dict[str, int]:
    """RTCSentRtpStreamStats and `headerBytesSent` of a sent stream, from what was counted where it left."""
    names = {
        "packetsSent": "packetsReceived",
        "bytesSent": "bytesReceived",
        "headerBytesSent": "headerBytesReceived",
    }
    return {sent: int(inbound[received]) for sent, received in names.items() if received in inbound}


def played_duration(inbound: Mapping[str, float | int], rate_hz: int) -> dict[str, float]:
    """`totalSamplesDuration` of one playout's counters."""
    return {"totalSamplesDuration": inbound["totalSamplesReceived"] / rate_hz}


def media_playout(inbound: Mapping[str, float | int], output: OutputDelay | None) -> dict[str, float | int]:
    """RTCAudioPlayoutStats of what the counters say was played; what the device made up, it alone knows."""
    if "totalSamplesReceived" not in inbound:
        return {}
    count = inbound["totalSamplesReceived"]
    found = {"totalSamplesDuration": inbound["totalSamplesDuration"], "totalSamplesCount": count}
    if output is not None:
        found["totalPlayoutDelay"] = count * output.ms / 1000
    return found


def _totals_ms(playout: Playout) -> dict[str, float]:
    names = {
        "concealed_ms": "concealedSamples",
        "silent_ms": "silentConcealedSamples",
        "inserted_ms": "insertedSamplesForDeceleration",
        "removed_ms": "removedSamplesForAcceleration",
    }
    said = playout.inbound
    return {ms: samples_to_ms(said[name], playout.rate_hz) for ms, name in names.items() if name in said}


def _point(point: PlayoutPoint, first_ns: int) -> SeriesPoint:
    t_s = ns_to_s(point.time_ns - first_ns)
    return SeriesPoint(
        t_s,
        point.jitter_buffer_delay_ms,
        point.target_delay_ms,
        point.concealed_ms,
        point.removed_ms,
        point.inserted_ms,
        point.packets_discarded,
    )


def document(
    policy: str,
    streams: Iterable[Inbound],
    warnings: Iterable[str] = (),
    *,
    rtcp: Mapping[str, Mapping[int, Mapping[str, Any]]] | None = None,
) -> dict[str, Any]:
    """The JSON document `latency-probe/playout/1`, from all streams that were measured.

    Seconds are written to the nanosecond, milliseconds to the microsecond. `rtcp` is what the reports say, by name and
    SSRC (`analysis.rtcp_statistics`); it stands in the entry of its stream.
    """
    streams = list(streams)
    begin_ns = min((s.first_ns for s in streams), default=0)
    end_ns = max((s.last_ns for s in streams), default=0)
    return {
        "schema": SCHEMA,
        "policy": policy,
        "duration_s": round(ns_to_s(end_ns - begin_ns), 9),
        "streams": [
            _entry(s, begin_ns, {name: dict(of[s.ssrc]) for name, of in (rtcp or {}).items() if s.ssrc in of})
            for s in streams
        ],
        "warnings": list(warnings),
    }


def _end_text(end: tuple[str, int]) -> str | None:
    """ "address:port", None where the capture does not name it."""
    return "{}:{}".format(*end) if end[0] else None


def _identity(stream: Inbound, rtcp: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """The id of its `inbound_rtp`, and of the object that this refers to."""
    remote = rtcp.get("remote_outbound_rtp", {})
    return {"id": f"inbound-rtp-{stream.ssrc}"} | ({"remoteId": remote["id"]} if remote else {})


def _entry(stream: Inbound, begin_ns: int, rtcp: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    def rounded(value: float | None, digits: int) -> float | int | None:
        return round(value, digits) if isinstance(value, float) else value

    entry: dict[str, Any] = {
        "ssrc": stream.ssrc,
        "codec": stream.codec,
        "payload_type": stream.payload_type,
        "source": _end_text(stream.source),
        "destination": _end_text(stream.destination),
        "direction": stream.direction,
        "start_s": round(ns_to_s(stream.first_ns - begin_ns), 9),
        "inbound_rtp": {
            **_identity(stream, rtcp),
            **{name: rounded(value, 9) for name, value in stream.inbound_rtp.items()},
        },
        "media_playout": {name: rounded(value, 9) for name, value in stream.media_playout.items()},
        "series": [
            {
                "t_s": round(p.t_s, 9),
                "jitter_buffer_delay_ms": rounded(p.jitter_buffer_delay_ms, 6),
                "target_delay_ms": rounded(p.target_delay_ms, 6),
                "concealed_ms": round(p.concealed_ms, 6),
                "removed_ms": round(p.removed_ms, 6),
                "inserted_ms": round(p.inserted_ms, 6),
                "packets_discarded": p.packets_discarded,
            }
            for p in stream.series
        ],
        "warnings": list(stream.warnings),
    }
    if stream.output is not None:
        entry["output"] = {"ms": stream.output.ms, "evidence": stream.output.evidence}
    if stream.outbound_rtp:
        entry["outbound_rtp"] = {"id": f"outbound-rtp-{stream.ssrc}", **stream.outbound_rtp}
        if "remote_inbound_rtp" in rtcp:
            entry["outbound_rtp"]["remoteId"] = rtcp["remote_inbound_rtp"]["id"]
    return {**entry, **rtcp}
