"""Sums, products, multiples and normalisations of kernels, combined strip by strip while the strip is in cache.

Sums of kernels whose weights are to be chosen, and the weights of one that was.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from dkrr.checks import numbers, positive, shown, whole
from dkrr.errors import InputError, InputTypeError
from dkrr.kernels.base import Kernel
from dkrr.kernels.blocks import (
    Block,
    BlockWriters,
    Fill,
    FloatArray,
    Scratch,
    are_moderate,
    check_diagonal,
    normalise_exponents,
)
from dkrr.kernels.columns import Compound


@dataclass(frozen=True)
class _Pair(Compound):
    """Kernel of two kernels and the ufunc that combines their values."""

    _part_names: ClassVar[tuple[str, ...]] = ("left", "right")
    _strip_buffers: ClassVar[int] = 1
    _combine: ClassVar[np.ufunc]

    left: Kernel
    right: Kernel

    def _block_writer(self, X: Block, Y: Block, dtype: np.dtype[Any]) -> Fill:
        return self._block_writers(Y, dtype)(X)

    def _block_writers(self, Y: Block, dtype: np.dtype[Any]) -> BlockWriters:
        first, second = self.left.block_writers(Y, dtype), self.right.block_writers(Y, dtype)
        return lambda X: self._combined(first(X), second(X), Scratch(dtype))

    def _combined(self, first: Fill, second: Fill, scratch: Scratch) -> Fill:
        def fill(rows: slice, columns: slice, out: FloatArray) -> None:
            other = scratch.like(out)
            first(rows, columns, out)
            second(rows, columns, other)
            self._combine(out, other, out=out)

        return fill

    def _diagonal(self, X: Block) -> npt.NDArray[np.float64]:
        combined: npt.NDArray[np.float64] = self._combine(self.left.diagonal_of(X), self.right.diagonal_of(X))
        return combined


@dataclass(frozen=True)
class Sum(_Pair):
    """k(x, z) = k₁(x, z) + k₂(x, z), written ``k1 + k2``.

    Parameters
    ----------
    left, right : Kernel
        k₁ and k₂.

    See Also
    --------
    dkrr.kernels.Product : The product of two kernels.
    dkrr.kernels.Scaled : A multiple of a kernel.
    dkrr.kernels.weighted_sums : Sums of kernels for a search to choose among.

    Examples
    --------
    >>> import numpy as np
    >>> from dkrr.kernels import Linear, RBF
    >>> kernel = Linear() + RBF(gamma=1.0)
    >>> kernel
    Sum(left=Linear(), right=RBF(gamma=1.0))
    >>> kernel(np.array([[2.0]]))
    array([[5.]])
    """

    tag: ClassVar[str] = "sum"
    _combine: ClassVar[np.ufunc] = np.add

    @property
    def row_degree(self) -> float | None:
        return self.left.row_degree if self.left.row_degree == self.right.row_degree else None


@dataclass(frozen=True)
class Product(_Pair):
    """k(x, z) = k₁(x, z) k₂(x, z), written ``k1 * k2``.

    Parameters
    ----------
    left, right : Kernel
        k₁ and k₂.

    See Also
    --------
    dkrr.kernels.Sum : The sum of two kernels.
    dkrr.kernels.Scaled : A multiple of a kernel.

    Examples
    --------
    >>> import numpy as np
    >>> from dkrr.kernels import Linear, RBF
    >>> kernel = Linear() * RBF(gamma=1.0)
    >>> kernel
    Product(left=Linear(), right=RBF(gamma=1.0))
    >>> kernel(np.array([[2.0]]))
    array([[4.]])
    """

    tag: ClassVar[str] = "product"
    _combine: ClassVar[np.ufunc] = np.multiply

    @property
    def row_degree(self) -> float | None:
        first, second = self.left.row_degree, self.right.row_degree
        return None if first is None or second is None else first + second


@dataclass(frozen=True)
class Scaled(Compound):
    """k(x, z) = s k₁(x, z), written ``s * k1``.

    Parameters
    ----------
    base : Kernel
        k₁.
    scale : float
        s > 0.

    See Also
    --------
    dkrr.kernels.Sum : The sum of two kernels.
    dkrr.kernels.Product : The product of two kernels.
    dkrr.kernels.Normalized : A kernel with k(x, x) = 1.

    Examples
    --------
    >>> import numpy as np
    >>> from dkrr.kernels import Linear
    >>> kernel = 0.5 * Linear()
    >>> kernel
    Scaled(base=Linear(), scale=0.5)
    >>> kernel(np.array([[2.0]]))
    array([[2.]])
    """

    tag: ClassVar[str] = "scaled"

    base: Kernel
    scale: float

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "scale", positive(self.scale, "the scale of a kernel"))

    @property
    def row_degree(self) -> float | None:
        return self.base.row_degree

    def _block_writer(self, X: Block, Y: Block, dtype: np.dtype[Any]) -> Fill:
        return self._block_writers(Y, dtype)(X)

    def _block_writers(self, Y: Block, dtype: np.dtype[Any]) -> BlockWriters:
        base = self.base.block_writers(Y, dtype)
        return lambda X: self._multiplied(base(X))

    def _multiplied(self, base: Fill) -> Fill:
        def fill(rows: slice, columns: slice, out: FloatArray) -> None:
            base(rows, columns, out)
            out *= self.scale

        return fill

    def _diagonal(self, X: Block) -> npt.NDArray[np.float64]:
        return self.scale * self.base.diagonal_of(X)


@dataclass(frozen=True)
class Normalized(Compound):
    """k(x, z) = k₁(x, z) / √(k₁(x, x) k₁(z, z)): the cosine of φ₁(x) and φ₁(z); 0 where φ₁ is 0.

    Parameters
    ----------
    base : Kernel
        k₁, positive semidefinite.

    See Also
    --------
    dkrr.kernels.Cosine : The dot product of rows of length 1.
    dkrr.kernels.Scaled : A multiple of a kernel.

    Examples
    --------
    >>> import numpy as np
    >>> from dkrr.kernels import Normalized, Polynomial
    >>> Normalized(Polynomial(degree=2, gamma=1.0))(np.array([[0.0], [3.0]]))
    array([[1. , 0.1],
           [0.1, 1. ]])
    """

    tag: ClassVar[str] = "normalized"
    _has_unit_diagonal: ClassVar[bool] = True

    base: Kernel

    @property
    def row_degree(self) -> float | None:
        return None if self.base.row_degree is None else 0

    def _dense_workspace_bytes(self, n_rows: int, n_columns: int, n_features: int) -> int:
        scale_bytes = 4 * 8 * (n_rows + n_columns)
        return super()._dense_workspace_bytes(n_rows, n_columns, n_features) + scale_bytes

    def _block_writer(self, X: Block, Y: Block, dtype: np.dtype[Any]) -> Fill:
        # Scales first: what they need in memory is free again when the block writer of the part is made.
        rows, scales = self.prepared(X, dtype)
        others, theirs = (rows, scales) if Y is X else self.prepared(Y, dtype)
        left, right = scales.astype(dtype, copy=False), theirs.astype(dtype, copy=False)
        base = self.base.block_writer(rows, others, dtype)

        def fill(rows: slice, columns: slice, out: FloatArray) -> None:
            base(rows, columns, out)
            out *= left[rows, np.newaxis]
            out *= right[columns]

        return fill

    def _diagonal(self, X: Block) -> npt.NDArray[np.float64]:
        return (self.prepared(X)[1] > 0).astype(np.float64)

    def prepared(self, X: Block, dtype: npt.DTypeLike = np.float64) -> tuple[Block, npt.NDArray[np.float64]]:
        """Rows of which the part neither overflows nor underflows, where it allows, and 1 / √k₁(x, x), or 0.

        Where k₁(c x, z) is a power of c times k₁(x, z), rows may be multiplied by powers of two, which cancel. The part
        is computed in `dtype`.

        Parameters
        ----------
        X : ndarray or CSR, shape (n_rows, n_features)
            Rows.
        dtype : float64 or float32, default=float64
            Type of the strips, and of the arithmetic.

        Returns
        -------
        rows : ndarray or CSR, shape (n_rows, n_features)
            Rows, multiplied by powers of two where that is needed.
        inverse_lengths : ndarray, shape (n_rows,)
            1 / √k₁(x, x), 0 where k₁(x, x) is.
        """
        diagonal = self.base.diagonal_of(X)
        if self.base.row_degree is not None and not are_moderate(diagonal, dtype):
            X = normalise_exponents(X)
            diagonal = self.base.diagonal_of(X)
        return X, _inverse_roots(diagonal, self.base)


def _inverse_roots(diagonal: npt.NDArray[np.float64], kernel: Kernel) -> npt.NDArray[np.float64]:
    """Turn k(x, x) into 1 / √k(x, x), 0 where it is 0, in place; an error where it is negative or infinite."""
    check_diagonal(diagonal, kernel)
    if diagonal.min(initial=0.0) < 0:
        raise InputError(
            f"k(x, x) = {diagonal.min():.3g} for a row under {kernel!r}; expected at least 0: a kernel that is not "
            "positive semidefinite cannot be normalised"
        )
    np.sqrt(diagonal, out=diagonal)
    np.divide(1.0, diagonal, out=diagonal, where=diagonal > 0)
    return diagonal


MIN_WEIGHT = 1e-3
"""Drawn weights below this are 0: a term with one would cost as much as the others and change next to nothing."""
MAX_WEIGHTED_SUMS = 10**6
"""Largest number of sums that a search may have."""
MAX_DRAWS = 100
"""Draws for each candidate, of which those that repeat another one are dropped."""


def weighted_sums(
    kernels: Sequence[Kernel],
    n_candidates: int = 20,
    *,
    concentration: float | Sequence[float] = (0.1, 1.0),
    random_state: int = 0,
) -> list[Kernel]:
    """Sums w₁k₁ + w₂k₂ + ... to choose among, with weights w ≥ 0 that add up to 1: ``KernelRidgeCV(kernel=...)``.

    The first candidate has equal weights, the next ones a single kernel each; the weights of the others are drawn from
    Dirichlet distributions. With kernels of groups of columns (`Columns`) and λ chosen as well this is banded ridge
    regression by random search. Kernels of different sizes are better scaled first: `Normalized`, or a factor.

    Parameters
    ----------
    kernels : sequence of Kernel
        k₁, k₂, ..., at least two and all different.
    n_candidates : int, default=20
        Number of sums in all, at least one more than kernels.
    concentration : float or sequence of float, default=(0.1, 1.0)
        Parameters of the Dirichlet distributions, in turn: 1 draws all weights with the same density, less prefers
        few large weights. Drawn weights below 0.001 are set to 0.
    random_state : int, default=0
        Seed of the weights that are drawn.

    Returns
    -------
    list of Kernel
        `weights_of` reads the weights of one.

    Raises
    ------
    InputError
        If an argument cannot be used.

    See Also
    --------
    dkrr.kernels.weights_of : Weights of kernels in a sum.
    dkrr.kernels.Columns : A kernel of some of the columns.
    dkrr.KernelRidgeCV : Kernel ridge regression with a choice of λ and kernel.

    References
    ----------
    T. Dupré la Tour, M. Eickenberg, A. O. Nunez-Elizalde, J. L. Gallant, "Feature-space selection with banded ridge
    regression", NeuroImage 264 (2022).

    Examples
    --------
    >>> from dkrr.kernels import RBF, Columns, Linear, weighted_sums, weights_of
    >>> bands = [Columns(RBF(), [0, 1]), Columns(Linear(), [2, 3])]
    >>> candidates = weighted_sums(bands, 4)
    >>> [weights_of(kernel, bands).round(2).tolist() for kernel in candidates]
    [[0.5, 0.5], [1.0, 0.0], [0.0, 1.0], [0.25, 0.75]]
    """
    kernels = _checked(kernels)
    n_kernels = len(kernels)
    n_candidates = whole(
        n_candidates,
        "n_candidates",
        n_kernels + 1,
        "equal weights and every kernel alone are candidates",
        MAX_WEIGHTED_SUMS,
    )
    rng = np.random.default_rng(whole(random_state, "random_state", 0))
    given = np.atleast_1d(numbers(concentration, "concentration", "a number above 0, or several"))
    each = [positive(c, "concentration") for c in given.ravel().tolist()]
    if not each or given.ndim > 1:
        raise InputError(f"concentration is {shown(concentration)}; expected a number above 0, or several")
    weights = {tuple(w): w for w in (np.full(n_kernels, 1.0 / n_kernels), *np.eye(n_kernels))}
    for k in range(MAX_DRAWS * n_candidates):
        if len(weights) == n_candidates:
            return [_sum_of(kernels, w) for w in weights.values()]
        drawn = rng.dirichlet(np.full(n_kernels, each[k % len(each)]))
        drawn[drawn < MIN_WEIGHT] = 0.0
        total = drawn.sum()  # 0 where most of them underflow, NaN where the parameter is too small for float64
        if total > 0:
            weights.setdefault(tuple(drawn / total), drawn / total)
    raise InputError(
        f"concentration is {concentration!r}, which hardly draws anything but single kernels; expected larger numbers, "
        f"such as 0.1 or 1"
    )


def weights_of(kernel: Kernel, kernels: Sequence[Kernel]) -> npt.NDArray[np.float64]:
    """Weights of kernels in a sum of them, such as the one that a search has chosen.

    Parameters
    ----------
    kernel : Kernel
        One of `weighted_sums`, or any sum of scaled kernels: ``search.best_params_["kernel"]``.
    kernels : sequence of Kernel
        As they were given to `weighted_sums`.

    Returns
    -------
    ndarray of shape (n_kernels,)
        0 for kernels that are not in the sum.

    Raises
    ------
    InputError
        If a term of the sum is none of the kernels.

    See Also
    --------
    dkrr.kernels.weighted_sums : Sums of kernels for a search to choose among.

    Examples
    --------
    >>> from dkrr.kernels import Linear, RBF, weights_of
    >>> weights_of(0.25 * RBF() + 0.75 * Linear(), [Linear(), RBF()])
    array([0.75, 0.25])
    """
    kernels = _checked(kernels)
    weights = np.zeros(len(kernels))
    if not isinstance(kernel, Kernel):
        raise InputTypeError(f"kernel is {shown(kernel)}; expected a dkrr.kernels.Kernel: a sum of kernels")
    for weight, term in _terms(kernel, kernels):
        if term not in kernels:
            raise InputError(f"kernel has the term {term!r}, which is not one of kernels; expected a sum of these")
        weights[kernels.index(term)] += weight
    return weights


def _checked(kernels: object) -> list[Kernel]:
    if not isinstance(kernels, Sequence) or isinstance(kernels, str | bytes):
        raise InputTypeError(f"kernels is {shown(kernels)}; expected a list of at least two dkrr.kernels.Kernel")
    kernels = list(kernels)
    for k, kernel in enumerate(kernels):
        if not isinstance(kernel, Kernel):
            raise InputTypeError(f"kernels[{k}] is {shown(kernel)}; expected a dkrr.kernels.Kernel")
        if kernel in kernels[:k]:
            raise InputError(
                f"kernels[{k}] is the same as kernels[{kernels.index(kernel)}]; expected different ones: their sum "
                f"would be one of them, whatever the weights"
            )
    if len(kernels) < 2:
        raise InputError(f"kernels has {len(kernels)} of them; expected at least two")
    return kernels


def _sum_of(kernels: Sequence[Kernel], weights: npt.NDArray[np.float64]) -> Kernel:
    terms = [k if w == 1.0 else Scaled(k, float(w)) for k, w in zip(kernels, weights, strict=True) if w > 0]
    total, *rest = terms
    for term in rest:
        total = Sum(total, term)
    return total


def _terms(kernel: Kernel, known: Sequence[Kernel]) -> Iterator[tuple[float, Kernel]]:
    """Weights and kernels of a sum; a known kernel is a term, whatever it is made of."""
    if kernel in known:
        yield 1.0, kernel
    elif isinstance(kernel, Sum):
        yield from _terms(kernel.left, known)
        yield from _terms(kernel.right, known)
    elif isinstance(kernel, Scaled):
        for weight, term in _terms(kernel.base, known):
            yield kernel.scale * weight, term
    else:
        yield 1.0, kernel
