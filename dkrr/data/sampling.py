"""A random sample of rows with their targets and weights, in memory, of any container."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from dkrr.checks import shown
from dkrr.data.open import as_rows, load_array, load_labels
from dkrr.data.table import Table
from dkrr.data.table_opening import with_columns
from dkrr.errors import InputError
from dkrr.text import plural


def sampled(
    X: Any, y: Any, sample_weight: Any, n_rows: int, seed: int, *, is_classification: bool, name: str = "n_rows"
) -> tuple[Any, Any, Any, int]:
    """Some rows, drawn at random without replacement, in their order; of a classification as many of each class.

    Parameters
    ----------
    X, y, sample_weight
        As for the `fit` of an estimator; y and weights may be names of columns of X. Tables stay tables, with the types
        of their columns; of tables and stored arrays a block at a time is in memory besides the sample.
    n_rows : int
        Rows of the sample, fewer than there are.
    seed : int
        The same for the same sample.
    is_classification : bool
        Whether each class has as large a part of the sample as of all rows.
    name : str
        Of the argument `n_rows`, for the message.

    Returns
    -------
    X, y, sample_weight : Table, ndarray or sparse array
        Of the sample; None where none were given.
    n : int
        Number of all rows.

    Raises
    ------
    InputError
        If there are not more rows, or a class would have none in the sample.
    """
    X, y, sample_weight = with_columns(X, y, sample_weight)
    X = X if isinstance(X, Table) else as_rows(X)
    n = X.n_rows if isinstance(X, Table) else X.shape[0]
    labels = load_labels(y) if is_classification and y is not None else None
    if not 1 <= n_rows < n:
        raise InputError(
            f"{name} is {shown(n_rows)}, and X has {plural(n, 'row')}; expected fewer, or no {name} for all of them"
        )
    if labels is None:
        chosen = np.random.default_rng(seed).choice(n, n_rows, replace=False)
    else:
        chosen = _of_all_classes(labels, n, n_rows, seed, name)
    chosen.sort()
    targets = y if isinstance(y, Table) or y is None else labels
    if targets is None and y is not None:
        targets = load_array(y)
    weights = sample_weight
    if weights is not None and not isinstance(weights, Table):
        weights = load_array(weights, "sample_weight")
    return _taken(X, chosen, n, "X"), _taken(targets, chosen, n, "y"), _taken(weights, chosen, n, "sample_weight"), n


def _of_all_classes(labels: NDArray[Any], n: int, n_rows: int, seed: int, name: str) -> NDArray[np.intp]:
    from sklearn.model_selection import StratifiedShuffleSplit

    try:
        split = StratifiedShuffleSplit(1, train_size=n_rows, random_state=seed)
        chosen, _ = next(split.split(np.empty((n, 1)), labels))
    except (TypeError, ValueError) as error:
        raise InputError(
            f"{name} is {n_rows}, and such a sample of all classes of y cannot be drawn: {error}; expected more rows, "
            f"or y with a label for each row"
        ) from error
    return np.asarray(chosen)


def _taken(values: Any, chosen: NDArray[np.intp], n: int, name: str) -> Any:
    """Chosen rows of one of the three."""
    if values is None:
        return None
    found = values.n_rows if isinstance(values, Table) else values.shape[0]
    if found != n:
        raise InputError(f"{name} has {plural(found, 'row')}, and X has {n}; expected the same number")
    if isinstance(values, Table):
        return _of_table(values, chosen)
    return values[chosen] if isinstance(values, np.ndarray) else values.take(chosen)


def _of_table(table: Table, chosen: NDArray[np.intp]) -> Table:
    """Rows of a table, by ascending number, in memory with the types of their columns."""
    from dkrr.data.arrow import Source

    return Table(Source(_arrow_rows(table, chosen), table.source.label), table.names)


def _arrow_rows(table: Table, chosen: NDArray[np.intp]) -> Any:
    """Rows of a table, by ascending number, as one of Arrow."""
    import pyarrow

    schema = pyarrow.schema([table.source.schema.field(name) for name in table.names])
    batches, first = [], 0
    for batch in table.source.batches(0, table.n_rows, table.names):
        start, stop = np.searchsorted(chosen, (first, first + batch.num_rows))
        batches.append(batch.take(pyarrow.array(chosen[start:stop] - first)))
        first += batch.num_rows
    return pyarrow.Table.from_batches(batches, schema)


def numbered_rows(table: Table | None, numbers: NDArray[np.intp], name: str) -> Table:
    """Table in memory of a column with numbers of rows, and of these rows of another table, in that order."""
    import pyarrow

    from dkrr.data.arrow import Source

    columns = {name: pyarrow.array(numbers, pyarrow.int64())}
    if table is not None:
        order = np.argsort(numbers)
        taken = _arrow_rows(table, numbers[order]).take(pyarrow.array(np.argsort(order)))
        columns |= dict(zip(taken.column_names, taken.columns, strict=True))
    return Table.of(Source(pyarrow.table(columns), "the suggestions"))
