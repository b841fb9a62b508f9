"""The subtask or relay that a task description of the driver (`control/deployment.py`) stands for.

Spark's workers, the local runtime, the simulator and the harness all make their tasks here.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import replace

from headrace.control.deployment import TaskDescriptor
from headrace.control.messages import AcknowledgeCheckpoint, DeclineCheckpoint
from headrace.graph.plan import VertexPlan
from headrace.storage.layout import subtask_owner
from headrace.storage.objects import ObjectStore
from headrace.worker.operators.base import SubtaskServices
from headrace.worker.output import TaskPlace
from headrace.worker.relay import Relay
from headrace.worker.snapshots.local_copies import LocalCopies
from headrace.worker.snapshots.restore import RestoreProgress, read_restore
from headrace.worker.snapshots.snapshot_writer import SnapshotWriter
from headrace.worker.subtask import Subtask


class SteppedServices:
    """The services of a runtime that steps its subtasks in one thread, with a virtual clock.

    Without `to_driver`, what the program prints or collects is dropped.
    """

    lockstep = True

    def __init__(
        self, clock: Callable[[], int], to_driver: Callable[[str, bytes, int], None] = lambda *_: None
    ) -> None:
        self.now, self.to_driver = clock, to_driver

    def wake(self) -> None:
        """Nothing sleeps."""


def make_task(
    task: TaskDescriptor,
    services: SubtaskServices,
    store: ObjectStore | None = None,
    progress: RestoreProgress | None = None,
) -> Subtask | Relay:
    """Make a task, not yet opened; operator state and in-flight data are read from `store` here."""
    place = TaskPlace(task.index, task.previous_width, task.next_width)
    if task.vertex is None:
        return Relay(task.relay_to, place, task.settings.buffer_size)
    # Every subtask has its own copy of the user's objects.
    plan: VertexPlan = pickle.loads(task.vertex)
    restore = None
    if task.restore is not None:
        copies = _copies(task) if task.settings.restore_from_copies else None
        restore = read_restore(task.restore, task.subtask, plan, store, copies, progress)
    settings, storage = task.settings, task.storage
    if storage is not None:
        settings = replace(settings, staging=storage.staging, epoch=storage.attempt.epoch)
    info = plan.task_info(task.subtask, task.attempt, task.job_id)
    return Subtask(plan, info, settings, services, place, restore)


def make_snapshot_writer(
    task: TaskDescriptor,
    send: Callable[[AcknowledgeCheckpoint | DeclineCheckpoint], None],
    store: ObjectStore | None = None,
    executor: Executor | None = None,
) -> SnapshotWriter | None:
    """Make the writer of a subtask's snapshots; None for a relay, or a job without storage for checkpoints."""
    if task.vertex is None or task.storage is None:
        return None
    copies = _copies(task) if task.settings.write_copies else None
    owner = subtask_owner(task.vertex_id, task.subtask)
    return SnapshotWriter(task.storage, owner, send, store, executor, copies)


def _copies(task: TaskDescriptor) -> LocalCopies:
    return LocalCopies(task.settings.copies_dirs, task.job_id, task.operators, task.subtask, task.parallelism)
