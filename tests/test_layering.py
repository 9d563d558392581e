"""Imports run downwards only, and each heavy dependency has one gateway."""

import ast
from pathlib import Path

import pytest

import dkrr

PACKAGE = Path(dkrr.__file__).parent

# Lowest first; what stands on one line does not import each other.
LEVELS = [
    {"errors"},
    {"units", "cost", "blas", "sparse"},
    {"config", "tiles", "kernels"},
    {"features", "runtime"},
    {"rows"},
    {"linalg"},
    {"solvers"},
    {"planning"},
    {"machine", "model"},
    {"requests", "fitting", "prediction"},
    {"estimators", "gram_matrix", "preload"},
    {"persistence"},
    {"cli"},
]
LEVEL = {name: k for k, names in enumerate(LEVELS) for name in names}

GATEWAYS = {
    "zarr": {"tiles"},
    "distributed": {"runtime", "preload"},
    # Kernels turn documents into rows of numbers with its vectorisers, in the calling process, imported where used.
    "sklearn": {"estimators", "kernels"},
    "click": {"cli"},
    "rich": {"runtime"},
    "google_crc32c": {"tiles"},
    "resource": {"runtime"},  # guarded there, once
}


def imports(path: Path) -> set[str]:
    """Full names of all modules that a file imports, anywhere in it."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"relative import in {path}"
            found.add(node.module or "")
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def room(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


FILES = [p for p in sorted(PACKAGE.rglob("*.py")) if p != PACKAGE / "__init__.py"]


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_imports_run_downwards(path: Path) -> None:
    here = room(path)
    for name in imports(path):
        if not name.startswith("dkrr."):
            continue
        there = name.split(".")[1]
        if there not in LEVEL:
            continue  # a name of the package itself
        assert there == here or LEVEL[there] < LEVEL[here], f"{here} must not import {there}"


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_heavy_libraries_have_one_gateway(path: Path) -> None:
    for name in imports(path):
        allowed = GATEWAYS.get(name.split(".")[0])
        assert allowed is None or room(path) in allowed, f"{room(path)} must not import {name}"


def test_every_room_has_a_level() -> None:
    assert {room(p) for p in FILES} - {"preload"} <= set(LEVEL)


def test_kernels_and_features_know_nothing_of_dask() -> None:
    for path in FILES:
        if room(path) in {"kernels", "features"}:
            assert not any(name.split(".")[0] == "dask" for name in imports(path)), path
