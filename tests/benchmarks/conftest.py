"""What tests of benchmarks share."""

import pytest

from benchmarks import machine


@pytest.fixture(scope="module")
def brief_watch():
    """The load of others is watched for a moment only: no time is quoted here."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(machine, "SECONDS_BEFORE", 0.05)
        yield
