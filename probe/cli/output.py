"""What the commands say into bytes on stdout and stderr, whatever the terminal, the disk or the reader make of it.

Foreign text (a bundle's labels, a path) never reaches a terminal with control characters in it. A reader that has gone
away is no fault of the command, and a disk that is full is remembered and said once, at the end.
"""

from __future__ import annotations

import contextlib
import io
import os
import select
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

__all__ = ["CELL_CHARS", "Sink", "guarded_output", "note", "printable", "say", "shortened", "warn", "write_document"]

CELL_CHARS = 40  # of a text in a table
UNPRINTABLE = "\ufffd"


def printable(text: object) -> str:
    """`text` on one line, with every control, bidi or surrogate character replaced by U+FFFD."""
    return "".join(c if c.isprintable() else UNPRINTABLE for c in str(text))


def shortened(text: object, limit: int = CELL_CHARS) -> str:
    """`text` as `printable` gives it, cut to `limit` characters with an ellipsis."""
    shown = printable(str(text)[: limit + 1])
    return shown if len(shown) <= limit else shown[: limit - 1] + "…"


def say(*lines: object) -> None:
    """Print lines of text on stdout."""
    for line in lines:
        print(printable(line))


def note(line: object) -> None:
    """Print one line on stderr."""
    print(printable(line), file=sys.stderr)


def warn(line: object) -> None:
    """Print one line on stderr that says whose it is."""
    note(f"latency-probe: {line}")


def write_document(text: str) -> None:
    """Write a document (JSON) to stdout: UTF-8 whatever the locale, with one newline at its end."""
    data = text.rstrip("\n").encode("utf-8", "replace") + b"\n"
    sys.stdout.flush()
    binary = getattr(sys.stdout, "buffer", None)
    if binary is None:
        sys.stdout.write(data.decode())
    else:
        binary.write(data)
        binary.flush()


class Sink(io.RawIOBase):
    """A file descriptor that takes everything that is written to it.

    Parameters
    ----------
    fd : int, optional
        None where the process was started without it: then nothing is kept, and nothing is wrong.

    Attributes
    ----------
    failure : OSError or None
        Why nothing more is written, where that is not because the reader went away.
    """

    def __init__(self, fd: int | None) -> None:
        super().__init__()
        self._fd = fd
        self._open = fd is not None
        self.failure: OSError | None = None

    def writable(self) -> bool:
        """As the base class."""
        return True

    def isatty(self) -> bool:
        """As the base class."""
        return self._fd is not None and os.isatty(self._fd)

    def fileno(self) -> int:
        """As the base class."""
        return super().fileno() if self._fd is None else self._fd

    def write(self, data: ReadableBuffer, /) -> int:
        """Write, or drop what can no longer be written; always the whole."""
        view = memoryview(data).cast("B")
        size = len(view)
        while self._open and view and self._fd is not None:
            try:
                view = view[os.write(self._fd, view) :]
            except BlockingIOError:
                select.select([], [self._fd], [])  # a terminal that another program made non-blocking
            except BrokenPipeError:
                self._open = False
            except OSError as exc:
                self._open, self.failure = False, exc
        return size


def _guard(stream: TextIO | None, *, by_line: bool) -> tuple[TextIO, Sink]:
    fd = None
    if stream is not None:
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
        fd = stream.fileno()
    sink = Sink(fd)
    text = io.TextIOWrapper(
        io.BufferedWriter(sink),
        encoding="utf-8" if stream is None else stream.encoding,
        errors="replace",
        line_buffering=by_line or sink.isatty(),
    )
    return text, sink


@contextlib.contextmanager
def guarded_output() -> Iterator[Sink]:
    """Guard the process's own stdout and stderr, and hand out the sink of stdout.

    Streams that somebody else put in their place (a test, a notebook) are left as they are.
    """
    before = sys.stdout, sys.stderr
    if before != (sys.__stdout__, sys.__stderr__):
        yield Sink(None)
        return
    out, sink = _guard(sys.stdout, by_line=False)
    error, _ = _guard(sys.stderr, by_line=True)
    sys.stdout, sys.stderr = out, error
    try:
        yield sink
    finally:
        out.flush()
        error.flush()
        sys.stdout, sys.stderr = before
