"""`analyze` and `replay`: work recorded sessions out again, under any playout policy."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

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
    paths: Annotated[list[Path], typer.Argument(metavar="PATH...", help="Session folders.")],
    as_json: JsonOption = False,
) -> int:
    """Work sessions out from what was recorded, under the playout that they were made with.

    A session that was cut off is worked out as far as it goes.

    Example: latency-probe analyze demo --json
    """
    return print_result(read_and_derive(paths, None, None)[0].result, as_json=as_json)


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
