"""A sound file of any usual kind in, its samples (float32, full scale 1.0) at their own rate out; and resampling.

libsndfile decodes; FFmpeg (PyAV) decodes what libsndfile refuses. Headers that lie: analysis.soundheader.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Generic, Protocol, TypeVar

import av
import numpy as np
import soundfile
import soxr
from numpy.typing import NDArray

from analysis.audibility import LevelTrack, first_audible
from analysis.errors import AudioFileError
from analysis.soundheader import Patched, check_rate, examine

__all__ = ["Channels", "Sound", "Store", "decode_file", "load_channels", "load_sound", "resample"]

MAX_SAMPLES = 2**29  # of all channels: 2 GiB as float32, about three hours of mono at 48 kHz
BLOCK_SAMPLES = 2**18  # of all channels, per read: a header's own claims never decide what is allocated
ABSURD_PEAK = 100.0  # +40 dBov: integers written as floats, not loud floats
CHECK_S = 60  # stretches in which something audible is looked for

# FFmpeg also opens playlists, which open other files and addresses; only these containers are let in.
AV_FORMATS = (
    "aac,ac3,aiff,amr,ape,asf,au,caf,flac,gsm,matroska,webm,mov,mp4,m4a,3gp,3g2,mj2,mp3,mpegts,ogg,tta,w64,wav,wv"
)
INTEGER_SCALE = {"u8": 2.0**7, "s16": 2.0**15, "s32": 2.0**31, "s64": 2.0**63}  # full scale of FFmpeg's formats
NEXT_STEP = "give a WAV, FLAC, Ogg, MP3 or M4A file"


class Store(Protocol):
    """Where decoded blocks go."""

    def add(self, block: NDArray[np.float32]) -> None:
        """Take the next block, shape (frames, channels). Raises OSError, or AudioFileError where it is too much."""
        ...


S = TypeVar("S", bound=Store)


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
    blocks, rate_hz, warnings = decode_file(path, _Whole)
    return Channels(blocks.whole(), rate_hz, warnings)


def decode_file(path: str | os.PathLike[str], store: Callable[[int], S]) -> tuple[S, int, tuple[str, ...]]:
    """Decode a sound file, block by block, into what `store` makes for its number of channels.

    Returns
    -------
    tuple
        The store, the rate (Hz) and warnings. At least one frame was added to the store.

    Raises
    ------
    AudioFileError
        As `load_channels`; the store may then hold a part.
    """
    path = Path(path)
    size = _size_of(path)
    try:
        with path.open("rb") as file:
            blocks, rate_hz, warnings = _decode(path, file, size, store)
    except OSError as exc:
        raise AudioFileError(f"{path}: {exc.strerror or 'cannot be read'}", next_step="check the file") from exc
    if blocks is None or not blocks.count:
        raise AudioFileError(f"{path}: holds no samples", next_step=NEXT_STEP)
    check_rate(path, rate_hz)
    if not np.isfinite(blocks.peak):
        raise AudioFileError(f"{path}: holds samples that are not numbers", next_step="export it again as 16 bit PCM")
    if blocks.peak > ABSURD_PEAK:
        raise AudioFileError(
            f"{path}: its samples reach {blocks.peak:.3g} times full scale",
            next_step="export it again with full scale 1.0",
        )
    if blocks.peak > 1.0:
        warnings.append(f"samples reach {blocks.peak:.3f} times full scale")
    return blocks.store, rate_hz, tuple(warnings)


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


def _decode(
    path: Path, file: IO[bytes], size: int, store: Callable[[int], S]
) -> tuple[_Blocks[S] | None, int, list[str]]:
    patches, warnings = examine(path, file, size)
    try:
        return _by_soundfile(path, Patched(file, patches), warnings, store)
    except (soundfile.SoundFileError, RuntimeError, ValueError, TypeError) as refusal:
        file.seek(0)
        try:
            return _by_av(path, Patched(file, patches), warnings, store)
        except (av.FFmpegError, ValueError, TypeError, IndexError) as exc:
            raise AudioFileError(
                f"{path}: is not a sound file that can be read ({_reason(refusal)})", next_step=NEXT_STEP
            ) from exc


def _reason(exc: Exception) -> str:
    """The library's own words, without the part that names its arguments."""
    text = getattr(exc, "error_string", None) or str(exc)
    return text.strip().rstrip(".") or type(exc).__name__


def _by_soundfile(
    path: Path, file: Patched, warnings: list[str], store: Callable[[int], S]
) -> tuple[_Blocks[S], int, list[str]]:
    warnings = list(warnings)
    with soundfile.SoundFile(file) as sound:
        declared, rate_hz = sound.frames, int(sound.samplerate)
        blocks = _Blocks(path, store(sound.channels), sound.channels)
        try:
            while blocks.add(sound.read(blocks.frames, dtype="float32", always_2d=True)):
                pass
        except soundfile.SoundFileError:
            if not blocks.count:
                raise
            warnings[:] = warnings or ["the file is damaged or cut off: read as far as it goes"]
    if blocks.count < declared < 2**62 and not warnings:
        warnings.append(f"the file is cut off: {blocks.count} of {declared} sample frames were read")
    return blocks, rate_hz, warnings


def _by_av(
    path: Path, file: Patched, warnings: list[str], store: Callable[[int], S]
) -> tuple[_Blocks[S] | None, int, list[str]]:
    warnings = list(warnings)
    options = {"format_whitelist": AV_FORMATS, "protocol_whitelist": "none"}
    blocks: _Blocks[S] | None = None
    rate_hz = 0
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
                    blocks, rate_hz = _Blocks(path, store(block.shape[1]), block.shape[1]), frame.sample_rate
                if frame.sample_rate != rate_hz or block.shape[1] != blocks.channels:
                    raise AudioFileError(f"{path}: changes its rate or its channels midway", next_step=NEXT_STEP)
                blocks.add(block)
        except av.FFmpegError:
            if blocks is None:
                raise
            if not warnings:
                warnings.append("the file is damaged or cut off: read as far as it goes")
    return blocks, rate_hz, warnings


def _samples_of(frame: av.AudioFrame) -> NDArray[np.float32]:
    """A decoded frame as (frames, channels), full scale 1.0."""
    kind = frame.format.name.removesuffix("p")
    values = frame.to_ndarray()
    values = values.T if frame.format.is_planar else values.reshape(-1, len(frame.layout.channels))
    if kind in INTEGER_SCALE:
        offset = INTEGER_SCALE[kind] if kind == "u8" else 0.0
        return np.asarray((values - np.float64(offset)) / INTEGER_SCALE[kind], dtype=np.float32)
    return np.asarray(values, dtype=np.float32)


class _Whole:
    """All blocks in memory, with a limit on how much that may be."""

    def __init__(self, channels: int) -> None:
        self._channels, self._samples = channels, 0
        self._blocks: list[NDArray[np.float32]] = []

    def add(self, block: NDArray[np.float32]) -> None:
        self._samples += block.size
        if self._samples > MAX_SAMPLES:
            raise AudioFileError("is longer than can be read at once", next_step="cut it into shorter files")
        self._blocks.append(block)

    def whole(self) -> NDArray[np.float32]:
        """Shape (frames, channels)."""
        return np.concatenate(self._blocks) if self._blocks else np.zeros((0, self._channels), np.float32)


class _Blocks(Generic[S]):
    """What was decoded so far: how much, and how loud."""

    def __init__(self, path: Path, store: S, channels: int) -> None:
        self.path, self.store, self.channels = path, store, channels
        self.frames = max(1, BLOCK_SAMPLES // max(1, channels))
        self.count = 0
        self.peak = 0.0

    def add(self, block: NDArray[np.float32]) -> bool:
        """Keep a block; False if it is empty."""
        if not len(block):
            return False
        self.count += len(block)
        self.peak = max(self.peak, float(np.abs(block).max()), key=lambda level: (not np.isfinite(level), level))
        try:
            self.store.add(block)
        except AudioFileError as exc:
            raise AudioFileError(f"{self.path}: {exc.message}", next_step=exc.next_step) from exc
        return True
