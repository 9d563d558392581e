"""`dkrr.plan` for clusters that do not exist."""

import pytest

import dkrr
from dkrr.errors import InputError, MemoryLimitError
from dkrr.planning import Rates

SIZES = {"n": 300_000, "d": 79, "kernel": "rbf"}


def planned(workers=64, worker_memory="4GiB", **more):
    return dkrr.plan(**SIZES, workers=workers, worker_memory=worker_memory, **more)


def test_workers_may_be_far_more_than_this_machine_has():
    plan = planned()
    c, text = plan.chosen, str(plan)
    assert (c.execution, c.n_workers, c.limit_bytes) == ("dask", 64, 4 * 2**30)
    assert c.peak_bytes <= 0.7 * 4 * 2**30 and c.place.start_seconds == 0.0
    assert "64 Dask workers of one thread and 4 GiB each" in text and "0.5 GB/s to each worker (32 GB/s to all)" in text
    assert "a Dask client exists" not in text and "of disk are free here" not in text
    assert plan.to_dict()["assumed"] and not dkrr.plan(n=100, d=3).to_dict()["assumed"]
    small = dkrr.plan(n=1000, d=3, kernel="rbf", workers=64, worker_memory="4GiB")
    assert small.execution == "memory", "small work is done here"


@pytest.mark.parametrize(("solver", "most"), [("cholesky", 8.2), ("cg", 12)])
def test_more_workers_are_faster_but_not_without_end(solver, most):
    """Eight times as many; all of them together keep more tiles and a larger factor of conjugate gradient."""
    eight, sixty_four = (planned(workers, solver=solver).seconds for workers in (8, 64))
    assert 4 < eight / sixty_four < most
    if solver == "cholesky":  # its operations, more than half of whose time is spent in products
        least = SIZES["n"] ** 3 / 3 / (64 * Rates().gemm_flops)
        assert least < sixty_four < 2 * least


def test_cores_of_a_worker_share_its_memory():
    """Four threads take the work of four workers, and a quarter of the memory each, in which tiles are smaller."""
    one, four = (planned(worker_memory="16GiB", solver="cholesky", **more) for more in ({}, {"cores": 4}))
    assert (four.chosen.place.slots, four.chosen.n_workers) == (256, 64)
    assert 2.5 < one.seconds / four.seconds < 4.1
    assert four.chosen.tile < one.chosen.tile and four.peak_bytes <= 0.7 * 16 * 2**30
    text = str(four)
    assert "(64 processes of 4 threads)" in text and "0.5 GB/s to each core (128 GB/s to all)" in text
    assert four.seconds == pytest.approx(planned(256, solver="cholesky").seconds, rel=0.1)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"worker_memory": "4GiB"}, "worker_memory is '4GiB' without workers; .*give workers="),
        ({"worker_memory": "4GiB", "workers": 8, "memory_limit": "8GiB"}, "expected one of them"),
        ({"cores": 4, "workers": 8}, "cores is 4 without worker_memory; expected workers, worker_memory and cores"),
    ],
)
def test_arguments_that_do_not_go_together_are_refused(settings, message):
    with pytest.raises(InputError, match=message):
        dkrr.plan(**SIZES, **settings)


def test_too_little_memory_names_what_suffices():
    with pytest.raises(MemoryLimitError, match=r"worker_memory is 100 MiB. The smallest .* is .*\d+ bytes") as error:
        planned(worker_memory="100MiB")
    needed = int(str(error.value).split("(")[-1].split()[0])
    assert planned(worker_memory=needed).seconds > 0
    with pytest.raises(MemoryLimitError):
        planned(worker_memory=needed - 2 * 2**20)
