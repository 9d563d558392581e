"""One table of numbers in every kind of place that dkrr reads from."""

import uuid
from dataclasses import dataclass
from typing import Any

import dask.array as da
import numpy as np
import pytest
import scipy.sparse as sp
import zarr

from dkrr.rows import MemoryRows, as_rows, write_rows
from tests.stores import place

KINDS = [
    "ndarray",
    "fortran",
    "strided",
    "csr",
    "csc",
    "coo",
    "csr matrix",
    "dask",
    "dask of csr",
    "zarr",
    "zarr in a group",
    "zarr path",
    "zarr group path",
    "zarr in memory",
    "npy",
    "npz",
    "sparse npz",
    "memory map",
    "zarr v2",
    "zarr in shards",
    "obstore",
    "parquet",
    "hdf5",
    "xarray of dask",
    "staged",
    "staged csr",
]

SHARED = [
    "zarr",
    "zarr in a group",
    "zarr path",
    "zarr group path",
    "zarr v2",
    "zarr in shards",
    "obstore",
    "npy",
    "staged",
    "staged csr",
]
SPARSE = ["csr", "csc", "coo", "csr matrix", "sparse npz", "staged csr"]


@dataclass(frozen=True)
class Table:
    """An array and the same numbers as a user would hand them in."""

    array: np.ndarray
    handed_in: Any


def numbers(shape=(23, 7), dtype="float64", seed=0):
    """Numbers of which a third are zero, with an empty row and an empty column."""
    rng = np.random.default_rng(seed)
    X = np.where(rng.random(shape) < 0.67, rng.standard_normal(shape) * 100, 0.0)
    X[len(X) // 2] = 0
    if X.ndim == 2 and shape[1] > 2:
        X[:, 1] = 0
    return X.astype(dtype)


def table(kind, folder, X=None):
    """Hand in X (default: `numbers()`) as one of KINDS."""
    X = numbers() if X is None else X
    return Table(X, _MAKERS[kind](X, folder))


def _strided(X, folder):
    wide = np.zeros((2 * X.shape[0], 3 * X.shape[1]), X.dtype)
    wide[::2, ::3] = X
    return wide[::2, ::3]


def _dask(X, folder):
    if X.ndim == 1:
        return da.from_array(X, chunks=5)
    return da.from_array(X, chunks=((5, len(X) - 5), (X.shape[1] - 2, 2)) if min(X.shape) > 5 else -1)


def _dask_of_csr(X, folder):
    return da.from_array(X, chunks=(5, -1)).map_blocks(
        sp.csr_array, dtype=X.dtype, meta=sp.csr_array((0, 0), dtype=X.dtype)
    )


def _zarr(X, folder):
    array = zarr.create_array(
        folder / "x.zarr", shape=X.shape, chunks=tuple(max(1, s // 3) for s in X.shape), dtype=X.dtype
    )
    array[...] = X
    return array


def _zarr_in_group(X, folder):
    array = zarr.create_group(folder / "g.zarr").create_array("a/x", shape=X.shape, chunks=X.shape, dtype=X.dtype)
    array[...] = X
    return array


def _zarr_path(X, folder):
    _zarr(X, folder)
    return str(folder / "x.zarr")


def _zarr_group_path(X, folder):
    _zarr_in_group(X, folder)
    return folder / "g.zarr" / "a" / "x"


def _zarr_in_memory(X, folder):
    array = zarr.create_array(zarr.storage.MemoryStore(), shape=X.shape, chunks=(2, *X.shape[1:]), dtype=X.dtype)
    array[...] = X
    return array


def _npy(X, folder):
    np.save(folder / "x.npy", X)
    return str(folder / "x.npy")


def _npz(X, folder):
    np.savez(folder / "x.npz", y=X.reshape(len(X), -1)[:, 0], X=X)
    return f"{folder}/x.npz::X"


def _sparse_npz(X, folder):
    sp.save_npz(folder / "s.npz", sp.csc_matrix(X))
    return str(folder / "s.npz")


def _memory_map(X, folder):
    np.save(folder / "map.npy", np.concatenate([X, X]))
    return np.load(folder / "map.npy", mmap_mode="r")[len(X) :]


def _zarr_of(X, folder, **layout):
    array = zarr.create_array(folder / "x.zarr", shape=X.shape, dtype=X.dtype, **layout)
    array[...] = X
    return array


def _obstore(X, folder):
    store = pytest.importorskip("obstore.store").LocalStore(str(folder))
    _zarr_of(X, folder, chunks=(5, *X.shape[1:]))
    return zarr.open_array(zarr.storage.ObjectStore(store, read_only=True), path="x.zarr", mode="r")


def _parquet(X, folder):
    pa, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    columns = X.T if X.ndim == 2 else [X]
    parquet.write_table(pa.table({f"x{k}": c for k, c in enumerate(columns)}), folder / "x.parquet", row_group_size=5)
    return str(folder / "x.parquet")


def _hdf5(X, folder):
    with pytest.importorskip("h5py").File(folder / "x.h5", "w") as file:
        file.create_dataset("a/x", data=X, chunks=tuple(max(1, s // 3) for s in X.shape), compression="gzip")
    return f"{folder}/x.h5::a/x"


def _xarray(X, folder):
    xarray = pytest.importorskip("xarray")
    return xarray.DataArray(X, dims=("row", "column")[: X.ndim]).chunk({"row": 5})


_MAKERS = {
    "ndarray": lambda X, folder: X,
    "fortran": lambda X, folder: np.asfortranarray(X),
    "strided": _strided,
    "csr": lambda X, folder: sp.csr_array(X),
    "csc": lambda X, folder: sp.csc_array(X),
    "coo": lambda X, folder: sp.coo_array(X),
    "csr matrix": lambda X, folder: sp.csr_matrix(X),
    "dask": _dask,
    "dask of csr": _dask_of_csr,
    "zarr": _zarr,
    "zarr in a group": _zarr_in_group,
    "zarr path": _zarr_path,
    "zarr group path": _zarr_group_path,
    "zarr in memory": _zarr_in_memory,
    "npy": _npy,
    "memory map": _memory_map,
    "zarr v2": lambda X, folder: _zarr_of(X, folder, chunks=(5, *X.shape[1:]), zarr_format=2),
    "zarr in shards": lambda X, folder: _zarr_of(X, folder, chunks=(2, *X.shape[1:]), shards=(6, *X.shape[1:])),
    "obstore": _obstore,
    "parquet": _parquet,
    "hdf5": _hdf5,
    "xarray of dask": _xarray,
    "npz": _npz,
    "sparse npz": _sparse_npz,
    "staged": lambda X, folder: write_rows(MemoryRows(X), place(f"{folder}/staged-{uuid.uuid4().hex}")),
    "staged csr": lambda X, folder: write_rows(as_rows(sp.csr_array(X)), place(f"{folder}/staged-{uuid.uuid4().hex}")),
}
