"""Damaged sparse matrices are refused before SciPy follows their indices out of memory."""

import shutil

import dask.array as da
import numpy as np
import pytest
import scipy.sparse as sp

import dkrr
from dkrr.errors import InputError, StoreError
from dkrr.kernels import RandomWalk
from dkrr.rows import as_rows, write_rows
from dkrr.sparse import check_structure
from dkrr.tiles import ChunkedArray
from dkrr.tiles.descriptions import read_group
from tests.stores import edit, place, put

FAR = 2**30


def matrix(kind="csr"):
    return sp.random_array((60, 20), density=0.3, format=kind, rng=np.random.default_rng(0))


def with_entry(kind, part, at, value):
    damaged = matrix(kind)
    getattr(damaged, part)[at] = value
    return damaged


def coo(axis, value):
    damaged = matrix("coo")
    damaged.coords[axis][7] = value
    return damaged


def lil(places, values):
    damaged = matrix("lil")
    damaged.rows[3], damaged.data[3] = places, values
    return damaged


def block_sparse():
    damaged = matrix().tobsr(blocksize=(2, 2))
    damaged.indices[7] = 10  # of 10 blocks
    return damaged


def replaced(damaged, **parts):
    for part, values in parts.items():
        setattr(damaged, part, values)
    return damaged


def diagonals(**parts):
    return replaced(sp.dia_array((np.ones((2, 20)), [0, 1]), shape=(60, 20)), **parts)


def unsigned():
    damaged = with_entry("csr", "indptr", 5, 0)
    return replaced(damaged, indptr=damaged.indptr.astype(np.uint32))


DAMAGED = {
    "index far away": lambda: with_entry("csr", "indices", 7, FAR),
    "index of the next column": lambda: with_entry("csr", "indices", 7, 20),
    "negative index": lambda: with_entry("csr", "indices", 7, -1),
    "pointer far away": lambda: with_entry("csr", "indptr", 5, FAR),
    "falling pointer": lambda: with_entry("csr", "indptr", 5, 0),
    "negative pointer": lambda: with_entry("csr", "indptr", 5, -FAR),
    "last pointer": lambda: with_entry("csr", "indptr", 60, FAR),
    "first pointer": lambda: with_entry("csr", "indptr", 0, 1),
    "too few pointers": lambda: replaced(matrix(), indptr=matrix().indptr[:-1]),
    "too few values": lambda: replaced(matrix(), data=matrix().data[:-1]),
    "too few indices": lambda: replaced(matrix(), indices=matrix().indices[:-1]),
    "indices that are not integers": lambda: replaced(matrix(), indices=matrix().indices.astype(float)),
    "csc index": lambda: with_entry("csc", "indices", 7, FAR),
    "csc pointer": lambda: with_entry("csc", "indptr", 7, FAR),
    "bsr index": block_sparse,
    "coo row": lambda: coo(0, FAR),
    "coo column": lambda: coo(1, -1),
    "lil column": lambda: lil([FAR], [1.0]),
    "lil lengths": lambda: lil([1, 2], [1.0]),
    "lil index that is not an integer": lambda: lil([1.5], [1.0]),
    "lil index of 70 bits": lambda: lil([2**70], [1.0]),
    "lil with too few lists": lambda: replaced(matrix("lil"), rows=matrix("lil").rows[:-1]),
    "lil with too few lists of values": lambda: replaced(matrix("lil"), data=matrix("lil").data[:-1]),
    "falling unsigned pointer": unsigned,
    "dia with too few diagonals": lambda: diagonals(data=np.ones((1, 20))),
    "dia with too many diagonals": lambda: diagonals(data=np.ones((3, 20))),
    "dia with values in one row": lambda: diagonals(data=np.ones(2)),
    "dia with offsets that are not integers": lambda: diagonals(offsets=np.array([0.0, 1.0])),
    "dia with a diagonal twice": lambda: diagonals(offsets=np.array([1, 1])),
    "dia with offsets in a table": lambda: diagonals(offsets=np.array([[0], [1]])),
}


@pytest.mark.parametrize("kind", DAMAGED)
def test_damaged_structure_is_refused(kind):
    with pytest.raises(InputError, match="X is a damaged sparse matrix"):
        check_structure(DAMAGED[kind]())


def test_whole_matrices_vectors_and_spare_room_pass():
    for kind in ("csr", "csc", "bsr", "coo", "lil", "dok", "dia"):
        for make in (sp.csr_array, sp.csr_matrix):
            for X in (matrix(), sp.csr_array((3, 4)), sp.csr_array((0, 4)), sp.csr_array(np.eye(2))):
                check_structure(make(X).asformat(kind))
    check_structure(sp.coo_array(np.array([0.0, 2.0])))
    check_structure(sp.csr_array(np.array([0.0, 2.0])))
    X = matrix()
    # SciPy allows arrays longer than the pointers use; the rest does not count.
    check_structure(sp.csr_array((np.append(X.data, 1.0), np.append(X.indices, FAR), X.indptr), shape=X.shape))


ENTRANCES = {
    "fit": lambda X, y, model: dkrr.KernelRidge(kernel="linear").fit(X, y),
    "fit to labels": lambda X, y, model: dkrr.KernelLogisticRegression(kernel="rbf").fit(X, y > 0),
    "predict": lambda X, y, model: model.predict(X),
    "plan": lambda X, y, model: dkrr.plan(X, y),
    "gram": lambda X, y, model: dkrr.gram(X).compute(),
    "kernel": lambda X, y, model: dkrr.kernels.RBF(1.0)(X),
    "rows": lambda X, y, model: as_rows(X),
}


@pytest.mark.parametrize("entrance", ENTRANCES)
def test_every_entrance_refuses_a_damaged_structure(entrance, tmp_path):
    y = np.arange(60.0) - 30
    model = dkrr.KernelRidge(kernel="linear").fit(matrix(), y)
    for kind in ("index far away", "falling pointer", "csc index", "coo row", "dia with too few diagonals"):
        with pytest.raises(InputError, match="damaged sparse matrix"):
            ENTRANCES[entrance](DAMAGED[kind](), y, model)
    sp.save_npz(tmp_path / "x.npz", DAMAGED["csc index"]())
    with pytest.raises(InputError, match="damaged sparse matrix"):
        as_rows(str(tmp_path / "x.npz"))


@pytest.mark.parametrize("says_so", [True, False])
def test_damaged_blocks_of_dask_are_refused_when_they_are_computed(says_so):
    whole = matrix().toarray()
    model = dkrr.KernelRidge(kernel="linear").fit(whole, np.ones(60))
    meta = sp.csr_array((0, 0)) if says_so else np.empty((0, 0))

    def lazy(block):
        return da.map_blocks(lambda _: block, da.zeros((60, 20), chunks=(60, 20)), dtype=float, meta=meta)

    assert np.allclose(model.predict(lazy(matrix())).compute(), model.predict(whole))
    for kind in ("index far away", "falling pointer", "csc index"):
        for use in (
            lambda X: model.predict(X).compute(),
            lambda X: dkrr.gram(X).compute(),
            lambda X: dkrr.KernelRidge(kernel="rbf").fit(X, np.ones(60)),
        ):
            with pytest.raises(InputError, match="damaged sparse matrix"):
                use(lazy(DAMAGED[kind]()))


def test_damaged_rows_in_a_store_are_refused_although_their_checksums_match(tmp_path):
    for k, (part, where, value) in enumerate(
        [("indices", 7, FAR), ("indices", 7, -1), ("indptr", 5, FAR), ("indptr", 5, -1), ("indptr", 60, FAR)]
    ):
        rows = write_rows(as_rows(matrix()), place(tmp_path / f"rows-{k}"))
        put(ChunkedArray.open(f"{rows.url}/{part}", f"test/{part}"), where, value)
        with pytest.raises(StoreError, match="damaged"):
            list(rows.blocks(0, 60, 4))


def test_one_bit_of_a_sparse_model_is_refused_and_of_a_run_copied_again(tmp_path):
    y = np.arange(60.0)
    store = str(tmp_path / "run.zarr")
    fit = dkrr.KernelRidge(kernel="rbf", store=store, tile=16, form="dual").fit
    model = fit(matrix(), y)
    expected = model.predict(matrix())
    dkrr.save(model, tmp_path / "m.zarr")
    for folder in (tmp_path / "m.zarr", tmp_path / "run.zarr"):
        store = read_group(str(folder))["id"]
        stored = ChunkedArray.open(str(folder / "rows" / "indices"), f"{store}/rows/indices")
        put(stored, 3, int(stored.load()[3]) ^ 2**30)  # one bit
    with pytest.raises(StoreError, match="damaged"):
        dkrr.load(tmp_path / "m.zarr")
    shutil.rmtree(tmp_path / "run.zarr" / "system-0")  # the run resumes from its copy of X
    found = fit(matrix(), y)
    assert any("copied again" in text for text in found.solve_result_.messages)
    assert np.allclose(found.predict(matrix()), expected)


def test_a_run_that_names_a_copy_of_its_rows_elsewhere_is_refused(tmp_path):
    y = np.arange(60.0)
    fit = dkrr.KernelRidge(kernel="rbf", store=str(tmp_path / "run.zarr"), tile=16, form="dual").fit
    fit(matrix(), y)
    for name in ("../elsewhere", {"name": "../elsewhere"}, {"name": "rows/../../x"}):
        edit(tmp_path / "run.zarr", rows=name)
        with pytest.raises(StoreError, match="copy of X"):
            fit(matrix(), y)


@pytest.mark.parametrize(("part", "value"), [("indices", 2 * FAR - 1), ("indptr", FAR), ("data", 2.0**30)])
def test_a_damaged_model_of_graphs_is_refused(tmp_path, part, value):
    ring = [(0, 1), (1, 2), (2, 3), (3, 0)]
    graphs = [(4, ring[: k + 1], None) for k in range(4)]
    model = dkrr.KernelRidge(kernel=RandomWalk(0.1)).fit(graphs, np.arange(4.0))
    dkrr.save(model, tmp_path / "m.zarr")
    store = read_group(str(tmp_path / "m.zarr"))["id"]
    put(ChunkedArray.open(str(tmp_path / "m.zarr" / "rows" / part), f"{store}/rows/{part}"), 1, value)
    with pytest.raises((StoreError, InputError), match=r"damaged|not an encoded graph"):
        dkrr.load(tmp_path / "m.zarr").predict(graphs)
