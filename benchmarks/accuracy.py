"""How far `received_ms` and `leading_silence` are from the demo agent's truth, condition by condition.

Without a network: the pure agent's packets, at the times at which it would send them, worked out by the same code as a
live session. Live (`--live N`): N turns against the agent's process over loopback in two conditions. A turn is wrong
where its outcome is not what the agent did, or where it is credited with anything but this reply's own sound. "inside"
is the share of turns whose error lies within the `onset` part of their stated uncertainty.

    python benchmarks/accuracy.py [--turns 2000] [--live 40] [--seed 1]
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from analysis.bundle import find_calls, read_call
from analysis.derive import derive
from analysis.result import ANSWERED, NO_REPLY, PREMATURE, Turn
from probe.agent.config import AgentConfig, agent_config_from_query
from probe.agent.simulate import simulate_call
from probe.scenario import demo_scenario
from probe.session import run_session
from probe.targets.base import target_for

TURNS_PER_CALL = 25
SLACK_MS = 0.2  # what the simulated network takes, or loopback
ANOTHER_SOUND_MS = 60.0  # a reply may be found up to three packets early in its own noise, not earlier
EXPECTED = {"reply": ANSWERED, "no_reply": NO_REPLY, "cut_in": PREMATURE}

CLEAN: dict[str, str] = {}
CONDITIONS: dict[str, dict[str, str]] = {
    "clean": CLEAN,
    "2 % loss": {"impairment.loss.random": "0.02"},
    "bursts of 2-4, 5 % in all": {
        "impairment.loss.bursts.probability": "0.017",
        "impairment.loss.bursts.length": "2,4",
    },
    "0-40 ms, in order": {"impairment.delay.uniform.high_ms": "40"},
    "0-40 ms, out of order": {"impairment.delay.uniform.high_ms": "40", "impairment.in_order": "false"},
    "leading silence 400 ms": {"leading_silence_ms": "400,400"},
    "reply at -35 dBFS": {"reply_level_dbov": "-35"},
    "comfort noise -55 dBov": {"comfort_noise_dbov": "-55"},
    "comfort noise -45, G.722": {"comfort_noise_dbov": "-45", "codec": "g722"},
    "fillers": {"filler_probability": "0.5"},
    "no-replies, cut-ins": {
        "no_reply_probability": "0.1",
        "cut_in_probability": "0.1",
        "backchannel_probability": "0.1",
    },
    "DTX": {"impairment.dtx": "true", "filler_probability": "0.5"},
    "drift 300 ppm": {"impairment.drift_ppm": "300"},
    "SSRC change": {"impairment.ssrc_change_at": "500,1500,2500"},
    "restart, wraps": {
        "impairment.restart_at": "700",
        "impairment.initial_sequence": "65500",
        "impairment.initial_timestamp": "4294900000",
    },
    "duplicates": {"impairment.duplicate": "0.05"},
    "never pauses": {"stream": "continuous"},
    "never pauses, noise -50 dBov": {"stream": "continuous", "comfort_noise_dbov": "-50"},
    "never pauses, 2 % loss": {"stream": "continuous", "impairment.loss.random": "0.02"},
}
LIVE = {
    "clean": CLEAN,
    "0-40 ms, 2 % loss": {"impairment.delay.uniform.high_ms": "40", "impairment.loss.random": "0.02"},
}


@dataclass
class Tally:
    """What one condition's turns say."""

    turns: int = 0
    errors_ms: list[float] = field(default_factory=list)
    silence_errors_ms: list[float] = field(default_factory=list)
    inside: int = 0
    wrong: list[str] = field(default_factory=list)
    kinds: Counter[str] = field(default_factory=Counter)

    def add(self, turn: Turn) -> None:
        self.turns += 1
        if turn.truth is None:
            self.wrong.append(f"call {turn.call} turn {turn.index}: {turn.outcome}, the agent knows of no such turn")
            return
        kind = str(turn.truth["kind"])
        self.kinds[kind] += 1
        if turn.outcome != EXPECTED[kind]:
            self.wrong.append(f"call {turn.call} turn {turn.index}: {turn.outcome}, but the agent did: {kind}")
            return
        if turn.received_ms is None:
            return
        error = turn.received_ms - turn.truth["received_ms"]
        if turn.received_ms > turn.truth["last_audible_ms"] + SLACK_MS or error < -ANOTHER_SOUND_MS:
            self.wrong.append(f"call {turn.call} turn {turn.index}: another sound, off by {error:.0f} ms")
            return
        self.errors_ms.append(error)
        measured, true = turn.stages_ms.get("leading_silence"), turn.truth["leading_silence_ms"]
        off = error
        if (measured is None) != (true is None) and turn.outcome == ANSWERED:
            self.wrong.append(f"call {turn.call} turn {turn.index}: leading silence {measured}, true {true}")
        elif measured is not None and true is not None:
            # to the sample, where the arrival of a packet steps by 20 ms
            off = measured - true
            self.silence_errors_ms.append(off)
        self.inside += abs(off) <= turn.uncertainty_parts_ms["onset"] + SLACK_MS

    def merge(self, other: Tally) -> None:
        self.turns += other.turns
        self.errors_ms += other.errors_ms
        self.silence_errors_ms += other.silence_errors_ms
        self.inside += other.inside
        self.wrong += other.wrong
        self.kinds.update(other.kinds)


HEADER = (
    f"{'condition':<30}{'turns':>6}{'answered':>9}  |received − truth| ms: {'p50':>6}{'p95':>8}{'max':>8}"
    f"   silence: {'p95':>6}{'max':>8}{'inside':>9}{'wrong':>7}"
)


def _line(name: str, tally: Tally) -> str:
    error, silence = np.abs(tally.errors_ms), np.abs(tally.silence_errors_ms)
    p50, p95 = np.percentile(error, [50, 95], method="inverted_cdf") if len(error) else (np.nan, np.nan)
    quiet = np.percentile(silence, 95, method="inverted_cdf") if len(silence) else np.nan
    most = f"{quiet:>6.3f}{silence.max():>8.3f}" if len(silence) else f"{'–':>6}{'–':>8}"
    inside = f"{100 * tally.inside / len(error):>7.1f} %" if len(error) else f"{'–':>9}"
    return (
        f"{name:<30}{tally.turns:>6}{len(error):>9}{'':>23}{p50:>6.3f}{p95:>8.3f}{error.max(initial=0):>8.3f}"
        f"{'':>12}{most}{inside}{len(tally.wrong):>7}"
    )


def _simulated(job: tuple[dict[str, str], int, int]) -> Tally:
    options, seed, call = job
    # who cuts in or says "hm" needs an utterance to do it in
    utterance_s = 2.0 if "cut_in_probability" in options else 0.8
    config: AgentConfig = agent_config_from_query({"think_ms": "100,400", "seed": str(seed), **options})
    record, _ = simulate_call(config, call=call, turns=TURNS_PER_CALL, utterance_s=utterance_s, spacing_s=4.0)
    tally = Tally()
    for turn in derive([record], policies=("none",)).result.turns:
        tally.add(turn)
    return tally


def _live(options: dict[str, str], turns: int, seed: int) -> Tally:
    query = "&".join(f"{key}={value}" for key, value in {"seed": str(seed), **options}.items())
    calls = min(4, turns)
    tally = Tally()
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out"
        run_session(
            target_for(f"demo:?{query}"),
            demo_scenario(),
            base_dir=Path.cwd(),
            turns=-(-turns // calls),
            calls=calls,
            rate_per_min=None,
            out=out,
            command="",
            on_view=lambda view: None,
        )
        for turn in derive([read_call(path) for path in find_calls(out)], policies=("none",)).result.turns:
            tally.add(turn)
    return tally


def _show(name: str, tally: Tally) -> None:
    print(_line(name, tally), flush=True)
    for text in tally.wrong[:5]:
        print(f"    {text}", flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table; 1 where a turn is wrong."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--turns", type=int, default=2000)
    parser.add_argument("--live", type=int, default=40)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="", help="part of a condition's name")
    options: Any = parser.parse_args(arguments)
    wrong = 0
    print(HEADER, flush=True)
    calls = -(-options.turns // TURNS_PER_CALL)
    with multiprocessing.get_context("spawn").Pool() as pool:
        for name, settings in CONDITIONS.items():
            if options.only not in name:
                continue
            tally = Tally()
            for part in pool.imap(_simulated, [(settings, options.seed, call) for call in range(calls)]):
                tally.merge(part)
            _show(name, tally)
            wrong += len(tally.wrong)
    for name, settings in LIVE.items():
        if options.live and options.only in name:
            tally = _live(settings, options.live, options.seed)
            _show(f"live: {name}", tally)
            wrong += len(tally.wrong)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
