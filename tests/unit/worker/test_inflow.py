"""The queue between the reading thread and the main loop: bounded, and it never makes a loop spin or sleep too long."""

import threading
import time

import pyarrow as pa
import pytest

from headgate.worker.inflow import Inflow, ReadAhead
from waiting import wait_until


def row(size):
    return pa.py_buffer(b"x" * size)


def test_a_full_queue_holds_the_reader_until_it_is_half_empty():
    inflow = Inflow(100)
    put = []

    def read():
        for n in range(5):
            inflow.put(row(60))
            put.append(n)

    threading.Thread(target=read, daemon=True).start()
    wait_until(lambda: put == [0, 1])
    time.sleep(0.2)
    assert put == [0, 1]  # the second one went beyond the limit, the third waits
    assert inflow.queued_bytes == 120
    assert len(inflow.take(1)) == 1
    time.sleep(0.2)
    assert put == [0, 1]  # else the reader would wake up for each row
    assert len(inflow.take(1)) == 1
    wait_until(lambda: put == [0, 1, 2, 3])


def test_a_row_larger_than_the_queue_passes():
    inflow = Inflow(100)
    reader = threading.Thread(target=lambda: [inflow.put(row(1000)) for _ in range(3)], daemon=True)
    reader.start()
    taken = []
    wait_until(lambda: taken.extend(inflow.take(1)) or len(taken) == 3)
    reader.join(30)
    assert not reader.is_alive()


def test_nothing_is_taken_when_there_is_no_room():
    inflow = Inflow(100)
    inflow.put(row(10))
    assert inflow.take(0) == []
    assert inflow.take(-5) == []
    assert not inflow.empty


def waits(inflow, for_rows=True):
    """Whether it waits as long as it may."""
    started = time.monotonic()
    inflow.wait(0.3, for_rows)
    return time.monotonic() - started >= 0.29


def returns_at_once(inflow):
    started = time.monotonic()
    inflow.wait(60, True)
    return time.monotonic() - started < 30


def test_wait_ends_with_a_row():
    inflow = Inflow(100)
    assert waits(inflow)
    inflow.put(row(1))
    assert returns_at_once(inflow)
    assert returns_at_once(inflow)  # it is still there


def test_a_row_for_which_there_is_no_room_is_no_reason_to_wake():
    inflow = Inflow(100)
    inflow.put(row(1))
    assert waits(inflow, for_rows=False)


def test_wake_ends_one_wait_even_if_it_came_before():
    inflow = Inflow(100)
    inflow.wake()
    assert returns_at_once(inflow)
    assert waits(inflow)


def test_the_end_of_the_input_wakes_once():
    """A source has read its input to the end from the first moment: its waits must still be waits."""
    inflow = Inflow(100)
    inflow.end(None)
    assert returns_at_once(inflow)
    assert waits(inflow)


def observed(ahead, speeds):
    """Let it see the subtask at work at these speeds, in bytes a second; the limits that it had after each."""
    processed, worked, found = 0, 0.0, []
    for speed in speeds:
        processed, worked = processed + speed // 10, worked + 0.1
        ahead.observe(processed, worked)
        found.append(2 * ahead.half)
    return found


def test_what_is_read_ahead_is_what_is_processed_in_a_time():
    ahead = ReadAhead(4 << 20, 0.2)
    assert 2 * ahead.half == 256 << 10  # a slow function would need minutes for 4 MiB
    limits = observed(ahead, [10_000_000] * 3 + [2_000_000] * 20)
    assert limits[0] == pytest.approx(2_000_000, abs=2)
    assert limits[2] == pytest.approx(2_000_000, abs=2)
    assert limits[3] == pytest.approx(1_200_000, abs=2)
    assert limits[-1] == pytest.approx(400_000, abs=10)


def test_it_has_bounds():
    assert set(observed(ReadAhead(4 << 20, 0.2), [10**9] * 5)) == {4 << 20}
    assert set(observed(ReadAhead(4 << 20, 0.2), [0, 10, 0])) == {256 << 10}
    small = ReadAhead(1, 0.2)
    assert small.half == 1  # else nothing would be read
    assert set(observed(small, [10**9, 0])) == {2}


def test_looks_that_follow_at_once_count_together():
    ahead = ReadAhead(4 << 20, 0.2)
    ahead.observe(1_000_000, 0.001)
    assert ahead.half == 128 << 10
    ahead.observe(1_000_000, 0.1)
    assert ahead.half == 1_000_000


def test_restored_in_flight_data_is_not_a_negative_speed():
    ahead = ReadAhead(4 << 20, 0.2)
    ahead.observe(-5_000_000, 0.1)
    assert ahead.half == 128 << 10
    ahead.observe(-4_000_000, 0.2)
    assert ahead.half == pytest.approx(500_000, abs=2)


def test_a_limit_that_grows_wakes_the_reader():
    inflow = Inflow(100)
    put = []

    def read():
        for n in range(4):
            inflow.put(row(60))
            put.append(n)

    threading.Thread(target=read, daemon=True).start()
    wait_until(lambda: put == [0, 1])
    inflow.limit = 1000
    assert len(inflow.take(1)) == 1
    wait_until(lambda: put == [0, 1, 2, 3])
