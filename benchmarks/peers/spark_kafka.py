"""W11 on Spark Structured Streaming: Kafka, transformWithState in Python, Kafka. Runs until it is killed.

Spark's Kafka sink writes without transactions: what it writes is at least once, and visible at once.
"""
import argparse
import os

import spark_common as C
from pyspark.sql import functions as F
from spark_tws import SumRows


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--broker", required=True)
    p.add_argument("--input", required=True)
    p.add_argument("--output", required=True)
    p.add_argument("--work", required=True)
    p.add_argument("--jars", required=True, help="the directory of the connector's jars")
    p.add_argument("--batch", type=int, default=500_000, help="the largest number of records of a batch")
    a = p.parse_args()
    jars = ",".join(os.path.join(a.jars, name) for name in os.listdir(a.jars))
    os.environ["PYSPARK_SUBMIT_ARGS"] = f"--jars {jars} pyspark-shell"
    os.environ["PYTHONPATH"] = os.path.dirname(os.path.abspath(__file__))  # where workers find `SumRows`
    spark = C.session(2, "rocksdb", changelog=False)
    numbers = (spark.readStream.format("kafka").option("kafka.bootstrap.servers", a.broker)
               .option("subscribe", a.input).option("startingOffsets", "earliest")
               .option("maxOffsetsPerTrigger", a.batch).load())
    rows = numbers.select(F.from_json(F.col("value").cast("string"), C.SCHEMA).alias("r")).select("r.*")
    totals = rows.groupBy("k").transformWithState(SumRows(), "k long, total long", "Update", "None")
    query = (totals.select(F.col("k").cast("string").alias("key"), F.to_json(F.struct("k", "total")).alias("value"))
             .writeStream.format("kafka").option("kafka.bootstrap.servers", a.broker).option("topic", a.output)
             .option("checkpointLocation", f"{a.work}/checkpoints").outputMode("update").start())
    query.awaitTermination()


if __name__ == "__main__":
    main()
