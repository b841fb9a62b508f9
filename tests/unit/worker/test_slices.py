"""How many records are processed before timers and control messages."""

import os
import resource
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from types import SimpleNamespace
from unittest.mock import patch

import pytest

from headrace.worker import slices
from headrace.worker.shell import Shell
from headrace.worker.slices import SliceLimit, preemptions
from rig import plan_of


class Machine:
    """Slices on a CPU that others may use: `interrupted` says so."""

    def __init__(self, per_record, fixed=0.0, waiting=0.0, slowdown=1.0, target=0.01, bytes_each=0):
        self.per_record, self.fixed, self.waiting, self.slowdown = per_record, fixed, waiting, slowdown
        self.bytes_each = bytes_each
        self.limit = SliceLimit(target)
        self.passed = 0.0

    def run(self, slices=200, available=1 << 20):
        for _ in range(slices):
            count = min(self.limit.records, available)
            on_cpu = self.fixed + self.per_record * count
            seconds = on_cpu * self.slowdown + self.waiting * count
            self.passed += seconds
            self.limit.observe(count, seconds, on_cpu, self.slowdown > 1, self.bytes_each * count)
        return self.limit.records


def test_a_slice_takes_the_target_time_at_most():
    assert 3.3e-3 <= Machine(1e-6).run() * 1e-6 <= 10e-3
    assert Machine(1e-9).run() == 1 << 16
    assert Machine(1.0).run() == 1


def test_a_slice_without_enough_records_does_not_change_it():
    assert Machine(1e-6).run(available=20) == 32


def test_a_slow_function_is_noticed_after_few_records():
    """A second for each record: 256 of them at first would keep timers and barriers waiting for minutes."""
    machine = Machine(0.0, waiting=1.0)
    assert machine.run(slices=3) == 1
    assert machine.passed == 3


def test_a_slow_first_record_does_not_make_slices_small():
    """It may load a model: later ones decide."""
    limit = SliceLimit(0.01)
    limit.observe(1, 1.0, 1.0, False, 0)
    limit.observe(1, 1e-6, 1e-6, False, 0)
    assert limit.records == 2


def test_a_batch_of_one_slow_record_does_not_make_slices_small():
    machine = Machine(1e-6)
    limit = machine.run()
    machine.limit.observe(1, 1.0, 1.0, False, 0)
    assert machine.limit.records == limit


def test_what_a_small_batch_shows_counts():
    """20 of at most 4,096 records took twice the target."""
    machine = Machine(1e-6)
    assert machine.run() == 4096
    machine.limit.observe(20, 0.02, 0.02, False, 0)
    assert machine.limit.records == 10


def test_a_busy_cpu_does_not_make_slices_small():
    """Three processes for each CPU: a slice takes three times its time on the CPU, and its size is that of an idle machine."""
    assert Machine(1e-6, slowdown=3).run() == Machine(1e-6).run()
    assert Machine(1.5e-6, slowdown=3.9).run() == Machine(1.5e-6).run()


def test_slices_are_bounded_on_the_clock_too():
    """A CPU with a hundred processes: timers and control messages do not wait for all of them."""
    assert Machine(1e-6, slowdown=100).run() * 1e-6 * 100 <= 40e-3


def test_a_function_that_waits_has_slices_of_the_target_time():
    assert 3.3e-3 <= Machine(0.0, waiting=1e-4).run() * 1e-4 <= 10e-3


def test_a_function_that_waits_on_a_busy_cpu():
    assert Machine(1e-6, waiting=1e-4, slowdown=1.5).run() * 1e-4 <= 40e-3


def test_the_bytes_that_a_slice_emits_are_bounded():
    assert 1 << 19 <= Machine(1e-9, bytes_each=1000).run() * 1000 <= 2 << 20
    assert Machine(1e-9, bytes_each=1000, slowdown=3).run() * 1000 <= 2 << 20


one_cpu = pytest.mark.skipif(
    not hasattr(os, "sched_setaffinity") or slices._THREAD is None,
    reason="only Linux puts a thread on one CPU, and counts",
)


@contextmanager
def another_process_on_the_same_cpu():
    usual = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(usual)})  # the other process inherits it
    try:
        with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as other:
            try:
                yield
            finally:
                other.kill()
    finally:
        os.sched_setaffinity(0, usual)


@one_cpu
def test_a_thread_that_shares_its_cpu_is_interrupted():
    with another_process_on_the_same_cpu():
        before, end = preemptions(), time.monotonic() + 30
        while preemptions() < before + 3 and time.monotonic() < end:
            pass
    assert preemptions() >= before + 3


@one_cpu
def test_interruptions_of_other_threads_do_not_count():
    def of_all_threads():
        return resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw

    def spin():
        while of_all_threads() < before + 30 and time.monotonic() < end:
            pass

    before, mine, end = of_all_threads(), preemptions(), time.monotonic() + 30
    with another_process_on_the_same_cpu():
        thread = threading.Thread(target=spin)
        thread.start()
        thread.join()
    assert of_all_threads() >= before + 30
    assert preemptions() <= mine + 15


def test_where_the_system_does_not_count_for_a_thread_the_clock_counts(monkeypatch):
    monkeypatch.setattr(slices, "_THREAD", None)
    assert preemptions() == preemptions() == 0


# --- what the main loop says of a slice ---------------------------------------------------------------------------------


class Task:
    """A subtask whose time on the clock and on the CPU, and interruptions, the test says."""

    def __init__(self, machine, step, timers):
        self.machine, self._step, self._timers = machine, step, timers
        self.bytes_out = 100
        self.asked = None

    def next_deadline(self):
        return 0 if self._timers else None

    def on_time(self, now):
        self.machine.wall += self._timers
        self.machine.cpu += self._timers
        self.machine.preemptions += 1
        self.bytes_out += 7

    def has_work(self):
        return True

    def step(self, records):
        self.asked = records
        wall, cpu, preemptions, made, count = self._step
        self.machine.wall += wall
        self.machine.cpu += cpu
        self.machine.preemptions += preemptions
        self.bytes_out += made
        return count


def observed(step, timers=0.0):
    shell, found = Shell(plan_of(lambda env: env.from_elements(1).print()).settings), []
    machine = SimpleNamespace(wall=5.0, cpu=3.0, preemptions=40)
    shell._slice = SimpleNamespace(records=10, observe=lambda *told: found.append(told))
    shell.now = lambda: 1
    task = Task(machine, step, timers)
    with (
        patch("headrace.worker.shell.time.perf_counter", lambda: machine.wall),
        patch("headrace.worker.shell.time.thread_time", lambda: machine.cpu),
        patch("headrace.worker.shell.preemptions", lambda: machine.preemptions),
    ):
        shell._work(task)
    assert task.asked == 10
    assert shell._busy == pytest.approx(step[0] + timers)
    ((count, seconds, on_cpu, preempted, made),) = found
    return count, round(seconds, 6), round(on_cpu, 6), preempted, made


def test_a_slice_is_measured_on_the_clock_and_on_the_cpu_of_its_thread():
    assert observed((0.03, 0.01, 2, 500, 9)) == (9, 0.03, 0.01, True, 500)
    assert observed((0.03, 0.01, 0, 500, 9)) == (9, 0.03, 0.01, False, 500)


def test_timers_are_not_part_of_a_slice():
    """Else timers that take long in each turn would leave one record for each of them."""
    assert observed((0.03, 0.01, 0, 500, 9), timers=0.5) == (9, 0.03, 0.01, False, 500)
