"""Objective, gradient and curvature of a likelihood on a Fourier grid: a transform each way for every block of rows."""

from dataclasses import dataclass
from math import prod

import numpy as np
from numpy.typing import NDArray

from dkrr.cluster import Meter
from dkrr.kernels.blocks import mirror_lower
from dkrr.kernels.fourier_grid import FourierGrid, FourierZones, Grid
from dkrr.kernels.nonuniform import Complex, Transform
from dkrr.linalg.fourier_normal import FourierNormalMatrix, finite_blocks, totals_of
from dkrr.linalg.likelihood_passes import LikelihoodPass
from dkrr.linalg.passes import Segment

Array = NDArray[np.float64]


@dataclass(frozen=True)
class FourierLikelihoodPass(LikelihoodPass):
    """Settings of all passes of one fit on a grid; the curvature is gathered from sums over the rows."""

    threads: int = 1
    """Threads of the calling process, which gathers."""

    @property
    def grid(self) -> Grid:
        """Grid of the features."""
        assert isinstance(self.feature_map, FourierGrid)
        return self.feature_map.grid(self.n_features)

    @property
    def n_pairs(self) -> int:
        """Pairs of columns with a curvature."""
        m = self.likelihood.n_columns
        return m if self.likelihood.n_systems == m else m * (m + 1) // 2

    def pass_over(self, meter: Meter, segment: Segment, coef: Array) -> Array:
        """See base class: values, and sums of gradients and curvatures times e^{ikθ}."""
        like, grid, values = self.likelihood, self.grid, np.zeros(self.likelihood.n_systems)
        modes = _padded(grid, grid.to_modes(coef[: grid.dimension]))
        sums = np.zeros((like.n_columns + self.n_pairs, *grid.n_sum_modes), np.complex128)
        codes, row_weights = segment.target_rows(), segment.weight_rows()
        for where, x in finite_blocks(meter, segment):
            y, weights = codes[where][:, 0].astype(np.intp), None if row_weights is None else row_weights[where][:, 0]
            with meter.time("transform"):
                transform = Transform(grid.angles(x), grid.n_sum_modes)
                scores = transform.to_points(modes)
            scores += coef[grid.dimension :].sum(axis=0)  # the constant, if there is one
            with meter.time("likelihood"):
                values += like.values(scores, y, weights)
                summands = np.hstack([like.gradient(scores, y, weights), like.root(scores, weights).pairs()])
            with meter.time("transform"):
                sums += transform.to_modes(summands)
        return np.concatenate([values, sums.ravel().view(np.float64)])

    def unpack(self, packed: Array) -> tuple[Array, Array, Array]:
        """See base class: the curvature matrices are gathered."""
        like, grid, p, m = self.likelihood, self.grid, self.dimension, self.likelihood.n_columns
        sums = packed[like.n_systems :].view(np.complex128).reshape(-1, *grid.n_sum_modes)
        gradient = grid.of_modes(_cropped(grid, sums[:m]))
        if self.fit_intercept:
            gradient = np.vstack([gradient, totals_of(sums[:m])])
        blocks = [self._bordered(one) for one in sums[m:]]
        if like.n_systems == m:
            return packed[: like.n_systems].copy(), gradient, np.stack(blocks)
        curvature = np.zeros((1, m * p, m * p))
        pairs = ((k, j) for k in range(m) for j in range(k + 1))
        for (k, j), block in zip(pairs, blocks, strict=True):
            if k > j:
                mirror_lower(block)
            curvature[0, k * p : (k + 1) * p, j * p : (j + 1) * p] = block
        return packed[: like.n_systems].copy(), gradient, curvature

    def _bordered(self, sums: Complex) -> Array:
        """Lower triangle of ΦᵀWΦ from sums over the rows, with a last row for a constant."""
        normal = FourierNormalMatrix(self.grid, sums, is_centred=False, threads=self.threads)
        matrix = normal.matrix()
        if not self.fit_intercept:
            return matrix
        whole = np.zeros((normal.n + 1, normal.n + 1))
        whole[:-1, :-1], whole[-1, :-1], whole[-1, -1] = matrix, normal.totals, normal.total
        return whole


def near_pass(meter: Meter, passes: FourierLikelihoodPass, segment: Segment, coef: Array) -> Array:
    """Task: Σ φ'(xᵢ) gᵢ over a segment, (D', m), for gradients g by the scores and features φ' of the doubled grid."""
    assert isinstance(passes.feature_map, FourierGrid)
    like, grid, near = passes.likelihood, passes.grid, FourierZones(passes.feature_map).near.grid(passes.n_features)
    modes, total = grid.to_modes(coef[: grid.dimension]), np.zeros((like.n_columns, *near.n_modes), np.complex128)
    codes, row_weights = segment.target_rows(), segment.weight_rows()
    for where, x in finite_blocks(meter, segment):
        y, weights = codes[where][:, 0].astype(np.intp), None if row_weights is None else row_weights[where][:, 0]
        scores = Transform(grid.angles(x), grid.n_modes).to_points(modes) + coef[grid.dimension :].sum(axis=0)
        total += Transform(near.angles(x), near.n_modes).to_modes(like.gradient(scores, y, weights))
    return near.of_modes(total)


def _central_modes(grid: Grid) -> tuple[slice, ...]:
    """Modes of a grid among those of differences and sums."""
    return (slice(None), *(slice(m, 3 * m + 1) for m in grid.most))


def _padded(grid: Grid, modes: Complex) -> Complex:
    out = np.zeros((len(modes), *grid.n_sum_modes), np.complex128)
    out[_central_modes(grid)] = modes
    return out


def _cropped(grid: Grid, modes: Complex) -> Complex:
    found: Complex = modes[_central_modes(grid)].reshape(len(modes), prod(grid.n_modes))
    return found.reshape(-1, *grid.n_modes)
