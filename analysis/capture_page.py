"""The streams of a capture as measured and as series in, one self-contained HTML page of their plots out.

It looks as the report does (analysis.report) and loads nothing either; every foreign text is text.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any

from analysis.capture_rtp import CodecChoice, RtpStream
from analysis.codecs import Codec, packet_samples
from analysis.counting import counted
from analysis.drawing import house_style, plain
from analysis.inbound import Inbound
from analysis.network import arrivals
from analysis.network_figures import draw_network
from analysis.page import template
from analysis.playout import Playout
from analysis.report_words import LABEL_CHARS, MISSING, ms_text
from analysis.rtp import signed_difference
from analysis.series import CONCEALED, CallSeries, call_series
from analysis.streams import Stream, Timed, build_streams
from analysis.units import ns_to_s

__all__ = ["CapturedStream", "render_capture", "stream_series"]

MAX_DRAWN = 12  # streams; a page of more is no page
OPUS_OF_MS = {10: b"\xf0", 20: b"\xf8", 40: b"\x10", 60: b"\x18"}  # RFC 6716, section 3.1
LAST_TIME_MS = 250_000_000_000_000  # later than the year 9000 is no time of a capture
MAX_WARNINGS = 30
WARNING_CHARS = 400
POLICIES = {
    "chrome": "a model of the jitter buffer of libwebrtc (NetEQ), which Chrome, Edge, Safari and most native apps use",
    "fixed": "the first packet of a talkspurt plays that many milliseconds after it arrived, all others in time",
    "none": "no buffer: a packet is heard as it arrives",
}
CONCEALED_AS_COUNTED = " The counter concealedSamples holds both, as a browser's does."
CAUTIONS = (
    "This is no user latency: a capture of packets does not say when a caller stopped speaking.",
    "Delays count from the fastest packet of the stream, so they are what comes on top of the path's own delay, which "
    "one clock cannot tell.",
    "The playout is modelled from the packets, not heard. A browser that asks for lost packets again, or is sent "
    "redundant ones, would have concealed less. The output device comes on top.",
    "The capture says what passed where it was made. What happened behind that place is not in it.",
)


@dataclass(frozen=True)
class CapturedStream:
    """What the page says of one SSRC: the statistics, and the series of its plots."""

    inbound: Inbound
    series: CallSeries


def stream_series(
    stream: RtpStream,
    choice: CodecChoice,
    inbound: Inbound,
    policy: str,
    zero_ns: int,
    number: int,
) -> CallSeries:
    """The series of a captured stream; without playout where `inbound` says that it was not played.

    Parameters
    ----------
    stream, choice, inbound
        As they went into, and came out of, `analysis.inbound.measure`.
    policy : str
    zero_ns : int
        Time 0 of the page.
    number : int
        Tells streams apart, as a call's number does.
    """
    is_played = inbound.concealed_ms is not None
    # what is encrypted or was captured in part does not tell its own duration
    streams = build_streams(stream.packets if is_played else _stand_ins(stream, choice.codecs), choice.codecs)
    heard: list[tuple[Stream, Playout | None]] = (
        list(zip(streams, inbound.playouts, strict=True)) if is_played else [(each, None) for each in streams]
    )
    return call_series(
        number,
        zero_ns,
        arrivals(streams),
        policy,
        heard=heard,
        received=stream.packets,
        name=f"{stream.ssrc:#010x}",
        axis="time from the first packet of the capture",
    )


def _stand_ins(stream: RtpStream, codecs: Mapping[int, Codec]) -> list[Timed]:
    """The packets with payloads that last as long as the timestamps say: enough for arrivals and losses."""
    made: list[Timed] = []
    for number, codec in codecs.items():
        packets = [timed.packet for timed in stream.of_type(number)]
        steps = [signed_difference(b.timestamp, a.timestamp, 32) for a, b in pairwise(packets)]
        usual = statistics.median_low([step for step in steps if step > 0] or [codec.ticks(codec.rate_hz // 50)])
        payload = _lasting(codec, codec.samples(usual))
        for timed in stream.of_type(number):
            made.append(replace(timed, packet=replace(timed.packet, payload=payload)))
    return sorted(made, key=lambda timed: timed.time_ns)


def _lasting(codec: Codec, samples: int) -> bytes:
    """A payload of this duration; of Opus, of the nearest that one frame can have."""
    if codec.name == "opus":
        return OPUS_OF_MS[min(OPUS_OF_MS, key=lambda ms: abs(ms - 1000 * samples / codec.rate_hz))]
    return bytes(max(1, 1000 * samples // packet_samples(codec, bytes(1000))))


def render_capture(
    source: str, policy: str, streams: Sequence[CapturedStream], warnings: Sequence[str], *, command: str = ""
) -> str:
    """The page as HTML text; the same input gives the same text."""
    with house_style():
        rows = [_stream(each, drawn=number < MAX_DRAWN) for number, each in enumerate(streams)]
    said = policy.partition(":")[0]
    methods = [
        ("Playout", f"Policy {plain(policy, 40)}: {POLICIES.get(said, plain(said))}. Modelled from the arrivals."),
        ("Delays", "Arrival less the place on the sender's media clock, from the smallest of the stream."),
        ("Jitter", "RFC 3550, appendix A.8: each packet against the one that arrived before it."),
        ("Losses", "Gaps in the sequence numbers. A packet that came more than once counts once."),
        ("Concealed", CONCEALED + (CONCEALED_AS_COUNTED if said == "chrome" else "")),
        ("Too late", "The packet arrived, but no sample of it was played."),
        ("Statistics", "W3C webrtc-stats, inbound-rtp. What packets and policy do not determine is absent."),
    ]
    return template("capture.html.j2").render(
        source=plain(source, 120),
        count=counted(len(streams), "stream"),
        policy=plain(policy, 40),
        streams=rows,
        warnings=[plain(text, WARNING_CHARS) for text in warnings[:MAX_WARNINGS]],
        left_out=counted(left_out, "more stream") if (left_out := len(streams) - MAX_DRAWN) > 0 else "",
        methods=methods,
        cautions=CAUTIONS,
        command=plain(command, 2000),
    )


def _stream(stream: CapturedStream, *, drawn: bool) -> dict[str, Any]:
    found = stream.inbound
    said = found.inbound_rtp
    way = f", {found.direction}" if found.direction else ""
    ends = "{}:{} → {}:{}".format(*found.source, *found.destination)
    return {
        "id": f"stream-{stream.series.call}",
        "name": f"{found.ssrc:#010x}",
        "codec": plain(found.codec, LABEL_CHARS),
        "payload_type": found.payload_type,
        "ends": plain(ends, 120) + way,
        "cells": [
            f"{said['packetsReceived']:,}",
            f"{said['packetsLost']:,}",
            ms_text(1000 * said["jitter"]),
            _mean_delay(said),
            MISSING if found.concealed_ms is None else ms_text(float(stream.series.concealed_ms.sum())),
            f"{ns_to_s(found.last_ns - found.first_ns):,.1f}",
        ],
        "warnings": [plain(text, WARNING_CHARS) for text in found.warnings[:MAX_WARNINGS]],
        "counters": [(name, _counter(name, value)) for name, value in said.items()],
        "drawings": draw_network([stream.series]) if drawn else [],
    }


def _mean_delay(said: Mapping[str, float | int]) -> str:
    emitted = said.get("jitterBufferEmittedCount", 0)
    return ms_text(1000 * said["jitterBufferDelay"] / emitted) if emitted else MISSING


def _counter(name: str, value: float | int) -> str:
    """A counter as shown; a time (ms since 1970) as one."""
    if name.endswith("Timestamp") and 0 < value < LAST_TIME_MS:
        return f"{datetime.fromtimestamp(value / 1000, UTC):%Y-%m-%d %H:%M:%S.%f}"[:-3] + " UTC"
    return _number(value)


def _number(value: float | int) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:,.6f}".rstrip("0").rstrip(".")
