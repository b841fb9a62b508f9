"""The checks of `headrace doctor`: what a job needs of the machine. They run in the process of the command."""

from __future__ import annotations

import importlib
import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from headrace import config
from headrace.config import Configuration
from headrace.records import kernel
from headrace.storage.objects import check_create_if_absent, normalise
from headrace.storage.remote import open_store

_EXECUTORS_SECONDS = 20.0


@dataclass(frozen=True)
class Check:
    """One line of the report: what was found, and what to do if it is not sufficient."""

    found: str
    fix: str | None = None

    @property
    def ok(self) -> bool:
        return self.fix is None

    def __str__(self) -> str:
        return f"ok  {self.found}" if self.ok else f"FAIL  {self.found} -> {self.fix}"


def run_checks(
    configuration: Configuration, master: str | None, checkpoint_dir: str | None, spark: bool
) -> Iterator[Check]:
    yield check_python(sys.version_info[:3])
    java = check_java(os.environ)
    yield java
    yield check_package("pyspark", "4.3.", "pip install 'pyspark==4.3.*'")
    yield check_package("pyarrow")
    yield check_package("pandas", "2.", "pip install 'pandas>=2.2,<3'")
    yield check_rocksdb()
    yield check_kernel()
    yield check_checkpoint_dir(checkpoint_dir or configuration.get(config.CHECKPOINT_DIR))
    if spark and java.ok:
        yield check_slots(master or configuration.get(config.SPARK_MASTER) or "local[*]", spark_slots)


def check_python(version: tuple[int, ...]) -> Check:
    found = f"Python {'.'.join(map(str, version))}"
    return Check(found, None if version >= (3, 11) else "install Python 3.11 or newer and make the environment with it")


def check_java(environment: os._Environ[str] | dict[str, str]) -> Check:
    """Java 17 or newer, found as Spark finds it: JAVA_HOME if it is set, else `java` on the PATH."""
    home = environment.get("JAVA_HOME")
    java = str(Path(home, "bin", "java")) if home else shutil.which("java", path=environment.get("PATH"))
    where = f"JAVA_HOME={home}" if home else java
    fix = (
        "set JAVA_HOME to a Java 17 or newer, or unset it to use the one on the PATH"
        if home
        else "install a Java runtime 17 or newer (Debian, Ubuntu: apt-get install openjdk-17-jre-headless)"
    )
    if java is None:
        return Check("Java not found", fix)
    try:
        answer = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=60, check=False)
    except OSError as error:
        return Check(f"Java does not start ({where}): {error.strerror}", fix)
    version = java_version(answer.stderr + answer.stdout)
    found = f"Java {version or 'of unknown version'} ({where})"
    return Check(found, None if version is not None and version >= 17 else fix)


def java_version(text: str) -> int | None:
    """Return the major version that `java -version` prints.

    >>> java_version('openjdk version "17.0.15" 2025-04-15'), java_version('java version "1.8.0_202"')
    (17, 8)
    """
    found = re.search(r'version "(?:1\.)?(\d+)', text)
    return int(found[1]) if found else None


def check_package(name: str, wanted: str = "", fix: str = "") -> Check:
    """Check that a package is installed in a version that starts with `wanted`, and can be imported."""
    fix = fix or f"pip install {name}"
    try:
        version = importlib.metadata.version(name)
        importlib.import_module(name)
    except importlib.metadata.PackageNotFoundError:
        return Check(f"{name} is not installed", fix)
    except Exception as error:
        return Check(f"{name} cannot be imported: {error}", fix)
    return Check(f"{name} {version}", None if version.startswith(wanted) else fix)


def check_rocksdb() -> Check:
    """Check that rocksdict can open a database, write and read."""
    package = check_package("rocksdict")
    if not package.ok:
        return package
    # By name: only headrace.state.rocksdb may depend on rocksdict, and this is a probe, not a dependency.
    rocksdict = importlib.import_module("rocksdict")
    with tempfile.TemporaryDirectory(prefix="headrace-doctor-") as directory:
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


def check_kernel() -> Check:
    """Which form the inner loops have; both work."""
    if kernel.COMPILED:
        return Check("keyed functions run in compiled loops")
    return Check(f"keyed functions run in loops of plain Python, which is slower: {kernel.PROBLEM}")


def check_checkpoint_dir(directory: str | None) -> Check:
    """Check that a file can be written to and deleted from the checkpoint directory."""
    if directory is None:
        return Check("checkpoint directory not set")
    found = f"checkpoint directory {directory}"
    try:
        if "://" in directory and not directory.startswith("file://"):
            check_create_if_absent(open_store(), normalise(directory))
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
        probe = directory / f".headrace-doctor-{uuid.uuid4().hex}"
        probe.write_bytes(b"probe")
        probe.unlink()
    finally:
        for parent in made:  # a check leaves nothing behind
            parent.rmdir()


def check_slots(master: str, count_slots: Callable[[str], int]) -> Check:
    """Check that a Spark session starts on `master`, and count the tasks that it can run at the same time."""
    try:
        slots = count_slots(master)
    except Exception as error:
        first_line = (str(error).strip().splitlines() or [type(error).__name__])[0]
        return Check(f"Spark {master} does not start: {first_line}", "check the master's address and its log")
    found = f"Spark {master}: {slots} slots"
    return Check(found, None if slots > 0 else "start workers for this master, or give them free cores")


def spark_slots(master: str) -> int:
    """Start a session on `master`, count its slots and stop it."""
    from headrace.driver.session import get_session
    from headrace.driver.spark import slots

    session = get_session(None, Configuration({config.SPARK_MASTER.key: master}))
    try:
        deadline = time.monotonic() + _EXECUTORS_SECONDS
        while slots(session) == 0 and time.monotonic() < deadline:  # executors of a cluster come one by one
            time.sleep(0.2)
        return slots(session)
    finally:
        session.stop()
