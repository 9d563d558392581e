"""Nonuniform fast Fourier transforms between points and the modes of a grid: the gateway to finufft.

Always on one thread: tasks run side by side, and a child of a fork after a call on two threads never returns.

References
----------
A. H. Barnett, J. Magland, L. af Klinteberg, "A parallel nonuniform fast Fourier transform library based on an
'exponential of semicircle' kernel", SIAM J. Sci. Comput. 41 (2019).
"""

from functools import cache
from importlib import import_module
from importlib.util import find_spec
from math import prod
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt

from dkrr.errors import InputError, NotFiniteError

Array = npt.NDArray[np.float64]
Complex = npt.NDArray[np.complex128]

ACCURACY = 3e-15
"""Relative accuracy that is asked of a transform: for 1e-15 the library warns that it may not attain it."""
POINT_BYTES = 100
"""Bytes that a transform takes for a point."""
MISSING = (
    "the Fourier form of this kernel needs the package finufft, which is not installed: pip install 'dkrr[fourier]'"
)


@cache
def is_available() -> bool:
    """Whether finufft is installed."""
    return find_spec("finufft") is not None


def check_available() -> None:
    """Raise InputError if finufft is not installed."""
    if not is_available():
        raise InputError(MISSING)


@cache
def _library() -> ModuleType:
    check_available()
    return import_module("finufft")  # takes 0.1 s


def transform_bytes(n_modes: tuple[int, ...], n_points: int) -> int:
    """Memory of a transform: the finer grid that points are spread to, and what it keeps of each point."""
    return 24 * prod(2 * k + 16 for k in n_modes) + POINT_BYTES * n_points


class Transform:
    """Sums over points of e^{ikθ} for all modes k, and sums over modes at the points.

    Parameters
    ----------
    points : ndarray of shape (n, d)
        θ, with d of 1, 2 or 3.
    n_modes : tuple of int
        Odd numbers K of modes k = −(K − 1)/2 ... (K − 1)/2, of every column.

    Raises
    ------
    NotFiniteError
        If a point is NaN or infinite, which the library would answer with a segmentation fault.
    """

    def __init__(self, points: Array, n_modes: tuple[int, ...]) -> None:
        if not np.isfinite(points).all():
            raise NotFiniteError("a point of a Fourier transform is NaN or infinite; expected rows that are scanned")
        self._n, self._n_modes = len(points), n_modes
        if self._n:  # of none the library divides by zero
            plan = _library().Plan(1, n_modes, eps=ACCURACY, isign=1, nthreads=1)
            plan.setpts(*(np.ascontiguousarray(column) for column in points.T))
            self._plan = plan

    def to_modes(self, strengths: Array) -> Complex:
        """Σᵢ sᵢ e^{ikθᵢ}, of shape (m, *n_modes), for real strengths of shape (n, m)."""
        m, out = strengths.shape[1], np.zeros((strengths.shape[1], *self._n_modes), np.complex128)
        sizes = _sizes(strengths.T)
        for first in range(0, m if self._n else 0, 2):
            pair = np.zeros(self._n, np.complex128)
            np.divide(strengths[:, first], sizes[first], out=pair.real)
            if first + 1 < m:  # two real sums are one complex one: modes k and −k tell them apart
                np.divide(strengths[:, first + 1], sizes[first + 1], out=pair.imag)
            found = self._plan.execute(pair)
            mirrored = np.conj(np.flip(found))
            out[first] = (0.5 * sizes[first]) * (found + mirrored)
            if first + 1 < m:
                out[first + 1] = (-0.5j * sizes[first + 1]) * (found - mirrored)
        return out

    def to_points(self, coefs: Complex) -> Array:
        """Re Σₖ cₖ e^{ikθᵢ}, of shape (n, m), for coefficients of shape (m, *n_modes) with c₋ₖ = conj(cₖ)."""
        m, out = len(coefs), np.zeros((self._n, len(coefs)))
        sizes = _sizes(coefs)
        for first in range(0, m if self._n else 0, 2):
            pair = coefs[first] / sizes[first]
            if first + 1 < m:
                pair += coefs[first + 1] * (1j / sizes[first + 1])
            # The library's adjoint has e^{−ikθ}: its sums with conjugate coefficients are conjugate.
            found = self._plan.execute_adjoint(np.ascontiguousarray(np.conj(pair)))
            np.multiply(found.real, sizes[first], out=out[:, first])
            if first + 1 < m:
                np.multiply(found.imag, -sizes[first + 1], out=out[:, first + 1])
        return out


def _sizes(rows: npt.NDArray[Any]) -> Array:
    """Powers of two about as large as the largest number of each row: of a pair, the errors of one are the other's."""
    largest = np.array([np.abs(row).max(initial=0.0) for row in rows])
    return np.ldexp(1.0, np.frexp(np.where(largest > 0, largest, 1.0))[1])
