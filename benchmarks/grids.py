"""The cases of `benchmarks.plans`, as data: what is planned and run at each size."""

from collections.abc import Sequence
from typing import Any, Literal, TypeVar

from benchmarks.cases import Case

Size = Literal["smoke", "small", "full"]
SIZES: tuple[Size, ...] = ("smoke", "small", "full")
T = TypeVar("T")

WORKERS = {"execution": "dask"}
"""For sizes at which the planner would not choose workers."""


def grid(size: Size) -> list[Case]:
    """Cases whose plans are compared with what happens.

    "full" is 1 to 40 seconds each on two cores, "small" is dominated by starting processes, and "smoke" runs in the
    test suite.
    """
    if size == "smoke":
        return _smoke()
    return [*_in_memory(size), *_on_tiles(size), *_primal(size), *_iterative(size), *_float32(size)]


def _smoke() -> list[Case]:
    return [
        Case("smoke cholesky serial", 900, tile=256),
        Case("smoke cholesky workers", 900, tile=256, alphas=(1e-2, 1e-1), n_targets=2, force=WORKERS),
        Case("smoke cg memory", 800, solver="cg", rank=80),
        Case("smoke float32 serial", 900, solver="float32", tile=256),
        Case("smoke primal serial", 4000, 700, "linear", form="primal", tile=256, x_in_store=True, fit_intercept=True),
    ]


def _by(size: Size, small: T, full: T) -> T:
    return small if size == "small" else full


def _in_memory(size: Size) -> list[Case]:
    """Cholesky of the whole Gram matrix in the calling process."""
    return [
        Case("memory rbf", _by(size, 3000, 12_000)),
        Case("memory rbf, middling", _by(size, 2000, 6000)),
        Case("memory laplacian d=32", _by(size, 2500, 6000), 32, "laplacian"),
        Case("memory matern, 10 targets", _by(size, 2500, 8000), 8, "matern", n_targets=10),
        Case("memory rbf, 4 alphas", _by(size, 2000, 7000), alphas=(1e-3, 1e-2, 1e-1, 1.0), n_targets=4),
        Case("memory polynomial, dual", _by(size, 2500, 8000), 200, "polynomial", form="dual"),
        Case("memory linear, dual, Zarr", _by(size, 2000, 5000), _by(size, 3000, 8000), "linear", x_in_store=True),
    ]


def _on_tiles(size: Size) -> list[Case]:
    """Tiled Cholesky."""
    return [
        Case("tiles rbf", _by(size, 4000, 16_384), memory_limit="2GiB", force=_by(size, WORKERS, {})),
        Case("tiles rbf, tight", _by(size, 4000, 14_000), memory_limit="600MiB", force=_by(size, WORKERS, {})),
        Case("tiles rbf, client", _by(size, 4000, 12_000), memory_limit="1GiB", client=True, force=WORKERS),
        Case("tiles rbf, 1 worker", _by(size, 3000, 10_000), tile=_by(size, 768, 1536), workers=1, force=WORKERS),
        Case("tiles rbf, small tiles", _by(size, 3000, 10_000), tile=_by(size, 256, 512), force=WORKERS),
        Case("tiles rbf, serial", _by(size, 3000, 9000), tile=_by(size, 768, 2048), force={"execution": "serial"}),
        Case("tiles laplacian, store kept", _by(size, 2500, 9000), 32, "laplacian", keeps_store=True, force=WORKERS),
        Case(
            "tiles matern, 10 targets, intercept, Zarr",
            _by(size, 2500, 9000),
            8,
            "matern",
            n_targets=10,
            fit_intercept=True,
            x_in_store=True,
            tile=_by(size, 512, 1024),
            force=WORKERS,
        ),
        Case("tiles rbf d=784", _by(size, 3000, 9000), 784, tile=_by(size, 768, 1536), force=WORKERS),
        Case(
            "tiles rbf, 3 alphas",
            _by(size, 2500, 7000),
            alphas=(1e-2, 1e-1, 1.0),
            n_targets=3,
            tile=_by(size, 512, 1024),
            force=WORKERS,
        ),
    ]


def _primal(size: Size) -> list[Case]:
    """Normal equations."""
    rows = _by(size, 100_000, 1_000_000)
    return [
        Case("primal linear, Zarr", rows, 100, "linear", x_in_store=True),
        Case("primal linear, Zarr, workers", rows, 100, "linear", x_in_store=True, form="primal", force=WORKERS),
        Case(
            "primal linear d=1,000, 5 targets, intercept",
            _by(size, 10_000, 200_000),
            1000,
            "linear",
            n_targets=5,
            fit_intercept=True,
        ),
        Case("primal polynomial", _by(size, 10_000, 100_000), 60, "polynomial", form="primal"),
        Case(
            "primal polynomial, tiles",
            _by(size, 10_000, 60_000),
            _by(size, 50, 100),
            "polynomial",
            form="primal",
            memory_limit="800MiB",
            tile=_by(size, 512, 1024),
            force=WORKERS,
        ),
        Case("primal linear, cg", _by(size, 20_000, 200_000), 500, "linear", form="primal", solver="cg"),
    ]


def _iterative(size: Size) -> list[Case]:
    """Conjugate gradient on the Gram matrix."""
    n = _by(size, 4000, 20_000)
    formed, partly = {"tier": "formed at every pass"}, {"tier": "partly in memory"}
    return [
        Case("cg in memory", n, solver="cg"),
        Case("cg in memory, rank 500", _by(size, 3000, 12_000), solver="cg", rank=_by(size, 200, 500)),
        Case("cg in memory, float64", _by(size, 3000, 12_000), solver="cg", precision="float64"),
        Case("cg in memory, no preconditioner", _by(size, 3000, 10_000), solver="cg-none", alphas=(1.0,)),
        Case("cg partly in memory", n, solver="cg", memory_limit=_by(size, "340MiB", "1GiB"), force=partly),
        Case("cg formed", n, solver="cg", memory_limit=_by(size, "340MiB", "400MiB"), force=formed),
        Case("cg formed, rank 1,000", n, solver="cg", rank=_by(size, 200, 1000), memory_limit="500MiB", force=formed),
        Case(
            "cg 5 targets, intercept",
            _by(size, 3000, 12_000),
            8,
            "matern",
            solver="cg",
            n_targets=5,
            fit_intercept=True,
        ),
        Case("cg client", n, solver="cg", client=True, memory_limit="2GiB", force=WORKERS),
        Case(
            "cg client, formed, Zarr",
            _by(size, 4000, 16_000),
            128,
            solver="cg",
            rank=_by(size, 200, 500),
            client=True,
            memory_limit="1GiB",
            x_in_store=True,
            force=WORKERS | formed,
        ),
        Case("cg on falling columns", n, 32, solver="cg", decay=1.0),
    ]


def _float32(size: Size) -> list[Case]:
    """A complete factor in float32 as preconditioner."""
    return [
        Case(
            "float32 factor", _by(size, 4000, 14_000), solver="float32", memory_limit="2GiB", tol=1e-10, force=WORKERS
        ),
        Case(
            "float32 factor, serial",
            _by(size, 3000, 9000),
            solver="float32",
            tile=_by(size, 768, 1536),
            tol=1e-10,
            force={"execution": "serial"},
        ),
    ]


ALPHAS = tuple(10.0**k for k in range(-4, 2))
"""λ of searches."""


def problems(size: Size) -> list[Case]:
    """Cases in which the planner is free, for the regret of its choice, each within two memory limits.

    The larger limit holds the matrix. The smaller one does not; where the libraries are larger than the matrix, it is
    little more than what they take.
    """
    if size == "smoke":
        return [
            *_within("smoke polynomial", ("4GiB",), 900, 40, "polynomial"),
            *_within("smoke logistic", ("4GiB",), 300, 5, loss="logistic"),
            *_within("smoke search", ("4GiB",), 300, 5, folds=3, alphas=(0.1, 1.0)),
        ]
    return [*_ridge(), *_logistic(), *_of_sources(), *_searches()]


def _within(name: str, limits: Sequence[str], n: int, d: int = 16, kernel: str = "rbf", **settings: Any) -> list[Case]:
    """A problem within each of several memory limits."""
    return [Case(f"{name}, {limit}", n, d, kernel, solver="auto", memory_limit=limit, **settings) for limit in limits]


def _ridge() -> list[Case]:
    """Ridge regressions."""
    several: dict[str, Any] = {"alphas": (1e-3, 1e-2, 1e-1, 1.0), "n_targets": 4}
    return [
        *_within("rbf n=200", ("4GiB", "325MiB"), 200, 10),
        *_within("rbf n=1,000, 100 targets", ("4GiB", "335MiB"), 1000, 30, n_targets=100),
        *_within("rbf n=5,000 d=784", ("4GiB", "370MiB"), 5000, 784),
        *_within("rbf n=8,000", ("4GiB", "365MiB"), 8000),
        *_within("rbf n=12,000", ("4GiB", "500MiB"), 12_000),
        *_within("rbf n=20,000, falling columns", ("4GiB", "700MiB"), 20_000, 32, decay=1.0),
        *_within("rbf n=50,000 d=2", ("12GiB", "1GiB"), 50_000, 2, alphas=(1.0,)),
        *_within("rbf n=10,000 on a client", ("4GiB", "700MiB"), 10_000, client=True),
        *_within("rbf n=6,000, 4 alphas", ("4GiB", "335MiB"), 6000, **several),
        *_within("matern n=8,000, 10 targets", ("4GiB", "375MiB"), 8000, 8, "matern", n_targets=10),
        *_within("laplacian n=7,000", ("4GiB", "340MiB"), 7000, 32, "laplacian"),
        *_within("rbf n=5,000, 500 targets", ("4GiB", "505MiB"), 5000, 50, n_targets=500),
        *_within("rbf n=7,000, sparse", ("4GiB", "370MiB"), 7000, 2000, row_entries=20),
        *_within("polynomial n=8,000 D=1,326", ("4GiB", "365MiB"), 8000, 50, "polynomial"),
        *_within("polynomial n=6,000 D=3,321", ("4GiB", "340MiB"), 6000, 80, "polynomial"),
        *_within("linear n=3,000 d=2,000", ("4GiB", "405MiB"), 3000, 2000, "linear"),
        *_within("linear n=50,000 d=1,000", ("4GiB", "785MiB"), 50_000, 1000, "linear", n_targets=20, x_in_store=True),
        *_within("linear n=50,000, sparse", ("4GiB", "415MiB"), 50_000, 2000, "linear", row_entries=20),
    ]


def _logistic() -> list[Case]:
    """Classifications."""
    loss: dict[str, Any] = {"loss": "logistic"}
    return [
        *_within("logistic rbf n=4,000", ("4GiB", "350MiB"), 4000, 10, alphas=(0.1,), **loss),
        *_within("logistic rbf n=1,000, 5 classes", ("4GiB", "345MiB"), 1000, 10, n_targets=5, **loss),
        *_within("logistic polynomial n=4,000", ("4GiB", "400MiB"), 4000, 40, "polynomial", **loss),
        *_within("logistic linear n=50,000", ("4GiB", "700MiB"), 50_000, 100, "linear", x_in_store=True, **loss),
        *_within("logistic linear, sparse", ("4GiB", "445MiB"), 20_000, 1000, "linear", row_entries=20, **loss),
    ]


def _of_sources() -> list[Case]:
    """Molecules, flights, and rows as of collisions, where the number of iterations depends on what the rows are."""
    sources: list[dict[str, Any]] = [{"source": name, "tol": 1e-8} for name in ("qm9", "flights", "higgs")]
    qm9, flights, higgs = sources
    return [
        *_within("qm9 n=2,000", ("4GiB",), 2000, 79, alphas=(1e-3,), **qm9),
        *_within("qm9 n=6,000", ("4GiB",), 6000, 79, alphas=(1e-3,), **qm9),
        *_within("qm9 n=6,000, small alpha", ("4GiB",), 6000, 79, alphas=(1e-6,), **qm9),
        *_within("qm9 n=12,000", ("4GiB", "600MiB"), 12_000, 79, alphas=(1e-3,), **qm9),
        *_within("qm9 n=20,000", ("1GiB",), 20_000, 79, alphas=(1e-3,), **qm9),
        *_within("qm9 n=50,000", ("2GiB",), 50_000, 79, alphas=(1e-3,), **qm9),
        *_within("flights n=4,000", ("4GiB",), 4000, 162, alphas=(0.1,), **flights),
        *_within("flights n=10,000", ("4GiB", "600MiB"), 10_000, 162, alphas=(0.1,), **flights),
        *_within("flights n=10,000, classes", ("4GiB",), 10_000, 162, loss="logistic", **flights),
        *_within("flights n=20,000, linear classes", ("4GiB",), 20_000, 162, "linear", loss="logistic", **flights),
        *_within("higgs n=4,000", ("4GiB",), 4000, 28, alphas=(1.0,), **higgs),
        *_within("higgs n=12,000", ("4GiB", "600MiB"), 12_000, 28, alphas=(1.0,), **higgs),
        *_within("higgs n=12,000, small alpha", ("4GiB",), 12_000, 28, alphas=(1e-4,), **higgs),
        *_within("higgs n=6,000, classes", ("4GiB",), 6000, 28, alphas=(0.1,), loss="logistic", **higgs),
        *_within("sparse classes n=2,000", ("4GiB",), 2000, 2700, "linear", row_entries=20, loss="logistic"),
        *_within("sparse classes n=3,000", ("4GiB",), 3000, 2400, "linear", row_entries=20, loss="logistic"),
    ]


def _searches() -> list[Case]:
    """Choices of λ by folds."""
    search: dict[str, Any] = {"folds": 5, "alphas": ALPHAS}
    return [
        *_within("search rbf n=2,000", ("4GiB", "375MiB"), 2000, **search),
        *_within("search rbf n=5,000", ("4GiB", "405MiB"), 5000, **search),
        *_within("search rbf n=1,500, 20 targets", ("4GiB", "400MiB"), 1500, n_targets=20, **search),
        *_within("search polynomial n=2,000", ("4GiB", "375MiB"), 2000, 60, "polynomial", **search),
        *_within("search linear n=50,000", ("4GiB", "455MiB"), 50_000, 300, "linear", **search),
    ]
