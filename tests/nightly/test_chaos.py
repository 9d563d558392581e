"""Short campaigns of kills, damage and hostile files, and what the campaigns do to processes and notice of it."""

import faulthandler
import json
import time
from dataclasses import replace

import pytest
from click.testing import CliRunner

from dkrr.errors import StoreError
from tests.nightly.chaos import __main__ as command
from tests.nightly.chaos import damage, hostile
from tests.nightly.chaos.outcomes import Outcome, of_error
from tests.nightly.chaos.processes import Child

RUNS = ("Cholesky", "CG, normal equations", "Newton, CG", "selection, Cholesky")
CAMPAIGNS = {
    "models": (40, "damage", "--target", "models", "--trials", "42"),
    "runs": (38, "damage", "--target", "runs", "--trials", "42", *(word for name in RUNS for word in ("--only", name))),
    "hostile models and configurations": (80, "hostile", "--only=model", "--only=configuration", "--trials=80"),
    "hostile tables and locks": (70, "hostile", "--only=table", "--only=lock", "--trials=70"),
    "kills here": (6, "kills", "--place", "here", "--trials", "6"),
    "kills without a store": (3, "kills", "--place", "here, no store", "--trials", "3"),
    "kills of own workers": (2, "kills", "--place", "own workers", "--trials", "2"),
    "kills on a cluster": (4, "kills", "--place", "cluster", "--trials", "4"),
    "growths on disk": (6, "growths", "--place", "disk", "--trials", "6"),
    "growths in a bucket": (2, "growths", "--place", "bucket", "--trials", "2"),
    "growths on workers": (2, "growths", "--place", "workers", "--trials", "2"),
    "growths in memory": (6, "growths", "--place", "memory", "--trials", "6"),
    "growths everywhere, more": (20, "growths", "--trials", "20", "--seed", "4"),
    "kills here, more": (12, "kills", "--place", "here", "--trials", "12", "--seed", "4"),
    "kills on a cluster, more": (8, "kills", "--place", "cluster", "--trials", "8", "--seed", "4"),
}


GUARD = {name: () if "more" in name else pytest.mark.guard for name in CAMPAIGNS}


@pytest.mark.timeout(900)  # a lock that another one's file has replaced is waited for, for a minute
@pytest.mark.parametrize("name", [pytest.param(name, marks=marks) for name, marks in GUARD.items()])
def test_nothing_is_lost_or_wrong_after_kills_damage_and_hostile_files(tmp_path, name):
    (least, *arguments), file = CAMPAIGNS[name], tmp_path / "lines.jsonl"
    # Not in tmp_path: sockets of workers need a folder with a short name.
    options = ["--processes", "1", "--json", str(file), *(() if "--seed" in arguments else ("--seed", "3"))]
    done = CliRunner().invoke(command.main, [*arguments, *options])
    assert done.exit_code == 0, done.output
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert sum(line.get("count", 0) for line in lines) >= least and lines[-1]["campaign"] == name.split()[0]


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


def test_what_a_fork_does_is_noticed(tmp_path, monkeypatch):
    monkeypatch.setattr(hostile, "SECONDS", 2.0)
    calls = {
        "harmless": lambda: ("", (Outcome.HARMLESS, str(len(b"x" * 2**28)))),
        "raw error": lambda: 1 / 0,
        "crash": faulthandler._sigsegv,
        "hang": lambda: time.sleep(60),
    }
    found = {name: hostile._in_fork(call, tmp_path) for name, call in calls.items()}
    assert [answer["judged"][0] for answer, _ in found.values()] == list(calls)
    assert found["harmless"][1] > 2**28 > found["raw error"][1] and "ZeroDivision" in found["raw error"][0]["judged"][1]
    assert "Segmentation fault" in found["crash"][0]["judged"][1] and "test_chaos" in found["hang"][0]["judged"][1]
