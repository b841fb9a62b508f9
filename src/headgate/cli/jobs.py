"""Commands that talk to running jobs: they find the drivers of this machine, or take `--url`."""

from __future__ import annotations

from contextlib import suppress
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.status import Status

from headgate.checkpoint.types import SavepointFormat
from headgate.cli.output import console, make_table, reported
from headgate.rest.client import RestError, find_job, find_jobs, find_servers
from headgate.storage.checkpoints import dispose_savepoint
from headgate.storage.remote import open_store

Job = Annotated[str, typer.Argument(help="The job: the beginning of its id, or its name.")]
Url = Annotated[
    str | None, typer.Option("--url", help="The driver's REST address; without it, all drivers of this machine.")
]
Target = Annotated[str | None, typer.Option("--target", "-t", help="Directory for the savepoint.")]
Format = Annotated[
    SavepointFormat, typer.Option("--format", help="CANONICAL: tables any backend reads; NATIVE: quicker.")
]


def add_commands(app: typer.Typer) -> None:
    app.command(name="list")(reported(list_jobs))
    for command in (checkpoint, savepoint, stop, rescale, cancel, dispose, token):
        app.command()(reported(command))


def list_jobs(url: Url = None) -> None:
    """List jobs: id, status, name, parallelism, restarts, duration."""
    jobs = find_jobs(url)
    table = make_table("job", "status", "name", "tasks", "restarts", "seconds", "driver")
    for column in (table.columns[0], table.columns[-1]):
        column.no_wrap = True
    for job in jobs:
        shown = job.overview
        seconds = f"{shown['duration'] / 1000:.0f}"
        tasks, restarts = str(shown["tasks"]["total"]), str(shown["restarts"])
        table.add_row(job.id, shown["state"], shown["name"], tasks, restarts, seconds, job.client.url)
    console().print(table if jobs else "no job runs on this machine; give --url for a driver elsewhere")


def _operation(
    wanted: str, url: str | None, method: str, path: str, body: dict[str, Any] | None = None, result: str | None = None
) -> dict[str, Any]:
    """Start an operation on a job and wait for it; its result is at another path if `result` says so."""
    job = find_job(wanted, url)
    request = job.client.send(method, job.path + path, body)["request-id"]
    name = path.partition("?")[0]
    with Status(f"{name.strip('/')} of job {job.id[:8]} ({job.overview['name']})", console=Console(stderr=True)):
        return job.client.operation(job.path + (result or name), request)


def checkpoint(
    job: Job,
    full: Annotated[bool, typer.Option("--full", help="Write everything anew, so that older files are freed.")] = False,
    url: Url = None,
) -> None:
    """Take a checkpoint now."""
    done = _operation(job, url, "POST", "/checkpoints", {"checkpointType": "FULL" if full else "CONFIGURED"})
    figures = ""
    with suppress(RestError):  # the job may have ended meanwhile
        found = find_job(job, url)
        one = found.client.send("GET", f"{found.path}/checkpoints/details/{done['checkpointId']}")
        size, files, chain = one["state_size"], one["shared_files"], one["chain_length"]
        figures = f": full size {size:,} bytes, {files} shared files, chain of {chain}"
    typer.echo(f"checkpoint {done['checkpointId']} is complete{figures}")


def savepoint(job: Job, target: Target = None, format: Format = SavepointFormat.CANONICAL, url: Url = None) -> None:
    """Take a savepoint; the job continues."""
    body = {"target-directory": target, "formatType": format.value}
    typer.echo(_operation(job, url, "POST", "/savepoints", body)["location"])


def stop(
    job: Job,
    target: Target = None,
    drain: Annotated[
        bool, typer.Option("--drain", help="Operators act as at the end of their input; do not resume from it.")
    ] = False,
    format: Format = SavepointFormat.CANONICAL,
    url: Url = None,
) -> None:
    """Take a savepoint and stop; `headgate run --resume`, or execution.state-recovery.path, resumes from it."""
    body = {"targetDirectory": target, "drain": drain, "formatType": format.value}
    typer.echo(_operation(job, url, "POST", "/stop", body, result="/savepoints")["location"])


def rescale(
    job: Job,
    parallelism: Annotated[int, typer.Option("--parallelism", "-p", help="The new default parallelism.")],
    url: Url = None,
) -> None:
    """Continue with another parallelism, without losing or repeating a record."""
    _operation(job, url, "PATCH", f"/rescaling?parallelism={parallelism}")
    typer.echo(f"the job runs with parallelism {parallelism}")


def cancel(job: Job, url: Url = None) -> None:
    """Stop a job without a savepoint."""
    found = find_job(job, url)
    found.client.send("PATCH", f"{found.path}?mode=cancel")
    typer.echo(f"job {found.id} is being cancelled")


def dispose(path: Annotated[str, typer.Argument(help="A savepoint: its directory or its _metadata.")]) -> None:
    """Delete a savepoint permanently."""
    done = dispose_savepoint(open_store(), path)
    left = f"; {len(done.left)} files that are not ours were left: {', '.join(done.left)}" if done.left else ""
    typer.echo(f"{done.deleted} files deleted{left}")


def token(url: Url = None) -> None:
    """Print the token that requests to a driver of this user must carry: for curl, or a command on another machine."""
    servers = find_servers(url)
    if len(servers) != 1:
        running = ", ".join(server.url for server in servers) or "none"
        raise RestError(f"name one driver with --url; running on this machine: {running}")
    if servers[0].token is None:
        raise RestError(f"no token is known for {servers[0].url}: it asks for none, or another user runs it")
    typer.echo(servers[0].token)
