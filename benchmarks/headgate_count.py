"""W1 and W2 on Headgate: the same work as the peers' scripts, one JSON line a run.

W1  a Python function with keyed value state, one output for every record
    `--kind batches`: the same over whole batches
W2  the built-in running sum (`--emit record`: one output a record; `--emit batch`: one a key and batch)

Seconds count from the moment all subtasks run until the job has finished; start-up is outside, as with the peers.
"""

import argparse
import json
import tempfile
import time

import numpy as np
import pyarrow as pa

from headgate import KeyedBatchFunction, KeyedProcessFunction, SinkFunction, StreamExecutionEnvironment, Types
from headgate.state.api import ValueStateDescriptor

TYPE = Types.TUPLE([Types.LONG(), Types.LONG()])


class Generate:
    """Records (key, value): the key uniform over `keys`, the value 1 to 100."""

    def __init__(self, keys: int) -> None:
        self.keys = keys

    def __call__(self, numbers):
        mixed = (numbers.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(20)
        key = (mixed % np.uint64(self.keys)).astype(np.int64)
        return pa.RecordBatch.from_arrays([pa.array(key), pa.array(numbers % 100 + 1)], schema=TYPE.schema)


class RunningSum(KeyedProcessFunction):
    def open(self, runtime_context):
        self.total = runtime_context.get_state(ValueStateDescriptor("total", Types.LONG()))

    def process_element(self, value, ctx):
        total = (self.total.value() or 0) + value[1]
        self.total.update(total)
        yield value[0], total


class RunningSumOfBatches(KeyedBatchFunction):
    def open(self, runtime_context):
        self.total = runtime_context.get_state(ValueStateDescriptor("total", Types.LONG(), default=0))

    def process_batch(self, batch):
        before = self.total.get_many()
        self.total.put_many(before + batch.sum("f1"))
        running = batch.running_sum("f1", before)
        return pa.RecordBatch.from_arrays([batch.arrow.column(0), pa.array(running)], schema=TYPE.schema)


class Discard(SinkFunction):
    """Takes whole batches away; records have been made by then."""

    def invoke(self, value, context):
        pass


def run(env: StreamExecutionEnvironment, a: argparse.Namespace, records: int) -> float:
    stream = env.from_datagen(Generate(a.keys), count=records, type_info=TYPE, vectorised=True).key_by(0)
    if a.kind == "stateful":
        stream.process(RunningSum(), output_type=TYPE).add_sink(Discard())
    elif a.kind == "batches":
        stream.process_batches(RunningSumOfBatches()).map_batches(lambda batch: None).print()
    else:
        stream.sum(1, emit=a.emit).map_batches(lambda batch: None).print()
    client = env.execute_async()
    client.job.wait_running()
    started = time.monotonic()
    client.wait()
    return time.monotonic() - started


def checkpoint(env: StreamExecutionEnvironment, interval: int, kind: str) -> None:
    """Take checkpoints in a directory of their own: none, full or incremental ones."""
    conf = env.get_configuration()
    conf.remove_config("execution.checkpointing.incremental")
    if kind == "none":
        conf.remove_config("execution.checkpointing.interval")
        return
    conf.set("execution.checkpointing.dir", f"file://{tempfile.mkdtemp(prefix='headgate-bench-')}")
    conf.set("execution.checkpointing.interval", f"{interval} ms")
    conf.set("execution.checkpointing.incremental", kind == "incremental")


def main() -> None:
    p = argparse.ArgumentParser()
    p.add_argument("--kind", choices=["stateful", "batches", "sum"], default="stateful")
    p.add_argument("--emit", choices=["record", "batch"], default="batch")
    p.add_argument("--backend", choices=["hashmap", "rocksdb"], default="hashmap")
    p.add_argument("--records", type=int, default=10_000_000)
    p.add_argument("--keys", type=int, default=100_000)
    p.add_argument("--parallelism", type=int, default=2)
    p.add_argument("--runs", type=int, default=1)
    p.add_argument("--interval", type=int, default=0, help="take a checkpoint every so many milliseconds")
    p.add_argument("--rounds", type=int, default=0, help="so many rounds of one run of each kind of checkpoint")
    p.add_argument("--checkpoints", default="incremental", help="kinds: none, full, incremental, separated by commas")
    a = p.parse_args()
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(a.parallelism)
    env.get_configuration().set("state.backend.type", a.backend)
    run(env, a, 20_000)  # workers warm, classes loaded
    kinds = a.checkpoints.split(",") if a.interval else ["none"]
    for kind in kinds * (a.rounds or a.runs):
        checkpoint(env, a.interval, kind)
        seconds = run(env, a, a.records)
        work = {"stateful": "W1 process + value state", "batches": "W1 over batches"}.get(
            a.kind, f"W2 sum, emit={a.emit}"
        )
        print(
            json.dumps(
                {
                    "peer": f"headgate {a.backend}",
                    "work": work,
                    "records": a.records,
                    "seconds": round(seconds, 2),
                    "records_per_s": round(a.records / seconds),
                    "checkpoint": kind,
                    "notes": f"parallelism={a.parallelism} keys={a.keys}",
                }
            ),
            flush=True,
        )


if __name__ == "__main__":
    main()
