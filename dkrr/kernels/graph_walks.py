"""Sums over the walks that graphs have in common, for many pairs of graphs at a time.

A graph is first replaced by its coarsest equitable partition: nodes that colour refinement does not distinguish (the
hydrogens of one methyl group, say) start equally many walks through every sequence of labels, so one class stands for
all of them. With m the sizes of the classes and E the numbers of directed edges between them, the symmetric matrix
S = D^(-1/2) E D^(-1/2), D = diag m, has 1ᵀAˡ1 = bᵀSˡb for b = √m and every l, and likewise for products of graphs.

Without labels the eigenvalues of a product are the products of eigenvalues, and the sum over all walks is a double sum
over those of either graph. With labels the products of many pairs of graphs become one sparse block-diagonal matrix, on
which conjugate gradients run for all pairs at once, each with its own step lengths. All arithmetic runs within a
pair and in an order that depends on the (ordered) pair alone: an entry is the same to the last bit in any block.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np

from dkrr.errors import InputError
from dkrr.kernels.blocks import FloatArray
from dkrr.kernels.graph_partitions import Floats, Quotients, quotients
from dkrr.kernels.graph_products import certified, moments, products, radius, solved
from dkrr.kernels.graphs import Integers

# Pairs matched at once: few enough to stay in cache.
MATCHED_PAIRS = 1024
# Smallest 1 - decay x spectral radius; nearer to 0, rounding would be multiplied by more than a million.
MIN_GAP = 1e-6
# Decay that a message proposes, relative to the largest possible.
SAFE_FRACTION = 0.9


class CommonWalks(ABC):
    """Σ_l λˡ c_l(G, H) over all lengths l, or those up to `steps`, for the pairs of two blocks of graphs; λ is `decay`.

    `left` and `right` are those of X and of Y, and the same value for a symmetric block. `own_left` and `own_right`,
    (n_graphs,), are the sums of each graph with itself: they are finite, and so are then those of all pairs.
    """

    def __init__(self, left: Quotients, right: Quotients, decay: float, steps: int | None) -> None:
        self.left, self.right, self.decay, self.steps = left, right, decay, steps
        self.own_left = self._own(left, "X")
        self.own_right = self.own_left if right is left else self._own(right, "Y")

    @abstractmethod
    def fill(self, rows: slice, columns: slice, out: FloatArray) -> None:
        """Write the sums, and for a symmetric block zeros above the diagonal, which is overwritten later."""

    @abstractmethod
    def _own(self, side: Quotients, name: str) -> Floats:
        """Sums of graphs with themselves, or InputError if some are infinite."""

    def _end(self, row: int, columns: slice) -> int:
        """End of the columns that are computed in a row."""
        end = max(columns.start, min(columns.stop, row + 1)) if self.right is self.left else columns.stop
        return int(end)


def common_walks(X: Any, Y: Any, decay: float, steps: int | None) -> CommonWalks:
    """Sums over common walks of two blocks of encoded rows; Y is X for a symmetric block."""
    left, right = quotients(X, Y)
    if left.labelled:
        return ProductWalks(left, right, decay, steps)
    return SpectralWalks(left, right, decay) if steps is None else ShortWalks(left, right, decay, steps)


class ShortWalks(CommonWalks):
    """Few steps without labels: c_l(G, H) = c_l(G) c_l(H), the numbers of walks in either graph alone."""

    def __init__(self, left: Quotients, right: Quotients, decay: float, steps: int) -> None:
        # λ^(l/2) c_l(G), (steps + 1, n_graphs).
        self._counts = {
            id(side): moments(np.sqrt(decay) * side.matrix(), side.starts, side.first_classes[:-1], steps)
            for side in ((left,) if right is left else (left, right))
        }
        super().__init__(left, right, decay, steps)

    def fill(self, rows: slice, columns: slice, out: FloatArray) -> None:
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
        for row in range(rows.start, rows.stop):
            end = self._end(row, columns)
            out[row - rows.start, : end - columns.start] = self._sums(row, columns.start, end)
            out[row - rows.start, end - columns.start :] = 0.0

    def _own(self, side: Quotients, name: str) -> Floats:
        radii = np.maximum.reduceat(np.abs(self._spectra[id(side)][0]), side.first_classes[:-1]) ** 2
        bad = np.flatnonzero(self.decay * radii > 1 - MIN_GAP)
        if len(bad):
            raise _infinite_sum(self.decay, radii[bad], bad, name)
        return np.array([self._sums(g, g, g + 1, side, side)[0] for g in range(side.n_graphs)])

    def _sums(
        self, row: int, start: int, stop: int, left: Quotients | None = None, right: Quotients | None = None
    ) -> Floats:
        """Sums of a graph with others, a pass over these for each of its eigenvalues."""
        left, right = left or self.left, right or self.right
        if start == stop:
            return np.zeros(0)
        first = right.first_classes[start : stop + 1]
        ours = slice(*left.first_classes[row : row + 2])
        values, weights = (each[ours] for each in self._spectra[id(left)])
        others, their_weights = (each[first[0] : first[-1]] for each in self._spectra[id(right)])
        total, term = np.zeros(len(others)), np.empty(len(others))
        for value, weight in zip(values, weights, strict=True):
            np.multiply(others, -self.decay * value, out=term)
            term += 1.0
            np.divide(weight, term, out=term)
            total += term
        total *= their_weights
        return np.asarray(np.add.reduceat(total, first[:-1] - first[0]))


def _spectrum(side: Quotients) -> tuple[Floats, Floats]:
    """Eigenvalues and weights w_i = (uᵢᵀb)² of all graphs' S, (n_classes,) each."""
    values, weights = np.empty(len(side.starts)), np.empty(len(side.starts))
    matrix, first = side.matrix(), side.first_classes
    for start, stop in pairwise(first):
        one = slice(start, stop)
        values[one], vectors = np.linalg.eigh(matrix[one, one].toarray())
        weights[one] = np.einsum("ij,i->j", vectors, side.starts[one]) ** 2
    return values, weights


class ProductWalks(CommonWalks):
    """Labelled graphs: walks in direct products, whose nodes are the pairs of equally labelled nodes."""

    def __init__(self, left: Quotients, right: Quotients, decay: float, steps: int | None) -> None:
        # Bounds below 1 of λ times the spectral radius of each graph's product with itself.
        self._rates: dict[int, Floats] = {}
        super().__init__(left, right, decay, steps)

    def fill(self, rows: slice, columns: slice, out: FloatArray) -> None:
        out[...] = 0.0
        rates, others = self._rates[id(self.left)], self._rates[id(self.right)]
        for g, h in self._chunks(rows, columns):
            for found in products(g, h, self.left, self.right, self.decay):
                row, column = g[found.pairs], h[found.pairs]
                if self.steps is None:
                    # Radii of products are at most the geometric means, as are the numbers of walks.
                    sums, _ = solved(found, 1 - np.sqrt(rates[row] * others[column]))
                else:
                    sums = moments(found.matrix, found.starts, found.firsts, self.steps).sum(axis=0)
                out[row - rows.start, column - columns.start] = sums

    def _own(self, side: Quotients, name: str) -> Floats:
        sums, rates = np.empty(side.n_graphs), np.zeros(side.n_graphs)
        for start in range(0, side.n_graphs, MATCHED_PAIRS):
            graphs = np.arange(start, min(start + MATCHED_PAIRS, side.n_graphs))
            for found in products(graphs, graphs, side, side, self.decay):
                g = graphs[found.pairs]
                if self.steps is None:
                    sums[g], rates[g] = certified(found)
                else:
                    sums[g] = moments(found.matrix, found.starts, found.firsts, self.steps).sum(axis=0)
        self._rates[id(side)] = rates
        bad = np.flatnonzero(~(rates <= 1 - MIN_GAP))
        if len(bad):
            radii = [
                radius(one.matrix) / self.decay
                for g in np.split(bad, len(bad))
                for one in products(g, g, side, side, self.decay)
            ]
            raise _infinite_sum(self.decay, np.array(radii), bad, name)
        return _checked_finite(sums, self.decay)

    def _chunks(self, rows: slice, columns: slice) -> Iterator[tuple[Integers, Integers]]:
        """Yield the pairs (g, h) of a block, row by row, MATCHED_PAIRS at a time."""
        ends = np.array([self._end(row, columns) for row in range(rows.start, rows.stop)], dtype=np.int64)
        widths = ends - columns.start
        stops = np.cumsum(widths)
        total = int(stops[-1])
        for start in range(0, total, MATCHED_PAIRS):
            flat = np.arange(start, min(start + MATCHED_PAIRS, total))
            row = np.searchsorted(stops, flat, side="right")
            yield row + rows.start, flat - (stops - widths)[row] + columns.start


def _checked_finite(sums: Floats, decay: float) -> Floats:
    if not np.isfinite(sums).all():
        raise InputError(
            f"the walks of graph {int(np.flatnonzero(~np.isfinite(sums))[0])} are too many for float64 with "
            f"decay={decay:g}; expected a finite sum: use a smaller decay or fewer steps"
        )
    return sums


def _infinite_sum(decay: float, radii: Floats, graphs: Integers, name: str) -> InputError:
    worst = int(np.argmax(radii))
    limit = 1 / radii[worst]
    return InputError(
        f"decay is {decay:.6g}; expected less than {limit:.6g} (1 / {radii[worst]:.6g}, the spectral radius of the "
        f"product of graph {graphs[worst]} of {name} with itself), above which its sum over all walks is infinite, or "
        f"cannot be computed; {len(graphs)} of these graphs have a limit below decay: "
        f"use decay={SAFE_FRACTION * limit:.3g} or less, or a finite number of steps"
    )
