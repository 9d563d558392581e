"""Sums of kernels whose weights are to be chosen, and the weights of one that was."""

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from dkrr.errors import InputError, InputTypeError
from dkrr.kernels.base import Kernel
from dkrr.kernels.composite import Scaled, Sum
from dkrr.values import numbers, positive, shown, whole

MIN_WEIGHT = 1e-3
"""Drawn weights below this are 0: a term with one would cost as much as the others and change next to nothing."""
MAX_CANDIDATES = 10**6
"""No search has more sums."""
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
    n_candidates : int
        Number of sums in all, at least one more than kernels.
    concentration : float or sequence of float
        Parameters of the Dirichlet distributions, in turn: 1 draws all weights with the same density, less prefers
        few large weights. Drawn weights below 0.001 are set to 0.
    random_state : int

    Returns
    -------
    list of Kernel
        `weights_of` reads the weights of one.

    Raises
    ------
    InputError
        If an argument cannot be used.

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
        MAX_CANDIDATES,
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
        total = drawn.sum()  # 0 where so many are so small, NaN where the parameter is too small for float64
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
