"""Estimators among scikit-learn's tools: nested parameters, grids, clones, routed weights, pipelines."""

import dask.array as da
import numpy as np
import pytest
import sklearn
from numpy.testing import assert_array_equal
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV, GroupKFold, RandomizedSearchCV, StratifiedKFold, cross_validate
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, MinMaxScaler, StandardScaler

from dkrr import KernelLogisticRegression, KernelLogisticRegressionCV, KernelRidge, KernelRidgeCV
from dkrr.errors import InputError
from dkrr.features import PolynomialMap, RandomFourier
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


@pytest.fixture
def routing():
    with sklearn.config_context(enable_metadata_routing=True):
        yield


@every_estimator
def test_sample_weights_are_routed_through_pipelines_and_searches(estimator, routing):
    is_search, is_classifier = estimator.__name__.endswith("CV"), "Logistic" in estimator.__name__
    targets = LABELS if is_classifier else Y
    weights = RNG.integers(1, 4, len(X)).astype(float)
    settings = {"alphas": [0.1, 1.0], "cv": 2} if is_search else {"kernel": RBF()}

    def search(model):
        grid = {f"{estimator.__name__.lower()}__fit_intercept": [False, True]}
        return GridSearchCV(make_pipeline(MinMaxScaler(), model), grid, cv=2)

    model = estimator(**settings).set_fit_request(sample_weight=True).set_score_request(sample_weight=True)
    weighted = search(model).fit(X, targets, sample_weight=weights)
    plain = search(estimator(**settings)).fit(X, targets)
    half = np.arange(len(X)) < len(X) // 2
    if is_classifier:  # folds of scikit-learn for classes
        train, test = next(StratifiedKFold(2).split(X, targets))
    else:
        train, test = np.flatnonzero(~half), np.flatnonzero(half)
    scaler = MinMaxScaler().fit(X[train])
    fit = estimator(**settings, fit_intercept=False)
    fit.fit(scaler.transform(X[train]), targets[train], sample_weight=weights[train])
    expected = fit.score(scaler.transform(X[test]), targets[test], sample_weight=weights[test])
    assert weighted.cv_results_["split0_test_score"][0] == pytest.approx(expected, rel=1e-12)
    assert weighted.cv_results_["split0_test_score"][0] != plain.cv_results_["split0_test_score"][0]


@pytest.mark.parametrize("estimator", [KernelRidgeCV, KernelLogisticRegressionCV])
def test_groups_are_routed(estimator, routing):
    groups = np.arange(len(X)) % 4
    model = estimator([0.1, 1.0], cv=GroupKFold(2)).set_fit_request(groups=True)
    targets = LABELS if "Logistic" in estimator.__name__ else Y
    found = cross_validate(model, X, targets, params={"groups": groups}, cv=GroupKFold(2), return_estimator=True)
    assert [fit.n_splits_ for fit in found["estimator"]] == [2, 2]


@every_estimator
def test_estimators_have_no_output_to_set(estimator):
    """As scikit-learn has it: `set_output` is of transformers."""
    assert not hasattr(estimator(), "set_output")


def test_a_feature_map_as_a_transformer():
    phi = PolynomialMap(2)
    names = [f"x{k}" for k in range(phi.dimension(3))]
    step = FunctionTransformer(phi.transform, feature_names_out=lambda *_: names).set_output(transform="pandas")
    frame = step.fit_transform(X)
    assert list(frame.columns) == names
    assert_array_equal(frame, phi.transform(X))
    assert make_pipeline(step, KernelRidge(alpha=1e-3)).fit(X, Y).predict(X) == pytest.approx(
        KernelRidge(alpha=1e-3, kernel=phi).fit(X, Y).predict(X), rel=1e-9
    )


def test_results_as_arrays():
    model = KernelRidge(alpha=0.1, kernel="rbf").fit(da.from_array(X, chunks=(10, 3)), Y)
    lazy = model.predict(da.from_array(X, chunks=(10, 3)))
    predictions = np.asarray(lazy)
    assert isinstance(lazy, da.Array)
    assert predictions == pytest.approx(model.predict(X), rel=1e-12)
    assert predictions.shape == lazy.shape == (40,)
    assert np.asarray(model.solve_result_.residual).dtype == np.float64
    assert np.asarray([(s.name, s.seconds) for s in model.solve_result_.stages], dtype=object).shape[1] == 2
