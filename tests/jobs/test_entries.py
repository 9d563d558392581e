"""From job files to models, and from a command's options to keys."""

import click
import pytest

from dkrr.cli.batch import OfJob, Required, Several, keys_of
from dkrr.jobs.documents import JobError, read_document
from dkrr.jobs.entries import entries_of
from dkrr.jobs.keys import json_schema


@click.command()
@click.option("--x", "x_path", cls=Required, required=True, help="Rows.")
@click.option("--model", "model_path")
@click.option("--kernel", default="linear", type=click.Choice(["linear", "rbf"]))
@click.option("--alpha", type=float, multiple=True)
@click.option("--degree", type=int, default=3)
@click.option("--fit-intercept/--no-fit-intercept", default=None)
@click.option("--logistic", is_flag=True)
@click.option("--gamma", type=Several())
@click.option("--memory-limit")
@click.option("--scheduler")
@click.option("--json", "as_json", is_flag=True)
@click.option("--only", cls=OfJob)
def command():
    """As commands have them."""


KEYS = keys_of(command)
DEFAULTS = {key.parameter: None for key in KEYS}


def read(tmp_path, text, given=None, name="night.toml"):
    (tmp_path / name).write_text(text)
    return entries_of(read_document(tmp_path / name), "command", KEYS, given or {}, DEFAULTS)


def test_keys_are_the_options():
    assert [key.name for key in KEYS] == [
        *("x", "model", "kernel", "alpha", "degree", "fit-intercept", "logistic", "gamma", "memory-limit", "scheduler")
    ]


def test_values_of_the_job_of_the_model_and_of_the_grid(tmp_path):
    entries = read(
        tmp_path,
        """
        [command]
        x = "x.npy"
        model = "models/{name}.zarr"
        kernel = "rbf"
        scheduler = "tcp://host:1"
        [[model]]
        name = "one"
        kernel = "linear"
        alpha = [1, 2.5]
        gamma = [0.1, "1:2:3"]
        memory-limit = 1000
        fit-intercept = false
        [[model]]
        name = "grid"
        [model.grid]
        x = ["data/a.npy", "d.npz::b", "c.zarr/part"]
        alpha = [1e-6, [1, 2]]
        """,
    )
    one = entries[0]
    assert one.name == "one" and one.line == 7
    assert dict(one.arguments) == DEFAULTS | {
        "x_path": "x.npy",
        "model_path": "models/one.zarr",
        "kernel": "linear",
        "alpha": (1, 2.5),
        "gamma": "0.1,1:2:3",
        "memory_limit": "1000",
        "fit_intercept": False,
        "scheduler": "tcp://host:1",
    }
    assert one.lines["alpha"] == 10 and one.lines["x"] == 3
    assert [entry.name for entry in entries[1:]] == [
        f"grid-x={x}-alpha={alpha}" for x in ("a", "b", "part") for alpha in ("1e-06", "1,2")
    ]
    last = entries[-1]
    assert last.arguments["alpha"] == (1, 2) and last.arguments["model_path"] == f"models/{last.name}.zarr"
    assert last.arguments["kernel"] == "rbf" and last.lines["alpha"] == 18


def test_one_model_is_named_by_the_file_and_options_replace_its_values(tmp_path):
    (entry,) = read(tmp_path, '[command]\nx = "x"\nalpha = 1\n', {"alpha": (3.0,), "model_path": "{name}.zarr"})
    assert (entry.name, entry.arguments["alpha"], entry.arguments["model_path"]) == ("night", (3.0,), "night.zarr")
    assert entry.stated == {"x_path", "alpha", "model_path"}
    (entry,) = read(tmp_path, "model:\n- x: x\n", name="job.yaml")
    assert entry.name == "job"


def test_names_with_values_of_the_grid(tmp_path):
    text = '[[model]]\nx = "x"\nname = "l{alpha}-{kernel}"\ngrid = {alpha = [1, 2.5], kernel = ["rbf"]}\n'
    assert [entry.name for entry in read(tmp_path, text)] == ["l1-rbf", "l2.5-rbf"]


@pytest.mark.parametrize(
    ("text", "problems"),
    [
        ("[command]\nalhpa = 1\nx = 'x'\n", {2: "unknown key alhpa in [command]: did you mean alpha?"}),
        ("[command]\nx = 'x'\nmemory_limit = 1\n", {3: "did you mean memory-limit?"}),
        ("[command]\nx = 'x'\n--alpha = 1\n", {3: "did you mean alpha?"}),
        ("[command]\nx = 'x'\nzzz = 1\n", {3: "expected one of x, model, kernel"}),
        ("[command]\nx = 'x'\njson = true\n", {3: "unknown key json"}),
        ("[comand]\nx = 'x'\n", {1: "unknown key comand in the file: did you mean command?", 0: "has no models"}),
        ("x = 'x'\n[[model]]\n", {1: "belong below [command] or [[model]]", 2: "has no x"}),
        (
            "[[model]]\nx = 'x'\nkernel = 'rfb'\n",
            {3: 'kernel is \'rfb\'; expected "linear" or "rbf": did you mean rbf?'},
        ),
        ("[[model]]\nx = 'x'\nalpha = ['1']\n", {3: "alpha is '1'; expected a number, or a list of such"}),
        ("[[model]]\nx = 'x'\nalpha = []\n", {3: "alpha is []; expected a number"}),
        ("[[model]]\nx = 'x'\nalpha = true\n", {3: "alpha is True; expected a number"}),
        ("[[model]]\nx = 'x'\ndegree = 2.5\n", {3: "degree is 2.5; expected a whole number"}),
        ("[[model]]\nx = 'x'\nlogistic = 1\n", {3: "logistic is 1; expected true or false"}),
        ("[[model]]\nx = 'x'\nmemory-limit = 1.5\n", {3: "memory-limit is 1.5; expected text"}),
        ("[[model]]\nx = 1979-05-27\n", {2: "x is datetime.date(1979, 5, 27); expected text"}),
        ("[[model]]\nname = 'a'\nscheduler = 's'\nx = 'x'\n", {3: "all models share it: expected it in [command]"}),
        ("[[model]]\nname = 'a'\n", {1: "the model a has no x; expected it in [[model]] or [command]"}),
        ("[[model]]\nx = 'x'\n[[model]]\nx = 'x'\nname = 'b'\n", {1: "a model has no name"}),
        ("[[model]]\nx = 'x'\nname = 'a b/c'\n", {3: "cannot be that of a file"}),
        ("[[model]]\nx = 'x'\nname = '{alpha}'\n", {3: "name has {alpha}, which is not a key of its grid"}),
        ("[[model]]\nx = 'x'\nname = 'a'\n[[model]]\nx = 'x'\nname = 'a'\n", {4: "the other on line 1"}),
        ("[[model]]\nx = 'x'\nalpha = 1\ngrid.alpha = [1]\n", {4: "alpha is in [[model]] and in its grid"}),
        ("[[model]]\nx = 'x'\ngrid.alpha = 1\n", {3: "alpha of the grid is 1; expected a list of values"}),
        ("[[model]]\nx = 'x'\ngrid.alpha = [1, 1.0]\n", {3: "alpha of the grid has a value twice"}),
        ("[[model]]\nx = 'x'\ngrid.alpha = [1, '2']\n", {3: "alpha is '2'; expected a number"}),
        ("[[model]]\nx = 'x'\ngrid.alfa = [1]\n", {3: "unknown key alfa in the grid: did you mean alpha?"}),
        ("[[model]]\nx = 'x'\ngrid = 3\n", {3: "grid is 3; expected a table"}),
        (
            "[[model]]\ngrid.x = ['a/x.npy', 'b/x.npy']\n",
            {1: "two models have the name night-x=x, the other in its grid"},
        ),
        (
            "[command]\nmodel = 'm.zarr'\n[[model]]\nx = 'x'\ngrid.alpha = [1, 2]\n",
            {2: "the models night-alpha=1 and night-alpha=2 have one model, 'm.zarr'"},
        ),
        ("model = []\n", {1: "the file has no models"}),
        ("", {0: "the file has no models"}),
        ("command = 3\nmodel = [1]\n", {1: "[command] is 3; expected a table", 2: "[[model]] is 1; expected a table"}),
        ("[[model]]\nx = 1.5\nalhpa = 2\n", {2: "x is 1.5", 3: "unknown key alhpa"}),
    ],
)
def test_every_error_has_its_line(tmp_path, text, problems):
    with pytest.raises(JobError) as caught:
        read(tmp_path, text)
    found = {problem.line: problem.message for problem in caught.value.problems}
    for line, message in problems.items():
        assert message in found.get(line, ""), found


def test_the_schema_takes_what_the_reader_takes(tmp_path):
    jsonschema = pytest.importorskip("jsonschema")
    validator = jsonschema.Draft202012Validator(json_schema("command", KEYS))
    validator.check_schema(validator.schema)
    good = {
        "command": {"x": "x.npy", "memory-limit": 5, "scheduler": "tcp://a:1"},
        "model": [{"name": "a", "alpha": [1, 2], "grid": {"gamma": [0.1, [1, 2]], "kernel": ["rbf"]}}],
    }
    assert validator.is_valid(good)
    for wrong in ({"alhpa": 1}, {"kernel": "rfb"}, {"alpha": "1"}, {"scheduler": "s"}, {"grid": {"alpha": 1}}):
        assert not validator.is_valid({"model": [wrong]}), wrong
