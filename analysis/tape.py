"""A recording of a call in, its channels out: any format, rate and length, memory flat.

Beyond some minutes the decoded samples lie in a temporary file and are read where they are needed.
"""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from typing import IO

import numpy as np
from numpy.typing import NDArray
from scipy.signal import correlate

from analysis.audiofile import decode_file, resample
from analysis.errors import AudioFileError, UsageError
from analysis.units import dbov

__all__ = [
    "Channel",
    "Tape",
    "gain_in",
    "open_pair",
    "open_tape",
    "peak_dbov",
    "same_sound",
    "silent",
]

IN_MEMORY_SAMPLES = 2**23  # of one channel, 32 MiB: three minutes at 48 kHz
MAX_CHANNELS = 16
MAX_SECONDS = 24 * 3600.0
BLOCK = 2**18  # samples read at once where all are looked at
LOUD_SECONDS = 5  # of a channel that are looked for on the other
LOUD_SHARE = 10 ** (-12.0 / 10)
ALIKE = 0.9
SAME_DB = 3.0  # there and back the gains of one and the same sound cancel


class Channel:
    """One channel's samples (float32, full scale 1.0), read by slices: `channel[a:b]`, `len(channel)`.

    Kept in memory up to 32 MiB, in an unnamed temporary file beyond, which goes with the object.
    """

    ndim = 1

    def __init__(self) -> None:
        self._blocks: list[NDArray[np.float32]] = []
        self._memory: NDArray[np.float32] | None = None
        self._file: IO[bytes] | None = None
        self._count = 0

    @classmethod
    def of(cls, samples: NDArray[np.floating]) -> Channel:
        """A channel that holds an array, shape (n,)."""
        channel = cls()
        channel.add(np.asarray(samples, dtype=np.float32))
        return channel

    def add(self, block: NDArray[np.float32]) -> None:
        """Append samples. Raises AudioFileError where a long recording finds no room on the disk."""
        self._count += len(block)
        self._memory = None
        if self._file is None:
            self._blocks.append(np.array(block, dtype=np.float32))
            if self._count <= IN_MEMORY_SAMPLES:
                return
            self._file = tempfile.TemporaryFile()  # noqa: SIM115 - it lives as long as the channel
            pending, self._blocks = self._blocks, []
        else:
            pending = [block]
        try:
            for part in pending:
                self._file.write(np.ascontiguousarray(part, dtype=np.float32).tobytes())
            self._file.flush()
        except OSError as exc:
            if exc.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
                raise
            raise AudioFileError(
                f"no room for its decoded sound in {tempfile.gettempdir()} ({exc.strerror})",
                next_step="free some space, or name another folder by TMPDIR",
            ) from exc

    @property
    def shape(self) -> tuple[int, ...]:
        return (self._count,)

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, where: slice, /) -> NDArray[np.float32]:
        start, stop, step = where.indices(self._count)
        if step != 1:
            raise ValueError("a channel is read in slices without a step")
        if self._file is None:
            if self._memory is None:
                self._memory = np.concatenate(self._blocks) if self._blocks else np.zeros(0, np.float32)
                self._blocks = [self._memory]
            return self._memory[start:stop]
        size = 4 * max(0, stop - start)
        data = bytearray()
        while len(data) < size:
            part = os.pread(self._file.fileno(), size - len(data), 4 * start + len(data))
            if not part:
                raise AudioFileError("the temporary file with its decoded sound was cut", next_step="run it again")
            data += part
        return np.frombuffer(data, dtype=np.float32)


class _ByChannel:
    """A store that keeps the channels of decoded blocks apart."""

    def __init__(self, channels: int) -> None:
        if channels > MAX_CHANNELS:
            raise AudioFileError(f"has {channels} channels", next_step=f"give a file of at most {MAX_CHANNELS}")
        self.channels = [Channel() for _ in range(channels)]

    def add(self, block: NDArray[np.float32]) -> None:
        for number, channel in enumerate(self.channels):
            channel.add(block[:, number])


@dataclass(frozen=True, slots=True, eq=False)
class Tape:
    """A recording: its channels (all of one length) at `rate_hz`, where it came from, and what was odd about it."""

    channels: tuple[Channel, ...]
    rate_hz: int
    name: str
    warnings: tuple[str, ...] = ()

    @property
    def duration_s(self) -> float:
        """Length in seconds."""
        return len(self.channels[0]) / self.rate_hz


def open_tape(path: str | os.PathLike[str]) -> Tape:
    """Decode a recording.

    Parameters
    ----------
    path : path-like
        Whatever libsndfile or FFmpeg opens; 8 kHz and more, up to 24 h. Truncated files are read to their end.

    Raises
    ------
    AudioFileError
        If it is missing, no sound file, empty, too long, or its samples are no sound; the message names it.
    """
    store, rate_hz, warnings = decode_file(path, _ByChannel)
    tape = Tape(tuple(store.channels), rate_hz, os.fspath(path), warnings)
    if tape.duration_s > MAX_SECONDS:
        raise AudioFileError(f"{path}: is {tape.duration_s / 3600:.1f} h long", next_step="cut it into shorter files")
    return tape


def open_pair(caller: str | os.PathLike[str], agent: str | os.PathLike[str]) -> Tape:
    """Two recordings of one channel each, which began at the same moment, as one: the caller's first.

    The longer rate is kept, the other resampled; the shorter file is followed by digital silence, and both are said.

    Raises
    ------
    AudioFileError, UsageError
        As `open_tape`; if one has more than one channel.
    """
    tapes = [open_tape(path) for path in (caller, agent)]
    for tape in tapes:
        if len(tape.channels) != 1:
            raise UsageError(
                f"{tape.name}: has {len(tape.channels)} channels, and a pair is of two mono files",
                next_step="give it alone, with --caller-channel and --agent-channel",
            )
    warnings = [f"{tape.name}: {warning}" for tape in tapes for warning in tape.warnings]
    rate_hz = max(tape.rate_hz for tape in tapes)
    channels = [_at_rate(tape, rate_hz) for tape in tapes]
    if tapes[0].rate_hz != tapes[1].rate_hz:
        warnings.append(f"the files have {tapes[0].rate_hz} and {tapes[1].rate_hz} Hz: resampled to {rate_hz} Hz")
    lengths = [len(channel) for channel in channels]
    if abs(lengths[0] - lengths[1]) > rate_hz // 100:
        shorter = tapes[int(np.argmin(lengths))].name
        warnings.append(
            f"{shorter} is {abs(lengths[0] - lengths[1]) / rate_hz:.3f} s shorter; both are taken to begin together"
        )
    for channel, length in zip(channels, lengths, strict=True):
        for at in range(length, max(lengths), BLOCK):
            channel.add(np.zeros(min(BLOCK, max(lengths) - at), np.float32))
    return Tape(tuple(channels), rate_hz, f"{tapes[0].name}, {tapes[1].name}", tuple(warnings))


def _at_rate(tape: Tape, rate_hz: int) -> Channel:
    """The only channel of a tape at another rate."""
    channel = tape.channels[0]
    if tape.rate_hz == rate_hz:
        return channel
    return Channel.of(resample(channel[:], tape.rate_hz, rate_hz))


def peak_dbov(channel: Channel) -> float:
    """The highest magnitude in a channel; −inf where all of it is digital silence."""
    peaks = [float(np.abs(channel[at : at + BLOCK]).max()) for at in range(0, len(channel), BLOCK)]
    return dbov(max(peaks, default=0.0))


def gain_in(one: Channel, other: Channel, rate_hz: int) -> float | None:
    """How loud what sounds on `one` is on `other` (amplitude, signed; up to 0.5 s earlier or later); None: it is not.

    The loudest seconds of `one` are looked for; it is there where most of them are, alike to 0.9.
    """
    looked = _loudest(one, rate_hz)
    found = [gain for at in looked if (gain := _gain_at(one, other, at, rate_hz)) is not None]
    return float(np.median(found)) if found and 2 * len(found) > len(looked) else None


def _loudest(channel: Channel, rate_hz: int) -> list[int]:
    """Where its loudest seconds begin; what is 12 dB softer than the loudest is not among them."""
    energy = [
        float(np.square(channel[at : at + rate_hz], dtype=np.float64).sum())
        for at in range(0, max(1, len(channel) - rate_hz + 1), rate_hz)
    ]
    best = np.argsort(energy)[::-1][:LOUD_SECONDS]
    return [int(i) * rate_hz for i in best if energy[i] > 0 and energy[i] >= energy[best[0]] * LOUD_SHARE]


def _gain_at(one: Channel, other: Channel, at: int, rate_hz: int) -> float | None:
    reach = rate_hz // 2
    x = one[at : at + rate_hz].astype(np.float64)
    begin = max(0, at - reach)
    y = other[begin : at + len(x) + reach].astype(np.float64)
    if len(y) < len(x):
        return None
    products = correlate(y, x, mode="valid", method="fft")
    energy = np.concatenate(([0.0], np.cumsum(np.square(y))))
    there = energy[len(x) :] - energy[: -len(x)]
    own = float(x @ x)
    alike = np.abs(products) / np.sqrt(np.maximum(there * own, 1e-30))
    best = int(np.argmax(alike))
    return float(products[best] / own) if alike[best] >= ALIKE else None


def same_sound(there: float | None, back: float | None) -> bool:
    """Whether two channels hold the same, by the gains of each in the other (`gain_in`): one undoes the other."""
    return there is not None and back is not None and abs(dbov(abs(there * back))) <= SAME_DB


def silent(channels: Sequence[Channel]) -> list[int]:
    """Numbers of the channels in which no sample differs from zero."""
    return [number for number, channel in enumerate(channels) if peak_dbov(channel) == float("-inf")]
