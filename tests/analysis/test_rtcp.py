"""RTCP reports byte by byte, whole and damaged, and round trips by them."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analysis.errors import MalformedPacket
from analysis.rtcp import (
    ReportBlock,
    SenderInfo,
    SenderReport,
    compound,
    parse_compound,
    round_trip_ns,
    serialize_receiver_report,
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
    assert parse_compound(RR_BYTES) == [SenderReport(SSRC, None, (BLOCK,))]


def test_golden_sender_report() -> None:
    assert serialize_receiver_report(SSRC, [BLOCK], SENDER) == SR_BYTES
    assert parse_compound(SR_BYTES) == [SenderReport(SSRC, SENDER, (BLOCK,))]


def test_golden_compound() -> None:
    assert compound(RR_BYTES, SSRC, "probe") == RR_BYTES + SDES_BYTES
    assert compound(RR_BYTES, SSRC, "probe", bye=True) == RR_BYTES + SDES_BYTES + BYE_BYTES
    both = SR_BYTES + RR_BYTES + SDES_BYTES + BYE_BYTES
    assert parse_compound(both) == [SenderReport(SSRC, SENDER, (BLOCK,)), SenderReport(SSRC, None, (BLOCK,))]


@pytest.mark.parametrize("cname", ["", "a", "ab", "abc", "abcd", "x" * 255, "x" * 300])
def test_a_cname_of_any_length_ends_with_a_null_and_on_a_word(cname: str) -> None:
    packet = compound(RR_BYTES, SSRC, cname)[len(RR_BYTES) :]
    assert len(packet) % 4 == 0
    assert len(packet) == 4 * (struct.unpack_from("!H", packet, 2)[0] + 1)
    assert packet[9] == min(len(cname), 255)
    assert packet[-1] == 0
    assert len(parse_compound(compound(RR_BYTES, SSRC, cname))) == 1


def test_blocks_of_other_types_are_passed_over() -> None:
    feedback = bytes.fromhex("8fce0003cafebabe0102030452454d42")
    extended = bytes.fromhex("80cf0001cafebabe")
    assert parse_compound(feedback + RR_BYTES + extended) == [SenderReport(SSRC, None, (BLOCK,))]
    assert parse_compound(SDES_BYTES + BYE_BYTES) == []
    assert parse_compound(b"") == []


def test_a_profile_specific_extension_behind_the_blocks_is_passed_over() -> None:
    longer = RR_BYTES[:2] + struct.pack("!H", 8) + RR_BYTES[4:] + b"more"
    assert parse_compound(longer) == [SenderReport(SSRC, None, (BLOCK,))]


@pytest.mark.parametrize("lost", [-1, -0x800000, 0, 0x7FFFFF])
def test_packets_lost_has_24_bits_and_a_sign(lost: int) -> None:
    data = serialize_receiver_report(SSRC, [ReportBlock(1, 255, lost, 2, 3, 4, 5)])
    assert data[12] == 255  # the fraction beside it is not touched by the sign
    (report,) = parse_compound(data)
    assert report.blocks[0].packets_lost == lost


@pytest.mark.parametrize(("lost", "kept"), [(0x800000, 0x7FFFFF), (-0x800001, -0x800000)])
def test_packets_lost_beyond_24_bits_stays_at_the_limit(lost: int, kept: int) -> None:
    (report,) = parse_compound(serialize_receiver_report(SSRC, [ReportBlock(1, 0, lost, 2, 3, 4, 5)]))
    assert report.blocks[0].packets_lost == kept


def test_at_most_31_blocks() -> None:
    (report,) = parse_compound(serialize_receiver_report(SSRC, [BLOCK] * 40))
    assert len(report.blocks) == 31


def test_cut_off_at_every_byte() -> None:
    whole = SR_BYTES + RR_BYTES + SDES_BYTES + BYE_BYTES
    ends = {0: 0, len(SR_BYTES): 1, len(SR_BYTES + RR_BYTES): 2, len(SR_BYTES + RR_BYTES + SDES_BYTES): 2}
    for length in range(len(whole)):
        if length in ends:
            assert len(parse_compound(whole[:length])) == ends[length]
        else:
            with pytest.raises(MalformedPacket):
                parse_compound(whole[:length])


def test_a_count_that_the_length_does_not_hold_is_malformed() -> None:
    for data in (RR_BYTES, SR_BYTES):
        with pytest.raises(MalformedPacket):
            parse_compound(bytes([0x82]) + data[1:])
    with pytest.raises(MalformedPacket):
        parse_compound(bytes.fromhex("80c90000"))  # an RR without even its SSRC
    with pytest.raises(MalformedPacket):
        parse_compound(bytes.fromhex("80c80001cafebabe"))  # an SR without its sender's figures


@pytest.mark.parametrize("version", [0, 1, 3])
def test_another_version_is_malformed(version: int) -> None:
    with pytest.raises(MalformedPacket):
        parse_compound(bytes([version << 6 | 1]) + RR_BYTES[1:])


@settings(deadline=None)
@given(st.lists(blocks, max_size=31), st.one_of(st.none(), senders), st.integers(0, 0xFFFFFFFF), st.text(max_size=40))
def test_what_is_written_is_read(written: list[ReportBlock], sender: SenderInfo | None, ssrc: int, cname: str) -> None:
    data = compound(serialize_receiver_report(ssrc, written, sender), ssrc, cname, bye=True)
    assert parse_compound(data) == [SenderReport(ssrc, sender, tuple(written))]


@settings(deadline=None, max_examples=500)
@given(st.binary(max_size=120), st.sampled_from([b"", b"\x81\xc8", b"\x81\xc9", b"\x80\xca"]))
def test_any_bytes_are_reports_or_malformed(data: bytes, start: bytes) -> None:
    try:
        reports = parse_compound(start + data)
    except MalformedPacket:
        return
    assert all(isinstance(r, SenderReport) for r in reports)


class TestRoundTrip:
    def test_the_peers_own_delay_is_taken_off(self) -> None:
        # our report left at 1 s, the peer held it for 0.5 s, and its report came at 1.62 s
        block = ReportBlock(1, 0, 0, 0, 0, lsr=1, dlsr=32768)
        assert round_trip_ns(block, arrival_ns=1_620_000_000, sent_ns=1_000_000_000) == 120_000_000

    def test_the_finest_step_of_the_delay(self) -> None:
        block = ReportBlock(1, 0, 0, 0, 0, lsr=1, dlsr=1)
        assert round_trip_ns(block, arrival_ns=100_000, sent_ns=0) == 100_000 - 15_258

    @pytest.mark.parametrize("arrival_ns", [0, 499_999_999, 500_000_000])
    def test_a_figure_that_is_not_positive_is_none(self, arrival_ns: int) -> None:
        assert round_trip_ns(ReportBlock(1, 0, 0, 0, 0, 1, 32768), arrival_ns, 0) is None

    def test_a_peer_that_had_no_report_of_ours(self) -> None:
        assert round_trip_ns(ReportBlock(1, 0, 0, 0, 0, 0, 0), 1_000_000, 0) is None
