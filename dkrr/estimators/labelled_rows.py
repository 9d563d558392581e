"""Rows of a classifier that grows: those of all calls so far, joined in memory, with the numbers of their classes."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dkrr.checks import shown
from dkrr.data import Rows, refuse_changed, watched
from dkrr.data.watched import WatchedRows
from dkrr.errors import InputError
from dkrr.fitting.joined_rows import joined_rows
from dkrr.kernels import Kernel

Array = NDArray[np.float64]
REMEDY = "give all rows to fit"


@dataclass(frozen=True)
class LabelledRows:
    """Rows of all calls so far; those of a fit may be outside of this process's memory until others follow."""

    rows: Rows
    """X as the kernel takes it: transformed, and encoded."""
    codes: NDArray[np.intp]
    """Number of each row's class, of shape (n,)."""
    weights: Array | None
    """Sample weights without those of the classes, of shape (n,); None: ones."""
    kernel: Kernel
    """Kernel as it was requested."""
    drawn: Kernel | None = None
    """The same kernel with the centres that the first call has drawn; None where none are drawn."""

    @property
    def n(self) -> int:
        """Number of rows."""
        return self.rows.shape[0]

    def joined(
        self,
        rows: Rows,
        codes: NDArray[np.intp],
        weights: Array | None,
        kernel: Kernel,
        memory_limit: int | str | None,
    ) -> "LabelledRows":
        """These rows, and others after them, for a kernel, whose centres are kept if it is the same.

        Raises
        ------
        InputError
            If these rows were changed in place since their fit.
        MemoryLimitError
            If rows that are outside of memory do not fit there.
        """
        if self.rows.is_in_memory:
            refuse_changed(self.rows)
        if weights is not None or self.weights is not None:
            parts = ((self.weights, self.n), (weights, rows.shape[0]))
            weights = np.concatenate([np.ones(n) if part is None else part for part, n in parts])
        both = joined_rows([self.rows, rows], memory_limit)
        drawn = self.drawn if kernel == self.kernel else None
        return LabelledRows(both, np.concatenate([self.codes, codes]), weights, kernel, drawn)


def to_be_joined(rows: Rows) -> Rows:
    """Rows of a fit as others are joined to them: without the checksums of its reads, but with some of memory."""
    found = rows.rows if isinstance(rows, WatchedRows) else rows
    return watched(found) if found.is_in_memory else found


def codes_of(labels: NDArray[Any], classes: NDArray[Any]) -> NDArray[np.intp]:
    """Numbers of the classes of labels.

    Raises
    ------
    InputError
        Naming the first label that is not a class.
    """
    numbers = {label: k for k, label in enumerate(classes.tolist())}
    found = [numbers.get(label) for label in labels.tolist()]
    if None in found:
        row = found.index(None)
        raise InputError(
            f"y has the label {shown(labels.tolist()[row])} in row {row}, which is not one of the classes "
            f"{shown(classes.tolist())} of the model; expected one of these: give all classes in the first call, "
            f"classes=[...], or {REMEDY}"
        )
    return np.array(found, np.intp)


def checked_classes(classes: NDArray[Any] | None, known: NDArray[Any] | None) -> NDArray[Any]:
    """Classes of a model that grows, in order: those of the first call, or those that are known, which must be equal.

    Raises
    ------
    InputError
        If the first call has none, they are fewer than two, or not those of the first call.
    """
    found = None if classes is None else np.unique(classes)
    if known is not None:
        if found is not None and found.tolist() != known.tolist():
            raise InputError(
                f"classes is {shown(found.tolist())}, and the rows so far have {shown(known.tolist())}; expected the "
                f"same, or None: {REMEDY}"
            )
        return known
    if found is None:
        raise InputError(
            "classes is None in the first call of partial_fit; expected all labels that rows will have, also in later "
            "calls, as numpy.unique(y) of all rows"
        )
    if len(found) < 2:
        raise InputError(f"classes is {shown(found.tolist())}; expected at least 2 classes")
    return found


def refuse_absent(classes: NDArray[Any], codes: NDArray[np.intp], weights: Array | None) -> None:
    """Refuse classes without rows of positive weight so far, whose free constant would be minus infinity."""
    absent = classes[np.bincount(codes, weights, minlength=len(classes)) == 0].tolist()
    if absent:
        raise InputError(
            f"no row so far is of class {shown(absent[0])} with a positive weight, so that its free constant would be "
            f"minus infinity; expected rows of every class in the first call, or fit_intercept=False"
        )
