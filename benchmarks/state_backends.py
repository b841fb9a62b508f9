"""Keyed state backends without Spark: throughput, memory and disk.

    python benchmarks/state_backends.py                 hashmap and rocksdb side by side, one minute
    python benchmarks/state_backends.py memory [KEYS BYTES]  rocksdb, 64 MiB budget, 2 GiB of state: resident memory
    python benchmarks/state_backends.py ttl             rocksdb: cost of a time to live, and what a sweep frees
    python benchmarks/state_backends.py increments      bytes on storage of 1,000 changed keys of 1,000,000
    python benchmarks/state_backends.py index           what an expiry index would cost instead of the sweep

Prints one JSON line per figure. The loop is what a keyed operator does for each record: select the key, read its value,
store a new one.
"""

from __future__ import annotations

import json
import random
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import Executor, Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil

from headrace.checkpoint.barriers.instructions import AlignmentMetrics
from headrace.checkpoint.types import Barrier, CheckpointOptions
from headrace.control.deployment import WorkerStorage
from headrace.control.messages import AcknowledgeCheckpoint
from headrace.records.key_groups import KeyGroupRange, KeyHasher
from headrace.state.addresses import in_namespace
from headrace.state.api import StateTtlConfig, ValueStateDescriptor
from headrace.state.backend import BackendSetup, KeyedStateBackend
from headrace.state.hashmap.backend import HashMapBackend
from headrace.state.operator import OperatorStateSnapshot
from headrace.state.rocksdb import MemoryBudget, RocksDBBackend
from headrace.storage.layout import AttemptId
from headrace.worker.operators.base import OperatorSnapshot
from headrace.worker.snapshots.snapshot_writer import SnapshotWriter
from headrace.worker.snapshots.taken_snapshots import SnapshotInProgress

MAX_PARALLELISM = 128
BACKENDS: dict[str, type[KeyedStateBackend]] = {"hashmap": HashMapBackend, "rocksdb": RocksDBBackend}


def report(**figure: Any) -> None:
    """One line of the result."""
    print(json.dumps(figure), flush=True)


class Bench:
    """A backend in a directory of its own, and batches of keys for it."""

    def __init__(self, kind: type[KeyedStateBackend], clock: Callable[[], int] = lambda: 0) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="headrace-bench-"))
        groups = KeyGroupRange(0, MAX_PARALLELISM - 1)
        self.backend = kind(
            BackendSetup("bench", groups, MAX_PARALLELISM, clock, incremental=True, directory=self.directory / "state")
        )
        self.checkpoint = 0

    def close(self) -> None:
        self.backend.dispose()
        shutil.rmtree(self.directory, ignore_errors=True)

    def snapshot(self) -> tuple[float, float, int]:
        """A confirmed checkpoint: seconds of its synchronous part, of its longest step, and bytes."""
        self.checkpoint += 1
        start = time.perf_counter()
        run = self.backend.snapshot(self.checkpoint)
        sync = time.perf_counter() - start
        longest, size = 0.0, 0
        start = time.perf_counter()
        for _, data in run:
            longest = max(longest, time.perf_counter() - start)
            size += len(data)
            start = time.perf_counter()
        self.backend.notify_complete(self.checkpoint)
        return sync, longest, size

    def batches(self, keys: list[Any], size: int, count: int, seed: int) -> list[tuple[list[Any], list[int]]]:
        """Random keys and their groups."""
        chance = random.Random(seed)
        group_of = dict(zip(keys, KeyHasher(MAX_PARALLELISM).groups(keys), strict=True))
        chosen = [chance.choices(keys, k=size) for _ in range(count)]
        return [(self.backend.prepare_keys(batch), [group_of[key] for key in batch]) for batch in chosen]


def count_records(backend: KeyedStateBackend, state: Any, batches: list[tuple[list[Any], list[int]]]) -> float:
    """The hot loop over all batches; seconds."""
    context = backend.context
    start = time.perf_counter()
    for addresses, groups in batches:
        backend.begin_batch(addresses, groups)
        for context.address, context.group in zip(addresses, groups, strict=True):
            state.update((state.value() or 0) + 1)
        backend.end_batch()
    return time.perf_counter() - start


def throughput(keys: int, batch: int, records: int, rounds: int, *, kind: str) -> None:
    """Both backends in turn, with a checkpoint in the middle of each round."""
    names = [f"user-{i}" for i in range(keys)] if kind == "str" else list(range(keys))
    benches = {name: Bench(backend) for name, backend in BACKENDS.items()}
    rates: dict[str, list[float]] = {name: [] for name in benches}
    pauses: dict[str, tuple[float, float, int]] = {}
    states = {name: bench.backend.state(ValueStateDescriptor("n", "bigint")) for name, bench in benches.items()}
    batches = next(iter(benches.values())).batches(names, batch, records // batch, 1)
    half = len(batches) // 2
    for bench, state in zip(benches.values(), states.values(), strict=True):
        count_records(bench.backend, state, batches)  # every key is there
    for _ in range(rounds):
        for name, bench in benches.items():
            seconds = count_records(bench.backend, states[name], batches[:half])
            start = time.perf_counter()
            pauses[name] = bench.snapshot()
            seconds += time.perf_counter() - start
            seconds += count_records(bench.backend, states[name], batches[half:])
            rates[name].append(len(batches) * batch / seconds)
    for name, found in rates.items():
        sync, longest, size = pauses[name]
        report(
            figure="throughput",
            backend=name,
            keys=keys,
            key=kind,
            batch=batch,
            records_per_second=round(statistics.median(found)),
            checkpoint_sync_ms=round(sync * 1e3, 1),
            checkpoint_longest_step_ms=round(longest * 1e3, 1),
            checkpoint_bytes=size,
        )
    ratios = [rocks / heap for rocks, heap in zip(rates["rocksdb"], rates["hashmap"], strict=True)]
    report(figure="rocksdb / hashmap", keys=keys, key=kind, batch=batch, ratio=round(statistics.median(ratios), 2))
    for bench in benches.values():
        bench.close()


class Inline(Executor):
    """Writes at once, in the caller's thread."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        fn(*args, **kwargs)
        return Future()


class Checkpoints:
    """Checkpoints of a backend on a local disk, by the production writer; each is confirmed."""

    def __init__(self, bench: Bench) -> None:
        self.bench, self.number = bench, 0
        self.directory = Path(tempfile.mkdtemp(prefix="headrace-bench-"))
        self.acks: list[Any] = []
        storage = WorkerStorage(AttemptId(1, 0), f"{self.directory}/shared", 20 * 1024)
        self.writer = SnapshotWriter(storage, "v0-s0", self.acks.append, executor=Inline())

    def take(self) -> int:
        """Bytes written."""
        self.number += 1
        location = self.directory / f"chk-{self.number}"
        for directory in (location, self.directory / "shared"):
            directory.mkdir(exist_ok=True)
        barrier = Barrier(self.number, 0, CheckpointOptions(location=str(location)))
        run = self.bench.backend.snapshot(self.number)
        operator = OperatorSnapshot(SimpleNamespace(id="0" * 32), 0, OperatorStateSnapshot, run)
        self.writer.start(SnapshotInProgress(barrier, [operator], AlignmentMetrics()))
        self.bench.backend.notify_complete(self.number)
        ack = self.acks.pop()
        assert isinstance(ack, AcknowledgeCheckpoint), ack
        return ack.checkpointed_size

    def close(self) -> None:
        shutil.rmtree(self.directory, ignore_errors=True)


def increments(keys: int = 1_000_000, changed: int = 1_000, count: int = 20) -> None:
    """What a checkpoint writes when few keys of many have changed since the last."""
    hasher = KeyHasher(MAX_PARALLELISM)
    for name, kind in BACKENDS.items():
        bench = Bench(kind)
        state = bench.backend.state(ValueStateDescriptor("n", "bigint"))
        checkpoints = Checkpoints(bench)

        def touch(numbers: list[int], bench: Bench = bench, state: Any = state) -> None:
            for at in range(0, len(numbers), 8192):
                part = numbers[at : at + 8192]
                count_records(bench.backend, state, [(bench.backend.prepare_keys(part), hasher.groups(part))])

        touch(list(range(keys)))
        full = checkpoints.take()
        chance, sizes = random.Random(1), []
        for _ in range(count):
            touch(chance.sample(range(keys), changed))
            sizes.append(checkpoints.take())
        middle = statistics.median(sizes)
        report(
            figure="increments",
            backend=name,
            keys=keys,
            changed=changed,
            full_bytes=full,
            median_bytes=round(middle),
            largest_bytes=max(sizes),
            share=round(middle / full, 5),
        )
        checkpoints.close()
        bench.close()


def memory(keys: int, size: int) -> None:
    """More state than fits into a budget of 64 MiB."""
    MemoryBudget.configure(64 << 20)
    process = psutil.Process()
    before = process.memory_info().rss
    bench = Bench(RocksDBBackend)
    backend = bench.backend
    state = backend.state(ValueStateDescriptor("blob", "binary"))
    context = backend.context
    hasher = KeyHasher(MAX_PARALLELISM)
    chance = random.Random(1)
    peak = 0
    start = time.perf_counter()
    for first in range(0, keys, 4096):
        addresses = list(range(first, min(first + 4096, keys)))
        groups = hasher.groups(addresses)
        backend.begin_batch(addresses, groups)
        for context.address, context.group in zip(addresses, groups, strict=True):
            state.update(chance.randbytes(size))
        backend.end_batch()
        peak = max(peak, process.memory_info().rss)
    written = time.perf_counter() - start
    bench.snapshot()
    start = time.perf_counter()
    reads = 100_000
    for _ in range(reads // 4096):
        addresses = [chance.randrange(keys) for _ in range(4096)]
        groups = hasher.groups(addresses)
        backend.begin_batch(addresses, groups)
        for context.address, context.group in zip(addresses, groups, strict=True):
            assert len(state.value()) == size
        backend.end_batch()
        peak = max(peak, process.memory_info().rss)
    read = time.perf_counter() - start
    blocks, buffers = MemoryBudget.shared().usage()
    disk = sum(file.stat().st_size for file in (bench.directory / "state").rglob("*.sst"))
    report(
        figure="memory",
        budget_mib=64,
        keys=keys,
        state_gib=round(keys * size / 2**30, 2),
        disk_gib=round(disk / 2**30, 2),
        rss_before_mib=before >> 20,
        rss_peak_mib=peak >> 20,
        rss_end_mib=process.memory_info().rss >> 20,
        block_cache_mib=blocks >> 20,
        memtables_mib=buffers >> 20,
        writes_per_second=round(keys / written),
        reads_per_second=round(reads / read),
    )
    bench.close()


def fill(bench: Bench, state: Any, keys: int, value: bytes) -> float:
    """Write every key once; seconds of CPU, RocksDB's threads included, with all rows in files."""
    backend, context = bench.backend, bench.backend.context
    hasher = KeyHasher(MAX_PARALLELISM)
    start = time.process_time()
    for first in range(0, keys, 8192):
        addresses = list(range(first, min(first + 8192, keys)))
        groups = hasher.groups(addresses)
        backend.begin_batch(addresses, groups)
        for context.address, context.group in zip(addresses, groups, strict=True):
            state.update(value)
        backend.end_batch()
    bench.snapshot()
    return time.process_time() - start


def disk(bench: Bench) -> int:
    """Bytes of the files of rows."""
    return sum(file.stat().st_size for file in (bench.directory / "state" / "db").glob("*.sst"))


def ttl(keys: int = 1_000_000) -> None:
    """What a time to live costs when state is written, and what a sweep costs and frees."""
    clock = [0]
    value = bytes(range(100))
    for lives in (None, 1000):
        bench = Bench(RocksDBBackend, lambda: clock[0])
        descriptor = ValueStateDescriptor("v", "binary")
        if lives is not None:
            descriptor.enable_time_to_live(StateTtlConfig.new_builder(lives).build())
        seconds = fill(bench, bench.backend.state(descriptor), keys, value)
        report(figure="write", ttl=lives is not None, cpu_us_per_key=round(seconds / keys * 1e6, 2), disk=disk(bench))
        if lives is not None:
            clock[0] = 999
            before = disk(bench)
            cpu = time.process_time()
            bench.backend.background_cleanup(keys)
            looked = time.process_time() - cpu
            clock[0] = 2000
            cpu, longest, removed = time.process_time(), 0.0, 0
            while True:
                start = time.perf_counter()
                found = bench.backend.background_cleanup(10_000)
                longest = max(longest, time.perf_counter() - start)
                if not found:
                    break
                removed += found
            removing = time.process_time() - cpu
            start = time.perf_counter()
            while disk(bench) > before // 20 and time.perf_counter() - start < 60:
                time.sleep(0.1)
            report(
                figure="sweep",
                keys=keys,
                removed=removed,
                cpu_us_per_live_row=round(looked / keys * 1e6, 2),
                cpu_us_per_dead_row=round(removing / keys * 1e6, 2),
                longest_step_of_10000_ms=round(longest * 1e3),
                disk_before=before,
                disk_after=disk(bench),
                seconds_until_disk_is_free=round(time.perf_counter() - start, 1),
            )
        bench.close()


def index(keys: int = 1_000_000) -> None:
    """The road not taken: one more row per write, sorted by expiry."""
    bench = Bench(RocksDBBackend)
    rows = bench.backend
    state = rows.state(ValueStateDescriptor("v", "binary"))
    entry = rows.state(ValueStateDescriptor("expiry", "binary"))
    context = rows.context
    hasher = KeyHasher(MAX_PARALLELISM)
    value = bytes(range(100))
    start = time.process_time()
    for first in range(0, keys, 8192):
        addresses = list(range(first, min(first + 8192, keys)))
        groups = hasher.groups(addresses)
        rows.begin_batch(addresses, groups)
        for context.address, context.group in zip(addresses, groups, strict=True):
            state.update(value)
            context.address = in_namespace(context.address, first)
            entry.update(b"")
        rows.end_batch()
    bench.snapshot()
    seconds = time.process_time() - start
    report(figure="write", expiry_index=True, cpu_us_per_key=round(seconds / keys * 1e6, 2), disk=disk(bench))
    bench.close()


def main() -> None:
    """Run what the command line names."""
    what = sys.argv[1] if len(sys.argv) > 1 else "throughput"
    if what == "throughput":
        for keys, batch in ((100_000, 4096), (100_000, 16384), (1_000_000, 16384)):
            throughput(keys, batch, 1_000_000, 3, kind="str")
        throughput(100_000, 4096, 1_000_000, 3, kind="int")
    elif what == "memory":
        memory(int(sys.argv[2]) if len(sys.argv) > 2 else 2_100_000, int(sys.argv[3]) if len(sys.argv) > 3 else 1000)
    elif what == "ttl":
        ttl()
    elif what == "increments":
        increments()
    elif what == "index":
        index()
    else:
        sys.exit(f"unknown: {what}; see the top of the file")


if __name__ == "__main__":
    main()
