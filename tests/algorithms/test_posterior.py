"""Standard deviations, likelihoods, leave-one-out residuals and intervals, from factors and by conjugate gradient.

Against dense formulas, arithmetic of 160 digits, and fits without the rows.
"""

import pickle

import dask.array as da
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone
from sklearn.model_selection import KFold, ShuffleSplit

from dkrr import KernelRidge, KernelRidgeCV, load, predict_to, save
from dkrr.errors import ConvergenceWarning, InputError, NotFiniteError
from dkrr.features import Nystroem
from dkrr.kernels import RBF, BagOfWords, Linear, Polynomial
from dkrr.kernels.nystroem import whitened
from dkrr.linalg.variance_bounds import ResidualBounds, variance_bounds
from dkrr.solvers import ConjugateGradient, RPCholesky
from tests.naive_folds import leave_one_out, naive_predictions
from tests.nightly.accuracy import posteriors
from tests.oracles import assert_close
from tests.pairs import every_pair
from tests.systems import one_blas_thread, partial_factor  # noqa: F401

ALPHA = 0.3
KERNEL = RBF(gamma=0.17)


@pytest.fixture
def iterates(monkeypatch):
    """No factor is soon made: conjugate gradient that was requested is used."""
    monkeypatch.setattr("dkrr.fitting.posterior_plans.SMALL_SECONDS", -1.0)


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


# Standard deviations and likelihoods


@every_pair(
    kernel=[KERNEL, "linear"],
    fit_intercept=[False, True],
    weighted=[False, True],
    settings=[{}, {"solver": "cg"}, {"tile": 40}],
    ids=str,
)
def test_deviations_and_likelihoods_are_those_of_dense_formulas(
    data, kernel, fit_intercept, weighted, settings, monkeypatch
):
    monkeypatch.setattr("dkrr.fitting.gaussian_process.CROSS_BYTES", 8 * 211 * 5)  # several blocks of new rows
    w = data.weights if weighted else np.ones(211)
    model = KernelRidge(alpha=[ALPHA, ALPHA, 2.0], kernel=kernel, fit_intercept=fit_intercept, **settings)
    model.fit(data.X, data.y, sample_weight=data.weights if weighted else None)
    _, std = model.predict(data.X_new, return_std=True)
    likelihoods, function = model.log_marginal_likelihood(), Linear() if kernel == "linear" else kernel
    lower, upper = model.predict_variance_bounds(data.X_new, variance_scale=1.0)
    assert (model.log_marginal_likelihood_std() == 0).all()
    for j, alpha in enumerate([ALPHA, ALPHA, 2.0]):
        variance, s2, likelihood = dense_posterior(function, data.X, data.y[:, j], w, alpha, data.X_new, fit_intercept)
        assert_allclose(std[:, j], np.sqrt(s2 * variance), rtol=1e-7)
        assert (lower[:, j] <= variance * (1 + 1e-9)).all() and (variance * (1 - 1e-9) <= upper[:, j]).all()
        assert_allclose(upper[:, j], lower[:, j], rtol=1e-5)  # 3 × 40,000 roundings of K over λ are 4e-6
        assert likelihoods[j] == pytest.approx(likelihood, rel=1e-9)


def test_a_new_fit_has_deviations_of_its_own(data):
    model = KernelRidge(alpha=ALPHA, kernel="rbf").fit(data.X, data.y)
    model.predict(data.X_new, return_std=True)
    again = model.fit(data.X[:100], data.y[:100]).predict(data.X_new, return_std=True)[1]
    assert_allclose(again, clone(model).fit(data.X[:100], data.y[:100]).predict(data.X_new, return_std=True)[1])


def test_variances_are_multiplied_by_their_scale_which_only_its_name_gives(data):
    model = KernelRidge(kernel="rbf").fit(data.X, data.y)
    one, four = (model.predict(data.X_new, return_std=True, variance_scale=scale)[1] for scale in (1.0, 4.0))
    assert_close(four, 2.0 * one)
    assert_close(four**2, sum(model.predict_variance_bounds(data.X_new, variance_scale=4.0)) / 2)
    for ask in (lambda: model.predict(data.X_new, True, 4.0), lambda: model.predict_variance_bounds(data.X_new, 4.0)):
        with pytest.raises(TypeError, match="positional"):
            ask()


def test_what_has_no_variances_or_intervals_is_refused(data, iterates):
    y = data.y.copy()
    model = KernelRidge(kernel="rbf").fit(data.X, y)
    with pytest.raises(AttributeError, match="predict"):
        model.uncertainty_plan_  # noqa: B018
    with pytest.raises(InputError, match=r"cv=.*does not hold out every row once.*cv=10"):
        model.predict_interval(data.X_new, cv=ShuffleSplit(3))
    y[3, 0] += 1.0
    with pytest.raises(InputError, match=r"y is not what was read.*call fit"):
        model.predict(data.X_new, return_std=True)
    model = KernelRidge(alpha=30.0, kernel="sigmoid", solver="cg").fit(data.X, data.y)
    with pytest.raises(InputError, match=r"kernel is Sigmoid.*positive semidefinite.*solver='cholesky'"):
        model.predict_variance_bounds(data.X_new)
    model = KernelRidge(kernel="rbf", fit_intercept=True).fit(data.X[:1], data.y[:1, 0])
    assert np.isfinite(model.log_marginal_likelihood())
    with pytest.raises(InputError, match="scale is None.*expected a number > 0"):
        model.predict(data.X_new, return_std=True)


# Bounds of variances


def test_primal_bounds_are_tight_in_any_units_or_say_so():
    X, y = np.random.default_rng(0).normal(size=(2, 200, 4))
    model = KernelRidge(1e-2, kernel="linear", form="primal").fit(X * 2.0 ** np.array([-20, 0, 0, 20]), y[:, 0])
    lower, upper = model.predict_variance_bounds(X[:5], variance_scale=1.0)
    assert (upper - lower <= 1e-6 * lower).all()
    X[:, 3] = X[:, 2] + 1e-9 * X[:, 3]
    with pytest.warns(ConvergenceWarning, match="alpha = 1e-12 is too small for the digits of a factor"):
        model.set_params(alpha=1e-12).fit(X, X[:, 0]).predict(X[:9], return_std=True)


def test_a_likelihood_whose_scale_is_a_difference_of_nearly_equal_numbers_says_so(iterates):
    # Weights over 10 orders and zeros, with an intercept: 0.13 off.
    one = posteriors.posterior("posterior-weights", 5003)
    model = KernelRidge(one.alpha, kernel=one.kernel, fit_intercept=True, **one.settings)
    model.fit(one.X, one.y, sample_weight=one.sample_weight)
    with pytest.warns(ConvergenceWarning, match="scale of the process may be off"):
        assert np.isfinite(model.log_marginal_likelihood()).all()


SOLVERS = {
    "auto": "cg",
    "low rank": ConjugateGradient(RPCholesky(12), precision="mixed"),
    "none": ConjugateGradient(None),
}


def iterated(data, solver="cg", alpha=ALPHA, weighted=False, **settings):
    model = KernelRidge(alpha=alpha, kernel=KERNEL, solver=solver, **settings)
    return model.fit(data.X, data.y, sample_weight=data.weights if weighted else None)


@every_pair(by_day="values", solver=list(SOLVERS), fit_intercept=[False, True], weighted=[False, True])
def test_bounds_by_conjugate_gradient_hold_the_exact_value(data, iterates, solver, fit_intercept, weighted):
    X_new, alphas = np.vstack([data.X_new, data.X[:5], np.full((1, 5), 100.0)]), [0.3, 0.3, 0.02]
    model = iterated(data, SOLVERS[solver], alphas, weighted, fit_intercept=fit_intercept)
    lower, upper = model.predict_variance_bounds(X_new, variance_scale=1.0)
    _, std = model.predict(X_new, return_std=True)
    assert model.uncertainty_plan_.method == "iterations"
    likelihoods, errors = model.log_marginal_likelihood(), model.log_marginal_likelihood_std()
    w = data.weights if weighted else np.ones(211)
    for j, alpha in enumerate(alphas):
        variance, s2, likelihood = dense_posterior(KERNEL, data.X, data.y[:, j], w, alpha, X_new, fit_intercept)
        assert (lower[:, j] <= variance * (1 + 1e-12)).all() and (variance * (1 - 1e-12) <= upper[:, j]).all()
        assert (upper[:, j] - lower[:, j] <= 1.001e-3 * variance).all()
        assert_allclose(std[:, j], np.sqrt(s2 * variance), rtol=5e-4)
        assert 0 < errors[j] < 10 and abs(likelihoods[j] - likelihood) < 4 * errors[j]


QUESTIONS = {
    "one row": lambda model, X: model.predict(X[:1], return_std=True)[1],
    "many rows": lambda model, X: model.predict(X, return_std=True)[1],
    "bounds": lambda model, X: model.predict_variance_bounds(X[:3], variance_scale=1.0),
    "residuals": lambda model, _: model.loo_residuals(),
    "likelihood": lambda model, _: (model.log_marginal_likelihood(), model.log_marginal_likelihood_std()),
    "intervals": lambda model, X: model.predict_interval(X[:3]),
}


@every_pair(
    by_day="values",
    solver=["cholesky", "cg", ConjugateGradient(RPCholesky(12))],
    fit_intercept=[False, True],
    weighted=[False, True],
    order=[list(QUESTIONS), list(reversed(QUESTIONS))],  # each comes after each other one in one of the two
    ids=str,
)
def test_answers_do_not_depend_on_what_was_asked_before(data, iterates, solver, fit_intercept, weighted, order):
    """A factor made for residuals changed standard deviations by 1e-4 and the likelihood by 0.3 to 2."""
    model, *others = (iterated(data, solver, weighted=weighted, fit_intercept=fit_intercept) for _ in range(7))
    for question, other in zip(order, others, strict=True):
        assert_array_equal(QUESTIONS[question](model, data.X_new), QUESTIONS[question](other, data.X_new))


def test_a_factor_that_takes_memory_does_not_change_what_is_planned(data, monkeypatch):
    model, expected = KernelRidge(kernel=KERNEL).fit(data.X, data.y), KernelRidge(kernel=KERNEL).fit(data.X, data.y)
    model.loo_residuals()
    monkeypatch.setattr("dkrr.machine.detection.available_bytes", lambda _: 0)
    std = model.predict(data.X_new, return_std=True)[1]
    monkeypatch.undo()
    assert_array_equal(std, expected.predict(data.X_new, return_std=True)[1])


@pytest.mark.parametrize("fit_intercept", [False, True])
def test_too_few_iterations_leave_wide_bounds_that_hold(data, iterates, fit_intercept):
    with pytest.warns(ConvergenceWarning, match="where 1.0e-08 was asked"):
        model = iterated(data, ConjugateGradient(RPCholesky(3), max_iter=6), 1e-3, fit_intercept=fit_intercept)
    for ask in (lambda: model.predict(data.X_new, return_std=True), lambda: model.log_marginal_likelihood()):
        for _ in range(2):  # and the second time
            with pytest.warns(ConvergenceWarning) as caught:
                ask()
            assert any("systems of the targets" in str(one.message) for one in caught)
    with pytest.warns(ConvergenceWarning):
        lower, upper = model.predict_variance_bounds(data.X_new, variance_scale=1.0)
    with pytest.warns(ConvergenceWarning, match=r"variances of .* of 37 rows are up to .* apart.*max_iter"):
        model.predict(data.X_new, return_std=True, variance_scale=1.0)
    variance, *_ = dense_posterior(KERNEL, data.X, data.y[:, 0], np.ones(211), 1e-3, data.X_new, fit_intercept)
    assert (lower[:, 0] >= 0).all() and (lower[:, 0] <= variance).all() and (variance <= upper[:, 0]).all()


@pytest.mark.parametrize("method", ["factor", "iterations"])
def test_lazy_rows_have_lazy_deviations_bounds_and_intervals(data, monkeypatch, method):
    monkeypatch.setattr("dkrr.fitting.posterior_plans.SMALL_SECONDS", 3.0 if method == "factor" else -1.0)
    model, lazy = iterated(data), da.from_array(data.X_new, chunks=(20, 2))
    for ask, accuracy in (
        (lambda X: model.predict(X, return_std=True), 1e-3),
        (model.predict_variance_bounds, 1.1e-3),
        (model.predict_interval, 1e-9),
    ):
        parts = ask(lazy)
        assert all(isinstance(part, da.Array) and part.shape == (37, 3) for part in parts)
        assert_allclose(da.compute(*parts), ask(data.X_new), rtol=accuracy)
    assert model.uncertainty_plan_.method == method
    bad = da.from_array(np.where(data.X_new == data.X_new[31, 2], np.nan, data.X_new), chunks=(20, 5))
    with pytest.raises(InputError, match="row 31"):
        model.predict(bad, return_std=True)[1].compute()


@pytest.mark.nightly
@pytest.mark.parametrize("solver", ["cholesky", "cg"])
def test_lazy_deviations_and_intervals_are_computed_on_workers(data, workers, iterates, solver):
    model, lazy = iterated(data, solver), da.from_array(data.X_new, chunks=(20, 5))
    std = workers.compute(model.predict(lazy, return_std=True)[1]).result()
    assert_allclose(std, model.predict(data.X_new, return_std=True)[1], rtol=1e-3)
    upper = workers.compute(model.predict_interval(lazy)[1]).result()
    assert_close(upper, model.predict_interval(data.X_new)[1], 1e-9)


# Residuals and intervals of models without the row, or without the fold


@every_pair(kernel=["rbf", "linear"], fit_intercept=[False, True])
def test_residuals_and_intervals_are_those_of_models_without_the_row_or_the_fold(data, kernel, fit_intercept):
    X, Y, weights = data.X[:50], data.y[:50], data.weights[:50]
    settings = {"kernel": kernel, "fit_intercept": fit_intercept}
    model = KernelRidge(alpha=ALPHA, **settings).fit(X, Y, sample_weight=weights)
    expected = Y - np.vstack(naive_predictions(X, Y, leave_one_out(50), ALPHA, weights, **settings))
    assert_allclose(model.loo_residuals(), expected, rtol=1e-6, atol=1e-9)
    folds = KFold(4, shuffle=True, random_state=0)
    found = model.predict_interval(data.X_new, 0.8, cv=folds)
    expected = by_fits(X=X, y=Y, X_new=data.X_new, folds=folds.split(X), weights=weights, alpha=ALPHA, **settings)
    assert_allclose(found, expected, rtol=1e-6, atol=1e-8)


def test_intervals_by_tiles_of_a_large_alpha(data):
    weights = 1e20 * data.weights
    intervals = [
        KernelRidge(1e20, kernel="rbf", tile=tile).fit(data.X, data.y, sample_weight=weights).predict_interval(data.X)
        for tile in (None, 48)
    ]
    assert_close(intervals[1], intervals[0], 1e-9)


@pytest.mark.parametrize("number", [0, pytest.param(1, marks=pytest.mark.nightly)])
@pytest.mark.parametrize("of_class", ["heavy", "leverage", "weights", "columns", "lambda", "duplicates"])
def test_answers_that_float64_strains_are_right_in_160_digits_or_come_with_a_warning(of_class, number):
    assert posteriors.run(posteriors.posterior(f"posterior-{of_class}", number)).dishonest == ()


@pytest.mark.parametrize("loaded", [False, True])
def test_one_weight_of_1e14_leaves_the_errors_of_features_their_digits(tmp_path, loaded):
    rng = np.random.default_rng(5)
    X, others, weights = rng.standard_normal((20, 3)), np.arange(20) != 4, np.where(np.arange(20) == 4, 1e14, 1.0)
    y, kernel = X[:, 0] + 0.3 * rng.standard_normal(20), Polynomial(degree=2).resolved(3)
    model, reference = (
        KernelRidge(1e-3, form=form, kernel=kernel, fit_intercept=True).fit(X, y, sample_weight=weights)
        for form in ("primal", "dual")
    )
    if loaded:
        save(model, tmp_path / "m.zarr", uncertainty=True)
        model = load(tmp_path / "m.zarr")
    assert_allclose(model.loo_residuals(), reference.loo_residuals(), rtol=1e-6)
    assert_allclose(model.predict_interval(X, cv=5), reference.predict_interval(X, cv=5), rtol=1e-6)
    # The heavy row is known, and the others are rows of a process that is 0 there.
    K = kernel(X)
    K = K - K[:, 4:5] - K[4:5] + K[4, 4]
    crosses = K[:, others]
    variance = K.diagonal() - (crosses @ np.linalg.inv(K[others][:, others] + 1e-3 * np.eye(19)) * crosses).sum(axis=1)
    for bound in model.predict_variance_bounds(X, variance_scale=1.0):
        assert_allclose(bound[others], variance[others], rtol=1e-4)


def by_fits(kernel, X, y, X_new, folds, weights=None, **settings):
    """Intervals of CV+ with a coverage of 80 % from a fit for every fold."""
    w, below, above = np.ones(len(X)) if weights is None else weights, [], []
    for train, test in folds:
        one = KernelRidge(kernel=kernel, **settings).fit(X[train], y[train], sample_weight=w[train])
        errors, new = np.abs(y[test] - one.predict(X[test]))[w[test] > 0], one.predict(X_new)
        below += [new - error for error in errors]
        above += [new + error for error in errors]
    n, k = len(below), int(np.ceil(0.8 * (len(below) + 1)))
    return np.sort(below, axis=0)[n - k], np.sort(above, axis=0)[k - 1]


def test_intervals_hold_new_targets():
    rng = np.random.default_rng(3)
    X = rng.uniform(-3, 3, (1200, 1))
    y = np.sin(X[:, 0]) + (0.1 + 0.3 * (X[:, 0] > 0)) * rng.standard_t(4, 1200)
    search = KernelRidgeCV(np.geomspace(1e-3, 10, 6), gamma=1.0, cv=5).fit(X[:400], y[:400])
    for coverage in (0.5, 0.9):
        lower, upper = search.predict_interval(X[400:], coverage)
        assert np.mean((lower <= y[400:]) & (y[400:] <= upper)) == pytest.approx(coverage, abs=0.05)
    assert np.isinf(search.predict_interval(X[:3], 0.999)).all(), "400 rows say nothing of one in a thousand"
    assert np.isfinite(search.predict_interval(X[:3], 0.9975)).all(), "but of one in four hundred"


@pytest.mark.parametrize("kernel", [KERNEL, "linear", Nystroem(KERNEL, 20)], ids=str)
def test_models_without_a_fold_are_computed_once_and_shown(data, monkeypatch, capsys, kernel):
    model = KernelRidge(kernel=kernel, progress=True).fit(data.X, data.y)
    capsys.readouterr()
    model.predict_interval(data.X_new)
    shown = capsys.readouterr().err
    assert "leave out one of 10 folds" in shown and "held-out models" in shown
    for name in ("posterior_cholesky.HeldOutErrors", "posterior_primal.PrimalRows.sums", "intervals.fit"):
        monkeypatch.setattr(f"dkrr.fitting.{name}", None)
    assert_array_equal(model.predict_interval(data.X_new, 0.5), model.predict_interval(data.X_new, coverage=0.5, cv=10))
    assert "folds" not in capsys.readouterr().err


def test_a_file_of_predictions_and_intervals_takes_one_evaluation_of_the_kernel(data, tmp_path, monkeypatch):
    entries = []

    def kernel(X, Y):
        entries.append(len(X) * len(Y))
        return KERNEL(X, Y)

    model = KernelRidge(kernel=kernel, alpha=[0.1, 0.2, 0.1]).fit(data.X, data.y)
    expected = np.hstack([model.predict(data.X_new), *model.predict_interval(data.X_new)])
    entries.clear()
    predict_to(model, data.X_new, tmp_path / "p.npy", interval=0.9)
    assert sum(entries) == 211 * 37
    assert_array_equal(np.load(tmp_path / "p.npy"), expected)


@every_pair(settings=[{}, {"fit_intercept": True}, {"solver": "cg"}, {"tile": 40}], weighted=[False, True], ids=str)
def test_a_gram_matrix_has_everything_but_variances(data, settings, weighted):
    K, K_new, weights = KERNEL(data.X), KERNEL(data.X_new, data.X), data.weights if weighted else None
    model = KernelRidge(kernel="precomputed", **settings).fit(K, data.y, sample_weight=weights)
    plain = KernelRidge(kernel=KERNEL, **settings).fit(data.X, data.y, sample_weight=weights)
    assert_allclose(model.loo_residuals(), plain.loo_residuals(), rtol=1e-7)
    assert_allclose(model.log_marginal_likelihood(), plain.log_marginal_likelihood(), rtol=1e-9)
    assert_allclose(model.predict_interval(K_new), plain.predict_interval(data.X_new), rtol=1e-7)
    for call in (lambda: model.predict(K_new, return_std=True), lambda: model.predict_variance_bounds(K_new)):
        with pytest.raises(InputError, match=r"precomputed.*does not give k\(x, x\) of new rows.*loo_residuals\(\)"):
            call()


DOCUMENTS = [" ".join(np.random.default_rng(i).choice(list("abcdefghijklmnopqrstuvwxyz"), 6)) for i in range(40)]


LEARNING = {
    "centres": Nystroem(RBF(gamma=2.0), 15),
    "words": BagOfWords(token_pattern="[a-z]"),
    "sum": BagOfWords(token_pattern="[a-z]", n_features=64) + BagOfWords("counts", token_pattern="[a-z]"),
}


@pytest.mark.parametrize("name", LEARNING)
@pytest.mark.parametrize("weighted", [False, True])
def test_folds_of_kernels_that_learn_have_kernels_that_have_not_seen_them(name, weighted):
    rng, kernel, settings = np.random.default_rng(0), LEARNING[name], {"alpha": [1e-4, 0.3]}
    X = rng.normal(size=(40, 2)) if name == "centres" else np.array(DOCUMENTS, object)
    y, w = rng.normal(size=(30, 2)), rng.uniform(0.5, 2.0, 30) if weighted else None
    model = KernelRidge(kernel=kernel, **settings).fit(X[:30], y, sample_weight=w)
    found = model.predict_interval(X[30:], 0.8, cv=4)
    expected = by_fits(kernel, X[:30], y, X[30:], KFold(4).split(X[:30]), w, **settings)
    assert_allclose(found, expected, rtol=1e-7, atol=1e-9)
    if name == "centres":
        assert_allclose(pickle.loads(pickle.dumps(model)).predict_interval(X[30:], 0.8, cv=4), found)
    else:
        with pytest.raises(InputError, match="pickled or saved without the data that its kernel learns from.*call fit"):
            pickle.loads(pickle.dumps(model)).predict_interval(X[30:])
    with pytest.raises(InputError, match=r"learns from the training rows.*each of 30 rows.*cross_val_predict"):
        model.loo_residuals()


def test_kernels_that_have_learned_elsewhere_have_residuals():
    X, y = np.random.default_rng(0).normal(size=(30, 2)), np.arange(30.0)
    words = BagOfWords(token_pattern="[a-z]").fitted(DOCUMENTS[:30])
    for kernel, rows in ((whitened(RBF(gamma=2.0), X[:12]), X), (words, np.array(DOCUMENTS[:30], object))):
        expected = y - np.concatenate(naive_predictions(rows, y, leave_one_out(30), 1.0, kernel=kernel))
        assert_allclose(KernelRidge(kernel=kernel).fit(rows, y).loo_residuals(), expected, rtol=1e-7)


# Bounds from any approximate solution, whatever the factor: they hold, and are near where the factor is good


N, SHIFT = 61, 0.02


def bounds_of(K, scale, rank, shift=SHIFT, damage=0.0, dtype=np.float32):
    """Bounds by a partial factor; with damage by one of the same pivots, but not of K."""
    factor = partial_factor(K, rank, dtype=dtype) if rank else None
    if damage:
        project, rng = factor.project, np.random.default_rng(3)
        factor.project = lambda v, p: project(v, p) * (1 + damage * rng.normal())
    return ResidualBounds(N, shift, K.diagonal().copy(), scale, factor, lambda index, v: K[:, index] @ v)


def problem(error, weighted=False):
    """Matrix with its scale, k of new rows, exact solutions, and solutions of some accuracy."""
    rng = np.random.default_rng(5)
    X, Z = rng.normal(size=(N, 3)), rng.normal(size=(9, 3))
    Z[:3] = X[:3]
    scale = np.sqrt(rng.uniform(0.1, 4.0, N)) if weighted else None
    c = np.ones(N) if scale is None else scale
    K, k = RBF(gamma=0.2)(X), c[:, None] * RBF(gamma=0.2)(X, Z)
    A = c[:, None] * K * c + SHIFT * np.eye(N)
    exact = np.linalg.solve(A, k)
    return K, scale, A, k, exact, exact + error * np.abs(exact).max() * rng.normal(size=k.shape)


@every_pair(
    factor=[(0, 0.0), (10, 0.0), (40, 0.0), (40, 1e-3), (10, 1.0)],
    error=[1.0, 1e-2, 1e-5, 0.0],
    weighted=[False, True],
    ids=str,
)
def test_bounds_hold_with_any_solution_and_any_factor(factor, error, weighted):
    rank, damage = factor
    K, scale, A, k, exact, x = problem(error, weighted)
    r, bounds = k - A @ x, bounds_of(K, scale, rank, damage=damage)
    found, true = bounds.of(k, x, r), (k * exact).sum(axis=0)
    assert (found.low <= true).all() and (true <= found.high).all()
    assert ((r * np.linalg.solve(A, r)).sum(axis=0) <= found.residual_energy).all()
    # Never worse than without a factor.
    assert (found.residual_energy <= (r**2).sum(axis=0) / SHIFT * (1 + 1e-6) + 1e-9).all()
    c = np.ones((N, 1)) if scale is None else scale[:, None]
    v = np.linalg.solve(A, c)
    y = v + 1e-3 * error * np.random.default_rng(8).normal(size=v.shape)
    constant, variance = bounds.of(c, y, c - A @ y), 1.0 - true
    more = (1 - (c * exact).sum(axis=0)) ** 2 / (c * v).sum()
    for one, added in [(None, 0.0), (constant, more)][: 1 + (constant.low[0] > 0)]:
        plain = variance_bounds(np.ones(9), found, one, bounds.rounding)
        assert (plain.lower <= variance + added).all() and (variance + added <= plain.upper).all()
        assert (plain.lower >= 0).all()


def test_the_bound_is_that_of_the_preconditioner_and_nearer_for_it():
    K, scale, A, k, _, x = problem(1e-2, weighted=True)
    bounds, r = bounds_of(K, scale, 30, dtype=np.float64), k - A @ x
    S = partial_factor(K, 30, dtype=np.float64).index
    low = K[:, S] @ np.linalg.solve(K[np.ix_(S, S)], K[S])
    M, found = scale[:, None] * low * scale + SHIFT * np.eye(N), bounds.of(k, x, r).residual_energy
    assert_allclose(found, (r * np.linalg.solve(M, r)).sum(axis=0), rtol=1e-6)
    assert (found < 0.5 * bounds_of(K, scale, 0).of(k, x, r).residual_energy).all()


def test_what_rounding_hides_and_negative_variances_are_refused():
    K, scale, A, k, exact, _ = problem(0.0)
    with pytest.raises(InputError, match=r"alpha is 1e-12, below.*expected more than .*e-\d\d: increase alpha"):
        bounds_of(K, None, 0, 1e-12)
    solved = bounds_of(K, scale, 0).of(k, exact, k - A @ exact)
    with pytest.raises(NotFiniteError, match="not positive semidefinite"):
        variance_bounds(np.zeros(9), solved, None, 0.0)


def test_folds_in_which_no_row_counts_leave_intervals_as_they_are():
    rng = np.random.default_rng(0)
    X, y, weights = rng.standard_normal((40, 3)), rng.standard_normal(40), np.zeros(40)
    weights[:14] = 1.0
    dual, primal = (
        KernelRidge(0.5, kernel="linear", form=form).fit(X, y, sample_weight=weights).predict_interval(X, 0.5, cv=20)
        for form in ("dual", "primal")
    )
    assert np.isfinite(dual).all()
    assert_close(np.array(dual), np.array(primal), 1e-10)
