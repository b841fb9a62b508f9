"""Spark's Python daemon with our packages loaded: a worker is a fork of it, and starts in milliseconds.

Without it every worker imports pyarrow, pandas and gRPC for itself, about a second of CPU each: with 20 subtasks on two
cores, most of a minute. Spark starts it by `spark.python.daemon.module`; nothing depends on it.
"""

from __future__ import annotations

import contextlib
import gc
import importlib

from pyspark.daemon import manager

__all__ = ["main"]

_PRELOAD = ("pyspark.worker", "pandas", "pyarrow.compute", "grpc", "cloudpickle", "headgate.runtime.worker")


def main() -> None:
    """Load, then serve until Spark closes our standard input."""
    for name in _PRELOAD:
        with contextlib.suppress(Exception):  # a worker that needs it will say what is wrong
            importlib.import_module(name)
    # What is loaded now stays: out of the collector's sight its pages are never written, and so stay shared.
    gc.collect()
    gc.freeze()
    manager()


if __name__ == "__main__":
    main()
