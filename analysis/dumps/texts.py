"""Texts of statistics objects into what may be written down of them: fields that are texts by definition, nothing else.

Sources: webrtc-stats (members of type DOMString and of enumerations), Chrome's additions to it and its legacy
statistics. A dump may have been edited or written by anybody's script, and whoever imports it may pass the bundle on.
"""

from __future__ import annotations

import re
import zlib
from functools import lru_cache

__all__ = ["MAX_TEXT_CHARS", "TEXT_FIELDS", "is_field_name", "is_secret_name", "plain_id", "plain_text"]

MAX_TEXT_CHARS = 200
MAX_NUMBER_CHARS = 24
_TEXT_NAMES = """
    kind mid rid trackIdentifier mimeType sdpFmtpLine contentType decoderImplementation encoderImplementation
    scalabilityMode qualityLimitationReason googTimingFrameInfo state protocol relayProtocol address relatedAddress
    candidateType foundation tcpType networkType networkAdapterType url iceRole iceState dtlsState dtlsRole dtlsCipher
    srtpCipher tlsVersion fingerprint fingerprintAlgorithm streamIdentifier label
    codec implementation codecImplementationName googCodecName googContentType googTransportType googLocalAddress
    googRemoteAddress googLocalCandidateType googRemoteCandidateType googFingerprint googFingerprintAlgorithm"""
_REFERENCE_NAMES = """
    codecId transportId remoteId localId playoutId mediaSourceId trackId mediaTrackId receiverId senderId streamId
    selectedCandidatePairId localCertificateId remoteCertificateId issuerCertificateId rtcpTransportStatsId
    localCandidateId remoteCandidateId inboundRtpStreamId associateStatsId googChannelId trackIds"""
_REFERENCES = frozenset(_REFERENCE_NAMES.split())
TEXT_FIELDS = frozenset(_TEXT_NAMES.split()) | _REFERENCES
"""Fields whose values are texts, references to other objects among them."""
# what lets somebody into a call or a server, and what is long and of no use
_SECRET_NAME = re.compile(r"credential|passw|pwd|ufrag|username|cookie|token|secret|authori[sz]ation|base64", re.I)
_SECRET_VALUE = re.compile(
    r"\b(?:bearer|basic)\s|ice-(?:pwd|ufrag)|passw(?:or)?d\s*[=:]|secret\s*[=:]|token\s*[=:]|api-?key", re.I
)
_NUMBER = re.compile(r"[-+]?\d[\d.]*(?:e[-+]?\d+)?|true|false", re.I)
_FIELD = re.compile(r"[A-Za-z_][\w.-]{0,99}", re.ASCII)
_NOT_OF_IDS = re.compile(r"[^\w.:,;=+/{}()\[\]-]", re.ASCII)
_URL = re.compile(r"([a-z][a-z0-9+.-]*:(?://)?)(?:[^/?#@]*@)?([^?#]*)", re.I)


def is_secret_name(name: str) -> bool:
    """True where a field's name speaks of what lets somebody in."""
    return _SECRET_NAME.search(name) is not None


def is_field_name(name: str) -> bool:
    """True for what a field may be called; keys that are texts of another kind are none."""
    return _FIELD.fullmatch(name) is not None


@lru_cache(maxsize=4096)
def plain_id(id_: str) -> str:
    """An object's id, of plain characters and at most 200 of them; one that had to be changed stays distinct.

    References go the same way, so that they still refer.
    """
    plain = _NOT_OF_IDS.sub("_", id_)
    if plain == id_ and len(id_) <= MAX_TEXT_CHARS and not _SECRET_VALUE.search(id_):
        return id_
    mark = f"{zlib.crc32(id_.encode(errors='replace')):08x}"
    return f"id-{mark}" if _SECRET_VALUE.search(id_) else f"{plain[: MAX_TEXT_CHARS - 9]}-{mark}"


@lru_cache(maxsize=4096)
def plain_text(name: str, value: str) -> str | None:
    """The text of a field as it may be written down; None where it may not.

    Of a URL, user, query and fragment are cut. A number that stands as text may be in any field.
    """
    if len(value) <= MAX_NUMBER_CHARS and _NUMBER.fullmatch(value):
        return value
    if name in _REFERENCES:
        return plain_id(value)
    if name not in TEXT_FIELDS or not value.isprintable():
        return None
    if name == "url" or "://" in value:
        match = _URL.match(value)
        value = match.group(1) + match.group(2) if match else ""
    return value if 0 < len(value) <= MAX_TEXT_CHARS and not _SECRET_VALUE.search(value) else None
