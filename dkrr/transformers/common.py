"""The transformers that most tables need: values of some columns filled, standardised, or made columns of their own."""

from collections.abc import Sequence
from typing import Any

from sklearn.compose import ColumnTransformer
from sklearn.impute import SimpleImputer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler


def for_columns(
    numbers: Sequence[str], one_hot: Sequence[str], *, standardize: bool, impute: str | None, takes_unknown: bool
) -> Any:
    """Unfitted transformer of a table.

    Parameters
    ----------
    numbers : sequence of str
        Columns of numbers.
    one_hot : sequence of str
        Columns that become one for each value; without any the transformer is of all columns.
    standardize : bool
        Whether numbers are brought to mean 0 and standard deviation 1.
    impute : str, optional
        Strategy by which missing numbers are filled.
    takes_unknown : bool
        Whether values that the fit has not seen become zeros in all their columns; otherwise they are an error.
    """
    steps = [*([SimpleImputer(strategy=impute)] if impute else []), *([StandardScaler()] if standardize else [])]
    of_numbers = "passthrough" if not steps else steps[0] if len(steps) == 1 else make_pipeline(*steps)
    if not one_hot:
        return of_numbers
    encoder = OneHotEncoder(handle_unknown="ignore" if takes_unknown else "error")
    return ColumnTransformer(
        [("one_hot", encoder, list(one_hot)), ("numbers", of_numbers, list(numbers))], verbose_feature_names_out=False
    )
