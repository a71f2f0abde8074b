"""The live ear: when a sound began, packet by packet."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from analysis.codecs import CODECS, Codec, encode
from analysis.rtp import RtpPacket
from analysis.units import from_dbov
from probe.hearing import MAX_DECODERS, LiveHearing

OPUS, PCMU = CODECS["opus"], CODECS["pcmu"]
TYPES = {111: OPUS, 0: PCMU}
MS = 1_000_000


def noise(codec: Codec, ms: float, level_dbov: float, seed: int = 0) -> NDArray[np.float64]:
    samples = round(codec.rate_hz * ms / 1000)
    return np.random.default_rng(seed).standard_normal(samples) * from_dbov(level_dbov)


def silence(codec: Codec, ms: float) -> NDArray[np.float64]:
    return np.zeros(round(codec.rate_hz * ms / 1000))


def hear(codec: Codec, *parts: NDArray[np.float64], ptime_ms: int = 20) -> LiveHearing:
    """Play parts to an ear, from time 0, each packet as it is due."""
    ear = LiveHearing(TYPES)
    payload_type = next(number for number, known in TYPES.items() if known is codec)
    sound = np.concatenate(parts).astype(np.float32)
    for i, payload in enumerate(encode(codec, sound, ptime_ms=ptime_ms)):
        ear.add(i * ptime_ms * MS, RtpPacket(payload_type, i & 0xFFFF, 0, 7, payload))
    return ear


class TestOnset:
    def test_nothing_was_heard(self) -> None:
        ear = LiveHearing(TYPES)
        assert (ear.onset_ns, ear.audible_until_ns, ear.quiet_for(10**12)) == (None, None, None)
        ear = hear(PCMU, silence(PCMU, 2000))
        assert (ear.onset_ns, ear.audible_until_ns, ear.quiet_for(10**12)) == (None, None, None)

    @pytest.mark.parametrize("codec", [OPUS, PCMU])
    def test_sound_out_of_silence(self, codec: Codec) -> None:
        ear = hear(codec, silence(codec, 1000), noise(codec, 500, -20.0), silence(codec, 1000))
        assert ear.onset_ns == 1000 * MS
        # Opus rings on for a packet
        assert ear.audible_until_ns is not None
        assert 1500 * MS <= ear.audible_until_ns <= 1540 * MS

    @pytest.mark.parametrize("codec", [OPUS, PCMU])
    def test_speech_over_comfort_noise(self, codec: Codec) -> None:
        comfort = noise(codec, 4000, -50.0)
        speech = noise(codec, 500, -20.0, seed=1)
        ear = hear(codec, comfort, speech, noise(codec, 1000, -50.0, seed=2))
        assert ear.onset_ns == 4000 * MS
        assert ear.audible_until_ns is not None
        assert 4500 * MS <= ear.audible_until_ns <= 4540 * MS

    def test_quiet_noise_is_not_heard(self) -> None:
        assert hear(PCMU, noise(PCMU, 3000, -68.0)).onset_ns is None

    def test_quiet_for(self) -> None:
        ear = hear(PCMU, silence(PCMU, 1000), noise(PCMU, 100, -20.0), silence(PCMU, 400))
        assert ear.quiet_for(1100 * MS) == 0
        assert ear.quiet_for(1000 * MS) == 0  # not negative while it sounds
        assert ear.quiet_for(1500 * MS) == 400 * MS


class TestClicks:
    @pytest.mark.parametrize("ptime_ms", [20, 40, 60])
    @pytest.mark.parametrize("click_ms", [1, 5, 10])
    def test_a_click_is_ignored(self, ptime_ms: int, click_ms: int) -> None:
        ear = hear(PCMU, silence(PCMU, 1200), noise(PCMU, click_ms, -10.0), silence(PCMU, 988), ptime_ms=ptime_ms)
        assert ear.onset_ns is None
        assert ear.audible_until_ns is None

    def test_two_clicks_are_no_sound_either(self) -> None:
        click = noise(PCMU, 5, -10.0)
        ear = hear(PCMU, silence(PCMU, 1200), click, silence(PCMU, 95), click, silence(PCMU, 500))
        assert ear.onset_ns is None

    def test_a_click_does_not_hide_the_sound_after_it(self) -> None:
        ear = hear(
            PCMU, silence(PCMU, 1000), noise(PCMU, 5, -10.0), silence(PCMU, 995), noise(PCMU, 300, -20.0, seed=1)
        )
        assert ear.onset_ns == 2000 * MS

    def test_a_click_does_not_end_the_quiet_after_a_sound(self) -> None:
        ear = hear(
            PCMU,
            silence(PCMU, 400),
            noise(PCMU, 200, -20.0),
            silence(PCMU, 600),
            noise(PCMU, 5, -10.0),
            silence(PCMU, 395),
        )
        assert ear.onset_ns == 400 * MS
        assert ear.audible_until_ns == 600 * MS


class TestGaps:
    @pytest.mark.parametrize(("gap_ms", "again"), [(60, False), (180, False), (200, False), (220, True), (1000, True)])
    def test_a_gap_of_200_ms_does_not_end_a_sound(self, gap_ms: int, again: bool) -> None:
        loud = noise(PCMU, 300, -20.0)
        ear = hear(PCMU, silence(PCMU, 1000), loud, silence(PCMU, gap_ms), loud, silence(PCMU, 100))
        assert ear.onset_ns == ((1300 + gap_ms) * MS if again else 1000 * MS)
        assert ear.audible_until_ns == (1600 + gap_ms) * MS

    def test_packets_that_arrive_in_a_burst(self) -> None:
        # 200 ms of sound arrives at once after a stall: it is heard from the first packet on
        ear = LiveHearing(TYPES)
        for i, payload in enumerate(encode(PCMU, noise(PCMU, 200, -20.0).astype(np.float32))):
            ear.add(500 * MS + i, RtpPacket(0, i, 0, 7, payload))
        assert ear.onset_ns == 500 * MS


class TestOddPackets:
    def test_undecodable_and_foreign_payloads_are_ignored(self) -> None:
        ear = hear(OPUS, silence(OPUS, 1000), noise(OPUS, 200, -20.0))
        before = ear.onset_ns, ear.audible_until_ns
        for payload in (b"", bytes([0x7B]), bytes([0x7B, 0]), bytes([0x79, 1, 2, 3])):
            ear.add(5000 * MS, RtpPacket(111, 0, 0, 7, payload))
        ear.add(5000 * MS, RtpPacket(101, 0, 0, 7, bytes(range(4))))
        assert (ear.onset_ns, ear.audible_until_ns) == before

    @pytest.mark.parametrize("payload", [b"\x80", b"\x80" * 39, bytes([0x80, 1, 2]), bytes([0x88, 1, 2])])
    def test_packets_shorter_than_a_window(self, payload: bytes) -> None:
        # one sample of G.711, or 2.5 and 5 ms of Opus
        ear = LiveHearing(TYPES)
        for i in range(30):
            ear.add(i * MS, RtpPacket(0, i, 0, 7, payload))
            ear.add(i * MS, RtpPacket(111, i, 0, 8, payload))

    def test_any_number_of_streams_costs_no_more_than_some(self) -> None:
        ear = LiveHearing(TYPES)
        loud = encode(PCMU, noise(PCMU, 20, -20.0).astype(np.float32))[0]
        for ssrc in range(3 * MAX_DECODERS):
            ear.add(ssrc * 20 * MS, RtpPacket(0, 0, 0, ssrc, loud))
        assert len(ear._decoders) == MAX_DECODERS
        assert ear.onset_ns == 0

    @settings(deadline=None, max_examples=100)
    @given(
        st.lists(
            st.tuples(st.sampled_from([0, 111, 13]), st.integers(0, 3), st.binary(max_size=60), st.integers(0, 10**10)),
            max_size=40,
        )
    )
    def test_any_packets(self, parts: list[tuple[int, int, bytes, int]]) -> None:
        ear = LiveHearing(TYPES)
        for i, (payload_type, ssrc, payload, arrival_ns) in enumerate(parts):
            ear.add(arrival_ns, RtpPacket(payload_type, i, 0, ssrc, payload))
        assert (ear.onset_ns is None) == (ear.audible_until_ns is None)


class TestWhatComesBeforeTheWords:
    @pytest.mark.parametrize("gap_ms", [120, 180, 400])
    def test_a_residue_is_not_their_beginning(self, gap_ms: int) -> None:
        residue = noise(PCMU, 10, -30.0)
        words = noise(PCMU, 600, -20.0, seed=1)
        ear = hear(PCMU, silence(PCMU, 1000), residue, silence(PCMU, gap_ms - 10), words, silence(PCMU, 500))
        assert ear.onset_ns == (1000 + gap_ms) * MS

    def test_how_long_it_lasted_tells_a_filler_from_words(self) -> None:
        filler, words = noise(PCMU, 240, -20.0), noise(PCMU, 600, -20.0, seed=1)
        assert hear(PCMU, silence(PCMU, 1000), filler, silence(PCMU, 400)).lasted_ns == 240 * MS
        ear = hear(PCMU, silence(PCMU, 1000), filler, silence(PCMU, 400), words, silence(PCMU, 400))
        assert ear.lasted_ns == 600 * MS
        assert hear(PCMU, silence(PCMU, 1000)).lasted_ns == 0
