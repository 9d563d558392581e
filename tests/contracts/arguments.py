"""Wrong arguments: every public function, estimator, setting, kernel and feature map × values that mean nothing to it.

`cases` makes them from the signatures; `trial` says of one what happened. An argument that no table here knows may be
given only what `MEANINGS` lists for it, so that a new argument is either checked or listed.
"""

import inspect
import os
import re
import signal
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import cache, partial
from pathlib import Path
from time import process_time
from types import FrameType
from typing import Any
from unittest import mock

import numpy as np
from sklearn.base import clone

import dkrr
from dkrr import features, kernels, solvers
from dkrr.errors import DkrrError, KernelFunctionError, NotFiniteError, NotPositiveDefiniteError, PlanError
from dkrr.fitting import run as fitting_run
from dkrr.selection import run as selection_run
from dkrr.selection.scoring import all_scored
from tests.contracts import options
from tests.contracts.wrong_values import MATRICES, VALUES, VECTORS, D, N, by_argument, labels, rows, targets
from tests.nightly.chaos.outcomes import MAX_DETAIL, Observation, Outcome

SECONDS = 2.0
"""Time of the processor in which a wrong argument is refused."""
MAX_SECONDS = 10.0
"""Time after which a call is given up: it hangs."""


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


def _these(text: str) -> frozenset[str]:
    """Labels of values, which must be known."""
    found = frozenset(text.split())
    assert found <= VALUES.keys(), found - VALUES.keys()
    return found


NOTHING = frozenset[str]()
NONE = _these("None")
FLAG = _these("True False np.True_")
ZERO = _these("0")
COUNT = _these("1 2 np.int64(2)")
HALF = _these("0.5 np.float32(0.5)")
TINY = _these("1e-300")
HUGE_POWER = _these("1e300 10**30")
POSITIVE = COUNT | HALF | TINY | HUGE_POWER | {"1.5"}
REAL = POSITIVE | _these("0 -1 -0.5 -10**30")
WHOLE_POWER = COUNT | HUGE_POWER | ZERO
SCALAR_ARRAY = _these("np.array(2.0)")
PATH = _these("[1,2]")
FUNCTION = _these("function")
NAME = _these("'text' '2' 'nan' 'x'*5000 'nowhere://text'")
TEXT = NAME | _these(r"'' 'a\0b' 'a\ud800'")
PLACE = _these("'text' '2' 'nan' Path('text')")
EMPTY = _these("{}")
MAPPING = _these("{} {'a':1} {1:nan}")
LETTER = _these("['a']")
KERNEL = _these("RBF()")
MAP = _these("IdentityMap()")
SPARSE = frozenset({"sparse array"})
FRACTIONS = HALF | TINY | {"1.5"}

MEANINGS = by_argument(
    (FLAG, "alpha_per_target cosine fit_intercept lowercase normalized overwrite race refit return_std"),
    (FLAG, "store_cv_predictions takes_objects uncertainty warm_start"),
    (NONE, "cores cost groups idf labels memory_limit optimize out preconditioner scoring train_sizes transformer"),
    (NONE, "worker_memory KernelLogisticRegressionCV.store calibrate.folder gram.Y load.kernel plan.y"),
    (NONE | FLAG, "progress plan.fit_intercept"),
    (COUNT, "d max_evaluations max_iter n n_components n_features n_nodes n_sample n_targets"),
    (NONE | COUNT, "chunks n_hashed rank steps tile workers"),
    (NONE | COUNT | ZERO, "start stop"),
    (COUNT | ZERO, "random_state"),
    (COUNT - {"1"}, "Graph.n_nodes KernelLogisticRegressionCV.cv RandomFourier.n_components"),
    (NONE | COUNT - {"1"}, "cv n_classes"),
    (COUNT | FUNCTION, "size"),
    (COUNT | HALF | TINY, "min_df"),
    (HALF, "cv_tol tol"),
    (HALF | TINY, "coverage"),
    (HALF | TINY | ZERO, "weight"),
    (HALF | {"1.5"}, "nu"),
    (NONE | HALF | TINY, "predict_to.interval"),
    (COUNT | HALF | SCALAR_ARRAY | PATH | {"1.5"}, "concentration"),
    (POSITIVE, "decay scale Chi2.gamma calibrate.seconds"),
    (NONE | POSITIVE, "gamma KernelRidge.predict.scale KernelRidgeCV.predict.scale"),
    (NONE | POSITIVE, "KernelRidge.predict_variance_bounds.scale KernelRidgeCV.predict_variance_bounds.scale"),
    (NONE | POSITIVE | SCALAR_ARRAY | PATH, "Laplacian.gamma RBF.gamma"),
    (NONE | POSITIVE | PATH | {"[None]"}, "KernelRidgeCV.gamma KernelLogisticRegressionCV.gamma"),
    (POSITIVE | SCALAR_ARRAY, "KernelLogisticRegression.alpha"),
    (POSITIVE | SCALAR_ARRAY | PATH, "length_scale"),
    (POSITIVE | SCALAR_ARRAY | ZERO, "alpha"),
    (POSITIVE | ZERO, "PolynomialMap.coef0"),
    (NONE | POSITIVE - {"10**30"} | SCALAR_ARRAY, "sample_weight"),
    (NONE | POSITIVE - {"10**30"} | SCALAR_ARRAY | PATH, "plan.alphas"),
    (NONE | POSITIVE | SCALAR_ARRAY | PATH | ZERO, "KernelRidgeCV.alphas"),
    (NONE | PATH, "alphas columns"),
    (PATH, "ngram_range KernelLogisticRegression.fit_path.alphas ColumnsMap.columns"),
    (REAL, "coef0"),
    (REAL | PATH, "KernelRidgeCV.coef0 KernelLogisticRegressionCV.coef0"),
    (WHOLE_POWER, "degree"),
    (WHOLE_POWER - HUGE_POWER, "TaylorMap.degree TaylorRBF.degree"),
    (WHOLE_POWER | PATH, "KernelRidgeCV.degree KernelLogisticRegressionCV.degree"),
    (NONE | {"[[]]"}, "categories"),
    (NONE | MAPPING, "arrays callables"),
    (NONE | EMPTY, "class_weight kernel_params"),
    (NONE | LETTER, "vocabulary"),
    (NONE | LETTER | {"{'a':1}"}, "open_table.columns"),
    (NONE | COUNT | ZERO | PATH | LETTER | TEXT, "Columns.columns"),
    (NONE | {"[]", "()"}, "predict_to.keep"),
    (NONE | NAME, "name"),
    (NONE | TEXT, "label"),
    (TEXT, "token_pattern"),
    (PLACE, "path"),
    (NONE | PLACE, "store report.out"),
    (NOTHING, "load.path predict_to.path status.path verify.path"),
    (NOTHING, "KernelLogisticRegressionCV.max_iter required_feature_map.kernel"),
    ({"table of dates", "table of text"}, "open_table.path"),
    ({"False"}, "predict_to.probabilities"),
    (KERNEL, "base left right smallest_eigenvalue.kernel feature_map.kernel weights_of.kernel whitened.kernel"),
    (KERNEL | MAP, "kernel value"),
    (KERNEL | FUNCTION, "function as_kernel.kernel"),
    (
        MAP,
        "ColumnsMap.base ConcatenatedMap.left ConcatenatedMap.right MapKernel.base ScaledMap.base UnitLengthMap.base",
    ),
    (_these("Cholesky() ConjugateGradient()"), "solver"),
    (_these("[] () {} set() [[]] iter(())") | {"empty array"}, "Graph.edges"),
    (SPARSE, "centres smallest_eigenvalue.X KernelRidge.fit.X KernelRidgeCV.fit.X KernelLogisticRegression.fit.X"),
    (SPARSE, "KernelLogisticRegression.fit_path.X KernelLogisticRegressionCV.fit.X"),
    (SPARSE | {"[1,2]", "[True]"}, "plan.X gram.X"),
)
"""Labels of the values that an argument takes, of one function or of all; the others are refused."""

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
    (UNCHECKED, "Kernel.__call__.X Kernel.diagonal.X Kernel.to.Y"),
    (UNCHECKED | NONE, "Kernel.__call__.Y"),
    (UNREAD, "plan.X plan.y"),  # a plan reads only a sample of the rows
    (COUNT, "KernelLogisticRegressionCV.max_iter"),  # candidates that one step does not solve have no score
    (FUNCTION | KERNEL | MAP | {"int", "RBF"}, "load.kernel"),  # of the model
)
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
    fitted = _fitted(estimator)
    return getattr(clone(fitted) if method.startswith("fit") else fitted, method)(**arguments)


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
            yield Subject(f"{name}.{method}", partial(_method, name, method), f"{name}.{method}", parameters, given)
    yield from _functions()
    for module in (kernels, features, solvers):
        for name in module.__all__:
            if name not in MADE_BY_DKRR:
                value = getattr(module, name)
                yield Subject(f"{module.__name__}.{name}", value, name, _parameters(value), NEEDS.get(name, {}))
    for kernel in (kernels.RBF(), kernels.Polynomial(), kernels.Laplacian(), kernels.Cosine()):
        for method in ("__call__", "diagonal", "resolved", "to"):
            call, given = getattr(kernel, method), {"X": rows()} if method == "__call__" else {}
            yield Subject(f"{type(kernel).__name__}.{method}", call, f"Kernel.{method}", _parameters(call), given)


def _functions() -> Iterator[Subject]:
    folder, _ = _files()
    given: dict[str, dict[str, Any]] = {
        "gram": NEEDS["gram"],
        "save": {"model": _fitted("KernelRidge"), "path": "model.zarr"},
        "load": {"path": str(folder / "model.zarr")},
        "open_table": {"path": str(folder / "table.csv")},
        "predict_to": {"model": _fitted("KernelRidge"), "X": rows(), "path": "predictions.npy"},
        "report": {"subject": _fitted("KernelRidge")},
    }
    others = {*ESTIMATORS, *MADE_BY_DKRR, "__version__"}
    for name in (n for n in dkrr.__all__ if n not in others):
        function = getattr(dkrr, name)
        yield Subject(name, _plan if name == "plan" else function, name, _parameters(function), given.get(name, {}))


@cache
def _files() -> tuple[Path, tempfile.TemporaryDirectory[str]]:
    """Folder with what good calls read, and its owner, which deletes it at exit."""
    owner = tempfile.TemporaryDirectory(prefix="dkrr-inputs-")
    folder = Path(owner.name)
    for name, values in (("x", rows()), ("y", targets()), ("labels", labels())):
        np.save(folder / f"{name}.npy", values)
    (folder / "table.csv").write_text("a,b\n1.0,2.0\n3.0,4.0\n")
    dkrr.save(_fitted("KernelRidge"), folder / "model.zarr")
    dkrr.save(dkrr.KernelRidge(kernel="rbf", solver="cg").fit(rows(), targets()), folder / "cg.zarr")
    return folder, owner


# The table -------------------------------------------------------------------------------------------------------

WORDS = {"path": ("path", "exist"), "subject": ("subject", "exist"), "edges": ("edge", "edges")}
"""How errors name an argument, where not by its name alone."""
BY_ROWS = {"X", "Y", "y", "sample_weight", "groups"}
"""Arguments that have an entry for each row: all are read before a bad one is found."""
USED = {"function", "int"}
"""Values whose faults show when they are used."""


def _listed(table: Mapping[str, frozenset[str]], subject: Subject, name: str) -> frozenset[str]:
    """Labels that a table lists for an argument of one owner, or of all."""
    return table.get(f"{subject.owner}.{name}", table.get(name, NOTHING))


def cases() -> Iterator[Case]:
    """Every argument of every function with every value, first those of Python and then those of the command line."""
    for subject in subjects():
        for name in subject.parameters:
            means = _listed(MEANINGS, subject, name)
            unsure = _listed(EITHER, subject, name) - means
            more = MATRICES if name in ("X", "Y") else VECTORS if name in BY_ROWS else {}
            for label, make in (VALUES | more).items():
                if label in means and subject.name == "calibrate":  # measures for seconds
                    continue
                yield Case(
                    f"{subject.name}({name}={label})",
                    partial(_call, subject, name, make),
                    () if label in means else WORDS.get(name, (name,)),
                    label in unsure,
                    name in BY_ROWS or label in USED or label in unsure,
                )
    for name, call, words, may_be_taken in options.calls(_files()[0]):
        yield Case(name, call, words, may_be_taken, may_be_late=may_be_taken)


def _call(subject: Subject, name: str, make: Callable[[], Any]) -> Any:
    return subject.call(**{**subject.given, name: make()})


# The judge -------------------------------------------------------------------------------------------------------


class _Hang(BaseException):
    """A call was given up."""


def _give_up(signal_number: int, frame: FrameType | None) -> None:
    raise _Hang


@contextmanager
def _time_limit(seconds: float) -> Iterator[None]:
    """Raise _Hang after some time, in the main thread."""
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
        stack.callback(os.chdir, Path.cwd())
        os.chdir(folder)
        stack.enter_context(mock.patch.object(fitting_run, "LOSSES", losses))
        stack.enter_context(mock.patch.object(selection_run, "all_scored", noted(all_scored)))
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")
        yield started


def trial(case: Case) -> Observation:
    """Carry out one case; once more if it was slow, as a busy machine makes any call."""
    found = _tried(case)
    return _tried(case) if found.outcome == Outcome.HANG else found


def numbered_trial(number: int) -> dict[str, Any]:
    """Carry out a case by its number, in a process of a campaign."""
    return asdict(replace(trial(_all_cases()[number]), number=number))


@cache
def _all_cases() -> list[Case]:
    return list(cases())


def _tried(case: Case) -> Observation:
    with watched() as started:
        begun = process_time()
        error: BaseException | None = None
        try:
            with _time_limit(MAX_SECONDS):
                case.call()
        except (Exception, _Hang, SystemExit) as caught:
            error = caught
        has_written = any(Path().iterdir())
    message = "" if error is None else f"{type(error).__name__}: {error}"[:MAX_DETAIL]
    if isinstance(error, _Hang) or (case.expected and error and process_time() - begun > SECONDS):
        outcome = Outcome.HANG
    else:
        outcome = _outcome(case, error, is_late=bool(started), has_written=has_written)
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
