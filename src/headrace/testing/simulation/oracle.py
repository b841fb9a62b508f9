"""Invariants of a run: at every completed checkpoint, and at its end."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

from headrace import config
from headrace.api.durable import unpack
from headrace.api.sources import DataGenSource, Stride
from headrace.api.watermarks import MAX_WATERMARK
from headrace.config import Configuration
from headrace.driver.epochs import epoch_sinks
from headrace.driver.restore_plan import claimed_state, restore_plan
from headrace.driver.snapshot_loader import prepared_of
from headrace.job.machine import JobMachine, Phase
from headrace.job.status import JobStatus
from headrace.job.story import AttemptOutcome
from headrace.state.api import ValueStateDescriptor
from headrace.storage.published_snapshots import Snapshot, load_snapshot, require_intact
from headrace.storage.reader import SnapshotReader
from headrace.testing.simulation.cluster import Attempt, Driver
from headrace.testing.simulation.timed import Expected
from headrace.testing.simulation.world import COUNT, Violation, key_of, worlds
from headrace.testing.storage_faults import MemoryStore
from headrace.worker.operators.base import Operator
from headrace.worker.operators.keyed import KeyedOperator
from headrace.worker.operators.sources import SourceOperator
from headrace.worker.subtask import Subtask


class Oracle:
    """Knows what a sequential run would give."""

    def __init__(
        self, run: str, configuration: Configuration, store: MemoryStore, records: int, expected: Expected | None = None
    ) -> None:
        """`expected` gives what a program by event time must give over some records; others number their records."""
        self._run, self._records, self._expected = run, records, expected
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
            manifest = claimed_state(driver.plan, snapshot.manifest, ignore_unmatched=False)
            restore = restore_plan(driver.plan, manifest, claim=False)
            clock = _Clock(driver.io.now())
            attempt = Attempt(driver.plan, driver.job_id, 1_000_000, restore, None, self._store, clock)
            attempt.open()
            self._commit_epochs(driver, snapshot)
            _drain(attempt, clock)
            finished = {vertex for vertex, state in restore.items() if state.finished}
            if self._expected is not None:
                _end_time(attempt, finished, clock)
            rest = self._unread(attempt, finished) | self._unassigned(snapshot)
            written = trial.visible() + trial.open_rows(set(list(trial.transactions)[len(real.transactions) :]))
            counts = Counter() if self._expected else _counts(attempt, finished)
        finally:
            worlds[self._run] = real
        done = set(range(self._records)) - rest
        where = f"checkpoint {checkpoint_id}"
        self._check_output(where, written, done)
        self._ended |= any(
            subtask.finished for operator in snapshot.manifest.operators for subtask in operator.subtasks
        )
        if self._expected is None:
            self._check_state(where, counts, done)

    def _commit_epochs(self, driver: Driver, snapshot: Snapshot) -> None:
        """Commit the epochs that a driver which restores the checkpoint would commit."""
        for _, operator in epoch_sinks(driver.plan.graph):
            for one in prepared_of(self._store, snapshot.manifest, operator.id):
                for transaction in one.committables:
                    worlds[self._run].move(transaction, "committed")

    def _unassigned(self, snapshot: Snapshot) -> set[int]:
        """Return the records in splits that no reader has, or that are not found yet."""
        rest: set[int] = set()
        for operator in snapshot.manifest.operators:
            if operator.coordinator is not None:
                found = unpack(bytes(SnapshotReader(self._store).read(operator.coordinator)).decode())
                splits = map(unpack, found.unassigned)
                rest |= {record for split in splits for record in range(split.start, split.end)}
                rest |= set(range(unpack(found.state), self._records))
        return rest

    def _unread(self, attempt: Attempt, finished: set[Any]) -> set[int]:
        """Return the records that sources have not read yet."""
        rest: set[int] = set()
        for operator in _operators(attempt, finished):
            if isinstance(operator, SourceOperator):
                for split in operator.reader.snapshot():
                    if isinstance(split, Stride):
                        rest |= self._unread_of(operator.function, split)
                    else:
                        rest |= set(range(split.start, split.end))
        return rest

    @staticmethod
    def _unread_of(source: DataGenSource, split: Stride) -> set[int]:
        numbers = range(split.first + split.done * split.step, source.count or 0, split.step)
        return set(numbers) if source.vectorised else set(map(source.generate, numbers))

    def check_end(self) -> None:
        """Check that everything is visible when the job has finished."""
        self._check_output("the end", worlds[self._run].visible(), set(range(self._records)))

    def _check_output(self, where: str, written: Counter[Any], done: set[int]) -> None:
        if self._expected is not None:
            self._check_timed(where, written, self._expected(done))
            return
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

    def _check_timed(self, where: str, written: Counter[Any], expected: Counter[tuple[int, ...]]) -> None:
        if self._exactly_once:
            if written != expected:
                lost, wrong = expected - written, written - expected
                raise Violation(
                    f"{where}: {lost.total()} rows are lost, as {sorted(lost)[:3]}; {wrong.total()} are wrong, as {sorted(wrong)[:3]}"
                )
            return
        found, wanted = _weights(written), _weights(expected)
        light = {key: (found[key], weight) for key, weight in wanted.items() if found[key] < weight}
        if light:
            raise Violation(f"{where}: records are lost; the weights of keys (found, expected) are {light}")

    def _check_state(self, where: str, counts: Counter[int], done: set[int]) -> None:
        expected = Counter(map(key_of, done))
        wrong = {
            key: (counts[key], expected[key])
            for key in (counts if self._ended else {*counts, *expected})
            if (counts[key] != expected[key] if self._exactly_once else counts[key] < expected[key])
        }
        if wrong:
            raise Violation(f"{where}: keyed state (found, expected) is wrong: {wrong}")


class _Clock:
    """A clock that is moved by hand."""

    def __init__(self, now: int) -> None:
        self.now = now

    def __call__(self) -> int:
        return self.now


def _drain(attempt: Attempt, clock: _Clock) -> None:
    """Work off what was in flight; sources stand still. Time passes only for asynchronous calls."""
    moved = True
    while moved or _waits(attempt, clock):
        moved = False
        for worker in attempt.workers:
            while worker.rows:
                worker.task.receive(worker.rows.popleft()[1])
                moved = True
            while worker.task.has_events():
                worker.task.step(1 << 20)
                moved = True
            worker.task.flush_when_idle()
            attempt.send_rows(worker)


def _waits(attempt: Attempt, clock: _Clock) -> bool:
    """Move the clock to the next deadline if asynchronous calls are under way; return True if it moved."""
    tasks = [worker.task for worker in attempt.workers if isinstance(worker.task, Subtask)]
    if not any(operator.busy for task in tasks for operator in task.operators):
        return False
    clock.now = max(clock.now, min(due for task in tasks if (due := task.next_deadline()) is not None))
    for worker in attempt.workers:
        worker.task.on_time(clock.now)
        attempt.send_rows(worker)
    return True


def _operators(attempt: Attempt, finished: set[Any]) -> Iterator[Operator]:
    """Yield the operators that are open: those of a vertex that had finished are not."""
    for worker in attempt.workers:
        if isinstance(worker.task, Subtask) and worker.id is not None and worker.id.vertex not in finished:
            yield from worker.task.operators


def _end_time(attempt: Attempt, finished: set[Any], clock: _Clock) -> None:
    """Let time come to its end, as if no record followed: whatever waits for its time is out then."""
    for operator in _operators(attempt, finished):
        if isinstance(operator, SourceOperator):
            operator.advance(MAX_WATERMARK)
    _drain(attempt, clock)


def _weights(rows: Counter[Any]) -> Counter[int]:
    weights: Counter[int] = Counter()
    for row, times in rows.items():
        weights[row[0]] += row[-1] * times
    return weights


def _counts(attempt: Attempt, finished: set[Any]) -> Counter[int]:
    """Return the records of each key by its keyed state."""
    counts: Counter[int] = Counter()
    for operator in _operators(attempt, finished):
        if isinstance(operator, KeyedOperator):
            state = operator.backend.state(ValueStateDescriptor(COUNT, "bigint"))
            for key in operator.backend.keys(COUNT):
                operator.backend.set_current_key(key)
                counts[key] += state.value()
    return counts


def check_story(machine: JobMachine) -> None:
    """Check that the story is whole: attempts in order, at most the last one open, every failure with its cause."""
    attempts = list(machine.story.attempts)
    for before, attempt in pairwise(attempts):
        if attempt.number != before.number + 1:
            raise Violation(f"attempt {attempt.number} follows on attempt {before.number}")
        if before.ended is None or before.ended > attempt.started:
            raise Violation(f"attempt {attempt.number} started before the one before it had ended")
    for attempt in attempts:
        open_ = attempt.outcome is AttemptOutcome.OPEN
        if open_ and (attempt is not attempts[-1] or machine.phase is Phase.ENDED):
            raise Violation(f"the story of attempt {attempt.number} has no end")
        if attempt.outcome is AttemptOutcome.FAILED and attempt.cause is None:
            raise Violation(f"attempt {attempt.number} failed without a cause")
        moments = [attempt.deployed, attempt.running, attempt.stopping, attempt.ended]
        known = [moment for moment in moments if moment is not None]
        if any(moment < attempt.started for moment in known) or (
            attempt.ended is not None and attempt.ended < max(known)
        ):
            raise Violation(f"the moments of attempt {attempt.number} are not in order: {attempt}")
    if attempts and machine.status is JobStatus.FINISHED and attempts[-1].outcome is not AttemptOutcome.FINISHED:
        raise Violation(f"the job is FINISHED, its last attempt {attempts[-1].outcome.name}")
