"""Disposal under arbitrary facts: what is protected is never deleted, the rest is, once (SPEC R5.8, R7.5).

The model beside it knows of each checkpoint what was reported, and what was deleted.
"""

from dataclasses import dataclass, field

from hypothesis import Phase
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from effort import examples
from headrace.checkpoint import events as ev
from headrace.checkpoint.disposal import Disposal
from headrace.checkpoint.plan import TaskId
from headrace.checkpoint.settings import CheckpointProperties, ClaimMode, EndStatus, RetentionPolicy
from headrace.checkpoint.store import CheckpointStore, CompletedCheckpoint
from headrace.checkpoint.types import SnapshotType
from headrace.ids import VertexId

TASK = TaskId(VertexId(0), 0)
IMPORTED = 1
PICK = st.integers(0, 99)


@dataclass
class Known:
    """The facts that were reported of one checkpoint."""

    writing: bool = True
    located: bool = False
    written: bool = False
    aborted: bool = False
    tasks_leave: bool = False
    kept: bool = False
    complete: bool = False
    given_up: bool = False  # complete, and out of the store
    base: int | None = None


@dataclass
class Model:
    known: dict[int, Known] = field(default_factory=dict)
    deleted: list[int] = field(default_factory=list)
    released: list[int | None] = field(default_factory=list)


class DisposalMachine(RuleBasedStateMachine):
    @initialize(
        retained=st.integers(1, 3),
        policy=st.sampled_from(RetentionPolicy),
        claim=st.none() | st.sampled_from(ClaimMode),
    )
    def begin_job(self, retained, policy, claim):
        self.store = CheckpointStore(retained)
        self.disposal = Disposal(self.store)
        self.policy = policy
        self.model = Model()
        self.known = self.model.known
        self.next_id, self.in_use, self.ended, self.releases = IMPORTED + 1, True, None, 0
        if claim is not None:
            properties = CheckpointProperties.for_restored(claim, policy)
            self.store.add(CompletedCheckpoint(IMPORTED, 0, properties, "import", "p", imported=True))
            self.known[IMPORTED] = Known(writing=False, located=True, complete=True)

    # ---- what comes out --------------------------------------------------------------------------------------------

    def check(self, instructions):
        for instruction in instructions:
            if isinstance(instruction, ev.DiscardCheckpoint):
                self.check_discard(instruction)
            elif isinstance(instruction, ev.ReleaseShared):
                self.check_release(instruction.lowest)

    def check_discard(self, discard):
        checkpoint_id, known = discard.checkpoint_id, self.known[discard.checkpoint_id]
        assert checkpoint_id not in self.model.deleted, "twice"
        assert self.store.find(checkpoint_id) is None, "in the store"
        assert not known.kept, "kept for the user, or it may be in the job log"
        assert not known.writing, "a write is under way"
        assert not known.tasks_leave, "tasks may still write"
        assert known.located
        assert known.given_up if known.complete else known.aborted, "it may still be needed"
        assert discard.completed is known.complete
        if not known.complete:
            assert discard.snapshot == (f"s{checkpoint_id}" if known.written else None)
        if checkpoint_id == IMPORTED:
            assert not self.in_use, "a checkpoint uses files in its folder"
        self.model.deleted.append(checkpoint_id)
        assert self.disposal.cleaning > 0

    def check_release(self, lowest):
        assert self.ended is None or self.ended.is_terminal
        if lowest is None:
            assert self.ended is not None
        else:
            needed = [checkpoint.id for checkpoint in self.store.checkpoints]
            needed += [k.base for k in self.known.values() if not k.complete and not k.aborted and k.base is not None]
            assert all(lowest <= checkpoint_id for checkpoint_id in needed)
        self.model.released.append(lowest)

    def some(self, pick, accept):
        found = [checkpoint_id for checkpoint_id, known in self.known.items() if accept(known)]
        return found[pick % len(found)] if found else None

    # ---- a checkpoint ----------------------------------------------------------------------------------------------

    @precondition(lambda self: self.ended is None)
    @rule()
    def begin(self):
        checkpoint_id, self.next_id = self.next_id, self.next_id + 1
        latest = self.store.latest
        self.known[checkpoint_id] = Known(base=None if latest is None else latest.id)
        self.disposal.begin(checkpoint_id, SnapshotType.CHECKPOINT, attempt=0)

    @precondition(lambda self: self.ended is None)
    @rule(count=st.integers(1, 2))
    def all_goes_well(self, count):
        """Checkpoints begin and the first of them is completed; else completions would be rare."""
        first = self.next_id
        for _ in range(count):
            self.begin()
        known = self.known[first]
        known.writing, known.located, known.written = False, True, True
        self.check(self.disposal.location_ready(first, f"chk-{first}"))
        self.disposal.write_metadata(first)
        self.check(self.disposal.metadata_written(first, f"s{first}"))
        self.complete_one(first)

    @rule(pick=PICK)
    def location_ready(self, pick):
        checkpoint_id = self.some(pick, lambda k: k.writing and not k.located)
        if checkpoint_id is not None:
            known = self.known[checkpoint_id]
            known.writing, known.located = False, True
            self.check(self.disposal.location_ready(checkpoint_id, f"chk-{checkpoint_id}"))

    @rule(pick=PICK)
    def write_metadata(self, pick):
        checkpoint_id = self.some(
            pick, lambda k: k.located and not (k.writing or k.written or k.aborted or k.kept or k.complete)
        )
        if checkpoint_id is not None:
            self.known[checkpoint_id].writing = True
            self.disposal.write_metadata(checkpoint_id)

    @rule(pick=PICK)
    def metadata_written(self, pick):
        checkpoint_id = self.some(pick, lambda k: k.writing and k.located)
        if checkpoint_id is not None:
            known = self.known[checkpoint_id]
            known.writing, known.written = False, True
            self.check(self.disposal.metadata_written(checkpoint_id, f"s{checkpoint_id}"))

    @rule(pick=PICK, unknown=st.booleans())
    def step_failed(self, pick, unknown):
        """A write under way fails, or the claim of what is written."""
        checkpoint_id = self.some(pick, lambda k: not k.complete and (k.writing or k.written) and not k.kept)
        if checkpoint_id is None or checkpoint_id in self.model.deleted:
            return
        known = self.known[checkpoint_id]
        known.writing, known.kept = False, unknown
        self.check(self.disposal.step_failed(checkpoint_id, outcome_unknown=unknown))
        if not known.aborted:
            known.aborted = True
            self.check(self.disposal.abort(checkpoint_id, tasks_leave=False))

    @rule(pick=PICK, tasks_leave=st.booleans())
    def abort(self, pick, tasks_leave):
        checkpoint_id = self.some(pick, lambda k: not (k.aborted or k.complete))
        if checkpoint_id is not None:
            known = self.known[checkpoint_id]
            known.aborted, known.tasks_leave = True, tasks_leave
            self.check(self.disposal.abort(checkpoint_id, tasks_leave=tasks_leave))

    @rule()
    def tasks_left(self):
        for known in self.known.values():
            known.tasks_leave = False
        self.check(self.disposal.tasks_left())

    @precondition(lambda self: self.ended is None)
    @rule(pick=PICK)
    def complete(self, pick):
        checkpoint_id = self.some(pick, lambda k: k.written and not (k.aborted or k.kept or k.complete))
        newest = max((checkpoint.id for checkpoint in self.store.checkpoints), default=0)
        if checkpoint_id is not None and checkpoint_id > newest:
            self.complete_one(checkpoint_id)

    def complete_one(self, checkpoint_id):
        self.known[checkpoint_id].complete = True
        properties = CheckpointProperties.for_checkpoint(self.policy)
        subsumed = self.store.add(CompletedCheckpoint(checkpoint_id, 0, properties, f"chk-{checkpoint_id}", "p"))
        self.disposal.complete(checkpoint_id, savepoint=False)
        for old in subsumed:
            if old.properties.discard_subsumed:
                self.known[old.id].given_up = True
            else:
                self.known[old.id].kept = True
        self.check(self.disposal.subsume(subsumed))
        bases = [k.base for k in self.known.values() if not (k.complete or k.aborted) and k.base is not None]
        instructions = self.disposal.release(bases)
        self.releases += len(instructions)
        self.check(instructions)

    @precondition(lambda self: self.ended is None)
    @rule(pick=PICK)
    def complete_savepoint(self, pick):
        checkpoint_id = self.some(pick, lambda k: k.written and not (k.aborted or k.kept or k.complete))
        if checkpoint_id is not None:
            known = self.known[checkpoint_id]
            known.complete = known.kept = True
            self.disposal.complete(checkpoint_id, savepoint=True)

    @precondition(lambda self: self.ended is None)
    @rule(pick=PICK)
    def step_back(self, pick):
        kept = self.store.checkpoints
        if kept:
            forgotten = [newer.id for newer in self.store.step_back(kept[pick % len(kept)].id)]
            for checkpoint_id in forgotten:
                self.known[checkpoint_id].kept = True
            self.disposal.keep(forgotten)

    @rule(pick=PICK)
    def late_part(self, pick):
        checkpoint_id = self.some(pick, lambda k: True)
        if checkpoint_id is None:
            return
        instructions = self.disposal.late_part(checkpoint_id, TASK, "state")
        known = self.known[checkpoint_id]
        needed = known.kept or self.store.find(checkpoint_id) is not None or not (known.aborted or known.complete)
        if needed:
            assert instructions == []
        elif checkpoint_id != IMPORTED:
            assert instructions[0] == ev.DiscardFiles(checkpoint_id, TASK, "state")
            if self.ended is not None and self.ended.is_terminal:
                assert instructions[1] == ev.ReleaseShared(self.model.released[-1])

    # ---- answers, and the end --------------------------------------------------------------------------------------

    @precondition(lambda self: self.releases > 0)
    @rule(in_use=st.booleans())
    def shared_released(self, in_use):
        self.releases -= 1
        self.in_use = self.in_use and in_use
        self.check(self.disposal.shared_released(frozenset({IMPORTED}) if self.in_use else frozenset()))

    @rule(pick=PICK)
    def discarded(self, pick):
        if self.model.deleted:
            self.disposal.discarded(self.model.deleted[pick % len(self.model.deleted)])

    @precondition(lambda self: self.ended is None and self.next_id > 6)
    @rule(status=st.sampled_from(EndStatus))
    def end(self, status):
        for known in self.known.values():
            assert known.complete or known.aborted or not known.kept
        self.abort_all()
        self.ended = status
        discard, retained = self.store.end(status)
        for checkpoint in discard:
            self.known[checkpoint.id].given_up = True
        for checkpoint in retained:
            self.known[checkpoint.id].kept = True
        instructions = self.disposal.end(status, discard, retained)
        self.releases += sum(isinstance(instruction, ev.ReleaseShared) for instruction in instructions)
        self.check(instructions)

    def abort_all(self):
        for checkpoint_id, known in list(self.known.items()):
            if not (known.complete or known.aborted):
                known.aborted = True
                self.check(self.disposal.abort(checkpoint_id, tasks_leave=False))

    @invariant()
    def what_is_needed_is_protected(self):
        for checkpoint_id, known in self.known.items():
            needed = known.kept or self.store.find(checkpoint_id) is not None or not (known.aborted or known.complete)
            assert not needed or self.disposal.is_protected(checkpoint_id)

    def teardown(self):
        """All that may go has gone when every write has ended and every task has left."""
        if not hasattr(self, "model"):
            return
        if self.ended is None:
            self.end(EndStatus.CANCELED)
        for checkpoint_id, known in self.known.items():
            if known.writing:
                known.writing = False
                self.check(self.disposal.step_failed(checkpoint_id, outcome_unknown=False))
        self.tasks_left()
        self.in_use = False
        self.check(self.disposal.shared_released(frozenset()))
        for checkpoint_id, known in self.known.items():
            may_go = known.located and not known.kept and (known.given_up or known.aborted)
            assert (checkpoint_id in self.model.deleted) is may_go, (checkpoint_id, known)
        for checkpoint_id in self.model.deleted:
            self.disposal.discarded(checkpoint_id)
        assert self.disposal.cleaning == 0


TestDisposal = DisposalMachine.TestCase
# Without shrinking, which takes minutes: add Phase.shrink to see a failure in its smallest form.
TestDisposal.settings = hypothesis_settings(
    max_examples=examples(150), stateful_step_count=60, deadline=None, phases=[Phase.generate]
)
