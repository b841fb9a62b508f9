"""Spark's Python daemon with our packages loaded: a worker is a fork of it, and starts in milliseconds.

Without it every worker imports pyarrow, pandas and gRPC for itself, 0.4 s of CPU instead of 8 ms. Spark starts it by
`spark.python.daemon.module`; nothing depends on it.
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

__all__ = ["main"]

_PRELOAD = (
    "pyspark.worker",
    "pandas",
    "pyarrow.compute",
    "pyarrow.pandas_compat",
    "concurrent.futures.thread",
    "grpc",
    "cloudpickle",
    "headgate.worker.shell",
)


_worker = daemon.worker


def _quiet_worker(sock: socket.socket, authenticated: bool) -> int:
    """A cancelled task finds its socket closed: that is no news, and its trace would end up in the user's terminal."""
    try:
        return _worker(sock, authenticated)
    except OSError:
        os._exit(1)


def main() -> None:
    """Load, then serve until Spark closes our standard input."""
    for name in _PRELOAD:
        with contextlib.suppress(Exception):  # a worker that needs it will say what is wrong
            importlib.import_module(name)
    # A new worker makes Python forget what it knows of directories, and then every importer of a zip file reads all of
    # it again: with pyspark.zip on the path that was 160 ms of CPU for each worker. New importers share one reading.
    for entry, importer in list(sys.path_importer_cache.items()):
        if isinstance(importer, zipimporter):
            del sys.path_importer_cache[entry]
    # What is loaded now stays: out of the collector's sight its pages are never written, and so stay shared.
    gc.collect()
    gc.freeze()
    daemon.worker = _quiet_worker
    daemon.manager()


if __name__ == "__main__":
    main()
