"""Fits of several users, with a client each, at once on the workers of one cluster."""

import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import dask
import numpy as np
import pytest
from distributed import Client
from numpy.testing import assert_array_equal

import dkrr
from dkrr.errors import MemoryLimitError
from dkrr.runtime.dask_executor import DaskExecutor

MIB = 2**20
SETTINGS: dict[str, Any] = {"kernel": "rbf", "gamma": 0.2, "alpha": 0.1, "tile": 128, "solver": "cholesky"}
USABLE = int(0.7 * 2**30)
BALLAST = 300 * MIB
WAIT = 240
"""Seconds, on a machine that does other work meanwhile."""


@pytest.fixture
def users(workers: Client) -> Iterator[tuple[Client, Client]]:
    """Two clients of one cluster, none of them the one that started it."""
    scheduler = workers.scheduler.address
    with (
        Client(scheduler, security=workers.security, set_as_default=False) as ada,
        Client(scheduler, security=workers.security, set_as_default=False) as bob,
        dask.config.set({"dkrr.rates.gemm-gflops": 1e-3}),  # nothing is small enough for the calling process
    ):
        yield ada, bob


def fit(client: Client, seed: int, **settings: Any) -> dkrr.KernelRidge:
    X = np.random.default_rng(seed).normal(size=(700, 3))
    with client.as_current():
        return dkrr.KernelRidge(**{**SETTINGS, **settings}).fit(X, np.sin(X).sum(axis=1))


def assert_same(found: dkrr.KernelRidge, whole: dkrr.KernelRidge) -> None:
    """The same bits by Cholesky; by conjugate gradient, the same to its tolerance.

    A worker that takes over tiles of another one does not keep them: it forms them in strips, which round otherwise.
    """
    if found.plan_.solver == "cholesky":
        assert_array_equal(found.dual_coef_, whole.dual_coef_)
    result = found.solve_result_
    error = np.linalg.norm(found.dual_coef_ - whole.dual_coef_) / np.linalg.norm(whole.dual_coef_)
    assert result.residual <= 1e-8 and error <= 2e-8 * result.condition


def plan(client: Client, **settings: Any) -> Any:
    with client.as_current():
        return dkrr.plan(n=20_000, d=3, kernel="rbf", **settings)


def take_memory() -> None:
    sys.ballast = b"\1" * BALLAST


def release_memory() -> None:
    del sys.ballast


@contextmanager
def taken(client: Client) -> Iterator[None]:
    """Memory of each worker that other work holds."""
    client.run(take_memory)
    try:
        yield
    finally:
        client.run(release_memory)


def test_plans_count_the_memory_that_workers_hold(users: tuple[Client, Client]) -> None:
    ada, bob = users
    alone = plan(bob)
    with taken(ada):
        beside = plan(bob)
        with pytest.raises(MemoryLimitError, match=r"of which \d+ MiB are in use now.*or wait until other work"):
            plan(bob, tile=4096, solver="cholesky")
    before, now = (p.resources.worker_baseline_bytes for p in (alone, beside))
    assert before + 0.9 * BALLAST < now < before + 1.5 * BALLAST
    assert beside.peak_bytes <= USABLE
    assert plan(bob, tile=4096, solver="cholesky").peak_bytes <= USABLE


def test_a_fit_without_room_is_refused_before_it_starts(
    users: tuple[Client, Client], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The memory was free when the plan was made."""
    ada, bob = users
    from dkrr.fitting import run

    planned, begun = run.plan_of, []

    def meanwhile(request: Any) -> Any:
        found = planned(request)
        if not begun:
            begun.append(taken(ada))
            begun[0].__enter__()
        return found

    monkeypatch.setattr(run, "plan_of", meanwhile)
    X = np.random.default_rng(1).normal(size=(9000, 3))
    with bob.as_current(), pytest.raises(MemoryLimitError, match="before its first task.*or wait until other work"):
        dkrr.KernelRidge(**{**SETTINGS, "solver": "cg", "tile": None}).fit(X, X[:, 0])
    begun[0].__exit__(None, None, None)


def after_first_task(monkeypatch: pytest.MonkeyPatch, hooks: dict[str, Callable[[], object]]) -> None:
    """Call a function of a thread, by its name, when the first task of a fit in it has ended."""
    note = DaskExecutor._note

    def noted(self: DaskExecutor, records: Any) -> None:
        note(self, records)
        hook = hooks.pop(threading.current_thread().name, None)
        if hook is not None:
            hook()

    monkeypatch.setattr(DaskExecutor, "_note", noted)


def test_a_fit_is_done_beside_another(users: tuple[Client, Client], monkeypatch: pytest.MonkeyPatch) -> None:
    ada, bob = users
    whole = [fit(ada, 1).dual_coef_, fit(bob, 2).dual_coef_]
    begun, go_on = threading.Event(), threading.Event()

    def pause() -> None:
        begun.set()
        assert go_on.wait(WAIT)

    after_first_task(monkeypatch, {"ada_0": pause})
    with ThreadPoolExecutor(1, thread_name_prefix="ada") as pool:
        first = pool.submit(fit, ada, 1)
        try:
            assert begun.wait(WAIT)
            second = fit(bob, 2)
        finally:
            go_on.set()
        model = first.result(WAIT)
    assert_array_equal(model.dual_coef_, whole[0])
    assert_array_equal(second.dual_coef_, whole[1])


@pytest.mark.parametrize("solver", ["cholesky", "cg"])
def test_ctrl_c_of_one_does_not_disturb_the_other(
    users: tuple[Client, Client], monkeypatch: pytest.MonkeyPatch, solver: str
) -> None:
    ada, bob = users
    whole = fit(bob, 3, solver=solver)

    def interrupt() -> None:
        raise KeyboardInterrupt

    def cancelled() -> None:
        with ThreadPoolExecutor(1, thread_name_prefix="ada") as pool:
            assert isinstance(pool.submit(fit, ada, 1, solver=solver).exception(WAIT), KeyboardInterrupt)

    after_first_task(monkeypatch, {"ada_0": interrupt, "bob_0": cancelled})
    with ThreadPoolExecutor(1, thread_name_prefix="bob") as pool:
        model = pool.submit(fit, bob, 3, solver=solver).result(WAIT)
    assert_same(model, whole)
