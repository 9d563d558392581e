"""Fits of several users, with a client each, at once on the workers of one cluster."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import dask
import numpy as np
import pytest
from distributed import Client
from numpy.testing import assert_array_equal

import dkrr
from dkrr.errors import MemoryLimitError, WorkersTakenError
from dkrr.machine import detect
from dkrr.runtime.claims import Others, claimed, others
from dkrr.runtime.dask_executor import DaskExecutor

MIB = 2**20
SETTINGS: dict[str, Any] = {"kernel": "rbf", "gamma": 0.2, "alpha": 0.1, "tile": 128, "solver": "cholesky"}
USABLE = int(0.7 * 2**30)
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


def problem(seed: int) -> tuple[Any, Any]:
    X = np.random.default_rng(seed).normal(size=(700, 3))
    return X, np.sin(X).sum(axis=1)


def fit(client: Client, seed: int, **settings: Any) -> dkrr.KernelRidge:
    with client.as_current():
        return dkrr.KernelRidge(**{**SETTINGS, **settings}).fit(*problem(seed))


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


def test_a_claim_lasts_as_long_as_its_client(users: tuple[Client, Client], workers: Client) -> None:
    ada, bob = users
    assert others(ada) == others(bob) == Others(0, 0)
    with claimed(ada, 300 * MIB - 1, 0):
        assert others(bob) == Others(1, 300 * MIB) and others(ada) == Others(0, 0)
        with claimed(bob, 100 * MIB, USABLE):
            assert others(ada) == Others(1, 100 * MIB) and others(workers) == Others(2, 400 * MIB)
    assert others(bob) == Others(0, 0)
    with Client(workers.scheduler.address, security=workers.security, set_as_default=False) as lost:
        claim = claimed(lost, 50 * MIB, 0)
        claim.__enter__()
        assert others(bob) == Others(1, 50 * MIB)
    assert others(bob) == Others(0, 0)


def test_plans_leave_what_others_hold(users: tuple[Client, Client]) -> None:
    ada, bob = users
    alone = plan(bob)
    with claimed(ada, 500 * MIB, 0):
        beside = plan(bob)
        with bob.as_current():
            assert detect("400MiB", None).taken_bytes == 0  # 200 MiB of each worker: less than is left
        assert plan(ada).peak_bytes == alone.peak_bytes
        with pytest.raises(MemoryLimitError, match="1 other fit may hold 500 MiB.*wait for the other fits"):
            plan(bob, tile=8192, solver="cholesky")
    assert USABLE - 500 * MIB < alone.peak_bytes <= USABLE and beside.peak_bytes <= USABLE - 500 * MIB
    assert "1 other fit may hold 500 MiB of each worker" in str(beside) and "other fit" not in str(alone)
    assert (beside.to_dict()["n_others"], alone.to_dict()["n_others"]) == (1, 0)


def test_of_two_that_claim_too_much_one_is_told(users: tuple[Client, Client]) -> None:
    ada, bob = users
    taken = pytest.raises(WorkersTakenError, match="may hold 500 MiB of each.*Run again")
    with claimed(ada, 500 * MIB, 0), taken, claimed(bob, 400 * MIB, USABLE - 400 * MIB):
        raise AssertionError("must not start")
    together = threading.Barrier(2)

    def claim(client: Client) -> int:
        with claimed(client, 400 * MIB, USABLE - 400 * MIB):
            return others(client).n_bytes

    def try_to(client: Client) -> int | None:
        together.wait(WAIT)
        try:
            return claim(client)
        except WorkersTakenError:
            return None

    with ThreadPoolExecutor(2) as pool:
        held = list(pool.map(try_to, users))
    assert set(held) <= {0, None} and 0 in held


def after_first_task(monkeypatch: pytest.MonkeyPatch, hooks: dict[str, Callable[[], object]]) -> None:
    """Call a function of a thread, by its name, when the first task of a fit in it has ended."""
    note = DaskExecutor._note

    def noted(self: DaskExecutor, records: Any) -> None:
        note(self, records)
        hook = hooks.pop(threading.current_thread().name, None)
        if hook is not None:
            hook()

    monkeypatch.setattr(DaskExecutor, "_note", noted)


def test_a_fit_is_planned_and_done_beside_another(
    users: tuple[Client, Client], monkeypatch: pytest.MonkeyPatch
) -> None:
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
    assert (model.plan_.resources.n_others, second.plan_.resources.n_others) == (0, 1)
    promised = model.plan_.peak_bytes + second.plan_.peak_bytes - second.plan_.resources.worker_baseline_bytes
    assert promised <= USABLE and second.plan_.resources.others_bytes > 0
    assert_array_equal(model.dual_coef_, whole[0])
    assert_array_equal(second.dual_coef_, whole[1])
    assert others(ada) == others(bob) == Others(0, 0)


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
    assert others(ada) == others(bob) == Others(0, 0)


def test_a_fit_plans_again_where_another_was_quicker(
    users: tuple[Client, Client], monkeypatch: pytest.MonkeyPatch
) -> None:
    ada, bob = users
    plans: list[Any] = []
    from dkrr.fitting import run

    planned, claims = run.plan_of, []

    def meanwhile(request: Any) -> Any:
        plans.append(planned(request))
        if not claims:  # between the plan and its start
            claims.append(claimed(ada, 500 * MIB, 0))
            claims[0].__enter__()
        return plans[-1]

    monkeypatch.setattr(run, "plan_of", meanwhile)
    settings = {"solver": "cg", "tile": None}
    with bob.as_current():
        X = np.random.default_rng(1).normal(size=(9000, 3))
        model = dkrr.KernelRidge(**{**SETTINGS, **settings, "alpha": 10.0}).fit(X, X[:, 0])
    claims[0].__exit__(None, None, None)
    assert plans[0].peak_bytes > USABLE - 500 * MIB >= model.plan_.peak_bytes
    assert model.plan_.resources.n_others == 1
