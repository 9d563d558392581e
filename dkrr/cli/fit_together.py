"""Models of a job that differ only in their targets, solved together: one matrix for all of them."""

import hashlib
import json
import logging
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

import numpy as np

from dkrr.errors import DkrrError
from dkrr.rows import load_array, open_path
from dkrr.tables.opening import is_table_path

logger = logging.getLogger(__name__)

MAX_BYTES = 256 * 2**20
"""Targets of models that are solved together; they are read into memory."""
OWN = ("y_path", "model_path", "store")
"""Arguments in which such models differ."""


def group_of(arguments: Mapping[str, Any]) -> Hashable:
    """What models have in common that can be solved together; None for one that is solved alone.

    In a table the targets of a model are not among its columns, so that two models may differ in X as well.
    """
    if arguments["logistic"] or is_table_path(arguments["x_path"]) or len(arguments["alpha"]) > 1:
        return None
    return tuple((name, value) for name, value in sorted(arguments.items()) if name not in OWN)


class Together:
    """Models that are solved together when the first of them is due, and handed out one after the other.

    Parameters
    ----------
    group : sequence of mapping
        Arguments of the models; they differ only in `OWN`.
    """

    def __init__(self, group: Sequence[Mapping[str, Any]]) -> None:
        self.group = {arguments["model_path"]: arguments for arguments in group}
        digest = hashlib.sha256(json.dumps([[a[name] for name in OWN] for a in group]).encode()).hexdigest()[:8]
        stores = [a["store"] for a in group if a["store"] is not None]
        # Of its own: the store of one model is refused to a fit of several.
        self.store = f"{stores[0].removesuffix('.zarr')}+{len(group) - 1}-{digest}.zarr" if stores else None
        self._found: dict[str, Any] | None = None
        self._taken = 0

    def take(self, arguments: Mapping[str, Any], solved: Callable[..., Any]) -> Any:
        """Fitted model of some arguments; None if it has to be solved alone.

        Parameters
        ----------
        arguments : mapping
            Those of one model of the group.
        solved : callable
            Fits the rows of the group to targets of shape (n, t), in a store; None if less accurate than required.
        """
        if self._found is None:
            self._found = self._solved_models(solved)
        self._taken += 1
        return self._found.pop(arguments["model_path"], None)

    @property
    def is_over(self) -> bool:
        """Whether all models have been handed out."""
        return self._taken == len(self.group)

    def _solved_models(self, solved: Callable[..., Any]) -> dict[str, Any]:
        targets = {path: y for path, arguments in self.group.items() if (y := _targets(arguments)) is not None}
        lengths = {len(y) for y in targets.values()}
        if len(targets) < 2 or len(lengths) > 1:
            return {}  # each fails, or is solved, by itself
        logger.info("solved together with %d others: they differ only in their targets", len(targets) - 1)
        columns = [y[:, None] if y.ndim == 1 else y for y in targets.values()]
        try:
            model = solved(np.hstack(columns), self.store)
        except (DkrrError, MemoryError) as error:
            logger.warning("%d models together failed, and are solved one by one: %s", len(targets), error)
            return {}
        if model is None:
            logger.warning(
                "%d models together are less accurate than required: they are solved one by one", len(targets)
            )
            return {}
        ends = np.cumsum([y.shape[1] for y in columns])
        return {
            path: model.of_targets(slice(end - y.shape[1], end), is_vector=targets[path].ndim == 1)
            for path, y, end in zip(targets, columns, ends, strict=True)
        }


def parts_of(group: Sequence[Mapping[str, Any]]) -> list[Together]:
    """Models of a group in parts whose targets fit into memory."""
    if len(group) < 2:
        return []
    parts: list[list[Mapping[str, Any]]] = [[]]
    total = 0
    for arguments in group:
        n_bytes = 8 * int(np.prod(open_path(arguments["y_path"], "y").shape))
        total += n_bytes
        if total > MAX_BYTES and parts[-1]:
            parts.append([])
            total = n_bytes
        parts[-1].append(arguments)
    return [Together(part) for part in parts if len(part) > 1]


def _targets(arguments: Mapping[str, Any]) -> Any:
    """Targets of a model; None if they cannot be used: by itself its fit says why."""
    try:
        y = load_array(arguments["y_path"])
    except (DkrrError, OSError):
        return None
    return y if y.ndim in (1, 2) and 0 not in y.shape and np.isfinite(y).all() else None
