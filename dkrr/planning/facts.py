"""What the cost of a problem depends on and is measured, of its rows and its kernel."""

from dataclasses import dataclass
from typing import NamedTuple

Box = tuple[tuple[float, float], ...]
"""Smallest and largest value of the rows in each column of a Fourier grid."""


class EntrySeconds(NamedTuple):
    """Measured time to form one entry of a Gram matrix, on one core while the others do the same."""

    float64: float
    float32: float


@dataclass(frozen=True)
class Spectrum:
    """Decay of the eigenvalues of K / n, the constant deflated.

    The defaults are for unknown data and a kernel with k(x, x) = 1: between QM9 (79 columns, γ = 1 / 79:
    a thousandth of 3.9e-5 and a decay of 2.7) and 16 normal columns with γ = 1 / 16 (1.2e-4 and 1.2).
    """

    largest: float = 0.2
    thousandth: float = 7e-5
    decay: float = 2.0
    """Power of their number with which eigenvalues fall."""

    def eigenvalue(self, rank: int) -> float:
        """Largest eigenvalue of K / n that a factor of this rank leaves."""
        return self.largest if rank == 0 else min(self.largest, self.thousandth * (rank / 1000) ** -self.decay)


TYPICAL = Spectrum()


@dataclass(frozen=True)
class Facts:
    """Measurements of a problem, each made once, where it can change a choice (`dkrr.fitting.request_plans`)."""

    entry_seconds: EntrySeconds | None = None
    """Time of an entry of the kernel; None: nominal times."""
    spectrum: Spectrum = TYPICAL
    """Spectrum of K / n: typical, or estimated on a sample of the rows."""
    box: Box | None = None
    """Box of all rows; None: not known."""


NOTHING_MEASURED = Facts()
