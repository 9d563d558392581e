"""Places of stores: a folder of this machine, and a bucket in the memory of this process."""

import pytest


@pytest.fixture(params=["folder", "bucket"])
def place(request, tmp_path):
    """Path or URL under which nothing is; buckets of a real server are in tests/nightly/test_s3.py."""
    return str(tmp_path) if request.param == "folder" else request.getfixturevalue("memory_bucket")
