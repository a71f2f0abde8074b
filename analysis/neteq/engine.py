"""Arrivals of decoded packets in, what NetEQ plays of them and when out, tick by tick.

Source: libwebrtc, modules/audio_coding/neteq (neteq_impl). Every 10 ms one operation is chosen from the packets, the
audio and what was done before; time is counted in ticks and output samples.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from analysis.neteq.buffer import HISTORY_MS, advance_output, append, enqueue
from analysis.neteq.compiled import compiled, kept
from analysis.neteq.counters import book_concealed, book_level, copy_totals
from analysis.neteq.decision import (
    CNG,
    EXPAND,
    MODE_CNG,
    MODE_EXPAND,
    MODE_NOISE,
    MODE_NORMAL,
    MODE_STRETCH_FAILED,
    NOISE,
    START_PAUSE_TICKS,
    TICK_MS,
    choose,
)
from analysis.neteq.delay import is_newest, observe, reset_delay, update_target
from analysis.neteq.expand import end_concealment, has_faded, reset_expand
from analysis.neteq.noise import play_noise, skip_noise
from analysis.neteq.operations import expand, play
from analysis.neteq.signal import learn_background
from analysis.neteq.state import Audio, Pieces, Queues, Record

__all__ = ["DONE", "NEEDS_PACKETS", "NEEDS_ROOM", "TICK_MS", "advance", "start"]

TICK_NS = TICK_MS * 1_000_000
SNAPSHOT_TICKS = 20
MAX_EMPTY_TICKS = 1000  # without a packet; what lies beyond is one snapshot, however long
PIECES_A_TICK = 512  # more than a tick can make: 200 packets, and two for each of a cut's edges

# what `advance` stopped for
DONE, NEEDS_PACKETS, NEEDS_ROOM = 0, 1, 2


def _build(digest: str) -> Callable[..., int]:
    def advance(
        state: Record,
        packets: Record,
        stop: int,
        pcm: Audio,
        audio: Audio,
        queues: Queues,
        pieces: Pieces,
        snapshots: Record,
    ) -> int:
        """Let ticks pass until all has been played, or until packet `stop` arrives, or until an array is full."""
        _ = digest
        s = state[0]
        while True:
            if s.piece_count + PIECES_A_TICK > len(pieces) or s.snapshot_count + 2 > len(snapshots):
                return NEEDS_ROOM
            while s.due < len(packets) and packets[s.due].arrival_ns <= s.now_ns:
                if s.due == stop:
                    return NEEDS_PACKETS
                _arrive(s, packets, s.due, queues)
                s.due += 1
            if s.due == len(packets) and _idle(s):
                if s.ticks % SNAPSHOT_TICKS:
                    _note(s, snapshots)
                return DONE
            ticks = 1
            muted = _muted(s)
            if (muted or _only_noise(s)) and packets[s.due].arrival_ns > s.now_ns + MAX_EMPTY_TICKS * TICK_NS:
                ticks = (packets[s.due].arrival_ns - s.now_ns) // TICK_NS
                ticks -= (s.ticks + ticks) % SNAPSHOT_TICKS
                if muted:
                    _skip_muted(s, ticks)
                else:
                    skip_noise(s, ticks)
                    _count_received(s, ticks)
            else:
                _tick(s, packets, pcm, audio, queues, pieces)
            s.now_ns += ticks * TICK_NS
            if s.ticks % SNAPSHOT_TICKS == 0:
                _note(s, snapshots)

    return advance


@compiled
def start(state: Record, rate_hz: int, first_tick_ns: int) -> None:
    """Make an empty record a jitter buffer that has played silence."""
    s = state[0]
    s.khz = rate_hz // 1000
    s.step = TICK_MS * s.khz
    s.m = rate_hz // 8000
    s.overlap = 5 * s.m
    s.now_ns = first_tick_ns
    s.mode = MODE_NORMAL
    s.new_stream = True
    s.frame_samples = 3 * s.step
    s.generated_since = -1
    s.stretch_allowed_at = START_PAUSE_TICKS
    s.filled = HISTORY_MS * s.khz + s.overlap
    s.future = s.overlap
    s.noise_energy = -1.0
    s.floor_energy = -1.0
    s.floor_threshold = 500_000.0
    reset_delay(s)
    reset_expand(s)


@compiled
def _note(s: Record, snapshots: Record) -> None:
    copy_totals(s, snapshots[s.snapshot_count])
    s.snapshot_count += 1


@compiled
def _muted(s: Record) -> bool:
    """True where nothing is left to play: a tick then only counts silence."""
    return s.mode == MODE_EXPAND and s.waiting == 0 and has_faded(s)


@compiled
def _only_noise(s: Record) -> bool:
    """True where comfort noise is played and will be until a packet arrives."""
    return bool(s.mode == MODE_NOISE and s.waiting == 0 and s.future - s.overlap < s.step)


@compiled
def _idle(s: Record) -> bool:
    """True where no packet waits and all decoded audio has left, to within one tick."""
    return _muted(s) or (s.waiting == 0 and s.future - s.overlap < s.step)


@compiled
def _arrive(s: Record, packets: Record, index: int, queues: Queues) -> None:
    """A packet arrives, between two ticks."""
    if not enqueue(s, packets, index):
        s.new_stream = True
    if s.new_stream or packets[index].noise:
        return
    position, samples = packets[index].position, packets[index].samples
    if samples != s.packet_samples:
        s.packet_samples = samples
        s.packet_ms = samples // s.khz
    now_ms = s.ticks * TICK_MS
    in_order = is_newest(s, position)
    delay_ms = observe(s, queues, position, now_ms)
    if delay_ms >= 0:
        update_target(s, delay_ms, not in_order, now_ms)


@compiled
def _skip_muted(s: Record, ticks: int) -> None:
    """Let `ticks` pass in silence (only where muted)."""
    s.ticks += ticks
    s.next_out += ticks * s.step
    book_concealed(s, ticks * s.step, True, False)
    book_level(s, 0, ticks)
    _count_received(s, ticks)


@compiled
def _tick(s: Record, packets: Record, pcm: Audio, audio: Audio, queues: Queues, pieces: Pieces) -> None:
    """Produce the next 10 ms."""
    if _muted(s):
        _skip_muted(s, 1)
        return
    s.ticks += 1
    s.taken = s.taken_samples = 0
    operation = choose(s, packets, queues)
    if s.taken:
        s.noise_energy = -1.0
    if operation == EXPAND:
        expand(s, audio)
    elif operation == CNG:
        at = append(s, audio, s.step)
        for i in range(s.step):
            audio[at + i] = 0.0
        s.noise_energy = -1.0
        end_concealment(s)
    elif operation == NOISE:
        play_noise(s, packets, audio)
    else:
        play(s, operation, packets, pcm, audio, pieces)
    _meter(s, audio)
    advance_output(s)
    if s.mode in (MODE_NORMAL, MODE_STRETCH_FAILED, MODE_CNG, MODE_NOISE):
        learn_background(s, audio[s.filled - 256 : s.filled])
    if s.mode not in (MODE_CNG, MODE_NOISE, MODE_EXPAND):
        s.generated_since = -1
    _count_received(s, 1)


@compiled
def _count_received(s: Record, ticks: int) -> None:
    if s.played:
        s.received += ticks * s.step


@compiled
def _meter(s: Record, audio: Audio) -> None:
    """Book the samples that are about to leave."""
    at = s.filled - s.future
    peak = np.float32(0.0)
    for i in range(at, at + min(s.step, s.future)):
        peak = max(peak, abs(audio[i]))
    book_level(s, int(peak), 1)


advance: Any = kept(_build)
