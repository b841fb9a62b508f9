"""W3 on Headgate: what checkpoints cost W1, two JSON lines for each pair of windows of one job.

In every other window a checkpoint begins each second, or when the one before has ended, if that is later; `checkpoints` is
the number of those that ended in the window. The windows are in the order without, with, with, without, and so on. Windows
of one job lie close together, so that a machine whose speed changes from minute to minute changes both of a pair.
"""

import argparse
import json
import statistics
import tempfile
import threading
import time
from typing import Self

from headgate_count import TYPE, Discard, Generate, RunningSum

from headgate import JobClient, StreamExecutionEnvironment

SETTLE = 1.0  # seconds at the start of a window that do not count: the window before has after-effects
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


def rate(job, seconds: float, parallelism: int) -> float:
    """Records a second: each subtask tells its count once a second, each at its own moment."""
    seen: dict[int, list[tuple[float, int]]] = {index: [] for index in range(parallelism)}
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        time.sleep(0.02)
        if job.status.is_terminal:
            raise SystemExit(f"the job is {job.status}")
        for (level, index), metrics in job.metrics().items():
            if level == 1 and (not seen[index] or seen[index][-1][1] != metrics.records_in):
                seen[index].append((time.monotonic(), metrics.records_in))
    # The first count that was seen is older than the window.
    spans = [(counts[1], counts[-1]) for counts in seen.values()]
    return sum((last - first) / (to - since) for (since, first), (to, last) in spans)


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
    a = p.parse_args()
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(a.parallelism)
    with tempfile.TemporaryDirectory(prefix="headgate-bench-", ignore_cleanup_errors=True) as directory:
        client = start(env, a, directory)
        with Trigger(client, a.interval) as trigger:
            trigger.switch(on=True)
            rate(client.job, 2 * a.window, a.parallelism)  # all keys are known, and there is a checkpoint of them
            for pair in range(a.pairs):
                for kind in ("none", a.checkpoint) if pair % 2 == 0 else (a.checkpoint, "none"):
                    trigger.switch(on=kind != "none")
                    time.sleep(SETTLE)
                    before = len(trigger.ended())
                    found = rate(client.job, a.window - SETTLE, a.parallelism)
                    report(a, pair, kind, found, trigger.ended()[before:])
        client.cancel()


def report(a: argparse.Namespace, pair: int, kind: str, found: float, durations: list[float]) -> None:
    figures = {"peer": f"headgate {a.backend}", "work": "W3", "records_per_s": round(found), "checkpoint": kind}
    figures |= {"backend": a.backend, "keys": a.keys, "parallelism": a.parallelism, "pair": pair}
    figures |= {"checkpoints": len(durations), "checkpoint_s": round(statistics.median(durations or [0.0]), 3)}
    print(json.dumps(figures), flush=True)


if __name__ == "__main__":
    main()
