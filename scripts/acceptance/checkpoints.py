"""Checkpoints and recovery on Spark: kills, back-pressure, overhead, increments, files that are left."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pyspark

from acceptance.dataflow import environment, executors
from acceptance.lines import Outcome, line, wait_until
from acceptance.state import figures
from headrace import (
    CheckpointedFunction,
    FlatMapFunction,
    JobClient,
    KeyedCoProcessFunction,
    ListStateDescriptor,
    RestartStrategies,
    StreamExecutionEnvironment,
    ValueStateDescriptor,
)
from headrace.connectors.files import FileSink
from headrace.storage.layout import JobLayout, metadata_path
from headrace.storage.log import load_completed, newest_job
from headrace.storage.remote import open_store

KEYS, KILLS = 20, 20
MODES: dict[str, dict[str, str]] = {
    "aligned": {},
    "unaligned": {"execution.checkpointing.unaligned.enabled": "true"},
    "timeout": {
        "execution.checkpointing.unaligned.enabled": "true",
        "execution.checkpointing.aligned-checkpoint-timeout": "50 ms",
    },
    "at-least-once": {"execution.checkpointing.mode": "AT_LEAST_ONCE"},
}


# --- twenty kills -----------------------------------------------------------------------------------------------------


class NumberBoth(KeyedCoProcessFunction):
    """Numbers the records of each key, from both inputs: keyed state."""

    def open(self, runtime_context: Any) -> None:
        self.count = runtime_context.get_state(ValueStateDescriptor("count", "bigint"))

    def process_element1(self, value: Any, ctx: Any) -> Any:
        number = (self.count.value() or 0) + 1
        self.count.update(number)
        yield value, number

    process_element2 = process_element1


class NumberHere(FlatMapFunction, CheckpointedFunction):
    """Numbers the records of each subtask: operator state."""

    def open(self, runtime_context: Any) -> None:
        self.subtask = runtime_context.get_index_of_this_subtask()

    def initialize_state(self, context: Any) -> None:
        self.state = context.get_operator_state_store().get_list_state(ListStateDescriptor("seen"))
        self.seen = sum(self.state.get())

    def snapshot_state(self, context: Any) -> None:
        self.state.update([self.seen])

    def flat_map(self, value: Any) -> Any:
        self.seen += 1
        yield [*value, self.subtask, self.seen]


def build(env: StreamExecutionEnvironment, directory: str, count: int, rate: float) -> None:
    """Two sources, a two-input keyed operator, an operator with list state, a file sink: three levels."""
    left = env.from_datagen(lambda n: 2 * n, count=count // 2, rate=rate / 2)
    right = env.from_datagen(lambda n: 2 * n + 1, count=count // 2, rate=rate / 2)
    both = left.key_by(lambda v: v % KEYS).connect(right.key_by(lambda v: v % KEYS)).process(NumberBoth())
    both.rebalance().flat_map(NumberHere()).sink_to(FileSink(f"{directory}/out", "json"))


def checkpointed(parallelism: int, options: dict[str, str], directory: str) -> StreamExecutionEnvironment:
    """An environment that takes checkpoints and restarts as often as it must."""
    env = environment(parallelism, options)
    env.enable_checkpointing(200)
    env.get_checkpoint_config().set_checkpoint_storage_dir(f"file://{directory}/checkpoints")
    env.get_checkpoint_config().set_tolerable_checkpoint_failure_number(1000)
    env.set_restart_strategy(RestartStrategies.fixed_delay_restart(1000, 100))
    return env


def kill_often(client: JobClient, kills: int, kill: Callable[[JobClient], None]) -> int:
    """Kill at random moments until so many kills are done or the job has ended; how many were done."""
    job, done = client.job, 0
    while done < kills and job.wait_running(120) and not job.status.is_terminal:
        time.sleep(random.uniform(0.1, 1.5))
        before = job.restarts
        try:
            kill(client)
        except (LookupError, ProcessLookupError, psutil.Error):
            continue
        done += 1
        wait_until(lambda before=before: job.restarts > before or job.status.is_terminal, 60, "the restart")
    return done


def kill_worker(client: JobClient) -> None:
    """Kill -9 of any worker."""
    os.kill(random.choice(list(client.job.workers().values())).pid, signal.SIGKILL)


def kill_executor(_: JobClient) -> None:
    """Kill -9 of an executor."""
    next(executors()).kill()


def written(directory: str) -> list[list[int]]:
    """The rows that are visible: [[id, number of its key], subtask, number in the subtask], flattened."""
    rows = []
    for path in Path(directory, "out").iterdir():
        if not path.name.startswith("."):
            rows += [json.loads(text) for text in path.read_text().splitlines()]
    return rows


def problems(rows: list[list[int]], count: int, exactly_once: bool) -> list[str]:
    """What differs from a run without failures."""
    ids = Counter(row[0] for row in rows)
    found = [f"{count - len(ids)} records are lost"] if len(ids) != count else []
    if not exactly_once:
        return found
    found += [f"{sum(n - 1 for n in ids.values())} records came again"] if len(rows) != len(ids) else []
    for name, group, number in (("key", lambda row: row[0] % KEYS, 1), ("subtask", lambda row: row[2], 3)):
        numbers: dict[int, list[int]] = {}
        for row in rows:
            numbers.setdefault(group(row), []).append(row[number])
        wrong = [one for one, seen in numbers.items() if sorted(seen) != list(range(1, len(seen) + 1))]
        found += [f"the state of {name} {wrong[0]} is wrong"] if wrong else []
    return found


def under_kills(
    mode: str, options: dict[str, str], kill: Callable[[JobClient], None], kills: int, widths: list[int]
) -> Outcome:
    """Run to completion under kills, for each parallelism; compare with a run without failures."""
    shown, good = [], True
    for parallelism in widths:
        with tempfile.TemporaryDirectory(prefix="headrace-line-") as directory:
            env = checkpointed(parallelism, MODES[mode] | options, directory)
            count = 60_000 * (2 if kill is kill_executor else 1)
            build(env, directory, count, rate=1500)
            client = env.execute_async(f"{mode} {parallelism}")
            done: list[int] = []
            killer = threading.Thread(target=lambda c=client, d=done: d.append(kill_often(c, kills, kill)), daemon=True)
            killer.start()
            client.wait(900)
            killer.join(60)
            rows = written(directory)
            wrong = problems(rows, count, exactly_once=mode != "at-least-once")
            good = good and not wrong and bool(done) and done[0] >= kills
            again = len(rows) - len({row[0] for row in rows})
            shown.append(
                f"p={parallelism}: {done[0] if done else '?'} kills, {len(rows):,} rows, {again} repeated"
                + "".join(f", {one}" for one in wrong)
            )
    return Outcome(good, "; ".join(shown))


def _kill_line(mode: str) -> None:
    @line(f"kills-{mode}", 1800)
    def kills() -> Outcome:
        return under_kills(mode, {}, kill_worker, KILLS, [2, 4])

    kills.__doc__ = f"20 kills of workers, {mode}, parallelism 2 and 4: the output equals a run without failures."


for _mode in MODES:
    _kill_line(_mode)


@contextmanager
def standalone(cores: int) -> Iterator[dict[str, str]]:
    """A standalone cluster with two workers on addresses of their own: the options to use it."""
    spark_class = Path(pyspark.__file__).parent / "bin" / "spark-class"
    processes: list[subprocess.Popen[bytes]] = []

    def start(host: str, main: str, *args: str) -> None:
        command = [str(spark_class), f"org.apache.spark.deploy.{main}", "--host", host, *args]
        environment = dict(os.environ) | {"SPARK_LOCAL_IP": host}
        out = subprocess.DEVNULL
        processes.append(subprocess.Popen(command, stdout=out, stderr=out, env=environment, cwd=work))

    with tempfile.TemporaryDirectory(prefix="headrace-cluster-", ignore_cleanup_errors=True) as work:
        with socket.socket() as one:
            one.bind(("127.0.0.1", 0))
            master = f"spark://127.0.0.1:{one.getsockname()[1]}"
        start("127.0.0.1", "master.Master", "--port", master.rpartition(":")[2], "--webui-port", "0")
        for host in ("127.0.0.2", "127.0.0.3"):
            options = ["--cores", str(cores), "--memory", "2g", "--work-dir", f"{work}/{host}", "--webui-port", "0"]
            start(host, "worker.Worker", *options, master)
        os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
        try:
            yield {
                "headrace.spark.master": master,
                "headrace.slots.timeout": "90 s",
                "spark.driver.host": "127.0.0.1",
                "spark.driver.bindAddress": "127.0.0.1",
                "spark.executor.memory": "1g",
                "spark.executor.cores": str(cores),
                "spark.pyspark.python": sys.executable,
            }
        finally:
            for process in reversed(processes):
                process.kill()


@line("kills-executor", 1200)
def kills_executor() -> Outcome:
    """An executor of a standalone cluster with two workers is killed 3 times: the output equals one without failures."""
    with standalone(cores=5) as options:
        return under_kills("aligned", options, kill_executor, 3, [2])


# --- back-pressure ----------------------------------------------------------------------------------------------------


class Slow(FlatMapFunction):
    """Takes so many records a second."""

    def __init__(self, rate: float) -> None:
        self.pause = 1 / rate

    def flat_map(self, value: Any) -> Any:
        time.sleep(self.pause)
        yield value


def duration_under_pressure(options: dict[str, str]) -> tuple[float, bool]:
    """Seconds from trigger to completion of a checkpoint while queues are full, and whether it was unaligned."""
    with tempfile.TemporaryDirectory(prefix="headrace-line-") as directory:
        env = environment(2, options | {"headrace.input.queue-size": "256 kb", "headrace.buffer.size": "16 kb"})
        env.enable_checkpointing(3_600_000)
        env.get_checkpoint_config().set_checkpoint_storage_dir(f"file://{directory}/checkpoints")
        source = env.from_datagen(lambda n: (n, f"{n:08d}" * 125))
        source.key_by(lambda v: v[0]).flat_map(Slow(1000)).add_sink(lambda row: None)
        client = env.execute_async("pressure")
        client.job.wait_running(120)
        time.sleep(8)  # until every queue is full
        started = time.monotonic()
        client.job.trigger_checkpoint(timeout=500)
        seconds = time.monotonic() - started
        newest = client.job.stats.snapshot().history[0]
        client.cancel()
        return seconds, newest.totals.unaligned


@line("back-pressure", 900)
def back_pressure() -> Outcome:
    """Slow operator, full queues: unaligned completes in < 1 s, with a timeout by itself; aligned takes the backlog."""
    aligned, _ = duration_under_pressure(MODES["aligned"])
    unaligned, _ = duration_under_pressure(MODES["unaligned"])
    switched, by_itself = duration_under_pressure(MODES["timeout"])
    figure = f"aligned {aligned:.1f} s, unaligned {unaligned:.2f} s, timeout of 50 ms {switched:.2f} s"
    return Outcome(unaligned < 1 and switched < 1.5 and by_itself and aligned > 2 * unaligned, figure)


# --- overhead and increments ------------------------------------------------------------------------------------------


def overhead(backend: str, kind: str, limit: float) -> Outcome:
    """What checkpoints every second cost, W1 at full speed with 1,000,000 keys: the median of 7 pairs of windows."""
    args = ["--backend", backend, "--checkpoint", kind, "--keys", "1000000", "--pairs", "7", "--stolen", "1"]
    found = figures("checkpoint_cost.py", *args)
    rates = {(figure["pair"], figure["checkpoint"]): figure["records_per_s"] for figure in found}
    lost = [1 - rates[pair, kind] / rates[pair, "none"] for pair in range(7)]
    taken = sum(figure["checkpoints"] for figure in found)
    shown = f"{kind}: {statistics.median(lost):.1%} lost, pairs {[f'{one:.0%}' for one in lost]}, {taken} checkpoints"
    return Outcome(statistics.median(lost) < limit and taken >= 7, shown)


@line("overhead-hashmap", 600)
def overhead_hashmap() -> Outcome:
    """Checkpoints every second against none, hashmap as it is without further options: < 5 % lost."""
    return overhead("hashmap", "full", 0.05)


@line("overhead-rocksdb", 600)
def overhead_rocksdb() -> Outcome:
    """Checkpoints every second against none, rocksdb: < 15 % lost."""
    return overhead("rocksdb", "incremental", 0.15)


@line("increments", 600)
def increments() -> Outcome:
    """1,000 changed keys of 1,000,000 write < 1 % of the full size, on both backends: the median of 20 checkpoints."""
    found = {f["backend"]: f for f in figures("state_backends.py", "increments")}
    shown = [
        f"{name} {f['median_bytes']:,} of {f['full_bytes']:,} bytes = {f['share']:.2%}" for name, f in found.items()
    ]
    return Outcome(len(found) == 2 and all(f["share"] < 0.01 for f in found.values()), "; ".join(shown))


# --- files that are left ----------------------------------------------------------------------------------------------


def files_below(directory: str) -> set[str]:
    """All files of the checkpoints, without the job log; os.walk does not mind what vanishes meanwhile."""
    found = {f"{at}/{name}" for at, _, names in os.walk(f"{directory}/checkpoints") for name in names}
    return {path for path in found if "/log/" not in path}


def orphans(directory: str, *options: str) -> set[str]:
    """What `headrace gc --dry-run` lists."""
    command = [sys.executable, "-m", "headrace.cli.main", "gc", "--dry-run", *options, f"{directory}/checkpoints"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    return set(re.findall(r"\S*/checkpoints/\S+", done.stdout))


@line("bounded-files", 900)
def bounded_files() -> Outcome:
    """200 checkpoints with retained = 2: files on storage stay bounded, and gc --dry-run finds nothing."""
    with tempfile.TemporaryDirectory(prefix="headrace-line-") as directory:
        options = {"execution.checkpointing.num-retained": "2", "execution.checkpointing.incremental": "true"}
        env = checkpointed(2, options | {"execution.checkpointing.data-inline-threshold": "0 kb"}, directory)
        env.enable_checkpointing(50)
        build(env, directory, 10_000_000, rate=2000)
        client = env.execute_async("bounded")
        client.job.wait_running(120)
        counts, completed = [], 0
        while completed < 200:
            time.sleep(0.5)
            completed = client.job.stats.snapshot().counts.completed
            counts.append((completed, len(files_below(directory))))
        early = max(n for at, n in counts if at < 60)
        late = max(n for at, n in counts if at >= 60)
        left = orphans(directory)
        client.cancel()
        figure = f"{completed} checkpoints, at most {early} files before number 60, {late} after; gc finds {len(left)}"
        return Outcome(late <= early + 10 and not left, figure)


def referenced(directory: str, name: str) -> set[str]:
    """The files that retained checkpoints need."""
    store, below = open_store(), f"file://{directory}/checkpoints"
    entry = newest_job(store, below, name)
    layout = JobLayout.of(below, entry.job_id)
    needed: set[str] = set()
    for ref in entry.retained:
        snapshot = load_completed(store, layout, ref)
        needed |= {*snapshot.files(), metadata_path(snapshot.directory)}
    return {path.removeprefix("file://") for path in needed}


@line("files-after-kills", 1200)
def files_after_kills() -> Outcome:
    """After 50 kills of workers gc --dry-run lists exactly the files that no retained checkpoint needs."""
    with tempfile.TemporaryDirectory(prefix="headrace-line-") as directory:
        options = {
            "execution.checkpointing.num-retained": "2",
            "execution.checkpointing.incremental": "true",
            "execution.checkpointing.data-inline-threshold": "0 kb",
            "execution.checkpointing.externalized-checkpoint-retention": "RETAIN_ON_CANCELLATION",
        }
        env = checkpointed(2, options, directory)
        build(env, directory, 10_000_000, rate=2000)
        client = env.execute_async("files")
        done = kill_often(client, 50, kill_worker)
        client.cancel()
        unneeded = files_below(directory) - referenced(directory, "files")
        listed = {path.removeprefix("file://") for path in orphans(directory, "--stopped")}
        figure = f"{done} kills, {len(unneeded)} files unneeded, {len(listed)} listed, {len(listed ^ unneeded)} differ"
        return Outcome(done >= 50 and listed == unneeded, figure)
