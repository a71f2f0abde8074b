"""RTP packets with their times in, what a real Chromium's getStats() said of them every 200 ms out.

One headless Chromium plays several calls at once, each in a browser context (so a renderer process and an audio
device) of its own. aiortc makes the connection over the loopback interface; the packets themselves are sent by a
thread on absolute deadlines, past aiortc's sender. Sources: Playwright, W3C webrtc-pc and webrtc-stats.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import os
import shutil
import socket
import struct
import threading
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import aioice.ice
from aiortc import RTCPeerConnection, RTCSessionDescription

from analysis.errors import UsageError
from benchmarks.chrome_conditions import NOISE_PAYLOAD_TYPE, Outgoing

__all__ = ["AT_ONCE", "Call", "Chromium", "disturbed", "play_calls", "write_pair"]

AT_ONCE = 6
LEAD_S = 2.0  # from the last connection to the first packet: what starting took has settled
TAIL_S = 1.0  # polled after the last packet
CONNECT_TIMEOUT_S = 15.0
POLL_MS = 200
MOST_POLL_GAP_MS = 230.0  # between two polls; a browser that had the processor has some 205
MOST_LATE_MS = 25.0  # the capture holds when each packet left, so this is not unfair, only another condition
FIRST_NICE = -20
SPIN_NS = 150_000  # before a deadline the thread no longer sleeps
NS_PER_S = 1_000_000_000
PCAP_NS_MAGIC = 0xA1B23C4D
ARGUMENTS = (
    "--autoplay-policy=no-user-gesture-required",
    "--allow-loopback-in-peer-connection",
    "--disable-features=WebRtcHideLocalIpsWithMdns",
    "--no-sandbox",
)
PAGE = """
async (sdp) => {
  const pc = new RTCPeerConnection();
  const audio = document.createElement('audio');
  audio.autoplay = true;
  document.body.append(audio);
  window.pc = pc; window.polls = []; window.states = [];
  pc.ontrack = (event) => { audio.srcObject = new MediaStream([event.track]); audio.play(); };
  await pc.setRemoteDescription({type: 'offer', sdp});
  await pc.setLocalDescription(await pc.createAnswer());
  if (pc.iceGatheringState !== 'complete') await new Promise((done) => {
    pc.onicegatheringstatechange = () => { if (pc.iceGatheringState === 'complete') done(); };
  });
  setInterval(async () => {
    const report = await pc.getStats();
    report.forEach((s) => { if (s.type === 'inbound-rtp' || s.type === 'media-playout') window.polls.push(s); });
  }, POLL_MS);
  return pc.localDescription.sdp;
}
""".replace("POLL_MS", str(POLL_MS))


@dataclass(slots=True)
class Call:
    """One call to be made: its packets in order of time; `sent` and `polls` are what came of it.

    `sent` holds (time in ns since 1970, plain RTP) of each packet as it left, `late_ns` how late each was.
    """

    name: str
    packets: Sequence[Outgoing]
    pcmu: bool = False
    sent: list[tuple[int, bytes]] = field(default_factory=list)
    late_ns: list[int] = field(default_factory=list)
    polls: list[dict[str, Any]] = field(default_factory=list)


class Chromium:
    """A headless Chromium, started by `open` and ended by it.

    Parameters
    ----------
    environment : dict, optional
        Added to its environment (where its PulseAudio is).
    mute : bool
        Without sound output: Chromium's clock-driven null sink, as in a container.
    """

    def __init__(self, *, environment: dict[str, str] | None = None, mute: bool = True) -> None:
        self._environment: dict[str, str | float | bool] = {**os.environ, **(environment or {})}
        self._mute = mute
        self.browser: Any = None

    @contextlib.asynccontextmanager
    async def open(self) -> AsyncIterator[Chromium]:
        """Start it; end it when the block is left, however that happens.

        Raises
        ------
        UsageError
            Where there is no Chromium or no Playwright.
        """
        path = shutil.which("chromium")
        if path is None:
            raise UsageError("chromium is absent", next_step="install the Debian package chromium")
        try:
            from playwright.async_api import async_playwright
        except ImportError as exc:
            raise UsageError(
                "playwright is absent", next_step="pip install playwright (its own browsers are not needed)"
            ) from exc
        async with async_playwright() as playwright:
            self.browser = await playwright.chromium.launch(
                executable_path=path,
                args=list(ARGUMENTS),
                ignore_default_args=[] if self._mute else ["--mute-audio"],
                env=self._environment,
            )
            try:
                yield self
            finally:
                await self.browser.close()


def _descendants(pid: int) -> list[int]:
    """All processes that `pid` started, theirs included (Linux)."""
    found = [pid]
    for parent in found:
        for listed in Path(f"/proc/{parent}/task").glob("*/children"):
            with contextlib.suppress(OSError):
                found += [int(child) for child in listed.read_text().split()]
    return found[1:]


def _go_first() -> None:
    """Let this process and the browser go before other work of the machine, where that is allowed (Linux).

    A browser that is kept from its 10 ms ticks by other programs is no reference. Its own threads must go on sharing
    the processors fairly, so this is the nice value of their session and of each thread, no real-time class.
    """
    for pid in [os.getpid(), *_descendants(os.getpid())]:
        with contextlib.suppress(OSError):
            Path(f"/proc/{pid}/autogroup").write_text(str(FIRST_NICE))
        for thread in Path(f"/proc/{pid}/task").glob("*"):
            with contextlib.suppress(OSError):
                os.setpriority(os.PRIO_PROCESS, int(thread.name), FIRST_NICE)


class _Path:
    """One connected call: a socket, the SRTP session and the address that its packets go to."""

    def __init__(self, pc: RTCPeerConnection) -> None:
        dtls: Any = pc.getTransceivers()[0].sender.transport
        pair = dtls.transport._connection._nominated[1]
        inner = pair.protocol.transport.get_extra_info("socket")
        self._socket = socket.socket(fileno=os.dup(inner.fileno()))
        self._address = pair.remote_addr
        self._srtp = dtls._tx_srtp

    def send(self, data: bytes) -> int:
        """Encrypt and send; the wall time just before (ns since 1970)."""
        protected = self._srtp.protect(data)
        now = time.time_ns()
        self._socket.sendto(protected, self._address)
        return now

    def close(self) -> None:
        self._socket.close()


def _send_all(calls: Sequence[Call], paths: Sequence[_Path], origin_ns: int, stop: threading.Event) -> None:
    """The sender's thread: every packet of every call at its own time (monotonic ns)."""
    with contextlib.suppress(OSError):
        os.sched_setscheduler(threading.get_native_id(), os.SCHED_FIFO, os.sched_param(10))
    due = sorted((origin_ns + p.at_ns, i, k) for i, call in enumerate(calls) for k, p in enumerate(call.packets))
    for at_ns, i, k in due:
        while (left := at_ns - time.monotonic_ns()) > SPIN_NS:
            if stop.is_set():
                return
            time.sleep(min(0.2, (left - SPIN_NS // 2) / NS_PER_S))
        while time.monotonic_ns() < at_ns:
            pass
        late = time.monotonic_ns() - at_ns
        call = calls[i]
        with contextlib.suppress(BlockingIOError):
            call.sent.append((paths[i].send(call.packets[k].data), call.packets[k].data))
        call.late_ns.append(late)


@contextlib.contextmanager
def _loopback_only() -> Iterator[None]:
    """Within it, aioice offers 127.0.0.1 and nothing else."""
    before = aioice.ice.get_host_addresses
    aioice.ice.get_host_addresses = lambda use_ipv4, use_ipv6: ["127.0.0.1"]
    try:
        yield
    finally:
        aioice.ice.get_host_addresses = before


async def _silent(data: bytes) -> None:
    """Takes aiortc's own sender reports, which know nothing of our packets."""


def _with_comfort_noise(sdp: str) -> str:
    """An offer of audio alone that also has comfort noise, which aiortc does not know."""
    head, separator, media = sdp.partition("m=audio ")
    line, end, rest = media.partition("\r\n")
    added = f"a=rtpmap:{NOISE_PAYLOAD_TYPE} CN/8000{end}"
    return f"{head}{separator}{line} {NOISE_PAYLOAD_TYPE}{end}{rest}{added}"


async def _connect(page: Any, call: Call) -> RTCPeerConnection:
    pc = RTCPeerConnection()
    transceiver = pc.addTransceiver("audio", direction="sendonly")
    sender: Any = transceiver.sender
    sender._ssrc = int.from_bytes(call.packets[0].data[8:12], "big")
    if call.pcmu:
        codecs = type(sender).getCapabilities("audio").codecs
        transceiver.setCodecPreferences([c for c in codecs if c.mimeType == "audio/PCMU"])
    with _loopback_only():
        await pc.setLocalDescription(await pc.createOffer())
    offer = pc.localDescription.sdp
    if call.pcmu:
        offer = _with_comfort_noise(offer)
    answer = await page.evaluate(PAGE, offer)
    kept = [line for line in answer.splitlines() if not line.startswith("a=candidate") or " 127.0.0.1 " in line]
    sender.transport._send_rtp = _silent
    await pc.setRemoteDescription(RTCSessionDescription("\r\n".join(kept) + "\r\n", "answer"))
    sender.transport._send_rtp = _silent
    async with asyncio.timeout(CONNECT_TIMEOUT_S):
        while pc.connectionState != "connected":
            await asyncio.sleep(0.01)
    return pc


async def play_calls(chromium: Chromium, calls: Sequence[Call]) -> None:
    """Make the calls, all at once, and fill in what was sent and what the browser said.

    Parameters
    ----------
    chromium : Chromium
        Opened.
    calls : sequence of Call
        At most `AT_ONCE` keep two cores from disturbing the ticks.
    """
    contexts, peers, paths = [], [], []
    stop = threading.Event()
    try:
        pages = []
        _go_first()
        for call in calls:
            context = await chromium.browser.new_context()
            contexts.append(context)
            pages.append(await context.new_page())
            peers.append(await _connect(pages[-1], call))
            paths.append(_Path(peers[-1]))
        gc.collect()
        gc.freeze()
        _go_first()
        origin_ns = time.monotonic_ns() + int(LEAD_S * NS_PER_S)
        thread = threading.Thread(target=_send_all, args=(calls, paths, origin_ns, stop), daemon=True)
        thread.start()
        while thread.is_alive():
            await asyncio.sleep(0.2)
        await asyncio.sleep(TAIL_S)
        for call, page in zip(calls, pages, strict=True):
            call.polls = await page.evaluate("() => window.polls")
    finally:
        stop.set()
        gc.unfreeze()
        for path in paths:
            path.close()
        for peer in peers:
            await peer.close()
        for context in contexts:
            await context.close()


def disturbed(call: Call) -> str | None:
    """What shows that the machine kept the browser or the sender from its work; None where nothing does."""
    times = [poll["timestamp"] for poll in call.polls if poll["type"] == "media-playout"]
    gap_ms = max((b - a for a, b in pairwise(times)), default=0.0)
    late_ms = max(call.late_ns, default=0) / 1e6
    if gap_ms > MOST_POLL_GAP_MS:
        return f"a poll came {gap_ms - POLL_MS:.0f} ms late"
    if late_ms > MOST_LATE_MS:
        return f"a packet left {late_ms:.0f} ms late"
    return None


def _checksum(header: bytes) -> int:
    total = sum(struct.unpack(f"!{len(header) // 2}H", header))
    total = (total & 0xFFFF) + (total >> 16)
    return int(~(total + (total >> 16)) & 0xFFFF)


def pcap_bytes(sent: Sequence[tuple[int, bytes]]) -> bytes:
    """(ns since 1970, RTP) as a nanosecond pcap of Ethernet, IPv4 and UDP on the loopback address."""
    parts = [struct.pack("<IHHiIII", PCAP_NS_MAGIC, 2, 4, 0, 0, 262_144, 1)]
    loopback = bytes((127, 0, 0, 1))
    for time_ns, data in sent:
        start = struct.pack("!BBHHHBB", 0x45, 0, 28 + len(data), 0, 0x4000, 64, 17)
        checksum = struct.pack("!H", _checksum(start + b"\0\0" + loopback + loopback))
        udp = struct.pack("!HHHH", 5004, 5006, 8 + len(data), 0)
        frame = bytes(12) + b"\x08\x00" + start + checksum + loopback + loopback + udp + data
        parts.append(struct.pack("<IIII", *divmod(time_ns, NS_PER_S), len(frame), len(frame)))
        parts.append(frame)
    return b"".join(parts)


def write_pair(folder: Path, name: str, call: Call) -> None:
    """NAME.pcap and NAME.stats.json, as chrome_reference_files.py reads them."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.pcap").write_bytes(pcap_bytes(call.sent))
    (folder / f"{name}.stats.json").write_text(json.dumps(call.polls))
