"""Python functions over arrays and records in, machine code out, made once per machine and kept beside the sources.

Source: numba (docs/adr/0008). Only modules of the engine import this one, and they are imported only when something is
to be played, so that nothing else waits for numba.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

import numba

__all__ = ["compiled", "is_kept", "kept", "summing"]

F = TypeVar("F", bound=Callable[..., Any])


def compiled(function: F) -> F:
    """A function of the engine; a division by zero is the caller's to rule out."""
    return cast("F", numba.njit(error_model="numpy")(function))


def summing(function: F) -> F:
    """A function that adds up samples, in whatever order is fastest."""
    return cast("F", numba.njit(error_model="numpy", fastmath={"reassoc", "contract", "nsz"})(function))


def kept(build: Callable[[str], F]) -> F:
    """What `build` makes, kept on disk.

    numba keeps a function until the file that it stands in changes. This one calls those of its neighbours, so
    `build` is given a digest of all of them to enclose: what is enclosed is a part of the key.
    """
    function = build(_digest())
    try:
        return cast("F", numba.njit(cache=True, error_model="numpy")(function))
    except RuntimeError:  # neither the package nor the user's cache can be written
        return compiled(function)


def is_kept(function: Any) -> bool:
    """Whether what `kept` returned is on disk already, of whatever version; False where it will have to be compiled."""
    cache = getattr(function, "_cache", None)
    path = getattr(cache, "cache_path", None)
    return path is not None and any(Path(path).glob("*.nbi"))


def _digest() -> str:
    sources = sorted(Path(__file__).parent.glob("*.py"))
    return hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()
