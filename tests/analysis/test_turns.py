"""Turns from utterances and sounds: every outcome, what lies between them, and that nothing is counted twice."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analysis.turns import Ending, Pairing, Spoken, pair
from analysis.units import ms_to_ns


@dataclass(frozen=True)
class FakeSound:
    """What pairing asks of a sound; in ms of the call."""

    begin_ms: float
    end_ms: float

    @property
    def arrival_ns(self) -> int:
        return ms_to_ns(self.begin_ms)

    @property
    def end_of_sound_ns(self) -> int:
        return ms_to_ns(self.end_ms)

    @property
    def duration_ms(self) -> float:
        return self.end_ms - self.begin_ms


def heard(begin_ms: float, end_ms: float) -> Any:
    return FakeSound(begin_ms, end_ms)


def spoken(index: int = 0, start_ms: float = 1000, stop_ms: float = 3000, **fields: Any) -> Spoken:
    """An utterance from 1 s to 3 s whose last packet leaves 15 ms later, with a timeout of 5 s (at 8 s)."""
    values: dict[str, Any] = {
        "stop_sent_ns": ms_to_ns(stop_ms + 15),
        "timeout_ns": ms_to_ns(5000),
        "interruption": False,
    }
    return Spoken(index=index, start_ns=ms_to_ns(start_ms), stop_ns=ms_to_ns(stop_ms), **(values | fields))


ORDERLY = Ending(ms_to_ns(60_000), None, None, None)


def pairings(turns: Sequence[Spoken], sounds: Sequence[Any], ending: Ending = ORDERLY) -> list[Pairing]:
    return pair(turns, sorted(sounds, key=lambda s: s.arrival_ns), ending)


def one(*sounds: Any, ending: Ending = ORDERLY, **fields: Any) -> Pairing:
    (found,) = pairings([spoken(**fields)], sounds, ending)
    return found


def test_no_turns_and_no_sounds() -> None:
    assert pairings([], []) == []
    assert pairings([], [heard(1, 2)]) == []


class TestAnswered:
    def test_a_reply_after_the_utterance(self) -> None:
        reply = heard(3800, 6000)
        assert one(reply) == Pairing("answered", reply=reply, content=reply)

    def test_the_first_sound_is_the_reply(self) -> None:
        first, second = heard(3800, 4100), heard(4500, 6000)
        found = one(first, second)
        assert found.reply == first
        assert found.content == second  # the first is under 400 ms: a filler

    def test_a_filler_alone_has_no_content(self) -> None:
        found = one(heard(3800, 4100))
        assert found.outcome == "answered"
        assert found.content is None

    @pytest.mark.parametrize(("length_ms", "is_content"), [(399, False), (400, True)])
    def test_content_is_400_ms_or_more(self, length_ms: float, is_content: bool) -> None:
        found = one(heard(3800, 3800 + length_ms))
        assert (found.content is not None) is is_content

    def test_it_may_come_with_the_very_packet_that_ends_the_utterance(self) -> None:
        assert one(heard(3015, 4000)).outcome == "answered"

    @pytest.mark.parametrize(
        ("begin_ms", "outcome"), [(7999.999, "answered"), (8000, "no_reply"), (8000.001, "no_reply")]
    )
    def test_the_timeout_counts_from_speech_stop(self, begin_ms: float, outcome: str) -> None:
        assert one(heard(begin_ms, 9000)).outcome == outcome

    def test_what_was_over_before_the_utterance_is_of_no_concern(self) -> None:
        reply = heard(3800, 6000)
        found = one(heard(0, 999), reply)
        assert found.reply == reply
        assert found.flags == ()


class TestPremature:
    @pytest.mark.parametrize("begin_ms", [1000, 2000, 2999, 3000, 3014.9])
    def test_speech_that_begins_before_the_utterance_has_left(self, begin_ms: float) -> None:
        cut_in = heard(begin_ms, 5000)
        found = one(cut_in, heard(5400, 7000))
        assert found.outcome == "premature"
        assert found.reply == cut_in
        assert found.content == cut_in

    def test_short_speech_that_goes_on_past_the_utterance(self) -> None:
        cut_in = heard(2800, 3100)
        assert one(cut_in).outcome == "premature"

    def test_speech_of_400_ms_inside_the_utterance(self) -> None:
        assert one(heard(1500, 1900), heard(3800, 6000)).outcome == "premature"

    def test_its_content_may_come_later(self) -> None:
        found = one(heard(2800, 3100), heard(3500, 5000))
        assert found.reply == heard(2800, 3100)
        assert found.content == heard(3500, 5000)


class TestBackchannel:
    def test_under_400_ms_and_over_before_the_end_is_no_reply(self) -> None:
        reply = heard(3800, 6000)
        found = one(heard(1500, 1899), reply)
        assert found.outcome == "answered"
        assert found.reply == reply
        assert found.flags == ("backchannel",)

    def test_several_are_one_flag(self) -> None:
        assert one(heard(1200, 1400), heard(2000, 2200), heard(3800, 6000)).flags == ("backchannel",)

    def test_alone_it_answers_nothing(self) -> None:
        found = one(heard(1500, 1700))
        assert found.outcome == "no_reply"
        assert found.flags == ("backchannel",)

    def test_before_a_cut_in(self) -> None:
        found = one(heard(1200, 1400), heard(2500, 5000))
        assert found.outcome == "premature"
        assert found.reply == heard(2500, 5000)
        assert found.flags == ("backchannel",)

    def test_one_that_ends_with_the_utterance_is_not_over(self) -> None:
        assert one(heard(2700, 3000)).outcome == "premature"


class TestOverlapped:
    @pytest.mark.parametrize("end_ms", [1000, 1001, 2000, 9000])
    def test_an_earlier_sound_is_still_audible(self, end_ms: float) -> None:
        found = one(heard(0, end_ms), heard(max(3800, end_ms + 300), 12_000))
        assert (found.outcome, found.reason) == ("overlapped", "agent_still_audible")
        assert found.reply is None

    def test_the_reply_to_the_turn_before(self) -> None:
        turns = [spoken(0), spoken(1, 5000, 7000)]
        reply = heard(3800, 6000)
        first, second = pairings(turns, [reply, heard(7800, 9000)])
        assert (first.outcome, first.reply) == ("answered", reply)
        assert (second.outcome, second.reply) == ("overlapped", None)


class TestInterruption:
    def test_yielded_to_and_answered(self) -> None:
        talking, reply = heard(0, 1600), heard(3800, 6000)
        found = one(talking, reply, interruption=True)
        assert found.outcome == "answered"
        assert found.interrupted == talking
        assert found.reply == reply
        assert found.flags == ("interruption",)

    def test_going_on_after_a_breath_is_not_yielding(self) -> None:
        before, after = heard(0, 900), heard(1300, 3500)
        found = one(before, after, interruption=True)
        assert (found.outcome, found.reason) == ("overlapped", "not_yielded")
        assert one(before, after, interruption=False).outcome == "premature"
        late = heard(1950, 3500)  # more than a breath after it had fallen silent: an answer that came too soon
        assert one(before, late, interruption=True).outcome == "premature"

    @pytest.mark.parametrize(
        ("end_ms", "outcome"), [(3000, "no_reply"), (3000.001, "overlapped"), (8000, "overlapped")]
    )
    def test_yielding_is_falling_silent_before_the_utterance_ends(self, end_ms: float, outcome: str) -> None:
        found = one(heard(0, end_ms), interruption=True)
        assert found.outcome == outcome
        assert found.reason == ("not_yielded" if outcome == "overlapped" else None)
        assert found.interrupted == heard(0, end_ms)
        assert found.flags == ("interruption",)

    def test_yielded_to_without_a_reply(self) -> None:
        found = one(heard(0, 1600), interruption=True)
        assert found.outcome == "no_reply"
        assert found.interrupted == heard(0, 1600)

    def test_there_was_nothing_left_to_interrupt(self) -> None:
        found = one(heard(0, 900), heard(3800, 6000), interruption=True)
        assert found.outcome == "answered"
        assert found.interrupted is None
        assert found.flags == ("interruption",)

    def test_its_own_reply_may_be_premature(self) -> None:
        found = one(heard(0, 1600), heard(2500, 5000), interruption=True)
        assert found.outcome == "premature"
        assert found.interrupted == heard(0, 1600)


class TestNoReply:
    def test_nothing_until_the_timeout(self) -> None:
        assert one() == Pairing("no_reply")

    def test_a_reply_after_the_timeout_is_said_and_not_counted(self) -> None:
        found = one(heard(8200, 9000))
        assert (found.outcome, found.reply, found.content) == ("no_reply", None, None)
        assert found.flags == ("reply_after_timeout",)

    def test_also_where_another_turn_follows(self) -> None:
        turns = [spoken(0), spoken(1, 12_000, 14_000)]
        first, second = pairings(turns, [heard(8200, 9000), heard(14_800, 15_500)])
        assert (first.outcome, first.flags) == ("no_reply", ("reply_after_timeout",))
        assert second.reply == heard(14_800, 15_500)

    def test_content_may_come_after_the_timeout_if_the_reply_did_not(self) -> None:
        for following in ([], [spoken(1, 12_000, 14_000)]):
            found = pairings([spoken(0), *following], [heard(7900, 8100), heard(8400, 10_000)])[0]
            assert found.outcome == "answered"
            assert found.content == heard(8400, 10_000)

    def test_a_turn_that_was_not_observed_until_its_timeout_is_none(self) -> None:
        found = one(ending=Ending(ms_to_ns(7000), None, None, None))
        assert (found.outcome, found.reason) == ("not_measurable", "not_observed_until_timeout")
        found = pairings([spoken(0), spoken(1, 6000, 7000)], [])[0]
        assert (found.outcome, found.reason) == ("not_measurable", "not_observed_until_timeout")

    def test_it_is_one_where_the_call_ended_right_after_the_timeout(self) -> None:
        assert one(ending=Ending(ms_to_ns(8000), None, None, None)).outcome == "no_reply"


class TestEndings:
    LOST = Ending(ms_to_ns(5000), "media_lost", "the agent closed the connection", "agent")

    def test_media_lost_while_waiting(self) -> None:
        found = one(ending=self.LOST)
        assert found == Pairing("media_lost", "the agent closed the connection", "agent")

    def test_a_call_that_failed_in_a_turn_lost_its_media(self) -> None:
        found = one(ending=replace(self.LOST, outcome="call_failed", fault="probe"))
        assert (found.outcome, found.fault) == ("media_lost", "probe")

    def test_what_was_answered_before_stays_answered(self) -> None:
        assert one(heard(3800, 4800), ending=self.LOST).outcome == "answered"
        assert one(heard(2000, 4800), ending=self.LOST).outcome == "premature"
        assert one(heard(0, 4800), ending=self.LOST).outcome == "overlapped"

    def test_a_loss_after_the_timeout_does_not_concern_the_turn(self) -> None:
        assert one(ending=replace(self.LOST, time_ns=ms_to_ns(8000))).outcome == "no_reply"

    def test_a_loss_in_the_next_turn_is_not_one_in_this(self) -> None:
        # the live ear took something for a reply that was none, so the next turn came before the timeout
        turns = [spoken(0), spoken(1, 4000, 4800)]
        first, second = pairings(turns, [], self.LOST)
        assert (first.outcome, first.reason) == ("not_measurable", "not_observed_until_timeout")
        assert second.outcome == "media_lost"

    def test_a_turn_that_was_cut_off_while_it_was_spoken(self) -> None:
        found = one(ending=replace(self.LOST, time_ns=ms_to_ns(2000)), stop_sent_ns=None)
        assert (found.outcome, found.fault) == ("media_lost", "agent")

    def test_an_utterance_whose_end_is_not_in_the_record(self) -> None:
        first, second = pairings([spoken(0, stop_sent_ns=None), spoken(1, 4000, 4800)], [heard(3500, 3900)], self.LOST)
        assert (first.outcome, first.reason, first.fault) == ("not_measurable", "stop_not_sent", None)
        assert second.outcome == "media_lost"
        found = one(stop_sent_ns=None)
        assert (found.outcome, found.reason) == ("not_measurable", "recording_ended")

    @pytest.mark.parametrize("reason", ["interrupted", "disk_full", "recording_ended"])
    def test_a_record_that_ends_early(self, reason: str) -> None:
        found = one(ending=Ending(ms_to_ns(5000), "not_measurable", reason, None))
        assert found == Pairing("not_measurable", reason)


class TestWhoseReply:
    def test_a_late_reply_is_not_credited_to_the_next_turn_if_it_began_before(self) -> None:
        turns = [spoken(0), spoken(1, 9000, 10_000)]
        first, second = pairings(turns, [heard(8500, 8900), heard(10_700, 12_000)])
        assert first.flags == ("reply_after_timeout",)
        assert second.reply == heard(10_700, 12_000)

    def test_turns_one_after_the_other(self) -> None:
        turns = [spoken(i, 10_000 * i + 1000, 10_000 * i + 3000) for i in range(5)]
        replies = [heard(10_000 * i + 3800, 10_000 * i + 5000) for i in range(5) if i != 2]
        found = pairings(turns, replies)
        assert [p.outcome for p in found] == ["answered", "answered", "no_reply", "answered", "answered"]
        assert [p.reply for p in found if p.reply] == replies


OUTCOMES = {"answered", "premature", "no_reply", "overlapped", "media_lost", "call_failed", "not_measurable"}

gaps = st.integers(50, 9000)
any_sound = st.builds(lambda begin, length: heard(begin, begin + length), st.integers(0, 60_000), st.integers(30, 8000))
endings = st.builds(
    lambda at, kind: Ending(ms_to_ns(at), *kind),
    st.integers(0, 70_000),
    st.sampled_from(
        [
            (None, None, None),
            ("media_lost", "gone", "agent"),
            ("call_failed", "gone", "probe"),
            ("not_measurable", "interrupted", None),
        ]
    ),
)


@settings(deadline=None, max_examples=300)
@given(
    lengths=st.lists(st.tuples(gaps, gaps, st.booleans(), st.booleans()), max_size=6),
    sounds=st.lists(any_sound, max_size=12),
    ending=endings,
)
def test_outcomes_add_up_and_no_sound_is_counted_twice(
    lengths: list[tuple[int, int, bool, bool]], sounds: list[Any], ending: Ending
) -> None:
    turns, at = [], 0
    for index, (gap, length, interruption, is_sent) in enumerate(lengths):
        start, at = at + gap, at + gap + length
        fields = {"interruption": interruption} | ({} if is_sent else {"stop_sent_ns": None})
        turns.append(spoken(index, start, at, **fields))
    found = pairings(turns, sounds, ending)
    assert len(found) == len(turns)
    replies = [id(p.reply) for p in found if p.reply is not None]
    assert len(set(replies)) == len(replies)
    for turn, pairing in zip(turns, found, strict=True):
        assert pairing.outcome in OUTCOMES
        assert (pairing.reply is not None) == (pairing.outcome in ("answered", "premature"))
        assert pairing.reason is not None or pairing.outcome in ("answered", "premature", "no_reply")
        if pairing.reply is not None and turn.stop_sent_ns is not None:
            assert turn.start_ns <= pairing.reply.arrival_ns < turn.stop_ns + turn.timeout_ns
            assert (pairing.reply.arrival_ns >= turn.stop_sent_ns) == (pairing.outcome == "answered")
        if pairing.content is not None:
            assert pairing.reply is not None
            assert pairing.content.arrival_ns >= pairing.reply.arrival_ns
        assert (pairing.fault is not None) == (pairing.outcome == "media_lost")
