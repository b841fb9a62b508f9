"""W3 on Headrace: what checkpoints cost W1, two JSON lines for each pair of windows of one job.

In every other window a checkpoint begins each second, or when the one before has ended, if that is later; `checkpoints` is
the number of those that ended in the window. The windows are in the order without, with, with, without, and so on. Windows
of one job lie close together, so that a machine whose speed changes from minute to minute changes both of a pair.

A shared host may change its speed within seconds, too. A pair in one of whose windows it took away more than --stolen of
the CPU time does not count, and another one is measured; `measured` is the number of pairs so far, at most four times
--pairs. And this program runs a short loop of its own in each window: `loop_us` is the CPU time that it took. A window that
had half the records of another, and loops that took twice as long, says nothing about checkpoints.
"""

import argparse
import json
import statistics
import tempfile
import threading
import time
from typing import Any, Self

from cpu import cpu_times, stolen_since
from headrace_count import TYPE, Discard, Generate, RunningSum

from headrace import JobClient, StreamExecutionEnvironment

SETTLE = 1.0  # seconds at the start of a window that do not count: the window before has after-effects
TRIES = 4
MANY = 1 << 45


def start(env: StreamExecutionEnvironment, a: argparse.Namespace, directory: str) -> JobClient:
    conf = env.get_configuration()
    conf.set("state.backend.type", a.backend)
    conf.set("execution.checkpointing.dir", f"file://{directory}")
    conf.set("execution.checkpointing.interval", "10 h")  # this program triggers them
    conf.set("execution.checkpointing.incremental", a.checkpoint == "incremental")
    stream = env.from_datagen(Generate(a.keys, fill=True), count=MANY, type_info=TYPE, vectorised=True).key_by(0)
    stream.process(RunningSum(), output_type=TYPE).add_sink(Discard())
    client = env.execute_async()
    client.job.wait_running()
    return client


def window(job, seconds: float, parallelism: int) -> dict[str, float]:
    """Records a second, and the speed of the host; each subtask tells its count once a second, each at its own moment."""
    seen: dict[int, list[tuple[float, int]]] = {index: [] for index in range(parallelism)}
    loops: list[float] = []
    before, end = cpu_times(), time.monotonic() + seconds
    while time.monotonic() < end:
        time.sleep(0.02)
        loops.append(loop())
        if job.status.is_terminal:
            raise SystemExit(f"the job is {job.status}")
        for (level, index), metrics in job.metrics().items():
            if level == 1 and (not seen[index] or seen[index][-1][1] != metrics.records_in):
                seen[index].append((time.monotonic(), metrics.records_in))
    # The first count that was seen is older than the window.
    spans = [(counts[1], counts[-1]) for counts in seen.values()]
    found = sum((last - first) / (to - since) for (since, first), (to, last) in spans)
    host = {"loop_us": round(1e6 * statistics.median(loops), 1), "stolen_here": round(stolen_since(before), 4)}
    return {"records_per_s": round(found)} | host


def loop() -> float:
    """CPU seconds of some work that needs nothing but the interpreter."""
    started, total = time.thread_time(), 0
    for i in range(8000):
        total += i * i % 7
    return time.thread_time() - started


class Trigger:
    """Takes a checkpoint each `interval` seconds while it is on; a context, in which nothing fails in silence."""

    def __init__(self, client: JobClient, interval: float) -> None:
        self._client, self._interval = client, interval
        self._on, self._ended = threading.Event(), threading.Event()
        self._idle = threading.Event()
        self._failure: BaseException | None = None
        self._durations: list[float] = []
        self._thread = threading.Thread(target=self._run, daemon=True)

    def switch(self, on: bool) -> None:
        """From now on take them or not; what is under way ends first."""
        if on:
            self._on.set()
            return
        self._on.clear()
        while not self._idle.wait(0.1):
            self._check()

    def ended(self) -> list[float]:
        """How long each took that has ended until now."""
        self._check()
        return list(self._durations)

    def _check(self) -> None:
        if self._failure is not None:
            raise SystemExit(f"a checkpoint failed: {self._failure}")

    def _run(self) -> None:
        try:
            while not self._ended.is_set():
                self._idle.set()
                if not self._on.wait(0.1):
                    continue
                self._idle.clear()
                started = time.monotonic()
                self._client.trigger_checkpoint()
                self._durations.append(time.monotonic() - started)
                self._ended.wait(max(0.0, started + self._interval - time.monotonic()))
        except BaseException as failure:
            self._failure = failure

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._on.clear()
        self._ended.set()
        self._thread.join()


def main() -> None:
    p = argparse.ArgumentParser()
    p.add_argument("--backend", choices=["hashmap", "rocksdb"], default="hashmap")
    p.add_argument("--checkpoint", choices=["full", "incremental"], default="full")
    p.add_argument("--keys", type=int, default=100_000)
    p.add_argument("--parallelism", type=int, default=2)
    p.add_argument("--interval", type=float, default=1.0)
    p.add_argument("--window", type=float, default=6.0)
    p.add_argument("--pairs", type=int, default=12)
    p.add_argument("--stolen", type=float, default=0.03)
    a = p.parse_args()
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(a.parallelism)
    with tempfile.TemporaryDirectory(prefix="headrace-bench-", ignore_cleanup_errors=True) as directory:
        client = start(env, a, directory)
        with Trigger(client, a.interval) as trigger:
            trigger.switch(on=True)
            window(client.job, 2 * a.window, a.parallelism)  # all keys are known, and there is a checkpoint of them
            pair = 0
            for number in range(TRIES * a.pairs):
                lines = []
                for kind in ("none", a.checkpoint) if number % 2 == 0 else (a.checkpoint, "none"):
                    trigger.switch(on=kind != "none")
                    time.sleep(SETTLE)
                    before = len(trigger.ended())
                    found = window(client.job, a.window - SETTLE, a.parallelism)
                    lines.append(line(a, pair, kind, found | {"measured": number + 1}, trigger.ended()[before:]))
                if all(one["stolen_here"] <= a.stolen for one in lines):
                    print("\n".join(json.dumps(one) for one in lines), flush=True)
                    pair += 1
                if pair == a.pairs:
                    break
        client.cancel()
    if pair < a.pairs:
        raise SystemExit(
            f"{pair} of {TRIES * a.pairs} pairs count: in the others the host took more than {a.stolen:.0%}"
        )


def line(
    a: argparse.Namespace, pair: int, kind: str, found: dict[str, float], durations: list[float]
) -> dict[str, Any]:
    figures = {"peer": f"headrace {a.backend}", "work": "W3", "checkpoint": kind} | found
    figures |= {"backend": a.backend, "keys": a.keys, "parallelism": a.parallelism, "pair": pair}
    return figures | {"checkpoints": len(durations), "checkpoint_s": round(statistics.median(durations or [0.0]), 3)}


if __name__ == "__main__":
    main()
