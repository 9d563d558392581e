"""Selection of λ for each of many targets by other libraries, each in its own process.

Run by :mod:`benchmarks.selection`, or by hand::

    python -m benchmarks.selection_peers himalaya PROBLEM.json --found FOUND.npz

prints one line of JSON. Nothing of dkrr is imported, so that an environment without it can run a peer.
"""

import json
import resource
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import click
import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Found = tuple[Floats, Floats]
"""λ of every target and its score, of shape (t,) each."""

SEED = 0
NOISE = (0.03, 3.0)
"""Noise of the first target and of the last: it decides which λ is the best."""


@dataclass(frozen=True)
class Problem:
    """Targets that all are smooth functions of the same rows, with their own noise."""

    n: int
    d: int
    n_targets: int
    alphas: tuple[float, ...]
    folds: int

    @property
    def gamma(self) -> float:
        """γ of the RBF kernel."""
        return 1 / self.d

    def data(self) -> tuple[Floats, Floats]:
        """X of shape (n, d), standard normal, and Y of shape (n, t), whose columns have a mean of 0."""
        rng = np.random.default_rng(SEED)
        X = rng.standard_normal((self.n, self.d))
        Y = np.sin(X @ (2 * rng.standard_normal((self.d, self.n_targets)) / np.sqrt(self.d)))
        Y += np.geomspace(*NOISE, self.n_targets) * rng.standard_normal(Y.shape)
        Y -= Y.mean(axis=0)
        return X, Y


def himalaya(problem: Problem, X: Floats, Y: Floats) -> Found:
    """KernelRidgeCV of himalaya, by an eigendecomposition for each fold."""
    from himalaya.kernel_ridge import KernelRidgeCV  # type: ignore[import-not-found,unused-ignore]

    model = KernelRidgeCV(
        alphas=np.array(problem.alphas), kernel="rbf", kernel_params={"gamma": problem.gamma}, cv=problem.folds
    ).fit(X, Y)
    return np.asarray(model.best_alphas_), np.asarray(model.cv_scores_)


def measured(problem: Problem, solve: Callable[[Problem, Floats, Floats], Found], found: Path) -> dict[str, Any]:
    """Time and memory of one peer; what it has chosen is saved."""
    X, Y = problem.data()
    start = perf_counter()
    alphas, scores = solve(problem, X, Y)
    seconds = perf_counter() - start
    np.savez(found, alphas=alphas, scores=scores)
    return {"seconds": seconds, "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024}


@click.command()
@click.argument("name", type=click.Choice(["himalaya"]))
@click.argument("problem", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--found", type=click.Path(path_type=Path), required=True, help="File for what was chosen (.npz).")
def main(name: str, problem: Path, found: Path) -> None:
    """Choose λ for every target with one peer and print a line of JSON."""
    solve = {"himalaya": himalaya}[name]
    click.echo(json.dumps(measured(Problem(**json.loads(problem.read_text())), solve, found)))


if __name__ == "__main__":
    main()
