"""Kernels made of other kernels, and kernels of some columns of an array or table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from dkrr.checks import MAX_WHOLE, is_real, n_dimensions, shown, whole
from dkrr.errors import InputError, InputTypeError
from dkrr.kernels.base import Kernel
from dkrr.kernels.blocks import STRIP_ENTRIES, Block, BlockWriters, Fill
from dkrr.kernels.custom import CallableKernel, is_objects
from dkrr.rounding import check_exact_columns
from dkrr.text import near_columns, plural

DENSE_COLUMNS = 256
"""Maximum number of columns, cut from sparse rows, that are made dense: such as numbers of a table beside its text."""


class Compound(Kernel):
    """A kernel made of other kernels. Subclasses state what differs from doing the work of all parts in turn."""

    _part_names: ClassVar[tuple[str, ...]] = ("base",)
    """Fields that hold the parts."""
    _takes_csr: ClassVar[bool] = True  # the parts make them dense, or not

    def __post_init__(self) -> None:
        for name in self._part_names:
            part = getattr(self, name)
            if not isinstance(part, Kernel):
                raise InputTypeError(
                    f"{name} is {shown(part)}; expected a dkrr.kernels.Kernel: wrap a function in CallableKernel"
                )
            if part.is_precomputed:
                raise InputError(
                    f"{name} is a precomputed kernel, which cannot be part of another; expected a kernel of rows: "
                    "its X is already a Gram matrix, so combine the matrices instead"
                )

    @property
    def parts(self) -> tuple[Kernel, ...]:
        """Kernels that this one is made of."""
        return tuple(getattr(self, name) for name in self._part_names)

    def with_parts(self, parts: Sequence[Kernel]) -> Kernel:
        """Kernel of the same kind with other parts; the kernel itself if the parts are the same.

        Parameters
        ----------
        parts : sequence of Kernel
            Parts in the order of `parts`.

        Returns
        -------
        Kernel
            Kernel of the same kind.
        """
        if all(new is old for new, old in zip(parts, self.parts, strict=True)):
            return self
        return replace(self, **dict(zip(self._part_names, parts, strict=True)))  # type: ignore[type-var]

    @property
    def functions(self) -> tuple[Any, ...]:
        return tuple(function for part in self.parts for function in part.functions)

    @property
    def encodes(self) -> bool:
        return any(part.encodes for part in self.parts)

    @property
    def learns_values(self) -> bool:
        return any(part.learns_values for part in self.parts)

    def width(self, n_features: int) -> int:
        """Number of columns that the parts take.

        Parameters
        ----------
        n_features : int
            Number of columns of X.

        Returns
        -------
        int
            Number of columns.
        """
        return n_features

    def fitted(self, X: Any) -> Kernel:
        return fitted_leaves(self, X)

    def encode(self, X: Any) -> Any:
        return encoded_leaves(self, X)

    def resolved(self, n_features: int) -> Kernel:
        width = self.width(n_features)
        return self.with_parts([part.resolved(width) for part in self.parts])

    def nominal_seconds(self, n_features: int) -> float:
        width = self.width(n_features)
        return sum(part.nominal_seconds(width) for part in self.parts)

    @property
    def sparse_parts(self) -> int:
        each = [part.sparse_parts for part in self.parts]
        return sum(each) if all(each) else 0

    def _dense_workspace_bytes(self, n_rows: int, n_columns: int, n_features: int) -> int:
        width = self.width(n_features)
        parts = sum(part._dense_workspace_bytes(n_rows, n_columns, width) for part in self.parts)
        return parts + self._strip_buffers * 8 * STRIP_ENTRIES

    def _made_dense_bytes(self, n_rows: int, n_features: int) -> int:
        width = self.width(n_features)
        return sum(part._made_dense_bytes(n_rows, width) for part in self.parts)

    def kept_bytes(self, n_columns: int, n_features: int) -> int:
        width = self.width(n_features)
        return sum(part.kept_bytes(n_columns, width) for part in self.parts)

    def _buffers(self) -> int:
        return sum(part._buffers() for part in self.parts) + self._strip_buffers

    def _csr_strips(self) -> int:
        return max(part._csr_strips() for part in self.parts)


@dataclass(frozen=True)
class Columns(Compound):
    """k₁ of some of the columns: ``Columns(RBF(), [0, 1])``, or of a DataFrame ``Columns(BagOfWords(), "text")``.

    Sums and products of such kernels compare tables: ``Columns(BagOfWords(), "text") + Columns(RBF(), ["a", "b"])``.

    Parameters
    ----------
    base : Kernel
        k₁.
    columns : int, str, or sequence of them, optional
        Numbers of the columns of an array, or names of those of a DataFrame; one name alone passes the column
        unchanged (documents), several a table of numbers, or of anything to `Categories`. None: all of X, unchanged.
    start, stop : int, optional
        Place of the columns in encoded rows; `fitted` sets them.

    See Also
    --------
    dkrr.kernels.Categories : Equal categories in columns of codes or text.
    dkrr.kernels.weighted_sums : Sums of kernels for a search to choose among.

    Examples
    --------
    >>> import numpy as np
    >>> from dkrr.kernels import RBF, Columns, Linear
    >>> kernel = Columns(RBF(gamma=1.0), [0, 1]) + Columns(Linear(), 2)
    >>> kernel(np.array([[0.0, 0.0, 2.0]]), np.array([[0.0, 0.0, 3.0]]))
    array([[7.]])
    """

    tag: ClassVar[str] = "columns"

    base: Kernel
    columns: Any = None
    start: int | None = None
    stop: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("start", "stop"):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, whole(getattr(self, name), name, 0))
        columns = self.columns
        if isinstance(columns, np.integer) and is_real(columns):
            columns = int(columns)
            object.__setattr__(self, "columns", columns)
        is_list = isinstance(columns, Sequence | np.ndarray) and not isinstance(columns, str | bytes)
        if is_list and n_dimensions(columns) == 1:
            columns = tuple(c.item() if isinstance(c, np.generic) else c for c in columns)
            object.__setattr__(self, "columns", columns)
        kinds = {type(c) for c in self._listed}
        if kinds - {int, str} or len(kinds) > 1 or columns == ():
            expected = "numbers of columns or names of them, at least one"
            raise InputTypeError(f"columns is {shown(columns)}; expected {expected}")
        if int in kinds and not 0 <= min(self._listed) <= max(self._listed) <= MAX_WHOLE:
            raise InputError(f"columns is {shown(columns)}; expected numbers of columns, counted from 0")

    @property
    def _listed(self) -> tuple[Any, ...]:
        """Numbers or names of the columns; none for all of X."""
        if self.columns is None:
            return ()
        return self.columns if isinstance(self.columns, tuple) else (self.columns,)

    @property
    def encodes(self) -> bool:
        return self._is_named

    @property
    def _is_named(self) -> bool:
        return self.columns is None or isinstance(self._listed[0], str)

    def selected(self, X: Any) -> Any:
        """Columns of a table that the base takes.

        Parameters
        ----------
        X : table or DataFrame
            Rows with all columns.

        Returns
        -------
        table, Series, or ndarray
            What the base takes.
        """
        if self.columns is None:
            return X
        names = self._listed
        missing = [name for name in names if name not in X.columns]
        if missing:
            expected = near_columns(str(missing[0]), [str(name) for name in X.columns])
            raise InputError(f"X has no column {missing[0]!r}; expected {expected}")
        if takes_tables(self.base):
            return X[list(names)]
        if len(names) == 1 and self.base.encodes:
            column = X[names[0]]
            if getattr(column.dtype, "kind", "O") not in "biuf":
                return column
            if not hasattr(self.base, "takes_objects"):
                raise InputTypeError(f"column {names[0]!r} holds numbers, which {self.base!r} does not take")
        return as_numbers(X[list(names)], f"columns {list(names)}")

    def numbers(self, n_features: int) -> slice | list[int]:
        """Numbers of the columns of encoded rows that the base takes.

        Parameters
        ----------
        n_features : int
            Number of columns of X.

        Returns
        -------
        slice or list of int
            Index of the columns.
        """
        if self.start is not None:
            if self.stop is None or self.stop > n_features:
                raise InputError(
                    f"X has {plural(n_features, 'column')}; {self!r} takes those from {self.start} to {self.stop}"
                )
            return slice(self.start, self.stop)
        if self.columns is None:
            return slice(0, n_features)
        if self._is_named:
            raise InputError(
                f"columns is {self.columns!r} and X is an array; expected a DataFrame with these names: give one, "
                "or numbers of columns"
            )
        index = list(self._listed)
        if max(index) >= n_features:
            raise InputError(f"columns is {self.columns!r}, but X has {plural(n_features, 'column')}, counted from 0")
        if index == list(range(index[0], index[0] + len(index))):
            return slice(index[0], index[-1] + 1)
        return index

    def width(self, n_features: int) -> int:
        numbers = self.numbers(n_features)
        return len(numbers) if isinstance(numbers, list) else numbers.stop - numbers.start

    @property
    def sparse_parts(self) -> int:
        """0: columns cut out of CSR rows may be made dense."""
        return 0

    def _dense_workspace_bytes(self, n_rows: int, n_columns: int, n_features: int) -> int:
        cut = 8 * (n_rows + n_columns) * min(self.width(n_features), 10_000)
        return super()._dense_workspace_bytes(n_rows, n_columns, n_features) + cut

    @property
    def has_unit_diagonal(self) -> bool:
        return self.base.has_unit_diagonal

    @property
    def row_degree(self) -> float | None:
        return self.base.row_degree

    def cut(self, X: Block) -> Block:
        """Columns of encoded rows that the base takes.

        Parameters
        ----------
        X : ndarray or CSR, shape (n_rows, n_features)
            Rows.

        Returns
        -------
        ndarray or CSR
            Columns of these rows; dense where they are few.
        """
        part: Block = X[:, self.numbers(X.shape[1])]
        if isinstance(part, np.ndarray):
            return np.ascontiguousarray(part)
        return part.toarray() if part.shape[1] <= DENSE_COLUMNS else part

    def kept_bytes(self, n_columns: int, n_features: int) -> int:
        return super().kept_bytes(n_columns, n_features) + 8 * n_columns * self.width(n_features)

    def _block_writer(self, X: Block, Y: Block, dtype: np.dtype[Any]) -> Fill:
        return self._block_writers(Y, dtype)(X)

    def _block_writers(self, Y: Block, dtype: np.dtype[Any]) -> BlockWriters:
        right = self.cut(Y)
        base = self.base.block_writers(right, dtype)
        return lambda X: base(right if X is Y else self.cut(X))

    def _diagonal(self, X: Block) -> npt.NDArray[np.float64]:
        return self.base.diagonal_of(self.cut(X))


def learns(kernel: Kernel) -> bool:
    """Whether a kernel is made from its training rows, as one of documents is from their words."""
    return kernel.encodes and not isinstance(kernel, CallableKernel)


def takes_tables(kernel: Kernel) -> bool:
    """Whether a kernel takes tables of anything; it is then given several columns, or one, as a table."""
    parts = [leaf.base if isinstance(leaf, Columns) and leaf.columns is None else leaf for leaf in leaves(kernel)]
    return all(getattr(part, "takes_tables", False) for part in parts)


def leaves(kernel: Kernel) -> Iterator[Kernel]:
    """Parts of sums, products and the like that take rows themselves, from left to right."""
    if isinstance(kernel, Compound) and not isinstance(kernel, Columns):
        for part in kernel.parts:
            yield from leaves(part)
    else:
        yield kernel


def with_leaves(kernel: Kernel, new: Iterator[Kernel]) -> Kernel:
    """Kernel with its leaves replaced, from left to right."""
    if isinstance(kernel, Compound) and not isinstance(kernel, Columns):
        return kernel.with_parts([with_leaves(part, new) for part in kernel.parts])
    return next(new)


def fitted_leaves(kernel: Kernel, X: Any) -> Kernel:
    """The kernel with every leaf fitted to its columns of the training data, and given its place in encoded rows."""
    if not _needs_encoding(kernel, X):
        return kernel
    position, fitted = 0, list[Kernel]()
    for leaf in leaves(kernel):
        columns = leaf if isinstance(leaf, Columns) else Columns(leaf)
        if columns.columns is not None and not hasattr(X, "columns"):
            raise InputTypeError(
                f"X is a {type(X).__qualname__}; expected a DataFrame with the columns {columns.columns!r}"
            )
        part = columns.selected(X)
        base = columns.base.fitted(part)
        width = int(_block(base, part[:1]).shape[1])
        fitted.append(replace(columns, base=base, start=position, stop=position + width))
        position += width
    return with_leaves(kernel, iter(fitted))


def encoded_leaves(kernel: Kernel, X: Any) -> Any:
    """Rows of numbers: those of every leaf, side by side."""
    if not _needs_encoding(kernel, X):
        return X
    blocks = []
    for leaf in leaves(kernel):
        if not isinstance(leaf, Columns) or leaf.start is None:
            raise InputError(
                f"{leaf!r} is not fitted; expected a kernel that was fitted as a whole, since it is part of another: "
                "use kernel.fitted(training data)"
            )
        blocks.append(_block(leaf.base, leaf.selected(X)))
    if all(isinstance(block, np.ndarray) for block in blocks):
        return np.hstack(blocks)
    return sp.csr_array(sp.hstack([sp.csr_array(block) for block in blocks], format="csr"))


def _needs_encoding(kernel: Kernel, X: Any) -> bool:
    """Whether some leaf takes its columns of these data as anything but numbers, or by name."""
    if not kernel.encodes or is_numeric(X):
        return False
    parts = list(leaves(kernel))
    if any(isinstance(leaf, Columns) and leaf.columns is not None and leaf._is_named for leaf in parts):
        return True
    bases = [leaf.base if isinstance(leaf, Columns) else leaf for leaf in parts]
    # A function takes numbers and objects; text and graphs come in anything but a table of numbers.
    if all(hasattr(base, "takes_objects") or not base.encodes for base in bases):
        return any(getattr(base, "takes_objects", False) for base in bases) or is_objects(X)
    return not hasattr(X, "columns") or is_objects(X)


def _block(kernel: Kernel, part: Any) -> Any:
    """Rows of numbers for a leaf's columns of the data."""
    block = kernel.encode(part)
    if hasattr(block, "columns"):
        return as_numbers(block, "X")
    if len(getattr(block, "shape", ())) != 2 or block.dtype.kind not in "biuf":
        raise InputTypeError(f"{kernel!r} takes rows of numbers; its part of X is a {type(part).__qualname__}")
    return block


def as_numbers(table: Any, name: str) -> npt.NDArray[np.float64]:
    """Numbers of a table."""
    check_exact_columns(table, name)
    try:
        return np.asarray(table.to_numpy(np.float64))
    except (TypeError, ValueError) as error:
        raise InputTypeError(
            f"{name} do not hold numbers ({error}); expected numbers: within Columns use Categories or a kernel of text"
        ) from error


def is_numeric(X: Any) -> bool:
    """Whether data are rows of numbers already: an array, sparse or lazy, or a place where one lies."""
    if isinstance(X, list | tuple):
        return False
    dtype = getattr(X, "dtype", None)
    if dtype is not None:
        return getattr(dtype, "kind", "O") in "biuf" and len(getattr(X, "shape", ())) == 2
    return not hasattr(X, "columns")  # paths, rows; not tables
