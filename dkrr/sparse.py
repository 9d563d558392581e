"""The structure of sparse matrices, checked before SciPy's compiled routines follow it wherever it points."""

from typing import Any

import numpy as np

from dkrr.errors import InputError


def check_structure(X: Any, name: str = "X") -> None:
    """Refuse a sparse matrix whose indices or pointers lead outside of it.

    SciPy checks neither when arrays are handed over or changed in place, and reads (and writes, when it converts
    between formats) whatever they point at.

    Parameters
    ----------
    X : scipy.sparse matrix or array of any format
    name : str
        What it is called in error messages.

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
        for row, (places, values) in enumerate(zip(X.rows.flat, X.data.flat, strict=True)):
            if len(places) != len(values):
                raise _damaged(name, f"row {row} has {len(values)} values and {len(places)} indices")
            _check_range(np.asarray(places, np.int64), X.shape[-1], f"column index of row {row}", name)
    # The rest (DIA, DOK) is read and converted by Python code that checks its bounds.


def _check_compressed(X: Any, name: str) -> None:
    """Check pointers first: only then is it known which indices count."""
    height, width = X.blocksize if X.format == "bsr" else (1, 1)
    n_rows, n_columns = (1, *X.shape)[-2:]
    n_slices, size = (n_columns, n_rows) if X.format == "csc" else (n_rows // height, n_columns // width)
    pointers, indices = X.indptr, X.indices
    if pointers.dtype.kind not in "iu" or indices.dtype.kind not in "iu":
        raise _damaged(name, f"its indptr is of dtype {pointers.dtype} and its indices of {indices.dtype}")
    if pointers.shape != (n_slices + 1,) or pointers[0] != 0:
        raise _damaged(
            name, f"its indptr has shape {pointers.shape} for {n_slices} {_slices(X)}s, and must begin with 0"
        )
    steps = np.diff(pointers)
    if steps.min(initial=0) < 0:
        raise _damaged(name, f"its indptr falls after {_slices(X)} {int(np.argmin(steps))}, and must not")
    if pointers[-1] > min(len(indices), len(X.data)):
        raise _damaged(
            name,
            f"its indptr ends at {int(pointers[-1])}, but there are {len(indices)} indices and {len(X.data)} values",
        )
    _check_range(indices[: pointers[-1]], size, f"{'row' if X.format == 'csc' else 'column'} index", name)


def _check_range(places: Any, size: int, what: str, name: str) -> None:
    if len(places) == 0:
        return
    least, most = int(places.min()), int(places.max())
    if least < 0 or most >= size:
        raise _damaged(name, f"it has the {what} {least if least < 0 else most}; expected 0 to {size - 1}")


def _slices(X: Any) -> str:
    return "column" if X.format == "csc" else "row"


def _damaged(name: str, what: str) -> InputError:
    return InputError(
        f"{name} is a damaged sparse matrix: {what}. Make it again from its entries, e.g. scipy.sparse.coo_array"
    )
