"""Exact kernel ridge and kernel logistic regression out of core and distributed.

>>> import numpy as np, dkrr
>>> X = np.linspace(-3, 3, 50)[:, None]
>>> model = dkrr.KernelRidge(alpha=1e-3, kernel="rbf", gamma=1.0).fit(X, np.sin(X[:, 0]))
>>> bool(abs(model.predict([[1.0]])[0] - np.sin(1.0)) < 1e-3)
True
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from dkrr import config

if TYPE_CHECKING:
    from dkrr import errors, features, kernels, planning, solvers
    from dkrr.cli.report import report
    from dkrr.data import Table, open_table
    from dkrr.estimators import KernelLogisticRegression, KernelLogisticRegressionCV, KernelRidge, KernelRidgeCV
    from dkrr.estimators.gram_matrix import gram
    from dkrr.estimators.predict_to import predict_to
    from dkrr.estimators.saving import load, save
    from dkrr.estimators.suggest import Suggestion, suggest
    from dkrr.fitting.plans import plan
    from dkrr.machine.calibration import calibrate
    from dkrr.selection.optimum import Optimum
    from dkrr.store.status_and_damage import RunStatus, Verification, status, verify

__version__ = "0.1.0"

# Imported when first used: a worker process that forms tiles needs neither scikit-learn nor the estimators.
_MODULES = {
    "dkrr.cli.report": ("report",),  # not dkrr.report: an imported submodule would take the function's name
    "dkrr.data": ("Table", "open_table"),
    "dkrr.estimators": ("KernelLogisticRegression", "KernelLogisticRegressionCV", "KernelRidge", "KernelRidgeCV"),
    "dkrr.estimators.gram_matrix": ("gram",),
    "dkrr.selection.optimum": ("Optimum",),
    "dkrr.store.status_and_damage": ("RunStatus", "Verification", "status", "verify"),
    "dkrr.machine.calibration": ("calibrate",),
    "dkrr.estimators.saving": ("load", "save"),
    "dkrr.fitting.plans": ("plan",),
    "dkrr.estimators.predict_to": ("predict_to",),
    "dkrr.estimators.suggest": ("Suggestion", "suggest"),
}
_HOMES = {name: module for module, names in _MODULES.items() for name in names}

__all__ = [
    "KernelLogisticRegression",
    "KernelLogisticRegressionCV",
    "KernelRidge",
    "KernelRidgeCV",
    "Optimum",
    "RunStatus",
    "Suggestion",
    "Table",
    "Verification",
    "__version__",
    "calibrate",
    "config",
    "errors",
    "features",
    "gram",
    "kernels",
    "load",
    "open_table",
    "plan",
    "planning",
    "predict_to",
    "report",
    "save",
    "solvers",
    "status",
    "suggest",
    "typing",
    "verify",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    if name in __all__:
        return import_module(f"dkrr.{name}")
    raise AttributeError(f"module 'dkrr' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
