"""Runs whose store is damaged: what does not match its checksum is discarded, and computed again by its tasks."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack, nullcontext
from typing import TypeVar

from dkrr.cluster.process import ended_in_order
from dkrr.errors import DamagedChunkError
from dkrr.store import RunStore
from dkrr.store.lock import check_owned, owned
from dkrr.store.paths import resolved_place

Value = TypeVar("Value")

MAX_ATTEMPTS = 5
"""Times that a run is begun again for damage: a disk that damages everything it is given is not to be used."""


def with_repairs(stores: Sequence[str], work: Callable[[], Value]) -> tuple[Value, tuple[str, ...]]:
    """Do the work of runs; where a part of their own stores is damaged, discard all that is, and resume.

    Each task owns the chunks that it writes and computes those that are missing, so the work that is done again is that
    of the damaged ones. The stores belong to this work all the time.

    Parameters
    ----------
    stores : sequence of str
        Stores of the runs; without any, nothing is kept that could be discarded.
    work : callable
        The runs, which resume from what the stores hold.

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
    runs = [RunStore(resolved_place(store)) for store in stores]
    for run in runs:
        run.description()  # what is not a run is refused before a lock is written there
    messages, known = list[str](), set[tuple[str, str]]()
    with ended_in_order() if runs else nullcontext(), ExitStack() as stack:
        for run in runs:
            stack.enter_context(owned(run.url))
        while True:
            try:
                return work(), tuple(messages)
            except DamagedChunkError as error:
                where = error.url, error.key
                holding = [run for run in runs if run.holds(error.url)]
                if not holding or where in known or len(messages) == MAX_ATTEMPTS:
                    raise
                found = error
            known.add(where)
            messages.append(discarded(holding[0], found))


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
