"""Parameters of immutable values by scikit-learn's names for nested ones: ``left__gamma`` is the gamma of ``left``."""

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any, Self

from dkrr.errors import InputError
from dkrr.values import shown

SEPARATOR = "__"


class Parameters:
    """Base of frozen dataclasses whose fields are parameters; kernels and feature maps derive from it."""

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Parameters by name, as scikit-learn's estimators have them.

        Parameters
        ----------
        deep : bool, default=True
            Whether to return the parameters of parts too: that of the left part of a sum as ``left__gamma``.

        Returns
        -------
        dict
        """
        own = {name: getattr(self, name) for name in self._parameter_names()}
        if not deep:
            return own
        found: dict[str, Any] = {}
        for name, value in own.items():
            found[name] = value
            if isinstance(value, Parameters):
                found |= {f"{name}{SEPARATOR}{inner}": v for inner, v in value.get_params().items()}
        return found

    def set_params(self, **params: Any) -> Self:
        """New value with other parameters; this one is immutable and does not change.

        (An estimator's `set_params` replaces its kernel by the new value, so ``kernel__gamma`` works in a grid.)

        Parameters
        ----------
        **params
            Values by the names that `get_params` returns.

        Returns
        -------
        Kernel or FeatureMap
            Of the same class.

        Raises
        ------
        InputError
            If there is no such parameter, or it cannot have this value.

        Examples
        --------
        >>> from dkrr.kernels import RBF, Linear
        >>> (RBF(gamma=1.0) + 2.0 * Linear()).set_params(left__gamma=0.1, right__scale=3.0)
        Sum(left=RBF(gamma=0.1), right=Scaled(base=Linear(), scale=3.0))
        """
        known = self.get_params(deep=False)
        changed = known | {name: value for name, value in params.items() if name in known}
        for name, nested in _nested(params).items():
            if name not in known:
                raise self._unknown(name)
            if not nested:
                continue
            part = changed[name]
            if not isinstance(part, Parameters):
                inner = next(iter(nested))
                raise InputError(
                    f"{name} is {shown(part)}, which has no parameter {inner!r}; expected a kernel or a feature map "
                    f"there: give {name} itself"
                )
            changed[name] = part.set_params(**nested)
        return type(self)(**changed) if params else self

    def __sklearn_clone__(self) -> Self:
        """Return the value itself: it is immutable, so copies may share it."""
        return self

    def _parameter_names(self) -> list[str]:
        """Fields that determine the value; a measured cost, for example, does not."""
        return [field.name for field in fields(self) if field.init and field.compare] if is_dataclass(self) else []

    def _unknown(self, name: str) -> InputError:
        known = ", ".join(map(repr, self.get_params())) or "none"
        return InputError(f"{type(self).__name__} has no parameter {name!r}; expected one of: {known}")


def _nested(params: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Parameters of parts by the name of the part; none of it for a name of the value's own."""
    found: dict[str, dict[str, Any]] = {}
    for key, value in params.items():
        name, separator, inner = key.partition(SEPARATOR)
        parts = found.setdefault(name, {})
        if separator:
            parts[inner] = value
    return found
