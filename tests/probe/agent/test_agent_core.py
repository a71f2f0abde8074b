"""The agent's behaviour on simulated time: endpoints, barge-in, cut-ins, replies that are taken back."""

from __future__ import annotations

import pytest

from analysis.codecs import CODECS
from analysis.units import NS_PER_MS
from probe.agent.config import AgentConfig
from probe.agent.core import Agent, Hooks
from probe.agent.plan import plan_reply
from probe.agent.simulate import SimulatedScheduler
from probe.agent.speech import prepare
from probe.agent.stream import SentPacket
from probe.agent.truth import Truth, truth_of

ORIGIN_NS = 100_000 * NS_PER_MS
PCMU = CODECS["pcmu"]


class Room:
    """One agent, a caller who is voiced when the test says so, and what came of it; times in ms of the call."""

    def __init__(self, **settings: object) -> None:
        self.config = AgentConfig.model_validate({"greeting": False, **settings})
        self.scheduler = SimulatedScheduler(ORIGIN_NS)
        self.packets: list[SentPacket] = []
        self.truths: list[Truth] = []
        self.died = False
        hooks = Hooks(
            transmit=self._transmit,
            on_spoken=lambda job: self.truths.append(truth_of(job.spoken, job.departures, job.codec)),
            on_silence=self.truths.append,
            wanted=lambda plan, kind: None,
            prepared=lambda plan, kind: prepare(self.config, plan, kind, PCMU, 20),
            die=self._die,
        )
        self.agent = Agent(
            self.config, 0, PCMU, ptime_ms=20, payload_type=0, scheduler=self.scheduler, hooks=hooks, srtp=False
        )
        self.agent.connected()

    def _transmit(self, packet: SentPacket) -> int:
        self.packets.append(packet)
        return packet.send_ns

    def _die(self) -> None:
        self.died = True
        self.agent.close()

    def voiced(self, begin_ms: int, end_ms: int) -> None:
        """The caller is voiced, in packets of 20 ms."""
        for at in range(begin_ms, end_ms, 20):
            begin_ns, end_ns = ORIGIN_NS + at * NS_PER_MS, ORIGIN_NS + min(at + 20, end_ms) * NS_PER_MS
            self.scheduler.at(end_ns, lambda begin=begin_ns, end=end_ns: self.agent.voice(begin, end))

    def until(self, end_ms: int) -> Room:
        """Let time pass."""

        def stop() -> None:
            self.scheduler.stopped = True

        self.scheduler.at(ORIGIN_NS + end_ms * NS_PER_MS, stop)
        self.scheduler.run()
        self.agent.close()
        return self

    def sent_ms(self) -> list[float]:
        return [(p.send_ns - ORIGIN_NS) / NS_PER_MS for p in self.packets]


def _think_ms(config: AgentConfig, index: int) -> float:
    return plan_reply(config, 0, index).think_ms


@pytest.mark.parametrize("silence_ms", [300, 700])
def test_reply_begins_at_the_end_of_speech_plus_silence_plus_think_time(silence_ms: int) -> None:
    room = Room(endpoint_silence_ms=silence_ms)
    room.voiced(1_000, 2_005)
    room.until(8_000)
    assert room.sent_ms()[0] == pytest.approx(2_005 + silence_ms + _think_ms(room.config, 0), abs=1e-6)
    assert room.truths[0].endpoint_ns == ORIGIN_NS + (2_005 + silence_ms) * NS_PER_MS
    assert room.truths[0].heard_start_ns == ORIGIN_NS + 1_000 * NS_PER_MS


def test_a_pause_shorter_than_the_endpoint_silence_is_inside_the_utterance() -> None:
    room = Room()
    room.voiced(1_000, 1_500)
    room.voiced(1_780, 2_500)
    room.until(8_000)
    assert [t.kind for t in room.truths] == ["reply"]
    assert room.truths[0].endpoint_ns == ORIGIN_NS + 2_800 * NS_PER_MS


def test_a_reply_that_has_not_begun_is_taken_back_when_the_caller_goes_on() -> None:
    room = Room(think_ms=[800, 800])
    room.voiced(1_000, 1_500)
    room.voiced(2_000, 3_000)  # the endpoint was at 1800, the reply is due at 2600
    room.until(8_000)
    assert [(t.reply, t.kind) for t in room.truths] == [(0, "reply")]
    assert room.sent_ms()[0] == pytest.approx(3_000 + 300 + 800)
    assert room.truths[0].heard_start_ns == ORIGIN_NS + 1_000 * NS_PER_MS


def test_barge_in_stops_the_reply_after_so_much_voice() -> None:
    room = Room(think_ms=[200, 200], barge_in_ms=200)
    room.voiced(1_000, 2_000)  # reply from 2500 on, some 1.3 s or more
    room.voiced(2_700, 4_000)
    room.until(4_100)
    # at 2900 the caller has been voiced for 200 ms; the packet of that moment is the last
    assert room.sent_ms()[-1] == pytest.approx(2_900, abs=20)
    assert [(t.reply, t.kind) for t in room.truths] == [(0, "reply")]
    assert room.truths[0].last_audible_left_ns is not None
    assert room.truths[0].last_audible_left_ns <= ORIGIN_NS + 2_900 * NS_PER_MS


def test_without_barge_in_the_reply_goes_on_and_the_next_one_follows_it() -> None:
    room = Room(think_ms=[200, 200], barge_in=False)
    room.voiced(1_000, 2_000)
    room.voiced(2_700, 3_000)
    room.until(9_000)
    assert [(t.reply, t.kind) for t in room.truths] == [(0, "reply"), (1, "reply")]
    first, second = room.truths
    assert first.last_audible_left_ns is not None
    assert second.left_ns is not None
    assert second.left_ns > first.last_audible_left_ns


def test_cut_in_begins_while_the_caller_speaks_and_is_the_answer() -> None:
    room = Room(cut_in_turns=[0], cut_in_after_ms=600)
    room.voiced(1_000, 3_000)
    room.until(8_000)
    assert [(t.reply, t.kind) for t in room.truths] == [(0, "cut_in")]
    assert room.sent_ms()[0] == pytest.approx(1_600, abs=20)
    # the utterance that it cuts into does not stop it
    assert room.sent_ms()[-1] > 1_600 + 1_200


def test_cut_in_stays_out_where_the_caller_ends_before() -> None:
    room = Room(cut_in_turns=[0], cut_in_after_ms=600)
    room.voiced(1_000, 1_500)
    room.until(8_000)
    assert [(t.reply, t.kind) for t in room.truths] == [(0, "reply")]


def test_backchannel_is_short_and_the_reply_comes_as_well() -> None:
    room = Room(backchannel_probability=1)
    room.voiced(1_000, 3_000)
    room.until(9_000)
    assert [(t.reply, t.kind) for t in room.truths] == [(0, "backchannel"), (0, "reply")]
    backchannel = room.truths[0]
    assert backchannel.left_ns is not None
    assert backchannel.last_audible_left_ns is not None
    assert backchannel.last_audible_left_ns - backchannel.left_ns < 350 * NS_PER_MS
    assert 1_200 <= (backchannel.left_ns - ORIGIN_NS) / NS_PER_MS <= 1_440


def test_no_reply_is_named_and_sends_nothing() -> None:
    room = Room(no_reply_turns=[0])
    room.voiced(1_000, 2_000)
    room.voiced(5_000, 6_000)
    room.until(9_500)
    assert [(t.reply, t.kind, t.left_ns is None) for t in room.truths] == [(0, "no_reply", True), (1, "reply", False)]
    assert min(room.sent_ms()) > 6_000


def test_greeting_comes_300_ms_after_the_connection() -> None:
    room = Room(greeting=True).until(3_000)
    assert room.sent_ms()[0] == pytest.approx(300)
    assert [(t.reply, t.kind, t.heard_start_ns) for t in room.truths] == [(-1, "greeting", None)]


def test_an_agent_that_never_speaks_sends_nothing_but_names_it() -> None:
    room = Room(greeting=True, never_speaks=True)
    room.voiced(1_000, 2_000)
    room.until(5_000)
    assert not room.packets
    assert [t.kind for t in room.truths] == ["no_reply"]


def test_a_greeting_without_end_does_not_listen() -> None:
    room = Room(greeting=True, speaks_without_end=True)
    room.voiced(1_000, 2_000)
    room.until(6_000)
    assert {t.kind for t in room.truths} == {"greeting"}
    gaps = [b - a for a, b in zip(room.sent_ms(), room.sent_ms()[1:], strict=False)]
    assert max(gaps) == pytest.approx(20)
    assert room.sent_ms()[-1] > 5_900


def test_dying_in_a_reply_happens_in_its_middle() -> None:
    room = Room(die_in_reply=0)
    room.voiced(1_000, 2_000)
    room.until(8_000)
    whole = len(prepare(room.config, plan_reply(room.config, 0, 0), "reply", PCMU, 20).payloads)
    assert room.died
    assert len(room.packets) == whole // 2


def test_stream_that_never_pauses_keeps_its_grid() -> None:
    room = Room(stream="continuous")
    room.voiced(1_000, 2_005)
    room.until(7_000)
    assert room.sent_ms() == pytest.approx([20.0 * k for k in range(len(room.packets))])
    begun = next(ms for ms, p in zip(room.sent_ms(), room.packets, strict=True) if p.sounding)
    due = 2_005 + 300 + _think_ms(room.config, 0) + plan_reply(room.config, 0, 0).leading_silence_ms
    assert due - 20 <= begun <= due + 20
    assert room.truths[0].first_sequence_number is None
    assert room.truths[0].leading_silence_ms is None
