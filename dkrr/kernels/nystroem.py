"""The Nyström approximation of any kernel by some of the training rows, as a feature map."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Literal

import numpy as np

from dkrr import blas
from dkrr.checks import choice, shown, whole
from dkrr.errors import InputError, InputTypeError
from dkrr.kernels.base import Kernel
from dkrr.kernels.blocks import STRIP_COLUMNS, Block, FloatArray, as_rows, checksum
from dkrr.kernels.map_base import GEMM_FLOPS, Array, FeatureMap, as_base

GRAM_STRIP_ENTRIES = 2**21
"""Entries of k(x, C) in memory at once (16 MiB)."""
GRAM_STRIP_ROWS = 512

Pivots = Literal["rpcholesky", "uniform"]


@dataclass(frozen=True)
class Nystroem(FeatureMap):
    """The Nyström approximation, whose centres are still to be drawn from the training rows.

    `KernelRidge(kernel=Nystroem(...))` draws the centres C when it is fitted and fits the model of the kernel
    k(x, C) K_CC⁻¹ k(C, z), by the features of a `NystroemMap`: an approximation of that of the kernel, by name. Until
    then this value has a size and a cost but no features.

    Parameters
    ----------
    base : Kernel or name of a kernel
        Positive semidefinite.
    n_components : int
        Number of centres, at most the number of training rows. The features may be fewer: see `whitened`.
    pivots : {"rpcholesky", "uniform"}, default="rpcholesky"
        How the centres are drawn: by randomly pivoted Cholesky, which looks at all rows and adapts to the kernel's
        spectrum, or each row with the same probability.
    random_state : int, default=0
        Seed of the draw.

    See Also
    --------
    dkrr.features.RandomFourier : An approximation of RBF and other kernels by random frequencies.
    dkrr.features.FourierGrid : Equally spaced frequencies, for one to three columns.

    References
    ----------
    C. K. I. Williams, M. Seeger, "Using the Nyström method to speed up kernel machines", NIPS 2000.
    Y. Chen, E. N. Epperly, J. A. Tropp, R. J. Webber, "Randomly pivoted Cholesky", Communications on Pure and Applied
    Mathematics 78, 2025.

    Examples
    --------
    >>> from dkrr.features import Nystroem
    >>> from dkrr.kernels import RBF
    >>> Nystroem(RBF(gamma=0.5), n_components=300).dimension(n_features=7)
    300
    """

    tag: ClassVar[str] = "nystroem"

    base: Kernel
    n_components: int
    pivots: Pivots = "rpcholesky"
    random_state: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "base", as_base(self.base, "Nystroem"))
        object.__setattr__(self, "n_components", whole(self.n_components, "n_components", 1))
        choice(self.pivots, "pivots", ("rpcholesky", "uniform"))
        object.__setattr__(self, "random_state", whole(self.random_state, "random_state", 0))

    def entry_seconds(self, n_features: int) -> float:
        return entry_seconds(self.base.resolved(n_features), self.n_components, n_features)

    def held_bytes(self, n_features: int) -> int:
        # Centres count as dense.
        return held_bytes(self.base, self.n_components, n_features)

    def dimension(self, n_features: int) -> int:  # noqa: ARG002
        """Number of centres, which is the largest D."""
        return self.n_components

    def _fill(self, X: Block, start: int, stop: int, out: Array) -> None:  # noqa: ARG002
        raise InputError(
            f"{self!r} has no centres yet, and no features; expected a fit: KernelRidge(kernel=...).fit draws the "
            "centres from the training rows"
        )


@dataclass(frozen=True, eq=False, repr=False)
class NystroemMap(FeatureMap):
    """φ(x) = k(x, C) W with W Wᵀ = K_CC⁻¹, so that φ(x)ᵀφ(z) = k(x, C) K_CC⁻¹ k(C, z); `whitened` makes it.

    Parameters
    ----------
    base : Kernel
    centres : ndarray or CSR of float64, shape (D, n_features)
        C.
    whitening : ndarray of float64, shape (D, D)
        W, upper triangular: the first features need the first centres only.
    """

    tag: ClassVar[str] = "nystroem_map"

    base: Kernel
    centres: Block
    whitening: Array

    def __post_init__(self) -> None:
        object.__setattr__(self, "base", as_base(self.base, "NystroemMap"))
        object.__setattr__(self, "centres", as_rows(self.centres, "centres"))
        size = self.centres.shape[0]
        if not isinstance(self.whitening, np.ndarray):
            raise InputTypeError(f"whitening is {shown(self.whitening)}; expected float64 of {(size, size)}")
        if self.whitening.shape != (size, size) or self.whitening.dtype != np.float64:
            raise InputError(
                f"whitening is {self.whitening.dtype} of shape {self.whitening.shape}; expected float64 of "
                f"{(size, size)}: a row and a column for every centre"
            )

    def __repr__(self) -> str:
        return f"NystroemMap({self.base!r}, {len(self.whitening)} centres)"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, NystroemMap) and self.to_dict() == other.to_dict()

    def __hash__(self) -> int:
        return hash((self.base, *self._digests))

    def entry_seconds(self, n_features: int) -> float:
        return entry_seconds(self.base, len(self.whitening), n_features)

    def held_bytes(self, n_features: int) -> int:
        return held_bytes(self.base, len(self.whitening), n_features)

    def dimension(self, n_features: int) -> int:  # noqa: ARG002
        return len(self.whitening)

    def to_dict(self) -> dict[str, Any]:
        """See base class; the checksums of the arrays stand for them."""
        centres, whitening = ({"array": digest} for digest in self._digests)
        return {"feature_map": self.tag, "base": self.base.to_dict(), "centres": centres, "whitening": whitening}

    def arrays(self) -> dict[str, Any]:
        """The arrays, by their checksums."""
        return dict(zip(self._digests, (self.centres, self.whitening), strict=True))

    @cached_property
    def _digests(self) -> tuple[str, str]:
        return checksum(self.centres), checksum(self.whitening)

    def _fill(self, X: Block, start: int, stop: int, out: Array) -> None:
        for rows, gram in self._strips(X, stop):
            # W is triangular, so a range of features needs only the centres before its end: half the work in all.
            for left in range(start, stop, STRIP_COLUMNS):
                right = min(left + STRIP_COLUMNS, stop)
                target = out[rows, left - start : right - start]
                blas.gemm(target, gram[:, :right], self.whitening[:right, left:right])

    def _multiply(self, X: Block, coef: Array) -> Array:
        # (k(x, C) W) w = k(x, C) (W w): the whitening is applied to t columns instead of n rows.
        weights, out = blas.product(self.whitening, coef), np.empty((X.shape[0], coef.shape[1]))
        for rows, gram in self._strips(X, len(weights)):
            blas.gemm(out[rows], gram, weights)
        return out

    def _adjoint(self, X: Block, values: Array) -> Array:
        total, out = np.zeros((len(self.whitening), values.shape[1])), np.empty((len(self.whitening), values.shape[1]))
        for rows, gram in self._strips(X, len(total)):
            blas.gemm(total, gram, values[rows], transpose_a=True, beta=1.0)
        blas.gemm(out, self.whitening, total, transpose_a=True)
        return out

    def _strips(self, X: Block, stop: int) -> Iterator[tuple[slice, FloatArray]]:
        """Yield ranges of rows, each with its k(x, C) for the first `stop` centres."""
        height = strip_rows(stop)
        gram = np.empty((min(height, X.shape[0]), stop))
        centres = self.centres[:stop]
        for top in range(0, X.shape[0], height):
            rows = slice(top, min(top + height, X.shape[0]))
            yield rows, self.base(X[rows], centres, out=gram[: rows.stop - top])


def strip_rows(n_centres: int) -> int:
    """Rows whose kernel with the centres is in memory at once."""
    return max(1, min(GRAM_STRIP_ROWS, GRAM_STRIP_ENTRIES // max(n_centres, 1)))


def entry_seconds(base: Kernel, n_centres: int, n_features: int) -> float:
    """Seconds of one feature: an entry of the kernel, and a column of the triangular W."""
    return base.nominal_seconds(n_features) + n_centres / GEMM_FLOPS


def held_bytes(base: Kernel, n_centres: int, n_features: int) -> int:
    """Bytes of C and W, and of the temporaries of a strip."""
    height = strip_rows(n_centres)
    temporary = 8 * height * n_centres + base.workspace_bytes(height, n_centres, n_features)
    return 8 * n_centres * (n_centres + n_features) + temporary


def whitened_flops(n_centres: int) -> float:
    """Operations of whitening, at the rate of a matrix product."""
    return 2.0 * float(n_centres) ** 3


def whitened_bytes(base: Kernel, n_centres: int, n_features: int, csr_bytes: int | None = None) -> int:
    """Memory of whitening: the factor and its inverse, and the temporaries of the kernel, besides the centres."""
    return 16 * n_centres**2 + base.workspace_bytes(n_centres, n_centres, n_features, csr_bytes)


def whitened(kernel: Kernel, centres: Block) -> NystroemMap:
    """Nyström map of given centres.

    By pivoted Cholesky, K_CC = P L Lᵀ Pᵀ and W = L⁻ᵀ for the centres in the order of the pivots. It stops where the
    remainder of every diagonal entry is below n · eps · the largest, as LAPACK does: the other centres are duplicates
    of those before, to float64's precision. They are left out, so D may be less than the number of centres, and no
    feature is zero or rounding alone. Everything is float64: features whitened in float32 make normal equations that
    are worthless.

    Parameters
    ----------
    kernel : Kernel
        Positive semidefinite.
    centres : ndarray or CSR, shape (n_centres, n_features)

    Returns
    -------
    NystroemMap

    Raises
    ------
    InputError
        If the kernel is not positive semidefinite on the centres.

    References
    ----------
    N. J. Higham, "Accuracy and Stability of Numerical Algorithms", 2nd edition, SIAM 2002, section 10.3.

    Examples
    --------
    >>> import numpy as np
    >>> from dkrr.kernels.nystroem import whitened
    >>> from dkrr.kernels import RBF
    >>> X = np.array([[0.0], [1.0], [1.0]])
    >>> phi = whitened(RBF(gamma=0.5), X)
    >>> phi.dimension(1), bool(np.allclose(phi.transform(X) @ phi.transform(X).T, RBF(gamma=0.5)(X)))
    (2, True)
    """
    rows = as_rows(centres, "centres")
    rows = rows.astype(np.float64, copy=False)
    kernel = as_base(kernel, "a Nyström map", "kernel").resolved(rows.shape[1])
    factor = kernel(rows)
    diagonal = factor.diagonal().copy()
    order, rank = blas.pivoted_cholesky_in_place(factor)
    tolerance = len(diagonal) * np.finfo(np.float64).eps * float(diagonal.max(initial=0.0))
    dropped = factor[rank:, :rank]
    remainder = diagonal[order[rank:]] - np.einsum("ij,ij->i", dropped, dropped)
    # That of a positive semidefinite matrix is zero except for rounding, about `tolerance` again.
    if rank == 0 or (len(remainder) and remainder.min() < -10 * tolerance):
        raise InputError(
            f"the kernel {kernel!r} is not positive semidefinite on the {len(diagonal)} centres of its Nyström "
            "approximation, or zero there; expected K_CC to be positive semidefinite: use another kernel"
        )
    whitening = np.eye(rank)
    blas.solve_lower(factor[:rank, :rank], whitening, transpose=True)
    return NystroemMap(kernel, rows[order[:rank]], whitening)
