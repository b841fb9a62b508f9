"""The driver is killed: `headrace run --resume` goes on where the newest completed checkpoint was."""

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import psutil
from spark_kit import ORPHAN_SECONDS, PROGRAMS, wait_until

COUNT, KEYS = 9_000, 10


def headrace_run(directory, log_name, options=(), arguments=()):
    command = [sys.executable, "-m", "headrace.cli.main", "run", *options, "-D", "headrace.spark.master=local[16]"]
    command += ["-D", f"execution.checkpointing.dir=file://{directory}/checkpoints"]
    command += ["-D", "headrace.control.timeout=3 s", str(PROGRAMS / "resumable.py"), str(directory), *arguments]
    with Path(directory, log_name).open("wb") as log:
        return subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)


def newest_checkpoint(directory):
    numbers = [int(p.parent.name[4:]) for p in Path(directory, "checkpoints").glob("*/chk-*/_metadata")]
    return max(numbers, default=0)


def rows(directory):
    files = [p for p in Path(directory, "out").iterdir() if not p.name.startswith(".")]
    return [json.loads(line) for path in files for line in path.read_text().splitlines()]


def test_a_killed_driver_is_followed_by_another(tmp_path):  # SPEC R9.2
    first = headrace_run(tmp_path, "first.log", arguments=["500"])
    try:
        wait_until(lambda: newest_checkpoint(tmp_path) >= 5 or first.poll() is not None, "five checkpoints", 180)
        assert first.poll() is None, Path(tmp_path, "first.log").read_text()[-3000:]
        below = psutil.Process(first.pid).children(recursive=True)
        os.kill(first.pid, signal.SIGKILL)
        first.wait(120)
        alive = lambda: any(p.is_running() and p.status() != psutil.STATUS_ZOMBIE for p in below)  # noqa: E731
        wait_until(lambda: not alive(), "the end of its JVM and its workers", ORPHAN_SECONDS)
    finally:
        if first.poll() is None:
            os.killpg(first.pid, signal.SIGKILL)
    assert len(rows(tmp_path)) < COUNT
    second = headrace_run(tmp_path, "second.log", options=["--resume"])
    assert second.wait(600) == 0, Path(tmp_path, "second.log").read_text()[-3000:]
    found = rows(tmp_path)
    assert Counter(row["v"] for row in found) == Counter(range(COUNT))
    for key in range(KEYS):
        assert sorted(row["n"] for row in found if row["k"] == key) == list(range(1, COUNT // KEYS + 1))
    assert len(list(Path(tmp_path, "checkpoints").iterdir())) == 1  # the same job, not another one
