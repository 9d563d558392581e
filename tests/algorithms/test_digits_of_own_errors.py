"""What a fit says of its own errors where float64 has few digits left: cases that the campaign found."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

import dkrr
from dkrr import KernelRidge
from dkrr.errors import ConvergenceWarning
from dkrr.kernels import RBF, BagOfWords, Polynomial
from dkrr.solvers import ConjugateGradient
from tests.nightly.accuracy.posterior_trials import posterior


def ordinary(n=30, d=2):
    rng = np.random.default_rng(5)
    X = rng.standard_normal((n, d))
    return X, X[:, 0] + 0.3 * rng.standard_normal(n), rng


def test_every_answer_from_systems_that_stalled_says_so(monkeypatch):
    monkeypatch.setattr("dkrr.planning.uncertainty.SMALL_SECONDS", -1.0)
    X, y, _ = ordinary(60)
    with pytest.warns(ConvergenceWarning):
        model = KernelRidge(1e-3, kernel=RBF(0.5), solver=ConjugateGradient(None, max_iter=3)).fit(X, y)
    for ask in (lambda: model.predict(X, return_std=True), lambda: model.log_marginal_likelihood_):
        for _ in range(2):
            with pytest.warns(ConvergenceWarning) as caught:
                ask()
            assert any("systems of the targets" in str(one.message) for one in caught)


def one_heavy_weight():
    X, y, _ = ordinary(20, 3)
    return X, y, np.where(np.arange(20) == 4, 1e14, 1.0)


@pytest.mark.parametrize("loaded", [False, True])
def test_one_weight_of_1e14_leaves_the_errors_of_features_their_digits(tmp_path, loaded):
    X, y, weights = one_heavy_weight()
    kernel, settings = Polynomial(2).resolved(3), {"alpha": 1e-3, "fit_intercept": True}
    model = KernelRidge(form="primal", kernel=kernel, **settings).fit(X, y, sample_weight=weights)
    reference = KernelRidge(form="dual", kernel=kernel, **settings).fit(X, y, sample_weight=weights)
    if loaded:
        dkrr.save(model, tmp_path / "m.zarr", uncertainty=True)
        model = dkrr.load(tmp_path / "m.zarr")
    assert_allclose(model.loo_residuals_, reference.loo_residuals_, rtol=1e-6)
    assert_allclose(model.predict_interval(X, cv=5), reference.predict_interval(X, cv=5), rtol=1e-6)
    # The heavy row is known, and the others are rows of a process that is 0 there.
    K, others = kernel(X), np.arange(20) != 4
    K = K - K[:, 4:5] - K[4:5] + K[4, 4]
    crosses = K[:, others]
    variance = K.diagonal() - (crosses @ np.linalg.inv(K[others][:, others] + 1e-3 * np.eye(19)) * crosses).sum(axis=1)
    for bound in model.predict_variance_bounds(X, scale=1.0):
        assert_allclose(bound[others], variance[others], rtol=1e-4)


def test_documents_without_a_known_word_have_no_variance():
    model = KernelRidge(0.1, kernel=BagOfWords()).fit(["ab cd", "cd ef", "ef gh", "ab gh"], np.arange(4.0))
    assert model.predict(["zz"], return_std=True)[1] == 0.0
    lower, upper = model.predict_variance_bounds(["zz"])
    assert lower == upper == 0.0


def test_a_likelihood_says_that_a_dominating_row_has_taken_digits():
    X, y, _ = ordinary()
    X[3] *= 1e7
    model = KernelRidge(30.0, kernel="linear", form="primal").fit(X, y)
    with pytest.warns(ConvergenceWarning, match="few digits of the log marginal likelihood are certain"):
        assert np.isfinite(model.log_marginal_likelihood_)


def test_a_likelihood_whose_scale_is_a_difference_of_nearly_equal_numbers_says_so(monkeypatch):
    monkeypatch.setattr("dkrr.planning.uncertainty.SMALL_SECONDS", -1.0)
    one = posterior("posterior-weights", 5003)  # weights over 10 orders and zeros, with an intercept: 0.13 off
    model = KernelRidge(one.alpha, kernel=one.kernel, fit_intercept=True, **one.settings)
    model.fit(one.X, one.y, sample_weight=one.sample_weight)
    with pytest.warns(ConvergenceWarning, match="scale of the process may be off"):
        assert np.isfinite(model.log_marginal_likelihood_).all()
