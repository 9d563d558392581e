"""Small problems by the hundred: BLAS threads would only wait for each other, minutes in all."""

from collections.abc import Iterator

import pytest
import threadpoolctl


@pytest.fixture(autouse=True, scope="package")
def one_blas_thread() -> Iterator[None]:
    with threadpoolctl.threadpool_limits(1, "blas"):
        yield
