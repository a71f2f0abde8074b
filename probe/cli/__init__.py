"""The command line: one module for each command; results on stdout, everything else on stderr.

Errors become one line and the exit code of the contract here, and only here.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

import typer
from typer.main import get_command

from analysis.errors import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_USAGE, ProbeError
from probe.cli.analyze import analyze, replay
from probe.cli.doctor import doctor
from probe.cli.report import report
from probe.cli.run import demo, run

__all__ = ["app", "main"]

app = typer.Typer(
    name="latency-probe",
    help="Measures what a caller of a voice AI agent really waits, from the client's side.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
app.command()(demo)
app.command()(run)
app.command()(analyze)
app.command()(replay)
app.command()(report)
app.command()(doctor)


def _complain(text: str) -> None:
    print(f"latency-probe: {text}", file=sys.stderr)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one command and exit with its code."""
    try:
        code = get_command(app)(list(arguments) if arguments is not None else None, standalone_mode=False)
    except ProbeError as exc:
        _complain(exc.line())
        code = exc.exit_code
    except KeyboardInterrupt:
        code = EXIT_INTERRUPTED
    except BrokenPipeError:
        # whoever read our output has had enough; say nothing more, not even at interpreter exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = EXIT_FAILED
    except Exception as exc:
        message = getattr(exc, "format_message", None)
        if message is None:
            raise
        text = " ".join(str(message()).split())
        if text:
            _complain(f"{text.rstrip('.')}; see `latency-probe --help`")
        code = EXIT_USAGE
    raise SystemExit(code if isinstance(code, int) else 0)
