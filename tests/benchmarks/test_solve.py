import json
import os
import sys
import time
from contextlib import nullcontext

import numpy as np
import pytest
from click.testing import CliRunner

from benchmarks import machine, peers, small, solve
from dkrr.linalg.tile_steps import tile_steps
from dkrr.runtime import TaskRecord
from dkrr.tiles import TileGrid

# The port that Dask's scheduler takes by default may be in use on this machine.
pytestmark = pytest.mark.filterwarnings("ignore:Port 8787 is already in use")


def record(key, worker, start, seconds, **kinds):
    return TaskRecord(key, None, worker, start, seconds, kinds, 0, 0, 0)


@pytest.fixture(scope="module")
def run(tmp_path_factory, run_here):
    """The command itself, with every peer, at a size that takes seconds; scikit-learn is run in this process."""
    folder = tmp_path_factory.mktemp("solve")
    arguments = "--n 602 --tile 128 --workers 2 --memory-limit 1GiB --client --force-workers --gemm-seconds 0.05"
    files = ["--json", str(folder / "runs" / "lines.jsonl"), "--timeline", str(folder / "pictures" / "timeline.png")]
    with pytest.MonkeyPatch.context() as patch:
        # One of the two peers that differ by a function only gets a process of its own, and so does Dask.
        own = peers.run_command
        patch.setattr(peers, "run_command", lambda c, timeout: (run_here if "sklearn" in c else own)(c, timeout))
        result = CliRunner().invoke(solve.main, [*arguments.split(), *files], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result, folder


@pytest.fixture(scope="module")
def line(run):
    (text,) = run[0].stdout.splitlines()
    return json.loads(text)


def test_one_line_on_stdout_and_the_same_in_the_file(run):
    result, folder = run
    assert result.stdout.count("\n") == 1
    assert (folder / "runs" / "lines.jsonl").read_text() == result.stdout
    assert (folder / "pictures" / "timeline.png").read_bytes().startswith(b"\x89PNG")
    for word in ("dkrr", "GEMM", "scipy", "sklearn", "dask", "factorisation", "substitution", "residual", "total"):
        assert word in result.stderr


def test_line_says_what_was_measured_on_what(line):
    assert line["benchmark"] == "solve" and line["repetition"] == 0
    assert line["settings"]["n"] == 602 and line["settings"]["client"] is True
    assert line["machine"]["cores"] >= 1 and line["machine"]["memory_bytes"] > 0
    assert set(machine.LIBRARIES) < set(line["machine"]["versions"])
    for of_process in (line["machine"], *(line["peers"][name]["machine"] for name in ("scipy", "sklearn", "dask"))):
        assert of_process["cpu"] and of_process["commit"] and of_process["date"]
        assert of_process["blas"][0]["internal_api"] and of_process["blas"][0]["architecture"]
    assert set(line["load"]) == {"other_cores_busy_before", "other_cores_busy_during", "noisy"}


def test_all_find_the_same_solution(line):
    expected = line["dkrr"]["coef_norm"]
    assert line["dkrr"]["status"] == "solved" and line["dkrr"]["residual"] < 1e-10
    X, y = peers.Problem(602, 16).data()
    distances = ((X[:, None] - X) ** 2).sum(axis=-1)
    exact = np.linalg.solve(np.exp(-distances / 16) + peers.ALPHA * np.eye(602), y)
    assert expected == pytest.approx(np.linalg.norm(exact), rel=1e-8)
    for name in ("scipy", "sklearn"):
        assert line["peers"][name]["coef_norm"] == pytest.approx(expected, rel=1e-8)
    # Dask's blocks are of equal size: 602 = 6 × 100 + 2.
    assert line["peers"]["dask"]["n"] == 600 and line["peers"]["dask"]["block"] == 100
    assert line["peers"]["dask"]["coef_norm"] == pytest.approx(np.linalg.norm(exact), rel=0.01)


def test_ratios_are_of_rates_by_the_same_count(line):
    ours = 602**3 / 3 / line["dkrr"]["seconds"] / 1e9
    assert line["dkrr"]["gflops"] == pytest.approx(ours)
    assert line["ratios"]["gemm"] == pytest.approx(ours / line["gemm"]["gflops"])
    for name, n in (("scipy", 602), ("sklearn", 602), ("dask", 600)):
        theirs = n**3 / 3 / line["peers"][name]["seconds"] / 1e9
        assert line["ratios"][name] == pytest.approx(ours / theirs)
        assert line["peers"][name]["peak_bytes"] > 2**20
    assert line["peers"]["dask"]["peak_bytes_of_all_workers"] > line["peers"]["dask"]["peak_bytes"]
    assert line["gemm"]["threads"] == 1 and len(line["gemm"]["gflops_by_process"]) == 2
    assert sum(line["gemm"]["gflops_by_process"]) == pytest.approx(line["gemm"]["gflops"])


def test_memory_and_bytes_beside_the_model(line):
    ours, _grid = line["dkrr"], TileGrid(602, 128, 128)
    columns_per_task = ours["plan"]["columns_per_task"]
    assert ours["plan"] == {
        "summary": "dual, Cholesky, 2 workers, tiles of 128",
        "solver": "cholesky",
        "columns_per_task": columns_per_task,
        "execution": "dask",
        "n_workers": 2,
        "tile": 128,
        "panel": 128,
        "tiles_per_side": 5,
    }
    memory, store = ours["memory"], ours["store"]
    assert memory["limit_bytes_of_process"] == 2**29
    assert 1 <= len(memory["peak_bytes_by_process"]) <= 2
    assert memory["largest_over_projected"] == pytest.approx(
        max(memory["peak_bytes_by_process"].values()) / memory["projected_peak_bytes"]
    )
    assert memory["caller_peak_bytes"] >= memory["caller_before_bytes"] > 0
    assert store["read_bytes"] == pytest.approx(store["read_bytes_model"], rel=0.05)
    assert store["written_bytes"] == pytest.approx(store["written_bytes_model"], rel=0.05)


def test_all_worker_time_is_accounted_for(line):
    ours = line["dkrr"]
    n_steps = len(list(tile_steps(5, ours["plan"]["columns_per_task"])))
    assert ours["stages"]["factorisation"]["tasks"] == n_steps and ours["stages"]["residual"]["tasks"] > 0
    for name, stage in ours["stages"].items():
        assert stage["seconds"] == pytest.approx(stage["end"] - stage["start"])
        assert sum(ours["seconds_by_kind"][name].values()) == pytest.approx(stage["busy"] + stage["idle"], rel=1e-3)
    assert {"read", "gemm", "syrk", "trsm", "potrf", "write", "idle"} <= set(ours["seconds_by_kind"]["total"])
    busy = sum(stage["busy"] for stage in ours["stages"].values())
    assert sum(worker["busy"] for worker in ours["workers"].values()) == pytest.approx(busy)


def test_stages_of_known_tasks():
    tasks = [
        record("L-0-0", "a", 11.0, 2.0, potrf=1.5, read=0.25),
        record("L-1-0", "a", 13.0, 3.0, gemm=2.0),
        record("S-2-1-0", "b", 14.0, 4.0, gemm=3.0, trsm=1.0),
        record("substitution-sum-5-0", "b", 19.0, 1.0, read=0.5),
        record("substitution-solve-5", "a", 18.5, 0.5),
    ]
    times = solve.stage_times(tasks, slots=2, started=10.0)
    assert times == {
        "factorisation": {"start": 1.0, "end": 8.0, "seconds": 7.0, "busy": 9.0, "idle": 5.0, "tasks": 3},
        "substitution": {"start": 8.5, "end": 10.0, "seconds": 1.5, "busy": 1.5, "idle": 1.5, "tasks": 2},
    }
    kinds = solve.seconds_by_kind(tasks, times)
    assert kinds["factorisation"] == {"potrf": 1.5, "read": 0.25, "gemm": 5.0, "trsm": 1.0, "other": 1.25, "idle": 5.0}
    assert kinds["substitution"] == {"read": 0.5, "other": 1.0, "idle": 1.5}
    assert kinds["total"]["read"] == 0.75 and kinds["total"]["idle"] == 6.5
    assert solve.worker_times(tasks) == {
        "a": {"busy": 5.5, "idle": 3.5, "tasks": 3},
        "b": {"busy": 5.0, "idle": 4.0, "tasks": 2},
    }


def test_fit_in_memory_has_no_tasks_and_no_store():
    settings = solve.Settings(n=90, peers=("gemm",), gemm_seconds=0.01)
    line, fit = solve.measure(settings)
    assert fit.tasks == [] and line["dkrr"]["plan"]["execution"] == "memory"
    assert line["dkrr"]["stages"] == line["dkrr"]["workers"] == {}
    assert line["dkrr"]["store"]["read_bytes"] == line["dkrr"]["store"]["read_bytes_model"] == 0
    assert list(line["dkrr"]["memory"]["peak_bytes_by_process"]) == ["caller"]
    assert "gemm_factorisation_only" not in line["ratios"] and line["ratios"]["gemm"] > 0
    solve.table_console().print(solve.result_table(json.loads(json.dumps(line))))


def test_cold_fit_starts_its_own_workers_and_counts_that(monkeypatch):
    # Those for GEMM, right after, are not started here: the command itself is tested with real ones above.
    gemm = machine.GemmRate(4.0, (2.0, 2.0), threads=1, side=1024, seconds=0.01)
    monkeypatch.setattr(solve, "_workers", lambda settings: nullcontext("others like them"))
    monkeypatch.setattr(solve, "measure_gemm_on_workers", lambda client, *_: gemm if client else None)
    settings = solve.Settings(n=300, tile=128, force_workers=True, peers=("gemm",))
    line, fit = solve.measure(settings)
    assert line["dkrr"]["plan"]["execution"] == "dask" and line["dkrr"]["status"] == "solved"
    assert line["ratios"]["gemm"] == pytest.approx(line["dkrr"]["gflops"] / 4)
    # Starting and stopping processes takes longer than such a small system.
    assert line["dkrr"]["before_first_task_seconds"] > 0 and line["dkrr"]["after_last_task_seconds"] > 0
    assert sum(stage["tasks"] for stage in line["dkrr"]["stages"].values()) == len(fit.tasks)


def test_peer_that_crashes_fails_or_hangs_leaves_a_record():
    def run(code, timeout=None):
        return peers.run_command([sys.executable, "-c", code], timeout)

    assert run("import os, signal; os.kill(os.getpid(), signal.SIGKILL)") == {"crashed": "SIGKILL"}
    assert run("raise ValueError('too large')") == {"failed": "ValueError: too large"}
    assert run("pass") == {"failed": "exit status 0, nothing printed"}
    assert run("import time; time.sleep(60)", timeout=0.2) == {"timed_out": 0.2}
    assert run("print('hello'); print('{\"seconds\": 1}')") == {"seconds": 1}


def test_lapack_gets_all_threads_whatever_the_size(monkeypatch):
    commands = []
    monkeypatch.setattr(peers, "run_command", lambda command, timeout: commands.append(command) or {"seconds": 1.0})
    for name in peers.PEERS:
        assert peers.run_peer(name, peers.Problem(16_384, 16), 3) == {"seconds": 1.0}
    assert [command[command.index("--threads") + 1] for command in commands] == ["3", "3", "3"]


def test_peer_that_crashes_with_all_threads_runs_again_with_one(monkeypatch):
    ran = []

    def run(command, timeout):
        name, threads = command[3], int(command[command.index("--threads") + 1])
        ran.append((name, threads))
        fails = {("sklearn", 3): {"crashed": "SIGSEGV"}, ("scipy", 3): {"failed": "MemoryError"}}
        return fails.get((name, threads), {"seconds": 2.0, "blas_threads": threads})

    monkeypatch.setattr(peers, "run_command", run)
    assert peers.run_peers(("scipy", "sklearn", "dask"), peers.Problem(50, 16), 3) == {
        "scipy": {"failed": "MemoryError", "threads": 3, "outcome": "failed: MemoryError with 3 threads"},
        "sklearn": {"crashed": "SIGSEGV", "threads": 3, "outcome": "crashed (SIGSEGV) with 3 threads"},
        "sklearn_one_thread": {"seconds": 2.0, "blas_threads": 1},
        "dask": {"seconds": 2.0, "blas_threads": 3},
    }
    assert ran == [("scipy", 3), ("sklearn", 3), ("sklearn", 1), ("dask", 3)]


@pytest.mark.parametrize("n", [1, 129])
def test_the_gram_matrix_of_scipys_peer(n):
    problem = peers.Problem(n, 3)
    X, _ = problem.data()
    distances = ((X[:, None] - X) ** 2).sum(axis=-1)
    assert peers._gram(X, problem) == pytest.approx(np.exp(-distances / 3), abs=1e-12)


@pytest.mark.parametrize(("n", "block"), [(1, 1), (5, 1), (602, 100), (6144, 1024), (12_288, 2048), (16_384, 2048)])
def test_dask_block(n, block):
    assert peers.dask_block(n) == block


def test_own_work_is_not_other_load():
    start, end = machine._Clocks(10.0, 100.0, 30.0), machine._Clocks(12.0, 103.5, 33.0)
    assert end.others_since(start) == 0.25
    assert machine._Clocks(12.0, 101.0, 33.0).others_since(start) == 0
    assert machine.Load(0.1, 0.1).noisy is False
    assert machine.Load(0.1, 0.3).noisy is machine.Load(0.3, 0.1).noisy is True
    meter = machine.LoadMeter()
    time.sleep(0.5)  # the kernel counts in hundredths of a second
    assert 0 <= meter.stop().other_cores_busy_during <= 1.1 * os.cpu_count()


def test_solvers_are_measured_beside_one_run_of_the_peers(monkeypatch):
    problems = []

    def run(names, problem, *_):
        problems.append((list(names), problem.n))
        return {"scipy": {"seconds": 2.0, "gflops": 0.5, "blas_threads": 2, "peak_bytes": 2**20, "n": 90}}

    monkeypatch.setattr(solve, "run_peers", run)
    arguments = ["--n", "90", "--solver", "cholesky", "--solver", "cg", "--peers", "gemm,scipy"]
    result = CliRunner().invoke(solve.main, [*arguments, "--gemm-seconds", "0.01"], catch_exceptions=False)
    direct, iterative = map(json.loads, result.stdout.splitlines())
    assert problems == [(["scipy"], 90)]
    assert [r["settings"]["solver"] for r in (direct, iterative)] == ["cholesky", "cg"]
    assert [r["dkrr"]["plan"]["solver"] for r in (direct, iterative)] == ["cholesky", "cg"]
    assert direct["peers"] == iterative["peers"]
    for record in (direct, iterative):
        assert record["ratios"]["scipy"] == record["dkrr"]["gflops"] / 0.5
    assert direct["dkrr"]["iterations"] == 0 < iterative["dkrr"]["iterations"]
    assert direct["dkrr"]["residual"] < 1e-10 and iterative["dkrr"]["residual"] <= 1e-6


def test_machine_names_the_kernels_that_the_environment_asks_for(monkeypatch):
    monkeypatch.setenv("OPENBLAS_CORETYPE", "Haswell")
    monkeypatch.delenv("OPENBLAS_NUM_THREADS", raising=False)
    found = machine.describe_machine()["environment"]
    assert found["OPENBLAS_CORETYPE"] == "Haswell" and "OPENBLAS_NUM_THREADS" not in found


def test_unknown_peer_is_refused():
    result = CliRunner().invoke(solve.main, ["--n", "10", "--peers", "gemm,matlab"])
    assert result.exit_code == 2 and "'matlab' is not one of gemm, scipy, sklearn, dask" in result.output


def test_limit_that_is_too_small_is_one_line():
    result = CliRunner().invoke(solve.main, ["--n", "3000", "--memory-limit", "1MiB", "--peers", ""])
    assert result.exit_code == 1 and result.output.startswith("Error: no plan fits in memory")


def test_small_compares_equal_predictions(tmp_path):
    lines = tmp_path / "small.jsonl"
    options = ["--n", "40", "--n", "60", "--repeat", "2", "--json", str(lines)]
    result = CliRunner().invoke(small.main, options, catch_exceptions=False)
    assert result.exit_code == 0 and lines.read_text() == result.stdout
    records = [json.loads(text) for text in result.stdout.splitlines()]
    assert [record["n"] for record in records] == [40, 60]
    for record in records:
        assert record["largest_difference"] < 1e-8
        assert record["ratio"] == record["dkrr"]["seconds"] / record["sklearn"]["seconds"]
        for name in ("dkrr", "sklearn"):
            assert record[name]["least_seconds"] <= record[name]["seconds"]
