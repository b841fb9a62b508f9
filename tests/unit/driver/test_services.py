"""The end of a driver's process while calls are under way in its threads."""

import subprocess
import sys
import threading
import time

from headrace.driver import services
from headrace.driver.services import DaemonPool, DriverIo, SteadyClock, wait_for_calls

PROGRAM = """
import io, sys, threading, time
import pyarrow as pa
from headrace.driver.services import DaemonPool

inside = threading.Event()

class Slow(io.RawIOBase):
    def readable(self):
        return True

    def read(self, size=-1):
        inside.set()
        time.sleep(0.2)
        return bytes(size)

def read_for(seconds):
    file, end = pa.PythonFile(Slow(), mode="r"), time.monotonic() + seconds
    while time.monotonic() < end:
        file.read(8)
    print("the call has returned")

class AtTheEnd:
    def __del__(self, sleep=time.sleep):
        sleep(1)  # while Python finalizes

sys.at_the_end = AtTheEnd()
DaemonPool(1, "commits").submit(read_for, {seconds})
inside.wait()
sys.exit(3)
"""


def run(tmp_path, seconds, *command):
    program = tmp_path / "program.py"
    program.write_text(PROGRAM.replace("{seconds}", str(seconds)))
    return subprocess.run([sys.executable, *command, program], capture_output=True, text=True, check=False, timeout=60)


def test_a_program_waits_for_a_call_that_is_under_way(tmp_path):
    """A thread that came back to pyarrow while Python finalizes would abort the process."""
    done = run(tmp_path, 1)
    assert (done.returncode, done.stdout, done.stderr) == (3, "the call has returned\n", "")


def test_the_command_line_ends_in_spite_of_a_call_that_does_not_return(tmp_path):
    done = run(tmp_path, 1000, "-m", "headrace.cli.main", "run")
    assert (done.returncode, done.stdout, done.stderr) == (3, "", "")


class Connection:
    """As a thread has one to Spark's JVM: when it is closed, that is logged."""

    def __del__(self):
        time.sleep(0.3)


def test_a_process_waits_for_threads_that_end():
    """One that Python stops while it logs the end of its connection would hold the log's lock for ever."""
    of_thread = threading.local()
    pool = DaemonPool(1, "calls")
    pool.submit(setattr, of_thread, "connection", Connection()).result(120)
    (thread,) = pool._threads
    pool.shutdown(wait=False)
    assert wait_for_calls()
    assert not thread.is_alive()


def test_a_clock_that_was_set_is_followed_without_a_jump():  # SPEC R10.6
    at = {"wall": 1_700_000_000_000, "ticks": 5_000}  # ms
    clock = SteadyClock(lambda: at["wall"] * 1_000_000, lambda: at["ticks"] * 1_000_000)

    def after(ms, steps=1):
        before = clock.now()
        for _ in range(steps):
            at["wall"], at["ticks"] = at["wall"] + ms, at["ticks"] + ms
            assert clock.now() - before >= 0
        return clock.now() - before

    assert after(1_000) == 1_000
    at["wall"] += 65_000  # the machine was suspended, or its clock was corrected
    assert after(1_000) == 1_100
    assert after(1_000, steps=700) > 700_000
    assert clock.now() == at["wall"]
    at["wall"] -= 3_000
    assert after(10_000) == 9_000
    assert after(1, steps=10) >= 0
    after(1_000, steps=30)
    assert clock.now() == at["wall"]


def test_the_driver_uses_the_clock_that_does_not_jump(monkeypatch):
    monkeypatch.setattr(services, "_CLOCK", SteadyClock(lambda: 7_000_000, lambda: 0))
    assert (services.driver_time(), DriverIo().now()) == (7, 7)
