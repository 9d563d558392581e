"""Functions that take turns."""

import threading

import numpy as np
import pytest

from dkrr.runtime.turns import take_turns


def counting(log, name, steps):
    def function(ask):
        for k in range(steps):
            log.append((name, ask((name, k))))

    return function


def test_requests_of_all_that_are_left_come_together():
    log, rounds = [], []

    def serve(requests):
        rounds.append(sorted(requests))
        return {k: f"{name}{step}" for k, (name, step) in requests.items()}

    take_turns([counting(log, "a", 1), counting(log, "b", 3), counting(log, "c", 0)], serve)
    assert rounds == [[0, 1], [1], [1]]
    assert log == [("a", "a0"), ("b", "b0"), ("b", "b1"), ("b", "b2")]
    assert threading.active_count() == len([t for t in threading.enumerate() if t.name != "dkrr-turns"])


def test_requests_may_wait():
    log, rounds = [], []

    def serve(requests):
        rounds.append(sorted(requests))
        first = min(requests)
        return {first: requests[first][1]}

    take_turns([counting(log, "a", 2), counting(log, "b", 1)], serve)
    assert rounds == [[0, 1], [0, 1], [1]]
    assert log == [("a", 0), ("a", 1), ("b", 0)]


def test_settings_of_the_caller_hold():
    found = []
    with np.errstate(over="raise"):
        take_turns([lambda ask: found.append(np.geterr()["over"])], lambda requests: requests)
    assert found == ["raise"]


@pytest.mark.parametrize("where", ["function", "serve", "unanswered"])
def test_an_error_ends_all(where):
    ended = []

    def patient(ask):
        try:
            ask("something")
            ask("more")
        finally:
            ended.append(True)

    def failing(ask):
        ask("something")
        raise KeyError("lost")

    def serve(requests):
        if where == "serve":
            raise KeyError("lost")
        return {} if where == "unanswered" else requests

    with pytest.raises(ValueError if where == "unanswered" else KeyError):
        take_turns([patient, failing if where == "function" else patient], serve)
    assert ended[0] and not [t for t in threading.enumerate() if t.name == "dkrr-turns"]


def test_a_function_that_asks_while_it_is_ended():
    def stubborn(ask):
        try:
            ask("something")
        finally:
            ask("more")

    def failing(ask):
        ask("something")
        raise KeyError("lost")

    with pytest.raises(KeyError, match="lost"):
        take_turns([failing, stubborn], lambda requests: requests if len(requests) == 2 else {})
    assert not [t for t in threading.enumerate() if t.name == "dkrr-turns"]
