"""What was planned and what was measured lie side by side, by the same names."""

import numpy as np
import pytest

from dkrr import KernelLogisticRegression, KernelRidge
from dkrr.solvers import ConjugateGradient, Float32Cholesky

RNG = np.random.default_rng(3)
X = RNG.standard_normal((90, 4))
SOLVERS = {"cholesky": "cholesky", "cg": "cg", "float32": ConjugateGradient(Float32Cholesky())}
OUTPUTS = {KernelRidge: np.sin(X[:, 0]), KernelLogisticRegression: np.digitize(X[:, 0], [-0.5, 0.5])}
FORMED_AT_FIRST_USE = {"Gram matrix", "reading X"}
"""Tiles and rows that conjugate gradient keeps: a product forms or reads those that are missing."""


def ways():
    for estimator in OUTPUTS:
        for form in ("dual", "primal"):
            for solver in SOLVERS:
                for is_stored in (False, True):
                    if solver != "float32" or form == "dual":
                        yield pytest.param(estimator, form, solver, is_stored)


def fitted(estimator, store, X, **settings):
    if store is not None:
        settings |= {"store": str(store), "tile": 40}
    if estimator is KernelRidge:
        settings["fit_intercept"] = True
    return estimator(alpha=0.5, progress=False, **settings).fit(X, OUTPUTS[estimator])


def check_names(model):
    """Every stage that should take time was measured, and every stage that was measured is in the plan."""
    strategy = model.plan_.chosen
    planned = {s.name: s.seconds for s in strategy.stages}
    measured = {s.name: s.seconds for s in model.solve_result_.stages}
    assert set(measured) <= set(planned)
    assert all(seconds >= 0 for seconds in measured.values())
    missing = {name for name, seconds in planned.items() if seconds > 0 and name not in measured}
    assert missing <= (FORMED_AT_FIRST_USE if strategy.solver == "cg" else set())


@pytest.mark.parametrize(("estimator", "form", "solver", "is_stored"), list(ways()))
def test_stages_have_one_name(estimator, form, solver, is_stored, tmp_path):
    store = tmp_path / "run.zarr" if is_stored else None
    model = fitted(estimator, store, X, kernel="linear", form=form, solver=SOLVERS[solver])
    check_names(model)
    assert sum(s.seconds for s in model.solve_result_.stages) <= model.solve_result_.seconds


@pytest.mark.parametrize("estimator", OUTPUTS)
@pytest.mark.parametrize("solver", SOLVERS)
def test_a_precomputed_matrix(estimator, solver, tmp_path):
    store = tmp_path / "run.zarr" if solver == "float32" else None
    model = fitted(estimator, store, X @ X.T + np.eye(90), kernel="precomputed", solver=SOLVERS[solver])
    check_names(model)
    assert "checking symmetry" in {s.name for s in model.solve_result_.stages}


@pytest.mark.parametrize("is_stored", [False, True])
def test_a_stage_is_shown_once(is_stored, tmp_path, capsys):
    store = tmp_path / "run.zarr" if is_stored else None
    KernelRidge(kernel="rbf", form="dual", solver="cholesky", store=store, progress=True).fit(X, OUTPUTS[KernelRidge])
    shown = capsys.readouterr().err
    assert shown.count("true residual") == 1, shown
