"""What a call can be made to: the interface of a target and how one is found by the scheme of its URL.

A target is given the probe's audio track and returns a negotiated session. Each lives in one module, knows nothing of
the others, and is registered under the entry point group `latency_probe.targets` by its URL scheme.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from typing import Any, Protocol

from aiortc import MediaStreamTrack, RTCPeerConnection

from analysis.errors import SessionError, UsageError

__all__ = ["ENTRY_POINT_GROUP", "AgentEvent", "CallRequest", "Session", "Target", "target_for"]

ENTRY_POINT_GROUP = "latency_probe.targets"


@dataclass(frozen=True, slots=True)
class AgentEvent:
    """Something an agent said of itself. `clock` names the clock of any time in `fields`; `time_ns` is its arrival."""

    time_ns: int
    type: str
    clock: str
    fields: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class CallRequest:
    """What a target needs to make one call: its number in the run, the track to publish, the codec, the language."""

    call: int
    track: MediaStreamTrack
    codec: str
    ptime_ms: int
    language: str


class Session(Protocol):
    """A call whose both descriptions are applied.

    Attributes
    ----------
    pc : RTCPeerConnection
        With one audio transceiver; it may still be connecting.
    events : asyncio.Queue of AgentEvent
    lost : asyncio.Future of SessionError
        Done when the agent is known to be gone, with why.
    remote_sdp : str
        The agent's description as it came: aiortc's own drops lines that it does not know (see `probe.sdp`).
    """

    pc: RTCPeerConnection
    events: asyncio.Queue[AgentEvent]
    lost: asyncio.Future[SessionError]
    remote_sdp: str

    async def close(self) -> None:
        """Leave the call; never raises."""
        ...


class Target(Protocol):
    """Something that can be called. Made with the URL that the user gave."""

    def __init__(self, url: str) -> None:
        """Raises UsageError where the URL does not fit."""
        ...

    @property
    def description(self) -> Mapping[str, Any]:
        """For the manifest: the URL without secrets, and settings. Never a token."""
        ...

    def check(self, codec: str) -> None:
        """Raises UsageError where it is known beforehand that no call with this codec can be made."""
        ...

    async def connect(self, request: CallRequest) -> Session:
        """Negotiate one call. Raises CallFailed with the reason."""
        ...

    async def close(self) -> None:
        """Give back what the target started."""
        ...


def target_for(url: str) -> Target:
    """The target for a URL.

    Raises
    ------
    UsageError
        If there is no scheme, or none is installed for it.
    """
    scheme, colon, _ = url.partition(":")
    found = {point.name: point for point in entry_points(group=ENTRY_POINT_GROUP)}
    if not colon or scheme not in found:
        known = ", ".join(f"{name}:" for name in sorted(found)) or "none"
        raise UsageError(f"no target for {url!r}", next_step=f"targets that are installed: {known}")
    target: Target = found[scheme].load()(url)
    return target
