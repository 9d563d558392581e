"""Panels are read ahead in order, into the buffer that is not in use."""

import threading

import pytest

from dkrr.linalg.tile_steps import N_SLOTS, prefetched
from dkrr.runtime import Meter


@pytest.mark.parametrize("n", [0, 1, 2, 3, 10])
def test_order_and_slots(n):
    seen = []

    def load(k, slot):
        seen.append((k, slot))
        return k * k

    assert list(prefetched(n, load, Meter(), waits=True)) == [k * k for k in range(n)]
    assert seen == [(k, k % N_SLOTS) for k in range(n)]


def test_a_buffer_in_use_is_not_filled():
    buffers = [None] * N_SLOTS

    def load(k, slot):
        buffers[slot] = k
        return slot

    for k, slot in enumerate(prefetched(20, load, Meter(), waits=True)):
        for _ in range(200):  # give the reader every chance to run ahead
            assert buffers[slot] == k


def test_the_next_is_loaded_while_one_is_in_use():
    loaded = [threading.Event() for _ in range(3)]

    def load(k, slot):
        loaded[k].set()
        return k

    panels = prefetched(3, load, Meter(), waits=True)
    assert next(panels) == 0
    assert loaded[1].wait(10), "panel 1 is read without being asked for"
    assert not loaded[2].is_set()
    assert list(panels) == [1, 2]


def test_an_error_comes_where_the_panel_is_wanted():
    def load(k, slot):
        if k == 2:
            raise OSError("damaged")
        return k

    panels = prefetched(4, load, Meter(), waits=True)
    assert [next(panels), next(panels)] == [0, 1]
    with pytest.raises(OSError, match="damaged"):
        next(panels)


def test_waiting_counts_as_reading():
    meter = Meter()
    list(prefetched(3, lambda k, slot: k, meter, waits=True))
    assert set(meter.seconds) == {"read"}


def test_nothing_is_loaded_ahead_from_memory():
    loaded = []
    for k in prefetched(3, lambda k, slot: loaded.append(slot) or k, Meter(), waits=False):
        assert len(loaded) == k + 1
    assert loaded == [0, 0, 0]


def test_two_of_them_load_at_the_same_time():
    """Else each waits for the first of the other: neither load returns before both have begun."""
    both = threading.Barrier(2, timeout=60)

    def load(k, slot):
        both.wait()
        return k

    one, other = (prefetched(3, load, Meter(), waits=True) for _ in range(2))
    assert list(zip(one, other, strict=True)) == [(0, 0), (1, 1), (2, 2)]
