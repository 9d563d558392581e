"""States of fits as messages: what a fit sends is read back, and what anyone else writes is refused or bounded."""

import math
from dataclasses import replace

import msgpack
import pytest

from dkrr.dashboard.states import MAX_TEXT, Curve, FitState, Tiles

STATE = FitState(
    fit="f" * 32,
    client="Client-1",
    who="ann@host",
    title="3,000 rows × 4 columns",
    how="dual, Cholesky",
    status="running",
    message="",
    seconds=12.5,
    planned=30.0,
    stage="factorisation",
    share=0.4,
    left=18.0,
    stages=[["factorisation", 30.0, 12.0]],
    tiles=Tiles("factorisation", 3, 6, 1, ["4  ", "4r ", "400"]),
    curves=[Curve("conjugate gradient", 1e-8, [[1.0, 0.5, 0.0], [2.0, 0.1, 1.0]])],
    notes=["resuming"],
)


def test_round_trip():
    assert FitState.read(msgpack.unpackb(msgpack.packb(STATE.plain()))) == STATE


@pytest.mark.parametrize(
    "change",
    [
        {"seconds": "12"},
        {"left": math.nan},
        {"status": "<b>"},
        {"title": 3},
        {"stages": [["a", 1.0, "<b>"]]},
        {"stages": [["a", 1.0, 1.0]] * 1000},
        {"tiles": {"name": "a", "n_done": 1, "n_tiles": 1, "step": 1, "cells": ["<"]}},
        {"tiles": {"name": "a", "n_done": 1, "n_tiles": 1, "step": 1, "cells": ["4" * 61]}},
        {"tiles": {"name": "a", "n_done": math.inf, "n_tiles": 1, "step": 1, "cells": ["4"]}},
        {"tiles": 7},
        {"curves": [{"method": "a", "tol": 1.0, "points": [[1.0, 2.0]]}]},
        {"curves": [{"method": "a", "tol": 1.0, "points": [[1.0, 2.0, "x"]]}]},
        {"curves": None},
        {"notes": "text"},
    ],
)
def test_what_is_not_a_state_is_refused(change):
    assert FitState.read(STATE.plain() | change) is None


@pytest.mark.parametrize("message", [None, 7, "text", [], {}, {"fit": "x"}])
def test_other_messages_are_refused(message):
    assert FitState.read(message) is None


def test_text_is_cut():
    found = FitState.read(replace(STATE, title="x" * 10**6).plain())
    assert found is not None and found.title == "x" * MAX_TEXT
