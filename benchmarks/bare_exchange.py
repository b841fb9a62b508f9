"""The bare pipelined shuffle, without Headrace: what Spark itself moves, as the measure for `exchange.py`.

    python benchmarks/bare_exchange.py [BUFFERS]

Two source tasks send BUFFERS rows of 256 KiB each to two reading tasks, in turn; the readers only count. Prints one
JSON line with the MB/s between the first and the last row.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession

WIDTH = 2
SIZE = 256 << 10
ROW = "dst int, src int, kind int, at double, payload binary"
NAMES = [column.split()[0] for column in ROW.split(", ")]
FILLER = "-1, 0, 0, CAST(0 AS DOUBLE), CAST(NULL AS BINARY)"
CONF = {
    "spark.ui.enabled": "false",
    "spark.log.level": "FATAL",
    "spark.python.udf.pipelined.enabled": "true",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "1",
    "spark.sql.execution.pandas.udf.buffer.size": "256",
    "spark.shuffle.streaming.networkBufferMaxWaitTimeMs": "5",
    "spark.shuffle.streaming.networkBufferSize": "262144",
    "spark.shuffle.streaming.readerMaxMemory": str(8 << 20),
    "spark.shuffle.streaming.writerMaxMemory": str(8 << 20),
    "spark.memory.offHeap.enabled": "false",
}


def session() -> SparkSession:
    """A session with the settings that the exchange was first measured with."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.master("local[8]")
    for key, value in CONF.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


def exchange(spark: SparkSession, rows: DataFrame, width: int) -> DataFrame:
    """Row `dst` goes to task `dst` of the next stage while both stages run."""
    planned = rows.repartitionById(width, "dst")._jdf  # noqa: SLF001 - there is no public switch
    node = planned.queryExecution().executedPlan()
    while node.getClass().getSimpleName() != "ShuffleExchangeExec":
        node = node.children().head()
    fields = [node.productElementName(i) for i in range(node.productArity())]
    pipelined = node.copy(*[True if f == "pipelined" else node.productElement(i) for i, f in enumerate(fields)])
    jdf = spark._jsparkSession.internalCreateDataFrame(pipelined.execute(), planned.schema(), False)  # noqa: SLF001
    # mapInArrow asks for row k+1 before it hands over row k; a filler behind every row is what waits instead.
    return DataFrame(jdf, spark).selectExpr(f"stack(2, {', '.join(NAMES)}, {FILLER}) AS ({', '.join(NAMES)})")


def row(dst: int, src: int, payload: bytes) -> pa.RecordBatch:
    """One row as a batch."""
    columns = [
        pa.array([dst], pa.int32()),
        pa.array([src], pa.int32()),
        pa.array([0], pa.int32()),
        pa.array([time.time()]),
        pa.array([payload], pa.binary()),
    ]
    return pa.RecordBatch.from_arrays(columns, names=NAMES)


class Source:
    """Sends the same buffer to all readers in turn."""

    def __init__(self, buffers: int) -> None:
        self.buffers = buffers

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The function of a source task."""
        for _ in batches:
            pass
        context = TaskContext.get()
        assert context is not None
        me = context.partitionId()
        buffer = np.random.default_rng(me).bytes(SIZE)
        for n in range(self.buffers):
            yield row(n % WIDTH, me, buffer)


def sink(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Counts bytes and notes when the first and the last row came."""
    size, first = 0, 0.0
    for batch in batches:
        if batch.column(0)[0].as_py() >= 0:
            first = first or time.time()
            size += batch.nbytes
    columns = [pa.array([size]), pa.array([first]), pa.array([time.time()])]
    yield pa.RecordBatch.from_arrays(columns, names=["size", "first", "last"])


def main() -> None:
    """Run once and print the figure."""
    buffers = int(sys.argv[1]) if len(sys.argv) > 1 else 3000
    spark = session()
    sources = spark.range(0, WIDTH, 1, WIDTH).mapInArrow(Source(buffers), ROW)
    done = exchange(spark, sources, WIDTH).mapInArrow(sink, "size long, first double, last double").collect()
    seconds = max(r["last"] for r in done) - min(r["first"] for r in done)
    size = sum(r["size"] for r in done)
    print(json.dumps({"mb_per_s": size / seconds / 1e6, "seconds": seconds, "mb": size / 1e6}))


if __name__ == "__main__":
    main()
