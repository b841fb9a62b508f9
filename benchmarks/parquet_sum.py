"""Parquet file -> keyed sum -> Parquet file: Headrace beside plain Spark batch, in one run, one after the other in turn.

    python benchmarks/parquet_sum.py [--records 10000000] [--keys 100000] [--rounds 5]

Spark writes one row a key at the end. Headrace is a stream: it writes the new sum of each key that a batch has touched (many
more rows), keeps state that it could checkpoint, and has it in the files while the input still comes. Both run in the same
session with two cores; start-up is outside: Headrace's seconds count from the moment all subtasks run. The last sums of
all keys are compared.
"""

import argparse
import json
import shutil
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import SparkSession, functions

from headrace import Configuration, StreamExecutionEnvironment
from headrace.connectors.files import FileSink, FileSource
from headrace.driver.session import get_session

TYPE = "k bigint, v bigint"


def write_input(path: Path, records: int, keys: int) -> None:
    chance = np.random.default_rng(7)
    with pq.ParquetWriter(path, pa.schema([("k", pa.int64()), ("v", pa.int64())])) as writer:
        for start in range(0, records, 1_000_000):
            count = min(1_000_000, records - start)
            writer.write_table(
                pa.table({"k": chance.integers(0, keys, count), "v": chance.integers(1, 100, count)}),
                row_group_size=200_000,
            )


def on_headrace(spark: SparkSession, source: Path, target: Path, options: dict) -> float:
    env = StreamExecutionEnvironment.get_execution_environment(Configuration(options), spark).set_parallelism(1)
    rows = env.from_source(FileSource(str(source), "parquet", TYPE), source_name="parquet")
    rows.key_by("k").sum("v", emit="batch").sink_to(FileSink(str(target), "parquet"))
    client = env.execute_async("parquet sum")
    client.job.wait_running()
    started = time.monotonic()
    client.wait()
    return time.monotonic() - started


def on_spark(spark: SparkSession, source: Path, target: Path) -> float:
    started = time.monotonic()
    spark.read.parquet(str(source)).groupBy("k").agg(functions.sum("v").alias("v")).write.parquet(str(target))
    return time.monotonic() - started


def last_sums(target: Path) -> pa.Table:
    """The largest sum of each key: values are positive, so it is the last one."""
    table = pa.concat_tables([pq.ParquetFile(file).read() for file in target.rglob("*.parquet")])
    return table.group_by("k").aggregate([("v", "max")]).sort_by("k").select(["k", "v_max"])


def main() -> None:
    p = argparse.ArgumentParser()
    p.add_argument("--records", type=int, default=10_000_000)
    p.add_argument("--keys", type=int, default=100_000)
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--checkpoints", type=int, default=0, help="milliseconds between two checkpoints; 0: none")
    a = p.parse_args()
    work = Path(tempfile.mkdtemp(prefix="headrace-bench-"))
    write_input(work / "in.parquet", a.records, a.keys)
    options = {"headrace.spark.master": "local[8]", "spark.driver.memory": "2g", "spark.sql.shuffle.partitions": "2"}
    if a.checkpoints:
        options |= {
            "execution.checkpointing.interval": f"{a.checkpoints} ms",
            "execution.checkpointing.dir": f"file://{work}/chk",
        }
    spark = get_session(None, Configuration(options))
    seconds: dict[str, list[float]] = {"headrace": [], "spark": []}
    for number in range(a.rounds + 1):  # the first one warms up
        mine, theirs = work / f"headrace-{number}", work / f"spark-{number}"
        taken = on_headrace(spark, work / "in.parquet", mine, options), on_spark(spark, work / "in.parquet", theirs)
        if number == 0:
            ours, other = last_sums(mine), last_sums(theirs)
            assert ours.num_rows == other.num_rows
            assert pc.all(pc.equal(ours["v_max"], other["v_max"])).as_py()
        else:
            for name, one in zip(seconds, taken, strict=True):
                seconds[name].append(one)
    rates = {name: round(a.records / statistics.median(some)) for name, some in seconds.items()}
    ratio = statistics.median(h / s for h, s in zip(seconds["headrace"], seconds["spark"], strict=True))
    rounded = {name: [round(one, 2) for one in some] for name, some in seconds.items()}
    print(json.dumps({"records_per_second": rates, "seconds": rounded, "headrace_over_spark_seconds": round(ratio, 2)}))
    shutil.rmtree(work)


if __name__ == "__main__":
    main()
