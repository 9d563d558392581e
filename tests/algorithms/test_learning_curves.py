"""Learning curves of a search are those of separate fits to nested parts of the training rows."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.model_selection import GroupKFold, KFold, ShuffleSplit, StratifiedKFold, TimeSeriesSplit

from dkrr import KernelLogisticRegressionCV, KernelRidgeCV
from dkrr.errors import InputError
from dkrr.features import Nystroem
from dkrr.kernels import RBF
from dkrr.selection import Folds, LearningCurve, gain_of
from tests.naive_folds import naive_class_scores, naive_scores
from tests.pairs import every_pair

ALPHAS = [10.0, 1e-3, 0.3]
TIGHT = {"cv_tol": 1e-11, "early_stopping": False}
METHODS = {
    "sweep": {"kernel": "rbf", "solver": "cg"},
    "factors": {"kernel": "rbf", "solver": "cholesky"},
    "primal": {"kernel": "polynomial", "degree": 2, "form": "primal"},
    "refits": {"kernel": Nystroem(RBF(gamma=0.2), 6)},
}


def parts_of(X, cv, train_sizes, weights=None, groups=None, seed=0, y=None):
    """Pairs (training rows, rows held out) of every size; the rows of all sizes but the last are those of dkrr."""
    pairs = list(cv.split(X, y, groups))
    curve = LearningCurve.of(Folds.of_pairs(len(X), pairs), np.array(train_sizes), weights, groups, seed)
    return [*([(curve.training(s, f), t) for f, (_, t) in enumerate(pairs)] for s in range(len(curve))), pairs]


def trains(cv, train_sizes, **settings):
    """Training rows of every size, the whole last, fold by fold."""
    parts = parts_of(np.zeros((97, 1)), cv, train_sizes, **settings)
    return list(zip(*([train for train, _ in pairs] for pairs in parts), strict=True))


def test_parts_are_nested_random_rows_of_the_training_sets():
    for small, large, train in trains(KFold(4), [0.5, 0.1, 1.0]):
        assert len(small) == int(0.1 * len(train)) and len(large) == int(0.5 * len(train))
        assert set(small) < set(large) < set(train)
        assert small.min() < 40 and large.max() > 60  # not the first rows


def test_parts_have_no_row_of_weight_zero_whole_groups_and_the_latest_rows_of_a_history():
    rng = np.random.default_rng(0)
    weights, groups = rng.integers(0, 2, 97).astype(float), rng.integers(0, 20, 97).astype(str)
    for part, train in trains(KFold(4), [0.5], weights=weights):
        assert weights[part].all() and len(part) == int(0.5 * weights[train].sum())
    for part, train in trains(GroupKFold(4), [0.5], groups=groups):
        rest = np.setdiff1d(train, part)
        assert len(set(groups[part]) & set(groups[rest])) <= 1 and len(set(groups[rest])) >= 5
    for seven, eleven, train in trains(TimeSeriesSplit(3), [7, 11]):
        assert_array_equal(seven, train[-7:])
        assert_array_equal(eleven, train[-11:])


def test_the_gain_of_more_rows_allows_for_those_that_folds_share():
    sizes = np.array([[100, 100], [400, 400]])
    gain = gain_of(sizes, np.array([[1.0, 2.0], [3.0, 6.0]]), 0.5)
    assert gain.per_doubling == 1.5 and gain.standard_error == pytest.approx((1.0 * 0.5) ** 0.5)
    assert gain.margin == pytest.approx(12.706 * gain.standard_error, rel=1e-4)
    alone = gain_of(sizes[:, :1], np.array([[1.0], [3.0]]), 0.5)
    assert alone.per_doubling == 1.0 and np.isnan(alone.standard_error) and np.isnan(alone.margin)


def expected_scores(X, Y, parts, weights=None, **settings):
    """Scores of the best λ at every size, (n_sizes, n_folds), and that λ."""
    found = np.stack([naive_scores(X, Y, pairs, ALPHAS, weights, **settings) for pairs in parts])
    best = found.mean(axis=2).argmax(axis=1)
    return found[np.arange(len(parts)), best], np.array(ALPHAS)[best]


@every_pair(way=list(METHODS), fit_intercept=[False, True], weighted=[True, False])
def test_a_curve_is_that_of_separate_fits(data, way, fit_intercept, weighted):
    X, Y, weights = data.X[:80], data.y[:80, :2], data.weights[:80] if weighted else None
    cv, settings = KFold(2, shuffle=True, random_state=1), {"fit_intercept": fit_intercept, "refit": False} | TIGHT
    search = KernelRidgeCV(ALPHAS, cv=cv, train_sizes=(0.5, 0.2), **settings, **METHODS[way])
    curve = search.fit(X, Y, sample_weight=weights).learning_curve_
    parts = parts_of(X, cv, (0.5, 0.2), weights)
    assert_array_equal(curve["split_train_sizes"][:-1], [[len(train) for train, _ in pairs] for pairs in parts[:-1]])
    known = {k: v for k, v in METHODS[way].items() if k in ("kernel", "degree")} | {"fit_intercept": fit_intercept}
    scores, alphas = expected_scores(X, Y, parts, weights, **known)
    assert_allclose(curve["test_scores"], scores, rtol=1e-6)
    assert_array_equal(curve["alpha"], alphas)
    assert curve["mean_test_score"][-1] == pytest.approx(search.best_score_) and curve["alpha"][-1] == search.alpha_
    assert search.selection_plan_.method == way
    assert not hasattr(search.set_params(train_sizes=None).fit(X, Y), "learning_curve_")


@pytest.mark.parametrize("cv", [GroupKFold(3), ShuffleSplit(3, random_state=0), TimeSeriesSplit(3)])
def test_parts_follow_the_splitter_and_its_groups(data, cv):
    X, y = data.X[:120], data.y[:120, 0]
    groups = np.random.default_rng(0).integers(0, 30, 120) if isinstance(cv, GroupKFold) else None
    search = KernelRidgeCV(ALPHAS, cv=cv, train_sizes=[15, 25], random_state=3, refit=False, **TIGHT)
    curve = search.fit(X, y, groups=groups).learning_curve_
    assert_array_equal(curve["train_sizes"][:2], [15, 25])
    parts = parts_of(X, cv, [15, 25], groups=groups, seed=3)
    assert_allclose(curve["test_scores"], expected_scores(X, y, parts, kernel="rbf")[0], rtol=1e-6)


@pytest.mark.nightly
def test_a_curve_of_classes_is_that_of_separate_fits(data):
    X, settings = data.X[:90], {"kernel": "rbf", "gamma": [0.05, 0.5], "cv": 3, "refit": False}
    labels = np.array(["a", "b", "c"])[np.digitize(X[:, 0] + 0.3 * X[:, 1], [-0.5, 0.6])]
    search = KernelLogisticRegressionCV(ALPHAS, train_sizes=(0.3, 0.6), **settings).fit(X, labels)
    curve, known = search.learning_curve_, {"kernel": "rbf", "gamma": search.best_params_["gamma"]}
    for size, folds in enumerate(parts_of(X, StratifiedKFold(3), (0.3, 0.6), y=labels)[:2]):
        expected = np.array([naive_class_scores(X, labels, folds, alpha=a, **known) for a in ALPHAS])
        best = int(np.argmax(expected.mean(axis=1)))
        assert curve["alpha"][size] == ALPHAS[best]
        assert_allclose(curve["test_scores"][size], expected[best], rtol=1e-5)
    assert curve["mean_test_score"][-1] == search.best_score_
    with pytest.raises(InputError, match="a part of 1 row, by train_sizes, has no training row of class 'a'"):
        KernelLogisticRegressionCV(ALPHAS, train_sizes=[1], **settings).fit(X, labels)


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        (0.5, "train_sizes is 0.5; expected fractions"),
        ((0.5, 2.0), "train_sizes is .*expected fractions"),
        ((0.001, 0.5), "train_sizes has 0.001, and fold 0 .* trains on 168 rows"),
        ((20, 168), "train_sizes has 168, and fold 0 .*between 1 and 167 rows"),
    ],
)
def test_sizes_that_no_fold_has_are_refused(data, sizes, message):
    with pytest.raises(InputError, match=message):
        KernelRidgeCV(train_sizes=sizes).fit(data.X, data.y)
    with pytest.raises(InputError, match="cv is leave-one-out.*cv=5"):
        KernelRidgeCV(train_sizes=(0.5,), cv="loo").fit(data.X, data.y)
