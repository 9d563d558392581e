"""A run in a store grows: more rows, other targets, rows of weight 0; what is refused leaves it as it was."""

import dask
import dask.array as da
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import dkrr
from dkrr.cluster import tasks as serial
from dkrr.data import rows as checks
from dkrr.errors import DkrrError, StoreError, WrongStoreError
from dkrr.solvers import ConjugateGradient, Float32Cholesky
from dkrr.store import RunStore
from dkrr.store.format import read_group
from dkrr.store.places import place_at
from tests.stores import edit, flip

N, M, TILE = 75, 121, 32
RNG = np.random.default_rng(3)
X = RNG.normal(size=(200, 3))
Y = np.column_stack([np.sin(X[:, 0]), X[:, 1] ** 2]) + 0.1 * RNG.normal(size=(200, 2)) + 1.0
WEIGHTS = RNG.uniform(0.5, 2.0, 200)
CHOLESKY = {"alpha": 0.01, "kernel": "rbf", "gamma": 0.2, "solver": "cholesky", "tile": TILE}
FLOAT32 = CHOLESKY | {"solver": ConjugateGradient(Float32Cholesky())}
CG = CHOLESKY | {"solver": "cg", "tol": 1e-11}
PRIMAL = {"alpha": 0.01, "kernel": "polynomial", "degree": 2, "form": "primal"}


BUCKET = pytest.param("bucket", marks=pytest.mark.nightly)
"""Runs in a bucket, at night only where a fast test has another one."""


@pytest.fixture(params=["folder", BUCKET])
def folder(request, tmp_path):
    return str(tmp_path) if request.param == "folder" else request.getfixturevalue("memory_bucket")


def fit(store, n, *, weights=None, y=Y, rows=X, lazy=False, **settings):
    given = da.from_array(rows[:n], chunks=(50, 3)) if lazy else rows[:n]
    model = dkrr.KernelRidge(**CHOLESKY | settings, store=store)
    return model.fit(given, y[:n], sample_weight=None if weights is None else weights[:n])


def check(found, n, within=1e-9, **settings):
    """As a fit without a store, with a residual as small."""
    anew = fit(None, n, **settings | {"tile": None, "lazy": False, "solver": "cholesky"})
    scale = np.abs(anew.predict(X)).max()
    assert_allclose(found.predict(X), anew.predict(X), rtol=0, atol=within * scale)
    assert found.solve_result_.residual < max(1e-9, within)
    if hasattr(anew, "dual_coef_") and within < 1e-8:
        assert_allclose(found.dual_coef_, anew.dual_coef_, rtol=0, atol=within * np.abs(anew.dual_coef_).max())


def content(url):
    """Every file of a store, but for its lock."""
    found, folders = {}, [""]
    while folders:
        folder = folders.pop()
        here = place_at(f"{url}/{folder}".rstrip("/"))
        for name in here.names():
            inner = f"{folder}/{name}".lstrip("/")
            raw = None if place_at(f"{url}/{inner}").is_folder() else here.read(name, 2**24)
            if raw is None:
                folders.append(inner)
            elif "lock" not in name:
                found[inner] = raw
    return found


def keys(model, beginning="L-"):
    return [task.key for task in model.solve_result_.record.tasks if task.key.startswith(beginning)]


WAYS = {
    "float64": {},
    "float32": {"solver": FLOAT32["solver"], "tol": 1e-12},
    "weights and an intercept": {"weights": WEIGHTS, "fit_intercept": True},
    "two values of alpha": {"alpha": [0.01, 0.1]},
    "lazy rows": {"lazy": True},
    "conjugate gradient": {"solver": "cg", "tol": 1e-11},
    "primal": PRIMAL | {"solver": "auto", "tile": None},
}


AT_NIGHT = ("conjugate gradient", "two values of alpha", "primal", "lazy rows", "float32")


@pytest.mark.parametrize("way", [pytest.param(w, marks=[pytest.mark.nightly] * (w in AT_NIGHT)) for w in WAYS])
def test_a_grown_run_has_the_answer_of_a_fit_of_all_rows(folder, way):
    store, settings = f"{folder}/run.zarr", WAYS[way]
    fit(store, N, **settings)
    before = content(store)
    tol = 1e-6 if way in ("conjugate gradient", "float32") else 1e-9
    for n in (N + 1, M, 200):  # within a tile row, and over several
        found = fit(store, n, **settings)
        check(found, n, tol, **settings)
        assert dkrr.verify(store).is_whole and dkrr.status(store).is_finished, str(dkrr.status(store))
        if "primal" not in way and "conjugate" not in way:
            assert not [key for key in keys(found) if key.startswith("L-0-")], "tile rows of the run are not computed"
    kept = content(store)
    again = fit(store, 200, **settings)
    assert_array_equal(again.predict(X), found.predict(X))
    assert not keys(again) and {k: v for k, v in content(store).items() if k != "zarr.json"} == {
        k: v for k, v in kept.items() if k != "zarr.json"
    }
    assert read_group(store)["fingerprint"]["lengths"] == [N, N + 1, M, 200]
    tiles = [name for name in before if name.startswith("system-0/factor/c.") and int(name.split(".")[1]) < N // TILE]
    assert way == "primal" or all(kept[name] == before[name] for name in tiles), "chunks are written once"
    with pytest.raises(WrongStoreError, match=f"The run has 200 rows, and this fit {N}; expected all of the run"):
        fit(store, N, **settings)


def stopped(store, at, *arguments, **settings):
    """A fit that is stopped before task number `at`."""
    execute, numbers = serial.execute, iter(range(10**6))

    def stopping(*given, **more):
        if next(numbers) == at:
            raise KeyboardInterrupt
        return execute(*given, **more)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(serial, "execute", stopping)
        with pytest.raises(KeyboardInterrupt):
            fit(store, *arguments, **settings)


@pytest.mark.parametrize("place", ["folder", BUCKET], indirect=True)
@pytest.mark.parametrize("lazy", [pytest.param(False, marks=pytest.mark.nightly), True])
def test_a_growth_that_is_stopped_leaves_the_run_and_is_resumed_or_given_up(place, lazy):
    store = f"{place}/run.zarr"
    settings = {"lazy": lazy, "weights": WEIGHTS, "alpha": [0.01, 0.1]}
    old = fit(store, N, **settings)
    n_tasks = len(fit(f"{place}/other.zarr", 200, **settings).solve_result_.record.tasks)
    stopped(store, n_tasks // 3, 200, **settings)
    status = dkrr.status(store)
    assert "a growth to 200 rows has begun" in status.left and status.is_finished and dkrr.verify(store).is_whole
    # The call that it was stopped in resumes it.
    found = fit(store, 200, **settings)
    check(found, 200, **settings)
    store = f"{place}/third.zarr"
    fit(store, N, **settings)
    before = content(store)
    stopped(store, n_tasks // 3, 200, **settings)
    assert_array_equal(fit(store, N, **settings).dual_coef_, old.dual_coef_)
    left = content(store)
    assert all(left[k] == before.get(k) for k in left if k != "zarr.json"), "nothing is left of what was given up"
    assert left.keys() == before.keys()
    stopped(store, n_tasks // 3, 200, **settings)
    check(fit(store, M, **settings), M, **settings)  # another growth takes its place
    check(fit(store, 200, **settings), 200, **settings)
    assert dkrr.verify(store).is_whole and dkrr.status(store).is_finished


def test_other_targets_and_rows_of_weight_0_keep_the_factor(folder):
    store, settings = f"{folder}/run.zarr", {"weights": WEIGHTS, "fit_intercept": True}
    fit(store, N, **settings)
    found = fit(store, N, y=Y[:, ::-1] ** 2, **settings)
    check(found, N, y=Y[:, ::-1] ** 2, **settings)
    assert not keys(found) and dkrr.verify(store).is_whole
    one = fit(store, N, y=Y[:, 0], **settings)  # another number of targets
    check(one, N, y=Y[:, 0], **settings)
    some = np.where(np.isin(np.arange(200), [3, 40]), 0.0, WEIGHTS)
    for n, weights in ((N, some), (M, some), (M, WEIGHTS), (200, some)):
        found = fit(store, n, **settings | {"weights": weights})
        check(found, n, 1e-8, **settings | {"weights": weights})
        assert not [key for key in keys(found) if key.startswith("L-0-")]
        assert_array_equal(fit(store, n, **settings | {"weights": weights}).dual_coef_, found.dual_coef_)
        assert dkrr.verify(store).is_whole and dkrr.status(store).is_finished
    few = np.where(np.arange(200) % 3 == 0, 0.0, WEIGHTS)
    found = fit(store, 200, **settings | {"weights": few})
    check(found, 200, **settings | {"weights": few})
    assert "of its 200 rows are left out, so that a new factor is faster" in " ".join(found.solve_result_.messages)


REFUSED = {
    "a row of the run": ({"rows": np.where(np.arange(200)[:, None] == 37, 0.5, X)}, "X differ, first in rows 32 to 47"),
    "another order": ({"rows": X[::-1]}, "X differ, first in rows 0 to 15"),
    "weights": ({"weights": np.where(np.arange(200) == 5, 7.0, 1.0)}, "the sample weights differ, first in row 5"),
    "alpha": ({"alpha": 0.02}, "the values of alpha differ"),
    "kernel": ({"gamma": 0.3}, "the kernels differ"),
    "intercept": ({"fit_intercept": True}, "fit_intercept differ"),
    "dtype": ({"rows": X.astype(np.float32)}, "the dtype of X"),
    "columns": ({"rows": X[:, :2]}, "the shape of X"),
    "fewer rows": ({"n": N - 1}, "The run has 75 rows, and this fit 74"),
}


def test_what_the_run_has_solved_of_the_same_targets_is_kept(tmp_path):
    other, damaged = Y.copy(), "c.1.0"
    other[40] += 1.0
    for k, (y, damage, left) in enumerate([(Y, None, "23"), (other, None, "123"), (Y, damaged, "123")]):
        store = f"{tmp_path}/{k}.zarr"
        fit(store, N)
        if damage:
            flip(tmp_path / f"{k}.zarr" / "system-0" / "forward" / damage, 100)
        grown = fit(store, M, y=y)
        assert keys(grown, "forward-solve") == [f"forward-solve-{row}" for row in left]
        check(grown, M, y=y)


@pytest.mark.parametrize("n", [pytest.param(N, marks=pytest.mark.nightly), M])
@pytest.mark.parametrize(("change", "message"), REFUSED.values(), ids=REFUSED)
def test_what_is_refused_leaves_every_byte_of_the_run(tmp_path, monkeypatch, change, message, n):
    monkeypatch.setattr(checks, "_BLOCK_ROWS", 16)
    store = str(tmp_path / "run.zarr")
    fit(store, N)
    before = content(store)
    with pytest.raises(WrongStoreError, match=message):
        fit(store, **{"n": n} | change)
    assert content(store) == before
    if n == M and "n" not in change:
        with pytest.raises(StoreError):
            fit(store, n, lazy=True, **change)
        assert content(store) == before


def test_repeated_rows_without_alpha_are_refused_and_the_run_stays(tmp_path):
    store, rows = str(tmp_path / "run.zarr"), np.vstack([X[:M], X[:79]])
    old = fit(store, M, alpha=0.0, gamma=5.0)
    before = content(store)
    with pytest.raises(DkrrError, match="row"):
        fit(store, 200, rows=rows, alpha=0.0, gamma=5.0)
    assert content(store) == before
    assert_array_equal(fit(store, M, alpha=0.0, gamma=5.0).dual_coef_, old.dual_coef_)


def test_a_damaged_tile_of_the_run_is_computed_again_in_whatever_array_it_lies(folder):
    store = f"{folder}/run.zarr"
    fit(store, N)
    fit(store, M)
    for url in [name for name in content(store) if "/factor/c." in name][::3]:
        folder, _, chunk = url.rpartition("/")
        where = place_at(f"{store}/{folder}")
        raw = bytearray(where.read(chunk, 2**24))
        raw[100] ^= 1
        where.write(chunk, [bytes(raw)])
        assert len(dkrr.verify(store).damage) == 1
        n = 200 if "0.0" in chunk else M
        found = fit(store, n)
        check(found, n)
        RunStore(store).delete("system-0/solution")
        check(fit(store, n), n)
        assert dkrr.verify(store).is_whole
        if n == 200:
            break


@pytest.mark.parametrize(
    "settings",
    [
        {"solver": "cg"},
        pytest.param({"solver": "cholesky"}, marks=pytest.mark.nightly),
        pytest.param({"kernel": "linear", "form": "primal"}, marks=pytest.mark.nightly),
    ],
)
def test_a_classification_grows(tmp_path, settings):
    labels = (Y[:, 0] > 1.0).astype(int)
    settings = {"alpha": 0.1, "kernel": "rbf", "tol": 1e-8} | settings
    store = str(tmp_path / "run.zarr")
    for n, y in ((N, labels), (M, labels), (M, 1 - labels), (200, labels)):
        found = dkrr.KernelLogisticRegression(**settings, store=store).fit(X[:n], y[:n])
        anew = dkrr.KernelLogisticRegression(**settings).fit(X[:n], y[:n])
        assert_allclose(found.predict_proba(X), anew.predict_proba(X), atol=1e-5)
        assert dkrr.verify(store).is_whole and dkrr.status(store).is_finished


def test_weights_that_were_not_written_or_are_damaged(tmp_path):
    store, settings = tmp_path / "run.zarr", {"weights": WEIGHTS}
    first = fit(str(store), N, **settings)
    chunk = store / "row-weights" / "c.0.0"
    chunk.unlink()
    assert_array_equal(fit(str(store), N, **settings).dual_coef_, first.dual_coef_)
    assert chunk.exists(), "they are written again where the same call knows them"
    chunk.unlink()
    check(fit(str(store), M, **settings), M, **settings)


def test_a_description_without_the_entries_of_growths_is_read(tmp_path):
    store = str(tmp_path / "run.zarr")
    first = fit(store, N)
    found = read_group(store)
    plain = {k: found[k] for k in ("kind", "format", "versions", "id", "fingerprint", "layout", "rows", "matrices")}
    from dkrr.store.format import write_group

    write_group(store, plain | {"notes": found["notes"]})
    assert dkrr.status(store).is_finished and dkrr.verify(store).is_whole
    assert_array_equal(fit(store, N).dual_coef_, first.dual_coef_)
    check(fit(store, M), M)
    edit(store, fingerprint=found["fingerprint"] | {"X": found["fingerprint"]["X"][0]})
    with pytest.raises(WrongStoreError, match="begun by a version of dkrr whose runs do not grow"):
        fit(store, M)


@pytest.mark.nightly
def test_workers_grow_a_run(tmp_path, workers):
    store = str(tmp_path / "run.zarr")
    settings = {"weights": WEIGHTS, "alpha": [0.01, 0.1]}
    fit(store, N, **settings)
    with workers.as_current(), dask.config.set({"dkrr.rates.gemm-gflops": 1e-3}):
        found = fit(store, 200, **settings)
        assert found.plan_.execution == "dask"
        check(found, 200, **settings)
        assert not [key for key in keys(found) if key.startswith("L-0-")]
    assert_allclose(fit(store, 200, **settings).dual_coef_, found.dual_coef_, rtol=1e-12)
    assert dkrr.verify(store).is_whole


@pytest.mark.parametrize("solver", ["cholesky", pytest.param("cg", marks=pytest.mark.nightly)])
@pytest.mark.parametrize("n_left_out", [2, 30])
def test_rows_that_were_left_out_come_back(tmp_path, solver, n_left_out):
    """Few of them with the factor that is there; of many all are factored again, and again when they come back."""
    few, settings = np.where(np.arange(200) < n_left_out, 0.0, 1.0), {"solver": solver, "tol": 1e-12}
    for weights in (None, few, None):
        check(fit(tmp_path / "run", 200, weights=weights, **settings), 200, within=1e-8, weights=weights)
