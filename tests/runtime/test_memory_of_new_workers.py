"""What workers hold before their first task: kept for the environment it was measured in, and planned with."""

import dask

from dkrr.machine import detect, record_baseline
from dkrr.machine.worker_settings import recorded_baseline
from dkrr.planning.resources import WORKER_BASELINE_BYTES

MIB = 2**20


def test_recorded_and_planned_with(tmp_path):
    with dask.config.set({"dkrr.profile-directory": str(tmp_path)}):
        assert recorded_baseline() == 0
        assert detect("1GiB", None).worker_baseline_bytes == WORKER_BASELINE_BYTES
        record_baseline(240 * MIB)
        assert recorded_baseline() == 240 * MIB
        assert detect("1GiB", None).worker_baseline_bytes == 240 * MIB
        with dask.config.set({"distributed.worker.preload": ["another"]}):
            assert recorded_baseline() == 0, "another environment"
        (kept,) = tmp_path.iterdir()
    with dask.config.set({"dkrr.profile-directory": str(tmp_path / "other")}):
        (tmp_path / "other").mkdir()
        (tmp_path / "other" / kept.name).write_text("{}")
        assert recorded_baseline() == 0, "damaged: as good as none"


def test_a_folder_that_cannot_be_written(tmp_path):
    (tmp_path / "file").touch()
    with dask.config.set({"dkrr.profile-directory": str(tmp_path / "file" / "folder")}):
        record_baseline(240 * MIB)
        assert recorded_baseline() == 240 * MIB, "in this process at least"
