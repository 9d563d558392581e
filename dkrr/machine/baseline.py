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
from dkrr.errors import InputError
from dkrr.machine.profile import create_profile_folder, profile_folder

_here: dict[str, int] = {}
"""What this process noted, by environment: there may be no folder to write to."""


def recorded_baseline() -> int:
    """Bytes that workers of this environment were found to hold; 0 if no more than planned for."""
    name = _environment()
    if name in _here:
        return _here[name]
    try:
        return int(json.loads((profile_folder() / name).read_text())["worker_baseline_bytes"])
    except (InputError, OSError, ValueError, KeyError, TypeError):
        return 0


def record_baseline(n_bytes: int) -> None:
    """Keep what workers of this environment hold, for later plans."""
    name = _environment()
    _here[name] = n_bytes
    with suppress(InputError, OSError):
        path = create_profile_folder() / name
        partial = path.with_suffix(f".{os.getpid()}.partial")
        partial.write_text(json.dumps({"worker_baseline_bytes": n_bytes}))
        partial.replace(path)


def _environment() -> str:
    """Name of this environment's file: another one where a package was installed or removed."""
    installed = [Path(sysconfig.get_path(name)) for name in ("purelib", "platlib")]
    changed = [p.stat().st_mtime_ns for p in installed if p.exists()]
    preloads = dask.config.get("distributed.worker.preload", [])
    parts = [sys.prefix, sys.version, dkrr.__version__, changed, preloads]
    digest = hashlib.sha256(json.dumps(parts, default=str).encode()).hexdigest()[:16]
    return f"workers-{digest}.json"
