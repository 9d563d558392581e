"""Tables, models, configurations and locks of someone who knows their formats, and what becomes of them.

A trial draws one in a fork, and opens it, fits, predicts: the result is the undisturbed one, or that of pandas; or an
error of dkrr says what is wrong. A fork that dies, does not end, or takes more memory than the bytes of a file explain
is a failure. Checksums match: who writes a model may make another one, so of models only finite numbers are expected.
"""

import faulthandler
import json
import os
import platform
import random
import resource
import select
import shutil
import signal
import sys
import tempfile
import time
import traceback
import warnings
import zipfile
from collections.abc import Callable, Sequence
from functools import cache, partial
from io import BytesIO
from pathlib import Path
from typing import Any
from unittest import mock

import click.testing
import dask
import numpy as np
import pandas as pd
import psutil
import yaml
from sklearn.compose import ColumnTransformer
from sklearn.impute import SimpleImputer
from sklearn.pipeline import FeatureUnion, make_pipeline
from sklearn.preprocessing import KBinsDiscretizer, OneHotEncoder, StandardScaler

import dkrr
from dkrr import cli
from dkrr.errors import DkrrError, StoreError
from dkrr.machine.profile import machine_fingerprint, profile_path
from dkrr.store import ChunkedArray, lock
from dkrr.store.description import model_arrays
from dkrr.store.format import read_group, write_group
from dkrr.store.replacing import LOCK_NAME
from tests.nightly.chaos import damage
from tests.nightly.chaos.outcomes import GOOD, Outcome, of_error
from tests.nightly.chaos.processes import MAX_WORDS

Random = random.Random
Judged = tuple[Outcome, str]
SECONDS = 20.0
"""Limit of one fork, on a machine that does other work."""
SPARE_BYTES, FACTOR = 256 * 2**20, 24
"""Memory that a small fit may take, and that of each byte of a file."""
ADDRESS_SPACE = 3 * 2**30
"""Bytes that a fork may map besides those of its parent: an absurd allocation fails there."""
VALUES: tuple[Any, ...] = (
    *(None, True, -1, 0, 1, 2, 64, 2**31, 2**53, 2**63, 10**12, 10**400, -0.0, 0.5, 5e-324, 1e308),
    *(float("nan"), float("inf"), "", "x", "x" * 5000, "\ud800", "a\x1b[31m\u202e\n", "<U400000000", "../x", "null"),
    *([], [[]], [1, 2, 3], {}, {"a": 1}, [0] * 5000, ["a", "b"]),
)  # fmt: skip


def changed(tree: Any, rng: Random) -> str:
    """Change a value of JSON at one place, and say what was done."""
    places = [(tree, key) for key in (tree if isinstance(tree, dict) else range(len(tree)))]
    for holder, key in places:
        if isinstance(holder[key], dict | list):
            inner = holder[key]
            places += [(inner, k) for k in (inner if isinstance(inner, dict) else range(min(len(inner), 40)))]
    (holder, key), other = rng.choice(places), rng.choice(places)
    way, before = rng.choice(("value", "value", "value", "deleted", "exchanged", "repeated", "nested")), holder[key]
    if way == "value":
        holder[key] = rng.choice(VALUES)
    elif way == "deleted":
        del holder[key]
    elif way == "exchanged":
        holder[key] = json.loads(json.dumps(other[0][other[1]]))
    elif way == "repeated":
        holder[key] = [before] * rng.choice((2, 1000))
    else:
        for _ in range(rng.choice((1, 20, 200))):
            before = [before] if rng.random() < 0.5 else {"a": before}
        holder[key] = before
    return f"{way}: {key} = {str(holder[key] if way == 'value' else before)[:60]!r}"


def put_thing(path: Path, kind: str) -> None:
    """Put what is not a small file where one is expected."""
    path.unlink(missing_ok=True)
    if kind == "large file":
        with path.open("wb") as stream:
            stream.truncate(2**40)
    else:
        make: dict[str, Callable[..., Any]] = {"pipe": os.mkfifo, "folder": Path.mkdir, "closed file": Path.touch}
        targets = {"device": Path("/dev/zero"), "link to nothing": path.with_name("gone"), "link to itself": path}
        make.get(kind, partial(Path.symlink_to, target=targets.get(kind, "")))(path)
        if kind == "closed file":
            path.chmod(0)


THINGS = ("large file", "pipe", "folder", "device", "link to nothing", "link to itself", "closed file")


# Models -------------------------------------------------------------------------------------------------------------

_TABLE = pd.DataFrame({"c": np.array(["ab", "cd", "ef"] * 34)[:101], "a": damage._X[:, 0], "b": damage._X[:, 1]})
_encoded = ColumnTransformer(
    [
        ("c", OneHotEncoder(handle_unknown="ignore"), ["c"]),
        ("n", make_pipeline(SimpleImputer(), StandardScaler()), ["a", "b"]),
    ]
)
_text = _TABLE["c"].to_numpy("U")[:, None]
_union = FeatureUnion([("s", StandardScaler()), ("k", KBinsDiscretizer(4))])
MODELS: dict[str, tuple[Any, Any]] = damage.KINDS | {
    "standardized": (damage._ridge(kernel="rbf", transformer="standardize"), damage._X),
    "encoded": (damage._ridge(kernel="rbf", transformer=_encoded), _TABLE),
    "text encoded": (damage._ridge(transformer=OneHotEncoder(handle_unknown="ignore")), _text),
    "united": (damage._ridge(kernel="rbf", transformer=_union), damage._X),
    "with a factor": (damage._ridge(kernel="rbf", gamma=0.3), damage._X),
    "with data": (damage._ridge(kernel="matern"), damage._X),
}


@cache
def saved(name: str) -> Path:
    """Model that was saved in this process."""
    (estimator, rows), path = MODELS[name], damage._folder() / f"hostile-{list(MODELS).index(name)}.zarr"
    labels = np.arange(damage.N) % (2 if "primal" in name else 3)
    y = labels if name.startswith("logistic") else np.random.default_rng(1).standard_normal((damage.N, 2))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        kept: Any = {"with a factor": True, "with data": "data"}.get(name, False)
        dkrr.save(estimator.fit(rows[: damage.N], y), path, uncertainty=kept)
    return path


def described(path: Path) -> dict[str, Any]:
    """Description of a model."""
    found = read_group(str(path))
    assert found is not None
    return found


def other_description(path: Path, rng: Random) -> str:
    found = described(path)
    entries = [key for key in found if key not in ("kind", "format")]
    part = {key: found[key] for key in (entries if rng.random() < 0.3 else [rng.choice(entries)])}
    is_one = len(part) == 1
    said = "; ".join(changed(part, rng) for _ in range(rng.choice((1, 1, 3))) if part)
    kept = found if is_one else {key: found[key] for key in ("kind", "format")}
    write_group(str(path), kept | part)
    return said


def other_text(path: Path, rng: Random) -> str:
    """JSON of other depth, numbers and encodings, which no checksum fits."""
    file = path / "zarr.json"
    text = file.read_text()
    number, depth = rng.choice(("9" * 10**5, "1e999", "-" + "9" * 400, "NaN")), rng.choice((100, 10**5))
    ways = {
        "number": text.replace("1", number, 1).encode(),
        "depth": text.replace(": ", f': {"[" * depth}{"]" * depth}, "x": ', 1).encode(),
        "UTF-16": text.encode("utf-16"),
        "not UTF-8": text.encode().replace(b'"', b'"\xff', 1),
        "many values": text.replace(": ", ": [" + "[]," * 10**6 + '0], "x": ', 1).encode(),
    }
    way = rng.choice(list(ways))
    file.write_bytes(ways[way])
    return way


def other_array(path: Path, rng: Random) -> str:
    """Shape or type of an array, with metadata and files that say the same."""
    found = described(path)
    name = rng.choice(list(found["stored"]))
    entry = found["stored"][name]
    key = rng.choice(list(entry))
    claim = rng.choice((0, 1, 10**6, 10**9, 10**12, 2**53, "float32", "int64", "bool", None, -1))
    if isinstance(entry[key], list):
        entry[key][rng.randrange(len(entry[key]))] = claim
    else:
        entry[key] = claim
    write_group(str(path), found)
    try:
        for _, arrays in model_arrays(str(path), found):
            for array in arrays:
                array.create_anew()
                for file in Path(array.url).glob("c*"):
                    os.truncate(file, min(array.chunk_bytes, 2**40))
    except (DkrrError, ValueError, TypeError, OverflowError, ArithmeticError):
        pass  # it is refused by its description
    return f"{name}: {key} = {claim}"


def other_numbers(path: Path, rng: Random) -> str:
    found = described(path)
    name, arrays = rng.choice([pair for pair in model_arrays(str(path), found) if pair[0] != "transformer"])
    array: ChunkedArray = rng.choice(arrays)
    numbers = array.load()
    value = rng.choice((np.nan, np.inf, 1e308, -1.0, 0.0, 5e-324, 2.0**31, 2.0**62))
    places = slice(rng.randrange(numbers.size), None, rng.choice((1, 7, 10**9)))
    with np.errstate(all="ignore"):
        numbers.reshape(-1)[places] = np.array(value).astype(array.dtype)
    array.fill(numbers)
    return f"{name}: {value}"


def other_transformer(path: Path, rng: Random) -> str:
    """Tree or arrays of a transformer, whose file is whole."""
    found = described(path)
    ((array,),) = (arrays for name, arrays in model_arrays(str(path), found) if name == "transformer")
    source = zipfile.ZipFile(BytesIO(array.load().tobytes()))
    parts = {name: source.read(name) for name in source.namelist()}
    name = "schema.json" if rng.random() < 0.7 else rng.choice(list(parts))
    if name == "schema.json":
        tree, said = json.loads(parts[name]), ""
        for _ in range(rng.choice((1, 1, 4))):
            leaves = [node for node in nodes(tree) if isinstance(node.get("content"), str)]
            if rng.random() < 0.6 and leaves:
                node = rng.choice(leaves)
                said += f"{node['content'][:30]} is "
                node["content"] = json.dumps(rng.choice(VALUES))
                said += f"{node['content'][:60]}; "
            else:
                said += changed(rng.choice(list(nodes(tree))), rng) + "; "
        parts[name] = json.dumps(tree).encode()
    else:
        said, content = name, parts[name]
        width = rng.choice((1, 1000, 20_000))
        arrays = (np.full(3, "x", f"<U{width}"), np.zeros(0, "<U400000000"), np.zeros((0, 10**6)), np.full(3, np.nan))
        stream = BytesIO()
        np.save(stream, rng.choice(arrays))
        ways = (
            stream.getvalue(),
            content.replace(b"(", b"(999999999, ", 1),
            content.replace(b"<f8", rng.choice((b"<U9", b"|O ", b"<i8", b"<c8")), 1),
            damage.flip_bit(content, np.random.default_rng(rng.randrange(2**31))),
        )
        parts[name] = rng.choice(ways)
    buffer = BytesIO()
    with zipfile.ZipFile(buffer, "w") as target:
        for part, content in parts.items():
            target.writestr(part, content)
    data = np.frombuffer(buffer.getvalue(), np.uint8)[:, None]
    for file in Path(array.url).glob("c*"):
        file.unlink()
    found["stored"]["transformer"]["shape"] = list(data.shape)
    write_group(str(path), found)
    again = ChunkedArray.of_rows(array.url, data.shape, data.dtype, array.identity)
    again.create_anew().fill(data)
    return said


def nodes(tree: Any) -> Any:
    """All objects of a tree of skops."""
    if isinstance(tree, dict):
        yield tree
    for value in tree.values() if isinstance(tree, dict) else tree if isinstance(tree, list) else ():
        yield from nodes(value)


MODEL_CHANGES: dict[str, Callable[[Path, Random], str]] = {
    "description": other_description,
    "text": other_text,
    "array": other_array,
    "numbers": other_numbers,
    "transformer": other_transformer,
}


def model(rng: Random, folder: Path, way: str) -> tuple[str, Judged]:
    """A model that someone changed: loaded, asked for all that it gives, and fitted again."""
    name = rng.choice([n for n in MODELS if way != "transformer" or MODELS[n][0].transformer is not None])
    path, rows = folder / "model.zarr", MODELS[name][1]
    shutil.copytree(saved(name), path)
    said = f"{name}: {MODEL_CHANGES[way](path, rng)}"
    new = rows[damage.N :]
    if MODELS[name][0].transformer is not None and rng.random() < 0.3:  # blocks as wide as a file makes them
        new = pd.concat([new] * 400) if hasattr(new, "iloc") else np.concatenate([new] * 400)
    try:
        loaded: Any = dkrr.load(path)
    except Exception as error:
        return said, of_error(error, str(path) if isinstance(error, StoreError) else "")
    asked: list[Callable[[], Any]] = [lambda: loaded.predict(new)]
    if hasattr(loaded, "predict_proba"):
        asked.append(lambda: loaded.predict_proba(new))
    if name.startswith("with "):
        asked += [lambda: loaded.predict(new, return_std=True), lambda: loaded.loo_residuals()]
        asked += [lambda: loaded.predict_interval(new, 0.9), lambda: loaded.log_marginal_likelihood()]
    asked.append(lambda: loaded.fit(rows[: damage.N], np.arange(damage.N) % 2).predict(new))
    detected = None
    for one in asked:
        try:
            found = one()
        except Exception as error:
            judged = of_error(error)
            if judged[0] not in GOOD:
                return said, judged
            detected = judged
        else:
            for part in found if isinstance(found, tuple) else (found,):
                if not is_finite(part):
                    return said, (Outcome.WRONG, f"it gives {str(part)[:200]}")
    return said, detected or about(path)


def is_finite(found: Any) -> bool:
    values = np.asarray(found)
    return values.dtype.kind != "f" or bool(np.isfinite(values).all())


def about(path: Path) -> Judged:
    """What the commands about a model say."""
    for line in ("info", "verify"):
        judged = command(line, str(path))
        if judged[0] not in GOOD:
            return judged
    return Outcome.HARMLESS, ""


def command(*words: str) -> Judged:
    """Outcome of a command: it ends well, or with one line."""
    result = click.testing.CliRunner().invoke(cli.dkrr, list(words))
    error = result.exception
    if error is not None and not isinstance(error, SystemExit):
        return of_error(error)
    is_safe = all(character.isprintable() or character == "\n" for character in result.output)
    if "Traceback" in result.output or not is_safe:
        return Outcome.RAW, result.output
    return (Outcome.DETECTED if error is not None and result.exit_code else Outcome.HARMLESS), result.output[-200:]


# Configurations -----------------------------------------------------------------------------------------------------

WORDS = (
    "n d kernel gamma degree alpha form solver tol tile memory-limit n-targets logistic json workers kernel-param no"
)
TOML = (
    "1",
    "-1",
    "0",
    "1e999",
    "nan",
    "'x'",
    '"\\u001b[31m"',
    "true",
    "[1, 2]",
    "[]",
    "{a = 1}",
    "2026-01-02",
    "9" * 5000,
)


def options(rng: Random, folder: Path) -> tuple[str, Judged]:
    """A file for --config: other options and values, encodings, and things that are not files."""
    path = folder / "job.toml"
    if rng.random() < 0.3:
        kind = rng.choice(THINGS)
        put_thing(path, kind)
        return kind, command("plan", "--n", "50", "--d", "3", "--config", str(path))
    lines = [f"{rng.choice(WORDS.split())} = {rng.choice(TOML)}" for _ in range(rng.choice((1, 2, 5)))]
    lines += rng.choice(
        ([], [], [], [], ["a." * 5000 + "a = 1"], ["a = " + "[" * 10**4], ["x" * 10**6], ["[a.b]"], ["'\x00' = 1"])
    )
    content = rng.choice(("\n", "\r\n", "\r")).join(lines).encode(rng.choice(("utf-8", "utf-8", "utf-16", "utf-8-sig")))
    path.write_bytes(content)
    return str(content[:200]), command("plan", "--n", "50", "--d", "3", "--config", str(path))


SETTINGS = (
    "memory-limit temporary-directory checkpoint-seconds durable wait-for-workers-seconds local.workers "
    "profile-directory quick-measurement rates rates.gemm-gflops"
)


def settings(rng: Random, folder: Path) -> tuple[str, Judged]:
    """Values of Dask's configuration, as YAML and the environment give them."""
    name, value = rng.choice(SETTINGS.split()), rng.choice(VALUES)
    way = rng.choice(("YAML", "environment", "aliases"))
    if way == "aliases":
        twice = ("[*b, *b]", "{x: *b, y: *b}")
        lines = [f"a{k}: &a{k} " + rng.choice(twice).replace("*b", f"*a{k - 1}") for k in range(1, 60)]
        value = yaml.safe_load("\n".join(["a0: &a0 [x]", *lines]))["a59"]
    elif way == "environment":
        texts = ("", "x", "-1", "1e999", "nan", "[" * 5000, "9" * 5000, "True", "None", "'a\\x1b[31m'", "{}", "[1]")
        value = dask.config.interpret_value(rng.choice(texts))
    said = f"{way}, {name} = " + (str(value)[:60] if way != "aliases" else "")
    with dask.config.set({f"dkrr.{name}": value}):
        return said, fitted_outcome("")


def profiles(rng: Random, folder: Path) -> tuple[str, Judged]:
    """Files of the folder of profiles, which are not used unless they are right."""
    with dask.config.set({"dkrr.profile-directory": str(folder)}):
        path = profile_path(machine_fingerprint())
        if rng.random() < 0.4:
            kind = rng.choice(THINGS)
            put_thing(path, kind)
        else:
            found: Any = {"fingerprint": {}, "rates": {"gemm_gflops": 10.0}, "measured": {}}
            kind = changed(found, rng)
            path.write_text("[" * 10**5 if rng.random() < 0.2 else json.dumps(found))
        return kind, fitted_outcome("")


CONFIGURATIONS = {"options": options, "settings": settings, "profiles": profiles}
X, Y = np.random.default_rng(3).standard_normal((2, 60, 3))
Y = Y[:, 0]


@cache
def expected() -> Any:
    """Coefficients of the undisturbed fit."""
    return dkrr.KernelRidge(kernel="rbf", gamma=0.3, tile=20, solver="cholesky").fit(X, Y).dual_coef_


def fitted_outcome(named: str, store: str | None = None) -> Judged:
    """Outcome of a fit: the undisturbed result, or an error that names what is wrong."""
    try:
        settings: dict[str, Any] = {"kernel": "rbf", "gamma": 0.3, "tile": 20, "solver": "cholesky", "progress": False}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = dkrr.KernelRidge(**settings, store=store).fit(X, Y).dual_coef_
    except Exception as error:
        judged = of_error(error, named)
        return judged if "\n" not in str(error) else (Outcome.RAW, judged[1])
    return (Outcome.HARMLESS, "") if np.array_equal(found, expected()) else (Outcome.WRONG, str(found[:5]))


# Locks --------------------------------------------------------------------------------------------------------------


@mock.patch.object(lock, "HEARTBEAT_SECONDS", 0.1)
@mock.patch.object(lock, "STALE_SECONDS", 1.0)
def one_lock(rng: Random, folder: Path, way: str) -> tuple[str, Judged]:
    """A lock in the folder of a store, of any content, owner, age and kind: the fit owns the store, or is refused."""
    store = folder / "run.zarr"
    store.mkdir()
    path = store / LOCK_NAME
    if way == "thing":
        said = rng.choice(THINGS)
        put_thing(path, said)
    else:
        pid = rng.choice((os.getpid(), 1, os.getppid(), 2**22 - 7, -1, 0, 10**12))
        host = rng.choice((platform.node(), "x"))
        fields = {"pid": pid, "host": host, "mode": "lease", "token": "ab" * 16, "duration": lock.STALE_SECONDS}
        if way == "owner":
            key = rng.choice(list(fields))
            values = ("", "nan", -1, 0, 10.0, 1e308, 2**63, "x" * 5000, "a\x1b[31m", "\u202e", "exclusive")
            fields[key] = rng.choice(values)
        lines = ["filelock/2", *(f"{key}={value}" for key, value in fields.items())]
        if way == "content":
            rng.shuffle(lines)
            others: tuple[list[str], ...] = ([], ["\x00" * 9], ["filelock/9"], ["{" * 9])
            lines = rng.choice((lines, lines * 2, lines[: rng.randrange(6)], *others))
        content = "\n".join([*lines, ""]).encode()
        if rng.random() < 0.3:
            content = damage.flip_bit(content, np.random.default_rng(rng.randrange(2**31)))
        path.write_bytes(content)
        when = time.time() + rng.choice((0, 0, -1, -(10**6), 10**6))
        os.utime(path, (when, when))
        said = str(content[:300])
    return said, fitted_outcome(str(store), str(store))


# Tables -------------------------------------------------------------------------------------------------------------

N_ROWS = 40
NAMES = ("a", "b", "", " a", "a\x1b[31m", "\u202e", "x" * 300, "a,b", 'a"b', "a\nb", "__index_level_0__", "0", "λ")


def frame(rng: Random) -> pd.DataFrame:
    """Columns of many kinds."""
    values = np.random.default_rng(rng.randrange(2**31))
    numbers, whole = values.standard_normal(N_ROWS), values.integers(-5, 5, N_ROWS)
    kinds: dict[str, Any] = {
        "float": numbers,
        "float32": numbers.astype("f4"),
        "int": whole,
        "int8": whole.astype("i1"),
        "uint64": whole.astype("u8") + 2**63 if rng.random() < 0.3 else np.abs(whole).astype("u8"),
        "bool": whole > 0,
        "text": np.array(["x", "yy", "λ"], object)[whole % 3],
        "category": pd.Categorical(np.array(["u", "v"], object)[whole % 2]),
        "date": pd.Timestamp("2026-01-01") + pd.to_timedelta(whole, "D"),
        "nullable": pd.array([None if k == 0 and rng.random() < 0.3 else k for k in whole], "Int64"),
    }
    chosen = ["float", *rng.sample(list(kinds), rng.choice((1, 3)))]
    made = pd.DataFrame({f"{kind}{k}": kinds[kind] for k, kind in enumerate(chosen)})
    index = rng.choice(("none", "none", "range", "named", "dates", "two levels", "text"))
    names = rng.choice((["p", "q"], [None, None]))
    made.index = {
        "named": pd.Index(whole, name="i"),
        "dates": pd.date_range("2026-01-01", periods=N_ROWS),
        "two levels": pd.MultiIndex.from_arrays([whole, np.arange(N_ROWS)], names=names),
        "text": pd.Index([f"r{k}" for k in range(N_ROWS)]),
        "range": pd.RangeIndex(5, 5 + 2 * N_ROWS, 2),
    }.get(index, made.index)
    return made


def csv(rng: Random, path: Path, made: pd.DataFrame) -> str:
    """Text of other line ends, encodings, headers, separators and fields."""
    text = made.to_csv(index=rng.random() < 0.2)
    header, *lines = text.splitlines()
    way = rng.choice(("header", "ends", "encoding", "separator", "field", "ragged", "bytes", "none"))
    names = header.split(",")
    if way == "header":
        for _ in range(rng.choice((1, 1, 2))):
            names[rng.randrange(len(names))] = rng.choice(NAMES) if rng.random() < 0.8 else "y" * 140_000
        header = rng.choice((",".join(names), "", header + ",", f'"{header}'))
    elif way == "field":
        k = rng.randrange(len(lines))
        fields = ("1e999", "nan", "", "x", "9" * 5000, "z" * 140_000, '"', "\x00", "9007199254740993", "0x10", "1_0")
        field = rng.choice(fields)
        lines[k] = rng.choice((field + lines[k][lines[k].find(",") :], lines[k].rpartition(",")[0] + "," + field))
    elif way == "ragged":
        k = rng.randrange(len(lines))
        lines[k] = rng.choice((lines[k] + ",1", lines[k].rpartition(",")[0], "", ","))
    text = (rng.choice(("\r", "\r\n", "\n\r", "\u2028")) if way == "ends" else "\n").join([header, *lines, ""])
    text = text.replace(",", rng.choice(";\t|")) if way == "separator" else text
    encoding = rng.choice(("utf-16", "latin-1", "utf-8-sig", "utf-32")) if way == "encoding" else "utf-8"
    content = text.encode(encoding, "replace")
    if way == "bytes":
        content = _damaged(content, rng)
    path.write_bytes(content)
    return way


def _damaged(content: bytes, rng: Random) -> bytes:
    kinds = ("bit flipped", "bytes changed", "range of zeros", "truncated", "parts exchanged", "bytes appended")
    return damage.CONTENTS[rng.choice(kinds)](content, np.random.default_rng(rng.randrange(2**31)))


def _with_metadata(table: Any, rng: Random) -> tuple[Any, str]:
    """Schema whose metadata say something else, pandas' above all."""
    known = dict(table.schema.metadata or {})
    way = rng.choice(("junk", "changed", "changed", "none", "more"))
    if way == "junk":
        deep = rng.choice((100, 10**5))
        junk = (b"", b"{", b"\xff\xfe", b"[]", b"null", b"5", b"[" * deep, b'{"a":' * deep + b"1" + b"}" * deep)
        known[b"pandas"] = rng.choice(junk)
    elif way == "changed" and b"pandas" in known:
        described = json.loads(known[b"pandas"])
        way = changed(described, rng)
        known[b"pandas"] = json.dumps(described).encode()
    elif way == "none":
        known = {}
    else:
        known[rng.choice((b"\xff", b"", b"k" * 10**5, b"ARROW:schema"))] = rng.choice((b"\xff\x00", b"", b"v" * 10**6))
    return table.replace_schema_metadata(known), f"metadata {way}"


def _with_arrays(table: Any, rng: Random, ways: Sequence[str]) -> tuple[Any, str]:
    """Arrays whose indices or offsets lead elsewhere, valid for no reader; or other types or names."""
    import pyarrow as pa

    wrong = rng.choice((-1, 7, 1000, 2**31 - 1))
    way, k = rng.choice(ways), rng.randrange(table.num_columns)
    if way == "indices":
        codes = np.zeros(N_ROWS, "i4")
        codes[rng.randrange(N_ROWS)] = wrong
        column: Any = pa.DictionaryArray.from_arrays(pa.array(codes), pa.array(["u", "v"]), safe=False)
    elif way == "offsets":
        offsets = np.arange(N_ROWS + 1, dtype="i4")
        offsets[rng.randrange(N_ROWS + 1)] = wrong
        buffers = [None, pa.py_buffer(offsets.tobytes()), pa.py_buffer(b"x" * N_ROWS)]
        column = pa.Array.from_buffers(pa.string(), N_ROWS, buffers)
    elif way == "names":
        names = [rng.choice(NAMES) if rng.random() < 0.5 else name for name in table.column_names]
        return table.rename_columns(names), f"names {names}"
    else:
        from decimal import Decimal

        values: Any = [Decimal("1.5")], [[1.0]], [{"a": 1}], [b"\xff"], [None], [2**53 + 1], [1e308], [float("nan")]
        column = pa.array(rng.choice(values) * N_ROWS)
        way = f"type {column.type}"
    return table.set_column(k, table.column_names[k], column), way


def arrow(rng: Random, path: Path, made: pd.DataFrame) -> str:
    """Parquet, Feather or Arrow: other metadata, arrays or bytes."""
    import pyarrow as pa
    import pyarrow.feather
    import pyarrow.parquet

    table, said = pa.Table.from_pandas(made), "none"
    step = rng.random()
    # Arrow does not survive writing such indices and offsets in Parquet.
    ways = ("type", "names") if path.suffix == ".parquet" else ("indices", "offsets", "type", "names")
    if step < 0.7:
        table, said = _with_metadata(table, rng) if rng.random() < 0.5 else _with_arrays(table, rng, ways)
    if path.suffix == ".parquet":
        pa.parquet.write_table(table, path, store_schema=rng.random() < 0.8, row_group_size=rng.choice((7, 100)))
    elif path.suffix == ".feather":
        pa.feather.write_feather(table, path, compression=rng.choice(("uncompressed", "lz4", "zstd")))
    else:
        opened = rng.choice((pa.ipc.new_file, pa.ipc.new_file, pa.ipc.new_stream))
        with opened(str(path), table.schema) as writer:
            writer.write_table(table, max_chunksize=rng.choice((7, 100)))
    if step > 0.6:
        path.write_bytes(_damaged(path.read_bytes(), rng))
        said += ", bytes"
    return said


def table(rng: Random, folder: Path, way: str) -> tuple[str, Judged]:
    """A file of a table: its numbers are those that pandas or pyarrow reads, or it is refused by name."""
    path = folder / f"table.{way}"
    try:
        said = (csv if way == "csv" else arrow)(rng, path, frame(rng))
    except Exception as error:  # of pyarrow, which does not write it
        return f"not written: {error!r:.80}", (Outcome.HARMLESS, "")
    try:
        found = dkrr.open_table(path)
        other = [one.name for one in found.columns if one.kind != "number"]
        whole, numbers = found.to_pandas(), found.without(other) if len(other) < len(found.columns) else found
        fitted = dkrr.KernelRidge(kernel="linear").fit(numbers, np.arange(found.n_rows, dtype=float))
        fitted.predict(numbers)
        rows = numbers.numbers(0, found.n_rows)
    except Exception as error:
        judged = of_error(error)
        is_named = str(path) in str(error) or "column" in str(error) or "row" in str(error) or "X " in str(error)
        is_named = is_named or path.name in str(error)
        return said, judged if judged[0] not in GOOD or is_named else (Outcome.MISLED, judged[1])
    return said, compared(path, [one.name for one in numbers.columns], rows, whole)


def compared(path: Path, names: Any, rows: Any, whole: Any) -> Judged:
    """Whether numbers are those that pandas reads, or Arrow where pandas does not understand its own metadata.

    They are asked last, since they may not survive the file.
    """
    import pyarrow as pa
    import pyarrow.parquet

    try:
        if path.suffix == ".csv":
            head = path.read_text(errors="replace").splitlines()[0]
            other = pd.read_csv(
                path,
                encoding_errors="replace",
                sep=next((mark for mark in ";\t|" if mark in head), ","),
                low_memory=False,
            )
            other.columns = ["" if name.startswith("Unnamed: ") else name for name in other.columns]
            other = other.replace("0x10", 16)  # Arrow knows such numbers
        else:
            if path.suffix == ".parquet":
                known = pa.parquet.read_table(path, columns=list(names))  # of an index that is not used nothing is read
            else:
                read = pa.ipc.open_file if path.read_bytes()[:6] == b"ARROW1" else pa.ipc.open_stream
                known = read(pa.memory_map(str(path))).read_all()
            known.validate(full=True)
            try:
                other = known.to_pandas()
            except (ValueError, TypeError, LookupError, AttributeError, pa.ArrowException):
                other = pd.DataFrame()
            if not {*names} <= {*other.columns}:
                other = known.replace_schema_metadata().to_pandas()
    except Exception as error:
        return Outcome.ACCEPTED, f"{len(whole)} rows are read where pandas says {error!r:.200}"
    other = other[[name for name in names if name in other]]
    if list(other.columns) != list(names):
        return Outcome.WRONG, f"columns {list(names)}, those of pandas {list(other.columns)}"
    try:
        values = other.to_numpy(np.float64, na_value=np.nan)
    except (TypeError, ValueError) as error:
        return Outcome.ACCEPTED, f"{rows[:3]} are numbers, and not of pandas: {error!r:.200}"
    same = values.shape == rows.shape and np.array_equal(values.astype(rows.dtype), rows, equal_nan=True)
    return (Outcome.HARMLESS, "") if same else (Outcome.WRONG, f"{rows[:3]}, and of pandas {values[:3]}")


# Trials -------------------------------------------------------------------------------------------------------------

PARTS: dict[str, tuple[tuple[str, ...], Callable[[Random, Path, str], tuple[str, Judged]]]] = {
    "table": (("csv", "parquet", "feather", "arrow"), table),
    "model": (tuple(MODEL_CHANGES), model),
    "configuration": (tuple(CONFIGURATIONS), lambda rng, folder, way: CONFIGURATIONS[way](rng, folder)),
    "lock": (("content", "owner", "thing"), one_lock),
}
"""What is made, the ways, and f(rng, folder, way), which says what was done and what became of it."""


def trial(seed: int, number: int, only: list[str]) -> dict[str, Any]:
    """Make something hostile in a fork and use it there.

    Parameters
    ----------
    seed, number : int
    only : list of str
        Parts to choose from; empty: all.
    """
    kinds = [(kind, way) for kind in only or PARTS for way in PARTS[kind][0]]
    kind, way = kinds[number % len(kinds)]
    for name in MODELS if kind == "model" else ():
        saved(name)  # the forks have them
    expected()
    folder = Path(tempfile.mkdtemp(prefix=f"hostile-{number}-", dir=damage._folder()))
    rng = Random(f"{seed} {number}")
    answer, peak = _in_fork(lambda: PARTS[kind][1](rng, folder, way), folder)
    outcome, detail = answer["judged"]
    n_bytes = sum(min(p.lstat().st_blocks * 512, p.lstat().st_size) for p in folder.rglob("*") if p.is_file())
    if "MemoryError" in detail or peak > SPARE_BYTES + FACTOR * n_bytes:
        outcome, detail = Outcome.LARGE, f"{peak / 2**20:.0f} MiB for {n_bytes} bytes; {detail}"
    if outcome in GOOD:
        damage.open_again(folder)
        shutil.rmtree(folder)
    what = answer["said"] if outcome in GOOD else f"{folder}; {answer['said']}"
    found = {"row": f"{kind}: {way}", "group": kind, "outcome": outcome, "what": what, "detail": detail}
    return {key: text.encode("ascii", "backslashreplace").decode() for key, text in found.items()}


def _in_fork(function: Callable[[], tuple[str, Judged]], folder: Path) -> tuple[dict[str, Any], int]:
    """What a function returns in a fork, and the most memory that the fork took besides its parent's."""
    log = folder.with_suffix(".log")
    receiver, sender = os.pipe()
    child = os.fork()
    if child == 0:
        before = psutil.Process().memory_info()
        try:
            stream = log.open("w")
            os.dup2(stream.fileno(), 2)
            faulthandler.enable(stream, all_threads=True)
            hard = resource.getrlimit(resource.RLIMIT_AS)[1]
            most = before.vms + ADDRESS_SPACE
            resource.setrlimit(resource.RLIMIT_AS, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard))
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            said, judged = function()
        except BaseException:
            said, judged = "", (Outcome.RAW, f"the trial failed: {traceback.format_exc()}")
        answer = {"said": said[:1000], "judged": (judged[0], judged[1][-MAX_WORDS:]), "bytes": before.rss}
        os.write(sender, json.dumps(answer).encode() + b"\n")
        os._exit(0)
    os.close(sender)
    read, end = b"", time.monotonic() + SECONDS
    while not read.endswith(b"\n") and select.select([receiver], [], [], max(0.0, end - time.monotonic()))[0]:
        part = os.read(receiver, 2**16)
        if not part:
            break
        read += part
    os.close(receiver)
    is_late = not read.endswith(b"\n") and time.monotonic() >= end
    if is_late:
        os.kill(child, signal.SIGABRT)  # faulthandler then says where it is
    _, status, usage = os.wait4(child, 0)
    lines = log.read_text(errors="replace").splitlines() if log.exists() else []
    words = "\n".join(line for line in lines if not line.startswith("Extension modules"))
    log.unlink(missing_ok=True)
    if read.endswith(b"\n"):
        found = json.loads(read)
        return found, usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024) - found["bytes"]
    outcome = Outcome.HANG if is_late else Outcome.CRASH
    return {"said": "", "judged": (outcome, f"status {status}\n{words[:MAX_WORDS]}")}, 0
