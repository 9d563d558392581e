"""Processes that are stopped for minutes, as by a batch system or a closed lid, lose nothing when they go on.

Shorter: `test_a_living_process_keeps_its_folder_and_a_killed_one_does_not` (cluster/test_folders.py), and the cases of
suspended owners in store/test_locks.py, where the owner seems to be on another machine too.
"""

import os
import signal
import time
from contextlib import suppress

import numpy as np
import psutil
import pytest

from dkrr.errors import BusyStoreError
from dkrr.store.lock import LOCK_NAME, STALE_SECONDS
from tests import programs
from tests.processes import gone
from tests.programs import ON_WORKERS, fit_here

SECONDS = 3 * STALE_SECONDS
"""Time that the processes are stopped: the lock of a process elsewhere is stale after a third of it."""
FIT = {"kernel": "rbf", "gamma": 0.2, "alpha": 0.01, "solver": "cholesky", "tile": 100}
N, D = 2500, 6


@pytest.mark.guard
@pytest.mark.timeout(900)
@pytest.mark.usefixtures("one_blas_thread")
def test_a_process_that_is_stopped_for_three_minutes_keeps_its_store_and_its_folders(tmp_path, capfd):
    """One fit is stopped alone, and one with its scheduler and workers; other fits begin meanwhile."""
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    settings = {**FIT, **ON_WORKERS, "config": {**ON_WORKERS["config"], "dkrr.temporary-directory": str(temporary)}}
    stores = {"alone": tmp_path / "alone.zarr", "with its workers": tmp_path / "workers.zarr"}
    fits = {name: programs.start(N, D, store, **settings) for name, store in stores.items()}
    try:
        for name, process in fits.items():
            programs.wait_for_tiles(process, stores[name], 20)
            if name == "alone":
                process.send_signal(signal.SIGSTOP)
            else:
                os.killpg(process.pid, signal.SIGSTOP)
        stopped, began = [psutil.Process(process.pid) for process in fits.values()], time.monotonic()
        folders = {path.name for path in temporary.glob("dkrr-workers-*")}
        assert len(folders) == 2 * 2, "a folder and its lock for each fit"
        time.sleep(5)  # workers without their driver end what they have
        written = {name: programs.tiles(store) for name, store in stores.items()}
        assert all(20 <= len(tiles) < 25 * 26 // 2 for tiles in written.values())

        for part in (0.0, 0.5, 0.98):  # the lock has just been refreshed; is stale elsewhere; for the third time
            time.sleep(max(0.0, began + part * SECONDS - time.monotonic()))
            for name, process in fits.items():
                with pytest.raises(BusyStoreError, match=f"in use by process {process.pid} of"):
                    fit_here(N, D, stores[name], **settings)
            _, facts = fit_here(300, D, None, **settings)  # makes folders beside theirs, and deletes abandoned ones
            assert facts["execution"] == "dask"
            assert {path.name for path in temporary.iterdir()} == folders
            assert all(process.status() == psutil.STATUS_STOPPED for process in stopped)
        time.sleep(max(0.0, began + SECONDS - time.monotonic()))
        for name, store in stores.items():
            assert programs.tiles(store) == written[name] and (store / LOCK_NAME).exists()

        for process in fits.values():
            os.killpg(process.pid, signal.SIGCONT)
        for process in fits.values():
            assert process.wait(200) == 0, capfd.readouterr().err
            assert gone(process.pid)
    finally:
        for process in fits.values():
            with suppress(ProcessLookupError):
                programs.kill_everything(process)

    assert not list(temporary.iterdir()), "each has deleted its folder itself"
    whole, _ = fit_here(N, D, None, **settings)
    for name, store in stores.items():
        assert not (store / LOCK_NAME).exists()
        tiles = programs.tiles(store)
        kept, facts = fit_here(N, D, store, **settings)
        assert np.array_equal(kept, whole) and not [key for key in facts["tasks"] if key[:2] in ("L-", "S-")]
        assert programs.tiles(store) == tiles == tiles | written[name], "no tile was written twice"
