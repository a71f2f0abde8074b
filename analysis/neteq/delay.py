"""Packet arrivals in, the delay that NetEQ aims at out: arrival history, underrun and reorder optimizer.

Source: libwebrtc, modules/audio_coding/neteq (behaviour of 2025-06 and, by its statistics, of Chromium 156). Times are
in whole milliseconds of the 10 ms tick clock; probabilities are Q30 and forget factors Q15, as there, since a quantile
that falls on the edge between two buckets must fall on the same side.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from analysis.neteq.compiled import compiled
from analysis.neteq.state import BUCKETS, MAX_PACKETS, NONE, Queues, Record

__all__ = ["HISTORY_MS", "arrival_delay_ms", "is_newest", "max_delay_ms", "observe", "reset_delay", "update_target"]

HISTORY_MS = 2000  # of media time
BUCKET_MS = 20
ONE_Q30 = 1 << 30
ONE_Q15 = 1 << 15
QUANTILE = 0.95
FORGET_UNDERRUN = int(ONE_Q15 * 0.983)
FORGET_REORDER = int(ONE_Q15 * 0.9993)
START_FORGET_WEIGHT = 2.0
RESAMPLE_MS = 500
LOSS_COST_MS = 2000  # what losing every packet would cost, in ms of delay (20 ms for each per cent)
START_TARGET_MS = 80

FASTEST, SLOWEST = 0, 1  # the queues of the arrival history
# a histogram: only the buckets up to the last one that is not empty are kept up
COUNT, FORGET, ADDED, FIRST = 0, 1, 2, 3


@compiled
def reset_delay(s: Record) -> None:
    """Start again at 80 ms, with nothing learnt."""
    s.newest = NONE
    for which in (FASTEST, SLOWEST):
        s.history_first[which] = s.history_count[which] = 0
    s.packet_ms = 0
    s.unlimited_ms = START_TARGET_MS
    s.target_ms = START_TARGET_MS
    s.since_ms = NONE
    s.max_ms = 0
    s.optimal_ms = -1
    for i in range(len(s.underrun)):
        s.underrun[i] = s.reorder[i] = 0  # a FORGET of 0: the first observation replaces what is there
    s.underrun[COUNT] = s.reorder[COUNT] = 1


# how late packets are against the fastest of the last 2 s of media time ----------------------------------------------


@compiled
def observe(s: Record, queues: Queues, position: int, now_ms: int) -> int:
    """Add a packet; its delay (ms), or −1 where it is too old, or alone, and so says nothing."""
    newest, window = s.newest, HISTORY_MS * s.khz
    oldest = position - window
    if newest != NONE and position <= newest:
        return arrival_delay_ms(s, queues, position, now_ms) if position + window >= newest else -1
    s.newest = position
    for which in (FASTEST, SLOWEST):
        _queue(s, queues[which], which, position, now_ms, oldest)
    return -1 if newest == NONE or newest < oldest else arrival_delay_ms(s, queues, position, now_ms)


@compiled
def _queue(s: Record, queue: NDArray[np.int64], which: int, position: int, now_ms: int, oldest: int) -> None:
    """Append to a queue whose transit times rise (fastest) or fall (slowest) from the first entry on."""
    first, count, size = s.history_first[which], s.history_count[which], len(queue)
    sign = 1 if which == FASTEST else -1
    transit = sign * (now_ms * s.khz - position)
    while count and queue[first, 0] < oldest:
        first = (first + 1) % size
        count -= 1
    while count:
        last = (first + count - 1) % size
        if transit > sign * (queue[last, 1] * s.khz - queue[last, 0]):
            break
        count -= 1
    at = (first + count) % size
    queue[at, 0] = position
    queue[at, 1] = now_ms
    s.history_first[which] = first
    s.history_count[which] = min(count + 1, size)


@compiled
def is_newest(s: Record, position: int) -> bool:
    """False for a packet that came after a later one."""
    return bool(s.newest == NONE or position >= s.newest)


@compiled
def arrival_delay_ms(s: Record, queues: Queues, position: int, now_ms: int) -> int:
    """How much later `position` is at `now_ms` than the fastest packet would make it; at least 0."""
    if s.history_count[FASTEST] == 0:
        return 0
    first = s.history_first[FASTEST]
    reference, arrival_ms = queues[FASTEST, first, 0], queues[FASTEST, first, 1]
    return int(max(0, now_ms - arrival_ms - (position // s.khz - reference // s.khz)))


@compiled
def max_delay_ms(s: Record, queues: Queues) -> int:
    """The delay of the slowest packet in the history."""
    if s.history_count[SLOWEST] == 0:
        return 0
    first = s.history_first[SLOWEST]
    return arrival_delay_ms(s, queues, queues[SLOWEST, first, 0], queues[SLOWEST, first, 1])


# what delay they ask for ---------------------------------------------------------------------------------------------


@compiled
def _add(histogram: NDArray[np.int64], bucket: int, limit: int) -> None:
    """Count one observation; older ones are forgotten exponentially, slower and slower at the start, up to `limit`."""
    forget = histogram[FORGET]
    buckets = histogram[FIRST:]
    count = max(histogram[COUNT], bucket + 1)
    for i in range(count):
        buckets[i] = (buckets[i] * forget) >> 15
    buckets[bucket] += (ONE_Q15 - forget) << 15
    excess = -ONE_Q30
    for i in range(count):
        excess += buckets[i]
    for i in range(count):  # rounding must not let the sum drift away from one
        if excess == 0:
            break
        step = min(abs(excess), buckets[i] >> 4)
        if excess > 0:
            step = -step
        buckets[i] += step
        excess += step
    while count > 1 and buckets[count - 1] == 0:
        count -= 1
    histogram[COUNT] = count
    histogram[ADDED] += 1
    if forget != limit:
        weight = 1 - START_FORGET_WEIGHT / (histogram[ADDED] + 1)
        histogram[FORGET] = max(0, min(limit, int(ONE_Q15 * weight)))


@compiled
def _quantile(histogram: NDArray[np.int64]) -> int:
    """The first bucket that 95 % of the probability does not lie above."""
    rest = ONE_Q30
    for i in range(histogram[COUNT]):
        rest -= histogram[FIRST + i]
        if rest <= ONE_Q30 - int(ONE_Q30 * QUANTILE):
            return i
    return BUCKETS - 1


@compiled
def _update_underrun(s: Record, delay_ms: int, now_ms: int) -> None:
    """The delay that 95 % of the half-second maxima stay under."""
    if s.since_ms == NONE:
        s.since_ms = now_ms
    if now_ms - s.since_ms > RESAMPLE_MS:
        if s.max_ms // BUCKET_MS < BUCKETS:
            _add(s.underrun, s.max_ms // BUCKET_MS, FORGET_UNDERRUN)
        s.optimal_ms = (1 + _quantile(s.underrun)) * BUCKET_MS
        s.since_ms = now_ms
        s.max_ms = 0
    s.max_ms = max(s.max_ms, delay_ms)


@compiled
def _reorder_ms(s: Record, delay_ms: int, reordered: bool, base_ms: int) -> int:
    """The delay at which waiting for reordered packets costs as much as losing them; `base_ms` is there anyway."""
    bucket = delay_ms // BUCKET_MS if reordered else 0
    if bucket < BUCKETS:
        _add(s.reorder, bucket, FORGET_REORDER)
    rest, least, best = ONE_Q30, -1, 0
    for i in range(s.reorder[COUNT]):
        rest -= s.reorder[FIRST + i]
        cost = (max(0, i * BUCKET_MS - base_ms) << 30) + LOSS_COST_MS * rest
        if least < 0 or cost < least:
            least, best = cost, i
    return (1 + best) * BUCKET_MS


@compiled
def update_target(s: Record, delay_ms: int, reordered: bool, now_ms: int) -> None:
    """A packet arrived `delay_ms` later than the fastest one would have: the target, at most 3/4 of a full buffer."""
    if not reordered:
        _update_underrun(s, delay_ms, now_ms)
    target = START_TARGET_MS if s.optimal_ms < 0 else s.optimal_ms
    target = max(target, _reorder_ms(s, delay_ms, reordered, target))
    s.unlimited_ms = target
    s.target_ms = min(target, 3 * MAX_PACKETS * s.packet_ms // 4) if s.packet_ms else target
