"""A table of numbers and text, and transformers for it."""

import numpy as np
import pandas as pd
import scipy.sparse as sp
from sklearn.compose import make_column_selector, make_column_transformer
from sklearn.impute import SimpleImputer
from sklearn.pipeline import make_pipeline, make_union
from sklearn.preprocessing import (
    FunctionTransformer,
    MaxAbsScaler,
    MinMaxScaler,
    OneHotEncoder,
    OrdinalEncoder,
    PolynomialFeatures,
    RobustScaler,
    StandardScaler,
)


def flights(n=97, seed=0):
    """Rows whose last ones have categories that the first ones lack, and a column with missing values."""
    rng = np.random.default_rng(seed)
    origin = rng.choice(["EWR", "JFK"], n)
    origin[-3:] = "LGA"
    return pd.DataFrame(
        {
            "distance": rng.uniform(80, 5000, n).round(),
            "delay": np.where(rng.random(n) < 0.1, np.nan, 1e6 + rng.normal(size=n)),
            "origin": origin,
            "carrier": rng.choice(["AA", "B6", "UA"], n),
            "hour": rng.integers(0, 24, n),
        }
    )


def targets(n=97, seed=1):
    return np.random.default_rng(seed).normal(size=n)


def dense(found):
    return found.toarray() if sp.issparse(found) else np.asarray(found, float)


NUMBERS = ["distance", "hour"]
TEXT = ["origin", "carrier"]


def of_columns():
    """A ColumnTransformer of pipelines, encoders and the rest."""
    return make_column_transformer(
        (make_pipeline(SimpleImputer(), StandardScaler(), PolynomialFeatures(2)), ["delay", "distance"]),
        (OneHotEncoder(sparse_output=False, drop="first"), ["origin"]),
        (OrdinalEncoder(), [3]),
        remainder=StandardScaler(),
    )


OF_THE_TABLE = {
    "columns": of_columns,
    "selector": lambda: make_column_transformer(
        (OneHotEncoder(), make_column_selector(dtype_exclude="number")),
        ("drop", ["delay"]),
        remainder="passthrough",
        sparse_threshold=0,
    ),
    "sparse": lambda: make_column_transformer((OneHotEncoder(), TEXT), sparse_threshold=1),
    "infrequent": lambda: make_column_transformer((OneHotEncoder(min_frequency=10), TEXT), ("passthrough", NUMBERS)),
}
OF_NUMBERS = {
    "standard": StandardScaler,
    "robust": RobustScaler,
    "steps": lambda: make_pipeline(
        MinMaxScaler(), "passthrough", StandardScaler(), FunctionTransformer(np.tanh, feature_names_out="one-to-one")
    ),
    "union": lambda: make_union(MaxAbsScaler(), make_pipeline(StandardScaler(), PolynomialFeatures(2)), RobustScaler()),
}
