"""HTML of the page on Dask's dashboard, from the scheduler's events and workers.

Every text in it comes from some client or worker, and is escaped.
"""

import time
from collections import defaultdict
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dask.utils import key_split

from dkrr.dashboard import figures
from dkrr.dashboard.states import (
    COMPLETE,
    DONE,
    FORMED,
    NONE,
    PARTS,
    PLACES,
    RUNNING,
    RUNNING_FIT,
    Curve,
    FitState,
    Tiles,
)
from dkrr.dashboard.style import style
from dkrr.markup import escape
from dkrr.units import format_bytes, format_seconds

MAX_FITS = 20
"""Last fits that the page shows."""
MAX_WORKERS = 64
TASKS = "dkrr-"
"""Beginning of the names of dkrr's tasks."""
LOST = "lost"
"""Status of a fit whose client has gone without an end."""
SHORT = 0.005
"""Fraction of the longest stage below which others are left out."""
MAP_PIXELS = 340
WORK = (("f2", "done"), ("f1", "at a worker"), ("missing", "to do"))
KEPT = (("f0", "a colour for each thread"), ("f7", "formed each time"))
LOOKS = {RUNNING: "f1", DONE: "f2", FORMED: "f7", **dict.fromkeys(PARTS[1:], "f2")}
LOOKS |= {place: f"f{k}" for k, place in enumerate(PLACES)}
OPACITY = {FORMED: 0.35, **{part: k / 4 for k, part in enumerate(PARTS)}}

STYLE = """
main section{border:1px solid var(--line);border-radius:10px;padding:14px 20px 12px;margin:18px 0}
main h2{border:0;margin:0;padding:0;overflow-wrap:anywhere}
.bar{height:8px;border-radius:4px;background:var(--line);overflow:hidden;margin:10px 0}
.bar svg{width:100%;height:8px}
.facts{margin:12px 0}.facts div{min-width:104px;padding:6px 12px}.facts b{font-size:16px}
.state{display:inline-block;border-radius:99px;padding:1px 10px;font-size:12.5px;font-weight:600;color:var(--page);
vertical-align:2px;margin-right:8px}
.pictures{gap:8px 32px}.beside{flex:1 1 420px;min-width:0}.curve{max-width:560px}
table{border-collapse:collapse}section>table{width:100%;margin-top:6px}
th,td{text-align:left;vertical-align:top;padding:3px 14px 3px 0;border-bottom:1px solid var(--line);white-space:nowrap}
th{color:var(--soft);font-weight:600}.wide,.most{width:36%;white-space:normal;overflow-wrap:anywhere}.most{width:58%}
td svg{display:inline-block;vertical-align:0;margin-right:8px}
.error{color:var(--c4);overflow-wrap:anywhere}
.legend .missing{background:var(--line)}
ul{margin:8px 0 0;padding-left:20px}
#lost{position:fixed;top:0;left:0;right:0;padding:6px;text-align:center;background:var(--c4);color:var(--page);
font-weight:600}
nav{float:right}a{color:var(--c0)}
"""


@dataclass(frozen=True)
class _Fit:
    """Last state of a fit, and what the scheduler knows of it."""

    state: FitState
    age: float
    """Seconds since the state came."""
    status: str

    @property
    def seconds(self) -> float:
        """Seconds since the fit began; until its end, or until it was last heard of."""
        return self.state.seconds + (self.age if self.status == RUNNING_FIT else 0.0)


def whole_page(content: str, script: str) -> str:
    """The page.

    Parameters
    ----------
    content : str
        HTML of `fragment`.
    script : str
        Renews the content.
    """
    return (
        '<!DOCTYPE html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1"><title>dkrr</title>'
        f'<link rel="icon" href="data:,"><style>{style()}{STYLE}</style></head><body>'
        '<nav><a href="status">Dask’s dashboard</a></nav><h1>Fits of dkrr</h1>'
        '<div id="lost" hidden>The scheduler does not answer. What is shown may be out of date.</div>'
        f"<main>{content}</main><script>{script}</script></body></html>\n"
    )


def fragment(events: Sequence[tuple[float, Any]], scheduler: Any) -> str:
    """What changes on the page: the fits that run, or the last one; the workers; earlier fits.

    Parameters
    ----------
    events : sequence of (float, object)
        Time and message of the events of the topic, in their order.
    scheduler : distributed.Scheduler
    """
    fits = _fits(events, scheduler.clients)
    running = sorted((fit for fit in fits if fit.status == RUNNING_FIT), key=lambda fit: (fit.seconds, fit.state.fit))
    shown = running or fits[:1]
    cards = "".join(map(_card, shown)) or (
        "<section><p>No fit has run on this cluster yet. A fit that begins appears here by itself.</p></section>"
    )
    return cards + _workers(scheduler) + _earlier([fit for fit in fits if fit not in shown])


def _fits(events: Sequence[tuple[float, Any]], clients: Container[str]) -> list[_Fit]:
    """The last state of each of the last fits, the latest first."""
    now, seen, found = time.time(), set[str](), list[_Fit]()
    for when, message in reversed(events):
        # Whether a message is a state is checked for the last one of each fit only: there may be a thousand.
        name = message.get("fit") if isinstance(message, Mapping) else None
        if not isinstance(name, str) or name in seen:
            continue
        state = FitState.read(message)
        if state is None:
            continue
        seen.add(name)
        is_lost = state.status == RUNNING_FIT and state.client not in clients
        found.append(_Fit(state, max(now - when, 0.0), LOST if is_lost else state.status))
        if len(found) == MAX_FITS:
            break
    return found


def _card(fit: _Fit) -> str:
    """All that is known of one fit."""
    state, is_running = fit.state, fit.status == RUNNING_FIT
    facts = [("elapsed" if is_running else "wall time", format_seconds(fit.seconds))]
    facts += [("planned", format_seconds(state.planned))] if state.planned else []
    bar = ""
    if is_running and state.stage:
        left = format_seconds(max(state.left - fit.age, 0.0)) if state.left >= 0 else "not known yet"
        facts += [("stage", state.stage), ("of the stage done", f"{min(max(state.share, 0.0), 1.0):.0%}")]
        facts += [("left of the stage", left)]
        bar = f'<div class="bar">{_bar((state.share, "f0"))}</div>'
    boxes = "".join(f"<div><b>{escape(value)}</b><span>{escape(name)}</span></div>" for name, value in facts)
    curves = "".join(
        f'<div class="curve">{_curve(curve)}</div>'
        for curve in sorted(state.curves, key=lambda curve: not _is_newton(curve))
    )
    pictures = f'{_tiles(state.tiles)}<div class="beside">{_stages(state)}{curves}</div>'
    message = f'<p class="error">{escape(state.message)}</p>' if state.message else ""
    notes = "".join(f"<li>{escape(note)}</li>" for note in state.notes)
    return (
        f"<section><h2>{_status(fit)}{escape(state.title)}</h2>"
        f'<p class="soft">{escape(state.how)} · {escape(state.who)}{_ago(fit)}</p>{message}{bar}'
        f'<div class="facts">{boxes}</div><div class="pictures">{pictures}</div>'
        f"{f'<ul class=soft>{notes}</ul>' if notes else ''}</section>"
    )


def _status(fit: _Fit) -> str:
    colour = {RUNNING_FIT: "f0", COMPLETE: "f2"}.get(fit.status, "f4")
    return f'<span class="state {colour}">{escape(fit.status)}</span>'


def _ago(fit: _Fit) -> str:
    how = {RUNNING_FIT: "", LOST: "last heard of"}.get(fit.status, "ended")
    return f" · {how} {format_seconds(fit.age)} ago" if how else ""


def _earlier(fits: Sequence[_Fit]) -> str:
    """Table of fits that have ended."""
    rows = ""
    for fit in fits:
        state = fit.state
        what = f"<b>{escape(state.title)}</b><br>{escape(state.how)}"
        what += f'<br><span class="error">{escape(state.message)}</span>' if state.message else ""
        ago = escape(f"{format_seconds(fit.age)} ago")
        rows += f'<tr><td>{_status(fit)}</td><td class="most">{what}</td><td>{escape(state.who)}</td>'
        rows += f"<td>{escape(format_seconds(fit.seconds))}</td><td>{ago}</td></tr>"
    header = _cells("th", ("", "fit", "user", "wall time", "ended"))
    return rows and f"<section><h2>Earlier fits</h2>{_table(header, rows)}</section>"


def _stages(state: FitState) -> str:
    """Table of the stages, measured beside planned; without those that take no time."""
    longest = max((max(planned, measured) for _, planned, measured in state.stages), default=0.0)
    rows = ""
    for name, planned, measured in state.stages:
        if max(planned, measured) < SHORT * longest and name != state.stage.split(", ")[0]:
            continue
        bars = _bar((measured / longest, "f1"), (planned / longest, "f0"), width=110) if longest else ""
        rows += f"<tr><td>{escape(name)}</td><td>{bars}</td><td>{escape(format_seconds(measured))}</td>"
        rows += f"<td>{escape(format_seconds(planned))}</td></tr>"
    legend = '<div class=legend><span><i class="f1"></i>so far</span><span><i class="f0"></i>planned</span></div>'
    header = _cells("th", ("stage", "", "so far", "planned"))
    return rows and f"<figure><figcaption>Stages</figcaption>{legend}{_table(header, rows)}</figure>"


def _tiles(found: Tiles | None) -> str:
    if found is None:
        return ""
    cells: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for i, row in enumerate(found.cells):
        for j, cell in enumerate(row):
            if cell != NONE:
                cells[cell].append((i, j))
    looks = []
    for cell, places in sorted(cells.items()):
        opacity = OPACITY.get(cell, 1.0)
        looks.append((f'class="{LOOKS[cell]}" opacity="{opacity}"' if opacity else 'class="missing"', places))
    is_kept = not cells.keys().isdisjoint({*PLACES, FORMED})
    step = f"; a cell is {found.step} × {found.step} tiles" if found.step > 1 else ""
    what = "kept in memory" if is_kept else "done"
    return figures.cell_map(
        f"{found.name}: {found.n_done:,} of {found.n_tiles:,} tiles {what}{step}",
        len(found.cells),
        max(map(len, found.cells), default=0),
        looks,
        pixels=MAP_PIXELS,
        legend=KEPT if is_kept else WORK,
    )


def _is_newton(curve: Curve) -> bool:
    return curve.method.startswith("Newton")


def _curve(curve: Curve) -> str:
    if _is_newton(curve):
        return figures.newton([[step, 0.0, None, value] for step, value, _ in curve.points])
    return figures.convergence([[step, 0.0, value, bool(is_true)] for step, value, is_true in curve.points], curve.tol)


def _workers(scheduler: Any) -> str:
    workers = sorted(scheduler.workers.values(), key=lambda worker: (len(str(worker.name)), str(worker.name)))
    n_threads = sum(worker.nthreads for worker in workers)
    rows = "".join(map(_worker, workers[:MAX_WORKERS]))
    hidden = f'<p class="soft">and {len(workers) - MAX_WORKERS:,} more</p>' if len(workers) > MAX_WORKERS else ""
    header = _cells("th", ("worker", "threads", "works on", "processor", "memory"))
    table = _table(header, rows) if rows else "<p>Fits wait until there are workers.</p>"
    return f"<section><h2>{_count(len(workers), 'worker')}, {_count(n_threads, 'thread')}</h2>{table}{hidden}</section>"


def _worker(worker: Any) -> str:
    metrics = worker.metrics or {}
    memory, limit = float(metrics.get("memory") or 0), float(worker.memory_limit or 0)
    cpu = float(metrics.get("cpu") or 0.0)
    used = memory / limit if limit else 0.0
    of_limit = f"{format_bytes(int(memory))} of {format_bytes(int(limit))}" if limit else format_bytes(int(memory))
    return (
        f"<tr><td>{escape(worker.name)}</td><td>{int(worker.nthreads)}</td>"
        f'<td class="wide">{escape(_works_on(worker))}</td>'
        f"<td>{_bar((cpu / (100.0 * max(worker.nthreads, 1)), 'f0'), width=90)}{cpu:.0f} %</td>"
        f"<td>{_bar((used, 'f4' if used > 0.8 else 'f3'), width=90) if limit else ''}{escape(of_limit)}</td></tr>"
    )


def _works_on(worker: Any) -> str:
    """Words for the tasks that a worker has: their kinds, dkrr's own by the words of their functions."""
    kinds: dict[str, int] = defaultdict(int)
    for task in worker.processing:
        kinds[str(key_split(task.key))] += 1
    words = [name.removeprefix(TASKS).replace("-", " ") + (f" × {n}" if n > 1 else "") for name, n in kinds.items()]
    return ", ".join(sorted(words)[:4])


def _count(n: int, word: str) -> str:
    return f"{n:,} {word}{'s' if n != 1 else ''}"


def _cells(tag: str, texts: Sequence[object]) -> str:
    return "".join(f"<{tag}>{escape(text)}</{tag}>" for text in texts)


def _table(header: str, rows: str) -> str:
    return f"<table><thead><tr>{header}</tr></thead><tbody>{rows}</tbody></table>"


def _bar(*parts: tuple[float, str], width: int = 100) -> str:
    """Shares with their colours, as bars below each other in the height of a line."""
    each, drawn = 8 / len(parts), ""
    for k, (share, colour) in enumerate(parts):
        end = 100.0 * min(max(share, 0.0), 1.0)
        drawn += f'<path class="missing" d="M0 {k * each}H100v{each}H0Z"/>' if len(parts) == 1 else ""
        drawn += f'<path class="{colour}" d="M0 {k * each}H{end:.1f}v{each}H0Z"/>'
    return f'<svg viewBox="0 0 100 8" width="{width}" height="8" preserveAspectRatio="none" role="img">{drawn}</svg>'
