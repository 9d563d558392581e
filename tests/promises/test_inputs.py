"""Every container at every entry point, and the table of them in the documentation."""

from pathlib import Path

import dask.array as da
import numpy as np
import pytest
from click.testing import CliRunner
from numpy.testing import assert_allclose

import dkrr
from dkrr import KernelRidge
from dkrr.cli import dkrr as command
from dkrr.errors import InputError
from tests.inputs import INPUTS, TABLE, markdown

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "data.md"
SETTINGS = {"kernel": "rbf", "gamma": 0.5}
N, X = 23, np.random.default_rng(0).normal(size=(23, 3))
Y = np.sin(X[:, 0]) + X[:, 2]


@pytest.fixture(scope="module")
def known():
    return KernelRidge(0.1, **SETTINGS).fit(X, Y)


@pytest.mark.parametrize("given", INPUTS, ids=lambda given: given.name)
@pytest.mark.filterwarnings("ignore:X has feature names")  # of pandas, with a model that has none, as in scikit-learn
def test_plans_fits_predictions_and_gram_matrices_are_those_of_the_array(given, known, tmp_path):
    rows = given.make(X, tmp_path)
    problem = dkrr.plan(rows, Y, **SETTINGS).problem
    assert (problem.n, problem.d, problem.n_targets, problem.x_in_memory) == (N, 3, 1, given.in_memory)
    model = KernelRidge(0.1, **SETTINGS).fit(rows, Y)
    assert_allclose(model.dual_coef_, known.dual_coef_, rtol=0, atol=1e-10)
    assert model.n_features_in_ == 3 and model.plan_.problem.x_in_memory == given.in_memory
    predictions = known.predict(rows)
    assert isinstance(predictions, da.Array if given.is_lazy else np.ndarray) and predictions.shape == (N,)
    assert_allclose(predictions, known.predict(X), rtol=0, atol=1e-12)
    for K in (dkrr.gram(rows, **SETTINGS, chunks=9), dkrr.gram(X, rows, **SETTINGS)):
        assert_allclose(K, dkrr.gram(X, **SETTINGS), rtol=0, atol=1e-14)


@pytest.mark.parametrize("given", [g for g in INPUTS if g.is_target], ids=lambda given: given.name)
def test_targets_are_taken_in_it(given, known, tmp_path):
    model = KernelRidge(0.1, **SETTINGS).fit(X, given.make(Y, tmp_path))
    assert_allclose(np.ravel(model.dual_coef_), known.dual_coef_, rtol=0, atol=1e-10)


@pytest.mark.parametrize("given", [g for g in INPUTS if g.name != "CSV"], ids=lambda given: given.name)
@pytest.mark.filterwarnings("ignore:X has feature names")
def test_whole_numbers_that_float64_would_round_are_refused_with_their_row_and_column(given, known, tmp_path):
    whole = np.zeros((N, 3), np.int64)
    whole[7, 1] = 2**53 + 1  # one that float64 has as 2**53
    rows = given.make(whole, tmp_path)
    for use in (lambda: KernelRidge().fit(rows, Y), lambda: np.asarray(known.predict(rows))):
        with pytest.raises(InputError, match=r"X has the whole number 9007199254740993 in column (1|'x1'), row 7 "):
            use()
    if given.is_target:
        (tmp_path / "y").mkdir()
        targets = given.make(whole[:, 1], tmp_path / "y")
        with pytest.raises(InputError, match="y has the whole number 9007199254740993 in (column 'y', )?row 7 "):
            KernelRidge().fit(X, targets)


@pytest.mark.parametrize("given", [g for g in INPUTS if g.is_path], ids=lambda given: given.name)
def test_the_command_line_takes_its_path(given, known, tmp_path):
    np.save(tmp_path / "targets.npy", Y)
    path, model = str(given.make(X, tmp_path)), str(tmp_path / "m.zarr")
    settings = ["--kernel", "rbf", "--gamma", "0.5", "--alpha", "0.1"]
    for arguments in (
        ["plan", "--x", path, "--y", f"{tmp_path}/targets.npy", *settings],
        ["fit", "--x", path, "--y", f"{tmp_path}/targets.npy", *settings, "--model", model, "--quiet"],
        ["predict", "--x", path, "--model", model, "--out", f"{tmp_path}/out.npy"],
    ):
        result = CliRunner().invoke(command, arguments)
        assert result.exit_code == 0, result.output
    assert_allclose(np.load(tmp_path / "out.npy"), known.predict(X), rtol=0, atol=1e-10)


def test_the_documentation_has_the_table_of_these_containers():
    assert markdown() in PAGE.read_text()
    assert sorted(name for names in TABLE.values() for name in names) == sorted(given.name for given in INPUTS)
    assert all(given.is_target == ("sparse" not in given.name) for given in INPUTS)  # as the page says below it
