"""The `headrace` command: run a program, migrate one, check the machine, delete unused files, list the options, explain errors.

It is a process of its own; `run` makes it the driver of the program's jobs. A HeadraceError becomes one message on stderr
and exit code 1.
"""

from __future__ import annotations

import atexit
import logging
import os
import runpy
import sys
import traceback
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from rich.console import Console
from rich.text import Text

import headrace
from headrace import config
from headrace.cli import explain as cli_explain
from headrace.cli import jobs as cli_jobs
from headrace.cli import migrate as cli_migrate
from headrace.cli import state as cli_state
from headrace.cli.detached import start_detached
from headrace.cli.doctor import run_checks
from headrace.cli.output import Json, print_json, reported
from headrace.config import Configuration
from headrace.driver.log_output import start_log_output
from headrace.driver.services import wait_for_calls
from headrace.errors import ConfigError, HeadraceError
from headrace.storage.gc import collect, plan_gc
from headrace.storage.layout import AttemptId, JobLayout
from headrace.storage.log import read_logs
from headrace.storage.objects import ObjectStore
from headrace.storage.remote import open_store

app = typer.Typer(
    help="Headrace: stateful stream processing in Python on Spark.",
    epilog=(
        "Exit codes: 0 done; 1 refused or failed, or `diff` found differences, or `state get` found nothing; "
        "2 wrong usage; 130 interrupted. `run` ends with the exit code of the program."
    ),
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


cli_jobs.add_commands(app)
cli_state.add_commands(app)
cli_migrate.add_commands(app)
cli_explain.add_commands(app)

Assignments = Annotated[
    list[str] | None, typer.Option("-D", metavar="KEY=VALUE", help="Set an option; may be given more than once.")
]
ConfigFile = Annotated[
    Path | None, typer.Option("--config", metavar="FILE", help="Options file; ./headrace.yaml is used if it is there.")
]


def main() -> None:
    try:
        app()
    except SystemExit as end:
        if not wait_for_calls():
            _leave(end.code)
        raise


def _leave(code: str | int | None) -> NoReturn:
    """End the process in spite of calls that do not return; Python would finalize, and they might abort that."""
    atexit.unregister(wait_for_calls)
    atexit._run_exitfuncs()  # noqa: SLF001 - there is no public way, and the REST server has something to do there
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code if isinstance(code, int) else int(code is not None))


def load_configuration(assignments: list[str], file: Path | None) -> Configuration:
    """Return the options of headrace.yaml and of -D; those of -D win."""
    if file is None and Path("headrace.yaml").is_file():
        file = Path("headrace.yaml")
    configuration = Configuration() if file is None else config.from_file(file)
    configuration.add_all(config.from_assignments(assignments))
    configuration.check()  # `execute` does so again, and warns; here a wrong key is refused before the program runs
    return configuration


# --- run --------------------------------------------------------------------------------------------------------------


@app.command(context_settings={"ignore_unknown_options": True})
def run(
    file: Annotated[Path, typer.Argument(help="The program, a Python file.")],
    args: Annotated[list[str] | None, typer.Argument(help="Arguments of the program.")] = None,
    assignments: Assignments = None,
    config_file: ConfigFile = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue the newest job of this name in the checkpoint directory.")
    ] = False,
    savepoint: Annotated[
        str | None, typer.Option("--from", "-s", metavar="PATH", help="Start from a savepoint or checkpoint.")
    ] = None,
    allow_non_restored: Annotated[
        bool, typer.Option("--allow-non-restored-state", "-n", help="Drop state that no operator of the program takes.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="With --from: list matched, new and dropped operators, start nothing.")
    ] = False,
    show_traceback: Annotated[
        bool, typer.Option("--traceback", help="Show the Python traceback of Headrace's errors.")
    ] = False,
    verbose: Annotated[bool, typer.Option("--verbose", help="Log in detail (headrace.log.level=DEBUG).")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Log warnings and errors only.")] = False,
    detach: Annotated[
        bool, typer.Option("--detach", help="Return when the job is listed; it runs on without this shell.")
    ] = False,
) -> None:
    """Run a program. What stands after `--` is left to the program, even if it looks like one of our options."""
    try:
        if not file.is_file():
            raise ConfigError("HR-7012", f"there is no file {str(file)!r}")
        if detach:
            flags = {"--resume": resume, "-n": allow_non_restored, "--traceback": show_traceback}
            flags |= {"--verbose": verbose, "--quiet": quiet}
            options = [flag for flag, given in flags.items() if given]
            options += [word for one in assignments or [] for word in ("-D", one)]
            options += [] if config_file is None else ["--config", str(config_file)]
            options += [] if savepoint is None else ["--from", savepoint]
            start_detached([*options, str(file), "--", *(args or [])])
            return
        given = load_configuration(assignments or [], config_file)
        if dry_run and savepoint is None:
            raise ConfigError(
                "HR-7013", "--dry-run shows what becomes of a snapshot's state: name one with --from PATH"
            )
        chosen: dict[config.Option[Any], object] = {
            config.RESUME: resume,
            config.RECOVERY_PATH: savepoint,
            config.RECOVERY_IGNORE_UNCLAIMED: allow_non_restored,
            config.DRY_RUN: dry_run,
            config.LOG_LEVEL: "DEBUG" if verbose else "WARNING" if quiet else None,
        }
        for option, value in chosen.items():
            if value:
                given.set(option, value, config.Origin.COMMAND_LINE)
        config.set_process_defaults(given)
        start_log_output(given)
        _run_as_main(file, args or [])
    except HeadraceError as error:
        if config.process_defaults().get(config.LOG_FORMAT) == "json":
            logging.getLogger("headrace").log(logging.ERROR, str(error), exc_info=show_traceback)
        elif show_traceback:
            traceback.print_exception(error)
        else:
            typer.echo(str(error), err=True)
        raise typer.Exit(1) from None


def _run_as_main(file: Path, args: list[str]) -> None:
    """Run the file as `python FILE ARGS` would; a failure of its own shows from its first line on."""
    # Spark and what else a driver needs: a `profile.py` beside the program must not be taken for Python's own.
    for name in headrace.__all__:
        getattr(headrace, name)
    path = str(file)
    sys.argv = [path, *args]
    sys.path.insert(0, str(file.resolve().parent))
    try:
        runpy.run_path(path, run_name="__main__")
    except HeadraceError:
        raise
    except Exception as error:
        trace = error.__traceback__
        while trace is not None and trace.tb_frame.f_code.co_filename != path:
            trace = trace.tb_next
        # A syntax error has no frame of the file: then the whole trace is short, and names the line itself.
        traceback.print_exception(type(error), error, trace)
        raise typer.Exit(1) from None


# --- gc ---------------------------------------------------------------------------------------------------------------


@app.command()
@reported
def gc(
    directory: Annotated[str, typer.Argument(help="The checkpoint directory (execution.checkpointing.dir).")],
    job: Annotated[str, typer.Option("--job", help="The job's id; without it, every job there.")] = "",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="List what would go, and delete nothing.")] = False,
    stopped: Annotated[
        bool, typer.Option("--stopped", help="No driver runs the job: unfinished work of its last one may go too.")
    ] = False,
    json: Json = False,
) -> None:
    """Delete files that no checkpoint needs any more, such as what a killed driver left behind."""
    store = open_store()
    entries, damaged = read_logs(store, directory)
    damaged = [log for log in damaged if log.job_id.startswith(job)]
    jobs = [entry for entry in entries if entry.job_id.startswith(job)]
    if not jobs and not damaged:
        raise ConfigError("HR-7013", f"there is no job{f' {job}' if job else ''} in '{directory}'")
    for log in damaged:
        typer.echo(f"job {log.job_id}: nothing is deleted, its log is damaged: {log.problem}", err=True)
    names = set(store.list_names(directory))
    found = []
    for entry in jobs:
        live = None if stopped else AttemptId(entry.epoch)
        layout = JobLayout.of(directory, entry.job_id, create_subdir=entry.job_id in names)
        found.append(_gc_job(store, layout, live, dry_run, quiet=json))
    if json:
        print_json({"jobs": found, "damaged": [{"job": log.job_id, "problem": log.problem} for log in damaged]})
    if damaged:
        raise typer.Exit(1)


def _gc_job(
    store: ObjectStore, layout: JobLayout, live: AttemptId | None, dry_run: bool, *, quiet: bool
) -> dict[str, Any]:
    plan = plan_gc(store, layout, live=live)

    def echo(line: str) -> None:
        if not quiet:
            typer.echo(line)

    files = [{"path": one.path, "bytes": one.size, "verdict": one.verdict.value} for one in plan.orphans]
    for finding in plan.orphans:
        echo(f"{finding.path}  {finding.size} bytes  {finding.verdict.value}")
    size = sum(finding.size for finding in plan.orphans)
    if dry_run:
        echo(f"job {layout.job_id}: {len(plan.orphans)} files, {size} bytes would be deleted")
        return {"job": layout.job_id, "files": files, "deleted": 0, "failed": 0}
    done = collect(store, layout, plan)
    echo(f"job {layout.job_id}: {done.deleted} files, {done.bytes} bytes deleted, {len(done.failed)} failed")
    return {"job": layout.job_id, "files": files, "deleted": done.deleted, "failed": len(done.failed)}


# --- options ----------------------------------------------------------------------------------------------------------


@app.command()
def options(
    prefix: Annotated[str, typer.Argument(help="Show only options whose key starts with this.")] = "",
    json: Json = False,
) -> None:
    """List all options with kind, default and meaning."""
    if json:
        shown = [option for option in config.OPTIONS.values() if option.key.startswith(prefix)]
        print_json(
            [
                {
                    "key": o.key,
                    "kind": o.kind.value,
                    "default": config.default_text(o),
                    "choices": o.choices,
                    "doc": o.doc,
                }
                for o in shown
            ]
        )
        return
    for option in config.OPTIONS.values():
        if option.key.startswith(prefix):
            kind = "|".join(option.choices) or option.kind.value
            typer.echo(f"{option.key} ({kind}, default {config.default_text(option)})\n    {option.doc}")


# --- doctor -----------------------------------------------------------------------------------------------------------


@app.command()
@reported
def doctor(
    master: Annotated[str | None, typer.Option(help="Spark master to count slots on.")] = None,
    checkpoint_dir: Annotated[str | None, typer.Option(help="Directory to try to write to.")] = None,
    spark: Annotated[bool, typer.Option(help="Start a Spark session to count its slots.")] = True,
    assignments: Assignments = None,
    config_file: ConfigFile = None,
    json: Json = False,
) -> None:
    """Check everything that a job needs: one line each, ok or what to do. Exit code 1 if something is missing."""
    configuration = load_configuration(assignments or [], config_file)
    if json:
        checks = list(run_checks(configuration, master, checkpoint_dir, spark))
        print_json([{"found": check.found, "ok": check.ok, "fix": check.fix} for check in checks])
        if not all(check.ok for check in checks):
            raise typer.Exit(1)
        return
    console = Console(highlight=False, soft_wrap=True)
    healthy = True
    for check in run_checks(configuration, master, checkpoint_dir, spark):
        healthy = healthy and check.ok
        console.print(Text(str(check), style="" if check.ok else "bold red"))
    for key, value, origin in configuration.changed():
        console.print(Text(f"    {key} = {value}  ({origin.value})"))
    if not healthy:
        raise typer.Exit(1)


if __name__ == "__main__":
    main()
