"""HTML of the page on Dask's dashboard, from the scheduler's events and workers.

Every text in it comes from some client or worker, and is escaped.
"""

import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from dask.utils import key_split

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
from dkrr.markup import escape
from dkrr.pictures import figures
from dkrr.pictures.style import style
from dkrr.units import format_bytes, format_seconds

MAX_FITS = 12
"""Fits on the page: those that run, and the last others."""
MAX_WORKERS = 64
TASKS = "dkrr-"
"""Beginning of the names of dkrr's tasks."""
LOST = "lost"
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
.workers{border-collapse:collapse;width:100%;font-size:13px}
.workers th,.workers td{text-align:left;padding:3px 14px 3px 0;border-bottom:1px solid var(--line);white-space:nowrap}
.workers th{color:var(--soft);font-weight:600}.workers .wide{width:34%;white-space:normal}
.workers svg{display:inline-block;vertical-align:1px;margin-right:8px}
.key{font-size:12.5px}#lost{position:fixed;top:0;left:0;right:0;padding:6px;text-align:center;background:var(--c4);
color:var(--page);font-weight:600}nav{float:right;font-size:13px}a{color:var(--c0)}
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


def fragment(events: Iterable[tuple[float, Any]], scheduler: Any) -> str:
    """What changes on the page: the fits, those that run first, and the workers.

    Parameters
    ----------
    events : iterable of (float, object)
        Time and message of the events of the topic, in their order.
    scheduler : distributed.Scheduler
    """
    fits = _fits(events, set(scheduler.clients))
    shown = "".join(map(_fit, fits[:MAX_FITS])) or (
        "<section><p>No fit has run on this cluster yet. A fit that begins appears here by itself.</p></section>"
    )
    return shown + _workers(scheduler)


def _fits(events: Iterable[tuple[float, Any]], clients: set[str]) -> list[_Fit]:
    last: dict[str, tuple[float, FitState]] = {}
    for when, message in events:
        state = FitState.read(message)
        if state is not None:
            last.pop(state.fit, None)
            last[state.fit] = when, state
    now, found = time.time(), []
    for when, state in reversed(last.values()):
        is_lost = state.status == RUNNING_FIT and state.client not in clients
        found.append(_Fit(state, max(now - when, 0.0), LOST if is_lost else state.status))
    return sorted(found, key=lambda fit: fit.status != RUNNING_FIT)


def _fit(fit: _Fit) -> str:
    state = fit.state
    is_running = fit.status == RUNNING_FIT
    colour = {RUNNING_FIT: "f0", COMPLETE: "f2"}.get(fit.status, "f4")
    ended = "" if is_running else f", {format_seconds(fit.age)} ago"
    facts = [("gone" if is_running else "wall time", format_seconds(fit.seconds))]
    facts += [("planned", format_seconds(state.planned))] if state.planned else []
    bar = ""
    if is_running and state.stage:
        left = state.left - fit.age
        facts += [("stage", state.stage), ("done of the stage", f"{min(max(state.share, 0.0), 1.0):.0%}")]
        facts += [("left of the stage", format_seconds(max(left, 0.0)) if state.left >= 0 else "not known yet")]
        bar = f'<div class="bar">{_bar(state.share, "f0")}</div>'
    boxes = "".join(f"<div><b>{escape(value)}</b><span>{escape(name)}</span></div>" for name, value in facts)
    pictures = "".join([_tiles(state.tiles), *map(_curve, state.curves)])
    planned = {str(name): float(seconds) for name, seconds, _ in state.stages}
    measured = {str(name): float(seconds) for name, _, seconds in state.stages}
    stages = figures.stage_times(planned, measured)
    message = f"<p><b>{escape(state.message)}</b></p>" if state.message else ""
    notes = "".join(f'<p class="soft">{escape(note)}</p>' for note in state.notes)
    return (
        f'<section><h2><span class="state {colour}">{escape(fit.status)}</span>{escape(state.title)}</h2>'
        f'<p class="soft">{escape(state.how)} · {escape(state.who)}{ended}</p>{message}{bar}'
        f'<div class="facts">{boxes}</div><div class="pictures">{pictures}</div>{stages}{notes}</section>'
    )


def _tiles(found: Tiles | None) -> str:
    if found is None:
        return ""
    cells: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for i, row in enumerate(found.cells):
        for j, cell in enumerate(row):
            if cell != NONE:
                cells[cell].append((i, j))
    looks = {}
    for cell in sorted(cells):
        opacity = OPACITY.get(cell, 1.0)
        looks[cell] = f'class="{LOOKS[cell]}" opacity="{opacity}"' if opacity else 'class="missing"'
    step = f"; a cell is {found.step} × {found.step} tiles" if found.step > 1 else ""
    caption = f"{found.name}: {found.n_done:,} of {found.n_tiles:,} tiles{step}"
    side = max(map(len, [found.cells, *found.cells]), default=1)
    return figures.cell_map(caption, side, side, [(looks[cell], places) for cell, places in sorted(cells.items())])


def _curve(curve: Curve) -> str:
    is_newton = curve.method.startswith("Newton")
    if is_newton:
        return figures.newton([[point[0], 0.0, None, point[1]] for point in curve.points])
    return figures.convergence([[p[0], 0.0, p[1], bool(p[2])] for p in curve.points], curve.tol or None)


def _workers(scheduler: Any) -> str:
    workers = sorted(scheduler.workers.values(), key=lambda worker: str(worker.name))
    n_threads = sum(worker.nthreads for worker in workers)
    rows = "".join(map(_worker, workers[:MAX_WORKERS]))
    hidden = f'<p class="soft">and {len(workers) - MAX_WORKERS:,} more</p>' if len(workers) > MAX_WORKERS else ""
    count = f"{_count(len(workers), 'worker')}, {_count(n_threads, 'thread')}"
    header = _cells("th", ("worker", "threads", "works on", "processor", "memory"))
    table = f'<table class="workers"><thead><tr>{header}</tr></thead><tbody>{rows}</tbody></table>'
    return f"<section><h2>{escape(count)}</h2>{table if rows else ''}{hidden}</section>"


def _worker(worker: Any) -> str:
    metrics = worker.metrics or {}
    memory, limit = float(metrics.get("memory") or 0), float(worker.memory_limit or 0)
    cpu = float(metrics.get("cpu") or 0.0)
    used = memory / limit if limit else 0.0
    of_limit = f"{format_bytes(int(memory))} of {format_bytes(int(limit))}" if limit else format_bytes(int(memory))
    return (
        f"<tr><td>{escape(worker.name)}</td><td>{int(worker.nthreads)}</td>"
        f'<td class="wide">{escape(_works_on(worker))}</td>'
        f"<td>{_bar(cpu / (100.0 * max(worker.nthreads, 1)), 'f0', 90)}{cpu:.0f} %</td>"
        f"<td>{_bar(used, 'f4' if used > 0.8 else 'f3', 90) if limit else ''}{escape(of_limit)}</td></tr>"
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


def _bar(share: float, colour: str, width: int = 100) -> str:
    filled = 100.0 * min(max(share, 0.0), 1.0)
    return (
        f'<svg viewBox="0 0 100 8" width="{width}" height="8" preserveAspectRatio="none" role="img">'
        f'<path class="missing" d="M0 0H100V8H0Z"/><path class="{colour}" d="M0 0H{filled:.1f}V8H0Z"/></svg>'
    )
