"""Which way is chosen and what is refused; every refusal names a remedy, and the remedy works."""

import json
import re
from dataclasses import FrozenInstanceError, fields, is_dataclass, replace

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from dkrr.errors import DiskSpaceError, InputError, MemoryLimitError, PlanError
from dkrr.features import feature_map
from dkrr.kernels import Polynomial
from dkrr.planning import KernelRate, Layout, Plan, Problem, Rates, make_plan
from dkrr.planning.inputs import mapped_target_stage
from dkrr.planning.iteration import SURELY_FASTER
from dkrr.planning.planner import EQUAL_TIME
from dkrr.planning.resources import Share
from dkrr.planning.strategy import Tiling
from dkrr.solvers import Cholesky, ConjugateGradient, Float32Cholesky, RPCholesky
from dkrr.units import parse_bytes
from tests.planning.problems import GIB, KERNELS, MIB, cluster, direct, machine, problem


def usable(plan):
    fraction = plan.resources.usable_fraction if plan.execution == "dask" else 1.0
    return plan.chosen.limit_bytes * fraction


@st.composite
def problems(draw):
    kernel = draw(st.sampled_from(sorted(KERNELS)))
    return problem(
        draw(st.sampled_from([1, 2, 37, 1009, 20_011, 150_001])),
        draw(st.sampled_from([1, 5, 211] + [3001] * (kernel != "poly"))),
        kernel,
        draw(st.sampled_from([1, 13])),
        alphas=draw(st.sampled_from([(1.0,), (0.1, 1.0, 10.0)])),
        fit_intercept=draw(st.booleans()),
        keeps_store=draw(st.booleans()),
        x_is_shared=draw(st.booleans()),
        form=draw(st.sampled_from([None, "dual"] + ["primal"] * (kernel != "rbf"))),
        tile=draw(st.sampled_from([None, None, 1500])),
        solver=draw(st.sampled_from([None, Cholesky(), Cholesky(), ConjugateGradient()])),
    )


@st.composite
def machines(draw):
    if draw(st.booleans()):
        return cluster(draw(st.sampled_from([GIB, 8 * GIB])), draw(st.integers(1, 16)), draw(st.integers(1, 3)))
    return machine(draw(st.sampled_from([700 * MIB, 4 * GIB, 64 * GIB])), draw(st.integers(1, 5)))


class TestForm:
    def test_infinite_features(self):
        plan = make_plan(problem(5000, 10), machine())
        assert (plan.form, plan.prediction) == ("dual", "dual")
        assert "no finite feature map" in str(plan)

    @pytest.mark.parametrize(
        ("n", "d", "form"),
        [(100_000, 20, "primal"), (20_000, 300, "primal"), (300, 20_000, "dual"), (50, 5000, "dual")],
    )
    def test_the_smaller_matrix(self, n, d, form):
        plan = make_plan(problem(n, d, "linear"), machine())
        assert plan.form == form
        assert f"D = {d:,} features against n = {n:,} rows" in str(plan)
        other = [c for c in plan.rejected if c.form != form]
        assert ("would take about" in plan.reasons[0]) == any(not c.refused for c in other)
        assert "primal" in plan.prediction

    @pytest.mark.parametrize("form", ["primal", "dual"])
    def test_forced(self, form):
        for n, d in ((5000, 20), (200, 2000)):
            plan = make_plan(problem(n, d, "linear", form=form), machine())
            assert plan.form == form
            assert f"form='{form}' was requested" in plan.reasons
            assert {c.form for c in plan.rejected} <= {form}

    def test_primal_of_infinite_features(self):
        with pytest.raises(
            InputError, match=r"form is 'primal'; expected a kernel with a finite feature map, which RBF does not have"
        ):
            make_plan(problem(100, 3, form="primal"), machine())

    def test_far_too_many_features(self):
        plan = make_plan(problem(500, 3000, "poly"), machine())
        assert plan.form == "dual" and plan.problem.dimension == 3002 * 3001 // 2
        assert "primal is too large: D = 4,504,501" in str(plan)

    def test_prediction_does_not_follow_the_solve(self):
        # Rows of 20,000 columns, 300 of them: the dual matrix is smaller, and a prediction costs O(d) in primal form.
        plan = make_plan(problem(300, 20_000, "linear"), machine())
        assert (plan.form, plan.prediction) == ("dual", "primal")
        # Of D = 1,891 features and 50 rows of 60 columns the features lose.
        assert make_plan(problem(50, 60, "poly"), machine()).prediction == "dual"


class TestLeastSquares:
    """λ = 0: only one of the two matrices can be positive definite."""

    def test_more_rows_than_features(self):
        plan = make_plan(problem(5000, 20, "linear", alphas=(0.0,)), machine())
        assert plan.form == "primal"
        assert "dual is impossible: with alpha = 0, K has rank ≤ D = 20 < n = 5,000" in str(plan)

    def test_more_features_than_rows(self):
        # So few rows that the primal form would be chosen for its speed if it were possible.
        plan = make_plan(problem(200, 201, "linear", alphas=(0.0,)), machine())
        assert plan.form == "dual"
        assert "primal is impossible: with alpha = 0, ΦᵀΦ has rank ≤ n = 200 < D = 201" in str(plan)

    def test_as_many(self):
        plan = make_plan(problem(200, 200, "linear", alphas=(0.0,)), machine())
        assert not any("impossible" in reason for reason in plan.reasons)

    def test_one_of_several(self):
        assert make_plan(problem(20, 2000, "linear", alphas=(0.0, 1.0)), machine()).form == "dual"
        assert make_plan(problem(2000, 20, "linear", alphas=(0.0, 1.0)), machine()).form == "primal"

    @pytest.mark.parametrize("preconditioner", [Float32Cholesky(), RPCholesky()])
    def test_columns_of_a_singular_matrix_do_not_precondition(self, preconditioner):
        singular = problem(200, 3, "linear", alphas=(0.0,), solver=ConjugateGradient(preconditioner))
        with pytest.raises(InputError) as caught:
            make_plan(singular, machine())
        message = str(caught.value)
        assert "dual is impossible: with alpha = 0, K has rank ≤ D = 3 < n = 200" in message
        assert f"preconditioner is {preconditioner!r}" in message and "set alpha > 0" in message
        assert make_plan(replace(singular, alphas=(1e-3,)), machine()).form == "dual"
        assert make_plan(replace(singular, solver=ConjugateGradient()), machine()).form == "primal"

    def test_infinite_features(self):
        assert make_plan(problem(200, 2, alphas=(0.0,)), machine()).form == "dual"

    @pytest.mark.parametrize("form", ["primal", "dual"])
    def test_a_form_that_was_asked_for_is_tried(self, form):
        # The matrix may turn out singular; that is an error of the fit, which names the row.
        assert make_plan(problem(200, 300, "linear", alphas=(0.0,), form=form), machine()).form == form


class TestPlace:
    def test_small_work_stays_here(self):
        plan = make_plan(problem(2000, 10), machine())
        assert (plan.execution, plan.chosen.n_workers, plan.disk_bytes) == ("memory", 1, 0)
        assert make_plan(problem(2000, 10), cluster()).execution == "memory"

    def test_large_work_goes_to_the_users_workers(self):
        plan = make_plan(direct(40_000, 10), cluster())
        assert (plan.execution, plan.chosen.n_workers) == ("dask", 8)
        assert any(c.execution == "memory" and "a Dask client exists" in c.refused for c in plan.rejected)

    def test_what_does_not_fit_in_memory_goes_to_disk(self):
        plan = make_plan(direct(60_000, 10), machine(4 * GIB))
        assert plan.execution == "dask"
        assert plan.disk_bytes > 8 * 60_000**2 / 2
        assert "in memory one process would need" in str(plan)

    @pytest.mark.parametrize("settings", [{"keeps_store": True}, {"tile": 300}])
    def test_tiles_that_were_asked_for(self, settings):
        plan = make_plan(direct(1000, 10, **settings), machine())
        assert plan.execution == "serial", "small work needs no workers"
        large = make_plan(direct(30_000, 10, **settings), machine())
        assert large.execution == "dask"

    def test_fewer_workers_with_more_memory_each(self):
        small = direct(20_000, 10, keeps_store=True)
        plan = make_plan(small, machine(700 * MIB, workers=4, local_threads=1))
        assert plan.execution == "dask"
        assert plan.chosen.n_workers < 4, "four have too little each"
        assert plan.chosen.limit_bytes >= 700 * MIB // 4

    def test_tile_size(self):
        plan = make_plan(direct(10_000, 10, tile=1300), machine())
        assert plan.chosen.tiling.tile == 1300 and 1300 % plan.chosen.tiling.panel == 0
        assert "tile=1300 was requested" in plan.reasons
        assert make_plan(direct(100, 10, tile=1300), machine()).chosen.tiling.tile == 100

    @pytest.mark.parametrize("form", ["dual", "primal"])
    def test_a_run_that_resumes_keeps_its_layout(self, form):
        layout = Layout(form=form, tile=70, panel=35, columns_per_task=2, row_parts=3)
        for place in (machine(), cluster()):
            plan = make_plan(problem(1009, 211, "linear", layout=layout, keeps_store=True), place)
            c = plan.chosen
            assert (c.form, c.tiling) == (form, Tiling(70, 35, 2))
            assert c.row_parts == (3 if form == "primal" else 1)
            assert any("the run resumes" in reason for reason in plan.reasons)

    def test_the_fastest_that_fits_is_chosen(self):
        for place in (machine(), machine(2 * GIB), cluster()):
            plan = make_plan(problem(20_011, 211, "linear", form="dual"), place)
            fitting = [c for c in plan.rejected if not c.refused]
            assert all(EQUAL_TIME * c.seconds >= plan.seconds for c in fitting)


class TestEveryPlan:
    @settings(max_examples=20, deadline=None)
    @given(problems(), machines())
    def test_invariants(self, what, where):
        try:
            plan = make_plan(what, where)
        except PlanError:
            return
        c = plan.chosen
        assert not c.refused
        assert c.peak_bytes <= usable(plan)
        assert (
            plan.solver == c.solver == {Cholesky: "cholesky", ConjugateGradient: "cg"}.get(type(what.solver), c.solver)
        )
        assert c.seconds > 0 and c.read_bytes >= 0 and c.written_bytes >= 0
        assert c.execution == "memory" or c.solver == "cg" or not (c.tiling.tile % c.tiling.panel)
        assert (c.execution == "memory") <= (c.disk_bytes == 0)
        assert plan.reasons
        assert all(other is not c for other in plan.rejected)
        self.check_text(plan)
        self.check_dict(plan)

    def check_text(self, plan):
        text, c = str(plan), plan.chosen
        solver = "tiled Cholesky" if plan.solver == "cholesky" else "conjugate gradient, "
        for word in (f"form        {plan.form}", f"solver      {solver}", "time        about", "memory      at most",
                     "because", *plan.reasons, f"predict in {plan.prediction} form"):  # fmt: skip
            assert word in text
        if plan.solver == "cg":
            assert "in panels of" not in text
            assert f"true residual of 1e-08; about {c.iterations} iterations (an estimate)" in text
            assert ("rows streamed at every pass" if plan.form == "primal" else "products    ") in text
        elif c.execution != "memory":
            assert f"{c.tiling.tile:,} × {c.tiling.tile:,} in panels of {c.tiling.panel}" in text
        for other in plan.rejected[:4]:
            comparison = "slower" if other.seconds > EQUAL_TIME * c.seconds else "not faster"
            assert f"{other.summary()}: {other.refused or comparison}" in text

    def check_dict(self, plan):
        found = json.loads(json.dumps(plan.to_dict()))
        assert (found["form"], found["tile"], found["peak_bytes"]) == (
            plan.form,
            plan.chosen.layout()["tile"],
            plan.peak_bytes,
        )
        assert found["problem"]["n"] == plan.problem.n and found["reasons"] == list(plan.reasons)
        assert [r["name"] for r in found["rejected"]] == [r.summary() for r in plan.rejected]

    def test_frozen_and_without_arrays(self):
        plan = make_plan(problem(1000, 10, "linear"), machine())
        with pytest.raises(FrozenInstanceError):
            plan.prediction = "dual"
        with pytest.raises(FrozenInstanceError):
            plan.chosen.form = "primal"

        def walk(value):
            assert not isinstance(value, np.ndarray | np.generic | list | dict | set)
            if is_dataclass(value):
                for field in fields(value):
                    walk(getattr(value, field.name))
            elif isinstance(value, tuple):
                for item in value:
                    walk(item)

        walk(plan)
        assert hash(plan.chosen) == hash(replace(plan.chosen))

    def test_the_same_question_has_the_same_answer(self):
        assert make_plan(problem(5000, 7), machine()) == make_plan(problem(5000, 7), machine())

    @settings(max_examples=12, deadline=None)
    @given(problems(), st.integers(1, 4))
    def test_more_memory_is_not_slower(self, what, workers):
        try:
            little = make_plan(what, machine(2 * GIB, workers))
        except PlanError:
            return
        # A factorisation that now fits is not given up for what may be faster but may be not.
        sure = EQUAL_TIME * (SURELY_FASTER if what.solver is None else 1.0)
        assert make_plan(what, machine(32 * GIB, workers)).seconds <= sure * little.seconds


def refusal(what, where):
    """Message of the refusal for memory; other cases are not of interest."""
    try:
        make_plan(what, where)
    except MemoryLimitError as error:
        return str(error)
    except PlanError:
        pass
    return assume(False)


def named_bytes(message):
    """The limit that a message names, in bytes and in words."""
    words, exact = re.search(r"(?:suffices is|at least) (.+?) \((\d+) bytes\)", message).groups()
    return int(exact), parse_bytes(words)


class TestMemoryRefused:
    @settings(max_examples=5, deadline=None)
    @given(problems(), st.integers(1, 6), st.sampled_from([50, 170, 400, 900]))
    def test_the_named_limit_works_and_less_does_not(self, what, workers, limit):
        message = refusal(what, machine(limit * MIB, workers))
        exact, words = named_bytes(message)
        assert f"memory_limit is {limit} MiB" in message
        assert words >= exact
        for enough in (exact, words):
            plan = make_plan(what, machine(enough, workers))
            assert plan.peak_bytes <= usable(plan)
        with pytest.raises(MemoryLimitError):
            make_plan(what, machine(int(0.98 * exact), workers))

    @settings(max_examples=8, deadline=None)
    @given(problems(), st.integers(1, 6), st.integers(1, 3), st.sampled_from([50, 200, 500]), st.booleans())
    def test_the_named_limit_of_per_worker(self, what, workers, threads, limit, slow):
        # On a slow machine no work is small enough for the calling process.
        settings = {"rates": Rates(gemm_flops=1e3)} if slow else {"local_limit_bytes": 100 * MIB}
        message = refusal(what, cluster(limit * MIB, workers, threads, **settings))
        exact, words = named_bytes(message)
        assert "a worker of the Dask client has" in message and "Start workers" in message
        for enough in (exact, words):
            plan = make_plan(what, cluster(enough, workers, threads, **settings))
            assert plan.execution == "dask" and plan.peak_bytes <= usable(plan)
        with pytest.raises(MemoryLimitError):
            make_plan(what, cluster(int(0.98 * exact), workers, threads, **settings))

    def test_small_workers_beside_a_large_calling_process(self):
        # The matrix would fit here, but the work belongs to the workers: their memory is what is missing.
        with pytest.raises(MemoryLimitError, match="a worker of the Dask client has 256 MiB") as caught:
            make_plan(problem(30_000, 10), cluster(256 * MIB, local_limit_bytes=64 * GIB, disk_free_bytes=100 * GIB))
        assert "0 B" not in str(caught.value)

    def test_the_machines_own_memory(self):
        with pytest.raises(MemoryLimitError, match="the memory of this machine or job is 200 MiB"):
            make_plan(problem(10_000, 10), machine(200 * MIB, limit_is_given=False))

    def test_it_is_a_plan_error_and_says_that_nothing_was_done(self):
        with pytest.raises(PlanError, match="Nothing was computed"):
            make_plan(problem(10_000, 10), machine(100 * MIB))

    def test_a_calling_process_that_holds_little_and_tiles_that_were_asked_for(self):
        # The serial way needs least and is the one that is named: it must then be taken.
        what, small = problem(50_000, 10, tile=500), {"local_baseline_bytes": 60 * MIB}
        exact, _ = named_bytes(refusal(what, machine(90 * MIB, **small)))
        assert make_plan(what, machine(exact, **small)).execution == "serial"


class TestDiskRefused:
    def test_too_little(self):
        what = direct(60_000, 10)
        needed = make_plan(what, machine(4 * GIB)).disk_bytes
        with pytest.raises(DiskSpaceError, match=r"smallest need .* takes .* in the store, 1 GiB are free") as caught:
            make_plan(what, machine(4 * GIB, disk_free_bytes=GIB))
        assert "Nothing was computed" in str(caught.value)
        assert make_plan(what, machine(4 * GIB, disk_free_bytes=needed)).disk_bytes <= needed

    def test_the_named_need_is_enough(self):
        what = direct(60_000, 10)
        with pytest.raises(DiskSpaceError) as caught:
            make_plan(what, machine(4 * GIB, disk_free_bytes=GIB))
        named = parse_bytes(re.search(r"takes (.+?) in the store", str(caught.value))[1])
        assert make_plan(what, machine(4 * GIB, disk_free_bytes=int(1.01 * named)))
        with pytest.raises(DiskSpaceError):
            make_plan(what, machine(4 * GIB, disk_free_bytes=int(0.98 * named)))

    @pytest.mark.parametrize("memory", [4 * GIB, 256 * MIB])
    def test_conjugate_gradient_is_named_where_it_has_room(self, memory):
        what, resources = direct(60_000, 10), machine(memory, disk_free_bytes=GIB)
        with pytest.raises(DiskSpaceError) as caught:
            make_plan(what, resources)
        try:
            has_room = make_plan(replace(what, solver=ConjugateGradient()), resources).disk_bytes <= GIB
        except PlanError:
            has_room = False
        assert ("solver='cg'" in str(caught.value)) == has_room == (memory == 4 * GIB)

    @pytest.mark.parametrize("memory", [4 * GIB, GIB // 2])
    def test_so_it_is_where_there_would_be_too_many_tiles(self, memory):
        with pytest.raises(PlanError, match="too large for a factorisation") as caught:
            make_plan(direct(3_000_000, 10), machine(memory))
        assert ("solver='cg' (conjugate gradient), which has room" in str(caught.value)) == (memory == 4 * GIB)

    def test_in_memory_needs_no_disk(self):
        assert make_plan(problem(2000, 10), machine(disk_free_bytes=0)).execution == "memory"

    def test_a_cluster_whose_disk_is_full(self):
        # The calling process could do it without a disk, but the work belongs to the workers.
        with pytest.raises(DiskSpaceError) as caught:
            make_plan(direct(40_000, 10), cluster(disk_free_bytes=GIB))
        assert "0 B" not in str(caught.value), "what is needed is that of the workers' plans"

    def test_a_plan_without_data_is_priced_all_the_same(self):
        plan = make_plan(direct(60_000, 10), machine(4 * GIB, disk_free_bytes=GIB, enforce_disk=False))
        assert any("only 1 GiB of disk are free here" in reason for reason in plan.reasons)


class TestExtremes:
    def test_the_smallest(self):
        for kernel in KERNELS:
            for more in ({}, {"keeps_store": True}, {"tile": 1}):
                plan = make_plan(problem(1, 1, kernel, **more), machine())
                assert isinstance(plan, Plan) and str(plan)

    @pytest.mark.parametrize("keeps_store", [False, True])
    def test_more_rows_than_tiles_can_hold(self, keeps_store):
        with pytest.raises(PlanError, match="Nothing was computed"):
            make_plan(direct(50_000_000, 10, keeps_store=keeps_store), machine())

    def test_more_features_than_tiles_can_hold_are_streamed(self):
        plan = make_plan(problem(10, 3001, "poly", form="primal"), machine())
        assert (plan.solver, plan.form, plan.disk_bytes) == ("cg", "primal", 0)
        assert any("conjugate gradient, since a factorisation needs more memory" in r for r in plan.reasons)

    @pytest.mark.parametrize("keeps_store", [False, True])
    def test_more_features_than_tiles_can_hold(self, keeps_store):
        # In memory the normal matrix of 4,507,503 features would take 148 TiB; a store asks for tiles.
        with pytest.raises(PlanError, match="Nothing was computed"):
            make_plan(direct(10, 3001, "poly", form="primal", keeps_store=keeps_store), machine())

    def test_far_too_many_tiles_are_refused_at_once(self):
        with pytest.raises((PlanError, InputError), match="tile"):
            make_plan(problem(2_000_000, 10, tile=500), machine())


def test_wide_sparse_rows_go_to_conjugate_gradient_even_if_it_took_thousands_of_iterations():
    import scipy.sparse as sp

    import dkrr

    X = sp.random_array((60_000, 50_000), density=2e-4, format="csr", rng=np.random.default_rng(0))
    plan = dkrr.plan(X, np.ones(60_000), memory_limit="4GiB", workers=2)
    assert (plan.form, plan.solver) == ("primal", "cg")
    # Where a direct solver takes little time, the spectrum need not be estimated.
    assert dkrr.plan(X[:500, :400], np.ones(500), memory_limit="4GiB", workers=2).solver == "cholesky"


class TestConfined:
    """A process that may neither start workers nor use those of a client."""

    WHY = "in the calling process, since the tests say so"

    @pytest.mark.parametrize(
        "p",
        [
            problem(20_000, 5),
            direct(20_000, 5),
            direct(500, 5, tile=64),
            problem(100_000, 20, loss="logistic"),
            direct(5000, 9000, "linear"),
            direct(20_000, 9000, "linear", form="primal"),
        ],
        ids=["any", "direct", "tiles", "logistic", "wide", "primal"],
    )
    @pytest.mark.parametrize("limit", [1 * GIB, 64 * GIB])
    def test_never_on_workers_and_the_plan_says_why(self, p, limit):
        plan = make_plan(p, machine(limit=limit, confined=self.WHY))
        assert {c.execution for c in (plan.chosen, *plan.rejected)} <= {"memory", "serial"}
        assert self.WHY in plan.reasons and self.WHY in str(plan)
        assert plan.peak_bytes <= limit

    def test_tiles_on_disk_where_memory_is_short(self):
        assert make_plan(direct(20_000, 5), machine(limit=1 * GIB, confined=self.WHY)).execution == "serial"

    def test_refused_with_the_reason(self):
        with pytest.raises(MemoryLimitError, match="must be done in the calling process, since the tests say so"):
            make_plan(direct(20_000, 5), machine(limit=160 * 2**20, confined=self.WHY))

    def test_the_limit_of_a_worker_that_would_do(self):
        """Two tasks of a worker share its limit: the limit that the error names is enough, and a smaller one is not."""
        share, held = Share(2, 0.7), 100 * 2**20

        def plan(worker_limit):
            limit = share.of(worker_limit, held)
            shared = replace(machine(limit=limit, confined=self.WHY), share=share, local_baseline_bytes=held)
            return make_plan(direct(20_000, 5), shared)

        with pytest.raises(
            MemoryLimitError, match="The smallest memory limit of the worker that suffices is"
        ) as caught:
            plan(200 * 2**20)
        smallest = int(re.search(r"\((\d+) bytes\)", str(caught.value))[1])
        assert plan(smallest).execution == "serial"
        with pytest.raises(MemoryLimitError):
            plan(smallest - 2**20)


class TestDataLargerThanMemory:
    """A measured machine, whose cache of files reads ten times as fast as its disk."""

    RATES = Rates(
        gemm_flops=45e9,
        read_bytes=5e9,
        cold_read_bytes=0.4e9,
        write_bytes=1e9,
        kernels=tuple(KernelRate("RBF", 64, p, s) for p, s in (("float64", 5e-9), ("float32", 3e-9))),
    )

    def plan(self, n=1_000_000, limit=8 * GIB, memory=20 * GIB, solver=None, **settings):
        where = machine(limit, rates=self.RATES, memory_bytes=memory, disk_free_bytes=10**15, **settings)
        return make_plan(problem(n, 79, solver=solver or ConjugateGradient()), where)

    @pytest.mark.parametrize(("n", "limit"), [(100_000, 4 * GIB), (1_000_000, 8 * GIB)])
    def test_tiles_that_exceed_the_memory_are_formed_at_every_pass(self, n, limit):
        plan = self.plan(n, limit)
        products, text = plan.chosen.products, str(plan)
        assert products.kept_fraction(plan.chosen.place.slots) < 1 and plan.disk_bytes == 0
        assert "formed at every pass" in text and "dkrr.gram(store=...)" in text and "kernel='precomputed'" in text

    @pytest.mark.parametrize(
        ("form", "solver"), [("primal", Cholesky()), ("primal", ConjugateGradient()), ("dual", Cholesky())]
    )
    def test_less_memory_for_the_cache_never_makes_a_plan_faster(self, form, solver):
        kernel, n, d = ("linear", 20_000_000, 6000) if form == "primal" else ("rbf", 200_000, 79)
        this = problem(n, d, kernel, solver=solver, form=form, x_is_shared=True, x_in_memory=False)
        seconds = [
            make_plan(this, machine(2 * GIB, rates=self.RATES, memory_bytes=memory, disk_free_bytes=10**15)).seconds
            for memory in (None, 10_000 * GIB, 60 * GIB, 3 * GIB)
        ]
        assert seconds[0] == seconds[1] and seconds == sorted(seconds) and seconds[3] > 1.05 * seconds[0]

    def test_a_disk_and_a_memory_that_are_not_here(self):
        where = machine(64 * GIB, rates=self.RATES, memory_bytes=20 * GIB, disk_free_bytes=GIB, enforce_disk=False)
        for solver in (Cholesky(), ConjugateGradient()):
            plan = make_plan(problem(300_000, 79, solver=solver), where)
            assert (plan.disk_bytes > GIB) == ("only 1 GiB of disk are free here" in str(plan))
            assert "memory_limit=64 GiB is more than the 20 GiB that this machine or job can give now" in plan.reasons


class TestNumbersThatAreLarge:
    def test_features_beyond_all_bounds_are_written_shortly(self):
        value = Polynomial(degree=120).resolved(300)
        this = Problem(n=100, d=300, n_targets=1, kernel=value, feature_map=feature_map(value, 300))
        assert "D = about 5.8e107 features" in str(make_plan(this, machine()))
        with pytest.raises(
            PlanError,
            match="form is 'primal'; expected at most 1,000,000,000,000 features, not D = about 5.8e107: use",
        ):
            make_plan(replace(this, form="primal"), machine())

    def test_a_lower_rank_where_none_of_the_usual_ones_fits(self):
        plan = make_plan(problem(10**7, 5), machine(8 * GIB))
        assert 0 < plan.chosen.rank < 250 and plan.peak_bytes <= 8 * GIB


class TestManyTargets:
    """Targets are cut by rows as X is, so that they take no more memory than a block of rows does."""

    @pytest.mark.parametrize("centred", [False, True])
    @pytest.mark.parametrize("limit", [8 * GIB, 24 * GIB])
    @pytest.mark.parametrize("n", [100_000, 1_000_000])
    def test_more_than_features(self, n, limit, centred):
        p = problem(n, 10, "linear", 10_000, y_in_memory=False, fit_intercept=centred)
        plan = make_plan(p, machine(limit=limit, local_baseline_bytes=150 * MIB))
        assert (plan.form, plan.solver) == ("primal", "cholesky")
        assert plan.seconds < 1800
        assert plan.peak_bytes <= usable(plan)
        if plan.execution == "memory":
            assert plan.peak_bytes > 2 * p.y_bytes, "the targets and their errors are counted"
        else:
            assert plan.peak_bytes < 1 * GIB and plan.chosen.disk_bytes > 2 * p.y_bytes

    def test_targets_in_a_file_take_disk_and_not_memory(self):
        p = problem(1_000_000, 10, "linear", 10_000, y_in_memory=False, y_is_mapped=True)
        plan = make_plan(p, machine(limit=8 * GIB))
        assert (plan.form, plan.execution) == ("primal", "memory")
        assert plan.peak_bytes < 1 * GIB and plan.chosen.disk_bytes == p.y_bytes
        assert plan.chosen.read_bytes > 3 * p.y_bytes and 60 < plan.seconds < 7200

    def test_one_worker_leaves_less_for_the_cache_than_the_calling_process(self):
        p = problem(1_000_000, 10, "linear", 1000, y_is_mapped=True)
        here = replace(machine(limit=8 * GIB, workers=1), memory_bytes=16 * GIB, local_baseline_bytes=1 * GIB)
        worker, caller = (
            mapped_target_stage(p, here, at, 1 * GIB) for at in (here.on_workers(), here.in_caller("memory", 1))
        )
        assert worker.seconds > caller.seconds and worker.read_bytes == caller.read_bytes

    @pytest.mark.parametrize("solver", [Cholesky(), ConjugateGradient()])
    @pytest.mark.parametrize("tile", [None, 20])
    def test_memory_hardly_grows_with_the_targets(self, tile, solver):
        def needed(t):
            p = problem(100_000, 20, "linear", t, form="primal", solver=solver, tile=tile, y_is_mapped=True)
            return make_plan(p, machine(limit=64 * GIB)).peak_bytes

        assert needed(10_000) < needed(1) + 300 * MIB
