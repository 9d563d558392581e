"""Table of all solvers: a new one is a function that yields priced candidates, and a line here."""

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Literal

from dkrr.fitting.methods.dual_cg import multiplied_dual
from dkrr.fitting.methods.dual_cholesky import factored_dual
from dkrr.fitting.methods.primal_cholesky import curvature_in_memory, factored_primal, streamed_primal
from dkrr.fitting.methods.transforms import fourier_factored, fourier_iterated
from dkrr.linalg.solver_settings import Cholesky, ConjugateGradient, Float32Cholesky
from dkrr.planning.problem import Form, Loss, Problem
from dkrr.planning.resources import Resources
from dkrr.planning.strategy import Solver, Strategy

Candidates = Callable[[Problem, Resources], Iterable[Strategy]]


def streamed_where_requested(p: Problem, r: Resources) -> Iterable[Strategy]:
    """Products where factors of K in float32 were requested, which the primal form does not have."""
    return streamed_primal(p, r) if p.settings is not None else ()


METHODS: Mapping[tuple[Loss, Form | Literal["fourier"], Solver], Candidates] = {
    ("squared", "dual", "cholesky"): partial(factored_dual, itemsize=8),
    ("squared", "dual", "float32"): partial(factored_dual, itemsize=4),
    ("squared", "dual", "cg"): multiplied_dual,
    ("squared", "primal", "cholesky"): factored_primal,
    ("squared", "primal", "cg"): streamed_primal,
    ("logistic", "dual", "cholesky"): partial(factored_dual, itemsize=8),
    ("logistic", "dual", "float32"): partial(factored_dual, itemsize=4),
    ("logistic", "dual", "cg"): multiplied_dual,
    ("logistic", "primal", "cholesky"): curvature_in_memory,
    ("logistic", "primal", "float32"): streamed_where_requested,
    ("logistic", "primal", "cg"): streamed_primal,
    ("squared", "fourier", "cholesky"): fourier_factored,
    ("squared", "fourier", "cg"): fourier_iterated,
    ("logistic", "fourier", "cholesky"): fourier_factored,
}
"""Candidates by loss, form (the primal one also by transforms) and solver, those in memory first."""


def solvers_in_form(p: Problem, form: Form) -> Iterable[tuple[Solver, Candidates]]:
    """Solvers in a form that the user's request allows, direct ones first, each with its candidates."""
    solvers: tuple[Solver, ...] = ("cholesky", "float32", "cg")
    if isinstance(p.settings, Cholesky):
        solvers = ("cholesky",)
    elif isinstance(p.settings, ConjugateGradient):
        solvers = ("float32",) if isinstance(p.settings.preconditioner, Float32Cholesky) else ("cg",)
    is_transform = form == "primal" and p.feature_map is not None and p.feature_map.is_transform
    kind: Form | Literal["fourier"] = "fourier" if is_transform else form
    return [(solver, METHODS[p.loss, kind, solver]) for solver in solvers if (p.loss, kind, solver) in METHODS]
