"""Undirected graphs as values, made from networkx graphs, adjacency matrices or lists of edges.

Graphs as CSR rows of whole numbers, and back: lossless, self-contained, nothing pickled.

A row is a sequence from column 0 on, without gaps::

    kind, n_nodes, n_edges mod 2²⁰ + 1, n_edges div 2²⁰ + 1, length + 1, alphabet..., label of each node..., edges...

kind is 1 without labels, 2 for whole numbers, 3 for strings. The alphabet is the distinct labels of the graph in order,
each as the bytes of its text in UTF-8, plus one, and 257 after each; `length` counts its entries. A node's label is its
place in the alphabet, from 1; an edge is two nodes, from 1, the smaller first; edges are in order. All entries are
positive, so that CSR stores them, and below 2²⁴, so that float32 is exact.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from dkrr.checks import n_dimensions, whole
from dkrr.errors import InputError, InputTypeError
from dkrr.sparse import check_structure

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

    See Also
    --------
    dkrr.kernels.RandomWalk : Walks that two graphs have in common.

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
    if is_networkx(item):
        return _from_networkx(item, label)
    if isinstance(item, tuple | list) and len(item) == 2:
        return _from_adjacency(*item)
    if isinstance(item, tuple | list) and len(item) == 3:
        return Graph(*item)
    raise InputTypeError(f"is of type {type(item).__module__}.{type(item).__qualname__}; {_EXPECTED}")


def is_graph(item: Any) -> bool:
    """Whether a value is a `Graph` or a graph of networkx."""
    return isinstance(item, Graph) or is_networkx(item)


def is_networkx(item: Any) -> bool:
    """Whether a value is a graph of networkx, told without importing it: who has one has imported it."""
    networkx = sys.modules.get("networkx")
    return networkx is not None and isinstance(item, networkx.Graph)


def _sorted_edges(edges: Any, n_nodes: int) -> Integers:
    """Checked edges in order, the smaller node of each first, (n_edges, 2)."""
    if isinstance(edges, Mapping):
        raise InputTypeError(
            "its edges are a dict, and edges have no labels here; expected pairs of nodes: list(edges), without them"
        )
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
            "(n_edges, 2): weighted graphs are not supported, nor labels of edges"
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
        raise InputError(f"its labels are {len(labels)}, and its nodes {n_nodes}; expected one label for each")
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
    if label is not None:
        _refuse_edge_labels(graph)
    edges = [(number[one], number[other]) for one, other in graph.edges]
    return Graph(len(number), edges, None if label is None else _networkx_labels(graph, label))


def _refuse_edge_labels(graph: Any) -> None:
    for one, other, data in graph.edges(data=True):
        labels = sorted(map(str, data.keys() - {"weight"}))
        if labels:
            raise InputError(
                f"the edge {(one, other)!r} has attributes ({', '.join(labels)}), and edges have no labels here; "
                f"expected edges alone: remove them (for _, _, data in graph.edges(data=True): data.clear()), put what "
                f"they say into the labels of nodes, or use label=None for a kernel that looks at no labels"
            )


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


GRAPH_WIDTH = 2**31 - 1
"""Columns of encoded graphs of any size, so that rows of any two sets of graphs fit each other."""

_KIND_NAMES = {NO_LABELS: "no labels", INT_LABELS: "whole numbers as labels", STR_LABELS: "strings as labels"}

_HEAD = 5
_DIGIT = 2**20
_END_OF_LABEL = 257
# Strings may contain halves of surrogate pairs, which UTF-8 refuses otherwise.
_LENIENT = "surrogatepass"


@dataclass(frozen=True)
class GraphBlock:
    """Some graphs side by side, as one graph of many components."""

    kind: int
    """Kind of labels that all of them have."""
    sizes: Integers
    """(n_graphs,), nodes of each."""
    labels: Integers
    """(n_nodes,), the label of each node as a place in a vocabulary; zeros without labels."""
    edges: Integers
    """(n_edges, 2), nodes counted over all graphs."""
    edge_counts: Integers
    """(n_graphs,), edges of each."""


def encode_graphs(graphs: Sequence[Any], label: str | None = "label") -> sp.csr_array:
    """CSR rows of graphs in any of the forms that `as_graph` takes, of shape (n_graphs, GRAPH_WIDTH), float64.

    All have to have the same kind of labels; errors name the number of the graph.
    """
    rows: list[list[int]] = []
    first = NO_LABELS
    for number, item in enumerate(graphs):
        try:
            graph = as_graph(item, label)
        except InputError as error:
            raise type(error)(f"graph {number}: {error}") from error
        if number == 0:
            first = graph.kind
        if graph.kind != first:
            raise InputTypeError(
                f"graph {number} has {_KIND_NAMES[graph.kind]} and graph 0 has {_KIND_NAMES[first]}; expected one kind "
                "for all graphs: label them alike, or none of them"
            )
        rows.append(_row(graph))
    starts = np.concatenate([[0], np.cumsum([len(row) for row in rows], dtype=np.int64)])
    total = int(starts[-1])
    data = np.fromiter((value for row in rows for value in row), dtype=np.float64, count=total)
    indices = np.arange(total) - np.repeat(starts[:-1], np.diff(starts))
    kept = np.int32 if total <= np.iinfo(np.int32).max else np.int64
    return sp.csr_array((data, indices.astype(kept), starts.astype(kept)), shape=(len(rows), GRAPH_WIDTH))


def read_graphs(X: Any, vocabulary: dict[bytes, int], name: str = "X") -> GraphBlock:
    """Rows of `encode_graphs` as arrays, checked; new labels are added to `vocabulary`, from their text to a number."""
    if not sp.issparse(X) or X.shape[1] != GRAPH_WIDTH:
        raise InputError(
            f"{name} has shape {X.shape}; expected graphs as encoded rows, CSR of {GRAPH_WIDTH} columns: give a list "
            "of graphs, or what the kernel's encode made of it"
        )
    check_structure(X, name)
    starts = X.indptr.astype(np.int64)
    with np.errstate(invalid="ignore"):
        values = X.data.astype(np.int64)
    gapless = np.array_equal(X.indices, np.arange(len(values)) - np.repeat(starts[:-1], np.diff(starts)))
    if not (gapless and np.array_equal(values, X.data) and values.min(initial=1) > 0):
        raise InputError(f"{name} holds rows that are not encoded graphs; expected what the kernel's encode made")
    parts = []
    for g in range(X.shape[0]):
        try:
            parts.append(_read_row(values[starts[g] : starts[g + 1]], vocabulary))
        except (ValueError, IndexError) as error:
            raise InputError(
                f"row {g} of {name} is not an encoded graph; expected what the kernel's encode made"
            ) from error
        if parts[g][0] != parts[0][0]:
            raise InputError(
                f"row {g} of {name} is a graph with {_KIND_NAMES[parts[g][0]]} and row 0 one with "
                f"{_KIND_NAMES[parts[0][0]]}; expected one kind for all graphs"
            )
    sizes = np.array([len(labels) for _, labels, _ in parts], dtype=np.int64)
    edge_counts = np.array([len(edges) for _, _, edges in parts], dtype=np.int64)
    none = np.zeros(0, dtype=np.int64)
    edges = np.concatenate([none.reshape(0, 2), *(edges for _, _, edges in parts)])
    edges += np.repeat(_starts(sizes), edge_counts)[:, np.newaxis]
    labels = np.concatenate([none, *(labels for _, labels, _ in parts)])
    return GraphBlock(parts[0][0] if parts else NO_LABELS, sizes, labels, edges, edge_counts)


def check_same_kind(left: GraphBlock, right: GraphBlock) -> None:
    """Raise InputError unless the graphs of X and of Y have labels of one kind."""
    if left.kind != right.kind and len(left.sizes) and len(right.sizes):
        raise InputError(
            f"X's graphs have {_KIND_NAMES[left.kind]} and Y's have {_KIND_NAMES[right.kind]}; expected one kind for "
            "all graphs: label them alike, or none of them"
        )


def _row(graph: Graph) -> list[int]:
    edges = [node + 1 for edge in graph.edges for node in edge]
    head = [graph.kind, graph.n_nodes, len(graph.edges) % _DIGIT + 1, len(graph.edges) // _DIGIT + 1]
    if graph.labels is None:
        return [*head, 1, *edges]
    place = {label: number for number, label in enumerate(sorted(set(graph.labels)), 1)}
    alphabet = [
        value
        for label in place
        for value in (*(byte + 1 for byte in str(label).encode(errors=_LENIENT)), _END_OF_LABEL)
    ]
    if len(alphabet) >= MAX_NODES:
        raise InputError(f"its labels are {len(alphabet)} bytes of text; expected fewer than {MAX_NODES}: use numbers")
    return [*head, len(alphabet) + 1, *alphabet, *(place[label] for label in graph.labels), *edges]


def _read_row(row: Integers, vocabulary: dict[bytes, int]) -> tuple[int, Integers, Integers]:
    """Kind of labels, number of each node's label in the vocabulary, and edges; ValueError or IndexError if damaged."""
    kind, n_nodes, low, high, length = (int(value) for value in row[:_HEAD])
    n_edges, nodes_at = low - 1 + (high - 1) * _DIGIT, _HEAD + length - 1
    edges_at = nodes_at + (0 if kind == NO_LABELS else n_nodes)
    if kind not in _KIND_NAMES or n_nodes > MAX_NODES or len(row) != edges_at + 2 * n_edges:
        raise ValueError("wrong length")
    edges = row[edges_at:].reshape(-1, 2) - 1
    if n_edges and not (edges.max() < n_nodes and (edges[:, 0] < edges[:, 1]).all()):
        raise ValueError("edges of nodes that do not exist")
    if kind == NO_LABELS:
        return kind, np.zeros(n_nodes, dtype=np.int64), edges
    texts, text = [], bytearray()
    for value in row[_HEAD:nodes_at].tolist():
        if value == _END_OF_LABEL:
            texts.append(bytes(text))
            text.clear()
        else:
            text.append(value - 1)
    numbers = np.array([vocabulary.setdefault(text, len(vocabulary)) for text in texts], dtype=np.int64)
    return kind, numbers[row[nodes_at:edges_at] - 1], edges


def _starts(counts: Integers) -> Integers:
    """Sum of the counts before each."""
    return np.asarray(np.cumsum(counts) - counts, dtype=np.int64)
