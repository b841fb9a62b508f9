"""Throughput of one keyed hop: typed records of 100 bytes, `map_batches`, `key_by`, buffers of 256 KiB.

    python benchmarks/exchange.py [MEGABYTES] [--per-record]

Two sources, two readers, as in `bare_exchange.py`. With --per-record the functions on both sides of the hop are called
once for each record. Prints one JSON line with the MB/s between the first and the last batch.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import numpy as np
import pyarrow as pa

from headrace import StreamExecutionEnvironment

RECORD = 100  # bytes: a key of 8, the length of the payload (4), the payload
WIDTH = 2
TYPE = "k bigint, v binary"
_ROWS = 1 << 16


def _records() -> pa.RecordBatch:
    """Random records, made once: a generator that is slower than the exchange would be what is measured."""
    random = np.random.default_rng(7)
    size = RECORD - 12
    offsets = pa.py_buffer(np.arange(0, (_ROWS + 1) * size, size, dtype=np.int32))
    payload = pa.Array.from_buffers(pa.binary(), _ROWS, [None, offsets, pa.py_buffer(random.bytes(_ROWS * size))])
    keys = pa.array(random.integers(0, 100_000, _ROWS))
    return pa.RecordBatch.from_arrays([keys, payload], names=["k", "v"])


class Generate:
    """A vectorised generator; each worker makes its own records."""

    def __init__(self) -> None:
        self._batch: pa.RecordBatch | None = None

    def __call__(self, numbers: Any) -> pa.RecordBatch:
        """So many records."""
        if self._batch is None:
            self._batch = _records()
        return self._batch.slice(0, len(numbers))


class Count:
    """A vectorised function that counts and lets nothing through but the times, at the end."""

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """One row for each batch: its records and the time."""
        return pa.RecordBatch.from_arrays([pa.array([batch.num_rows]), pa.array([time.time()])], names=["n", "at"])


def touch(batch: pa.RecordBatch) -> pa.RecordBatch:
    """A vectorised function that changes the key column and shares the payload."""
    keys = pa.array(batch.column(0).to_numpy() + 1)
    return pa.RecordBatch.from_arrays([keys, batch.column(1)], schema=batch.schema)


def run(megabytes: int, per_record: bool) -> dict[str, float]:
    """One job; its figures."""
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(WIDTH)
    count = megabytes * 1_000_000 // RECORD
    stream = env.from_datagen(Generate(), count=count, type_info=TYPE, vectorised=True)
    if per_record:
        stream = stream.map(lambda row: (row[0] + 1, row[1]), output_type=TYPE)
        counts = stream.key_by("k").map(lambda row: row, output_type=TYPE).map_batches(Count(), "n bigint, at double")
    else:
        counts = stream.map_batches(touch).key_by("k").map_batches(Count(), "n bigint, at double")
    rows = list(counts.execute_and_collect())
    first, last, total = min(r.at for r in rows), max(r.at for r in rows), sum(r.n for r in rows)
    assert total == count, (total, count)
    seconds = last - first
    return {"mb_per_s": total * RECORD / seconds / 1e6, "records_per_s": total / seconds, "seconds": seconds}


def main() -> None:
    """Run once and print the figures."""
    sizes = [a for a in sys.argv[1:] if not a.startswith("-")]
    print(json.dumps(run(int(sizes[0]) if sizes else 1500, "--per-record" in sys.argv)))


if __name__ == "__main__":
    main()
