"""Growths that are killed at any change of the disk: the run before answers, or the growth is complete.

As a program, this module kills a fork of itself before its first change of a file or a folder, before its second, and
so on, and prints a line of JSON for each kill.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import dkrr
from dkrr.errors import WrongStoreError
from dkrr.store.format import read_group

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.guard

N, MORE = 45, 100
RNG = np.random.default_rng(0)
X = RNG.normal(size=(MORE, 3))
Y = np.sin(X[:, 0])
WEIGHTS = RNG.uniform(0.5, 2.0, MORE)
SETTINGS = {"alpha": 0.01, "kernel": "rbf", "gamma": 0.2, "solver": "cholesky", "tile": 32}
LEFT_OUT = np.where(np.isin(np.arange(MORE), [2, 40]), 0.0, WEIGHTS)

Call = tuple[int, np.ndarray, np.ndarray]
WAYS: dict[str, tuple[dict, Call, Call]] = {
    "rows": ({}, (N, Y, WEIGHTS), (MORE, Y, WEIGHTS)),
    "rows and rows left out": ({"alpha": [0.01, 0.1]}, (N, Y, WEIGHTS), (MORE, Y, LEFT_OUT)),
    "targets": ({}, (N, Y, WEIGHTS), (N, Y**2, WEIGHTS)),
    "conjugate gradient": ({"solver": "cg", "tol": 1e-12}, (N, Y, WEIGHTS), (MORE, Y, WEIGHTS)),
    "primal": ({"kernel": "polynomial", "form": "primal", "tile": 8}, (N, Y, WEIGHTS), (MORE, Y, WEIGHTS)),
}


def fit(store, way, call):
    settings, (n, y, weights) = WAYS[way][0], call
    y = np.column_stack([y[:n]] * 2) if isinstance(settings.get("alpha"), list) else y[:n]
    model = dkrr.KernelRidge(**SETTINGS | settings, store=None if store is None else str(store))
    return model.fit(X[:n], y, sample_weight=weights[:n]).predict(X)


def killed(store, way, number):
    """Whether a fork that works on the larger problem was killed before its change of this number."""
    child = os.fork()
    if child == 0:
        seen = 0

        def count(event, _):
            nonlocal seen
            if event in ("os.rename", "os.remove", "os.rmdir", "os.mkdir"):
                seen += 1
                if seen == number:
                    os.kill(os.getpid(), signal.SIGKILL)

        sys.addaudithook(count)
        fit(store, way, WAYS[way][2])
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL


def main(folder, way, number=1, step=1):
    _, before, after = WAYS[way]
    first = folder / "first.zarr"
    fit(first, way, before)
    old, new = fit(None, way, before), fit(None, way, after)
    again = True
    while again:
        store = folder / "run.zarr"
        shutil.copytree(first, store)
        again = killed(store, way, number)
        found = {"number": number, "damage": dkrr.verify(store).damage, "missing": dkrr.verify(store).missing}
        is_committed = read_group(str(store))["fingerprint"] != read_group(str(first))["fingerprint"]
        shutil.copytree(store, folder / "copy.zarr")
        try:
            found["old"] = float(np.abs(fit(folder / "copy.zarr", way, before) - old).max())
        except WrongStoreError as error:
            found["old"] = 0.0 if is_committed and "this fit 45" in str(error) else str(error)
        found |= {"is_committed": is_committed, "new": float(np.abs(fit(store, way, after) - new).max())}
        status, checked = dkrr.status(store), dkrr.verify(store)
        found["left"] = "" if status.is_finished and checked.is_whole else f"{status}\n{checked}"
        files = sorted(str(file.relative_to(store)) for file in store.rglob("*") if "lock" not in file.name)
        found["others"] = [name for name in files if ".partial" in name]
        print(json.dumps(found), flush=True)
        for path in (store, folder / "copy.zarr"):
            shutil.rmtree(path)
        number += step


@pytest.mark.parametrize("way", WAYS)
def test_a_growth_that_is_killed_before_any_change_of_the_disk(tmp_path, way):
    command = [sys.executable, "-W", "ignore", "-m", "tests.nightly.test_killed_growths", str(tmp_path), way]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
    kills = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(kills) > 20 and {one["is_committed"] for one in kills} == {False, True}
    for one in kills:
        assert not one["damage"] and not one["missing"] and not one["left"] and not one["others"], one
        assert isinstance(one["old"], float) and one["old"] < 1e-8 and one["new"] < 1e-8, one


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], *map(int, sys.argv[3:]))
