"""Imports run downwards only, each heavy dependency has one gateway, and is imported where it is used.

The latter is counted by modules, since times differ between machines.
"""

import ast
import json
import re
import subprocess
import sys
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import dkrr
from dkrr.linalg import TASK_MODULES

PACKAGE = Path(dkrr.__file__).parent

PAGE = (PACKAGE.parent / "docs" / "developers" / "architecture.md").read_text()
LINES = [re.split(r"\s{2,}", line)[0] for line in PAGE.split("```")[1].splitlines() if line[:1].strip()]
LEVEL = {name: level for level, names in enumerate(reversed(LINES)) for name in names.split(" · ")}
"""Levels of module groups in the drawing of the architecture: what stands on one line does not import each other."""

GATEWAYS = {
    "store": ("zarr", "google_crc32c", "obstore"),
    # IPython where a notebook has imported it.
    "cluster": ("distributed", "rich", "IPython"),
    "limits": ("resource",),
    "preload": ("distributed",),
    # Kernels turn documents into rows of numbers with its vectorisers, in the calling process, imported where used.
    # And finufft and CuPy, behind their own gateways.
    "kernels": ("sklearn", "finufft", "cupy"),
    "data": ("pandas", "pyarrow", "polars", "narwhals", "h5py", "sklearn", "skops"),
    "estimators": ("sklearn",),
    "cli": ("click", "matplotlib", "jinja2", "markupsafe"),
    "config": ("yaml",),
    "errors": ("sklearn",),  # of classes that are its too, made when they are first named
}
"""Module groups that import a heavy library."""
HEAVY = {library for libraries in GATEWAYS.values() for library in libraries}


def module_group(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def module(path: Path) -> str:
    return ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__")


FILES = [p for p in sorted(PACKAGE.rglob("*.py")) if p != PACKAGE / "__init__.py"]
MODULES = {module(path): path for path in FILES}


@cache
def nodes(path: Path) -> list[ast.AST]:
    """All nodes of the syntax tree of a file."""
    return list(ast.walk(ast.parse(path.read_text())))


@cache
def imports(path: Path) -> set[str]:
    """Full names of all modules that a file imports, anywhere in it, or names in a string of its own."""
    found = set()
    for node in nodes(path):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0 and node.module is not None, f"relative import in {path}"
            named = [f"{node.module}.{alias.name}" for alias in node.names]
            found |= {name if name in MODULES else node.module for name in named}
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            found |= {node.value} if re.fullmatch(r"dkrr(\.\w+)+", node.value) else set()
    return found


def test_imports_run_downwards() -> None:
    wrong = []
    for path in FILES:
        here = module_group(path)
        for name in imports(path):
            there = name.split(".")[1] if name.startswith("dkrr.") else None
            # Another name is one of the package itself.
            if there in LEVEL and there != here and LEVEL[there] >= LEVEL[here]:
                wrong.append(f"{path.relative_to(PACKAGE)} must not import {name}")
    assert not wrong


MAX_NAMES = 30
"""Names from outside of planning that its modules import."""


def test_planning_is_arithmetic_that_knows_no_algorithm() -> None:
    names = {
        (node.module, alias.name)
        for path in FILES
        if module_group(path) == "planning"
        for node in nodes(path)
        if isinstance(node, ast.ImportFrom) and re.match(r"dkrr\.(?!planning\b)", node.module or "")
        for alias in node.names
    }
    settings = {"Cholesky", "ConjugateGradient", "Float32Cholesky", "MOST_LOST", "NewtonWork", "Precision"}
    assert {name for module, name in names if module.startswith("dkrr.linalg")} <= settings
    assert len(names) <= MAX_NAMES, sorted(names)


def test_no_modules_import_each_other() -> None:
    graph = {name: imports(path) & set(MODULES) - {name} for name, path in MODULES.items()}
    graph["dkrr.kernels.base"].remove("dkrr.kernels.composite")  # the operators of Kernel make sums of kernels
    TopologicalSorter(graph).prepare()


def test_modules_that_workers_import_exist() -> None:
    assert set(TASK_MODULES) <= set(MODULES)


def test_heavy_libraries_have_one_gateway() -> None:
    wrong = []
    for path in FILES:
        for name in imports(path):
            library = name.split(".")[0]
            if library in HEAVY and library not in GATEWAYS.get(module_group(path), ()):
                wrong.append(f"{path.relative_to(PACKAGE)} must not import {name}")
    assert not wrong


def test_every_module_group_has_a_level() -> None:
    assert {module_group(p) for p in FILES} == set(LEVEL)


def test_files_that_architecture_names_exist() -> None:
    for name in re.findall(r"`([a-z_]+/[\w/]+\.\w+)`", PAGE):
        assert (PACKAGE / name).exists() or (PACKAGE.parent / name).exists(), name


def test_kernels_and_features_do_not_import_dask() -> None:
    for path in FILES:
        if module_group(path) in {"kernels", "features"}:
            assert not any(name.split(".")[0] == "dask" for name in imports(path)), path


LAZY = {
    "IPython", "bokeh", "click", "cryptography", "cupy", "dask.array", "dask.dataframe", "distributed", "fsspec",
    "h5py", "matplotlib", "networkx", "numba", "obstore", "pandas", "polars", "pyarrow", "rich", "scipy", "skops",
    "sklearn", "sparse", "xarray", "zarr",
}  # fmt: skip
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
        ("import dkrr, dkrr.typing", set()),
        ("import dkrr.kernels, dkrr.features", {"scipy"}),
        ("import dkrr; dkrr.plan(n_samples=100, n_features=3)", {"scipy", "zarr", "rich", "fsspec"}),
        ("import dkrr.cli", {"click"}),
        (f"import dkrr.estimators.saving\n{FIT}", {"scipy", "zarr", "rich", "fsspec", "sklearn", "pandas", "pyarrow"}),
    ],
    ids=["package", "kernels", "plan", "command", "fit, saving and loading"],
)
def test_heavy_libraries_are_imported_where_they_are_used(code, allowed):
    assert LAZY & modules(code) <= allowed


def test_no_two_modules_or_classes_of_packages_have_one_name() -> None:
    modules = [path.stem for path in FILES if path.parent != PACKAGE and path.stem != "__init__"]
    classes = [name for path in FILES for name in re.findall(r"^class (\w+)", path.read_text(), re.MULTILINE)]
    for names in (modules, classes):
        assert not {name for name in names if names.count(name) > 1}
