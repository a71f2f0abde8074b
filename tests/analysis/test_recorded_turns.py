"""Planted intervals paired: what became of each turn by the design's outcomes, and no sound that answers two turns."""

from __future__ import annotations

import pytest

from analysis.recorded_turns import Heard, Paired, Said, pair_recorded
from analysis.result import ANSWERED, NO_REPLY, NOT_MEASURABLE, OVERLAPPED, PREMATURE

RATE_HZ = 8000
TIMEOUT_S = 10.0


def at(seconds: float) -> int:
    return round(seconds * RATE_HZ)


def said(start_s: float, stop_s: float) -> Said:
    return Said(at(start_s), at(stop_s))


def speech(start_s: float, end_s: float, *, content: bool | None = None) -> Heard:
    """Speech throughout; it is content where it lasts 0.4 s, unless that is said."""
    sustained = end_s - start_s >= 0.4 if content is None else content
    return Heard(at(start_s), at(start_s), at(start_s) if sustained else None, at(end_s))


def sound(start_s: float, end_s: float) -> Heard:
    """A click, a tone: no speech."""
    return Heard(at(start_s), None, None, at(end_s))


def paired(turns: list[Said], heard: list[Heard], tape_s: float = 60.0) -> list[Paired]:
    return pair_recorded(turns, heard, rate_hz=RATE_HZ, frames=at(tape_s), timeout_s=TIMEOUT_S)


class TestReplies:
    def test_each_turn_has_its_own(self) -> None:
        found = paired([said(3, 5), said(10, 12)], [speech(0.5, 2), speech(6, 8), speech(13, 15)])
        assert [(p.outcome, p.reply) for p in found] == [(ANSWERED, 1), (ANSWERED, 2)]
        assert [p.flags for p in found] == [(), ()]

    def test_one_reply_never_answers_two_turns(self) -> None:
        found = paired([said(1, 2), said(3, 4)], [speech(5, 7)])
        assert [(p.outcome, p.reason, p.reply) for p in found] == [
            (NOT_MEASURABLE, "caller_spoke_again", None),
            (ANSWERED, None, 0),
        ]

    def test_a_greeting_answers_nobody(self) -> None:
        (found,) = paired([said(4, 6)], [speech(0, 3), speech(7, 8)])
        assert (found.outcome, found.reply) == (ANSWERED, 1)

    def test_a_filler_is_the_reply_and_the_content_stands_apart(self) -> None:
        (found,) = paired([said(1, 2)], [speech(2.5, 2.8), speech(3.5, 5)])
        assert (found.outcome, found.reply, found.content, found.anything) == (ANSWERED, 0, 1, 0)

    def test_a_click_before_the_reply_is_anything_and_no_reply(self) -> None:
        (found,) = paired([said(1, 2)], [sound(2.4, 2.5), speech(3, 5)])
        assert (found.reply, found.content, found.anything) == (1, 1, 0)

    def test_a_click_inside_the_utterance_is_nothing(self) -> None:
        (found,) = paired([said(1, 2)], [sound(1.4, 1.5), speech(3, 5)])
        assert (found.outcome, found.reply, found.anything) == (ANSWERED, 1, 1)

    @pytest.mark.parametrize(("prompt_s", "flags"), [(7.5, ("idle_prompt",)), (5.5, ())])
    def test_what_comes_long_after_the_reply_is_an_idle_prompt(self, prompt_s: float, flags: tuple[str, ...]) -> None:
        (found,) = paired([said(1, 2)], [speech(3, 5), speech(prompt_s, prompt_s + 1)])
        assert (found.outcome, found.reply, found.flags) == (ANSWERED, 0, flags)


class TestNoReply:
    def test_nothing_until_the_timeout(self) -> None:
        (found,) = paired([said(1, 2)], [])
        assert (found.outcome, found.reply, found.flags) == (NO_REPLY, None, ())

    def test_what_comes_after_the_timeout_is_an_idle_prompt(self) -> None:
        (found,) = paired([said(1, 2)], [speech(12.5, 14)])
        assert (found.outcome, found.reply, found.flags) == (NO_REPLY, None, ("idle_prompt",))

    def test_just_before_the_timeout_is_a_reply(self) -> None:
        (found,) = paired([said(1, 2)], [speech(11.9, 14)])
        assert found.outcome == ANSWERED

    def test_a_recording_that_ends_sooner_says_nothing(self) -> None:
        (found,) = paired([said(1, 2)], [], tape_s=11.9)
        assert (found.outcome, found.reason) == (NOT_MEASURABLE, "recording_ended")

    def test_sounds_that_are_no_speech_do_not_answer(self) -> None:
        (found,) = paired([said(1, 2)], [sound(3, 4)])
        assert found.outcome == NO_REPLY


class TestWhileTheCallerSpeaks:
    def test_a_cut_in_is_premature_and_is_the_reply(self) -> None:
        (found,) = paired([said(1, 3)], [speech(2.6, 4), speech(8, 9)])
        assert (found.outcome, found.reply) == (PREMATURE, 0)

    def test_in_a_pause_of_the_utterance_too(self) -> None:
        # the pause is inside what was said: nothing tells the pairing that it is there
        (found,) = paired([said(1, 5)], [speech(2.5, 3.5)])
        assert (found.outcome, found.reply) == (PREMATURE, 0)

    def test_a_backchannel_is_a_flag(self) -> None:
        (found,) = paired([said(1, 4)], [speech(2, 2.3), speech(5, 6)])
        assert (found.outcome, found.reply, found.flags) == (ANSWERED, 1, ("backchannel",))

    def test_a_short_word_with_more_at_once_is_no_backchannel(self) -> None:
        (found,) = paired([said(1, 4)], [speech(3.2, 3.5), speech(3.8, 5)])
        assert (found.outcome, found.reply, found.flags) == (PREMATURE, 0, ())

    def test_a_short_word_that_outlasts_the_caller_is_no_backchannel(self) -> None:
        (found,) = paired([said(1, 4)], [speech(3.9, 4.2)])
        assert (found.outcome, found.reply) == (PREMATURE, 0)

    def test_a_backchannel_alone_is_no_reply(self) -> None:
        (found,) = paired([said(1, 4)], [speech(2, 2.3)])
        assert (found.outcome, found.flags) == (NO_REPLY, ("backchannel",))


class TestSpokenOver:
    def test_yielded_to(self) -> None:
        found = paired([said(1, 2), said(4, 6)], [speech(3, 4.5), speech(7, 8)])
        assert (found[1].outcome, found[1].reason, found[1].yielded) == (OVERLAPPED, "agent_still_audible", 0)

    def test_not_yielded_to(self) -> None:
        found = paired([said(1, 2), said(4, 6)], [speech(3, 7)])
        assert (found[1].outcome, found[1].reason, found[1].yielded) == (OVERLAPPED, "not_yielded", None)

    def test_a_breath_of_the_agents_just_then_is_no_end(self) -> None:
        found = paired([said(1, 2), said(4, 6)], [speech(3, 3.9), speech(4.15, 4.6), speech(7, 8)])
        assert (found[1].outcome, found[1].yielded) == (OVERLAPPED, 1)

    def test_what_the_agent_said_well_before_is_over(self) -> None:
        found = paired([said(1, 2), said(4, 6)], [speech(3, 3.5), speech(5, 7)])
        assert (found[1].outcome, found[1].reply) == (PREMATURE, 1)

    @pytest.mark.parametrize("end_s", [4.0, 4.02])
    def test_edges_that_touch_do_not_overlap(self, end_s: float) -> None:
        found = paired([said(1, 2), said(4, 6)], [speech(3, end_s), speech(7, 8)])
        assert (found[1].outcome, found[1].reply) == (ANSWERED, 1)


def test_each_turn_has_exactly_one_outcome_and_no_reply_counts_twice() -> None:
    turns = [said(float(t), t + 1.2) for t in range(2, 40, 4)]
    heard = [speech(t + 1.5 + 0.3 * i, t + 2.5 + 0.3 * i) for i, t in enumerate(range(2, 40, 4))]
    found = paired(turns, heard)
    replies = [p.reply for p in found if p.reply is not None]
    assert len(found) == len(turns)
    assert len(replies) == len(set(replies)) > 0
