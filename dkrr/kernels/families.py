"""Several kernels of the same rows, whose blocks share what they have in common.

RBF kernels share squared distances, Laplacian kernels sums of absolute differences, whatever their γ; sums of kernels
share their terms, whatever the weights. What they have in common is found in their leaves (`linear_terms`); a family of
kernels without anything in common is computed as each of them is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from dkrr.kernels.base import EntryCost, Kernel
from dkrr.kernels.blocks import (
    Block,
    Fill,
    FloatArray,
    Scratch,
    as_row_pair,
    mirror_lower,
    piece_memory,
    pieces_below,
    pieces_of,
)
from dkrr.kernels.columns import Columns
from dkrr.kernels.costs import EXP_SECONDS, PASS_SECONDS
from dkrr.kernels.euclidean import RBF, DistanceColumns, ScaledSquaredDistances, exponents_of
from dkrr.kernels.manhattan import Laplacian, absolute_distances
from dkrr.kernels.weights import linear_terms

OWN_SECONDS = PASS_SECONDS + EXP_SECONDS
"""Time of an entry of a kernel whose distances are known: a product and an exponential."""


@dataclass(frozen=True)
class KernelFamily:
    """Kernels of the same rows.

    Parameters
    ----------
    kernels : tuple of Kernel
        None precomputed.
    """

    kernels: tuple[Kernel, ...]

    def resolved(self, n_features: int) -> KernelFamily:
        """Family with all parameters known."""
        return replace(self, kernels=tuple(kernel.resolved(n_features) for kernel in self.kernels))

    def pieces(
        self,
        X: Block,
        Y: Block | None = None,
        *,
        wanted: Sequence[int] | None = None,
        dtype: npt.DTypeLike = np.float64,
    ) -> Iterator[tuple[int, slice, slice, FloatArray]]:
        """Yield the number of a kernel, rows, columns and values of pieces, as `Kernel.pieces` does for one kernel.

        All kernels that are wanted (None: all) have a piece of some rows and columns before the next rows and columns
        follow. A piece is overwritten by the next one.
        """
        left, right = as_row_pair(X, Y)
        shape, symmetric = (left.shape[0], right.shape[0]), right is left
        numbers = range(len(self.kernels)) if wanted is None else wanted
        if 0 in shape or not numbers:
            return
        kernels = [self.kernels[k].resolved(left.shape[1]) for k in numbers]
        # Overflow is looked for once, on the diagonal, and not by every elementwise operation.
        with np.errstate(over="ignore", invalid="ignore"):
            fillers = _fillers(kernels, left, right, np.dtype(dtype))
            diagonals = [kernel.diagonal(left) for kernel in kernels] if symmetric else None
        cuts = pieces_below(shape[0]) if symmetric else pieces_of(*shape)
        with piece_memory(dtype) as memory:
            for rows, columns in cuts:
                piece = memory[: (n := rows.stop - rows.start) * (m := columns.stop - columns.start)].reshape(n, m)
                fillers.begin(rows, columns)
                for k, number in enumerate(numbers):
                    with np.errstate(over="ignore", invalid="ignore"):
                        fillers.fill(k, piece)
                    if diagonals is not None and rows == columns:
                        mirror_lower(piece)
                        np.fill_diagonal(piece, diagonals[k][rows])
                    yield number, rows, columns, piece

    def entry_cost(self, n_features: int) -> EntryCost:
        """Cost of one entry of every kernel, for dense rows of `n_features` columns."""
        resolved = self.resolved(n_features).kernels
        each = [linear_terms(kernel) for kernel in resolved]
        sources = dict[Any, set[Kernel]]()
        for terms in each:
            for _, leaf in terms:
                sources.setdefault(_source(leaf), set()).add(leaf)
        total = EntryCost(0.0, 0.0)
        for leaves in sources.values():
            # Of several with the same distances, all but one have only exponentials of their own.
            one = next(iter(leaves)).entry_cost(n_features)
            total += EntryCost(one.gemm_flops, one.element_seconds + (len(leaves) - 1) * OWN_SECONDS)
        passes = sum(2 * len(terms) - 1 for terms in each if len(terms) > 1)
        return total + EntryCost(0.0, passes * PASS_SECONDS)

    def entry_factor(self, n_features: int, gemm_flops: float) -> float:
        """Time of an entry of every kernel over the time that the kernels take one by one, at a rate of products."""
        alone = [kernel.entry_cost(n_features) for kernel in self.resolved(n_features).kernels]
        together, apart = (
            c.gemm_flops / gemm_flops + c.element_seconds
            for c in (self.entry_cost(n_features), sum(alone, EntryCost(0.0, 0.0)))
        )
        return min(1.0, together / apart)


def families(kernels: Sequence[Kernel], n_features: int) -> list[list[int]]:
    """Numbers of the kernels that have distances or terms in common, directly or through others; each in one list."""
    found = list[tuple[set[Any], list[int]]]()
    for number, kernel in enumerate(kernels):
        known = kernel.resolved(n_features)
        sources: set[Any] = {number}
        if _is_hashable(known) and not known.is_precomputed:  # those with arrays (maps, vocabularies) share nothing
            sources = {_source(leaf) for _, leaf in linear_terms(known)}
        numbers = [number]
        for other in [each for each in found if each[0] & sources]:
            sources, numbers = sources | other[0], other[1] + numbers
            found.remove(other)
        found.append((sources, sorted(numbers)))
    return sorted(numbers for _, numbers in found)


def _is_hashable(kernel: Kernel) -> bool:
    try:
        hash(kernel)
    except TypeError:
        return False
    return True


def _source(leaf: Kernel) -> Any:
    """What leaves have in common that share distances; the leaf itself where it shares none."""
    base = leaf.base if isinstance(leaf, Columns) else leaf
    if isinstance(base, RBF | Laplacian) and isinstance(base.gamma, float):
        one = replace(base, gamma=1.0)
        return replace(leaf, base=one) if isinstance(leaf, Columns) else one
    return leaf


def _gamma(leaf: Kernel) -> float:
    base = leaf.base if isinstance(leaf, Columns) else leaf
    assert isinstance(base, RBF | Laplacian) and isinstance(base.gamma, float)
    return base.gamma


class _Distances:
    """Leaves that are exponentials of multiples of the same distances."""

    def __init__(self, source: Kernel, gammas: Sequence[float], X: Block, Y: Block, dtype: np.dtype[Any]) -> None:
        base = source
        if isinstance(source, Columns):
            base = source.base
            X, Y = (cut := source.cut(X)), cut if Y is X else source.cut(Y)
        self._unit = max(gammas)
        if isinstance(base, Laplacian):
            self._fill, self._scratch = absolute_distances(X, Y), Scratch()
            self._unit = -1.0
        else:
            squares = ScaledSquaredDistances(X, DistanceColumns(Y, -self._unit, dtype))
            self._fill, self._scratch = exponents_of(squares, min(gammas) / self._unit), Scratch(dtype)
        self._values: FloatArray | None = None

    def begin(self, rows: slice, columns: slice) -> None:
        self._where, self._values = (rows, columns), None

    def fill(self, gamma: float, out: FloatArray) -> None:
        if self._values is None:
            self._values = self._scratch.like(out)
            self._fill(*self._where, self._values)
        np.multiply(self._values, gamma / self._unit, out=out, casting="same_kind")
        np.exp(out, out=out)


class _Fillers:
    """Pieces of kernels that are sums of leaves, each computed once for the rows and columns that have begun."""

    def __init__(
        self,
        terms: Sequence[Sequence[tuple[float, Kernel]]],
        distances: dict[Kernel, _Distances],
        fills: dict[Kernel, Fill],
        dtype: np.dtype[Any],
    ) -> None:
        self._terms, self._distances, self._fills = terms, distances, fills
        counts = Counter(leaf for each in terms for _, leaf in each)
        self._kept = {leaf: Scratch(dtype) for leaf, count in counts.items() if count > 1}
        """Leaves of several kernels, and where they are kept."""
        self._known = dict[Kernel, FloatArray]()
        self._scratch = Scratch(dtype)

    def begin(self, rows: slice, columns: slice) -> None:
        """Take other rows and columns."""
        self._where = rows, columns
        self._known.clear()
        for distances in self._distances.values():
            distances.begin(rows, columns)

    def fill(self, k: int, out: FloatArray) -> None:
        """Write the piece of a kernel."""
        for number, (weight, leaf) in enumerate(self._terms[k]):
            target = out if number == 0 else self._scratch.like(out)
            values = self._leaf(leaf, target)
            if weight != 1.0 or values is not target:
                np.multiply(values, weight, out=target)
            if number > 0:
                out += target

    def _leaf(self, leaf: Kernel, target: FloatArray) -> FloatArray:
        """Values of a leaf: where it is kept, or in `target`."""
        if leaf not in self._kept:
            self._compute(leaf, target)
            return target
        if leaf not in self._known:
            values = self._kept[leaf].like(target)
            self._compute(leaf, values)
            self._known[leaf] = values
        return self._known[leaf]

    def _compute(self, leaf: Kernel, out: FloatArray) -> None:
        if leaf in self._fills:
            self._fills[leaf](*self._where, out)
        else:
            self._distances[_source(leaf)].fill(_gamma(leaf), out)


def _fillers(kernels: Sequence[Kernel], X: Block, Y: Block, dtype: np.dtype[Any]) -> _Fillers:
    terms = [linear_terms(kernel) for kernel in kernels]
    by_source = dict[Kernel, set[Kernel]]()
    for each in terms:
        for _, leaf in each:
            by_source.setdefault(_source(leaf), set()).add(leaf)
    distances, fills = dict[Kernel, _Distances](), dict[Kernel, Fill]()
    for source, leaves in by_source.items():
        if len(leaves) > 1:
            distances[source] = _Distances(source, [_gamma(leaf) for leaf in leaves], X, Y, dtype)
        else:
            (leaf,) = leaves
            fills[leaf] = leaf._filler(X, Y, dtype)
    return _Fillers(terms, distances, fills, dtype)
