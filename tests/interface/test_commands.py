"""The command line as a person or a program meets it."""

import json
import re
import subprocess
import sys

import dask
import numpy as np
import pyarrow as pa
import pytest
import zarr
from click.testing import CliRunner
from pyarrow import csv, parquet

from dkrr import KernelLogisticRegression, KernelRidge, load, save
from dkrr.cli import dkrr
from dkrr.errors import ConvergenceWarning
from dkrr.fitting import fit
from dkrr.machine import Profile
from dkrr.machine.profile import machine_fingerprint, save_profile
from dkrr.planning import KernelRate, Rates
from dkrr.selection import select as selected


@pytest.fixture
def files(data, tmp_path):
    zarr.save_array(str(tmp_path / "data.zarr" / "x"), data.X)
    np.save(tmp_path / "x.npy", data.X)
    np.savez(tmp_path / "d.npz", X=data.X, y=data.y, w=data.weights)
    return tmp_path


def run(*arguments, code=0):
    result = CliRunner().invoke(dkrr, [str(a) for a in arguments])
    assert result.exit_code == code, result.output + repr(result.exception)
    return result


@pytest.mark.parametrize("x", ["data.zarr/x", "x.npy", "d.npz::X"])
@pytest.mark.parametrize("out", ["p.npy", "p.zarr"])
def test_fit_predict_info(data, files, x, out):
    model = files / "m.zarr"
    fit = ["--x", files / x, "--y", f"{files}/d.npz::y", "--sample-weight", f"{files}/d.npz::w"]
    settings = ["--kernel", "rbf", "--gamma", "0.2", "--alpha", "0.1", "--fit-intercept"]
    result = json.loads(run("fit", *fit, *settings, "--model", model, "--json").stdout)
    assert result["status"] == "SOLVED" and result["residual"] < 1e-10 and result["plan"]["form"] == "dual"
    assert 1 < result["condition"] < 1e6
    run("predict", "--model", model, "--x", files / x, "--out", files / out)
    predictions = np.load(files / out) if out.endswith("npy") else zarr.open_array(str(files / out), mode="r")[...]
    expected = KernelRidge(alpha=0.1, kernel="rbf", gamma=0.2, fit_intercept=True)
    expected.fit(data.X, data.y, sample_weight=data.weights)
    assert np.allclose(predictions, expected.predict(data.X), rtol=0, atol=1e-10)
    assert "rbf" in run("info", model).stdout
    assert json.loads(run("info", model, "--json").stdout)["kernel"] == {"kernel": "rbf", "gamma": 0.2}


def test_one_alpha_for_each_target_and_a_store(files):
    fit = ["--x", files / "x.npy", "--y", f"{files}/d.npz::y", "--alpha", 1, "--alpha", 2, "--alpha", 3]
    result = run(
        "fit", *fit, "--store", files / "run.zarr", "--tile", 64, "--form", "dual", "--model", files / "m.zarr"
    )
    assert "3 values of alpha" in result.stdout and (files / "run.zarr" / "system-2").is_dir(), result.stdout
    assert "factorisation" in result.stderr, result.stderr
    assert re.search(r"- factorisation: [\d.]+ m?s \(planned [\d.]+ [mµ]?s\)\n", result.stdout), result.stdout


@pytest.mark.parametrize("kind", ["U", "O", "i"])
def test_classes_and_probabilities(data, files, tmp_path, kind):
    labels = np.where(data.X[:, 0] > 0, 1, 0)
    names = labels if kind == "i" else np.array(["low", "high"])[labels].astype(object if kind == "O" else str)
    model = tmp_path / "classes.zarr"
    if kind == "O":  # a file of objects would be a pickle
        save(KernelLogisticRegression(kernel="rbf").fit(data.X, names), model)
    else:
        np.save(tmp_path / "labels.npy", names)
        arguments = ["--x", files / "x.npy", "--y", tmp_path / "labels.npy", "--kernel", "rbf", "--model", model]
        report = run("fit", "--logistic", *arguments).stdout
        assert "gradient" in report and "steps" in report and "CONVERGED" in report
    assert ("low" in run("info", model).output) == (kind != "i")
    run("predict", "--model", model, "--x", files / "x.npy", "--out", tmp_path / "out.npy")
    assert (np.load(tmp_path / "out.npy") == names).mean() > 0.9
    run("predict", "--model", model, "--x", files / "x.npy", "--out", tmp_path / "p.zarr", "--proba")
    probabilities = zarr.open_array(str(tmp_path / "p.zarr"))[...]
    assert probabilities.shape == (len(labels), 2) and np.allclose(probabilities.sum(axis=1), 1)


def test_plan_without_data_and_with_it(files):
    text = run("plan", "--n", 200_000, "--d", 50, "--kernel", "rbf", "--memory-limit", "8GiB", "--workers", 2).stdout
    assert "dual" in text and "because" in text and "rejected" in text
    plan = json.loads(run("plan", "--x", files / "x.npy", "--y", f"{files}/d.npz::y", "--json").stdout)
    assert plan["problem"]["n"] == 211 and plan["problem"]["n_targets"] == 3


def test_info_of_the_machine_says_whether_its_rates_were_measured(tmp_path):
    with dask.config.set({"dkrr.profile-directory": str(tmp_path), "dkrr.local.workers": 3}):
        text = run("info").stdout
        assert "dkrr's defaults" in text and "dkrr calibrate" in text and "3 × 1 threads" in text
        kernels = tuple(KernelRate("RBF", 16, precision, 3e-9) for precision in ("float64", "float32"))
        measured = Rates(gemm_flops=12.5e9, kernels=kernels)
        save_profile(Profile(machine_fingerprint(), "2026-01-02", measured, other_cores_busy=1.5))
        text = run("info").stdout
        assert "measured 2026-01-02" in text and "gemm 12.5" in text and "1.5 cores busy" in text
        assert "RBF" in text and "3 / 3" in text
        description = json.loads(run("info", "--json").stdout)
    assert description["rates"]["gemm_flops"] == 12.5e9 and description["resources"]["n_workers"] == 3


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["plan", "--n", "10"], "--n and --d"),
        (["plan", "--n", "10000", "--d", "5", "--kernel", "rbf", "--memory-limit", "1MiB"], "smallest memory_limit"),
        (["fit", "--x", "no.npy", "--y", "no.npy", "--model", "{}/m.zarr"], "no.npy does not exist"),
        (["fit", "--x", "{}/x.npy", "--y", "{}/d.npz::z", "--model", "{}/m.zarr"], "no array 'z'"),
        (["fit", "--x", "{}/x.npy", "--y", "{}/d.npz::y", "--model", "{}/x.npy"], "the same place as --x"),
        (
            ["fit", "--x", "{}/x.npy", "--y", "{}/d.npz::y", "--model", "{}/m.zarr", "--alpha", "-1"],
            "expected finite numbers >= 0",
        ),
        (["fit", "--x", "{}/x.npy"], "Missing option"),
        (
            ["fit", "--x", "{}/x.npy", "--y", "{}/d.npz::w", "--model", "{}/m", "--logistic"],
            "does not hold class labels",
        ),
        (["fit", "--x", "{}/x.npy", "--y", "{}/d.npz::y", "--model", "{}/m", "--max-iter", "3"], "give --logistic"),
        (["plan", "--n", "100", "--d", "3", "--multi-class", "ovr"], "give --logistic"),
        (["plan", "--n", "100", "--d", "3", "--logistic", "--n-classes", "1"], "at least 2"),
        (["plan", "--x", "{}/x.npy", "--y", "{}/d.npz::w", "--logistic"], "continuous"),
        (["info", "{}/nothing.zarr"], "does not exist"),
        (["info", "{}/x.npy"], "not a Zarr group"),
        (["predict", "--model", "{}/nothing.zarr", "--x", "{}/x.npy", "--out", "{}/p.npy"], "does not exist"),
        (["predict", "--model", "{}/m.zarr", "--x", "{}/x.npy", "--out", "{}/x.npy"], "the same place as --x"),
        (["predict", "--model", "{}/m.zarr", "--x", "{}/x.npy", "--out", "{}/data.zarr", "--overwrite"], "is not an"),
        (["calibrate", "--folder", "{}/nowhere"], "expected an existing folder"),
        (
            ["fit", "--x", "{}/x.npy", "--y", "{}/d.npz::y", "--model", "{}/m", "--scheduler", "nowhere://127.0.0.1"],
            "no Dask",
        ),
    ],
)
def test_bad_input_is_one_readable_line_and_status_2(files, arguments, message):
    result = run(*[a.format(files) for a in arguments], code=2)
    assert message in result.output and "Traceback" not in result.output


def test_failure_is_status_1(files):
    np.savez(files / "twice.npz", X=np.ones((4, 2)), y=np.ones(4))
    fit = ["--x", f"{files}/twice.npz::X", "--y", f"{files}/twice.npz::y", "--alpha", 0, "--kernel", "rbf"]
    result = run("fit", *fit, "--model", files / "m.zarr", code=1)
    assert "not positive definite" in result.output and not (files / "m.zarr").exists()


def test_overwrite(data, files):
    fit = ["fit", "--x", files / "x.npy", "--y", f"{files}/d.npz::y", "--model", files / "m.zarr", "--quiet"]
    predict = ["predict", "--model", files / "m.zarr", "--x", files / "x.npy", "--out"]
    found = []
    for alpha in (1, 1e6):
        run(*fit, "--alpha", alpha, "--overwrite")
        for out in ("p.npy", "p.zarr"):
            run(*predict, files / out, "--overwrite")
        found.append(np.load(files / "p.npy"))
        assert np.array_equal(zarr.open_array(str(files / "p.zarr"))[...], found[-1])
    assert not np.allclose(found[0], found[1])
    assert (
        "exists already" in run(*fit, code=2).output and "exists already" in run(*predict, files / out, code=2).output
    )


def test_a_fit_that_does_not_converge_is_a_failure(files):
    cg = ["--kernel", "rbf", "--alpha", 1e-9, "--solver", "cg", "--solver-max-iter", 1, "--tol", 1e-12]
    for kind in (cg, ["--logistic", "--kernel", "rbf", "--max-iter", 1]):
        model = files / f"{len(kind)}.zarr"
        y = "data.zarr/labels" if "--logistic" in kind else "d.npz::w"
        zarr.save_array(str(files / "data.zarr" / "labels"), (np.arange(211) % 2), overwrite=True)
        fit = ["fit", "--x", files / "x.npy", "--y", f"{files}/{y}", *kind, "--model", model, "--quiet"]
        with pytest.warns(ConvergenceWarning):
            result = run(*fit, "--json", code=1)
        report = json.loads(result.stdout)
        assert report["model"] is None and report["status"] == "MAX_ITERATIONS" and not model.exists()
        assert "--accept-unconverged" in result.stderr
        with pytest.warns(ConvergenceWarning):
            assert json.loads(run(*fit, "--json", "--accept-unconverged").stdout)["model"] == str(model)
        assert model.exists()


@pytest.mark.parametrize("out", ["p.npy", "p.zarr"])
@pytest.mark.parametrize("there", [False, True])
def test_a_prediction_that_fails_leaves_nothing(data, files, out, there):
    save(KernelRidge(kernel="rbf").fit(data.X, data.y), files / "m.zarr")
    predict = ["predict", "--model", files / "m.zarr", "--out", files / out, "--x"]
    if there:
        run(*predict, files / "x.npy")
    X = data.X.copy()
    X[-1, 2] = np.nan
    np.save(files / "bad.npy", X)
    before = sorted(p.name for p in files.iterdir())
    message = run(*predict, files / "bad.npy", "--overwrite", code=2).output
    assert "row 210, column 2" in message and sorted(p.name for p in files.iterdir()) == before
    if there:
        read = np.load if out == "p.npy" else lambda path: zarr.open_array(str(path))[...]
        assert read(files / out).any()


def test_is_a_command_of_its_own_and_of_dask():
    for command in (["dkrr"], ["dask", "dkrr"]):
        program = [f"{sys.prefix}/bin/{command[0]}", *command[1:], "plan", "--n", "100", "--d", "3"]
        done = subprocess.run(program, capture_output=True, text=True, check=True)
        assert "dkrr plan: 100 rows × 3 columns" in done.stdout


class TestSelect:
    def test_table_picture_and_model(self, data, files):
        arguments = ["--x", files / "x.npy", "--y", f"{files}/d.npz::y", "--alphas", "0.01:10:4", "--gamma", "0.1,0.4"]
        model, picture = files / "m.zarr", files / "scores.png"
        more = ["--cv", 3, "--shuffle", 1, "--model", model, "--out", picture, "--quiet"]
        text = run("select", *arguments, *more).stdout
        assert text.count("  best\n") == 1 and "because" in text and picture.stat().st_size > 5000
        found = json.loads(run("select", *arguments, *more, "--overwrite", "--json").stdout)
        assert len(found["candidates"]) == 8 and set(found["best_params"]) == {"alpha", "kernel", "gamma"}
        best = max(found["candidates"], key=lambda row: row["mean_test_score"])
        assert best["alpha"] == found["best_params"]["alpha"] and found["best_score"] == best["mean_test_score"]
        run("predict", "--model", model, "--x", files / "x.npy", "--out", files / "p.npy")
        expected = KernelRidge(**found["best_params"]).fit(data.X, data.y).predict(data.X)
        assert np.allclose(np.load(files / "p.npy"), expected, rtol=0, atol=1e-8)

    def test_learning_curve(self, files):
        arguments = ["--x", files / "x.npy", "--y", f"{files}/d.npz::y", "--alphas", "0.01,1", "--gamma", "0.1,0.4"]
        more = ["--train-sizes", "0.25,0.5", "--quiet", "--solver", "cholesky"]
        one, both = files / "one.png", files / "both.png"
        text = run("select", *arguments, *more, "--out", both).stdout
        run("select", *arguments, "--quiet", "--out", one)
        assert "more rows   from 84 to 169 the score went" in text and "(95 %) for each doubling" in text
        widths = [int.from_bytes(picture.read_bytes()[16:20], "big") for picture in (one, both)]
        assert widths[1] > 1.5 * widths[0]
        curve = json.loads(run("select", *arguments, *more, "--json").stdout)["learning_curve"]
        assert curve["train_sizes"] == [42, 84, 169] and np.shape(curve["test_scores"]) == (3, 5)
        alone = json.loads(run("select", *arguments, *more, "--cv", 2, "--train-sizes", "20,50", "--json").stdout)
        assert alone["learning_curve"]["train_sizes"][:2] == [20, 50]

    def test_scores_have_a_name_and_a_size(self, data, files):
        arguments = ["--x", files / "x.npy", "--y", f"{files}/d.npz::y", "--alphas", "10,20,30", "--quiet"]
        text = run("select", *arguments).stdout
        assert "neg_mean_squared_error, mean of the folds" in text and "RMSE       R²" in text
        assert "advice      the best alpha is the smallest of the candidates, 10" in text
        found = json.loads(run("select", *arguments, "--json").stdout)
        one = found["candidates"][0]
        assert one["rmse"] ** 2 == pytest.approx(-one["mean_test_score"])
        assert one["r2"] == pytest.approx(1 + one["mean_test_score"] / data.y.var(axis=0).mean())
        assert found["score_name"] == "neg_mean_squared_error" and len(found["advice"]) == 1
        text = run("select", *arguments, "--scoring", "neg_mean_absolute_error").stdout
        assert "neg_mean_absolute_error, mean" in text and "RMSE" not in text

    def test_progress_is_one_line(self, files):
        arguments = ["--x", files / "x.npy", "--y", f"{files}/d.npz::y", "--gamma", "0.1,0.4,0.9", "--cv", "loo"]
        lines = run("select", *arguments, "--model", files / "m.zarr").stderr.splitlines()
        assert [line for line in lines if "done in" in line] == [line for line in lines if "search: done in" in line]
        assert sum("done in" in line for line in lines) == 1

    def test_classes(self, data, files):
        labels = np.array(["low", "middle", "high"])[np.digitize(data.X[:, 0], [-0.5, 0.5])]
        np.save(files / "labels.npy", labels)
        model, picture = files / "m.zarr", files / "scores.png"
        arguments = ["--x", files / "x.npy", "--y", files / "labels.npy", "--logistic", "--cv", 3, "--shuffle", 1]
        more = ["--alphas", "0.01,0.1,1", "--kernel", "linear,rbf", "--gamma", "0.1,0.4", "--class-weight", "balanced"]
        text = run("select", *arguments, *more, "--model", model, "--out", picture, "--quiet").stdout
        assert "neg_log_loss" in text and text.count("  best") == 1 and picture.stat().st_size > 5000
        found = json.loads(run("select", *arguments, *more, "--json", "--quiet").stdout)
        assert len(found["candidates"]) == 9 and found["plan"] is None
        expected = KernelLogisticRegression(**found["best_params"]).fit(data.X, labels)
        assert found["best_params"]["class_weight"] == "balanced"
        assert np.allclose(load(model).predict_proba(data.X), expected.predict_proba(data.X), rtol=0, atol=1e-6)
        accuracy = ["--scoring", "accuracy", "--multi-class", "ovr", "--max-iter", 200]
        assert "scores      accuracy" in run("select", *arguments, *accuracy, "--quiet").stdout
        for change in (["--store", files / "runs"], ["--alpha-per-target"]):
            assert f"{change[0]} is given with --logistic" in run("select", *arguments, *change, code=2).stderr
        for change in (["--class-weight", "balanced"], ["--max-iter", 5], ["--multi-class", "ovr"]):
            result = run("select", "--x", files / "x.npy", "--y", f"{files}/d.npz::y", *change, code=2)
            assert f"{change[0]} is given without --logistic; give --logistic with it" in result.stderr

    def test_without_a_model(self, files):
        text = run("select", "--x", files / "x.npy", "--y", f"{files}/d.npz::y", "--cv", "loo", "--quiet").stdout
        assert "not saved" in text and "leave-one-out" in text

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            (["--alphas", "a,b"], "--alphas is 'a,b'; expected numbers with commas"),
            (["--gamma", "1:0.1:3"], "--gamma is '1:0.1:3'; expected"),
            (["--cv", "many"], "--cv is 'many'; expected a whole number"),
            (["--cv", "1"], "cv is 1; expected"),
            (["--scoring", "best"], "scoring is 'best'; expected"),
            (["--train-sizes", "half"], "--train-sizes is 'half'; expected fractions such as"),
            (["--train-sizes", "0.5", "--cv", "loo"], "train_sizes is given, and cv is leave-one-out"),
        ],
    )
    def test_bad_input(self, files, change, message):
        result = run("select", "--x", files / "x.npy", "--y", f"{files}/d.npz::y", *change, code=2)
        assert message in result.stderr

    def test_plan(self):
        options = ["--n", 50000, "--d", 16, "--kernel", "rbf", "--cv", 5, "--alphas", 10, "--memory-limit", "64GiB"]
        text = run("plan", *options).stdout
        assert "5 folds" in text and "10 λ" in text
        text = run("plan", *options, "--train-sizes", "0.25,0.5").stdout
        assert "5 folds × 10 λ" in text and "a fit for each of 2 parts" in text
        result = run("plan", "--n", 5000, "--d", 16, "--cv", "few", code=2)
        assert "--cv is 'few'" in result.stderr


class TestKernelParameters:
    FIT = ("fit", "--alpha", 0.1, "--json")

    def test_those_without_an_option(self, data, files):
        where = ["--x", files / "x.npy", "--y", f"{files}/d.npz::y", "--model", files / "m.zarr", "--kernel", "matern"]
        run(*self.FIT, *where, "--kernel-param", "nu=0.5", "--kernel-param", "length_scale=0.7")
        expected = KernelRidge(alpha=0.1, kernel="matern", kernel_params={"nu": 0.5, "length_scale": 0.7})
        found = load(files / "m.zarr").predict(data.X)
        assert np.allclose(found, expected.fit(data.X, data.y).predict(data.X), rtol=0, atol=1e-10)
        plan = ["--n", 100, "--d", 3, "--kernel", "matern"]
        assert "nu=0.5" in run("plan", *plan, "--kernel-param", "nu=0.5").stdout

    @pytest.mark.parametrize(
        ("options", "words"),
        [
            (["--kernel-param", "nu"], "--kernel-param is 'nu'; expected NAME=VALUE"),
            (["--kernel-param", "nu=1.5", "--kernel-param", "nu=2.5"], "given twice"),
            (["--kernel-param", "mu=1"], "has no parameter mu; expected 'nu', 'length_scale'"),
            (["--kernel-param", "nu=a"], "nu"),
            (["--gamma", 1], "--kernel-param length_scale="),
        ],
    )
    def test_faults(self, options, words):
        assert words in run("plan", "--n", 100, "--d", 3, "--kernel", "matern", *options, code=2).stderr


def test_a_quiet_fit_is_one_line_and_info_knows_the_rows(data, files):
    where = ["--x", files / "x.npy", "--y", f"{files}/d.npz::y", "--model", files / "m.zarr"]
    (line,) = run("fit", *where, "--quiet").stdout.splitlines()
    assert re.fullmatch(r".*m\.zarr: SOLVED, residual [\d.e-]+, [\d.]+ m?s", line)
    assert "rows        211 to learn from" in run("info", files / "m.zarr").stdout


class TestUncertainty:
    """Standard deviations and intervals of a saved model are those of the fitted one, to the last bit."""

    @pytest.mark.parametrize("command", ["fit", "select"])
    @pytest.mark.parametrize("targets", ["one", "all"])
    @pytest.mark.parametrize("out", ["p.npy", "p.zarr", "p.csv"])
    def test_predict(self, data, files, monkeypatch, command, targets, out):
        monkeypatch.setattr("dkrr.predictions_out.MAX_BLOCK_ROWS", 40)
        monkeypatch.setattr("dkrr.posterior.base.CROSS_BYTES", 8 * 211 * 20)  # blocks of 32 rows, and of 16 in them
        monkeypatch.setattr("dkrr.prediction.BLOCK_ROWS", 16)
        y = data.y[:, 0] if targets == "one" else data.y
        np.save(files / "y.npy", y)
        np.save(files / "new.npy", data.X_new)
        of_command = {"fit": ("--alpha", 0.1), "select": ("--alphas", "0.1")}[command]
        arguments = ("--kernel", "rbf", "--gamma", 0.2, *of_command, "--uncertainty")
        run(command, "--x", files / "x.npy", "--y", files / "y.npy", "--model", files / "m.zarr", *arguments)
        ways = ("--std", "--interval", 0.8)
        run("predict", "--model", files / "m.zarr", "--x", files / "new.npy", "--out", files / out, *ways)
        model = KernelRidge(0.1, kernel="rbf", gamma=0.2).fit(data.X, y)
        cv = 5 if command == "select" else None
        parts = *model.predict(data.X_new, return_std=True), *model.predict_interval(data.X_new, 0.8, cv=cv)
        expected = np.column_stack(parts)
        if out == "p.csv":
            table = csv.read_csv(files / out)
            names = ["prediction"] if targets == "one" else [f"prediction_{k}" for k in range(3)]
            assert table.column_names == [f"{name}{end}" for end in ("", "_std", "_lower", "_upper") for name in names]
            found = np.column_stack([column.to_numpy() for column in table.columns])
        else:
            found = np.load(files / out) if out == "p.npy" else zarr.open_array(str(files / out))[:]
        assert np.array_equal(found, expected), (found != expected).sum(axis=0)

    def test_without_it_the_remedy_is_named(self, data, files):
        np.save(files / "y.npy", data.y)
        save(KernelRidge(kernel="rbf").fit(data.X, data.y), files / "m.zarr")
        asked = ("predict", "--model", files / "m.zarr", "--x", files / "x.npy", "--out", files / "p.npy")
        for option in (("--std",), ("--interval", 0.9)):
            assert "--uncertainty" in run(*asked, *option, code=2).output
        assert "between 0 and 1" in run(*asked, "--interval", 90, code=2).output
        fit = ("fit", "--x", files / "x.npy", "--y", files / "y.npy", "--model", files / "n.zarr", "--uncertainty")
        assert "--logistic" in run(*fit, "--logistic", code=2).output
        assert "--model" in run("select", *fit[1:5], "--uncertainty", code=2).output
        save(KernelLogisticRegression().fit(data.X, data.y[:, 0] > 0), files / "c.zarr")
        asked = ("predict", "--model", files / "c.zarr", "--x", files / "x.npy", "--out", files / "p.npy")
        assert "expected a regression" in run(*asked, "--std", code=2).output
        assert not (files / "p.npy").exists() and not (files / "n.zarr").exists()


class TestFailuresAfterTheWork:
    """What would fail when the model is saved is found before the fit; what fails then does not lose the model."""

    @pytest.fixture
    def command(self, data, files, monkeypatch):
        """Command `fit` whose work is a failure of the test."""
        np.save(files / "y.npy", data.y)
        monkeypatch.chdir(files)
        monkeypatch.setattr("dkrr.estimators.kernel_ridge.fit", self.never)
        monkeypatch.setattr("dkrr.estimators.kernel_ridge_cv.select", self.never)
        return "--x", "x.npy", "--y", "y.npy"

    @staticmethod
    def never(*_, **__):
        raise AssertionError("work has begun")

    @pytest.mark.parametrize("name", ["fit", "select"])
    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (("--model", "no/m.zarr"), "--model is 'no/m.zarr', and the folder .*/no does not exist"),
            (("--model", "x.npy/m.zarr"), "the folder .*/x.npy does not exist"),
            (("--model", "/proc/m.zarr"), "--model: cannot write /proc/m.zarr"),
            (
                ("--model", "m.zarr", "--store", "no/run.zarr"),
                "--store is 'no/run.zarr', and the folder .*/no does not",
            ),
            (("--model", "m.zarr", "--store", "/proc/run.zarr"), "--store: cannot write /proc/run.zarr"),
        ],
    )
    def test_paths(self, files, command, name, arguments, message):
        before = sorted(files.rglob("*"))
        found = run(name, *command, *arguments, code=2).output
        assert re.search(message, found) and found.count("\n") == 1
        assert sorted(files.rglob("*")) == before

    @pytest.mark.parametrize("kind", ["date32", "timestamp", "decimal", "binary"])
    def test_values_that_a_model_cannot_hold(self, files, command, kind):
        of = {
            "date32": pa.date32(),
            "timestamp": pa.timestamp("us"),
            "decimal": pa.decimal128(20),
            "binary": pa.binary(),
        }
        values = (
            pa.array([b"1"] * 9)
            if kind == "binary"
            else pa.array([1] * 9, pa.int32() if kind == "date32" else pa.int64()).cast(of[kind])
        )
        parquet.write_table(pa.table({"a": np.arange(9.0), "t": values, "y": np.arange(9.0)}), files / "t.parquet")
        found = run("fit", "--x", "t.parquet", "--y", "y", "--one-hot", "t", "--model", "m.zarr", code=2).output
        assert re.search("column 't' of .*cannot hold; expected numbers, text or categories", found) and command
        assert not (files / "m.zarr").exists()

    @pytest.mark.parametrize("name", ["fit", "select"])
    @pytest.mark.parametrize("uncertainty", [(), ("--uncertainty",)], ids=["plain", "uncertainty"])
    def test_a_model_that_cannot_be_saved_is_kept(self, data, files, monkeypatch, name, uncertainty):
        np.save(files / "y.npy", data.y)
        (files / "out").mkdir()
        (files / "kept").mkdir()
        begin = {"fit": fit, "select": selected}[name]

        def and_delete(*arguments):
            (files / "out").rmdir()
            return begin(*arguments)

        where = {"fit": "dkrr.estimators.kernel_ridge.fit", "select": "dkrr.estimators.kernel_ridge_cv.select"}[name]
        monkeypatch.setattr(where, and_delete)
        asked = ("--x", files / "x.npy", "--y", files / "y.npy", "--model", files / "out" / "m.zarr")
        with dask.config.set({"dkrr.temporary-directory": str(files / "kept")}):
            found = run(name, *asked, *uncertainty, code=1).output
        (place,) = (files / "kept").glob("*/model.zarr")
        assert f"the model was saved at {place} instead" in found and "out does not exist" in found
        kept = load(place)
        assert kept.predict(data.X_new).shape == (len(data.X_new), 3)
        if uncertainty:
            assert kept.predict(data.X_new, return_std=True)[1].shape == (len(data.X_new), 3)
        assert not (files / "out").exists()
