"""Python objects as rows of numbers, for users' kernel functions: text, and all values of JSON.

A row is the UTF-8 text of an object's JSON, one byte per column, plus 1 so that none is 0. All rows have one width, so
that new ones fit those of the training data. Nothing is pickled: objects are returned as JSON decodes them (a tuple
becomes a list, a key a string).
"""

import json
from itertools import pairwise
from typing import Any

import numpy as np
import scipy.sparse as sp

from dkrr.errors import InputError, InputTypeError

WIDTH = 2**31 - 1
"""Columns of the rows: a bound of the bytes of an object."""


def is_objects(X: Any) -> bool:
    """Whether data are objects, and not numbers in some container."""
    if not is_container(X):
        return False
    if hasattr(X, "columns"):
        return any(getattr(kind, "kind", "O") not in "biuf" for kind in X.dtypes) and not _are_numbers(X)
    if isinstance(X, list | tuple):
        # Not by NumPy, whose strings all take as much memory as the longest.
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
    """Whether data are a sequence in memory: a list, an array, a Series or a table."""
    return isinstance(X, list | tuple | np.ndarray) or hasattr(X, "columns") or hasattr(X, "to_list")


def _are_numbers(X: Any) -> bool:
    try:
        np.asarray(X, np.float64)
    except (TypeError, ValueError):
        return False
    return True


def encode_objects(X: Any) -> Any:
    """CSR rows (n, WIDTH), uint16, for a sequence of values of JSON, or a DataFrame, whose rows become dicts."""
    items = X.to_dict("records") if hasattr(X, "columns") else X.tolist() if hasattr(X, "tolist") else list(X)
    if not items:
        raise InputError("X is empty; expected at least 1 object")
    rows = []
    for number, item in enumerate(items):
        try:
            text = json.dumps(item, default=_plain, allow_nan=True, ensure_ascii=False)
        except (TypeError, ValueError) as error:
            raise InputTypeError(
                f"object {number} of X is a {type(item).__qualname__}, which cannot be stored ({error}); expected "
                "strings, numbers, None, or lists and dicts of them: convert it, or use rows of numbers"
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
    raise TypeError(f"{type(value).__qualname__} is not a type of JSON")


def decode_objects(rows: Any) -> list[Any]:
    """Objects of some rows that `encode_objects` made."""
    data = (np.asarray(rows.data).astype(np.int64) - 1).astype(np.uint8).tobytes()
    starts = rows.indptr
    return [json.loads(data[a:b].decode(errors="surrogatepass")) for a, b in pairwise(starts)]
