"""The coordinator under arbitrary events: what must hold whatever comes, and in whatever order (SPEC R5).

Storage answers late, wrongly or never; tasks acknowledge twice, decline, fail and finish; the job restarts, the driver
is superseded. A model beside it knows only what it has seen go in and come out.
"""

from random import Random

from hypothesis import Phase
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from effort import examples
from headrace.checkpoint import events as ev
from headrace.checkpoint.coordinator import Coordinator
from headrace.checkpoint.decider import RequestId
from headrace.checkpoint.plan import PlanInput, PlanVertex, TaskId, TaskReport, TaskStatus, Topology
from headrace.checkpoint.reasons import FailureReason
from headrace.checkpoint.settings import CheckpointSettings, ClaimMode, EndStatus, FullCheckpointPolicy, RetentionPolicy
from headrace.checkpoint.stats import SubtaskMetrics
from headrace.checkpoint.types import SnapshotType
from headrace.ids import OperatorId, VertexId

TASKS = [TaskId(VertexId(0), 0), TaskId(VertexId(0), 1), TaskId(VertexId(1), 0)]
TOPOLOGY = Topology(
    (PlanVertex(VertexId(0), 2, (), (OperatorId("s"),)), PlanVertex(VertexId(1), 1, (PlanInput(VertexId(0)),)))
)
FIVE = {reason for reason in FailureReason if reason.counted}
DECLINES = list(FailureReason)
ANSWERED = (ev.PrepareLocation, ev.SnapshotDriverState, ev.WriteMetadata, ev.ClaimLogEntry, ev.DiscardCheckpoint)
TOLD = (ev.NotifyComplete, ev.NotifyAborted, ev.TriggerTasks, ev.Announce)
TOUCHING = (*TOLD, ev.DiscardCheckpoint, ev.DiscardFiles, ev.ReleaseShared, ev.RegisterShared, *ANSWERED, ev.FailJob)


def make_settings(choose):
    """`choose` takes one of several values."""
    max_concurrent = choose([1, 1, 2, 3])
    interval = choose([None, 50, 1000])
    limits = [None, None, 1, 3]
    return CheckpointSettings(
        interval_ms=interval,
        interval_during_backlog_ms=choose([None, 0, 2000]) if interval else None,
        history_size=10_000,
        timeout_ms=choose([100, 5000]),
        min_pause_ms=choose([0, 30]),
        max_concurrent=max_concurrent,
        tolerable_failures=choose([0, 1, 2]),
        retention=choose(list(RetentionPolicy)),
        num_retained=choose([1, 2, 3]),
        unaligned=choose([True, False]) and max_concurrent == 1,
        aligned_timeout_ms=choose([0, 40]),
        after_tasks_finish=choose([True, False]),
        incremental=choose([True, False]),
        full=FullCheckpointPolicy(*(choose(limits) for _ in range(4)), cooldown_ms=200, retry_ms=20),
    )


all_settings = st.composite(lambda draw: make_settings(lambda values: draw(st.sampled_from(values))))
PICK = st.integers(0, 999)


class CoordinatorMachine(RuleBasedStateMachine):
    @initialize(
        settings=all_settings(),
        driver_state=st.booleans(),
        seed=st.integers(0, 9),
        claim=st.none() | st.sampled_from(ClaimMode),
    )
    def start_driver(self, settings, driver_state, seed, claim):
        self.settings = settings
        next_full = (lambda now: (now // 400 + 1) * 400) if seed % 2 else None
        self.coordinator = Coordinator(settings, Random(seed), driver_state=driver_state, next_full=next_full)
        self.now = 1000
        self.attempt = 0
        self.commit_number = 0
        self.open = []  # instructions without an answer yet
        self.alarm = None
        self.requested, self.answered = set(), set()
        self.ids = []  # in the order in which they were given
        self.types = {}
        self.bases, self.located, self.claimed_subsumed, self.log = {}, set(), {}, set()
        self.plans = {}  # id -> tasks that must acknowledge
        self.acked = {}
        self.written, self.claimed, self.ended_claims = set(), {}, set()
        self.told_trigger, self.told_complete, self.told_aborted, self.discarded = set(), set(), set(), set()
        self.savepoints_done = set()
        self.not_ours = set()
        self.statuses = {}
        self.job_running = False
        self.end_status = None
        self.superseded = self.stale = False
        if claim:
            self.send(ev.SnapshotImported(5, "import", "import/_metadata", claim))
            if claim is not ClaimMode.CLAIM:
                self.not_ours.add(5)
        self.steps = 0
        self.restart(restored=5 if claim else None)
        self.run_all()

    # ---- going in --------------------------------------------------------------------------------------------------

    def send(self, event):
        pending_before = set(self.coordinator.pending)
        if isinstance(event, ev.LogEntryClaimed):
            self.claimed[event.checkpoint_id] = event.commit_number
            self.log = (self.log - self.claimed_subsumed[event.checkpoint_id]) | {event.commit_number}
        if isinstance(event, ev.MetadataWritten):
            self.written.add(event.checkpoint_id)
        if isinstance(event, ev.LocationReady):
            self.located.add(event.checkpoint_id)
        instructions = self.coordinator.handle(event, self.now)
        for instruction in instructions:
            self.check(instruction, pending_before)
        if self.superseded and not isinstance(event, ev.Superseded):
            assert not [i for i in instructions if isinstance(i, TOUCHING)], instructions
        return instructions

    def restart(self, restored):
        self.attempt += 1
        self.send(ev.AttemptStarted(self.attempt, TOPOLOGY, restored))
        self.statuses = dict.fromkeys(TASKS, TaskStatus.STARTING)
        self.job_running = False

    @property
    def over(self):
        return self.superseded or self.end_status is not None

    @rule()
    def run_all(self):
        for task in TASKS:
            if self.statuses[task] is TaskStatus.STARTING:
                self.set_status(task, TaskStatus.RUNNING)
        self.job_status(running=True)

    def set_status(self, task, status):
        self.statuses[task] = status
        self.send(ev.TaskStatusChanged(self.attempt, task, status))

    def job_status(self, running):
        self.job_running = running
        self.send(ev.JobStatusChanged(running))

    # Rules that end checkpoints wait for their turn; else nothing would ever be completed.

    @property
    def trouble(self):
        self.steps += 1
        return self.steps % 5 == 0

    @rule(task=st.sampled_from(TASKS), status=st.sampled_from(TaskStatus))
    @precondition(lambda self: self.trouble)
    def task_trouble(self, task, status):
        self.set_status(task, status)

    @rule(running=st.booleans())
    @precondition(lambda self: self.trouble)
    def job_trouble(self, running):
        self.job_status(running)

    def going_on(self):
        return any(status is not TaskStatus.FINISHED for status in self.statuses.values())

    @rule()
    @precondition(lambda self: self.trouble)
    def finish_all(self):
        for task in TASKS:
            self.set_status(task, TaskStatus.FINISHED)

    @rule(rounds=st.integers(3, 9))
    def all_goes_well(self, rounds):
        """Storage answers, tasks acknowledge what they were told of, time passes a little; a failed job is restarted."""
        if TaskStatus.FAILED in self.statuses.values() or not self.going_on():
            if not self.over:
                self.job_status(running=False)
            while self.coordinator.claim_under_way:
                self.storage_answers_all()
            latest = self.coordinator.store.latest
            if not self.over:
                self.restart(None if latest is None else latest.id)
        self.run_all()
        for _ in range(rounds):
            self.storage_answers_all()
            for checkpoint_id in list(self.coordinator.pending):
                for task in TASKS:
                    if self.statuses[task] is TaskStatus.RUNNING and checkpoint_id in self.told_trigger:
                        self.acked.setdefault(checkpoint_id, set()).add(task)
                        self.send(ev.Acknowledged(self.attempt, task, checkpoint_id, f"{task}"))
            self.now += 5
            self.send(ev.TimePassed())

    @rule(pick=PICK)
    @precondition(lambda self: self.trouble and not self.coordinator.claim_under_way and not self.over)
    def new_attempt(self, pick):
        kept = [c.id for c in self.coordinator.store.checkpoints]
        restored = kept[pick % len(kept)] if kept else None
        self.not_ours |= {i for i in kept if restored is not None and i > restored}  # forgotten by a step back
        self.restart(restored)
        self.run_all()

    @rule(status=st.sampled_from(EndStatus))
    @precondition(lambda self: len(self.ids) > 12 and self.trouble)
    def end(self, status):
        if not self.over:
            self.end_status = status
        self.send(ev.JobEnded(status))

    @rule(ms=st.sampled_from([1, 10, 45, 120, 1000]))
    def time_passes(self, ms):
        self.now += ms
        self.send(ev.TimePassed())

    @rule(
        kind=st.sampled_from(["checkpoint"] * 7 + ["full"] * 2 + ["savepoint"] * 2 + ["stop"]),
        where=st.sampled_from(["sp", None]),
    )
    def request(self, kind, where):
        request_id = RequestId(f"r{len(self.requested)}")
        self.requested.add(request_id)
        if kind == "savepoint":
            self.send(ev.SavepointRequested(request_id, where))
        elif kind == "stop":
            self.send(ev.StopRequested(request_id, where))
        else:
            full = kind == "full"
            self.send(ev.CheckpointRequested(request_id, full))

    @rule(backlog=st.booleans(), held=st.sampled_from([False, False, True]))
    def pressure(self, backlog, held):
        self.send(ev.BacklogChanged(OperatorId("s"), backlog))
        self.send(ev.HoldChanged(held))

    @rule(task=st.sampled_from(TASKS))
    def end_of_data(self, task):
        self.send(ev.EndOfData(self.attempt, task))

    def some_id(self, pick):
        recent = self.ids[-4:] or [77]
        return recent[pick % len(recent)]

    @rule(pick=PICK, task=st.sampled_from(TASKS), old=st.booleans(), size=st.integers(0, 5), fin=st.booleans())
    def acknowledge(self, pick, task, old, size, fin):
        checkpoint_id = self.some_id(pick)
        attempt = self.attempt - (old and size == 0)
        if attempt == self.attempt:
            self.acked.setdefault(checkpoint_id, set()).add(task)
        report = TaskReport(finished_operators=fin)
        metrics = SubtaskMetrics(state_size=size)
        files = {OperatorId("s"): size}
        self.stale = attempt != self.attempt
        self.send(ev.Acknowledged(attempt, task, checkpoint_id, f"{task}", metrics, report, files))
        self.stale = False

    @rule(pick=PICK)
    def acknowledge_all(self, pick):
        checkpoint_id = self.some_id(pick)
        for task in TASKS:
            if self.statuses[task] is TaskStatus.RUNNING:
                self.acked.setdefault(checkpoint_id, set()).add(task)
                self.send(ev.Acknowledged(self.attempt, task, checkpoint_id, f"{task}"))

    @rule(pick=PICK, task=st.sampled_from(TASKS), reason=st.sampled_from(DECLINES))
    @precondition(lambda self: self.trouble)
    def decline(self, pick, task, reason):
        self.send(ev.Declined(self.attempt, task, self.some_id(pick), reason))

    @rule(pick=PICK, luck=st.integers(0, 9))
    @precondition(lambda self: self.open)
    def storage_answers(self, pick, luck):
        self.answer(self.open.pop(pick % len(self.open)), luck)

    @rule()
    def storage_answers_all(self):
        waiting, self.open = self.open, []
        for instruction in waiting:
            self.answer(instruction, luck=9)

    @rule(pick=PICK)
    def nonsense(self, pick):
        checkpoint_id = self.some_id(pick)
        if not any(getattr(i, "checkpoint_id", None) == checkpoint_id for i in self.open):
            self.send(ev.StepFailed(checkpoint_id, ""))

    @rule()
    @precondition(lambda self: any(isinstance(i, ev.ClaimLogEntry) for i in self.open) and len(self.ids) > 9)
    def another_driver_takes_over(self):
        claim = next(i for i in self.open if isinstance(i, ev.ClaimLogEntry))
        self.open.remove(claim)
        self.send(ev.Superseded(claim.checkpoint_id, "epoch 2"))
        self.superseded = True
        assert not self.coordinator.pending

    def answer(self, instruction, luck):
        well = luck > 1
        if isinstance(instruction, ev.PrepareLocation):
            location = f"{instruction.target or 'dir'}/{instruction.checkpoint_id}"
            self.send(
                ev.LocationReady(instruction.checkpoint_id, location)
                if well
                else ev.StepFailed(instruction.checkpoint_id, "io")
            )
        elif isinstance(instruction, ev.SnapshotDriverState):
            self.send(
                ev.DriverStateReady(instruction.checkpoint_id)
                if well
                else ev.StepFailed(instruction.checkpoint_id, "x")
            )
        elif isinstance(instruction, ev.WriteMetadata):
            pointer = f"{instruction.content.location}/_metadata"
            self.send(
                ev.MetadataWritten(instruction.checkpoint_id, pointer)
                if well
                else ev.StepFailed(instruction.checkpoint_id, "full")
            )
        elif isinstance(instruction, ev.ClaimLogEntry):
            self.ended_claims.add(instruction.checkpoint_id)
            if well:
                self.commit_number += 1
                self.send(ev.LogEntryClaimed(instruction.checkpoint_id, self.commit_number))
            else:
                if luck:
                    self.not_ours.add(instruction.checkpoint_id)
                self.send(ev.StepFailed(instruction.checkpoint_id, "lost", outcome_unknown=bool(luck)))
        elif isinstance(instruction, ev.ReleaseShared):
            self.send(ev.SharedReleased(frozenset({5}) if luck % 2 else frozenset()))
        else:
            self.send(ev.Discarded(instruction.checkpoint_id))

    # ---- coming out ------------------------------------------------------------------------------------------------

    def check(self, instruction, pending_before):
        if isinstance(instruction, (*ANSWERED, ev.ReleaseShared)):
            self.open.append(instruction)
        if isinstance(instruction, ev.ScheduleAt):
            self.alarm = instruction.time
        elif isinstance(instruction, ev.PrepareLocation):
            self.check_begun(instruction, pending_before)
        elif isinstance(instruction, ev.TriggerTasks):
            assert set(instruction.tasks) <= set(TASKS)
            self.told_trigger.add(instruction.barrier.id)
        elif isinstance(instruction, ev.WriteMetadata):
            content = instruction.content
            assert set(content.states) == self.plans[content.checkpoint_id]
            assert set(content.states) <= self.acked[content.checkpoint_id]
        elif isinstance(instruction, ev.ClaimLogEntry):
            assert instruction.checkpoint_id in self.written
            assert sum(isinstance(i, ev.ClaimLogEntry) for i in self.open) == 1
            self.claimed_subsumed[instruction.checkpoint_id] = set(instruction.subsumed)
        elif isinstance(instruction, ev.NotifyComplete):
            self.check_complete(instruction)
        elif isinstance(instruction, ev.NotifyAborted):
            assert instruction.checkpoint_id not in self.told_complete | self.told_aborted
            self.told_aborted.add(instruction.checkpoint_id)
            assert instruction.latest_completed is None or instruction.latest_completed in self.claimed
        elif isinstance(instruction, ev.DiscardCheckpoint | ev.DiscardFiles):
            self.check_discard(instruction)
        elif isinstance(instruction, ev.ReleaseShared):
            self.check_release(instruction)
        elif isinstance(instruction, ev.CompleteRequest):
            self.check_answer(instruction)
        elif isinstance(instruction, ev.FailJob):
            stop = self.types[instruction.checkpoint_id] is SnapshotType.SYNC_SAVEPOINT
            assert instruction.reason in FIVE or (stop and instruction.task is not None)

    def check_begun(self, instruction, pending_before):
        checkpoint_id = instruction.checkpoint_id
        assert not self.ids or checkpoint_id > self.ids[-1], "ids strictly grow"
        assert self.job_running
        assert not self.over
        self.ids.append(checkpoint_id)
        self.types[checkpoint_id] = instruction.type
        self.bases[checkpoint_id] = max((c.id for c in self.coordinator.store.checkpoints), default=None)
        self.plans[checkpoint_id] = {t for t, s in self.statuses.items() if s is TaskStatus.RUNNING}

    def check_complete(self, instruction):
        checkpoint_id = instruction.checkpoint_id
        assert checkpoint_id in self.written, "metadata first"
        assert self.claimed[checkpoint_id] == instruction.commit_number, "the log first"
        assert self.types[checkpoint_id] is not SnapshotType.SAVEPOINT
        assert checkpoint_id not in self.told_aborted | self.told_complete | self.discarded
        assert instruction.subsumed is None or instruction.subsumed in self.discarded or instruction.subsumed == 5
        self.told_complete.add(checkpoint_id)

    def check_discard(self, instruction):
        checkpoint_id = instruction.checkpoint_id
        kept = {c.id for c in self.coordinator.store.checkpoints}
        assert checkpoint_id not in kept, "retained"
        assert checkpoint_id not in self.savepoints_done | self.not_ours, "not ours"
        claims = {i.checkpoint_id for i in self.open if isinstance(i, ev.ClaimLogEntry)}
        needed = checkpoint_id in self.coordinator.pending or checkpoint_id in claims - self.ended_claims
        if isinstance(instruction, ev.DiscardFiles):
            # Of a checkpoint that may be completed only parts that do not belong to it.
            assert not needed or self.stale or instruction.task not in self.plans[checkpoint_id]
        else:
            assert not needed, "pending, or perhaps claimed"
            assert checkpoint_id not in self.discarded, "once"
            writing = {i.checkpoint_id for i in self.open if isinstance(i, ev.PrepareLocation | ev.WriteMetadata)}
            assert checkpoint_id not in writing, "being written"
            self.discarded.add(checkpoint_id)

    def check_release(self, instruction):
        kept = [c.id for c in self.coordinator.store.checkpoints]
        assert instruction.lowest is None or all(i >= instruction.lowest for i in kept)
        assert instruction.lowest is not None or self.end_status is not None
        for checkpoint_id in self.coordinator.pending:
            base = self.bases.get(checkpoint_id)  # unknown yet: it begins because of the same event
            savepoint = base is None or self.types[checkpoint_id].is_savepoint
            assert savepoint or instruction.lowest <= base, "may be used"

    def check_answer(self, instruction):
        assert instruction.request_id in self.requested
        assert instruction.request_id not in self.answered, "exactly one answer"
        self.answered.add(instruction.request_id)
        result = instruction.result
        if isinstance(result, ev.RequestDone):
            assert result.checkpoint_id in self.written
            if self.types[result.checkpoint_id].is_savepoint:
                self.savepoints_done.add(result.checkpoint_id)
            if self.types[result.checkpoint_id] is not SnapshotType.SAVEPOINT:
                assert self.claimed[result.checkpoint_id] == result.commit_number

    # ---- always ----------------------------------------------------------------------------------------------------

    @invariant()
    def no_more_than_allowed(self):
        normal = [i for i in self.coordinator.pending if not self.types[i].is_savepoint]
        assert len(normal) <= self.settings.max_concurrent
        if self.settings.unaligned:  # savepoints are not forced then
            assert len(self.coordinator.pending) <= self.settings.max_concurrent

    @invariant()
    def nothing_is_pending_unless_the_job_runs(self):
        going = {TaskStatus.RUNNING, TaskStatus.FINISHED}.issuperset(self.statuses.values())
        if self.over or not (self.job_running and going):
            assert self.coordinator.pending == ()
            assert self.coordinator.waiting == 0

    @invariant()
    def kept_checkpoints_are_complete(self):
        kept = [c.id for c in self.coordinator.store.checkpoints]
        assert set(kept) <= set(self.claimed) | {5}
        assert self.end_status is not None or len(kept) <= self.settings.num_retained + 1
        assert not set(kept) & self.discarded

    @invariant()
    def the_log_retains_what_the_store_keeps(self):
        kept = {c.commit_number for c in self.coordinator.store.checkpoints} - {None}
        forgotten = {self.claimed.get(i) for i in self.not_ours}
        assert self.end_status is not None or self.log - forgotten == kept - forgotten

    @invariant()
    def time_is_watched(self):
        if self.coordinator.pending:
            assert self.alarm is not None

    @invariant()
    def counts_add_up(self):
        gauges = self.coordinator.stats.gauges()
        in_progress = gauges["numberOfInProgressCheckpoints"]
        ended = gauges["numberOfCompletedCheckpoints"] + gauges["numberOfFailedCheckpoints"]
        assert gauges["totalNumberOfCheckpoints"] == in_progress + ended
        if not self.superseded:
            claims = int(self.coordinator.claim_under_way)
            assert len(self.coordinator.pending) <= in_progress <= len(self.coordinator.pending) + claims

    def check_always(self):
        self.no_more_than_allowed()
        self.nothing_is_pending_unless_the_job_runs()
        self.kept_checkpoints_are_complete()
        self.the_log_retains_what_the_store_keeps()
        self.time_is_watched()
        self.counts_add_up()

    def teardown(self):
        """In the end everybody has an answer, and no file is left behind."""
        if not hasattr(self, "coordinator"):
            return
        if not self.over:
            self.end(EndStatus.CANCELED)
        while self.open:
            self.storage_answers_all()
        assert self.answered == self.requested
        assert not self.coordinator.claim_under_way
        assert not self.coordinator.pending
        if not self.superseded:
            completed = {s.id for s in self.coordinator.stats.snapshot().history if s.commit_number or s.external_path}
            deleted_or_kept = self.discarded | self.not_ours | set(self.claimed) | completed | self.savepoints_done
            # Tasks of a suspended job may not have left: `headrace gc` deletes what they had begun.
            left = self.told_trigger if self.end_status is EndStatus.SUSPENDED else set()
            assert self.located <= deleted_or_kept | left


TestCoordinator = CoordinatorMachine.TestCase
# Without shrinking, which takes longer than a test may: add Phase.shrink to see a failure in its smallest form.
TestCoordinator.settings = hypothesis_settings(
    max_examples=examples(80), stateful_step_count=60, deadline=None, phases=[Phase.generate]
)


# The same machine on long walks in which most things go well, so that old checkpoints, chains and retries come up.


def walk(seed, steps=150):
    rng = Random(seed)
    machine = CoordinatorMachine()
    claim = rng.choice([None, None, *ClaimMode])
    machine.start_driver(make_settings(rng.choice), rng.random() < 0.3, seed % 10, claim)

    def pick():
        return rng.randrange(1000)

    kinds = ["checkpoint"] * 8 + ["full"] * 2 + ["savepoint"] * 2 + ["stop"] * (rng.random() < 0.2)
    usual = [
        lambda: machine.all_goes_well(rng.randint(1, 6)),
        machine.storage_answers_all,
        lambda: machine.open and machine.storage_answers(pick(), rng.choice([0, 1, 9, 9, 9, 9, 9])),
        lambda: machine.acknowledge_all(pick()),
        lambda: machine.acknowledge(pick(), rng.choice(TASKS), rng.random() < 0.1, rng.randint(0, 5), False),
        lambda: machine.time_passes(rng.choice([1, 10, 45])),
        lambda: machine.request(rng.choice(kinds), "sp"),
        lambda: machine.request(rng.choice(kinds), "sp"),
    ]
    unusual = [
        lambda: machine.decline(pick(), rng.choice(TASKS), rng.choice(DECLINES)),
        lambda: machine.set_status(rng.choice(TASKS), rng.choice(list(TaskStatus))),
        lambda: machine.job_status(rng.random() < 0.5),
        lambda: not machine.coordinator.claim_under_way and not machine.over and machine.new_attempt(pick()),
        lambda: machine.pressure(rng.random() < 0.5, rng.random() < 0.2),
        lambda: machine.end_of_data(rng.choice(TASKS)),
        lambda: machine.nonsense(pick()),
        lambda: machine.time_passes(rng.choice([120, 1000])),
        machine.finish_all,
    ]
    rare = [
        lambda: machine.end(rng.choice(list(EndStatus))),
        lambda: any(isinstance(i, ev.ClaimLogEntry) for i in machine.open) and machine.another_driver_takes_over(),
    ]
    for _ in range(steps):
        dice = rng.random()
        rng.choice(rare if dice < 0.003 else unusual if dice < 0.12 else usual)()
        machine.check_always()
    machine.teardown()
    return machine


def test_long_walks():
    completed = 0
    for seed in range(120):
        try:
            completed += len(walk(seed).told_complete)
        except BaseException as error:
            error.add_note(f"walk({seed})")
            raise
    assert completed > 900  # else the walks do not lead anywhere
