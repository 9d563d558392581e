"""Searches of classes choose by the scores that one fit after another has."""

import numpy as np
import pytest
from numpy.testing import assert_allclose
from sklearn.metrics import log_loss
from sklearn.model_selection import GroupKFold, KFold, StratifiedKFold

from dkrr import KernelLogisticRegression, KernelLogisticRegressionCV
from dkrr.errors import ConvergenceWarning, InputError
from dkrr.kernels import RBF
from dkrr.selection import Folds, LearningCurve
from tests.conftest import Data

ALPHAS = [1e-2, 1.0, 0.1]


@pytest.fixture(scope="module")
def data(data):
    return Data(data.X[:90], data.y[:90], data.weights[:90], data.X_new)


@pytest.fixture
def labels(data):
    return np.array(["a", "b", "c"])[np.digitize(data.X[:, 0] + 0.3 * data.X[:, 1], [-0.5, 0.6])]


def naive_score(X, labels, train, test, weights=None, **settings):
    """Negative mean loss of the held-out rows by a fit of its own."""
    w = (None, None) if weights is None else (weights[train], weights[test])
    model = KernelLogisticRegression(**settings).fit(X[train], labels[train], sample_weight=w[0])
    return -log_loss(labels[test], model.predict_proba(X[test]), sample_weight=w[1])


@pytest.mark.parametrize("weighted", [False, True])
def test_scores_are_those_of_separate_fits(data, labels, weighted):
    weights = data.weights if weighted else None
    search = KernelLogisticRegressionCV(ALPHAS, kernel="rbf", gamma=[0.05, 0.5], cv=3, class_weight="balanced")
    search.fit(data.X, labels, sample_weight=weights)
    folds, expected = list(StratifiedKFold(3).split(data.X, labels)), np.empty((6, 3))
    for k, parameters in enumerate(search.cv_results_["params"]):
        settings = {"kernel": "rbf", "class_weight": "balanced"} | parameters
        for f, (train, test) in enumerate(folds):
            expected[k, f] = naive_score(data.X, labels, train, test, weights, **settings)
            assert search.cv_results_[f"split{f}_test_score"][k] == pytest.approx(expected[k, f], rel=1e-5)
    best = int(np.argmax(expected.mean(axis=1)))
    assert search.best_index_ == best and search.alpha_ == search.best_params_["alpha"]
    assert set(search.best_params_) == {"alpha", "kernel", "gamma", "class_weight"}
    refit = KernelLogisticRegression(**search.best_params_).fit(data.X, labels, sample_weight=weights)
    assert_allclose(search.predict_proba(data.X_new), refit.predict_proba(data.X_new), rtol=1e-6)
    assert (search.cv_results_["iterations"] > 1).all()


def test_learning_curves_are_those_of_separate_fits(data, labels):
    settings = {"kernel": "rbf", "gamma": [0.05, 0.5], "cv": 3, "refit": False}
    search = KernelLogisticRegressionCV(ALPHAS, train_sizes=(0.3, 0.6), **settings).fit(data.X, labels)
    pairs = list(StratifiedKFold(3).split(data.X, labels))
    parts = LearningCurve.of(Folds.of_pairs(90, pairs), np.array([0.3, 0.6]), None, None, 0)
    curve, known = search.learning_curve_, {"kernel": "rbf", "gamma": search.best_params_["gamma"]}
    for size, found in enumerate(curve["alpha"][:2]):
        folds = [(parts.training(size, f), test) for f, (_, test) in enumerate(pairs)]
        expected = [[naive_score(data.X, labels, *fold, alpha=a, **known) for fold in folds] for a in ALPHAS]
        best = int(np.argmax(np.mean(expected, axis=1)))
        assert found == ALPHAS[best]
        assert_allclose(curve["test_scores"][size], expected[best], rtol=1e-5)
    plain = KernelLogisticRegressionCV(ALPHAS, **settings).fit(data.X, labels)
    assert_allclose(search.cv_results_["mean_test_score"], plain.cv_results_["mean_test_score"], rtol=1e-9)
    assert curve["mean_test_score"][-1] == plain.best_score_ and search.best_params_ == plain.best_params_
    with pytest.raises(InputError, match="a part of 1 rows, by train_sizes, has no training row of class 'a'"):
        KernelLogisticRegressionCV(ALPHAS, train_sizes=[1], **settings).fit(data.X, labels)


def test_scorers_groups_and_precomputed_matrices(data, labels):
    settings = {"alphas": ALPHAS, "cv": GroupKFold(3), "scoring": "accuracy"}
    K, groups = RBF(gamma=0.3)(data.X), np.arange(90) % 9
    search = KernelLogisticRegressionCV(kernel="precomputed", **settings).fit(K, labels, groups=groups)
    plain = KernelLogisticRegressionCV(kernel=RBF(gamma=0.3), **settings).fit(data.X, labels, groups=groups)
    assert_allclose(search.cv_results_["mean_test_score"], plain.cv_results_["mean_test_score"])
    assert 0.5 < search.best_score_ <= 1


@pytest.mark.filterwarnings("ignore:relative gradient")
def test_fits_that_have_not_converged_have_no_score(data, labels):
    search = KernelLogisticRegressionCV([1e-8, 10.0], kernel="rbf", cv=3, max_iter=6, refit=False)
    with pytest.warns(ConvergenceWarning, match="no scores of alpha = 1e-08: the relative gradient of their systems"):
        search.fit(data.X, labels)
    assert search.alpha_ == 10.0
    assert np.isnan(search.cv_results_["mean_test_score"]).tolist() == [True, False]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"alphas": [0.0]}, "alphas is 0; expected a finite number > 0"),
        ({"cv": "loo"}, "leave-one-out.*cv=5"),
        ({"cv": KFold(2)}, "fold 0 .*no training row of class 'a'.*StratifiedKFold"),
    ],
)
def test_folds_that_cannot_be_fitted_are_refused(data, change, message):
    labels = np.repeat(["a", "b"], [40, 50])
    with pytest.raises(InputError, match=message):
        KernelLogisticRegressionCV(**({"kernel": "rbf"} | change)).fit(data.X, labels)
