"""Convex objective that Newton's method minimises, of one system or several, at a point."""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dkrr.errors import NotFiniteError

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]


@dataclass(frozen=True)
class Point:
    """Coefficients and intercepts of m models, and what else an interrupted run knew there."""

    coef: Array
    """α, of shape (n, m), or β, of shape (D, m)."""
    intercept: Array
    """b, of shape (m,)."""
    scores: Array | None = None
    """f, of shape (n, m), by the recurrence of the steps: from them a run resumes with the same bits."""
    gradients: Array | None = None
    """Norms of the gradient, of shape (n_systems,)."""

    def arrays(self) -> dict[str, Array]:
        """All that is known, as matrices by name."""
        known = {"coef": self.coef, "intercept": self.intercept, "scores": self.scores, "gradients": self.gradients}
        return {name: np.atleast_2d(array) for name, array in known.items() if array is not None}

    @classmethod
    def from_arrays(cls, arrays: dict[str, Array]) -> "Point":
        """Undo `arrays`."""
        gradients = arrays["gradients"][0] if "gradients" in arrays else None
        return cls(arrays["coef"], arrays["intercept"][0], arrays.get("scores"), gradients)


class Objective(ABC):
    """A point, and the convex objective there, of every system; shape (n_systems,) throughout.

    It is complete once it is made: values, gradients and references belong to its first point.
    """

    values: Array
    """Objective at the point."""
    gradients: Array
    """Norm of its gradient."""
    references: Array
    """Norm of its gradient where all scores are 0, by which gradients are judged."""
    messages: list[str]
    """Reports of an iterative solver."""
    inner_iterations: int = 0
    """Iterations of the iterative solver, over all steps."""
    unit: float = 1.0
    """Divisor of the objective; reports are in units of the user."""

    def check_finite(self) -> None:
        """Raise NotFiniteError if a value, a gradient or a reference is infinite or NaN."""
        names = ("objective", "norm of the gradient", "norm of the gradient at zero")
        for name, part in zip(names, (self.values, self.gradients, self.references), strict=True):
            if not np.isfinite(part).all():
                raise NotFiniteError(
                    f"the {name} of kernel logistic regression is {part[~np.isfinite(part)][0]}: sums leave the range "
                    f"of float64 (1e308); expected finite numbers: rescale the columns of X, or the kernel"
                )

    @property
    @abstractmethod
    def point(self) -> Point:
        """The point."""

    def verify(self, tol: float) -> bool:  # noqa: ARG002
        """Recompute values and gradients if they follow from a recurrence, and return whether they did.

        Parameters
        ----------
        tol : float
            Relative norm of the gradient above which a bound of it is not enough.
        """
        return False

    def decrements(self, wanted: Mask) -> Array | None:  # noqa: ARG002
        """Newton's decrements gᵀH⁻¹g at the point, or upper bounds of them, if they cost far less than a step.

        Parameters
        ----------
        wanted : ndarray of bool, shape (n_systems,)
            Systems that they are needed of; entries of the others mean nothing.

        Returns
        -------
        ndarray of shape (n_systems,) or None
        """
        return None

    def sensitivities(self) -> Array:
        """Largest change of a probability in a Newton step over the root of the decrement, or bounds of it."""
        return np.full(len(self.values), 0.5)  # of a row of weight 1: p (1 - p) |Δf| ≤ ½ √w |Δf| ≤ ½ √(gᵀH⁻¹g)

    @abstractmethod
    def find_direction(self, is_open: Mask, forcing: float) -> Array:
        """Solve the Newton systems of the open ones; the slopes of the objective along their directions.

        Parameters
        ----------
        is_open : ndarray of bool, shape (n_systems,)
        forcing : float
            Relative residual that the solution may leave.
        """

    @abstractmethod
    def along(self, lengths: Array) -> Array:
        """Objective after a step of these lengths."""

    @abstractmethod
    def step(self, lengths: Array) -> None:
        """Take the step, and compute values and gradients there."""
