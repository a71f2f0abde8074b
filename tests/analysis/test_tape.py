"""Recordings opened: their channels to the sample, however long, and what is odd about them said."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import soundfile
from numpy.typing import NDArray

from analysis import tape
from analysis.errors import AudioFileError, UsageError
from analysis.layouts import channels_of_layout
from analysis.tape import Channel, gain_in, open_pair, open_tape, peak_dbov, same_sound, silent


def sound(frames: int, channels: int = 2, seed: int = 0) -> NDArray[np.float32]:
    """Noise at -20 dBov, on the grid of 16 bits."""
    x = np.random.default_rng(seed).standard_normal((frames, channels)) * 0.1
    return (np.round(np.clip(x, -1, 0.99) * 32768) / 32768).astype(np.float32)


def wav(path: Path, x: NDArray[np.float32], rate_hz: int = 8000) -> Path:
    soundfile.write(path, x, rate_hz, subtype="PCM_16")
    return path


@pytest.fixture(params=[2**23, 1000], ids=["memory", "file"])
def kept(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both ways of keeping samples."""
    monkeypatch.setattr(tape, "IN_MEMORY_SAMPLES", request.param)


@pytest.mark.usefixtures("kept")
class TestChannel:
    def test_slices_are_the_samples(self) -> None:
        x = sound(5000, 1)[:, 0]
        channel = Channel()
        for at in range(0, 5000, 700):
            channel.add(x[at : at + 700])
            assert (channel[max(0, at - 10) : at + 20] == x[max(0, at - 10) : min(at + 20, at + 700)]).all()
        assert len(channel) == 5000
        assert channel.shape == (5000,)
        for start, stop in ((0, 5000), (4990, 9000), (-10, 5000), (300, 200), (6000, 7000)):
            assert (channel[start:stop] == x[start:stop]).all()
            assert channel[start:stop].dtype == np.float32

    def test_steps_are_refused(self) -> None:
        with pytest.raises(ValueError, match="step"):
            Channel.of(sound(10, 1)[:, 0])[::2]


@pytest.mark.usefixtures("kept")
class TestOpen:
    @pytest.mark.parametrize("channels", [1, 2, 4])
    def test_channels_apart(self, tmp_path: Path, channels: int) -> None:
        x = sound(20_000, channels)
        opened = open_tape(wav(tmp_path / "x.wav", x, 44_100))
        assert opened.rate_hz == 44_100
        assert opened.duration_s == pytest.approx(20_000 / 44_100)
        assert [len(c) for c in opened.channels] == [20_000] * channels
        for number, channel in enumerate(opened.channels):
            assert (channel[0:20_000] == x[:, number]).all()

    def test_a_cut_file_is_read_to_its_end(self, tmp_path: Path) -> None:
        path = wav(tmp_path / "x.wav", sound(20_000))
        path.write_bytes(path.read_bytes()[: 44 + 4 * 12_345 + 3])
        opened = open_tape(path)
        assert len(opened.channels[0]) == 12_345
        assert any("cut off" in warning for warning in opened.warnings)

    def test_what_is_no_recording(self, tmp_path: Path) -> None:
        path = tmp_path / "x.wav"
        path.write_bytes(b"RIFF0000WAVEnothing")
        with pytest.raises(AudioFileError, match=r"x\.wav"):
            open_tape(path)
        with pytest.raises(AudioFileError, match="17 channels"):
            open_tape(wav(tmp_path / "y.wav", sound(100, 17)))

    def test_too_long(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(tape, "MAX_SECONDS", 2.0)
        with pytest.raises(AudioFileError, match="h long"):
            open_tape(wav(tmp_path / "x.wav", sound(20_000)))


@pytest.mark.usefixtures("kept")
class TestPair:
    def test_two_files_begin_together(self, tmp_path: Path) -> None:
        a, b = sound(20_000, 1), sound(16_000, 1, seed=1)
        pair = open_pair(wav(tmp_path / "a.wav", a), wav(tmp_path / "b.wav", b))
        assert [len(c) for c in pair.channels] == [20_000, 20_000]
        assert (pair.channels[0][0:20_000] == a[:, 0]).all()
        assert (pair.channels[1][0:16_000] == b[:, 0]).all()
        assert not pair.channels[1][16_000:20_000].any()
        assert any("0.500 s shorter" in warning for warning in pair.warnings)

    def test_the_higher_rate_is_kept(self, tmp_path: Path) -> None:
        t = np.arange(48_000) / 48_000
        tone = (0.1 * np.sin(2 * np.pi * 440 * t)).astype(np.float32)
        pair = open_pair(wav(tmp_path / "a.wav", tone[::6, None]), wav(tmp_path / "b.wav", tone[:, None], 48_000))
        assert pair.rate_hz == 48_000
        assert any("resampled to 48000" in warning for warning in pair.warnings)
        # away from the edges, where the filter has nothing to go by: 16 bits and the filter's own ripple
        assert np.abs(pair.channels[0][4800:43_000] - tone[4800:43_000]).max() < 1e-3

    def test_stereo_is_no_half_of_a_pair(self, tmp_path: Path) -> None:
        with pytest.raises(UsageError, match="2 channels"):
            open_pair(wav(tmp_path / "a.wav", sound(100)), wav(tmp_path / "b.wav", sound(100, 1)))


def alike(one: Channel, other: Channel) -> bool:
    return same_sound(gain_in(one, other, 8000), gain_in(other, one, 8000))


class TestLook:
    def test_layouts(self) -> None:
        assert channels_of_layout("livekit") == (1, 0)
        assert {channels_of_layout(name) for name in ("twilio", "vapi", "retell", "pipecat")} == {(0, 1)}
        with pytest.raises(UsageError, match="zoom"):
            channels_of_layout("zoom")

    @pytest.mark.parametrize("gain", [1.0, 0.5, -0.9])
    @pytest.mark.parametrize("later", [0, 80])
    def test_the_same_whatever_gain_polarity_and_delay(self, gain: float, later: int) -> None:
        x = np.concatenate([sound(8000, 1, seed=k)[:, 0] * (0.0 if k % 2 else 1.0) for k in range(6)])
        moved = gain * np.concatenate([np.zeros(later), x])[: len(x)] + sound(len(x), 1, seed=9)[:, 0] * 1e-2
        assert alike(Channel.of(x), Channel.of(moved))
        assert gain_in(Channel.of(x), Channel.of(moved), 8000) == pytest.approx(gain, abs=0.01)

    def test_bleed_and_others_are_not_the_same(self) -> None:
        caller = np.concatenate([sound(8000, 1)[:, 0], np.zeros(8000), sound(8000, 1, seed=2)[:, 0], np.zeros(8000)])
        agent = np.concatenate([np.zeros(8000), sound(8000, 1, seed=1)[:, 0], np.zeros(16_000)])
        one, other = Channel.of(caller), Channel.of(agent + 0.1 * caller)
        assert not alike(one, other)
        assert gain_in(one, other, 8000) == pytest.approx(0.1, abs=0.001)
        assert gain_in(one, Channel.of(agent), 8000) is None

    def test_empty_and_loud(self) -> None:
        x = sound(8000)
        one, other, nothing = Channel.of(x[:, 0]), Channel.of(x[:, 1]), Channel.of(np.zeros(8000))
        assert not alike(one, other)
        assert not alike(one, nothing)
        assert silent([one, nothing, other]) == [1]
        assert peak_dbov(Channel.of(np.array([0.0, -0.5]))) == pytest.approx(-6.02, abs=0.01)
