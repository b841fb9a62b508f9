"""The tasks of the attempt that runs, as far as checkpoints depend on them. Part of the coordinator: pure, on the driver."""

from __future__ import annotations

from headrace.checkpoint.plan import TaskId, TaskStatus, Topology
from headrace.ids import OperatorId

_GOING = {TaskStatus.RUNNING, TaskStatus.FINISHED}


class AttemptTasks:
    """The status of each task, and whether checkpoints can be taken: only of a running job all of whose tasks go.

    >>> from headrace.checkpoint.plan import PlanVertex
    >>> from headrace.ids import VertexId
    >>> tasks = AttemptTasks()
    >>> tasks.start(0, Topology((PlanVertex(VertexId(0), 1),)))
    >>> tasks.set_status(TaskId(VertexId(0), 0), TaskStatus.RUNNING), tasks.set_job_running(True)
    (False, True)
    >>> tasks.active
    True
    """

    def __init__(self) -> None:
        self.attempt: int | None = None
        self.topology = Topology(())
        self.statuses: dict[TaskId, TaskStatus] = {}
        self.active = False  # the job runs, and each task runs or has finished
        self._job_running = False
        self._at_end: set[TaskId] = set()  # tasks that have reached the end of their data

    @property
    def finished(self) -> int:
        """The number of tasks that have finished."""
        return sum(status is TaskStatus.FINISHED for status in self.statuses.values())

    @property
    def all_finished(self) -> bool:
        """True if every task has finished."""
        return self.finished == len(self.statuses)

    @property
    def all_at_end(self) -> bool:
        """True if every task has reached the end of its data, or has finished."""
        return self._over.issuperset(self.statuses)

    def start(self, attempt: int, topology: Topology) -> None:
        """Begin another attempt: its tasks are starting."""
        self.attempt, self.topology = attempt, topology
        self.statuses = dict.fromkeys(topology.tasks(), TaskStatus.STARTING)
        self._at_end.clear()
        self.active = False

    def is_current(self, attempt: int, task: TaskId) -> bool:
        """Return True if the task belongs to this attempt."""
        return attempt == self.attempt and task in self.statuses

    def set_job_running(self, running: bool) -> bool:
        """Note the status of the job; return True if `active` has changed."""
        self._job_running = running
        return self._update()

    def set_status(self, task: TaskId, status: TaskStatus) -> bool:
        """Note the status of a task; return True if `active` has changed."""
        self.statuses[task] = status
        return self._update()

    def end_of_data(self, task: TaskId) -> list[OperatorId]:
        """Note that a task has no more data; return the operators of its vertex if that is over."""
        self._at_end.add(task)
        over = self._over
        vertices = [vertex for vertex in self.topology.vertices if vertex.id == task.vertex]
        return [op for vertex in vertices if over.issuperset(vertex.tasks()) for op in vertex.operators]

    @property
    def _over(self) -> set[TaskId]:
        return self._at_end | {task for task, status in self.statuses.items() if status is TaskStatus.FINISHED}

    def _update(self) -> bool:
        before = self.active
        self.active = self._job_running and bool(self.statuses) and _GOING.issuperset(self.statuses.values())
        return self.active != before
