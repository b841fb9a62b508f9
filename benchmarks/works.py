"""What `run.py` runs: each work is a list of programs, our own and the peers'.

W1      a Python function with value state           W6   W1 with few keys that have most of the records
W2      the built-in running sum                     W8   timers and windows
shapes  W1 with other keys, state and records        W9   W1 by the number of keys, and by parallelism
W3      W1 with checkpoints every second             W10  checkpoints behind a slow operator
W4      cores and latency at a given rate            W11  Kafka to Kafka, exactly once
W5      checkpoints, savepoints, restores            W12  Nexmark
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

OWN = "headrace"
FORMER_NAME = "headgate"  # of the package in checkouts from before it was renamed
BACKENDS = ("hashmap", "rocksdb")


@dataclass(frozen=True)
class Bench:
    """One program to run.

    In its arguments `{run}` stands for an empty directory of one run, `{work}` for one that stays.
    """

    label: str  # the work, the engine, its setting
    group: str  # figures of one group are compared
    engine: str  # "": each line names its own, as `peer`
    environment: str
    script: str
    args: tuple[str, ...]
    by: tuple[str, ...] = ()  # what tells the lines of one run from each other
    limit: int = 280  # seconds for one run
    once: bool = False  # the program has rounds of its own
    base: Path | None = None  # the checkout that it belongs to, if not this one


@dataclass(frozen=True)
class Settings:
    """How large everything is, and who takes part."""

    scale: float = 1.0
    peers: bool = True
    base: Path | None = None
    rounds: int = 3

    def records(self, full: int) -> str:
        return str(max(2000, round(full * self.scale)))

    def seconds(self, full: float) -> str:
        return f"{max(2.0, full * min(1.0, self.scale)):g}"

    def keys(self, *counts: int) -> list[int]:
        """Those that a run of this scale has time for, or the smallest."""
        return [count for count in counts if count <= 10_000_000 * self.scale] or [min(counts)]


def own(label: str, engine: str, script: str, *args: str, group: str = "", **more) -> Bench:
    return Bench(label, group or label.split(maxsplit=1)[0], engine, OWN, script, args, **more)


def count(work: str, backend: str, *args: str, note: str = "", **more) -> Bench:
    """`headrace_count.py` on a backend."""
    engine = f"headrace {backend}"
    return own(f"{work} {engine} {note}".strip(), engine, "headrace_count.py", "--backend", backend, *args, **more)


def peer(
    work: str, name: str, script: str, *args: str, note: str = "", group: str = "", environment: str = ""
) -> Bench:
    label = f"{work} {name} {note}".strip()
    return Bench(label, group or work, name, environment or name, script, args)


def pyflink(work: str, *args: str, mode: str = "thread", note: str = "", group: str = "") -> Bench:
    """`flink_process.py`; one thread is faster than two, two processes are faster than one."""
    where = ("--work", "{run}", "--mode", mode, "--parallelism", "1" if mode == "thread" else "2")
    return peer(work, "pyflink", "flink_process.py", *where, *args, note=note, group=group, environment="flink")


def then(s: Settings, *benches: Bench) -> list[Bench]:
    """The same programs of an older checkout, if one was named."""
    if s.base is None:
        return []
    name = OWN if (s.base / "src" / OWN).exists() else FORMER_NAME
    renamed = [(bench, bench.engine.replace(OWN, "then"), bench.script.replace(OWN, name)) for bench in benches]
    return [
        replace(bench, label=f"{bench.group} {engine}", engine=engine, script=script, base=s.base)
        for bench, engine, script in renamed
    ]


def w1(s: Settings) -> list[Bench]:
    """As long as the peers run: the JVM takes some seconds to compile what it runs often."""
    found = [
        count("W1", "hashmap", "--records", s.records(48_000_000)),
        count("W1", "rocksdb", "--records", s.records(40_000_000)),
    ]
    found += then(s, *found)
    batches = ("--kind", "batches", "--records", s.records(100_000_000))
    found.append(own("W1 headrace batches", "headrace batches", "headrace_count.py", *batches))
    if s.peers:
        windows = ("--warm-s", s.seconds(15), "--window-s", s.seconds(15))
        spark = ("--work", "{work}/spark", "--batches", "3", "--rows", s.records(500_000), "--skip", "1")
        csv = ("--work", "{work}/csv", "--kind", "stateful", "--records", s.records(8_000_000))
        found += [
            peer("W1", "bytewax", "bytewax_count.py", "--work", "{run}", "--records", s.records(1_600_000)),
            peer("W1", "pathway", "pathway_count.py", *csv, note="static"),
            pyflink("W1", "--key", "jvm", *windows, note="best"),
            peer("W1", "spark", "spark_tws.py", *spark, note="tws"),
        ]
    return found


def w2(s: Settings) -> list[Bench]:
    found = []
    for emit, records in (("batch", 80_000_000), ("record", 60_000_000)):
        args = ("--kind", "sum", "--emit", emit, "--records", s.records(records))
        found.append(own(f"W2 headrace {emit}", f"headrace {emit}", "headrace_count.py", *args))
    # Our own environment has Spark too. Of its batches, two files each, the best size counts.
    sizes = [("12", 1_000_000), ("8", 2_000_000), ("6", 4_000_000)] if s.peers else [("6", 1_000_000)]
    script, environment = ("spark_agg.py", "spark") if s.peers else ("peers/spark_agg.py", OWN)
    for batches, rows in sizes:
        args = ("--work", "{work}/spark", "--batches", batches, "--rows", s.records(rows), "--skip", "2")
        note = f"groupBy {2 * int(s.records(rows)) / 1e6:g}M"
        found.append(peer("W2", "spark", script, *args, note=note, environment=environment))
    if s.peers:
        csv = ("--work", "{work}/csv", "--kind", "sum", "--records", s.records(8_000_000))
        sql = ("--work", "{run}", "--records", s.records(30_000_000), "--warm", s.records(3_000_000))
        bytewax = ("--work", "{run}", "--records", s.records(2_000_000), "--kind", "batch")
        found += [
            peer("W2", "flink sql", "flink_sql.py", *sql, environment="flink"),
            peer("W2", "pathway", "pathway_count.py", *csv),
            peer("W2", "bytewax", "bytewax_count.py", *bytewax),
        ]
    return found


def shapes(s: Settings) -> list[Bench]:
    """Every record comes from a Python function, on all engines; not in W1 then, which all shapes are compared with."""
    found = then(s, count("W1", "hashmap", "--records", s.records(48_000_000), group="shapes"))
    for shape in ("int", "string", "composite", "map", "row", "untyped"):
        group = f"shape {shape}"
        for backend in BACKENDS:
            args = ("--shapes", shape, "--backend", backend, "--records", s.records(8_000_000))
            found.append(own(f"{group} headrace {backend}", f"headrace {backend}", "shapes.py", *args, group=group))
        if s.peers:
            same = ("--shape", shape, "--source", "function")
            windows = ("--warm-s", s.seconds(15), "--window-s", s.seconds(15))
            records = ("--work", "{run}", "--records", s.records(1_600_000))
            found.append(peer(group, "bytewax", "bytewax_count.py", *same, *records))
            found += [pyflink(group, *same, *windows, mode=mode, note=mode) for mode in ("thread", "process")]
    return found


def w3(s: Settings) -> list[Bench]:
    """W1 with checkpoints every second, and the same with ten times as many keys, most of which change in each second.

    Full checkpoints are what hashmap takes unless it is told otherwise.
    """
    found = []
    for keys in (100_000, 1_000_000):
        for backend, kind in (("hashmap", "full"), ("hashmap", "incremental"), ("rocksdb", "incremental")):
            engine, group = f"headrace {backend}", f"W3 {keys} {backend} {kind}"
            args = ("--backend", backend, "--checkpoint", kind, "--keys", s.records(keys), "--pairs", str(4 * s.rounds))
            label = f"W3 {engine} {keys} {kind}"
            more = {"group": group, "by": ("checkpoint",), "limit": 900, "once": True}
            found.append(own(label, engine, "checkpoint_cost.py", *args, **more))
    return found


def w4(s: Settings) -> list[Bench]:
    """Once with the settings that engines have by themselves, and once with those for low latency.

    The highest rate comes first: it takes the JVM seconds to compile what it runs at that rate, and minutes at a low one.
    """
    seconds = s.seconds(20)
    common = ("--rates", "100000,10000,1000,100,0", "--keys", "1000", "--seconds", seconds, "--warm", s.seconds(12))
    quickly = ("--buffer-timeout-ms", "5", "--feed-ms", "1")
    found = []
    for setting, ours, theirs in (("default", (), ()), ("low", ("--timeout", "30"), quickly)):
        group = f"W4 {setting}"
        args = (*common, *ours)
        found.append(own(f"{group} headrace", "headrace", "low_rate.py", *args, group=group, by=("rate",), limit=600))
        for rate in ("100", "1000", "10000") if s.peers else ():
            args = f"--key jvm --latency --rate {rate} --keys 1000 --window-s {seconds} --every {rate}".split()
            at_rate = f"{group} {rate}"
            found.append(pyflink(group, *args, *theirs, note=rate, group=at_rate))
            args = f"--latency --rate {rate} --keys 1000 --window-s {seconds}".split()
            found.append(peer(group, "flink", "flink_sql.py", *args, *theirs, note=rate, group=at_rate))
    return found


def w5(s: Settings) -> list[Bench]:
    found = []
    for keys, backend in itertools.product(s.keys(100_000, 1_000_000, 10_000_000)[-2:], BACKENDS):
        group, engine, args = f"W5 {keys} {backend}", f"headrace {backend}", ("--keys", str(keys))
        label, ours = f"W5 {engine} {keys}", ("--backend", backend)
        found.append(own(label, engine, "savepoints.py", *args, *ours, group=group, limit=3600))
        if s.peers and keys <= 1_000_000:
            theirs = ("--key", "jvm", "--restore", "--checkpoint", backend)
            found.append(pyflink("W5", *args, *theirs, note=f"{backend} {keys}", group=group))
    return found


def w6(s: Settings) -> list[Bench]:
    """Workers make the table of the distribution while they are warming up."""
    warm = ("--warm", str(max(100_000, int(s.records(1_000_000)))))
    sizes = {"hashmap": s.records(8_000_000), "rocksdb": s.records(4_000_000)}
    return [
        count("W6", backend, "--records", records, *warm, "--zipf", zipf, note=note, group=f"W6 {backend}")
        for backend, records in sizes.items()
        for note, zipf in (("uniform", "0"), ("zipf", "1.2"))
    ]


def w8(s: Settings) -> list[Bench]:
    args, by = (s.records(1_000_000),), ("case", "backend")
    return [own("W8 headrace", "headrace", "timers_and_windows.py", *args, by=by, limit=900)]


def w9(s: Settings) -> list[Bench]:
    """The first of each group is what the others are compared with."""
    found = []
    for backend, records in (("hashmap", 8_000_000), ("rocksdb", 4_000_000)):
        cases = [("keys", keys, keys) for keys in s.keys(10_000, 100_000, 1_000_000, 10_000_000)]
        cases += [("parallelism", parallelism, 100_000) for parallelism in (1, 2, 4, 8)]
        for option, value, keys in cases:
            warm = max(keys, int(s.records(1_000_000)))
            args = ("--records", s.records(records), "--warm", str(warm), f"--{option}", str(value))
            group = f"W9 {backend} {option}"
            found.append(count("W9", backend, *args, note=f"{option} {value}", group=group, limit=1200))
    return found


def w10(s: Settings) -> list[Bench]:
    return [own("W10 headrace", "headrace", "back_pressure.py", by=("mode",), limit=900)]


def w11(s: Settings) -> list[Bench]:
    args = ("--work", "{work}", "--records", s.records(2_000_000), "--rounds", str(s.rounds))
    only = () if s.peers else ("--only", "headrace")
    return [own("W11", "", "kafka_to_kafka.py", *args, *only, limit=7200, once=True)]


def w12(s: Settings) -> list[Bench]:
    return [own("W12 headrace", "headrace", "nexmark.py", s.records(1_000_000), by=("query",), limit=1800)]


WORKS: dict[str, Callable[[Settings], list[Bench]]] = {
    "W1": w1,
    "W2": w2,
    "shapes": shapes,
    "W3": w3,
    "W4": w4,
    "W5": w5,
    "W6": w6,
    "W8": w8,
    "W9": w9,
    "W10": w10,
    "W11": w11,
    "W12": w12,
}
