"""The page "Add a kernel" is right: a copy of dkrr with its module, its line and its row has that kernel everywhere."""

import os
import re
import shutil
import subprocess
import sys

import pytest

from dkrr.kernels import Kernel
from tests.promises.test_documents import DOCS, ROOT

MODULE, LINE, TYPE, ROW, NAME = re.findall(
    r"^```\w+\n(.*?)^```", (DOCS / "developers" / "add-a-kernel.md").read_text(), re.M | re.S
)
USES = """
import json, sys
import numpy as np
import scipy.sparse as sp
from click.testing import CliRunner
from sklearn.model_selection import GridSearchCV
import dkrr
from dkrr.cli import dkrr as command
from dkrr.kernels import RBF, Cauchy
from dkrr.kernels.descriptions import kernel_from_dict
from dkrr.kernels.names import as_kernel

X = np.random.default_rng(0).standard_normal((60, 3))
y = np.sin(X).sum(axis=1)
kernel = Cauchy(gamma=0.3)
assert kernel_from_dict(json.loads(json.dumps(kernel.to_dict()))) == kernel == as_kernel("cauchy", gamma=0.3)

model = dkrr.KernelRidge(0.1, kernel="cauchy", gamma=0.3).fit(X, y)
coef = np.linalg.solve(1 / (1 + 0.3 * ((X[:, None] - X) ** 2).sum(axis=2)) + 0.1 * np.eye(60), y)
assert np.allclose(model.dual_coef_, coef, rtol=1e-9)
dkrr.save(model, "model.zarr")
assert (dkrr.load("model.zarr").predict(X) == model.predict(X)).all()
assert np.allclose(dkrr.KernelRidge(0.1, kernel=kernel).fit(sp.csr_array(X), y).predict(X), model.predict(X))
dkrr.KernelLogisticRegression(kernel=kernel + RBF()).fit(X, y > 0).predict_proba(X)
dkrr.KernelRidgeCV([0.1], kernel=["cauchy", "rbf"], gamma=[0.1, 0.3], cv=3).fit(X, y)
GridSearchCV(dkrr.KernelRidge(kernel=kernel), {"kernel__gamma": [0.1, 0.3]}, cv=3).fit(X, y)

plan = dkrr.plan(n_samples=3000, n_features=3, kernel="cauchy")
assert plan.problem.facts.entry_seconds is not None, "its time is measured, as it states none"

np.save("x.npy", X), np.save("y.npy", y)
for words in (
    "fit --x x.npy --y y.npy --kernel cauchy --gamma 0.3 --alpha 0.1 --model other.zarr --quiet",
    "plan --n 1000 --d 3 --kernel cauchy",
    "select --x x.npy --y y.npy --kernel cauchy,rbf --gamma 0.1,0.3 --quiet",
):
    result = CliRunner().invoke(command, words.split())
    assert result.exit_code == 0, result.output
assert (dkrr.load("other.zarr").predict(X) == model.predict(X)).all()
"""


def put(path, before, text):
    """Insert text before a line that stands once in a file."""
    content = path.read_text()
    assert content.count(before) == 1
    path.write_text(content.replace(before, text + before))


@pytest.fixture
def with_cauchy(tmp_path):
    """A copy of the package to which the page was applied."""
    shutil.copytree(ROOT / "dkrr", tmp_path / "dkrr", ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "dkrr" / "kernels" / "cauchy.py").write_text(MODULE)
    put(tmp_path / "dkrr" / "kernels" / "registry.py", "from dkrr.kernels.columns import", LINE)
    put(tmp_path / "dkrr" / "typing.py", '    "chi2",\n', TYPE)
    return tmp_path


def run(folder, *words):
    environment = {**os.environ, "PYTHONPATH": str(folder), "DASK_DKRR__QUICK_MEASUREMENT": "true"}
    done = subprocess.run([sys.executable, *words], cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_page_names_attributes_of_kernels():
    names = set(re.findall(r"`(_[a-z]\w+)`|def (_[a-z]\w+)\(", (DOCS / "developers" / "add-a-kernel.md").read_text()))
    missing = [name for name in map("".join, names) if not hasattr(Kernel, name)]
    assert not missing, missing


@pytest.mark.nightly
def test_a_module_and_a_line_make_a_kernel_that_is_named_saved_planned_and_searched(with_cauchy):
    run(with_cauchy, "-W", "error", "-c", USES)
    run(with_cauchy, "-m", "doctest", "dkrr/kernels/cauchy.py")
    pytest.importorskip("ruff", reason="ruff is not installed")
    run(with_cauchy, "-m", "ruff", "check", "--config", str(ROOT / "pyproject.toml"), "dkrr/kernels/cauchy.py")


@pytest.mark.nightly
def test_a_row_puts_it_through_the_contracts(with_cauchy):
    shutil.copytree(ROOT / "tests", with_cauchy / "tests", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", with_cauchy)
    shutil.copytree(DOCS / "api", with_cauchy / "docs" / "api")
    put(with_cauchy / "tests" / "contracts" / "kernels.py", "    # Kernels of kernels\n", ROW)
    put(with_cauchy / "docs" / "api" / "kernels.rst", "   Laplacian\n", NAME)
    run(
        with_cauchy,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "tests/contracts",
        "-k",
        "Cauchy or missing or needs",
    )
