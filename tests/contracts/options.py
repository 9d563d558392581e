"""Wrong options of the command line: every option and argument of every command × texts that mean nothing to it."""

import re
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import click
from click.testing import CliRunner

from dkrr.cli import dkrr
from dkrr.errors import InputError
from tests.contracts.wrong_values import by_argument

NAMES = frozenset({"text", "True", "None", "[1, 2]", "1,2", "1,", "nan", "inf", "-1", "0", "1", "1.5", "1e30", "1e400"})
TEXTS: dict[str, str] = {
    "empty": "", "space": " ", "5000 digits": "1" * 5000, "10**30": str(10**30), "null byte": "a\0b",
    "lone surrogate": "a\udcff", "long": "x" * 5000, "line": "a\nb",
} | {
    text: text
    for text in (
        *sorted(NAMES), "-inf", "1:2", "2:1:3", "1:2:1000000000000000000000", "1:1e400:3", "missing/folder/file",
        "missing/folder/file.png", "missing.npy", ".", "/dev/null", "nowhere://bucket/x", "s3://bucket/x.zarr",
        "http:///x.npy", "missing.npz::a", "tcp://host:port", "--quiet",
    )
}  # fmt: skip
"""What every option is given, under labels."""

NEW = NAMES | {
    "-inf", "10**30", "1:2", "2:1:3", "1:2:1000000000000000000000", "1:1e400:3", "missing.npy", "missing.npz::a",
    "line", "--quiet",
}  # fmt: skip
"""Names of new files and folders."""
COUNT = frozenset({"1"})
POSITIVE = COUNT | {"1.5", "1e30", "10**30"}
DEGREE = POSITIVE - {"1.5"} | {"0"}
ACCEPTED = by_argument(
    (COUNT, "d k max_iter n n_candidates n_targets solver_max_iter tile workers"),
    (COUNT | {"1.5", "1e30", "1,2"}, "plan.alphas"),
    (COUNT | {"0"}, "shuffle random_state"),
    (POSITIVE, "gamma extent"),
    (POSITIVE | {"0"}, "alpha"),
    (POSITIVE | {"0", "-1"}, "coef0"),
    (DEGREE, "degree"),
    (DEGREE | {"1,2"}, "select.degree"),
    (POSITIVE | {"1,2"}, "select.gamma"),
    (POSITIVE | {"0", "1,2"}, "select.alphas"),
    (NEW, "model store"),
    ((), "predict.model plan.model select.max_iter"),
    ({"missing.npy"}, "predict.out"),
    ({"."}, "calibrate.folder"),
)
"""Labels of the texts that an option takes, of one command or of all; the others are refused."""
EITHER = by_argument(
    (COUNT, "select.max_iter"),
    (COUNT | {"1,2"}, "train_sizes"),
    (POSITIVE, "memory_limit"),
    ({"1.5"}, "degree"),
    ({"."}, "store"),
)
"""Texts that an option takes or refuses, by the data and the machine."""
BESIDE = {key: ["--logistic"] for key in ("class_weight", "max_iter", "one_vs_rest", "n_classes")} | {
    "solver_max_iter": ["--solver", "cg"],
    "worker_memory": ["--workers", "2"],
    "train_sizes": ["--cv", "3"],
    "extent": ["--kernel", "rbf"],
}
"""Options without which another one is refused."""


def commands(folder: Path) -> dict[str, list[str]]:
    """Options of a good call of every command, with the files of a folder; the solver of the model was iterative."""
    x, model = f"{folder}/x.npy", f"{folder}/cg.zarr"
    data = ["--x", x, "--y", f"{folder}/y.npy", "--quiet"]
    return {
        "fit": [*data, "--model", "model.zarr", "--kernel", "polynomial"],
        "select": [*data, "--kernel", "polynomial", "--alphas", "0.1,1", "--cv", "2"],
        "predict": ["--model", model, "--x", x, "--out", "p.npy"],
        "suggest": [f"{folder}/uncertain.zarr", "--x", x, "--out", "s.csv", "--k", "1"],
        "plan": ["--n", "100", "--d", "3", "--kernel", "polynomial"],
        "info": [model],
        "verify": [model],
        "status": [model],
        "calibrate": [],
    }


def calls(folder: Path) -> Iterator[tuple[str, Callable[[], None], tuple[str, ...], bool]]:
    """Name, call, words of which the refusal must have one (none: accepted), and whether it may be accepted."""
    for name, good in commands(folder).items():
        for option in dkrr.commands[name].params:
            if isinstance(option, click.Option) and option.is_flag:
                continue
            key = str(option.name)
            means, either = (table.get(f"{name}.{key}", table.get(key, frozenset())) for table in (ACCEPTED, EITHER))
            for label in (t for t in TEXTS if name != "calibrate" or t not in means):  # it measures for seconds
                arguments = _with_option(name, good, option, TEXTS[label], folder)
                words = () if label in means else _words_of(option)
                call = partial(run, arguments, may_fail=not words)
                yield f"dkrr {name} {option.opts[0]}={label}", call, words, label in either


def _with_option(name: str, good: Sequence[str], option: click.Parameter, text: str, folder: Path) -> list[str]:
    """Arguments of a call with one option, or the argument, replaced."""
    if isinstance(option, click.Argument):
        return [name, *good[1:], "--", text]
    arguments = list(good)
    flag = max(option.opts, key=len)
    if flag in arguments:
        at = arguments.index(flag)
        del arguments[at : at + 2]
    beside = BESIDE.get(str(option.name), [])
    if beside and beside[0] in arguments:
        at = arguments.index(beside[0])
        del arguments[at : at + 2]
    if "--logistic" in beside and "--y" in arguments:
        arguments[arguments.index("--y") + 1] = f"{folder}/labels.npy"
    return [name, *arguments, *beside, f"{flag}={text}"]


def _words_of(option: click.Parameter) -> tuple[str, ...]:
    """How messages name an option: as it is written, or as Python's argument."""
    name = str(option.name).removesuffix("_path")
    return (
        *option.opts,
        name,
        str(option.metavar).strip("[]"),
        name.upper(),
        name.replace("solver_", ""),
        "exist",
        "exists",
    )


def run(arguments: Sequence[str], *, may_fail: bool = False) -> None:
    """One call in this process; with `may_fail` it may end with status 1, of a failed run.

    Raises
    ------
    InputError
        If it ends with status 2 and a readable message.
    RuntimeError
        If it ends with another status than 0 or 2, or with a traceback.
    """
    done = CliRunner().invoke(dkrr, list(arguments), prog_name="dkrr")
    if done.exit_code == 2 and done.stderr.strip() and "Traceback" not in done.stderr:
        raise InputError(re.sub(r"(?s)^Usage:.*?\n\n", "", done.stderr))
    if done.exit_code and not (done.exit_code == 1 and may_fail and done.stderr.startswith("dkrr: ")):
        raise RuntimeError(f"status {done.exit_code}: {done.stderr} {done.exception!r}")
