"""Logistic regressions: where float64 is strained, labels of every type, paths over λ, and warm starts.

A strained fit is right by arithmetic of 180 digits, or not CONVERGED.
"""

import dask.array as da
import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone

from dkrr import KernelLogisticRegression
from dkrr.errors import ConvergenceWarning, InputError
from dkrr.features import Nystroem
from dkrr.kernels import RBF, Linear, Polynomial
from tests.nightly.accuracy import fits
from tests.nightly.accuracy.trials import Trial
from tests.oracles import naive_gradient, naive_gram
from tests.pairs import every_pair
from tests.promises.test_exact_classes import samples

LINEAR = Linear()
METHODS = {
    "dual in tiles": {"form": "dual", "solver": "cholesky", "tile": 13},
    "dual": {"form": "dual", "solver": "cholesky"},
    "dual cg": {"form": "dual", "solver": "cg"},
    "primal": {"form": "primal", "solver": "cholesky"},
    "primal cg": {"form": "primal", "solver": "cg"},
}


def ended(way, alpha, kernel=LINEAR, scale=1.0, offset=0.0, is_separable=False, weights=None, fit_intercept=True):
    """Status of a binary problem on 24 rows, CONVERGED only if 180 digits say so; weights by seed, over 20 orders."""
    rng = np.random.default_rng(5)
    X = rng.normal(size=(24, 3))
    y = X @ [1.0, -0.5, 0.7] + (0.0 if is_separable else rng.logistic(size=24)) > 0
    w = None if weights is None else 10.0 ** np.random.default_rng(weights).uniform(-10, 10, 24)
    X = X * scale + offset
    found = fits.run(Trial("strained", True, X, X[:3], y.astype(int), alpha, kernel, fit_intercept, w, METHODS[way]))
    assert found.ended != "CONVERGED" or found.errors["probabilities"] <= 1e-5
    return found.ended


@pytest.mark.parametrize(
    ("way", "alpha", "case"),
    [
        *((way, 1e-6, {"is_separable": True, "fit_intercept": False}) for way in ("dual", "primal")),
        *((way, 1e-12, {"is_separable": True}) for way in ("dual cg", "primal cg")),
        *((way, 1.0, {"weights": 1}) for way in ("dual", "primal", "dual cg", "primal cg")),
        *((way, 1e15, {}) for way in ("dual cg", "primal cg")),
        *((way, 1e-12, {"is_separable": True, "kernel": RBF(gamma=0.5)}) for way in ("dual in tiles", "dual cg")),
        *((way, 1e-6, {"weights": 1, "kernel": RBF(gamma=0.5)}) for way in ("dual in tiles", "dual cg")),
        *((way, s**2, {"scale": s}) for way in ("dual", "dual cg") for s in (1e-20, 1e10)),
        *(("primal", s**2, {"scale": s}) for s in (1e-80, 1e80)),
    ],
)
def test_penalties_weights_and_scales_over_many_orders_cost_no_digits(way, alpha, case):
    assert ended(way, alpha, **case) == "CONVERGED"


@pytest.mark.parametrize("way", ["dual in tiles", "dual cg"])
@pytest.mark.parametrize(("alpha", "case"), [(1e-6, {"weights": 0}), (0.1, {"offset": 1e5}), (0.1, {"offset": 1e6})])
def test_a_fit_that_may_not_converge_says_so(way, alpha, case):
    """Rounding hides the dual gradient of small penalties and weights over twenty orders, and of far rows."""
    assert ended(way, alpha, **case) in ("CONVERGED", "STALLED", "MAX_ITERATIONS")


PROBLEMS = {"binary": (2, False, "dual"), "softmax": (3, False, "primal"), "one vs rest": (3, True, "dual")}
every_problem = pytest.mark.parametrize("problem", PROBLEMS)


def converged(problem, X, y, alpha, **settings):
    _, one_vs_rest, form = PROBLEMS[problem]
    settings = {"form": form, "one_vs_rest": one_vs_rest} | settings
    model = KernelLogisticRegression(alpha, **settings).fit(X, y)
    assert model.solve_result_.status.name == "CONVERGED" and model.solve_result_.residual <= model.tol
    return model


@every_pair(by_day="values", case=[(1e-8, 0.1, None), (1e-10, 1.0, 40)], problem=["softmax", "binary", "one vs rest"])
def test_nearly_separable_classes_and_a_small_penalty(problem, case):
    """Newton's method needs directions that are exact enough for whole steps."""
    alpha, gamma, tile = case
    X, codes, *_ = samples(PROBLEMS[problem][0])
    X, codes, solver = X[:25], codes[:25], "cholesky" if tile else "auto"
    model = converged(problem, X, codes, alpha, kernel="rbf", gamma=gamma, solver=solver, form="dual", tile=tile)
    assert gamma < 1 or model.score(X, codes) == 1  # a kernel this narrow separates any labels
    arguments = (naive_gram(RBF(gamma=gamma), X), codes, alpha, model.dual_coef_, model.intercept_)
    assert naive_gradient(*arguments, one_vs_rest=PROBLEMS[problem][1]) <= 1e-7


@pytest.mark.parametrize("size", [1e-7, 1e5, 1e8])
def test_rounding_is_not_taken_for_a_gradient_with_a_small_penalty_or_a_large_column(size):
    X = np.random.default_rng(0).normal(size=(500, 4))
    y = np.digitize(X[:, 0] + X[:, 3] + 0.3 * np.random.default_rng(1).normal(size=500), [-0.5, 0.5])
    if size < 1:
        converged("softmax", X[:60, :3], np.digitize(X[:60, 0], [-0.5, 0.5]), size, kernel="rbf", form="dual")
    else:
        X[:, 3] *= size
        assert converged("softmax", X, y, 1e-3).score(X, y) > 0.8


# Labels


NAMES = np.array(["cat", "a longer dog"])


@pytest.mark.parametrize(
    ("labels", "wrap"),
    [
        (NAMES, np.asarray),
        (NAMES, list),
        (NAMES, lambda y: pd.Series(y, index=np.arange(61)[::-1], dtype="category")),
        (NAMES, lambda y: pd.Series(y, dtype="string")),
        (NAMES, lambda y: da.from_array(y, chunks=13)),
        (NAMES.astype(object), np.asarray),
        (np.array([False, True]), np.asarray),
        (np.array([-7, 12]), lambda y: pd.Series(y).astype("Int64")),
        (np.array([0.0, 1.0]), np.asarray),
        (np.array([3, 200], dtype=np.uint8), np.asarray),
    ],
)
def test_labels_of_any_type_and_container_are_predicted_as_they_were_given(labels, wrap):
    X, codes, _, X_new = samples(2)
    expected = KernelLogisticRegression(kernel="rbf", class_weight={1: 3.0}).fit(X, codes).predict_proba(X_new)
    y, model = wrap(labels[codes]), KernelLogisticRegression(kernel="rbf", class_weight={labels[1]: 3.0})
    found = model.fit(X, y).predict(X_new)
    assert_array_equal(model.classes_, np.unique(labels))
    assert_allclose(model.predict_proba(X_new), expected[:, np.argsort(labels)], atol=1e-7)
    assert_array_equal(found, labels[expected.argmax(axis=1)])
    assert found.dtype.kind in (labels.dtype.kind, "O")
    assert model.score(X, y) == np.mean(model.predict(X) == labels[codes])


@every_pair(form=["primal", "dual"], one_vs_rest=[False, True])
def test_a_class_of_weight_zero_is_never_likely(one_vs_rest, form):
    X, codes, _, X_new = samples(3)
    model = KernelLogisticRegression(0.05, kernel=Polynomial(degree=2), one_vs_rest=one_vs_rest, form=form)
    model.set_params(class_weight={1: 0.0}, fit_intercept=False).fit(X, codes)
    assert model.solve_result_.status.name == "CONVERGED"
    assert not (model.predict(X_new) == 1).any() and np.isfinite(model.predict_log_proba(X_new)).all()


@every_pair(form=["primal", "dual"], one_vs_rest=[False, True], solver=["cholesky", "cg"])
@pytest.mark.parametrize("by", ["rows", "classes"])
def test_an_intercept_needs_weight_of_every_class(one_vs_rest, form, solver, by):
    X, codes, _, _ = samples(3)
    model = KernelLogisticRegression(0.05, one_vs_rest=one_vs_rest, form=form, solver=solver)
    model.set_params(class_weight={1: 0.0} if by == "classes" else None)
    weights = (codes != 1) if by == "rows" else None
    with pytest.raises(InputError, match="no row of class 1 has a positive weight.*fit_intercept=False"):
        model.fit(X, codes, sample_weight=weights)


# Paths and warm starts

ALPHAS = (10.0, 0.5, 0.1)


@pytest.mark.parametrize(
    "settings",
    [
        {"kernel": "rbf", "gamma": 0.3},
        pytest.param(
            {"kernel": "rbf", "gamma": 0.3, "tile": 40, "solver": "cholesky", "one_vs_rest": True},
            marks=pytest.mark.nightly,
        ),
        {"kernel": "poly", "degree": 2},
        {"kernel": "poly", "degree": 2, "form": "primal", "solver": "cg"},
    ],
    ids=["cg", "tiles", "primal", "primal cg"],
)
def test_a_path_is_separate_fits_in_fewer_steps(settings):
    X, codes, weights, X_new = samples(3)
    model = KernelLogisticRegression(tol=1e-9, class_weight={0: 2.0}, **settings)
    path = model.fit_path(X, codes, ALPHAS, sample_weight=weights)
    separate = [clone(model).set_params(alpha=a).fit(X, codes, sample_weight=weights) for a in ALPHAS]
    for found, expected in zip(path, separate, strict=True):
        assert_allclose(found.predict_proba(X_new), expected.predict_proba(X_new), atol=1e-6)
        assert found.solve_result_.residual <= 1e-9 and found.get_params() == expected.get_params()
    assert sum(m.n_iter_ for m in path) < sum(m.n_iter_ for m in separate)


def test_a_path_leaves_its_estimator_alone_and_gives_models_of_its_own():
    class Own(KernelLogisticRegression):
        """Of a user."""

    X, codes, _, X_new = samples(3)
    estimator = Own(3.0, kernel="rbf")
    first, last = estimator.fit_path(X, codes, [1.0, 0.1])
    assert estimator.alpha == 3.0 and not hasattr(estimator, "classes_") and type(first) is type(last) is Own
    before = last.decision_function(X_new)
    first.fit(X, codes % 2)
    assert_array_equal(last.decision_function(X_new), before)


@every_pair(
    kernel=[Polynomial(degree=2, gamma=0.4), Nystroem(RBF(gamma=0.3), 20), lambda A, B: (0.4 * A @ B.T + 1) ** 2],
    form=["primal", "dual"],
    problem=list(PROBLEMS),
)
def test_a_warm_start_begins_at_the_last_solution(problem, form, kernel):
    X, codes, _, X_new = samples(PROBLEMS[problem][0])
    form = form if isinstance(kernel, Polynomial) else "auto"
    settings = {"kernel": kernel, "one_vs_rest": PROBLEMS[problem][1], "form": form, "tol": 1e-9}
    model, cold = KernelLogisticRegression(0.5, warm_start=True, **settings), KernelLogisticRegression(0.4, **settings)
    first = model.fit(X, codes).decision_function(X_new)
    assert model.fit(X, codes).solve_result_.iterations == 0 and model.n_iter_ == 1
    assert_allclose(model.decision_function(X_new), first, atol=1e-12)
    model.set_params(alpha=0.4).fit(X, codes)
    assert model.n_iter_ < cold.fit(X, codes).n_iter_ or isinstance(kernel, Nystroem)  # whose fits are soon done
    assert_allclose(model.predict_proba(X_new), cold.predict_proba(X_new), atol=1e-6)
    assert model.solve_result_.residual <= 1e-9  # relative to the gradient at zero, not to that at the start


@pytest.mark.parametrize(
    ("change", "other"),
    [
        ({"form": "primal"}, lambda X, codes: (X, codes)),
        ({"kernel": "rbf", "degree": 3}, lambda X, codes: (X, codes)),
        ({"fit_intercept": False}, lambda X, codes: (X, codes)),
        ({}, lambda X, codes: (X[:40] + 1, codes[:40])),
        ({}, lambda X, codes: (X, codes % 2)),
        ({}, lambda X, codes: (X, codes + 9)),
        ({}, lambda X, codes: (X, 2 - codes)),
    ],
    ids=["form", "kernel", "intercept", "rows", "number of classes", "names of classes", "labels"],
)
def test_a_warm_start_gives_the_answers_of_a_cold_one_to_other_problems(change, other):
    X, codes, _, _ = samples(3)
    model = KernelLogisticRegression(0.1, kernel="poly", degree=2, form="dual", warm_start=True, tol=1e-9)
    model.fit(X, codes).set_params(**change)
    X, y = other(X, codes)
    cold = clone(model).fit(X, y)
    assert_allclose(model.fit(X, y).predict_proba(X), cold.predict_proba(X), atol=1e-6)
    assert min(y) < 9 or model.n_iter_ == cold.n_iter_ > 1, "other classes have nothing to begin with"
    assert model.fit_intercept or (model.intercept_ == 0).all()


@pytest.mark.parametrize("form", ["primal", "dual"])
def test_a_warm_start_where_the_gradient_at_zero_vanishes(form):
    """Zero is the solution there, and not where the last fit ended."""
    X = np.array([[1.0, 1.0], [1.0, -1.0], [-1.0, 1.0], [-1.0, -1.0]])
    model = KernelLogisticRegression(form=form, warm_start=True).fit(X, [1, 1, 0, 0])
    assert np.abs(model.decision_function(X)).min() > 0.1
    assert_allclose(model.fit(X, [1, 0, 0, 1]).decision_function(X), 0.0, atol=1e-7)


def test_a_fit_that_was_stopped_is_resumed_by_a_warm_start():
    X, codes, _, _ = samples(2)
    model, expected = (KernelLogisticRegression(1e-3, kernel="rbf", warm_start=warm) for warm in (True, False))
    with pytest.warns(ConvergenceWarning, match="max_iter"):
        assert model.set_params(max_iter=3).fit(X, codes).n_iter_ == 3
    assert model.set_params(max_iter=100).fit(X, codes).n_iter_ == expected.fit(X, codes).n_iter_ - 3 > 0
    assert_allclose(model.predict_proba(X), expected.predict_proba(X), atol=1e-7)
    assert [s.step for s in model.solve_result_.steps] == list(range(1, model.n_iter_ + 1))
