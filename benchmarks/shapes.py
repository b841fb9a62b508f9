"""W1 in six shapes: the same running sum with other keys, state and records, one JSON line a run.

int        int keys, value state                 string     keys of 20 characters
composite  a key of an int and a string          map        map state, eight entries a key
row        value state of a row of three fields  untyped    records and state without types

Records come from a Python function that is called for each (`--source records`), as people write it, or from one that
makes a batch of columns (`--source batches`). Seconds count from the moment all subtasks run until the job has finished.
"""

import argparse
import json
import time

import numpy as np
import pyarrow as pa
from cpu import cpu_seconds, watched

from headrace import KeyedProcessFunction, SinkFunction, StreamExecutionEnvironment, Types
from headrace.state.api import MapStateDescriptor, ValueStateDescriptor

LONG, STRING = Types.LONG(), Types.STRING()
PAIR = Types.TUPLE([LONG, LONG])
ROW = Types.ROW_NAMED(["count", "total", "largest"], [LONG, LONG, LONG])
MIX = 0x9E3779B97F4A7C15
MASK = (1 << 64) - 1


class Sum(KeyedProcessFunction):
    type = LONG

    def open(self, runtime_context):
        self.total = runtime_context.get_state(ValueStateDescriptor("total", self.type))

    def process_element(self, value, ctx):
        total = (self.total.value() or 0) + value[-1]
        self.total.update(total)
        yield *value[:-1], total


class UntypedSum(Sum):
    type = Types.PICKLED_BYTE_ARRAY()


class MapSum(KeyedProcessFunction):
    def open(self, runtime_context):
        self.totals = runtime_context.get_map_state(MapStateDescriptor("totals", LONG, LONG))

    def process_element(self, value, ctx):
        part = value[1] & 7
        total = (self.totals.get(part) or 0) + value[1]
        self.totals.put(part, total)
        yield value[0], total


class RowSum(KeyedProcessFunction):
    def open(self, runtime_context):
        self.state = runtime_context.get_state(ValueStateDescriptor("row", ROW))

    def process_element(self, value, ctx):
        count, total, largest = self.state.value() or (0, 0, 0)
        total += value[1]
        self.state.update((count + 1, total, max(largest, value[1])))
        yield value[0], total


# Shape: the type of records (key columns, then the value), the function.
SHAPES = {
    "int": (PAIR, Sum),
    "string": (Types.TUPLE([STRING, LONG]), Sum),
    "composite": (Types.TUPLE([LONG, STRING, LONG]), Sum),
    "map": (PAIR, MapSum),
    "row": (PAIR, RowSum),
    "untyped": (None, UntypedSum),
}


class Records:
    """The record of a number, as a tuple."""

    def __init__(self, shape, keys):
        self.shape, self.keys = shape, keys

    def __call__(self, number):
        key = (number * MIX & MASK) >> 20
        key %= self.keys
        value = number % 100 + 1
        if self.shape == "string":
            return f"customer-{key:011d}", value
        if self.shape == "composite":
            return key, f"region-{key & 15:02d}", value
        return key, value


class Columns:
    """The same records, a batch at a time."""

    def __init__(self, shape, keys, type):
        self.shape, self.keys, self.schema = shape, keys, type.schema

    def __call__(self, numbers):
        mixed = (numbers.astype(np.uint64) * np.uint64(MIX)) >> np.uint64(20)
        key = (mixed % np.uint64(self.keys)).astype(np.int64)
        columns = [pa.array(key)]
        if self.shape == "string":
            columns = [pa.array(np.char.add("customer-", np.char.zfill(key.astype("U11"), 11)))]
        elif self.shape == "composite":
            columns.append(pa.array(np.array([f"region-{i:02d}" for i in range(16)])[key & 15]))
        return pa.RecordBatch.from_arrays([*columns, pa.array(numbers % 100 + 1)], schema=self.schema)


class Discard(SinkFunction):
    def invoke(self, value, context):
        pass


def run(env, a, shape, records):
    type, function = SHAPES[shape]
    if a.source == "batches" and type is not None:
        source = env.from_datagen(Columns(shape, a.keys, type), count=records, type_info=type, vectorised=True)
    else:
        source = env.from_datagen(Records(shape, a.keys), count=records, type_info=type)
    if type is None:
        keyed = source.key_by(lambda record: record[0])
    else:
        keyed = source.key_by(0, 1) if shape == "composite" else source.key_by(0)
    keyed.process(function(), output_type=type).add_sink(Discard())
    client = env.execute_async()
    if hasattr(client.job, "wait_running"):  # the local runtime has no start-up
        client.job.wait_running()
    started, cpu = time.monotonic(), cpu_seconds()
    with watched():
        client.wait()
    seconds = time.monotonic() - started
    return seconds, {part: after - cpu[part] for part, after in cpu_seconds().items()}


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--shapes", default=",".join(SHAPES), help="separated by commas")
    p.add_argument("--source", choices=["records", "batches"], default="records")
    p.add_argument("--backend", choices=["hashmap", "rocksdb"], default="hashmap")
    p.add_argument("--records", type=int, default=3_000_000)
    p.add_argument("--keys", type=int, default=100_000)
    p.add_argument("--parallelism", type=int, default=2)
    p.add_argument("--runs", type=int, default=1)
    a = p.parse_args()
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(a.parallelism)
    env.get_configuration().set("state.backend.type", a.backend)
    shapes = a.shapes.split(",")
    run(env, a, shapes[0], 20_000)  # workers warm, classes loaded
    for shape in shapes * a.runs:
        seconds, cpu = run(env, a, shape, a.records)
        figures = {"peer": f"headrace {a.backend}", "work": f"W1 {shape}", "source": a.source, "records": a.records}
        figures |= {"seconds": round(seconds, 2), "records_per_s": round(a.records / seconds)}
        figures |= {f"cpu_ns_{part}": round(1e9 * spent / a.records) for part, spent in cpu.items()}  # a record
        print(json.dumps(figures | {"notes": f"parallelism={a.parallelism} keys={a.keys}"}), flush=True)


if __name__ == "__main__":
    main()
