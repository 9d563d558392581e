"""Estimators among scikit-learn's tools: nested parameters, grids, clones."""

import numpy as np
import pytest
from numpy.testing import assert_array_equal
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV, RandomizedSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from dkrr import KernelLogisticRegression, KernelLogisticRegressionCV, KernelRidge, KernelRidgeCV
from dkrr.errors import InputError
from dkrr.features import RandomFourier
from dkrr.kernels import RBF, Linear

RNG = np.random.default_rng(0)
X = RNG.standard_normal((40, 3))
Y = np.sin(X[:, 0]) + X[:, 1]
LABELS = Y > 0

every_estimator = pytest.mark.parametrize(
    "estimator", [KernelRidge, KernelRidgeCV, KernelLogisticRegression, KernelLogisticRegressionCV]
)


@every_estimator
def test_nested_parameters_replace_the_kernel(estimator):
    kernel = RBF(1.0) + 2.0 * Linear()
    model, other = estimator(kernel=kernel), estimator(kernel=kernel)
    assert model.get_params()["kernel__left__gamma"] == 1.0
    assert model.set_params(kernel__left__gamma=0.5, tol=1e-6) is model
    assert (model.kernel, model.tol) == (RBF(0.5) + 2.0 * Linear(), 1e-6)
    assert kernel == other.kernel == RBF(1.0) + 2.0 * Linear()
    assert clone(model).kernel is model.kernel
    assert model.set_params(kernel__gamma=3.0, kernel=RBF()).kernel == RBF(3.0)


def test_parameters_of_a_feature_map():
    model = KernelRidge(kernel=RandomFourier(RBF(), 10)).set_params(kernel__base__gamma=0.3, kernel__n_components=20)
    assert model.kernel == RandomFourier(RBF(0.3), 20)


@pytest.mark.parametrize("kernel", ["rbf", np.dot, None])
def test_a_kernel_without_parameters(kernel):
    with pytest.raises(InputError, match=r"kernel__gamma is given, .* expected a kernel value: .* or set gamma itself"):
        KernelRidge(kernel=kernel).set_params(kernel__gamma=1.0)


def test_unknown_parameters_are_scikit_learns_errors():
    with pytest.raises(ValueError, match="Invalid parameter 'kernl'"):
        KernelRidge(kernel=RBF()).set_params(kernl__gamma=1.0)


def test_grids_over_parameters_of_kernels_find_what_separate_fits_find():
    gammas, scales = [0.01, 0.3], [0.1, 2.0]
    model = make_pipeline(StandardScaler(), KernelRidge(alpha=0.1, kernel=RBF() + 1.0 * Linear()))
    grid = {"kernelridge__kernel__left__gamma": gammas, "kernelridge__kernel__right__scale": scales}
    search = GridSearchCV(model, grid, cv=2).fit(X, Y)
    values = [RBF(gamma) + scale * Linear() for gamma in gammas for scale in scales]
    expected = GridSearchCV(model, {"kernelridge__kernel": values}, cv=2).fit(X, Y)
    assert_array_equal(search.cv_results_["mean_test_score"], expected.cv_results_["mean_test_score"])
    assert len(set(search.cv_results_["mean_test_score"])) == 4
    assert search.best_estimator_[-1].kernel == expected.best_params_["kernelridge__kernel"]
    assert_array_equal(search.predict(X), expected.predict(X))


def test_randomized_search_over_parameters_of_kernels():
    search = RandomizedSearchCV(
        KernelLogisticRegression(kernel=RBF()), {"kernel__gamma": [0.1, 1.0, 3.0]}, n_iter=2, cv=2, random_state=0
    ).fit(X, LABELS)
    assert search.best_estimator_.kernel == RBF(search.best_params_["kernel__gamma"])
