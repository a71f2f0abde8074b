"""A sound file of any usual kind in, its samples (float32, full scale 1.0) at their own rate out; and resampling.

Source: RIFF/WAVE (Microsoft, 1994; RF64: EBU Tech 3306) for the lengths in the header, which streaming writers leave at
0 or 0xFFFFFFFF and cut files contradict. libsndfile decodes; FFmpeg (PyAV) decodes what libsndfile refuses.
"""

from __future__ import annotations

import io
import os
import stat
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import av
import numpy as np
import soundfile
import soxr
from numpy.typing import NDArray

from analysis.audibility import LevelTrack, first_audible
from analysis.errors import AudioFileError

__all__ = ["Channels", "Sound", "load_channels", "load_sound", "resample"]

MIN_RATE_HZ = 8000
MAX_RATE_HZ = 384_000
MAX_SAMPLES = 2**29  # of all channels: 2 GiB as float32, about three hours of mono at 48 kHz
BLOCK_SAMPLES = 2**18  # of all channels, per read: a header's own claims never decide what is allocated
ABSURD_PEAK = 100.0  # +40 dBov: integers written as floats, not loud floats
OPEN_ENDED_BYTES = 0x7FFFF000  # lengths from here on are what writers to a pipe put where they know none
MAX_CHUNKS = 1000  # of a RIFF file that are looked at
CHECK_S = 60  # stretches in which something audible is looked for

# FFmpeg also opens playlists, which open other files and addresses; only these containers are let in.
AV_FORMATS = (
    "aac,ac3,aiff,amr,ape,asf,au,caf,flac,gsm,matroska,webm,mov,mp4,m4a,3gp,3g2,mj2,mp3,mpegts,ogg,tta,w64,wav,wv"
)
INTEGER_SCALE = {"u8": 2.0**7, "s16": 2.0**15, "s32": 2.0**31, "s64": 2.0**63}  # full scale of FFmpeg's formats
NEXT_STEP = "give a WAV, FLAC, Ogg, MP3 or M4A file"


@dataclass(frozen=True, slots=True, eq=False)
class Sound:
    """A sound file as one channel: `samples` float32, shape (n,), at `rate_hz`; `channels` is the file's own number."""

    samples: NDArray[np.float32]
    rate_hz: int
    channels: int
    warnings: tuple[str, ...] = ()

    @property
    def duration_s(self) -> float:
        """Length in seconds."""
        return len(self.samples) / self.rate_hz


@dataclass(frozen=True, slots=True, eq=False)
class Channels:
    """A sound file with its channels apart: `samples` float32, shape (frames, channels), at `rate_hz`."""

    samples: NDArray[np.float32]
    rate_hz: int
    warnings: tuple[str, ...] = ()


def load_sound(path: str | os.PathLike[str]) -> Sound:
    """Read a sound file and mix it to one channel (the mean of its channels, with a warning).

    Parameters
    ----------
    path : path-like
        WAV (PCM, float, µ-law, A-law, ADPCM; any header that leaves the samples recognisable), FLAC, Ogg, MP3, M4A …

    Returns
    -------
    Sound
        float32, full scale 1.0, at the file's own rate. What is odd about the file but can be used is a warning.

    Raises
    ------
    AudioFileError
        If the file is missing, no sound file, empty, nowhere audible, holds NaN or infinite samples, or has a rate
        below 8000 Hz or above 384 kHz. The message names the file and the next step.
    """
    whole = load_channels(path)
    count = whole.samples.shape[1]
    if count == 1:
        mono, warnings = whole.samples[:, 0], whole.warnings
    else:
        mono = whole.samples.mean(axis=1, dtype=np.float64).astype(np.float32)
        warnings = (*whole.warnings, f"{count} channels were mixed to one")
    if not _is_audible(mono, whole.rate_hz):
        if any(_is_audible(whole.samples[:, i], whole.rate_hz) for i in range(count)):
            raise AudioFileError(f"{path}: its channels cancel each other when mixed", next_step="give one channel")
        raise AudioFileError(
            f"{path}: nothing in it is audible (−60 dBov for 24 of 30 ms)",
            next_step="check that the right file was given",
        )
    return Sound(np.ascontiguousarray(mono), whole.rate_hz, count, warnings)


def load_channels(path: str | os.PathLike[str]) -> Channels:
    """Read a sound file with its channels apart; as `load_sound`, but silence is no error here.

    Raises
    ------
    AudioFileError
        As `load_sound`, except for a file in which nothing is audible.
    """
    path = Path(path)
    size = _size_of(path)
    try:
        with path.open("rb") as file:
            samples, rate_hz, warnings = _decode(path, file, size)
    except OSError as exc:
        raise AudioFileError(f"{path}: {exc.strerror or 'cannot be read'}", next_step="check the file") from exc
    if not len(samples):
        raise AudioFileError(f"{path}: holds no samples", next_step=NEXT_STEP)
    _check_rate(path, rate_hz)
    peak = float(np.abs(samples).max())
    if not np.isfinite(peak):
        raise AudioFileError(f"{path}: holds samples that are not numbers", next_step="export it again as 16 bit PCM")
    if peak > ABSURD_PEAK:
        raise AudioFileError(
            f"{path}: its samples reach {peak:.3g} times full scale", next_step="export it again with full scale 1.0"
        )
    if peak > 1.0:
        warnings.append(f"samples reach {peak:.3f} times full scale")
    return Channels(samples, rate_hz, tuple(warnings))


def resample(samples: NDArray[np.floating], rate_from: int, rate_to: int) -> NDArray[np.float32]:
    """Samples at another rate, each at its own time: sample 0 stays at time 0 (soxr VHQ, linear phase, no delay).

    Parameters
    ----------
    samples : ndarray, shape (n,) or (n, channels), float
        Full scale 1.0.
    rate_from, rate_to : int
        Hz, both positive.

    Returns
    -------
    ndarray of float32
        round(n · rate_to / rate_from) samples; peaks may pass full scale where the input's were close to it.

    Raises
    ------
    ValueError
        If a rate is not positive.
    """
    if rate_from <= 0 or rate_to <= 0:
        raise ValueError(f"rates must be positive, got {rate_from} and {rate_to}")
    if rate_from == rate_to or not len(samples):
        return np.array(samples, dtype=np.float32)
    wanted = (2 * len(samples) * rate_to + rate_from) // (2 * rate_from)
    # float64 inside: the result then does not hang on the order in which a machine adds float32
    out = soxr.resample(samples.astype(np.float64), rate_from, rate_to, quality=soxr.VHQ)[:wanted]
    if len(out) < wanted:
        out = np.concatenate([out, np.zeros((wanted - len(out), *out.shape[1:]))])
    return np.asarray(out, dtype=np.float32)


def _check_rate(path: Path, rate_hz: int) -> None:
    if not MIN_RATE_HZ <= rate_hz <= MAX_RATE_HZ:
        raise AudioFileError(
            f"{path}: a sampling rate of {rate_hz} Hz cannot be used (8000 to {MAX_RATE_HZ} Hz can)",
            next_step="convert it to 48000 Hz",
        )


def _is_audible(mono: NDArray[np.float32], rate_hz: int) -> bool:
    step, overlap = CHECK_S * rate_hz, rate_hz
    return any(
        first_audible(LevelTrack(mono[at : at + step + overlap], rate_hz)) is not None
        for at in range(0, len(mono), step)
    )


def _size_of(path: Path) -> int:
    try:
        status = path.stat()
    except (OSError, ValueError) as exc:
        reason = getattr(exc, "strerror", None) or "not a usable file name"
        raise AudioFileError(f"{path}: {reason}", next_step="check the path") from exc
    if stat.S_ISDIR(status.st_mode):
        raise AudioFileError(f"{path}: is a directory", next_step="give a sound file in it")
    if not stat.S_ISREG(status.st_mode):  # a pipe or a device may never end
        raise AudioFileError(f"{path}: is not a regular file", next_step="store the sound in a file first")
    if status.st_size == 0:
        raise AudioFileError(f"{path}: is empty (0 bytes)", next_step=NEXT_STEP)
    return status.st_size


def _decode(path: Path, file: IO[bytes], size: int) -> tuple[NDArray[np.float32], int, list[str]]:
    patches, warnings = _examine(path, file, size)
    try:
        return _by_soundfile(path, _Patched(file, patches), warnings)
    except (soundfile.SoundFileError, RuntimeError, ValueError, TypeError) as refusal:
        file.seek(0)
        try:
            return _by_av(path, _Patched(file, patches), warnings)
        except (av.FFmpegError, ValueError, TypeError, IndexError) as exc:
            raise AudioFileError(
                f"{path}: is not a sound file that can be read ({_reason(refusal)})", next_step=NEXT_STEP
            ) from exc


def _reason(exc: Exception) -> str:
    """The library's own words, without the part that names its arguments."""
    text = getattr(exc, "error_string", None) or str(exc)
    return text.strip().rstrip(".") or type(exc).__name__


def _by_soundfile(path: Path, file: _Patched, warnings: list[str]) -> tuple[NDArray[np.float32], int, list[str]]:
    warnings = list(warnings)
    with soundfile.SoundFile(file) as sound:
        declared, rate_hz = sound.frames, int(sound.samplerate)
        blocks = _Blocks(path, sound.channels)
        try:
            while blocks.add(sound.read(blocks.frames, dtype="float32", always_2d=True)):
                pass
        except soundfile.SoundFileError:
            if not blocks.count:
                raise
            warnings[:] = warnings or ["the file is damaged or cut off: read as far as it goes"]
    if blocks.count < declared < 2**62 and not warnings:
        warnings.append(f"the file is cut off: {blocks.count} of {declared} sample frames were read")
    return blocks.whole(), rate_hz, warnings


def _by_av(path: Path, file: _Patched, warnings: list[str]) -> tuple[NDArray[np.float32], int, list[str]]:
    warnings = list(warnings)
    options = {"format_whitelist": AV_FORMATS, "protocol_whitelist": "none"}
    blocks, rate_hz = None, 0
    with av.open(file, mode="r", options=options) as container:
        streams = container.streams.audio
        if not streams:
            raise AudioFileError(f"{path}: holds no sound", next_step=NEXT_STEP)
        if len(streams) > 1:
            warnings.append(f"the file holds {len(streams)} sound tracks: the first was read")
        try:
            for frame in container.decode(streams[0]):
                block = _samples_of(frame)
                if blocks is None:
                    blocks, rate_hz = _Blocks(path, block.shape[1]), frame.sample_rate
                if frame.sample_rate != rate_hz or block.shape[1] != blocks.channels:
                    raise AudioFileError(f"{path}: changes its rate or its channels midway", next_step=NEXT_STEP)
                blocks.add(block)
        except av.FFmpegError:
            if blocks is None:
                raise
            if not warnings:
                warnings.append("the file is damaged or cut off: read as far as it goes")
    return (np.zeros((0, 1), np.float32) if blocks is None else blocks.whole()), rate_hz, warnings


def _samples_of(frame: av.AudioFrame) -> NDArray[np.float32]:
    """A decoded frame as (frames, channels), full scale 1.0."""
    kind = frame.format.name.removesuffix("p")
    values = frame.to_ndarray()
    values = values.T if frame.format.is_planar else values.reshape(-1, len(frame.layout.channels))
    if kind in INTEGER_SCALE:
        offset = INTEGER_SCALE[kind] if kind == "u8" else 0.0
        return np.asarray((values - np.float64(offset)) / INTEGER_SCALE[kind], dtype=np.float32)
    return np.asarray(values, dtype=np.float32)


class _Blocks:
    """What was decoded so far, with a limit on how much that may be."""

    def __init__(self, path: Path, channels: int) -> None:
        self.path, self.channels = path, channels
        self.frames = max(1, BLOCK_SAMPLES // max(1, channels))
        self.count = 0
        self._blocks: list[NDArray[np.float32]] = []

    def add(self, block: NDArray[np.float32]) -> bool:
        """Keep a block; False if it is empty."""
        self.count += len(block)
        if self.count * self.channels > MAX_SAMPLES:
            raise AudioFileError(
                f"{self.path}: is longer than can be read at once", next_step="cut it into shorter files"
            )
        self._blocks.append(block)
        return len(block) > 0

    def whole(self) -> NDArray[np.float32]:
        """All blocks, shape (frames, channels)."""
        return np.concatenate(self._blocks) if self._blocks else np.zeros((0, self.channels), np.float32)


class _Patched:
    """A file to read from, some bytes of which are replaced on the way (the lengths in a header)."""

    def __init__(self, file: IO[bytes], patches: list[tuple[int, bytes]]) -> None:
        self._file, self._patches = file, patches

    def read(self, size: int = -1) -> bytes:
        at = self._file.tell()
        data = bytearray(self._file.read(size))
        for offset, value in self._patches:
            for i, byte in enumerate(value, offset - at):
                if 0 <= i < len(data):
                    data[i] = byte
        return bytes(data)

    def readinto(self, buffer: Any) -> int:
        data = self.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        return self._file.seek(offset, whence)

    def tell(self) -> int:
        return self._file.tell()


def _examine(path: Path, file: IO[bytes], size: int) -> tuple[list[tuple[int, bytes]], list[str]]:
    """Compare the lengths in a header with the file: what to replace (offset, bytes), and one warning at most."""
    head = file.read(12)
    patches: list[tuple[int, bytes]] = []
    warning = None
    if head[:4] in (b"RIFF", b"RF64") and head[8:] == b"WAVE":
        patches, warning = _examine_wave(path, file, head, size)
    elif head[:4] == b"FORM" and head[8:] in (b"AIFF", b"AIFC"):
        at = next((at for name, at, length in _chunks(file, size, ">") if name == b"SSND" and at + length > size), None)
        warning = None if at is None else "the file is cut off: read to its end"
    elif head[:4] == b"OggS":
        file.seek(max(0, size - 2**17))
        tail = file.read()
        last = tail.rfind(b"OggS")
        if 0 <= last < len(tail) - 5 and not tail[last + 5] & 4:  # RFC 3533: the last page says that it is the last
            warning = "the file is cut off: read to its end"
    file.seek(0)
    return patches, [] if warning is None else [warning]


def _examine_wave(path: Path, file: IO[bytes], head: bytes, size: int) -> tuple[list[tuple[int, bytes]], str | None]:
    patches: list[tuple[int, bytes]] = []
    warning = None
    if head[:4] == b"RIFF" and struct.unpack("<I", head[4:8])[0] in (0, 0xFFFFFFFF):
        patches.append((4, struct.pack("<I", min(size - 8, 0xFFFFFFFE))))
        warning = "the header gives no length: read to the file's end"
    long_length_at = None
    for name, at, length in _chunks(file, size, "<"):
        if name == b"fmt " and 16 <= length <= size - at:
            _check_rate(path, struct.unpack("<I", file.read(8)[4:])[0])
        if name == b"ds64" and head[:4] == b"RF64":
            long_length_at = at + 8
        if name != b"data":
            continue
        there = size - at
        claimed = length
        if long_length_at is not None and length == 0xFFFFFFFF:
            file.seek(long_length_at)
            claimed = struct.unpack("<Q", file.read(8).ljust(8, b"\0"))[0]
        if claimed > there or (claimed == 0 and not _is_whole_chunks(file, at, size)):
            if claimed == 0 or claimed >= OPEN_ENDED_BYTES:
                warning = "the header gives no length: read to the file's end"
            else:
                warning = f"the file is cut off: {there} of {claimed} bytes of sound are there"
            if long_length_at is not None:
                patches.append((long_length_at, struct.pack("<Q", there)))
            else:
                patches.append((at - 4, struct.pack("<I", min(there, 0xFFFFFFFE))))
        break
    return patches, warning


def _chunks(file: IO[bytes], size: int, order: str, at: int = 12) -> Iterator[tuple[bytes, int, int]]:
    """Name, offset of the content and claimed length of each chunk from `at` on."""
    for _ in range(MAX_CHUNKS):
        file.seek(at)
        head = file.read(8)
        if len(head) < 8:
            return
        length = struct.unpack(f"{order}I", head[4:])[0]
        yield head[:4], at + 8, length
        at += 8 + length + (length & 1)  # chunks are padded to even lengths
        if at > size:
            return


def _is_whole_chunks(file: IO[bytes], at: int, size: int) -> bool:
    """True if from `at` on there is nothing, or nothing but chunks that end where the file does."""
    end = at
    for name, begin, length in _chunks(file, size, "<", at):
        if not all(32 <= byte < 127 for byte in name):
            return False
        end = begin + length
    return size - end in (0, 1) and end <= size
