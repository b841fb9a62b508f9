"""Commits on the driver: what all subtasks of a sink prepared for one checkpoint is one epoch, committed as a whole.

A subtask keeps what it prepared, in every checkpoint, until it is notified that the epoch is committed; it does not end
before. So the checkpoint that a job restores holds everything that may not have been committed, and commit numbers tell
what has been.

    completed      a checkpoint is complete: its epochs join the queue, in order
    (a thread)     commits them, one at a time
    committed      the subtasks are notified; the coordinator waits while too many epochs are in the queue
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from concurrent.futures import Executor
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from headrace.api.sink import Epoch, EpochCommitter, EpochContext, Prepared, Sink
from headrace.checkpoint.commits import Commits
from headrace.checkpoint.handles import CorruptState
from headrace.checkpoint.plan import TaskId
from headrace.control.messages import EpochCommitted
from headrace.driver.services import JobPort
from headrace.graph.job_graph import ChainedOperator, JobGraph
from headrace.ids import OperatorId, VertexId
from headrace.storage.objects import MissingObject

MAX_WAITING = 3  # epochs that wait for their commit; with more of them no checkpoint starts


def epoch_sinks(graph: JobGraph) -> list[tuple[VertexId, ChainedOperator]]:
    """The operators, with their vertices, whose sinks commit on the driver."""
    operators = [(vertex.id, operator) for vertex in graph.vertices for operator in vertex.operators]
    return [
        (vertex, operator)
        for vertex, operator in operators
        if isinstance(operator.spec.function, Sink) and operator.spec.function.commits_on_driver
    ]


@dataclass(slots=True)
class _SinkQueue:
    """The epochs of one sink."""

    operator: ChainedOperator
    vertex: VertexId
    newest: int = 0  # the newest complete checkpoint
    committed: int = 0  # up to this checkpoint epochs are committed
    waiting: set[int] = field(default_factory=set)  # complete checkpoints whose epochs are not
    # Only the committing thread uses these:
    committer: EpochCommitter[Any] | None = None
    last_number: int = 0  # of the last epoch that was committed
    commits: int = 0
    commit_ms: float = 0.0  # of all of them
    last_commit_ms: float = 0.0


class Epochs:
    """The sinks of a job that commit on the driver. Called in the job's thread; only commits run in another one.

    `pool` is one thread; `read(manifest, operator)` gives what the subtasks had prepared, `on_backlog(True)` makes the coordinator wait, `on_backlog(False)` lets it continue.
    """

    def __init__(
        self,
        graph: JobGraph,
        pool: Executor,
        job: JobPort,
        read: Callable[[Any, str], Iterable[Prepared]],
        on_backlog: Callable[[bool], None],
        context: Callable[[ChainedOperator], EpochContext],
    ) -> None:
        self._graph, self._pool, self._job = graph, pool, job
        self._read, self._on_backlog, self._context = read, on_backlog, context
        self._queues = {operator.id: _SinkQueue(operator, vertex) for vertex, operator in epoch_sinks(graph)}
        self.any = bool(self._queues)  # the job has such sinks at all
        self._generation = 0
        self._broken = -1  # the generation in which a commit failed: epochs after it must not be committed first
        self._under_way = 0
        self._restored: tuple[Any, int, Commits] | None = None  # the checkpoint that the attempt restores
        self._behind = False

    @property
    def idle(self) -> bool:
        """Return True if nothing is being committed."""
        return self._under_way == 0

    def figures(self) -> dict[OperatorId, dict[str, float]]:
        """Commits and their times by sink, as the sinks that commit in subtasks tell them; may be called by any thread."""
        return {
            id: {"commits": one.commits, "commitTime": one.commit_ms, "lastCommitTime": one.last_commit_ms}
            for id, one in self._queues.items()
            if one.commits
        }

    def replan(self, graph: JobGraph) -> None:
        """The next attempt runs another graph of the same program."""
        self._graph = graph
        for vertex, operator in epoch_sinks(graph):
            self._queues[operator.id].operator, self._queues[operator.id].vertex = operator, vertex

    # --- the job's thread -------------------------------------------------------------------------------------------

    def start_attempt(self, manifest: Any | None, checkpoint_id: int | None, commits: Commits) -> None:
        """Nothing of the attempt before is under way any more.

        What the restored checkpoint holds is committed (again) when all subtasks run, and not before: while one restores its
        state, the job may still step back to an older checkpoint (SPEC R5.11).
        """
        assert self.idle, "an epoch is being committed"
        self._generation += 1
        for queue in self._queues.values():
            queue.waiting.clear()
            queue.newest = queue.committed = 0
        self._update_hold()
        self._restored = None if checkpoint_id is None else (manifest, checkpoint_id, commits)

    def completed(self, manifest: Any, checkpoint_id: int, commits: Commits) -> None:
        """A checkpoint is complete: its epochs are due."""
        for queue in self._queues.values():
            queue.waiting.add(checkpoint_id)
            queue.newest = checkpoint_id
            self._under_way += 1
            self._pool.submit(self._work, queue, self._generation, manifest, checkpoint_id, commits)
        self._update_hold()

    def job_running(self) -> None:
        """All subtasks have restored their state, and are connected: they are notified of what they need not keep."""
        restored, self._restored = self._restored, None
        if restored is not None:
            self.completed(*restored)

    def close(self) -> None:
        """Release what the committers hold; one whose commit is under way is left to it."""
        if not self.idle:
            return
        for queue in self._queues.values():
            if queue.committer is not None:
                committer, queue.committer = queue.committer, None
                committer.close()

    def _notify(self, queue: _SinkQueue) -> None:
        for subtask in range(self._graph.vertices[queue.vertex].parallelism):
            self._job.send(TaskId(queue.vertex, subtask), EpochCommitted(queue.operator.id, queue.committed))

    def _update_hold(self) -> None:
        behind = any(len(queue.waiting) > MAX_WAITING for queue in self._queues.values())
        if behind != self._behind:
            self._behind = behind
            self._on_backlog(behind)

    def _done(self, queue: _SinkQueue, generation: int, checkpoint_id: int, committed: bool) -> None:
        self._under_way -= 1
        if generation != self._generation:
            return
        queue.waiting.discard(checkpoint_id)
        if committed:
            queue.committed = checkpoint_id
            self._notify(queue)
        self._update_hold()

    def _unreadable(self, queue: _SinkQueue, generation: int, checkpoint_id: int, error: Exception) -> None:
        """If it was subsumed meanwhile, and its files deleted, a newer checkpoint holds what it held."""
        if queue.newest > checkpoint_id:
            self._done(queue, generation, checkpoint_id, committed=False)
        else:
            self._failed(queue, generation, error)

    def _failed(self, queue: _SinkQueue, generation: int, error: Exception) -> None:
        self._under_way -= 1
        if generation == self._generation:
            self._generation += 1
            operator = queue.operator
            self._job.fail(
                f"sink '{operator.name}' ({operator.call_site}) cannot commit: {type(error).__name__}: {error}"
            )

    # --- the committing thread --------------------------------------------------------------------------------------

    def _work(self, queue: _SinkQueue, generation: int, manifest: Any, checkpoint_id: int, commits: Commits) -> None:
        self._job.call(self._try(queue, generation, manifest, checkpoint_id, commits))

    def _try(
        self, queue: _SinkQueue, generation: int, manifest: Any, checkpoint_id: int, commits: Commits
    ) -> Callable[[], None]:
        """Commit, and return what is to be done in the job's thread then."""
        if generation != self._generation or generation == self._broken:
            return partial(self._done, queue, generation, checkpoint_id, committed=False)
        try:
            try:
                prepared = list(self._read(manifest, queue.operator.id))
            except (MissingObject, CorruptState) as error:
                return partial(self._unreadable, queue, generation, checkpoint_id, error)
            self._commit(queue, prepared, commits)
        except Exception as error:
            self._broken = generation
            return partial(self._failed, queue, generation, error)
        return partial(self._done, queue, generation, checkpoint_id, committed=True)

    def _commit(self, queue: _SinkQueue, prepared: list[Prepared], commits: Commits) -> None:
        epochs: dict[int, list[Any]] = {}
        for one in prepared:
            number = commits.number_for(one.checkpoint_id)
            assert number is not None, f"checkpoint {one.checkpoint_id} is complete and has no number"
            epochs.setdefault(number, []).extend(one.committables)
        if queue.committer is None:
            sink: Sink[Any] = queue.operator.spec.function
            queue.committer = sink.epoch_committer(self._context(queue.operator))
        for number in sorted(epochs):
            if number > queue.last_number:  # else it was committed before the job was restored
                started = time.perf_counter()
                queue.committer.commit(Epoch(number, epochs[number]))
                queue.last_number = number
                queue.last_commit_ms = (time.perf_counter() - started) * 1000
                queue.commits += 1
                queue.commit_ms += queue.last_commit_ms
