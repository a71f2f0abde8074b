"""A manifest's turns, checked: what comes out of a foreign bundle is hostile until it has passed here.

Layout in docs/bundle.md.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from analysis.errors import BundleError

__all__ = ["call_number", "scheduled_turns"]

MAX_COUNT = 1_000_000
MAX_TIMEOUT_S = 86_400.0
MAX_LABELS = 100


def call_number(manifest: Mapping[str, Any], where: str) -> int:
    """Number of the call in its run. Raises BundleError where it is not one."""
    return _count(manifest.get("call", 0), f"{where}: call")


def scheduled_turns(manifest: Mapping[str, Any], where: str) -> list[dict[str, Any]]:
    """The scheduled turns with all their settings, of the types that they must have.

    Raises
    ------
    BundleError
        If the manifest lists no turns, or a setting is not what it should be; the line names it.
    """
    turns = manifest.get("turns")
    if not isinstance(turns, list):
        raise BundleError(f"{where}: the manifest lists no turns")
    checked = [_turn(turn, f"{where}: turns[{i}]") for i, turn in enumerate(turns)]
    if len({turn["index"] for turn in checked}) != len(checked):
        raise BundleError(f"{where}: two turns of the manifest have one index")
    return checked


def _turn(turn: Any, where: str) -> dict[str, Any]:
    if not isinstance(turn, dict):
        raise BundleError(f"{where} is not a turn")
    segment, flags, timeout_s = turn.get("segment") or {}, turn.get("flags") or [], turn.get("timeout_s")
    if not isinstance(segment, dict) or len(segment) > MAX_LABELS:
        raise BundleError(f"{where}.segment is not a table of labels")
    if not isinstance(flags, list) or not all(isinstance(flag, str) for flag in flags):
        raise BundleError(f"{where}.flags is not a list of words")
    if isinstance(timeout_s, bool) or not isinstance(timeout_s, (int, float)) or not 0 <= timeout_s <= MAX_TIMEOUT_S:
        raise BundleError(f"{where}.timeout_s is not a number of seconds")
    interruption_ms = turn.get("interruption_ms")
    if interruption_ms is not None and not isinstance(interruption_ms, (int, float)):
        raise BundleError(f"{where}.interruption_ms is not a number")
    language = turn.get("language")
    if language is not None and not isinstance(language, str):
        raise BundleError(f"{where}.language is not a word")
    return {
        "index": _count(turn.get("index"), f"{where}.index"),
        "language": language,
        "segment": {str(name): _label(value, f"{where}.segment") for name, value in segment.items()},
        "timeout_s": float(timeout_s),
        "interruption_ms": interruption_ms,
        "flags": flags,
    }


def _label(value: Any, where: str) -> str:
    if isinstance(value, (str, bool, int)) or (isinstance(value, float) and math.isfinite(value)):
        return str(value)
    raise BundleError(f"{where} holds something that is not a label")


def _count(value: Any, where: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MAX_COUNT:
        raise BundleError(f"{where} is not a whole number from 0 to {MAX_COUNT}")
    return value
