"""The explicit feature map as a value, φ(x) for blocks of rows, and its kernel k(x, z) = ⟨φ(x), φ(z)⟩."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from dkrr import blas
from dkrr.checks import shown
from dkrr.errors import InputError, InputTypeError
from dkrr.kernels.base import Kernel, Parameters
from dkrr.kernels.blocks import STRIP_COLUMNS, STRIP_ROWS, Block, Fill, FloatArray, as_rows, is_sparse
from dkrr.kernels.custom import identity_of_class, is_builtin, qualified_name
from dkrr.kernels.names import as_kernel

ENTRY_COPY_SECONDS = 1.6e-9
"""Seconds of an entry that is copied, and centred or weighted afterwards, measured in blocks of 64 MiB."""
GEMM_FLOPS = 55e9
"""Rate of matrix products on the core that the other times of an entry were measured on."""
MAX_FEATURE_ENTRIES = 2**22
"""Entries of Φ that a product with it has in memory at once (32 MiB)."""
KERNEL_CALL_ROWS = 1024
"""Rows of the blocks in which dkrr calls kernels: this number of entries shares the features of a row."""
OWN_CLASS = "own"
"""Tag in the description of a map whose class is the user's own."""

Array = npt.NDArray[np.float64]


class FeatureMap(Parameters):
    """A finite feature map φ: ℝᵈ → ℝᴰ, as an immutable value that is called on blocks of rows.

    Subclasses are frozen dataclasses whose fields are JSON values, kernels or feature maps. They define `dimension` and
    `_fill`; `kernel` too where it has a closed form. A user's own subclass is saved by name and given again to
    `dkrr.load`, as a kernel function is.

    See Also
    --------
    dkrr.features.CallableMap : A feature map that a function computes.
    dkrr.features.feature_map : The finite feature map of a kernel, if it has one.
    dkrr.kernels.Kernel : Base class of kernels.

    Examples
    --------
    `_fill` writes columns start … stop of the features of dense or CSR rows in float64:

    >>> from dataclasses import dataclass
    >>> import numpy as np
    >>> from dkrr.features import FeatureMap
    >>> @dataclass(frozen=True)
    ... class Powers(FeatureMap):
    ...     degree: int = 3
    ...     def dimension(self, n_features):
    ...         return self.degree * n_features
    ...     def _fill(self, X, start, stop, out):
    ...         out[...] = np.hstack([X**p for p in range(1, self.degree + 1)])[:, start:stop]
    >>> Powers().transform(np.array([[2.0, 3.0]]))
    array([[ 2.,  3.,  4.,  9.,  8., 27.]])
    >>> Powers(degree=2).kernel()(np.array([[1.0]]), np.array([[2.0]]))
    array([[6.]])
    """

    tag: ClassVar[str] = OWN_CLASS
    """Name in a description (`to_dict`)."""

    @abstractmethod
    def dimension(self, n_features: int) -> int:
        """Number of features D, by integer arithmetic alone: it may be far too large for anything else.

        Parameters
        ----------
        n_features : int
            Number of columns d of X.

        Returns
        -------
        int
            D.
        """

    def entry_seconds(self, n_features: int) -> float:  # noqa: ARG002
        """Seconds of one entry of Φ on one core, for dense rows of `n_features` columns.

        Parameters
        ----------
        n_features : int
            Number of columns of X.

        Returns
        -------
        float
            Seconds.
        """
        return ENTRY_COPY_SECONDS

    is_identity: ClassVar[bool] = False
    """φ(x) = x."""

    is_transform: ClassVar[bool] = False
    """Φ is never formed: products with it are transforms of many rows at once."""

    @property
    def keeps_sparse(self) -> bool:
        """Whether `multiply` and `adjoint` work on the stored entries of CSR rows alone."""
        return False

    def held_bytes(self, n_features: int) -> int:  # noqa: ARG002
        """Bytes of the map's own arrays and of the temporaries of a call, if they are many.

        Parameters
        ----------
        n_features : int
            Number of columns of X.

        Returns
        -------
        int
            Bytes; 0 if they are few.
        """
        return 0

    def resolved(self, n_features: int) -> FeatureMap:
        """Map whose kernels are resolved: their gamma=None becomes 1 / n_features.

        Parameters
        ----------
        n_features : int
            Number of columns of X.

        Returns
        -------
        FeatureMap
            Itself, if nothing was open.
        """
        parts = {k: v for k, v in self._settings().items() if isinstance(v, FeatureMap | Kernel)}
        known = {k: v.resolved(n_features) for k, v in parts.items()}
        return self if all(v is parts[k] for k, v in known.items()) else replace(self, **known)  # type: ignore[type-var]

    def kernel(self) -> Kernel:
        """Kernel k(x, z) = ⟨φ(x), φ(z)⟩."""
        return MapKernel(self)

    # Sums, products and multiples are those of the kernel: ``2.0 * RandomFourier(RBF(), 500) + Linear()``.

    def __add__(self, other: object) -> Kernel:
        return self.kernel() + (other.kernel() if isinstance(other, FeatureMap) else other)

    def __radd__(self, other: Kernel) -> Kernel:
        return other + self.kernel()

    def __mul__(self, other: object) -> Kernel:
        return self.kernel() * (other.kernel() if isinstance(other, FeatureMap) else other)

    def __rmul__(self, other: object) -> Kernel:
        kernel = self.kernel()
        return other * kernel if isinstance(other, Kernel) else kernel.__rmul__(other)

    def transform(self, X: Block, columns: slice | None = None) -> Array:
        """Φ, the features of each row.

        Parameters
        ----------
        X : ndarray or CSR, shape (n_rows, n_features)
            Rows.
        columns : slice, optional
            Only these of the D columns, and no work for the others. None means all. The step must be 1.

        Returns
        -------
        ndarray of float64, shape (n_rows, D) or (n_rows, number of columns)
            Features.

        Raises
        ------
        InputError
            If X is not two-dimensional and real, or the slice has a step.
        """
        rows = as_rows(X)
        if rows.dtype != np.float64 and self._has_own_class():
            rows = rows.astype(np.float64)  # its author need not know that float32 stays float32 in NumPy
        start, stop = column_range(columns, self.dimension(rows.shape[1]))
        out = np.empty((rows.shape[0], stop - start))
        if out.size:
            # What overflows shows in everything that is computed from it.
            with np.errstate(over="ignore", invalid="ignore"):
                self._fill(rows, start, stop, out)
        return out

    def multiply(self, X: Block, coef: Array) -> Array:
        """Φ w, without Φ as a whole.

        Parameters
        ----------
        X : ndarray or CSR, shape (n_rows, n_features)
            Rows.
        coef : ndarray, shape (D, t)
            w, a column for each target.

        Returns
        -------
        ndarray of float64, shape (n_rows, t)
            Scores of the rows.

        Raises
        ------
        InputError
            If shapes do not fit.
        """
        rows = as_rows(X)
        return self._multiply(rows, _matrix(coef, self.dimension(rows.shape[1]), "coef", "feature"))

    def adjoint(self, X: Block, values: Array) -> Array:
        """Φᵀ v, without Φ as a whole.

        Parameters
        ----------
        X : ndarray or CSR, shape (n_rows, n_features)
            Rows.
        values : ndarray, shape (n_rows, t)
            v, a row for each row of X.

        Returns
        -------
        ndarray of float64, shape (D, t)
            Sums over the rows.

        Raises
        ------
        InputError
            If shapes do not fit.
        """
        rows = as_rows(X)
        return self._adjoint(rows, _matrix(values, rows.shape[0], "values", "row of X"))

    def to_dict(self) -> dict[str, Any]:
        """Description of JSON's types only, from which `feature_map_from_dict` makes the value.

        That of a user's own class has its name, under which the class must be given again.
        """
        kind, settings = type(self), self._described()
        if is_builtin(kind):
            return {"feature_map": self.tag, **settings}
        name, digest = qualified_name(kind), identity_of_class(kind)
        return {"feature_map": OWN_CLASS, "name": name, "digest": digest, "settings": settings}

    def _has_own_class(self) -> bool:
        """Whether the class of the map, or of a part, is a user's own."""
        parts = self._settings().values()
        return not is_builtin(type(self)) or any(p._has_own_class() for p in parts if isinstance(p, FeatureMap))

    def _settings(self) -> dict[str, Any]:
        """Values of the fields, by name."""
        return {field.name: getattr(self, field.name) for field in fields(self)}  # type: ignore[arg-type]

    def _multiply(self, X: Block, coef: Array) -> Array:
        """`multiply` of checked arguments."""
        out = np.zeros((X.shape[0], coef.shape[1]))
        for columns in self._column_blocks(X):
            blas.gemm(out, self.transform(X, columns), coef[columns], beta=1.0)
        return out

    def _adjoint(self, X: Block, values: Array) -> Array:
        """`adjoint` of checked arguments."""
        out = np.zeros((self.dimension(X.shape[1]), values.shape[1]))
        for columns in self._column_blocks(X):
            blas.gemm(out[columns], self.transform(X, columns), values, transpose_a=True)
        return out

    def _column_blocks(self, X: Block) -> list[slice]:
        """Blocks of columns of Φ that are in memory at once; none if X has no rows."""
        dimension = self.dimension(X.shape[1])
        width = max(STRIP_COLUMNS, MAX_FEATURE_ENTRIES // max(X.shape[0], 1))
        return [slice(k, min(k + width, dimension)) for k in range(0, dimension if X.shape[0] else 0, width)]

    @abstractmethod
    def _fill(self, X: Block, start: int, stop: int, out: Array) -> None:
        """Write columns start...stop of Φ, for checked rows and a range that is not empty."""


class ImpliedMap(FeatureMap):
    """The feature map of a kernel of another kind, which describes it: `feature_map` makes it."""

    tag: ClassVar[str] = "implied"

    def to_dict(self) -> dict[str, Any]:
        """See base class: there is nothing but the kernel to make it of."""
        return {"feature_map": self.tag}


@dataclass(frozen=True)
class MapKernel(Kernel):
    """k(x, z) = φ(x)ᵀφ(z), the kernel of a feature map such as `RandomFourier`, for everything that takes a kernel.

    It adds, multiplies and scales like any other kernel.

    Parameters
    ----------
    base : FeatureMap
        φ.

    Examples
    --------
    >>> import numpy as np
    >>> from dkrr.features import RandomFourier
    >>> from dkrr.kernels.map_base import MapKernel
    >>> from dkrr.kernels import RBF
    >>> kernel = MapKernel(RandomFourier(RBF(gamma=0.5), n_components=10))
    >>> kernel(np.array([[0.0, 1.0]])).round(12)
    array([[1.]])
    """

    tag: ClassVar[str] = "map"
    entry_seconds: ClassVar[float] = 1.5e-9
    _takes_csr: ClassVar[bool] = True
    _follows_entries: ClassVar[bool] = False

    base: FeatureMap

    def __post_init__(self) -> None:
        if not isinstance(self.base, FeatureMap):
            raise InputTypeError(f"base is {shown(self.base)}, not a feature map; expected a dkrr.features.FeatureMap")
        if isinstance(self.base, ImpliedMap):
            raise InputError(f"base has the features of a kernel; expected that kernel itself, not {self.base!r}")
        check_own_class(self.base)

    def resolved(self, n_features: int) -> Kernel:
        known = self.base.resolved(n_features)
        return self if known is self.base else MapKernel(known)

    def nominal_seconds(self, n_features: int) -> float:
        """See base class: an entry costs a product, and its share of the features of two blocks of rows."""
        features = 2.0 / KERNEL_CALL_ROWS * self.base.entry_seconds(n_features)
        return self.entry_seconds + self.base.dimension(n_features) * (self.column_seconds + features)

    def _dense_workspace_bytes(self, n_rows: int, n_columns: int, n_features: int) -> int:
        features = 8 * (n_rows + n_columns) * self.base.dimension(n_features)
        held = self.base.held_bytes(n_features)
        return features + held + super()._dense_workspace_bytes(n_rows, n_columns, n_features)

    def to_dict(self) -> dict[str, Any]:
        return {"kernel": self.tag, "feature_map": self.base.to_dict()}

    def _block_writer(self, X: Block, Y: Block, dtype: np.dtype[Any]) -> Fill:
        left = self.base.transform(X).astype(dtype, copy=False)
        right = left if Y is X else self.base.transform(Y).astype(dtype, copy=False)

        def fill(rows: slice, columns: slice, out: FloatArray) -> None:
            blas.gemm(out, left[rows], right[columns], transpose_b=True)

        return fill

    def _diagonal(self, X: Block) -> Array:
        values = np.empty(X.shape[0])
        for start in range(0, len(values), STRIP_ROWS):
            phi = self.base.transform(X[start : start + STRIP_ROWS])
            np.einsum("ij,ij->i", phi, phi, out=values[start : start + STRIP_ROWS])
        return values


def as_base(base: object, owner: str, name: str = "base") -> Kernel:
    """Kernel that a feature map approximates, of a value or one of scikit-learn's names; not a precomputed one."""
    if not isinstance(base, Kernel | str):
        raise InputTypeError(f"{name} of {owner} is {shown(base)}; expected a dkrr.kernels.Kernel, or the name of one")
    if isinstance(base, str):
        try:
            kernel = as_kernel(base)
        except InputError as error:
            raise InputError(f"{name} of {owner}: {error}") from error
    else:
        kernel = base
    if kernel.is_precomputed:
        raise InputError(
            f"{name} of {owner} is a precomputed kernel; expected one of rows: its X is a Gram matrix already"
        )
    return kernel


def check_own_class(value: FeatureMap) -> None:
    """Raise InputTypeError if the class of a map is not a frozen dataclass: its fields must determine its value."""
    parameters = vars(type(value)).get("__dataclass_params__")  # of the class itself, not of a parent
    if parameters is None or not parameters.frozen:
        raise InputTypeError(
            f"the feature map {type(value).__qualname__} is not a frozen dataclass; expected one, so that values can "
            "be compared, described and sent to workers: put @dataclass(frozen=True) before its class and make its "
            "settings fields"
        )


def _matrix(values: Array, n_rows: int, name: str, what: str) -> Array:
    """Values as a C-ordered float64 matrix, which must have `n_rows` rows."""
    if np.ndim(values) != 2 or np.shape(values)[0] != n_rows:
        raise InputError(f"{name} has shape {np.shape(values)}; expected ({n_rows}, t): a row for every {what}")
    return np.ascontiguousarray(values, np.float64)


def column_range(columns: slice | None, dimension: int) -> tuple[int, int]:
    """First column of a slice of the features, and the one after its last."""
    if columns is None:
        return 0, dimension
    if not isinstance(columns, slice) or columns.step not in (None, 1):
        raise InputError(f"columns is {columns!r}; expected a slice of the {dimension} features with step 1")
    start, stop, _ = columns.indices(dimension)
    return start, max(start, stop)


def dense_rows(X: Block) -> Array:
    """Checked rows as an ndarray."""
    rows: Array = X.toarray() if is_sparse(X) else X
    return rows
