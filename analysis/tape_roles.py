"""A tape and what was said of it in, whose channel is which and what is odd about either out; nothing is guessed."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from analysis.errors import NotMeasurable, UsageError
from analysis.layouts import LAYOUTS, channels_of_layout
from analysis.references import Occurrence, Reference, find_references
from analysis.tape import Channel, Tape, gain_in, same_sound, silent

__all__ = ["Sightings", "find_roles", "look_at"]

LATE_S = 1.0  # digital silence at a channel's beginning that is worth saying
CHUNK_S = 1.0
FLOOR_S, FLOOR_ZEROS = 60.0, 0.02
MIXED_GAIN = 0.32  # -10 dB: louder than any echo that is predicted
HOW = f"name them: --caller-channel and --agent-channel (from 0), or --layout {'|'.join(LAYOUTS)}"


class Sightings:
    """Where the references are said on each channel: looked for when first asked, and once."""

    def __init__(self, tape: Tape, references: Sequence[Reference]) -> None:
        self.references = tuple(references)
        self._tape = tape
        self._found: dict[int, list[Occurrence]] = {}

    def on(self, channel: int) -> list[Occurrence]:
        """All of them on a channel, in order of time."""
        if channel not in self._found:
            self._found[channel] = find_references(self._tape.channels[channel], self._tape.rate_hz, self.references)
        return self._found[channel]


def find_roles(
    tape: Tape,
    sightings: Sightings,
    caller: int | None,
    agent: int | None,
    layout: str | None,
    warnings: list[str],
) -> tuple[int, int]:
    """The caller's and the agent's channel.

    Raises
    ------
    UsageError
        If they are not named and the references do not tell them, or are named wrongly.
    NotMeasurable
        If there is one channel only.
    """
    count = len(tape.channels)
    if count == 1:
        raise NotMeasurable(
            "one_channel",
            f"{tape.name}: has one channel, so caller and agent cannot be told apart",
            next_step="give a recording with a channel each, or two files by --pair CALLER AGENT",
        )
    if layout is not None:
        if caller is not None or agent is not None:
            raise UsageError("--layout and named channels", next_step="give one of the two")
        caller, agent = channels_of_layout(layout)
    if caller is None and agent is None:
        return _by_references(tape, sightings, warnings)
    if count == 2:
        caller = 1 - agent if caller is None and agent in (0, 1) else caller
        agent = 1 - caller if agent is None and caller in (0, 1) else agent
    for number in (caller, agent):
        if number is None or not 0 <= number < count:
            shown = "is not named" if number is None else f"{number} is not there"
            raise UsageError(f"{tape.name}: has channels 0 to {count - 1}, and one {shown}", next_step=HOW)
    if caller == agent:
        raise UsageError(f"{tape.name}: channel {caller} cannot be both the caller's and the agent's", next_step=HOW)
    assert caller is not None
    assert agent is not None
    return caller, agent


def _by_references(tape: Tape, sightings: Sightings, warnings: list[str]) -> tuple[int, int]:
    """The channel on which the references are said is the caller's, where only one is."""
    references = sightings.references
    said = [number for number in range(len(tape.channels)) if sightings.on(number)]
    if len(tape.channels) == 2 and len(said) == 1:
        caller = said[0]
        warnings.append(f"channel {caller} is taken as the caller's: the references are said on it, and only there")
        return caller, 1 - caller
    why = "the references are said on none of them" if references and not said else "whose is which is not said"
    why = "the references are said on several of them" if len(said) > 1 else why
    raise UsageError(f"{tape.name}: has {len(tape.channels)} channels, {why}", next_step=HOW)


def look_at(tape: Tape, caller: int, agent: int, sightings: Sightings, warnings: list[str]) -> None:
    """Refuse channels that carry no call, and say what is odd about them.

    Raises
    ------
    NotMeasurable
        If the channels are the same, or one is silent throughout, or they seem to be swapped.
    """
    nothing = silent(tape.channels)
    for name, number in (("caller", caller), ("agent", agent)):
        if number in nothing:
            raise NotMeasurable(
                f"{name}_channel_empty",
                f"{tape.name}: the {name}'s channel ({number}) holds nothing but digital silence",
                next_step="check the recorder, or the channels that were named",
            )
    one, other = tape.channels[caller], tape.channels[agent]
    gains = gain_in(one, other, tape.rate_hz), gain_in(other, one, tape.rate_hz)
    if same_sound(*gains):
        raise NotMeasurable(
            "same_channels",
            f"{tape.name}: channels {caller} and {agent} hold the same, so caller and agent cannot be told apart",
            next_step="record the two parties on channels of their own",
        )
    for name, number, mix, gain in (("caller", caller, agent, gains[0]), ("agent", agent, caller, gains[1])):
        if gain is not None and abs(gain) >= MIXED_GAIN:
            raise NotMeasurable(
                "channel_is_a_mix",
                f"{tape.name}: channel {mix} is a mix: it holds what the {name} says on channel {number}, as loud",
                next_step="record the two parties on channels of their own",
            )
    for name, number in (("caller", caller), ("agent", agent)):
        begins = _begins_at(tape.channels[number], tape.rate_hz)
        if begins / tape.rate_hz > LATE_S and _has_a_floor(tape.channels[number], begins, tape.rate_hz):
            warnings.append(
                f"the {name}'s channel ({number}) holds digital silence for its first {begins / tape.rate_hz:.1f} s"
            )
    if sightings.references and not sightings.on(caller):
        if sightings.on(agent):
            raise NotMeasurable(
                "channels_swapped",
                f"{tape.name}: the references are said on channel {agent}, which was named the agent's",
                next_step="swap the channels",
            )
        warnings.append("none of the references was recognised: ends of speech are by level alone")


def _has_a_floor(channel: Channel, begin: int, rate_hz: int) -> bool:
    """Whether it holds digital silence no more once it has begun: so the silence before was its recorder's."""
    after = channel[begin : begin + int(FLOOR_S * rate_hz)]
    return float(np.mean(after == 0.0)) < FLOOR_ZEROS


def _begins_at(channel: Channel, rate_hz: int) -> int:
    """The first sample that is not zero."""
    size = int(CHUNK_S * rate_hz)
    for at in range(0, len(channel), size):
        found = np.flatnonzero(channel[at : at + size])
        if len(found):
            return at + int(found[0])
    return len(channel)
