"""Transformers fitted to rows of any kind: in memory, or block by block through their public `partial_fit`.

The `transformer` of an estimator, as a user gives it.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import scipy.sparse as sp
from sklearn.base import BaseEstimator, clone
from sklearn.compose import ColumnTransformer
from sklearn.exceptions import NotFittedError
from sklearn.frozen import FrozenEstimator
from sklearn.impute import SimpleImputer
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from sklearn.utils import get_tags
from sklearn.utils.validation import check_is_fitted

from dkrr.checks import shown
from dkrr.data.rows import Rows, joined
from dkrr.data.rows import n_bytes as block_bytes
from dkrr.data.transformed import HeldRows, input_blocks
from dkrr.errors import DkrrError, InputError, InputTypeError
from dkrr.kernels import Kernel
from dkrr.kernels.columns import learns
from dkrr.text import format_bytes

HEAD_ROWS = 256
"""Rows of the first block, by which a ColumnTransformer of fitted parts learns which columns they make."""


def is_fitted(transformer: Any) -> bool:
    """Whether a transformer has learned from rows; False of one that has nothing to learn."""
    if isinstance(transformer, Pipeline):
        steps = [step for _, step in transformer.steps if not isinstance(step, str | None)]
        learning = [step for step in steps if get_tags(step).requires_fit]
        return bool(learning) and all(map(is_fitted, learning))
    try:
        check_is_fitted(transformer)
    except NotFittedError:
        return False
    return bool(get_tags(transformer).requires_fit)


def fitted_transformer(transformer: Any, inputs: Rows, max_bytes: int) -> Any:
    """Transformer that is fitted to all rows; one that was fitted before as it is.

    Rows that are read in blocks are learned from block by block by a transformer with `partial_fit`, and put together
    in memory for others.

    Parameters
    ----------
    transformer : transformer of scikit-learn, or ColumnSteps
        Fitted itself, but for ColumnSteps.
    inputs : Rows
    max_bytes : int
        Most memory of rows that are held at once.

    Raises
    ------
    InputError
        If the transformer refuses the rows, or needs more of them in memory.
    """
    if isinstance(transformer, ColumnSteps):
        return transformer.fitted_to(inputs, max_bytes)
    if is_fitted(transformer):
        return transformer
    if isinstance(inputs, HeldRows):
        return _tried(transformer, "fit", inputs.table)
    if not get_tags(transformer).requires_fit:  # it learns only which columns there are
        return _tried(transformer, "fit", next(iter(input_blocks(inputs))))
    if hasattr(transformer, "partial_fit"):
        return _learned(transformer, input_blocks(inputs))
    if 2 * 8 * inputs.shape[0] * inputs.shape[1] > max_bytes:
        raise _too_large(transformer, max_bytes)
    return _tried(transformer, "fit", _together(transformer, input_blocks(inputs), max_bytes))


def _learned(transformer: Any, blocks: Iterable[Any]) -> Any:
    """Transformer that has learned from one block after another; the last one may be too small for its `partial_fit`.

    Raises
    ------
    InputError
        If it refuses a block, or a block leaves it with NaN.
    """
    held: Any = None
    last: Any = None
    with np.errstate(invalid="ignore"):  # reported below
        for block in blocks:
            if held is not None:
                _tried(transformer, "partial_fit", held)
            held, last = last, block.copy()  # it may be a view of a larger one
        _tried(transformer, "partial_fit", last if held is None else joined([held, last]))
    # scikit-learn's scalers do not recover from a block in which a column has no value.
    learned = [value for name, value in vars(transformer).items() if name.endswith("_")]
    if any(getattr(value, "dtype", None) == np.float64 and np.isnan(value).any() for value in learned):
        raise InputError(
            f"transformer has {transformer!r}, and a column has no values in a whole block of rows; expected some in "
            f"each: fill them first (SimpleImputer, --impute), or fit it first on a sample, and give the fitted "
            f"transformer"
        )
    return transformer


def _together(transformer: Any, blocks: Iterable[Any], max_bytes: int) -> Any:
    """All rows in memory."""
    found, n_bytes = [], 0
    for block in blocks:
        found.append(block.copy())  # it may be a view of a larger one
        n_bytes += block_bytes(block)
        if 2 * n_bytes > max_bytes:  # they are put together before they are released
            raise _too_large(transformer, max_bytes)
    return joined(found)


def _too_large(transformer: Any, max_bytes: int) -> InputError:
    return InputError(
        f"transformer is {transformer!r}, which learns from all rows at once, and these need more than half of the "
        f"memory limit ({format_bytes(max_bytes)}); expected a fitted one: fit it first on a sample, and give the "
        f"fitted transformer, or one with partial_fit, or a larger memory_limit"
    )


class ColumnSteps(BaseEstimator):  # type: ignore[misc]
    """What most tables need, learned from statistics of all blocks: numbers filled and standardised, text one-hot.

    Parameters
    ----------
    one_hot : sequence of str
        Columns that become one for each value; without any the steps are of all columns.
    standardize : bool
        Whether numbers are brought to mean 0 and standard deviation 1.
    impute : str, optional
        Strategy by which missing numbers are filled; all but "mean" need the rows in memory.
    takes_unknown : bool
        Whether values that the fit has not seen become zeros in all their columns; otherwise they are an error.
    """

    def __init__(
        self,
        one_hot: Sequence[str] = (),
        standardize: bool = False,
        impute: str | None = None,
        takes_unknown: bool = False,
    ) -> None:
        self.one_hot = one_hot
        self.standardize = standardize
        self.impute = impute
        self.takes_unknown = takes_unknown

    def fitted_to(self, inputs: Rows, max_bytes: int) -> Any:
        """Fitted transformer of scikit-learn, in one pass over the rows for each step.

        Raises
        ------
        InputError
            As `fitted_transformer`.
        """
        text = list(self.one_hot)
        numbers = [name for name in inputs.names or () if name not in self.one_hot]

        def blocks() -> Iterable[Any]:
            return (block[numbers] if text else block for block in input_blocks(inputs))

        steps: list[Any] = []
        if self.impute is not None:
            imputer = SimpleImputer(strategy=self.impute)
            if self.impute == "mean":
                steps.append(_mean_imputer(imputer, blocks()))
            else:
                steps.append(_tried(imputer, "fit", _together(imputer, blocks(), max_bytes)))
        if self.standardize:
            filled = (_transformed(block, steps) for block in blocks())
            steps.append(_learned(StandardScaler(), filled))
        frozen = [FrozenEstimator(step) for step in steps]
        of_numbers: Any = "passthrough" if not steps else frozen[0] if len(steps) == 1 else make_pipeline(*frozen)
        if not text:
            return steps[0] if len(steps) == 1 else _tried(of_numbers, "fit", next(iter(blocks()))[:HEAD_ROWS])
        head = next(iter(input_blocks(inputs)))[:HEAD_ROWS]
        encoder = FrozenEstimator(self._encoder(inputs, text).fit(head[text]))
        parts = [("one_hot", encoder, text), ("numbers", of_numbers, numbers)]
        return _tried(ColumnTransformer(parts, verbose_feature_names_out=False), "fit", head)

    def _encoder(self, inputs: Rows, text: list[str]) -> Any:
        """Encoder with the values of all blocks."""
        known: dict[str, Any] = {}
        for block in input_blocks(inputs):
            for name in text:
                parts = [known[name], block[name]] if name in known else [block[name]]
                known[name] = joined(parts).drop_duplicates()
        categories = [_tried(OneHotEncoder(), "fit", known[name].to_frame()).categories_[0] for name in text]
        return OneHotEncoder(categories=categories, handle_unknown="ignore" if self.takes_unknown else "error")


def _mean_imputer(imputer: Any, blocks: Iterable[Any]) -> Any:
    """Imputer of the means of all blocks, which it learns from one row of them."""
    head: Any = None
    count = means = np.zeros(0)
    for block in blocks:
        try:
            values = np.array(block.toarray() if sp.issparse(block) else block, np.float64)
        except (TypeError, ValueError) as error:
            raise InputError(f"transformer cannot be fitted: {imputer!r}: {error}") from error
        if head is None:
            head, count, means = block[:1], np.zeros(values.shape[1]), np.nan_to_num(values[0])
        count += (~np.isnan(values)).sum(axis=0)
        # Sums of differences from the mean so far: digits of large values are not lost in long sums.
        means += np.nansum(values - means, axis=0) / np.maximum(count, 1)
    means = np.where(count > 0, means, np.nan)[None, :]
    row = type(head)(means, columns=head.columns) if hasattr(head, "columns") else means
    return _tried(imputer, "fit", row)


def _transformed(block: Any, steps: list[Any]) -> Any:
    for step in steps:
        block = step.transform(block)
    return block


def _tried(transformer: Any, method: str, rows: Any) -> Any:
    """What a method of a transformer returns; InputError with its own message."""
    try:
        return getattr(transformer, method)(rows)
    except DkrrError:
        raise
    except (TypeError, ValueError, LookupError, AttributeError, ArithmeticError) as error:
        raise InputError(f"transformer cannot be fitted: {type(transformer).__name__}: {error}") from error


STANDARDIZE = "standardize"
EXPECTED = f"None, {STANDARDIZE!r}, or a transformer of scikit-learn such as StandardScaler()"


def refuse_kernel(transformer: Any, kernel: Kernel) -> None:
    """Refuse a transformer in front of a kernel that does not take rows of numbers; raises InputError."""
    if kernel.is_precomputed or learns(kernel):
        taken = "a Gram matrix" if kernel.is_precomputed else "documents, graphs or tables"
        raise InputError(
            f"transformer is {shown(transformer)} with kernel={kernel!r}, which takes {taken} as X; expected a kernel "
            f"of rows of numbers, or transformer=None"
        )


def as_transformer(transformer: Any) -> Any:
    """Fitted transformer as it is, or an unfitted copy of an unfitted one; None without one.

    Raises
    ------
    InputError
        If it is not one, or learns from the targets.
    """
    if transformer is None:
        return None
    if isinstance(transformer, str):
        if transformer != STANDARDIZE:
            raise InputError(f"transformer is {shown(transformer)}; expected {EXPECTED}")
        return StandardScaler()
    if isinstance(transformer, ColumnSteps):
        return transformer
    if isinstance(transformer, type):
        raise InputTypeError(
            f"transformer is the class {transformer.__name__}; expected {EXPECTED}: write {transformer.__name__}()"
        )
    if not isinstance(transformer, BaseEstimator) or not hasattr(transformer, "transform"):
        raise InputTypeError(f"transformer is {shown(transformer)}; expected {EXPECTED}")
    if get_tags(transformer).target_tags.required:
        raise InputError(
            f"transformer is {shown(transformer)}, which learns from the targets; expected one of X alone: put it "
            f"before the estimator in a sklearn.pipeline.Pipeline"
        )
    return transformer if is_fitted(transformer) else clone(transformer)
