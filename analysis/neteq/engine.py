"""Arrivals of decoded packets in, what NetEQ plays of them and when out, tick by tick.

Source: libwebrtc, modules/audio_coding/neteq (decision logic, neteq_impl, statistics). Its own names are kept for the
operations. Every 10 ms one operation is chosen from the packets, the audio and what was done before; time is counted in
ticks and output samples.
"""

from __future__ import annotations

from enum import Enum, auto

import numpy as np
from numpy.typing import NDArray

from analysis.neteq.buffer import Packet, PacketBuffer, SyncBuffer
from analysis.neteq.counters import Counters
from analysis.neteq.delay import ArrivalHistory, DelayManager
from analysis.neteq.signal import BackgroundNoise, Expander, Searcher, best_merge_lag, fade_in, merge_gain

__all__ = ["TICK_MS", "NetEq"]

Audio = NDArray[np.float32]

TICK_MS = 10
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


class Mode(Enum):
    """What the last operation came to."""

    NORMAL = auto()
    EXPAND = auto()
    MERGE = auto()
    STRETCHED = auto()
    STRETCH_FAILED = auto()
    CNG = auto()  # comfort noise of the codec (DTX)


class Operation(Enum):
    """What to do in a tick."""

    NORMAL = auto()
    EXPAND = auto()
    MERGE = auto()
    ACCELERATE = auto()
    PREEMPTIVE_EXPAND = auto()
    CNG = auto()


CHANGES_AUDIO = (Operation.MERGE, Operation.ACCELERATE, Operation.PREEMPTIVE_EXPAND)


class NetEq:
    """The jitter buffer of one stream.

    Parameters
    ----------
    rate_hz : int
        8000, 16000, 32000 or 48000.
    """

    def __init__(self, rate_hz: int) -> None:
        self._khz = rate_hz // 1000
        self._step = TICK_MS * self._khz
        self._m = rate_hz // 8000
        overlap = 5 * self._m
        self.counters = Counters()
        self.buffer = PacketBuffer()
        self.sync = SyncBuffer(rate_hz, overlap)
        self.ticks = 0
        self._history = ArrivalHistory(rate_hz)
        self._manager = DelayManager()
        self._search = Searcher(rate_hz)
        self._expander = Expander(self._search, overlap)
        self._noise = BackgroundNoise()
        self._noise_energy: float | None = None  # of the newest 256 samples; None after they changed
        self._mode = Mode.NORMAL
        self._end = 0  # position after the newest decoded sample
        self._new_stream = True
        self._packet_samples = 0
        self._frame_samples = 3 * self._step
        self._generated_since: int | None = None  # tick at which concealment or comfort noise began
        self._just_stretched = False
        self._stretch_allowed_at = START_PAUSE_TICKS
        self._last_dtx = False

    @property
    def muted(self) -> bool:
        """True where nothing is left to play: a tick then only counts silence."""
        return self._mode is Mode.EXPAND and not self.buffer.packets and self._expander.muted

    @property
    def idle(self) -> bool:
        """True where no packet waits and all decoded audio has left, to within one tick."""
        return self.muted or (not self.buffer.packets and self.sync.future - self.sync.overlap < self._step)

    @property
    def target_ms(self) -> int:
        """The delay aimed at."""
        return self._manager.target_ms

    def insert(self, packet: Packet) -> None:
        """A packet arrives, between two ticks."""
        packet.tick = self.ticks
        if not self.buffer.insert(packet):
            self._new_stream = True
        if self._new_stream:
            return
        if packet.samples != self._packet_samples:
            self._packet_samples = packet.samples
            self._manager.set_packet_ms(packet.samples // self._khz)
        now_ms = self.ticks * TICK_MS
        in_order = self._history.is_newest(packet.position)
        delay_ms = self._history.insert(packet.position, now_ms)
        if delay_ms is not None:
            self._manager.update(delay_ms, not in_order, now_ms)

    def skip_muted(self, ticks: int) -> None:
        """Let `ticks` pass in silence (only where `muted`)."""
        self.ticks += ticks
        self.sync.next_out += ticks * self._step
        self.counters.conceal(ticks * self._step, silent=True)
        self._count_received(ticks)

    def tick(self) -> None:
        """Produce the next 10 ms."""
        if self.muted:
            self.skip_muted(1)
            return
        self.ticks += 1
        operation, packets = self._choose()
        if packets:
            self._noise_energy = None
        if operation is Operation.EXPAND:
            self._expand()
        elif operation is Operation.CNG:
            self.sync.push(np.zeros(self._step, dtype=np.float32))
            self._noise_energy = None
            self._expander.reset()
        else:
            self._play(operation, packets)
        self.sync.advance(self._step)
        if self._mode in (Mode.NORMAL, Mode.STRETCH_FAILED, Mode.CNG):
            self._learn_noise()
        if self._mode not in (Mode.CNG, Mode.EXPAND):
            self._generated_since = None
        self._count_received(1)

    def _count_received(self, ticks: int) -> None:
        if self.counters.played:
            self.counters.received += ticks * self._step

    def _learn_noise(self) -> None:
        tail = self.sync.tail(256)
        if self._noise_energy is None:
            self._noise_energy = float(np.dot(tail, tail)) // 256
        self._noise.update(tail, self._noise_energy)

    # what to do ------------------------------------------------------------------------------------------------------

    def _choose(self) -> tuple[Operation, list[Packet]]:
        """The operation of this tick and the packets to decode for it."""
        if not self._new_stream:
            self.buffer.discard_before(self._end, LATE_HORIZON_S * 1000 * self._khz)
        waiting = self.buffer.packets
        operation = self._decide(waiting[0] if waiting else None)
        if waiting and waiting[0].dtx and operation in CHANGES_AUDIO:
            operation = Operation.NORMAL
        left = self.sync.future - self.sync.overlap
        if left >= self._step and operation not in CHANGES_AUDIO:
            return Operation.NORMAL, []
        if self._new_stream and waiting:
            self._start_stream()
            operation = Operation.NORMAL
        if operation in (Operation.EXPAND, Operation.CNG):
            return operation, []
        return self._gather(operation, left)

    def _start_stream(self) -> None:
        self._new_stream = False
        self._manager.reset()
        self._history.reset()
        self._packet_samples = 0
        self._just_stretched = False
        self._stretch_allowed_at = self.ticks + START_PAUSE_TICKS

    def _gather(self, operation: Operation, left: int) -> tuple[Operation, list[Packet]]:
        """Take the packets that `operation` needs; a stretch works on 30 ms and waits until it has them."""
        step, short = self._step, self._frame_samples < 3 * self._step
        required = step
        if operation in (Operation.ACCELERATE, Operation.PREEMPTIVE_EXPAND):
            enough = left >= 3 * step or (left >= step and not short)
            if enough:
                if operation is Operation.ACCELERATE and left < 3 * step:
                    return Operation.NORMAL, []
                self._just_stretched = True
                return operation, []
            if left < 2 * step and short:
                required = 2 * step
                if operation is Operation.ACCELERATE:
                    operation = Operation.NORMAL
        packets = self._extract(required)
        extracted = packets[-1].position + packets[-1].samples - packets[0].position
        if operation in (Operation.ACCELERATE, Operation.PREEMPTIVE_EXPAND):
            self._just_stretched = True
            if operation is Operation.ACCELERATE and extracted + left < 3 * step:
                operation = Operation.NORMAL
        return operation, packets

    def _extract(self, required: int) -> list[Packet]:
        waiting, counters = self.buffer.packets, self.counters
        packets: list[Packet] = []
        extracted = taken = 0
        while extracted < required and taken < len(waiting):
            packet = waiting[taken]
            if packets and packet.position != packets[-1].position + packets[-1].samples:
                break
            waited_ms = (self.ticks - packet.tick) * TICK_MS
            counters.emit(packet.samples, waited_ms, self._manager.target_ms, self._manager.unlimited_ms)
            packets.append(packet)
            taken += 1
            extracted += packet.samples
        del waiting[:taken]
        return packets

    def _decide(self, packet: Packet | None) -> Operation:
        if self._just_stretched:
            self._just_stretched = False
            if self._mode is Mode.STRETCHED:
                self._stretch_allowed_at = self.ticks + STRETCH_PAUSE_TICKS
        if packet is None or self._postpone(packet):
            return self._without_packet()
        if packet.position == self._end:
            return self._expected_packet()
        return self._later_packet(packet)

    def _generated(self) -> int:
        """Samples of concealment or comfort noise since it began."""
        return 0 if self._generated_since is None else (self.ticks - self._generated_since) * self._step

    def _without_packet(self) -> Operation:
        if self._mode is Mode.CNG and self._generated() <= CNG_TIMEOUT_MS * self._khz:
            return Operation.CNG
        return Operation.EXPAND

    def _postpone(self, packet: Packet) -> bool:
        """After a pause, playing waits until half the target is there, so as not to run dry again at once."""
        if self._mode is not Mode.CNG and not (self._mode is Mode.EXPAND and self._expander.mute_q14 < HALF_MUTED_Q14):
            return False
        if self.buffer.waiting_span(self.ticks, self._step) >= self._manager.target_ms * self._khz // 2:
            return False
        return not any(p.dtx for p in self.buffer.packets)

    def _expected_packet(self) -> Operation:
        if self._mode is Mode.EXPAND:
            return Operation.NORMAL
        delay_ms = self._history.delay_ms(self._end - self.sync.future, self.ticks * TICK_MS)
        low = self._manager.target_ms
        high = low + self._history.max_delay_ms() + GRANULARITY_MS
        if delay_ms >= 4 * high:
            return Operation.ACCELERATE
        if self.ticks >= self._stretch_allowed_at:
            if delay_ms >= high:
                return Operation.ACCELERATE
            if delay_ms < low:
                return Operation.PREEMPTIVE_EXPAND
        return Operation.NORMAL

    def _later_packet(self, packet: Packet) -> Operation:
        leap = (packet.position - self._end) % RTP_RANGE
        held_ms = self.buffer.waiting_span(self.ticks, self._step) // self._khz
        if leap > self._generated() and held_ms <= self._manager.target_ms + TARGET_WINDOW_MS:
            return self._without_packet()
        if self._mode is Mode.CNG:
            return Operation.NORMAL
        return Operation.MERGE if self._mode is Mode.EXPAND else Operation.EXPAND

    # doing it ---------------------------------------------------------------------------------------------------------

    def _expand(self) -> None:
        sync, expander = self.sync, self._expander
        while sync.future - sync.overlap < self._step:
            audio = expander.process(sync.tail(256 * self._m))
            silent = expander.muted or self._last_dtx
            self.counters.conceal(len(audio), silent=silent, new_event=self._mode is not Mode.EXPAND)
            self._mode = Mode.EXPAND
            sync.push(audio)
        self._noise_energy = None
        if self._generated_since is None:
            self._generated_since = self.ticks

    def _play(self, operation: Operation, packets: list[Packet]) -> None:
        """Decode `packets` into the sync buffer and join, cut or repeat as `operation` says."""
        dtx = bool(packets) and packets[-1].dtx
        samples = sum(p.samples for p in packets)
        if packets:
            # comfort noise does not move the end: its length is counted as generated noise instead
            self._end = packets[0].position if dtx else packets[-1].position + packets[-1].samples
            self._frame_samples = packets[-1].samples
            self._last_dtx = dtx
            self.buffer.discard_before(packets[-1].position)
            if dtx:
                self._generated_since = self.ticks
        if operation is Operation.MERGE:
            self._merge(packets, samples)
        else:
            resumed = bool(packets) and operation is Operation.NORMAL and self._mode is Mode.EXPAND
            for packet in packets:
                pcm = packet.pcm * FULL_SCALE
                if resumed:
                    pcm = fade_in(pcm, max(self._expander.gain, self._noise.gain(pcm, self._m)), self._m)
                    resumed = False
                self.sync.push(pcm, packet.position)
            if operation is Operation.NORMAL:
                self._normal(samples, dtx)
                return
            self._stretch(operation, samples)
        self._expander.reset()
        if dtx:
            self._mode = Mode.CNG

    def _normal(self, samples: int, dtx: bool) -> None:
        if samples and self._mode is Mode.EXPAND:
            self._expander.reset()
        if dtx or (self._mode is Mode.CNG and samples == 0):
            self._mode = Mode.CNG
        elif samples:
            self._mode = Mode.NORMAL
        if samples:
            self.counters.played = True

    def _merge(self, packets: list[Packet], samples: int) -> None:
        sync = self.sync
        old = sync.future
        held = sync.tail(old).copy()
        period = self._expander.resume()
        needed = 202 * self._m
        repeats = max(0, -(-(needed - old) // max(1, len(period))))
        expanded = np.concatenate([held, *([period] * repeats)])[:needed]
        decoded = np.concatenate([p.pcm for p in packets]) * FULL_SCALE
        lag = best_merge_lag(self._search, decoded, expanded, old, self._expander.max_lag, sync.overlap)
        gain = max(self._expander.gain, merge_gain(decoded, expanded, self._m))
        decoded = fade_in(decoded, gain, self._m)
        fade = max(1, min(MERGE_FADE * self._m, needed - lag, samples))
        if old < lag + fade:  # the concealment goes on under the fade
            sync.push(expanded[old : lag + fade])
        sync.replace_from(lag, decoded, packets[0].position, fade)
        self.counters.conceal(lag - old, silent=self._last_dtx)
        self._mode = Mode.MERGE

    def _stretch(self, operation: Operation, samples: int) -> None:
        sync, m = self.sync, self._m
        length = max(240 * m, samples)
        middle = 120 * m
        # of what the search looks at, so much has been played and must stay as it was
        played = max(0, length - sync.future)
        self._mode = Mode.STRETCH_FAILED
        if operation is Operation.PREEMPTIVE_EXPAND and played >= length - sync.overlap:
            return
        pitch = self._search.pitch(sync.tail(length), self._noise.energy)
        good = not pitch.active or pitch.correlation > MIN_CORRELATION
        if operation is Operation.ACCELERATE:
            if not good:
                return
            sync.cut(length - middle, pitch.period)
            self.counters.removed += pitch.period if self.counters.played else 0
        else:
            if pitch.active and (not good or played > middle):
                return
            period = pitch.period if pitch.active else min(pitch.period, length - played)
            sync.repeat(length - max(played, middle), period)
            self.counters.inserted += period if self.counters.played else 0
        self._mode = Mode.STRETCHED
        self._noise_energy = None
