"""Undirected graphs as values, made from networkx graphs, adjacency matrices or lists of edges."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from numbers import Integral
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from dkrr.errors import InputError, InputTypeError
from dkrr.sparse import check_structure
from dkrr.values import n_dimensions, whole

MAX_NODES = 2**24 - 1
"""Bound up to which float32 represents all whole numbers."""

NO_LABELS, INT_LABELS, STR_LABELS = 1, 2, 3

_EXPECTED = (
    "expected a networkx graph, a pair (adjacency, labels), a triple (n_nodes, edges, labels) or a dkrr.kernels.Graph"
)

Integers = npt.NDArray[np.int64]
Label = int | str


@dataclass(frozen=True)
class Graph:
    """An undirected graph without weights and loops, its nodes labelled or not.

    Parameters
    ----------
    n_nodes : int
        At least 1.
    edges : sequence of pairs of int, or array of shape (n_edges, 2)
        Each edge once, in either direction; nodes count from 0. Kept as sorted pairs, the smaller node first.
    labels : sequence of int or of str, optional
        One for each node, all of a kind. Kept as a tuple.

    Examples
    --------
    >>> from dkrr.kernels import Graph
    >>> Graph(3, [(0, 1), (2, 1)], ["C", "O", "H"])
    Graph(n_nodes=3, edges=((0, 1), (1, 2)), labels=('C', 'O', 'H'))
    """

    n_nodes: int
    edges: Any
    labels: Any = None

    def __post_init__(self) -> None:
        n_nodes = whole(self.n_nodes, "n_nodes", 1, "leave empty graphs out")
        if n_nodes > MAX_NODES:
            raise InputError(f"n_nodes is {n_nodes}; expected at most {MAX_NODES}")
        object.__setattr__(self, "n_nodes", n_nodes)
        object.__setattr__(self, "edges", tuple((a, b) for a, b in _sorted_edges(self.edges, n_nodes).tolist()))
        object.__setattr__(self, "labels", _plain_labels(self.labels, n_nodes))

    @property
    def kind(self) -> int:
        """Kind of labels: NO_LABELS, INT_LABELS or STR_LABELS."""
        if self.labels is None:
            return NO_LABELS
        return STR_LABELS if isinstance(self.labels[0], str) else INT_LABELS


def as_graph(item: Any, label: str | None = "label") -> Graph:
    """Graph from a `Graph`, a networkx graph, a pair (adjacency, labels) or a triple (n_nodes, edges, labels), checked.

    `label` is the attribute of networkx nodes that is their label; None means no labels.
    """
    if isinstance(item, Graph):
        return item
    # Not imported here: who has such a graph has imported networkx.
    networkx = sys.modules.get("networkx")
    if networkx is not None and isinstance(item, networkx.Graph):
        return _from_networkx(item, label)
    if isinstance(item, tuple | list) and len(item) == 2:
        return _from_adjacency(*item)
    if isinstance(item, tuple | list) and len(item) == 3:
        return Graph(*item)
    raise InputTypeError(f"is of type {type(item).__module__}.{type(item).__qualname__}; {_EXPECTED}")


def _sorted_edges(edges: Any, n_nodes: int) -> Integers:
    """Checked edges in order, the smaller node of each first, (n_edges, 2)."""
    try:
        if isinstance(edges, str | bytes):
            raise TypeError("text")
        ends = np.asarray(edges if isinstance(edges, np.ndarray) else list(edges))
    except (TypeError, ValueError) as error:
        raise InputTypeError(
            f"its edges are {type(edges).__qualname__}; expected pairs of nodes: {_EXPECTED}"
        ) from error
    if ends.size == 0:
        return np.zeros((0, 2), dtype=np.int64)
    if ends.ndim != 2 or ends.shape[1] != 2 or ends.dtype.kind not in "iu":
        raise InputTypeError(
            f"its edges are of dtype {ends.dtype} and shape {ends.shape}; expected pairs of whole numbers, "
            "(n_edges, 2): weighted graphs are not supported"
        )
    if ends.min() < 0 or ends.max() >= n_nodes:
        raise InputError(
            f"n_nodes is {n_nodes}, and an edge names node {_outside(ends, n_nodes)}; expected 0 to {n_nodes - 1}"
        )
    ends = np.sort(ends.astype(np.int64), axis=1)
    loops = ends[ends[:, 0] == ends[:, 1]]
    if len(loops):
        raise InputError(f"node {loops[0, 0]} has an edge to itself; expected no loops: leave them out")
    ends = ends[np.lexsort((ends[:, 1], ends[:, 0]))]
    twice = ends[1:][(ends[1:] == ends[:-1]).all(axis=1)]
    if len(twice):
        raise InputError(
            f"the edge {tuple(twice[0].tolist())} is given more than once; expected each edge once, in one direction: "
            "weighted and directed graphs are not supported"
        )
    return ends


def _outside(ends: npt.NDArray[Any], n_nodes: int) -> int:
    return int(ends[(ends < 0) | (ends >= n_nodes)][0])


def _plain_labels(labels: Any, n_nodes: int) -> tuple[Label, ...] | None:
    """Checked labels as Python's own ints or strings."""
    if labels is None:
        return None
    if isinstance(labels, str | bytes | dict | set) or not hasattr(labels, "__len__") or n_dimensions(labels) != 1:
        raise InputTypeError(
            f"its labels are of type {type(labels).__qualname__}; expected a sequence of whole numbers or strings, "
            "one for each node in order, or None"
        )
    if len(labels) != n_nodes:
        raise InputError(f"it has {len(labels)} labels for {n_nodes} nodes; expected one for each")
    if all(isinstance(label, str) for label in labels):
        return tuple(str(label) for label in labels)
    if all(isinstance(label, Integral) and not isinstance(label, bool) for label in labels):
        return tuple(int(label) for label in labels)
    kinds = ", ".join(sorted({type(label).__qualname__ for label in labels}))
    raise InputTypeError(
        f"its labels are of type {kinds}; expected whole numbers only or strings only: convert them, for example by str"
    )


def _from_adjacency(adjacency: Any, labels: Any) -> Graph:
    sparse = sp.issparse(adjacency)
    if not (sparse or isinstance(adjacency, np.ndarray)):
        raise InputTypeError(
            f"its adjacency is of type {type(adjacency).__qualname__}; expected a square numpy array or scipy.sparse "
            f"matrix of zeros and ones: {_EXPECTED}"
        )
    if adjacency.ndim != 2 or adjacency.shape[0] != adjacency.shape[1]:
        raise InputError(f"its adjacency has shape {adjacency.shape}; expected a square matrix")
    if adjacency.dtype.kind not in "fiub":
        raise InputTypeError(f"its adjacency has dtype {adjacency.dtype}; expected zeros and ones")
    if sparse:
        check_structure(adjacency, "its adjacency")
    table: Any = sp.csr_array(adjacency) if sparse else np.asarray(adjacency)
    if sparse and not table.has_canonical_format:
        table = table.copy()
        table.sum_duplicates()
    entries = table.data if sparse else table
    # NaN is neither 0 nor 1.
    if not np.all((entries == 0) | (entries == 1)):
        raise InputError("its adjacency has entries other than 0 and 1; expected a graph without weights")
    row, column = (np.asarray(places, dtype=np.int64) for places in table.nonzero())
    n_nodes = int(table.shape[0])
    if not np.array_equal(np.sort(row * n_nodes + column), np.sort(column * n_nodes + row)):
        raise InputError("its adjacency is not symmetric; expected an undirected graph")
    once = row <= column
    return Graph(n_nodes, np.column_stack([row[once], column[once]]), labels)


def _from_networkx(graph: Any, label: str | None) -> Graph:
    if graph.is_directed() or graph.is_multigraph():
        raise InputTypeError(
            f"is a networkx {type(graph).__name__}; expected an undirected networkx.Graph: use networkx.Graph(graph) "
            "if neither directions nor parallel edges matter"
        )
    number = {node: place for place, node in enumerate(graph.nodes)}
    for one, other, weight in graph.edges(data="weight", default=1):
        if weight != 1:
            raise InputError(f"the edge {(one, other)!r} has weight {weight!r}; expected a graph without weights")
    edges = [(number[one], number[other]) for one, other in graph.edges]
    return Graph(len(number), edges, None if label is None else _networkx_labels(graph, label))


def _networkx_labels(graph: Any, label: str) -> list[Any] | None:
    attributes = [data for _, data in graph.nodes(data=True)]
    without = [node for node, data in graph.nodes(data=True) if label not in data]
    if not without:
        return [data[label] for data in attributes]
    if not any(attributes):
        return None
    others = sorted({str(key) for data in attributes for key in data} - {label})
    raise InputError(
        f"node {without[0]!r} has no attribute {label!r}, but nodes have attributes "
        f"({', '.join(others) or label}); expected it at every node: name the attribute that is the label "
        "(label=...), or use label=None for no labels"
    )
