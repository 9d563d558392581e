"""Values that users give by mistake, each under a label: what `tests.contracts.arguments` gives to every argument."""

import datetime
from collections.abc import Callable, Iterable
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import scipy.sparse as sp

from dkrr.kernels import RBF
from dkrr.kernels.interactions import InteractionMap
from dkrr.solvers import Cholesky, ConjugateGradient

N, D = 12, 2
"""Rows and columns of the data that the cases fit."""


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

NAMES: dict[str, Any] = {
    "nan": float("nan"), "inf": float("inf"), "date": datetime.date, "Decimal": Decimal, "cyclic": _cyclic,
    "function": lambda *_, **__: None, "Path": Path, "np": np, "pd": pd, "sp": sp, "RBF": RBF,
    "InteractionMap": InteractionMap, "Cholesky": Cholesky, "ConjugateGradient": ConjugateGradient,
}  # fmt: skip
EXPRESSIONS = """
    0 1 2 -1 0.5 1.5 -0.5 np.float32(0.5) np.int64(2) np.array(2.0) 1e-300 1e300 10**30 -10**30 10**400
    nan inf -inf 1j Decimal('nan')
    None True False np.True_ ... NotImplemented
    '' 'text' '2' 'nan' 'a\\0b' 'a\\ud800' 'x'*5000 b'text' Path('text') 'nowhere://text'
    [] () {} set() [1,2] [nan] ['a'] [None] [True] [[]] [1.0,[2.0,3.0]] cyclic() {'a':1} {1:nan} iter(()) slice(1)
    object() function int RBF np RBF() InteractionMap() Cholesky() ConjugateGradient()
    date(2026,1,1) np.datetime64('2026-01-01') np.datetime64('NaT') np.timedelta64(3,'s')
    pd.NA pd.Timestamp('2026-01-01')
"""
"""Numbers, flags, texts, containers and objects: each is its own label."""
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
VALUES: Values = {text: partial(eval, text, NAMES) for text in EXPRESSIONS.split()} | ARRAYS
"""What every argument is given."""


def these(text: str) -> frozenset[str]:
    """Labels of values, which must be known."""
    found = frozenset(text.split())
    assert found <= VALUES.keys(), found - VALUES.keys()
    return found


NONE = these("None")
FLAG = these("True False np.True_")
ZERO = these("0")
COUNT = these("1 2 np.int64(2)")
HALF = these("0.5 np.float32(0.5)")
TINY = these("1e-300")
HUGE_POWER = these("1e300 10**30")
POSITIVE = COUNT | HALF | TINY | HUGE_POWER | {"1.5"}
REAL = POSITIVE | these("0 -1 -0.5 -10**30")
WHOLE_POWER = COUNT | HUGE_POWER | ZERO
SCALAR_ARRAY = these("np.array(2.0)")
PATH = these("[1,2]")
FUNCTION = these("function")
NAME = these("'text' '2' 'nan' 'x'*5000 'nowhere://text'")
TEXT = NAME | these(r"'' 'a\0b' 'a\ud800'")
PLACE = these("'text' '2' 'nan' Path('text')")
LETTER = these("['a']")
KERNEL = these("RBF()")
MAP = these("InteractionMap()")
SPARSE = frozenset({"sparse array"})
FRACTIONS = HALF | TINY | {"1.5"}
"""Labels of the values that many arguments take."""


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
    "list of masked": lambda: [[np.ma.masked, 1.0]] * N,
    "sparse complex": lambda: sp.csr_array(np.eye(N, D) * 1j),
    "table of numbers and None": lambda: pd.DataFrame({"a": [None] + ["x"] * (N - 1), "b": 1.0}),
    "masked table": lambda: pd.DataFrame({"a": pd.array([None] + [1] * (N - 1), dtype="Int64"), "b": 1.0}),
}
"""What arguments that are rows of numbers are given as well."""
VECTORS: Values = {
    "NaN in row 5": lambda: np.where(np.arange(N) == 5, np.nan, 1.0),
    "infinity in row 5": lambda: np.where(np.arange(N) == 5, np.inf, 1.0),
    "one too few": lambda: np.arange(N - 1) % 2,
    "one too many": lambda: np.arange(N + 1) % 2,
    "no columns": lambda: np.empty((N, 0)),
    "vector of dates": lambda: np.arange(N).astype("datetime64[D]"),
    "vector of text and numbers": lambda: np.array(["a", 1.0] * (N // 2), object),
    "masked vector": lambda: _masked(np.arange(N) % 2),
    "sparse column": lambda: sp.csr_array(np.ones((N, 1))),
    "series of dates": lambda: pd.Series(pd.date_range("2026", periods=N)),
    "series with NA": lambda: pd.Series([None] + [1] * (N - 1), dtype="Int64"),
    "complex vector": lambda: np.ones(N, complex),
    "list of None": lambda: [None] * N,
}
"""What arguments that have an entry for each row are given as well."""


def by_argument(*rows: tuple[Iterable[str], str]) -> dict[str, frozenset[str]]:
    """Labels by argument, from (labels, names of arguments) of those that take the same; each name stands once."""
    pairs = [(name, frozenset(labels)) for labels, names in rows for name in names.split()]
    found = dict(pairs)
    assert len(found) == len(pairs), "an argument stands twice"
    return found
