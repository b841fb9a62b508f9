"""What must hold: at every completed checkpoint, and at the end of a run."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Any

from headgate import config
from headgate.api.durable import unpack
from headgate.config import Configuration
from headgate.driver.epochs import epoch_sinks
from headgate.driver.snapshots import prepared_of, restore_plan
from headgate.state.api import ValueStateDescriptor
from headgate.storage.checkpoints import Snapshot, load_snapshot, require_intact
from headgate.storage.reader import SnapshotReader
from headgate.testing.simulation.cluster import Attempt, Driver
from headgate.testing.simulation.world import COUNT, Violation, key_of, worlds
from headgate.testing.storage_faults import MemoryStore
from headgate.worker.operators.base import Operator
from headgate.worker.operators.keyed import KeyedOperator
from headgate.worker.operators.sources import SourceOperator
from headgate.worker.subtask import Subtask


class Oracle:
    """Knows what a sequential run would give."""

    def __init__(self, run: str, configuration: Configuration, store: MemoryStore, records: int) -> None:
        self._run, self._records = run, records
        self._exactly_once = configuration.get(config.CHECKPOINT_MODE) == "EXACTLY_ONCE"
        self._ended = False  # some subtask has finished: from then on its keys have no state (SPEC R4.5)
        self._store = MemoryStore()
        self._store.objects = store.objects  # the same files, without faults

    def check_kept(self, driver: Driver) -> list[tuple[int, Snapshot]]:
        """Every file that a retained checkpoint needs is there and whole."""
        kept = []
        assert driver.service is not None
        for checkpoint in driver.service.coordinator.store.checkpoints:
            snapshot = load_snapshot(self._store, checkpoint.pointer)
            require_intact(self._store, snapshot)
            kept.append((checkpoint.id, snapshot))
        return kept

    def check_checkpoint(self, driver: Driver, checkpoint_id: int, snapshot: Snapshot) -> None:
        """Restore the checkpoint aside, let in-flight data run out, and compare with a sequential run so far."""
        real = worlds[self._run]
        trial = worlds[self._run] = real.fork()
        try:
            restore = restore_plan(driver.plan, snapshot.manifest, claim=False, ignore_unmatched=False)
            attempt = Attempt(driver.plan, driver.job_id, 1_000_000, restore, None, self._store, driver.io.now)
            attempt.open()
            self._commit_epochs(driver, snapshot)
            _drain(attempt)
            finished = {vertex for vertex, state in restore.items() if state.finished}
            rest = _unread(attempt, finished) | self._unassigned(snapshot)
            written = trial.visible() + trial.open_rows(set(list(trial.transactions)[len(real.transactions) :]))
            counts = _counts(attempt, finished)
        finally:
            worlds[self._run] = real
        done = set(range(self._records)) - rest
        where = f"checkpoint {checkpoint_id}"
        self._check_output(where, written, done)
        self._ended |= any(
            subtask.finished for operator in snapshot.manifest.operators for subtask in operator.subtasks
        )
        self._check_state(where, counts, done)

    def _commit_epochs(self, driver: Driver, snapshot: Snapshot) -> None:
        """What a driver would commit that restores the checkpoint."""
        for _, operator in epoch_sinks(driver.plan.graph):
            for one in prepared_of(self._store, snapshot.manifest, operator.id):
                for transaction in one.committables:
                    worlds[self._run].move(transaction, "committed")

    def _unassigned(self, snapshot: Snapshot) -> set[int]:
        """The records in splits that no reader has, or that are not found yet."""
        rest: set[int] = set()
        for operator in snapshot.manifest.operators:
            if operator.coordinator is not None:
                found = unpack(bytes(SnapshotReader(self._store).read(operator.coordinator)).decode())
                splits = map(unpack, found.unassigned)
                rest |= {record for split in splits for record in range(split.start, split.end)}
                rest |= set(range(unpack(found.state), self._records))
        return rest

    def check_end(self) -> None:
        """The job has finished: everything is visible."""
        self._check_output("the end", worlds[self._run].visible(), set(range(self._records)))

    def _check_output(self, where: str, written: Counter[Any], done: set[int]) -> None:
        ids = Counter(record for record, _ in written.elements())
        lost = sorted(done - ids.keys())
        if lost:
            raise Violation(f"{where}: {len(lost)} records are lost, the first are {lost[:5]}")
        if not self._exactly_once:
            return
        early = sorted(ids.keys() - done)
        if early:
            raise Violation(f"{where}: {len(early)} records are out before their time, the first are {early[:5]}")
        twice = sorted(record for record, times in ids.items() if times > 1)
        if twice:
            raise Violation(f"{where}: {len(twice)} records came more than once, the first are {twice[:5]}")
        numbers = defaultdict(list)
        for record, number in written:
            numbers[key_of(record)].append(number)
        for key, found in numbers.items():
            if sorted(found) != list(range(1, len(found) + 1)):
                raise Violation(f"{where}: the records of key {key} are numbered {sorted(found)}")

    def _check_state(self, where: str, counts: Counter[int], done: set[int]) -> None:
        expected = Counter(map(key_of, done))
        wrong = {
            key: (counts[key], expected[key])
            for key in (counts if self._ended else {*counts, *expected})
            if (counts[key] != expected[key] if self._exactly_once else counts[key] < expected[key])
        }
        if wrong:
            raise Violation(f"{where}: keyed state (found, expected) is wrong: {wrong}")


def _drain(attempt: Attempt) -> None:
    """Work off what was in flight; sources stand still."""
    moved = True
    while moved:
        moved = False
        for worker in attempt.workers:
            while worker.rows:
                worker.task.receive(worker.rows.popleft()[1])
                moved = True
            while worker.task.has_events():
                worker.task.step(1 << 20)
                moved = True
            worker.task.settle()
            attempt.send_rows(worker)


def _operators(attempt: Attempt, finished: set[Any]) -> Iterator[Operator]:
    """The operators that are open: those of a vertex that had finished are not."""
    for worker in attempt.workers:
        if isinstance(worker.task, Subtask) and worker.id is not None and worker.id.vertex not in finished:
            yield from worker.task.operators


def _unread(attempt: Attempt, finished: set[Any]) -> set[int]:
    """The records that sources have not read yet."""
    rest: set[int] = set()
    for operator in _operators(attempt, finished):
        if isinstance(operator, SourceOperator):
            for split in operator.reader.snapshot():
                rest |= set(range(split.start, split.end))
    return rest


def _counts(attempt: Attempt, finished: set[Any]) -> Counter[int]:
    """What keyed state says: records of each key."""
    counts: Counter[int] = Counter()
    for operator in _operators(attempt, finished):
        if isinstance(operator, KeyedOperator):
            state = operator.backend.state(ValueStateDescriptor(COUNT, "bigint"))
            for key in operator.backend.keys(COUNT):
                operator.backend.set_current_key(key)
                counts[key] += state.value()
    return counts
