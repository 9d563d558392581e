"""Everything is killed, and the same call is repeated: it resumes from the finished tiles, to the identical answer."""

import shutil

import dask
import dask.array as da
import numpy as np
import pytest

from dkrr import KernelRidge
from dkrr.errors import StoreError
from tests.fitting.running import fit_here, kill_everything, start, tiles, wait_for_tiles
from tests.fitting.scripts import problem

SETTINGS = {"kernel": "rbf", "gamma": 0.2, "alpha": 0.01, "solver": "cholesky"}
ON_WORKERS = {"workers": 2, "config": {"dkrr.rates.gemm-gflops": 1e-3}}


@pytest.mark.parametrize("place", ["serial", "dask"])
def test_a_killed_run_is_resumed(tmp_path, place, request):
    n_tiles, settings = {"serial": 13, "dask": 8}[place], {**SETTINGS, "tile": 200}
    n, n_chunks = 200 * n_tiles, n_tiles * (n_tiles + 1) // 2
    store = tmp_path / "run.zarr"
    process = start(n, 6, store, **settings, **(ON_WORKERS if place == "dask" else {}))
    wait_for_tiles(process, store, n_chunks // 2)
    kill_everything(process)
    before = tiles(store)
    whole, facts = fit_here(n, 6, tmp_path / "whole.zarr", **settings)
    assert facts["execution"] == "serial"
    if place == "dask":
        request.getfixturevalue("ambient_workers")
    resumed, facts = fit_here(n, 6, store, **settings)
    assert facts["execution"] == place
    after = tiles(store)
    assert np.array_equal(resumed, whole)
    assert len(after) == n_chunks
    kept = [name for name, when in before.items() if after[name] == when]
    # Not kept are at most the tiles whose task was cut short between its last chunk and its end: none, with one
    # panel per tile, but for the diagonal ones, whose right-hand side is written first.
    assert len(kept) == len(before) >= n_chunks // 2
    computed = [key for key in facts["tasks"] if key.startswith("L-")]
    assert len(computed) == len(after) - len(kept)
    # A third call finds everything done.
    again, facts = fit_here(n, 6, store, **settings)
    assert np.array_equal(again, whole)
    assert not [key for key in facts["tasks"] if not key.startswith(("scan", "multiply"))]


def test_damaged_and_missing_tiles(tmp_path):
    X, y = problem(700, 4)
    store = tmp_path / "run.zarr"
    settings = {**SETTINGS, "tile": 100, "store": str(store)}
    whole = KernelRidge(**settings).fit(X, y).dual_coef_
    folder = store / "system-0"
    for name in ("factor/c.3.1", "forward/c.6.0", "factor/c.2.2"):
        (folder / name).unlink()
    chunk = folder / "factor/c.5.0"
    chunk.write_bytes(chunk.read_bytes()[:-100])  # a truncated chunk counts as missing
    shutil.rmtree(folder / "solution")
    again = KernelRidge(**settings).fit(X, y)
    assert np.array_equal(again.dual_coef_, whole)
    computed = {t.key for t in again.solve_result_.record.tasks if t.key.startswith("L-")}
    assert computed == {"L-3-1", "L-6-6", "L-2-2", "L-5-0"}
    # A flipped bit keeps its length: the checksum finds it where it is read.
    damaged = bytearray(chunk.read_bytes())
    damaged[1234] ^= 1
    chunk.write_bytes(bytes(damaged))
    shutil.rmtree(folder / "solution")
    shutil.rmtree(folder / "partial")
    last = KernelRidge(**settings).fit(X, y)
    assert np.array_equal(last.dual_coef_, whole)
    assert last.solve_result_.messages[0].endswith("computed again: c.5.0 of system-0/factor")


@pytest.mark.parametrize("solver", ["cholesky", "cg"])
@pytest.mark.parametrize("form", ["dual", "primal"])
def test_damage_of_every_file_is_mended_or_refused(tmp_path, form, solver):
    """One file of a finished run at a time; the run that resumes finds what was found before, or names the file."""
    X, y = problem(300, 4)
    settings = {"kernel": "polynomial", "degree": 2, "alpha": 0.1, "tile": 64, "form": form, "solver": solver}
    store = tmp_path / "run.zarr"

    def fit():
        rows = da.from_array(X, chunks=100)  # so that the store has a copy
        return KernelRidge(**settings, store=str(store)).fit(rows, y)

    with dask.config.set({"dkrr.checkpoint-seconds": 0}):
        whole = fit().predict(X)
        shutil.copytree(store, tmp_path / "whole")
        files = [file.relative_to(store) for file in sorted(store.rglob("*")) if file.is_file()]
        assert len(files) > 10
        for number, file in enumerate(files):
            shutil.rmtree(store)
            shutil.copytree(tmp_path / "whole", store)
            raw = bytearray((store / file).read_bytes())
            raw[(7 * number) % len(raw)] ^= 4
            (store / file).write_bytes(bytes(raw))
            if str(file) == "zarr.json":
                with pytest.raises(StoreError, match="is damaged"):
                    fit()
                continue
            assert np.allclose(fit().predict(X), whole, rtol=1e-7, atol=1e-7 * np.abs(whole).max()), file


def test_a_store_of_another_form_or_solver_is_named(tmp_path):
    X, y = problem(60, 3)
    for store, wanted in (("primal", {"form": "dual"}), ("cholesky", {"solver": "cg"})):
        given = {"form": "primal"} if store == "primal" else {"solver": "cholesky", "form": "dual"}
        settings = {"kernel": "linear", "store": str(tmp_path / store)}
        KernelRidge(**settings, **given).fit(X, y)
        with pytest.raises(StoreError, match=f"the store {tmp_path / store} holds a run"):
            KernelRidge(**settings, **wanted).fit(X, y)


def test_primal_runs_are_resumed(tmp_path):
    X, y = problem(500, 9)
    settings = {"kernel": "polynomial", "degree": 2, "tile": 16, "form": "primal", "fit_intercept": True}
    store = tmp_path / "run.zarr"
    whole = KernelRidge(**settings, store=str(store)).fit(X, y)
    shutil.rmtree(store / "system-0")
    for path in sorted((store / "normal" / "part-0").glob("c.*"))[::3]:
        path.unlink()
    again = KernelRidge(**settings, store=str(store)).fit(X, y)
    assert np.array_equal(again.coef_, whole.coef_)
    computed = [t.key for t in again.solve_result_.record.tasks if t.key.startswith("normal")]
    assert 0 < len(computed) < 10


def test_every_alpha_has_its_factor_in_a_kept_store(tmp_path):
    X, y = problem(300, 3)
    store = tmp_path / "run.zarr"
    settings = {**SETTINGS, "alpha": [0.1, 0.2], "tile": 100, "store": str(store)}
    model = KernelRidge(**settings).fit(X, y)
    assert (store / "system-0" / "factor").is_dir() and (store / "system-1" / "factor").is_dir()
    again = KernelRidge(**settings).fit(X, y)
    assert np.array_equal(again.dual_coef_, model.dual_coef_)


def test_a_store_keeps_its_form_and_its_tiles(tmp_path):
    X, y = problem(60, 4)
    store = str(tmp_path / "run.zarr")
    KernelRidge(form="dual", tile=20, store=store).fit(X, y)
    with pytest.raises(StoreError, match="a run in dual form"):
        KernelRidge(form="primal", tile=20, store=store).fit(X, y)
    again = KernelRidge(tile=30, store=store).fit(X, y)
    assert again.plan_.chosen.layout()["tile"] == 20 and "tile=30" not in str(again.plan_)
    other = str(tmp_path / "other.zarr")
    KernelRidge(form="primal", store=other).fit(X, y)
    with pytest.raises(StoreError, match="a run in primal form"):
        KernelRidge(kernel="rbf", store=other).fit(X, y)
