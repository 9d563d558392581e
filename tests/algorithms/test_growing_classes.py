"""`KernelLogisticRegression.partial_fit` equals `fit` of all rows so far, in fewer steps of Newton's method."""

import copy
import pickle

import dask.array as da
import numpy as np
import pytest
import scipy.sparse as sp
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.frozen import FrozenEstimator
from sklearn.preprocessing import StandardScaler

import dkrr
from dkrr import KernelLogisticRegression
from dkrr.errors import InputError
from dkrr.features import Nystroem
from dkrr.kernels import RBF, BagOfWords

FORMS = {
    "dual": {"kernel": "rbf", "gamma": 0.4},
    "cg": {"kernel": "rbf", "gamma": 0.4, "solver": "cg"},
    "primal": {"kernel": "polynomial", "degree": 2, "form": "primal"},
    "one_vs_rest": {"kernel": "rbf", "gamma": 0.4, "one_vs_rest": True},
}


def rows_of(n, n_classes=3, seed=0):
    """Rows, labels of which every class has some among the first ones, and weights, some of which are 0."""
    rng = np.random.default_rng([n, seed])
    X = rng.standard_normal((n, 3))
    scores = np.stack([np.sin(X @ direction) for direction in rng.standard_normal((n_classes, 3))], axis=1)
    labels = np.array(list("abcde"))[(scores + 0.3 * rng.gumbel(size=scores.shape)).argmax(axis=1)]
    labels[:n_classes] = list("abcde")[:n_classes]
    weights = np.where(rng.random(n) < 0.2, 0.0, rng.uniform(0.5, 2.0, n))
    weights[:n_classes] = 1.0
    return X, labels, weights


def assert_same_model(grown, whole, X):
    assert_array_equal(grown.classes_, whole.classes_)
    assert_allclose(grown.decision_function(X), whole.decision_function(X), rtol=0, atol=1e-6)
    assert grown.solve_result_.status.is_good


@pytest.mark.parametrize("weighted", [pytest.param(False, marks=pytest.mark.nightly), True])
@pytest.mark.parametrize("n_classes", [pytest.param(2, marks=pytest.mark.nightly), 3])
@pytest.mark.parametrize("name", FORMS)
def test_a_classifier_that_grows_is_that_of_all_rows(name, n_classes, weighted):
    X, y, w = rows_of(150, n_classes)
    w = w if weighted else np.ones(150)
    settings = {**FORMS[name], "alpha": 0.1, "class_weight": "balanced" if weighted else None, "tol": 1e-10}
    model = KernelLogisticRegression(**settings)
    for first, stop in ((0, 100), (100, 101), (101, 130), (130, 150)):
        part = slice(first, stop)
        if w[part].any():
            model.partial_fit(X[part], y[part], classes=np.unique(y) if not first else None, sample_weight=w[part])
    used = np.concatenate([np.arange(a, b) for a, b in ((0, 100), (100, 101), (101, 130), (130, 150)) if w[a:b].any()])
    whole = KernelLogisticRegression(**settings).fit(X[used], y[used], sample_weight=w[used])
    assert_same_model(model, whole, X)
    assert model.X_fit_.shape == (len(used), 3)
    after_fit = KernelLogisticRegression(**settings).fit(X[:100], y[:100], sample_weight=w[:100])
    after_fit.partial_fit(X[used[100:]], y[used[100:]], sample_weight=w[used[100:]])
    assert_same_model(after_fit, whole, X)


@pytest.mark.parametrize("name", [pytest.param("dual", marks=pytest.mark.nightly), "primal", "cg"])
def test_newtons_method_begins_at_the_solution_so_far(name):
    X, y, _ = rows_of(606)
    settings = {**FORMS[name], "alpha": 0.1}
    grown = KernelLogisticRegression(**settings).fit(X[:600], y[:600]).partial_fit(X[600:], y[600:])
    whole = KernelLogisticRegression(**settings).fit(X, y)
    assert grown.n_iter_ <= whole.n_iter_ - 2
    assert grown.plan_.form == whole.plan_.form


def test_rows_of_every_kind_are_joined_and_parameters_may_change():
    X, y, _ = rows_of(90)
    whole = KernelLogisticRegression(kernel="rbf", gamma=0.5, alpha=0.2, tol=1e-10).fit(X, y)
    for first, second in (
        (X[:50], da.from_array(X[50:], chunks=17)),
        (da.from_array(X[:50], chunks=17), X[50:]),
        (sp.csr_array(X[:50]), X[50:]),
        (X[:50], sp.csr_array(X[50:])),
    ):
        model = KernelLogisticRegression(kernel="linear", alpha=3.0, tol=1e-10).fit(first, y[:50])
        model.set_params(kernel="rbf", gamma=0.5, alpha=0.2).partial_fit(second, y[50:])
        assert_same_model(model, whole, X)
    path = KernelLogisticRegression(kernel="rbf", gamma=0.5, tol=1e-10).fit_path(X[:50], y[:50], [1.0, 0.2])
    assert_same_model(path[1].partial_fit(X[50:], y[50:]), whole, X)
    other = pickle.loads(pickle.dumps(path[0]))
    assert_same_model(other.set_params(alpha=0.2).partial_fit(X[50:], y[50:]), whole, X)


def test_centres_stay_and_a_kernel_that_is_fitted_before_takes_documents():
    X, y, _ = rows_of(80)
    model = KernelLogisticRegression(kernel=Nystroem(RBF(gamma=0.3), 20)).partial_fit(X[:40], y[:40], list("abc"))
    centres = model.plan_.problem.kernel
    model.partial_fit(X[40:], y[40:])
    assert model.plan_.problem.kernel == centres and model.n_iter_ < 5
    assert any("drawn in the first call" in message for message in model.solve_result_.messages)
    texts = np.array(["one two", "two three", "three one", "one one"], object)
    with pytest.raises(InputError, match=r"learns from all rows.*kernel.fitted\(X\)"):
        KernelLogisticRegression(kernel=BagOfWords()).partial_fit(texts, [0, 1, 0, 1], classes=[0, 1])
    kernel = BagOfWords().fitted(texts)
    grown = (
        KernelLogisticRegression(kernel=kernel).partial_fit(texts[:2], [0, 1], [0, 1]).partial_fit(texts[2:], [0, 1])
    )
    assert_same_model(grown, KernelLogisticRegression(kernel=kernel).fit(texts, [0, 1, 0, 1]), texts)


def test_a_transformer_that_is_fitted_before_transforms_all_rows():
    X, y, _ = rows_of(80)
    scaler = FrozenEstimator(StandardScaler().fit(10 * X))
    model = KernelLogisticRegression(kernel="rbf", transformer=scaler, tol=1e-10).fit(X[:50], y[:50])
    model.partial_fit(X[50:], y[50:])
    assert model.n_features_in_ == 3 and model.X_fit_.shape == (80, 3)
    first = KernelLogisticRegression(kernel="rbf", transformer=scaler, tol=1e-10).partial_fit(X, y, list("abc"))
    whole = KernelLogisticRegression(kernel="rbf", tol=1e-10).fit(scaler.transform(X), y)
    for one in (model, first):
        assert_allclose(one.decision_function(X), whole.decision_function(scaler.transform(X)), rtol=0, atol=1e-6)


REFUSED = [
    ({"kernel": "precomputed"}, {}, "kernel is 'precomputed'"),
    ({"transformer": "standardize"}, {}, "transformer is 'standardize'.*FrozenEstimator"),
    ({"store": "run.zarr"}, {}, "store is 'run.zarr'.*give all rows to fit"),
    ({}, {"classes": None}, "classes is None in the first call"),
    ({}, {"classes": ["a"]}, "at least 2 classes"),
    ({}, {"classes": ["a", "b"]}, r"y has the label 'c' in row 2.*not one of the classes \['a', 'b'\]"),
    ({"fit_intercept": True}, {"classes": list("abcd")}, "no row so far is of class 'd'"),
]


@pytest.mark.parametrize(("settings", "changes", "message"), REFUSED)
def test_what_a_first_call_refuses(settings, changes, message):
    X, y, _ = rows_of(30)
    model = KernelLogisticRegression(**settings)
    before = dict(vars(model))
    with pytest.raises(InputError, match=message):
        model.partial_fit(X, y, **{"classes": list("abc")} | changes)
    assert vars(model) == before


def test_a_call_that_raises_leaves_the_model_as_it_was(tmp_path):
    X, y, _ = rows_of(60)
    model = KernelLogisticRegression(kernel="rbf", gamma=0.3).partial_fit(X[:40], y[:40], classes=list("abc"))
    before = copy.copy(vars(model))
    bad = X[40:].copy()
    bad[3, 1] = np.nan
    for rows, labels, more, message in (
        (bad, y[40:], {}, "NaN"),
        (X[40:, :2], y[40:], {}, "features"),
        (X[40:], np.full(20, "z"), {}, "label 'z' in row 0"),
        (X[40:], np.arange(20), {}, "label 0 in row 0"),
        (X[40:], y[41:], {}, "inconsistent numbers"),
        (X[40:], y[40:], {"classes": list("ab")}, "classes is"),
        (X[40:], y[40:], {"sample_weight": -1.0}, "sample_weight"),
    ):
        with pytest.raises(InputError, match=message):
            model.partial_fit(rows, labels, **more)
        assert vars(model).keys() == before.keys() and all(vars(model)[k] is v for k, v in before.items())
    dkrr.save(model, tmp_path / "model.zarr")
    with pytest.raises(InputError, match="the model was loaded.*give all rows to fit"):
        dkrr.load(tmp_path / "model.zarr").partial_fit(X[40:], y[40:])
    whole = KernelLogisticRegression(kernel="rbf", gamma=0.3).fit(X, y)
    assert_same_model(model.partial_fit(X[40:], y[40:], classes=list("cba")), whole, X)


def test_a_class_may_come_later_without_an_intercept():
    X, y, _ = rows_of(60)
    early, late = y != "c", y == "c"
    model = KernelLogisticRegression(kernel="rbf", gamma=0.3, fit_intercept=False, tol=1e-10)
    model.partial_fit(X[early], y[early], classes=list("abc")).partial_fit(X[late], y[late])
    assert_same_model(model, KernelLogisticRegression(**model.get_params()).fit(X, y), X)


def test_rows_that_the_caller_overwrites_stay_in_the_model():
    X, y, _ = rows_of(120)
    settings, buffer = {**FORMS["dual"], "alpha": 0.1}, X[:60].copy()
    model = KernelLogisticRegression(**settings).partial_fit(buffer, y[:60], classes=np.unique(y))
    buffer[:] = X[60:]
    model.partial_fit(buffer, y[60:])
    assert_same_model(model, KernelLogisticRegression(**settings).fit(X, y), X)
    fitted = KernelLogisticRegression(**settings).fit(buffer, y[60:])
    buffer[:] = X[:60]
    with pytest.raises(InputError, match="X is not what was read first"):
        fitted.partial_fit(X[:60], y[:60])
