"""Statistics as dumps hold them into W3C objects that may be written down: names, kinds of values, nothing secret.

Sources: webrtc-stats (names and units of today), its obsolete members (`ip`, `mediaType`, `isRemote`, the `track`
objects whose members moved to `inbound-rtp`), and the spellings of types before 2016 (`inboundrtp`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence, Set
from functools import lru_cache
from typing import Any

from analysis.dumps.legacy import LEGACY_TYPES, from_legacy
from analysis.dumps.records import wall_ms
from analysis.dumps.texts import is_field_name, is_secret_name, plain_id, plain_text

__all__ = ["FIXED_FIELDS", "left_out_warning", "w3c_objects"]

MAX_FIELDS = 400
MAX_INTEGER = 1 << 64  # priority of a candidate pair is of 64 bits
_OLD_TYPES = {
    "inboundrtp": "inbound-rtp",
    "outboundrtp": "outbound-rtp",
    "candidatepair": "candidate-pair",
}
_OLD_NAMES = {"ip": "address", "mediaType": "kind"}
_LEFT_OUT = {"id", "type", "timestamp"}
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


def left_out_warning(left_out: Set[str]) -> list[str]:
    """What is to be said of texts that were left out: one warning, or none."""
    if not left_out:
        return []
    what = "1 field holds text" if len(left_out) == 1 else f"{len(left_out):,} fields hold text"
    return [f"{what} that statistics do not define, or too much of it; left out, since it may be a secret"]


def w3c_objects(raw: Iterable[tuple[str, Mapping[str, Any]]], left_out: set[str] | None = None) -> list[dict[str, Any]]:
    """The W3C objects of one getStats() call.

    Parameters
    ----------
    raw : iterable of (id, mapping)
        As the dump has them. Those without a type are left out; so are fields whose value cannot be what they are.
    left_out : set of str, optional
        The names of fields that were left out because they hold text that they should not are added here.

    Returns
    -------
    list of dict
        Each with `id` and `type`, and `timestamp` where it is known.
    """
    found: list[dict[str, Any]] = []
    left_out = set() if left_out is None else left_out
    for id_, fields in raw:
        type_ = fields.get("type")
        if not isinstance(type_, str) or not is_field_name(type_):
            continue
        if type_ in LEGACY_TYPES:
            found += [_cleaned(each_id, each, left_out) for each_id, each in from_legacy(id_, fields)]
            continue
        type_ = _OLD_TYPES.get(type_, type_)
        if fields.get("isRemote") is True and type_ in ("inbound-rtp", "outbound-rtp"):
            type_ = f"remote-{type_}"
        found.append(_cleaned(id_, {**fields, "type": type_}, left_out))
    _move_track_members(found)
    return found


def _move_track_members(stats: Sequence[dict[str, Any]]) -> None:
    tracks = {o["id"]: o for o in stats if o["type"] == "track"}
    for o in stats if tracks else ():
        if o["type"] == "inbound-rtp" and (track := tracks.get(str(o.get("trackId")))) is not None:
            for name in _MOVED & track.keys() - o.keys():
                o[name] = track[name]


def _cleaned(id_: str, fields: Mapping[str, Any], left_out: set[str]) -> dict[str, Any]:
    clean: dict[str, Any] = {"id": plain_id(id_), "type": fields["type"]}
    time_ms = wall_ms(fields.get("timestamp"))
    if time_ms is not None:
        clean["timestamp"] = time_ms
    for said, value in fields.items():
        name = _name(said)
        if name is None or name in clean:
            continue
        # what an application calls its data channels is the only label that there is
        kept = None if name == "label" and fields["type"] != "data-channel" else _value(name, value)
        if kept is not None:
            clean[name] = kept
        elif name not in _NUMBERS and _holds_text(value):
            left_out.add(name)
        if len(clean) >= MAX_FIELDS:
            break
    return clean


@lru_cache(maxsize=4096)
def _name(said: str) -> str | None:
    """The name of a field that may be written down, as W3C has it, or None."""
    # in brackets stands what chrome://webrtc-internals worked out of two calls
    if said in _LEFT_OUT or said.startswith("[") or not is_field_name(said) or is_secret_name(said):
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
        below = {str(k): each for k, each in list(value.items())[:MAX_FIELDS] if not isinstance(each, str)}
        return {k: v for k, each in below.items() if _keeps(k) and (v := _scalar(k, each)) is not None} or None
    if isinstance(value, list):
        listed = [_scalar(name, each) for each in value[:MAX_FIELDS]]
        return listed if listed and all(each is not None for each in listed) else None
    return _scalar(name, value)


def _scalar(name: str, value: Any) -> str | int | float | bool | None:
    if isinstance(value, bool):
        return value
    if isinstance(value, (int, float)):
        return _number(value)
    return plain_text(name, value) if isinstance(value, str) else None


def _holds_text(value: Any) -> bool:
    if isinstance(value, (Mapping, list)):
        return any(isinstance(each, str) for each in (value.values() if isinstance(value, Mapping) else value))
    return isinstance(value, str) and value != ""


def _keeps(key: str) -> bool:
    """Whether a key of a table may be written down; tables of statistics hold numbers (of packets by DSCP, seconds)."""
    return (is_field_name(key) or key.isdecimal()) and not is_secret_name(key)


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
