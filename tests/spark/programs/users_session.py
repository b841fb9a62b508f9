"""Sessions that the user made: without the settings, with too few slots, and with no more than what is required."""

import json
import os
import sys
import threading
import time

import psutil
from pyspark.sql import SparkSession

from headrace import MapFunction, SourceFunction, StreamExecutionEnvironment
from headrace.driver.session import REQUIRED, spark_conf
from headrace.errors import ConfigError, NotEnoughSlots


class Silent(SourceFunction):
    def __init__(self):
        self.over = False

    def run(self, ctx):
        ctx.collect("here")
        while not self.over:
            time.sleep(0.05)

    def cancel(self):
        self.over = True


def session(master, settings):
    builder = SparkSession.builder.master(master).config("spark.ui.enabled", "false").config("spark.log.level", "OFF")
    for key, value in settings.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


class Noting(MapFunction):
    """The worker, and the threads that read what Spark sends, when the first of many records comes."""

    def map(self, value):
        if value == 1:
            self.readers = sorted(t.name for t in threading.enumerate() if "reader" in t.name)
        return os.getpid(), self.readers, value


def two_levels(spark, numbers=300_000):
    """What a job of two tasks gives for its last record."""
    env = StreamExecutionEnvironment.get_execution_environment(spark).set_parallelism(1)
    noted = env.from_sequence(1, numbers).key_by(lambda x: 0).map(Noting())
    (last,) = noted.filter(lambda row: row[2] == numbers).execute_and_collect()
    return last


def unchanged(batches):
    """A function of the user's, for mapInArrow."""
    yield from batches


def python_below(process):
    """Python processes that Spark started."""
    return [p for p in process.children(recursive=True) if "python" in p.name() or p.name().startswith("hr-")]


def main():
    os.environ["PYSPARK_PYTHON"] = sys.executable
    found = {}

    spark = session("local[2]", {"spark.speculation": "true"})
    env = StreamExecutionEnvironment.get_execution_environment(spark)
    try:
        list(env.from_collection([1]).execute_and_collect())
    except ConfigError as error:
        found["missing"] = str(error)
    spark.stop()

    own = {"spark.python.worker.reuse": "true", "spark.sql.execution.arrow.compression.codec": "zstd"}
    spark = session("local[2]", spark_conf() | own)
    found["streams"] = [two_levels(spark), two_levels(spark)]
    found["users"] = spark.range(5).mapInArrow(unchanged, "id long").count()
    env = StreamExecutionEnvironment.get_execution_environment(spark).set_parallelism(2)
    try:
        list(env.from_sequence(1, 10).rebalance().map(lambda x: x).execute_and_collect())
    except NotEnoughSlots as error:
        found["slots"] = str(error)
    spark.stop()

    # Workers are kept and used again in such a session: the second job gets those of the first.
    spark = session("local[8]", REQUIRED | {"spark.python.daemon.module": "pyspark.daemon"})
    found["batches"] = two_levels(spark)
    found["results"] = []
    for _ in range(2):
        env = StreamExecutionEnvironment.get_execution_environment(spark).set_parallelism(2)
        rows = env.from_sequence(1, 10).key_by(lambda x: x).map(lambda x: (os.getpid(), x)).execute_and_collect()
        found["results"].append(sorted(rows, key=lambda r: r[1]))
    env = StreamExecutionEnvironment.get_execution_environment(spark)
    with env.add_source(Silent()).key_by(lambda x: x).map(lambda x: x).execute_and_collect() as rows:
        found["silent"] = next(rows)
    found["cancelled"] = rows.job.status.value
    # The session is stopped below a running job: it fails at once and says why.
    env.add_source(Silent()).print()
    client = env.execute_async()
    client.job.wait_running(120)
    spark.stop()
    client.job.wait(120)
    found["stopped"] = str(client.job.error)
    deadline = time.monotonic() + 60
    while (left := python_below(psutil.Process())) and time.monotonic() < deadline:
        time.sleep(0.1)
    found["left"] = [p.cmdline() for p in left]
    print(json.dumps(found))


main()
