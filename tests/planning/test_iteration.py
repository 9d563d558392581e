"""Conjugate gradient among the candidates: its memory, its settings, and when it is taken."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from dkrr.errors import InputError, MemoryLimitError, StoreError
from dkrr.features import feature_map
from dkrr.kernels import RBF, AdditiveChi2, Cosine, Laplacian, Linear, Matern, Polynomial, Sigmoid
from dkrr.linalg.pivoted_cholesky import FACTOR_DTYPE, PRICED_RANKS, factor_rows_bytes
from dkrr.linalg.tiled_operator import KEPT_FRACTIONS, MAX_TILE
from dkrr.planning import Iterative, Layout, Problem, Rates, make_plan
from dkrr.planning.iteration import NOT_SURELY_FASTER, SPECTRUM_UNKNOWN, SURELY_FASTER
from dkrr.planning.iteration_dual import cg_tile, dual_iterations_expected, iterations_expected
from dkrr.planning.resources import PROCESS_MARGIN_BYTES
from dkrr.planning.strategy import Systems
from dkrr.solvers import Cholesky, ConjugateGradient, Float32Cholesky, RPCholesky
from dkrr.units import format_seconds
from tests.pairs import every_pair
from tests.planning.problems import GIB, MIB, cluster, direct, machine, problem

# Distinct primes: a formula that takes one size for another shows.
N, D, M, WORKERS, THREADS = 30_011, 13, 3, 5, 2
CG = ConjugateGradient()
FACTOR_ITEMSIZE = np.dtype(FACTOR_DTYPE).itemsize


def dual(what, where, settings=CG):
    return list(Iterative.candidates(replace(what, solver=settings), where, "dual"))


def candidates(settings=CG, where=None, **more):
    return dual(problem(N, D, n_targets=M, **more), where or machine(workers=WORKERS), settings)


def usable(c, resources):
    return c.limit_bytes * (resources.usable_fraction if c.execution == "dask" else 1.0)


def itemsize(c):
    return 4 if c.products.precision == "float32" else 8


class TestMemory:
    @pytest.mark.parametrize(
        "where", [machine(workers=WORKERS), cluster(3 * GIB, 7, THREADS)], ids=["machine", "cluster"]
    )
    @pytest.mark.parametrize("precision", ["float64", "mixed"])
    def test_all_that_is_held_is_counted(self, where, precision):
        for c in candidates(ConjugateGradient(precision=precision), where):
            here = c.execution != "dask"
            threads = where.local_threads if here else where.worker_threads
            baseline = where.local_baseline_bytes if here else where.worker_baseline_bytes
            held = baseline + PROCESS_MARGIN_BYTES
            held += threads * c.products.kept_tiles * itemsize(c) * c.products.tile**2
            held += threads * factor_rows_bytes(N, c.rank_limit, FACTOR_ITEMSIZE, c.place.slots)
            held += threads * 8 * c.rank_limit**2
            held += 4 * 8 * N * M  # vectors
            assert c.peak_bytes >= held

    def test_it_grows_with_the_tiles_that_are_kept(self):
        found = [c for c in candidates(ConjugateGradient(RPCholesky(211))) if c.execution == "memory"]
        for precision in ("float64", "float32"):
            these = sorted((c for c in found if c.products.precision == precision), key=lambda c: c.products.kept_tiles)
            assert (
                len(these) == len(KEPT_FRACTIONS) and these[0].products.kept_tiles == 0 < these[-1].products.kept_tiles
            )
            for a, b in pairwise(these):
                tiles = WORKERS * (b.products.kept_tiles - a.products.kept_tiles) * itemsize(a) * a.products.tile**2
                assert b.peak_bytes - a.peak_bytes == tiles
                assert b.seconds <= a.seconds or b.products.precision == "float64"

    def test_it_grows_with_the_rank(self):
        peaks = []
        for rank in (101, 211, 401, 809):
            c = next(
                c for c in candidates(ConjugateGradient(RPCholesky(rank), "float64")) if c.products.kept_tiles == 0
            )
            assert (c.rank, c.rank_limit) == (rank, rank)
            peaks.append(c.peak_bytes)
        assert peaks[1] - peaks[0] >= FACTOR_ITEMSIZE * N * (211 - 101)
        assert peaks == sorted(set(peaks))

    @pytest.mark.parametrize("limit", [400 * MIB, GIB, 5 * GIB, 31 * GIB])
    def test_what_is_kept_stays_within_the_limit(self, limit):
        where = machine(limit, WORKERS)
        for c in candidates(where=where):
            least = c.products.kept_tiles == 0 and c.rank_limit == c.rank
            assert least or c.peak_bytes <= usable(c, where), "more than it needs only where memory is left"
            assert c.limit_bytes == (limit if c.execution == "memory" else limit // WORKERS)

    def test_no_more_tiles_are_kept_than_there_are(self):
        for c in candidates(where=machine(500 * GIB, WORKERS)):
            n_tiles = c.products.n_tiles * (c.products.n_tiles + 1) // 2
            assert c.products.kept_tiles <= -(-n_tiles // c.place.slots)
            assert c.products.n_tiles == -(-N // c.products.tile)

    def test_rows_that_workers_keep(self):
        shared = candidates(x_is_shared=True, x_in_memory=False)
        assert all(c.products.keeps_rows for c in shared if c.execution == "dask"), "8 × 13 bytes a row are little"
        large = problem(N, 20_011, x_in_memory=False)
        assert not any(c.products.keeps_rows for c in dual(large, machine(4 * GIB)) if c.execution == "dask")
        with_rows, without = (
            next(c for c in candidates(x_in_memory=kept) if c.execution == "memory" and c.products.kept_tiles == 0)
            for kept in (False, True)
        )
        assert with_rows.peak_bytes - without.peak_bytes == 8 * D * N

    def test_rows_that_are_read_into_the_calling_process(self):
        # In memory, the whole of X is: however large it is.
        large = problem(N, 5003, x_in_memory=False)
        for c in dual(large, machine(2 * GIB)):
            assert c.execution != "memory" or c.peak_bytes >= 8 * 5003 * N

    @every_pair(
        limit=[20, 60, 150],
        settings=[ConjugateGradient(RPCholesky(1009)), CG, ConjugateGradient(Float32Cholesky())],
        more=[{}, {"x_in_memory": False, "x_is_shared": True}, {"keeps_store": True}],
        d=[D, 211],
        ids=str,
    )
    def test_the_limit_that_a_refusal_names_is_enough(self, limit, settings, more, d):
        what = problem(N, d, solver=settings, **more)
        with pytest.raises(MemoryLimitError, match="(conjugate gradient|float32).*Nothing was computed") as caught:
            make_plan(what, machine(limit * MIB))
        enough = int(str(caught.value).split(" bytes)")[0].rsplit("(", 1)[1])
        for bytes_ in (enough, 2 * enough, 10 * enough):
            plan = make_plan(what, machine(bytes_))
            assert plan.peak_bytes <= usable(plan.chosen, plan.resources)
        with pytest.raises(MemoryLimitError):
            make_plan(what, machine(int(0.98 * enough)))


class TestSettings:
    @pytest.mark.parametrize(("rank", "expected"), [(1, 1), (701, 701), (N, N), (10 * N, N)])
    def test_a_rank_that_was_asked_for(self, rank, expected):
        found = candidates(ConjugateGradient(RPCholesky(rank)), machine(4000 * GIB))
        assert {(c.rank, c.rank_limit) for c in found} == {(expected, expected)}
        plan = make_plan(problem(N, D, solver=ConjugateGradient(RPCholesky(rank))), machine(4000 * GIB))
        assert f"a preconditioner of rank {expected:,} was requested" in plan.reasons

    def test_a_rank_that_was_not(self):
        assert {c.rank for c in candidates(ConjugateGradient(RPCholesky()))} == {r for r in PRICED_RANKS if r <= N // 4}

    @pytest.mark.parametrize("n", [1, 2, 3, 7, 37, 211, 1009])
    def test_ranks_of_few_rows(self, n):
        for c in dual(problem(n, D), machine()):
            assert 1 <= c.rank <= c.rank_limit <= n
            assert 1 <= c.products.tile <= n
        assert str(make_plan(problem(n, D, solver=CG), machine()))

    def test_none(self):
        assert {(c.rank, c.rank_limit) for c in candidates(ConjugateGradient(None))} == {(0, 0)}
        text = str(make_plan(problem(N, D, solver=ConjugateGradient(None)), machine()))
        assert "not preconditioned by a factor" in text and "a preconditioner of rank" not in text

    @pytest.mark.parametrize(
        ("precision", "expected"),
        [("auto", {"float64", "float32"}), ("mixed", {"float32"}), ("float64", {"float64"})],
    )
    def test_precision(self, precision, expected):
        assert {c.products.precision for c in candidates(ConjugateGradient(precision=precision))} == expected
        plan = make_plan(problem(N, D, solver=ConjugateGradient(precision=precision)), machine())
        assert plan.chosen.products.precision in expected
        assert ("mixed precision" in str(plan)) == (plan.chosen.products.precision == "float32")

    def test_tile(self):
        assert {c.products.tile for c in candidates(tile=1009)} == {1009}
        assert {c.products.tile for c in candidates(tile=2 * N)} == {N}
        # Tiles of conjugate gradient are not tasks: they may have any size.
        assert make_plan(problem(N, D, tile=37, solver=CG), machine()).chosen.products.tile == 37

    @pytest.mark.parametrize("limit", [100 * MIB, GIB, 64 * GIB])
    @pytest.mark.parametrize("n", [1, 500, 30_011, 1_000_003])
    def test_tiles_leave_room_for_the_kernel(self, n, limit):
        what = replace(problem(n, 211), kernel=Laplacian(gamma=1.0))
        tile = cg_tile(what, limit, 8)
        assert 1 <= tile <= min(n, MAX_TILE)

    def test_fewer_iterations_for_more_rank_more_alpha_and_less_accuracy(self):
        def iterations(what, rank):
            return dual_iterations_expected(what, Systems.of_ridge(what), rank)

        counts = [iterations(problem(N, D), rank) for rank in (0, 100, 300, 1000, 3000)]
        assert counts == sorted(counts, reverse=True) and counts[-1] >= 1
        counts = [iterations(problem(N, D, alphas=(1.0, a)), 300) for a in (0.0, 1e-6, 1e-3, 0.1, 1.0)]
        assert counts == sorted(counts, reverse=True), "the smallest alpha counts"
        counts = [iterations(problem(N, D, tol=tol), 300) for tol in (1e-14, 1e-10, 1e-6, 1e-2)]
        assert counts == sorted(counts, reverse=True)

    def test_more_right_sides_take_longer(self):
        one, many = (dual(problem(N, D, n_targets=m), machine())[0] for m in (1, 17))
        assert many.seconds > one.seconds and many.peak_bytes > one.peak_bytes
        several = dual(problem(N, D, n_targets=17, alphas=(1.0, 2.0)), machine())[0]
        assert several.seconds > many.seconds


def of_kernel(kernel, n=N, d=D, **settings):
    return replace(
        problem(n, d, form="dual", **settings), kernel=kernel.resolved(d), feature_map=feature_map(kernel, d)
    )


class TestWhoIsChosen:
    @pytest.mark.parametrize("kernel", [RBF(), Laplacian(), Matern(nu=1.5)], ids=repr)
    @pytest.mark.parametrize("where", [machine(4 * GIB), cluster()], ids=["machine", "cluster"])
    def test_unit_diagonal(self, kernel, where):
        plan = make_plan(of_kernel(kernel, 100_003), where)
        assert plan.solver == "cg" and plan.chosen.execution == ("dask" if where.cluster_is_running else "memory")
        best = min(c.seconds for c in plan.rejected if c.solver == "cholesky" and not c.refused)
        assert SURELY_FASTER * plan.seconds <= best
        assert any("conjugate gradient, since a factorisation would take about" in r for r in plan.reasons)
        assert "dual, Cholesky, " in str(plan).split("rejected")[1]

    @every_pair(
        kernel=[Linear(), Polynomial(), Sigmoid(), AdditiveChi2(), 2.0 * RBF(), RBF() + RBF(), RBF() * Linear()],
        place=["4 GiB", "64 GiB", "cluster"],
        n=[1009, N, 200_003],
        ids=str,
    )
    def test_other_diagonals_never_where_a_factorisation_fits(self, kernel, place, n):
        where = {"4 GiB": machine(4 * GIB), "64 GiB": machine(64 * GIB), "cluster": cluster()}[place]
        plan = make_plan(of_kernel(kernel, n), where)
        assert plan.solver == "cholesky"
        assert {c.refused for c in plan.rejected if c.solver == "cg"} <= {
            SPECTRUM_UNKNOWN,
            "needs more memory than allowed",
        }
        assert make_plan(of_kernel(kernel, n, solver=CG), where).solver == "cg", "it can be asked for"

    def test_never_without_a_shift(self):
        for alphas in ((0.0,), (0.0, 1.0)):
            plan = make_plan(problem(60_013, D, alphas=alphas), machine(4 * GIB))
            assert plan.solver == "cholesky"
            assert any(c.refused == SPECTRUM_UNKNOWN for c in plan.rejected)

    def test_never_in_primal_form(self):
        for n, d in ((60_013, 4001), (300_007, 211), (4001, 5003)):
            assert make_plan(problem(n, d, "linear"), machine()).solver == "cholesky"

    def test_not_where_it_is_hardly_faster(self):
        # A thousand targets cost conjugate gradient dearly and a factorisation next to nothing.
        plan = make_plan(problem(20_011, D, n_targets=1009, alphas=(1e-4,)), machine())
        assert plan.solver == "cholesky"
        assert any(c.refused == NOT_SURELY_FASTER for c in plan.rejected)
        assert f"{SURELY_FASTER:g} ×" in str(plan)

    def test_tiny_work_is_not_compared(self):
        plan = make_plan(problem(211, D), machine())
        assert (plan.solver, plan.execution, plan.rejected) == ("cholesky", "memory", ())

    def test_where_a_factorisation_does_not_fit(self):
        kept = make_plan(of_kernel(Linear(), N), machine(GIB, disk_free_bytes=GIB))
        assert kept.solver == "cg" and kept.disk_bytes == 0
        assert any("since a factorisation needs" in r for r in kept.reasons)

    @pytest.mark.parametrize("where", [machine(8 * GIB), cluster()], ids=["machine", "cluster"])
    def test_a_million_rows(self, where):
        plan = make_plan(problem(1_000_003, D), where)
        assert plan.solver == "cg" and plan.disk_bytes < GIB
        assert plan.peak_bytes <= usable(plan.chosen, where)
        text = str(plan)
        assert "conjugate gradient, preconditioned (rank up to" in text and "formed at every pass" in text
        assert "the whole matrix would take 1.83 TiB of memory" in text

    def test_solvers_that_were_asked_for(self):
        assert make_plan(direct(60_013, D), machine(4 * GIB)).solver == "cholesky"
        plan = make_plan(problem(211, D, solver=CG), machine())
        assert plan.solver == "cg" and "conjugate gradient was requested" in plan.reasons
        assert {c.solver for c in plan.rejected} <= {"cg"}

    def test_reasons_of_the_place(self):
        here = make_plan(problem(N, D, solver=CG), machine())
        assert "in the calling process, since its threads are as fast as workers would be" in here.reasons
        kept = make_plan(problem(N, D, solver=CG, keeps_store=True), machine())
        assert kept.execution == "serial"
        assert "in the calling process, with checkpoints in the store" in kept.reasons
        assert kept.disk_bytes >= 8 * N * D + 2 * 5 * 8 * N, "a copy of X, and two checkpoints in turn"


class TestRangeOfSeconds:
    """Iterations cannot be known before a fit: the plan says between which times it will be."""

    def test_wider_without_rows_than_with_a_sample_of_them(self):
        what = problem(100_000, 9, solver=CG)
        ranges = []
        for spectrum in (what.spectrum, replace(what.spectrum, decay=2.1)):
            plan = make_plan(replace(what, spectrum=spectrum), machine(8 * GIB))
            low, high = plan.seconds_range
            assert low < plan.seconds < high and plan.to_dict()["seconds_range"] == [low, high]
            iterating = next(s.seconds for s in plan.chosen.stages if s.name == "conjugate gradient")
            assert low > plan.seconds - iterating, "only the iterations are an estimate"
            assert f"({format_seconds(low)} to {format_seconds(high)}: the iterations are an estimate)" in str(plan)
            ranges.append(high / low)
        assert ranges[0] > ranges[1] > 1.2

    def test_a_factorisation_has_none(self):
        plan = make_plan(direct(20_000, 9), machine())
        assert plan.seconds_range == (plan.seconds, plan.seconds) and "an estimate" not in str(plan)

    def test_of_the_primal_form_from_uncorrelated_columns_to_hard_ones(self):
        plan = make_plan(problem(10**6, 3000, "linear", solver=CG, form="primal"), machine())
        low, high = (s / plan.seconds for s in plan.seconds_range)
        assert low < 0.2 and high > 2

    def test_inside_newtons_method(self):
        plan = make_plan(problem(50_000, 9, solver=CG, loss="logistic"), machine(2 * GIB))
        low, high = plan.seconds_range
        assert low < plan.seconds < high


def test_few_iterations_where_a_factor_leaves_little():
    assert [iterations_expected(x, 1.0, 1e-6) for x in (0.0, 1e-3, 0.1)] == [2, 4, 6]
    assert iterations_expected(1e4, 1.0, 1e-6) == pytest.approx(0.5 * 1.2 * 100 * np.log(2e6), rel=0.01)


class TestTimeOfNewMemory:
    def test_kept_tiles_and_the_factor_are_filled_for_the_first_time(self):
        fast, slow = (machine(rates=Rates(fresh_bytes=b)) for b in (1e30, 0.5e9))
        settings = ConjugateGradient(RPCholesky(500), "float64")
        pairs = zip(candidates(settings, fast), candidates(settings, slow), strict=True)
        for a, b in pairs:
            kept = a.products.kept_tiles * a.place.slots * 8 * a.products.tile**2
            kept = min(kept, a.products.all_tiles * 8 * a.products.tile**2)
            factor = FACTOR_ITEMSIZE * N * a.rank
            assert b.seconds - a.seconds == pytest.approx((kept + factor) / 0.5e9 / a.place.slots, rel=1e-6)


def test_long_vectors_take_time_on_many_workers():
    def seconds(workers, network_bytes):
        where = cluster(4 * GIB, workers, rates=Rates(network_bytes=network_bytes))
        return make_plan(problem(10**6, 79, solver=CG), where).seconds

    assert seconds(64, 0.1e9) / seconds(64, 1e9) > 1.01 > seconds(4, 0.1e9) / seconds(4, 1e9) > 1
    assert make_plan(problem(10**5, 79, solver=CG), cluster()).seconds == (
        make_plan(problem(10**5, 79, solver=CG), cluster(rates=Rates(network_bytes=0.1e9))).seconds
    ), "short ones are in the time of a round trip"


class TestPrimal:
    def test_candidates(self):
        what = problem(100_003, 211, "linear", n_targets=M, form="primal", solver=CG)
        small, large = (list(Iterative.candidates(what, machine(workers=w), "primal")) for w in (2, 7))
        for c in small + large:
            assert (c.form, c.solver, c.rank, c.rank_limit) == ("primal", "cg", 0, 0)
            assert c.peak_bytes >= PROCESS_MARGIN_BYTES + 150 * MIB + c.products.row_block * 211 * 8
            assert 1 <= c.products.row_block <= 100_003
        assert large[0].peak_bytes > small[0].peak_bytes and large[0].seconds < small[0].seconds
        text = str(make_plan(what, machine()))
        assert "the rows streamed at every pass" in text and "not preconditioned by a factor" in text

    @pytest.mark.parametrize("preconditioner", [RPCholesky(), RPCholesky(7)], ids=repr)
    def test_columns_of_the_gram_matrix_do_not_precondition_it(self, preconditioner):
        settings = ConjugateGradient(preconditioner)
        with pytest.raises(
            InputError,
            match=r"expected 'auto' or None in the primal form, .*: use preconditioner='auto' or form='dual'",
        ):
            make_plan(problem(10_007, D, "linear", form="primal", solver=settings), machine())
        plan = make_plan(problem(10_007, D, "linear", solver=settings), machine())
        assert (plan.form, plan.solver) == ("dual", "cg"), "the form that can have it"


class TestRunsThatResume:
    LAYOUT = Layout("dual", 701, 701, 0, 1, "cg")

    @pytest.mark.parametrize("solver", [None, CG, ConjugateGradient(RPCholesky(101))], ids=repr)
    @pytest.mark.parametrize("where", [machine(), machine(2 * GIB, 3), cluster()], ids=["16", "2", "cluster"])
    def test_with_the_same_solver_and_tiles(self, solver, where):
        for n in (1009, N):
            plan = make_plan(problem(n, D, layout=self.LAYOUT, keeps_store=True, solver=solver), where)
            assert (plan.solver, plan.form, plan.chosen.products.tile) == ("cg", "dual", 701)
            assert any("the run resumes" in r for r in plan.reasons)
            assert plan.execution in ("serial", "dask")

    def test_not_with_another(self):
        with pytest.raises(StoreError, match="began with solver='cg'.*give the same solver, or another store="):
            make_plan(direct(N, D, layout=self.LAYOUT, keeps_store=True), machine())
        other = Layout("dual", 701, 701, 0, 1)
        assert other.solver == "cholesky", "stores of earlier versions"
        with pytest.raises(StoreError, match="began with solver='cholesky'"):
            make_plan(problem(N, D, layout=other, keeps_store=True, solver=CG), machine())
        assert make_plan(problem(N, D, layout=other, keeps_store=True), machine()).solver == "cholesky"

    def test_the_layout_of_a_plan_is_that_of_the_next(self):
        first = make_plan(problem(60_013, D, keeps_store=True), machine(4 * GIB))
        assert first.solver == "cg"
        layout = Layout(**first.chosen.layout())
        for where in (machine(2 * GIB), machine(64 * GIB, 7), cluster()):
            again = make_plan(problem(60_013, D, keeps_store=True, layout=layout), where)
            assert again.chosen.products.tile == first.chosen.products.tile


def test_settings_are_values():
    assert ConjugateGradient() == ConjugateGradient() and hash(ConjugateGradient()) == hash(ConjugateGradient())
    what = Problem(n=2, d=1, n_targets=1, kernel=Cosine(), feature_map=None, solver=Cholesky())
    assert hash(what) == hash(replace(what))
