"""Standard deviations, likelihood and leave-one-out residuals against scikit-learn's Gaussian process and n fits."""

import pickle
import warnings
from contextlib import nullcontext

import dask.array as da
import numpy as np
import pytest
from flint import arb, arb_mat
from numpy.testing import assert_allclose
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process import kernels as sk_kernels
from sklearn.gaussian_process.kernels import ConstantKernel, DotProduct
from sklearn.model_selection import KFold, ShuffleSplit

import dkrr
from dkrr import KernelRidge, KernelRidgeCV
from dkrr.errors import ConvergenceWarning, InputError
from dkrr.features import Nystroem, whitened
from dkrr.kernels import RBF, BagOfWords, Linear
from tests.pairs import every_pair
from tests.precise import matrix, precision, ridge
from tests.selection.naive import leave_one_out, naive_predictions

ALPHA, LENGTH = 0.3, 1.7
GAMMA = 0.5 / LENGTH**2


def dense_posterior(kernel, X, y, w, alpha, X_new, fit_intercept):
    """Mean, variance for s = 1, s² and the logarithm of the (restricted) likelihood, by dense formulas."""
    keep = w > 0
    X, y, w = X[keep], y[keep], w[keep]
    A = kernel(X) + alpha * np.diag(1 / w)
    k, prior, n = kernel(X, X_new), np.diag(kernel(X_new)), len(y)
    inverse = np.linalg.inv(A)
    P, more, degrees, constant = inverse, 0.0, n, 0.0
    if fit_intercept:
        v = inverse.sum(axis=1)
        P = inverse - np.outer(v, v) / v.sum()
        more, degrees, constant = (1 - v @ k) ** 2 / v.sum(), n - 1, np.log(v.sum())
    variance = prior - np.einsum("ij,ij->j", k, inverse @ k) + more
    s2 = y @ P @ y / degrees
    log_det = np.linalg.slogdet(A)[1] + constant
    return variance, s2, -0.5 * degrees * (1 + np.log(2 * np.pi * s2)) - 0.5 * log_det


@pytest.mark.parametrize("settings", [{}, {"solver": "cg"}, {"tile": 40}], ids=str)
def test_as_scikit_learn(data, settings):
    y = data.y[:, 0]
    model = KernelRidge(alpha=ALPHA, kernel="rbf", gamma=GAMMA, **settings).fit(data.X, y)
    peer = GaussianProcessRegressor(sk_kernels.RBF(LENGTH), alpha=ALPHA, optimizer=None).fit(data.X, y)
    mean, std = model.predict(data.X_new, return_std=True, scale=1.0)
    expected_mean, expected = peer.predict(data.X_new, return_std=True)
    assert_allclose(mean, expected_mean, rtol=1e-6)
    assert_allclose(std, expected, rtol=1e-9)
    s2 = float((model.predict(data.X_new, return_std=True)[1][0] / std[0]) ** 2)
    scaled = GaussianProcessRegressor(ConstantKernel(s2) * sk_kernels.RBF(LENGTH), alpha=s2 * ALPHA, optimizer=None)
    likelihood = scaled.fit(data.X, y).log_marginal_likelihood()
    assert model.log_marginal_likelihood_ == pytest.approx(likelihood, rel=1e-10)
    for other in (0.9 * s2, 1.1 * s2):
        worse = GaussianProcessRegressor(
            ConstantKernel(other) * sk_kernels.RBF(LENGTH), alpha=other * ALPHA, optimizer=None
        )
        assert worse.fit(data.X, y).log_marginal_likelihood() < likelihood


def test_primal_as_scikit_learn(data):
    y = data.y[:, 1]
    model = KernelRidge(alpha=ALPHA, kernel="linear").fit(data.X, y)
    assert model.plan_.form == "primal"
    peer = GaussianProcessRegressor(DotProduct(1e-9), alpha=ALPHA, optimizer=None).fit(data.X, y)
    assert_allclose(model.predict(data.X_new, True, 1.0)[1], peer.predict(data.X_new, return_std=True)[1], rtol=1e-7)


@pytest.mark.parametrize("kernel", [RBF(gamma=GAMMA), "linear"], ids=str)
@pytest.mark.parametrize("fit_intercept", [False, True])
@pytest.mark.parametrize("weighted", [False, True])
def test_as_dense_formulas(data, kernel, fit_intercept, weighted):
    weights = data.weights if weighted else None
    w = np.ones(211) if weights is None else weights
    model = KernelRidge(alpha=[ALPHA, ALPHA, 2.0], kernel=kernel, fit_intercept=fit_intercept)
    model.fit(data.X, data.y, sample_weight=weights)
    _, std = model.predict(data.X_new, return_std=True)
    likelihoods = model.log_marginal_likelihood_
    function = RBF(gamma=GAMMA) if kernel != "linear" else dkrr.kernels.Linear()
    for j, alpha in enumerate([ALPHA, ALPHA, 2.0]):
        variance, s2, likelihood = dense_posterior(function, data.X, data.y[:, j], w, alpha, data.X_new, fit_intercept)
        assert_allclose(std[:, j], np.sqrt(s2 * variance), rtol=1e-7)
        assert likelihoods[j] == pytest.approx(likelihood, rel=1e-9)


@pytest.mark.parametrize("kernel", ["rbf", "linear"])
@pytest.mark.parametrize("fit_intercept", [False, True])
def test_residuals_of_models_without_the_row(data, kernel, fit_intercept):
    X, Y, weights = data.X[:50], data.y[:50], data.weights[:50]
    settings = {"kernel": kernel, "fit_intercept": fit_intercept}
    model = KernelRidge(alpha=ALPHA, **settings).fit(X, Y, sample_weight=weights)
    expected = Y - np.vstack(naive_predictions(X, Y, leave_one_out(50), ALPHA, weights, **settings))
    assert_allclose(model.loo_residuals_, expected, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("size", [2.0**-270, 2.0**330], ids=["tiny", "huge"])
def test_residuals_do_not_depend_on_units(data, size):
    """K and its inverse are about 1e±163 and 1e±199: their squares leave float64."""
    X, y = data.X[:30], data.y[:30]
    expected, found = (
        KernelRidge(s * s, kernel="linear", form="dual", fit_intercept=True).fit(X * s, y) for s in (1.0, size)
    )
    assert_allclose(found.loo_residuals_, expected.loo_residuals_, rtol=1e-12)


def test_a_primal_fit_by_conjugate_gradient_has_the_factor_of_features(data):
    """The factor of all rows has 0.1 % of this variance's digits left."""
    by_cg, direct = (KernelRidge(1e-13, kernel="linear", form="primal", solver=s) for s in ("cg", "cholesky"))
    for model in (by_cg, direct):
        model.fit(data.X, data.y)
    assert_allclose(by_cg.loo_residuals_, direct.loo_residuals_, rtol=1e-12)
    found, expected = (model.predict(data.X_new, return_std=True, scale=1.0)[1] for model in (by_cg, direct))
    assert_allclose(found, expected, rtol=1e-12)


@pytest.mark.parametrize(("weight", "heavy"), [(1e16, [7]), (1e18, [7]), (1e18, [3, 4])], ids=str)
def test_a_dominating_weight_costs_no_digits(weight, heavy):
    rng, n, alpha, kernel = np.random.default_rng(3), 12, 0.5, Linear()
    X, y, w = rng.normal(size=(n, 3)), rng.normal(size=n) + 3, np.ones(n)
    w[heavy] = weight

    def exact(folds):
        pairs = [(np.setdiff1d(np.arange(n), test), test) for test in folds]
        return np.vstack(
            [
                ridge(kernel, X[a], y[a], alpha, sample_weight=w[a], fit_intercept=True, X_new=X[b]).predictions
                for a, b in pairs
            ]
        )[:, 0]

    settings = {"kernel": kernel, "fit_intercept": True, "form": "dual", "solver": "cholesky"}
    model = KernelRidge(alpha=alpha, **settings).fit(X, y, sample_weight=w)
    assert_allclose(model.loo_residuals_, y - exact(np.arange(n)[:, None]), rtol=1e-6)
    search = KernelRidgeCV([alpha], cv=4, store_cv_predictions=True, **settings).fit(X, y, sample_weight=w)
    expected = exact(np.split(np.arange(n), 4))
    assert_allclose(search.cv_predictions_, expected, rtol=1e-6)
    found = model._processes().factored()[0][1].fold_models(np.split(np.arange(n), 4))
    assert_allclose(np.vstack(found.errors)[:, 0], y - expected, rtol=1e-6)
    for k, fold in enumerate(np.split(np.arange(n), 4)):
        assert_allclose(found.predict(X)[k, fold, 0], expected[fold], rtol=1e-6)


def test_a_wrong_target_stands_out(data):
    y = np.sin(data.X[:, 0])
    y[77] += 2.0
    assert np.argmax(np.abs(KernelRidge(alpha=0.1, kernel="rbf").fit(data.X, y).loo_residuals_)) == 77


@pytest.mark.parametrize("make", [da.from_array, lambda X: X.astype(np.float32), lambda X: X.tolist()])
def test_containers_and_blocks(data, make, monkeypatch):
    model = KernelRidge(alpha=ALPHA, kernel="rbf").fit(data.X, data.y)
    _, expected = model.predict(data.X_new, return_std=True)
    monkeypatch.setattr("dkrr.posterior.base.CROSS_BYTES", 8 * 211 * 5)
    mean, std = model.predict(make(data.X_new), return_std=True)
    assert std.shape == np.asarray(mean).shape == (37, 3)
    assert_allclose(std, expected, rtol=1e-5)


def test_far_from_the_data_it_is_that_of_the_process(data):
    model = KernelRidge(alpha=ALPHA, kernel="rbf", gamma=1.0).fit(data.X, data.y[:, 0])
    _, std = model.predict(np.full((1, 5), 100.0), return_std=True, scale=4.0)
    assert std == pytest.approx([2.0])
    _, near = model.predict(data.X[:20], return_std=True, scale=4.0)
    assert (near < 2.0).all() and (near > 0).all()


def test_a_new_fit_and_copies(data, tmp_path):
    model = KernelRidge(alpha=ALPHA, kernel="rbf").fit(data.X, data.y[:, 0])
    before = model.predict(data.X_new, return_std=True)[1]
    copy = pickle.loads(pickle.dumps(model))
    assert_allclose(copy.predict(data.X_new, return_std=True)[1], before)
    model.fit(data.X[:100], data.y[:100, 0])
    assert (model.predict(data.X_new, return_std=True, scale=1.0)[1] > 0).all()
    assert not np.allclose(model.predict(data.X_new, return_std=True)[1], before)
    dkrr.save(model, str(tmp_path / "model.zarr"))
    loaded = dkrr.load(str(tmp_path / "model.zarr"))
    with pytest.raises(InputError, match=r"saved without its targets.*call fit"):
        loaded.predict(data.X_new, return_std=True)


def test_of_the_chosen_model(data):
    y = data.y[:, 0]
    search = KernelRidgeCV([0.1, 1.0], cv=3).fit(data.X, y)
    plain = KernelRidge(alpha=search.alpha_, kernel="rbf").fit(data.X, y)
    for found, expected in zip(search.predict(data.X_new, True), plain.predict(data.X_new, True), strict=True):
        assert_allclose(found, expected, rtol=1e-6)


@pytest.mark.parametrize("kernel", ["rbf", "linear"])
@pytest.mark.parametrize("fit_intercept", [False, True])
def test_intervals_are_those_of_separate_fits(data, kernel, fit_intercept):
    settings, weights = {"kernel": kernel, "fit_intercept": fit_intercept}, data.weights
    model = KernelRidge(alpha=ALPHA, **settings).fit(data.X, data.y, sample_weight=weights)
    lower, upper = model.predict_interval(data.X_new, 0.8, cv=KFold(4, shuffle=True, random_state=0))
    below, above = [], []
    for train, test in KFold(4, shuffle=True, random_state=0).split(data.X):
        one = KernelRidge(alpha=ALPHA, solver="cholesky", **settings)
        one.fit(data.X[train], data.y[train], sample_weight=weights[train])
        errors = np.abs(data.y[test] - one.predict(data.X[test]))[weights[test] > 0]
        below.append(one.predict(data.X_new) - errors[:, None])
        above.append(one.predict(data.X_new) + errors[:, None])
    below, above = np.vstack(below), np.vstack(above)
    n = len(below)
    assert_allclose(lower, np.sort(below, axis=0)[n - int(np.ceil(0.8 * (n + 1)))], rtol=1e-6, atol=1e-8)
    assert_allclose(upper, np.sort(above, axis=0)[int(np.ceil(0.8 * (n + 1))) - 1], rtol=1e-6, atol=1e-8)


def test_intervals_of_folds_one_of_which_dominates():
    rng = np.random.default_rng(1)
    X = rng.standard_normal((60, 3))
    X[:6] *= 1e8
    y = X @ [1e-8, 1e-8, 2e-8] + rng.standard_normal(60)
    settings, folds = {"kernel": "linear", "fit_intercept": True}, KFold(10)
    lower, upper = KernelRidge(alpha=1.0, **settings).fit(X, y).predict_interval(X[20:23], cv=folds)
    models = [KernelRidge(alpha=1.0, **settings).fit(X[train], y[train]) for train, _ in folds.split(X)]
    each = [
        (one.predict(X[20:23]), error)
        for one, (_, test) in zip(models, folds.split(X), strict=True)
        for error in np.abs(y[test] - one.predict(X[test]))
    ]
    assert_allclose(lower, np.sort([p - e for p, e in each], axis=0)[5], rtol=1e-7)
    assert_allclose(upper, np.sort([p + e for p, e in each], axis=0)[54], rtol=1e-7)


def test_intervals_hold_new_targets():
    rng = np.random.default_rng(3)
    X = rng.uniform(-3, 3, (1200, 1))
    y = np.sin(X[:, 0]) + (0.1 + 0.3 * (X[:, 0] > 0)) * rng.standard_t(4, 1200)
    search = KernelRidgeCV(np.geomspace(1e-3, 10, 6), gamma=1.0, cv=5).fit(X[:400], y[:400])
    for coverage in (0.5, 0.9):
        lower, upper = search.predict_interval(X[400:], coverage)
        assert np.mean((lower <= y[400:]) & (y[400:] <= upper)) == pytest.approx(coverage, abs=0.05)
    wide = search.predict_interval(X[:3], 0.999)
    assert np.isinf(wide[0]).all() and np.isinf(wide[1]).all(), "400 rows say nothing of one in a thousand"


def test_folds_of_intervals(data):
    model = KernelRidge(kernel="rbf").fit(data.X, data.y[:, 0])
    with pytest.raises(InputError, match="cv=.*does not hold out every row once.*cv=10"):
        model.predict_interval(data.X_new, cv=ShuffleSplit(3))
    with pytest.raises(InputError, match="coverage is 90; expected a probability"):
        model.predict_interval(data.X_new, 90)


@pytest.mark.parametrize(
    ("scale", "expected"),
    [
        (0.0, "a finite number above 0"),
        (-1.0, "a finite number above 0"),
        (np.inf, "a finite number"),
        ("one", "a real number"),
    ],
)
def test_bad_scales(data, scale, expected):
    model = KernelRidge(kernel="rbf").fit(data.X, data.y[:, 0])
    with pytest.raises(InputError, match=f"scale is .*expected {expected}"):
        model.predict(data.X_new, return_std=True, scale=scale)


@pytest.mark.parametrize("settings", [{}, {"fit_intercept": True}, {"solver": "cg"}, {"tile": 40}], ids=str)
@pytest.mark.parametrize("weighted", [False, True])
def test_precomputed_has_all_but_variances(data, settings, weighted):
    kernel, weights = RBF(gamma=0.2), data.weights if weighted else None
    K, K_new = kernel(data.X), kernel(data.X_new, data.X)
    model = KernelRidge(kernel="precomputed", **settings).fit(K, data.y, sample_weight=weights)
    plain = KernelRidge(kernel=kernel, **settings).fit(data.X, data.y, sample_weight=weights)
    assert_allclose(model.loo_residuals_, plain.loo_residuals_, rtol=1e-7)
    assert_allclose(model.log_marginal_likelihood_, plain.log_marginal_likelihood_, rtol=1e-9)
    for found, expected in zip(model.predict_interval(K_new), plain.predict_interval(data.X_new), strict=True):
        assert_allclose(found, expected, rtol=1e-7)
    for call in (lambda: model.predict(K_new, return_std=True), lambda: model.predict_variance_bounds(K_new)):
        with pytest.raises(InputError, match=r"precomputed.*k\(x, x\) of new rows is not known.*loo_residuals_"):
            call()


@pytest.mark.parametrize("alpha", [1e-13, 1e-9, 1e-3])
def test_never_negative(data, alpha):
    X = np.repeat(data.X[:40], 3, axis=0)
    model = KernelRidge(alpha=alpha, kernel="rbf", gamma=0.01).fit(X, np.repeat(data.y[:40, 0], 3))
    said = pytest.warns(ConvergenceWarning, match="too small for the digits") if alpha < 1e-8 else nullcontext()
    with said:
        assert (model.predict(X, return_std=True, scale=1.0)[1] >= 0).all()


DOCUMENTS = [" ".join(np.random.default_rng(i).choice(list("abcdefghijklmnopqrstuvwxyz"), 6)) for i in range(40)]


@pytest.mark.parametrize(
    "kernel",
    [
        Nystroem(RBF(2.0), 15),
        BagOfWords(token_pattern="[a-z]"),
        BagOfWords(token_pattern="[a-z]", n_hashed=64) + BagOfWords("counts", token_pattern="[a-z]"),
    ],
    ids=str,
)
@pytest.mark.parametrize("weighted", [False, True])
def test_folds_have_kernels_that_have_not_seen_them(kernel, weighted):
    rng, n, new = np.random.default_rng(0), 30, slice(30, 40)
    X = rng.normal(size=(40, 2)) if isinstance(kernel, Nystroem) else np.array(DOCUMENTS, object)
    y = np.column_stack([np.sin(np.arange(40)), rng.normal(size=40)])
    w = rng.uniform(0.5, 2.0, n) if weighted else None
    folds, alphas = list(KFold(4).split(X[:n])), [1e-4, 0.3]
    model = KernelRidge(alphas, kernel=kernel).fit(X[:n], y[:n], sample_weight=w)
    lower, upper = model.predict_interval(X[new], 0.8, cv=4)
    below, above = [], []
    for train, test in folds:
        one = KernelRidge(alphas, kernel=kernel).fit(X[train], y[train], None if w is None else w[train])
        errors = np.abs(y[test] - one.predict(X[test]))
        below += list(one.predict(X[new]) - errors[:, None])
        above += list(one.predict(X[new]) + errors[:, None])
    k = int(np.ceil(0.8 * (n + 1)))
    assert_allclose(lower, np.sort(below, axis=0)[n - k], rtol=1e-7, atol=1e-9)
    assert_allclose(upper, np.sort(above, axis=0)[k - 1], rtol=1e-7, atol=1e-9)
    if isinstance(kernel, Nystroem):
        assert_allclose(pickle.loads(pickle.dumps(model)).predict_interval(X[new], 0.8, cv=4)[0], lower)
    else:
        with pytest.raises(InputError, match="pickled or saved without the data that its kernel learns from.*call fit"):
            pickle.loads(pickle.dumps(model)).predict_interval(X[new])
    with pytest.raises(InputError, match=r"learns from the training rows.*each of 30 rows.*cross_val_predict"):
        model.loo_residuals_  # noqa: B018


def test_fixed_kernels_have_residuals():
    X, y = np.random.default_rng(0).normal(size=(30, 2)), np.arange(30.0)
    docs = DOCUMENTS[:30]
    pairs = [(whitened(RBF(2.0), X[:12]), X), (BagOfWords(token_pattern="[a-z]").fitted(docs), np.array(docs, object))]
    for kernel, rows in pairs:
        expected = [
            y[i] - KernelRidge(kernel=kernel).fit(rows[a], y[a]).predict(rows[[i]])[0] for a, (i,) in leave_one_out(30)
        ]
        assert_allclose(KernelRidge(kernel=kernel).fit(rows, y).loo_residuals_, expected, rtol=1e-7)


def exact_variances(K, k, prior, alpha, w, fit_intercept):
    """Variances for s = 1 in 180 digits, of matrices taken as the exact numbers that they are."""
    with precision():
        n, ones = len(K), matrix(np.ones(len(K)))
        A = matrix(K)
        for i in range(n):
            A[i, i] += arb(alpha) / arb(float(w[i]))
        cross = matrix(k)
        x = A.solve(arb_mat([[*a, *b] for a, b in zip(cross.tolist(), ones.tolist(), strict=True)]))
        found = []
        for j, own in enumerate(prior):
            value = arb(float(own)) - sum((cross[i, j] * x[i, j] for i in range(n)), arb(0))
            if fit_intercept:
                total = sum((x[i, len(prior)] for i in range(n)), arb(0))
                value += (1 - sum((x[i, j] for i in range(n)), arb(0))) ** 2 / total
            found.append(float(value.mid()))
    return np.array(found)


@pytest.mark.parametrize("alpha", [1e-3, 1e-8, 1e-10, 1e-13])
@every_pair(fit_intercept=[False, True], weighted=[False, True], settings=[{}, {"tile": 16}])
def test_bounds_from_a_factor_hold_and_are_tight_or_say_so(alpha, fit_intercept, weighted, settings):
    rng, kernel, n = np.random.default_rng(1), RBF(0.5), 30
    X = rng.normal(size=(n, 2))
    X_new = np.vstack([X[:5], X[:3] + 1e-4, rng.normal(size=(4, 2)), [[9.0, 9.0]]])
    w = 10 ** rng.uniform(-2, 2, n) if weighted else np.ones(n)
    expected = exact_variances(kernel(X), kernel(X, X_new), np.ones(len(X_new)), alpha, w, fit_intercept)
    model = KernelRidge(alpha, kernel=kernel, solver="cholesky", fit_intercept=fit_intercept, **settings)
    model.fit(X, X[:, 0], sample_weight=w if weighted else None)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        lower, upper = model.predict_variance_bounds(X_new, scale=1.0)
        _, std = model.predict(X_new, return_std=True, scale=1.0)
    assert (lower <= expected * (1 + 1e-12)).all() and (expected * (1 - 1e-12) <= upper).all()
    assert ((lower <= std**2 * (1 + 1e-12)) & (std**2 <= upper * (1 + 1e-12))).all()
    said = [str(w.message) for w in caught if "bounds of the variances" in str(w.message)]
    if said:
        assert len(said) == 2 and f"alpha = {alpha:g} is too small for the digits" in said[0] and alpha < 1e-5
        assert all(issubclass(w.category, ConvergenceWarning) for w in caught)
    else:
        assert (upper - lower <= 1e-3 * expected * (1 + 1e-9)).all()
        assert_allclose(std**2, expected, rtol=1e-3)
    assert bool(said) == (alpha < 1e-12) or 1e-12 < alpha < 1e-5


def test_primal_bounds_are_tight_or_say_so():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(200, 4))
    lower, upper = KernelRidge(1e-3, kernel="linear").fit(X, X[:, 0]).predict_variance_bounds(X[:9], scale=1.0)
    assert (upper - lower <= 1e-3 * lower).all()
    X[:, 3] = X[:, 2] + 1e-9 * X[:, 3]
    model = KernelRidge(1e-12, kernel="linear", form="primal").fit(X, X[:, 0])
    with pytest.warns(ConvergenceWarning, match="alpha = 1e-12 is too small for the digits of a factor"):
        model.predict(X[:9], return_std=True)


def test_features_of_any_units_cost_no_digits_and_a_large_row_is_reported():
    rng = np.random.default_rng(0)
    X, y, units = rng.normal(size=(30, 3)), rng.normal(size=30), 2.0 ** np.array([-20, 0, 20])
    bounds = KernelRidge(1e-2, kernel="linear", form="primal").fit(X * units, y).predict_variance_bounds(X[:5], scale=1)
    assert (bounds[1] - bounds[0] <= 1e-6 * bounds[0]).all()
    X[4] *= 3e7
    model = KernelRidge(1.0, kernel="linear", form="primal").fit(X, y)
    with pytest.warns(ConvergenceWarning, match="no digits of the log marginal likelihood are certain"):
        model.log_marginal_likelihood_  # noqa: B018
