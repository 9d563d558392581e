"""The chaos suite: what it does to files and processes, what it notices, and a short campaign of each part."""

import json
from dataclasses import asdict
from itertools import islice

import numpy as np
import pytest
from click.testing import CliRunner

from benchmarks import chaos
from benchmarks.chaos_child import Child
from benchmarks.chaos_damage import OPERATIONS, Scene, damage, open_again
from benchmarks.chaos_fits import FITS
from benchmarks.chaos_kills import TARGETS, episodes
from benchmarks.chaos_trials import Observation, Outcome, of_error
from dkrr.errors import InputError, StoreError


def made(folder, version):
    rng = np.random.default_rng(version)
    for name in ("a.json", "x/c.0", "x/c.1", "y/z/c.0"):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(json.dumps({"n": version, "of": "rows"}).encode() if name == "a.json" else rng.bytes(160))
    return folder


def state(folder):
    return {
        str(p.relative_to(folder.parent)): (p.stat().st_mode, p.read_bytes() if p.is_file() else None)
        for p in folder.parent.rglob("*")
    }


@pytest.mark.parametrize("operation", OPERATIONS)
def test_damage_is_done_and_can_be_repeated(tmp_path, operation):
    older, foreign = made(tmp_path / "older", 1), made(tmp_path / "foreign", 2)
    found = []
    for name in ("one", "two"):
        folder = made(tmp_path / name / "store", 0)
        before = state(folder)
        done = damage(Scene(folder, [older], [foreign]), np.random.default_rng(5), operation)
        found.append((str(done), state(folder)))
        assert found[-1][1] != before
        open_again(folder.parent)
    assert found[0] == found[1]


def test_where_nothing_can_be_changed_nothing_is_done(tmp_path):
    folder = made(tmp_path / "store", 0)
    assert damage(Scene(folder, [], []), np.random.default_rng(0), "file of an older version") is None


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (StoreError("the store /x/run is damaged; delete it"), Outcome.DETECTED),
        (InputError("alpha is too small"), Outcome.MISLED),
        (StoreError("/x/run: 'NoneType' object has no attribute 'shape'"), Outcome.RAW),
        (KeyError("/x/run"), Outcome.RAW),
    ],
)
def test_errors_are_judged(error, outcome):
    assert of_error(error, "/x/run")[0] == outcome


def test_a_child_survives_what_happens_in_it(tmp_path):
    calls = ["builtins:dict", "faulthandler:_sigsegv", "operator:index", "time:sleep", "builtins:dict"]
    arguments = {"builtins:dict": [["outcome", "harmless"]], "operator:index": "x", "time:sleep": 60}
    with Child(tmp_path, 0.5) as child:
        found = [child.ask(call, *[arguments[call]] if call in arguments else []) for call in calls]
    assert [one["outcome"] for one in found] == ["harmless", "crash", "raw error", "hang", "harmless"]
    assert "Segmentation fault" in found[1]["detail"] and "TypeError" in found[2]["detail"]
    assert "exit status -6" in found[3]["detail"] and "in main" in found[3]["detail"]


@pytest.mark.parametrize(
    ("part", "command", "least"),
    [
        ("models", ["damage", "--target", "models", "--trials", "63"], 60),
        ("runs", ["damage", "--target", "runs", "--only", "Cholesky", "--place", "here", "--trials", "21"], 18),
        ("kills", ["kills", "--place", "here", "--trials", "3"], 3),
    ],
)
def test_a_short_campaign(tmp_path, part, command, least):
    file = tmp_path / "lines.jsonl"
    options = ["--seed", "3", "--processes", "1", "--json", str(file), "--folder", str(tmp_path)]
    done = CliRunner().invoke(chaos.main, [*command, *options])
    assert done.exit_code == 0, done.output
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert sum(line.get("count", 0) for line in lines) >= least and lines[-1]["campaign"] == part


def test_what_is_changed_is_noticed(tmp_path, monkeypatch):
    """A loader without checks gives wrong predictions, and the suite says so."""
    from benchmarks import chaos_models

    loaded = chaos_models._loaded

    def careless(kind, path):
        model = loaded(kind, chaos_models.saved("RBF", 0).path)
        model._model.dual_coef[3] += 1e-9
        return model

    chaos_models.saved("RBF", 0)
    monkeypatch.setattr(chaos_models, "_loaded", careless)
    outcome, _ = chaos_models._judged(chaos_models.KINDS["RBF"], tmp_path, chaos_models.saved("RBF", 0))
    assert outcome == Outcome.WRONG


def test_every_process_and_way_to_solve_is_killed():
    found = set()
    for one in islice(episodes(15), 600):
        found.add((one.place, one.target, one.signal, one.name))
    every = {
        (place, target, signal, name)
        for place, targets in TARGETS.items()
        for target, signals in targets.items()
        for signal in signals
        for name in FITS
    }
    assert len(every & found) > 0.7 * len(every)
    assert {case[:3] for case in every} == {case[:3] for case in found}


def test_the_page_counts_what_was_recorded(tmp_path):
    outcomes = [Outcome.DETECTED] * 4 + [Outcome.WRONG]
    lines = [
        asdict(Observation("models", "truncated", outcome, seed=3, number=k, what="/machine/folder; x/c.0"))
        for k, outcome in enumerate(outcomes)
    ]
    about = {"campaign": "models", "seed": 3, "started": "2026-01-02T03:04:05", "seconds": 60, "commit": "abc"}
    file, kept, page = tmp_path / "lines.jsonl", tmp_path / "kept.jsonl", tmp_path / "page.md"
    file.write_text("".join(json.dumps(line) + "\n" for line in [*lines, {**about, "versions": {"dkrr": "1"}}]))
    page.write_text(f"text\n{chaos.BEGIN}\n{chaos.END}\n")
    for source in (file, kept):
        done = CliRunner().invoke(chaos.main, ["page", str(source), "--keep", str(kept), "--write", str(page)])
        assert done.exit_code == 0, done.output
        assert "| truncated | 5 | 0 | 0 | 4 | 1 |" in page.read_text() and "Seed 3, 2026-01-02" in page.read_text()
    assert len(kept.read_text().splitlines()) == 3 and "/machine" not in kept.read_text()
