"""When the agent hears the caller begin and end: real utterances, real codecs, noise, pauses of the sender, clicks."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from numpy.typing import NDArray

from analysis.audiofile import resample
from analysis.codecs import CODECS, encode
from analysis.rtp import RtpPacket
from analysis.units import NS_PER_MS, from_dbov
from probe.agent.hearing import CallerHearing
from probe.utterances import shipped

FRAME_NS = 20 * NS_PER_MS


def _noise(samples: int, level_dbov: float) -> NDArray[np.float32]:
    rng = np.random.default_rng(5)
    return (rng.standard_normal(samples) * from_dbov(level_dbov)).astype(np.float32)


def _hear(payloads: list[bytes | None], codec_name: str = "opus") -> list[tuple[float, float]]:
    """Voiced stretches in ms; packet k arrives at (k + 1)·20 ms, None is not sent."""
    hearing = CallerHearing({96: CODECS[codec_name]})
    codec = CODECS[codec_name]
    heard = []
    sequence = 65_500
    for k, payload in enumerate(payloads):
        if payload is None:
            continue
        timestamp = k * codec.clock_rate_hz // 50
        found = hearing.add((k + 1) * FRAME_NS, RtpPacket(96, sequence & 0xFFFF, timestamp, 1, payload))
        sequence += 1
        if found is not None:
            heard.append((found[0] / NS_PER_MS, found[1] / NS_PER_MS))
    return heard


def _with_speech(name: str, codec_name: str, noise_dbov: float | None) -> tuple[list[bytes | None], float, float]:
    """2 s of background, an utterance, 2 s of background; and when it is audible in the decode (ms)."""
    codec, clip = CODECS[codec_name], shipped(name)
    speech = resample(clip.samples, 48_000, codec.rate_hz)
    pcm = np.concatenate((np.zeros(2 * codec.rate_hz), speech, np.zeros(2 * codec.rate_hz))).astype(np.float32)
    if noise_dbov is not None:
        pcm += _noise(len(pcm), noise_dbov)
    ahead_ms = codec.lookahead_samples * 1000 / codec.rate_hz
    begin, end = 2_000 + clip.start_sample / 48 + ahead_ms, 2_000 + clip.end_sample / 48 + ahead_ms
    return list(encode(codec, pcm)), begin, end


@pytest.mark.parametrize("codec_name", ["opus", "pcmu", "g722"])
@pytest.mark.parametrize("noise_dbov", [None, -65.0])
@pytest.mark.parametrize("name", ["en/1", "zh/2", "hi/3"])
def test_an_utterance_is_heard_from_its_beginning_to_its_end(
    name: str, codec_name: str, noise_dbov: float | None
) -> None:
    payloads, begin, end = _with_speech(name, codec_name, noise_dbov)
    heard = _hear(payloads, codec_name)
    # a frame of 5 ms, and words that end softly: the agent's threshold of −45 dBov lies above that of the rule, −60
    assert -5 <= heard[0][0] - begin <= 10
    assert -15 <= heard[-1][1] - end <= 5
    assert all(b[0] - a[1] < 300 for a, b in pairwise(heard))


def test_the_end_does_not_hang_on_the_noise_of_a_quiet_headset() -> None:
    quiet = _hear(_with_speech("en/1", "opus", None)[0])[-1][1]
    noisy = _hear(_with_speech("en/1", "opus", -65.0)[0])[-1][1]
    assert noisy == pytest.approx(quiet, abs=10.1)  # two 5 ms frames of a soft ending


def test_noise_alone_is_no_voice_however_loud_once_it_is_known() -> None:
    codec = CODECS["opus"]
    for level_dbov in (-65.0, -50.0, -38.0):
        heard = _hear(list(encode(codec, _noise(6 * 48_000, level_dbov))))
        assert not [stretch for stretch in heard if stretch[0] > 4_000], f"{level_dbov} dBov"


def test_a_click_is_no_utterance() -> None:
    pcm = np.zeros(96_000, dtype=np.float32)
    pcm[48_000:48_480] = 0.5
    assert _hear(list(encode(CODECS["pcmu"], pcm[::6].copy())), "pcmu") == []


def test_packets_that_are_not_sent_are_silence() -> None:
    payloads, begin, end = _with_speech("en/1", "opus", None)
    whole = _hear(payloads)
    first, last = int(begin // 20) - 3, int(end // 20) + 4
    dtx = [payload if first <= k <= last else None for k, payload in enumerate(payloads)]
    heard = _hear(dtx)
    assert heard[0][0] == pytest.approx(whole[0][0], abs=5.1)
    assert heard[-1][1] == pytest.approx(whole[-1][1], abs=5.1)


def test_duplicates_late_packets_and_other_payload_types_change_nothing() -> None:
    payloads, _, _ = _with_speech("en/1", "opus", -65.0)
    whole = _hear(payloads)
    hearing = CallerHearing({96: CODECS["opus"]})
    heard = []
    for k, payload in enumerate(payloads):
        assert payload is not None
        packet = RtpPacket(96, k, k * 960, 1, payload)
        found = hearing.add((k + 1) * FRAME_NS, packet)
        heard += [found] if found is not None else []
        assert hearing.add((k + 1) * FRAME_NS, packet) is None
        assert hearing.add((k + 1) * FRAME_NS, RtpPacket(13, k, k * 960, 1, b"\x40")) is None
        if k > 5:
            assert hearing.add((k + 1) * FRAME_NS, RtpPacket(96, k - 5, (k - 5) * 960, 1, payload)) is None
    assert [(b / NS_PER_MS, e / NS_PER_MS) for b, e in heard] == whole


def test_damaged_payloads_are_passed_over() -> None:
    hearing = CallerHearing({96: CODECS["opus"]})
    for k, payload in enumerate((b"", b"\xff", b"\x03", bytes(3))):
        hearing.add(k * FRAME_NS, RtpPacket(96, k, k * 960, 1, payload))
