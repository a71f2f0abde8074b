"""The one tree of errors; each carries one line for a person, the next step, and the exit code of the contract.

ProbeError
├── UsageError            2   you asked wrongly, or gave what cannot be opened or parsed
│   ├── ScenarioError         a scenario: file, key, what was expected
│   ├── AudioFileError        a sound file: path and why it cannot be used
│   └── BundleError           a session bundle: path and what is wrong with it
├── NotMeasurable         3   the signal does not carry the figure
└── SessionError          4   the call or its recording broke
    ├── CallFailed            the call could not be made
    ├── MediaLost             the agent or its media went away during the call
    └── RecordingFailed       the disk (or a device) no longer takes what is recorded

A malformed packet is not an error of the program: parsers raise `MalformedPacket`, callers count it.
"""

from __future__ import annotations

__all__ = [
    "AudioFileError",
    "BundleError",
    "CallFailed",
    "MalformedPacket",
    "MediaLost",
    "NotMeasurable",
    "ProbeError",
    "RecordingFailed",
    "ScenarioError",
    "SessionError",
    "UsageError",
]

EXIT_OK = 0
EXIT_BUDGET = 1
EXIT_USAGE = 2
EXIT_NOT_MEASURABLE = 3
EXIT_FAILED = 4
EXIT_INTERRUPTED = 130


class ProbeError(Exception):
    """Any failure that a user should read as one line.

    Parameters
    ----------
    message : str
        What happened, without a final full stop.
    next_step : str, optional
        What to try next.
    """

    exit_code = EXIT_USAGE

    def __init__(self, message: str, *, next_step: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.next_step = next_step

    def line(self) -> str:
        """The whole error as one line of printable text."""
        text = self.message if self.next_step is None else f"{self.message}; {self.next_step}"
        return "".join(c if c.isprintable() else " " for c in text)


class UsageError(ProbeError):
    """An input or an option that cannot be used."""


class ScenarioError(UsageError):
    """A scenario that cannot be used: which file, which key, what was expected."""


class AudioFileError(UsageError):
    """A sound file that cannot be opened, is empty, or carries nothing audible."""


class BundleError(UsageError):
    """A session bundle that cannot be read."""


class NotMeasurable(ProbeError):
    """The signal or the recording does not carry the figure; `reason` is a short word for results."""

    exit_code = EXIT_NOT_MEASURABLE

    def __init__(self, reason: str, message: str | None = None, *, next_step: str | None = None) -> None:
        super().__init__(message or reason, next_step=next_step)
        self.reason = reason


class SessionError(ProbeError):
    """The call or its recording broke; `fault` says on whose side."""

    exit_code = EXIT_FAILED

    def __init__(self, message: str, *, fault: str = "agent", next_step: str | None = None) -> None:
        super().__init__(message, next_step=next_step)
        self.fault = fault


class CallFailed(SessionError):
    """The call could not be made."""


class MediaLost(SessionError):
    """The agent or its media went away during the call."""


class RecordingFailed(SessionError):
    """What is recorded can no longer be written; `reason` is `disk_full` or `disk_failed`."""

    def __init__(self, reason: str, message: str, *, next_step: str | None = None) -> None:
        super().__init__(message, fault="probe", next_step=next_step)
        self.reason = reason


class MalformedPacket(ValueError):
    """Bytes that are not the packet they claim to be; counted, never shown as a traceback."""
