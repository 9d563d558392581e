"""Writers that are killed at any step, disks that are really full, and processes that want one store at once."""

import subprocess
import sys

import pytest

from dkrr.tiles import replacing
from dkrr.tiles.lock import LOCK_NAME

pytestmark = pytest.mark.guard

KILLED = """
import os, re, signal, sys
from pathlib import Path
from dkrr.tiles import replacing

method, folder = sys.argv[1:]
if method == "two renames":
    replacing._renameat2 = lambda: None
files = {replacing.__file__, replacing.shutil.__file__, replacing.uuid.__file__}

def save(path, last):
    n = 0
    def count(frame, event, argument):
        nonlocal n
        if frame.f_code.co_filename not in files:
            return None
        n += 1
        if n == last:
            os.kill(os.getpid(), signal.SIGKILL)
        return count
    sys.settrace(count)
    with replacing.written_aside(str(path), overwrite=True, listed=re.compile('a|b')) as place:
        for name in ("a", "b"):
            (Path(place) / name).write_text("new")
    sys.settrace(None)

last = 0
while True:
    last += 1
    root = Path(folder) / str(last)
    (root / "model").mkdir(parents=True)
    for name in ("a", "b"):
        (root / "model" / name).write_text("old")
    child = os.fork()
    if not child:
        save(root / "model", last)
        os._exit(0)
    if os.waitpid(child, 0)[1] == 0:
        break
print(last)
"""


def whole(path):
    texts = [(path / name).read_text() for name in ("a", "b") if (path / name).exists()]
    return texts[0] if len(texts) == 2 and len(set(texts)) == 1 else None


@pytest.mark.parametrize("method", ["one step", "two renames"])
def test_a_process_that_is_killed_at_any_step_leaves_the_old_or_the_new(tmp_path, method):
    if method == "one step":
        (tmp_path / "x").mkdir()
        (tmp_path / "y").mkdir()
        if not replacing._renamed(tmp_path / "x", tmp_path / "y", replacing._EXCHANGE):
            pytest.skip("this system or file system cannot exchange two names")
    (tmp_path / "kills").mkdir()
    command = [sys.executable, "-W", "ignore", "-c", KILLED, method, str(tmp_path / "kills")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    n, found = int(done.stdout), set()
    assert n > 50
    for step in range(1, n + 1):
        root = tmp_path / "kills" / str(step)
        others = [p for p in root.iterdir() if p.name != "model"]
        assert all(p.name.startswith((replacing.NEW, replacing.OLD)) and p.name.endswith("-model") for p in others)
        at_path = whole(root / "model")
        if at_path is None:
            # Between two renames nothing is there, and both are beside it, whole.
            assert method == "two renames" and not (root / "model").exists()
            found_beside = {p.name[: len(replacing.NEW)]: whole(p) for p in others}
            assert found_beside == {replacing.NEW: "new", replacing.OLD: "old"}
        found.add(at_path)
    assert {"old", "new"} <= found and (None in found) == (method == "two renames")
    assert not others, "the last one was not killed"


def test_of_many_processes_that_begin_at_once_one_owns_the_store(tmp_path):
    code = (
        "import sys; from dkrr.tiles.lock import owned; from dkrr.errors import BusyStoreError\n"
        f"print('ready', flush=True); sys.stdin.readline()\n"
        "try:\n"
        f"    with owned({str(tmp_path / 'run.zarr')!r}): print('owned', flush=True); sys.stdin.readline()\n"
        "except BusyStoreError: print('refused', flush=True)"
    )
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    processes = [subprocess.Popen([sys.executable, "-c", code], **pipes) for _ in range(3)]
    try:
        for step in ("ready", "answer"):
            answers = [p.stdout.readline().strip() for p in processes]
            if step == "ready":
                for p in processes:
                    p.stdin.write("\n")
                    p.stdin.flush()
        assert sorted(answers) == ["owned", "refused", "refused"]
    finally:
        for p in processes:
            p.communicate("\n")


def test_a_fork_that_leaves_the_block_does_not_release_the_lock(tmp_path):
    code = f"""
import os
from dkrr.tiles.lock import owned
store = {str(tmp_path / "run.zarr")!r}
with owned(store):
    child = os.fork()
    if child:
        os.waitpid(child, 0)
        print(os.listdir(store) == [{LOCK_NAME!r}])
"""
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout == "True\n", done.stderr
    assert not (tmp_path / "run.zarr").exists()
