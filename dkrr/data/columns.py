"""Columns of a table, by their names or by patterns."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import Literal

from dkrr.errors import InputError, InputTypeError
from dkrr.values import shown

Kind = Literal["number", "text", "category", "date", "other"]

BATCH_ROWS = 65536
"""Most rows that are decoded at once."""
MAX_NAMES = 12
"""Most names that a message lists."""


@dataclass(frozen=True)
class Column:
    """A column of a table, as its container describes it."""

    name: str
    kind: Kind
    dtype: str
    """Type of its values, for messages."""
    is_float32: bool = False
    """Whether float32 holds its numbers."""


def check_names(names: Sequence[str], label: str) -> None:
    """Refuse a table without columns, and one with two columns of one name; raises InputError."""
    if not names:
        raise InputError(f"{label} has no columns; expected a table with at least one")
    counts = Counter(names)
    twice = next((name for name in names if counts[name] > 1), None)
    if twice is not None:
        raise InputError(f"{label} has two columns {twice!r}; expected a name for each: rename one of them")


def selected_names(
    patterns: str | Iterable[str], names: Sequence[str], argument: str = "columns", label: str = "the table"
) -> tuple[str, ...]:
    """Names that patterns select: for each pattern in the order of the table, each name once.

    Raises
    ------
    InputError
        If a pattern matches none; the message suggests names that are near to it.
    """
    found: dict[str, None] = {}
    for pattern in split_patterns(patterns, names, argument):
        matched = matching(pattern, names)
        if not matched:
            raise InputError(
                f"{argument} has {pattern!r}, and {label} has no such column; expected {suggested(pattern, names)}"
            )
        found |= dict.fromkeys(matched)
    return tuple(found)


def split_patterns(patterns: str | Iterable[str], names: Sequence[str], argument: str = "columns") -> list[str]:
    """Patterns one by one; a text may hold several with commas between, unless it is a name as it stands."""
    expected = "names of columns, or patterns such as 'dep_*'"
    listed: list[str]
    if isinstance(patterns, str):
        listed = [patterns] if patterns in names else [part.strip() for part in patterns.split(",")]
    else:
        is_list = isinstance(patterns, Iterable) and getattr(patterns, "ndim", 1) == 1
        listed = list(patterns) if is_list else []
        if not is_list or not all(isinstance(part, str) for part in listed):
            raise InputTypeError(f"{argument} is {shown(patterns)}; expected {expected}")
    if not listed or not all(listed):
        raise InputError(f"{argument} is {shown(patterns)}; expected {expected}, at least one and none of them empty")
    return listed


def matching(pattern: str, names: Sequence[str]) -> list[str]:
    """Names that a pattern matches, in order: the one that it is, or else all that fit it."""
    return [pattern] if pattern in names else [name for name in names if fnmatchcase(name, pattern)]


def suggested(pattern: str, names: Sequence[str]) -> str:
    """Names near to one that does not exist, or the first of all of them, for a message."""
    by_lower = {name.lower(): name for name in names}
    near = [by_lower[name] for name in get_close_matches(pattern.lower(), list(by_lower), n=3)]
    if near:
        return " or ".join(map(repr, near))
    more = ", ..." if len(names) > MAX_NAMES else ""
    return "one of " + ", ".join(names[:MAX_NAMES]) + more
