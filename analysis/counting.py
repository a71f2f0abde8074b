"""A number and a noun in, both as a person reads them out."""

from __future__ import annotations

__all__ = ["counted"]


def counted(n: int, one: str, many: str | None = None) -> str:
    """A count with the word for what was counted: in the plural, `many` or with an s, unless it is one.

    Examples
    --------
    >>> counted(1, "turn"), counted(2000, "turn"), counted(2, "entry", "entries")
    ('1 turn', '2,000 turns', '2 entries')
    """
    return f"{n:,} {one if n == 1 else many or one + 's'}"
