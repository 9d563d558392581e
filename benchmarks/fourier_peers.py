"""Peers on rows in few columns, each run in its own process; imports nothing of dkrr, nor of other benchmarks.

``python benchmarks/fourier_peers.py NAME FILE GAMMA ALPHA`` reads arrays X, y and new of an .npz file, fits the RBF
kernel (celerite2: its nearest, a Matérn kernel with ν = 3/2, which is all that it has), predicts the new rows, and
prints one line of JSON.
"""

import json
import sys
from math import sqrt
from time import perf_counter
from typing import Any


def sklearn(X: Any, y: Any, new: Any, gamma: float, alpha: float) -> tuple[float, Any]:
    """Kernel ridge regression with the whole matrix."""
    from sklearn.kernel_ridge import KernelRidge

    start = perf_counter()
    model = KernelRidge(kernel="rbf", gamma=gamma, alpha=alpha).fit(X, y)
    return perf_counter() - start, model.predict(new)


def gpytorch(X: Any, y: Any, new: Any, gamma: float, alpha: float) -> tuple[float, Any]:
    """KISS-GP: cubic interpolation on a grid, conjugate gradient to 1e-4, given the hyperparameters."""
    import gpytorch as gp
    import torch

    class Model(gp.models.ExactGP):  # type: ignore[misc]
        def __init__(self, x: Any, targets: Any, likelihood: Any) -> None:
            super().__init__(x, targets, likelihood)
            self.mean_module = gp.means.ZeroMean()
            base = gp.kernels.RBFKernel()
            base.lengthscale = 1.0 / sqrt(2.0 * gamma)
            sides = [128] * x.shape[1]
            bounds = [(-0.1, 1.1)] * x.shape[1]
            self.covar_module = gp.kernels.GridInterpolationKernel(base, sides, x.shape[1], bounds)

        def forward(self, x: Any) -> Any:
            return gp.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))

    x, targets, points = (torch.tensor(array, dtype=torch.float64) for array in (X, y, new))
    start = perf_counter()
    likelihood = gp.likelihoods.GaussianLikelihood(noise_constraint=gp.constraints.GreaterThan(1e-9)).double()
    likelihood.noise = alpha
    model = Model(x, targets, likelihood).double()
    model.eval()
    likelihood.eval()
    settings = gp.settings
    with (
        torch.no_grad(),
        settings.cg_tolerance(1e-4),
        settings.eval_cg_tolerance(1e-4),
        settings.max_cg_iterations(1000),
        settings.max_preconditioner_size(100),
        settings.fast_pred_var(False),
        settings.skip_posterior_variances(),
    ):
        predicted = model(points).mean.numpy()
    return perf_counter() - start, predicted


def celerite2(X: Any, y: Any, new: Any, gamma: float, alpha: float) -> tuple[float, Any]:
    """A kernel of another family, in one column, whose factorisation is linear in the rows."""
    import celerite2 as ce
    import numpy as np

    order = np.argsort(X[:, 0])
    start = perf_counter()
    process = ce.GaussianProcess(ce.terms.Matern32Term(sigma=1.0, rho=1.0 / sqrt(2.0 * gamma)), mean=0.0)
    process.compute(X[order, 0], diag=np.full(len(X), alpha), check_sorted=False)
    sorted_new = np.argsort(new[:, 0])
    predicted = np.empty(len(new))
    predicted[sorted_new] = process.predict(y[order], t=new[sorted_new, 0])
    return perf_counter() - start, predicted


def main() -> None:
    """Run one peer."""
    import numpy as np

    name, file, gamma, alpha = sys.argv[1], sys.argv[2], float(sys.argv[3]), float(sys.argv[4])
    data = np.load(file)
    seconds, predicted = globals()[name](data["X"], data["y"], data["new"], gamma, alpha)
    np.save(f"{file}-{name}.npy", np.asarray(predicted))
    print(json.dumps({"seconds": seconds, "n": len(data["X"])}))


if __name__ == "__main__":
    main()
