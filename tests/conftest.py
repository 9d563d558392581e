"""Shared data."""

import logging
import os
import signal
import uuid
from collections import namedtuple
from collections.abc import Callable, Iterator
from pathlib import Path

import dask
import numpy as np
import pytest
import threadpoolctl
from distributed import Client
from hypothesis import HealthCheck, settings

from benchmarks.local_client import local_client
from dkrr.linalg import TASK_MODULES
from dkrr.machine import detection
from tests import s3

WORKER_MEMORY = 2**30
NIGHTLY = Path(__file__).parent / "nightly"
GOLDEN = Path(__file__).parent / "golden"
Data = namedtuple("Data", "X y weights X_new")

SLOW_MACHINES = [HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
settings.register_profile("fast", max_examples=12, deadline=None, derandomize=True, suppress_health_check=SLOW_MACHINES)
settings.register_profile("nightly", max_examples=200, deadline=None, suppress_health_check=SLOW_MACHINES)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "fast"))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="write tests/golden anew from what dkrr prints now")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark everything in tests/nightly, before `-m` selects."""
    for item in items:
        if item.path.is_relative_to(NIGHTLY):
            item.add_marker(pytest.mark.nightly)


def pytest_configure() -> None:
    """Signals have their default handlers, also where the tests run in the background of a shell that ignores some."""
    for number, handler in ((signal.SIGHUP, signal.SIG_DFL), (signal.SIGINT, signal.default_int_handler)):
        if signal.getsignal(number) == signal.SIG_IGN:
            signal.signal(number, handler)


@pytest.fixture(scope="session", autouse=True)
def no_profile(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Plans are made with dkrr's default rates, here and in processes of tests, whatever was measured here."""
    folder = str(tmp_path_factory.mktemp("profiles"))
    os.environ["DASK_DKRR__PROFILE_DIRECTORY"] = folder
    os.environ["DASK_DKRR__QUICK_MEASUREMENT"] = "false"
    with dask.config.set({"dkrr.profile-directory": folder, "dkrr.quick-measurement": False}):
        yield


@pytest.fixture(autouse=True)
def same_loggers() -> Iterator[None]:
    """Loggers are after a test what they were before: where dkrr shows progress depends on them."""
    loggers = [logging.getLogger(name) for name in (None, "dkrr", "dkrr.progress")]
    before = [(one, one.level, list(one.handlers), one.propagate, one.disabled) for one in loggers]
    yield
    for one, level, handlers, one.propagate, one.disabled in before:
        one.setLevel(level)
        one.handlers[:] = handlers


@pytest.fixture(scope="module")
def one_blas_thread() -> Iterator[None]:
    """Small problems by the hundred: BLAS threads would only wait for each other."""
    with threadpoolctl.threadpool_limits(1, "blas"):
        yield


@pytest.fixture(scope="session")
def started(tmp_path_factory: pytest.TempPathFactory, no_profile: None) -> Iterator[Client]:
    """Two worker processes for all tests that need some: starting them takes seconds."""
    with (
        dask.config.set({"distributed.scheduler.allowed-failures": 1}),  # each death takes a start of a worker
        local_client(2, WORKER_MEMORY, str(tmp_path_factory.mktemp("scratch")), TASK_MODULES) as client,
    ):
        yield client


@pytest.fixture
def workers(started: Client) -> Client:
    """The client of two workers, both alive whatever the test before did to them; not the ambient one."""
    started.wait_for_workers(2, timeout=60)
    return started


@pytest.fixture
def ambient_workers(workers: Client) -> Iterator[Client]:
    """The ambient client of a machine so slow that no work is small."""
    with workers.as_current(), dask.config.set({"dkrr.rates.gemm-gflops": 1e-3}):
        yield workers


@pytest.fixture
def small_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plans do not depend on what the tests before left in this process: it holds 200 MiB, as a new one."""
    monkeypatch.setattr(detection, "resident_bytes", lambda: 200 * 2**20)


@pytest.fixture(scope="session")
def data() -> Data:
    """A small regression problem."""
    rng = np.random.default_rng(20)
    X = rng.normal(size=(211, 5))  # 211 is prime: no tile divides it
    Y = np.column_stack([np.sin(X[:, 0]) + 0.1 * rng.normal(size=211), X @ rng.normal(size=5), rng.normal(size=211)])
    weights = rng.uniform(0.1, 3.0, size=211)
    weights[[0, 17, 210]] = 0.0
    return Data(X, Y, weights, rng.normal(size=(37, 5)))


@pytest.fixture(scope="session")
def s3_host() -> Iterator[str]:
    """A server of the S3 interface, for all tests that need one."""
    with s3.s3_server() as host:
        yield host


@pytest.fixture
def bucket(s3_host: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """URL of an empty bucket, which the environment gives access to."""
    for name, value in s3.variables(s3_host).items():
        monkeypatch.setenv(name, value)
    name = f"dkrr-{uuid.uuid4().hex}"
    s3.request(s3_host, "PUT", f"/{name}")
    return f"s3://{name}"


@pytest.fixture
def memory_bucket(monkeypatch: pytest.MonkeyPatch) -> str:
    """URL of an empty bucket that only this process has: without the time of a server."""
    return s3.memory_bucket(monkeypatch)


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """Compare a text that people read with a file of tests/golden; `--update-golden` writes the file."""

    def compare(name: str, text: str) -> None:
        path = GOLDEN / name
        if request.config.getoption("--update-golden"):
            path.write_text(text)
        assert text == path.read_text(), f"{path.name} differs; if that is meant: pytest --update-golden"

    return compare
