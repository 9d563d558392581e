"""Imports run downwards only, and each heavy dependency has one gateway."""

import ast
from functools import cache
from pathlib import Path

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


@cache
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


def test_imports_run_downwards() -> None:
    wrong = []
    for path in FILES:
        here = room(path)
        for name in imports(path):
            there = name.split(".")[1] if name.startswith("dkrr.") else None
            # Another name is one of the package itself.
            if there in LEVEL and there != here and LEVEL[there] >= LEVEL[here]:
                wrong.append(f"{path.relative_to(PACKAGE)} must not import {name}")
    assert not wrong


def test_heavy_libraries_have_one_gateway() -> None:
    wrong = []
    for path in FILES:
        for name in imports(path):
            allowed = GATEWAYS.get(name.split(".")[0])
            if allowed is not None and room(path) not in allowed:
                wrong.append(f"{path.relative_to(PACKAGE)} must not import {name}")
    assert not wrong


def test_every_room_has_a_level() -> None:
    assert {room(p) for p in FILES} - {"preload"} <= set(LEVEL)


def test_algorithms_do_not_read_the_constants_of_plans() -> None:
    for path in FILES:
        if room(path) in {"fitting", "requests", "prediction"}:
            read = {name.rsplit(".", 1)[1] for name in imports(path) if name.startswith("dkrr.planning.")}
            assert not {name for name in read if name.isupper()}, path


def test_kernels_and_features_know_nothing_of_dask() -> None:
    for path in FILES:
        if room(path) in {"kernels", "features"}:
            assert not any(name.split(".")[0] == "dask" for name in imports(path)), path
