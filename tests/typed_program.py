"""What a user's typed program does with dkrr: mypy checks it strictly, and a test runs it."""

from pathlib import Path
from typing import assert_type

import numpy as np
from numpy.typing import NDArray

import dkrr
from dkrr.features import Nystroem
from dkrr.kernels import RBF, Linear
from dkrr.solvers import ConjugateGradient, RPCholesky


def work(X: NDArray[np.float64], y: NDArray[np.float64], table: Path, folder: Path) -> tuple[float, ...]:
    """Call every public function and estimator; four scores."""
    solver = ConjugateGradient(RPCholesky(10))
    model = dkrr.KernelRidge(alpha=0.1, kernel=RBF(gamma=0.5) + Linear(), solver=solver)
    model.fit(X, y, sample_weight=np.ones(len(y)))
    mean, deviation = model.predict(X, return_std=True)
    assert mean.shape == deviation.shape and str(model.plan_) and model.solve_result_.residual <= 1e-8
    search = dkrr.KernelRidgeCV(kernel=["rbf", "laplacian"], alphas=[0.1, 1.0], cv=3).fit(X, y)
    assert search.best_params_ and search.best_score_
    labels = dkrr.KernelLogisticRegression(kernel=Nystroem(RBF(), 10)).fit(X, y > 0)
    assert labels.classes_.tolist() == [False, True] and labels.predict_proba(X).shape == (len(X), 2)
    chosen = dkrr.KernelLogisticRegressionCV(kernel="rbf", alphas=[0.1, 1.0], cv=3).fit(X, y > 0)
    dkrr.save(model, folder / "model.zarr", overwrite=True)
    again = dkrr.load(folder / "model.zarr")
    dkrr.predict_to(again, X, folder / "predictions.npy")
    plan = dkrr.plan(n_samples=10_000, n_features=3, kernel="rbf", memory_limit="4GiB")
    assert plan.seconds > 0 and plan.peak_bytes > 0 and plan.reasons
    assert np.asarray(dkrr.gram(X, kernel="rbf", store=folder / "run.zarr")).shape == (len(X), len(X))
    assert dkrr.status(folder / "run.zarr").left and dkrr.verify(folder / "run.zarr").is_whole
    assert dkrr.report(model, folder / "report.html")
    rows: dkrr.Table = dkrr.open_table(table, "a*").drop_missing("a*,target")
    other = dkrr.KernelRidge(kernel="rbf", transformer="standardize").fit(rows, "target")
    assert isinstance(again, dkrr.KernelRidge) and again.predict(X).shape == (len(X),)
    dkrr.save(search, folder / "model.zarr", overwrite=True)
    return model.score(X, y), labels.score(X, y > 0), chosen.score(X, y > 0), other.score(rows, y)


def mistakes(X: NDArray[np.float64], path: Path) -> None:
    """What mypy refuses: it also refuses an ignored error that is none. Nothing calls this."""
    dkrr.KernelRidge(alpah=1)  # type: ignore[call-arg]
    dkrr.KernelRidgeCV(kernal="rbf")  # type: ignore[call-arg]
    dkrr.KernelLogisticRegression(alpah=1)  # type: ignore[call-arg]
    dkrr.KernelLogisticRegressionCV(alpah=1)  # type: ignore[call-arg]
    dkrr.load(path).predict_proba(X)  # type: ignore[union-attr]
    assert_type(dkrr.KernelRidge().predict(X), NDArray[np.float64])
    assert_type(dkrr.KernelRidge().predict(X, return_std=True), tuple[NDArray[np.float64], NDArray[np.float64]])
    assert_type(dkrr.KernelLogisticRegression().predict_proba(X), NDArray[np.float64])
