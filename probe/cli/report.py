"""`report`: sessions into one HTML page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from analysis.errors import UsageError
from analysis.result import exit_code
from probe.cli.common import OutputDelayOption, PolicyOption, conditions, output_delay, policy_list, read_and_derive
from probe.recorder import write_private

__all__ = ["report"]


def report(
    paths: Annotated[list[Path], typer.Argument(metavar="PATH...", help="Session folders.")],
    out: Annotated[Path, typer.Option("-o", "--out", help="The page to write.")] = Path("report.html"),
    policy: PolicyOption = "chrome,fixed:100",
    output_delay_ms: OutputDelayOption = None,
) -> int:
    """Write the report of one or more sessions.

    Example: latency-probe report demo -o report.html
    """
    from analysis.report import render_report  # matplotlib takes a second to load

    derived, records = read_and_derive(paths, policy_list(policy), output_delay(output_delay_ms))
    try:
        write_private(out, render_report(derived.result, derived.series, conditions(records)).encode())
    except OSError as exc:
        raise UsageError(f"{out}: cannot be written ({exc.strerror})", next_step="name another file with -o") from exc
    print(out)
    return exit_code(derived.result)
