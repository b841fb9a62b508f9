"""W4: latency and the cores that a job of two levels uses at a given rate, one JSON line a rate.

A record is due at a fixed time; its latency is the time from then until the sink has it, so waiting in the source counts.
CPU is that of the driver, the JVM and all workers together. `--timeout 30` is the setting for low latency.
"""

import argparse
import json
import tempfile
import time
from pathlib import Path

import numpy as np
from cpu import cpu_seconds

from headrace import KeyedProcessFunction, SinkFunction, StreamExecutionEnvironment, Types
from headrace.api.sources import Source, SourceReader
from headrace.records.batch import Batch
from headrace.state.api import ValueStateDescriptor

TYPE = Types.TUPLE([Types.LONG(), Types.LONG()])


class Metronome(Source):
    """`rate` records a second over all subtasks: (key, microseconds since the epoch at which it was due)."""

    type = TYPE
    bounded = False

    def __init__(self, rate, keys):
        self.rate, self.keys = rate, keys

    def splits(self, parallelism):
        return list(range(parallelism))

    def reader(self, context, splits):
        return MetronomeReader(self, splits, context.parallelism)


class MetronomeReader(SourceReader):
    def __init__(self, source, splits, parallelism):
        self.source, self.splits = source, splits
        self.gap = 1e6 * parallelism / source.rate if source.rate else None
        self.begun = time.time_ns() // 1000 + sum(splits) * (self.gap or 0) / parallelism
        self.given = 0

    def poll(self, max_records):
        if self.gap is None:
            return None
        due = int((time.time_ns() / 1000 - self.begun) / self.gap) + 1 - self.given
        count = min(due, max_records)
        if count <= 0:
            return None
        numbers = range(self.given, self.given + count)
        self.given += count
        keys, begun, gap = self.source.keys, self.begun, self.gap
        return Batch.of_rows([(n * 7919 % keys, int(begun + n * gap)) for n in numbers], TYPE)

    def ready_at(self):
        return None if self.gap is None else int((self.begun + self.given * self.gap) / 1000) + 1

    def snapshot(self):
        return self.splits


class Count(KeyedProcessFunction):
    def open(self, runtime_context):
        self.count = runtime_context.get_state(ValueStateDescriptor("count", Types.LONG()))

    def process_element(self, value, ctx):
        self.count.update((self.count.value() or 0) + 1)
        yield value


class Latencies(SinkFunction):
    """Keeps the latency of each record, and stores all when the job ends."""

    def __init__(self, directory):
        self.directory = directory

    def open(self, runtime_context):
        self.found = []
        self.index = runtime_context.get_index_of_this_subtask()

    def invoke(self, value, context):
        self.found.append((value[1], time.time_ns() // 1000 - value[1]))

    def close(self):
        np.save(Path(self.directory, f"{self.index}.npy"), np.array(self.found, np.int64).reshape(-1, 2))


def run(env, a, rate):
    with tempfile.TemporaryDirectory() as directory:
        stream = env.from_source(Metronome(rate, a.keys), source_name="metronome")
        stream.key_by(0).process(Count(), output_type=TYPE).add_sink(Latencies(directory))
        client = env.execute_async()
        client.job.wait_running()
        time.sleep(a.warm)
        begun, cpu = time.time(), cpu_seconds()
        time.sleep(a.seconds)
        used = {part: (after - cpu[part]) / (time.time() - begun) for part, after in cpu_seconds().items()}
        cores = sum(used.values())
        until = time.time()
        client.cancel()
        deadline = time.monotonic() + 20
        while len(list(Path(directory).glob("*.npy"))) < a.parallelism and time.monotonic() < deadline:
            time.sleep(0.1)
        found = np.concatenate([np.load(file) for file in Path(directory).glob("*.npy")])
    found = found[(found[:, 0] >= begun * 1e6) & (found[:, 0] < (until - 0.5) * 1e6)]
    figures = {"peer": "headrace", "work": "W4", "rate": rate, "timeout_ms": a.timeout, "cores": round(cores, 3)}
    figures |= {part: round(share, 3) for part, share in used.items()}
    if len(found):
        middle, high, highest = np.percentile(found[:, 1], [50, 99, 99.9]) / 1000
        figures |= {"p50_ms": round(middle, 1), "p99_ms": round(high, 1), "p99.9_ms": round(highest, 1)}
        figures |= {"records": len(found), "cpu_s_per_million": round(cores / rate * 1e6, 1)}
    return figures


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--rates", default="100000,10000,1000,100,0", help="records per second, separated by commas")
    p.add_argument("--seconds", type=float, default=20)
    p.add_argument("--warm", type=float, default=8)
    p.add_argument("--keys", type=int, default=1000)
    p.add_argument("--parallelism", type=int, default=2)
    p.add_argument("--timeout", type=int, default=None, help="execution.buffer-timeout in milliseconds")
    a = p.parse_args()
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(a.parallelism)
    if a.timeout is not None:
        env.get_configuration().set("execution.buffer-timeout", f"{a.timeout} ms")
    for rate in map(float, a.rates.split(",")):
        print(json.dumps(run(env, a, rate)), flush=True)


if __name__ == "__main__":
    main()
