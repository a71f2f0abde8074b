"""Dumps of rtcstats into snapshots: lines of API calls, in which getStats() is written as what changed since the last.

Sources: rtcstats-server's description of its dump format (v3: `RTCStatsDump`, a line of metadata, then lines
`[method, connection, value, …, ms since the line before]`), which chrome://webrtc-internals writes too, but with whole
statistics; and the dumps of the servers before it (`[method, connection, value, ms since 1970]`, also as one JSON
object with a list for each connection). v3 numbers the names of fields, types and objects; those numbers never change.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from analysis.counting import counted
from analysis.dumps.objects import FIXED_FIELDS, left_out_warning, w3c_objects
from analysis.dumps.records import (
    Dump,
    PeerConnection,
    Snapshot,
    is_remote,
    label,
    poll_time_ms,
    snapshot,
    wall_ms,
)
from analysis.dumps.scanning import Damaged, Scanner, decode

__all__ = ["FORMAT", "HEADER", "is_event", "read_rtcstats_lines", "read_rtcstats_object"]

FORMAT = "rtcstats"
HEADER = "RTCStatsDump"
ABSOLUTE_FROM_MS = 1e11  # no two lines lie three years apart: such a "difference" begins a new count
MAX_LINES = 4_000_000  # a day of ten peer connections has one
BACKWARD_MS = 1000.0
_METHODS = frozenset(("getStats", "getstats", "g", 1))
_BEGINNINGS = frozenset(("create", 39))
_TYPE_NAMES = """
    inbound-rtp outbound-rtp remote-inbound-rtp remote-outbound-rtp transport candidate-pair local-candidate
        remote-candidate data-channel peer-connection certificate media-source media-playout codec"""
_TYPES = dict(enumerate(_TYPE_NAMES.split(), start=1))
_UNUSED = "-"
_FIELD_NAMES = """
    payloadType transportId mimeType clockRate channels sdpFmtpLine ssrc kind codecId - packetsReceived
    packetsLost jitter trackIdentifier mid remoteId framesDecoded keyFramesDecoded framesDropped frameWidth
    frameHeight framesPerSecond qpSum totalDecodeTime totalInterFrameDelay totalSquaredInterFrameDelay pauseCount
    totalPausesDuration freezeCount totalFreezesDuration lastPacketReceivedTimestamp headerBytesReceived
    packetsDiscarded fecPacketsReceived fecPacketsDiscarded fecBytesReceived fecSsrc bytesReceived nackCount
    firCount pliCount totalProcessingDelay estimatedPlayoutTimestamp jitterBufferDelay jitterBufferTargetDelay
    jitterBufferEmittedCount jitterBufferMinimumDelay totalSamplesReceived concealedSamples silentConcealedSamples
    concealmentEvents insertedSamplesForDeceleration removedSamplesForAcceleration audioLevel totalAudioEnergy
    totalSamplesDuration framesReceived decoderImplementation playoutId powerEfficientDecoder
    framesAssembledFromMultiplePackets totalAssemblyTime contentType googTimingFrameInfo
    retransmittedPacketsReceived retransmittedBytesReceived rtxSsrc totalCorruptionProbability
    totalSquaredCorruptionProbability corruptionMeasurements localId roundTripTime totalRoundTripTime fractionLost
    roundTripTimeMeasurements packetsSent bytesSent mediaSourceId rid encodingIndex headerBytesSent
    retransmittedPacketsSent retransmittedBytesSent targetBitrate totalEncodedBytesTarget framesSent hugeFramesSent
    framesEncoded keyFramesEncoded totalEncodeTime totalPacketSendDelay qualityLimitationReason
    qualityLimitationDurations qualityLimitationResolutionChanges encoderImplementation powerEfficientEncoder
    active scalabilityMode remoteTimestamp reportsSent echoReturnLoss echoReturnLossEnhancement width height frames
    synthesizedSamplesDuration synthesizedSamplesEvents totalPlayoutDelay totalSamplesCount dataChannelsOpened
    dataChannelsClosed label protocol dataChannelIdentifier state messagesSent messagesReceived iceRole
    iceLocalUsernameFragment dtlsState iceState selectedCandidatePairId localCertificateId remoteCertificateId
    tlsVersion dtlsCipher dtlsRole srtpCipher selectedCandidatePairChanges rtcpTransportStatsId address port
    candidateType priority url relayProtocol foundation relatedAddress relatedPort usernameFragment tcpType
    networkType - - localCandidateId remoteCandidateId nominated lastPacketSentTimestamp currentRoundTripTime
    availableOutgoingBitrate availableIncomingBitrate requestsReceived requestsSent responsesReceived responsesSent
    consentRequestsSent packetsDiscardedOnSend bytesDiscardedOnSend - fingerprint fingerprintAlgorithm
    base64Certificate issuerCertificateId psnrMeasurements psnrSum packetsReceivedWithEct1 packetsReceivedWithCe
    packetsReportedAsLost packetsReportedAsLostButRecovered packetsWithBleachedEct1Marking packetsSentWithEct1
    ccfbMessagesSent ccfbMessagesReceived"""
_NUMBERED = {str(number): name for number, name in enumerate(_FIELD_NAMES.split(), start=4) if name != _UNUSED}
_FIELDS = _NUMBERED | {"t": "timestamp"}
_Reports = dict[str, dict[str, Any]]


@dataclass(slots=True)
class _Connection:
    base: _Reports = field(default_factory=dict)
    snapshots: list[Snapshot] = field(default_factory=list)
    typeless: bool = False
    unread: int = 0
    backward: bool = False
    left_out: set[str] = field(default_factory=set)


@dataclass(slots=True)
class _State:
    """What reading a dump has come to."""

    differences: bool  # times are differences
    vanishing: bool = False  # objects that a difference does not name are gone (clients of protocol 3 before v3)
    time_ms: float = 0.0
    user_agent: str | None = None
    connections: dict[str, _Connection] = field(default_factory=dict)


def is_event(value: Any) -> bool:
    """True for what a line of API calls is: `[method, connection, value, …, time]`."""
    return (
        isinstance(value, list)
        and len(value) >= 3
        and isinstance(value[0], (str, int))
        and not isinstance(value[0], bool)
        and (value[1] is None or isinstance(value[1], (str, int)))
    )


def read_rtcstats_lines(text: str) -> Dump:
    """Read a dump of lines, as far as they are whole; a first line `RTCStatsDump` says that it is v3."""
    state = _State(differences=text.lstrip("\ufeff \r\n\t").startswith(HEADER))
    warnings: list[str] = []
    damaged: list[int] = []
    last = 0
    for number, line in _lines(text):
        last = number
        if number > MAX_LINES:
            warnings.append(f"the dump has more than {MAX_LINES:,} lines; the rest was not read")
            break
        if line.startswith(HEADER):
            continue
        try:
            value = decode(line)
        except Damaged:
            damaged.append(number)
            for connection in state.connections.values():
                _forget(connection)
            continue
        if isinstance(value, dict):
            state.user_agent = state.user_agent or label(value.get("userAgent"))
        elif is_event(value):
            _event(state, value)
    if damaged == [last]:
        warnings.append(f"the dump is cut off in line {last:,}; all lines before it were read")
    elif damaged:
        warnings.append(
            f"{counted(len(damaged), 'line')} left out, not JSON (the first is line {damaged[0]:,}); "
            "values that may have changed in them are absent until they are told again"
        )
    return _dump(state, warnings)


def read_rtcstats_object(scanner: Scanner) -> Dump:
    """Read a dump that is one JSON object (the servers' first form), as far as it is whole."""
    state, warnings = _State(differences=False), list[str]()
    try:
        for key in scanner.object():
            if key == "userAgent":
                state.user_agent = label(scanner.value())
            elif key == "peerConnections" and scanner.peek() == "{":
                for name in scanner.object():
                    state.connections.setdefault(name, _Connection())
                    for _ in scanner.array() if scanner.peek() == "[" else ():
                        event = scanner.value()
                        if isinstance(event, dict):
                            _event(state, [event.get("type"), name, event.get("value"), event.get("time")])
    except Damaged as exc:
        what = "cut off" if exc.cut else "damaged"
        warnings.append(
            f"the dump is {what} after {exc.position:,} of {len(scanner.text):,} characters; what is whole was read"
        )
    return _dump(state, warnings)


def _lines(text: str) -> Iterator[tuple[int, str]]:
    """Lines that are not empty, numbered from 1; only a line feed ends one (JSON may hold other separators)."""
    start = number = 0
    while start < len(text):
        number += 1
        end = text.find("\n", start)
        end = len(text) if end < 0 else end
        line = text[start:end].strip(" \t\r\ufeff")
        if line:
            yield number, line
        start = end + 1


def _dump(state: _State, warnings: list[str]) -> Dump:
    found = []
    for name, connection in state.connections.items():
        own = []
        if connection.unread:
            entries = counted(connection.unread, "entry", "entries")
            own.append(f"{entries} of getStats() left out: damaged, or without a time")
        if connection.typeless:
            own.append("objects whose first entry is missing have no type; they were left out")
        if connection.backward:
            own.append("the browser's clock was set back during the call")
        own += left_out_warning(connection.left_out)
        found.append(PeerConnection(label(name) or "unnamed", tuple(connection.snapshots), tuple(own)))
    return Dump(FORMAT, state.user_agent, tuple(found), tuple(warnings))


def _event(state: _State, event: list[Any]) -> None:
    method, name, value, said = event[0], event[1], event[2], event[-1]
    if state.differences and isinstance(said, (int, float)) and math.isfinite(said):
        state.time_ms = float(said) if said > ABSOLUTE_FROM_MS else state.time_ms + float(said)
    elif (absolute := wall_ms(said)) is not None:
        state.time_ms = absolute
    if method == "connectionInfo" and isinstance(value, dict):
        protocol = re.match(r"(\d{1,9})\.\d+_", str(value.get("clientProtocol")))
        state.vanishing = protocol is not None and int(protocol.group(1)) >= 3
        state.user_agent = state.user_agent or label(value.get("userAgent"))
    if name is None or not isinstance(method, (str, int)) or method not in _METHODS | _BEGINNINGS:
        return  # calls of getUserMedia() stand there with a connection's name, too
    connection = state.connections.setdefault(str(name), _Connection())
    if method in _BEGINNINGS:
        return
    reports = _reports(value)
    if reports is None:
        connection.unread += 1
        _forget(connection)
        return
    connection.base = _undone(connection.base, *reports, state)
    _take(connection, state.time_ms)


def _take(connection: _Connection, event_ms: float) -> None:
    """Add a snapshot of what is known of a connection now."""
    known = {id_: report for id_, report in connection.base.items() if "type" in report}
    connection.typeless = connection.typeless or len(known) < len(connection.base)
    stats = w3c_objects(known.items(), connection.left_out)
    time_ms = poll_time_ms(stats) or wall_ms(event_ms)
    if not stats:
        return
    if time_ms is None:
        connection.unread += 1
        return
    taken = snapshot(time_ms, stats)
    if connection.snapshots and connection.snapshots[-1].time_ns - taken.time_ns > BACKWARD_MS * 1e6:
        connection.backward = True
    connection.snapshots.append(taken)


def _forget(connection: _Connection) -> None:
    """What a lost entry may have changed is not known any more; what never changes stays."""
    connection.base = {
        id_: {name: value for name, value in report.items() if name in FIXED_FIELDS}
        for id_, report in connection.base.items()
    }


def _reports(value: Any) -> tuple[dict[str, dict[str, Any] | None], float | None] | None:
    """An entry's reports by id, with names spelled out, and the time that stands beside them; None if it is none."""
    if isinstance(value, list):
        value = {str(each.get("id", k)): each for k, each in enumerate(value) if isinstance(each, dict)}
    if not isinstance(value, dict):
        return None
    reports: dict[str, Any] = value
    time_ms = next((ms for key in ("t", "timestamp") if (ms := wall_ms(reports.get(key))) is not None), None)
    found: dict[str, dict[str, Any] | None] = {}
    for id_, report in reports.items():
        if report is None:
            found[id_] = None
        elif isinstance(report, dict):
            spelled: dict[str, Any] = {_FIELDS.get(str(name), str(name)): each for name, each in report.items()}
            type_ = spelled.get("type")
            if isinstance(type_, int) and type_ in _TYPES:
                spelled["type"] = _TYPES[type_]
            found[id_] = spelled
    return found, time_ms


def _undone(
    base: _Reports, changed: Mapping[str, dict[str, Any] | None], time_ms: float | None, state: _State
) -> _Reports:
    """The whole reports that an entry stands for, given those before it."""
    if changed and all(report is not None and "id" in report and "type" in report for report in changed.values()):
        return {id_: dict(report) for id_, report in changed.items() if report is not None}  # whole: no differences
    whole: _Reports = {}
    for id_, before in base.items():
        if id_ not in changed and state.vanishing:
            continue
        whole[id_] = dict(before)
        # nothing is told of an object that did not change but for the common time; RTCP's have a time of their own
        if id_ not in changed and state.differences and time_ms is not None and not is_remote(before.get("type")):
            whole[id_]["timestamp"] = time_ms
    for id_, report in changed.items():
        if report is None:
            whole.pop(id_, None)
            continue
        merged = whole.setdefault(id_, {})
        for name, value in report.items():
            before_value = merged.get(name)
            both = isinstance(value, dict) and isinstance(before_value, dict)
            merged[name] = {**before_value, **value} if both else value  # type: ignore[dict-item]
        own = report.get("timestamp")
        if time_ms is not None and (own == 0 or (own is None and (state.differences or "timestamp" not in merged))):
            merged["timestamp"] = time_ms
    return whole
