"""What a call costs the probe, and how exactly it paces, beside plain aiortc against the same far end.

Prints, for 1, 10, 40 and 60 calls in one process on one core: CPU per call and pacing lateness (p50, p99 of `left the
socket` − deadline). The far end is a light aiortc peer with packets encoded beforehand, pinned to another core. The
probe does all that it does in a run: engine, tap, live ear, record on disk, statistics, reports. "plain aiortc" is a
peer that encodes one 48 kHz voice track and reads the other side's, as a usual client does; at most 10 of them.

    python benchmarks/live_cost.py [--calls 1,10,40,60] [--seconds 15]
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import resource
import struct
import sys
import tempfile
import time
from collections.abc import Mapping
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
from aiortc import MediaStreamTrack, RTCBundlePolicy, RTCConfiguration, RTCPeerConnection, RTCSessionDescription

from analysis.bundle import find_calls, read_call
from analysis.codecs import CODECS, encode
from probe.clock import SystemClock
from probe.loop import LagSelector, run
from probe.scenario import demo_scenario
from probe.session import run_session
from probe.tap import MediaTap
from probe.targets import demo as loopback
from probe.targets.base import AgentEvent, CallRequest
from probe.utterances import shipped

FRAME_NS = 20_000_000
SETTLE_S = 6.0  # connections are made in this time, and not counted
PLAIN_LIMIT = 10


def _configuration() -> RTCConfiguration:
    loopback._loopback_only.set(True)
    return RTCConfiguration(iceServers=[], bundlePolicy=RTCBundlePolicy.MAX_BUNDLE)


class IdleTrack(MediaStreamTrack):
    """A track that never yields: the far end sends by itself."""

    kind = "audio"

    async def recv(self) -> Any:
        await asyncio.Event().wait()


class FarEnd:
    """Answers offers read from stdin; sends each 1.5 s of speech and 3.5 s of silence in turn, encoded before."""

    def __init__(self) -> None:
        voice = shipped("en/1").samples[: 48_000 * 3 // 2]
        self.loop = encode(CODECS["opus"], np.concatenate((voice, np.zeros(48_000 * 7 // 2, dtype=np.float32))))
        self.calls: list[tuple[MediaTap, int, int]] = []

    def on_received(self, time_ns: int, data: bytes, rtcp: bool) -> None:
        return

    def on_sent(self, time_ns: int, data: bytes, rtcp: bool) -> None:
        return

    async def answer(self, offer: str) -> str:
        pc = RTCPeerConnection(_configuration())
        await pc.setRemoteDescription(RTCSessionDescription(offer, "offer"))
        transceiver = pc.getTransceivers()[0]
        transceiver.direction = "sendrecv"
        transceiver.sender.replaceTrack(IdleTrack())
        await pc.setLocalDescription(await pc.createAnswer())
        tap = MediaTap(pc, SystemClock(), self)
        for protocol in tap._ice._protocols:
            self._deafen(protocol)
        payload_type = next(c.payloadType for c in transceiver._codecs if c.mimeType == "audio/opus")
        self.calls.append((tap, transceiver.sender._ssrc, payload_type))
        return pc.localDescription.sdp

    @staticmethod
    def _deafen(protocol: Any) -> None:
        """What the probe sends is not looked at here."""
        hear = protocol.datagram_received
        protocol.datagram_received = lambda data, address: None if 127 < data[0] < 192 else hear(data, address)

    async def send(self, number: int) -> None:
        """One call's packets; the calls' phases are spread over the 20 ms, as those of independent agents are."""
        tap, ssrc, payload_type = self.calls[number]
        start_ns, frame = time.monotonic_ns() // FRAME_NS * FRAME_NS + number * 7_360_000 % FRAME_NS, 0
        while True:
            await asyncio.sleep(max(0.0, (start_ns + frame * FRAME_NS - time.monotonic_ns()) / 1e9))
            payload = self.loop[(frame + 7 * number) % len(self.loop)]
            header = struct.pack("!BBHII", 0x80, payload_type, frame & 0xFFFF, frame * 960 & 0xFFFFFFFF, ssrc)
            with contextlib.suppress(ConnectionError):
                tap.send(header + payload)
            frame += 1

    async def serve(self, _: LagSelector) -> None:
        reader = asyncio.StreamReader(limit=1 << 20)
        await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
        senders: list[asyncio.Task[None]] = []
        while line := await reader.readline():
            print(json.dumps(await self.answer(json.loads(line))), flush=True)
            senders.append(asyncio.create_task(self.send(len(senders))))
        for sender in senders:
            sender.cancel()


class FarLink:
    """The far end's process, and offers to it one after the other."""

    async def start(self) -> None:
        self.process = await asyncio.create_subprocess_exec(
            sys.executable, __file__, "--role", "far", stdin=-1, stdout=-1, limit=1 << 20
        )
        self.turn = asyncio.Lock()

    async def offer(self, sdp: str) -> str:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        async with self.turn:
            self.process.stdin.write(json.dumps(sdp).encode() + b"\n")
            return str(json.loads(await self.process.stdout.readline()))

    async def stop(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        await self.process.wait()


async def _negotiate(pc: RTCPeerConnection, far: FarLink) -> None:
    await pc.setLocalDescription(await pc.createOffer())
    await pc.setRemoteDescription(RTCSessionDescription(await far.offer(pc.localDescription.sdp), "answer"))


class LightSession:
    remote_sdp = ""

    def __init__(self, pc: RTCPeerConnection) -> None:
        self.pc = pc
        self.events: asyncio.Queue[AgentEvent] = asyncio.Queue()
        self.lost: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    async def close(self) -> None:
        await self.pc.close()


class LightTarget:
    """The probe's target in this benchmark; it also takes the CPU time of the counted stretch."""

    description: Mapping[str, Any] = {"url": "light:"}

    def __init__(self, seconds: float) -> None:
        self.far = FarLink()
        self.seconds = seconds
        self.cpu_s = 0.0
        self.window_ns = (0, 0)
        self.started: asyncio.Task[None] | None = None

    def check(self, codec: str) -> None:
        return

    async def connect(self, request: CallRequest) -> LightSession:
        if self.started is None:
            self.started = asyncio.create_task(self.far.start())
            self.meter = asyncio.create_task(self._measure())
        await asyncio.shield(self.started)
        pc = RTCPeerConnection(_configuration())
        pc.addTransceiver(request.track, direction="sendrecv")
        await _negotiate(pc, self.far)
        return LightSession(pc)

    async def _measure(self) -> None:
        self.cpu_s, self.window_ns = await _cpu_seconds(self.seconds)

    async def close(self) -> None:
        await self.meter
        await self.far.stop()


async def _cpu_seconds(seconds: float) -> tuple[float, tuple[int, int]]:
    await asyncio.sleep(SETTLE_S)
    before, begin_ns = resource.getrusage(resource.RUSAGE_SELF), time.monotonic_ns()
    await asyncio.sleep(seconds)
    after, end_ns = resource.getrusage(resource.RUSAGE_SELF), time.monotonic_ns()
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return used / ((end_ns - begin_ns) / 1e9), (begin_ns, end_ns)


def measure_probe(calls: int, seconds: float) -> dict[str, float]:
    """CPU (cores) and lateness of the probe itself, with its record read back."""
    target = LightTarget(seconds)
    scenario = demo_scenario()
    turns = 1 + int((seconds + SETTLE_S) / scenario.spacing)
    with tempfile.TemporaryDirectory() as folder:
        run_session(
            target,
            scenario,
            base_dir=Path.cwd(),
            turns=turns,
            calls=calls,
            rate_per_min=None,
            out=Path(folder) / "out",
            command="",
            on_view=lambda view: None,
        )
        late_ms: list[float] = []
        for path in find_calls(Path(folder) / "out"):
            late_ms += _lateness_ms(path, target.window_ns)
    return _row(target.cpu_s, calls, late_ms)


def _lateness_ms(path: Path, window_ns: tuple[int, int]) -> list[float]:
    record = read_call(path)
    started, origin = record.first("media_started"), record.first("sent_origin")
    if started is None or origin is None:
        return []
    late = []
    for timed in record.sent:
        frame = ((timed.packet.timestamp - origin.fields["rtp_timestamp"]) & 0xFFFFFFFF) // 960
        due_ns = started.fields["deadline0_ns"] + frame * started.fields["frame_ns"]
        if window_ns[0] <= due_ns < window_ns[1]:
            late.append((timed.time_ns - due_ns) / 1e6)
    return late


class VoiceTrack(MediaStreamTrack):
    """What a usual client publishes: frames of 48 kHz speech, paced on the same absolute deadlines as the probe's."""

    kind = "audio"

    def __init__(self) -> None:
        super().__init__()
        self.pcm = (shipped("en/1").samples * 32767).astype(np.int16)
        self.frame, self.start_ns = 0, 0

    async def recv(self) -> Any:
        self.start_ns = self.start_ns or time.monotonic_ns()
        due_ns = self.start_ns + self.frame * FRAME_NS
        await asyncio.sleep(max(0.0, (due_ns - time.monotonic_ns()) / 1e9))
        at = self.frame * 960 % (len(self.pcm) - 960)
        frame = av.AudioFrame.from_ndarray(self.pcm[None, at : at + 960], format="s16", layout="mono")
        frame.sample_rate, frame.pts, frame.time_base = 48_000, self.frame * 960, Fraction(1, 48_000)
        self.frame += 1
        return frame


def measure_plain(calls: int, seconds: float) -> dict[str, float]:
    """CPU (cores) and lateness of plain aiortc clients."""
    late_ms: list[float] = []

    async def client(far: FarLink, window: list[int]) -> RTCPeerConnection:
        pc = RTCPeerConnection(_configuration())
        voice = VoiceTrack()

        @pc.on("track")
        def on_track(track: MediaStreamTrack) -> None:
            async def read() -> None:
                while True:
                    await track.recv()

            pc.reading = asyncio.create_task(read())

        pc.addTransceiver(voice, direction="sendrecv")
        await _negotiate(pc, far)
        dtls = pc.getTransceivers()[0].sender.transport
        send, sent = dtls._send_rtp, [0]

        async def timed(data: bytes) -> None:
            await send(data)
            if not 192 <= data[1] <= 223:
                now = time.monotonic_ns()
                if window and now < window[-1] + seconds * 1e9:
                    late_ms.append((now - voice.start_ns - sent[0] * FRAME_NS) / 1e6)
                sent[0] += 1

        dtls._send_rtp = timed
        return pc

    async def main(_: LagSelector) -> float:
        far = FarLink()
        await far.start()
        window: list[int] = []
        meter = asyncio.create_task(_cpu_seconds(seconds))
        clients = [await client(far, window) for _ in range(calls)]
        await asyncio.sleep(SETTLE_S)
        window.append(time.monotonic_ns())
        used, _ = await meter
        for pc in clients:
            pc.reading.cancel()
            await pc.close()
        await far.stop()
        return used

    return _row(run(main, SystemClock()), calls, late_ms)


def _row(cpu_s: float, calls: int, late_ms: list[float]) -> dict[str, float]:
    p50, p99 = np.percentile(late_ms, [50, 99]) if late_ms else (float("nan"), float("nan"))
    return {"cpu": cpu_s, "per_call": cpu_s / calls, "p50": float(p50), "p99": float(p99), "packets": len(late_ms)}


def _in_process(role: str, calls: int, seconds: float) -> dict[str, float]:
    """Measure in a process of its own, so that one run leaves nothing to the next."""
    import subprocess

    command = [sys.executable, __file__, "--role", role, "--calls", str(calls), "--seconds", str(seconds)]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True, timeout=seconds * 4 + 120)
    row: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--role", choices=["all", "far", "probe", "plain"], default="all")
    parser.add_argument("--calls", default="1,10,40,60")
    parser.add_argument("--seconds", type=float, default=15.0)
    options = parser.parse_args()
    cores = sorted(os.sched_getaffinity(0))
    if options.role == "far":
        os.sched_setaffinity(0, {cores[-1]} if len(cores) == 1 else {int(os.environ["FAR_CORE"])})
        run(FarEnd().serve, SystemClock())
        return
    if options.role in ("probe", "plain"):
        os.environ["FAR_CORE"] = str(cores[-1])
        os.sched_setaffinity(0, {cores[0]})
        measure = measure_probe if options.role == "probe" else measure_plain
        print(json.dumps(measure(int(options.calls), options.seconds)))
        return
    print(f"{options.seconds:g} s counted; one core for the client, another for the far end")
    print(f"{'client':<14}{'calls':>6}{'cores':>8}{'% of a core a call':>20}{'late p50 ms':>13}{'late p99 ms':>13}")
    plain: dict[int, float] = {}
    for calls in [int(c) for c in options.calls.split(",")]:
        for role in ("plain", "probe"):
            if role == "plain" and calls > PLAIN_LIMIT:
                continue
            row = _in_process(role, calls, options.seconds)
            name = "plain aiortc" if role == "plain" else "probe"
            print(
                f"{name:<14}{calls:>6}{row['cpu']:>8.3f}{100 * row['per_call']:>20.2f}"
                f"{row['p50']:>13.3f}{row['p99']:>13.3f}",
                flush=True,
            )
            if role == "plain":
                plain[calls] = row["per_call"]
            elif calls in plain:
                print(f"{'':<14}probe / plain aiortc, CPU per call: {row['per_call'] / plain[calls]:.2f}", flush=True)


if __name__ == "__main__":
    main()
