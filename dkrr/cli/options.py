"""Every option of the commands, once, and what its text stands for."""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

import click
import numpy as np
from click.shell_completion import CompletionItem

from dkrr.checks import shown
from dkrr.cli.command import OTHERS, Command, Option, options_from_file
from dkrr.errors import InputError

PATHS = {"PATH", "FILE", "RUN", "MODEL", "PNG"}
"""Names of values that are paths, in the help of options and arguments."""
MAX_ALPHAS = 10**6
"""No search has more values of λ."""


class PathText(click.types.StringParamType):
    """A path or URL, checked where it is used; shells complete it as a file."""

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:  # noqa: ARG002
        """Names of files, which a shell completes."""
        return [CompletionItem(incomplete, type="file")]


class OneNumber(click.types.FloatParamType):
    """A number; several are candidates of ``dkrr select``."""

    def fail(self, message: str, param: click.Parameter | None = None, ctx: click.Context | None = None) -> NoReturn:
        """Refuse a value."""
        super().fail(f"{message} Expected one number: dkrr select chooses among several", param, ctx)


def _flag(words: str, **settings: Any) -> dict[str, Any]:
    return {"is_flag": True, "help": words, **settings}


def _value(kind: Any, words: str, **settings: Any) -> dict[str, Any]:
    """Settings of an option with a value: its type, the choice, or the name of a text in the help (or None)."""
    if isinstance(kind, str):
        settings |= {"metavar": kind, "type": PathText()} if PATHS & set(kind.split("|")) else {"metavar": kind}
    elif kind is not None:
        settings |= {"type": click.Choice(kind) if isinstance(kind, list) else kind}
    return {"help": words, "show_default": "default" in settings, **settings}


FILE = {"is_eager": True, "expose_value": False, "callback": options_from_file}
OPTIONS: dict[str, dict[str, Any]] = {
    "config": _value("FILE", "TOML file with options as keys, without dashes; options given here come first.", **FILE),
    # Data
    "x": _value("PATH", "Training rows."),
    "y": _value("PATH|NAME", "Targets or class labels, or their column in --x."),
    "sample_weight": _value("PATH|NAME", "Weights of the rows, or their column in --x."),
    "columns": _value("NAMES", "Columns of the table --x to use: names and patterns such as 'dep_*,origin'."),
    "exclude": _value("NAMES", "Columns of the table --x to leave out: names and patterns."),
    "numeric": _flag(
        "Take the columns of the table --x that hold numbers, and those that --one-hot names; says which are left out."
    ),
    "drop_missing": _flag(
        "Leave out the rows of the table --x with missing values in columns that are used; with --impute only those "
        "without a target or weight."
    ),
    "standardize": _flag("Bring columns of numbers to mean 0 and deviation 1."),
    "one_hot": _value("NAMES", "Columns of --x that become one for each value."),
    "unknown": _value(
        ["error", "zeros"], "With --one-hot: what another value is in new rows, an error or zeros.  [default: error]"
    ),
    "impute": _value(["mean", "median"], "Fill missing numbers."),
    "transformer": _value("PATH", "Saved model whose fitted steps for columns are used as they are."),
    "plan.x": _value("PATH", "Training rows; of more than 256 MiB only sizes and a sample are read."),
    "predict.x": _value("PATH", "Rows to predict."),
    "suggest.x": _value("PATH", "Rows without targets, of which some are to be measured."),
    "k": _value(int, "Number of rows to suggest.", flags=["-k", "--k"]),
    "n_candidates": _value(int, "Rows of --x that are drawn at random to choose among.", default=2000),
    "random_state": _value(int, "Seed of the draw.", default=0, metavar="SEED"),
    # Sizes instead of data
    "n": _value(int, "Number of rows, instead of --x."),
    "d": _value(int, "Number of columns, instead of --x."),
    "n_targets": _value(int, "Number of targets, instead of --y.", default=1),
    "n_classes": _value(int, "With --logistic: number of classes, instead of --y.  [default: 2]"),
    # The model
    "kernel": _value(None, "rbf, linear, polynomial, laplacian, ...", default="rbf"),
    "gamma": _value(OneNumber(), "γ of the kernel.  [default: 1 / columns]"),
    "degree": _value(OneNumber(), "Degree of the polynomial kernel.", default=3),
    "coef0": _value(float, "Constant of polynomial and sigmoid.", default=1),
    "kernel_param": _value(
        "NAME=VALUE",
        "Another parameter of the kernel, such as nu=2.5 or length_scale=0.7 of matern; may be repeated.",
        multiple=True,
    ),
    "alpha": _value(None, "λ ≥ 0, or one for each target: 0.1,1,10, or repeated.  [default: 1.0]", multiple=True),
    "logistic": _flag("Kernel logistic regression; y holds class labels."),
    "one_vs_rest": _flag("With --logistic: a model of each class against the rest, not one softmax.", default=None),
    "class_weight": _value(["balanced"], "With --logistic: equal total weights."),
    "max_iter": _value(int, "With --logistic: largest number of Newton steps.  [default: 100]"),
    "fit_intercept": {
        "flags": ["--fit-intercept/--no-fit-intercept"],
        "default": None,
        "help": "Fit a constant that is not penalised.  [default: only with --logistic]",
    },
    "form": _value(
        ["auto", "primal", "dual"],
        "Unknowns: weights of features (primal), or coefficients of rows (dual).",
        default="auto",
    ),
    "solver": _value(["auto", "cholesky", "cg"], "Direct solver, or conjugate gradient.", default="auto"),
    "tol": _value(float, "True relative residual required of cg; with --logistic the relative gradient.", default=1e-8),
    "solver_max_iter": _value(int, "With --solver cg: largest number of iterations.  [default: 1000]"),
    # The choice among models
    "select.kernel": _value(None, "Kernel, or several: rbf,laplacian.", default=["rbf"], multiple=True),
    "select.gamma": _value(None, "γ of the kernel; several as for --alphas.  [default: 1 / columns]", multiple=True),
    "select.degree": _value(
        None, "Degree of the polynomial kernel; several as for --alphas.  [default: 3]", multiple=True
    ),
    "select.alphas": _value(
        None,
        "Candidates of λ: 0.1,1,10 or from:to:how-many.  [default: ten by the data's scale]",
        flags=["--alphas", "--alpha"],
        multiple=True,
    ),
    "rows": _value(
        int,
        "Choose by this many rows, drawn at random (seed: that of --shuffle, or 0), then fit all rows with the choice; "
        "--logistic: of each class in proportion.",
    ),
    "select.cv": _value(None, "Number of folds, or loo: leave one row out at a time.", default="5"),
    "shuffle": _value(int, "Folds of random rows, not of consecutive ones.", metavar="SEED"),
    "scoring": _value(None, "One of scikit-learn's scorers.  [default: mean squared error, log loss]"),
    "alpha_per_target": _flag("A λ for every target."),
    "train_sizes": _value("SIZES", "A learning curve, too: 0.125,0.25,0.5 of the rows, or numbers."),
    "select.out": _value("PNG", "Draw the scores over λ (and rows) as well ('dkrr[report]')."),
    "plan.kernel": _value(
        None, "rbf, linear, ...; several with --alphas or --cv: rbf,laplacian.", default=["rbf"], multiple=True
    ),
    "plan.gamma": _value(
        None, "γ of the kernel; several with --alphas or --cv.  [default: 1 / columns]", multiple=True
    ),
    "plan.degree": _value(
        None, "Degree of the polynomial kernel; several with --alphas or --cv.  [default: 3]", multiple=True
    ),
    "plan.alphas": _value(
        None,
        "Plan the search (select) among these λ, 0.1,1,10 or from:to:how-many, or a number of λ: 10.",
        multiple=True,
    ),
    "plan.cv": _value(None, "Number of folds of the search, or loo.  [default: 5 with --alphas]"),
    # The machine
    "device": _value(
        ["auto", "cpu", "cuda"], "Compute products with K on the CPU, or on a GPU ('dkrr[cuda]').", default="auto"
    ),
    "memory_limit": _value(None, "Memory of this fit on one machine, for example 4GiB."),
    "predict.memory_limit": _value(None, "Memory of a process that predicts, for example 4GiB."),
    "suggest.memory_limit": _value(None, "Memory of the process that chooses, for example 4GiB."),
    "tile": _value(int, "Rows in a tile.  [default: chosen by the planner]"),
    "store": _value("PATH", "Store of the run, kept and resumed from.  [default: a temporary one]"),
    "select.store": _value(None, "Folder for the stores of the run, kept and resumed from."),
    "scheduler": _value("ADDRESS", "Use a running Dask cluster, for example tcp://host:8786."),
    "workers": _value(int, "Worker processes.  [default: one for each core]"),
    "worker_memory": _value(None, "With --workers: memory of each, for a cluster that need not exist."),
    "extent": _value("L|L1,L2", "Largest difference of rows in each column, at most three, for a Fourier grid."),
    "cores": _value(int, "With --worker-memory: threads of each worker.  [default: 1]"),
    "calibrate.folder": _value(None, "Folder on the file system to measure.  [default: the temporary directory]"),
    "calibrate.show": _flag("Print what is known, and measure nothing."),
    # Results
    "model": _value("PATH", "Where to save the model."),
    "predict.model": _value("PATH", "Saved model."),
    "plan.model": _value("PATH", "Saved model: plan its predictions of --x, not a fit."),
    "overwrite": _flag("Replace what exists there when the new one is complete."),
    "uncertainty": _flag("Keep and save what standard deviations and intervals are computed from: the factor."),
    "intervals": _flag("The same, and the models that leave out folds, which intervals take."),
    "accept_unconverged": _flag(
        "Save the model, with exit status 0, even if the fit did not reach the required accuracy."
    ),
    "predict.out": _value("PATH", "New file of the predictions: .parquet, .csv, .arrow, .zarr or .npy."),
    "suggest.out": _value("PATH", "New table of the rows: .parquet, .csv, .arrow or .feather."),
    "report.out": _value("HTML", "File to write."),
    "keep": _value("NAMES", "Columns of the table --x that are copied beside the predictions."),
    "suggest.keep": _value("NAMES", "Columns of the table --x that are copied beside the numbers of the rows."),
    "proba": _flag("Write the probabilities of all classes instead of labels."),
    "std": _flag("Write the standard deviations of the predictions as well."),
    "interval": _value(float, "Write intervals of this probability as well: 0.9.", metavar="COVERAGE"),
    "json": _flag("Print the result as JSON."),
    "quiet": _flag("Do not show progress; warnings and errors only."),
}
"""Settings of click for each option; of one that a single command has, or has otherwise, behind ``command.``."""


GROUPS = {
    "Data": "config predict.model x y sample_weight columns exclude numeric drop_missing standardize one_hot unknown "
    "impute transformer rows k n_candidates random_state keep n d n_targets n_classes extent",
    "Model": "kernel gamma degree coef0 kernel_param alpha alphas alpha_per_target fit_intercept logistic one_vs_rest "
    "class_weight cv shuffle scoring train_sizes",
    "Solver and resources": "form solver tol solver_max_iter max_iter device memory_limit tile store scheduler workers "
    "worker_memory cores folder",
    "Output": "model out overwrite uncertainty intervals accept_unconverged proba std interval show json quiet",
}
"""Groups of the help by their titles, in its order: every option is in one of them, whichever command has it."""
GROUP_OF = {name: title for title, names in GROUPS.items() for name in names.split()}


def command(*names: str, required: str = "", argument: str = "") -> Callable[[Callable[..., None]], Command]:
    """Command with some options, whose values its function takes by name.

    Parameters
    ----------
    names : str
        Names of options.
    required : str
        Those that must be given.
    argument : str
        Name of the argument, ``path``, in the help; in brackets: it may be left out.
    """

    def made(function: Callable[..., None]) -> Command:
        parameters: list[click.Parameter] = []
        order = [*GROUP_OF, *OPTIONS]

        def own(name: str, known: Mapping[str, Any]) -> str:
            """Name of an option as a table has it: behind that of the command, if it is another there."""
            return name if (special := f"{function.__name__}.{name}") not in known else special

        for name in sorted(" ".join(names).split(), key=lambda name: order.index(own(name, GROUP_OF))):
            settings = dict(OPTIONS[own(name, OPTIONS)])
            flags = settings.pop("flags", [f"--{name.replace('_', '-')}"])
            group = GROUP_OF.get(own(name, GROUP_OF), OTHERS)
            parameters.append(Option(flags, group=group, required=name in required.split(), **settings))
        if argument:
            is_optional = argument.startswith("[")
            parameters.append(click.Argument(["path"], metavar=argument, required=not is_optional, type=PathText()))
        return click.command(cls=Command, params=parameters)(function)

    return made


def kernel_params(given: Sequence[str]) -> dict[str, Any] | None:
    """Parameters of a kernel by name from values of --kernel-param; None without any.

    Raises
    ------
    InputError
        If one is not a name and a value, or is given twice.
    """
    found: dict[str, Any] = {}
    for text in given:
        name, _, value = (part.strip() for part in text.partition("="))
        if not name or not value or name in found:
            twice = ", given twice" if name in found else ""
            raise InputError(f"--kernel-param is {shown(text)}{twice}; expected NAME=VALUE once for each name: nu=2.5")
        try:
            found[name] = json.loads(value)
        except ValueError:
            found[name] = value
    return found or None


def candidates(given: Sequence[str], option: str) -> list[float]:
    """Numbers of one option or several: with commas between, or from:to:how-many with equal ratios.

    Raises
    ------
    InputError
        Naming the option.
    """
    return [value for text in given for value in _values(text, option)]


def _values(text: str, option: str) -> list[float]:
    try:
        if ":" in text:
            first, last, count = text.split(":")
            if not 0 < float(first) < float(last) < math.inf or not 2 <= int(count) <= MAX_ALPHAS:
                raise ValueError
            return [float(value) for value in np.geomspace(float(first), float(last), int(count))]
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise InputError(
            f"{option} is {shown(text)}; expected numbers with commas between, or from:to:how-many such as 1e-4:1:10"
        ) from None


def train_sizes(text: str | None) -> list[float] | list[int] | None:
    """Fractions, or whole numbers of rows, with commas between; raises InputError naming the option."""
    if text is None:
        return None
    parts = text.split(",")
    try:
        return [int(part) for part in parts] if all(part.strip().isdigit() for part in parts) else [*map(float, parts)]
    except ValueError:
        raise InputError(
            f"--train-sizes is {shown(text)}; expected fractions such as 0.125,0.25,0.5, or numbers of rows"
        ) from None


def folds(cv: str | None, shuffle: int | None = None, *, is_classification: bool = False) -> Any:
    """Number of folds, or "loo", or a splitter of random rows."""
    if cv in (None, "loo"):
        return cv
    from dkrr.estimators.search import shuffled_folds

    count = whole(str(cv), "--cv", "a whole number of folds, or loo")
    if shuffle is not None and not 0 <= shuffle < 2**32:
        raise InputError(f"--shuffle is {shown(shuffle)}; expected a seed from 0 to {2**32 - 1}")
    if shuffle is None or count < 2:
        return count
    return shuffled_folds(count, shuffle, is_classification=is_classification)


def whole(text: str, option: str, expected: str) -> int:
    """Whole number; raises InputError naming the option."""
    try:
        return int(text)
    except ValueError:
        raise InputError(f"{option} is {shown(text)}; expected {expected}") from None
