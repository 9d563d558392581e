"""Direct products of labelled graphs as one sparse block-diagonal matrix, and sums over the walks in them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import scipy.sparse as sp
from scipy.sparse.linalg import eigsh

from dkrr.kernels.graph_partitions import Floats, Groups, Quotients, ranges
from dkrr.kernels.graphs import Integers

# Nodes and edges of products that are worked on at once: few enough to stay in cache.
PRODUCT_ENTRIES = 2**16

# Bound of the relative error of a sum at which its conjugate gradients stop.
SUM_TOLERANCE = 1e-14
# Residual of the system of a graph with itself, relative to its right-hand side: its solution is a certificate.
OWN_TOLERANCE = 1e-12
MAX_ITERATIONS = 50_000

# Up to this many nodes the spectral radius for a message is computed densely.
DENSE_NODES = 500

_Matches: TypeAlias = tuple[Integers, Integers, Integers]
"""Pair of graphs, group of the left one and group of the right one."""


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


def products(g: Integers, h: Integers, left: Quotients, right: Quotients, decay: float) -> Iterator[Products]:
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
            nodes = pair[some], ours[some], theirs[some]
            edges = edge_pair[joined], our_edges[joined], their_edges[joined]
            yield _product(left, right, nodes, edges, decay)
        first = stop


def _product(left: Quotients, right: Quotients, nodes: _Matches, edges: _Matches, decay: float) -> Products:
    """Products from the matching groups of nodes and of edges."""
    pair, ours, theirs = nodes
    widths = right.nodes.counts[theirs]
    counts = left.nodes.counts[ours] * widths
    offsets = np.cumsum(counts) - counts
    grid = _Grid.of(left.nodes, ours, right.nodes, theirs)
    starts = grid.outer(left.starts) * right.starts[grid.theirs]

    edge_pair, our_edges, their_edges = edges
    grid = _Grid.of(left.edges, our_edges, right.edges, their_edges)
    index = np.int32 if len(starts) <= np.iinfo(np.int32).max else np.int64
    # The groups of nodes that the ends of an edge are in: they match, since both graphs have such an edge.
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
    weights = grid.outer(decay * left.weights) * right.weights[grid.theirs]
    matrix = sp.coo_array((weights, tuple(ends)), shape=(len(starts), len(starts)))
    matrix.has_canonical_format = True  # no entry occurs twice: nothing to sort and add up
    new = np.flatnonzero(np.diff(pair, prepend=-1))
    return Products(pair[new], offsets[new], starts, matrix.tocsr())


@dataclass(frozen=True)
class _Grid:
    """All (item of one group, item of another) for each pair of matching groups."""

    groups: Integers
    """(m,), the pair of groups that each own item belongs to."""
    ours: Integers
    """(m,), the item."""
    widths: Integers
    """(m,), the number of items that it is combined with."""
    theirs: Integers
    """(sum of widths,), these items."""

    @classmethod
    def of(cls, left: Groups, ours: Integers, right: Groups, theirs: Integers) -> _Grid:
        counts = left.counts[ours]
        groups = np.repeat(np.arange(len(ours)), counts)
        items = ranges(left.firsts[ours], counts)
        widths = right.counts[theirs][groups]
        return cls(groups, items, widths, ranges(right.firsts[theirs][groups], widths))

    def outer(self, values: Floats) -> Floats:
        """Value of the own item, for each item that it is combined with."""
        return np.repeat(values[self.ours], self.widths)


def moments(matrix: sp.csr_array, starts: Floats, firsts: Integers, steps: int) -> Floats:
    """bᵀ Mˡ b for l = 0 ... steps in each diagonal block, (steps + 1, n_blocks): each power serves two l."""
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


def solved(found: Products, gaps: Floats | None) -> tuple[Floats, Floats]:
    """bᵀ (I - M)⁻¹ b of each diagonal block, and the solutions if no gaps are given.

    The error of the sum after some steps is the squared error of the solution in the energy norm, thus at most
    ‖r‖² / gap where 1 - ρ(M) ≥ gap: it decreases twice as fast as the residual. Without gaps the residual has to become
    small; where I - M is found to be indefinite, the sum is NaN.
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


def certified(found: Products) -> tuple[Floats, Floats]:
    """Sums, and upper bounds of the spectral radius of each diagonal block of M; ∞ if none is known.

    For a matrix M ≥ 0 and any x > 0 the radius is at most max (Mx)ᵢ / xᵢ (Collatz and Wielandt). The solution x of
    (I - M) x = b > 0 makes this less than 1 if the radius is, and if it is not, no x does.
    """
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        sums, solution = solved(found, None)
        ratios = np.where(solution > 0, (found.matrix @ solution) / solution, np.inf)
    rates = np.maximum.reduceat(ratios, found.firsts)
    return sums, np.where(np.isfinite(sums), rates, np.inf)


def radius(matrix: sp.csr_array) -> float:
    """Spectral radius of a symmetric matrix without negative entries."""
    n = matrix.shape[0]
    if n <= DENSE_NODES:
        return float(np.linalg.eigvalsh(matrix.toarray())[-1])
    return float(eigsh(matrix, k=1, which="LA", v0=np.ones(n), return_eigenvectors=False)[0])
