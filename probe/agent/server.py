"""The demo agent's process: JSON lines from its parent into calls, and what they say into JSON lines back.

In: `{"op": "open", "call": k, "config": {…}, "offer": sdp, "ptime_ms": 20}` and `{"op": "close", "call": k}`. Out:
`answer`, `error`, `state`, `truth` and, after the last truth of a call, `closed`; each with its call. The process ends
at the end of its input, so it never outlives its parent, and on SIGTERM; SIGINT is the parent's to judge.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import signal
import sys
import threading
from collections.abc import Coroutine, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import IO, Any

import aioice.ice

from analysis.errors import ProbeError
from probe.agent.config import agent_config_from_document
from probe.agent.live import LiveCall
from probe.clock import Clock, SystemClock
from probe.loop import run

__all__ = ["main"]

logger = logging.getLogger(__name__)

GOODBYE_S = 2.0  # for open calls to close at the end


def _loopback_addresses(use_ipv4: bool, use_ipv6: bool) -> list[str]:
    return ["127.0.0.1"]


class _Server:
    """All calls of one process."""

    def __init__(self, out: IO[str], clock: Clock) -> None:
        self._out = out
        self._clock = clock
        self._wall_shift_ns = clock.wall_ns() - clock.monotonic_ns()
        self._calls: dict[int, LiveCall] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        # one thread: what it does is never urgent, and the loop's thread must find a free core
        self._workers = ThreadPoolExecutor(max_workers=1, thread_name_prefix="agent-work")
        self.ended = asyncio.Event()

    def tell(self, op: str, fields: Mapping[str, Any]) -> None:
        """One line to the parent."""
        try:
            self._out.write(json.dumps({"op": op, **fields}, separators=(",", ":"), ensure_ascii=False) + "\n")
            self._out.flush()
        except (BrokenPipeError, ValueError):
            self.ended.set()

    def take(self, line: str) -> None:
        """One line from the parent."""
        try:
            message = json.loads(line)
            op, call = message["op"], int(message["call"])
        except (ValueError, KeyError, TypeError):
            logger.warning("not a message: %.80r", line)
            return
        if op == "open":
            self._start(self._open(call, message))
        elif op == "close":
            self._start(self._close(call))
        else:
            logger.warning("unknown op %r", op)

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _open(self, call: int, message: Mapping[str, Any]) -> None:
        if call in self._calls:
            self.tell("error", {"call": call, "message": f"call {call} is open already"})
            return
        try:
            config = agent_config_from_document(message.get("config") or {}, "config")
            live = self._calls[call] = LiveCall(
                call,
                config,
                clock=self._clock,
                workers=self._workers,
                tell=self.tell,
                wall_shift_ns=self._wall_shift_ns,
            )
            answer = await live.answer(str(message["offer"]), message.get("ptime_ms"))
            self.tell("answer", {"call": call, "answer": answer})
        except (ProbeError, KeyError) as exc:
            self._calls.pop(call, None)
            text = exc.line() if isinstance(exc, ProbeError) else f"the request has no {exc.args[0]}"
            self.tell("error", {"call": call, "message": text})

    async def _close(self, call: int) -> None:
        live = self._calls.pop(call, None)
        if live is not None:
            await live.close()
        self.tell("closed", {"call": call})

    async def close(self) -> None:
        """Leave all calls."""
        calls, self._calls = list(self._calls.values()), {}
        await asyncio.gather(*(live.close() for live in calls), *self._tasks, return_exceptions=True)


def _read(source: IO[str], loop: asyncio.AbstractEventLoop, server: _Server) -> None:
    """Lines from the parent into the loop; runs in a thread, since not every input can be polled."""
    with contextlib.suppress(RuntimeError):  # the loop is closed: nobody listens any more
        for line in source:
            loop.call_soon_threadsafe(server.take, line)
        loop.call_soon_threadsafe(server.ended.set)


async def _serve(source: IO[str], out: IO[str], clock: Clock) -> None:
    loop = asyncio.get_running_loop()
    server = _Server(out, clock)
    with contextlib.suppress(NotImplementedError):  # platforms whose loops know no signals
        loop.add_signal_handler(signal.SIGTERM, server.ended.set)
    threading.Thread(target=_read, args=(source, loop, server), daemon=True).start()
    await server.ended.wait()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(GOODBYE_S):
            await server.close()


def main() -> None:
    """Run until the input ends."""
    logging.basicConfig(level=os.environ.get("DEMO_AGENT_LOG", "WARNING"), stream=sys.stderr)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # nothing but JSON lines on what was standard output, whoever prints
    out = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8", errors="replace")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    # aioice leaves 127.0.0.1 out; calls to this agent must never leave the machine
    aioice.ice.get_host_addresses = _loopback_addresses
    clock = SystemClock()
    run(lambda selector: _serve(sys.stdin, out, clock), clock)
    with contextlib.suppress(OSError, ValueError):  # the parent may be gone
        out.flush()
    # threads of calls that did not close in time must not keep the process
    os._exit(0)
