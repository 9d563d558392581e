"""Objects as rows of numbers: nothing is lost, nothing pickled, everything else is refused by name."""

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st

from dkrr.errors import InputError, InputTypeError
from dkrr.kernels.objects import WIDTH, decode_objects, encode_objects, is_objects

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)


@given(st.lists(values, min_size=1, max_size=8))
def test_what_goes_in_comes_out(items):
    rows = encode_objects(items)
    assert rows.shape == (len(items), WIDTH) and rows.has_canonical_format
    assert decode_objects(rows) == items
    assert decode_objects(rows[1:]) == items[1:]


def test_series_tables_and_arrays_of_objects():
    words = ["a", "", "Grüße", "\x01"]
    for X in (words, tuple(words), np.array(words), np.array(words, object), pd.Series(words)):
        assert is_objects(X) and decode_objects(encode_objects(X)) == words
    table = pd.DataFrame({"w": words, "n": [1, 2, 3, 4]})
    assert is_objects(table)
    assert decode_objects(encode_objects(table))[2] == {"w": "Grüße", "n": 3}
    assert decode_objects(encode_objects([np.float64(1.5), {"v": np.arange(2)}])) == [1.5, {"v": [0, 1]}]


@pytest.mark.parametrize(
    "X", [np.zeros((2, 3)), [[1.0, 2.0], [3.0, 4.0]], sp.csr_array(np.eye(2)), pd.DataFrame({"a": [1, 2]}), "path.zarr"]
)
def test_numbers_are_no_objects(X):
    assert not is_objects(X)


def test_ragged_lists_are_objects():
    assert is_objects([[1, 2], [3]])


def test_what_json_cannot_say():
    with pytest.raises(InputTypeError, match="object 1 of X is a object, which cannot be stored.*expected strings"):
        encode_objects(["a", object()])
    with pytest.raises(InputError, match="X is empty"):
        encode_objects([])
