"""Tasks, and the executors that run them: in this process, or on a Dask cluster."""

from dkrr.cluster.displays import Several, Whole, make_progress
from dkrr.cluster.progress import Progress, Share
from dkrr.cluster.serial import SerialExecutor, ThreadExecutor
from dkrr.cluster.task import Executor, Meter, RunRecord, Task, TaskRecord

__all__ = [
    "Executor",
    "Meter",
    "Progress",
    "RunRecord",
    "SerialExecutor",
    "Several",
    "Share",
    "Task",
    "TaskRecord",
    "ThreadExecutor",
    "Whole",
    "make_progress",
]
