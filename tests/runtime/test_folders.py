"""Temporary folders: private, and never left for ever."""

import os
import signal
import stat
import subprocess
import sys
from pathlib import Path
from unittest.mock import Mock

import dask
import pytest

from dkrr.errors import StoreError
from dkrr.runtime import folders
from dkrr.runtime.folders import PrivateFolder, delete_abandoned, private_folder

OWNER = """
import os, pathlib, sys
from dkrr.runtime import folders
{before}
folder = folders.PrivateFolder("test", sys.argv[1])
open(folder.path + "/data", "w").write("x")
print(folder.path, flush=True)
{then}
"""


def owner(where, before="", then="sys.stdin.read()"):
    """A process that makes a temporary folder."""
    command = [sys.executable, "-c", OWNER.format(before=before, then=then), str(where)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def names(folder):
    return sorted(p.name for p in folder.iterdir())


def test_a_temporary_folder_is_private_and_deleted(tmp_path):
    with private_folder("test", str(tmp_path)) as path:
        Path(path, "data").mkdir()
        assert stat.S_IMODE(Path(path).stat().st_mode) == 0o700
        assert names(tmp_path) == [Path(path).name, f"{Path(path).name}.lock"]
        assert path.startswith(f"{tmp_path}/dkrr-test-")
    assert names(tmp_path) == []
    with dask.config.set({"dkrr.temporary-directory": str(tmp_path)}):
        folder = PrivateFolder()
    assert Path(folder.path).parent == tmp_path
    del folder
    assert names(tmp_path) == []


def test_a_living_process_keeps_its_folder_and_a_killed_one_does_not(tmp_path):
    with owner(tmp_path) as process:
        path = process.stdout.readline().strip()
        with private_folder("other", str(tmp_path)):
            assert Path(path, "data").exists()
        process.kill()
        process.wait()
        assert Path(path, "data").exists(), "SIGKILL leaves it"
        with private_folder("next", str(tmp_path)) as mine:
            assert names(tmp_path) == [Path(mine).name, f"{Path(mine).name}.lock"]
    assert names(tmp_path) == []


def test_an_exit_deletes_it_and_a_fork_does_not(tmp_path):
    then = "pid = os.fork(); pid or sys.exit(); os.waitpid(pid, 0); print(os.path.exists(folder.path))"
    with owner(tmp_path, then=then) as process:
        assert process.communicate()[0].splitlines()[1:] == ["True"]
    assert process.returncode == 0 and names(tmp_path) == []


@pytest.mark.parametrize("function", ["folders.locks.flock", "folders._is_at", "pathlib.Path.mkdir"])
def test_what_a_process_leaves_that_is_killed_while_it_makes_a_folder_is_deleted(tmp_path, function, monkeypatch):
    with owner(tmp_path, f"{function} = lambda *a, **k: os.kill(os.getpid(), 9)") as process:
        assert process.wait(60) == -signal.SIGKILL
    assert len(names(tmp_path)) == 1
    monkeypatch.setattr(folders, "UNSIGNED_SECONDS", -1.0)
    assert len(delete_abandoned(str(tmp_path))) == 1
    assert names(tmp_path) == []


def test_what_is_not_its_own_is_left(tmp_path):
    """Links, folders, files of other programs, of other machines, and lock files that are being made."""
    for folder in ("target", "dkrr-folder.lock", "dkrr-abroad", "dkrr-mine"):
        (tmp_path / folder).mkdir()
    kept = tmp_path / "target" / "kept"
    kept.touch()
    (tmp_path / "dkrr-link.lock").symlink_to(kept)
    (tmp_path / "dkrr-abroad.lock").write_text("another machine\n")
    (tmp_path / "dkrr-new.lock").touch()
    os.mkfifo(tmp_path / "dkrr-pipe.lock")
    before = names(tmp_path)
    assert delete_abandoned(str(tmp_path)) == []
    assert names(tmp_path) == before
    # A folder that was replaced by a link is not followed.
    (tmp_path / "dkrr-trap").symlink_to(kept.parent)
    (tmp_path / "dkrr-trap.lock").write_bytes(folders._signature())
    delete_abandoned(str(tmp_path))
    assert kept.exists()


def test_a_name_that_is_taken_is_not_used(tmp_path, monkeypatch):
    """Another user who sees the lock file may make the folder first."""
    mkdir, taken = Path.mkdir, []

    def first_taken(self, mode):
        if not taken:
            taken.append(self)
            mkdir(self)
        mkdir(self, mode)

    monkeypatch.setattr(Path, "mkdir", first_taken)
    folder = PrivateFolder("test", str(tmp_path))
    assert taken and folder.path != str(taken[0])
    folder.delete()
    assert names(tmp_path) == [taken[0].name]


@pytest.mark.parametrize("locks", [Mock(flock=Mock(side_effect=OSError(95, "Operation not supported"))), None])
def test_where_files_cannot_be_locked_there_is_no_lock(tmp_path, monkeypatch, locks):
    monkeypatch.setattr(folders, "locks", locks)
    with private_folder("test", str(tmp_path)) as path:
        assert names(tmp_path) == [Path(path).name]
    assert names(tmp_path) == []


def test_an_error_names_the_setting(tmp_path):
    with pytest.raises(StoreError, match=r"no temporary folder.*missing.*No such file.*dkrr\.temporary-directory"):
        PrivateFolder("test", str(tmp_path / "missing"))
