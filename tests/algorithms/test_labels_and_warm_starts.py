"""Classes: labels of every type, paths over λ, and fits that begin at the last solution."""

from functools import cache

import dask.array as da
import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone

from dkrr import KernelLogisticRegression
from dkrr.errors import ConvergenceWarning
from dkrr.features import Nystroem, RandomFourier
from dkrr.kernels import RBF, Polynomial
from tests.pairs import every_pair

every_form = pytest.mark.parametrize("form", ["primal", "dual"])
N = 61


@cache
def samples(n_classes):
    """X, codes that depend on it but overlap, weights of which some are zero, and new rows."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(N, 3))
    scores = 2 * np.column_stack([X[:, 0] * X[:, -1], np.sin(2 * X[:, 0]), X[:, -1]])[:, :n_classes]
    codes = (scores + rng.gumbel(size=scores.shape)).argmax(axis=1)
    weights = rng.uniform(0.2, 3.0, N)
    weights[[1, N - 1]] = 0.0
    return X, codes, weights, rng.normal(size=(11, 3))


@pytest.mark.parametrize(
    ("labels", "kind"),
    [
        (np.array(["cat", "dog"]), "U"),
        (np.array(["cat", "a longer dog"], dtype=object), "O"),
        (np.array([False, True]), "b"),
        (np.array([-7, 12]), "i"),
        (np.array([0.0, 1.0]), "f"),
        (np.array([3, 200], dtype=np.uint8), "u"),
    ],
)
def test_labels_of_any_type_are_predicted_as_they_were_given(labels, kind):
    X, codes, _, X_new = samples(2)
    expected = KernelLogisticRegression(kernel="rbf").fit(X, codes).predict_proba(X_new)
    model = KernelLogisticRegression(kernel="rbf").fit(X, labels[codes])
    assert_array_equal(model.classes_, np.unique(labels))
    assert_allclose(model.predict_proba(X_new), expected[:, np.argsort(labels)], atol=1e-8)
    found = model.predict(X_new)
    assert found.dtype.kind == kind == model.classes_.dtype.kind
    assert_array_equal(found, labels[expected.argmax(axis=1)])
    assert model.score(X, labels[codes]) == np.mean(model.predict(X) == labels[codes])
    weighted = KernelLogisticRegression(kernel="rbf", class_weight={labels[1]: 3.0}).fit(X, labels[codes])
    by_code = KernelLogisticRegression(kernel="rbf", class_weight={1: 3.0}).fit(X, codes)
    assert_allclose(weighted.predict_proba(X_new), by_code.predict_proba(X_new)[:, np.argsort(labels)], atol=1e-7)


@pytest.mark.parametrize(
    "wrap",
    [
        list,
        lambda y: pd.Series(y, index=np.arange(N)[::-1], dtype="category"),
        lambda y: pd.Series(y, dtype="string"),
        lambda y: da.from_array(y, chunks=13),
    ],
    ids=["list", "category", "string", "dask"],
)
def test_containers_of_text_labels(wrap):
    X, codes, _, _ = samples(3)
    y = np.array(["red", "green", "blue"])[codes]
    expected, model = KernelLogisticRegression().fit(X, y), KernelLogisticRegression().fit(X, wrap(y))
    assert list(model.classes_) == ["blue", "green", "red"]
    assert_array_equal(model.predict(X), expected.predict(X))
    assert model.score(X, wrap(y)) == expected.score(X, y)
    nullable = KernelLogisticRegression().fit(X, pd.Series(codes).astype("Int64"))
    assert_array_equal(nullable.classes_, [0, 1, 2])


@every_pair(form=["primal", "dual"], multi_class=["multinomial", "ovr"])
def test_a_class_of_weight_zero_is_never_likely(multi_class, form):
    X, codes, _, X_new = samples(3)
    model = KernelLogisticRegression(0.05, kernel=Polynomial(2), multi_class=multi_class, form=form)
    model.set_params(class_weight={1: 0.0}, fit_intercept=False).fit(X, codes)
    assert model.solve_result_.status.name == "CONVERGED"
    assert not (model.predict(X_new) == 1).any() and np.isfinite(model.predict_log_proba(X_new)).all()


ALPHAS = (10.0, 0.5, 0.1)


@pytest.mark.parametrize(
    "settings",
    [
        {"kernel": "rbf", "gamma": 0.3},
        {"kernel": "rbf", "gamma": 0.3, "solver": "cholesky"},
        {"kernel": "rbf", "gamma": 0.3, "tile": 40, "solver": "cholesky", "multi_class": "ovr"},
        {"kernel": "poly", "degree": 2},
        {"kernel": "poly", "degree": 2, "form": "primal", "solver": "cg"},
    ],
    ids=["cg", "cholesky", "tiles", "primal", "primal cg"],
)
def test_a_path_is_separate_fits_in_fewer_steps(settings):
    X, codes, weights, X_new = samples(3)
    model = KernelLogisticRegression(tol=1e-9, class_weight={0: 2.0}, **settings)
    path = model.fit_path(X, codes, ALPHAS, sample_weight=weights)
    separate = [clone(model).set_params(alpha=a).fit(X, codes, sample_weight=weights) for a in ALPHAS]
    for found, expected, alpha in zip(path, separate, ALPHAS, strict=True):
        assert_allclose(found.predict_proba(X_new), expected.predict_proba(X_new), atol=1e-6)
        assert found.solve_result_.status.name == "CONVERGED" and found.solve_result_.residual <= 1e-9
        assert found.get_params() == model.get_params() | {"alpha": alpha}
    assert sum(m.n_iter_ for m in path) < sum(m.n_iter_ for m in separate)


def test_a_path_leaves_its_estimator_alone_and_gives_models_of_its_own():
    class Own(KernelLogisticRegression):
        """Of a user."""

    X, codes, _, X_new = samples(3)
    estimator = Own(3.0, kernel="rbf")
    first, last = estimator.fit_path(X, codes, [1.0, 0.1])
    assert estimator.alpha == 3.0 and not hasattr(estimator, "classes_")
    assert (type(first), type(last), first.alpha, last.alpha) == (Own, Own, 1.0, 0.1)
    assert_array_equal(first.dual_coef_, Own(1.0, kernel="rbf").fit(X, codes).dual_coef_)
    before = last.decision_function(X_new)
    assert first.fit(X, codes % 2).decision_function(X_new).shape == (11,)
    assert_array_equal(last.decision_function(X_new), before)


@every_pair(form=["primal", "dual"], problem=[(2, "multinomial"), (3, "multinomial"), (3, "ovr")], ids=str)
def test_a_warm_start_begins_at_the_last_solution(problem, form):
    X, codes, _, X_new = samples(problem[0])
    settings = {"kernel": Polynomial(2, gamma=0.4), "multi_class": problem[1], "form": form, "tol": 1e-9}
    model = KernelLogisticRegression(0.5, warm_start=True, **settings).fit(X, codes)
    first = model.decision_function(X_new)
    assert model.fit(X, codes).solve_result_.iterations == 0 and model.n_iter_ == 1
    assert_array_equal(model.decision_function(X_new), first)
    model.set_params(alpha=0.4).fit(X, codes)
    cold = KernelLogisticRegression(0.4, **settings).fit(X, codes)
    assert model.n_iter_ < cold.n_iter_ == cold.fit(X, codes).n_iter_
    assert_allclose(model.predict_proba(X_new), cold.predict_proba(X_new), atol=1e-6)
    assert model.solve_result_.residual <= 1e-9  # relative to the gradient at zero, not to that at the start


@pytest.mark.parametrize("change", ["rows", "classes", "names", "form", "kernel", "labels", "intercept"])
def test_a_warm_start_gives_the_answers_of_a_cold_one_to_other_problems(change):
    X, codes, _, _ = samples(3)
    model = KernelLogisticRegression(0.1, kernel="poly", degree=2, form="dual", warm_start=True, tol=1e-9)
    model.fit(X, codes)
    if change in ("form", "kernel", "intercept"):
        parameters = {"form": {"form": "primal"}, "kernel": {"kernel": "rbf", "degree": 3}}
        model.set_params(**parameters.get(change, {"fit_intercept": False}))
    others = {
        "rows": (X[:40] + 1, codes[:40]),
        "classes": (X, codes % 2),
        "names": (X, codes + 9),
        "labels": (X, 2 - codes),
    }
    X, y = others.get(change, (X, codes))
    cold = clone(model).fit(X, y)
    assert_allclose(model.fit(X, y).predict_proba(X), cold.predict_proba(X), atol=1e-6)
    assert change != "names" or model.n_iter_ == cold.n_iter_ > 1, "other classes have nothing to begin with"
    assert change != "intercept" or (model.intercept_ == 0).all()


@every_form
def test_a_warm_start_where_the_gradient_at_zero_vanishes(form):
    """Zero is the solution there, and not where the last fit ended."""
    X = np.array([[1.0, 1.0], [1.0, -1.0], [-1.0, 1.0], [-1.0, -1.0]])
    model = KernelLogisticRegression(form=form, warm_start=True).fit(X, [1, 1, 0, 0])
    assert np.abs(model.decision_function(X)).min() > 0.1
    assert_allclose(model.fit(X, [1, 0, 0, 1]).decision_function(X), 0.0, atol=1e-7)


@pytest.mark.parametrize(
    "kernel",
    [Nystroem(RBF(gamma=0.3), 20), RandomFourier(RBF(gamma=0.3), 30), "precomputed", lambda A, B: A @ B.T],
    ids=["nystroem", "fourier", "precomputed", "callable"],
)
def test_every_kind_of_kernel_has_warm_starts(kernel):
    X, codes, _, _ = samples(3)
    rows = RBF(0.3)(X) if isinstance(kernel, str) else X
    model = KernelLogisticRegression(0.1, kernel=kernel, warm_start=True).fit(rows, codes)
    before = model.predict_proba(rows)
    assert model.fit(rows, codes).solve_result_.iterations == 0
    assert_allclose(model.predict_proba(rows), before, atol=1e-12)


@pytest.mark.parametrize("way", [{"solver": "cholesky", "tile": 40}, {"solver": "cg", "tile": 40}, {}], ids=str)
def test_a_fit_that_was_stopped_is_resumed_from_its_store_or_by_a_warm_start(tmp_path, way):
    X, codes, _, _ = samples(2)
    more = {"store": str(tmp_path / "run.zarr")} if way else {"warm_start": True}
    model = KernelLogisticRegression(1e-3, kernel="rbf", max_iter=3, **way, **more)
    with pytest.warns(ConvergenceWarning, match="max_iter"):
        model.fit(X, codes)
    assert (model.n_iter_, model.solve_result_.status.name) == (3, "MAX_ITERATIONS")
    model.set_params(max_iter=100).fit(X, codes)
    expected = KernelLogisticRegression(1e-3, kernel="rbf", **way).fit(X, codes)
    assert model.n_iter_ == expected.n_iter_ - (0 if way else 3) > 0
    assert_allclose(model.predict_proba(X), expected.predict_proba(X), atol=1e-7)
    assert [s.step for s in model.solve_result_.steps] == list(range(1, model.n_iter_ + 1))
