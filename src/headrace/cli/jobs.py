"""Commands that talk to running jobs: they find the drivers of this machine, or take `--url`."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote

import msgspec
import typer
from rich.console import Group
from rich.live import Live
from rich.status import Status
from rich.table import Table
from rich.text import Text

from headrace.checkpoint.types import SavepointFormat
from headrace.cli.output import Json, console, make_table, print_json, reported, size, visible, warn, when
from headrace.driver.log_output import make_console
from headrace.errors import HeadraceError, InvalidArgument
from headrace.rest.client import RemoteJob, RestError, find_job, find_jobs, find_servers
from headrace.rest.discovery import Server, login_address
from headrace.storage.published_snapshots import dispose_savepoint
from headrace.storage.remote import open_store

_COMPLETION_SECONDS = 2.0  # the user waits with a word half written


def _known(incomplete: str) -> list[tuple[str, str]]:
    """For the shell's completion: names and ids of the jobs on this machine."""
    with suppress(HeadraceError, OSError):
        jobs = find_jobs(None, seconds=_COMPLETION_SECONDS)
        names = [(str(job.overview["name"]), f"job {job.id[:8]}, {job.overview['state']}") for job in jobs]
        ids = [(job.id, f"'{job.overview['name']}', {job.overview['state']}") for job in jobs]
        return [(word, shown) for word, shown in (*names, *ids) if word.startswith(incomplete)]
    return []


Job = Annotated[str, typer.Argument(help="The job: the beginning of its id, or its name.", autocompletion=_known)]
Url = Annotated[
    str | None, typer.Option("--url", help="The driver's REST address; without it, all drivers of this machine.")
]
Target = Annotated[str | None, typer.Option("--target", "-t", help="Directory for the savepoint.")]
Format = Annotated[
    SavepointFormat, typer.Option("--format", help="CANONICAL: tables any backend reads; NATIVE: quicker.")
]

_state = typer.Typer(
    help="Look into the state of a running job: its newest completed checkpoint.", no_args_is_help=True
)


def add_commands(app: typer.Typer) -> None:
    app.command(name="list")(reported(list_jobs))
    looking = (info, top, story, checkpoints, logs, dashboard)
    acting = (checkpoint, savepoint, stop, rescale, cancel, dispose, token)
    for command in (*looking, *acting):
        app.command()(reported(command))
    _state.command(name="list")(reported(list_states))
    numbers = {"ignore_unknown_options": True}  # a key may be a negative number
    _state.command(name="get", context_settings=numbers)(reported(get_state))
    app.add_typer(_state, name="state")


# --- looking ----------------------------------------------------------------------------------------------------------


def list_jobs(url: Url = None, json: Json = False) -> None:
    """List jobs: id, status, name, parallelism, restarts, duration."""
    jobs = find_jobs(url, warn)
    if json:
        print_json({"jobs": [{**job.overview, "driver": job.client.url} for job in jobs]})
        return
    console().print(_job_table(jobs) if jobs else "no job runs on this machine; give --url for a driver elsewhere")


def _job_table(jobs: list[RemoteJob]) -> Table:
    table = make_table("job", "status", "name", "tasks", "restarts", "seconds", "driver")
    for column in (table.columns[0], table.columns[-1]):
        column.no_wrap = True
    for job in jobs:
        shown = job.overview
        seconds = f"{shown['duration'] / 1000:.0f}"
        tasks, restarts = str(shown["tasks"]["total"]), str(shown["restarts"])
        table.add_row(job.id, shown["state"], shown["name"], tasks, restarts, seconds, job.client.url)
    return table


def info(job: Job, url: Url = None, json: Json = False) -> None:
    """Show one job in depth: its vertices with rates and watermarks, its checkpoints, its last failure."""
    found = find_job(job, url)
    details = found.get("")
    taken = _checkpoints_of(found)
    if json:
        print_json({**details, "checkpoints": taken, "driver": found.client.url})
        return
    output = console()
    output.print(
        visible(
            f"job '{details['name']}' ({found.id}) is {details['state']}, {details['restarts']} restarts, "
            f"started {when(details['start-time'])}, driver {found.client.url}"
        )
    )
    output.print(_vertex_table(details))
    if taken is not None:
        counts = taken["counts"]
        output.print(
            f"checkpoints: {counts['completed']} completed, {counts['failed']} failed, {counts['in_progress']} in progress, "
            f"{counts['restored']} restored"
        )
    if details["failures"]:
        output.print(visible(f"last failure: {details['failures'][-1]}"))


def _checkpoints_of(job: RemoteJob) -> Any:
    with suppress(RestError):  # it may not have started yet
        return job.get("/checkpoints")
    return None


def _vertex_table(details: dict[str, Any]) -> Table:
    right = "subtasks, in/s, out/s, busy, back-pressured, queued, lag"
    table = make_table("vertex", "status", *right.split(", "), right=right)
    for vertex in details["vertices"]:
        metrics = vertex["metrics"]
        lag = metrics["watermark-lag"]
        table.add_row(
            vertex["name"],
            vertex["status"],
            str(vertex["parallelism"]),
            f"{metrics['read-records-per-second']:,.0f}",
            f"{metrics['write-records-per-second']:,.0f}",
            f"{metrics['busy-ratio']:.0%}",
            f"{metrics['backpressured-ratio']:.0%}",
            size(metrics["queued-bytes"]),
            "" if lag is None else f"{lag / 1000:,.1f} s",
        )
    return table


def top(
    url: Url = None,
    interval: Annotated[float, typer.Option("--interval", "-n", help="Seconds between two looks.", min=0.2)] = 1.0,
    json: Json = False,
) -> None:
    """Watch all jobs and their vertices until Ctrl-C; prints once if the output is no terminal."""

    def look() -> Group:
        silent: list[str] = []
        jobs = find_jobs(url, silent.append)
        parts: list[Any] = [_job_table(jobs), *[Text(visible(one)) for one in silent]]
        for job, details in _details(jobs):
            if job.overview["end-time"] < 0:
                table = _vertex_table(details)
                table.title = visible(f"{job.overview['name']}  {job.id[:8]}")
                parts.append(table)
        return Group(*parts)

    if json:
        print_json({"jobs": [details for _, details in _details(find_jobs(url, warn))]})
        return
    output = console()
    if not output.is_terminal:
        output.print(look())
        return
    with suppress(KeyboardInterrupt), Live(look(), console=output, screen=True, auto_refresh=False) as live:
        while True:
            time.sleep(interval)
            live.update(look(), refresh=True)


def _details(jobs: list[RemoteJob]) -> Iterator[tuple[RemoteJob, Any]]:
    """Jobs in depth, without those whose driver ends meanwhile."""
    for job in jobs:
        with suppress(RestError):
            yield job, job.get("")


def story(job: Job, url: Url = None, json: Json = False) -> None:
    """Print the story of a job: its attempts, the cause of each end, the restored checkpoints, the restart times."""
    told = find_job(job, url).get("/story")
    if json:
        print_json(told)
        return
    columns = "attempt, started, running, ended, outcome, restored, cancel, wait, schedule, restore"
    table = make_table(*columns.split(", "), right="attempt, restored, cancel, wait, schedule, restore")
    for attempt in told["attempts"]:
        phases = attempt["phases"]
        restored = attempt["restored_checkpoint"]
        table.add_row(
            str(attempt["number"] + 1),
            *(when(attempt[name]) for name in ("started", "running", "ended")),
            "" if attempt["outcome"] == "OPEN" else attempt["outcome"],
            "" if restored is None else f"checkpoint {restored}",
            *(
                "" if phases[name] is None else f"{phases[name]:,} ms"
                for name in ("cancel", "wait", "schedule", "restore")
            ),
        )
    output = console()
    output.print(table)
    for attempt in told["attempts"]:
        if attempt["cause"] is not None:
            output.print(visible(f"attempt {attempt['number'] + 1}: {attempt['cause']['message']}"))


def checkpoints(job: Job, url: Url = None, json: Json = False) -> None:
    """List the checkpoints of a job that are remembered, the newest first (web.checkpoints.history)."""
    found = find_job(job, url).get("/checkpoints")
    if json:
        print_json(found)
        return
    right = "size, full size, duration, objects, shared files, chain"
    table = make_table("id", "type", "trigger", "status", "at", *right.split(", "), "reason", right=f"id, {right}")
    for one in found["history"]:
        reason = one.get("failure_message") or one["full_reason"] or ""
        table.add_row(
            str(one["id"]),
            one["checkpoint_type"].lower() + ", full" * one["full"],
            one["trigger"],
            f"{one['status']} {one['num_acknowledged_subtasks']}/{one['num_subtasks']}",
            when(one["trigger_timestamp"]),
            size(one["checkpointed_size"]),
            size(one["state_size"]),
            f"{max(0, one['end_to_end_duration']):,} ms",
            str(one["objects_written"]),
            str(one["shared_files"]),
            str(one["chain_length"]),
            reason,
        )
    console().print(table)


def logs(
    job: Job,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the driver ends, or Ctrl-C.")] = False,
    url: Url = None,
) -> None:
    """Print the log of the driver that runs a job: of a detached one its file, else its newest lines."""
    found = find_job(job, url)
    file = next((one.log for one in find_servers(None) if one.url == found.client.url and one.log), None)
    if file is not None:
        _print_file(Path(file), follow, lambda: any(one.log == file for one in find_servers(None)))
        return
    shown = ""
    while True:
        try:
            text = found.client.send_text("/jobmanager/log")
        except RestError:
            if shown:  # the driver has ended
                return
            raise
        _print_log(_added(shown, text))
        shown = text
        if not follow:
            return
        time.sleep(1.0)


def _added(before: str, now: str) -> str:
    r"""Return the lines of a text that are not in the one before; the oldest ones may have been dropped.

    >>> _added("b\nc\n", "c\nd\n")
    'd\n'
    """
    old, new = before.splitlines(keepends=True), now.splitlines(keepends=True)
    for start in range(len(old)):
        if new[: len(old) - start] == old[start:]:
            return "".join(new[len(old) - start :])
    return now


def _print_log(text: str) -> None:
    """As it is to a file, and without what a terminal would obey to a terminal."""
    typer.echo(visible(text) if sys.stdout.isatty() else text, nl=False)


def _print_file(path: Path, follow: bool, alive: Callable[[], bool]) -> None:
    with suppress(KeyboardInterrupt), path.open(encoding="utf-8", errors="replace") as file:
        while True:
            last = not follow or not alive()
            while chunk := file.read(1 << 16):
                _print_log(chunk)
            if last:
                return
            time.sleep(0.5)


def dashboard(url: Url = None, json: Json = False) -> None:
    """Print the address of the dashboard; it carries the token, so keep it to yourself."""
    server = _only_server(url)
    address = login_address(server.url, server.token)
    print_json({"url": server.url, "dashboard": address}) if json else typer.echo(address)


def list_states(job: Job, url: Url = None, json: Json = False) -> None:
    """List the states in the newest completed checkpoint of a job."""
    found = find_job(job, url).get("/state")
    if json:
        print_json(found)
        return
    table = make_table(
        "operator", "uid", "id", "state", "kind", "key", "value", title=f"checkpoint {found['checkpoint']}"
    )
    for one in found["states"]:
        table.add_row(
            one["operator-name"],
            one["uid"] or "",
            one["operator"][:8],
            one["state"],
            one["kind"],
            one["key_type"] or "",
            one["value_type"],
        )
    console().print(table)


def get_state(
    job: Job,
    operator: Annotated[str, typer.Argument(help="The operator: its uid, its name, or the beginning of its id.")],
    state: Annotated[str, typer.Argument(help="The name of the state.")],
    key: Annotated[str, typer.Argument(help="The key as JSON; a text needs no quotation marks. Empty: all keys.")] = "",
    limit: Annotated[int, typer.Option("--limit", help="The most entries to print.", min=1)] = 50,
    url: Url = None,
    json: Json = False,
) -> None:
    """Print what a key has in a state, in the newest completed checkpoint. Exit code 1 if it has nothing."""
    found = find_job(job, url)
    if "/" in operator:  # which no part of a path can have
        operator = next(
            (
                one["operator"]
                for one in found.get("/state")["states"]
                if operator in (one["operator-name"], one["uid"])
            ),
            operator,
        )
    path = f"/state/{quote(operator, safe='')}/{quote(state, safe='')}"
    entries: list[Any] = []
    page: dict[str, Any] = {"next": None}
    while len(entries) < limit and (not entries or page["next"] is not None):
        query = f"?limit={min(1000, limit - len(entries))}"
        query += f"&key={quote(_as_json(key), safe='')}" if key else ""
        query += f"&after={page['next']}" if page["next"] is not None else ""
        page = found.get(path + query)
        entries += page["entries"]
        if not page["entries"]:
            break
    if json:
        print_json({"checkpoint": page["checkpoint"], "entries": entries})
    else:
        table = make_table("key", "namespace", "value", title=f"checkpoint {page['checkpoint']}")
        for entry in entries:
            table.add_row(*(_shown(entry[name]) for name in ("key", "namespace", "value")))
        console().print(table if entries else f"checkpoint {page['checkpoint']} has nothing for this key")
    if not entries:
        raise typer.Exit(1)


def _as_json(key: str) -> str:
    """Return a key as JSON: what is none is a text.

    >>> _as_json("7"), _as_json("word")
    ('7', '"word"')
    """
    try:
        msgspec.json.decode(key)
    except msgspec.DecodeError:
        return msgspec.json.encode(key).decode()
    return key


def _shown(value: Any) -> str:
    return "" if value is None else value if isinstance(value, str) else msgspec.json.encode(value).decode()


# --- operations -------------------------------------------------------------------------------------------------------


def _operation(
    wanted: str, url: str | None, method: str, path: str, body: dict[str, Any] | None = None, result: str | None = None
) -> dict[str, Any]:
    """Start an operation on a job and wait for it; its result is at another path if `result` says so."""
    job = find_job(wanted, url)
    request = job.client.send(method, job.path + path, body)["request-id"]
    name = path.partition("?")[0]
    # A text, since Status takes a string for markup.
    shown = Text(visible(f"{name.strip('/')} of job {job.id[:8]} ({job.overview['name']})"))
    with Status(shown, console=make_console(stderr=True)):
        return job.client.operation(job.path + (result or name), request)


def checkpoint(
    job: Job,
    full: Annotated[bool, typer.Option("--full", help="Write everything anew, so that older files are freed.")] = False,
    url: Url = None,
    json: Json = False,
) -> None:
    """Take a checkpoint now."""
    done = _operation(job, url, "POST", "/checkpoints", {"checkpointType": "FULL" if full else "CONFIGURED"})
    one = None
    with suppress(RestError):  # the job may have ended meanwhile
        one = find_job(job, url).get(f"/checkpoints/details/{done['checkpointId']}")
    if json:
        print_json(one or {"id": done["checkpointId"]})
        return
    figures = ""
    if one is not None:
        files, chain = one["shared_files"], one["chain_length"]
        figures = f": full size {one['state_size']:,} bytes, {files} shared files, chain of {chain}"
    typer.echo(f"checkpoint {done['checkpointId']} is complete{figures}")


def savepoint(
    job: Job,
    target: Target = None,
    format: Format = SavepointFormat.CANONICAL,
    url: Url = None,
    json: Json = False,
) -> None:
    """Take a savepoint; the job continues."""
    body = {"target-directory": target, "formatType": format.value}
    _print_location(_operation(job, url, "POST", "/savepoints", body), json)


def stop(
    job: Job,
    target: Target = None,
    drain: Annotated[
        bool, typer.Option("--drain", help="Operators act as at the end of their input; do not resume from it.")
    ] = False,
    format: Format = SavepointFormat.CANONICAL,
    url: Url = None,
    json: Json = False,
) -> None:
    """Take a savepoint and stop; `headrace run --resume`, or execution.state-recovery.path, resumes from it."""
    body = {"targetDirectory": target, "drain": drain, "formatType": format.value}
    _print_location(_operation(job, url, "POST", "/stop", body, result="/savepoints"), json)


def _print_location(done: dict[str, Any], json: bool) -> None:
    print_json({"location": done["location"]}) if json else typer.echo(done["location"])


def rescale(
    job: Job,
    parallelism: Annotated[int, typer.Option("--parallelism", "-p", help="The new default parallelism.")],
    url: Url = None,
    json: Json = False,
) -> None:
    """Continue with another parallelism, without losing or repeating a record."""
    if parallelism < 1:
        raise InvalidArgument("HR-1201", f"--parallelism is {parallelism}: it must be at least 1")
    _operation(job, url, "PATCH", f"/rescaling?parallelism={parallelism}")
    print_json({"parallelism": parallelism}) if json else typer.echo(f"the job runs with parallelism {parallelism}")


def cancel(job: Job, url: Url = None, json: Json = False) -> None:
    """Stop a job without a savepoint."""
    found = find_job(job, url)
    found.client.send("PATCH", f"{found.path}?mode=cancel")
    print_json({"jid": found.id}) if json else typer.echo(f"job {found.id} is being cancelled")


def dispose(
    path: Annotated[str, typer.Argument(help="A savepoint: its directory or its _metadata.")], json: Json = False
) -> None:
    """Delete a savepoint permanently."""
    done = dispose_savepoint(open_store(), path)
    if json:
        print_json({"deleted": done.deleted, "left": list(done.left)})
        return
    left = f"; {len(done.left)} files that are not ours were left: {', '.join(done.left)}" if done.left else ""
    typer.echo(f"{done.deleted} files deleted{left}")


def token(url: Url = None) -> None:
    """Print the token that requests to a driver of this user must carry: for curl, or a command on another machine."""
    server = _only_server(url)
    if server.token is None:
        raise RestError("HR-7009", f"no token is known for {server.url}: it asks for none, or another user runs it")
    typer.echo(server.token)


def _only_server(url: str | None) -> Server:
    servers = find_servers(url)
    if len(servers) != 1:
        running = ", ".join(server.url for server in servers) or "none"
        raise RestError("HR-7008", f"name one driver with --url; running on this machine: {running}")
    return servers[0]
