"""Every container of rows and targets that dkrr takes: a row of CONTAINERS joins all tests that go through them.

A row that has an `example` is also in the table of docs/inputs.md, which `markdown` writes.
"""

import uuid
from collections.abc import Callable
from dataclasses import dataclass
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
    note: str = ""


def columns_of(X: np.ndarray) -> dict[str, np.ndarray]:
    return {"y": X} if X.ndim == 1 else {f"x{k}": column for k, column in enumerate(X.T)}


def strided(X: np.ndarray, folder: Any) -> np.ndarray:
    wide = np.zeros((2 * X.shape[0], 3 * X.shape[1]), X.dtype)
    wide[::2, ::3] = X
    return wide[::2, ::3]


def pandas(X: np.ndarray, folder: Any) -> Any:
    return pytest.importorskip("pandas").DataFrame(columns_of(X)).squeeze(axis=1)


def polars(X: np.ndarray, folder: Any) -> Any:
    return pytest.importorskip("polars").DataFrame(columns_of(X))


def arrow(X: np.ndarray, folder: Any) -> Any:
    return pytest.importorskip("pyarrow").table(columns_of(X))


def xarray_of_dask(X: np.ndarray, folder: Any) -> Any:
    return pytest.importorskip("xarray").DataArray(X, dims=("row", "column")[: X.ndim]).chunk({"row": 5})


def dask_array(X: np.ndarray, folder: Any) -> da.Array:
    if X.ndim == 1:
        return da.from_array(X, chunks=5)
    return da.from_array(X, chunks=((5, len(X) - 5), (X.shape[1] - 2, 2)) if min(X.shape) > 5 else -1)


def dask_of_csr(X: np.ndarray, folder: Any) -> da.Array:
    meta = sp.csr_array((0, 0), dtype=X.dtype)
    return da.from_array(X, chunks=(5, -1)).map_blocks(sp.csr_array, dtype=X.dtype, meta=meta)


def dask_frame(X: np.ndarray, folder: Any) -> Any:
    return pytest.importorskip("dask.dataframe").from_pandas(pandas(X, folder), npartitions=3)


def hidden_length(X: np.ndarray, folder: Any) -> Any:
    frame = dask_frame(X, folder)
    return frame[frame == frame] if X.ndim == 1 else frame[frame["x0"] == frame["x0"]]


def memory_map(X: np.ndarray, folder: Any) -> np.ndarray:
    np.save(folder / "map.npy", np.concatenate([X, X]))
    return np.load(folder / "map.npy", mmap_mode="r")[len(X) :]


def zarr_array(X: np.ndarray, folder: Any, **layout: Any) -> zarr.Array:
    layout = layout or {"chunks": tuple(max(1, s // 3) for s in X.shape)}
    array = zarr.create_array(folder / "x.zarr", shape=X.shape, dtype=X.dtype, **layout)
    array[...] = X
    return array


def zarr_in_shards(X: np.ndarray, folder: Any) -> zarr.Array:
    return zarr_array(X, folder, chunks=(2, *X.shape[1:]), shards=(6, *X.shape[1:]))


def zarr_in_a_group(X: np.ndarray, folder: Any) -> zarr.Array:
    array = zarr.create_group(folder / "g.zarr").create_array("a/x", shape=X.shape, chunks=X.shape, dtype=X.dtype)
    array[...] = X
    return array


def zarr_in_memory(X: np.ndarray, folder: Any) -> zarr.Array:
    array = zarr.create_array(zarr.storage.MemoryStore(), shape=X.shape, chunks=(2, *X.shape[1:]), dtype=X.dtype)
    array[...] = X
    return array


def zarr_in_obstore(X: np.ndarray, folder: Any) -> zarr.Array:
    store = pytest.importorskip("obstore.store").LocalStore(str(folder))
    zarr_array(X, folder, chunks=(5, *X.shape[1:]))
    return zarr.open_array(zarr.storage.ObjectStore(store, read_only=True), path="x.zarr", mode="r")


def zarr_path(X: np.ndarray, folder: Any) -> str:
    zarr_array(X, folder)
    return str(folder / "x.zarr")


def zarr_group_path(X: np.ndarray, folder: Any) -> Any:
    zarr_in_a_group(X, folder)
    return folder / "g.zarr" / "a" / "x"


def npy(X: np.ndarray, folder: Any) -> str:
    np.save(folder / "x.npy", X)
    return str(folder / "x.npy")


def npz(X: np.ndarray, folder: Any) -> str:
    np.savez(folder / "x.npz", y=X.reshape(len(X), -1)[:, 0], X=X)
    return f"{folder}/x.npz::X"


def sparse_npz(X: np.ndarray, folder: Any) -> str:
    sp.save_npz(folder / "s.npz", sp.csc_matrix(X))
    return str(folder / "s.npz")


def parquet(X: np.ndarray, folder: Any) -> str:
    write = pytest.importorskip("pyarrow.parquet").write_table
    write(arrow(X, folder), folder / "x.parquet", row_group_size=5)
    return f"{folder}/x.parquet"


def parquet_folder(X: np.ndarray, folder: Any) -> str:
    write = pytest.importorskip("pyarrow.parquet").write_table
    (folder / "parts").mkdir()
    for k in range(0, len(X), 5):
        write(arrow(X[k : k + 5], folder), folder / "parts" / f"{k:03}.parquet")
    return f"{folder}/parts"


def csv(X: np.ndarray, folder: Any) -> str:
    pytest.importorskip("pyarrow")
    rows = [",".join(columns_of(X)), *(",".join(map(repr, map(float, np.atleast_1d(row)))) for row in X)]
    (folder / "x.csv").write_text("\n".join(rows))
    return f"{folder}/x.csv"


def feather(X: np.ndarray, folder: Any) -> str:
    pytest.importorskip("pyarrow.feather").write_feather(arrow(X, folder), f"{folder}/x.feather")
    return f"{folder}/x.feather"


def hdf5(X: np.ndarray, folder: Any) -> str:
    with pytest.importorskip("h5py").File(folder / "x.h5", "w") as file:
        file.create_dataset("a/x", data=X, chunks=tuple(max(1, s // 3) for s in X.shape), compression="gzip")
    return f"{folder}/x.h5::a/x"


def staged(X: Any, folder: Any) -> Any:
    return write_rows(as_rows(X), place(f"{folder}/staged-{uuid.uuid4().hex}"))


HELD = {"in_memory": True, "is_lazy": False}
SPARSE_HELD = {**HELD, "is_sparse": True, "is_target": False}
COPIED = "copied once to Parquet"

CONTAINERS = [
    Container("lists", lambda X, folder: X.tolist(), "lists", "`[[1.0, 2.0], ...]`", **HELD, keeps_dtype=False),
    Container("ndarray", lambda X, folder: X, "NumPy array", "`np.ndarray`", **HELD),
    Container("fortran", lambda X, folder: np.asfortranarray(X), **HELD),
    Container("strided", strided, **HELD),
    Container("csr", lambda X, f: sp.csr_array(X), "SciPy sparse", "`csr_array`, `csc_matrix`, ...", **SPARSE_HELD),
    Container("csc", lambda X, folder: sp.csc_array(X), **SPARSE_HELD),
    Container("coo", lambda X, folder: sp.coo_array(X), **SPARSE_HELD),
    Container("csr matrix", lambda X, folder: sp.csr_matrix(X), **SPARSE_HELD),
    Container("pandas", pandas, "pandas", "`DataFrame`, `Series`", **HELD, note="names as in scikit-learn"),
    Container("polars", polars, "polars", "`DataFrame`", **HELD),
    Container("polars lazy", lambda X, f: polars(X, f).lazy(), "polars, lazy", "`LazyFrame`", note=COPIED),
    Container("arrow", arrow, "Arrow", "`pyarrow.Table`", **HELD),
    Container("xarray of dask", xarray_of_dask, "xarray of Dask", "`DataArray`"),
    Container("dask", dask_array, "Dask array", "`dask.array.Array`"),
    Container("dask of csr", dask_of_csr, "Dask array, sparse", "of `csr_array` blocks", is_target=False),
    Container("dask frame", dask_frame, "Dask DataFrame", "`DataFrame`, `Series`", note="names as in scikit-learn"),
    Container(
        "dask frame, filtered", hidden_length, "Dask DataFrame, unknown lengths", "`frame[frame.a > 0]`",
        note="rows are counted",
    ),
    Container("memory map", memory_map, "memory map", "`np.load(..., mmap_mode='r')`", is_lazy=False),
    Container("zarr", zarr_array, is_shared=True),
    Container("zarr v2", lambda X, f: zarr_array(X, f, chunks=(5, *X.shape[1:]), zarr_format=2), is_shared=True),
    Container("zarr in a group", zarr_in_a_group, is_shared=True),
    Container("zarr in memory", zarr_in_memory, **HELD),
    Container("zarr in shards", zarr_in_shards, "Zarr array", "`zarr.Array` (v2, v3, shards)", is_shared=True),
    Container("obstore", zarr_in_obstore, "Zarr array in obstore", "`zarr.Array`", is_shared=True),
    Container("zarr path", zarr_path, is_path=True, is_shared=True),
    Container(
        "zarr group path", zarr_group_path, "Zarr", "`x.zarr`, `x.zarr/group/array`, URL", is_path=True, is_shared=True
    ),
    Container("npy", npy, ".npy", "`x.npy`", is_lazy=False, is_path=True, is_shared=True),
    Container("npz", npz, ".npz", "`x.npz::name`", **HELD, is_path=True),
    Container("sparse npz", sparse_npz, ".npz, sparse", "`x.npz`", **SPARSE_HELD, is_path=True),
    Container("parquet", parquet, "Parquet", "`x.parquet`, `x.parquet::a,b*`, URL", is_path=True),
    Container("parquet folder", parquet_folder, "Parquet, a folder", "`folder`, `year=2013/...`", is_path=True),
    Container(
        "csv", csv, "CSV", "`x.csv`, `x.tsv`, `x.csv.gz`, `data/*.csv`", is_path=True, keeps_dtype=False, note=COPIED
    ),
    Container("feather", feather, "Arrow file", "`x.feather`, `x.arrow`", is_path=True, note=COPIED),
    Container("hdf5", hdf5, "HDF5", "`x.h5::group/data`", is_path=True),
    Container("staged", staged, is_shared=True),
    Container("staged csr", lambda X, f: staged(sp.csr_array(X), f), is_shared=True, is_sparse=True, is_target=False),
]  # fmt: skip

INPUTS = [container for container in CONTAINERS if container.example]
KINDS = [container.kind for container in CONTAINERS]
SPARSE = [container.kind for container in CONTAINERS if container.is_sparse]


@dataclass(frozen=True)
class Table:
    """An array and the same numbers as a user would hand them in."""

    array: np.ndarray
    handed_in: Any


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


def markdown() -> str:
    """Table of docs/inputs.md."""
    lines = [
        "| container | written as | fit, plan, gram: rows are | predict returns | as y | command line | |",
        "|---|---|---|---|---|---|---|",
    ]
    for each in INPUTS:
        cells = [
            each.name,
            each.example,
            "in memory" if each.in_memory else "read in blocks",
            "lazy Dask array" if each.is_lazy else "ndarray",
            "yes" if each.is_target else "no",
            "yes" if each.is_path else "–",
            each.note,
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"
