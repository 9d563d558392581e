"""Rows that cannot be used are refused by name: types, shapes, paths, numbers that are not finite."""

import itertools
from decimal import Decimal

import dask.array as da
import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from dkrr.errors import InputError, InputTypeError
from dkrr.rows import as_rows, checks, load_array, load_labels, open_path, scan, scan_tasks
from dkrr.rows.checks import check_finite, digest_of
from dkrr.runtime import Progress, SerialExecutor
from tests.inputs import numbers, table


@pytest.mark.parametrize(
    ("X", "error", "match"),
    [
        (np.array([["a", "b"]]), InputTypeError, "has dtype <U1; expected numbers"),
        (np.array([[Decimal(1), 2]]), InputTypeError, "has dtype object; expected numbers"),
        (np.zeros((2, 2), "M8[s]"), InputTypeError, "expected numbers: convert it"),
        (sp.csr_array(np.ones((2, 2), complex)), InputTypeError, "complex data not supported"),
        (da.ones((2, 2), dtype="complex64"), InputTypeError, "complex data not supported"),
        (da.ones((2, 3, 4)), InputError, r"Z.* 3 dimensions, shape \(2, 3, 4\)"),
        (np.float64(3.0), InputError, "0 dimensions"),
        (np.ones((0, 3)), InputError, r"empty: found array with shape=\(0, 3\)"),
        (sp.csr_array((0, 3)), InputError, "Z.* empty|empty.* Z"),
        ([[1, 2], [3]], InputError, "Z"),
    ],
    ids=str,
)
def test_what_is_not_a_table_of_numbers_is_refused(X, error, match):
    with pytest.raises(error, match=match):
        as_rows(X, "Z")


def test_paths_that_do_not_exist_or_are_damaged_are_named(tmp_path):
    names = ("x.npy", "x.npz", "x.zarr", "x", "x.parquet", "x.feather")
    for name in (*names, "x.csv", "x.npz::a", "x.pq::a"):
        with pytest.raises(InputError, match="X: the path .*x.* does not exist|does not exist"):
            as_rows(f"{tmp_path}/{name}")
    with pytest.raises(InputError, match="memory://nothing/there"):
        as_rows("memory://nothing/there")
    for name, content in itertools.product(names, (b"", b"not numpy's", b"PK\x03\x04 cut off")):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(InputError, match=f"cannot read .*{name}"):
            as_rows(f"{tmp_path}/{name}")


def test_a_member_that_a_file_lacks_is_refused_with_those_that_it_has(tmp_path):
    np.savez(tmp_path / "x.npz", X=numbers(), y=numbers()[:, 0])
    for member in ("", "::", "::z", "::X.npy"):
        with pytest.raises(InputError, match=r"expected one of X, y: write .*x\.npz::NAME"):
            as_rows(f"{tmp_path}/x.npz{member}")


def test_pickles_in_files_are_not_run(tmp_path):
    np.save(tmp_path / "x.npy", np.array([[print]]), allow_pickle=True)
    np.savez(tmp_path / "x.npz", x=np.array([[print]]), allow_pickle=True)
    for path in ("x.npy", "x.npz::x"):
        with pytest.raises(InputError, match="[Oo]bject"):
            as_rows(f"{tmp_path}/{path}")


PARTS = [
    ".", "..", "/", "//", "::", ":", "x.npy", "x.npz", "x.zarr", "zarr.json", "://", "file://", "memory://",
    "nowhere://", "s3://", "x.csv", ".parquet", "http://", "*", "~", "%00", "é", "", " ", "\n", "\0", "\ud800", "aaa",
]  # fmt: skip
TEXTS = st.lists(st.sampled_from(PARTS) | st.text(max_size=6), max_size=6).map("".join)


@given(text=TEXTS, reader=st.sampled_from([open_path, as_rows, load_array, load_labels]))
def test_any_text_is_a_path_or_refused_by_name(tmp_path_factory, text, reader):
    folder = tmp_path_factory.mktemp("paths")
    np.save(folder / "x.npy", np.eye(3))
    np.savez(folder / "x.npz", a=np.eye(3), b=np.array([{}], object))
    (folder / "x.zarr").mkdir()
    for path in (text, f"{folder}/{text}"):
        found = "rows_of_mine"
        try:
            reader(path, "rows_of_mine")
        except InputError as error:
            found = str(error)
        assert "rows_of_mine" in found


def test_targets_are_loaded_whole_in_float64_and_keep_their_dimensions(tmp_path):
    for kind in ("ndarray", "dask", "zarr", "npz"):
        case = table(kind, tmp_path, numbers(dtype="float32"))
        assert_array_equal(load_array(case.handed_in), case.array.astype(np.float64), strict=True)
    for shape in ((), (3,), (3, 1)):
        assert load_array(np.ones(shape).tolist()).shape == shape
    for y in (sp.csr_array(np.ones((3, 1))), ["a"], np.ones(2, complex), "nothing.npy", [[1], [2, 3]]):
        with pytest.raises(InputError, match="target"):
            load_array(y, "target")


@given(
    at=st.tuples(st.integers(0, 22), st.integers(0, 6)),
    value=st.sampled_from([np.nan, np.inf, -np.inf]),
    dtype=st.sampled_from(["float64", "float32", "float16"]),
)
def test_a_bad_number_is_found_at_every_position(at, value, dtype):
    X = np.ones((23, 7), dtype)
    X[at] = value
    message = rf"contains {'NaN' if np.isnan(value) else 'infinity'}: .* row {at[0]}, column {at[1]} "
    for array in (X, sp.csr_array(X)) if dtype != "float16" else (X,):
        with pytest.raises(InputError, match=message):
            scan(as_rows(array), "X")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checks, "_BLOCK_ROWS", 5)
        with pytest.raises(InputError, match=message):
            SerialExecutor().run(scan_tasks(as_rows(X), "X", digest=False, n_tasks=3), Progress())


def test_a_bad_number_is_found_past_empty_rows_and_in_a_vector():
    X = sp.csr_array(([1.0, np.nan, 2.0], ([1, 4, 6], [0, 2, 1])), shape=(8, 3))
    with pytest.raises(InputError, match="row 4, column 2"):
        scan(as_rows(X), "X")
    with pytest.raises(InputError, match="Input y contains infinity: .* row 12, column 0"):
        check_finite(np.array([1.0, 2.0, np.inf]), "y", first_row=10)


def test_finite_numbers_pass_also_if_their_sum_overflows():
    huge = np.array([[1e308, 1e308], [1e308, 1.0]])
    for block in (huge, huge.clip(max=3e38).astype(np.float32), sp.csr_array(huge), np.ones((2, 2), int)):
        check_finite(block, "X")


@given(n=st.integers(1, 60), n_tasks=st.integers(1, 12), height=st.integers(1, 9))
def test_every_row_is_scanned_by_one_task(n, n_tasks, height):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checks, "_BLOCK_ROWS", height)
        tasks = scan_tasks(as_rows(np.zeros((n, 2))), "X", digest=True, n_tasks=n_tasks)
    assert 1 <= len(tasks) <= n_tasks and len({t.key for t in tasks}) == len(tasks)
    rows = [r for t in tasks for a, b in itertools.pairwise(t.arguments[2]) for r in range(a, b)]
    assert rows == list(range(n))


def test_blocks_that_are_scanned_stay_small():
    assert checks._blocks(as_rows(np.broadcast_to(0.0, (5, 2**21))))[:3] == [0, 2, 4]
    assert checks._blocks(as_rows(np.broadcast_to(0.0, (3, 2**24)))) == [0, 1, 2, 3]


def test_a_checksum_of_an_array_is_of_its_numbers():
    X = numbers()
    assert digest_of(X) == digest_of(np.asfortranarray(X)) == digest_of(X.astype(">f8"))
    X[3, 3] += 1
    assert digest_of(X) != digest_of(numbers())
