"""The environment: settings, sources, the job client and printed lines; all without a JVM."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from headrace import Configuration, JobStatus, RestartStrategies, StreamExecutionEnvironment
from headrace.config import set_process_defaults
from headrace.driver.job import SparkJob
from headrace.environment import JobClient
from headrace.errors import ConfigError, HeadraceError, InvalidArgument, JobFailed
from headrace.ids import new_job_id
from headrace.rest import server


@pytest.fixture
def defaults():
    yield set_process_defaults
    set_process_defaults(Configuration())


def local():
    return StreamExecutionEnvironment.local()


# --- settings -------------------------------------------------------------------------------------------------------


def test_setters_are_options_and_can_be_chained():
    env = local().set_parallelism(3).set_max_parallelism(64).set_buffer_timeout(7).disable_operator_chaining()
    assert (env.get_parallelism(), env.get_max_parallelism(), env.get_buffer_timeout()) == (3, 64, 7)
    conf = env.get_configuration()
    assert conf.get("parallelism.default") == 3
    assert conf.get("pipeline.max-parallelism") == 64
    assert conf.get("execution.buffer-timeout") == 7
    assert conf.get("pipeline.operator-chaining.enabled") is False


def test_defaults():
    env = local()
    assert (env.get_parallelism(), env.get_max_parallelism(), env.get_buffer_timeout()) == (1, -1, 100)


def test_the_environment_has_its_own_copy_of_a_configuration():
    conf = Configuration({"parallelism.default": 4})
    env = StreamExecutionEnvironment.get_execution_environment(conf)
    env.set_parallelism(2)
    assert conf.get("parallelism.default") == 4
    assert env.configure(Configuration({"parallelism.default": 8})).get_parallelism() == 8


def test_process_defaults_come_first(defaults):
    """`headrace run -D` sets them; what the program sets wins."""
    defaults(Configuration({"parallelism.default": 5, "pipeline.name": "from -D"}))
    env = local()
    assert env.get_parallelism() == 5
    assert env.set_parallelism(2).get_parallelism() == 2


def test_restart_strategies_are_options():
    env = local().set_restart_strategy(RestartStrategies.fixed_delay_restart(3, 1000))
    assert env.get_configuration().get("restart-strategy.type") == "fixed-delay"
    assert env.get_configuration().get("restart-strategy.fixed-delay.attempts") == 3


def test_execute_refuses_unknown_options_and_warns_of_those_without_effect(caplog):
    env = local()
    env.get_configuration().set("taskmanager.numberOfTaskSlots", 4)
    env.from_collection([1]).print()
    env.execute()
    assert caplog.text.count("taskmanager.numberOfTaskSlots") == 1
    env.get_configuration().set("execution.checkpointing.intervall", "1 s")
    env.from_collection([1]).print()
    with pytest.raises(ConfigError, match=r"intervall'.*did you mean 'execution\.checkpointing\.interval'"):
        env.execute()


def test_unaligned_checkpoints_behind_a_custom_partitioner_must_be_forced():  # SPEC R6.4
    env = local().enable_checkpointing(1000)
    env.from_collection([1]).partition_custom(lambda key, n: key % n, lambda n: n).map(str).name("reader").print()
    env._job_plan()
    env.get_checkpoint_config().enable_unaligned_checkpoints()
    with pytest.raises(ConfigError, match=r"partition_custom\(\) before 'reader.*unaligned\.forced=true"):
        env._job_plan()
    env.get_configuration().set("execution.checkpointing.unaligned.forced", True)
    env._job_plan()


@pytest.mark.parametrize(
    "call", [lambda e: e.set_parallelism(0), lambda e: e.set_max_parallelism(0), lambda e: e.set_parallelism(1.5)]
)
def test_wrong_settings(call):
    with pytest.raises(InvalidArgument, match="must be an integer of at least 1"):
        call(local())


def test_the_name_of_a_job():
    env = local()
    env.from_collection([1]).print()
    assert env.explain().startswith("Headrace job:")
    env.get_configuration().set("pipeline.name", "mine")
    assert env.explain().startswith("mine:")


# --- sources --------------------------------------------------------------------------------------------------------


def collect(stream):
    return list(stream.execute_and_collect())


def test_sources():
    env = local()
    assert collect(env.from_elements(1, "a")) == [1, "a"]
    assert collect(env.from_collection(n for n in range(3))) == [0, 1, 2]
    assert collect(env.from_sequence(3, 5)) == [3, 4, 5]
    assert collect(env.from_datagen(lambda n: n * n, count=3)) == [0, 1, 4]
    assert str(env.from_sequence(1, 2).get_type()) == "bigint"
    assert str(env.from_elements(1.5, type_info="double").get_type()) == "double"


def test_names_and_environments_of_streams():
    env = local()
    stream = env.from_collection([1]).map(str).name("M")
    assert stream.get_name() == "M"
    assert stream.get_execution_environment() is env


def test_a_stream_that_must_not_be_parallel():
    env = local().set_parallelism(4)
    stream = env.from_sequence(1, 2).map(str).force_non_parallel()
    stream.print()
    assert [v.parallelism for v in env._job_plan().graph.vertices] == [4, 1, 4]
    stream.set_parallelism(2)
    with pytest.raises(HeadraceError, match="always runs with parallelism 1"):
        env._job_plan()


def test_a_limited_collect():
    env = local()
    assert env.from_sequence(1, 100).execute_and_collect(limit=3) == [1, 2, 3]
    assert env.from_sequence(1, 2).execute_and_collect(limit=3) == [1, 2]


def test_collected_and_printed_do_not_mix(capsys):
    env = local()
    numbers = env.from_collection([1, 2])
    numbers.print("p")
    assert collect(numbers.map(lambda n: -n)) == [-1, -2]
    assert capsys.readouterr().out == "p> 1\np> 2\n"


# --- the client -----------------------------------------------------------------------------------------------------


class Job:
    """A job in the hands of the test."""

    def __init__(self, status=JobStatus.RUNNING, error=None):
        self.job_id, self.status, self.error = new_job_id(), status, error
        self.cancelled = False

    def cancel(self):
        self.cancelled, self.status = True, JobStatus.CANCELED

    def wait(self, timeout=None):
        return self.status

    def raise_if_failed(self):
        if self.error is not None:
            raise self.error


def test_waiting_too_short():
    with pytest.raises(TimeoutError, match=r"the job still runs after 0\.1 s"):
        JobClient(Job()).wait(0.1)


def test_cancelling():
    job = Job()
    assert JobClient(job).cancel() is JobStatus.CANCELED
    assert job.cancelled


def test_a_failed_job_raises_its_error():
    client = JobClient(Job(JobStatus.FAILED, JobFailed("why")))
    assert client.get_job_status() is JobStatus.FAILED
    with pytest.raises(JobFailed, match="why"):
        client.get_job_execution_result()


def test_the_result(monkeypatch):
    now = iter([100.0, 102.5])
    # The name in that module only: every thread of the process reads `time.monotonic`.
    monkeypatch.setattr("headrace.job_client.time", SimpleNamespace(monotonic=lambda: next(now)))
    client = JobClient(Job(JobStatus.FINISHED))
    result = client.wait()
    assert result.get_job_id() == client.get_job_id()
    assert result.get_net_runtime() == 2500


@pytest.mark.parametrize(
    ("status", "terminal"),
    [(s, s in (JobStatus.CANCELED, JobStatus.FAILED, JobStatus.FINISHED)) for s in JobStatus],
)
def test_terminal_states(status, terminal):
    assert status.is_terminal == status.is_terminal_state() == status.is_globally_terminal_state() == terminal


# --- printing -------------------------------------------------------------------------------------------------------


def test_lines_beyond_the_limit_are_counted_and_never_silently_lost(capsys):
    env = local()
    env.get_configuration().set("headrace.print.max-lines-per-second", 2)
    env.from_collection(range(5)).print()
    env.execute()
    assert capsys.readouterr().out == ("0\n1\n... 3 lines not shown (headrace.print.max-lines-per-second = 2)\n")


# --- a job that is refused ------------------------------------------------------------------------------------------


def test_what_rest_refuses_does_not_run(monkeypatch):  # SPEC R10.1
    started = []
    monkeypatch.setattr(SparkJob, "start", started.append)
    monkeypatch.setattr(StreamExecutionEnvironment, "_session", lambda env: None)
    monkeypatch.setattr(server, "_url", None)
    monkeypatch.setattr(server, "_jobs", server.Jobs())
    env = StreamExecutionEnvironment.get_execution_environment(Configuration({"rest.address": "0.0.0.0"}))
    env.from_elements(1).print()
    with pytest.raises(ConfigError, match=r"rest\.address is 0\.0\.0\.0.*headrace\.rest\.token"):
        env.execute_async("open to others")
    assert started == []
    assert server._jobs.all() == []
