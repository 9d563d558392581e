"""The random-walk kernel of graphs: sums over the walks that graphs have in common, for many pairs at a time.

A graph is first replaced by its coarsest equitable partition: nodes that colour refinement does not distinguish (the
hydrogens of one methyl group, say) start equally many walks through every sequence of labels, so one class stands for
all of them. With m the sizes of the classes and E the numbers of directed edges between them, the symmetric matrix
S = D^(-1/2) E D^(-1/2), D = diag m, has 1ᵀAˡ1 = bᵀSˡb for b = √m and every l, and likewise for products of graphs.

Without labels the eigenvalues of a product are the products of eigenvalues, and the sum over all walks is a double sum
over those of either graph. With labels the direct products of many pairs of graphs become one sparse block-diagonal
matrix, on which conjugate gradients run for all pairs at once, each with its own step lengths. All arithmetic runs
within a pair and in an order that depends on the (ordered) pair alone: an entry is the same to the last bit in any
block.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, ClassVar, TypeAlias

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp
from scipy.sparse.linalg import eigsh

from dkrr.checks import flag, positive, shown, whole
from dkrr.errors import InputError, InputTypeError
from dkrr.kernels.base import FIXED_WORKSPACE_BYTES, Kernel
from dkrr.kernels.blocks import STRIP_ENTRIES, Block, Fill, FloatArray, Scratch
from dkrr.kernels.graph_partitions import Floats, Groups, Quotients, quotients, ranges
from dkrr.kernels.graphs import Integers, encode_graphs

# Nodes and edges of products that are worked on at once: few enough to stay in cache.
MAX_PRODUCT_ENTRIES = 2**16

# Bound of the relative error of a sum at which its conjugate gradients stop.
SUM_TOLERANCE = 1e-14
# Residual of the system of a graph with itself, relative to its right-hand side: its solution is a certificate.
OWN_TOLERANCE = 1e-12
MAX_WALK_ITERATIONS = 50_000

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
        stop = max(first + 1, int(np.searchsorted(total, before + MAX_PRODUCT_ENTRIES, side="right")))
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


def walk_sums(found: Products, gaps: Floats | None) -> tuple[Floats, Floats]:
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
    for _ in range(MAX_WALK_ITERATIONS):
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
        sums, solution = walk_sums(found, None)
        ratios = np.where(solution > 0, (found.matrix @ solution) / solution, np.inf)
    rates = np.maximum.reduceat(ratios, found.firsts)
    return sums, np.where(np.isfinite(sums), rates, np.inf)


def radius(matrix: sp.csr_array) -> float:
    """Spectral radius of a symmetric matrix without negative entries."""
    n = matrix.shape[0]
    if n <= DENSE_NODES:
        return float(np.linalg.eigvalsh(matrix.toarray())[-1])
    return float(eigsh(matrix, k=1, which="LA", v0=np.ones(n), return_eigenvectors=False)[0])


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
                    sums, _ = walk_sums(found, 1 - np.sqrt(rates[row] * others[column]))
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
            f"decay={decay:g}; expected a finite sum: use a smaller decay or max_length"
        )
    return sums


def _infinite_sum(decay: float, radii: Floats, graphs: Integers, name: str) -> InputError:
    worst = int(np.argmax(radii))
    limit = 1 / radii[worst]
    return InputError(
        f"decay is {decay:.6g}; expected less than {limit:.6g} (1 / {radii[worst]:.6g}, the spectral radius of the "
        f"product of graph {graphs[worst]} of {name} with itself), above which its sum over all walks is infinite, or "
        f"cannot be computed; {len(graphs)} of these graphs have a limit below decay: "
        f"use decay={SAFE_FRACTION * limit:.3g} or less, or a max_length"
    )


# At the peak, for a node or an edge of a product, for a pair, and for a graph of about 30 nodes and edges.
PRODUCT_ENTRY_BYTES = 100
PAIR_BYTES = 512
GRAPH_BYTES = 16 * 1024


@dataclass(frozen=True)
class RandomWalk(Kernel):
    """Random-walk kernel of graphs: the walks that two of them have in common, each with λ to the power of its length.

    A walk of length l in common is a walk v₀ ... v_l in G and one w₀ ... w_l in H, both along edges, where v_i and w_i
    have the same label for every i. With c_l(G, H) their number,

        k(G, H) = Σ_l λˡ c_l(G, H) = 1ᵀ (I − λ W)⁻¹ 1,

    where W is the adjacency matrix of the direct product graph, whose nodes are the pairs of equally labelled nodes:
    the geometric kernel with starting and stopping weights p = q = 1 on these pairs, without the division by their
    number. Sums run from l = 0, so equally labelled pairs of nodes count 1 each. Without labels all nodes match.

    Data are lists of graphs: networkx graphs, pairs (adjacency, labels), triples (n_nodes, edges, labels) or
    `dkrr.kernels.Graph`, undirected, without weights, loops and parallel edges; all with whole numbers as labels, all
    with strings, or all without.

    Parameters
    ----------
    decay : float
        λ > 0. The infinite sum is finite for all pairs of some graphs if and only if it is finite for each graph with
        itself, since c_l(G, H)² ≤ c_l(G, G) c_l(H, H): λ must be below 1 / ρ for the largest spectral radius ρ of a
        graph's labelled product with itself. This is checked, exactly and not by a bound such as the product of the
        largest degrees, for every graph of X and of Y; the error names a λ that is small enough. Very near the limit
        rounding would be multiplied by 1 / (1 - λρ): the same error is raised unless a proven bound of λρ, which the
        solution gives, is at most 1 - 1e-6.
    max_length : int, optional
        Length of the longest walks that are counted, at least 1; None means all. If given, λ may have any value
        whose sums are within the range of float64.
    label : str or None, default="label"
        Attribute of networkx nodes that is their label; None means no labels. Other forms of graphs contain their
        labels.
    normalized : bool, default=True
        Divide by √(k(G, G) k(H, H)), so that k(G, G) = 1.

    See Also
    --------
    dkrr.kernels.Graph : One graph, as a row of X.
    dkrr.kernels.Normalized : A kernel with k(x, x) = 1.

    References
    ----------
    Vishwanathan, Schraudolph, Kondor, Borgwardt (2010), Graph kernels, Journal of Machine Learning Research 11:
    the kernel (section 3), conjugate gradients and spectral decomposition for it (section 4).
    Gärtner, Flach, Wrobel (2003), On graph kernels: hardness results and efficient alternatives, COLT.
    Strakoš, Tichý (2002), On error estimation in the conjugate gradient method, ETNA 13: the sum bᵀA⁻¹b and its error
    from the step lengths.

    Examples
    --------
    >>> from dkrr.kernels import RandomWalk
    >>> water, hydroxyl = (3, [(0, 1), (0, 2)], ["O", "H", "H"]), (2, [(0, 1)], ["O", "H"])
    >>> RandomWalk(decay=0.1, max_length=1, normalized=False)([water], [hydroxyl])
    array([[3.4]])
    """

    tag: ClassVar[str] = "random_walk"
    entry_seconds: ClassVar[float] = 10e-6  # of labelled molecules of 18 atoms, at half of the largest decay
    column_seconds: ClassVar[float] = 0.0
    _takes_csr: ClassVar[bool] = True
    _follows_entries: ClassVar[bool] = False
    # Sums in float64 for a float32 block; a sum over steps and its terms.
    _strip_buffers: ClassVar[int] = 3

    decay: float
    max_length: int | None = None
    normalized: bool = field(default=True, kw_only=True)
    label: str | None = "label"

    def __post_init__(self) -> None:
        object.__setattr__(self, "decay", positive(self.decay, "decay"))
        if self.max_length is not None:
            object.__setattr__(
                self, "max_length", whole(self.max_length, "max_length", 1, "None counts walks of any length")
            )
        object.__setattr__(self, "normalized", flag(self.normalized, "normalized"))
        if self.label is not None and not isinstance(self.label, str):
            raise InputTypeError(f"label is {shown(self.label)}; expected the name of an attribute of nodes, or None")

    def encode(self, X: Any) -> Any:
        if sp.issparse(X) and X.format == "csr":
            return X
        # A Series, but nothing lazy, which would be computed by accident.
        given = X.to_numpy() if hasattr(X, "to_numpy") and not hasattr(X, "compute") else X
        if isinstance(given, np.ndarray) and given.dtype == object and given.ndim == 1:
            given = given.tolist()
        if isinstance(given, list | tuple):
            return encode_graphs(given, self.label)
        shape = f" of dtype {X.dtype} and shape {X.shape}" if isinstance(X, np.ndarray) else ""
        raise InputTypeError(
            f"X is of type {type(X).__module__}.{type(X).__qualname__}{shape}; expected a list, a tuple or a "
            "one-dimensional object array of graphs, or the CSR rows that encode made of them"
        )

    @property
    def has_unit_diagonal(self) -> bool:
        return self.normalized

    def _dense_workspace_bytes(self, n_rows: int, n_columns: int, n_features: int) -> int:  # noqa: ARG002
        """Temporary memory of one call, for graphs of up to 30 nodes and edges and products of some 10⁴.

        The number of columns does not matter here. Graphs many times larger take more in proportion, and a single pair
        takes what its product needs.
        """
        sums_bytes = (
            PRODUCT_ENTRY_BYTES * MAX_PRODUCT_ENTRIES
            + PAIR_BYTES * MATCHED_PAIRS
            + self._strip_buffers * 8 * STRIP_ENTRIES
        )
        return GRAPH_BYTES * (n_rows + n_columns) + sums_bytes + FIXED_WORKSPACE_BYTES

    def _block_writer(self, X: Block, Y: Block, dtype: np.dtype[Any]) -> Fill:  # noqa: ARG002
        walks = common_walks(X, Y, self.decay, self.max_length)
        scale, scale_right = 1 / np.sqrt(walks.own_left), 1 / np.sqrt(walks.own_right)
        scratch = Scratch()

        def fill(rows: slice, columns: slice, out: FloatArray) -> None:
            # Sums may be too large for float32 until they are divided.
            strip = out if out.dtype == np.float64 else scratch.like(out)
            walks.fill(rows, columns, strip)
            if self.normalized:
                strip *= scale[rows, np.newaxis]
                strip *= scale_right[columns]
            if strip is not out:
                out[...] = strip

        return fill

    def _diagonal(self, X: Block) -> npt.NDArray[np.float64]:
        if self.normalized or X.shape[0] == 0:
            return np.ones(X.shape[0])
        return common_walks(X, X, self.decay, self.max_length).own_left
