"""What waits, what was done and how late packets are in, what NetEQ does in the next 10 ms out.

Source: libwebrtc, modules/audio_coding/neteq (decision logic, neteq_impl). Its own names are kept for the operations.
"""

from __future__ import annotations

from analysis.neteq.buffer import discard_before, discard_first, take_packets, waiting_span
from analysis.neteq.compiled import compiled
from analysis.neteq.counters import book_decoded
from analysis.neteq.delay import arrival_delay_ms, max_delay_ms, reset_delay
from analysis.neteq.state import Queues, Record

__all__ = [
    "ACCELERATE",
    "CNG",
    "EXPAND",
    "MERGE",
    "MODE_CNG",
    "MODE_EXPAND",
    "MODE_MERGE",
    "MODE_NOISE",
    "MODE_NORMAL",
    "MODE_STRETCHED",
    "MODE_STRETCH_FAILED",
    "NOISE",
    "NORMAL",
    "PREEMPTIVE_EXPAND",
    "START_PAUSE_TICKS",
    "TICK_MS",
    "choose",
]

TICK_MS = 10
STRETCH_PAUSE_TICKS = 5  # after a stretch, counted from the tick that follows it
START_PAUSE_TICKS = 6
LATE_HORIZON_S = 5  # packets older than this are not late but of another stream
CNG_TIMEOUT_MS = 1000
TARGET_WINDOW_MS = 50
GRANULARITY_MS = 20  # of a stretch
HALF_MUTED_Q14 = 8192
RTP_RANGE = 1 << 32

# what the last operation came to
MODE_NORMAL, MODE_EXPAND, MODE_MERGE, MODE_STRETCHED, MODE_STRETCH_FAILED = 0, 1, 2, 3, 4
MODE_CNG = 5  # comfort noise of the codec (DTX)
MODE_NOISE = 6  # comfort noise that packets of RFC 3389 ask for

# what to do in a tick
NORMAL, EXPAND, MERGE, ACCELERATE, PREEMPTIVE_EXPAND, CNG = 10, 11, 12, 13, 14, 15
NOISE, NEW_NOISE = 16, 17  # comfort noise that goes on, and that of the packet whose turn it is


@compiled
def choose(s: Record, packets: Record, queues: Queues) -> int:
    """The operation of this tick; the packets to decode for it are taken from the buffer."""
    if not s.new_stream:
        discard_before(s, packets, s.end, LATE_HORIZON_S * 1000 * s.khz)
    _discard_past_noise(s, packets)
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
        operation = NEW_NOISE if packets[s.queue[0]].noise else NORMAL
    if operation in (EXPAND, CNG, NOISE):
        return operation
    operation = _gather(s, packets, operation, left)
    return NOISE if operation == NEW_NOISE else operation


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
        if taken and (packet.noise or packet.position != end):
            break
        # a packet of comfort noise says nothing of how long it lasts: it counts as much as the last one of sound, but
        # for the time from arrival to decoding, which libwebrtc does not know of it
        samples = s.frame_samples if packet.noise else packet.samples
        waited_ms = (s.ticks - s.queued_at[taken]) * TICK_MS
        book_decoded(s, samples, waited_ms, 0 if packet.noise else s.now_ns - packet.arrival_ns)
        taken += 1
        extracted += samples
        end = packet.position + samples
        if packet.noise:
            break
    take_packets(s, taken)
    s.taken_samples = extracted
    return int(extracted)


@compiled
def _decide(s: Record, packets: Record, queues: Queues) -> int:
    if s.just_stretched:
        s.just_stretched = False
        if s.mode == MODE_STRETCHED:
            s.stretch_allowed_at = s.ticks + STRETCH_PAUSE_TICKS
    if s.waiting and packets[s.queue[0]].noise:
        return _with_noise_packet(s, packets[s.queue[0]].position)
    if s.waiting == 0 or _postpone(s, packets):
        return _without_packet(s)
    position = packets[s.queue[0]].position
    if position == s.end:
        return _with_expected_packet(s, queues)
    return _with_later_packet(s, packets, position)


@compiled
def _generated(s: Record) -> int:
    """Samples of concealment or comfort noise since it began."""
    return 0 if s.generated_since < 0 else (s.ticks - s.generated_since) * s.step + s.fast_forward


@compiled
def _discard_past_noise(s: Record, packets: Record) -> None:
    """While comfort noise is played, drop packets of it whose time has passed (repeated ones, late ones)."""
    if s.mode != MODE_NOISE:
        return
    played = s.end + max(0, _generated(s) - s.step)
    while s.waiting and packets[s.queue[0]].noise:
        position = packets[s.queue[0]].position
        if s.end < position and played <= position:
            return
        discard_first(s)


@compiled
def _with_noise_packet(s: Record, position: int) -> int:
    """Comfort noise begins at once, but goes over to that of another packet only when its time has come.

    Where that would be more than half the target delay later than the target, it comes so much earlier.
    """
    ahead = (position - s.end - _generated(s) + RTP_RANGE // 2) % RTP_RANGE - RTP_RANGE // 2
    target = s.target_ms * s.khz
    if ahead - target > target // 2:
        s.fast_forward += ahead - target
        ahead = target
    if ahead > 0 and s.mode == MODE_NOISE:
        return NOISE
    s.fast_forward = 0
    return NEW_NOISE


@compiled
def _without_packet(s: Record) -> int:
    if s.mode == MODE_NOISE:
        return NOISE
    return CNG if s.mode == MODE_CNG and _generated(s) <= CNG_TIMEOUT_MS * s.khz else EXPAND


@compiled
def _postpone(s: Record, packets: Record) -> bool:
    """After a pause, playing waits until half the target is there, so as not to run dry again at once."""
    if s.mode not in (MODE_CNG, MODE_NOISE) and not (s.mode == MODE_EXPAND and s.mute_q14 < HALF_MUTED_Q14):
        return False
    if waiting_span(s, packets) >= s.target_ms * s.khz // 2:
        return False
    pause_goes_on = False
    for i in range(s.waiting):
        pause_goes_on |= packets[s.queue[i]].dtx or packets[s.queue[i]].noise
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
    if s.mode in (MODE_CNG, MODE_NOISE):
        return NORMAL
    return MERGE if s.mode == MODE_EXPAND else EXPAND
