"""Echo of the caller on the agent's channel: planted paths are found, and what the agent says over them stays."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from analysis.audibility import LevelTrack, audible_runs
from analysis.echo import EchoFreeTrack, find_echo, without_echo
from analysis.onset import find_start
from analysis.stretches import find_stretches
from benchmarks.recordings_path import filtered
from benchmarks.recordings_sounds import agent_sound, levelled, resampled, utterance_sound
from probe.utterances import shipped_names

Sound = NDArray[np.float32]


def caller_of(rate_hz: int, seconds: float = 24.0) -> Sound:
    """Utterances with a second of pause between them."""
    out = np.zeros(int(seconds * rate_hz), np.float32)
    at = rate_hz
    for name in shipped_names():
        sound = levelled(resampled(utterance_sound(name), name, rate_hz), rate_hz, -20.0)
        if at + len(sound) > len(out):
            break
        out[at : at + len(sound)] = sound
        at += len(sound) + rate_hz
    return out


def path_of(rate_hz: int, delay_ms: float, gain_db: float) -> Sound:
    delay, length = int(delay_ms * rate_hz / 1000), 10 * rate_hz // 1000
    taps = np.random.default_rng(4).standard_normal(length) * np.exp(-np.arange(length) / (0.002 * rate_hz))
    taps[0] = 3 * np.abs(taps).max()
    taps *= 10 ** (gain_db / 20) / np.sqrt(np.sum(taps**2))
    return np.concatenate([np.zeros(delay), taps]).astype(np.float32)


def hiss(samples: int, seed: int) -> Sound:
    return (np.random.default_rng(seed).standard_normal(samples) * 1e-4).astype(np.float32)  # −80 dBov


def tracks(rate_hz: int, delay_ms: float, gain_db: float, agent: Sound | None = None) -> tuple[LevelTrack, LevelTrack]:
    caller = caller_of(rate_hz)
    heard = filtered(caller, path_of(rate_hz, delay_ms, gain_db)) + hiss(len(caller), 2)
    if agent is not None:
        heard[: len(agent)] += agent
    return LevelTrack(caller + hiss(len(caller), 1), rate_hz), LevelTrack(heard, rate_hz)


@pytest.mark.parametrize(
    ("rate_hz", "delay_ms", "gain_db"), [(8000, 12.0, -20.0), (8000, 430.0, -30.0), (16000, 55.0, -38.0)]
)
def test_a_planted_path_is_found_and_its_echo_is_silent(rate_hz: int, delay_ms: float, gain_db: float) -> None:
    caller, agent = tracks(rate_hz, delay_ms, gain_db)
    assert len(list(audible_runs(agent))) >= 3  # all of them the caller
    (path,) = find_echo(caller, agent)
    assert path.strongest() * 1000 / rate_hz == pytest.approx(delay_ms, abs=0.2)  # a sample or two
    assert path.gain_db == pytest.approx(gain_db, abs=2.0)  # where the caller has no energy it is not to be known
    assert not list(audible_runs(without_echo(caller, agent)))


def test_a_reply_that_begins_under_the_echo_is_found() -> None:
    rate_hz = 8000
    reply = levelled(agent_sound("reply", "en/1", rate_hz), rate_hz, -22.0)
    caller = caller_of(rate_hz)
    at = int(np.flatnonzero(np.abs(caller) > 0.05)[0]) + rate_hz // 3  # in the middle of an utterance
    own = np.zeros(len(caller), np.float32)
    own[at : at + len(reply)] = reply
    alone = next(iter(audible_runs(LevelTrack(own + hiss(len(own), 2), rate_hz))))
    track = without_echo(*tracks(rate_hz, 20.0, -25.0, own))
    assert isinstance(track, EchoFreeTrack)
    (run,) = audible_runs(track)
    found = find_start(track, run.start)
    assert found.sample == pytest.approx(alone.start, abs=0.001 * rate_hz)
    assert track.explained(at - rate_hz // 4, at) > 0.5


def test_nothing_is_assumed_where_there_is_no_echo() -> None:
    rate_hz = 8000
    reply = levelled(agent_sound("reply", "de/1", rate_hz), rate_hz, -30.0)
    caller = LevelTrack(caller_of(rate_hz), rate_hz)
    own = hiss(caller.n, 3)
    for at in range(rate_hz, len(own) - len(reply), 3 * rate_hz):  # over the caller, again and again
        own[at : at + len(reply)] += reply
    agent = LevelTrack(own, rate_hz)
    assert find_echo(caller, agent) == ()
    assert without_echo(caller, agent) is agent
    silent = LevelTrack(np.zeros(caller.n, np.float32), rate_hz)
    assert find_echo(caller, silent) == find_echo(silent, agent) == ()


def test_a_recording_shorter_than_a_block_has_none() -> None:
    short = LevelTrack(hiss(1000, 1), 8000)
    assert find_echo(short, short) == ()


def test_the_floor_stays_that_of_the_recording() -> None:
    caller, agent = tracks(8000, 12.0, -20.0)
    track = without_echo(caller, agent)
    hops = np.arange(2500, 9000, 500)
    assert np.array_equal(track.floors(hops), agent.floors(hops))


@pytest.mark.parametrize("delay_ms", [120, 250])
def test_what_is_left_of_an_echo_is_no_stretch_and_a_soft_reply_is(delay_ms: int) -> None:
    rate_hz = 16000
    caller = caller_of(rate_hz)
    # its gain wavers, so that no one filter predicts it
    fading = 1.0 + 0.15 * np.sin(2 * np.pi * 0.21 * np.arange(len(caller)) / rate_hz)
    late = np.concatenate([np.zeros(delay_ms * rate_hz // 1000), caller])[: len(caller)]
    heard = (0.1 * fading * late).astype(np.float32)
    reply = levelled(agent_sound("reply", "en/1", rate_hz), rate_hz, -38.0)
    at = int(np.flatnonzero(np.abs(caller) > 0.05)[0]) + rate_hz // 3  # over the caller
    spoken = heard.copy()
    spoken[at : at + len(reply)] += reply
    for channel, expected in ((heard, 0), (spoken, 1)):
        track = without_echo(LevelTrack(caller, rate_hz), LevelTrack(channel, rate_hz))
        assert isinstance(track, EchoFreeTrack)
        assert len(list(audible_runs(track))) > expected  # some is left
        found = find_stretches(track)
        near = [s for s in found if at - rate_hz // 2 < s.first < at + len(reply)]
        assert len(found) - len(near) == 0
        assert bool(near) == bool(expected)
