"""What tests ask of a Dask client."""

import gc
import time


def all_released(client, seconds=5.0):
    """Whether nothing is left on the cluster; a release takes its way through the client's loop."""
    gc.collect()  # errors of earlier tests, which use the same cluster, hold the frames that they come from
    deadline = time.monotonic() + seconds
    while client.futures and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not client.futures, sorted(client.futures)
    return True
