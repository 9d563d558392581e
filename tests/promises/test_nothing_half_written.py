"""Predictions on a disk that is full, and in a process that is ended: the old file is whole, and nothing is left."""

import json
import signal
import subprocess
import sys
from pathlib import Path

from tests.nightly.test_faults import in_a_namespace

ENDS = (".parquet", ".csv", ".arrow", ".feather", ".zarr", ".npy")
PROGRAM = """
import json, os, signal, subprocess, sys
from pathlib import Path
import dask
import numpy as np
import pandas as pd
import dkrr
from dkrr import predictions_out

ENDS = json.loads(sys.argv[2])
N = 3000
frame = pd.DataFrame({"a": np.random.default_rng(0).normal(size=N), "id": [f"row {k}" for k in range(N)]})
model = dkrr.KernelRidge().fit(frame[["a"]], frame.a)
predictions_out.MAX_BLOCK_ROWS = 500

def predict(folder, end, keep=True):
    keep = ["id"] if keep and end != ".npy" else ()
    dkrr.predict_to(model, frame, folder / f"p{end}", keep=keep, overwrite=True)

def content(folder):
    return {str(p.relative_to(folder)): p.read_bytes().hex() for p in sorted(folder.rglob("*")) if p.is_file()}
"""
FULL = (
    PROGRAM
    + """
disk = Path(sys.argv[1])
disk.mkdir()
subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(disk)], check=True)
at, filler = disk / "at", disk / "filler"
for end in ENDS:
    at.mkdir()
    predict(at, end)
    before, step, done = content(at), 0, False
    while not done:
        free = os.statvfs(disk).f_bavail * 4096 - step * 4096
        filler.write_bytes(b"x" * max(0, free))
        try:
            predict(at, end)
            done, kind, text = True, "", ""
        except dkrr.errors.DkrrError as error:
            kind, text = type(error).__name__, str(error)
        except Exception as error:
            kind, text = "raw " + type(error).__name__, str(error)
        filler.unlink()
        print(json.dumps([end, step, kind, text, content(at) == before, [p.name for p in at.iterdir()]]), flush=True)
        step += 1
    for path in sorted(at.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    at.rmdir()
"""
)
ENDED = (
    PROGRAM
    + """
predicted = predictions_out.predict_in_memory
root = Path(sys.argv[1])
for end in ENDS:
    for number in ("SIGTERM", "SIGHUP", "SIGINT"):
        for last in (1, 4, 6):
            folder = root / f"{number}{last}{end}"
            folder.mkdir()
            predict(folder, end)
            before = content(folder)
            child = os.fork()
            if not child:
                count = 0
                def counted(*arguments):
                    global count
                    count += 1
                    if count == last:
                        os.kill(os.getpid(), getattr(signal, number))
                    return predicted(*arguments)
                predictions_out.predict_in_memory = counted
                try:
                    predict(folder, end)
                except KeyboardInterrupt:
                    os._exit(130)
                os._exit(0)
            status = os.waitpid(child, 0)[1]
            ended = os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
            print(json.dumps([number, last, end, ended, content(folder) == before, [p.name for p in folder.iterdir()]]))
"""
)


def run(program, folder, *before):
    command = [*before, sys.executable, "-W", "ignore", "-c", program, str(folder), json.dumps(ENDS)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=250, cwd=Path(__file__).parents[2])
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_a_disk_that_is_full_at_any_page(tmp_path):
    found = run(FULL, tmp_path / "disk", *in_a_namespace())
    for end, step, kind, text, is_old, left in found:
        assert left == [f"p{end}"], (end, step)
        if kind:
            assert kind == "DiskSpaceError" and "No space left" in text and "unchanged" in text and is_old, (
                end,
                step,
                text,
            )
    steps = {end: step for end, step, *_ in found}
    # Three thousand predictions with their keys fill several pages of each format.
    assert set(steps) == set(ENDS) and all(step >= 6 for step in steps.values()), steps


def test_a_process_that_is_asked_to_end(tmp_path):
    found = run(ENDED, tmp_path)
    assert len(found) == 9 * len(ENDS)
    for number, last, end, ended, is_old, left in found:
        assert ended == (130 if number == "SIGINT" else getattr(signal, number))
        assert is_old and left == [f"p{end}"], (number, last, end)
