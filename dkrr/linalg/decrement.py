"""Bounds of Newton's decrement in the dual form, and of what it means for probabilities, without a product with K.

At a point with the derivatives g and W = C Cᵀ of the likelihood and r = g + 2λα, the gradient of the objective is
G = (Φᵀr, 1ᵀg) for f = Φβ + b, and the decrement GᵀH⁻¹G with the Hessian H. Since H is neither less than that of the
likelihood nor, but for b, than 2λ, a part Cq of r adds no more than ‖q‖ to the root of the decrement, and a part d
with 1ᵀd = 0 no more than ‖Φᵀd‖ / √(2λ). A sum s of d is moved to q in proportion to W, which adds |s| / √ΣW.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dkrr.linalg.likelihood import Likelihood
from dkrr.linalg.roots import Root

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Penalty:
    """What holds the functions: 2λ, and the rows' lengths in the kernel's space."""

    shift: float
    """2λ."""
    largest: float
    """Largest k(x, x)."""
    fit_intercept: bool

    @property
    def reach(self) -> float:
        """√(max k(x, x) / 2λ): how far a step of decrement 1 can move a score, but for the intercept."""
        return float(np.sqrt(self.largest) / np.sqrt(self.shift))


def decrement_bounds(
    likelihood: Likelihood, root: Root, penalty: Penalty, norms: Array, residual: Array, sums: Array, coef_sums: Array
) -> Array:
    """Upper bounds of Newton's decrement of every system, of shape (n_systems,).

    Parameters
    ----------
    likelihood : Likelihood
    root : Root
        C at the point.
    penalty : Penalty
    norms : ndarray of shape (n_systems,)
        ‖G‖.
    residual : ndarray of shape (n, m)
        r.
    sums : ndarray of shape (m,)
        1ᵀg.
    coef_sums : ndarray of shape (m,)
        1ᵀα, 0 but for rounding once a step has been taken.
    """
    reach = penalty.reach
    # Where C reproduces r badly the penalty bounds what is left better.
    q = root.invert(residual, root.scale**2 * penalty.largest >= penalty.shift)
    rest = residual - root.apply(q)
    whole = norms / np.sqrt(penalty.shift)
    parts = np.sqrt(likelihood.per_system((q**2).sum(axis=0))) + reach * likelihood.per_system(np.abs(rest).sum(axis=0))
    if penalty.fit_intercept:
        moved = reach + _flatness(root)
        whole = whole + moved * _lengths(likelihood, sums)
        parts = parts + moved * _lengths(likelihood, rest.sum(axis=0) - penalty.shift * coef_sums)
    return np.asarray(np.minimum(whole, parts) ** 2)


def _lengths(likelihood: Likelihood, of_columns: Array) -> Array:
    return np.asarray(np.sqrt(likelihood.per_system(of_columns**2)))


def _flatness(root: Root) -> Array:
    """1 / √ΣW of every system, for a softmax in its flattest direction but for that of equal scores."""
    inverse = root.inverse_total()
    if root.is_coupled:
        return np.sqrt(np.atleast_1d(np.linalg.norm(inverse, 2)))
    return np.asarray(np.sqrt(inverse.diagonal()))


def sensitivities(root: Root, penalty: Penalty, weights: Array | None) -> Array:
    """Bounds of the change of any probability in a step of decrement 1, of shape (n_systems,).

    Such a step changes the score of a row by 1 / c at most, and by √(max k(x, x) / 2λ) but for the intercept, which the
    row of the largest c holds. Rows of weight 0 do not count.

    Parameters
    ----------
    root : Root
        C of rows of weight 1.
    penalty : Penalty
    weights : ndarray of shape (n,), optional
    """
    own = root.scale
    if weights is None:
        found = own.max(axis=0)
    else:
        used = weights > 0
        own, roots = own[used], np.sqrt(weights[used])[:, None]
        far = np.full(own.shape[1], penalty.reach)
        if penalty.fit_intercept:
            top = (own * roots).max(axis=0, initial=0.0)
            far = 2 * far + np.divide(1.0, top, out=np.full_like(top, np.inf), where=top > 0)
        found = np.minimum(own / roots, own**2 * far).max(axis=0, initial=0.0)
    return np.asarray(np.sqrt(2.0) * found.max(keepdims=True) if root.is_coupled else found)
