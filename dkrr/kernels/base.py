"""The kernel as a value: k(x, z) for blocks of rows, its cost, and its description.

The nominal seconds of an entry are those of one core of an AMD EPYC with numpy 2.4 and scipy 1.17, right within a
factor of about two where rows are dense. A plan measures a kernel where they could decide.

Parameters of immutable values by scikit-learn's names for nested ones: ``left__gamma`` is the gamma of ``left``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass, replace
from functools import cache
from inspect import Parameter, signature
from numbers import Real
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from dkrr.checks import MAX_WHOLE, positive, shown, whole
from dkrr.errors import InputError, InputTypeError
from dkrr.kernels.blocks import (
    FLOATS,
    LARGE_STRIP_ENTRIES,
    LARGE_STRIP_ROWS,
    STRIP_COLUMNS,
    STRIP_ENTRIES,
    STRIP_ROWS,
    Block,
    BlockWriters,
    Fill,
    FloatArray,
    as_buffer,
    as_row_pair,
    as_rows,
    check_diagonal,
    is_sparse,
    large_strips,
    large_strips_below,
    mirror_lower,
    strip_memory,
    strips,
)
from dkrr.text import plural

SEPARATOR = "__"


class Parameters(ABC):
    """Base of frozen dataclasses whose fields are parameters; kernels and feature maps derive from it."""

    _translations: ClassVar[Mapping[str, str]] = {}
    """Parameters that scikit-learn's kernel of the same name has instead, in terms of those of this one."""

    def __new__(cls, *args: Any, **named: Any) -> Self:
        # Kernels of numbers take their parameters by name alone: RBF(0.5) and Matern(0.5, 1.5) would mean other kernels
        # than in scikit-learn, where the first parameter is a length.
        known, kinds = _parameters(cls) if args or named else ({}, set())
        if args and kinds == {Parameter.KEYWORD_ONLY}:
            raise InputTypeError(
                f"{cls.__name__}({', '.join(map(shown, args))}) gives parameters without their names; expected "
                f"{cls.__name__}({', '.join(f'{name}=...' for name in known)})"
            )
        for name in named:
            if name not in known and Parameter.VAR_KEYWORD not in kinds:
                raise InputTypeError(cls._no_parameter(name, known))
        return super().__new__(cls)

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Parameters by name, as scikit-learn's estimators have them.

        Parameters
        ----------
        deep : bool, default=True
            Whether to return the parameters of parts too: that of the left part of a sum as ``left__gamma``.

        Returns
        -------
        dict
            Values by name.
        """
        own = {name: getattr(self, name) for name in self._parameter_names()}
        if not deep:
            return own
        found: dict[str, Any] = {}
        for name, value in own.items():
            found[name] = value
            if isinstance(value, Parameters):
                found |= {f"{name}{SEPARATOR}{inner}": v for inner, v in value.get_params().items()}
        return found

    def set_params(self, **params: Any) -> Self:
        """New value with other parameters; this one is immutable and does not change.

        (An estimator's `set_params` replaces its kernel by the new value, so ``kernel__gamma`` works in a grid.)

        Parameters
        ----------
        **params
            Values by the names that `get_params` returns.

        Returns
        -------
        Kernel or FeatureMap
            Of the same class.

        Raises
        ------
        InputError
            If there is no such parameter, or it cannot have this value.

        Examples
        --------
        >>> from dkrr.kernels import RBF, Linear
        >>> (RBF(gamma=1.0) + 2.0 * Linear()).set_params(left__gamma=0.1, right__scale=3.0)
        Sum(left=RBF(gamma=0.1), right=Scaled(base=Linear(), scale=3.0))
        """
        known = self.get_params(deep=False)
        changed = known | {name: value for name, value in params.items() if name in known}
        for name, nested in _nested(params).items():
            if name not in known:
                raise InputError(self._no_parameter(name, self.get_params()))
            if not nested:
                continue
            part = changed[name]
            if not isinstance(part, Parameters):
                inner = next(iter(nested))
                raise InputError(
                    f"{name} is {shown(part)}, which has no parameter {inner!r}; expected a kernel or a feature map "
                    f"there: give {name} itself"
                )
            changed[name] = part.set_params(**nested)
        return type(self)(**changed) if params else self

    def __sklearn_clone__(self) -> Self:
        """Return the value itself: it is immutable, so copies may share it."""
        return self

    def _parameter_names(self) -> list[str]:
        """Fields that determine the value; a measured cost, for example, does not."""
        return [field.name for field in fields(self) if field.init and field.compare] if is_dataclass(self) else []

    @abstractmethod
    def to_dict(self) -> dict[str, Any]:
        """Description of JSON's types only, from which the value can be made again."""

    def _described(self) -> dict[str, Any]:
        """Parameters as JSON has them: lists, and descriptions of kernels and maps."""
        return {name: _as_json(getattr(self, name)) for name in self._parameter_names()}

    @classmethod
    def _no_parameter(cls, name: str, known: Iterable[str]) -> str:
        names = ", ".join(map(repr, known)) or "none"
        translation = f", where {cls._translations[name]}" if name in cls._translations else ""
        return f"{cls.__name__} has no parameter {name!r}; expected one of: {names}{translation}"


@cache
def _parameters(cls: type) -> tuple[Mapping[str, Parameter], set[Any]]:
    """Parameters of a class by name, and their kinds."""
    known = signature(cls).parameters
    return known, {one.kind for one in known.values()}


def _as_json(value: Any) -> Any:
    if isinstance(value, Parameters):
        return value.to_dict()
    return list(map(_as_json, value)) if isinstance(value, tuple) else value


def _nested(params: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Parameters of parts by the name of the part; none of it for a name of the value's own."""
    found: dict[str, dict[str, Any]] = {}
    for key, value in params.items():
        name, separator, inner = key.partition(SEPARATOR)
        parts = found.setdefault(name, {})
        if separator:
            parts[inner] = value
    return found


# Index arrays, the one square corner that is mirrored, and interpreter objects: never more than this.
FIXED_WORKSPACE_BYTES = 512 * 1024

# Copies of CSR rows that exist at a time: cut out (or scaled), and transposed (measured: up to 1.9).
CSR_COPIES = 2


class Kernel(Parameters):
    """A symmetric kernel k(x, z), as an immutable value that is called on blocks of rows.

    Subclasses are frozen dataclasses. They write `_block_writer` and `_diagonal`, called with checked rows; strips,
    symmetry, checks, memory and descriptions are common. Kernels add, multiply and scale: ``0.5 * RBF() + Linear()``.

    See Also
    --------
    dkrr.kernels.CallableKernel : A function of two blocks of rows.
    dkrr.features.FeatureMap : Base class of feature maps.

    Examples
    --------
    >>> import numpy as np
    >>> from dkrr.kernels import Linear, RBF
    >>> kernel = 0.5 * RBF(gamma=1.0) + Linear()
    >>> kernel(np.array([[0.0], [2.0]])).shape, kernel.diagonal(np.array([[0.0], [2.0]]))
    ((2, 2), array([0.5, 4.5]))
    """

    tag: ClassVar[str]
    """Name in a description (`to_dict`)."""
    names: ClassVar[tuple[str, ...]] = ()
    """Names of the kernel for ``kernel=`` and ``--kernel``; none: it is given as a value only."""

    entry_seconds: ClassVar[float] = 100e-9
    """Nominal time of an entry besides that of its columns: a guess, so high that plans soon measure the kernel."""
    column_seconds: ClassVar[float] = 4e-11
    """Nominal time of a column of an entry: two operations of a matrix product."""
    is_plain: ClassVar[bool] = False
    """It has no parts, no finite feature map, no linear term and no function of the user: no fit looks for these."""
    is_precomputed: ClassVar[bool] = False
    """Whether X is itself the Gram matrix."""
    _has_unit_diagonal: ClassVar[bool] = False
    _of_columns: ClassVar[str] = ""
    """Name of the parameter that may have a number for each column; empty: none may."""
    _row_copies: ClassVar[int] = 1
    """Copies of dense rows that one call makes."""
    _strip_buffers: ClassVar[int] = 0
    """Buffers as large as a strip."""
    _large_strip_buffers: ClassVar[int | None] = None
    """Number of these buffers that are as large as a large strip in `pieces`; None means all."""
    _kept_copies: ClassVar[int] = 0
    """Copies of the rows of Y that `_block_writers` keeps."""
    _takes_csr: ClassVar[bool] = False
    """Whether `_block_writer` and `_diagonal` take CSR rows as they are; otherwise these are made dense before."""
    _follows_entries: ClassVar[bool] = True
    """Whether time and memory follow the stored entries of CSR rows that are taken as they are, not the columns."""
    _csr_buffers: ClassVar[int] = 3
    """Further strips for CSR rows: a sparse product (a value and an index for each entry), and the same made dense."""

    # numpy scalars then leave ``np.float64(2) * kernel`` to __rmul__ instead of making an object array.
    __array_ufunc__: ClassVar[None] = None

    def __call__(self, X: Block, Y: Block | None = None, *, out: FloatArray | None = None) -> FloatArray:
        """Block of kernel values, written to `out` if given.

        Parameters
        ----------
        X : ndarray or CSR, shape (n_rows, n_features)
            float64 or float32 (other real numbers become float64). Values are not checked to be finite.
        Y : ndarray or CSR, shape (n_columns, n_features), optional
            None means Y = X: the result is then exactly symmetric and its diagonal is `diagonal(X)`.
        out : ndarray, shape (n_rows, n_columns), optional
            float64 or float32 buffer to write to, C-ordered or rows cut from a C-ordered array. Arithmetic
            runs in its precision; without it, in float64.

        Returns
        -------
        ndarray, shape (n_rows, n_columns)
            `out`, or a new float64 array.

        Raises
        ------
        InputError
            If shapes do not fit. `InputTypeError` if a type or dtype cannot be used.
        NotFiniteError
            If some k(x, x) of X alone overflows. With Y an entry that overflows is infinite or NaN.
        """
        left, right = as_row_pair(self.encode(X), None if Y is None or Y is X else self.encode(Y))
        target = as_buffer(out, (left.shape[0], right.shape[0]))
        self.resolved(left.shape[1]).write_block(left, right, target)
        return target

    def to(self, Y: Block) -> KernelTo:
        """Kernel to fixed rows: ``kernel.to(Y)(X)`` is ``kernel(X, Y)``, and computes what follows from Y alone once.

        Parameters
        ----------
        Y : ndarray or CSR, shape (n_columns, n_features)
            Not to be changed afterwards.

        Returns
        -------
        KernelTo
            Function of X, with an optional `out` as the kernel has.
        """
        rows = as_rows(self.encode(Y), "Y")
        return KernelTo(self.resolved(rows.shape[1]), rows)

    def pieces(
        self, X: Block, Y: Block | None = None, *, dtype: npt.DTypeLike = np.float64
    ) -> Iterator[tuple[slice, slice, FloatArray]]:
        """Yield rows, columns and values of strips that stay in cache, for work that uses each before the next.

        A strip of shape (len(rows), len(columns)) is overwritten by the next one; arithmetic is in `dtype`, float64 or
        float32. Without Y only what is on or below the diagonal is yielded; the squares on the diagonal (`rows` equals
        `columns`) are whole and exactly symmetric.

        Parameters
        ----------
        X : ndarray or CSR, shape (n_rows, n_features)
            Rows.
        Y : ndarray or CSR, shape (n_columns, n_features), optional
            None means Y = X.
        dtype : dtype, default=float64
            float64 or float32.

        Yields
        ------
        rows : slice
            Rows of the strip.
        columns : slice
            Columns of the strip.
        values : ndarray, shape (len(rows), len(columns))
            Kernel values, until the next strip is taken.
        """
        left, right = as_row_pair(X, Y)
        shape, symmetric = (left.shape[0], right.shape[0]), right is left
        if 0 in shape:
            return
        kernel = self.resolved(left.shape[1])
        fill = kernel.block_writer(left, right, np.dtype(dtype))
        diagonal = kernel.diagonal(left) if symmetric else None
        # As many bytes of float32 as of float64, unless other buffers are as large as a large strip.
        grows = np.dtype(dtype) == np.float32 and not kernel._buffers() and not is_sparse(left)
        entries = (2 if grows else 1) * LARGE_STRIP_ENTRIES
        cuts = large_strips_below(shape[0], entries) if symmetric else large_strips(*shape, entries)
        with strip_memory(dtype) as memory:
            for rows, columns in cuts:
                strip = memory[: (n := rows.stop - rows.start) * (m := columns.stop - columns.start)].reshape(n, m)
                fill(rows, columns, strip)
                if diagonal is not None and rows == columns:
                    mirror_lower(strip)
                    np.fill_diagonal(strip, diagonal[rows])
                yield rows, columns, strip

    def fitted(self, X: Any) -> Kernel:  # noqa: ARG002
        """Kernel with what it learns from training data X, such as a vocabulary.

        Parameters
        ----------
        X : data of the kind that the kernel takes
            Training rows.

        Returns
        -------
        Kernel
            Itself, if it learns nothing.
        """
        return self

    def encode(self, X: Any) -> Any:
        """Rows of numbers for data of the kind that the kernel takes; rows of numbers are returned unchanged.

        Documents, graphs and the like become CSR rows, which are read in blocks, stored, sent and compared like any
        others; the kernel is then computed from those.

        Parameters
        ----------
        X : data of the kind that the kernel takes
            Documents, graphs, a table, or rows of numbers.

        Returns
        -------
        ndarray or CSR, shape (n_rows, n_features)
            Rows of numbers.
        """
        return X

    def diagonal(self, X: Block) -> npt.NDArray[np.float64]:
        """k(x, x) for each row, without forming a block.

        Parameters
        ----------
        X : ndarray or CSR, shape (n_rows, n_features)
            Rows, or data of the kind that the kernel takes.

        Returns
        -------
        ndarray of float64, shape (n_rows,)
            One value for each row.

        Raises
        ------
        NotFiniteError
            If one overflows; names its row.
        """
        rows = as_rows(self.encode(X))
        kernel = self.resolved(rows.shape[1])
        with np.errstate(over="ignore", invalid="ignore"):
            values = kernel.diagonal_of(rows)
        if not kernel.has_unit_diagonal:  # all 1, or 0
            check_diagonal(values, kernel)
        return values

    def resolved(self, n_features: int) -> Kernel:
        """Kernel with all parameters known: gamma=None becomes 1 / n_features, as in scikit-learn.

        Parameters
        ----------
        n_features : int
            Number of columns of X.

        Returns
        -------
        Kernel
            Itself, if nothing was open.
        """
        if type(n_features) is not int or not 1 <= n_features <= MAX_WHOLE:  # asked often
            n_features = whole(n_features, "n_features", 1)
        of_columns = getattr(self, self._of_columns, None)
        if isinstance(of_columns, tuple) and len(of_columns) != n_features:
            raise InputError(
                f"{self._of_columns} has {plural(len(of_columns), 'number')}, and the rows have "
                f"{plural(n_features, 'column')}; expected one number for each column, or a single one for all"
            )
        if getattr(self, "gamma", 1.0) is None:
            return replace(self, gamma=1.0 / n_features)  # type: ignore[type-var]
        return self

    def nominal_seconds(self, n_features: int) -> float:
        """Time of one entry for dense rows of `n_features` columns, on one core.

        Parameters
        ----------
        n_features : int
            Number of columns of X.

        Returns
        -------
        float
            Seconds.
        """
        return self.entry_seconds + self.column_seconds * n_features

    @property
    def sparse_parts(self) -> int:
        """Number of parts (of a sum or product, else 1) whose cost follows stored entries; 0 if that of some does not.

        Cost and memory of other kernels follow the number of columns.
        """
        return int(self._takes_csr and self._follows_entries)

    def workspace_bytes(self, n_rows: int, n_columns: int, n_features: int, row_bytes: int | None = None) -> int:
        """Upper bound of the temporary memory of one call, besides X, Y and out.

        Parameters
        ----------
        n_rows, n_columns, n_features : int
            Shape of the block, and number of columns of X and Y.
        row_bytes : int, optional
            Bytes of a CSR row; None means dense rows.

        Returns
        -------
        int
            Bytes.
        """
        if row_bytes is None or not self.sparse_parts:
            made_dense = 0 if row_bytes is None else self._made_dense_bytes(n_rows + n_columns, n_features)
            return self._dense_workspace_bytes(n_rows, n_columns, n_features) + made_dense
        rows = (n_rows + n_columns) * (CSR_COPIES * row_bytes + 64)
        # One is made while the previous one still exists.
        transposes = _transpose_bytes(n_features) * (-(-n_columns // STRIP_COLUMNS) + 1)
        # The rest is what a single column would need: strips, and vectors as long as the rows.
        rest = self._dense_workspace_bytes(n_rows, n_columns, 1)
        return self.sparse_parts * (rows + transposes) + self._csr_strips() * 8 * STRIP_ENTRIES + rest

    def pieces_bytes(self, n_rows: int, n_columns: int, n_features: int, row_bytes: int | None = None) -> int:
        """Upper bound of the temporary memory of `pieces`, the strip itself included.

        Parameters
        ----------
        n_rows, n_columns, n_features : int
            Shape of the block, and number of columns of X and Y.
        row_bytes : int, optional
            Bytes of a CSR row; None means dense rows.

        Returns
        -------
        int
            Bytes.
        """
        is_sparse = row_bytes is not None and self.sparse_parts > 0
        buffers = self._buffers() + (self._csr_strips() if is_sparse else 0)
        more = buffers * 8 * (LARGE_STRIP_ENTRIES - STRIP_ENTRIES) + 8 * LARGE_STRIP_ENTRIES
        if is_sparse:
            # A square on the diagonal has its own transpose, and all of them are kept.
            further = -(-n_columns // LARGE_STRIP_ROWS) - -(-n_columns // STRIP_COLUMNS)
            more += self.sparse_parts * further * _transpose_bytes(n_features)
        return self.workspace_bytes(n_rows, n_columns, n_features, row_bytes) + more

    def kept_bytes(self, n_columns: int, n_features: int) -> int:
        """Upper bound of the memory that `to` keeps besides Y, for dense rows in float64.

        Parameters
        ----------
        n_columns : int
            Number of rows of Y.
        n_features : int
            Number of columns of X.

        Returns
        -------
        int
            Bytes.
        """
        return 8 * self._kept_copies * n_columns * (n_features + 3)

    def _dense_workspace_bytes(self, n_rows: int, n_columns: int, n_features: int) -> int:
        """`workspace_bytes` for dense rows."""
        # Two columns more for the squared norms of an augmented row, and two vectors of them.
        rows = 8 * (n_rows + n_columns) * (self._row_copies * (n_features + 2) + 4)
        if isinstance(getattr(self, self._of_columns, None), tuple):  # rows that are divided by these numbers
            rows += 8 * (n_rows + n_columns) * n_features
        return rows + self._strip_buffers * 8 * STRIP_ENTRIES + FIXED_WORKSPACE_BYTES

    def _made_dense_bytes(self, n_rows: int, n_features: int) -> int:
        """Memory of `n_rows` CSR rows where they are made dense."""
        return 0 if self._takes_csr else 8 * n_rows * n_features

    def _buffers(self) -> int:
        """Number of buffers that grow to the size of a large strip."""
        return self._strip_buffers if self._large_strip_buffers is None else self._large_strip_buffers

    def _csr_strips(self) -> int:
        """Number of further buffers that CSR rows need."""
        return self._csr_buffers

    def to_dict(self) -> dict[str, Any]:
        """Description of JSON's types only, from which `kernel_from_dict` makes the same value."""
        return {"kernel": self.tag, **self._described()}

    @property
    def functions(self) -> tuple[Any, ...]:
        """Kernels of users' functions (`CallableKernel`) that this one is or is made of."""
        return ()

    @property
    def has_unit_diagonal(self) -> bool:
        """Whether k(x, x) = 1 for every x, except zero rows of a cosine."""
        return self._has_unit_diagonal

    @property
    def row_degree(self) -> float | None:
        """Power p with k(c x, z) = cᵖ k(x, z) for every c > 0; None if no p has this property."""
        return None

    @property
    def encodes(self) -> bool:
        """Whether it takes anything but rows of numbers, which `encode` makes of it."""
        return type(self).encode is not Kernel.encode

    @property
    def learns_values(self) -> bool:
        """Whether k(x, z) depends on the data that `fitted` is still to be given, as weights of rare words do."""
        return False

    # What callers that have checked their rows, base classes and kernels made of this one call.

    def write_block(self, X: Block, Y: Block, out: FloatArray) -> None:
        """Write k(X, Y) of checked rows. Called on a resolved kernel only.

        Parameters
        ----------
        X : ndarray or CSR, shape (n_rows, n_features)
            Rows as `as_rows` returns them.
        Y : ndarray or CSR, shape (n_columns, n_features)
            Rows that belong to the columns of the block, of the same kind; X itself for a symmetric block.
        out : ndarray, shape (n_rows, n_columns)
            float64 or float32 buffer, checked by `as_buffer` or new.
        """
        if out.size == 0:
            return
        symmetric = Y is X
        if isinstance(X, sp.csr_array) and not self._takes_csr:
            left = X.toarray()
            X, Y = left, left if symmetric else Y.toarray()
        # Overflow is looked for once, on the diagonal, and not by every elementwise operation.
        with np.errstate(over="ignore", invalid="ignore"):
            fill = self._block_writers(Y, out.dtype)(X)
            for rows, columns in strips(*out.shape, lower=symmetric):
                fill(rows, columns, out[rows, columns])
            if symmetric:
                mirror_lower(out)
                values = self._diagonal(X)
                if not self.has_unit_diagonal:  # all 1, or 0
                    check_diagonal(values, self)
                # Rounding would leave, say, 1 - 2e-16 where the kernel is 1.
                np.einsum("ii->i", out)[...] = values

    def block_writer(self, X: Block, Y: Block, dtype: np.dtype[Any]) -> Fill:
        """Function that fills a strip of k(X, Y); parameters as of `_block_writer`.

        Parameters
        ----------
        X : ndarray or CSR, shape (n_rows, n_features)
            Rows.
        Y : ndarray or CSR, shape (n_columns, n_features)
            Rows that belong to the columns of the block.
        dtype : float64 or float32
            Type of the strips, and of the arithmetic.

        Returns
        -------
        callable of (rows, columns, out)
            Writes k(X[rows], Y[columns]) to `out`.
        """
        left = self._taken(X)
        return self._block_writer(left, left if Y is X else self._taken(Y), dtype)

    def block_writers(self, Y: Block, dtype: np.dtype[Any]) -> BlockWriters:
        """`block_writer` by X for one Y; parameters as of `_block_writers`.

        Parameters
        ----------
        Y : ndarray or CSR, shape (n_columns, n_features)
            Rows that belong to the columns of the block.
        dtype : float64 or float32
            Type of the strips, and of the arithmetic.

        Returns
        -------
        callable of X
            Returns the `block_writer` of X and Y.
        """
        right = self._taken(Y)
        block_writer = self._block_writers(right, dtype)
        return lambda X: block_writer(right if X is Y else self._taken(X))

    def diagonal_of(self, X: Block) -> npt.NDArray[np.float64]:
        """`diagonal` of checked rows, which may be infinite; CSR rows are made dense a few at a time.

        Parameters
        ----------
        X : ndarray or CSR, shape (n_rows, n_features)
            Rows.

        Returns
        -------
        ndarray of float64, shape (n_rows,)
            One value for each row.
        """
        if self._takes_csr or not is_sparse(X):
            return self._diagonal(X)
        starts = range(0, max(1, X.shape[0]), STRIP_ROWS)
        return np.concatenate([self._diagonal(X[start : start + STRIP_ROWS].toarray()) for start in starts])

    def _taken(self, X: Block) -> Block:
        return X if self._takes_csr or not is_sparse(X) else X.toarray()

    @abstractmethod
    def _block_writer(self, X: Block, Y: Block, dtype: np.dtype[Any]) -> Fill:
        """Function that fills a strip; `Y is X` for a symmetric block. Called on a resolved kernel only.

        Parameters
        ----------
        X, Y : ndarray of float64 or float32, shapes (n_rows, n_features) and (n_columns, n_features)
            CSR of these where the class has `_takes_csr`.
        dtype : float64 or float32
            Of the strips, and of the arithmetic, whatever the rows are stored in: rows of float32 give the entries of
            these numbers in float64.

        Returns
        -------
        Callable of (rows, columns, out)
            Writes k(X[rows], Y[columns]) to `out`, of shape (len(rows), len(columns)). It is called for one strip after
            the other; arrays as large as one are a `Scratch`, and counted in `_strip_buffers`.
        """

    def _block_writers(self, Y: Block, dtype: np.dtype[Any]) -> BlockWriters:
        """`_block_writer` by X for one Y, with what is computed from Y alone, which takes no more than `kept_bytes`."""
        return lambda X: self._block_writer(X, Y, dtype)

    @abstractmethod
    def _diagonal(self, X: Block) -> npt.NDArray[np.float64]:
        """k(x, x) of checked rows, of shape (n_rows,) in float64. Called on a resolved kernel only."""

    # Imported inside: the classes of the results derive from this one.

    def __add__(self, other: object) -> Kernel:
        """Kernel k₁(x, z) + k₂(x, z)."""
        from dkrr.kernels.composite import Sum

        return Sum(self, other) if isinstance(other, Kernel) else NotImplemented

    def __mul__(self, other: object) -> Kernel:
        """Product with another kernel, or the kernel scaled by a number above 0."""
        from dkrr.kernels.composite import Product, Scaled

        if isinstance(other, Kernel):
            return Product(self, other)
        if isinstance(other, Real):
            return Scaled(self, positive(other, "the scale of a kernel"))
        return NotImplemented

    def __rmul__(self, other: object) -> Kernel:
        """Kernel scaled by a number above 0."""
        return self * other if isinstance(other, Real) else NotImplemented


class KernelTo:
    """k(·, Y) for fixed rows Y, in float64; see `Kernel.to`.

    Parameters
    ----------
    kernel : Kernel
        Resolved kernel.
    Y : ndarray or CSR, shape (n_columns, n_features)
        Checked rows.
    """

    def __init__(self, kernel: Kernel, Y: Block) -> None:
        self._kernel, self._Y, self._dense = kernel, Y, isinstance(Y, sp.csr_array) and not kernel._takes_csr
        with np.errstate(over="ignore", invalid="ignore"):
            self._block_writers = kernel._block_writers(Y.toarray() if self._dense else Y, FLOATS[0])

    def __call__(self, X: Block, *, out: FloatArray | None = None) -> FloatArray:
        """Block of kernel values; parameters, result and errors are those of `Kernel.__call__`, `out` is of float64."""
        left = as_rows(self._kernel.encode(X))
        target = as_buffer(out, (left.shape[0], self._Y.shape[0]))
        if left.shape[1] != self._Y.shape[1] or is_sparse(left) != is_sparse(self._Y) or target.dtype != np.float64:
            return self._kernel(left, self._Y, out=target)
        self.write_block(left, target)
        return target

    def write_block(self, X: Block, out: FloatArray) -> None:
        """Write k(X, Y) of checked rows, which are CSR if and only if Y is.

        Parameters
        ----------
        X : ndarray or CSR, shape (n_rows, n_features)
            Rows as `as_rows` returns them.
        out : ndarray, shape (n_rows, n_columns)
            float64 buffer, checked by `as_buffer` or new.
        """
        if out.size == 0:
            return
        with np.errstate(over="ignore", invalid="ignore"):
            fill = self._block_writers(X.toarray() if self._dense else X)
            for rows, columns in strips(*out.shape):
                fill(rows, columns, out[rows, columns])


def _transpose_bytes(n_features: int) -> int:
    """Bytes of the row pointers of transposed CSR rows, which have a row for each column, empty or not."""
    return 8 * (n_features + 1)
