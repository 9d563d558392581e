"""Graphs as CSR rows of whole numbers, and back: lossless, self-contained, nothing pickled.

A row is a sequence from column 0 on, without gaps::

    kind, n_nodes, n_edges mod 2²⁰ + 1, n_edges div 2²⁰ + 1, length + 1, alphabet..., label of each node..., edges...

kind is 1 without labels, 2 for whole numbers, 3 for strings. The alphabet is the distinct labels of the graph in order,
each as the bytes of its text in UTF-8, plus one, and 257 after each; `length` counts its entries. A node's label is its
place in the alphabet, from 1; an edge is two nodes, from 1, the smaller first; edges are in order. All entries are
positive, so that CSR stores them, and below 2²⁴, so that float32 is exact.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp

from dkrr.errors import InputError, InputTypeError
from dkrr.kernels.graphs import INT_LABELS, MAX_NODES, NO_LABELS, STR_LABELS, Graph, Integers, as_graph
from dkrr.sparse import check_structure

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
