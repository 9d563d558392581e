"""Approximations that are asked for by name: random Fourier features, and Nyström centres drawn before the plan."""

import json
import pickle
from dataclasses import replace
from itertools import combinations
from types import SimpleNamespace

import numpy as np
import pytest
import scipy.sparse as sp
from numpy.testing import assert_allclose, assert_array_equal

import dkrr
from dkrr import KernelLogisticRegression, KernelRidge
from dkrr.blas import BYTES_PER_THREAD
from dkrr.data import MemoryRows, as_rows
from dkrr.errors import InputError, MemoryLimitError
from dkrr.features import Nystroem, RandomFourier, feature_map
from dkrr.fitting.costs.centre_costs import drawing_of
from dkrr.fitting.request_plans import make_plan
from dkrr.fitting.requests import problem_of_rows
from dkrr.fitting.sampled import nystroem_map, with_sampled_maps, with_stored_arrays
from dkrr.kernels import RBF, Laplacian, Linear, Matern, fourier
from dkrr.kernels.descriptions import feature_map_from_dict
from dkrr.kernels.map_base import MapKernel
from dkrr.planning.problem import Problem
from dkrr.planning.resources import PROCESS_MARGIN_BYTES
from dkrr.store import RunStore
from tests.oracles import assert_close
from tests.planning.problems import GIB, cluster, machine
from tests.systems import random, traced_peak

pytestmark = pytest.mark.usefixtures("one_blas_thread")

ASKED = [
    RandomFourier(Matern(nu=1.5), 60),
    Nystroem(RBF(gamma=0.2), 40, "uniform"),
    Nystroem(RBF(gamma=0.2), 40),
    Linear() + 2.0 * Nystroem("laplacian", 30, "uniform"),
    0.5 * MapKernel(Nystroem("rbf", 20)) + Linear(),
]
each = pytest.mark.parametrize("asked", ASKED, ids=str)


@each
def test_both_forms_are_the_same_model(data, asked):
    primal, dual = (
        KernelRidge(0.3, kernel=asked, fit_intercept=True, form=form).fit(data.X, data.y, data.weights)
        for form in ("primal", "dual")
    )
    assert (primal.plan_.form, dual.plan_.form) == ("primal", "dual")
    assert_allclose(primal.predict(data.X_new), dual.predict(data.X_new), rtol=1e-8, atol=1e-8)
    for name in ("dual_coef_", "coef_"):  # a model of features predicts by them, whichever form it was solved in
        assert_allclose(getattr(primal, name), getattr(dual, name), rtol=1e-6, atol=1e-6)


@each
def test_loaded_models_sample_again_when_fitted(data, asked, tmp_path):
    dkrr.save(KernelRidge(0.3, kernel=asked).fit(data.X, data.y), tmp_path / "m.zarr")
    X, y = data.X[:99] + 1, data.y[:99]
    found, expected = (m.fit(X, y) for m in (dkrr.load(tmp_path / "m.zarr"), KernelRidge(0.3, kernel=asked)))
    assert_array_equal(found.predict(data.X_new), expected.predict(data.X_new))


def test_more_centres_are_nearer_to_the_exact_model_and_all_rows_are_it(data):
    exact = KernelRidge(0.1, kernel=RBF(gamma=0.1)).fit(data.X, data.y).predict(data.X_new)

    def error(asked):
        return np.abs(KernelRidge(0.1, kernel=asked).fit(data.X, data.y).predict(data.X_new) - exact).max()

    assert error(Nystroem(RBF(gamma=0.1), 150)) < 0.3 * error(Nystroem(RBF(gamma=0.1), 20))
    assert error(Nystroem(RBF(gamma=0.1), 211, "uniform")) < 1e-7
    assert error(RandomFourier(RBF(gamma=0.1), 20_000)) < 0.3 * error(RandomFourier(RBF(gamma=0.1), 100))


def test_more_centres_than_rows_are_refused(data):
    message = "n_components of Nystroem is 212; expected at most the number of training rows, 211"
    with pytest.raises(InputError, match=message):
        KernelRidge(kernel=Linear() + Nystroem(RBF(), 212)).fit(data.X, data.y)


# Centres


def test_uniform_centres_are_rows_and_no_other_row_is_looked_at():
    X, settings = random(500, 3), Nystroem(RBF(), 20, "uniform", random_state=7)
    phi, other = (nystroem_map(each, MemoryRows(X)) for each in (settings, settings.set_params(random_state=8)))
    unused = ~(X[:, None] == phi.centres).all(axis=2).any(axis=1)
    assert unused.sum() == 480 and phi.base == RBF(gamma=1 / 3) and other != phi
    X[unused] = np.nan
    assert nystroem_map(settings, MemoryRows(X)) == phi


def test_randomly_pivoted_centres_adapt_to_the_spectrum():
    # Nine in ten of the rows lie in one small cluster, of which one or two centres would do.
    X, kernel = np.vstack([0.01 * random(900, 2), 6 * random(100, 2, seed=1)]), RBF(gamma=0.5)

    def error(pivots):
        phi = nystroem_map(Nystroem(kernel, 60, pivots), MemoryRows(X))
        return np.trace(kernel(X)) - (phi.transform(X) ** 2).sum()

    assert error("rpcholesky") < 0.5 * error("uniform")


def test_nothing_is_drawn_for_a_fit_without_a_plan(monkeypatch):
    monkeypatch.setattr("dkrr.fitting.sampled.choose_pivots", lambda *a: pytest.fail("drawn"))
    with pytest.raises(MemoryLimitError, match="memory"):
        KernelRidge(kernel=Nystroem(RBF(), 2900), memory_limit="100MiB").fit(random(3000, 2), np.zeros(3000))


@pytest.mark.parametrize("pivots", ["rpcholesky", "uniform"])
@pytest.mark.parametrize("sparse", [False, True])
def test_the_memory_of_a_draw_is_at_most_its_price(pivots, sparse):
    X = np.where(random(9000, 6) > 0, random(9000, 6), 0.0)
    rows = as_rows(sp.csr_array(X) if sparse else X, "X")
    kernel = Nystroem(RBF(gamma=0.3), 300, pivots)
    resources = machine(local_baseline_bytes=0, local_threads=1)
    drawing = drawing_of(problem_of_rows(rows, kernel.kernel(), n_targets=1), resources)
    priced = drawing.stage.peak_bytes - PROCESS_MARGIN_BYTES - BYTES_PER_THREAD
    peak = traced_peak(lambda: nystroem_map(kernel, rows))
    assert peak <= priced and (peak > 0.5 * priced or pivots == "uniform")


@pytest.mark.parametrize("asked", [ASKED[2], ASKED[4]], ids=str)
@pytest.mark.parametrize("estimator", [KernelRidge, KernelLogisticRegression])
def test_plan_result_and_display_have_the_draw_of_centres(estimator, asked, data, capsys):
    y = data.y if estimator is KernelRidge else data.y[:, 0] > 0
    model = estimator(0.3, kernel=asked, progress=True).fit(data.X, y)
    planned, measured = ([s.name for s in one.stages] for one in (model.plan_.chosen, model.solve_result_))
    assert planned[0] == measured[0] == "drawing centres" and set(measured) <= set(planned)
    assert model.solve_result_.seconds >= sum(stage.seconds for stage in model.solve_result_.stages)
    assert "drawing centres: done in" in capsys.readouterr().err
    assert "centres-drawn" in model.plan_.to_dict()["reason_codes"]


def test_the_calling_process_of_a_cluster_draws_and_what_workers_may_hold_does_not_matter():
    phi = Nystroem(RBF(), 6000)
    asked = Problem(n=100_000, d=9, n_targets=1, kernel=MapKernel(phi), feature_map=phi)
    found, needed = make_plan(asked, cluster(4 * GIB)), drawing_of(asked, cluster(4 * GIB)).stage.peak_bytes
    assert found.execution == "dask" and found.peak_bytes < 4 * GIB < needed
    assert found.chosen.stages[0].name == "drawing centres" and found.chosen.stages[0].seconds > 1
    with pytest.raises(MemoryLimitError, match=r"calling process while they are drawn, and 4 GiB are allowed there"):
        make_plan(asked, cluster(64 * GIB, local_limit_bytes=4 * GIB))
    make_plan(asked, cluster(64 * GIB, local_limit_bytes=4 * GIB, assumed="assumed"))
    phi = RandomFourier(RBF(), 600)  # as after the draw, where another solver takes the place of the first
    after = replace(asked, kernel=phi.kernel(), feature_map=phi, undrawn=asked.kernel)
    make_plan(after, cluster(local_limit_bytes=4 * GIB))


SAMPLED = Linear() + Nystroem(RBF(gamma=0.3), 40, "uniform")


@pytest.mark.parametrize("convert", [np.asarray, sp.csr_array])
def test_what_travels_of_drawn_centres_is_their_name(convert, tmp_path):
    X, store = convert(np.maximum(random(300, 4), 0.0)), RunStore(str(tmp_path / "run.zarr"))
    store.open()
    context, kernel = (
        SimpleNamespace(client=None, stored=SimpleNamespace(store=store)),
        with_sampled_maps(SAMPLED, MemoryRows(X)),
    )
    value = feature_map(kernel, 4)
    assert with_stored_arrays(value, context) is value  # tasks stay in this process
    context.client = "a cluster"
    message = pickle.dumps(with_stored_arrays(value, context))
    assert len(message) < 2000 < len(pickle.dumps(value))
    again, w, v = pickle.loads(message), random(value.dimension(4), 2, seed=1), random(300, 2, seed=2)
    for ask in (
        lambda phi: phi.transform(X),
        lambda phi: phi.multiply(X, w),
        lambda phi: phi.adjoint(X, v),
        lambda phi: (phi.entry_seconds(4), phi.held_bytes(4)),
    ):
        assert_array_equal(ask(again), ask(value))
    assert_array_equal(with_stored_arrays(kernel, context)(X), kernel(X))


# Fourier features


@pytest.fixture
def small_blocks(monkeypatch):
    """Blocks of five frequencies, none of which is kept."""
    monkeypatch.setattr(fourier, "BLOCK_FREQUENCIES", 5)
    fourier.frequencies.cache_clear()
    yield
    fourier.frequencies.cache_clear()


every_kernel = pytest.mark.parametrize(
    "kernel",
    [
        RBF(gamma=0.3),
        Laplacian(gamma=0.4),
        Matern(nu=0.5),
        Matern(nu=1.5, length_scale=2.0),
        Matern(nu=2.5, length_scale=0.7),
    ],
    ids=str,
)


@every_kernel
def test_the_error_falls_as_one_over_the_root_of_d(kernel):
    X = random(60, 4)
    exact, below = kernel(X), np.tril_indices(60, -1)

    def error(n_components, n_seeds):
        grams = [MapKernel(RandomFourier(kernel, n_components, seed))(X) for seed in range(n_seeds)]
        return np.sqrt(np.mean([((K - exact)[below] ** 2).mean() for K in grams]))

    few, many = error(64, 16), error(4096, 4)
    # The variance of an entry is (1 + k(2Δ) - 2 k(Δ)²) / D: at most 1.02 for these kernels.
    assert few * 8 < 1.25 and many * 64 < 1.25
    assert 5 < few / many < 13  # 8, but for chance


def test_the_seed_and_the_columns_determine_the_features():
    X, phi = random(5, 3), RandomFourier(RBF(), 8)
    again = feature_map_from_dict(json.loads(json.dumps(phi.to_dict())))
    fourier.frequencies.cache_clear()
    assert_array_equal(again.transform(X), phi.transform(X))
    assert not np.allclose(RandomFourier(RBF(), 8, random_state=1).transform(X), phi.transform(X))
    fewer = RandomFourier(RBF(), 6).transform(X)
    assert_close(fewer * np.sqrt(6 / 8), phi.transform(X)[:, :6], 1e-14)
    # They are the same in every version, as a saved model holds the seed, not the frequencies.
    found = [fourier.frequencies(kernel, 5, 2, 1)[1, 3] for kernel in (RBF(gamma=0.5), Laplacian(gamma=1.0), Matern())]
    assert_allclose(found, [1.175488527608616, 2.5280396250287787, 0.8894539057538315], rtol=1e-12)


@pytest.mark.usefixtures("small_blocks")
def test_blocks_of_frequencies_leave_no_seams_and_only_those_of_the_features_are_drawn():
    RandomFourier(RBF(), 800).transform(random(2, 3), slice(12, 19))
    assert fourier.frequencies.cache_info().misses == 1
    X, phi = random(7, 3), RandomFourier(Matern(), 34)
    whole = phi.transform(X)
    omega = np.hstack([fourier.frequencies(Matern(), 0, 3, b) for b in range(4)])[:, :17]
    assert_allclose(whole[:, 0::2], np.cos(X @ omega) * np.sqrt(2 / 34), atol=1e-14)
    assert_allclose(whole[:, 1::2], np.sin(X @ omega) * np.sqrt(2 / 34), atol=1e-14)
    for start, stop in combinations(range(35), 2):
        assert_allclose(phi.transform(X, slice(start, stop)), whole[:, start:stop], atol=1e-14)


def test_many_sparse_columns_are_not_made_dense():
    X = sp.random_array((30, 200_000), density=1e-4, rng=np.random.default_rng(0), format="csr")
    fourier.frequencies.cache_clear()
    phi = RandomFourier(RBF(gamma=0.1), 12)
    assert traced_peak(lambda: phi.transform(X)) < phi.held_bytes(200_000) + 2**20
