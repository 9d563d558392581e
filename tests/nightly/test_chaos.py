"""Short campaigns of kills and damage, and what the campaigns do to files and processes and notice of it."""

import json
from dataclasses import replace

import numpy as np
import pytest
from click.testing import CliRunner

from dkrr.errors import StoreError
from tests.nightly.chaos import __main__ as command
from tests.nightly.chaos import damage
from tests.nightly.chaos.outcomes import Outcome, of_error
from tests.nightly.chaos.processes import Child

RUNS = ("Cholesky", "CG, normal equations", "Newton, CG", "selection, Cholesky")
CAMPAIGNS = {
    "models": (40, "damage", "--target", "models", "--trials", "42"),
    "runs": (38, "damage", "--target", "runs", "--trials", "42", *(word for name in RUNS for word in ("--only", name))),
    "kills here": (6, "kills", "--place", "here", "--trials", "6"),
    "kills without a store": (3, "kills", "--place", "here, no store", "--trials", "3"),
    "kills of own workers": (2, "kills", "--place", "own workers", "--trials", "2"),
    "kills on a cluster": (4, "kills", "--place", "cluster", "--trials", "4"),
}
MORE = {
    "kills here, more": (12, "kills", "--place", "here", "--trials", "12", "--seed", "4"),
    "kills on a cluster, more": (8, "kills", "--place", "cluster", "--trials", "8", "--seed", "4"),
}


@pytest.mark.parametrize("name", [*(pytest.param(name, marks=pytest.mark.guard) for name in CAMPAIGNS), *MORE])
def test_nothing_is_lost_or_wrong_after_kills_and_damage(tmp_path, name):
    (least, *arguments), file = (CAMPAIGNS | MORE)[name], tmp_path / "lines.jsonl"
    # Not in tmp_path: sockets of workers need a folder with a short name.
    options = ["--processes", "1", "--json", str(file), *(() if "--seed" in arguments else ("--seed", "3"))]
    done = CliRunner().invoke(command.main, [*arguments, *options])
    assert done.exit_code == 0, done.output
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert sum(line.get("count", 0) for line in lines) >= least and lines[-1]["campaign"] == name.split()[0]


def made(folder, version):
    rng = np.random.default_rng(version)
    contents = {name: rng.bytes(160) for name in ("x/c.0", "x/c.1", "y/z/c.0")}
    for name, content in {"a.json": json.dumps({"n": version, "of": "rows"}).encode(), **contents}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return folder


@pytest.mark.parametrize("operation", damage.OPERATIONS)
def test_damage_is_done_and_can_be_repeated(tmp_path, operation):
    older, foreign = made(tmp_path / "older", 1), made(tmp_path / "foreign", 2)
    found = []
    for name in ("one", "two"):
        folder = made(tmp_path / name / "store", 0)
        before = damage.state(folder.parent)
        done = damage.damage(damage.Scene(folder, [older], [foreign]), np.random.default_rng(5), operation)
        found.append((done, damage.state(folder.parent)))
        assert found[-1][1] != before
        damage.open_again(folder.parent)
    assert found[0] == found[1] and operation in found[0][0]


def test_a_model_that_predicts_otherwise_is_noticed():
    saved = damage.saved("RBF", 0)
    assert damage.loaded_outcome(saved, saved.path)[0] == Outcome.HARMLESS
    changed = tuple(array.copy() for array in saved.predictions)
    changed[-1][3] += 1e-9
    assert damage.loaded_outcome(replace(saved, predictions=changed), saved.path)[0] == Outcome.WRONG


def test_errors_are_judged_by_their_words():
    told, other, raw = (StoreError(text) for text in ("/x/run is damaged", "alpha is bad", "/x/run: 'NoneType' object"))
    found = [of_error(error, "/x/run")[0] for error in (told, other, raw, KeyError("/x/run"))]
    assert found == [Outcome.DETECTED, Outcome.MISLED, Outcome.RAW, Outcome.RAW]


def test_a_child_survives_what_happens_in_it_and_respects_permissions(tmp_path):
    closed = tmp_path / "closed"
    closed.touch(0)
    calls = [
        ("builtins:dict", [["outcome", "harmless"]]),
        ("faulthandler:_sigsegv",),
        ("operator:index", "x"),
        ("time:sleep", 60),
        ("io:open", str(closed)),
    ]
    with Child(tmp_path / "child", 0.5) as child:
        found = [child.ask(*call) for call in calls]
    assert [one["outcome"] for one in found] == ["harmless", "crash", "raw error", "hang", "raw error"]
    assert "Segmentation fault" in found[1]["detail"] and "TypeError" in found[2]["detail"]
    assert "exit status -6" in found[3]["detail"] and "in main" in found[3]["detail"]
    assert "PermissionError" in found[4]["detail"]
