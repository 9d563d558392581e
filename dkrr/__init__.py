"""Exact kernel ridge and kernel logistic regression out of core and distributed.

>>> import numpy as np, dkrr
>>> X = np.linspace(-3, 3, 50)[:, None]
>>> model = dkrr.KernelRidge(alpha=1e-3, kernel="rbf", gamma=1.0).fit(X, np.sin(X[:, 0]))
>>> bool(abs(model.predict([[1.0]])[0] - np.sin(1.0)) < 1e-3)
True
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from dkrr import config as config

if TYPE_CHECKING:
    from dkrr.cli.report import report
    from dkrr.data import Table, open_table
    from dkrr.estimators import KernelLogisticRegression, KernelLogisticRegressionCV, KernelRidge, KernelRidgeCV
    from dkrr.estimators.inspection import status, verify
    from dkrr.estimators.saving import load, save
    from dkrr.gram_matrix import gram
    from dkrr.machine import calibrate
    from dkrr.plans import plan
    from dkrr.predictions_out import predict_to

__version__ = "0.1.0"

# Imported when first used: a worker process that forms tiles needs neither scikit-learn nor the estimators.
_HOMES = {
    "calibrate": "dkrr.machine",
    "KernelLogisticRegression": "dkrr.estimators",
    "KernelLogisticRegressionCV": "dkrr.estimators",
    "KernelRidge": "dkrr.estimators",
    "KernelRidgeCV": "dkrr.estimators",
    "gram": "dkrr.gram_matrix",  # not dkrr.gram: an imported submodule would take the function's name
    "Table": "dkrr.data",
    "load": "dkrr.estimators.saving",
    "open_table": "dkrr.data",
    "plan": "dkrr.plans",
    "predict_to": "dkrr.predictions_out",
    "report": "dkrr.cli.report",  # not dkrr.report, as above
    "save": "dkrr.estimators.saving",
    "status": "dkrr.estimators.inspection",
    "verify": "dkrr.estimators.inspection",
}

__all__ = [
    "KernelLogisticRegression",
    "KernelLogisticRegressionCV",
    "KernelRidge",
    "KernelRidgeCV",
    "Table",
    "__version__",
    "calibrate",
    "gram",
    "load",
    "open_table",
    "plan",
    "predict_to",
    "report",
    "save",
    "status",
    "verify",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    if name in ("cli", "errors", "features", "kernels", "planning", "solvers"):
        return import_module(f"dkrr.{name}")
    raise AttributeError(f"module 'dkrr' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
