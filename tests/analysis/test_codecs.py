"""Codecs against themselves: delay by correlation, durations from the RFCs' tables, losses and damage."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.signal import butter, correlate, sosfilt

from analysis.codecs import CODECS, Codec, Decoder, Encoder, encode, packet_samples
from analysis.units import dbov

PTIMES_MS = (10, 20, 40, 60)
NAMES = tuple(CODECS)


def band_noise(codec: Codec, samples: int, seed: int = 0) -> NDArray[np.float32]:
    """Noise below 3 kHz, which every codec here carries."""
    filter_ = butter(4, 3000, fs=codec.rate_hz, output="sos")
    return (0.1 * sosfilt(filter_, np.random.default_rng(seed).standard_normal(samples))).astype(np.float32)


def syllables(codec: Codec, samples: int) -> NDArray[np.float32]:
    """Something like speech: harmonics of a gliding pitch, in syllables."""
    t = np.arange(samples) / codec.rate_hz
    phase = 2 * np.pi * np.cumsum(110 + 30 * np.sin(2 * np.pi * 0.7 * t)) / codec.rate_hz
    voice = sum(np.sin(k * phase) / k for k in range(1, 20))
    return (0.1 * voice * (0.5 - 0.5 * np.cos(2 * np.pi * 3 * t))).astype(np.float32)


def decoded(codec: Codec, packets: tuple[bytes, ...]) -> list[NDArray[np.float32]]:
    decoder = Decoder(codec)
    out = []
    for packet in packets:
        pcm = decoder.decode(packet)
        assert pcm is not None
        out.append(pcm)
    return out


def same(a: NDArray[np.float32] | None, b: NDArray[np.float32] | None) -> bool:
    return a is not None and b is not None and np.array_equal(a, b)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("ptime_ms", PTIMES_MS)
class TestRoundTrip:
    def test_the_delay_is_the_lookahead(self, name: str, ptime_ms: int) -> None:
        codec = CODECS[name]
        sound = band_noise(codec, 2 * codec.rate_hz)
        out = np.concatenate(decoded(codec, encode(codec, sound, ptime_ms=ptime_ms)))
        match = correlate(out, sound, method="fft")
        delay = int(np.argmax(np.abs(match))) - (len(sound) - 1)
        # the encoder's filters are not linear phase: a sample or two of group delay
        assert delay == pytest.approx(codec.lookahead_samples, abs=2)
        assert match.max() > -match.min()  # and not turned upside down

    def test_every_packet_lasts_ptime(self, name: str, ptime_ms: int) -> None:
        codec = CODECS[name]
        frame = codec.rate_hz * ptime_ms // 1000
        packets = encode(codec, band_noise(codec, 7 * frame + 1), ptime_ms=ptime_ms)
        assert len(packets) == 8
        assert {packet_samples(codec, p) for p in packets} == {frame}
        assert {len(pcm) for pcm in decoded(codec, packets)} == {frame}
        assert {codec.ticks(packet_samples(codec, p)) for p in packets} == {codec.clock_rate_hz * ptime_ms // 1000}

    def test_the_level_is_kept(self, name: str, ptime_ms: int) -> None:
        codec = CODECS[name]
        sound = band_noise(codec, 2 * codec.rate_hz)
        out = np.concatenate(decoded(codec, encode(codec, sound, ptime_ms=ptime_ms)))
        begin = codec.rate_hz // 2
        kept_db = dbov(float(np.sqrt(np.mean(out[begin:] ** 2)))) - dbov(float(np.sqrt(np.mean(sound[begin:] ** 2))))
        # Opus spends 32 kbit/s on the peaks of a spectrum: of noise, it leaves up to a third of the power out
        assert kept_db == pytest.approx(0.0, abs=2.5 if name == "opus" else 0.2)

    def test_a_sample_travels_in_the_packet_that_the_lookahead_says(self, name: str, ptime_ms: int) -> None:
        codec = CODECS[name]
        frame = codec.rate_hz * ptime_ms // 1000
        for offset in (0, frame // 2, frame - codec.lookahead_samples - 3, frame - 1):
            onset = 4 * frame + max(offset, 0)
            sound = np.zeros(10 * frame, dtype=np.float32)
            sound[onset:] = 0.5 * np.sign(band_noise(codec, len(sound) - onset))
            loud = [float(np.abs(pcm).max()) for pcm in decoded(codec, encode(codec, sound, ptime_ms=ptime_ms))]
            expected = (onset + codec.lookahead_samples) // frame
            first = next(i for i, peak in enumerate(loud) if peak > 0.05)
            assert first in (expected, expected - 1)
            if first < expected:
                # what precedes is the codec's own pre-echo, not the sample itself
                assert loud[first] < 0.5 * loud[expected]


def test_a_frame_of_another_size_is_refused() -> None:
    with pytest.raises(ValueError, match=r"\(960,\)"):
        Encoder(CODECS["opus"]).encode(np.zeros(480, dtype=np.float32))


def test_full_scale_is_clipped_and_not_wrapped() -> None:
    codec = CODECS["pcmu"]
    for value in (1.0, 2.0, -1.0, -2.0):
        (packet,) = encode(codec, np.full(160, value, dtype=np.float32))
        (pcm,) = decoded(codec, (packet,))
        assert np.all(np.sign(pcm) == np.sign(value))
        assert np.all(np.abs(pcm) > 0.95)


def test_encoding_no_sound_gives_no_packets() -> None:
    assert encode(CODECS["opus"], np.zeros(0, dtype=np.float32)) == ()


class TestDurations:
    # RFC 6716 table 2, in 1/10 ms by configuration
    SILK = (100, 200, 400, 600)
    HYBRID = (100, 200)
    CELT = (25, 50, 100, 200)
    FRAMES = SILK * 3 + HYBRID * 2 + CELT * 4

    @pytest.mark.parametrize("configuration", range(32))
    def test_opus_by_its_first_byte(self, configuration: int) -> None:
        opus = CODECS["opus"]
        frame = self.FRAMES[configuration] * 48 // 10
        for stereo in (0, 4):
            toc = configuration << 3 | stereo
            assert packet_samples(opus, bytes([toc, 1, 2])) == frame
            for code in (1, 2):
                assert packet_samples(opus, bytes([toc | code, 1, 2])) == 2 * frame
            for count in range(64):
                expected = frame * count if frame * count <= 5760 else 0
                for flags in (0, 0x40, 0x80, 0xC0):  # padding, VBR
                    assert packet_samples(opus, bytes([toc | 3, flags | count])) == expected
            assert packet_samples(opus, bytes([toc | 3])) == 0

    def test_libopus_agrees(self) -> None:
        opus = CODECS["opus"]
        for configuration in range(32):
            for count in (1, 2, 3):
                if packet_samples(opus, payload := bytes([configuration << 3 | 3, count]) + bytes(10 * count)):
                    pcm = Decoder(opus).decode(payload)
                    assert pcm is not None
                    assert len(pcm) == packet_samples(opus, payload)

    @pytest.mark.parametrize("name", ["pcmu", "pcma"])
    def test_g711_has_a_byte_for_a_sample(self, name: str) -> None:
        codec = CODECS[name]
        assert [packet_samples(codec, bytes(n)) for n in (0, 1, 80, 160, 240)] == [0, 1, 80, 160, 240]
        assert codec.ticks(160) == 160

    def test_g722_has_two_samples_to_a_byte_and_a_clock_of_8_khz(self) -> None:
        # RFC 3551 section 4.5.2: 160 bytes are 20 ms, 320 samples of sound and 160 ticks
        codec = CODECS["g722"]
        assert packet_samples(codec, bytes(160)) == 320
        assert codec.ticks(320) == 160
        assert codec.samples(160) == 320

    @pytest.mark.parametrize("name", NAMES)
    def test_an_empty_payload_lasts_no_time(self, name: str) -> None:
        assert packet_samples(CODECS[name], b"") == 0


class TestLosses:
    @pytest.mark.parametrize("ptime_ms", [20, 60])
    def test_a_concealed_loss_leaves_the_decoder_closer_to_the_truth(self, ptime_ms: int) -> None:
        codec = CODECS["opus"]
        packets = encode(codec, syllables(codec, 4 * codec.rate_hz), ptime_ms=ptime_ms)
        whole = decoded(codec, packets)
        errors: dict[bool, list[float]] = {True: [], False: []}
        for lost in range(5, len(packets) - 1, 2):
            for conceals, found in errors.items():
                decoder = Decoder(codec)
                for packet in packets[:lost]:
                    decoder.decode(packet)
                if conceals:
                    decoder.conceal()
                after = decoder.decode(packets[lost + 1])
                assert after is not None
                found.append(float(np.mean((after - whole[lost + 1]) ** 2)))
        assert np.mean(errors[True]) < np.mean(errors[False])
        assert np.median(errors[True]) < np.median(errors[False])

    @pytest.mark.parametrize("ptime_ms", PTIMES_MS)
    def test_a_missing_packet_is_concealed_for_its_whole_length(
        self, ptime_ms: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        codec = CODECS["opus"]
        packets = encode(codec, syllables(codec, codec.rate_hz), ptime_ms=ptime_ms)
        decoder = Decoder(codec)
        lengths: list[int] = []
        decode = decoder._context.decode  # type: ignore[attr-defined]

        class Listening:
            @staticmethod
            def decode(packet: object) -> object:
                frames = decode(packet)
                lengths.append(sum(frame.samples for frame in frames))
                return frames

        monkeypatch.setattr(decoder, "_context", Listening)
        for packet in packets:
            decoder.decode(packet)
            decoder.conceal()
        assert set(lengths) == {48 * ptime_ms}
        assert len(lengths) == 2 * len(packets)

    @pytest.mark.parametrize("name", NAMES)
    def test_concealing_before_anything_came_does_nothing(self, name: str) -> None:
        codec = CODECS[name]
        packets = encode(codec, band_noise(codec, codec.rate_hz // 5))
        decoder = Decoder(codec)
        decoder.conceal()
        for packet, expected in zip(packets, decoded(codec, packets), strict=True):
            assert same(decoder.decode(packet), expected)

    def test_g711_has_no_state(self) -> None:
        codec = CODECS["pcma"]
        packets = encode(codec, band_noise(codec, codec.rate_hz))
        for (_, expected), packet in zip(pairwise(decoded(codec, packets)), packets[1:], strict=True):
            assert same(Decoder(codec).decode(packet), expected)


class TestDamage:
    @pytest.mark.parametrize(
        "payload",
        [
            b"",
            bytes([0x7B]),  # code 3 without its count
            bytes([0x7B, 0]),  # no frames
            bytes([0x7B, 7]),  # 140 ms
            bytes([0x79, 1, 2, 3]),  # two frames of equal size in an odd number of bytes
            bytes([0x7A, 252]),  # a length that is cut off
            bytes([0x7A, 200, 1]),  # a length beyond the end
            bytes([0x7B, 0x41, 255]),  # padding beyond the end
        ],
    )
    def test_a_malformed_opus_payload_gives_none(self, payload: bytes) -> None:
        codec = CODECS["opus"]
        packets = encode(codec, syllables(codec, codec.rate_hz // 5))
        decoder, untouched = Decoder(codec), Decoder(codec)
        for packet in packets[:5]:
            decoder.decode(packet)
            untouched.decode(packet)
        assert decoder.decode(payload) is None
        # and the stream goes on as if it had not been there
        assert same(decoder.decode(packets[5]), untouched.decode(packets[5]))

    @settings(deadline=None, max_examples=300)
    @given(
        name=st.sampled_from(NAMES),
        payloads=st.lists(st.one_of(st.none(), st.binary(max_size=200)), max_size=12),
    )
    def test_any_payload_is_sound_of_its_length_or_none(self, name: str, payloads: list[bytes | None]) -> None:
        codec = CODECS[name]
        decoder = Decoder(codec)
        for payload in payloads:
            if payload is None:
                decoder.conceal()
                continue
            pcm = decoder.decode(payload)
            if pcm is not None:
                assert pcm.dtype == np.float32
                assert pcm.shape == (packet_samples(codec, payload),)
                assert np.all(np.abs(pcm) <= 1.0)

    @settings(deadline=None, max_examples=100)
    @given(seed=st.integers(0, 1000), flips=st.lists(st.integers(0, 79), min_size=1, max_size=4))
    def test_damaged_packets_of_a_stream(self, seed: int, flips: list[int]) -> None:
        codec = CODECS["opus"]
        decoder = Decoder(codec)
        for packet in encode(codec, band_noise(codec, codec.rate_hz // 10, seed)):
            damaged = bytearray(packet)
            for flip in flips:
                damaged[flip % len(damaged)] ^= 1 << flip % 8
            pcm = decoder.decode(bytes(damaged))
            assert pcm is None or len(pcm) == packet_samples(codec, bytes(damaged))
