"""The structure of sparse matrices, checked before SciPy's compiled routines read and write where it points."""

from itertools import chain
from operator import index
from typing import Any

import numpy as np

from dkrr.errors import InputError


def check_structure(X: Any, name: str = "X") -> None:
    """Refuse a sparse matrix or array, of any format, whose indices or pointers lead outside of it.

    SciPy checks neither when it is given arrays or when they are changed in place, and reads (and writes, when it
    converts between formats) whatever they point at.

    Raises
    ------
    InputError
        Naming the first bad index or pointer.
    """
    if X.format in ("csr", "csc", "bsr"):
        _check_compressed(X, name)
    elif X.format == "coo":
        if any(len(places) != len(X.data) for places in X.coords):
            raise _damaged(name, f"it has {len(X.data)} values and other numbers of coordinates")
        for axis, (places, size) in enumerate(zip(X.coords, X.shape, strict=True)):
            _check_range(places, size, f"{'row' if axis == 0 and X.ndim == 2 else 'column'} index", name)
    elif X.format == "lil":
        _check_lists(X, name)
    elif X.format == "dia":
        _check_diagonals(X, name)
    # The rest (DOK) is read and converted by Python code that checks its bounds.


def _check_lists(X: Any, name: str) -> None:
    """Check lengths first: then all indices are looked at as one array."""
    n_rows = (1, *X.shape)[-2]
    if X.rows.shape != (n_rows,) or X.data.shape != (n_rows,):
        raise _damaged(
            name, f"it has lists of indices {X.rows.shape} and of values {X.data.shape} for a shape of {X.shape}"
        )
    for row, (places, values) in enumerate(zip(X.rows, X.data, strict=True)):
        if len(places) != len(values):
            raise _damaged(name, f"row {row} has {len(values)} values and {len(places)} indices")
    try:
        places = np.fromiter(map(index, chain.from_iterable(X.rows)), np.int64)
    except (TypeError, OverflowError) as error:
        raise _damaged(name, f"its lists of indices hold what is not a 64-bit integer ({error})") from error
    _check_range(places, X.shape[-1], "column index", name)


def _check_diagonals(X: Any, name: str) -> None:
    """SciPy's compiled conversions read one row of values for each offset."""
    offsets = X.offsets
    if offsets.ndim != 1 or offsets.dtype.kind not in "iu":
        raise _damaged(name, f"its offsets are of shape {offsets.shape} and dtype {offsets.dtype}; expected integers")
    if X.data.ndim != 2 or len(X.data) != len(offsets):
        raise _damaged(name, f"it has {len(offsets)} offsets and values of shape {X.data.shape}")
    if len(np.unique(offsets)) != len(offsets):
        raise _damaged(name, "its offsets name a diagonal twice")


def _check_compressed(X: Any, name: str) -> None:
    """Check pointers first: only then is it known which indices count."""
    height, width = X.blocksize if X.format == "bsr" else (1, 1)
    n_rows, n_columns = (1, *X.shape)[-2:]
    n_slices, size, along, across = n_rows // height, n_columns // width, "row", "column"
    if X.format == "csc":
        n_slices, size, along, across = n_columns, n_rows, "column", "row"
    pointers, indices = X.indptr, X.indices
    if pointers.dtype.kind not in "iu" or indices.dtype.kind not in "iu":
        raise _damaged(name, f"its indptr is of dtype {pointers.dtype} and its indices of {indices.dtype}")
    if pointers.shape != (n_slices + 1,) or pointers[0] != 0:
        raise _damaged(
            name, f"its indptr has shape {pointers.shape}; expected {n_slices + 1} numbers, the first of them 0"
        )
    falls = pointers[1:] < pointers[:-1]  # differences of unsigned integers would wrap around
    if falls.any():
        raise _damaged(
            name,
            f"its indptr falls after {along} {int(np.argmax(falls))}; expected none smaller than the one before",
        )
    if pointers[-1] > min(len(indices), len(X.data)):
        raise _damaged(
            name,
            f"its indptr ends at {int(pointers[-1])}, and it has {len(indices)} indices and {len(X.data)} values",
        )
    _check_range(indices[: pointers[-1]], size, f"{across} index", name)


def _check_range(places: Any, size: int, what: str, name: str) -> None:
    if len(places) == 0:
        return
    smallest, largest = int(places.min()), int(places.max())
    if smallest < 0 or largest >= size:
        raise _damaged(name, f"it has the {what} {smallest if smallest < 0 else largest}; expected 0 to {size - 1}")


def _damaged(name: str, what: str) -> InputError:
    return InputError(
        f"{name} is a damaged sparse matrix: {what}. Rebuild it from its entries, e.g. scipy.sparse.coo_array"
    )
