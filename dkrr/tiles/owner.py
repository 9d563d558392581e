"""Owner of a store: which process of which machine, since when, and whether it is still alive."""

import getpass
import json
import math
import os
import platform
import time
import uuid
from dataclasses import asdict, dataclass, field, fields
from functools import cache
from pathlib import Path
from typing import Any

import psutil

from dkrr.units import format_seconds

MAX_BYTES = 16 * 2**10
"""Longest document that is read: what dkrr writes has some hundred bytes."""

_MAX_TEXT = 256
_STARTED_WITHIN = 5.0
"""Seconds by which the start of one process may differ where it is told by the clock, which may be set."""


@dataclass(frozen=True)
class Owner:
    """A process that owns a store, as its lock tells others."""

    host: str
    machine: str
    """Kernel that runs the process: the identifiers of its boot and of the namespace of its process numbers."""
    process: int
    started: float
    """Start of the process: clock ticks since boot where the system tells them, else seconds of the clock."""
    user: str
    since: float
    """Seconds of its clock (UNIX time) at which it took the store."""
    token: str = field(default_factory=lambda: uuid.uuid4().hex)
    """Name of this ownership."""
    beat: float = 0.0
    """Seconds of its clock when it last wrote this."""

    def to_bytes(self) -> bytes:
        """Document for a lock."""
        return json.dumps(asdict(self)).encode()

    @classmethod
    def from_bytes(cls, document: bytes) -> "Owner | None":
        """Owner that a lock names; None if it is damaged, or not a document of `to_bytes`."""
        if len(document) > MAX_BYTES:
            return None
        try:
            found = json.loads(document)
        except (ValueError, RecursionError):
            return None
        names = {f.name: f.type for f in fields(cls)}
        if not isinstance(found, dict) or found.keys() != names.keys():
            return None
        return cls(**found) if all(_is(found[name], kind) for name, kind in names.items()) else None

    def is_here(self) -> bool:
        """Whether it is a process of this machine, whose life the system tells."""
        return bool(self.machine) and self.machine == machine()

    def is_this_process(self) -> bool:
        """Whether it is the calling process."""
        return self.is_here() and self.process == os.getpid() and self._started_then(_started(os.getpid()))

    def is_running(self) -> bool:
        """Whether its process exists, suspended or not; only where `is_here`."""
        if not psutil.pid_exists(self.process):
            return False
        try:
            return not _is_zombie(self.process) and self._started_then(_started(self.process))
        except psutil.NoSuchProcess:
            return bool(psutil.pid_exists(self.process))  # systems may hide the processes of other users
        except (psutil.Error, OSError):
            return True  # it exists, and the system does not tell since when

    def _started_then(self, started: float) -> bool:
        return abs(started - self.started) <= (0.0 if _ticks(os.getpid()) is not None else _STARTED_WITHIN)

    def __str__(self) -> str:
        when = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(self.since))
        ago = max(time.time() - self.since, 0.0)
        who = "this process" if self.is_this_process() else f"process {self.process} of {_plain(self.user)}"
        return f"{who} on {_plain(self.host)} since {when} ({format_seconds(ago)} ago)"


def this_owner() -> Owner:
    """A new ownership of the calling process."""
    return Owner(
        host=platform.node(),
        machine=machine(),
        process=os.getpid(),
        started=_started(os.getpid()),
        user=_user(),
        since=time.time(),
    )


@cache
def machine() -> str:
    """Identifier of the running kernel and the namespace of process numbers: same text, same processes."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        # Without them the name of the host, which serves where machines have names of their own.
        return f"{platform.node()} {uuid.getnode():x}"


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError, ImportError):  # a container's user may have neither a name nor an environment
        return f"user {os.getuid()}" if hasattr(os, "getuid") else "unknown"


def _ticks(process: int) -> float | None:
    """Clock ticks between boot and the start of a process; None where the system does not tell them."""
    try:
        status = Path(f"/proc/{process}/stat").read_bytes()
        return float(status.rpartition(b")")[2].split()[19])
    except (OSError, IndexError, ValueError):
        return None


def _started(process: int) -> float:
    ticks = _ticks(process)
    return ticks if ticks is not None else float(psutil.Process(process).create_time())


def _is_zombie(process: int) -> bool:
    return bool(psutil.Process(process).status() in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD))


def _is(value: Any, kind: Any) -> bool:
    """Whether a value of JSON is one that `to_bytes` writes in a field."""
    if kind is str:
        return isinstance(value, str) and len(value) <= _MAX_TEXT
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < 2**53:
        return False
    return isinstance(value, int) and 0 < value < 2**31 if kind is int else math.isfinite(value)


def _plain(text: str) -> str:
    """Text of a document, without what would control a terminal."""
    return text if text.isprintable() else ascii(text)
