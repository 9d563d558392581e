"""Damaged sparse matrices are refused before SciPy follows their indices out of memory."""

import shutil
from operator import setitem

import dask.array as da
import numpy as np
import pytest
import scipy.sparse as sp
from numpy.testing import assert_allclose

import dkrr
from dkrr.errors import InputError, StoreError
from dkrr.kernels import RandomWalk
from dkrr.rows import as_rows, write_rows
from dkrr.sparse import check_structure
from dkrr.tiles import ChunkedArray
from dkrr.tiles.descriptions import read_group
from tests.stores import edit, place, put

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
    "lil index of 70 bits": ("lil", lambda X: setitem(X.rows, 3, [2**70] * len(X.data[3]))),
    "lil with too few lists": ("lil", lambda X: setattr(X, "rows", X.rows[:-1])),
    "lil with too few lists of values": ("lil", lambda X: setattr(X, "data", X.data[:-1])),
    "dia with too few diagonals": ("dia", lambda X: setattr(X, "data", np.ones((1, 20)))),
    "dia with too many diagonals": ("dia", lambda X: setattr(X, "data", np.ones((3, 20)))),
    "dia with values in one row": ("dia", lambda X: setattr(X, "data", np.ones(2))),
    "dia with offsets that are not integers": ("dia", lambda X: setattr(X, "offsets", np.array([0.0, 1.0]))),
    "dia with a diagonal twice": ("dia", lambda X: setattr(X, "offsets", np.array([1, 1]))),
    "dia with offsets in a table": ("dia", lambda X: setattr(X, "offsets", np.array([[0], [1]]))),
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
    for make in (sp.csr_array, sp.csr_matrix):
        for X in (matrix(), sp.csr_array((3, 4)), sp.csr_array((0, 4)), sp.csr_array(np.eye(2))):
            check_structure(make(X).asformat(kind))
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
    "kernel": lambda X, model: dkrr.kernels.RBF(1.0)(X),
    "rows": lambda X, model: as_rows(X),
}


@pytest.mark.parametrize("entrance", ENTRANCES)
def test_every_entrance_refuses_a_damaged_structure(entrance):
    model = dkrr.KernelRidge(kernel="linear").fit(matrix(), Y)
    for what in ("index far away", "falling pointer", "csc index", "coo row", "dia with too few diagonals"):
        with pytest.raises(InputError, match="damaged sparse matrix"):
            ENTRANCES[entrance](damaged(what), model)


def test_a_damaged_structure_in_a_file_is_refused(tmp_path):
    sp.save_npz(tmp_path / "x.npz", damaged("csc index"))
    with pytest.raises(InputError, match="damaged sparse matrix"):
        as_rows(str(tmp_path / "x.npz"))


@pytest.mark.parametrize("meta", [sp.csr_array((0, 0)), np.empty((0, 0))], ids=["said", "not said"])
def test_damaged_blocks_of_dask_are_refused_when_they_are_computed(meta):
    def lazy(block):
        return da.map_blocks(lambda _: block, da.zeros((60, 20), chunks=(60, 20)), dtype=float, meta=meta)

    model = dkrr.KernelRidge(kernel="linear").fit(matrix().toarray(), Y)
    assert_allclose(model.predict(lazy(matrix())), model.predict(matrix().toarray()))
    for what in ("index far away", "falling pointer", "csc index"):
        for use in (
            lambda X: model.predict(X).compute(),
            lambda X: dkrr.gram(X).compute(),
            lambda X: dkrr.KernelRidge(kernel="rbf").fit(X, Y),
        ):
            with pytest.raises(InputError, match="damaged sparse matrix"):
                use(lazy(damaged(what)))


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
    assert_allclose(found.predict(matrix()), model.predict(matrix()))


@pytest.mark.parametrize("name", ["../elsewhere", {"name": "../elsewhere"}, {"name": "rows/../../x"}], ids=str)
def test_a_run_that_names_a_copy_of_its_rows_elsewhere_is_refused(tmp_path, name):
    run_of(tmp_path / "run.zarr")(matrix(), Y)
    edit(tmp_path / "run.zarr", rows=name)
    with pytest.raises(StoreError, match="copy of X"):
        run_of(tmp_path / "run.zarr")(matrix(), Y)


@pytest.mark.parametrize(("part", "value"), [("indices", 2 * FAR - 1), ("indptr", FAR), ("data", 2.0**30)])
def test_a_damaged_model_of_graphs_is_refused(tmp_path, part, value):
    ring = [(0, 1), (1, 2), (2, 3), (3, 0)]
    graphs = [(4, ring[: k + 1], None) for k in range(4)]
    dkrr.save(dkrr.KernelRidge(kernel=RandomWalk(0.1)).fit(graphs, np.arange(4.0)), tmp_path / "m.zarr")
    put(stored(tmp_path / "m.zarr", part), 1, value)
    with pytest.raises((StoreError, InputError), match=r"damaged|not an encoded graph"):
        dkrr.load(tmp_path / "m.zarr").predict(graphs)
