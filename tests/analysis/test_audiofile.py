"""Sound files with the headers that exist in the wild, written byte by byte here."""

from __future__ import annotations

import io
import os
import struct
from pathlib import Path

import av
import numpy as np
import pytest
import soundfile
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from analysis.audiofile import load_channels, load_sound, resample
from analysis.errors import AudioFileError

RATE = 48000
# one LSB of 16 bit; a float32 holds every value of 16 and 24 bit exactly
LSB_16 = 2.0**-15


def tone(n: int = 24000, rate_hz: int = RATE, frequency_hz: float = 440.0, amplitude: float = 0.3) -> np.ndarray:
    return amplitude * np.sin(2 * np.pi * frequency_hz * np.arange(n) / rate_hz)


def int16(x: np.ndarray) -> bytes:
    return np.round(x * 32767).astype("<i2").tobytes()


def wav(
    data: bytes,
    *,
    tag: int = 1,
    channels: int = 1,
    rate_hz: int = RATE,
    bits: int = 16,
    extra: bytes = b"",
    before: bytes = b"",
    after: bytes = b"",
    riff_size: int | None = None,
    data_size: int | None = None,
) -> bytes:
    align = channels * bits // 8
    fmt = struct.pack("<HHIIHH", tag, channels, rate_hz, (rate_hz * align) & 0xFFFFFFFF, align & 0xFFFF, bits) + extra
    body = b"WAVE" + struct.pack("<4sI", b"fmt ", len(fmt)) + fmt + before
    body += struct.pack("<4sI", b"data", len(data) if data_size is None else data_size) + data + after
    return b"RIFF" + struct.pack("<I", len(body) if riff_size is None else riff_size) + body


def extensible(sub_tag: int, bits: int, mask: int = 0) -> bytes:
    guid = struct.pack("<H", sub_tag) + bytes.fromhex("000000001000800000aa00389b71")
    return struct.pack("<HHI", 22, bits, mask) + guid


def stored(tmp_path: Path, data: bytes, name: str = "sound.wav") -> Path:
    path = tmp_path / name
    path.write_bytes(data)
    return path


def mulaw_encode(x: np.ndarray) -> bytes:
    """ITU-T G.711 µ-law, by its segments: the encoder under test's decoder is libsndfile's."""
    pcm = np.round(x * 32767).astype(int)
    magnitude = np.minimum(np.abs(pcm), 32635) + 132
    exponent = np.floor(np.log2(magnitude)).astype(int) - 7
    mantissa = (magnitude >> (exponent + 3)) & 0x0F
    return (~(np.where(pcm < 0, 0x80, 0) | (exponent << 4) | mantissa) & 0xFF).astype(np.uint8).tobytes()


def test_pcm_16_bit_is_read_exactly(tmp_path: Path) -> None:
    x = tone()
    sound = load_sound(stored(tmp_path, wav(int16(x))))
    assert (sound.rate_hz, sound.channels, sound.warnings) == (RATE, 1, ())
    assert sound.samples.dtype == np.float32
    assert sound.samples.shape == (24000,)
    assert sound.duration_s == 0.5
    np.testing.assert_array_equal(sound.samples, np.round(x * 32767).astype(np.float32) / 32768)


@pytest.mark.parametrize("extra", [b"", b"\0\0"], ids=["fmt-16", "fmt-18"])
def test_mulaw_8_khz(tmp_path: Path, extra: bytes) -> None:
    x = tone(8000, 8000)
    sound = load_sound(stored(tmp_path, wav(mulaw_encode(x), tag=7, rate_hz=8000, bits=8, extra=extra)))
    assert (sound.rate_hz, len(sound.samples), sound.warnings) == (8000, 8000, ())
    # the widest µ-law step at 0.3 of full scale is 512/32768, the error half of it
    assert np.abs(sound.samples - x).max() < 0.01


def test_mulaw_in_an_extensible_header(tmp_path: Path) -> None:
    x = tone(8000, 8000)
    data = wav(mulaw_encode(x), tag=65534, rate_hz=8000, bits=8, extra=extensible(7, 8))
    assert np.abs(load_sound(stored(tmp_path, data)).samples - x).max() < 0.01


def test_alaw(tmp_path: Path) -> None:
    x = tone(8000, 8000)
    path = tmp_path / "a.wav"
    soundfile.write(path, x, 8000, subtype="ALAW")
    assert np.abs(load_sound(path).samples - x).max() < 0.01


def test_24_bit(tmp_path: Path) -> None:
    x = tone()
    values = np.round(x * (2**23 - 1)).astype("<i4")
    packed = values[:, None].view(np.uint8).reshape(-1, 4)[:, :3].tobytes()
    sound = load_sound(stored(tmp_path, wav(packed, bits=24)))
    np.testing.assert_array_equal(sound.samples, (values / 2**23).astype(np.float32))


def test_32_bit_float(tmp_path: Path) -> None:
    x = tone().astype("<f4")
    sound = load_sound(stored(tmp_path, wav(x.tobytes(), tag=3, bits=32)))
    np.testing.assert_array_equal(sound.samples, x)


def test_tag_65534(tmp_path: Path) -> None:
    x = tone().astype("<f4")
    data = wav(x.tobytes(), tag=65534, bits=32, extra=extensible(3, 32, mask=4))
    np.testing.assert_array_equal(load_sound(stored(tmp_path, data)).samples, x)


LIST = b"LIST" + struct.pack("<I", 26) + b"INFOISFT" + struct.pack("<I", 14) + b"Lavf60.3.100\0\0"


@pytest.mark.parametrize(
    "sizes",
    [
        (0, 0),
        (0xFFFFFFFF, 0xFFFFFFFF),
        (None, 0),
        (None, 0xFFFFFFFF),
        (0, None),
        (0xFFFFFFFF, None),
        (None, 0x7FFFFFFF),
    ],
    ids=str,
)
@pytest.mark.parametrize("before", [b"", LIST], ids=["plain", "LIST-first"])
def test_lengths_of_a_header_that_was_never_closed(
    tmp_path: Path, sizes: tuple[int | None, int | None], before: bytes
) -> None:
    data = wav(int16(tone()), riff_size=sizes[0], data_size=sizes[1], before=before)
    sound = load_sound(stored(tmp_path, data))
    np.testing.assert_array_equal(sound.samples, np.frombuffer(int16(tone()), "<i2") / np.float32(32768))
    assert sound.warnings == ("the header gives no length: read to the file's end",)


def test_rf64_that_was_never_closed(tmp_path: Path) -> None:
    plain = wav(int16(tone()), data_size=0xFFFFFFFF)
    data = b"RF64\xff\xff\xff\xffWAVEds64" + struct.pack("<IQQQI", 28, 0, 0, 0, 0) + plain[12:]
    sound = load_sound(stored(tmp_path, data))
    assert len(sound.samples) == 24000
    assert len(sound.warnings) == 1


def test_wav_cut_off_in_its_data(tmp_path: Path) -> None:
    sound = load_sound(stored(tmp_path, wav(int16(tone()))[:-20001]))
    assert len(sound.samples) == 24000 - 10001  # the half sample goes
    assert sound.warnings == ("the file is cut off: 27999 of 48000 bytes of sound are there",)


@pytest.mark.parametrize(
    ("form", "subtype"), [("FLAC", "PCM_16"), ("OGG", "VORBIS"), ("MP3", "MPEG_LAYER_III"), ("AIFF", "PCM_16")]
)
def test_other_formats_whole_and_cut_off(tmp_path: Path, form: str, subtype: str) -> None:
    buffer = io.BytesIO()
    noise = 0.05 * np.random.default_rng(1).standard_normal(96000)
    soundfile.write(buffer, tone(96000) + noise, RATE, format=form, subtype=subtype)
    whole = load_sound(stored(tmp_path, buffer.getvalue(), "whole"))
    assert (len(whole.samples), whole.warnings) == (96000, ())
    cut = load_sound(stored(tmp_path, buffer.getvalue()[: len(buffer.getvalue()) * 2 // 3], "cut"))
    # two thirds of the bytes are about two thirds of the sound; a frame or a page is lost at the cut
    assert 40000 < len(cut.samples) < 70000
    assert len(cut.warnings) == 1
    assert "cut off" in cut.warnings[0]
    np.testing.assert_array_equal(cut.samples[:30000], whole.samples[:30000])


@pytest.mark.parametrize(("container", "codec"), [("mp4", "aac"), ("mp4", "alac"), ("webm", "libopus"), ("mp3", "mp3")])
def test_formats_of_phones_and_browsers(tmp_path: Path, container: str, codec: str) -> None:
    x = tone(96000)
    path = tmp_path / f"sound.{container}"
    with av.open(str(path), "w", format=container) as out:
        stream = out.add_stream(codec, rate=RATE, layout="mono")
        frame = av.AudioFrame.from_ndarray(np.round(x * 32767).astype("<i2")[None, :], format="s16", layout="mono")
        frame.sample_rate = RATE
        for packet in [*stream.encode(frame), *stream.encode(None)]:
            out.mux(packet)
    sound = load_sound(path)
    # an AAC decoder hands out its priming (1024 samples) and fills its last frame
    assert 0 <= len(sound.samples) - 96000 <= 2048
    # full scale is 1.0 whatever the decoder's own format: the RMS of the tone's middle; LAME scales by 0.95
    rms = np.sqrt(np.mean(sound.samples[20000:70000].astype(float) ** 2))
    assert rms == pytest.approx(0.3 / np.sqrt(2), rel=0.06)


def test_channels_are_mixed_with_a_warning_or_kept_apart(tmp_path: Path) -> None:
    left, right = tone(frequency_hz=300), tone(frequency_hz=1000, amplitude=0.1)
    path = stored(tmp_path, wav(int16(np.stack([left, right], axis=1).ravel()), channels=2))
    sound = load_sound(path)
    assert sound.channels == 2
    assert sound.warnings == ("2 channels were mixed to one",)
    np.testing.assert_allclose(sound.samples, (left + right) / 2, atol=2 * LSB_16)
    apart = load_channels(path)
    assert apart.samples.shape == (24000, 2)
    np.testing.assert_allclose(apart.samples[:, 1], right, atol=2 * LSB_16)


def test_channels_that_cancel_are_said(tmp_path: Path) -> None:
    x = tone()
    path = stored(tmp_path, wav(int16(np.stack([x, -x], axis=1).ravel()), channels=2))
    with pytest.raises(AudioFileError, match="cancel"):
        load_sound(path)


REFUSED = {
    "text": (b"hello, this is text\n" * 50, "not a sound file"),
    "empty-file": (b"", "0 bytes"),
    "empty-data": (wav(b""), "no samples"),
    "empty-data-then-LIST": (wav(b"", after=LIST), "no samples"),
    "silence": (wav(bytes(48000)), "audible"),
    "below-audibility": (wav(int16(tone(amplitude=0.0005))), "audible"),
    "nan": (wav(np.full(9600, np.nan, "<f4").tobytes(), tag=3, bits=32), "not numbers"),
    "inf": (wav(np.append(tone(), np.inf).astype("<f4").tobytes(), tag=3, bits=32), "not numbers"),
    "integers-as-float": (wav((tone() * 32767).astype("<f4").tobytes(), tag=3, bits=32), "times full scale"),
    "rate-0": (wav(int16(tone()), rate_hz=0), "sampling rate of 0 Hz"),
    "rate-4000": (wav(int16(tone()), rate_hz=4000), "sampling rate of 4000 Hz"),
    "rate-4G": (wav(int16(tone()), rate_hz=0xFFFFFFFF), "sampling rate of 4294967295 Hz"),
    "no-channels": (wav(int16(tone()), channels=0), "not a sound file"),
    "65535-channels": (wav(int16(tone()), channels=65535), "not a sound file"),
    "unknown-codec": (wav(int16(tone()), tag=0x7777), "not a sound file"),
    "header-only": (wav(int16(tone()))[:30], "not a sound file"),
    "playlist": (b"#EXTM3U\n#EXT-X-TARGETDURATION:9\n#EXTINF:9,\nother.wav\n#EXT-X-ENDLIST\n", "not a sound file"),
}


@pytest.mark.parametrize(("data", "words"), REFUSED.values(), ids=REFUSED.keys())
def test_refusals_name_the_file_and_the_next_step(tmp_path: Path, data: bytes, words: str) -> None:
    path = stored(tmp_path, data)
    with pytest.raises(AudioFileError, match=words) as caught:
        load_sound(path)
    assert str(path) in caught.value.line()
    assert caught.value.next_step
    assert "\n" not in caught.value.line()


def test_a_list_of_other_files_opens_none_of_them(tmp_path: Path) -> None:
    stored(tmp_path, wav(int16(tone())), "other.wav")
    path = stored(tmp_path, b"ffconcat version 1.0\nfile other.wav\n", "list.wav")
    with pytest.raises(AudioFileError, match="not a sound file"):
        load_sound(path)


def test_missing_directory_and_pipe(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for path, words in ((tmp_path / "none.wav", "No such file"), (tmp_path, "directory"), (pipe, "not a regular file")):
        with pytest.raises(AudioFileError, match=words) as caught:
            load_sound(path)
        assert str(path) in caught.value.line()
    with pytest.raises(AudioFileError, match="file name"):
        load_sound("a\0b.wav")


def test_silence_is_no_error_where_channels_are_kept_apart(tmp_path: Path) -> None:
    assert load_channels(stored(tmp_path, wav(bytes(9600)))).samples.shape == (4800, 1)


def test_samples_above_full_scale_are_kept_with_a_warning(tmp_path: Path) -> None:
    x = tone(amplitude=1.5).astype("<f4")
    sound = load_sound(stored(tmp_path, wav(x.tobytes(), tag=3, bits=32)))
    np.testing.assert_array_equal(sound.samples, x)
    assert "1.5" in sound.warnings[0]


BASE = wav(int16(tone(2000)), before=LIST)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    changes=st.lists(st.tuples(st.integers(0, 119), st.integers(0, 255)), max_size=6),
    cut=st.integers(0, len(BASE)),
    inserted=st.binary(max_size=12),
    at=st.integers(0, 120),
)
def test_mutated_bytes_give_a_sound_or_one_clear_error(
    tmp_path: Path, changes: list[tuple[int, int]], cut: int, inserted: bytes, at: int
) -> None:
    data = bytearray(BASE)
    for offset, value in changes:
        data[offset] = value
    data = (data[:at] + inserted + data[at:])[: max(1, cut)]
    path = stored(tmp_path, bytes(data))
    try:
        sound = load_sound(path)
    except AudioFileError:  # anything else fails the test
        return
    # what comes out can only be what was in the file
    assert 0 < len(sound.samples) * sound.channels <= 8 * len(data)
    assert np.isfinite(sound.samples).all()
    assert 8000 <= sound.rate_hz <= 384000


@pytest.mark.parametrize(("rate_from", "rate_to"), [(8000, 48000), (44100, 48000), (22050, 48000), (48000, 8000)])
def test_resampling_keeps_time_to_well_under_a_sample(rate_from: int, rate_to: int) -> None:
    n = rate_from // 2 + 7
    x = tone(n, rate_from, 700.0)
    y = resample(x, rate_from, rate_to)
    assert y.dtype == np.float32
    assert len(y) == round(n * rate_to / rate_from)
    inside = slice(rate_to // 20, len(y) - rate_to // 20)  # the filter rings where the tone is switched
    # 0.01 of a sample at the higher rate of this tone is 0.01·2π·700/8000·0.3 at most
    np.testing.assert_allclose(y[inside], tone(len(y), rate_to, 700.0)[inside], atol=1e-4)


def test_resampling_keeps_a_click_where_it_was() -> None:
    x = np.zeros(8000)
    x[4000] = 0.5
    assert int(np.argmax(np.abs(resample(x, 8000, 48000)))) == 24000


def test_resampling_to_the_same_rate_copies() -> None:
    x = tone(100).astype(np.float32)
    y = resample(x, RATE, RATE)
    y[0] = 1.0
    assert x[0] == 0.0
    with pytest.raises(ValueError, match="positive"):
        resample(x, 0, RATE)
