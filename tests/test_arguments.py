"""Checks of users' arguments, one by one; the estimators' tests have the errors as users see them."""

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from dkrr.arguments import checked_alphas, checked_likelihood, checked_path, checked_weights, checked_width
from dkrr.errors import InputError
from dkrr.linalg.likelihood import Bernoulli, Softmax


@pytest.mark.parametrize("alpha", [0.5, np.float32(0.5), [0.5], np.full(3, 0.5)])
def test_a_penalty_for_each_target(alpha):
    assert_array_equal(checked_alphas(alpha, 3), np.full(3, 0.5))


@pytest.mark.parametrize("alpha", [[1.0, 2.0], np.ones((3, 1)), "x", -1e-300, np.inf, [1.0, np.nan, 1.0]])
def test_what_is_not_a_penalty(alpha):
    with pytest.raises(InputError, match="alpha"):
        checked_alphas(alpha, 3)


def test_a_path_keeps_its_order_and_has_no_zero():
    assert checked_path([0.1, 3, 0.2]) == (0.1, 3.0, 0.2)
    for wrong in ([], [0.0], [1.0, -2.0], [[1.0, 2.0]], 1.0):
        with pytest.raises(InputError, match="alpha"):
            checked_path(wrong)


def test_weights_that_are_all_one_are_no_weights():
    assert checked_weights(None, 3) is checked_weights(np.ones(3), 3) is checked_weights(1.0, 3) is None
    assert_array_equal(checked_weights([1.0, 2.0, 0.0], 3), [1.0, 2.0, 0.0])
    assert_array_equal(checked_weights(2.0, 3), np.full(3, 2.0))


@pytest.mark.parametrize("weights", [np.ones(2), np.ones((3, 1)), np.zeros(3), [1.0, -1.0, 1.0], [1.0, np.inf, 1.0]])
def test_what_is_not_a_weight(weights):
    with pytest.raises(InputError, match="sample_weight"):
        checked_weights(weights, 3)


@pytest.mark.parametrize(
    ("y", "n_classes", "multi_class", "expected"),
    [
        (None, None, "ovr", (Bernoulli, 1)),
        (None, None, "multinomial", (Bernoulli, 1)),
        (None, 3, "ovr", (Bernoulli, 3)),
        (None, 3, "multinomial", (Softmax, 3)),
        (["b", "a", "c", "a"], None, "multinomial", (Softmax, 3)),
        (np.array([0.0, 1.0, 1.0]), 7, "ovr", (Bernoulli, 1)),
    ],
)
def test_likelihood(y, n_classes, multi_class, expected):
    found = checked_likelihood(y, n_classes, multi_class)
    assert (type(found), found.n_columns) == expected


@pytest.mark.parametrize(
    ("y", "n_classes", "message"),
    [
        (None, 1, "n_classes is 1"),
        ([3, 3], None, "1 class"),
        ([0.5, 1.0], None, "continuous"),
        (None, 2.0, "n_classes is 2.0"),
    ],
)
def test_what_is_not_a_classification(y, n_classes, message):
    with pytest.raises(InputError, match=message):
        checked_likelihood(y, n_classes, "ovr")


def test_width_of_targets(tmp_path):
    np.save(tmp_path / "y.npy", np.zeros((5, 3)))
    targets = (np.zeros(5), np.zeros((5, 1)), np.zeros((5, 4)), tmp_path / "y.npy")
    assert [checked_width(y, 5) for y in targets] == [1, 1, 4, 3]
    with pytest.raises(InputError, match="y has 5 rows, and X has 6"):
        checked_width(np.zeros(5), 6)
