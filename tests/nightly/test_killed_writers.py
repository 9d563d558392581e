"""Writers that are killed at any step, disks that are really full, and processes that want one store at once."""

import subprocess
import sys

import pytest

from dkrr.store import replacing

pytestmark = pytest.mark.guard

KILLED = """
import os, re, signal, sys
from pathlib import Path
from dkrr.store import places, replacing

method, folder = sys.argv[1:]
if method == "two renames":
    replacing.exchanged = lambda first, second: False
files = {replacing.__file__, replacing.shutil.__file__, replacing.uuid.__file__}

def write(folder, text):
    for name in ("a", "b"):
        (folder / name).write_text(text)

def save(path, last):
    seen = []
    def count(frame, event, argument):
        if frame.f_code.co_filename not in files:
            return None
        seen.append(event)
        if len(seen) == last:
            os.kill(os.getpid(), signal.SIGKILL)
        return count
    sys.settrace(count)
    with places.written_aside(str(path), overwrite=True, listed=re.compile('a|b')) as place:
        write(Path(place), "new")
    os._exit(0)

last, status = 0, 1
while status:
    last += 1
    model = Path(folder) / str(last) / "model"
    model.mkdir(parents=True)
    write(model, "old")
    child = os.fork()
    if not child:
        save(model, last)
    status = os.waitpid(child, 0)[1]
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
        if not replacing.exchanged(tmp_path / "x", tmp_path / "y"):
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


FORKED = """
import os, sys
from dkrr.store.lock import LOCK_NAME, owned
with owned(sys.argv[1]):
    child = os.fork()
    if child:
        os.waitpid(child, 0)
        print(os.listdir(sys.argv[1]) == [LOCK_NAME])
"""


def test_a_fork_that_leaves_the_block_does_not_release_the_lock(tmp_path):
    command = [sys.executable, "-W", "ignore", "-c", FORKED, str(tmp_path / "run.zarr")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.stdout == "True\n", done.stderr
    assert not (tmp_path / "run.zarr").exists()
