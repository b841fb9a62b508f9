"""What the threads of a worker are doing, for flame graphs."""

import subprocess
import sys
import threading
import time

from headrace.worker.stacks import sample_stacks


def busy(stop):
    while not stop.is_set():
        sum(range(500))


def sampled(target, *args, samples=20):
    thread = threading.Thread(target=target, args=args, daemon=True)
    thread.start()
    time.sleep(0.05)
    return sample_stacks(thread.ident, samples, 0.02)


def test_a_thread_that_computes():
    stop = threading.Event()
    on_cpu, _ = sampled(busy, stop)
    stop.set()
    assert sum(on_cpu.values()) > 0
    assert any(f"{__name__}.busy:" in stack for stack in on_cpu)
    assert all(stack.split("\n")[0].startswith("threading.") for stack in on_cpu)  # the outermost first


def test_a_thread_that_waits():
    stop = threading.Event()
    on_cpu, off_cpu = sampled(stop.wait, 20)
    stop.set()
    assert not on_cpu
    assert 1 <= sum(off_cpu.values()) <= 20


def test_where_pauses_take_long_there_are_fewer_samples(monkeypatch):
    sleep = time.sleep
    monkeypatch.setattr(time, "sleep", lambda seconds: sleep(10 * seconds))
    stop = threading.Event()
    _, off_cpu = sampled(stop.wait, 20)
    stop.set()
    assert 1 <= sum(off_cpu.values()) <= 3


def test_a_thread_that_has_ended():
    thread = threading.Thread(target=lambda: None)
    thread.start()
    thread.join()
    assert sample_stacks(thread.ident, 5, 0.001) == ({}, {})


SAMPLED_WHILE_GARBAGE_IS_COLLECTED = """
import gc, threading, time
from headrace.worker.stacks import sample_stacks

class Slow:
    def __del__(self):
        time.sleep(0.0001)  # another thread runs, and wants the lock that the sampler has

def litter():
    while True:
        one = Slow()
        one.itself = one
        threading.Thread(target=lambda: None).start()

gc.set_threshold(20)
threading.Thread(target=litter, daemon=True).start()
waiting = threading.Thread(target=time.sleep, args=(60,), daemon=True)
waiting.start()
sample_stacks(waiting.ident, 300, 0.0005)
print("done", flush=True)
import os; os._exit(0)
"""


def test_a_sample_while_garbage_is_collected_does_not_stop_the_process():
    command = [sys.executable, "-c", SAMPLED_WHILE_GARBAGE_IS_COLLECTED]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout == "done\n", done.stderr
