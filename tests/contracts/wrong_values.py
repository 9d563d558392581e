"""Values that users give by mistake, each under a label: what `benchmarks.chaos_inputs` gives to every argument."""

import datetime
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import scipy.sparse as sp

from dkrr.features import IdentityMap
from dkrr.kernels import RBF
from dkrr.solvers import Cholesky, ConjugateGradient

N, D = 12, 2
"""Rows and columns of the data that the cases fit."""
HUGE = 10**30


def rows() -> np.ndarray:
    """Training rows of shape (N, D)."""
    return np.random.default_rng(0).normal(size=(N, D))


def targets() -> np.ndarray:
    """Targets of shape (N,)."""
    return np.random.default_rng(1).normal(size=N)


def labels() -> np.ndarray:
    """Labels of two classes, of shape (N,)."""
    return np.arange(N) % 2


def _masked(values: np.ndarray) -> Any:
    mask = np.zeros(values.shape, bool)
    mask.flat[0] = True
    return np.ma.MaskedArray(values, mask)


def _cyclic() -> list[Any]:
    inner: list[Any] = []
    inner.append(inner)
    return inner


Values = dict[str, Callable[[], Any]]

NUMBERS: Values = {
    "0": lambda: 0,
    "1": lambda: 1,
    "2": lambda: 2,
    "-1": lambda: -1,
    "0.5": lambda: 0.5,
    "1.5": lambda: 1.5,
    "-0.5": lambda: -0.5,
    "float32 0.5": lambda: np.float32(0.5),
    "int64 2": lambda: np.int64(2),
    "array of 0 dimensions": lambda: np.array(2.0),
    "1e-300": lambda: 1e-300,
    "1e300": lambda: 1e300,
    "10**30": lambda: HUGE,
    "-10**30": lambda: -HUGE,
    "10**400": lambda: 10**400,
    "nan": lambda: float("nan"),
    "inf": lambda: float("inf"),
    "-inf": lambda: float("-inf"),
    "1j": lambda: 1j,
    "Decimal nan": lambda: Decimal("nan"),
}
FLAGS: Values = {
    "None": lambda: None,
    "True": lambda: True,
    "False": lambda: False,
    "bool_ True": lambda: np.True_,
    "Ellipsis": lambda: ...,
    "NotImplemented": lambda: NotImplemented,
}
TEXTS: Values = {
    "empty text": lambda: "",
    "text": lambda: "text",
    "text 2": lambda: "2",
    "text nan": lambda: "nan",
    "null byte": lambda: "a\0b",
    "lone surrogate": lambda: "a\ud800",
    "long text": lambda: "x" * 5000,
    "bytes": lambda: b"text",
    "Path": lambda: Path("text"),
    "unknown protocol": lambda: "nowhere://text",
}
CONTAINERS: Values = {
    "[]": list,
    "()": lambda: (),
    "{}": dict,
    "set()": set,
    "[1, 2]": lambda: [1, 2],
    "[nan]": lambda: [float("nan")],
    "['a']": lambda: ["a"],
    "[None]": lambda: [None],
    "[True]": lambda: [True],
    "[[]]": lambda: [[]],
    "ragged": lambda: [1.0, [2.0, 3.0]],
    "cyclic": _cyclic,
    "{'a': 1}": lambda: {"a": 1},
    "{1: nan}": lambda: {1: float("nan")},
    "generator": lambda: iter(()),
    "slice": lambda: slice(1),
}
OBJECTS: Values = {
    "object": object,
    "function": lambda: lambda *_, **__: None,
    "class": lambda: int,
    "class RBF": lambda: RBF,
    "module": lambda: np,
    "RBF()": RBF,
    "IdentityMap()": IdentityMap,
    "Cholesky()": Cholesky,
    "ConjugateGradient()": ConjugateGradient,
    "date": lambda: datetime.date(2026, 1, 1),
    "datetime64": lambda: np.datetime64("2026-01-01"),
    "NaT": lambda: np.datetime64("NaT"),
    "timedelta64": lambda: np.timedelta64(3, "s"),
    "pd.NA": lambda: pd.NA,
    "Timestamp": lambda: pd.Timestamp("2026-01-01"),
}
ARRAYS: Values = {
    "empty array": lambda: np.empty(0),
    "array of 3 dimensions": lambda: np.ones((N, D, 2)),
    "complex array": lambda: np.ones((N, D), complex),
    "array of text": lambda: np.full((N, D), "a"),
    "array of digits": lambda: np.full((N, D), "1"),
    "array of bytes": lambda: np.full((N, D), b"1"),
    "array of objects": lambda: np.full((N, D), {}, object),
    "array of None": lambda: np.full((N, D), None),
    "datetimes": lambda: np.full((N, D), np.datetime64("2026-01-01")),
    "timedeltas": lambda: np.full((N, D), np.timedelta64(1, "s")),
    "masked array": lambda: _masked(np.ones((N, D))),
    "structured array": lambda: np.zeros(N, [("a", float), ("b", float)]),
    "sparse array": lambda: sp.csr_array(np.eye(N)),
    "table of dates": lambda: pd.DataFrame({"a": pd.date_range("2026", periods=N), "b": np.arange(float(N))}),
    "table of text": lambda: pd.DataFrame({"a": ["x"] * N}),
}
VALUES: Values = NUMBERS | FLAGS | TEXTS | CONTAINERS | OBJECTS | ARRAYS
"""What every argument is given."""


def _with(value: float) -> np.ndarray:
    X = rows()
    X[5, 1] = value
    return X


MATRICES: Values = {
    "NaN in row 5": lambda: _with(np.nan),
    "infinity in row 5": lambda: _with(np.inf),
    "no rows": lambda: np.empty((0, D)),
    "no columns": lambda: np.empty((N, 0)),
    "list of dates": lambda: [[datetime.date(2026, 1, 1)] * D] * N,
    "list of text": lambda: [["a", "b"]] * N,
    "list of complex": lambda: [[1j, 2.0]] * N,
    "list of dicts": lambda: [{"a": 1}] * N,
    "list of masked": lambda: [[np.ma.masked, 1.0]] * N,
    "sparse complex": lambda: sp.csr_array(np.eye(N, D) * 1j),
    "table of numbers and None": lambda: pd.DataFrame({"a": [None] + ["x"] * (N - 1), "b": 1.0}),
    "masked table": lambda: pd.DataFrame({"a": pd.array([None] + [1] * (N - 1), dtype="Int64"), "b": 1.0}),
    "dtype of 2 fields": lambda: np.zeros((N, D), [("a", float)]),
    "void": lambda: np.zeros((N, D), "V8"),
}
"""What arguments that are rows of numbers are given as well."""
VECTORS: Values = {
    "NaN in row 5": lambda: np.where(np.arange(N) == 5, np.nan, 1.0),
    "infinity in row 5": lambda: np.where(np.arange(N) == 5, np.inf, 1.0),
    "one too few": lambda: np.arange(N - 1) % 2,
    "one too many": lambda: np.arange(N + 1) % 2,
    "no rows of 2": lambda: np.empty((0, 2)),
    "no columns": lambda: np.empty((N, 0)),
    "vector of dates": lambda: np.arange(N).astype("datetime64[D]"),
    "vector of text and numbers": lambda: np.array(["a", 1.0] * (N // 2), object),
    "masked vector": lambda: _masked(np.arange(N) % 2),
    "masked float vector": lambda: _masked(np.arange(N) % 2.0),
    "sparse column": lambda: sp.csr_array(np.ones((N, 1))),
    "series of dates": lambda: pd.Series(pd.date_range("2026", periods=N)),
    "series with NA": lambda: pd.Series([None] + [1] * (N - 1), dtype="Int64"),
    "complex vector": lambda: np.ones(N, complex),
    "list of None": lambda: [None] * N,
}
"""What arguments that have an entry for each row are given as well."""
