"""Packet arrivals in, the delay that NetEQ aims at out: arrival history, underrun and reorder optimizer.

Source: libwebrtc, modules/audio_coding/neteq (behaviour of 2025-06 and, by its statistics, of Chromium 156). Times are
in whole milliseconds of the 10 ms tick clock; probabilities are Q30 and forget factors Q15, as there, since a quantile
that falls on the edge between two buckets must fall on the same side.
"""

from __future__ import annotations

from collections import deque

__all__ = ["ArrivalHistory", "DelayManager"]

HISTORY_MS = 2000  # of media time
BUCKETS = 100
BUCKET_MS = 20
ONE_Q30 = 1 << 30
ONE_Q15 = 1 << 15
QUANTILE = 0.95
FORGET_UNDERRUN = 0.983
FORGET_REORDER = 0.9993
START_FORGET_WEIGHT = 2.0
RESAMPLE_MS = 500
LOSS_COST_MS = 2000  # what losing every packet would cost, in ms of delay (20 ms for each per cent)
START_TARGET_MS = 80
MAX_PACKETS = 200


class ArrivalHistory:
    """When the packets of the last 2 s of media time arrived, and how late each is against the fastest of them."""

    def __init__(self, rate_hz: int) -> None:
        self._khz = rate_hz // 1000
        self._window = HISTORY_MS * self._khz
        self.reset()

    def reset(self) -> None:
        """Forget everything."""
        self._newest: int | None = None
        # (position, arrival in ms, arrival − position in samples); only packets that came in order
        self._fastest: deque[tuple[int, int, int]] = deque()
        self._slowest: deque[tuple[int, int, int]] = deque()

    def insert(self, position: int, now_ms: int) -> int | None:
        """Add a packet; its delay (ms), or None where it is too old, or alone, and so says nothing."""
        newest, oldest = self._newest, position - self._window
        if newest is not None and position <= newest:
            return self.delay_ms(position, now_ms) if position + self._window >= newest else None
        self._newest = position
        for queue in (self._fastest, self._slowest):
            while queue and queue[0][0] < oldest:
                queue.popleft()
        transit = now_ms * self._khz - position
        while self._fastest and transit <= self._fastest[-1][2]:
            self._fastest.pop()
        while self._slowest and transit >= self._slowest[-1][2]:
            self._slowest.pop()
        entry = (position, now_ms, transit)
        self._fastest.append(entry)
        self._slowest.append(entry)
        return None if newest is None or newest < oldest else self.delay_ms(position, now_ms)

    def is_newest(self, position: int) -> bool:
        """False for a packet that came after a later one."""
        return self._newest is None or position >= self._newest

    def delay_ms(self, position: int, now_ms: int) -> int:
        """How much later `position` is at `now_ms` than the fastest packet would make it; at least 0."""
        if not self._fastest:
            return 0
        reference, arrival_ms, _ = self._fastest[0]
        return max(0, now_ms - arrival_ms - (position // self._khz - reference // self._khz))

    def max_delay_ms(self) -> int:
        """The delay of the slowest packet in the history."""
        if not self._slowest:
            return 0
        position, arrival_ms, _ = self._slowest[0]
        return self.delay_ms(position, arrival_ms)


class _Histogram:
    """Probabilities of delay buckets, older observations forgotten exponentially (slower and slower at the start).

    Only the buckets up to the last one that is not empty are kept: there are few, and they are updated at every packet.
    """

    def __init__(self, forget: float) -> None:
        self._limit = int(ONE_Q15 * forget)
        self._forget = 0  # the first observation replaces what is there
        self._added = 0
        self.buckets = [0]

    def add(self, bucket: int) -> None:
        """Count one observation."""
        forget = self._forget
        buckets = [(b * forget) >> 15 for b in self.buckets]
        if bucket >= len(buckets):
            buckets.extend([0] * (bucket + 1 - len(buckets)))
        buckets[bucket] += (ONE_Q15 - forget) << 15
        excess = sum(buckets) - ONE_Q30
        for at, probability in enumerate(buckets):  # rounding must not let the sum drift away from one
            if not excess:
                break
            step = min(abs(excess), probability >> 4)
            step = -step if excess > 0 else step
            buckets[at] += step
            excess += step
        while not buckets[-1]:
            buckets.pop()
        self.buckets = buckets
        self._added += 1
        if forget != self._limit:
            self._forget = max(0, min(self._limit, int(ONE_Q15 * (1 - START_FORGET_WEIGHT / (self._added + 1)))))

    def quantile(self) -> int:
        """The first bucket that 95 % of the probability does not lie above."""
        rest = ONE_Q30
        for at, probability in enumerate(self.buckets):
            rest -= probability
            if rest <= ONE_Q30 - int(ONE_Q30 * QUANTILE):
                return at
        return BUCKETS - 1


class _UnderrunOptimizer:
    """The delay that 95 % of the half-second maxima stay under."""

    def __init__(self) -> None:
        self._histogram = _Histogram(FORGET_UNDERRUN)
        self._since_ms: int | None = None
        self._max_ms = 0
        self.optimal_ms: int | None = None

    def update(self, delay_ms: int, now_ms: int) -> None:
        if self._since_ms is None:
            self._since_ms = now_ms
        if now_ms - self._since_ms > RESAMPLE_MS:
            if self._max_ms // BUCKET_MS < BUCKETS:
                self._histogram.add(self._max_ms // BUCKET_MS)
            self.optimal_ms = (1 + self._histogram.quantile()) * BUCKET_MS
            self._since_ms, self._max_ms = now_ms, 0
        self._max_ms = max(self._max_ms, delay_ms)


class _ReorderOptimizer:
    """The delay at which waiting for reordered packets costs as much as losing them."""

    def __init__(self) -> None:
        self._histogram = _Histogram(FORGET_REORDER)

    def update(self, delay_ms: int, reordered: bool, base_ms: int) -> int:
        """Count a packet; the optimal delay (ms) where the underrun optimizer asks for `base_ms` anyway."""
        bucket = delay_ms // BUCKET_MS if reordered else 0
        if bucket < BUCKETS:
            self._histogram.add(bucket)
        rest, least, best = ONE_Q30, -1, 0
        for at, probability in enumerate(self._histogram.buckets):
            rest -= probability
            cost = (max(0, at * BUCKET_MS - base_ms) << 30) + LOSS_COST_MS * rest
            if least < 0 or cost < least:
                least, best = cost, at
        return (1 + best) * BUCKET_MS


class DelayManager:
    """Arrival delays in, the target delay (ms) out."""

    def __init__(self) -> None:
        self._packet_ms = 0
        self.reset()

    def reset(self) -> None:
        """Start again at 80 ms, with nothing learnt."""
        self._underrun = _UnderrunOptimizer()
        self._reorder = _ReorderOptimizer()
        self._packet_ms = 0
        self.unlimited_ms = START_TARGET_MS
        self.target_ms = START_TARGET_MS

    def set_packet_ms(self, packet_ms: int) -> None:
        """The duration of a packet, which bounds the target at three quarters of a full buffer."""
        self._packet_ms = packet_ms

    def update(self, delay_ms: int, reordered: bool, now_ms: int) -> None:
        """A packet arrived `delay_ms` later than the fastest one would have."""
        if not reordered:
            self._underrun.update(delay_ms, now_ms)
        optimal = self._underrun.optimal_ms
        target = START_TARGET_MS if optimal is None else optimal
        target = max(target, self._reorder.update(delay_ms, reordered, target))
        self.unlimited_ms = target
        self.target_ms = min(target, 3 * MAX_PACKETS * self._packet_ms // 4) if self._packet_ms else target
