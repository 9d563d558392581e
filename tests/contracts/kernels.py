"""The table of kernels: a row here puts a kernel through the whole contract.

Its formula is the naive one: of two rows as lists of numbers, in floats or, for `tests.precise`, in 180 digits.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from dkrr import kernels as k
from dkrr.kernels.lengths import WithLengths
from dkrr.kernels.map_base import MapKernel
from tests.contracts import wrong_values as values

Numbers: TypeAlias = list[Any]
"""Floats, or numbers of 180 digits."""


@dataclass(frozen=True)
class Case:
    """A kernel with some parameters, and the rows that it takes."""

    kernel: k.Kernel
    repeats: bool = False  # runs the same code as another case, with other numbers
    non_negative: bool = False  # takes non-negative features only
    whole: bool = False  # tells only equal numbers apart: rows of a few
    far: float = 1e6  # factor of rows that are far from each other

    def __str__(self) -> str:
        return str(self.kernel)

    def rows(self, n: int, d: int, seed: int = 0) -> NDArray[np.float64]:
        X = np.random.default_rng(seed).standard_normal((n, d))
        X = np.rint(X) if self.whole else X
        return np.abs(X) if self.non_negative else X


@dataclass(frozen=True)
class Row:
    """What the tests know of a class of kernels."""

    formula: Callable[[Any, Numbers, Numbers, Any], Any]
    """k(x, z) of a kernel and two rows; `m` has number, exp, log1p, sqrt and tanh of the arithmetic."""
    cases: list[Case] = field(default_factory=list)
    takes: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """Wrong-looking values that mean something, by parameter: labels of `wrong_values`; all others are refused."""


FLOATS = SimpleNamespace(number=float, exp=math.exp, log1p=math.log1p, sqrt=math.sqrt, tanh=math.tanh)
"""The arithmetic of naive formulas: another one has functions of these names."""


def naive_entry(kernel: k.Kernel, x: Numbers, z: Numbers, m: Any = FLOATS) -> Any:
    """Return k(x, z) of two rows as lists of numbers; the formula is that of the kernel's row."""
    if type(kernel) not in ROWS:
        raise LookupError(lacks_row(type(kernel)))
    return ROWS[type(kernel)].formula(kernel, x, z, m)


def lacks_row(kind: type[k.Kernel]) -> str:
    return (
        f"{kind.__name__} has no naive formula with cases to be compared: add its row to ROWS in "
        f"tests/contracts/kernels.py, k.{kind.__name__}: Row(lambda k, x, z, m: ..., [Case(k.{kind.__name__}())])"
    )


def lacks_values(kind: type[k.Kernel], parameter: str) -> str:
    return (
        f"{kind.__name__}.{parameter} may be anything as far as the tests know: add {{{parameter!r}: POSITIVE}}, or "
        f"what else it takes, to its row in tests/contracts/kernels.py"
    )


def dot(x: Numbers, z: Numbers) -> Any:
    return sum(a * b for a, b in zip(x, z, strict=True))


def each(scales: Any, x: Numbers, m: Any) -> Numbers:
    """One number for each column, of one for all or of several; None is 1 / d."""
    if scales is None:
        return [m.number(1) / len(x)] * len(x)
    return [m.number(s) for s in (scales if isinstance(scales, tuple) else [scales] * len(x))]


def squared_distance(x: Numbers, z: Numbers, scales: Numbers) -> Any:
    return sum(s * (a - b) ** 2 for s, a, b in zip(scales, x, z, strict=True))


def absolute_distance(x: Numbers, z: Numbers, scales: Numbers) -> Any:
    return sum(s * abs(a - b) for s, a, b in zip(scales, x, z, strict=True))


def _gamma(kernel: Any, x: Numbers, m: Any) -> Any:
    return each(kernel.gamma, x, m)[0]


def _columns(kernel: k.Columns, x: Numbers) -> Numbers:
    return [x[j] for j in np.arange(len(x))[kernel.numbers(len(x))]]


def _cosine(_: Any, x: Numbers, z: Numbers, m: Any) -> Any:
    lengths = m.sqrt(dot(x, x)) * m.sqrt(dot(z, z))
    return dot(x, z) / lengths if lengths > 0 else m.number(0)


def _matern(kernel: Any, x: Numbers, z: Numbers, m: Any) -> Any:
    nu = m.number(kernel.nu)
    r = m.sqrt(2 * nu * squared_distance(x, z, [1 / s**2 for s in each(kernel.length_scale, x, m)]))
    return {0.5: 1, 1.5: 1 + r, 2.5: 1 + r + r * r / 3}[kernel.nu] * m.exp(-r)


def _rational(kernel: Any, x: Numbers, z: Numbers, m: Any) -> Any:
    alpha = m.number(kernel.alpha)
    u = squared_distance(x, z, [1 / (2 * alpha * s**2) for s in each(kernel.length_scale, x, m)])
    return m.exp(-alpha * m.log1p(u))


def _chi2(x: Numbers, z: Numbers, m: Any) -> Any:
    return sum(((a - b) ** 2 / (a + b) for a, b in zip(x, z, strict=True) if a + b > 0), m.number(0))


def _taylor(kernel: Any, x: Numbers, z: Numbers, m: Any) -> Any:
    gamma = _gamma(kernel, x, m)
    terms = sum((2 * gamma * dot(x, z)) ** j / math.factorial(j) for j in range(kernel.degree + 1))
    return m.exp(-gamma * (dot(x, x) + dot(z, z))) * terms


def _normalized(kernel: Any, x: Numbers, z: Numbers, m: Any) -> Any:
    squares = naive_entry(kernel.base, x, x, m) * naive_entry(kernel.base, z, z, m)
    return naive_entry(kernel.base, x, z, m) / m.sqrt(squares) if squares > 0 else m.number(0)


OR_NONE, POSITIVE = values.NONE | values.POSITIVE, values.POSITIVE
LENGTHS = POSITIVE | values.SCALAR_ARRAY | values.PATH  # also one for each column
MODERATE = LENGTHS - values.TINY - {"1e300"}

ROWS: dict[type[k.Kernel], Row] = {
    k.Linear: Row(lambda k, x, z, m: dot(x, z), [Case(k.Linear())]),
    k.Polynomial: Row(
        lambda k, x, z, m: (_gamma(k, x, m) * dot(x, z) + m.number(k.coef0)) ** k.degree,
        [
            Case(k.Polynomial(), repeats=True),
            Case(k.Polynomial(degree=1, gamma=0.7, coef0=0.0), repeats=True),
            Case(k.Polynomial(degree=5, gamma=0.3, coef0=2.0)),
            Case(k.Polynomial(degree=0, gamma=1.0)),
            Case(k.Polynomial(degree=1.5, gamma=0.01, coef0=5.0), far=0.1),
        ],
        {"degree": values.WHOLE_POWER, "gamma": OR_NONE, "coef0": values.REAL},
    ),
    k.Sigmoid: Row(
        lambda k, x, z, m: m.tanh(_gamma(k, x, m) * dot(x, z) + m.number(k.coef0)),
        [Case(k.Sigmoid())],
        {"gamma": OR_NONE, "coef0": values.REAL},
    ),
    k.Cosine: Row(_cosine, [Case(k.Cosine())]),
    k.RBF: Row(
        lambda k, x, z, m: m.exp(-squared_distance(x, z, each(k.gamma, x, m))),
        [Case(k.RBF(), repeats=True), Case(k.RBF(gamma=0.37))],
        {"gamma": values.NONE | LENGTHS},
    ),
    k.Laplacian: Row(
        lambda k, x, z, m: m.exp(-absolute_distance(x, z, each(k.gamma, x, m))),
        [Case(k.Laplacian(), repeats=True), Case(k.Laplacian(gamma=0.2))],
        {"gamma": values.NONE | LENGTHS},
    ),
    k.Matern: Row(
        _matern,
        [
            Case(k.Matern(nu=nu, length_scale=length), repeats=length == 1.0)
            for nu in (0.5, 1.5, 2.5)
            for length in (1.0, 3.7)
        ],
        {"nu": values.HALF | {"1.5"}, "length_scale": MODERATE},
    ),
    k.RationalQuadratic: Row(
        _rational,
        [
            Case(k.RationalQuadratic()),
            Case(k.RationalQuadratic(length_scale=2.7, alpha=0.3)),
            Case(k.RationalQuadratic(length_scale=0.8, alpha=1e6)),
        ],
        {"length_scale": MODERATE, "alpha": POSITIVE - values.TINY - values.HUGE_POWER},
    ),
    k.AdditiveChi2: Row(lambda k, x, z, m: -_chi2(x, z, m), [Case(k.AdditiveChi2(), non_negative=True)]),
    k.Chi2: Row(
        lambda k, x, z, m: m.exp(-m.number(k.gamma) * _chi2(x, z, m)),
        [Case(k.Chi2(gamma=0.4), non_negative=True)],
        {"gamma": POSITIVE},
    ),
    k.Categories: Row(
        lambda k, x, z, m: m.number(k.weight) ** sum(a != b for a, b in zip(x, z, strict=True)),
        [Case(k.Categories(), whole=True), Case(k.Categories(0.3), whole=True)],
        {"weight": values.HALF | values.TINY | values.ZERO, "categories": values.NONE | {"[[]]"}},
    ),
    k.TaylorRBF: Row(
        _taylor,
        [
            Case(k.TaylorRBF(degree=0), repeats=True),
            Case(k.TaylorRBF(degree=4)),
            Case(k.TaylorRBF(degree=30, gamma=0.3), repeats=True),
        ],
        {"degree": values.WHOLE_POWER - values.HUGE_POWER, "gamma": OR_NONE},
    ),
    # Kernels of kernels
    k.Normalized: Row(
        _normalized,
        [Case(k.Normalized(k.Polynomial(degree=2))), Case(k.Normalized(k.Linear() + 0.3 * k.RBF()))],
        {"base": values.KERNEL},
    ),
    k.Sum: Row(
        lambda k, x, z, m: naive_entry(k.left, x, z, m) + naive_entry(k.right, x, z, m),
        [
            Case(k.Categories(0.1) * k.RBF(gamma=0.2) + k.Linear(), whole=True),
            Case(k.RBF(gamma=0.2) + 0.5 * k.Linear()),
            Case(k.RBF() + k.Chi2(), non_negative=True),
        ],
        {"left": values.KERNEL, "right": values.KERNEL},
    ),
    k.Product: Row(
        lambda k, x, z, m: naive_entry(k.left, x, z, m) * naive_entry(k.right, x, z, m),
        [Case(k.Polynomial(degree=2) * k.Laplacian())],
        {"left": values.KERNEL, "right": values.KERNEL},
    ),
    k.Scaled: Row(
        lambda k, x, z, m: m.number(k.scale) * naive_entry(k.base, x, z, m),
        [Case(2.5 * (k.RBF() + k.Cosine() * k.Matern(nu=1.5)))],
        {"base": values.KERNEL, "scale": POSITIVE},
    ),
    # Without cases: their formula is for kernels made of them
    k.Columns: Row(lambda k, x, z, m: naive_entry(k.base, _columns(k, x), _columns(k, z), m)),
    MapKernel: Row(lambda k, x, z, m: dot(*k.base.transform(np.array([x, z], float)).tolist())),
}

ELSEWHERE = {
    k.BagOfWords: "tests/data/test_objects.py",
    k.CallableKernel: "tests/cluster/test_functions.py",
    k.Columns: "tests/algorithms/test_compound_kernels.py",
    k.Precomputed: "tests/data/test_kernel_values.py",
    k.RandomWalk: "tests/data/test_graphs.py",
}
"""Kernels without cases, as their rows are not numbers alone or they compute nothing, and the tests that they have."""

CASES = [case for row in ROWS.values() for case in row.cases]
DISTINCT = [case for case in CASES if not case.repeats]
"""For what does not depend on the numbers: blocks, strips, workspaces, and what is built on kernels."""
OF_LENGTHS = [case.kernel for case in DISTINCT if isinstance(case.kernel, WithLengths)]
"""Kernels whose columns may have a length each."""
OF_ENTRIES = [case for case in DISTINCT if case.kernel.sparse_parts]
"""Kernels whose memory follows the stored entries of CSR rows."""
