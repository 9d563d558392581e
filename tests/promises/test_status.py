"""`dkrr.status` says what is so of a run that is killed at any moment, and a run that resumes computes little again.

What a kill leaves is the store as it is between two writes: it is looked at after every write, or copied and resumed.
"""

import re
import shutil
import warnings
from itertools import count
from threading import RLock

import dask
import numpy as np
import pytest

import dkrr
from dkrr import KernelLogisticRegression, KernelRidge, blas
from dkrr.cluster import tasks as serial
from dkrr.errors import ConvergenceWarning
from dkrr.linalg.conjugate_gradient import Iteration
from dkrr.solvers import ConjugateGradient, Float32Cholesky, RPCholesky
from dkrr.store.lock import LOCK_NAME
from dkrr.store.places import LocalFolder
from tests.promises.test_resume import EXACT, METHODS, RBF_KERNEL, ridge, sample

BEFORE = r"nothing is computed yet|(copying|checking) X has begun.*|\d+ chunks are left to compute \((.*factor|gram)\)"
CHUNKS = r"(; \d+ chunks? (is|are) left to compute \({}\))?"
FINISHED = "nothing is left to compute; the same call reads its result"
PRECONDITIONER = (
    r"the preconditioner has begun(, at least \d+% of its work done)?(; \d+ columns of the preconditioner are kept)?"
)
COLUMNS = r"conjugate gradient has begun; \d+ columns of the preconditioner are kept; "
SHORT_CG = {**RBF_KERNEL, "solver": ConjugateGradient(RPCholesky(40)), "tol": 1e-1}
TEXTS = {
    "Cholesky in tiles": [
        BEFORE,
        "factorisation has begun" + CHUNKS.format("system-0/factor"),
        "substitution has begun" + CHUNKS.format("system-0/(forward, system-0/)?solution"),
        "true residual has begun",
        FINISHED,
    ],
    "conjugate gradient": [
        BEFORE,
        PRECONDITIONER,
        f"{COLUMNS}no iteration is kept yet",
        COLUMNS + r"iteration \d+ at a residual of .* where 1.0e-01 is asked is kept, from which the same call resumes",
        FINISHED,
    ],
    "Gram matrix": [
        BEFORE,
        "Gram matrix has begun" + CHUNKS.format("gram"),
        "nothing is left to compute; the same call reads the matrix",
    ],
    "logistic, conjugate gradient": [
        BEFORE,
        "Newton steps have begun; no step is kept yet",
        PRECONDITIONER,
        f"{COLUMNS}no iteration is kept yet",
        COLUMNS
        + r"0 of 1 value of alpha solved, Newton step \d+ of the next is kept, from which the same call resumes",
        COLUMNS + "1 of 1 value of alpha solved, from which the same call resumes",
        FINISHED,
    ],
    "search by factors": [
        f"kernel-0: ({BEFORE})",
        r"kernel-0: (factorisation \(λ = 1\) has begun.*|held-out errors have begun.*)",
        r"kernel-0: (factorisation \(λ = 0.01\) has begun.*|held-out errors have begun.*)",
        r"the fit of all rows has not begun; what has is finished \(1 run\)",
        f"fit: ({BEFORE})",
        r"fit: (factorisation|substitution|true residual) has begun.*",
        FINISHED,
    ],
}
"""Classes of texts, in the order in which a run has them."""


@pytest.fixture(autouse=True, scope="module")
def _saves_every_iteration_and_has_one_blas_thread():
    with dask.config.set({"dkrr.checkpoint-seconds": 0}), blas.one_thread():
        yield


def after_each_write(patch, store, action):
    """Call something after each write within a store, with its number; nothing else is written meanwhile."""
    numbers, original, lock = count(1), LocalFolder.write, RLock()

    def write(self, name, parts):
        with lock:
            original(self, name, parts)
            if str(store) in self.url:
                action(next(numbers))

    patch.setattr(LocalFolder, "write", write)


@pytest.mark.parametrize(
    "way", [pytest.param(way, marks=[pytest.mark.nightly] * (k > 2)) for k, way in enumerate(TEXTS)]
)
def test_the_text_is_so_after_every_write(way, tmp_path, monkeypatch):
    store, found, fit = tmp_path / "run.zarr", [], METHODS[way]
    if way == "conjugate gradient":
        fit = lambda store: ridge(store, **SHORT_CG)  # noqa: E731
    with monkeypatch.context() as patch:
        after_each_write(patch, store, lambda number: found.append(dkrr.status(store)))
        fit(str(store))
    found.append(dkrr.status(store))
    kinds = iter(TEXTS[way])
    kind = next(kinds)
    for one in found:
        while not re.fullmatch(kind, one.left):
            kind = next(kinds, None)
            assert kind is not None, f"{one.left!r} follows a later text"
        assert one.is_finished == one.left.startswith("nothing is left"), one.left
        assert "in use by this process" in one.owner or one.is_finished or way == "search by factors"
    assert next(kinds, None) is None and str(found[-1]) and found[-1].to_dict()["is_finished"]


def many_targets(store, **more):
    X, Y, _, _ = sample()
    names = {"WHOLE_BYTES": 0, "MIN_BATCH": 3, "BATCH_FRACTION": 0.0}
    with pytest.MonkeyPatch.context() as patch:
        for name, value in names.items():
            patch.setattr(f"dkrr.planning.target_batches.{name}", value)
        model = KernelRidge(0.1, **RBF_KERNEL, **more, store=store).fit(X, Y[:, :1] * np.linspace(0.5, 2.0, 8))
    return [model.dual_coef_]


def grid(store, estimator, **more):
    X, Y, labels, _ = sample()
    targets = Y if estimator is KernelRidge else labels
    fitted = estimator(0.1, **RBF_KERNEL, form="primal", tile=40, **more, store=store).fit(X[:, :1], targets)
    return [fitted.predict(X[:, :1])]


OTHER_WAYS = {
    "batches by Cholesky": lambda s: many_targets(s, solver="cholesky", tile=40),
    "batches by conjugate gradient": lambda s: many_targets(s, solver=ConjugateGradient(RPCholesky(21)), tile=40),
    "Fourier grid": lambda s: grid(s, KernelRidge),
    "Fourier grid, logistic": lambda s: grid(s, KernelLogisticRegression),
    "float32 in tiles, to a tolerance": lambda s: ridge(
        s, **RBF_KERNEL, solver=ConjugateGradient(Float32Cholesky()), tile=40, tol=1e-12, fit_intercept=True
    ),
}


@pytest.mark.nightly
@pytest.mark.guard
@pytest.mark.parametrize("way", METHODS | OTHER_WAYS)
def test_a_run_killed_at_ten_moments_says_how_far_it_is_and_computes_little_again(way, tmp_path, monkeypatch):
    fit, store, execute = (METHODS | OTHER_WAYS)[way], tmp_path / "run.zarr", serial.execute
    done, writes, copies = [0], [0], []

    def counted(*arguments, **more):
        record = execute(*arguments, **more)
        done[0] += 1
        return record

    def run(place):
        done[0] = 0
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            return fit(str(place)), done[0]

    def copy(number):
        if number in moments:
            copies.append((tmp_path / f"moment-{number}", done[0]))
            shutil.copytree(store, copies[-1][0])

    monkeypatch.setattr(serial, "execute", counted)
    with monkeypatch.context() as patch:
        after_each_write(patch, tmp_path / "counted.zarr", lambda number: writes.append(number))
        expected, n_whole = run(tmp_path / "counted.zarr")
    moments = {max(1, round((k + 0.5) / 10 * writes[-1])) for k in range(10)}
    with monkeypatch.context() as patch:
        after_each_write(patch, store, copy)
        run(store)
    _, n_more = run(store)
    assert len(copies) == len(moments) >= 5
    for place, n_done in copies:
        for lock in place.rglob(LOCK_NAME):  # of this process
            lock.unlink()
        text = dkrr.status(place).left
        assert not text.startswith("nothing is left"), text
        found, n_left = run(place)
        for one, other in zip(found, expected, strict=True):
            np.testing.assert_array_equal(one, other)
        assert dkrr.status(place).is_finished
        again = n_done + n_left - n_whole - n_more
        assert again <= (1 if way in EXACT else n_whole // 3), (text, n_done, n_left, n_whole, n_more)


def interrupted(*_, **__):
    raise KeyboardInterrupt


def test_a_run_that_ended_says_how(tmp_path, monkeypatch):
    X, y, _, _ = sample()
    settings = {**RBF_KERNEL, "alpha": 0.01, "store": str(tmp_path / "run.zarr")}
    with pytest.warns(ConvergenceWarning, match="after 3 iterations"):
        KernelRidge(**settings, solver=ConjugateGradient(RPCholesky(21), max_iter=3)).fit(X, y)
    found = dkrr.status(settings["store"])
    assert re.match(r"nothing with this max_iter: the run ended after 3 iterations at a residual of .*", found.left)
    assert found.left.endswith("where 1.0e-08 was asked; a larger max_iter resumes from there") and found.is_finished
    assert (found.result["status"], found.asked) == ("MAX_ITERATIONS", {"tol": 1e-8, "max_iter": 3})
    more = KernelRidge(**settings, solver=ConjugateGradient(RPCholesky(100), max_iter=1000))
    with monkeypatch.context() as patch:
        patch.setattr(Iteration, "run", interrupted)
        with pytest.raises(KeyboardInterrupt):
            more.fit(X, y)
    assert "iteration 3 at a residual of" in dkrr.status(settings["store"]).left, "more is asked than the run had"
    more.fit(X, y)
    assert dkrr.status(settings["store"]).left == FINISHED
