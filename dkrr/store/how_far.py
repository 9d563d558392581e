"""State of a run from the notes in its store, and its description: the remaining work that `dkrr.status` shows.

A note is written when a stage begins, and once what it names is complete. So they say no more than is so when a run is
killed: a stage that has begun may have ended, and what is kept is kept.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from math import log
from typing import Any

from dkrr.checks import shown
from dkrr.errors import StoreError
from dkrr.store.description import ASKED_NOTE, COPY, FACTOR_NOTE, SIZE, STAGE_NOTE, dict_of, is_number, matches
from dkrr.store.run_store import ASKED, BATCHES, CHECKPOINT, ENDED, FACTOR, N_BATCHES, PIVOTS, STAGE, WORK
from dkrr.text import format_seconds, plural

GRAM, SEARCH = "Gram matrix", "search"
COPYING, ITERATING, STEPPING = "copying X", "conjugate gradient", "Newton steps"
"""Stages with special words."""
SINGLE_STAGES = ("checking X", COPYING, "reading X", "preconditioner", "normal matrix", ITERATING)
"""Stages that a run has once, or about so."""
ARRAYS_OF = {
    "Gram matrix": r"gram",
    "normal matrix": r"(part|moments|sums)-[0-9-]+",
    "factorisation": r"factor",
    "substitution": r"forward|solution",
}
"""Last names of the arrays that a stage writes."""
TRIANGLES = r"factor|gram|part-[0-9]+"
"""Last names of the arrays that take most of the time."""


@dataclass(frozen=True)
class HowFar:
    """State of a run, from its notes.

    Parameters
    ----------
    problem : dict
        Fingerprint of the run.
    notes : dict
    shown : dict or None
        What the last checkpoint shows.
    """

    problem: dict[str, Any]
    notes: dict[str, Any]
    shown: dict[str, Any] | None

    def check(self, url: str) -> None:
        """Refuse notes that dkrr does not write.

        Raises
        ------
        StoreError
            Naming the note.
        """
        schemas = {STAGE: STAGE_NOTE, ASKED: ASKED_NOTE, FACTOR: FACTOR_NOTE, N_BATCHES: SIZE, WORK: _is_result}
        for name, schema in schemas.items():
            if not matches(self.notes.get(name), (None, schema)):
                raise StoreError(f"the run in {url} is damaged: its note {name!r} is not one that dkrr writes")
        if not matches(self.shown, (None, dict_of(is_number))):
            raise StoreError(f"the run in {url} is damaged: its checkpoint shows {shown(self.shown)}")

    @property
    def stage(self) -> str:
        """Stage that has begun last; empty where none has."""
        return self._stage_and_detail[0]

    @property
    def _stage_and_detail(self) -> tuple[str, str]:
        """Name of the last stage that has begun, and which part of it."""
        found = self.notes.get(STAGE)
        stage, _, detail = ("" if found is None else str(found["name"])).partition(", ")
        return stage, detail

    @property
    def columns_kept(self) -> int:
        """Columns of the preconditioner's factor that are kept."""
        return 0 if self.notes.get(FACTOR) is None else int(self.notes[FACTOR]["panels"][-1][1])

    @property
    def result(self) -> dict[str, Any] | None:
        """Status, residual and iterations of a run that has ended; None before, and for runs without a result."""
        found = self.notes.get(WORK)
        return None if found is None else {name: found[name] for name in ("status", "residual", "iterations")}

    @property
    def asked(self) -> dict[str, Any] | None:
        """Tolerance and limit of iterations of the last call."""
        found = self.notes.get(ASKED)
        return None if found is None else {name: found[name] for name in ("tol", "max_iter")}

    def seconds_left(self) -> float | None:
        """Time by the plan of the last stage that has begun, and of those after it; None if unknown."""
        asked = self.notes.get(ASKED)
        if asked is None or self.result is not None or self.notes.get(N_BATCHES):
            return None
        planned = dict[str, float]()
        for name, seconds in asked["planned"]:
            planned[name] = planned.get(name, 0.0) + seconds
        # With a factor for each value of alpha these stages follow each other once for each.
        is_repeated = self.stage not in SINGLE_STAGES and self._n_alphas > 1
        if self.stage not in planned or is_repeated:
            return None
        rest = list(planned.values())[list(planned).index(self.stage) :]
        return float(sum(rest) - self._fraction_done() * rest[0])

    @property
    def _n_alphas(self) -> int:
        alphas = self.problem.get("alpha")
        return len(set(map(str, alphas))) if isinstance(alphas, list) else 1

    def _fraction_done(self) -> float:
        """Fraction of the last stage that has begun; of conjugate gradient, fraction of the digits."""
        residual, asked = (self.shown or {}).get("residual"), self.asked
        if self.stage == ITERATING:
            if not isinstance(residual, float) or asked is None or not 0 < asked["tol"] < 1 or not residual > 0:
                return 0.0
            return min(max(log(residual) / log(asked["tol"]), 0.0), 1.0)
        return min(float(self.notes[STAGE]["done"]), 1.0)

    def batches_left(self, arrays: Sequence[Any]) -> int:
        """Batches of targets that are not solved yet."""
        whole = {one.name for one in arrays if one.present == one.expected}
        names = [name.removeprefix("batch-") for name, note in self.notes.items() if name.startswith("batch-") and note]
        done = sum({f"{BATCHES}/{name}-coef", f"{BATCHES}/{name}-rest"} <= whole for name in names)
        return max(int(self.notes.get(N_BATCHES) or 0) - done, 0)

    def is_finished(self, kind: str, arrays: Sequence[Any]) -> bool:
        """Whether the same call would only read its result."""
        is_whole = not _unfinished(arrays) and not self.batches_left(arrays)
        has_ended = self.result is not None or self.stage == ENDED
        return is_whole and (has_ended or (kind == GRAM and any(one.name == "gram" for one in arrays)))

    def words(self, kind: str, arrays: Sequence[Any], copy: str | None) -> str:
        """Description of the remaining work.

        Parameters
        ----------
        kind : str
        arrays : sequence of ArrayContents
        copy : str or None
            Name of the copy of X that is complete.
        """
        if self.is_finished(kind, arrays):
            what = {GRAM: "the matrix", SEARCH: "its scores"}.get(kind, "its result")
            done = f"nothing is left to compute; the same call reads {what}"
            return done if self.result is None else self._of_result(self.result, done)
        parts, unfinished, batches = list[str](), _unfinished(arrays), self.batches_left(arrays)
        if batches:
            parts.append(f"{plural(batches, 'batch', 'es')} of targets {_are(batches)} left to solve")
        elif self.notes.get(N_BATCHES) and self.result is None:
            return "all batches of targets are solved, and the result is left"
        if self.result is None:
            parts += self._of_stage(arrays, copy)
            pattern = f"{ARRAYS_OF.get(self.stage, '')}|{TRIANGLES}"
            unfinished = [one for one in unfinished if re.fullmatch(pattern, one.name.rpartition("/")[2])]
        if unfinished:
            chunks = sum(one.expected - one.present for one in unfinished)
            names = ", ".join(one.name for one in unfinished[:3])
            more = ", ..." if len(unfinished) > 3 else ""
            parts.append(f"{plural(chunks, 'chunk')} {_are(chunks)} left to compute ({names}{more})")
        if self.result is None:
            parts += self._of_checkpoint()
        seconds = self.seconds_left()
        parts += [f"about {format_seconds(seconds)} by the plan"] if seconds is not None and seconds >= 1 else []
        return "; ".join(parts) or "nothing is computed yet"

    def _of_stage(self, arrays: Sequence[Any], copy: str | None) -> list[str]:
        stage, detail = self._stage_and_detail
        if not stage or stage == ENDED or (stage == COPYING and copy is not None):
            return []
        if stage == COPYING:
            name = next((one for one in arrays if _is_copy(one.name)), None)
            of = "" if name is None else f" ({name.present:,} of {plural(name.expected, 'chunk')})"
            return [f"copying X has begun{of}", "nothing is computed yet"]
        done = self.notes[STAGE]["done"]
        is_told = stage not in (ITERATING, STEPPING) and 0.01 <= done < 1
        share = f", at least {done:.0%} of its work done" if is_told else ""  # noted now and then
        name = f"{'the ' if stage == 'preconditioner' else ''}{stage}{f' ({detail})' if detail else ''}"
        found = [f"{name} {'have' if stage.endswith('s') else 'has'} begun{share}"]
        if stage in ("preconditioner", ITERATING) and self.columns_kept:
            found.append(f"{plural(self.columns_kept, 'column')} of the preconditioner {_are(self.columns_kept)} kept")
        if stage in (ITERATING, STEPPING) and self.shown is None:
            found.append(f"no {'iteration' if stage == ITERATING else 'step'} is kept yet")
        return found

    def _of_checkpoint(self) -> list[str]:
        last, asked, found = self.shown or {}, self.asked, list[str]()
        if "iteration" in last:
            residual, tol = last.get("residual"), "" if asked is None else f" where {asked['tol']:.1e} is asked"
            at = f" at a residual of {residual:.1e}{tol}" if isinstance(residual, float) else ""
            found.append(f"iteration {last['iteration']:,}{at} is kept")
        if "models done" in last:
            alphas = self.problem.get("alpha")
            n_alphas = len(alphas) if isinstance(alphas, list) else 1
            found.append(f"{last['models done']:,} of {plural(n_alphas, 'value')} of alpha solved")
        if "Newton step" in last:
            found.append(f"Newton step {last['Newton step']:,} of the next is kept")
        return [", ".join(found) + ", from which the same call resumes"] if found else []

    def _of_result(self, result: dict[str, Any], done: str) -> str:
        residual = "" if result["residual"] is None else f" at a residual of {result['residual']:.1e}"
        asked = "" if self.asked is None else f" where {self.asked['tol']:.1e} was asked"
        if result["status"] == "MAX_ITERATIONS":
            return (
                "nothing with this max_iter: the run ended after "
                f"{plural(result['iterations'], 'iteration')}{residual}{asked}; a larger max_iter resumes from there"
            )
        if result["status"] == "STALLED":
            return (
                f"nothing is left to compute: the run ended{residual}{asked}, which no iteration makes smaller; the "
                f"same call reads its result"
            )
        return done


def _are(count: int) -> str:
    return "is" if count == 1 else "are"


def _is_result(value: Any) -> bool:
    if not isinstance(value, dict) or not isinstance(value.get("status"), str):
        return False
    residual = value.get("residual")
    return matches(value.get("iterations"), SIZE) and (residual is None or type(residual) is float)


def _unfinished(arrays: Sequence[Any]) -> list[Any]:
    """Arrays whose missing chunks are left to compute."""
    return [one for one in arrays if one.present < one.expected and not _is_kept_whole(one.name)]


def _is_copy(name: str) -> bool:
    return COPY.fullmatch(name.split("/")[0]) is not None


def _is_kept_whole(name: str) -> bool:
    """Whether an array counts only once a note names it: copies of X, checkpoints, what is kept of a preconditioner."""
    first = name.split("/")[0]
    prefixes = (f"{CHECKPOINT}-", f"{PIVOTS}-", FACTOR, "model-", f"{BATCHES}", "held-out")
    return _is_copy(name) or first.startswith(prefixes)
