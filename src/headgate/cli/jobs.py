"""Commands that talk to running jobs: they find the drivers of this machine, or take `--url`."""

from __future__ import annotations

import os
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.status import Status
from rich.table import Table

from headgate.checkpoint.types import SavepointFormat
from headgate.cli.output import console, fail
from headgate.errors import HeadgateError
from headgate.rest.client import RemoteJob, find_job, find_jobs
from headgate.storage.checkpoints import dispose_savepoint
from headgate.storage.remote import open_store

__all__ = ["add_commands"]

Job = Annotated[str, typer.Argument(help="The job: the beginning of its id, or its name.")]
Url = Annotated[
    str | None, typer.Option("--url", help="The driver's REST address; without it, all drivers of this machine.")
]
Target = Annotated[str | None, typer.Option("--target", "-t", help="Directory for the savepoint.")]
Format = Annotated[
    SavepointFormat, typer.Option("--format", help="CANONICAL: tables any backend reads; NATIVE: quicker.")
]


def add_commands(app: typer.Typer) -> None:
    """Add the commands to the command line."""
    for command in (list_jobs, checkpoint, savepoint, stop, rescale, cancel, dispose):
        app.command(name={"list_jobs": "list"}.get(command.__name__))(command)


def _token() -> str | None:
    """Not an argument: those are seen by every user of the machine."""
    return os.environ.get("HEADGATE_REST_TOKEN")


def list_jobs(url: Url = None) -> None:
    """List jobs: id, status, name, parallelism, restarts, how long they run."""
    try:
        jobs = find_jobs(url, _token())
    except HeadgateError as error:
        raise fail(error) from None
    table = Table()
    for column in ("job", "status", "name", "tasks", "restarts", "seconds", "driver"):
        table.add_column(column, no_wrap=column in ("job", "driver"))
    for job in jobs:
        shown = job.overview
        seconds = f"{shown['duration'] / 1000:.0f}"
        tasks, restarts = str(shown["tasks"]["total"]), str(shown["restarts"])
        table.add_row(job.id, shown["state"], shown["name"], tasks, restarts, seconds, job.client.url)
    console().print(table if jobs else "no job runs on this machine; give --url for a driver elsewhere")


def _operation(wanted: str, url: str | None, what: str, start: Any, path: str) -> dict[str, Any]:
    """Start an operation on a job and wait for it, with a sign of life."""
    try:
        job = find_job(wanted, url, _token())
        request = start(job)["request-id"]
        with Status(f"{what} of job {job.id[:8]} ({job.overview['name']})", console=Console(stderr=True)):
            return job.client.operation(job.path + path, request)
    except HeadgateError as error:
        raise fail(error) from None


def checkpoint(
    job: Job,
    full: Annotated[bool, typer.Option("--full", help="Write everything anew, so that older files are freed.")] = False,
    url: Url = None,
) -> None:
    """Take a checkpoint now."""
    body = {"checkpointType": "FULL" if full else "CONFIGURED"}
    start = lambda one: one.client.send("POST", f"{one.path}/checkpoints", body)  # noqa: E731
    done = _operation(job, url, "checkpoint", start, "/checkpoints")
    typer.echo(f"checkpoint {done['checkpointId']} is complete")


def savepoint(job: Job, target: Target = None, format: Format = SavepointFormat.CANONICAL, url: Url = None) -> None:
    """Take a savepoint; the job goes on."""
    body = {"target-directory": target, "formatType": format.value}
    start = lambda one: one.client.send("POST", f"{one.path}/savepoints", body)  # noqa: E731
    typer.echo(_operation(job, url, "savepoint", start, "/savepoints")["location"])


def stop(
    job: Job,
    target: Target = None,
    drain: Annotated[
        bool, typer.Option("--drain", help="Let operators act as at the end of their input: not to be gone on from.")
    ] = False,
    format: Format = SavepointFormat.CANONICAL,
    url: Url = None,
) -> None:
    """Take a savepoint and stop; `headgate run --resume`, or execution.state-recovery.path, goes on from it."""
    body = {"targetDirectory": target, "drain": drain, "formatType": format.value}
    start = lambda one: one.client.send("POST", f"{one.path}/stop", body)  # noqa: E731
    typer.echo(_operation(job, url, "stop", start, "/savepoints")["location"])


def rescale(
    job: Job,
    parallelism: Annotated[int, typer.Option("--parallelism", "-p", help="The new default parallelism.")],
    url: Url = None,
) -> None:
    """Go on with another parallelism, without losing or repeating a record."""
    start = lambda one: one.client.send("PATCH", f"{one.path}/rescaling?parallelism={parallelism}")  # noqa: E731
    _operation(job, url, "rescale", start, "/rescaling")
    typer.echo(f"the job runs with parallelism {parallelism}")


def cancel(job: Job, url: Url = None) -> None:
    """Stop a job without a savepoint."""
    try:
        found: RemoteJob = find_job(job, url, _token())
        found.client.send("PATCH", f"{found.path}?mode=cancel")
    except HeadgateError as error:
        raise fail(error) from None
    typer.echo(f"job {found.id} is being cancelled")


def dispose(path: Annotated[str, typer.Argument(help="A savepoint: its directory or its _metadata.")]) -> None:
    """Delete a savepoint for good."""
    try:
        done = dispose_savepoint(open_store(), path)
    except HeadgateError as error:
        raise fail(error) from None
    left = f"; {len(done.left)} files that are not ours were left: {', '.join(done.left)}" if done.left else ""
    typer.echo(f"{done.deleted} files deleted{left}")
