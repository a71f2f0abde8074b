"""What several commands share: options, reading bundles, writing results, and the text that a person reads."""

from __future__ import annotations

import errno
import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from analysis.bundle import RUN_FILE, STATS_FILE, CallRecord, read_run
from analysis.derive import ASSUMED_OUTPUT, Derived, Output, derive
from analysis.errors import SessionError, UsageError
from analysis.neteq import is_compiled
from analysis.playout import parse_policy
from analysis.result import Result, exit_code, result_json_text
from probe.agent.config import AgentConfig
from probe.cli.output import note, warn, write_document
from probe.cli.result_text import print_text
from probe.recorder import write_private

__all__ = [
    "JsonOption",
    "OutputDelayOption",
    "PolicyOption",
    "announce_compiling",
    "check_folder",
    "check_outputs",
    "conditions",
    "output_delay",
    "policy_list",
    "print_result",
    "read_and_derive",
    "warn",
    "write_derived",
    "write_page",
]

MAX_OUTPUT_DELAY_MS = 2000.0
DEFAULT_POLICIES = ("chrome", "fixed:100")
MAX_VALUES = 4  # of one condition, where sessions differ in it
RECORDED_FILES = {
    "manifest.json",
    "packets.pcap",
    "events.jsonl",
    STATS_FILE,
    RUN_FILE,
    "recording.flac",
    "result.json",
}
RECORDED_FOLDER = "utterances"
BUNDLE_MARKS = ("manifest.json", "events.jsonl", RUN_FILE)  # a folder with one of these is a bundle, or was to be one
FAILED_DISK = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO}

JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout and nothing else there.")]
PolicyOption = Annotated[
    str,
    typer.Option(
        "--policy", metavar="P[,P…]", help="Playout policies: chrome, fixed:MS, none; the first is the headline."
    ),
]
OutputDelayOption = Annotated[
    float | None,
    typer.Option(
        "--output-delay",
        metavar="MS",
        help="Delay from the jitter buffer to the ear, where it is known; assumed otherwise.",
    ),
]


def policy_list(text: str) -> tuple[str, ...]:
    """`P[,P…]` as policies in their one spelling, each once. Raises UsageError for one that is not."""
    policies = tuple(dict.fromkeys(parse_policy(p.strip()).name for p in text.split(",") if p.strip()))
    if not policies:
        raise UsageError("--policy is empty", next_step="give chrome, fixed:MS or none")
    return policies


def announce_compiling(policies: Sequence[str]) -> None:
    """Say so where the first `chrome` playout of a machine has to compile its model."""
    if "chrome" in policies and not is_compiled():
        note("compiling the playout model for this machine: once, some 15 s")


def output_delay(ms: float | None) -> Output | None:
    """The output delay that was given, if one was."""
    if ms is None:
        return None
    if not math.isfinite(ms) or not 0 <= ms <= MAX_OUTPUT_DELAY_MS:
        raise UsageError(f"--output-delay {ms:g}", next_step=f"give milliseconds from 0 to {MAX_OUTPUT_DELAY_MS:g}")
    return Output(ms, 0.0, "given")


def read_and_derive(
    paths: Sequence[Path], policies: Sequence[str] | None, output: Output | None
) -> tuple[Derived, list[CallRecord]]:
    """Read bundles and work them out as one run; what is not given is as the first of them was made with.

    Raises
    ------
    UsageError
        If one is not a bundle, or cannot be read.
    """
    try:
        records = [record for path in paths for record in read_run(path)]
    except OSError as exc:
        raise UsageError(f"{exc.filename or paths[0]}: cannot be read ({exc.strerror})") from exc
    own = [_own_playout(record.manifest) for record in records]
    if (policies is None or output is None) and any(each != own[0] for each in own):
        warn("warning: the sessions were made with different playout policies or output delays; the first one's stand")
    asked = own[0][0] if policies is None else policies
    announce_compiling(asked)
    derived = derive(
        records,
        policies=asked,
        output=own[0][1] if output is None else output,
        path=", ".join(str(p) for p in paths),
    )
    for warning in derived.warnings:
        warn(f"warning: {warning}")
    return derived, records


def _own_playout(manifest: Mapping[str, Any]) -> tuple[tuple[str, ...], Output]:
    """The policies and the output delay that a session was asked to be worked out under, or the default ones."""
    asked = _table_of(manifest, "playout")
    policies, ms = asked.get("policies"), asked.get("output_delay_ms")
    try:
        wanted = policy_list(",".join(policies)) if isinstance(policies, list) else DEFAULT_POLICIES
        given = output_delay(float(ms)) if isinstance(ms, (int, float)) else None
    except (UsageError, TypeError, OverflowError):
        return DEFAULT_POLICIES, ASSUMED_OUTPUT
    return wanted, ASSUMED_OUTPUT if given is None else given


def conditions(records: Sequence[CallRecord]) -> dict[str, str]:
    """What a run was made under, as a report shows it; where sessions differ, each value once."""
    shown = [_conditions(record.manifest) for record in records]
    shown[0]["calls"] = str(len(records))
    return {key: value for key in shown[0] if (value := _each_once(each.get(key, "") for each in shown))}


def _each_once(values: Iterable[str]) -> str:
    found = list(dict.fromkeys(value for value in values if value))
    more = f"; and {len(found) - MAX_VALUES} more" if len(found) > MAX_VALUES else ""
    return "; ".join(found[:MAX_VALUES]) + more


def _conditions(manifest: Mapping[str, Any]) -> dict[str, str]:
    # a bundle may come from anywhere: what is not where it should be is not shown
    scenario, host, versions, target = (_table_of(manifest, key) for key in ("scenario", "host", "versions", "target"))
    shown = {
        "command": manifest.get("command", ""),
        "made": manifest.get("created", ""),
        "target": target.get("url", ""),
        "calls": "",
        "codec": scenario and f"{scenario.get('codec', '?')}, {scenario.get('ptime_ms', '?')} ms packets",
        "background between utterances": scenario.get("background", ""),
        "spacing, timeout": scenario and f"{scenario.get('spacing', '?')} s, {scenario.get('timeout', '?')} s",
        "machine": host and f"{host.get('system', '')}, Python {host.get('python', '')}",
        "versions": ", ".join(f"{name} {number}" for name, number in versions.items()),
        "demo agent": _agent_options(target.get("agent")),
    }
    return {key: str(value) if value else "" for key, value in shown.items()}


def _table_of(mapping: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    found = mapping.get(key)
    return found if isinstance(found, Mapping) else {}


def _agent_options(agent: object) -> str:
    """The demo agent's options that are not as by default, as its URL takes them; empty where there is none."""
    if not isinstance(agent, Mapping):
        return ""
    default = _flat(AgentConfig().model_dump(mode="json"))
    changed = {key: value for key, value in _flat(agent).items() if key not in default or default[key] != value}
    # a table that is absent by default stands there as a key of its own
    return ", ".join(f"{key}={_option(value)}" for key, value in changed.items()) or "default"


def _flat(mapping: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    pending: list[tuple[str, Any]] = list(mapping.items())[::-1]
    while pending:
        key, value = pending.pop()
        if isinstance(value, Mapping):
            pending += [(f"{key}.{name}", below) for name, below in list(value.items())[::-1]]
        else:
            found[key] = value
    return found


def _option(value: object) -> str:
    if isinstance(value, list):
        return ",".join(map(_option, value))
    if isinstance(value, bool) or value is None:
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)


def check_outputs(outputs: Mapping[str, Path | None], inputs: Sequence[Path] = ()) -> None:
    """See that the files which options name can be written, and that nothing is lost by it; before the work begins.

    Parameters
    ----------
    outputs : mapping of str to Path or None
        Option → the file it names, if it does.
    inputs : sequence of Path
        What the command reads.

    Raises
    ------
    UsageError
        If one is an input (also by a link), lies among what a bundle has recorded, is the same file as another output,
        or lies where nothing can be written.
    """
    named = [(option, path) for option, path in outputs.items() if path is not None]
    for number, (option, path) in enumerate(named):
        elsewhere = f"name another file with {option}"
        if any(_same_file(path, each) for each in inputs):
            raise UsageError(f"{option} {path}: would be written over the input", next_step=elsewhere)
        if _is_recorded(path) or any(_same_file(path, raw) for each in inputs for raw in _recorded_in(each)):
            raise UsageError(f"{option} {path}: would be written over what a session recorded", next_step=elsewhere)
        for other, taken in named[:number]:
            if _same_file(path, taken) and not _is_device(path):
                raise UsageError(f"{option} {path}: is written by {other} already", next_step=elsewhere)
        _check_writable(option, path)


def check_folder(option: str, folder: Path, inputs: Sequence[Path] = ()) -> None:
    """See that a folder which is to be made is no input and lies among nothing that was recorded.

    Raises
    ------
    UsageError
        If it does.
    """
    elsewhere = f"name another folder with {option}"
    if any(_same_file(folder, each) for each in inputs):
        raise UsageError(f"{option} {folder}: is the input", next_step=elsewhere)
    if _is_recorded(folder):
        raise UsageError(f"{option} {folder}: lies among what a session recorded", next_step=elsewhere)


def _same_file(one: Path, other: Path) -> bool:
    """True where two names lead to one file, by a link too; a file need not be there yet."""
    try:
        return one.resolve() == other.resolve() or (one.exists() and other.exists() and one.samefile(other))
    except (OSError, RuntimeError):  # a link that leads to itself
        return one.absolute() == other.absolute()


def _is_device(path: Path) -> bool:
    return path.exists() and not path.is_file()


def _is_recorded(path: Path) -> bool:
    """True for a name that belongs to the raw files of the bundle in whose folder it lies."""
    try:
        path = path.resolve()
    except (OSError, RuntimeError):
        return False
    if path.name in RECORDED_FILES and _is_bundle(path.parent):
        return True
    return any(parent.name == RECORDED_FOLDER and _is_bundle(parent.parent) for parent in (path, *path.parents))


def _is_bundle(folder: Path) -> bool:
    return any((folder / mark).exists() for mark in BUNDLE_MARKS)


def _recorded_in(path: Path) -> list[Path]:
    """The raw files of a folder that is read, those of its calls included."""
    if not path.is_dir():
        return []
    folders = [path, *path.glob("call-*")]
    found = [folder / name for folder in folders for name in sorted(RECORDED_FILES)]
    return found + [clip for folder in folders for clip in (folder / RECORDED_FOLDER).glob("*")]


def _check_writable(option: str, path: Path) -> None:
    folder = path.parent
    if path.is_dir():
        why = "it is a folder"
    elif not folder.is_dir():
        why = f"{folder} is no folder" if folder.exists() else f"there is no folder {folder}"
    elif not os.access(path if path.exists() else folder, os.W_OK):
        why = "no permission"
    else:
        return
    raise UsageError(f"{path}: cannot be written ({why})", next_step=f"name another file with {option}")


def write_page(path: Path, data: bytes, *, option: str = "-o") -> None:
    """Write a file that the user named by an option; a link, a pipe or a device is written through, not put aside.

    Raises
    ------
    UsageError
        If it cannot be written there.
    SessionError
        If the disk fails.
    """
    try:
        if path.is_symlink() or (path.exists() and not path.is_file()):
            path.write_bytes(data)
        else:
            write_private(path, data)
    except OSError as exc:
        line = f"{path}: cannot be written ({exc.strerror})"
        if exc.errno in FAILED_DISK:
            raise SessionError(
                line, fault="probe", next_step=f"free some space or name another file with {option}"
            ) from exc
        raise UsageError(line, next_step=f"name another file with {option}") from exc


def write_derived(folder: Path, derived: Derived, records: Sequence[CallRecord]) -> None:
    """Write `result.json` and `report.html`; where the disk does not take them, say so and go on."""
    from analysis.report import render_report  # jinja2 is needed by nothing else

    files: list[tuple[str, Callable[[], str]]] = [
        ("result.json", lambda: result_json_text(derived.result)),
        ("report.html", lambda: render_report(derived.result, derived.series, conditions(records))),
    ]
    for name, make in files:
        try:
            write_private(folder / name, make().encode(errors="replace"))
        except OSError as exc:
            warn(f"{folder / name}: cannot be written ({exc.strerror}); make it again with `latency-probe report`")


def print_result(result: Result, *, as_json: bool) -> int:
    """Print a result for a person or a machine; the exit code it stands for."""
    if as_json:
        write_document(result_json_text(result))
    else:
        print_text(result)
    return exit_code(result)
