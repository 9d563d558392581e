"""The table of kernels: a row here puts a kernel through the whole contract."""

from dataclasses import dataclass

import numpy as np

from dkrr import kernels as k


@dataclass(frozen=True)
class Case:
    kernel: k.Kernel
    non_negative: bool = False  # takes non-negative dense features only
    repeats: bool = False  # runs the same code as another row, with other numbers
    whole: bool = False  # tells only equal numbers apart: rows of a few
    far: float = 1e6  # factor of rows that are far from each other

    def __str__(self):
        return str(self.kernel)

    def rows(self, n, d, seed=0):
        X = np.random.default_rng(seed).standard_normal((n, d))
        X = np.rint(X) if self.whole else X
        return np.abs(X) if self.non_negative else X


CASES = [
    Case(k.Linear()),
    Case(k.Polynomial(), repeats=True),
    Case(k.Polynomial(degree=1, gamma=0.7, coef0=0.0), repeats=True),
    Case(k.Polynomial(degree=5, gamma=0.3, coef0=2.0)),
    Case(k.Polynomial(degree=0, gamma=1.0)),
    Case(k.Polynomial(degree=1.5, gamma=0.01, coef0=5.0), far=0.1),
    Case(k.Sigmoid()),
    Case(k.Cosine()),
    Case(k.RBF(), repeats=True),
    Case(k.RBF(gamma=0.37)),
    Case(k.Laplacian(), repeats=True),
    Case(k.Laplacian(gamma=0.2)),
    *(Case(k.Matern(nu, length), repeats=length == 1.0) for nu in (0.5, 1.5, 2.5) for length in (1.0, 3.7)),
    Case(k.AdditiveChi2(), non_negative=True),
    Case(k.Chi2(gamma=0.4), non_negative=True),
    Case(k.Categories(), whole=True),
    Case(k.Categories(0.3), whole=True),
    Case(k.TaylorRBF(0), repeats=True),
    Case(k.TaylorRBF(4)),
    Case(k.TaylorRBF(30, 0.3), repeats=True),
    Case(k.Normalized(k.Polynomial(degree=2))),
    Case(k.Normalized(k.Linear() + 0.3 * k.RBF())),
    Case(k.Categories(0.1) * k.RBF(0.2) + k.Linear(), whole=True),
    Case(k.RBF(gamma=0.2) + 0.5 * k.Linear()),
    Case(k.Polynomial(degree=2) * k.Laplacian()),
    Case(2.5 * (k.RBF() + k.Cosine() * k.Matern(1.5))),
]

DISTINCT = [case for case in CASES if not case.repeats]
"""For what does not depend on the numbers: blocks, strips, workspaces, and what is built on kernels."""
