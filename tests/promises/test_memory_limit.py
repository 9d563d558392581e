"""Memory that a process really takes is at most what its plan projects, and that is at most the limit.

Kept by conjugate gradient and factorisations, in memory and in tiles, in the calling process and on workers; more sizes
are in tests/nightly/test_killed_and_measured_fits.py. That every plan stays within its limit is in tests/planning.
"""

import re

import dask
import pytest

from dkrr import KernelRidge, plan
from dkrr.errors import MemoryLimitError
from dkrr.features import Nystroem
from dkrr.kernels import RBF
from tests import programs

RBF_KERNEL = {"kernel": "rbf", "gamma": 0.2, "alpha": 1.0}
CASES = {
    "Cholesky in memory": (4001, 8, {"solver": "cholesky", "memory_limit": "500MiB"}, "memory"),
    "conjugate gradient, tiles formed again": (3001, 8, {"solver": "cg", "memory_limit": "290MiB"}, "memory"),
    "primal, rows streamed": (
        3001, 40,
        {"memory_limit": "360MiB", "kernel": "polynomial", "gamma": 0.1, "degree": 2, "form": "primal", "solver": "cg"},
        "memory",
    ),
    "logistic, Cholesky in tiles": (600, 6, {"solver": "cholesky", "tile": 150, "classes": 2, "tol": 0.01}, "serial"),
}  # fmt: skip


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """Facts of the fits of CASES, each in a process of its own."""
    folder = tmp_path_factory.mktemp("measured")
    cases = [
        programs.case(n, d, folder / f"{k}.zarr" if place == "serial" else None, **RBF_KERNEL | settings)
        for k, (n, d, settings, place) in enumerate(CASES.values())
    ]
    return dict(zip(CASES, programs.fit_in_forks(cases), strict=True))


@pytest.mark.parametrize("name", CASES)
def test_the_calling_process_keeps_its_promise(name, measured):
    facts = measured[name]
    assert facts["execution"] == CASES[name][-1]
    assert facts["residual"] <= (0.01 if "logistic" in name else 1e-8)
    assert max([facts["peak"], *facts["peaks"].values()]) <= facts["projected"] <= facts["limit"]
    assert facts["written"] <= 1.01 * facts["planned_written"] or facts["execution"] == "memory" or "logistic" in name


def test_workers_keep_their_promise(tmp_path):
    """Tiles on disk, far smaller than the matrix; this process does not count."""
    settings = {**RBF_KERNEL, "solver": "cholesky", "memory_limit": "600MiB", "tile": 500}
    with dask.config.set({"dkrr.profile-directory": str(tmp_path)}):  # workers of other tests may hold much more
        _, facts = programs.fit_here(3001, 8, None, workers=2, targets=101, fit_intercept=True, **settings)
    assert (facts["execution"], len(facts["peaks"])) == ("dask", 2) and facts["residual"] < 1e-10
    assert max(facts["peaks"].values()) <= facts["projected"] <= facts["limit"]
    assert facts["written"] <= 1.01 * facts["planned_written"]


def test_a_limit_that_is_refused_names_the_smallest_that_suffices_and_a_fit_within_it_works(small_process):
    X, y = programs.problem(3001, 5)
    settings = {**RBF_KERNEL, "solver": "cg"}
    with pytest.raises(MemoryLimitError, match=r"Nothing was computed") as caught:
        KernelRidge(**settings, memory_limit="150MiB").fit(X, y)
    named = int(re.search(r"suffices is .+? \((\d+) bytes\)", str(caught.value))[1])
    model = KernelRidge(**settings, memory_limit=named).fit(X, y)
    assert model.plan_.peak_bytes <= named and model.solve_result_.residual <= 1e-8
    with pytest.raises(MemoryLimitError):
        KernelRidge(**settings, memory_limit=int(0.98 * named)).fit(X, y)


@pytest.mark.nightly
@pytest.mark.parametrize("classes", [None, 2])
def test_the_draw_of_centres_keeps_its_promise(classes):
    """It takes more than the fit that follows."""
    settings = {"gamma": 0.2, "alpha": 1.0, "centres": 1500, "memory_limit": "800MiB", "classes": classes}
    (facts,) = programs.fit_in_forks([programs.case(30001, 8, None, **settings, tol=1e-2)])
    assert facts["execution"] == "memory"
    assert 400 * 2**20 < facts["peak"] <= facts["projected"] <= facts["limit"]


@pytest.mark.parametrize("more", [{}, {"loss": "logistic"}, {"cv": 5}, {"tile": 2000}, {"form": "dual"}], ids=str)
def test_a_limit_with_no_room_to_draw_centres_is_refused_and_the_message_names_one_with_room(more):
    sizes = {"n_samples": 100_000, "n_features": 79, "workers": 2, **more}
    drawn = {"kernel": Nystroem(RBF(), 6000)}
    with pytest.raises(MemoryLimitError, match=r"pivots='uniform' or fewer centres need less. Nothing was") as caught:
        plan(**sizes, **drawn, memory_limit="4GiB")
    named = int(re.search(r"suffices is .+? \((\d+) bytes\)", str(caught.value))[1])
    found = plan(**sizes, **drawn, memory_limit=int(1.01 * named))
    assert named > 100_000 * 6000 * 8 and "draws 6,000 centres of Nystroem before the fit" in str(found)
    with pytest.raises(MemoryLimitError):
        plan(**sizes, **drawn, memory_limit=int(0.98 * named))
    plan(**sizes, kernel=Nystroem(RBF(), 6000, "uniform"), memory_limit="4GiB")
