"""`demo` and `run`: make calls, record them, and work the record out."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.live import Live
from rich.text import Text

from analysis.derive import Output
from analysis.errors import EXIT_FAILED, EXIT_INTERRUPTED, ProbeError, UsageError
from probe.cli.common import (
    JsonOption,
    OutputDelayOption,
    PolicyOption,
    output_delay,
    policy_list,
    print_result,
    read_and_derive,
    write_derived,
)
from probe.cli.output import note, warn
from probe.clock import SystemClock
from probe.engine import LiveView
from probe.scenario import Scenario, demo_scenario, load_scenario
from probe.session import run_session
from probe.targets.base import Target, target_for

__all__ = ["demo", "run"]

MAX_CALLS = 200
DEMO_TURNS = 10
DEMO_AGENT = "demo:?impairment.delay.uniform.high_ms=8"

TurnsOption = Annotated[int | None, typer.Option("--turns", min=1, max=10_000, help="Turns of each call.")]
OutOption = Annotated[Path | None, typer.Option("--out", help="Folder for the session; must be new or empty.")]


class _LiveLine:
    """The last view of each call as one line, drawn by rich's own thread so that no packet waits for it."""

    def __init__(self, calls: int) -> None:
        self._calls = calls
        self._views: dict[int, LiveView] = {}

    def update(self, view: LiveView) -> None:
        self._views[view.call] = view

    def render(self) -> Text:
        views = list(self._views.values())
        if not views:
            return Text("starting …")
        latest = views[-1] if len(views) == 1 else max(views, key=lambda v: v.turn)
        where = f"turn {latest.turn + 1}/{latest.turns}" if latest.turn >= 0 else "call"
        calls = f"{len(views)}/{self._calls} calls, " if self._calls > 1 else ""
        latency = "–" if latest.latency_ms is None else f"≈ {latest.latency_ms:.0f} ms to its packets"
        lost = sum(v.lost for v in views)
        return Text(
            f"{calls}{where}: {latest.state} · last reply {latency} · lost {lost} · jitter {latest.jitter_ms:.1f} ms"
        )


def demo(
    turns: Annotated[int, typer.Option("--turns", min=1, max=10_000, help="Turns of the call.")] = DEMO_TURNS,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Seed of the agent: same seed, same agent.")] = 1,
    out: OutOption = None,
    policy: PolicyOption = "chrome,fixed:100",
    output_delay_ms: OutputDelayOption = None,
    as_json: JsonOption = False,
) -> int:
    """Call the embedded demo agent and measure it: a session, a result and a report.

    Example: latency-probe demo --turns 5 --out demo
    """
    target = target_for(f"{DEMO_AGENT}&seed={seed}")
    return _measure(target, demo_scenario(), Path.cwd(), turns, 1, None, out, policy, output_delay_ms, as_json)


def run(
    target: Annotated[str, typer.Argument(metavar="TARGET", help="What to call, e.g. demo: or demo:agent.toml")],
    scenario: Annotated[Path | None, typer.Option("--scenario", help="TOML file; see docs/scenario.md.")] = None,
    turns: TurnsOption = None,
    calls: Annotated[int, typer.Option("--calls", min=1, max=MAX_CALLS, help="Calls in total.")] = 1,
    rate: Annotated[
        float | None, typer.Option("--rate", metavar="PER_MIN", help="Calls that start per minute; else all at once.")
    ] = None,
    out: OutOption = None,
    policy: PolicyOption = "chrome,fixed:100",
    output_delay_ms: OutputDelayOption = None,
    as_json: JsonOption = False,
) -> int:
    """Call TARGET, speak a scenario's turns and measure the replies.

    Example: latency-probe run "demo:?endpoint_silence_ms=700" --turns 5 --calls 3
    """
    if rate is not None and not 0 < rate <= 6000:
        raise UsageError(f"--rate {rate:g}", next_step="give calls per minute, above 0 and at most 6000")
    script = demo_scenario() if scenario is None else load_scenario(scenario)
    base = Path.cwd() if scenario is None else scenario.resolve().parent
    if scenario is None and turns is None:
        turns = DEMO_TURNS
    return _measure(target_for(target), script, base, turns, calls, rate, out, policy, output_delay_ms, as_json)


def _measure(
    target: Target,
    scenario: Scenario,
    base: Path,
    turns: int | None,
    calls: int,
    rate: float | None,
    out: Path | None,
    policy: str,
    output_delay_ms: float | None,
    as_json: bool,
) -> int:
    policies, output = policy_list(policy), output_delay(output_delay_ms)
    folder = out or Path(f"latency-probe-{SystemClock.file_stamp()}")
    line = _LiveLine(calls)
    console = Console(stderr=True)
    with Live(get_renderable=line.render, console=console, transient=True, refresh_per_second=4):
        session = run_session(
            target,
            scenario,
            base_dir=base,
            turns=turns,
            calls=calls,
            rate_per_min=rate,
            out=folder,
            command=shlex.join(["latency-probe", *sys.argv[1:]]),
            on_view=line.update,
            playout={"policies": policies, "output_delay_ms": output_delay_ms},
        )
    for text in dict.fromkeys(e.line() for e in session.errors):
        warn(text)
    if not session.calls:
        return EXIT_FAILED
    try:
        code = _work_out(folder, policies, output, as_json)
    except ProbeError as exc:
        warn(exc.line())
        code = exc.exit_code
    except KeyboardInterrupt:
        again = shlex.join(["latency-probe", "analyze", str(folder)])
        warn(f"interrupted; all that was recorded is kept, and this makes the result of it: {again}")
        return EXIT_INTERRUPTED
    return EXIT_INTERRUPTED if session.interrupted else EXIT_FAILED if session.errors else code


def _work_out(folder: Path, policies: tuple[str, ...], output: Output | None, as_json: bool) -> int:
    derived, records = read_and_derive([folder], policies, output)
    write_derived(folder, derived, records)
    code = print_result(derived.result, as_json=as_json)
    if (folder / "report.html").is_file():
        note(f"report: {folder / 'report.html'}")
    return code
