"""A tapped connection's path into W3C objects: transport, the candidate pair in use with its ends, and codecs.

Source: W3C webrtc-stats (RTCTransportStats, RTCIceCandidatePairStats, RTCIceCandidateStats, RTCCodecStats). What is
unknown is absent; ICE's user names and passwords, and fingerprints, never stand in them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from analysis.units import ns_to_ms, ns_to_s
from probe.checks import PairChecks
from probe.tap import MediaTap

__all__ = ["DISCARDED", "TRANSPORT_ID", "codec_id", "codec_statistics", "path_statistics"]

TRANSPORT_ID = "transport-0"
DISCARDED = "probeSrtpPacketsDiscarded"  # not W3C's: it has no name for what SRTP throws away
MAX_TRIED = 8  # pairs that are listed while none is in use
# IANA's names of the cipher suites that aiortc offers, by OpenSSL's
_CIPHERS = {
    "ECDHE-ECDSA-AES128-GCM-SHA256": "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256",
    "ECDHE-ECDSA-CHACHA20-POLY1305": "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256",
    "ECDHE-ECDSA-AES128-SHA": "TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA",
    "ECDHE-ECDSA-AES256-SHA": "TLS_ECDHE_ECDSA_WITH_AES_256_CBC_SHA",
}
# IANA's names of the DTLS-SRTP protection profiles
_SRTP = {
    "SRTP_AES128_CM_SHA1_80": "SRTP_AES128_CM_HMAC_SHA1_80",
    "SRTP_AEAD_AES_128_GCM": "SRTP_AEAD_AES_128_GCM",
    "SRTP_AEAD_AES_256_GCM": "SRTP_AEAD_AES_256_GCM",
}


def codec_id(payload_type: int) -> str:
    """The id of a payload type's `codec` object."""
    return f"codec-{payload_type}"


def codec_statistics(codec: Any) -> dict[str, Any]:
    """`codec` of one of aiortc's negotiated codecs."""
    fields = {
        "id": codec_id(int(codec.payloadType)),
        "type": "codec",
        "transportId": TRANSPORT_ID,
        "payloadType": int(codec.payloadType),
        "mimeType": codec.mimeType,
        "clockRate": codec.clockRate,
    }
    if codec.channels:
        fields["channels"] = codec.channels
    if codec.parameters:
        fields["sdpFmtpLine"] = ";".join(k if v is None else f"{k}={v}" for k, v in codec.parameters.items())
    return fields


def path_statistics(tap: MediaTap, wall_shift_ns: int) -> list[dict[str, Any]]:
    """`transport`, `candidate-pair`, `local-candidate` and `remote-candidate`, without their timestamps.

    Of candidate pairs, the one in use; while there is none, up to eight that are being tried. Their numbers are those
    in which ICE's own lists hold them, which only grow. `wall_shift_ns` is wall time less monotonic time.
    """
    dtls = tap.dtls
    ice = dtls.transport._connection
    selected = tap.selected.get(1)
    pairs = [selected] if selected is not None else list(ice._check_list[:MAX_TRIED])
    stats = [_transport(tap, dtls)]
    for pair in pairs:
        local_id = f"local-candidate-{_index(ice._protocols, pair.protocol)}"
        remote_id = f"remote-candidate-{_index(ice._remote_candidates, pair.remote_candidate)}"
        pair_id = f"candidate-pair-{local_id[16:]}-{remote_id[17:]}"
        fields = {
            "id": pair_id,
            "type": "candidate-pair",
            "transportId": TRANSPORT_ID,
            "localCandidateId": local_id,
            "remoteCandidateId": remote_id,
            "state": pair.state.name.lower().replace("_", "-"),
            "nominated": pair.nominated,
            **_check_fields(tap.checks.pairs.get((pair.protocol, pair.remote_addr))),
        }
        if pair is selected:
            stats[0]["selectedCandidatePairId"] = pair_id
            fields |= _traffic(tap) | _last_packets(tap, wall_shift_ns)
        stats += [fields, _candidate(local_id, "local-candidate", pair.local_candidate, pair.local_addr[0])]
        stats.append(_candidate(remote_id, "remote-candidate", pair.remote_candidate, pair.remote_addr[0]))
    return stats


def _index(among: list[Any], wanted: Any) -> int:
    return next((i for i, one in enumerate(among) if one is wanted), len(among))


def _traffic(tap: MediaTap) -> dict[str, Any]:
    return {
        "packetsSent": tap.packets_sent,
        "packetsReceived": tap.packets_received,
        "bytesSent": tap.bytes_sent,
        "bytesReceived": tap.bytes_received,
    }


def _last_packets(tap: MediaTap, wall_shift_ns: int) -> dict[str, float]:
    times = {"lastPacketSentTimestamp": tap.last_sent_ns, "lastPacketReceivedTimestamp": tap.last_received_ns}
    return {name: ns_to_ms(time_ns + wall_shift_ns) for name, time_ns in times.items() if time_ns is not None}


def _check_fields(checks: PairChecks | None) -> dict[str, Any]:
    if checks is None:
        return {}
    fields: dict[str, Any] = {
        "requestsSent": checks.requests_sent,
        "consentRequestsSent": checks.consent_requests_sent,
        "responsesReceived": checks.responses_received,
        "requestsReceived": checks.requests_received,
        "responsesSent": checks.responses_sent,
    }
    if checks.last_ns is not None:
        fields |= {"currentRoundTripTime": ns_to_s(checks.last_ns), "totalRoundTripTime": ns_to_s(checks.total_ns)}
    return fields


def _candidate(id_: str, type_: str, candidate: Any, address: str) -> dict[str, Any]:
    fields = {
        "id": id_,
        "type": type_,
        "transportId": TRANSPORT_ID,
        "address": address,
        "port": candidate.port,
        "protocol": candidate.transport.lower(),
        "candidateType": candidate.type,
        "priority": candidate.priority,
        "foundation": candidate.foundation,
    }
    if candidate.related_address is not None:
        fields |= {"relatedAddress": candidate.related_address, "relatedPort": candidate.related_port}
    return fields


def _transport(tap: MediaTap, dtls: Any) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "id": TRANSPORT_ID,
        "type": "transport",
        "dtlsState": dtls.state,
        "iceState": dtls.transport.state,
        "iceRole": dtls.transport.role,
        "selectedCandidatePairChanges": tap.selected.changes,
        **_traffic(tap),
        DISCARDED: tap.undecryptable,
    }
    if dtls._role in ("client", "server"):
        fields["dtlsRole"] = dtls._role
    if dtls.encrypted and dtls._ssl is not None:
        fields["tlsVersion"] = f"{dtls._ssl.get_protocol_version():04X}"
        known: Mapping[str, str | None] = {
            "dtlsCipher": _CIPHERS.get(dtls._ssl.get_cipher_name() or ""),
            "srtpCipher": _SRTP.get(dtls._ssl.get_selected_srtp_profile().decode(errors="replace")),
        }
        fields |= {name: value for name, value in known.items() if value is not None}
    return fields
