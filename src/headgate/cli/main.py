"""The `headgate` command: run a program, check the machine, delete unused files, list the options.

It is a process of its own; `run` makes it the driver of the program's jobs. A HeadgateError becomes one message on stderr
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

from headgate import config
from headgate.cli import jobs as cli_jobs
from headgate.cli import state as cli_state
from headgate.cli.doctor import run_checks
from headgate.cli.output import reported
from headgate.config import Configuration
from headgate.driver.log_output import start_log_output
from headgate.driver.services import wait_for_calls
from headgate.errors import ConfigError, HeadgateError
from headgate.storage.gc import collect, plan_gc
from headgate.storage.layout import AttemptId, JobLayout
from headgate.storage.log import read_logs
from headgate.storage.objects import ObjectStore
from headgate.storage.remote import open_store

app = typer.Typer(
    help="Headgate: stateful stream processing in Python on Spark.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


cli_jobs.add_commands(app)
cli_state.add_commands(app)

Assignments = Annotated[
    list[str] | None, typer.Option("-D", metavar="KEY=VALUE", help="Set an option; may be given more than once.")
]
ConfigFile = Annotated[
    Path | None, typer.Option("--config", metavar="FILE", help="Options file; ./headgate.yaml is used if it is there.")
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
    """The options of headgate.yaml and of -D; those of -D win."""
    if file is None and Path("headgate.yaml").is_file():
        file = Path("headgate.yaml")
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
        bool, typer.Option("--allow-non-restored-state", "-n", help="Drop state of operators that are gone.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="With --from: list matched, new and dropped operators, start nothing.")
    ] = False,
    show_traceback: Annotated[
        bool, typer.Option("--traceback", help="Show the Python traceback of Headgate's errors.")
    ] = False,
    verbose: Annotated[bool, typer.Option("--verbose", help="Log in detail (headgate.log.level=DEBUG).")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Log warnings and errors only.")] = False,
) -> None:
    """Run a program. What stands after `--` is left to the program, even if it looks like one of our options."""
    try:
        if not file.is_file():
            raise ConfigError(f"there is no file {str(file)!r}")
        given = load_configuration(assignments or [], config_file)
        if dry_run and savepoint is None:
            raise ConfigError("--dry-run shows what becomes of a snapshot's state: name one with --from PATH")
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
    except HeadgateError as error:
        if config.process_defaults().get(config.LOG_FORMAT) == "json":
            logging.getLogger("headgate").log(logging.ERROR, str(error), exc_info=show_traceback)
        elif show_traceback:
            traceback.print_exception(error)
        else:
            typer.echo(str(error), err=True)
        raise typer.Exit(1) from None


def _run_as_main(file: Path, args: list[str]) -> None:
    """Run the file as `python FILE ARGS` would; a failure of its own shows from its first line on."""
    path = str(file)
    sys.argv = [path, *args]
    sys.path.insert(0, str(file.resolve().parent))
    try:
        runpy.run_path(path, run_name="__main__")
    except HeadgateError:
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
) -> None:
    """Delete files that no checkpoint needs any more, such as what a killed driver left behind."""
    store = open_store()
    entries, damaged = read_logs(store, directory)
    damaged = [log for log in damaged if log.job_id.startswith(job)]
    jobs = [entry for entry in entries if entry.job_id.startswith(job)]
    if not jobs and not damaged:
        raise ConfigError(f"there is no job{f' {job}' if job else ''} in '{directory}'")
    for log in damaged:
        typer.echo(f"job {log.job_id}: nothing is deleted, its log is damaged: {log.problem}", err=True)
    names = set(store.list_names(directory))
    for entry in jobs:
        live = None if stopped else AttemptId(entry.epoch)
        layout = JobLayout.of(directory, entry.job_id, create_subdir=entry.job_id in names)
        _gc_job(store, layout, live, dry_run)
    if damaged:
        raise typer.Exit(1)


def _gc_job(store: ObjectStore, layout: JobLayout, live: AttemptId | None, dry_run: bool) -> None:
    plan = plan_gc(store, layout, live=live)
    for finding in plan.orphans:
        typer.echo(f"{finding.path}  {finding.size} bytes  {finding.verdict.value}")
    size = sum(finding.size for finding in plan.orphans)
    if dry_run:
        typer.echo(f"job {layout.job_id}: {len(plan.orphans)} files, {size} bytes would be deleted")
        return
    done = collect(store, layout, plan)
    typer.echo(f"job {layout.job_id}: {done.deleted} files, {done.bytes} bytes deleted, {len(done.failed)} failed")


# --- options ----------------------------------------------------------------------------------------------------------


@app.command()
def options(
    prefix: Annotated[str, typer.Argument(help="Show only options whose key starts with this.")] = "",
) -> None:
    """List all options with kind, default and meaning."""
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
) -> None:
    """Check everything that a job needs: one line each, ok or what to do. Exit code 1 if something is missing."""
    configuration = load_configuration(assignments or [], config_file)
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
