"""Sums over the walks that graphs have in common, for many pairs of graphs at a time.

A graph is first replaced by its coarsest equitable partition: nodes that colour refinement cannot tell apart (the
hydrogens of one methyl group, say) start equally many walks through every sequence of labels, so one class stands for
all of them. With m the sizes of the classes and E the numbers of directed edges between them, the symmetric matrix
S = D^(-1/2) E D^(-1/2), D = diag m, has 1ᵀAˡ1 = bᵀSˡb for b = √m and every l, and likewise for products of graphs.

Without labels the eigenvalues of a product are the products of eigenvalues, and the sum over all walks is a double sum
over those of either graph. With labels the products of many pairs of graphs become one sparse block-diagonal matrix, on
which conjugate gradients run for all pairs at once, each with step lengths of its own. All arithmetic runs within a
pair and in an order that the (ordered) pair alone decides: an entry is the same to the last bit in whatever block.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp
from scipy.sparse.linalg import eigsh

from dkrr.errors import InputError
from dkrr.kernels.blocks import FloatArray
from dkrr.kernels.graph_rows import NO_LABELS, GraphBlock, Integers, check_same_kind, read_graphs

Floats = npt.NDArray[np.float64]

# Pairs matched at once, and nodes and edges of their products that are worked on at once: few enough to stay in cache.
MATCHED_PAIRS = 1024
PRODUCT_ENTRIES = 2**16

# Bound of the relative error of a sum at which its conjugate gradients stop.
SUM_TOLERANCE = 1e-14
# Residual of the system of a graph with itself, relative to its right-hand side: its solution is a certificate.
OWN_TOLERANCE = 1e-12
# Least 1 - decay x spectral radius; nearer to 0, rounding would be multiplied by more than a million.
MIN_GAP = 1e-6
MAX_ITERATIONS = 50_000

# Up to this many nodes the spectral radius for a message is computed densely.
DENSE_NODES = 500
# Decay that a message proposes, relative to the largest possible.
SAFE_FRACTION = 0.9


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
        """Return the groups of items that are in order of their graph, then of their key."""
        new = np.ones(len(graphs), dtype=bool)
        new[1:] = (np.diff(graphs) != 0) | (np.diff(keys) != 0)
        firsts = np.flatnonzero(new)
        pointers = np.searchsorted(graphs[firsts], np.arange(n_graphs + 1))
        return cls(pointers, keys[firsts], firsts, np.diff(firsts, append=len(graphs)))

    def matched(self, g: Integers, h: Integers, other: Groups, n_keys: int) -> tuple[Integers, Integers, Integers]:
        """Return pair, own group and other's group wherever graph g[i] here and graph h[i] there share a key."""
        per_pair = np.diff(self.pointers)[g]
        pair = np.repeat(np.arange(len(g)), per_pair)
        ours = np.arange(len(pair)) + np.repeat(self.pointers[g] - (np.cumsum(per_pair) - per_pair), per_pair)
        if not (len(pair) and len(other.keys)):
            return pair[:0], ours[:0], ours[:0]
        known = np.repeat(np.arange(len(other.pointers) - 1), np.diff(other.pointers)) * n_keys + other.keys
        wanted = h[pair] * n_keys + self.keys[ours]
        theirs = np.searchsorted(known, wanted)
        np.minimum(theirs, len(known) - 1, out=theirs)
        hit = known[theirs] == wanted
        return pair[hit], ours[hit], theirs[hit]


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
        """How many graphs."""
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
        """Return S of all graphs, (n_classes, n_classes)."""
        n = len(self.starts)
        return sp.csr_array((self.weights, (self.sources, self.targets)), shape=(n, n))


def quotients(X: Any, Y: Any) -> tuple[Quotients, Quotients]:
    """Return the partitions of two blocks of encoded rows, with labels numbered alike; one twice for Y is X."""
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

    A round gives each node a code for its colour and the sorted colours of its neighbours, taken in one after the
    other. Codes keep the order of what they stand for, so that a graph's classes come in the same order whatever other
    graphs are there, and however many rounds those take.
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


class CommonWalks(ABC):
    """Σ_l λˡ c_l(G, H) over all lengths l, or over those up to `steps`, for the pairs of two blocks of graphs.

    Parameters
    ----------
    left, right : Quotients
        Of X and of Y; the same for a symmetric block.
    decay : float
        λ.
    steps : int or None

    Attributes
    ----------
    own_left, own_right : ndarray of shape (n_graphs,)
        Sums of each graph with itself. They are finite, and so are then those of all pairs.
    """

    def __init__(self, left: Quotients, right: Quotients, decay: float, steps: int | None) -> None:
        self.left, self.right, self.decay, self.steps = left, right, decay, steps
        self.own_left = self._own(left, "X")
        self.own_right = self.own_left if right is left else self._own(right, "Y")

    @abstractmethod
    def fill(self, rows: slice, columns: slice, out: FloatArray) -> None:
        """Write the sums; for a symmetric block zeros above the diagonal, where they are mirrored to later."""

    @abstractmethod
    def _own(self, side: Quotients, name: str) -> Floats:
        """Return the sums of graphs with themselves, or raise InputError if some are infinite."""

    def _end(self, row: int, columns: slice) -> int:
        """Return the end of the columns that are wanted in a row."""
        end = max(columns.start, min(columns.stop, row + 1)) if self.right is self.left else columns.stop
        return int(end)


def common_walks(X: Any, Y: Any, decay: float, steps: int | None) -> CommonWalks:
    """Return the sums for two blocks of encoded rows; Y is X for a symmetric block."""
    left, right = quotients(X, Y)
    if left.labelled:
        return ProductWalks(left, right, decay, steps)
    return SpectralWalks(left, right, decay) if steps is None else ShortWalks(left, right, decay, steps)


class ShortWalks(CommonWalks):
    """Few steps without labels: c_l(G, H) = c_l(G) c_l(H), the numbers of walks in either graph alone."""

    def __init__(self, left: Quotients, right: Quotients, decay: float, steps: int) -> None:
        # λ^(l/2) c_l(G), (steps + 1, n_graphs).
        self._counts = {
            id(side): _moments(np.sqrt(decay) * side.matrix(), side.starts, side.first_classes[:-1], steps)
            for side in ((left,) if right is left else (left, right))
        }
        super().__init__(left, right, decay, steps)

    def fill(self, rows: slice, columns: slice, out: FloatArray) -> None:
        """Write the sums."""
        counts, others = self._counts[id(self.left)][:, rows], self._counts[id(self.right)][:, columns]
        strip = np.zeros(out.shape)
        for ours, theirs in zip(counts, others, strict=True):
            strip += np.multiply.outer(ours, theirs)
        out[...] = strip

    def _own(self, side: Quotients, name: str) -> Floats:  # noqa: ARG002
        with np.errstate(over="ignore"):
            return _checked_finite(np.sum(self._counts[id(side)] ** 2, axis=0), self.decay)


class SpectralWalks(CommonWalks):
    """Any number of steps without labels: with c_l(G) = Σ_i w_i μ_iˡ, an entry is Σ_ij w_i w_j / (1 - λ μ_i μ_j)."""

    def __init__(self, left: Quotients, right: Quotients, decay: float) -> None:
        self._spectra = {id(side): _spectrum(side) for side in ((left,) if right is left else (left, right))}
        super().__init__(left, right, decay, None)

    def fill(self, rows: slice, columns: slice, out: FloatArray) -> None:
        """Write the sums."""
        for row in range(rows.start, rows.stop):
            end = self._end(row, columns)
            out[row - rows.start, : end - columns.start] = self._sums(row, columns.start, end)
            out[row - rows.start, end - columns.start :] = 0.0

    def _own(self, side: Quotients, name: str) -> Floats:
        radii = np.maximum.reduceat(np.abs(self._spectra[id(side)][0]), side.first_classes[:-1]) ** 2
        bad = np.flatnonzero(self.decay * radii > 1 - MIN_GAP)
        if len(bad):
            raise _endless(self.decay, radii[bad], bad, name)
        return np.array([self._sums(g, g, g + 1, side, side)[0] for g in range(side.n_graphs)])

    def _sums(
        self, row: int, start: int, stop: int, left: Quotients | None = None, right: Quotients | None = None
    ) -> Floats:
        """Return the sums of a graph with others, a pass over these for each of its eigenvalues."""
        left, right = left or self.left, right or self.right
        if start == stop:
            return np.zeros(0)
        first = right.first_classes[start : stop + 1]
        ours = slice(*left.first_classes[row : row + 2])
        values, weights = (part[ours] for part in self._spectra[id(left)])
        others, their_weights = (part[first[0] : first[-1]] for part in self._spectra[id(right)])
        total, term = np.zeros(len(others)), np.empty(len(others))
        for value, weight in zip(values, weights, strict=True):
            np.multiply(others, -self.decay * value, out=term)
            term += 1.0
            np.divide(weight, term, out=term)
            total += term
        total *= their_weights
        return np.asarray(np.add.reduceat(total, first[:-1] - first[0]))


def _spectrum(side: Quotients) -> tuple[Floats, Floats]:
    """Return eigenvalues and weights w_i = (uᵢᵀb)² of all graphs' S, (n_classes,) each."""
    values, weights = np.empty(len(side.starts)), np.empty(len(side.starts))
    matrix, first = side.matrix(), side.first_classes
    for start, stop in pairwise(first):
        one = slice(start, stop)
        values[one], vectors = np.linalg.eigh(matrix[one, one].toarray())
        weights[one] = np.einsum("ij,i->j", vectors, side.starts[one]) ** 2
    return values, weights


@dataclass(frozen=True)
class Products:
    """The direct products of some pairs of graphs that have a label in common, as one matrix."""

    pairs: Integers
    """(n_pairs,), which pairs."""
    firsts: Integers
    """(n_pairs,), where the nodes of each start."""
    starts: Floats
    """(n_nodes,), b."""
    matrix: sp.csr_array
    """(n_nodes, n_nodes), λ S."""


class ProductWalks(CommonWalks):
    """Labelled graphs: walks in direct products, whose nodes are the pairs of equally labelled nodes."""

    def __init__(self, left: Quotients, right: Quotients, decay: float, steps: int | None) -> None:
        # Bounds below 1 of λ times the spectral radius of each graph's product with itself.
        self._rates: dict[int, Floats] = {}
        super().__init__(left, right, decay, steps)

    def fill(self, rows: slice, columns: slice, out: FloatArray) -> None:
        """Write the sums."""
        out[...] = 0.0
        rates, others = self._rates[id(self.left)], self._rates[id(self.right)]
        for g, h in self._chunks(rows, columns):
            for found in self._products(g, h, self.left, self.right):
                row, column = g[found.pairs], h[found.pairs]
                if self.steps is None:
                    # Radii of products are at most the geometric means, as are the numbers of walks.
                    sums, _ = _solved(found, 1 - np.sqrt(rates[row] * others[column]))
                else:
                    sums = _moments(found.matrix, found.starts, found.firsts, self.steps).sum(axis=0)
                out[row - rows.start, column - columns.start] = sums

    def _own(self, side: Quotients, name: str) -> Floats:
        sums, rates = np.empty(side.n_graphs), np.zeros(side.n_graphs)
        for start in range(0, side.n_graphs, MATCHED_PAIRS):
            graphs = np.arange(start, min(start + MATCHED_PAIRS, side.n_graphs))
            for found in self._products(graphs, graphs, side, side):
                g = graphs[found.pairs]
                if self.steps is None:
                    sums[g], rates[g] = _certified(found)
                else:
                    sums[g] = _moments(found.matrix, found.starts, found.firsts, self.steps).sum(axis=0)
        self._rates[id(side)] = rates
        bad = np.flatnonzero(~(rates <= 1 - MIN_GAP))
        if len(bad):
            radii = [
                _radius(one.matrix) / self.decay
                for g in np.split(bad, len(bad))
                for one in self._products(g, g, side, side)
            ]
            raise _endless(self.decay, np.array(radii), bad, name)
        return _checked_finite(sums, self.decay)

    def _chunks(self, rows: slice, columns: slice) -> Iterator[tuple[Integers, Integers]]:
        """Yield the wanted pairs (g, h) of a block, row by row, some at a time."""
        ends = np.array([self._end(row, columns) for row in range(rows.start, rows.stop)], dtype=np.int64)
        widths = ends - columns.start
        stops = np.cumsum(widths)
        total = int(stops[-1])
        for start in range(0, total, MATCHED_PAIRS):
            flat = np.arange(start, min(start + MATCHED_PAIRS, total))
            row = np.searchsorted(stops, flat, side="right")
            yield row + rows.start, flat - (stops - widths)[row] + columns.start

    def _products(self, g: Integers, h: Integers, left: Quotients, right: Quotients) -> Iterator[Products]:
        """Yield the products of graphs g[i] on the left and h[i] on the right, a bounded number of entries at once."""
        pair, ours, theirs = left.nodes.matched(g, h, right.nodes, left.n_labels)
        edge_pair, our_edges, their_edges = left.edges.matched(g, h, right.edges, left.n_labels**2)
        entries = np.zeros(len(g), dtype=np.int64)
        np.add.at(entries, pair, left.nodes.counts[ours] * right.nodes.counts[theirs])
        np.add.at(entries, edge_pair, left.edges.counts[our_edges] * right.edges.counts[their_edges])
        total = np.cumsum(entries)
        first = 0
        while first < len(g):
            before = total[first] - entries[first]
            stop = max(first + 1, int(np.searchsorted(total, before + PRODUCT_ENTRIES, side="right")))
            some = slice(*np.searchsorted(pair, [first, stop]))
            joined = slice(*np.searchsorted(edge_pair, [first, stop]))
            if some.start < some.stop:
                yield self._product(
                    left,
                    right,
                    (pair[some], ours[some], theirs[some]),
                    (edge_pair[joined], our_edges[joined], their_edges[joined]),
                )
            first = stop

    def _product(
        self,
        left: Quotients,
        right: Quotients,
        nodes: tuple[Integers, Integers, Integers],
        edges: tuple[Integers, Integers, Integers],
    ) -> Products:
        """Return the products, given which groups of nodes and of edges meet in which pair."""
        pair, ours, theirs = nodes
        widths = right.nodes.counts[theirs]
        counts = left.nodes.counts[ours] * widths
        offsets = np.cumsum(counts) - counts
        grid = _Grid.of(left.nodes, ours, right.nodes, theirs)
        starts = grid.outer(left.starts) * right.starts[grid.theirs]

        edge_pair, our_edges, their_edges = edges
        grid = _Grid.of(left.edges, our_edges, right.edges, their_edges)
        index = np.int32 if len(starts) <= np.iinfo(np.int32).max else np.int64
        # The groups of nodes that the ends of an edge are in: they met, since either graph has such an edge.
        known = pair * left.n_labels + left.nodes.keys[ours]
        ends = []
        for label, ours_at, theirs_at in zip(
            np.divmod(left.edges.keys[our_edges], left.n_labels),
            (left.source_places, left.target_places),
            (right.source_places, right.target_places),
            strict=True,
        ):
            group = np.searchsorted(known, edge_pair * left.n_labels + label)[grid.groups]
            base = (offsets[group] + widths[group] * ours_at[grid.ours]).astype(index)
            ends.append(np.repeat(base, grid.widths) + theirs_at[grid.theirs])
        weights = grid.outer(self.decay * left.weights) * right.weights[grid.theirs]
        matrix = sp.coo_array((weights, tuple(ends)), shape=(len(starts), len(starts)))
        matrix.has_canonical_format = True  # no entry comes twice: nothing to sort and add up
        new = np.flatnonzero(np.diff(pair, prepend=-1))
        return Products(pair[new], offsets[new], starts, matrix.tocsr())


@dataclass(frozen=True)
class _Grid:
    """All (item of one group, item of another) for each pair of groups that met."""

    groups: Integers
    """(m,), for each own item which meeting it is of."""
    ours: Integers
    """(m,), the item."""
    widths: Integers
    """(m,), how many items it meets."""
    theirs: Integers
    """(sum of widths,), those."""

    @classmethod
    def of(cls, left: Groups, ours: Integers, right: Groups, theirs: Integers) -> _Grid:
        counts = left.counts[ours]
        groups = np.repeat(np.arange(len(ours)), counts)
        items = _ranges(left.firsts[ours], counts)
        widths = right.counts[theirs][groups]
        return cls(groups, items, widths, _ranges(right.firsts[theirs][groups], widths))

    def outer(self, values: Floats) -> Floats:
        """Return the value of the own item, for each item it meets."""
        return np.repeat(values[self.ours], self.widths)


def _ranges(firsts: Integers, counts: Integers) -> Integers:
    """Return first, first + 1, ... first + count - 1 for each of them, one after the other."""
    stops = np.cumsum(counts)
    total = int(stops[-1]) if len(stops) else 0
    places: Integers = np.arange(total) + np.repeat(firsts - (stops - counts), counts)
    return places


def _moments(matrix: sp.csr_array, starts: Floats, firsts: Integers, steps: int) -> Floats:
    """Return bᵀ Mˡ b for l = 0 ... steps in each diagonal block, (steps + 1, n_blocks): each power serves two l."""
    sums = np.empty((steps + 1, len(firsts)))
    power, length = starts, 0
    with np.errstate(over="ignore", invalid="ignore"):
        sums[0] = np.add.reduceat(power * power, firsts)
        while length < steps:
            following = matrix @ power
            sums[length + 1] = np.add.reduceat(power * following, firsts)
            if length + 2 <= steps:
                sums[length + 2] = np.add.reduceat(following * following, firsts)
            power, length = following, length + 2
    return sums


def _solved(found: Products, gaps: Floats | None) -> tuple[Floats, Floats]:
    """Return bᵀ (I - M)⁻¹ b of each diagonal block, and the solutions if no gaps are given.

    The error of the sum after some steps is the squared error of the solution in the energy norm, thus at most
    ‖r‖² / gap where 1 - ρ(M) ≥ gap: it goes down twice as fast as the residual. Without gaps the residual has to become
    small; where I - M turns out to be indefinite, the sum is NaN.
    """
    sums, live = np.zeros(len(found.pairs)), np.arange(len(found.pairs))
    matrix, firsts = found.matrix, found.firsts
    sizes = np.diff(firsts, append=len(found.starts))
    residual, direction = found.starts.copy(), found.starts.copy()
    squares = np.add.reduceat(residual * residual, firsts)
    enough = OWN_TOLERANCE**2 * squares if gaps is None else SUM_TOLERANCE * gaps
    solution, place = np.zeros(len(residual) if gaps is None else 0), np.arange(len(residual))
    going = np.ones(len(live), dtype=bool)
    for _ in range(MAX_ITERATIONS):
        image = direction - matrix @ direction
        curvature = np.add.reduceat(direction * image, firsts)
        definite = curvature > 0
        sums[live[going & ~definite]] = np.nan
        going &= definite
        step = np.divide(squares, curvature, out=np.zeros(len(live)), where=going)
        sums[live] += step * squares
        along = np.repeat(step, sizes)
        if gaps is None:
            solution[place] += along * direction
        residual -= along * image
        before, squares = squares, np.add.reduceat(residual * residual, firsts)
        going &= squares > (enough[live] if gaps is None else enough[live] * sums[live])
        if 2 * np.count_nonzero(going) < len(live):
            if not going.any():
                return sums, solution
            kept = np.repeat(going, sizes)
            live, sizes, squares, before = live[going], sizes[going], squares[going], before[going]
            matrix, place = matrix[kept][:, kept], place[kept]
            residual, direction = residual[kept], direction[kept]
            firsts, going = np.cumsum(sizes) - sizes, going[going]
        direction *= np.repeat(np.divide(squares, before, out=np.zeros(len(live)), where=going), sizes)
        direction += residual
    sums[live[going]] = np.nan
    return sums, solution


def _certified(found: Products) -> tuple[Floats, Floats]:
    """Return the sums, and upper bounds of the spectral radius of each diagonal block of M; inf if there is none.

    For a matrix M ≥ 0 and any x > 0 the radius is at most max (Mx)ᵢ / xᵢ (Collatz and Wielandt). The solution x of
    (I - M) x = b > 0 makes this less than 1 if the radius is, and if it is not, no x does.
    """
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        sums, solution = _solved(found, None)
        ratios = np.where(solution > 0, (found.matrix @ solution) / solution, np.inf)
    rates = np.maximum.reduceat(ratios, found.firsts)
    return sums, np.where(np.isfinite(sums), rates, np.inf)


def _radius(matrix: sp.csr_array) -> float:
    """Return the spectral radius of a symmetric matrix without negative entries."""
    n = matrix.shape[0]
    if n <= DENSE_NODES:
        return float(np.linalg.eigvalsh(matrix.toarray())[-1])
    return float(eigsh(matrix, k=1, which="LA", v0=np.ones(n), return_eigenvectors=False)[0])


def _checked_finite(sums: Floats, decay: float) -> Floats:
    if not np.isfinite(sums).all():
        raise InputError(
            f"the walks of graph {int(np.flatnonzero(~np.isfinite(sums))[0])} are too many for float64 with "
            f"decay={decay:g}; expected a finite sum: use a smaller decay or fewer steps"
        )
    return sums


def _endless(decay: float, radii: Floats, graphs: Integers, name: str) -> InputError:
    worst = int(np.argmax(radii))
    limit = 1 / radii[worst]
    return InputError(
        f"decay is {decay:.6g}, but the sum over all walks that graph {graphs[worst]} of {name} has in common with "
        f"itself is finite, and can be computed, only for decay below {limit:.6g} (1 / {radii[worst]:.6g}, the "
        f"spectral radius of its product with itself); so it is, at other limits, for {len(graphs)} of these graphs: "
        f"use decay={SAFE_FRACTION * limit:.3g} or less, or a finite number of steps"
    )
