"""What stores hold is told as it is, and nothing damaged is called whole."""

import json
import shutil

import dask
import dask.array as da
import numpy as np
import pytest
import zarr
from click.testing import CliRunner

import dkrr
from dkrr.cli import dkrr as command
from dkrr.errors import StoreError
from dkrr.store import RunStore
from dkrr.store.inspection import TileMap, map_in_text
from dkrr.store.lock import owned

X = np.random.default_rng(0).normal(size=(300, 4))
Y = X @ [1.0, -2.0, 0.5, 0.0]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Finished runs and models of several kinds."""
    folder = tmp_path_factory.mktemp("made")

    def fit(name, **settings):
        settings = {"kernel": "rbf", "alpha": 0.1, "tile": 64, "store": str(folder / name), **settings}
        return dkrr.KernelRidge(**settings).fit(da.from_array(X, chunks=100), Y)

    with dask.config.set({"dkrr.checkpoint-seconds": 0}):
        model = fit("cholesky", solver="cholesky")
        fit("cg", solver="cg")
        fit("primal", form="primal", kernel="polynomial", degree=2, solver="cholesky", tile=8)
    dkrr.gram(X, kernel="rbf", store=folder / "gram", chunks=64)
    dkrr.save(model, folder / "model")
    return folder


def run(*arguments):
    return CliRunner().invoke(command, [str(a) for a in arguments])


KINDS = {"cholesky": "run", "cg": "run", "primal": "run", "gram": "Gram matrix", "model": "model"}


@pytest.mark.parametrize("name", KINDS)
def test_verify_says_what_is_whole(made, name):
    found = dkrr.verify(made / name)
    assert found.is_whole and "is whole" in str(found) and found.kind == KINDS[name]
    on_disk = sum(file.stat().st_size for file in (made / name).rglob("c.*"))
    assert sum(array.n_bytes for array in found.arrays) == on_disk > 0
    if name != "model":
        assert "nothing is left" in dkrr.status(made / name).left or name == "cg"


@pytest.mark.parametrize("name", KINDS)
def test_every_damaged_file_is_named(made, tmp_path, name):
    files = [file.relative_to(made / name) for file in sorted((made / name).rglob("*")) if file.is_file()]
    for number, file in enumerate(files):
        if len(file.parts) > 1 and file.name == "zarr.json" and '"group"' in (made / name / file).read_text():
            continue  # a group between has no content
        shutil.copytree(made / name, tmp_path / "copy")
        raw = bytearray((tmp_path / "copy" / file).read_bytes())
        raw[(11 * number) % len(raw)] ^= 8
        (tmp_path / "copy" / file).write_bytes(bytes(raw))
        if str(file) == "zarr.json":
            with pytest.raises(StoreError, match="damaged"):
                dkrr.verify(tmp_path / "copy")
        else:
            found = dkrr.verify(tmp_path / "copy")
            assert not found.is_whole and len(found.damage) == 1, file
            assert str(file.parent) in found.damage[0] and file.name in found.damage[0]
            assert "again" in str(found)
        shutil.rmtree(tmp_path / "copy")


def test_missing_chunks_are_named(made, tmp_path):
    turn = RunStore(str(made / "cg")).note("checkpoint")["turn"]
    (rows,) = (made / "cholesky").glob("rows*")
    missing = {"model": "rows/c.0.0", "cg": f"checkpoint-{turn}/x/c.0.0", "cholesky": f"{rows.name}/c.1.0"}
    for name, chunk in missing.items():
        shutil.copytree(made / name, tmp_path / name)
        (tmp_path / name / chunk).unlink()
        found = dkrr.verify(tmp_path / name)
        assert not found.is_whole and not found.damage and chunk.split("/")[-1] in found.missing[0]


def test_status_says_how_far_a_run_is_and_shows_the_map_of_tiles(made, tmp_path):
    shutil.copytree(made / "cholesky", tmp_path / "run")
    (tmp_path / "run" / "system-0" / "factor" / "c.4.1").unlink()
    assert run("status", tmp_path / "run").output.endswith(
        "  system-0/factor: 14 of 15 chunks\n  ██\n  ████\n  ██████\n  ████████\n  ██░░██████\n"
    )
    assert "█" not in run("status", made / "cholesky").output, "what is complete"
    for chunk in ("c.4.0", "c.2.2"):
        (tmp_path / "run" / "system-0" / "factor" / chunk).unlink()
    found = dkrr.status(tmp_path / "run")
    assert found.kind == "fit" and found.problem["shape"] == [300, 4] and found.layout["tile"] == 64
    factor = next(array for array in found.arrays if array.name == "system-0/factor")
    assert (factor.present, factor.expected) == (12, 15)
    assert found.left == "3 chunks are left to compute (system-0/factor)"
    assert dkrr.verify(tmp_path / "run").is_whole, "what is yet to be computed is not missing"
    assert dkrr.status(made / "cg").checkpoint["iteration"] > 0


def test_a_map_in_text_has_a_pair_of_characters_for_a_cell():
    shares = np.where(np.tri(5, dtype=bool), np.linspace(0, 1, 25).reshape(5, 5).round(), np.nan)
    shares[4, :4] = 0.0, 0.1, 0.5, 0.9
    title, first, *_, last = map_in_text(TileMap("factor", 1234, 6972, shares)).splitlines()
    assert (title, first, last) == ("  factor: 1,234 of 6,972 chunks", "  ░░", "  ░░▒▒▓▓▓▓██")


@pytest.mark.parametrize(("columns", "side"), [(80, 10), (20, 9), (4, 1), (2, 1)])
def test_a_map_fits_into_the_terminal(tmp_path, monkeypatch, columns, side):
    monkeypatch.setenv("COLUMNS", str(columns))
    fit = dkrr.KernelRidge(kernel="rbf", alpha=0.1, tile=8, solver="cholesky", store=str(tmp_path / "run")).fit
    fit(X[:75], Y[:75])
    (tmp_path / "run" / "system-0" / "factor" / "c.9.9").unlink()
    lines = run("status", tmp_path / "run").output.splitlines()
    found = lines[lines.index("  system-0/factor: 54 of 55 chunks") + 1 :]
    assert [len(line) for line in found] == [2 + 2 * (k + 1) for k in range(side)]
    assert found[-1].strip("█ ") == ("▓▓" if side == 1 else "░░")


def test_status_says_who_uses_a_run(made, tmp_path):
    shutil.copytree(made / "cg", tmp_path / "run")
    with owned(str(tmp_path / "run")):
        assert "in use by this process" in str(dkrr.status(tmp_path / "run"))
    assert dkrr.status(tmp_path / "run").owner == ""


def test_status_of_a_run_that_has_not_begun(tmp_path):
    RunStore(str(tmp_path / "run")).open()
    assert "not begun" in str(dkrr.status(tmp_path / "run"))
    assert dkrr.verify(tmp_path / "run").is_whole


def test_other_things_are_not_runs_or_models(tmp_path, made):
    zarr.create_group(tmp_path / "group")
    (tmp_path / "empty").mkdir()
    for name in ("group", "empty", "nothing"):
        for use in (dkrr.verify, dkrr.status):
            with pytest.raises(StoreError, match=name):
                use(tmp_path / name)
            refused = run(use.__name__, tmp_path / name)
            assert refused.exit_code != 0 and name in refused.stderr and "Traceback" not in refused.stderr
    with pytest.raises(StoreError, match="is a saved model.*dkrr info"):
        dkrr.status(made / "model")


def test_verify_and_status_on_the_command_line(made, tmp_path):
    assert run("verify", made / "model").exit_code == 0
    assert "is whole" in run("verify", made / "cg").output
    found = json.loads(run("status", made / "cg", "--json").output)
    assert found["kind"] == "fit" and found["arrays"][0]["present"] >= 1
    assert "nothing is left" in run("status", made / "cholesky").output
    shutil.copytree(made / "model", tmp_path / "model")
    (tmp_path / "model" / "dual_coef" / "c.0.0").unlink()
    damaged = run("verify", tmp_path / "model")
    assert damaged.exit_code == 1 and "missing: chunk c.0.0" in damaged.output
