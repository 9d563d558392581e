"""Reports: one self-contained HTML file of a fitted model, a saved one, or a run that may be unfinished."""

from __future__ import annotations

import time
from functools import cache
from pathlib import Path
from typing import Any

from dkrr.checks import flag, location, shown
from dkrr.cli import pictures
from dkrr.cluster.process import graceful_termination
from dkrr.errors import InputError, StoreError
from dkrr.estimators.kernel_estimator import KernelEstimator
from dkrr.estimators.model_description import LIBRARY_VERSIONS, outcome_of, summary_of
from dkrr.store.description import describe_model, is_model
from dkrr.store.paths import refuse_enclosing, resolved_place
from dkrr.store.places import check_free, written_aside
from dkrr.store.status_and_damage import notes_of_run, status, tile_maps
from dkrr.text import card_of_text, format_bytes, format_seconds

__all__ = ["report"]

BEGINNING = '<!DOCTYPE html><html lang="en"><!-- report of dkrr -->'
"""First line of a report, by which it is known as one that may be replaced."""
OF_MODEL = ("call", "plan", "result", "residuals", "search")
"""Facts about a model besides its outcome."""
SECTIONS = (*OF_MODEL, "outcome", "status", "maps", "history")
"""Values of the page; what is not known is left out."""


def report(model: KernelEstimator | str | Path, path: str | Path | None = None, *, overwrite: bool = False) -> str:
    """Report of a fit: plan and reasons, result, convergence, residuals, scores, learning curve, tiles.

    It is one HTML file with pictures that loads nothing and runs no script. No data are read but
    those of descriptions: of a run the names of its files, of a model none of its arrays. The
    pictures need matplotlib: ``pip install 'dkrr[report]'``.

    Parameters
    ----------
    model : fitted estimator, str or Path
        Estimator that was fitted here, or the path or URL of a saved model or of the store of a run
        (`store=`), which may be unfinished or under way.
    path : str or Path, optional
        File to write; None: only the page is returned.
    overwrite : bool, default=False
        Replace an existing report when the new one is complete; any other file is never replaced.

    Returns
    -------
    str
        The page.

    Raises
    ------
    NotFittedError
        If the estimator is not fitted.
    InputError
        If the estimator was loaded (give the path of the model instead), something exists at
        `path`, or it is not in a folder, or matplotlib is not installed.
    StoreError
        If the path holds neither a run nor a model, or its description is damaged.

    See Also
    --------
    dkrr.plan : Make a plan without carrying it out.
    dkrr.status : How far the run in a store is.

    Examples
    --------
    >>> import numpy as np, dkrr
    >>> model = dkrr.KernelRidge(kernel="rbf").fit(np.eye(3), [1.0, 2.0, 3.0])
    >>> page = dkrr.report(model)
    >>> page.startswith("<!DOCTYPE html>"), "<h2>Plan</h2>" in page
    (True, True)
    """
    overwrite = flag(overwrite, "overwrite")
    target = None if path is None else _target(path, overwrite=overwrite)
    refuse_enclosing({"path": target}, {"model": model})
    template = _template()
    if isinstance(model, KernelEstimator):
        model._check_fitted()
        if not hasattr(model, "plan_"):
            raise InputError(
                "model is an estimator without a plan; expected one that was fitted here, not loaded: give the path "
                "of its model"
            )
        text = _page(template, type(model).__name__, outcome=outcome_of(model), **summary_of(model))
    else:
        given = location(model, "model", "a fitted estimator, or the path or URL of a run or a model", is_kept=True)
        text = _of_path(template, given)
    if target is not None:
        with graceful_termination(), written_aside(str(target), overwrite=overwrite, listed=None) as place:
            Path(place).write_text(text, encoding="utf-8")
    return text


@cache
def _template() -> Any:
    """Template of the page, which escapes every text.

    Raises
    ------
    InputError
        If a package is not installed.
    """
    try:
        import matplotlib  # noqa: F401 (every report has pictures: refused before any work)
        from jinja2 import Environment, PackageLoader, StrictUndefined
        from markupsafe import Markup
    except ImportError as error:
        raise InputError(f"a report needs {error.name}, which is not installed: pip install 'dkrr[report]'") from error
    environment = Environment(loader=PackageLoader("dkrr.cli", ""), autoescape=True, undefined=StrictUndefined)
    environment.filters["card"] = lambda text: Markup(card_of_text(str(text), is_open=True))
    environment.globals |= {"pictures": pictures, "bytes": format_bytes, "seconds": format_seconds}
    return environment.get_template("report.html")


def _of_path(template: Any, path: str) -> str:
    from jinja2 import TemplateError

    url = resolved_place(path)
    try:
        if not is_model(url):
            return _page(template, path, **_of_run(path))
        found = describe_model(url)
        if found.get("report") is None:
            raise InputError(
                f"model is {shown(path)}, a model without a summary of its fit; expected one that was saved where it "
                f"was fitted: save it again"
            )
        known = {name: found["report"][name] for name in OF_MODEL}
        return _page(template, path, outcome=found["solve"], **known)
    except (StoreError, InputError):
        raise
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, TemplateError) as error:
        raise StoreError(f"{path} is damaged: its description does not fit a report ({error!r})") from error


def _of_run(path: str) -> dict[str, Any]:
    """Values of the page of a run, which may be unfinished."""
    found, notes = status(path), notes_of_run(path)
    outcome = notes["work"] or {}
    counted = [array for array in found.arrays if "/sum-" not in array.name]
    n_present, n_expected = (sum(getattr(array, name) for array in counted) for name in ("present", "expected"))
    return {
        "status": found,
        "chunks": f"{n_present:,} of {n_expected:,}",
        "is_finished": found.is_finished,
        "maps": tile_maps(path),
        "plan": notes["plan"],
        "result": outcome.get("text"),
        "outcome": outcome,
        "history": notes["history"],
    }


def _page(template: Any, title: str, **values: Any) -> str:
    written = time.strftime("%Y-%m-%d %H:%M")
    values = dict.fromkeys(SECTIONS) | values
    return str(template.render(title=title, version=LIBRARY_VERSIONS["dkrr"], written=written, **values))


def _target(path: Any, *, overwrite: bool) -> Path:
    """Path of a file in an existing folder, checked before any work."""
    target = Path(location(path, "path", "the path of an HTML file"))
    if target.is_dir() or not target.absolute().parent.is_dir():
        raise InputError(f"path is {shown(str(path))}; expected a file in an existing folder: create the folder first")
    check_free(str(target), overwrite=overwrite, what="a report of dkrr", is_one=_is_report, listed=None)
    return target


def _is_report(path: str) -> bool:
    """Whether a file is a report, which another one may replace."""
    if not Path(path).is_file():
        return False
    with Path(path).open("rb") as file:
        return file.read(len(BEGINNING)) == BEGINNING.encode()
