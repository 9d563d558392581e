"""The models of a job that are to be fitted now: chosen, compared with what is saved, and planned."""

import re
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import Any

from dkrr.errors import DkrrError, InputError
from dkrr.jobs.documents import JobError, Problem
from dkrr.jobs.entries import Entry
from dkrr.jobs.origins import Found, State, state_of
from dkrr.values import shown


@dataclass(frozen=True)
class Prepared:
    """A model that was checked."""

    entry: Entry
    origin: dict[str, Any]
    """What it is made from."""
    state: State
    """What is at its place."""
    plan: Any = None
    """Plan of its fit; None if it is complete, or the command makes none in advance."""

    @property
    def is_complete(self) -> bool:
        """Whether there is nothing to do."""
        return self.state.found is Found.COMPLETE


def chosen(
    entries: Sequence[Entry],
    patterns: Sequence[str],
    part: tuple[int, int] | None,
    group: Callable[[Entry], Hashable],
) -> list[Entry]:
    """Models whose names match one of the patterns, if there are any; of these one part.

    Parameters
    ----------
    entries : sequence of Entry
        All models of the job.
    patterns : sequence of str
        Patterns with ``*``, ``?`` and ``[...]``.
    part : (int, int), optional
        Number of a part, from 1, and how many there are: models are dealt out in turn, so that neighbours in a grid,
        which take about equally long, are in different parts; those of a group are in one.
    group : callable
        What a model has in common with others that are solved together with it; None: it is solved alone.

    Raises
    ------
    InputError
        If a pattern matches no model.
    """
    for pattern in patterns:
        if not any(fnmatchcase(entry.name, pattern) for entry in entries):
            near = get_close_matches(pattern, [entry.name for entry in entries], n=3, cutoff=0.3)
            raise InputError(
                f"--only is {shown(pattern)}, and none of {len(entries)} models has such a name; expected a name or a "
                f"pattern: did you mean {' or '.join(near or [entries[0].name])}?"
            )
    found = [e for e in entries if not patterns or any(fnmatchcase(e.name, pattern) for pattern in patterns)]
    if part is None:
        return found
    return [entry for models in grouped(found, group)[part[0] - 1 :: part[1]] for entry in models]


def grouped(entries: Sequence[Entry], group: Callable[[Entry], Hashable]) -> list[list[Entry]]:
    """Models that are solved together, in the order of the first of each group."""
    groups: dict[Hashable, list[Entry]] = {}
    for entry in entries:
        common = group(entry)
        groups.setdefault(("alone", entry.name) if common is None else ("together", common), []).append(entry)
    return list(groups.values())


def prepared(
    file: str,
    entries: Sequence[Entry],
    place: Callable[[Entry], str | None],
    origin: Callable[[Entry], dict[str, Any]],
    check: Callable[[Entry], Any],
    *,
    resume: bool,
    overwrite: bool,
) -> list[Prepared]:
    """Check all models, before any is fitted.

    Parameters
    ----------
    file : str
        Job file, for messages.
    entries : sequence of Entry
        The models.
    place : callable
        Where a model goes; None: it is not saved.
    origin : callable
        What it is made from.
    check : callable
        Checks its arguments, and returns its plan.
    resume : bool
        Whether complete models are skipped.
    overwrite : bool
        Whether other models at their places are replaced.

    Raises
    ------
    JobError
        Naming every line whose values cannot be used, and every model that is in the way.
    """
    found: list[Prepared] = []
    problems: dict[Problem, list[str]] = {}
    for entry in entries:
        path, made_from = place(entry), origin(entry)
        state = State(Found.NOTHING) if path is None else state_of(path, made_from, compare=resume)
        plan = None
        try:
            if state.found is Found.OTHER and not overwrite:
                raise InputError(f"model: {state.reason}")
            if state.found is not Found.COMPLETE:
                plan = check(entry)
        except DkrrError as error:
            if not isinstance(error, ValueError | OSError):
                raise
            problems.setdefault(Problem(_line(entry, str(error)), str(error)), []).append(entry.name)
        found.append(Prepared(entry, made_from, state, plan))
    if problems:
        raise JobError(file, [Problem(p.line, f"{p.message} ({_names(names)})") for p, names in problems.items()])
    return found


def _line(entry: Entry, message: str) -> int:
    """Line of the key that a message is about: messages begin with the name of the argument."""
    first = re.match(r"[\w-]+", message.removeprefix("--"))
    name = first[0].lower().replace("_", "-") if first else ""
    return entry.lines.get(name) or entry.line


def _names(names: Sequence[str]) -> str:
    """Names of models in a message."""
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return f"model{'s' if len(names) > 1 else ''} {', '.join(names[:3])}{more}"
