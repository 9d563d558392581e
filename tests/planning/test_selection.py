"""`dkrr.plan` for clusters that do not exist; ways to held-out predictions, to variances and to likelihoods.

Which way is chosen is in the golden file.
"""

import re
from dataclasses import replace
from pathlib import Path

import pytest

import dkrr
from dkrr.errors import InputError, MemoryLimitError
from dkrr.fitting.posterior_plans import plan_uncertainty
from dkrr.fitting.score_plans import plan_scores
from dkrr.kernels import RBF
from dkrr.machine import detection
from dkrr.planning.facts import Facts, Spectrum
from dkrr.planning.searches import SelectionPlan
from dkrr.planning.selection import FoldSizes
from dkrr.solvers import Cholesky, ConjugateGradient
from dkrr.text import codes_of, format_bytes, format_seconds
from tests.planning.problems import GIB, MIB, machine, problem

CG = ConjugateGradient()
METHODS = [
    ({"n_samples": 100_000, "memory_limit": "64GiB"}, "sweep", 16.0),
    ({"n_samples": 20_000, "solver": "cg"}, "sweep", 64.0),
    ({"n_samples": 8000, "solver": "cholesky"}, "factors", 1.5),
    ({"n_samples": 10**6, "n_features": 50, "kernel": "linear"}, "primal", 10.0),
]
"""Problems, the way to their scores, and how much longer a learning curve of four sizes takes at most."""


def selection(**settings):
    return dkrr.plan(**({"n_samples": 20_000, "n_features": 16, "kernel": "rbf", "alphas": 10, "cv": 5} | settings))


@pytest.mark.parametrize(("settings", "method", "most"), METHODS)
def test_a_plan_says_its_way_and_parts_of_a_learning_curve_have_fits_of_their_own(settings, method, most):
    plain, found = selection(**settings), selection(**settings, train_sizes=(0.125, 0.25, 0.5, 1.0))
    assert isinstance(plain, SelectionPlan) and plain.method == found.method == method and found.sizes == plain.sizes
    assert plain.seconds < found.seconds < most * plain.seconds
    assert "learning-curve" in codes_of(found.reasons) and "a fit for each of 3 parts" in found.summary()
    assert plain.peak_bytes >= plain.plan.peak_bytes and plain.n_alphas == 10
    described = plain.to_dict()
    assert described["folds"]["n_folds"] == 5 and described["reason_codes"] == codes_of(plain.reasons)
    assert described["rejected_codes"] == codes_of(plain.rejected)
    assert all(text in str(plain) for text in (*plain.reasons, *plain.rejected))


@pytest.mark.parametrize(("settings", "method"), [(settings, method) for settings, method, _ in METHODS])
def test_a_plan_is_that_of_all_kernels_and_its_range_says_something(settings, method):
    kernels = {"kernel": ["cosine"]} if method == "primal" else {"kernel": ["rbf", "laplacian"]}
    more = {} if method == "primal" else {"gamma": [0.1 * 2.0**k for k in range(6)]}
    one, found = selection(**settings), selection(**settings | kernels | more)
    assert len(found.kernels) == (1 if method == "primal" else 12) and found.last is not None
    for plan in (one, found):
        low, high = plan.seconds_range
        assert low < plan.seconds < high < (10 if method == "sweep" else 4) * low
        assert sum(seconds.expected for _, seconds in plan.steps()) < plan.seconds
        assert plan.peak_bytes >= max(p.peak_bytes for p in plan.kernels) and plan.disk_bytes >= 0
    if method != "primal":
        assert found.seconds > 8 * one.seconds
        assert "rbf × 6: " in str(found) and "laplacian × 6: " in str(found) and str(found).count("in one run;") <= 2
        assert [len(group["seconds"]) for group in found.to_dict()["kernels"]] == [6, 6]


def test_stores_that_are_kept_need_the_disk_of_all_kernels(tmp_path):
    settings = {"n_samples": 20_000, "solver": "cholesky", "gamma": [0.1, 0.2, 0.3], "memory_limit": "2GiB"}
    kept = selection(**settings, store=str(tmp_path / "run"))
    assert kept.disk_bytes == sum(p.plan.disk_bytes for p in kept.kernels) + kept.last.disk_bytes > 4 * 2**30
    assert "in the stores that are kept" in str(kept)


def test_rows_of_parts_are_those_of_the_training_rows():
    assert selection(n_samples=1000, train_sizes=[100, 400]).curve == (0.125, 0.5)


def test_columns_are_in_the_calling_process_where_workers_have_the_tiles():
    found = selection(n_samples=100_000, workers=16, worker_memory="2GiB")
    assert found.plan.execution == "dask" and found.peak_bytes > 12 * 8 * 100_000 * 10 * 5
    assert "in the calling process" in str(found) and found.peak_bytes > found.plan.peak_bytes
    with pytest.raises(MemoryLimitError, match=r"the columns of all folds and λ need .* in the calling process"):
        selection(n_samples=10_000_000, solver="cg", workers=64, worker_memory="64GiB")


def test_folds_that_do_not_train_on_the_rest_have_no_factor_in_common():
    """Their factors cost what their training rows do, and are taken where that is less than conjugate gradient."""
    alphas, others = tuple(10.0**k for k in range(-8, 2)), FoldSizes(3, train_on_the_rest=False)
    direct = problem(20_011, 13, alphas=alphas, solver=Cholesky())
    found = plan_scores(direct, others, machine())
    assert found.method == "refits" and found.plan.problem.solver == Cholesky() and found.plan.form == "dual"
    halves = plan_scores(direct, replace(others, n_training=10_007), machine())
    assert 6 < found.seconds / halves.seconds < 9 and halves.peak_bytes == found.peak_bytes
    small = plan_scores(problem(31, 13, alphas=alphas), replace(others, n_training=20), machine())
    assert (small.method, codes_of(small.rejected)) == ("refits", ["slower"])
    assert plan_scores(problem(20_011, 13, solver=CG, alphas=alphas), others, machine()).method == "sweep"
    smooth = {"alphas": alphas[4:], "facts": Facts(spectrum=Spectrum(thousandth=1e-12, decay=6.0))}
    soon, later = (plan_scores(problem(n, 3, **smooth), others, machine()) for n in (811, 4001))
    assert (
        soon.seconds > 0.1 and "all-scored" in codes_of(soon.reasons) and codes_of(soon.rejected) == ["may-leave-some"]
    )
    assert (later.method, codes_of(later.rejected)) == ("sweep", ["slower"])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"solver": "cg", "cv": "loo"}, "leave-one-out takes a Cholesky factor"),
        ({"cv": "loo", "train_sizes": (0.5,)}, "train_sizes is given without folds; expected .*cv=5"),
        ({"train_sizes": [16_000]}, "train_sizes has 16000, and 5 folds of 20,000 rows train on 16,000"),
        ({"loss": "logistic", "cv": "loo"}, "cv is leave-one-out, which needs a fit for every row"),
        ({"kernel": ["rbf", "laplacian"], "alphas": None, "cv": None}, "kernel is .* several candidates; expected one"),
        ({"kernel": ["linear", RBF(gamma=0.3)], "gamma": [0.1]}, "gamma is .* which none of the kernels"),
        ({"worker_memory": "4GiB"}, "worker_memory is '4GiB' without workers; .*give workers="),
        ({"worker_memory": "4GiB", "workers": 8, "memory_limit": "8GiB"}, "expected one of them"),
        ({"cores": 4, "workers": 8}, "cores is 4 without worker_memory; expected workers, worker_memory and cores"),
    ],
)
def test_arguments_that_do_not_go_together_are_refused(change, message):
    with pytest.raises(InputError, match=message):
        selection(**change)


def test_too_little_memory_for_columns_is_refused():
    what = problem(100_003, 1511, "linear", 1009, form="primal", alphas=tuple(range(1, 101)))
    with pytest.raises(MemoryLimitError, match="increase memory_limit"):
        plan_scores(what, FoldSizes(0, is_loo=True), machine(local_limit_bytes=2**31))
    with pytest.raises(MemoryLimitError):
        plan_uncertainty(problem(400_009, 13, solver=CG), machine(200 * MIB, disk_free_bytes=1000 * GIB), 1009)


# Clusters that do not exist


SIZES = {"n_samples": 300_000, "n_features": 79, "kernel": "rbf"}


def planned(workers=64, worker_memory="4GiB", **more):
    return dkrr.plan(**SIZES, workers=workers, worker_memory=worker_memory, **more)


def test_workers_may_be_far_more_than_this_machine_has():
    plan = planned()
    c, text = plan.chosen, str(plan)
    assert (c.execution, c.n_workers, c.limit_bytes) == ("dask", 64, 4 * 2**30)
    assert c.peak_bytes <= 0.7 * 4 * 2**30 and c.place.start_seconds == 0.0
    assert "64 Dask workers of one thread and 4 GiB each" in text and "0.5 GB/s to each worker (32 GB/s to all)" in text
    assert "a Dask client exists" not in text and "of disk are free here" not in text
    assert plan.to_dict()["assumed"] and not dkrr.plan(n_samples=100, n_features=3).to_dict()["assumed"]
    small = dkrr.plan(n_samples=1000, n_features=3, kernel="rbf", workers=64, worker_memory="4GiB")
    assert small.execution == "memory", "small work is done here"


def test_cores_of_a_worker_share_its_memory():
    """Four threads take the work of four workers, and a quarter of the memory each, in which tiles are smaller."""
    one, four = (planned(worker_memory="16GiB", solver="cholesky", **more) for more in ({}, {"cores": 4}))
    assert (four.chosen.place.slots, four.chosen.n_workers) == (256, 64)
    assert 2.5 < one.seconds / four.seconds < 4.1
    assert four.chosen.tile < one.chosen.tile and four.peak_bytes <= 0.7 * 16 * 2**30
    text = str(four)
    assert "(64 processes of 4 threads)" in text and "0.5 GB/s to each core (128 GB/s to all)" in text
    assert four.seconds == pytest.approx(planned(256, solver="cholesky").seconds, rel=0.1)


def test_too_little_memory_names_what_suffices():
    with pytest.raises(MemoryLimitError, match=r"worker_memory is 100 MiB. The smallest .* is .*\d+ bytes") as error:
        planned(worker_memory="100MiB")
    needed = int(str(error.value).split("(")[-1].split()[0])
    assert planned(worker_memory=needed).seconds > 0
    with pytest.raises(MemoryLimitError):
        planned(worker_memory=needed - 2 * 2**20)


PAGE = Path(dkrr.__file__).parents[1] / "docs" / "how-to" / "clusters.md"
ROW = re.compile(r"^\| ([\d,]+) \| (\d+) × (\d+) \| (\S+ GiB) \| (auto|cholesky) \| (.*) \|$", re.M)


def test_the_sizing_table_of_the_docs_has_the_planners_numbers(monkeypatch):
    """Those of dkrr's default rates, whatever was measured on this machine."""
    monkeypatch.setattr(detection, "recorded_baseline", lambda _: 0)
    rows = ROW.findall(PAGE.read_text())
    assert len(rows) >= 6
    for n, workers, cores, memory, solver, shown in rows:
        size = {"workers": int(workers), "cores": int(cores), "worker_memory": memory}
        kernel = {"n_features": 20, "kernel": "rbf", "alpha": 0.01, "solver": solver}
        plan = dkrr.plan(n_samples=int(n.replace(",", "")), **kernel, **size)
        least, most = map(format_seconds, plan.seconds_range)
        time = format_seconds(plan.seconds) + (f" ({least} to {most})" if least != most else "")
        assert shown == f"{format_bytes(plan.peak_bytes)} | {format_bytes(plan.disk_bytes)} | {time}", (n, solver)
