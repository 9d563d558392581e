"""The page of a report: sections of pictures, tables and texts in one file that loads nothing."""

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from dkrr.cost import STAGE_NAMES
from dkrr.inspection import RunStatus
from dkrr.markup import card_of_text, details, escape, table, texts
from dkrr.pictures import figures
from dkrr.pictures.figures import TileMap
from dkrr.pictures.style import style
from dkrr.pictures.svg import rows_of_bars
from dkrr.units import format_bytes, format_seconds
from dkrr.versions import VERSIONS

BEGINNING = '<!DOCTYPE html><html lang="en"><!-- report of dkrr -->'
"""First characters of a report, by which it is known as one that may be replaced."""


def page(title: str, subtitle: str, facts: Iterable[tuple[str, str]], sections: Iterable[tuple[str, str]]) -> str:
    """The whole file.

    Parameters
    ----------
    title, subtitle : str
    facts : iterable of (str, str)
        Names and values at the top.
    sections : iterable of (str, str)
        Headings, and their content, which is HTML; empty ones are left out.
    """
    boxes = "".join(f"<div><b>{escape(value)}</b><span>{escape(name)}</span></div>" for name, value in facts)
    body = "".join(f"<section><h2>{escape(name)}</h2>{content}</section>" for name, content in sections if content)
    return (
        f'{BEGINNING}<head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none';style-src 'unsafe-inline'\">"
        f"<title>{escape(title)}</title><style>{style()}</style></head><body><h1>{escape(title)}</h1>"
        f'<p class="soft">{escape(subtitle)}</p><div class="facts">{boxes}</div>{body}</body></html>\n'
    )


def page_of_model(title: str, summary: Mapping[str, Any], described: Mapping[str, Any] | None) -> str:
    """Report of a fitted model, by its summary and the description of a saved one."""
    work, plan, search = summary["work"], summary["plan"], summary["search"]
    solve = (described or {}).get("solve") or {}
    facts = _facts(work) if work else []
    if search:
        facts.insert(0, ("best score", ", ".join(f"{s:.5g}" for s in search["score"] if s is not None)))
    tol = solve.get("tol")
    history = (work or {}).get("history") or solve.get("history") or []
    sections = [
        ("Selection", _selection(search)),
        ("Plan and reasons", _plans(plan, search)),
        *_work_sections(plan, work),
        ("Convergence", _convergence(work, history, tol)),
        ("Residuals of the training rows", _residuals(summary["residuals"])),
        ("Result", card_of_text(work["text"]) if work else ""),
        ("To reproduce", _to_reproduce(summary, described)),
    ]
    written = time.strftime("%Y-%m-%d %H:%M")
    return page(title, f"{summary['estimator']}, report of dkrr {VERSIONS['dkrr']} written {written}", facts, sections)


def page_of_run(status: RunStatus, notes: Mapping[str, Any], maps: Iterable[TileMap]) -> str:
    """Report of the store of a run: how far it is, what is left, and what is known of its work."""
    n_there, n_wanted = (
        sum(getattr(array, name) for array in status.arrays if "/sum-" not in array.name)
        for name in ("present", "expected")
    )
    work, plan = notes["work"], notes["plan"]
    facts = [("run", status.kind), ("chunks written", f"{n_there:,} of {n_wanted:,}")]
    facts += [("in the store", format_bytes(sum(array.n_bytes for array in status.arrays)))]
    is_complete = n_there >= n_wanted and not status.batches_left
    facts += _facts(work) if work else []
    facts += [] if work and is_complete else [("now", "unfinished")]
    tiles = "".join(figures.tile_map(one) for one in maps)
    sections = [
        ("How far it is", f"<p>{escape(status.left)}</p>{status._repr_html_()}"),
        ("Tiles", tiles and f'<div class="pictures">{tiles}</div>'),
        ("Plan and reasons", _plans(plan, None)),
        *_work_sections(plan, work),
        ("Convergence", _convergence(work, (work or {}).get("history") or notes["history"], None)),
        ("Problem", table((name, _short(value)) for name, value in status.problem.items())),
        ("Result", card_of_text(work["text"]) if work else ""),
    ]
    written = time.strftime("%Y-%m-%d %H:%M")
    return page(status.path, f"run of dkrr, report of dkrr {VERSIONS['dkrr']} written {written}", facts, sections)


def _convergence(work: Mapping[str, Any] | None, history: Sequence[Sequence[Any]], tol: float | None) -> str:
    """Steps of Newton's method, if there were any, else iterations of conjugate gradient."""
    steps = (work or {}).get("steps") or []
    return _pictures(figures.newton(steps) if steps else figures.convergence(history, tol))


def _facts(work: Mapping[str, Any]) -> list[tuple[str, str]]:
    what = "relative gradient" if work["steps"] else "true relative residual"
    residual = "not known" if work["residual"] is None else f"{work['residual']:.1e}"
    facts = [("status", work["status"]), (what, residual), ("wall time", format_seconds(work["seconds"]))]
    return [*facts, ("peak of a process", format_bytes(work["peak_bytes"]))]


def _plans(plan: Mapping[str, Any] | None, search: Mapping[str, Any] | None) -> str:
    shown = [text for text in ((search or {}).get("plan"), (plan or {}).get("text")) if text]
    return "".join(card_of_text(text).replace("<details ", "<details open ") for text in shown)


def _work_sections(plan: Mapping[str, Any] | None, work: Mapping[str, Any] | None) -> list[tuple[str, str]]:
    """Planned beside measured, the time line, and the memory."""
    if not work:
        return []
    line, planned = work["line"], (plan or {}).get("stages") or []
    pictures = figures.stage_times(
        {stage[0]: float(stage[1]) for stage in planned}, {stage[0]: float(stage[1]) for stage in work["stages"]}
    )
    known = len(line["lanes"]) > 1
    hidden = line["n_lanes"] - len(line["lanes"]) + 1
    words = f"{line['n_tasks']:,} tasks; a bar is pale where it has pauses."
    words += f" The busiest of {line['n_lanes']} threads." if hidden > 0 and known else ""
    peaks = work["peaks"] or [["the calling process", work["peak_bytes"]]]
    limit = (plan or {}).get("limit_bytes")
    return [
        ("Planned beside measured", pictures + _stage_table(planned, work["stages"])),
        ("Time line", line["bars"] and figures.time_line(line) + (f'<p class="soft">{words}</p>' if known else "")),
        ("Time of the workers by kind of work", _kinds(work["kinds"])),
        ("Memory", figures.memory([(str(n), int(b)) for n, b in peaks], (plan or {}).get("peak_bytes"), limit)),
    ]


def _stage_table(planned: Iterable[Any], measured: Iterable[Any]) -> str:
    expected, found = ({row[0]: row for row in rows} for rows in (planned, measured))
    names = [name for name in STAGE_NAMES if name in found or any((expected.get(name) or [""])[1:4])]
    rows = []
    for name in names:
        plan, work = expected.get(name), found.get(name)
        rows.append(
            (
                name,
                format_seconds(plan[1]) if plan else "",
                format_seconds(work[1]) if work else "",
                f"{format_bytes(plan[2])}, {format_bytes(plan[3])}" if plan and plan[2] + plan[3] else "",
                f"{format_bytes(work[2])}, {format_bytes(work[3])}" if work and work[2] + work[3] else "",
                format_bytes(plan[4]) if plan and plan[4] else "",
                format_bytes(work[4]) if work and work[4] else "",
                f"{work[5]:,}" if work and work[5] else "",
            )
        )
    header = ("stage", "planned", "measured", "planned: read, written", "measured: read, written")
    return details("Numbers", table(rows, (*header, "planned peak", "measured peak so far", "tasks")), is_open=True)


def _kinds(kinds: Mapping[str, float | None]) -> str:
    total = sum(value or 0.0 for value in kinds.values())
    if not total:
        return ""
    rows = []
    for name, value in sorted(kinds.items(), key=lambda item: -(item[1] or 0.0)):
        if value and value >= 0.001 * total:
            rows.append((name, [(value, 2, f"{format_seconds(value)}, {value / total:.0%}")]))
    return rows_of_bars(rows, "seconds of all workers together", format_seconds, ())


def _selection(search: Mapping[str, Any] | None) -> str:
    if not search:
        return ""
    best = "; ".join(f"{name} = {value}" for name, value in search["best"].items())
    pictures = [figures.scores(search["candidates"])]
    if search["curve"]:
        pictures.append(figures.learning_curve(search["curve"]))
    if search["optimum"]:
        pictures.append(figures.optimum(search["optimum"]))
    ranked = sorted((c for c in search["candidates"] if c["score"] is not None), key=lambda c: -c["score"])[:20]
    rows = [
        (
            f"{c['alpha']:.4g}",
            ", ".join(f"{k}={v}" for k, v in c["kernel"].items()),
            f"{c['score']:.6g}",
            "" if c["spread"] is None else f"{c['spread']:.2g}",
            "chosen" if c["best"] else "stopped early" if c["stopped"] else "",
        )
        for c in ranked
    ]
    scores = details(
        f"The best {len(rows)} of {search['n_candidates']} candidates",
        table(rows, ("λ", "kernel", "score", "± of folds", "")),
    )
    curve = f"<p>{escape(search['curve']['conclusion'])}</p>" if search["curve"] else ""
    ended = card_of_text(search["optimum"]["text"]) if search["optimum"] else ""
    return f"<p>Chosen: {escape(best)}</p>{_pictures(*pictures)}{curve}{ended}{scores}"


def _residuals(found: Iterable[Mapping[str, Any]]) -> str:
    parts = []
    for one in found:
        name = f"target {one['target']}"
        words = (
            f"{name}: {one['n']:,} rows, root mean square {one['root_mean_square']:.4g}, largest {one['largest']:.4g}. "
            f"Residuals are λ α / w, without a pass over the data; they are those of the fit, not of new rows."
        )
        parts.append(f'<p class="soft">{escape(words)}</p>{_pictures(figures.residuals(dict(one), name))}')
    return "".join(parts)


def _to_reproduce(summary: Mapping[str, Any], described: Mapping[str, Any] | None) -> str:
    versions = (described or {}).get("versions") or VERSIONS
    words = texts(f"{name} {value}" for name, value in versions.items())
    return f"<pre>{escape(summary['call'])}.fit(X, y)</pre>{details('Versions', words, is_open=True)}"


def _pictures(*pictures: str) -> str:
    shown = "".join(pictures)
    return f'<div class="pictures">{shown}</div>' if shown else ""


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 300 else f"{text[:297]}..."
