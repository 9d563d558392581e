"""``dkrr fit``, ``select``, ``predict``, ``suggest`` and ``plan``."""

import hashlib
import json
import logging
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any

import click
from click.core import ParameterSource

from dkrr.checks import checked_count, location, shown
from dkrr.cli.command import answer, echo, named
from dkrr.cli.options import candidates, command, folds, kernel_params, train_sizes, whole
from dkrr.config import setting
from dkrr.errors import DkrrError, InputError, InputTypeError, is_transient

logger = logging.getLogger("dkrr")

ROW_OPTIONS = "columns exclude numeric drop_missing standardize one_hot unknown impute transformer"
MODEL_OPTIONS = (
    "kernel gamma degree coef0 kernel_param alpha logistic one_vs_rest fit_intercept form solver tol solver_max_iter "
    "device memory_limit tile store scheduler"
)
ESTIMATOR_OPTIONS = (
    "kernel",
    "gamma",
    "degree",
    "coef0",
    "form",
    "solver",
    "tol",
    "device",
    "memory_limit",
    "tile",
    "store",
)
"""Options that are arguments of an estimator as they are."""
SEARCH_OPTIONS = ("scoring", "fit_intercept", "solver", "tol", "device", "memory_limit")
"""Options of a search."""
LOGISTIC = ("class_weight", "max_iter", "one_vs_rest")
RIDGE_OPTIONS = ("store", "alpha_per_target")
"""Options of a search without --logistic."""
NEW_ROWS_OPTIONS = {"x", "columns", "model", "proba", "std", "interval", "memory_limit", "scheduler", "json"}
"""Options of a plan of predictions."""
KERNEL = ("kernel", "gamma", "degree")
"""Options of which a search takes several values."""
INPUTS = ("x", "y", "sample_weight", "transformer")
NO_MATTER = ("model", "out", "overwrite", "store", "device", "memory_limit", "tile", "json", "quiet")
"""Options that change where and how a result is computed and what is printed, not the result; but for inputs."""
SIZES = ("n_targets", "n_classes", "workers", "worker_memory", "cores")


@command(
    "config x y sample_weight",
    ROW_OPTIONS,
    "model overwrite uncertainty intervals accept_unconverged class_weight max_iter",
    MODEL_OPTIONS,
    "json quiet",
    required="x y model",
)
def fit(**given: Any) -> None:
    """Fit a model and save it: kernel ridge regression, or with --logistic kernel logistic regression.

    A fit that does not reach the required accuracy ends with status 1, and its model is saved only with
    --accept-unconverged.
    """
    import dkrr as library
    from dkrr.cli.show import fit_text

    given["command"] = _command_digest("fit", given)
    if _is_finished(given):
        return
    _check_places(given)
    _check_store(given["store"])
    _refuse_other_loss(given)
    _refuse_uncertainty(given)
    X, transformer = _training_rows(given)
    settings = _settings(given) | {"transformer": transformer, "progress": not given["quiet"]} | _uncertainty(given)
    model: Any = (library.KernelLogisticRegression if given["logistic"] else library.KernelRidge)(**settings)
    model.fit(X, given["y"], sample_weight=given["sample_weight"])
    result = model.solve_result_
    is_saved = _save_if_good(model, given)
    path = given["model"] if is_saved else None
    values = {"model": path} | result.to_dict() | {"plan": model.plan_.to_dict()}
    answer(given, values, fit_text(model, path, is_short=given["quiet"]))
    if not is_saved:
        raise _not_saved(result)


@command(
    "config x y sample_weight",
    ROW_OPTIONS,
    "model overwrite uncertainty intervals accept_unconverged rows alphas cv shuffle scoring kernel gamma degree",
    "kernel_param alpha_per_target train_sizes fit_intercept logistic one_vs_rest class_weight max_iter solver tol",
    "device memory_limit store scheduler out json quiet",
    required="x y",
)
def select(**given: Any) -> None:
    """Choose λ, the kernel and its parameters by cross-validation, and fit with the best.

    Models are of kernel ridge regression, or with --logistic of kernel logistic regression.
    """
    import dkrr as library
    from dkrr.cli import pictures
    from dkrr.cli.show import search_text, search_values
    from dkrr.estimators.model_description import search_summary

    _refuse_other_loss(given, RIDGE_OPTIONS)
    given["command"] = _command_digest("select", given)
    if _is_finished(given):
        return
    _check_places(given)
    _refuse_uncertainty(given)
    if (option := _uncertainty_option(given)) and given["model"] is None:
        raise InputError(f"{option} is given without --model; give --model with it")
    if given["out"] is not None:
        pictures.check_path(given["out"], overwrite=given["overwrite"])
    _check_store(given["store"], is_folder=True)
    X, transformer = _training_rows(given)
    rows, sample = (X, given["y"], given["sample_weight"]), None
    if given["rows"] is not None:
        rows, sample = _sampled(rows, given)
    settings: dict[str, Any] = {
        **_kernels(given, is_search=True),
        "kernel_params": kernel_params(given["kernel_param"]),
        "transformer": transformer,
        "train_sizes": train_sizes(given["train_sizes"]),
        "cv": folds(given["cv"], given["shuffle"], is_classification=given["logistic"]),
        "refit": given["model"] is not None and sample is None,
        "progress": not given["quiet"],
        "alphas": candidates(given["alphas"], "--alphas"),
        **{name: given[name] for name in (*SEARCH_OPTIONS, *(LOGISTIC if given["logistic"] else RIDGE_OPTIONS))},
    }
    settings = {name: value for name, value in settings.items() if value not in (None, [])} | _uncertainty(given)
    search: Any = (library.KernelLogisticRegressionCV if given["logistic"] else library.KernelRidgeCV)(**settings)
    search.fit(*rows)
    path = given["model"]
    if path is not None:
        if sample is not None:
            best = {key: value for key, value in search.best_params_.items() if key in ("alpha", "kernel", "gamma")}
            logger.info("chosen: %s; the fit of all %s rows follows", best, f"{sample['of']:,}")
            search._fit_to(X, given["y"], given["sample_weight"])
        path = path if _save_if_good(search, given) else None
    if given["out"] is not None:
        pictures.write(given["out"], *pictures.of_search(search_summary(search)), overwrite=given["overwrite"])
    values = search_values(search, path)
    if sample is not None:
        values["sample"] = sample
        if given["model"] is not None:
            values["fit"] = search.solve_result_.to_dict() | {"plan": search.plan_.to_dict()}
    answer(given, values, search_text(search, values))
    if path is None and given["model"] is not None:
        raise _not_saved(search.solve_result_)


@command(
    "config model x columns exclude numeric out keep overwrite memory_limit scheduler proba std interval json quiet",
    required="model x out",
)
def predict(**given: Any) -> None:
    """Predict with a saved model, one block of rows at a time; --out is created only when it is complete."""
    import dkrr as library
    from dkrr.estimators.predict_to import check_predictions_path, write_predictions
    from dkrr.store.paths import refuse_enclosing

    given["command"] = _command_digest("predict", given, ("x", "model"))
    if _is_written(given, "predicts"):
        return
    path, out = given["model"], given["out"]
    refuse_enclosing({"--out": out}, {"--x": given["x"], "--model": path})
    with named("--out"):
        check_predictions_path(out, overwrite=given["overwrite"], name="--out")
    model = _loaded(path)
    if given["proba"] and not hasattr(model, "predict_proba"):
        raise InputError(
            f"--proba is given, but {path} is a {type(model).__name__}; expected a KernelLogisticRegression"
        )
    if hasattr(model, "feature_names_in_"):
        given["numeric"] = False  # the model takes its columns by name
    X, asked = _chosen_rows(given), _asked(given)
    plan = {"plan": library.plan(X, model=model, **asked).to_dict()} if given["json"] else {}
    written: Any = {
        "keep": given["keep"],
        "overwrite": given["overwrite"],
        "progress": False if given["quiet"] else None,
        "command": given["command"],
    }
    shape = list(write_predictions(model, X, out, **asked, **written))
    answer(given, {"out": out, "shape": shape} | plan, f"{shape} predictions in {out}")


def _asked(given: Mapping[str, Any]) -> dict[str, Any]:
    """Outputs that are requested for new rows, as arguments of `dkrr.plan` and `dkrr.predict_to`."""
    names = {"proba": "probabilities", "std": "return_std", "interval": "interval", "memory_limit": "memory_limit"}
    return {argument: given[name] for name, argument in names.items()}


def _loaded(path: str, name: str = "--model") -> Any:
    """Saved model, which messages call `name`."""
    import dkrr as library

    with named(name):
        return library.load(location(path, name, "the path or URL of a saved model", is_kept=True))


@command(
    "config x columns exclude numeric k n_candidates random_state out keep overwrite memory_limit scheduler json quiet",
    required="x k out",
    argument="MODEL",
)
def suggest(**given: Any) -> None:
    """Suggest the rows of --x to measure next.

    Chosen one after another, so that the variances of all candidates fall most in sum. --out is a table of the numbers
    of the rows, counted from 0, the best first, and their gain: the fall by each as a fraction of the sum. The model
    must have been saved with --uncertainty.
    """
    import dkrr as library
    from dkrr.estimators.suggest import check_suggestions_path, write_suggestions
    from dkrr.store.paths import refuse_enclosing

    given["command"] = _command_digest("suggest", given, ("x", "path"))
    if _is_written(given, "suggests"):
        return
    path, out = given["path"], given["out"]
    refuse_enclosing({"--out": out}, {"--x": given["x"], "MODEL": path})
    with named("--out"):
        check_suggestions_path(out, overwrite=given["overwrite"], name="--out")
    model = _loaded(path, "MODEL")
    if hasattr(model, "feature_names_in_"):
        given["numeric"] = False  # the model takes its columns by name
    X = _chosen_rows(given)
    settings = {name: given[name] for name in ("n_candidates", "random_state", "memory_limit")}
    found = library.suggest(model, X, given["k"], **settings, progress=False if given["quiet"] else None)
    written: Any = {name: given[name] for name in ("keep", "overwrite", "command")}
    write_suggestions(found, X, out, **written)
    values = {"out": out, "rows": found.rows.tolist(), "gain": found.gain.tolist()}
    answer(given, values, f"{len(found)} rows in {out}, {found.gain.sum():.3g} of the summed variance")


@command(
    "config x y sample_weight",
    ROW_OPTIONS,
    "n d",
    *SIZES,
    "extent alphas cv train_sizes uncertainty intervals",
    MODEL_OPTIONS,
    "model proba std interval json",
)
def plan(**given: Any) -> None:
    """Show what a fit would do, its projected cost, and the reasons; sizes are enough.

    With --model it is what `dkrr predict` would do with the rows --x.
    """
    import dkrr as library

    if given["model"] is not None:
        _show_plan(_plan_of_predictions(given), given)
        return
    if given["proba"] or given["std"] or given["interval"] is not None:
        raise InputError("--proba, --std or --interval is given without --model; give a saved model as --model with it")
    if (given["x"] is None) == (given["n"] is None or given["d"] is None):
        raise InputError("expected either --x (with --y), or --n and --d")
    n_and_d = {"n_samples": "n", "n_features": "d"}
    sizes: dict[str, Any] = {k: checked_count(given[v], f"--{v}") for k, v in n_and_d.items() if given[v] is not None}
    _check_store(given["store"], is_planned=True)
    _refuse_other_loss(given)
    _refuse_uncertainty(given)
    X, transformer = _training_rows(given)
    alphas: Any = candidates(given["alphas"], "--alphas") or None
    if len(given["alphas"]) == 1 and given["alphas"][0].isdecimal():  # how many, not which
        alphas = whole(given["alphas"][0], "--alphas", "a number of candidates, or the candidates")
    settings = {name: value for name, value in _settings(given).items() if name not in KERNEL}
    settings |= _kernels(given, is_search=alphas is not None or given["cv"] is not None)
    result = library.plan(
        X,
        given["y"],
        **settings,
        **_uncertainty(given),
        **sizes,
        **{name: given[name] for name in SIZES},
        extent=None if given["extent"] is None else candidates([given["extent"]], "--extent"),
        loss="logistic" if given["logistic"] else "squared",
        transformer=transformer,
        sample_weight=given["sample_weight"],
        alphas=alphas,
        cv=folds(given["cv"]),
        train_sizes=train_sizes(given["train_sizes"]),
    )
    _show_plan(result, given)


def _show_plan(found: Any, given: Mapping[str, Any]) -> None:
    echo(json.dumps(found.to_dict(), indent=2) if given["json"] else found)


def _plan_of_predictions(given: Mapping[str, Any]) -> Any:
    """Plan of what `dkrr predict` would do."""
    import dkrr as library

    context = click.get_current_context()
    for name in given.keys() - NEW_ROWS_OPTIONS:
        if context.get_parameter_source(name) is not ParameterSource.DEFAULT:
            raise InputError(
                f"--{name.replace('_', '-')} is given with --model, whose fit is done; expected --x, --columns, "
                f"--proba, --std, --interval, --memory-limit, --scheduler and --json only"
            )
    if given["x"] is None:
        raise InputError("--model is given without --x; give --x, the rows to predict, with it")
    return library.plan(_chosen_rows(given), model=_loaded(given["model"]), **_asked(given))


def _settings(given: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments of an estimator or of `dkrr.plan` from the options of a model."""
    alpha, found = candidates(given["alpha"], "--alpha"), {name: given[name] for name in ESTIMATOR_OPTIONS}
    if given["solver_max_iter"] is not None:
        from dkrr.linalg.solver_settings import ConjugateGradient

        if given["solver"] != "cg":
            raise InputError("--solver-max-iter is given without --solver cg; give --solver cg with it")
        found["solver"] = ConjugateGradient(max_iter=given["solver_max_iter"])
    found |= {name: given[name] for name in LOGISTIC if given.get(name) is not None}
    if given["logistic"] and len(alpha) > 1:
        raise InputError("--alpha has several values; expected one value with --logistic")
    found["alpha"] = alpha[0] if len(alpha) == 1 else alpha or 1.0
    found["kernel_params"] = kernel_params(given["kernel_param"])
    found["fit_intercept"] = given["logistic"] if given["fit_intercept"] is None else given["fit_intercept"]
    return found


def _uncertainty_option(given: Mapping[str, Any]) -> str:
    """Option that asks for standard deviations or intervals; empty without one."""
    return "--intervals" if given["intervals"] else "--uncertainty" if given["uncertainty"] else ""


def _uncertainty(given: Mapping[str, Any]) -> dict[str, Any]:
    """Argument of an estimator or of `dkrr.plan` that these options make; none without one of them."""
    option = _uncertainty_option(given)
    return {"uncertainty": "intervals" if option == "--intervals" else True} if option else {}


def _refuse_uncertainty(given: Mapping[str, Any]) -> None:
    """Refuse what standard deviations and intervals take of models without standard deviations."""
    option, is_precomputed = _uncertainty_option(given), "precomputed" in given["kernel"]
    if option and (given["logistic"] or is_precomputed):
        what = "--logistic" if given["logistic"] else "--kernel precomputed"
        raise InputError(
            f"{option} is given with {what}, which has no standard deviations; expected a regression of rows"
        )


def _kernels(given: Mapping[str, Any], *, is_search: bool) -> dict[str, Any]:
    """Candidates of the kernel and its parameters of a search, or those of a fit; what is not given is left out."""
    found: dict[str, Any] = {"kernel": ",".join(given["kernel"]).split(",")}
    found |= {name: candidates(given[name], f"--{name}") for name in ("gamma", "degree")}
    for name, values in found.items():
        if not is_search and len(values) > 1:
            raise InputError(
                f"--{name} has several values, candidates of a search; expected one, or --alphas or --cv with them"
            )
    found["kernel"] = found["kernel"] if len(found["kernel"]) > 1 else found["kernel"][0]
    if not is_search:
        found |= {name: found[name][0] for name in ("gamma", "degree") if found[name]}
    return {name: value for name, value in found.items() if value != []}


def _refuse_other_loss(given: Mapping[str, Any], of_ridge: Sequence[str] = ()) -> None:
    """Refuse options of the other loss."""
    refused, word = (of_ridge, "with") if given["logistic"] else (LOGISTIC, "without")
    for name in refused:
        if given.get(name) is not None and given[name] is not False:
            remedy = "leave it out" if given["logistic"] else "give --logistic with it"
            raise InputError(f"--{name.replace('_', '-')} is given {word} --logistic; {remedy}")


# Finished work


def _command_digest(name: str, given: Mapping[str, Any], inputs: Sequence[str] = INPUTS) -> str | None:
    """Digest of a command: of its options that decide the result, and of the files that these name as they are now.

    Files are told apart by size and time of change, or the tag of an object: they are not read. None where one is at a
    URL that tells neither.
    """
    from dkrr.checks import may_keep
    from dkrr.data.table_opening import files_matching
    from dkrr.store.places import place_at

    files = []
    for option in inputs:
        path = str(given[option] or "").partition("::")[0]
        if not may_keep(path):
            return None
        try:
            with named(f"--{option.replace('_', '-')}"):
                files.append({file: place_at(file).versions() for file in files_matching(path)} if path else {})
        except ValueError as error:  # InputError too: what is not the name of a file may be that of a column
            if is_transient(error):
                raise
            files.append({})
    deciding = {option: value for option, value in given.items() if option in inputs or option not in NO_MATTER}
    content = [name, deciding, files]
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _is_finished(given: Mapping[str, Any]) -> bool:
    """Whether the model of this very command exists already, and say so: a job that is run again has no more to do."""
    from dkrr.store.description import COMMAND, describe_model, is_model
    from dkrr.store.places import place_at

    if given["model"] is None or given["overwrite"] or given["command"] is None:
        return False
    path = location(given["model"], "--model", "the path or URL of a model", is_kept=True)
    with named("--model"):
        if not is_model(path):
            return False
        found = describe_model(path)
    out = given.get("out")  # a picture, which is drawn with the search
    if found.get(COMMAND) != given["command"] or (out is not None and not place_at(out).exists()):
        return False
    search = found["search"] or {}
    chosen = {name: search[name] for name in ("best_params", "best_score") if name in search}
    text = f"model       {path}, of the same command and the same files: nothing to do (--overwrite fits again)"
    answer(given, {"model": path} | chosen | (found["solve"] or {}), text)
    return True


def _is_written(given: Mapping[str, Any], verb: str) -> bool:
    """Whether the output of this very command exists already, and say so."""
    from dkrr.estimators.predict_to import command_of_predictions

    if given["overwrite"] or given["command"] is None:
        return False
    out = location(given["out"], "--out", "the path of what is written", is_kept=True)
    with named("--out"):
        if command_of_predictions(out) != given["command"]:
            return False
    text = f"{out}, of the same command and the same files: nothing to do (--overwrite {verb} again)"
    answer(given, {"out": out}, text)
    return True


# Places of what is written


def _check_places(given: Mapping[str, Any]) -> None:
    """Refuse a model, a store or a picture that cannot be written, or lies where data are, before any work."""
    from dkrr.estimators.saving import check_model_path
    from dkrr.store.paths import refuse_enclosing

    outputs = {f"--{name}": given.get(name) for name in ("model", "store", "out")}
    inputs = {"--x": given["x"], "--y": given["y"], "--sample-weight": given["sample_weight"]}
    refuse_enclosing(outputs, inputs)  # --transformer may name the model that is replaced: it has been read by then
    if given["model"] is not None:
        with named("--model"):
            check_model_path(given["model"], overwrite=given["overwrite"], name="--model")


def _check_store(store: str | None, *, is_folder: bool = False, is_planned: bool = False) -> None:
    """Report a store that holds something else, or cannot be written unless it is only planned, as bad input.

    With `is_folder` it is a folder for several stores.
    """
    from dkrr.fitting.requests import stored_layout
    from dkrr.store.places import check_writable, refuse_missing_folder

    if store is None:
        return
    what = "a folder for the stores of the run" if is_folder else "the path or URL of the run's store"
    url = location(store, "--store", what, is_kept=True)
    refuse_missing_folder(url, "--store")
    with named("--store"):
        if is_folder:
            _refuse_others_than_folders(url, what)
        else:
            stored_layout(url)
        if not is_planned:
            check_writable(url, is_grown=True)


def _refuse_others_than_folders(url: str, expected: str) -> None:
    """Refuse a file, a model or a store where a folder is to be."""
    from dkrr.store.format import read_group
    from dkrr.store.places import is_foreign_file

    if is_foreign_file(url):
        raise InputError(f"--store is {shown(url)}, a file; expected {expected}")
    found = read_group(url)
    if found is not None:
        what = f"a {found['kind']} of dkrr" if found.get("kind") in ("run", "model") else "a group of Zarr"
        raise InputError(f"--store is {shown(url)}, {what}; expected {expected}, or none")


def _save_if_good(model: Any, given: Mapping[str, Any]) -> bool:
    """Save a model, unless its fit did not reach the required accuracy and is not accepted; whether it is saved."""
    if not given["accept_unconverged"] and not model.solve_result_.status.is_good:
        return False
    _save(model, given)
    return True


def _not_saved(result: Any) -> DkrrError:
    return DkrrError(
        f"the fit ended with status {result.status.name}, and its model was not saved: "
        "--accept-unconverged saves such a model, and with --store the same command resumes the fit"
    )


def _save(model: Any, given: Mapping[str, Any]) -> None:
    """Save a model; where that fails, in a temporary folder, so that the work is not lost.

    Raises
    ------
    DkrrError
        If it is not at its path.
    """
    from dkrr.estimators.saving import write_model

    uncertainty = bool(_uncertainty_option(given))
    try:
        write_model(
            model, given["model"], overwrite=given["overwrite"], uncertainty=uncertainty, command=given["command"]
        )
    except (DkrrError, OSError) as error:
        place = f"{tempfile.mkdtemp(prefix='dkrr-model-', dir=setting('temporary-directory'))}/model.zarr"
        for without in ("", " without its uncertainty") if uncertainty else ("",):
            try:
                write_model(model, place, uncertainty=uncertainty and not without)
            except (DkrrError, OSError) as reason:
                second = reason
            else:
                message = f"{error}; the model was saved at {place} instead{without}: move it from there"
                raise DkrrError(message) from error
        raise DkrrError(f"{error}; nor could the model be saved elsewhere ({second}): it is lost") from error


# Columns of tables


def _table(X: Any, option: str, value: str | None = None) -> Any:
    """Table that --x is; InputError, naming the option that needs one, if it is something else."""
    from dkrr.data import Table, table_or_value

    table = None if X is None else table_or_value(X)
    if isinstance(table, Table):
        return table
    raise InputError(
        f"{option} is {'given' if value is None else shown(value)}, and --x is not a table with named columns; "
        f"expected a file or folder in Parquet, CSV or Arrow's format, or no {option}"
    )


def _chosen_rows(given: Mapping[str, Any]) -> Any:
    """Columns of the table --x that --columns, --exclude and --numeric leave; without them --x."""
    X, columns, exclude = given["x"], given["columns"], given["exclude"]
    if columns is not None:
        X = _table(X, "--columns", columns).select(columns, "--columns")
    if exclude is not None:
        table = _table(X, "--exclude", exclude)
        X = table.without(table.select(exclude, "--exclude").names)
    return _columns_of_numbers(_table(X, "--numeric"), given) if given["numeric"] else X


def _columns_of_numbers(table: Any, given: Mapping[str, Any]) -> Any:
    """Table of the columns that hold numbers or that --one-hot names; says which are left out, but for targets."""
    from dkrr.data import with_columns
    from dkrr.text import first_names

    rest, one_hot = with_columns(table, given.get("y"), given.get("sample_weight"))[0], given.get("one_hot")
    kept = () if one_hot is None else table.select(one_hot, "--one-hot").names
    left = [column for column in rest.columns if column.kind != "number" and column.name not in kept]
    if left:
        names = first_names([f"{column.name} ({column.kind})" for column in left])
        logger.info("--numeric leaves out %d of %d columns: %s", len(left), len(rest.names), names)
    return table.without(column.name for column in left)


def _sampled(rows: tuple[Any, Any, Any], given: Mapping[str, Any]) -> tuple[tuple[Any, Any, Any], dict[str, int]]:
    """Random sample of rows, targets and weights to choose by, and what is said of it."""
    from dkrr.data import sampled

    if "precomputed" in ",".join(given["kernel"]).split(","):
        raise InputError("--rows is given with --kernel precomputed, a matrix of all rows; expected another kernel")
    count, seed = given["rows"], given["shuffle"] or 0
    X, y, sample_weight, n = sampled(*rows, count, seed, is_classification=given["logistic"], name="--rows")
    logger.info("choosing by %s of %s rows, drawn at random (seed %d)", f"{count:,}", f"{n:,}", seed)
    return (X, y, sample_weight), {"rows": count, "of": n, "seed": seed}


def _training_rows(given: Mapping[str, Any]) -> tuple[Any, Any]:
    """X with the columns and rows that options ask for, and the transformer that they ask for, or None."""
    X = _chosen_rows(given)
    if given["drop_missing"]:
        X = _without_missing(_table(X, "--drop-missing"), given)
    one_hot, unknown, impute = given["one_hot"], given["unknown"], given["impute"]
    if unknown is not None and one_hot is None:
        raise InputError("--unknown is given without --one-hot; give --one-hot with it")
    learned = one_hot is not None or given["standardize"] or impute is not None
    if given["transformer"] is not None:
        if learned:
            raise InputError(
                "--transformer is given with --standardize, --one-hot or --impute, which are fitted to --x; expected "
                "--transformer alone, whose steps are those of its model"
            )
        if X is None:
            raise InputError("--transformer is given without --x; expected --x with it")
        return X, _fitted_transformer(given["transformer"])
    if not learned:
        return X, None
    if X is None:
        raise InputError("--standardize, --one-hot or --impute is given without --x; expected --x with them")
    from dkrr.data.transformers import ColumnSteps

    encoded = _encoded(X, given)
    return X, ColumnSteps(encoded, given["standardize"], impute, takes_unknown=unknown == "zeros")


def _fitted_transformer(path: str) -> Any:
    """Fitted transformer of a saved model."""
    import dkrr as library

    url = location(path, "--transformer", "the path or URL of a saved model with a transformer", is_kept=True)
    with named("--transformer"):
        model = library.load(url)
    if not hasattr(model, "transformer_"):
        raise InputError(
            f"--transformer is {shown(path)}, a model without a transformer; expected one that was fitted with "
            f"--standardize, --one-hot or --impute, or in Python with transformer="
        )
    return model.transformer_


def _without_missing(table: Any, given: Mapping[str, Any]) -> Any:
    """The rows of a table in which no value that is used is missing; --impute fills those of X."""
    from dkrr.data import Table, with_columns

    outputs = {"--y": given["y"], "--sample-weight": given.get("sample_weight")}
    rest, *found = with_columns(table, *outputs.values())
    used = [] if given["impute"] is not None else [*rest.names]
    for (option, value), part in zip(outputs.items(), found, strict=True):
        if value is None:
            continue
        if not isinstance(part, Table) or part.source is not table.source:
            raise InputError(
                f"--drop-missing is given, and {option} is {shown(value)}, whose rows would no longer be those of --x; "
                f"expected a column of --x"
            )
        used += part.names
    return table.drop_missing(used) if used else table


def _encoded(X: Any, given: Mapping[str, Any]) -> tuple[str, ...]:
    """Columns that --one-hot names; none of an array. InputError if another column does not hold numbers."""
    from dkrr.data import Table, table_or_value, with_columns

    one_hot = given["one_hot"]
    table = table_or_value(X) if one_hot is None else _table(X, "--one-hot", one_hot)
    if not isinstance(table, Table):
        return ()
    table = with_columns(table, given["y"], given.get("sample_weight"))[0]
    chosen = () if one_hot is None else table.select(one_hot, "--one-hot").columns
    for column in chosen:
        if column.kind in ("date", "other") or column.dtype.startswith("decimal"):
            raise InputTypeError(
                f"--one-hot has the column {column.name!r} of {column.dtype}, whose values a saved model cannot hold; "
                f"expected numbers, text or categories: convert it to text"
            )
    encoded = tuple(column.name for column in chosen)
    table.without(encoded).check_numeric("--x")
    return encoded
