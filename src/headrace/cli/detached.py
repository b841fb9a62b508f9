"""`headrace run --detach`: the driver in a session of its own, with a log that stays.

The command starts itself again without `--detach` and waits until the new process lists a job in REST, or has ended.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import typer

from headrace.errors import JobFailed
from headrace.rest.client import RemoteJob, RestError, find_jobs
from headrace.rest.discovery import LOG_VARIABLE, directory, known_servers
from headrace.storage.local import private_directory

_POLL_SECONDS = 0.2
_LONGEST = 600.0
_TAIL = 30  # lines of the log that an error shows


def start_detached(words: list[str]) -> None:
    """`headrace run` with these words, as a driver of its own; prints what it runs and where.

    JobFailed if it ends before it lists a job.
    """
    log = private_directory(directory() / "logs") / f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}.log"
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        process = subprocess.Popen(
            [sys.executable, "-m", "headrace.cli.main", "run", *words],
            stdin=subprocess.DEVNULL,
            stdout=descriptor,
            stderr=descriptor,
            start_new_session=True,
            env={**os.environ, LOG_VARIABLE: str(log)},
        )
    finally:
        os.close(descriptor)
    job = _wait_for_job(process, log)
    typer.echo(
        f"job '{job.overview['name']}' ({job.id}) runs in process {process.pid}\n"
        f"driver {job.client.url}; `headrace dashboard --url {job.client.url}` prints the address for a browser\nlog {log}"
    )


def _wait_for_job(process: subprocess.Popen[bytes], log: Path) -> RemoteJob:
    deadline = time.monotonic() + _LONGEST
    while time.monotonic() < deadline:
        for server in known_servers():
            if server.pid == process.pid:
                try:
                    jobs = find_jobs(server.url)
                except RestError:  # it is just starting, or ending
                    jobs = []
                if jobs:
                    return jobs[-1]
        if process.poll() is not None:
            tail = "\n".join(log.read_text(encoding="utf-8", errors="replace").splitlines()[-_TAIL:])
            raise JobFailed(
                "HR-6007",
                f"the program ended with exit code {process.returncode} before a job was listed; {log}:\n{tail}",
            )
        time.sleep(_POLL_SECONDS)
    raise JobFailed(
        "HR-6007", f"no job was listed in {_LONGEST:.0f} s; process {process.pid} still runs, its log is {log}"
    )
