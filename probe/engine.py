"""One call: a scenario's turns spoken on their schedule to a session, and all that happens recorded.

The engine decides when to speak and when to stop waiting; it computes no figure. Every figure is derived from the
bundle afterwards. Schedule as the design says: turn 0 is due `spacing` after the greeting ended (or its timeout),
turn i `spacing` after turn i−1 was due; a due utterance waits until the turn before it is settled and the agent has
been inaudible for 300 ms, at most `timeout`, and is then spoken.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from analysis.errors import CallFailed, RecordingFailed, SessionError
from analysis.units import NS_PER_MS, NS_PER_S
from probe.clock import Clock
from probe.link import MediaLink
from probe.player import EncodedUtterance, Player
from probe.recorder import BundleWriter
from probe.targets.base import CallRequest, Target

__all__ = ["CallPlan", "Engine", "LiveView", "PlannedTurn"]

FLUSH_S = 0.1
QUIET_NS = 300 * NS_PER_MS  # inaudible for this long: the agent's turn is over
FILLER_NS = 400 * NS_PER_MS  # a sound shorter than this may be a filler,
FILLER_QUIET_NS = 1_000 * NS_PER_MS  # and what it announces takes longer to come
LISTEN_AGAIN_NS = 1_200 * NS_PER_MS  # before an utterance is due: enough to know what the agent is at
GREETING_QUIET_NS = 700 * NS_PER_MS  # a pause inside a greeting may be longer than one between words
BACKCHANNEL_NS = FILLER_NS  # less than this during the utterance is no reply
TAIL_NS = 600 * NS_PER_MS  # recorded after the last reply, for any playout policy to finish in
CONNECT_TIMEOUT_S = 15.0


@dataclass(frozen=True)
class PlannedTurn:
    """One turn, ready to be spoken. Times in ns; `settings` goes into the record as it is."""

    index: int
    sound: EncodedUtterance
    spacing_ns: int
    timeout_ns: int
    idle_before_ns: int
    interruption_ns: int | None
    settings: dict[str, object]


@dataclass(frozen=True)
class CallPlan:
    """One call of a run."""

    call: int
    turns: tuple[PlannedTurn, ...]
    greeting_timeout_ns: int
    request_codec: str
    ptime_ms: int
    language: str


@dataclass(frozen=True)
class LiveView:
    """What a person sees while a call runs; `latency_ms` is a first impression, not the figure."""

    call: int
    turn: int
    turns: int
    state: str
    latency_ms: float | None
    lost: int
    jitter_ms: float


class Engine:
    """Runs one call.

    Parameters
    ----------
    plan : CallPlan
    target : Target
    player : Player
    recorder : BundleWriter
    clock : Clock
    lag_ns : callable
        How long what is read from a socket now may have been waiting (see `probe.loop`).
    on_view : callable
        Told what goes on, for a live line.
    """

    def __init__(
        self,
        plan: CallPlan,
        target: Target,
        player: Player,
        recorder: BundleWriter,
        clock: Clock,
        *,
        lag_ns: Callable[[], int],
        on_view: Callable[[LiveView], None],
    ) -> None:
        self._plan = plan
        self._target = target
        self._player = player
        self._recorder = recorder
        self._clock = clock
        self._on_view = on_view
        self._link = MediaLink(player, recorder, clock, lag_ns)
        self._failed: asyncio.Future[SessionError] | None = None
        self._latency_ms: float | None = None
        self._due_ns = 0
        self._replied = False

    async def run(self, stop: asyncio.Event) -> SessionError | None:
        """Make the call and run its turns to the end, or until `stop` is set.

        Returns
        -------
        SessionError or None
            What ended the call early; it is in the record too.
        """
        self._recorder.event("call_started", call=self._plan.call)
        self._failed = asyncio.get_running_loop().create_future()
        housekeeping = asyncio.create_task(self._housekeeping())
        conduct = asyncio.create_task(self._conduct())
        stopped = asyncio.create_task(stop.wait())
        error: SessionError | None = None
        try:
            waited: set[asyncio.Future[Any]] = {conduct, stopped, self._failed}
            await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
            if self._failed.done():
                error = self._failed.result()
            elif conduct.done():
                error = await conduct
            reason = "done" if conduct.done() and error is None else "interrupted" if error is None else "failed"
            if error is not None and not isinstance(error, RecordingFailed):
                kind = "call_failed" if isinstance(error, CallFailed) else "media_lost"
                self._recorder.event(kind, fault=error.fault, message=error.message)
        finally:
            for task in (conduct, stopped):
                task.cancel()
            await asyncio.gather(conduct, stopped, return_exceptions=True)
            await self._link.close()
            housekeeping.cancel()
            await asyncio.gather(housekeeping, return_exceptions=True)
        self._recorder.event("call_ended", reason=reason)
        return error

    async def _conduct(self) -> SessionError | None:
        try:
            await self._connect()
            await self._greeting()
            await self._turns()
        except SessionError as exc:
            return exc
        return None

    async def _connect(self) -> None:
        plan = self._plan
        self._view(-1, "calling")
        request = CallRequest(plan.call, self._player, plan.request_codec, plan.ptime_ms, plan.language)
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                session = await self._target.connect(request)
                self._recorder.event("negotiated")
                assert self._failed is not None
                self._link.attach(session, self._failed)
                await self._link.connected()
                await self._player.started.wait()
        except TimeoutError:
            raise CallFailed(self._link.why_not_connected(CONNECT_TIMEOUT_S)) from None
        self._link.start_media(plan.ptime_ms, plan.request_codec)

    async def _greeting(self) -> None:
        """Wait for the greeting to begin and to end; neither takes longer than its timeout."""
        begun_ns = self._now()
        self._view(-1, "greeting")
        timeout_ns = self._plan.greeting_timeout_ns
        while self._link.listen().onset_ns is None and self._now() - begun_ns < timeout_ns:
            await self._player.tick()
        heard = self._link.listen().onset_ns is not None and timeout_ns > 0
        limit_ns = self._now() + self._plan.turns[0].timeout_ns
        while heard and self._quiet_ns() < GREETING_QUIET_NS and self._now() < limit_ns:
            await self._player.tick()
        ended_ns = self._now()
        if heard and self._quiet_ns() >= GREETING_QUIET_NS:
            ended_ns -= self._quiet_ns()
        self._recorder.event("greeting_ended", ended_ns, heard=heard, unending=heard and self._now() >= limit_ns)
        self._due_ns = ended_ns

    async def _turns(self) -> None:
        turns = self._plan.turns
        settled_at_ns = self._now()
        for turn in turns:
            self._due_ns += turn.spacing_ns + turn.idle_before_ns
            if turn.interruption_ns is not None:
                onset_ns = self._link.listen().onset_ns
                if not self._replied or onset_ns is None:
                    self._recorder.event("turn_skipped", turn=turn.index, reason="no_reply_to_interrupt")
                    continue
                self._due_ns = onset_ns + turn.interruption_ns
            await self._wait_until_due(turn)
            settled_at_ns = await self._speak(turn)
        while self._agent_is_at_it() and self._now() - settled_at_ns < turns[-1].timeout_ns:
            await self._player.tick()
        self._view(turns[-1].index, "closing")
        await asyncio.sleep(TAIL_NS / NS_PER_S)

    async def _wait_until_due(self, turn: PlannedTurn) -> None:
        self._view(turn.index, "waiting")
        # how the reply to the turn before goes on is heard again in time to know whether it is over
        self._link.rest_until(self._due_ns - LISTEN_AGAIN_NS)
        while (wait_ns := self._due_ns - self._now()) > 0:
            await asyncio.sleep(min(wait_ns / NS_PER_S, 1.0))
        if turn.interruption_ns is None:
            limit_ns = max(self._due_ns, self._now()) + turn.timeout_ns
            while self._agent_is_at_it() and self._now() < limit_ns:
                await self._player.tick()

    def _agent_is_at_it(self) -> bool:
        """Whether the agent is audible, or only draws breath between a filler and what follows it."""
        lasted_ns = self._link.listen().lasted_ns
        return self._quiet_ns() < (FILLER_QUIET_NS if 0 < lasted_ns < FILLER_NS else QUIET_NS)

    async def _speak(self, turn: PlannedTurn) -> int:
        """Speak one turn and wait until its reply has been heard, or its timeout; when it was settled (ns)."""
        self._view(turn.index, "speaking")
        begun: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        utterance = turn.sound.utterance

        def on_start(frame: int, deadline_ns: int) -> None:
            self._recorder.event(
                "turn_started",
                turn=turn.index,
                due_ns=self._due_ns,
                first_frame=frame,
                first_deadline_ns=deadline_ns,
                start_sample=utterance.start_sample,
                end_sample=utterance.end_sample,
                rate_hz=48_000,
                start_threshold_dbov=utterance.start_threshold_dbov,
                end_threshold_dbov=utterance.end_threshold_dbov,
                end_shift_ms=utterance.end_shift_ms,
            )
            begun.set_result(deadline_ns - self._player.frame_ns)

        self._player.say(turn.sound, max(self._due_ns, self._now()), on_start)
        start_ns = await begun
        stop_ns = start_ns + utterance.end_sample * NS_PER_S // 48_000
        await asyncio.sleep(max(0, stop_ns + self._player.frame_ns - self._now()) / NS_PER_S)
        self._view(turn.index, "listening")
        why, settled_ns = await self._await_reply(turn, start_ns, stop_ns)
        self._replied = why == "reply"
        self._recorder.event("turn_settled", turn=turn.index, why=why)
        return settled_ns

    async def _await_reply(self, turn: PlannedTurn, start_ns: int, stop_ns: int) -> tuple[str, int]:
        while True:
            hearing, now = self._link.listen(), self._now()
            onset_ns, until_ns = hearing.onset_ns, hearing.audible_until_ns
            if onset_ns is not None and until_ns is not None and onset_ns >= start_ns:
                if onset_ns >= stop_ns:
                    self._latency_ms = (onset_ns - stop_ns) / NS_PER_MS
                    self._view(turn.index, "answered")
                    return "reply", now
                if until_ns - onset_ns >= BACKCHANNEL_NS or until_ns > stop_ns:
                    return "reply", now
            if now - stop_ns >= turn.timeout_ns:
                return "timeout", now
            await self._player.tick()

    async def _housekeeping(self) -> None:
        """Flush the record, and end the call when the disk refuses."""
        while True:
            await asyncio.sleep(FLUSH_S)
            self._link.listen()
            self._recorder.flush()
            failure = self._recorder.failure
            if failure is not None and self._failed is not None and not self._failed.done():
                self._failed.set_result(failure)

    def _now(self) -> int:
        return self._clock.monotonic_ns()

    def _quiet_ns(self) -> int:
        quiet = self._link.listen().quiet_for(self._now())
        return 1 << 62 if quiet is None else quiet

    def _view(self, turn: int, state: str) -> None:
        lost, jitter_s = self._link.reception()
        self._on_view(
            LiveView(self._plan.call, turn, len(self._plan.turns), state, self._latency_ms, lost, jitter_s * 1000)
        )
