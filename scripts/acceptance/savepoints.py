"""Savepoints, rescaling and full checkpoints on Spark."""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from acceptance.checkpoints import MODES, checkpointed
from acceptance.dataflow import environment
from acceptance.lines import Outcome, line, wait_until
from headrace import (
    AggregateFunction,
    AggregatingStateDescriptor,
    CheckpointedFunction,
    FlatMapFunction,
    JobClient,
    KeyedBroadcastProcessFunction,
    KeyedCoProcessFunction,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    StreamExecutionEnvironment,
    Types,
    ValueStateDescriptor,
)
from headrace.connectors.files import FileSink
from headrace.job_client import SavepointFormat
from headrace.savepoints.reader import StateSnapshotReader
from headrace.storage.layout import creator_of
from headrace.storage.objects import MissingObject

KEYS = 50
COUNT = 24_000
RULES = MapStateDescriptor("rules", "bigint", "bigint")


# --- a job with every kind of state -----------------------------------------------------------------------------------


class CountAggregate(AggregateFunction):
    """Counts."""

    def create_accumulator(self) -> int:
        return 0

    def add(self, value: Any, accumulator: int) -> int:
        return accumulator + 1

    def get_result(self, accumulator: int) -> int:
        return accumulator

    def merge(self, a: int, b: int) -> int:
        return a + b


class EveryState(KeyedCoProcessFunction):
    """Five kinds of keyed state that must always agree, and timers that must all fire."""

    def open(self, runtime_context: Any) -> None:
        self.count = runtime_context.get_state(ValueStateDescriptor("count", "bigint"))
        self.ids = runtime_context.get_list_state(ListStateDescriptor("ids", "bigint"))
        self.by_seven = runtime_context.get_map_state(MapStateDescriptor("by seven", "bigint", "bigint"))
        self.total = runtime_context.get_reducing_state(
            ReducingStateDescriptor("total", lambda a, b: a + b, Types.LONG())
        )
        self.number = runtime_context.get_aggregating_state(
            AggregatingStateDescriptor("number", CountAggregate(), Types.LONG())
        )

    def process_element1(self, value: Any, ctx: Any) -> Iterator[Any]:
        count = (self.count.value() or 0) + 1
        self.count.update(count)
        self.by_seven.put(value % 7, (self.by_seven.get(value % 7) or 0) + 1)
        self.total.add(1)
        self.number.add(value)
        ids = len(list(self.ids.get()))  # of the last twenty at most: to read them all would take a while on disk
        states = ids, sum(self.by_seven.values()), self.number.get(), self.total.get()
        if states != ((count - 1) % 20, count, count, count):
            raise AssertionError(f"the states of key {ctx.get_current_key()} do not agree: {count}, {states}")
        if count % 20:
            self.ids.add(value)
        else:
            self.ids.clear()
        due = (ctx.timer_service().current_processing_time() // 200 + 1) * 200
        ctx.timer_service().register_processing_time_timer(due)
        yield ["record", value, count, due, ctx.get_current_key()]

    process_element2 = process_element1

    def on_timer(self, timestamp: int, ctx: Any) -> Iterator[Any]:
        yield ["timer", 0, 0, timestamp, ctx.get_current_key()]


class SplitAndUnion(FlatMapFunction, CheckpointedFunction):
    """Operator state of both kinds: records seen here, and by everybody up to the last restore."""

    def initialize_state(self, context: Any) -> None:
        store = context.get_operator_state_store()
        self.split = store.get_list_state(ListStateDescriptor("split", "bigint"))
        self.union = store.get_union_list_state(ListStateDescriptor("union", "bigint"))
        self.seen = sum(self.split.get())
        self.own = 0
        self.restored = sum(self.union.get())

    def open(self, runtime_context: Any) -> None:
        if runtime_context.get_index_of_this_subtask() == 0:
            self.own = self.restored  # what all had seen is carried on by one

    def snapshot_state(self, context: Any) -> None:
        self.split.update([self.seen])
        self.union.update([self.own])

    def flat_map(self, value: Any) -> Iterator[Any]:
        self.seen += 1
        self.own += 1
        yield value


class UnderRules(KeyedBroadcastProcessFunction):
    """Broadcast state beside keyed records: every subtask must have every rule that has come."""

    def open(self, runtime_context: Any) -> None:
        self.most = runtime_context.get_state(ValueStateDescriptor("most rules", "bigint"))

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        rules = sum(1 for _ in ctx.get_broadcast_state(RULES).items())
        yield [*value, rules]

    def process_broadcast_element(self, value: Any, ctx: Any) -> list[Any]:
        ctx.get_broadcast_state(RULES).put(value, value)
        return []


def build(env: StreamExecutionEnvironment, directory: str, rate: float | None) -> None:
    """Two sources, a two-input operator with every keyed state and timers, operator state, broadcast state, files."""
    left = env.from_datagen(lambda n: 2 * n, count=COUNT // 2, rate=rate and rate / 2, type_info="bigint").uid("left")
    right = env.from_datagen(lambda n: 2 * n + 1, count=COUNT // 2, rate=rate and rate / 2, type_info="bigint").uid(
        "right"
    )
    rules = env.from_collection(list(range(7)), type_info="bigint").uid("rules").broadcast(RULES)
    both = left.key_by(_key).connect(right.key_by(_key)).process(EveryState()).uid("states")
    counted = both.rebalance().flat_map(SplitAndUnion()).uid("operator state")
    ruled = counted.key_by(_last).connect(rules).process(UnderRules()).uid("rules applied")
    ruled.sink_to(FileSink(f"{directory}/out", "json")).uid("files")


def _key(value: int) -> int:
    return value % KEYS


def _last(row: Any) -> int:
    return int(row[4])


def problem_of(directory: str, ended: float) -> str:
    """What is wrong with the output, if anything: records and their numbers, timers, rules."""
    rows = []
    for path in Path(directory, "out").iterdir():
        if not path.name.startswith("."):
            rows += [json.loads(text) for text in path.read_text().splitlines()]
    records = [row for row in rows if row[0] == "record"]
    if Counter(row[1] for row in records) != Counter(range(COUNT)):
        return f"{len(records)} records instead of {COUNT}"
    for key in range(KEYS):
        if sorted(row[2] for row in records if row[4] == key) != list(range(1, COUNT // KEYS + 1)):
            return f"the records of key {key} are not numbered 1 to {COUNT // KEYS}"
    fired = Counter((row[4], row[3]) for row in rows if row[0] == "timer")
    registered = {(row[4], row[3]) for row in records}
    if any(times > 1 for times in fired.values()) or not fired.keys() <= registered:
        return "a timer fired twice, or was never set"
    late = [one for one in registered - fired.keys() if one[1] < ended * 1000 - 3000]
    if late:
        return f"{len(late)} timers never fired, the first is {min(late)}"
    if max(row[5] for row in records) != 7:
        return "the rules were lost"
    return ""


def stop(client: JobClient, how: str, directory: str) -> str:
    """End a run half-way: where the next one starts from."""
    job = client.job
    done = lambda: job.stats.snapshot().latest.get("completed")  # noqa: E731
    before = done()
    wait_until(lambda: done() is not None and (before is None or done().id > before.id + 1), 60, "checkpoints")
    if how in ("canonical", "native"):
        return client.stop_with_savepoint(
            savepoint_directory=f"file://{directory}/savepoints", format=SavepointFormat[how.upper()]
        )
    client.cancel()
    return str(done().external_path)


def through(sequence: tuple[int, ...], how: str, backend: str, mode: str) -> str:
    """One job through several parallelisms; what is wrong, if anything."""
    with tempfile.TemporaryDirectory(prefix="headrace-rescale-") as directory:
        path: str | None = None
        for place, parallelism in enumerate(sequence):
            last = place == len(sequence) - 1
            options = {
                "state.backend.type": backend,
                "execution.checkpointing.incremental": "true",
                "execution.checkpointing.externalized-checkpoint-retention": "RETAIN_ON_CANCELLATION",
                **MODES[mode],
            }
            if path is not None:
                options["execution.state-recovery.path"] = path
            env = checkpointed(parallelism, options, directory)
            build(env, directory, rate=None if last else 1200)
            client = env.execute_async(f"rescale {place}")
            client.job.wait_running(120)
            if not last:
                path = stop(client, how, directory)
                continue
            client.wait(240)
        return problem_of(directory, time.time())


def matrix(sequence: tuple[int, ...]) -> Outcome:
    """Checkpoints of both backends, aligned and unaligned, and savepoints of both formats and backends."""
    cases = [("checkpoint", backend, mode) for backend in ("hashmap", "rocksdb") for mode in ("aligned", "unaligned")]
    cases += [(format, backend, "aligned") for format in ("canonical", "native") for backend in ("hashmap", "rocksdb")]
    problems = [f"{case}: {problem}" for case in cases if (problem := through(sequence, *case))]
    return Outcome(not problems, f"{len(cases)} cases, {len(problems)} wrong {problems[:3]}")


@line("rescale-2-5-3", 1500)
def rescale_up_and_down() -> Outcome:
    """Parallelism 2 -> 5 -> 3 from checkpoints and savepoints: nothing lost or repeated."""
    return matrix((2, 5, 3))


@line("rescale-4-1-4", 1500)
def rescale_to_one_and_back() -> Outcome:
    """Parallelism 4 -> 1 -> 4, the same."""
    return matrix((4, 1, 4))


# --- full checkpoints -------------------------------------------------------------------------------------------------


def _sum_job(env: StreamExecutionEnvironment, keys: int, count: int | None) -> JobClient:
    """The built-in running sum over so many keys; every key comes in turn."""

    def generate(numbers: Any) -> pa.RecordBatch:
        spread = (numbers.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(20)
        key = np.where(numbers < keys, numbers, (spread % np.uint64(keys)).astype(np.int64))
        return pa.RecordBatch.from_arrays([pa.array(key), pa.array(numbers % 100)], schema=PAIR.schema)

    stream = env.from_datagen(
        generate, count=count, rate=60_000 if count is None else None, type_info=PAIR, vectorised=True
    )
    stream.uid("source").key_by(0).sum(1, emit="batch").uid("sum").map_batches(lambda batch: None).print()
    return env.execute_async("sum")


PAIR = Types.TUPLE([Types.LONG(), Types.LONG()])


def full_checkpoint(trigger: str, backend: str) -> tuple[bool, str]:
    """Ten increments, a full checkpoint, three increments: what each of them needs."""
    limits = {
        "policy": {"headrace.full-checkpoint.max-chain-length": "60"},
        "cron": {"headrace.full-checkpoint.cron": "* * * * *"},
    }
    with tempfile.TemporaryDirectory(prefix="headrace-full-", ignore_cleanup_errors=True) as directory:
        options = {
            "state.backend.type": backend,
            "execution.checkpointing.incremental": "true",
            "web.checkpoints.history": "500",
            **limits.get(trigger, {}),
        }
        env = checkpointed(2, options, directory)
        client = _sum_job(env, 300_000, None)
        job = client.job
        job.wait_running(120)
        completed = lambda: [s for s in job.stats.snapshot().history if s.completed_timestamp]  # noqa: E731
        wait_until(lambda: len([s for s in completed() if not s.full]) >= 9, 120, "increments")
        rate = _rate(job, 3.0)
        before, files = _newest_files(completed)
        files_before = len(files)
        if trigger == "request":
            client.trigger_checkpoint(full=True)
        wait_until(lambda: any(s.full and s.id > before.id for s in completed()), 240, "the full checkpoint")
        during = _rate(job, 3.0)
        full = next(s for s in completed() if s.full and s.id > before.id)
        wait_until(lambda: completed()[0].id >= full.id + 3, 60, "later increments")
        _, files = _newest_files(completed)
        creators = {creator for creator, _ in files}
        shared = [str(p) for p in Path(directory, "checkpoints").glob("*/shared/*")]
        old = [path for path in shared if (creator_of(path) or full.id) < full.id]  # one that is being written has none
        client.cancel()
        ok = min(creators) >= full.id and not old
        figure = (
            f"{trigger}/{backend}: files of a restore {files_before} -> {len(files)}, reason "
            f"'{full.full_reason}', oldest creator {min(creators)} (full is {full.id}), older shared files {len(old)}, "
            f"records/s {rate:,.0f} before, {during:,.0f} during"
        )
        return ok, figure


def _newest_files(completed: Callable[[], list[Any]]) -> tuple[Any, list[tuple[int, str]]]:
    """The newest checkpoint that can be read before the next one takes its place, and the files of a restore from it."""
    while True:
        newest = completed()[0]
        try:
            return newest, _restore_files(str(newest.external_path))
        except MissingObject:
            continue


def _restore_files(path: str) -> list[tuple[int, str]]:
    """(checkpoint that wrote it, file) of each file that a restore reads."""
    found = StateSnapshotReader.open(path).files()
    return [(creator_of(file) or 0, file) for file in found]


def _rate(job: Any, seconds: float) -> float:
    """Records a second that the job takes in now."""
    read = lambda: sum(m.records_out for (level, _), m in job.metrics().items() if level == 0)  # noqa: E731
    before, at = read(), time.monotonic()
    time.sleep(seconds)
    return float(read() - before) / (time.monotonic() - at)


@line("full-checkpoints", 1500)
def full_checkpoints() -> Outcome:
    """A full checkpoint by request, by policy and by schedule: the old chain is freed."""
    results = [full_checkpoint(t, b) for t in ("request", "policy", "cron") for b in ("hashmap", "rocksdb")]
    return Outcome(all(ok for ok, _ in results), "; ".join(figure for _, figure in results))


# --- large savepoints -------------------------------------------------------------------------------------------------


def disk_speed(directory: str, size: int) -> tuple[float, float]:
    """Bytes a second of the disk: written with fsync, and read."""
    path = Path(directory) / "probe"
    block = os.urandom(1 << 20)
    started = time.monotonic()
    with path.open("wb") as file:
        for _ in range(size >> 20):
            file.write(block)
        file.flush()
        os.fsync(file.fileno())
    wrote = size / (time.monotonic() - started)
    os.system("sync")  # noqa: S605, S607
    started = time.monotonic()
    with path.open("rb") as file:
        while file.read(1 << 20):
            pass
    read = size / (time.monotonic() - started)
    path.unlink()
    return wrote, read


def filled_job(env: StreamExecutionEnvironment, keys: int) -> JobClient:
    """The same sum, filled as fast as it goes; then a trickle, so that no barrier waits behind a backlog."""

    def fill(numbers: Any) -> pa.RecordBatch:
        return pa.RecordBatch.from_arrays([pa.array(numbers), pa.array(numbers % 100)], schema=PAIR.schema)

    filling = env.from_datagen(fill, count=keys, type_info=PAIR, vectorised=True).uid("fill")
    trickle = env.from_datagen(fill, rate=1000, type_info=PAIR, vectorised=True).uid("trickle")
    summed = filling.union(trickle).key_by(0).sum(1, emit="batch").uid("sum")
    summed.map_batches(lambda batch: None).print()
    return env.execute_async("sum")


def large_savepoint(keys: int, backend: str) -> str:
    """Savepoints of both formats, and a restore from each."""
    figures = []
    with tempfile.TemporaryDirectory(prefix="headrace-large-") as directory:
        wrote, read = disk_speed(directory, 512 << 20)
        figures.append(f"disk {wrote / 1e6:.0f} MB/s written, {read / 1e6:.0f} MB/s read")
        env = environment(2, {"state.backend.type": backend, "execution.checkpointing.timeout": "20 min"})
        client = filled_job(env, keys)
        job = client.job
        job.wait_running(120)
        taken = lambda: sum(m.records_in for (level, _), m in job.metrics().items() if level == 1)  # noqa: E731
        wait_until(lambda: taken() >= keys, 900, "all keys")
        for format in ("native", "canonical"):
            started = time.monotonic()
            path = client.trigger_savepoint(
                f"file://{directory}/{format}", SavepointFormat[format.upper()], timeout=1100
            )
            seconds = time.monotonic() - started
            size = sum(p.stat().st_size for p in Path(path.removeprefix("file://")).rglob("*") if p.is_file())
            figures.append(f"{format} {size / 1e6:.0f} MB in {seconds:.1f} s = {size / seconds / 1e6:.0f} MB/s")
        client.cancel()
        for format in ("native", "canonical"):
            (path,) = map(str, Path(directory, format).iterdir())
            env = environment(2, {"state.backend.type": backend, "execution.state-recovery.path": path})
            started = time.monotonic()
            client = filled_job(env, keys)
            client.job.wait_running(1100)
            figures.append(f"restored {format} in {time.monotonic() - started:.1f} s (with the start of the job)")
            client.cancel()
    return f"{backend}: " + ", ".join(figures)


@line("savepoint-1m", 1800)
def savepoint_of_a_million() -> Outcome:
    """Savepoints and restores of 1,000,000 keys, beside the disk's own speed."""
    return Outcome(True, "; ".join(large_savepoint(1_000_000, backend) for backend in ("hashmap", "rocksdb")))


@line("savepoint-10m", 3600)
def savepoint_of_ten_million() -> Outcome:
    """Savepoints and restores of 10,000,000 keys, beside the disk's own speed."""
    return Outcome(True, "; ".join(large_savepoint(10_000_000, backend) for backend in ("hashmap", "rocksdb")))
