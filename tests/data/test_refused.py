"""Rows that cannot be used are refused by name: types, shapes, paths, numbers that are not finite."""

import itertools
from decimal import Decimal
from pathlib import Path

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

REFUSED = {
    "text": (np.array([["a", "b"]]), "has dtype <U1; expected numbers"),
    "decimals": (np.array([[Decimal(1), 2]]), "has dtype object; expected numbers"),
    "dates": (np.zeros((2, 2), "M8[s]"), "expected numbers: convert it"),
    "complex": (np.ones((2, 2), complex), "complex data not supported"),
    "complex csr": (sp.csr_array(np.ones((2, 2), complex)), "complex data not supported"),
    "complex dask": (da.ones((2, 2), dtype="complex64"), "complex data not supported"),
    "3-D": (np.ones((2, 3, 4)), r"Z.* 3 dimensions, shape \(2, 3, 4\)"),
    "3-D dask": (da.ones((2, 3, 4)), "Z.* 3 dimensions"),
    "number": (np.float64(3.0), "0 dimensions"),
    "no rows": (np.ones((0, 3)), r"empty: found array with shape=\(0, 3\)"),
    "empty csr": (sp.csr_array((0, 3)), "Z.* empty|empty.* Z"),
    "empty dask": (da.ones((0, 3)), "Z.* empty|empty.* Z"),
    "ragged": ([[1, 2], [3]], "Z"),
}


def test_what_is_not_a_table_of_numbers_is_refused():
    for what, (X, match) in REFUSED.items():
        with pytest.raises(InputTypeError if what in list(REFUSED)[:6] else InputError, match=match):
            as_rows(X, "Z")


class TestPaths:
    def test_a_path_that_does_not_exist_is_named(self, tmp_path):
        for name in ("x.zarr", "x.npy", "x.npz::a", "x.npz", "x", "x.parquet", "x.csv", "x.pq::a"):
            with pytest.raises(InputError, match="X: the path .*x.* does not exist|does not exist"):
                as_rows(str(tmp_path / name))
        with pytest.raises(InputError, match="memory://nothing/there"):
            as_rows("memory://nothing/there")

    def test_a_member_that_a_file_lacks_is_refused_with_those_that_it_has(self, tmp_path):
        np.savez(tmp_path / "x.npz", X=numbers(), y=numbers()[:, 0])
        for member in ("", "::", "::z", "::X.npy"):
            with pytest.raises(InputError, match=r"expected one of X, y: write .*x\.npz::NAME"):
                as_rows(f"{tmp_path}/x.npz{member}")

    def test_damaged_files_are_named(self, tmp_path):
        for content in (b"", b"not numpy's", b"PK\x03\x04 cut off"):
            for name in ("x.npy", "x.npz", "x.zarr", "x", "x.parquet", "x.feather"):
                (tmp_path / name).write_bytes(content)
                with pytest.raises(InputError, match=f"cannot read .*{name}"):
                    as_rows(f"{tmp_path}/{name}")

    def test_pickles_in_files_are_not_run(self, tmp_path):
        np.save(tmp_path / "x.npy", np.array([[print]]), allow_pickle=True)
        np.savez(tmp_path / "x.npz", x=np.array([[print]]), allow_pickle=True)
        for path in ("x.npy", "x.npz::x"):
            with pytest.raises(InputError, match="[Oo]bject"):
                as_rows(f"{tmp_path}/{path}")


PARTS = st.sampled_from([
    ".", "..", "/", "//", "::", ":", "x.npy", "x.npz", "x.zarr", "zarr.json", "://", "file://", "memory://",
    "nowhere://", "s3://", "x.csv", ".parquet", "http://", "*", "~", "%00", "é",
])  # fmt: skip
ODD = st.sampled_from(["", " ", "\n", "\0", "\ud800", "a" * 300])
TEXTS = st.lists(PARTS | ODD | st.text(max_size=6), max_size=6).map("".join)
HEADS = [b"", b"\x93NUMPY\x01\x00v\x00", b"\x93NUMPY\x01\x00", b"PK\x03\x04", b"PK\x05\x06"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("paths")
    np.save(folder / "x.npy", np.eye(3))
    np.savez(folder / "x.npz", a=np.eye(3), b=np.array([{}], object))
    (folder / "x.zarr").mkdir()
    return folder


@given(text=TEXTS, reader=st.sampled_from([open_path, as_rows, load_array, load_labels]))
def test_any_text_is_a_path_or_refused_by_name(folder, text, reader):
    for path in (text, str(folder) + "/" + text):
        found = ""
        try:
            reader(path, "rows_of_mine")
        except InputError as error:
            found = str(error)
        assert not found or "rows_of_mine" in found


@given(head=st.sampled_from(HEADS), rest=st.binary(max_size=200))
def test_any_bytes_are_an_array_or_refused_by_name(folder, head, rest):
    for name in ("bytes.npy", "bytes.npz", "bytes.npz::a"):
        path = Path(folder, name.partition("::")[0])
        path.write_bytes(head + rest)
        with pytest.raises(InputError, match="rows_of_mine"):
            as_rows(str(folder / name), "rows_of_mine")
        path.unlink()


def test_targets_are_loaded_whole_in_float64_and_keep_their_dimensions(tmp_path):
    for kind in ("ndarray", "dask", "zarr", "zarr in memory", "npy", "npz"):
        case = table(kind, tmp_path, numbers(dtype="float32"))
        loaded = load_array(case.handed_in)
        assert loaded.dtype == np.float64
        assert_array_equal(loaded, case.array)
    assert load_array([1, 2, 3]).shape == (3,)
    assert load_array(np.ones((3, 1))).shape == (3, 1)
    assert load_array(2).shape == ()
    for y in (sp.csr_array(np.ones((3, 1))), ["a"], np.ones(2, complex), "nothing.npy", [[1], [2, 3]]):
        with pytest.raises((InputTypeError, InputError), match="target"):
            load_array(y, "target")


class TestFinite:
    @given(
        row=st.integers(0, 22),
        column=st.integers(0, 6),
        value=st.sampled_from([np.nan, np.inf, -np.inf]),
        dtype=st.sampled_from(["float64", "float32", "float16"]),
    )
    def test_a_bad_number_is_found_at_every_position(self, row, column, value, dtype):
        X = np.ones((23, 7), dtype)
        X[row, column] = value
        word = "NaN" if np.isnan(value) else "infinity"
        for array in (X, sp.csr_array(X)) if dtype != "float16" else (X,):
            with pytest.raises(InputError, match=rf"contains {word}: .* row {row}, column {column} "):
                scan(as_rows(array), "X")
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(checks, "_BLOCK_ROWS", 5)
            tasks = scan_tasks(as_rows(X), "X", digest=False, n_tasks=3)
            with pytest.raises(InputError, match=rf"row {row}, column {column} "):
                SerialExecutor().run(tasks, Progress())

    def test_rows_are_counted_past_empty_ones_and_from_the_first_of_a_block(self):
        X = sp.csr_array(([1.0, np.nan, 2.0], ([1, 4, 6], [0, 2, 1])), shape=(8, 3))
        with pytest.raises(InputError, match="row 4, column 2"):
            scan(as_rows(X), "X")
        with pytest.raises(InputError, match="Input y contains infinity: .* row 12, column 0"):
            check_finite(np.array([1.0, 2.0, np.inf]), "y", first_row=10)

    def test_finite_numbers_pass_also_if_their_sum_overflows(self):
        for block in (
            np.array([[1e308, 1e308], [1e308, 1.0]]),
            np.array([[3e38, 3e38]], np.float32),
            sp.csr_array([[1e308, 1e308]]),
            np.ones((2, 2), int),
            np.ones((2, 2), bool),
            sp.csr_array((2, 2)),
        ):
            check_finite(block, "X")

    @given(n=st.integers(1, 60), n_tasks=st.integers(1, 12), height=st.integers(1, 9))
    def test_every_row_is_scanned_by_one_task(self, n, n_tasks, height):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(checks, "_BLOCK_ROWS", height)
            tasks = scan_tasks(as_rows(np.zeros((n, 2))), "X", digest=True, n_tasks=n_tasks)
        assert 1 <= len(tasks) <= n_tasks and len({t.key for t in tasks}) == len(tasks)
        rows = [r for t in tasks for a, b in itertools.pairwise(t.arguments[2]) for r in range(a, b)]
        assert rows == list(range(n))

    def test_blocks_that_are_scanned_stay_small(self):
        assert checks._blocks(as_rows(np.broadcast_to(0.0, (5, 2**21))))[:3] == [0, 2, 4]
        assert checks._blocks(as_rows(np.broadcast_to(0.0, (3, 2**24)))) == [0, 1, 2, 3]

    def test_a_checksum_of_an_array_is_of_its_numbers(self):
        X = numbers()
        assert digest_of(X) == digest_of(np.asfortranarray(X)) == digest_of(X.astype(">f8"))
        X[3, 3] += 1
        assert digest_of(X) != digest_of(numbers())
