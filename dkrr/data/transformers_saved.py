"""Fitted transformers as bytes that skops writes, checked in full before skops makes anything of them.

skops has no pickles: its bytes are a ZIP file with arrays and a tree of JSON, whose nodes name a class and the values
of its attributes, or a function. Here every node is compared with a list of our own before skops reads the tree:
classes whose work is bounded by what they hold, NumPy's functions of single numbers, and what the user gives again.
"""

import io
import json
import re
import warnings
from collections.abc import Iterator
from importlib import import_module
from typing import Any
from zipfile import ZIP_STORED, BadZipFile, ZipFile

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.exceptions import InconsistentVersionWarning
from sklearn.preprocessing import OneHotEncoder

from dkrr.checks import shown
from dkrr.errors import InputError, StoreError
from dkrr.store.format import DTYPES

CLASSES = {
    "sklearn.compose": ("ColumnTransformer",),
    "sklearn.decomposition": ("PCA", "IncrementalPCA", "TruncatedSVD"),
    "sklearn.feature_selection": ("VarianceThreshold",),
    "sklearn.frozen": ("FrozenEstimator",),
    "sklearn.impute": ("KNNImputer", "MissingIndicator", "SimpleImputer"),
    "sklearn.kernel_approximation": ("RBFSampler",),
    "sklearn.pipeline": ("FeatureUnion", "Pipeline"),
    "sklearn.preprocessing": (
        "Binarizer", "FunctionTransformer", "KBinsDiscretizer", "MaxAbsScaler", "MinMaxScaler", "Normalizer",
        "OneHotEncoder", "OrdinalEncoder", "PowerTransformer", "QuantileTransformer", "RobustScaler", "StandardScaler",
    ),
}  # fmt: skip
"""Classes of transformers that a file may name by itself, which compute from what they hold in a bounded number of
steps: not PolynomialFeatures, whose parameters alone say how many columns it makes, nor those with regular
expressions."""
PROTOCOLS = (2,)
"""Versions of skops' format whose trees are checked here; in others nodes name what they make in other places."""
_TYPES = {*(f"numpy.{name}" for name in DTYPES), *(f"builtins.{name}" for name in ("bool", "float", "int", "str"))}
_NODES = {
    "DTypeNode": {"numpy.dtype"},
    "DictNode": {"builtins.dict"},
    "JsonNode": {"builtins.str"},
    "ListNode": {"builtins.list"},
    "NdArrayNode": {"numpy.ndarray", *_TYPES},
    "SliceNode": {"builtins.slice"},
    "TupleNode": {"builtins.tuple"},
    "TypeNode": _TYPES,
}
"""Kinds of nodes of skops that are values, with their types; ObjectNode and FunctionNode are checked by name."""
GIVEN_NODES = ("ObjectNode", "FunctionNode", "TypeNode")
"""Kinds of nodes that may be what the user gives again."""
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*")


def saved_transformer(transformer: Any) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Fitted transformer as bytes, of shape (n_bytes, 1).

    Raises
    ------
    InputError
        If part of it cannot be saved, or not be found again by its name.
    """
    import skops.io

    try:
        data = skops.io.dumps(transformer)
    except (TypeError, ValueError, AttributeError, RecursionError) as error:
        raise InputError(
            f"the transformer cannot be saved: {error}; expected one of numbers, text and arrays: use another, or "
            f"apply it before the fit"
        ) from error
    for node in _nodes(_schema(data)):
        name = _full_name(node)
        if not _is_known(node) and (node["__loader__"] not in GIVEN_NODES or not _is_found(name)):
            raise InputError(
                f"the transformer cannot be saved: it has {name}, which a file cannot hold, nor be found by its name; "
                f"expected numbers, text, arrays, and classes and functions at the top level of a module"
            )
    try:
        _check_nodes(list(_nodes(_schema(data))), len(data))
    except StoreError as error:
        raise InputError(f"the transformer cannot be saved: {error}") from error
    return np.frombuffer(data, np.uint8)[:, None]


def loaded_transformer(data: bytes, given: Any) -> Any:
    """Fitted transformer of bytes that anyone may have written; what it names is looked up, or given by the user.

    Parameters
    ----------
    data : bytes
    given : transformer, class, function, or list of such, optional
        What the user gives again.

    Raises
    ------
    InputError
        If it names a class or a function that is not given.
    StoreError
        If the bytes are not what `saved_transformer` returns.
    """
    import skops.io

    known = given_names(given)
    try:
        schema = _schema(data)
        nodes = list(_nodes(schema))
        missing = {_full_name(n) for n in nodes if not _is_known(n) and n["__loader__"] in GIVEN_NODES} - known
        if missing:
            raise InputError(
                f"transformer is {shown(given)}, and that of the model has {min(missing)!r}, which a file cannot hold; "
                f"expected the transformer that fit was given, or a list of {sorted(missing)}"
            )
        _check_nodes(nodes, len(data))
        names = sorted({_full_name(node) for node in nodes})
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", InconsistentVersionWarning)  # said for the model as a whole
            return skops.io.loads(data, trusted=names)
    except (InputError, StoreError):
        raise
    except (
        BadZipFile, LookupError, TypeError, ValueError, AttributeError, ArithmeticError, MemoryError, RecursionError,
        NotImplementedError, ImportError, OSError, EOFError,
    ) as error:  # fmt: skip
        raise StoreError(f"its transformer is damaged: {error!r}") from error


def given_names(given: Any) -> set[str]:
    """Names of the classes and functions of what a user gives to `load` as transformer."""
    found, pending, seen = set[str](), [given], 0
    while pending and seen < 10_000:
        value, seen = pending.pop(), seen + 1
        if isinstance(value, BaseEstimator) and not isinstance(value, type):
            pending += [type(value), *value.get_params(deep=False).values()]
        elif isinstance(value, list | tuple):
            pending += value
        elif isinstance(value, dict):
            pending += value.values()
        elif callable(value):
            named = value if hasattr(value, "__qualname__") or isinstance(value, np.ufunc) else type(value)
            found.add(f"{getattr(named, '__module__', None) or 'numpy'}.{named.__name__}")
    return found


def _schema(data: bytes) -> Any:
    """Tree of a file of skops, whose parts are stored as they are and read once.

    Raises
    ------
    StoreError
        If they are compressed, or overlap: they would be larger than the file.
    """
    with ZipFile(io.BytesIO(data)) as file:
        parts = file.infolist()
        names = [part.filename for part in parts]
        if (
            any(part.compress_type != ZIP_STORED for part in parts)
            or sum(part.file_size for part in parts) > len(data)
            or len(set(names)) < len(names)
        ):
            raise StoreError("its transformer is damaged: parts of its file are larger than the file")
        schema = json.loads(file.read("schema.json"))
    if type(protocol := schema.get("protocol")) is not int or protocol not in PROTOCOLS:
        raise StoreError(f"its transformer is damaged: skops wrote it in version {shown(protocol)} of its format")
    return schema


def _nodes(tree: Any) -> Iterator[dict[str, Any]]:
    """All nodes of a tree of skops."""
    pending = [tree]
    while pending:
        value = pending.pop()
        if isinstance(value, dict):
            if "__loader__" in value or "__class__" in value or "__id__" in value:
                yield {"__loader__": None, **value}
            pending += value.values()
        elif isinstance(value, list):
            pending += value


def _full_name(node: dict[str, Any]) -> str:
    return f"{node.get('__module__')}.{node.get('__class__')}"


def _is_known(node: dict[str, Any]) -> bool:
    """Whether a node is a value, or of a class or function that a file may name by itself."""
    kind, name = node["__loader__"], _full_name(node)
    if kind == "ObjectNode":
        return name in _class_names()
    if kind == "FunctionNode":
        function = getattr(np, str(node.get("__class__")), None)
        return node.get("__module__") in ("numpy", "numpy._core._multiarray_umath") and isinstance(function, np.ufunc)
    return kind in _NODES and name in _NODES[kind]


def _class_names() -> set[str]:
    found = (getattr(import_module(module), name) for module, names in CLASSES.items() for name in names)
    return {f"{kind.__module__}.{kind.__name__}" for kind in found}


def _is_found(name: str) -> bool:
    return _NAME.fullmatch(name) is not None and not name.startswith("None.")


def _check_nodes(nodes: list[dict[str, Any]], n_bytes: int) -> None:
    """Refuse nodes that `saved_transformer` does not write, or that stand for more than the file holds.

    Raises
    ------
    StoreError
        Naming one.
    """
    first: dict[Any, dict[str, Any]] = {}
    for node in nodes:
        kind, name, number = node["__loader__"], _full_name(node), node.get("__id__")
        if not _is_known(node) and kind not in GIVEN_NODES:
            raise StoreError(f"its transformer is damaged: it has a {shown(kind)} of {shown(name)}")
        # A tree that says the same twice says it in full: a number for it would make a small file a large tree.
        if type(number) is not int or _content(first.setdefault(number, node)) != _content(node):
            raise StoreError(f"its transformer is damaged: {shown(name)} has the number of another node")
        if "file" in node and node["file"] != f"{number}.npy":
            raise StoreError(f"its transformer is damaged: {shown(name)} is in the file {shown(node['file'])}")
        if kind == "ObjectNode" and _is_known(node):
            _check_attributes(node, name, n_bytes)


def _check_attributes(node: dict[str, Any], name: str, n_bytes: int) -> None:
    """Refuse attributes that hide methods, and numbers of columns that are only claimed.

    Raises
    ------
    StoreError
        Naming the class.
    """
    kind = getattr(import_module(node["__module__"]), node["__class__"])
    hidden = [key for key in node["content"]["content"] if key.startswith("__") or callable(getattr(kind, key, None))]
    if hidden:
        raise StoreError(f"its transformer is damaged: {name} has the attribute {shown(hidden[0])}")
    lists = [n["content"] for n in _nodes(node) if n["__loader__"] == "ListNode"] if kind is OneHotEncoder else []
    if any(_is_large(value, n_bytes) for values in lists for value in values):
        raise StoreError(f"its transformer is damaged: {name} has a number larger than the file holds values")


def _content(value: Any) -> Any:
    """What a node says, without the numbers of the nodes in it and the names of their files."""
    if isinstance(value, dict):
        return {name: _content(inner) for name, inner in value.items() if name not in ("__id__", "file")}
    return [_content(inner) for inner in value] if isinstance(value, list) else value


def _is_large(node: Any, limit: int) -> bool:
    """Whether a node is a whole number beyond a limit."""
    if not isinstance(node, dict) or node.get("__loader__") != "JsonNode":
        return False
    value = json.loads(node["content"])
    return isinstance(value, int) and abs(value) > limit
