import json
import sys

import numpy as np
import pytest
import scipy.sparse as sp
import zarr
from click.testing import CliRunner

from benchmarks import primal, primal_peers
from benchmarks.primal import Data
from dkrr.features import PolynomialMap
from dkrr.runtime import TaskRecord

# The port that Dask's scheduler takes by default may be in use on this machine.
pytestmark = pytest.mark.filterwarnings("ignore:Port 8787 is already in use")


def command(*arguments):
    result = CliRunner().invoke(primal.main, list(map(str, arguments)), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result, [json.loads(line) for line in result.stdout.splitlines()]


def exact(folder, degree=1):
    X, y = zarr.open_array(folder / "x", mode="r")[:], zarr.open_array(folder / "y", mode="r")[:]
    phi = PolynomialMap(degree).transform(X) if degree > 1 else X
    return np.linalg.solve(phi.T @ phi + primal.ALPHA * np.eye(phi.shape[1]), phi.T @ y)


class TestData:
    def test_written_once_and_rewritten_for_another_layout(self, tmp_path):
        data = Data(tmp_path, 103, 5, chunk_rows=20)
        data.write()
        array = zarr.open_array(data.path, mode="r")
        assert array.shape == (103, 5) and array.chunks == (20, 5) and array.compressors == ()
        assert data.stored_bytes == 6 * 20 * 5 * 8
        X, before = array[:], {f: f.stat().st_mtime_ns for f in data.files()}
        data.write()
        assert {f: f.stat().st_mtime_ns for f in data.files()} == before
        Data(tmp_path, 103, 5, chunk_rows=20, compressed=True).write()
        array = zarr.open_array(data.path, mode="r")
        assert array.compressors != () and np.array_equal(array[:], X), "the same rows in another layout"
        assert abs(X.std() - 1) < 0.1 and len(np.unique(X)) == X.size

    def test_sparse_rows(self, tmp_path):
        data = Data(tmp_path, 200, 50, density=0.04)
        data.write()
        X = sp.load_npz(data.path)
        assert X.shape == (200, 50) and 300 < X.nnz <= 400
        assert zarr.open_array(tmp_path / "y", mode="r").shape == (200,)

    def test_rates_of_reading_count_rows(self, tmp_path):
        data = Data(tmp_path, 1000, 5, chunk_rows=100)
        data.write()
        for cold in (False, True):
            rates = primal.read_rate(data, 2, cold=cold)
            assert set(rates) == {"zarr", "files"} and min(rates.values()) > 0


def test_stages_of_known_tasks():
    def task(key, start, seconds):
        return TaskRecord(key, None, "a", start, seconds, {}, 0, 0, 0)

    tasks = [task("normal_part-0", 1.0, 2.0), task("normal_part-1", 1.5, 2.5), task("primal_residual-0", 5.0, 1.0)]
    assert primal.stage_seconds([*tasks, task("L-0-0", 4.0, 0.5)], "cholesky") == {
        "normal matrix": 3.0,
        "training errors": 1.0,
        "solve": 0.5,
    }
    assert primal.stage_seconds(tasks, "cg") == {"passes": 5.0}


@pytest.fixture(scope="module")
def linear(tmp_path_factory, run_here):
    folder = tmp_path_factory.mktemp("primal")
    options = ["--n", 3011, "--d", 7, "--chunk-rows", 500, "--rate-seconds", 0.02, "--peers", "sklearn,dask,dask-ml"]
    options += ["--data", folder, "--json", folder / "lines.jsonl"]

    # The cold fit, whose memory is compared, and Dask have processes of their own: the other two repeat the path.
    def here_unless_cold(called, timeout=None):
        is_other = "sklearn" in called or ("fit" in called and "--cold" not in called)
        return (run_here if is_other else original)(called, timeout)

    original = primal.run_command
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(primal, "run_command", here_unless_cold)
        return *command("linear", *options), folder


def test_all_find_the_same_coefficients(linear):
    result, lines, folder = linear
    assert (folder / "lines.jsonl").read_text() == result.stdout
    by_name = {line["what"]: line for line in lines}
    assert list(by_name) == ["dkrr, cold", "dkrr, warm", "sklearn", "dask", "dask-ml"]
    for name in ("dkrr, cold", "dkrr, warm", "sklearn", "dask"):
        assert by_name[name]["coef_difference"] < 1e-10, by_name[name]
    ours, w = by_name["sklearn"]["coef_norm"], exact(folder / "3011x7")
    assert ours == pytest.approx(np.linalg.norm(w), rel=1e-10)
    other = by_name["dask-ml"]
    assert "missing" in other or other["coef_difference"] < 1e-5


def test_a_fit_beside_its_limits(linear):
    line = linear[1][0]
    assert line["status"] == "SOLVED" and line["form"] == "primal" and line["cold"] is True
    assert line["dimension"] == 7 and line["stored_bytes"] == 7 * 500 * 7 * 8
    assert 0 < line["peak_bytes"] <= line["projected_peak_bytes"] <= line["memory_limit_bytes"] == 2**30
    needs = line["pass_seconds"]
    assert needs["cores"] == pytest.approx(3011 * 49 / line["syrk_gflops"] / 1e9)
    cold = line["store_bytes_a_second"]["cold"]
    assert needs["store"] == pytest.approx(3011 * 56 / max(cold.values()))
    assert line["binds"] == max(needs, key=needs.get)
    assert line["ratios"]["fit"] == pytest.approx(needs[line["binds"]] / line["seconds"])
    assert "cold" not in linear[1][1]["store_bytes_a_second"]


@pytest.fixture
def in_this_process(monkeypatch, run_here):
    monkeypatch.setattr(primal, "run_command", run_here)


def test_polynomial_features(tmp_path, in_this_process):
    arguments = ["--size", 400, 5, "--rate-seconds", 0.02, "--data", tmp_path, "--peers", "sklearn"]
    result, (ours, peer) = command("polynomial", *arguments, "--memory-limit", "4GiB")
    assert ours["dimension"] == 21 and ours["form"] == "primal" and ours["status"] == "SOLVED"
    assert peer["coef_difference"] < 1e-10
    assert peer["coef_norm"] == pytest.approx(np.linalg.norm(exact(tmp_path / "400x5", 2)), rel=1e-9)
    assert "polynomial kernel of degree 2" in result.stderr


def test_sparse_rows_stay_sparse(tmp_path, in_this_process):
    arguments = ["--n", 3000, "--d", 900, "--density", 0.01, "--auto-seconds", 0, "--data", tmp_path]
    _, (ours, peer) = command("sparse", *arguments, "--memory-limit", "4GiB")
    assert ours["what"] == "dkrr, cg" and ours["status"] == "CONVERGED" and ours["planned"].startswith("primal")
    assert peer["solver"] == "sparse_cg" and peer["coef_difference"] < 1e-6
    assert ours["dense_bytes"] == 3000 * 900 * 8


def test_features_of_the_peer_are_those_of_the_kernel():
    X = np.random.default_rng(0).standard_normal((20, 4))
    for degree in (2, 3):
        features = primal_peers.monomials(X, degree)
        np.testing.assert_allclose(features @ features.T, (X @ X.T / 4 + 1) ** degree, atol=1e-12)
        np.testing.assert_allclose(features, PolynomialMap(degree).transform(X), rtol=1e-12)


def test_a_peer_that_is_not_installed(tmp_path, monkeypatch):
    monkeypatch.setattr(primal.importlib.util, "find_spec", lambda name: None)
    options = {"degree": 1, "dask_ml_python": sys.executable, "rate_seconds": 0.02, "json_path": None}
    options |= {"peer_timeout": None, "memory_limit": "1GiB"}
    ((name, record),) = primal.measure(Data(tmp_path, 50, 3), {}, ("dask-ml",), options)
    assert name == "dask-ml" and "not installed" in record["missing"]
    primal.show("title", [(name, record)])


def test_unknown_peers_are_refused(tmp_path):
    result = CliRunner().invoke(primal.main, ["polynomial", "--peers", "dask", "--data", str(tmp_path)])
    assert result.exit_code == 2 and "'dask' is not one of sklearn" in result.output
