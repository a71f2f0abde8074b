"""`demo:` — the embedded demo agent in its own process, started and stopped here; our truth.

`demo:` alone is the default agent, `demo:agent.toml` one that a file describes, `demo:?endpoint_silence_ms=700` sets
single options. Protocol: JSON lines on the agent's stdin and stdout (see `probe.agent`).
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

import aioice.ice
from aiortc import RTCBundlePolicy, RTCConfiguration, RTCPeerConnection, RTCRtpSender, RTCSessionDescription

from analysis.codecs import CODECS
from analysis.errors import CallFailed, MediaLost, SessionError, UsageError
from probe.agent.config import AgentConfig, agent_config_from_query, load_agent_config
from probe.clock import SystemClock
from probe.sdp import offered, with_extras
from probe.targets.base import AgentEvent, CallRequest

__all__ = ["DemoSession", "DemoTarget"]

ANSWER_TIMEOUT_S = 20.0
STOP_TIMEOUT_S = 3.0
LAST_WORDS_S = 1.0  # how long a closing call waits for the agent's truth
LINE_LIMIT = 1 << 20  # bytes; an answer's SDP is a few kilobytes

_loopback_only = contextvars.ContextVar("loopback_only", default=False)
_host_addresses = aioice.ice.get_host_addresses


def _addresses(use_ipv4: bool, use_ipv6: bool) -> list[str]:
    # aioice leaves 127.0.0.1 out, and a call to the demo agent must never leave this machine
    return ["127.0.0.1"] if _loopback_only.get() else _host_addresses(use_ipv4, use_ipv6)


aioice.ice.get_host_addresses = _addresses


class DemoSession:
    """One call to the demo agent."""

    def __init__(self, pc: RTCPeerConnection, call: int, target: DemoTarget) -> None:
        self.pc = pc
        self.events: asyncio.Queue[AgentEvent] = asyncio.Queue()
        self.lost: asyncio.Future[SessionError] = asyncio.get_running_loop().create_future()
        self.closed = asyncio.Event()
        self.remote_sdp = ""
        self._call = call
        self._target = target

    async def close(self) -> None:
        """Hang up; the agent's truth about the last reply is waited for."""
        with contextlib.suppress(SessionError, TimeoutError):
            await self._target.send({"op": "close", "call": self._call})
            async with asyncio.timeout(LAST_WORDS_S):
                await self.closed.wait()
        await self.pc.close()


class DemoTarget:
    """The demo agent's process, shared by all calls of a run."""

    def __init__(self, url: str) -> None:
        rest = url.partition(":")[2]
        path, _, query = rest.partition("?")
        self.config: AgentConfig = load_agent_config(Path(path)) if path else AgentConfig()
        if query:
            options = dict(parse_qsl(query, keep_blank_values=True))
            self.config = agent_config_from_query(options, self.config)
        self._process: asyncio.subprocess.Process | None = None
        self._reader: asyncio.Task[None] | None = None
        self._answers: dict[int, asyncio.Future[str]] = {}
        self._sessions: dict[int, DemoSession] = {}
        self._starting = asyncio.Lock()

    @property
    def description(self) -> Mapping[str, Any]:
        """The target for the manifest."""
        return {"url": "demo:", "kind": "demo", "agent": self.config.model_dump(mode="json")}

    def check(self, codec: str) -> None:
        """The agent's own codec, where it has one, must be the scenario's: they offer one each."""
        if self.config.codec not in (None, codec):
            raise UsageError(
                f"the demo agent speaks {self.config.codec} alone, the scenario {codec}",
                next_step="give both the same codec, or the agent none",
            )

    async def _start(self) -> None:
        async with self._starting:
            if self._process is None:
                self._process = await asyncio.create_subprocess_exec(
                    sys.executable,
                    "-m",
                    "probe.agent",
                    stdin=asyncio.subprocess.PIPE,
                    stdout=asyncio.subprocess.PIPE,
                    limit=LINE_LIMIT,
                )
                self._reader = asyncio.create_task(self._read())

    async def send(self, message: Mapping[str, Any]) -> None:
        """One line to the agent. Raises MediaLost where it is gone."""
        process = self._process
        if process is None or process.stdin is None or process.returncode is not None:
            raise MediaLost("the demo agent's process has ended")
        try:
            process.stdin.write(json.dumps(message).encode() + b"\n")
            await process.stdin.drain()
        except (ConnectionError, RuntimeError) as exc:
            raise MediaLost("the demo agent's process has ended") from exc

    async def _read(self) -> None:
        process = self._process
        assert process is not None
        assert process.stdout is not None
        while line := await process.stdout.readline():
            with contextlib.suppress(ValueError, KeyError, TypeError):
                self._take(json.loads(line))
        code = await process.wait()
        error = MediaLost(f"the demo agent's process ended (exit code {code})")
        for answer in self._answers.values():
            if not answer.done():
                answer.set_exception(CallFailed(error.message))
        for session in self._sessions.values():
            if not session.lost.done():
                session.lost.set_result(error)
            session.closed.set()

    def _take(self, message: dict[str, Any]) -> None:
        op, call = message.pop("op"), message.pop("call")
        session = self._sessions.get(call)
        if op == "answer":
            self._answers[call].set_result(message["answer"])
        elif op == "error":
            self._answers[call].set_exception(CallFailed(f"the demo agent: {message['message']}"))
        elif op == "closed" and session is not None:
            session.closed.set()
        elif op == "truth" and session is not None:
            session.events.put_nowait(
                AgentEvent(SystemClock.monotonic_ns(), "agent_truth", "client-monotonic", message)
            )

    async def connect(self, request: CallRequest) -> DemoSession:
        """Negotiate one call with the agent."""
        _loopback_only.set(True)
        await self._start()
        pc = RTCPeerConnection(RTCConfiguration(iceServers=[], bundlePolicy=RTCBundlePolicy.MAX_BUNDLE))
        session = self._sessions[request.call] = DemoSession(pc, request.call, self)
        try:
            transceiver = pc.addTransceiver(request.track, direction="sendrecv")
            mime = CODECS[request.codec].mime_type.lower()
            capabilities = RTCRtpSender.getCapabilities("audio").codecs
            transceiver.setCodecPreferences([c for c in capabilities if c.mimeType.lower() == mime])
            await pc.setLocalDescription(await pc.createOffer())
            answer = self._answers[request.call] = asyncio.get_running_loop().create_future()
            offer = pc.localDescription.sdp
            await self.send(
                {
                    "op": "open",
                    "call": request.call,
                    "config": self.config.model_copy(update={"language": request.language}).model_dump(mode="json"),
                    "codec": request.codec,
                    "ptime_ms": request.ptime_ms,
                    "offer": with_extras(offer, offered(offer)),
                }
            )
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                session.remote_sdp = await answer
            await pc.setRemoteDescription(RTCSessionDescription(session.remote_sdp, "answer"))
        except MediaLost as exc:
            await pc.close()
            raise CallFailed(exc.message) from exc
        except BaseException:
            await pc.close()
            raise
        return session

    async def close(self) -> None:
        """Stop the agent's process."""
        process = self._process
        if process is None:
            return
        if process.stdin is not None:
            process.stdin.close()
        try:
            async with asyncio.timeout(STOP_TIMEOUT_S):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()
        if self._reader is not None:
            await asyncio.gather(self._reader, return_exceptions=True)
