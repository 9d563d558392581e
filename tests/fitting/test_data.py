"""The data of one fit, brought to a range where squares neither overflow nor underflow."""

from fractions import Fraction

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from dkrr.fitting.data import LabelledData
from dkrr.kernels import Linear
from dkrr.linalg.likelihood import Bernoulli
from dkrr.rows import as_rows

TINY = float(np.finfo(float).tiny)


def labelled(weights, alphas):
    codes = np.arange(len(weights)) % 2
    weights = None if weights[0] is None else np.array(weights)
    return LabelledData(
        rows=as_rows(np.eye(len(codes))),
        weights=weights,
        kernel=Linear(),
        feature_map=None,
        fit_intercept=True,
        codes=codes,
        likelihood=Bernoulli(1),
        alphas=alphas,
    )


@pytest.mark.parametrize(
    ("weights", "alphas"),
    [
        ([1e-200, 0.0, 3e-200], (1e-201, 1e-195)),
        ([1e-200, 1e200], (1.0,)),
        ([1e308, 2e307], (1e-250,)),
        ([1e-280, 1e280], (1e-285, 1e285)),
        ([1e-310, 3e-310], (1e250,)),
        ([5e-324, 5e-324], (5e-324,)),
    ],
)
def test_no_digit_of_weights_and_alphas_is_lost(weights, alphas):
    data = labelled(weights, alphas)
    scaled = data.in_range()
    unit = Fraction(scaled.unit)
    assert scaled.unit != 1.0 and unit.numerator & (unit.numerator - 1) == 0
    assert [Fraction(w) * unit for w in scaled.weights] == [Fraction(w) for w in weights]
    assert [Fraction(a) * unit for a in scaled.alphas] == [Fraction(a) for a in alphas]
    assert scaled.fingerprint("") == data.fingerprint("")


def test_the_largest_weight_is_about_one_where_ratios_allow():
    scaled = labelled([1e-200, 1e-190], (1e-150,)).in_range()
    assert 1.0 <= scaled.weights.max() < 2.0


@pytest.mark.parametrize("weights", [[None, None], [1e-10, 1e10], [0.0, 0.0]], ids=["none", "safe", "zero"])
def test_others_stay_as_they_are(weights):
    data = labelled(weights, (1e-200, 1e200))
    assert data.in_range() is data


@pytest.mark.parametrize(
    ("weights", "alphas"), [([1e308, 2e307], (TINY,)), ([1e-310, 3e-310], (1e300,)), ([1e-300, 1e300], (1e-300,))]
)
def test_so_do_those_too_far_apart(weights, alphas):
    data = labelled(weights, alphas)
    assert data.in_range() is data


def test_a_row_of_weight_zero_keeps_it():
    assert_array_equal(labelled([0.0, 1e-100], (1.0,)).in_range().weights == 0, [True, False])
