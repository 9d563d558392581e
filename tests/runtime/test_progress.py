"""The time of stages, which every display measures."""

import time

from dkrr.runtime import Progress


def test_the_time_of_stages_is_measured():
    display = Progress()
    for name in ("factorisation", "substitution", "factorisation"):
        with display.stage(name, 1.0, detail="model 1"):
            time.sleep(0.002)
    first, second = display.take_stages()
    assert (first.name, second.name) == ("factorisation", "substitution")
    assert first.seconds >= 0.004 and second.seconds >= 0.002
    assert display.take_stages() == (), "each is told once"
