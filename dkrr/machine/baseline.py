"""What a worker holds before its first task, where that is more than planned for: noted when workers start.

It depends on what is installed (libraries that import others, a preload in Dask's configuration) and not on a fit.
"""

import hashlib
import json
import os
import sys
import sysconfig
from contextlib import suppress
from pathlib import Path

import dask

import dkrr
from dkrr.machine.profile import profile_folder

_here: dict[str, int] = {}
"""What this process noted, by the path of its file: the folder may be read-only."""


def recorded_baseline() -> int:
    """Bytes that workers of this environment were found to hold; 0 if no more than planned for."""
    path = _path()
    if str(path) in _here:
        return _here[str(path)]
    try:
        return int(json.loads(path.read_text())["worker_baseline_bytes"])
    except (OSError, ValueError, KeyError, TypeError):
        return 0


def record_baseline(n_bytes: int) -> None:
    """Keep what workers of this environment hold, for later plans."""
    path = _path()
    _here[str(path)] = n_bytes
    partial = path.with_suffix(f".{os.getpid()}.partial")
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        partial.write_text(json.dumps({"worker_baseline_bytes": n_bytes}))
        partial.replace(path)


def _path() -> Path:
    """File of this environment: another one where a package was installed or removed."""
    installed = [Path(sysconfig.get_path(name)) for name in ("purelib", "platlib")]
    changed = [p.stat().st_mtime_ns for p in installed if p.exists()]
    preloads = dask.config.get("distributed.worker.preload", [])
    parts = [sys.prefix, sys.version, dkrr.__version__, changed, preloads]
    digest = hashlib.sha256(json.dumps(parts, default=str).encode()).hexdigest()[:16]
    return profile_folder() / f"workers-{digest}.json"
