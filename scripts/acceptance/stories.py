"""Stories of a job's life from the command line, on both backends, aligned and unaligned: no row is lost or repeated.

Each story drives `headrace run` of programs/story.py and other commands in processes of their own, in a fresh directory
for each combination, and compares what the sink shows with what the program must have written.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import Any

import msgspec
import psutil

from acceptance.checkpoints import MODES, referenced
from acceptance.lines import Outcome, line, wait_until
from headrace.rest.client import RestClient, RestError
from headrace.rest.discovery import Server

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests"))
from command_line import Shell  # found by the path above
from short_jvm import set_options

PROGRAM = Path(__file__).with_name("programs") / "story.py"
COUNT, KEYS = 60_000, 20  # of the program
OPTIONS = {
    "headrace.spark.master": "local[32]",
    "headrace.spark.reserved-slots": "2",
    "headrace.control.timeout": "5 s",
    "spark.ui.enabled": "false",
    "spark.driver.memory": "512m",
    "rest.port": "0",
    "parallelism.default": "2",
    "execution.checkpointing.interval": "400 ms",
    "execution.checkpointing.tolerable-failed-checkpoints": "1000",
    "execution.checkpointing.data-inline-threshold": "0",
    "restart-strategy.type": "fixed-delay",
    "restart-strategy.fixed-delay.attempts": "1000",
    "restart-strategy.fixed-delay.delay": "200 ms",
}
INCREMENTAL = "execution.checkpointing.incremental"
IN_MEMORY = {"execution.checkpointing.storage": "jobmanager"}
Options = Mapping[str, str | None]  # None: the option is not given


class Driver:
    """A `headrace run` in the background."""

    def __init__(self, process: Any, log: Path, announced: Path) -> None:
        self.process, self.log, self._announced = process, log, announced

    def until(self, condition: Callable[[], Any], what: str, seconds: float = 300) -> Any:
        """Wait for something that happens while it runs."""

        def checked() -> Any:
            if self.process.poll() is not None:
                raise AssertionError(f"the driver ended with {self.process.returncode} before {what}: {self.tail()}")
            time.sleep(0.1)  # not more often: conditions are requests to the driver
            return condition()

        try:
            return wait_until(checked, seconds, what)
        except TimeoutError as error:
            raise AssertionError(f"{error}: {self.tail()}") from None

    def tail(self) -> str:
        return self.log.read_text()[-2500:]

    def server(self) -> Server | None:
        """Its REST server, when it has one."""
        try:
            return msgspec.json.decode(self._announced.read_bytes(), type=Server)
        except (OSError, msgspec.DecodeError):
            return None

    def ask(self, path: str = "") -> dict[str, Any]:
        """The job as REST shows it, or something of it; empty before it has started."""
        server = self.server()
        try:
            if server is None:
                return {}
            client = RestClient(server.url, server.token)
            (job,) = client.send("GET", "/jobs/overview")["jobs"]
            return dict(client.send("GET", f"/jobs/{job['jid']}{path}") if path else job)
        except (RestError, ValueError):
            return {}

    def completed(self) -> int:
        return int(self.ask("/checkpoints").get("counts", {}).get("completed", 0))

    def checkpoints(self, more: int = 2) -> None:
        """Wait until it has completed some more."""
        before = self.completed()
        self.until(lambda: self.completed() >= before + more, f"{more} checkpoints after {before}")

    def restarts(self) -> int:
        return int(self.ask().get("restarts", 0))

    def runs(self) -> bool:
        """Whether each task has reported."""
        job = self.ask()
        return bool(job) and job["state"] == "RUNNING" and job["tasks"]["running"] == job["tasks"]["total"]

    def workers(self) -> list[psutil.Process]:
        """The processes that run tasks."""
        return [p for p in psutil.Process(self.process.pid).children(recursive=True) if p.name().startswith("hr-")]

    def kill_worker(self) -> None:
        """SIGKILL to one of them, and wait until the job has noticed."""
        before = self.restarts()
        self.workers()[-1].kill()
        self.until(lambda: self.restarts() > before, "a restart")

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def wait(self, code: int, seconds: float = 300) -> str:
        """Wait until it has ended with this exit code; what it said last."""
        try:
            ended = self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the driver does not end: {self.tail()}") from None
        assert ended == code, f"the driver ended with {ended}, not {code}: {self.tail()}"
        return self.tail()


class Case(Shell):  # type: ignore[misc]
    """One combination of a story: a directory for everything, and what a user does there."""

    def __init__(self, directory: Path, backend: str, mode: str) -> None:
        super().__init__(directory)
        set_options()
        self.store = directory / "checkpoints"
        storage = {"execution.checkpointing.dir": f"file://{self.store}", "state.backend.type": backend}
        self.options = OPTIONS | MODES[mode] | storage
        self.drivers: list[Driver] = []

    def run(
        self, *words: Any, options: Options | None = None, program: tuple[str, ...] = (), below: str = ""
    ) -> Driver:
        """`headrace run`; its marks and output are in the directory, or below it."""
        (self.directory / below / "marks").mkdir(parents=True, exist_ok=True)
        given = {**self.options, **(options or {})}
        settings = [word for key, value in given.items() if value is not None for word in ("-D", f"{key}={value}")]
        log = self.directory / f"run-{len(self.drivers)}.log"
        with log.open("w") as output:
            process = self.start("run", *words, *settings, PROGRAM, self.directory / below, *program, output=output)
        announced = self.temporary / f"headrace-{os.getuid()}" / f"{process.pid}.json"
        self.drivers.append(Driver(process, log, announced))
        return self.drivers[-1]

    def kill(self, driver: Driver) -> None:
        """SIGKILL to the driver; what it started ends by itself."""
        driver.send(signal.SIGKILL)
        driver.process.wait(10)
        self.wait_gone()

    def checkpoint(self, driver: Driver) -> None:
        """`headrace checkpoint`, when the job runs (again)."""

        def taken() -> bool:
            driver.until(driver.runs, "all tasks run")
            request = self.start("checkpoint", "story")
            request.communicate(timeout=100)
            return request.returncode == 0

        driver.until(taken, "a checkpoint")

    def stop(self, driver: Driver, *words: str) -> Path:
        """`headrace stop`: the savepoint."""
        path = Path(self.headrace("stop", "story", "--target", f"file://{self.directory}/savepoints", *words).strip())
        driver.wait(0)
        return path

    def mark(self, name: str) -> None:
        (self.directory / "marks" / name).touch()

    def unmark(self, name: str) -> None:
        (self.directory / "marks" / name).unlink()

    def is_held(self, name: str) -> bool:
        """Whether a snapshot or a commit waits because of the mark."""
        return (self.directory / "marks" / f"{name}-waits").exists()

    @contextmanager
    def marked(self, name: str) -> Iterator[None]:
        """Hold snapshots or commits."""
        (self.directory / "marks" / f"{name}-waits").unlink(missing_ok=True)
        self.mark(name)
        try:
            yield
        finally:
            self.unmark(name)

    @contextmanager
    def storage_away(self, seconds: float, silent: bool = False) -> Iterator[None]:
        """A file, or a path that gives I/O errors, is where the checkpoint directory was: in the block, and some seconds."""
        other = self.directory / ("silent" if silent else "away")
        if silent:
            other.symlink_to(self.store)  # it refers to itself when it is there
        else:
            other.write_text("")
        _exchange(self.store, other)
        try:
            yield
            time.sleep(seconds)
        finally:
            _exchange(self.store, other)
            other.unlink()

    def rows(self, below: str = "") -> list[tuple[int, int]]:
        """What readers of the output see."""
        files = [path for path in (self.directory / below / "out").glob("[!.]*") if path.is_file()]
        rows = [json.loads(text) for path in files for text in path.read_text().splitlines()]
        return [(row["v"], row["n"]) for row in rows]

    def finish(self, driver: Driver, repeated: bool = False) -> str:
        """Let a job come to its end: each row must be there once, or at least once."""
        self.mark("release")
        driver.wait(0)
        self.check_rows(repeated)
        self.wait_gone()
        return f"{len(self.rows())} rows"

    def check_rows(self, repeated: bool = False) -> None:
        """Every number once, numbered without a gap under its key."""
        rows = self.rows()
        seen = Counter(v for v, _ in rows)
        lost, extra = COUNT - len(seen), len(rows) - len(seen)
        assert not lost, f"{lost} rows are lost, {extra} repeated"
        assert repeated or not extra, f"{extra} rows are repeated"
        numbers = {(v % KEYS, n) for v, n in rows}  # which record of a key comes first is left open
        assert numbers == {(k, n) for k in range(KEYS) for n in range(1, COUNT // KEYS + 1)}, "the state was wrong"

    def check_part(self, below: str, last: int | None = None) -> int:
        """The rows of another job: none repeated, numbered without a gap, up to the last if that is given."""
        rows = self.rows(below)
        assert len({v for v, _ in rows}) == len(rows) > 0, "rows are repeated, or there are none"
        for key in range(KEYS):
            numbers = sorted(n for v, n in rows if v % KEYS == key)
            end = last or numbers[-1]
            assert numbers == list(range(end - len(numbers) + 1, end + 1)), f"key {key} has a gap, or was not restored"
        return len(rows)

    def files(self, path: Path) -> dict[str, str]:
        """The files below a directory, by their content."""
        found = [one for one in path.rglob("*") if one.is_file()]
        return {str(one): blake2b(one.read_bytes()).hexdigest() for one in found}

    def largest_file(self) -> Path:
        """The largest file of the newest checkpoint that the log of the newest job names."""
        files = [Path(path) for path in referenced(str(self.directory), "story") if not path.endswith("_metadata")]
        newest = max((path.parent for path in files), key=lambda parent: int(parent.name.removeprefix("chk-")))
        return max((path for path in files if path.parent == newest), key=lambda path: path.stat().st_size)

    def newest(self) -> Path:
        """The newest complete checkpoint of all jobs."""
        return max(self.store.glob("*/chk-*/_metadata"), key=lambda path: path.stat().st_mtime_ns).parent

    def processes(self) -> list[psutil.Process]:
        """All processes that were started here, and what they started."""
        time.sleep(0.2)  # looking through all processes takes a while
        found = []
        for process in psutil.process_iter():
            try:
                if process.environ().get("TMPDIR") == str(self.temporary) and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
            except psutil.Error:
                continue
        return found

    def wait_gone(self) -> None:
        """Wait until no process is left."""
        wait_until(lambda: not self.processes(), 90, "the end of all processes")

    def close(self) -> None:
        for process in self.processes():
            process.kill()


def _exchange(one: Path, other: Path) -> None:
    """Let two paths change places at once: no writer finds neither of them."""
    here, exchange = -100, 2
    if ctypes.CDLL(None, use_errno=True).renameat2(here, os.fsencode(one), here, os.fsencode(other), exchange):
        raise OSError(ctypes.get_errno(), f"cannot exchange {one} and {other}")


# --- stories ----------------------------------------------------------------------------------------------------------


def stop_and_resume(case: Case) -> str:
    """Stopped jobs go on from their savepoints, which stay whole."""
    first = case.run(options={INCREMENTAL: "true"})
    first.checkpoints()
    one = case.stop(first)
    second = case.run("--resume", options={INCREMENTAL: "true"})
    second.checkpoints()
    two = case.stop(second, "--format", "NATIVE")
    files = case.files(one) | case.files(two)
    third = case.run("--from", two, options={INCREMENTAL: "true"})
    third.checkpoints()
    figure = case.finish(third)
    again = case.run("--from", one, below="again")
    again.checkpoints()
    case.headrace("cancel", "story")
    assert "was cancelled" in again.wait(1)
    case.check_part("again")
    assert case.files(one) | case.files(two) == files, "a savepoint has changed"
    for path in (one, two):
        assert "every file matches its checksum" in case.headrace("inspect", "--verify", path)
    return figure


def wrong_program(case: Case) -> str:
    """A program that does not fit is refused, and the right one goes on."""
    first = case.run()
    first.checkpoints()
    case.kill(first)
    files = case.files(case.newest())
    said = case.run("--resume", program=("files", "datagen", "renamed")).wait(1)
    assert "uid number" in said, said
    assert "ignore-unclaimed-state" in said, said
    said = case.run("--resume", options={"pipeline.max-parallelism": "64"}).wait(1)
    assert "max parallelism" in said, said
    assert files.items() <= case.files(case.store).items(), "files of the checkpoint are gone"
    again = case.run("--resume")
    again.checkpoints()
    return case.finish(again)


def death_before_the_first_checkpoint(case: Case) -> str:
    """A driver dies before the first checkpoint after `--from`: `--resume` goes on from the savepoint."""
    first = case.run()
    first.checkpoints()
    savepoint = case.stop(first)
    second = case.run("--from", savepoint, options={"execution.checkpointing.interval": "1 h"})
    second.until(second.runs, "all tasks run")
    second.until(lambda: list(case.directory.glob("out/.*/*")), "files that are not visible yet")
    case.kill(second)
    third = case.run("--resume")
    third.checkpoints()
    figure = case.finish(third)
    case.headrace("inspect", "--verify", savepoint)
    return figure


def two_drivers(case: Case) -> str:
    """An old driver wakes beside a new one: it goes on, is cancelled, fails or finishes, and harms nothing."""
    options = {"headrace.control.timeout": "60 s"}  # the workers of the old driver are there when it wakes
    old = case.run(options=options)
    old.checkpoints()
    for end in ("wakes", "is cancelled", "fails", "finishes"):
        old.send(signal.SIGSTOP)
        new = case.run("--resume", options=options)
        new.checkpoints()
        request = None
        if end == "is cancelled":
            request = case.start("cancel", "story", "--url", old.server().url)
        elif end == "fails":
            old.workers()[-1].kill()
        elif end == "finishes":
            case.mark("release")
            new.wait(0)
            case.check_rows()
        old.send(signal.SIGCONT)
        said = old.wait(1)
        assert end == "is cancelled" or "another driver has taken over" in said, said
        if request is not None:
            request.communicate(timeout=60)
        if end != "finishes":
            new.checkpoints()
            old = new
    case.check_rows()
    case.wait_gone()
    return f"{len(case.rows())} rows"


def failed_stop(case: Case) -> str:
    """A stop that fails, with a drain and without: the job goes on."""
    driver = case.run(options={"execution.checkpointing.interval": "1 h"})  # none is under way when it is stopped
    case.checkpoint(driver)
    for number, drain in enumerate(([], ["--drain"])):
        target = case.directory / f"target-{number}"
        with case.marked("hold-snapshot"):
            request = case.start("stop", "story", "--target", f"file://{target}", *drain)
            (made,) = driver.until(lambda target=target: list(target.glob("savepoint-*")), "the savepoint's directory")
            driver.until(lambda: case.is_held("hold-snapshot"), "a task holds its snapshot")
            made.rename(case.directory / f"gone-{number}")
            made.write_text("in the way")
        _, said = request.communicate(timeout=100)
        assert request.returncode == 1, "the stop did not fail"
        assert made.name in said, said
        case.checkpoint(driver)
    case.headrace("stop", "story", "--target", f"file://{made}", code=1)  # a file
    case.checkpoint(driver)
    return case.finish(driver)


def savepoint_without_interval(case: Case) -> str:
    """Savepoints of a job that takes no checkpoints: its output is complete, and each is good to start from."""
    options = {"execution.checkpointing.interval": None}
    driver = case.run(options=options)
    driver.until(driver.runs, "all tasks run")
    target = ("--target", f"file://{case.directory}/savepoints")
    case.headrace("savepoint", "story", *target)
    path = case.headrace("savepoint", "story", *target, "--format", "NATIVE").strip()
    figure = case.finish(driver)
    again = case.run("--from", path, options=options, below="again")
    (case.directory / "again" / "marks" / "release").touch()
    again.wait(0)
    case.wait_gone()
    return f"{figure}, {case.check_part('again', COUNT // KEYS)} from the savepoint"


def incremental_switched(case: Case) -> str:
    """Incremental checkpoints are switched on and off at resumes."""
    for number, value in enumerate(("true", "false", "true")):
        driver = case.run(*["--resume"][:number], options={INCREMENTAL: value})
        driver.checkpoints(3)
        if number < 2:
            case.kill(driver)
    return case.finish(driver)


def driver_memory(case: Case) -> str:
    """Restarts from checkpoints in the memory of the driver, full and incremental."""
    figures = []
    for value in ("false", "true"):
        driver = case.run(options=IN_MEMORY | {INCREMENTAL: value})
        for _ in range(2):
            driver.checkpoints(2)
            driver.kill_worker()
        driver.checkpoints(2)
        figures.append(case.finish(driver))
        (case.directory / "out").rename(case.directory / f"out-{value}")
        case.unmark("release")
    assert "execution.checkpointing.storage=filesystem" in case.run("--resume", options=IN_MEMORY).wait(1)
    return " and ".join(figures)


def bounded_sources(case: Case, rescaled: bool) -> str:
    """Files, a DataFrame and a Python data source at parallelism 6 with a kill, or rescaled to it: the job ends."""
    options = {"parallelism.default": "2" if rescaled else "6"}
    driver = case.run(options=options, program=("files", "files,dataframe,python"))
    driver.checkpoints()
    if rescaled:
        assert case.headrace("rescale", "story", "-p", "6") == "the job runs with parallelism 6\n"
    else:
        driver.kill_worker()
    driver.checkpoints()
    return case.finish(driver)


def damaged_checkpoint(case: Case) -> str:
    """The newest of several checkpoints is damaged, after a resume: an older one is used unless that repeats output."""
    figures = []
    for sink in ("append", "files"):
        program, options = (sink,), {"execution.checkpointing.num-retained": "3"}
        first = case.run(options=options, program=program)
        first.checkpoints(3)
        case.kill(first)
        second = case.run("--resume", options=options, program=program)
        second.checkpoints(4)
        case.kill(second)
        damaged = case.largest_file()
        content = damaged.read_bytes()
        damaged.write_bytes(content[: len(content) // 2] + b"\xff" * (len(content) - len(content) // 2))
        third = case.run("--resume", options=options, program=program)
        if sink == "files":
            said = third.wait(1)
            assert "DAMAGED" in said, said
            assert "headrace.recovery.allow-repeated-output" in said, said
            damaged.write_bytes(content)
            third = case.run("--resume", options=options, program=program)
        third.checkpoints()
        assert sink == "files" or "stepping back" in third.log.read_text(), third.tail()
        figures.append(case.finish(third, repeated=sink == "append"))
        (case.directory / "out").rename(case.directory / f"out-{sink}")
        case.unmark("release")
    return " and ".join(figures)


def storage_away(case: Case) -> str:
    """The checkpoint storage is away while a job runs, restarts, is stopped, resumes and ends."""
    first = case.run()
    first.checkpoints()
    with case.storage_away(20):
        first.kill_worker()
    first.checkpoints()
    with case.storage_away(5):
        case.headrace("stop", "story", "--target", f"file://{case.directory}/savepoints", code=1)
    first.checkpoints()
    case.kill(first)
    with case.storage_away(30, silent=True):
        second = case.run("--resume")
    second.checkpoints()
    with case.storage_away(20):
        case.mark("release")
    return case.finish(second)


HELD = {"checkpoint": "hold-snapshot", "commit": "hold-commit"}


def cancelled(case: Case) -> str:
    """Cancelled at any moment, also while a commit hangs, and started again from the newest checkpoint each time."""
    figures = []
    options = {"execution.checkpointing.externalized-checkpoint-retention": "RETAIN_ON_CANCELLATION"}
    for sink in ("files", "epochs"):
        start: list[Any] = []
        for moment in ("running", "starting", "checkpoint", "commit", "restarting")[:: 1 if sink == "files" else 3]:
            driver = case.run(*start, options=options, program=(sink,))
            driver.until(driver.ask, "the job is known")
            if moment != "starting":
                driver.checkpoints()
            with case.marked(HELD.get(moment, "nothing")):
                if moment == "restarting":
                    driver.workers()[-1].kill()
                if moment in HELD:
                    driver.until(lambda held=HELD[moment]: case.is_held(held), f"a {moment} is held")
                case.headrace("cancel", "story")
                assert "was cancelled" in driver.wait(1, 60)
                case.wait_gone()
            start = ["--from", case.newest()]
        last = case.run(*start, options=options, program=(sink,))
        last.checkpoints()
        figures.append(case.finish(last))
        (case.directory / "out").rename(case.directory / f"out-{sink}")
        case.unmark("release")
    return " and ".join(figures)


# --- lines ------------------------------------------------------------------------------------------------------------


def told(story: Callable[[Case], str]) -> Outcome:
    """A story in all four combinations."""
    figures, ok = [], True
    for backend in ("hashmap", "rocksdb"):
        for mode in ("aligned", "unaligned"):
            began = time.monotonic()
            with tempfile.TemporaryDirectory(prefix="headrace-story-", ignore_cleanup_errors=True) as directory:
                case = Case(Path(directory), backend, mode)
                try:
                    figure = story(case)
                except Exception as error:
                    figure, ok = f"FAILED {type(error).__name__}: {error}", False
                finally:
                    case.close()
            figures.append(f"{backend} {mode} {figure} in {time.monotonic() - began:.0f} s")
    return Outcome(ok, "; ".join(figures))


STORIES: dict[str, Callable[[Case], str]] = {
    "stop-and-resume": stop_and_resume,
    "wrong-program": wrong_program,
    "death-before-the-first-checkpoint": death_before_the_first_checkpoint,
    "two-drivers": two_drivers,
    "failed-stop": failed_stop,
    "savepoint-without-interval": savepoint_without_interval,
    "incremental-switched": incremental_switched,
    "bounded-sources-killed": partial(bounded_sources, rescaled=False),
    "bounded-sources-rescaled": partial(bounded_sources, rescaled=True),
    "damaged-checkpoint": damaged_checkpoint,
    "driver-memory": driver_memory,
    "storage-away": storage_away,
    "cancelled": cancelled,
}
for _name, _story in STORIES.items():
    _line = partial(told, _story)
    _line.__doc__ = (_story.func if isinstance(_story, partial) else _story).__doc__
    line(f"story-{_name}", 3600)(_line)
