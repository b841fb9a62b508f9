"""What fails is reported once, with the user's line first; and the job starts again if it may."""

import inspect
import os
import signal
import sys
import threading
import time

import pytest
from spark_kit import wait_until

from headrace import (
    FilterFunction,
    KeyedProcessFunction,
    MapFunction,
    OutputTag,
    RestartStrategies,
    SinkFunction,
    SourceFunction,
)
from headrace.control.messages import Running
from headrace.driver.spark_cluster import SparkCluster
from headrace.errors import JobCancelled, JobFailed, UserCodeError, WorkerLost
from headrace.job.status import JobStatus

HERE = __file__


def line_of(function, text):
    """file:line of the line in a function that contains a text."""
    lines, start = inspect.getsourcelines(function)
    [offset] = [i for i, line in enumerate(lines) if text in line]
    return f"{HERE}:{start + offset}"


class Endless(SourceFunction):
    """Emits numbers slowly until it is cancelled."""

    def __init__(self, pause=0.01, limit=None):
        self.pause, self.limit, self.over = pause, limit, False

    def run(self, ctx):
        n = 0
        while not self.over and n != self.limit:
            ctx.collect(n)
            n += 1
            time.sleep(self.pause)

    def cancel(self):
        self.over = True


def failure_of(env, name="job"):
    """The error of a job that fails."""
    with pytest.raises(JobFailed) as caught:
        env.execute(name)
    return caught.value


# --- user code --------------------------------------------------------------------------------------------------------


def bad_map(x):
    return 1 // (x - 3)


def test_an_exception_leads_with_the_users_line(make_env, workers):
    env = make_env(2)
    env.from_collection([1, 2, 3, 4]).rebalance().map(bad_map).name("divide").print()
    error = failure_of(env, "bad one")
    where = line_of(bad_map, "1 // (x - 3)")
    assert str(error).startswith(
        f"[HR-6001] job 'bad one' failed: [HR-5001] {where}: ZeroDivisionError: integer division or modulo by zero"
    )
    assert "operator 'divide', record 3, defined at " in str(error)
    assert "org.apache.spark" not in str(error)
    assert isinstance(error.__cause__, UserCodeError)
    assert any("return 1 // (x - 3)" in note for note in error.__cause__.__notes__)  # the whole trace is there too


class FailsForKey(KeyedProcessFunction):
    def process_element(self, value, ctx):
        if value == 42:
            raise ValueError("not this one")
        yield value


def test_an_exception_in_a_keyed_function_names_the_key(make_env):
    env = make_env(2)
    env.from_collection([1, 42, 3]).key_by(lambda x: x % 10).process(FailsForKey()).name("picky").print()
    error = failure_of(env)
    assert f"failed: [HR-5001] {line_of(FailsForKey, 'raise ValueError')}: ValueError: not this one" in str(error)
    assert "operator 'picky', key 2, record 42" in str(error)


class BadOpen(MapFunction):
    def open(self, runtime_context):
        raise OSError("no such database")

    def map(self, value):
        return value


class BadClose(MapFunction):
    def map(self, value):
        return value

    def close(self):
        raise OSError("cannot close")


class BadTimer(KeyedProcessFunction):
    def process_element(self, value, ctx):
        ctx.timer_service().register_processing_time_timer(ctx.timer_service().current_processing_time() + 50)

    def on_timer(self, timestamp, ctx):
        raise LookupError("timer")


class BadSource(SourceFunction):
    def run(self, ctx):
        ctx.collect(1)
        raise ConnectionError("broker gone")

    def cancel(self):
        pass


class BadSink(SinkFunction):
    def invoke(self, value, context):
        raise OSError("disk full")


class BadFilter(FilterFunction):
    def filter(self, value):
        raise KeyError("missing")


def bad_key(x):
    raise TypeError("no key")


def leaves(x):
    sys.exit(3)


def bad_partitioner(key, n):
    return n


@pytest.mark.parametrize(
    ("build", "expected"),
    [
        (lambda s: s.map(BadOpen()).print(), ("BadOpen", "raise OSError", "OSError: no such database")),
        (lambda s: s.map(BadClose()).print(), ("BadClose", "raise OSError", "OSError: cannot close")),
        (lambda s: s.key_by(lambda x: x).process(BadTimer()).print(), ("BadTimer", "raise Look", "LookupError: timer")),
        (lambda s: s.add_sink(BadSink()), ("BadSink", "raise OSError", "OSError: disk full")),
        (lambda s: s.filter(BadFilter()).print(), ("BadFilter", "raise KeyError", "KeyError: 'missing'")),
        (lambda s: s.key_by(bad_key).map(lambda x: x).print(), ("bad_key", "raise TypeError", "TypeError: no key")),
        (lambda s: s.map(leaves).print(), ("leaves", "sys.exit", "SystemExit: 3")),
    ],
    ids=["open", "close", "timer", "sink", "filter", "key", "exit"],
)
def test_every_place_of_user_code(make_env, workers, build, expected):
    env = make_env()
    name, text, what = expected
    build(env.add_source(Endless(limit=20 if name == "BadClose" else None)).rebalance())
    error = failure_of(env)
    assert f"failed: [HR-5001] {line_of(globals()[name], text)}: {what}" in str(error)


def test_an_exception_in_a_source(make_env, workers):
    env = make_env()
    env.add_source(BadSource(), "broker").print()
    error = failure_of(env)
    assert f"failed: [HR-5001] {line_of(BadSource, 'raise Conn')}: ConnectionError: broker gone" in str(error)
    assert "operator 'broker'" in str(error)


def test_a_partitioner_out_of_range(make_env):
    env = make_env(2)
    env.from_collection([5]).partition_custom(bad_partitioner, lambda x: x).map(lambda x: x).print()
    assert "partition_custom() chose subtask 2 for key 5: it must be an integer from 0 to 1" in str(failure_of(env))


def test_a_wrong_type_names_the_operator_and_the_value(make_env):
    env = make_env(2)
    typed = env.from_collection([1, 2]).map(lambda x: ("word", "no number"), "w string, n bigint").name("typed")
    typed.rebalance().map(lambda x: x).print()
    text = str(failure_of(env))
    assert "the function returned a wrong type" in text
    assert "operator 'typed'" in text
    assert "no number" in text
    assert HERE in text


def test_a_record_that_cannot_be_pickled(make_env):
    env = make_env(2)
    env.from_collection([1]).map(lambda x: threading.Lock()).name("locks").rebalance().map(lambda x: x).print()
    text = str(failure_of(env))
    assert "a record cannot be sent to the next operator: a lock cannot be pickled" in text
    assert "operator 'locks'" in text


def test_many_failures_at_once_are_one_message(make_env, workers):
    """All four subtasks fail, the others are their victims: still one cause, and the user's."""
    env = make_env(4)
    env.from_sequence(1, 100).rebalance().map(bad_map).key_by(lambda x: x).map(lambda x: 1 // 0).print()
    text = str(failure_of(env))
    assert text.count("ZeroDivisionError") == 1
    assert "input broke off" not in text


class Hung(MapFunction):
    def open(self, runtime_context):
        self.first = runtime_context.get_index_of_this_subtask() == 0

    def map(self, value):
        if self.first:
            time.sleep(600)
        raise ValueError("the other one")

    def close(self):
        time.sleep(600)


def test_a_subtask_that_hangs_does_not_hold_up_the_failure_of_another(make_env, workers):
    env = make_env(2)
    env.from_sequence(1, 100).rebalance().map(Hung()).print()
    with pytest.raises(JobFailed, match="the other one"):
        env.execute_async().wait(120)


SIDE = OutputTag("side")


def test_an_error_in_an_unused_branch_fails_the_job_too(make_env):
    env = make_env()
    numbers = env.from_collection([1, 2])
    numbers.map(lambda x: x).print()
    numbers.map(lambda x: {}["nothing"]).name("unused")
    assert "KeyError: 'nothing'" in str(failure_of(env))


# --- processes that die -----------------------------------------------------------------------------------------------


def start_endless(env, restart=None):
    if restart is not None:
        env.set_restart_strategy(restart)
    env.add_source(Endless()).key_by(lambda x: x).map(lambda x: x).name("victim").add_sink(lambda x: None)
    client = env.execute_async("killed")
    assert client.job.wait_running(120)
    return client


@pytest.mark.parametrize("level", [0, 1], ids=["source", "keyed"])
def test_a_killed_worker_fails_the_job(make_env, workers, level):
    client = start_endless(make_env(2, {"headrace.control.timeout": "600 s"}))  # it is not missed, its end is seen
    victim = client.job.workers()[level, 0]
    os.kill(victim.pid, signal.SIGKILL)
    with pytest.raises(JobFailed) as caught:
        client.wait(120)
    assert isinstance(caught.value.__cause__, WorkerLost)
    name = "victim -> Sink (1/2)" if level else "Custom Source (1/1)"
    assert f"the worker of {name} died (process {victim.pid} on " in str(caught.value)


def test_a_killed_worker_is_replaced(make_env, workers):
    client = start_endless(make_env(2), RestartStrategies.fixed_delay_restart(3, 100))
    for restarts in (1, 2):
        os.kill(client.job.workers()[1, 1].pid, signal.SIGKILL)
        wait_until(lambda n=restarts: client.job.restarts == n and client.job.wait_running(0), "the restart")
    assert client.get_job_status() is JobStatus.RUNNING
    assert len(client.job.failure_log) == 2
    assert all("the worker of victim -> Sink (2/2) died" in text for text in client.job.failure_log)
    assert len(workers.running(client.job)) == 3  # those of the last attempt, none of the others
    assert client.cancel() is JobStatus.CANCELED


def test_a_frozen_worker_is_found_by_the_driver(make_env, workers):
    """It keeps its connections, but it says nothing any more."""
    env = make_env(1, {"headrace.control.timeout": "2 s"})
    client = start_endless(env)
    pid = client.job.workers()[1, 0].pid
    os.kill(pid, signal.SIGSTOP)
    with pytest.raises(JobFailed, match=r"the worker of victim -> Sink \(1/1\) was not heard for 2 s \(process"):
        client.wait(120)


@pytest.fixture
def slow_driver(monkeypatch):
    """slow_driver(seconds): the control plane of the driver stands still when the first task runs, as on a paused machine."""

    def slow(seconds):
        hear, slept = SparkCluster._on_message, []

        def on_message(self, key, message):
            if isinstance(message, Running) and not slept:
                slept.append(time.sleep(seconds))
            hear(self, key, message)

        monkeypatch.setattr(SparkCluster, "_on_message", on_message)

    return slow


def test_a_driver_that_stands_still_hears_that_its_workers_have_finished(make_env, workers, slow_driver):
    slow_driver(5)
    assert sorted(make_env(2).from_sequence(1, 9).map(lambda x: -x).execute_and_collect()) == list(range(-9, 0))


def test_results_that_the_driver_did_not_hear_are_not_missing_in_silence(make_env, workers, slow_driver):
    """It stands still for longer than workers wait: all tasks end well, but what they sent is lost."""
    slow_driver(7)
    with pytest.raises(JobFailed, match=r"did not hear all that it sent|was not heard for|died"):
        list(make_env(2, {"headrace.control.timeout": "3 s"}).from_sequence(1, 9).execute_and_collect())


def test_a_driver_that_stands_still_hears_why_a_function_failed(make_env, workers, slow_driver):
    """The worker waits longer than it does for user code that hangs."""
    slow_driver(11)
    env = make_env()
    env.from_collection([1]).map(lambda x: {}["nothing"]).print()
    failure = failure_of(env)
    assert "KeyError: 'nothing'" in str(failure)
    assert isinstance(failure.__cause__, UserCodeError)


# --- restart strategies -----------------------------------------------------------------------------------------------


class FailsAtFirst(MapFunction):
    def __init__(self, failures):
        self.failures = failures

    def open(self, runtime_context):
        self.attempt = runtime_context.get_attempt_number()

    def map(self, value):
        if self.attempt < self.failures:
            raise RuntimeError(f"attempt {self.attempt}")
        return (self.attempt, value)


STRATEGIES = {
    "fixed": RestartStrategies.fixed_delay_restart(2, 50),
    "exponential": RestartStrategies.exponential_delay_restart(50, 100, 1.5, 10_000, 0.0),
    "rate": RestartStrategies.failure_rate_restart(3, 60_000, 50),
}


@pytest.mark.parametrize("name", STRATEGIES)
def test_a_job_that_fails_twice_and_then_works(make_env, workers, caplog, name):
    env = make_env(2)
    env.set_restart_strategy(STRATEGIES[name])
    rows = env.from_collection([1, 2, 3]).rebalance().map(FailsAtFirst(2)).execute_and_collect("again")
    assert sorted(set(rows)) == [(2, 1), (2, 2), (2, 3)]
    assert rows.job.restarts == 2
    shown = caplog.text
    assert shown.count("job 'again': attempt ") == 2
    assert "attempt 1 failed, restarting in 0.1 s: " in shown
    assert f"[HR-5001] {line_of(FailsAtFirst, 'raise Runtime')}: RuntimeError: attempt 0" in shown


def test_a_job_is_given_up_after_its_restarts(make_env, workers):
    env = make_env()
    env.set_restart_strategy(RestartStrategies.fixed_delay_restart(1, 10))
    env.from_collection([1]).map(FailsAtFirst(5)).print()
    error = failure_of(env, "hopeless")
    assert str(error).startswith("[HR-6001] job 'hopeless' failed after 1 restarts: ")
    assert "RuntimeError: attempt 1" in str(error)


def test_cancel_between_two_attempts(make_env, workers):
    env = make_env()
    env.set_restart_strategy(RestartStrategies.fixed_delay_restart(5, 60_000))
    env.from_collection([1]).map(FailsAtFirst(5)).print()
    client = env.execute_async()
    wait_until(lambda: client.get_job_status() is JobStatus.RESTARTING)
    assert client.cancel(5) is JobStatus.CANCELED
    with pytest.raises(JobCancelled):
        client.wait()


def test_a_late_worker_of_an_old_attempt_is_turned_away(make_env, workers):
    """Nothing of an old attempt may speak: the control plane refuses it (see test_control.py for the message)."""
    client = start_endless(make_env(), RestartStrategies.fixed_delay_restart(1, 10))
    os.kill(client.job.workers()[0, 0].pid, signal.SIGKILL)
    wait_until(lambda: client.job.restarts == 1 and client.job.wait_running(0), "the restart")
    assert {register.attempt for register in client.job.workers().values()} == {1}
    client.cancel()
