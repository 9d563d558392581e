"""Logarithm of the determinant of A + diag(s), estimated from the coefficients of conjugate gradient.

With a preconditioner M and probes ε from N(0, M)::

    log |A + s| = log |M| + tr log H,    H = M^(−1/2) (A + s) M^(−1/2),    tr log H = E[gᵀ log(H) g],  g = M^(−1/2) ε

The coefficients of conjugate gradient for ε make up Lanczos's tridiagonal matrix of H with the start g, whose
eigenvalues and eigenvectors are Gauss's quadrature of gᵀ log(H) g; gᵀg = εᵀM⁻¹ε. The better M, the nearer H is to the
identity and the smaller the spread over the probes, which gives the standard error.

References
----------
S. Ubaru, J. Chen, Y. Saad, "Fast estimation of tr(f(A)) via stochastic Lanczos quadrature", SIAM J. Matrix Anal. Appl.
38 (2017). J. Gardner, G. Pleiss, D. Bindel, K. Weinberger, A. Wilson, "GPyTorch: blackbox matrix-matrix Gaussian
process inference with GPU acceleration", NeurIPS 2018. J. Wenger, G. Pleiss, P. Hennig, J. Cunningham, J. Gardner,
"Preconditioning for scalable Gaussian process hyperparameter optimization", ICML 2022.
"""

import numpy as np
import scipy.linalg
from numpy.typing import NDArray

from dkrr.errors import NotPositiveDefiniteError
from dkrr.linalg.iteration_state import State

Array = NDArray[np.float64]


class LanczosTrace:
    """Coefficients of the first cycle of conjugate gradient for the probes, from the hooks of an `Iteration`.

    Parameters
    ----------
    probes : slice
        Columns of the probes.
    """

    def __init__(self, probes: slice) -> None:
        self._probes = range(probes.start, probes.stop)
        self._steps = {j: list[float]() for j in self._probes}
        self._products = {j: list[float]() for j in self._probes}
        self._is_first = True

    def on_cycle(self, state: State) -> None:
        """Note rᵀz before the first step; another cycle begins with another vector, and is ignored."""
        cycle = state.cycle
        assert cycle is not None
        self._is_first = not any(self._products.values())
        if self._is_first:
            for column, product in zip(cycle.columns, cycle.product, strict=True):
                if column in self._products:
                    self._products[int(column)].append(float(product))

    def on_step(self, columns: NDArray[np.intp], step: Array, direction: Array) -> None:  # noqa: ARG002
        """Note the step lengths."""
        if self._is_first:
            for column, length in zip(columns, step, strict=True):
                if column in self._steps:
                    self._steps[int(column)].append(float(length))

    def on_iteration(self, state: State) -> None:
        """Note rᵀz after the step, of the columns that go on."""
        cycle = state.cycle
        assert cycle is not None
        if self._is_first:
            for column, product in zip(cycle.columns, cycle.product, strict=True):
                known = self._products.get(int(column))
                if known is not None and len(known) == len(self._steps[int(column)]) and product != known[-1]:
                    known.append(float(product))

    def values(self, sizes: Array) -> Array:
        """gᵀ log(H) g of every probe.

        Parameters
        ----------
        sizes : ndarray of shape (n_probes,)
            What the iteration divides the probes by.
        """
        found = [
            size**2 * log_quadrature(np.array(self._steps[j]), np.array(self._products[j]))
            for j, size in zip(self._probes, sizes, strict=True)
        ]
        return np.array(found)


def log_quadrature(steps: Array, products: Array) -> float:
    """gᵀ log(H) g from the step lengths of conjugate gradient and rᵀz before each of them.

    Raises
    ------
    NotPositiveDefiniteError
        If H has an eigenvalue that is not positive.
    """
    k = len(steps)
    if k == 0:
        return 0.0
    beta = products[1:k] / products[: k - 1]
    diagonal = 1.0 / steps
    diagonal[1:] += beta / steps[:-1]
    values, vectors = scipy.linalg.eigh_tridiagonal(diagonal, np.sqrt(beta) / steps[:-1])
    if not (values > 0).all():
        raise NotPositiveDefiniteError("conjugate gradient found an eigenvalue that is not positive", -1)
    return float(products[0] * (vectors[0] ** 2 @ np.log(values)))
