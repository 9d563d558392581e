"""KernelRidge against the textbook formula and scikit-learn, in every form, place and input type."""

from functools import cache

import dask.array as da
import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
import sklearn.kernel_ridge
import zarr
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils import check_array

from dkrr import KernelRidge
from dkrr.estimators.base import DTYPES, is_plain
from dkrr.features import feature_map
from dkrr.kernels import RBF, Cosine, Laplacian, Linear, Matern, Polynomial, Scaled
from tests.estimators.checks import every_check
from tests.oracles import naive_gram, naive_kernel_ridge
from tests.pairs import every_pair

KERNELS = [
    Linear(),
    Polynomial(degree=2, gamma=0.3, coef0=1.0),
    Polynomial(degree=3, gamma=0.2, coef0=0.0),
    RBF(gamma=0.2),
    Laplacian(gamma=0.1),
    Matern(nu=0.5),
    Matern(nu=1.5, length_scale=2.0),
    Matern(nu=2.5),
    Cosine(),
    RBF(gamma=0.2) + 0.5 * Linear(),
    RBF(gamma=0.1) * Polynomial(degree=2, gamma=0.2),
    Scaled(Linear(), 3.0),
]
FINITE = [k for k in KERNELS if isinstance(k, Linear | Polynomial | Cosine | Scaled)]

# In memory, and as tiles; a tile of 80 leaves a ragged last one.
PLACES = {"memory": {}, "tiles": {"tile": 80}}


@every_check(
    KernelRidge(),
    KernelRidge(kernel="rbf", tile=40, fit_intercept=True),
    KernelRidge(form="primal", tile=5, fit_intercept=True),
)
def test_scikit_learn_checks(estimator, check):
    check(estimator)


def close(actual, expected, tolerance=1e-8):
    assert_allclose(actual, expected, rtol=0, atol=tolerance * max(1e-300, np.abs(expected).max()))


@pytest.fixture(scope="module")
def naive_grams(data):
    """By kernel, the naive loops' matrices of the training rows and of the new ones: the same for every way to fit."""
    return cache(lambda kernel: (naive_gram(kernel, data.X, data.X), naive_gram(kernel, data.X_new, data.X)))


@every_pair(kernel=KERNELS, weighted=[False, True], fit_intercept=[False, True], place=list(PLACES), ids=str)
def test_dual_form_is_the_textbook_formula(data, naive_grams, kernel, weighted, fit_intercept, place):
    weights = data.weights if weighted else None
    alpha = np.array([0.1, 0.7, 0.1])
    model = KernelRidge(alpha=alpha, kernel=kernel, form="dual", fit_intercept=fit_intercept, **PLACES[place])
    model.fit(data.X, data.y, sample_weight=weights)
    K, of_new = naive_grams(kernel)
    coef, intercept = naive_kernel_ridge(K, data.y, alpha, weights, fit_intercept)
    close(model.dual_coef_, coef)
    close(model.predict(data.X_new), of_new @ coef + intercept)
    if fit_intercept:
        close(model.intercept_, intercept)
    assert model.plan_.execution == ("memory" if place == "memory" else "serial")
    assert model.solve_result_.status.name == "SOLVED"
    assert model.solve_result_.residual < 1e-10


@every_pair(kernel=FINITE, weighted=[False, True], fit_intercept=[False, True], place=list(PLACES), ids=str)
def test_primal_and_dual_are_the_same_model(data, kernel, weighted, fit_intercept, place):
    weights = data.weights if weighted else None
    settings = {"alpha": [0.1, 0.7, 0.1], "kernel": kernel, "fit_intercept": fit_intercept}
    dual = KernelRidge(form="dual", **settings).fit(data.X, data.y, sample_weight=weights)
    tiles = {"tile": 8} if place == "tiles" else {}
    primal = KernelRidge(form="primal", **settings, **tiles).fit(data.X, data.y, sample_weight=weights)
    assert primal.plan_.form == "primal" and primal.plan_.execution == ("serial" if tiles else "memory")
    close(primal.predict(data.X_new), dual.predict(data.X_new))
    close(primal.dual_coef_, dual.dual_coef_)
    close(primal.coef_, dual.coef_)  # w = Φᵀα
    close(primal.intercept_, dual.intercept_)
    # y − f(X) = λ W⁻¹ α, wherever the weight is not zero
    w = np.ones(len(data.X)) if weights is None else weights
    keep = w > 0
    errors = data.y - dual.predict(data.X)
    close((np.array([0.1, 0.7, 0.1]) * dual.dual_coef_)[keep], (w[:, None] * errors)[keep])


@pytest.mark.parametrize("name", ["linear", "rbf", "laplacian", "polynomial", "cosine", "sigmoid"])
@pytest.mark.parametrize("weighted", [False, True])
def test_is_a_drop_in_for_scikit_learn(data, name, weighted):
    X, weights = np.abs(data.X) * 0.1, data.weights if weighted else None
    for y in (data.y, data.y[:, 0]):
        theirs = sklearn.kernel_ridge.KernelRidge(alpha=10.0, kernel=name).fit(X, y, sample_weight=weights)
        ours = KernelRidge(alpha=10.0, kernel=name).fit(X, y, sample_weight=weights)
        assert ours.dual_coef_.shape == theirs.dual_coef_.shape
        close(ours.dual_coef_, theirs.dual_coef_)
        close(ours.predict(X), theirs.predict(X))
        assert ours.score(X, y) == pytest.approx(theirs.score(X, y), abs=1e-8)


def test_has_scikit_learns_parameters_and_defaults():
    theirs = sklearn.kernel_ridge.KernelRidge().get_params()
    ours = KernelRidge().get_params()
    assert {name: ours[name] for name in theirs} == theirs


@every_pair(
    name=["ndarray", "float32", "integers", "csr", "csc", "dask", "zarr", "path", "frame", "list"],
    kernel=["rbf", "linear", "laplacian"],
    place=list(PLACES),
)
def test_input_types(data, tmp_path, kernel, name, place):
    X = np.round(data.X, 1)
    X[np.abs(X) < 0.7] = 0.0
    inputs = {
        "ndarray": lambda: X,
        "float32": lambda: X.astype(np.float32),
        "integers": lambda: (10 * X).astype(int),
        "csr": lambda: sp.csr_matrix(X),
        "csc": lambda: sp.csc_array(X),
        "dask": lambda: da.from_array(X, chunks=(29, 2)),
        "zarr": lambda: zarr.open_array(_zarr(tmp_path, X), mode="r"),
        "path": lambda: _zarr(tmp_path, X),
        "frame": lambda: pd.DataFrame(X, columns=list("abcde")),
        "list": lambda: X.tolist(),
    }
    given_rows = inputs[name]()
    exact = {"float32": X.astype(np.float32).astype(float), "integers": (10 * X).astype(int).astype(float)}.get(name, X)
    expected = sklearn.kernel_ridge.KernelRidge(alpha=0.5, kernel=kernel).fit(exact, data.y).predict(exact)
    model = KernelRidge(alpha=0.5, kernel=kernel, **PLACES[place]).fit(given_rows, data.y)
    actual = model.predict(given_rows)
    if name in ("dask", "zarr"):
        assert isinstance(actual, da.Array)
    else:
        assert isinstance(actual, da.Array if name == "path" else np.ndarray)
    close(np.asarray(actual), expected)


def _zarr(folder, X):
    zarr.save_array(str(folder / "x.zarr"), X)
    return str(folder / "x.zarr")


def test_targets_and_weights_may_be_dask_or_zarr(data, tmp_path):
    expected = KernelRidge(kernel="rbf").fit(data.X, data.y, sample_weight=data.weights).dual_coef_
    zarr.save_array(str(tmp_path / "y.zarr"), data.y)
    for y in (da.from_array(data.y, chunks=(50, 1)), str(tmp_path / "y.zarr")):
        weights = da.from_array(data.weights, chunks=40)
        model = KernelRidge(kernel="rbf").fit(da.from_array(data.X), y, sample_weight=weights)
        close(model.dual_coef_, expected, 1e-12)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("kind", ["ndarray", "dask", "zarr"])
def test_precomputed(data, tmp_path, kind, place):
    K = naive_gram(RBF(gamma=0.3), data.X, data.X)
    new = naive_gram(RBF(gamma=0.3), data.X_new, data.X)
    wrapped = {
        "ndarray": lambda: K,
        "dask": lambda: da.from_array(K, chunks=(40, 60)),
        "zarr": lambda: _zarr(tmp_path, K),
    }
    model = KernelRidge(alpha=0.2, kernel="precomputed", **PLACES[place])
    model.fit(wrapped[kind](), data.y, sample_weight=data.weights)
    coef, _ = naive_kernel_ridge(K, data.y, np.full(3, 0.2), data.weights)
    close(model.dual_coef_, coef)
    close(model.predict(new), new @ coef)


@pytest.mark.parametrize("place", PLACES)
def test_custom_callable_kernel(data, place):
    def kernel(X, Z, scale=1.0):
        return np.exp(-scale * ((X[:, None, :] - Z[None, :, :]) ** 2).sum(axis=2))

    model = KernelRidge(alpha=0.2, kernel=kernel, kernel_params={"scale": 0.3}, **PLACES[place]).fit(data.X, data.y)
    expected = KernelRidge(alpha=0.2, kernel="rbf", gamma=0.3).fit(data.X, data.y)
    close(model.predict(data.X_new), expected.predict(data.X_new))


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    n=st.integers(1, 40),
    d=st.integers(1, 50),
    t=st.integers(1, 4),
    n_tiles=st.one_of(st.none(), st.integers(1, 5)),
    form=st.sampled_from(["auto", "primal", "dual"]),
    kernel=st.sampled_from([Linear(), Polynomial(degree=2), RBF()]),
    fit_intercept=st.booleans(),
)
def test_any_shape(n, d, t, n_tiles, form, kernel, fit_intercept):
    if form == "primal" and isinstance(kernel, RBF):
        form = "dual"
    size = n if form != "primal" else feature_map(kernel, d).dimension(d)
    tile = None if n_tiles is None else -(-size // n_tiles)
    rng = np.random.default_rng(n * 1000 + d)
    X, y = rng.normal(size=(n, d)), rng.normal(size=(n, t))
    kernel = kernel.resolved(d)
    model = KernelRidge(alpha=0.3, kernel=kernel, form=form, tile=tile, fit_intercept=fit_intercept).fit(X, y)
    K = naive_gram(kernel, X, X)
    coef, intercept = naive_kernel_ridge(K, y, np.full(t, 0.3), None, fit_intercept)
    expected = K @ coef + intercept
    assert_allclose(model.predict(X), expected, rtol=0, atol=1e-8 * max(1.0, np.abs(y).max()))


@pytest.mark.parametrize("place", PLACES)
def test_kernel_least_squares_interpolates(data, place):
    model = KernelRidge(alpha=0.0, kernel="rbf", gamma=2.0, **PLACES[place]).fit(data.X, data.y)
    close(model.predict(data.X), data.y)


@pytest.mark.parametrize("place", PLACES)
def test_least_squares_in_primal_form_is_numpys(data, place):
    tiles = {"tile": 3} if place == "tiles" else {}
    model = KernelRidge(alpha=0.0, kernel="linear", **tiles).fit(data.X, data.y)
    assert model.plan_.form == "primal"
    close(model.coef_, np.linalg.lstsq(data.X, data.y, rcond=None)[0])
    assert not hasattr(model, "dual_coef_")  # λ = 0 does not determine it


def test_the_gradient_of_the_objective_is_zero(data):
    model = KernelRidge(alpha=0.4, kernel="rbf", gamma=0.2).fit(data.X, data.y[:, 0])
    K, a = naive_gram(RBF(gamma=0.2), data.X, data.X), model.dual_coef_
    gradient = 2 * K @ (K @ a - data.y[:, 0]) + 2 * 0.4 * K @ a
    assert np.abs(gradient).max() < 1e-9 * np.abs(K @ data.y[:, 0]).max()


def test_works_in_scikit_learns_tools(data):
    search = GridSearchCV(
        make_pipeline(StandardScaler(), KernelRidge(kernel="rbf")),
        {"kernelridge__alpha": [1e-2, 1.0], "kernelridge__gamma": [0.1, 1.0]},
        cv=3,
    ).fit(data.X, data.y[:, 1])
    assert search.best_score_ > 0.9
    copy = clone(KernelRidge(alpha=3.0, kernel=RBF(gamma=0.2), memory_limit="1GiB"))
    assert copy.alpha == 3.0 and copy.kernel == RBF(gamma=0.2) and copy.memory_limit == "1GiB"


ARRAYS = {
    "float64": np.ones((4, 2)),
    "float32": np.ones((4, 2), np.float32),
    "Fortran order": np.ones((4, 2), order="F"),
    "strided": np.ones((8, 4))[::2, ::2],
    "vector": np.ones(4),
    "integers": np.ones((4, 2), int),
    "float16": np.ones((4, 2), np.float16),
    "other byte order": np.ones((4, 2), ">f8"),
    "no rows": np.ones((0, 2)),
    "no columns": np.ones((4, 0)),
    "three dimensions": np.ones((4, 2, 2)),
    "matrix": np.ones((4, 2)).view(np.matrix),
    "list": [[1.0, 1.0]] * 4,
    "frame": pd.DataFrame({"a": [1.0, 1.0]}),
}


@pytest.mark.parametrize("name", ARRAYS)
def test_plain_arrays_are_those_that_scikit_learn_returns_unchanged(name):
    array = ARRAYS[name]
    try:
        unchanged = check_array(array, dtype=DTYPES, accept_sparse="csr") is array
    except (ValueError, TypeError):
        unchanged = False
    assert is_plain(array) is unchanged


def test_arrays_have_no_names_whatever_was_fitted_before(data):
    X, y = data.X, data.y
    frame = pd.DataFrame(X).add_prefix("x")
    model = KernelRidge().fit(frame, y)
    with pytest.warns(UserWarning, match="does not have valid feature names"):
        model.predict(X)
    model.fit(X, y)
    assert not hasattr(model, "feature_names_in_") and model.n_features_in_ == X.shape[1]
    with pytest.raises(ValueError, match="X has 1 features, but KernelRidge is expecting"):
        model.predict(X[:, :1])


def test_predictions_of_one_form_do_not_survive_the_next_fit(data):
    model = KernelRidge(kernel="linear").fit(data.X, data.y)
    assert hasattr(model, "coef_")
    model.set_params(kernel="rbf").fit(data.X, data.y)
    assert not hasattr(model, "coef_")


def test_lazy_prediction_follows_the_chunks_and_stays_lazy(data):
    model = KernelRidge(kernel="rbf").fit(data.X, data.y)
    lazy = model.predict(da.from_array(data.X_new, chunks=(10, 2)))
    assert lazy.chunks[0] == (10, 10, 10, 7) and lazy.shape == (37, 3)
    close(lazy[12:20, 1].compute(), model.predict(data.X_new)[12:20, 1], 1e-12)


@pytest.mark.parametrize(("form", "solver"), [("dual", "cholesky"), ("primal", "cholesky"), ("dual", "cg")])
def test_every_target_has_a_residual(data, form, solver):
    result = KernelRidge([1.0, 1e-3], form=form, solver=solver).fit(data.X, data.X[:, :2]).solve_result_
    assert len(result.residuals) == 2 and max(result.residuals) == result.residual
