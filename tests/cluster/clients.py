"""What tests ask of a Dask client."""

import gc
import time


def all_released(client, seconds=5.0):
    """Whether nothing is left on the cluster; a release takes its way through the client's loop."""
    gc.collect()  # the traceback of an error that an earlier test expected is a cycle, which may hold futures
    deadline = time.monotonic() + seconds
    while client.futures and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not client.futures, sorted(client.futures)
    return True
