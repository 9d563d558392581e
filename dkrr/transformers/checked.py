"""The `transformer` of an estimator, as a user gives it."""

from typing import Any

from sklearn.base import BaseEstimator, clone
from sklearn.preprocessing import StandardScaler
from sklearn.utils import get_tags

from dkrr.errors import InputError, InputTypeError
from dkrr.kernels import Kernel
from dkrr.kernels.columns import learns
from dkrr.transformers.learning import ColumnSteps, is_fitted
from dkrr.values import shown

STANDARDIZE = "standardize"
EXPECTED = f"None, {STANDARDIZE!r}, or a transformer of scikit-learn such as StandardScaler()"


def refuse_kernel(transformer: Any, kernel: Kernel) -> None:
    """Refuse a transformer in front of a kernel that does not take rows of numbers; raises InputError."""
    if kernel.is_precomputed or learns(kernel):
        taken = "a Gram matrix" if kernel.is_precomputed else "documents, graphs or tables"
        raise InputError(
            f"transformer is {shown(transformer)} with kernel={kernel!r}, which takes {taken} as X; expected a kernel "
            f"of rows of numbers, or transformer=None"
        )


def as_transformer(transformer: Any) -> Any:
    """Fitted transformer as it is, or an unfitted copy of an unfitted one; None without one.

    Raises
    ------
    InputError
        If it is not one, or learns from the targets.
    """
    if transformer is None:
        return None
    if isinstance(transformer, str):
        if transformer != STANDARDIZE:
            raise InputError(f"transformer is {shown(transformer)}; expected {EXPECTED}")
        return StandardScaler()
    if isinstance(transformer, ColumnSteps):
        return transformer
    if isinstance(transformer, type):
        raise InputTypeError(
            f"transformer is the class {transformer.__name__}; expected {EXPECTED}: write {transformer.__name__}()"
        )
    if not isinstance(transformer, BaseEstimator) or not hasattr(transformer, "transform"):
        raise InputTypeError(f"transformer is {shown(transformer)}; expected {EXPECTED}")
    if get_tags(transformer).target_tags.required:
        raise InputError(
            f"transformer is {shown(transformer)}, which learns from the targets; expected one of X alone: put it "
            f"before the estimator in a sklearn.pipeline.Pipeline"
        )
    return transformer if is_fitted(transformer) else clone(transformer)
