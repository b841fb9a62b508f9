"""The dataflow on Spark: delay, memory, order, failures, throughput."""

from __future__ import annotations

import json
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow as pa

from acceptance.lines import Outcome, line, running_workers, wait_until
from headrace import (
    Configuration,
    JobFailed,
    MapFunction,
    RestartStrategies,
    SinkFunction,
    SourceFunction,
    StreamExecutionEnvironment,
)

ROOT = Path(__file__).resolve().parents[2]
LOCAL = {"headrace.spark.master": "local[64]", "spark.driver.memory": "1g"}


def environment(parallelism: int, options: dict[str, Any] | None = None) -> StreamExecutionEnvironment:
    """An environment on a local session of its own."""
    configuration = Configuration(LOCAL | (options or {}))
    return StreamExecutionEnvironment.get_execution_environment(configuration).set_parallelism(parallelism)


# --- delay ------------------------------------------------------------------------------------------------------------


class Spaced(SourceFunction):
    """Emits the time of day after each of some pauses."""

    def __init__(self, pauses: list[float]) -> None:
        self.pauses, self.over = pauses, False

    def run(self, ctx: Any) -> None:
        for pause in self.pauses:
            until = time.monotonic() + pause
            while time.monotonic() < until and not self.over:
                time.sleep(min(0.1, max(0.0, until - time.monotonic())))
            ctx.collect(time.time())

    def cancel(self) -> None:
        self.over = True


class Delay(MapFunction):
    """How long ago a record was emitted, in milliseconds."""

    def map(self, value: float) -> float:
        return (time.time() - value) * 1000


def delays(pauses: list[float]) -> list[float]:
    """Milliseconds from the source to the sink, two hops on, of records that come alone."""
    source = environment(2).add_source(Spaced(pauses))
    two_hops = source.key_by(lambda x: int(x * 1000)).map(lambda x: x).rebalance().map(Delay())
    return list(two_hops.execute_and_collect())


@line("lone-record", 400)
def lone_record() -> Outcome:
    """A lone record reaches the sink over two hops in < 50 ms: median of 20, 5 s apart; one after 30 s of silence."""
    *spaced, late = delays([*[5.0] * 21, 30.0])
    median = statistics.median(spaced[1:])  # the first one also starts everything
    figure = f"median {median:.1f} ms, worst {max(spaced[1:]):.1f} ms, after 30 s {late:.1f} ms"
    return Outcome(median < 50 and late < 50, figure)


@line("lone-record-after-10-minutes", 900)
def lone_record_after_ten_minutes() -> Outcome:
    """A lone record reaches the sink over two hops in < 50 ms after 10 minutes of silence."""
    late = delays([3.0, 600.0])[-1]
    return Outcome(late < 50, f"{late:.1f} ms")


# --- memory -----------------------------------------------------------------------------------------------------------

PAYLOAD = "k bigint, v binary"


class Records:
    """A vectorised generator of 1000-byte records."""

    def __call__(self, numbers: np.ndarray[Any, Any]) -> pa.RecordBatch:
        payload = pa.array([b"x" * 992] * len(numbers), pa.binary())
        return pa.RecordBatch.from_arrays([pa.array(numbers), payload], names=["k", "v"])


class SlowSink(SinkFunction):
    """Takes so many records a second."""

    def __init__(self, rate: float) -> None:
        self.rate = rate
        self.due = 0.0

    def invoke(self, value: Any, context: Any) -> None:
        now = time.monotonic()
        self.due = max(self.due, now - 0.1) + 1 / self.rate
        if self.due > now:
            time.sleep(self.due - now)


def source_speed() -> float:
    """Records a second that the same job moves when its sink does nothing."""
    env = environment(2)
    env.from_datagen(Records(), type_info=PAYLOAD, vectorised=True).key_by("k").add_sink(lambda row: None)
    client = env.execute_async()
    client.job.wait_running(120)
    time.sleep(5)
    before = sum(m.records_in for (level, _), m in client.job.metrics().items() if level == 1)
    time.sleep(10)
    after = sum(m.records_in for (level, _), m in client.job.metrics().items() if level == 1)
    client.cancel()
    return (after - before) / 10


def resident(processes: dict[str, psutil.Process]) -> dict[str, int]:
    """Resident bytes of each process; the median of some looks, as collectors make it go up and down."""
    looks = []
    for _ in range(5):
        looks.append({name: p.memory_info().rss for name, p in processes.items()})
        time.sleep(0.5)
    return {name: int(statistics.median(look[name] for look in looks)) for name in processes}


@line("slow-sink-memory", 400)
def slow_sink_memory() -> Outcome:
    """A sink at 1/100 of the source's speed: no process grows by 10 % from second 30 to second 120."""
    speed = source_speed()
    env = environment(2)
    env.from_datagen(Records(), type_info=PAYLOAD, vectorised=True).key_by("k").add_sink(SlowSink(speed / 200))
    client = env.execute_async()
    client.job.wait_running(120)
    started = time.monotonic()
    driver = psutil.Process()
    [jvm] = [p for p in driver.children(recursive=True) if p.name() == "java"]
    processes = {"driver": driver, "jvm": jvm}
    processes |= {f"worker {k[0]}/{k[1]}": psutil.Process(w.pid) for k, w in client.job.workers().items()}
    time.sleep(30 - (time.monotonic() - started))
    first = resident(processes)
    time.sleep(120 - (time.monotonic() - started))
    last = resident(processes)
    client.cancel()
    growth = {name: last[name] / first[name] - 1 for name in processes}
    worst = max(growth, key=lambda name: growth[name])
    sizes = ", ".join(f"{name} {first[name] >> 20}->{last[name] >> 20} MiB" for name in processes)
    return Outcome(
        growth[worst] < 0.10, f"worst {worst} {growth[worst]:+.1%}; sink {speed / 100:.0f} records/s; {sizes}"
    )


# --- order ------------------------------------------------------------------------------------------------------------


class Stamp:
    """Gives each record its writer and the writer's own sequence number."""

    def open(self, runtime_context: Any) -> None:
        self.writer, self.next = runtime_context.get_index_of_this_subtask(), 0

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        numbers = np.arange(self.next, self.next + batch.num_rows)
        self.next += batch.num_rows
        columns = [pa.array(np.full(batch.num_rows, self.writer)), pa.array(numbers)]
        return pa.RecordBatch.from_arrays(columns, names=["writer", "seq"])


class OutOfOrder:
    """Counts records, and those that come before one of the same writer that was sent earlier."""

    def __init__(self) -> None:
        self.last: dict[int, int] = {}

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        writers, numbers = batch.column(0).to_numpy(), batch.column(1).to_numpy()
        wrong = 0
        for writer in np.unique(writers).tolist():
            own = np.concatenate([[self.last.get(writer, -1)], numbers[writers == writer]])
            wrong += int((np.diff(own) <= 0).sum())
            self.last[writer] = int(own[-1])
        return pa.RecordBatch.from_arrays([pa.array([batch.num_rows]), pa.array([wrong])], names=["n", "wrong"])


@line("order", 200)
def order() -> Outcome:
    """The order of each channel is kept over 1,000,000 records: key_by, rebalance and relays, parallelism 4."""
    total = wrong = 0
    for spread in ("hash", "turns", "relays"):
        numbers = environment(4).from_sequence(1, 1_000_000).map_batches(Stamp(), "writer bigint, seq bigint")
        if spread == "hash":
            spread_out = numbers.key_by("seq")
        elif spread == "turns":
            spread_out = numbers.rebalance()
        else:
            detour = numbers.key_by("seq").filter(lambda row: False).rebalance().filter(lambda row: False)
            spread_out = detour.union(numbers.rebalance())
        for row in spread_out.map_batches(OutOfOrder(), "n bigint, wrong bigint").execute_and_collect():
            total, wrong = total + row.n, wrong + row.wrong
    return Outcome(total == 3_000_000 and wrong == 0, f"{total} records, {wrong} out of order")


# --- failures ---------------------------------------------------------------------------------------------------------


class Endless(SourceFunction):
    """Numbers, slowly, for ever."""

    def __init__(self) -> None:
        self.over = False

    def run(self, ctx: Any) -> None:
        n = 0
        while not self.over:
            ctx.collect(n)
            n += 1
            time.sleep(0.01)

    def cancel(self) -> None:
        self.over = True


def endless(options: dict[str, Any], restarts: int) -> Any:
    """A running job."""
    env = environment(2, options)
    if restarts:
        env.set_restart_strategy(RestartStrategies.fixed_delay_restart(restarts, 100))
    env.add_source(Endless()).key_by(lambda x: x).map(lambda x: x).add_sink(lambda x: None)
    client = env.execute_async()
    if not client.job.wait_running(120):
        client.job.raise_if_failed()
    return client


def after_kill(options: dict[str, Any], kill: Callable[[Any], None]) -> Outcome:
    """Kill something: report in < 5 s, no orphan 10 s later; and again with restarts."""
    client = endless(options, 0)
    started = time.monotonic()
    kill(client)
    try:
        client.wait(60)
        return Outcome(False, "the job did not fail")
    except JobFailed:
        reported = time.monotonic() - started
    wait_until(lambda: not running_workers(client.get_job_id()), 10, "orphans after the failure")
    orphans = time.monotonic() - started

    client = endless(options, 3)
    started = time.monotonic()
    kill(client)
    wait_until(lambda: client.job.restarts == 1 and client.job.wait_running(0), 90, "the restart")
    restarted = time.monotonic() - started
    old = [p for p in running_workers(client.get_job_id()) if not p.name().endswith("-1")]
    client.cancel()
    wait_until(lambda: not running_workers(client.get_job_id()), 10, "orphans after the cancel")
    figure = f"reported in {reported:.1f} s, workers gone after {orphans:.1f} s, runs again after {restarted:.1f} s"
    return Outcome(reported < 5 and not old, figure)


@line("kill-worker", 300)
def kill_worker() -> Outcome:
    """kill -9 of a Python worker: failure reported in < 5 s, restart works, no orphan."""
    return after_kill({}, lambda client: os.kill(client.job.workers()[1, 0].pid, signal.SIGKILL))


def executors() -> Iterator[psutil.Process]:
    """The executors below this driver."""
    for process in psutil.Process().children(recursive=True):
        if "CoarseGrainedExecutorBackend" in " ".join(process.cmdline()):
            yield process


@line("kill-executor", 400)
def kill_executor() -> Outcome:
    """kill -9 of an executor on local-cluster[2,4,2048]: failure reported in < 5 s, restart works, no orphan."""
    options = {"headrace.spark.master": "local-cluster[2,4,2048]", "headrace.slots.timeout": "60 s"}
    return after_kill(options, lambda client: next(executors()).kill())


# --- throughput -------------------------------------------------------------------------------------------------------


def figure_of(program: str, *args: str) -> float:
    """The MB/s that a benchmark prints."""
    command = [sys.executable, str(ROOT / "benchmarks" / program), *args]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300)
    return float(json.loads(done.stdout.strip().splitlines()[-1])["mb_per_s"])


@line("throughput", 1800)
def throughput() -> Outcome:
    """Typed 100-byte records, map_batches, key_by, 256 KiB buffers: >= 60 % of the bare exchange, median of 5."""
    bare, ours = [], []
    for _ in range(5):
        bare.append(figure_of("bare_exchange.py", "3000"))
        ours.append(figure_of("exchange.py", "1500"))
    share = statistics.median(ours) / statistics.median(bare)
    lists = f"bare {[round(x) for x in bare]}, ours {[round(x) for x in ours]}"
    return Outcome(
        share >= 0.60,
        f"{statistics.median(ours):.0f} of {statistics.median(bare):.0f} MB/s = {share:.0%}; {lists}",
    )


@line("throughput-per-record", 600)
def throughput_per_record() -> Outcome:
    """The same with functions that are called for each record: no bound, the figure is for the note."""
    figures = [figure_of("exchange.py", "150", "--per-record") for _ in range(3)]
    return Outcome(
        True, f"{statistics.median(figures) * 10_000:,.0f} records/s = {statistics.median(figures):.0f} MB/s"
    )
