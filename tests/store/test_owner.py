"""A second run on a store that another run uses is refused before it does any work."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dkrr
from dkrr.errors import BusyStoreError
from dkrr.tiles import lock
from dkrr.tiles.lock import LOCK_NAME, owned

X = np.random.default_rng(0).normal(size=(60, 3))
Y = X[:, 0]
LABELS = X[:, 0] > 0


def ridge(store: str, X: Any = X) -> Any:
    return dkrr.KernelRidge(kernel="rbf", solver="cholesky", tile=32, store=store).fit(X, Y)


def logistic(store: str, X: Any = X) -> Any:
    return dkrr.KernelLogisticRegression(kernel="rbf", tile=32, store=store).fit(X, LABELS)


def search(store: str, X: Any = X) -> Any:
    return dkrr.KernelRidgeCV(alphas=(0.1, 1.0), kernel="rbf", tile=32, store=store).fit(X, Y)


def gram(store: str, X: Any = X) -> Any:
    return dkrr.gram(X, kernel="rbf", chunks=32, store=store)


RUNS = [ridge, logistic, search, gram]


def from_another_thread(call: Callable[[], Any]) -> BaseException | None:
    caught: list[BaseException] = []

    def client() -> None:
        try:
            call()
        except BaseException as error:
            caught.append(error)

    thread = threading.Thread(target=client)
    thread.start()
    thread.join()
    return caught[0] if caught else None


@pytest.mark.parametrize("run", RUNS)
def test_a_second_run_is_refused_and_changes_nothing(tmp_path: Path, run: Callable[[str], Any]) -> None:
    store = tmp_path / "run.zarr"
    with owned(str(store)):
        error = from_another_thread(lambda: run(str(store)))
        assert isinstance(error, BusyStoreError), error
        assert "in use by this process on" in str(error)
        assert [p.name for p in store.iterdir()] == [LOCK_NAME]
    assert not store.exists()


@pytest.mark.parametrize("run", RUNS)
def test_a_run_holds_the_lock_while_it_works_and_releases_it(
    tmp_path: Path, run: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    store, seen = tmp_path / "run.zarr", []
    share = dkrr.fitting.context.Context.share

    def watched(self: Any, *arguments: Any, **options: Any) -> Any:
        seen.append((store / LOCK_NAME).exists())
        return share(self, *arguments, **options)

    monkeypatch.setattr(dkrr.fitting.context.Context, "share", watched)
    run(str(store))
    assert seen and all(seen)
    assert not list(store.rglob(f"{LOCK_NAME}*"))
    with pytest.raises(dkrr.errors.DkrrError):
        run(str(store), X[:, :2] * np.nan)
    assert not list(store.rglob(f"{LOCK_NAME}*"))


def test_a_foreign_folder_gets_no_lock(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("text")
    for run in (ridge, logistic, gram):
        with pytest.raises(dkrr.errors.StoreError, match="not the store of a dkrr run"):
            run(str(tmp_path))
    assert [p.name for p in tmp_path.iterdir()] == ["mine"]


def test_a_run_that_has_lost_its_store_stops(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock, "HEARTBEAT_SECONDS", 0.01)
    store = tmp_path / "run.zarr"
    share = dkrr.fitting.context.Context.share

    def deleted(self: Any, *arguments: Any, **options: Any) -> Any:
        shared = share(self, *arguments, **options)
        (store / LOCK_NAME).unlink()
        while not any(ownership.lost for ownership in lock._around.get().values()):
            threading.Event().wait(0.01)
        return shared

    monkeypatch.setattr(dkrr.fitting.context.Context, "share", deleted)
    with pytest.raises(BusyStoreError, match="this run has lost its store"):
        ridge(str(store))
    monkeypatch.undo()
    ridge(str(store))


def test_the_rows_of_a_gram_matrix_are_read_without_a_lock(tmp_path: Path) -> None:
    url = str(tmp_path / "gram.zarr")
    gram(url)
    with owned(url):
        error = from_another_thread(lambda: dkrr.KernelRidge(kernel="precomputed").fit(url, Y))
    assert error is None
