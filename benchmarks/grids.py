"""The cases of `benchmarks.plans`, as data: what is planned and run at each size."""

from typing import Any, Literal, TypeVar

from benchmarks.cases import Case

Size = Literal["smoke", "small", "full"]
SIZES: tuple[Size, ...] = ("smoke", "small", "full")
T = TypeVar("T")

WORKERS = {"execution": "dask"}
"""For sizes at which the planner would not start workers by itself."""


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


def problems(size: Size) -> list[Case]:
    """Cases in which the planner is free, for the regret of its choice."""

    def free(name: str, small: int, full: int, d: int = 16, **settings: Any) -> Case:
        return Case(name, _by(size, small, full), d, solver="auto", **settings)

    if size == "smoke":
        return [Case("smoke free", 1200, solver="auto"), Case("smoke polynomial", 900, 40, "polynomial", solver="auto")]
    return [
        free("rbf, all in memory", 3000, 8000),
        free("rbf, tiles or iteration", 4000, 14_000, memory_limit=_by(size, "360MiB", "1GiB")),
        free("rbf, much to iterate", 4000, 20_000, memory_limit=_by(size, "400MiB", "1GiB")),
        free("rbf on a client", 4000, 12_000, memory_limit="1GiB", client=True),
        free("rbf, one worker", 3000, 10_000, memory_limit=_by(size, "300MiB", "600MiB"), workers=1),
        free("laplacian d=32", 3000, 9000, 32, kernel="laplacian", memory_limit=_by(size, "360MiB", "700MiB")),
        free("polynomial, D = 1,326", 1500, 4000, 50, kernel="polynomial"),
        free("polynomial, D = 3,321", 3000, 4000, 80, kernel="polynomial"),
        free("linear, n about d", 2500, 6000, _by(size, 2000, 5000), kernel="linear"),
        free("linear, long, Zarr", 100_000, 1_000_000, 200, kernel="linear", x_in_store=True),
    ]
