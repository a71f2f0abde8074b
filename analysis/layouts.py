"""The name of a product in, whose channel is which in its recordings of calls out; they are not uniform.

Source: the products' own documentation, as far as it says; docs/recordings.md.
"""

from __future__ import annotations

from analysis.errors import UsageError

__all__ = ["LAYOUTS", "channels_of_layout"]

# (caller, agent), channels from 0
LAYOUTS = {
    "twilio": (0, 1),  # dual-channel recording: first the parent call's leg
    "vapi": (0, 1),  # stereo: customer left, assistant right
    "retell": (0, 1),  # multi-channel: user left, agent right
    "livekit": (1, 0),  # egress, dual-channel: the agent left
    "pipecat": (0, 1),  # AudioBufferProcessor: user left, bot right
}


def channels_of_layout(layout: str) -> tuple[int, int]:
    """(caller, agent) of a product's recordings. Raises UsageError for a product that is not known."""
    if layout not in LAYOUTS:
        raise UsageError(f"unknown layout {layout!r}", next_step=f"use {', '.join(LAYOUTS)}, or name the channels")
    return LAYOUTS[layout]
