"""Periodic aggregation: the sales of each shop in every minute, by built-in functions on whole batches.

    headrace run examples/sales_by_minute.py

Sales come up to ten seconds late. A minute is computed when the watermark has passed it; a sale that comes within the hour
after that makes the minute appear again with its new total.
"""

from datetime import timedelta

import numpy as np
import pyarrow as pa

from headrace import DataStream, StreamExecutionEnvironment, TumblingEventTimeWindows, WatermarkStrategy

SALE = "shop bigint, cents bigint, at bigint"
START = 1_700_000_000_000 // 60_000 * 60_000
COUNT = 30_000


def sales(numbers: np.ndarray) -> pa.RecordBatch:
    """Ten sales a second in five shops."""
    at = START + numbers * 100 - numbers * 7919 % 10_000
    return pa.RecordBatch.from_arrays([numbers % 5, numbers * 31 % 1000, at], ["shop", "cents", "at"])


def build(env: StreamExecutionEnvironment, count: int = COUNT) -> DataStream:
    """(shop, start, end, cents): the last row of a shop and minute is its total."""
    late = WatermarkStrategy.for_bounded_out_of_orderness(timedelta(seconds=10)).with_timestamp_assigner("at")
    stream = env.from_datagen(sales, count, None, SALE, vectorised=True).assign_timestamps_and_watermarks(late)
    minutes = stream.key_by("shop").window(TumblingEventTimeWindows.of(timedelta(minutes=1)))
    return minutes.allowed_lateness(timedelta(hours=1)).sum("cents").uid("minutes")


def main() -> None:
    env = StreamExecutionEnvironment.get_execution_environment()
    build(env).print()
    env.execute("sales by minute")


if __name__ == "__main__":
    main()
