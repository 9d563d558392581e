"""Kernels that are sums over single features: Laplacian, chi-squared and additive chi-squared."""

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt
from scipy.spatial.distance import cdist

from dkrr.checks import positive, scales_of
from dkrr.errors import InputError
from dkrr.kernels.base import Kernel
from dkrr.kernels.blocks import Block, Fill, FloatArray, Scratch, is_sparse
from dkrr.kernels.lengths import Array, Scales, WithLengths, reference, times_ratios

# CSR columns made dense at a time: with strips of 128 and 1024 rows, at most 4.5 MiB.
CITYBLOCK_COLUMNS = 512


@dataclass(frozen=True, kw_only=True)
class Laplacian(WithLengths):
    """k(x, z) = exp(−γ ‖x − z‖₁), or exp(−Σₖ γₖ |xₖ − zₖ|) with a γ for each column.

    Parameters
    ----------
    gamma : float or sequence of float, optional
        γ > 0, or one for each column; None means 1 / n_features.

    See Also
    --------
    dkrr.kernels.RBF : The Gaussian of the distance.
    dkrr.kernels.Matern : Between the exponential and the Gaussian of the distance.

    Examples
    --------
    >>> import numpy as np
    >>> from dkrr.kernels import Laplacian
    >>> Laplacian(gamma=0.5)(np.array([[0.0, 0.0]]), np.array([[1.0, -1.0]])).round(4)
    array([[0.3679]])
    """

    tag: ClassVar[str] = "laplacian"
    names: ClassVar[tuple[str, ...]] = (tag,)
    is_plain: ClassVar[bool] = True
    entry_seconds: ClassVar[float] = 1.5e-9
    column_seconds: ClassVar[float] = 0.3e-9
    _has_unit_diagonal: ClassVar[bool] = True
    _takes_csr: ClassVar[bool] = True
    # Columns made dense take 4.5 of them.
    _csr_buffers: ClassVar[int] = 6
    _row_copies: ClassVar[int] = 2
    _strip_buffers: ClassVar[int] = 1
    _of_columns: ClassVar[str] = "gamma"

    gamma: Scales | None = None

    def __post_init__(self) -> None:
        if self.gamma is not None:
            object.__setattr__(self, "gamma", scales_of(self.gamma, "gamma"))

    def lengths(self, n_features: int) -> Array:
        return np.broadcast_to(1.0 / np.asarray(1.0 / n_features if self.gamma is None else self.gamma), n_features)

    def with_lengths(self, lengths: Array) -> Self:
        gamma = (1.0 / lengths).tolist()
        return replace(self, gamma=gamma if len(gamma) > 1 else gamma[0])

    def _block_writer(self, X: Block, Y: Block, dtype: np.dtype[Any]) -> Fill:  # noqa: ARG002
        assert self.gamma is not None, "the kernel must be resolved first"
        scale, left = -reference(self.gamma, 1.0), times_ratios(X, self.gamma, 1.0)
        X, Y = left, left if Y is X else times_ratios(Y, self.gamma, 1.0)
        distances = _sparse_distances(X, Y) if is_sparse(X) else _dense_distances(X, Y)
        scratch = Scratch()

        def fill(rows: slice, columns: slice, out: FloatArray) -> None:
            strip = scratch.like(out)
            distances(rows, columns, strip)
            with np.errstate(over="ignore"):  # −∞ gives 0
                np.multiply(strip, scale, out=out, casting="same_kind")
            np.exp(out, out=out)

        return fill

    def _diagonal(self, X: Block) -> npt.NDArray[np.float64]:
        return np.ones(X.shape[0])


def _dense_distances(X: FloatArray, Y: FloatArray) -> Fill:
    """Filler of ‖x − z‖₁, in float64."""
    # cdist would convert float32 and strided rows again for every strip.
    left, right = np.ascontiguousarray(X, dtype=np.float64), np.ascontiguousarray(Y, dtype=np.float64)

    def fill(rows: slice, columns: slice, out: Any) -> None:
        cdist(left[rows], right[columns], "cityblock", out=out)

    return fill


def _sparse_distances(X: Block, Y: Block) -> Fill:
    """Fill ‖x − z‖₁ of CSR rows, making only the columns dense that both strips have entries in.

    A column where one strip is empty adds |x| or |z| whatever the partner, so it needs no pairs.
    """

    def fill(rows: slice, columns: slice, out: FloatArray) -> None:
        left, right = X[rows], Y[columns]
        shared = np.intersect1d(left.indices, right.indices)
        left, right = left.astype(np.float64), right.astype(np.float64)
        np.add(
            _absolute_sums_without(left, shared)[:, np.newaxis],
            _absolute_sums_without(right, shared),
            out=out,
        )
        for start in range(0, len(shared), CITYBLOCK_COLUMNS):
            some = shared[start : start + CITYBLOCK_COLUMNS]
            out += cdist(left[:, some].toarray(), right[:, some].toarray(), "cityblock")

    return fill


def _absolute_sums_without(X: Block, excluded: npt.NDArray[np.integer[Any]]) -> npt.NDArray[np.float64]:
    """Σ|x| of each CSR row over the columns that are not excluded."""
    counted = np.where(np.isin(X.indices, excluded), 0.0, np.abs(X.data))
    owners = np.repeat(np.arange(X.shape[0]), np.diff(X.indptr))
    return np.bincount(owners, counted, minlength=X.shape[0]).astype(np.float64)


@dataclass(frozen=True)
class AdditiveChi2(Kernel):
    """k(x, z) = −Σ (x − z)² / (x + z) for non-negative features; only conditionally positive definite.

    See Also
    --------
    dkrr.kernels.Chi2 : The exponential of minus the χ² distance.

    Examples
    --------
    >>> import numpy as np
    >>> from dkrr.kernels import AdditiveChi2
    >>> AdditiveChi2()(np.array([[1.0, 0.0]]), np.array([[3.0, 0.0]]))
    array([[-1.]])
    """

    tag: ClassVar[str] = "additive_chi2"
    names: ClassVar[tuple[str, ...]] = (tag,)
    entry_seconds: ClassVar[float] = 1.5e-9
    column_seconds: ClassVar[float] = 1.6e-9
    _row_copies: ClassVar[int] = 1
    _strip_buffers: ClassVar[int] = 4

    def _block_writer(self, X: Block, Y: Block, dtype: np.dtype[Any]) -> Fill:
        left = _non_negative(X, dtype)
        right = left if Y is X else _non_negative(Y, dtype)
        total, term = Scratch(dtype), Scratch(dtype)

        def fill(rows: slice, columns: slice, out: FloatArray) -> None:
            sums, squares = total.like(out), term.like(out)
            out[...] = 0.0
            for x, z in zip(left[:, rows], right[:, columns], strict=True):
                np.add.outer(x, z, out=sums)
                # 0 / 0 counts as 0: such a term has a numerator of 0, whatever it is divided by.
                np.copyto(sums, 1.0, where=sums == 0)
                np.subtract.outer(x, z, out=squares)
                # |x − z| ≤ x + z: the quotient first, since a square may leave the range of float64.
                np.divide(squares, sums, out=sums)
                squares *= sums
                out -= squares

        return fill

    def _diagonal(self, X: Block) -> npt.NDArray[np.float64]:
        return np.zeros(X.shape[0])


@dataclass(frozen=True, kw_only=True)
class Chi2(Kernel):
    """k(x, z) = exp(−γ Σ (x − z)² / (x + z)) for non-negative features, histograms above all.

    Parameters
    ----------
    gamma : float, default=1.0
        γ > 0; scikit-learn's default is 1 here.

    See Also
    --------
    dkrr.kernels.AdditiveChi2 : Minus the χ² distance.
    dkrr.kernels.Laplacian : The exponential of the city-block distance.

    References
    ----------
    Zhang, Marszalek, Lazebnik, Schmid (2007), Local features and kernels for classification of texture and
    object categories, International Journal of Computer Vision 73.

    Examples
    --------
    >>> import numpy as np
    >>> from dkrr.kernels import Chi2
    >>> Chi2(gamma=1.0)(np.array([[0.25, 0.75]]), np.array([[0.75, 0.25]])).round(4)
    array([[0.6065]])
    """

    tag: ClassVar[str] = "chi2"
    names: ClassVar[tuple[str, ...]] = (tag,)
    entry_seconds: ClassVar[float] = 1.5e-9
    column_seconds: ClassVar[float] = 1.6e-9
    _has_unit_diagonal: ClassVar[bool] = True
    _row_copies: ClassVar[int] = 1
    _strip_buffers: ClassVar[int] = 4

    gamma: float = 1.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "gamma", positive(self.gamma, "gamma"))

    def _block_writer(self, X: Block, Y: Block, dtype: np.dtype[Any]) -> Fill:
        additive = AdditiveChi2()._block_writer(X, Y, dtype)

        def fill(rows: slice, columns: slice, out: FloatArray) -> None:
            additive(rows, columns, out)
            out *= self.gamma
            np.exp(out, out=out)

        return fill

    def _diagonal(self, X: Block) -> npt.NDArray[np.float64]:
        return np.ones(X.shape[0])


def _non_negative(X: Block, dtype: np.dtype[Any]) -> FloatArray:
    """Features as contiguous rows, (n_features, n_rows), checked for sign."""
    if X.size and float(X.min()) < 0:
        raise InputError(
            f"X or Y has a negative value ({float(X.min()):.6g}); expected non-negative features, such as counts, "
            "for a chi-squared kernel: shift or bin them, or use another kernel"
        )
    return np.ascontiguousarray(X.T, dtype=dtype)
