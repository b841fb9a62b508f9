"""The life of a job: what the machine asks for, event by event."""

import pytest

from headrace.errors import IllegalState, JobCancelled, JobFailed, StateMigrationError, StorageError
from headrace.job import job_events as ev
from headrace.job.machine import MOVES, JobMachine, Phase, Timing
from headrace.job.restart import FixedDelay, NoRestart
from headrace.job.status import LEGAL_MOVES, JobStatus

FIRST, SECOND = (0, 0), (0, 1)


class Life:
    """A machine of two tasks and what it has asked for; `step` gives the instructions of one event."""

    def __init__(self, restart=None):
        self.machine = JobMachine("job", 2, restart or FixedDelay(1000, 500))
        self.now, self.log = 0, []

    def step(self, event):
        done = self.machine.handle(event, self.now)
        self.log += done
        return done

    def wait(self, ms=None):
        """Until the next alarm, or for so long."""
        self.now = self.machine.next_alarm() if ms is None else self.now + ms
        return self.step(ev.TimeElapsed())

    def start(self, *, run=True):
        self.step(ev.StartRequested())
        self.answer_and_submit()
        if run:
            self.run()
        return self

    def answer_and_submit(self):
        self.step(ev.CommitsAnswered())
        self.step(ev.AttemptSubmitted(self.machine.attempt))

    def run(self):
        for worker in (FIRST, SECOND):
            self.step(ev.WorkerRegistered(self.machine.attempt, worker))
        done = []
        for worker in (FIRST, SECOND):
            done += self.step(ev.WorkerRunning(self.machine.attempt, worker))
        return done

    def finish(self):
        """All tasks finish, and the cluster ends the attempt."""
        for worker in self.machine._attempt.registered:
            self.step(ev.WorkerFinished(self.machine.attempt, worker))
        return self.step(ev.AttemptEnded(self.machine.attempt, failed=False))

    def end_attempt(self, failed=True, error=None, **more):
        """The cluster ends the attempt, no task is left, and the cause is known."""
        number = self.machine.attempt
        self.step(ev.AttemptEnded(number, failed))
        self.step(ev.TasksLeft(number, (), 0))
        self.step(ev.CauseFound(number, error or JobFailed("it broke"), **more))
        return self.step(ev.TasksLeft(number, (), 0))

    def asked(self, kind):
        return [one for one in self.log if isinstance(one, kind)]


def status_of(done):
    return [one.status.name for one in done if isinstance(one, ev.SetStatus)]


@pytest.fixture
def life():
    return Life().start()


# SPEC R5.11
def test_tasks_start_when_all_have_restored_their_state():
    life = Life().start(run=False)
    assert life.step(ev.WorkerRestored(0, FIRST)) == []
    assert life.machine.restoring
    assert life.step(ev.WorkerRestored(0, SECOND)) == [ev.StartTasks(0)]
    assert not life.machine.restoring


def test_tasks_of_an_attempt_that_fails_do_not_start():
    life = Life().start(run=False)
    life.step(ev.WorkerRestored(0, FIRST))
    life.step(ev.TaskFailed(0))
    assert life.step(ev.WorkerRestored(0, SECOND)) == []


# SPEC R5.11
def test_a_step_back_is_no_failure_that_the_restart_strategy_counts():
    life = Life(NoRestart()).start(run=False)
    life.step(ev.TaskFailed(0, certain=True))
    life.end_attempt(damaged=True)
    life.wait()
    assert life.machine.phase is Phase.AWAITING_COMMITS
    assert life.machine.attempt == 1


def test_damage_without_an_older_checkpoint_ends_the_job_and_deletes_nothing(life):
    life.step(ev.TaskFailed(0, certain=True))
    done = life.end_attempt(damaged=True, final=True)
    assert ev.CloseCheckpoints(JobStatus.FAILED, keep_all=True) in done


def test_a_job_awaits_commits_starts_and_runs_when_all_tasks_run():
    life = Life()
    assert life.step(ev.StartRequested()) == [ev.AwaitCommits()]
    assert life.step(ev.CommitsAnswered()) == [ev.StartAttempt(0)]
    assert life.step(ev.AttemptSubmitted(0)) == []
    life.step(ev.WorkerRegistered(0, FIRST))
    life.step(ev.WorkerRegistered(0, SECOND))
    assert life.step(ev.WorkerRunning(0, FIRST)) == []
    assert life.step(ev.WorkerRunning(0, SECOND)) == [ev.SetStatus(JobStatus.RUNNING), ev.SetCheckpointing(True)]
    assert life.machine.all_running


def test_a_job_finishes_when_its_last_output_is_committed(life):
    assert life.finish() == [ev.AwaitCommits()]
    assert life.step(ev.CommitsAnswered()) == [ev.CloseCheckpoints(JobStatus.FINISHED, keep_all=False)]
    assert life.machine.status is JobStatus.RUNNING
    done = life.step(ev.CheckpointsClosed())
    assert done == [ev.SetStatus(JobStatus.FINISHED), ev.EndJob(JobStatus.FINISHED, None)]
    assert life.step(ev.CancelRequested()) == []


def test_an_attempt_that_ends_well_is_not_heard_out(life):  # SPEC R4.5
    """What a worker sends last, such as results, comes before its end is heard: without that, something is missing."""
    life.step(ev.WorkerFinished(0, FIRST))
    done = life.step(ev.AttemptEnded(0, failed=False))
    assert done[0] == ev.RecordLostWorker(0, SECOND, "unheard")
    assert status_of(done) == ["FAILING"]
    life.step(ev.TasksLeft(0, (), 0))
    life.step(ev.CauseFound(0, JobFailed("not heard")))
    life.step(ev.TasksLeft(0, (), 0))
    assert life.machine.phase is Phase.WAITING


def test_a_cancelled_attempt_that_ends_well_is_not_heard_out(life):
    life.step(ev.CancelRequested())
    life.step(ev.WorkerFinished(0, FIRST))
    done = life.step(ev.AttemptEnded(0, failed=False))
    assert not life.asked(ev.RecordLostWorker)
    assert ev.CheckTasks(0) in done


def test_a_late_task_does_not_revive_a_failing_attempt():
    life = Life().start(run=False)
    life.step(ev.WorkerRegistered(0, FIRST))
    life.step(ev.WorkerRegistered(0, SECOND))
    life.step(ev.WorkerRunning(0, FIRST))
    life.step(ev.WorkerDisconnected(0, FIRST))
    assert life.step(ev.WorkerRunning(0, SECOND)) == []
    assert not life.machine.all_running


# --- failures ---------------------------------------------------------------------------------------------------------


def test_a_lost_worker_gives_others_a_moment_to_name_a_better_cause(life):
    assert life.step(ev.WorkerDisconnected(0, FIRST)) == [
        ev.RecordLostWorker(0, FIRST, "died"),
        ev.SetStatus(JobStatus.FAILING),
        ev.SetCheckpointing(False),
    ]
    assert life.wait(999) == []
    assert life.wait(1) == [ev.StopAttempt(0, "another subtask failed")]


def test_a_failure_of_the_users_code_stops_the_attempt_at_once(life):
    assert life.step(ev.TaskFailed(0, certain=True))[-1] == ev.StopAttempt(0, "another subtask failed")


def test_a_stop_is_repeated_until_the_cluster_has_ended_the_attempt(life):
    life.step(ev.TaskFailed(0, certain=True))
    assert life.wait(200) == life.wait(200) == [ev.StopAttempt(0, "another subtask failed")]
    life.step(ev.AttemptEnded(0, failed=True))
    assert life.machine.phase is Phase.LEAVING


def test_a_worker_that_finished_may_disconnect(life):
    life.step(ev.WorkerFinished(0, FIRST))
    assert life.step(ev.WorkerDisconnected(0, FIRST)) == []


def test_a_silent_worker_is_lost(life):
    life.now = 20_000
    life.step(ev.WorkerHeard(0, SECOND))
    assert life.wait(1)[0] == ev.RecordLostWorker(0, FIRST, "silent")


def test_workers_that_stood_still_with_their_driver_have_their_time_again(life):
    """A paused container, a frozen group of processes: each of them finds its timers late, and no worker is gone."""
    life.now = 21_002
    assert life.step(ev.TimeElapsed()) == []
    assert life.machine.next_alarm() == life.now + 20_001
    assert life.wait(20_000) == []
    assert life.wait(1)[0] == ev.RecordLostWorker(0, FIRST, "silent")


def test_a_driver_that_is_a_little_late_did_not_stand_still(life):
    life.now = 21_000
    assert life.step(ev.TimeElapsed())[0] == ev.RecordLostWorker(0, FIRST, "silent")


def test_silence_is_judged_only_when_no_event_waits(life):
    life.now = 60_000
    assert life.step(ev.WorkerHeard(0, SECOND)) == []
    life.step(ev.WorkerHeard(0, FIRST))
    assert life.step(ev.TimeElapsed()) == []


def test_a_failed_attempt_is_followed_by_the_next_one(life):
    done = life.end_attempt()
    assert life.machine.phase is Phase.WAITING
    assert life.machine.status is JobStatus.RESTARTING
    assert done == []
    assert [cause.error for cause in life.machine.story.failures()] == ["JobFailed"]
    life.now = life.machine.next_alarm()
    assert life.step(ev.TimeElapsed()) == [ev.AwaitCommits()]
    assert (life.machine.attempt, life.machine.restarts) == (1, 1)
    assert life.step(ev.CommitsAnswered()) == [ev.StartAttempt(1)]
    life.step(ev.AttemptSubmitted(1))
    assert status_of(life.run()) == ["RUNNING"]


def test_events_of_an_older_attempt_are_ignored(life):
    life.end_attempt()
    life.wait()
    life.answer_and_submit()
    for event in (ev.AttemptEnded(0, failed=True), ev.TaskFailed(0, certain=True), ev.WorkerRunning(0, FIRST)):
        assert life.step(event) == []


def test_tasks_that_do_not_leave_are_told_again_then_killed_then_ignored(life):
    life.step(ev.AttemptEnded(0, failed=True))
    assert life.step(ev.TasksLeft(0, (FIRST,), 1)) == [ev.CancelTasks(0)]
    life.now = 1000
    assert life.step(ev.TasksLeft(0, (FIRST,), 1))[0] == ev.FindCause(0, stopped=False)
    life.step(ev.CauseFound(0, JobFailed("it broke")))
    life.now = 6001
    assert life.step(ev.TasksLeft(0, (FIRST,), 1)) == [ev.CancelTasks(0), ev.KillWorker(0, FIRST)]
    life.now = 30_001
    done = life.step(ev.TasksLeft(0, (FIRST,), 1))
    assert "some of its tasks still run" in next(one.message for one in done if isinstance(one, ev.WarnUser))
    assert life.machine.attempt == 1


def test_without_restarts_the_job_fails_and_its_retention_decides(life):
    life = Life(NoRestart()).start()
    assert life.end_attempt()[-1] == ev.CloseCheckpoints(JobStatus.FAILED, keep_all=False)
    assert str(life.machine.error) == "[HR-6001] job 'job' failed: it broke"
    assert status_of(life.step(ev.CheckpointsClosed())) == ["FAILED"]


def test_a_last_commit_that_fails_restarts_the_job(life):
    life.finish()
    assert ev.CheckTasks(0) in life.step(ev.TaskFailed(0))
    life.step(ev.TasksLeft(0, (), 0))
    life.step(ev.CauseFound(0, JobFailed("the commit failed")))
    life.step(ev.TasksLeft(0, (), 0))
    assert life.machine.phase is Phase.WAITING


# --- starting ---------------------------------------------------------------------------------------------------------


def refused(error, *, retry, restart=None):
    life = Life(restart)
    life.step(ev.StartRequested())
    life.step(ev.CommitsAnswered())
    return life, life.step(ev.AttemptRefused(0, error, retry))


def test_a_start_that_storage_does_not_answer_is_retried():
    life, _ = refused(StorageError("no answer"), retry=True)
    assert life.machine.status is JobStatus.RESTARTING
    life.wait()
    assert life.machine.attempt == 1


def test_a_program_that_does_not_fit_fails_at_once_and_nothing_is_deleted():
    error = StateMigrationError("an operator is gone")
    life, done = refused(error, retry=False)
    assert done[-1] == ev.CloseCheckpoints(JobStatus.FAILED, keep_all=True)
    assert life.machine.error is error


def test_nothing_is_deleted_when_the_restarts_of_a_job_that_never_ran_are_used_up():
    _, done = refused(StorageError("no answer"), retry=True, restart=NoRestart())
    assert done[-1] == ev.CloseCheckpoints(JobStatus.FAILED, keep_all=True)


def test_a_job_that_cannot_be_started_again_keeps_everything(life):
    life.end_attempt()
    life.wait()
    life.step(ev.CommitsAnswered())
    done = life.step(ev.AttemptRefused(1, StorageError("every checkpoint is damaged"), retry=False))
    assert done[-1] == ev.CloseCheckpoints(JobStatus.FAILED, keep_all=True)


# --- cancel -----------------------------------------------------------------------------------------------------------


def test_a_running_job_is_stopped_and_cancelled(life):
    done = life.step(ev.CancelRequested())
    assert status_of(done) == ["CANCELLING"]
    assert done[-1] == ev.StopAttempt(0, "the job was cancelled")
    assert life.end_attempt()[-1] == ev.CloseCheckpoints(JobStatus.CANCELED, keep_all=False)
    life.step(ev.CheckpointsClosed())
    assert life.machine.status is JobStatus.CANCELED
    assert isinstance(life.machine.error, JobCancelled)


@pytest.mark.parametrize("events", [[], [ev.StartRequested()], [ev.StartRequested(), ev.CommitsAnswered()]])
def test_a_job_that_has_not_run_is_cancelled_at_once_and_keeps_everything(events):
    life = Life()
    for event in events:
        life.step(event)
    assert life.step(ev.CancelRequested())[-1] == ev.CloseCheckpoints(JobStatus.CANCELED, keep_all=True)
    assert life.step(ev.AttemptSubmitted(0)) == []


def test_a_job_that_waits_for_its_restart_is_cancelled_at_once(life):
    life.end_attempt()
    assert life.step(ev.CancelRequested())[-1] == ev.CloseCheckpoints(JobStatus.CANCELED, keep_all=False)


def test_a_commit_that_hangs_does_not_hold_up_a_cancel(life):
    life.finish()
    life.step(ev.CancelRequested())
    assert life.wait()[-1] == ev.CloseCheckpoints(JobStatus.CANCELED, keep_all=False)


def test_a_commit_that_returns_in_time_lets_a_cancelled_job_finish(life):
    life.finish()
    life.step(ev.CancelRequested())
    assert life.step(ev.CommitsAnswered()) == [ev.CloseCheckpoints(JobStatus.FINISHED, keep_all=False)]


def test_a_job_log_that_does_not_answer_does_not_hold_up_a_cancel(life):
    life.step(ev.CancelRequested())
    life.end_attempt()
    done = life.wait(Timing().record_cancelled_end)
    assert [type(one) for one in done] == [ev.WarnUser, ev.SetStatus, ev.EndJob]


def test_deletions_are_waited_for_once_the_end_is_recorded(life):
    life.step(ev.CancelRequested())
    life.end_attempt()
    life.step(ev.EndRecorded())
    assert life.wait(60_000) == []
    assert life.step(ev.CheckpointsClosed())[-1] == ev.EndJob(JobStatus.CANCELED, life.machine.error)


def test_a_job_that_is_cancelled_in_the_cluster_says_so(life):
    error = JobCancelled("cancelled in Spark")
    life.end_attempt(error=error, cancelled=True)
    assert life.machine.error is error


# --- rescaling --------------------------------------------------------------------------------------------------------


def rescaled(life):
    done = life.step(ev.RescaleRequested(1, 3))
    assert status_of(done) == ["RESTARTING"]
    return life.end_attempt()


def test_a_rescale_stops_the_attempt_and_starts_one_with_the_new_plan(life):
    assert rescaled(life) == [ev.ApplyRescale(1), ev.AwaitCommits()]
    assert life.machine.restarts == 0
    life.answer_and_submit()
    workers = [(0, index) for index in range(3)]
    for worker in workers:
        life.step(ev.WorkerRegistered(1, worker))
    assert [life.step(ev.WorkerRunning(1, worker)) for worker in workers][-1] == [
        ev.SetStatus(JobStatus.RUNNING),
        ev.SetCheckpointing(True),
        ev.AnswerRescale(1),
    ]


def test_a_rescale_is_answered_also_when_its_first_attempt_fails(life):
    rescaled(life)
    life.answer_and_submit()
    life.end_attempt()
    life.wait()
    life.answer_and_submit()
    for index in range(3):
        life.step(ev.WorkerRunning(2, (0, index)))
    assert life.asked(ev.AnswerRescale) == [ev.AnswerRescale(1)]


def test_a_rescaled_attempt_that_fails_is_counted_by_the_restart_strategy():
    life = Life(NoRestart()).start()
    rescaled(life)
    life.answer_and_submit()
    assert status_of(life.end_attempt()) == ["FAILING"]
    assert life.asked(ev.ApplyRescale) == [ev.ApplyRescale(1)]


def test_a_rescale_is_refused_while_another_one_is_under_way(life):
    life.step(ev.RescaleRequested(1, 3))
    (answer,) = life.step(ev.RescaleRequested(2, 4))
    assert isinstance(answer.error, IllegalState)
    assert answer.request == 2


def test_a_rescale_of_a_job_that_ends_is_refused(life):
    life.step(ev.RescaleRequested(1, 3))
    life.step(ev.CancelRequested())
    life.end_attempt()
    (answer,) = life.asked(ev.AnswerRescale)
    assert str(answer.error) == "[HR-3009] job 'job' has ended"


# --- drivers ----------------------------------------------------------------------------------------------------------


def test_a_superseded_driver_stops_its_tasks_and_deletes_nothing(life):
    assert life.step(ev.DriverSuperseded("another driver leads"))[-1] == ev.StopAttempt(0, "the driver stopped")
    assert life.end_attempt()[-1] == ev.CloseCheckpoints(JobStatus.FAILED, keep_all=True)
    assert "another driver leads" in str(life.machine.error)
    assert life.machine.restarts == 0


def test_an_error_inside_the_driver_deletes_nothing(life):
    life.end_attempt()
    done = life.step(ev.DriverFailed(JobFailed("standard output is closed")))
    assert done[-1] == ev.CloseCheckpoints(JobStatus.FAILED, keep_all=True)


def test_a_terminal_status_has_no_moves():
    assert {status for status in JobStatus if not LEGAL_MOVES[status]} == {
        JobStatus.FINISHED,
        JobStatus.CANCELED,
        JobStatus.FAILED,
    }


def test_the_tasks_are_asked_for_again_when_an_answer_is_lost(life):
    life.step(ev.AttemptEnded(0, failed=True))
    assert life.wait() == [ev.CheckTasks(0)]


def test_a_driver_that_fails_while_tasks_leave_ends(life):
    life.step(ev.AttemptEnded(0, failed=True))
    life.step(ev.DriverFailed(JobFailed("bug")))
    assert ev.CheckTasks(0) in life.wait()
    assert life.step(ev.TasksLeft(0, (), 0))[-1] == ev.CloseCheckpoints(JobStatus.FAILED, keep_all=True)


def test_a_driver_that_fails_stops_also_when_the_tasks_finish(life):
    life.step(ev.DriverFailed(JobFailed("bug")))
    assert life.end_attempt(failed=False)[-1] == ev.CloseCheckpoints(JobStatus.FAILED, keep_all=True)


def test_a_driver_that_is_superseded_while_it_closes_closes_once(life):
    life.step(ev.CancelRequested())
    life.end_attempt()
    assert life.step(ev.DriverSuperseded("another driver leads")) == []


def test_a_cancel_does_not_hide_that_the_job_has_failed():
    life = Life(NoRestart()).start()
    life.step(ev.AttemptEnded(0, failed=True))
    life.step(ev.TasksLeft(0, (FIRST,), 1))
    life.now = 1000
    life.step(ev.TasksLeft(0, (FIRST,), 1))
    life.step(ev.CauseFound(0, JobFailed("it broke")))
    life.step(ev.CancelRequested())
    assert life.step(ev.TasksLeft(0, (), 0))[-1].status is JobStatus.FAILED


def test_a_rescale_survives_a_last_commit_that_fails(life):
    life.step(ev.RescaleRequested(1, 3))
    life.finish()
    life.step(ev.TaskFailed(0))
    life.step(ev.TasksLeft(0, (), 0))
    life.step(ev.CauseFound(0, JobFailed("the commit failed")))
    life.step(ev.TasksLeft(0, (), 0))
    life.answer_and_submit()
    for index in range(3):
        life.step(ev.WorkerRunning(1, (0, index)))
    assert life.machine.status is JobStatus.RUNNING
    assert life.asked(ev.AnswerRescale) == [ev.AnswerRescale(1)]


def test_no_rescale_when_no_attempt_can_run(life):
    life.step(ev.RescaleRequested(1, 3))
    assert life.end_attempt(final=True)[-1].status is JobStatus.FAILED


def test_a_job_that_is_abandoned_has_ended(life):
    life.machine.abandon(JobFailed("bug"))
    assert life.machine.status is JobStatus.FAILED
    assert life.step(ev.CancelRequested()) == []


def test_a_driver_that_is_superseded_before_its_end_is_recorded_has_not_finished_the_job(life):
    life.finish()
    life.step(ev.CommitsAnswered())
    assert life.step(ev.DriverSuperseded("another driver leads")) == [ev.SetStatus(JobStatus.FAILING)]
    (status, end) = life.step(ev.CheckpointsClosed())
    assert (status, end.status) == (ev.SetStatus(JobStatus.FAILED), JobStatus.FAILED)
    assert str(end.error) == "[HR-6001] another driver leads"


def test_every_phase_has_a_row_and_can_end():
    assert set(MOVES) == set(Phase)
    assert all(Phase.ENDED in after for phase, after in MOVES.items() if phase is not Phase.ENDED)


def test_an_illegal_phase_tells_the_story():
    life = Life().start()
    with pytest.raises(IllegalState) as error:
        life.machine._enter(Phase.STARTING)
    assert "from RUNNING to STARTING" in str(error.value)
    assert "its story: CREATED at 0, AWAITING_COMMITS at" in str(error.value)
    assert str(error.value).endswith("; attempt 0, status RUNNING")


def test_a_machine_that_has_ended_can_be_abandoned():
    life = Life()
    life.machine.abandon(JobFailed("bug"))
    life.machine.abandon(JobFailed("another bug"))
    assert (life.machine.phase, str(life.machine.error)) == (Phase.ENDED, "[HR-6001] another bug")
