"""Descriptions of any content: a kernel or feature map whose description is the same, or an InputError."""

import contextlib
import warnings

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dkrr.errors import InputError
from dkrr.features import FeatureMap, feature_map_from_dict, kernel_from_dict
from dkrr.features.descriptions import _DESCRIBED as MAPS
from dkrr.kernels import Kernel
from dkrr.kernels import kernel_from_dict as plain_kernel_from_dict
from dkrr.kernels.descriptions import _DESCRIBED as KERNELS

NAMES = st.sampled_from([*KERNELS, *MAPS, "callable", "own", "map", "nothing"])
KEYS = st.sampled_from([
    "gamma", "degree", "coef0", "nu", "length_scale", "base", "left", "right", "scale", "columns", "start", "stop",
    "decay", "steps", "normalized", "label", "n_components", "random_state", "pivots", "centres", "whitening",
    "origin", "array", "name", "digest", "feature_map", "kernel", "vocabulary", "idf", "token_pattern", "size",
])  # fmt: skip
VALUES = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.sampled_from([10**400, "linear"])
)
LEAVES = VALUES | st.lists(VALUES, max_size=3)
SIMPLE = st.sampled_from([{"kernel": "linear"}, {"kernel": "rbf", "gamma": 0.5}, {"feature_map": "identity"}])


def _described(inner):
    kinds = st.fixed_dictionaries({}, optional={"kernel": NAMES | inner, "feature_map": NAMES | inner})
    return st.builds(lambda kind, rest: rest | kind, kinds, st.dictionaries(KEYS, inner | SIMPLE, max_size=4))


DESCRIPTIONS = st.recursive(LEAVES, _described, max_leaves=8)


KNOWN = st.builds(
    lambda key, name, rest: rest | {key: name},
    st.sampled_from(["kernel", "feature_map"]),
    st.sampled_from([*KERNELS, *MAPS]),
    st.dictionaries(KEYS, LEAVES | SIMPLE, max_size=4),
)


@pytest.mark.parametrize(
    ("read", "kind"),
    [(kernel_from_dict, Kernel), (plain_kernel_from_dict, Kernel), (feature_map_from_dict, FeatureMap)],
)
@given(description=KNOWN | _described(DESCRIPTIONS) | DESCRIPTIONS)
def test_any_description_makes_a_value_or_is_refused(read, kind, description):
    with warnings.catch_warnings(), contextlib.suppress(InputError):
        warnings.simplefilter("ignore")
        value = read(description)
        assert isinstance(value, kind)
        assert read(value.to_dict()) == value


def test_cyclic_and_deep_descriptions_are_refused():
    cyclic, deep = {"kernel": "normalized"}, {"kernel": "linear"}
    cyclic["base"] = cyclic
    for _ in range(5_000):
        deep = {"kernel": "normalized", "base": deep}
    for description in (cyclic, deep):
        for read in (kernel_from_dict, plain_kernel_from_dict):
            with pytest.raises(InputError, match="description"):
                read(description)
    with pytest.raises(InputError, match="array"):
        kernel_from_dict({"kernel": "linear", "gamma": {"array": {}}})
