"""Small problems by the hundred: BLAS threads would only wait for each other, minutes in all."""

from collections.abc import Iterator

import pytest

from dkrr import blas


@pytest.fixture(autouse=True, scope="package")
def one_blas_thread() -> Iterator[None]:
    with blas.one_thread():
        yield
