"""A scenario and a target into a session bundle: one call or many, and what becomes of them.

Calls start open-loop: all at once, or `rate_per_min`, whatever the calls before them do. A turn that is `cold` opens a
new call, which begins when the call before it has ended.
"""

from __future__ import annotations

import asyncio
import io
import json
import platform
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from typing import Any

import soundfile

from analysis.bundle import RUN_FILE, RUN_SCHEMA
from analysis.codecs import CODECS
from analysis.errors import RecordingFailed, SessionError, UsageError
from analysis.units import s_to_ns
from probe.clock import SystemClock
from probe.engine import CallPlan, Engine, LiveView, PlannedTurn
from probe.loop import LagSelector, run
from probe.player import Background, EncodedUtterance, Player, encode_background, encode_utterance
from probe.recorder import BundleWriter, create_folder, write_private
from probe.scenario import Scenario, Turn, utterance_of
from probe.targets.base import Target
from probe.utterances import RATE_HZ, Utterance

__all__ = ["SessionReport", "run_session"]

PACKAGES = ("aiortc", "aioice", "av", "numpy", "scipy")


@dataclass(frozen=True)
class SessionReport:
    """How a run ended: the calls' folders, the errors that ended calls early, and whether a person ended it."""

    calls: tuple[Path, ...]
    errors: tuple[SessionError, ...]
    interrupted: bool


@dataclass(frozen=True)
class _Run:
    scenario: Scenario
    background: Background
    sounds: dict[str, bytes]  # the utterances as FLAC files, by name
    plans: tuple[tuple[CallPlan, ...], ...]  # one inner tuple for each of --calls; calls of it follow one another
    target: Target
    out: Path
    command: str
    playout: Mapping[str, Any]
    clock: SystemClock
    selector: LagSelector
    on_view: Callable[[LiveView], None]
    stop: asyncio.Event

    def folder(self, call: int) -> Path:
        single = sum(len(p) for p in self.plans) == 1
        return self.out if single else self.out / f"call-{call:03d}"


def run_session(
    target: Target,
    scenario: Scenario,
    *,
    base_dir: Path,
    turns: int | None,
    calls: int,
    rate_per_min: float | None,
    out: Path,
    command: str,
    on_view: Callable[[LiveView], None],
    playout: Mapping[str, Any] | None = None,
) -> SessionReport:
    """Run a scenario against a target, and record it.

    Parameters
    ----------
    target : Target
    scenario : Scenario
    base_dir : Path
        Where the scenario's own sound files lie.
    turns : int, optional
        Turns of each call; default: as the scenario lists them.
    calls : int
    rate_per_min : float, optional
        Calls that start per minute; default: all at once.
    out : Path
        The bundle's folder.
    command : str
        How the run was asked for, for its record.
    on_view : callable
    playout : mapping, optional
        `policies` and `output_delay_ms` that the run was asked to be worked out under, for its record.

    Raises
    ------
    UsageError
        Before anything is recorded, where the scenario or the folder cannot be used.
    """
    clock = SystemClock()
    target.check(scenario.codec)
    background = encode_background(scenario.background, CODECS[scenario.codec], scenario.ptime_ms)
    plans = _plan(scenario, background, scenario.expand(turns), base_dir, calls)
    # every call of a run says the same
    sounds = {str(turn.settings["sound"]): _flac(turn.sound.utterance) for call in plans[0] for turn in call.turns}
    if sum(len(p) for p in plans) > 1:
        create_folder(out)
        _write_plan(out, plans)

    async def main(selector: LagSelector) -> SessionReport:
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        for name in ("SIGINT", "SIGTERM", "SIGHUP"):
            if hasattr(signal, name):
                loop.add_signal_handler(getattr(signal, name), stop.set)
        job = _Run(
            scenario, background, sounds, plans, target, out, command, playout or {}, clock, selector, on_view, stop
        )
        try:
            return await _run_all(job, rate_per_min)
        finally:
            await target.close()

    return run(main, clock)


def _write_plan(out: Path, plans: Sequence[Sequence[CallPlan]]) -> None:
    """What all calls of the run were to say: those that never came to be recorded were scheduled all the same."""
    calls = [{"call": plan.call, "turns": [turn.settings for turn in plan.turns]} for group in plans for plan in group]
    document = json.dumps({"schema": RUN_SCHEMA, "calls": calls}, ensure_ascii=False)
    try:
        write_private(out / RUN_FILE, document.encode(errors="backslashreplace"))
    except OSError as exc:
        raise UsageError(f"{out}: cannot be written ({exc.strerror})", next_step="name another folder") from exc


async def _run_all(job: _Run, rate_per_min: float | None) -> SessionReport:
    async def one(number: int, plans: Sequence[CallPlan]) -> list[SessionError]:
        if rate_per_min is not None and number:
            await _sleep_unless(job.stop, number * 60.0 / rate_per_min)
        errors = []
        for plan in plans:
            error = await _run_call(job, plan)
            errors += [] if error is None else [error]
        return errors

    ended = await asyncio.gather(*(one(n, plans) for n, plans in enumerate(job.plans)))
    folders = tuple(job.folder(plan.call) for plans in job.plans for plan in plans)
    return SessionReport(
        tuple(f for f in folders if (f / "manifest.json").is_file()),
        tuple(e for es in ended for e in es),
        job.stop.is_set(),
    )


async def _sleep_unless(stop: asyncio.Event, seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            await stop.wait()
    except TimeoutError:
        return


async def _run_call(job: _Run, plan: CallPlan) -> SessionError | None:
    codec = CODECS[plan.request_codec]
    manifest = {
        "call": plan.call,
        "versions": {"media-latency-probe": version("media-latency-probe"), **{p: version(p) for p in PACKAGES}},
        "host": {"python": sys.version.split()[0], "system": platform.platform(), "machine": platform.machine()},
        "created": job.clock.utc_text(),
        "command": job.command,
        "playout": dict(job.playout),
        "target": dict(job.target.description),
        "scenario": job.scenario.model_dump(mode="json"),
        "turns": [turn.settings for turn in plan.turns],
        "warnings": sorted({text for turn in plan.turns for text in _named_warnings(turn.sound.utterance)}),
    }
    try:
        folder, interval_s = job.folder(plan.call), job.scenario.stats_interval
        recorder = BundleWriter(folder, manifest, job.clock, stats_interval_s=interval_s)
        used = {str(turn.settings["sound"]) for turn in plan.turns}
        recorder.files({name: data for name, data in job.sounds.items() if name in used})
    except RecordingFailed as exc:
        return exc
    player = Player(codec, plan.ptime_ms, job.background, job.clock)
    engine = Engine(plan, job.target, player, recorder, job.clock, lag_ns=job.selector.lag_ns, on_view=job.on_view)
    try:
        return await engine.run(job.stop)
    finally:
        player.stop()
        recorder.close()


def _plan(
    scenario: Scenario, background: Background, turns: Sequence[Turn], base_dir: Path, calls: int
) -> tuple[tuple[CallPlan, ...], ...]:
    """Encode every utterance once, and lay the turns out into calls."""
    codec = CODECS[scenario.codec]
    encoded: dict[tuple[object, ...], EncodedUtterance] = {}
    planned: list[PlannedTurn] = []
    for index, turn in enumerate(turns):
        key = turn.utterance, turn.file, turn.pause_at_ms, turn.pause_ms
        if key not in encoded:
            encoded[key] = encode_utterance(utterance_of(turn, base_dir), codec, scenario.ptime_ms, background)
        number = list(encoded).index(key)
        planned.append(_planned(scenario, turn, index, encoded[key], f"utterances/{number:02d}.flac"))
    cuts = [0, *(i for i, turn in enumerate(turns) if turn.cold and i), len(turns)]
    parts = [tuple(planned[a:b]) for a, b in pairwise(cuts)]
    return tuple(
        tuple(
            CallPlan(
                call=number * len(parts) + k,
                turns=part,
                greeting_timeout_ns=s_to_ns(scenario.greeting_timeout),
                request_codec=scenario.codec,
                ptime_ms=scenario.ptime_ms,
                language=str(part[0].settings["language"]),
            )
            for k, part in enumerate(parts)
        )
        for number in range(calls)
    )


def _named_warnings(utterance: Utterance) -> list[str]:
    return [f"{utterance.name}: {text}" for text in utterance.warnings]


def _flac(utterance: Utterance) -> bytes:
    """What the virtual microphone hears of an utterance, as a FLAC file."""
    file = io.BytesIO()
    soundfile.write(file, utterance.samples, RATE_HZ, format="FLAC", subtype="PCM_24")
    return file.getvalue()


def _planned(scenario: Scenario, turn: Turn, index: int, sound: EncodedUtterance, file: str) -> PlannedTurn:
    flags = []
    if index < scenario.warm_up:
        flags.append("warm_up")
    if turn.idle_before_s:
        flags.append("first_after_idle")
    if turn.cold:
        flags.append("cold")
    if not turn.expect_reply:
        flags.append("no_reply_expected")
    settings: dict[str, Any] = {
        "index": index,
        "utterance": sound.utterance.name,
        "sound": file,
        "language": turn.language,
        "segment": dict(turn.segment),
        "timeout_s": turn.timeout_s,
        "interruption_ms": turn.interruption_ms,
        "expect_reply": turn.expect_reply,
        "flags": flags,
    }
    return PlannedTurn(
        index=index,
        sound=sound,
        spacing_ns=s_to_ns(turn.spacing_s),
        timeout_ns=s_to_ns(turn.timeout_s),
        idle_before_ns=s_to_ns(turn.idle_before_s),
        interruption_ns=None if turn.interruption_ms is None else s_to_ns(turn.interruption_ms / 1000),
        settings=settings,
    )
