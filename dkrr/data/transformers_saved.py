"""Fitted transformers as bytes that skops writes, checked in full before skops makes anything of them.

skops has no pickles: its bytes are a ZIP file with arrays and a tree of JSON, whose nodes name a class and the values
of its attributes, or a function. Here every node is compared with dkrr's list before skops reads the tree:
classes whose work is bounded by what they hold, NumPy's functions of single numbers, and what the user gives again.
"""

import io
import json
import warnings
from collections.abc import Iterator
from importlib import import_module
from math import prod
from typing import Any
from zipfile import ZIP_STORED, BadZipFile, ZipFile

import numpy as np
from sklearn.exceptions import InconsistentVersionWarning
from sklearn.frozen import FrozenEstimator
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import OneHotEncoder

from dkrr.checks import shown
from dkrr.data.array_files import checked_dtype
from dkrr.errors import InputError, StoreError
from dkrr.store.format import STORED_DTYPES

SAFE_CLASSES = {
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
"""Classes of transformers that a file may name without the user's consent, which compute from what they hold in a
bounded number of steps: not PolynomialFeatures, whose parameters alone say how many columns it makes, nor those with
regular expressions."""
SAFE_TYPES = [getattr(import_module(module), name) for module, names in SAFE_CLASSES.items() for name in names]
"""The classes themselves."""
PROTOCOLS = (2,)
"""Versions of skops' format whose trees are checked here; in others nodes name what they make in other places."""
_TYPES = {
    *(f"numpy.{name}" for name in STORED_DTYPES),
    *(f"builtins.{name}" for name in ("bool", "float", "int", "str")),
}
_DTYPES = {"null", *(f'"{name}"' for name in STORED_DTYPES)}
_UFUNCS = [name for name, value in vars(np).items() if isinstance(value, np.ufunc)]
SCHEMA = "schema.json"
"""Part of a file with its tree."""
NODES = {
    "DTypeNode": {"numpy.dtype"},
    "DictNode": {"builtins.dict"},
    "FunctionNode": {f"{module}.{name}" for module in ("numpy", "numpy._core._multiarray_umath") for name in _UFUNCS},
    "JsonNode": {"builtins.str"},
    "ListNode": {"builtins.list"},
    "NdArrayNode": {"numpy.ndarray", *_TYPES},
    "ObjectNode": {f"{kind.__module__}.{kind.__name__}" for kind in SAFE_TYPES},
    "SliceNode": {"builtins.slice"},
    "TupleNode": {"builtins.tuple"},
    "TypeNode": _TYPES,
}
"""Kinds of nodes of skops, with the names that a file may have in them without the user's consent."""
GIVEN_NODES = ("ObjectNode", "FunctionNode", "TypeNode")
"""Kinds of nodes that may be what the user gives again."""
MAX_WIDTH = 4096
"""Most bytes of a value of an array: encoders bring every row to the width of their categories."""


def saved_transformer(transformer: Any) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Fitted transformer as bytes, of shape (n_bytes, 1), which were found to make it again.

    Raises
    ------
    InputError
        If part of it cannot be saved, or not be found again by its name.
    """
    import skops.io

    try:
        data = skops.io.dumps(transformer)
        tree, nodes = _checked(data)
        if any(node.get("__class__") == "NAType" for node in nodes):  # which skops writes and cannot read
            raise StoreError("it has pandas.NA, for which missing_values=numpy.nan stands in columns of numbers")
        _made(data, tree, nodes)
    except Exception as error:  # of skops, or of a class that is made again
        raise InputError(
            f"the transformer cannot be saved: {error}; expected one of numbers, text, arrays, and classes and "
            f"functions at the top level of a module: use another, or apply it before the fit"
        ) from error
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
    try:
        tree, nodes = _checked(data)
        missing = {_name(node) for node in nodes if not _is_known(node)} - _names(given)
        if not missing:
            return _made(data, tree, nodes)
    except Exception as error:  # of skops, zipfile, json or NumPy, whatever the bytes are
        # What Python says of values of other types says nothing to a user.
        is_said = isinstance(error, StoreError | ValueError | BadZipFile)
        what = str(error) if is_said else f"it is not a tree that skops writes ({type(error).__name__})"
        raise StoreError(f"its transformer is damaged: {what}") from error
    raise InputError(
        f"transformer is {shown(given)}, and that of the model has {min(missing)!r}, which a file cannot hold; "
        f"expected the transformer that fit was given, or a list of {sorted(missing)}"
    )


def _names(given: Any) -> set[str]:
    """Names of the classes and functions of what a user gives to `load` as transformer."""
    import skops.io

    try:
        return {_name(node) for node in _nodes(_tree(skops.io.dumps(given))) if node["__loader__"] in GIVEN_NODES}
    except Exception:  # it is not what fit was given, since that was saved
        return set()


def _made(data: bytes, tree: Any, nodes: list[dict[str, Any]]) -> Any:
    """Transformer of a checked tree; raises StoreError if it repeats columns more often than the file has bytes.

    It has no ``n_jobs``: how many processes there are is a matter of the machine, as the store of a fit is.
    """
    import skops.io

    known = (node["content"]["content"] for node in nodes if node["__loader__"] == "ObjectNode" and _is_known(node))
    jobs = [attributes["n_jobs"] for attributes in known if "n_jobs" in attributes]
    if any(node["content"] != "null" for node in jobs):
        for node in jobs:
            node["content"] = "null"
        data = _with_tree(data, tree)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", InconsistentVersionWarning)  # said for the model as a whole
        found = skops.io.loads(data, trusted=sorted({_name(node) for node in nodes}))
    if _copies(found) > len(data):
        raise StoreError("its FeatureUnions and ColumnTransformers repeat columns more often than the file has bytes")
    return found


def _with_tree(data: bytes, tree: Any) -> bytes:
    """File of skops with another tree."""
    buffer = io.BytesIO()
    with ZipFile(io.BytesIO(data)) as source, ZipFile(buffer, "w") as target:
        for name in source.namelist():
            target.writestr(name, json.dumps(tree) if name == SCHEMA else source.read(name))
    return buffer.getvalue()


def _copies(transformer: Any) -> int:
    """Times that a transformer may repeat a column: the sum over its parts, the product over its steps."""
    if isinstance(transformer, Pipeline):
        return prod(_copies(step) for _, step in transformer.steps)
    if isinstance(transformer, FrozenEstimator):
        return _copies(transformer.estimator)
    of_union = getattr(transformer, "transformer_list", ())
    return sum(_copies(part[1]) for part in getattr(transformer, "transformers_", of_union)) or 1


def _tree(data: bytes) -> Any:
    """Tree of a file of skops, whose parts are stored as they are: compressed or overlapping ones would be larger."""
    with ZipFile(io.BytesIO(data)) as file:
        parts = file.infolist()
        if any(part.compress_type != ZIP_STORED for part in parts) or sum(p.file_size for p in parts) > len(data):
            raise StoreError("parts of its file are larger than the file")
        tree = json.loads(file.read(SCHEMA))
    if type(protocol := tree.get("protocol")) is not int or protocol not in PROTOCOLS:
        raise StoreError(f"skops wrote it in version {shown(protocol)} of its format")
    return tree


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


def _name(node: dict[str, Any]) -> str:
    return f"{node.get('__module__')}.{node.get('__class__')}"


def _is_known(node: dict[str, Any]) -> bool:
    """Whether a file may have a node without the user's consent."""
    return _name(node) in NODES.get(node["__loader__"], ())


def _checked(data: bytes) -> tuple[Any, list[dict[str, Any]]]:
    """Tree of a file of skops, and its nodes.

    Raises
    ------
    StoreError
        At one that `saved_transformer` does not write, or that stands for more than the file holds.
    Exception
        Of any kind, where the bytes are not a tree of skops.
    """
    tree, first, dtypes = _tree(data), dict[int, Any](), _dtypes(data)
    nodes = list(_nodes(tree))
    for node in nodes:
        kind, name, number = node["__loader__"], _name(node), node.get("__id__")
        if not _is_known(node) and kind not in GIVEN_NODES:
            raise StoreError(f"it has a {shown(kind)} of {shown(name)}")
        # A tree that says the same twice says it in full: a number for it would make a small file a large tree.
        if type(number) is not int or _content(first.setdefault(number, node)) != _content(node):
            raise StoreError(f"{shown(name)} has the number of another node")
        if "file" in node and node["file"] != f"{number}.npy":
            raise StoreError(f"{shown(name)} is in the file {shown(node['file'])}")
        if kind == "ObjectNode" and _is_known(node):
            _check_attributes(node["content"]["content"], name, len(data), dtypes)
    return tree, nodes


def _dtypes(data: bytes) -> dict[str, np.dtype[Any]]:
    """Types of the arrays in a file of skops by their names; raises as `_checked` if they claim more than is there."""
    found = dict[str, np.dtype[Any]]()
    with ZipFile(io.BytesIO(data)) as file:
        for part in file.infolist():
            if part.filename != SCHEMA:
                with file.open(part) as stream:
                    found[part.filename] = dtype = checked_dtype(stream, part.file_size)
                if dtype.kind not in "biufcmMUS" or dtype.itemsize > MAX_WIDTH:
                    raise StoreError(
                        f"it has an array of {shown(dtype)}; expected numbers, or text of at most {MAX_WIDTH:,} bytes: "
                        f"longer ones as objects"
                    )
    return found


def _check_attributes(attributes: dict[str, Any], name: str, n_bytes: int, dtypes: dict[str, np.dtype[Any]]) -> None:
    """Refuse attributes that hide methods, name a place, or claim columns or bytes; raises as `_checked`."""
    kind = next(kind for kind in SAFE_TYPES if name == f"{kind.__module__}.{kind.__name__}")
    for key, node in attributes.items():
        if key.startswith("__") or callable(getattr(kind, key, None)):
            raise StoreError(f"{name} has the attribute {shown(key)}")
        if key == "memory" and node["content"] != "null":
            raise StoreError(
                f"{name} has memory=..., a cache folder, which a saved model cannot name; expected memory=None"
            )
        if key == "dtype" and node["__loader__"] != "TypeNode":
            is_array = node["__loader__"] == "DTypeNode"  # without values
            found = f'"{dtypes[node["content"]["file"]].name}"' if is_array else node["content"]
            if found not in _DTYPES:
                raise StoreError(f"{name} has dtype={shown(found)}; expected one of {', '.join(STORED_DTYPES)}")
        is_counts = kind is OneHotEncoder and key in COUNTS
        if is_counts and not 0 <= sum(json.loads(number["content"]) for number in node["content"]) <= n_bytes:
            raise StoreError(f"{name} has a number larger than the file holds values")


COUNTS = {key for key, value in vars(OneHotEncoder().fit([["a"]])).items() if value == [1]}
"""Attributes in which an encoder has its numbers of columns, which it does not compare with its categories."""


def _content(value: Any) -> Any:
    """Content of a node, without the numbers of the nodes in it and the names of their files."""
    if isinstance(value, dict):
        return {name: _content(inner) for name, inner in value.items() if name not in ("__id__", "file")}
    return [_content(inner) for inner in value] if isinstance(value, list) else value
