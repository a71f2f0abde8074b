"""What NetEQ does in, the running totals behind the W3C inbound-rtp statistics out, booked as libwebrtc books them.

Source: libwebrtc, modules/audio_coding/neteq (statistics calculator); W3C webrtc-stats, RTCInboundRtpStreamStats.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Counters"]


@dataclass(slots=True)
class Counters:
    """Running totals, in samples unless the name says otherwise; nothing counts before decoded audio was played."""

    played: bool = False
    delay_ms_samples: int = 0
    target_ms_samples: int = 0
    minimum_ms_samples: int = 0
    emitted: int = 0
    received: int = 0
    concealed: int = 0
    silent: int = 0
    events: int = 0
    inserted: int = 0
    removed: int = 0
    _owed: int = 0  # negative corrections, taken from what is concealed later
    _owed_silent: int = 0

    def conceal(self, samples: int, *, silent: bool, new_event: bool = False) -> None:
        """Book concealment; a negative number takes back what a merge overlaid."""
        if not self.played:
            return
        self.events += new_event
        if samples < 0:
            self._owed -= samples
            self._owed_silent -= samples if silent else 0
            return
        paid = min(samples, self._owed)
        self._owed -= paid
        self.concealed += samples - paid
        if silent:
            paid = min(samples, self._owed_silent)
            self._owed_silent -= paid
            self.silent += samples - paid

    def emit(self, samples: int, waited_ms: int, target_ms: int, minimum_ms: int) -> None:
        """Book a packet that leaves the packet buffer."""
        self.delay_ms_samples += samples * waited_ms
        self.target_ms_samples += samples * target_ms
        self.minimum_ms_samples += samples * minimum_ms
        self.emitted += samples
