"""Random Fourier features: an approximation of the RBF, Laplacian and Matérn kernels that is finite."""

from dataclasses import dataclass
from functools import lru_cache
from math import pi, sqrt
from typing import ClassVar

import numpy as np
import numpy.typing as npt
from scipy.special import ndtri

from dkrr import blas
from dkrr.checks import whole
from dkrr.errors import InputError
from dkrr.kernels.base import Kernel
from dkrr.kernels.blocks import STRIP_ROWS, Block, is_sparse
from dkrr.kernels.euclidean import RBF, Matern
from dkrr.kernels.manhattan import Laplacian
from dkrr.kernels.map_base import GEMM_FLOPS, Array, FeatureMap, as_base

TRIGONOMETRIC_SECONDS = 10e-9
"""Seconds of a cosine or a sine (measured on strips in cache: 9 to 11 ns)."""

BLOCK_FREQUENCIES = 1024
FREQUENCY_BLOCK_ENTRIES = 2**21
"""Most entries of a block of frequencies (16 MiB): they are drawn by blocks, so that D · d is never in memory at once.
Saved models depend on both numbers."""
BLOCKS_KEPT = 16
"""Blocks of frequencies that are kept for the next rows (at most 256 MiB); others are drawn again."""


@dataclass(frozen=True)
class RandomFourier(FeatureMap):
    """φ(x) = √(2/D) (cos ω₁ᵀx, sin ω₁ᵀx, cos ω₂ᵀx, ...) with D/2 frequencies ω drawn at random.

    A kernel k(x − z) is the Fourier transform of a density of ω (Bochner's theorem), so φ(x)ᵀφ(z) =
    (2/D) Σ cos ωⱼᵀ(x − z) has the kernel as its mean, with an error of about D^(−1/2). The density is normal for
    the RBF kernel, a product of Cauchy densities for the Laplacian, and multivariate t with 2ν degrees of freedom
    for the Matérn kernel.

    `KernelRidge(kernel=RandomFourier(...))` fits the model of φ: an approximation of that of the kernel, by name.

    Parameters
    ----------
    base : RBF, Laplacian or Matern, or such a kernel's name
        The kernel to approximate.
    n_components : int
        D, an even number. For the same `random_state` the frequencies of a smaller D are among those of a larger.
    random_state : int, default=0
        Seed of the frequencies; with the number of columns of X it determines them.

    See Also
    --------
    dkrr.features.Nystroem : An approximation of any kernel by some of the rows.
    dkrr.features.FourierGrid : Equally spaced frequencies, for one to three columns.
    dkrr.kernels.RBF : The Gaussian of the distance.

    References
    ----------
    A. Rahimi, B. Recht, "Random features for large-scale kernel machines", NIPS 2007.
    D. J. Sutherland, J. Schneider, "On the error of random Fourier features", UAI 2015.

    Examples
    --------
    >>> import numpy as np
    >>> from dkrr.features import RandomFourier
    >>> from dkrr.kernels import RBF
    >>> X = np.array([[0.0, 0.0], [1.0, 0.5]])
    >>> phi = RandomFourier(RBF(gamma=0.5), n_components=20_000).transform(X)
    >>> bool(abs(phi[0] @ phi[1] - RBF(gamma=0.5)(X)[0, 1]) < 0.02)
    True
    """

    tag: ClassVar[str] = "random_fourier"

    base: Kernel
    n_components: int
    random_state: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "base", as_base(self.base, "RandomFourier"))
        if not isinstance(self.base, RBF | Laplacian | Matern):
            raise InputError(
                f"base is {self.base!r}, without frequencies; expected an RBF, Laplacian or Matern kernel: use "
                "dkrr.features.Nystroem for others, and multiples and sums of maps, as 2.0 * RandomFourier(RBF()) + ..."
            )
        object.__setattr__(self, "n_components", whole(self.n_components, "n_components", 2))
        if self.n_components % 2:
            raise InputError(
                f"n_components is {self.n_components}; expected an even number: cosines and sines come in pairs"
            )
        object.__setattr__(self, "random_state", whole(self.random_state, "random_state", 0))

    def entry_seconds(self, n_features: int) -> float:
        # A projection serves a cosine and a sine.
        return n_features / GEMM_FLOPS + TRIGONOMETRIC_SECONDS

    def held_bytes(self, n_features: int) -> int:
        n_blocks = -(-self.n_components // (2 * _block_width(n_features)))
        # One more block for the bits that become frequencies.
        return 8 * n_features * _block_width(n_features) * (min(n_blocks, BLOCKS_KEPT) + 1)

    def dimension(self, n_features: int) -> int:  # noqa: ARG002
        return self.n_components

    def _fill(self, X: Block, start: int, stop: int, out: Array) -> None:
        # Pairs of cosine and sine rather than √2 cos(ωᵀx + b): with Δ = x − z their variance is lower wherever
        # k(2Δ) < 2 k(Δ)² (Sutherland and Schneider 2015), which holds for all three kernels, and k(x, x) is exact.
        n_rows, d = X.shape
        base, width = self.base.resolved(d), _block_width(d)
        first, last = start // 2, (stop + 1) // 2
        # Frequencies outside, so that each block is drawn once; rows inside, so that the strip stays in cache.
        for block in range(first // width, -(-last // width)):
            begin, end = max(first, block * width), min(last, (block + 1) * width)
            omega = frequencies(base, self.random_state, d, block)[:, begin - block * width : end - block * width]
            # Column 2j is the cosine, 2j + 1 the sine of frequency j, for the requested ones.
            cosines, sines = (max(begin, (start + 1) // 2), min(end, (stop + 1) // 2)), (begin, min(end, stop // 2))
            for top in range(0, n_rows, STRIP_ROWS):
                angles = _product(X[top : top + STRIP_ROWS], omega)
                strip = out[top : top + STRIP_ROWS]
                for (a, b), odd, function in ((cosines, 0, np.cos), (sines, 1, np.sin)):
                    if a < b:
                        target = strip[:, 2 * a + odd - start : 2 * b - 1 + odd - start : 2]
                        function(angles[:, a - begin : b - begin], out=target)
        out *= sqrt(2.0 / self.n_components)


def _block_width(n_features: int) -> int:
    """Frequencies of a block."""
    return max(1, min(BLOCK_FREQUENCIES, FREQUENCY_BLOCK_ENTRIES // n_features))


@lru_cache(maxsize=BLOCKS_KEPT)
def frequencies(base: Kernel, random_state: int, n_features: int, block: int) -> npt.NDArray[np.float64]:
    """A block of frequencies of a resolved kernel, read-only, of shape (n_features, number of frequencies).

    Each block has its own generator, so that a range of features needs no draws for the others.
    """
    bits, width = np.random.PCG64([random_state, block]), _block_width(n_features)
    if isinstance(base, Laplacian):
        assert base.gamma is not None, "the kernel must be resolved first"
        omega = _uniform(bits, n_features, width)
        omega -= 0.5
        omega *= pi
        np.tan(omega, out=omega)  # the quantile of the Cauchy distribution
        omega *= np.atleast_1d(base.gamma)[:, None]
    else:
        omega = _normal(bits, n_features, width)
        if isinstance(base, Matern):
            # t = normal · √(2ν / χ²₂ᵥ) / ℓ, with one χ², a sum of 2ν squares, for all the components of a frequency.
            chi_squared = (_normal(bits, round(2 * base.nu), width) ** 2).sum(axis=0)
            omega *= np.sqrt(2 * base.nu / chi_squared) / np.atleast_1d(base.length_scale)[:, None]
        else:
            assert isinstance(base, RBF) and base.gamma is not None, "the kernel must be resolved first"
            omega *= np.sqrt(2 * np.atleast_1d(base.gamma))[:, None]
    omega.flags.writeable = False
    return omega


def _normal(bits: np.random.PCG64, n_rows: int, n_columns: int) -> Array:
    """Standard normal numbers."""
    uniform = _uniform(bits, n_rows, n_columns)
    normal: Array = ndtri(uniform, out=uniform)
    return normal


def _uniform(bits: np.random.PCG64, n_rows: int, n_columns: int) -> Array:
    """Numbers inside (0, 1), from the bits alone.

    NumPy keeps its bits the same from version to version, but not its distributions (NEP 19), and a saved model holds
    the seed only.
    """
    raw = bits.random_raw(n_rows * n_columns)
    raw >>= np.uint64(12)
    uniform: Array = raw.astype(np.float64).reshape(n_rows, n_columns)
    uniform += 0.5
    uniform *= 2.0**-52
    return uniform


def _product(X: Block, omega: Array) -> Array:
    if is_sparse(X):
        sparse_product: Array = X @ omega
        return sparse_product
    product = np.empty((X.shape[0], omega.shape[1]))
    blas.gemm(product, np.ascontiguousarray(X, np.float64), omega)
    return product
