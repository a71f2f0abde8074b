"""Utterances planted on a caller's channel found again: known, unknown, with pauses, given way, longer than known."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import numpy as np
import pytest
from numpy.typing import NDArray

from analysis.audibility import LevelTrack
from analysis.caller_speech import UNKNOWN, Utterance, said_by_caller
from analysis.references import Reference, find_references, make_reference
from analysis.stretches import find_stretches
from analysis.tape import Channel
from analysis.units import from_dbov
from tests.analysis.placed import SOUND_RATE_HZ, Sound, in_room, reference, spoken

RATE_HZ = 16000
TAPE_S = 14.0


def tape(sounds: Sequence[tuple[float, Sound]], seed: int) -> NDArray[np.float32]:
    """Sounds at seconds over noise of −78 dBov."""
    x = from_dbov(-78) * np.random.default_rng(seed).standard_normal(round(TAPE_S * RATE_HZ))
    for at_s, sound in sounds:
        at = round(at_s * RATE_HZ)
        x[at : at + len(sound)] += sound
    return x.astype(np.float32)


def found(
    caller: Sequence[tuple[float, Sound]],
    agent: Sequence[tuple[float, Sound]] = (),
    references: Sequence[Reference] = (),
) -> list[Utterance]:
    one, other = tape(caller, 1), tape(agent, 2)
    tracks = LevelTrack(one, RATE_HZ), LevelTrack(other, RATE_HZ)
    seen = find_references(one, RATE_HZ, references)
    return said_by_caller(
        cast(Channel, one), cast(Channel, other), *tracks, seen, find_stretches(tracks[1]), marked=bool(references)
    )


def edges_s(name: str, at_s: float) -> tuple[float, float]:
    known = reference(name)
    return at_s + known.start_sample / SOUND_RATE_HZ, at_s + known.end_sample / SOUND_RATE_HZ


def stop_s(utterance: Utterance) -> float:
    assert utterance.stop is not None
    return utterance.stop.s


class TestKnown:
    def test_edges_and_names_in_order(self) -> None:
        said = found(
            [(1.0, spoken("en/1", RATE_HZ)), (7.0, spoken("fr/2", RATE_HZ))], (), [reference("fr/2"), reference("en/1")]
        )
        assert [u.reference.name for u in said if u.reference is not None] == ["en/1", "fr/2"]
        for utterance, (name, at_s) in zip(said, (("en/1", 1.0), ("fr/2", 7.0)), strict=True):
            assert stop_s(utterance) == pytest.approx(edges_s(name, at_s)[1], abs=0.002)
            assert utterance.flags == ()

    def test_what_nobody_knows_is_flagged_beside_it(self) -> None:
        said = found([(1.0, spoken("en/1", RATE_HZ)), (7.0, spoken("fr/2", RATE_HZ))], (), [reference("en/1")])
        assert [u.flags for u in said] == [(), (UNKNOWN,)]
        assert stop_s(said[1]) == pytest.approx(edges_s("fr/2", 7.0)[1], abs=0.01)

    def test_more_than_the_reference_holds_is_told_by_level_and_within_its_bounds(self) -> None:
        whole = reference("en/1")
        cut = whole.end_sample - SOUND_RATE_HZ // 4
        short = make_reference("cut", whole.samples[:cut], SOUND_RATE_HZ)
        (said,) = found([(1.0, spoken("en/1", RATE_HZ))], (), [short])
        true_s = edges_s("en/1", 1.0)[1]
        assert "sound_beyond" in said.flags
        assert stop_s(said) == pytest.approx(true_s, abs=0.005)
        assert said.stop is not None
        assert said.stop.uncertainty_ms >= 240  # of the 250 ms by which the two disagree

    def test_a_sound_that_goes_on_for_long_is_refused(self) -> None:
        at_s = edges_s("en/1", 1.0)[1]
        hum = from_dbov(-30) * np.sin(2 * np.pi * 440 * np.arange(3 * RATE_HZ // 2) / RATE_HZ)
        (said,) = found([(1.0, spoken("en/1", RATE_HZ)), (at_s, hum)], (), [reference("en/1")])
        assert (said.stop, said.reason) == (None, "sound_beyond")

    def test_reverberation_does_not_lengthen_it(self) -> None:
        (said,) = found([(1.0, in_room(spoken("en/1", RATE_HZ), RATE_HZ, 0.5, 3))], (), [reference("en/1")])
        assert "sound_beyond" not in said.flags
        assert stop_s(said) == pytest.approx(edges_s("en/1", 1.0)[1], abs=0.003)


class TestUnknown:
    def test_by_level_within_ten_milliseconds(self) -> None:
        (said,) = found([(2.0, spoken("it/1", RATE_HZ))])
        assert said.flags == ()
        assert said.stop is not None
        assert said.stop.uncertainty_ms < 20
        assert stop_s(said) == pytest.approx(edges_s("it/1", 2.0)[1], abs=0.01)

    def test_a_pause_does_not_end_it(self) -> None:
        second = edges_s("en/1", 1.0)[1] + 1.0
        (said,) = found([(1.0, spoken("en/1", RATE_HZ)), (second, spoken("en/2", RATE_HZ))])
        assert stop_s(said) == pytest.approx(edges_s("en/2", second)[1], abs=0.01)

    @pytest.mark.parametrize("before_end_s", [0.4, -0.1], ids=["cut in", "in the pause"])
    def test_an_agent_that_takes_the_turn_ends_it(self, before_end_s: float) -> None:
        ended = edges_s("en/1", 1.0)[1]
        reply = spoken("de/1", RATE_HZ)[: round((before_end_s + 0.9) * RATE_HZ)]
        said = found(
            [(1.0, spoken("en/1", RATE_HZ)), (ended + 1.5, spoken("en/2", RATE_HZ))], [(ended - before_end_s, reply)]
        )
        assert len(said) == 2
        assert stop_s(said[0]) == pytest.approx(ended, abs=0.01)

    def test_an_agent_that_is_spoken_over_takes_no_turn(self) -> None:
        ended = edges_s("en/1", 3.0)[1]
        over = np.tile(spoken("de/1", RATE_HZ)[: round(edges_s("de/1", 0.0)[1] * RATE_HZ)], 2)
        at_s = ended + 0.2 - len(over) / RATE_HZ  # falls silent in the caller's pause
        said = found([(3.0, spoken("en/1", RATE_HZ)), (ended + 0.5, spoken("en/2", RATE_HZ))], [(at_s, over)])
        assert at_s < 2.9
        assert len(said) == 1

    def test_a_long_silence_ends_it(self) -> None:
        second = edges_s("en/1", 1.0)[1] + 2.5
        assert len(found([(1.0, spoken("en/1", RATE_HZ)), (second, spoken("en/2", RATE_HZ))])) == 2

    @pytest.mark.parametrize("rt60_s", [0.3, 0.6])
    def test_in_a_room_within_its_wide_bounds(self, rt60_s: float) -> None:
        (said,) = found([(2.0, in_room(spoken("it/1", RATE_HZ), RATE_HZ, rt60_s, 3))])
        assert {"room", "uncertain"} <= set(said.flags)
        assert said.stop is not None
        assert abs(stop_s(said) - edges_s("it/1", 2.0)[1]) * 1000 <= said.stop.uncertainty_ms

    def test_a_click_is_no_utterance(self) -> None:
        assert found([(2.0, from_dbov(-20) * np.ones(40))]) == []


def test_a_known_end_that_noise_leaves_open_is_told_by_level_and_said_to_be_uncertain() -> None:
    caller = 0.045 * tape([(2.0, spoken("en/1", RATE_HZ))], 1)
    caller += (from_dbov(-60) * np.random.default_rng(5).standard_normal(len(caller))).astype(np.float32)
    agent = tape([], 2)
    tracks = LevelTrack(caller, RATE_HZ), LevelTrack(agent, RATE_HZ)
    seen = find_references(caller, RATE_HZ, [reference("en/1")])
    (said,) = said_by_caller(cast(Channel, caller), cast(Channel, agent), *tracks, seen, [], marked=True)
    assert said.reference is reference("en/1")
    assert said.stop is not None
    assert said.stop.evidence == "level"
    assert "uncertain" in said.flags
    assert said.stop.uncertainty_ms > 20
    assert stop_s(said) < edges_s("en/1", 2.0)[1] + 0.1
