"""Faults of disks and permissions: a clear error, nothing damaged, and the next call works once they are fixed."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.guard
Found = dict[str, list[tuple[str, str, str, bool]]]


def in_a_namespace():
    """Beginning of a command that mounts file systems which nobody else sees; skips the test where none can."""
    unshare = ["unshare", "--mount"]
    if os.geteuid() != 0:
        pytest.skip("needs root: mounts")
    if shutil.which("unshare") is None or subprocess.run([*unshare, "true"], check=False).returncode:
        pytest.skip("needs a namespace of its own for mounts")
    return unshare


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """What the program `faults` found, which runs once: it mounts file systems that nobody else sees."""
    unshare = in_a_namespace()
    root = tmp_path_factory.mktemp("faults")
    command = [*unshare, sys.executable, "-m", "tests.nightly.faults", str(root)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stderr
    return dict(json.loads(line) for line in done.stdout.splitlines())


def check(attempts, *kinds):
    """Errors of these kinds (or none), and right answers afterwards."""
    wrong = [one for one in attempts if one[1] not in ("", *kinds) or not one[3]]
    assert not wrong, "\n".join(map(str, wrong))


def test_a_disk_that_is_full_from_any_write_on(found):
    attempts = found["full_disk"]
    check(attempts, "DiskSpaceError")
    errors = [message for _, kind, message, _ in attempts if kind]
    assert len(errors) > 70 and all("No space left on device. Free some space" in message for message in errors)


@pytest.mark.parametrize("case", ["vanished", "deleted"])
def test_a_disk_or_a_store_that_vanishes(found, case):
    check(found[case], "StoreError", "UnreachableStoreError", "BusyStoreError", "DamagedChunkError")
    assert sum(kind != "" for _, kind, _, _ in found[case]) > 10


def test_a_file_system_for_reading_only(found):
    attempts = found["read_only"]
    check(attempts, "StoreError", "UnreachableStoreError")
    worked = {name for name, kind, _, _ in attempts if not kind}
    # Other fits write what they compute from the factor, and say that they cannot.
    assert worked == {"finished logistic", "finished gram", "gram as X", "load"}
    errors = [message for _, kind, message, _ in attempts if kind]
    assert all("Read-only file system" in one and "Mount the file system for writing" in one for one in errors)


def test_few_open_files_and_small_files_only(found):
    attempts = found["limits"]
    check(attempts, "StoreError", "UnreachableStoreError", "DiskSpaceError")
    failed = {name: message for name, kind, message, _ in attempts if kind}
    assert not [name for name in failed if name.startswith("ulimit -n 64")]
    assert "Allow more open files (ulimit -n)" in failed["1 files left ridge"]
    assert "Allow larger files (ulimit -f)" in failed["2000 bytes ridge"]
