"""One Spark session for all tests of a process; tests that need another kind of session start a program of their own."""

import os
from pathlib import Path

import pytest
from spark_kit import Workers

from headrace import Configuration, StreamExecutionEnvironment
from headrace.driver.session import get_session
from headrace.rest import server
from kafka_broker import Broker, NoBroker
from short_jvm import set_options

HERE = Path(__file__).parent

set_options()


def pytest_collection_modifyitems(items):
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.spark)
    # Groups are not divided between processes: first the groups, then single tests until all processes have finished.
    items.sort(key=lambda item: item.get_closest_marker("xdist_group") is None)


@pytest.fixture(scope="session")
def spark():
    options = {
        "headrace.spark.master": "local[64]",
        "spark.driver.memory": "1g",
        "spark.python.daemon.module": "pytest_daemon",
    }
    os.environ["PYTHONPATH"] = os.pathsep.join([str(HERE.parent), *filter(None, [os.environ.get("PYTHONPATH")])])
    session = get_session(None, Configuration(options))
    yield session
    session.stop()


@pytest.fixture
def make_env(spark):
    """make_env(parallelism, key=value...) -> an environment on the shared session."""

    def make(parallelism=1, options=None):
        env = StreamExecutionEnvironment.get_execution_environment(Configuration(options or {}), spark)
        return env.set_parallelism(parallelism)

    yield make
    cancel_all()


def cancel_all():
    """Of a test that failed: the next ones must not find its workers. The jobs that still ran."""
    running = [job for job in server._jobs.all() if not job.status.is_terminal]
    for job in running:
        job.cancel()
    for job in running:
        job.wait(120)
    return [job.plan.name for job in running]


@pytest.fixture
def workers(spark):
    """The Python processes of the session; every test that asks for it ends with a look for orphans."""
    found = Workers()
    yield found
    left = cancel_all()
    found.assert_gone()
    assert left == []


@pytest.fixture(scope="session")
def kafka_broker(tmp_path_factory):
    """One Kafka broker for the tests of xdist_group("kafka"); they are skipped where it cannot be had."""
    try:
        broker = Broker(tmp_path_factory.mktemp("kafka"))
    except NoBroker as reason:
        pytest.skip(str(reason))
    yield broker.start()
    broker.kill()
