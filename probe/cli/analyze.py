"""`analyze` and `replay`: work recordings and recorded sessions out, sessions under any playout policy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated

import typer

from analysis.errors import AudioFileError, NotMeasurable, ProbeError, UsageError
from analysis.recording import TIMEOUT_S, analyze_tape, together
from analysis.references import Reference, load_reference
from analysis.result import Result
from analysis.tape import LAYOUTS, open_pair, open_tape
from probe.cli.common import (
    JsonOption,
    OutputDelayOption,
    PolicyOption,
    output_delay,
    policy_list,
    print_result,
    read_and_derive,
    warn,
)

__all__ = ["analyze", "replay"]

MAX_TIMEOUT_S = 600.0
SOUND_SUFFIXES = (".wav", ".flac", ".ogg", ".opus", ".mp3", ".m4a", ".aif", ".aiff", ".au")

Sessions = Annotated[list[Path], typer.Argument(metavar="SESSION...", help="Session folders.")]


def analyze(
    paths: Annotated[
        list[Path] | None, typer.Argument(metavar="PATH...", help="Session folders, or recordings of calls.")
    ] = None,
    pair: Annotated[
        tuple[Path, Path] | None,
        typer.Option("--pair", metavar="CALLER AGENT", help="Two mono recordings that began at the same moment."),
    ] = None,
    caller_channel: Annotated[
        int | None, typer.Option("--caller-channel", metavar="N", help="The caller's channel of a recording, from 0.")
    ] = None,
    agent_channel: Annotated[
        int | None, typer.Option("--agent-channel", metavar="N", help="The agent's channel of a recording, from 0.")
    ] = None,
    layout: Annotated[
        str | None, typer.Option("--layout", metavar="L", help=f"Whose recording it is: {', '.join(LAYOUTS)}.")
    ] = None,
    reference: Annotated[
        list[Path] | None,
        typer.Option("--reference", metavar="WAV", help="What the caller may have said; repeatable, or a folder."),
    ] = None,
    reply: Annotated[
        list[Path] | None,
        typer.Option("--reply", metavar="WAV", help="What the agent may have said; repeatable, or a folder."),
    ] = None,
    timeout_s: Annotated[
        float | None, typer.Option("--timeout", metavar="S", help="A recording's: later than this is no reply.")
    ] = None,
    as_json: JsonOption = False,
) -> int:
    """Work sessions or recordings of calls out from what was recorded.

    A session that was cut off is worked out as far as it goes, under the playout that it was made with. A recording
    needs a channel for each party, and is the more exact the more of the caller's sentences --reference gives.

    Example: latency-probe analyze call.wav --layout twilio --reference utterances/
    """
    paths = paths or []
    recordings = pair is not None or any(not path.is_dir() for path in paths)
    options = (caller_channel, agent_channel, layout, reference, reply, timeout_s)
    if len(paths) == 1 and not paths[0].exists():
        raise UsageError(f"{paths[0]}: no such file or folder", next_step="give a session folder, or a recording")
    if not recordings:
        if not paths:
            raise UsageError(
                "nothing to analyze", next_step="give a session folder, a recording, or --pair CALLER AGENT"
            )
        if any(option is not None for option in options):
            raise UsageError("channels, references and --timeout are of recordings", next_step="give a sound file")
        return print_result(read_and_derive(paths, None, None)[0].result, as_json=as_json)
    if pair is not None and (paths or caller_channel is not None or agent_channel is not None or layout is not None):
        raise UsageError("--pair stands alone: its files say whose they are", next_step="leave out the rest")
    folders = [path for path in paths if path.is_dir()]
    if folders:
        raise UsageError(f"{folders[0]}: a session beside recordings", next_step="analyze them one after the other")
    timeout = TIMEOUT_S if timeout_s is None else timeout_s
    if not 0 < timeout <= MAX_TIMEOUT_S:
        raise UsageError(f"--timeout {timeout:g}", next_step=f"give seconds, more than 0 and up to {MAX_TIMEOUT_S:g}")
    known, replies = (_sounds(each or []) for each in (reference, reply))
    channels = (caller_channel, agent_channel) if pair is None else (0, 1)

    def one(number: int, path: Path | None) -> Result:
        tape = open_pair(*pair) if pair is not None else open_tape(path or "")
        return analyze_tape(
            tape,
            known,
            replies,
            caller_channel=channels[0],
            agent_channel=channels[1],
            layout=layout,
            timeout_s=timeout,
            call=number,
        )

    if pair is not None or len(paths) == 1:
        result = one(0, paths[0] if paths else None)
        _warn_of(result)
        return print_result(result, as_json=as_json)
    return _several(paths, one, as_json=as_json)


def _several(paths: Sequence[Path], one: Callable[[int, Path | None], Result], *, as_json: bool) -> int:
    """Each recording for itself: one that cannot be used takes nothing from the others."""
    results: list[Result] = []
    failed: list[tuple[Path, ProbeError]] = []
    seen: set[Path] = set()
    for path in paths:
        if path.resolve() in seen:
            warn(f"warning: {path}: given twice; it is counted once")
            continue
        seen.add(path.resolve())
        try:
            results.append(one(len(results), path))
        except (AudioFileError, NotMeasurable) as exc:
            failed.append((path, exc))
            warn(f"warning: left out: {exc.line()}")
            continue
        _warn_of(results[-1])
    if not results:
        worst = max((error for _, error in failed), key=lambda error: error.exit_code)
        raise type(worst)(*_arguments(worst), next_step="no recording could be worked out: see above")
    missing = {str(path): error.message for path, error in failed}
    return print_result(together(results, missing), as_json=as_json)


def _arguments(error: ProbeError) -> tuple[str, ...]:
    return (error.reason, error.message) if isinstance(error, NotMeasurable) else (error.message,)


def _warn_of(result: Result) -> None:
    for warning in (result.recording or {}).get("warnings", ()):
        warn(f"warning: {result.source.path}: {warning}")


def _sounds(paths: Sequence[Path]) -> list[Reference]:
    """The sound files that were named, or lie in folders that were."""
    files: list[Path] = []
    for path in paths:
        inside = sorted(p for p in path.iterdir() if p.suffix.lower() in SOUND_SUFFIXES) if path.is_dir() else [path]
        if not inside:
            raise UsageError(f"{path}: no sound file in it", next_step=f"give {', '.join(SOUND_SUFFIXES)}")
        files += inside
    return [load_reference(path) for path in dict.fromkeys(files)]


def replay(
    sessions: Sessions,
    policy: PolicyOption = "chrome,fixed:50,fixed:150,fixed:500,none",
    output_delay_ms: OutputDelayOption = None,
    as_json: JsonOption = False,
) -> int:
    """What the person would have waited under another playout policy: the same packets, played again.

    Example: latency-probe replay demo --policy chrome,fixed:150
    """
    derived, _ = read_and_derive(sessions, policy_list(policy), output_delay(output_delay_ms))
    return print_result(derived.result, as_json=as_json)
