"""Workers are asked what they hold before work starts, and a plan without room for it is refused."""

import sys
from dataclasses import replace

import pytest
from distributed import Client

from benchmarks.local_client import local_client
from dkrr.errors import MemoryLimitError
from dkrr.fitting.context import open_context
from dkrr.kernels import RBF
from dkrr.linalg import TASK_MODULES
from dkrr.planning import make_plan
from dkrr.planning.resources import WORKER_BASELINE_BYTES
from dkrr.runtime import Progress, Task
from dkrr.runtime.dask_client import held_when_ready
from dkrr.runtime.dask_watch import Watch
from tests.planning.problems import GIB, MIB, cluster, direct

BALLAST = 200 * MIB


class Heavy(RBF):
    """A kernel whose module imports a large library."""

    def __reduce__(self):
        return _arrive, ()


def _arrive():
    sys.ballast = b"\1" * BALLAST
    return RBF(gamma=1.0)


@pytest.fixture(scope="module")
def client(tmp_path_factory):
    with (
        local_client(1, GIB, str(tmp_path_factory.mktemp("scratch")), TASK_MODULES) as client,
        Client(client.scheduler.address, security=client.security) as mine,
    ):
        yield mine


def test_what_is_imported(client, tmp_path):
    held = held_when_ready(Watch(client), RBF(), [str(tmp_path)], TASK_MODULES)
    assert 40 * MIB < held.environment < WORKER_BASELINE_BYTES, "what dkrr imports itself is planned for"
    assert held.ready - held.environment < 8 * MIB
    (large,) = client.run(lambda: [m for m in ("dask.array", "pandas", "sklearn") if m in sys.modules]).values()
    assert large == []


def test_refused_where_there_is_no_room(client, tmp_path):
    plan = make_plan(direct(3000, 5, tile=512, form="dual"), cluster(worker_limit=GIB, workers=1))
    with open_context(plan, str(tmp_path / "a"), Progress()) as context:
        assert context.client is client
    tight = int(1.05 * plan.peak_bytes / 0.7)
    plan = make_plan(replace(plan.problem, kernel=Heavy(gamma=1.0)), cluster(worker_limit=tight, workers=1))
    with (
        pytest.raises(MemoryLimitError, match=r"holds \d+ MiB before its first task.*allowed for 160 MiB.*at least"),
        open_context(plan, str(tmp_path / "b"), Progress()) as context,
    ):
        context.executor.run([Task("a", int)], Progress())
    assert not (tmp_path / "b" / "system-0").exists()
