"""Wrong arguments: every public function, estimator, setting, kernel and feature map × values that mean nothing to it.

`cases` makes them from the signatures; `trial` says of one what happened. An argument takes
None or flags where its default is one, and else only what `MEANINGS` lists for it, so that a new argument is checked
or listed.
"""

import inspect
import re
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import chdir, contextmanager
from dataclasses import asdict, dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from sklearn.base import clone

import dkrr
from dkrr import features, kernels, solvers
from dkrr.errors import DkrrError, KernelFunctionError, NotFiniteError, NotPositiveDefiniteError, PlanError
from dkrr.fitting import run as fitting_run
from dkrr.selection import candidates as selection_run
from dkrr.selection.scoring import all_scored
from tests.contracts import options
from tests.contracts.kernels import ROWS, lacks_values
from tests.contracts.wrong_values import (
    COUNT,
    FLAG,
    FRACTIONS,
    FUNCTION,
    HALF,
    HUGE_POWER,
    KERNEL,
    LETTER,
    MAP,
    MATRICES,
    NAME,
    NONE,
    PATH,
    PLACE,
    POSITIVE,
    REAL,
    SCALAR_ARRAY,
    SPARSE,
    TEXT,
    TINY,
    VALUES,
    VECTORS,
    WHOLE_POWER,
    ZERO,
    D,
    by_argument,
    labels,
    rows,
    targets,
    these,
)
from tests.nightly.chaos.outcomes import MAX_DETAIL, Observation, Outcome


@dataclass(frozen=True)
class Case:
    """One call with one argument."""

    name: str
    call: Callable[[], Any]
    expected: tuple[str, ...]
    """Words of which the error has to contain one; none: the value means something, and the call succeeds."""
    may_be_taken: bool = False
    """Whether the value means something in some cases: it may be refused or accepted."""
    may_be_late: bool = False
    """Whether the value can be judged only by using it: data, of which every row is read, and functions."""


# What means something --------------------------------------------------------------------------------------------


MEANINGS = by_argument(
    (FLAG, "progress fit_intercept"),
    (NONE, "preconditioner load.kernel"),
    (
        COUNT,
        "max_evaluations max_iter n_components n_features n_nodes n_sample n_targets plan.n_samples plan.n_features",
    ),
    (COUNT, "chunks k max_length n_candidates rank tile workers"),
    (COUNT - {"1", "2", "np.int64(2)"}, "weighted_sums.n_candidates"),
    (COUNT | ZERO, "random_state start stop"),
    (COUNT - {"1"}, "Graph.n_nodes RandomFourier.n_components"),
    (NONE | COUNT - {"1"}, "cv n_classes"),
    (COUNT | FUNCTION, "size"),
    (COUNT | HALF | TINY, "min_df"),
    (HALF, "cv_tol tol"),
    (HALF | TINY, "coverage error interval"),
    (COUNT | HALF | SCALAR_ARRAY | PATH | {"1.5"}, "concentration"),
    (POSITIVE, "decay scale variance_scale seconds gamma"),
    (NONE | POSITIVE | PATH | {"[None]"}, "KernelRidgeCV.gamma KernelLogisticRegressionCV.gamma"),
    (POSITIVE | SCALAR_ARRAY, "KernelLogisticRegression.alpha"),
    (POSITIVE | SCALAR_ARRAY | ZERO, "alpha"),
    (POSITIVE - TINY - HUGE_POWER | SCALAR_ARRAY, "sample_weight"),
    (NONE | POSITIVE - {"10**30"} | SCALAR_ARRAY, "KernelRidge.score.sample_weight KernelRidgeCV.score.sample_weight"),
    (
        NONE | POSITIVE - {"10**30"} | SCALAR_ARRAY,
        "KernelLogisticRegression.score.sample_weight KernelLogisticRegressionCV.score.sample_weight",
    ),
    (NONE | POSITIVE - {"10**30"} | SCALAR_ARRAY | PATH, "plan.alphas"),
    (NONE | POSITIVE | SCALAR_ARRAY | PATH | ZERO, "KernelRidgeCV.alphas"),
    (PATH, "alphas ngram_range ColumnsMap.columns"),
    (REAL, "coef0"),
    (REAL | PATH, "KernelRidgeCV.coef0 KernelLogisticRegressionCV.coef0"),
    (WHOLE_POWER, "degree"),
    (WHOLE_POWER - HUGE_POWER, "TaylorMap.degree"),
    (WHOLE_POWER | PATH, "KernelRidgeCV.degree KernelLogisticRegressionCV.degree"),
    (these("{} {'a':1} {1:nan}"), "arrays callables"),
    ({"{}"}, "class_weight kernel_params"),
    (LETTER, "vocabulary"),
    (NONE | LETTER | {"{'a':1}"}, "open_table.columns"),
    (NONE | COUNT | ZERO | PATH | LETTER | TEXT, "Columns.columns"),
    ({"[]", "()"}, "keep"),
    (NAME, "name"),
    (NONE | TEXT, "label"),
    (TEXT, "token_pattern"),
    (PLACE, "path store"),
    (NONE | PLACE, "report.path"),
    ((), "load.path predict_to.path status.path verify.path"),
    ((), "KernelLogisticRegressionCV.max_iter"),
    ({"table of dates", "table of text"}, "open_table.path"),
    ({"False"}, "predict_to.probabilities"),
    (KERNEL, "base left right smallest_eigenvalue.kernel feature_map.kernel weights_of.kernel"),
    (KERNEL | MAP, "kernel value"),
    (KERNEL | FUNCTION, "function"),
    (these("Cholesky() ConjugateGradient()"), "solver"),
    (these("[] () set() [[]] iter(())") | {"empty array"}, "Graph.edges"),
    (SPARSE, "smallest_eigenvalue.X KernelRidge.fit.X KernelRidgeCV.fit.X KernelLogisticRegression.fit.X"),
    (SPARSE, "KernelLogisticRegression.fit_path.X KernelLogisticRegressionCV.fit.X"),
    (SPARSE, "plan.X"),
    (SPARSE | {"[1,2]", "[True]"}, "gram.X"),
)
"""Labels of the values that an argument takes besides those of its default, or all of one function's argument."""

UNREAD = frozenset({"[nan]", "NaN in row 5", "infinity in row 5", "list of masked", "series with NA", "masked table"})
UNCHECKED = SPARSE | {"NaN in row 5", "infinity in row 5", "no rows"}
"""Blocks of rows that are checked before kernels are called."""
GIVEN_GROUPS = frozenset({
    "structured array", "NaN in row 5", "infinity in row 5", "vector of dates", "vector of text and numbers",
    "series of dates", "series with NA", "complex vector", "list of None",
})  # fmt: skip
EITHER = by_argument(
    (FRACTIONS, "degree"),  # of rows that are not negative
    (FUNCTION, "kernel"),  # of blocks of rows
    (GIVEN_GROUPS, "groups"),  # what the splitter takes
    (FUNCTION | KERNEL, "scoring"),  # of an estimator, rows and targets
    (KERNEL, "size"),
    (POSITIVE, "concentration"),  # drawn until the candidates differ
    (PATH, "train_sizes"),  # of the folds' rows and classes
    (UNCHECKED, "Kernel.__call__.X Kernel.diagonal.X Kernel.to.Y Kernel.__call__.Y"),
    (UNREAD, "plan.X plan.y"),  # a plan reads only a sample of the rows
    (COUNT, "KernelLogisticRegressionCV.max_iter"),  # candidates that one step does not solve have no score
    (FUNCTION | KERNEL | MAP | {"int", "RBF"}, "load.kernel"),  # of the model
)
"""Values that an argument takes or refuses, for the reason beside them: a refusal names the argument."""

ESTIMATORS = ("KernelRidge", "KernelRidgeCV", "KernelLogisticRegression", "KernelLogisticRegressionCV")
METHODS = (
    "fit", "fit_path", "predict", "predict_interval", "predict_variance_bounds", "predict_proba", "predict_log_proba",
    "decision_function", "score",
)  # fmt: skip
MADE_BY_DKRR = {
    "FeatureMap",
    "Kernel",
    "Optimum",
    "RunStatus",
    "SolveResult",
    "Status",
    "Suggestion",
    "Table",
    "Verification",
}
"""Public classes that users are given, or derive from, and do not make."""


@dataclass(frozen=True)
class Subject:
    """A function or a method, the defaults of its parameters, and the arguments of a good call."""

    name: str
    call: Callable[..., Any]
    owner: str
    defaults: Mapping[str, Any]
    given: Mapping[str, Any]


@cache
def _good() -> dict[str, Any]:
    """Good values of required arguments, and of those that another argument of a function needs, under its name."""
    rbf, linear, folder = kernels.RBF(), kernels.Linear(), _files()[0]
    fitted = _fitted("KernelRidge")
    return {
        "X": rows(), "y": labels(), "alphas": [0.1, 1.0], "model": fitted, "path": "new.npy",
        "base": rbf, "left": rbf, "right": linear, "value": rbf, "kernel": linear, "kernels": [rbf, linear],
        "function": np.sin, "size": 2, "n_nodes": 3, "edges": [(0, 1)], "n_components": 4, "n_features": D,
        "k": 1, "decay": 0.1, "scale": 2.0, "degree": 2,
        "gram.kernel": "polynomial", "weights_of.kernel": rbf,
        "load.path": str(folder / "model.zarr"), "open_table.path": str(folder / "table.csv"),
        **{f"{name}.predict.return_std": True for name in ESTIMATORS[:2]},
    }  # fmt: skip


def _subject(name: str, call: Callable[..., Any], owner: str, described: Callable[..., Any] | None = None) -> Subject:
    """What is called, with the parameters of what describes it."""
    parameters, good = inspect.signature(described or call).parameters, _good()
    defaults = {name: p.default for name, p in parameters.items() if name != "self" and p.kind < 4}
    needed = {name: name if value is inspect.Parameter.empty else "" for name, value in defaults.items()}
    keys = {name: key for name, of_all in needed.items() for key in (of_all, f"{owner}.{name}") if key in good}
    return Subject(name, call, owner, defaults, {name: good[key] for name, key in keys.items()})


def _fit(name: str, **settings: Any) -> Any:
    """A fitted estimator; a search is short."""
    short = {"alphas": [0.1, 1.0], "cv": 2} if name.endswith("CV") else {}
    return getattr(dkrr, name)(**short | {"kernel": "polynomial"} | settings).fit(rows(), labels())


@cache
def _fitted(name: str) -> Any:
    return _fit(name, kernel="rbf")


def _method(estimator: str, method: str, **arguments: Any) -> Any:
    fitted = _fitted(estimator)
    return getattr(clone(fitted) if method.startswith("fit") else fitted, method)(**arguments)


def _plan(**arguments: Any) -> Any:
    if arguments.get("worker_memory") is not None:
        arguments.setdefault("workers", 2)
    if "n_classes" in arguments or "one_vs_rest" in arguments:
        arguments.setdefault("loss", "logistic")
    if arguments.keys() & {"probabilities", "return_std", "interval"}:
        kind = "KernelLogisticRegression" if "probabilities" in arguments else "KernelRidge"
        return dkrr.plan(**{"X": rows(), "model": _fitted(kind)} | arguments)
    if arguments.keys() & {"X", "y", "sample_weight"}:
        return dkrr.plan(**{"X": rows()} | arguments)
    sizes: dict[str, Any] = {"n_samples": 100, "n_features": 3, "kernel": "polynomial"}
    return dkrr.plan(**sizes | arguments)


def subjects() -> Iterator[Subject]:
    """All that users call."""
    for name in ESTIMATORS:
        kind = getattr(dkrr, name)
        yield _subject(name, partial(_fit, name), name, kind)
        for method in (m for m in METHODS if hasattr(kind, m)):
            owner = f"{name}.{method}"
            yield _subject(owner, partial(_method, name, method), owner, getattr(kind, method))
    for module in (dkrr, kernels, features, solvers):
        for name in (n for n in module.__all__ if n not in {*ESTIMATORS, *MADE_BY_DKRR, "__version__"}):
            call = getattr(module, name)
            if inspect.ismodule(call):
                continue
            full = name if module is dkrr else f"{module.__name__}.{name}"
            yield _subject(full, _plan if name == "plan" else call, name, call)
    for kernel in (kernels.RBF(), kernels.Polynomial(), kernels.Laplacian(), kernels.Cosine()):
        for method in ("__call__", "diagonal", "resolved", "to"):
            yield _subject(f"{type(kernel).__name__}.{method}", getattr(kernel, method), f"Kernel.{method}")


@cache
def _files() -> tuple[Path, tempfile.TemporaryDirectory[str]]:
    """Folder with what good calls read, and its owner, which deletes it at exit."""
    owner = tempfile.TemporaryDirectory(prefix="dkrr-inputs-")
    folder = Path(owner.name)
    for name, values in (("x", rows()), ("y", targets()), ("labels", labels())):
        np.save(folder / f"{name}.npy", values)
    (folder / "table.csv").write_text("a,b\n1.0,2.0\n3.0,4.0\n")
    dkrr.save(_fitted("KernelRidge"), folder / "model.zarr")
    dkrr.save(_fitted("KernelRidge"), folder / "uncertain.zarr", uncertainty=True)
    dkrr.save(dkrr.KernelRidge(kernel="rbf", solver="cg").fit(rows(), targets()), folder / "cg.zarr")
    return folder, owner


# The table -------------------------------------------------------------------------------------------------------

WORDS = {"path": ("path", "exist"), "report.model": ("model", "exist"), "edges": ("edge", "edges")}
"""How errors name an argument, where not by its name alone."""
BY_ROWS = {"X", "Y", "y", "sample_weight", "groups"}
"""Arguments that have an entry for each row: all are read before a bad one is found."""
USED = {"function", "int"}
"""Values whose faults show when they are used."""


def _meaning(subject: Subject, name: str) -> frozenset[str]:
    """Labels that an argument takes: those of one owner, or those of all and of its default.

    A parameter of a kernel has them in the kernel's row, whatever other parameters of its name take.
    """
    if subject.call in ROWS and (row := ROWS[subject.call]).cases:
        if name not in row.takes:
            raise LookupError(lacks_values(subject.call, name))
        return row.takes[name]
    default = subject.defaults[name]
    of_default = NONE if default is None else FLAG if isinstance(default, bool) else frozenset()
    return MEANINGS.get(f"{subject.owner}.{name}", MEANINGS.get(name, frozenset()) | of_default)


def cases() -> Iterator[Case]:
    """Every argument of every function with every value, first those of Python and then those of the command line."""
    for subject in subjects():
        for name in subject.defaults:
            means = _meaning(subject, name)
            unsure = EITHER.get(f"{subject.owner}.{name}", EITHER.get(name, frozenset())) - means
            more = MATRICES if name in ("X", "Y") else VECTORS if name in BY_ROWS else {}
            for label, make in (VALUES | more).items():
                if label in means and subject.name == "calibrate":  # measures for seconds
                    continue
                yield Case(
                    f"{subject.name}({name}={label})",
                    partial(_call, subject, name, make),
                    () if label in means else WORDS.get(f"{subject.owner}.{name}", WORDS.get(name, (name,))),
                    label in unsure,
                    name in BY_ROWS or label in USED or label in unsure,
                )
    for name, call, words, may_be_taken in options.calls(_files()[0]):
        yield Case(name, call, words, may_be_taken, may_be_late=may_be_taken)


def _call(subject: Subject, name: str, make: Callable[[], Any]) -> Any:
    return subject.call(**{**subject.given, name: make()})


# The judge -------------------------------------------------------------------------------------------------------


@contextmanager
def watched() -> Iterator[Callable[[], bool]]:
    """Yield what says whether work was started; within, relative paths are those of an empty folder."""
    carried = {loss: mock.Mock(wraps=how.carry_out) for loss, how in fitting_run.LOSSES.items()}
    losses = {loss: fitting_run.LOSSES[loss]._replace(carry_out=noted) for loss, noted in carried.items()}
    scored = mock.Mock(wraps=all_scored)
    with (
        tempfile.TemporaryDirectory(prefix="dkrr-inputs-") as folder,
        chdir(folder),
        mock.patch.object(fitting_run, "LOSSES", losses),
        mock.patch.object(selection_run, "all_scored", scored),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")
        yield lambda: any(one.called for one in (scored, *carried.values()))


def numbered_trial(number: int) -> dict[str, Any]:
    """Carry out a case by its number, in a process of a campaign."""
    return asdict(replace(trial(_all_cases()[number]), number=number))


@cache
def _all_cases() -> list[Case]:
    return list(cases())


def trial(case: Case) -> Observation:
    """Carry out one case."""
    error: BaseException | None = None
    with watched() as has_started:
        try:
            case.call()
        except (Exception, SystemExit) as caught:
            error = caught
        outcome = _outcome(case, error, is_late=has_started(), has_written=any(Path().iterdir()))
    message = "" if error is None else f"{type(error).__name__}: {error}"[:MAX_DETAIL]
    return Observation("inputs", case.name.split("(")[0], outcome, what=case.name, detail=message)


def _outcome(case: Case, error: BaseException | None, *, is_late: bool, has_written: bool) -> Outcome:
    if error is None:
        return Outcome.ACCEPTED if case.expected and not case.may_be_taken else Outcome.HARMLESS
    if not isinstance(error, DkrrError):
        return Outcome.RAW
    if not case.expected:  # a number may mean something, and be too large for these data
        is_of_numbers = isinstance(error, NotFiniteError | NotPositiveDefiniteError | KernelFunctionError)
        return Outcome.HARMLESS if is_of_numbers or "no candidate has a score" in str(error) else Outcome.DECLINED
    if not any(re.search(rf"(?<![\w]){re.escape(word)}(?![\w])", str(error)) for word in case.expected):
        return Outcome.MISLED
    if case.may_be_late:
        return Outcome.DETECTED
    if is_late and not isinstance(error, PlanError):
        return Outcome.LATE
    return Outcome.LITTER if has_written else Outcome.DETECTED
