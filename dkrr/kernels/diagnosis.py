"""Whether a kernel is positive definite on given rows, judged by the eigenvalues of a sample."""

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import scipy.linalg
import scipy.sparse as sp

from dkrr.checks import shown, whole
from dkrr.errors import InputError, InputTypeError
from dkrr.kernels.base import Kernel
from dkrr.kernels.blocks import as_rows

Verdict = Literal["indefinite", "semidefinite", "definite"]


@dataclass(frozen=True)
class SampledSpectrum:
    """Extreme eigenvalues of the kernel matrix of some of the rows. Made by `smallest_eigenvalue`.

    The matrix of a sample is a principal submatrix, so its eigenvalues lie between those of the whole one (Cauchy's
    interlacing theorem): a negative one proves that the kernel is indefinite, a positive one does not prove that the
    whole matrix is definite.

    References
    ----------
    R. A. Horn, C. R. Johnson, "Matrix Analysis", 2nd edition, Cambridge University Press 2013, theorem 4.3.28.
    """

    smallest: float
    """Upper bound of the smallest eigenvalue of the whole matrix."""

    largest: float
    """Lower bound of the largest one."""

    n_sampled: int
    """Rows of the sample."""

    n_rows: int
    """Rows from which it was drawn."""

    @property
    def rounding(self) -> float:
        """Eigenvalues below this in absolute value cannot be told from zero in float64: n · eps · the largest."""
        return self.n_sampled * float(np.finfo(np.float64).eps) * max(abs(self.smallest), abs(self.largest))

    @property
    def verdict(self) -> Verdict:
        """Kind of the sample's matrix: "indefinite", "semidefinite" to rounding (that is, singular), or "definite"."""
        if self.smallest < -self.rounding:
            return "indefinite"
        return "definite" if self.smallest > self.rounding else "semidefinite"

    def __str__(self) -> str:
        whole = self.n_sampled == self.n_rows
        rows = f"all {self.n_rows:,} rows" if whole else f"{self.n_sampled:,} of {self.n_rows:,} rows"
        found = f"eigenvalues from {self.smallest:.3g} to {self.largest:.3g} on {rows} (rounding: {self.rounding:.1g})"
        if self.verdict == "indefinite":
            bound = f"alpha must exceed {-self.smallest:.3g}" + ("" if whole else ", for all rows perhaps by far")
            return f"{found}: indefinite, no feature map has this kernel; {bound}"
        if self.verdict == "semidefinite":
            return (
                f"{found}: positive semidefinite to rounding, and singular, as where rows repeat or features are fewer "
                f"than rows; alpha = 0 will fail in the dual form, alpha well above {self.rounding:.1g} will do"
            )
        suffix = "" if whole else "; the smallest of all rows may be smaller"
        return f"{found}: positive definite, condition {self.largest / self.smallest:.2g}{suffix}"


def smallest_eigenvalue(kernel: Kernel, X: Any, *, n_sample: int = 1000, random_state: int = 0) -> SampledSpectrum:
    """Extreme eigenvalues of the kernel matrix of a sample of rows, to see whether it is positive definite.

    Takes O(m²) memory and O(m³) time for a sample of m rows: about a second for 1,000.

    Parameters
    ----------
    kernel : Kernel
        Kernel to examine.
    X : ndarray or CSR, shape (n_rows, n_features), or data of the kind that the kernel takes
        The Gram matrix, for a precomputed kernel.
    n_sample : int, default=1000
        Rows that are drawn without replacement, at least 1; all of them if X has fewer.
    random_state : int, default=0
        Seed of the sample.

    Returns
    -------
    SampledSpectrum
        Eigenvalues `smallest` and `largest` of a sample of `n_sampled` of the `n_rows` rows. Those below `rounding` in
        absolute value cannot be told from zero; the `verdict` is "indefinite", "semidefinite" to rounding (that is,
        singular) or "definite". ``print`` interprets the numbers.

    Raises
    ------
    InputError
        If X has no rows, or the kernel of the sample holds NaN or infinity.

    See Also
    --------
    dkrr.kernels.Sigmoid : The hyperbolic tangent of the dot product.
    dkrr.kernels.Precomputed : X is the Gram matrix itself.

    Examples
    --------
    >>> import numpy as np
    >>> from dkrr.kernels import RBF, Sigmoid, smallest_eigenvalue
    >>> X = np.random.default_rng(0).standard_normal((200, 3))
    >>> smallest_eigenvalue(RBF(), X).verdict, smallest_eigenvalue(Sigmoid(), X).verdict
    ('definite', 'indefinite')
    """
    if not isinstance(kernel, Kernel):
        raise InputTypeError(f"kernel is {shown(kernel)}; expected a dkrr.kernels.Kernel, such as RBF()")
    n_sample, random_state = whole(n_sample, "n_sample", 1), whole(random_state, "random_state", 0)
    kernel = kernel.fitted(X)
    rows = as_rows(kernel.encode(X))
    n = rows.shape[0]
    if n == 0:
        raise InputError("X has no rows; expected at least 1")
    if kernel.is_precomputed and rows.shape[1] != n:
        raise InputError(f"the precomputed Gram matrix has shape {rows.shape}; expected a square matrix")
    if n > n_sample:
        chosen = np.sort(np.random.default_rng(random_state).choice(n, n_sample, replace=False))
        rows = rows[chosen]
        if kernel.is_precomputed:
            rows = rows[:, chosen]
    if not np.isfinite(rows.data if sp.issparse(rows) else rows).all():
        raise InputError("X holds NaN or infinity; expected finite numbers")
    K = kernel(rows)
    if not np.isfinite(K).all():
        raise InputError(f"X: the matrix of {kernel!r} holds NaN or infinity; expected finite numbers: check X")
    values = scipy.linalg.eigvalsh(K, overwrite_a=True, check_finite=False)
    return SampledSpectrum(float(values[0]), float(values[-1]), len(values), n)
