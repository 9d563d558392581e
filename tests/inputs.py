"""Every container of rows and targets that dkrr takes, and what is promised of each; docs/inputs.md has the table."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from tests.rows.sources import table

NAMES = ("a", "b", "c")


@dataclass(frozen=True)
class Input:
    """A container."""

    name: str
    example: str
    """How it is written, in Python or as a path."""
    make: Callable[[np.ndarray, Any], Any]
    """From rows (n, 3) or a vector of targets (n,), and a folder."""
    in_memory: bool = False
    """Whether its rows are in memory already, and predictions an ndarray; otherwise they are read in blocks."""
    is_lazy: bool = True
    """Whether predictions are a lazy Dask array."""
    is_path: bool = True
    """Whether it is a path, which the command line takes."""
    is_target: bool = True
    """Whether targets may be given so."""
    note: str = ""


def of_rows(kind: str) -> Callable[[np.ndarray, Any], Any]:
    """Container of the tests of rows."""
    return lambda X, folder: table(kind, folder, X).handed_in


def columns_of(X: np.ndarray) -> dict[str, np.ndarray]:
    return {"y": X} if X.ndim == 1 else dict(zip(NAMES, X.T, strict=True))


def pandas(X: np.ndarray, folder: Any) -> Any:
    return pytest.importorskip("pandas").DataFrame(columns_of(X)).squeeze(axis=1)


def arrow(X: np.ndarray, folder: Any) -> Any:
    return pytest.importorskip("pyarrow").table(columns_of(X))


def polars(X: np.ndarray, folder: Any) -> Any:
    return pytest.importorskip("polars").DataFrame(columns_of(X))


def dask_frame(X: np.ndarray, folder: Any) -> Any:
    dd = pytest.importorskip("dask.dataframe")
    return dd.from_pandas(pandas(X, folder), npartitions=3)


def csv(X: np.ndarray, folder: Any) -> str:
    pytest.importorskip("pyarrow")
    rows = [",".join(columns_of(X)), *(",".join(map(repr, map(float, np.atleast_1d(row)))) for row in X)]
    (folder / "x.csv").write_text("\n".join(rows))
    return f"{folder}/x.csv"


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


def feather(X: np.ndarray, folder: Any) -> str:
    pytest.importorskip("pyarrow.feather").write_feather(arrow(X, folder), f"{folder}/x.feather")
    return f"{folder}/x.feather"


def hidden_length(X: np.ndarray, folder: Any) -> Any:
    frame = dask_frame(X, folder)
    return frame[frame == frame] if X.ndim == 1 else frame[frame["a"] == frame["a"]]


HELD = {"in_memory": True, "is_lazy": False, "is_path": False}
OPEN = {"is_path": False}

INPUTS = [
    Input("lists", "`[[1.0, 2.0], ...]`", lambda X, folder: X.tolist(), **HELD),
    Input("NumPy array", "`np.ndarray`", of_rows("ndarray"), **HELD),
    Input("SciPy sparse", "`csr_array`, `csc_matrix`, ...", of_rows("csr"), **HELD, is_target=False),
    Input("pandas", "`DataFrame`, `Series`", pandas, **HELD, note="names as in scikit-learn"),
    Input("polars", "`DataFrame`", polars, **HELD),
    Input("polars, lazy", "`LazyFrame`", lambda X, f: polars(X, f).lazy(), **OPEN, note="copied once to Parquet"),
    Input("Arrow", "`pyarrow.Table`", arrow, **HELD),
    Input("xarray of Dask", "`DataArray`", of_rows("xarray of dask"), **OPEN),
    Input("Dask array", "`dask.array.Array`", of_rows("dask"), **OPEN),
    Input("Dask array, sparse", "of `csr_array` blocks", of_rows("dask of csr"), **OPEN, is_target=False),
    Input("Dask DataFrame", "`DataFrame`, `Series`", dask_frame, **OPEN, note="names as in scikit-learn"),
    Input("Dask DataFrame, unknown lengths", "`frame[frame.a > 0]`", hidden_length, **OPEN, note="rows are counted"),
    Input("memory map", "`np.load(..., mmap_mode='r')`", of_rows("memory map"), is_lazy=False, is_path=False),
    Input("Zarr array", "`zarr.Array` (v2, v3, shards)", of_rows("zarr in shards"), **OPEN),
    Input("Zarr array in obstore", "`zarr.Array`", of_rows("obstore"), **OPEN),
    Input("Zarr", "`x.zarr`, `x.zarr/group/array`, URL", of_rows("zarr group path")),
    Input(".npy", "`x.npy`", of_rows("npy"), is_lazy=False),
    Input(".npz", "`x.npz::name`", of_rows("npz"), in_memory=True, is_lazy=False),
    Input(".npz, sparse", "`x.npz`", of_rows("sparse npz"), in_memory=True, is_lazy=False, is_target=False),
    Input("Parquet", "`x.parquet`, `x.parquet::a,b*`, URL", parquet),
    Input("Parquet, a folder", "`folder`, `year=2013/...`", parquet_folder),
    Input("CSV", "`x.csv`, `x.tsv`, `x.csv.gz`, `data/*.csv`", csv, note="copied once to Parquet"),
    Input("Arrow file", "`x.feather`, `x.arrow`", feather, note="copied once to Parquet"),
    Input("HDF5", "`x.h5::group/data`", of_rows("hdf5")),
]  # fmt: skip


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
