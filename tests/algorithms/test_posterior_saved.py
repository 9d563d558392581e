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
        lambda one: one.log_marginal_likelihood(),
        lambda one: None if isinstance(model.kernel, Nystroem) else one.loo_residuals(),  # which learns from all rows
    ):
        assert_array_equal(ask(again), ask(model))


CG = ConjugateGradient(RPCholesky(rank=20, random_state=5), max_iter=500)
METHODS = {
    "dual": {"kernel": RBF(gamma=0.1)},
    "several tiles": {"kernel": RBF(gamma=0.1), "tile": 48},
    "one tile in a store": {"kernel": RBF(gamma=0.1), "tile": 512},
    "conjugate gradient": {"kernel": RBF(gamma=0.1), "solver": CG, "alpha": 0.5},
    "conjugate gradient, intercept": {"kernel": RBF(gamma=0.1), "solver": CG, "alpha": 0.5, "fit_intercept": True},
    "intercept": {"kernel": RBF(gamma=0.1), "fit_intercept": True},
    "λ of each target": {"kernel": "laplacian", "alpha": [0.3, 0.1, 0.3]},
    "primal": {"kernel": "linear", "fit_intercept": True},
    "solved in dual form": {"kernel": "linear", "form": "dual"},
    "Fourier": {"kernel": RandomFourier(RBF(gamma=0.1), 30)},
    "Nyström": {"kernel": Nystroem(RBF(gamma=0.1), 30), "fit_intercept": True},
    "λ = 0": {"kernel": RBF(gamma=2.0), "alpha": 0.0},
    "transformer": {"kernel": RBF(gamma=0.1), "transformer": "standardize"},
    "columns": {"kernel": Columns(RBF(gamma=0.1), [0, 1]) + Columns(Linear(), [2, 3, 4]), "fit_intercept": True},
}


@every_pair(by_day="values", way=list(METHODS), uncertainty=[True, "data"], weighted=[False, True])
def test_a_loaded_model_has_the_same_bits(data, tmp_path, monkeypatch, way, uncertainty, weighted):
    monkeypatch.setattr("dkrr.store.format.ROW_CHUNK_BYTES", 4096)  # panels lie across the ends of chunks
    by_cg = "solver" in METHODS[way]
    if by_cg:
        monkeypatch.setattr("dkrr.fitting.posterior_plans.SMALL_SECONDS", 0.0)
    far = 100.0 if METHODS[way].get("fit_intercept") else 0.0  # linear kernels get an origin
    model = KernelRidge(**METHODS[way]).fit(data.X + far, data.y, sample_weight=data.weights if weighted else None)
    again = saved(model, tmp_path, uncertainty)
    same_bits(model, again, data.X_new + far)
    assert again.solver == model.solver and dkrr.verify(tmp_path / "m.zarr").is_whole
    if by_cg:
        assert again.uncertainty_plan_.method == "iterations" and not list((tmp_path / "m.zarr").glob("factor*"))


KEPT = (
    "dual",
    "several tiles",
    "intercept",
    "λ of each target",
    "primal",
    "Fourier",
    "Nyström",
    "λ = 0",
    "columns",
)


@every_pair(by_day="values", way=KEPT, weighted=[False, True], unit=[1.0, 1e-119], stored=[False, True])
def test_a_fit_leaves_the_factor_that_uncertainties_take(data, tmp_path, monkeypatch, way, weighted, unit, stored):
    weights, far = data.weights if weighted else None, 100.0 if METHODS[way].get("fit_intercept") else 0.0
    X, y, store = data.X + far, data.y * unit, tmp_path / "run.zarr" if stored else None
    model = KernelRidge(**METHODS[way], uncertainty=True, store=store).fit(X, y, sample_weight=weights)
    later = KernelRidge(**METHODS[way]).fit(X, y, sample_weight=weights)
    assert "factor-kept" in [reason.code for reason in model.plan_.reasons]
    monkeypatch.setattr("dkrr.fitting.posterior_cholesky.plan_of", None)  # nothing is factored again
    monkeypatch.setattr("dkrr.fitting.posteriors.plan_of", None)
    std = model.predict(data.X_new + far, return_std=True)[1]
    likelihoods = model.log_marginal_likelihood()
    monkeypatch.undo()
    assert_close(std, later.predict(data.X_new + far, return_std=True)[1], 1e-9)
    assert_close(likelihoods, later.log_marginal_likelihood(), 1e-9)
    if way != "Nyström":
        assert_close(model.loo_residuals(), later.loo_residuals(), 1e-9)
    same_bits(model, saved(model, tmp_path), data.X_new + far)


def test_workers_leave_the_factor_in_the_store(data, tmp_path, ambient_workers):
    settings = {"kernel": RBF(gamma=0.1), "solver": "cholesky", "tile": 48}
    model = KernelRidge(**settings, uncertainty="intervals", store=tmp_path / "run.zarr").fit(data.X, data.y)
    assert model.plan_.execution == "dask" and model.solve_result_.stages[-1].name == "held-out models"
    same_bits(saved(model, tmp_path), model, data.X_new)
    later = KernelRidge(**settings).fit(data.X, data.y)
    assert_close(model.predict(data.X_new, return_std=True)[1], later.predict(data.X_new, return_std=True)[1], 1e-12)
    assert_close(model.predict_interval(data.X_new), later.predict_interval(data.X_new), 1e-12)


def test_a_search_keeps_the_factor_of_its_last_fit(data, monkeypatch):
    search = KernelRidgeCV([0.1, 1.0], gamma=0.1, cv=4, uncertainty="intervals").fit(data.X, data.y)
    later = KernelRidgeCV([0.1, 1.0], gamma=0.1, cv=4).fit(data.X, data.y)
    assert search.plan_.chosen.details.keeps_factors and not later.plan_.chosen.details.keeps_factors
    expected = [*later.predict(data.X_new, return_std=True), *later.predict_interval(data.X_new)]
    monkeypatch.setattr("dkrr.fitting.posterior_cholesky.plan_of", None)
    monkeypatch.setattr("dkrr.fitting.posterior_cholesky.DualPosterior.fold_models", None)
    assert_close([*search.predict(data.X_new, return_std=True), *search.predict_interval(data.X_new)], expected, 1e-9)


def test_a_search_plans_the_fits_of_folds_where_its_map_is_drawn_from_the_rows(data):
    settings = {
        "kernel": Nystroem(RBF(gamma=0.1), 20),
        "solver": "cg",
        "uncertainty": "intervals",
    }  # no factor is needed
    search = KernelRidgeCV([0.1, 1.0], cv=4, **settings).fit(data.X, data.y)
    last = search.selection_plan_.last
    assert last.problem.folds_are_fitted and last.chosen.stages[-1].name == "held-out models"


@pytest.mark.parametrize(
    ("settings", "message"),
    [({"solver": "cg"}, "solver is 'cg'"), ({"alpha": 0.0}, r"alpha is 0.* D = 5 features for \d+ rows is singular")],
)
def test_intervals_are_refused_before_the_work_where_no_factor_gives_them(data, settings, message):
    with pytest.raises(InputError, match=f"uncertainty is 'intervals', and {message}.* or uncertainty=True"):
        KernelRidge(uncertainty="intervals", **settings).fit(data.X, data.y)


def test_a_factor_that_the_fit_has_not_left_says_its_plan(data, caplog):
    model = KernelRidge(kernel=RBF(gamma=0.1)).fit(data.X, data.y)
    model.progress = True
    with caplog.at_level("INFO", logger="dkrr.progress"):
        model.loo_residuals()  # computed when it is asked for
    assert "a fit with uncertainty=True does not repeat: dual, Cholesky, in memory" in caplog.text
    assert "factorisation: done in" in caplog.text


def test_a_factor_is_read_tile_by_tile_where_memory_is_short(data, tmp_path, monkeypatch):
    model = KernelRidge(kernel=RBF(gamma=0.1), fit_intercept=True).fit(data.X, data.y)
    std, residuals = model.predict(data.X_new, return_std=True)[1], model.loo_residuals()
    monkeypatch.setattr("dkrr.fitting.posterior_cholesky.is_kept_in_memory", lambda grid, room: False)
    monkeypatch.setattr("dkrr.linalg.triangle.MAX_SQUARE", 48)
    again = saved(model, tmp_path)
    assert_close(again.predict(data.X_new, return_std=True)[1], std, 1e-12)
    assert_close(again.loo_residuals(), residuals, 1e-12)
    assert again._known_posteriors.factored()[0][1]._matrix_factor.is_stored


def test_memory_decides_how_many_rows_a_factor_serves_at_once(data, tmp_path, monkeypatch):
    monkeypatch.setattr("dkrr.fitting.posterior_cholesky.is_kept_in_memory", lambda grid, room: False)
    model = saved(KernelRidge(kernel=RBF(gamma=0.1), tile=48).fit(data.X, data.y), tmp_path)
    read, panels = StoredTriangle.read_panel, []
    monkeypatch.setattr(StoredTriangle, "read_panel", lambda *given: panels.append(given[1:3]) or read(*given))
    rows = np.tile(data.X_new, (2100 // len(data.X_new) + 1, 1))[:2100]
    std = model.predict(rows, return_std=True)[1]
    assert panels.count((1, 0)) == 1, "the factor is read once for all rows"
    size = model._known_posteriors.factored()[0][1].factor_size
    assert size.rows_within(size.bytes_of(1500)) == 1024 and size.rows_within(size.bytes_of(10**6)) == 4096
    monkeypatch.setattr("dkrr.fitting.prediction_costs.ROWS_PER_READ", 1024)
    assert_close(model.predict(rows, return_std=True)[1], std, 1e-12)
    model.set_params(memory_limit="1MiB")
    with pytest.raises(MemoryLimitError, match="standard deviations of one row .* memory_limit .* expected at least"):
        model.predict(rows, return_std=True)


def test_nothing_is_factored_again_after_loading(data, tmp_path, monkeypatch):
    model = KernelRidge(kernel=RBF(gamma=0.1), alpha=[0.1, 0.2, 0.1]).fit(data.X, data.y)
    again = saved(model, tmp_path)
    monkeypatch.setattr("dkrr.fitting.posterior_cholesky.FactoredGram", None)
    same_bits(model, again, data.X_new)
    dkrr.save(again, tmp_path / "m.zarr", overwrite=True, uncertainty=True)  # over the model that it reads
    same_bits(model, dkrr.load(tmp_path / "m.zarr"), data.X_new)


@every_pair(uncertainty=[False, True], kernels=[("rbf", [0.1, 0.3]), ([RBF(gamma=0.1), RBF(gamma=0.2)], None)])
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
    model = KernelRidge(kernel=RBF(gamma=0.1)).fit(data.X, data.y)
    dkrr.save(model, tmp_path / "m.zarr", uncertainty=True)
    factor = {"alpha": 1.0, **model._known_posteriors.saved()[1.0].numbers} | changes
    edit(tmp_path / "m.zarr", **{"uncertainty": {"solver": "auto", "factors": [factor]}} | changes)
    with pytest.raises(dkrr.errors.StoreError, match="damaged"):
        dkrr.load(tmp_path / "m.zarr").predict(data.X_new, return_std=True)


SIZED = {name: METHODS[name] for name in ("dual", "λ of each target", "primal", "solved in dual form", "Nyström")}
SIZED |= {"tiles": {"kernel": RBF(gamma=0.1), "tile": 64}, "precomputed": {"kernel": "precomputed"}}


@every_pair(way=list(SIZED), weighted=[False, True], dtype=[np.float64, np.float32])
def test_the_size_of_a_saved_model_is_in_the_plan(tmp_path, way, weighted, dtype):
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(700, 6)).astype(dtype), rng.normal(size=(700, 3))
    X = RBF(gamma=0.1)(X).astype(dtype) if way == "precomputed" else X
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
    again._posteriors().request.rows.array[3] = np.nan  # with the right checksum, as an attacker would write it
    with pytest.raises(NotFiniteError, match="is NaN"):
        again.predict_interval(data.X_new)


FOLDED = {
    name: METHODS[name] for name in ("intercept", "λ of each target", "primal", "columns", "λ = 0", "several tiles")
}
FOLDED |= {"grid": {"kernel": Columns(RBF(gamma=0.1), [0]), "form": "primal"}, "search": {}}


@every_pair(by_day="values", way=list(FOLDED), weighted=[False, True])
def test_intervals_of_a_loaded_model_take_no_factor_once_they_were_asked_for(
    data, tmp_path, monkeypatch, way, weighted
):
    weights, far = data.weights if weighted else None, 100.0 if FOLDED[way].get("fit_intercept") else 0.0
    search = KernelRidgeCV([0.1, 1.0], kernel="rbf", gamma=[0.1, 0.3], cv=KFold(4, shuffle=True, random_state=0))
    model = search if way == "search" else KernelRidge(**FOLDED[way])
    model.fit(data.X + far, data.y, sample_weight=weights)
    expected = model.predict_interval(data.X_new + far)
    monkeypatch.setattr("dkrr.fitting.intervals.INTERVAL_ROWS", 16)  # and several blocks of rows
    loaded = saved(model, tmp_path)
    for again in (loaded, saved(loaded, tmp_path)):
        with monkeypatch.context() as without:
            for kind in ("DualPosterior", "PrimalPosterior", "FourierPosterior"):
                without.setattr(f"dkrr.fitting.posteriors.{kind}", None)
            assert_close(np.array(again.predict_interval(data.X_new + far)), np.array(expected), 1e-13)
        assert dkrr.verify(tmp_path / "m.zarr").is_whole
    assert_array_equal(again.predict_interval(data.X_new, cv=3), model.predict_interval(data.X_new, cv=3))


@pytest.mark.parametrize("damage", ["nan", "order", "other λ", "other folds"])
def test_damaged_models_without_a_fold_are_refused(data, tmp_path, monkeypatch, damage):
    model = KernelRidge(kernel=RBF(gamma=0.1)).fit(data.X, data.y)
    model.predict_interval(data.X_new)
    (models,) = model._known_posteriors._fold_models.values()
    errors = models[0][1].errors
    if damage == "nan":
        models[0][1].function.dual_coef[3, 4] = np.nan
    elif damage == "order":
        errors[2][:] = errors[2][::-1].copy()
    elif damage == "other folds":
        errors[2], errors[3] = np.vstack([errors[2], errors[3][:1]]), errors[3][:-3]
    dkrr.save(model, tmp_path / "m.zarr", uncertainty=True)
    if damage == "other λ":
        found = dkrr.store.description.describe_model(str(tmp_path / "m.zarr"))["uncertainty"]
        edit(tmp_path / "m.zarr", uncertainty=found | {"folds": [found["folds"][0] | {"alpha": 0.5}]})
    with pytest.raises(dkrr.errors.StoreError, match="damaged"):
        dkrr.load(tmp_path / "m.zarr")


def test_a_primal_factor_without_its_means_is_refused(data, tmp_path):
    model = KernelRidge(**METHODS["primal"] | {"fit_intercept": True}).fit(data.X, data.y)
    (saved,) = (one.saved() for _, one in model._posteriors().factored())
    del saved.arrays["centre"]
    model._posteriors()._factored.clear()
    model._posteriors()._saved[model.alpha] = saved
    with pytest.raises(dkrr.errors.StoreError, match="damaged"):
        model.predict(data.X_new, return_std=True)
