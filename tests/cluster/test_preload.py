from types import SimpleNamespace
from typing import Any

import pytest

from dkrr.preload import problems


def worker(*, threads: int = 1, limit: int | None = 2**30, target: Any = False, spill: Any = False) -> Any:
    memory = SimpleNamespace(memory_limit=limit, memory_target_fraction=target, memory_spill_fraction=spill)
    return SimpleNamespace(name="w", state=SimpleNamespace(nthreads=threads), memory_manager=memory)


def test_good_settings() -> None:
    assert problems(worker()) == []


@pytest.mark.parametrize(
    ("settings", "remedy"),
    [
        ({"threads": 4}, "--nthreads 1"),
        ({"limit": None}, "--memory-limit"),
        ({"target": 0.6}, "memory.target"),
        ({"spill": 0.7}, "memory.spill"),
    ],
)
def test_bad_settings_are_named_with_a_remedy(settings: dict[str, Any], remedy: str) -> None:
    (problem,) = problems(worker(**settings))
    assert remedy in problem
