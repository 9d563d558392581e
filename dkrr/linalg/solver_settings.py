"""Settings of the solvers: values that do no work."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from dkrr.checks import MAX_WHOLE, choice, is_real, shown
from dkrr.errors import InputError


@dataclass(frozen=True)
class RPCholesky:
    """Preconditioner of randomly pivoted partial Cholesky: the most robust choice for kernel matrices.

    Parameters
    ----------
    rank : int, optional
        Columns of the factor; None: as many as pay, found while it is built, within the memory.
    random_state : int, default=0
        Seed of the random pivots.

    See Also
    --------
    dkrr.solvers.ConjugateGradient : Settings of the iterative solver.
    dkrr.solvers.Float32Cholesky : A complete factor in float32 as preconditioner.

    Examples
    --------
    >>> import numpy as np
    >>> from dkrr import KernelRidge
    >>> from dkrr.solvers import ConjugateGradient, RPCholesky
    >>> X = np.random.default_rng(0).normal(size=(100, 2))
    >>> solver = ConjugateGradient(RPCholesky(rank=20))
    >>> KernelRidge(kernel="rbf", solver=solver).fit(X, X[:, 0]).solve_result_.rank
    20
    """

    rank: int | None = None
    random_state: int = 0

    def __post_init__(self) -> None:
        if self.rank is not None and not _is_whole(self.rank, 1):
            raise InputError(
                f"rank is {shown(self.rank)}; expected a whole number of at least 1, or None to choose it automatically"
            )
        if not _is_whole(self.random_state, 0):
            raise InputError(f"random_state is {shown(self.random_state)}; expected a whole number of at least 0")


@dataclass(frozen=True)
class Float32Cholesky:
    """Preconditioner of a complete Cholesky factorisation in float32.

    Half the disk and about half the time of the direct solver; a few iterations bring the residual to float64's.

    See Also
    --------
    dkrr.solvers.ConjugateGradient : Settings of the iterative solver.
    dkrr.solvers.RPCholesky : A partial factor as preconditioner.
    dkrr.solvers.Cholesky : Settings of the direct solver.

    Examples
    --------
    >>> import numpy as np
    >>> from dkrr import KernelRidge
    >>> from dkrr.solvers import ConjugateGradient, Float32Cholesky
    >>> X = np.random.default_rng(0).normal(size=(100, 2))
    >>> solver = ConjugateGradient(Float32Cholesky())
    >>> model = KernelRidge(kernel="rbf", solver=solver, tol=1e-10).fit(X, X[:, 0])
    >>> model.solve_result_.residual <= 1e-10
    True
    """


PreconditionerSettings = RPCholesky | Float32Cholesky


@dataclass(frozen=True)
class ConjugateGradient:
    """Settings of the iterative solver.

    Parameters
    ----------
    preconditioner : RPCholesky, Float32Cholesky, "auto" or None, default="auto"
        "auto": the planner chooses; None: none.
    precision : {"auto", "mixed", "float64"}, default="auto"
        "mixed" multiplies in float32 within a cycle and computes the true residual between cycles in float64, so that
        the requested accuracy is met in float64 all the same. "auto": the planner takes what should be faster.
    max_iter : int, default=1000
        Largest number of iterations, over all cycles.

    See Also
    --------
    dkrr.solvers.RPCholesky : A partial factor as preconditioner.
    dkrr.solvers.Float32Cholesky : A complete factor in float32 as preconditioner.
    dkrr.solvers.Cholesky : Settings of the direct solver.

    Examples
    --------
    >>> import numpy as np
    >>> from dkrr import KernelRidge
    >>> from dkrr.solvers import ConjugateGradient, RPCholesky
    >>> X = np.random.default_rng(0).normal(size=(500, 3))
    >>> solver = ConjugateGradient(RPCholesky(rank=50), max_iter=200)
    >>> model = KernelRidge(kernel="rbf", alpha=0.1, solver=solver, tol=1e-6).fit(X, X[:, 0])
    >>> model.solve_result_.status.name, model.solve_result_.residual <= 1e-6
    ('CONVERGED', True)
    """

    preconditioner: PreconditionerSettings | Literal["auto"] | None = "auto"
    precision: Literal["auto", "mixed", "float64"] = "auto"
    max_iter: int = 1000

    def __post_init__(self) -> None:
        is_named = self.preconditioner is None or (
            isinstance(self.preconditioner, str) and self.preconditioner == "auto"
        )
        if not (is_named or isinstance(self.preconditioner, PreconditionerSettings)):
            raise InputError(
                f"preconditioner is {shown(self.preconditioner)}; expected 'auto', None, or one of RPCholesky() "
                f"and Float32Cholesky() of dkrr.solvers"
            )
        choice(self.precision, "precision", ("auto", "mixed", "float64"))
        if not _is_whole(self.max_iter, 1):
            raise InputError(
                f"max_iter is {shown(self.max_iter)}; expected a whole number of at least 1: it bounds the iterations"
            )

    @property
    def rank(self) -> int | None:
        """Rank of the preconditioner's factor that was requested; None: left open."""
        return self.preconditioner.rank if isinstance(self.preconditioner, RPCholesky) else None


def _is_whole(value: object, least: int) -> bool:
    return isinstance(value, int | np.integer) and is_real(value) and least <= int(value) <= MAX_WHOLE


@dataclass(frozen=True)
class Cholesky:
    """Settings of the direct solver (none): A + diag(s) = L Lᵀ, then two substitutions.

    See Also
    --------
    dkrr.solvers.ConjugateGradient : Settings of the iterative solver.
    dkrr.solvers.Float32Cholesky : A complete factor in float32 as preconditioner.

    Examples
    --------
    >>> import numpy as np
    >>> from dkrr import KernelRidge
    >>> from dkrr.solvers import Cholesky
    >>> model = KernelRidge(kernel="rbf", solver=Cholesky()).fit(np.eye(3), [1.0, 2.0, 3.0])
    >>> model.plan_.solver, model.solve_result_.iterations
    ('cholesky', 0)
    """
