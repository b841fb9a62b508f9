"""Sessions and programs: what a job needs of Spark, and that every lack is one clear message."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pyspark
import pytest
from spark_kit import ORPHAN_SECONDS, PROGRAMS, run_program, wait_until

from headrace import Configuration, SourceFunction, StreamExecutionEnvironment
from headrace.driver.session import REQUIRED, get_session
from headrace.driver.spark import check_version
from headrace.errors import ConfigError, GraphError, InvalidArgument, JobFailed, NotEnoughSlots
from headrace.job.status import JobStatus

HEADRACE = Path(sys.executable).with_name("headrace")


def test_a_process_that_ends_waits_for_the_threads_of_its_jobs(make_env, monkeypatch):
    """They have connections to the JVM, and one that Python stops while it logs the end of its own holds the log's lock."""
    ending = []
    for module in ("job", "spark_cluster"):
        monkeypatch.setattr(f"headrace.driver.{module}.ends_soon", ending.append)
    assert list(make_env().from_collection([1]).execute_and_collect()) == [1]
    names = sorted(thread.name for thread in ending)
    assert [name.partition("-")[0] for name in names] == ["headrace", "headrace"]
    assert "headrace-spark-action" in names
    for thread in ending:
        thread.join(30)
        assert not thread.is_alive()


# --- errors before anything runs --------------------------------------------------------------------------------------


def test_a_connect_session_is_refused():
    connect_session = type("SparkSession", (), {"__module__": "pyspark.sql.connect.session"})()
    env = StreamExecutionEnvironment.get_execution_environment(connect_session)
    with pytest.raises(ConfigError, match=r"this is a Spark Connect session.*spark\.api\.mode=classic"):
        env.from_collection([1]).execute_and_collect()


def test_spark_remote_is_refused(monkeypatch):
    monkeypatch.setenv("SPARK_REMOTE", "sc://localhost")
    monkeypatch.setattr("pyspark.sql.SparkSession.getActiveSession", lambda: None)
    with pytest.raises(ConfigError, match="unset SPARK_REMOTE"):
        get_session(None, Configuration())


def test_another_pyspark_is_refused(monkeypatch):
    monkeypatch.setattr(pyspark, "__version__", "4.2.1")
    with pytest.raises(
        ConfigError, match=r"Headrace runs on Spark 4.3, but pyspark is 4.2.1: .*Install pyspark==4.3.\*"
    ):
        check_version()


def test_another_spark_is_refused():
    class Session:
        version = "4.4.0"

    with pytest.raises(ConfigError, match=r"but Spark is 4\.4\.0"):
        check_version(Session())


def test_too_few_slots(make_env):
    env = make_env(40)
    env.from_sequence(1, 10).rebalance().map(lambda x: x).print()
    with pytest.raises(NotEnoughSlots) as caught:
        env.execute("wide")
    text = str(caught.value)
    assert text.startswith(
        "[HR-1105] the job needs 80 task slots, but Spark has 64 on local[64]: use master local[80] or more"
    )
    assert "level 1 (40 slots)" in text  # and why it needs them


def test_reserved_slots_count(make_env):
    env = make_env(30, {"headrace.spark.reserved-slots": 6})
    env.from_sequence(1, 10).rebalance().map(lambda x: x).print()
    with pytest.raises(NotEnoughSlots, match=r"needs 60 task slots and 6 reserved \(headrace.spark.reserved-slots\)"):
        env.execute()


class Waits(SourceFunction):
    def __init__(self):
        self.over = False

    def run(self, ctx):
        while not self.over:
            time.sleep(0.05)

    def cancel(self):
        self.over = True


def wide_job(make_env, options=None):
    env = make_env(35, options)
    env.add_source(Waits()).rebalance().map(lambda x: x).print()
    return env.execute_async("wide")


def test_slots_that_another_job_holds(make_env, workers):
    first = wide_job(make_env)
    assert first.job.wait_running(120)
    second = wide_job(make_env, {"headrace.slots.timeout": "1 s"})
    with pytest.raises(NotEnoughSlots, match=r"but Spark has 28 free \(36 are used by other jobs of the session\)"):
        second.wait(120)
    third = wide_job(make_env)  # waits for its slots until the first job is gone
    assert not third.job.wait_running(1)
    assert third.get_job_status() is JobStatus.CREATED
    first.cancel()
    assert third.job.wait_running(120)
    third.cancel()


def test_a_closure_that_cannot_be_pickled(make_env):
    lock = threading.Lock()

    def locked(x):
        with lock:
            return x

    env = make_env()
    env.from_collection([1]).map(locked).name("locked").print()
    with pytest.raises(GraphError) as caught:
        env.execute()
    text = str(caught.value)
    assert text.startswith(f"[HR-1221] the function of operator 'locked', defined at {__file__}:")
    assert "cannot be sent to the workers" in text
    assert "make that in open() instead" in text


def test_an_unknown_column(make_env):
    words = make_env().from_collection([("a", 1)], type_info="word string, n bigint")
    with pytest.raises(
        GraphError, match=rf"key_by\(\) at {__file__}:\d+: unknown column 'wrod'; the stream has word, n"
    ):
        words.key_by("wrod")


def test_a_duplicate_uid(make_env):
    env = make_env()
    env.from_collection([1]).map(lambda x: x).uid("same").map(lambda x: x).uid("same").print()
    with pytest.raises(GraphError, match="uid 'same' is used twice: by 'Map' "):
        env.execute()


def test_more_subtasks_than_key_groups(make_env):
    env = make_env(4)
    env.set_max_parallelism(2)
    env.from_sequence(1, 4).key_by(lambda x: x).map(lambda x: x).print()
    with pytest.raises(GraphError, match="max parallelism") as caught:
        env.execute()
    assert __file__ in str(caught.value)


def greeting_added(name):
    import added_greeting

    return f"{added_greeting.WORD} {name}"


def test_an_added_file_is_of_its_environment(make_env, tmp_path):
    """Neither another file of the same name nor a broken one has an effect on other jobs of the session."""

    def job(added):
        env = make_env()
        if added is not None:
            (tmp_path / "added_greeting.py").write_text(added)
            env.add_python_file(str(tmp_path / "added_greeting.py"))
        return list(env.from_collection(["Ann"]).rebalance().map(greeting_added).execute_and_collect())

    assert job("WORD = 'hello'") == ["hello Ann"]
    assert job("WORD = 'good day'") == ["good day Ann"]
    with pytest.raises(JobFailed, match="SyntaxError"):
        job("WORD = (")
    with pytest.raises(InvalidArgument, match="there is no such file"):
        make_env().add_python_file(str(tmp_path / "none.py"))
    with pytest.raises(JobFailed, match="No module named 'added_greeting'"):
        job(None)
    assert job("WORD = 'good night'") == ["good night Ann"]


# --- sessions of other kinds, each in a process of its own ------------------------------------------------------------


def test_options_of_the_user_for_the_jvm_win_over_ours():
    found = run_program("jvm_options.py")
    levels = [option for option in found["options"] if option.startswith("-XX:TieredStopAtLevel=")]
    assert levels[-2:] == ["-XX:TieredStopAtLevel=1", "-XX:TieredStopAtLevel=3"]  # a JVM takes the last one
    assert found["properties"]["mine"] == "extra"
    assert found["properties"]["other"] == "default"
    assert found["properties"]["log4j2.configurationFile"].endswith("log4j2-quiet.properties")
    assert found["executors"] == "-XX:TieredStopAtLevel=1"


def test_options_of_spark_defaults_for_the_jvm_stay(tmp_path):
    (tmp_path / "spark-defaults.conf").write_text(
        "# of the administrator\n"
        "spark.driver.extraJavaOptions -Dmine=file\n"
        "spark.driver.defaultJavaOptions=-Dother=default\n"
        "spark.executor.defaultJavaOptions    -Dmine=admin \\\n    -Dother=admin  \n"
    )
    found = run_program("jvm_options.py", "file", env={"SPARK_CONF_DIR": str(tmp_path)})
    assert found["properties"]["mine"] == "file"
    assert found["properties"]["other"] == "default"
    assert found["executors"] == "-XX:TieredStopAtLevel=1 -Dmine=admin -Dother=admin"
    assert "-XX:TieredStopAtLevel=1" in found["options"]
    assert found["properties"]["log4j2.configurationFile"].endswith("log4j2-quiet.properties")


def test_a_session_of_the_users_own():
    found = run_program("users_session.py")
    for key, value in REQUIRED.items():
        if key in ("spark.python.udf.pipelined.enabled", "spark.speculation", "spark.task.maxFailures"):
            assert f"  {key} = {value}   (now {'true' if 'speculation' in key else 'unset'})" in found["missing"]
        else:
            assert key not in found["missing"]  # right by default
    assert "headrace.spark_conf()" in found["missing"]
    assert found["slots"].startswith(
        "[HR-1105] the job needs 4 task slots, but Spark has 2 on local[2]: use master local[4]"
    )
    assert [[x for _, x in rows] for rows in found["results"]] == [list(range(1, 11))] * 2
    # A worker of our daemon reads Spark's stream itself, also when it runs a second task; another one reads batches.
    first, second = found["streams"]
    assert first[1:] == [["headrace-reader"], 300_000]
    assert second == first
    assert found["batches"][1:] == [["headrace-reader", "pyspark-pipelined-reader"], 300_000]
    assert found["users"] == 5
    assert found["silent"] == "here"
    assert found["cancelled"] == "CANCELED"
    assert "the Spark session was stopped while the job ran" in found["stopped"]
    assert found["left"] == []


def test_records_keys_and_state_of_classes_of_the_programs_own_script():
    found = run_program("own_classes.py")
    assert [one[2] for one in found if one[:2] == ["sum", "red"]] in ([2, 5], [3, 5])  # in the order of their arrival
    assert [one[2] for one in found if one[:2] == ["sum", "blue"]] in ([1, 5], [4, 5])
    assert max(one for one in found if one[:2] == ["largest", "red"]) == ["largest", "red", 3]
    assert max(one for one in found if one[:2] == ["largest", "blue"]) == ["largest", "blue", 4]
    assert len(found) == 8


def test_run_finds_modules_beside_the_program_and_only_says_where_the_dashboard_is(tmp_path):
    program = PROGRAMS / "beside" / "main.py"
    env = {key: value for key, value in os.environ.items() if key != "JDK_JAVA_OPTIONS"}  # Java tells that it is set
    done = subprocess.run(
        [HEADRACE, "run", program], capture_output=True, text=True, timeout=240, cwd=tmp_path, check=False, env=env
    )
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == ["*hello [a]*", "*hello [b]*"]
    (said,) = [
        line for line in done.stderr.splitlines() if "incubator modules" not in line
    ]  # Java's own, before any log
    assert re.fullmatch(r"headrace: job 'beside' \(\w{8}\) starts; dashboard: http://127\.0\.0\.1:\d+/ui/", said)


def alive(processes):
    return [p for p in processes if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]


def test_a_driver_that_is_interrupted_and_one_that_ends_leave_nothing_behind():
    """Of a driver that is killed see test_resume.py."""
    process = subprocess.Popen(
        [sys.executable, PROGRAMS / "idle_driver.py"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    cancelled = [psutil.Process(pid) for pid in json.loads(process.stdout.readline())]
    os.kill(process.pid, signal.SIGINT)
    assert process.stdout.readline() == "CANCELED\n"
    wait_until(lambda: not alive(cancelled), "the end of the workers", ORPHAN_SECONDS)
    left = [
        psutil.Process(pid) for pid in json.loads(process.stdout.readline())
    ]  # of a second job, below which the program ends
    family = psutil.Process(process.pid).children(recursive=True)
    process.stdin.close()
    assert process.wait(timeout=120) == 0
    wait_until(lambda: not alive([*left, *family]), "the end of all processes", ORPHAN_SECONDS)
