"""`playout`: what a receiver of the RTP streams in a capture would have counted, and when it would have played them."""

from __future__ import annotations

import contextlib
import json
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from analysis.bundle import imported_manifest, read_call
from analysis.call import ASSUMED_OUTPUT
from analysis.capture import CapturedDatagram, read_capture
from analysis.capture_page import stream_series
from analysis.capture_rtp import RtpStream, choose_codecs, described_in, find_streams, may_matter
from analysis.codecs import CODECS, Codec
from analysis.errors import EXIT_OK, BundleError, NotMeasurable, UsageError
from analysis.inbound import Inbound, document, measure
from analysis.inbound_snapshots import INTERVAL_MS, LONGEST_MS, SHORTEST_MS, MeasuredStream, stats_snapshots
from analysis.playout import parse_policy
from analysis.result import OutputDelay
from analysis.rtcp_statistics import call_rtcp_statistics, captured_reports, captured_rtcp_statistics
from analysis.rtp import is_rtcp
from analysis.series import CallSeries
from analysis.units import ns_to_s
from probe.cli.common import JsonOption, OutputDelayOption, announce_compiling, check_outputs, output_delay, write_page
from probe.cli.output import say, warn, write_document

__all__ = ["playout"]


def playout(
    capture: Annotated[
        Path, typer.Argument(metavar="CAPTURE", help="pcap, pcapng or rtpdump, also gzipped; or a session folder.")
    ],
    ssrc: Annotated[
        str | None, typer.Option("--ssrc", metavar="S", help="Only this stream (decimal, or 0x and hexadecimal).")
    ] = None,
    policy: Annotated[str, typer.Option("--policy", metavar="P", help="chrome, fixed:MS or none.")] = "chrome",
    payload_type: Annotated[
        list[str] | None,
        typer.Option("--payload-type", metavar="PT=CODEC", help="What a payload type is, e.g. 111=opus; repeatable."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("-o", "--out", metavar="PAGE.html", help="Also write a page of plots of each stream.")
    ] = None,
    stats: Annotated[
        Path | None,
        typer.Option("--stats", metavar="FILE.jsonl", help="Also write what getStats() would have said over time."),
    ] = None,
    stats_interval_s: Annotated[
        float | None,
        typer.Option("--stats-interval", metavar="S", help="Seconds between the lines of --stats.", show_default="0.2"),
    ] = None,
    output_delay_ms: OutputDelayOption = None,
    as_json: JsonOption = False,
) -> int:
    """Statistics and playout of each RTP stream in a capture, in W3C names and units.

    Example: latency-probe playout call.pcapng --policy fixed:100 --payload-type 111=opus -o call.html
    """
    policy = parse_policy(policy).name
    output = _output(policy, output_delay_ms)
    wanted = None if ssrc is None else _ssrc(ssrc)
    given = _payload_types(payload_type or [])
    interval_ms = _interval_ms(stats_interval_s, stats)
    check_outputs({"-o": out, "--stats": stats}, [capture])
    _refuse_imported(capture)
    read = read_capture(capture, keep=may_matter)
    for warning in read.warnings:
        warn(f"warning: {warning}")
    described = described_in(read.datagrams)
    streams = _wanted(find_streams(read.datagrams), wanted, capture)
    rtcp_only = [d for d in read.datagrams if is_rtcp(d.payload)]
    read = replace(read, datagrams=())  # the streams have what is needed of them
    announce_compiling((policy,))
    zero_ns = min(stream.packets[0].time_ns for stream in streams)
    measured: list[Inbound] = []
    known: list[MeasuredStream] = []
    series: list[CallSeries] = []
    unmeasured: list[str] = []
    for stream in streams:
        choice = choose_codecs(stream, given=given, described=described, negotiated=read.payload_types)
        inbound = measure(stream, choice, policy, output=output)
        if inbound is not None:
            measured.append(inbound)
            known.append(MeasuredStream(stream, choice, inbound))
            if out is not None:
                series.append(stream_series(stream, choice, inbound, policy, zero_ns, len(series)))
        else:
            types = ", ".join(str(number) for number in choice.unknown) or "none with sound"
            unmeasured.append(f"ssrc {stream.ssrc:#010x}: codec not known (payload type {types})")
    if not measured:
        raise NotMeasurable(
            "unknown_codec",
            f"{capture}: {'; '.join(unmeasured)}",
            next_step="name it with --payload-type PT=CODEC, or decrypt the capture if it is of SRTP",
        )
    for text in unmeasured:
        warn(f"warning: {text}: left out; name it with --payload-type PT=CODEC")
    if out is not None:
        _write_page(out, capture, policy, measured, series, [*read.warnings, *unmeasured])
    if stats is not None:
        lines = stats_snapshots(known, interval_ms=interval_ms, reports=captured_reports(rtcp_only))
        write_page(
            stats, "".join(json.dumps(line, allow_nan=False) + "\n" for line in lines).encode(), option="--stats"
        )
    rtcp = _rtcp(capture, rtcp_only, known)
    if as_json:
        made = document(policy, measured, [*read.warnings, *unmeasured], rtcp=rtcp)
        write_document(json.dumps(made, indent=1, allow_nan=False))
    else:
        for number, inbound in enumerate(measured):
            said = {name: of[inbound.ssrc] for name, of in rtcp.items() if inbound.ssrc in of}
            say(*([""] if number else []), *_block(inbound, policy, said))
        if stats is not None:
            say(stats)
        if out is not None:
            say(out)
    return EXIT_OK


def _refuse_imported(capture: Path) -> None:
    """Refuse a folder that holds no packets, and say what it does not hold."""
    if capture.is_dir():
        calls = [capture, *capture.glob("call-*")]
        if not any((call / name).is_file() for call in calls for name in ("manifest.json", "packets.pcap")):
            raise UsageError(
                f"{capture}: not a session bundle (neither packets.pcap nor manifest.json in it)",
                next_step="give the folder that --out named, or a capture",
            )
    with contextlib.suppress(BundleError):  # what else is wrong with a folder is said where it is read
        if capture.is_dir() and imported_manifest(capture) is not None:
            raise NotMeasurable(
                "imported_statistics",
                f"{capture}: no packets in it, it holds imported statistics",
                next_step="use `latency-probe report` to plot them",
            )


def _output(policy: str, given_ms: float | None) -> OutputDelay | None:
    """Delay from the jitter buffer to the ear; none where the policy has no buffer."""
    if policy == "none":
        if given_ms is not None:
            raise UsageError(
                "--output-delay: under the policy `none` nothing is played that a delay could be added to",
                next_step="leave it out, or choose chrome or fixed:MS",
            )
        return None
    output = output_delay(given_ms) or ASSUMED_OUTPUT
    return OutputDelay(output.ms, output.evidence)


def _interval_ms(given_s: float | None, stats: Path | None) -> float:
    """The time between snapshots. Raises UsageError if it cannot be, or if none were asked for."""
    if given_s is None:
        return INTERVAL_MS
    if not SHORTEST_MS <= 1000 * given_s <= LONGEST_MS:  # nor is NaN
        raise UsageError(
            f"--stats-interval {given_s:g}",
            next_step=f"give seconds from {SHORTEST_MS / 1000:g} to {LONGEST_MS / 1000:g}",
        )
    if stats is None:
        raise UsageError("--stats-interval is for the lines of --stats", next_step="name a file with --stats too")
    return 1000 * given_s


def _rtcp(
    capture: Path, datagrams: Sequence[CapturedDatagram], known: Sequence[MeasuredStream]
) -> dict[str, dict[int, dict[str, Any]]]:
    """What the sender and receiver reports say of each stream."""
    if capture.is_dir():
        with contextlib.suppress(BundleError):  # packets may lie there alone
            return call_rtcp_statistics(read_call(capture))
    codecs = {number: codec for each in known for number, codec in each.choice.codecs.items()}
    return captured_rtcp_statistics(datagrams, [each.stream for each in known], codecs)


def _write_page(
    out: Path,
    capture: Path,
    policy: str,
    measured: Sequence[Inbound],
    series: Sequence[CallSeries],
    warnings: Sequence[str],
) -> None:
    from analysis.capture_page import CapturedStream, render_capture  # jinja2 is needed by nothing else

    streams = [CapturedStream(*pair) for pair in zip(measured, series, strict=True)]
    command = f"latency-probe playout {shlex.quote(str(capture))} --policy {policy} -o {shlex.quote(str(out))}"
    page = render_capture(capture.name, policy, streams, warnings, command=command)
    write_page(out, page.encode(errors="replace"))


def _ssrc(text: str) -> int:
    if re.fullmatch(r"0[xX][0-9a-fA-F]{1,8}|[0-9]{1,10}", text, re.ASCII):
        number = int(text, 16 if text[:2].lower() == "0x" else 10)
        if number < 1 << 32:
            return number
    raise UsageError(f"--ssrc {text}", next_step="give a number of 32 bits, e.g. 305419896 or 0x12345678")


def _payload_types(texts: Sequence[str]) -> Mapping[int, Codec]:
    found: dict[int, Codec] = {}
    for text in texts:
        match = re.fullmatch(r"(\d{1,3})=(\w+)", text, re.ASCII)
        codec = None if match is None else CODECS.get(match[2].lower())
        if match is None or codec is None or int(match[1]) > 127:
            raise UsageError(
                f"--payload-type {text}", next_step=f"give PT=CODEC, PT up to 127 and CODEC one of {', '.join(CODECS)}"
            )
        found[int(match[1])] = codec
    return found


def _wanted(streams: Sequence[RtpStream], ssrc: int | None, capture: Path) -> Sequence[RtpStream]:
    if not streams:
        raise NotMeasurable(
            "no_rtp",
            f"{capture}: no RTP stream in it",
            next_step="capture UDP on the path of the media (if that is encrypted, where it is not)",
        )
    chosen = [stream for stream in streams if ssrc in (None, stream.ssrc)]
    if not chosen:
        there = ", ".join(f"{stream.ssrc:#010x} ({len(stream.packets)} packets)" for stream in streams)
        raise UsageError(f"{capture}: no stream of ssrc {ssrc:#010x}", next_step=f"there are {there}")
    return chosen


def _block(stream: Inbound, policy: str, rtcp: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """One stream for a person."""
    said = stream.inbound_rtp
    expected = said["packetsReceived"] + said["packetsLost"]
    share = 100 * said["packetsLost"] / expected if expected > 0 else 0.0
    seconds = ns_to_s(stream.last_ns - stream.first_ns)
    way = f", {stream.direction}" if stream.direction else ""
    what = f"{stream.codec}, payload type {stream.payload_type}"
    lines = [
        f"ssrc {stream.ssrc:#010x} ({stream.ssrc})  {what}  {stream.ends}{way}",
        f"  packets    {said['packetsReceived']} in {seconds:.1f} s, {said['packetsLost']} lost ({share:.1f} %)",
        f"  jitter     {1000 * said['jitter']:.1f} ms at the end{_spread(stream)}",
    ]
    emitted = said.get("jitterBufferEmittedCount", 0)
    if stream.concealed_ms is not None and emitted:
        delay_ms = 1000 * said["jitterBufferDelay"] / emitted
        target = said.get("jitterBufferTargetDelay")
        aim = "" if target is None else f", target {1000 * target / emitted:.1f} ms"
        lines.append(f"  {policy:10} jitter buffer {delay_ms:.1f} ms in the mean{aim}")
    if stream.concealed_ms is not None:
        silent = "" if stream.silent_ms is None else f" ({stream.silent_ms:.1f} of it silence)"
        lines.append(
            f"             concealed {stream.concealed_ms:.1f} ms{silent}, inserted {stream.inserted_ms:.1f} ms, "
            f"removed {stream.removed_ms:.1f} ms, {said['packetsDiscarded']} packets discarded"
        )
    return lines + _reported(rtcp) + [f"  warning    {warning}" for warning in stream.warnings]


def _reported(rtcp: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """What the RTCP reports add, for a person."""
    lines = []
    for name in ("remote_inbound_rtp", "remote_outbound_rtp"):
        trip_s = rtcp.get(name, {}).get("roundTripTime")
        if trip_s is not None:
            lines.append(f"  round trip {1000 * trip_s:.1f} ms, the last of {rtcp[name]['roundTripTimeMeasurements']}")
    slope = rtcp.get("sender_clock", {}).get("slope_ppm")
    if slope is not None:
        lines.append(
            f"  clock      the sender's media runs {slope['value']:+.1f} ppm against its own clock "
            f"({slope['low']:+.1f} to {slope['high']:+.1f}, {rtcp['sender_clock']['n']} reports)"
        )
    return lines


def _spread(stream: Inbound) -> str:
    if stream.jitter_mean_ms is None or stream.jitter_max_ms is None:
        return ""
    return f" (mean {stream.jitter_mean_ms:.1f}, highest {stream.jitter_max_ms:.1f})"
