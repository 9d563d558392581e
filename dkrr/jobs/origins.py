"""What a model was made from, and whether a saved model is the one that a job asks for."""

import glob
import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from dkrr.errors import StoreError
from dkrr.inspection import verify
from dkrr.jobs.entries import Entry
from dkrr.jobs.keys import Key
from dkrr.model_description import describe_model
from dkrr.tiles import remote
from dkrr.tiles.files import is_folder
from dkrr.tiles.paths import local_path
from dkrr.values import shown


class Found(Enum):
    """What is at the place of a model."""

    NOTHING = "nothing"
    COMPLETE = "complete"
    OTHER = "other"
    """A model of other options or data, or one that is damaged, or something else."""


@dataclass(frozen=True)
class State:
    """What is at the place of a model, and why it is not the one that is asked for."""

    found: Found
    reason: str = ""


def origin_of(command: str, entry: Entry, keys: Sequence[Key]) -> dict[str, Any]:
    """What a model is made from: options that change it, and the files that they name with their sizes and times.

    Data are compared as `make` does it, by the size and the time of every file, so that nothing is read.

    Parameters
    ----------
    command : str
        Name of the command.
    entry : Entry
        The model.
    keys : sequence of Key
        Keys of the command.

    Returns
    -------
    dict
        Values of JSON.
    """
    options = {}
    for key in keys:
        value = entry.arguments.get(key.parameter)
        if key.changes_the_model and value is not None and key.parameter in entry.stated:
            options[key.name] = list(value) if isinstance(value, tuple) else value
    files = {value: signature(value) for value in options.values() if isinstance(value, str)}
    data = {value: text for value, text in files.items() if text}
    return {"command": command, "name": entry.name, "options": options, "data": data}


def signature(value: str) -> str:
    """Checksum of names, sizes and times of all files of a path, a pattern of paths or a URL; empty if none exists."""
    file = value.partition("::")[0]
    found = sorted(remote.files(file) if "://" in file and local_path(file) is None else _local_files(file))
    return hashlib.sha256(json.dumps(found).encode()).hexdigest()[:32] if found else ""


def _local_files(path: str) -> Iterator[tuple[str, int, int]]:
    local = local_path(path)
    # As a shell finds them: Path.glob takes no absolute patterns.
    roots = [local] if local is not None and local.exists() else [Path(name) for name in glob.glob(path)]  # noqa: PTH207
    for root in roots:
        files = [Path(folder) / name for folder, _, names in os.walk(root) for name in names]
        for file in files if root.is_dir() else [root]:
            facts = file.stat()
            yield str(file.relative_to(root)), facts.st_size, facts.st_mtime_ns


def state_of(path: str, origin: dict[str, Any], *, compare: bool) -> State:
    """What is at the place of a model.

    Parameters
    ----------
    path : str
        Path or URL of the model.
    origin : dict
        What the model that is asked for is made from.
    compare : bool
        Whether to read it; otherwise any model is another one.

    Returns
    -------
    State
        COMPLETE only if every chunk of the model was read and is whole.
    """
    local = local_path(path)
    if not (is_folder(path) if local is None else local.exists()):
        return State(Found.NOTHING)
    if not compare:
        return State(
            Found.OTHER,
            "it exists already; expected a free place: --resume skips complete models, --overwrite replaces them",
        )
    try:
        description = describe_model(path)
        if (difference := _difference(description.get("origin"), origin)) or not verify(path).is_whole:
            found = difference or f"{path} is damaged, as `dkrr verify` shows"
            return State(Found.OTHER, f"{found}; expected the model of this job: --overwrite replaces it")
    except StoreError as error:
        return State(Found.OTHER, str(error))
    return State(Found.COMPLETE)


def _difference(found: Any, wanted: dict[str, Any]) -> str:
    """Words for what a model was made from otherwise; empty if it was made from the same."""
    if not isinstance(found, dict) or not isinstance(found.get("options"), dict):
        return "what exists was not made by a job"
    if found.get("command") != wanted["command"]:
        return f"what exists was made by dkrr {found.get('command')}"
    made, asked = found["options"], json.loads(json.dumps(wanted["options"]))
    for name in {**made, **asked}:
        if made.get(name) != asked.get(name):
            texts = [shown(options[name]) if name in options else "not given" for options in (made, asked)]
            return f"{name} was {texts[0]} when the model was made, and is {texts[1]} now"
    if found.get("data") != wanted["data"]:
        before = found.get("data") or {}
        names = [name for name in {**before, **wanted["data"]} if before.get(name) != wanted["data"].get(name)]
        return f"{', '.join(names)} changed since the model was made"
    return ""
