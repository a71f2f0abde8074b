"""Reports both ways in, what each end says of the other out: every figure against one worked out by hand."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analysis.bundle import CallRecord, Event
from analysis.capture_time import CaptureTime, serialize_capture_time, serialize_header_extensions
from analysis.codecs import CODECS
from analysis.rtcp import (
    DelaySinceReference,
    ExtendedReport,
    ReportBlock,
    SenderInfo,
    compound,
    middle_ntp,
    ntp_from_unix_ns,
    serialize_extended_report,
    serialize_receiver_report,
)
from analysis.rtcp_statistics import (
    MAX_OWN_REPORTS,
    MAX_STREAMS,
    RoundTrip,
    RtcpLedger,
    call_rtcp_statistics,
    rtcp_statistics,
)
from analysis.rtp import RtpPacket
from analysis.streams import Timed

OURS, THEIRS = 0x11111111, 0x22222222
S = 1_000_000_000
SHIFT_NS = 1_900_000_000 * S


def ntp(time_ns: int) -> int:
    return ntp_from_unix_ns(time_ns + SHIFT_NS)


def our_report(time_ns: int) -> bytes:
    return serialize_receiver_report(OURS, [], SenderInfo(ntp(time_ns), 0, 0, 0))


def their_report(lsr_ns: int | None, dlsr_s: float, **fields: int) -> bytes:
    values = {"fraction_lost": 64, "packets_lost": 5, "highest_sequence": 100, "jitter": 480} | fields
    lsr = 0 if lsr_ns is None else middle_ntp(ntp(lsr_ns))
    return serialize_receiver_report(THEIRS, [ReportBlock(OURS, lsr=lsr, dlsr=round(dlsr_s * 65536), **values)])


def extended(ssrc: int, reference_ns: int | None = None, *delays: tuple[int, int, float]) -> bytes:
    made = tuple(DelaySinceReference(s, middle_ntp(ntp(t)), round(d * 65536)) for s, t, d in delays)
    return serialize_extended_report(ExtendedReport(ssrc, None if reference_ns is None else ntp(reference_ns), made))


@pytest.fixture
def ledger() -> RtcpLedger:
    made = RtcpLedger(SHIFT_NS)
    made.sends(OURS)
    return made


class TestRemoteInbound:
    def test_nothing_is_known_before_a_report(self, ledger: RtcpLedger) -> None:
        assert ledger.remote_inbound(OURS, 48_000) is None

    def test_units_and_links(self, ledger: RtcpLedger) -> None:
        ledger.received(S, their_report(None, 0.0))
        assert ledger.remote_inbound(OURS, 48_000) == {
            "id": f"remote-inbound-rtp-{OURS}",
            "type": "remote-inbound-rtp",
            "timestamp": 1_900_000_001_000.0,
            "kind": "audio",
            "ssrc": OURS,
            "localId": f"outbound-rtp-{OURS}",
            "packetsLost": 5,
            "fractionLost": 0.25,
            "jitter": 0.01,
        }
        # the same ticks of an 8 kHz clock (G.711, G.722) are six times as long
        later = ledger.remote_inbound(OURS, 8_000)
        assert later is not None
        assert later["jitter"] == 0.06

    def test_round_trips_are_counted_and_summed(self, ledger: RtcpLedger) -> None:
        for k, rtt_ms in enumerate((20, 40, 30)):
            ledger.sent(k * S, our_report(k * S))
            ledger.received(k * S + S // 4 + rtt_ms * 1_000_000, their_report(k * S, 0.25))
        found = ledger.remote_inbound(OURS, 48_000)
        assert found is not None
        assert found["roundTripTime"] == pytest.approx(0.030, abs=2e-5)  # 1/65536 s
        assert found["totalRoundTripTime"] == pytest.approx(0.090, abs=5e-5)
        assert found["roundTripTimeMeasurements"] == 3

    def test_a_report_that_answers_none_of_ours_times_nothing(self, ledger: RtcpLedger) -> None:
        ledger.sent(0, our_report(0))
        ledger.received(S, their_report(7 * S, 0.25))
        ledger.received(S, their_report(0, 2.0))  # held longer than it was away
        found = ledger.remote_inbound(OURS, 48_000)
        assert found is not None
        assert "roundTripTime" not in found
        assert "totalRoundTripTime" not in found

    def test_reports_about_others_streams_are_passed_over(self, ledger: RtcpLedger) -> None:
        for ssrc in range(1000):
            ledger.received(S, serialize_receiver_report(THEIRS, [ReportBlock(ssrc, 0, 0, 0, 0, 0, 0)]))
        assert ledger.remote_inbound(5, 48_000) is None

    def test_late_reports_of_ours_are_forgotten(self, ledger: RtcpLedger) -> None:
        for k in range(MAX_OWN_REPORTS + 1):
            ledger.sent(k * S, our_report(k * S))
        ledger.received(MAX_OWN_REPORTS * S + S, their_report(0, 0.25))
        ledger.received(MAX_OWN_REPORTS * S + S, their_report(S, 0.25))
        found = ledger.remote_inbound(OURS, 48_000)
        assert found is not None
        assert found["roundTripTimeMeasurements"] == 1


class TestRemoteOutbound:
    def test_without_dlrr_there_is_no_round_trip(self, ledger: RtcpLedger) -> None:
        sender = SenderInfo(ntp(3 * S), 77, 150, 9000)
        for time_ns in (3 * S, 3 * S + 1):  # the second is a copy
            ledger.received(time_ns, serialize_receiver_report(THEIRS, [], sender))
        ledger.received(4 * S, serialize_receiver_report(THEIRS, [], SenderInfo(ntp(4 * S), 99, 200, 12_000)))
        assert ledger.remote_outbound(THEIRS) == {
            "id": f"remote-outbound-rtp-{THEIRS}",
            "type": "remote-outbound-rtp",
            "timestamp": 1_900_000_004_000.0,
            "kind": "audio",
            "ssrc": THEIRS,
            "localId": f"inbound-rtp-{THEIRS}",
            "packetsSent": 200,
            "bytesSent": 12_000,
            "remoteTimestamp": 1_900_000_004_000.0,
            "reportsSent": 2,
        }

    def test_a_sender_without_a_wall_clock_has_no_remote_timestamp(self, ledger: RtcpLedger) -> None:
        ledger.received(S, serialize_receiver_report(THEIRS, [], SenderInfo(0, 77, 150, 9000)))
        found = ledger.remote_outbound(THEIRS)
        assert found is not None
        assert "remoteTimestamp" not in found

    def test_with_dlrr_there_is(self, ledger: RtcpLedger) -> None:
        ledger.received(0, serialize_receiver_report(THEIRS, [], SenderInfo(ntp(0), 0, 1, 1)))
        for k, rtt_ms in enumerate((20, 50)):
            ledger.sent(k * S, extended(OURS, k * S))
            answers = extended(THEIRS, None, (OURS, k * S, 0.5), (99, k * S, 0.1))  # the other is not for us
            ledger.received(k * S + S // 2 + rtt_ms * 1_000_000, answers)
        found = ledger.remote_outbound(THEIRS)
        assert found is not None
        assert found["roundTripTime"] == pytest.approx(0.050, abs=2e-5)
        assert found["totalRoundTripTime"] == pytest.approx(0.070, abs=5e-5)
        assert found["roundTripTimeMeasurements"] == 2

    def test_a_sender_report_is_no_reference_time(self, ledger: RtcpLedger) -> None:
        ledger.received(0, serialize_receiver_report(THEIRS, [], SenderInfo(ntp(0), 0, 1, 1)))
        ledger.sent(0, our_report(0))
        ledger.received(S, extended(THEIRS, None, (OURS, 0, 0.5)))
        found = ledger.remote_outbound(THEIRS)
        assert found is not None
        assert "roundTripTime" not in found


class TestOwnReports:
    def test_what_the_next_block_says_of_their_last_report(self, ledger: RtcpLedger) -> None:
        assert ledger.last_report(THEIRS, 5 * S) == (0, 0)
        ledger.received(3 * S, serialize_receiver_report(THEIRS, [], SenderInfo(ntp(2 * S), 0, 1, 1)))
        assert ledger.last_report(THEIRS, 4 * S + S // 2) == (middle_ntp(ntp(2 * S)), 3 << 15)
        assert ledger.last_report(THEIRS, 1 << 62)[1] == 0xFFFFFFFF
        assert ledger.last_report(THEIRS, 0)[1] == 0

    def test_what_is_owed_for_their_reference_times(self, ledger: RtcpLedger) -> None:
        assert ledger.delays(S) == ()
        ledger.received(S, extended(THEIRS, 0))
        ledger.received(2 * S, extended(THEIRS, S))
        assert ledger.delays(3 * S) == (DelaySinceReference(THEIRS, middle_ntp(ntp(S)), 65536),)


def test_a_hostile_peer_is_not_kept_for_ever(ledger: RtcpLedger) -> None:
    for ssrc in range(1000):
        ledger.received(S, serialize_receiver_report(ssrc, [], SenderInfo(ntp(0), 0, 1, 1)) + extended(ssrc, 0))
    assert len(ledger.delays(S)) == MAX_STREAMS
    assert sum(ledger.remote_outbound(ssrc) is not None for ssrc in range(1000)) == MAX_STREAMS


def test_damaged_reports_are_counted(ledger: RtcpLedger) -> None:
    ledger.received(S, their_report(None, 0.0)[:-1])
    ledger.sent(S, b"\x80")
    assert ledger.malformed == 2
    assert ledger.remote_inbound(OURS, 48_000) is None


@settings(deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.integers(0, 1 << 62), st.binary(max_size=60)), max_size=30))
def test_any_bytes_are_taken(packets: list[tuple[bool, int, bytes]]) -> None:
    ledger = RtcpLedger()
    ledger.sends(0)
    for ours, time_ns, data in packets:
        (ledger.sent if ours else ledger.received)(time_ns, b"\x81\xc8\x00\x0c" + data)
    ledger.remote_inbound(0, 8_000)
    ledger.delays(0)


class TestRecorded:
    """A recorded minute: a sender whose media clock runs 200 ppm fast, and whose NTP clock runs 100 ppm fast."""

    PPM, NTP_PPM, COUNT = 200.0, 100.0, 60

    def statistics(
        self, capture_time_id: int | None = None, **changed: object
    ) -> dict[str, dict[int, dict[str, object]]]:
        received, rtcp_received, rtcp_sent, sent = [], [], [], []
        for k in range(self.COUNT):
            their_ns = round(k * S * (1 + self.NTP_PPM * 1e-6))
            ticks = round(k * 48_000 * (1 + self.NTP_PPM * 1e-6) * (1 + self.PPM * 1e-6))
            arrival_ns = k * S + 30_000_000 + (k * 7919 % 13) * 100_000
            sender = SenderInfo(ntp(their_ns), ticks, k, 160 * k)
            block = ReportBlock(OURS, 0, 0, k, 48, middle_ntp(ntp(k * S)), 65536 // 100)
            report = serialize_receiver_report(THEIRS, [block], sender)
            rtcp_sent.append((k * S, our_report(k * S)))
            rtcp_received.append((arrival_ns, compound(report, THEIRS, "agent")))
            captured = serialize_capture_time(CaptureTime(ntp(their_ns), -2_000_000))
            profile, data = serialize_header_extensions({3: captured})
            packet = RtpPacket(111, k, ticks, THEIRS, b"s", extension_profile=profile, extension=data)
            received.append(Timed(arrival_ns, packet))
            sent.append(Timed(k * S, RtpPacket(111, k, 960 * k, OURS, b"s")))
        arguments = {
            "rtcp_received": rtcp_received,
            "rtcp_sent": rtcp_sent,
            "received": received,
            "sent": sent,
            "payload_types": {111: CODECS["opus"]},
            "wall_shift_ns": SHIFT_NS,
            "capture_time_id": capture_time_id,
        }
        return rtcp_statistics(**(arguments | changed))  # type: ignore[arg-type]

    def test_every_part(self) -> None:
        found = self.statistics()
        assert found["remote_inbound_rtp"][OURS]["roundTripTimeMeasurements"] == self.COUNT
        # 30 to 31.2 ms after our report, of which 10 ms were spent there
        assert 0.019 < found["remote_inbound_rtp"][OURS]["roundTripTime"] < 0.0225  # type: ignore[operator]
        assert found["remote_inbound_rtp"][OURS]["jitter"] == 0.001
        assert found["remote_outbound_rtp"][THEIRS]["reportsSent"] == self.COUNT
        assert "roundTripTime" not in found["remote_outbound_rtp"][THEIRS]
        clock = found["sender_clock"][THEIRS]
        assert clock["n"] == self.COUNT
        assert clock["slope_ppm"]["low"] <= self.PPM <= clock["slope_ppm"]["high"]  # type: ignore[index]
        drift = clock["arrival"]["drift_ppm"]  # type: ignore[index]
        assert drift["low"] <= self.NTP_PPM <= drift["high"]
        assert clock["arrival"]["stamps"] == "sender_reports"  # type: ignore[index]
        assert found["capture_time"] == {}

    def test_capture_times_where_they_were_negotiated(self) -> None:
        found = self.statistics(capture_time_id=3)
        last_ms = (SHIFT_NS + round((self.COUNT - 1) * S * (1 + self.NTP_PPM * 1e-6))) / 1e6
        assert found["capture_time"][THEIRS]["captureTimestamp"] == pytest.approx(last_ms, abs=0.001)
        assert found["capture_time"][THEIRS]["senderCaptureTimeOffset"] == pytest.approx(-2.0, abs=1e-6)
        arrival = found["sender_clock"][THEIRS]["arrival"]
        assert arrival["stamps"] == "capture_time"  # type: ignore[index]
        assert arrival["drift_ppm"]["low"] <= self.NTP_PPM <= arrival["drift_ppm"]["high"]  # type: ignore[index]

    def test_what_cannot_be_measured_says_why(self) -> None:
        assert self.statistics(received=[])["sender_clock"][THEIRS]["reason"] == "no_packets_of_a_known_codec"
        nothing = self.statistics(rtcp_received=[])
        assert nothing["sender_clock"] == nothing["remote_inbound_rtp"] == nothing["remote_outbound_rtp"] == {}
        one = self.statistics(rtcp_received=[(S, serialize_receiver_report(THEIRS, [], SenderInfo(ntp(S), 1, 1, 1)))])
        clock = one["sender_clock"][THEIRS]
        assert clock["reason"] == "too_few_sender_reports"
        assert clock["arrival"]["reason"] == "too_few_stamps"  # type: ignore[index]


def test_round_trips_are_told_as_they_come() -> None:
    told: list[RoundTrip] = []
    ledger = RtcpLedger(on_round_trip=told.append)
    ledger.sends(OURS)
    ledger.sent(0, our_report(0) + extended(OURS, S))
    ledger.received(S, their_report(0, 0.5) + extended(THEIRS, None, (OURS, S, 0.75)))
    assert told == [RoundTrip(S, S // 2, "rr"), RoundTrip(S, S // 4, "dlrr")]


@pytest.mark.parametrize(
    ("clock", "fields"),
    [
        ({}, {"payload_types": {"111": "opus"}}),
        ({"wall_ns": 1, "monotonic_ns": 0}, None),
        ({"wall_ns": 1, "monotonic_ns": 0}, {}),
        ({"wall_ns": 1, "monotonic_ns": 0}, {"payload_types": ["opus"]}),
        ({"wall_ns": "x", "monotonic_ns": 0}, {"payload_types": {"111": "opus"}}),
        ({"wall_ns": 1, "monotonic_ns": 0}, {"payload_types": {"111": "opus"}, "header_extensions": 3}),
        ({"wall_ns": 1, "monotonic_ns": 0}, {"payload_types": {"111": "vp8"}}),
    ],
)
def test_a_damaged_bundle_says_nothing(clock: dict[str, object], fields: dict[str, object] | None) -> None:
    events = () if fields is None else (Event(0, "media_negotiated", fields),)
    assert call_rtcp_statistics(CallRecord({"clock": clock}, events, (), ())) == {}
