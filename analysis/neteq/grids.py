"""The packets of a trace in, what NetEQ plays of them on several tick grids out.

All grids go forward together, some seconds of packets at a time, so that the sound of the packets need not be there all
at once: a window of it serves them all.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from analysis.neteq.delay import HISTORY_MS
from analysis.neteq.engine import NEEDS_ROOM, PIECES_A_TICK, advance, start
from analysis.neteq.state import PACKET, SNAPSHOT, STATE, Audio
from analysis.trace import PacketTrace

__all__ = ["Played", "play_on_grids"]

WINDOW_S = 5  # of sound
AUDIO_S = 2
DTX_BYTES = 2  # an Opus packet of so few bytes carries no sound

Played = tuple[NDArray[np.int64], NDArray[Any]]  # pieces and snapshots, as in `analysis.neteq.state`


def play_on_grids(trace: PacketTrace, first_ticks_ns: Sequence[int]) -> list[Played]:
    """Play a trace of at least one packet once for each time of a first tick."""
    packets, sound_of = _packets(trace)
    window = _Window(trace.sounds(), sound_of)
    grids = [_Grid(trace, first_ns) for first_ns in first_ticks_ns]
    begin = 0
    for stop in _stops(packets["samples"], WINDOW_S * trace.rate_hz):
        waiting = {index for grid in grids for index in grid.waiting()}
        pcm = window.load(packets, waiting, begin, stop)
        for grid in grids:
            grid.run(packets, stop, pcm)
        begin = stop
    return [grid.played() for grid in grids]


def _packets(trace: PacketTrace) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """All packets in order of arrival, and which of the trace's sounds each is, −1 for comfort noise."""
    count = len(trace.sequence)
    packets = np.zeros(count + len(trace.noise), PACKET)
    sounds, noise = packets[:count], packets[count:]
    sounds["position"] = trace.position
    sounds["samples"] = trace.samples
    sounds["arrival_ns"] = trace.arrival_ns
    sounds["dtx"] = trace.payload_bytes <= DTX_BYTES
    for name, values in zip(("position", "arrival_ns", "noise_dbov"), trace.noise.T, strict=True):
        noise[name] = values
    noise["noise"] = True
    order = np.argsort(packets["arrival_ns"], kind="stable")
    return packets[order], np.where(order < count, order, -1)


def _stops(samples: NDArray[np.int64], size: int) -> list[int]:
    """Where windows of about `size` samples end, in packets in order of arrival."""
    window = np.maximum(np.cumsum(samples) - 1, 0) // size
    return [*(np.flatnonzero(np.diff(window)) + 1).tolist(), len(samples)]


class _Window:
    """The sound of the packets that may be decoded next; packets are numbered in order of arrival."""

    def __init__(self, sounds: Iterator[Audio], sound_of: NDArray[np.int64]) -> None:
        self._sounds = sounds
        self._sound_of = sound_of
        of_sounds = np.flatnonzero(sound_of >= 0)
        self._rank = of_sounds[np.argsort(sound_of[of_sounds])]
        self._read = 0  # packets in order of their sequence numbers, as `sounds` has them
        self._held: dict[int, Audio] = {}

    def load(self, packets: NDArray[Any], waiting: set[int], begin: int, stop: int) -> Audio:
        """The sound of the packets from `begin` to `stop`, and of those that wait; `pcm_at` says where each is."""
        self._held = {index: sound for index, sound in self._held.items() if index >= begin or index in waiting}
        until = int(self._sound_of[begin:stop].max()) + 1
        while self._read < until:
            self._held[int(self._rank[self._read])] = next(self._sounds)
            self._read += 1
        needed = [index for index in self._held if index < stop]
        sounds = [self._held[index] for index in needed]
        sizes = np.array([len(sound) for sound in sounds], dtype=np.int64)
        if not np.array_equal(sizes, packets["samples"][needed]):
            raise ValueError("the sound of a packet is not as long as the packet")
        packets["pcm_at"][needed] = np.cumsum(sizes) - sizes
        return np.concatenate([np.zeros(0, np.float32), *sounds]).astype(np.float32, copy=False)


class _Grid:
    """One jitter buffer and the arrays that it fills."""

    def __init__(self, trace: PacketTrace, first_tick_ns: int) -> None:
        self._state = np.zeros(1, STATE)
        # an array of the sync buffer must hold what is kept of the past and all that one tick can decode
        self._audio = np.zeros(AUDIO_S * trace.rate_hz + 4 * int(trace.samples.max()), np.float32)
        self._queues = np.zeros((2, _most_in_history(trace), 2), np.int64)
        self._pieces = np.zeros((2 * PIECES_A_TICK, 3), np.int64)
        self._snapshots = np.zeros(256, SNAPSHOT)
        start(self._state, trace.rate_hz, first_tick_ns)

    def waiting(self) -> list[int]:
        """The packets that have arrived and are not decoded."""
        state = self._state[0]
        return [int(index) for index in state["queue"][: state["waiting"]]]

    def run(self, packets: NDArray[Any], stop: int, pcm: Audio) -> None:
        """Play on until packet `stop` arrives, or to the end."""
        while self._advance(packets, stop, pcm) == NEEDS_ROOM:
            _grow(self._pieces, int(self._state[0]["piece_count"]) + PIECES_A_TICK)
            _grow(self._snapshots, int(self._state[0]["snapshot_count"]) + 2)

    def _advance(self, packets: NDArray[Any], stop: int, pcm: Audio) -> int:
        return int(advance(self._state, packets, stop, pcm, self._audio, self._queues, self._pieces, self._snapshots))

    def played(self) -> Played:
        """What was played; nothing more can be."""
        state = self._state[0]
        self._pieces.resize((int(state["piece_count"]), 3), refcheck=False)
        self._snapshots.resize(int(state["snapshot_count"]), refcheck=False)
        return self._pieces, self._snapshots


def _grow(array: NDArray[Any], needed: int) -> None:
    """Make an array half as long again, in place, where it has not as many rows as are needed."""
    if needed > len(array):
        array.resize((3 * len(array) // 2, *array.shape[1:]), refcheck=False)


def _most_in_history(trace: PacketTrace) -> int:
    """The largest number of packets that the arrival history can hold: those of 2 s of media time, and one more."""
    position = np.unique(trace.position)
    window = HISTORY_MS * trace.rate_hz // 1000
    ends = np.searchsorted(position, position + window, side="right")
    return int((ends - np.arange(len(position))).max()) + 1
