"""Random lives of a job over a store that fails: checkpoints, aborts, subsumption, crashes, zombies, damage.

A small coordinator uses the storage package as the real one does. After every step:

- every checkpoint that the log retains is there, or reports that it is damaged; its bytes are never wrong
- gc lists exactly what is out of reach, and never anything that may still be needed
- commit numbers only grow, and none goes to an old driver
"""

from __future__ import annotations

import errno
from contextlib import suppress

import msgspec
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from effort import examples
from headrace.checkpoint.handles import CorruptState
from headrace.checkpoint.settings import ClaimMode
from headrace.checkpoint.types import SnapshotType
from headrace.errors import IllegalState, StorageError
from headrace.ids import JobId, OperatorId
from headrace.storage import gc, published_snapshots, shared
from headrace.storage import log as log_module
from headrace.storage.byte_handles import FileSegment
from headrace.storage.gc import collect, plan_gc
from headrace.storage.layout import JobLayout, PathKind, subtask_owner
from headrace.storage.log import JobLog, SupersededError, load_completed, read_log
from headrace.storage.manifest import (
    Manifest,
    OperatorManifest,
    PieceKind,
    StatePiece,
    SubtaskManifest,
    handles_of,
)
from headrace.storage.objects import OutcomeUnknown
from headrace.storage.published_snapshots import (
    discard_checkpoint,
    discard_pending,
    load_snapshot,
    publish,
    require_intact,
)
from headrace.storage.reader import SnapshotReader
from headrace.storage.shared import SharedStateRegistry
from headrace.storage.writer import Scope, SnapshotTarget, StateWriter
from headrace.testing.storage_faults import Fault, FaultKind, FaultyStore, Operation

LAYOUT = JobLayout.of("/data", JobId("a" * 32))
OPERATOR = OperatorId("1" * 32)
SUBTASKS = 2
THRESHOLD = 20

sizes = st.sampled_from([0, 5, 20, 21, 60])
subtask_plan = st.fixed_dictionaries(
    {
        "private": st.lists(sizes, max_size=3),
        "shared": st.lists(sizes, max_size=2),
        "twin": st.booleans(),  # a second shared part with the content of the first
        "reused": st.integers(0, 3),
        "acked": st.sampled_from([True, True, True, True, True, False]),
    }
)


@pytest.fixture(autouse=True)
def short_log(monkeypatch):
    # The fewest entries that work, so that numbers are tidied away within a short run.
    monkeypatch.setattr(log_module, "KEPT_ENTRIES", 2)


plans = st.lists(subtask_plan, min_size=SUBTASKS, max_size=SUBTASKS)


class Driver:
    """What one epoch of the job knows."""

    def __init__(self, log, registry, next_id):
        self.log = log
        self.registry = registry
        self.next_id = next_id
        self.restarts = 0
        self.base = {}  # (subtask, part id) -> length: what the newest completed checkpoint holds
        self.pending = None  # the checkpoint under way: number, attempt, what its tasks acknowledged

    @property
    def attempt(self):
        return self.log.attempt(self.restarts)


class StorageMachine(RuleBasedStateMachine):
    def __init__(self):
        super().__init__()
        self.store = FaultyStore()
        self.retained = 1
        self.driver = None
        self.zombies = []
        self.content = {}  # crc32 of the metadata -> [(piece part id, bytes)]: what each published checkpoint must say
        self.commits = []
        self.rotten = set()  # paths whose bytes were changed
        self.bytes_of_part = {}
        self.counter = 0
        self.late_acks = []

    # ---- the job ---------------------------------------------------------------------------------------------------

    @initialize(retained=st.integers(1, 3))
    def begin(self, retained):
        self.retained = retained
        self.take_over()

    def take_over(self):
        """A new driver: restore the newest checkpoint that is intact, then claim an epoch."""
        for _ in range(20):
            try:
                self.driver = self.new_driver()
                return
            except StorageError:
                continue  # an injected fault; each comes once
        self.store.heal()
        self.driver = self.new_driver()

    def new_driver(self):
        state, restored = read_log(self.store, LAYOUT), None
        for ref in [] if state is None else state.newest_first():
            try:
                snapshot = load_completed(self.store, LAYOUT, ref)
                require_intact(self.store, snapshot)
            except CorruptState:
                continue
            restored = ref
            break
        log = JobLog.start(self.store, LAYOUT, "job", clock=lambda: 0, restored=restored)
        registry = SharedStateRegistry()
        driver = Driver(log, registry, 0)
        for ref in sorted(log.state.retained, key=lambda ref: ref.checkpoint_id):
            try:
                snapshot = load_completed(self.store, LAYOUT, ref)
            except CorruptState:
                continue
            registry.register_restored(snapshot.manifest, ClaimMode.CLAIM)
            driver.base = self.shared_parts(snapshot)
        driver.next_id = LAYOUT.next_checkpoint_id(self.store, 0 if restored is None else restored.checkpoint_id)
        return driver

    @staticmethod
    def shared_parts(snapshot):
        found = {}
        for subtask in snapshot.manifest.operators[0].subtasks:
            for piece in subtask.pieces:
                for part in piece.parts:
                    if part.shared:
                        found[subtask.index, part.id] = part.handle
        return {key: len(getattr(h, "data", b"")) or h.length for key, h in found.items()}

    def write(self, driver, number, subtask, plan, attempt):
        """A subtask's part of a checkpoint: its pieces, or StorageError."""
        target = SnapshotTarget(number, attempt, LAYOUT.checkpoint(number), LAYOUT.shared, THRESHOLD)
        writer = StateWriter(self.store, target, subtask_owner(0, subtask))
        try:
            private = [self.part(writer, "p", size, Scope.EXCLUSIVE) for size in plan["private"]]
            shared = [self.part(writer, "s", size, Scope.SHARED) for size in plan["shared"]]
            if plan["twin"] and shared and shared[0] is not None:
                self.counter += 1
                self.bytes_of_part[f"s{self.counter}"] = data = self.bytes_of_part[shared[0].id]
                shared.append(writer.write(f"s{self.counter}", data, Scope.SHARED))
            mine = sorted(part for owner, part in driver.base if owner == subtask)
            shared += (
                [writer.reuse(part, driver.base[subtask, part]) for part in mine[-plan["reused"] :]]
                if plan["reused"]
                else []
            )
            writer.close()
        except StorageError:
            with suppress(StorageError):
                writer.abort()
            raise
        pieces = (
            StatePiece(PieceKind.OPERATOR, tuple(filter(None, private))),
            StatePiece(PieceKind.KEYED, tuple(filter(None, shared))),
        )
        return tuple(pieces)

    def part(self, writer, prefix, size, scope):
        self.counter += 1
        name = f"{prefix}{self.counter}"
        self.bytes_of_part[name] = data = bytes((self.counter * 31 + i) % 256 for i in range(size))
        return writer.write(name, data, scope)

    def trigger(self, driver, plans):
        """Let the tasks write and acknowledge a checkpoint; it is under way if all of them did."""
        number, attempt = driver.next_id, driver.attempt
        driver.next_id += 1
        acked = []
        try:
            for subtask, plan in enumerate(plans):
                pieces = self.write(driver, number, subtask, plan, attempt)
                if not plan["acked"]:
                    self.late_acks.append((number, pieces))
                    raise StorageError("a task failed")
                acked.append(driver.registry.register_pieces(OPERATOR, pieces, number))
        except (StorageError, IllegalState):
            self.discard(number, attempt)
            return
        driver.pending = number, attempt, acked

    def finish(self, driver):
        """Publish and complete the checkpoint under way; True if it is complete."""
        number, attempt, acked = driver.pending
        driver.pending = None
        try:
            manifest = self.manifest(number, acked, attempt)
            snapshot = publish(self.store, manifest, LAYOUT.checkpoint(number))
        except OutcomeUnknown:
            return False  # nothing may be deleted, and the log will not have it
        except StorageError:
            self.discard(number, attempt)
            return False
        self.content[snapshot.crc32] = self.expected(manifest)
        return self.complete(driver, snapshot, attempt)

    def discard(self, number, attempt, published=None):
        with suppress(StorageError):
            discard_pending(self.store, LAYOUT.checkpoint(number), attempt, published)

    def complete(self, driver, snapshot, attempt):
        before = driver.log.state.retained
        drop = sorted(before, key=lambda ref: ref.commit)[: max(0, len(before) - self.retained + 1)]
        try:
            ref = driver.log.complete(snapshot, [old.commit for old in drop])
        except OutcomeUnknown:
            ref = self.settle(driver)
            if ref is None:
                return False
        except (StorageError, SupersededError):
            self.discard(snapshot.manifest.checkpoint_id, attempt, snapshot)
            return False
        assert driver is self.driver, "an old driver completed a checkpoint"
        self.commits.append(ref.commit)
        driver.base = self.shared_parts(snapshot)
        self.subsume(driver, before)
        return True

    def settle(self, driver):
        """Ask until there is an answer, as the coordinator must before it goes on."""
        for _ in range(20):
            with suppress(StorageError):
                try:
                    return driver.log.settle()
                except SupersededError:
                    return None
        self.store.heal()
        return driver.log.settle()

    def subsume(self, driver, before):
        kept = driver.log.state.retained
        for ref in set(before) - set(kept):
            with suppress(StorageError):
                discard_checkpoint(self.store, LAYOUT, ref.checkpoint_id)
        for path in driver.registry.unregister_unused(min(ref.checkpoint_id for ref in kept)).delete:
            with suppress(StorageError):
                self.store.delete(path)

    @staticmethod
    def manifest(number, acked, attempt):
        subtasks = tuple(SubtaskManifest(index, pieces) for index, pieces in enumerate(acked))
        operator = OperatorManifest(OPERATOR, "op", SUBTASKS, 128, subtasks)
        return Manifest(number, SnapshotType.CHECKPOINT, LAYOUT.job_id, "job", attempt, 0, (operator,))

    def expected(self, manifest):
        parts = [p for s in manifest.operators[0].subtasks for piece in s.pieces for p in piece.parts]
        return {part.id: self.bytes_of_part[part.id] for part in parts}

    # ---- what happens ----------------------------------------------------------------------------------------------

    @precondition(lambda self: self.driver.pending is None)
    @rule(plans=plans)
    def trigger_checkpoint(self, plans):
        self.trigger(self.driver, plans)

    @precondition(lambda self: self.driver.pending is not None)
    @rule()
    def finish_checkpoint(self):
        self.finish(self.driver)

    @precondition(lambda self: self.driver.pending is None)
    @rule(plans=plans)
    def whole_checkpoint(self, plans):
        self.trigger(self.driver, plans)
        if self.driver.pending is not None:
            self.finish(self.driver)

    @precondition(lambda self: self.driver.pending is not None)
    @rule()
    def abort_checkpoint(self):
        number, attempt, _ = self.driver.pending
        self.driver.pending = None
        self.discard(number, attempt)

    @rule()
    def restart_tasks(self):
        if self.driver.pending is not None:
            self.abort_checkpoint()
        self.driver.restarts += 1

    @precondition(lambda self: self.late_acks)
    @rule()
    def late_ack(self):
        number, pieces = self.late_acks.pop()
        with suppress(IllegalState):  # it may build on what was subsumed since
            self.driver.registry.register_pieces(OPERATOR, pieces, number)

    @rule()
    def crash_and_resume(self):
        self.zombies = [*self.zombies, self.driver][-3:]
        self.late_acks.clear()
        self.take_over()

    @precondition(lambda self: self.zombies)
    @rule(index=st.integers(0, 2), plans=plans)
    def old_driver_goes_on(self, index, plans):
        zombie = self.zombies[index % len(self.zombies)]
        if zombie.pending is None:
            self.trigger(zombie, plans)
        if zombie.pending is not None:
            assert not self.finish(zombie)

    @precondition(lambda self: self.zombies)
    @rule(index=st.integers(0, 2), plan=subtask_plan)
    def old_task_goes_on(self, index, plan):
        zombie = self.zombies[index % len(self.zombies)]
        with suppress(StorageError):
            self.write(zombie, self.driver.next_id, 0, plan, zombie.attempt)

    @rule(
        kind=st.sampled_from([FaultKind.FAIL, FaultKind.TORN, FaultKind.LOST_REPLY, FaultKind.SLOW]),
        operation=st.sampled_from(Operation),
        nth=st.integers(1, 8),
        within=st.sampled_from(["/chk-", "/shared/", "/log/", "_metadata"]),
    )
    def something_will_fail(self, kind, operation, nth, within):
        if kind is FaultKind.TORN and within == "/log/":
            return  # create-if-absent never tears an entry
        amount = errno.ENOSPC if kind is FaultKind.FAIL else 7
        self.store.inject(Fault(kind, nth, operation, within, amount))

    @rule()
    def a_claim_will_get_no_answer(self):
        self.store.inject(Fault(FaultKind.LOST_REPLY, within="/log/"))
        self.store.inject(Fault(FaultKind.FAIL, 1, Operation.READ, within="/log/"))

    @rule(choice=st.integers(0), position=st.integers(0))
    def a_bit_flips(self, choice, position):
        # Metadata is rarer, as it is smaller: else every run would end with no readable checkpoint.
        paths = sorted(path for path in self.store.objects if "/log/" not in path)
        if choice % 3 == 0:
            paths = [path for path in paths if not path.endswith("_metadata")]
        if paths:
            path = paths[choice % len(paths)]
            self.store.flip(path, position)
            self.rotten.add(path)

    @rule()
    def collect_garbage(self):
        self.check_plan(self.driver.attempt)
        self.store.heal()
        collect(self.store, LAYOUT, plan_gc(self.store, LAYOUT, live=self.driver.attempt))

    # ---- what must hold --------------------------------------------------------------------------------------------

    def in_reach(self):
        """What completed checkpoints need, from a look at the store behind its faults; None if metadata is damaged."""
        needed, readable = set(), True
        for ref in read_log(self.behind(), LAYOUT).retained:
            needed.add(LAYOUT.metadata(ref.checkpoint_id))
            try:
                needed |= load_snapshot(self.behind(), LAYOUT.checkpoint(ref.checkpoint_id)).files().keys()
            except CorruptState:
                readable = False
        return needed, readable

    def behind(self):
        copy = FaultyStore()
        copy.objects = self.store.objects
        return copy

    def check_plan(self, live):
        needed, readable = self.in_reach()
        plan = plan_gc(self.behind(), LAYOUT, live=live)
        orphans = {finding.path for finding in plan.orphans}
        assert not orphans & needed
        out_of_reach = {p for p in self.store.objects if p not in needed and LAYOUT.parse(p).kind is not PathKind.LOG}
        if readable and live is None:
            assert orphans == out_of_reach
        assert orphans <= out_of_reach
        if self.driver.pending is not None and live is not None:
            manifest = self.manifest(self.driver.pending[0], self.driver.pending[2], live)
            under_way = {handle.path for handle in handles_of(manifest) if isinstance(handle, FileSegment)}
            assert not orphans & under_way, "gc would delete what a checkpoint under way needs"

    @invariant()
    def completed_checkpoints_are_there_and_never_wrong(self):
        if self.driver is None:
            return
        store = self.behind()
        reader = SnapshotReader(store)
        for ref in read_log(store, LAYOUT).retained:
            metadata = LAYOUT.metadata(ref.checkpoint_id)
            assert metadata in self.store.objects, "the metadata of a completed checkpoint is gone"
            try:
                snapshot = load_completed(store, LAYOUT, ref)
            except CorruptState:
                assert metadata in self.rotten
                continue
            for part in (p for s in snapshot.manifest.operators[0].subtasks for piece in s.pieces for p in piece.parts):
                path = getattr(part.handle, "path", None)
                assert path is None or path in self.store.objects, "a file of a completed checkpoint is gone"
                try:
                    data = reader.read(part.handle)
                except CorruptState:
                    assert path in self.rotten
                    continue
                assert data == self.content[ref.crc32][part.id]

    @invariant()
    def commit_numbers_only_grow(self):
        assert self.commits == sorted(set(self.commits))

    def teardown(self):
        if self.driver is None:
            return
        self.store.heal()
        self.check_plan(self.driver.attempt)
        self.check_plan(None)
        needed, readable = self.in_reach()
        result = collect(self.store, LAYOUT, plan_gc(self.store, LAYOUT, live=None))
        assert result.failed == ()
        left = {path for path in self.store.objects if LAYOUT.parse(path).kind is not PathKind.LOG}
        assert left >= needed
        if readable:
            assert left == needed, "after cleaning up, what is left is what is needed"
        assert plan_gc(self.store, LAYOUT, live=None).orphans == []


def quick(number):
    return settings(max_examples=number, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck))


TestStorage = StorageMachine.TestCase
TestStorage.settings = quick(examples(75))


# ---- the machine has teeth: each of these mistakes is found --------------------------------------------------------


def uses_are_forgotten(patch):
    real = SharedStateRegistry.register

    def register(self, key, handle, checkpoint_id):
        return self._entries[key].handle if key in self._entries else real(self, key, handle, checkpoint_id)

    patch.setattr(SharedStateRegistry, "register", register)


def twins_are_forgotten(patch):
    def unregister(self, lowest):
        unused = [key for key, entry in self._entries.items() if entry.last_used < lowest]
        handles = [self._entries.pop(key).handle for key in unused]
        return shared.Unregistered(tuple(h.path for h in handles if isinstance(h, FileSegment)), frozenset())

    patch.setattr(SharedStateRegistry, "unregister_unused", unregister)


def checksums_are_not_verified(patch):
    patch.setattr(
        SnapshotReader,
        "read",
        lambda self, handle: (
            self._store.read(handle.path, handle.offset, handle.length)
            if isinstance(handle, FileSegment)
            else handle.data
        ),
    )


def numbers_tidied_away_are_free_again(patch):
    patch.setattr(JobLog, "_built_on_the_newest", lambda self, entry: True)


def an_unknown_outcome_counts_as_a_failure(patch):
    real = JobLog._claim

    def claim(self, entry):
        try:
            return real(self, entry)
        except OutcomeUnknown as error:
            self._status = log_module.LogStatus.LEADING  # else the log itself would refuse to go on
            raise StorageError(str(error)) from error

    patch.setattr(JobLog, "_claim", claim)


def gc_forgets_what_is_under_way(patch):
    patch.setattr(gc, "_under_way", lambda facts, attempt, checkpoint_id: False)


def gc_takes_damaged_metadata_for_none(patch):
    real = gc.classify

    def classify(facts):
        sound = {number: found for number, found in facts.snapshots.items() if found is not None}
        left = tuple(
            info
            for info in facts.objects
            if not info.path.endswith("_metadata") or LAYOUT.parse(info.path).checkpoint_id in sound
        )
        return real(msgspec.structs.replace(facts, snapshots=sound, objects=left))

    patch.setattr(gc, "classify", classify)


def metadata_is_written_over(patch):
    patch.setattr(published_snapshots, "create", lambda store, path, data: store.put(path, data) or True)


def ids_are_taken_again(patch):
    patch.setattr(JobLayout, "next_checkpoint_id", lambda self, store, restored: restored + 1)
    metadata_is_written_over(patch)


@pytest.mark.parametrize(
    "mistake",
    [
        uses_are_forgotten,
        twins_are_forgotten,
        checksums_are_not_verified,
        numbers_tidied_away_are_free_again,
        an_unknown_outcome_counts_as_a_failure,
        gc_forgets_what_is_under_way,
        gc_takes_damaged_metadata_for_none,
        metadata_is_written_over,
        ids_are_taken_again,
    ],
)
def test_planted_mistakes_are_found(mistake, monkeypatch):
    mistake(monkeypatch)
    search = settings(quick(2000), phases=[Phase.generate], database=None, print_blob=False, report_multiple_bugs=False)
    with pytest.raises((AssertionError, StorageError)):  # something needed is gone, wrong, or about to be deleted
        run_state_machine_as_test(StorageMachine, settings=search)


def test_why_an_unknown_outcome_must_be_settled(monkeypatch):
    """Found by the machine, too rare to be found again each time: the coordinator takes a claim that was made for lost."""
    uses_nothing = {"private": [], "shared": [60], "twin": False, "reused": 0, "acked": True}

    def life():
        machine = StorageMachine()
        machine.begin(retained=1)
        machine.whole_checkpoint([uses_nothing] * SUBTASKS)
        machine.a_claim_will_get_no_answer()
        machine.whole_checkpoint([uses_nothing] * SUBTASKS)  # the log has it, and has let the first one go
        machine.trigger_checkpoint([{**uses_nothing, "reused": 1}] * SUBTASKS)  # builds on the newest that is known
        machine.collect_garbage()
        machine.finish_checkpoint()
        machine.completed_checkpoints_are_there_and_never_wrong()

    life()
    settle = JobLog.settle
    monkeypatch.setattr(JobLog, "settle", lambda self: settle(self) and None)
    with pytest.raises(AssertionError, match="gc would delete what a checkpoint under way needs"):
        life()
