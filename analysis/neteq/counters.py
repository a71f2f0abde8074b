"""What NetEQ does in, the running totals behind the W3C inbound-rtp statistics out, booked as libwebrtc books them.

Source: libwebrtc, modules/audio_coding/neteq (statistics calculator); W3C webrtc-stats, RTCInboundRtpStreamStats.
Nothing counts before decoded audio was played.
"""

from __future__ import annotations

from analysis.neteq.compiled import compiled
from analysis.neteq.state import Record

__all__ = ["book_concealed", "book_decoded", "book_level", "copy_totals"]

METERED_TICKS = 11
FULL_SCALE = 32_767
TICK_S = 0.01
SILENT_TICKS = 16 * METERED_TICKS  # after so many of one peak the level no longer changes


@compiled
def book_concealed(s: Record, samples: int, silent: bool, new_event: bool) -> None:
    """Book concealment; a negative number takes back what a merge overlaid."""
    if not s.played:
        return
    if new_event:
        s.events += 1
    if samples < 0:
        s.owed -= samples
        if silent:
            s.owed_silent -= samples
        return
    paid = min(samples, s.owed)
    s.owed -= paid
    s.concealed += samples - paid
    if silent:
        paid = min(samples, s.owed_silent)
        s.owed_silent -= paid
        s.silent += samples - paid


@compiled
def book_decoded(s: Record, samples: int, waited_ms: int, waited_ns: int) -> None:
    """Book a packet that leaves the packet buffer."""
    s.delay_ms_samples += samples * waited_ms
    s.target_ms_samples += samples * s.target_ms
    s.minimum_ms_samples += samples * s.unlimited_ms
    s.processing_ns_samples += float(samples) * float(waited_ns)
    s.emitted += samples


@compiled
def book_level(s: Record, peak: int, ticks: int) -> None:
    """Book the energy of ticks whose loudest sample is `peak` (16 bit): libwebrtc squares a held level, no samples."""
    for _ in range(min(ticks, SILENT_TICKS)):
        s.peak = max(s.peak, min(peak, FULL_SCALE))
        s.metered += 1
        if s.metered == METERED_TICKS:
            s.metered = 0
            s.level = s.peak
            s.peak >>= 2
        s.energy += TICK_S * (s.level / FULL_SCALE) ** 2
    s.energy += max(0, ticks - SILENT_TICKS) * TICK_S * (s.level / FULL_SCALE) ** 2


@compiled
def copy_totals(s: Record, to: Record) -> None:
    """Write the running totals of now into a snapshot."""
    to.time_ns = s.now_ns
    to.played = s.played
    to.target_ms = s.target_ms
    to.delay_ms_samples = s.delay_ms_samples
    to.target_ms_samples = s.target_ms_samples
    to.minimum_ms_samples = s.minimum_ms_samples
    to.emitted = s.emitted
    to.received = s.received
    to.concealed = s.concealed
    to.silent = s.silent
    to.events = s.events
    to.inserted = s.inserted
    to.removed = s.removed
    to.discarded = s.discarded
    to.processing_ns_samples = s.processing_ns_samples
    to.energy = s.energy
