"""Statistics of Chrome's callback getStats() (to 2022, the default of webrtc-internals to 2018) as W3C objects.

Source: libwebrtc's legacy stats collector. A name is mapped where W3C defines the same quantity, with its unit; every
other field stays as it is under its own name. Delays of the jitter buffer (`googCurrentDelayMs`, `googJitterBufferMs`,
`googPreferredJitterBufferMs`) are momentary values, not W3C's sums, so they stay; so does a candidate pair's `googRtt`,
which is smoothed. −1 stands for "unknown" in all of them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from typing import Any

__all__ = ["DERIVED_NAME", "LEGACY_TYPES", "from_legacy"]

DERIVED_NAME = re.compile(r"(?:bits|packets)(?:Sent|Received)PerSecond")  # made up by the page from two polls
LEGACY_TYPES = frozenset(
    ("ssrc", "remoteSsrc", "googCandidatePair", "googComponent", "localcandidate", "remotecandidate")
)
AUDIO_LEVEL_MAX = 32767.0
_CANDIDATE_TYPES = {"serverreflexive": "srflx", "peerreflexive": "prflx", "relayed": "relay"}


def _plain(value: Any) -> Any:
    return value


def _known(value: Any) -> float | None:
    """A number that is not −1, also where it stands as text."""
    if isinstance(value, bool):
        return None
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return number if math.isfinite(number) and number != -1.0 else None


def _count(value: Any) -> int | None:
    number = _known(value)
    return None if number is None else int(number)


def _ms(value: Any) -> float | None:
    number = _known(value)
    return None if number is None or number < 0 else number / 1000.0


def _level(value: Any) -> float | None:
    number = _known(value)
    return None if number is None or number < 0 else number / AUDIO_LEVEL_MAX


_Map = dict[str, tuple[str, Callable[[Any], Any]]]
_STREAM: _Map = {
    "ssrc": ("ssrc", _count),
    "mediaType": ("kind", _plain),
    "transportId": ("transportId", _plain),
    "googTrackId": ("trackIdentifier", _plain),
}
_RECEIVED: _Map = {
    **_STREAM,
    "packetsReceived": ("packetsReceived", _count),
    "bytesReceived": ("bytesReceived", _count),
    "packetsLost": ("packetsLost", _count),
    "googJitterReceived": ("jitter", _ms),
    "audioOutputLevel": ("audioLevel", _level),
    "totalAudioEnergy": ("totalAudioEnergy", _known),
    "totalSamplesDuration": ("totalSamplesDuration", _known),
    "googNacksSent": ("nackCount", _count),
    "googPlisSent": ("pliCount", _count),
    "googFirsSent": ("firCount", _count),
    "googFrameWidthReceived": ("frameWidth", _count),
    "googFrameHeightReceived": ("frameHeight", _count),
    "framesDecoded": ("framesDecoded", _count),
}
_SENT: _Map = {
    **_STREAM,
    "packetsSent": ("packetsSent", _count),
    "bytesSent": ("bytesSent", _count),
    "googNacksReceived": ("nackCount", _count),
    "googPlisReceived": ("pliCount", _count),
    "googFirsReceived": ("firCount", _count),
    "googFrameWidthSent": ("frameWidth", _count),
    "googFrameHeightSent": ("frameHeight", _count),
    "framesEncoded": ("framesEncoded", _count),
}
_REPORTED: _Map = {  # what the other side's receiver reports say of a sent stream
    "packetsLost": ("packetsLost", _count),
    "googJitterReceived": ("jitter", _ms),
    "googRtt": ("roundTripTime", _ms),
}
_PAIR: _Map = {
    "googChannelId": ("transportId", _plain),
    "localCandidateId": ("localCandidateId", _plain),
    "remoteCandidateId": ("remoteCandidateId", _plain),
    "bytesSent": ("bytesSent", _count),
    "bytesReceived": ("bytesReceived", _count),
    "packetsSent": ("packetsSent", _count),
}
_CANDIDATE: _Map = {
    "ipAddress": ("address", _plain),
    "portNumber": ("port", _count),
    "transport": ("protocol", _plain),
    "candidateType": ("candidateType", lambda value: _CANDIDATE_TYPES.get(value, value)),
    "priority": ("priority", _count),
    "networkType": ("networkType", _plain),
}
_OTHERS: Mapping[str, tuple[str, _Map]] = {
    "googCandidatePair": ("candidate-pair", _PAIR),
    "googComponent": ("transport", {}),
    "localcandidate": ("local-candidate", _CANDIDATE),
    "remotecandidate": ("remote-candidate", _CANDIDATE),
}


def from_legacy(id_: str, fields: Mapping[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """The W3C objects that one legacy object stands for: itself, and of a sent stream what was reported of it.

    Parameters
    ----------
    id_ : str
        Such as `ssrc_305419896_recv`; it tells the direction of a stream.
    fields : mapping
        With a `type` out of `LEGACY_TYPES`.
    """
    type_ = fields["type"]
    if type_ in _OTHERS:
        w3c_type, names = _OTHERS[type_]
        return [(id_, _mapped(fields, names, w3c_type))]
    if type_ == "remoteSsrc" or not id_.endswith(("_recv", "_send")):
        return [(id_, dict(fields))]
    if id_.endswith("_recv"):
        return [(id_, _mapped(fields, _RECEIVED, "inbound-rtp"))]
    sent = _mapped({k: v for k, v in fields.items() if k not in _REPORTED}, _SENT, "outbound-rtp")
    reported = {k: fields[k] for k in (*_REPORTED, "timestamp") if k in fields}
    remote = _mapped(reported, _REPORTED, "remote-inbound-rtp")
    if not remote.keys() - {"type", "timestamp"}:
        return [(id_, sent)]
    remote_id = f"remote-inbound-{id_}"
    shared = {k: sent[k] for k in ("ssrc", "kind") if k in sent}
    return [(id_, sent | {"remoteId": remote_id}), (remote_id, remote | shared | {"localId": id_})]


def _mapped(fields: Mapping[str, Any], names: _Map, type_: str) -> dict[str, Any]:
    found: dict[str, Any] = {"type": type_}
    for name, value in fields.items():
        if name == "type" or DERIVED_NAME.fullmatch(name):
            continue
        w3c_name, convert = names.get(name, (name, _plain))
        converted = convert(value)
        if converted is not None:
            found[w3c_name] = converted
    return found
