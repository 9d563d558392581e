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

from dkrr.data import MemoryRows
from dkrr.features import Nystroem
from dkrr.fitting.sampled import with_sampled_maps
from dkrr.kernels import BagOfWords, Cosine
from dkrr.kernels.kernel_features import required_feature_map
from dkrr.kernels.nystroem import NystroemMap
from tests.nightly.accuracy.checks import Array, Exact, exact
from tests.precise import gram, precision, system

Numbers = NDArray[np.intp]
T = TypeVar("T")
FourierNormalMatrix = np.random.Generator | None
"""None: nothing is moved by rounding."""

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
            if all(v.rel_accuracy_bits() >= SURE_BITS or abs(v) < arb(10) ** -500 for v in numbers(found)):
                return found
    raise ArithmeticError(f"{STARTS[-1]} bits of arithmetic leave the result uncertain")


def moved(values: Array, rng: FourierNormalMatrix) -> Array:
    """Numbers moved by rounding."""
    return values if rng is None else values * (1 + ROUNDING * rng.uniform(-1, 1, values.shape))


def bordered(values: Any, right: Any, *, fit_intercept: bool) -> tuple[Any, Any]:
    """Rows with a 1 behind them, and right sides with a 0 below, if there is an intercept; numbers of flint or not."""
    ones = np.ones((len(values), int(fit_intercept)), values.dtype)
    return np.hstack([values, ones]), np.vstack([right, 0 * right[: int(fit_intercept)]])


@dataclass(frozen=True)
class Problem:
    """Rows, new rows behind them, and what is fitted to some of the rows."""

    X: Any
    """Rows and new rows: an array or CSR, documents, or with `is_precomputed` the kernel between them and the rows."""
    y: Array
    """Targets of the rows (n, t)."""
    kernel: Any
    """Kernel or feature map of dkrr, as it is given to an estimator; or "precomputed"."""
    weights: Array
    """Of the rows (n,)."""
    fit_intercept: bool
    _known: dict[Any, Any] = field(default_factory=dict, repr=False, compare=False)

    @property
    def is_precomputed(self) -> bool:
        """Whether the kernel is given."""
        return isinstance(self.kernel, str)

    @property
    def learns(self) -> bool:
        """Whether the kernel depends on the training rows."""
        return isinstance(self.kernel, BagOfWords | Nystroem)

    def learned(self, train: Numbers) -> tuple[Any, Any]:
        """Kernel, or drawn map, and rows of numbers, as the training rows determine them."""
        if isinstance(self.kernel, BagOfWords):  # its documentation says that these are scikit-learn's weights
            words = TfidfVectorizer(norm=None, token_pattern=self.kernel.token_pattern)
            words.fit([self.X[i] for i in train])
            return Cosine(), words.transform(self.X).toarray()
        return (with_sampled_maps(self.kernel, MemoryRows(self.X[train])) if self.learns else self.kernel), self.X

    def _once(self, what: str, train: Numbers, compute: Callable[[Any, Any], Any]) -> Any:
        """What was computed of the kernel and the rows for the training rows, in as many digits."""
        key = (what, ctx.prec, train.tobytes() if self.learns else b"")
        if key not in self._known:
            self._known[key] = compute(*self.learned(train))
        return self._known[key]

    def gram(self, train: Numbers) -> Exact:
        """K between all rows, new ones too, and the rows."""

        def compute(kernel: Any, X: Any) -> Exact:
            if self.is_precomputed:
                return exact(X)
            if isinstance(kernel, NystroemMap):
                cross = gram(kernel.base, X, kernel.centres)
                return exact(cross * gram(kernel.base, kernel.centres).solve(cross.transpose()))
            return exact(gram(kernel, X, X[: len(self.y)]))

        found: Exact = self._once("gram", train, compute)
        return found

    def system(self, train: Numbers, alpha: float) -> arb_mat:
        """Matrix K + λW⁻¹ of the training rows of positive weight, with the intercept's row and column."""
        weights, used = [arb(float(w)) for w in self.weights], self.used(train).tolist()
        return system(self.gram(train), used, weights, alpha, fit_intercept=self.fit_intercept)

    def used(self, train: Numbers) -> Numbers:
        """Training rows of positive weight."""
        return train[self.weights[train] > 0]

    def predictions(self, alpha: float, train: Numbers, at: Numbers, bits: int = STARTS[0]) -> Exact:
        """Exact predictions of some rows by the model of a training set, of shape (len(at), t)."""

        def compute() -> Exact:
            used = self.used(train)
            rows, right = self.gram(train)[np.ix_(at, used)], exact(self.y)[used]
            rows, right = bordered(rows, right, fit_intercept=self.fit_intercept)
            found: Exact = rows @ exact(self.system(train, alpha).solve(arb_mat(right.tolist())))
            return found

        return certain(compute, lambda found: found.flat, bits)

    def rounded_predictions(
        self, alpha: float, train: Numbers, at: Numbers, form: str, rng: FourierNormalMatrix = None
    ) -> tuple[Array, Array]:
        """Predictions (len(at), t) by a float64 model of the form; by how much residuals as long as y change them."""
        used = self.used(train)
        w, y = self.weights[used], self.y[used]
        unit = np.abs(y).max() or 1.0
        mean = np.average(y / unit, axis=0, weights=w) if self.fit_intercept else np.zeros(y.shape[1])
        make = self._primal if form == "primal" else self._dual
        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore", scipy.linalg.LinAlgWarning)
            table, right, rows, scale = make(alpha, train, at, y / unit - mean, w, rng)
            if not (np.isfinite(table).all() and np.isfinite(right).all()):
                return (np.full((len(at), y.shape[1]), np.nan),) * 2
            changes = scipy.linalg.solve(table, rows.T, assume_a="sym").T / scale
            found = rows @ scipy.linalg.solve(table, right, assume_a="sym") + mean
            lengths = np.outer(np.linalg.norm(changes, axis=1), np.linalg.norm(right.T * scale, axis=1))
            return found * unit, lengths * unit

    def entries(self, train: Numbers) -> Array:
        """K between all rows and the rows, in float64."""

        def compute(kernel: Any, X: Any) -> Array:
            if self.is_precomputed:
                return np.asarray(X, np.float64)
            if isinstance(kernel, NystroemMap):
                phi = kernel.transform(X)
                return np.asarray(phi @ phi[: len(self.y)].T)
            return np.asarray(kernel.resolved(X.shape[1])(X, X[: len(self.y)]), np.float64)

        found: Array = self._once("entries", train, compute)
        return found

    def _dual(self, alpha: float, train: Numbers, at: Numbers, y: Array, w: Array, rng: FourierNormalMatrix) -> Any:
        """(√W K √W + λI) β = √W y, with the intercept's row and column of √w, and the rows that multiply β."""
        k, used = moved(self.entries(train), rng), self.used(train)
        size, root = float(np.abs(k).max()) or 1.0, np.sqrt(w / w.max())
        table = root[:, None] * (k[np.ix_(used, used)] / size) * root + alpha / w.max() / size * np.eye(len(used))
        table, rows = np.tril(table) + np.tril(table, -1).T, k[np.ix_(at, used)] / size * root
        rows, right = bordered(rows, root[:, None] * y, fit_intercept=self.fit_intercept)
        if self.fit_intercept:
            table = np.block([[table, root[:, None]], [root, np.zeros(1)]])
        return table, right, rows, 1.0

    def _primal(self, alpha: float, train: Numbers, at: Numbers, y: Array, w: Array, rng: FourierNormalMatrix) -> Any:
        """(ΦᵀWΦ + λI) w = ΦᵀWy, of features at unit scale, centred if there is an intercept; features; their scales."""
        phi, used = self._once("features", train, _features), self.used(train)
        phi = moved(phi, rng)
        scale = np.abs(phi[used]).max(axis=0)
        scale = np.where(scale > 0, scale, float(scale.max()) or 1.0)
        phi = phi / scale
        if self.fit_intercept:
            phi = phi - np.average(phi[used], axis=0, weights=w)
        inner, part = phi[used], (w / w.max())[:, None]
        table = inner.T @ (part * inner) + np.diag(alpha / w.max() / scale / scale)
        return table, inner.T @ (part * y), phi[at], scale


def _features(kernel: Any, X: Any) -> Any:
    """Features of all rows, in float64."""
    is_drawn = isinstance(kernel, NystroemMap)
    return (kernel if is_drawn else required_feature_map(kernel.resolved(X.shape[1]), X.shape[1])).transform(X)
