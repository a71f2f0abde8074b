"""What is fuzzed: for each target its seeds, what is done with an input, and which errors its documentation allows.

An input must end in a value or in one of those errors. Values are looked at, too: what was parsed is written and parsed
again, times stay in range, documents are JSON without NaN.
"""

from __future__ import annotations

import contextlib
import io
import json
import random
import shutil
import time
import traceback
import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import analysis
from analysis.bundle import CallRecord, read_call
from analysis.capture import read_capture
from analysis.capture_rtp import choose_codecs, described_in, find_streams, may_matter
from analysis.capture_time import capture_time_of, header_extensions, serialize_header_extensions
from analysis.derive import derive
from analysis.dumps import read_dump
from analysis.errors import (
    EXIT_FAILED,
    EXIT_NOT_MEASURABLE,
    EXIT_OK,
    EXIT_USAGE,
    BundleError,
    MalformedPacket,
    ProbeError,
    UsageError,
)
from analysis.inbound import document, measure
from analysis.result import result_json_text
from analysis.rtcp import (
    ExtendedReport,
    ReceiverReport,
    SenderReport,
    parse_rtcp,
    serialize_extended_report,
    serialize_receiver_report,
)
from analysis.rtp import is_rtcp, is_rtp_or_rtcp, parse_rtp, serialize_rtp
from analysis.stats_series import read_stats, stats_series
from benchmarks import fuzz_corpus as corpus
from benchmarks import fuzz_documents as documents
from benchmarks.fuzz_mutate import SEPARATOR, Seed
from probe.cli import main

__all__ = ["MAX_CPU_S", "TARGETS", "Hang", "Outcome", "Target", "Wrong", "judge", "mutated", "warm_up"]

OWN = Path(analysis.__path__[0]).resolve()
MAX_CPU_S = 2.0  # of one input; more is a hang
MAX_DATAGRAM = 65_507
MAX_LINE = 2000  # characters of the line that a user is shown
SMALLEST_RECORD = 12  # bytes that each datagram of a capture takes at least
BUNDLE_FILES = ("manifest.json", "events.jsonl", "stats.jsonl", "packets.pcap")


class Wrong(Exception):
    """A value that cannot be right."""


class Hang(BaseException):
    """An input that takes too long; no `except Exception` may catch it."""


@dataclass(frozen=True)
class Target:
    """One thing to fuzz.

    `share` is its part of all inputs. `run` takes the input and a folder for files; what it raises must be one of
    `refuses`. `textual` inputs are JSON, whole or by line. An input that takes more than `limit_s` of the
    processor's time is a hang.
    """

    name: str
    share: float
    seeds: Callable[[], Sequence[Seed]]
    run: Callable[[bytes, Path], object]
    refuses: tuple[type[Exception], ...] = ()
    textual: bool = False
    limit_s: float = MAX_CPU_S

    @cached_property
    def corpus(self) -> Sequence[Seed]:
        """The seeds, made once."""
        return self.seeds()


@dataclass(frozen=True, slots=True)
class Outcome:
    """How one input ended; `fault` says what was wrong, None where nothing was."""

    accepted: bool
    cpu_s: float
    fault: str | None = None


def mutated(target: Target, seed: int, index: int) -> bytes:
    """Input number `index` of a target; a pure function, so that each input can be had again."""
    rng = random.Random(f"{seed}/{target.name}/{index}")
    return rng.choice(target.corpus).damaged(rng, target.corpus)


def judge(target: Target, data: bytes, folder: Path) -> Outcome:
    """Give an input to a target. Only `Hang` and what ends a process come out as exceptions."""
    start_s = time.process_time()
    accepted, fault = False, None
    try:
        accepted = target.run(data, folder) is not None
    except target.refuses as exc:
        fault = _bad_line(exc)
    except Exception as exc:
        fault = f"{type(exc).__name__} at {_place(exc)}: {exc}"[:300]
    cpu_s = time.process_time() - start_s
    if cpu_s > target.limit_s:
        fault = f"took {cpu_s:.1f} s"
    return Outcome(accepted, cpu_s, fault)


def _place(exc: Exception) -> str:
    """File and line of the project's own code that an exception came out of."""
    frames = traceback.extract_tb(exc.__traceback__)
    own = [f for f in frames if Path(f.filename).is_relative_to(OWN)] or frames
    return f"{Path(own[-1].filename).name}:{own[-1].lineno}"


def _bad_line(exc: Exception) -> str | None:
    """What is wrong with the line that a user would read, if anything is."""
    line = exc.line() if isinstance(exc, ProbeError) else str(exc)
    if not line or len(line) > MAX_LINE or not line.isprintable():
        return f"{type(exc).__name__} is not one line for a person: {line[:200]!r}"
    return None


def _rtp(data: bytes, folder: Path) -> object:
    data = data[:MAX_DATAGRAM]
    is_rtp_or_rtcp(data)
    is_rtcp(data)
    packet = parse_rtp(data)
    if parse_rtp(serialize_rtp(packet)) != packet:
        raise Wrong("an RTP packet that changes when it is written and read again")
    return packet


def _extensions(data: bytes, folder: Path) -> object:
    packet = parse_rtp(data[:MAX_DATAGRAM])
    elements = header_extensions(packet.extension_profile, packet.extension)
    if elements and header_extensions(*serialize_header_extensions(elements)) != elements:
        raise Wrong("header extensions that change when they are written and read again")
    times = [capture_time_of(packet, number) for number in range(16)]
    return packet, elements, [time.unix_ns for time in times if time is not None]


def _rtcp(data: bytes, folder: Path) -> object:
    packets = parse_rtcp(data[:MAX_DATAGRAM])
    for packet in packets:
        if isinstance(packet, ExtendedReport):
            written = serialize_extended_report(packet)
        elif isinstance(packet, SenderReport):
            written = serialize_receiver_report(packet.ssrc, packet.blocks, packet.sender)
        elif isinstance(packet, ReceiverReport):
            written = serialize_receiver_report(packet.ssrc, packet.blocks)
        else:
            continue
        if parse_rtcp(written) != (packet,):
            raise Wrong("an RTCP report that changes when it is written and read again")
    return packets


def _written(data: bytes, folder: Path, name: str = "input") -> Path:
    path = folder / name
    path.write_bytes(data)
    return path


def _capture(data: bytes, folder: Path) -> object:
    found = read_capture(_written(data, folder))
    unpacked = 200 * len(data) + (1 << 20) if data[:2] == b"\x1f\x8b" else len(data)
    if len(found.datagrams) > unpacked // SMALLEST_RECORD:
        raise Wrong(f"{len(found.datagrams)} datagrams in {len(data)} bytes")
    if not all(0 <= d.time_ns < 1 << 63 and d.missing_bytes >= 0 for d in found.datagrams):
        raise Wrong("a datagram whose time or size cannot be")
    if not all(isinstance(text, str) for text in found.warnings):
        raise Wrong("a warning that is no text")
    return found


def _policy(data: bytes) -> str:
    """Chosen by the input itself: `chrome` costs by far the most, so few inputs have it."""
    number = zlib.crc32(data) % 20
    return "chrome" if number < 2 else "fixed:60" if number < 11 else "none"


def _capture_to_playout(data: bytes, folder: Path) -> object:
    return _played(data, folder, _policy(data))


def _played(data: bytes, folder: Path, policy: str) -> object:
    """All that `latency-probe playout CAPTURE --json` does, but its printing."""
    read = read_capture(_written(data, folder), keep=may_matter)
    described = described_in(read.datagrams)
    measured = []
    for stream in find_streams(read.datagrams):
        choice = choose_codecs(stream, given={}, described=described, negotiated=read.payload_types)
        inbound = measure(stream, choice, policy)
        if inbound is not None:
            measured.append(inbound)
    json.dumps(document(policy, measured, read.warnings), allow_nan=False)
    return measured or None


def warm_up(folder: Path) -> None:
    """Play something, so that what is compiled at its first use is not timed with the first input."""
    for seed in corpus.captures()[:6]:
        _played(seed.whole(), folder, "chrome")


def _files(data: bytes, folder: Path) -> Path:
    """A bundle's files from one input; those that are empty are not there."""
    for name, part in zip(BUNDLE_FILES, data.split(SEPARATOR, len(BUNDLE_FILES) - 1), strict=False):
        path = folder / name
        if part:
            path.write_bytes(part)
        else:
            path.unlink(missing_ok=True)
    return folder


def _bundle(data: bytes, folder: Path) -> CallRecord:
    return read_call(_files(data, folder))


def _bundle_to_result(data: bytes, folder: Path) -> object:
    """What `latency-probe replay BUNDLE --json` does, but its printing."""
    policies = ("chrome",) if zlib.crc32(data) % 20 == 0 else ("none", "fixed:60")
    return result_json_text(derive([_bundle(data, folder)], policies=policies).result)


def _statistics(data: bytes, folder: Path) -> object:
    """What a report draws imported statistics from."""
    said: list[str] = []
    series = stats_series(read_stats(_written(data, folder, "stats.jsonl"), said), warnings=said)
    return series if series.plottable else None


def _dump(name: str) -> Callable[[bytes, Path], object]:
    """What `latency-probe import FILE` does with a file of that name, and what a report then draws from."""

    def run(data: bytes, folder: Path) -> object:
        dump = read_dump(_written(data, folder, name))
        for connection in dump.peer_connections:
            for snapshot in connection.snapshots:
                json.dumps(snapshot.stats, allow_nan=False)
                if not 0 <= snapshot.time_ns < 1 << 63:
                    raise Wrong(f"a snapshot at {snapshot.time_ns} ns")
            stats_series((s.time_ns, list(s.stats)) for s in connection.snapshots)
            _one_line(connection.warnings)
        _one_line((*dump.warnings, dump.user_agent or ""))
        return dump

    return run


def _one_line(texts: Iterable[str]) -> None:
    for text in texts:
        if not text.isprintable():
            raise Wrong(f"a text that is not one line: {text[:100]!r}")


def _command(data: bytes, folder: Path) -> object:
    """A whole command, as from the command line; its exit code must be one that the contract knows."""
    said_name, _, content = data.partition(b"\n")
    name = said_name.decode(errors="replace")
    name = name if name in _OPTIONS else min(_OPTIONS)  # coverage guidance changes the name, too
    work = folder / "command"
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir()
    out = str(work / "out")
    if name in ("report", "replay"):
        path = work / "bundle"
        path.mkdir()
        _files(content, path)
    else:
        path = _written(content, work)
    code, said = _run([name, str(path), *_OPTIONS[name](out)])
    if code == EXIT_OK and name == "import":
        code, said = _run(["report", out, "-o", f"{out}.html"])
    if code not in (EXIT_OK, EXIT_USAGE, EXIT_NOT_MEASURABLE, EXIT_FAILED):
        raise Wrong(f"{name} ended with {code}: {' '.join(said.splitlines()[-3:])}")
    if "Warning: " in said:
        raise Wrong(f"{name} said: {said[:200]!r}")
    return True if code == EXIT_OK else None


_OPTIONS: dict[str, Callable[[str], list[str]]] = {
    "playout": lambda out: ["--policy", "fixed:60", "--json"],
    "replay": lambda out: ["--policy", "none,fixed:60", "--json"],
    "report": lambda out: ["-o", f"{out}.html"],
    "import": lambda out: ["-o", out],
}


def _run(arguments: list[str]) -> tuple[int, str]:
    """Exit code and standard error of a command."""
    said = io.StringIO()
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(said):
        try:
            main(arguments)
        except SystemExit as exc:
            return int(exc.code or 0), said.getvalue()
    return EXIT_OK, said.getvalue()


TARGETS = {
    target.name: target
    for target in (
        Target("rtp", 200, corpus.rtp_packets, _rtp, (MalformedPacket,)),
        Target("rtp-extensions", 100, corpus.extension_blocks, _extensions, (MalformedPacket,)),
        Target("rtcp", 200, corpus.rtcp_packets, _rtcp, (MalformedPacket,)),
        Target("pcap", 70, corpus.pcap_captures, _capture, (UsageError,)),
        Target("pcapng", 70, corpus.pcapng_captures, _capture, (UsageError,)),
        Target("rtpdump", 60, corpus.rtpdumps, _capture, (UsageError,)),
        Target("capture-to-playout", 40, corpus.captures, _capture_to_playout, (UsageError,)),
        Target("bundle", 50, documents.bundles, _bundle, (BundleError,)),
        Target("bundle-to-result", 5, lambda: documents.bundles(None), _bundle_to_result, (BundleError,)),
        Target("stats.jsonl", 30, documents.statistics_files, _statistics, (BundleError,), textual=True),
        Target("webrtc-internals", 70, documents.internals_dumps, _dump("dump.txt"), (UsageError,), textual=True),
        Target("rtcstats", 70, documents.rtcstats_dumps, _dump("rtcstats.txt"), (UsageError,), textual=True),
        Target("getstats", 65, documents.getstats_dumps, _dump("stats.json"), (UsageError,), textual=True),
        Target("commands", 0.4, documents.commands, _command, limit_s=20.0),
    )
}
