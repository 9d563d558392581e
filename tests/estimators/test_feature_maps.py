"""Approximations that are asked for by name: KernelRidge with a feature map in place of a kernel."""

import numpy as np
import pytest
import scipy.sparse as sp
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone
from sklearn.kernel_approximation import Nystroem as TheirNystroem
from sklearn.linear_model import Ridge
from sklearn.model_selection import GridSearchCV

import dkrr
from dkrr import KernelRidge
from dkrr.errors import InputError
from dkrr.features import (
    ConcatenatedMap,
    IdentityMap,
    MapKernel,
    Nystroem,
    NystroemMap,
    PolynomialMap,
    RandomFourier,
    whitened,
)
from dkrr.kernels import RBF, Laplacian, Linear, Matern

ASKED = [
    RandomFourier(Matern(nu=1.5), 60),
    Nystroem(RBF(gamma=0.2), 40, "uniform"),
    Nystroem(RBF(gamma=0.2), 40),
    ConcatenatedMap(IdentityMap(), Nystroem("laplacian", 30, "uniform")),
    PolynomialMap(2),
    MapKernel(RandomFourier("rbf", 20)) + Linear(),
]
each = pytest.mark.parametrize("asked", ASKED, ids=str)


@each
@pytest.mark.parametrize("fit_intercept", [False, True])
def test_both_forms_are_the_same_model(data, asked, fit_intercept):
    settings = {"kernel": asked, "alpha": 0.3, "fit_intercept": fit_intercept}
    primal = KernelRidge(**settings, form="primal").fit(data.X, data.y, data.weights)
    dual = KernelRidge(**settings, form="dual").fit(data.X, data.y, data.weights)
    assert (primal.plan_.form, dual.plan_.form) == ("primal", "dual")
    assert_allclose(primal.predict(data.X_new), dual.predict(data.X_new), rtol=1e-8, atol=1e-8)
    assert_allclose(primal.dual_coef_, dual.dual_coef_, rtol=1e-6, atol=1e-6)
    # A model of features predicts by them, whichever form it was solved in.
    assert_allclose(primal.coef_, dual.coef_, rtol=1e-6, atol=1e-6)


@each
def test_save_and_load(data, asked, tmp_path):
    model = KernelRidge(kernel=asked, alpha=0.3).fit(data.X, data.y)
    dkrr.save(model, tmp_path / "m.zarr")
    again = dkrr.load(tmp_path / "m.zarr")
    assert_array_equal(again.predict(data.X_new), model.predict(data.X_new))
    assert_allclose(clone(again).fit(data.X, data.y).predict(data.X_new), model.predict(data.X_new), rtol=1e-9)
    dkrr.save(again, tmp_path / "again.zarr")
    assert_array_equal(dkrr.load(tmp_path / "again.zarr").predict(data.X_new), model.predict(data.X_new))
    for path in (tmp_path / "m.zarr").rglob("*"):
        assert not path.is_file() or not path.read_bytes().startswith(b"\x80\x04"), path


def test_a_loaded_model_samples_its_centres_again_when_fitted(data, tmp_path):
    dkrr.save(KernelRidge(kernel=Nystroem(RBF(), 30)).fit(data.X, data.y), tmp_path / "m.zarr")
    again = dkrr.load(tmp_path / "m.zarr")
    assert again.kernel == MapKernel(Nystroem(RBF(), 30))
    assert_allclose(
        again.fit(data.X[:99] + 1, data.y[:99]).predict(data.X_new),
        KernelRidge(kernel=Nystroem(RBF(), 30)).fit(data.X[:99] + 1, data.y[:99]).predict(data.X_new),
    )


def test_sparse_rows_and_sparse_centres(data, tmp_path):
    X = np.where(np.abs(data.X) > 1, data.X, 0.0)
    for asked in (Nystroem(RBF(gamma=0.2), 40), RandomFourier(Laplacian(), 40)):
        model = KernelRidge(kernel=asked).fit(sp.csr_array(X), data.y)
        assert_allclose(
            model.predict(sp.csr_array(X[:9])), KernelRidge(kernel=asked).fit(X, data.y).predict(X[:9]), atol=1e-8
        )
        path = tmp_path / type(asked).__name__
        dkrr.save(model, path)
        assert_array_equal(dkrr.load(path).predict(sp.csr_array(X[:9])), model.predict(sp.csr_array(X[:9])))
    fitted = KernelRidge(kernel=Nystroem(RBF(gamma=0.2), 40)).fit(sp.csr_array(X), data.y)._model.feature_map
    assert isinstance(fitted, NystroemMap) and sp.issparse(fitted.centres)


def test_agreement_with_scikit_learn(data):
    theirs = TheirNystroem(kernel="rbf", gamma=0.2, n_components=50, random_state=0).fit(data.X)
    ridge = Ridge(alpha=0.1, fit_intercept=False).fit(theirs.transform(data.X), data.y)
    asked = whitened(RBF(gamma=0.2), theirs.components_)  # the same centres
    ours = KernelRidge(kernel=asked, alpha=0.1).fit(data.X, data.y)
    assert_allclose(ours.predict(data.X_new), ridge.predict(theirs.transform(data.X_new)), rtol=1e-7, atol=1e-7)


def test_every_row_as_a_centre_is_the_exact_model(data):
    exact = KernelRidge(kernel="rbf", gamma=0.4, alpha=0.1).fit(data.X, data.y)
    asked = Nystroem(RBF(gamma=0.4), len(data.X), "uniform")
    approximate = KernelRidge(kernel=asked, alpha=0.1).fit(data.X, data.y)
    assert_allclose(approximate.predict(data.X_new), exact.predict(data.X_new), rtol=1e-8, atol=1e-8)


def test_rows_that_repeat_and_no_regularisation(data):
    X, y = np.tile(data.X[:30], (7, 1)), np.tile(data.y[:30], (7, 1))
    model = KernelRidge(kernel=Nystroem(RBF(gamma=0.4), 200, "uniform"), alpha=0.0, form="primal").fit(X, y)
    assert model.coef_.shape == (30, 3)
    assert_allclose(model.predict(X), y, atol=1e-7)  # 30 points, 30 features


def test_more_centres_are_nearer_to_the_exact_model(data):
    exact = KernelRidge(kernel=RBF(gamma=0.1), alpha=0.1).fit(data.X, data.y).predict(data.X_new)

    def error(asked):
        return np.abs(KernelRidge(kernel=asked, alpha=0.1).fit(data.X, data.y).predict(data.X_new) - exact).max()

    assert error(Nystroem(RBF(gamma=0.1), 150)) < 0.3 * error(Nystroem(RBF(gamma=0.1), 20))
    assert error(RandomFourier(RBF(gamma=0.1), 20_000)) < 0.3 * error(RandomFourier(RBF(gamma=0.1), 100))


def test_the_argument_stays_what_it_was(data):
    asked = Nystroem(RBF(), 20)
    model = KernelRidge(kernel=asked).fit(data.X, data.y)
    assert model.kernel is asked
    copy = clone(model)
    assert copy.kernel == asked and copy.get_params()["kernel"] == asked
    assert_array_equal(copy.fit(data.X, data.y).predict(data.X_new), model.predict(data.X_new))
    found = GridSearchCV(KernelRidge(), {"kernel": [asked, "linear"], "alpha": [0.1, 1.0]}, cv=2).fit(data.X, data.y)
    assert "kernel" in found.best_params_
    assert "Nystroem" in repr(model)
    assert_array_equal(KernelRidge(kernel=model._model.feature_map).fit(data.X, data.y).coef_, model.coef_)


def test_plans_need_no_data():
    for asked in (Nystroem(RBF(), 500), RandomFourier("laplacian", 500)):
        plan = dkrr.plan(n=100_000, d=11, kernel=asked, memory_limit="2GiB")
        assert plan.form == "primal" and plan.problem.dimension == 500
        assert "n_components=500" in str(plan)
        assert plan.to_dict()["problem"]["kernel"]["kernel"] == "map"
    few = dkrr.plan(n=300, d=11, kernel=Nystroem(RBF(), 300), memory_limit="2GiB")
    assert few.problem.dimension == 300
    narrow, wide = (dkrr.plan(n=100_000, d=d, kernel=RandomFourier(RBF(), 500)).seconds for d in (10, 5000))
    assert wide > 3 * narrow


def test_more_centres_than_rows(data):
    asked = ConcatenatedMap(IdentityMap(), Nystroem(RBF(), 212))
    message = "n_components of Nystroem is 212; expected at most the number of training rows, 211"
    with pytest.raises(InputError, match=message):
        KernelRidge(kernel=asked).fit(data.X, data.y)
    with pytest.raises(InputError, match=message):
        dkrr.plan(n=211, d=5, kernel=asked)
    with pytest.raises(InputError, match=message):
        dkrr.plan(data.X, data.y, kernel=asked)


def test_bad_arguments(data):
    with pytest.raises(InputError, match="gamma"):
        KernelRidge(kernel=Nystroem(RBF(), 20), gamma=0.1).fit(data.X, data.y)
    with pytest.raises(InputError, match="features"):
        KernelRidge(kernel=whitened(RBF(), data.X[:9, :3])).fit(data.X, data.y)
