"""What the README shows, as a user would type it: its program, its commands, its code for state as a DataFrame.

One job runs in a process of its own and is driven by the command line; every step is a command with its exit code and
what it prints. The program and the code are cut out of the README, so that it cannot say what does not work.
"""

import json
import os
import re
import signal
import stat
from collections import Counter
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from spark_kit import wait_until

from command_line import Shell

pytestmark = pytest.mark.xdist_group("commands")  # one job

README = (Path(__file__).parents[2] / "README.md").read_text()
USERS = 100


def readme(mark):
    """The Python code in the README that has this text in it."""
    (block,) = [code for code in re.findall(r"```python\n(.*?)```", README, re.DOTALL) if mark in code]
    return block


class Machine(Shell):
    """A user's machine: a directory for everything, and a shell."""

    def __init__(self, directory):
        super().__init__(directory)
        self.program = directory / "totals.py"
        code = readme("class Total(")
        assert "count=1_000_000" in code
        slow = code.replace("/data/", f"{directory}/").replace("count=1_000_000", "count=1_000_000, rate=500")
        self.program.write_text(slow)
        self.log = directory / "run.log"
        self.savepoints = f"file://{directory}/savepoints"

    @contextmanager
    def job(self, *words):
        """`headrace run` of the README's program, until it has taken a checkpoint and for as long as the block lasts."""
        options = ["-D", "headrace.spark.master=local[16]", "-D", "parallelism.default=2", "-D", "rest.port=0"]
        known = set(self.checkpoints())
        with self.log.open("w") as log:
            process = self.start("run", *words, *options, self.program, output=log)
        try:
            wait_until(lambda: process.poll() is not None or set(self.checkpoints()) - known, "a checkpoint", 200)
            assert process.poll() is None, self.log.read_text()
            yield process
        finally:
            if process.poll() is None:
                process.kill()
            process.wait()

    def checkpoints(self):
        return [path.parent for path in self.directory.glob("checkpoints/*/chk-*/_metadata")]

    def rows(self):
        files = [path for path in (self.directory / "out").iterdir() if not path.name.startswith(".")]
        return [json.loads(line) for path in files for line in path.read_text().splitlines()]


@pytest.fixture(scope="module")
def machine(tmp_path_factory):
    return Machine(tmp_path_factory.mktemp("machine"))


def look_at(machine, job_id):
    """Commands that look at what only a real job has; tests/unit/cli has the others."""
    details = json.loads(machine.headrace("info", "totals", "--json"))
    assert (details["jid"], details["checkpoints"]["counts"]["failed"]) == (job_id, 0)
    assert details["status-counts"]["RUNNING"] == 2
    (attempt,) = json.loads(machine.headrace("story", "totals", "--json"))["attempts"]
    assert (attempt["outcome"], attempt["restored_checkpoint"]) == ("OPEN", None)
    assert re.search(r"totals.*│ total .*│ value", machine.headrace("state", "list", "totals"))
    found = json.loads(machine.headrace("state", "get", "totals", "totals", "total", "7", "--json"))
    assert [entry["key"] for entry in found["entries"]] == [7]
    assert "has nothing for this key" in machine.headrace("state", "get", "totals", "totals", "total", "-1", code=1)
    assert "dashboard: http://127.0.0.1:" in machine.headrace("logs", "totals")


@pytest.fixture(scope="module")
def savepoints(machine):
    """The job is asked for everything, and stopped: the savepoint that was taken before, and the last one."""
    with machine.job() as process:
        shown = machine.headrace("list")
        assert re.search(r"[0-9a-f]{32} .*RUNNING .*totals .*http://127\.0\.0\.1:\d+", shown), shown
        (job_id,) = re.findall(r"[0-9a-f]{32}", shown)
        complete = r"checkpoint \d+ is complete: full size [\d,]+ bytes, \d+ shared files, chain of \d+\n"
        assert re.fullmatch(complete, machine.headrace("checkpoint", "totals"))
        assert re.fullmatch(complete, machine.headrace("checkpoint", job_id[:8], "--full"))
        first = machine.headrace("savepoint", "totals", "--target", machine.savepoints).strip()
        assert first.startswith(f"{machine.directory}/savepoints/savepoint-{job_id[:6]}-")
        look_at(machine, job_id)
        assert machine.headrace("rescale", "totals", "-p", "3") == "the job runs with parallelism 3\n"
        assert "the job needs 200 task slots, but Spark has 16" in machine.headrace(
            "rescale", "totals", "-p", "100", code=1
        )
        assert "there is no job 'total'; known jobs:" in machine.headrace("stop", "total", code=1)
        shown = machine.headrace("gc", f"{machine.directory}/checkpoints", "--dry-run")
        assert re.search(rf"^job {job_id}: \d+ files, \d+ bytes would be deleted$", shown, re.MULTILINE)
        last = machine.headrace("stop", "totals", "--target", machine.savepoints).strip()
        assert process.wait(120) == 0
    assert "no job runs on this machine" in machine.headrace("list")
    return first, last


def totals(rows):
    """The newest total of each user; amounts are whole numbers above zero, but for the first one."""
    return {user: max(row["total"] for row in rows if row["user"] == user) for user in range(USERS)}


def test_a_savepoint_is_looked_into(machine, savepoints):  # SPEC R8.1
    first, last = savepoints
    shown = machine.headrace("inspect", first)
    assert re.search(r"Keyed Process +│ totals +│", shown), shown
    assert re.search(
        r"Keyed Process +│ total +│ value +│ key int64, value int64 +│ canonical +│ +100 │ +100 │", shown
    ), shown
    machine.headrace("inspect", last, "--verify")
    changed = machine.headrace("diff", first, last, code=1)
    assert re.findall(r"│ total +│ +(\d+) │ +(\d+) │ +(\d+) │ +(\d+) │", changed) == [("0", "0", "100", "0")], changed
    assert "cannot find a checkpoint or savepoint" in machine.headrace(
        "inspect", f"{machine.savepoints}/nothing", code=1
    )


@pytest.fixture(scope="module")
def made(spark, machine, savepoints):
    """The README's code for DataFrames, run on the savepoint that the job was stopped with."""
    code = readme('format("headrace-state")')
    assert "file:///data/checkpoints/<job>/chk-7" in code
    code = code.replace("file:///data/checkpoints/<job>/chk-7", savepoints[1]).replace(
        "/data/", f"{machine.directory}/"
    )
    names = {"spark": spark}
    exec(code, names)
    return names


def test_state_is_a_dataframe_in_both_directions(machine, savepoints, made):
    read = {row["key"]: row["value"] for row in made["totals"].collect()}
    assert read == totals(machine.rows())
    shown = machine.headrace("diff", savepoints[1], made["path"], code=1)  # it has no state of source and sink
    assert re.findall(r"│ total +│ +(\d+) │ +(\d+) │ +(\d+) │ +(\d+) │", shown) == [("0", "0", "0", "100")], shown
    shown = machine.headrace("run", "--from", made["path"], "--dry-run", machine.program)
    assert re.search(r"totals +│ matched", shown), shown


def test_the_job_goes_on_and_is_cancelled(machine, savepoints):  # SPEC R8.3, R8.5
    first, last = savepoints
    shown = machine.headrace("run", "--from", last, "--dry-run", machine.program)
    assert "the job would start; nothing was started" in shown
    assert re.search(r"totals +│ matched", shown), shown
    before = totals(machine.rows())
    with machine.job("--from", last) as process:
        cancelled = machine.headrace("cancel", "totals")
        assert re.fullmatch(r"job [0-9a-f]{32} is being cancelled\n", cancelled)
        assert process.wait(120) == 1
        assert "job 'totals' was cancelled" in machine.log.read_text()
    rows = machine.rows()
    times = Counter((row["user"], row["total"]) for row in rows)
    assert sum(times.values()) - len(times) <= 1  # nothing twice but a total of user 0, whose first amount is 0
    assert {user for (user, _), number in times.items() if number > 1} <= {0}
    after = totals(rows)
    assert all(after[user] > before[user] for user in range(USERS))
    assert re.fullmatch(r"\d+ files deleted\n", machine.headrace("dispose", first))
    assert "cannot find a checkpoint or savepoint" in machine.headrace("dispose", first, code=1)


def test_a_detached_job(machine, savepoints):
    options = ["-D", "headrace.spark.master=local[16]", "-D", "rest.port=0", "-D", "parallelism.default=1"]
    shown = machine.headrace("run", "--detach", *options, machine.program)
    (job_id, pid), (log,) = (
        re.findall(r"\(([0-9a-f]{32})\) runs in process (\d+)", shown)[0],
        re.findall(r"^log (.*)$", shown, re.MULTILINE),
    )
    try:
        assert job_id in machine.headrace("list")
        assert stat.S_IMODE(Path(log).stat().st_mode) == 0o600
        wait_until(lambda: "dashboard" in machine.headrace("logs", job_id), "a line in the log")
        wait_until(lambda: json.loads(machine.headrace("list", "--json"))["jobs"][0]["state"] == "RUNNING", "a job")
        machine.headrace("cancel", job_id, "--json")
        wait_until(lambda: not Path(f"/proc/{pid}").exists() or "was cancelled" in Path(log).read_text(), "its end")
    finally:
        with suppress(ProcessLookupError):
            os.kill(int(pid), signal.SIGKILL)
    broken = machine.directory / "broken.py"
    broken.write_text("raise ValueError('too early')")
    assert "before a job was listed" in machine.headrace("run", "--detach", broken, code=1)
