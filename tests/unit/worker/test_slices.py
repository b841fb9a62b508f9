"""How many records are processed before timers and control messages."""

import os
import subprocess
import sys
import time

import pytest

from headgate.worker.slices import SliceLimit, preemptions


class Machine:
    """Slices on a CPU that others may use: `interrupted` says so."""

    def __init__(self, per_record, fixed=0.0, waiting=0.0, slowdown=1.0, target=0.01, bytes_each=0):
        self.per_record, self.fixed, self.waiting, self.slowdown = per_record, fixed, waiting, slowdown
        self.bytes_each = bytes_each
        self.interrupted = 0
        self.limit = SliceLimit(target, lambda: self.interrupted)

    def run(self, slices=200, available=1 << 20):
        for _ in range(slices):
            count = min(self.limit.records, available)
            on_cpu = self.fixed + self.per_record * count
            if self.slowdown > 1:
                self.interrupted += 1
            seconds = on_cpu * self.slowdown + self.waiting * count
            self.limit.observe(count, seconds, on_cpu, self.bytes_each * count)
        return self.limit.records


def test_a_slice_takes_the_target_time_at_most():
    assert 3.3e-3 <= Machine(1e-6).run() * 1e-6 <= 10e-3
    assert Machine(1e-9).run() == 1 << 16
    assert Machine(1.0).run() == 1


def test_a_slice_without_enough_records_does_not_change_it():
    assert Machine(1e-6).run(available=20) == 256


def test_a_busy_cpu_does_not_make_slices_small():
    """Three processes for each CPU: a slice takes three times its time on the CPU, and its size is that of an idle machine."""
    assert Machine(1e-6, slowdown=3).run() == Machine(1e-6).run()


def test_slices_are_bounded_on_the_clock_too():
    """A CPU with a hundred processes: timers and control messages do not wait for all of them."""
    assert Machine(1e-6, slowdown=100).run() * 1e-6 * 100 <= 40e-3


def test_a_function_that_waits_has_slices_of_the_target_time():
    assert 3.3e-3 <= Machine(0.0, waiting=1e-4).run() * 1e-4 <= 10e-3


def test_a_function_that_waits_on_a_busy_cpu():
    assert Machine(1e-6, waiting=1e-4, slowdown=1.5).run() * 1e-4 <= 40e-3


def test_an_interruption_counts_once():
    machine = Machine(0.0, waiting=1e-4)
    machine.interrupted = 7
    machine.limit.observe(256, 25.6e-3, 0.0, 0)  # looks for interruptions since the last look
    before = machine.limit.records
    machine.limit.observe(before, 25.6e-3, 0.0, 0)
    assert machine.limit.records == before // 2


def test_the_bytes_that_a_slice_emits_are_bounded():
    assert 1 << 19 <= Machine(1e-9, bytes_each=1000).run() * 1000 <= 2 << 20
    assert Machine(1e-9, bytes_each=1000, slowdown=3).run() * 1000 <= 2 << 20


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="processes cannot be put on one CPU here")
def test_a_thread_that_shares_its_cpu_is_interrupted():
    usual = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(usual)})  # the other process inherits it
    try:
        with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as other:
            try:
                before, end = preemptions(), time.monotonic() + 30
                while preemptions() < before + 3 and time.monotonic() < end:
                    pass
            finally:
                other.kill()
    finally:
        os.sched_setaffinity(0, usual)
    assert preemptions() >= before + 3
