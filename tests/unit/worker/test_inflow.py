"""The queue between the reading thread and the main loop: bounded, and it never makes a loop spin or sleep too long."""

import threading
import time
from types import SimpleNamespace
from unittest.mock import patch

import pyarrow as pa
import pytest

from headrace.checkpoint.types import Barrier
from headrace.records.frames import FrameKind
from headrace.worker.inflow import Inflow, ReadAhead
from headrace.worker.mailbox import Mailbox
from headrace.worker.shell import Shell
from rig import data, event, plan_of, subtask
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


def test_rows_come_in_order_and_a_wait_ends_when_one_comes():
    inflow = Inflow(100)
    found = []

    def main_loop():
        while len(found) < 3 and not inflow.exhausted:
            inflow.wait(60)
            found.extend(bytes(one)[:1] for one in inflow.take(1000))

    loop = threading.Thread(target=main_loop, daemon=True)
    loop.start()
    for letter in (b"a", b"b", b"c"):
        time.sleep(0.1)  # it waits already
        inflow.put(pa.py_buffer(letter * 5))
    loop.join(30)
    assert found == [b"a", b"b", b"c"]
    for letter in (b"d", b"e"):
        inflow.put(pa.py_buffer(letter))
    assert [bytes(one) for one in inflow.take(1000)] == [b"d", b"e"]


def test_a_wake_up_and_the_end_of_the_input_end_a_wait_that_has_begun():
    for wake in (lambda inflow: inflow.wake(), lambda inflow: inflow.end(OSError("broken"))):
        inflow = Inflow(100)
        loop = threading.Thread(target=inflow.wait, args=(60,), daemon=True)
        loop.start()
        time.sleep(0.1)
        wake(inflow)
        loop.join(30)
        assert not loop.is_alive()
    assert (inflow.exhausted, str(inflow.error)) == (True, "broken")


@pytest.mark.parametrize("limit", [1, 2, 3])
def test_the_smallest_queue_holds_a_row(limit):
    inflow = Inflow(limit)
    reader = threading.Thread(target=lambda: [inflow.put(row(1)) for _ in range(10)], daemon=True)
    reader.start()
    taken = []
    wait_until(lambda: taken.extend(inflow.take(1)) or len(taken) == 10)
    reader.join(30)
    assert not reader.is_alive()


def test_a_wake_up_of_the_main_loop_does_not_let_the_reader_go_on():
    inflow = Inflow(10)
    put = []
    threading.Thread(target=lambda: [put.append(inflow.put(row(10))) for _ in range(3)], daemon=True).start()
    wait_until(lambda: len(put) == 1)
    inflow.wake()
    time.sleep(0.2)
    assert (len(put), inflow.queued_bytes) == (1, 10)


def made_shell(program, name, **conf):
    plan = plan_of(program, **conf)
    shell = Shell(plan.settings, 1)
    shell.client = SimpleNamespace(send=lambda message: None)
    task = subtask(plan, name, 0, shell)
    task.restore()
    task.open()
    return shell, task


def slow(env):
    env.from_datagen(lambda n: b"x").rebalance().map(lambda v: v).name("slow")._collect_into("out")


@pytest.mark.parametrize("queued", [False, True])
def test_time_in_which_queued_input_must_wait_counts_as_work(queued):
    """Else a subtask that waits for the driver would seem to be as fast as its function, and read seconds ahead."""
    shell, task = made_shell(slow, "slow", headrace_collect_max__unconfirmed=2)
    shell._unconfirmed = 2
    if queued:
        task.receive(data(b"a", b"b"))
    with patch.object(shell.inflow, "wait", lambda seconds, for_rows: time.sleep(0.1)):
        shell._wait(task)
    assert shell._idle >= 0.1
    assert (shell._without_input >= 0.1) == (not queued)


def test_a_batch_is_processed_slice_by_slice():
    """Else a slow function would seem to be fast whenever a batch begins."""
    _, task = made_shell(slow, "slow")
    task.receive(data(*[b"x" * 100] * 10))
    assert task.processed_bytes == 0
    whole = task.metrics().bytes_in
    found = []
    for _ in range(5):
        task.step(2)
        found.append(round(task.processed_bytes / whole, 1))
    assert found == [0.2, 0.4, 0.6, 0.8, 1.0]


def test_an_input_that_fails_has_ended():
    shell, _ = made_shell(slow, "slow")

    def broken():
        raise OSError("the socket broke")
        yield

    shell.read(broken())
    assert (shell.inflow.exhausted, str(shell.inflow.error)) == (True, "the socket broke")


class Over(Exception):
    """The loop has waited as often as there were rows."""


def turns_and_waits(rows):
    """Run the main loop over rows that come one by one while it waits: how many turns there were before each wait."""
    plan = plan_of(slow)
    shell = Shell(plan.settings, 1)
    shell.client = SimpleNamespace(send=lambda message: None)
    task = subtask(plan, "slow", 0, shell)
    shell._may_start = True
    shell._slice.records = 100  # on a busy machine it would stay at one record
    coming, found = iter(rows), []

    def wait(seconds, for_rows):
        found.append((work.call_count, serve.call_count))
        if (row := next(coming, None)) is None:
            raise Over
        shell.inflow.put(pa.py_buffer(row))

    with (
        patch.object(shell.inflow, "wait", wait),
        patch.object(shell, "_work", wraps=shell._work) as work,
        patch.object(shell.mailbox, "serve", wraps=shell.mailbox.serve) as serve,
        pytest.raises(Over),
    ):
        list(shell.run(task))
    return found, task


def test_a_subtask_waits_in_the_turn_that_has_processed_all():
    """Each turn costs CPU time, which counts where every row comes alone."""
    found, task = turns_and_waits([data(b"a"), data(b"b", b"c")])
    assert found == [(1, 1), (2, 2), (3, 3)]
    assert task.records_in == 3


def test_what_an_event_requests_of_the_driver_is_sent_before_the_wait():
    started = []
    barrier = event(FrameKind.BARRIER, body=Barrier(1, 0).encode())
    with patch.object(Mailbox, "serve", lambda mailbox, task: started.append(len(task.take_snapshots()))):
        found, _ = turns_and_waits([barrier])
    assert found == [(1, 1), (2, 2)]
    assert started == [0, 1]


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
