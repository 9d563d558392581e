"""What a process keeps from one task to the next: made once, found again, let go of together."""

import threading
import uuid

import pytest

from dkrr.runtime import resident


@pytest.fixture
def run():
    name = f"resident-{uuid.uuid4().hex}"
    yield name
    resident.forget(name)


def traces_of(run):
    return (run in resident._kept) + sum(k[0] == run for d in (resident._locks, resident._reserved) for k in d)


class TestKept:
    def test_what_is_kept_is_made_once(self, run):
        made = []
        for _ in range(3):
            value = resident.kept(run, "x", lambda: made.append(1) or [len(made)])
        assert value == [1] and made == [1]
        assert resident.found(run, "x") is value

    def test_names_and_runs_are_apart(self, run):
        other = run + "-other"
        resident.kept(run, ("x", 0), lambda: "a")
        resident.kept(run, ("x", 1), lambda: "b")
        resident.kept(other, ("x", 0), lambda: "c")
        assert [resident.found(run, ("x", k)) for k in (0, 1, 2)] == ["a", "b", None]
        assert resident.found(other, ("x", 0)) == "c"
        resident.forget(run)
        assert resident.found(run, ("x", 0)) is None
        assert resident.found(other, ("x", 0)) == "c", "another run's is not touched"
        resident.forget(other)

    def test_an_error_keeps_nothing(self, run):
        with pytest.raises(ZeroDivisionError):
            resident.kept(run, "x", lambda: 1 / 0)
        assert resident.found(run, "x") is None
        assert resident.kept(run, "x", lambda: "second") == "second", "and holds no lock"

    def test_threads_that_come_together_make_it_once(self, run):
        made, found, barrier = [], [], threading.Barrier(8)

        def make():
            made.append(1)
            threading.Event().wait(0.05)  # let the others come
            return object()

        def ask():
            barrier.wait()
            found.append(resident.kept(run, "x", make))

        threads = [threading.Thread(target=ask) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(made) == 1
        assert len(found) == 8 and len({id(x) for x in found}) == 1

    def test_one_that_takes_long_does_not_hold_up_the_others(self, run):
        inside, done = threading.Event(), threading.Event()

        def slow():
            inside.set()
            return done.wait(10)

        thread = threading.Thread(target=resident.kept, args=(run, "slow", slow))
        thread.start()
        assert inside.wait(10)
        assert resident.kept(run, "fast", lambda: "at once") == "at once"
        done.set()
        thread.join()
        assert resident.found(run, "slow") is True


class TestRoom:
    def test_the_oldest_leaves_where_there_are_too_many(self, run):
        assert [resident.has_room(run, "group", k, 2) for k in (7, 7, 3, 5, 7, 3)] == [
            True,
            True,
            True,
            False,
            True,
            True,
        ]
        assert resident.has_room(run, "rows", 5, 1), "another kind"
        assert not resident.has_room(run, "none", 0, 0)

    def test_forget_makes_room(self, run):
        resident.has_room(run, "group", 0, 1)
        resident.forget(run)
        assert resident.has_room(run, "group", 1, 1)
