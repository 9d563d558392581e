"""Few cases instead of a full product: every two values of different arguments occur together in some case."""

from collections.abc import Iterable, Sequence
from itertools import combinations, product
from typing import Any

import pytest


def covering(*choices: Sequence[Any]) -> list[tuple[Any, ...]]:
    """Choose greedily the combination with the most new pairs of values, among those the one with the most triples."""
    every = list(product(*(range(len(values)) for values in choices)))
    missing = {pair for chosen in every for pair in _parts(chosen, 2)}
    triples: set[Any] = set()
    found = []
    while missing:
        best = max(
            every,
            key=lambda chosen: (len(missing.intersection(_parts(chosen, 2))), len(_parts(chosen, 3) - triples)),
        )
        missing -= _parts(best, 2)
        triples |= _parts(best, 3)
        found.append(tuple(values[i] for values, i in zip(choices, best, strict=True)))
    return found


def _parts(chosen: Sequence[int], size: int) -> set[Any]:
    return set(combinations(enumerate(chosen), size))


def every_pair(ids: Any = None, *, by_day: str = "pairs", **choices: Sequence[Any]) -> pytest.MarkDecorator:
    """Parametrise a test by combinations of the values of two or more arguments.

    With ``by_day="values"`` the fast suite has each value once, and the nightly tests each pair.
    """
    found = covering(*choices.values())
    return pytest.mark.parametrize(tuple(choices), each_value(found) if by_day == "values" else found, ids=ids)


def each_value(cases: Iterable[tuple[Any, ...]]) -> list[Any]:
    """Cases of which those without a new value of any argument are for the nightly tests."""
    seen, found = set[tuple[int, str]](), list[Any]()
    for values in cases:
        new = {(place, repr(value)) for place, value in enumerate(values)} - seen
        seen |= new
        found.append(pytest.param(*values, marks=[pytest.mark.nightly] * (not new)))
    return found
