"""Approximations that are asked for by name: a feature map in place of a kernel."""

import numpy as np
import pytest
import scipy.sparse as sp
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone
from sklearn.kernel_approximation import Nystroem as TheirNystroem
from sklearn.linear_model import Ridge

import dkrr
from dkrr import KernelRidge
from dkrr.errors import InputError
from dkrr.features import (
    ConcatenatedMap,
    IdentityMap,
    MapKernel,
    Nystroem,
    NystroemMap,
    RandomFourier,
    whitened,
)
from dkrr.kernels import RBF, Laplacian, Linear, Matern

ASKED = [
    RandomFourier(Matern(nu=1.5), 60),
    Nystroem(RBF(gamma=0.2), 40, "uniform"),
    Nystroem(RBF(gamma=0.2), 40),
    ConcatenatedMap(IdentityMap(), Nystroem("laplacian", 30, "uniform")),
    MapKernel(RandomFourier("rbf", 20)) + Linear(),
]
each = pytest.mark.parametrize("asked", ASKED, ids=str)


@each
def test_both_forms_are_the_same_model(data, asked):
    primal, dual = (
        KernelRidge(0.3, kernel=asked, fit_intercept=True, form=form).fit(data.X, data.y, data.weights)
        for form in ("primal", "dual")
    )
    assert (primal.plan_.form, dual.plan_.form) == ("primal", "dual")
    assert_allclose(primal.predict(data.X_new), dual.predict(data.X_new), rtol=1e-8, atol=1e-8)
    for name in ("dual_coef_", "coef_"):  # a model of features predicts by them, whichever form it was solved in
        assert_allclose(getattr(primal, name), getattr(dual, name), rtol=1e-6, atol=1e-6)


@each
def test_saved_models_predict_the_same_bits_and_sample_again_when_fitted(data, asked, tmp_path):
    model = again = KernelRidge(0.3, kernel=asked).fit(data.X, data.y)
    for path in (tmp_path / "m.zarr", tmp_path / "again.zarr"):
        dkrr.save(again, path)
        again = dkrr.load(path)
        assert_array_equal(again.predict(data.X_new), model.predict(data.X_new))
    found = clone(again).fit(data.X[:99] + 1, data.y[:99]).predict(data.X_new)
    assert_allclose(found, KernelRidge(0.3, kernel=asked).fit(data.X[:99] + 1, data.y[:99]).predict(data.X_new))


@pytest.mark.parametrize("asked", [Nystroem(RBF(gamma=0.2), 40), RandomFourier(Laplacian(), 40)], ids=str)
def test_sparse_rows_have_sparse_centres(data, tmp_path, asked):
    X = np.where(np.abs(data.X) > 1, data.X, 0.0)
    model = KernelRidge(kernel=asked).fit(sp.csr_array(X), data.y)
    found = model.predict(sp.csr_array(X[:9]))
    assert_allclose(found, KernelRidge(kernel=asked).fit(X, data.y).predict(X[:9]), atol=1e-8)
    dkrr.save(model, tmp_path / "m.zarr")
    assert_array_equal(dkrr.load(tmp_path / "m.zarr").predict(sp.csr_array(X[:9])), found)
    phi = model._model.feature_map
    assert not isinstance(phi, NystroemMap) or sp.issparse(phi.centres)


def test_the_same_centres_give_scikit_learns_predictions(data):
    theirs = TheirNystroem(kernel="rbf", gamma=0.2, n_components=50, random_state=0).fit(data.X)
    ridge = Ridge(alpha=0.1, fit_intercept=False).fit(theirs.transform(data.X), data.y)
    ours = KernelRidge(0.1, kernel=whitened(RBF(gamma=0.2), theirs.components_)).fit(data.X, data.y)
    assert_allclose(ours.predict(data.X_new), ridge.predict(theirs.transform(data.X_new)), rtol=1e-7, atol=1e-7)


def test_more_centres_are_nearer_to_the_exact_model_and_all_rows_are_it(data):
    exact = KernelRidge(0.1, kernel=RBF(gamma=0.1)).fit(data.X, data.y).predict(data.X_new)

    def error(asked):
        return np.abs(KernelRidge(0.1, kernel=asked).fit(data.X, data.y).predict(data.X_new) - exact).max()

    assert error(Nystroem(RBF(gamma=0.1), 150)) < 0.3 * error(Nystroem(RBF(gamma=0.1), 20))
    assert error(Nystroem(RBF(gamma=0.1), 211, "uniform")) < 1e-7
    assert error(RandomFourier(RBF(gamma=0.1), 20_000)) < 0.3 * error(RandomFourier(RBF(gamma=0.1), 100))


def test_the_argument_stays_what_it_was_and_the_fitted_map_is_an_argument_too(data):
    asked = Nystroem(RBF(), 20)
    model = KernelRidge(kernel=asked).fit(data.X, data.y)
    assert model.kernel is asked and clone(model).kernel == asked
    assert_array_equal(KernelRidge(kernel=model._model.feature_map).fit(data.X, data.y).coef_, model.coef_)


@pytest.mark.parametrize("asked", [Nystroem(RBF(), 500), RandomFourier("laplacian", 500)], ids=str)
def test_plans_need_no_data(asked):
    plan = dkrr.plan(n=100_000, d=11, kernel=asked, memory_limit="2GiB")
    assert plan.form == "primal" and plan.problem.dimension == 500 and "n_components=500" in str(plan)
    assert dkrr.plan(n=100_000, d=5000, kernel=asked).seconds > plan.seconds


@pytest.mark.parametrize(
    "call", [lambda X, y, k: KernelRidge(kernel=k).fit(X, y), lambda X, y, k: dkrr.plan(X, y, kernel=k)]
)
def test_more_centres_than_rows_are_refused(data, call):
    message = "n_components of Nystroem is 212; expected at most the number of training rows, 211"
    with pytest.raises(InputError, match=message):
        call(data.X, data.y, ConcatenatedMap(IdentityMap(), Nystroem(RBF(), 212)))
