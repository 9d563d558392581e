"""Estimators with scikit-learn's interface."""

from dkrr.estimators.kernel_logistic import KernelLogisticRegression
from dkrr.estimators.kernel_logistic_cv import KernelLogisticRegressionCV
from dkrr.estimators.kernel_ridge import KernelRidge
from dkrr.estimators.kernel_ridge_cv import KernelRidgeCV

__all__ = ["KernelLogisticRegression", "KernelLogisticRegressionCV", "KernelRidge", "KernelRidgeCV"]
