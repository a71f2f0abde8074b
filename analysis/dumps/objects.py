"""Statistics as dumps hold them into W3C objects that may be written down: names, kinds of values, nothing secret.

Sources: webrtc-stats (names and units of today), its obsolete members (`ip`, `mediaType`, `isRemote`, the `track`
objects whose members moved to `inbound-rtp`), and the spellings of types before 2016 (`inboundrtp`).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from analysis.dumps.legacy import LEGACY_TYPES, from_legacy
from analysis.dumps.records import wall_ms

__all__ = ["FIXED_FIELDS", "w3c_objects"]

MAX_FIELDS = 400
MAX_TEXT_CHARS = 2048
MAX_INTEGER = 1 << 64  # priority of a candidate pair is of 64 bits
_OLD_TYPES = {
    "inboundrtp": "inbound-rtp",
    "outboundrtp": "outbound-rtp",
    "candidatepair": "candidate-pair",
}
_OLD_NAMES = {"ip": "address", "mediaType": "kind"}
# what lets somebody into a call or a server, and what is long and of no use
_SECRET = re.compile(r"credential|passw|pwd|ufrag|username|cookie|token|secret|authori[sz]ation|base64", re.I)
_LEFT_OUT = {"id", "type", "timestamp"}
_URL = re.compile(r"([a-z][a-z0-9+.-]*:(?://)?)(?:[^/?#@]*@)?([^?#]*)", re.I)
_URL_FIELDS = {"url", "addressSourceUrl"}
_FIXED = "type kind ssrc mid rid trackIdentifier payloadType mimeType clockRate channels sdpFmtpLine rtxSsrc fecSsrc"
FIXED_FIELDS = frozenset(_FIXED.split())
_TEXT_NAMES = "mid rid trackIdentifier kind state label protocol address candidateType mimeType foundation"
_TEXTS = frozenset(_TEXT_NAMES.split())
_NUMBER_NAMES = """
    packetsReceived packetsLost jitter packetsDiscarded bytesReceived headerBytesReceived packetsSent bytesSent
    headerBytesSent nackCount firCount pliCount jitterBufferDelay jitterBufferTargetDelay jitterBufferMinimumDelay
    jitterBufferEmittedCount totalSamplesReceived concealedSamples silentConcealedSamples concealmentEvents
    insertedSamplesForDeceleration removedSamplesForAcceleration audioLevel totalAudioEnergy totalSamplesDuration
    totalProcessingDelay fecPacketsReceived fecPacketsDiscarded fecBytesReceived roundTripTime totalRoundTripTime
    roundTripTimeMeasurements fractionLost currentRoundTripTime requestsSent responsesReceived requestsReceived
    responsesSent consentRequestsSent totalPlayoutDelay totalSamplesCount synthesizedSamplesDuration
    synthesizedSamplesEvents availableOutgoingBitrate availableIncomingBitrate lastPacketReceivedTimestamp
    lastPacketSentTimestamp estimatedPlayoutTimestamp remoteTimestamp reportsSent totalPacketSendDelay targetBitrate
    retransmittedPacketsSent retransmittedBytesSent retransmittedPacketsReceived retransmittedBytesReceived ssrc
    payloadType clockRate channels port relatedPort framesDecoded framesReceived framesDropped qpSum"""
_NUMBERS = frozenset(_NUMBER_NAMES.split())
_NEVER_NEGATIVE = frozenset(("audioLevel", "jitter", "roundTripTime", "currentRoundTripTime"))  # there −1 is "unknown"
# members of `track` that moved to `inbound-rtp` as they were
_MOVED_NAMES = """
    jitterBufferDelay jitterBufferEmittedCount jitterBufferTargetDelay totalSamplesReceived concealedSamples
    silentConcealedSamples concealmentEvents insertedSamplesForDeceleration removedSamplesForAcceleration audioLevel
    totalAudioEnergy totalSamplesDuration trackIdentifier"""
_MOVED = frozenset(_MOVED_NAMES.split())


def w3c_objects(raw: Iterable[tuple[str, Mapping[str, Any]]]) -> list[dict[str, Any]]:
    """The W3C objects of one getStats() call.

    Parameters
    ----------
    raw : iterable of (id, mapping)
        As the dump has them. Those without a type are left out; so are fields whose value cannot be what they are.

    Returns
    -------
    list of dict
        Each with `id` and `type`, and `timestamp` where it is known.
    """
    found: list[dict[str, Any]] = []
    for id_, fields in raw:
        type_ = fields.get("type")
        if not isinstance(type_, str) or not type_:
            continue
        if type_ in LEGACY_TYPES:
            found += [_cleaned(each_id, each) for each_id, each in from_legacy(id_, fields)]
            continue
        type_ = _OLD_TYPES.get(type_, type_)
        if fields.get("isRemote") is True and type_ in ("inbound-rtp", "outbound-rtp"):
            type_ = f"remote-{type_}"
        found.append(_cleaned(id_, {**fields, "type": type_}))
    _move_track_members(found)
    return found


def _move_track_members(stats: Sequence[dict[str, Any]]) -> None:
    tracks = {o["id"]: o for o in stats if o["type"] == "track"}
    for o in stats if tracks else ():
        if o["type"] == "inbound-rtp" and (track := tracks.get(str(o.get("trackId")))) is not None:
            for name in _MOVED & track.keys() - o.keys():
                o[name] = track[name]


def _cleaned(id_: str, fields: Mapping[str, Any]) -> dict[str, Any]:
    clean: dict[str, Any] = {"id": id_[:MAX_TEXT_CHARS], "type": fields["type"][:MAX_TEXT_CHARS]}
    time_ms = wall_ms(fields.get("timestamp"))
    if time_ms is not None:
        clean["timestamp"] = time_ms
    for said, value in fields.items():
        name = _name(said)
        if name is not None and name not in clean and (kept := _value(name, value)) is not None:
            clean[name] = kept
        if len(clean) >= MAX_FIELDS:
            break
    return clean


@lru_cache(maxsize=4096)
def _name(said: str) -> str | None:
    """The name of a field that may be written down, as W3C has it, or None."""
    # in brackets stands what chrome://webrtc-internals worked out of two calls
    if said in _LEFT_OUT or said.startswith("[") or len(said) > MAX_TEXT_CHARS or _SECRET.search(said):
        return None
    return _OLD_NAMES.get(said, said)


def _value(name: str, value: Any) -> Any:
    """A value that may be written down, or None."""
    if name in _NUMBERS:
        number = _number(value)
        return None if name in _NEVER_NEGATIVE and number is not None and number < 0 else number
    if name in _TEXTS and isinstance(value, (int, float)) and not isinstance(value, bool):
        value = f"{value:g}" if isinstance(value, float) else str(value)
    if value == "" and name in _TEXTS:
        return None
    if isinstance(value, Mapping):
        below = {str(k): v for k, each in list(value.items())[:MAX_FIELDS] if (v := _scalar(str(k), each)) is not None}
        return {k: v for k, v in below.items() if not _SECRET.search(k)} or None
    if isinstance(value, list):
        listed = [_scalar(name, each) for each in value[:MAX_FIELDS]]
        return listed if listed and all(each is not None for each in listed) else None
    return _scalar(name, value)


def _scalar(name: str, value: Any) -> str | int | float | bool | None:
    if isinstance(value, bool):
        return value
    if isinstance(value, (int, float)):
        return _number(value)
    if not isinstance(value, str) or len(value) > MAX_TEXT_CHARS:
        return None
    if name in _URL_FIELDS or "://" in value:
        match = _URL.match(value)
        return match.group(1) + match.group(2) if match else None
    return value


def _number(value: Any) -> int | float | None:
    """A finite number; also one that stands there as text, as old dumps write them."""
    if isinstance(value, str) and len(value) <= 40:
        try:
            value = int(value) if value.lstrip("-").isdigit() else float(value)
        except ValueError:
            return None
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    if isinstance(value, int):
        return value if -MAX_INTEGER < value < MAX_INTEGER else None
    return value if math.isfinite(value) else None
