"""Memory that a worker holds before its first task, where that is more than planned for: recorded when workers start.

It depends on what is installed (libraries that import others, a preload in Dask's configuration) and not on a fit.
"""

import hashlib
import json
import sys
import sysconfig
from contextlib import suppress
from functools import cache
from pathlib import Path

import dask

import dkrr
from dkrr.config import setting
from dkrr.errors import InputError
from dkrr.machine.profile import create_profile_folder, profile_folder, write_beside

_known: dict[tuple[str, str], int] = {}
"""Bytes that this process read or recorded, by folder and environment: every fit asks, and the folder may be
read-only."""


def recorded_baseline() -> int:
    """Bytes that workers of this environment were found to hold; 0 if no more than planned for."""
    key = _key()
    if key not in _known:
        try:
            _known[key] = int(json.loads((profile_folder() / key[1]).read_text())["worker_baseline_bytes"])
        except (InputError, OSError, ValueError, KeyError, TypeError):
            _known[key] = 0
    return _known[key]


def record_baseline(n_bytes: int) -> None:
    """Record what workers of this environment hold, for later plans."""
    key = _key()
    _known[key] = n_bytes
    with suppress(InputError):
        write_beside(create_profile_folder() / key[1], json.dumps({"worker_baseline_bytes": n_bytes}))


def _key() -> tuple[str, str]:
    """Configured folder, and name of this environment's file."""
    return str(setting("profile-directory")), _name(str(dask.config.get("distributed.worker.preload", [])))


@cache
def _name(preloads: str) -> str:
    """Name of the file for this process's libraries and preloads, which changes where a package is installed."""
    installed = [Path(sysconfig.get_path(name)) for name in ("purelib", "platlib")]
    changed = [p.stat().st_mtime_ns for p in installed if p.exists()]
    parts = [sys.prefix, sys.version, dkrr.__version__, changed, preloads]
    return f"workers-{hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]}.json"
