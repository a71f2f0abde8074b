"""A recorded call opened for derivation: its clock, what was sent, what was heard, and under which assumptions.

Source: the design's boundaries. Times are monotonic ns of the machine that recorded; time 0 of the call is the capture
of the first sample that the probe sent.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from analysis.bundle import CallRecord, Event
from analysis.codecs import CODECS, Codec
from analysis.network import Arrivals, RoundTrip, arrivals, round_trips, stun_round_trips
from analysis.sounds import HeardStream, Sound, hear
from analysis.turns import Spoken
from analysis.units import NS_PER_S, ms_to_ns, ns_to_s, s_to_ns, samples_to_ns

__all__ = ["ASSUMED_OUTPUT", "Call", "Output", "open_call", "spoken_in"]

MAX_HAND_OVER_NS = 60 * NS_PER_S  # a process may have been stopped for a while, but not for longer


@dataclass(frozen=True, slots=True)
class Output:
    """Delay from the jitter buffer to the ear (ms), its expanded uncertainty (k = 2), and where it is known from."""

    ms: float
    uncertainty_ms: float
    evidence: str


# Chrome on Linux into a PulseAudio null sink, recorded; the delay of a sound card comes on top (docs/benchmarks.md)
ASSUMED_OUTPUT = Output(40.0, 15.0, "assumed")


@dataclass(frozen=True)
class Call:
    """One call while it is worked out."""

    record: CallRecord
    call: int
    zero_ns: int
    frame_ns: int
    send_codec: Codec
    sent_origin: tuple[int, int] | None  # SSRC, and the RTP timestamp of media time 0
    policies: tuple[str, ...]
    output: Output
    heard: list[HeardStream]
    sounds: list[Sound]
    arrivals: Arrivals
    round_trips: list[RoundTrip]
    sent_ns: Mapping[tuple[int, int], int]  # by SSRC and timestamp: when the packet left
    lags: Mapping[int, Mapping[str, Any]]  # by the arrival of the packet that had to wait to be read

    def seconds(self, time_ns: int | None) -> float | None:
        return None if time_ns is None else ns_to_s(time_ns - self.zero_ns)

    @property
    def packet_samples(self) -> int:
        """Samples of a sent packet, at the codec's rate."""
        return self.send_codec.rate_hz * self.frame_ns // NS_PER_S

    def stop_frame(self, event: Event) -> int:
        """Frame of the utterance whose packet carries its last audible sample, look-ahead included."""
        end = int(event.fields["end_sample"]) * self.send_codec.rate_hz // int(event.fields["rate_hz"])
        return (end + self.send_codec.lookahead_samples) // self.packet_samples

    def output_ns(self, policy: str) -> int:
        return 0 if policy == "none" else ms_to_ns(self.output.ms)


def open_call(
    record: CallRecord,
    number: int,
    negotiated: Event,
    started: Event,
    policies: tuple[str, ...],
    output: Output,
) -> Call:
    types: dict[int, Codec] = {
        int(pt): CODECS[name] for pt, name in negotiated.fields["payload_types"].items() if name in CODECS
    }
    heard, sounds = hear(record.received, types, policies)
    origin = record.first("sent_origin")
    sent_origin = None if origin is None else (int(origin.fields["ssrc"]), int(origin.fields["rtp_timestamp"]))
    return Call(
        record=record,
        call=number,
        zero_ns=int(started.fields["deadline0_ns"]) - int(started.fields["frame_ns"]),
        frame_ns=int(started.fields["frame_ns"]),
        send_codec=CODECS[str(negotiated.fields["send"]["codec"])],
        sent_origin=sent_origin,
        policies=policies,
        output=output,
        heard=heard,
        sounds=sounds,
        arrivals=arrivals([h.stream for h in heard]),
        # ICE's checks stand in where the peer reports nothing
        round_trips=round_trips(record.rtcp_received, record.rtcp_sent, sent_origin and sent_origin[0])
        or stun_round_trips(record.events),
        # the first packet of a timestamp, so the earliest is written last
        sent_ns={(t.packet.ssrc, t.packet.timestamp): t.time_ns for t in reversed(record.sent)},
        lags={e.time_ns: e.fields for e in record.of_type("loop_lag")},
    )


def spoken_in(call: Call, event: Event, settings: Mapping[str, Any]) -> Spoken:
    start_ns = int(event.fields["first_deadline_ns"]) - call.frame_ns
    # it is recorded as its first packet is handed over
    if abs(start_ns - event.time_ns) > MAX_HAND_OVER_NS:
        raise ValueError("turn_started names a deadline that is not near it")
    return Spoken(
        index=int(event.fields["turn"]),
        start_ns=start_ns,
        stop_ns=start_ns + samples_to_ns(int(event.fields["end_sample"]), int(event.fields["rate_hz"])),
        stop_sent_ns=_stop_sent_ns(call, event),
        timeout_ns=s_to_ns(float(settings["timeout_s"])),
        interruption=settings.get("interruption_ms") is not None,
    )


def _stop_sent_ns(call: Call, event: Event) -> int | None:
    """When the packet left that carries the utterance's last audible sample; None where it is not in the record."""
    if call.sent_origin is None:
        return None
    ssrc, origin = call.sent_origin
    frame = int(event.fields["first_frame"]) + call.stop_frame(event)
    timestamp = (origin + frame * call.send_codec.ticks(call.packet_samples)) & 0xFFFFFFFF
    return call.sent_ns.get((ssrc, timestamp))
