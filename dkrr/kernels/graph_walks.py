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
from dataclasses import dataclass
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
        self.own_left, self._of_left = self._own(left, "X")
        self.own_right, self._of_right = (self.own_left, self._of_left) if right is left else self._own(right, "Y")

    @abstractmethod
    def fill(self, rows: slice, columns: slice, out: FloatArray) -> None:
        """Write the sums, and for a symmetric block zeros above the diagonal, which is overwritten later."""

    @abstractmethod
    def _own(self, side: Quotients, name: str) -> tuple[Floats, Any]:
        """Sums of graphs with themselves, and what `fill` needs of them; InputError if some are infinite."""

    def _end(self, row: int, columns: slice) -> int:
        """End of the columns that are computed in a row."""
        end = max(columns.start, min(columns.stop, row + 1)) if self.right is self.left else columns.stop
        return int(end)


def common_walks(X: Any, Y: Any, decay: float, steps: int | None) -> CommonWalks:
    """Sums over common walks of two blocks of encoded rows; Y is X for a symmetric block."""
    left, right = quotients(X, Y)
    walks = ProductWalks if left.labelled else SpectralWalks if steps is None else ShortWalks
    return walks(left, right, decay, steps)


class ShortWalks(CommonWalks):
    """Few steps without labels: c_l(G, H) = c_l(G) c_l(H), the numbers of walks in either graph alone."""

    def fill(self, rows: slice, columns: slice, out: FloatArray) -> None:
        strip = np.zeros(out.shape)
        for ours, theirs in zip(self._of_left[:, rows], self._of_right[:, columns], strict=True):
            strip += np.multiply.outer(ours, theirs)
        out[...] = strip

    def _own(self, side: Quotients, name: str) -> tuple[Floats, Floats]:  # noqa: ARG002
        assert self.steps is not None
        # λ^(l/2) c_l(G), (steps + 1, n_graphs).
        counts = moments(np.sqrt(self.decay) * side.matrix(), side.starts, side.first_classes[:-1], self.steps)
        with np.errstate(over="ignore"):
            return _checked_finite(np.sum(counts**2, axis=0), self.decay), counts


class SpectralWalks(CommonWalks):
    """Any number of steps without labels: with c_l(G) = Σ_i w_i μ_iˡ, an entry is Σ_ij w_i w_j / (1 - λ μ_i μ_j)."""

    def fill(self, rows: slice, columns: slice, out: FloatArray) -> None:
        for row in range(rows.start, rows.stop):
            end = self._end(row, columns)
            out[row - rows.start, : end - columns.start] = self._sums(
                row, self._of_left, columns.start, end, self._of_right
            )
            out[row - rows.start, end - columns.start :] = 0.0

    def _own(self, side: Quotients, name: str) -> tuple[Floats, _Spectra]:
        spectra = _Spectra.of(side)
        radii = np.maximum.reduceat(np.abs(spectra.values), spectra.firsts[:-1]) ** 2
        bad = np.flatnonzero(self.decay * radii > 1 - MIN_GAP)
        if len(bad):
            raise _infinite_sum(self.decay, radii[bad], bad, name)
        return np.array([self._sums(g, spectra, g, g + 1, spectra)[0] for g in range(side.n_graphs)]), spectra

    def _sums(self, row: int, left: _Spectra, start: int, stop: int, right: _Spectra) -> Floats:
        """Sums of a graph with others, a pass over these for each of its eigenvalues."""
        if start == stop:
            return np.zeros(0)
        ours, theirs = slice(*left.firsts[row : row + 2]), slice(right.firsts[start], right.firsts[stop])
        others = right.values[theirs]
        total, term = np.zeros(len(others)), np.empty(len(others))
        for value, weight in zip(left.values[ours], left.weights[ours], strict=True):
            np.multiply(others, -self.decay * value, out=term)
            term += 1.0
            np.divide(weight, term, out=term)
            total += term
        total *= right.weights[theirs]
        return np.asarray(np.add.reduceat(total, right.firsts[start:stop] - theirs.start))


@dataclass(frozen=True)
class _Spectra:
    """Eigenvalues μ and weights w_i = (uᵢᵀb)² of all graphs' S, (n_classes,) each."""

    values: Floats
    weights: Floats
    firsts: Integers
    """(n_graphs + 1,), where those of each graph start."""

    @classmethod
    def of(cls, side: Quotients) -> _Spectra:
        values, weights = np.empty(len(side.starts)), np.empty(len(side.starts))
        matrix = side.matrix()
        for start, stop in pairwise(side.first_classes):
            one = slice(start, stop)
            values[one], vectors = np.linalg.eigh(matrix[one, one].toarray())
            weights[one] = np.einsum("ij,i->j", vectors, side.starts[one]) ** 2
        return cls(values, weights, side.first_classes)


class ProductWalks(CommonWalks):
    """Labelled graphs: walks in direct products, whose nodes are the pairs of equally labelled nodes."""

    def fill(self, rows: slice, columns: slice, out: FloatArray) -> None:
        out[...] = 0.0
        rates, others = self._of_left, self._of_right
        for g, h in self._chunks(rows, columns):
            for found in products(g, h, self.left, self.right, self.decay):
                row, column = g[found.pairs], h[found.pairs]
                if self.steps is None:
                    # Radii of products are at most the geometric means, as are the numbers of walks.
                    sums, _ = solved(found, 1 - np.sqrt(rates[row] * others[column]))
                else:
                    sums = moments(found.matrix, found.starts, found.firsts, self.steps).sum(axis=0)
                out[row - rows.start, column - columns.start] = sums

    def _own(self, side: Quotients, name: str) -> tuple[Floats, Floats]:
        # Rates: bounds below 1 of λ times the spectral radius of each graph's product with itself.
        sums, rates = np.empty(side.n_graphs), np.zeros(side.n_graphs)
        for start in range(0, side.n_graphs, MATCHED_PAIRS):
            graphs = np.arange(start, min(start + MATCHED_PAIRS, side.n_graphs))
            for found in products(graphs, graphs, side, side, self.decay):
                g = graphs[found.pairs]
                if self.steps is None:
                    sums[g], rates[g] = certified(found)
                else:
                    sums[g] = moments(found.matrix, found.starts, found.firsts, self.steps).sum(axis=0)
        bad = np.flatnonzero(~(rates <= 1 - MIN_GAP))
        if len(bad):
            radii = [
                radius(one.matrix) / self.decay
                for g in np.split(bad, len(bad))
                for one in products(g, g, side, side, self.decay)
            ]
            raise _infinite_sum(self.decay, np.array(radii), bad, name)
        return _checked_finite(sums, self.decay), rates

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
