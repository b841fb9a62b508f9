"""The `headgate` command: run a program, look at the machine, list the options.

Commands only gather what the user said and call the library; a HeadgateError becomes one message on stderr and exit
code 1.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import os
import re
import runpy
import shutil
import subprocess
import sys
import tempfile
import time
import traceback
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from headgate import config
from headgate.cli import jobs as cli_jobs
from headgate.cli import state as cli_state
from headgate.cli.output import fail
from headgate.config import Configuration
from headgate.errors import ConfigError, HeadgateError
from headgate.storage.gc import collect, plan_gc
from headgate.storage.layout import AttemptId, JobLayout
from headgate.storage.log import newest_entries
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


_EXECUTORS_SECONDS = 20.0


def main() -> None:
    """Entry point of the console script.

    Example: `headgate run examples/word_count.py -D parallelism.default=2`
    """
    app()


def load_configuration(assignments: list[str], file: Path | None) -> Configuration:
    """Put headgate.yaml and the -D options together.

    >>> load_configuration(["parallelism.default=4"], file=None).get("parallelism.default")
    4
    """
    if file is None and Path("headgate.yaml").is_file():
        file = Path("headgate.yaml")
    configuration = Configuration() if file is None else config.from_file(file)
    return configuration.add_all(config.from_assignments(assignments))


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
) -> None:
    """Run a program. What stands after `--` is left to the program, even if it looks like one of our options."""
    try:
        if not file.is_file():
            raise ConfigError(f"there is no file {str(file)!r}")
        given = load_configuration(assignments or [], config_file)
        if resume:
            given.set(config.RESUME, True, config.Origin.COMMAND_LINE)
        if savepoint is not None:
            given.set(config.RECOVERY_PATH, savepoint, config.Origin.COMMAND_LINE)
        if allow_non_restored:
            given.set(config.RECOVERY_IGNORE_UNCLAIMED, True, config.Origin.COMMAND_LINE)
        if dry_run:
            if savepoint is None:
                raise ConfigError("--dry-run shows what becomes of a snapshot's state: name one with --from PATH")
            given.set(config.DRY_RUN, True, config.Origin.COMMAND_LINE)
        config.set_process_defaults(given)
        _run_as_main(file, args or [])
    except HeadgateError as error:
        raise fail(error, show_traceback) from None


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
def gc(
    directory: Annotated[str, typer.Argument(help="The checkpoint directory (execution.checkpointing.dir).")],
    job: Annotated[str, typer.Option("--job", help="The job's id; without it, every job there.")] = "",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="List what would go, and delete nothing.")] = False,
    stopped: Annotated[
        bool, typer.Option("--stopped", help="No driver runs the job: unfinished work of its last one may go too.")
    ] = False,
) -> None:
    """Delete files that no checkpoint needs any more, such as what a killed driver left behind."""
    try:
        store = open_store()
        jobs = [entry for entry in newest_entries(store, directory) if entry.job_id.startswith(job)]
        if not jobs:
            raise ConfigError(f"there is no job{f' {job}' if job else ''} in '{directory}'")
        for entry in jobs:
            live = None if stopped else AttemptId(entry.epoch)
            _gc_job(store, JobLayout.of(directory, entry.job_id), live, dry_run)
    except HeadgateError as error:
        raise fail(error) from None


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
    prefix: Annotated[str, typer.Argument(help="Show only options whose key starts so.")] = "",
) -> None:
    """List all options with kind, default and meaning."""
    for option in config.OPTIONS.values():
        if option.key.startswith(prefix):
            kind = "|".join(option.choices) or option.kind.value
            typer.echo(f"{option.key} ({kind}, default {config.default_text(option)})\n    {option.doc}")


# --- doctor -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Check:
    """One line of the doctor: what was found, and the mend if it will not do.

    >>> print(Check("Python 3.9.2", "install Python 3.11 or newer"))
    FAIL  Python 3.9.2 -> install Python 3.11 or newer
    """

    found: str
    mend: str | None = None

    @property
    def ok(self) -> bool:
        """Whether nothing needs to be mended."""
        return self.mend is None

    def __str__(self) -> str:
        return f"ok  {self.found}" if self.mend is None else f"FAIL  {self.found} -> {self.mend}"


@app.command()
def doctor(
    master: Annotated[str | None, typer.Option(help="Spark master to count slots on.")] = None,
    checkpoint_dir: Annotated[str | None, typer.Option(help="Directory to try to write to.")] = None,
    spark: Annotated[bool, typer.Option(help="Start a Spark session to count its slots.")] = True,
    assignments: Assignments = None,
    config_file: ConfigFile = None,
) -> None:
    """Check everything a job needs: one line each, ok or with the mend. Exit code 1 if something is missing."""
    try:
        configuration = load_configuration(assignments or [], config_file)
    except HeadgateError as error:
        raise fail(error) from None
    console = Console(highlight=False, soft_wrap=True)
    healthy = True
    for check in _checks(configuration, master, checkpoint_dir, spark):
        healthy = healthy and check.ok
        console.print(Text(str(check), style="" if check.ok else "bold red"))
    for key, value, origin in configuration.changed():
        console.print(Text(f"    {key} = {value}  ({origin.value})"))
    if not healthy:
        raise typer.Exit(1)


def _checks(
    configuration: Configuration, master: str | None, checkpoint_dir: str | None, spark: bool
) -> Iterator[Check]:
    yield check_python(sys.version_info[:3])
    java = check_java(os.environ)
    yield java
    yield check_package("pyspark", "4.3.", "pip install 'pyspark==4.3.*'")
    yield check_package("pyarrow")
    yield check_package("pandas", "2.", "pip install 'pandas>=2.2,<3'")
    yield check_package("grpcio", module="grpc")
    yield check_rocksdb()
    yield check_checkpoint_dir(checkpoint_dir or configuration.get(config.CHECKPOINT_DIR))
    if spark and java.ok:
        yield check_slots(master or configuration.get(config.SPARK_MASTER) or "local[*]", spark_slots)


def check_python(version: tuple[int, ...]) -> Check:
    """Python 3.11 or newer.

    >>> print(check_python((3, 11, 7)))
    ok  Python 3.11.7
    """
    found = f"Python {'.'.join(map(str, version))}"
    return Check(found, None if version >= (3, 11) else "install Python 3.11 or newer and make the environment with it")


def check_java(environment: os._Environ[str] | dict[str, str]) -> Check:
    """Java 17 or newer, found as Spark finds it: JAVA_HOME if it is set, else `java` on the PATH."""
    home = environment.get("JAVA_HOME")
    java = str(Path(home, "bin", "java")) if home else shutil.which("java", path=environment.get("PATH"))
    where = f"JAVA_HOME={home}" if home else java
    mend = (
        "set JAVA_HOME to a Java 17 or newer, or unset it to use the one on the PATH"
        if home
        else "install a Java runtime 17 or newer (Debian, Ubuntu: apt-get install openjdk-17-jre-headless)"
    )
    if java is None:
        return Check("Java not found", mend)
    try:
        answer = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=60, check=False)
    except OSError as error:
        return Check(f"Java does not start ({where}): {error.strerror}", mend)
    version = java_version(answer.stderr + answer.stdout)
    found = f"Java {version or 'of unknown version'} ({where})"
    return Check(found, None if version is not None and version >= 17 else mend)


def java_version(text: str) -> int | None:
    """Give the major version that `java -version` prints.

    >>> java_version('openjdk version "17.0.15" 2025-04-15'), java_version('java version "1.8.0_202"')
    (17, 8)
    """
    found = re.search(r'version "(?:1\.)?(\d+)', text)
    return int(found[1]) if found else None


def check_package(name: str, wanted: str = "", mend: str = "", module: str = "") -> Check:
    """Whether a package is installed in a version that starts with `wanted`, and can be imported."""
    mend = mend or f"pip install {name}"
    try:
        version = importlib.metadata.version(name)
        importlib.import_module(module or name)
    except importlib.metadata.PackageNotFoundError:
        return Check(f"{name} is not installed", mend)
    except Exception as error:
        return Check(f"{name} cannot be imported: {error}", mend)
    return Check(f"{name} {version}", None if version.startswith(wanted) else mend)


def check_rocksdb() -> Check:
    """Whether rocksdict can open a database, write and read."""
    package = check_package("rocksdict")
    if not package.ok:
        return package
    # By name: only headgate.state.rocksdb may depend on rocksdict, and this is a probe, not a dependency.
    rocksdict = importlib.import_module("rocksdict")
    with tempfile.TemporaryDirectory(prefix="headgate-doctor-") as directory:
        try:
            database = rocksdict.Rdict(str(Path(directory, "db")))
            database[b"k"] = b"v"
            works = database[b"k"] == b"v"
            database.close()
        except Exception as error:
            return Check(
                f"{package.found} cannot open a database in {directory}: {error}", "set TMPDIR to a local disk"
            )
    return Check(f"{package.found} (opens a database)", None if works else "pip install --force-reinstall rocksdict")


def check_checkpoint_dir(directory: str | None) -> Check:
    """Whether a file can be written to and deleted from the checkpoint directory."""
    if directory is None:
        return Check("checkpoint directory not set")
    found = f"checkpoint directory {directory}"
    try:
        if "://" in directory and not directory.startswith("file://"):
            _probe_remote(directory)
        else:
            _probe_local(Path(directory.removeprefix("file://")))
    except Exception as error:
        return Check(
            f"{found} cannot be written to: {error}",
            "choose another with --checkpoint-dir or execution.checkpointing.dir, or give this user write access",
        )
    return Check(f"{found} is writable")


def _probe_local(directory: Path) -> None:
    made = [d for d in (directory, *directory.parents) if not d.exists()]  # innermost first
    directory.mkdir(parents=True, exist_ok=True)
    try:
        probe = directory / f".headgate-doctor-{uuid.uuid4().hex}"
        probe.write_bytes(b"probe")
        probe.unlink()
    finally:
        for parent in made:  # a look must leave nothing behind
            parent.rmdir()


def _probe_remote(directory: str) -> None:
    import fsspec

    filesystem, path = fsspec.core.url_to_fs(directory)
    probe = f"{path.rstrip('/')}/.headgate-doctor-{uuid.uuid4().hex}"
    filesystem.pipe_file(probe, b"probe")
    filesystem.rm_file(probe)


def check_slots(master: str, count_slots: Callable[[str], int]) -> Check:
    """Whether a Spark session starts on `master`, and how many tasks it can run at the same time.

    >>> print(check_slots("local[4]", lambda master: 4))
    ok  Spark local[4]: 4 slots
    """
    try:
        slots = count_slots(master)
    except Exception as error:
        first_line = (str(error).strip().splitlines() or [type(error).__name__])[0]
        return Check(f"Spark {master} does not start: {first_line}", "check the master's address and its log")
    found = f"Spark {master}: {slots} slots"
    return Check(found, None if slots > 0 else "start workers for this master, or give them free cores")


def spark_slots(master: str) -> int:
    """Start a session on `master`, count its slots and stop it."""
    from headgate.driver.session import get_session
    from headgate.driver.spark import slots

    session = get_session(None, Configuration({config.SPARK_MASTER.key: master}))
    try:
        deadline = time.monotonic() + _EXECUTORS_SECONDS
        while slots(session) == 0 and time.monotonic() < deadline:  # executors of a cluster come one by one
            time.sleep(0.2)
        return slots(session)
    finally:
        session.stop()


if __name__ == "__main__":
    main()
