"""Spark's Python daemon with the packages of a worker loaded: workers are forked from it and start in milliseconds.

Without it every worker imports pyarrow and pandas itself, 0.4 s of CPU instead of 8 ms, and a row takes longer
(`spark_rows`). Spark starts it because of `spark.python.daemon.module`; it is optional.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import logging
import os
import socket
import sys
from collections.abc import Iterator
from typing import Any
from zipimport import zipimporter

from pyspark import daemon

_PRELOAD = (
    "pyspark.worker",
    "pandas",
    "pyarrow.compute",
    "pyarrow.pandas_compat",
    "concurrent.futures.thread",
    "cloudpickle",
    "headrace.worker.shell",
    "headrace.environment",  # modules of programs import it
)


_PIPELINED, _BUFFER = "SPARK_PIPELINED_UDF", "SPARK_BUFFER_SIZE"
_log = logging.getLogger("headrace.worker")
_worker = daemon.worker


def _quiet_worker(sock: socket.socket, authenticated: bool) -> int:
    """A cancelled task finds its socket closed, which is expected: its trace would appear in the user's terminal."""
    try:
        return _worker(sock, authenticated)
    except OSError:
        os._exit(1)


def _give_streams(worker: Any) -> None:
    """Let the worker's module give tasks of ours Spark's stream in place of batches.

    All that a worker knows of its task is the function that it loads, here noted on the way.
    """
    from headrace.worker.shell import LevelTask
    from headrace.worker.spark_rows import RowStream, as_message

    read_command, read_udfs = worker.read_command, worker.read_udfs

    def with_streams(serializer: Any, functions: Any, kind: int, conf: Any, *args: Any) -> Any:
        loaded: list[Any] = []

        def noted(*command: Any) -> Any:
            loaded.append(read_command(*command))
            return loaded[-1]

        worker.read_command = noted
        try:
            found = read_udfs(serializer, functions, kind, conf, *args)
        finally:
            worker.read_command = read_command
        task = loaded[0][0] if len(loaded) == 1 else None
        if not isinstance(task, LevelTask) or conf.udf_profiler:
            return found
        pipelined = os.environ.pop(_PIPELINED, None)  # else pyspark would read in a thread of its own, as the task does

        def run(_: int, rows: Iterator[Any]) -> Iterator[bytes]:
            if pipelined is not None:  # pyspark has looked; the next task of this worker may be another's
                os.environ[_PIPELINED] = pipelined
            return task.run_in_spark(rows, as_message)

        return run, None, RowStream(), RowStream()

    worker.read_udfs = with_streams


def main() -> None:
    """Load the packages, then run Spark's daemon until Spark closes its standard input."""
    for name in _PRELOAD:
        with contextlib.suppress(Exception):  # a worker that needs it reports the error
            importlib.import_module(name)
    # A new worker invalidates import caches, and then every importer of a zip file reads the whole directory again:
    # 160 ms of CPU for each worker with pyspark.zip on the path. New importers share one reading.
    for entry, importer in list(sys.path_importer_cache.items()):
        if isinstance(importer, zipimporter):
            del sys.path_importer_cache[entry]
    # The collector ignores frozen objects, so that their pages are never written and stay shared between workers.
    gc.collect()
    gc.freeze()
    try:
        _give_streams(importlib.import_module("pyspark.worker"))
    except Exception as error:
        _log.warning(
            "workers read rows through pyspark, which takes more CPU time: %s: %s", type(error).__name__, error
        )
    # The session lets the JVM send each row at once by a buffer that is smaller than any: ours would need many calls.
    os.environ[_BUFFER] = str(max(64 << 10, int(os.environ.get(_BUFFER, "0"))))
    daemon.worker = _quiet_worker
    daemon.manager()


if __name__ == "__main__":
    main()
