"""Live statistics on streams whose figures are known, case by case, and over a real connection."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import aioice.ice
import pytest
from aiortc import MediaStreamTrack, RTCBundlePolicy, RTCConfiguration, RTCPeerConnection, RTCSessionDescription

from analysis.capture_time import CaptureTime, serialize_capture_time, serialize_header_extensions
from analysis.codecs import CODECS
from analysis.rtcp import SenderInfo, ntp_from_unix_ns, serialize_receiver_report
from analysis.rtp import RtpPacket, serialize_rtp
from analysis.units import ns_to_ms
from probe.checks import SelectedPairs
from probe.clock import SystemClock
from probe.statistics import LiveStatistics
from probe.tap import MediaTap

FRAME_NS = 20_000_000
SHIFT_NS = 1_900_000_000_000_000_000
OPUS, PCMU, G722 = 111, 0, 9
CN, EVENT = 13, 101
TYPES = {OPUS: CODECS["opus"], PCMU: CODECS["pcmu"], G722: CODECS["g722"]}
TICKS = {OPUS: 960, PCMU: 160, G722: 160}  # 20 ms; G.722 counts 8 kHz though its sound has 16
SSRC = 7


@pytest.fixture
def statistics() -> LiveStatistics:
    return LiveStatistics(TYPES, SHIFT_NS)


def packet(sequence: int, timestamp: int, payload_type: int = OPUS, ssrc: int = SSRC, **fields: Any) -> RtpPacket:
    return RtpPacket(payload_type, sequence & 0xFFFF, timestamp & 0xFFFFFFFF, ssrc, bytes(40), **fields)


def inbound(statistics: LiveStatistics) -> dict[int, dict[str, Any]]:
    return {ssrc: statistics._inbound_fields(ssrc, stream) for ssrc, stream in statistics._inbound.items()}


def feed(statistics: LiveStatistics, arrivals: Iterable[tuple[float, RtpPacket]]) -> dict[str, Any]:
    """Packets by the frame in which they arrive; what the statistics then say of the one stream."""
    for frame, one in arrivals:
        statistics.received(round(frame * FRAME_NS), one)
    (fields,) = inbound(statistics).values()
    return fields


def figures(fields: dict[str, Any]) -> tuple[int, int, float]:
    return fields["packetsReceived"], fields["packetsLost"], fields["jitter"]


class TestInbound:
    @pytest.mark.parametrize("payload_type", [OPUS, PCMU, G722])
    def test_a_plain_stream_of_each_clock(self, statistics: LiveStatistics, payload_type: int) -> None:
        ticks = TICKS[payload_type]
        fields = feed(statistics, ((k, packet(k, k * ticks, payload_type)) for k in range(100)))
        assert fields == {
            "id": "inbound-rtp-7",
            "type": "inbound-rtp",
            "kind": "audio",
            "ssrc": 7,
            "transportId": "transport-0",
            "codecId": f"codec-{payload_type}",
            "packetsReceived": 100,
            "packetsLost": 0,
            "jitter": 0.0,
            "bytesReceived": 4000,
            "headerBytesReceived": 1200,
            "lastPacketReceivedTimestamp": 1_900_000_000_000 + 99 * 20,
        }

    @pytest.mark.parametrize("payload_type", [OPUS, PCMU, G722])
    def test_jitter_is_in_seconds_whatever_the_clock(self, statistics: LiveStatistics, payload_type: int) -> None:
        # every other packet 5 ms late: |D| is 5 ms at each step, so J nears it by a sixteenth each
        ticks = TICKS[payload_type]
        fields = feed(statistics, ((k + k % 2 / 4, packet(k, k * ticks, payload_type)) for k in range(100)))
        assert fields["jitter"] == pytest.approx(0.005 * (1 - (15 / 16) ** 99))

    def test_both_wraps(self, statistics: LiveStatistics) -> None:
        first, origin = 0xFFF0, (1 << 32) - 20 * 960
        wrapping = ((k, packet(first + k, origin + 960 * k)) for k in range(100) if k != 50)
        assert figures(feed(statistics, wrapping)) == (99, 1, 0.0)

    def test_reordered(self, statistics: LiveStatistics) -> None:
        order = [0, 1, 3, 2, 4, 6, 5]
        fields = feed(statistics, ((at, packet(k, 960 * k)) for at, k in enumerate(order)))
        assert figures(fields)[:2] == (7, 0)
        # steps of transit: 20, −40, 20, 20, −40 ms around the two that changed places
        jitter = 0.0
        for step in (0, 20, 40, 20, 20, 40):
            jitter += (step / 1000 - jitter) / 16
        assert fields["jitter"] == pytest.approx(jitter)

    def test_duplicates_make_no_loss_negative(self, statistics: LiveStatistics) -> None:
        plain = [(k, packet(k, 960 * k)) for k in range(50) if k != 10]
        fields = feed(statistics, [*plain, *plain])
        assert figures(fields) == (49, 1, 0.0)
        assert fields["bytesReceived"] == 49 * 40

    def test_another_ssrc_is_another_entry(self, statistics: LiveStatistics) -> None:
        for k in range(60):
            ssrc = 7 if k < 20 else 8
            statistics.received(FRAME_NS * k, packet(k if ssrc == 7 else 9000 + k, 960 * k, ssrc=ssrc))
        assert {ssrc: figures(f) for ssrc, f in inbound(statistics).items()} == {7: (20, 0, 0.0), 8: (40, 0, 0.0)}
        assert statistics.reception() == (0, 0.0)

    @pytest.mark.parametrize("back", [50, 400, 20_000])
    def test_a_restart_at_a_lower_number(self, statistics: LiveStatistics, back: int) -> None:
        restarted = ((k, packet(30_000 + k - (back if k >= 100 else 0), 960 * k)) for k in range(200) if k != 150)
        assert figures(feed(statistics, restarted)) == (199, 1, 0.0)

    def test_pauses_of_dtx(self, statistics: LiveStatistics) -> None:
        frames = [*range(20), *range(40, 200, 20), *range(200, 220)]
        sent = ((frame, packet(k, 960 * frame)) for k, frame in enumerate(frames))
        assert figures(feed(statistics, sent)) == (48, 0, 0.0)

    def test_padding_extensions_and_csrcs_are_headers(self, statistics: LiveStatistics) -> None:
        more = {"padding": 8, "csrcs": (1, 2), "extension_profile": 0xBEDE, "extension": bytes(8)}
        fields = feed(statistics, ((k, packet(k, 960 * k, **more)) for k in range(10)))
        assert (fields["bytesReceived"], fields["headerBytesReceived"]) == (400, 10 * (12 + 8 + 8 + 12))

    @pytest.mark.parametrize("payload_type", [CN, EVENT])
    def test_what_is_not_speech_disturbs_neither_jitter_nor_loss(
        self, statistics: LiveStatistics, payload_type: int
    ) -> None:
        def stream() -> Iterable[tuple[float, RtpPacket]]:
            for k in range(100):
                if 40 <= k < 50:  # all of an event's packets have the timestamp at which it began
                    yield k + 0.3, packet(k, 160 * 40, payload_type)
                else:
                    yield k, packet(k, 160 * k, PCMU)

        fields = feed(statistics, stream())
        assert figures(fields) == (100, 0, 0.0)
        assert fields["codecId"] == "codec-0"

    def test_what_was_never_understood_has_no_entry(self, statistics: LiveStatistics) -> None:
        assert statistics.received(0, packet(0, 0, EVENT)) is None
        assert inbound(statistics) == {}

    def test_a_stepped_wall_clock_is_not_read(self, statistics: LiveStatistics) -> None:
        # arrivals are monotonic, and the shift is that of the beginning: there is nothing for a step to move
        fields = feed(statistics, ((k, packet(k, 960 * k)) for k in range(50)))
        assert figures(fields) == (50, 0, 0.0)
        assert fields["lastPacketReceivedTimestamp"] == 1_900_000_000_000 + 49 * 20

    def test_capture_times_where_they_are_negotiated(self, statistics: LiveStatistics) -> None:
        captured = CaptureTime(ntp_from_unix_ns(SHIFT_NS), 5_000_000)
        profile, data = serialize_header_extensions({3: serialize_capture_time(captured)})
        stamped = packet(0, 0, extension_profile=profile, extension=data)
        assert "captureTimestamp" not in feed(statistics, [(0, stamped)])
        statistics.capture_time_id = 3
        fields = feed(statistics, [(0, stamped)])
        assert fields["captureTimestamp"] == 1_900_000_000_000
        assert fields["senderCaptureTimeOffset"] == 5.0
        assert "captureTimestamp" not in feed(statistics, [(1, packet(1, 960))])  # the newest says nothing

    def test_a_hostile_peer_is_not_kept_for_ever(self, statistics: LiveStatistics) -> None:
        for ssrc in range(1000):
            statistics.received(0, packet(0, 0, ssrc=ssrc))
        assert len(statistics.report_blocks(0)) == 64


class TestOutbound:
    def test_payload_and_headers_apart(self, statistics: LiveStatistics) -> None:
        more = {"csrcs": (1,), "extension_profile": 0xBEDE, "extension": bytes(4), "padding": 4}
        for k in range(10):
            statistics.sent(serialize_rtp(packet(k, 960 * k, ssrc=9, **(more if k % 2 else {}))))
        statistics.sent(serialize_rtp(packet(0, 0, ssrc=10, payload_type=PCMU)))
        stats = {s["id"]: s for s in snapshot(statistics)}
        assert stats["outbound-rtp-9"]["packetsSent"] == 10
        assert stats["outbound-rtp-9"]["bytesSent"] == 400
        assert stats["outbound-rtp-9"]["headerBytesSent"] == 5 * 12 + 5 * (12 + 4 + 8 + 4)
        assert stats["outbound-rtp-10"]["codecId"] == "codec-0"


def snapshot(statistics: LiveStatistics, mid: str | None = "0") -> list[dict[str, Any]]:
    """A snapshot over a connection that has not come to anything yet."""
    ice = SimpleNamespace(_check_list=[], _protocols=[], _remote_candidates=[])
    transport = SimpleNamespace(_connection=ice, state="new", role="controlling")
    dtls = SimpleNamespace(transport=transport, state="new", _role="auto", encrypted=False, _ssl=None)
    tap: Any = SimpleNamespace(
        dtls=dtls,
        selected=SelectedPairs({}),
        packets_sent=0,
        packets_received=0,
        bytes_sent=0,
        bytes_received=0,
        undecryptable=0,
    )
    codec = SimpleNamespace(
        payloadType=OPUS, mimeType="audio/opus", clockRate=48000, channels=2, parameters={"minptime": 10, "x": None}
    )
    return statistics.snapshot(5 * FRAME_NS, tap, SimpleNamespace(mid=mid, _codecs=[codec]))


class TestSnapshot:
    def test_what_is_unknown_is_absent(self, statistics: LiveStatistics) -> None:
        (transport,) = snapshot(statistics)
        assert transport == {
            "id": "transport-0",
            "type": "transport",
            "timestamp": 1_900_000_000_100.0,
            "dtlsState": "new",
            "iceState": "new",
            "iceRole": "controlling",
            "selectedCandidatePairChanges": 0,
            "packetsSent": 0,
            "packetsReceived": 0,
            "bytesSent": 0,
            "bytesReceived": 0,
            "probeSrtpPacketsDiscarded": 0,
        }

    def test_links(self, statistics: LiveStatistics) -> None:
        statistics.received(0, packet(0, 0))
        statistics.sent(serialize_rtp(packet(0, 0, ssrc=9)))
        assert "remoteId" not in next(s for s in snapshot(statistics) if s["type"] == "inbound-rtp")
        report = serialize_receiver_report(SSRC, [], SenderInfo(ntp_from_unix_ns(SHIFT_NS), 0, 1, 40))
        statistics.ledger.received(FRAME_NS, report)
        stats = {s["id"]: s for s in snapshot(statistics)}
        assert len(stats) == 5
        assert stats["inbound-rtp-7"]["remoteId"] == "remote-outbound-rtp-7"
        assert stats["remote-outbound-rtp-7"]["localId"] == "inbound-rtp-7"
        assert stats["remote-outbound-rtp-7"]["timestamp"] == 1_900_000_000_020.0  # when it came
        assert stats["inbound-rtp-7"]["timestamp"] == 1_900_000_000_100.0
        assert stats["inbound-rtp-7"]["mid"] == stats["outbound-rtp-9"]["mid"] == "0"
        assert stats["codec-111"]["sdpFmtpLine"] == "minptime=10;x"
        assert {s["codecId"] for s in stats.values() if "codecId" in s} == {"codec-111"}


class _IdleTrack(MediaStreamTrack):
    kind = "audio"

    async def recv(self) -> Any:
        await asyncio.get_running_loop().create_future()


class _Sink:
    def __init__(self) -> None:
        self.received = self.sent = 0

    def on_received(self, time_ns: int, data: bytes, rtcp: bool) -> None:
        self.received += 1

    def on_sent(self, time_ns: int, data: bytes, rtcp: bool) -> None:
        self.sent += 1


async def _connected() -> tuple[list[RTCPeerConnection], list[MediaTap], list[_Sink]]:
    configuration = RTCConfiguration(iceServers=[], bundlePolicy=RTCBundlePolicy.MAX_BUNDLE)
    pcs = [RTCPeerConnection(configuration) for _ in range(2)]
    pcs[0].addTransceiver(_IdleTrack(), direction="sendrecv")
    await pcs[0].setLocalDescription(await pcs[0].createOffer())
    pcs[1].addTrack(_IdleTrack())
    await pcs[1].setRemoteDescription(RTCSessionDescription(pcs[0].localDescription.sdp, "offer"))
    await pcs[1].setLocalDescription(await pcs[1].createAnswer())
    sinks = [_Sink(), _Sink()]
    taps = [MediaTap(pcs[1], SystemClock(), sinks[1])]
    await pcs[0].setRemoteDescription(RTCSessionDescription(pcs[1].localDescription.sdp, "answer"))
    taps.insert(0, MediaTap(pcs[0], SystemClock(), sinks[0]))
    async with asyncio.timeout(10):
        while {pc.connectionState for pc in pcs} != {"connected"}:
            await asyncio.sleep(0.01)
    return pcs, taps, sinks


def test_over_a_real_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aioice.ice, "get_host_addresses", lambda use_ipv4, use_ipv6: ["127.0.0.1"])
    monkeypatch.setattr(aioice.ice, "CONSENT_INTERVAL", 0.2)

    async def main() -> None:
        pcs, taps, sinks = await _connected()
        try:
            transceiver = pcs[0].getTransceivers()[0]
            statistics = LiveStatistics(TYPES, SHIFT_NS)
            for k in range(20):
                taps[1].send(serialize_rtp(packet(k, 960 * k)))
            forged = b"\x80\x6f" + bytes(40)  # SRTP throws away what it cannot authenticate
            pair = taps[1]._ice._nominated[1]
            pair.protocol.transport.sendto(forged, pair.remote_addr)
            async with asyncio.timeout(10):
                while sinks[0].received < 20 or not _both_ways(taps[0]):
                    await asyncio.sleep(0.01)
            stats = {s["type"]: s for s in statistics.snapshot(0, taps[0], transceiver)}
        finally:
            for pc in pcs:
                await pc.close()
        transport, found = stats["transport"], stats["candidate-pair"]
        assert transport["selectedCandidatePairId"] == found["id"]
        assert (transport["dtlsState"], transport["iceState"]) == ("connected", "completed")
        assert (transport["tlsVersion"], transport["probeSrtpPacketsDiscarded"]) == ("FEFD", 1)
        assert transport["dtlsCipher"].startswith("TLS_ECDHE_ECDSA_WITH_")
        assert transport["srtpCipher"].startswith("SRTP_A")
        # 20 packets of sound and the forged one, whose bytes and SRTP's 16 or 10 more are known; the rest is DTLS
        assert transport["packetsReceived"] > 21
        assert transport["bytesReceived"] > 20 * 62 + 42
        assert (found["state"], found["nominated"]) == ("succeeded", True)
        assert transport["selectedCandidatePairChanges"] >= 1
        assert found["requestsSent"] >= 1
        assert found["consentRequestsSent"] >= 1
        assert found["requestsSent"] + found["consentRequestsSent"] >= found["responsesReceived"] >= 2
        now_ms = ns_to_ms(SystemClock().monotonic_ns() + SHIFT_NS)
        for name in ("lastPacketSentTimestamp", "lastPacketReceivedTimestamp"):
            assert now_ms - 20_000 < found[name] <= now_ms  # within this test
        assert found["requestsReceived"] >= 1
        assert found["responsesSent"] >= 1
        assert 0 < found["currentRoundTripTime"] < 0.1
        assert found["totalRoundTripTime"] >= found["currentRoundTripTime"]
        assert found["localCandidateId"] == stats["local-candidate"]["id"]
        assert found["remoteCandidateId"] == stats["remote-candidate"]["id"]
        for kind in ("local-candidate", "remote-candidate"):
            assert (stats[kind]["address"], stats[kind]["protocol"]) == ("127.0.0.1", "udp")
            assert stats[kind]["candidateType"] in ("host", "prflx")
        secrets = re.findall(r"a=ice-(?:ufrag|pwd):(\S+)", pcs[0].localDescription.sdp)
        assert secrets
        assert not [secret for secret in secrets if secret in str(stats)]

    asyncio.run(main())


def _both_ways(tap: MediaTap) -> bool:
    pair = tap._ice._nominated[1]
    checks = tap.checks.pairs.get((pair.protocol, pair.remote_addr))
    if checks is None or checks.round_trips < 2:
        return False
    return bool(checks.consent_requests_sent and checks.requests_received and checks.responses_sent)
