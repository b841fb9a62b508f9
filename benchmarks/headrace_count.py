"""W1 and W2 on Headrace: the same work as the peers' scripts, one JSON line a run.

W1  a Python function with keyed value state, one output for every record
    `--kind batches`: the same over whole batches
W2  the built-in running sum (`--emit record`: one output a record; `--emit batch`: one a key and batch)

Seconds count from the moment all subtasks run until the job has finished; start-up is outside, as with the peers. With
`--warm N` they count from the moment when the function has taken N records, which hold every key: the cost of new keys
is outside as well. With `--zipf S` a few keys have most of the records.
"""

import argparse
import json
import statistics
import time

import numpy as np
import pyarrow as pa
from cpu import cpu_seconds, watched

from headrace import KeyedBatchFunction, KeyedProcessFunction, SinkFunction, StreamExecutionEnvironment, Types
from headrace.state.api import ValueStateDescriptor

TYPE = Types.TUPLE([Types.LONG(), Types.LONG()])
RANK_BITS = 22


class Generate:
    """Records (key, value): the key uniform or zipf-distributed over `keys`, the value 1 to 100.

    With `fill` the first `keys` records have each key once.
    """

    def __init__(self, keys: int, zipf: float = 0.0, fill: bool = False) -> None:
        self.keys, self.zipf, self.fill = keys, zipf, fill
        self.ranks = None

    def __call__(self, numbers):
        mixed = numbers.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        if self.zipf:
            if self.ranks is None:  # once in a worker: the table does not travel with the job
                self.ranks = zipf_ranks(self.keys, self.zipf)
            key = self.ranks[mixed >> np.uint64(64 - RANK_BITS)]
        else:
            key = ((mixed >> np.uint64(20)) % np.uint64(self.keys)).astype(np.int64)
        if self.fill:
            key = np.where(numbers < self.keys, numbers, key)
        return pa.RecordBatch.from_arrays([pa.array(key), pa.array(numbers % 100 + 1)], schema=TYPE.schema)


def zipf_ranks(keys: int, exponent: float) -> np.ndarray:
    """The rank at each of many evenly spaced points of the distribution: its inverse, as a table."""
    weights = np.cumsum(np.arange(1, keys + 1, dtype=np.float64) ** -exponent)
    points = (np.arange(1 << RANK_BITS) + 0.5) / (1 << RANK_BITS)
    return np.searchsorted(weights, points * weights[-1])


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
    """Takes the records one by one: a call in Python for each, which the sinks of the peers do without."""

    def invoke(self, value, context):
        pass


def run(
    env: StreamExecutionEnvironment, a: argparse.Namespace, records: int, warm: int = 0
) -> tuple[int, float, dict[str, float]]:
    """One job: the records that count, their seconds, and CPU seconds of the whole job by part."""
    generate = Generate(a.keys, a.zipf, fill=warm > 0)
    stream = env.from_datagen(generate, count=warm + records, type_info=TYPE, vectorised=True).key_by(0)
    if a.kind == "stateful":
        stream.process(RunningSum(), output_type=TYPE).add_sink(Discard())
    elif a.kind == "batches":
        stream.process_batches(RunningSumOfBatches()).map_batches(lambda batch: None).print()
    else:
        stream.sum(1, emit=a.emit).map_batches(lambda batch: None).print()
    client = env.execute_async()
    client.job.wait_running()
    started, before, cpu = time.monotonic(), 0, cpu_seconds()
    with watched():
        if warm:
            started, before = taken(client.job, warm, a.parallelism)
        client.wait()
    if before > warm + records // 2:
        raise SystemExit(f"half of {records:,} records were done before the first {warm:,} were known to be: take more")
    seconds = time.monotonic() - started
    return warm + records - before, seconds, {part: after - cpu[part] for part, after in cpu_seconds().items()}


def taken(job, records: int, parallelism: int) -> tuple[float, int]:
    """Wait until the function has taken this number of records: a time, and how many it had taken then.

    Each subtask tells its count once a second, each at its own moment. The sum of the counts belongs to the mean of
    these moments, since the subtasks are about equally fast.
    """
    seen: dict[int, tuple[float, int]] = {}
    while len(seen) < parallelism or sum(count for _, count in seen.values()) < records:
        if job.status.is_terminal:
            raise SystemExit(f"the job ended before it was known that {records:,} records were done: take more")
        time.sleep(0.02)
        for (level, index), metrics in job.metrics().items():
            if level == 1 and seen.get(index, (0.0, -1))[1] != metrics.records_in:
                seen[index] = time.monotonic(), metrics.records_in
    return statistics.mean(at for at, _ in seen.values()), sum(count for _, count in seen.values())


def main() -> None:
    p = argparse.ArgumentParser()
    p.add_argument("--kind", choices=["stateful", "batches", "sum"], default="stateful")
    p.add_argument("--emit", choices=["record", "batch"], default="batch")
    p.add_argument("--backend", choices=["hashmap", "rocksdb"], default="hashmap")
    p.add_argument("--records", type=int, default=10_000_000)
    p.add_argument("--keys", type=int, default=100_000)
    p.add_argument("--zipf", type=float, default=0.0, help="exponent of the keys' distribution; 0: uniform")
    p.add_argument("--warm", type=int, default=0, help="number of records before those that count, at least one a key")
    p.add_argument("--parallelism", type=int, default=2)
    p.add_argument("--runs", type=int, default=1)
    a = p.parse_args()
    if 0 < a.warm < a.keys:
        p.error(f"--warm must be 0, or at least as many as the keys: {a.keys}")
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(a.parallelism)
    env.get_configuration().set("state.backend.type", a.backend)
    run(env, a, 20_000)  # workers warm, classes loaded
    for _ in range(a.runs):
        records, seconds, cpu = run(env, a, a.records, a.warm)
        report(a, records, seconds, cpu)


def report(a: argparse.Namespace, records: int, seconds: float, cpu: dict[str, float]) -> None:
    """Print the figures of a run."""
    works = {"stateful": "W1 process + value state", "batches": "W1 over batches", "sum": f"W2 sum, emit={a.emit}"}
    figures = {"peer": f"headrace {a.backend}", "work": works[a.kind], "records": records}
    figures |= {"seconds": round(seconds, 2), "records_per_s": round(records / seconds)}
    figures |= {"backend": a.backend, "keys": a.keys, "parallelism": a.parallelism, "zipf": a.zipf, "warm": a.warm}
    figures |= {f"cpu_ns_{part}": round(1e9 * spent / (a.warm + a.records)) for part, spent in cpu.items()}  # a record
    print(json.dumps(figures), flush=True)


if __name__ == "__main__":
    main()
