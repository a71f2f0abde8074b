"""The records that the engine works on: one jitter buffer, the packets of a stream, the totals at a moment.

What is absent is `NONE` (a number that no position or time has) or −1 where only positive numbers occur. Arrays in a
record have the size that the highest sampling rate needs.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "BUCKETS",
    "COUNTERS",
    "MAX_PACKETS",
    "NONE",
    "PACKET",
    "SNAPSHOT",
    "STATE",
    "Audio",
    "Pieces",
    "Queues",
    "Record",
]

Audio = NDArray[np.float32]
Pieces = NDArray[np.int64]  # (n, 3): number of the first output sample, position, samples; in output order
Queues = NDArray[np.int64]  # (2, n, 2): position and time (ms) in the two queues of the arrival history
Record = Any  # an element of an array of one of the types below

NONE = -(1 << 62)
MAX_PACKETS = 200
BUCKETS = 100
MAX_LAG = 720  # samples: 15 ms at 48 kHz

# running totals, in samples unless the name says otherwise
COUNTERS = (
    "delay_ms_samples",
    "target_ms_samples",
    "minimum_ms_samples",
    "emitted",
    "received",
    "concealed",
    "silent",
    "events",
    "inserted",
    "removed",
    "discarded",  # packets
)
SUMS = (
    "processing_ns_samples",  # from arrival to decoding
    "energy",  # seconds of full scale, squared, by the level that libwebrtc meters
)


def _record(
    integers: tuple[str, ...], floats: tuple[str, ...], flags: tuple[str, ...], arrays: list[Any]
) -> np.dtype[Any]:
    fields = [(name, np.int64) for name in integers] + [(name, np.float64) for name in floats] + arrays
    return np.dtype((np.record, [*fields, *((name, np.bool_) for name in flags)]))


# `dtx`: comfort noise of the codec itself; `noise`: a packet of RFC 3389, which has a level (dB below full scale)
# instead of samples
PACKET = _record(("position", "samples", "arrival_ns", "pcm_at", "noise_dbov"), (), ("dtx", "noise"), [])

SNAPSHOT = _record(("time_ns", "target_ms", *COUNTERS), SUMS, ("played",), [])

STATE = _record(
    (
        # of the sampling rate
        "khz",
        "step",  # samples in a tick
        "m",
        "overlap",
        # the run
        "now_ns",
        "due",  # the next packet to arrive
        "snapshot_count",
        "piece_count",
        # decisions
        "ticks",
        "mode",
        "end",  # position after the newest decoded sample
        "packet_samples",
        "frame_samples",
        "generated_since",  # tick at which concealment or comfort noise began, −1
        "stretch_allowed_at",
        "fast_forward",  # samples by which comfort noise was cut short, so that the packet after it waits no longer
        # packet buffer, and what was taken from it in this tick
        "waiting",
        "taken",
        "taken_samples",
        # sync buffer
        "filled",
        "future",
        "next_out",
        # arrival history and target
        "newest",
        "target_ms",
        "unlimited_ms",
        "packet_ms",
        "since_ms",
        "max_ms",
        "optimal_ms",
        # concealment
        "expansions",
        "lag_index",
        "lag_step",
        "max_lag",
        "slope_q20",
        "mute_q14",
        # negative corrections, taken from what is concealed later
        "owed",
        "owed_silent",
        "noise_seed",  # of what is drawn next for comfort noise
        # level meter
        "metered",  # ticks since the level was set
        "peak",
        "level",
        *COUNTERS,
    ),
    (
        "voice_mix",
        "mix",
        "noise_energy",  # of the newest 256 samples, −1 after they changed
        "floor_energy",  # of the background, −1 until it is known
        "floor_threshold",
        "loudest",
        "sid_energy",  # of comfort noise, per sample: what its newest packet asks for
        "generated_energy",  # and what was generated last
        *SUMS,
    ),
    ("played", "new_stream", "just_stretched", "last_dtx", "expand_first", "expand_stopped", "onset"),
    [
        ("queue", np.int64, (MAX_PACKETS,)),  # packets that wait, by position
        ("queued_at", np.int64, (MAX_PACKETS,)),  # and the tick before which each came
        ("decoded", np.int64, (MAX_PACKETS,)),
        ("history_first", np.int64, (2,)),
        ("history_count", np.int64, (2,)),
        ("underrun", np.int64, (BUCKETS + 3,)),
        ("reorder", np.int64, (BUCKETS + 3,)),
        ("lags", np.int64, (3,)),
        ("period", np.float32, (MAX_LAG,)),
    ],
)
