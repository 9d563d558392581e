"""Approximations that are asked for by name: random Fourier features, and Nyström centres drawn before the plan."""

import json
import pickle
from types import SimpleNamespace

import dask.array as da
import numpy as np
import pytest
import scipy.sparse as sp
from numpy.testing import assert_allclose, assert_array_equal
from scipy import stats
from sklearn.base import clone
from sklearn.kernel_approximation import Nystroem as TheirNystroem
from sklearn.linear_model import Ridge

import dkrr
from dkrr import KernelRidge
from dkrr.data import MemoryRows, as_rows
from dkrr.errors import InputError, MemoryLimitError
from dkrr.features import ConcatenatedMap, IdentityMap, MapKernel, Nystroem, RandomFourier, ScaledMap, fourier, whitened
from dkrr.features.descriptions import feature_map_from_dict
from dkrr.fitting.sampled import by_name, drawn, nystroem_map
from dkrr.kernels import RBF, Laplacian, Linear, Matern
from dkrr.store import RunStore
from tests.systems import random, traced_peak

pytestmark = pytest.mark.usefixtures("one_blas_thread")

ASKED = [
    RandomFourier(Matern(nu=1.5), 60),
    Nystroem(RBF(gamma=0.2), 40, "uniform"),
    Nystroem(RBF(gamma=0.2), 40),
    ConcatenatedMap(IdentityMap(), ScaledMap(Nystroem("laplacian", 30, "uniform"), 2.0)),
    0.5 * MapKernel(Nystroem("rbf", 20)) + Linear(),
]
each = pytest.mark.parametrize("asked", ASKED, ids=str)
every_choice_of_pivots = pytest.mark.parametrize("pivots", ["uniform", "rpcholesky"])


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
def test_saved_models_predict_the_same_bits_and_sample_again_when_fitted(data, asked, tmp_path):
    model = again = KernelRidge(0.3, kernel=asked).fit(data.X, data.y)
    assert model.kernel is asked
    for path in (tmp_path / "m.zarr", tmp_path / "again.zarr"):
        dkrr.save(again, path)
        again = dkrr.load(path)
        assert_array_equal(again.predict(data.X_new), model.predict(data.X_new))
    found = clone(again).fit(data.X[:99] + 1, data.y[:99]).predict(data.X_new)
    assert_allclose(found, KernelRidge(0.3, kernel=asked).fit(data.X[:99] + 1, data.y[:99]).predict(data.X_new))


@pytest.mark.parametrize("asked", [Nystroem(RBF(gamma=0.2), 40), RandomFourier(Laplacian(), 40)], ids=str)
def test_sparse_rows_have_sparse_centres(data, tmp_path, asked):
    X = np.where(np.abs(data.X) > 1, data.X, 0.0)
    model = KernelRidge(kernel=asked).fit(sp.csr_array(X), data.y)
    found = model.predict(sp.csr_array(X[:9]))
    assert_allclose(found, KernelRidge(kernel=asked).fit(X, data.y).predict(X[:9]), atol=1e-8)
    dkrr.save(model, tmp_path / "m.zarr")
    assert_array_equal(dkrr.load(tmp_path / "m.zarr").predict(sp.csr_array(X[:9])), found)
    assert sp.issparse(getattr(model._model.feature_map, "centres", sp.csr_array(X)))


def test_the_same_centres_give_scikit_learns_predictions(data):
    theirs = TheirNystroem(kernel="rbf", gamma=0.2, n_components=50, random_state=0).fit(data.X)
    ridge = Ridge(alpha=0.1, fit_intercept=False).fit(theirs.transform(data.X), data.y)
    ours = KernelRidge(0.1, kernel=whitened(RBF(gamma=0.2), theirs.components_)).fit(data.X, data.y)
    assert_allclose(ours.predict(data.X_new), ridge.predict(theirs.transform(data.X_new)), rtol=1e-7, atol=1e-7)


def test_more_centres_are_nearer_to_the_exact_model_and_all_rows_are_it(data):
    exact = KernelRidge(0.1, kernel=RBF(gamma=0.1)).fit(data.X, data.y).predict(data.X_new)

    def error(asked):
        return np.abs(KernelRidge(0.1, kernel=asked).fit(data.X, data.y).predict(data.X_new) - exact).max()

    assert error(Nystroem(RBF(gamma=0.1), 150)) < 0.3 * error(Nystroem(RBF(gamma=0.1), 20))
    assert error(Nystroem(RBF(gamma=0.1), 211, "uniform")) < 1e-7
    assert error(RandomFourier(RBF(gamma=0.1), 20_000)) < 0.3 * error(RandomFourier(RBF(gamma=0.1), 100))


@pytest.mark.parametrize("asked", [Nystroem(RBF(), 500), RandomFourier("laplacian", 500)], ids=str)
def test_plans_need_no_data(asked):
    plan = dkrr.plan(n=100_000, d=11, kernel=asked, memory_limit="2GiB")
    assert plan.form == "primal" and plan.problem.dimension == 500 and "n_components=500" in str(plan)
    assert dkrr.plan(n=100_000, d=5000, kernel=asked).seconds > plan.seconds


@pytest.mark.parametrize(
    "call", [lambda X, y, k: KernelRidge(kernel=k).fit(X, y), lambda X, y, k: dkrr.plan(X, y, kernel=k)]
)
def test_more_centres_than_rows_are_refused(data, call):
    message = "n_components of Nystroem is 212; expected at most the number of training rows, 211"
    with pytest.raises(InputError, match=message):
        call(data.X, data.y, ConcatenatedMap(IdentityMap(), Nystroem(RBF(), 212)))


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


@every_choice_of_pivots
def test_every_kind_of_rows_gives_the_same_centres(pivots, tmp_path):
    X, settings = np.where(random(80, 4) > 0, random(80, 4), 0.0), Nystroem(RBF(), 9, pivots)
    expected = nystroem_map(settings, MemoryRows(X)).transform(X)
    np.save(tmp_path / "x.npy", X)
    for given in (sp.csr_array(X), da.from_array(X, chunks=(30, 4)), tmp_path / "x.npy"):
        assert_allclose(nystroem_map(settings, as_rows(given)).transform(X), expected, rtol=1e-9, atol=1e-9)


@every_choice_of_pivots
def test_bad_numbers_are_found_before_centres_are_drawn(pivots):
    with pytest.raises(InputError, match="contains NaN"):
        KernelRidge(kernel=Nystroem(RBF(), 5, pivots)).fit(random(50, 2) * [1.0, np.nan], np.zeros(50))


def test_nothing_is_drawn_for_a_fit_without_a_plan(monkeypatch):
    monkeypatch.setattr("dkrr.fitting.sampled.choose_pivots", lambda *a: pytest.fail("drawn"))
    with pytest.raises(MemoryLimitError, match="memory"):
        KernelRidge(kernel=Nystroem(RBF(), 2900), memory_limit="100MiB").fit(random(3000, 2), np.zeros(3000))


SAMPLED = ConcatenatedMap(IdentityMap(), Nystroem(RBF(gamma=0.3), 40, "uniform"))


@pytest.mark.nightly
@pytest.mark.parametrize("form", ["primal", "dual"])
def test_fits_with_drawn_centres_agree_in_tiles_in_one_process_and_on_workers(form, tmp_path, workers):
    X = random(400, 3)
    y = np.sin(X[:, 0])
    expected = KernelRidge(kernel=SAMPLED, alpha=0.1).fit(X, y).predict(X)
    settings = {"kernel": SAMPLED, "alpha": 0.1, "form": form, "tile": 20 if form == "primal" else 150}
    serial = KernelRidge(**settings, store=str(tmp_path / "run.zarr")).fit(X, y)
    with workers.as_current():
        on_workers = KernelRidge(**settings).fit(X, y)
    assert (serial.plan_.execution, on_workers.plan_.execution, serial.plan_.form) == ("serial", "dask", form)
    for model in (serial, on_workers):
        assert_allclose(model.predict(X), expected, atol=1e-9)


@pytest.mark.parametrize("sparse", [False, True])
def test_what_travels_of_drawn_centres_is_their_name(sparse, tmp_path):
    X = random(300, 4)
    X = sp.csr_array(np.where(X > 0, X, 0.0)) if sparse else X
    store = RunStore(str(tmp_path / "run.zarr"))
    store.open()
    context = SimpleNamespace(client=None, stored=SimpleNamespace(store=store))
    value = drawn(SAMPLED, MemoryRows(X))
    assert by_name(value, context) is value  # tasks stay in this process
    context.client = "a cluster"
    message = pickle.dumps(by_name(value, context))
    assert len(message) < 2000 < len(pickle.dumps(value))
    again, w, v = pickle.loads(message), random(value.dimension(4), 2, seed=1), random(300, 2, seed=2)
    for found, expected in (
        (again.transform(X), value.transform(X)),
        (again.multiply(X, w), value.multiply(X, w)),
        (again.adjoint(X, v), value.adjoint(X, v)),
        (by_name(value.kernel(), context)(X), value.kernel()(X)),
        (again.entry_seconds(4), value.entry_seconds(4)),
        (again.held_bytes(4), value.held_bytes(4)),
    ):
        assert_array_equal(found, expected)


# Fourier features


@pytest.fixture
def small_blocks(monkeypatch):
    """Blocks of five frequencies, none of which is kept."""
    monkeypatch.setattr(fourier, "BLOCK_FREQUENCIES", 5)
    fourier.frequencies.cache_clear()
    yield
    fourier.frequencies.cache_clear()


every_kernel = pytest.mark.parametrize(
    "kernel", [RBF(0.3), Laplacian(0.4), Matern(0.5), Matern(1.5, 2.0), Matern(2.5, 0.7)], ids=str
)


@every_kernel
def test_the_error_falls_as_one_over_the_root_of_d(kernel):
    X = random(60, 4)
    exact, below = kernel(X), np.tril_indices(60, -1)

    def error(n_components, seeds):
        grams = [MapKernel(RandomFourier(kernel, n_components, seed))(X) for seed in seeds]
        assert_allclose(np.diagonal(grams, axis1=1, axis2=2), 1.0, rtol=1e-13)
        return np.sqrt(np.mean([((K - exact)[below] ** 2).mean() for K in grams]))

    few, many = error(64, range(16)), error(4096, range(4))
    # The variance of an entry is (1 + k(2Δ) - 2 k(Δ)²) / D: at most 1.02 for these kernels.
    assert few * 8 < 1.25 and many * 64 < 1.25
    assert 5 < few / many < 13  # 8, but for chance


@every_kernel
def test_frequencies_have_the_distribution_that_belongs_to_the_kernel(kernel):
    one = np.concatenate([fourier.frequencies(kernel, seed, 1, b)[0] for seed in range(5) for b in range(4)])
    theirs = {
        RBF: lambda: stats.norm(scale=np.sqrt(2 * kernel.gamma)),
        Laplacian: lambda: stats.cauchy(scale=kernel.gamma),
        Matern: lambda: stats.t(2 * kernel.nu, scale=1 / kernel.length_scale),
    }[type(kernel)]()
    assert stats.kstest(one, theirs.cdf).pvalue > 1e-3


def test_the_seed_and_the_columns_determine_the_features():
    X, phi = random(5, 3), RandomFourier(RBF(), 8)
    again = feature_map_from_dict(json.loads(json.dumps(phi.to_dict())))
    fourier.frequencies.cache_clear()
    assert_array_equal(again.transform(X), phi.transform(X))
    assert not np.allclose(RandomFourier(RBF(), 8, random_state=1).transform(X), phi.transform(X))
    fewer = RandomFourier(RBF(), 6).transform(X)
    assert_allclose(fewer * np.sqrt(6 / 8), phi.transform(X)[:, :6], rtol=1e-14)
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
    for start in range(34):
        for stop in range(start, 35):
            assert_allclose(phi.transform(X, slice(start, stop)), whole[:, start:stop], atol=1e-14)


def test_many_sparse_columns_are_not_made_dense():
    X = sp.random_array((30, 200_000), density=1e-4, rng=np.random.default_rng(0), format="csr")
    fourier.frequencies.cache_clear()
    phi = RandomFourier(RBF(gamma=0.1), 12)
    peak = traced_peak(lambda: phi.transform(X))
    fourier.frequencies.cache_clear()
    assert peak < phi.held_bytes(200_000) + 2**20


def test_the_cost_is_that_of_a_projection():
    phi = RandomFourier(RBF(), 2000)
    assert phi.entry_seconds(5500) > 5 * phi.entry_seconds(10)
    assert MapKernel(phi).entry_cost(10).gemm_flops == 4000
    assert MapKernel(phi).workspace_bytes(100, 50, 10) > 150 * 2000 * 8
