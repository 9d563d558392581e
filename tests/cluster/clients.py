"""What tests ask of a Dask client."""

import time


def all_released(client, seconds=5.0):
    """Whether nothing is left on the cluster; a release takes its way through the client's loop."""
    deadline = time.monotonic() + seconds
    while client.futures and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not client.futures, sorted(client.futures)
    return True
