"""Packets in, 10 ms blocks out: NetEQ's packet buffer, and its sync buffer with the source of each sample.

Source: libwebrtc, modules/audio_coding/neteq (packet buffer, sync buffer). Output samples are counted from the first
tick on without a gap, so the number of a sample is its time; a stretch moves the numbers of all that is still to come.
The sync buffer is an array whose first `filled` samples are used: some of what was played, then the `future` samples
that were not.
"""

from __future__ import annotations

import numpy as np

from analysis.neteq.compiled import compiled
from analysis.neteq.state import MAX_PACKETS, NONE, Audio, Pieces, Record

__all__ = [
    "HISTORY_MS",
    "advance_output",
    "append",
    "cut",
    "discard_before",
    "discard_first",
    "enqueue",
    "place",
    "repeat",
    "take_over",
    "take_packets",
    "waiting_span",
]

HISTORY_MS = 60  # of what was played, for the searches that look back 32 ms

# what has arrived and is not decoded yet, in the order of the media timeline -----------------------------------------


@compiled
def enqueue(s: Record, packets: Record, index: int) -> bool:
    """Add a packet; False where the buffer was full and has been emptied for it."""
    flushed = s.waiting >= MAX_PACKETS
    if flushed:
        s.discarded += s.waiting
        s.waiting = 0
    position = packets[index].position
    at = s.waiting
    while at and packets[s.queue[at - 1]].position > position:
        at -= 1
    if at and packets[s.queue[at - 1]].position == position:
        s.discarded += 1
        return not flushed
    for i in range(s.waiting, at, -1):
        s.queue[i] = s.queue[i - 1]
        s.queued_at[i] = s.queued_at[i - 1]
    s.queue[at] = index
    s.queued_at[at] = s.ticks
    s.waiting += 1
    return not flushed


@compiled
def discard_before(s: Record, packets: Record, position: int, horizon: int) -> None:
    """Drop what comes before `position`, but not what is `horizon` samples or more before it (another stream)."""
    if s.waiting == 0 or packets[s.queue[0]].position >= position:
        return
    kept = 0
    for i in range(s.waiting):
        at = packets[s.queue[i]].position
        if at >= position or (horizon != NONE and at <= position - horizon):
            s.queue[kept] = s.queue[i]
            s.queued_at[kept] = s.queued_at[i]
            kept += 1
    s.discarded += s.waiting - kept
    s.waiting = kept


@compiled
def discard_first(s: Record) -> None:
    """Drop the oldest packet."""
    s.waiting -= 1
    s.discarded += 1
    for i in range(s.waiting):
        s.queue[i] = s.queue[i + 1]
        s.queued_at[i] = s.queued_at[i + 1]


@compiled
def take_packets(s: Record, count: int) -> None:
    """Take the oldest packets out of the buffer, to be decoded."""
    for i in range(count):
        s.decoded[i] = s.queue[i]
    s.taken = count
    s.waiting -= count
    for i in range(s.waiting):
        s.queue[i] = s.queue[i + count]
        s.queued_at[i] = s.queued_at[i + count]


@compiled
def waiting_span(s: Record, packets: Record) -> int:
    """From the oldest to the newest packet, and how long the newest has waited, in samples; some packet must wait."""
    newest = s.waiting - 1
    span = packets[s.queue[newest]].position - packets[s.queue[0]].position
    return int(span + (s.ticks - s.queued_at[newest]) * s.step)


# audio that is decoded but not played, and the source of each piece of it --------------------------------------------


@compiled
def append(s: Record, audio: Audio, count: int) -> int:
    """Make `count` more samples of the future; where they are to be written."""
    _make_room(s, audio, count)
    at = int(s.filled)
    s.filled += count
    s.future += count
    return at


@compiled
def place(s: Record, pieces: Pieces, position: int, count: int) -> None:
    """Say that the newest `count` samples are decoded audio that starts at `position`."""
    out = s.next_out + s.future - count
    if s.piece_count:
        last = s.piece_count - 1
        length = pieces[last, 2]
        if pieces[last, 0] + length == out and pieces[last, 1] + length == position:
            pieces[last, 2] += count
            return
    _set(pieces, s.piece_count, out, position, count)
    s.piece_count += 1


@compiled
def advance_output(s: Record) -> None:
    """The samples of one tick leave the buffer."""
    s.next_out += s.step
    s.future = max(s.future - s.step, s.overlap)


@compiled
def cut(s: Record, audio: Audio, pieces: Pieces, before_end: int, period: int) -> None:
    """Take out the `period` samples that begin `before_end` samples before the end, cross-faded over it."""
    at, count = s.filled - before_end, np.float32(period + 1)
    for i in range(period):
        fade = np.float32(i + 1) / count
        audio[at - period + i] += fade * (audio[at + i] - audio[at - period + i])
    for i in range(at, s.filled - period):
        audio[i] = audio[i + period]
    # in the middle of the fade what follows becomes the louder part
    out = s.next_out + s.future - before_end - period // 2
    first = _split(s, pieces, out)
    last = _split(s, pieces, out + period)
    for i in range(last, s.piece_count):
        _set(pieces, first + i - last, pieces[i, 0] - period, pieces[i, 1], pieces[i, 2])
    s.piece_count -= last - first
    s.filled -= period
    s.future -= period


@compiled
def repeat(s: Record, audio: Audio, pieces: Pieces, before_end: int, period: int) -> None:
    """Play the `period` samples that end `before_end` samples before the end once more, cross-faded."""
    _make_room(s, audio, period)
    at, count = s.filled - before_end, np.float32(period + 1)
    for i in range(s.filled - 1, at - 1, -1):
        audio[i + period] = audio[i]
    for i in range(period):
        fade = np.float32(i + 1) / count
        after = audio[at + period + i]
        audio[at + i] = after + fade * (audio[at - period + i] - after)
    first = _split(s, pieces, s.next_out + s.future - before_end + period // 2)
    for i in range(first, s.piece_count):
        pieces[i, 0] += period
    s.filled += period
    s.future += period


@compiled
def take_over(s: Record, audio: Audio, pieces: Pieces, sound: Audio, lag: int, position: int, fade: int) -> None:
    """Let decoded `sound` take over `lag` samples after the next one to leave, faded in over `fade` samples."""
    count = len(sound)
    held = min(fade, s.future - lag, count)
    _make_room(s, audio, count)
    s.piece_count = _split(s, pieces, s.next_out + lag)
    s.filled += lag - s.future
    s.future = lag
    at = append(s, audio, count)
    place(s, pieces, position, count)
    for i in range(held):
        ramp = np.float32(i + 1) / np.float32(fade + 1)
        audio[at + i] += ramp * (sound[i] - audio[at + i])
    for i in range(held, count):
        audio[at + i] = sound[i]


@compiled
def _set(pieces: Pieces, at: int, out: int, position: int, count: int) -> None:
    pieces[at, 0] = out
    pieces[at, 1] = position
    pieces[at, 2] = count


@compiled
def _split(s: Record, pieces: Pieces, out: int) -> int:
    """Index of the first piece that starts at or after output sample `out`; a piece across it is divided."""
    at = int(s.piece_count)
    while at and pieces[at - 1, 0] >= out:
        at -= 1
    if at:
        start, position, count = pieces[at - 1, 0], pieces[at - 1, 1], pieces[at - 1, 2]
        if start + count > out:
            for i in range(s.piece_count, at, -1):
                _set(pieces, i, pieces[i - 1, 0], pieces[i - 1, 1], pieces[i - 1, 2])
            pieces[at - 1, 2] = out - start
            _set(pieces, at, out, position + out - start, count - (out - start))
            s.piece_count += 1
    return at


@compiled
def _make_room(s: Record, audio: Audio, count: int) -> None:
    """Room for `count` samples, if need be by forgetting what was played but for the last 60 ms.

    The array is long enough for that, the future and what one tick may add.
    """
    if s.filled + count <= len(audio):
        return
    keep = min(s.filled, s.future + HISTORY_MS * s.khz, len(audio) - count)
    for i in range(keep):
        audio[i] = audio[s.filled - keep + i]
    s.filled = keep
