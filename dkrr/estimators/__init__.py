"""Estimators with scikit-learn's interface."""

from dkrr.estimators.kernel_ridge import KernelRidge

__all__ = ["KernelRidge"]
