"""What those who run jobs rely on: metrics, alerts, limits, and tools that do no harm.

A test that is expected to fail shows a known defect: its reason begins with the defect's name. The test says what is right;
whoever repairs the defect removes the mark, since a test that passes unexpectedly fails.
"""

import re
import subprocess
import sys
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from random import Random

import fsspec
import psutil
import pytest
import yaml
from edge_kit import Numbers, hold_rows_of_sources, numbering, wait_running

import s3_server
from command_line import Shell
from headrace import CheckpointedFunction, ListStateDescriptor, MapFunction
from headrace.control.control_server import ControlServer
from headrace.errors import HeadraceError, JobFailed, NotEnoughSlots
from headrace.ids import JobId
from headrace.job import job_events as ev
from headrace.job.machine import JobMachine
from headrace.job.restart import ExponentialDelay
from headrace.storage.layout import AttemptId, JobLayout, private_file, subtask_owner
from headrace.storage.published_snapshots import discard_checkpoint
from headrace.storage.remote import open_store
from rest_kit import checked, client_of
from waiting import wait_until

ALERTS = Path(__file__).parents[2] / "deploy" / "prometheus" / "alerts.yml"
HOUR = 3_600_000


def require(condition, what):
    """What must hold before the defect can show: without it the test itself is broken, whatever it is expected to do."""
    if not condition:
        raise RuntimeError(f"the test cannot say anything: {what}")


def error_of(action):
    """The error that an action ends with; None if there is none."""
    try:
        action()
    except HeadraceError as error:
        return error
    return None


# --- A1: the ports of Spark's shuffle --------------------------------------------------------------------------------------

PROGRAM = """
from headrace import StreamExecutionEnvironment

env = StreamExecutionEnvironment.get_execution_environment().set_parallelism(2)
env.enable_checkpointing(1000)
env.from_datagen(lambda n: n, rate=50, type_info="bigint").key_by(lambda n: n % 7).map(lambda n: n).add_sink(lambda n: None)
env.execute("numbers")
"""


def listening(process):
    """The addresses on which a process and its children listen."""
    found = []
    for one in [process, *process.children(recursive=True)]:
        with suppress(psutil.NoSuchProcess):
            found += [end.laddr for end in one.net_connections("tcp") if end.status == psutil.CONN_LISTEN]
    return found


@pytest.mark.spark
@pytest.mark.long
@pytest.mark.xfail(
    strict=True,
    raises=AssertionError,
    reason="A1 shuffle: every machine can connect to the ports of the record path, where one stray packet may end a task",
)
def test_a_job_on_local_spark_listens_on_this_machine_only(tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM)
    checkpoints, log = tmp_path / "checkpoints", tmp_path / "log"
    settings = ["-D", "headrace.spark.master=local[8]", "-D", f"execution.checkpointing.dir={checkpoints}"]
    with log.open("w") as output:
        driver = Shell(tmp_path).start("run", "program.py", *settings, output=output)
    try:
        wait_until(lambda: list(checkpoints.glob("*/chk-*/_metadata")) or driver.poll() is not None, "a checkpoint")
        require(driver.poll() is None, f"the driver has ended: {log.read_text()}")
        addresses = listening(psutil.Process(driver.pid))
        require(any(one.ip == "127.0.0.1" for one in addresses), f"the job listens on {addresses} only")
        assert [one for one in addresses if one.ip not in ("127.0.0.1", "::1", "::ffff:127.0.0.1")] == []
    finally:
        driver.terminate()
        driver.wait(60)


# --- A2: a source that waits for its reader -----------------------------------------------------------------------------


@pytest.mark.xfail(
    strict=True,
    raises=AssertionError,
    reason="A2 metrics: a subtask that waits for its reader counts as neither busy nor blocked",
)
def test_a_source_whose_reader_takes_nothing_is_back_pressured(jobs, tap, tmp_path):
    def program(env):
        env.from_source(Numbers(tap.name)).key_by(lambda n: n % 7).map(lambda n: n).add_sink(lambda n: None)

    job = wait_running(jobs.start(tmp_path, program))
    http = client_of(job.job)
    path = f"/jobs/{job.get_job_id()}"
    source = checked(http, path)["vertices"][0]["id"]
    with hold_rows_of_sources() as waiting:
        tap.let(1 << 40)
        wait_until(waiting.is_set, what="a row that is not taken")
        time.sleep(3.5)  # metrics are sent once a second
        (subtask,) = checked(http, f"{path}/vertices/{source}/backpressure")["subtasks"]
    assert subtask["ratio"] > 0.9


# --- A2, A3: alerts -----------------------------------------------------------------------------------------------------------


def alerts_that_fire(**metrics):
    """The names of the rules that hold with these values; rules that need functions of Prometheus do not count.

    A metric that is not given, which a later version may have, has been bad for an hour.
    """

    def holds(expression):
        names = dict.fromkeys(re.findall(r"[A-Za-z_]\w*", expression), HOUR) | metrics
        try:
            return eval(expression, {"__builtins__": {}}, names | {"time": lambda: 1_700_000_000})
        except (SyntaxError, TypeError):
            return False

    rules = yaml.safe_load(ALERTS.read_text())["groups"][0]["rules"]
    return [rule["alert"] for rule in rules if holds(rule["expr"])]


@pytest.mark.xfail(
    strict=True, raises=AssertionError, reason="A2 alerts: none fires for a job whose first checkpoint never completes"
)
def test_an_alert_fires_for_a_job_whose_first_checkpoint_takes_an_hour():
    state = {
        "flink_jobmanager_job_uptime": HOUR,
        "flink_jobmanager_job_numberOfInProgressCheckpoints": 1,
        "flink_jobmanager_job_lastCheckpointDuration": -1,
    }
    last = "flink_jobmanager_job_lastCheckpointCompletedTimestamp"
    long_ago = alerts_that_fire(**state, **{last: 1_700_000_000_000 - HOUR})
    require(long_ago == ["HeadraceNoCheckpoint"], f"of a job whose last checkpoint is old these fire: {long_ago}")
    assert alerts_that_fire(**state, **{last: -1})


@pytest.mark.xfail(strict=True, raises=AssertionError, reason="A3 alerts: none fires when the driver is gone")
def test_an_alert_fires_when_the_driver_is_gone():
    rules = yaml.safe_load(ALERTS.read_text())["groups"][0]["rules"]
    require(len(rules) > 5, f"only {len(rules)} rules")
    assert [rule["alert"] for rule in rules if re.search(r"\bup\b\s*(\{|==)|\babsent(_over_time)?\(", rule["expr"])]


# --- A4: an application without executors -----------------------------------------------------------------------------------------


@pytest.mark.xfail(
    strict=True,
    raises=AssertionError,
    reason="A4 driver: restarts for ever when its Spark application has no executor left",
)
def test_a_job_that_finds_no_slot_for_a_day_ends():
    machine, now, done = JobMachine("orders", 1, ExponentialDelay(rng=Random(1))), 0, []
    worker, lost = (0, 0), JobFailed("the executors were killed")
    first = [ev.StartRequested(), ev.CommitsAnswered(), ev.AttemptSubmitted(0), ev.WorkerRegistered(0, worker)]
    first += [ev.WorkerRunning(0, worker), ev.AttemptEnded(0, failed=True), ev.TasksLeft(0, (), 0)]
    for event in [*first, ev.CauseFound(0, lost), ev.TasksLeft(0, (), 0)]:
        done += machine.handle(event, now)
    require(machine.status.name == "RESTARTING", f"the job is {machine.status.name}")
    none = NotEnoughSlots("the job needs 4 task slots, but Spark has 0")
    while now < 24 * HOUR and not any(isinstance(one, ev.CloseCheckpoints) for one in done):
        now = machine.next_alarm() or now
        done = machine.handle(ev.TimeElapsed(), now)
        if ev.AwaitCommits() in done:
            done = machine.handle(ev.CommitsAnswered(), now)
            now += 30_000  # how long it waits for slots
            done += machine.handle(ev.AttemptRefused(machine.attempt, none, retry=True), now)
    assert any(isinstance(one, ev.CloseCheckpoints) for one in done)


# --- A5: a checkpoint of somebody else ---------------------------------------------------------------------------------------------


class Trap:
    """Whoever unpickles it makes a file."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


class Trapped(MapFunction, CheckpointedFunction):
    """Keeps a trap as operator state."""

    def __init__(self, path):
        self._path = path

    def initialize_state(self, context):
        self._state = context.get_operator_state_store().get_list_state(ListStateDescriptor("traps"))

    def snapshot_state(self, context):
        self._state.update([Trap(self._path)])

    def map(self, value):
        return value


@pytest.mark.parametrize("command", [["inspect"], ["inspect", "--verify", "--json"], ["diff"]], ids=" ".join)
@pytest.mark.xfail(
    strict=True, raises=AssertionError, reason="A5 inspect, diff: run code out of the checkpoint that they show"
)
def test_commands_that_show_a_checkpoint_run_nothing_out_of_it(cluster, tmp_path, command):
    trap = tmp_path / "sprung"

    def program(numbers):
        cluster.count_into_files(numbers.map(Trapped(trap)).uid("trapped"))

    job = cluster.start(program)
    job.feed(10)
    job.checkpoint()
    (checkpoint,) = cluster.checkpoints.glob("*/chk-1")
    require((checkpoint / "_metadata").exists(), "there is no checkpoint")
    job.kill_driver()
    trap.unlink(missing_ok=True)
    directories = [checkpoint] * (2 if command == ["diff"] else 1)
    try:
        Shell(tmp_path).headrace(*command, *directories)
    except AssertionError as error:
        raise RuntimeError(f"the command failed: {error}") from error
    assert not trap.exists()


# --- A6: strangers at the control port ------------------------------------------------------------------------------------------------

STRANGERS = """
import socket, sys
held = [socket.create_connection(("127.0.0.1", int(sys.argv[1]))) for _ in range(300)]
print("connected", flush=True)
sys.stdin.read()
"""


@pytest.mark.xfail(
    strict=True,
    raises=AssertionError,
    reason="A6 control port: takes any number of connections that do not show the secret",
)
def test_strangers_at_the_control_port_hold_few_descriptors_of_the_driver():
    server = ControlServer("127.0.0.1", "127.0.0.1", 0, lambda *message: None, lambda worker: None, 20.0)
    process = psutil.Process()
    before = process.num_fds()
    command = [sys.executable, "-c", STRANGERS, str(server.address.port)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as strangers:
        try:
            require(strangers.stdout.readline() == "connected\n", "the strangers cannot connect")
            time.sleep(1)
            held = process.num_fds() - before
        finally:
            strangers.stdin.close()
            server.stop()
    assert held < 150


# --- A7, A8: object stores -----------------------------------------------------------------------------------------------------------------


@contextmanager
def bucket(monkeypatch):
    """A bucket of an S3 server: its address, and the requests that the server gets."""
    server, options = s3_server.start()
    answer, requests = server.app, []

    def count_and_answer(environ, start_response):
        requests.append(f"{environ['REQUEST_METHOD']} {environ['PATH_INFO']}?{environ['QUERY_STRING']}")
        return answer(environ, start_response)

    server.app = count_and_answer
    monkeypatch.setitem(fsspec.config.conf, "s3", options)
    try:
        yield s3_server.make_bucket(options, "defects"), requests
    finally:
        server.shutdown()


@pytest.mark.xfail(
    strict=True,
    raises=AssertionError,
    reason="A7 storage: a subsumed checkpoint is deleted with one request for each file",
)
def test_the_files_of_a_checkpoint_are_deleted_with_few_requests(monkeypatch):
    with bucket(monkeypatch) as (address, requests):
        store, layout = open_store(), JobLayout.of(f"{address}/checkpoints", JobId("0" * 32))
        for index in range(50):
            name = private_file(AttemptId(1), subtask_owner(0, index))
            store.put(f"{layout.checkpoint(1)}/{name}", b"state")
        requests.clear()
        discard_checkpoint(store, layout, 1)
        require(not list(store.list_objects(layout.checkpoint(1))), "the files are not deleted")
    assert len(requests) < 25, requests[:10]


@pytest.mark.xfail(
    strict=True,
    raises=AssertionError,
    reason="A8 storage: uploads are spooled to the system's temporary directory, not io.tmp.dirs",
)
def test_uploads_are_spooled_below_io_tmp_dirs(jobs, tap, ledger, tmp_path, monkeypatch):
    spools = tmp_path / "spools"
    spools.mkdir()
    with bucket(monkeypatch) as (address, requests):
        options = {"io.tmp.dirs": str(spools)}
        job = wait_running(jobs.start(f"{address}/checkpoints", numbering(tap, ledger), options))
        tap.give(100)
        job.trigger_checkpoint()
        require(any("/chk-1/" in one and one.startswith("PUT") for one in requests), f"nothing is uploaded: {requests}")
        monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "no-such-directory"))
        tap.give(200)
        error = error_of(job.trigger_checkpoint)
        monkeypatch.setattr("tempfile.tempdir", None)
        job.cancel(30)
    assert error is None
