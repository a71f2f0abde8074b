"""Lines that aiortc does not know, into descriptions of its own and of others, and out of them."""

from __future__ import annotations

import asyncio

import pytest
from aiortc import RTCConfiguration, RTCPeerConnection, RTCSessionDescription
from aiortc.sdp import SessionDescription

from probe.sdp import MediaExtras, offered, read_extras, with_extras

URI = "http://www.webrtc.org/experiments/rtp-hdrext/abs-capture-time"
MID = "urn:ietf:params:rtp-hdrext:sdes:mid"
PLAIN = "\r\n".join(
    [
        "v=0",
        "a=group:BUNDLE 0 1",
        "m=audio 9 UDP/TLS/RTP/SAVPF 111 0",
        "a=mid:0",
        f"a=extmap:1 {MID}",
        "a=rtpmap:111 opus/48000/2",
        "m=video 9 UDP/TLS/RTP/SAVPF 96",
        "a=extmap:3 urn:ietf:params:rtp-hdrext:toffset",
        "a=rtcp-fb:96 rrtr",
        "",
    ]
)


def test_an_offer_says_both_in_its_audio_section() -> None:
    extras = offered(PLAIN)
    assert extras == MediaExtras(True, {2: URI})  # 1 and 3 are taken: bundled sections share their identifiers
    text = with_extras(PLAIN, extras)
    audio, video = text.split("m=audio")[1].split("m=video")
    lines = audio.split("\r\n")
    for line in (f"a=extmap:2 {URI}", "a=rtcp-xr:rcvr-rtt=all", "a=rtcp-fb:111 rrtr", "a=rtcp-fb:0 rrtr"):
        assert lines.count(line) == 1
    assert URI not in video
    assert text.replace("\r\n", "").count("\n") == 0
    assert read_extras(text) == MediaExtras(True, {1: MID, 2: URI})


def test_nothing_is_said_twice() -> None:
    text = with_extras(PLAIN, MediaExtras(False, {1: MID}))
    assert text == PLAIN
    no_audio = PLAIN.replace("m=audio", "m=application")
    assert with_extras(no_audio, MediaExtras(True, {2: URI})) == no_audio


@pytest.mark.parametrize(
    ("line", "taken"),
    [
        ("a=rtcp-xr:rcvr-rtt=all", True),
        ("a=rtcp-xr:stat-summary=loss rcvr-rtt=sender:20", True),
        ("a=rtcp-fb:111 rrtr", True),
        ("a=rtcp-fb:* rrtr", True),
        ("a=rtcp-xr:stat-summary=loss", False),
        ("a=rtcp-fb:111 transport-cc", False),
        ("a=rtcp-fb:111 rrtrx", False),
    ],
)
def test_who_takes_reference_times(line: str, taken: bool) -> None:
    assert not read_extras(PLAIN).reference_times  # its video does, which is not ours
    assert read_extras(PLAIN.replace("a=mid:0", line)).reference_times is taken


@pytest.mark.parametrize(
    ("line", "number"),
    [
        (f"a=extmap:7 {URI}", 7),
        (f"a=extmap:7/sendonly {URI}", 7),
        (f"a=extmap:200 {URI}", 200),
        (f"a=extmap:4099 {URI}", None),  # only in offers, for a choice to be made (RFC 8285 section 7)
        (f"a=extmap:0 {URI}", None),
        (f"a=extmap:99999999999999999999 {URI}", None),
        (f"a=extmap:x {URI}", None),
    ],
)
def test_under_which_identifier_capture_times_come(line: str, number: int | None) -> None:
    assert read_extras(PLAIN.replace("a=mid:0", line)).capture_time_id == number


def test_where_no_identifier_is_free_none_is_offered() -> None:
    full = PLAIN.replace("a=mid:0", "\r\n".join(f"a=extmap:{n} urn:x:{n}" for n in range(1, 15)))
    assert offered(full) == MediaExtras(True, {})


@pytest.mark.parametrize("text", ["", "v=0", "m=audio ", "m=audio 9 X\r\n", "\x00\r\nm=video"])
def test_texts_of_no_use(text: str) -> None:
    assert read_extras(text) == MediaExtras()
    assert isinstance(with_extras(text, offered(text)), str)


def test_aiortc_reads_what_is_said_and_says_nothing_of_it() -> None:
    async def main() -> None:
        caller, callee = (RTCPeerConnection(RTCConfiguration(iceServers=[])) for _ in range(2))
        try:
            caller.addTransceiver("audio", direction="sendrecv")
            await caller.setLocalDescription(await caller.createOffer())
            offer = with_extras(caller.localDescription.sdp, offered(caller.localDescription.sdp))
            assert len(SessionDescription.parse(offer).media) == 1
            await callee.setRemoteDescription(RTCSessionDescription(offer, "offer"))
            await callee.setLocalDescription(await callee.createAnswer())
            plain = callee.localDescription.sdp
            assert not read_extras(plain).reference_times
            answer = with_extras(plain, MediaExtras(True, {read_extras(offer).capture_time_id or 0: URI}))
            await caller.setRemoteDescription(RTCSessionDescription(answer, "answer"))
            # this is why the text is kept
            assert "a=rtcp-xr:" in answer
            assert "a=rtcp-xr:" not in caller.remoteDescription.sdp
            assert read_extras(answer).capture_time_id == read_extras(offer).capture_time_id
        finally:
            await caller.close()
            await callee.close()

    asyncio.run(main())
