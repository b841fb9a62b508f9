"""Tests wait for a condition, never for a time."""

import time


def wait_until(condition, what="the condition", seconds=120.0):
    """Poll until the condition gives something true; that.

    The limit is for a condition that never comes true. How long it takes is no part of a test: a machine that is shared
    may give a test a tenth of its time.
    """
    deadline = time.monotonic() + seconds
    while not (result := condition()):
        assert time.monotonic() < deadline, f"{what} did not come true in {seconds} s"
        time.sleep(0.01)
    return result
