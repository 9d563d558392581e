"""Saved models with their uncertainty: the same bits after loading, whatever way they are computed."""

import numpy as np
import pytest
from numpy.testing import assert_array_equal
from sklearn.model_selection import KFold

import dkrr
from dkrr import KernelRidge, KernelRidgeCV
from dkrr.errors import InputError, MemoryLimitError, NotFiniteError
from dkrr.estimators.model_description import search_of
from dkrr.features import Nystroem, RandomFourier
from dkrr.kernels import RBF, Columns, Linear
from dkrr.linalg.triangle import StoredTriangle
from dkrr.solvers import ConjugateGradient, RPCholesky
from tests.oracles import assert_close
from tests.pairs import every_pair
from tests.stores import edit

pytestmark = pytest.mark.usefixtures("one_blas_thread")


def saved(model, folder, uncertainty=True):
    dkrr.save(model, folder / "m.zarr", uncertainty=uncertainty, overwrite=True)
    return dkrr.load(folder / "m.zarr")


def same_bits(model, again, X):
    for ask in (
        lambda one: one.predict(X, return_std=True),
        lambda one: one.predict_variance_bounds(X),
        lambda one: one.predict_interval(X),
        lambda one: one.log_marginal_likelihood_,
        lambda one: None if isinstance(model.kernel, Nystroem) else one.loo_residuals_,  # which learns from all rows
    ):
        assert_array_equal(ask(again), ask(model))


CG = ConjugateGradient(RPCholesky(rank=20, random_state=5), max_iter=500)
WAYS = {
    "dual": {"kernel": RBF(0.1)},
    "several tiles": {"kernel": RBF(0.1), "tile": 48},
    "conjugate gradient": {"kernel": RBF(0.1), "solver": CG, "alpha": 0.5},
    "conjugate gradient, free constant": {"kernel": RBF(0.1), "solver": CG, "alpha": 0.5, "fit_intercept": True},
    "free constant": {"kernel": RBF(0.1), "fit_intercept": True},
    "λ of each target": {"kernel": "laplacian", "alpha": [0.3, 0.1, 0.3]},
    "primal": {"kernel": "linear", "fit_intercept": True},
    "solved in dual form": {"kernel": "linear", "form": "dual"},
    "Fourier": {"kernel": RandomFourier(RBF(0.1), 30)},
    "Nyström": {"kernel": Nystroem(RBF(0.1), 30), "fit_intercept": True},
    "λ = 0": {"kernel": RBF(2.0), "alpha": 0.0},
    "transformer": {"kernel": RBF(0.1), "transformer": "standardize"},
    "columns": {"kernel": Columns(RBF(0.1), [0, 1]) + Columns(Linear(), [2, 3, 4]), "fit_intercept": True},
}


@every_pair(way=list(WAYS), uncertainty=[True, "data"], weighted=[False, True])
def test_a_loaded_model_has_the_same_bits(data, tmp_path, monkeypatch, way, uncertainty, weighted):
    monkeypatch.setattr("dkrr.store.format.CHUNK_BYTES", 4096)  # panels lie across the ends of chunks
    by_cg = "solver" in WAYS[way]
    if by_cg:
        monkeypatch.setattr("dkrr.planning.uncertainty.SMALL_SECONDS", 0.0)
    far = 100.0 if WAYS[way].get("fit_intercept") else 0.0  # linear kernels get an origin
    model = KernelRidge(**WAYS[way]).fit(data.X + far, data.y, sample_weight=data.weights if weighted else None)
    again = saved(model, tmp_path, uncertainty)
    same_bits(model, again, data.X_new + far)
    assert again.solver == model.solver and dkrr.verify(tmp_path / "m.zarr").is_whole
    if by_cg:
        assert again.uncertainty_plan_.method == "iterations" and not list((tmp_path / "m.zarr").glob("factor*"))


def test_a_factor_is_read_tile_by_tile_where_memory_is_short(data, tmp_path, monkeypatch):
    model = KernelRidge(kernel=RBF(0.1), fit_intercept=True).fit(data.X, data.y)
    std, residuals = model.predict(data.X_new, return_std=True)[1], model.loo_residuals_
    monkeypatch.setattr("dkrr.fitting.factored_process.is_kept_in_memory", lambda grid, room: False)
    monkeypatch.setattr("dkrr.linalg.triangle.MAX_SQUARE", 48)
    again = saved(model, tmp_path)
    assert_close(again.predict(data.X_new, return_std=True)[1], std, 1e-12)
    assert_close(again.loo_residuals_, residuals, 1e-12)
    assert again._known_processes.factored()[0][1]._matrix_factor.is_stored


def test_memory_decides_how_many_rows_a_factor_serves_at_once(data, tmp_path, monkeypatch):
    monkeypatch.setattr("dkrr.fitting.factored_process.is_kept_in_memory", lambda grid, room: False)
    model = saved(KernelRidge(kernel=RBF(0.1), tile=48).fit(data.X, data.y), tmp_path)
    read, panels = StoredTriangle.read_panel, []
    monkeypatch.setattr(StoredTriangle, "read_panel", lambda *given: panels.append(given[1:3]) or read(*given))
    rows = np.tile(data.X_new, (2100 // len(data.X_new) + 1, 1))[:2100]
    std = model.predict(rows, return_std=True)[1]
    assert panels.count((1, 0)) == 1, "the factor is read once for all rows"
    size = model._known_processes.factored()[0][1].factor_size
    assert size.rows_within(size.bytes_of(1500)) == 1024 and size.rows_within(size.bytes_of(10**6)) == 4096
    monkeypatch.setattr("dkrr.planning.predictions.ROWS_PER_READ", 1024)
    assert_close(model.predict(rows, return_std=True)[1], std, 1e-12)
    model.set_params(memory_limit="1MiB")
    with pytest.raises(MemoryLimitError, match="standard deviations of one row .* memory_limit .* expected at least"):
        model.predict(rows, return_std=True)


def test_nothing_is_factored_again_after_loading(data, tmp_path, monkeypatch):
    model = KernelRidge(kernel=RBF(0.1), alpha=[0.1, 0.2, 0.1]).fit(data.X, data.y)
    again = saved(model, tmp_path)
    monkeypatch.setattr("dkrr.fitting.factored_process.FactoredGram", None)
    same_bits(model, again, data.X_new)
    dkrr.save(again, tmp_path / "m.zarr", overwrite=True, uncertainty=True)  # over the model that it reads
    same_bits(model, dkrr.load(tmp_path / "m.zarr"), data.X_new)


@every_pair(uncertainty=[False, True], kernels=[("rbf", [0.1, 0.3]), ([RBF(0.1), RBF(0.2)], None)])
def test_a_search_comes_back_with_its_results(data, tmp_path, kernels, uncertainty):
    cv, y = KFold(4, shuffle=True, random_state=0), data.y[:, 0]
    search = KernelRidgeCV([0.1, 1.0], kernel=kernels[0], gamma=kernels[1], cv=cv).fit(data.X, y)
    again = saved(search, tmp_path, uncertainty)
    assert set(again.cv_results_) == set(search.cv_results_)
    for name in search.cv_results_.keys() - {"params", "param_kernel"}:
        assert_array_equal(again.cv_results_[name], search.cv_results_[name])
    for name in ("best_score_", "best_index_", "best_params_", "alpha_", "n_splits_"):
        assert getattr(again, name) == getattr(search, name)
    if uncertainty:
        same_bits(search, again, data.X_new)  # intervals: by the folds of the search
    assert not hasattr(again.fit(data.X, y), "cv_results_")


def test_a_model_without_it_says_how_to_save_it(data, tmp_path):
    again = saved(KernelRidge(kernel="rbf").fit(data.X, data.y), tmp_path, uncertainty=False)
    for ask in (lambda: again.predict(data.X_new, return_std=True), lambda: saved(again, tmp_path)):
        with pytest.raises(InputError, match="uncertainty=True"):
            ask()
    with pytest.raises(InputError, match="expected a regression"):
        saved(dkrr.KernelLogisticRegression().fit(data.X, data.y[:, 0] > 0), tmp_path)
    with pytest.raises(InputError, match='uncertainty is 1; expected True or False, or "data"'):
        saved(again, tmp_path, 1)


@pytest.mark.parametrize(
    "changes",
    [
        {"uncertainty": {"solver": "cg", "factors": [{}]}},
        {"uncertainty": {"solver": {"preconditioner": 5}, "factors": []}},
        {"tile": 2**60},
        {"tile": 3, "panel": 7},
        {"quadratic": [1.0]},
        {"alpha": 0.7},
        {"form": "primal"},
    ],
    ids=str,
)
def test_damaged_descriptions_are_refused(data, tmp_path, changes):
    model = KernelRidge(kernel=RBF(0.1)).fit(data.X, data.y)
    dkrr.save(model, tmp_path / "m.zarr", uncertainty=True)
    factor = {"alpha": 1.0, **model._known_processes.kept()[1.0].numbers} | changes
    edit(tmp_path / "m.zarr", **{"uncertainty": {"solver": "auto", "factors": [factor]}} | changes)
    with pytest.raises(dkrr.errors.StoreError, match="damaged"):
        dkrr.load(tmp_path / "m.zarr").predict(data.X_new, return_std=True)


SIZED = {name: WAYS[name] for name in ("dual", "λ of each target", "primal", "solved in dual form", "Nyström")}
SIZED |= {"tiles": {"kernel": RBF(0.1), "tile": 64}, "precomputed": {"kernel": "precomputed"}}


@every_pair(way=list(SIZED), weighted=[False, True], dtype=[np.float64, np.float32])
def test_the_size_of_a_saved_model_is_in_the_plan(tmp_path, way, weighted, dtype):
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(700, 6)).astype(dtype), rng.normal(size=(700, 3))
    X = RBF(0.1)(X).astype(dtype) if way == "precomputed" else X
    model = KernelRidge(**SIZED[way]).fit(X, y, sample_weight=np.ones(700) if weighted else None)
    sizes = {False: model.plan_.saved_bytes, True: model.plan_.saved_bytes_with_uncertainty}
    for uncertainty in (False, True)[: 1 + (way != "precomputed")]:
        dkrr.save(model, tmp_path / "m.zarr", overwrite=True, uncertainty=uncertainty)
        files = [f for f in (tmp_path / "m.zarr").rglob("*") if f.is_file() and f.name != "zarr.json"]
        assert abs(sum(f.stat().st_size for f in files) - sizes[uncertainty]) <= 500, files


@pytest.mark.parametrize("entry", ["params", "columns", "best_params"])
def test_damaged_results_of_a_search_are_refused(data, tmp_path, entry):
    search = KernelRidgeCV([0.1, 1.0], cv=3).fit(data.X, data.y[:, 0])
    dkrr.save(search, tmp_path / "m.zarr")
    edit(tmp_path / "m.zarr", search=search_of(search) | {entry: {"a": [[1], [1, 2]]}})
    with pytest.raises(dkrr.errors.StoreError, match="damaged"):
        dkrr.load(tmp_path / "m.zarr")


def test_intervals_of_rows_that_someone_has_changed_are_not_nan(data, tmp_path):
    again = saved(KernelRidge(kernel="rbf").fit(data.X, data.y), tmp_path)
    again._processes().request.rows.array[3] = np.nan  # with the right checksum, as an attacker would write it
    with pytest.raises(NotFiniteError, match="is NaN"):
        again.predict_interval(data.X_new)
