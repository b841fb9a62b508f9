"""W5: checkpoints, savepoints of both formats, and a restore from each, one JSON line.

    python benchmarks/savepoints.py [--keys 1000000] [--backend hashmap]

The job is that of the acceptance lines `savepoint-1m` and `savepoint-10m`. A restore counts until all subtasks run, and
so holds the start of a job, which is measured without state as `start_s`. The disk's own speed is told beside.
"""

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "scripts"))

from acceptance.dataflow import environment
from acceptance.lines import wait_until
from acceptance.savepoints import disk_speed, filled_job

from headrace.job_client import SavepointFormat

PARALLELISM = 2
TIMEOUT = 1200
FORMATS = {"native": SavepointFormat.NATIVE, "canonical": SavepointFormat.CANONICAL}


class Job:
    """Starts the job; its checkpoints are below a directory."""

    def __init__(self, directory, backend):
        self.options = {
            "state.backend.type": backend,
            "execution.checkpointing.dir": f"file://{directory}/checkpoints",
            "execution.checkpointing.interval": "1 h",
            "execution.checkpointing.timeout": f"{TIMEOUT} s",
            "execution.checkpointing.incremental": "true",
            "execution.checkpointing.externalized-checkpoint-retention": "RETAIN_ON_CANCELLATION",
        }

    def start(self, keys, path=None):
        """Until all subtasks run: the client, and the seconds."""
        options = self.options if path is None else self.options | {"execution.state-recovery.path": path}
        started = time.monotonic()
        client = filled_job(environment(PARALLELISM, options), keys)
        client.job.wait_running(TIMEOUT)
        return client, round(time.monotonic() - started, 2)


def megabytes(path):
    """What the files below a path hold."""
    files = Path(path.removeprefix("file://")).rglob("*")
    return round(sum(file.stat().st_size for file in files if file.is_file()) / 1e6, 2)


def take(client, directory):
    """Checkpoints and savepoints of a running job: the figures, and the path of each."""
    figures, paths = {}, {}
    for name in ("full_checkpoint", "increment"):
        started = time.monotonic()
        number = client.trigger_checkpoint(timeout=TIMEOUT)
        figures[f"{name}_s"] = round(time.monotonic() - started, 2)
        stats = client.job.stats.snapshot().find(number)
        figures[f"{name}_mb"] = round(stats.totals.checkpointed_size / 1e6, 2)
    paths["increment"] = str(stats.external_path)
    for name, form in FORMATS.items():
        started = time.monotonic()
        paths[name] = client.trigger_savepoint(f"file://{directory}/{name}", form, timeout=TIMEOUT)
        figures[f"{name}_s"] = round(time.monotonic() - started, 2)
        figures[f"{name}_mb"] = megabytes(paths[name])
    return figures, paths


def measure(keys, backend):
    figures = {"peer": f"headrace {backend}", "work": "W5", "keys": keys, "backend": backend}
    with tempfile.TemporaryDirectory(prefix="headrace-bench-", ignore_cleanup_errors=True) as directory:
        wrote, read = disk_speed(directory, min(512, max(16, keys >> 11)) << 20)
        figures |= {"disk_write_mb_per_s": round(wrote / 1e6), "disk_read_mb_per_s": round(read / 1e6)}
        job = Job(directory, backend)
        for _ in range(2):  # the first one starts Spark too
            client, figures["start_s"] = job.start(1000)
            client.cancel()
        client, _ = job.start(keys)
        started = time.monotonic()
        taken = lambda: sum(m.records_in for (level, _), m in client.job.metrics().items() if level == 1)  # noqa: E731
        wait_until(lambda: taken() >= keys, TIMEOUT, "all keys")
        figures["fill_s"] = round(time.monotonic() - started, 2)
        time.sleep(2)  # the trickle is among those that were counted
        found, paths = take(client, directory)
        client.cancel()
        figures |= found
        for name, path in paths.items():
            client, figures[f"{name}_restore_s"] = job.start(keys, path)
            client.cancel()
    return figures


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--keys", type=int, default=1_000_000)
    p.add_argument("--backend", choices=["hashmap", "rocksdb"], default="hashmap")
    a = p.parse_args()
    print(json.dumps(measure(a.keys, a.backend)), flush=True)


if __name__ == "__main__":
    main()
