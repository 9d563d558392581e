"""The command line as a person or a program meets it; what it refuses is in test_refusals.py."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import dask
import numpy as np
import pandas as pd
import pytest
import zarr
from click.shell_completion import BashComplete

from dkrr import KernelLogisticRegression, KernelRidge, KernelRidgeCV, load
from dkrr.cli import dkrr
from dkrr.cli.options import GROUPS, OPTIONS
from dkrr.data import sampled
from dkrr.errors import ConvergenceWarning
from dkrr.estimators.search import shuffled_folds
from dkrr.machine.profile import machine_fingerprint, save_profile
from dkrr.planning import Profile
from dkrr.planning.resources import Rates
from tests.interface.conftest import run
from tests.pairs import every_pair

READ = {
    ".npy": np.load,
    ".zarr": lambda path: zarr.open_array(path, mode="r")[...],
    ".csv": lambda path: np.loadtxt(path, delimiter=",", skiprows=1),
}
FIT = "fit --x x.npy --y d.npz::y --model m.zarr"
SELECT = "select --x x.npy --y d.npz::y --quiet"


def read(path):
    return READ[Path(path).suffix](path)


@pytest.mark.parametrize(("x", "out"), [("data.zarr/x", "p.npy"), ("x.npy", "p.zarr"), ("d.npz::X", "p.npy")])
def test_a_fit_is_saved_described_and_predicts(data, folder, x, out):
    settings = "--kernel rbf --gamma 0.2 --alpha 0.1 --fit-intercept --json"
    fit = f"fit --x {x} --y d.npz::y --sample-weight d.npz::w --model m.zarr {settings}"
    result = json.loads(run(fit).stdout)
    assert result["status"] == "SOLVED" and result["residual"] < 1e-10 and result["plan"]["form"] == "dual"
    assert 1 < result["condition"] < 1e6
    run(f"predict --model m.zarr --x {x} --out {out}")
    expected = KernelRidge(alpha=0.1, kernel="rbf", gamma=0.2, fit_intercept=True)
    expected.fit(data.X, data.y, sample_weight=data.weights)
    np.testing.assert_allclose(read(out), expected.predict(data.X), rtol=0, atol=1e-10)
    assert "rbf" in run("info m.zarr").stdout
    assert json.loads(run("info m.zarr --json").stdout)["kernel"] == {"kernel": "rbf", "gamma": 0.2}


@pytest.mark.parametrize("classes", [("high", "low"), (1, 0)])
def test_labels_and_probabilities_are_predicted(data, folder, classes):
    names = np.where(data.X[:, 0] > 0, *classes)
    np.save("labels.npy", names)
    report = run("fit --logistic --x x.npy --y labels.npy --kernel rbf --model m.zarr").stdout
    assert "gradient" in report and "steps" in report and "CONVERGED" in report
    run("predict --model m.zarr --x x.npy --out p.npy")
    assert (read("p.npy") == names).mean() > 0.9
    run("predict --model m.zarr --x x.npy --out p.zarr --proba")
    np.testing.assert_allclose(read("p.zarr"), load("m.zarr").predict_proba(data.X))


def test_info_of_the_machine_says_whether_its_rates_were_measured(tmp_path):
    with dask.config.set({"dkrr.profile-directory": str(tmp_path), "dkrr.local.workers": 3}):
        assert "dkrr's defaults" in run("info").stdout
        save_profile(Profile(machine_fingerprint(), "2026-01-02", Rates(gemm_flops=12.5e9), other_cores_busy=1.5))
        assert "measured 2026-01-02" in run("info").stdout
        description = json.loads(run("info --json").stdout)
    assert description["rates"]["gemm_flops"] == 12.5e9 and description["resources"]["n_workers"] == 3


def test_a_failure_is_status_1(folder):
    np.savez("twice.npz", X=np.ones((4, 2)), y=np.ones(4))
    fit = "fit --x twice.npz::X --y twice.npz::y --alpha 0 --kernel rbf --model m.zarr"
    assert "not positive definite" in run(fit, code=1).output and not Path("m.zarr").exists()


@pytest.mark.parametrize(
    "options",
    [
        "--y d.npz::w --kernel rbf --alpha 1e-9 --solver cg --solver-max-iter 1 --tol 1e-12",
        "--y labels.npy --logistic --kernel rbf --max-iter 1",
    ],
)
def test_a_fit_that_does_not_converge_is_a_failure(folder, options):
    fit = f"fit --x x.npy --model m.zarr --quiet --json {options}"
    with pytest.warns(ConvergenceWarning):
        result = run(fit, code=1)
    report = json.loads(result.stdout)
    assert report["model"] is None and report["status"] == "MAX_ITERATIONS" and not Path("m.zarr").exists()
    assert "--accept-unconverged" in result.stderr
    with pytest.warns(ConvergenceWarning):
        assert json.loads(run(f"{fit} --accept-unconverged").stdout)["model"] == "m.zarr"
    assert Path("m.zarr").exists()


def started(*command, **variables):
    program = [f"{sys.prefix}/bin/{command[0]}", *command[1:]]
    return subprocess.run(program, capture_output=True, text=True, check=True, env=os.environ | variables).stdout


def test_it_is_a_command_of_dask_and_of_its_own_and_prints_the_script_of_completions():
    assert "dkrr plan: 100 rows × 3 columns" in started("dask", "dkrr", "plan", "--n", "100", "--d", "3")
    assert "_DKRR_COMPLETE=bash_complete" in started("dkrr", _DKRR_COMPLETE="bash_source")


def test_shells_complete_commands_options_choices_and_paths():
    def completions(*words, incomplete=""):
        found = BashComplete(dkrr, {}, "dkrr", "_DKRR_COMPLETE").get_completions(list(words), incomplete)
        return {item.value: item.type for item in found}

    assert {"fit", "predict", "status"} <= set(completions())
    assert set(completions("fit", incomplete="--solver")) == {"--solver", "--solver-max-iter"}
    assert set(completions("fit", "--solver")) == {"auto", "cholesky", "cg"}
    for words in (["fit", "--x"], ["fit", "--model"], ["fit", "--store"], ["fit", "--config"], ["verify"]):
        assert completions(*words, incomplete="da") == {"da": "file"}, words
    assert completions("fit", "--memory-limit", incomplete="4") == {}


def test_every_option_is_in_one_group_of_the_help():
    known = [name for names in GROUPS.values() for name in names.split()]
    bare = {name.rpartition(".")[2] for name in OPTIONS}
    hidden = {name.rpartition(".")[2] for name, settings in OPTIONS.items() if settings.get("hidden")}
    assert len(known) == len(set(known)) and {*known} <= {*OPTIONS, *bare}
    assert bare - hidden <= {*known}, f"no group of the help has {bare - hidden - {*known}}: dkrr.cli.options.GROUPS"
    for name, command in dkrr.commands.items():
        shown = re.findall(r"^  (?:-[hk], )?--([a-z0-9-]+)|^([A-Z].*):$", run(f"{name} --help").stdout, re.M)
        options, titles = [option for option, _ in shown if option], [title for _, title in shown if title]
        of_command = [
            next((name for name in parameter.opts if name[:2] == "--"), parameter.opts[0]).removeprefix("--")
            for parameter in command.params
            if parameter.opts != ["path"]
        ]
        assert sorted(options) == sorted({"help", *of_command})
        assert titles == [title for title in (*GROUPS, "Others") if title in titles] and titles[-1] == "Others"


# Selection


def test_a_selection_has_a_table_a_picture_and_a_model(data, folder):
    select = f"{SELECT} --alphas 0.01:10:4 --gamma 0.1,0.4 --cv 3 --shuffle 1 --model m.zarr --out scores.png"
    assert "because" in run(select).stdout and Path("scores.png").stat().st_size > 5000
    found = json.loads(run(f"{select} --overwrite --json").stdout)
    assert len(found["candidates"]) == 8 and set(found["best_params"]) == {"alpha", "kernel", "gamma"}
    expected = KernelRidge(**found["best_params"]).fit(data.X, data.y).predict(data.X)
    np.testing.assert_allclose(load("m.zarr").predict(data.X), expected, rtol=0, atol=1e-8)


def test_a_learning_curve_is_printed_and_drawn(folder):
    select = f"{SELECT} --alphas 0.01,1 --gamma 0.1,0.4 --solver cholesky"
    run(f"{select} --out one.png")
    curve = json.loads(run(f"{select} --train-sizes 0.25,0.5 --out both.png --json").stdout)["learning_curve"]
    widths = [int.from_bytes(Path(name).read_bytes()[16:20], "big") for name in ("one.png", "both.png")]
    assert widths[1] > 1.5 * widths[0]
    assert curve["train_sizes"] == [42, 84, 169] and np.shape(curve["test_scores"]) == (3, 5)


def test_scores_have_a_name_and_a_size(data, folder):
    select = f"{SELECT} --alphas 10,20,30"
    one = json.loads(run(f"{select} --json").stdout)["candidates"][0]
    assert one["rmse"] ** 2 == pytest.approx(-one["mean_test_score"])
    assert one["r2"] == pytest.approx(1 + one["mean_test_score"] / data.y.var(axis=0).mean())
    text = run(f"{select} --scoring neg_mean_absolute_error").stdout
    assert "neg_mean_absolute_error, mean" in text and "RMSE" not in text


@pytest.mark.nightly
def test_a_selection_for_classes(data, folder):
    labels = np.array(["low", "middle", "high"])[np.digitize(data.X[:, 0], [-0.5, 0.5])]
    np.save("labels.npy", labels)
    select = "select --x x.npy --y labels.npy --logistic --cv 3 --shuffle 1 --quiet"
    more = "--alphas 0.01,0.1,1 --kernel linear,rbf --gamma 0.1,0.4 --class-weight balanced --out scores.png"
    found = json.loads(run(f"{select} {more} --model m.zarr --json").stdout)
    assert len(found["candidates"]) == 9 and found["score_name"] == "neg_log_loss"
    assert (found["plan"]["method"], found["plan"]["n_kernels"]) == ("paths", 3)
    assert found["best_params"]["class_weight"] == "balanced" and Path("scores.png").stat().st_size > 5000
    expected = KernelLogisticRegression(**found["best_params"]).fit(data.X, labels).predict_proba(data.X)
    np.testing.assert_allclose(load("m.zarr").predict_proba(data.X), expected, rtol=0, atol=1e-6)
    assert "scores      accuracy" in run(f"{select} --scoring accuracy --one-vs-rest --max-iter 200").stdout


@pytest.mark.parametrize("x", ["data.zarr/x", "t.csv::a,b,c,d,e"])
def test_a_random_sample_chooses_for_the_fit_of_all_rows(data, folder, x, caplog):
    line = f"{SELECT.replace('x.npy', x)} --rows 60 --alphas 0.01,0.1,1 --gamma 0.1,0.4"
    line = line.replace("d.npz::y", "y.npy") + " --solver cholesky"
    chosen = np.sort(np.random.default_rng(7).choice(211, 60, replace=False))
    folds = shuffled_folds(5, 7, is_classification=False)
    sample = KernelRidgeCV([0.01, 0.1, 1.0], gamma=[0.1, 0.4], cv=folds, solver="cholesky")
    sample.fit(data.X[chosen], data.y[chosen, 0])
    found = json.loads(run(f"{line} --shuffle 7 --model m.zarr --json --store s").stdout)
    assert found["sample"] == {"rows": 60, "of": 211, "seed": 7} and found["fit"]["plan"]["problem"]["n_samples"] == 211
    scores = [one["mean_test_score"] for one in found["candidates"]]
    np.testing.assert_allclose(scores, sample.cv_results_["mean_test_score"], rtol=1e-8)
    expected = KernelRidge(**sample.best_params_).fit(data.X, data.y[:, 0]).predict(data.X)
    with caplog.at_level("INFO"):
        text = run(f"{line} --shuffle 7 --model m.zarr --overwrite --uncertainty").stdout
    assert "chosen: {'alpha': " in caplog.text and "the fit of all 211 rows follows" in caplog.text
    assert "chosen by 60 of 211 rows, drawn at random (seed 7)" in text and "dkrr plan: 211 rows" in text
    run(f"predict --model m.zarr --x {x} --out p.npy --interval 0.9")  # by folds of all rows
    np.testing.assert_allclose(np.load("p.npy")[:, 0], expected, rtol=0, atol=1e-8)


def test_a_random_sample_of_labels_has_all_classes(data, folder):
    labels = np.array(["rare", "often"])[(np.arange(211) % 30 > 0).astype(int)]
    pd.DataFrame(dict(zip("abcde", data.X.T, strict=True)) | {"kind": labels}).to_csv("l.csv", index=False)
    line = "select --x l.csv --y kind --logistic --rows 60 --alphas 0.1,1 --cv 2 --model m.zarr --quiet"
    assert json.loads(run(f"{line} --json").stdout)["sample"]["rows"] == 60
    X, y, weights, n = sampled("l.csv", "kind", None, 60, 0, is_classification=True)
    assert (X.n_rows, weights, n) == (60, None, 211) and np.count_nonzero(y.values() == "rare") == 2
    assert json.loads(run("info m.zarr --json").stdout)["n_samples"] == 211
    for rows, said in ((211, "expected fewer"), (0, "expected fewer"), (1, "all classes of y")):
        assert said in run(f"{line.replace('60', str(rows))} --overwrite", code=2).stderr


# Uncertainty


@every_pair(command=["fit --alpha", "select --alphas"], y=["y.npy", "d.npz::y"], out=["p.npy", "p.zarr", "p.csv"])
def test_intervals_of_a_saved_model_are_those_of_the_fitted_one_to_the_last_bit(
    data, folder, monkeypatch, command, y, out
):
    monkeypatch.setattr("dkrr.fitting.prediction_plans.MAX_WRITTEN_ROWS", 40)
    monkeypatch.setattr(
        "dkrr.fitting.gaussian_process.CROSS_BYTES", 8 * 211 * 20
    )  # blocks of 32 rows, and of 16 in them
    monkeypatch.setattr("dkrr.fitting.fitted_function.PREDICTED_ROWS", 16)
    run(f"{command} 0.1 --x x.npy --y {y} --kernel rbf --gamma 0.2 --uncertainty --model m.zarr")
    run(f"predict --model m.zarr --x new.npy --out {out} --std --interval 0.8")
    model = KernelRidge(0.1, kernel="rbf", gamma=0.2, uncertainty=True)
    model.fit(data.X, data.y[:, 0] if y == "y.npy" else data.y)
    cv = 5 if command.startswith("select") else None
    parts = *model.predict(data.X_new, return_std=True), *model.predict_interval(data.X_new, 0.8, cv=cv)
    if out == "p.csv":
        names = ["prediction"] if y == "y.npy" else [f"prediction_{k}" for k in range(3)]
        assert list(pd.read_csv(out)) == [f"{name}{end}" for end in ("", "_std", "_lower", "_upper") for name in names]
    np.testing.assert_array_equal(read(out), np.column_stack(parts))


def test_predictions_are_planned_and_keep_to_a_limit(data, folder):
    run("fit --x x.npy --y y.npy --kernel rbf --gamma 0.2 --uncertainty --model m.zarr --quiet")
    rows = "--model m.zarr --x new.npy --std --interval 0.8"
    assert "standard deviations from a factor, intervals by 10 models" in run(f"plan {rows}").stdout
    planned = json.loads(run(f"plan {rows} --json --memory-limit 8GiB").stdout)
    found = json.loads(run(f"predict {rows} --out p.npy --memory-limit 8GiB --json").stdout)
    assert found["shape"] == [len(data.X_new), 4]
    same = ("method", "n_rows", "block_rows", "limit_bytes", "n_columns", "written_bytes", "reason_codes")
    assert [found["plan"][name] for name in same] == [planned[name] for name in same]
    quiet = run(f"predict {rows} --out p.npy --overwrite --quiet")
    assert quiet.stderr == "" and quiet.stdout == f"[{len(data.X_new)}, 4] predictions in p.npy\n"
    Path("p.npy").write_bytes(b"as it was")
    refused = run(f"predict {rows} --out p.npy --overwrite --memory-limit 1MiB", code=2)
    assert "one row would take" in refused.stderr and Path("p.npy").read_bytes() == b"as it was"
    for options, message in (
        ("--std --x x.npy", "--std or --interval is given without --model"),
        ("--model m.zarr", "--model is given without --x"),
        (f"{rows} --gamma 0.2", "--gamma is given with --model, whose fit is done"),
    ):
        assert message in run(f"plan {options}", code=2).stderr


@pytest.mark.parametrize("command", ["fit", "select"])
def test_a_model_that_cannot_be_saved_is_kept_elsewhere(data, folder, monkeypatch, command):
    kept, out = folder / "kept", folder / "out"
    kept.mkdir()
    out.mkdir()
    estimator = {"fit": KernelRidge, "select": KernelRidgeCV}[command]
    fit = estimator.fit

    def fit_and_delete(*arguments, **named):
        out.rmdir()
        return fit(*arguments, **named)

    monkeypatch.setattr(estimator, "fit", fit_and_delete)
    line = f"{command} --x x.npy --y d.npz::y --model out/m.zarr --uncertainty"
    with dask.config.set({"dkrr.temporary-directory": str(kept)}):
        found = run(line, code=1).output
    (place,) = kept.glob("*/model.zarr")
    assert f"the model was saved at {place} instead" in found and "out does not exist" in found
    assert load(place).predict(data.X_new, return_std=True)[1].shape == (len(data.X_new), 3)
    assert not out.exists()


# Options from a file


ROOT = Path(__file__).parents[2]
JOB = """
x = "x.npy"
y = "d.npz::y"
model = "m.zarr"
kernel = "matern"
kernel-param = ["nu=1.5", "length_scale=0.7"]
alpha = [1, 0.5, 1e-2]
fit-intercept = true
memory-limit = "4GiB"
overwrite = true
quiet = true
"""


def test_options_come_from_a_file_and_first_from_the_command_line(data, folder):
    Path("job.toml").write_text(JOB)
    assert run("fit --config job.toml").stdout.startswith("m.zarr: SOLVED, residual")
    run("fit --alpha 3 --config job.toml --no-fit-intercept --model n.zarr")
    model = KernelRidge([1, 0.5, 1e-2], kernel="matern", kernel_params={"nu": 1.5, "length_scale": 0.7})
    for path, settings in (("m.zarr", {"fit_intercept": True}), ("n.zarr", {"alpha": 3.0, "fit_intercept": False})):
        expected = model.set_params(**settings).fit(data.X, data.y).predict(data.X)
        np.testing.assert_allclose(load(path).predict(data.X), expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize(
    ("line", "job", "said"),
    [
        (
            "select --x x.npy --y y.npy",
            'alpha = [0.1, 1]\nkernel = ["rbf", "laplacian"]\ngamma = [0.1, "0.2,0.3"]\njson = true',
            '(?s)("mean_test_score".*){12}',
        ),
        ("plan", 'n = 1000\nd = 3\nkernel = "rbf"\nworker-memory = "2GiB"\nworkers = 7', "7 Dask workers"),
        ("predict", 'model = "m.zarr"\nx = "x.npy"\nout = "p.npy"', r"\[211\] predictions in p.npy"),
    ],
)
def test_every_command_with_many_options_takes_a_file(folder, line, job, said):
    run("fit --x x.npy --y y.npy --model m.zarr")
    Path("job.toml").write_text(job)
    assert re.search(said, run(f"{line} --config job.toml").stdout)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("alhpa = 0.1", "job.toml: 'alhpa' is not an option of dkrr fit; .* without dashes before them: alpha"),
        ("no-fit-intercept = true", "before them: fit-intercept"),
        ("[fit]\nalpha = 1", "'fit' is not an option"),
        ("alpha = '0.1;1'", "alpha is '0.1;1'; expected numbers with commas between"),
        ("alpha = [1, true]", "alpha is True; expected text, or a number"),
        ("gamma = [0.1]", r"gamma is \[0.1\]; expected a number"),
        ("tile = 64.0", "tile is 64.0; expected a whole number"),
        ("quiet = 1", "quiet is 1; expected true or false"),
        ("form = 'dul'", "form is 'dul'; expected one of 'auto', 'primal', 'dual'"),
        ("store = 2026-01-02", "store is datetime.date.*; expected text"),
        ("a" + "[" * 3000, "--config is 'job.toml', which is not TOML.*; expected lines such as"),
        ("x: x.npy", "which is not TOML: .*line 1"),
        ("\xff\xfe", "is not TOML"),
    ],
)
def test_what_is_wrong_in_a_file_is_said_in_one_line(folder, line, message):
    Path("job.toml").write_bytes(line.encode("latin-1"))
    stderr = run("fit --x x.npy --y y.npy --model m.zarr --config job.toml", code=2).stderr
    assert stderr.count("\n") == 1 and stderr.startswith("dkrr: ")
    assert re.search(message, stderr) and not Path("m.zarr").exists(), stderr


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("pipe", "--config: job.toml is a pipe, a socket or a device; expected a file"),
        ("/dev/zero", "--config: job.toml is a pipe, a socket or a device"),
        ("folder", "--config is 'job.toml', a folder; expected a TOML file"),
        ("large", "--config is 'job.toml', a file of more than 32 KiB; expected one of options only"),
        ("nothing", "--config: the path job.toml does not exist"),
    ],
)
def test_options_are_read_of_small_files_only(folder, kind, message):
    file = Path("job.toml")
    if kind == "large":
        with file.open("wb") as stream:
            stream.truncate(2**40)  # a hole in the file, of no bytes
    make = {"pipe": os.mkfifo, "folder": os.mkdir, "/dev/zero": lambda path: path.symlink_to(kind)}
    make.get(kind, str)(file)
    assert run("fit --x x.npy --y y.npy --model m.zarr --config job.toml", code=2).stderr.startswith(f"dkrr: {message}")


@pytest.mark.parametrize("command", ["fit", "select", "predict", "plan"])
def test_a_file_without_config_names_the_option(command):
    stderr = run(f"{command} job.toml", code=2).stderr
    assert stderr.startswith(f"dkrr: dkrr {command} is given 'job.toml'") and "--config job.toml" in stderr
    assert "Usage: " in run(f"{command} job.toml --help").stdout


@pytest.mark.nightly
def test_the_command_of_the_snakefile_fits(folder, data):
    rule = (ROOT / "examples" / "Snakefile").read_text().split("shell:")[1]
    command = "".join(re.findall(r'^ +"(.*)"$', rule, re.M)).format(
        input=SimpleNamespace(x="x.npy", y="y.npy", options="fit.toml"),
        wildcards=SimpleNamespace(kernel="rbf", gamma=0.1, alpha=0.01),
        output="m.zarr",
        log="log",
    )
    Path("fit.toml").write_text("quiet = true")
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    subprocess.run(["bash", "-c", command], check=True, env=os.environ | {"PATH": path})
    assert "m.zarr: SOLVED" in Path("log").read_text() and not Path("m.zarr.run").exists()
    expected = KernelRidge(kernel="rbf", gamma=0.1, alpha=0.01).fit(data.X, data.y[:, 0]).predict(data.X)
    np.testing.assert_allclose(load("m.zarr").predict(data.X), expected, rtol=0, atol=1e-8)


@pytest.mark.nightly
def test_the_example_of_many_models_continues(tmp_path):
    script = [sys.executable, str(ROOT / "examples" / "large" / "many_models.py"), str(tmp_path)]
    first = subprocess.run(script, capture_output=True, text=True, check=True).stdout.splitlines()
    models = sorted(path.name for path in tmp_path.iterdir())
    assert len(first) == len(models) == 6 and all("residual" in line for line in first)
    assert load(tmp_path / models[0]).n_features_in_ == 4
    (tmp_path / models[2]).rename(tmp_path.with_name("gone"))
    second = subprocess.run(script, capture_output=True, text=True, check=True).stdout.splitlines()
    assert len(second) == 1 and models[2] in second[0]
    assert sorted(path.name for path in tmp_path.iterdir()) == models
