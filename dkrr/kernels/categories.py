"""A kernel for categories: text, numbers or flags that are equal or not."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import isfinite
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
from scipy.spatial.distance import cdist

from dkrr.checks import not_negative, shown
from dkrr.errors import InputError, InputTypeError
from dkrr.kernels.base import Kernel
from dkrr.kernels.blocks import Block, Fill, FloatArray
from dkrr.kernels.custom import is_objects
from dkrr.text import plural

UNKNOWN = -1.0
"""Code of a category that the training rows do not have."""

Category = str | float | bool


@dataclass(frozen=True, repr=False)
class Categories(Kernel):
    """k(x, z) = wᵐ for m columns in which x and z differ; 1 if they are equal in all.

    For one column it is the Dirac kernel for w = 0, else one that is 1 for equal categories and w for others; w per
    column makes it a product of those, the diffusion kernel on categories. Products give columns their own weights:
    ``Columns(Categories(0.1), "origin") * Columns(Categories(0.5), "weekday") * Columns(RBF(), ["distance"])``.

    Rows are tables, lists or arrays of text, whole or real numbers and flags, in which no value is missing; or rows of
    numbers, of which equal ones are the same category. A category of new rows that no training row has differs from
    every other one, in any row.

    Parameters
    ----------
    weight : float, default=0.0
        w, 0 ≤ w < 1.
    categories : sequence of sequences, optional
        Categories of each column; `fitted` sets it for everything but rows of numbers.

    See Also
    --------
    dkrr.kernels.Columns : A kernel of some of the columns.

    References
    ----------
    Kondor, Lafferty (2002), Diffusion kernels on graphs and other discrete input spaces, ICML, section 4.3: w is
    (1 − e^(−βc)) / (1 + (c − 1) e^(−βc)) for c categories and a bandwidth β.

    Examples
    --------
    >>> from dkrr.kernels import Categories
    >>> colours = ["red", "blue", "red"]
    >>> Categories(0.1).fitted(colours)(colours)
    array([[1. , 0.1, 1. ],
           [0.1, 1. , 0.1],
           [1. , 0.1, 1. ]])
    """

    tag: ClassVar[str] = "categories"
    entry_seconds: ClassVar[float] = 2.4e-9
    column_seconds: ClassVar[float] = 0.3e-9
    takes_tables: ClassVar[bool] = True
    """Whether `Columns` gives several columns as a table, whatever they hold; here it does."""
    _has_unit_diagonal: ClassVar[bool] = True
    _row_copies: ClassVar[int] = 2
    _strip_buffers: ClassVar[int] = 3

    weight: float = 0.0
    categories: tuple[tuple[Category, ...], ...] | None = None

    def __post_init__(self) -> None:
        weight = not_negative(self.weight, "weight")
        if weight >= 1:
            raise InputError(f"weight is {self.weight!r}; expected a number of at least 0 and less than 1")
        object.__setattr__(self, "weight", weight)
        if self.categories is not None:
            object.__setattr__(self, "categories", _checked_categories(self.categories))

    def __repr__(self) -> str:
        # Messages would be unreadable with thousands of names.
        if self.categories is None:
            return f"{type(self).__qualname__}(weight={self.weight!r})"
        sizes = ", ".join(str(len(names)) for names in self.categories)
        return f"{type(self).__qualname__}(weight={self.weight!r}, categories=<{sizes}>)"

    def fitted(self, X: Any) -> Kernel:
        """Kernel with the categories of the training rows; those that it already has are kept."""
        if self.categories is not None or (columns := _columns(X, are_numbers=False)) is None:
            return self
        return replace(self, categories=tuple(tuple(dict.fromkeys(values)) for values in columns.values()))

    def encode(self, X: Any) -> Any:
        """Numbers of the categories, of shape (n_rows, n_columns); rows of numbers are returned unchanged."""
        columns = _columns(X, are_numbers=self.categories is not None)
        if columns is None:
            return X
        if self.categories is None:
            raise InputError(
                "the kernel has no categories yet; expected a fitted one: use kernel.fitted(training rows)"
            )
        if len(columns) != len(self.categories):
            raise InputError(
                f"X has {plural(len(columns), 'column')} of categories; expected {len(self.categories)}, as in the "
                "training rows"
            )
        codes = np.empty((len(next(iter(columns.values()))), len(columns)))
        for j, (names, values) in enumerate(zip(self.categories, columns.values(), strict=True)):
            number = {name: float(k) for k, name in enumerate(names)}
            codes[:, j] = [number.get(value, UNKNOWN) for value in values]
        return codes

    def _block_writer(self, X: Block, Y: Block, dtype: np.dtype[Any]) -> Fill:
        left = self._comparable(X)
        right = left if Y is X else self._comparable(Y)
        d = left.shape[1]
        powers = (self.weight ** np.arange(d + 1.0)).astype(dtype)

        def fill(rows: slice, columns: slice, out: FloatArray) -> None:
            differing = cdist(left[rows], right[columns], "hamming")  # as a fraction of the columns
            differing *= d
            np.rint(differing, out=differing)
            np.take(powers, differing.astype(np.intp), out=out, mode="clip")

        return fill

    def _diagonal(self, X: Block) -> npt.NDArray[np.float64]:
        return np.ones(X.shape[0])

    def _comparable(self, X: Block) -> npt.NDArray[np.float64]:
        """Rows in which unknown categories are NaN, which equals nothing."""
        rows = np.ascontiguousarray(X, np.float64)
        if self.categories is None or not (unknown := rows == UNKNOWN).any():
            return rows
        return np.where(unknown, np.nan, rows)


def _checked_categories(categories: Any) -> tuple[tuple[Category, ...], ...]:
    expected = "a sequence of different categories (text, numbers or flags) for each column"
    if isinstance(categories, str) or not isinstance(categories, Sequence) or not categories:
        raise InputTypeError(f"categories is {shown(categories)}; expected {expected}")
    columns = []
    for column in categories:
        if isinstance(column, str) or not isinstance(column, Sequence):
            raise InputTypeError(f"categories has {shown(column)} for a column; expected {expected}")
        for value in column:
            _check_category(value, "categories", "")
        if len(set(column)) < len(column):
            raise InputError(f"categories has {shown(column)} for a column; expected {expected}")
        columns.append(tuple(column))
    return tuple(columns)


def _columns(X: Any, *, are_numbers: bool) -> dict[Any, list[Any]] | None:
    """Checked values of each column by its name; None for rows of numbers and places of such.

    With `are_numbers` tables of numbers are categories too.
    """
    if isinstance(X, str | bytes) or not _holds_categories(X, are_numbers=are_numbers):
        return None
    if hasattr(X, "columns"):
        columns = {name: X[name].to_list() for name in X.columns}
    else:
        items = X.to_list() if hasattr(X, "to_list") else X.tolist() if hasattr(X, "tolist") else list(X)
        are_rows = bool(items) and all(isinstance(item, list | tuple) for item in items)
        if not are_rows:
            columns = {0: items}
        elif len({len(item) for item in items}) == 1:
            columns = {j: [item[j] for item in items] for j in range(len(items[0]))}
        else:
            raise InputError("the rows of X have different lengths; expected a category for every column in each")
    for name, values in columns.items():
        for row, value in enumerate(values):
            _check_category(value, f"column {name!r} of X", f" in row {row} (counted from 0)")
    return columns


def _holds_categories(X: Any, *, are_numbers: bool) -> bool:
    if hasattr(X, "columns") and hasattr(X, "dtypes") and not hasattr(X, "compute"):
        return are_numbers or is_objects(X)
    return is_objects(X)


def _check_category(value: Any, where: str, row: str) -> None:
    if isinstance(value, str | bool | int) or (isinstance(value, float) and isfinite(value)):
        return
    if value is None or type(value).__name__ in ("NAType", "NaTType") or (isinstance(value, float) and value != value):
        raise InputError(
            f"{where} has a missing value{row}; expected a category in every row: leave the row out, or give it "
            f'its own category, fillna("missing")'
        )
    raise InputTypeError(
        f"{where} has {shown(value)} ({type(value).__qualname__}){row}; expected text, finite numbers or flags: "
        f"convert it, astype(str)"
    )
