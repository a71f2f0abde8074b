"""Encoded frames into RTP packets with the moments at which they should leave, and would have left unimpaired.

Sources: RFC 3550 section 5.1 (sequence numbers; timestamps go on over pauses), RFC 7587 (Opus). Times are monotonic ns.
A packet's nominal time is its frame's place on the sender's media clock, which may drift.
"""

from __future__ import annotations

from dataclasses import dataclass

from analysis.codecs import Codec
from analysis.rtp import RtpPacket, unwrap
from analysis.units import NS_PER_MS, NS_PER_S, ms_to_ns, s_to_ns
from probe.agent.config import AgentConfig, Impairment
from probe.agent.draws import Draws, Purpose

__all__ = ["AgentStream", "Impairer", "ReplayWindow", "SentPacket", "first_ssrc"]

SEQUENCE_HALF = 1 << 15  # WebRTC senders start in the lower half: a wrap too early breaks SRTP's rollover counter
REPLAY_WINDOW = 1024  # packets that libsrtp remembers, as aiortc (and our tap) sets it


@dataclass(frozen=True, slots=True)
class SentPacket:
    """One packet of the agent's.

    `count` is its number in the call; `nominal_ns` when it would have left, `send_ns` when it is to leave; `lost`: it
    never leaves; `copies`: how often it does; `sounding`: speech lies in it, as it was planned.
    """

    count: int
    sequence_number: int
    timestamp: int
    ssrc: int
    payload_type: int
    payload: bytes
    nominal_ns: int
    send_ns: int
    lost: bool
    copies: int
    sounding: bool

    def rtp(self) -> RtpPacket:
        """The packet as it goes on the wire."""
        return RtpPacket(self.payload_type, self.sequence_number, self.timestamp, self.ssrc, self.payload)


class Impairer:
    """Decides what becomes of each packet: a pure function of the seed, the packet's number and its nominal time.

    Parameters
    ----------
    impairment : Impairment
    draws : Draws
    origin_ns : int
        When the connection was made; a stall counts from it.
    ptime_ms : int
    """

    def __init__(self, impairment: Impairment, draws: Draws, origin_ns: int, ptime_ms: int) -> None:
        self._impairment = impairment
        self._draws = draws
        self._burst_left = 0
        self._bad = False
        self._latest_ns = origin_ns
        spikes, stall = impairment.delay.spikes, impairment.stall
        self._spike_every = 0 if spikes is None else max(1, round(spikes.every_s * 1000 / ptime_ms))
        self._stall = (0, 0)
        if stall is not None:
            begin_ns = origin_ns + s_to_ns(stall.at_s)
            self._stall = begin_ns, begin_ns + ms_to_ns(stall.ms)

    def fate(self, count: int, nominal_ns: int) -> tuple[int, bool, int]:
        """When packet `count` leaves (ns), whether it is lost, and its copies. To be asked in order."""
        lost = self._lost(count)
        send_ns = nominal_ns + ms_to_ns(self._delay_ms(count))
        begin_ns, end_ns = self._stall
        if begin_ns <= send_ns < end_ns:
            send_ns = end_ns
        if self._impairment.in_order:
            send_ns = max(send_ns, self._latest_ns)
        if not lost:
            self._latest_ns = max(self._latest_ns, send_ns)
        copies = 2 if self._draws.happens(Purpose.DUPLICATE, count, self._impairment.duplicate) else 1
        return send_ns, lost, copies

    def _lost(self, count: int) -> bool:
        loss, draws = self._impairment.loss, self._draws
        lost = draws.happens(Purpose.LOSS, count, loss.random)
        if loss.bursts is not None:
            if self._burst_left == 0 and draws.happens(Purpose.BURST, count, loss.bursts.probability):
                self._burst_left = draws.whole(Purpose.BURST_LENGTH, count, *loss.bursts.length)
            if self._burst_left:
                self._burst_left -= 1
                lost = True
        if loss.gilbert_elliott is not None:
            leave = loss.gilbert_elliott.r if self._bad else loss.gilbert_elliott.p
            if draws.happens(Purpose.GILBERT_ELLIOTT, count, leave):
                self._bad = not self._bad
            lost |= self._bad
        return lost

    def _delay_ms(self, count: int) -> float:
        delay, draws = self._impairment.delay, self._draws
        total = 0.0
        if delay.uniform is not None:
            total += draws.between(Purpose.DELAY_UNIFORM, count, delay.uniform.low_ms, delay.uniform.high_ms)
        if delay.normal is not None:
            total += max(0.0, draws.normal(Purpose.DELAY_NORMAL, count, delay.normal.mean_ms, delay.normal.sd_ms))
        if delay.trace is not None:
            total += delay.trace.ms[count % len(delay.trace.ms)]
        if delay.spikes is not None:
            period, place = divmod(count, self._spike_every)
            if place == draws.whole(Purpose.DELAY_SPIKE_AT, period, 0, self._spike_every - 1):
                total += draws.between(Purpose.DELAY_SPIKE, period, delay.spikes.low_ms, delay.spikes.high_ms)
        return total


def first_ssrc(config: AgentConfig, call: int) -> int:
    """The SSRC with which a call begins, for its description."""
    return _ssrc(Draws(config.seed, call), 0)


def _ssrc(draws: Draws, number: int) -> int:
    return draws.whole(Purpose.SSRC, number, 1, 0xFFFFFFFF)


class AgentStream:
    """Numbers and stamps the agent's frames, one after the other.

    Parameters
    ----------
    config : AgentConfig
    call : int
    codec : Codec
    ptime_ms : int
    payload_type : int
    origin_ns : int
        When the connection was made: where a stream that never pauses begins, and time 0 of the media clock.
    """

    def __init__(
        self, config: AgentConfig, call: int, codec: Codec, *, ptime_ms: int, payload_type: int, origin_ns: int
    ) -> None:
        self._impairment = config.impairment
        self._draws = Draws(config.seed, call)
        self._impairer = Impairer(config.impairment, self._draws, origin_ns, ptime_ms)
        self._codec = codec
        self._payload_type = payload_type
        self._ptime_ns = ptime_ms * NS_PER_MS
        self._ticks = codec.clock_rate_hz * ptime_ms // 1000
        # a clock that runs fast gets through a frame in less time
        self._slowness = 1 - config.impairment.drift_ppm * 1e-6
        self._origin_ns = self._grid_ns = origin_ns
        self._grid_ticks = 0
        self._frame = 0
        self._streams = 0
        self._timestamp0 = 0
        self.count = 0
        self.octets = 0
        self.ssrc = 0
        self.sequence_number = 0
        self._new_source()
        if config.impairment.initial_sequence is not None:
            self.sequence_number = config.impairment.initial_sequence
        if config.impairment.initial_timestamp is not None:
            self._timestamp0 = config.impairment.initial_timestamp

    def _new_source(self) -> None:
        number = self._streams
        self._streams += 1
        self.ssrc = _ssrc(self._draws, number)
        self.sequence_number = self._draws.whole(Purpose.SEQUENCE, number, 0, SEQUENCE_HALF - 1)
        self._timestamp0 = self._draws.whole(Purpose.TIMESTAMP, number, 0, 0xFFFFFFFF)

    @property
    def next_ns(self) -> int:
        """The nominal time of the next frame."""
        return self._grid_ns + round(self._frame * self._ptime_ns * self._slowness)

    def begin(self, at_ns: int) -> None:
        """Start a grid of frames at `at_ns`: a talkspurt after a pause. Time goes on over the pause, never back."""
        at_ns = max(at_ns, self.next_ns)
        ticks = round((at_ns - self._origin_ns) * self._codec.clock_rate_hz / NS_PER_S / self._slowness)
        self._grid_ticks = max(ticks, self._grid_ticks + self._frame * self._ticks)
        self._grid_ns, self._frame = at_ns, 0

    def skip(self) -> None:
        """Pass over one frame that is not sent (DTX)."""
        self._frame += 1

    def emit(self, payload: bytes, *, new_source: bool = False, sounding: bool = False) -> SentPacket:
        """The next frame as a packet."""
        changes = self._impairment.ssrc_change_at
        if new_source or (isinstance(changes, tuple) and self.count in changes):
            self._new_source()
        if self.count == self._impairment.restart_at:
            self.sequence_number = (self.sequence_number - self._impairment.restart_back) & 0xFFFF
        nominal_ns = self.next_ns
        send_ns, lost, copies = self._impairer.fate(self.count, nominal_ns)
        packet = SentPacket(
            count=self.count,
            sequence_number=self.sequence_number,
            timestamp=(self._timestamp0 + self._grid_ticks + self._frame * self._ticks) & 0xFFFFFFFF,
            ssrc=self.ssrc,
            payload_type=self._payload_type,
            payload=payload,
            nominal_ns=nominal_ns,
            send_ns=send_ns,
            lost=lost,
            copies=copies,
            sounding=sounding,
        )
        self.count += 1
        self.octets += len(payload)
        self._frame += 1
        self.sequence_number = (self.sequence_number + 1) & 0xFFFF
        return packet

    def rtp_timestamp_at(self, time_ns: int) -> int:
        """The media clock's timestamp at a moment, for sender reports."""
        ticks = round((time_ns - self._grid_ns) * self._codec.clock_rate_hz / NS_PER_S / self._slowness)
        return (self._timestamp0 + self._grid_ticks + ticks) & 0xFFFFFFFF


class ReplayWindow:
    """What a receiver's SRTP lets through: each sequence number once, and none from below its window.

    Source: RFC 3711 section 3.3.2, with libsrtp's window.
    """

    def __init__(self) -> None:
        self._highest: dict[int, int] = {}
        self._seen: dict[int, set[int]] = {}

    def accepts(self, packet: SentPacket) -> bool:
        """Whether the packet, arriving now, reaches the RTP layer. To be asked in order of arrival."""
        seen = self._seen.setdefault(packet.ssrc, set())
        highest = self._highest.setdefault(packet.ssrc, packet.sequence_number)
        index = unwrap(packet.sequence_number, highest, 16)
        if index in seen or index <= highest - REPLAY_WINDOW:
            return False
        seen.add(index)
        if index > highest:
            self._highest[packet.ssrc] = index
            if len(seen) > 4 * REPLAY_WINDOW:
                self._seen[packet.ssrc] = {i for i in seen if i > index - REPLAY_WINDOW}
        return True
