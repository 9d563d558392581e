"""Documents in any container as a list of strings."""

from collections.abc import Iterator, Mapping, Set
from typing import Any

import numpy as np

from dkrr.errors import InputError, InputTypeError


def as_documents(X: Any) -> list[str] | None:
    """Documents of a sequence, Series or object array of strings; None for rows of numbers and paths of such.

    What looks like documents but is not is refused: a single string, a table with text, items that are not strings.
    """
    if isinstance(X, str | bytes):
        raise InputTypeError(
            f"X is one {type(X).__qualname__}; expected a list of documents: use [X]. (The path of an array is a "
            "pathlib.Path here.)"
        )
    if isinstance(X, Iterator | Set | Mapping):
        raise InputTypeError(f"X is a {type(X).__qualname__}; expected a list of documents, in order: use list(X)")
    if hasattr(X, "columns") and hasattr(X, "dtypes"):
        if all(getattr(dtype, "kind", "O") in "biuf" for dtype in X.dtypes):
            return None
        raise InputTypeError(
            f"X is a table with the columns {', '.join(map(repr, list(X.columns)[:20]))}; expected documents: choose "
            'the column that holds them, X["text"], or dkrr.kernels.Columns'
        )
    if not isinstance(X, list | tuple):
        kind = getattr(getattr(X, "dtype", None), "kind", "O")
        if not (hasattr(X, "shape") and hasattr(X, "dtype")) or kind in "biufc":
            return None
        # A Series, but nothing lazy, which would be computed by accident.
        values = X.to_numpy() if hasattr(X, "to_numpy") and not hasattr(X, "compute") else X
        if not isinstance(values, np.ndarray):
            raise InputTypeError(
                f"X is of type {type(X).__module__}.{type(X).__qualname__} with other values than numbers; expected "
                "documents as a list, a Series or a numpy array in memory: use X.compute() or X[:]"
            )
        if values.dtype.kind in "biufc":
            return None
        if values.ndim != 1:
            raise InputError(f"X has shape {values.shape}; expected numbers, or a list of documents: use X[:, 0]")
        X = values.tolist()
    for number, document in enumerate(X):
        if not isinstance(document, str):
            raise InputTypeError(f"document {number} (counted from 0) {_fault(document)}")
    return list(X)


def _fault(document: object) -> str:
    """What is wrong with a document that is not a string, and the remedy."""
    # NaN, NaT and pandas' NA do not equal themselves.
    if document is None or (np.isscalar(document) and document != document) or type(document).__name__ == "NAType":
        return f'is missing ({document}); expected a string: leave it out, or replace it by ""'
    if isinstance(document, bytes):
        return 'is bytes; expected a string: decode it first, document.decode("utf-8")'
    shown = repr(document)
    shown = shown if len(shown) <= 40 else shown[:40] + "…"
    return f"is of type {type(document).__qualname__} ({shown}); expected a string: rows of numbers are an array or CSR"
