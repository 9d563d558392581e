"""`KernelRidge.partial_fit` in primal form equals `fit` of all rows so far, and keeps none of them."""

import copy
import pickle
import re
import warnings
from contextlib import nullcontext
from itertools import pairwise

import numpy as np
import pytest
import scipy.sparse as sp
from numpy.testing import assert_allclose
from sklearn.exceptions import ConvergenceWarning

import dkrr
from dkrr import KernelRidge, KernelRidgeCV
from dkrr.errors import InputError, MemoryLimitError, NotPositiveDefiniteError
from dkrr.features import FourierGrid, Nystroem, RandomFourier
from dkrr.kernels import RBF, BagOfWords
from dkrr.linalg.result import NORMAL_EQUATIONS

EPS = np.finfo(float).eps
D = 3
KERNELS = {
    "linear": {"kernel": "linear"},
    "polynomial": {"kernel": "polynomial", "degree": 2},
    "random": {"kernel": RandomFourier(RBF(gamma=0.3), 40)},
    "CSR": {"kernel": "linear"},
    "Fourier": {"kernel": FourierGrid(RBF(gamma=0.5), box=[(-3.0, 3.0)])},
}


def rows_of(rng, n, name="linear", shift=0.0, t=2):
    """Rows, targets and weights, some of which are 0."""
    X = rng.standard_normal((n, D)) + shift
    y = np.sin(X - shift) @ rng.standard_normal((D, t)) + 0.1 * rng.standard_normal((n, t))
    if name == "Fourier":
        X = rng.uniform(-3, 3, (n, 1))
        y = np.sin(X) + 0.1 * rng.standard_normal((n, t))
    weights = np.where(rng.random(n) < 0.2, 0.0, rng.uniform(0.5, 2.0, n))
    weights[0] = 1.0
    return X, y + 5.0, weights


def pieces(rng, n, k):
    """Ragged slices of n rows; some have one row, and the first is shorter than there are features."""
    cuts = np.unique([0, 2, 3, *rng.integers(4, n, k).tolist(), n])
    return [slice(a, b) for a, b in pairwise(cuts.tolist())]


def given(X, name):
    return sp.csr_array(np.where(abs(X) > 0.7, X, 0.0)) if name == "CSR" else X


def grow(model, X, y, weights, parts):
    for part in parts:
        w = None if weights is None else weights[part].copy()
        if w is not None and not w.any():
            continue
        model.partial_fit(X[part], y[part], w)
    return model


def assert_equal_models(grown, whole, X, factor=1e3):
    condition = max(1.0, whole.solve_result_.condition)
    tolerance = factor * EPS * condition
    expected = whole.predict(X)
    scale = np.abs(expected).max()
    assert_allclose(grown.predict(X), expected, rtol=0, atol=tolerance * scale)
    assert_allclose(grown.coef_, whole.coef_, rtol=0, atol=tolerance * np.abs(whole.coef_).max())


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("name", KERNELS)
def test_a_model_that_grows_is_that_of_all_rows(name, seed):
    rng = np.random.default_rng([seed, len(name)])
    X, y, weights = rows_of(rng, int(rng.integers(60, 160)), name)
    X, has_intercept, weights = given(X, name), bool(seed % 2), weights if seed % 3 else None
    alpha = [0.5, 3.0] if seed % 4 else 0.1
    if name == "Fourier":
        has_intercept = False  # with one, the coefficient of the constant feature is hardly known
    parameters = {**KERNELS[name], "alpha": alpha, "fit_intercept": has_intercept}
    parameters["form"] = "auto" if seed % 2 and name != "random" else "primal"  # both: rows first, then sums
    grown = grow(KernelRidge(**parameters), X, y, weights, pieces(rng, X.shape[0], 6))
    used = X if weights is None else X[weights > 0]
    whole = KernelRidge(**parameters | {"form": "primal"}).fit(X, y, weights)
    if name == "Fourier":
        assert_allclose(grown.predict(X), whole.predict(X), rtol=0, atol=1e-9 * np.abs(y).max())
    else:
        assert_equal_models(grown, whole, used)
    assert_allclose(grown.rkhs_norm_, whole.rkhs_norm_, rtol=1e-6)
    assert grown.score(X, y) == pytest.approx(whole.score(X, y), abs=1e-9)
    assert grown.solve_result_.residual_of == NORMAL_EQUATIONS
    assert grown.solve_result_.status.is_good and grown.solve_result_.residual < 1e-12
    assert grown.plan_.form == "primal" and grown.plan_.execution == "memory"


def test_an_intercept_on_a_grid_grows():
    rng = np.random.default_rng(3)
    X, y, weights = rows_of(rng, 200, "Fourier")
    parameters = {**KERNELS["Fourier"], "fit_intercept": True}
    grown = grow(KernelRidge(**parameters), X, y, weights, pieces(rng, 200, 5))
    whole = KernelRidge(**parameters).fit(X, y, weights)
    assert_allclose(grown.predict(X), whole.predict(X), rtol=0, atol=1e-10)


@pytest.mark.parametrize("kernel", ["linear", "polynomial"])
@pytest.mark.parametrize("shift", [1e4, 1e7])
def test_columns_far_from_zero_cost_no_digits(kernel, shift):
    rng = np.random.default_rng(4)
    X, y, _ = rows_of(rng, 300, shift=shift)
    parameters = {"kernel": kernel, "degree": 1 if kernel == "polynomial" else 3, "alpha": 0.1, "fit_intercept": True}
    parameters |= {"form": "primal"} | ({} if kernel == "linear" else {"gamma": 1.0})
    grown = grow(KernelRidge(**parameters), X, y, None, pieces(rng, 300, 20))
    centred = KernelRidge(alpha=0.1, fit_intercept=True, form="primal").fit(X - shift, y)
    assert_allclose(grown.predict(X), centred.predict(X - shift), rtol=0, atol=max(1e-11, 10 * EPS * shift))


def test_data_that_drift_cost_no_digits():
    rng = np.random.default_rng(5)
    X, y, _ = rows_of(rng, 1000)
    X, y = X + np.linspace(0.0, 1e5, 1000)[:, None], y + np.linspace(0.0, 1e6, 1000)[:, None]
    parameters = {"alpha": 0.1, "fit_intercept": True}
    parts = [slice(k, k + 10) for k in range(0, 1000, 10)]
    grown, whole = grow(KernelRidge(**parameters), X, y, None, parts), KernelRidge(**parameters).fit(X, y)
    tolerance = 100 * EPS * np.sqrt(np.linalg.cond(X.T @ X)) * np.abs(y).max()
    assert_allclose(grown.predict(X), whole.predict(X), rtol=0, atol=tolerance)


def test_heavy_weights_of_early_rows_stay():
    rng = np.random.default_rng(6)
    X, y, _ = rows_of(rng, 200)
    weights = np.where(np.arange(200) < 20, 1e12, 1.0)
    for has_intercept in (False, True):
        parameters = {"alpha": 1.0, "fit_intercept": has_intercept}
        grown = grow(KernelRidge(**parameters), X, y, weights, pieces(rng, 200, 6))
        whole = KernelRidge(**parameters, form="primal").fit(X, y, weights)
        assert_allclose(grown.predict(X), whole.predict(X), rtol=1e-9)


@pytest.mark.parametrize("n_heavy", [10, 80])
def test_rounding_that_hides_ordinary_rows_beside_heavy_ones_is_reported(n_heavy):
    rng = np.random.default_rng(20)
    X, y, _ = rows_of(rng, 200)
    weights = np.where(np.arange(200) < n_heavy, 1e26, 1.0)
    for parts in ([slice(0, 200)], [slice(0, 20), slice(20, 200)]):
        with pytest.warns(ConvergenceWarning, match="true relative residual"):
            grown = grow(KernelRidge(alpha=1e-3), X, y, weights, parts)
        assert any("rows of ordinary weight" in text for text in grown.solve_result_.messages)
        assert not grown.solve_result_.status.is_good


def test_rounding_of_a_grid_beside_a_small_lambda_is_reported():
    rng = np.random.default_rng(21)
    X, y, _ = rows_of(rng, 400, "Fourier")
    for alpha, is_good in ((1.0, True), (1e-11, False)):
        grown = KernelRidge(**KERNELS["Fourier"], alpha=alpha)
        with nullcontext() if is_good else pytest.warns(ConvergenceWarning, match="true relative residual"):
            grown.partial_fit(X, y)
        assert grown.solve_result_.status.is_good == is_good
        with nullcontext() if is_good else pytest.warns(ConvergenceWarning, match="true relative residual"):
            whole = KernelRidge(**KERNELS["Fourier"], alpha=alpha).fit(X, y)
        error = np.linalg.norm(grown.predict(X) - whole.predict(X)) / np.linalg.norm(y)
        assert error < 2.0 * max(grown.solve_result_.residual, whole.solve_result_.residual)


def test_rounding_beside_columns_that_nearly_depend_on_each_other_is_reported():
    rng = np.random.default_rng(22)
    rotation = np.linalg.qr(rng.standard_normal((20, 20)))[0]
    X = rng.standard_normal((1000, 20)) @ (rotation * np.logspace(0, -7, 20)) @ rotation.T
    y = X @ rng.standard_normal(20) + 0.1 * rng.standard_normal(1000)
    for alpha in (1e-4, 1e-8, 1e-11):
        stacked = np.vstack([X, np.sqrt(alpha) * np.eye(20)])
        expected = X @ np.linalg.lstsq(stacked, np.append(y, np.zeros(20)), rcond=0)[0]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            grown = grow(KernelRidge(alpha=alpha), X, y, None, pieces(rng, 1000, 20))
        error = np.linalg.norm(grown.predict(X) - expected) / np.linalg.norm(y)
        assert error < max(1e-6, grown.solve_result_.residual)
    assert not grown.solve_result_.status.is_good


def test_lambda_may_change_between_calls():
    rng = np.random.default_rng(7)
    X, y, _ = rows_of(rng, 90)
    model = KernelRidge(alpha=1.0, fit_intercept=True).partial_fit(X[:40], y[:40])
    model.set_params(alpha=[0.1, 10.0]).partial_fit(X[40:], y[40:])
    assert_equal_models(model, KernelRidge(alpha=[0.1, 10.0], fit_intercept=True, form="primal").fit(X, y), X)


def test_earlier_rows_are_forgotten_by_weights():
    rng, forget, n_calls = np.random.default_rng(8), 0.5, 8
    X, y, _ = rows_of(rng, 20 * n_calls)
    model = KernelRidge(fit_intercept=True)
    for k in range(n_calls):
        part = slice(20 * k, 20 * (k + 1))
        model.set_params(alpha=2.0 * forget**-k).partial_fit(X[part], y[part], np.full(20, forget**-k))
    age = (n_calls - 1) - np.arange(len(X)) // 20
    whole = KernelRidge(alpha=2.0, fit_intercept=True, form="primal").fit(X, y, forget**age)
    assert_equal_models(model, whole, X)


def test_rows_grow_after_a_fit_and_a_fit_starts_anew():
    rng = np.random.default_rng(9)
    X, y, weights = rows_of(rng, 120)
    for parameters in (KERNELS["linear"], KERNELS["polynomial"]):
        whole = KernelRidge(**parameters, form="primal").fit(X, y, weights)
        model = KernelRidge(**parameters).fit(X[:50], y[:50], weights[:50])
        model.partial_fit(X[50:], y[50:], weights[50:])
        assert_equal_models(model, whole, X)
        assert not hasattr(model, "X_fit_") and not hasattr(model, "dual_coef_")
        model.fit(X[:50], y[:50])
        assert model.loo_residuals().shape == (50, 2)
        assert_equal_models(model.partial_fit(X[50:], y[50:]), KernelRidge(**parameters, form="primal").fit(X, y), X)


def test_centres_of_nystroem_stay_with_a_message():
    rng = np.random.default_rng(10)
    X, y, _ = rows_of(rng, 120)
    kernel = Nystroem(RBF(gamma=0.3), 30)
    model = KernelRidge(kernel=kernel).partial_fit(X[:60], y[:60])
    first = model._model.kernel
    model.partial_fit(X[60:], y[60:])
    assert_equal_models(model, KernelRidge(kernel=first, form="primal").fit(X, y), X)
    assert any("drawn in the first call" in text for text in model.solve_result_.messages)


def test_copies_and_the_order_of_rows():
    rng = np.random.default_rng(11)
    X, y, _ = rows_of(rng, 90)
    y = y[:, 0]
    model = KernelRidge(kernel="polynomial", fit_intercept=True).partial_fit(X[:30], y[:30])
    again, other = pickle.loads(pickle.dumps(model)), copy.deepcopy(model)
    expected = model.partial_fit(X[30:], y[30:]).predict(X)
    assert np.array_equal(again.partial_fit(X[30:], y[30:]).predict(X), expected)
    assert_allclose(other.partial_fit(X[60:], y[60:]).partial_fit(X[30:60], y[30:60]).predict(X), expected, rtol=1e-10)
    assert len(pickle.dumps(model)) < 60_000


def test_rows_are_not_kept(tmp_path):
    rng = np.random.default_rng(12)
    X, y, _ = rows_of(rng, 20_000)
    model = KernelRidge().partial_fit(X, y)
    assert len(pickle.dumps(model)) < 50_000
    dkrr.save(model, tmp_path / "model.zarr")
    loaded = dkrr.load(tmp_path / "model.zarr")
    assert np.array_equal(loaded.predict(X), model.predict(X))
    with pytest.raises(InputError, match="the model was loaded.*give all rows to fit"):
        loaded.partial_fit(X, y)


@pytest.mark.parametrize(
    "ask",
    [
        lambda m, X: m.predict(X, return_std=True),
        lambda m, X: m.predict_interval(X),
        lambda m, X: m.loo_residuals(),
        lambda m, X: m.log_marginal_likelihood(),
        lambda m, X: dkrr.save(m, "never.zarr", uncertainty=True),
    ],
)
def test_what_needs_the_rows_is_refused(ask):
    X, y, _ = rows_of(np.random.default_rng(13), 30)
    with pytest.raises(InputError, match="grown by partial_fit.*give all rows to fit"):
        ask(KernelRidge().partial_fit(X, y), X)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"kernel": "laplacian"}, "kernel is Laplacian.*form='primal'.*give a kernel with explicit features"),
        ({"kernel": "precomputed"}, "kernel is 'precomputed'"),
        ({"solver": "cg"}, "solver is 'cg'.*expected solver='cholesky'"),
        ({"store": "run.zarr"}, "store is 'run.zarr'.*give all rows to fit"),
        ({"uncertainty": True}, "uncertainty is True.*give all rows to fit"),
        ({"transformer": "standardize"}, "transformer is 'standardize'.*give transformed rows"),
    ],
)
def test_a_first_call_that_cannot_grow_is_refused(parameters, message):
    X, y, _ = rows_of(np.random.default_rng(14), D)
    with pytest.raises(InputError, match=message):
        KernelRidge(**{"form": "primal"} | parameters).partial_fit(X, y)


def test_a_kernel_that_learns_is_refused():
    texts, y = ["one two", "two three", "three one one"], np.arange(3.0)
    with pytest.raises(InputError, match=r"learns from all rows.*give kernel.fitted\(X\)"):
        KernelRidge(kernel=BagOfWords()).partial_fit(texts, y)
    kernel = BagOfWords().fitted(texts)
    model = KernelRidge(kernel=kernel).partial_fit(texts[:2], y[:2]).partial_fit(texts[2:], y[2:])
    assert_allclose(model.predict(texts), KernelRidge(kernel=kernel).fit(texts, y).predict(texts))


@pytest.mark.parametrize("first", ["fit", "partial_fit"])
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"kernel": "polynomial"}, r"kernel is Polynomial.*were fitted with Linear"),
        ({"fit_intercept": True}, "fit_intercept is True.*were fitted with False"),
    ],
)
def test_another_model_is_refused_and_nothing_changes(first, changes, message):
    X, y, _ = rows_of(np.random.default_rng(15), 30)
    model = getattr(KernelRidge(), first)(X, y)
    expected = model.predict(X)
    with pytest.raises(InputError, match=message):
        model.set_params(**changes).partial_fit(X, y)
    assert np.array_equal(model.predict(X), expected)


def test_other_columns_and_targets_are_refused():
    X, y, _ = rows_of(np.random.default_rng(16), 30)
    model = KernelRidge().partial_fit(X, y)
    expected = model.predict(X)
    for bad_X, bad_y, weights, message in (
        (X[:, :2], y, None, "X has 2 features, but KernelRidge is expecting 3"),
        (X, y[:, 0], None, r"y has shape \(30,\); expected \(n, 2\)"),
        (X, y[:20], None, "inconsistent numbers of samples"),
        (X, y, -1.0, "sample_weight is -1.0"),
        (X, np.where(y > 4, np.nan, y), None, "y"),
        (np.where(X > 0, np.nan, X), y, None, "X"),
        (X, 1e200 * y, None, r"the largest \|y\|"),
    ):
        with pytest.raises(InputError, match=message):
            model.partial_fit(bad_X, bad_y, weights)
    assert np.array_equal(model.predict(X), expected)
    assert_equal_models(
        model.partial_fit(X, y), KernelRidge(form="primal").fit(np.vstack([X, X]), np.vstack([y, y])), X
    )


def test_rows_outside_of_the_box_of_a_grid_are_refused():
    rng = np.random.default_rng(17)
    X, y, _ = rows_of(rng, 300, "Fourier")
    model = KernelRidge(kernel="rbf", gamma=0.5, form="primal").partial_fit(X / 2, y)
    with pytest.raises(InputError, match=r"X has 9 in row 7, column 0, outside of the box .*kernel=FourierGrid\("):
        model.partial_fit(np.vstack([X[:7] / 2, [[9.0]]]), y[:8])
    inside = X[np.abs(X[:, 0]) < 1.0]
    model.partial_fit(inside, y[: len(inside)])
    whole = KernelRidge(kernel="rbf", gamma=0.5).fit(np.vstack([X / 2, inside]), np.vstack([y, y[: len(inside)]]))
    assert_allclose(model.predict(inside), whole.predict(inside), rtol=0, atol=1e-9)


def test_limits_are_those_of_memory_and_of_lambda():
    X, y, _ = rows_of(np.random.default_rng(18), 30)
    wide = np.random.default_rng(0).standard_normal((30, 3000))
    with pytest.raises(MemoryLimitError, match="Nothing was computed") as refused:
        KernelRidge(memory_limit="250 MiB", form="primal").partial_fit(wide, y)
    suffices = int(re.search(r"at least .* \((\d+) bytes\)", str(refused.value))[1])
    KernelRidge(memory_limit=suffices + 2**26, form="primal").partial_fit(wide, y)  # this process may hold more by now
    with pytest.raises(InputError, match="all rows to fit, with smaller weights"):
        KernelRidge().partial_fit(X, y).partial_fit(X, y, 1e31)
    with pytest.raises(NotPositiveDefiniteError):
        KernelRidge(alpha=0.0, form="primal").partial_fit(np.ones((1, 3)), y[:1])
    with pytest.raises(InputError, match="alpha = 1e-16 is below"):
        KernelRidge(**KERNELS["Fourier"], alpha=1e-16).partial_fit(X[:, :1] / 3, y)


def test_the_plan_of_a_call_does_not_grow_with_the_rows_so_far():
    X, y, _ = rows_of(np.random.default_rng(23), 2000, "Fourier")
    model, peaks = KernelRidge(**KERNELS["Fourier"], memory_limit="1 GiB"), []
    for _ in range(4):
        model.partial_fit(X, y)
        peaks.append(model.plan_.peak_bytes - model.plan_.resources.local_baseline_bytes)
    assert model.plan_.problem.n == 8000 and str(model.plan_).startswith("dkrr plan: 8,000 rows")
    assert max(peaks) == min(peaks) and model.plan_.peak_bytes < 2**30


@pytest.mark.parametrize("name", ["linear", "Fourier"])
def test_the_plan_does_not_promise_what_needs_the_rows(name):
    X, y, _ = rows_of(np.random.default_rng(24), 40, name)
    text = str(KernelRidge(**KERNELS[name]).partial_fit(X, y).plan_)
    assert "dual system" not in text and "uncertainty" not in text and "sums over the rows" in text


def test_a_search_does_not_grow():
    assert not hasattr(KernelRidgeCV(), "partial_fit")


def test_tables_keep_the_order_of_their_columns():
    pandas = pytest.importorskip("pandas")
    X, y, _ = rows_of(np.random.default_rng(19), 40)
    table = pandas.DataFrame(X, columns=["a", "b", "c"]).assign(y=y[:, 0])
    model = KernelRidge().partial_fit(table[:20], "y").partial_fit(table[20:], "y")
    assert list(model.feature_names_in_) == ["a", "b", "c"]
    assert_equal_models(model, KernelRidge(form="primal").fit(table, "y"), table[["a", "b", "c"]])
    with pytest.raises(InputError, match="feature names"):
        model.partial_fit(table[["b", "a", "c"]], table["y"])
