import json
from dataclasses import asdict, replace

import pytest
from click.testing import CliRunner

from benchmarks import wide
from benchmarks.clusters import WideCluster
from dkrr.linalg.tile_steps import tile_steps
from dkrr.planning.schedule import TaskCosts, formed_entries, step_bytes, step_flops
from dkrr.runtime import TaskRecord
from dkrr.tiles import TileGrid

# The port that Dask's scheduler takes by default may be in use on this machine.
pytestmark = pytest.mark.filterwarnings("ignore:Port 8787 is already in use")

COSTS = TaskCosts(50e9, 47e9, 31e9, 37e9, 2.3e9, 0.7e9, 3e-9, 0.004)
SETTING = wide.Setting(COSTS, 4 * 2**30, 20_000)
KINDS = ("gemm", "syrk", "trsm", "potrf", "read", "write")


def invoke(*arguments):
    result = CliRunner().invoke(wide.main, [str(a) for a in arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return [json.loads(line) for line in result.stdout.splitlines()], result.stderr


def records(grid, columns_per_task, gap, overhead):
    """What one worker would leave whose rates are COSTS."""
    now, found = 0.0, []
    for step in tile_steps(grid.n_tiles, columns_per_task):
        amounts = [*step_flops(step, grid), *step_bytes(step, grid)]
        rates = (50e9, 47e9, 31e9, 37e9, 2.3e9, 0.7e9)
        spent = {kind: a / rate for kind, a, rate in zip(KINDS, amounts, rates, strict=True) if a}
        spent["gram"] = formed_entries(step, grid) * 3e-9
        seconds = sum(spent.values()) + overhead
        found.append(TaskRecord(step.key, None, "7", now, seconds, spent, 0, 0, 0))
        now += seconds + gap
    return found


@pytest.mark.parametrize("columns_per_task", [0, 2])
def test_costs_are_recovered(columns_per_task):
    grid = TileGrid(1201, 150, 50)
    tasks = records(grid, columns_per_task, gap=0.003, overhead=0.001)
    other = TaskRecord("residual-3", None, "7", 1e6, 5.0, {"gemm": 5.0}, 0, 0, 0)
    found = wide.fitted_costs([*tasks, other], grid, columns_per_task)
    assert asdict(found) == pytest.approx(asdict(COSTS))
    # The few waits for another task are not overhead.
    late = [replace(t, start=t.start + (60.0 if k > 4 else 0.0)) for k, t in enumerate(tasks)]
    assert wide.fitted_costs(late, grid, columns_per_task).task_seconds == pytest.approx(0.004)


def test_simulation_of_what_was_recorded():
    """A run that went exactly as its costs say is reproduced exactly, but for the driver's delays."""
    grid = TileGrid(6000, 500, 250)
    tasks = records(grid, 0, gap=0.0, overhead=0.004)
    seconds = sum(t.seconds for t in tasks)
    stages = {
        "factorisation": {"seconds": seconds, "busy": seconds},
        "substitution": {"seconds": 3.0, "busy": 2.0},
        "residual": {"seconds": 4.0, "busy": 4.0},
    }
    costs = wide.fitted_costs(tasks, grid, 0)
    run = wide.Run(6000, 1, grid, 0, seconds + 8.0, stages, costs, noisy=False)
    record = wide.compare(run, run)
    assert record["own_costs"]["ratio"] == pytest.approx(1, rel=0.05)
    assert record["one_worker_costs"]["seconds"] == record["own_costs"]["seconds"]
    # One second between the stages, two of the substitution, four of the residual.
    assert record["one_worker_costs"]["whole_seconds"] == pytest.approx(record["own_costs"]["seconds"] + 7)
    four = wide.compare(replace(run, workers=4), run)["one_worker_costs"]
    assert four["whole_seconds"] - four["seconds"] == pytest.approx(1 + 2 / 2 + 4 / 4)


def test_best_stays_within_memory_and_tasks():
    found = wide.best(50_000, 16, SETTING)
    assert wide.task_peak_bytes(found.grid) <= wide.USABLE_FRACTION * SETTING.worker_bytes
    assert found.tasks <= SETTING.max_tasks
    small = wide.best(50_000, 16, replace(SETTING, worker_bytes=300 * 2**20))
    assert small.grid.tile < found.grid.tile or small.grid.tile <= 1024
    with pytest.raises(Exception, match="has no tile that fits"):
        wide.best(50_000, 16, replace(SETTING, worker_bytes=100 * 2**20))


def test_shortlist_does_not_lose_the_best():
    """Every layout simulated: the closed formula must not have dropped a much better one."""
    chosen = wide.best(12_000, 16, SETTING)
    every = [
        wide.simulate_factorisation(grid, columns_per_task, COSTS, WideCluster(16)).seconds
        for grid, columns_per_task in wide.layouts(12_000, SETTING, wide.TASK_COLUMNS)
    ]
    assert chosen.seconds <= 1.06 * min(every)


def test_reproduce(tmp_path):
    costs, lines = tmp_path / "costs" / "one.json", tmp_path / "lines.jsonl"
    options = "--n 601 --d 3 --tile 128 --columns-per-task 2 --workers 1 --workers 2 --memory-limit 512MiB"
    found, tables = invoke("reproduce", *options.split(), "--costs", costs, "--json", lines)
    assert [r["workers"] for r in found] == [1, 2] and lines.read_text().count("\n") == 2
    for record in found:
        assert (record["tile"], record["columns_per_task"], record["tasks"]) == (128, 2, len(list(tile_steps(5, 2))))
        assert record["own_costs"]["ratio"] > 0 and record["one_worker_costs"]["whole_ratio"] > 0
        assert record["busy_seconds"] > 0 and "noisy" in record
    assert json.loads(costs.read_text())["costs"] == found[0]["costs"] == asdict(wide.load_costs(costs))
    assert "simulated / measured" in tables


def test_costs_need_a_run_with_one_worker(tmp_path):
    options = "--n 400 --d 3 --tile 100 --workers 2 --memory-limit 512MiB"
    result = CliRunner().invoke(wide.main, ["reproduce", *options.split(), "--costs", str(tmp_path / "none.json")])
    assert result.exit_code == 1 and "--workers 1" in result.stderr


def test_answer(tmp_path):
    path = tmp_path / "costs.json"
    path.write_text(json.dumps({"costs": asdict(COSTS)}))
    options = "--n 20000 --workers 8 --workers 32 --store 200MB --weak-n 8000 --weak 4 8 --max-tasks 5000"
    found, tables = invoke("answer", *options.split(), "--costs", path, "--core-hour-price", 2)
    by_kind = {}
    for record in found:
        by_kind.setdefault(record["benchmark"], []).append(record)
    eight, many = by_kind["wide.answer"]
    assert many["seconds"] < eight["seconds"] and many["efficiency"] < eight["efficiency"] <= 1
    for record in (eight, many):
        assert record["core_hours"] == pytest.approx(record["workers"] * record["seconds"] / 3600)
        assert record["cost"] == pytest.approx(2 * record["core_hours"])
        assert record["trouble"]["seconds"] > record["seconds"]
        assert record["parts_pay"] > 0.97 and record["peak_read_rate"] >= record["read_rate"]
    # 200 MB/s is less than eight workers read: the time is that of the bytes.
    assert by_kind["wide.store"][1]["seconds"] > many["seconds"]
    weak = by_kind["wide.weak"]
    assert [r["n"] for r in weak] == [8000, 10079, 8000, 11314, 8000, 16000]
    assert weak[-1]["ceiling"] == pytest.approx(1 / 4)
    assert "weak scaling" in tables and "n = 20,000" in tables


def test_draw(tmp_path):
    picture = tmp_path / "pictures" / "efficiency.png"
    options = "--n 10000 --n 20000 --workers 4 --workers 16 --max-tasks 2000"
    found, _ = invoke("draw", *options.split(), "--out", picture)
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert [(r["n"], r["tasks"]) for r in found] == [
        (10000, "parts"),
        (10000, "one task a tile"),
        (20000, "parts"),
        (20000, "one task a tile"),
    ]
