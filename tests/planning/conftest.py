"""Every plan is made for a process of one size."""

import pytest


@pytest.fixture(autouse=True)
def _in_a_small_process(small_process: None) -> None:
    pass
