"""Parts of training sets, and what the last doubling gained."""

import numpy as np
import pytest
from numpy.testing import assert_array_equal
from sklearn.model_selection import GroupKFold, KFold, TimeSeriesSplit

from dkrr.selection import Folds, LearningCurve, gain_of


def parts(splitter, sizes, n=97, weights=None, groups=None, seed=0):
    pairs = list(splitter.split(np.zeros((n, 1)), groups=groups))
    curve = LearningCurve.of(Folds.of_pairs(n, pairs), np.array(sizes), weights, groups, seed)
    return pairs, [[curve.training(s, f) for f in range(len(pairs))] for s in range(len(curve))]


def test_parts_are_nested_random_rows_of_the_training_sets():
    pairs, found = parts(KFold(4), [0.5, 0.1, 1.0])
    for f, (train, _) in enumerate(pairs):
        small, large = found[0][f], found[1][f]
        assert len(small) == int(0.1 * len(train)) and len(large) == int(0.5 * len(train))
        assert set(small) < set(large) < set(train)
        assert small.min() < 40 and large.max() > 60  # not the first rows
    assert not np.array_equal(parts(KFold(4), [0.5], seed=1)[1][0][0], found[1][0])


def test_rows_of_weight_zero_are_in_no_part():
    weights = np.random.default_rng(0).integers(0, 2, 97).astype(float)
    pairs, found = parts(KFold(4), [0.5], weights=weights)
    for f, (train, _) in enumerate(pairs):
        assert weights[found[0][f]].all() and len(found[0][f]) == int(0.5 * weights[train].sum())


def test_groups_stay_together():
    groups = np.random.default_rng(0).integers(0, 20, 97).astype(str)
    pairs, found = parts(GroupKFold(4), [0.5], groups=groups)
    for f, (train, _) in enumerate(pairs):
        whole = [np.isin(np.flatnonzero(groups == g), found[0][f]) for g in np.unique(groups[train])]
        assert sum(0 < rows.sum() < len(rows) for rows in whole) <= 1  # the last one
        assert sum(not rows.any() for rows in whole) >= 5


def test_a_shorter_history_is_the_latest():
    pairs, found = parts(TimeSeriesSplit(3), [7, 11])
    for f, (train, _) in enumerate(pairs):
        assert_array_equal(found[0][f], train[-7:])
        assert_array_equal(found[1][f], train[-11:])


def test_gain():
    sizes = np.array([[100, 100], [400, 400]])
    gain = gain_of(sizes, np.array([[1.0, 2.0], [3.0, 6.0]]), 0.5)
    assert gain.per_doubling == 1.5 and gain.standard_error == pytest.approx((1.0 * 0.5) ** 0.5)
    assert gain.margin == pytest.approx(12.706 * gain.standard_error, rel=1e-4)
    alone = gain_of(sizes[:, :1], np.array([[1.0], [3.0]]), 0.5)
    assert alone.per_doubling == 1.0 and np.isnan(alone.standard_error) and np.isnan(alone.margin)
