"""Tests wait for a condition, never for a time."""

import time


def wait_until(condition, seconds=60.0, what="the condition"):
    """Poll until the condition gives something true; that."""
    deadline = time.monotonic() + seconds
    while not (result := condition()):
        assert time.monotonic() < deadline, f"{what} did not come true in {seconds} s"
        time.sleep(0.01)
    return result
