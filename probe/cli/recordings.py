"""What `analyze` does with recordings of calls: each opened and worked out for itself, all of them one result."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from analysis.errors import AudioFileError, NotMeasurable, ProbeError, UsageError
from analysis.recording import TIMEOUT_S, analyze_tape, together
from analysis.references import Reference, load_reference
from analysis.result import Result
from analysis.tape import Tape, open_pair, open_tape
from probe.cli.output import warn

__all__ = ["analyze_recordings"]

MAX_TIMEOUT_S = 600.0
SOUND_SUFFIXES = (".wav", ".flac", ".ogg", ".opus", ".mp3", ".m4a", ".aif", ".aiff", ".au")


def analyze_recordings(
    paths: Sequence[Path],
    pair: tuple[Path, Path] | None,
    *,
    references: Sequence[Path],
    replies: Sequence[Path],
    caller_channel: int | None,
    agent_channel: int | None,
    layout: str | None,
    timeout_s: float | None,
) -> Result:
    """The result of recordings, or of a pair of mono files; what is odd about each is said on stderr.

    Of several recordings one that cannot be used takes nothing from the others.

    Raises
    ------
    UsageError, AudioFileError, NotMeasurable
        If options do not go together, or nothing at all can be worked out.
    """
    if pair is not None and (paths or caller_channel is not None or agent_channel is not None or layout is not None):
        raise UsageError("--pair stands alone: its files say whose they are", next_step="leave out the rest")
    folders = [path for path in paths if path.is_dir()]
    if folders:
        raise UsageError(f"{folders[0]}: a session beside recordings", next_step="analyze them one after the other")
    timeout = TIMEOUT_S if timeout_s is None else timeout_s
    if not 0 < timeout <= MAX_TIMEOUT_S:
        raise UsageError(f"--timeout {timeout:g}", next_step=f"give seconds, more than 0 and up to {MAX_TIMEOUT_S:g}")
    said, answers = _sounds(references), _sounds(replies)

    def analyzed(tape: Tape, number: int, caller: int | None, agent: int | None) -> Result:
        result = analyze_tape(
            tape,
            said,
            answers,
            caller_channel=caller,
            agent_channel=agent,
            layout=layout,
            timeout_s=timeout,
            call=number,
        )
        for warning in (result.recording or {}).get("warnings", ()):
            warn(f"warning: {result.source.path}: {warning}")
        return result

    if pair is not None:
        return analyzed(open_pair(*pair), 0, 0, 1)
    if len(paths) == 1:
        return analyzed(open_tape(paths[0]), 0, caller_channel, agent_channel)
    return _several(paths, lambda path, number: analyzed(open_tape(path), number, caller_channel, agent_channel))


def _several(paths: Sequence[Path], one: Callable[[Path, int], Result]) -> Result:
    results: list[Result] = []
    failed: dict[Path, ProbeError] = {}
    seen: set[Path] = set()
    for path in paths:
        if path.resolve() in seen:
            warn(f"warning: {path}: given twice; it is counted once")
            continue
        seen.add(path.resolve())
        try:
            results.append(one(path, len(results)))
        except (AudioFileError, NotMeasurable) as exc:
            failed[path] = exc
            warn(f"warning: left out: {exc.line()}")
    if not results:
        worst = max(failed.values(), key=lambda error: error.exit_code)
        worst.next_step = "no recording could be worked out: see above"
        raise worst
    return together(results, {str(path): error.message for path, error in failed.items()})


def _sounds(paths: Sequence[Path]) -> list[Reference]:
    """The sound files that were named, or lie in folders that were."""
    files: list[Path] = []
    for path in paths:
        inside = sorted(p for p in path.iterdir() if p.suffix.lower() in SOUND_SUFFIXES) if path.is_dir() else [path]
        if not inside:
            raise UsageError(f"{path}: no sound file in it", next_step=f"give {', '.join(SOUND_SUFFIXES)}")
        files += inside
    return [load_reference(path) for path in dict.fromkeys(files)]
