"""Spark's Python daemon with the packages of a worker loaded: workers are forked from it and start in milliseconds.

Without it every worker imports pyarrow and pandas itself, 0.4 s of CPU instead of 8 ms. Spark starts it because of
`spark.python.daemon.module`; it is optional.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import socket
import sys
from zipimport import zipimporter

from pyspark import daemon

_PRELOAD = (
    "pyspark.worker",
    "pandas",
    "pyarrow.compute",
    "pyarrow.pandas_compat",
    "concurrent.futures.thread",
    "cloudpickle",
    "headgate.worker.shell",
    "headgate.environment",  # modules of programs import it
)


_worker = daemon.worker


def _quiet_worker(sock: socket.socket, authenticated: bool) -> int:
    """A cancelled task finds its socket closed, which is expected: its trace would appear in the user's terminal."""
    try:
        return _worker(sock, authenticated)
    except OSError:
        os._exit(1)


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
    daemon.worker = _quiet_worker
    daemon.manager()


if __name__ == "__main__":
    main()
