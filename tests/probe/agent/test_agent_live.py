"""The agent's process, called over loopback by a real aiortc peer with its own tap."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import aioice.ice
import numpy as np
import pytest
from aiortc import MediaStreamTrack, RTCBundlePolicy, RTCConfiguration, RTCPeerConnection, RTCSessionDescription

from analysis.capture_time import capture_time_of
from analysis.codecs import CODECS, encode
from analysis.rtcp import (
    ExtendedReport,
    Goodbye,
    SenderInfo,
    SenderReport,
    SourceDescription,
    compound,
    ntp_from_unix_ns,
    parse_rtcp,
    serialize_extended_report,
    serialize_receiver_report,
)
from analysis.rtcp_statistics import RoundTrip, RtcpLedger
from analysis.rtp import RtpPacket, parse_rtp, serialize_rtp
from analysis.units import NS_PER_MS, NS_PER_S
from probe.clock import SystemClock
from probe.loop import run
from probe.tap import MediaTap
from probe.utterances import shipped

CLOCK = SystemClock()
OPUS = CODECS["opus"]
SSRC = 77


class _IdleTrack(MediaStreamTrack):
    kind = "audio"

    async def recv(self) -> Any:
        await asyncio.get_running_loop().create_future()


class AgentProcess:
    """`python -m probe.agent`, and the lines that it wrote."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.lines: list[dict[str, Any]] = []
        self._news = asyncio.Event()
        self.reader = asyncio.create_task(self._read())

    async def _read(self) -> None:
        assert self.process.stdout is not None
        while line := await self.process.stdout.readline():
            self.lines.append(json.loads(line))  # nothing but JSON on stdout
            self._news.set()
        self._news.set()

    def tell(self, **message: Any) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(message).encode() + b"\n")

    def of(self, op: str) -> list[dict[str, Any]]:
        return [line for line in self.lines if line["op"] == op]

    async def wait_for(self, op: str, count: int = 1, timeout_s: float = 15) -> list[dict[str, Any]]:
        async with asyncio.timeout(timeout_s):
            while len(self.of(op)) < count:
                self._news.clear()
                await self._news.wait()
        return self.of(op)


class Caller:
    """A peer that sends silence every 20 ms and an utterance when told; it stamps what arrives."""

    def __init__(self) -> None:
        self.pc = RTCPeerConnection(RTCConfiguration(iceServers=[], bundlePolicy=RTCBundlePolicy.MAX_BUNDLE))
        self.received: list[tuple[int, RtpPacket]] = []
        self.reports: list[tuple[int, bytes]] = []
        self.round_trips: list[RoundTrip] = []
        self.ledger = RtcpLedger(on_round_trip=self.round_trips.append)
        self.ledger.sends(SSRC)
        self.more = ""  # lines that the offer has besides
        self.utterance_start_ns = self.utterance_end_ns = 0
        self._speech: Sequence[bytes] = ()
        self._silence = encode(OPUS, np.zeros(9_600, dtype=np.float32))[-1]
        self._tap: MediaTap | None = None

    def on_received(self, time_ns: int, data: bytes, rtcp: bool) -> None:
        if rtcp:
            self.reports.append((time_ns, data))
            self.ledger.received(time_ns, data)
        else:
            self.received.append((time_ns, parse_rtp(data)))

    def on_sent(self, time_ns: int, data: bytes, rtcp: bool) -> None:
        if rtcp:
            self.ledger.sent(time_ns, data)

    async def call(self, agent: AgentProcess, config: dict[str, Any], call: int = 0) -> None:
        self.pc.addTrack(_IdleTrack())
        await self.pc.setLocalDescription(await self.pc.createOffer())
        agent.tell(op="open", call=call, config=config, offer=self.pc.localDescription.sdp + self.more)
        answer = self.answer = (await agent.wait_for("answer"))[-1]["answer"]
        await self.pc.setRemoteDescription(RTCSessionDescription(answer, "answer"))
        self._tap = MediaTap(self.pc, CLOCK, self)

    async def connected(self) -> None:
        async with asyncio.timeout(10):
            while self.pc.connectionState != "connected":
                await asyncio.sleep(0.01)

    def say(self, seconds: float) -> None:
        clip = shipped("en/1")
        pcm = clip.samples[clip.start_sample : clip.start_sample + round(seconds * 48_000)]
        self._speech = encode(OPUS, np.concatenate((pcm, np.zeros(4_800, dtype=np.float32))))

    async def send(self) -> None:
        """A packet every 20 ms, and a sender report every second."""
        assert self._tap is not None
        payload_type = self.pc.getTransceivers()[0]._codecs[0].payloadType
        begun_ns = CLOCK.monotonic_ns()
        frame = 0
        while True:
            due_ns = begun_ns + (frame + 1) * 20 * NS_PER_MS
            await asyncio.sleep(max(0, due_ns - CLOCK.monotonic_ns()) / NS_PER_S)
            payload = self._silence
            if self._speech:
                if self.utterance_start_ns == 0:
                    self.utterance_start_ns = due_ns - 20 * NS_PER_MS
                    self.utterance_end_ns = due_ns + (len(self._speech) - 6) * 20 * NS_PER_MS
                payload, *self._speech = self._speech
            self._tap.send(serialize_rtp(RtpPacket(payload_type, frame & 0xFFFF, frame * 960, SSRC, payload)))
            if frame % 50 == 10:
                now_ns = CLOCK.monotonic_ns()
                sender = SenderInfo((now_ns << 32) // NS_PER_S & (1 << 64) - 1, frame * 960, frame, frame)
                more = ExtendedReport(SSRC, ntp_from_unix_ns(now_ns), self.ledger.delays(now_ns))
                extended = serialize_extended_report(more) if self.more else b""
                report = serialize_receiver_report(SSRC, [], sender)
                self._tap.send(compound(report, SSRC, "caller", extended=extended))
            frame += 1


@asynccontextmanager
async def _agent() -> AsyncIterator[AgentProcess]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "probe.agent", stdin=-1, stdout=-1, limit=1 << 20
    )
    agent = AgentProcess(process)
    try:
        yield agent
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
        await agent.reader


@asynccontextmanager
async def _calling(config: dict[str, Any]) -> AsyncIterator[tuple[AgentProcess, Caller]]:
    async with _agent() as agent:
        caller = Caller()
        sending: asyncio.Task[None] | None = None
        try:
            await caller.call(agent, config)
            await caller.connected()
            sending = asyncio.create_task(caller.send())
            yield agent, caller
        finally:
            if sending is not None:
                sending.cancel()
            await caller.pc.close()


@pytest.fixture(autouse=True)
def loopback_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aioice.ice, "get_host_addresses", lambda use_ipv4, use_ipv6: ["127.0.0.1"])


def _run(main: Callable[[], Awaitable[None]]) -> None:
    async def limited(_: object) -> None:
        async with asyncio.timeout(40):
            await main()

    run(limited, CLOCK)


def _arrival(caller: Caller, truth: dict[str, Any]) -> int:
    return next(
        time_ns
        for time_ns, packet in caller.received
        if (packet.ssrc, packet.sequence_number) == (truth["ssrc"], truth["sequence_number"])
    )


def test_a_call_from_greeting_to_goodbye() -> None:
    async def main() -> None:
        async with _calling({"think_ms": [100, 100], "leading_silence_ms": [50, 50]}) as (agent, caller):
            greeting = (await agent.wait_for("truth"))[0]
            assert (greeting["reply"], greeting["kind"], greeting["call"]) == (-1, "greeting", 0)
            assert f"a=ssrc:{greeting['ssrc']} " in caller.pc.remoteDescription.sdp
            caller.say(1.0)
            reply = (await agent.wait_for("truth", 2))[1]
            assert (reply["reply"], reply["kind"]) == (0, "reply")
            for truth in (greeting, reply):
                # the socket of the same machine takes and gives a packet in some 0.1 ms; the time of leaving is read
                # after the packet has left, so it may lie a little behind the arrival; the rest is a busy machine
                assert -NS_PER_MS < _arrival(caller, truth) - truth["left_ns"] < 3 * NS_PER_MS
                assert 0 <= truth["left_ns"] - truth["unimpaired_ns"] < 20 * NS_PER_MS
            assert abs(reply["heard_start_ns"] - caller.utterance_start_ns) < 30 * NS_PER_MS
            # the cut ends within speech; look-ahead and network lie between
            assert 270 < (reply["endpoint_ns"] - caller.utterance_end_ns) / NS_PER_MS < 330
            first = next(t for t, p in caller.received if p.sequence_number == reply["first_sequence_number"])
            assert (first - reply["endpoint_ns"]) / NS_PER_MS == pytest.approx(100, abs=10)
            # +312 samples of look-ahead, and a soft beginning
            assert 50 <= reply["leading_silence_ms"] <= 70

            packets = [p for _, data in caller.reports for p in parse_rtcp(data)]
            reports = [p for p in packets if isinstance(p, SenderReport)]
            assert {r.ssrc for r in reports} == {greeting["ssrc"]}
            assert reports[-1].sender.packet_count > 60
            assert {p.chunks[0].cname for p in packets if isinstance(p, SourceDescription)} == {"demo-agent"}
            assert min(t.rtt_ns for t in caller.round_trips) < 5 * NS_PER_MS
            # nothing was offered that it could not do without
            assert not [p for p in packets if isinstance(p, ExtendedReport)]
            assert {p.extension_profile for _, p in caller.received} == {None}

            agent.tell(op="close", call=0)
            assert (await agent.wait_for("closed"))[0]["call"] == 0
            assert [line["state"] for line in agent.of("state")][-1] == "connected"
            assert agent.process.stdin is not None
            agent.process.stdin.close()
            async with asyncio.timeout(5):
                assert await agent.process.wait() == 0

    _run(main)


URI = "http://www.webrtc.org/experiments/rtp-hdrext/abs-capture-time"


@pytest.mark.parametrize("capture_time", [True, False])
def test_reference_and_capture_times_where_they_are_offered(capture_time: bool) -> None:
    config = {"think_ms": [100, 100], "capture_time": capture_time, "impairment": {"ssrc_change_at": [20]}}

    async def main() -> None:
        async with _agent() as agent:
            caller = Caller()
            caller.more = f"a=rtcp-xr:rcvr-rtt=all\r\na=extmap:9 {URI}\r\n"
            await caller.call(agent, config)
            assert "a=rtcp-xr:rcvr-rtt=all\r\n" in caller.answer
            assert (f"a=extmap:9 {URI}\r\n" in caller.answer) is capture_time
            await caller.connected()
            sending = asyncio.create_task(caller.send())
            await agent.wait_for("truth")
            async with asyncio.timeout(10):
                while sum(t.source == "dlrr" for t in caller.round_trips) < 2:
                    await asyncio.sleep(0.05)
            agent.tell(op="close", call=0)
            await agent.wait_for("closed")
            sending.cancel()
            await caller.pc.close()

        answered = [t.rtt_ns for t in caller.round_trips if t.source == "dlrr"]
        assert 0 < min(answered) < 5 * NS_PER_MS
        packets = [p for _, data in caller.reports for p in parse_rtcp(data)]
        extended = [p for p in packets if isinstance(p, ExtendedReport)]
        assert all(p.reference_ntp is not None for p in extended)
        assert isinstance(packets[-1], Goodbye)
        stamped = [(p, capture_time_of(p, 9)) for _, p in caller.received]
        if not capture_time:
            assert {captured for _, captured in stamped} == {None}
            return
        for packet, captured in stamped:
            assert captured is not None
            # on the clock of its sender reports: a report's two times name the same moment of the same media clock
            near = [p for p in packets if isinstance(p, SenderReport) and p.ssrc == packet.ssrc]
            for report in near:
                apart_s = (report.sender.ntp - captured.ntp) / (1 << 32)
                ticks = (report.sender.rtp_timestamp - packet.timestamp + (1 << 31)) % (1 << 32) - (1 << 31)
                assert apart_s == pytest.approx(ticks / 48_000, abs=1 / 48_000)

    _run(main)


def test_impairments_reach_the_wire_and_the_truth_is_what_arrives() -> None:
    config = {
        "think_ms": [100, 100],
        "impairment": {
            "loss": {"random": 0.3},
            "duplicate": 0.5,
            "delay": {"uniform": {"high_ms": 30}},
            "in_order": False,
            "initial_sequence": 65_520,
        },
    }

    async def main() -> None:
        async with _calling(config) as (agent, caller):
            await agent.wait_for("truth")
            caller.say(0.8)
            truths = await agent.wait_for("truth", 2)
            for truth in truths:
                assert -NS_PER_MS < _arrival(caller, truth) - truth["left_ns"] < 3 * NS_PER_MS
                assert truth["left_ns"] - truth["unimpaired_ns"] < 60 * NS_PER_MS
            numbers = [p.sequence_number for _, p in caller.received]
            # SRTP lets each number through once
            assert len(numbers) == len(set(numbers))
            assert min(numbers) < 200 < 65_500 < max(numbers)
            spread = sorted(n if n > 60_000 else n + 65_536 for n in numbers)
            lost = 1 - len(numbers) / (spread[-1] - spread[0] + 1)
            assert 0.15 < lost < 0.45  # 30 % of some 140: four standard deviations
            arrived = [n if n > 60_000 else n + 65_536 for n in numbers]
            assert arrived != sorted(arrived)

    _run(main)


def test_never_speaks_is_silent_and_says_so() -> None:
    async def main() -> None:
        async with _calling({"never_speaks": True}) as (agent, caller):
            caller.say(0.5)
            truth = (await agent.wait_for("truth"))[0]
            assert (truth["kind"], truth["left_ns"]) == ("no_reply", None)
            assert not caller.received

    _run(main)


def test_dying_in_a_reply_ends_the_process_without_a_goodbye() -> None:
    async def main() -> None:
        async with _calling({"die_in_reply": 0, "think_ms": [50, 50]}) as (agent, caller):
            await agent.wait_for("truth")
            before = len(caller.received)
            caller.say(0.5)
            async with asyncio.timeout(10):
                assert await agent.process.wait() == 70
            assert len(caller.received) > before
            assert len(agent.of("truth")) == 1

    _run(main)


def test_an_agent_that_ignores_ice_never_connects() -> None:
    async def main() -> None:
        async with _agent() as agent:
            caller = Caller()
            await caller.call(agent, {"ignores_ice": True})
            assert "a=candidate:" in caller.pc.remoteDescription.sdp
            await asyncio.sleep(2)  # a connection over loopback takes 50 ms
            assert caller.pc.connectionState == "connecting"
            await caller.pc.close()

    _run(main)


def test_requests_that_cannot_be_used_are_answered_with_one_line() -> None:
    async def main() -> None:
        async with _agent() as agent:
            agent.tell(op="open", call=1, config={"sed": 3}, offer="v=0")
            agent.tell(op="open", call=2, config={}, offer="nonsense")
            agent.tell(op="open", call=3, config={})
            agent.tell(op="close", call=9)
            errors = await agent.wait_for("error", 3)
            said = {line["call"]: line["message"] for line in errors}
            assert "did you mean seed?" in said[1]
            assert "the offer cannot be answered" in said[2]
            assert said[3] == "the request has no offer"
            assert (await agent.wait_for("closed"))[0]["call"] == 9
            assert not [text for text in said.values() if "\n" in text]

    _run(main)


@pytest.mark.skipif(os.name != "posix", reason="signals of POSIX")
def test_interrupts_are_the_parent_s_to_judge_and_terminate_ends_it() -> None:
    async def main() -> None:
        async with _agent() as agent:
            agent.tell(op="close", call=0)
            await agent.wait_for("closed")
            agent.process.send_signal(signal.SIGINT)
            agent.tell(op="close", call=1)
            await agent.wait_for("closed", 2)
            agent.process.send_signal(signal.SIGTERM)
            async with asyncio.timeout(5):
                assert await agent.process.wait() == 0

    _run(main)
