"""Fitted transformers as values of JSON and arrays, and made from these again: no code, no pickle.

A description names classes, and holds their parameters and fitted attributes, which must be plain data. Of the classes
that it names only those of `CLASSES` are imported, which compute what they return from such data in a bounded number of
steps; others, and functions, must be given again by the user.
"""

import re
from collections import UserList
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from importlib import import_module
from math import comb, isfinite
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator

from dkrr.errors import InputError, InputTypeError
from dkrr.kernels.custom import qualified_name
from dkrr.tiles.shards import DTYPES
from dkrr.values import shown

CLASSES = {
    "sklearn.compose": ("ColumnTransformer",),
    "sklearn.decomposition": ("PCA", "IncrementalPCA", "TruncatedSVD"),
    "sklearn.feature_selection": ("VarianceThreshold",),
    "sklearn.impute": ("KNNImputer", "MissingIndicator", "SimpleImputer"),
    "sklearn.kernel_approximation": ("RBFSampler",),
    "sklearn.pipeline": ("FeatureUnion", "Pipeline"),
    "sklearn.preprocessing": (
        "Binarizer", "FunctionTransformer", "KBinsDiscretizer", "MaxAbsScaler", "MinMaxScaler", "Normalizer",
        "OneHotEncoder", "OrdinalEncoder", "PolynomialFeatures", "PowerTransformer", "QuantileTransformer",
        "RobustScaler", "StandardScaler",
    ),
}  # fmt: skip
"""Classes that a description may name by itself."""
NOT_KEPT = ("n_jobs", "verbose", "memory")
"""Parameters that say how a fit is done, not what it is; a description has none of them."""
NOT_STATE = ("_metadata_request",)
MAX_DEPTH = 32
MAX_JSON_ITEMS = 256
"""Larger arrays of numbers are arrays of the store."""
MAX_FEATURES = 10**6
"""Most columns that PolynomialFeatures may make: its parameters alone say how many."""
TYPES: dict[str, type] = {
    **{name: np.dtype(name).type for name in DTYPES},
    **{kind.__name__: kind for kind in (float, int, str, object)},
}
"""Types that parameters name, such as the dtype of OneHotEncoder."""
_NAME = re.compile(r"(?!__)[A-Za-z_][A-Za-z0-9_]*")


def described(transformer: Any) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """Description of a fitted transformer, and the arrays that it refers to, by name.

    Raises
    ------
    InputError
        If part of it is neither plain data nor a transformer; the message names the attribute.
    """
    writer = _Writer()
    return writer.estimator(transformer, type(transformer).__name__), writer.arrays


class _Writer:
    def __init__(self) -> None:
        self.arrays: dict[str, NDArray[Any]] = {}

    def estimator(self, value: Any, where: str) -> dict[str, Any]:
        parameters = {k: v for k, v in value.get_params(deep=False).items() if k not in NOT_KEPT}
        if "transformers" in parameters and hasattr(value, "_columns"):  # a selector of columns is a function
            parameters["transformers"] = [
                (*both, columns if callable(selected) else selected)
                for (*both, selected), columns in zip(parameters["transformers"], value._columns, strict=True)
            ]
        state = {k: v for k, v in vars(value).items() if k not in (*value.get_params(deep=False), *NOT_STATE)}
        return {
            "class": public_name(type(value)),
            "parameters": {k: self.value(v, f"{where}.{k}") for k, v in parameters.items()},
            "fitted": {k: self.value(v, f"{where}.{k}") for k, v in state.items()},
        }

    def value(self, value: Any, where: str) -> Any:  # noqa: C901 - one branch for each kind of value
        if value is None or isinstance(value, bool | str) or type(value) is int:
            return value
        if type(value) is float:
            return value if isfinite(value) else {"float": repr(value)}
        if isinstance(value, np.generic) and value.dtype.kind in "biufU":
            return {"number": [value.dtype.name if value.dtype.kind != "U" else "str", self.value(value.item(), where)]}
        if isinstance(value, np.ndarray):
            return self.array(value, where)
        if isinstance(value, UserList):  # scikit-learn 1.6 has one for the rest of the columns, and warns of its items
            value = value.data
        if type(value) is list:
            return [self.value(item, f"{where}[{k}]") for k, item in enumerate(value)]
        if type(value) is tuple:
            return {"tuple": [self.value(item, f"{where}[{k}]") for k, item in enumerate(value)]}
        if isinstance(value, Mapping):
            return {"dict": [[self.value(k, where), self.value(v, f"{where}[{k!r}]")] for k, v in value.items()]}
        if isinstance(value, slice):
            return {"slice": [self.value(v, where) for v in (value.start, value.stop, value.step)]}
        if isinstance(value, np.dtype) and value.name in (*DTYPES, "object"):
            return {"dtype": value.name}
        if isinstance(value, type) and (names := [name for name, kind in TYPES.items() if kind is value]):
            return {"type": names[0]}
        name = str(getattr(value, "__name__", ""))
        if isinstance(value, np.ufunc) and getattr(np, name, None) is value:
            return {"ufunc": name}
        if isinstance(value, BaseEstimator):
            return {"transformer": self.estimator(value, f"{where}.{type(value).__name__}")}
        if (
            callable(value)
            and not isinstance(value, type)
            and (hasattr(value, "__qualname__") or type(value) is partial)
        ):
            return {"given": qualified_name(value)}
        raise InputError(
            f"the transformer cannot be saved: {where} is {shown(value)} ({type(value).__qualname__}); expected "
            f"numbers, text, arrays, and lists or transformers of these: use another transformer, or apply it before "
            f"the fit"
        )

    def array(self, value: NDArray[Any], where: str) -> dict[str, Any]:
        shape = list(value.shape)
        if value.dtype.name in DTYPES:
            if value.size <= MAX_JSON_ITEMS:
                items = [self.value(item, where) for item in value.ravel().tolist()]
                return {"array": items, "dtype": value.dtype.name, "shape": shape}
            name = str(len(self.arrays))
            self.arrays[name] = np.ascontiguousarray(value).reshape(-1, 1)
            return {"stored": name, "shape": shape}
        if value.dtype.kind not in "OU":
            raise InputError(
                f"the transformer cannot be saved: {where} is an array of {value.dtype}; expected numbers or text: "
                f"convert that column of X"
            )
        items = [self.value(item, f"{where}[{k}]") for k, item in enumerate(value.ravel().tolist())]
        return {"array": items, "dtype": "object" if value.dtype.kind == "O" else "str", "shape": shape}


def public_name(kind: type) -> str:
    """Name by which a description refers to a class: the public one where scikit-learn has it."""
    for module, names in CLASSES.items():
        if kind.__name__ in names and getattr(import_module(module), kind.__name__) is kind:
            return f"{module}.{kind.__name__}"
    return qualified_name(kind)


def given_names(description: Any) -> Iterator[str]:
    """Names of the classes and functions in a description that the user must give again."""
    if isinstance(description, dict):
        if isinstance(description.get("given"), str):
            yield description["given"]
        name = description.get("class")
        if isinstance(name, str) and not is_known(name):
            yield name
        description = list(description.values())
    if isinstance(description, list):
        for value in description:
            yield from given_names(value)


def is_known(name: str) -> bool:
    """Whether a description may name this class by itself."""
    module, _, kind = name.rpartition(".")
    return kind in CLASSES.get(module, ())


def named_parts(given: Any) -> dict[str, Any]:
    """Classes and functions of what a user gives to `load` as transformer, by their names in descriptions."""
    named: dict[str, Any] = {}
    pending, seen = [given], 0
    while pending and seen < 10_000:
        value, seen = pending.pop(), seen + 1
        if isinstance(value, BaseEstimator) and not isinstance(value, type):
            named[public_name(type(value))] = type(value)
            pending += list(value.get_params(deep=False).values())
        elif isinstance(value, type):
            named[public_name(value)] = value
        elif isinstance(value, list | tuple):
            pending += value
        elif isinstance(value, dict):
            pending += value.values()
        elif callable(value):
            named[qualified_name(value)] = value
    return named


def transformer_from(description: Any, given: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> Any:
    """Fitted transformer that `described` described.

    Parameters
    ----------
    description : value of JSON
    given : mapping
        Classes and functions that the user gave again, by name (`named_parts`).
    arrays : mapping
        Arrays that it refers to.

    Raises
    ------
    InputError
        If it names a class or a function that was not given, or is not a description.
    """
    return _Reader(given, arrays).estimator(description, 0)


class _Reader:
    def __init__(self, given: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> None:
        self._given, self._arrays = given, arrays

    def estimator(self, found: Any, depth: int) -> Any:
        if not isinstance(found, dict) or set(found) != {"class", "parameters", "fitted"}:
            raise InputError(f"the description of the transformer is damaged: {shown(found)}")
        name, parameters, fitted = found["class"], found["parameters"], found["fitted"]
        if not isinstance(name, str) or not isinstance(parameters, dict) or not isinstance(fitted, dict):
            raise InputError(f"the description of the transformer is damaged: {shown(found)}")
        kind = self._class(name)
        known = set(kind._get_param_names()) - set(NOT_KEPT)
        if not set(parameters) <= known:
            raise InputError(f"{name} has the parameters {sorted(parameters)}; expected {sorted(known)}")
        made = kind(**{key: self.value(value, depth + 1) for key, value in parameters.items()})
        for key in fitted:
            if not _NAME.fullmatch(key) or key in vars(made) or _is_taken(kind, key, by_itself=is_known(name)):
                raise InputError(f"{name} has the fitted attribute {shown(key)}, which dkrr.save does not write")
        vars(made).update({key: self.value(value, depth + 1) for key, value in fitted.items()})
        _check_claims(made)
        return made

    def _class(self, name: str) -> Any:
        if is_known(name):
            module, _, kind = name.rpartition(".")
            return getattr(import_module(module), kind)
        found = self._given.get(name)
        if not isinstance(found, type) or not issubclass(found, BaseEstimator):
            raise InputError(
                f"the model has a transformer of class {name}, which a file cannot hold; expected transformer= with "
                f"it, as fit was given"
            )
        return found

    def value(self, found: Any, depth: int) -> Any:
        if depth > MAX_DEPTH:
            raise InputError(f"the description of the transformer is more than {MAX_DEPTH} levels deep")
        if found is None or isinstance(found, bool | int | float | str):
            return found
        if isinstance(found, list):
            return [self.value(item, depth + 1) for item in found]
        if isinstance(found, dict) and "shape" in found:
            return self._array(found, depth)
        if isinstance(found, dict) and len(found) == 1:
            ((kind, content),) = found.items()
            if kind in _READ:
                return _READ[kind](self, content, depth + 1)
        raise InputTypeError(f"the description of the transformer is damaged: {shown(found)}")

    def _array(self, found: dict[str, Any], depth: int) -> NDArray[Any]:
        shape = found["shape"]
        if not isinstance(shape, list) or any(type(s) is not int or s < 0 for s in shape):
            raise InputError(f"the description of the transformer is damaged: an array of shape {shown(shape)}")
        if set(found) == {"stored", "shape"}:
            return self._arrays[found["stored"]].reshape(shape)
        dtype, items = found["dtype"], [self.value(item, depth + 1) for item in found["array"]]
        if dtype == "object":
            array = np.empty(len(items), object)
            for k, item in enumerate(items):  # items may be arrays, which an assignment at once would take apart
                array[k] = item
            return array.reshape(shape)
        if dtype == "str":
            return np.array([str(item) for item in items], np.str_).reshape(shape)
        if dtype not in DTYPES:
            raise InputError(f"the description of the transformer is damaged: an array of {shown(dtype)}")
        return np.array(items, dtype).reshape(shape)

    def items(self, found: Any, depth: int) -> list[Any]:
        return [self.value(item, depth) for item in found]

    def given(self, name: Any) -> Any:
        if name not in self._given:
            raise InputError(
                f"the model has a transformer with the function {name}, which a file cannot hold; expected "
                f"transformer= with it, as fit was given"
            )
        return self._given[name]


def _float(reader: _Reader, found: Any, depth: int) -> float:  # noqa: ARG001
    if found not in ("nan", "inf", "-inf"):
        raise InputError(f"the description of the transformer is damaged: the number {shown(found)}")
    return float(found)


def _number(reader: _Reader, found: Any, depth: int) -> Any:
    name, value = found
    return np.str_(value) if name == "str" else np.dtype(_one_of(name, DTYPES)).type(reader.value(value, depth))


def _ufunc(reader: _Reader, found: Any, depth: int) -> Any:  # noqa: ARG001
    function = getattr(np, found, None) if isinstance(found, str) and _NAME.fullmatch(found) else None
    if not isinstance(function, np.ufunc):
        raise InputError(f"the description of the transformer is damaged: the function {shown(found)}")
    return function


def _one_of(found: Any, names: Any) -> Any:
    if not isinstance(found, str) or found not in names:
        raise InputError(f"the description of the transformer is damaged: the type {shown(found)}")
    return found


_READ: dict[Any, Callable[[Any, Any, int], Any]] = {
    "float": _float,
    "number": _number,
    "tuple": lambda reader, found, depth: tuple(reader.items(found, depth)),
    "dict": lambda reader, found, depth: {reader.value(key, depth): reader.value(value, depth) for key, value in found},
    "slice": lambda reader, found, depth: slice(*reader.items(found, depth)),
    "dtype": lambda _, found, __: np.dtype(_one_of(found, (*DTYPES, "object"))),
    "type": lambda _, found, __: TYPES[_one_of(found, TYPES)],
    "ufunc": _ufunc,
    "given": lambda reader, found, _: reader.given(found),
    "transformer": lambda reader, found, depth: reader.estimator(found, depth),
}
"""What makes a value of each kind, by the one key of its description."""


def _is_taken(kind: type, key: str, *, by_itself: bool) -> bool:
    """Whether an attribute would replace one of the class."""
    if not hasattr(kind, key):
        return False
    return by_itself or callable(getattr(kind, key)) or isinstance(getattr(kind, key), property)


def _check_claims(made: Any) -> None:
    """Refuse sizes that are only claimed: what a transformer allocates must follow from what the file holds."""
    claimed = getattr(made, "_n_features_outs", None)
    if claimed is not None:
        sizes = [len(categories) for categories in made.categories_]
        if len(claimed) != len(sizes) or any(not 0 <= n <= size for n, size in zip(claimed, sizes, strict=True)):
            raise InputError(f"{type(made).__name__} makes {claimed} columns of {sizes} categories")
    if hasattr(made, "_n_out_full"):
        d, degree = int(made.n_features_in_), int(made._max_degree)
        most = comb(d + degree, degree) if 0 <= degree <= 100 and 0 <= d <= MAX_FEATURES else MAX_FEATURES + 1
        if not 0 <= made.n_output_features_ <= made._n_out_full <= most <= MAX_FEATURES:
            raise InputError(f"{made} makes {made._n_out_full} columns; expected at most {MAX_FEATURES:,}")
