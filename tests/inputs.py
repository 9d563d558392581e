"""Every container of rows and targets that dkrr takes: a row of CONTAINERS joins all tests that go through them.

A row that has an `example` is also in the table of docs/how-to/data.md, which `markdown` writes.
"""

import uuid
from collections import namedtuple
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pytest
import scipy.sparse as sp
import zarr

from dkrr.data import as_rows, write_rows
from tests.stores import place


@dataclass(frozen=True)
class Container:
    """A container, and what is promised of it."""

    kind: str
    """Its name in the tests."""
    make: Callable[[np.ndarray, Any], Any]
    """From rows (n, d) or a vector of targets (n,), and a folder."""
    name: str = ""
    """How tests and their messages call it, where it is in the table of the documentation."""
    example: str = ""
    """How it is written, in Python or as a path; "" if it is not in the table of the documentation."""
    in_memory: bool = False
    """Whether its rows are in memory already, and predictions an ndarray; otherwise they are read in blocks."""
    is_lazy: bool = True
    """Whether predictions are a lazy Dask array."""
    is_path: bool = False
    """Whether it is a path, which the command line takes."""
    is_target: bool = True
    """Whether targets may be given so."""
    is_shared: bool = False
    """Whether other processes read the same rows, so that only a name travels."""
    is_sparse: bool = False
    """Whether blocks are CSR, and empty entries take no memory."""
    keeps_dtype: bool = True
    """Whether float32 stays float32."""


def columns_of(X):
    return {"y": X} if X.ndim == 1 else {f"x{k}": column for k, column in enumerate(X.T)}


def strided(X, folder):
    wide = np.zeros((2 * X.shape[0], 3 * X.shape[1]), X.dtype)
    wide[::2, ::3] = X
    return wide[::2, ::3]


def pandas(X, folder):
    return pytest.importorskip("pandas").DataFrame(columns_of(X)).squeeze(axis=1)


def polars(X, folder):
    return pytest.importorskip("polars").DataFrame(columns_of(X))


def arrow(X, folder):
    return pytest.importorskip("pyarrow").table(columns_of(X))


def xarray_of_dask(X, folder):
    return pytest.importorskip("xarray").DataArray(X, dims=("row", "column")[: X.ndim]).chunk({"row": 5})


def dask_array(X, folder):
    is_wide = X.ndim == 2 and min(X.shape) > 5
    return da.from_array(X, chunks=((5, len(X) - 5), (X.shape[1] - 2, 2)) if is_wide else 5 if X.ndim == 1 else -1)


def dask_of_csr(X, folder):
    meta = sp.csr_array((0, 0), dtype=X.dtype)
    return da.from_array(X, chunks=(5, -1)).map_blocks(sp.csr_array, dtype=X.dtype, meta=meta)


def dask_frame(X, folder):
    return pytest.importorskip("dask.dataframe").from_pandas(pandas(X, folder), npartitions=3)


def hidden_length(X, folder):
    frame = dask_frame(X, folder)
    return frame[frame == frame] if X.ndim == 1 else frame[frame["x0"] == frame["x0"]]


def memory_map(X, folder):
    np.save(folder / "map.npy", np.concatenate([X, X]))
    return np.load(folder / "map.npy", mmap_mode="r")[len(X) :]


def zarr_array(X, store, **layout):
    """An array in a store or at a path, or in a folder of a test, with its chunks of zeros."""
    store, layout = store / "x.zarr" if isinstance(store, Path) else store, layout or {"chunks": thirds(X)}
    array = zarr.create_array(store, shape=X.shape, dtype=X.dtype, config={"write_empty_chunks": True}, **layout)
    array[...] = X
    return array


def thirds(X):
    return tuple(max(1, s // 3) for s in X.shape)


def zarr_in_shards(X, folder):
    return zarr_array(X, folder, chunks=(2, *X.shape[1:]), shards=(6, *X.shape[1:]))


def zarr_in_a_group(X, folder):
    return zarr_array(X, zarr.create_group(folder / "g.zarr").store, name="a/x", chunks=X.shape)


def zarr_in_obstore(X, folder):
    store = pytest.importorskip("obstore.store").LocalStore(str(folder))
    zarr_array(X, folder, chunks=(5, *X.shape[1:]))
    return zarr.open_array(zarr.storage.ObjectStore(store, read_only=True), path="x.zarr", mode="r")


def group_path(X, folder):
    zarr_in_a_group(X, folder)
    return folder / "g.zarr" / "a" / "x"


def file(name, write, member=""):
    """What writes rows to a file in a folder, and returns its path."""
    return lambda X, folder: (write(f"{folder}/{name}", X), f"{folder}/{name}{member}")[1]


def write_parquet(path, X):
    pytest.importorskip("pyarrow.parquet").write_table(arrow(X, ""), path, row_group_size=5)


def write_parquet_folder(path, X):
    Path(path).mkdir()
    for k in range(0, len(X), 5):
        write_parquet(f"{path}/{k:03}.parquet", X[k : k + 5])


def write_csv(path, X):
    rows = [",".join(map(repr, map(float, np.atleast_1d(row)))) for row in X]
    Path(path).write_text("\n".join([",".join(columns_of(X)), *rows]))


def write_feather(path, X):
    pytest.importorskip("pyarrow.feather").write_feather(arrow(X, ""), path)


def write_hdf5(path, X):
    with pytest.importorskip("h5py").File(path, "w") as file:
        file.create_dataset("a/x", data=X, chunks=thirds(X), compression="gzip")


def staged(X, folder):
    return write_rows(as_rows(X), place(f"{folder}/staged-{uuid.uuid4().hex}"))


zarr_path = file("x.zarr", lambda path, X: zarr_array(X, path))
npy = file("x.npy", lambda path, X: np.save(path, np.asfortranarray(X)))
npz = file("x.npz", lambda path, X: np.savez(path, y=X.reshape(len(X), -1)[:, 0], X=X), "::X")
parquet, parquet_folder = file("x.parquet", write_parquet), file("parts", write_parquet_folder)
csv, feather = file("x.csv", write_csv), file("x.feather", write_feather)
hdf5 = file("x.h5", write_hdf5, "::a/x")
sparse_npz = file("s.npz", lambda path, X: sp.save_npz(path, sp.csc_matrix(X)))
HELD = {"in_memory": True, "is_lazy": False}
SPARSE_HELD = {**HELD, "is_sparse": True, "is_target": False}
PATH = {"is_path": True}
LOSSY = {"keeps_dtype": False}

CONTAINERS = [
    Container("lists", lambda X, folder: X.tolist(), "lists", "`[[1.0, 2.0], ...]`", **HELD, **LOSSY),
    Container("ndarray", lambda X, folder: X, "NumPy array", "`np.ndarray`", **HELD),
    Container("fortran", lambda X, folder: np.asfortranarray(X), **HELD),
    Container("strided", strided, **HELD),
    Container("csr", lambda X, f: sp.csr_array(X), "SciPy sparse", "`csr_array`, `csc_matrix`, ...", **SPARSE_HELD),
    Container("csc", lambda X, folder: sp.csc_array(X), **SPARSE_HELD),
    Container("coo", lambda X, folder: sp.coo_array(X), **SPARSE_HELD),
    Container("csr matrix", lambda X, folder: sp.csr_matrix(X), **SPARSE_HELD),
    Container("pandas", pandas, "pandas", "`pandas.DataFrame`", **HELD),
    Container("polars", polars, "polars", "`polars.DataFrame`", **HELD),
    Container("polars lazy", lambda X, f: polars(X, f).lazy(), "polars, lazy", "`polars.LazyFrame`"),
    Container("arrow", arrow, "Arrow", "`pyarrow.Table`", **HELD),
    Container("xarray of dask", xarray_of_dask, "xarray of Dask", "`xarray.DataArray` of Dask"),
    Container("dask", dask_array, "Dask array", "`dask.array.Array`"),
    Container("dask of csr", dask_of_csr, "Dask array, sparse", "`dask.array.Array`", is_target=False),
    Container("dask frame", dask_frame, "Dask DataFrame", "`dask.dataframe.DataFrame`"),
    Container("filtered", hidden_length, "Dask DataFrame, unknown lengths", "`dask.dataframe.DataFrame`"),
    Container("memory map", memory_map, "memory map", "`np.load(..., mmap_mode='r')`", is_lazy=False),
    Container("zarr", zarr_array, is_shared=True),
    Container("zarr v2", lambda X, f: zarr_array(X, f, chunks=(5, *X.shape[1:]), zarr_format=2), is_shared=True),
    Container("zarr in a group", zarr_in_a_group, is_shared=True),
    Container("zarr in memory", lambda X, f: zarr_array(X, zarr.storage.MemoryStore()), **HELD),
    Container("zarr in shards", zarr_in_shards, "Zarr array", "`zarr.Array`", is_shared=True),
    Container("obstore", zarr_in_obstore, "Zarr array in obstore", "`zarr.Array`", is_shared=True),
    Container("zarr path", zarr_path, **PATH, is_shared=True),
    Container("zarr group path", group_path, "Zarr", "`x.zarr`, `x.zarr/group/array`", **PATH, is_shared=True),
    Container("npy", npy, ".npy", "`x.npy`", is_lazy=False, **PATH, is_shared=True),
    Container("npz", npz, ".npz", "`x.npz::name`", **HELD, **PATH),
    Container("sparse npz", sparse_npz, ".npz, sparse", "`x.npz`", **SPARSE_HELD, **PATH),
    Container("parquet", parquet, "Parquet", "`x.parquet`, `x.parquet::a,b*`", **PATH),
    Container("parquet folder", parquet_folder, "Parquet, a folder", "`folder`", **PATH),
    Container("csv", csv, "CSV", "`x.csv`, `x.tsv.gz`, `data/*.csv`", **PATH, **LOSSY),
    Container("feather", feather, "Arrow file", "`x.feather`, `x.arrow`", **PATH),
    Container("hdf5", hdf5, "HDF5", "`x.h5::group/data`", **PATH),
    Container("staged", staged, is_shared=True),
    Container("staged csr", lambda X, f: staged(sp.csr_array(X), f), is_shared=True, is_sparse=True, is_target=False),
]  # fmt: skip

INPUTS = [container for container in CONTAINERS if container.example]
KINDS = [container.kind for container in CONTAINERS]


Table = namedtuple("Table", "array handed_in")
"""An array and the same numbers as a user would hand them in."""


def table(kind: str, folder: Any, X: np.ndarray | None = None) -> Table:
    """Hand in X (default: `numbers()`) in a container of CONTAINERS."""
    X = numbers() if X is None else X
    return Table(X, CONTAINERS[KINDS.index(kind)].make(X, folder))


def numbers(shape: tuple[int, ...] = (23, 7), dtype: str = "float64", seed: int = 0) -> np.ndarray:
    """Numbers of which a third are zero, with an empty row and an empty column."""
    rng = np.random.default_rng(seed)
    X = np.where(rng.random(shape) < 0.67, rng.standard_normal(shape) * 100, 0.0)
    X[len(X) // 2] = 0
    if X.ndim == 2 and shape[1] > 2:
        X[:, 1] = 0
    return X.astype(dtype)


TABLE = {
    "lists, NumPy": ("lists", "NumPy array", ".npz"),
    "SciPy sparse": ("SciPy sparse", ".npz, sparse"),
    "pandas, polars, Arrow": ("pandas", "polars", "Arrow"),
    "tables in files": ("Parquet", "Parquet, a folder", "CSV", "Arrow file"),
    "NumPy on disk": ("memory map", ".npy"),
    "Zarr": ("Zarr array", "Zarr array in obstore", "Zarr"),
    "HDF5": ("HDF5",),
    "Dask, xarray, lazy polars": (
        "Dask array",
        "Dask array, sparse",
        "Dask DataFrame",
        "Dask DataFrame, unknown lengths",
        "xarray of Dask",
        "polars, lazy",
    ),
}
"""Rows of the table of the documentation, and the containers of each, which are read and predicted alike."""


def markdown() -> str:
    """Table of docs/how-to/data.md."""
    lines = ["| data | in Python | as a path | rows are | `predict` returns |", "|---" * 5 + "|"]
    for row, names in TABLE.items():
        same = [next(each for each in INPUTS if each.name == name) for name in names]
        ((is_held, is_lazy),) = {(each.in_memory, each.is_lazy) for each in same}
        examples = {each.example: each.is_path for each in same}.items()
        cells = [", ".join(text for text, is_path in examples if is_path == kind) or "–" for kind in (False, True)]
        held, returned = "in memory" if is_held else "read in blocks", "a lazy Dask array" if is_lazy else "an ndarray"
        lines.append("| " + " | ".join([row, *cells, held, returned]) + " |")
    return "\n".join(lines) + "\n"
