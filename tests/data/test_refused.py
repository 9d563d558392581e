"""Rows that cannot be used are refused by name: types, shapes, paths, NaN and infinity, damaged sparse matrices."""

import itertools
import shutil
from decimal import Decimal
from operator import setitem

import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from hypothesis import example, given
from hypothesis import strategies as st
from numpy.testing import assert_array_equal
from sklearn.preprocessing import FunctionTransformer

import dkrr
from dkrr import KernelLogisticRegression, KernelRidge
from dkrr.cluster import Progress, SerialExecutor
from dkrr.data import as_rows, load_array, load_labels, open_path, scan, scan_tasks, write_rows
from dkrr.data import rows as checks
from dkrr.data.rows import check_finite, digest_of
from dkrr.errors import InputError, InputTypeError, NotFiniteError, StoreError
from dkrr.kernels import RBF, Columns, Linear, RandomWalk
from dkrr.sparse import check_structure
from dkrr.store import ChunkedArray
from dkrr.store.format import read_group
from tests.inputs import numbers, table
from tests.oracles import assert_close
from tests.stores import place, put


@pytest.mark.parametrize(
    ("X", "error", "match"),
    [
        (np.array([[Decimal(1), 2]]), InputTypeError, "has dtype object; expected numbers"),
        (np.zeros((2, 2), "M8[s]"), InputTypeError, "expected numbers: convert it"),
        (da.ones((2, 2), dtype="complex64"), InputTypeError, "complex data not supported"),
        (da.ones((2, 3, 4)), InputError, r"Z.* 3 dimensions, shape \(2, 3, 4\)"),
        (np.float64(3.0), InputError, "0 dimensions"),
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


PARTS = [
    ".", "..", "/", "//", "::", ":", "x.npy", "x.npz", "x.zarr", "zarr.json", "://", "file://", "memory://",
    "nowhere://", "s3://", "x.csv", ".parquet", "http://", "*", "~", "%00", "é",
    "", " ", "\n", "\0", "\ud800", "a" * 300,
]  # fmt: skip
TEXTS = st.lists(st.sampled_from(PARTS) | st.text(max_size=6), max_size=6).map("".join)


@example(text="a\ud800", reader=as_rows)
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
    case = table("zarr", tmp_path, numbers(dtype="float32"))
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


LARGE = 2**60 + 1


@pytest.mark.parametrize(
    "values",
    [
        [[0.5], [LARGE]],
        [[0], [2**70]],
        np.array([[0], [2**70]], object),
        np.array([[0], [LARGE]], np.uint64),
        np.array([[0], [-LARGE]]),
        sp.coo_array(np.array([[0], [LARGE]])),
        np.array([[0], [np.longdouble(1) / 3]]),
        pd.DataFrame({"a": pd.array([None, LARGE], "Int64")}),
        pd.DataFrame({"a": pd.array([None, LARGE], "int64[pyarrow]")}),
        pd.DataFrame({"a": [0, 2**70]}),
    ],
    ids=lambda values: f"{type(values).__name__}-{getattr(values, 'dtype', '')}",
)
def test_numbers_that_float64_does_not_hold_are_refused_however_numpy_would_convert_them(values):
    with pytest.raises(InputError, match=r"X has the (whole )?number .* in column (0|'a'), row 1 .*expected"):
        KernelRidge().fit(values, [1.0, 2.0])


def test_columns_of_different_types_are_not_rounded_where_they_become_one_array():
    frame = pd.DataFrame({"id": [LARGE, 0, 0], "x": [0.5, 1.0, 2.0]})
    y = np.arange(3.0)
    for use in (
        lambda: KernelRidge().fit(frame, y),
        lambda: KernelRidge().fit(dd.from_pandas(frame, npartitions=2), y),
        lambda: KernelRidge(kernel=Columns(RBF(), ["id", "x"]) + Columns(Linear(), ["x"])).fit(frame, y),
        lambda: KernelRidge().fit(y[:, None], frame),
        lambda: KernelRidge().fit(y[:, None], dd.from_pandas(frame, npartitions=2)),
        lambda: dkrr.gram(frame),
    ):
        with pytest.raises(InputError, match=f"the whole number {LARGE} in column 'id', row 0 "):
            use()


def test_weights_and_targets_of_a_score_that_float64_does_not_hold_are_refused():
    X, y, large = np.eye(3), np.arange(3.0), [1, LARGE, 1]
    model = KernelRidge().fit(X, y)
    for use, name in (
        (lambda: KernelRidge().fit(X, y, sample_weight=large), "sample_weight"),
        (lambda: model.score(X, large), "y"),
        (lambda: model.score(X, y, sample_weight=large), "sample_weight"),
        (lambda: RBF()(np.array([large])), "X"),
    ):
        with pytest.raises(InputError, match=f"{name} has the whole number {LARGE} in "):
            use()
    wide = FunctionTransformer(lambda X: X.astype(int) + LARGE)
    with pytest.raises(InputError, match=f"X after FunctionTransformer has the whole number {LARGE + 1} in column 0"):
        KernelRidge(transformer=wide).fit(X, y)


def test_labels_are_no_numbers_and_stay_exact():
    X, labels = np.eye(4), [LARGE, LARGE + 1] * 2
    for y in (labels, np.array(labels), np.array(labels, object), pd.Series(labels, dtype="Int64")):
        assert KernelLogisticRegression().fit(X, y).classes_.tolist() == [LARGE, LARGE + 1]
    with pytest.raises(InputError, match=f"y has the whole number {LARGE} in row 0"):
        KernelLogisticRegression().fit(X, [*labels[:3], 0.0])  # NumPy would make one class of both


def test_finite_numbers_pass_also_if_their_sum_overflows():
    huge = np.array([[1e308, 1e308], [1e308, 1.0]])
    for block in (huge, huge.clip(max=3e38).astype(np.float32), sp.csr_array(huge), np.ones((2, 2), int)):
        check_finite(block, "X")


def test_a_checksum_of_an_array_is_of_its_numbers():
    X = numbers()
    assert digest_of(X) == digest_of(np.asfortranarray(X)) == digest_of(X.astype(">f8"))
    X[3, 3] += 1
    assert digest_of(X) != digest_of(numbers())


# Damaged sparse matrices are refused before SciPy follows their indices out of memory.

FAR = 2**30
Y = np.arange(60.0) - 30


def matrix(kind="csr"):
    if kind == "dia":
        return sp.dia_array((np.ones((2, 20)), [0, 1]), shape=(60, 20))
    X = sp.random_array((60, 20), density=0.3, format="csr", rng=np.random.default_rng(0))
    return X.tobsr(blocksize=(2, 2)) if kind == "bsr" else X.asformat(kind)


def fall_unsigned(X):
    X.indptr[5] = 0
    X.indptr = X.indptr.astype(np.uint32)


DAMAGE = {
    "index far away": ("csr", lambda X: np.put(X.indices, 7, FAR)),
    "index of the next column": ("csr", lambda X: np.put(X.indices, 7, 20)),
    "negative index": ("csr", lambda X: np.put(X.indices, 7, -1)),
    "falling pointer": ("csr", lambda X: np.put(X.indptr, 5, 0)),
    "falling unsigned pointer": ("csr", fall_unsigned),
    "last pointer": ("csr", lambda X: np.put(X.indptr, 60, FAR)),
    "first pointer": ("csr", lambda X: np.put(X.indptr, 0, 1)),
    "too few pointers": ("csr", lambda X: setattr(X, "indptr", X.indptr[:-1])),
    "too few values": ("csr", lambda X: setattr(X, "data", X.data[:-1])),
    "too few indices": ("csr", lambda X: setattr(X, "indices", X.indices[:-1])),
    "indices that are not integers": ("csr", lambda X: setattr(X, "indices", X.indices.astype(float))),
    "csc index": ("csc", lambda X: np.put(X.indices, 7, 60)),
    "csc pointer": ("csc", lambda X: np.put(X.indptr, 7, FAR)),
    "bsr index": ("bsr", lambda X: np.put(X.indices, 7, 10)),  # of 10 blocks
    "coo row": ("coo", lambda X: np.put(X.coords[0], 7, FAR)),
    "coo column": ("coo", lambda X: np.put(X.coords[1], 7, -1)),
    "lil column": ("lil", lambda X: setitem(X.rows, 3, [FAR] * len(X.data[3]))),
    "lil lengths": ("lil", lambda X: setitem(X.data, 3, [1.0])),
    "lil index that is not an integer": ("lil", lambda X: setitem(X.rows, 3, [1.5] * len(X.data[3]))),
    "lil with too few lists": ("lil", lambda X: setattr(X, "rows", X.rows[:-1])),
    "lil with too few lists of values": ("lil", lambda X: setattr(X, "data", X.data[:-1])),
    "dia with too few diagonals": ("dia", lambda X: setattr(X, "data", np.ones((1, 20)))),
    "dia with too many diagonals": ("dia", lambda X: setattr(X, "data", np.ones((3, 20)))),
    "dia with values in one row": ("dia", lambda X: setattr(X, "data", np.ones(2))),
    "dia with offsets that are not integers": ("dia", lambda X: setattr(X, "offsets", np.array([0.0, 1.0]))),
    "dia with a diagonal twice": ("dia", lambda X: setattr(X, "offsets", np.array([1, 1]))),
}


def damaged(what):
    kind, change = DAMAGE[what]
    X = matrix(kind)
    change(X)
    return X


@pytest.mark.parametrize("what", DAMAGE)
def test_damaged_structure_is_refused(what):
    with pytest.raises(InputError, match="X is a damaged sparse matrix"):
        check_structure(damaged(what))


@pytest.mark.parametrize("kind", ["csr", "csc", "bsr", "coo", "lil", "dok", "dia"])
def test_whole_matrices_vectors_and_spare_room_pass(kind):
    for X in (matrix(), sp.csr_array((3, 4)), sp.csr_matrix((0, 4)), sp.csr_matrix(np.eye(2))):
        check_structure(X.asformat(kind))
    if kind in ("csr", "coo"):
        check_structure(sp.coo_array(np.array([0.0, 2.0])).asformat(kind))
    X = matrix()
    # SciPy allows arrays longer than the pointers use; the rest does not count.
    check_structure(sp.csr_array((np.append(X.data, 1.0), np.append(X.indices, FAR), X.indptr), shape=X.shape))


ENTRANCES = {
    "fit": lambda X, model: dkrr.KernelRidge(kernel="linear").fit(X, Y),
    "fit to labels": lambda X, model: dkrr.KernelLogisticRegression(kernel="rbf").fit(X, Y > 0),
    "predict": lambda X, model: model.predict(X),
    "plan": lambda X, model: dkrr.plan(X, Y),
    "gram": lambda X, model: dkrr.gram(X).compute(),
    "kernel": lambda X, model: dkrr.kernels.RBF(gamma=1.0)(X),
    "rows": lambda X, model: as_rows(X),
}


@pytest.mark.parametrize("entrance", ENTRANCES)
def test_every_entrance_refuses_a_damaged_structure(entrance):
    model = dkrr.KernelRidge(kernel="linear").fit(matrix(), Y)
    for what in ("index far away", "falling pointer", "csc index", "coo row", "dia with too few diagonals"):
        with pytest.raises(InputError, match="damaged sparse matrix"):
            ENTRANCES[entrance](damaged(what), model)


@pytest.mark.parametrize("meta", [sp.csr_array((0, 0)), np.empty((0, 0))], ids=["said", "not said"])
def test_damaged_blocks_of_dask_are_refused_when_they_are_computed(meta):
    def lazy(block):
        return da.map_blocks(lambda _: block, da.zeros((60, 20), chunks=(60, 20)), dtype=float, meta=meta)

    model = dkrr.KernelRidge(kernel="linear").fit(matrix().toarray(), Y)
    assert_close(model.predict(lazy(matrix())), model.predict(matrix().toarray()), 1e-10)
    for what in ("index far away", "falling pointer", "csc index"):
        for use in (model.predict, dkrr.gram, lambda X: dkrr.KernelRidge(kernel="rbf").fit(X, Y)):
            with pytest.raises(InputError, match="damaged sparse matrix"):
                da.compute(use(lazy(damaged(what))))


@pytest.mark.parametrize(
    ("part", "where", "value"),
    [("indices", 7, FAR), ("indices", 7, -1), ("indptr", 5, FAR), ("indptr", 5, -1), ("indptr", 60, FAR)],
)
def test_damaged_rows_in_a_store_are_refused_although_their_checksums_match(tmp_path, part, where, value):
    rows = write_rows(as_rows(matrix()), place(tmp_path / "rows"))
    put(ChunkedArray.open(f"{rows.url}/{part}", f"test/{part}"), where, value)
    with pytest.raises(StoreError, match="damaged"):
        list(rows.blocks(0, 60, 4))


def stored(folder, part):
    """Array of the rows that a run or model keeps."""
    return ChunkedArray.open(f"{folder}/rows/{part}", f"{read_group(str(folder))['id']}/rows/{part}")


def run_of(folder):
    return dkrr.KernelRidge(kernel="rbf", store=str(folder), tile=16, form="dual").fit


def test_one_bit_of_a_sparse_model_is_refused_and_of_a_run_copied_again(tmp_path):
    model = run_of(tmp_path / "run.zarr")(matrix(), Y)
    dkrr.save(model, tmp_path / "m.zarr")
    for folder in (tmp_path / "m.zarr", tmp_path / "run.zarr"):
        indices = stored(folder, "indices")
        put(indices, 3, int(indices.load()[3]) ^ 2**30)  # one bit
    with pytest.raises(StoreError, match="damaged"):
        dkrr.load(tmp_path / "m.zarr")
    shutil.rmtree(tmp_path / "run.zarr" / "system-0")  # the run resumes from its copy of X
    found = run_of(tmp_path / "run.zarr")(matrix(), Y)
    assert any("copied again" in text for text in found.solve_result_.messages)
    assert_close(found.predict(matrix()), model.predict(matrix()), 1e-10)


@pytest.mark.parametrize(("part", "value"), [("indices", 2 * FAR - 1), ("indptr", FAR), ("data", 2.0**30)])
def test_a_damaged_model_of_graphs_is_refused(tmp_path, part, value):
    ring = [(0, 1), (1, 2), (2, 3), (3, 0)]
    graphs = [(4, ring[: k + 1], None) for k in range(4)]
    dkrr.save(dkrr.KernelRidge(kernel=RandomWalk(0.1)).fit(graphs, np.arange(4.0)), tmp_path / "m.zarr")
    put(stored(tmp_path / "m.zarr", part), 1, value)
    with pytest.raises((StoreError, InputError), match=r"damaged|not an encoded graph"):
        dkrr.load(tmp_path / "m.zarr").predict(graphs)


class OfAnotherLibrary:
    """Rows of a library whose arrays hide a mask until they are read, as those of netCDF4 do."""

    def __init__(self, rows):
        self.rows, self.shape, self.dtype, self.ndim = rows, rows.shape, rows.dtype, rows.ndim

    def __len__(self):
        return len(self.rows)

    def __array__(self, dtype=None, copy=None):
        return self.rows


@pytest.mark.parametrize("given", [list, tuple, lambda rows: [list(rows)[:3], list(rows)[3:]], OfAnotherLibrary])
def test_masked_entries_are_refused_in_whatever_holds_them(given):
    X = np.ma.MaskedArray(np.ones((6, 2)) * np.arange(6.0)[:, None], mask=[[0, 0]] * 5 + [[1, 0]])
    model = KernelRidge(kernel="linear").fit(X.data, np.arange(6))
    rows, y = given(X), given(X[:, 0])
    for name, use in (
        ("X", lambda: KernelRidge().fit(rows, np.arange(6))),
        ("X", lambda: KernelRidge(transformer="standardize").fit(rows, np.arange(6))),
        ("X", lambda: model.predict(rows)),
        ("X", lambda: dkrr.gram(rows)),
        ("X", lambda: dkrr.plan(rows)),
        ("y", lambda: KernelRidge().fit(X.data, y)),
        ("y", lambda: dkrr.KernelLogisticRegression().fit(X.data, y)),
        ("y", lambda: model.score(X.data, y)),
        ("sample_weight", lambda: KernelRidge().fit(X.data, np.arange(6), sample_weight=y)),
    ):
        with pytest.raises(InputTypeError, match=f"{name} has masked entries"):
            use()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"kernel": "poly", "fit_intercept": True, "form": "primal"}, "a sum of features is infinite or NaN"),
        ({"kernel": "rbf", "transformer": "standardize"}, "the squares of a column of X exceed the range of float64"),
    ],
)
def test_columns_whose_products_overflow_are_refused(settings, message):
    X = np.random.default_rng(0).random((40, 2))
    X[3, 0], X[5, 0] = 1.7e308, -1.7e308
    with pytest.raises((InputError, NotFiniteError), match=message):
        KernelRidge(**settings).fit(X, np.arange(40.0))
