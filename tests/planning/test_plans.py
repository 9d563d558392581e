"""What holds for every plan: it stays within its limits, its price is that of its stages, and it explains itself.

Every refusal names a remedy, and the remedy works.
"""

import json
import re
from dataclasses import replace

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

import dkrr
from dkrr.checks import parse_bytes
from dkrr.cost import STAGE_NAMES
from dkrr.errors import DiskSpaceError, InputError, MemoryLimitError, PlanError, StoreError
from dkrr.fitting.costs.tile_costs import MAX_TILES_PER_SIDE
from dkrr.fitting.request_plans import make_plan
from dkrr.planning.explain import EQUAL_TIME
from dkrr.planning.iterations_first import PROMISED, SURE_SPEEDUP
from dkrr.planning.problem import Layout
from dkrr.planning.resources import Rates, WorkerShare
from dkrr.solvers import Cholesky, ConjugateGradient, Float32Cholesky, RPCholesky
from dkrr.text import codes_of, format_seconds
from tests.pairs import every_pair
from tests.planning.problems import GIB, KERNELS, MIB, cluster, direct, machine, problem

CG = ConjugateGradient()
SOLVERS = [None, Cholesky(), CG, ConjugateGradient(RPCholesky(101)), ConjugateGradient(Float32Cholesky())]


def usable(plan):
    fraction = plan.resources.usable_fraction if plan.execution == "dask" else 1.0
    return plan.chosen.limit_bytes * fraction


@st.composite
def problems(draw, losses=("squared", "squared", "logistic")):
    kernel, loss = draw(st.sampled_from(sorted(KERNELS))), draw(st.sampled_from(losses))
    settings = {} if loss == "squared" else {"loss": loss, "is_softmax": draw(st.booleans())}
    return problem(
        draw(st.sampled_from([1, 2, 37, 1009, 20_011, 150_001])),
        draw(st.sampled_from([1, 5, 211] + [3001] * (kernel != "poly"))),
        kernel,
        draw(st.sampled_from([1, 13])),
        alphas=draw(st.sampled_from([(1.0,), (0.1, 1.0, 10.0)])),
        fit_intercept=draw(st.booleans()),
        keeps_store=draw(st.booleans()),
        x_is_shared=draw(st.booleans()),
        x_in_memory=draw(st.booleans()),
        form=draw(st.sampled_from([None, "dual"] + ["primal"] * (kernel in ("linear", "poly")))),
        tile=draw(st.sampled_from([None, None, 1500])),
        solver=draw(st.sampled_from(SOLVERS)),
        **settings,
    )


@st.composite
def machines(draw):
    if draw(st.booleans()):
        return cluster(draw(st.sampled_from([GIB, 8 * GIB])), draw(st.integers(1, 16)), draw(st.integers(1, 3)))
    confined = draw(st.sampled_from(["", "", "in the calling process, as the test says"]))
    limit = draw(st.sampled_from([700 * MIB, 4 * GIB, 64 * GIB]))
    return machine(limit, draw(st.integers(1, 5)), confined=confined)


def made(what, where):
    """Plan; problems that are refused are not of interest."""
    try:
        return make_plan(what, where)
    except (PlanError, InputError):
        return assume(False)


@settings(max_examples=40)
@given(problems(), machines())
def test_every_plan_stays_within_its_limits_and_is_priced_by_its_stages(what, where):
    plan = made(what, where)
    c, solvers = plan.chosen, {Cholesky: "cholesky", ConjugateGradient: "cg"}
    assert not c.refused and c.peak_bytes <= usable(plan)
    assert plan.solver == c.solver == solvers.get(type(what.solver), c.solver)
    assert what.form in (None, plan.form) and what.tile in (None, c.tile, max(c.tile, what.tile or 0))
    assert not where.confined or {o.execution for o in (c, *plan.rejected)} <= {"memory", "serial"}
    assert plan.peak_bytes > where.local_baseline_bytes if c.execution != "dask" else c.n_workers <= where.n_workers
    assert (c.execution == "memory") <= (c.disk_bytes == 0)
    least, most = plan.seconds_range
    assert least <= plan.seconds <= most and (plan.solver == "cg" or least == most)
    for one in (c, *plan.rejected):
        names = [s.name for s in one.stages]
        assert set(names) <= set(STAGE_NAMES) and len(set(names)) == len(names)
        assert one.seconds == pytest.approx(sum(s.seconds for s in one.stages)) and one.seconds > 0
        assert one.peak_bytes == max(s.peak_bytes for s in one.stages) > one.place.baseline_bytes
        assert one.disk_bytes == sum(s.disk_bytes for s in one.stages)
        assert all(min(s.seconds, s.read_bytes, s.written_bytes, s.disk_bytes) >= 0 for s in one.stages)
        assert one is c or one.refused or one.seconds * EQUAL_TIME >= c.seconds, "the fastest that fits is chosen"


@given(problems(), machines())
def test_every_plan_explains_itself(what, where):
    plan = made(what, where)
    text, c = str(plan), plan.chosen
    for part in (
        "because",
        *plan.reasons,
        *(text for _, text in c.method.facts(c, plan.problem)),
        format_seconds(c.seconds),
    ):
        assert part in text
    assert all(other.summary() in text and other.refused in text for other in plan.rejected[:4])
    found = json.loads(json.dumps(plan.to_dict()))
    assert (found["form"], found["tile"], found["peak_bytes"]) == (plan.form, c.tile, plan.peak_bytes)
    assert found["problem"]["n_samples"] == plan.problem.n and found["reasons"] == list(plan.reasons)
    assert [r["name"] for r in found["rejected"]] == [r.summary() for r in plan.rejected]
    assert [r["refused"] for r in found["rejected"]] == [r.refused for r in plan.rejected]
    codes = [*found["reason_codes"], *(r["refused_code"] for r in found["rejected"] if r["refused"])]
    assert codes and all(re.fullmatch("[a-z0-9]+(-[a-z0-9]+)*", code) for code in codes)


@given(problems(("squared",)), st.integers(1, 4))
def test_more_memory_is_not_slower(what, workers):
    little = made(what, machine(2 * GIB, workers))
    # A factorisation that now fits is not given up for what may be faster but may be not.
    sure = EQUAL_TIME * (1.0 if what.solver is not None else SURE_SPEEDUP if what.n_targets > 1 else 1 / PROMISED)
    assert make_plan(what, machine(32 * GIB, workers)).seconds <= sure * little.seconds


@given(problems(), st.integers(1, 4), st.sampled_from(["n", "d", "n_targets"]))
def test_a_larger_problem_takes_longer_and_no_less_memory(what, workers, size):
    """With the same form, solver and place of work."""
    what = replace(what, alphas=(1.0,), tile=1500, keeps_store=True, form=what.form or "dual", solver=what.solver or CG)
    alone = machine(64 * GIB, workers, confined="here")
    kernel = next(name for name, value in KERNELS.items() if type(value) is type(what.kernel))
    changes = {"n": 2 * what.n, "n_targets": 3 * what.n_targets}
    wide = problem(what.n, 2 * what.d, kernel)
    of_width = {"d": wide.d, "kernel": wide.kernel, "feature_map": wide.feature_map}
    more = replace(what, **(of_width if size == "d" else {size: changes[size]}))
    small, large = made(what, alone), made(more, alone)
    assert large.seconds >= small.seconds and large.disk_bytes >= small.disk_bytes
    assert large.peak_bytes >= 0.98 * small.peak_bytes


# Limits


def refusal(what, where):
    """Message of the refusal for memory; other cases are not of interest."""
    try:
        make_plan(what, where)
    except MemoryLimitError as error:
        return str(error)
    except (PlanError, InputError):
        pass
    return assume(False)


def named_bytes(message):
    """The limit that a message names, in bytes and in words."""
    words, exact = re.search(r"(?:suffices is|at least) (.+?) \((\d+) bytes\)", message).groups()
    return int(exact), parse_bytes(words)


def check_named(what, of_limit, message):
    """The limit that a message names is enough, in bytes and in words, as is a larger one; a smaller one is not."""
    exact, words = named_bytes(message)
    assert words >= exact and message.endswith("Nothing was computed")
    for enough in (exact, words, 2 * exact, 10 * exact):
        plan = make_plan(what, of_limit(enough))
        assert plan.peak_bytes <= usable(plan)
    with pytest.raises(MemoryLimitError):
        make_plan(what, of_limit(int(0.98 * exact)))


ROWS = st.sampled_from([3001, 30_011, 150_001])


@given(problems(), ROWS, st.integers(1, 6), st.sampled_from([50, 165, 400]))
@example(direct(50_000, 10, tile=500), 50_000, 2, 90)
def test_the_named_limit_works_and_less_does_not(what, n, workers, limit):
    what = replace(what, n=n)
    message = refusal(what, machine(limit * MIB, workers))
    assert f"memory_limit is {limit} MiB" in message
    check_named(what, lambda enough: machine(enough, workers), message)


@given(problems(), ROWS, st.integers(1, 6), st.integers(1, 3), st.sampled_from([50, 200, 400]), st.booleans())
def test_the_named_limit_of_each_worker_works_and_less_does_not(what, n, workers, threads, limit, slow):
    # On a slow machine no work is small enough for the calling process.
    settings = {"rates": Rates(gemm_flops=1e3)} if slow else {"local_limit_bytes": 100 * MIB}
    what = replace(what, n=n)
    message = refusal(what, cluster(limit * MIB, workers, threads, **settings))
    assert "a worker of the Dask client has" in message and "Start workers" in message
    check_named(what, lambda enough: cluster(enough, workers, threads, **settings), message)


@given(problems(), ROWS, st.integers(1, 4), st.sampled_from([210, 280]))
def test_the_named_limit_of_a_worker_that_several_fits_share_works_and_less_does_not(what, n, sharing, limit):
    share, held, what = WorkerShare(sharing, 0.7), 100 * MIB, replace(what, n=n)

    def of_worker(worker_limit):
        here = machine(share.of(worker_limit, held), confined="in the calling process, as the test says")
        return replace(here, share=share, local_baseline_bytes=held)

    message = refusal(what, of_worker(limit * MIB))
    assert "in the calling process, as the test says" in message and "memory limit of the worker" in message
    check_named(what, of_worker, message)


def test_memory_that_is_missing_is_named():
    """Of whom, and what else takes it."""
    what = problem(30_011, 13)
    with pytest.raises(MemoryLimitError, match="the memory of this machine or job is 150 MiB"):
        make_plan(what, machine(150 * MIB, limit_is_given=False))
    full = cluster(256 * MIB, local_limit_bytes=64 * GIB, worker_baseline_bytes=200 * MIB)
    with pytest.raises(MemoryLimitError, match="has 256 MiB, of which 200 MiB are in use now.*wait until") as caught:
        make_plan(what, full)  # the matrix would fit here, but the work belongs to the workers
    assert "0 B" not in str(caught.value)
    of_addresses = machine(150 * MIB, limit_is_given=False, process_limit_bytes=150 * MIB)
    with pytest.raises(
        MemoryLimitError, match=r"a process may hold 150 MiB .*\(ulimit -v or -d, .*raise or remove that"
    ):
        make_plan(what, of_addresses)
    with pytest.raises(MemoryLimitError, match=r"worker_memory is 100 MiB\. The smallest worker_memory"):
        make_plan(what, cluster(100 * MIB, assumed="8 workers"))


@pytest.mark.parametrize("settings", [{}, {"kernel": "rbf"}, {"cv": 5}, {"loss": "logistic"}], ids=str)
def test_a_plan_of_rows_that_no_memory_holds_is_refused_in_words(monkeypatch, settings):
    monkeypatch.setattr("dkrr.machine.measures.GRAM_SECONDS", 0.0)  # so that no problem is too small to be measured
    with pytest.raises(MemoryLimitError, match="no plan fits in memory"):
        dkrr.plan(n_samples=10_000, n_features=10**9, memory_limit="4GiB", **settings)


def test_one_of_a_thing_is_said_in_the_singular():
    plan = dkrr.plan(n_samples=1, n_features=1, workers=1, form="primal", solver="cholesky")
    texts = str(plan), str(dkrr.plan(n_samples=30_011, n_features=1, kernel="rbf", workers=1, worker_memory="1GiB"))
    assert "1 row × 1 column, 1 target" in texts[0] and "1 worker," in texts[1]
    assert not re.search(r"\b1 (workers|threads|rows|columns|targets|iterations|tiles|features)\b", " ".join(texts))


def test_a_plan_of_more_targets_than_memory_holds_needs_none_of_them():
    assert dkrr.plan(n_samples=10**4, n_features=10, n_targets=10**12, workers=2).problem.alphas == (1.0,)


def test_the_named_disk_is_enough_and_less_is_not():
    what = direct(60_013, 13)
    with pytest.raises(DiskSpaceError, match=r"1 GiB are free.*Nothing was computed") as caught:
        make_plan(what, machine(4 * GIB, disk_free_bytes=GIB))
    named = parse_bytes(re.search(r"takes (.+?) in the store", str(caught.value))[1])
    enough = machine(4 * GIB, disk_free_bytes=int(1.01 * named))
    assert make_plan(what, enough).disk_bytes <= enough.disk_free_bytes
    with pytest.raises(DiskSpaceError):
        make_plan(what, machine(4 * GIB, disk_free_bytes=int(0.98 * named)))
    assert make_plan(problem(2003, 13), machine(disk_free_bytes=0)).execution == "memory"
    with pytest.raises(DiskSpaceError) as caught:  # the calling process could, but the work belongs to the workers
        make_plan(direct(40_009, 13), cluster(disk_free_bytes=GIB))
    assert "0 B" not in str(caught.value)


def test_what_cannot_be_done_at_all_is_refused_with_a_remedy():
    rank, singular = ConjugateGradient(RPCholesky(7)), problem(211, 3, "linear", alphas=(0.0,))
    primal, too_many = problem(100, 3, "linear", form="primal", solver=rank), f"more than {MAX_TILES_PER_SIDE} per side"
    for what, match in (
        (problem(100, 3, form="primal"), "finite feature map, which RBF does not have: use form='dual'"),
        (primal, "'auto' or None in the primal form.*form='dual'"),
        (replace(singular, solver=rank), r"dual is impossible: .* D = 3 < n = 211.*set alpha > 0"),
        (direct(50_000_000, 13), f"{too_many}: give solver=.cg.*Nothing was computed"),
        (problem(2_000_003, 13, tile=500), "tile"),
    ):
        with pytest.raises((PlanError, InputError), match=match):
            make_plan(what, machine())
    assert make_plan(replace(singular, alphas=(1e-3,), solver=rank), machine()).form == "dual"
    assert make_plan(problem(10_007, 13, "linear", solver=rank), machine()).form == "dual", "the form that can have it"


# Runs that are resumed


@every_pair(solver=SOLVERS, form=["dual", "primal"], loss=["squared", "logistic"], ids=repr)
def test_a_run_that_is_resumed_is_cut_as_before_on_any_machine(solver, form, loss):
    what = problem(9001, 17, "linear", 3, loss=loss, solver=solver, form=form, keeps_store=True, alphas=(0.1, 1.0))
    if form == "primal" and solver in SOLVERS[3:]:
        return  # columns of K
    layout = Layout(**make_plan(what, machine(4 * GIB)).chosen.layout())
    for where in (machine(2 * GIB, 3), machine(64 * GIB, 7), cluster()):
        again = make_plan(replace(what, layout=layout), where)
        assert Layout(**again.chosen.layout()) == layout and "resumed" in codes_of(again.reasons)
        assert again.execution in ("serial", "dask") or form == "primal"
    for other in (Cholesky(), CG):
        if not layout.is_of(other):
            with pytest.raises(StoreError, match=f"began with solver='{layout.solver}'.*another store="):
                make_plan(replace(what, layout=layout, solver=other), machine())
    if loss == "squared":
        with pytest.raises(StoreError, match=f"holds a run in {form} form"):
            make_plan(replace(what, layout=layout, form={"dual": "primal", "primal": "dual"}[form]), machine())
