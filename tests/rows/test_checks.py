"""NaN and infinity are found where they are, and a checksum means the numbers and not their place."""

import itertools

import dask.array as da
import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

from dkrr.errors import InputError
from dkrr.rows import as_rows, checks, scan, scan_tasks, write_rows
from dkrr.rows.checks import check_finite, combine, digest_of
from dkrr.runtime import Progress, SerialExecutor
from tests.rows.sources import KINDS, SPARSE, numbers, table
from tests.stores import place

VALUES = {"NaN": np.nan, "infinity": np.inf, "-infinity": -np.inf}


@pytest.fixture
def small_blocks(monkeypatch):
    """Blocks of five rows, so that a small table has several."""
    monkeypatch.setattr(checks, "_BLOCK_ROWS", 5)


def digest(rows, n_tasks=1):
    tasks = scan_tasks(rows, "X", digest=True, n_tasks=n_tasks)
    values = SerialExecutor().run(tasks, Progress()).values()
    return combine([values[t.key] for t in tasks])


class TestFinite:
    @pytest.mark.parametrize("kind", KINDS)
    def test_position(self, kind, tmp_path, small_blocks):
        X = numbers()
        X[17, 4] = np.nan
        X[17, 5] = X[20, 0] = np.inf  # later ones
        rows = as_rows(table(kind, tmp_path, X).handed_in)
        match = r"Input X contains NaN: .* row 17, column 4 \(counted from 0\)"
        if kind == "parquet":  # it has names
            match = r"X has missing values \(NaN\) in column 'x4' .*: 1 row, the first is row 17 \(counted from 0\)"
        with pytest.raises(InputError, match=match):
            scan(rows, "X")

    @pytest.mark.parametrize("name", VALUES)
    @pytest.mark.parametrize("dtype", ["float64", "float32", "float16"])
    @given(st.integers(0, 22), st.integers(0, 6))
    @settings(max_examples=15, deadline=None)
    def test_every_position(self, dtype, name, row, column):
        X = np.ones((23, 7), dtype)
        X[row, column] = VALUES[name]
        for array in (X, sp.csr_array(X)) if dtype != "float16" else (X,):
            with pytest.raises(InputError, match=rf"contains {name.lstrip('-')}: .* row {row}, column {column} "):
                scan(as_rows(array), "X")

    def test_sparse_with_empty_rows(self):
        X = sp.csr_array(([1.0, np.nan, 2.0], ([1, 4, 6], [0, 2, 1])), shape=(8, 3))
        with pytest.raises(InputError, match="row 4, column 2"):
            scan(as_rows(X), "X")

    def test_finite_rows_whose_sum_is_not(self):
        check_finite(np.array([[1e308, 1e308], [1e308, 1.0]]), "X")
        check_finite(np.array([[3e38, 3e38]], np.float32), "X")
        check_finite(sp.csr_array([[1e308, 1e308]]), "X")

    def test_whole_numbers_are_finite(self):
        check_finite(np.ones((2, 2), int), "X")
        check_finite(np.ones((2, 2), bool), "X")
        check_finite(sp.csr_array((2, 2)), "X")

    def test_vector(self):
        with pytest.raises(InputError, match="Input y contains infinity: .* row 12, column 0"):
            check_finite(np.array([1.0, 2.0, np.inf]), "y", first_row=10)

    def test_tasks_find_it_too(self, small_blocks):
        X = numbers()
        X[19, 3] = np.inf
        tasks = scan_tasks(as_rows(X), "X", digest=False, n_tasks=3)
        with pytest.raises(InputError, match="row 19, column 3"):
            SerialExecutor().run(tasks, Progress())


class TestTasks:
    @settings(max_examples=60, deadline=None)
    @given(st.integers(1, 60), st.integers(1, 12), st.integers(1, 9))
    def test_every_row_is_in_one_task(self, n, n_tasks, height):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(checks, "_BLOCK_ROWS", height)
            tasks = scan_tasks(as_rows(np.zeros((n, 2))), "X", digest=True, n_tasks=n_tasks)
        assert 1 <= len(tasks) <= n_tasks and len({t.key for t in tasks}) == len(tasks)
        rows = [r for t in tasks for a, b in zip(t.arguments[2], t.arguments[2][1:], strict=False) for r in range(a, b)]
        assert rows == list(range(n))

    def test_blocks_stay_small(self):
        wide = checks._blocks(as_rows(np.broadcast_to(0.0, (100, 2**21))))
        assert max(b - a for a, b in itertools.pairwise(wide)) * 8 * 2**21 <= checks._BLOCK_BYTES
        assert checks._blocks(as_rows(np.broadcast_to(0.0, (3, 2**24)))) == [0, 1, 2, 3]


class TestDigest:
    def test_place_and_chunks_do_not_matter(self, tmp_path, small_blocks):
        expected = digest(as_rows(numbers()))
        for kind in KINDS:
            if kind not in SPARSE and kind != "dask of csr":
                folder = tmp_path / kind.replace(" ", "-")
                folder.mkdir()
                assert digest(as_rows(table(kind, folder).handed_in), n_tasks=3) == expected, kind
        for chunks in ((1, 7), (23, 1), (6, 4)):
            assert digest(as_rows(da.from_array(numbers(), chunks=chunks)), n_tasks=2) == expected

    def test_sparse_place_does_not_matter(self, tmp_path, small_blocks):
        expected = digest(as_rows(sp.csr_array(numbers())))
        for kind in SPARSE:
            folder = tmp_path / kind.replace(" ", "-")
            folder.mkdir()
            assert digest(as_rows(table(kind, folder).handed_in), n_tasks=4) == expected, kind
        other = sp.csr_array(numbers())
        other.indices, other.indptr = other.indices.astype(np.int64), other.indptr.astype(np.int64)
        assert digest(as_rows(other)) == expected

    @settings(max_examples=40, deadline=None)
    @given(st.integers(1, 23), st.integers(0, 22), st.integers(0, 6))
    def test_number_of_tasks_does_not_matter_and_one_value_does(self, n_tasks, row, column):
        X = numbers()
        before = digest(as_rows(X))
        assert digest(as_rows(X), n_tasks) == before
        X[row, column] = np.nextafter(X[row, column], np.inf)
        assert digest(as_rows(X), n_tasks) != before
        assert digest(as_rows(sp.csr_array(X))) != digest(as_rows(sp.csr_array(numbers())))

    def test_order_shape_and_dtype_matter(self):
        X = numbers((24, 6))
        digests = {
            digest(as_rows(A)) for A in (X, X[::-1], X.reshape(12, 12), X.astype(np.float32), X[:, ::-1], X[:-1])
        }
        assert len(digests) == 6

    def test_the_place_of_a_sparse_value_matters(self):
        digests = set()
        for row, column in [(0, 0), (0, 1), (1, 0), (1, 1)]:
            digests.add(digest(as_rows(sp.csr_array(([1.0], ([row], [column])), shape=(2, 2)))))
        assert len(digests) == 4

    def test_staged_copy(self, tmp_path):
        for X in (numbers(), numbers(dtype="float32"), sp.csr_array(numbers())):
            rows = as_rows(X)
            copy = write_rows(rows, place(tmp_path / f"{type(X).__name__}-{rows.dtype}"))
            assert digest(copy) == digest(rows)

    def test_array(self):
        X = numbers()
        assert digest_of(X) == digest_of(np.asfortranarray(X)) == digest_of(X.astype(">f8"))
        X[3, 3] += 1
        assert digest_of(X) != digest_of(numbers())
