"""scikit-learn's own checks, all of them for one instance, and for others those that depend on the way to solve."""

from collections.abc import Iterator
from typing import Any

import pytest
from sklearn.base import BaseEstimator
from sklearn.utils.estimator_checks import estimator_checks_generator

# What is refused, the tags, parameters and clones are the same code whatever the settings are.
OF_THE_WAY = (
    "check_estimators_dtypes",
    "check_estimators_overwrite_params",
    "check_estimators_pickle",
    "check_estimator_sparse_array",
    "check_fit_idempotent",
    "check_fit2d_1feature",
    "check_fit2d_1sample",
    "check_methods_sample_order_invariance",
    "check_methods_subset_invariance",
    "check_regressor_data_not_an_array",
    "check_regressor_multioutput",
    "check_regressors_int",
    "check_regressors_train",
    "check_sample_weight",
    "check_class_weight",
    "check_classifier",
)


def every_check(first: BaseEstimator, *others: BaseEstimator) -> pytest.MarkDecorator:
    """Parametrise a test by `estimator` and `check`."""
    cases = [*_checks(first), *(case for other in others for case in _checks(other, OF_THE_WAY))]
    assert len(cases) > 50 + 15 * len(others)
    return pytest.mark.parametrize(("estimator", "check"), cases)


def _checks(estimator: BaseEstimator, names: tuple[str, ...] = ("",)) -> Iterator[Any]:
    for instance, check in estimator_checks_generator(estimator, mark="skip"):
        name = getattr(check, "func", check).__name__
        if name.startswith(names):
            yield pytest.param(instance, check, id=f"{estimator!r}-{name}".replace("\n", ""))
