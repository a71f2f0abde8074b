"""The page of a capture: one meaning a word, and numbers of the head that are those of the figures."""

from __future__ import annotations

import re

from analysis.capture_page import CapturedStream, _counter, render_capture, stream_series
from analysis.capture_rtp import CodecChoice, RtpStream
from analysis.codecs import CODECS
from analysis.inbound import measure
from analysis.rtp import RtpPacket
from analysis.streams import Timed

MS = 1_000_000
ENDS = ("192.0.2.1", 5004), ("192.0.2.2", 5006)
PCMU = CodecChoice({0: CODECS["pcmu"]})


def paused(lost: tuple[int, ...] = ()) -> RtpStream:
    """Six talkspurts of 20 packets, a second of silence after each."""
    packets = [
        Timed(1000 * MS * (i // 20) + 20 * i * MS, RtpPacket(0, i, 160 * i + 8000 * (i // 20), 7, bytes(range(160))))
        for i in range(120)
        if i not in lost
    ]
    return RtpStream(7, *ENDS, None, tuple(packets))


def page(stream: RtpStream, policy: str) -> str:
    found = measure(stream, PCMU, policy)
    assert found is not None
    return render_capture(
        "x.pcap", policy, [CapturedStream(found, stream_series(stream, PCMU, found, policy, 0, 0))], []
    )


def concealed(html: str) -> str:
    """The cell of the head's table."""
    head = re.findall(r"<th[^>]*>([^<]*)</th>", html)
    cells = re.findall(r"<td[^>]*>(?:<a[^>]*>)?([^<]*)", html)
    return str(cells[head.index("concealed, ms")])


def test_concealed_is_what_stood_in_for_sound_and_is_said_once() -> None:
    for policy in ("chrome", "fixed:40", "none"):
        html = page(paused(), policy)
        assert concealed(html) == "0.0"
        assert "Nothing was concealed" in html
        assert html.count("in a pause of the sender is not in it") == 1
        assert ("The counter concealedSamples holds both" in html) == (policy == "chrome")


def test_the_head_and_the_lane_have_one_number() -> None:
    html = page(paused((50, 51, 52)), "fixed:40")
    assert concealed(html) == "60.0"
    assert ">60 ms<" in html


def test_a_time_is_printed_as_one_and_numbers_in_their_number() -> None:
    assert _counter("lastPacketReceivedTimestamp", 1_764_600_000_060) == "2025-12-01 14:40:00.060 UTC"
    assert _counter("lastPacketReceivedTimestamp", 1e300).startswith("1,000,000")  # no time: still no error
    assert _counter("packetsReceived", 1_764) == "1,764"
    assert "1 stream ·" in page(paused(), "none")
