"""State: throughput on both backends, memory, pauses of snapshots, time to live."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil

from acceptance.lines import Outcome, line
from headrace.records.key_groups import KeyGroupRange, KeyHasher
from headrace.state.api import StateTtlConfig, ValueStateDescriptor
from headrace.state.backend import BackendSetup
from headrace.state.hashmap.backend import HashMapBackend

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
GIB, MIB = 1 << 30, 1 << 20


def figures(script: str, *args: str) -> list[dict[str, Any]]:
    """The JSON lines that a benchmark prints."""
    done = subprocess.run([sys.executable, str(BENCHMARKS / script), *args], capture_output=True, text=True, check=True)
    return [json.loads(text) for text in done.stdout.splitlines() if text.startswith("{")]


def rate(*args: str) -> float:
    """Records a second: the median of three runs in one session."""
    return statistics.median(f["records_per_s"] for f in figures("headrace_count.py", *args, "--runs", "3"))


@line("w1", 300)
def w1() -> Outcome:
    """A Python function with keyed value state, one output a record: >= 600,000 records/s on 2 cores."""
    found = rate("--records", "5000000")
    return Outcome(found >= 600_000, f"{found:,.0f} records/s")


@line("w2", 300)
def w2() -> Outcome:
    """The built-in running sum, emit=batch: >= 3,000,000 records/s; emit=record is told too."""
    batch = rate("--kind", "sum", "--emit", "batch", "--records", "20000000")
    record = rate("--kind", "sum", "--emit", "record", "--records", "10000000")
    return Outcome(batch >= 3_000_000, f"{batch:,.0f} records/s; emit=record {record:,.0f}")


@line("rocksdb-half-of-hashmap", 400)
def rocksdb_half() -> Outcome:
    """W1 with 100,000 keys: rocksdb at half of hashmap's throughput or more; interleaved, median of 3 ratios."""
    ratios, shown = [], []
    for _ in range(3):
        heap = figures("headrace_count.py", "--records", "3000000")[0]["records_per_s"]
        rocks = figures("headrace_count.py", "--records", "3000000", "--backend", "rocksdb")[0]["records_per_s"]
        ratios.append(rocks / heap)
        shown.append(f"{rocks:,}/{heap:,}")
    ratio = statistics.median(ratios)
    return Outcome(ratio >= 0.5, f"{ratio:.2f} ({', '.join(shown)} records/s)")


class Filled:
    """A hashmap backend with small integer keys and values."""

    def __init__(self, keys: int) -> None:
        groups = KeyGroupRange(0, 127)
        self.backend = HashMapBackend(BackendSetup("line", groups, 128, lambda: 0, incremental=True))
        self.state = self.backend.state(ValueStateDescriptor("n", "bigint"))
        self.hasher = KeyHasher(128)
        self.keys = keys
        self.at = 0
        for first in range(0, keys, 8192):
            self.batch(range(first, min(first + 8192, keys)))

    def batch(self, keys: range) -> float:
        """Update some keys; seconds."""
        addresses = list(keys)
        groups = self.hasher.groups(addresses)
        context, state = self.backend.context, self.state
        start = time.perf_counter()
        self.backend.begin_batch(addresses, groups)
        for context.address, context.group in zip(addresses, groups, strict=True):
            state.update((state.value() or 0) + 1000)
        self.backend.end_batch()
        return time.perf_counter() - start

    def next_batch(self) -> float:
        """Update the next 1,000 keys; seconds."""
        self.at = (self.at + 1000) % (self.keys - 1000)
        return self.batch(range(self.at, self.at + 1000))


@line("hashmap-memory", 400)
def hashmap_memory() -> Outcome:
    """10,000,000 small keys on hashmap fit in < 2.5 GiB of a worker."""
    filled = Filled(10_000_000)
    resident = psutil.Process().memory_info().rss
    keys = sum(1 for _ in filled.backend.addresses("n"))
    return Outcome(resident < 2.5 * GIB, f"{resident / GIB:.2f} GiB resident, {keys:,} keys")


@line("hashmap-pause", 500)
def hashmap_pause() -> Outcome:
    """Synchronous part < 50 ms at 1,000,000 and 10,000,000 keys; no pause > 50 ms in the second after the barrier."""
    worst, shown = 0.0, []
    for keys in (1_000_000, 10_000_000):
        filled = Filled(keys)
        usual = statistics.median(filled.next_batch() for _ in range(50))
        start = time.perf_counter()
        run = filled.backend.snapshot(1)
        sync = time.perf_counter() - start
        # As in the main loop: records and steps of the snapshot in turn; a pause is what a batch of 1,000 takes too long.
        pause, step = 0.0, 0.0
        while time.perf_counter() - start < 1.0:
            before = time.perf_counter()
            next(run, None)
            step = max(step, time.perf_counter() - before)
            pause = max(pause, filled.next_batch() - usual)
        worst = max(worst, sync, pause, step)
        shown.append(f"{keys:,}: sync {sync * 1e3:.1f} ms, pause {pause * 1e3:.1f} ms, step {step * 1e3:.1f} ms")
        del filled, run
    return Outcome(worst < 0.05, "; ".join(shown))


@line("rocksdb-memory", 900)
def rocksdb_memory() -> Outcome:
    """RocksDB with a budget of 64 MiB and 2 GiB of state: resident memory within budget + 300 MiB."""
    found = figures("state_backends.py", "memory")[0]
    grown = found["rss_peak_mib"] - found["rss_before_mib"]
    return Outcome(
        found["rss_peak_mib"] <= 64 + 300 and found["state_gib"] >= 1.9,
        f"peak {found['rss_peak_mib']} MiB (before {found['rss_before_mib']}, grown {grown}), "
        f"{found['state_gib']} GiB of state",
    )


@line("ttl-shrinks", 300)
def ttl_shrinks() -> Outcome:
    """State that is written once and never read shrinks: on disk with rocksdb, in memory with hashmap."""
    sweep = next(f for f in figures("state_backends.py", "ttl") if f["figure"] == "sweep")
    clock = [0]
    backend = HashMapBackend(BackendSetup("line", KeyGroupRange(0, 127), 128, lambda: clock[0]))
    descriptor = ValueStateDescriptor("v", "bigint")
    descriptor.enable_time_to_live(StateTtlConfig.new_builder(1000).build())
    state = backend.state(descriptor)
    for key in range(200_000):
        backend.set_current_key(key)
        state.update(key)
    clock[0] = 2000
    while backend.background_cleanup(10_000):
        pass
    left = sum(1 for _ in backend.addresses("v"))
    freed = sweep["disk_after"] < sweep["disk_before"] / 10
    return Outcome(
        freed and left == 0,
        f"rocksdb {sweep['disk_before'] / MIB:.0f} -> {sweep['disk_after'] / MIB:.1f} MiB in "
        f"{sweep['seconds_until_disk_is_free']} s; hashmap 200,000 -> {left} entries",
    )
