"""Models that leave out folds, from a factor in tiles of a store: those from memory, resumed where they were killed."""

import numpy as np
import pytest
from numpy.testing import assert_array_equal
from sklearn.model_selection import KFold

from dkrr import KernelRidge
from dkrr.cluster import Progress, SerialExecutor
from dkrr.fitting.context import Context
from dkrr.fitting.storage import StoredArrays
from dkrr.kernels import RBF
from dkrr.linalg.cholesky import factor_bytes
from dkrr.store import RunStore
from tests.oracles import assert_close

pytestmark = pytest.mark.usefixtures("one_blas_thread")

HEAVY = np.where(np.arange(211) == 5, 1e15, 1.0)
"""One row determines the intercept, and little is left of differences of the inverse."""


def in_tiles(data, weights=None, **settings):
    return KernelRidge(0.3, kernel=RBF(gamma=0.2), tile=48, **settings).fit(data.X, data.y, sample_weight=weights)


@pytest.mark.parametrize(
    ("cv", "fit_intercept", "weights"),
    [(None, False, "some are 0"), (KFold(8, shuffle=True, random_state=0), True, "one is heavy")],
    ids=str,
)
def test_intervals_from_tiles_are_those_from_memory(data, monkeypatch, cv, fit_intercept, weights):
    monkeypatch.setattr("dkrr.linalg.held_out.BATCH_COLUMNS", 60)  # of several folds together
    monkeypatch.setattr("dkrr.linalg.held_out.INVERSE_STRIP_COLUMNS", 16)
    w = {"some are 0": data.weights, "one is heavy": HEAVY}[weights]
    model = in_tiles(data, w, fit_intercept=fit_intercept)
    plain = KernelRidge(0.3, kernel=RBF(gamma=0.2), fit_intercept=fit_intercept).fit(data.X, data.y, sample_weight=w)
    found, expected = (np.array(one.predict_interval(data.X_new, cv=cv)) for one in (model, plain))
    assert_close(found, expected, 1e-11)
    monkeypatch.setattr("dkrr.fitting.posterior_cholesky.room_for", lambda *_: 0)  # and of a factor in memory
    again = KernelRidge(0.3, kernel=RBF(gamma=0.2), fit_intercept=fit_intercept).fit(data.X, data.y, sample_weight=w)
    assert_close(np.array(again.predict_interval(data.X_new, cv=cv)), expected, 1e-11)


class Killed(SerialExecutor):
    """Ends after some tasks."""

    def __init__(self, left):
        self.left, self.bytes_read = left, 0

    def run(self, tasks, progress):
        for task in tasks:
            if self.left == 0:
                raise KeyboardInterrupt
            self.left -= 1
            record = super().run([type(task)(task.key, task.function, task.arguments, flops=task.flops)], progress)
            self.bytes_read += record.bytes_read
        return super().run([], progress)


class Counted(Progress):
    """Sums the work that is shown."""

    def __init__(self):
        super().__init__()
        self.total = self.done = 0.0

    def begin(self, name, total, done):
        self.name, self.total = name, total

    def advance(self, flops):
        self.done += flops


@pytest.mark.parametrize("left", [1, 25])
def test_a_run_that_is_killed_goes_on_with_the_next_fold(data, tmp_path, monkeypatch, left):
    monkeypatch.setattr("dkrr.linalg.held_out.BATCH_COLUMNS", 60)
    (_, posterior), *_ = in_tiles(data, fit_intercept=True)._posteriors().factored()
    folds = [np.arange(k, min(k + 60, 211)) for k in range(0, 211, 60)]

    def found(place, executor, progress):
        store = RunStore(str(place))
        store.open()
        context = Context(StoredArrays(store, keeps=True), executor, progress)
        return posterior.fold_models(folds, context)

    whole, counted = Killed(-1), Counted()
    expected = found(tmp_path / "whole", whole, counted)
    assert counted.name == "held-out models" and counted.done == pytest.approx(counted.total)
    assert whole.bytes_read < 2 * len(folds) * factor_bytes(posterior._matrix_factor.grid)
    with pytest.raises(KeyboardInterrupt):
        found(tmp_path / "run", Killed(left), Progress())
    rest, counted = Killed(-1), Counted()
    resumed = found(tmp_path / "run", rest, counted)
    assert rest.left == whole.left + left and counted.done == pytest.approx(counted.total)
    assert_array_equal(resumed.function.dual_coef, expected.function.dual_coef)
    assert_array_equal(np.concatenate(resumed.errors), np.concatenate(expected.errors))
    again = Killed(0)  # all is known
    assert_array_equal(found(tmp_path / "run", again, Progress()).function.intercept, expected.function.intercept)
