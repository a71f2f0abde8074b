"""How far `latency-probe analyze RECORDING` is off, by condition, on generated calls whose truth is known.

Prints for each condition: turns, outcomes that are right, |error| of the caller's end, of the first audible sample and
of the latency (p50, p95, max), how often the truth lies inside the stated interval and how wide that is, what was
refused or flagged, and errors above 20 ms that are neither. Other tools run beside on the same files where they are
named. Everything follows from --seed.

    python benchmarks/recordings.py [--turns 2000] [--conditions clean,room] [--no-reference] [--keep DIR]
    python benchmarks/recordings.py --openbenchmarks CHECKOUT --openbenchmarks-python PYTHON [--fixtures]
    python benchmarks/recordings.py --offset-finder-python PYTHON
    python benchmarks/recordings.py --location            an utterance in white noise, beside the Cramér–Rao bound
    python benchmarks/recordings.py --long-s 3600         an hour: speed, memory, outcomes

`--openbenchmarks` is a checkout of github.com/openbenchmarks-labs/voice-agent-latency; its Python needs numpy, scipy,
soundfile, onnxruntime and webrtcvad-wheels. audio-offset-finder (PyPI) needs numpy below 2, so a Python of its own.
"""

from __future__ import annotations

import argparse
import importlib
import inspect
import json
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from analysis.errors import ProbeError
from benchmarks.recordings_calls import TURNS, Call, build
from benchmarks.recordings_conditions import CONDITIONS, available
from benchmarks.recordings_files import Files, Library, long_recording
from benchmarks.recordings_location import SNRS_DB, estimators, locate
from benchmarks.recordings_peers import offset_finder, openbenchmarks, openbenchmarks_fixtures
from benchmarks.recordings_score import Tally, scored

__all__ = ["main"]

Analyze = Callable[..., Any]
REFERENCE, NO_REFERENCE = "ours, reference", "ours, none"
PEER_REFERENCE, PEER_DIALOG, FINDER = "openbenchmarks, reference", "openbenchmarks, none", "audio-offset-finder"


def load_analyze() -> Analyze | None:
    """The function that `latency-probe analyze` calls; None where it is not there yet."""
    try:
        function: Analyze = importlib.import_module("analysis.recording").analyze
    except (ImportError, AttributeError):
        return None
    return function


def analyzed(
    analyze: Analyze, wav: Path, references: Sequence[Path], caller: int, agent: int, replies: Sequence[Path] = ()
) -> Mapping[str, Any]:
    """The result document of a recording."""
    more = {"replies": list(replies)} if replies and "replies" in inspect.signature(analyze).parameters else {}
    result = analyze(wav, references=list(references), caller_channel=caller, agent_channel=agent, **more)
    if isinstance(result, Mapping):
        return result
    from analysis.result import result_json_text

    document: Mapping[str, Any] = json.loads(result_json_text(result))
    return document


def _measure_ours(analyze: Analyze, call: Call, files: Files, tally: Tally, *, reference: bool) -> None:
    references = list(files.references.values()) if reference else []
    replies = files.replies if CONDITIONS[call.condition].known_reply else []
    begun = time.process_time()
    try:
        document = analyzed(analyze, files.wav, references, call.caller_channel, call.agent_channel, replies)
    except ProbeError as error:
        tally.failures[str(error)[:80]] += 1
        document = {"turns": []}
    tally.cpu_s += time.process_time() - begun
    _add(tally, call, document["turns"])


def _add(tally: Tally, call: Call, measured: Sequence[Mapping[str, Any]]) -> None:
    tally.analysed_s += call.duration_s
    scores, spare = scored(call.turns, measured)
    tally.scores += scores
    tally.spare += spare


def run_condition(name: str, options: argparse.Namespace, analyze: Analyze | None) -> dict[str, Any]:
    """All tools on one condition: a row by tool, and what making the calls cost."""
    condition = CONDITIONS[name]
    count = -(-options.turns // TURNS)
    tallies: dict[str, Tally] = {}
    peers: dict[str, list[dict[str, Any]]] = {PEER_REFERENCE: [], PEER_DIALOG: [], FINDER: []}
    calls: list[Call] = []
    making_s = audio_s = 0.0
    with tempfile.TemporaryDirectory() as scratch:
        library = Library(Path(scratch) if options.keep is None else options.keep / name)
        for number in range(count):
            begun = time.process_time()
            call = build(options.seed, condition, number)
            making_s, audio_s = making_s + time.process_time() - begun, audio_s + call.duration_s
            files = library.write(call, truth=options.keep is not None)
            if analyze is not None and options.reference is not False:
                _measure_ours(analyze, call, files, tallies.setdefault(REFERENCE, Tally()), reference=True)
            if analyze is not None and not options.reference:
                _measure_ours(analyze, call, files, tallies.setdefault(NO_REFERENCE, Tally()), reference=False)
            if number < -(-options.peer_turns // TURNS):
                _collect_jobs(peers, call, files, library)
                calls.append(call)
            elif options.keep is None:
                files.wav.unlink()
        for tool, answers in _run_peers(peers, options, Path(scratch)).items():
            tally = tallies.setdefault(tool, Tally(tells_outcomes=tool != FINDER))
            for call, (cpu_s, turns) in zip(calls, answers, strict=True):
                tally.cpu_s += cpu_s
                _add(tally, call, turns)
    return {
        "about": condition.about,
        "calls": count,
        "making_times_real_time": audio_s / making_s,
        "making_s": making_s,
        "tools": {tool: tally.summary() for tool, tally in tallies.items()},
    }


def _collect_jobs(peers: dict[str, list[dict[str, Any]]], call: Call, files: Files, library: Library) -> None:
    channels = {"caller_channel": call.caller_channel, "agent_channel": call.agent_channel}
    job = {"wav": str(files.wav), "turns": len(call.turns), **channels}
    peers[PEER_REFERENCE].append(job | {"references": [str(library.trimmed(path)) for path in files.in_order]})
    peers[PEER_DIALOG].append(job | {"references": None})
    turns = [
        {"start_s": start, "stop_s": stop, "reference": str(path), "end_s": library.end_s(path)}
        for path, (_, start, stop) in zip(files.in_order, (turn.events[0] for turn in call.turns), strict=True)
    ]
    peers[FINDER].append({"wav": str(files.wav), "channel": call.caller_channel, "turns": turns})


def _run_peers(peers: Mapping[str, list[dict[str, Any]]], options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    answers: dict[str, Any] = {}
    if options.openbenchmarks is not None:
        for tool in (PEER_REFERENCE, PEER_DIALOG):
            if options.reference is not (tool == PEER_DIALOG):
                arguments = options.openbenchmarks, options.openbenchmarks_python, peers[tool], folder
                answers[tool] = openbenchmarks(*arguments)
    if options.offset_finder_python is not None and options.reference is not False:
        answers[FINDER] = offset_finder(options.offset_finder_python, peers[FINDER], folder)
    return answers


def run_fixtures(options: argparse.Namespace, analyze: Analyze) -> list[dict[str, Any]]:
    """Ours on openbenchmarks' own fixtures; t1 there is the sample after the last one of speech."""
    rows = []
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        for fixture in openbenchmarks_fixtures(options.openbenchmarks, options.openbenchmarks_python, folder):
            for references in (list(fixture["references"]), list[str]()):
                try:
                    document = analyzed(analyze, Path(fixture["wav"]), [Path(path) for path in references], 0, 1)
                    measured = list(document["turns"])
                except ProbeError as error:
                    print(f"{fixture['name']}: {error}")
                    measured = []
                for i, turn in enumerate(fixture["turns"]):
                    rows.append(_fixture_row(fixture, i, turn, measured, bool(references)))
    return rows


def _fixture_row(
    fixture: Mapping[str, Any], index: int, turn: Mapping[str, Any], measured: Sequence[Mapping[str, Any]], known: bool
) -> dict[str, Any]:
    t1_s = turn["t1"] / fixture["rate_hz"]
    near = [m for m in measured if m.get("speech_stop_s") is not None and abs(m["speech_stop_s"] - t1_s) < 1.0]
    found = min(near, key=lambda m: abs(m["speech_stop_s"] - t1_s), default={})
    latency, true = found.get("latency_ms"), turn["ttfab_ms"]
    return {
        "fixture": fixture["name"],
        "turn": index + 1,
        "reference": known,
        "true_ms": true,
        "latency_ms": latency,
        "error_ms": None if latency is None or true is None else latency - true,
        "t1_error_ms": None if not found else (found["speech_stop_s"] - t1_s) * 1000,
        "stated_ms": found.get("uncertainty_ms"),
        "outcome": found.get("outcome"),
        "reason": found.get("reason"),
        "flags": list(found.get("flags") or ()),
        "their_discard": turn.get("discard"),
    }


def run_long(options: argparse.Namespace, analyze: Analyze) -> list[dict[str, Any]]:
    """Speed and memory on one long recording at each of two rates, from file to result."""
    rows = []
    for rate_hz in (8000, 48000):
        with tempfile.TemporaryDirectory() as scratch:
            wav, references, truths, duration_s = long_recording(
                Library(Path(scratch)), options.long_s, rate_hz, options.seed
            )
            before_mb = _peak_mb()
            begun = time.process_time()
            document = analyzed(analyze, wav, references, 0, 1)
            used_s = time.process_time() - begun
            scores, spare = scored(truths, document["turns"])
            tally = Tally(scores, spare, duration_s, used_s)
            rows.append({"rate_hz": rate_hz, "duration_s": duration_s, "grew_mb": _peak_mb() - before_mb})
            rows[-1].update(tally.summary())
    return rows


def _peak_mb() -> float:
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def _number(value: float | None, digits: int = 1) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def _errors(row: Mapping[str, Any], boundary: str) -> str:
    found = row[boundary]
    return (
        "-"
        if found is None
        else "/".join(f"{found[name]:.{2 if found[name] < 100 else 0}f}" for name in ("p50", "p95", "max"))
    )


HEADER = (
    f"{'condition':17}{'tool':26}{'turns':>6}{'right%':>8}{'end p50/p95/max':>22}{'audible':>22}{'latency':>22}"
    f"{'inside%':>9}{'±ms':>7}{'refused%':>9}{'flagged%':>9}{'>20':>5}{'spare':>6}{'x real time':>12}"
)


def _line(condition: str, tool: str, row: Mapping[str, Any]) -> str:
    return (
        f"{condition:17}{tool:26}{row['turns']:>6}{_number(row['right_percent']):>8}{_errors(row, 'speech_stop'):>22}"
        f"{_errors(row, 'audible'):>22}{_errors(row, 'latency'):>22}{_number(row['inside_stated_percent']):>9}"
        f"{_number(row['median_stated_ms'], 2):>7}{_number(row['refused_percent']):>9}"
        f"{_number(row['flagged_percent']):>9}{row['unflagged_above_20_ms']:>5}{row['spare']:>6}"
        f"{_number(row['times_real_time'], 0):>12}"
    )


def _print_location(options: argparse.Namespace) -> list[dict[str, Any]]:
    rows = []
    head = f"{'rate':>6} {'SNR dB':>7} {'estimator':12}{'trials':>7}{'refused':>8}"
    print(f"{head}{'wrong peak':>11}{'rms us':>9}{'x bound':>9}")
    for rate_hz in (8000, 48000):
        for snr_db in SNRS_DB:
            for name, estimator in estimators().items():
                found = locate(name, estimator, snr_db, rate_hz=rate_hz, trials=options.trials, seed=options.seed)
                rms_us = None if found.rms_samples is None else found.rms_samples / rate_hz * 1e6
                print(
                    f"{rate_hz:>6} {snr_db:>7} {name:12}{found.trials:>7}{found.refused:>8}{found.outliers:>11}"
                    f"{_number(rms_us, 3):>9}{_number(found.over_bound, 2):>9}",
                    flush=True,
                )
                rows.append({"rate_hz": rate_hz, "snr_db": snr_db, "estimator": name, "rms_us": rms_us})
                rows[-1]["over_bound"] = found.over_bound
    return rows


def _print_fixtures(rows: Sequence[Mapping[str, Any]]) -> None:
    print("openbenchmarks' fixtures, ours")
    for row in rows:
        said = "reference" if row["reference"] else "none"
        print(
            f"{row['fixture']:28}{row['turn']:>3} {said:10}{_number(row['true_ms'], 2):>10}"
            f"{_number(row['latency_ms'], 2):>10}{_number(row['error_ms'], 2):>8}{_number(row['t1_error_ms'], 2):>8}"
            f"  {row['outcome']} {row['reason'] or ''} {','.join(row['flags'])} {row['their_discard'] or ''}"
        )
    for known in (True, False):
        errors = [abs(row["error_ms"]) for row in rows if row["reference"] is known and row["error_ms"] is not None]
        if errors:
            print(f"worst |error| {'with' if known else 'without'} reference: {max(errors):.2f} ms of {len(errors)}")


def _parsed(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=100, help="of each condition; 2000 for the published table")
    parser.add_argument("--conditions", default="", help=f"some of {','.join(CONDITIONS)}")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--reference", action=argparse.BooleanOptionalAction, default=None, help="default: both")
    parser.add_argument("--keep", type=Path, help="a folder for recordings, references and truth")
    parser.add_argument("--json", type=Path, help="write all rows to this file")
    parser.add_argument("--openbenchmarks", type=Path, metavar="CHECKOUT")
    parser.add_argument("--openbenchmarks-python", default=sys.executable, metavar="PYTHON")
    parser.add_argument("--offset-finder-python", metavar="PYTHON")
    parser.add_argument("--peer-turns", type=int, default=200, help="at most so many of each condition for other tools")
    parser.add_argument("--fixtures", action="store_true", help="ours on the fixtures of --openbenchmarks")
    parser.add_argument("--location", action="store_true")
    parser.add_argument("--trials", type=int, default=40, help="of --location, at each SNR")
    parser.add_argument("--long-s", type=float, help="length of one long recording, seconds")
    options = parser.parse_args(argv)
    options.names = options.conditions.split(",") if options.conditions else list(available())
    unknown = set(options.names) - set(available())
    if unknown:
        parser.error(f"not available: {', '.join(sorted(unknown))} (rooms need pyroomacoustics)")
    if options.fixtures and options.openbenchmarks is None:
        parser.error("--fixtures needs --openbenchmarks CHECKOUT")
    return options


def main(argv: Sequence[str] | None = None) -> int:
    """Run what was asked for and print it; 0, or 2 where analysis is asked for and is not there."""
    options = _parsed(argv)
    rows: dict[str, Any] = {"seed": options.seed}
    analyze = load_analyze()
    special = options.location or options.fixtures or options.long_s
    if analyze is None:
        print("analysis.recording.analyze is not there: its columns are left out", file=sys.stderr)
        if options.fixtures or options.long_s:
            return 2
    else:
        _warm_up(analyze, options.seed)
    if options.location:
        rows["location"] = _print_location(options)
    if options.fixtures and analyze is not None:
        rows["fixtures"] = run_fixtures(options, analyze)
        _print_fixtures(rows["fixtures"])
    if options.long_s and analyze is not None:
        rows["long"] = run_long(options, analyze)
        for row in rows["long"]:
            print(_line(f"long {row['rate_hz']}", REFERENCE, row), f"grew {row['grew_mb']:.0f} MB")
    if not special:
        print(HEADER)
        rows["conditions"] = {}
        for name in options.names:
            found = rows["conditions"][name] = run_condition(name, options, analyze)
            for tool, row in found["tools"].items():
                print(_line(name, tool, row))
            print(f"{name:17}made at {found['making_times_real_time']:.0f} x real time: {found['about']}", flush=True)
    if options.json is not None:
        options.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    return 0


def _warm_up(analyze: Analyze, seed: int) -> None:
    """Imports and compilation happen here, outside of what is timed."""
    with tempfile.TemporaryDirectory() as scratch:
        call = build(seed, CONDITIONS["clean"], 10**6, turns=1, rate_hz=8000)
        files = Library(Path(scratch)).write(call)
        try:
            analyzed(analyze, files.wav, list(files.references.values()), call.caller_channel, call.agent_channel)
        except ProbeError as error:
            print(f"warm-up: {error}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
