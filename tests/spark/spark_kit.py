"""What the Spark tests share: looking for processes, running programs, a source that they end, comparing outputs."""

import json
import os
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from itertools import count
from pathlib import Path

import psutil

from headrace.api.sources import DataGenSource
from headrace.records.types import as_type
from waiting import wait_until

PROGRAMS = Path(__file__).parent / "programs"
ORPHAN_SECONDS = 60.0  # on any machine; it is a matter of a second or two on a quiet one


def comm(process):
    """The name a process has now; a worker that runs a task is called hr-<job>-<attempt>."""
    try:
        return Path(f"/proc/{process.pid}/comm").read_text().strip()
    except OSError:
        return ""


def _is_daemon_or_fork(process):
    """Spark's Python daemon and its forks have the same command line."""
    try:
        line = process.cmdline()
    except psutil.Error:
        return False
    return len(line) > 2 and line[1] == "-m" and line[2].endswith("daemon")


def python_workers(root=None):
    """Forks of Spark's Python daemon below a process: (those that run a task, those that do not)."""
    running, idle = [], []
    for process in (root or psutil.Process()).children(recursive=True):
        try:
            if not _is_daemon_or_fork(process) or not _is_daemon_or_fork(process.parent()):
                continue
        except (psutil.Error, AttributeError):
            continue
        (running if comm(process).startswith("hr-") else idle).append(process)
    return running, idle


class Workers:
    """Looks for workers of this process's Spark session."""

    def running(self, job=None):
        """Those that run a task (of that job)."""
        mark = f"hr-{job.job_id[:8]}" if job is not None else "hr-"
        return [p for p in python_workers()[0] if comm(p).startswith(mark)]

    def assert_gone(self):
        """No worker is left: neither one that runs a task, nor one with threads of a task that is over."""
        wait_until(lambda: not any(python_workers()), "the end of all workers", ORPHAN_SECONDS)


def run_program(name, *args, timeout=240, env=None):
    """Run a program of tests/spark/programs in a process of its own; the JSON it printed last."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("SPARK_", "PYSPARK_"))} | (env or {})
    done = subprocess.run(
        [sys.executable, str(PROGRAMS / name), *map(str, args)],
        capture_output=True,
        text=True,
        timeout=timeout,
        env=environment,
        check=False,
    )
    assert done.returncode == 0, f"{name} failed\n--- out\n{done.stdout[-4000:]}\n--- err\n{done.stderr[-6000:]}"
    return json.loads(done.stdout.strip().splitlines()[-1])


class Paced(DataGenSource):
    """A bounded source that gives its records slowly until the test calls `release`, and then as fast as it can.

    So a job runs for as long as the test needs, and not longer, on a fast machine and on a slow one.
    """

    def __init__(self, directory, generate, number, type_info, rate=600):
        super().__init__(generate, number, rate, as_type(type_info), vectorised=False)
        self.mark = Path(directory, "released")

    def reader(self, context, splits):
        calls = count()

        def clock():
            """By a clock that is put forward all other records are due at once; the reader counts from the first call."""
            return context.clock() + (10**9 if next(calls) and self.mark.exists() else 0)

        return super().reader(replace(context, clock=clock), splits)


def release(directory):
    """Let the `Paced` sources with this directory end."""
    Path(directory, "released").touch()


def multiset(rows):
    """Records without their order; Row and tuple are the same."""
    return Counter(repr(tuple(row) if isinstance(row, tuple) else row) for row in rows)
