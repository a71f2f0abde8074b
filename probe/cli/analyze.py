"""`analyze` and `replay`: work recordings and recorded sessions out, sessions under any playout policy."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from analysis.errors import UsageError
from analysis.layouts import LAYOUTS
from probe.cli.common import (
    JsonOption,
    OutputDelayOption,
    PolicyOption,
    output_delay,
    policy_list,
    print_result,
    read_and_derive,
)

__all__ = ["analyze", "replay"]

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
    # what recordings need takes half a second to load, and nothing else needs it
    from probe.cli.recordings import analyze_recordings

    result = analyze_recordings(
        paths,
        pair,
        references=reference or [],
        replies=reply or [],
        caller_channel=caller_channel,
        agent_channel=agent_channel,
        layout=layout,
        timeout_s=timeout_s,
    )
    return print_result(result, as_json=as_json)


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
