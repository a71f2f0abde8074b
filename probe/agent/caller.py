"""A simulated caller on the engine's schedule: when it speaks, what it sends, when it takes a turn as settled.

Frame i of the call is handed over at T_i, the end of its sound, as the live player does (see `probe.player`). Whether
the agent is audible is known here from the plan, not decoded. Times are monotonic ns of the simulation.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import numpy as np

from analysis.audiofile import resample
from analysis.bundle import Event
from analysis.codecs import Codec, encode
from analysis.errors import UsageError
from analysis.rtp import RtpPacket
from analysis.streams import Timed
from analysis.units import NS_PER_MS, NS_PER_S, ns_to_s, samples_to_ns
from probe.agent.outbox import Scheduler
from probe.utterances import RATE_HZ, Utterance, annotate, shipped

__all__ = ["FRAME_MS", "NETWORK_NS", "CallerSound", "Schedule", "SimulatedCaller", "caller_sound"]

NETWORK_NS = 150_000  # one way
HAND_OVER_NS = 60_000  # from a frame's deadline until the caller's socket has taken its packet
QUIET_NS = 300 * NS_PER_MS  # inaudible for this long: the agent's turn is over
GREETING_QUIET_NS = 700 * NS_PER_MS
GREETING_TIMEOUT_NS = 10 * NS_PER_S
BACKCHANNEL_NS = 400 * NS_PER_MS
TAIL_NS = 600 * NS_PER_MS
CALLER_SSRC = 0x0CA11E12
CALLER_TIMESTAMP = 0x10000000
FRAME_MS = 20


@dataclass(frozen=True, slots=True)
class Schedule:
    """How many turns there are, and their times (ns)."""

    turns: int
    spacing_ns: int
    timeout_ns: int
    expects_greeting: bool


@dataclass(frozen=True)
class CallerSound:
    """What the caller says, as packets on the 20 ms grid."""

    utterance: Utterance
    packets: tuple[bytes, ...] = field(repr=False)


@lru_cache(maxsize=8)
def caller_sound(language: str, utterance_s: float | None, codec: Codec) -> CallerSound:
    """A shipped utterance, or so much of it, as packets; only its timing matters."""
    whole = shipped(f"{language}/1")
    pcm = whole.samples if utterance_s is None else np.resize(whole.samples, round(utterance_s * RATE_HZ))
    found = annotate(pcm)
    if found is None:
        raise UsageError(f"utterance_s: nothing is audible in {utterance_s} s")
    utterance = replace(
        whole,
        samples=pcm,
        start_sample=found.start_sample,
        end_sample=found.end_sample,
        start_threshold_dbov=found.start_threshold_dbov,
        end_threshold_dbov=found.end_threshold_dbov,
        end_shift_ms=found.end_shift_ms,
    )
    tail = np.zeros(3 * FRAME_MS * codec.rate_hz // 1000, dtype=np.float32)
    return CallerSound(utterance, encode(codec, np.concatenate((resample(pcm, RATE_HZ, codec.rate_hz), tail))))


@lru_cache(maxsize=8)
def _silence(codec: Codec) -> bytes:
    return encode(codec, np.zeros(codec.rate_hz // 5, dtype=np.float32))[-1]


class SimulatedCaller:
    """Keeps the engine's schedule: speaks the turns, waits for replies, and writes down what it does."""

    def __init__(
        self,
        scheduler: Scheduler,
        voice: Callable[[int, int], None],
        stop: Callable[[], None],
        sound: CallerSound,
        codec: Codec,
        payload_type: int,
        schedule: Schedule,
    ) -> None:
        self._scheduler = scheduler
        self._voice = voice
        self._stop = stop
        self._sound = sound
        self._codec = codec
        self._payload_type = payload_type
        self._schedule = schedule
        self._frame_ns = FRAME_MS * NS_PER_MS
        self.deadline0_ns = scheduler.now_ns() + self._frame_ns
        self.sent: list[Timed] = []
        self.events: list[Event] = []
        self._frame = 0
        self._turn = -1  # the one that was spoken last
        self._first_frame: int | None = None
        self._stop_ns = 0
        self._settled = True
        self._due_ns: int | None = None
        self._give_up_ns = scheduler.now_ns() + (GREETING_TIMEOUT_NS if schedule.expects_greeting else 0)
        self._onset_ns: int | None = None
        self._until_ns: int | None = None
        self._settled_ns = 0

    def settings(self) -> list[dict[str, Any]]:
        """The turns as a manifest lists them."""
        utterance = self._sound.utterance
        return [
            {
                "index": index,
                "utterance": utterance.name,
                "language": utterance.language,
                "segment": {},
                "spacing_s": ns_to_s(self._schedule.spacing_ns),
                "timeout_s": ns_to_s(self._schedule.timeout_ns),
                "interruption_ms": None,
                "expect_reply": True,
                "flags": [],
            }
            for index in range(self._schedule.turns)
        ]

    # -- what it hears

    def hear(self, arrival_ns: int, duration_ns: int) -> None:
        """A packet of the agent's arrives in which speech lies."""
        if self._until_ns is None or arrival_ns - self._until_ns > 200 * NS_PER_MS:
            self._onset_ns = arrival_ns
        self._until_ns = arrival_ns + duration_ns

    def _quiet_ns(self, now_ns: int) -> int:
        return 1 << 62 if self._until_ns is None else max(0, now_ns - self._until_ns)

    # -- what it does

    def start(self) -> None:
        """Begin to send."""
        frame_ns = self._frame_ns
        self._note(self.deadline0_ns, "media_started", deadline0_ns=self.deadline0_ns, frame_ns=frame_ns)
        self._note(self.deadline0_ns + HAND_OVER_NS, "sent_origin", rtp_timestamp=CALLER_TIMESTAMP, ssrc=CALLER_SSRC)
        self._scheduler.at(self.deadline0_ns, self._tick)

    def _note(self, time_ns: int, type_: str, **fields: Any) -> None:
        self.events.append(Event(time_ns, type_, fields))

    def _tick(self) -> None:
        """One frame, at its deadline."""
        deadline_ns = self.deadline0_ns + self._frame * self._frame_ns
        self._decide(deadline_ns)
        payload = _silence(self._codec)
        if self._first_frame is not None:
            inside = self._frame - self._first_frame
            if 0 <= inside < len(self._sound.packets):
                payload = self._sound.packets[inside]
                self._speak(inside, deadline_ns + HAND_OVER_NS + NETWORK_NS)
        ticks = self._codec.clock_rate_hz * FRAME_MS // 1000
        packet = RtpPacket(
            self._payload_type,
            self._frame & 0xFFFF,
            (CALLER_TIMESTAMP + self._frame * ticks) & 0xFFFFFFFF,
            CALLER_SSRC,
            payload,
        )
        self.sent.append(Timed(deadline_ns + HAND_OVER_NS, packet))
        self._frame += 1
        self._scheduler.at(self.deadline0_ns + self._frame * self._frame_ns, self._tick)

    def _speak(self, inside: int, arrival_ns: int) -> None:
        """What of packet `inside` of the utterance is voiced, on the agent's arrival clock."""
        size = RATE_HZ * FRAME_MS // 1000
        ahead = self._codec.lookahead_samples * RATE_HZ // self._codec.rate_hz
        begin = max(self._sound.utterance.start_sample + ahead - inside * size, 0)
        end = min(self._sound.utterance.end_sample + 1 + ahead - inside * size, size)
        if begin < end:
            zero_ns = arrival_ns - self._frame_ns
            span = zero_ns + samples_to_ns(begin, RATE_HZ), zero_ns + samples_to_ns(end, RATE_HZ)
            self._scheduler.at(arrival_ns, lambda: self._voice(*span))

    def _decide(self, now_ns: int) -> None:
        """At each deadline: is the greeting over, is the turn settled, is the next one due?"""
        if self._due_ns is None:
            self._await_greeting(now_ns)
        elif not self._settled:
            self._await_reply(now_ns)
        if self._due_ns is None or not self._settled:
            return
        if self._turn + 1 == self._schedule.turns:
            quiet = self._quiet_ns(now_ns) >= QUIET_NS + TAIL_NS
            if quiet or now_ns - self._settled_ns >= self._schedule.timeout_ns + TAIL_NS:
                self._note(now_ns, "call_ended", reason="done")
                self._stop()
            return
        ready_ns = max(self._due_ns, self._settled_ns)
        limit_ns = ready_ns + self._schedule.timeout_ns
        # the frame that is handed over now was captured in the 20 ms before
        if now_ns - self._frame_ns >= ready_ns and (self._quiet_ns(now_ns) >= QUIET_NS or now_ns >= limit_ns):
            self._begin_turn(now_ns)

    def _await_greeting(self, now_ns: int) -> None:
        heard = self._onset_ns is not None
        if heard and self._quiet_ns(now_ns) >= GREETING_QUIET_NS:
            ended_ns = now_ns - self._quiet_ns(now_ns)
        elif now_ns >= (self._give_up_ns if self._onset_ns is None else self._onset_ns + self._schedule.timeout_ns):
            ended_ns = now_ns
        else:
            return
        self._note(ended_ns, "greeting_ended", heard=heard, unending=heard and ended_ns == now_ns)
        self._due_ns = ended_ns + self._schedule.spacing_ns

    def _begin_turn(self, deadline_ns: int) -> None:
        utterance = self._sound.utterance
        self._turn += 1
        self._first_frame, self._settled = self._frame, False
        zero_ns = deadline_ns - self._frame_ns
        self._stop_ns = zero_ns + samples_to_ns(utterance.end_sample, RATE_HZ)
        self._note(
            deadline_ns,
            "turn_started",
            turn=self._turn,
            due_ns=self._due_ns,
            utterance=utterance.name,
            language=utterance.language,
            first_deadline_ns=deadline_ns,
            first_frame=self._frame,
            start_sample=utterance.start_sample,
            end_sample=utterance.end_sample,
            rate_hz=RATE_HZ,
            start_threshold_dbov=utterance.start_threshold_dbov,
            end_threshold_dbov=utterance.end_threshold_dbov,
            end_shift_ms=dict(utterance.end_shift_ms),
            timeout_ns=self._schedule.timeout_ns,
            flags=[],
            segment={},
            expect_reply=True,
        )

    def _await_reply(self, now_ns: int) -> None:
        if now_ns < self._stop_ns:
            return
        onset_ns, until_ns, started_ns = self._onset_ns, self._until_ns, self._started_ns
        replied = onset_ns is not None and until_ns is not None and onset_ns >= started_ns
        if replied and onset_ns is not None and until_ns is not None and onset_ns < self._stop_ns:
            replied = until_ns - onset_ns >= BACKCHANNEL_NS or until_ns > self._stop_ns
        if replied or now_ns - self._stop_ns >= self._schedule.timeout_ns:
            self._note(now_ns, "turn_settled", turn=self._turn, why="reply" if replied else "timeout")
            self._settled, self._settled_ns = True, now_ns
            assert self._due_ns is not None
            self._due_ns += self._schedule.spacing_ns

    @property
    def _started_ns(self) -> int:
        assert self._first_frame is not None
        return self.deadline0_ns + (self._first_frame - 1) * self._frame_ns
