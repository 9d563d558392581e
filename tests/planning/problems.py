"""Problems and machines for the planner, by their sizes alone."""

from dkrr.features import feature_map
from dkrr.kernels import RBF, Laplacian, Linear, Polynomial
from dkrr.planning.problem import Problem
from dkrr.planning.resources import Rates, Resources
from dkrr.solvers import Cholesky

MIB, GIB = 2**20, 2**30

KERNELS = {
    "rbf": RBF(),
    "laplacian": Laplacian(),
    "linear": Linear(),
    "poly": Polynomial(degree=2, gamma=0.5, coef0=1.0),
}


def problem(n, d, kernel="rbf", n_targets=1, **settings):
    """Problem of these sizes."""
    value = KERNELS[kernel].resolved(d)
    return Problem(n=n, d=d, n_targets=n_targets, kernel=value, feature_map=feature_map(value, d), **settings)


def direct(n, d, kernel="rbf", n_targets=1, **settings):
    """The same, by factorisation."""
    return problem(n, d, kernel, n_targets, solver=Cholesky(), **settings)


def machine(limit=16 * GIB, workers=2, **settings):
    """One machine with a memory limit, as `dkrr.machine.detection.detect` describes it."""
    return Resources(
        **{
            "local_threads": workers,
            "local_limit_bytes": limit,
            "local_baseline_bytes": 150 * MIB,
            "n_workers": workers,
            "worker_threads": 1,
            "worker_limit_bytes": limit // workers,
            "worker_baseline_bytes": 160 * MIB,
            "usable_fraction": 0.92,
            "limit_is_given": True,
            "rates": Rates(),
            **settings,
        }
    )


def cluster(worker_limit=4 * GIB, workers=8, threads=1, **settings):
    """Workers of a client that the user made."""
    return machine(
        workers=workers,
        worker_limit_bytes=worker_limit,
        worker_threads=threads,
        usable_fraction=0.70,
        cluster_is_running=True,
        limit_is_given=False,
        **settings,
    )
