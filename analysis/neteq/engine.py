"""Arrivals of decoded packets in, what NetEQ plays of them and when out, tick by tick.

Source: libwebrtc, modules/audio_coding/neteq (decision logic, neteq_impl, statistics). Its own names are kept for the
operations. Every 10 ms one operation is chosen from the packets, the audio and what was done before; time is counted in
ticks and output samples.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from analysis.neteq.buffer import (
    HISTORY_MS,
    advance_output,
    append,
    cut,
    discard_before,
    enqueue,
    place,
    repeat,
    take_over,
    take_packets,
    waiting_span,
)
from analysis.neteq.compiled import compiled, kept
from analysis.neteq.counters import book_concealed, book_decoded, book_level, copy_totals
from analysis.neteq.delay import arrival_delay_ms, is_newest, max_delay_ms, observe, reset_delay, update_target
from analysis.neteq.expand import (
    conceal_period,
    concealment_gain,
    end_concealment,
    fill_resumed,
    has_faded,
    next_lag,
    reset_expand,
)
from analysis.neteq.signal import best_merge_lag, fade_in, fill, learn_background, level_gain, merge_gain, pitch
from analysis.neteq.state import NONE, Audio, Pieces, Queues, Record

__all__ = ["DONE", "NEEDS_PACKETS", "NEEDS_ROOM", "TICK_MS", "advance", "start"]

TICK_MS = 10
TICK_NS = TICK_MS * 1_000_000
SNAPSHOT_TICKS = 20
MAX_EMPTY_TICKS = 1000  # without a packet; what lies beyond is one snapshot, however long
PIECES_A_TICK = 512  # more than a tick can make: 200 packets, and two for each of a cut's edges
STRETCH_PAUSE_TICKS = 5  # after a stretch, counted from the tick that follows it
START_PAUSE_TICKS = 6
LATE_HORIZON_S = 5  # packets older than this are not late but of another stream
CNG_TIMEOUT_MS = 1000
TARGET_WINDOW_MS = 50
GRANULARITY_MS = 20  # of a stretch
MIN_CORRELATION = 14746 / 16384
HALF_MUTED_Q14 = 8192
MERGE_FADE = 60  # times m
RTP_RANGE = 1 << 32
FULL_SCALE = np.float32(32768.0)

# what `advance` stopped for
DONE, NEEDS_PACKETS, NEEDS_ROOM = 0, 1, 2

# what the last operation came to
MODE_NORMAL, MODE_EXPAND, MODE_MERGE, MODE_STRETCHED, MODE_STRETCH_FAILED = 0, 1, 2, 3, 4
MODE_CNG = 5  # comfort noise of the codec (DTX)

# what to do in a tick
NORMAL, EXPAND, MERGE, ACCELERATE, PREEMPTIVE_EXPAND, CNG = 10, 11, 12, 13, 14, 15


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
            if _muted(s) and packets[s.due].arrival_ns > s.now_ns + MAX_EMPTY_TICKS * TICK_NS:
                ticks = (packets[s.due].arrival_ns - s.now_ns) // TICK_NS
                ticks -= (s.ticks + ticks) % SNAPSHOT_TICKS
                _skip_muted(s, ticks)
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
def _idle(s: Record) -> bool:
    """True where no packet waits and all decoded audio has left, to within one tick."""
    return _muted(s) or (s.waiting == 0 and s.future - s.overlap < s.step)


@compiled
def _arrive(s: Record, packets: Record, index: int, queues: Queues) -> None:
    """A packet arrives, between two ticks."""
    if not enqueue(s, packets, index):
        s.new_stream = True
    if s.new_stream:
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
    operation = _choose(s, packets, queues)
    if s.taken:
        s.noise_energy = -1.0
    if operation == EXPAND:
        _expand(s, audio)
    elif operation == CNG:
        at = append(s, audio, s.step)
        for i in range(s.step):
            audio[at + i] = 0.0
        s.noise_energy = -1.0
        end_concealment(s)
    else:
        _play(s, operation, packets, pcm, audio, pieces)
    _meter(s, audio)
    advance_output(s)
    if s.mode == MODE_NORMAL or s.mode == MODE_STRETCH_FAILED or s.mode == MODE_CNG:
        learn_background(s, audio[s.filled - 256 : s.filled])
    if s.mode != MODE_CNG and s.mode != MODE_EXPAND:
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


# what to do ----------------------------------------------------------------------------------------------------------


@compiled
def _choose(s: Record, packets: Record, queues: Queues) -> int:
    """The operation of this tick; the packets to decode for it are taken from the buffer."""
    if not s.new_stream:
        discard_before(s, packets, s.end, LATE_HORIZON_S * 1000 * s.khz)
    operation = _decide(s, packets, queues)
    changes_audio = operation in (MERGE, ACCELERATE, PREEMPTIVE_EXPAND)
    if changes_audio and packets[s.queue[0]].dtx:
        operation = NORMAL
        changes_audio = False
    left = s.future - s.overlap
    if left >= s.step and not changes_audio:
        return NORMAL
    if s.new_stream and s.waiting:
        _start_stream(s)
        operation = NORMAL
    if operation in (EXPAND, CNG):
        return operation
    return _gather(s, packets, operation, left)


@compiled
def _start_stream(s: Record) -> None:
    s.new_stream = False
    reset_delay(s)
    s.packet_samples = 0
    s.just_stretched = False
    s.stretch_allowed_at = s.ticks + START_PAUSE_TICKS


@compiled
def _gather(s: Record, packets: Record, operation: int, left: int) -> int:
    """Take the packets that `operation` needs; a stretch works on 30 ms and waits until it has them."""
    step, short = s.step, s.frame_samples < 3 * s.step
    stretches = operation in (ACCELERATE, PREEMPTIVE_EXPAND)
    required = step
    if stretches:
        if left >= 3 * step or (left >= step and not short):
            if operation == ACCELERATE and left < 3 * step:
                return NORMAL
            s.just_stretched = True
            return operation
        if left < 2 * step and short:
            required = 2 * step
            if operation == ACCELERATE:
                operation = NORMAL
                stretches = False
    extracted = _extract(s, packets, required)
    if stretches:
        s.just_stretched = True
        if operation == ACCELERATE and extracted + left < 3 * step:
            operation = NORMAL
    return operation


@compiled
def _extract(s: Record, packets: Record, required: int) -> int:
    """Take packets that follow each other, `required` samples or more if there are as many; how many there were."""
    extracted = taken = end = 0
    while extracted < required and taken < s.waiting:
        packet = packets[s.queue[taken]]
        if taken and packet.position != end:
            break
        waited_ms = (s.ticks - s.queued_at[taken]) * TICK_MS
        book_decoded(s, packet.samples, waited_ms, s.now_ns - packet.arrival_ns)
        taken += 1
        extracted += packet.samples
        end = packet.position + packet.samples
    take_packets(s, taken)
    s.taken_samples = extracted
    return int(extracted)


@compiled
def _decide(s: Record, packets: Record, queues: Queues) -> int:
    if s.just_stretched:
        s.just_stretched = False
        if s.mode == MODE_STRETCHED:
            s.stretch_allowed_at = s.ticks + STRETCH_PAUSE_TICKS
    if s.waiting == 0 or _postpone(s, packets):
        return _without_packet(s)
    position = packets[s.queue[0]].position
    if position == s.end:
        return _with_expected_packet(s, queues)
    return _with_later_packet(s, packets, position)


@compiled
def _generated(s: Record) -> int:
    """Samples of concealment or comfort noise since it began."""
    return 0 if s.generated_since < 0 else (s.ticks - s.generated_since) * s.step


@compiled
def _without_packet(s: Record) -> int:
    return CNG if s.mode == MODE_CNG and _generated(s) <= CNG_TIMEOUT_MS * s.khz else EXPAND


@compiled
def _postpone(s: Record, packets: Record) -> bool:
    """After a pause, playing waits until half the target is there, so as not to run dry again at once."""
    if s.mode != MODE_CNG and not (s.mode == MODE_EXPAND and s.mute_q14 < HALF_MUTED_Q14):
        return False
    if waiting_span(s, packets) >= s.target_ms * s.khz // 2:
        return False
    pause_goes_on = False
    for i in range(s.waiting):
        pause_goes_on |= packets[s.queue[i]].dtx
    return not pause_goes_on


@compiled
def _with_expected_packet(s: Record, queues: Queues) -> int:
    if s.mode == MODE_EXPAND:
        return NORMAL
    delay_ms = arrival_delay_ms(s, queues, s.end - s.future, s.ticks * TICK_MS)
    low = s.target_ms
    high = low + max_delay_ms(s, queues) + GRANULARITY_MS
    if delay_ms >= 4 * high:
        return ACCELERATE
    if s.ticks >= s.stretch_allowed_at:
        if delay_ms >= high:
            return ACCELERATE
        if delay_ms < low:
            return PREEMPTIVE_EXPAND
    return NORMAL


@compiled
def _with_later_packet(s: Record, packets: Record, position: int) -> int:
    leap = (position - s.end) % RTP_RANGE
    held_ms = waiting_span(s, packets) // s.khz
    if leap > _generated(s) and held_ms <= s.target_ms + TARGET_WINDOW_MS:
        return _without_packet(s)
    if s.mode == MODE_CNG:
        return NORMAL
    return MERGE if s.mode == MODE_EXPAND else EXPAND


# doing it ------------------------------------------------------------------------------------------------------------


@compiled
def _expand(s: Record, audio: Audio) -> None:
    while s.future - s.overlap < s.step:
        count = next_lag(s, audio[s.filled - 256 * s.m : s.filled])
        at = append(s, audio, count)
        conceal_period(s, audio[at : at + count])
        book_concealed(s, count, has_faded(s) or s.last_dtx, s.mode != MODE_EXPAND)
        s.mode = MODE_EXPAND
    s.noise_energy = -1.0
    if s.generated_since < 0:
        s.generated_since = s.ticks


@compiled
def _play(s: Record, operation: int, packets: Record, pcm: Audio, audio: Audio, pieces: Pieces) -> None:
    """Decode what was taken into the sync buffer and join, cut or repeat as `operation` says."""
    dtx = False
    if s.taken:
        first, last = packets[s.decoded[0]], packets[s.decoded[s.taken - 1]]
        dtx = last.dtx
        # comfort noise does not move the end: its length is counted as generated noise instead
        s.end = first.position if dtx else last.position + last.samples
        s.frame_samples = last.samples
        s.last_dtx = dtx
        discard_before(s, packets, last.position, NONE)
        if dtx:
            s.generated_since = s.ticks
    if operation == MERGE:
        _merge(s, packets, pcm, audio, pieces)
    else:
        _decode(s, packets, pcm, audio, pieces, operation == NORMAL and s.mode == MODE_EXPAND)
        if operation == NORMAL:
            _finish_normal(s, dtx)
            return
        _stretch(s, audio, pieces, operation)
    end_concealment(s)
    if dtx:
        s.mode = MODE_CNG


@compiled
def _sound(packets: Record, index: int, pcm: Audio) -> Audio:
    """The decoded sound of a packet."""
    at = packets[index].pcm_at
    return pcm[at : at + packets[index].samples]


@compiled
def _decode(s: Record, packets: Record, pcm: Audio, audio: Audio, pieces: Pieces, resumed: bool) -> None:
    for i in range(s.taken):
        index = s.decoded[i]
        sound = _sound(packets, index, pcm)
        count = len(sound)
        at = append(s, audio, count)
        into = audio[at : at + count]
        for k in range(count):
            into[k] = sound[k] * FULL_SCALE
        if resumed and i == 0:
            fade_in(into, max(concealment_gain(s), level_gain(into, s.m, s.floor_energy)), s.m)
        place(s, pieces, packets[index].position, count)


@compiled
def _finish_normal(s: Record, dtx: bool) -> None:
    samples = s.taken_samples
    if samples and s.mode == MODE_EXPAND:
        end_concealment(s)
    if dtx or (s.mode == MODE_CNG and samples == 0):
        s.mode = MODE_CNG
    elif samples:
        s.mode = MODE_NORMAL
    if samples:
        s.played = True


@compiled
def _merge(s: Record, packets: Record, pcm: Audio, audio: Audio, pieces: Pieces) -> None:
    old, needed, m, samples = s.future, 202 * s.m, s.m, s.taken_samples
    expanded = np.empty(needed, np.float32)
    held = min(old, needed)
    fill(expanded[:held], audio[s.filled - old :])
    fill_resumed(s, expanded[held:])
    decoded = np.empty(samples, np.float32)
    at = 0
    for i in range(s.taken):
        sound = _sound(packets, s.decoded[i], pcm)
        for k in range(len(sound)):
            decoded[at + k] = sound[k] * FULL_SCALE
        at += len(sound)
    lag = best_merge_lag(decoded, expanded, m, old, s.max_lag)
    fade_in(decoded, max(concealment_gain(s), merge_gain(decoded, expanded, m)), m)
    fade = max(1, min(MERGE_FADE * m, needed - lag, samples))
    if old < lag + fade:  # the concealment goes on under the fade
        at = append(s, audio, lag + fade - old)
        fill(audio[at : s.filled], expanded[old:])
    take_over(s, audio, pieces, decoded, lag, packets[s.decoded[0]].position, fade)
    book_concealed(s, lag - old, s.last_dtx, False)
    s.mode = MODE_MERGE


@compiled
def _stretch(s: Record, audio: Audio, pieces: Pieces, operation: int) -> None:
    m = s.m
    length = max(240 * m, s.taken_samples)
    middle = 120 * m
    # of what the search looks at, so much has been played and must stay as it was
    played = max(0, length - s.future)
    s.mode = MODE_STRETCH_FAILED
    if operation == PREEMPTIVE_EXPAND and played >= length - s.overlap:
        return
    period, correlation, active = pitch(audio[s.filled - length : s.filled], m, s.floor_energy)
    good = not active or correlation > MIN_CORRELATION
    if operation == ACCELERATE:
        if not good:
            return
        cut(s, audio, pieces, length - middle, period)
        if s.played:
            s.removed += period
    else:
        if active and (not good or played > middle):
            return
        if not active:
            period = min(period, length - played)
        repeat(s, audio, pieces, length - max(played, middle), period)
        if s.played:
            s.inserted += period
    s.mode = MODE_STRETCHED
    s.noise_energy = -1.0


advance: Any = kept(_build)
