"""Few cases instead of a full product: every two values of different arguments occur together in some case."""

from collections.abc import Sequence
from itertools import combinations, product
from typing import Any

import pytest


def covering(*choices: Sequence[Any]) -> list[tuple[Any, ...]]:
    """Choose combinations greedily, always the one with the most pairs of values that are still missing."""
    left = {
        (a, i, b, j)
        for a, b in combinations(range(len(choices)), 2)
        for i in range(len(choices[a]))
        for j in range(len(choices[b]))
    }
    every = list(product(*(range(len(values)) for values in choices)))
    if len(choices) < 2:
        return [tuple(values[i] for values, i in zip(choices, chosen, strict=True)) for chosen in every]
    found = []
    while left:
        best = max(every, key=lambda chosen: sum(pair in left for pair in _pairs(chosen)))
        left.difference_update(_pairs(best))
        found.append(tuple(values[i] for values, i in zip(choices, best, strict=True)))
    return found


def _pairs(chosen: Sequence[int]) -> list[tuple[int, int, int, int]]:
    return [(a, chosen[a], b, chosen[b]) for a, b in combinations(range(len(chosen)), 2)]


def every_pair(ids: Any = None, **choices: Sequence[Any]) -> pytest.MarkDecorator:
    """Parametrise a test with covering combinations of the values of its arguments."""
    return pytest.mark.parametrize(tuple(choices), covering(*choices.values()), ids=ids)
