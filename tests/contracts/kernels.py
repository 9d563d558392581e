"""The table of kernels: a row here puts a kernel through the whole contract."""

from dataclasses import dataclass

import numpy as np
from sklearn.gaussian_process.kernels import Matern as SklearnMatern
from sklearn.metrics import pairwise

from dkrr.kernels import (
    RBF,
    AdditiveChi2,
    Categories,
    Chi2,
    Cosine,
    Kernel,
    Laplacian,
    Linear,
    Matern,
    Normalized,
    Polynomial,
    Sigmoid,
    TaylorRBF,
)


@dataclass(frozen=True)
class Case:
    kernel: Kernel
    reference: object = None  # scikit-learn's function of (X, Y); None: the naive loops alone
    semidefinite: bool = True
    non_negative: bool = False  # takes non-negative dense features only
    repeats: bool = False  # runs the same code as another row, with other numbers
    whole: bool = False  # tells only equal numbers apart: rows of a few

    def __str__(self):
        return str(self.kernel)

    def rows(self, n, d, seed=0):
        X = np.random.default_rng(seed).standard_normal((n, d))
        X = np.rint(X) if self.whole else X
        return np.abs(X) if self.non_negative else X


CASES = [
    Case(Linear(), pairwise.linear_kernel),
    Case(Polynomial(), pairwise.polynomial_kernel, repeats=True),
    Case(Polynomial(degree=1, gamma=0.7, coef0=0.0), repeats=True),
    Case(
        Polynomial(degree=5, gamma=0.3, coef0=2.0),
        lambda X, Y: pairwise.polynomial_kernel(X, Y, degree=5, gamma=0.3, coef0=2.0),
    ),
    Case(Polynomial(degree=0, gamma=1.0)),
    Case(
        Polynomial(degree=1.5, gamma=0.01, coef0=5.0),
        lambda X, Y: pairwise.polynomial_kernel(X, Y, degree=1.5, gamma=0.01, coef0=5.0),
        semidefinite=False,
    ),
    Case(Sigmoid(), pairwise.sigmoid_kernel, semidefinite=False),
    Case(Cosine(), pairwise.cosine_similarity),
    Case(RBF(), pairwise.rbf_kernel, repeats=True),
    Case(RBF(gamma=0.37), lambda X, Y: pairwise.rbf_kernel(X, Y, gamma=0.37)),
    Case(Laplacian(), pairwise.laplacian_kernel, repeats=True),
    Case(Laplacian(gamma=0.2), lambda X, Y: pairwise.laplacian_kernel(X, Y, gamma=0.2)),
    *(
        Case(Matern(nu, length), SklearnMatern(length_scale=length, nu=nu), repeats=length == 1.0)
        for nu in (0.5, 1.5, 2.5)
        for length in (1.0, 3.7)
    ),
    Case(AdditiveChi2(), pairwise.additive_chi2_kernel, semidefinite=False, non_negative=True),
    Case(Chi2(gamma=0.4), lambda X, Y: pairwise.chi2_kernel(X, Y, gamma=0.4), non_negative=True),
    Case(Categories(), whole=True),
    Case(Categories(0.3), whole=True),
    Case(TaylorRBF(4)),
    Case(TaylorRBF(30, 0.3), repeats=True),
    Case(Normalized(Polynomial(degree=2))),
    Case(Normalized(Linear() + 0.3 * RBF())),
    Case(Categories(0.1) * RBF(0.2) + Linear(), whole=True),
    Case(RBF(gamma=0.2) + 0.5 * Linear()),
    Case(Polynomial(degree=2) * Laplacian()),
    Case(2.5 * (RBF() + Cosine() * Matern(1.5))),
]

DISTINCT = [case for case in CASES if not case.repeats]
"""For what does not depend on the numbers: blocks, strips, workspaces, and what is built on kernels."""
