"""The only module that uses Spark's internals: the pipelined shuffle between levels, slots, running tasks.

Written for Spark 4.3. Facts it stands on (all covered by tests that run Spark):
- `ShuffleExchangeExec(pipelined=true)` makes all stages run at once; there is no public switch for it.
- The feeder of mapInArrow asks for row k+1 before it hands over row k, so behind every row a filler is made in the JVM:
  the filler is what waits.
- A reader finds its data by the task's partition id: a stage may read pipelined input only one-to-one, hence levels.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pyspark
from pyspark.sql import DataFrame, SparkSession

from headgate.errors import ConfigError, NotEnoughSlots

__all__ = ["SPARK_VERSION", "active_tasks", "build", "check_version", "slots", "wait_for_slots"]

SPARK_VERSION = "4.3"
_ROW = "dst int, payload binary"
_FILLER = "stack(2, dst, payload, -1, CAST(NULL AS BINARY)) AS (dst, payload)"

LevelFunction = Callable[[Iterator[Any]], Iterator[Any]]


def check_version(spark: SparkSession | None = None) -> None:
    """Refuse another Spark before anything is started."""
    versions = {"pyspark": pyspark.__version__} | ({"Spark": spark.version} if spark is not None else {})
    for name, version in versions.items():
        if not version.startswith(SPARK_VERSION + "."):
            raise ConfigError(
                f"Headgate runs on Spark {SPARK_VERSION}, but {name} is {version}: it uses the pipelined shuffle, which other "
                f"versions lack or have in another form. Install pyspark=={SPARK_VERSION}.*"
            )


def build(spark: SparkSession, widths: list[int], functions: list[LevelFunction]) -> DataFrame:
    """The plan of one attempt: a stage for every level, joined by pipelined shuffles. Every attempt needs a fresh one."""
    # A new thread has no active session in the JVM; building the exchange would find none and fail.
    spark._jvm.org.apache.spark.sql.classic.SparkSession.setActiveSession(spark._jsparkSession)  # type: ignore[union-attr]
    frame = spark.range(0, widths[0], 1, widths[0]).mapInArrow(functions[0], _ROW)
    for width, function in zip(widths[1:], functions[1:], strict=True):
        frame = _exchange(spark, frame, width).mapInArrow(function, _ROW)
    return frame


def _exchange(spark: SparkSession, rows: DataFrame, width: int) -> DataFrame:
    planned = rows.repartitionById(width, "dst")._jdf
    node = planned.queryExecution().executedPlan()
    while node.getClass().getSimpleName() != "ShuffleExchangeExec":
        node = node.children().head()
    names = [node.productElementName(i) for i in range(node.productArity())]
    if "pipelined" not in names:
        raise ConfigError(f"this build of Spark {spark.version} has no pipelined shuffle (fields: {', '.join(names)})")
    values = [True if name == "pipelined" else node.productElement(i) for i, name in enumerate(names)]
    pipelined = node.copy(*values)
    if not pipelined.pipelined():
        raise ConfigError(f"Spark {spark.version} did not accept the pipelined shuffle")
    jdf = spark._jsparkSession.internalCreateDataFrame(pipelined.execute(), planned.schema(), False)
    return DataFrame(jdf, spark).selectExpr(_FILLER)


def slots(spark: SparkSession) -> int:
    """Tasks that can run at the same time on the executors that are there now."""
    context: Any = spark.sparkContext._jsc.sc()
    return int(context.maxNumConcurrentTasks(context.resourceProfileManager().defaultResourceProfile()))


def wait_for_slots(spark: SparkSession, needed: int, reserved: int, timeout: float, explain: str) -> None:
    """Until the cluster has the slots; NotEnoughSlots says how many there are and what to set."""
    deadline = time.monotonic() + timeout
    while (have := slots(spark)) < needed + reserved:
        if _master(spark).startswith("local[") or time.monotonic() > deadline:
            raise NotEnoughSlots(_slots_message(spark, needed, reserved, have, explain))
        time.sleep(0.2)


def _slots_message(spark: SparkSession, needed: int, reserved: int, have: int, explain: str) -> str:
    total = needed + reserved
    master = _master(spark)
    if master.startswith("local"):
        mend = f"use master local[{total}] or more (slots are only permits, not cores), or lower the parallelism"
    else:
        mend = (
            f"give Spark more cores (executors x spark.executor.cores / spark.task.cpus must be at least {total}), "
            "set spark.task.cpus to a fraction such as 0.25, or lower the parallelism"
        )
    extra = f" and {reserved} reserved (headgate.spark.reserved-slots)" if reserved else ""
    return f"the job needs {needed} task slots{extra}, but Spark has {have} on {master}: {mend}\n{explain}"


def _master(spark: SparkSession) -> str:
    return spark.sparkContext.master or ""


def active_tasks(spark: SparkSession, group: str) -> int:
    """Tasks of a job group that still run."""
    tracker = spark.sparkContext.statusTracker()
    total = 0
    for job in tracker.getJobIdsForGroup(group):
        info = tracker.getJobInfo(job)
        for stage in info.stageIds if info else []:
            found = tracker.getStageInfo(stage)
            total += found.numActiveTasks if found else 0
    return total
