"""The writer of snapshots: which errors decline a checkpoint, and which fail the task too."""

from types import SimpleNamespace

import pytest

from headrace.checkpoint.barriers.instructions import AlignmentMetrics
from headrace.checkpoint.types import Barrier
from headrace.control.deployment import WorkerStorage
from headrace.control.messages import DeclineCheckpoint
from headrace.errors import LocalStateError, StorageError
from headrace.storage.layout import AttemptId
from headrace.worker.snapshots.snapshot_writer import SnapshotWriter
from headrace.worker.snapshots.taken_snapshots import SnapshotInProgress


class AtOnce:
    def submit(self, work, *args):
        work(*args)


def decline(error):
    """A snapshot whose state cannot be read: the writer, and what it sent."""

    def fail():
        raise error

    sent = []
    writer = SnapshotWriter(WorkerStorage(AttemptId(1), None, 0), "v0-s0", sent.append, executor=AtOnce())
    operator = SimpleNamespace(operator=SimpleNamespace(id="a", label="a"), subtask=0, keyed=None, operator_state=fail)
    writer.start(SnapshotInProgress(Barrier(1, 0), [operator], AlignmentMetrics()))
    return writer, sent


def test_an_error_of_the_storage_declines_the_checkpoint_only():
    writer, (sent,) = decline(StorageError("away"))
    assert isinstance(sent, DeclineCheckpoint)
    writer.wake()


def test_working_files_that_are_of_no_use_any_more_fail_the_task_too():
    writer, (sent,) = decline(LocalStateError("No space left on device"))
    assert isinstance(sent, DeclineCheckpoint)
    with pytest.raises(LocalStateError, match="No space left"):
        writer.wake()
