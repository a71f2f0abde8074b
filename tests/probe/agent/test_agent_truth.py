"""Truth: onsets planted to the sample, packets that were lost, talkspurts, and streams that never pause."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.signal import correlate

from analysis.audibility import LevelTrack, audible_runs, first_audible
from analysis.codecs import CODECS, Codec, encode
from analysis.streams import Timed, build_streams, decode
from analysis.units import NS_PER_MS, from_dbov
from probe.agent.config import AgentConfig
from probe.agent.plan import plan_greeting, plan_reply, render
from probe.agent.speech import Prepared, idle_loop, prepare
from probe.agent.stream import AgentStream
from probe.agent.truth import Departure, Spoken, Truth, truth_of

CONFIG = AgentConfig()


def _sent(codec: Codec, payloads: Sequence[bytes | None], config: AgentConfig = CONFIG) -> list[Departure]:
    stream = AgentStream(config, 0, codec, ptime_ms=20, payload_type=96, origin_ns=0)
    departures = []
    for payload in payloads:
        if payload is None:
            stream.skip()
        else:
            packet = stream.emit(payload)
            departures.append(Departure(packet, packet.send_ns, not packet.lost))
    return departures


def _lose(departures: Sequence[Departure], *counts: int) -> list[Departure]:
    return [replace(d, left_ns=None, delivered=False) if d.packet.count in counts else d for d in departures]


def _truth(departures: Sequence[Departure], codec: Codec, first: int = 0) -> Truth:
    return truth_of(Spoken(0, "reply", 1, 2, first, departures[-1].packet.count + 1), departures, codec)


def _tone(codec: Codec, onset: int) -> NDArray[np.float32]:
    x = np.zeros(2 * codec.rate_hz, dtype=np.float32)
    n = np.arange(codec.rate_hz)
    x[onset : onset + codec.rate_hz] = 0.3 * np.cos(2 * np.pi * 440 * n / codec.rate_hz)
    return x


@pytest.mark.parametrize("onset", [0, 1, 159, 160, 1234, 3999])
def test_onset_planted_to_the_sample(onset: int) -> None:
    codec = CODECS["pcmu"]
    departures = _sent(codec, encode(codec, _tone(codec, onset)))
    truth = _truth(departures, codec)
    packet = departures[onset // 160].packet
    assert (truth.sequence_number, truth.sample) == (packet.sequence_number, onset % 160)
    assert (truth.left_ns, truth.unimpaired_ns) == (packet.send_ns, packet.nominal_ns)
    assert truth.leading_silence_ms == pytest.approx(onset / 8)
    assert truth.first_sequence_number == departures[0].packet.sequence_number


@pytest.mark.parametrize("onset", [4_800, 7_001, 11_111])
def test_onset_through_opus_lies_its_look_ahead_later(onset: int) -> None:
    """The decode lies 312 samples later; its edge is smeared by at most one transform (20 ms before, 2.5 after)."""
    codec = CODECS["opus"]
    x = np.zeros(96_000, dtype=np.float32)
    n = np.arange(48_000)
    # a soft start, as speech has, so that there is little to smear
    x[onset : onset + 48_000] = 0.3 * np.sin(2 * np.pi * (200 + n / 100) * n / 48_000) * np.minimum(n / 480, 1)
    departures = _sent(codec, encode(codec, x, bit_rate=64_000))
    stream = build_streams([Timed(d.packet.count, d.packet.rtp()) for d in departures], {96: codec})[0]
    heard = decode(stream).pcm
    assert int(np.argmax(correlate(heard, x, "full"))) - (len(x) - 1) == pytest.approx(312, abs=4)
    truth = _truth(departures, codec)
    assert truth.leading_silence_ms is not None
    source = first_audible(LevelTrack(x, 48_000))
    assert source is not None
    assert -20 <= truth.leading_silence_ms - (source.sample + 312) / 48 <= 2.5
    # and it is exactly what the rule says of the decode
    own = first_audible(LevelTrack(heard, 48_000))
    assert own is not None
    assert truth.leading_silence_ms * 48 == pytest.approx(own.sample)


def test_truth_moves_on_where_the_packet_with_the_onset_is_lost() -> None:
    codec = CODECS["pcma"]
    departures = _sent(codec, encode(codec, _tone(codec, 1234)))
    whole = _truth(departures, codec)
    lost = _truth(_lose(departures, 7), codec)
    assert whole.sequence_number == departures[7].packet.sequence_number
    assert lost.sequence_number == departures[8].packet.sequence_number
    assert lost.sample == 0
    assert lost.leading_silence_ms == pytest.approx(8 * 20)
    # the talkspurt then begins with the first packet that was delivered
    headless = _truth(_lose(departures, 0, 1, 2), codec)
    assert headless.first_sequence_number == departures[3].packet.sequence_number
    assert headless.leading_silence_ms == pytest.approx(1234 / 8 - 60)


def test_nothing_delivered_is_nothing_and_not_zero() -> None:
    codec = CODECS["pcmu"]
    departures = _sent(codec, encode(codec, _tone(codec, 0)))
    truth = _truth(_lose(departures, *range(len(departures))), codec)
    assert truth == Truth(0, "reply", 1, 2)
    assert truth.left_ns is None


def test_talkspurt_begins_after_a_gap_and_is_absent_where_the_stream_went_on_from_before() -> None:
    codec = CODECS["pcmu"]
    before, sound = encode(codec, np.zeros(8_000, dtype=np.float32)), encode(codec, _tone(codec, 800))
    for gap, begins in ((3, False), (4, True)):
        departures = _sent(codec, [*before, *([None] * gap), *sound])
        truth = _truth(departures, codec, first=len(before))
        first = departures[len(before)].packet.sequence_number
        assert truth.first_sequence_number == (first if begins else None), f"{20 * gap} ms"
        assert truth.leading_silence_ms == (pytest.approx(100.0) if begins else None)


def test_comfort_noise_that_sets_in_with_the_sound_is_anything_but_speech() -> None:
    config = AgentConfig(comfort_noise_dbov=-50, leading_silence_ms=(300, 300))
    codec = CODECS["pcmu"]
    sound = prepare(config, plan_reply(config, 0, 0), "reply", codec, 20)
    departures = _sent(codec, sound.payloads)
    spoken = Spoken(0, "reply", 1, 2, 0, len(departures), sound.speech_start, sound.speech_stop, noise_dbov=-50)
    truth = truth_of(spoken, departures, codec)
    assert truth.any_sequence_number == departures[0].packet.sequence_number
    assert truth.leading_silence_ms is not None
    # the clips begin softly: they rise above the noise within 60 ms
    assert 300 <= truth.leading_silence_ms <= 360
    assert truth.threshold_dbov == pytest.approx(-40, abs=0.5)


def test_filler_is_speech_and_the_content_is_found_behind_it() -> None:
    config = AgentConfig(filler_probability=1, filler_gap_ms=(400, 400), leading_silence_ms=(100, 100))
    codec = CODECS["opus"]
    sound = prepare(config, plan_reply(config, 0, 0), "reply", codec, 20)
    departures = _sent(codec, sound.payloads)
    spoken = Spoken(0, "reply", 1, 2, 0, len(departures), content_start=sound.content_start)
    truth = truth_of(spoken, departures, codec)
    assert truth.leading_silence_ms == pytest.approx(100 + 6.5, abs=10)
    assert truth.content_left_ns is not None
    assert truth.left_ns is not None
    # filler (some 290 ms) and gap, in whole packets
    assert 650 * NS_PER_MS <= truth.content_left_ns - truth.left_ns <= 760 * NS_PER_MS


@pytest.mark.parametrize("codec_name", ["opus", "pcmu", "g722"])
def test_level_of_a_reply_is_that_of_its_active_speech(codec_name: str) -> None:
    codec = CODECS[codec_name]
    config = AgentConfig(reply_level_dbov=-30)
    sound = render(config, plan_greeting(config, 0), "greeting", codec)
    frames = np.square(sound.pcm[: len(sound.pcm) // 160 * 160]).reshape(-1, 160).mean(axis=1)
    active = frames[frames > frames.max() / 100]
    # other frames than the agent's own, hence the tolerance
    assert 10 * np.log10(active.mean()) == pytest.approx(-30, abs=1.5)


@pytest.mark.parametrize("codec_name", ["opus", "pcmu", "g722"])
@pytest.mark.parametrize("noise_dbov", [None, -50.0])
def test_stream_that_never_pauses_has_no_click_at_its_joins(codec_name: str, noise_dbov: float | None) -> None:
    config = AgentConfig(stream="continuous", comfort_noise_dbov=noise_dbov)
    codec = CODECS[codec_name]
    idle = idle_loop(config, codec, 20)
    sounds: list[Prepared] = [prepare(config, plan_reply(config, 0, i), "reply", codec, 20) for i in range(6)]
    payloads: list[bytes] = [idle[k % len(idle)] for k in range(150)]
    planned = []
    for sound in sounds:
        planned.append(len(payloads) * sound.frame_samples + sound.speech_start)
        payloads += [p for p in sound.payloads if p is not None]
        payloads += [idle[(len(payloads) + k) % len(idle)] for k in range(130)]
    departures = _sent(codec, payloads)
    stream = build_streams([Timed(d.packet.count, d.packet.rtp()) for d in departures], {96: codec})[0]
    track = LevelTrack(decode(stream).pcm, codec.rate_hz)
    settled = codec.rate_hz  # where noise begins, it is audible itself
    runs = [run for run in audible_runs(track, start=settled) if run.start > settled + codec.rate_hz // 20]
    assert len(runs) == len(sounds)
    for run, start in zip(runs, planned, strict=True):
        # within what an encoder smears, and a soft beginning hides
        assert abs(run.start - start) <= 0.06 * codec.rate_hz
    if noise_dbov is not None:
        quiet = np.sqrt(track.mean_square[1_000:2_900])
        assert np.median(quiet) == pytest.approx(from_dbov(noise_dbov), rel=0.35)  # Opus codes noise 2 dB too low
