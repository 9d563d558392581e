"""Reports: one self-contained HTML file of a fitted model, a saved one, or a run that may be unfinished."""

from pathlib import Path
from typing import Any

from dkrr.errors import InputError, StoreError
from dkrr.estimators.base import KernelEstimator
from dkrr.fit_summary import summary_of
from dkrr.inspection import notes_of_run, status, tile_maps
from dkrr.model_description import describe_model
from dkrr.reports.page import BEGINNING, page_of_model, page_of_run
from dkrr.runtime.signals import ended_in_order
from dkrr.tiles.descriptions import read_group
from dkrr.tiles.paths import refuse_enclosing, resolved_place
from dkrr.tiles.replacing import check_free, written_aside
from dkrr.values import location, shown

__all__ = ["report"]


def report(subject: Any, out: str | Path | None = None) -> str:
    """Report of a fit: plan and reasons, what was measured, convergence, residuals, scores, tiles.

    It is one HTML file of at most about 1 MiB with pictures, for light and dark pages, that loads nothing. No data are
    read but those of descriptions: of a run the names of its files, of a model none of its arrays.

    Parameters
    ----------
    subject : fitted estimator, str or Path
        Estimator that was fitted here, or the path or URL of a saved model or of the store of a run (`store=`), which
        may be unfinished or under way.
    out : str or Path, optional
        File to write; an earlier report there is replaced when the new one is complete.

    Returns
    -------
    str
        The page.

    Raises
    ------
    InputError
        If the estimator is not fitted, or was loaded (give the path of the model instead), or `out` is not in a folder.
    StoreError
        If the path holds neither a run nor a model, or its description is damaged.

    Examples
    --------
    >>> import numpy as np, dkrr
    >>> model = dkrr.KernelRidge(kernel="rbf").fit(np.eye(3), [1.0, 2.0, 3.0])
    >>> page = dkrr.report(model)
    >>> page.startswith("<!DOCTYPE html>"), "Plan and reasons" in page
    (True, True)
    """
    target = None if out is None else _target(out)
    refuse_enclosing({"out": target}, {"subject": subject})
    if isinstance(subject, KernelEstimator):
        if not hasattr(subject, "plan_"):
            raise InputError(
                "subject is an estimator without a plan; expected one that was fitted here, not loaded: give the path "
                "of its model"
            )
        text = page_of_model(type(subject).__name__, summary_of(subject), None)
    else:
        text = _of_path(location(subject, "subject", "a fitted estimator, or the path or URL of a run or a model"))
    if target is not None:
        with ended_in_order(), written_aside(str(target), overwrite=True, listed=None) as place:
            Path(place).write_text(text, encoding="utf-8")
    return text


def _of_path(path: str) -> str:
    url = resolved_place(path)
    try:
        is_model = (read_group(url) or {}).get("kind") == "model"
    except StoreError:
        is_model = False  # RunStore says what is wrong
    try:
        if not is_model:
            return page_of_run(status(path), notes_of_run(path), tile_maps(path))
        found = describe_model(url)
        summary = found.get("report")
        if summary is None:
            raise InputError(
                f"subject is {shown(path)}, a model without a summary of its fit; expected one that was saved where it "
                f"was fitted, by a dkrr with reports: save it again"
            )
        return page_of_model(path, summary, found)
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        if isinstance(error, InputError | StoreError):
            raise
        raise StoreError(f"{path} is damaged: the description of its fit is not one that dkrr writes") from error


def _target(out: Any) -> Path:
    """Path of a file in an existing folder, checked before any work."""
    path = Path(location(out, "out", "the path of an HTML file"))
    if path.is_dir() or not path.absolute().parent.is_dir():
        raise InputError(f"out is {shown(str(out))}; expected a file in an existing folder: create the folder first")
    check_free(str(path), overwrite=True, what="a report of dkrr", is_one=_is_report, listed=None)
    return path


def _is_report(path: str) -> bool:
    """Whether a file is a report, which another one may replace."""
    if not Path(path).is_file():
        return False
    with Path(path).open("rb") as file:
        return file.read(len(BEGINNING)) == BEGINNING.encode()
