"""Shared data."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import dask
import numpy as np
import pytest


@pytest.fixture(scope="session", autouse=True)
def no_profile(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Plans are made with dkrr's default rates, here and in processes of tests, whatever was measured here."""
    folder = str(tmp_path_factory.mktemp("profiles"))
    os.environ["DASK_DKRR__PROFILE_DIRECTORY"] = folder
    with dask.config.set({"dkrr.profile-directory": folder}):
        yield


@dataclass(frozen=True)
class Data:
    """A small regression problem."""

    X: Any
    y: Any
    weights: Any
    X_new: Any


@pytest.fixture(scope="session")
def data() -> Data:
    rng = np.random.default_rng(20)
    X = rng.normal(size=(211, 5))  # 211 is prime: no tile divides it
    Y = np.column_stack([np.sin(X[:, 0]) + 0.1 * rng.normal(size=211), X @ rng.normal(size=5), rng.normal(size=211)])
    weights = rng.uniform(0.1, 3.0, size=211)
    weights[[0, 17, 210]] = 0.0
    return Data(X, Y, weights, rng.normal(size=(37, 5)))
