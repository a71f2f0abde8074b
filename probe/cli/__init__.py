"""The command line: one module for each command; results on stdout, everything else on stderr.

Errors become one line and the exit code of the contract here, and only here. The commands are imported when they are
asked for, so that an interrupt while they load is handled as any other.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from types import FrameType
from typing import TYPE_CHECKING

from analysis.errors import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_OK, EXIT_USAGE, ProbeError
from probe.cli.output import guarded_output, note, warn

if TYPE_CHECKING:
    import typer

__all__ = ["EXIT_FAULT", "application", "main"]

NAME = "latency-probe"
EXIT_FAULT = 70  # a fault of this program (EX_SOFTWARE of sysexits.h), which no code of the contract may stand for


def application() -> typer.Typer:
    """The commands."""
    import typer

    from probe.cli.analyze import analyze, replay
    from probe.cli.doctor import doctor
    from probe.cli.import_ import import_
    from probe.cli.playout import playout
    from probe.cli.report import report
    from probe.cli.run import demo, run

    app = typer.Typer(
        name=NAME,
        help="Measures what a caller of a voice AI agent really waits, from the client's side.",
        add_completion=False,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
    )
    app.command()(demo)
    app.command()(run)
    app.command()(analyze)
    app.command()(replay)
    app.command()(playout)
    app.command()(report)
    app.command("import")(import_)
    app.command()(doctor)
    return app


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one command and exit with its code.

    Parameters
    ----------
    arguments : sequence of str, optional
        Default: those of the process, which is then ours to end: where nothing is at stake (the commands are loading,
        all is written) an interrupt ends it at once and in silence.
    """
    own = arguments is None and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    try:
        with guarded_output() as out:
            code = _run(sys.argv[1:] if arguments is None else list(arguments), own)
            sys.stdout.flush()
            if out.failure is not None and code not in (EXIT_INTERRUPTED, EXIT_FAULT):
                reason = out.failure.strerror
                warn(f"standard output: cannot be written ({reason}); free some space or send it elsewhere")
                code = EXIT_FAILED
    except KeyboardInterrupt:
        code = EXIT_INTERRUPTED
    raise SystemExit(code)


def _leave(_number: int, _frame: FrameType | None) -> None:
    # an exception would surface in the midst of somebody else's import, or of the interpreter's own end
    os._exit(EXIT_INTERRUPTED)


def _run(arguments: list[str], own: bool) -> int:
    try:
        if own:
            signal.signal(signal.SIGINT, _leave)
        from typer.main import get_command

        command = get_command(application())
        if not arguments:
            with command.make_context(NAME, [], resilient_parsing=True) as context:
                for line in command.get_help(context).splitlines():
                    note(line)
            return EXIT_USAGE
        if own:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        # not `command()`: that takes a broken pipe anywhere for an exit code of 1
        with command.make_context(NAME, arguments) as context:
            code = command.invoke(context)
        return code if isinstance(code, int) else EXIT_OK
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except ProbeError as exc:
        warn(exc.line())
        return exc.exit_code
    except BaseException as exc:
        return _other(exc)
    finally:
        if own:
            signal.signal(signal.SIGINT, _leave)


def _other(exc: BaseException) -> int:
    """What the command line library raises, to leave or for wrong options; all else is a fault of this program."""
    import traceback

    library = type(exc).__module__.partition(".")[0] in ("typer", "click")
    wrong, left = getattr(exc, "format_message", None), getattr(exc, "exit_code", None)
    if library and wrong is not None:
        warn(f"{' '.join(str(wrong()).split()).rstrip('.')}; see `{NAME} --help`")
        return EXIT_USAGE
    if library and isinstance(left, int):
        return left
    for line in "".join(traceback.format_exception(exc)).splitlines():
        note(line)
    warn(f"a fault of this program; please report the lines above, with the command and what `{NAME} doctor` prints")
    return EXIT_FAULT
