"""Predictions on a disk that is full, and in a process that is ended: the old file is whole, and nothing is left."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.nightly.test_faults import in_a_namespace

ENDS = (".parquet", ".csv", ".arrow", ".feather", ".zarr", ".npy")
PROGRAM = """
import json, os, signal, subprocess, sys
from pathlib import Path
import numpy as np
import pandas as pd
import dkrr
from dkrr.estimators import predict_to as predictions_out
from dkrr.fitting import prediction_plans

root, ENDS = Path(sys.argv[1]), json.loads(sys.argv[2])
frame = pd.DataFrame({"a": np.random.default_rng(0).normal(size=3000), "id": [f"row {k}" for k in range(3000)]})
model = dkrr.KernelRidge().fit(frame[["a"]], frame.a)
prediction_plans.MAX_WRITTEN_ROWS = 500

def predict(folder, end):
    dkrr.predict_to(model, frame, folder / f"p{end}", keep=["id"] if end != ".npy" else (), overwrite=True)

def content(folder):
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}

def written(folder, end):
    folder.mkdir()
    predict(folder, end)
    return content(folder)

def found(folder, before, *facts):
    print(json.dumps([*facts, content(folder) == before, [p.name for p in folder.iterdir()]]), flush=True)
"""
FULL = """
root.mkdir()
subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(root)], check=True)
for end in ENDS:
    folder, filler, kind, step = root / end[1:], root / "filler", "still full", 0
    before = written(folder, end)
    while kind:
        filler.write_bytes(b"x" * max(0, (os.statvfs(root).f_bavail - step) * 4096))
        kind = text = ""
        try:
            predict(folder, end)
        except Exception as error:
            kind, text = type(error).__name__, str(error)
        filler.unlink()
        found(folder, before, end, step, kind, text)
        step += 1
    subprocess.run(["rm", "-r", str(folder)], check=True)
"""
ENDED = """
predicted = predictions_out.predict_in_memory
for end in ENDS:
    for number in ("SIGTERM", "SIGHUP", "SIGINT"):
        for last in (1, 6):
            folder = root / f"{number}{last}{end}"
            before = written(folder, end)
            child = os.fork()
            if not child:
                calls = iter(range(1, 99))
                def counted(*arguments):
                    if next(calls) == last:
                        os.kill(os.getpid(), getattr(signal, number))
                    return predicted(*arguments)
                predictions_out.predict_in_memory = counted
                try:
                    predict(folder, end)
                except KeyboardInterrupt:
                    os._exit(130)
                os._exit(0)
            found(folder, before, number, last, end, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def run(program, folder, *before):
    command = [*before, sys.executable, "-W", "ignore", "-c", PROGRAM + program, str(folder), json.dumps(ENDS)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=250, cwd=Path(__file__).parents[2])
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_a_disk_that_is_full_at_any_page_leaves_the_old_file(tmp_path):
    found = run(FULL, tmp_path / "disk", *in_a_namespace())
    for end, step, kind, text, is_old, left in found:
        assert left == [f"p{end}"], (end, step)
        is_said = kind == "DiskSpaceError" and "No space left" in text and "unchanged" in text
        assert (is_said and is_old) or not kind, (end, step, kind, text)
    steps = {end: step for end, step, *_ in found}
    # Three thousand predictions with their keys fill several pages of each format.
    assert set(steps) == set(ENDS) and all(step >= 6 for step in steps.values()), steps


@pytest.mark.nightly
@pytest.mark.guard
def test_a_process_that_is_asked_to_end_leaves_the_old_file(tmp_path):
    found = run(ENDED, tmp_path)
    assert len(found) == 6 * len(ENDS)
    for number, last, end, ended, is_old, left in found:
        assert ended == (130 if number == "SIGINT" else -getattr(signal, number))
        assert is_old and left == [f"p{end}"], (number, last, end)
