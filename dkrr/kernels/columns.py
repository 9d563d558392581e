"""Kernels of some of the columns: of an array, or of a table with text beside numbers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from dkrr.errors import InputError, InputTypeError
from dkrr.kernels.base import EntryCost, Kernel
from dkrr.kernels.blocks import Block, Fill
from dkrr.kernels.objects import is_objects

DENSE_COLUMNS = 256
"""So many columns cut from sparse rows, such as the numbers of a table beside its text, are made dense."""


@dataclass(frozen=True)
class Columns(Kernel):
    """k₁ of some of the columns: ``Columns(RBF(), [0, 1])``, or of a DataFrame ``Columns(BagOfWords(), "text")``.

    Sums and products of such kernels compare tables: ``Columns(BagOfWords(), "text") + Columns(RBF(), ["a", "b"])``.

    Parameters
    ----------
    base : Kernel
        k₁.
    columns : int, str, or sequence of them, optional
        Numbers of the columns of an array, or names of those of a DataFrame; one name alone hands the column over as
        it is (documents), several a table of numbers. None: all of X, as it is.
    start, stop : int, optional
        Where the columns lie once the rows are encoded; `fitted` sets them.

    Examples
    --------
    >>> import numpy as np
    >>> from dkrr.kernels import RBF, Columns, Linear
    >>> kernel = Columns(RBF(1.0), [0, 1]) + Columns(Linear(), 2)
    >>> kernel(np.array([[0.0, 0.0, 2.0]]), np.array([[0.0, 0.0, 3.0]]))
    array([[7.]])
    """

    tag: ClassVar[str] = "columns"

    base: Kernel
    columns: Any = None
    start: int | None = None
    stop: int | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.base, Kernel) or self.base.is_precomputed:
            raise InputTypeError(f"{self.base!r} is no kernel of columns; expected a dkrr.kernels.Kernel of rows")
        columns = self.columns
        if isinstance(columns, Sequence | np.ndarray) and not isinstance(columns, str):
            columns = tuple(c.item() if isinstance(c, np.generic) else c for c in columns)
            object.__setattr__(self, "columns", columns)
        each = columns if isinstance(columns, tuple) else () if columns is None else (columns,)
        kinds = {type(c) for c in each}
        if kinds - {int, str} or len(kinds) > 1 or columns == ():
            raise InputTypeError(f"columns={self.columns!r} must be numbers of columns, or names of them, at least one")
        if int in kinds and min(each) < 0:
            raise InputError(f"columns={self.columns!r} must be counted from 0")

    @property
    def _is_named(self) -> bool:
        first = self.columns[0] if isinstance(self.columns, tuple) else self.columns
        return first is None or isinstance(first, str)

    def fitted(self, X: Any) -> Kernel:
        return fitted_parts(self, X)

    def encode(self, X: Any) -> Any:
        return encode_parts(self, X)

    def selected(self, X: Any) -> Any:
        """Return the part of a table that the base takes."""
        if self.columns is None:
            return X
        names = self.columns if isinstance(self.columns, tuple) else (self.columns,)
        missing = [name for name in names if name not in X.columns]
        if missing:
            raise InputError(f"X has no column {missing[0]!r}; it has {', '.join(map(repr, list(X.columns)[:20]))}")
        if len(names) == 1 and encodes(self.base):
            column = X[names[0]]
            if getattr(column.dtype, "kind", "O") not in "biuf":
                return column
            if not hasattr(self.base, "takes_objects"):
                raise InputTypeError(f"column {names[0]!r} holds numbers, which {self.base!r} does not take")
        return as_numbers(X[list(names)], f"columns {list(names)}")

    def numbers(self, n_features: int) -> slice | list[int]:
        """Return which columns of the numeric rows the base takes."""
        if self.start is not None:
            if self.stop is None or self.stop > n_features:
                raise InputError(f"X has {n_features} columns; {self!r} takes those from {self.start} to {self.stop}")
            return slice(self.start, self.stop)
        if self._is_named:
            if self.columns is None:
                return slice(0, n_features)
            raise InputError(f"columns={self.columns!r} are names; give a DataFrame with them, or numbers of columns")
        index = list(self.columns) if isinstance(self.columns, tuple) else [self.columns]
        if max(index) >= n_features:
            raise InputError(f"columns={self.columns!r}: X has {n_features} columns, counted from 0")
        if index == list(range(index[0], index[0] + len(index))):
            return slice(index[0], index[-1] + 1)
        return index

    def width(self, n_features: int) -> int:
        """Return how many columns the base takes."""
        numbers = self.numbers(n_features)
        return len(numbers) if isinstance(numbers, list) else numbers.stop - numbers.start

    def _cut(self, X: Block) -> Block:
        part: Block = X[:, self.numbers(X.shape[1])]
        if isinstance(part, np.ndarray):
            return np.ascontiguousarray(part)
        return part.toarray() if part.shape[1] <= DENSE_COLUMNS else part

    def resolved(self, n_features: int) -> Kernel:
        """Return the kernel with its part resolved for as many columns as that gets."""
        base = self.base.resolved(self.width(n_features))
        return self if base is self.base else replace(self, base=base)

    def entry_cost(self, n_features: int) -> EntryCost:
        """Return the cost of one entry: that of the part."""
        return self.base.entry_cost(self.width(n_features))

    def _dense_workspace_bytes(self, n_rows: int, n_columns: int, n_features: int) -> int:
        """Return the memory of the part, and of the columns that are cut out."""
        width = self.width(n_features)
        return self.base._dense_workspace_bytes(n_rows, n_columns, width) + 8 * (n_rows + n_columns) * min(
            width, 10_000
        )

    def _buffers(self) -> int:
        return self.base._buffers()

    @property
    def has_unit_diagonal(self) -> bool:
        return self.base.has_unit_diagonal

    @property
    def row_degree(self) -> float | None:
        return self.base.row_degree

    def _filler(self, X: Block, Y: Block, dtype: np.dtype[Any]) -> Fill:
        left = self._cut(X)
        return self.base._filler(left, left if Y is X else self._cut(Y), dtype)

    def _diagonal(self, X: Block) -> npt.NDArray[np.float64]:
        return self.base._diagonal(self._cut(X))

    def to_dict(self) -> dict[str, Any]:
        description = super().to_dict()
        description["columns"] = list(self.columns) if isinstance(self.columns, tuple) else self.columns
        return description


def encodes(kernel: Kernel) -> bool:
    """Whether a kernel takes anything but rows of numbers."""
    if isinstance(kernel, Columns):
        return kernel._is_named
    parts = _parts(kernel)
    return any(encodes(part) for part in parts) if parts else type(kernel).encode is not Kernel.encode


def leaves(kernel: Kernel) -> Iterator[Kernel]:
    """Parts of sums, products and the like that take rows themselves, from left to right."""
    parts = _parts(kernel)
    if not parts or isinstance(kernel, Columns):
        yield kernel
    for part in parts if not isinstance(kernel, Columns) else ():
        yield from leaves(part)


def _parts(kernel: Kernel) -> list[Kernel]:
    return [value for name in ("base", "left", "right") if isinstance(value := getattr(kernel, name, None), Kernel)]


def with_leaves(kernel: Kernel, new: Iterator[Kernel]) -> Kernel:
    """Return the same with other leaves, from left to right."""
    if isinstance(kernel, Columns) or not _parts(kernel):
        return next(new)
    changed = {
        name: with_leaves(value, new)
        for name in ("base", "left", "right")
        if isinstance(value := getattr(kernel, name, None), Kernel)
    }
    return replace(kernel, **changed)  # type: ignore[type-var]


def fitted_parts(kernel: Kernel, X: Any) -> Kernel:
    """Fit every leaf to its part of the training data, and give it its place in the encoded rows."""
    if not _needs_encoding(kernel, X):
        return kernel
    position, fitted = 0, list[Kernel]()
    for leaf in leaves(kernel):
        columns = leaf if isinstance(leaf, Columns) else Columns(leaf)
        if columns.columns is not None and not hasattr(X, "columns"):
            raise InputTypeError(f"columns={columns.columns!r} are of a DataFrame; X is {type(X).__qualname__}")
        part = columns.selected(X)
        base = columns.base.fitted(part)
        width = int(_block(base, part[:1]).shape[1])
        fitted.append(replace(columns, base=base, start=position, stop=position + width))
        position += width
    return with_leaves(kernel, iter(fitted))


def encode_parts(kernel: Kernel, X: Any) -> Any:
    """Encode every leaf's part of the data, side by side."""
    if not _needs_encoding(kernel, X):
        return X
    blocks = []
    for leaf in leaves(kernel):
        if not isinstance(leaf, Columns) or leaf.start is None:
            raise InputError(
                "a kernel of text or graphs beside others must be fitted first: kernel.fitted(training data)"
            )
        blocks.append(_block(leaf.base, leaf.selected(X)))
    if all(isinstance(block, np.ndarray) for block in blocks):
        return np.hstack(blocks)
    return sp.csr_array(sp.hstack([sp.csr_array(block) for block in blocks], format="csr"))


def _needs_encoding(kernel: Kernel, X: Any) -> bool:
    """Whether some leaf takes its part of these data as anything but numbers, or by name."""
    if not encodes(kernel) or is_numeric(X):
        return False
    parts = list(leaves(kernel))
    if any(isinstance(leaf, Columns) and leaf.columns is not None and leaf._is_named for leaf in parts):
        return True
    bases = [leaf.base if isinstance(leaf, Columns) else leaf for leaf in parts]
    # A function takes numbers and objects; text and graphs may come in anything that is no table of numbers.
    if all(hasattr(base, "takes_objects") or not encodes(base) for base in bases):
        return any(getattr(base, "takes_objects", False) for base in bases) or is_objects(X)
    return not hasattr(X, "columns") or is_objects(X)


def _block(kernel: Kernel, part: Any) -> Any:
    """Rows of numbers for a leaf's part of the data."""
    block = kernel.encode(part)
    if hasattr(block, "columns"):
        return as_numbers(block, "X")
    if len(getattr(block, "shape", ())) != 2 or block.dtype.kind not in "biuf":
        raise InputTypeError(f"{kernel!r} takes rows of numbers; its part of X is {type(part).__qualname__}")
    return block


def as_numbers(table: Any, name: str) -> npt.NDArray[np.float64]:
    """Return the numbers of a table."""
    try:
        return np.asarray(table.to_numpy(np.float64))
    except (TypeError, ValueError) as error:
        raise InputTypeError(f"{name} hold no numbers ({error}); give them a kernel of text") from error


def is_numeric(X: Any) -> bool:
    """Whether data are rows of numbers already: an array, sparse or lazy, or a place where one lies."""
    if isinstance(X, list | tuple):
        return False
    dtype = getattr(X, "dtype", None)
    if dtype is not None:
        return getattr(dtype, "kind", "O") in "biuf" and len(getattr(X, "shape", ())) == 2
    return not hasattr(X, "columns")  # paths, rows; not tables
