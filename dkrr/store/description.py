"""Descriptions of runs and models: the version that wrote them, and a schema of every entry."""

import re
from collections.abc import Callable, Iterator, Mapping
from math import inf
from typing import Any

import numpy as np

from dkrr.checks import MAX_SHOWN, MAX_WHOLE, shown
from dkrr.errors import StoreError, UnreachableStoreError, WrongStoreError
from dkrr.store.chunks import ChunkedArray
from dkrr.store.format import STORED_DTYPES, read_group, read_json
from dkrr.store.paths import NAMES
from dkrr.store.places import Place, place_at, refuse_links
from dkrr.store.replacing import arrays_below

FORMAT_VERSION = 1
"""Format of the stores of runs, and of models: a new one comes with a minor version, which still reads the last one."""

SPARSE_CHUNK_ENTRIES = 2**20
"""Entries of a chunk of sparse rows."""

COEFFICIENTS = ("coef", "dual_coef", "intercept", "intercept_shift")
"""Names of the arrays of the fitted function."""
ROWS, FEATURES, TRANSFORMER = "rows", "features-", "transformer"
"""Names of the training rows and of the bytes of a transformer; beginning of the names of the arrays of feature maps,
before their checksums."""
TARGETS, WEIGHTS, FOLDS = "targets", "weights", "folds"
"""Names of what uncertainties are computed from: y, sample weights, and the fold of each row in a search."""
KEPT_ARRAYS = {"primal": ("factor", "coef"), "dual": ("factor", "diagonal")}
"""Beginnings of the names of the arrays of a Gaussian process, before the number of its λ, by its form."""
MORE_KEPT_ARRAYS = ("centre", "sums")
"""Beginnings of the names of optional arrays of a Gaussian process: means of features that the fit subtracts, and sums
over the rows of a grid."""
FOLD_ARRAYS = ("fold_coef", "fold_constants", "fold_errors")
"""Beginnings of the names of the arrays of the models that leave out folds: coefficients and constants of their
columns, and errors of the rows."""

COMMAND = "command"
"""Name of the digest of the options and inputs of the command that made a model or predictions: others have none."""

REGRESSION, CLASSIFICATION = "KernelRidge", "KernelLogisticRegression"
FOUND = ("best_score", "best_index", "alpha", "n_splits")
"""Attributes of a search that are numbers, or have one for each target."""
COPY = re.compile("rows(-[0-9a-z]+)?")
"""Name of the copy of X in a run."""

TEXT, ID, CHECKSUM = re.compile(".*", re.DOTALL), re.compile("[0-9a-f]{32}"), re.compile("[0-9a-f]{64}")
VERSION = re.compile(r"[0-9][0-9a-z.+]{0,30}")
SIZE, COUNT = range(MAX_WHOLE + 1), range(1, MAX_WHOLE + 1)


def matches(value: Any, schema: Any) -> bool:
    """Whether a value of JSON matches a schema.

    A schema is a type, a range of whole numbers, a pattern of texts, a predicate, or the value itself. A tuple has
    alternatives, of which one suffices; a list or a dictionary has the schema of each item, and no other items.
    """
    match schema:
        case tuple():
            return any(matches(value, one) for one in schema)
        case list():
            return isinstance(value, list) and len(value) == len(schema) and all(map(matches, value, schema))
        case dict():
            is_alike = isinstance(value, dict) and value.keys() == schema.keys()
            return is_alike and all(matches(value[name], one) for name, one in schema.items())
        case range():
            return type(value) is int and value in schema
        case re.Pattern():
            return isinstance(value, str) and schema.fullmatch(value) is not None
        case type():
            return type(value) is schema
        case _ if callable(schema):
            return bool(schema(value))
    return value is schema or (isinstance(value, str) and value == schema)


def list_of(schema: Any, minimum: int = 0) -> Callable[[Any], bool]:
    """Schema of a list of any number of items."""
    return lambda value: (
        isinstance(value, list) and len(value) >= minimum and all(matches(one, schema) for one in value)
    )


def dict_of(schema: Any, names: re.Pattern[str] = TEXT) -> Callable[[Any], bool]:
    """Schema of a dictionary with any names."""
    return lambda value: (
        isinstance(value, dict) and all(matches(k, names) and matches(v, schema) for k, v in value.items())
    )


def is_number(value: Any) -> bool:
    """Schema of a number: NaN and infinity, too, which a fit that failed may have."""
    return type(value) is float or (type(value) is int and abs(value) <= MAX_WHOLE)


def is_amount(value: Any) -> bool:
    """Schema of a finite number of at least 0."""
    return is_number(value) and 0 <= value < inf


def parts_in(value: Any) -> Iterator[dict[str, Any]]:
    """All dictionaries in a value of JSON, at any depth."""
    if isinstance(value, dict):
        yield value
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from parts_in(inner)


_ROWS = {"shape": [SIZE, SIZE], "dtype": STORED_DTYPES}
DENSE_ROWS = _ROWS | {"kind": "dense", "rows_per_chunk": (None, SIZE)}
SPARSE_ROWS = _ROWS | {"kind": "sparse", "n_entries": SIZE}
_PROBLEM: dict[str, Any] = {
    "fingerprint": (None, lambda value: isinstance(value, dict) and isinstance(value.get("shape", []), list)),
    "layout": dict,
    "rows": (None, *(rows | {"name": COPY} for rows in (DENSE_ROWS, SPARSE_ROWS))),
    "matrices": dict_of(list_of([NAMES, SIZE, COUNT], minimum=1), names=NAMES),
    "notes": dict,
    "blocks": (None, {"ends": list_of(COUNT), "digests": list_of(re.compile("[0-9a-f]{12}"))}),
    "weights": (None, {"digest": CHECKSUM, "array": (None, NAMES)}),
}
"""Entries that a run has, and also a growth of it that has begun: what problem it belongs to, how that is cut into
tiles, which copy of X is complete, of each matrix that has grown its arrays with their first row and the last one's
successor, checksums of blocks of rows, and the weights that the rows of factors were scaled with."""
NOT_GROWN: dict[str, Any] = {
    "blocks": None,
    "weights": None,
    "generation": 0,
    "growing": None,
    "before": None,
    "superseded": False,
}
"""Entries of runs that have grown, with their values in others, which need not have them."""
RUN: dict[str, Any] = _PROBLEM | {
    "id": ID,
    "generation": SIZE,
    "growing": (None, _PROBLEM | {"number": COUNT}),
    "before": (None, {"n": COUNT, "group": (None, NAMES), "notes": dict}),
    "superseded": bool,
}
"""Entries of the description of a run. The group of its arrays has the number of its generation; a growth that has
begun has the next one, and takes its place once it is complete. Iterations begin with what they had found before, of
so many rows, which these notes and arrays in this group have. What is superseded may not be deleted yet."""
_DENSE = DENSE_ROWS | {"rows_per_chunk": None}
_NUMBERED = ("factor", "coef", "diagonal", *MORE_KEPT_ARRAYS, *FOLD_ARRAYS)
STORED: dict[str, Any] = {
    "|".join((*COEFFICIENTS, TARGETS, WEIGHTS, f"({'|'.join(_NUMBERED)})-[0-9]{{1,9}}")): _DENSE | {"dtype": "float64"},
    f"{ROWS}|{FEATURES}[0-9a-f]{{64}}": (_DENSE, SPARSE_ROWS),
    TRANSFORMER: _DENSE | {"dtype": "uint8"},
    FOLDS: _DENSE | {"dtype": "int64"},
}
"""Forms of the descriptions of a model's arrays, by patterns of their names: chunks have one size."""
FILES = arrays_below(STORED)
"""Paths of the files of a saved model; it has no others."""
CHECKPOINT_NOTE = {"turn": range(2), "arrays": dict_of(CHECKSUM, NAMES), "plain": dict, "shown": dict}
"""A checkpoint: its turn, its arrays with their checksums, its values, and which of these a user sees."""
STAGE_NOTE = {"name": TEXT, "done": is_amount}
"""A stage that has begun, and the fraction of it that was done when this was noted."""
ASKED_NOTE = {"tol": is_amount, "max_iter": (None, SIZE), "folds": SIZE, "planned": list_of([TEXT, is_amount])}
"""Schema of the settings of a call, the number of folds that are left out, and the seconds of the plan's stages."""
FACTOR_NOTE = {
    "panels": list_of([SIZE, COUNT], minimum=1),
    "segments": list_of([SIZE, COUNT], minimum=1),
    "traces": list_of([SIZE, is_number], minimum=1),
    "round": SIZE,
    "exhausted": bool,
    "complete": bool,
}
"""Columns of the preconditioner's factor in a store: ranges of columns and of rows, one array for each of both."""


def _is_kernel(value: Any) -> bool:
    names = [part[name] for part in parts_in(value) for name in ("name", "token_pattern") if name in part]
    return isinstance(value, dict) and all(isinstance(name, str) for name in names)


_FACTOR = {"alpha": is_amount, "quadratic": list_of(is_number, 1)}
_UNCERTAINTY = {
    "solver": lambda _: True,
    "factors": list_of(
        (_FACTOR | {"form": "primal", "centred": bool}, _FACTOR | {"form": "dual", "tile": COUNT, "panel": COUNT})
    ),
}
_FOLDS = list_of({"alpha": is_amount, "form": ("primal", "dual"), "doubt": TEXT}, 1)
"""Models that leave out folds, which a model has where they were known."""
MODEL_ENTRIES: dict[str, Any] = {
    "id": ID,
    "stored": dict,
    "estimator": (REGRESSION, CLASSIFICATION),
    "kernel": _is_kernel,
    "feature_map": (None, _is_kernel),
    "request": (None, _is_kernel),
    "parameters": dict,
    "n_features": COUNT,
    "n_samples": (None, COUNT),
    "transformer": (None, {"asked": (None, "fitted", "standardize"), "text": TEXT, "n_features_in": COUNT}),
    "feature_names": (None, list_of(TEXT)),
    "target_names": (None, list_of(TEXT, 1)),
    "solve": (None, dict),
    "versions": dict_of(TEXT),
    "column_major": bool,
    "search": (
        None,
        dict.fromkeys(FOUND, lambda _: True)
        | {"params": list_of(dict, 1), "columns": dict_of(list), "best_params": dict},
    ),
    "uncertainty": (None, _UNCERTAINTY, _UNCERTAINTY | {"folds": _FOLDS}),
    "report": (None, dict),
}
"""Entries of a description."""
_LABELS: dict[str, Any] = {
    "classes": list_of((str, int, float, bool), 2),
    "class_dtype": re.compile(r"object|[<>|=](b1|[iu][1248]|f(2|4|8|16)|U[0-9]{1,9})"),
    "softmax": bool,
    "n_iter": SIZE,
}
"""Further ones of a classifier."""
_SOLVE: dict[str, Any] = {
    "form": ("primal", "dual", None),
    "status": re.compile("[A-Z_]{1,32}"),
    "residual": (None, is_number),
    "residual_of": re.compile("[a-z ]{1,40}"),
    "condition": (None, is_number),
    "seconds": is_amount,
    "peak_bytes": SIZE,
    "tol": is_amount,
    "iterations": SIZE,
    "rank": SIZE,
    "history": list_of([SIZE, is_amount, (None, is_number), bool]),
    "messages": list_of(TEXT),
    "steps": list_of(dict_of((None, is_number))),
    "stages": list_of(dict),
    "bytes_read": SIZE,
    "bytes_written": SIZE,
}
"""Entries of `solve`."""


SAVE_AGAIN = "Save the model again, copy it again from where it is whole, or fit it again"
"""Remedy for a damaged model."""


def writer_of(found: Mapping[str, Any]) -> str:
    """Version of dkrr that wrote a description, in words of a message."""
    versions = found.get("versions")
    version = versions.get("dkrr") if isinstance(versions, dict) else None
    if not matches(version, VERSION):
        return "the version that wrote it"
    return f"dkrr {version}, which wrote it"


def check_description(url: str, found: Mapping[str, Any], schemas: Mapping[str, Any], remedy: str = "") -> None:
    """Refuse the description of a run or a model of another format, or with entries that dkrr does not write.

    Parameters
    ----------
    url : str
    found : mapping
        Description.
    schemas : mapping
        Schemas of entries by their names; others are not used.
    remedy : str
        End of the message.

    Raises
    ------
    WrongStoreError
        If another version wrote it.
    StoreError
        Naming the entry.
    """
    kind = found["kind"]
    if found.get("format") != FORMAT_VERSION:
        raise WrongStoreError(
            f"{url} is a dkrr {kind} of format {shown(found.get('format'))}, and this version reads format "
            f"{FORMAT_VERSION}: use {writer_of(found)}, or fit again{remedy if kind == 'run' else ''}"
        )
    check_entries(f"the {kind} {url}", found, schemas, remedy=remedy)


def check_entries(
    what: str, found: Mapping[str, Any], schemas: Mapping[str, Any], where: str = "", remedy: str = ""
) -> None:
    """Refuse entries that do not match their schemas; `where` they are, if not in the description itself."""
    for name, schema in schemas.items():
        if name not in found or not matches(found[name], schema):
            value = shown({name: found.get(name)}) if where else f"{name}={shown(found.get(name))}"
            missing = "" if name in found else f", without {name}"
            raise StoreError(f"{what} is damaged: its description has {where}{value}{missing}{remedy}")


def arrays_of_rows(place: Place, description: Any) -> tuple[ChunkedArray, ...]:
    """Arrays of rows that a checked store describes, at their place; nothing is read.

    Returns
    -------
    tuple of ChunkedArray
        One of dense rows; of sparse ones the values, the indices and the pointers of CSR.

    Raises
    ------
    StoreError
        If the description is not one that dkrr writes.
    """
    if not matches(description, (DENSE_ROWS, SPARSE_ROWS)):
        raise StoreError(f"{place.url} is described as {shown(description)}, which dkrr does not write")
    shape, dtype = description["shape"], description["dtype"]
    if description["kind"] == "dense":
        height = description["rows_per_chunk"]
        return (ChunkedArray.of_rows(place.url, tuple(shape), dtype, place.identity, height),)
    n_entries = description["n_entries"]
    # As wide as SciPy itself makes indices; it keeps those of int64 pointers, at twice the memory of every block.
    index = np.int32 if max(n_entries, shape[1]) < 2**31 else np.int64
    parts = {"data": (n_entries, dtype), "indices": (n_entries, index), "indptr": (shape[0] + 1, index)}
    return tuple(
        ChunkedArray.of_rows(here.url, (size,), kind, here.identity, SPARSE_CHUNK_ENTRIES)
        for here, (size, kind) in ((place.at(name), part) for name, part in parts.items())
    )


def is_model(url: str) -> bool:
    """Whether a saved model is there, also a damaged one; of anything else a run says what is wrong with it."""
    try:
        return bool((read_json(place_at(url)) or {})["attributes"]["dkrr"]["kind"] == "model")
    except UnreachableStoreError:
        raise
    except (StoreError, LookupError, TypeError):
        return False


def describe_model(path: Any) -> dict[str, Any]:
    """Description of a saved model, as written by `save`, with every entry checked.

    Raises
    ------
    StoreError
        If the path does not hold a model of this format, or the model is damaged or leads to files elsewhere.
    """
    url = str(path)
    found = read_group(url)
    if found is None:
        raise StoreError(f"{url} does not exist, or is not a Zarr group; expected a model that dkrr.save wrote")
    if not found:
        raise StoreError(f"{url} is a Zarr group but not a dkrr model (it has no description, or was never finished)")
    if found.get("kind") != "model":
        raise StoreError(
            f"{url} is a dkrr {str(found.get('kind'))[:MAX_SHOWN]}, not a model; save one with dkrr.save(model, path)"
        )
    schemas = MODEL_ENTRIES | (_LABELS if found.get("estimator") == CLASSIFICATION else {})
    check_description(url, found, schemas, f". {SAVE_AGAIN}")
    what, names, transformer = f"the model {url}", found["feature_names"], found["transformer"]
    stored = {
        name: next((one for names, one in STORED.items() if re.fullmatch(names, name)), ()) for name in found["stored"]
    }
    check_entries(what, found["stored"], stored, "stored=")
    if found["solve"] is not None:
        check_entries(what, found["solve"], _SOLVE, "solve=")
    width = found["n_features"] if transformer is None else transformer["n_features_in"]
    if names is not None and len(names) != width:
        raise StoreError(f"{what} is damaged: its description has feature_names={shown(names)}")
    known = patterns_of(found["kernel"])
    if any(pattern not in known for name in ("request", "feature_map") for pattern in patterns_of(found[name])):
        raise StoreError(f"{what} is damaged: its description has a token_pattern that its kernel does not")
    return found


def patterns_of(description: Any) -> list[str]:
    """Regular expressions in the description of a kernel."""
    return [part["token_pattern"] for part in parts_in(description) if "token_pattern" in part]


def model_arrays(url: str, found: dict[str, Any]) -> Iterator[tuple[str, tuple[ChunkedArray, ...]]]:
    """Arrays of a model with a checked description, by the names of its parts; nothing of them is read.

    Raises
    ------
    StoreError
        If one lies outside of the model.
    """
    for name, description in found["stored"].items():
        arrays = arrays_of_rows(place_at(url, found["id"]).at(name), description)
        for array in arrays:
            refuse_links(array.url, url)
        yield name, arrays
