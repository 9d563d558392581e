"""Models of training sets, in arithmetic of as many digits as their predictions need, and the same in float64.

What a kernel learns (the centres of a Nyström map, the vocabulary and the rarities of words) it learns from the
training rows of each model. The float64 models say how far rounding alone moves a result: they are fitted anew to each
training set, in the form that is asked for, also with inputs that are moved by rounding.
"""

import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
import scipy.linalg
from flint import arb, arb_mat, ctx
from numpy.typing import NDArray
from sklearn.feature_extraction.text import TfidfVectorizer

from dkrr.features import Nystroem, NystroemMap, required_feature_map
from dkrr.fitting.sampled import drawn
from dkrr.kernels import BagOfWords, Cosine
from dkrr.rows import MemoryRows
from tests.precise import gram, matrix, precision, system

Array = NDArray[np.float64]
Numbers = NDArray[np.intp]
T = TypeVar("T")

STARTS = (200, 600, 2_000, 6_000)
"""Bits of arithmetic, tried one after the other: 60, 180, 600 and 1,800 digits."""
SURE_BITS = 40
"""Bits of a result that intervals of arithmetic must leave certain."""
ROUNDING = 4 * float(np.finfo(np.float64).eps)
"""Relative change of inputs of float64 models."""


def certain(compute: Callable[[], T], numbers: Callable[[T], Iterable[arb]], bits: int = STARTS[0]) -> T:
    """Return what is computed, in the arithmetic in which its numbers have 12 certain digits.

    Parameters
    ----------
    compute : callable
    numbers : callable
        Its numbers; a zero that is not exact must be within 1e-200.
    bits : int
        Of the first try.

    Raises
    ------
    ArithmeticError
        If 1,800 digits do not suffice.
    """
    for one in (b for b in STARTS if b >= bits):
        with precision(one):
            try:
                found = compute()
            except ZeroDivisionError:  # the matrix cannot be told from a singular one
                continue
            if all(_is_certain(v) for v in numbers(found)):
                return found
    raise ArithmeticError(f"{STARTS[-1]} bits of arithmetic leave the result uncertain")


def _is_certain(value: arb) -> bool:
    return bool(value.rel_accuracy_bits() >= SURE_BITS or abs(value) < arb(10) ** -500)


@dataclass(frozen=True)
class Problem:
    """Rows, new rows behind them, and what is fitted to some of the rows."""

    X: Any
    """Rows and new rows: an array or CSR, documents, or with `is_precomputed` the kernel between them and the rows."""
    y: Array
    """Targets of the rows (n, t)."""
    kernel: Any
    """Kernel or feature map of dkrr, as it is given to an estimator."""
    weights: Array
    """Of the rows (n,)."""
    fit_intercept: bool
    is_precomputed: bool = False
    _known: dict[Any, Any] = field(default_factory=dict, repr=False, compare=False)

    @property
    def n(self) -> int:
        """Number of rows."""
        return len(self.y)

    @property
    def learns(self) -> bool:
        """Whether the kernel depends on the training rows."""
        return not self.is_precomputed and isinstance(self.kernel, BagOfWords | Nystroem)

    def learned(self, train: Numbers) -> tuple[Any, Any]:
        """Kernel, or drawn map, and rows of numbers, as the training rows determine them."""
        if self.is_precomputed:
            return None, self.X
        if isinstance(self.kernel, BagOfWords):  # its documentation says that these are scikit-learn's weights
            words = TfidfVectorizer(norm=None, token_pattern=self.kernel.token_pattern)
            words.fit([self.X[i] for i in train])
            return Cosine(), words.transform(self.X).toarray()
        return (drawn(self.kernel, MemoryRows(self.X[train])) if self.learns else self.kernel), self.X

    def gram(self, train: Numbers) -> arb_mat:
        """K between all rows, new ones too, and the rows."""
        return self._cached("gram", train, lambda: self._gram(*self.learned(train)))

    def _gram(self, kernel: Any, X: Any) -> arb_mat:
        if self.is_precomputed:
            return matrix(X)
        if isinstance(kernel, NystroemMap):
            cross = gram(kernel.base, X, kernel.centres)
            return cross * gram(kernel.base, kernel.centres).solve(cross.transpose())
        return gram(kernel, X, X[: self.n])

    def _cached(self, what: str, train: Numbers, compute: Callable[[], T]) -> T:
        key = (what, ctx.prec if what == "gram" else 0, train.tobytes() if self.learns else b"")
        if key not in self._known:
            if self.learns and what == "gram":
                self._known.clear()  # each training set has its own
            self._known[key] = compute()
        found: T = self._known[key]
        return found

    def predictions(self, alpha: float, train: Numbers, at: Numbers, bits: int = STARTS[0]) -> arb_mat:
        """Exact predictions of some rows by the model of a training set, of shape (len(at), t)."""
        t = self.y.shape[1]

        def compute() -> arb_mat:
            k, y = self.gram(train), matrix(self.y)
            used = [int(i) for i in train if self.weights[i] > 0]
            right = [[y[i, c] for c in range(t)] for i in used] + [[arb(0)] * t] * self.fit_intercept
            weights = [arb(float(w)) for w in self.weights]
            table = system(k, used, weights, alpha, fit_intercept=self.fit_intercept)
            solution = table.solve(arb_mat(right))
            ones = [arb(1)] * self.fit_intercept
            return arb_mat([[k[int(i), j] for j in used] + ones for i in at]) * solution

        return certain(compute, lambda found: found.entries(), bits)

    def rounded_predictions(
        self, alpha: float, train: Numbers, at: Numbers, form: str, rng: np.random.Generator | None = None
    ) -> tuple[Array, Array]:
        """Predictions by a float64 model of the form, with inputs moved by rounding.

        Parameters
        ----------
        alpha : float
        train, at : ndarray of intp
        form : {"primal", "dual"}
        rng : Generator, optional
            None: nothing is moved.

        Returns
        -------
        predictions : ndarray of shape (len(at), t)
        sensitivity : ndarray of shape (len(at), t)
            By how much a residual as long as the right side may change them.
        """
        used = train[self.weights[train] > 0]
        w, y = self.weights[used], self.y[used]
        unit = np.abs(y).max() or 1.0
        mean = np.average(y / unit, axis=0, weights=w) if self.fit_intercept else np.zeros(y.shape[1])
        make = _primal if form == "primal" else _dual
        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore", scipy.linalg.LinAlgWarning)
            table, right, rows, scale = make(self, alpha, train, used, at, y / unit - mean, w, rng)
            if not (np.isfinite(table).all() and np.isfinite(right).all()):
                return (np.full((len(at), y.shape[1]), np.nan),) * 2
            moved = scipy.linalg.solve(table, rows.T, assume_a="sym").T / scale
            found = rows @ scipy.linalg.solve(table, right, assume_a="sym") + mean
            lengths = np.outer(np.linalg.norm(moved, axis=1), np.linalg.norm(right.T * scale, axis=1))
            return found * unit, lengths * unit

    def features(self, train: Numbers) -> Array:
        """Features of all rows, in float64."""

        def compute() -> Array:
            kernel, X = self.learned(train)
            if isinstance(kernel, NystroemMap):
                return kernel.transform(X)
            return required_feature_map(kernel.resolved(X.shape[1]), X.shape[1]).transform(X)

        return self._cached("features", train, compute)

    def entries(self, train: Numbers) -> Array:
        """K between all rows and the rows, in float64."""

        def compute() -> Array:
            kernel, X = self.learned(train)
            if self.is_precomputed:
                return np.asarray(X, np.float64)
            if isinstance(kernel, NystroemMap):
                phi = kernel.transform(X)
                return np.asarray(phi @ phi[: self.n].T)
            return np.asarray(kernel.resolved(X.shape[1])(X, X[: self.n]), np.float64)

        return self._cached("entries", train, compute)


def _moved(values: Array, rng: np.random.Generator | None) -> Array:
    return values if rng is None else values * (1 + ROUNDING * rng.uniform(-1, 1, values.shape))


def _dual(
    one: Problem, alpha: float, train: Numbers, used: Numbers, at: Numbers, y: Array, w: Array,
    rng: np.random.Generator | None,
) -> tuple[Array, Array, Array, Any]:  # fmt: skip
    """(√W K √W + λI) β = √W y, with the intercept's row and column of √w, and the rows that β is multiplied with."""
    k = _moved(one.entries(train), rng)
    size, root = float(np.abs(k).max()) or 1.0, np.sqrt(w / w.max())
    table = root[:, None] * (k[np.ix_(used, used)] / size) * root + alpha / w.max() / size * np.eye(len(used))
    table, right = np.tril(table) + np.tril(table, -1).T, root[:, None] * y
    rows = k[np.ix_(at, used)] / size * root
    if one.fit_intercept:
        table = np.block([[table, root[:, None]], [root, np.zeros(1)]])
        right, rows = np.vstack([right, np.zeros(y.shape[1])]), np.column_stack([rows, np.ones(len(at))])
    return table, right, rows, 1.0


def _primal(
    one: Problem, alpha: float, train: Numbers, used: Numbers, at: Numbers, y: Array, w: Array,
    rng: np.random.Generator | None,
) -> tuple[Array, Array, Array, Array]:  # fmt: skip
    """(ΦᵀWΦ + λI) w = ΦᵀWy, of features at unit scale, centred if there is an intercept; the features; their scales."""
    phi = _moved(one.features(train), rng)
    scale = np.abs(phi[used]).max(axis=0)
    scale = np.where(scale > 0, scale, float(scale.max()) or 1.0)
    phi = phi / scale
    if one.fit_intercept:
        phi = phi - np.average(phi[used], axis=0, weights=w)
    inner, part = phi[used], (w / w.max())[:, None]
    table = inner.T @ (part * inner) + np.diag(alpha / w.max() / scale / scale)
    return table, inner.T @ (part * y), phi[at], scale
