"""Tasks, and the executors that run them: in this process, or on a Dask cluster."""

from dkrr.runtime.displays import Several, Whole, make_progress
from dkrr.runtime.progress import Progress, Share
from dkrr.runtime.serial import SerialExecutor, ThreadExecutor
from dkrr.runtime.task import Executor, Meter, RunRecord, Task, TaskRecord

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
