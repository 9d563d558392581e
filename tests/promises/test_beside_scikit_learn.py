"""A model of scikit-learn and dkrr's of the same objective give the same numbers wherever scikit-learn puts them.

Where they differ is in docs/how-to/from-scikit-learn.md, and at the end of this file.
"""

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
import sklearn.kernel_ridge
from sklearn.base import clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.compose import TransformedTargetRegressor
from sklearn.ensemble import AdaBoostRegressor, BaggingClassifier, BaggingRegressor, StackingRegressor, VotingClassifier
from sklearn.gaussian_process import GaussianProcessRegressor, kernels
from sklearn.inspection import partial_dependence, permutation_importance
from sklearn.linear_model import LogisticRegression, Ridge, RidgeCV
from sklearn.metrics.pairwise import rbf_kernel
from sklearn.model_selection import (
    GridSearchCV,
    cross_val_predict,
    cross_val_score,
)
from sklearn.multiclass import OneVsOneClassifier, OneVsRestClassifier
from sklearn.multioutput import ClassifierChain, MultiOutputClassifier, MultiOutputRegressor, RegressorChain
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from sklearn.semi_supervised import SelfTrainingClassifier

from dkrr import KernelLogisticRegression, KernelRidge, KernelRidgeCV
from dkrr.errors import InputError, KernelFunctionError, NotPositiveDefiniteError, WrongStoreError
from tests.oracles import assert_close

RNG = np.random.default_rng(0)
X = RNG.normal(size=(40, 3))
Y = np.sin(X[:, 0]) + X[:, 1]
TARGETS = np.column_stack([Y, X[:, 2] ** 2])
FRAME = pd.DataFrame(X, columns=list("abc"))
WEIGHTS = np.arange(40) % 3 + 0.5
CLASSES = np.array(["high", "low", "none"])[np.digitize(Y, [-0.5, 0.5])]
K = rbf_kernel(X, gamma=0.3)
ALPHAS = [1e-3, 0.1, 10.0]


def precomputed(model):
    return model.set_params(kernel="precomputed", gamma=None)


RIDGE = {
    "targets with an alpha each": lambda m: m.set_params(alpha=np.array([0.1, 3.0])).fit(X, TARGETS).dual_coef_,
    "a column of targets": lambda m: m.fit(X, Y[:, None]).predict(X),
    "weights, some of them zero": lambda m: m.fit(X, Y, sample_weight=np.arange(40) % 3).predict(X),
    "a score with weights": lambda m: [m.fit(X, TARGETS).score(X, TARGETS, sample_weight=WEIGHTS)],
    "a frame and a series": lambda m: m.fit(FRAME, pd.Series(Y)).predict(FRAME),
    "sparse rows": lambda m: m.fit(sp.csc_array(X), Y).predict(sp.coo_matrix(X)),
    "precomputed": lambda m: precomputed(m).fit(K, Y).predict(K[:7]),
    "precomputed folds": lambda m: cross_val_predict(precomputed(m), K, TARGETS, cv=3),
    "one row": lambda m: m.fit(X[:1], Y[:1]).predict(X),
    "pipeline of sparse rows": lambda m: make_pipeline(OneHotEncoder(), m).fit(X.round(), Y).predict(X.round()),
    "TransformedTargetRegressor": lambda m: (
        TransformedTargetRegressor(m, transformer=StandardScaler()).fit(X, TARGETS).predict(X)
    ),
    "MultiOutputRegressor": lambda m: MultiOutputRegressor(m).fit(X, TARGETS, sample_weight=WEIGHTS).predict(X),
    "RegressorChain": lambda m: RegressorChain(m).fit(X, TARGETS).predict(X),
    "BaggingRegressor": lambda m: BaggingRegressor(m, 3, max_features=2, random_state=0).fit(X, Y).predict(X),
    "AdaBoostRegressor": lambda m: AdaBoostRegressor(m, n_estimators=3, random_state=0).fit(X, Y).predict(X),
    "StackingRegressor": lambda m: StackingRegressor([("m", m)], final_estimator=clone(m), cv=3).fit(X, Y).predict(X),
    "cross_val_score": lambda m: cross_val_score(m, X, Y, cv=4, scoring="neg_mean_squared_error"),
    "permutation_importance": lambda m: permutation_importance(m.fit(X, Y), X, Y, random_state=0).importances,
    "partial_dependence": lambda m: partial_dependence(m.fit(FRAME, Y), FRAME, ["a"]).average,
    "GridSearchCV": lambda m: GridSearchCV(m, {"alpha": ALPHAS}, cv=3).fit(X, TARGETS).predict(X),
}


@pytest.mark.parametrize("situation", RIDGE)
def test_kernel_ridge_gives_the_numbers_of_scikit_learns(situation):
    theirs, ours = (
        RIDGE[situation](kind(alpha=0.5, kernel="rbf", gamma=0.3))
        for kind in (sklearn.kernel_ridge.KernelRidge, KernelRidge)
    )
    assert_close(ours, theirs)


def test_a_linear_kernel_without_a_penalty_is_least_squares():
    with pytest.warns(UserWarning, match="Singular matrix"):
        theirs = sklearn.kernel_ridge.KernelRidge(alpha=0.0).fit(X, TARGETS)
    assert_close(KernelRidge(alpha=0.0).fit(X, TARGETS).predict(X), theirs.predict(X))


IS_HIGH = np.column_stack([Y > 0, X[:, 2] > 0]).astype(int)
PARTLY = np.where(np.arange(40) % 3 == 0, -1, IS_HIGH[:, 0])
LOGISTIC = {
    "two classes": lambda m: m.fit(X, Y > 0).predict_proba(X),
    "scores of three classes": lambda m: m.fit(X, CLASSES, sample_weight=WEIGHTS).decision_function(X),
    "log probabilities": lambda m: m.fit(sp.csr_array(X), CLASSES).predict_log_proba(sp.csr_array(X)),
    "intercepts": lambda m: m.fit(X, CLASSES).intercept_,
    "balanced": lambda m: m.set_params(class_weight="balanced").fit(X, CLASSES).predict_proba(X),
    "weights of classes": lambda m: m.set_params(class_weight={"high": 3.0}).fit(X, CLASSES).predict_proba(X),
    "without a constant": lambda m: m.set_params(fit_intercept=False).fit(X, CLASSES).predict_proba(X),
    "OneVsRestClassifier": lambda m: OneVsRestClassifier(m).fit(X, CLASSES).predict_proba(X),
    "OneVsOneClassifier": lambda m: OneVsOneClassifier(m).fit(X, CLASSES).decision_function(X),
    "MultiOutputClassifier": lambda m: MultiOutputClassifier(m).fit(X, IS_HIGH).predict_proba(X),
    "ClassifierChain": lambda m: ClassifierChain(m).fit(X, IS_HIGH).predict_proba(X),
    "CalibratedClassifierCV": lambda m: CalibratedClassifierCV(m, cv=3).fit(X, CLASSES).predict_proba(X),
    "BaggingClassifier": lambda m: BaggingClassifier(m, 3, random_state=0).fit(X, CLASSES).predict_proba(X),
    "VotingClassifier": lambda m: VotingClassifier([("m", m)], voting="soft").fit(X, CLASSES).predict_proba(X),
    "SelfTrainingClassifier": lambda m: SelfTrainingClassifier(m).fit(X, PARTLY).predict_proba(X),
    "ranking": lambda m: cross_val_score(m, X, CLASSES, scoring="roc_auc_ovr", cv=3),
}


@pytest.mark.parametrize("situation", LOGISTIC)
def test_the_classifier_gives_the_numbers_of_logistic_regression_with_c_of_one_over_two_alpha(situation):
    theirs = LOGISTIC[situation](LogisticRegression(C=0.25, tol=1e-10, max_iter=1000))
    assert_close(LOGISTIC[situation](KernelLogisticRegression(alpha=2.0, tol=1e-10)), theirs, 1e-5)


@pytest.mark.parametrize("fit_intercept", [False, True])
@pytest.mark.parametrize("settings", [{"cv": None}, {"cv": None, "alpha_per_target": True}, {"cv": 4, "scoring": "r2"}])
def test_a_search_of_linear_kernels_finds_what_ridge_cv_finds(settings, fit_intercept):
    theirs = RidgeCV(ALPHAS, fit_intercept=fit_intercept, **settings).fit(X, TARGETS)
    loo = {"cv": settings["cv"] or "loo"}
    ours = KernelRidgeCV(ALPHAS, kernel="linear", fit_intercept=fit_intercept, **settings | loo).fit(X, TARGETS)
    np.testing.assert_array_equal(ours.alpha_, theirs.alpha_)
    assert_close(ours.best_score_, theirs.best_score_)
    assert_close(ours.predict(X), theirs.predict(X))
    alone = [kind(alpha=0.3, fit_intercept=fit_intercept).fit(X, Y, WEIGHTS) for kind in (Ridge, KernelRidge)]
    assert_close(alone[1].coef_, alone[0].coef_)
    assert_close(alone[1].intercept_, alone[0].intercept_)


# Differences: docs/how-to/from-scikit-learn.md says why ----------------------------------------------------------


def test_a_gaussian_process_has_the_same_mean_and_deviations_that_the_data_scale():
    theirs = GaussianProcessRegressor(kernels.RBF(length_scale=2.0), alpha=0.3, optimizer=None).fit(X, Y)
    ours = KernelRidge(alpha=0.3, kernel="rbf", gamma=1 / (2 * 2.0**2)).fit(X, Y)
    assert_close(ours.predict(X), theirs.predict(X))
    rows = RNG.normal(size=(9, 3))
    scale = Y @ theirs.alpha_ / len(Y)  # s² = yᵀ(K + λI)⁻¹y / n
    assert_close(ours.predict(rows, return_std=True)[1], scale**0.5 * theirs.predict(rows, return_std=True)[1])


def test_a_weighted_search_averages_errors_by_weight():
    theirs = RidgeCV(ALPHAS).fit(X, Y, sample_weight=WEIGHTS)
    ours = KernelRidgeCV(ALPHAS, kernel="linear", fit_intercept=True, cv="loo").fit(X, Y, sample_weight=WEIGHTS)
    assert ours.best_score_ * WEIGHTS.mean() == pytest.approx(theirs.best_score_, rel=1e-8)


@pytest.mark.parametrize(
    ("settings", "error"),
    [
        ({"kernel": "rbf", "alpha": 0.0}, NotPositiveDefiniteError),  # least squares with a warning
        ({"kernel": lambda x, z: float(x @ z)}, KernelFunctionError),  # called with pairs of rows
        ({"kernel": "additive_chi2"}, InputError),  # not positive semidefinite
        ({"kernel": lambda A, B: A @ B.T, "gamma": 0.1}, InputError),  # ignored
    ],
    ids=["singular", "function of pairs", "additive_chi2", "function with gamma"],
)
def test_what_scikit_learn_fits_and_dkrr_refuses(settings, error):
    with pytest.raises(error):
        KernelRidge(**settings).fit(np.tile(abs(X), (2, 1)), np.tile(Y, 2))


def test_clones_of_a_grid_search_cannot_share_a_store_and_say_what_can(tmp_path):
    model = KernelRidge(kernel="rbf", store=str(tmp_path / "run.zarr"))
    with pytest.raises(WrongStoreError, match=r"cannot share a store: .* use KernelRidgeCV\(store="):
        GridSearchCV(model, {"alpha": ALPHAS}, cv=2, error_score="raise").fit(X, Y)


def test_predictions_of_float32_rows_are_float64():
    theirs, ours = (
        kind(kernel="rbf").fit(X.astype(np.float32), Y.astype(np.float32)).predict(X.astype(np.float32)).dtype
        for kind in (sklearn.kernel_ridge.KernelRidge, KernelRidge)
    )
    assert (theirs, ours) == (np.float32, np.float64)
