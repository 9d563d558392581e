"""Values in columns of categories that a fitted encoder does not know, for messages that name the column."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from dkrr.values import shown


def unknown_value(transformer: Any, block: Any, first: int = 0) -> str:
    """What is wrong with the first value that an encoder in a fitted transformer does not know; empty if there is none.

    Parameters
    ----------
    transformer : transformer of scikit-learn, fitted
    block : ndarray or DataFrame of shape (m, d)
    first : int
        Number of its first row.
    """
    for name, column, known in _encoded(transformer, block):
        values = np.asarray(column, dtype=object)
        expected = set(known.tolist())
        missing = None in expected or any(value != value for value in expected)  # NaN, which is not equal to itself
        for row, value in enumerate(values):
            if value in expected or ((value is None or value != value) and missing):
                continue
            listed = ", ".join(map(shown, known[:5].tolist())) + (", ..." if len(known) > 5 else "")
            return (
                f"column {name!r} of X holds {shown(value)} in row {first + row}, and the transformer was fitted on "
                f"{listed}; expected one of {len(known)} known values: leave such rows out, fit with rows that hold "
                f"it, or have other values ignored (--unknown zeros, OneHotEncoder(handle_unknown='ignore'))"
            )
    return ""


def _encoded(transformer: Any, block: Any) -> Iterator[tuple[Any, Any, Any]]:
    """Name, values and known values of each column that an encoder takes as it is in the block."""
    if hasattr(transformer, "transformers_"):  # of a ColumnTransformer
        for _, part, columns in transformer.transformers_:
            if hasattr(part, "transform"):
                yield from _encoded(part, _taken(block, columns))
    elif hasattr(transformer, "steps"):  # later ones of a Pipeline take what the first makes
        yield from _encoded(transformer.steps[0][1], block)
    elif hasattr(transformer, "transformer_list"):  # of a FeatureUnion
        for _, part in transformer.transformer_list:
            yield from _encoded(part, block)
    elif hasattr(transformer, "categories_"):
        names = list(getattr(block, "columns", range(block.shape[1])))
        values = block.to_numpy(dtype=object) if hasattr(block, "to_numpy") else block
        for k, known in enumerate(transformer.categories_):
            yield names[k], values[:, k], known


def _taken(block: Any, columns: Any) -> Any:
    """Columns of a block by their names or numbers, as a fitted ColumnTransformer lists them."""
    if not hasattr(block, "iloc"):
        return block[:, columns]
    chosen = [columns] if isinstance(columns, str) else columns
    by_name = not isinstance(chosen, slice) and all(isinstance(one, str) for one in chosen)
    return block[list(chosen)] if by_name else block.iloc[:, chosen]
