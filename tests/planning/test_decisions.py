"""Golden files: what is chosen for some eighty problems, and why, by codes; what every candidate of a few should cost.

A change of the planner shows as a change of these lines, which are for people to judge.
"""

from dataclasses import replace

from dkrr.errors import DkrrError
from dkrr.features import feature_map
from dkrr.fitting.costs.details import Float32Factor
from dkrr.fitting.posterior_plans import plan_uncertainty
from dkrr.fitting.request_plans import make_plan
from dkrr.fitting.score_plans import plan_scores, whole_plan, with_parts
from dkrr.kernels import RBF, AdditiveChi2, Laplacian, Polynomial, Precomputed, Sigmoid
from dkrr.planning.facts import Facts, Spectrum
from dkrr.planning.problem import Layout
from dkrr.planning.resources import Rates, WorkerShare
from dkrr.planning.selection import FoldSizes
from dkrr.solvers import Cholesky, ConjugateGradient, Float32Cholesky, RPCholesky
from dkrr.text import codes_of, plural
from tests.gpus import made_up
from tests.planning.problems import GIB, MIB, cluster, direct, machine, problem

CG = ConjugateGradient()
FLOAT32 = ConjugateGradient(Float32Cholesky())
RANK_701 = ConjugateGradient(RPCholesky(701), "float64")
WIDE = {"is_sparse": True, "row_bytes": 2416, "x_bytes": 60_013 * 2416}


def with_kernel(kernel, n, d, **settings):
    """Problem with a kernel that is not in the table of `problems`."""
    return replace(problem(n, d, **settings), kernel=kernel.resolved(d), feature_map=feature_map(kernel, d))


def decisions():
    """Problems and machines by a name that says what is special of them."""
    laptop, desk, large = machine(4 * GIB), machine(), machine(64 * GIB, 7)
    full = {"disk_free_bytes": GIB}
    elsewhere = {**full, "enforce_disk": False}
    little = machine(64 * GIB, memory_bytes=20 * GIB, **elsewhere)
    share = machine(
        2 * GIB, share=WorkerShare(2, 0.7), local_baseline_bytes=100 * MIB, confined="here, since it is a test"
    )
    columns = {"solver": ConjugateGradient(RPCholesky()), "form": "primal"}
    begun_by_cg = {"keeps_store": True, "layout": Layout("dual", 701, 701, 0, 1, "cg")}
    logistic = {"loss": "logistic", "fit_intercept": True, "tol": 1e-6}
    read = {"kernel": "linear", "x_in_memory": False, **logistic}
    coupled = {"form": "primal", "is_softmax": True, **logistic}
    card = machine(gpu=made_up(60 * GIB))
    slow, small = (machine(gpu=made_up(free, float64=5e11)) for free in (8 * GIB, GIB // 2))
    return {
        # RBF, by size and place
        "one row": (problem(1, 1), desk),
        "few rows": (problem(211, 13), desk),
        "2,003 rows": (problem(2003, 13), desk),
        "20,011 rows": (problem(20_011, 13), desk),
        "20,011 rows, 5 targets, wide": (problem(20_011, 457, n_targets=5), desk),
        "60,013 rows, 4 GiB": (problem(60_013, 13), laptop),
        "60,013 rows, 64 GiB": (problem(60_013, 13), large),
        "a million rows": (problem(1_000_003, 13), machine(8 * GIB)),
        "ten million rows": (problem(10**7, 5), machine(8 * GIB)),
        "too many for tiles": (direct(50_000_000, 13), desk),
        "known spectrum": (problem(60_013, 13, facts=Facts(spectrum=Spectrum(decay=2.1))), laptop),
        "a cluster": (problem(100_003, 13), cluster()),
        "a cluster, small work": (problem(2003, 13), cluster()),
        "a cluster with little memory": (problem(30_011, 13), cluster(256 * MIB, disk_free_bytes=100 * GIB)),
        "no memory": (problem(20_011, 13), machine(90 * MIB)),
        "no disk": (direct(60_013, 13), machine(4 * GIB, **full)),
        "no disk, any solver": (problem(60_013, 13), machine(4 * GIB, **full)),
        "no disk, but another machine": (direct(60_013, 13), machine(4 * GIB, memory_bytes=2 * GIB, **elsewhere)),
        "no disk and little memory here": (problem(300_007, 79), little),
        "Cholesky requested, no disk and little memory here": (direct(300_007, 79), little),
        "confined, tiles": (direct(20_011, 13), machine(GIB, confined="here, since it is a test")),
        "confined, a share of a worker": (direct(20_011, 13), share),
        # Requests
        "Cholesky requested": (direct(60_013, 13), laptop),
        "cg requested": (problem(2003, 13, solver=CG), desk),
        "cg requested, in a store": (problem(20_011, 13, solver=CG, keeps_store=True), desk),
        "cg of rank 701 in float64": (problem(60_013, 13, solver=RANK_701), laptop),
        "cg without a factor": (problem(60_013, 13, solver=ConjugateGradient(None)), laptop),
        "float32 requested": (problem(20_011, 13, solver=FLOAT32), desk),
        # A GPU
        "a GPU": (problem(60_013, 79), card),
        "a GPU, few rows": (problem(2003, 13), card),
        "a GPU, a million rows, a store": (problem(1_000_003, 10, n_targets=10, keeps_store=True), card),
        "a GPU, ten million rows of more than its memory": (problem(10**7, 1009), card),
        "a GPU of slow float64": (problem(60_013, 79), slow),
        "a GPU of slow float64, float64 requested": (problem(20_011, 79, solver=RANK_701), slow),
        "a GPU with little memory": (problem(300_007, 13), small),
        "a GPU with little memory, requested": (problem(10**7, 13, device="cuda", solver=CG), small),
        "a GPU, CPU requested": (problem(60_013, 79, device="cpu"), card),
        "a GPU requested": (problem(2003, 79, device="cuda", solver=CG), card),
        "a GPU requested, none": (problem(2003, 79, device="cuda", solver=CG), desk),
        "a GPU requested, factor": (direct(2003, 79, device="cuda"), card),
        "a GPU and a slow kernel": (with_kernel(Laplacian(), 60_013, 211), card),
        "a GPU and a client": (problem(100_003, 13), cluster(gpu=made_up(60 * GIB))),
        "a GPU, uncertainty": (problem(60_013, 13, uncertainty=True), card),
        "a GPU, logistic": (problem(50_021, 13, n_targets=3, is_softmax=True, **logistic), card),
        # Standard deviations and intervals
        "uncertainty": (problem(20_011, 13, uncertainty=True), desk),
        "uncertainty, of several λ in tiles": (problem(60_013, 13, uncertainty=True, alphas=(0.1, 1.0)), laptop),
        "uncertainty, no disk": (problem(60_013, 13, uncertainty=True), machine(4 * GIB, **full)),
        "uncertainty, cg requested": (problem(60_013, 13, uncertainty=True, solver=CG), laptop),
        "uncertainty, float32 requested": (problem(20_011, 13, uncertainty=True, solver=FLOAT32), desk),
        "uncertainty, features": (problem(20_011, 13, "linear", uncertainty=True), desk),
        "uncertainty, features in passes": (problem(20_011, 13, "linear", uncertainty=True, solver=CG), desk),
        "intervals": (problem(20_011, 13, uncertainty=True, interval_folds=10), desk),
        "intervals, no disk": (problem(60_013, 13, uncertainty=True, interval_folds=10), machine(4 * GIB, **full)),
        "intervals, cg requested": (problem(20_011, 13, uncertainty=True, interval_folds=10, solver=CG), desk),
        "intervals, by fits": (problem(20_011, 13, uncertainty=True, interval_folds=5, folds_are_fitted=True), desk),
        "a store": (direct(20_011, 13, keeps_store=True), desk),
        "a tile": (direct(20_011, 13, tile=1300), desk),
        "fewer workers": (direct(20_011, 13, keeps_store=True), machine(700 * MIB, 4, local_threads=1)),
        "resumed": (problem(20_011, 13, keeps_store=True, layout=Layout("dual", 700, 350, 2, 1)), desk),
        "resumed, cg": (problem(20_011, 13, **begun_by_cg), desk),
        "resumed with another solver": (direct(20_011, 13, **begun_by_cg), desk),
        # Many targets and values of λ
        "many targets": (problem(20_011, 13, n_targets=1009, alphas=(1e-4,)), desk),
        "batches of targets": (problem(20_011, 13, n_targets=100_003, y_is_mapped=True), laptop),
        "three λ, weights of 0": (problem(20_011, 13, alphas=(0.1, 1.0, 10.0), n_positive_weights=19_001), desk),
        "λ = 0": (problem(60_013, 13, alphas=(0.0, 1.0)), laptop),
        "small λ": (problem(60_013, 13, alphas=(1e-7,)), large),
        # Other kernels
        "a slow kernel": (with_kernel(Laplacian(), 60_013, 211), laptop),
        "a kernel of unknown spectrum": (with_kernel(Sigmoid(), 200_003, 13), laptop),
        "a sum of kernels on a cluster": (with_kernel(2.0 * RBF() + RBF(), 1009, 13), cluster()),
        "a kernel of unknown spectrum, cg requested": (with_kernel(AdditiveChi2(), 200_003, 13, solver=CG), laptop),
        "precomputed": (with_kernel(Precomputed(), 30_011, 30_011, x_in_memory=False, x_is_shared=True), large),
        "linear, many rows": (problem(300_007, 211, "linear", fit_intercept=True), desk),
        "linear, many columns": (problem(307, 20_011, "linear"), desk),
        "linear, as many": (problem(5003, 5003, "linear"), desk),
        "linear, dual requested": (problem(5003, 20, "linear", form="dual"), desk),
        "linear, more columns than memory": (problem(40_009, 30_011, "linear", form="primal"), laptop),
        "linear, cg in primal form": (problem(10**6, 3001, "linear", solver=CG, form="primal"), desk),
        "linear, λ = 0, many rows": (problem(5003, 20, "linear", alphas=(0.0,)), desk),
        "linear, λ = 0, many columns": (problem(200, 201, "linear", alphas=(0.0,)), desk),
        "linear, columns of K do not precondition": (problem(5003, 20, "linear", **columns), desk),
        "linear, targets in a file": (problem(10**6, 11, "linear", 10_007, y_is_mapped=True), machine(8 * GIB)),
        "polynomial": (problem(50, 61, "poly"), desk),
        "polynomial, too many features": (problem(503, 3001, "poly"), desk),
        "polynomial, streamed": (problem(11, 3001, "poly", form="primal"), desk),
        "polynomial, beyond all bounds": (with_kernel(Polynomial(degree=120), 100, 300, form="primal"), desk),
        "primal of RBF": (problem(100, 3, form="primal"), desk),
        "wide sparse rows": (problem(60_013, 50_021, "linear", **WIDE), laptop),
        "few sparse rows": (direct(500, 2_000_000, is_sparse=True, row_bytes=24160), desk),
        # Logistic regression
        "logistic, many rows": (problem(10**6, 53, "linear", **logistic), machine(GIB)),
        "logistic, RBF": (problem(20_011, 13, n_targets=5, is_softmax=True, **logistic), laptop),
        "logistic, Cholesky in tiles": (direct(20_011, 13, n_targets=3, is_softmax=True, **logistic), machine(GIB)),
        "logistic, cg": (problem(50_021, 13, solver=CG, **logistic), machine(2 * GIB)),
        "logistic, seconds of factors": (problem(4001, 13, **logistic), laptop),
        "logistic, few columns": (problem(1000, 20, "linear", loss="logistic"), desk),
        "logistic, few rows": (problem(100, 5000, "linear", loss="logistic"), desk),
        "logistic, rows larger than memory": (problem(20_011, 10_007, **read), machine(memory_bytes=GIB)),
        "logistic, path of λ": (direct(20_011, 23, alphas=(1.0, 0.1, 0.01), **logistic), laptop),
        "logistic, too wide for a curvature": (direct(10**6, 20_011, "linear", 3, **coupled), desk),
    }  # fmt: skip


def kind(c):
    """Form, solver, place and precision of a candidate."""
    inner = c.details
    products = getattr(inner, "products", None)
    precision = "float32" if isinstance(inner, Float32Factor) else getattr(products, "precision", "float64")
    return f"{c.form} {c.solver} {'gpu' if c.method.device == 'cuda' else c.execution} {precision}"


def decision(what, where):
    """Lines about one problem."""
    try:
        plan = make_plan(what, where)
    except DkrrError as error:
        return [f"  refused: {type(error).__name__}"]
    c = plan.chosen
    return [
        f"  {kind(c)}, {c.n_workers} × {c.place.slots // c.n_workers}, tile {c.tile}, predicts {plan.prediction}",
        f"  because {', '.join(codes_of(plan.reasons))}",
        *(f"  not {kind(other)}: {other.refused.code or 'slower'}" for other in plan.rejected),
    ]


def selections():
    """Choices of λ, as `decisions`, with folds."""
    alphas = {"alphas": tuple(0.1 * 2.0**k for k in range(10))}
    many = problem(100_003, 1511, "linear", form="primal", **alphas)
    wide = problem(20_011, 13, n_targets=101, alphas=(0.1, 1.0), solver=CG)
    tall, others = problem(10**6, 53, "linear", **alphas), FoldSizes(3, train_on_the_rest=False)
    return {
        "selection, 100,003 rows": (problem(100_003, 16, **alphas), FoldSizes(5), machine(64 * GIB)),
        "selection, in workers": (problem(100_003, 16, **alphas), FoldSizes(5, refit=True), machine(4 * GIB)),
        "selection, a GPU": (problem(100_003, 16, **alphas), FoldSizes(5), machine(gpu=made_up(60 * GIB))),
        "selection, cg requested": (problem(2003, 16, solver=CG, **alphas), FoldSizes(5), machine()),
        "selection, Cholesky requested": (direct(2003, 16, **alphas), FoldSizes(5), machine()),
        "selection, one row out": (problem(8009, 16, **alphas), FoldSizes(0, is_loo=True), machine()),
        "selection, folds that do not train on the rest": (problem(20_011, 13, **alphas), others, machine()),
        "selection, primal": (tall, FoldSizes(5), machine()),
        "selection, primal, predictions": (tall, FoldSizes(5, predicts=True), machine()),
        "selection, sums of many folds": (many, FoldSizes(20), machine()),
        "selection, sums of many folds, little memory": (many, FoldSizes(20), machine(300 * MIB)),
        "selection, many targets": (wide, FoldSizes(5), machine(2 * GIB)),
        "selection, targets together": (wide, FoldSizes(2, targets_together=True), machine(2 * GIB)),
    }  # fmt: skip


def variances():
    """Variances of new rows, as `decisions`, with their number."""
    large, disk = problem(100_003, 13), machine(disk_free_bytes=1000 * GIB)
    return {
        "variances, few rows": (problem(2003, 13), machine(), 100),
        "variances, few rows, cg requested": (problem(2003, 13, solver=CG), machine(), 100),
        "variances, Cholesky requested": (direct(20_011, 13), machine(), 100),
        "variances, float32 requested": (problem(20_011, 13, solver=FLOAT32), machine(), 100),
        "variances, cg requested": (problem(20_011, 13, solver=CG), machine(), 5003),
        "variances, a GPU": (problem(60_013, 13), machine(gpu=made_up(60 * GIB)), 5003),
        "variances, λ = 0": (problem(20_011, 13, solver=CG, alphas=(0.0,)), machine(), 100),
        "variances, no disk": (problem(200_003, 13), machine(disk_free_bytes=10 * GIB), 100),
        "variances, a factor is slower": (large, disk, 10),
        "variances, many rows": (large, disk, 200_003),
        "variances, many rows, Cholesky requested": (replace(large, solver=Cholesky()), disk, 200_003),
        "variances, little memory": (problem(400_009, 13, solver=CG), machine(2 * GIB), 1009),
    }


def test_decisions_are_those_of_the_golden_file(golden):
    lines = []
    for name, (what, where) in decisions().items():
        lines += [name, *decision(what, where)]
    for name, (what, folds, where) in selections().items():
        found = plan_scores(what, folds, where)
        plan, codes = found.plan, f"{', '.join(codes_of(found.reasons))}; not {', '.join(codes_of(found.rejected))}"
        sizes = f"{plural(plan.problem.n_targets, 'target')}, {found.seconds:.3g} s, {found.peak_bytes:.3g} B"
        lines += [name, f"  {found.method}: {kind(plan.chosen)}, {sizes}", f"  because {codes}"]
    for name, (what, where, n_rows) in variances().items():
        found = plan_uncertainty(what, where, n_rows)
        sizes = f"{found.columns} at once, {found.seconds:.3g} s"
        lines += [name, f"  {found.method}: {kind(found.plan.chosen)}, {sizes}, {', '.join(codes_of(found.reasons))}"]
    golden("decisions.txt", "\n".join(lines) + "\n")


PRICED = [
    "20,011 rows, 5 targets, wide", "60,013 rows, 4 GiB", "a cluster", "a store", "cg requested, in a store",
    "batches of targets", "float32 requested", "three λ, weights of 0", "precomputed", "linear, many rows",
    "linear, cg in primal form", "linear, more columns than memory", "linear, targets in a file", "wide sparse rows",
    "logistic, many rows", "logistic, RBF", "logistic, Cholesky in tiles", "logistic, cg",
    "few sparse rows", "logistic, rows larger than memory", "logistic, path of λ", "a GPU",
    "a GPU, a million rows, a store",
]  # fmt: skip


def test_prices_are_those_of_the_golden_file(golden):
    """Seconds, bytes read, written and on disk, and the peak, of every stage of the best candidates of each kind."""
    lines, every = [], decisions()
    slow = Rates(read_bytes=2e9, cold_read_bytes=0.3e9, write_bytes=0.5e9, fresh_bytes=3e9, network_bytes=0.2e9)
    for name in PRICED:
        what, where = every[name]
        where = replace(where, rates=slow, memory_bytes=where.memory_bytes or 80 * GIB, row_rates=slow.faster(2.0))
        plan = make_plan(what, where)
        lines.append(name)
        for c in (plan.chosen, *plan.rejected[:4]):
            lines.append(f"  {c.summary()}")
            for s in c.stages:
                figures = (s.seconds, s.read_bytes, s.written_bytes, s.disk_bytes, s.peak_bytes)
                lines.append(f"    {s.name:22}" + "".join(f"{figure:11.3g}" for figure in figures))
    golden("prices.txt", "\n".join(lines) + "\n")


def test_texts_of_plans_are_those_of_the_golden_file(golden):
    """Plans of fits, one for a cluster that does not exist; a selection with a learning curve; variances."""
    every, laptop = decisions(), machine(4 * GIB)
    fits = [make_plan(*every[name]) for name in ("60,013 rows, 4 GiB", "linear, many rows", "a store")]
    elsewhere = make_plan(problem(300_007, 79), cluster(workers=64, assumed="64 Dask workers of one thread"))
    folds, alphas = FoldSizes(5, refit=True), tuple(0.1 * 2.0**k for k in range(10))
    search = problem(20_011, 13, n_targets=2, alphas=alphas)
    every = [replace(search, kernel=kernel) for kernel in (RBF(gamma=0.1), RBF(gamma=0.2), Laplacian(gamma=0.2))]
    scores = [with_parts(plan_scores(one, folds, laptop), (0.25, 0.5)) for one in every]
    one, selection = whole_plan(scores[:1], None), whole_plan(scores, 1e-8)
    variances = plan_uncertainty(problem(100_003, 13), machine(disk_free_bytes=1000 * GIB), 10)
    found = [*fits, elsewhere, one, selection, variances]
    golden("plans.txt", "\n\n".join(map(str, found)) + "\n\n" + "\n".join(map(repr, found)) + "\n")
