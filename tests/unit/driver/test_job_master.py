"""The job master: errors inside the driver, in closing, in starting; nothing hangs and nothing is deleted by mistake."""

from collections import deque
from random import Random

import pytest

from headrace import StreamExecutionEnvironment
from headrace.api.sink import EpochCommitter, Sink, SinkWriter
from headrace.checkpoint.events import CheckpointRequested, StopRequested
from headrace.checkpoint.handles import CorruptState
from headrace.config import Configuration
from headrace.control.messages import AcknowledgeCheckpoint, Failed, Finished, Register, Restored, Running
from headrace.driver.cluster import AttemptOver, WorkerMessage
from headrace.driver.job_master import JobMaster, _may_work_later
from headrace.errors import JobFailed, NotEnoughSlots, StateMigrationError, StorageError, UserCodeError
from headrace.ids import new_job_id
from headrace.job.job_events import CancelRequested, CauseFound, StartRequested
from headrace.job.machine import Phase
from headrace.job.restart import FixedDelay, NoRestart
from headrace.job.status import JobStatus
from headrace.storage.layout import JobLayout
from headrace.storage.log import JobEndClaimed, JobLog, read_logs
from headrace.storage.objects import MissingObject, storage_error
from headrace.testing.simulation.cluster import SimulatedIo
from headrace.testing.storage_faults import MemoryStore

DIRECTORY = {"execution.checkpointing.dir": "file:///job", "execution.checkpointing.interval": "1 h"}


class Cluster:
    """Remembers what it was asked for."""

    def __init__(self, events):
        self.events, self.stopped, self.closed = events, 0, 0

    def open(self):
        pass

    def wait_for_slots(self, plan, given_up, timeout=None):
        pass

    def submit(self, submission):
        self.submission = submission

    def send(self, attempt, worker, message):
        pass

    def stop(self, attempt, reason):
        self.stopped += 1

    def cancel_tasks(self, attempt):
        pass

    def tasks_left(self, attempt):
        return (), 0

    def cause(self, attempt, failures, error, stopped):
        return CauseFound(attempt, JobFailed(failures[0].message if failures else str(error)))

    def close(self):
        self.closed += 1


class Rig:
    """A job of one task, stepped by hand."""

    def __init__(self, options=None, restart=None, program=lambda env: env.from_sequence(1, 9).print()):
        self.events = deque()
        self.store = MemoryStore()
        self.io = SimulatedIo(lambda: self.now, self.store, Random(1), lambda: None)
        self.now = 1000
        self.cluster = Cluster(self.events)
        env = StreamExecutionEnvironment.get_execution_environment(Configuration(DIRECTORY)).set_parallelism(1)
        program(env)
        self.master = JobMaster(
            env._job_plan(),
            new_job_id(),
            Configuration(DIRECTORY | (options or {})),
            restart or NoRestart(),
            self.cluster,
            self.events.append,
            io=self.io,
        )

    def settle(self):
        for _ in range(500):
            if self.events:
                self.master.handle(self.events.popleft())
            elif busy := [jobs for jobs in self.io.jobs if jobs.waiting]:
                busy[0].run()
            elif (
                (alarm := self.master.next_alarm()) is not None and alarm <= self.now + 70_000 and not self.master.ended
            ):
                self.now = max(self.now, alarm)
                self.master.on_idle()
                if self.master.machine.phase is Phase.RUNNING:
                    return self
            else:
                return self
        raise AssertionError(f"the job does not come to rest: {self.master.machine.phase}")

    def start(self):
        self.events.append(StartRequested())
        while self.master.machine.phase is not Phase.RUNNING:
            if self.events:
                self.master.handle(self.events.popleft())
            else:
                next(jobs for jobs in self.io.jobs if jobs.waiting).run()
        for message in (Register(0, 0, 0, "here", 1), Running()):
            self.master.handle(WorkerMessage(0, (0, 0), message))
        assert self.master.machine.all_running
        return self

    def end(self, error=None):
        if error is None:
            self.events.append(WorkerMessage(0, (0, 0), Finished()))
        self.events.append(AttemptOver(0, error))
        return self.settle()

    def drain(self, *pools):
        """Handle all events, and run what waits in these pools, the first one first; the others do not get on."""
        while self.events or any(pool.waiting for pool in pools):
            if self.events:
                self.master.handle(self.events.popleft())
            else:
                next(pool for pool in pools if pool.waiting).run()

    def acknowledged(self, request, checkpoint_id):
        """Request a snapshot that the task acknowledges; what follows in the pool is done, but nothing in the job log."""
        answer = self.master.request(request)
        self.drain(self.io.pool)
        self.events.append(WorkerMessage(0, (0, 0), AcknowledgeCheckpoint(checkpoint_id, {})))
        self.drain(self.io.pool)
        return answer

    def log(self):
        """The newest entry of the job log."""
        (entry,), _ = read_logs(self.store, DIRECTORY["execution.checkpointing.dir"])
        return entry


def broken(*_):
    raise RuntimeError("planted")


def away(path):
    raise storage_error("create", path, OSError("the storage does not answer"))


def test_a_job_finishes():
    rig = Rig().start().end()
    assert rig.master.machine.status is JobStatus.FINISHED
    assert (rig.master.closed, rig.cluster.closed) == (True, 1)


def test_a_part_that_cannot_be_closed_does_not_keep_the_job_from_ending(caplog):
    rig = Rig().start()
    rig.master.service.close = broken
    rig.end()
    assert rig.master.machine.status is JobStatus.FINISHED
    assert (rig.master.closed, rig.cluster.closed) == (True, 1)
    assert "cannot be closed" in caplog.text


def test_an_error_in_the_driver_stops_the_tasks_and_fails_the_job():
    rig = Rig().start()
    rig.master.service.tick = broken
    rig.master.handle(WorkerMessage(0, (0, 0), Running()))
    assert rig.cluster.stopped == 1
    del rig.master.service.tick
    rig.end(JobFailed("stopped"))
    assert rig.master.machine.status is JobStatus.FAILED
    assert "RuntimeError: planted" in str(rig.master.machine.error)


def test_a_driver_that_cannot_even_stop_the_job_ends_it():
    rig = Rig().start()
    rig.master.service.tick = rig.master.service.job_running = broken
    rig.master.handle(WorkerMessage(0, (0, 0), Running()))
    assert rig.master.machine.status is JobStatus.FAILED
    assert "RuntimeError: planted" in str(rig.master.machine.error)
    assert (rig.master.closed, rig.cluster.closed) == (True, 1)


@pytest.mark.parametrize("part", ["job_running", "end"])
def test_an_error_while_a_job_is_cancelled_does_not_keep_it_from_ending(part):
    rig = Rig().start()
    setattr(rig.master.service, part, broken)
    rig.cluster.stop = lambda attempt, reason: rig.events.append(AttemptOver(0, JobFailed("stopped")))
    rig.events.append(CancelRequested())
    rig.settle()
    assert rig.master.machine.status.is_terminal
    assert rig.master.closed


def test_a_job_whose_last_messages_were_lost_fails():  # SPEC R4.5
    """Its results may have been among them."""
    rig = Rig().start()
    rig.events.append(AttemptOver(0, None))
    rig.settle()
    assert rig.master.machine.status is JobStatus.FAILED
    name = rig.master.plan.task_name(0, 0)
    assert rig.master.failure_log == [
        f"[HR-6001] the worker of {name} ended (process 1 on here), but the driver did not hear all that it sent"
    ]


def test_a_stop_that_is_refused_after_one_that_succeeded_changes_nothing():
    rig = Rig().start()
    cleaned = []
    rig.master.when_finished.append(lambda: cleaned.append(1))
    done, refused = rig.master.request(lambda _: None), rig.master.request(lambda _: None)
    rig.events.clear()
    done.set_result(None)
    rig.master._on_stop_answered(done)
    refused.set_exception(JobFailed("it stops already"))
    rig.master._on_stop_answered(refused)
    rig.end()
    assert rig.master.machine.status is JobStatus.FINISHED
    assert cleaned == []


def test_what_was_staged_is_deleted_when_the_end_is_recorded():
    rig = Rig().start()
    cleaned = []
    rig.master.when_finished.append(lambda: cleaned.append(rig.master.service.end_recorded))
    rig.end()
    assert cleaned == [True]


def test_what_was_staged_stays_when_another_driver_has_taken_over():
    rig = Rig().start()
    cleaned = []
    rig.master.when_finished.append(lambda: cleaned.append(1))
    layout = JobLayout.of(DIRECTORY["execution.checkpointing.dir"], rig.master.service.job_id)
    JobLog.start(rig.store, layout, "job", clock=lambda: 1000)
    rig.end()
    assert rig.master.machine.status is JobStatus.FAILED
    assert "another driver has taken over" in str(rig.master.machine.error)
    assert cleaned == []


def test_what_was_staged_stays_when_the_end_cannot_be_recorded(monkeypatch):
    rig = Rig().start()
    cleaned = []
    rig.master.when_finished.append(lambda: cleaned.append(1))
    monkeypatch.setattr(rig.store, "create_if_absent", lambda path, data: away(path))
    rig.end()
    assert rig.master.machine.status is JobStatus.FINISHED
    assert cleaned == []


def test_a_job_that_is_cancelled_while_the_cluster_opens_leaves_nothing_open():
    rig = Rig()
    opened = []
    rig.cluster.open = lambda: opened.append(rig.events.append(CancelRequested()))
    rig.events.append(StartRequested())
    rig.master.handle(rig.events.popleft())
    rig.master.handle(CancelRequested())
    rig.settle()
    assert rig.master.machine.status is JobStatus.CANCELED
    assert rig.cluster.closed == 2
    assert not any("/log/" in path for path in rig.store.objects)


# --- the order of what is recorded ----------------------------------------------------------------------------------------


def test_the_end_is_recorded_behind_a_claim_and_names_what_that_completed():  # SPEC R5.2, R5.8
    rig = Rig().start()
    rig.acknowledged(CheckpointRequested, 1)
    rig.cluster.stop = lambda attempt, reason: rig.events.append(AttemptOver(0, JobFailed("stopped")))
    rig.events.append(CancelRequested())
    rig.drain(rig.io.pool)
    assert rig.master.machine.phase is Phase.CLOSING
    assert len(rig.io.log.waiting) == 1  # the claim of the checkpoint: its answer decides what the end discards
    rig.drain(rig.io.log)
    assert rig.log().event == JobEndClaimed("CANCELED")
    assert [number for _, number in rig.log().commits.pairs] == [2]
    assert rig.log().retained == ()
    rig.drain(rig.io.pool)
    assert rig.master.machine.status is JobStatus.CANCELED
    assert not [path for path in rig.store.objects if "/chk-" in path]


def test_what_outlives_the_job_stays_in_the_log():  # SPEC R5.2
    retention = {"execution.checkpointing.externalized-checkpoint-retention": "RETAIN_ON_CANCELLATION"}
    rig = Rig(retention).start()
    rig.acknowledged(CheckpointRequested, 1)
    rig.cluster.stop = lambda attempt, reason: rig.events.append(AttemptOver(0, JobFailed("stopped")))
    rig.events.append(CancelRequested())
    rig.drain(*rig.io.jobs)
    assert rig.log().event == JobEndClaimed("CANCELED")
    assert [ref.checkpoint_id for ref in rig.log().retained] == [1]
    assert [path for path in rig.store.objects if "/chk-1/" in path]


def test_a_savepoint_to_stop_with_is_written_behind_a_claim():  # SPEC R8.3
    """Its metadata hold its commit number: a claim that came between would take that number."""
    rig = Rig().start()
    done = rig.acknowledged(CheckpointRequested, 1)
    stopped = rig.acknowledged(lambda request: StopRequested(request, "file:///savepoints"), 2)
    assert len(rig.io.log.waiting) == 2
    rig.drain(rig.io.log, rig.io.pool)
    rig.master.handle(WorkerMessage(0, (0, 0), Finished()))
    assert done.result(0).commit_number == 2
    assert stopped.result(0).commit_number == 3
    assert [number for _, number in rig.log().commits.pairs] == [2, 3]


def test_the_next_attempt_waits_for_a_commit_on_the_driver():  # SPEC R9.3
    rig = Rig(restart=FixedDelay(9, 0), program=lambda env: env.from_sequence(1, 9).sink_to(OnDriver())).start()
    rig.acknowledged(CheckpointRequested, 1)
    rig.drain(rig.io.log, rig.io.pool)
    assert len(rig.io.epochs.waiting) == 1
    rig.events.append(AttemptOver(0, JobFailed("a worker died")))
    rig.drain(rig.io.log, rig.io.pool, rig.io.starts)
    rig.now = rig.master.next_alarm()
    rig.master.on_idle()
    rig.drain(rig.io.log, rig.io.pool, rig.io.starts)
    assert rig.master.machine.phase is Phase.AWAITING_COMMITS
    rig.drain(rig.io.epochs)
    assert rig.master.machine.phase is Phase.STARTING


class OnDriver(Sink):
    commits_on_driver = True

    def writer(self, context, restored):
        return SinkWriter()

    def epoch_committer(self, context):
        return EpochCommitter()


@pytest.mark.parametrize(
    ("error", "attempt", "retried"),
    [
        (StorageError("no answer"), 0, True),
        (storage_error("read", "/x", TimeoutError("slow")), 0, True),
        (UserCodeError("an enumerator"), 0, True),
        (NotEnoughSlots("few"), 0, False),
        (NotEnoughSlots("few"), 1, True),
        (CorruptState("damaged"), 1, False),
        (MissingObject("there is no job named 'x'"), 0, False),
        (StateMigrationError("an operator is gone"), 0, False),
    ],
)
def test_what_is_tried_again(error, attempt, retried):
    assert _may_work_later(error, attempt) is retried


@pytest.mark.parametrize(
    "cause", [PermissionError(), NotADirectoryError(), ValueError("no such scheme"), ImportError()]
)
def test_what_lasts_is_not_tried_again_unless_the_job_has_run(cause):
    error = StorageError("cannot create")
    error.__cause__ = cause
    assert not _may_work_later(error, 0)
    assert _may_work_later(error, 1)


def test_damage_that_is_found_while_tasks_run_does_not_step_back(monkeypatch):  # SPEC R5.11
    rig = Rig().start()
    steps = []
    monkeypatch.setattr(rig.master.service, "step_back", lambda damage: bool(steps.append(damage)))
    rig.master.handle(WorkerMessage(0, (0, 0), Restored()))
    rig.master.handle(WorkerMessage(0, (0, 0), Failed("a file is damaged", "", kind="damaged")))
    rig.end(JobFailed("a task failed"))
    assert rig.master.ended
    assert "a file is damaged" in str(rig.master.machine.error)
    assert steps == []
