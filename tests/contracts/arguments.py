"""Wrong arguments: every public function, estimator, setting, kernel and feature map × values that mean nothing to it.

`cases` makes them from the signatures; `trial` says of one what happened. An argument that no table here knows may be
given only what `MEANINGS` lists for it, so that a new argument is either checked or listed.
"""

import inspect
import os
import re
import signal
import tempfile
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from time import perf_counter
from types import FrameType
from typing import Any, Literal
from unittest import mock

import numpy as np

import dkrr
from benchmarks import chaos_options
from benchmarks.chaos_values import MATRICES, VALUES, VECTORS, D, N, Values, labels, rows, targets
from dkrr import features, kernels, solvers
from dkrr.errors import DkrrError, KernelFunctionError, NotFiniteError, NotPositiveDefiniteError, PlanError
from dkrr.fitting import run as fitting_run
from dkrr.selection import run as selection_run
from dkrr.selection.scoring import all_scored

SECONDS = 2.0
"""Time in which a wrong argument is refused."""
MAX_SECONDS = 10.0
"""Time after which a call is given up: it hangs."""

Verdict = Literal["refused", "accepted", "raw", "unnamed", "late", "wrote", "slow", "taken", "declined"]
BAD: Mapping[Verdict, str] = {
    "raw": "an error that is not dkrr's",
    "unnamed": "an error that does not name the argument",
    "late": "refused after work had started",
    "wrote": "refused, and something was written",
    "slow": f"no answer within {SECONDS:g} s",
    "taken": "accepted, and means nothing",
    "declined": "refused, and means something",
}
"""Verdicts on what should not happen."""


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


@dataclass(frozen=True)
class Outcome:
    """What a case led to."""

    case: Case
    verdict: Verdict
    message: str
    seconds: float

    @property
    def is_good(self) -> bool:
        """Whether it was refused by a clear error, or accepted and means something."""
        return self.verdict not in BAD

    def __str__(self) -> str:
        return f"{self.case.name}: {BAD.get(self.verdict, self.verdict)} ({self.seconds:.2f} s): {self.message[:300]}"


# What means something --------------------------------------------------------------------------------------------

NOTHING = frozenset[str]()
NONE = frozenset({"None"})
FLAG = frozenset({"True", "False", "bool_ True"})
COUNT = frozenset({"1", "2", "int64 2"})
HALF = frozenset({"0.5", "float32 0.5"})
POSITIVE = frozenset({"1", "2", "0.5", "1.5", "float32 0.5", "int64 2", "1e-300", "1e300", "10**30"})
NOT_NEGATIVE = POSITIVE | {"0"}
REAL = NOT_NEGATIVE | {"-1", "-0.5", "-10**30"}
HUGE_POWER = frozenset({"1e300", "10**30"})
WHOLE_POWER = COUNT | HUGE_POWER | {"0"}
SCALAR_ARRAY = frozenset({"array of 0 dimensions"})
PATH = frozenset({"[1, 2]"})
FUNCTION = frozenset({"function"})
TEXT = frozenset({
    "empty text", "text", "text 2", "text nan", "null byte", "lone surrogate", "long text", "unknown protocol",
})  # fmt: skip
NAME = TEXT - {"empty text", "null byte", "lone surrogate"}
PLACE = frozenset({"text", "text 2", "text nan", "Path"})
EMPTY = frozenset({"{}"})
MAPPING = frozenset({"{}", "{'a': 1}", "{1: nan}"})
KERNEL = frozenset({"RBF()"})
MAP = frozenset({"IdentityMap()"})
SPARSE = frozenset({"sparse array"})

MEANINGS: dict[str, frozenset[str]] = {
    "alpha": NOT_NEGATIVE | SCALAR_ARRAY,
    "alpha_per_target": FLAG,
    "alphas": NONE | PATH,
    "arrays": NONE | MAPPING,
    "base": KERNEL,
    "callables": NONE | MAPPING,
    "centres": SPARSE,
    "chunks": NONE | COUNT,
    "class_weight": NONE | EMPTY,
    "coef0": REAL,
    "columns": NONE | {"[1, 2]"},
    "concentration": COUNT | HALF | {"1.5"} | SCALAR_ARRAY | PATH,
    "cosine": FLAG,
    "cost": NONE,
    "coverage": frozenset({"0.5", "float32 0.5", "1e-300"}),
    "cv": NONE | COUNT - {"1"},
    "cv_tol": HALF,
    "d": COUNT,
    "decay": POSITIVE,
    "degree": WHOLE_POWER,
    "fit_intercept": FLAG,
    "function": FUNCTION | KERNEL,
    "gamma": NONE | POSITIVE,
    "groups": NONE,
    "idf": NONE,
    "kernel": KERNEL | MAP,
    "kernel_params": NONE | EMPTY,
    "label": NONE | TEXT,
    "labels": NONE,
    "left": KERNEL,
    "length_scale": POSITIVE | SCALAR_ARRAY | {"[1, 2]"},
    "lowercase": FLAG,
    "max_evaluations": COUNT,
    "max_iter": COUNT,
    "memory_limit": NONE,
    "min_df": COUNT | HALF | {"1e-300"},
    "n": COUNT,
    "n_candidates": NOTHING,
    "n_classes": NONE | COUNT - {"1"},
    "n_components": COUNT,
    "n_features": COUNT,
    "n_hashed": NONE | COUNT,
    "n_nodes": COUNT,
    "n_sample": COUNT,
    "n_targets": COUNT,
    "name": NONE | NAME,
    "ngram_range": frozenset({"[1, 2]"}),
    "normalized": FLAG,
    "out": NONE,
    "nu": HALF | {"1.5"},
    "optimize": NONE,
    "overwrite": FLAG,
    "path": PLACE,
    "preconditioner": NONE,
    "progress": NONE | FLAG,
    "race": FLAG,
    "random_state": COUNT | {"0"},
    "rank": NONE | COUNT,
    "refit": FLAG,
    "return_std": FLAG,
    "right": KERNEL,
    "sample_weight": NONE | POSITIVE - {"10**30"} | SCALAR_ARRAY,
    "scale": POSITIVE,
    "scoring": NONE,
    "size": COUNT | FUNCTION,
    "solver": frozenset({"Cholesky()", "ConjugateGradient()"}),
    "start": NONE | COUNT | {"0"},
    "steps": NONE | COUNT,
    "stop": NONE | COUNT | {"0"},
    "store": NONE | PLACE,
    "store_cv_predictions": FLAG,
    "takes_objects": FLAG,
    "tile": NONE | COUNT,
    "token_pattern": TEXT,
    "tol": HALF,
    "train_sizes": NONE,
    "uncertainty": FLAG,
    "value": KERNEL | MAP,
    "vocabulary": NONE | {"['a']"},
    "warm_start": FLAG,
    "weighting": NOTHING,
    "worker_memory": NONE | {"1", "2", "1.5", "int64 2", "text 2"},
    "workers": NONE | COUNT,
}
"""Labels of the values that an argument of this name takes; the others are refused."""

OWN: dict[tuple[str, str], frozenset[str]] = {
    ("KernelRidgeCV", "alphas"): NONE | NOT_NEGATIVE | SCALAR_ARRAY | PATH,
    ("KernelRidgeCV", "coef0"): REAL | PATH,
    ("KernelRidgeCV", "degree"): WHOLE_POWER | PATH,
    ("KernelRidgeCV", "gamma"): NONE | POSITIVE | PATH | {"[None]"},
    ("KernelLogisticRegression", "alpha"): POSITIVE | SCALAR_ARRAY,
    ("KernelLogisticRegression.fit_path", "alphas"): PATH,
    ("KernelLogisticRegressionCV", "coef0"): REAL | PATH,
    ("KernelLogisticRegressionCV", "cv"): COUNT - {"1"},
    ("KernelLogisticRegressionCV", "degree"): WHOLE_POWER | PATH,
    ("KernelLogisticRegressionCV", "max_iter"): NOTHING,
    ("KernelLogisticRegressionCV", "gamma"): NONE | POSITIVE | PATH | {"[None]"},
    ("KernelLogisticRegressionCV", "store"): NONE,
    ("KernelRidge.fit", "X"): SPARSE,
    ("KernelRidgeCV.fit", "X"): SPARSE,
    ("KernelLogisticRegression.fit", "X"): SPARSE,
    ("KernelLogisticRegression.fit_path", "X"): SPARSE,
    ("KernelLogisticRegressionCV.fit", "X"): SPARSE,
    ("KernelRidge.predict", "scale"): NONE | POSITIVE,
    ("KernelRidgeCV.predict", "scale"): NONE | POSITIVE,
    ("KernelRidge.predict_variance_bounds", "scale"): NONE | POSITIVE,
    ("KernelRidgeCV.predict_variance_bounds", "scale"): NONE | POSITIVE,
    ("plan", "X"): SPARSE | {"[1, 2]", "[True]"},
    ("plan", "alphas"): NONE | POSITIVE - {"10**30"} | SCALAR_ARRAY | PATH,
    ("plan", "fit_intercept"): NONE | FLAG,
    ("plan", "transformer"): NONE,
    ("plan", "y"): NONE,
    ("gram", "X"): SPARSE | {"[1, 2]", "[True]"},
    ("gram", "Y"): NONE,
    ("load", "kernel"): NONE,
    ("load", "path"): NOTHING,
    ("load", "transformer"): NONE,
    ("open_table", "columns"): NONE | {"['a']", "{'a': 1}"},
    ("open_table", "path"): frozenset({"table of dates", "table of text"}),
    ("predict_to", "interval"): NONE | {"0.5", "float32 0.5", "1e-300"},
    ("predict_to", "keep"): NONE | {"[]", "()"},
    ("predict_to", "path"): NOTHING,
    ("predict_to", "probabilities"): frozenset({"False"}),
    ("report", "out"): NONE | PLACE,
    ("status", "path"): NOTHING,
    ("verify", "path"): NOTHING,
    ("calibrate", "folder"): NONE,
    ("calibrate", "seconds"): POSITIVE,
    ("Chi2", "gamma"): POSITIVE,
    ("Columns", "columns"): NONE | COUNT | {"0"} | {"[1, 2]", "['a']"} | TEXT,
    ("ColumnsMap", "base"): MAP,
    ("ColumnsMap", "columns"): frozenset({"[1, 2]"}),
    ("ConcatenatedMap", "left"): MAP,
    ("ConcatenatedMap", "right"): MAP,
    ("Graph", "edges"): frozenset({"[]", "()", "{}", "set()", "empty array", "[[]]", "generator"}),
    ("Graph", "n_nodes"): COUNT - {"1"},
    ("Laplacian", "gamma"): NONE | POSITIVE | SCALAR_ARRAY | PATH,
    ("MapKernel", "base"): MAP,
    ("NystroemMap", "whitening"): NOTHING,
    ("PolynomialMap", "coef0"): NOT_NEGATIVE,
    ("RBF", "gamma"): NONE | POSITIVE | SCALAR_ARRAY | PATH,
    ("RandomFourier", "n_components"): COUNT - {"1"},
    ("ScaledMap", "base"): MAP,
    ("TaylorMap", "degree"): WHOLE_POWER - HUGE_POWER,
    ("TaylorRBF", "degree"): WHOLE_POWER - HUGE_POWER,
    ("UnitLengthMap", "base"): MAP,
    ("smallest_eigenvalue", "X"): SPARSE,
    ("smallest_eigenvalue", "kernel"): KERNEL,
    ("feature_map", "kernel"): KERNEL,
    ("required_feature_map", "kernel"): NOTHING,
    ("weights_of", "kernel"): KERNEL,
    ("whitened", "kernel"): KERNEL,
    ("as_kernel", "kernel"): KERNEL | FUNCTION,
}
"""Exceptions: what an argument of this name takes of one function or class."""

FRACTIONS = frozenset({"0.5", "1.5", "float32 0.5", "1e-300"})
UNREAD = frozenset({"[nan]", "NaN in row 5", "infinity in row 5", "list of masked", "series with NA", "masked table"})
UNCHECKED = SPARSE | {"NaN in row 5", "infinity in row 5", "no rows"}
"""Blocks of rows that are checked before kernels are called."""
GIVEN_GROUPS = frozenset({
    "structured array", "NaN in row 5", "infinity in row 5", "vector of dates", "vector of text and numbers",
    "series of dates", "series with NA", "complex vector", "list of None",
})  # fmt: skip
EITHER: dict[tuple[str, str], frozenset[str]] = {
    ("", "degree"): FRACTIONS,  # of rows that are not negative
    ("", "kernel"): FUNCTION,  # of blocks of rows
    ("", "groups"): GIVEN_GROUPS,  # what the splitter takes
    ("", "scoring"): FUNCTION | KERNEL,  # of an estimator, rows and targets
    ("", "size"): KERNEL,
    ("", "concentration"): POSITIVE,  # drawn until the candidates differ
    ("", "train_sizes"): PATH,  # of the folds' rows and classes
    ("Kernel.__call__", "X"): UNCHECKED,
    ("Kernel.__call__", "Y"): UNCHECKED | NONE,
    ("Kernel.diagonal", "X"): UNCHECKED,
    ("Kernel.to", "Y"): UNCHECKED,
    ("plan", "X"): UNREAD,  # a plan reads only a sample of the rows
    ("plan", "y"): UNREAD,
    ("KernelLogisticRegressionCV", "max_iter"): COUNT,  # candidates that one step does not solve have no score
    ("load", "kernel"): FUNCTION | KERNEL | MAP | {"class", "class RBF"},  # of the model
}
"""Values that an argument takes or refuses, for the reason beside them: a refusal names the argument."""

ESTIMATORS: dict[str, tuple[type[Any], Callable[[], Any]]] = {
    "KernelRidge": (dkrr.KernelRidge, targets),
    "KernelRidgeCV": (dkrr.KernelRidgeCV, targets),
    "KernelLogisticRegression": (dkrr.KernelLogisticRegression, labels),
    "KernelLogisticRegressionCV": (dkrr.KernelLogisticRegressionCV, labels),
}
METHODS = (
    "fit", "fit_path", "predict", "predict_interval", "predict_variance_bounds", "predict_proba", "predict_log_proba",
    "decision_function", "score",
)  # fmt: skip
MADE_BY_DKRR = {"EntryCost", "Kernel", "SampledSpectrum", "FeatureMap", "SolveResult", "Status", "Table"}
"""Public classes that users are given, or derive from, and do not make."""
NEEDS: dict[str, dict[str, Any]] = {
    "CallableMap": {"function": np.sin, "size": 2},
    "CallableKernel": {"function": np.sin},
    "Columns": {"base": kernels.RBF()},
    "ColumnsMap": {"base": features.IdentityMap(), "columns": (0,)},
    "Graph": {"n_nodes": 3, "edges": [(0, 1)]},
    "MapKernel": {"base": features.IdentityMap()},
    "Normalized": {"base": kernels.RBF()},
    "Nystroem": {"base": kernels.RBF(), "n_components": 4},
    "NystroemMap": {"base": kernels.RBF(), "centres": np.eye(N), "whitening": np.eye(N)},
    "RandomFourier": {"base": kernels.RBF(), "n_components": 4},
    "RandomWalk": {"decay": 0.1},
    "Scaled": {"base": kernels.RBF(), "scale": 2.0},
    "ScaledMap": {"base": features.IdentityMap(), "scale": 2.0},
    "Sum": {"left": kernels.RBF(), "right": kernels.Linear()},
    "Product": {"left": kernels.RBF(), "right": kernels.Linear()},
    "ConcatenatedMap": {"left": features.IdentityMap(), "right": features.NormalizedMap()},
    "TaylorMap": {"degree": 2},
    "TaylorRBF": {"degree": 2},
    "UnitLengthMap": {"base": features.IdentityMap()},
    "arrays_of": {"value": kernels.RBF()},
    "as_kernel": {"kernel": "polynomial"},
    "feature_map": {"kernel": kernels.Linear(), "n_features": D},
    "required_feature_map": {"kernel": kernels.Linear(), "n_features": D},
    "feature_map_from_dict": {"description": {"feature_map": "identity"}},
    "kernel_from_dict": {"description": {"kernel": "linear"}},
    "smallest_eigenvalue": {"kernel": kernels.RBF(), "X": rows()},
    "weighted_sums": {"kernels": [kernels.RBF(), kernels.Linear()]},
    "weights_of": {"kernel": kernels.RBF(), "kernels": [kernels.RBF(), kernels.Linear()]},
    "whitened": {"kernel": kernels.RBF(), "centres": rows()},
    "gram": {"X": rows(), "kernel": "polynomial"},
}
"""Arguments that make a good call, without the one that is tried."""


@dataclass(frozen=True)
class Subject:
    """A function or a method, and the arguments of a good call."""

    name: str
    call: Callable[..., Any]
    owner: str
    parameters: tuple[str, ...]
    given: Mapping[str, Any] = field(default_factory=dict)
    is_quick: bool = True
    """Whether good calls are tried, too."""


def _parameters(function: Callable[..., Any]) -> tuple[str, ...]:
    return tuple(name for name, p in inspect.signature(function).parameters.items() if name != "self" and p.kind < 4)


def _fit(kind: type[Any], data: Callable[[], Any], **settings: Any) -> Any:
    return kind(**_candidates(kind) | {"kernel": "polynomial"} | settings).fit(rows(), data())


def _candidates(kind: type[Any]) -> dict[str, Any]:
    """Arguments that make a search short."""
    return {"alphas": [0.1, 1.0], "cv": 2} if kind.__name__.endswith("CV") else {}


@cache
def _fitted(name: str) -> Any:
    kind, data = ESTIMATORS[name]
    return kind(**_candidates(kind), kernel="rbf").fit(rows(), data())


def _method(estimator: str, method: str, **arguments: Any) -> Any:
    return getattr(_fitted(estimator), method)(**arguments)


def _refit(estimator: str, method: str, **arguments: Any) -> Any:
    kind, _ = ESTIMATORS[estimator]
    return getattr(kind(**_candidates(kind), kernel="rbf"), method)(**arguments)


def _plan(**arguments: Any) -> Any:
    if arguments.get("worker_memory") is not None:
        arguments.setdefault("workers", 2)
    if "n_classes" in arguments or "multi_class" in arguments:
        arguments.setdefault("loss", "logistic")
    if "X" in arguments or "y" in arguments:
        return dkrr.plan(**{"X": rows()} | arguments)
    return dkrr.plan(**{"n": 100, "d": 3, "kernel": "polynomial"} | arguments)


def subjects() -> Iterator[Subject]:
    """All that users call."""
    for name, (kind, data) in ESTIMATORS.items():
        yield Subject(name, partial(_fit, kind, data), name, _parameters(kind))
        for method in (m for m in METHODS if hasattr(kind, m)):
            parameters = _parameters(getattr(kind, method))
            given = {"X": rows(), "y": data(), "alphas": [0.1, 1.0]}
            if method == "predict" and "scale" in parameters:
                given["return_std"] = True
            given = {key: value for key, value in given.items() if key in (*parameters, "return_std")}
            call = partial(_refit if method.startswith("fit") else _method, name, method)
            yield Subject(f"{name}.{method}", call, f"{name}.{method}", parameters, given)
    yield from _functions()
    for module in (kernels, features, solvers):
        for name in module.__all__:
            if name not in MADE_BY_DKRR:
                value = getattr(module, name)
                yield Subject(f"{module.__name__}.{name}", value, name, _parameters(value), NEEDS.get(name, {}))
    for kernel in (kernels.RBF(), kernels.Polynomial(), kernels.Laplacian(), kernels.Cosine()):
        for method in ("__call__", "diagonal", "resolved", "to"):
            call = getattr(kernel, method)
            name = f"{type(kernel).__name__}.{method}"
            yield Subject(
                name, call, f"Kernel.{method}", _parameters(call), {"X": rows()} if method == "__call__" else {}
            )


def _functions() -> Iterator[Subject]:
    given: dict[str, dict[str, Any]] = {
        "gram": NEEDS["gram"],
        "save": {"model": _fitted("KernelRidge"), "path": "model.zarr"},
        "load": {"path": _model()},
        "open_table": {"path": _table()},
        "predict_to": {"model": _fitted("KernelRidge"), "X": rows(), "path": "predictions.npy"},
        "report": {"subject": _fitted("KernelRidge")},
    }
    others = {*ESTIMATORS, *MADE_BY_DKRR, "__version__"}
    for name in (n for n in dkrr.__all__ if n not in others):
        function = getattr(dkrr, name)
        call = _plan if name == "plan" else function
        yield Subject(name, call, name, _parameters(function), given.get(name, {}), is_quick=name != "calibrate")


@cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    """Files that good calls read; deleted at exit."""
    return tempfile.TemporaryDirectory(prefix="dkrr-inputs-")


@cache
def _model() -> str:
    path = str(Path(_folder().name, "model.zarr"))
    dkrr.save(_fitted("KernelRidge"), path)
    return path


@cache
def _table() -> str:
    path = Path(_folder().name, "table.csv")
    path.write_text("a,b\n1.0,2.0\n3.0,4.0\n")
    return str(path)


# The table -------------------------------------------------------------------------------------------------------

WORDS = {"path": ("path", "exist"), "subject": ("subject", "exist"), "edges": ("edge", "edges")}
"""How errors name an argument, where not by its name alone."""
BY_ROWS = {"X", "Y", "y", "sample_weight", "groups"}
"""Arguments that have an entry for each row: all are read before a bad one is found."""
USED = {"function", "class"}
"""Values whose faults show when they are used."""


def values_for(name: str) -> Values:
    """What is given to an argument of this name."""
    if name in ("X", "Y"):
        return VALUES | MATRICES
    return VALUES | VECTORS if name in BY_ROWS else VALUES


def cases() -> Iterator[Case]:
    """Every argument of every function with every value, first those of Python and then those of the command line."""
    for subject in subjects():
        for name in subject.parameters:
            means = OWN.get((subject.owner, name), MEANINGS.get(name, NOTHING))
            unsure = EITHER.get((subject.owner, name), EITHER.get(("", name), NOTHING)) - means
            for label, make in values_for(name).items():
                if label in means and not subject.is_quick:
                    continue
                yield Case(
                    f"{subject.name}({name}={label})",
                    partial(_call, subject, name, make),
                    () if label in means else WORDS.get(name, (name,)),
                    label in unsure,
                    name in BY_ROWS or label in USED or label in unsure,
                )

    yield from _of_options()


def _of_options() -> Iterator[Case]:
    folder = Path(_folder().name)
    x, y, codes, model = (str(folder / name) for name in ("x.npy", "y.npy", "labels.npy", "cg.zarr"))
    if not Path(model).exists():
        np.save(x, rows())
        np.save(y, targets())
        np.save(codes, labels())
        dkrr.save(dkrr.KernelRidge(kernel="rbf", solver="cg").fit(rows(), targets()), model)
    for name, call, words, may_be_taken in chaos_options.calls(chaos_options.Files(x, y, codes, model)):
        yield Case(name, call, words, may_be_taken, may_be_late=may_be_taken)


def _call(subject: Subject, name: str, make: Callable[[], Any]) -> Any:
    return subject.call(**{**subject.given, name: make()})


class _Hang(BaseException):
    """A call was given up."""


def _give_up(signal_number: int, frame: FrameType | None) -> None:  # noqa: ARG001
    raise _Hang


@contextmanager
def _time_limit(seconds: float) -> Iterator[None]:
    """Raise _Hang after some time; only the main thread can be interrupted."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGALRM, _give_up)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@contextmanager
def watched() -> Iterator[list[str]]:
    """Yield a list to which every start of work is added; within, relative paths are those of an empty folder."""
    started: list[str] = []

    def noted(function: Callable[..., Any]) -> Callable[..., Any]:
        def carry_out(*arguments: Any) -> Any:
            started.append(function.__name__)
            return function(*arguments)

        return carry_out

    losses = {loss: how._replace(carry_out=noted(how.carry_out)) for loss, how in fitting_run.LOSSES.items()}
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="dkrr-inputs-"))
        here = Path.cwd()
        stack.callback(os.chdir, here)
        os.chdir(folder)
        stack.enter_context(mock.patch.object(fitting_run, "LOSSES", losses))
        stack.enter_context(mock.patch.object(selection_run, "all_scored", noted(all_scored)))
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")
        yield started


def trial(case: Case) -> Outcome:
    """Carry out one case; once more if it was slow, as a busy machine makes any call."""
    outcome = _tried(case)
    return _tried(case) if outcome.verdict == "slow" else outcome


def _tried(case: Case) -> Outcome:
    with watched() as started:
        begun = perf_counter()
        error: BaseException | None = None
        try:
            with _time_limit(MAX_SECONDS):
                case.call()
        except (Exception, _Hang, SystemExit) as caught:
            error = caught
        seconds = perf_counter() - begun
        left = list(Path().iterdir())
        verdict = _verdict(case, error, seconds, is_late=bool(started), has_written=bool(left))
    message = "" if error is None else f"{type(error).__name__}: {error}"
    return Outcome(case, verdict, message, seconds)


def _verdict(case: Case, error: BaseException | None, seconds: float, *, is_late: bool, has_written: bool) -> Verdict:
    if isinstance(error, _Hang) or (error is not None and seconds > SECONDS):
        return "slow"
    if error is None:
        return "taken" if case.expected and not case.may_be_taken else "accepted"
    if not isinstance(error, DkrrError):
        return "raw"
    if not case.expected:  # a number may mean something, and be too large for these data
        is_of_numbers = isinstance(error, NotFiniteError | NotPositiveDefiniteError | KernelFunctionError)
        return "accepted" if is_of_numbers else "declined"
    if not names(str(error), case.expected):
        return "unnamed"
    if case.may_be_late:
        return "refused"
    return "late" if is_late and not isinstance(error, PlanError) else "wrote" if has_written else "refused"


def names(message: str, words: tuple[str, ...]) -> bool:
    """Whether a message has one of some words."""
    return any(re.search(rf"(?<![\w]){re.escape(word)}(?![\w])", message) for word in words)
