"""What a user's typed program does with dkrr: mypy checks it strictly, and a test runs it.

Another test checks it with the types that packages of containers have, as a user's mypy does.
"""

from pathlib import Path
from typing import Any, assert_type

import dask.array
import numpy as np
import pandas
import polars
import scipy.sparse
import xarray
import zarr
from numpy.typing import NDArray
from sklearn.model_selection import GroupKFold
from sklearn.preprocessing import StandardScaler

import dkrr
from dkrr.features import Nystroem
from dkrr.kernels import RBF, Linear
from dkrr.planning import Plan
from dkrr.planning.predictions import PredictionPlan
from dkrr.planning.searches import SelectionPlan
from dkrr.solvers import Cholesky, ConjugateGradient, RPCholesky, SolveResult
from dkrr.typing import FoldsLike, KernelLike, Predictions, RowsLike, TargetsLike, TransformerLike, WeightsLike


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


def fitted(X: RowsLike, y: TargetsLike, weights: WeightsLike | None, kernel: KernelLike = "rbf") -> dkrr.KernelRidge:
    """Pass on what dkrr takes."""
    return dkrr.KernelRidge([0.1, 1.0], kernel=kernel).fit(X, y, weights)


def accepted(
    frame: pandas.DataFrame,
    column: "pandas.Series[float]",
    table: polars.DataFrame,
    lazy: polars.LazyFrame,
    sparse: scipy.sparse.csr_array[Any],
    blocks: dask.array.Array,
    stored: zarr.Array[Any],
    cube: xarray.DataArray,
    array: NDArray[np.float32],
) -> None:
    """What mypy takes as rows, targets, kernels, transformers and folds. Nothing calls this."""
    rows: list[RowsLike] = [[[1.0], [2.0]], ["a text"], frame, table, lazy, sparse, blocks, stored, cube, array]
    rows += ["x.parquet", Path("x.zarr"), dkrr.open_table("x.parquet"), dkrr.open_table(lazy)]
    targets: list[TargetsLike] = [[1.0, 2.0], ["no", "yes"], column, frame, table["y"], blocks, stored, cube, array]
    targets += ["column", Path("y.npy"), dkrr.open_table("x.parquet", "y")]
    kernels: list[KernelLike] = [
        "matern",
        RBF(),
        0.5 * RBF(gamma=[1.0, 2.0]) + Linear(),
        Nystroem(RBF(), 10),
        lambda X, Y: X @ Y.T,
    ]
    transformers: list[TransformerLike] = ["standardize", StandardScaler()]
    folds: list[FoldsLike] = [5, "loo", GroupKFold(3), [([0, 1], [2]), ([0, 2], [1])]]
    for kernel, X, y, transformer, cv in zip(kernels, rows, targets, transformers, folds, strict=False):
        fitted(X, y, 1.0, kernel), fitted(X, y, column, kernel)
        dkrr.KernelRidgeCV([0.1], kernel=[kernel, "rbf"], gamma=[None, 0.1, [1.0, 2.0]], cv=cv, transformer=transformer)


def known(model: dkrr.KernelRidge, labels: dkrr.KernelLogisticRegression, X: NDArray[np.float64], path: Path) -> None:
    """What mypy knows of results. Nothing calls this."""
    assert_type(model.predict(X), NDArray[np.float64])
    assert_type(model.predict([[1.0]]), NDArray[np.float64])
    assert_type(model.predict(X, return_std=True), tuple[NDArray[np.float64], NDArray[np.float64]])
    assert_type(model.predict(path), Predictions)
    assert_type(model.predict_interval(X), tuple[NDArray[np.float64], NDArray[np.float64]])
    assert_type(labels.predict_proba(X), NDArray[np.float64])
    assert_type(model.plan_, Plan)
    assert_type(model.solve_result_, SolveResult)
    assert_type(model.coef_, NDArray[np.float64])
    assert_type(labels.dual_coef_, NDArray[np.float64])
    assert_type(model.fit(X, X[:, 0]), dkrr.KernelRidge)
    assert_type(dkrr.plan(X, X[:, 0], loss="logistic"), Plan)
    assert_type(dkrr.plan(X, X[:, 0], cv=5), SelectionPlan)
    assert_type(dkrr.plan(X, model=model), PredictionPlan)


def known_of_containers(
    model: dkrr.KernelRidge,
    frame: pandas.DataFrame,
    table: polars.DataFrame,
    cube: xarray.DataArray,
    sparse: scipy.sparse.csr_array[Any],
    blocks: dask.array.Array,
    stored: zarr.Array[Any],
) -> None:
    """Predictions of rows in memory, and lazy ones. Nothing calls this."""
    in_memory: list[NDArray[np.float64]] = [model.predict(frame), model.predict(table), model.predict(sparse)]
    lazy: list[dask.array.Array] = [model.predict(blocks), model.predict(stored)]
    assert in_memory or lazy
    assert_type(dkrr.suggest(model, frame, 2), dkrr.Suggestion)
    assert_type(model.predict(cube), Predictions)
    assert_type(model.predict(cube, True), tuple[Predictions, Predictions])


def mistakes(X: NDArray[np.float64], y: NDArray[np.float64], path: Path) -> None:
    """What mypy refuses: it also refuses an ignored error that is none. Nothing calls this."""
    dkrr.KernelRidge(alpah=1)  # type: ignore[call-arg]
    dkrr.KernelRidgeCV(kernal="rbf")  # type: ignore[call-arg]
    dkrr.KernelLogisticRegression(alpah=1)  # type: ignore[call-arg]
    dkrr.KernelLogisticRegressionCV(alpah=1)  # type: ignore[call-arg]
    dkrr.KernelRidge(alpha="1e-3")  # type: ignore[arg-type]
    dkrr.KernelRidge(form="primel")  # type: ignore[arg-type]
    dkrr.KernelRidge(kernel="rfb")  # type: ignore[arg-type]
    dkrr.KernelRidge(solver="cgs")  # type: ignore[arg-type]
    dkrr.KernelRidge(solver=Cholesky)  # type: ignore[arg-type]
    dkrr.KernelRidge(transformer="standardise")  # type: ignore[arg-type]
    dkrr.KernelRidge(uncertainty="interval")  # type: ignore[arg-type]
    dkrr.KernelRidgeCV(kernel=["rbf", "rfb"])  # type: ignore[list-item]
    dkrr.KernelRidgeCV(cv="lo")  # type: ignore[arg-type]
    dkrr.KernelRidgeCV(optimize="gamma")  # type: ignore[arg-type]
    dkrr.KernelLogisticRegression(class_weight="balance")  # type: ignore[arg-type]
    ConjugateGradient(precision="float32")  # type: ignore[arg-type]
    dkrr.KernelRidge().fit(3, y)  # type: ignore[arg-type]
    dkrr.KernelRidge().fit(None, y)  # type: ignore[arg-type]
    dkrr.KernelRidge().fit({"a": [1.0]}, y)  # type: ignore[arg-type]
    dkrr.KernelRidge().fit(X, 3)  # type: ignore[arg-type]
    dkrr.KernelRidge().fit(X, y, sample_weights=y)  # type: ignore[call-arg]
    dkrr.KernelRidge().predict(3)  # type: ignore[call-overload]
    dkrr.KernelRidge().predict(X).compute()  # type: ignore[attr-defined]
    dkrr.KernelRidge().predict(X, True)[0].compute()  # type: ignore[attr-defined]
    dkrr.load(path).predict_proba(X)  # type: ignore[union-attr]
    dkrr.plan(sise=3)  # type: ignore[call-overload]
    dkrr.plan(form="primel")  # type: ignore[call-overload]
    dkrr.plan(3)  # type: ignore[call-overload]
    dkrr.gram(X, kernel="rfb")  # type: ignore[arg-type]
    dkrr.open_table(3)  # type: ignore[arg-type]
    dkrr.predict_to("model.zarr", X, path)  # type: ignore[arg-type]
    dkrr.save(dkrr.KernelRidge(), path, uncertainty="date")  # type: ignore[arg-type]
