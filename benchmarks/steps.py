"""The table of benchmarks, as data: what is run at each size, what is shown of it, and what it should reach.

A path such as ``dkrr.plan.tile`` leads through the entries of a line of JSON. ``|max``, ``|min``, ``|sum`` and
``|median`` behind it reduce the values at the path, and ``|peak`` adds the peak memory of a fit's processes (see
`benchmarks.results`). ``a,b`` is the first path that exists.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from benchmarks.grids import Size

Style = Literal["text", "count", "seconds", "bytes", "ratio", "thousandths", "fine", "percent", "number", "exponent"]


@dataclass(frozen=True)
class Column:
    """Column of a table."""

    heading: str
    path: str
    style: Style = "text"
    over: str = ""
    """Path of what the value is divided by."""


@dataclass(frozen=True)
class Goal:
    """A bound on one value, or on the ratio of two."""

    text: str
    path: str
    over: str = ""
    """Path of what the value is divided by."""
    unit: float = 1.0
    """Unit of the values."""
    at_most: float | None = None
    at_least: float | None = None
    where: Mapping[str, Any] = field(default_factory=dict)
    """Lines that count: those with these values at these paths."""
    rows: Literal["median", "worst"] = "median"
    """Which of several lines: repetitions of one measurement, or different ones that must all meet the bound."""


@dataclass(frozen=True)
class Step:
    """Command and its table."""

    name: str
    title: str
    commands: Mapping[Size, str]
    """After ``python -m``; ``{out}`` is the folder of results, ``{cache}`` that of data, ``{lines}`` see `uses`."""
    columns: tuple[Column, ...] = ()
    """None: every number and text on the first level of a line."""
    goals: tuple[Goal, ...] = ()
    where: Mapping[str, Any] = field(default_factory=dict)
    """Lines that are rows of the table."""
    same: tuple[str, ...] = ()
    """Paths whose values the repetitions of one measurement share; the page shows the one with the median time."""
    time: str = "seconds"
    """Path of that time."""
    is_timed: bool = True
    """False: simulated or drawn, which other load does not change."""
    environment: Mapping[str, str] = field(default_factory=dict)
    uses: str = ""
    """Step whose lines it gets in the file ``{lines}``."""
    pictures: tuple[str, ...] = ()
    """Files in the folder of results that the command makes."""
    timeout: float = 3600.0
    """Seconds."""
    notes: str = ""
    """Text of the page about what is compared; no figures."""
    minutes: float = 0.0
    """Expected at size full, on two idle cores."""
    on_request: bool = False
    """At size full only if it is named: it takes long, or no claim depends on it."""

    @property
    def module(self) -> str:
        """Name of the module that is run, without the package."""
        return next(iter(self.commands.values())).split()[0].removeprefix("benchmarks.")


_NO_PEER: Mapping[str, Any] = {"peer": None}
_FOURIER = (
    Column("rows", "n", "count"),
    Column("columns", "d", "count"),
    Column("where", "where"),
    Column("features", "features", "count"),
    Column("time", "seconds", "seconds"),
    Column("projected", "projected_seconds", "seconds"),
    Column("true residual", "residual", "exponent"),
    Column("peak", "peak_bytes", "bytes"),
    Column("projected memory", "projected_bytes", "bytes"),
)
_FOURIER_PEERS = (
    Column("peer", "peer"),
    Column("dkrr, the same rows", "dkrr_seconds", "seconds"),
    Column("ratio", "ratio", "fine"),
    Column("predictions differ by", "difference", "exponent"),
)
HASWELL = {"OPENBLAS_CORETYPE": "Haswell"}
"""Environment in which OpenBLAS takes its kernels for AVX2, whatever newer instructions the processor has."""
SKLEARN = "peers.sklearn.seconds,peers.sklearn_one_thread.seconds"
SKLEARN_PEAK = "peers.sklearn.peak_bytes,peers.sklearn_one_thread.peak_bytes"
PEAK = "dkrr|peak"
_SOLVE = (
    Column("n", "settings.n", "count"),
    Column("limit", "settings.memory_limit"),
    Column("solver", "settings.solver"),
    Column("planned", "dkrr.plan.summary"),
    Column("time", "dkrr.seconds", "seconds"),
    Column("projected", "dkrr.projected_seconds", "seconds"),
    Column("true residual", "dkrr.residual", "exponent"),
    Column("peak, all processes", PEAK, "bytes"),
    Column("largest over the projected", "dkrr.memory.largest_over_projected", "ratio"),
    Column("n³/3 over the time, GFLOP/s", "dkrr.gflops", "number"),
    Column("of GEMM", "ratios.gemm", "ratio"),
    Column("factorisation alone", "ratios.gemm_factorisation_only", "ratio"),
    Column("SciPy", "peers.scipy.seconds,peers.scipy.outcome", "seconds"),
    Column("its POTRF, GFLOP/s", "peers.scipy.cholesky_gflops", "number"),
    Column("peak", "peers.scipy.peak_bytes", "bytes"),
    Column("dkrr / SciPy", "dkrr.seconds", "ratio", over="peers.scipy.seconds"),
    Column("scikit-learn", "peers.sklearn.seconds,peers.sklearn.outcome", "seconds"),
    Column("on one thread", "peers.sklearn_one_thread.seconds,peers.sklearn_one_thread.outcome", "seconds"),
    Column("peak", SKLEARN_PEAK, "bytes"),
    Column("dkrr / scikit-learn", "dkrr.seconds", "ratio", over=SKLEARN),
    Column("Dask", "peers.dask.seconds,peers.dask.outcome", "seconds"),
    Column("peak", "peers.dask|peak", "bytes"),
    Column("dkrr / Dask", "dkrr.seconds", "ratio", over="peers.dask.seconds"),
)
_FIT = (
    Column("", "peer,solver"),
    Column("n", "n", "count"),
    Column("planned", "planned"),
    Column("time", "seconds", "seconds"),
    Column("projected", "projected_seconds", "seconds"),
    Column("iterations", "iterations", "count"),
    Column("rank", "rank", "count"),
    Column("true residual", "residual", "exponent"),
    Column("peak", "peak_bytes", "bytes"),
    Column("projected", "projected_peak_bytes", "bytes"),
    Column("R²", "r2", "ratio"),
)
_PRIMAL = (
    Column("", "what"),
    Column("n", "n", "count"),
    Column("D", "dimension", "count"),
    Column("time", "seconds", "seconds"),
    Column("projected", "projected_seconds", "seconds"),
    Column("binds", "binds"),
    Column("of the limit: ΦᵀΦ", "ratios.normal_matrix", "ratio"),
    Column("all", "ratios.fit", "ratio"),
    Column("peak", "peak_bytes", "bytes"),
    Column("projected", "projected_peak_bytes", "bytes"),
    Column("Δ coefficients", "coef_difference", "exponent"),
    Column("", "missing,failed,crashed,timed_out"),
)
_LOGISTIC = (
    Column("", "what"),
    Column("n", "n", "count"),
    Column("planned", "planned"),
    Column("accuracy", "accuracy", "fine"),
    Column("AUC", "auc", "fine"),
    Column("log loss", "log_loss", "fine"),
    Column("time", "seconds", "seconds"),
    Column("projected", "projected_seconds", "seconds"),
    Column("Newton steps", "newton_steps", "count"),
    Column("inner iterations", "inner_iterations", "count"),
    Column("relative gradient, or residual", "residual", "exponent"),
    Column("VmHWM of the calling process", "process_peak_bytes", "bytes"),
    Column("projected peak", "projected_peak_bytes", "bytes"),
    Column("", "failed,crashed,timed_out"),
)
_LOGISTIC_FIT = {"estimator": "logistic"}
WITHIN = {"memory_limit": "500MB", "solver": "auto"}
_COLD = {"what": "dkrr, cold"}
_SMOKE_SOLVE = "--n 600 --peers gemm --gemm-seconds 0.05 --client --force-workers"
DIRECT, AUTO = {"settings.solver": "cholesky"}, {"settings.solver": "auto"}
FLOAT32 = {"settings.solver": "float32"}
_BOTH, _TILES = "--solver cholesky --solver auto", "--solver cholesky --solver float32"


def _peer_goals(
    n: int, name: str, seconds: str, memory: str, *, most_time: float, most_memory: float
) -> tuple[Goal, ...]:
    """Bounds of the factorisation on tiles."""
    what = f"{name}'s, n = {n:,} on tiles"
    return (
        Goal(f"time over {what}", "dkrr.seconds", seconds, at_most=most_time, where=DIRECT),
        Goal(f"peak memory over {what}", PEAK, memory, at_most=most_memory, where=DIRECT),
    )


def _in_memory(n: int, limit: str, repeat: int, minutes: float, most: float) -> Step:
    """Factors in float32 and in float64 beside the peers, with enough memory for the matrix."""
    what = f"n = {n:,} in memory"
    scipy, memory = "peers.scipy.seconds", "peers.scipy.peak_bytes"
    return Step(
        f"solve-{n}",
        f"In memory, n = {n:,}",
        {
            "small": f"benchmarks.solve --n {n // 5} --memory-limit {limit} {_BOTH} --peers gemm,scipy,sklearn",
            "full": f"benchmarks.solve --n {n} --memory-limit {limit} {_BOTH} --peers gemm,scipy,sklearn"
            f" --repeat {repeat}",
        },
        minutes=minutes,
        columns=_SOLVE,
        same=("settings.solver",),
        time="dkrr.seconds",
        goals=(
            Goal(f"time over SciPy's, {what}, auto", "dkrr.seconds", scipy, at_most=most, where=AUTO),
            Goal(f"time over scikit-learn's, {what}, auto", "dkrr.seconds", SKLEARN, at_most=0.25, where=AUTO),
            *(
                [Goal(f"peak memory over SciPy's, {what}, auto", PEAK, memory, at_most=0.5, where=AUTO)]
                if n >= 10_000  # of fewer rows the libraries take most
                else []
            ),
            Goal(f"true residual, {what}, auto", "dkrr.residual", at_most=1e-12, where=AUTO),
            Goal(f"time over SciPy's, {what}, cholesky", "dkrr.seconds", scipy, at_most=1.0, where=DIRECT),
        ),
    )


def _with_older_kernels(step: Step, minutes: float) -> Step:
    """Step of the same solves beside SciPy, by OpenBLAS's kernels for AVX2."""
    commands = {size: re.sub(r" --(peers|repeat|timeline) \S+", "", text) for size, text in step.commands.items()}
    peers = {"smoke": "gemm"}
    return replace(
        step,
        name=f"{step.name}-haswell",
        title=f"{step.title}, Haswell kernels",
        commands={size: f"{text} --peers {peers.get(size, 'gemm,scipy')}" for size, text in commands.items()},
        environment=HASWELL,
        notes="",
        minutes=minutes,
        goals=(),
        pictures=(),
    )


def _primal_goals(cache: str) -> tuple[Goal, ...]:
    where = {"what": f"dkrr, {cache}"}
    return (Goal(f"ΦᵀΦ over what binds, {cache}", "ratios.normal_matrix", at_least=0.75, where=where),)


_SELECTION = (
    Column("n", "n", "count"),
    Column("planned", "planned"),
    Column("time", "seconds", "seconds"),
    Column("projected", "projected_seconds", "seconds"),
    Column("one fit", "one_fit_seconds", "seconds"),
    Column("over one fit", "ratio", "ratio"),
    Column("peak", "peak_bytes", "bytes"),
)
_CV_PLUS = {"what": "CV+"}


def _projected(what: str, within: str = "") -> tuple[Goal, ...]:
    """Bounds of the time of a selection, without the last fit, over that of its plan."""
    measured, planned = f"{within}selection_seconds", f"{within}projected_seconds"
    return (
        Goal(f"time over the projected, {what}", measured, planned, at_most=1.5),
        Goal(f"projected time over it, {what}", planned, measured, at_most=1.5),
    )


def _selection_grid(n: int, minutes: float) -> Step:
    """Ten λ × five folds of QM9 within 4 GiB beside one fit, and GridSearchCV where that can be extrapolated."""
    what, has_peer = f"10 λ × 5 folds and the last fit, n = {n:,}", n <= 20_000
    peer = "" if has_peer else " --no-peer"
    return Step(
        f"selection-grid-{n}",
        f"Choosing λ by conjugate gradient within 4 GiB, QM9, n = {n:,}",
        {
            "small": f"benchmarks.selection grid --n {n // 10}{peer} --cache {{cache}}",
            "full": f"benchmarks.selection grid --n {n}{peer} --cache {{cache}}",
        },
        (
            *_SELECTION[:2],
            Column("λ × folds", "selection_seconds", "seconds"),
            Column("projected", "projected_seconds", "seconds"),
            Column("with the last fit", "seconds", "seconds"),
            *_SELECTION[4:],
            Column("λ stopped", "stopped", "count"),
            Column("GridSearchCV, extrapolated", "peer_seconds", "seconds"),
            Column("over it", "ratio_to_peer", "ratio"),
        ),
        (
            Goal(f"{what}, over one fit", "ratio", at_most=3.0),
            Goal(f"peak memory, {what}, GiB", "peak_bytes", unit=2.0**30, at_most=4.0),
            *([Goal(f"{what}, over GridSearchCV", "ratio_to_peer", at_most=0.1)] if has_peer else []),
            *_projected(what),
        ),
        timeout=7200.0,
        on_request=True,
        minutes=minutes,
    )


_SOLVES = (
    _in_memory(5000, "8GiB", 5, 0.7, 0.7),
    _in_memory(10_000, "8GiB", 3, 1.2, 0.5),
    _in_memory(14_000, "8GiB", 1, 1.1, 0.5),
    _in_memory(16_384, "2GiB", 1, 2.2, 0.6),
    Step(
        "solve-16384-tiles",
        "In tiles on disk within 2 GiB, n = 16,384",
        {
            "smoke": f"benchmarks.solve {_SMOKE_SOLVE} {_TILES}",
            "small": f"benchmarks.solve --n 4096 --memory-limit 1GiB --client --force-workers {_TILES}",
            "full": f"benchmarks.solve --n 16384 --memory-limit 2GiB --client {_TILES} --peers gemm,dask "
            "--timeline {out}/timeline-16384.png",
        },
        notes="The workers of dkrr and of Dask run before the time starts.",
        minutes=2.9,
        columns=_SOLVE,
        goals=(
            Goal("part of the GEMM rate, n = 16,384", "ratios.gemm", at_least=0.75, where=DIRECT),
            *_peer_goals(
                16_384,
                "dask.array.linalg.cholesky",
                "peers.dask.seconds",
                "peers.dask|peak",
                most_time=0.75,
                most_memory=0.35,
            ),
        ),
        pictures=("timeline-16384.png",),
    ),
    Step(
        "solve-32768",
        "Within 3 GiB, n = 32,768",
        {
            "full": f"benchmarks.solve --n 32768 --memory-limit 3GiB --client --peers gemm {_TILES} --solver auto "
            "--timeline {out}/timeline-32768.png"
        },
        notes="The matrix has 8 GiB. The workers run before the time starts.",
        minutes=3.8,
        columns=_SOLVE,
        goals=(
            Goal("part of the GEMM rate, n = 32,768", "ratios.gemm", at_least=0.85, where=DIRECT),
            Goal("part of the GEMM rate, n = 32,768, float32", "ratios.gemm", at_least=1.2, where=FLOAT32),
        ),
        pictures=("timeline-32768.png",),
    ),
)

STEPS: tuple[Step, ...] = (
    *_SOLVES[:-1],
    Step(
        "solve-14000-disk",
        "Within 1 GiB, n = 14,000",
        {
            "small": "benchmarks.solve --n 4000 --memory-limit 1GiB --client --force-workers "
            "--peers gemm,scipy,sklearn",
            "full": "benchmarks.solve --n 14000 --memory-limit 1GiB --client --peers gemm,scipy,sklearn",
        },
        _SOLVE,
        _peer_goals(14_000, "SciPy", "peers.scipy.seconds", "peers.scipy.peak_bytes", most_time=1.0, most_memory=0.5),
        minutes=1.2,
        on_request=True,
    ),
    _with_older_kernels(_SOLVES[0], 0.2),
    _with_older_kernels(_SOLVES[1], 0.5),
    _with_older_kernels(_SOLVES[2], 0.9),
    _with_older_kernels(_SOLVES[4], 1.0),
    _SOLVES[-1],
    Step(
        "iterative-beside",
        "Conjugate gradient beside direct solvers",
        {
            "smoke": "benchmarks.iterative beside --n 800",
            "small": "benchmarks.iterative beside --n 3000",
            "full": "benchmarks.iterative beside",
        },
        (*_FIT[:1], Column("limit", "memory_limit"), *_FIT[1:]),
        (
            Goal("peak memory, n = 10,000 within 500 MB, MB", "peak_bytes", unit=1e6, at_most=500.0, where=WITHIN),
            Goal("true residual, n = 10,000 within 500 MB", "residual", at_most=1e-6, where=WITHIN),
        ),
        minutes=1.0,
    ),
    Step(
        "iterative-headline",
        "QM9 within 4 GiB, all rows at once",
        {
            "small": "benchmarks.iterative headline --n 5000 --no-compare --cache {cache}",
            "full": "benchmarks.iterative headline --cache {cache}",
        },
        (
            Column("", "peer,kernel"),
            Column("centres", "centres", "count"),
            Column("drawn", "pivots"),
            *_FIT[1:],
            Column("MAE, kcal/mol", "mae", "ratio"),
            Column("", "crashed,failed"),
        ),
        minutes=18.0,
    ),
    Step(
        "small",
        "Small fits beside scikit-learn",
        {"smoke": "benchmarks.small --n 100", "small": "benchmarks.small", "full": "benchmarks.small"},
        (
            Column("n", "n", "count"),
            Column("dkrr, fit and one row", "dkrr.seconds", "seconds"),
            Column("scikit-learn", "sklearn.seconds", "seconds"),
            Column("ratio", "ratio", "ratio"),
            Column("dkrr, one row predicted", "dkrr.one_row_seconds", "seconds"),
            Column("scikit-learn", "sklearn.one_row_seconds", "seconds"),
            Column("ratio", "one_row_ratio", "ratio"),
        ),
        (
            Goal("fit and one row over scikit-learn's, the worst n", "ratio", at_most=1.2, rows="worst"),
            *(
                Goal(f"fit and one row over scikit-learn's, n = {n:,}", "ratio", at_most=0.6, where={"n": n})
                for n in (1000, 2000, 5000)
            ),
            Goal("one row predicted over scikit-learn's, the worst n", "one_row_ratio", at_most=1.2, rows="worst"),
        ),
        minutes=0.3,
    ),
    Step(
        "growing",
        "Growing a model beside fitting all rows again",
        {
            "smoke": "benchmarks.growing run --n 400 --rows 60 --batch 20 --growths 3 --store-growths 2 --repeat 1",
            "small": "benchmarks.growing run --n 4000 --rows 2000 --growths 30 --store-growths 5 --repeat 1",
            "full": "benchmarks.growing run",
        },
        (
            Column("", "case"),
            Column("rows", "n", "count"),
            Column("new", "new", "count"),
            Column("grown", "seconds", "seconds"),
            Column("refit", "refit_seconds", "seconds"),
            Column("ratio", "ratio", "thousandths"),
            Column("coefficients or deviations differ by", "difference", "exponent"),
            Column("true residual", "residual", "exponent"),
            Column("of the refit", "refit_residual", "exponent"),
            Column("of an updated inverse", "updated_inverse_residual", "exponent"),
            Column("peak", "peak_bytes", "bytes"),
            Column("of the refit", "refit_peak_bytes", "bytes"),
            Column("", "failed"),
        ),
        tuple(
            Goal(f"over a refit, {text}", "ratio", at_most=most, where={"case": case})
            for case, most, text in (
                ("more rows", 0.2, "1,000 rows more than 20,000 in a store"),
                ("few rows", 0.06, "100 rows more than 20,000 in a store"),
                ("new targets", 0.03, "other targets of 20,000 rows"),
                ("left out", 0.05, "20 of 20,000 rows left out"),
                ("active learning", 1 / 15, "active learning to 10,000 rows by 100"),
                ("residual", 2.0, "residual after 100 growths"),
                ("residual, small alpha", 2.0, "residual after 100 growths, alpha = 1e-8"),
                ("residual, store", 2.0, "residual after 20 growths in a store"),
            )
        ),
        notes="Residuals are compared in place of times. The rounds of active learning that are compared are every "
        "tenth; the refit has uncertainty=True, so that it factors once.",
        minutes=15.0,
    ),
    Step(
        "primal-linear",
        "Primal form: n = 5,000,000 × d = 100 from Zarr within 1 GiB",
        {
            "smoke": "benchmarks.primal linear --n 4000 --d 10 --rate-seconds 0.05",
            "small": "benchmarks.primal linear --n 200000",
            "full": "benchmarks.primal linear",
        },
        _PRIMAL,
        (
            *_primal_goals("cold"),
            *_primal_goals("warm"),
            Goal("peak memory of a process, n = 5,000,000, GiB", "peak_bytes", unit=2.0**30, at_most=1.0, where=_COLD),
        ),
        minutes=1.8,
    ),
    Step(
        "primal-polynomial",
        "Primal form: polynomial features expanded on the fly",
        {
            "smoke": "benchmarks.primal polynomial --size 2000 8 --rate-seconds 0.05",
            "small": "benchmarks.primal polynomial --size 20000 30",
            "full": "benchmarks.primal polynomial",
        },
        _PRIMAL,
        on_request=True,
    ),
    Step(
        "primal-sparse",
        "Primal form: sparse rows that stay sparse",
        {
            "smoke": "benchmarks.primal sparse --n 2000 --d 500",
            "small": "benchmarks.primal sparse --n 20000 --d 5000",
            "full": "benchmarks.primal sparse",
        },
        _PRIMAL,
        on_request=True,
    ),
    Step(
        "selection-primal",
        "Choosing λ in the primal form: n = 5,000,000 × d = 100",
        {
            "smoke": "benchmarks.selection primal --n 4000 --d 10",
            "small": "benchmarks.selection primal --n 200000",
            "full": "benchmarks.selection primal",
        },
        (
            *_SELECTION[:1],
            Column("d", "d", "count"),
            *_SELECTION[1:],
            Column("one pass over the rows", "pass_seconds", "seconds"),
            Column("over it", "ratio_to_pass", "ratio"),
        ),
        (
            Goal("λ × folds over one pass, n = 5,000,000", "ratio_to_pass", at_most=2.0),
            *_projected("λ × folds, n = 5,000,000"),
        ),
        notes="The time of λ × folds does not include the last fit.",
        on_request=True,
        minutes=0.5,
    ),
    _selection_grid(20_000, 3.0),
    _selection_grid(100_000, 25.0),
    Step(
        "selection-loo",
        "Leave-one-out beside one factorisation, n = 16,384",
        {
            "smoke": "benchmarks.selection loo --n 400",
            "small": "benchmarks.selection loo --n 4096",
            "full": "benchmarks.selection loo",
        },
        _SELECTION,
        (
            Goal("leave-one-out over one factorisation, n = 16,384", "ratio", at_most=2.3),
            *_projected("leave-one-out, n = 16,384"),
        ),
        on_request=True,
        minutes=2.0,
    ),
    Step(
        "selection-targets",
        "A λ for each of 1,000 targets beside himalaya (where it is installed)",
        {
            "smoke": "benchmarks.selection targets --n 200 --targets 5",
            "small": "benchmarks.selection targets --n 2500",
            "full": "benchmarks.selection targets",
        },
        (
            Column("n", "n", "count"),
            Column("targets", "n_targets", "count"),
            Column("planned", "dkrr.planned"),
            Column("dkrr", "dkrr.seconds", "seconds"),
            Column("projected, without the last fit", "dkrr.projected_seconds", "seconds"),
            Column("peak", "dkrr.peak_bytes", "bytes"),
            Column("himalaya", "himalaya.seconds,himalaya.missing,himalaya.failed,himalaya.timed_out", "seconds"),
            Column("peak", "himalaya.peak_bytes", "bytes"),
            Column("dkrr / himalaya: time", "ratios.seconds", "ratio"),
            Column("memory", "ratios.peak_bytes", "ratio"),
            Column("the same λ", "ratios.same_alpha", "percent"),
            Column("scores differ by", "ratios.score_difference", "exponent"),
        ),
        (
            Goal("time over himalaya's, 1,000 targets, n = 10,000", "ratios.seconds", at_most=1.0),
            Goal("peak memory over himalaya's, 1,000 targets, n = 10,000", "ratios.peak_bytes", at_most=0.5),
            *_projected("1,000 targets, n = 10,000", "dkrr."),
        ),
        timeout=7200.0,
        on_request=True,
        minutes=25.0,
    ),
    Step(
        "coverage",
        "Coverage of intervals on real data, 90 % nominal",
        {
            "smoke": "benchmarks.coverage --data diabetes --n 60 --splits 1",
            "small": "benchmarks.coverage --n 600 --splits 2 --cache {cache}",
            "full": "benchmarks.coverage --n 1000 --cache {cache}",
        },
        (
            Column("", "data"),
            Column("intervals", "what"),
            Column("rows", "n", "count"),
            Column("splits", "splits", "count"),
            Column("coverage", "coverage", "fine"),
            Column("least of a split", "least_coverage", "fine"),
            Column("largest", "largest_coverage", "fine"),
            Column("mean width", "width", "number"),
            Column("standard deviation of the targets", "deviation_of_targets", "number"),
            Column("", "unit"),
        ),
        (
            Goal("coverage of CV+ at 90 %, the least", "coverage", at_least=0.88, where=_CV_PLUS, rows="worst"),
            Goal("coverage of CV+ at 90 %, the largest", "coverage", at_most=0.94, where=_CV_PLUS, rows="worst"),
        ),
        is_timed=False,
        notes="Both intervals are of the same models, which ten folds of the training rows chose.",
        on_request=True,
        minutes=3.0,
    ),
    Step(
        "forms-measure",
        "Primal or dual: where both take as long",
        {
            "smoke": "benchmarks.forms measure --case linear --kind form --d 40 --n 30 --n 80",
            "small": "benchmarks.forms measure --kind form --most-n 2000",
            "full": "benchmarks.forms measure",
        },
        (
            Column("kernel", "case"),
            Column("crossing", "kind"),
            Column("d", "d", "count"),
            Column("D", "dimension", "count"),
            Column("n at which both should take as long", "predicted", "count"),
            Column("n at which they do", "measured", "count"),
            Column("predicted / measured", "predicted", "ratio", over="measured"),
            Column("n from which the planner switches", "switches", "count"),
        ),
        timeout=7200.0,
        on_request=True,
    ),
    Step(
        "forms-draw",
        "Primal or dual, direct or iterative: what the planner picks",
        {
            "small": "benchmarks.forms draw --per-decade 8 --out {out}/forms.png --measured {lines}",
            "full": "benchmarks.forms draw --out {out}/forms.png --measured {lines}",
        },
        is_timed=False,
        uses="forms-measure",
        pictures=("forms.png",),
        on_request=True,
    ),
    Step(
        "plans-grid",
        "Plans against reality: predicted / measured",
        {
            "smoke": "benchmarks.plans grid --size smoke",
            "small": "benchmarks.plans grid --size small --retries {retries}",
            "full": "benchmarks.plans grid --size full --retries {retries}",
        },
        (
            Column("case", "case"),
            Column("planned", "group"),
            Column("n", "settings.n", "count"),
            Column("d", "settings.d", "count"),
            Column("time", "measured.seconds", "seconds"),
            Column("seconds", "ratios.seconds", "ratio"),
            Column("at its iterations", "ratios_at_iterations.seconds", "ratio"),
            Column("read", "ratios_at_iterations.read_bytes", "ratio"),
            Column("written", "ratios_at_iterations.written_bytes", "ratio"),
            Column("peak memory", "ratios.peak_bytes", "ratio"),
            Column("", "misses,failed,crashed,timed_out"),
        ),
        (
            Goal("half of all plans off by a factor of", "summary.all.seconds.off", at_most=1.25),
            Goal("the worst plan off by a factor of", "summary.all.seconds.worst_off", at_most=2.0),
            Goal("bytes read off by a factor of", "summary.all.read_bytes.worst_off", at_most=1.05),
            Goal("bytes written off by a factor of", "summary.all.written_bytes.worst_off", at_most=1.05),
            Goal("least projected / measured peak", "summary.all.peak_bytes.least", at_least=1.0),
            Goal("cases that failed", "n_failed", at_most=0.0),
        ),
        timeout=5400.0,
        minutes=8,
    ),
    Step(
        "plans-regret",
        "Regret: time of the chosen plan over the best one's",
        {
            "smoke": "benchmarks.regret run --size smoke",
            "full": "benchmarks.regret run --size full --retries {retries}",
        },
        (
            Column("problem", "case"),
            Column("n", "settings.n", "count"),
            Column("d", "settings.d", "count"),
            Column("ways run", "ways", "count"),
            Column("regret", "regret", "ratio"),
            Column("fastest", "best"),
            Column("also with what is not taken unasked", "regret_of_all", "ratio"),
            Column("fastest of all", "best_of_all"),
            Column("choices that other rates change", "n_changed", "count"),
        ),
        (
            Goal("worst regret", "summary.regret.worst", at_most=1.25),
            Goal("median regret", "summary.regret.median", at_most=1.05),
        ),
        timeout=7200.0,
        on_request=True,
    ),
    Step(
        "iterative-ranks",
        "The rank that is found beside fixed ones (QM9)",
        {
            "small": "benchmarks.iterative ranks --n 3000 --cache {cache}",
            "full": "benchmarks.iterative ranks --cache {cache}",
        },
        _FIT,
        on_request=True,
    ),
    Step(
        "iterative-rate",
        "Kernel entries of a product over what the kernel alone makes",
        {
            "smoke": "benchmarks.iterative rate --n 2100 --d 16",
            "small": "benchmarks.iterative rate --n 6000",
            "full": "benchmarks.iterative rate",
        },
        (
            Column("d", "d", "count"),
            Column("precision", "precision"),
            Column("kernel alone, entries/s a core", "kernel_rate", "exponent"),
            Column("product, entries/s", "product_rate", "exponent"),
            Column("part of the limit", "part", "ratio"),
        ),
        on_request=True,
    ),
    Step(
        "iterative-loop",
        "Conjugate gradient over its products alone",
        {
            "small": "benchmarks.iterative loop --n 6000 --cache {cache}",
            "full": "benchmarks.iterative loop --cache {cache}",
        },
        (
            Column("n", "n", "count"),
            Column("iterations", "iterations", "count"),
            Column("fit over its products", "ratio", "ratio"),
            Column("without preconditioner", "ratio_iterating", "ratio"),
            Column("product over plain loop", "ratio_plain", "ratio"),
        ),
        on_request=True,
    ),
    Step(
        "iterative-factor",
        "A float32 factor as preconditioner beside the float64 factorisation",
        {
            "small": "benchmarks.iterative factor --n 4000 --memory-limit 1GiB",
            "full": "benchmarks.iterative factor --n 16384 --memory-limit 2GiB",
        },
        _FIT,
        (
            Goal("time of the float32 factor over float64", "ratios.time", at_most=0.65),
            Goal("disk of the float32 factor over float64", "ratios.disk", at_most=0.55),
        ),
        on_request=True,
        minutes=0.8,
    ),
    Step(
        "iterative-panel",
        "Residual after 100 iterations by preconditioner (QM9)",
        {
            "small": "benchmarks.iterative panel --n 2000 --cache {cache}",
            "full": "benchmarks.iterative panel --cache {cache}",
        },
        (
            Column("", "solver"),
            Column("rank", "rank", "count"),
            Column("time", "seconds", "seconds"),
            Column("residual after 100", "residual_at_100", "exponent"),
        ),
        on_request=True,
    ),
    Step(
        "wide-reproduce",
        "Simulation beside real runs with 1 and 2 workers",
        {
            "small": "benchmarks.wide reproduce --n 4096 --tile 512 --costs {out}/costs-small.json",
            "full": "benchmarks.wide reproduce --n 8192 --costs {out}/costs.json",
        },
        (
            Column("n", "n", "count"),
            Column("workers", "workers", "count"),
            Column("tile", "tile", "count"),
            Column("factorisation", "factorisation_seconds", "seconds"),
            Column("simulated / measured, by 1 worker's costs", "one_worker_costs.ratio", "ratio"),
            Column("by its own costs", "own_costs.ratio", "ratio"),
            Column("whole fit", "seconds", "seconds"),
            Column("simulated / measured", "one_worker_costs.whole_ratio", "ratio"),
        ),
        (
            Goal(
                "whole fit, simulated / measured, largest", "one_worker_costs.whole_ratio", at_most=1.15, rows="worst"
            ),
            Goal("whole fit, simulated / measured, least", "one_worker_costs.whole_ratio", at_least=0.85, rows="worst"),
        ),
        where={"benchmark": "wide.reproduce"},
        minutes=0.4,
    ),
    Step(
        "wide-answer",
        "Wide clusters, simulated",
        {
            "small": "benchmarks.wide answer --n 50000 --workers 8 --workers 64 --store 20GB --weak 8 32",
            "full": "benchmarks.wide answer --costs {out}/costs.json",
        },
        (
            Column("n", "n", "count"),
            Column("workers", "workers", "count"),
            Column("tile", "tile", "count"),
            Column("tile columns per task", "columns_per_task", "count"),
            Column("time", "seconds", "seconds"),
            Column("efficiency", "efficiency", "ratio"),
            Column("read a second", "read_rate", "bytes"),
            Column("at most", "peak_read_rate", "bytes"),
            Column("core-hours", "core_hours", "number"),
            Column("with stragglers and losses", "trouble.seconds", "seconds"),
            Column("one task a tile, over it", "parts_pay", "ratio"),
        ),
        where={"benchmark": "wide.answer"},
        is_timed=False,
        on_request=True,
    ),
    Step(
        "wide-draw",
        "Efficiency on wide clusters",
        {"full": "benchmarks.wide draw --costs {out}/costs.json --out {out}/wide.png"},
        (Column("n", "n", "count"), Column("tasks", "tasks")),
        is_timed=False,
        pictures=("wide.png",),
        on_request=True,
    ),
    Step(
        "logistic-small",
        "Kernel logistic regression: small data sets",
        {
            "smoke": "benchmarks.logistic small --most-rows 200",
            "small": "benchmarks.logistic small --most-rows 2000",
            "full": "benchmarks.logistic small",
        },
        (Column("data", "data"), *_LOGISTIC),
        (
            Goal("error on the noisy circles", "error", at_most=0.18, where=_LOGISTIC_FIT | {"data": "circles"}),
            Goal("relative gradient, the worst", "residual", at_most=1e-8, where=_LOGISTIC_FIT, rows="worst"),
        ),
        minutes=0.3,
    ),
    Step(
        "logistic-flights",
        "Kernel logistic regression in primal form: late flights from Zarr within 1 GiB",
        {
            "smoke": "benchmarks.logistic flights --n 2000 --n-test 1000",
            "small": "benchmarks.logistic flights --n 50000",
            "full": "benchmarks.logistic flights",
        },
        (
            *_LOGISTIC[:1],
            Column("d", "d", "count"),
            Column("D", "dimension", "count"),
            *_LOGISTIC[1:],
            Column("read", "read_bytes", "bytes"),
            Column("largest difference of probabilities", "probability_difference", "exponent"),
        ),
        (
            Goal(
                "peak memory of the process, late flights, GiB",
                "process_peak_bytes",
                unit=2.0**30,
                at_most=1.0,
                where=_LOGISTIC_FIT,
                rows="worst",
            ),
        ),
        on_request=True,
    ),
    Step(
        "logistic-core",
        "Kernel logistic regression out of core: a Newton step over a ridge regression",
        {
            "smoke": "benchmarks.logistic core --n 300 --n-test 300 --tile 128 --force-workers",
            "small": "benchmarks.logistic core --n 3000 --n-test 5000 --memory-limit 1GiB --force-workers",
            "full": "benchmarks.logistic core --n 10000 --memory-limit 1GiB",
        },
        (
            *_LOGISTIC[:1],
            Column("tile", "tile", "count"),
            *_LOGISTIC[1:],
            Column("a Newton step", "mean_step_seconds", "seconds"),
            Column("over the ridge regression", "step_over_ridge", "ratio"),
            Column("peak of a worker", "peak_bytes", "bytes"),
        ),
        (
            *(
                Goal(f"a Newton step over a ridge regression, {s}", "step_over_ridge", at_most=1.3, where=where)
                for s, where in ((s, {"what": f"dkrr, {s}"}) for s in ("cholesky", "cg"))
            ),
            Goal(
                "largest peak memory over the projected, out of core", "peak_over_projected", at_most=1.0, rows="worst"
            ),
        ),
        timeout=7200.0,
        minutes=0.8,
    ),
    Step(
        "logistic-path",
        "Kernel logistic regression: ten values of λ together and apart",
        {
            "smoke": "benchmarks.logistic path --n 200 --n-test 200 --values 3",
            "small": "benchmarks.logistic path --n 2000",
            "full": "benchmarks.logistic path --n 8000",
        },
        (
            Column("", "what"),
            Column("n", "n", "count"),
            Column("log loss", "log_loss", "fine"),
            Column("together", "seconds", "seconds"),
            Column("Newton steps", "newton_steps", "count"),
            Column("inner iterations", "inner_iterations", "count"),
            Column("apart", "alone_seconds", "seconds"),
            Column("Newton steps", "alone_steps", "count"),
            Column("inner iterations", "alone_inner", "count"),
            Column("together / apart", "ratio", "ratio"),
            Column("largest difference of probabilities", "probability_difference", "exponent"),
        ),
        (Goal("fit_path over separate fits", "ratio", at_most=1.0),),
        on_request=True,
    ),
    Step(
        "graphs-pairs",
        "Random walks on molecules beside GraKeL (where it is installed)",
        {
            "smoke": "benchmarks.graphs pairs --n 6 --more 10 --repeat 1",
            "small": "benchmarks.graphs pairs --n 20 --more 100",
            "full": "benchmarks.graphs pairs",
        },
        (
            Column("", "case"),
            Column("graphs", "n", "count"),
            Column("dkrr, seconds a pair", "dkrr.seconds", "exponent"),
            Column("GraKeL, seconds a pair", "grakel.seconds", "exponent"),
            Column("ratio", "ratio", "ratio"),
            Column("dkrr, many graphs", "dkrr.more_seconds", "exponent"),
        ),
        (Goal("GraKeL's time over dkrr's, the worst kernel", "ratio", at_least=5.0, rows="worst"),),
        on_request=True,
    ),
    Step(
        "graphs-fit",
        "A regression whose rows are molecular graphs, out of core",
        {
            "smoke": "benchmarks.graphs fit --n 60 --n-test 20 --tile 20",
            "small": "benchmarks.graphs fit --n 400 --n-test 100 --tile 100",
            "full": "benchmarks.graphs fit --n 600 --n-test 300 --tile 150",
        },
        (
            Column("graphs", "n", "count"),
            Column("R²", "r2", "fine"),
            Column("MAE, kcal/mol", "mae_kcal_per_mol", "number"),
            Column("fit", "seconds", "seconds"),
            Column("predict", "predict_seconds", "seconds"),
            Column("memory", "peak_bytes", "bytes"),
            Column("projected", "projected_bytes", "bytes"),
        ),
        minutes=0.5,
    ),
    *(
        Step(
            f"fourier-{name}",
            f"The Fourier form: {title}",
            {"smoke": f"benchmarks.fourier fit --n 20000{options}", "full": f"benchmarks.fourier fit{sized}{peers}"},
            _FOURIER + (_FOURIER_PEERS if peers else ()),
            goals,
            minutes=minutes,
            on_request=bool(peers) or minutes > 2,
            notes=notes,
            same=("peer",),
        )
        for name, title, options, sized, peers, goals, minutes, notes in (
            (
                "fit",
                "10⁶ rows in two columns",
                "",
                " --repeat 3",
                " --peers sklearn:14000,gpytorch:100000",
                (
                    Goal("10⁶ rows in two columns, seconds", "seconds", at_most=3.0, where=_NO_PEER),
                    Goal("true residual of the dual system", "residual", at_most=1e-10, where=_NO_PEER),
                ),
                3.0,
                "Peers have the first rows, and dkrr the same: ratio is its time, with predictions of 1,000 rows, over "
                "a peer's. GPyTorch's KISS-GP interpolates on a grid of 128², to a residual of 1e-4. They are run by "
                "their own interpreter.",
            ),
            (
                "line",
                "10⁶ rows in one column",
                " --d 1",
                " --d 1",
                " --peers celerite2:1000000",
                (),
                0.2,
                "celerite2 has another kernel, a Matérn kernel with ν = 3/2, the smoothest that it has.",
            ),
            (
                "space",
                "10⁶ rows in three columns",
                " --d 3 --gamma 0.5",
                " --d 3 --gamma 20",
                "",
                (Goal("10⁶ rows in three columns, seconds", "seconds", at_most=60.0),),
                0.6,
                "",
            ),
            (
                "ten",
                "10⁷ rows from Zarr within 1 GiB",
                " --where zarr --memory-limit 1GiB",
                " --n 10000000 --where zarr --memory-limit 1GiB",
                "",
                (
                    Goal("10⁷ rows from Zarr, seconds", "seconds", at_most=15.0),
                    Goal("10⁷ rows from Zarr, peak GiB", "peak_bytes", unit=2.0**30, at_most=1.0),
                ),
                0.3,
                "",
            ),
            (
                "hundred",
                "10⁸ rows from Zarr within 2 GiB",
                " --where zarr --memory-limit 2GiB --alpha 1",
                " --n 100000000 --where zarr --memory-limit 2GiB --alpha 1",
                "",
                (
                    Goal("10⁸ rows from Zarr, seconds", "seconds", at_most=180.0),
                    Goal("10⁸ rows from Zarr, peak GiB", "peak_bytes", unit=2.0**30, at_most=2.0),
                ),
                2.5,
                "",
            ),
        )
    ),
    Step(
        "fourier-follow",
        "The Fourier form: what follows from one fit, 10⁶ rows in two columns",
        {"smoke": "benchmarks.fourier follow --n 20000", "full": "benchmarks.fourier follow"},
        (
            Column("rows", "n", "count"),
            Column("fit", "fit_seconds", "seconds"),
            Column("20 λ × 5 folds, and the fit", "search_seconds", "seconds"),
            Column("over the fit", "search_over_fit", "ratio"),
            Column("projected", "search_projected_seconds", "seconds"),
            Column("10⁶ standard deviations, factor included", "deviations_seconds", "seconds"),
            Column("leave-one-out", "loo_seconds", "seconds"),
            Column("classification", "classification_seconds", "seconds"),
            Column("its steps", "classification_steps", "count"),
        ),
        (
            Goal("20 λ × 5 folds over one fit", "search_over_fit", at_most=3.0),
            Goal("10⁶ standard deviations, seconds", "deviations_seconds", at_most=5.0),
        ),
        minutes=0.4,
    ),
    Step(
        "fourier-choice",
        "The Fourier form: the planner's choice around the border",
        {"smoke": "benchmarks.fourier choice --repeat 1", "full": "benchmarks.fourier choice"},
        (
            Column("rows", "n", "count"),
            Column("columns", "d", "count"),
            Column("γ", "gamma", "number"),
            Column("λ", "alpha", "fine"),
            Column("farthest row", "outlier", "number"),
            Column("chosen", "form"),
            Column("primal", "seconds.primal", "seconds"),
            Column("dual", "seconds.dual", "seconds"),
            Column("chosen over the faster one", "regret", "ratio"),
        ),
        (Goal("regret, worst of 20", "regret", at_most=1.25, rows="worst"),),
        minutes=2.2,
    ),
    Step(
        "text",
        "Messages by their words: primal, dual and scikit-learn",
        {"smoke": "benchmarks.text --n 200", "small": "benchmarks.text", "full": "benchmarks.text"},
        (
            Column("", "way"),
            Column("messages", "n", "count"),
            Column("terms", "d", "count"),
            Column("fit", "fit_seconds", "seconds"),
            Column("predict", "predict_seconds", "seconds"),
            Column("accuracy", "accuracy", "fine"),
            Column("agreement", "agreement", "fine"),
            Column("scores differ by", "largest_difference", "exponent"),
        ),
        minutes=0.2,
    ),
    *(
        Step(
            name,
            title,
            {
                "smoke": "benchmarks.blas --n 256",
                "small": "benchmarks.blas --n 1024",
                "full": f"benchmarks.blas --n {n}",
            },
            (
                Column("threads", "threads", "count"),
                Column("n", "n", "count"),
                *(Column(k.upper(), f"gflops.{k}", "number") for k in ("gemm", "syrk", "trsm")),
                Column("our Cholesky", "gflops.cholesky", "number"),
                Column("LAPACK's", "gflops.cholesky_lapack", "number"),
            ),
            (Goal(f"our Cholesky over LAPACK's, {threads}", "own_over_lapack", at_least=1.0),),
            environment=environment,
            minutes=0.2,
        )
        for name, title, n, threads, environment in (
            ("blas", "Dense building blocks, all threads", 4096, "all threads", {}),
            ("blas-haswell", "Dense building blocks, all threads, Haswell kernels", 4096, "Haswell kernels", HASWELL),
            ("blas-one-thread", "Dense building blocks, one thread", 2048, "one thread", {"OPENBLAS_NUM_THREADS": "1"}),
        )
    ),
)


def step_named(name: str) -> Step | None:
    """Step of a name; None if the table has none any more."""
    return next((step for step in STEPS if step.name == name), None)
