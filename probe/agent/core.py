"""The demo agent: when the caller is voiced goes in; packets with their moments, and what was true of them, come out.

No network, no clock and no event loop in here: a `Scheduler` gives the time and calls back, `Hooks` send and prepare.
The live agent and the simulated one differ in these, and in how the caller is heard. Times are monotonic ns.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from analysis.codecs import Codec
from analysis.units import NS_PER_MS, ms_to_ns
from probe.agent.config import AgentConfig, InReply
from probe.agent.outbox import Handle, Outbox, Scheduler
from probe.agent.plan import Kind, ReplyPlan, plan_greeting, plan_reply
from probe.agent.speech import Prepared, idle_loop
from probe.agent.stream import AgentStream, ReplayWindow, SentPacket
from probe.agent.truth import Departure, Spoken, Truth

__all__ = ["Agent", "Hooks", "TruthJob"]

GREETING_AFTER_NS = 300 * NS_PER_MS  # after the connection was made


@dataclass(frozen=True)
class TruthJob:
    """What `truth_of` needs for one sound, to be worked out when there is time."""

    spoken: Spoken
    departures: tuple[Departure, ...]
    codec: Codec


@dataclass(frozen=True)
class Hooks:
    """What the agent is given by those who run it.

    `transmit` sends a packet and returns when it left (see `Outbox`). `on_spoken` is told of each sound that has ended,
    `on_silence` of each utterance that gets no reply. `wanted` says which sound may be needed next, `prepared` gets it.
    `die` ends the process.
    """

    transmit: Callable[[SentPacket], int | None]
    on_spoken: Callable[[TruthJob], None]
    on_silence: Callable[[Truth], None]
    wanted: Callable[[ReplyPlan, Kind], None]
    prepared: Callable[[ReplyPlan, Kind], Prepared]
    die: Callable[[], None]


@dataclass(eq=False)
class _Utterance:
    """One utterance of the caller's, as it is heard; `plan` is what is done about it."""

    plan: ReplyPlan
    start_ns: int
    last_voiced_ns: int
    over_agent_ns: int = 0  # voiced while the agent speaks, or is about to
    cut_in: bool = False
    backchannel: bool = False


@dataclass(eq=False)
class _Speech:
    """One sound of the agent's: waiting for its moment, then being sent, then waiting for its last packets to leave."""

    sound: Prepared
    kind: Kind
    start_ns: int
    utterance: _Utterance | None = None
    endpoint_ns: int | None = None
    first_count: int = 0
    stop_count: int = 0
    frame: int = 0
    on_the_way: int = 0
    ended: bool = False


class Agent:
    """One call of the demo agent.

    Parameters
    ----------
    config : AgentConfig
    call : int
        Number of the call in the run; with the seed it fixes all that is random.
    codec : Codec
    ptime_ms, payload_type : int
        As negotiated.
    scheduler : Scheduler
    hooks : Hooks
    srtp : bool
        Whether a receiver's SRTP discards repeated sequence numbers.

    Attributes
    ----------
    stream : AgentStream or None
        From the connection on.
    """

    def __init__(
        self,
        config: AgentConfig,
        call: int,
        codec: Codec,
        *,
        ptime_ms: int,
        payload_type: int,
        scheduler: Scheduler,
        hooks: Hooks,
        srtp: bool,
    ) -> None:
        self._config = config
        self._call = call
        self._codec = codec
        self._format = {"ptime_ms": ptime_ms, "payload_type": payload_type}
        self._scheduler = scheduler
        self._hooks = hooks
        self._outbox = Outbox(scheduler, hooks.transmit, ReplayWindow() if srtp else None)
        self._continuous = config.stream == "continuous"
        self._idle = idle_loop(config, codec, ptime_ms) if self._continuous else ()
        self.stream: AgentStream | None = None
        self._closed = False
        self._utterance: _Utterance | None = None
        self._next_index = 0
        self._endpoint_timer: Handle | None = None
        self._queue: list[_Speech] = []
        self._current: _Speech | None = None
        self._open: list[_Speech] = []  # begun, and not all of it has left
        self._tick_timer: Handle | None = None

    @property
    def _greets(self) -> bool:
        return self._config.greeting and not self._config.never_speaks

    def prepare_ahead(self) -> None:
        """Say which sounds will be needed first, before the connection is made."""
        if self._greets:
            self._hooks.wanted(plan_greeting(self._config, self._call), "greeting")
        self._want(0)

    def connected(self) -> None:
        """The connection was made: the media clock starts, and the greeting is due."""
        now_ns = self._scheduler.now_ns()
        self.stream = AgentStream(self._config, self._call, self._codec, origin_ns=now_ns, **self._format)
        if self._greets:
            self._greet(now_ns + GREETING_AFTER_NS)
        if self._continuous:
            self._arm_tick(now_ns)

    def close(self) -> None:
        """The call is over; what was being said ends with the packets that have left."""
        self._closed = True
        for timer in (self._endpoint_timer, self._tick_timer):
            if timer is not None:
                timer.cancel()
        self._outbox.discard_waiting()
        if self._current is not None:
            self._end_current()
        for speech in list(self._open):
            self._report(speech)

    # -- hearing

    def voice(self, begin_ns: int, end_ns: int) -> None:
        """The caller was voiced from `begin_ns` to `end_ns`, by the arrival of the packets that carried it."""
        if self._closed or self.stream is None or self._config.speaks_without_end:
            return
        utterance = self._utterance
        if utterance is None:
            plan = plan_reply(self._config, self._call, self._next_index)
            self._next_index += 1
            utterance = self._utterance = _Utterance(plan, begin_ns, end_ns)
            self._endpoint_timer = self._scheduler.at(end_ns + self._silence_ns, self._endpoint)
        utterance.last_voiced_ns = max(utterance.last_voiced_ns, end_ns)
        self._speak_meanwhile(utterance)
        self._listen_meanwhile(utterance, begin_ns, end_ns)

    @property
    def _silence_ns(self) -> int:
        return ms_to_ns(self._config.endpoint_silence_ms)

    def _speak_meanwhile(self, utterance: _Utterance) -> None:
        """Cut in, or say "hm", once the caller has spoken for long enough and still does."""
        plan, spoken_ns = utterance.plan, utterance.last_voiced_ns - utterance.start_ns
        if self._current is not None or self._queue or utterance.cut_in:
            return
        if plan.cut_in and spoken_ns >= ms_to_ns(self._config.cut_in_after_ms):
            utterance.cut_in = True
            self._say(_Speech(self._hooks.prepared(plan, "cut_in"), "cut_in", self._scheduler.now_ns(), utterance))
            self._want(plan.index + 1)
            return
        after_ms = plan.backchannel_after_ms
        if after_ms is not None and not utterance.backchannel and spoken_ns >= ms_to_ns(after_ms):
            utterance.backchannel = True
            sound = self._hooks.prepared(plan, "backchannel")
            self._say(_Speech(sound, "backchannel", self._scheduler.now_ns(), utterance))

    def _endpoint(self) -> None:
        """The silence after the caller's last voiced moment is long enough, or the caller has gone on meanwhile."""
        utterance = self._utterance
        if utterance is None or self._closed:
            return
        due_ns = utterance.last_voiced_ns + self._silence_ns
        if due_ns > self._scheduler.now_ns():
            self._endpoint_timer = self._scheduler.at(due_ns, self._endpoint)
            return
        self._utterance = self._endpoint_timer = None
        plan = utterance.plan
        if utterance.cut_in:
            return
        if plan.no_reply:
            self._hooks.on_silence(Truth(plan.index, "no_reply", utterance.start_ns, due_ns))
        else:
            sound = self._hooks.prepared(plan, "reply")
            self._say(_Speech(sound, "reply", due_ns + ms_to_ns(plan.think_ms), utterance, due_ns))
        self._want(plan.index + 1)

    def _want(self, index: int) -> None:
        plan = plan_reply(self._config, self._call, index)
        if not plan.no_reply:
            self._hooks.wanted(plan, "cut_in" if plan.cut_in else "reply")
        if plan.backchannel_after_ms is not None:
            self._hooks.wanted(plan, "backchannel")

    def _listen_meanwhile(self, utterance: _Utterance, begin_ns: int, end_ns: int) -> None:
        """Stop when talked over; give up a reply that has not begun when the caller goes on."""
        speech = self._current or (self._queue[0] if self._queue else None)
        if speech is None or not self._config.barge_in or speech.utterance is utterance:
            return
        if speech.kind == "greeting" and speech is not self._current:
            return
        if speech is self._current:
            begin_ns = max(begin_ns, speech.start_ns)
        utterance.over_agent_ns += max(0, end_ns - begin_ns)
        if utterance.over_agent_ns < ms_to_ns(self._config.barge_in_ms):
            return
        utterance.over_agent_ns = 0
        if speech is self._current:
            self._end_current()
        else:
            self._take_back(speech, utterance)
        if not self._continuous:
            self._arm_next()

    def _take_back(self, speech: _Speech, utterance: _Utterance) -> None:
        """The caller goes on before the reply has begun: it was one utterance with a pause, and is answered later."""
        self._queue.remove(speech)
        before = speech.utterance
        if before is not None:
            utterance.plan, utterance.start_ns = before.plan, before.start_ns
            utterance.backchannel = before.backchannel
            self._next_index = before.plan.index + 1
            self._want(before.plan.index)

    # -- speaking

    def _greet(self, at_ns: int) -> None:
        sound = self._hooks.prepared(plan_greeting(self._config, self._call), "greeting")
        self._say(_Speech(sound, "greeting", at_ns))

    def _say(self, speech: _Speech) -> None:
        self._queue.append(speech)
        self._queue.sort(key=lambda s: s.start_ns)
        if not self._continuous and self._current is None:
            self._arm_next()

    def _arm_next(self) -> None:
        """In a stream that pauses, the next sound begins at its own moment."""
        if self._tick_timer is not None:
            self._tick_timer.cancel()
            self._tick_timer = None
        if self._queue and self.stream is not None:
            self._arm_tick(max(self._queue[0].start_ns, self.stream.next_ns))

    def _arm_tick(self, at_ns: int) -> None:
        self._tick_timer = self._scheduler.at(at_ns, self._tick)

    def _tick(self) -> None:
        """One frame: of a sound, or of what a stream that never pauses sends between them."""
        stream = self.stream
        self._tick_timer = None
        if stream is None or self._closed:
            return
        if self._current is None and self._queue:
            due_ns = self._queue[0].start_ns
            if not self._continuous:
                stream.begin(due_ns)
            if due_ns <= stream.next_ns:
                self._current = self._queue.pop(0)
                self._current.first_count = self._current.stop_count = stream.count
                self._open.append(self._current)
        if self._current is not None:
            self._next_frame(stream, self._current)
        elif self._continuous:
            self._outbox.post(stream.emit(self._idle[stream.count % len(self._idle)]))
            self._forget()
        if self._closed:
            return
        if self._continuous or self._current is not None:
            self._arm_tick(stream.next_ns)
        else:
            self._arm_next()

    def _next_frame(self, stream: AgentStream, speech: _Speech) -> None:
        sound, frame = speech.sound, speech.frame
        in_middle = frame == len(sound.payloads) // 2 and speech.kind != "backchannel"
        if in_middle and sound.plan.index == self._config.die_in_reply:
            self._hooks.die()
            if self._closed:
                return
        speech.frame += 1
        payload = sound.payloads[frame]
        if payload is None:
            stream.skip()
        else:
            change = self._config.impairment.ssrc_change_at
            new_source = in_middle and isinstance(change, InReply) and change.in_reply == sound.plan.index
            packet = stream.emit(payload, new_source=new_source, sounding=sound.sounding(frame))
            speech.stop_count = stream.count
            speech.on_the_way += 1
            self._outbox.post(packet, lambda: self._left(speech))
        if speech.frame == len(sound.payloads) and speech is self._current:
            self._end_current()

    def _end_current(self) -> None:
        """The packet that was sent last is the sound's last."""
        speech, self._current = self._current, None
        assert speech is not None
        speech.ended = True
        if speech.kind == "greeting" and self._config.speaks_without_end and not self._closed and self.stream:
            self._greet(self.stream.next_ns)
        if speech.on_the_way == 0:
            self._report(speech)

    def _left(self, speech: _Speech) -> None:
        speech.on_the_way -= 1
        if speech.ended and speech.on_the_way == 0:
            self._report(speech)

    def _report(self, speech: _Speech) -> None:
        """All of a sound has left: hand on what its truth needs."""
        if speech not in self._open:
            return
        self._open.remove(speech)
        spoken = Spoken(
            reply=speech.sound.plan.index,
            kind=speech.kind,
            heard_start_ns=None if speech.utterance is None else speech.utterance.start_ns,
            endpoint_ns=speech.endpoint_ns,
            first_count=speech.first_count,
            stop_count=speech.stop_count,
            speech_start=speech.sound.speech_start,
            speech_stop=speech.sound.speech_stop,
            content_start=speech.sound.content_start,
            noise_dbov=None if self._continuous else self._config.comfort_noise_dbov,
        )
        departures = self._outbox.window(speech.first_count, speech.stop_count)
        self._hooks.on_spoken(TruthJob(spoken, departures, self._codec))
        self._forget()

    def _forget(self) -> None:
        if self.stream is not None:
            self._outbox.forget_before(self._open[0].first_count if self._open else self.stream.count)
