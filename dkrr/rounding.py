"""Numbers that float64, in which everything is computed, does not hold: refused before they are rounded."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from dkrr.checks import MAX_WHOLE
from dkrr.errors import InputError

WHOLE_TYPES = (int, np.integer)


def check_exact(block: Any, name: str, first_row: int = 0, names: Sequence[Any] | None = None) -> None:
    """Refuse whole numbers beyond 2**53, and digits of long doubles, in a vector, a matrix or CSR rows.

    Types of which float64 holds all values cost nothing.

    Parameters
    ----------
    block : ndarray or CSR array
        Of objects only Python's whole numbers are looked at.
    name : str
        What it is called in messages.
    first_row : int
        Number of the first row.
    names : sequence, optional
        Names of the columns.

    Raises
    ------
    InputError
        Naming the first such value, its row and its column.
    """
    values = block.data if sp.issparse(block) else block
    is_rounded = _rounded(values)
    if is_rounded is None or not is_rounded.any():
        return
    at = int(np.argmax(is_rounded))
    (row, column), value = place_of_value(block, at), values.flat[at]
    where = "" if block.ndim < 2 else f"column {column}, " if names is None else f"column {names[column]!r}, "
    kind, expected = "whole number", "at most 2**53: subtract an offset, leave it out, or round it"
    if not isinstance(value, WHOLE_TYPES):
        kind, expected = "number", "one that it holds: round it"
    raise InputError(
        f"{name} has the {kind} {value} in {where}row {first_row + row} (counted from 0), which float64 does not hold "
        f"exactly; expected {expected} beforehand (astype(float)) where that does no harm"
    )


def place_of_value(block: Any, at: int) -> tuple[int, int]:
    """Row and column of a value of an array, or a stored entry of CSR rows."""
    if sp.issparse(block):
        return int(np.searchsorted(block.indptr, at, side="right")) - 1, int(block.indices[at])
    row, column = divmod(at, block.shape[1] if block.ndim == 2 else 1)
    return row, column


def _rounded(values: NDArray[Any]) -> NDArray[np.bool_] | None:
    """Mask of the values that float64 does not hold; None if it certainly holds all."""
    kind, size = values.dtype.kind, values.dtype.itemsize
    if kind == "O":
        is_large = (isinstance(value, WHOLE_TYPES) and abs(int(value)) > MAX_WHOLE for value in values.flat)
        return np.fromiter(is_large, bool, values.size)
    if kind == "f" and size > 8:
        with np.errstate(over="ignore"):
            return np.asarray((values != values.astype(np.float64)) & np.isfinite(values))
    if kind not in "iu" or size < 8 or values.size == 0:
        return None
    if int(values.max()) <= MAX_WHOLE and int(values.min()) >= -MAX_WHOLE:
        return None
    return (values > MAX_WHOLE) | (values < -MAX_WHOLE)


def check_exact_columns(table: Any, name: str) -> None:
    """Refuse columns of a DataFrame or a Series whose values float64 does not hold, before NumPy converts them."""
    for k, dtype in enumerate([table.dtype] if table.ndim == 1 else table.dtypes):
        kind = getattr(dtype, "kind", "f")
        if kind not in "iuO":
            continue  # before the column is made, of which there may be many thousands
        column = table if table.ndim == 1 else table.iloc[:, k]
        is_numpy = isinstance(dtype, np.dtype) or kind == "O"
        values = column.to_numpy() if is_numpy else column.to_numpy(f"{kind}{dtype.itemsize}", na_value=0)
        check_exact(values if table.ndim == 1 else values[:, np.newaxis], name, names=[column.name])


def exact_array(values: Any, name: str) -> NDArray[Any]:
    """Ndarray of anything that NumPy makes one of, whose whole numbers it has not rounded on the way.

    A list of large whole numbers and one fraction, or a table with a column of each, would become float64.

    Raises
    ------
    InputError
        If it would be rounded.
    TypeError, ValueError, RecursionError
        If NumPy cannot make an array of it.
    """
    if hasattr(values, "iloc"):
        if values.ndim == 2 and values.shape[1] > 1:
            check_exact_columns(values, name)
        return np.asarray(values)
    array = np.asarray(values)
    if isinstance(values, list | tuple) and array.dtype.kind == "f" and (np.abs(array) >= MAX_WHOLE).any():
        check_exact(np.asarray(values, object), name)
    return array


def exact_values(values: Any, name: str) -> Any:
    """Values in memory, for scikit-learn to make float64 of: a list of numbers as an array, anything else unchanged.

    Raises
    ------
    InputError
        If there are numbers that float64 does not hold.
    """
    if hasattr(values, "iloc"):
        check_exact_columns(values, name)
    elif sp.issparse(values):
        if values.dtype.kind in "iuf" and values.dtype.itemsize >= 8 and values.dtype != np.float64:
            check_exact(sp.csr_array(values), name)
    elif isinstance(values, list | tuple | np.ndarray):
        try:
            array = exact_array(values, name)
        except InputError:
            raise
        except (TypeError, ValueError, RecursionError):
            return values  # scikit-learn says what is wrong with it
        check_exact(array, name)
        return array if array.dtype.kind in "biuf" else values
    return values
