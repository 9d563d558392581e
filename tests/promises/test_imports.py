"""What is imported, and when: counted by modules, since times differ between machines."""

import json
import subprocess
import sys
from functools import cache

import pytest

HEAVY = {
    "IPython", "bokeh", "click", "cryptography", "dask.array", "dask.dataframe", "distributed", "fsspec", "h5py",
    "matplotlib", "networkx", "numba", "obstore", "pandas", "polars", "pyarrow", "rich", "scipy", "skops", "sklearn",
    "sparse", "xarray", "zarr",
}  # fmt: skip
OF_SCIKIT_LEARN = {"pandas", "pyarrow"}
"""What scikit-learn itself imports where it is installed."""

FIT = """
import numpy as np
X = np.random.default_rng(0).standard_normal((50, 3))
model = dkrr.KernelRidge(kernel="rbf").fit(X, X[:, 0])
model.predict(X)
model.score(X, X[:, 0])
"""


@cache
def modules(code):
    """Modules that a new process has imported after some code."""
    found = subprocess.run(
        [sys.executable, "-c", f"{code}\nimport sys, json\nprint(json.dumps(sorted(sys.modules)))"],
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    return set(json.loads(found.stdout.splitlines()[-1]))


@pytest.mark.parametrize(
    ("code", "allowed"),
    [
        ("import dkrr", set()),
        ("import dkrr.kernels, dkrr.features", {"scipy"}),
        ("import dkrr; dkrr.plan(n=100, d=3)", {"scipy", "zarr", "rich", "fsspec"}),
        ("import dkrr.cli", {"click"}),
        (f"import dkrr.persistence\n{FIT}", {"scipy", "zarr", "rich", "fsspec", "sklearn", *OF_SCIKIT_LEARN}),
    ],
    ids=["package", "kernels", "plan", "command", "fit, saving and loading"],
)
def test_heavy_libraries_are_imported_where_they_are_used(code, allowed):
    assert HEAVY & modules(code) <= allowed
