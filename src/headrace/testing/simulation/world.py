"""The world outside a simulated job: records that go in, transactions that come out, and programs between them."""

from __future__ import annotations

import asyncio
import copy
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from headrace.api import sink
from headrace.api.functions import (
    CoProcessFunction,
    KeyedBroadcastProcessFunction,
    KeyedProcessFunction,
    RuntimeContext,
)
from headrace.api.sources import DynamicSource, NumberRange, QueueReader, ReaderContext, SourceReader, SplitEnumerator
from headrace.api.two_phase_commit import TwoPhaseCommitSinkFunction
from headrace.environment import StreamExecutionEnvironment
from headrace.records.batch import Batch
from headrace.state.api import MapStateDescriptor, ValueStateDescriptor

KEYS = 40
COUNT = "count"
_STATE = ValueStateDescriptor(COUNT, "bigint")
_RULES = 1_000_000
_RULE_STATE = MapStateDescriptor("rules", "bigint", "bigint")


class Violation(Exception):
    """Something that must never happen has happened."""


@dataclass(slots=True)
class _Transaction:
    rows: list[Any] = field(default_factory=list)
    state: str = "open"  # open | prepared | committed | aborted
    number: int | None = None  # the commit number


class World:
    """The target of a two-phase sink; it outlives every worker and driver."""

    def __init__(self) -> None:
        self.transactions: dict[str, _Transaction] = {}
        self.last_epoch = 0
        # The runtime turns errors of a sink into a restart, and these are none of its own.
        self.violations: list[str] = []

    def begin(self, subtask: int) -> str:
        """Return a new transaction."""
        name = f"{subtask}-{len(self.transactions)}"
        self.transactions[name] = _Transaction()
        return name

    def move(self, name: str, state: str) -> None:
        """Prepare, commit or abort; a committed transaction can be committed again, and nothing else."""
        transaction = self.transactions[name]
        if state == "prepared" and transaction.state == "aborted":
            return  # a zombie's: it will never be committed
        if transaction.state == "committed" and state != "committed":
            self.violations.append(f"transaction {name} is committed already and cannot be {state}")
        if state == "committed" and transaction.state not in ("prepared", "committed"):
            self.violations.append(f"transaction {name} is {transaction.state} and cannot be committed")
        transaction.state = state

    def commit(self, name: str, number: int | None) -> None:
        """Commit under a number, which must be the same each time."""
        transaction = self.transactions[name]
        if transaction.number not in (None, number):
            self.violations.append(f"{name} is committed as number {number}, but was as {transaction.number} before")
        transaction.number = number
        self.move(name, "committed")

    def visible(self) -> Counter[Any]:
        """Return the rows of committed transactions."""
        return Counter(row for t in self.transactions.values() if t.state == "committed" for row in t.rows)

    def open_rows(self, names: set[str]) -> Counter[Any]:
        """Return the rows of the named open transactions."""
        return Counter(row for name in names for row in self.transactions[name].rows)

    def fork(self) -> World:
        """Return a world of its own that is the same now."""
        return copy.deepcopy(self)


worlds: dict[str, World] = {}
"""Functions travel to workers as bytes: they find their world here, by the name of the run."""


class WorldSink(TwoPhaseCommitSinkFunction[str]):
    """Writes to the world of its run."""

    def __init__(self, run: str) -> None:
        self._run, self._subtask = run, 0

    @property
    def _world(self) -> World:
        return worlds[self._run]

    def open(self, runtime_context: RuntimeContext) -> None:
        self._subtask = runtime_context.get_index_of_this_subtask()

    def begin_transaction(self) -> str:
        return self._world.begin(self._subtask)

    def write(self, transaction: str, value: Any) -> None:
        self._world.transactions[transaction].rows.append(value)

    def pre_commit(self, transaction: str) -> None:
        self._world.move(transaction, "prepared")

    def commit(self, transaction: str) -> None:
        self._world.move(transaction, "committed")

    def abort(self, transaction: str) -> None:
        self._world.move(transaction, "aborted")


class Chunks(DynamicSource[NumberRange]):
    """The numbers 0 .. records - 1 in chunks (next, end) that are found little by little."""

    def __init__(self, records: int) -> None:
        self._records = records

    def enumerator(self, restored: Any | None) -> SplitEnumerator[NumberRange]:
        """Continues behind the last chunk that was found."""
        return _ChunkEnumerator(self._records, restored or 0)

    def reader(self, context: ReaderContext, splits: list[NumberRange]) -> SourceReader[NumberRange]:
        """Read one chunk after the other."""
        return _ChunkReader(splits)


class _ChunkEnumerator(SplitEnumerator[NumberRange]):
    interval = 25

    def __init__(self, records: int, found: int) -> None:
        self._records, self._found = records, found

    def discover(self) -> list[NumberRange]:
        end = min(self._records, self._found + 60)
        cuts = [*range(self._found, end, 20), end]
        self._found = end
        self.complete = end == self._records
        return [NumberRange(*cut) for cut in pairwise(cuts)]

    def snapshot(self) -> int:
        return self._found

    def owner(self, split: NumberRange, parallelism: int) -> int | None:
        return None if split.start % 40 else split.start % parallelism


class _ChunkReader(QueueReader[NumberRange]):
    def poll(self, max_records: int) -> Batch | None:
        if not self._splits:
            return None
        start, end = self._splits[0].start, self._splits[0].end
        stop = min(end, start + max_records)
        if stop < end:
            self._splits[0] = NumberRange(stop, end)
        else:
            self._end_split()
        return Batch.of_rows(list(range(start, stop)))


class NumberedSink(sink.Sink[str]):
    """The same for a sink with writer and committer: a transaction is committed under one number only."""

    def __init__(self, run: str) -> None:
        self._run = run

    def writer(self, context: sink.WriterContext, restored: list[Any]) -> sink.SinkWriter[str]:
        """Open a transaction with the first record."""
        return _NumberedWriter(self._run, context.subtask)

    def committer(self, context: sink.WriterContext) -> sink.Committer[str]:
        """Commit in the world."""
        return _NumberedCommitter(self._run)


class _NumberedWriter(sink.SinkWriter[str]):
    def __init__(self, run: str, subtask: int) -> None:
        self._run, self._subtask = run, subtask
        self._name: str | None = None

    def write(self, value: Any) -> None:
        world = worlds[self._run]
        if self._name is None:
            self._name = world.begin(self._subtask)
        world.transactions[self._name].rows.append(value)

    def prepare(self, end_of_input: bool) -> list[str]:
        name, self._name = self._name, None
        if name is None:
            return []
        worlds[self._run].move(name, "prepared")
        return [name]

    def close(self) -> None:
        if self._name is not None:
            worlds[self._run].move(self._name, "aborted")


class _NumberedCommitter(sink.Committer[str]):
    def __init__(self, run: str) -> None:
        self._run = run

    def commit(self, requests: Sequence[sink.CommitRequest[str]]) -> None:
        for request in requests:
            worlds[self._run].commit(request.committable, request.commit_number)


class WholeSink(NumberedSink):
    """The same, committed as a whole on the driver: epochs in order, and none in parts."""

    commits_on_driver = True

    def epoch_committer(self, context: sink.EpochContext) -> sink.EpochCommitter[str]:
        """Commit in the world."""
        return _WholeCommitter(self._run)


class _WholeCommitter(sink.EpochCommitter[str]):
    def __init__(self, run: str) -> None:
        self._run = run

    def commit(self, epoch: sink.Epoch[str]) -> None:
        world = worlds[self._run]
        for name in epoch.committables:
            if world.transactions[name].number is None and epoch.commit_number < world.last_epoch:
                world.violations.append(f"{name} is new in {epoch}, but epoch {world.last_epoch} is committed already")
            world.commit(name, epoch.commit_number)
        world.last_epoch = max(world.last_epoch, epoch.commit_number)


def key_of(record: int) -> int:
    """Return the key of a record."""
    return record % KEYS


class _Numbering:
    """Numbers the records of each key: one that is lost or repeated leaves a gap or a double."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self._count = runtime_context.get_state(_STATE)

    def process_element(self, value: int, ctx: Any) -> Iterator[tuple[int, int]]:
        number = (self._count.value() or 0) + 1
        self._count.update(number)
        yield value, number


class Number(_Numbering, KeyedProcessFunction):
    """Over one input."""


class NumberBoth(_Numbering, CoProcessFunction):
    """Over two inputs that share their keys."""

    process_element1 = process_element2 = _Numbering.process_element


class NumberUnderRules(_Numbering, KeyedBroadcastProcessFunction):
    """Beside broadcast state, which every subtask has whole."""

    def process_broadcast_element(self, value: int, ctx: Any) -> list[Any]:
        ctx.get_broadcast_state(_RULE_STATE).put(value, value)
        return []


Program = Callable[[StreamExecutionEnvironment, str, int], None]


def one_input(env: StreamExecutionEnvironment, run: str, records: int) -> None:
    """Source, keyed state, sink."""
    numbered = env.from_sequence(0, records - 1).key_by(key_of).process(Number())
    numbered.rebalance().add_sink(WorldSink(run))


def two_inputs(env: StreamExecutionEnvironment, run: str, records: int) -> None:
    """Two sources into one two-input operator; a record of each in turn."""
    left = env.from_sequence(0, records // 2 - 1)
    right = env.from_sequence(records // 2, records - 1).map(_same).start_new_chain()
    both = left.key_by(key_of).connect(right.key_by(key_of)).process(NumberBoth())
    both.rebalance().add_sink(WorldSink(run))


def diamond(env: StreamExecutionEnvironment, run: str, records: int) -> None:
    """Build a program whose records take a short way (over a relay) and a long one to one keyed operator."""
    source = env.from_sequence(0, records - 1)
    long = source.filter(lambda n: n % 2 == 0).rebalance().map(_same, output_type="bigint").start_new_chain()
    short = source.filter(lambda n: n % 2 == 1)
    short.union(long).key_by(key_of).process(Number()).add_sink(WorldSink(run))


def _same(value: int) -> int:
    return value


def found_splits(env: StreamExecutionEnvironment, run: str, records: int) -> None:
    """Build a source whose splits are found while the job runs."""
    env.from_source(Chunks(records)).key_by(key_of).process(Number()).sink_to(NumberedSink(run))


def whole_epochs(env: StreamExecutionEnvironment, run: str, records: int) -> None:
    """Build a sink whose output is committed on the driver."""
    numbered = env.from_sequence(0, records - 1).key_by(key_of).process(Number())
    numbered.rebalance().sink_to(WholeSink(run))


def with_rules(env: StreamExecutionEnvironment, run: str, records: int) -> None:
    """Keyed records beside a broadcast stream, whose own records are beyond those that are counted."""
    rules = env.from_sequence(_RULES, _RULES + 20).map(_same).start_new_chain().broadcast(_RULE_STATE)
    keyed = env.from_sequence(0, records - 1).key_by(key_of)
    keyed.connect(rules).process(NumberUnderRules()).add_sink(WorldSink(run))


def asynchronous(env: StreamExecutionEnvironment, run: str, records: int) -> None:
    """Build a program with calls that take a while and overtake each other."""
    slow = env.from_sequence(0, records - 1).map_async(_later, None, "bigint", ordered=False, capacity=5)
    slow.key_by(key_of).process(Number()).rebalance().add_sink(WorldSink(run))


async def _later(value: int) -> int:
    await asyncio.sleep(value * 7919 % 50 / 1000)
    return value


PROGRAMS: tuple[Program, ...] = (one_input, two_inputs, diamond, found_splits, with_rules, whole_epochs, asynchronous)
