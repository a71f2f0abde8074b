"""Packets in, 10 ms blocks out: NetEQ's packet buffer, and its sync buffer with the source of each sample.

Source: libwebrtc, modules/audio_coding/neteq (packet buffer, sync buffer). Output samples are counted from the first
tick on without a gap, so the number of a sample is its time; a stretch moves the numbers of all that is still to come.
"""

from __future__ import annotations

from bisect import insort
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

__all__ = ["Packet", "PacketBuffer", "SyncBuffer"]

Audio = NDArray[np.float32]

MAX_PACKETS = 200
HISTORY_MS = 60  # of what was played, for the searches that look back 32 ms
CAPACITY_MS = 2000


@dataclass(slots=True, order=True)
class Packet:
    """A decoded packet as it waits; ordered by its place on the media timeline."""

    position: int
    samples: int = field(compare=False)
    pcm: Audio = field(compare=False)
    dtx: bool = field(compare=False)
    tick: int = field(compare=False, default=0)


class PacketBuffer:
    """What has arrived and is not decoded yet, in the order of the media timeline."""

    def __init__(self) -> None:
        self.packets: list[Packet] = []
        self.discarded = 0

    def insert(self, packet: Packet) -> bool:
        """Add a packet; False where the buffer was full and has been emptied for it."""
        packets = self.packets
        flushed = len(packets) >= MAX_PACKETS
        if flushed:
            self.discarded += len(packets)
            packets.clear()
        if not packets or packet.position > packets[-1].position:
            packets.append(packet)
        elif any(p.position == packet.position for p in packets):
            self.discarded += 1
        else:
            insort(packets, packet)
        return not flushed

    def discard_before(self, position: int, horizon: int | None = None) -> None:
        """Drop what comes before `position`, but not what is `horizon` samples or more before it (another stream)."""
        packets = self.packets
        if not packets or packets[0].position >= position:
            return
        kept = [
            p for p in packets if p.position >= position or (horizon is not None and p.position <= position - horizon)
        ]
        self.discarded += len(packets) - len(kept)
        self.packets = kept

    def waiting_span(self, ticks: int, step: int) -> int:
        """From the oldest to the newest packet, and how long the newest has waited, in samples."""
        newest = self.packets[-1]
        return newest.position - self.packets[0].position + (ticks - newest.tick) * step


class SyncBuffer:
    """Audio that is decoded but not played (`future` samples), some of what was, and the source of each piece of it."""

    def __init__(self, rate_hz: int, overlap: int) -> None:
        self.data: Audio = np.zeros(CAPACITY_MS * rate_hz // 1000, dtype=np.float32)
        self._keep = HISTORY_MS * rate_hz // 1000
        self.overlap = overlap
        self.end = self._keep + overlap
        self.future = overlap
        self.next_out = 0  # number of the next output sample to leave
        self.pieces: list[list[int]] = []  # [number of its first output sample, position, samples], in output order

    def push(self, audio: Audio, position: int | None = None) -> None:
        """Append audio; with a `position` where it is decoded audio that starts there."""
        count = len(audio)
        if self.end + count > len(self.data):
            self._make_room(count)
        self.data[self.end : self.end + count] = audio
        if position is not None:
            self._add_piece(self.next_out + self.future, position, count)
        self.end += count
        self.future += count

    def advance(self, count: int) -> None:
        """`count` samples leave the buffer."""
        self.next_out += count
        self.future -= count
        if self.future < self.overlap:
            self.future = self.overlap

    def tail(self, count: int) -> Audio:
        """The newest `count` samples."""
        return self.data[self.end - count : self.end]

    def cut(self, before_end: int, period: int) -> None:
        """Take out the `period` samples that begin `before_end` samples before the end, cross-faded over it."""
        at = self.end - before_end
        data = self.data
        fade = _ramp(period)
        data[at - period : at] += fade * (data[at : at + period] - data[at - period : at])
        data[at : self.end - period] = data[at + period : self.end].copy()
        out = self.next_out + self.future - before_end
        # in the middle of the fade what follows becomes the louder part
        first = self._split(out - period // 2)
        last = self._split(out - period // 2 + period)
        del self.pieces[first:last]
        for piece in self.pieces[first:]:
            piece[0] -= period
        self.end -= period
        self.future -= period

    def repeat(self, before_end: int, period: int) -> None:
        """Play the `period` samples that end `before_end` samples before the end once more, cross-faded."""
        if self.end + period > len(self.data):
            self._make_room(period)
        at = self.end - before_end
        data = self.data
        fade = _ramp(period)
        before, after = data[at - period : at].copy(), data[at : at + period].copy()
        data[at + period : self.end + period] = data[at : self.end].copy()
        data[at : at + period] = after + fade * (before - after)
        first = self._split(self.next_out + self.future - before_end + period // 2)
        for piece in self.pieces[first:]:
            piece[0] += period
        self.end += period
        self.future += period

    def replace_from(self, lag: int, audio: Audio, position: int, fade: int) -> None:
        """Let decoded `audio` take over `lag` samples after the next one to leave, faded in over `fade` samples."""
        start = self.end - self.future + lag
        held = self.data[start : self.end][:fade].copy()
        out = self.next_out + lag
        del self.pieces[self._split(out) :]
        self.end, self.future = start, lag
        self.push(audio, position)
        at, count = self.end - len(audio), len(held)
        ramp = np.arange(1, count + 1, dtype=np.float32) / (fade + 1)
        self.data[at : at + count] = held + ramp * (self.data[at : at + count] - held)

    def _add_piece(self, out: int, position: int, count: int) -> None:
        if self.pieces:
            last = self.pieces[-1]
            if last[0] + last[2] == out and last[1] + last[2] == position:
                last[2] += count
                return
        self.pieces.append([out, position, count])

    def _split(self, out: int) -> int:
        """Index of the first piece that starts at or after output sample `out`; a piece across it is divided."""
        pieces = self.pieces
        at = len(pieces)
        while at and pieces[at - 1][0] >= out:
            at -= 1
        if at:
            start, position, count = pieces[at - 1]
            if start + count > out:
                pieces[at - 1][2] = out - start
                pieces.insert(at, [out, position + out - start, count - (out - start)])
        return at

    def _make_room(self, count: int) -> None:
        keep = min(self.end, self.future + self._keep)
        kept = self.data[self.end - keep : self.end].copy()
        if keep + count > len(self.data):
            self.data = np.zeros(2 * (keep + count), dtype=np.float32)
        self.data[:keep] = kept
        self.end = keep


def _ramp(count: int) -> Audio:
    return np.arange(1, count + 1, dtype=np.float32) / np.float32(count + 1)
