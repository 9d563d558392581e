"""The fit of all rows, which is solved for beside those of the folds."""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from dkrr.fitting.requests import DualStart

Array = NDArray[np.float64]
Numbers = NDArray[np.intp]


@dataclass
class Refit:
    """Solutions for all rows with the λ that one kernel's scores choose.

    Parameters
    ----------
    tol : float
        Relative residual to which they are solved.
    """

    tol: float
    iterations: int = 0
    """Of the run that solved for them, the folds included."""
    _solutions: dict[int, Array] = field(default_factory=dict)
    _constants: dict[float, Array] = field(default_factory=dict)
    _alphas: dict[int, float] = field(default_factory=dict)

    def take(self, targets: Numbers, alphas: Array, solutions: Array, constants: Array | None) -> None:
        """Take the solutions of some targets, (n, t'), and of their constants, if these are free."""
        for j, (target, alpha) in enumerate(zip(targets.tolist(), alphas.tolist(), strict=True)):
            self._solutions[target], self._alphas[target] = solutions[:, j], alpha
            if constants is not None:
                self._constants[alpha] = constants[:, j]

    def start(self, n_targets: int) -> DualStart | None:
        """What the last fit begins from; None unless every target has a solution."""
        if len(self._solutions) < n_targets:
            return None
        note = f"continued from the solution for all rows of the selection's run of {self.iterations} iterations"
        solutions = np.column_stack([self._solutions[j] for j in range(n_targets)])
        return DualStart(solutions, self._constants, np.array([self._alphas[j] for j in range(n_targets)]), note)
