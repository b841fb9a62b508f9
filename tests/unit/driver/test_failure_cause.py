"""Out of many reports one cause: the user's own error before ours, ours before a lost worker, victims last."""

from types import SimpleNamespace

import pytest

from headrace.control.messages import Failed
from headrace.driver import spark as spark_internals
from headrace.driver.failure_cause import choose_cause
from headrace.errors import JobCancelled, JobFailed, NotEnoughSlots, UserCodeError, WorkerLost
from headrace.worker.failures import OperatorFailure, describe

USER = Failed("prog.py:3: ValueError: x", "trace", kind="user")
RUNTIME = Failed("a bug of ours", "trace", kind="runtime")
LOST = Failed("the worker of Map (1/2) died", "", kind="lost")
VICTIM = Failed("Map (2/2): the input broke off before its end", "trace", kind="victim")

TASK_FAILED = (
    "An error occurred while calling o171.collectToPython.\n: org.apache.spark.SparkException: Job aborted due to stage "
    "failure: Task 1 in stage 7.0 failed 1 times, most recent failure: Lost task 1.0 in stage 7.0 (TID 1) (10.0.0.1 "
    "executor 0): org.apache.spark.SparkException: Python worker exited unexpectedly (crashed): \n\n\tat org.apache.x"
)
EXECUTOR_LOST = (
    ": org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage 3.0 failed 1 times, most recent "
    "failure: Lost task 0.0 in stage 3.0 (TID 1) (127.0.0.2 executor 1): ExecutorLostFailure (executor 1 exited caused by "
    "one of the running tasks) Reason: Command exited with code 137\nDriver stacktrace:"
)
CANCELLED = (
    ": org.apache.spark.SparkException: [SPARK_JOB_CANCELLED] Job 2 cancelled as part of group x SQLSTATE: XXKDA"
)
PYTHON = (
    ": org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage 1.0 failed 1 times, most recent "
    "failure: Lost task 0.0 in stage 1.0 (TID 1) (h executor driver): org.apache.spark.api.python.PythonException: "
    "Traceback (most recent call last):\n  File x, line 3\nModuleNotFoundError: No module named 'headrace'\n\n\tat org.x"
)
NO_SLOTS = (
    ": org.apache.spark.SparkException: [CONCURRENT_SCHEDULER_INSUFFICIENT_SLOT] Cannot run the pipelined stage group: it "
    "needs 6 concurrent task slots to run all its stages together, but only 4 are currently free. The stages"
)


class Tracker:
    def getJobIdsForGroup(self, group):  # noqa: N802 - Spark's name
        return [5]

    def getJobInfo(self, job):  # noqa: N802
        return SimpleNamespace(stageIds=[7, 6])


def session(stopped=False):
    scala = SimpleNamespace(isStopped=lambda: stopped)
    java = SimpleNamespace(sc=lambda: scala)
    return SimpleNamespace(sparkContext=SimpleNamespace(_jsc=java, statusTracker=Tracker))


PLAN = SimpleNamespace(name="job", task_name=lambda level, index: f"task {level}/{index}")


def cause(failures=(), error=None, ended_by_us=False, stopped=False):
    error = RuntimeError(error) if isinstance(error, str) else error
    return choose_cause(PLAN, session(stopped), "group", failures, error, ended_by_us)


@pytest.mark.parametrize(
    ("failures", "error", "kind", "text"),
    [
        ([VICTIM, LOST, RUNTIME, USER], EXECUTOR_LOST, UserCodeError, "prog.py:3: ValueError: x"),
        ([VICTIM, LOST, RUNTIME], TASK_FAILED, JobFailed, "a bug of ours"),
        ([VICTIM, LOST], TASK_FAILED, WorkerLost, "the worker of Map (1/2) died"),
        ([VICTIM, LOST], EXECUTOR_LOST, WorkerLost, "an executor died: Job aborted due to stage failure: Task 0 in"),
        ([VICTIM], CANCELLED, WorkerLost, "the input broke off"),
        ([], TASK_FAILED, WorkerLost, "Spark ended the job because of task 1/1: Job aborted"),
        ([], PYTHON, WorkerLost, "ModuleNotFoundError: No module named 'headrace'"),
        ([], "something new", WorkerLost, "Spark ended the job: something new"),
        ([], None, WorkerLost, "no reason given"),
    ],
)
def test_the_best_cause_wins(failures, error, kind, text):
    chosen = cause(failures, error, ended_by_us=error == CANCELLED)
    assert type(chosen) is kind
    assert text in str(chosen)
    assert "\tat " not in str(chosen)


def test_the_first_of_equal_causes_wins():
    assert "first" in str(cause([Failed("first", "", kind="lost"), Failed("second", "", kind="lost")]))


def test_a_cancel_in_spark_is_told_from_our_own():
    assert type(cause([LOST], CANCELLED)) is JobCancelled
    assert type(cause([LOST], CANCELLED, ended_by_us=True)) is WorkerLost


def test_a_stopped_session_explains_everything_but_the_users_error():
    assert "session was stopped" in str(cause([LOST, VICTIM], TASK_FAILED, stopped=True))
    assert type(cause([LOST, USER], TASK_FAILED, stopped=True)) is UserCodeError


def test_our_own_errors_pass_through():
    lacking = NotEnoughSlots("few")
    assert cause([], lacking) is lacking


def test_the_trace_is_kept_as_a_note():
    assert cause([USER]).__notes__ == ["trace"]


def test_what_sparks_errors_say():
    assert spark_internals.lacked_slots(RuntimeError(NO_SLOTS)) == 4
    assert spark_internals.lacked_slots(RuntimeError(CANCELLED)) is None
    assert spark_internals.was_cancelled(RuntimeError(CANCELLED))
    assert spark_internals.executor_lost(RuntimeError(EXECUTOR_LOST))
    assert spark_internals.failed_task(session(), "g", RuntimeError("Task 0 in stage 99.0 failed")) is None


# --- describe: from an exception in a worker to a report --------------------------------------------------------------


def raised(function, *args):
    try:
        function(*args)
    except BaseException as error:
        return error
    raise AssertionError("nothing was raised")


def test_an_error_of_a_user_function_is_the_users():
    failure = describe(OperatorFailure("op", "prog.py:9", raised(int, "x"), key=4, record="x"), "task")
    assert failure.kind == "user"
    assert failure.message.splitlines()[1] == "  in operator 'op', key 4, record 'x', defined at prog.py:9"


def test_an_error_that_passed_through_user_code_leads_with_its_line():
    failure = describe(raised(exec, compile("1/0", "/home/u/prog.py", "exec")), "Map (1/1)")
    assert failure.kind == "user"
    assert failure.message.startswith("[HR-5001] /home/u/prog.py:1: ZeroDivisionError")


def test_a_lost_input_makes_a_victim():
    assert describe(WorkerLost("the input broke off"), "Map (1/1)").kind == "victim"


def test_an_error_of_ours_is_the_runtimes():
    failure = describe(ValueError("oops"), "Map (1/1)")  # no frame at all
    assert (failure.kind, failure.message) == ("runtime", "[HR-6001] Map (1/1) failed: ValueError: oops")


def test_a_record_whose_repr_fails_is_no_obstacle():
    class Odd:
        def __repr__(self):
            raise TypeError("no repr")

    failure = describe(OperatorFailure("op", "prog.py:9", ValueError("x"), record=Odd()), "task")
    assert "record <Odd, whose repr fails: no repr>" in failure.message


def test_a_line_in_a_shipped_module_is_named_as_beside_the_script():
    code = compile("1/0", "/tmp/spark-1/headrace-modules-0a1b2c.zip/pkg/shapes.py", "exec")
    assert describe(raised(exec, code), "t").message.startswith("[HR-5001] pkg/shapes.py:1: ")
