"""A small job to make checkpoints with."""

from __future__ import annotations

from headrace.checkpoint.types import SnapshotType
from headrace.ids import JobId, OperatorId
from headrace.records.key_groups import KeyGroupRange
from headrace.storage.layout import AttemptId, JobLayout, subtask_owner
from headrace.storage.manifest import Manifest, OperatorManifest, PieceKind, StatePiece, SubtaskManifest
from headrace.storage.published_snapshots import publish
from headrace.storage.writer import Scope, SnapshotTarget, StateWriter

JOB = JobId("0123456789abcdef" * 2)
OPERATOR = OperatorId("1" * 32)
LAYOUT = JobLayout.of("/data", JOB)
FIRST = AttemptId(1)

PRELOAD = ["headrace.storage.remote", "headrace.storage.log", "headrace.storage.writer", "pytest"]
"""What processes of a test have in common: loaded once, before they are forked."""


def content(size, salt):
    return bytes((i * 13 + salt) % 251 for i in range(size))


def write_pieces(store, checkpoint_id, attempt, subtask, layout=LAYOUT, directory=None, shared=True):
    """What a subtask acknowledges: 300 bytes private, 400 bytes shared, 10 bytes inline."""
    target = SnapshotTarget(
        checkpoint_id,
        attempt,
        directory or layout.checkpoint(checkpoint_id),
        layout.shared if shared else None,
        inline_threshold=100,
    )
    writer = StateWriter(store, target, subtask_owner(0, subtask))
    salt = checkpoint_id * 10 + subtask
    private = writer.write("list", content(300, salt))
    keyed = writer.write(f"{attempt}-{checkpoint_id}-{subtask}", content(400, salt + 1), Scope.SHARED)
    inline = writer.write("small", content(10, salt + 2))
    writer.close()
    return (
        StatePiece(PieceKind.OPERATOR, (private, inline)),
        StatePiece(PieceKind.KEYED, (keyed,), key_groups=KeyGroupRange(subtask * 64, subtask * 64 + 63)),
    )


def manifest_of(checkpoint_id, pieces, attempt, type=SnapshotType.CHECKPOINT, job=JOB):
    subtasks = tuple(SubtaskManifest(index, found) for index, found in enumerate(pieces))
    operator = OperatorManifest(OPERATOR, "count", len(pieces), 128, subtasks)
    return Manifest(checkpoint_id, type, job, "wordcount", attempt, 1000 + checkpoint_id, (operator,))


def take(store, checkpoint_id, attempt=FIRST, layout=LAYOUT):
    """Write and publish a checkpoint of two subtasks."""
    pieces = [write_pieces(store, checkpoint_id, attempt, subtask, layout) for subtask in range(2)]
    manifest = manifest_of(checkpoint_id, pieces, attempt, job=layout.job_id)
    return publish(store, manifest, layout.checkpoint(checkpoint_id))


def take_savepoint(store, checkpoint_id, directory, type=SnapshotType.SAVEPOINT, attempt=FIRST):
    """Write and publish a savepoint of two subtasks."""
    pieces = [write_pieces(store, checkpoint_id, attempt, n, directory=directory, shared=False) for n in range(2)]
    return publish(store, manifest_of(checkpoint_id, pieces, attempt, type), directory)
