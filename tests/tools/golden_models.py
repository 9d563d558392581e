"""Small models that a version of dkrr wrote, which later versions load: tests/golden/models/VERSION.

::

    python -m tests.tools.golden_models

It writes those of this version, once for each release, and beside each its predictions. A version that
exists is not written again: its files are those that users have.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import numpy as np

import dkrr
from dkrr.kernels import RBF, BagOfWords, Linear

FOLDER = Path(__file__).parents[1] / "golden" / "models"
_grid = np.arange(33.0).reshape(11, 3)
X, NEW = np.sin(_grid), np.cos(_grid[:3])
Y = np.column_stack([X[:, 0] * X[:, 1], X[:, 2]])
DOCUMENTS = ["red green", "green blue blue", "red red", "blue", "green red blue"]


def _dual() -> Any:
    """Sum of kernels, weights, an intercept, a transformer, and what error bars need."""
    model = dkrr.KernelRidge(0.1, kernel=RBF(gamma=[0.2, 0.3, 0.4]) + 0.5 * Linear(), fit_intercept=True)
    model.set_params(transformer="standardize")
    return model.fit(X, Y, sample_weight=1.0 + X[:, 0] ** 2)


def _search() -> Any:
    """Results of a search, and a model in primal form."""
    return dkrr.KernelRidgeCV([0.1, 1.0], kernel="polynomial", degree=2, form="primal", cv=3).fit(X, Y[:, 0])


def _classes() -> Any:
    """Classes with names."""
    labels = np.array(["high", "low", "middle"])[np.arange(11) % 3]
    return dkrr.KernelLogisticRegression(0.1, kernel="rbf", gamma=0.5).fit(X, labels)


def _documents() -> Any:
    """Sparse rows, and a kernel that learns."""
    return dkrr.KernelRidge(0.1, kernel=BagOfWords()).fit(DOCUMENTS, np.arange(5.0))


MODELS: dict[str, Callable[[], Any]] = {
    "dual": _dual,
    "search": _search,
    "classes": _classes,
    "documents": _documents,
}


def predictions(name: str, model: Any) -> list[float]:
    """Predictions of a model, probabilities of classes and standard deviations, as one list of numbers."""
    if name == "documents":
        found = (model.predict(DOCUMENTS[:3]),)
    elif name == "classes":
        found = (model.predict_proba(NEW),)
    elif name == "dual":
        found = model.predict(NEW, return_std=True)
    else:
        found = (model.predict(NEW),)
    return [float(number) for one in found for number in np.ravel(one)]


@click.command()
@click.option("--folder", type=click.Path(path_type=Path), default=FOLDER, help="Folder of the versions.")
def main(folder: Path) -> None:
    """Write the models of this version."""
    where = folder / dkrr.__version__
    if where.exists():
        raise click.ClickException(f"{where} exists; the models of a version are written once")
    where.mkdir(parents=True)
    for name, fit in MODELS.items():
        model = fit()
        dkrr.save(model, where / name, uncertainty=name == "dual")
        (where / f"{name}.json").write_text(json.dumps(predictions(name, model)) + "\n")


if __name__ == "__main__":
    main()
