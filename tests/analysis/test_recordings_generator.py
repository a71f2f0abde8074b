"""Generated calls of the benchmark of recordings: their truth is right by construction, and so is their scoring."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile

from analysis.result import ANSWERED, NO_REPLY, NOT_MEASURABLE, OVERLAPPED, PREMATURE
from benchmarks import recordings, recordings_peers, recordings_sounds
from benchmarks.recordings_calls import TIMEOUT_S, Call, build
from benchmarks.recordings_conditions import CONDITIONS, Condition
from benchmarks.recordings_files import Library, long_recording
from benchmarks.recordings_location import bound_samples, locate, plain
from benchmarks.recordings_path import ROOMS_ARE_THERE, bleed_filter, drifted, fractional_delay, room, stretched
from benchmarks.recordings_score import Tally, scored
from benchmarks.recordings_truth import last_edge
from probe.utterances import shipped, shipped_names

LEAD, TAIL = 240, 3360  # samples of silence around an edited utterance at 48 kHz
QUIET = replace(CONDITIONS["clean"], snr_db=None, rates_hz=(16000,))


def of_kind(kind: str, **more: Any) -> Call:
    """A call whose turns are all of one kind, where the kind allows it."""
    return build(5, replace(QUIET, weights={kind: 1.0}, **more), 0, turns=4)


class TestCalls:
    def test_the_same_seed_makes_the_same_call(self) -> None:
        first, again = (build(3, CONDITIONS["telephone"], 2, turns=3) for _ in range(2))
        assert np.array_equal(first.audio, again.audio)
        assert first.document() == again.document()
        assert json.loads(json.dumps(first.document()))["turns"][0]["outcomes"]

    @pytest.mark.parametrize("other", [(4, "clean", 2), (3, "clean", 1), (3, "digital", 2)])
    def test_seed_condition_and_number_make_another(self, other: tuple[int, str, int]) -> None:
        seed, name, number = other
        one, two = build(3, CONDITIONS["clean"], 2, turns=2), build(seed, CONDITIONS[name], number, turns=2)
        assert one.drawn["caller_dbov"] != two.drawn["caller_dbov"]

    @pytest.mark.parametrize("name", CONDITIONS)
    def test_every_condition_makes_calls_whose_turns_are_told(self, name: str) -> None:
        if CONDITIONS[name].rooms and not ROOMS_ARE_THERE:
            pytest.skip("pyroomacoustics is not installed")
        call = build(1, CONDITIONS[name], 0, turns=3)
        assert call.audio.dtype == np.float32
        assert call.audio.shape[1] == 2
        assert np.abs(call.audio).max() <= 1.0
        assert len(call.turns) == 3
        stops = [turn.speech_stop_s for turn in call.turns if turn.speech_stop_s is not None]
        assert len(stops) == 3
        assert stops == sorted(stops)
        assert {turn.reference for turn in call.turns} <= set(call.references)
        assert not {turn.reference for turn in call.turns} & set(call.decoys)
        for turn in call.turns:
            assert turn.speech_s is not None
            assert turn.speech_stop_s is not None
            assert 0.3 < turn.speech_stop_s - turn.speech_s < 5.0

    def test_noise_lies_where_it_is_asked_for(self) -> None:
        call = build(1, replace(CONDITIONS["snr_25"], snr_db=(25, 25)), 0, turns=2)
        first_second = call.audio[: call.rate_hz, call.caller_channel]
        level = 20 * np.log10(np.sqrt(np.mean(first_second.astype(np.float64) ** 2)))
        # pink noise has power at a few hertz, of which one second holds few periods
        assert level == pytest.approx(call.drawn["caller_dbov"] - 25, abs=1.5)

    def test_a_repeated_utterance_is_one_reference(self) -> None:
        call = build(1, CONDITIONS["repeats"], 0, turns=8)
        assert len({turn.reference for turn in call.turns}) < 8


@pytest.fixture(scope="module")
def planted() -> Call:
    return build(2, CONDITIONS["planted"], 0, turns=6)


class TestPlantedTruth:
    """Hard cuts at whole samples: what the rule says must be where the sounds were put, to the sample."""

    def test_boundaries_are_where_they_were_planted(self, planted: Call) -> None:
        for turn in planted.turns:
            (_, start_s, stop_s), (what, reply_s, _) = turn.events
            start, stop, reply = (round(at * 48000) for at in (start_s, stop_s, reply_s))
            assert what == "reply"
            assert turn.speech_s == (start + LEAD) / 48000
            assert turn.speech_stop_s == (stop - TAIL - 1) / 48000
            assert turn.audible_s == turn.any_s == turn.content_s == (reply + LEAD) / 48000
            assert turn.latency_ms == pytest.approx((reply + LEAD - stop + TAIL + 1) / 48, abs=1e-9)
            assert turn.outcomes == (ANSWERED,)

    def test_the_recording_says_so_too(self, planted: Call) -> None:
        caller, agent = planted.audio[:, planted.caller_channel], planted.audio[:, planted.agent_channel]
        for turn in planted.turns:
            assert turn.speech_stop_s is not None
            assert turn.audible_s is not None
            stop, first = round(turn.speech_stop_s * 48000), round(turn.audible_s * 48000)
            assert abs(caller[stop]) > 0.001
            assert not caller[stop + 1 : stop + TAIL].any()
            assert abs(agent[first]) > 0.001
            assert not agent[first - LEAD : first].any()

    def test_a_reference_ends_where_the_rule_ends_it(self) -> None:
        call = build(2, replace(QUIET, rates_hz=(48000,), fractional=False, level_dbov=(-20, -20)), 0, turns=3)
        for turn in call.turns:
            assert turn.speech_stop_s is not None
            planned = round(turn.events[0][1] * 48000) + shipped(turn.reference).end_sample
            # at the clips' own level: the gain is 1 within the 0.5 dB to which they were levelled
            assert turn.speech_stop_s * 48000 == pytest.approx(planned, abs=0.004 * 48000)


class TestKinds:
    def test_a_reply_answers(self) -> None:
        assert all(turn.outcomes == (ANSWERED,) for turn in of_kind("reply").turns)

    def test_a_filler_is_speech_and_no_content(self) -> None:
        for turn in of_kind("filler").turns:
            assert turn.outcomes == (ANSWERED,)
            assert turn.audible_s is not None
            assert turn.content_s is not None
            assert turn.any_s == turn.audible_s < turn.content_s - 0.4

    def test_a_backchannel_is_a_flag(self) -> None:
        flagged = [turn for turn in of_kind("backchannel").turns if "backchannel" in turn.flags]
        assert flagged
        for turn in flagged:
            begun_s = next(start for what, start, _ in turn.events if what == "backchannel")
            assert turn.speech_stop_s is not None
            assert turn.audible_s is not None
            assert begun_s < turn.speech_stop_s < turn.audible_s
            assert turn.outcomes == (ANSWERED,)

    def test_a_cut_in_is_premature(self) -> None:
        for turn in of_kind("cut_in").turns:
            assert turn.outcomes == (PREMATURE,)
            assert turn.latency_ms is not None
            assert -900 < turn.latency_ms < -80

    def test_silence_outlasts_the_timeout(self) -> None:
        turns = of_kind("no_reply").turns
        for turn, following in itertools.pairwise(turns):
            assert turn.outcomes == (NO_REPLY,)
            assert turn.audible_s is turn.any_s is turn.latency_ms is None
            assert following.speech_s is not None
            assert turn.speech_stop_s is not None
            assert following.speech_s - turn.speech_stop_s > TIMEOUT_S

    def test_an_overlapped_turn_begins_while_the_agent_speaks(self) -> None:
        turns = of_kind("overlap").turns
        assert [turn.kind for turn in turns] == ["reply", "overlap", "reply", "overlap"]
        for before, turn in zip(turns[::2], turns[1::2], strict=True):
            assert before.outcomes == (ANSWERED,)
            assert turn.outcomes == (OVERLAPPED,)
            assert turn.latency_ms is None
            assert turn.speech_s is not None
            assert before.events[-1][1] < turn.speech_s < before.events[-1][2]

    def test_a_barge_in_is_yielded_to(self) -> None:
        call = of_kind("barge_in")
        for before, turn in zip(call.turns[::2], call.turns[1::2], strict=True):
            assert turn.kind == "barge_in"
            assert turn.outcomes == (ANSWERED, OVERLAPPED)
            assert turn.speech_s is not None
            assert turn.yield_time_ms is not None
            last_s = turn.speech_s + turn.yield_time_ms / 1000
            assert 0.1 < last_s - turn.speech_s < 0.95
            # and then the agent is silent
            silent = call.audio[round(last_s * 16000) + 16 : round(last_s * 16000) + 3200, call.agent_channel]
            assert np.abs(silent).max() < 10 ** (-55 / 20)
            assert before.events[-1][2] == pytest.approx(last_s, abs=0.15)

    def test_an_idle_prompt_changes_nothing(self) -> None:
        for turn in of_kind("idle_prompt").turns:
            (_, reply_s, reply_end_s), (what, prompt_s, _) = turn.events[1:]
            assert what == "idle_prompt"
            assert prompt_s > reply_end_s + 2
            assert turn.outcomes == (ANSWERED,)
            assert turn.audible_s == pytest.approx(reply_s, abs=0.1)

    @pytest.mark.parametrize("kind", ["pop", "breath", "earcon", "music"])
    def test_what_is_no_speech_is_any_and_not_speech(self, kind: str) -> None:
        heard = [turn for turn in of_kind(kind).turns if turn.any_s != turn.audible_s]
        assert len(heard) >= 3  # the faintest breath may stay under the threshold
        for turn in heard:
            begun_s, end_s = next(event[1:] for event in turn.events if event[0] == kind)
            assert turn.any_s is not None
            assert turn.audible_s is not None
            assert begun_s - 0.005 <= turn.any_s < end_s < turn.audible_s + 0.01
            assert turn.outcomes == (ANSWERED,)

    def test_a_click_is_too_short_to_be_audible(self) -> None:
        for turn in of_kind("click").turns:
            assert [what for what, *_ in turn.events] == ["utterance", "click", "reply"]
            assert turn.any_s == turn.audible_s

    def test_a_greeting_belongs_to_no_turn(self) -> None:
        calls = [build(seed, QUIET, 0, turns=1) for seed in range(6)]
        greeted = [call for call in calls if call.audio[: 4 * 16000, call.agent_channel].any()]
        assert 0 < len(greeted) < 6
        assert all("greeting" not in [what for what, *_ in call.turns[0].events] for call in greeted)

    def test_a_pause_stays_inside_its_turn(self) -> None:
        call = build(1, replace(QUIET, pauses=1.0, weights={"reply": 1.0}), 0, turns=3)
        for turn in call.turns:
            assert turn.edits == ("pause",)
            name = turn.reference.partition("+")[0]
            assert turn.speech_s is not None
            assert turn.speech_stop_s is not None
            assert turn.speech_stop_s - turn.speech_s > shipped(name).audible_s + 0.35


class TestPath:
    @pytest.mark.parametrize("rate_hz", [8000, 48000])
    @pytest.mark.parametrize("longer", [True, False])
    def test_a_stretch_map_is_exact(self, rate_hz: int, longer: bool) -> None:
        sound = recordings_sounds.resampled(shipped("en/1").samples, "en/1", rate_hz)
        out, found = stretched(sound, rate_hz, np.random.default_rng(4), steps=4, longer=longer)
        assert len(found.steps) >= 3
        assert len(out) == len(sound) + found.total
        faded = np.zeros(len(sound), dtype=bool)
        for at, samples in found.steps:
            assert (samples > 0) is longer
            assert 0.0025 * rate_hz - 1 <= abs(samples) <= 0.015 * rate_hz
            faded[at - (samples if longer else -2 * samples) : at] = True
        kept = np.flatnonzero(~faded)
        moved = np.array([found.position(int(at)) for at in kept])
        assert len(kept) > 0.8 * len(sound)
        assert np.array_equal(out[moved], sound[kept])
        # a cross-fade of one period joins without a step
        jump = np.abs(np.diff(out)).max()
        assert jump <= 1.5 * np.abs(np.diff(sound)).max()

    def test_a_fractional_delay_is_one(self) -> None:
        t = np.arange(4000) / 8000
        tone = (np.hanning(4000) * np.sin(2 * np.pi * 500 * t)).astype(np.float32)
        moved = fractional_delay(tone, 0.25)[: len(tone)]
        phase = np.angle(np.fft.rfft(moved)[250] / np.fft.rfft(tone)[250])
        assert phase == pytest.approx(-2 * np.pi * 500 * 0.25 / 8000, abs=1e-4)

    @pytest.mark.parametrize("ppm", [-200.0, 200.0])
    def test_drift_moves_the_truth_with_the_clock(self, ppm: float) -> None:
        straight, moved = (
            build(7, replace(QUIET, rates_hz=(48000,), drift_ppm=(value, value)), 0, turns=5) for value in (0.0, ppm)
        )
        assert len(moved.audio) == pytest.approx(len(straight.audio) * (1 + ppm * 1e-6), abs=2)
        for one, two in zip(straight.turns, moved.turns, strict=True):
            assert one.speech_stop_s is not None
            # 20 samples: at a crossing of the threshold the first sample above it is another one of the same period
            assert two.speech_stop_s == pytest.approx(one.speech_stop_s * (1 + ppm * 1e-6), abs=20 / 48000)

    def test_drift_keeps_the_place_of_a_sound(self) -> None:
        pulse = np.zeros(48000, dtype=np.float32)
        pulse[40000 - 200 : 40000 + 201] = np.hanning(401)
        assert int(np.argmax(drifted(pulse, 200.0))) == pytest.approx(40008, abs=1)

    def test_bleed_has_its_level_and_is_not_in_the_truth(self) -> None:
        response = bleed_filter(np.random.default_rng(1), 16000, -30.0)
        assert 10 * np.log10(np.sum(response.astype(np.float64) ** 2)) == pytest.approx(-30, abs=0.01)
        dry = build(3, replace(QUIET, bleed_db=None), 0, turns=5)
        wet = build(3, replace(QUIET, bleed_db=(-30, -30)), 0, turns=5)
        assert np.abs(wet.audio[:, wet.agent_channel] - dry.audio[:, dry.agent_channel]).max() > 0.001
        for one, two in zip(dry.turns, wet.turns, strict=True):
            assert one.outcomes == two.outcomes
            if one.end_dbov == two.end_dbov:  # where the bleed does not raise the floor
                assert one.audible_s == two.audible_s

    def test_noise_raises_the_threshold_of_the_truth(self) -> None:
        loud, still = (build(3, replace(QUIET, snr_db=snr), 0, turns=4) for snr in ((20, 20), (60, 60)))
        for one, two in zip(loud.turns, still.turns, strict=True):
            assert one.start_dbov is not None
            assert one.start_dbov > -60.0 == two.start_dbov
            assert one.speech_stop_s is not None
            assert two.speech_stop_s is not None
            assert one.speech_stop_s <= two.speech_stop_s

    def test_opus_delays_by_its_look_ahead(self) -> None:
        plain_call, coded = (
            build(3, replace(CONDITIONS["planted"], codecs=codecs), 0, turns=2) for codecs in ((), (("opus", 64000),))
        )
        for one, two in zip(plain_call.turns, coded.turns, strict=True):
            assert one.audible_s is not None
            assert two.audible_s is not None
            # 6.5 ms; a transform codec spreads a hard edge by some milliseconds, and before it (pre-echo)
            assert (two.audible_s - one.audible_s) * 1000 == pytest.approx(6.5, abs=6)

    @pytest.mark.skipif(not ROOMS_ARE_THERE, reason="pyroomacoustics is not installed")
    def test_in_a_room_the_caller_ends_on_the_direct_path(self) -> None:
        condition = replace(QUIET, weights={"reply": 1.0})
        dry, wet = build(3, condition, 0, turns=4), build(3, replace(condition, rooms=True), 0, turns=4)
        caller = np.ascontiguousarray(wet.audio[:, wet.caller_channel])
        later_ms = []
        for one, two in zip(dry.turns, wet.turns, strict=True):
            assert one.speech_stop_s is not None
            assert two.speech_stop_s is not None
            stop, true = round(two.speech_stop_s * 16000), round(one.speech_stop_s * 16000)
            # the direct path is 40 samples late, by pyroomacoustics' fractional-delay filter
            assert stop - true == pytest.approx(40, abs=8)
            energy = last_edge(caller, caller, 16000, stop - 8000, stop + 16000)
            assert energy is not None
            later_ms.append((energy.sample - stop) / 16)
        assert min(later_ms) > 20  # by its energy it ends later

    @pytest.mark.skipif(not ROOMS_ARE_THERE, reason="pyroomacoustics is not installed")
    def test_a_rooms_direct_path_is_the_beginning_of_the_whole(self) -> None:
        place = room(16000, 2)
        peak = int(np.argmax(np.abs(place.direct)))
        assert peak <= 40
        assert place.direct[peak] == pytest.approx(1.0)
        # the first reflection comes later than the direct path's filter has settled
        assert place.whole[: peak + 8] == pytest.approx(place.direct[: peak + 8], abs=0.02)


def as_measured(call: Call) -> list[dict[str, Any]]:
    """The truth as somebody without error would measure it."""
    names = ("speech_s", "speech_stop_s", "any_s", "audible_s", "content_s", "latency_ms", "yield_time_ms")
    return [
        {name: getattr(turn, name) for name in names}
        | {"index": turn.index, "outcome": turn.outcomes[0], "flags": list(turn.flags), "uncertainty_ms": 2.0}
        for turn in call.turns
    ]


@pytest.fixture(scope="module")
def call() -> Call:
    return build(11, QUIET, 0, turns=8)


class TestScoring:
    def test_the_truth_has_no_error(self, call: Call) -> None:
        scores, spare = scored(call.turns, as_measured(call))
        row = Tally(scores, spare).summary()
        assert row["right_percent"] == row["inside_stated_percent"] == 100.0
        assert row["latency"]["max"] == row["speech_stop"]["max"] == row["audible"]["max"] == 0.0
        assert row["unflagged_above_20_ms"] == row["spare"] == row["wrong"] == 0
        assert row["median_stated_ms"] == 2.0

    def test_a_large_error_counts_unless_flagged(self, call: Call) -> None:
        at = next(i for i, turn in enumerate(call.turns) if turn.outcomes[0] == ANSWERED)
        measured = as_measured(call)
        measured[at]["audible_s"] += 0.025
        measured[at]["latency_ms"] += 25.0
        row = Tally(*scored(call.turns, measured)).summary()
        assert row["unflagged_above_20_ms"] == row["of_them_outside_stated"] == 1
        assert row["latency"]["max"] == pytest.approx(25.0)
        assert row["inside_stated_percent"] < 100
        measured[at]["flags"] = ["backchannel"]
        assert Tally(*scored(call.turns, measured)).summary()["unflagged_above_20_ms"] == 1
        measured[at]["flags"] = ["low_confidence"]
        assert Tally(*scored(call.turns, measured)).summary()["unflagged_above_20_ms"] == 0

    def test_missing_and_spare_and_refused_turns(self, call: Call) -> None:
        measured = as_measured(call)
        del measured[2]
        measured.append({"index": 9, "speech_s": 0.1, "speech_stop_s": 0.6, "outcome": ANSWERED})
        measured[0] = {"index": 0, "outcome": NOT_MEASURABLE, "reason": "too_noisy", "latency_ms": None}
        scores, spare = scored(call.turns, measured)
        assert spare == 1
        assert [score.right for score in scores] == [False, True, False, *[True] * 5]
        assert scores[0].refused
        assert scores[2].outcome is None
        assert Tally(scores, spare).summary()["refused_by_reason"] == {"too_noisy": 1}


class TestHarness:
    def test_a_tool_that_finds_nothing_is_right_nowhere(self) -> None:
        seen = []

        def analyze(wav: Path, *, references: list[Path], caller_channel: int, agent_channel: int) -> dict[str, Any]:
            info = soundfile.info(wav)
            assert info.channels == 2
            assert all(soundfile.info(path).samplerate == 48000 for path in references)
            assert {caller_channel, agent_channel} == {0, 1}
            seen.append(len(references))
            return {"turns": []}

        options = recordings._parsed(["--turns", "10", "--conditions", "planted"])
        found = recordings.run_condition("planted", options, analyze)["tools"]
        assert seen == [12, 0]
        assert found[recordings.REFERENCE]["right_percent"] == found[recordings.NO_REFERENCE]["right_percent"] == 0.0
        assert found[recordings.REFERENCE]["turns"] == 10

    def test_a_long_recording_is_calls_end_to_end(self, tmp_path: Path) -> None:
        wav, references, turns, duration_s = long_recording(Library(tmp_path), 80.0, 8000, 1)
        assert soundfile.info(wav).frames / 8000 == duration_s >= 80.0
        assert [turn.index for turn in turns] == list(range(len(turns)))
        assert len(turns) >= 20
        assert len(set(references)) == len(references) <= len(shipped_names())
        audio, _ = soundfile.read(wav, dtype="float32")
        for turn in turns:
            assert turn.speech_stop_s is not None
            stop = round(turn.speech_stop_s * 8000)
            assert np.abs(audio[stop - 80 : stop + 1, 0]).max() > np.abs(audio[stop + 80 : stop + 160, 0]).max()

    def test_kept_files_tell_the_truth(self, tmp_path: Path) -> None:
        call = build(1, CONDITIONS["soft"], 0, turns=2)
        files = Library(tmp_path).write(call, truth=True)
        document = json.loads(files.wav.with_suffix(".truth.json").read_text(encoding="utf-8"))
        assert document["turns"][1]["speech_stop_s"] == call.turns[1].speech_stop_s
        assert [path.exists() for path in files.in_order] == [True, True]


class TestLocation:
    def test_the_bound_of_a_tone(self) -> None:
        t = np.arange(4096)
        tone = np.sin(2 * np.pi * t / 16)
        # Σ s'² = ω²·N/2
        assert bound_samples(tone, 0.5) == pytest.approx(0.5 / (2 * np.pi / 16 * np.sqrt(2048)), rel=1e-6)

    def test_the_yardstick_meets_it(self) -> None:
        found = locate("plain", plain, 20.0, rate_hz=8000, trials=30, seed=1)
        assert found.refused == found.outliers == 0
        assert found.over_bound is not None
        # the rms of 30 normal errors lies within 0.6 … 1.4 of its standard deviation (4 sigma: 1 ± 4/√60)
        assert 0.5 < found.over_bound < 1.5

    def test_an_estimator_that_is_off_is_seen(self) -> None:
        def off(reference: Any, recording: Any, rate_hz: int) -> float | None:
            found = plain(reference, recording, rate_hz)
            return None if found is None else found + 0.1

        found = locate("off", off, 20.0, rate_hz=8000, trials=5, seed=1)
        assert found.over_bound is not None
        assert found.over_bound > 10


def test_conditions_cover_what_they_say() -> None:
    rates = {rate for condition in CONDITIONS.values() for rate in condition.rates_hz}
    assert rates == {8000, 16000, 24000, 44100, 48000}
    assert all(isinstance(condition, Condition) and name == condition.name for name, condition in CONDITIONS.items())


class TestPeers:
    """What another tool answers becomes turns as ours are written."""

    def test_a_discarded_call_refuses_every_turn(self) -> None:
        turns = recordings_peers._turns({"turns": 2}, {"discard": "turn_count_mismatch", "turns": []})
        assert [(turn["index"], turn["outcome"], turn["reason"]) for turn in turns] == [
            (0, NOT_MEASURABLE, "turn_count_mismatch"),
            (1, NOT_MEASURABLE, "turn_count_mismatch"),
        ]

    @pytest.mark.parametrize(
        ("discard", "latency_ms", "outcome"),
        [
            (None, 501.0, ANSWERED),
            (None, -250.0, PREMATURE),
            ("no_response", None, NO_REPLY),
            ("barged_reply", 400.0, OVERLAPPED),
            ("vad_disagree", 400.0, NOT_MEASURABLE),
        ],
    )
    def test_verdicts_become_outcomes(self, discard: str | None, latency_ms: float | None, outcome: str) -> None:
        answer = {
            "stimulus_start_ms": 1000.0,
            "t1_ms": 2000.0,
            "t2_ms": None if latency_ms is None else 2000.0 + latency_ms,
            "ttfab_onset_ms": latency_ms,
            "ttfab_content_ms": None,
            "discard_reason": discard,
        }
        (turn,) = recordings_peers._turns({"turns": 1}, {"discard": None, "turns": [answer]})
        assert turn["outcome"] == outcome
        assert turn["speech_stop_s"] == 2.0
        assert turn["latency_ms"] == (latency_ms if discard is None else None)
