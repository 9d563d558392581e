"""Temporary folders: private, and never left for ever."""

import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import dask
import pytest

from dkrr.errors import StoreError
from dkrr.runtime import folders
from dkrr.runtime.folders import PrivateFolder, delete_abandoned, private_folder

OWNER = """
import sys
from dkrr.runtime.folders import PrivateFolder
folder = PrivateFolder("test", sys.argv[1])
open(folder.path + "/data", "w").write("x")
print(folder.path, flush=True)
{then}
"""


def owner(where, then="sys.stdin.read()"):
    """A process that has made a temporary folder."""
    return subprocess.Popen(
        [sys.executable, "-c", OWNER.format(then=then), str(where)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip


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
    then = "import os; pid = os.fork(); pid or sys.exit(); os.waitpid(pid, 0); print(os.path.exists(folder.path))"
    with owner(tmp_path, then) as process:
        assert process.communicate()[0].splitlines()[1:] == ["True"]
    assert process.returncode == 0
    assert names(tmp_path) == []


def killed_at(tmp_path, name):
    """Kill a process when it is about to call a function of `folders`' modules."""
    then = f"import os; {name} = lambda *a, **k: os.kill(os.getpid(), 9)"
    code = f"from dkrr.runtime import folders\nimport pathlib\n{then}\nfolders.PrivateFolder('test', {str(tmp_path)!r})"
    done = subprocess.run([sys.executable, "-c", code], check=False, timeout=60)
    assert done.returncode == -signal.SIGKILL


@pytest.mark.parametrize("name", ["folders.locks.flock", "folders._is_at", "pathlib.Path.mkdir"])
def test_killed_while_it_is_made(tmp_path, name, monkeypatch):
    killed_at(tmp_path, name)
    assert len(names(tmp_path)) == 1
    monkeypatch.setattr(folders, "UNSIGNED_SECONDS", -1.0)
    assert len(delete_abandoned(str(tmp_path))) == 1
    assert names(tmp_path) == []


def test_what_is_not_its_own_is_left(tmp_path):
    """Links, folders, files of other programs, of other machines, and lock files that are being made."""
    target = tmp_path / "target"
    target.mkdir()
    (target / "kept").touch()
    (tmp_path / "dkrr-link.lock").symlink_to(target / "kept")
    (tmp_path / "dkrr-folder.lock").mkdir()
    (tmp_path / "dkrr-abroad.lock").write_text("another machine\n")
    (tmp_path / "dkrr-abroad").mkdir()
    (tmp_path / "dkrr-new.lock").touch()
    (tmp_path / "dkrr-mine").mkdir()
    os.mkfifo(tmp_path / "dkrr-pipe.lock")
    before = names(tmp_path)
    assert delete_abandoned(str(tmp_path)) == []
    assert names(tmp_path) == before
    # A folder that was replaced by a link is not followed.
    (tmp_path / "dkrr-trap").symlink_to(target)
    (tmp_path / "dkrr-trap.lock").write_bytes(folders._signature())
    delete_abandoned(str(tmp_path))
    assert (target / "kept").exists()


def test_a_name_that_is_taken(tmp_path, monkeypatch):
    """Another user who sees the lock file may make the folder first: it is not used."""
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


def test_where_files_cannot_be_locked(tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(folders.locks, "flock", refuse)
    folder = PrivateFolder("test", str(tmp_path))
    assert names(tmp_path) == [Path(folder.path).name]
    folder.delete()
    monkeypatch.setattr(folders, "locks", None)
    with private_folder("test", str(tmp_path)) as path:
        assert names(tmp_path) == [Path(path).name]
    assert names(tmp_path) == []


def test_an_error_names_the_setting(tmp_path):
    with pytest.raises(StoreError, match=r"no temporary folder.*missing.*No such file.*dkrr\.temporary-directory"):
        PrivateFolder("test", str(tmp_path / "missing"))
