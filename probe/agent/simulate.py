"""Configuration and seed into a whole call as a recorder would have written it, without a network and at once.

The agent's own core on simulated time, spoken to by a simulated caller who keeps to the engine's schedule. The network
is perfect: what leaves arrives 150 µs later. Call time 0 is the capture of the first sample that the caller sent.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable

from analysis.bundle import SCHEMA, CallRecord, Event
from analysis.codecs import CODECS, packet_samples
from analysis.errors import UsageError
from analysis.streams import Timed
from analysis.units import NS_PER_S, s_to_ns, samples_to_ns
from probe.agent.caller import FRAME_MS, NETWORK_NS, Schedule, SimulatedCaller, caller_sound
from probe.agent.config import AgentConfig
from probe.agent.core import Agent, Hooks, TruthJob
from probe.agent.plan import Kind, ReplyPlan, spoken_language
from probe.agent.speech import Prepared, prepare
from probe.agent.stream import ReplayWindow, SentPacket
from probe.agent.truth import Truth, truth_of

__all__ = ["SimulatedScheduler", "simulate_call"]

ORIGIN_NS = 1_000 * NS_PER_S  # when the simulated connection is made
WALL_NS = 1_767_225_600 * NS_PER_S  # 2026-01-01: metadata only
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


class _Simulation:
    """One call while it is simulated."""

    def __init__(
        self, config: AgentConfig, call: int, schedule: Schedule, *, utterance_s: float | None, srtp: bool
    ) -> None:
        self._config = config
        self._call = call
        self._codec = CODECS[config.codec or "opus"]
        static = self._codec.payload_type
        self._payload_type = DYNAMIC_PAYLOAD_TYPE if static is None else static
        self._ptime_ms = config.ptime_ms or FRAME_MS
        self._scheduler = SimulatedScheduler(ORIGIN_NS)
        self._replay = ReplayWindow() if srtp else None
        self._received: list[Timed] = []
        self._events: list[Event] = []
        self.truths: list[Truth] = []
        self._agent = Agent(
            config,
            call,
            self._codec,
            ptime_ms=self._ptime_ms,
            payload_type=self._payload_type,
            scheduler=self._scheduler,
            hooks=Hooks(self._transmit, self._on_spoken, self._tell, _not_ahead, self._prepared, self._die),
            srtp=srtp,
        )
        sound = caller_sound(spoken_language(config.language), utterance_s, self._codec)
        self._caller = SimulatedCaller(
            self._scheduler, self._agent.voice, self._stop, sound, self._codec, self._payload_type, schedule
        )

    def run(self) -> CallRecord:
        """The call, from the connection to the goodbye."""
        codec = self._codec
        negotiated = {
            "payload_types": {str(self._payload_type): codec.name},
            "send": {"codec": codec.name, "ptime_ms": FRAME_MS, "payload_type": self._payload_type},
        }
        self._events.append(Event(ORIGIN_NS, "media_negotiated", negotiated))
        self._agent.connected()
        self._caller.start()
        self._scheduler.run()
        self._agent.close()
        ended_ns = self._scheduler.now_ns()
        agent = self._config.model_dump(mode="json")
        received = sorted(self._received, key=lambda timed: timed.time_ns)
        return CallRecord(
            manifest={
                "schema": SCHEMA,
                "call": self._call,
                "target": {"url": "demo:", "kind": "demo", "simulated": True, "agent": agent},
                "turns": self._caller.settings(),
                "clock": {"monotonic_ns": ORIGIN_NS, "wall_ns": WALL_NS},
            },
            events=tuple(sorted(self._events + self._caller.events, key=lambda event: event.time_ns)),
            received=tuple(timed for timed in received if timed.time_ns <= ended_ns),
            sent=tuple(self._caller.sent),
        )

    def _stop(self) -> None:
        self._scheduler.stopped = True

    def _transmit(self, packet: SentPacket) -> int:
        arrival_ns = packet.send_ns + NETWORK_NS
        for _ in range(packet.copies):
            if self._replay is None or self._replay.accepts(packet):
                self._received.append(Timed(arrival_ns, packet.rtp()))
        if packet.sounding:
            duration_ns = samples_to_ns(packet_samples(self._codec, packet.payload), self._codec.rate_hz)
            self._scheduler.at(arrival_ns, lambda: self._caller.hear(arrival_ns, duration_ns))
        return packet.send_ns

    def _on_spoken(self, job: TruthJob) -> None:
        self._tell(truth_of(job.spoken, job.departures, job.codec))

    def _tell(self, truth: Truth) -> None:
        self.truths.append(truth)
        fields = {"call": self._call, **truth.to_fields()}
        self._events.append(Event(self._scheduler.now_ns(), "agent_truth", fields))

    def _prepared(self, plan: ReplyPlan, kind: Kind) -> Prepared:
        return prepare(self._config, plan, kind, self._codec, self._ptime_ms)

    def _die(self) -> None:
        self._agent.close()
        now_ns = self._scheduler.now_ns()
        self._events.append(Event(now_ns, "media_lost", {"fault": "agent", "message": "the agent died"}))
        self._events.append(Event(now_ns, "call_ended", {"reason": "failed"}))
        self._stop()


def _not_ahead(plan: ReplyPlan, kind: Kind) -> None:
    """Nothing is encoded ahead: simulated time waits."""


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
    schedule = Schedule(turns, s_to_ns(spacing_s), s_to_ns(timeout_s), config.greeting and not config.never_speaks)
    simulation = _Simulation(config, call, schedule, utterance_s=utterance_s, srtp=srtp)
    record = simulation.run()
    return record, simulation.truths
