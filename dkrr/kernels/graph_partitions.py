"""Coarsest equitable partitions of graphs, by colour refinement: `random_walk` says what they are for."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from dkrr.kernels.graphs import NO_LABELS, GraphBlock, Integers, check_same_kind, read_graphs

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Groups:
    """Consecutive items that share a graph and a key: nodes of one label, or edges between two labels."""

    pointers: Integers
    """(n_graphs + 1,), where the groups of each graph start."""
    keys: Integers
    """(n_groups,), ascending within a graph."""
    firsts: Integers
    """(n_groups,), the first item of each."""
    counts: Integers
    """(n_groups,)."""

    @classmethod
    def of(cls, graphs: Integers, keys: Integers, n_graphs: int) -> Groups:
        """Groups of items that are in order of their graph, then of their key."""
        new = np.ones(len(graphs), dtype=bool)
        new[1:] = (np.diff(graphs) != 0) | (np.diff(keys) != 0)
        firsts = np.flatnonzero(new)
        pointers = np.searchsorted(graphs[firsts], np.arange(n_graphs + 1))
        return cls(pointers, keys[firsts], firsts, np.diff(firsts, append=len(graphs)))

    def matched(self, g: Integers, h: Integers, other: Groups, n_keys: int) -> tuple[Integers, Integers, Integers]:
        """Pair, own group and group of `other` wherever graph g[i] here and graph h[i] of `other` share a key."""
        per_pair = np.diff(self.pointers)[g]
        pair = np.repeat(np.arange(len(g)), per_pair)
        ours = ranges(self.pointers[g], per_pair)
        if not (len(pair) and len(other.keys)):
            return pair[:0], ours[:0], ours[:0]
        known = np.repeat(np.arange(len(other.pointers) - 1), np.diff(other.pointers)) * n_keys + other.keys
        sought = h[pair] * n_keys + self.keys[ours]
        theirs = np.searchsorted(known, sought)
        np.minimum(theirs, len(known) - 1, out=theirs)
        hit = known[theirs] == sought
        return pair[hit], ours[hit], theirs[hit]


def ranges(firsts: Integers, counts: Integers) -> Integers:
    """First, first + 1, ... first + count - 1 for each of them, one after the other."""
    stops = np.cumsum(counts)
    total = int(stops[-1]) if len(stops) else 0
    places: Integers = np.arange(total) + np.repeat(firsts - (stops - counts), counts)
    return places


@dataclass(frozen=True)
class Quotients:
    """The equitable partitions of some graphs, in order of graph, label and class."""

    labelled: bool
    n_labels: int
    nodes: Groups
    """Classes by label."""
    starts: Floats
    """(n_classes,), b = √m."""
    edges: Groups
    """Directed edges between classes by the labels of their ends, (label of source) n_labels + (label of target)."""
    sources: Integers
    targets: Integers
    """(n_edges,), classes."""
    weights: Floats
    """(n_edges,), entries of S."""

    @property
    def n_graphs(self) -> int:
        """Number of graphs."""
        return len(self.nodes.pointers) - 1

    @cached_property
    def first_classes(self) -> Integers:
        """(n_graphs + 1,), where the classes of each graph start."""
        return np.append(self.nodes.firsts, len(self.starts))[self.nodes.pointers]

    @cached_property
    def source_places(self) -> npt.NDArray[np.int32]:
        """(n_edges,), place of each edge's source in its group."""
        return self._places[self.sources]

    @cached_property
    def target_places(self) -> npt.NDArray[np.int32]:
        """(n_edges,), place of each edge's target in its group."""
        return self._places[self.targets]

    @cached_property
    def _places(self) -> npt.NDArray[np.int32]:
        return (np.arange(len(self.starts)) - np.repeat(self.nodes.firsts, self.nodes.counts)).astype(np.int32)

    def matrix(self) -> sp.csr_array:
        """S of all graphs, (n_classes, n_classes)."""
        n = len(self.starts)
        return sp.csr_array((self.weights, (self.sources, self.targets)), shape=(n, n))


def quotients(X: Any, Y: Any) -> tuple[Quotients, Quotients]:
    """Partitions of two blocks of encoded rows, with labels numbered alike; one twice for Y is X."""
    vocabulary: dict[bytes, int] = {}
    left = read_graphs(X, vocabulary, "X")
    right = left if Y is X else read_graphs(Y, vocabulary, "Y")
    check_same_kind(left, right)
    # Numbers in the order of the texts: the order of nodes must not depend on which graphs are read together.
    numbers = np.empty(max(1, len(vocabulary)), dtype=np.int64)
    numbers[[vocabulary[text] for text in sorted(vocabulary)] or [0]] = np.arange(len(numbers))
    first = _quotients(left, numbers)
    return first, first if right is left else _quotients(right, numbers)


def _quotients(block: GraphBlock, numbers: Integers) -> Quotients:
    graph = np.repeat(np.arange(len(block.sizes)), block.sizes)
    label = numbers[block.labels]
    source, target = np.concatenate([block.edges, block.edges[:, ::-1]]).T
    colour = _refined(label, graph, source, target)
    # Colours are finer than labels; a class is a colour in a graph.
    order = np.lexsort((colour, label, graph))
    new = np.ones(len(order), dtype=bool)
    new[1:] = (np.diff(graph[order]) != 0) | (np.diff(colour[order]) != 0)
    class_of = np.empty(len(order), dtype=np.int64)
    class_of[order] = np.cumsum(new) - 1
    firsts = np.flatnonzero(new)
    sizes = np.diff(firsts, append=len(order)).astype(np.float64)
    graph, label = graph[order[firsts]], label[order[firsts]]

    joined, counts = np.unique(class_of[source] * len(firsts) + class_of[target], return_counts=True)
    source, target = np.divmod(joined, len(firsts))
    weights = counts / np.sqrt(sizes[source] * sizes[target])
    key = label[source] * len(numbers) + label[target]
    order = np.lexsort((target, source, key, graph[source]))
    return Quotients(
        labelled=block.kind != NO_LABELS,
        n_labels=len(numbers),
        nodes=Groups.of(graph, label, len(block.sizes)),
        starts=np.sqrt(sizes),
        edges=Groups.of(graph[source][order], key[order], len(block.sizes)),
        sources=source[order],
        targets=target[order],
        weights=weights[order],
    )


def _refined(colour: Integers, graph: Integers, source: Integers, target: Integers) -> Integers:
    """Refine colours until nodes of one colour in a graph have neighbours of the same colours, equally many of each.

    A round gives each node a code for its colour and the sorted colours of its neighbours, added one by one. Codes keep
    the order of what they stand for, so that the order of a graph's classes does not depend on the other graphs, or on
    the number of their rounds.
    """
    n_classes = 0
    while True:
        order = np.lexsort((colour[target], source))
        node, seen = source[order], colour[target[order]]
        place = np.arange(len(node)) - np.searchsorted(node, node)
        by_place = np.argsort(place, kind="stable")
        code, n_colours = colour.copy(), int(colour.max(initial=0)) + 1
        for taken in np.split(by_place, np.flatnonzero(np.diff(place[by_place])) + 1):
            if len(taken):
                own = node[taken]
                _, ranks = np.unique(code[own] * n_colours + seen[taken], return_inverse=True)
                code[own] = code.max() + 1 + ranks
        _, colour = np.unique(code, return_inverse=True)
        n_before, n_classes = n_classes, len(np.unique(graph * (int(colour.max(initial=0)) + 1) + colour))
        if n_classes == n_before:
            return colour
