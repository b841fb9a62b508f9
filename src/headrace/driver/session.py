"""The Spark session a job runs in: made by us, or the user's own, checked."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from headrace import config
from headrace.config import Configuration
from headrace.driver.spark import check_version
from headrace.errors import ConfigError

REQUIRED = {
    "spark.python.udf.pipelined.enabled": "true",  # its own JVM thread feeds a worker, so both directions flow
    "spark.speculation": "false",  # refused by the pipelined shuffle
    "spark.dynamicAllocation.enabled": "false",  # likewise
    "spark.memory.offHeap.enabled": "false",  # the shuffle would wait for off-heap memory that never comes free
    "spark.task.maxFailures": "1",  # a task that Spark starts again would join a running attempt with older state
}
"""What must be set when the application starts; nothing works without it."""

_RECOMMENDED = {
    "spark.shuffle.streaming.networkBufferMaxWaitTimeMs": "5",
    "spark.shuffle.streaming.networkBufferSize": "262144",
    "spark.shuffle.streaming.readerMaxMemory": str(512 << 10),
    "spark.shuffle.streaming.writerMaxMemory": str(1 << 20),
    "spark.shuffle.streaming.writerConnectionTimeout": "120s",
    "spark.network.timeout": "60s",
    "spark.executor.heartbeatInterval": "5s",
    "spark.task.reaper.enabled": "true",
    # Over TCP a lone row waits 40 ms in every hop: the JVM writes it in pieces, and Nagle's algorithm holds the second one
    # until the worker's kernel acknowledges the first.
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.python.daemon.module": "headrace.worker.daemon",  # workers are forks that have everything loaded
    "spark.python.worker.reuse": "false",  # and so no worker outlives its task: no thread or state of an old attempt
}

_SESSION = {
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.unionOutputPartitioning": "false",
    # A batch is the filler of the row before and a row. Bytes end it: a filler counts as 15, a row with a frame as 31 or more.
    "spark.sql.execution.arrow.maxRecordsPerBatch": "2",
    "spark.sql.execution.arrow.maxBytesPerBatch": "24",
    "spark.sql.execution.pandas.udf.buffer.size": "128",  # below the smallest one-row batch: no hidden buffering
    "spark.sql.execution.arrow.useLargeVarTypes": "false",
    "spark.sql.execution.arrow.compression.codec": "none",
    "spark.sql.execution.pyspark.udf.faulthandler.enabled": "true",
    "spark.sql.execution.pythonUDF.arrow.enabled": "false",
}
"""Set on a session of our own, so that the user's other queries keep theirs."""

_DRIVER_JVM, _EXECUTOR_JVM = "spark.driver.defaultJavaOptions", "spark.executor.defaultJavaOptions"
# Rows are copied by code that the JVM has built in; the optimising compiler makes nothing of it faster, and uses up to a
# tenth of a core for minutes where rows are few.
_COMPILER = "-XX:TieredStopAtLevel=1"
_CONTINUED = re.compile(r"\\\n\s*")
_SETTING = re.compile(r"\s*([^#!\s=:][^\s=:]*)[\s=:]\s*(.*)")


def spark_conf() -> dict[str, str]:
    """Return the configuration for `SparkSession.builder` if you make the session yourself.

    >>> spark_conf()["spark.speculation"]
    'false'
    """
    return REQUIRED | _RECOMMENDED


def get_session(given: SparkSession | None, configuration: Configuration) -> SparkSession:
    """The user's session if it can run dataflows, or one made for it."""
    if given is not None:
        _check(given)
        return given
    active = SparkSession.getActiveSession()
    if active is not None:
        _check(active)
        return active
    return _create(configuration)


def _check(spark: Any) -> None:
    if type(spark).__module__.startswith("pyspark.sql.connect"):
        raise ConfigError(
            "HR-1102",
            "this is a Spark Connect session: Headrace builds its stages inside the driver's JVM, which Connect hides. "
            "Use a classic session: unset SPARK_REMOTE and spark.remote, set spark.api.mode=classic",
        )
    check_version(spark)
    conf = spark.sparkContext.getConf()
    wrong = [
        f"  {key} = {value}   (now {conf.get(key) or 'unset'})"
        for key, value in REQUIRED.items()
        if (conf.get(key) or "false").lower() != value
    ]
    if wrong:
        raise ConfigError(
            "HR-1103",
            "the SparkSession lacks settings that must be there when the application starts:\n"
            + "\n".join(wrong)
            + "\nadd them to the builder: for k, v in headrace.spark_conf().items(): builder = builder.config(k, v)",
        )


def _create(configuration: Configuration) -> SparkSession:
    if os.environ.get("SPARK_REMOTE"):
        raise ConfigError(
            "HR-1102",
            "SPARK_REMOTE is set, so Spark would make a Connect session: Headrace needs a classic one; unset SPARK_REMOTE",
        )
    check_version()
    # Workers must run the interpreter that has our packages; the system's python may have none of them.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    master = configuration.get(config.SPARK_MASTER) or os.environ.get("SPARK_MASTER") or "local[256]"
    builder = SparkSession.builder.master(master).appName(configuration.get(config.JOB_NAME) or "headrace")
    settings = spark_conf() | {
        "spark.api.mode": "classic",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.default.parallelism": str(os.cpu_count() or 1),
        "spark.sql.shuffle.partitions": str(os.cpu_count() or 1),
    }
    if master.startswith("local"):
        settings["spark.driver.host"] = settings["spark.driver.bindAddress"] = "127.0.0.1"
    options = settings | configuration.spark_options()
    options |= _java_options(options)
    for key, value in options.items():
        builder = builder.config(key, value)
    try:
        return builder.getOrCreate()
    except Exception as error:
        raise ConfigError(
            "HR-1104",
            f"Spark did not start on master {master}: {_first_line(error)}. Run `headrace doctor` to see what is missing",
        ) from error


def _java_options(options: dict[str, str]) -> dict[str, str]:
    """JVMs that log little and compile quickly, as defaults: Spark puts the user's extraJavaOptions behind them."""
    home, conf = os.environ.get("SPARK_HOME"), os.environ.get("SPARK_CONF_DIR")
    directory = Path(conf) if conf else Path(home, "conf") if home else None
    has_log = directory is not None and (directory / "log4j2.properties").exists()
    quiet = f"-Dlog4j2.configurationFile={Path(__file__).with_name('log4j2-quiet.properties').as_uri()}"
    added = {_DRIVER_JVM: [_COMPILER] if has_log else [_COMPILER, quiet], _EXECUTOR_JVM: [_COMPILER]}
    given = (_defaults_in(directory / "spark-defaults.conf") if directory is not None else {}) | options
    return {key: " ".join([*ours, given.get(key, "")]).strip() for key, ours in added.items()}


def _defaults_in(path: Path) -> dict[str, str]:
    """The settings of a `spark-defaults.conf`, which those that are given to a session would replace."""
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return {}  # Spark says what is wrong with it
    pairs = [_SETTING.match(line) for line in _CONTINUED.sub("", text).splitlines()]
    return {found[1]: found[2].strip() for found in pairs if found is not None}


def dataflow_session(spark: SparkSession) -> SparkSession:
    """A session of the same application with the SQL settings that the dataflow needs."""
    session = spark.newSession()
    for key, value in _SESSION.items():
        session.conf.set(key, value)
    return session


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
