"""Runs whose store is damaged: what does not match its checksum is discarded, and computed again by its tasks."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from dkrr.errors import DamagedChunkError, StoreError
from dkrr.fitting.storage import absolute_url
from dkrr.runtime.signals import ended_in_order
from dkrr.tiles import RunStore
from dkrr.tiles.lock import check_owned, owned

Value = TypeVar("Value")

MAX_ATTEMPTS = 5
"""Times that a run is begun again for damage: a disk that damages everything it is given is not to be used."""


def with_repairs(store: str | None, work: Callable[[], Value]) -> tuple[Value, tuple[str, ...]]:
    """Do the work of a run; where a part of its own store is damaged, discard all that is, and resume.

    Each task owns the chunks that it writes and computes those that are missing, so the work that is done again is that
    of the damaged ones. The store belongs to this run all the time.

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
    if store is None:
        return work(), ()
    run = RunStore(absolute_url(store))
    run.description()  # what is not a run is refused before a lock is written there
    messages, known = list[str](), set[tuple[str, str]]()
    with ended_in_order(), owned(run.url):
        while True:
            try:
                return work(), tuple(messages)
            except DamagedChunkError as error:
                where = error.url, error.key
                if not run.holds(error.url) or where in known or len(messages) == MAX_ATTEMPTS:
                    raise
                found = error
            known.add(where)
            messages.append(discarded(run, found))


@contextmanager
def damage_discarded(store: str | None) -> Iterator[None]:
    """Discard what is damaged in the store of a run that the block owns, and say so in the error of the block.

    Raises
    ------
    StoreError
        In place of a DamagedChunkError of this store: the same call computes again what was discarded.
    """
    try:
        yield
    except DamagedChunkError as error:
        run = None if store is None else RunStore(absolute_url(store))
        if run is None or not run.holds(error.url):
            raise
        with owned(run.url):
            done = discarded(run, error)
        raise StoreError(f"{done}. Run again with the same store and the same data") from error


def discarded(run: RunStore, found: DamagedChunkError) -> str:
    """Delete every damaged part of a run's store, and return a message that names them.

    Parameters
    ----------
    run : RunStore
        Owned by the code around.
    found : DamagedChunkError
        The first one.
    """
    damaged = {(error.url, error.key) for error in run.damage()} | {(found.url, found.key)}
    for url, key in damaged:
        check_owned(run.url)
        run.discard(url, key)
    first = ", ".join(sorted(f"{key} of {url.removeprefix(run.url).strip('/')}" for url, key in damaged)[:5])
    more = f" and {len(damaged) - 5} more" if len(damaged) > 5 else ""
    return f"damaged in the store, discarded and computed again: {first}{more}"
