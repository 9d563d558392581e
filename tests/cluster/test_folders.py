"""Temporary folders are private and never left for ever; SIGTERM and SIGHUP end a run in order, and the process."""

import os
import signal
import stat
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from unittest.mock import Mock

import dask
import filelock
import pytest

from dkrr.cluster import folders
from dkrr.cluster.folders import PrivateFolder, delete_abandoned, lock_suffix, private_folder
from dkrr.cluster.process import ENDING, graceful_termination

OWNER = """
import os, pathlib, sys
from dkrr.cluster import folders
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
        assert names(tmp_path) == [Path(path).name, Path(path).name + lock_suffix()]
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
        process.send_signal(signal.SIGSTOP)  # a laptop that sleeps, a job that is suspended
        with private_folder("other", str(tmp_path)):
            assert Path(path, "data").exists()
        process.kill()
        process.wait()
        assert Path(path, "data").exists(), "SIGKILL leaves it"
        with private_folder("next", str(tmp_path)) as mine:
            assert names(tmp_path) == [Path(mine).name, Path(mine).name + lock_suffix()]
    assert names(tmp_path) == []


def test_an_exit_deletes_it_and_a_fork_does_not(tmp_path):
    then = "pid = os.fork(); pid or sys.exit(); os.waitpid(pid, 0); print(os.path.exists(folder.path))"
    with owner(tmp_path, then=then) as process:
        assert process.communicate()[0].splitlines()[1:] == ["True"]
    assert process.returncode == 0 and names(tmp_path) == []


@pytest.mark.parametrize("function", ["os.open", "fcntl.flock", "pathlib.Path.mkdir"])
def test_what_a_process_leaves_that_is_killed_while_it_makes_a_folder_is_deleted(tmp_path, function):
    killed = f"import fcntl, filelock; {function} = lambda *a, **k: os.kill(os.getpid(), 9)"
    with owner(tmp_path, killed) as process:
        assert process.wait(60) == -signal.SIGKILL
    left = names(tmp_path)
    assert len(delete_abandoned(str(tmp_path))) == sum(name.endswith(".lock") for name in left) == len(left) <= 1
    assert names(tmp_path) == []


def test_what_is_not_its_own_is_left(tmp_path):
    """Links, folders, pipes, and folders of other programs and machines."""
    kept = tmp_path / "target" / "kept"
    for folder in ("target", f"dkrr-folder00{lock_suffix()}", "dkrr-abroad00", "dkrr-mine0000"):
        (tmp_path / folder).mkdir()
    kept.touch()
    (tmp_path / f"dkrr-link0000{lock_suffix()}").symlink_to(kept)
    (tmp_path / "dkrr-abroad00.dkrr-on-another.lock").touch()
    (tmp_path / "dkrr-mine0000.lock").touch()
    os.mkfifo(tmp_path / f"dkrr-pipe0000{lock_suffix()}")
    before = names(tmp_path)
    assert delete_abandoned(str(tmp_path)) == []
    assert names(tmp_path) == before
    # A folder that was replaced by a link is not followed.
    (tmp_path / "dkrr-trap0000").symlink_to(kept.parent)
    (tmp_path / f"dkrr-trap0000{lock_suffix()}").touch()
    assert len(delete_abandoned(str(tmp_path))) == 1
    assert kept.exists()


@pytest.mark.parametrize("name", ["folder", "lock"])
def test_a_name_that_is_taken_is_not_used(tmp_path, monkeypatch, name):
    """Another user who sees the lock file may make the folder first; another process may take an abandoned lock."""
    taken = tmp_path / f"dkrr-test-0000{'' if name == 'folder' else lock_suffix()}"
    monkeypatch.setattr(folders.secrets, "token_hex", Mock(side_effect=["0000", "1111"]))
    with filelock.FileLock(taken) if name == "lock" else nullcontext(taken.mkdir()):
        folder = PrivateFolder("test", str(tmp_path))
        assert folder.path == f"{tmp_path}/dkrr-test-1111"
        folder.delete()
        assert names(tmp_path) == [taken.name]


def test_where_files_cannot_be_locked_there_is_no_lock(tmp_path, monkeypatch):
    monkeypatch.setattr("fcntl.flock", Mock(side_effect=OSError(95, "Operation not supported")))
    with private_folder("test", str(tmp_path)) as path:
        assert names(tmp_path) == [Path(path).name]
    assert names(tmp_path) == []


SCRIPT = """
import os, signal, sys, time
from dkrr.cluster.process import graceful_termination
{before}
try:
    with graceful_termination():
        try:
            with graceful_termination():
                os.kill(os.getpid(), signal.{name})
                time.sleep(20)
        {after}
finally:
    print("not reached")
"""
AGAIN = """finally:
            os.kill(os.getpid(), signal.{name})
            print("in order", flush=True)"""
SWALLOWED = """except BaseException:
            print("swallowed", flush=True)"""


def run(name, before="", after=AGAIN):
    code = SCRIPT.format(name=name, before=before, after=after.format(name=name))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP"])
def test_what_is_inside_ends_first_and_the_status_is_that_of_the_signal(name):
    assert run(name) == (-getattr(signal, name), "in order\n", "")


def test_another_one_much_later_ends_at_once():
    before = "import dkrr.cluster.process as s; s.PATIENCE_SECONDS = -1.0"
    assert run("SIGTERM", before) == (-signal.SIGTERM, "", "")


def test_one_that_is_swallowed_ends_the_process_after_the_block():
    assert run("SIGTERM", after=SWALLOWED) == (-signal.SIGTERM, "swallowed\n", "")


def handlers():
    return [signal.getsignal(number) for number in ENDING]


def handlers_inside():
    with graceful_termination():
        return handlers()


def test_handlers_of_others_stay():
    assert run("SIGTERM", "signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))")[0] == 7
    assert signal.SIG_DFL not in handlers_inside()
    assert handlers() == [signal.SIG_DFL] * len(ENDING)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # nohup
    try:
        assert handlers_inside()[ENDING.index(signal.SIGHUP)] is signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)


EVERYWHERE = """
import os, re, signal, sys
from dkrr.cluster.process import graceful_termination
from dkrr.store.places import written_aside

def fit(k):
    def trace(frame, event, _):
        nonlocal k
        if not frame.f_code.co_filename.endswith(("replacing.py", "places.py", "contextlib.py")):
            return None
        frame.f_trace_opcodes = True
        k -= event == "opcode"
        if k == 0:
            os.kill(os.getpid(), signal.SIGTERM)
        return trace

    with graceful_termination():
        sys.settrace(trace)
        with written_aside("a", overwrite=False, listed=re.compile("b") if sys.argv[1] == "folder" else None) as place:
            sys.settrace(None)
            open(f"{place}/b" if sys.argv[1] == "folder" else place, "w").close()

for k in range(1, 10_000):
    if os.fork() == 0:
        fit(k)
        os._exit(0)
    _, status = os.wait()
    if os.WIFEXITED(status):
        break
    assert os.WTERMSIG(status) == signal.SIGTERM and not os.listdir(), (k, os.listdir())
print(k, os.listdir())
"""


@pytest.mark.parametrize("kind", [pytest.param("file", marks=[pytest.mark.nightly, pytest.mark.guard]), "folder"])
def test_a_signal_at_any_step_before_an_output_is_written_leaves_nothing(tmp_path, kind):
    line = [sys.executable, "-c", EVERYWHERE, kind]
    done = subprocess.run(line, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    steps, left = done.stdout.split(" ", 1) if done.stdout else (0, done.stderr)
    assert int(steps) > 100 and left.strip() == "['a']"
