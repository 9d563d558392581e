"""Estimators with scikit-learn's interface."""

from dkrr.estimators.kernel_logistic import KernelLogisticRegression
from dkrr.estimators.kernel_ridge import KernelRidge

__all__ = ["KernelLogisticRegression", "KernelRidge"]
