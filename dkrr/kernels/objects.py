"""Python objects as rows of numbers, for kernel functions of one's own: text, and whatever JSON can say.

A row is the UTF-8 text of an object's JSON, a byte to a column, each one larger than it is so that none is 0. All are
as wide, so new ones fit to those that a model was trained on. Nothing is pickled: what comes back is what JSON makes of
it (a tuple becomes a list, a key a string).
"""

import json
from itertools import pairwise
from typing import Any

import numpy as np
import scipy.sparse as sp

from dkrr.errors import InputError, InputTypeError

WIDTH = 2**31 - 1
"""Columns of the rows: more bytes than any object has."""


def is_objects(X: Any) -> bool:
    """Whether data are objects, and not numbers in some container."""
    if not is_container(X):
        return False
    if hasattr(X, "columns"):
        return any(getattr(kind, "kind", "O") not in "biuf" for kind in X.dtypes) and not _are_numbers(X)
    if isinstance(X, list | tuple):
        # Before NumPy sees them: its strings are all as long as the longest.
        if any(isinstance(item, str | dict | None) for item in X):
            return True
        try:
            return np.asarray(X).dtype.kind not in "biufc"
        except ValueError:  # lists of different lengths
            return True
    kind = getattr(X.dtype, "kind", "O")
    if kind == "O" and len(X.shape) == 2:
        return not _are_numbers(X)
    return kind not in "biufc"


def is_container(X: Any) -> bool:
    """Whether data are in memory, one after the other: a list, an array, a Series or a table."""
    return isinstance(X, list | tuple | np.ndarray) or hasattr(X, "columns") or hasattr(X, "to_list")


def _are_numbers(X: Any) -> bool:
    try:
        np.asarray(X, np.float64)
    except (TypeError, ValueError):
        return False
    return True


def encode_objects(X: Any) -> Any:
    """Rows of objects.

    Parameters
    ----------
    X : sequence, Series or object array of strings, or of values of JSON; or DataFrame, whose rows become dicts

    Returns
    -------
    CSR array of shape (n, WIDTH), uint16

    Raises
    ------
    InputTypeError
        If JSON cannot say what an object is; names its number.
    """
    items = X.to_dict("records") if hasattr(X, "columns") else X.tolist() if hasattr(X, "tolist") else list(X)
    if not items:
        raise InputError("X is empty: there are no objects; expected at least 1")
    rows = []
    for number, item in enumerate(items):
        try:
            text = json.dumps(item, default=_plain, allow_nan=True, ensure_ascii=False)
        except (TypeError, ValueError) as error:
            raise InputTypeError(
                f"object {number} of X is a {type(item).__qualname__}, which cannot be stored ({error}); expected "
                f"strings, numbers, None, or lists and dicts of them. Turn it into such, or into rows of numbers"
            ) from error
        rows.append(np.frombuffer(text.encode(errors="surrogatepass"), np.uint8))
    lengths = [len(row) for row in rows]
    starts = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    data = np.concatenate(rows).astype(np.uint16) + np.uint16(1)
    indices = np.concatenate([np.arange(k, dtype=np.int64) for k in lengths])
    return sp.csr_array((data, indices, starts), shape=(len(rows), WIDTH))


def _plain(value: Any) -> Any:
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    raise TypeError(f"{type(value).__qualname__} is none of JSON's types")


def decode_objects(rows: Any) -> list[Any]:
    """Undo `encode_objects` for some rows."""
    data = (np.asarray(rows.data).astype(np.int64) - 1).astype(np.uint8).tobytes()
    starts = rows.indptr
    return [json.loads(data[a:b].decode(errors="surrogatepass")) for a, b in pairwise(starts)]
