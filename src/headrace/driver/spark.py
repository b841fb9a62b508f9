"""The only module that uses Spark's internals: the pipelined shuffle between levels, slots, running tasks.

Written for Spark 4.3. Facts that it relies on (all covered by tests that run Spark):
- `ShuffleExchangeExec(pipelined=true)` makes all stages run at once; there is no public switch for it.
- The feeder of mapInArrow asks for row k+1 before it hands over row k, so behind every row a filler is made in the JVM:
  the filler is what waits.
- A reader finds its data by the task's partition id: a stage may read pipelined input only one-to-one, hence levels.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from typing import Any

import pyspark
from pyspark.sql import DataFrame, SparkSession

from headrace.errors import ConfigError, NotEnoughSlots

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
                "HR-1101",
                f"Headrace runs on Spark {SPARK_VERSION}, but {name} is {version}: it uses the pipelined shuffle, which other "
                f"versions lack or have in another form. Install pyspark=={SPARK_VERSION}.*",
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
        raise ConfigError(
            "HR-1101", f"this build of Spark {spark.version} has no pipelined shuffle (fields: {', '.join(names)})"
        )
    values = [True if name == "pipelined" else node.productElement(i) for i, name in enumerate(names)]
    pipelined = node.copy(*values)
    if not pipelined.pipelined():
        raise ConfigError("HR-1101", f"Spark {spark.version} did not accept the pipelined shuffle")
    jdf = spark._jsparkSession.internalCreateDataFrame(pipelined.execute(), planned.schema(), False)
    return DataFrame(jdf, spark).selectExpr(_FILLER)


def slots(spark: SparkSession) -> int:
    """Tasks that can run at the same time on the executors that are there now."""
    context: Any = spark.sparkContext._jsc.sc()
    return int(context.maxNumConcurrentTasks(context.resourceProfileManager().defaultResourceProfile()))


def wait_for_slots(
    spark: SparkSession, needed: int, reserved: int, timeout: float, explain: str, stop: Callable[[], bool]
) -> None:
    """Until the cluster has the slots, or `stop` says so; NotEnoughSlots says how many there are and what to set."""
    deadline = time.monotonic() + timeout
    while (have := slots(spark)) < needed + reserved and not stop():
        if is_local(spark) or time.monotonic() > deadline:
            raise NotEnoughSlots(_slots_message(spark, needed, reserved, have, explain))
        time.sleep(0.2)


def slots_error(spark: SparkSession, needed: int, reserved: int, free: int, explain: str) -> NotEnoughSlots:
    """For a session that has the slots, but not free: other jobs use them."""
    return NotEnoughSlots(_slots_message(spark, needed, reserved, free, explain, used=slots(spark) - free))


def _slots_message(spark: SparkSession, needed: int, reserved: int, have: int, explain: str, used: int = 0) -> str:
    total = needed + reserved
    if is_local(spark):
        more = total + used
        advice = f"use master local[{more}] or more (slots are only permits, not cores), or lower the parallelism"
    else:
        advice = (
            f"give Spark more cores (executors x spark.executor.cores / spark.task.cpus must be at least {total + used}), "
            "set spark.task.cpus to a fraction such as 0.25, or lower the parallelism"
        )
    extra = f" and {reserved} reserved (headrace.spark.reserved-slots)" if reserved else ""
    free = f" free ({used} are used by other jobs of the session)" if used > 0 else ""
    return (
        f"the job needs {needed} task slots{extra}, but Spark has {have}{free} on {_master(spark)}: {advice}\n{explain}"
    )


def _master(spark: SparkSession) -> str:
    return spark.sparkContext.master or ""


def is_local(spark: SparkSession) -> bool:
    """Return True if everything runs in the driver's own JVM: there are as many slots as there will ever be."""
    master = _master(spark)
    return master == "local" or master.startswith("local[")


def is_stopped(spark: SparkSession) -> bool:
    """Return True if stop() was called, or the JVM is gone."""
    try:
        context: Any = spark.sparkContext._jsc
        return context is None or bool(context.sc().isStopped())
    except Exception:
        return True


def cancel_group(spark: SparkSession, group: str) -> None:
    """Stop the jobs of a group, and those of it that are about to be submitted."""
    context: Any = spark.sparkContext._jsc.sc()
    context.cancelJobGroupAndFutureJobs(group)


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


def stages(spark: SparkSession, group: str) -> list[int]:
    """The stages of a job group; those of one job are its levels in order."""
    tracker = spark.sparkContext.statusTracker()
    return sorted({s for j in tracker.getJobIdsForGroup(group) if (i := tracker.getJobInfo(j)) for s in i.stageIds})


# --- what Spark's errors say ------------------------------------------------------------------------------------------
# They reach Python as one long text with the JVM's trace; the error class in brackets is what stays the same.


def lacked_slots(error: BaseException | None) -> int | None:
    """If Spark refused the job because too few slots were free: how many were."""
    text = str(error)
    if "[CONCURRENT_SCHEDULER_INSUFFICIENT_SLOT]" not in text:
        return None
    found = re.search(r"only (\d+) are currently free", text)
    return int(found[1]) if found else 0


def was_cancelled(error: BaseException | None) -> bool:
    """Return True if the job ended because it was cancelled in Spark."""
    return "[SPARK_JOB_CANCELLED]" in str(error)


def executor_lost(error: BaseException | None) -> bool:
    """Return True if the job ended because an executor died."""
    return "ExecutorLostFailure" in str(error)


def failed_task(spark: SparkSession, group: str, error: BaseException | None) -> tuple[int, int] | None:
    """(level, number) of the task that Spark blames, if it blames one."""
    found = re.search(r"Task (\d+) in stage (\d+)\.\d+ failed", str(error))
    if found is None:
        return None
    levels, stage = stages(spark, group), int(found[2])
    return (levels.index(stage), int(found[1])) if stage in levels else None


def reason(error: BaseException | None) -> str:
    """Spark's own words in one line, without the JVM's trace."""
    lines = [line.strip() for line in str(error or "no reason given").splitlines() if line.strip()]
    python = [line for line in lines if re.match(r"(\w+\.)*\w*(Error|Exception|Exit|Interrupt)\b(:|$)", line)]
    for line in lines:
        if "failed 1 times" in line or "SparkException" in line:
            text = line.removeprefix(": ").removeprefix("org.apache.spark.SparkException: ")
            if "PythonException" in text and python:
                return f"{text.split('PythonException')[0].rstrip(' :')}: {python[-1]}"[:500]
            return text[:500]
    return (lines or [""])[0][:500]
