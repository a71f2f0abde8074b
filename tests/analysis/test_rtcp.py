"""RTCP packets byte by byte, whole and damaged, and round trips by them."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analysis.errors import MalformedPacket
from analysis.rtcp import (
    DelaySinceReference,
    ExtendedReport,
    Goodbye,
    ReceiverReport,
    ReportBlock,
    RtcpPacket,
    SdesChunk,
    SenderInfo,
    SenderReport,
    SourceDescription,
    compound,
    middle_ntp,
    ntp_from_unix_ns,
    parse_rtcp,
    round_trip_ns,
    serialize_extended_report,
    serialize_receiver_report,
    unix_ns_from_ntp,
)

SSRC = 0xCAFEBABE
BLOCK = ReportBlock(
    ssrc=0x01020304, fraction_lost=51, packets_lost=7, highest_sequence=0x1FFFF, jitter=96, lsr=0x5678, dlsr=65536
)
SENDER = SenderInfo(ntp=0x0123456789ABCDEF, rtp_timestamp=0x0A0B0C0D, packet_count=100, octet_count=4000)

BLOCK_BYTES = bytes.fromhex("01020304330000070001ffff000000600000567800010000")
RR_BYTES = bytes.fromhex("81c90007cafebabe") + BLOCK_BYTES
SR_BYTES = bytes.fromhex("81c8000ccafebabe0123456789abcdef0a0b0c0d0000006400000fa0") + BLOCK_BYTES
SDES_BYTES = bytes.fromhex("81ca0003cafebabe0105") + b"probe" + bytes(1)
BYE_BYTES = bytes.fromhex("81cb0001cafebabe")
XR_BYTES = bytes.fromhex(
    "80cf0008cafebabe"
    "04000002" + "0123456789abcdef"  # reference time
    "05000003" + "01020304" + "456789ab" + "00008000"  # half a second since that of 01020304
)
RR, SR = ReceiverReport(SSRC, (BLOCK,)), SenderReport(SSRC, SENDER, (BLOCK,))
SDES, BYE = SourceDescription((SdesChunk(SSRC, ((1, b"probe"),)),)), Goodbye((SSRC,))
XR = ExtendedReport(SSRC, 0x0123456789ABCDEF, (DelaySinceReference(0x01020304, 0x456789AB, 32768),))


def reports(data: bytes) -> list[SenderReport | ReceiverReport]:
    return [p for p in parse_rtcp(data) if isinstance(p, SenderReport | ReceiverReport)]


blocks = st.builds(
    ReportBlock,
    ssrc=st.integers(0, 0xFFFFFFFF),
    fraction_lost=st.integers(0, 255),
    packets_lost=st.integers(-0x800000, 0x7FFFFF),
    highest_sequence=st.integers(0, 0xFFFFFFFF),
    jitter=st.integers(0, 0xFFFFFFFF),
    lsr=st.integers(0, 0xFFFFFFFF),
    dlsr=st.integers(0, 0xFFFFFFFF),
)
senders = st.builds(
    SenderInfo,
    ntp=st.integers(0, (1 << 64) - 1),
    rtp_timestamp=st.integers(0, 0xFFFFFFFF),
    packet_count=st.integers(0, 0xFFFFFFFF),
    octet_count=st.integers(0, 0xFFFFFFFF),
)


def test_golden_receiver_report() -> None:
    assert serialize_receiver_report(SSRC, [BLOCK]) == RR_BYTES
    assert parse_rtcp(RR_BYTES) == (RR,)


def test_golden_sender_report() -> None:
    assert serialize_receiver_report(SSRC, [BLOCK], SENDER) == SR_BYTES
    assert parse_rtcp(SR_BYTES) == (SR,)


def test_golden_compound() -> None:
    assert compound(RR_BYTES, SSRC, "probe") == RR_BYTES + SDES_BYTES
    assert compound(RR_BYTES, SSRC, "probe", bye=True) == RR_BYTES + SDES_BYTES + BYE_BYTES
    assert (
        compound(RR_BYTES, SSRC, "probe", extended=XR_BYTES, bye=True) == RR_BYTES + SDES_BYTES + XR_BYTES + BYE_BYTES
    )
    assert parse_rtcp(SR_BYTES + RR_BYTES + SDES_BYTES + XR_BYTES + BYE_BYTES) == (SR, RR, SDES, XR, BYE)


@pytest.mark.parametrize("cname", ["", "a", "ab", "abc", "abcd", "x" * 255, "x" * 300])
def test_a_cname_of_any_length_ends_with_a_null_and_on_a_word(cname: str) -> None:
    packet = compound(RR_BYTES, SSRC, cname)[len(RR_BYTES) :]
    assert len(packet) % 4 == 0
    assert len(packet) == 4 * (struct.unpack_from("!H", packet, 2)[0] + 1)
    assert packet[9] == min(len(cname), 255)
    assert packet[-1] == 0
    (_, description) = parse_rtcp(compound(RR_BYTES, SSRC, cname))
    assert isinstance(description, SourceDescription)
    assert description.chunks[0].cname == cname[:255]


def test_packets_of_other_types_are_passed_over() -> None:
    feedback = bytes.fromhex("8fce0003cafebabe0102030452454d42")
    application = bytes.fromhex("80cc0002cafebabe74657374")
    assert parse_rtcp(feedback + RR_BYTES + application) == (RR,)
    assert parse_rtcp(b"") == ()


def test_one_packet_alone_is_whole() -> None:
    # reduced size (RFC 5506): no report, or no name, before it
    for data, packet in ((XR_BYTES, XR), (SDES_BYTES, SDES), (BYE_BYTES, BYE), (RR_BYTES, RR)):
        assert parse_rtcp(data) == (packet,)


class TestExtended:
    def test_golden(self) -> None:
        assert serialize_extended_report(XR) == XR_BYTES
        assert parse_rtcp(XR_BYTES) == (XR,)

    @pytest.mark.parametrize(
        "report",
        [
            ExtendedReport(1),
            ExtendedReport(1, reference_ntp=5),
            ExtendedReport(1, delays=(DelaySinceReference(2, 3, 4), DelaySinceReference(5, 0, 0))),
        ],
    )
    def test_either_block_may_be_missing(self, report: ExtendedReport) -> None:
        assert parse_rtcp(serialize_extended_report(report)) == (report,)

    def test_blocks_of_other_types_are_passed_over(self) -> None:
        statistics = bytes.fromhex("06e00009") + bytes(36)
        unknown = bytes.fromhex("ff000000")
        body = XR_BYTES[4:8] + statistics + XR_BYTES[8:] + unknown
        data = bytes.fromhex("80cf") + struct.pack("!H", len(body) // 4) + body
        assert parse_rtcp(data) == (XR,)

    @pytest.mark.parametrize(
        "body",
        [
            "",  # no SSRC
            "cafebabe0400000100000000",  # a reference time of half its length
            "cafebabe0400000300000000000000000000000000000000",
            "cafebabe0500000100000000",  # a third of a delay
            "cafebabe05000003",  # longer than the packet
        ],
    )
    def test_a_block_that_does_not_fit_is_malformed(self, body: str) -> None:
        data = bytes.fromhex(body)
        with pytest.raises(MalformedPacket):
            parse_rtcp(bytes.fromhex("80cf") + struct.pack("!H", len(data) // 4) + data)


class TestDescriptions:
    def test_every_item_and_every_chunk(self) -> None:
        body = bytes.fromhex("0000000101016106026869000000000200000000")
        (packet,) = parse_rtcp(bytes.fromhex("82ca") + struct.pack("!H", len(body) // 4) + body)
        assert packet == SourceDescription((SdesChunk(1, ((1, b"a"), (6, b"hi"))), SdesChunk(2, ())))
        assert isinstance(packet, SourceDescription)
        assert [chunk.cname for chunk in packet.chunks] == ["a", None]

    def test_a_list_that_ends_with_the_packet_is_let_pass(self) -> None:
        # without the null that RFC 3550 asks for; the reports beside it are worth more
        assert parse_rtcp(bytes.fromhex("81ca0002cafebabe01026162")) == (
            SourceDescription((SdesChunk(SSRC, ((1, b"ab"),)),)),
        )

    @pytest.mark.parametrize("body", ["", "cafebabe01ff6162", "cafebabe61626301"])
    def test_an_item_that_does_not_fit_is_malformed(self, body: str) -> None:
        data = bytes.fromhex(body)
        with pytest.raises(MalformedPacket):
            parse_rtcp(bytes.fromhex("81ca") + struct.pack("!H", len(data) // 4) + data)

    def test_a_goodbye_with_its_reason(self) -> None:
        body = bytes.fromhex("0000000100000002") + bytes([3]) + b"end"
        assert parse_rtcp(bytes.fromhex("82cb0003") + body) == (Goodbye((1, 2), "end"),)
        with pytest.raises(MalformedPacket):
            parse_rtcp(bytes.fromhex("82cb0003") + body[:8] + bytes([4]) + b"end")
        with pytest.raises(MalformedPacket):
            parse_rtcp(bytes.fromhex("83cb0002") + body[:8])


class TestPadding:
    def test_it_is_no_part_of_the_packet(self) -> None:
        padded = bytes([BYE_BYTES[0] | 0x20, 203, 0, 3]) + BYE_BYTES[4:] + bytes(7) + bytes([8])
        assert parse_rtcp(RR_BYTES + padded) == (RR, BYE)

    @pytest.mark.parametrize("count", [0, 1, 2, 3, 5, 8, 255])
    def test_padding_that_does_not_fit_is_malformed(self, count: int) -> None:
        with pytest.raises(MalformedPacket):
            parse_rtcp(bytes.fromhex("a0cb0001000000") + bytes([count]))

    def test_a_packet_of_a_header_alone_has_none(self) -> None:
        with pytest.raises(MalformedPacket):
            parse_rtcp(bytes.fromhex("a0cb0000"))


def test_a_profile_specific_extension_behind_the_blocks_is_passed_over() -> None:
    longer = RR_BYTES[:2] + struct.pack("!H", 8) + RR_BYTES[4:] + b"more"
    assert parse_rtcp(longer) == (RR,)


@pytest.mark.parametrize("lost", [-1, -0x800000, 0, 0x7FFFFF])
def test_packets_lost_has_24_bits_and_a_sign(lost: int) -> None:
    data = serialize_receiver_report(SSRC, [ReportBlock(1, 255, lost, 2, 3, 4, 5)])
    assert data[12] == 255  # the fraction beside it is not touched by the sign
    (report,) = reports(data)
    assert report.blocks[0].packets_lost == lost


@pytest.mark.parametrize(("lost", "kept"), [(0x800000, 0x7FFFFF), (-0x800001, -0x800000)])
def test_packets_lost_beyond_24_bits_stays_at_the_limit(lost: int, kept: int) -> None:
    (report,) = reports(serialize_receiver_report(SSRC, [ReportBlock(1, 0, lost, 2, 3, 4, 5)]))
    assert report.blocks[0].packets_lost == kept


def test_at_most_31_blocks() -> None:
    (report,) = reports(serialize_receiver_report(SSRC, [BLOCK] * 40))
    assert len(report.blocks) == 31


def test_cut_off_at_every_byte() -> None:
    parts = (SR_BYTES, RR_BYTES, SDES_BYTES, XR_BYTES, BYE_BYTES)
    whole = b"".join(parts)
    ends = {len(b"".join(parts[:n])): n for n in range(len(parts))}
    for length in range(len(whole)):
        if length in ends:
            assert len(parse_rtcp(whole[:length])) == ends[length]
        else:
            with pytest.raises(MalformedPacket):
                parse_rtcp(whole[:length])


def test_a_count_that_the_length_does_not_hold_is_malformed() -> None:
    for data in (RR_BYTES, SR_BYTES):
        with pytest.raises(MalformedPacket):
            parse_rtcp(bytes([0x82]) + data[1:])
    with pytest.raises(MalformedPacket):
        parse_rtcp(bytes.fromhex("80c90000"))  # an RR without even its SSRC
    with pytest.raises(MalformedPacket):
        parse_rtcp(bytes.fromhex("80c80001cafebabe"))  # an SR without its sender's figures


@pytest.mark.parametrize("version", [0, 1, 3])
def test_another_version_is_malformed(version: int) -> None:
    with pytest.raises(MalformedPacket):
        parse_rtcp(bytes([version << 6 | 1]) + RR_BYTES[1:])


@settings(deadline=None)
@given(st.lists(blocks, max_size=31), st.one_of(st.none(), senders), st.integers(0, 0xFFFFFFFF), st.text(max_size=40))
def test_what_is_written_is_read(written: list[ReportBlock], sender: SenderInfo | None, ssrc: int, cname: str) -> None:
    data = compound(serialize_receiver_report(ssrc, written, sender), ssrc, cname, bye=True)
    report = ReceiverReport(ssrc, tuple(written)) if sender is None else SenderReport(ssrc, sender, tuple(written))
    assert reports(data) == [report]
    assert parse_rtcp(data)[-1] == Goodbye((ssrc,))


@settings(deadline=None, max_examples=1000)
@given(st.binary(max_size=120), st.sampled_from([b"", *(bytes([0x81, kind, 0, 4]) for kind in range(200, 208))]))
def test_any_bytes_are_packets_or_malformed(data: bytes, start: bytes) -> None:
    try:
        packets = parse_rtcp(start + data)
    except MalformedPacket:
        return
    assert all(isinstance(p, RtcpPacket) for p in packets)


class TestRoundTrip:
    def test_the_peers_own_delay_is_taken_off(self) -> None:
        # our report left at 1 s, the peer held it for 0.5 s, and its report came at 1.62 s
        assert round_trip_ns(32768, arrival_ns=1_620_000_000, sent_ns=1_000_000_000) == 120_000_000

    def test_the_finest_step_of_the_delay(self) -> None:
        assert round_trip_ns(1, arrival_ns=100_000, sent_ns=0) == 100_000 - 15_258

    @pytest.mark.parametrize("arrival_ns", [0, 499_999_999, 500_000_000])
    def test_a_figure_that_is_not_positive_is_none(self, arrival_ns: int) -> None:
        assert round_trip_ns(32768, arrival_ns=arrival_ns, sent_ns=0) is None


class TestNtp:
    def test_known_times(self) -> None:
        assert ntp_from_unix_ns(0) == 2_208_988_800 << 32
        assert ntp_from_unix_ns(500_000_000) == 2_208_988_800 << 32 | 1 << 31
        assert unix_ns_from_ntp(2_208_988_801 << 32) == 1_000_000_000
        assert middle_ntp(0x0123456789ABCDEF) == 0x456789AB

    @given(st.integers(0, 2_000_000_000_000_000_000))
    def test_there_and_back_to_the_nanosecond(self, unix_ns: int) -> None:
        # a step of NTP is 0.23 ns, so the nearest nanosecond is the one it came from, or its neighbour
        assert abs(unix_ns_from_ntp(ntp_from_unix_ns(unix_ns)) - unix_ns) <= 1
