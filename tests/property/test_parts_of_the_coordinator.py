"""The parts of the coordinator, each without it: stop with a savepoint, tasks of an attempt, requests, steps."""

from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from effort import examples
from headrace.checkpoint import events as ev
from headrace.checkpoint.attempt import AttemptTasks
from headrace.checkpoint.decider import RequestId, RequestOrigin, TriggerRequest
from headrace.checkpoint.plan import PlanVertex, TaskId, TaskStatus, Topology
from headrace.checkpoint.reasons import FailureReason
from headrace.checkpoint.requests import Requests
from headrace.checkpoint.settings import CheckpointProperties, CheckpointSettings, EndStatus, RetentionPolicy
from headrace.checkpoint.steps import CheckpointSteps
from headrace.checkpoint.stop import MOVES, StopState, StopWithSavepoint
from headrace.checkpoint.turn import Turn
from headrace.errors import IllegalState
from headrace.ids import OperatorId, VertexId

TOPOLOGY = Topology((PlanVertex(VertexId(0), 2, (), (OperatorId("s"),)), PlanVertex(VertexId(1), 1)))
TASKS = list(TOPOLOGY.tasks())
DONE = ev.RequestDone(7, "sp/_metadata", 3)


def effort(number):
    return settings(max_examples=examples(number), deadline=None)


# ---- stop with a savepoint -----------------------------------------------------------------------------------------


@effort(200)
@given(st.lists(st.sampled_from(["taken", "failed", "finished", "running", "dead", "superseded"]), max_size=8))
def test_a_stop_is_answered_once_and_moves_by_the_table(calls):
    stop, answers, savepoint_failed = StopWithSavepoint(RequestId("r"), 0), [], False
    for now, call in enumerate(calls, 1):
        before, refused = stop.state, ""
        try:
            match call:
                case "taken":
                    stop.taken(DONE, now)
                case "failed":
                    stop.savepoint_failed(now)
                    savepoint_failed |= before is StopState.REQUESTED
                case "superseded":
                    answers += stop.give_up(ev.RequestFailed("superseded"), now)
                case _:
                    new = stop.answer(finished=call == "finished", active=call != "dead", now=now)
                    assert not new or isinstance(new[0].result, ev.RequestDone) is (call == "finished")
                    answers += new
        except IllegalState as error:
            refused = str(error)
        assert stop.state is before or (not refused and stop.state in MOVES[before])
        assert not refused or stop.story in refused
    if savepoint_failed:
        assert answers == []  # as of any checkpoint that fails, by `Requests.failed`
    else:
        assert len(answers) <= 1
        assert stop.state is not StopState.ANSWERED or len(answers) == 1


# ---- tasks of an attempt -------------------------------------------------------------------------------------------


@effort(200)
@given(
    st.lists(
        st.booleans()
        | st.tuples(st.sampled_from(TASKS), st.sampled_from(TaskStatus))
        | st.tuples(st.sampled_from(TASKS), st.none())
        | st.none()
    )
)
def test_tasks_are_active_if_the_job_runs_and_all_of_them_go(changes):
    tasks, attempt = AttemptTasks(), 0
    statuses, running, at_end = {}, False, set()
    for change in changes:
        active = tasks.active
        match change:
            case None:
                attempt += 1
                statuses, at_end, running = dict.fromkeys(TASKS, TaskStatus.STARTING), set(), False
                tasks.set_job_running(False)
                tasks.start(attempt, TOPOLOGY)
            case (task, None):
                at_end.add(task)
                operators = tasks.end_of_data(task)
                over = at_end | {one for one, status in statuses.items() if status is TaskStatus.FINISHED}
                whole = task.vertex == 0 and over.issuperset(TASKS[:2])
                assert operators == (["s"] if whole and statuses else [])
            case (task, status):
                if tasks.is_current(attempt, task):
                    statuses[task] = status
                    assert tasks.set_status(task, status) is (tasks.active != active)
            case _:
                running = change
                assert tasks.set_job_running(change) is (tasks.active != active)
        going = {TaskStatus.RUNNING, TaskStatus.FINISHED}.issuperset(statuses.values())
        assert tasks.active is (running and bool(statuses) and going)
        assert tasks.finished == list(statuses.values()).count(TaskStatus.FINISHED)
        assert tasks.all_finished is (tasks.finished == len(statuses))


# ---- requests, and steps -------------------------------------------------------------------------------------------


class Parts:
    """Requests and steps with the tasks that they share, all of which run."""

    def __init__(self, **options):
        self.turn, self.tasks = Turn(now=1000), AttemptTasks()
        self.settings = CheckpointSettings(**options)
        self.requests = Requests(self.settings, Random(0), None, self.tasks, self.turn)
        self.steps = CheckpointSteps(self.settings, self.tasks, self.requests, self.turn)
        self.steps.start_attempt(None)
        self.tasks.start(0, TOPOLOGY)
        for task in TASKS:
            self.tasks.set_status(task, TaskStatus.RUNNING)
        self.tasks.set_job_running(True)


REQUEST = st.sampled_from(["checkpoint", "full", "savepoint", "nowhere", "stop"])


@effort(100)
@given(
    calls=st.lists(REQUEST | st.sampled_from(["next", "fail waiting", "fail", "end", "superseded"]), max_size=25),
    max_concurrent=st.integers(1, 2),
)
def test_each_request_is_answered_once(calls, max_concurrent):
    parts = Parts(max_concurrent=max_concurrent)
    requests, turn = parts.requests, parts.turn
    asked, answered, running, ended = [], [], [], False

    def run(request):
        if request is not None:
            parts.steps.begin(request)
            running.append(request)

    for call in calls:
        turn.now += 1
        id = RequestId(f"r{len(asked)}")
        if call in ("checkpoint", "full", "savepoint", "nowhere", "stop"):
            asked.append(id)
            event = {
                "checkpoint": ev.CheckpointRequested(id),
                "full": ev.CheckpointRequested(id, full=True),
                "savepoint": ev.SavepointRequested(id, "sp"),
                "nowhere": ev.SavepointRequested(id),
                "stop": ev.StopRequested(id, "sp"),
            }[call]
            request = requests.accept(event)
            assert request is None or not ended
            if request is not None:
                if call == "stop":
                    requests.begin_stop(id)
                run(requests.submit(request, parts.steps.activity))
        elif call == "next":
            run(requests.next(parts.steps.activity))
        elif call == "fail waiting":
            requests.fail_waiting(FailureReason.CHECKPOINT_COORDINATOR_SUSPEND)
            assert requests.waiting == 0
        elif call == "fail" and running:
            requests.failed(running.pop(0), FailureReason.CHECKPOINT_EXPIRED, "late", 1)
        elif call == "superseded" and not ended:
            requests.stand_down(running, "another driver")
            running, ended = [], True
        elif call == "end" and not ended:
            requests.end()
            ended = True
        answered += [do.request_id for do in turn.take() if isinstance(do, ev.CompleteRequest)]
        assert sorted(set(answered)) == sorted(answered)
    requests.fail_waiting(FailureReason.CHECKPOINT_COORDINATOR_SHUTDOWN)
    for request in running:
        requests.failed(request, FailureReason.CHECKPOINT_COORDINATOR_SHUTDOWN, "over", 1)
    answered += [do.request_id for do in turn.take() if isinstance(do, ev.CompleteRequest)]
    assert sorted(answered) == sorted(asked)


@effort(100)
@given(
    choices=st.lists(st.tuples(st.integers(0, 6), st.integers(0, 9)), max_size=60),
    retained=st.integers(1, 2),
)
def test_steps_follow_each_other_whatever_fails(choices, retained):
    """A complete checkpoint was prepared, triggered, acknowledged by all, written and claimed, in this order."""
    parts = Parts(num_retained=retained, max_concurrent=3, tolerable_failures=100)
    steps, turn = parts.steps, parts.turn
    properties = CheckpointProperties.for_checkpoint(RetentionPolicy.RETAIN_ON_FAILURE)
    done, open_, order = {}, [], {"PrepareLocation": 1, "TriggerTasks": 2, "WriteMetadata": 3, "ClaimLogEntry": 4}

    def collect():
        for do in turn.take():
            name = type(do).__name__
            id = do.barrier.id if isinstance(do, ev.TriggerTasks) else getattr(do, "checkpoint_id", None)
            if name in order:
                assert done.get(id, 0) == order[name] - 1, (name, id)
                done[id] = order[name]
                open_.append(do)
            elif isinstance(do, ev.NotifyComplete):
                assert done[id] == 4
                done[id] = 5
            elif isinstance(do, ev.NotifyAborted):
                assert done[id] < 5
                done[id] = 6

    def answer(do, well):
        id = do.barrier.id if isinstance(do, ev.TriggerTasks) else do.checkpoint_id
        if isinstance(do, ev.TriggerTasks):
            if well:
                for task in TASKS:
                    steps.on_acknowledged(ev.Acknowledged(0, task, id, "state"))
            else:
                steps.on_declined(ev.Declined(0, TASKS[0], id))
        elif not well:
            steps.on_step_failed(ev.StepFailed(id, "no"))
        elif isinstance(do, ev.PrepareLocation):
            steps.on_location(ev.LocationReady(id, f"chk-{id}"))
        elif isinstance(do, ev.WriteMetadata):
            steps.on_metadata(ev.MetadataWritten(id, f"chk-{id}/_metadata"))
        else:
            steps.on_claimed(ev.LogEntryClaimed(id, id))

    for choice, pick in choices:
        turn.now += 1
        if choice < 2 or not open_:
            steps.begin(TriggerRequest(properties, RequestOrigin.PERIODIC, turn.now))
        else:
            answer(open_.pop(pick % len(open_)), well=choice > 2)
        collect()
        assert all(done[id] < 5 for id in steps.ids)
        assert len(steps.store.checkpoints) <= retained
        assert steps.claim_under_way is any(isinstance(do, ev.ClaimLogEntry) for do in open_)
    while open_:
        answer(open_.pop(0), well=True)
        collect()
    assert steps.ids == ()
    steps.end(EndStatus.CANCELED)


def test_a_task_of_no_attempt_is_not_current():
    assert not AttemptTasks().is_current(0, TaskId(VertexId(0), 0))
