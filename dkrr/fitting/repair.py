"""Runs whose store is damaged: what does not match its checksum is discarded, and computed again by its tasks."""

from collections.abc import Callable
from typing import TypeVar

from dkrr.errors import DamagedChunkError
from dkrr.fitting.storage import absolute_url
from dkrr.tiles import RunStore

Value = TypeVar("Value")

MAX_ATTEMPTS = 5
"""Times that a run is begun again for damage: a disk that damages everything it is given is not to be used."""


def with_repairs(store: str | None, work: Callable[[], Value]) -> tuple[Value, tuple[str, ...]]:
    """Do the work of a run; where a part of its own store is damaged, discard all that is, and resume.

    Each task owns the chunks that it writes and computes those that are missing, so the work that is done again is that
    of the damaged ones.

    Parameters
    ----------
    store : str or None
        Store that the user gave; None: nothing is kept that could be discarded.
    work : callable
        The run, which resumes from what the store holds.

    Returns
    -------
    value
        Of the work.
    messages : tuple of str
        What was discarded.

    Raises
    ------
    DamagedChunkError
        Of another store, or where damage does not end.
    """
    messages: tuple[str, ...] = ()
    for _ in range(MAX_ATTEMPTS):
        try:
            return work(), messages
        except DamagedChunkError as error:
            if store is None or not error.url.startswith(absolute_url(store)):
                raise
            found = error
        messages += (discarded(store, found),)
    return work(), messages


def discarded(store: str, found: DamagedChunkError) -> str:
    """Delete every damaged part of a run's store, and return a message that names them.

    Parameters
    ----------
    store : str
    found : DamagedChunkError
        The first one.
    """
    run = RunStore(absolute_url(store))
    damaged = {(error.url, error.key) for error in run.damage()} | {(found.url, found.key)}
    for url, key in damaged:
        run.discard(url, key)
    first = ", ".join(sorted(f"{key} of {url.removeprefix(run.url).strip('/')}" for url, key in damaged)[:5])
    more = f" and {len(damaged) - 5} more" if len(damaged) > 5 else ""
    return f"damaged in the store, discarded and computed again: {first}{more}"
