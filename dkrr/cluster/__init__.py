"""Tasks, and the executors that run them: in this process, or on a Dask cluster."""

from dkrr.cluster.progress import CombinedProgress, Progress, Share, make_progress
from dkrr.cluster.tasks import Executor, Meter, RunRecord, SerialExecutor, Task, TaskRecord, ThreadExecutor

__all__ = [
    "CombinedProgress",
    "Executor",
    "Meter",
    "Progress",
    "RunRecord",
    "SerialExecutor",
    "Share",
    "Task",
    "TaskRecord",
    "ThreadExecutor",
    "make_progress",
]
