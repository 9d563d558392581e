"""Quotes of measurements on pages, as data: text of a page with the measured values in braces, and their sources.

Numbers on pages are written by hand and compared with ``docs/measured/results.jsonl``: by the tests, and by
``python -m benchmarks`` and ``python -m benchmarks.report``, which print the quotes that differ.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from string import Formatter
from typing import Any

from benchmarks.results import Record, best_runs, cell, lines_of, look, quotient
from benchmarks.steps import AUTO, FLOAT32, PEAK, SKLEARN, SKLEARN_PEAK, Style, step_named


@dataclass(frozen=True)
class Value:
    """Figure of a quote."""

    path: str
    """See `benchmarks.steps`."""
    style: Style
    over: str = ""
    """Path of what the value is divided by."""
    where: Mapping[str, Any] = field(default_factory=dict)
    """The line that counts: the only one of its step with these values at these paths (None: without the path)."""
    unit: float = 1.0
    """Unit of the figure."""
    step: str = ""
    """Default: the quote's."""


@dataclass(frozen=True)
class Quote:
    """A sentence, or a row of a table, and the figures that it has from a step."""

    page: str
    """Path from the root of the checkout."""
    step: str
    text: str
    """Text of the page (white space apart), with the names of the values in braces."""
    values: Mapping[str, Value]


class QuoteError(ValueError):
    """A quote without a figure: its step was not measured, or no line or several lines have the value."""


def measured(quote: Quote, runs: Mapping[str, Record]) -> dict[str, str]:
    """Figures of a quote as they should stand on its page.

    Parameters
    ----------
    quote : Quote
    runs : mapping of str to dict
        The run of each step, see `benchmarks.results.best_runs`.

    Raises
    ------
    QuoteError
        If a value was not measured, only at a smaller size, only on a machine that was busy, or if it is ambiguous.
    """
    return {name: _figure(value, value.step or quote.step, runs) for name, value in quote.values.items()}


def _figure(value: Value, name: str, runs: Mapping[str, Record]) -> str:
    step, run = step_named(name), runs.get(name)
    if step is None or run is None:
        raise QuoteError(f"step {name} was not measured")
    if run["noisy"] or run["size"] != "full" or run["status"] != "complete":
        raise QuoteError(f"the run of step {name} is not complete, quiet and of size full")
    found = [
        figure
        for record in lines_of(step, run)
        if all(look(record, path) == wanted for path, wanted in value.where.items())
        and (figure := quotient(record, value.path, value.over)) is not None
    ]
    if len(found) != 1:
        raise QuoteError(f"{len(found)} lines of step {name} have {value.path} where {dict(value.where)}, expected one")
    return cell(found[0] if isinstance(found[0], str) else found[0] / value.unit, value.style)


def differences(runs: Sequence[Record], root: Path, quotes: Iterable[Quote] | None = None) -> list[str]:
    """Differences between the pages and the results, a message for each quote; empty if nothing differs."""
    shown, messages = best_runs(runs), []
    for quote in QUOTES if quotes is None else quotes:
        try:
            figures = measured(quote, shown)
        except QuoteError as error:
            messages.append(f"{quote.page}: {error}")
            continue
        page = _squeezed((root / quote.page).read_text())
        text = _squeezed(quote.text).format(**figures)
        if text not in page:
            messages.append(f"{quote.page}, step {quote.step}: {_difference(quote, figures, page)}")
    return messages


def _squeezed(text: str) -> str:
    """Text with one space for each run of white space."""
    return " ".join(text.split())


def _difference(quote: Quote, figures: Mapping[str, str], page: str) -> str:
    text, pattern, names = _squeezed(quote.text), "", []
    for fixed, name, *_ in Formatter().parse(text):
        pattern += re.escape(fixed)
        if name is not None:
            pattern += "(.{1,60}?)"
            names.append(name)
    found = re.search(pattern, page)
    if found is None:
        return f"the page has no text {text.format(**figures)!r}"
    pairs = [(said, figures[name]) for name, said in zip(names, found.groups(), strict=True) if said != figures[name]]
    return "; ".join(f"the page says {said!r}, measured {figure!r}" for said, figure in pairs)


def quote(page: str, step: str, text: str, **values: Value) -> Quote:
    """A quote; its values are named as in its text."""
    return Quote(page, step, text, values)


def of(
    path: str,
    style: Style,
    over: str = "",
    *,
    where: Mapping[str, Any] | None = None,
    unit: float = 1.0,
    step: str = "",
) -> Value:
    """A value."""
    return Value(path, style, over, where or {}, unit, step)


_README = "README.md"
_FAST = "docs/explanation/how-fast.md"
_FEW = "docs/how-to/few-columns.md"
_CHOOSE = "docs/how-to/choose.md"
_COLD = {"what": "dkrr, cold"}
_DEFAULT_WAY = {"way": "auto"}


def _exact(n: int) -> dict[str, Any]:
    """The exact fit of molecules by dkrr."""
    return {"n": n, "kernel": "rbf", "peer": None}


def _nystroem(centres: int, pivots: str, n: int = 100_000) -> dict[str, Any]:
    """An approximation of that fit."""
    return {"n": n, "centres": centres, "pivots": pivots}


def _small(n: int) -> Quote:
    """Row of a fit and one prediction beside scikit-learn."""
    row = f"| {n:,} | {{time}} | – | – | " + ("**{ratio}** | – |" if n == 100 else "{ratio} | – |")
    where = {"n": n}
    return quote(
        _FAST, "small", row, time=of("dkrr.seconds", "seconds", where=where), ratio=of("ratio", "ratio", where=where)
    )


def _in_memory(n: int, remark: str = "") -> Quote:
    """Row of a factor in memory beside SciPy and scikit-learn."""
    return quote(
        _FAST,
        f"solve-{n}",
        f"| {n:,} | {{time}}, {{peak}} | {{scipy}} | {{scipy_peak}} | {{sklearn}}{remark} | {{sklearn_peak}} |",
        time=of("dkrr.seconds", "seconds", where=AUTO),
        peak=of(PEAK, "bytes", where=AUTO),
        scipy=of("dkrr.seconds", "ratio", "peers.scipy.seconds", where=AUTO),
        scipy_peak=of(PEAK, "ratio", "peers.scipy|peak", where=AUTO),
        sklearn=of("dkrr.seconds", "ratio", SKLEARN, where=AUTO),
        sklearn_peak=of(PEAK, "ratio", SKLEARN_PEAK, where=AUTO),
    )


def _large(
    step: str, name: str, where: Mapping[str, Any] | None = None, prefix: str = "", peak: str = "peak_bytes"
) -> Quote:
    """Row of a large problem: time, peak memory, residual."""
    return quote(
        _FAST,
        step,
        f"| {name} | {{time}} | {{peak}} | {{residual}} |",
        time=of(f"{prefix}seconds", "seconds", where=where),
        peak=of(peak, "bytes", where=where),
        residual=of(f"{prefix}residual", "exponent", where=where),
    )


QUOTES: tuple[Quote, ...] = (
    quote(
        _README,
        "iterative-headline",
        "All 100,000 molecules: {error} kcal/mol after {exact}, to a relative residual of {residual}. Nyström "
        "approximations of the same rows: {few_error} with 1,500 centres ({few}) and {many_error} with 6,000 ({many}).",
        error=of("mae", "number", where=_exact(100_000)),
        exact=of("seconds", "seconds", where=_exact(100_000)),
        residual=of("residual", "exponent", where=_exact(100_000)),
        few=of("seconds", "seconds", where=_nystroem(1_500, "rpcholesky")),
        few_error=of("mae", "number", where=_nystroem(1_500, "rpcholesky")),
        many=of("seconds", "seconds", where=_nystroem(6_000, "uniform")),
        many_error=of("mae", "number", where=_nystroem(6_000, "uniform")),
    ),
    quote(
        _README,
        "solve-10000",
        "| 10,000 × 16 (0.8 GB) | {time}, {peak} | {sklearn}, {sklearn_peak} |",
        time=of("dkrr.seconds", "seconds", where=AUTO),
        peak=of(PEAK, "bytes", where=AUTO),
        sklearn=of(SKLEARN, "seconds", where=AUTO),
        sklearn_peak=of(SKLEARN_PEAK, "bytes", where=AUTO),
    ),
    quote(
        _README,
        "solve-32768",
        "| 32,768 × 16 (8.6 GB) within 3 GiB | {time}, {peak} in 3 processes |",
        time=of("dkrr.seconds", "seconds", where=AUTO),
        peak=of(PEAK, "bytes", where=AUTO),
    ),
    quote(
        _README,
        "iterative-headline",
        "| 100,000 × 79 (80 GB) within 4 GiB | {time}, {peak} |",
        time=of("seconds", "seconds", where=_exact(100_000)),
        peak=of("peak_bytes", "bytes", where=_exact(100_000)),
    ),
    quote(
        _README,
        "selection-grid-20000",
        "| 20,000 × 79, 10 λ × 5 folds | {time}, {peak} | {peer} (extrapolated) |",
        time=of("seconds", "seconds"),
        peak=of("peak_bytes", "bytes"),
        peer=of("peer_seconds", "seconds"),
    ),
    quote(
        _README,
        "fourier-fit",
        "take {million}, 10⁸ take {hundred}, with a certified error",
        million=of("seconds", "seconds", where={"peer": None}),
        hundred=of("seconds", "seconds", step="fourier-hundred"),
    ),
    quote(
        _README,
        "small",
        "| a hundred rows ({small} × the time here), or a linear model of text ({dkrr} here, {sklearn} there) |",
        small=of("ratio", "number", where={"n": 100}),
        dkrr=of("fit_seconds", "seconds", where=_DEFAULT_WAY, step="text"),
        sklearn=of("fit_seconds", "seconds", where={"way": "scikit-learn"}, step="text"),
    ),
    _small(100),
    _small(1000),
    _in_memory(5000),
    _in_memory(10_000),
    _in_memory(16_384, " (one thread)"),
    quote(
        _FAST,
        "solve-16384-tiles",
        "needs {dask} and {dask_peak} for 16,384 rows; dkrr in tiles on disk within 2 GiB takes {time} of this time "
        "and {peak} of this memory.",
        dask=of("peers.dask.seconds", "seconds", where=FLOAT32),
        dask_peak=of("peers.dask|peak", "bytes", where=FLOAT32),
        time=of("dkrr.seconds", "ratio", "peers.dask.seconds", where=FLOAT32),
        peak=of(PEAK, "ratio", "peers.dask|peak", where=FLOAT32),
    ),
    _large("solve-32768", "32,768 × 16, factor on disk | 8.6 GB | 3 GiB", AUTO, "dkrr.", PEAK),
    _large("iterative-headline", "100,000 × 79, molecules, no disk | 80 GB | 4 GiB", _exact(100_000)),
    _large("primal-linear", "5,000,000 × 100, linear kernel, from Zarr | – | 1 GiB", _COLD),
    _large("fourier-hundred", "100,000,000 × 2, from Zarr | – | 2 GiB"),
    quote(
        _FAST,
        "iterative-headline",
        "{few} to {few_error} kcal/mol with 1,500 centres, {many} to {many_error} with 6,000, against {exact} to "
        "{error} for the exact fit.",
        few=of("seconds", "seconds", where=_nystroem(1_500, "rpcholesky")),
        few_error=of("mae", "number", where=_nystroem(1_500, "rpcholesky")),
        many=of("seconds", "seconds", where=_nystroem(6_000, "uniform")),
        many_error=of("mae", "number", where=_nystroem(6_000, "uniform")),
        exact=of("seconds", "seconds", where=_exact(100_000)),
        error=of("mae", "number", where=_exact(100_000)),
    ),
    quote(
        _FAST,
        "iterative-headline",
        "an exact fit of fewer molecules is more accurate here: 50,000 take {time} to {error}.",
        time=of("seconds", "seconds", where=_exact(50_000)),
        error=of("mae", "number", where=_exact(50_000)),
    ),
    quote(
        _CHOOSE,
        "selection-grid-20000",
        "10 λ × 5 folds took {time}, {ratio} × as long as one fit; `GridSearchCV` of scikit-learn takes {peer} "
        "(extrapolated)",
        time=of("seconds", "seconds"),
        ratio=of("ratio", "ratio"),
        peer=of("peer_seconds", "seconds"),
    ),
    quote(
        _FAST,
        "selection-grid-20000",
        "| choose λ: 10 values × 5 folds, then fit | 20,000 × 79 | {time} | {ratio} × one fit; `GridSearchCV` {peer} "
        "(extrapolated) |",
        time=of("seconds", "seconds"),
        ratio=of("ratio", "ratio"),
        peer=of("peer_seconds", "seconds"),
    ),
    quote(
        _FAST,
        "selection-loo",
        "| leave-one-out errors | 16,384 × 16 | {time} | {ratio} × one fit |",
        time=of("seconds", "seconds"),
        ratio=of("ratio", "ratio"),
    ),
    quote(
        _FAST,
        "iterative-headline",
        "| 5,000 predictions | 100,000 × 79 | {time} |",
        time=of("predict_seconds", "seconds", where=_exact(100_000)),
    ),
    quote(
        _FAST,
        "small",
        "| one prediction | 5,000 × 10 | {time} ms | {ratio} × scikit-learn |",
        time=of("dkrr.one_row_seconds", "ratio", where={"n": 5000}, unit=1e-3),
        ratio=of("one_row_ratio", "ratio", where={"n": 5000}),
    ),
    quote(
        _FAST,
        "small",
        "a fit and a prediction take {ratio} × scikit-learn's time. From 500 rows on, dkrr is faster ({more}).",
        ratio=of("ratio", "ratio", where={"n": 100}),
        more=of("ratio", "ratio", where={"n": 500}),
    ),
    quote(
        _FAST,
        "text",
        "for {n} messages scikit-learn's ridge classifier takes {sklearn}, dkrr {dkrr}",
        n=of("n", "count", where=_DEFAULT_WAY),
        sklearn=of("fit_seconds", "seconds", where={"way": "scikit-learn"}),
        dkrr=of("fit_seconds", "seconds", where=_DEFAULT_WAY),
    ),
    quote(
        _FAST,
        "fourier-line",
        "celerite2 takes {peer}, dkrr {dkrr} ({ratio} ×), with another kernel",
        peer=of("seconds", "seconds", where={"peer": "celerite2"}),
        dkrr=of("dkrr_seconds", "seconds", where={"peer": "celerite2"}),
        ratio=of("ratio", "number", where={"peer": "celerite2"}),
    ),
    quote(
        _FAST,
        "logistic-core",
        "gradient boosting predicts {peer} correctly after {peer_time}, dkrr {dkrr} after {time}.",
        peer=of("accuracy", "thousandths", where={"what": "HistGradientBoosting"}),
        peer_time=of("seconds", "seconds", where={"what": "HistGradientBoosting"}),
        dkrr=of("accuracy", "thousandths", where={"what": "dkrr, cg"}),
        time=of("seconds", "seconds", where={"what": "dkrr, cg"}),
    ),
    quote(
        _FAST,
        "plans-grid",
        "are within a factor of {half} of the measured time; the worst was wrong by a factor of {worst}.",
        half=of("summary.all.seconds.off", "ratio"),
        worst=of("summary.all.seconds.worst_off", "number"),
    ),
    *(
        quote(
            _FEW,
            step,
            row,
            dkrr=of("dkrr_seconds", "seconds", where={"peer": peer}),
            peer=of("seconds", "seconds", where={"peer": peer}),
        )
        for step, peer, row in (
            ("fourier-fit", "sklearn", "| 14,000 × 2 | {dkrr} | {peer}, scikit-learn |"),
            ("fourier-fit", "gpytorch", "| 100,000 × 2 | {dkrr} | {peer}, GPyTorch (KISS-GP)"),
            ("fourier-line", "celerite2", "| 1,000,000 × 1 | {dkrr} | **{peer}**, celerite2"),
        )
    ),
    quote(
        _FEW,
        "fourier-fit",
        "10⁶ rows take {two} s in two columns, {three} s in three; 10⁸ rows in two, from Zarr, {hundred} s and {peak} "
        "GiB",
        two=of("seconds", "number", where={"peer": None}),
        three=of("seconds", "count", step="fourier-space"),
        hundred=of("seconds", "count", step="fourier-hundred"),
        peak=of("peak_bytes", "number", unit=2.0**30, step="fourier-hundred"),
    ),
    quote(
        "docs/how-to/text-and-graphs.md",
        "text",
        "a linear model of scikit-learn is much faster: {sklearn} against {dkrr} for {n} messages,",
        n=of("n", "count", where=_DEFAULT_WAY),
        sklearn=of("fit_seconds", "seconds", where={"way": "scikit-learn"}),
        dkrr=of("fit_seconds", "seconds", where=_DEFAULT_WAY),
    ),
    quote(
        "docs/explanation/how-it-solves.md",
        "iterative-headline",
        "It had {few} columns for 20,000 molecules and {many} for 100,000",
        few=of("rank", "count", where=_exact(20_000)),
        many=of("rank", "count", where=_exact(100_000)),
    ),
)
