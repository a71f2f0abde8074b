"""The agent's sender reports: each source says what it sent itself."""

from __future__ import annotations

from analysis.codecs import CODECS
from analysis.rtcp import ReceiverReport, SenderReport, parse_rtcp
from analysis.units import NS_PER_MS
from probe.agent.config import AgentConfig, Impairment
from probe.agent.reports import Reports
from probe.agent.stream import AgentStream

PAYLOAD = bytes(40)


def test_the_counts_begin_anew_with_a_new_source() -> None:
    config = AgentConfig(impairment=Impairment(ssrc_change_at=(30,)))
    stream = AgentStream(config, 0, CODECS["opus"], ptime_ms=20, payload_type=111, origin_ns=0)
    reports = Reports(0)

    def send(count: int) -> SenderReport | ReceiverReport:
        for _ in range(count):
            packet = stream.emit(PAYLOAD)
            reports.sent(packet.ssrc, packet.payload)
        said = parse_rtcp(reports.write(stream.next_ns + NS_PER_MS, stream))[0]
        assert isinstance(said, (SenderReport, ReceiverReport))
        assert said.ssrc == stream.ssrc
        return said

    assert isinstance(send(0), ReceiverReport)
    first, second, third = send(30), send(7), send(5)
    assert first.ssrc != second.ssrc == third.ssrc
    for said, packets in ((first, 30), (second, 7), (third, 12)):
        assert isinstance(said, SenderReport)
        assert (said.sender.packet_count, said.sender.octet_count) == (packets, packets * len(PAYLOAD))
