"""Configuration and seed into a whole call as a recorder would have written it, without a network and at once.

The agent's own core on simulated time, spoken to by a simulated caller who keeps to the engine's schedule. The network
is perfect: what leaves arrives 150 µs later. Call time 0 is the capture of the first sample that the caller sent.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np

from analysis.audiofile import resample
from analysis.bundle import SCHEMA, CallRecord, Event
from analysis.codecs import CODECS, Codec, encode, packet_samples
from analysis.errors import UsageError
from analysis.rtp import RtpPacket
from analysis.streams import Timed
from analysis.units import NS_PER_MS, NS_PER_S, ns_to_s, s_to_ns, samples_to_ns
from probe.agent.config import AgentConfig
from probe.agent.core import Agent, Hooks, TruthJob
from probe.agent.plan import Kind, ReplyPlan, spoken_language
from probe.agent.speech import Prepared, prepare
from probe.agent.stream import ReplayWindow, SentPacket
from probe.agent.truth import Truth, truth_of
from probe.utterances import RATE_HZ, Utterance, annotate, shipped

__all__ = ["NETWORK_NS", "SimulatedScheduler", "simulate_call"]

NETWORK_NS = 150_000  # one way
ORIGIN_NS = 1_000 * NS_PER_S  # when the simulated connection is made
WALL_NS = 1_767_225_600 * NS_PER_S  # 2026-01-01: metadata only
HAND_OVER_NS = 60_000  # from a frame's deadline until the caller's socket has taken its packet
QUIET_NS = 300 * NS_PER_MS  # inaudible for this long: the agent's turn is over
GREETING_QUIET_NS = 700 * NS_PER_MS
GREETING_TIMEOUT_NS = 10 * NS_PER_S
BACKCHANNEL_NS = 400 * NS_PER_MS
TAIL_NS = 600 * NS_PER_MS
CALLER_SSRC = 0x0CA11E12
CALLER_TIMESTAMP = 0x10000000
FRAME_MS = 20
DYNAMIC_PAYLOAD_TYPE = 96


class _Entry:
    """Something scheduled; a cancelled one stays in the heap and does nothing."""

    __slots__ = ("callback",)

    def __init__(self, callback: Callable[[], None]) -> None:
        self.callback: Callable[[], None] | None = callback

    def cancel(self) -> None:
        """It is not to happen."""
        self.callback = None


class SimulatedScheduler:
    """Time that passes from one callback to the next; callbacks of the same moment run in the order they were made."""

    def __init__(self, origin_ns: int) -> None:
        self._now_ns = origin_ns
        self._heap: list[tuple[int, int, _Entry]] = []
        self._made = 0
        self.stopped = False

    def now_ns(self) -> int:
        """Now, monotonic ns."""
        return self._now_ns

    def at(self, time_ns: int, callback: Callable[[], None]) -> _Entry:
        """Call back at `time_ns`, at once where that is past."""
        entry = _Entry(callback)
        heapq.heappush(self._heap, (max(time_ns, self._now_ns), self._made, entry))
        self._made += 1
        return entry

    def run(self) -> None:
        """Until nothing is left to do, or `stopped`."""
        while self._heap and not self.stopped:
            self._now_ns, _, entry = heapq.heappop(self._heap)
            if entry.callback is not None:
                entry.callback()


@dataclass(frozen=True)
class _Sound:
    """What the caller says, as packets on the 20 ms grid."""

    utterance: Utterance
    packets: tuple[bytes, ...] = field(repr=False)


@lru_cache(maxsize=8)
def _caller_sound(language: str, utterance_s: float | None, codec: Codec) -> _Sound:
    """A shipped utterance, or so much of it, as packets; only its timing matters."""
    whole = shipped(f"{language}/1")
    pcm = whole.samples if utterance_s is None else np.resize(whole.samples, round(utterance_s * RATE_HZ))
    found = annotate(pcm)
    if found is None:
        raise UsageError(f"utterance_s: nothing is audible in {utterance_s} s")
    utterance = Utterance(
        whole.name, language, whole.text, pcm, found.start_sample, found.end_sample,
        found.start_threshold_dbov, found.end_threshold_dbov, found.end_shift_ms,
    )  # fmt: skip
    tail = np.zeros(3 * FRAME_MS * codec.rate_hz // 1000, dtype=np.float32)
    return _Sound(utterance, encode(codec, np.concatenate((resample(pcm, RATE_HZ, codec.rate_hz), tail))))


@lru_cache(maxsize=8)
def _silence(codec: Codec) -> bytes:
    return encode(codec, np.zeros(codec.rate_hz // 5, dtype=np.float32))[-1]


class _Caller:
    """Keeps the engine's schedule: speaks the turns, waits for replies, and writes down what it does."""

    def __init__(
        self,
        scheduler: SimulatedScheduler,
        voice: Callable[[int, int], None],
        sound: _Sound,
        codec: Codec,
        payload_type: int,
        *,
        turns: int,
        spacing_ns: int,
        timeout_ns: int,
        expects_greeting: bool,
    ) -> None:
        self._scheduler = scheduler
        self._voice = voice
        self._sound = sound
        self._codec = codec
        self._payload_type = payload_type
        self._turns = turns
        self._spacing_ns = spacing_ns
        self._timeout_ns = timeout_ns
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
        self._give_up_ns = scheduler.now_ns() + (GREETING_TIMEOUT_NS if expects_greeting else 0)
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
                "spacing_s": ns_to_s(self._spacing_ns),
                "timeout_s": ns_to_s(self._timeout_ns),
                "interruption_ms": None,
                "expect_reply": True,
                "flags": [],
            }
            for index in range(self._turns)
        ]

    # -- what it hears

    def hear(self, arrival_ns: int, duration_ns: int, sounding: bool) -> None:
        """A packet of the agent's arrives; whether speech lies in it is known here without decoding."""
        if not sounding:
            return
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
        if self._turn + 1 == self._turns:
            quiet = self._quiet_ns(now_ns) >= QUIET_NS + TAIL_NS
            if quiet or now_ns - self._settled_ns >= self._timeout_ns + TAIL_NS:
                self._note(now_ns, "call_ended", reason="done")
                self._scheduler.stopped = True
            return
        ready_ns = max(self._due_ns, self._settled_ns)
        limit_ns = ready_ns + self._timeout_ns
        # the frame that is handed over now was captured in the 20 ms before
        if now_ns - self._frame_ns >= ready_ns and (self._quiet_ns(now_ns) >= QUIET_NS or now_ns >= limit_ns):
            self._begin_turn(now_ns)

    def _await_greeting(self, now_ns: int) -> None:
        heard = self._onset_ns is not None
        if heard and self._quiet_ns(now_ns) >= GREETING_QUIET_NS:
            ended_ns = now_ns - self._quiet_ns(now_ns)
        elif now_ns >= (self._give_up_ns if self._onset_ns is None else self._onset_ns + self._timeout_ns):
            ended_ns = now_ns
        else:
            return
        self._note(ended_ns, "greeting_ended", heard=heard, unending=heard and ended_ns == now_ns)
        self._due_ns = ended_ns + self._spacing_ns

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
            timeout_ns=self._timeout_ns,
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
        if replied or now_ns - self._stop_ns >= self._timeout_ns:
            self._note(now_ns, "turn_settled", turn=self._turn, why="reply" if replied else "timeout")
            self._settled, self._settled_ns = True, now_ns
            assert self._due_ns is not None
            self._due_ns += self._spacing_ns

    @property
    def _started_ns(self) -> int:
        assert self._first_frame is not None
        return self.deadline0_ns + (self._first_frame - 1) * self._frame_ns


def simulate_call(
    config: AgentConfig,
    *,
    call: int = 0,
    turns: int = 20,
    utterance_s: float | None = None,
    spacing_s: float = 6.0,
    timeout_s: float = 3.0,
    srtp: bool = False,
) -> tuple[CallRecord, list[Truth]]:
    """One call of the agent, driven by simulated time.

    Parameters
    ----------
    config : AgentConfig
    call : int
        Its number; with the seed it fixes all that is random.
    turns : int
    utterance_s : float, optional
        Length of what the caller says, cut from (or repeated of) the shipped utterance; default: all of that.
    spacing_s : float
        From when one turn is due until the next one is.
    timeout_s : float
        From the end of an utterance until its reply is given up.
    srtp : bool
        Whether what SRTP would discard (duplicates, numbers used before) stays out, as it does on a live call.

    Returns
    -------
    record, truths
        The record as the live recorder writes it, each truth among its events; and the truths in the order of speaking.

    Raises
    ------
    UsageError
        If the configuration asks for what only a process can do (`ignores_ice`).
    """
    if config.ignores_ice:
        raise UsageError("ignores_ice: needs a live call")
    codec = CODECS[config.codec or "opus"]
    payload_type = DYNAMIC_PAYLOAD_TYPE if codec.payload_type is None else codec.payload_type
    scheduler = SimulatedScheduler(ORIGIN_NS)
    received: list[tuple[int, Timed]] = []
    events: list[Event] = []
    truths: list[Truth] = []
    replay = ReplayWindow() if srtp else None

    def transmit(packet: SentPacket) -> int:
        arrival_ns = packet.send_ns + NETWORK_NS
        for _ in range(packet.copies):
            if replay is None or replay.accepts(packet):
                received.append((arrival_ns, Timed(arrival_ns, packet.rtp())))
        duration_ns = samples_to_ns(packet_samples(codec, packet.payload), codec.rate_hz)
        scheduler.at(arrival_ns, lambda: caller.hear(arrival_ns, duration_ns, packet.sounding))
        return packet.send_ns

    def tell(truth: Truth) -> None:
        truths.append(truth)
        events.append(Event(scheduler.now_ns(), "agent_truth", {"call": call, **truth.to_fields()}))

    def on_spoken(job: TruthJob) -> None:
        tell(truth_of(job.spoken, job.departures, job.codec))

    def die() -> None:
        agent.close()
        events.append(Event(scheduler.now_ns(), "media_lost", {"fault": "agent", "message": "the agent died"}))
        events.append(Event(scheduler.now_ns(), "call_ended", {"reason": "failed"}))
        scheduler.stopped = True

    def prepared(plan: ReplyPlan, kind: Kind) -> Prepared:
        return prepare(config, plan, kind, codec, ptime_ms)

    ptime_ms = config.ptime_ms or FRAME_MS
    hooks = Hooks(transmit, on_spoken, tell, lambda plan, kind: None, prepared, die)
    agent = Agent(
        config, call, codec, ptime_ms=ptime_ms, payload_type=payload_type, scheduler=scheduler, hooks=hooks, srtp=srtp
    )
    caller = _Caller(
        scheduler,
        agent.voice,
        _caller_sound(spoken_language(config.language), utterance_s, codec),
        codec,
        payload_type,
        turns=turns,
        spacing_ns=s_to_ns(spacing_s),
        timeout_ns=s_to_ns(timeout_s),
        expects_greeting=config.greeting and not config.never_speaks,
    )
    negotiated = {
        "payload_types": {str(payload_type): codec.name},
        "send": {"codec": codec.name, "ptime_ms": FRAME_MS, "payload_type": payload_type},
    }
    events.append(Event(ORIGIN_NS, "media_negotiated", negotiated))
    agent.connected()
    caller.start()
    scheduler.run()
    agent.close()
    received.sort(key=lambda item: item[0])
    record = CallRecord(
        manifest={
            "schema": SCHEMA,
            "target": {"url": "demo:", "kind": "demo", "simulated": True, "agent": config.model_dump(mode="json")},
            "call": call,
            "turns": caller.settings(),
            "clock": {"monotonic_ns": ORIGIN_NS, "wall_ns": WALL_NS},
        },
        events=tuple(sorted(events + caller.events, key=lambda event: event.time_ns)),
        received=tuple(timed for _, timed in received if timed.time_ns <= scheduler.now_ns()),
        sent=tuple(caller.sent),
    )
    return record, truths
