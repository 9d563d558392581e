"""A kernel made of others: what its parts learn, what parts must be, how their parameters are set, and descriptions."""

import contextlib
import warnings

import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose

from dkrr.errors import InputError
from dkrr.kernels import RBF, BagOfWords, Linear, Normalized, Precomputed, Sigmoid
from dkrr.kernels.descriptions import DESCRIBED, feature_map_from_dict, kernel_from_dict
from tests.systems import random


def test_a_compound_learns_from_data_that_are_not_numbers():
    documents = ["the cat sat", "the cat ran", "dogs bark"]
    words, counts = (BagOfWords(weighting).fitted(documents)(documents) for weighting in ("tfidf", "counts"))
    kernel = (2.0 * Normalized(BagOfWords()) * BagOfWords("counts") + BagOfWords()).fitted(documents)
    assert_allclose(kernel(documents), 2.0 * words * counts + words, rtol=1e-14)
    assert (RBF() * Linear() + RBF()).sparse_parts == 3


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Normalized("rbf"), "base is 'rbf'; expected a dkrr.kernels.Kernel"),
        (
            lambda: Normalized(Sigmoid(gamma=0.01, coef0=-1.0))(random(4, 2)),
            r"k\(x, x\) = -0\.\d+ .*expected at least 0",
        ),
        (lambda: Normalized(Precomputed()), "combine the matrices instead"),
        (lambda: kernel_from_dict({"kernel": "normalized", "base": {"kernel": "rbf"}, "scale": 2}), "no parameter"),
    ],
)
def test_parts_must_be_kernels_that_have_lengths_where_these_count(make, message):
    with pytest.raises(InputError, match=message):
        make()


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"left__gama": 1.0}, "RBF has no parameter 'gama'; expected one of: 'gamma'"),
        ({"gamma": 1.0}, "Sum has no parameter 'gamma'; expected one of: 'left', 'left__gamma', 'right'"),
        ({"left__gamma__x": 1.0}, "gamma is None, which has no parameter 'x'"),
        ({"left__gamma": -1.0}, "gamma is -1.0; expected a finite number above 0"),
        ({"right__x": 1.0}, "Linear has no parameter 'x'; expected one of: none"),
    ],
)
def test_a_wrong_parameter_is_named_with_those_that_exist(params, message):
    with pytest.raises(InputError, match=message):
        (RBF() + Linear()).set_params(**params)


# Descriptions

KINDS = {tag: kind for classes in DESCRIBED.values() for tag, kind in classes.items()}
NAMES = st.sampled_from([*KINDS, "callable", "own", "map", "nothing"])
FIELDS = {name for kind in KINDS.values() for name in kind.__dataclass_fields__}
VALUES = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.just(10**400)
SIMPLE = st.sampled_from([{"kernel": "linear"}, {"kernel": "rbf", "gamma": 0.5}, {"feature_map": "interactions"}])


def described(inner):
    settings = st.dictionaries(st.sampled_from([*sorted(FIELDS), "array", "digest"]), inner | SIMPLE, max_size=4)
    kinds = st.sampled_from(["kernel", "feature_map"])
    return st.builds(lambda settings, kind, name: settings | {kind: name}, settings, kinds, NAMES | inner)


@pytest.mark.parametrize("read", [kernel_from_dict, feature_map_from_dict])
@given(description=st.recursive(VALUES | st.lists(VALUES, max_size=3), described, max_leaves=8))
def test_any_description_makes_a_value_or_is_refused(read, description):
    with warnings.catch_warnings(), contextlib.suppress(InputError):
        warnings.simplefilter("ignore")
        value = read(description)
        assert read(value.to_dict()) == value
