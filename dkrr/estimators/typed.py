"""Types of the methods inherited from scikit-learn, which has none: with them a misspelt argument is an error."""

from typing import TYPE_CHECKING, Any, Self

from numpy.typing import NDArray

if TYPE_CHECKING:

    class BaseEstimator:
        """Base of all estimators."""

        n_features_in_: int
        feature_names_in_: NDArray[Any]

        def get_params(self, deep: bool = True) -> dict[str, Any]:
            """Parameters by name."""

        def set_params(self, **params: Any) -> Self:
            """Set parameters."""

        def set_fit_request(self, **requests: Any) -> Self:
            """Ask for arguments of `fit` from what calls it; with those of other methods."""

        def set_predict_request(self, **requests: Any) -> Self: ...

        def set_score_request(self, **requests: Any) -> Self: ...

        def get_metadata_routing(self) -> Any: ...

        def __sklearn_tags__(self) -> Any: ...

        def _repr_html_inner(self) -> str: ...

        def _repr_mimebundle_(self, **kwargs: Any) -> dict[str, str]: ...

    class MultiOutputMixin:
        """Mark of estimators of several targets."""

    class RegressorMixin:
        """Mark of regressors."""

    class ClassifierMixin:
        """Mark of classifiers."""

else:
    from sklearn.base import BaseEstimator, ClassifierMixin, MultiOutputMixin, RegressorMixin

__all__ = ["BaseEstimator", "ClassifierMixin", "MultiOutputMixin", "RegressorMixin"]
