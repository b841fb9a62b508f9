"""The job machine under any order of events: it never makes an illegal move, ends once, and deletes nothing it must keep."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from headrace.errors import JobFailed, StorageError
from headrace.job import job_events as ev
from headrace.job.machine import JobMachine, Phase
from headrace.job.restart import FixedDelay
from headrace.job.status import JobStatus
from headrace.testing.simulation.oracle import check_story

WORKERS = [(0, 0), (0, 1), (1, 0)]


class JobLife(RuleBasedStateMachine):
    """A world that answers instructions late, in any order, or with failures."""

    def __init__(self):
        super().__init__()
        self.now = 0
        self.machine = None
        self.running_cluster = None  # the attempt that the cluster runs
        self.waiting = []  # instructions without an answer yet
        self.ended = []
        self.closed = []
        self.rescales, self.answered = set(), []
        self.must_keep = self.ran = self.superseded = False
        self.restored, self.finished = {}, {}  # workers by attempt

    @initialize(restarts=st.integers(0, 3))
    def start(self, restarts):
        self.machine = JobMachine("job", len(WORKERS), FixedDelay(restarts, 100))
        self.tell(ev.StartRequested())

    def tell(self, event):
        for do in self.machine.handle(event, self.now):
            assert not self.ended, f"{do} after the end"
            match do:
                case ev.EndJob():
                    self.ended.append(do)
                    assert do.status is not JobStatus.FINISHED or not self.superseded
                case ev.CloseCheckpoints():
                    self.closed.append(do)
                    self.waiting.append(do)
                    assert do.keep_all or not self.must_keep
                    assert do.keep_all or self.ran or do.status is JobStatus.FINISHED
                    if do.status is JobStatus.FINISHED:
                        assert self.finished[self.machine.attempt] == set(WORKERS)
                case ev.AnswerRescale():
                    self.answered.append(do.request)
                case ev.SetCheckpointing(True):
                    self.ran = True
                    assert self.machine.all_running
                case ev.StartTasks(number):
                    assert self.restored[number] == set(WORKERS)
                case ev.AwaitCommits() | ev.StartAttempt() | ev.CheckTasks() | ev.FindCause():
                    self.waiting.append(do)
                case _:
                    pass

    @precondition(lambda self: self.machine is not None and self.waiting)
    @rule(data=st.data(), good=st.booleans())
    def answer(self, data, good):
        do = self.waiting.pop(data.draw(st.integers(0, len(self.waiting) - 1)))
        match do:
            case ev.AwaitCommits():
                self.tell(ev.CommitsAnswered())
            case ev.StartAttempt(number):
                if good and self.machine.is_starting(number):
                    self.running_cluster = number
                    self.tell(ev.AttemptSubmitted(number))
                else:
                    self.tell(ev.AttemptRefused(number, StorageError("away"), retry=data.draw(st.booleans())))
            case ev.CheckTasks(number):
                left = () if good else (WORKERS[0],)
                self.tell(ev.TasksLeft(number, left, len(left)))
            case ev.FindCause(number):
                final, damaged = not good and data.draw(st.booleans()), data.draw(st.booleans())
                self.must_keep |= (
                    final and damaged and self.machine.phase is Phase.LEAVING and not self.machine._cancelled
                )
                self.tell(ev.CauseFound(number, JobFailed("broken"), final=final, damaged=damaged))
            case ev.CloseCheckpoints():
                self.tell(ev.CheckpointsClosed())

    @precondition(lambda self: self.running_cluster is not None)
    @rule(
        worker=st.sampled_from(WORKERS),
        kind=st.sampled_from(["register", "restore", "run", "finish", "lose", "fail", "heard"]),
    )
    def worker_event(self, worker, kind):
        number = self.running_cluster
        if kind == "restore":
            self.restored.setdefault(number, set()).add(worker)
        if kind == "finish":
            self.finished.setdefault(number, set()).add(worker)
        event = {
            "restore": ev.WorkerRestored(number, worker),
            "register": ev.WorkerRegistered(number, worker),
            "run": ev.WorkerRunning(number, worker),
            "finish": ev.WorkerFinished(number, worker),
            "lose": ev.WorkerDisconnected(number, worker),
            "fail": ev.TaskFailed(number, certain=worker[1] == 1),
            "heard": ev.WorkerHeard(number, worker),
        }[kind]
        self.tell(event)

    @precondition(lambda self: self.running_cluster is not None)
    @rule()
    def all_run(self):
        for worker in WORKERS:
            self.tell(ev.WorkerRegistered(self.running_cluster, worker))
            self.tell(ev.WorkerRunning(self.running_cluster, worker))

    @precondition(lambda self: self.running_cluster is not None)
    @rule()
    def all_finish(self):
        for worker in WORKERS:
            self.worker_event(worker, "finish")

    @precondition(lambda self: self.running_cluster is not None)
    @rule(failed=st.booleans())
    def cluster_ends(self, failed):
        number, self.running_cluster = self.running_cluster, None
        self.tell(ev.AttemptEnded(number, failed))

    @precondition(lambda self: self.machine is not None and self.machine.phase is Phase.COMMITTING)
    @rule()
    def last_commit_fails(self):
        self.tell(ev.TaskFailed(self.machine.attempt))

    @precondition(lambda self: self.machine is not None)
    @rule()
    def cancel(self):
        self.tell(ev.CancelRequested())

    @precondition(lambda self: self.machine is not None and not self.ended)
    @rule()
    def rescale(self):
        request = len(self.rescales) + 1
        self.rescales.add(request)
        self.tell(ev.RescaleRequested(request, len(WORKERS)))

    @precondition(lambda self: self.machine is not None)
    @rule(superseded=st.booleans())
    def driver_stops(self, superseded):
        self.must_keep |= self.machine.phase is not Phase.CLOSING
        self.superseded |= superseded and not self.ended
        self.tell(ev.DriverSuperseded("superseded") if superseded else ev.DriverFailed(JobFailed("bug")))

    @precondition(lambda self: self.machine is not None)
    @rule(ms=st.sampled_from([1, 50, 1000, 40_000]))
    def time(self, ms):
        self.now += ms
        self.tell(ev.TimeElapsed())

    @invariant()
    def ends_once(self):
        assert len(self.ended) <= 1
        assert len(self.closed) <= 1
        if self.machine is not None:
            assert (self.machine.phase is Phase.ENDED) == bool(self.ended) == self.machine.status.is_terminal
            check_story(self.machine)

    def teardown(self):
        """From wherever it is, a job that is cancelled ends, and every request is answered exactly once."""
        if self.machine is None:
            return
        self.tell(ev.CancelRequested())
        for _ in range(200):
            if self.ended:
                break
            if self.running_cluster is not None:
                number, self.running_cluster = self.running_cluster, None
                self.tell(ev.AttemptEnded(number, failed=True))
            for do in list(self.waiting):
                self.waiting.remove(do)
                match do:
                    case ev.AwaitCommits():
                        pass  # a commit hangs
                    case ev.StartAttempt(number) if self.machine.is_starting(number):
                        self.tell(ev.AttemptRefused(number, StorageError("away"), retry=True))
                    case ev.CheckTasks(number):
                        self.tell(ev.TasksLeft(number, (), 0))
                    case ev.FindCause(number):
                        self.tell(ev.CauseFound(number, JobFailed("broken")))
            alarm = self.machine.next_alarm()
            if alarm is not None:
                self.now = max(self.now, alarm)
            self.tell(ev.TimeElapsed())
        assert self.ended, self.machine.phase
        assert sorted(self.answered) == sorted(self.rescales)


JobLife.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
TestJobLife = JobLife.TestCase
