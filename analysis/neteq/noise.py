"""A packet of comfort noise in, noise of its level out, until the next packet.

Sources: RFC 3389 (the first byte is the level, in dB below full scale); libwebrtc, modules/audio_coding/neteq (comfort
noise) for how the level follows the packets. The spectrum in the packet is left out: the noise is white.
"""

from __future__ import annotations

import math

import numpy as np

from analysis.neteq.buffer import append, discard_before
from analysis.neteq.compiled import compiled
from analysis.neteq.counters import book_level
from analysis.neteq.decision import MODE_NOISE
from analysis.neteq.expand import end_concealment
from analysis.neteq.state import NONE, Audio, Record

__all__ = ["play_noise", "skip_noise"]

FULL_SCALE = 32_768.0
LOWEST_DBOV = 93  # as low as libwebrtc goes
# a linear congruential generator of 31 bits; four of its numbers make one that is nearly Gaussian
DRAWS = 4
MULTIPLIER, INCREMENT, MODULUS = 1_103_515_245, 12_345, 1 << 31
UNIT_VARIANCE = math.sqrt(12 / DRAWS)
PEAK_SIGMAS = 3.2  # the highest of 10 ms or so, in standard deviations


@compiled
def play_noise(s: Record, packets: Record, audio: Audio) -> None:
    """Append the noise of a tick; a packet that was taken for it sets the level and where the media timeline is."""
    if s.taken:
        packet = packets[s.decoded[0]]
        s.end = packet.position  # its length is counted as generated noise
        s.generated_since = s.ticks
        s.sid_energy = FULL_SCALE**2 * 10 ** (-min(packet.noise_dbov, LOWEST_DBOV) / 10)
        discard_before(s, packets, packet.position, NONE)
    first = s.mode != MODE_NOISE
    s.generated_energy = s.sid_energy if first else (s.generated_energy + s.sid_energy) / 2
    scale = math.sqrt(s.generated_energy)
    if first:
        for i in range(s.overlap):
            k = s.filled - s.overlap + i
            fade = np.float32(i + 1) / np.float32(s.overlap + 1)
            audio[k] += fade * (np.float32(scale * _draw(s)) - audio[k])
    at = append(s, audio, s.step)
    for i in range(s.step):
        audio[at + i] = np.float32(scale * _draw(s))
    s.noise_energy = -1.0
    end_concealment(s)
    s.mode = MODE_NOISE


@compiled
def skip_noise(s: Record, ticks: int) -> None:
    """Let `ticks` of it pass (only where no packet waits)."""
    s.ticks += ticks
    s.next_out += ticks * s.step
    s.generated_energy = s.sid_energy
    book_level(s, int(PEAK_SIGMAS * math.sqrt(s.sid_energy)), ticks)


@compiled
def _draw(s: Record) -> float:
    """A number with mean 0 and variance 1."""
    total = 0.0
    for _ in range(DRAWS):
        s.noise_seed = (s.noise_seed * MULTIPLIER + INCREMENT) % MODULUS
        total += s.noise_seed / MODULUS - 0.5
    return total * UNIT_VARIANCE
